//! Messages of the GigE Vision Control Protocol (GVCP). All fields are big-endian.
//!
//! ```text
//!   command      0  0x42 (1)   │ flags (1)  │ command (2) │ bytes of data (2) │ request id (2) │ data
//!   acknowledge  0  status (2)              │ command + 1 │ bytes of data (2) │ request id (2) │ data
//! ```
//! Register addresses and commands are those of the GigE Vision specification, as implemented by Aravis and Wireshark.

use std::fmt;
use std::net::Ipv4Addr;

/// The port that cameras listen on.
pub(super) const PORT: u16 = 3956;

/// Commands.
pub(super) mod command {
    /// Report the camera's identity.
    pub(in super::super) const DISCOVERY: u16 = 0x0002;
    /// Send packets again.
    pub(in super::super) const RESEND: u16 = 0x0040;
    /// Read registers.
    pub(in super::super) const READ: u16 = 0x0080;
    /// Write registers.
    pub(in super::super) const WRITE: u16 = 0x0082;
}

/// Acknowledge: the command takes longer; its data are the additional milliseconds.
const PENDING: u16 = 0x0089;

/// Bootstrap registers.
pub(super) mod register {
    /// Capabilities of the control protocol.
    pub(in super::super) const CAPABILITY: u32 = 0x0934;
    /// Time in milliseconds without a command after which the camera ends the control.
    pub(in super::super) const HEARTBEAT_TIMEOUT: u32 = 0x0938;
    /// Ticks of the timestamp per second, upper 32 bits.
    pub(in super::super) const TICKS_HIGH: u32 = 0x093c;
    /// Ticks of the timestamp per second, lower 32 bits.
    pub(in super::super) const TICKS_LOW: u32 = 0x0940;
    /// Control channel privilege: which application controls the camera.
    pub(in super::super) const PRIVILEGE: u32 = 0x0a00;
    /// Destination port of the stream.
    pub(in super::super) const STREAM_PORT: u32 = 0x0d00;
    /// Packet size of the stream.
    pub(in super::super) const PACKET_SIZE: u32 = 0x0d04;
    /// Destination address of the stream.
    pub(in super::super) const DESTINATION: u32 = 0x0d18;
}

/// Bit of [`register::CAPABILITY`]: the camera can send packets again.
pub(super) const CAN_RESEND: u32 = 1 << 2;
/// Value of [`register::PRIVILEGE`]: this application controls the camera, others can read.
pub(super) const CONTROL: u32 = 1 << 1;
/// Bits of [`register::PRIVILEGE`] that are set while an application controls the camera.
pub(super) const CONTROLLED: u32 = 0b11;
/// Bit of [`register::PACKET_SIZE`]: send a test packet of this size now.
pub(super) const FIRE_TEST_PACKET: u32 = 1 << 31;
/// Bit of [`register::PACKET_SIZE`]: routers must not fragment packets.
pub(super) const DO_NOT_FRAGMENT: u32 = 1 << 30;
/// Bits of [`register::PACKET_SIZE`] with the packet size in bytes, including IP and UDP headers.
pub(super) const SIZE: u32 = 0xffff;

/// First byte of a command.
pub(super) const KEY: u8 = 0x42;
/// Flag: request an acknowledge.
const ACKNOWLEDGE: u8 = 0x01;
/// Flag of a resend request: the block id has 64 bits.
const EXTENDED_IDS: u8 = 0x10;
/// Flag of a discovery: cameras in other networks may answer with a broadcast.
const BROADCAST_ANSWER: u8 = 0x10;
/// Size in bytes of a header.
pub(super) const HEADER: usize = 8;
/// Size in bytes of the data of a discovery acknowledge.
const IDENTITY: usize = 248;
/// Maximum size in bytes of a resend request.
pub(super) const MAX_RESEND: usize = HEADER + 20;

/// Returns a command that requests an acknowledge.
pub(super) fn request(command: u16, id: u16, data: &[u32]) -> Vec<u8> {
    let flags = if command == command::DISCOVERY {
        ACKNOWLEDGE | BROADCAST_ANSWER
    } else {
        ACKNOWLEDGE
    };
    let bytes = u16::try_from(4 * data.len()).unwrap_or(u16::MAX);
    let mut message = vec![KEY, flags];
    for field in [command, bytes, id] {
        message.extend(field.to_be_bytes());
    }
    for word in data {
        message.extend(word.to_be_bytes());
    }
    message
}

/// A request for packets `first` to `last` of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resend {
    /// Id of the block in the camera.
    pub block: u64,
    /// Whether the block id has 64 bits.
    pub is_extended: bool,
    /// Id of the first packet.
    pub first: u32,
    /// Id of the last packet.
    pub last: u32,
}

impl Resend {
    /// Writes the request for stream channel 0 to `message` and returns its size. No acknowledge is requested: the packets
    /// are the answer.
    pub(super) fn write(&self, id: u16, message: &mut [u8; MAX_RESEND]) -> usize {
        let bytes: u16 = if self.is_extended { 20 } else { 12 };
        message.fill(0);
        message[0] = KEY;
        message[1] = if self.is_extended { EXTENDED_IDS } else { 0 };
        message[2..4].copy_from_slice(&command::RESEND.to_be_bytes());
        message[4..6].copy_from_slice(&bytes.to_be_bytes());
        message[6..8].copy_from_slice(&id.to_be_bytes());
        if !self.is_extended {
            message[10..12].copy_from_slice(&self.block.to_be_bytes()[6..]);
        }
        message[12..16].copy_from_slice(&self.first.to_be_bytes());
        message[16..20].copy_from_slice(&self.last.to_be_bytes());
        message[20..28].copy_from_slice(&self.block.to_be_bytes());
        HEADER + usize::from(bytes)
    }
}

/// An acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledge<'a> {
    /// The command that is acknowledged.
    pub command: u16,
    /// Id of the request.
    pub id: u16,
    /// 0, or the reason why the camera refused the command.
    pub status: u16,
    /// The data.
    pub data: &'a [u8],
}

impl<'a> Acknowledge<'a> {
    /// Parses a message; `None` if it is not an acknowledge.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let field = |at: usize| Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?));
        let data = message.get(HEADER..)?.get(..field(4)?.into())?;
        Some(Self {
            status: field(0)?,
            command: field(2)?.checked_sub(1)?,
            id: field(6)?,
            data,
        })
    }

    /// Returns the number of milliseconds for which the camera asks to wait, if it asks.
    pub(super) fn pending_ms(&self) -> Option<u16> {
        (self.command + 1 == PENDING)
            .then(|| Some(u16::from_be_bytes(*self.data.get(2..)?.first_chunk()?)))?
    }

    /// Returns the first word of the data.
    pub(super) fn word(&self) -> Option<u32> {
        self.data.first_chunk().copied().map(u32::from_be_bytes)
    }
}

/// Returns the meaning of the status of an acknowledge.
pub(super) const fn status_text(status: u16) -> &'static str {
    match status {
        0x8001 => "command not implemented",
        0x8002 => "invalid parameter",
        0x8003 => "invalid address",
        0x8004 => "the register is read-only",
        0x8005 => "invalid alignment",
        0x8006 => "access denied: another application controls the camera, or the camera is locked",
        0x8007 => "the camera is busy",
        _ => "unknown reason",
    }
}

/// The identity of a camera.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// IPv4 address.
    pub address: Ipv4Addr,
    /// MAC address.
    pub mac: [u8; 6],
    /// Name of the manufacturer.
    pub manufacturer: String,
    /// Name of the model.
    pub model: String,
    /// Serial number; empty if the camera has none.
    pub serial: String,
    /// Name that a user gave the camera; empty if the camera has none.
    pub name: String,
}

impl Identity {
    /// Parses the data of a discovery acknowledge: the first 248 bytes of the bootstrap registers.
    pub fn parse(data: &[u8]) -> Option<Self> {
        let data: &[u8; IDENTITY] = data.first_chunk()?;
        let text = |at: usize, bytes: usize| {
            let field = data[at..][..bytes].split(|byte| *byte == 0).next();
            let text = String::from_utf8_lossy(field.unwrap_or_default());
            let shown = text.chars().map(|c| if c.is_control() { '?' } else { c });
            shown.collect::<String>().trim().to_owned()
        };
        let address: [u8; 4] = *data[36..].first_chunk()?;
        Some(Self {
            address: address.into(),
            mac: *data[10..].first_chunk()?,
            manufacturer: text(72, 32),
            model: text(104, 32),
            serial: text(216, 16),
            name: text(232, 16),
        })
    }
}

/// Shows a MAC address as `aa:bb:cc:dd:ee:ff`.
pub(super) struct Mac(pub(super) [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            manufacturer,
            model,
            address,
            ..
        } = self;
        write!(f, "{manufacturer} {model} at {address} (")?;
        if !self.serial.is_empty() {
            write!(f, "serial {}, ", self.serial)?;
        }
        if !self.name.is_empty() {
            write!(f, "name {}, ", self.name)?;
        }
        write!(f, "mac {})", Mac(self.mac))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_length_and_id() {
        assert_eq!(
            request(command::WRITE, 0x0203, &[0x0a00, 2]),
            [0x42, 1, 0, 0x82, 0, 8, 2, 3, 0, 0, 0x0a, 0, 0, 0, 0, 2]
        );
    }

    #[test]
    fn resend_request_has_ids_of_its_mode() {
        let mut message = [0; MAX_RESEND];
        let resend = Resend {
            block: 0x1234,
            is_extended: false,
            first: 5,
            last: 9,
        };
        assert_eq!(resend.write(7, &mut message), 20);
        assert_eq!(
            message[..20],
            [
                0x42, 0, 0, 0x40, 0, 12, 0, 7, 0, 0, 0x12, 0x34, 0, 0, 0, 5, 0, 0, 0, 9
            ]
        );
        let resend = Resend {
            is_extended: true,
            ..resend
        };
        assert_eq!(resend.write(7, &mut message), 28);
        assert_eq!(
            message,
            [
                0x42, 0x10, 0, 0x40, 0, 20, 0, 7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0, 0,
                0, 0, 0x12, 0x34
            ]
        );
    }

    #[test]
    fn acknowledge_is_parsed_and_others_are_ignored() {
        let message = [0, 0, 0, 0x81, 0, 4, 0, 9, 0, 0, 0, 2];
        let parsed = Acknowledge::parse(&message).unwrap();
        assert_eq!(
            (parsed.command, parsed.id, parsed.word()),
            (0x80, 9, Some(2))
        );
        for length in 0..message.len() {
            assert_eq!(Acknowledge::parse(&message[..length]), None);
        }
        let pending = [0, 0, 0, 0x89, 0, 4, 0, 9, 0, 0, 1, 0];
        let pending = Acknowledge::parse(&pending).unwrap();
        assert_eq!(pending.pending_ms(), Some(256));
    }

    #[test]
    fn identity_is_read_from_bootstrap_registers() {
        let mut data = [0; IDENTITY];
        data[10..16].copy_from_slice(&[0, 0x11, 0x1c, 1, 2, 3]);
        data[36..40].copy_from_slice(&[10, 0, 0, 7]);
        data[72..78].copy_from_slice(b"Aravis");
        data[104..108].copy_from_slice(b"Fake");
        data[216..220].copy_from_slice(b"GV02");
        let identity = Identity::parse(&data).unwrap();
        assert_eq!(
            identity.to_string(),
            "Aravis Fake at 10.0.0.7 (serial GV02, mac 00:11:1c:01:02:03)"
        );
        assert_eq!(Identity::parse(&data[1..]), None);
    }
}
