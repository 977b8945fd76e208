//! The metadata of a frame.

use std::fmt;

/// The clock of a timestamp, which determines its accuracy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Clock {
    /// No timestamp.
    #[default]
    None = 0,
    /// The host's `CLOCK_REALTIME` when daq handled the frame. It is as close to UTC as the host's clock.
    Host = 1,
    /// The host's `CLOCK_REALTIME` when Linux received the frame's first packet that arrived. If the sample rate is
    /// known, the duration of the signal before that packet is subtracted.
    Kernel = 2,
    /// The sensor's counter scaled to nanoseconds. Its epoch depends on the sensor.
    Sensor = 3,
    /// The simulator's nominal time of the first sample.
    Simulated = 4,
    /// The timestamp of a recording, which is not known to be UTC.
    Recorded = 5,
    /// The sensor's counter scaled to nanoseconds, with an origin in UTC from the configuration.
    SensorUtc = 6,
    /// The PTP clock of the network card when the card received the frame's first packet that arrived. If the sample rate
    /// is known, the duration of the signal before that packet is subtracted. A PTP clock usually counts TAI from
    /// 1970-01-01T00:00:00 TAI, which is 37 s ahead of UTC since 2017.
    Hardware = 7,
    /// The timestamp of a recording, in UTC.
    RecordedUtc = 8,
}

impl Clock {
    /// Returns whether the clock counts nanoseconds from 1970-01-01T00:00:00Z.
    pub const fn is_utc(self) -> bool {
        matches!(
            self,
            Self::Host | Self::Kernel | Self::SensorUtc | Self::RecordedUtc
        )
    }

    /// Returns whether the time was read when a packet arrived, so that it contains the delay of the network.
    pub const fn is_arrival(self) -> bool {
        matches!(
            self,
            Self::Host | Self::Kernel | Self::Hardware | Self::Recorded | Self::RecordedUtc
        )
    }

    /// Returns the name used in reports and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Host => "host",
            Self::Kernel => "kernel",
            Self::Sensor => "sensor",
            Self::Simulated => "simulated",
            Self::Recorded => "recorded",
            Self::SensorUtc => "sensor-utc",
            Self::Hardware => "hardware",
            Self::RecordedUtc => "recorded-utc",
        }
    }

    /// Returns the clock whose `repr` is `value`; unknown values are [`Clock::None`].
    pub const fn from_u8(value: u8) -> Self {
        match value {
            1 => Self::Host,
            2 => Self::Kernel,
            3 => Self::Sensor,
            4 => Self::Simulated,
            5 => Self::Recorded,
            6 => Self::SensorUtc,
            7 => Self::Hardware,
            8 => Self::RecordedUtc,
            _ => Self::None,
        }
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A time, and the clock that it was read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamp {
    /// Nanoseconds since the clock's epoch (1970-01-01T00:00:00Z for the host's clocks).
    pub ns: u64,
    /// The clock that the time was read from.
    pub clock: Clock,
}

/// Flags of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// At least one packet is missing; the bytes of missing packets contain the ring's fill pattern.
    pub const INCOMPLETE: Self = Self(1);
    /// The frame is the first of an epoch, so it does not continue the frames before it.
    pub const EPOCH: Self = Self(1 << 1);
    /// The stream, or one part of it, ended or began inside this frame.
    pub const TRUNCATED: Self = Self(1 << 2);
    /// The frame contains payload whose check failed at the source.
    pub const SUSPECT: Self = Self(1 << 3);

    /// Returns whether every flag of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both sets of flags.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Maximum number of fields that a frame can keep.
pub const MAX_KEPT_FIELDS: usize = 8;

/// Names of the metadata of all frames, which kept fields must not have.
const METADATA_NAMES: [&str; 13] = [
    "arrived",
    "clock",
    "epoch",
    "first_bytes",
    "flags",
    "frames",
    "kept",
    "length",
    "packet_bytes",
    "packets_per_frame",
    "present",
    "sequence",
    "timestamp_ns",
];

/// Returns whether `name` is already a name in the metadata of all frames, so that no kept field can have it.
pub fn is_metadata_name(name: &str) -> bool {
    METADATA_NAMES.contains(&name)
}

/// Values from the headers of a frame's packets that travel with the frame, such as the identifier of an antenna. Field
/// `i` is the value with name `i` in [`RingOptions::kept`](crate::ring::RingOptions::kept). A field is absent if no packet
/// of the frame contained it.
///
/// ```
/// use daq_core::frame::KeptFields;
/// let kept = KeptFields::default().with(1, 42);
/// assert_eq!((kept.get(0), kept.get(1)), (None, Some(42)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptFields {
    /// Bit `i` is set if field `i` is present.
    mask: u8,
    /// The values; 0 if a field is absent.
    values: [u64; MAX_KEPT_FIELDS],
}

impl KeptFields {
    /// Returns field `i`, or `None` if it is absent.
    pub const fn get(&self, i: usize) -> Option<u64> {
        if i < MAX_KEPT_FIELDS && self.mask >> i & 1 == 1 {
            Some(self.values[i])
        } else {
            None
        }
    }

    /// Sets field `i` to `value`. Does nothing if `i` is not below [`MAX_KEPT_FIELDS`].
    #[inline]
    pub const fn set(&mut self, i: usize, value: u64) {
        if i < MAX_KEPT_FIELDS {
            self.mask |= 1 << i;
            self.values[i] = value;
        }
    }

    /// Returns a copy with field `i` set to `value`.
    #[must_use]
    pub const fn with(mut self, i: usize, value: u64) -> Self {
        self.set(i, value);
        self
    }

    /// Adds the fields of `other` that are absent here.
    pub fn fill_from(&mut self, other: &Self) {
        for i in 0..MAX_KEPT_FIELDS {
            if let (None, Some(value)) = (self.get(i), other.get(i)) {
                self.set(i, value);
            }
        }
    }

    /// Returns the bitmap of present fields: bit `i` is set if field `i` is present.
    pub const fn mask(&self) -> u8 {
        self.mask
    }

    /// Returns the values of all fields; 0 for absent fields.
    pub const fn values(&self) -> &[u64; MAX_KEPT_FIELDS] {
        &self.values
    }
}

/// The metadata of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameMeta {
    /// The frame's number, as counted by its producer; unique together with `epoch`.
    pub sequence: u64,
    /// Number of the epoch; the first epoch of a source is 1.
    pub epoch: u32,
    /// Flags of the frame.
    pub flags: Flags,
    /// Time of the frame's first sample, or receive time of its first packet. The first packet that arrives sets this
    /// time.
    pub timestamp: Timestamp,
    /// Number of valid bytes in the slot.
    pub length: usize,
    /// Number of packets in the frame; 0 if the frame does not consist of packets.
    pub packets_per_frame: u32,
    /// Number of packets that arrived.
    pub arrived: u32,
    /// Sizes of the packets.
    pub packet_sizes: PacketSizes,
    /// Values from the headers of the frame's packets. The first packet that arrives and contains a field sets it.
    pub kept: KeptFields,
}

impl FrameMeta {
    /// Returns the metadata of a complete frame of `length` bytes that does not consist of packets.
    pub fn whole(sequence: u64, length: usize) -> Self {
        Self {
            sequence,
            length,
            ..Self::default()
        }
    }

    /// Returns whether a packet is missing.
    pub const fn is_incomplete(&self) -> bool {
        self.flags.contains(Flags::INCOMPLETE)
    }
}

/// How the payload of a frame is divided into packets. All sizes are 0 if neither the plan nor the producer defines them.
///
/// A frame consists of `parts` parts of equal size, one after the other. Each part has the same number of packets.
/// ```text
///   | part 0: first | rest | rest | last | part 1: first | rest | rest | last | …
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PacketSizes {
    /// Number of payload bytes of the first packet of a part.
    #[serde(rename = "first_bytes")]
    pub first: u32,
    /// Number of payload bytes of every packet of a part except the first and the last.
    #[serde(rename = "packet_bytes")]
    pub rest: u32,
    /// Number of parts of a frame; 0 means 1.
    #[serde(skip_serializing_if = "is_undivided")]
    pub parts: u32,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_undivided(parts: &u32) -> bool {
    *parts <= 1
}

impl PacketSizes {
    /// Returns the sizes for packets of `bytes` bytes in a frame of one part.
    pub const fn equal(bytes: u32) -> Self {
        Self {
            first: bytes,
            rest: bytes,
            parts: 1,
        }
    }

    /// Returns the sizes after numbers of `from` bits were converted to numbers of `to` bits; `None` if the sizes are then not
    /// whole bytes.
    ///
    /// ```
    /// use daq_core::frame::PacketSizes;
    /// assert_eq!(PacketSizes::equal(1024).scaled(16, 32), Some(PacketSizes::equal(2048)));
    /// assert_eq!(PacketSizes::equal(1024).scaled(12, 16), None);
    /// ```
    pub fn scaled(&self, from: usize, to: usize) -> Option<Self> {
        let scaled = |bytes: u32| {
            let bits = u64::from(bytes) * to as u64;
            let is_whole = bits.checked_rem(from as u64)? == 0;
            is_whole.then(|| u32::try_from(bits / from as u64).ok())?
        };
        Some(Self {
            first: scaled(self.first)?,
            rest: scaled(self.rest)?,
            parts: self.parts,
        })
    }

    /// Returns the offset of packet `index` in a frame of `packets_per_frame` packets and `frame_bytes` bytes, at most
    /// `frame_bytes`.
    ///
    /// ```
    /// use daq_core::frame::PacketSizes;
    /// let sizes = PacketSizes { first: 6, rest: 8, parts: 2 };
    /// assert_eq!([0, 1, 2, 3, 4, 5].map(|i| sizes.offset(i, 4, 20)), [0, 6, 10, 16, 20, 20]);
    /// ```
    pub fn offset(&self, index: u32, packets_per_frame: u32, frame_bytes: u64) -> u64 {
        let in_part = |index: u32| match index.checked_sub(1) {
            None => 0,
            Some(after) => u64::from(self.first) + u64::from(after) * u64::from(self.rest),
        };
        if self.parts <= 1 {
            return in_part(index).min(frame_bytes);
        }
        let packets = (packets_per_frame / self.parts).max(1);
        let part_bytes = frame_bytes / u64::from(self.parts);
        let start = u64::from(index / packets) * part_bytes;
        (start + in_part(index % packets).min(part_bytes)).min(frame_bytes)
    }
}

/// The bitmap of a frame's packets that arrived: bit `i % 64` of word `i / 64` is set if packet `i` arrived.
#[derive(Clone, Copy, Debug)]
pub struct Present<'a> {
    words: &'a [u64],
    packets_per_frame: u32,
}

impl<'a> Present<'a> {
    /// Creates a view of `words`, of which the first `packets_per_frame` bits are used.
    ///
    /// # Panics
    /// Panics if `words` has fewer than `packets_per_frame` bits.
    pub fn new(words: &'a [u64], packets_per_frame: u32) -> Self {
        assert!(
            words.len() >= (packets_per_frame as usize).div_ceil(64),
            "the bitmap of present packets has fewer than packets_per_frame bits"
        );
        Self {
            words,
            packets_per_frame,
        }
    }

    /// Returns the number of packets in the frame.
    pub const fn packets_per_frame(&self) -> u32 {
        self.packets_per_frame
    }

    /// Returns whether packet `i` arrived; false for all `i` if the frame does not consist of packets.
    pub fn is_present(&self, i: u32) -> bool {
        i < self.packets_per_frame && self.words[i as usize / 64] >> (i % 64) & 1 == 1
    }

    /// Returns the words of the bitmap. Bits after the last packet are 0.
    pub fn words(&self) -> &'a [u64] {
        self.words
    }

    /// Returns the ranges of missing packets as `(first, count)` in ascending order.
    ///
    /// ```
    /// use daq_core::frame::Present;
    /// let runs: Vec<_> = Present::new(&[0b0110_1], 6).missing().collect();
    /// assert_eq!(runs, [(1, 1), (4, 2)]);
    /// ```
    pub fn missing(&self) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        let this = *self;
        let mut next = 0;
        std::iter::from_fn(move || {
            while next < this.packets_per_frame && this.is_present(next) {
                next += 1;
            }
            let first = next;
            while next < this.packets_per_frame && !this.is_present(next) {
                next += 1;
            }
            (next > first).then_some((first, next - first))
        })
    }
}
