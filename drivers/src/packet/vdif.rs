//! `vdif`: data frames of radio telescopes in the VLBI Data Interchange Format, one per packet.
//!
//! ```text
//!   word 0   invalid | legacy | seconds from the reference epoch (30)
//!   word 1   – (2) | reference epoch (6) | number of the frame in the second (24)
//!   word 2   version (3) | log2 of the channels (5) | size of the frame in units of 8 bytes (24)
//!   word 3   complex | bits per sample − 1 (5) | thread identifier (10) | station identifier (16)
//!   words 4 to 7, except in legacy headers: extended user data
//! ```
//! All words are little-endian. Source: VDIF specification, release 1.1.1, section 9. One VDIF frame is one unit, whose number
//! is the seconds since 2000 × frames per second + the number in the second. With VTP, the packet begins with another number of 8
//! bytes, which is not used: it does not state the time.
//!
//! Several threads are the parts of frames, see `streams.rs`.
//!
//! # Counts
//! | event | counted as |
//! |---|---|
//! | a frame that the sender has marked as invalid; it is rejected | `invalid` |
//! | a frame of another thread than those of the configuration | `other_thread` |

mod recognise;

use super::checks::{Check, LARGEST_PACKET};
use super::selector::{Condition, Selector};
use super::streams::StreamFrames;
use super::{
    Build, Format, FormatEntry, FormatFacts, Numbering, Packet, PacketClock, PacketFormat, Parse,
    Parsed, Reject, SourceOfFormat, Split, TimeScale, section,
};
use daq_core::claim::StreamIds;
use daq_core::config::Problem;
use daq_core::counts;
use daq_core::layout::Samples;
use daq_core::ledger::Counts;
use daq_core::outgoing::OutgoingFrames;
use daq_core::reorder::PacketId;
use daq_core::units::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;

/// The registry entry of this format.
pub(super) const ENTRY: FormatEntry = FormatEntry {
    name: "vdif",
    summary: "VDIF frames of radio telescopes, numbered by second and frame number",
    example: r#"kind    = "vdif"
payload = "8000 B"       # of each VDIF frame, without its header
thread  = 0              # accept only this thread, or several: [0, 1]
frames_per_second = 4000 # of one thread; by default from `rate` of `samples`
# packets = 400          # VDIF frames of each thread in a frame
# station = 0x5066       # accept only this station
# vtp     = true         # each packet begins with an 8-byte number (VTP)
"#,
    schema: VdifConfig::json_schema,
    parse: |table, diagnostics| section::finish(table, diagnostics, VdifConfig::build),
    recognise: recognise::RECOGNISERS,
};

/// Size of the header in bytes.
const HEADER: usize = 32;
/// Size of a legacy header in bytes.
const LEGACY_HEADER: usize = 16;
/// Size of the number before the header.
const VTP: usize = 8;
/// Number of bits of the thread identifier.
const THREAD_BITS: u32 = 10;
/// Number of bits of the frame number.
const FRAME_BITS: u32 = 24;
/// Number of reference epochs.
const EPOCHS: usize = 64;
/// Unix time of 2000-01-01T00:00:00Z.
const YEAR_2000: u64 = 946_684_800;
/// Reference epochs that begin with the second after a leap second.
const LEAP_EPOCHS: [usize; 5] = [12, 18, 25, 31, 34];

const INVALID: Reject = Reject::Other {
    name: "invalid",
    message: "the sender has marked the data as invalid",
};
const NO_RATE: &str = "the number of frames per second is unknown";

counts! {
    /// The counters of a stream besides the ledger of its source.
    struct StreamCounts {
        /// Number of frames that the sender has marked as invalid.
        invalid,
        /// Number of frames of other threads.
        other_thread,
    }
}

/// `kind = "vdif"`: VDIF frames of one thread or several, one VDIF frame per packet. Their number is the time in seconds × frames
/// per second + the number in its second. Timestamps are UTC.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VdifConfig {
    /// Number of bytes in each VDIF frame after its header, a multiple of 8.
    pub payload: ByteSize,
    /// Thread identifier of the frames, 0 to 1023, or several: `[0, 1]`. The threads are the parts of a frame, in this order, so each
    /// is a channel with `order = "planar"`. VDIF frames of other threads are rejected.
    #[serde(default = "first_thread")]
    pub thread: super::StreamIds,
    /// Number of VDIF frames of each thread in a frame. With several threads, the default divides `frames_per_second`, so that each
    /// second begins with a frame, and a frame has up to 1 MiB. With one thread, a frame contains as many as fit into a slot.
    pub packets: Option<u32>,
    /// Station identifier of the frames, such as `0x5066`. Frames of other stations are rejected. By default any station.
    pub station: Option<u16>,
    /// Number of frames of the thread per second, 1 to 16777216. By default it follows from `rate` of `samples`.
    pub frames_per_second: Option<u32>,
    /// Whether each packet begins with a number of 8 bytes before the header (VDIF Transport Protocol).
    #[serde(default)]
    pub vtp: bool,
}

fn first_thread() -> super::StreamIds {
    super::StreamIds(vec![0])
}

impl VdifConfig {
    /// Returns the format, or every problem of the configuration.
    pub fn build(&self) -> Result<Format, Vec<Problem>> {
        let mut check = Check::default();
        let payload = check.size("payload", self.payload, 8, LARGEST_PACKET - HEADER - VTP);
        check.must(payload.is_multiple_of(8), "payload", || {
            (
                format!("{payload} bytes are not a multiple of 8, which VDIF requires"),
                "set the size that the sender uses, without the header".to_owned(),
            )
        });
        self.thread
            .check("thread", (1 << THREAD_BITS) - 1, &mut check);
        let grouped = StreamFrames::new(self.thread.0.len(), self.packets, &mut check);
        let frames = self.frames_per_second.map(u64::from);
        let is_valid = frames.is_none_or(|frames| (1..=1 << FRAME_BITS).contains(&frames));
        check.must(is_valid, "frames_per_second", || {
            (
                "the number of frames per second must be 1 to 16777216".to_owned(),
                "set the number of frames that one thread sends per second".to_owned(),
            )
        });
        let mut vdif = Vdif::new(
            payload,
            self.thread.0.clone().into(),
            self.station,
            frames,
            self.vtp,
        );
        vdif.grouped = grouped;
        check.end(Format::Vdif(vdif))
    }
}

/// VDIF frames of one thread or several.
#[derive(Clone, Debug)]
pub struct Vdif {
    payload: usize,
    /// The threads in the order of the parts, at least one.
    threads: Box<[u32]>,
    /// Set if a unit is a frame of the ring.
    grouped: Option<StreamFrames>,
    station: Option<u16>,
    /// 0 if unknown.
    frames_per_second: u64,
    /// Number of bytes before the header.
    before: usize,
    /// Size of the last header, including the bytes before it.
    header: usize,
    epochs: Box<[Epoch; EPOCHS]>,
    source: String,
    counts: StreamCounts,
    /// The expected type of the samples, until it is compared with a header.
    expected: Option<SampleType>,
    seconds: LastSeconds,
}

/// Number of subsequent seconds with equal numbers of frames after which the number counts as that of the sender. Losses at the end
/// of each of them are improbable.
const EQUAL_SECONDS: u32 = 5;

/// The frames of the last seconds.
#[derive(Clone, Copy, Debug, Default)]
struct LastSeconds {
    second: u64,
    /// Highest number of a frame of this second, plus 1.
    frames: u64,
    /// The same of the second before it; 0 if unknown.
    previous: u64,
    /// Number of subsequent seconds with this number.
    equal: u32,
    is_logged: bool,
}

impl LastSeconds {
    /// Counts frame `frame` of `second`. Returns the number of frames per second at the end of a second if several subsequent seconds
    /// had equal numbers.
    #[inline]
    fn observe(&mut self, second: u64, frame: u64) -> Option<u64> {
        if second == self.second {
            self.frames = self.frames.max(frame + 1);
        }
        if second <= self.second {
            return None;
        }
        let (ended, before) = (self.frames, self.previous);
        let follows = second == self.second + 1;
        self.previous = if follows { ended } else { 0 };
        (self.second, self.frames) = (second, frame + 1);
        self.equal = if follows && ended == before {
            self.equal + 1
        } else {
            1
        };
        (self.equal >= EQUAL_SECONDS).then_some(ended)
    }
}

/// A reference epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    /// Its UTC time, in seconds since 1970.
    unix: u64,
    /// Number of leap seconds from 2000 until the epoch.
    leaps: u64,
    /// Seconds of the epoch from which on the next leap second is over; the second before is the leap second.
    next_leap: u64,
}

/// Properties of samples that a VDIF header states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SampleType {
    bits: u32,
    is_complex: bool,
    channels: u32,
}

/// Returns all reference epochs: each begins half a year after the one before it.
fn epochs() -> Box<[Epoch; EPOCHS]> {
    let mut epochs = Box::new([Epoch::default(); EPOCHS]);
    let mut days = 0;
    for (i, epoch) in epochs.iter_mut().enumerate() {
        epoch.unix = YEAR_2000 + days * 86_400;
        epoch.leaps = LEAP_EPOCHS.iter().filter(|leap| **leap <= i).count() as u64;
        let is_leap_year = (i / 2).is_multiple_of(4);
        days += match (i % 2, is_leap_year) {
            (0, true) => 182,
            (0, false) => 181,
            _ => 184,
        };
    }
    for i in 0..EPOCHS {
        let next = LEAP_EPOCHS.iter().find(|leap| **leap > i);
        epochs[i].next_leap = next.map_or(u64::MAX, |leap| epochs[*leap].unix - epochs[i].unix);
    }
    epochs
}

impl Epoch {
    /// Returns the UTC time of second `seconds` of the epoch, in seconds since 1970. A leap second has the time of the second
    /// after it.
    ///
    /// Seconds of an epoch count leap seconds. No epoch was used for so long that it contained two.
    fn utc(&self, seconds: u64) -> u64 {
        self.unix + seconds - u64::from(seconds > self.next_leap)
    }

    /// Returns the number of seconds since 2000, including leap seconds: the same for all epochs.
    const fn elapsed(&self, seconds: u64) -> u64 {
        self.unix - YEAR_2000 + self.leaps + seconds
    }
}

/// The first four words of a header.
#[derive(Clone, Copy, Debug)]
struct Header([u32; 4]);

impl Header {
    /// Reads the header at the start of `bytes`, or `None` if `bytes` ends before its first four words.
    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        let words = bytes.first_chunk::<LEGACY_HEADER>()?.as_chunks::<4>().0;
        let word = |i: usize| u32::from_le_bytes(words[i]);
        Some(Self([word(0), word(1), word(2), word(3)]))
    }

    /// Returns whether the sender marked the data as invalid. The other fields of such a header need not be valid.
    const fn is_invalid(&self) -> bool {
        self.0[0] >> 31 == 1
    }

    /// Returns the number of seconds since the reference epoch.
    fn seconds(&self) -> u64 {
        (self.0[0] & 0x3fff_ffff).into()
    }

    /// Returns the size of the header in bytes.
    const fn bytes(&self) -> usize {
        if self.0[0] & 1 << 30 != 0 {
            LEGACY_HEADER
        } else {
            HEADER
        }
    }

    /// Returns the number of the reference epoch.
    const fn epoch(&self) -> usize {
        (self.0[1] >> 24 & 0x3f) as usize
    }

    /// Returns the number of the frame in its second.
    fn frame(&self) -> u64 {
        (self.0[1] & 0xff_ffff).into()
    }

    /// Returns the size of the frame with its header in bytes.
    const fn length(&self) -> usize {
        (self.0[2] & 0xff_ffff) as usize * 8
    }

    const fn thread(&self) -> u32 {
        self.0[3] >> 16 & 0x3ff
    }

    const fn station(&self) -> u16 {
        (self.0[3] & 0xffff) as u16
    }

    /// Returns the type of the samples.
    const fn samples(&self) -> SampleType {
        SampleType {
            bits: (self.0[3] >> 26 & 0x1f) + 1,
            is_complex: self.0[3] >> 31 == 1,
            channels: 1 << (self.0[2] >> 24 & 0x1f),
        }
    }
}

impl Vdif {
    /// Returns the format of frames with `payload` bytes after the header.
    fn new(
        payload: usize,
        threads: Box<[u32]>,
        station: Option<u16>,
        frames_per_second: Option<u64>,
        vtp: bool,
    ) -> Self {
        let before = if vtp { VTP } else { 0 };
        Self {
            payload,
            threads,
            grouped: None,
            station,
            frames_per_second: frames_per_second.unwrap_or(0),
            before,
            header: before + HEADER,
            epochs: epochs(),
            source: String::new(),
            counts: StreamCounts::default(),
            expected: None,
            seconds: LastSeconds::default(),
        }
    }

    #[inline]
    fn check(&mut self, packet: &[u8], length: usize) -> Result<Split, Reject> {
        let min = self.before + LEGACY_HEADER;
        if length < min {
            return Err(Reject::Short {
                need: min,
                got: length,
            });
        }
        let Some(fields) = packet.get(self.before..).and_then(Header::read) else {
            return Ok(Split::Longer { header: min });
        };
        if fields.is_invalid() {
            self.counts.invalid.add_shared(1);
            return Err(INVALID);
        }
        let header = self.before + fields.bytes();
        let stated = self.before + fields.length();
        if stated < header {
            return Err(Reject::Short {
                need: header,
                got: stated,
            });
        }
        if stated > length {
            return Err(Reject::Short {
                need: stated,
                got: length,
            });
        }
        if stated < length {
            return Err(Reject::Long {
                expected: stated,
                got: length,
            });
        }
        if stated - header != self.payload {
            return Err(Reject::PayloadSize {
                expected: self.payload,
                got: stated - header,
            });
        }
        let part = self.part(fields.thread(), fields.station())?;
        let frame = fields.frame();
        if frame >= self.frames_per_second {
            return Err(Reject::Other {
                name: "frame_number",
                message: "the number of the frame in its second is not below `frames_per_second`: set the number of frames that one thread sends per second",
            });
        }
        if self.expected.is_some() {
            self.compare(fields.samples());
        }
        self.header = header;
        let seconds = fields.seconds();
        if let Some(frames) = self.seconds.observe(seconds, frame)
            && frames < self.frames_per_second
        {
            self.log_frames_per_second(frames);
        }
        let epoch = &self.epochs[fields.epoch()];
        let number = epoch.elapsed(seconds) * self.frames_per_second + frame;
        let time = |frame| {
            let scale = TimeScale {
                nanoseconds: 1_000_000_000,
                ticks: self.frames_per_second,
                origin_ns: None,
            };
            scale.ns_after(epoch.utc(seconds), frame)
        };
        let (id, timestamp) = match &self.grouped {
            None => (PacketId::of(number), time(frame)),
            Some(grouped) => {
                let id = grouped.place(part, number);
                let after = number - grouped.number(id.unit, 0).0;
                // A frame may begin in the second before.
                let early = after.saturating_sub(frame) * 1_000_000_000 / self.frames_per_second;
                (id, time(frame.saturating_sub(after)).saturating_sub(early))
            }
        };
        Ok(Split::Whole(Parsed::Data(Packet {
            unit: id.unit,
            sub: id.sub,
            payload: header..length,
            timestamp: Some(timestamp),
        })))
    }

    /// Returns the part of a frame of `thread` and `station`.
    #[inline]
    fn part(&self, thread: u32, station: u16) -> Result<u32, Reject> {
        let part = match &*self.threads {
            [only] => (*only == thread).then_some(0),
            threads => (0..)
                .zip(threads)
                .find_map(|(part, other)| (*other == thread).then_some(part)),
        };
        let Some(part) = part else {
            self.counts.other_thread.add_shared(1);
            return Err(Reject::OtherStream {
                what: "thread",
                found: thread,
                expected: self.threads.first().copied().unwrap_or(0),
            });
        };
        match self.station {
            Some(expected) if expected != station => Err(Reject::OtherStream {
                what: "station",
                found: u32::from(station),
                expected: u32::from(expected),
            }),
            _ => Ok(part),
        }
    }

    /// Uses the samples of each packet.
    fn use_packet_samples(&mut self, samples: &Samples) -> Result<(), Problem> {
        let layout = samples.layout(self.payload);
        if let Ok(layout) = &layout {
            let numbers =
                layout.points * layout.channels as usize * if layout.complex { 2 } else { 1 };
            self.expected = Some(SampleType {
                bits: u32::try_from(self.payload * 8 / numbers.max(1)).unwrap_or(0),
                is_complex: layout.complex,
                channels: layout.channels,
            });
        }
        if self.frames_per_second > 0 {
            return Ok(());
        }
        let problem = |message: String, help: &str| {
            Err(Problem::at("format.frames_per_second", message).help(help))
        };
        let Some(rate) = samples.rate else {
            return problem(
                NO_RATE.to_owned(),
                "set `frames_per_second`, or `rate` of `samples`",
            );
        };
        let Ok(layout) = layout else {
            return problem(
                format!("{NO_RATE}: a frame does not contain a whole number of samples"),
                "set `frames_per_second`, or correct `samples` or `payload`",
            );
        };
        let frames = rate.0 / layout.points as f64;
        if !(1.0..=f64::from(1 << FRAME_BITS)).contains(&frames) || frames.fract() != 0.0 {
            return problem(
                format!(
                    "`rate` of `samples` is {rate} and a frame contains {} samples per channel, which are {frames} frames per \
                     second: this is not a whole number from 1 to 16777216",
                    layout.points
                ),
                "correct `rate` or `payload`, or set `frames_per_second`",
            );
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the range is checked above"
        )]
        let frames = frames as u64;
        self.frames_per_second = frames;
        Ok(())
    }

    /// Logs once that each second has `frames` frames, fewer than configured.
    #[cold]
    fn log_frames_per_second(&mut self, frames: u64) {
        if !std::mem::replace(&mut self.seconds.is_logged, true) {
            tracing::warn!(
                "source {}: each second has {frames} frames, but `frames_per_second` is {}, so the other numbers count as lost: set \
                 `frames_per_second = {frames}`, or correct `rate` of `samples`",
                self.source,
                self.frames_per_second
            );
        }
    }

    /// Logs once if the samples of a header are not those of the configuration.
    #[cold]
    fn compare(&mut self, found: SampleType) {
        let Some(expected) = self.expected.take() else {
            return;
        };
        // Samples of less than 8 bits are received as bytes.
        if found.bits < 8 || found == expected {
            return;
        }
        tracing::warn!(
            "source {}: the sender's headers state {} bits per number, complex = {}, channels = {}, but `samples` declares {} bits, \
             complex = {}, channels = {}: correct `samples`",
            self.source,
            found.bits,
            found.is_complex,
            found.channels,
            expected.bits,
            expected.is_complex,
            expected.channels,
        );
    }

    /// The bytes 12 and 13 of a header are the station, 14 and the lower bits of 15 are the thread.
    fn selector(&self) -> Option<Selector> {
        let at = |offset: usize| u32::try_from(self.before + offset).unwrap_or(u32::MAX);
        let mut conditions = vec![Condition {
            offset: at(14),
            bytes: 2,
            mask: 0xff03,
            values: self
                .threads
                .iter()
                .map(|thread| (thread & 0xff) << 8 | thread >> 8)
                .collect(),
        }];
        conditions.extend(self.station.map(|station| Condition {
            offset: at(12),
            bytes: 2,
            mask: 0xffff,
            values: vec![station.swap_bytes().into()],
        }));
        let streams = match self.station {
            None => StreamIds::new("thread", self.threads.iter().copied()),
            Some(station) => {
                let id = |thread: &u32| thread << 16 | u32::from(station);
                StreamIds::new("thread and station", self.threads.iter().map(id))
            }
        };
        Selector::new(conditions, streams)
    }
}

impl Parse for Vdif {
    #[inline]
    fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject> {
        self.check(header, header.len().saturating_add(rest))
    }

    fn packet_len(&self, bytes: &[u8]) -> Option<usize> {
        let header = Header::read(bytes.get(self.before..)?)?;
        Some(self.before + header.length())
    }

    #[inline]
    fn header_len(&self, _: u32) -> usize {
        self.header
    }

    /// Timestamps are UTC in nanoseconds.
    #[inline]
    fn clock(&self) -> Option<PacketClock<'_>> {
        let scale = TimeScale {
            nanoseconds: 1,
            ticks: 1,
            origin_ns: Some(0),
        };
        Some(PacketClock { scale, wrap: None })
    }
}

impl Build for Vdif {
    /// The header has the first reference epoch, in 2000. Fields about the samples are zero.
    fn build_header(&self, unit: u64, sub: u32, _: Option<u64>, payload: usize, out: &mut Vec<u8>) {
        let frames = self.frames_per_second.max(1);
        let (number, part) = match &self.grouped {
            Some(grouped) => grouped.number(unit, sub),
            None => (unit, 0),
        };
        let thread = self.threads.get(part as usize).copied().unwrap_or(0);
        let (seconds, frame) = (number / frames, number % frames);
        if self.before > 0 {
            out.extend(number.to_le_bytes());
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the fields of the header have this size"
        )]
        let words = [
            seconds as u32 & 0x3fff_ffff,
            frame as u32 & 0xff_ffff,
            ((HEADER + payload) / 8) as u32 & 0xff_ffff,
            thread << 16 | u32::from(self.station.unwrap_or(0)),
            0,
            0,
            0,
            0,
        ];
        out.extend(words.into_iter().flat_map(u32::to_le_bytes));
    }

    /// A sender would need the station, the type of the samples, and a clock that ticks with the frames.
    fn for_sending(&self, _: &OutgoingFrames) -> Result<Option<Format>, Problem> {
        let problem = Problem::at("format.kind", "daq cannot send VDIF frames");
        Err(problem.help("set kind = \"vita49\", \"spead\" or \"raw\""))
    }
}

impl PacketFormat for Vdif {
    fn facts(&self) -> FormatFacts {
        FormatFacts {
            part_names: self.threads.iter().map(u32::to_string).collect(),
            selector: self.selector(),
            counts: vec![StreamCounts::SET],
            ..StreamFrames::facts(self.grouped.as_ref(), self.payload, Numbering::PLAIN)
        }
    }

    fn use_source(&mut self, source: &SourceOfFormat<'_>) -> Result<(), Problem> {
        let samples = match &self.grouped {
            Some(grouped) => grouped.packet_samples(source.samples)?,
            None => source.samples.clone(),
        };
        self.use_packet_samples(&samples)?;
        if let Some(grouped) = &mut self.grouped {
            grouped.settle(self.payload, self.frames_per_second);
        }
        Ok(())
    }

    fn start(&mut self, name: &str, counts: &Counts) {
        name.clone_into(&mut self.source);
        self.counts = StreamCounts::of(counts);
    }
}

#[cfg(test)]
mod tests;
