//! What is known of one frame beside its payload.

use std::fmt;

/// Where a timestamp comes from, and so how far it can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Clock {
    /// No timestamp.
    #[default]
    None = 0,
    /// The host's `CLOCK_REALTIME` when our code handled the frame: UTC as well as the host keeps it.
    Host = 1,
    /// The host's `CLOCK_REALTIME` when the kernel received the first packet of the frame that came, less the signal
    /// before it where the sample rate is known.
    Kernel = 2,
    /// The sensor's own count scaled to nanoseconds; its epoch is whatever the sensor uses.
    Sensor = 3,
    /// Invented by the simulator: the nominal time of the first sample.
    Simulated = 4,
    /// Taken from a recording.
    Recorded = 5,
    /// The sensor's own count scaled to nanoseconds, from an origin in UTC that the configuration gives.
    SensorUtc = 6,
}

impl Clock {
    /// Whether its nanoseconds count from 1970-01-01T00:00:00Z.
    pub const fn is_utc(self) -> bool {
        matches!(self, Self::Host | Self::Kernel | Self::SensorUtc)
    }

    /// The name used in reports and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Host => "host",
            Self::Kernel => "kernel",
            Self::Sensor => "sensor",
            Self::Simulated => "simulated",
            Self::Recorded => "recorded",
            Self::SensorUtc => "sensor-utc",
        }
    }

    /// The clock whose `repr` is `value`; unknown values are [`Clock::None`].
    pub const fn from_u8(value: u8) -> Self {
        match value {
            1 => Self::Host,
            2 => Self::Kernel,
            3 => Self::Sensor,
            4 => Self::Simulated,
            5 => Self::Recorded,
            6 => Self::SensorUtc,
            _ => Self::None,
        }
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A time with the clock that it was read from.
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
    /// At least one place was missing and is filled.
    pub const INCOMPLETE: Self = Self(1);
    /// The first frame of an epoch: what came before is not continuous with it.
    pub const EPOCH: Self = Self(1 << 1);
    /// The stream ended, or began, inside this frame.
    pub const TRUNCATED: Self = Self(1 << 2);
    /// Payload whose check failed at the source is inside.
    pub const SUSPECT: Self = Self(1 << 3);

    /// Whether every flag of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The record of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameMeta {
    /// The frame's number in its producer's counting; unique together with `epoch`.
    pub sequence: u64,
    /// How often the producer's counting has restarted.
    pub epoch: u32,
    /// Flags.
    pub flags: Flags,
    /// Time of the frame's first sample, or of its first packet's reception; set by the first packet that arrived.
    pub timestamp: Timestamp,
    /// Valid bytes in the slot.
    pub length: usize,
    /// Places (packets) that make up the frame; 0 where the producer has no such thing.
    pub places: u32,
    /// Places that really arrived.
    pub arrived: u32,
    /// Payload bytes of the first place; 0 where the ring's plan or nothing says.
    pub first_bytes: u32,
    /// Payload bytes of each place but the first and the last; 0 where the ring's plan or nothing says.
    pub place_bytes: u32,
}

impl FrameMeta {
    /// A complete frame of `length` bytes without places.
    pub fn whole(sequence: u64, length: usize) -> Self {
        Self {
            sequence,
            length,
            ..Self::default()
        }
    }

    /// Whether a place is missing.
    pub const fn is_incomplete(&self) -> bool {
        self.flags.contains(Flags::INCOMPLETE)
    }
}

/// Which places of a frame arrived: bit `i` of word `i / 64` stands for place `i`.
#[derive(Clone, Copy, Debug)]
pub struct Present<'a> {
    words: &'a [u64],
    places: u32,
}

impl<'a> Present<'a> {
    /// A view over `words`, of which the first `places` bits count.
    ///
    /// # Panics
    /// If `words` holds fewer than `places` bits.
    pub fn new(words: &'a [u64], places: u32) -> Self {
        assert!(
            words.len() >= (places as usize).div_ceil(64),
            "present bitmap shorter than its places"
        );
        Self { words, places }
    }

    /// Places in the frame.
    pub const fn places(&self) -> u32 {
        self.places
    }

    /// Whether place `i` arrived. Frames without places are always present.
    pub fn is_present(&self, i: u32) -> bool {
        i < self.places && self.words[i as usize / 64] >> (i % 64) & 1 == 1
    }

    /// The words of the bitmap; bits beyond the last place are 0.
    pub fn words(&self) -> &'a [u64] {
        self.words
    }

    /// Runs of missing places as `(first, count)`, ascending.
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
            while next < this.places && this.is_present(next) {
                next += 1;
            }
            let first = next;
            while next < this.places && !this.is_present(next) {
                next += 1;
            }
            (next > first).then_some((first, next - first))
        })
    }
}
