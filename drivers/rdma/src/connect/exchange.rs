//! The frames of the TCP exchange; all numbers are little-endian. Lengths are checked before anything is read.
//!
//! ```text
//!   frame    magic u32 │ version u16 │ kind u8 │ 0 │ bytes u32 │ body
//!   body     rails u8 │ service u8 │ 0 0 │ per rail: endpoint (36 bytes) │ length u16 │ greeting     Hello, Answer
//!            a sentence                                                                               Refusal
//!            nothing                                                                                  Ready
//!            frames u64                                                                               Parting
//! ```

use super::access::TOKEN_BYTES;
use super::{MAX_OFFER, sanitized};
use crate::verbs::{Endpoint, Service};

const MAGIC: u32 = 0x6371_6164;
const VERSION: u16 = 1;
/// Bytes before a body.
pub const HEADER_BYTES: usize = 12;
/// Bytes of a whole parting.
pub const CLOSE_BYTES: usize = HEADER_BYTES + 8;
const ENDPOINT_BYTES: usize = 36;
const RAIL_BYTES: usize = ENDPOINT_BYTES + 2;
/// Most bytes of a greeting with a token.
const MAX_HELLO: usize = super::MAX_HELLO + *TOKEN_BYTES.end();
/// Maximum size of a rejection reason in bytes.
pub const MAX_REASON: usize = 160;
/// Most bytes of a body.
pub const MAX_BODY: usize = 4 + u8::MAX as usize * (RAIL_BYTES + MAX_OFFER);

/// What one end says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The connector's rails.
    Hello(Rails),
    /// The listener's.
    Answer(Rails),
    /// The listener rejects the connector, with a reason.
    Refusal(String),
    /// The connector's queue pairs are connected.
    Ready,
    /// The sender closes the stream, after this number of frames.
    Close(u64),
}

/// Queues and greetings, one a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rails {
    /// The service of all of them.
    pub service: Service,
    /// The queues.
    pub endpoints: Vec<Endpoint>,
    /// What is said with each.
    pub greetings: Vec<Vec<u8>>,
}

/// Bytes of the whole frame that `bytes` begin, as far as they tell.
pub fn frame_length(bytes: &[u8]) -> Result<usize, String> {
    let magic = MAGIC.to_le_bytes();
    let known = bytes.len().min(magic.len());
    if bytes[..known] != magic[..known] {
        return Err("the first bytes are not a daq frame".to_owned());
    }
    let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(HEADER_BYTES);
    };
    let version = u16::from_le_bytes([head[4], head[5]]);
    if version != VERSION {
        return Err(format!(
            "its protocol version is {version}, the version here is {VERSION}: run the same version of daq on both hosts"
        ));
    }
    let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
    if length > max_body(head[6]) {
        return Err(format!("kind {} with {length} bytes", head[6]));
    }
    Ok(HEADER_BYTES + length)
}

/// Most bytes of a body of this kind.
const fn max_body(kind: u8) -> usize {
    match kind {
        1 => 4 + u8::MAX as usize * (RAIL_BYTES + MAX_HELLO),
        2 => MAX_BODY,
        3 => MAX_REASON,
        5 => CLOSE_BYTES - HEADER_BYTES,
        _ => 0,
    }
}

impl Frame {
    /// The bytes.
    ///
    /// # Panics
    /// If there are more than 255 rails, or not as many greetings as endpoints.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Hello(rails) => (1, rails.encode()),
            Self::Answer(rails) => (2, rails.encode()),
            Self::Refusal(why) => (3, truncated(why).as_bytes().to_vec()),
            Self::Ready => (4, Vec::new()),
            Self::Close(frames) => (5, frames.to_le_bytes().to_vec()),
        };
        let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
        out.extend(MAGIC.to_le_bytes());
        out.extend(VERSION.to_le_bytes());
        out.extend([kind, 0]);
        out.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend(body);
        out
    }

    /// What it is, for messages: what it says is the peer's.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Hello(_) => "a greeting",
            Self::Answer(_) => "an answer",
            Self::Refusal(_) => "a refusal",
            Self::Ready => "readiness",
            Self::Close(_) => "a parting",
        }
    }

    /// What the bytes of a whole frame say.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() < HEADER_BYTES || frame_length(bytes)? != bytes.len() {
            return Err(format!("a frame of {} bytes is not whole", bytes.len()));
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
                .map_err(|_| format!("a parting of {} bytes", body.len())),
            kind => Err(format!("kind {kind}")),
        }
    }
}

/// As much of a sentence as may be sent.
fn truncated(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_REASON)]
}

impl Rails {
    fn encode(&self) -> Vec<u8> {
        assert_eq!(self.endpoints.len(), self.greetings.len());
        let count = u8::try_from(self.endpoints.len()).expect("at most 255 rails");
        let mut out = vec![count, self.service as u8, 0, 0];
        for (endpoint, greeting) in self.endpoints.iter().zip(&self.greetings) {
            out.extend(endpoint.number.to_le_bytes());
            out.extend(endpoint.psn.to_le_bytes());
            out.extend(endpoint.lid.to_le_bytes());
            out.extend([0, 0]);
            out.extend(endpoint.gid);
            out.extend(endpoint.mtu.to_le_bytes());
            out.extend(endpoint.qkey.to_le_bytes());
            let length = u16::try_from(greeting.len()).expect("greetings are short");
            out.extend(length.to_le_bytes());
            out.extend(greeting);
        }
        out
    }

    fn decode(body: &[u8], max_bytes: usize) -> Result<Self, String> {
        let short = || "rails are missing".to_owned();
        let (head, mut rest) = body.split_first_chunk::<4>().ok_or_else(short)?;
        let service = match head[1] {
            0 => Service::Rc,
            1 => Service::Uc,
            2 => Service::Ud,
            other => return Err(format!("service {other}")),
        };
        if head[0] == 0 {
            return Err("no rails".to_owned());
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
                    "a greeting of {length} bytes, {max_bytes} are the most"
                ));
            }
            let (greeting, after) = after.split_at_checked(length).ok_or_else(short)?;
            greetings.push(greeting.to_vec());
            rest = after;
        }
        if !rest.is_empty() {
            return Err(format!("{} bytes too many", rest.len()));
        }
        Ok(Self {
            service,
            endpoints,
            greetings,
        })
    }
}
