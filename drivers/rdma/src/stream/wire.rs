//! The wire format of a stream; all numbers are little-endian.
//!
//! ```text
//!   sender ── Hello ──▶ receiver        once a rail: who sends, what its frames are, where credits go
//!          ◀── Offer ──                  once a rail: which frame is wanted next, where slots and records lie
//!
//!   a frame, by writes:  payload ─▶ slot (n - next + turn) % slots;  Record ─▶ the record of that slot, with the immediate n
//!     where messages are lost (UC):  Record first;  payload in one message, with the immediate n
//!   a frame, by sends:   [Record │ payload] ─▶ the next posted receive
//!   credits:             receiver writes one word: frames that may have been sent in all
//! ```
//! A frame has a number, which counts what its sender has handed to the stream since the sender began; frame `n` goes by
//! rail `n % rails`. After a break the receiver says which one it wants next, so none comes twice; slots are advertised
//! under new keys, so that nothing of before lands in them.

use crate::verbs::Service;
use daq_core::frame::{Clock, Timestamp};

/// The first word of a greeting: `daqR`.
pub const MAGIC: u32 = 0x5271_6164;
/// The version of all of this. Both ends must have the same.
pub const VERSION: u16 = 1;
/// Most rails of a stream.
pub const MAX_RAILS: u8 = u8::MAX;
/// Most places of a frame: beyond it, a record would be larger than frames are.
pub const MAX_PLACES: u32 = 1 << 20;
/// Most bytes of a packet of RDMA.
const PACKET: usize = 4096;
/// No number of a frame, and no count of frames, is as large: so the sum of two does not overflow.
pub const END: u64 = 1 << 63;

/// How frames go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Mode {
    /// Written into the receiver's slots.
    #[default]
    Write = 0,
    /// Sent as messages into what the receiver has posted.
    Send = 1,
}

impl Mode {
    /// What of this mode cannot go by this service and so many rails, where anything: what is wrong with the service and
    /// what helps. It is the same on both sides.
    pub fn problem(self, service: Service, rails: usize) -> Option<(&'static str, &'static str)> {
        match (self, service) {
            (Self::Write, Service::Ud) => Some((
                "writes are not supported on ud",
                "use mode = \"send\", or service = \"rc\"",
            )),
            (Self::Send, Service::Uc) => Some((
                "messages are supported only on rc and ud",
                "use mode = \"write\", or service = \"rc\"",
            )),
            (Self::Send, Service::Ud) if rails > 1 => Some((
                "ud supports only one queue pair",
                "name one NIC and set queue_pairs = 1",
            )),
            _ => None,
        }
    }

    /// What is wrong with frames of `bytes` bytes, and what helps, where one goes in one packet and is too long for any.
    pub fn too_long(self, service: Service, bytes: usize) -> Option<(String, &'static str)> {
        let most = PACKET - Record::bytes(1);
        (self == Self::Send && service == Service::Ud && bytes > most).then(|| {
            (
                format!(
                    "frames of {bytes} bytes do not fit into a packet: a datagram carries at most {most} bytes"
                ),
                "use smaller frames, or service = \"rc\"",
            )
        })
    }
}

/// Why a greeting or a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It is too short.
    #[error("{what} has {found} bytes, expected {wanted}")]
    Short {
        /// What should be there.
        what: &'static str,
        /// Its bytes.
        found: usize,
        /// Bytes needed.
        wanted: usize,
    },
    /// It is none of this protocol.
    #[error("the first bytes are not those of {0}")]
    Foreign(&'static str),
    /// It is of another version.
    #[error(
        "its protocol version is {found}, the version here is {VERSION}: run the same version of daq on both hosts"
    )]
    Version {
        /// The peer's version.
        found: u16,
    },
    /// A field holds what cannot be.
    #[error("{what} has the invalid value {found}")]
    Field {
        /// The field.
        what: &'static str,
        /// What it holds.
        found: u64,
    },
}

/// What a sender says first, on each rail. 52 bytes, for `rdma_cm` carries 56.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// How frames go.
    pub mode: Mode,
    /// This rail, from 0 on.
    pub rail: u8,
    /// Rails in all, at least 1.
    pub rails: u8,
    /// Most places of a frame; 0 where frames have none.
    pub places: u32,
    /// Random number of this run of the sender: with a new one, frame numbers restart.
    pub stream: u64,
    /// The first frame that can still be sent.
    pub first: u64,
    /// Most bytes of a frame's payload.
    pub slot: u64,
    /// Where the word for credits lies, as the receiver is to name it.
    pub credit_address: u64,
    /// What names it.
    pub credit_rkey: u32,
}

impl Hello {
    /// Bytes of one.
    pub const BYTES: usize = 52;

    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.extend(MAGIC.to_le_bytes());
        out.extend(VERSION.to_le_bytes());
        out.extend([self.mode as u8, self.rail, self.rails, 0, 0, 0]);
        out.extend(self.places.to_le_bytes());
        for word in [self.stream, self.first, self.slot, self.credit_address] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.credit_rkey.to_le_bytes());
        debug_assert_eq!(out.len(), Self::BYTES);
        out
    }

    /// What `bytes` say; more bytes than that are left alone, for `rdma_cm` pads.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields::begin("a greeting", bytes, Self::BYTES)?;
        let mode = match fields.u8() {
            0 => Mode::Write,
            1 => Mode::Send,
            found => {
                return Err(WireError::Field {
                    what: "the mode",
                    found: found.into(),
                });
            }
        };
        let (rail, rails) = (fields.u8(), fields.u8());
        if rail >= rails {
            return Err(WireError::Field {
                what: "the rail",
                found: rail.into(),
            });
        }
        fields.skip(3);
        Ok(Self {
            mode,
            rail,
            rails,
            places: places(fields.u32())?,
            stream: fields.u64(),
            first: number("the first frame", fields.u64())?,
            slot: number("the bytes of a frame", fields.u64())?,
            credit_address: extent("the address of credits", fields.u64(), 8, 1)?,
            credit_rkey: fields.u32(),
        })
    }
}

/// What a receiver answers, on each rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The frame that is wanted next, at least [`Hello::first`].
    pub next: u64,
    /// Slots; frame `n` goes to slot `(n - next + first_slot) % slots`.
    pub slots: u32,
    /// The slot of frame `next`.
    pub first_slot: u32,
    /// Payload bytes of each slot.
    pub slot: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Where slot 0 lies.
    pub slot_address: u64,
    /// Where record 0 lies; records lie one behind the other, each of [`Record::bytes`] for `places`.
    pub record_address: u64,
    /// What names the slots.
    pub slot_rkey: u32,
    /// What names the records.
    pub record_rkey: u32,
    /// Most places of a frame of the receiver's ring; 0 where frames have none.
    pub places: u32,
    /// Frames from `next` on that may be sent at once; later ones when the credit word says so, which counts from `next`.
    pub credits: u64,
}

impl Offer {
    /// Bytes of one.
    pub const BYTES: usize = 80;

    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.extend(MAGIC.to_le_bytes());
        out.extend(VERSION.to_le_bytes());
        out.extend([0, 0]);
        out.extend(self.next.to_le_bytes());
        out.extend(self.slots.to_le_bytes());
        out.extend(self.first_slot.to_le_bytes());
        let words = [
            self.slot,
            self.stride,
            self.slot_address,
            self.record_address,
        ];
        for word in words {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.slot_rkey.to_le_bytes());
        out.extend(self.record_rkey.to_le_bytes());
        out.extend(self.places.to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.credits.to_le_bytes());
        debug_assert_eq!(out.len(), Self::BYTES);
        out
    }

    /// What `bytes` say; more bytes than that are left alone.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields::begin("an offer", bytes, Self::BYTES)?;
        fields.skip(2);
        let next = number("the next frame", fields.u64())?;
        let (slots, first_slot) = (fields.u32(), fields.u32());
        if first_slot >= slots {
            return Err(WireError::Field {
                what: "the first slot",
                found: first_slot.into(),
            });
        }
        let (slot, stride) = (fields.u64(), fields.u64());
        if slot > stride {
            return Err(WireError::Field {
                what: "the distance of slots",
                found: stride,
            });
        }
        let slot_address = extent("the distance of slots", fields.u64(), stride, slots)?;
        let record_address = fields.u64();
        let (slot_rkey, record_rkey) = (fields.u32(), fields.u32());
        let places = places(fields.u32())?;
        let record = Record::bytes(places) as u64;
        let record_address = extent("the address of records", record_address, record, slots)?;
        fields.skip(4);
        Ok(Self {
            next,
            slots,
            first_slot,
            slot,
            stride,
            slot_address,
            record_address,
            slot_rkey,
            record_rkey,
            places,
            credits: number("the credits", fields.u64())?,
        })
    }
}

/// A number that no sum of two makes overflow.
const fn number(what: &'static str, found: u64) -> Result<u64, WireError> {
    if found < END {
        Ok(found)
    } else {
        Err(WireError::Field { what, found })
    }
}

/// Places of a frame.
const fn places(found: u32) -> Result<u32, WireError> {
    if found <= MAX_PLACES {
        Ok(found)
    } else {
        let (what, found) = ("the places of a frame", found as u64);
        Err(WireError::Field { what, found })
    }
}

/// An address behind which `count` times `stride` bytes lie without coming round to 0.
fn extent(what: &'static str, address: u64, stride: u64, count: u32) -> Result<u64, WireError> {
    let end = stride
        .checked_mul(count.into())
        .and_then(|bytes| address.checked_add(bytes));
    match end {
        Some(_) => Ok(address),
        None => Err(WireError::Field {
            what,
            found: address,
        }),
    }
}

/// The metadata of a frame; a bitmap of the arrived packets follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The frame's number in the stream.
    pub number: u64,
    /// Its number in its producer's counting.
    pub sequence: u64,
    /// Changes whenever the producer's numbering restarts.
    pub epoch: u64,
    /// When.
    pub timestamp: Timestamp,
    /// Valid bytes.
    pub length: u64,
    /// [`Flags`](daq_core::frame::Flags).
    pub flags: u32,
    /// Places that make it up.
    pub places: u32,
    /// Places that arrived.
    pub arrived: u32,
}

impl Record {
    /// Bytes of one without the words that follow.
    pub const HEAD: usize = 64;

    /// Bytes of a record of a frame with up to `places` places: a multiple of 64, so that none shares a line.
    pub const fn bytes(places: u32) -> usize {
        (Self::HEAD + (places as usize).div_ceil(64) * 8).next_multiple_of(64)
    }

    /// Writes the record, and which places arrived, to `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`bytes`](Self::bytes) for so many words.
    pub fn encode(&self, present: impl Iterator<Item = u64>, out: &mut [u8]) {
        let words = [
            u64::from(MAGIC) | u64::from(self.timestamp.clock as u8) << 32,
            self.number,
            self.sequence,
            self.epoch,
            self.timestamp.ns,
            self.length,
            u64::from(self.flags) | u64::from(self.places) << 32,
            u64::from(self.arrived),
        ];
        let mut at = 0;
        for word in words.into_iter().chain(present) {
            out[at..at + 8].copy_from_slice(&word.to_le_bytes());
            at += 8;
        }
    }

    /// What `bytes` say of a frame.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() < Self::HEAD {
            return Err(WireError::Short {
                what: "a record",
                found: bytes.len(),
                wanted: Self::HEAD,
            });
        }
        let mut fields = Fields(bytes);
        if fields.u32() != MAGIC {
            return Err(WireError::Foreign("a record"));
        }
        let clock = Clock::from_u8(fields.u8());
        fields.skip(3);
        let (number, sequence, epoch, ns, length) = (
            fields.u64(),
            fields.u64(),
            fields.u64(),
            fields.u64(),
            fields.u64(),
        );
        Ok(Self {
            number,
            sequence,
            epoch,
            timestamp: Timestamp { ns, clock },
            length,
            flags: fields.u32(),
            places: fields.u32(),
            arrived: fields.u32(),
        })
    }
}

/// Reads fields one after the other. The caller has checked the length.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Behind the head of a greeting of so many bytes, if it is one.
    fn begin(what: &'static str, bytes: &'a [u8], wanted: usize) -> Result<Self, WireError> {
        let found = bytes.len();
        if found < wanted {
            return Err(WireError::Short {
                what,
                found,
                wanted,
            });
        }
        let mut fields = Self(bytes);
        if fields.u32() != MAGIC {
            return Err(WireError::Foreign(what));
        }
        match u16::from_le_bytes(fields.take()) {
            VERSION => Ok(fields),
            found => Err(WireError::Version { found }),
        }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_at(N);
        self.0 = rest;
        let mut bytes = [0; N];
        bytes.copy_from_slice(taken);
        bytes
    }

    fn skip(&mut self, bytes: usize) {
        self.0 = &self.0[bytes..];
    }

    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn greetings_round_trip(
            (stream, first, slot, credit_address) in (any::<u64>(), 0..END, 0..END, 0..=u64::MAX - 8),
            (places, credit_rkey, rails) in (0..=MAX_PLACES, any::<u32>(), 1..=u8::MAX),
            is_send: bool,
        ) {
            let mode = if is_send { Mode::Send } else { Mode::Write };
            let hello = Hello { mode, rail: rails - 1, rails, places, stream, first, slot, credit_address, credit_rkey };
            let mut bytes = hello.encode();
            bytes.extend([7; 4]);
            prop_assert!(bytes.len() <= crate::connect::MAX_HELLO);
            prop_assert_eq!(Hello::decode(&bytes), Ok(hello));
        }

        #[test]
        fn offers_round_trip(
            (next, slot_address, record_address, credits) in (0..END, 0..END, 0..END, 0..END),
            (slot, more) in (0..1_u64 << 40, 0..64_u64),
            (slots, slot_rkey, record_rkey, places) in (1..1_u32 << 20, any::<u32>(), any::<u32>(), 0..=MAX_PLACES),
        ) {
            let offer = Offer {
                next, slots, first_slot: slots - 1, slot, stride: slot + more, slot_address, record_address, slot_rkey,
                record_rkey, places, credits,
            };
            let bytes = offer.encode();
            prop_assert!(bytes.len() <= crate::connect::MAX_OFFER);
            prop_assert_eq!(Offer::decode(&bytes), Ok(offer));
        }

        /// What is computed with an offer that was read does not overflow, whatever the peer says.
        #[test]
        fn parsed_offer_does_not_overflow(
            words in proptest::collection::vec(prop_oneof![any::<u64>(), 0..1_u64 << 20, Just(u64::MAX), Just(END - 1)], 6),
            (slots, first_slot, places) in (any::<u32>(), any::<u32>(), any::<u32>()),
            small: bool,
        ) {
            let slots = if small { slots % 64 + 1 } else { slots };
            let offer = Offer {
                next: words[0], slots, first_slot: first_slot % slots.max(1), slot: words[1].min(words[2]), stride: words[2],
                slot_address: words[3], record_address: words[4], slot_rkey: 1, record_rkey: 2,
                places: places >> if small { 12 } else { 0 }, credits: words[5],
            };
            if let Ok(read) = Offer::decode(&offer.encode()) {
                prop_assert_eq!(read, offer);
                let last = u64::from(slots - 1);
                let record = Record::bytes(read.places) as u64;
                prop_assert!(read.next.checked_add(read.credits).is_some());
                prop_assert!(read.next.checked_add(u64::from(MAX_RAILS)).is_some());
                let slot = last.checked_mul(read.stride).and_then(|at| at.checked_add(read.slot_address));
                prop_assert!(slot.and_then(|at| at.checked_add(read.slot)).is_some());
                let at = last.checked_mul(record).and_then(|at| at.checked_add(read.record_address));
                prop_assert!(at.and_then(|at| at.checked_add(record)).is_some());
            }
        }

        #[test]
        fn records_round_trip(
            (number, sequence, epoch, ns, length) in any::<(u64, u64, u64, u64, u64)>(),
            (flags, places, arrived) in any::<(u32, u32, u32)>(),
        ) {
            let timestamp = Timestamp { ns, clock: Clock::Kernel };
            let record = Record { number, sequence, epoch, timestamp, length, flags, places, arrived };
            let mut bytes = vec![0; Record::bytes(65)];
            record.encode([1, 2].into_iter(), &mut bytes);
            prop_assert_eq!(Record::decode(&bytes), Ok(record));
            prop_assert_eq!(&bytes[Record::HEAD..Record::HEAD + 16], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        }

        #[test]
        fn other_bytes_are_not_parsed_as_record(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            let is_ours = bytes.starts_with(&MAGIC.to_le_bytes());
            prop_assert!(is_ours || Hello::decode(&bytes).is_err() && Offer::decode(&bytes).is_err());
            prop_assert!(is_ours || Record::decode(&bytes).is_err());
        }
    }

    #[test]
    fn invalid_values_are_rejected() {
        let hello = Hello {
            mode: Mode::Write,
            rail: 0,
            rails: 1,
            places: 0,
            stream: 1,
            first: 2,
            slot: 3,
            credit_address: 4,
            credit_rkey: 5,
        };
        let with = |at: usize, value: u8| {
            let mut bytes = hello.encode();
            bytes[at] = value;
            Hello::decode(&bytes).unwrap_err()
        };
        assert!(matches!(with(0, 0), WireError::Foreign(_)));
        assert_eq!(with(4, 9), WireError::Version { found: 9 });
        let field = |what| move |error: WireError| matches!(error, WireError::Field { what: w, .. } if w == what);
        assert!(field("the mode")(with(6, 2)) && field("the rail")(with(7, 1)));
        assert!(matches!(
            Hello::decode(&hello.encode()[..51]),
            Err(WireError::Short { .. })
        ));
        assert_eq!(Record::bytes(0), 64);
        assert_eq!(
            (Record::bytes(1), Record::bytes(512), Record::bytes(513)),
            (128, 128, 192)
        );
    }
}
