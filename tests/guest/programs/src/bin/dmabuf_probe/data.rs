//! Checks that bytes are written to the given addresses and to no others.

use crate::Check;
use crate::machine::{Edu, Memory, PAGE, TRANSFER, Why, address, folder, nothing_held, why};
use daq_drivers::fpga::transports::dmabuf::{Attachment, Direction, Distance, Module, State};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

/// The exporter maps each page separately, the last page first (bar_exporter.h).
pub const PAGES: u32 = 1 << 1;
/// The exporter gives physical addresses without an IOMMU mapping.
pub const BARE_ADDRESSES: u32 = 1 << 0;

/// Checks for every kind of boot: with a translating IOMMU, with a passthrough IOMMU, and without an IOMMU.
pub const CHECKS: &[Check] = &[
    ("the device reads and writes host memory", host),
    ("the device reads and writes a BAR", bar),
    (
        "a BAR that is mapped page by page: each page has its own address",
        pages,
    ),
    (
        "memory that is mapped twice: the mappings are independent",
        twice,
    ),
    (
        "memory stays mapped after its descriptor is closed",
        descriptor_closed,
    ),
];

/// Checks for a translating IOMMU.
pub const TRANSLATED: &[Check] = &[
    ("the IOMMU maps host memory as one segment", one_piece),
    ("a DMA engine with 25 address bits", narrow),
];

/// Checks without a translating IOMMU.
pub const BARE: &[Check] = &[("physical addresses are bus addresses", physical)];

/// Returns a pattern of bytes whose period is not a power of two.
fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes)
        .map(|i| ((i + seed) % 251).to_le_bytes()[0])
        .collect()
}

/// Maps a dma-buf for `edu`, which can use 64-bit addresses.
pub fn attach(edu: &Edu, dmabuf: &OwnedFd) -> Result<Attachment, Why> {
    let module = Module::open().map_err(why("open"))?;
    module
        .map(dmabuf.as_fd(), edu.at, Direction::Both, Some(64))
        .map_err(why("map"))
}

/// Makes the device read a transfer from the offset `from` and write it to the offset `to`. Then checks every byte of
/// `memory`. `place` converts an offset of the dma-buf to an offset in `memory`.
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
            "copy from offset {from} to {to}: byte {at} is {:#x}, expected {:#x}",
            found[at], expected[at]
        )),
    }
}

fn describe(attachment: &Attachment) -> Result<(), Why> {
    let segments = attachment.segments();
    let total: u64 = segments.iter().map(|segment| segment.bytes).sum();
    println!(
        "{} segments, first address {:#x}, {total} B for a dma-buf of {} B",
        segments.len(),
        segments[0].address,
        attachment.bytes()
    );
    if total < attachment.bytes() {
        return Err("the segments must cover the whole dma-buf".to_owned());
    }
    if attachment.state().map_err(why("state"))? != State::Live {
        return Err("the mapping must be live".to_owned());
    }
    // The guest's Linux is built without PCI_P2PDMA, so the distance is not known.
    match attachment.distance().map_err(why("distance"))? {
        Distance::Unknown => Ok(()),
        other => Err(format!("the distance must be unknown, but is {other:?}")),
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
        return Err("a contiguous BAR must have one segment".to_owned());
    }
    let last = memory.bytes() - TRANSFER;
    moves(&edu, &attachment, &memory, [5 * PAGE, last], |offset| {
        offset
    })?;
    moves(&edu, &attachment, &memory, [last, 0], |offset| offset)?;
    drop(attachment);
    if !edu.is_master()? {
        return Err("an orderly unmap must not disable bus mastering".to_owned());
    }
    nothing_held("unmapped")
}

fn pages() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, memory) = Memory::bar(PAGES)?;
    let attachment = attach(&edu, &dmabuf)?;
    describe(&attachment)?;
    let last = memory.bytes() - PAGE;
    // The exporter reverses the pages, so a page at `offset` from the start of the dma-buf is at the same distance from
    // the end of the BAR.
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
    let second = map().map_err(why("second map"))?;
    let third = map().map_err(why("third map"))?;
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
        segments => Err(format!(
            "host memory behind the IOMMU must be one segment, but has {}",
            segments.len()
        )),
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
        return Err(format!(
            "the bus address {:#x} needs more than 25 bits",
            segment.address
        ));
    }
    moves(&edu, &attachment, &memory, [0, PAGE], |offset| offset)?;
    let other = module.map(dmabuf.as_fd(), edu.at, Direction::Both, Some(64));
    if other.is_ok() {
        return Err("a device must not be attached with 25 and with 64 address bits".to_owned());
    }
    drop(attachment);
    match bits()? {
        after if after == before => Ok(()),
        after => Err(format!(
            "after the unmap the device has {after} address bits, expected {before}"
        )),
    }
}

fn physical() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, memory) = Memory::bar(BARE_ADDRESSES)?;
    let attachment = attach(&edu, &dmabuf)?;
    moves(&edu, &attachment, &memory, [0, PAGE], |offset| offset)
}
