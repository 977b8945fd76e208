//! Bus addresses of a dma-buf for a card that keeps its own driver, or has none: the kernel module `daq_dmabuf`.
//!
//! The engine is programmed by others (the card's driver, a hook of the user) with the addresses that come from here.
//! They hold until the [`Attachment`] is dropped or revoked; the engine must be stopped before it is dropped. If the
//! process dies with attachments, the kernel switches off the card's bus mastering before it gives the memory back.

use crate::sys::dmabuf;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;

pub use crate::sys::dmabuf::Segment;

/// Where the module is reached.
const PATH: &str = "/dev/daq_dmabuf";

/// Why there are no bus addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct DmabufError {
    /// The module, or the device.
    pub what: String,
    /// What happened and what helps.
    pub why: String,
    /// What the kernel answered; none where it was not asked.
    pub errno: Option<Errno>,
}

/// The address of a PCI function, such as `0000:3b:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Domain, 0 on most machines.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device number · 8 + function.
    pub devfn: u8,
}

impl FromStr for Function {
    type Err = DmabufError;

    fn from_str(text: &str) -> Result<Self, DmabufError> {
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            let device = u8::from_str_radix(device, 16).ok().filter(|n| *n < 32)?;
            let function = u8::from_str_radix(function, 8).ok().filter(|n| *n < 8)?;
            Some(Self {
                domain: u32::from_str_radix(domain, 16).ok()?,
                bus: u8::from_str_radix(bus, 16).ok()?,
                devfn: device << 3 | function,
            })
        };
        parse().ok_or_else(|| DmabufError {
            what: text.to_owned(),
            why: "is no PCI address; write it as lspci -D does, such as 0000:3b:00.0".to_owned(),
            errno: None,
        })
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, devfn } = self;
        write!(f, "{domain:04x}:{bus:02x}:{:02x}.{}", devfn >> 3, devfn & 7)
    }
}

/// Who accesses the memory how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device reads it.
    ToDevice,
    /// The device writes it.
    FromDevice,
    /// Both.
    Both,
}

/// What has become of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its addresses hold.
    Live,
    /// Its addresses no longer hold: stop the engine, then drop the attachment.
    Revoked(Reason),
}

/// Why an attachment was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The exporter moved or withdrew the memory.
    Moved,
    /// A driver was bound to the device, or unbound from it.
    Rebound,
    /// The device is gone.
    Removed,
    /// What a newer module says.
    Other(u32),
}

/// How far the memory is from the device, as the kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// PCIe ports between the two.
    Ports(u32),
    /// The kernel does not say: it is built without PCI_P2PDMA.
    Unknown,
    /// The kernel does not trust the way between the two.
    Refused,
    /// The memory is the host's.
    Host,
}

/// The kernel module, open.
#[derive(Clone, Debug)]
pub struct Module {
    file: Arc<OwnedFd>,
}

impl Module {
    /// Opens `/dev/daq_dmabuf`; needs CAP_SYS_RAWIO.
    pub fn open() -> Result<Self, DmabufError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(PATH, flags, Mode::empty()).map_err(|errno| DmabufError {
            what: PATH.to_owned(),
            why: match errno {
                Errno::NOENT | Errno::NODEV | Errno::NXIO => {
                    "the kernel module is not loaded: sudo modprobe daq_dmabuf; if it is not installed, see \
                     kmod/daq_dmabuf/README.md"
                        .to_owned()
                }
                Errno::ACCESS | Errno::PERM => {
                    "is for root: run as root, or give the process CAP_SYS_RAWIO and the file to its user".to_owned()
                }
                errno => format!("cannot be opened: {errno}"),
            },
            errno: Some(errno),
        })?;
        Ok(Self {
            file: Arc::new(file),
        })
    }

    /// Pins `memory`, a dma-buf, and maps it for `device`, whose engine drives `address_bits` bits of address (1 to 64).
    ///
    /// `None` leaves the width that the device's driver has set, or 32 bits where it has none; a width may be given only
    /// for a device without a driver. The attachment keeps the memory, `memory` itself may be closed.
    pub fn map(
        &self,
        memory: BorrowedFd<'_>,
        device: Function,
        direction: Direction,
        address_bits: Option<u16>,
    ) -> Result<Attachment, DmabufError> {
        self.map_with_eventfd(
            memory,
            device,
            direction,
            address_bits,
            revocation_eventfd()?,
        )
    }

    /// As [`map`](Self::map), with an eventfd of [`revocation_eventfd`] that several attachments may share.
    pub fn map_with_eventfd(
        &self,
        memory: BorrowedFd<'_>,
        device: Function,
        direction: Direction,
        address_bits: Option<u16>,
        revoked: Arc<OwnedFd>,
    ) -> Result<Attachment, DmabufError> {
        let failed = |errno| DmabufError {
            what: device.to_string(),
            why: why(errno, address_bits),
            errno: Some(errno),
        };
        let mut argument = dmabuf::Map {
            flags: match direction {
                Direction::ToDevice => dmabuf::TO_DEVICE,
                Direction::FromDevice => dmabuf::FROM_DEVICE,
                Direction::Both => dmabuf::TO_DEVICE | dmabuf::FROM_DEVICE,
            },
            dmabuf_fd: memory.as_raw_fd(),
            revoke_eventfd: revoked.as_raw_fd(),
            domain: device.domain,
            bus: device.bus,
            devfn: device.devfn,
            address_bits: address_bits.unwrap_or(0),
            ..dmabuf::Map::default()
        };
        dmabuf::map(self.file.as_fd(), &mut argument).map_err(failed)?;
        let mut attachment = Attachment {
            file: self.file.clone(),
            handle: argument.handle,
            bytes: argument.size,
            segments: vec![Segment::default(); argument.segments as usize],
            revoked,
            is_detached: false,
        };
        let to = &mut attachment.segments;
        let count = dmabuf::segments(self.file.as_fd(), argument.handle, 0, to).map_err(failed)?;
        attachment.segments.truncate(count);
        Ok(attachment)
    }
}

/// An eventfd that becomes readable when an attachment made with it is revoked.
pub fn revocation_eventfd() -> Result<Arc<OwnedFd>, DmabufError> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    eventfd(0, flags)
        .map(Arc::new)
        .map_err(|errno| DmabufError {
            what: PATH.to_owned(),
            why: format!("no eventfd can be had: {errno}; too many open files?"),
            errno: Some(errno),
        })
}

/// What the module's answer to a map means and what helps.
fn why(errno: Errno, address_bits: Option<u16>) -> String {
    let text = match errno {
        Errno::NODEV => "there is no such PCI device, or it does not answer: look with lspci -D",
        Errno::BUSY => {
            "its DMA belongs to user space or to a driver that manages it alone (vfio-pci, pci-stub, a PCIe port), or it \
             is attached already with another address width: use VFIO's own mapping, or give it its own driver, or none"
        }
        Errno::EXIST => {
            "a driver is bound to it, which alone says how many address bits it drives: leave the width out"
        }
        Errno::BADF => "the memory is no open descriptor",
        Errno::INVAL => {
            return format!(
                "the memory is no dma-buf, the device is a bridge, or {} address bits are not between 1 and 64",
                address_bits.unwrap_or(0)
            );
        }
        Errno::REMOTEIO => {
            "the addresses that the memory's exporter gave are none that this device can use: its IOMMU does not know \
             them, the device's address bits do not reach them, or they lie in a bounce buffer; use the staged path"
        }
        Errno::STALE => "the memory was withdrawn while it was mapped: try again",
        Errno::NOSPC => "more than 65535 attachments: drop some",
        errno => {
            return format!(
                "the memory's exporter, or the kernel, refuses to map it for this device: {errno}"
            );
        }
    };
    text.to_owned()
}

/// A dma-buf that a device may access; unmapped when dropped, before which the device's engine must be stopped.
#[derive(Debug)]
pub struct Attachment {
    file: Arc<OwnedFd>,
    handle: u32,
    bytes: u64,
    segments: Vec<Segment>,
    revoked: Arc<OwnedFd>,
    is_detached: bool,
}

impl Attachment {
    /// Bytes of the dma-buf.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its bus addresses from its first byte on; no two that follow each other are consecutive.
    ///
    /// Together they may be longer than the dma-buf by what the exporter rounds up.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The bus address of the byte at `offset`, and how many bytes from there on have consecutive addresses; `None`
    /// beyond the end. A slot can be written by one transfer if it is no longer than that.
    pub fn contiguous_from(&self, offset: u64) -> Option<(u64, u64)> {
        contiguous_from(&self.segments, self.bytes, offset)
    }

    /// Whether its addresses still hold.
    pub fn state(&self) -> Result<State, DmabufError> {
        let state = self.query()?;
        if state.state != dmabuf::REVOKED {
            return Ok(State::Live);
        }
        Ok(State::Revoked(match state.reason {
            1 => Reason::Moved,
            2 => Reason::Rebound,
            3 => Reason::Removed,
            other => Reason::Other(other),
        }))
    }

    /// How far the memory is from the device.
    pub fn distance(&self) -> Result<Distance, DmabufError> {
        let distance = self.query()?.p2p_distance;
        Ok(match (u32::try_from(distance), distance) {
            (Ok(ports), _) => Distance::Ports(ports),
            (_, -2) => Distance::Refused,
            (_, -3) => Distance::Host,
            _ => Distance::Unknown,
        })
    }

    /// Becomes readable when it is revoked: an eventfd.
    pub fn revoked(&self) -> BorrowedFd<'_> {
        self.revoked.as_fd()
    }

    /// Leaves it to the module, of an engine that does not stop: once the [`Module`] and all its attachments are gone, it
    /// switches off the device's bus mastering, and only then gives the memory back.
    pub fn detach(mut self) {
        self.is_detached = true;
    }

    fn query(&self) -> Result<dmabuf::State, DmabufError> {
        let mut argument = dmabuf::State {
            handle: self.handle,
            ..dmabuf::State::default()
        };
        dmabuf::state(self.file.as_fd(), &mut argument).map_err(|errno| DmabufError {
            what: PATH.to_owned(),
            why: format!("does not know its own mapping {}: {errno}", self.handle),
            errno: Some(errno),
        })?;
        Ok(argument)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.is_detached {
            return;
        }
        if let Err(errno) = dmabuf::unmap(self.file.as_fd(), self.handle) {
            tracing::error!("{PATH}: mapping {} cannot be undone: {errno}", self.handle);
        }
    }
}

/// As [`Attachment::contiguous_from`], of memory of `bytes` bytes.
fn contiguous_from(segments: &[Segment], bytes: u64, offset: u64) -> Option<(u64, u64)> {
    let left = bytes.checked_sub(offset).filter(|left| *left > 0)?;
    let mut start = 0;
    for segment in segments {
        let into = offset - start;
        if into < segment.bytes {
            return Some((segment.address + into, left.min(segment.bytes - into)));
        }
        start += segment.bytes;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_parsed_in_lspci_format() {
        let parse = |text: &str| Function::from_str(text).map(|function| function.to_string());
        assert_eq!(parse("0000:3b:1f.7").as_deref(), Ok("0000:3b:1f.7"));
        assert_eq!(parse("3B:00.0").as_deref(), Ok("0000:3b:00.0"));
        assert_eq!(parse("10000:01:02.3").as_deref(), Ok("10000:01:02.3"));
        for wrong in ["", "3b:00", "3b:20.0", "3b:00.8", "0:100:00.0", "x:00.0"] {
            let error = parse(wrong).unwrap_err();
            assert!(error.to_string().contains("0000:3b:00.0"), "{error}");
        }
    }

    #[test]
    fn contiguous_range_ends_at_segment_and_memory_end() {
        let segment = |address, bytes| Segment { address, bytes };
        let segments = [segment(0x9000, 0x1000), segment(0x4000, 0x3000)];
        let at = |offset| contiguous_from(&segments, 0x3800, offset);
        assert_eq!(at(0), Some((0x9000, 0x1000)));
        assert_eq!(at(0xfff), Some((0x9fff, 1)));
        assert_eq!(at(0x1000), Some((0x4000, 0x2800)));
        assert_eq!(at(0x37ff), Some((0x67ff, 1)));
        assert_eq!(at(0x3800), None);
        assert_eq!(at(u64::MAX), None);
        assert_eq!(contiguous_from(&segments, 0x5000, 0x4800), None);
    }

    #[test]
    fn missing_module_error_names_fix() {
        if std::path::Path::new(PATH).exists() {
            eprintln!("skipped: {PATH} exists");
            return;
        }
        let error = Module::open().unwrap_err();
        assert!(error.to_string().contains("modprobe daq_dmabuf"), "{error}");
    }
}
