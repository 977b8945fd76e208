//! Encoding and decoding of messages. Invalid bytes are rejected with an error.

/// Size of a header in bytes.
pub const HEADER: usize = 16;
/// The protocol version: major, minor.
pub const VERSION: (u16, u16) = (0, 1);
/// Maximum number of data bytes per access to a region.
pub const MAX_DATA: usize = 1 << 20;
/// Maximum size of a message in bytes: header, access and data.
pub const MAX_MESSAGE: usize = HEADER + 16 + MAX_DATA;
/// Maximum number of descriptors of one message.
pub const MAX_FILES: usize = 16;
/// Maximum number of memory ranges that are mapped at a time.
pub const MAX_MAPS: usize = 256;

/// The region of the configuration space; regions below [`BARS`](crate::fpga::device::BARS) are base address registers.
pub const CONFIG_REGION: u32 = 7;
/// Number of regions of a PCI device.
pub const REGIONS: u32 = 9;
/// Number of interrupt types of a PCI device.
pub const IRQS: u32 = 5;
/// The interrupt type for message-signalled interrupts.
pub const MSI: u32 = 1;
/// The interrupt type for MSI-X.
pub const MSIX: u32 = 2;

/// Region flags: the region can be read and written.
pub const REGION_READ_WRITE: u32 = 0b11;
/// Device flags: the device is a PCI device and can be reset.
pub const DEVICE_FLAGS: u32 = 0b11;
/// Interrupt flags: interrupts are signalled by eventfds, and the number of interrupts is fixed once they are connected.
pub const IRQ_FLAGS: u32 = 0b1001;
/// Flag of a memory mapping: the device may read the memory.
pub const MAY_READ: u32 = 1;
/// Flag of a memory mapping: the device may write the memory.
pub const MAY_WRITE: u32 = 2;
/// Flag of an unmap request: unmap all memory.
pub const UNMAP_ALL: u32 = 2;
/// Flag of a request to set interrupts: the request contains no data.
pub const IRQ_DATA_NONE: u32 = 1;
/// Flag of a request to set interrupts: the data is one byte per interrupt.
pub const IRQ_DATA_BOOL: u32 = 2;
/// Flag of a request to set interrupts: the data is eventfds.
pub const IRQ_DATA_EVENT: u32 = 4;
/// Flag of a request to set interrupts: trigger the interrupts.
pub const IRQ_TRIGGER: u32 = 32;

/// Flags in a message header; `KIND` is the mask of the message type.
const KIND: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// Linux error numbers, which the protocol uses.
pub mod errno {
    /// `ENOENT`: not found.
    pub const NOT_THERE: u32 = 2;
    /// The device was removed.
    pub const NO_DEVICE: u32 = 19;
    /// The addresses are already mapped.
    pub const EXISTS: u32 = 17;
    /// The request is invalid.
    pub const INVALID: u32 = 22;
    /// A limit is reached.
    pub const NO_SPACE: u32 = 28;
    /// The request is not supported.
    pub const NOT_SUPPORTED: u32 = 95;
}

/// The command of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Negotiate the version.
    Version = 1,
    /// Map memory for the device.
    DmaMap = 2,
    /// Unmap memory.
    DmaUnmap = 3,
    /// Describe the device.
    DeviceInfo = 4,
    /// Describe a region.
    RegionInfo = 5,
    /// Describe an interrupt type.
    IrqInfo = 7,
    /// Connect or trigger interrupts.
    SetIrqs = 8,
    /// Read a region.
    RegionRead = 9,
    /// Write a region.
    RegionWrite = 10,
    /// Read memory of the client. Sent by the server.
    DmaRead = 11,
    /// Write memory of the client. Sent by the server.
    DmaWrite = 12,
    /// Reset the device.
    Reset = 13,
}

impl Command {
    /// All commands of clients.
    pub const ALL: [Self; 10] = [
        Self::Version,
        Self::DmaMap,
        Self::DmaUnmap,
        Self::DeviceInfo,
        Self::RegionInfo,
        Self::IrqInfo,
        Self::SetIrqs,
        Self::RegionRead,
        Self::RegionWrite,
        Self::Reset,
    ];

    /// Returns the number of the command.
    pub const fn number(self) -> u16 {
        self as u16
    }
}

/// The header of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The message ID, which the reply repeats.
    pub id: u16,
    /// The number of a [`Command`].
    pub command: u16,
    /// Size of the message in bytes, including the header.
    pub bytes: u32,
    /// Message type and reply flags.
    pub flags: u32,
    /// The error number of an error reply.
    pub error: u32,
}

impl Header {
    /// Creates a request with `payload` bytes after the header.
    pub fn request(id: u16, command: Command, payload: usize) -> Self {
        Self {
            id,
            command: command.number(),
            bytes: total(payload),
            ..Self::default()
        }
    }

    /// Creates a request without a reply.
    pub fn post(id: u16, command: Command, payload: usize) -> Self {
        Self {
            flags: NO_REPLY,
            ..Self::request(id, command, payload)
        }
    }

    /// Creates the reply with `payload` bytes after the header.
    #[must_use]
    pub fn reply(&self, payload: usize) -> Self {
        Self {
            bytes: total(payload),
            flags: REPLY,
            error: 0,
            ..*self
        }
    }

    /// Creates an error reply.
    #[must_use]
    pub fn refusal(&self, error: u32) -> Self {
        Self {
            bytes: total(0),
            flags: REPLY | ERROR,
            error,
            ..*self
        }
    }

    /// Returns true for a request.
    pub const fn is_request(&self) -> bool {
        self.flags & KIND == 0
    }

    /// Returns true for a reply.
    pub const fn is_reply(&self) -> bool {
        self.flags & KIND == REPLY
    }

    /// Returns true if the sender expects a reply.
    pub const fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }

    /// Returns the error number of an error reply.
    pub const fn refused(&self) -> Option<u32> {
        if self.flags & ERROR == 0 {
            None
        } else {
            Some(self.error)
        }
    }

    /// Encodes the header.
    pub fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(&self.id.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[12..].copy_from_slice(&self.error.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    pub fn parse(bytes: &[u8; HEADER]) -> Self {
        let [a, b, c, d, rest @ ..] = bytes;
        let (words, _) = rest.as_chunks::<4>();
        Self {
            id: u16::from_le_bytes([*a, *b]),
            command: u16::from_le_bytes([*c, *d]),
            bytes: u32::from_le_bytes(words[0]),
            flags: u32::from_le_bytes(words[1]),
            error: u32::from_le_bytes(words[2]),
        }
    }
}

/// Returns the length of a message with `payload` bytes after its header.
fn total(payload: usize) -> u32 {
    u32::try_from(HEADER + payload).unwrap_or(u32::MAX)
}

/// A range of bytes in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of the region.
    pub region: u32,
    /// Number of bytes.
    pub count: u32,
}

impl Access {
    /// Size of the encoded range in bytes.
    pub const BYTES: usize = 16;

    /// Encodes the range.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.region.to_le_bytes());
        bytes[12..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }
}

/// A decoded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Version of the client: major, minor, and its capabilities as JSON.
    Version(u16, u16, &'a [u8]),
    /// Map memory. The device accesses it by the message's file descriptor or, without one, by DMA messages.
    DmaMap {
        /// Access flags: [`MAY_READ`], [`MAY_WRITE`].
        flags: u32,
        /// Offset in the file.
        offset: u64,
        /// Address of the first byte, as the device uses it.
        address: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Unmap memory.
    DmaUnmap {
        /// Flags of the request: [`UNMAP_ALL`] or 0.
        flags: u32,
        /// Address of the first byte, as the device uses it.
        address: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Describe the device.
    DeviceInfo,
    /// Describe region `.0`.
    RegionInfo(u32),
    /// Describe interrupt type `.0`.
    IrqInfo(u32),
    /// Connect or trigger interrupts.
    SetIrqs {
        /// The `IRQ_…` flags of the request.
        flags: u32,
        /// The interrupt type.
        index: u32,
        /// Index of the first interrupt.
        start: u32,
        /// Number of interrupts.
        count: u32,
        /// One byte per interrupt, if the flags select data as bytes.
        data: &'a [u8],
    },
    /// Read a part of a region.
    Read(Access),
    /// Write a part of a region; contains the bytes.
    Write(Access, &'a [u8]),
    /// Reset the device.
    Reset,
}

impl<'a> Request<'a> {
    /// Decodes the payload of a request. The error is an [`errno`].
    pub fn parse(command: u16, payload: &'a [u8]) -> Result<Self, u32> {
        let command = Command::ALL
            .into_iter()
            .find(|known| known.number() == command)
            .ok_or(errno::NOT_SUPPORTED)?;
        Fields(payload)
            .request(command)
            .ok_or(errno::INVALID)
            .and_then(|request| match request {
                Self::Read(Access { count, .. }) if count as usize > MAX_DATA => {
                    Err(errno::INVALID)
                }
                Self::Write(Access { count, .. }, data) if count as usize != data.len() => {
                    Err(errno::INVALID)
                }
                request => Ok(request),
            })
    }
}

/// The part of a payload that is not decoded yet.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn request(&mut self, command: Command) -> Option<Request<'a>> {
        Some(match command {
            Command::Version => Request::Version(self.u16()?, self.u16()?, self.0),
            Command::DmaMap => {
                self.u32()?;
                Request::DmaMap {
                    flags: self.u32()?,
                    offset: self.u64()?,
                    address: self.u64()?,
                    bytes: self.u64()?,
                }
            }
            Command::DmaUnmap => {
                self.u32()?;
                Request::DmaUnmap {
                    flags: self.u32()?,
                    address: self.u64()?,
                    bytes: self.u64()?,
                }
            }
            Command::DeviceInfo => Request::DeviceInfo,
            Command::RegionInfo => {
                self.skip(8)?;
                Request::RegionInfo(self.u32()?)
            }
            Command::IrqInfo => {
                self.skip(8)?;
                Request::IrqInfo(self.u32()?)
            }
            Command::SetIrqs => {
                self.u32()?;
                Request::SetIrqs {
                    flags: self.u32()?,
                    index: self.u32()?,
                    start: self.u32()?,
                    count: self.u32()?,
                    data: self.0,
                }
            }
            Command::RegionRead => Request::Read(self.access()?),
            Command::RegionWrite => Request::Write(self.access()?, self.0),
            Command::Reset => Request::Reset,
            Command::DmaRead | Command::DmaWrite => return None,
        })
    }

    /// Decodes the next 2 bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.next().map(u16::from_le_bytes)
    }

    /// Decodes the next 4 bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.next().map(u32::from_le_bytes)
    }

    /// Decodes the next 8 bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.next().map(u64::from_le_bytes)
    }

    /// Decodes a part of a region.
    pub fn access(&mut self) -> Option<Access> {
        Some(Access {
            offset: self.u64()?,
            region: self.u32()?,
            count: self.u32()?,
        })
    }

    /// Skips `bytes` bytes.
    pub fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    fn next<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

/// Encodes a payload of 32-bit words.
pub fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Encodes a payload of two 32-bit words, followed by 64-bit words.
pub fn long_words<const N: usize>(head: [u32; 2], words: [u64; N]) -> Vec<u8> {
    let head = head.into_iter().flat_map(u32::to_le_bytes);
    head.chain(words.into_iter().flat_map(u64::to_le_bytes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_sixteen_bytes_in_order() {
        let header = Header {
            id: 0x0201,
            command: 0x0403,
            bytes: 0x0807_0605,
            flags: 0x0c0b_0a09,
            error: 0x100f_0e0d,
        };
        let bytes: [u8; 16] = std::array::from_fn(|place| u8::try_from(place).unwrap() + 1);
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(Header::parse(&bytes), header);
    }

    #[test]
    fn replies_echo_request() {
        let asked = Header::request(7, Command::RegionRead, 16);
        assert!(asked.is_request() && asked.wants_reply() && !asked.is_reply());
        assert!(!Header::post(7, Command::RegionWrite, 20).wants_reply());
        let reply = asked.reply(20);
        assert!(reply.is_reply() && reply.refused().is_none());
        assert_eq!((reply.id, reply.command, reply.bytes), (7, 9, 36));
        assert_eq!(asked.refusal(22).refused(), Some(22));
    }

    #[test]
    fn requests_are_parsed() {
        let map = long_words([32, 3], [0x1000, 0x2_0000_0000, 0x3000]);
        assert_eq!(
            Request::parse(2, &map),
            Ok(Request::DmaMap {
                flags: 3,
                offset: 0x1000,
                address: 0x2_0000_0000,
                bytes: 0x3000
            })
        );
        let access = Access {
            offset: 0x1004,
            region: 1,
            count: 4,
        };
        let mut write = access.to_bytes().to_vec();
        write.extend([1, 2, 3, 4]);
        assert_eq!(
            Request::parse(10, &write),
            Ok(Request::Write(access, &[1, 2, 3, 4]))
        );
        assert_eq!(Request::parse(9, &write), Ok(Request::Read(access)));
        // A write with fewer bytes than its length field, a truncated map request, and a command that only servers send.
        assert_eq!(Request::parse(10, &write[..18]), Err(errno::INVALID));
        assert_eq!(Request::parse(2, &map[..31]), Err(errno::INVALID));
        assert_eq!(Request::parse(11, &write), Err(errno::NOT_SUPPORTED));
        let set = words([20, 0x24, 2, 1, 3]);
        assert_eq!(
            Request::parse(8, &set),
            Ok(Request::SetIrqs {
                flags: 0x24,
                index: 2,
                start: 1,
                count: 3,
                data: &[]
            })
        );
        let huge = Access {
            count: u32::MAX,
            ..access
        };
        assert_eq!(Request::parse(9, &huge.to_bytes()), Err(errno::INVALID));
    }
}
