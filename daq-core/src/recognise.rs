//! Recognisers: how packet formats and sources recognise their packets among unknown ones, for `daq inspect`.
//!
//! A recogniser is beside the parser that it imitates, and is named in the field `recognise` of the registry entry.
//! `daq inspect` finds all recognisers in the registry ([`Registry::recognisers`](crate::entry::Registry::recognisers)).

use std::net::SocketAddr;

/// The first bytes of a captured UDP packet.
#[derive(Clone, Debug)]
pub struct CapturedPacket {
    /// The sender.
    pub source: SocketAddr,
    /// Capture time in nanoseconds since 1970; 0 if unknown.
    pub ns: u64,
    /// Size of the whole UDP payload in bytes.
    pub length: usize,
    /// The first bytes of the UDP payload.
    pub head: Box<[u8]>,
}

/// How frames and packets of a stream are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// Number of bits of the frame number, 1 to 64.
    pub bits: u32,
    /// Increment of the frame number.
    pub step: u64,
    /// Number of packets in each part of a frame.
    pub packets: u64,
    /// The lowest and the highest frame number, if frame numbers do not use all their bits.
    pub range: Option<(u64, u64)>,
}

impl Numbering {
    /// Numbers of 64 bits that grow by 1 from packet to packet.
    pub const PLAIN: Self = Self {
        bits: 64,
        step: 1,
        packets: 1,
        range: None,
    };

    /// Returns the distance from frame number `from` to `to`, in the shorter direction.
    pub fn jump(&self, from: u64, to: u64) -> i64 {
        let unused = 64 - self.bits.clamp(1, 64);
        match self.range {
            None => (to.wrapping_sub(from) << unused).cast_signed() >> unused,
            Some((first, last)) => {
                let count = i128::from(last) - i128::from(first) + 1;
                let ahead = (i128::from(to) - i128::from(from)).rem_euclid(count);
                let jump = if ahead * 2 > count {
                    ahead - count
                } else {
                    ahead
                };
                i64::try_from(jump).unwrap_or(i64::MAX)
            }
        }
    }
}

/// The numbers of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The frame number as in the packet.
    pub frame: u64,
    /// Index of the packet in its part of the frame, from 0. An index beyond the part means that the number belongs to a
    /// message instead of a frame, so its packets are not expected.
    pub packet: u64,
    /// Index of the part, such as the antenna; 0 if frames have one part. Packets are counted for each part.
    pub part: usize,
}

impl Place {
    /// Returns the place of the only packet of a frame.
    pub const fn of(frame: u64) -> Self {
        Self {
            frame,
            packet: 0,
            part: 0,
        }
    }
}

/// A line of a suggested table `format`, and the reason for its value.
#[derive(Clone, Debug)]
pub struct Key {
    /// The reason, printed as a comment above the line; empty for a value that needs no reason.
    pub why: String,
    /// The line of the table, such as `header = 16`; empty for a note.
    pub line: String,
}

impl Key {
    /// Creates a line with a reason.
    pub fn new(line: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            line: line.into(),
        }
    }

    /// Creates a line that needs no reason.
    pub fn plain(line: impl Into<String>) -> Self {
        Self::new(line, "")
    }

    /// Creates a comment without a key.
    pub fn note(text: impl Into<String>) -> Self {
        Self::new("", text)
    }
}

/// How a source can receive the packets.
#[derive(Clone, Debug)]
pub enum Suggestion {
    /// With the packet format `kind`.
    Format {
        /// The value of `format.kind`.
        kind: &'static str,
        /// The other keys of the format.
        keys: Vec<Key>,
        /// The keys of the table `samples`, if the format defines them.
        samples: Option<String>,
        /// Whether a frame can consist of parts that several senders send, such as detector modules.
        has_parts: bool,
    },
    /// Not at all, for this reason.
    None(String),
}

impl Suggestion {
    /// Returns the suggestion of the packet format `kind` with `keys`, whose frames have one part.
    pub const fn format(kind: &'static str, keys: Vec<Key>) -> Self {
        Self::Format {
            kind,
            keys,
            samples: None,
            has_parts: false,
        }
    }
}

/// What a [`Recogniser`] found.
#[derive(Clone, Debug)]
pub struct Recognised {
    /// The name of the format.
    pub name: String,
    /// How well the packets match, in percent.
    pub confidence: u8,
    /// The observations that led to the result.
    pub why: Vec<String>,
    /// What the packets do not decide, and the alternatives.
    pub ambiguous: Vec<String>,
    /// How the packets are numbered.
    pub numbering: Numbering,
    /// The place of each packet; `None` for packets without samples.
    pub places: Vec<Option<Place>>,
    /// Flows with equal layouts can belong to one source.
    pub layout: String,
    /// How a source can receive the packets.
    pub suggestion: Suggestion,
}

/// Recognises the packets of one protocol.
#[derive(Clone, Copy, Debug)]
pub struct Recogniser {
    /// Examines the packets of one flow, at least one, or of several flows in the order of arrival. Returns `None` for
    /// another protocol.
    pub recognise: fn(&[&CapturedPacket]) -> Option<Recognised>,
    /// Returns the size in bytes of the packet at the start of the bytes, or `None` for another protocol and for packets
    /// that do not state their size. A record of a capture can contain several packets, which are divided by their sizes.
    pub packet_len: fn(&[u8]) -> Option<usize>,
}

impl Recogniser {
    /// Creates a recogniser of packets that do not state their size.
    pub const fn new(recognise: fn(&[&CapturedPacket]) -> Option<Recognised>) -> Self {
        Self {
            recognise,
            packet_len: |_| None,
        }
    }
}
