//! Captured traffic: the UDP datagrams in a pcap or pcapng file, one after the other.
//!
//! The file is read as a stream; memory does not grow with it. What is no whole UDP datagram is skipped and
//! counted by reason. A capture taken with segmentation offload holds several datagrams as one: `replay` splits them.

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

/// Why a capture cannot be read (on).
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// The file cannot be opened.
    #[error("cannot open the capture {}: {source}", path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Not a capture.
    #[error("{} is neither pcap nor pcapng (it begins with {found:02x?}): `file` shows its type; decompress it first if it is compressed", path.display())]
    NotCapture {
        /// Which file.
        path: PathBuf,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// It cannot be read.
    #[error("cannot read the capture {} after {frames} frames: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Frames read before.
        frames: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// Its structure is broken.
    #[error("the capture {} is damaged after {frames} frames: {what}; `pcapfix` may repair it", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Frames read before.
        frames: u64,
        /// What is wrong.
        what: String,
    },
}

/// One captured datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// When it was captured: nanoseconds since 1970, 0 where the capture does not tell.
    pub timestamp_ns: u64,
    /// Who sent it.
    pub source: SocketAddr,
    /// To whom it was sent.
    pub destination: SocketAddr,
    /// The UDP checksum as captured; 0 = none.
    pub checksum: u16,
    /// What it carried.
    pub payload: &'a [u8],
}

impl Datagram<'_> {
    /// Whether it has a checksum and that one is right. Where a network card is to complete the checksum, it is not.
    pub fn has_valid_checksum(&self) -> bool {
        const UDP: u64 = 17;
        let length = self.payload.len() as u64 + 8;
        let address = |address: IpAddr| match address {
            IpAddr::V4(address) => sum(&address.octets()),
            IpAddr::V6(address) => sum(&address.octets()),
        };
        let ports = u64::from(self.source.port()) + u64::from(self.destination.port());
        // The length counts twice: in the pseudo header and in the header.
        let header = UDP + 2 * length + ports + u64::from(self.checksum);
        let total =
            address(self.source.ip()) + address(self.destination.ip()) + header + sum(self.payload);
        self.checksum != 0 && total.is_multiple_of(0xffff)
    }
}

/// The sum of 16-bit words in network byte order, the last one padded with a zero.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |last| u64::from(*last) << 8);
    let words = words
        .iter()
        .map(|word| u64::from(u16::from_be_bytes(*word)));
    words.sum::<u64>() + last
}

/// Frames of a capture that yielded no datagram, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Another protocol.
    pub not_udp: u64,
    /// Pieces of fragmented datagrams.
    pub fragment: u64,
    /// Frames of which the capture kept only the beginning (`tcpdump -s`).
    pub cut_short: u64,
    /// Frames of a link layer that is not known here.
    pub unknown_link: u64,
    /// Frames whose lengths contradict each other.
    pub malformed: u64,
}

impl Skipped {
    /// All of them.
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

/// The first bytes, read to tell the kinds of file apart, then the rest.
type Stream<R> = Chain<Cursor<[u8; 4]>, R>;

enum Inner<R: Read> {
    Pcap(pcap_file::pcap::PcapReader<Stream<R>>),
    PcapNg(Box<PcapNg<Stream<R>>>),
}

/// A capture being read.
pub struct Capture<R: Read = File> {
    path: PathBuf,
    inner: Inner<R>,
    payload: Vec<u8>,
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
    /// Reads a capture from `reader`; `path` is its name in errors.
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
        let (skipped, payload) = (Skipped::default(), Vec::new());
        Ok(Self {
            path: path.to_owned(),
            inner,
            payload,
            frames: 0,
            skipped,
            torn: false,
            ended: false,
        })
    }

    /// The next datagram, or `None` at the end. After an error there is nothing more to read.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Datagram<'_>>, PcapError> {
        let found = loop {
            if self.ended {
                return Ok(None);
            }
            // Stays so where reading fails: beyond a damaged record nothing can be found again.
            self.ended = true;
            let record = match &mut self.inner {
                Inner::Pcap(reader) => next_pcap(reader),
                Inner::PcapNg(reader) => reader.next(),
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

    /// Frames read so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Frames skipped so far.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Whether the file ended in the middle of a record, as after a killed capture.
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
                what: "it ends within its first header".to_owned(),
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

/// What a file holds next.
enum Record<'a> {
    Frame {
        timestamp_ns: u64,
        link: DataLink,
        wire: usize,
        bytes: &'a [u8],
    },
    /// Something without a frame.
    Other,
}

fn next_pcap<R: Read>(
    reader: &mut pcap_file::pcap::PcapReader<R>,
) -> Result<Option<Record<'_>>, FileError> {
    let header = reader.header();
    let Some(packet) = reader.next_raw_packet() else {
        return Ok(None);
    };
    let packet = packet?;
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

/// What a pcapng file says of an interface.
#[derive(Clone, Copy)]
struct Interface {
    link: DataLink,
    snaplen: usize,
    /// Timestamp units of a second.
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
                // The top bit says that the exponent is of 2, not of 10.
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

/// Block types of pcapng; the crate keeps their numbers to itself.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

struct PcapNg<R: Read> {
    reader: pcap_file::pcapng::PcapNgReader<R>,
    interfaces: Vec<Interface>,
    big_endian: bool,
    /// The last block changed what the two fields above were made from.
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

    fn next(&mut self) -> Result<Option<Record<'_>>, FileError> {
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
        self.stale = matches!(block.type_, SECTION_HEADER | INTERFACE_DESCRIPTION);
        let Cow::Borrowed(body) = block.body else {
            return Ok(Some(Record::Other));
        };
        packet(block.type_, body, self.big_endian, &self.interfaces).map(Some)
    }
}

/// The frame in a block, if it is of a type that has one.
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
                // The older block has 16 bits of interface, then 16 bits of drops.
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
            // The block does not say how much was captured, and is padded.
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
