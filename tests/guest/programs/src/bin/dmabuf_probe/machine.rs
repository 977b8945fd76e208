//! The devices of the guest: `edu`, which performs DMA, and a device whose BAR represents the memory of a GPU.

use crate::sys::{Bar, export_bar, udmabuf};
use daq_drivers::fpga::transports::dmabuf::{Attachment, Function};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes per transfer: half of edu's buffer, because some versions of QEMU reject transfers that fill the buffer.
pub const TRANSFER: usize = 2048;
/// Size of a page in bytes.
pub const PAGE: usize = 4096;
/// Size in bytes of the BAR that the test's exporter provides (bar_exporter.h).
pub const BAR: usize = 1 << 20;
/// Size of the host memory in tests, in bytes.
pub const HOST: usize = 16 * PAGE;

/// Registers of `edu`, from docs/specs/edu.rst of QEMU.
const SOURCE: usize = 0x80;
const DESTINATION: usize = 0x88;
const COUNT: usize = 0x90;
const COMMAND: usize = 0x98;
const RUN: u64 = 1;
const TO_MEMORY: u64 = 2;
/// Address of edu's buffer in its own address space.
const BUFFER: u64 = 0x40000;

/// The reason why a check failed.
pub type Why = String;

/// Converts an error into the reason of a failure, for example `why("reading it")`.
pub fn why<E: std::fmt::Display>(doing: &str) -> impl Fn(E) -> Why {
    move |error| format!("{doing}: {error}")
}

/// Returns the folder of a PCI device in sysfs.
pub fn folder(device: Function) -> PathBuf {
    Path::new("/sys/bus/pci/devices").join(device.to_string())
}

/// Writes `text` to a file in sysfs.
pub fn put(path: impl AsRef<Path>, text: &str) -> Result<(), Why> {
    let path = path.as_ref();
    fs::write(path, text).map_err(|error| format!("{} > {}: {error}", text, path.display()))
}

/// Returns the first PCI device of a vendor and model.
pub fn find(vendor: &str, model: &str) -> Result<Function, Why> {
    let devices = fs::read_dir("/sys/bus/pci/devices").map_err(why("PCI devices"))?;
    let found = devices.flatten().filter(|device| {
        let is = |file: &str, value: &str| {
            fs::read_to_string(device.path().join(file)).is_ok_and(|text| text.trim() == value)
        };
        is("vendor", vendor) && is("device", model)
    });
    let name = found.map(|device| device.file_name()).min();
    let name = name.ok_or_else(|| format!("no device {vendor}:{model}"))?;
    name.to_string_lossy().parse().map_err(why("address"))
}

/// The PCI command register. Two of its bits follow (PCI Local Bus Specification).
const PCI_COMMAND: u64 = 4;
const MEMORY: u16 = 1 << 1;
const MASTER: u16 = 1 << 2;

/// The configuration space of a device.
struct Config(File);

impl Config {
    fn open(device: Function) -> Result<Self, Why> {
        let path = folder(device).join("config");
        let file = File::options().read(true).write(true).open(path);
        Ok(Self(file.map_err(why("config space"))?))
    }

    fn command(&self) -> Result<u16, Why> {
        let mut bytes = [0; 2];
        let read = self.0.read_exact_at(&mut bytes, PCI_COMMAND);
        read.map_err(why("PCI_COMMAND"))?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn enable(&self, bits: u16) -> Result<(), Why> {
        let command = self.command()? | bits;
        let written = self.0.write_all_at(&command.to_le_bytes(), PCI_COMMAND);
        written.map_err(why("PCI_COMMAND"))
    }
}

/// QEMU's DMA device.
pub struct Edu {
    /// PCI address of the device.
    pub at: Function,
    registers: Bar,
    config: Config,
}

impl Edu {
    /// Finds the device without changing its state.
    pub fn find() -> Result<Self, Why> {
        let at = find("0x1234", "0x11e8")?;
        Ok(Self {
            at,
            registers: Bar::open(&folder(at).join("resource0")).map_err(why("registers"))?,
            config: Config::open(at)?,
        })
    }

    /// Finds the device, and enables its memory and bus mastering.
    pub fn open() -> Result<Self, Why> {
        let edu = Self::find()?;
        edu.config.enable(MEMORY | MASTER)?;
        Ok(edu)
    }

    /// Returns whether bus mastering of the device is enabled.
    pub fn is_master(&self) -> Result<bool, Why> {
        Ok(self.config.command()? & MASTER != 0)
    }

    /// Returns whether a transfer is not complete.
    pub fn is_running(&self) -> bool {
        self.registers.read(COMMAND) & RUN != 0
    }

    /// Waits until no transfer is running.
    pub fn wait(&self) {
        while self.is_running() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts to write the device's buffer to bus address `to`.
    pub fn start_to(&self, to: u64) {
        self.start(BUFFER, to, TRANSFER, RUN | TO_MEMORY);
    }

    fn start(&self, source: u64, destination: u64, bytes: usize, command: u64) {
        self.registers.write(SOURCE, source);
        self.registers.write(DESTINATION, destination);
        self.registers.write(COUNT, bytes as u64);
        self.registers.write(COMMAND, command);
    }

    /// Reads a transfer from bus address `from` into the device's buffer.
    pub fn take(&self, from: u64) {
        self.fetch(from, TRANSFER);
    }

    /// Reads `bytes` bytes from bus address `from` into the device's buffer.
    pub fn fetch(&self, from: u64, bytes: usize) {
        self.start(from, BUFFER, bytes, RUN);
        self.wait();
    }

    /// Writes the first `bytes` bytes of the device's buffer to bus address `to`.
    pub fn store(&self, to: u64, bytes: usize) {
        self.start(BUFFER, to, bytes, RUN | TO_MEMORY);
        self.wait();
    }

    /// Writes the device's buffer to bus address `to`.
    pub fn give(&self, to: u64) {
        self.start_to(to);
        self.wait();
    }
}

/// Returns the bus address of `offset`. A transfer that begins there must be contiguous.
pub fn address(attachment: &Attachment, offset: usize) -> Result<u64, Why> {
    match attachment.contiguous_from(offset as u64) {
        Some((address, bytes)) if bytes >= TRANSFER as u64 => Ok(address),
        other => Err(format!(
            "{TRANSFER} B from offset {offset} on must be contiguous, found {other:x?}"
        )),
    }
}

/// Memory that both the device and the processor can access.
pub enum Memory {
    /// Host memory, created with udmabuf.
    Host(File),
    /// The BAR.
    Bar(Bar),
}

impl Memory {
    /// Creates 64 KiB of host memory. Returns its dma-buf and the memory.
    pub fn host() -> Result<(OwnedFd, Self), Why> {
        let (dmabuf, file) = udmabuf(HOST as u64).map_err(why("/dev/udmabuf"))?;
        Ok((dmabuf, Self::Host(file)))
    }

    /// Exports the BAR of the memory device with the exporter's `flags`. Returns its dma-buf and the memory.
    pub fn bar(flags: u32) -> Result<(OwnedFd, Self), Why> {
        let at = find("0x1af4", "0x1110")?;
        Config::open(at)?.enable(MEMORY)?;
        let bar = Bar::open(&folder(at).join("resource2")).map_err(why("BAR"))?;
        let dmabuf = export_bar(at, 2, flags).map_err(why("/dev/bar_exporter"))?;
        Ok((dmabuf, Self::Bar(bar)))
    }

    /// Returns the size of the dma-buf in bytes.
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Host(_) => HOST,
            Self::Bar(_) => BAR,
        }
    }

    /// Returns the number of bytes to check: those of the dma-buf and, in a BAR, the page after it, which the device
    /// must not write.
    pub const fn visible(&self) -> usize {
        match self {
            Self::Host(_) => HOST,
            Self::Bar(_) => BAR + PAGE,
        }
    }

    /// Writes `bytes` at `offset`. Both the offset and the length must be multiples of 8.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Why> {
        match self {
            Self::Host(file) => file
                .write_all_at(bytes, offset as u64)
                .map_err(why("writing host memory")),
            Self::Bar(bar) => {
                for (i, word) in bytes.chunks_exact(8).enumerate() {
                    let word = word.try_into().expect("eight bytes");
                    bar.write(offset + 8 * i, u64::from_le_bytes(word));
                }
                Ok(())
            }
        }
    }

    /// Returns `bytes` bytes from `offset` on. Both must be multiples of 8.
    pub fn read(&self, offset: usize, bytes: usize) -> Result<Vec<u8>, Why> {
        match self {
            Self::Host(file) => {
                let mut to = vec![0; bytes];
                file.read_exact_at(&mut to, offset as u64)
                    .map_err(why("reading host memory"))?;
                Ok(to)
            }
            Self::Bar(bar) => Ok((offset..offset + bytes)
                .step_by(8)
                .flat_map(|at| bar.read(at).to_le_bytes())
                .collect()),
        }
    }
}

/// Returns the numbers of attachments, pins and maps that importers hold on memory of the test's exporter.
pub fn held() -> Result<[i32; 3], Why> {
    let mut held = [0; 3];
    for (held, name) in held.iter_mut().zip(["attachments", "pins", "maps"]) {
        let path = format!("/sys/module/bar_exporter/parameters/{name}");
        let text = fs::read_to_string(&path).map_err(why(&path))?;
        *held = text.trim().parse().map_err(why(&path))?;
    }
    Ok(held)
}

/// Returns an error if an importer still holds an attachment, a pin or a map.
pub fn nothing_held(when: &str) -> Result<(), Why> {
    match held()? {
        [0, 0, 0] => Ok(()),
        held => Err(format!(
            "{when}: the numbers of attachments, pins and maps must be 0, but are {held:?}"
        )),
    }
}
