//! The messages of the handshake over TCP. A frame in this module is such a message, not a data frame. All numbers are
//! little-endian. Lengths are checked before a body is read.
//!
//! ```text
//!   frame    magic u32 │ version u16 │ kind u8 │ 0 │ bytes u32 │ body
//!   body     rails u8 │ service u8 │ transport u8 │ 0 │ per rail: endpoint (36 bytes) │ length u16 │ greeting     Hello, Answer
//!            text of the reason                                                                       Refusal
//!            empty                                                                                    Ready
//!            total number of frames: u64                                                              Close
//!            key: 3 × u32                                                                             Join
//! ```

use super::access::TOKEN_BYTES;
use super::{MAX_OFFER, sanitized};
use crate::tcp::join::JoinKey;
use crate::verbs::{Endpoint, Service, Transport};

const MAGIC: u32 = 0x6371_6164;
const VERSION: u16 = 3;
/// Size in bytes of the header before the body of a frame.
pub(crate) const HEADER_BYTES: usize = 12;
/// Size of a whole close frame in bytes.
pub(crate) const CLOSE_BYTES: usize = HEADER_BYTES + 8;
const JOIN_BYTES: usize = 12;
const ENDPOINT_BYTES: usize = 36;
const RAIL_BYTES: usize = ENDPOINT_BYTES + 2;
/// Maximum size of a connector's greeting with a token, in bytes.
const MAX_HELLO: usize = super::MAX_HELLO + *TOKEN_BYTES.end();
/// Maximum size of a rejection reason in bytes.
pub(crate) const MAX_REASON: usize = 160;
/// Maximum size in bytes of the body of a frame.
pub(crate) const MAX_BODY: usize = 4 + u8::MAX as usize * (RAIL_BYTES + MAX_OFFER);

/// A message of the TCP handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The first message, from the connector: the connector's rails.
    Hello(Rails),
    /// The reply of the listener: the listener's rails.
    Answer(Rails),
    /// The listener rejects the connector, with a reason.
    Refusal(String),
    /// The connector's queue pairs are connected.
    Ready,
    /// The sender closes the stream. The value is the total number of frames of the stream.
    Close(u64),
    /// The first message on the connection of a queue pair over TCP: the key of the listener's queue pair.
    Join(JoinKey),
}

/// Endpoints of queue pairs and greetings: one endpoint and one greeting per rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rails {
    /// The transport service of all rails.
    pub service: Service,
    /// The transport of all rails.
    pub transport: Transport,
    /// The endpoints of the queue pairs, one per rail.
    pub endpoints: Vec<Endpoint>,
    /// The greetings, one per rail.
    pub greetings: Vec<Vec<u8>>,
}

/// Returns the length in bytes of the frame that starts with `bytes`. If `bytes` does not contain the whole header,
/// returns the length of the header.
pub(crate) fn frame_length(bytes: &[u8]) -> Result<usize, String> {
    let magic = MAGIC.to_le_bytes();
    let known = bytes.len().min(magic.len());
    if bytes[..known] != magic[..known] {
        return Err("the first bytes are not a handshake message of daq".to_owned());
    }
    let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(HEADER_BYTES);
    };
    let version = u16::from_le_bytes([head[4], head[5]]);
    if version != VERSION {
        return Err(format!(
            "the peer's protocol version is {version}, but this host uses version {VERSION}: run the same version of daq on both hosts"
        ));
    }
    let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
    if length > max_body(head[6]) {
        return Err(format!(
            "a handshake message of kind {} cannot have {length} bytes",
            head[6]
        ));
    }
    Ok(HEADER_BYTES + length)
}

/// Returns true if `bytes` starts with a header of another version of this protocol.
pub(crate) fn has_other_version(bytes: &[u8]) -> bool {
    let (magic, version) = (MAGIC.to_le_bytes(), VERSION.to_le_bytes());
    bytes.len() >= HEADER_BYTES && bytes[..4] == magic && bytes[4..6] != version
}

/// Returns the maximum size of a body of this kind in bytes.
const fn max_body(kind: u8) -> usize {
    match kind {
        1 => 4 + u8::MAX as usize * (RAIL_BYTES + MAX_HELLO),
        2 => MAX_BODY,
        3 => MAX_REASON,
        5 => CLOSE_BYTES - HEADER_BYTES,
        6 => JOIN_BYTES,
        _ => 0,
    }
}

impl Frame {
    /// Encodes the frame.
    ///
    /// # Panics
    /// If there are more than 255 rails, or if the numbers of greetings and endpoints differ.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Hello(rails) => (1, rails.encode()),
            Self::Answer(rails) => (2, rails.encode()),
            Self::Refusal(why) => (3, truncated(why).as_bytes().to_vec()),
            Self::Ready => (4, Vec::new()),
            Self::Close(frames) => (5, frames.to_le_bytes().to_vec()),
            Self::Join(key) => (6, key.encode()),
        };
        let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
        out.extend(MAGIC.to_le_bytes());
        out.extend(VERSION.to_le_bytes());
        out.extend([kind, 0]);
        out.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend(body);
        out
    }

    /// Returns the name of the frame's kind for error messages. The name contains nothing that the peer can choose.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Hello(_) => "a greeting",
            Self::Answer(_) => "an answer",
            Self::Refusal(_) => "a rejection",
            Self::Ready => "a ready message",
            Self::Close(_) => "a close message",
            Self::Join(_) => "the message of a further connection",
        }
    }

    /// Decodes the bytes of a whole frame.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() < HEADER_BYTES || frame_length(bytes)? != bytes.len() {
            return Err(format!(
                "a handshake message of {} bytes is incomplete",
                bytes.len()
            ));
        }
        let body = &bytes[HEADER_BYTES..];
        match bytes[6] {
            1 => Rails::decode(body, MAX_HELLO).map(Self::Hello),
            2 => Rails::decode(body, MAX_OFFER).map(Self::Answer),
            3 => Ok(Self::Refusal(sanitized(body))),
            4 => Ok(Self::Ready),
            5 => body
                .try_into()
                .map(|frames| Self::Close(u64::from_le_bytes(frames)))
                .map_err(|_| format!("a close message cannot have {} bytes", body.len())),
            6 => JoinKey::decode(body)
                .map(Self::Join)
                .ok_or_else(|| format!("a key cannot have {} bytes", body.len())),
            kind => Err(format!("unknown kind of handshake message: {kind}")),
        }
    }
}

/// Truncates a text at a character boundary to the maximum size of a rejection reason.
fn truncated(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_REASON)]
}

impl Rails {
    fn encode(&self) -> Vec<u8> {
        assert_eq!(self.endpoints.len(), self.greetings.len());
        let count = u8::try_from(self.endpoints.len()).expect("at most 255 rails");
        let mut out = vec![count, self.service as u8, self.transport as u8, 0];
        for (endpoint, greeting) in self.endpoints.iter().zip(&self.greetings) {
            out.extend(endpoint.number.to_le_bytes());
            out.extend(endpoint.psn.to_le_bytes());
            out.extend(endpoint.lid.to_le_bytes());
            out.extend([0, 0]);
            out.extend(endpoint.gid);
            out.extend(endpoint.mtu.to_le_bytes());
            out.extend(endpoint.qkey.to_le_bytes());
            let length = u16::try_from(greeting.len()).expect("a greeting has at most 65535 bytes");
            out.extend(length.to_le_bytes());
            out.extend(greeting);
        }
        out
    }

    fn decode(body: &[u8], max_bytes: usize) -> Result<Self, String> {
        let short = || "the handshake message is truncated".to_owned();
        let (head, mut rest) = body.split_first_chunk::<4>().ok_or_else(short)?;
        let service =
            Service::of_code(head[1]).ok_or_else(|| format!("unknown service {}", head[1]))?;
        let transport =
            Transport::of_code(head[2]).ok_or_else(|| format!("unknown transport {}", head[2]))?;
        if head[0] == 0 {
            return Err("the number of rails is 0".to_owned());
        }
        let (mut endpoints, mut greetings) = (Vec::new(), Vec::new());
        for _ in 0..head[0] {
            let (rail, after) = rest.split_first_chunk::<RAIL_BYTES>().ok_or_else(short)?;
            let word = |at: usize| {
                u32::from_le_bytes([rail[at], rail[at + 1], rail[at + 2], rail[at + 3]])
            };
            let mut gid = [0; 16];
            gid.copy_from_slice(&rail[12..28]);
            endpoints.push(Endpoint {
                number: word(0),
                psn: word(4),
                lid: u16::from_le_bytes([rail[8], rail[9]]),
                gid,
                mtu: word(28),
                qkey: word(32),
            });
            let length = usize::from(u16::from_le_bytes([rail[36], rail[37]]));
            if length > max_bytes {
                return Err(format!(
                    "a greeting has {length} bytes, but the maximum is {max_bytes}"
                ));
            }
            let (greeting, after) = after.split_at_checked(length).ok_or_else(short)?;
            greetings.push(greeting.to_vec());
            rest = after;
        }
        if !rest.is_empty() {
            return Err(format!(
                "the handshake message is {} bytes too long",
                rest.len()
            ));
        }
        Ok(Self {
            service,
            transport,
            endpoints,
            greetings,
        })
    }
}
