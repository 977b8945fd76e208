//! The protocol of two emulated NICs over TCP; all numbers are little-endian.
//!
//! ```text
//!   once per stream:  Preamble              the queue pairs that the stream connects
//!   afterwards:       Header, payload …     a request; or only a Header: acknowledgements, posted receives, a refusal
//! ```

use crate::verbs::{Service, Status};

const MAGIC: u32 = 0x5371_6164;
const VERSION: u16 = 1;

/// The queue pairs that a stream connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preamble {
    /// Number and first PSN of the destination queue pair.
    pub to: (u32, u32),
    /// Number and first PSN of the queue pair that opens the stream.
    pub from: (u32, u32),
    pub service: Service,
    /// The Q_Key that the receiving queue pair expects (UD); otherwise 0.
    pub qkey: u32,
}

impl Preamble {
    pub(super) const BYTES: usize = 28;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[6] = self.service as u8;
        let words = [self.to.0, self.to.1, self.from.0, self.from.1, self.qkey];
        for (to, word) in out[8..].chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Decodes the bytes; returns `None` if they are invalid.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let mut words = bytes.chunks_exact(4).map(word);
        let magic = words.next()?;
        let service = Service::of_code(bytes[6])?;
        words.next()?;
        let is_ours = magic == MAGIC && bytes[4..6] == VERSION.to_le_bytes();
        is_ours.then_some(Self {
            to: (words.next()?, words.next()?),
            from: (words.next()?, words.next()?),
            service,
            qkey: words.next()?,
        })
    }
}

fn word(bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(bytes);
    u32::from_le_bytes(word)
}

/// The header of the next message on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// A write: the payload of this message is stored in registered memory of the receiving side.
    Write {
        address: u64,
        rkey: u32,
        bytes: u64,
        immediate: Option<u32>,
    },
    /// A send: the payload of this message is stored in the next posted receive.
    Send { bytes: u64, immediate: Option<u32> },
    /// Total number of completed messages, and total number of posted receives.
    Control { done: u64, receives: u64 },
    /// Message `number` was rejected; all earlier messages have completed.
    Refusal { number: u64, status: Status },
}

impl Header {
    pub(super) const BYTES: usize = 32;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let (kind, code, rkey, immediate, words) = match *self {
            Self::Write {
                address,
                rkey,
                bytes,
                immediate,
            } => (1, 0, rkey, immediate, [address, bytes]),
            Self::Send { bytes, immediate } => (2, 0, 0, immediate, [0, bytes]),
            Self::Control { done, receives } => (3, 0, 0, None, [done, receives]),
            Self::Refusal { number, status } => {
                let code = match status {
                    Status::RemoteAccess => 1,
                    Status::NotReady => 2,
                    _ => 3,
                };
                (4, code, 0, None, [number, 0])
            }
        };
        let mut out = [0; Self::BYTES];
        out[0] = kind;
        out[1] = u8::from(immediate.is_some());
        out[2] = code;
        out[4..8].copy_from_slice(&rkey.to_le_bytes());
        out[8..12].copy_from_slice(&immediate.unwrap_or(0).to_le_bytes());
        out[16..24].copy_from_slice(&words[0].to_le_bytes());
        out[24..].copy_from_slice(&words[1].to_le_bytes());
        out
    }

    /// Decodes the bytes; returns `None` if they are invalid.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let long = |at: usize| {
            u64::from(word(&bytes[at..at + 4])) | u64::from(word(&bytes[at + 4..at + 8])) << 32
        };
        let (first, second) = (long(16), long(24));
        let immediate = match bytes[1] {
            0 => None,
            1 => Some(word(&bytes[8..12])),
            _ => return None,
        };
        Some(match bytes[0] {
            1 => Self::Write {
                address: first,
                rkey: word(&bytes[4..8]),
                bytes: second,
                immediate,
            },
            2 => Self::Send {
                bytes: second,
                immediate,
            },
            3 => Self::Control {
                done: first,
                receives: second,
            },
            4 => Self::Refusal {
                number: first,
                status: match bytes[2] {
                    1 => Status::RemoteAccess,
                    2 => Status::NotReady,
                    3 => Status::RemoteOperation,
                    _ => return None,
                },
            },
            _ => return None,
        })
    }
}
