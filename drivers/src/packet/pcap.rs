//! Reads the UDP datagrams of a pcap or pcapng file in order.
//!
//! The file is read as a stream, so memory use is independent of its size. Frames that contain no complete UDP datagram
//! are skipped and counted by reason. IP fragments are assembled. A capture taken with segmentation offload stores several datagrams as one; the
//! source `replay` splits them.

mod assembler;
mod dissect;
mod fragments;
mod ng;

use assembler::Assembler;
pub use assembler::IpDatagrams;
use dissect::Skip;
use ng::PcapNg;
use pcap_file::{DataLink, PcapError as FileError, TsResolution};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Chain, Cursor, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Size in bytes of the header of a pcap file.
const PCAP_HEADER_BYTES: u64 = 24;
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

impl Datagram<'_> {
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
    /// Number of frames that contain a fragment of a datagram of which other fragments are missing.
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

    fn count(&mut self, skip: &Skip) {
        *match skip {
            Skip::NotUdp => &mut self.not_udp,
            Skip::Fragment(_) => &mut self.fragment,
            Skip::CutShort(_) => &mut self.cut_short,
            Skip::UnknownLink => &mut self.unknown_link,
            Skip::Malformed(_) => &mut self.malformed,
        } += 1;
    }
}

/// Selects datagrams by their destination.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// The UDP port; `None` for all.
    pub port: Option<u16>,
    /// The IP address; `None` for all.
    pub address: Option<IpAddr>,
}

impl Filter {
    /// Returns whether a datagram to `destination` is selected.
    pub fn matches(&self, destination: SocketAddr) -> bool {
        self.port.is_none_or(|port| port == destination.port())
            && self
                .address
                .is_none_or(|address| address == destination.ip())
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
    assembler: Assembler,
    /// Offset in the file of the next record.
    position: u64,
    frames: u64,
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
        let mut position = PCAP_HEADER_BYTES;
        let inner = match magic {
            [0x0a, 0x0d, 0x0d, 0x0a] => {
                position = 0;
                PcapNg::new(stream, &mut position).map(|ng| Inner::PcapNg(Box::new(ng)))
            }
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
        Ok(Self {
            path: path.to_owned(),
            inner,
            assembler: Assembler::default(),
            position,
            frames: 0,
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
            if let Some(found) = self.assembler.add(link, bytes, wire) {
                break (timestamp_ns, found);
            }
        };
        let (timestamp_ns, found) = found;
        Ok(Some(self.assembler.datagram(&found, timestamp_ns)))
    }

    /// Sets which frames [count as rejected](Self::rejected). Without a filter, all frames do.
    #[must_use]
    pub fn with_filter(mut self, filter: Filter) -> Self {
        self.assembler.filter = filter;
        self
    }

    /// Returns the skipped frames so far that can contain data for the filter: `cut_short`, `unknown_link` and `malformed`. Frames
    /// whose destination is unknown are among them.
    pub fn rejected(&self) -> Skipped {
        self.assembler.rejected
    }

    /// Returns the number of bytes of the file that were read so far.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Returns the number of frames read so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Returns the number of frames so far that contained the second or a later fragment of a datagram that was assembled.
    pub fn joined(&self) -> u64 {
        self.assembler.joined
    }

    /// Returns the frames skipped so far.
    pub fn skipped(&self) -> Skipped {
        self.assembler.skipped
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
        link: link_type(header.datalink),
        wire: packet.orig_len as usize,
        bytes,
    }))
}

/// Returns the link type in the field `network` of a pcap file. The upper half of the field contains the length of the frame check
/// sequence at the end of each frame.
fn link_type(network: DataLink) -> DataLink {
    DataLink::from(u32::from(network) & 0xffff)
}

#[cfg(test)]
mod tests;
