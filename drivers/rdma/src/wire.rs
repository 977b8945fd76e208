//! The wire format of a stream. All numbers are little-endian.
//!
//! ```text
//!   sender ── Hello ──▶ receiver        once per rail: stream, format of the frames, address of the credit word
//!          ◀── Offer ──                  once per rail: next requested frame, addresses of slots and records
//!
//!   a frame by writes:   payload ─▶ slot (n - next + first_slot) % slots; Record ─▶ that slot's record, immediate n
//!     on UC, which can lose messages: Record first; then the payload in one message, immediate n
//!   a frame by sends:    [Record │ payload] ─▶ the next posted receive
//!   credits:             the receiver writes one word: total number of frames that may be sent
//! ```
//! A stream over TCP can have checksums: each record then contains the CRC-32C of the payload and of the record itself.
//!
//! Frames are numbered in the order in which the sender passes them to the stream, starting when the sender starts.
//! Frame `n` uses rail `n % rails`. After an interruption the receiver requests the next frame that it needs, so no
//! frame is delivered twice. Slots are offered with new remote keys, so that no earlier write can reach them.

pub(crate) mod checksum;

use crate::verbs::Service;
use daq_core::frame::{Clock, MAX_KEPT_FIELDS, PacketSizes, Timestamp};
use daq_core::layout::{Layout, Order};

/// The magic number of a greeting: `daqR`.
pub(crate) const MAGIC: u32 = 0x5271_6164;
/// The protocol version. Both sides must have the same version.
pub(crate) const VERSION: u16 = 4;
/// Maximum number of rails of a stream.
pub const MAX_RAILS: u8 = u8::MAX;
/// Maximum number of packets per frame. With more packets, a record would be larger than a frame.
pub const MAX_PACKETS_PER_FRAME: u32 = 1 << 20;
/// Maximum payload of an RDMA packet in bytes.
const PACKET: usize = 4096;
/// Upper bound of frame numbers and frame counts, so that the sum of two such numbers does not overflow.
pub(crate) const END: u64 = 1 << 63;

/// The transfer mode of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Mode {
    /// Frames are written into the receiver's slots.
    #[default]
    Write = 0,
    /// Frames are sent as messages into the receiver's posted receives.
    Send = 1,
}

impl Mode {
    /// Checks whether this mode supports this service and number of rails. Returns the problem and the fix, or `None`
    /// if the combination is valid. Both sides get the same result.
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

    /// Checks whether frames of `bytes` bytes are too long for a service that sends a frame in one packet. Returns the
    /// problem and the fix.
    pub fn too_long(self, service: Service, bytes: usize) -> Option<(String, &'static str)> {
        let max = PACKET - Record::bytes(1, 0);
        (self == Self::Send && service == Service::Ud && bytes > max).then(|| {
            (
                format!(
                    "frames of {bytes} bytes do not fit into a packet: a datagram carries at most {max} bytes"
                ),
                "use smaller frames, or service = \"rc\"",
            )
        })
    }
}

/// Error: a greeting or a record cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// The data is too short.
    #[error("{what} has {found} bytes, expected {wanted}")]
    Short {
        /// Name of the expected structure.
        what: &'static str,
        /// Number of received bytes.
        found: usize,
        /// Number of required bytes.
        wanted: usize,
    },
    /// The data does not belong to this protocol.
    #[error("the data does not start with the identifier of {0}")]
    Foreign(&'static str),
    /// The peer has a different protocol version.
    #[error(
        "the peer's protocol version is {found}, but this host uses version {VERSION}: run the same version of daq on both hosts"
    )]
    Version {
        /// The peer's version.
        found: u16,
    },
    /// A field has an invalid value.
    #[error("{what} has the invalid value {found}")]
    Field {
        /// The name of the field.
        what: &'static str,
        /// The value of the field.
        found: u64,
    },
}

/// The first message of a sender on each rail. The message has 53 bytes; `rdma_cm` can carry 56.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The transfer mode.
    pub mode: Mode,
    /// The index of this rail, starting at 0.
    pub rail: u8,
    /// Number of rails, at least 1.
    pub rails: u8,
    /// Maximum number of packets per frame; 0 if frames do not consist of packets.
    pub packets_per_frame: u32,
    /// Names of the fields that frames keep.
    pub kept: KeptNames,
    /// The places of samples in frames.
    pub places: SamplePlaces,
    /// Random number that identifies this run of the sender. A new stream number restarts the frame numbers.
    pub stream: u64,
    /// Number of the first frame that the sender can still send.
    pub first: u64,
    /// Maximum payload of a frame in bytes.
    pub slot: u64,
    /// Remote address of the credit word, for the receiver.
    pub credit_address: u64,
    /// Remote key of the credit word.
    pub credit_rkey: u32,
    /// True if the records contain checksums.
    pub has_checksums: bool,
}

impl Hello {
    /// Size of the encoded greeting in bytes.
    pub(crate) const BYTES: usize = 55;

    /// Encodes the greeting.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.extend(MAGIC.to_le_bytes());
        out.extend(VERSION.to_le_bytes());
        let [low, high] = self.kept.checksum.to_le_bytes();
        out.extend([
            self.mode as u8,
            self.rail,
            self.rails,
            self.kept.count,
            low,
            high,
        ]);
        out.extend(self.packets_per_frame.to_le_bytes());
        for word in [self.stream, self.first, self.slot, self.credit_address] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.credit_rkey.to_le_bytes());
        out.push(self.has_checksums.into());
        out.extend(self.places.0.to_le_bytes());
        debug_assert_eq!(out.len(), Self::BYTES);
        out
    }

    /// Decodes a greeting. Additional bytes are ignored, because `rdma_cm` adds padding.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
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
        let kept = KeptNames {
            count: kept_fields(fields.u8())?,
            checksum: u16::from_le_bytes(fields.take()),
        };
        Ok(Self {
            mode,
            rail,
            rails,
            kept,
            packets_per_frame: packets_per_frame(fields.u32())?,
            stream: fields.u64(),
            first: number("the first frame", fields.u64())?,
            slot: number("the frame size", fields.u64())?,
            credit_address: extent("the credit address", fields.u64(), 8, 1)?,
            credit_rkey: fields.u32(),
            has_checksums: flag("the flag of checksums", fields.u8())?,
            places: SamplePlaces(u16::from_le_bytes(fields.take())),
        })
    }
}

/// The receiver's reply to [`Hello`], sent on each rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Number of the next requested frame, at least [`Hello::first`].
    pub(crate) next: u64,
    /// Number of slots. Frame `n` is stored in slot `(n - next + first_slot) % slots`.
    pub(crate) slots: u32,
    /// Index of the slot of frame `next`.
    pub(crate) first_slot: u32,
    /// Payload size of each slot in bytes.
    pub(crate) slot: u64,
    /// Distance in bytes between the starts of consecutive slots.
    pub(crate) stride: u64,
    /// Remote address of slot 0.
    pub(crate) slot_address: u64,
    /// Remote address of record 0. Records are contiguous, and each has the size [`Record::bytes`] for
    /// `packets_per_frame`.
    pub(crate) record_address: u64,
    /// Remote key of the slots.
    pub(crate) slot_rkey: u32,
    /// Remote key of the records.
    pub(crate) record_rkey: u32,
    /// Maximum number of packets per frame in the receiver's ring; 0 if frames do not consist of packets.
    pub(crate) packets_per_frame: u32,
    /// Number of fields that the receiver keeps with each frame.
    pub(crate) kept: u8,
    /// Number of frames, counted from `next`, that may be sent immediately. The credit word, which also counts from
    /// `next`, raises this number.
    pub(crate) credits: u64,
}

impl Offer {
    /// Size of the encoded offer in bytes.
    pub(crate) const BYTES: usize = 80;

    /// Encodes the offer.
    pub(crate) fn encode(&self) -> Vec<u8> {
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
        out.extend(self.packets_per_frame.to_le_bytes());
        out.extend([self.kept, 0, 0, 0]);
        out.extend(self.credits.to_le_bytes());
        debug_assert_eq!(out.len(), Self::BYTES);
        out
    }

    /// Decodes an offer. Additional bytes are ignored.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
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
                what: "the slot distance",
                found: stride,
            });
        }
        let slot_address = extent("the slot address", fields.u64(), stride, slots)?;
        let record_address = fields.u64();
        let (slot_rkey, record_rkey) = (fields.u32(), fields.u32());
        let packets_per_frame = packets_per_frame(fields.u32())?;
        let kept = kept_fields(fields.u8())?;
        let record = Record::bytes(packets_per_frame, kept) as u64;
        let record_address = extent("the record address", record_address, record, slots)?;
        fields.skip(3);
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
            packets_per_frame,
            kept,
            credits: number("the credits", fields.u64())?,
        })
    }
}

/// Decodes a flag.
const fn flag(what: &'static str, found: u8) -> Result<bool, WireError> {
    match found {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Field {
            what,
            found: found as u64,
        }),
    }
}

/// Checks that a number is below [`END`], so that the sum of two such numbers does not overflow.
const fn number(what: &'static str, found: u64) -> Result<u64, WireError> {
    if found < END {
        Ok(found)
    } else {
        Err(WireError::Field { what, found })
    }
}

/// The names of kept fields, in a form that fits into a greeting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptNames {
    /// Number of fields.
    pub(crate) count: u8,
    /// Checksum of the names.
    pub(crate) checksum: u16,
}

impl KeptNames {
    /// Returns the short form of `names`, of which the first [`MAX_KEPT_FIELDS`] are used.
    pub fn of(names: &[String]) -> Self {
        let names = &names[..names.len().min(MAX_KEPT_FIELDS)];
        Self {
            count: u8::try_from(names.len()).unwrap_or(u8::MAX),
            // A zero byte follows each name.
            checksum: hash(names.iter().flat_map(|name| name.bytes().chain([0]))),
        }
    }
}

/// The places of samples in frames as a hash, which fits into a greeting; 0 if the places are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplePlaces(u16);

impl SamplePlaces {
    /// Returns the places of samples in frames of `layout`. Frames of several lengths agree if the places do not depend on the length.
    pub fn of(layout: &Layout) -> Self {
        let channels = layout.channels;
        let points = match layout.order {
            Order::Planar if channels > 1 => layout.points,
            _ => 0,
        };
        let name = layout.scalar.name();
        let text = format!("{name} {} {channels} {points}", layout.complex);
        Self(hash(text.bytes()).max(1))
    }

    /// Returns whether frames of a sender with places `sent` can be read with these places.
    pub(crate) const fn agrees(self, sent: Self) -> bool {
        self.0 == 0 || sent.0 == 0 || self.0 == sent.0
    }
}

/// The hash function FNV-1a, folded to 16 bits.
fn hash(bytes: impl Iterator<Item = u8>) -> u16 {
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let [a, b, c, d] = hash.to_le_bytes();
    u16::from_le_bytes([a ^ c, b ^ d])
}

/// Checks a number of kept fields.
const fn kept_fields(found: u8) -> Result<u8, WireError> {
    if found as usize <= MAX_KEPT_FIELDS {
        Ok(found)
    } else {
        let (what, found) = ("the number of kept fields", found as u64);
        Err(WireError::Field { what, found })
    }
}

/// Checks a number of packet slots per frame.
const fn packets_per_frame(found: u32) -> Result<u32, WireError> {
    if found <= MAX_PACKETS_PER_FRAME {
        Ok(found)
    } else {
        let (what, found) = ("the number of packets per frame", found as u64);
        Err(WireError::Field { what, found })
    }
}

/// Checks that `count` times `stride` bytes fit into the address space after `address`.
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

/// The record of a frame: the metadata, followed in the encoded form by a bitmap of the packet slots that arrived, and by the
/// values of the kept fields up to the last that is present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The frame's number in the stream.
    pub(crate) number: u64,
    /// The frame's sequence number at its producer.
    pub(crate) sequence: u64,
    /// The frame's epoch, which changes whenever the producer's numbering restarts.
    pub(crate) epoch: u64,
    /// Timestamp of the frame.
    pub(crate) timestamp: Timestamp,
    /// Number of valid payload bytes of the frame.
    pub(crate) length: u64,
    /// The [`Flags`](daq_core::frame::Flags) of the frame.
    pub(crate) flags: u32,
    /// Number of packet slots of the frame.
    pub(crate) packets_per_frame: u32,
    /// Number of packet slots that arrived.
    pub(crate) arrived: u32,
    /// Sizes of the packet slots; 0 if unknown.
    pub(crate) packet_sizes: PacketSizes,
    /// Bitmap of the kept fields whose values follow the bitmap of packet slots.
    pub(crate) kept_mask: u8,
    /// The checksums; `None` if the stream has no checksums.
    pub(crate) checksums: Option<Checksums>,
}

/// The checksums of a frame, both CRC-32C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checksums {
    /// Checksum of the payload.
    pub(crate) payload: u32,
    /// Checksum of the encoded record, in which this field is 0. [`Record::encode`] computes it.
    pub(crate) record: u32,
}

impl Record {
    /// Size in bytes of a record without the bitmap.
    pub(crate) const HEAD: usize = 88;
    /// Offset in bytes of the checksum of the record.
    pub(crate) const CHECKSUM: usize = 84;

    /// Returns the size in bytes of a record of a frame with up to `packets_per_frame` packets and `kept` fields. The size is
    /// a multiple of 64, so that no two records share a cache line.
    pub const fn bytes(packets_per_frame: u32, kept: u8) -> usize {
        let words = (packets_per_frame as usize).div_ceil(64) + kept as usize;
        (Self::HEAD + words * 8).next_multiple_of(64)
    }

    /// Returns the number of values of kept fields that follow the bitmap.
    pub(crate) const fn kept_words(&self) -> usize {
        (u8::BITS - self.kept_mask.leading_zeros()) as usize
    }

    /// Returns the offset in bytes of the values of kept fields.
    pub(crate) const fn kept_offset(&self) -> usize {
        Self::HEAD + (self.packets_per_frame as usize).div_ceil(64) * 8
    }

    /// Returns the number of words that follow the head: the bitmap of packet slots, and the values of kept fields.
    pub(crate) const fn words(&self) -> usize {
        (self.packets_per_frame as usize).div_ceil(64) + self.kept_words()
    }

    /// Encodes the record into `out`. `words` are the bitmap of packet slots that arrived, and the values of kept fields.
    ///
    /// # Panics
    /// If `out` is too short for the record and `words`.
    pub(crate) fn encode(&self, words: impl Iterator<Item = u64>, out: &mut [u8]) {
        let after = words;
        let words = [
            u64::from(MAGIC) | u64::from(self.timestamp.clock as u8) << 32,
            self.number,
            self.sequence,
            self.epoch,
            self.timestamp.ns,
            self.length,
            u64::from(self.flags) | u64::from(self.packets_per_frame) << 32,
            u64::from(self.arrived)
                | u64::from(self.kept_mask) << 32
                | u64::from(self.checksums.is_some()) << 40,
            u64::from(self.packet_sizes.first) | u64::from(self.packet_sizes.rest) << 32,
            self.packet_sizes.parts.into(),
            self.checksums.map_or(0, |sums| sums.payload.into()),
        ];
        let mut at = 0;
        for word in words.into_iter().chain(after) {
            out[at..at + 8].copy_from_slice(&word.to_le_bytes());
            at += 8;
        }
        if self.checksums.is_some() {
            let sum = checksum::of_bytes(&out[..at]).to_le_bytes();
            out[Self::CHECKSUM..Self::HEAD].copy_from_slice(&sum);
        }
    }

    /// Decodes the record of a frame.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
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
        let (flags, packets_per_frame) = (fields.u32(), fields.u32());
        let (arrived, kept_mask) = (fields.u32(), fields.u8());
        let has_checksums = fields.u8() == 1;
        fields.skip(2);
        let packet_sizes = PacketSizes {
            first: fields.u32(),
            rest: fields.u32(),
            parts: fields.u32(),
        };
        fields.skip(4);
        let checksums = Checksums {
            payload: fields.u32(),
            record: fields.u32(),
        };
        Ok(Self {
            number,
            sequence,
            epoch,
            timestamp: Timestamp { ns, clock },
            length,
            flags,
            packets_per_frame,
            arrived,
            packet_sizes,
            kept_mask,
            checksums: has_checksums.then_some(checksums),
        })
    }
}

/// Reads consecutive fields. The caller must have checked the length.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Checks the header of a greeting with `wanted` bytes and returns the fields after it.
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
            (packets_per_frame, credit_rkey, rails) in (0..=MAX_PACKETS_PER_FRAME, any::<u32>(), 1..=u8::MAX),
            is_send: bool,
        ) {
            let mode = if is_send { Mode::Send } else { Mode::Write };
            let hello = Hello {
                mode, rail: rails - 1, rails, packets_per_frame, kept: KeptNames { count: rails % 9, checksum: 0xa55a }, places: SamplePlaces(0x5aa5), stream, first,
                slot, credit_address, credit_rkey, has_checksums: stream % 2 == 0,
            };
            let mut bytes = hello.encode();
            bytes.push(7);
            prop_assert!(bytes.len() <= crate::connect::MAX_HELLO);
            prop_assert_eq!(Hello::decode(&bytes), Ok(hello));
        }

        #[test]
        fn offers_round_trip(
            (next, slot_address, record_address, credits) in (0..END, 0..END, 0..END, 0..END),
            (slot, more) in (0..1_u64 << 40, 0..64_u64),
            (slots, slot_rkey, record_rkey, packets_per_frame) in (1..1_u32 << 20, any::<u32>(), any::<u32>(), 0..=MAX_PACKETS_PER_FRAME),
        ) {
            let offer = Offer {
                next, slots, first_slot: slots - 1, slot, stride: slot + more, slot_address, record_address, slot_rkey,
                record_rkey, packets_per_frame, kept: 7, credits,
            };
            let bytes = offer.encode();
            prop_assert!(bytes.len() <= crate::connect::MAX_OFFER);
            prop_assert_eq!(Offer::decode(&bytes), Ok(offer));
        }

        /// Calculations with a decoded offer must not overflow for any values that a peer sends.
        #[test]
        fn parsed_offer_does_not_overflow(
            words in proptest::collection::vec(prop_oneof![any::<u64>(), 0..1_u64 << 20, Just(u64::MAX), Just(END - 1)], 6),
            (slots, first_slot, packets_per_frame) in (any::<u32>(), any::<u32>(), any::<u32>()),
            small: bool,
        ) {
            let slots = if small { slots % 64 + 1 } else { slots };
            let offer = Offer {
                next: words[0], slots, first_slot: first_slot % slots.max(1), slot: words[1].min(words[2]), stride: words[2],
                slot_address: words[3], record_address: words[4], slot_rkey: 1, record_rkey: 2,
                packets_per_frame: packets_per_frame >> if small { 12 } else { 0 }, kept: 8, credits: words[5],
            };
            if let Ok(read) = Offer::decode(&offer.encode()) {
                prop_assert_eq!(read, offer);
                let last = u64::from(slots - 1);
                let record = Record::bytes(read.packets_per_frame, read.kept) as u64;
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
            (flags, packets_per_frame, arrived) in any::<(u32, u32, u32)>(),
            (first, rest, parts) in any::<(u32, u32, u32)>(),
        ) {
            let packet_sizes = PacketSizes { first, rest, parts };
            let timestamp = Timestamp { ns, clock: Clock::Kernel };
            let record = Record {
                number, sequence, epoch, timestamp, length, flags, packets_per_frame, arrived, packet_sizes, kept_mask: 0x81,
                checksums: None,
            };
            let mut bytes = vec![0; Record::bytes(65, 0)];
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
            packets_per_frame: 0,
            kept: KeptNames::default(),
            places: SamplePlaces::default(),
            stream: 1,
            first: 2,
            slot: 3,
            credit_address: 4,
            credit_rkey: 5,
            has_checksums: false,
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
            Hello::decode(&hello.encode()[..52]),
            Err(WireError::Short { .. })
        ));
        assert!(field("the number of kept fields")(with(9, 9)));
        assert!(field("the flag of checksums")(with(52, 2)));
        assert_eq!(Record::bytes(1, 0), 128);
        assert_eq!((Record::bytes(1, 4), Record::bytes(1, 5)), (128, 192));
        assert_eq!((Record::bytes(320, 0), Record::bytes(321, 0)), (128, 192));
    }
}
