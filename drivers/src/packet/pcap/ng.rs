//! Reads the blocks of a pcapng file.
//!
//! Only what is needed to find packets and their times is read. Options without a time are skipped, whatever they contain, and a
//! list of options may end with its block.

use super::Record;
use pcap_file::{DataLink, PcapError as FileError};
use std::io::{self, BufReader, Read};

/// Block types.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Number whose byte order is that of its section.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Size in bytes of the type and the length before the body of a block, and of the length after it.
const BLOCK_START: usize = 8;
const BLOCK_END: usize = 4;
/// Maximum size of a block in bytes; a larger size shows that the file is damaged.
const MAX_BLOCK: usize = 1 << 30;
/// Size in bytes of the read buffer.
const BUFFER: usize = 1 << 18;

/// Codes of the options of an interface that matter for times.
const TIME_RESOLUTION: u16 = 9;
const TIME_OFFSET: u16 = 14;

/// An interface description.
#[derive(Clone, Copy)]
struct Interface {
    link: DataLink,
    snaplen: usize,
    /// Timestamp units per second.
    units: u64,
    /// Number of seconds that is added to timestamps.
    offset_s: i64,
}

/// Byte order of a section.
#[derive(Clone, Copy)]
enum Order {
    Big,
    Little,
}

impl Order {
    fn word(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Big => u32::from_be_bytes(bytes),
            Self::Little => u32::from_le_bytes(bytes),
        }
    }

    fn word_at(self, body: &[u8], at: usize) -> Result<u32, FileError> {
        let bytes = body.get(at..).and_then(|rest| rest.first_chunk());
        let bytes = bytes.ok_or(FileError::InvalidField("a block is too short"))?;
        Ok(self.word(*bytes))
    }

    fn half_at(self, body: &[u8], at: usize) -> Option<u16> {
        let bytes = *body.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Big => u16::from_be_bytes(bytes),
            Self::Little => u16::from_le_bytes(bytes),
        })
    }

    fn signed(self, bytes: [u8; 8]) -> i64 {
        match self {
            Self::Big => i64::from_be_bytes(bytes),
            Self::Little => i64::from_le_bytes(bytes),
        }
    }

    /// Returns the options in `bytes` with their codes, until the first that is incomplete.
    fn options(self, bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
        let mut rest = bytes;
        std::iter::from_fn(move || {
            let code = self.half_at(rest, 0).filter(|code| *code != 0)?;
            let length = usize::from(self.half_at(rest, 2)?);
            let value = rest.get(4..4 + length)?;
            rest = rest
                .get(4 + length.next_multiple_of(4)..)
                .unwrap_or_default();
            Some((code, value))
        })
    }
}

impl Interface {
    fn read(body: &[u8], order: Order) -> Result<Self, FileError> {
        let link = order.half_at(body, 0);
        let link = link.ok_or(FileError::InvalidField("an interface block is too short"))?;
        let snaplen = order.word_at(body, 4)? as usize;
        let mut interface = Self {
            link: DataLink::from(u32::from(link)),
            snaplen: if snaplen == 0 { usize::MAX } else { snaplen },
            units: 1_000_000,
            offset_s: 0,
        };
        for (code, value) in order.options(&body[8..]) {
            match (code, value) {
                // If the top bit is set, the exponent is to base 2, otherwise to base 10.
                (TIME_RESOLUTION, [code, ..]) => {
                    let base: u64 = if code & 0x80 == 0 { 10 } else { 2 };
                    interface.units = base.saturating_pow(u32::from(code & 0x7f));
                }
                (TIME_OFFSET, value) => {
                    let offset = value.first_chunk().map(|bytes| order.signed(*bytes));
                    interface.offset_s = offset.unwrap_or(0);
                }
                _ => {}
            }
        }
        Ok(interface)
    }

    /// Returns the time of `units` in nanoseconds since 1970; times before 1970 are 0.
    fn ns(&self, units: u64) -> u64 {
        let ns = i128::from(units) * 1_000_000_000 / i128::from(self.units.max(1))
            + i128::from(self.offset_s) * 1_000_000_000;
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

/// Reader of the blocks of a file.
pub(super) struct PcapNg<R: Read> {
    reader: BufReader<R>,
    /// The body of the current block, and the length after it.
    body: Vec<u8>,
    interfaces: Vec<Interface>,
    order: Order,
}

impl<R: Read> PcapNg<R> {
    /// Reads the header of the first section. Adds its size in bytes to `position`.
    pub(super) fn new(stream: R, position: &mut u64) -> Result<Self, FileError> {
        let mut reader = Self {
            reader: BufReader::with_capacity(BUFFER, stream),
            body: Vec::new(),
            interfaces: Vec::new(),
            order: Order::Little,
        };
        match reader.block(position)? {
            Some(_) => Ok(reader),
            None => Err(unexpected_end()),
        }
    }

    /// Returns the next record, or `None` at the end of the file. Adds its size in bytes to `position`.
    pub(super) fn next(&mut self, position: &mut u64) -> Result<Option<Record<'_>>, FileError> {
        let Some(kind) = self.block(position)? else {
            return Ok(None);
        };
        let body = &self.body[..self.body.len() - BLOCK_END];
        match kind {
            INTERFACE_DESCRIPTION => {
                self.interfaces.push(Interface::read(body, self.order)?);
                Ok(Some(Record::Other))
            }
            _ => packet(kind, body, self.order, &self.interfaces).map(Some),
        }
    }

    /// Reads the next block, and returns its type; `None` at the end of the file.
    fn block(&mut self, position: &mut u64) -> Result<Option<u32>, FileError> {
        let mut start = [0; BLOCK_START];
        let mut filled = 0;
        while filled < start.len() {
            match self.reader.read(&mut start[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(unexpected_end()),
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(FileError::IoError(error)),
            }
        }
        let [k0, k1, k2, k3, length @ ..] = start;
        let is_section = [k0, k1, k2, k3] == SECTION_HEADER.to_be_bytes();
        self.body.clear();
        if is_section {
            self.read_body(4)?;
            self.order = match self.body.first_chunk() {
                Some(magic) if *magic == BYTE_ORDER.to_be_bytes() => Order::Big,
                Some(magic) if *magic == BYTE_ORDER.to_le_bytes() => Order::Little,
                _ => return Err(FileError::InvalidField("a section has no byte order")),
            };
            self.interfaces.clear();
        }
        let length = self.order.word(length) as usize;
        if length < BLOCK_START + BLOCK_END + self.body.len() || length > MAX_BLOCK {
            return Err(FileError::InvalidField("the length of a block is invalid"));
        }
        // Blocks end at a multiple of 4 bytes. Some programs do not count the bytes after the body.
        self.read_body(length.next_multiple_of(4) - BLOCK_START - self.body.len())?;
        let end = self.body.last_chunk().copied().unwrap_or_default();
        if self.order.word(end) as usize != length {
            return Err(FileError::InvalidField(
                "the lengths before and after a block differ",
            ));
        }
        *position += length.next_multiple_of(4) as u64;
        Ok(Some(self.order.word([k0, k1, k2, k3])))
    }

    /// Appends `bytes` bytes of the file to the body.
    fn read_body(&mut self, bytes: usize) -> Result<(), FileError> {
        let mut part = (&mut self.reader).take(bytes as u64);
        let read = part
            .read_to_end(&mut self.body)
            .map_err(FileError::IoError)?;
        if read < bytes {
            return Err(unexpected_end());
        }
        Ok(())
    }
}

fn unexpected_end() -> FileError {
    FileError::IoError(io::ErrorKind::UnexpectedEof.into())
}

/// Returns the frame of a block, if the block type contains one.
fn packet<'a>(
    kind: u32,
    body: &'a [u8],
    order: Order,
    interfaces: &[Interface],
) -> Result<Record<'a>, FileError> {
    let word = |at: usize| order.word_at(body, at);
    let interface = |id: u32| {
        interfaces
            .get(id as usize)
            .ok_or(FileError::InvalidInterfaceId(id))
    };
    match kind {
        ENHANCED_PACKET | PACKET => {
            let id = match (kind, order) {
                // The older packet block has a 16-bit interface number, then a 16-bit drop count.
                (PACKET, Order::Big) => word(0)? >> 16,
                (PACKET, Order::Little) => word(0)? & 0xffff,
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
