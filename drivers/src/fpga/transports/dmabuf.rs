//! Bus addresses of a dma-buf for a card with its own driver or without a driver: the Linux module `daq_dmabuf`.
//!
//! The card's driver or a user-supplied command programs the engine with these addresses. They are valid until the
//! [`Attachment`] is dropped or revoked. Stop the engine before dropping the attachment. If the process dies, Linux
//! disables the bus mastering of the card before it frees the memory.

use crate::sys::dmabuf;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;

pub use crate::sys::dmabuf::Segment;

/// The device file of the module.
const PATH: &str = "/dev/daq_dmabuf";

/// Error: memory cannot be mapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct DmabufError {
    /// The module or the device that the error concerns.
    pub what: String,
    /// What happened and how to fix it.
    pub why: String,
    /// The error number from Linux, if the error is from a system call.
    pub errno: Option<Errno>,
}

/// The address of a PCI function, such as `0000:3b:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// PCI domain; 0 on most machines.
    pub domain: u32,
    /// PCI bus number.
    pub bus: u8,
    /// Device number × 8 + function number.
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
            why: "not a PCI address; use the format of lspci -D, such as 0000:3b:00.0".to_owned(),
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

/// The direction of the accesses to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device reads the memory.
    ToDevice,
    /// The device writes the memory.
    FromDevice,
    /// The device reads and writes the memory.
    Both,
}

/// The state of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The addresses are valid.
    Live,
    /// The addresses are no longer valid: stop the engine, then drop the attachment.
    Revoked(Reason),
}

/// Why an attachment was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The exporter moved or revoked the memory.
    Moved,
    /// A driver was bound to the device, or unbound from it.
    Rebound,
    /// The device was removed.
    Removed,
    /// A reason of a newer module version.
    Other(u32),
}

/// The distance between memory and device that Linux reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// Number of PCIe ports between the memory and the device.
    Ports(u32),
    /// Unknown, because Linux was built without PCI_P2PDMA.
    Unknown,
    /// Linux does not support peer-to-peer access on this path.
    Refused,
    /// The memory is host memory.
    Host,
}

/// The open Linux module.
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
                    "the Linux module is not loaded: run sudo modprobe daq_dmabuf; if it is not installed, see \
                     kmod/daq_dmabuf/README.md"
                        .to_owned()
                }
                Errno::ACCESS | Errno::PERM => {
                    "permission denied: run as root, or give the process CAP_SYS_RAWIO and its user access to the file".to_owned()
                }
                errno => format!("cannot open: {errno}"),
            },
            errno: Some(errno),
        })?;
        Ok(Self {
            file: Arc::new(file),
        })
    }

    /// Pins the dma-buf `memory` and maps it for `device`, whose DMA addresses have `address_bits` bits (1 to 64).
    ///
    /// `None` uses the width that the device's driver has set, or 32 bits without a driver. A width is allowed only for a
    /// device without a driver. The attachment keeps the memory alive; `memory` may be closed.
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

    /// Maps the dma-buf `memory` as [`map`](Self::map) does, with an eventfd of [`revocation_eventfd`] that several attachments
    /// may share.
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

/// Creates an eventfd that becomes readable when an attachment with it is revoked.
pub fn revocation_eventfd() -> Result<Arc<OwnedFd>, DmabufError> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    eventfd(0, flags)
        .map(Arc::new)
        .map_err(|errno| DmabufError {
            what: PATH.to_owned(),
            why: format!("cannot create an eventfd: {errno}; check the limit of open files"),
            errno: Some(errno),
        })
}

/// Explains an error number of the map call and how to fix it.
fn why(errno: Errno, address_bits: Option<u16>) -> String {
    let text = match errno {
        Errno::NODEV => "the PCI device does not exist or does not respond: check with lspci -D",
        Errno::BUSY => {
            "the device is bound to a driver that manages DMA itself (vfio-pci, pci-stub, pcieport): bind the device \
             to its own driver, unbind the device, or use an engine over VFIO. Or another attachment of the device has \
             a different address width: set the same `address_bits` for all of them"
        }
        Errno::EXIST => {
            "a driver is bound to the device and sets the address width: remove `address_bits`"
        }
        Errno::BADF => "the file descriptor of the memory is not open",
        Errno::INVAL => {
            return format!(
                "the memory is not a dma-buf, the device is a bridge, or the address width of {} bits is not between 1 and 64",
                address_bits.unwrap_or(0)
            );
        }
        Errno::REMOTEIO => {
            "the device cannot use the addresses from the exporter: they are not in its IOMMU domain, are beyond its address \
             width, or are in a bounce buffer; set path = \"staged\""
        }
        Errno::STALE => "the memory was revoked while it was mapped: try again",
        Errno::NOSPC => "the maximum of 65535 attachments is reached: lower `slots` of the ring",
        errno => {
            return format!(
                "the exporter of the memory or Linux refused to map the memory for this device: {errno}"
            );
        }
    };
    text.to_owned()
}

/// A dma-buf that a device may access. Dropping the attachment unmaps the memory; stop the device's engine first.
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
    /// Returns the size of the dma-buf in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bus addresses of the memory. Consecutive ranges are merged into one segment.
    ///
    /// The total may be larger than the dma-buf, because the exporter rounds up.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the bus address of the byte at `offset`, and the number of bytes with consecutive addresses from
    /// this byte on; `None` beyond the end. One transfer can fill a slot only within such a range.
    pub fn contiguous_from(&self, offset: u64) -> Option<(u64, u64)> {
        contiguous_from(&self.segments, self.bytes, offset)
    }

    /// Returns whether the addresses are still valid.
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

    /// Returns the distance between memory and device.
    pub fn distance(&self) -> Result<Distance, DmabufError> {
        let distance = self.query()?.p2p_distance;
        Ok(match (u32::try_from(distance), distance) {
            (Ok(ports), _) => Distance::Ports(ports),
            (_, -2) => Distance::Refused,
            (_, -3) => Distance::Host,
            _ => Distance::Unknown,
        })
    }

    /// Returns an eventfd that becomes readable when the attachment is revoked.
    pub fn revoked(&self) -> BorrowedFd<'_> {
        self.revoked.as_fd()
    }

    /// Detaches the attachment after a quiesce timeout: when the [`Module`] and all its attachments are dropped, the module
    /// disables the bus mastering of the device and only then frees the memory.
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
            why: format!("cannot read the state of mapping {}: {errno}", self.handle),
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
            tracing::error!("{PATH}: cannot unmap mapping {}: {errno}", self.handle);
        }
    }
}

/// Implements [`Attachment::contiguous_from`] for memory of `bytes` bytes.
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
