//! The guest's devices: `edu`, which does DMA, and the memory whose BAR stands for a GPU's.

use crate::sys::{Bar, export_bar, udmabuf};
use daq_drivers::fpga::transports::dmabuf::{Attachment, Function};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of one transfer: half of edu's buffer, because some versions of QEMU count a byte too many.
pub const TRANSFER: usize = 2048;
/// A page.
pub const PAGE: usize = 4096;
/// Bytes of a BAR that the test's exporter gives (bar_exporter.h).
pub const BAR: usize = 1 << 20;
/// Bytes of the host's memory in tests.
pub const HOST: usize = 16 * PAGE;

/// Registers of `edu`, as QEMU's docs/specs/edu.rst gives them.
const SOURCE: usize = 0x80;
const DESTINATION: usize = 0x88;
const COUNT: usize = 0x90;
const COMMAND: usize = 0x98;
const RUN: u64 = 1;
const TO_MEMORY: u64 = 2;
/// Where its buffer is, in its own addresses.
const BUFFER: u64 = 0x40000;

/// The PCI command register and two of its bits (PCI Local Bus Specification).
const PCI_COMMAND: u64 = 4;
const MEMORY: u16 = 1 << 1;
const MASTER: u16 = 1 << 2;

/// Why a check failed.
pub type Why = String;

/// Turns an error into the reason of a failure: `why("reading it")`.
pub fn why<E: std::fmt::Display>(doing: &str) -> impl Fn(E) -> Why {
    move |error| format!("{doing}: {error}")
}

/// The folder of a PCI device in sysfs.
pub fn folder(device: Function) -> PathBuf {
    Path::new("/sys/bus/pci/devices").join(device.to_string())
}

/// Writes `text` to a file of sysfs.
pub fn put(path: impl AsRef<Path>, text: &str) -> Result<(), Why> {
    let path = path.as_ref();
    fs::write(path, text).map_err(|error| format!("{} > {}: {error}", text, path.display()))
}

/// The PCI device of a vendor and model; the first of several.
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
    /// Its address.
    pub at: Function,
    registers: Bar,
    config: Config,
}

impl Edu {
    /// Finds it, as it is.
    pub fn look() -> Result<Self, Why> {
        let at = find("0x1234", "0x11e8")?;
        Ok(Self {
            at,
            registers: Bar::open(&folder(at).join("resource0")).map_err(why("registers"))?,
            config: Config::open(at)?,
        })
    }

    /// Finds it; enables its memory and bus mastering.
    pub fn open() -> Result<Self, Why> {
        let edu = Self::look()?;
        edu.config.enable(MEMORY | MASTER)?;
        Ok(edu)
    }

    /// Whether it may do DMA.
    pub fn is_master(&self) -> Result<bool, Why> {
        Ok(self.config.command()? & MASTER != 0)
    }

    /// Whether a transfer is still to happen.
    pub fn is_running(&self) -> bool {
        self.registers.read(COMMAND) & RUN != 0
    }

    /// Waits until none is.
    pub fn wait(&self) {
        while self.is_running() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Begins to write its buffer to bus address `to`.
    pub fn start_to(&self, to: u64) {
        self.start(BUFFER, to, TRANSFER, RUN | TO_MEMORY);
    }

    fn start(&self, source: u64, destination: u64, bytes: usize, command: u64) {
        self.registers.write(SOURCE, source);
        self.registers.write(DESTINATION, destination);
        self.registers.write(COUNT, bytes as u64);
        self.registers.write(COMMAND, command);
    }

    /// Reads its buffer from bus address `from`.
    pub fn take(&self, from: u64) {
        self.fetch(from, TRANSFER);
    }

    /// Reads `bytes` bytes from bus address `from` into its buffer.
    pub fn fetch(&self, from: u64, bytes: usize) {
        self.start(from, BUFFER, bytes, RUN);
        self.wait();
    }

    /// Writes the first `bytes` bytes of its buffer to bus address `to`.
    pub fn store(&self, to: u64, bytes: usize) {
        self.start(BUFFER, to, bytes, RUN | TO_MEMORY);
        self.wait();
    }

    /// Writes its buffer to bus address `to`.
    pub fn give(&self, to: u64) {
        self.start_to(to);
        self.wait();
    }
}

/// The bus address of `offset`; a transfer from there on must be in one piece.
pub fn address(attachment: &Attachment, offset: usize) -> Result<u64, Why> {
    match attachment.contiguous_from(offset as u64) {
        Some((address, bytes)) if bytes >= TRANSFER as u64 => Ok(address),
        other => Err(format!(
            "{TRANSFER} B from {offset} on are not in one piece: {other:x?}"
        )),
    }
}

/// Memory that the device and the processor see.
pub enum Memory {
    /// Host memory by udmabuf.
    Host(File),
    /// The BAR.
    Bar(Bar),
}

impl Memory {
    /// 64 KiB of host memory, and its dma-buf.
    pub fn host() -> Result<(OwnedFd, Self), Why> {
        let (dmabuf, file) = udmabuf(HOST as u64).map_err(why("/dev/udmabuf"))?;
        Ok((dmabuf, Self::Host(file)))
    }

    /// The memory device's BAR, and its dma-buf with the exporter's `flags`.
    pub fn bar(flags: u32) -> Result<(OwnedFd, Self), Why> {
        let at = find("0x1af4", "0x1110")?;
        Config::open(at)?.enable(MEMORY)?;
        let bar = Bar::open(&folder(at).join("resource2")).map_err(why("BAR"))?;
        let dmabuf = export_bar(at, 2, flags).map_err(why("/dev/bar_exporter"))?;
        Ok((dmabuf, Self::Bar(bar)))
    }

    /// Bytes of the dma-buf.
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Host(_) => HOST,
            Self::Bar(_) => BAR,
        }
    }

    /// Bytes to look at: those of the dma-buf, and in a BAR a page behind it, which is not the device's to write.
    pub const fn visible(&self) -> usize {
        match self {
            Self::Host(_) => HOST,
            Self::Bar(_) => BAR + PAGE,
        }
    }

    /// Sets every byte from `offset` on; `offset` and the length are multiples of 8.
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

    /// The bytes from `offset` on; `offset` and `bytes` are multiples of 8.
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

/// What importers hold of the test's exporter: attachments, pins, maps.
pub fn held() -> Result<[i32; 3], Why> {
    let mut held = [0; 3];
    for (held, name) in held.iter_mut().zip(["attachments", "pins", "maps"]) {
        let path = format!("/sys/module/bar_exporter/parameters/{name}");
        let text = fs::read_to_string(&path).map_err(why(&path))?;
        *held = text.trim().parse().map_err(why(&path))?;
    }
    Ok(held)
}

/// Fails if an importer still holds something.
pub fn nothing_held(when: &str) -> Result<(), Why> {
    match held()? {
        [0, 0, 0] => Ok(()),
        held => Err(format!("{when}: attachments, pins, maps are {held:?}")),
    }
}
