//! Bytes go where the addresses say, and nowhere else.

use crate::Check;
use crate::machine::{Edu, Memory, PAGE, TRANSFER, Why, address, folder, nothing_held, why};
use daq_drivers::fpga::transports::dmabuf::{Attachment, Direction, Distance, Module, State};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

/// The exporter maps page by page, the last page first (bar_exporter.h).
pub const PAGES: u32 = 1 << 1;
/// The exporter gives physical addresses without an IOMMU mapping.
pub const BARE_ADDRESSES: u32 = 1 << 0;

/// With an IOMMU that translates, one that does not, and none.
pub const CHECKS: &[Check] = &[
    ("host memory: the device reads and writes it", host),
    ("a BAR: the device reads and writes it", bar),
    ("a BAR in pages: every page has its address", pages),
    ("mapped twice: two mappings that live apart", twice),
    ("the memory outlives its descriptor", descriptor_closed),
];

/// With an IOMMU that translates.
pub const TRANSLATED: &[Check] = &[
    ("one piece behind the IOMMU", one_piece),
    ("an engine of 25 address bits", narrow),
];

/// Without an IOMMU that translates.
pub const BARE: &[Check] = &[("physical addresses are bus addresses", physical)];

/// Bytes that repeat at no power of two.
fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes)
        .map(|i| ((i + seed) % 251).to_le_bytes()[0])
        .collect()
}

/// Attaches `edu`, which drives all 64 bits.
pub fn attach(edu: &Edu, dmabuf: &OwnedFd) -> Result<Attachment, Why> {
    let module = Module::open().map_err(why("open"))?;
    module
        .map(dmabuf.as_fd(), edu.at, Direction::Both, Some(64))
        .map_err(why("map"))
}

/// The device takes the transfer at `from` and gives it at `to`; every byte of `memory` is then looked at. `place` says
/// where in `memory` an offset of the dma-buf is.
fn moves(
    edu: &Edu,
    attachment: &Attachment,
    memory: &Memory,
    [from, to]: [usize; 2],
    place: impl Fn(usize) -> usize,
) -> Result<(), Why> {
    let mut expected = pattern(memory.visible(), from);
    memory.write(0, &expected)?;
    edu.take(address(attachment, from)?);
    edu.give(address(attachment, to)?);
    let (from, to) = (place(from), place(to));
    expected.copy_within(from..from + TRANSFER, to);
    let found = memory.read(0, memory.visible())?;
    match found.iter().zip(&expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(format!(
            "from {from} to {to}: byte {at} is {:#x}, not {:#x}",
            found[at], expected[at]
        )),
    }
}

fn describe(attachment: &Attachment) -> Result<(), Why> {
    let segments = attachment.segments();
    let total: u64 = segments.iter().map(|segment| segment.bytes).sum();
    println!(
        "{} segments, the first at {:#x}, {total} B of {}",
        segments.len(),
        segments[0].address,
        attachment.bytes()
    );
    if total < attachment.bytes() {
        return Err("the segments are too short".to_owned());
    }
    if attachment.state().map_err(why("state"))? != State::Live {
        return Err("it is not live".to_owned());
    }
    // The guest's kernel is built without PCI_P2PDMA.
    match attachment.distance().map_err(why("distance"))? {
        Distance::Unknown => Ok(()),
        other => Err(format!("the distance is {other:?}")),
    }
}

fn host() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, memory) = Memory::host()?;
    let attachment = attach(&edu, &dmabuf)?;
    describe(&attachment)?;
    let last = memory.bytes() - TRANSFER;
    for offsets in [[0, last], [last, 0], [3 * PAGE, 9 * PAGE + TRANSFER]] {
        moves(&edu, &attachment, &memory, offsets, |offset| offset)?;
    }
    Ok(())
}

fn bar() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, memory) = Memory::bar(0)?;
    let attachment = attach(&edu, &dmabuf)?;
    describe(&attachment)?;
    if attachment.segments().len() != 1 {
        return Err("a BAR in one piece has several segments".to_owned());
    }
    let last = memory.bytes() - TRANSFER;
    moves(&edu, &attachment, &memory, [5 * PAGE, last], |offset| {
        offset
    })?;
    moves(&edu, &attachment, &memory, [last, 0], |offset| offset)?;
    drop(attachment);
    if !edu.is_master()? {
        return Err("unmapped in order, but bus mastering is off".to_owned());
    }
    nothing_held("unmapped")
}

fn pages() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, memory) = Memory::bar(PAGES)?;
    let attachment = attach(&edu, &dmabuf)?;
    describe(&attachment)?;
    let last = memory.bytes() - PAGE;
    // The page at `offset` of the dma-buf is the BAR's as far from its end.
    let place = |offset: usize| last - offset / PAGE * PAGE + offset % PAGE;
    moves(&edu, &attachment, &memory, [0, last], place)?;
    moves(&edu, &attachment, &memory, [last, 77 * PAGE], place)?;
    drop(attachment);
    nothing_held("unmapped")
}

fn twice() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, memory) = Memory::bar(0)?;
    let first = attach(&edu, &dmabuf)?;
    let module = Module::open().map_err(why("open"))?;
    let map = || module.map(dmabuf.as_fd(), edu.at, Direction::Both, Some(64));
    let second = map().map_err(why("map, the second"))?;
    let third = map().map_err(why("map, the third"))?;
    moves(&edu, &first, &memory, [0, PAGE], |offset| offset)?;
    drop(first);
    drop(third);
    moves(&edu, &second, &memory, [PAGE, 4 * PAGE], |offset| offset)?;
    drop(second);
    nothing_held("unmapped")
}

fn descriptor_closed() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, memory) = Memory::bar(0)?;
    let attachment = attach(&edu, &dmabuf)?;
    drop(dmabuf);
    moves(&edu, &attachment, &memory, [0, PAGE], |offset| offset)?;
    drop(attachment);
    nothing_held("unmapped")
}

fn one_piece() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, _memory) = Memory::host()?;
    let attachment = attach(&edu, &dmabuf)?;
    match attachment.segments() {
        [_] => Ok(()),
        segments => Err(format!("pages of the host are {} pieces", segments.len())),
    }
}

fn narrow() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, memory) = Memory::bar(0)?;
    let bits = || {
        let text = fs::read_to_string(folder(edu.at).join("dma_mask_bits"));
        text.map(|text| text.trim().to_owned())
            .map_err(why("dma_mask_bits"))
    };
    let before = bits()?;
    let module = Module::open().map_err(why("open"))?;
    let attachment = module
        .map(dmabuf.as_fd(), edu.at, Direction::Both, Some(25))
        .map_err(why("map"))?;
    let segment = attachment.segments()[0];
    if segment.address + segment.bytes > 1 << 25 {
        return Err(format!("{:#x} has more than 25 bits", segment.address));
    }
    moves(&edu, &attachment, &memory, [0, PAGE], |offset| offset)?;
    let other = module.map(dmabuf.as_fd(), edu.at, Direction::Both, Some(64));
    if other.is_ok() {
        return Err("attached with 25 and with 64 bits".to_owned());
    }
    drop(attachment);
    match bits()? {
        after if after == before => Ok(()),
        after => Err(format!("left behind: {after} address bits, not {before}")),
    }
}

fn physical() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, memory) = Memory::bar(BARE_ADDRESSES)?;
    let attachment = attach(&edu, &dmabuf)?;
    moves(&edu, &attachment, &memory, [0, PAGE], |offset| offset)
}
