//! Reads the UDP datagrams of a pcap or pcapng file in order.
//!
//! The file is read as a stream, so memory use is independent of its size. Frames that contain no complete UDP datagram
//! are skipped and counted by reason. A capture taken with segmentation offload stores several datagrams as one; the
//! source `replay` splits them.

mod dissect;

use dissect::{Skip, dissect};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError as FileError, TsResolution};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Chain, Cursor, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Size in bytes of the header of a pcap file, and of a pcapng file without options.
const PCAP_HEADER_BYTES: u64 = 24;
const PCAPNG_HEADER_BYTES: u64 = 28;
/// Size in bytes of the header of a record of a pcap file.
const RECORD_HEADER_BYTES: u64 = 16;

/// Reason why reading a capture failed.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// The file cannot be opened.
    #[error("cannot open the capture {}: {source}", path.display())]
    Open {
        /// Path of the capture.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is not a capture.
    #[error("{} is neither pcap nor pcapng (it begins with {found:02x?}): `file` shows its type; decompress it first if it is compressed", path.display())]
    NotCapture {
        /// Path of the capture.
        path: PathBuf,
        /// The first bytes of the file.
        found: Vec<u8>,
    },
    /// The file cannot be read.
    #[error("cannot read the capture {} after {frames} frames: {source}", path.display())]
    Read {
        /// Path of the capture.
        path: PathBuf,
        /// Number of frames read before the error.
        frames: u64,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The structure of the file is damaged.
    #[error("the capture {} is damaged after {frames} frames: {what}; `pcapfix` may repair it", path.display())]
    Damaged {
        /// Path of the capture.
        path: PathBuf,
        /// Number of frames read before the error.
        frames: u64,
        /// Description of the damage.
        what: String,
    },
}

/// One captured datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Capture time in nanoseconds since 1970; 0 if the capture does not contain it.
    pub timestamp_ns: u64,
    /// Address and port of the sender.
    pub source: SocketAddr,
    /// Address and port of the receiver.
    pub destination: SocketAddr,
    /// UDP checksum as captured; 0 if the sender computed none.
    pub checksum: u16,
    /// UDP payload.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Finds the datagram in an IP packet that was received at `timestamp_ns`. Returns `None` if the packet contains no whole
    /// UDP datagram.
    pub fn in_ip(packet: &'a [u8], timestamp_ns: u64) -> Option<Self> {
        let found = dissect(DataLink::RAW, packet, packet.len()).ok()?;
        Some(Self {
            timestamp_ns,
            source: found.source,
            destination: found.destination,
            checksum: found.checksum,
            payload: packet.get(found.payload)?,
        })
    }

    /// Returns whether the datagram has a valid checksum. The checksum is invalid if the sender's NIC was to compute it
    /// after the capture (checksum offload).
    pub fn has_valid_checksum(&self) -> bool {
        const UDP: u64 = 17;
        let length = self.payload.len() as u64 + 8;
        let address = |address: IpAddr| match address {
            IpAddr::V4(address) => sum(&address.octets()),
            IpAddr::V6(address) => sum(&address.octets()),
        };
        let ports = u64::from(self.source.port()) + u64::from(self.destination.port());
        // The length is added twice, because it is in the pseudo-header and in the UDP header.
        let header = UDP + 2 * length + ports + u64::from(self.checksum);
        let total =
            address(self.source.ip()) + address(self.destination.ip()) + header + sum(self.payload);
        self.checksum != 0 && total.is_multiple_of(0xffff)
    }
}

/// Adds 16-bit words in network byte order. The last word is padded with a zero byte.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |last| u64::from(*last) << 8);
    let words = words
        .iter()
        .map(|word| u64::from(u16::from_be_bytes(*word)));
    words.sum::<u64>() + last
}

/// Number of captured frames without a usable datagram, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Number of frames of another protocol.
    pub not_udp: u64,
    /// Number of frames that contain a fragment of a datagram.
    pub fragment: u64,
    /// Number of frames that the capture truncated (`tcpdump -s`).
    pub cut_short: u64,
    /// Number of frames of a link layer that is not supported.
    pub unknown_link: u64,
    /// Number of frames whose length fields contradict each other.
    pub malformed: u64,
}

impl Skipped {
    /// Returns the number of all skipped frames.
    pub const fn total(&self) -> u64 {
        self.not_udp + self.fragment + self.cut_short + self.unknown_link + self.malformed
    }

    fn count(&mut self, skip: Skip) {
        *match skip {
            Skip::NotUdp => &mut self.not_udp,
            Skip::Fragment => &mut self.fragment,
            Skip::CutShort => &mut self.cut_short,
            Skip::UnknownLink => &mut self.unknown_link,
            Skip::Malformed => &mut self.malformed,
        } += 1;
    }
}

/// The first four bytes, which identify the file type, followed by the rest of the file.
type Stream<R> = Chain<Cursor<[u8; 4]>, R>;

enum Inner<R: Read> {
    Pcap(pcap_file::pcap::PcapReader<Stream<R>>),
    PcapNg(Box<PcapNg<Stream<R>>>),
}

/// Reader of a capture.
pub struct Capture<R: Read = File> {
    path: PathBuf,
    inner: Inner<R>,
    payload: Vec<u8>,
    /// Offset in the file of the next record.
    position: u64,
    frames: u64,
    skipped: Skipped,
    torn: bool,
    ended: bool,
}

impl Capture<File> {
    /// Opens a capture file.
    pub fn open(path: &Path) -> Result<Self, PcapError> {
        let file = daq_core::file::open(path).map_err(|source| PcapError::Open {
            path: path.to_owned(),
            source,
        })?;
        Self::new(path, file)
    }
}

impl<R: Read> Capture<R> {
    /// Starts reading a capture from `reader`. `path` is used in error messages.
    pub fn new(path: &Path, mut reader: R) -> Result<Self, PcapError> {
        let mut magic = [0; 4];
        let mut filled = 0;
        while filled < magic.len() {
            match reader.read(&mut magic[filled..]) {
                Ok(0) => {
                    return Err(PcapError::NotCapture {
                        path: path.to_owned(),
                        found: magic[..filled].to_vec(),
                    });
                }
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(PcapError::Read {
                        path: path.to_owned(),
                        frames: 0,
                        source,
                    });
                }
            }
        }
        let stream = Cursor::new(magic).chain(reader);
        let inner = match magic {
            [0x0a, 0x0d, 0x0d, 0x0a] => PcapNg::new(stream).map(|ng| Inner::PcapNg(Box::new(ng))),
            [0xa1, 0xb2, 0xc3, 0xd4]
            | [0xa1, 0xb2, 0x3c, 0x4d]
            | [0xd4, 0xc3, 0xb2, 0xa1]
            | [0x4d, 0x3c, 0xb2, 0xa1] => pcap_file::pcap::PcapReader::new(stream).map(Inner::Pcap),
            found => {
                return Err(PcapError::NotCapture {
                    path: path.to_owned(),
                    found: found.to_vec(),
                });
            }
        }
        .map_err(|error| broken(path, 0, error))?;
        let position = match inner {
            Inner::Pcap(_) => PCAP_HEADER_BYTES,
            Inner::PcapNg(_) => PCAPNG_HEADER_BYTES,
        };
        let (skipped, payload) = (Skipped::default(), Vec::new());
        Ok(Self {
            path: path.to_owned(),
            inner,
            payload,
            position,
            frames: 0,
            skipped,
            torn: false,
            ended: false,
        })
    }

    /// Returns the next datagram, or `None` at the end and after an error.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Datagram<'_>>, PcapError> {
        let found = loop {
            if self.ended {
                return Ok(None);
            }
            // If reading fails, this stays true, because no record can be located after a damaged one.
            self.ended = true;
            let record = match &mut self.inner {
                Inner::Pcap(reader) => next_pcap(reader, &mut self.position),
                Inner::PcapNg(reader) => reader.next(&mut self.position),
            };
            let record = match record {
                Ok(Some(record)) => record,
                Ok(None) => return Ok(None),
                Err(FileError::IoError(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.torn = true;
                    return Ok(None);
                }
                Err(error) => return Err(broken(&self.path, self.frames, error)),
            };
            self.ended = false;
            let Record::Frame {
                timestamp_ns,
                link,
                wire,
                bytes,
            } = record
            else {
                continue;
            };
            self.frames += 1;
            match dissect(link, bytes, wire) {
                Ok(found) => {
                    self.payload.clear();
                    self.payload
                        .extend_from_slice(&bytes[found.payload.clone()]);
                    break (timestamp_ns, found);
                }
                Err(skip) => self.skipped.count(skip),
            }
        };
        let (timestamp_ns, found) = found;
        let (source, destination) = (found.source, found.destination);
        Ok(Some(Datagram {
            timestamp_ns,
            source,
            destination,
            checksum: found.checksum,
            payload: &self.payload,
        }))
    }

    /// Returns the number of bytes of the file that were read so far, without the options of the first header of a pcapng
    /// file.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Returns the number of frames read so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Returns the frames skipped so far.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Returns whether the file ends within a record, for example because the capturing process was killed.
    pub fn is_torn(&self) -> bool {
        self.torn
    }
}

fn broken(path: &Path, frames: u64, error: FileError) -> PcapError {
    let path = path.to_owned();
    match error {
        FileError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            PcapError::Damaged {
                path,
                frames,
                what: "the file ends within its first header".to_owned(),
            }
        }
        FileError::IoError(source) => PcapError::Read {
            path,
            frames,
            source,
        },
        other => PcapError::Damaged {
            path,
            frames,
            what: other.to_string(),
        },
    }
}

/// One record of a capture file.
enum Record<'a> {
    Frame {
        timestamp_ns: u64,
        link: DataLink,
        wire: usize,
        bytes: &'a [u8],
    },
    /// A record without a frame.
    Other,
}

fn next_pcap<'a, R: Read>(
    reader: &'a mut pcap_file::pcap::PcapReader<R>,
    position: &mut u64,
) -> Result<Option<Record<'a>>, FileError> {
    let header = reader.header();
    let Some(packet) = reader.next_raw_packet() else {
        return Ok(None);
    };
    let packet = packet?;
    *position += RECORD_HEADER_BYTES + u64::from(packet.incl_len);
    let fraction = match header.ts_resolution {
        TsResolution::MicroSecond => u64::from(packet.ts_frac) * 1000,
        TsResolution::NanoSecond => u64::from(packet.ts_frac),
    };
    let Cow::Borrowed(bytes) = packet.data else {
        return Ok(Some(Record::Other));
    };
    Ok(Some(Record::Frame {
        timestamp_ns: u64::from(packet.ts_sec) * 1_000_000_000 + fraction,
        link: header.datalink,
        wire: packet.orig_len as usize,
        bytes,
    }))
}

/// An interface description of a pcapng file.
#[derive(Clone, Copy)]
struct Interface {
    link: DataLink,
    snaplen: usize,
    /// Timestamp units per second.
    units: u64,
    offset_s: u64,
}

impl Interface {
    fn new(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let snaplen = if block.snaplen == 0 {
            usize::MAX
        } else {
            block.snaplen as usize
        };
        let mut interface = Self {
            link: block.linktype,
            snaplen,
            units: 1_000_000,
            offset_s: 0,
        };
        for option in &block.options {
            match *option {
                // If the top bit is set, the exponent is to base 2, otherwise to base 10.
                InterfaceDescriptionOption::IfTsResol(code) => {
                    let exponent = u32::from(code & 0x7f);
                    let base: u64 = if code & 0x80 == 0 { 10 } else { 2 };
                    interface.units = base.saturating_pow(exponent);
                }
                InterfaceDescriptionOption::IfTsOffset(seconds) => interface.offset_s = seconds,
                _ => {}
            }
        }
        interface
    }

    fn ns(&self, units: u64) -> u64 {
        let ns = u128::from(units) * 1_000_000_000 / u128::from(self.units.max(1))
            + u128::from(self.offset_s) * 1_000_000_000;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Block types of pcapng, which the crate does not export.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

struct PcapNg<R: Read> {
    reader: pcap_file::pcapng::PcapNgReader<R>,
    interfaces: Vec<Interface>,
    big_endian: bool,
    /// Whether the last block changed the section or its interfaces, so that the two fields above are outdated.
    stale: bool,
}

impl<R: Read> PcapNg<R> {
    fn new(stream: R) -> Result<Self, FileError> {
        let reader = pcap_file::pcapng::PcapNgReader::new(stream)?;
        Ok(Self {
            reader,
            interfaces: Vec::new(),
            big_endian: false,
            stale: true,
        })
    }

    fn next(&mut self, position: &mut u64) -> Result<Option<Record<'_>>, FileError> {
        if std::mem::take(&mut self.stale) {
            self.big_endian = self.reader.section().endianness.is_big();
            self.interfaces.clear();
            self.interfaces
                .extend(self.reader.interfaces().iter().map(Interface::new));
        }
        let Some(block) = self.reader.next_raw_block() else {
            return Ok(None);
        };
        let block = block?;
        *position += u64::from(block.initial_len);
        self.stale = matches!(block.type_, SECTION_HEADER | INTERFACE_DESCRIPTION);
        let Cow::Borrowed(body) = block.body else {
            return Ok(Some(Record::Other));
        };
        packet(block.type_, body, self.big_endian, &self.interfaces).map(Some)
    }
}

/// Returns the frame of a block, if the block type contains one.
fn packet<'a>(
    kind: u32,
    body: &'a [u8],
    big: bool,
    interfaces: &[Interface],
) -> Result<Record<'a>, FileError> {
    let word = |at: usize| {
        let bytes = *body.get(at..).and_then(|rest| rest.first_chunk())?;
        Some(if big {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        })
    };
    let word = |at| word(at).ok_or(FileError::InvalidField("a packet block is too short"));
    let interface = |id: u32| {
        interfaces
            .get(id as usize)
            .ok_or(FileError::InvalidInterfaceId(id))
    };
    match kind {
        ENHANCED_PACKET | PACKET => {
            let id = match (kind, big) {
                // The older packet block has a 16-bit interface number, then a 16-bit drop count.
                (PACKET, true) => word(0)? >> 16,
                (PACKET, false) => word(0)? & 0xffff,
                _ => word(0)?,
            };
            let interface = interface(id)?;
            let units = (u64::from(word(4)?) << 32) | u64::from(word(8)?);
            let (captured, wire) = (word(12)? as usize, word(16)? as usize);
            let bytes = body[20..].get(..captured);
            let bytes =
                bytes.ok_or(FileError::InvalidField("a packet is longer than its block"))?;
            Ok(Record::Frame {
                timestamp_ns: interface.ns(units),
                link: interface.link,
                wire,
                bytes,
            })
        }
        SIMPLE_PACKET => {
            let (wire, interface) = (word(0)? as usize, interface(0)?);
            // The block does not state the captured length, and its data is padded.
            let bytes = &body[4..];
            let bytes = &bytes[..bytes.len().min(wire).min(interface.snaplen)];
            Ok(Record::Frame {
                timestamp_ns: 0,
                link: interface.link,
                wire,
                bytes,
            })
        }
        _ => Ok(Record::Other),
    }
}

#[cfg(test)]
mod tests;
