//! Checks which calls the module rejects, and with which error.

use crate::Check;
use crate::machine::{Edu, Memory, Why, find, folder, nothing_held, why};
use crate::sys::{ARGUMENT, NoMemory, To, raw, raw_nowhere};
use daq_drivers::fpga::transports::dmabuf::{Attachment, Direction, DmabufError, Function, Module};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Checks for every kind of boot.
pub const CHECKS: &[Check] = &[
    ("the wrong memory, device or width is refused", wrong_map),
    ("wrong flags, sizes and events are refused", wrong_arguments),
    (
        "wrong handles, ranges and addresses are refused",
        wrong_handles,
    ),
    (
        "an exporter that rejects the map, or maps too few bytes",
        bad_exporters,
    ),
];
/// Checks for a translating IOMMU.
pub const TRANSLATED: &[Check] = &[("addresses without an IOMMU mapping are refused", bare)];
/// Checks with `edu` bound to vfio-pci.
pub const VFIO: &[Check] = &[("a device that is bound to vfio-pci is refused", vfio)];
/// Checks with a Linux that uses bounce buffers for all DMA.
pub const BOUNCE: &[Check] = &[("a bounce buffer is refused", bounce)];

/// Numbers of the module's calls.
const MAP: u8 = 0;
const SEGS: u8 = 1;
const STATE: u8 = 2;
const UNMAP: u8 = 3;

/// Returns an error unless `result` is the error `wanted`.
fn is<T>(what: &str, result: Result<T, Errno>, wanted: Errno) -> Result<(), Why> {
    match result.map(drop) {
        Err(errno) if errno == wanted => Ok(()),
        Err(errno) => Err(format!(
            "{what}: expected the error {wanted:?}, got {errno:?}"
        )),
        Ok(()) => Err(format!(
            "{what}: expected the error {wanted:?}, but the call succeeded"
        )),
    }
}

/// Returns the errno of a map.
fn answer(result: Result<Attachment, DmabufError>) -> Result<(), Errno> {
    result
        .map(drop)
        .map_err(|error| error.errno.unwrap_or(Errno::IO))
}

fn device() -> Result<File, Why> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/daq_dmabuf")
        .map_err(why("/dev/daq_dmabuf"))
}

/// Returns the argument of MAP for `edu`, without a number of address bits.
fn map_argument(dmabuf: &OwnedFd, edu: Function) -> [u8; ARGUMENT] {
    let mut argument = [0; ARGUMENT];
    set(&mut argument, 0, 40);
    set(&mut argument, 4, 3);
    set(&mut argument, 8, dmabuf.as_raw_fd().cast_unsigned());
    set(&mut argument, 12, u32::MAX);
    set(&mut argument, 16, edu.domain);
    argument[20] = edu.bus;
    argument[21] = edu.devfn;
    argument
}

fn set(argument: &mut [u8; ARGUMENT], at: usize, value: u32) {
    argument[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn get(argument: &[u8; ARGUMENT], at: usize) -> u32 {
    let bytes = argument[at..at + 4].try_into().expect("four bytes");
    u32::from_le_bytes(bytes)
}

/// Returns a PCI-to-PCI bridge, if there is one.
fn bridge() -> Result<Option<Function>, Why> {
    let devices = fs::read_dir("/sys/bus/pci/devices").map_err(why("PCI devices"))?;
    let is_bridge = |device: &fs::DirEntry| {
        let class = fs::read_to_string(device.path().join("class"));
        class.is_ok_and(|class| class.starts_with("0x0604"))
    };
    let bridge = devices.flatten().find(is_bridge);
    let name = bridge.map(|bridge| bridge.file_name());
    name.map(|name| name.to_string_lossy().parse())
        .transpose()
        .map_err(why("address"))
}

fn wrong_map() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, _memory) = Memory::bar(0)?;
    let module = Module::open().map_err(why("open"))?;
    let map = |memory: &OwnedFd, device: Function, bits| {
        answer(module.map(memory.as_fd(), device, Direction::Both, bits))
    };
    let nothing: Function = "ffff:ff:1f.7".parse().map_err(why("address"))?;
    is("no such device", map(&dmabuf, nothing, None), Errno::NODEV)?;
    let file = eventfd(0, EventfdFlags::CLOEXEC).map_err(why("eventfd"))?;
    is("no dma-buf", map(&file, edu.at, None), Errno::INVAL)?;
    is("65 bits", map(&dmabuf, edu.at, Some(65)), Errno::INVAL)?;
    // A device that belongs to another driver: the one that provides the guest's files.
    let other = find("0x1af4", "0x1009").or_else(|_| find("0x1af4", "0x1049"))?;
    if !folder(other).join("driver").exists() {
        return Err(format!(
            "the device {other} must have a driver for this check"
        ));
    }
    is(
        "address bits for a device with a driver",
        map(&dmabuf, other, Some(64)),
        Errno::EXIST,
    )?;
    match bridge()? {
        Some(bridge) => is("a bridge", map(&dmabuf, bridge, None), Errno::INVAL)?,
        None => println!("no PCI bridge found, so mapping for a bridge was not checked"),
    }
    nothing_held("refused")
}

fn wrong_arguments() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, _memory) = Memory::bar(0)?;
    let file = device()?;
    let good = map_argument(&dmabuf, edu.at);
    let with = |at: usize, value: u32| {
        let mut argument = good;
        set(&mut argument, at, value);
        raw(&file, MAP, &mut argument, To::Null)
    };
    for size in [0, 4, 39] {
        is("argsz too small", with(0, size), Errno::INVAL)?;
    }
    is("argsz beyond a page", with(0, 4097), Errno::TOOBIG)?;
    for flags in [0, 4, 7, u32::MAX] {
        is("flags", with(4, flags), Errno::INVAL)?;
    }
    is("dma-buf -1", with(8, u32::MAX), Errno::BADF)?;
    is("eventfd 4000", with(12, 4000), Errno::BADF)?;
    is("eventfd -2", with(12, u32::MAX - 1), Errno::BADF)?;
    let no_event = file.as_raw_fd().cast_unsigned();
    is("no eventfd", with(12, no_event), Errno::INVAL)?;
    let mut tail = good;
    set(&mut tail, 0, 44);
    set(&mut tail, 40, 1);
    is(
        "argument with unknown fields",
        raw(&file, MAP, &mut tail, To::Null),
        Errno::TOOBIG,
    )?;
    set(&mut tail, 40, 0);
    raw(&file, MAP, &mut tail, To::Null)
        .map_err(why("argument with zeros after the known fields"))?;
    for call in [4, 17, 255] {
        is(
            "no such call",
            raw(&file, call, &mut good.clone(), To::Null),
            Errno::NOTTY,
        )?;
    }
    for call in [MAP, SEGS, STATE, UNMAP] {
        for at in [NoMemory::Null, NoMemory::Kernel] {
            is(
                "argument at an invalid address",
                raw_nowhere(&file, call, at),
                Errno::FAULT,
            )?;
        }
    }
    drop(file);
    nothing_held("closed")
}

fn wrong_handles() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, _memory) = Memory::bar(0)?;
    let (file, other) = (device()?, device()?);
    let mut map = map_argument(&dmabuf, edu.at);
    raw(&file, MAP, &mut map, To::Null).map_err(why("map"))?;
    let (handle, segments) = (get(&map, 24), get(&map, 28));
    if handle == 0 || segments == 0 {
        return Err(format!(
            "handle and number of segments must not be 0, but are {handle} and {segments}"
        ));
    }
    let call = |file: &File, call, handle, first, to| {
        let mut argument = [0; ARGUMENT];
        for (at, value) in [(0, 24), (4, handle), (8, first), (12, 64)] {
            set(&mut argument, at, value);
        }
        if call != SEGS {
            argument[8..].fill(0);
        }
        if call == UNMAP {
            set(&mut argument, 0, 8);
        }
        raw(file, call, &mut argument, to).map(|()| get(&argument, 12))
    };
    for number in [SEGS, STATE, UNMAP] {
        for wrong in [0, handle + 1, u32::MAX] {
            let answer = call(&file, number, wrong, 0, To::Here);
            is("no such handle", answer, Errno::NOENT)?;
        }
        let answer = call(&other, number, handle, 0, To::Here);
        is("a handle of another file", answer, Errno::NOENT)?;
    }
    let segs = |first, to| call(&file, SEGS, handle, first, to);
    is(
        "segment after the last one",
        segs(segments + 1, To::Here),
        Errno::INVAL,
    )?;
    is(
        "segments written to address 0",
        segs(0, To::Null),
        Errno::FAULT,
    )?;
    is(
        "segments written to a kernel address",
        segs(0, To::Kernel),
        Errno::FAULT,
    )?;
    match (segs(0, To::Here), segs(segments, To::Here)) {
        (Ok(all), Ok(0)) if all == segments.min(64) => {}
        other => {
            return Err(format!(
                "expected {segments} and 0 segments, found {other:?}"
            ));
        }
    }
    call(&file, UNMAP, handle, 0, To::Null).map_err(why("unmap"))?;
    let again = call(&file, UNMAP, handle, 0, To::Null);
    is("unmapped twice", again, Errno::NOENT)?;
    nothing_held("unmapped")
}

fn bad_exporters() -> Result<(), Why> {
    let edu = Edu::open()?;
    let module = Module::open().map_err(why("open"))?;
    let wrong = [
        ("exporter does not pin", 1 << 2, Errno::AGAIN),
        ("exporter maps too few bytes", 1 << 3, Errno::REMOTEIO),
        ("exporter does not map", 1 << 4, Errno::NOBUFS),
    ];
    for (what, flags, errno) in wrong {
        let (dmabuf, _memory) = Memory::bar(flags)?;
        let map = module.map(dmabuf.as_fd(), edu.at, Direction::Both, Some(64));
        is(what, answer(map), errno)?;
        nothing_held(what)?;
    }
    Ok(())
}

fn bare() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, _memory) = Memory::bar(crate::data::BARE_ADDRESSES)?;
    let module = Module::open().map_err(why("open"))?;
    let map = module.map(dmabuf.as_fd(), edu.at, Direction::FromDevice, Some(64));
    is(
        "addresses without an IOMMU mapping",
        answer(map),
        Errno::REMOTEIO,
    )?;
    nothing_held("refused")
}

fn vfio() -> Result<(), Why> {
    let edu = find("0x1234", "0x11e8")?;
    let (dmabuf, _memory) = Memory::bar(0)?;
    let module = Module::open().map_err(why("open"))?;
    let map = module.map(dmabuf.as_fd(), edu, Direction::FromDevice, None);
    is("device bound to vfio-pci", answer(map), Errno::BUSY)?;
    nothing_held("refused")
}

fn bounce() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, _memory) = Memory::host()?;
    let module = Module::open().map_err(why("open"))?;
    let map = module.map(dmabuf.as_fd(), edu.at, Direction::FromDevice, Some(64));
    is(
        "memory behind a bounce buffer",
        answer(map),
        Errno::REMOTEIO,
    )
}
