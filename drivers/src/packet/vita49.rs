//! `vita49`: signal data packets of VITA 49 (VRT), also with the profile DIFI.
//!
//! ```text
//!   | prologue: type, count, size, stream identifier, class, timestamp | payload | trailer |
//! ```
//! One packet is one unit. The 4-bit packet count cannot show a loss of 16 packets, so the number of a packet follows from
//! its timestamp, see `grid.rs`. If the sample rate is unknown, the number is the packet count. Several streams are the parts of
//! frames, see `streams.rs`.
//!
//! # Counts
//! | event | counted as |
//! |---|---|
//! | a context packet of the stream | `context` |
//! | a timestamp that is off the grid of the previous packets | `off_grid` |
//! | a packet of another sample rate than the configured one; it is rejected | `rejected` (sample_rate) |
//! | the packet count disagrees with the timestamps, because the sender has skipped samples or repeated a packet | `count_mismatch` |
//! | no timestamp that can number packets, although the sample rate is known | `untimed` |
//! | the trailer reports invalid data, an over-range, or lost samples | `invalid_data`, `over_range`, `sample_loss` |

mod config;
mod context;
mod grid;
mod prologue;
mod rate;
mod recognise;
mod sending;
mod stream;

pub use config::{KeptValue, Vita49Config};

use super::selector::{Condition, Selector};
use super::streams::StreamFrames;
use super::{
    Build, Control, Format, FormatEntry, FormatFacts, Numbering, Packet, PacketClock, PacketFormat,
    Parse, Parsed, Reject, SourceOfFormat, Split, TimeScale, section,
};
use context::{Context, SAMPLE_RATE};
use daq_core::claim::StreamIds;
use daq_core::config::Problem;
use daq_core::counts;
use daq_core::frame::KeptFields;
use daq_core::layout::{Layout, Order, Samples};
use daq_core::ledger::Counts;
use daq_core::outgoing::OutgoingFrames;
use daq_core::reorder::PacketId;
use daq_core::units::{Frequency, Period};
use prologue::{Fraction, Kind, MAX_PROLOGUE, Prologue, SIGNAL_DATA, Seconds, Stamp, WORD};
use schemars::JsonSchema;
use sending::Sending;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use stream::Stream;

/// The registry entry of this format.
pub(super) const ENTRY: FormatEntry = FormatEntry {
    name: "vita49",
    summary: "Signal data packets of VITA 49.0 and 49.2 (VRT, DIFI), numbered by their timestamps",
    example: r#"kind      = "vita49"
payload   = "4 KiB"       # of each packet, without header and trailer
# stream_id = 0x2a        # accept only this stream, or several: [0x2a, 0x2b]; by default the stream of the first packet
# packets   = 256         # packets of each stream in a frame
# tolerance = "10 ns"     # maximum error of the sender's timestamps; by default half a sample
# leap_seconds = 18       # GPS time minus UTC, for GPS timestamps
# keep = ["rf_frequency"] # values of context packets that frames keep
"#,
    schema: Vita49Config::json_schema,
    parse: |table, diagnostics| section::finish(table, diagnostics, Vita49Config::build),
    recognise: recognise::RECOGNISERS,
};

/// Seconds from 1970-01-01 to 1980-01-06, the start of GPS time.
const GPS_START: u64 = 315_964_800;
/// Number of picoseconds per second.
const SECOND: u64 = 1_000_000_000_000;
/// Number of bits of the packet count.
const COUNT_BITS: u32 = 4;
/// The key and the help of the warning that the 4-bit count repeats.
const NUMBER_ADVICE: (&str, &str) = (
    "samples",
    "set `rate` in `samples`, so that packets are numbered by their timestamps; otherwise compare `delivered` with the sender's own \
     count",
);
/// Minimum time between two log messages about changed context values.
const LOG_PERIOD: Duration = Duration::from_secs(1);

counts! {
    /// The counters of a stream besides the ledger of its source.
    struct StreamCounts {
        /// Number of context packets.
        context,
        /// Number of packets whose timestamp is off the grid of the previous packets.
        off_grid,
        /// Number of packets whose count disagrees with their timestamp.
        count_mismatch,
        /// Number of packets without a timestamp that can number packets.
        untimed,
        /// Number of packets whose trailer reports invalid data.
        invalid_data,
        /// Number of packets whose trailer reports an over-range.
        over_range,
        /// Number of packets whose trailer reports lost samples.
        sample_loss,
    }
}

const PICOSECONDS: Reject = Reject::Other {
    name: "timestamp",
    message: "the fraction of the timestamp is a second or longer, although it is in picoseconds",
};
const OTHER_RATE: Reject = Reject::Other {
    name: "sample_rate",
    message: "the sender uses another sample rate than `rate` of `samples`, as its context or its timestamps show: set `rate` to the \
              sender's, or receive each rate in a run of its own",
};
const EXTENSION: Reject = Reject::Other {
    name: "extension_data",
    message: "the packet contains extension data, whose format only the sender knows: use the format `raw` for it",
};
const UNKNOWN: Reject = Reject::Other {
    name: "packet_type",
    message: "the packet type is not defined in VITA 49: the packet has another format",
};

/// The packets of a VITA 49 stream.
#[derive(Clone, Debug)]
pub struct Vita49 {
    payload: usize,
    /// The streams in the order of the parts; empty for the stream of the first packet.
    ids: Box<[u32]>,
    /// Set if a unit is a frame of the ring.
    grouped: Option<StreamFrames>,
    /// The stream of the first packet, for all threads.
    first_stream: Arc<OnceLock<u32>>,
    tolerance: Option<Period>,
    leap_seconds: u32,
    /// Number of samples in 1,000,000 s, if the sample rate is known.
    rate: Option<u64>,
    /// What is known about each stream, at least one.
    streams: Box<[Stream]>,
    layout: Option<Layout>,
    /// Reference of the last packet's time, if it had one.
    reference: Option<Seconds>,
    /// Size of the last packet's prologue in bytes.
    prologue: usize,
    /// The values of context packets that frames keep.
    keep: Vec<KeptValue>,
    /// The times of packets that are sent.
    sending: Option<Arc<Sending>>,
    notes: Box<Notes>,
}

/// What is reported about the stream besides its packets.
#[derive(Clone, Debug, Default)]
struct Notes {
    source: String,
    counts: StreamCounts,
    is_contradiction_logged: bool,
    is_off_grid_logged: bool,
    is_untimed_logged: bool,
}

impl Vita49 {
    /// Returns the format of packets with `payload` bytes of payload. Until [`use_samples`](Self::use_samples) is called with a
    /// sample rate, packets are numbered by their 4-bit count.
    fn new(payload: usize, ids: Box<[u32]>, tolerance: Option<Period>, leap_seconds: u32) -> Self {
        Self {
            payload,
            streams: vec![Stream::default(); ids.len().max(1)].into(),
            ids,
            grouped: None,
            first_stream: Arc::default(),
            tolerance,
            leap_seconds,
            rate: None,
            layout: None,
            reference: None,
            prologue: MAX_PROLOGUE,
            keep: Vec::new(),
            sending: None,
            notes: Box::default(),
        }
    }

    /// Lets frames keep the values `keep` of context packets.
    fn keeping(self, keep: Vec<KeptValue>) -> Self {
        Self { keep, ..self }
    }

    /// Lets a unit be a frame of packets of all streams.
    fn grouped(self, grouped: Option<StreamFrames>) -> Self {
        Self { grouped, ..self }
    }

    #[inline]
    fn check(&mut self, header: &[u8], length: usize) -> Result<Split, Reject> {
        let longer = |bytes: usize| {
            if length < bytes {
                return Err(Reject::Short {
                    need: bytes,
                    got: length,
                });
            }
            Ok(Split::Longer { header: bytes })
        };
        let prologue = match Prologue::parse(header) {
            Ok(prologue) => prologue,
            Err(bytes) => return longer(bytes),
        };
        let Prologue { packet, bytes, .. } = prologue;
        if length < packet {
            return Err(Reject::Short {
                need: packet,
                got: length,
            });
        }
        if length > packet {
            return Err(Reject::Long {
                expected: packet,
                got: length,
            });
        }
        let need = bytes + prologue.trailer + prologue.padding;
        if packet < need {
            return Err(Reject::Short { need, got: packet });
        }
        match prologue.kind {
            Kind::SignalData => {}
            Kind::Context | Kind::Message if header.len() < length => return longer(length),
            Kind::Context => {
                self.read_context(&prologue, header);
                return Ok(Split::Whole(Parsed::Control(Control::Beside)));
            }
            Kind::Message => return Ok(Split::Whole(Parsed::Control(Control::Beside))),
            Kind::ExtensionData => return Err(EXTENSION),
            Kind::Unknown => return Err(UNKNOWN),
        }
        // The trailer is after the payload.
        if prologue.trailer > 0 && header.len() < length {
            return longer(length);
        }
        let payload = bytes..packet - prologue.trailer - prologue.padding;
        if payload.len() != self.payload {
            return Err(Reject::PayloadSize {
                expected: self.payload,
                got: payload.len(),
            });
        }
        let part = self.part(prologue.stream)?;
        let stamp = &prologue.stamp;
        if stamp.unit == Fraction::Picoseconds && stamp.fraction >= SECOND {
            return Err(PICOSECONDS);
        }
        let stream = &mut self.streams[part as usize];
        if stream.is_other_rate(stamp, prologue.count) {
            return Err(OTHER_RATE);
        }
        self.prologue = bytes;
        let timestamp = nanoseconds(stamp, self.rate);
        self.reference = timestamp.map(|_| match stamp.unit {
            // The count has no relation to the integer seconds.
            Fraction::FreeRunning => Seconds::Other,
            _ => stamp.reference,
        });
        let number = stream.number(stamp, prologue.count, &mut self.notes);
        if stream.has_other_rate() {
            return Err(OTHER_RATE);
        }
        if prologue.trailer > 0 && stream.last != Some(number) {
            self.notes.count_trailer(header, packet - WORD);
        }
        stream.last = Some(number);
        let (id, timestamp) = self.placed(part, number, timestamp);
        Ok(Split::Whole(Parsed::Data(Packet {
            unit: id.unit,
            sub: id.sub,
            payload,
            timestamp,
        })))
    }

    /// Returns the place of packet `number` of part `part`, and the time of its unit.
    #[inline]
    fn placed(&self, part: u32, number: u64, timestamp: Option<u64>) -> (PacketId, Option<u64>) {
        let Some(grouped) = &self.grouped else {
            return (PacketId::of(number), timestamp);
        };
        let id = grouped.place(part, number);
        let after = u128::from(number - grouped.number(id.unit, 0).0);
        let points = self.layout.as_ref().map_or(0, |layout| layout.points) as u128;
        let rate = u128::from(self.rate.unwrap_or(1));
        let early = after * points * 1_000_000_000_000_000 / rate;
        let early = u64::try_from(early).unwrap_or(u64::MAX);
        (id, timestamp.map(|time| time.saturating_sub(early)))
    }

    /// Returns the part of a frame that `stream` sends. Rejects packets of another stream than those of the configuration, or than
    /// the first one.
    #[inline]
    fn part(&self, stream: Option<u32>) -> Result<u32, Reject> {
        let first = match (&*self.ids, stream) {
            ([], None) => return Ok(0),
            ([], Some(found)) => *self.first_stream.get_or_init(|| found),
            (_, None) => {
                return Err(Reject::MissingItem {
                    item: "stream identifier: remove `stream_id` to receive such packets",
                });
            }
            ([first, ..], Some(_)) => *first,
        };
        let Some(found) = stream.filter(|found| *found != first) else {
            return Ok(0);
        };
        let others = (0..).zip(&self.ids).skip(1);
        let part = others.into_iter().find(|(_, other)| **other == found);
        part.map(|(part, _)| part).ok_or(Reject::OtherStream {
            what: "stream_id",
            found,
            expected: first,
        })
    }

    /// Keeps the values of a context packet, logs changes, and compares them with the configuration.
    #[cold]
    fn read_context(&mut self, prologue: &Prologue, packet: &[u8]) {
        let known = self.ids.first().or(self.first_stream.get());
        let part = match (known, prologue.stream) {
            (None, _) => 0,
            (Some(_), None) => return,
            (Some(_), stream) => match self.part(stream) {
                Ok(part) => part,
                Err(_) => return,
            },
        };
        self.notes.counts.context.add_shared(1);
        let stream = &mut self.streams[part as usize];
        stream.read_context(packet, prologue, &self.notes.source);
        if let Some(layout) = &self.layout {
            self.notes
                .log_contradiction(&stream.context, layout, self.payload, self.rate);
        }
    }

    /// Returns whether packets are numbered by their times.
    fn is_timed(&self) -> bool {
        self.rate.is_some()
    }

    /// Returns the time scale of packets with timestamps since `reference`.
    fn scale(&self, reference: Seconds) -> TimeScale {
        let origin = match reference {
            Seconds::Utc => Some(0),
            Seconds::Gps => Some(GPS_START - u64::from(self.leap_seconds)),
            Seconds::Other | Seconds::None => None,
        };
        TimeScale {
            nanoseconds: 1,
            ticks: 1,
            origin_ns: origin.map(|seconds: u64| seconds * 1_000_000_000),
        }
    }
}

/// Returns the time of `stamp` in nanoseconds after the start of its seconds, rounded down, or `None` if the time is
/// unknown. `rate` is the number of samples in 1,000,000 s.
#[inline]
fn nanoseconds(stamp: &Stamp, rate: Option<u64>) -> Option<u64> {
    let (nanoseconds, ticks) = match (stamp.reference, stamp.unit) {
        (_, Fraction::None) | (Seconds::None, Fraction::Picoseconds) => return None,
        (_, Fraction::Picoseconds) => (1, 1000),
        (_, Fraction::Samples | Fraction::FreeRunning) => (1_000_000_000_000_000, rate?),
    };
    let scale = TimeScale {
        nanoseconds,
        ticks,
        origin_ns: None,
    };
    // A free-running count already contains the seconds.
    let seconds = match stamp.unit {
        Fraction::FreeRunning => 0,
        _ => stamp.seconds,
    };
    Some(scale.ns_after(u64::from(seconds), stamp.fraction))
}

impl Notes {
    fn count_trailer(&self, packet: &[u8], at: usize) {
        let trailer = prologue::word(packet, at).unwrap_or(0);
        // The upper 12 bits state which of the 12 indicators below them are used.
        let indicator = |bit: u32| (trailer >> (bit + 12) & 1 == 1).then_some(trailer >> bit & 1);
        if indicator(18) == Some(0) {
            self.counts.invalid_data.add_shared(1);
        }
        if indicator(13) == Some(1) {
            self.counts.over_range.add_shared(1);
        }
        if indicator(12) == Some(1) {
            self.counts.sample_loss.add_shared(1);
        }
    }

    #[cold]
    fn count_off_grid(&mut self, stamp: &Stamp) {
        self.counts.off_grid.add_shared(1);
        if !std::mem::replace(&mut self.is_off_grid_logged, true) {
            tracing::warn!(
                "source {}: the timestamp of a packet ({} s and {}) is not a whole number of packets after the previous one. \
                 Such packets are rejected unless several in a row are consistent, as after a restart of the sender. If all \
                 packets are affected, check `rate` of `samples` and `payload`; if the sender's timestamps are inexact, raise \
                 `tolerance`. Further such packets are only counted (`off_grid`)",
                self.source,
                stamp.seconds,
                stamp.fraction
            );
        }
    }

    fn count_untimed(&mut self) {
        self.counts.untimed.add_shared(1);
        if !std::mem::replace(&mut self.is_untimed_logged, true) {
            tracing::warn!(
                "source {}: a packet has no timestamp that can number packets, so losses are detected from the 4-bit packet \
                 count: a loss of 16 packets in a row, or of a multiple of 16, is not detected. Further such packets are only \
                 counted (`untimed`)",
                self.source
            );
        }
    }

    /// Logs once if the sender's description of its samples differs from the configuration.
    fn log_contradiction(
        &mut self,
        context: &Context,
        layout: &Layout,
        payload: usize,
        rate: Option<u64>,
    ) {
        if self.is_contradiction_logged {
            return;
        }
        let numbers = layout.points * layout.channels as usize * if layout.complex { 2 } else { 1 };
        let bits = payload * 8 / numbers.max(1);
        if let Some(format) = context.payload_format()
            && !format.agrees(layout, bits)
        {
            self.is_contradiction_logged = true;
            tracing::warn!(
                "source {}: the sender's context states {format} samples, but `samples` declares {}{}: set `samples = {{ {} }}`",
                self.source,
                if layout.complex { "complex " } else { "" },
                layout.scalar,
                format.toml(),
            );
        }
        if let (Some(stated), Some(rate)) = (context.value(SAMPLE_RATE), rate) {
            let declared = rate as f64 / 1e6;
            // The fields of context packets have a resolution of about 1 µHz.
            if (stated - declared).abs() > 1e-5_f64.max(declared * 1e-12) {
                self.is_contradiction_logged = true;
                tracing::warn!(
                    "source {}: the sender's context states a sample rate of {stated} Hz, but `samples` declares {declared} Hz: \
                     set `rate = \"{stated} Hz\"` in `samples`",
                    self.source,
                );
            }
        }
    }
}

impl Vita49 {
    /// Packets of the types 0 and 2 have no stream identifier.
    fn selector(&self) -> Option<Selector> {
        let kinds = Condition {
            offset: 0,
            bytes: 1,
            mask: 0xf0,
            values: [1, 3, 4, 5, 6, 7].map(|kind| kind << 4).into(),
        };
        let ids = Condition {
            offset: 4,
            bytes: 4,
            mask: u32::MAX,
            values: self.ids.to_vec(),
        };
        let streams = StreamIds::new("stream_id", self.ids.iter().copied());
        Selector::new(vec![kinds, ids], streams)
    }

    fn use_samples(&mut self, samples: &Samples) -> Result<(), Problem> {
        let samples = match &self.grouped {
            Some(grouped) => grouped.packet_samples(samples)?,
            None => samples.clone(),
        };
        let layout = samples.layout(self.payload);
        let rate = samples.rate.map(|rate| rate.0).filter(|rate| *rate > 0.0);
        self.layout = layout.as_ref().ok().cloned();
        let Some(rate) = rate else {
            if self.grouped.is_none() {
                return Ok(());
            }
            let message = "the packets of several streams, or of frames of a fixed number of packets, are numbered by their times, \
                           but the sample rate is unknown";
            return Err(Problem::at("samples", message).help("set `rate` in `samples`"));
        };
        let layout = layout.map_err(|rest| {
            let message = format!(
                "a packet of {} bytes does not contain a whole number of samples of all channels: {rest} bytes are left over",
                self.payload
            );
            Problem::at("format.payload", message)
                .help("correct `payload`, or `type`, `complex` or `channels` of `samples`")
        })?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive; saturates"
        )]
        let per_million_seconds = ((rate * 1e6).round() as u64).max(1);
        let packet_ps = layout.points as f64 / rate * 1e12;
        if let Some(tolerance) = self.tolerance
            && tolerance.0 as f64 >= packet_ps / 2.0
        {
            let message = format!(
                "`tolerance` is {tolerance}, but must be shorter than half the duration of a packet, {:.0} ns",
                packet_ps / 2000.0
            );
            return Err(Problem::at("format.tolerance", message).help(
                "set the error of the sender's timestamps; if they are less exact, remove `rate` of `samples`",
            ));
        }
        self.rate = Some(per_million_seconds);
        let samples = grid::Samples {
            per_packet: layout.points as u64,
            per_million_seconds,
            tolerance: self.tolerance.map(|tolerance| tolerance.0),
        };
        Stream::number_by_time(&mut self.streams, samples);
        if let Some(grouped) = &mut self.grouped {
            grouped.settle(self.payload, 0);
        }
        Ok(())
    }
}

impl Parse for Vita49 {
    #[inline]
    fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject> {
        self.check(header, header.len().saturating_add(rest))
    }

    fn packet_len(&self, bytes: &[u8]) -> Option<usize> {
        prologue::packet_len(bytes)
    }

    #[inline]
    fn header_len(&self, _: u32) -> usize {
        self.prologue
    }

    /// The scale of the last packet: only packets state the reference of their timestamps.
    #[inline]
    fn clock(&self) -> Option<PacketClock<'_>> {
        let scale = self.scale(self.reference?);
        Some(PacketClock { scale, wrap: None })
    }

    /// The values are those of the first stream. Negative frequencies are absent.
    fn read_kept(&self, _: &[u8]) -> KeptFields {
        let mut kept = KeptFields::default();
        for (i, value) in self.keep.iter().enumerate() {
            if let Some(hz) = self.streams[0].context.value(value.field().1)
                && hz >= 0.0
            {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "not negative; at most 2^43 Hz"
                )]
                let hz = hz.round() as u64;
                kept.set(i, hz);
            }
        }
        kept
    }
}

impl Build for Vita49 {
    /// The packet has the stream identifier 0 or that of the configuration. Unless the format is [for
    /// sending](Self::for_sending), the timestamp is a free-running count of samples, if the sample rate is known.
    fn build_header(
        &self,
        unit: u64,
        sub: u32,
        timestamp: Option<u64>,
        payload: usize,
        out: &mut Vec<u8>,
    ) {
        let (unit, part) = match &self.grouped {
            Some(grouped) => grouped.number(unit, sub),
            None => (unit, 0),
        };
        let sending = self.sending.as_ref();
        let stamp = match (sending, &self.layout) {
            (Some(sending), _) => sending.stamp(unit, timestamp),
            (None, Some(layout)) if self.is_timed() => Stamp {
                unit: Fraction::FreeRunning,
                fraction: unit.wrapping_mul(layout.points as u64),
                ..Stamp::default()
            },
            _ => Stamp::default(),
        };
        let stream = self.ids.get(part as usize).copied().unwrap_or(0);
        let class = sending.and_then(|sending| sending.class);
        #[expect(clippy::cast_possible_truncation, reason = "4 bits are used")]
        let count = unit as u8 & 0xf;
        prologue::append(SIGNAL_DATA, stream, class, &stamp, count, payload, out);
    }

    fn for_sending(&self, frames: &OutgoingFrames) -> Result<Option<Format>, Problem> {
        let layout = &frames.layout;
        let refused = |key: &str, message: String, help: &str| {
            Err(Problem::at(format!("format.{key}"), message).help(help))
        };
        if !self.payload.is_multiple_of(WORD) {
            let message = format!(
                "packets of VITA 49 consist of words of 4 bytes, so they cannot contain {} bytes of payload",
                self.payload
            );
            return refused("payload", message, "set a multiple of 4 bytes");
        }
        if !frames.is_continuous || layout.order == Order::Planar && layout.channels > 1 {
            let message = "the packets of a receiver do not follow each other in time, so timestamps cannot number them";
            let help = "send all frames to one receiver, or set split = \"channels\"; the order must be interleaved unless a receiver \
                        gets one channel";
            return refused("kind", message.to_owned(), help);
        }
        let Some(rate) = layout.sample_rate() else {
            let message =
                "the sample rate is unknown, so packets have no timestamps that number them";
            let help =
                "set `rate` in `samples` of the source, or use the format \"spead\" or \"raw\"";
            return refused("kind", message.to_owned(), help);
        };
        let mut format = self.clone();
        format.use_samples(&Samples {
            scalar: layout.scalar,
            complex: layout.complex,
            channels: layout.channels,
            order: layout.order,
            rate: Some(Frequency(rate)),
            ..Samples::default()
        })?;
        if let (Some(layout), Some(rate)) = (&format.layout, format.rate) {
            format.sending = Some(Arc::new(Sending::new(layout, rate)));
            format.reference = Some(Seconds::Utc);
        }
        Ok(Some(Format::Vita49(format)))
    }

    /// One context packet, unless VITA 49 does not define the sample type.
    fn describe(
        &self,
        _: &OutgoingFrames,
        unit: u64,
        timestamp: Option<u64>,
        packets: &mut Vec<Vec<u8>>,
    ) {
        if let Some(sending) = &self.sending {
            let stamp = sending.stamp(unit, timestamp);
            sending.describe(self.ids.first().copied().unwrap_or(0), &stamp, packets);
        }
    }
}

impl PacketFormat for Vita49 {
    fn facts(&self) -> FormatFacts {
        // Numbers from timestamps have 64 bits, the packet count has 4.
        let numbering = Numbering {
            width: if self.is_timed() { 64 } else { COUNT_BITS },
            ..Numbering::PLAIN
        };
        let without_rate = "`rate` of `samples` is not set, so packets are numbered by their 4-bit count and not by their \
             timestamps: a loss of 16 packets in a row is not counted";
        let note = (!self.is_timed()).then(|| without_rate.to_owned());
        let kept = self.keep.iter().map(|value| value.field().0.to_owned());
        FormatFacts {
            number_advice: NUMBER_ADVICE,
            part_names: self.ids.iter().map(|id| format!("{id:#x}")).collect(),
            selector: self.selector(),
            // The payload ends at a whole word.
            trailer: self.payload.next_multiple_of(WORD) - self.payload,
            kept: kept.collect(),
            notes: note.into_iter().collect(),
            counts: vec![StreamCounts::SET],
            ..StreamFrames::facts(self.grouped.as_ref(), self.payload, numbering)
        }
    }

    fn use_source(&mut self, source: &SourceOfFormat<'_>) -> Result<(), Problem> {
        self.use_samples(source.samples)
    }

    fn start(&mut self, name: &str, counts: &Counts) {
        self.first_stream = Arc::default();
        for stream in &mut self.streams {
            stream.forget_context();
        }
        *self.notes = Notes {
            source: name.to_owned(),
            counts: StreamCounts::of(counts),
            ..Notes::default()
        };
    }
}

#[cfg(test)]
mod tests;
