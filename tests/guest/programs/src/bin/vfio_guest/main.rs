//! Checks Linux's VFIO for `tests/guest/cases`, in the guest, with QEMU's DMA device `edu`.
//!
//! Usage: `vfio_guest CHECKS DAQ EDU [MEMORY]`. DAQ is the program `daq`, which becomes the guard process. EDU and
//! MEMORY are PCI addresses. `refused`, `device`, `peer` and `killed` check the transport; `whole-unbound`,
//! `whole-host`, `whole-direct`, `whole-disproved` and `whole-killed` check `daq run`. Each check prints `ok`, `FAIL`
//! or `skip`.

mod whole;

use daq_core::dma::{DmaDevice, DmaMap};
use daq_core::region::{HostOptions, Region};
use daq_drivers::fpga::device::{Device, Registers};
use daq_drivers::fpga::transports::vfio::VfioDevice;
use daq_drivers::sys::vfio_bar::Bar;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal};
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;
use whole::Whole;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

// Registers of the device (docs/specs/edu of QEMU).
const IDENTIFICATION: u64 = 0x00;
const LIVENESS: u64 = 0x04;
const INTERRUPT_ACKNOWLEDGE: u64 = 0x64;
const SOURCE: u64 = 0x80;
const DESTINATION: u64 = 0x88;
const COUNT: u64 = 0x90;
const COMMAND: u64 = 0x98;
const RUN: u32 = 1;
const TO_MEMORY: u32 = 2;
const INTERRUPT: u32 = 4;
/// Address of the device's own memory in the device's address space.
const BUFFER: u32 = 0x40000;
const PAGE: usize = 4096;
/// Maximum number of bytes of a transfer. QEMU before version 8 aborts if a transfer fills the device's memory of one
/// page.
const MAX_COPY: usize = 2048;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["refused", owner, edu] => {
            refused(Path::new(owner), edu);
            Ok(())
        }
        ["device", owner, edu] => device(Path::new(owner), edu),
        ["peer", owner, edu, memory] => peer(Path::new(owner), edu, memory),
        ["killed", owner, edu, memory] => killed(owner, edu, memory),
        ["daemon", owner, edu, memory] => daemon(Path::new(owner), edu, memory),
        [checks, daq, edu, memory] => whole(checks, daq, edu, memory),
        _ => Err("usage: vfio_guest CHECKS DAQ EDU [MEMORY]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!(
                "FAIL {}: {error}",
                arguments.first().unwrap_or(&"vfio_guest")
            );
            ExitCode::FAILURE
        }
    }
}

fn whole(checks: &str, daq: &str, edu: &str, memory: &str) -> Result {
    let whole = Whole::new(daq, edu, memory)?;
    match checks {
        "whole-unbound" => whole.unbound(),
        "whole-host" => whole.host(),
        "whole-direct" => whole.direct(),
        "whole-disproved" => whole.disproved(),
        "whole-killed" => whole.killed(),
        _ => Err("unknown checks".into()),
    }
}

/// Prints the result of a check. `is_so` is true if the check succeeded; otherwise `else_` returns the reason.
fn check(name: &str, is_so: bool, else_: impl FnOnce() -> String) {
    if is_so {
        println!("ok {name}");
    } else {
        println!("FAIL {name}: {}", else_());
    }
}

/// Checks that `result` is an error whose text contains `expected`.
fn check_error<T, E: ToString>(name: &str, result: std::result::Result<T, E>, expected: &str) {
    match result {
        Ok(_) => println!("FAIL {name}: the call must fail, but succeeded"),
        Err(error) => {
            let error = error.to_string();
            check(name, error.contains(expected), || {
                format!("{error:?} does not contain {expected:?}")
            });
        }
    }
}

/// Returns a function that derives distinct numbers from `seed`.
fn pattern(seed: u32) -> impl Fn(usize) -> u32 {
    move |word| {
        let mixed =
            (u32::try_from(word).unwrap_or(0) ^ seed.rotate_left(16)).wrapping_mul(0x9e37_79b1);
        mixed ^ mixed >> 15
    }
}

/// Performs one transfer. Returns when the device reports completion, which does not show where the data was written.
fn transfer(edu: &dyn Registers, source: u32, destination: u32, bytes: usize, flags: u32) {
    edu.write(SOURCE, source);
    edu.write(DESTINATION, destination);
    edu.write(COUNT, u32::try_from(bytes).unwrap_or(0));
    edu.write(COMMAND, RUN | flags);
    while edu.read(COMMAND) & RUN != 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn into_device(edu: &dyn Registers, address: u32, bytes: usize) {
    transfer(edu, address, BUFFER, bytes, 0);
}

fn into_memory(edu: &dyn Registers, address: u32, bytes: usize) {
    transfer(edu, BUFFER, address, bytes, TO_MEMORY);
}

/// The memory of a device, with its complete expected content.
struct Peer {
    bar: Arc<Bar>,
    expected: Vec<u32>,
}

impl Peer {
    fn open(address: &str, resource: &str) -> Result<Self> {
        let path = PathBuf::from(format!("/sys/bus/pci/devices/{address}/{resource}"));
        let bar = Arc::new(Bar::open(&path)?);
        let mut peer = Self {
            expected: vec![0; bar.bytes() / 4],
            bar,
        };
        peer.fill(1);
        Ok(peer)
    }

    fn fill(&mut self, seed: u32) {
        let value = pattern(seed);
        for (word, expected) in self.expected.iter_mut().enumerate() {
            *expected = value(word);
            self.bar.write(word * 4, *expected);
        }
    }

    /// Applies a transfer of `bytes` bytes to the expected content.
    fn moved(&mut self, from: usize, to: usize, bytes: usize) {
        self.expected
            .copy_within(from / 4..(from + bytes) / 4, to / 4);
    }

    fn check(&self, name: &str) {
        let wrong: Vec<usize> = (0..self.expected.len())
            .filter(|&word| self.bar.read(word * 4) != self.expected[word])
            .collect();
        check(name, wrong.is_empty(), || {
            format!(
                "{} words differ, the first at {:#x}",
                wrong.len(),
                wrong[0] * 4
            )
        });
    }
}

/// Checks the errors that are reported for a device that is not bound to VFIO.
fn refused(owner: &Path, edu: &str) {
    let open = VfioDevice::open(edu, Some(owner));
    check_error("unbound: the fix is reported", open, "/driver_override");
}

fn open_descriptors() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn device(owner: &Path, address: &str) -> Result {
    let descriptors = open_descriptors()?;
    let device = VfioDevice::open(address, Some(owner))?;
    let identity = device.identity();
    check(
        "identity",
        (identity.vendor, identity.device, identity.class) == (0x1234, 0x11e8, 0x00_ff00),
        || format!("{identity:x?}"),
    );
    let edu = device.registers(0)?;
    check(
        "registers: identification",
        edu.read(IDENTIFICATION) == 0x0100_00ed,
        || format!("{:#x}", edu.read(IDENTIFICATION)),
    );
    edu.write(LIVENESS, 0x1234_5678);
    check(
        "registers: a written value can be read back",
        edu.read(LIVENESS) == !0x1234_5678,
        || format!("{:#x}", edu.read(LIVENESS)),
    );
    check_error(
        "registers: a missing BAR is refused",
        device.registers(3).map(drop),
        "BAR 3: not present; the device has BARs [0]",
    );
    let again = VfioDevice::open(address, Some(owner));
    check_error(
        "a device can be opened only once",
        again.map(drop),
        "fuser -v /dev/vfio/",
    );

    interrupts(&device, &*edu)?;
    host_memory(&device, &*edu)?;

    match device.reset() {
        Ok(()) => check(
            "reset: registers have their initial values",
            edu.read(LIVENESS) == !0,
            || format!("{:#x}", edu.read(LIVENESS)),
        ),
        Err(error) => println!("skip reset: {error}"),
    }
    let pid = device.guard().ok_or("the device has no guard process")?;
    check("the guard process runs", is_running(pid), || {
        format!("no process {pid}")
    });
    drop((device, edu));
    check(
        "the guard process ends with the device",
        !is_running(pid),
        || format!("process {pid} still runs"),
    );
    let rounds = 10;
    for _ in 0..rounds {
        let device = VfioDevice::open(address, Some(owner))?;
        let region = Region::host(PAGE, HostOptions::default())?;
        let _registers = device.registers(0)?;
        drop(DmaMap::new(device.as_dma(), region)?);
    }
    check(
        "nothing is left open",
        open_descriptors()? == descriptors,
        || {
            format!(
                "{descriptors} descriptors before, {:?} after {rounds} rounds",
                open_descriptors()
            )
        },
    );
    Ok(())
}

/// Returns the words of a region. The device must be idle.
fn words(region: &Region) -> Result<Vec<u32>> {
    // A shared region has a file. Reading through the file needs no pointers.
    let file = fs::File::from(
        region
            .file()
            .ok_or("the region has no file")?
            .try_clone_to_owned()?,
    );
    let mut bytes = vec![0; region.bytes()];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0)?;
    Ok(bytes
        .as_chunks()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word))
        .collect())
}

fn fill(region: &Region, seed: u32) -> Result<Vec<u32>> {
    let value = pattern(seed);
    let expected: Vec<u32> = (0..region.bytes() / 4).map(value).collect();
    let file = fs::File::from(
        region
            .file()
            .ok_or("the region has no file")?
            .try_clone_to_owned()?,
    );
    let bytes: Vec<u8> = expected
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0)?;
    Ok(expected)
}

fn host_memory(device: &Arc<VfioDevice>, edu: &dyn Registers) -> Result {
    let options = HostOptions {
        shared: true,
        ..HostOptions::default()
    };
    let region = Region::host(8 * PAGE, options)?;
    let mut expected = fill(&region, 2)?;
    let map = DmaMap::new(device.clone().as_dma(), region.clone())?;
    let address = u32::try_from(map.address())?;
    into_device(edu, address + 3 * 4096, MAX_COPY);
    into_memory(edu, address + 7 * 4096, MAX_COPY);
    expected.copy_within(3 * PAGE / 4..(3 * PAGE + MAX_COPY) / 4, 7 * PAGE / 4);
    into_memory(edu, address + 4096 + 4, 100);
    expected.copy_within(3 * PAGE / 4..(3 * PAGE + 100) / 4, (PAGE + 4) / 4);
    check(
        "host memory: the device has copied every byte correctly",
        words(&region)? == expected,
        || "the content of the memory differs".to_owned(),
    );

    let other = Region::host(2 << 20, options)?;
    let second = DmaMap::new(device.clone().as_dma(), other)?;
    check(
        "host memory: maps do not overlap",
        second.address() >= map.address() + 8 * PAGE as u64
            || second.address() + (2 << 20) <= map.address(),
        || format!("{second:?} {map:?}"),
    );
    check_error(
        "unmap: a different size is refused",
        device.unmap(map.address(), PAGE),
        "the mapping at this address has 0x8000 bytes",
    );
    check_error(
        "unmap: an unmapped address is refused",
        device.unmap(map.address() + 4096, PAGE),
        "nothing is mapped at this address",
    );
    into_memory(edu, address, MAX_COPY);
    expected.copy_within(3 * PAGE / 4..(3 * PAGE + MAX_COPY) / 4, 0);
    check(
        "unmap: the memory stays mapped after refused calls",
        words(&region)? == expected,
        || "the content of the memory differs".to_owned(),
    );
    drop(map);
    into_memory(edu, address + 2 * 4096, MAX_COPY);
    check(
        "unmap: the device can no longer write the memory",
        words(&region)? == expected,
        || "the device has written the memory".to_owned(),
    );

    let map = DmaMap::new(device.clone().as_dma(), region.clone())?;
    let address = u32::try_from(map.address())?;
    device.disable_and_reset()?;
    into_memory(edu, address + 2 * 4096, MAX_COPY);
    check(
        "disabled and reset: the device can no longer write the memory",
        words(&region)? == expected,
        || "the device has written the memory".to_owned(),
    );
    drop(map);
    Ok(())
}

fn interrupts(device: &Arc<VfioDevice>, edu: &dyn Registers) -> Result {
    check_error(
        "interrupts: too many",
        device.interrupts(64),
        "MSI vectors, but 64 are needed",
    );
    let events = device.interrupts(1)?;
    // This limit is only a safeguard, because the device raises the interrupt before the transfer is reported as
    // complete.
    let limit = Duration::from_mins(1);
    check(
        "interrupts: none yet",
        !events[0].wait(Duration::ZERO),
        || "an interrupt arrived".to_owned(),
    );
    for round in 1..=2 {
        transfer(edu, BUFFER, 0, 4, TO_MEMORY | INTERRUPT);
        let came = events[0].wait(limit);
        edu.write(INTERRUPT_ACKNOWLEDGE, u32::MAX);
        // The transfer has no valid target, because nothing is mapped. An interrupt does not prove that data was
        // written.
        check(&format!("interrupts: number {round} arrived"), came, || {
            "the interrupt did not arrive".to_owned()
        });
    }
    check(
        "interrupts: no more arrive than were raised",
        !events[0].wait(Duration::ZERO),
        || "an interrupt arrived".to_owned(),
    );
    Ok(())
}

fn peer(owner: &Path, edu: &str, memory: &str) -> Result {
    for resource in ["resource2", "resource2_wc"] {
        let mut peer = Peer::open(memory, resource)?;
        let device = VfioDevice::open(edu, Some(owner))?;
        let edu = device.registers(0)?;
        let bytes = peer.bar.bytes();
        let begin = device.map_bar(&peer.bar)?;
        let address = u32::try_from(begin)?;
        let at = |offset: usize| u32::try_from(offset).map(|offset| address + offset);
        for (from, to, bytes) in [
            (0, 0x10000, MAX_COPY),
            (bytes - MAX_COPY, 0x20000, MAX_COPY),
            (0x30000, bytes - MAX_COPY, MAX_COPY),
            (0x40000, 0x50ffc, 8),
        ] {
            into_device(&*edu, at(from)?, bytes);
            into_memory(&*edu, at(to)?, bytes);
            peer.moved(from, to, bytes);
        }
        peer.check(&format!(
            "{resource}: peer-to-peer writes arrive, and no other byte changes"
        ));
        // Write one page after the end. The transfer must not reach other memory at the following bus addresses.
        into_memory(&*edu, at(bytes)?, MAX_COPY);
        peer.check(&format!("{resource}: writes past the end change nothing"));
        device.unmap(begin, bytes)?;
        into_memory(&*edu, at(0x60000)?, MAX_COPY);
        peer.check(&format!(
            "{resource}: writes after the unmap change nothing"
        ));
    }
    Ok(())
}

/// A daemon that has mapped a peer device and waits to be killed. Prints the values that the killing process needs.
fn daemon(owner: &Path, edu: &str, memory: &str) -> Result {
    let peer = Bar::open(Path::new(&format!(
        "/sys/bus/pci/devices/{memory}/resource2_wc"
    )))?;
    let device = VfioDevice::open(edu, Some(owner))?;
    let address = device.map_bar(&Arc::new(peer))?;
    println!(
        "{address} {}",
        device.guard().ok_or("the device has no guard process")?
    );
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// `edu` as used by another process than its daemon. It represents an engine that continues by itself.
struct Stolen {
    bar: Bar,
    /// Keeps Linux from closing the device together with the daemon.
    device: OwnedFd,
    _container: OwnedFd,
}

impl Registers for Stolen {
    fn bytes(&self) -> u64 {
        self.bar.bytes() as u64
    }
    fn read(&self, offset: u64) -> u32 {
        self.bar.read(usize::try_from(offset).unwrap_or(usize::MAX))
    }
    fn write(&self, offset: u64, value: u32) {
        self.bar
            .write(usize::try_from(offset).unwrap_or(usize::MAX), value);
    }
}

impl Stolen {
    fn from(daemon: &Child) -> Result<Self> {
        let pid = Pid::from_child(daemon);
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let find = |wanted: &str| -> Result<OwnedFd> {
            for entry in fs::read_dir(format!("/proc/{}/fd", daemon.id()))? {
                let entry = entry?;
                if fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy() == wanted) {
                    let number = entry.file_name().to_string_lossy().parse()?;
                    let flags = PidfdGetfdFlags::empty();
                    return Ok(rustix::process::pidfd_getfd(&process, number, flags)?);
                }
            }
            Err(format!("the daemon has not opened {wanted}").into())
        };
        let device = find("anon_inode:[vfio-device]")?;
        // BAR 0 is at offset 0 of the device file.
        Ok(Self {
            bar: Bar::map(device.as_fd(), 0, 1 << 20)?,
            device,
            _container: find("/dev/vfio/vfio")?,
        })
    }

    /// Enables memory access and bus mastering.
    fn enable(&self) -> Result {
        // VFIO_PCI_CONFIG_REGION_INDEX is 7, and PCI_COMMAND is 4.
        rustix::io::pwrite(&self.device, &[6, 0], (7 << 40) + 4)?;
        Ok(())
    }
}

/// Waits until a process has ended. The process may be a child of another process.
fn ended(process: &OwnedFd) -> Result {
    let mut fds = [rustix::event::PollFd::new(
        process,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut fds, None)?;
    Ok(())
}

fn killed(owner: &str, edu: &str, memory: &str) -> Result {
    for has_owner in [false, true] {
        let mut peer = Peer::open(memory, "resource2_wc")?;
        let mut daemon = Command::new(std::env::current_exe()?)
            .args(["daemon", owner, edu, memory])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let (address, pid) = line
            .trim()
            .split_once(' ')
            .ok_or(format!("unexpected output of the daemon: {line:?}"))?;
        let address: u32 = address.parse()?;
        let pid = Pid::from_raw(pid.parse()?).ok_or("no process id")?;
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let engine = Stolen::from(&daemon)?;
        into_device(&engine, address, MAX_COPY);
        into_memory(&engine, address + 0x10000, MAX_COPY);
        peer.moved(0, 0x10000, MAX_COPY);
        peer.check("while the daemon runs, the device can write");

        rustix::process::kill_process(pid, Signal::INT)?;
        rustix::process::kill_process(pid, Signal::TERM)?;
        rustix::process::kill_process(pid, Signal::HUP)?;
        if !has_owner {
            rustix::process::kill_process(pid, Signal::KILL)?;
            ended(&process)?;
        }
        daemon.kill()?;
        daemon.wait()?;
        ended(&process)?;
        into_memory(&engine, address + 0x20000, MAX_COPY);
        if has_owner {
            peer.check(
                "daemon killed: the guard process has stopped the device, nothing is written",
            );
            engine.enable()?;
            into_memory(&engine, address + 0x20000, MAX_COPY);
            peer.check(
                "daemon killed: the guard process has removed the map, even a running device writes nothing",
            );
        } else {
            // This shows why the guard process is needed. If nothing were written here, the check above would prove
            // nothing.
            peer.moved(0, 0x20000, MAX_COPY);
            peer.check("daemon and guard process killed: the device continues to write");
        }
    }
    Ok(())
}
