//! `vita49`: signal data packets of VITA 49 (VRT), also with the profile DIFI.
//!
//! ```text
//!   | prologue: type, count, size, stream identifier, class, timestamp | payload | trailer |
//! ```
//! One packet is one unit. The 4-bit packet count cannot show a loss of 16 packets, so the number of a packet follows from
//! its timestamp, see `grid.rs`. If the sample rate is unknown, the number is the packet count.
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
mod sending;

pub use config::{KeptValue, Vita49Config};

use super::{
    Control, Format, FormatEntry, Numbering, Packet, PacketFormat, PacketLayout, Parsed, Reject,
    Split, TimeScale, section,
};
use context::{Context, SAMPLE_RATE};
use daq_core::config::Problem;
use daq_core::counts;
use daq_core::frame::KeptFields;
use daq_core::layout::{Layout, Order, Samples};
use daq_core::ledger::Counts;
use daq_core::outgoing::OutgoingFrames;
use daq_core::units::{Frequency, Period};
use grid::Grids;
use prologue::{Fraction, Kind, MAX_PROLOGUE, Prologue, SIGNAL_DATA, Seconds, Stamp, WORD};
use rate::RateWatch;
use schemars::JsonSchema;
use sending::Sending;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The registry entry of this format.
pub(super) const ENTRY: FormatEntry = FormatEntry {
    name: "vita49",
    summary: "Signal data packets of VITA 49.0 and 49.2 (VRT, DIFI), numbered by their timestamps",
    example: r#"kind      = "vita49"
payload   = "4 KiB"       # of each packet, without header and trailer
# stream_id = 0x2a        # accept only this stream; by default the stream of the first packet
# tolerance = "10 ns"     # maximum error of the sender's timestamps; by default half a sample
# leap_seconds = 18       # GPS time minus UTC, for GPS timestamps
# keep = ["rf_frequency"] # values of context packets that frames keep
"#,
    schema: Vita49Config::json_schema,
    parse: |table, diagnostics| section::finish(table, diagnostics, Vita49Config::build),
};

/// Seconds from 1970-01-01 to 1980-01-06, the start of GPS time.
const GPS_START: u64 = 315_964_800;
/// Number of picoseconds per second.
const SECOND: u64 = 1_000_000_000_000;
/// Number of bits of the packet count.
const COUNT_BITS: u32 = 4;
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
    stream_id: Option<u32>,
    /// The stream of the first packet, for all threads.
    first_stream: Arc<OnceLock<u32>>,
    tolerance: Option<Period>,
    leap_seconds: u32,
    /// Number of samples in 1,000,000 s, if the sample rate is known.
    rate: Option<u64>,
    /// The numbering by timestamps, if the sample rate is known.
    grids: Option<Box<Grids>>,
    /// Detects another sample rate, if the sample rate is known.
    watch: Option<Box<RateWatch>>,
    layout: Option<Layout>,
    /// Reference of the last packet's time, if it had one.
    reference: Option<Seconds>,
    /// Size of the last packet's prologue in bytes.
    prologue: usize,
    /// Number of the last packet.
    last: Option<u64>,
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
    context: Context,
    /// The values that were logged last, and when.
    logged: Option<(Context, Instant)>,
    is_contradiction_logged: bool,
    is_off_grid_logged: bool,
    is_untimed_logged: bool,
}

impl Vita49 {
    /// Returns the format of packets with `payload` bytes of payload. Until [`PacketFormat::use_samples`] is called with a
    /// sample rate, packets are numbered by their 4-bit count.
    fn new(
        payload: usize,
        stream_id: Option<u32>,
        tolerance: Option<Period>,
        leap_seconds: u32,
    ) -> Self {
        Self {
            payload,
            stream_id,
            first_stream: Arc::default(),
            tolerance,
            leap_seconds,
            rate: None,
            grids: None,
            watch: None,
            layout: None,
            reference: None,
            prologue: MAX_PROLOGUE,
            last: None,
            keep: Vec::new(),
            sending: None,
            notes: Box::default(),
        }
    }

    /// Lets frames keep the values `keep` of context packets.
    fn keeping(self, keep: Vec<KeptValue>) -> Self {
        Self { keep, ..self }
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
        self.check_stream(prologue.stream)?;
        let stamp = &prologue.stamp;
        if stamp.unit == Fraction::Picoseconds && stamp.fraction >= SECOND {
            return Err(PICOSECONDS);
        }
        if self.is_other_rate(stamp, prologue.count) {
            return Err(OTHER_RATE);
        }
        self.prologue = bytes;
        let timestamp = nanoseconds(stamp, self.rate);
        self.reference = timestamp.map(|_| stamp.reference);
        let unit = self.number(stamp, prologue.count);
        if self.watch.as_ref().is_some_and(|watch| watch.is_other()) {
            return Err(OTHER_RATE);
        }
        if prologue.trailer > 0 && self.last != Some(unit) {
            self.notes.count_trailer(header, packet - WORD);
        }
        self.last = Some(unit);
        Ok(Split::Whole(Parsed::Data(Packet {
            unit,
            sub: 0,
            payload,
            timestamp,
        })))
    }

    /// Rejects packets of another stream than the configured one, or than the first one.
    #[inline]
    fn check_stream(&self, stream: Option<u32>) -> Result<(), Reject> {
        let expected = match (self.stream_id, stream) {
            (None, None) => return Ok(()),
            (None, Some(found)) => *self.first_stream.get_or_init(|| found),
            (Some(_), None) => {
                return Err(Reject::MissingItem {
                    item: "stream identifier: remove `stream_id` to receive such packets",
                });
            }
            (Some(expected), Some(_)) => expected,
        };
        match stream {
            Some(found) if found != expected => Err(Reject::OtherStream {
                what: "stream_id",
                found,
                expected,
            }),
            _ => Ok(()),
        }
    }

    /// Returns whether the packet continues a stream of another sample rate.
    #[inline]
    fn is_other_rate(&mut self, stamp: &Stamp, count: u8) -> bool {
        let Some(watch) = self.watch.as_mut().filter(|watch| watch.is_other()) else {
            return false;
        };
        watch.observe(stamp, count);
        watch.is_other()
    }

    /// Returns the number of the packet with `stamp` and `count`.
    #[inline]
    fn number(&mut self, stamp: &Stamp, count: u8) -> u64 {
        let Some(grids) = &mut self.grids else {
            return u64::from(count);
        };
        let Some(numbered) = grids.number(stamp, count) else {
            return self.number_by_count(count);
        };
        if (!numbered.agrees || numbered.is_off_grid)
            && let Some(watch) = &mut self.watch
        {
            watch.observe(stamp, count);
        }
        if !numbered.agrees {
            self.notes.counts.count_mismatch.add_shared(1);
        }
        if numbered.is_off_grid {
            self.notes.count_off_grid(stamp);
        }
        numbered.number
    }

    /// Returns the number with `count` that is nearest to the last number, because the packet has no usable timestamp.
    #[cold]
    fn number_by_count(&mut self, count: u8) -> u64 {
        let last = self.last.unwrap_or(u64::from(count));
        let ahead = u64::from(count).wrapping_sub(last) & 0xf;
        let number = last.wrapping_add(ahead);
        let number = if ahead < 8 {
            number
        } else {
            number.wrapping_sub(16)
        };
        if self.last != Some(number) {
            self.notes.count_untimed();
        }
        number
    }

    /// Keeps the values of a context packet, logs changes, and compares them with the configuration.
    #[cold]
    fn read_context(&mut self, prologue: &Prologue, packet: &[u8]) {
        let expected = self.stream_id.or(self.first_stream.get().copied());
        if expected.is_some_and(|expected| prologue.stream != Some(expected)) {
            return;
        }
        let notes = &mut self.notes;
        notes.counts.context.add_shared(1);
        let before = notes.context.value(SAMPLE_RATE);
        notes.context.read(packet, prologue.bytes);
        if let Some(watch) = &self.watch {
            watch.state(before, notes.context.value(SAMPLE_RATE));
        }
        notes.log_context(prologue.stream);
        if let Some(layout) = &self.layout {
            notes.log_contradiction(layout, self.payload, self.rate);
        }
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

    /// Logs values that have changed, at most once per second.
    fn log_context(&mut self, stream: Option<u32>) {
        let now = Instant::now();
        let unknown = Context::default();
        let before = match &self.logged {
            Some((before, _)) if *before == self.context => return,
            Some((_, when)) if now.saturating_duration_since(*when) < LOG_PERIOD => return,
            Some((before, _)) => before,
            None => &unknown,
        };
        let changes = self.context.changes(before);
        if !changes.is_empty() {
            let stream = stream.unwrap_or(0);
            tracing::info!(
                "source {}: context of stream {stream:#x}: {changes}",
                self.source
            );
            self.logged = Some((self.context.clone(), now));
        }
    }

    /// Logs once if the sender's description of its samples differs from the configuration.
    fn log_contradiction(&mut self, layout: &Layout, payload: usize, rate: Option<u64>) {
        if self.is_contradiction_logged {
            return;
        }
        let numbers = layout.points * layout.channels as usize * if layout.complex { 2 } else { 1 };
        let bits = payload * 8 / numbers.max(1);
        if let Some(format) = self.context.payload_format()
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
        if let (Some(stated), Some(rate)) = (self.context.value(SAMPLE_RATE), rate) {
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

impl PacketFormat for Vita49 {
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

    /// Numbers from timestamps have 64 bits, the packet count has 4.
    fn numbering(&self) -> Numbering {
        Numbering {
            width: if self.grids.is_some() { 64 } else { COUNT_BITS },
            ..Numbering::PLAIN
        }
    }

    fn packet_layout(&self) -> PacketLayout {
        PacketLayout::single(self.payload)
    }

    fn unit_key(&self) -> &'static str {
        "payload"
    }

    /// The scale of the last packet: only packets state the reference of their timestamps.
    #[inline]
    fn time_scale(&self) -> Option<TimeScale> {
        self.reference.map(|reference| self.scale(reference))
    }

    fn kept(&self) -> Vec<String> {
        let names = self.keep.iter().map(|value| value.field().0.to_owned());
        names.collect()
    }

    /// Negative frequencies are absent.
    fn read_kept(&self, _: &[u8]) -> KeptFields {
        let mut kept = KeptFields::default();
        for (i, value) in self.keep.iter().enumerate() {
            if let Some(hz) = self.notes.context.value(value.field().1)
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

    fn use_samples(&mut self, samples: &Samples) -> Result<(), Problem> {
        let layout = samples.layout(self.payload);
        let rate = samples.rate.map(|rate| rate.0).filter(|rate| *rate > 0.0);
        self.layout = layout.as_ref().ok().cloned();
        let Some(rate) = rate else { return Ok(()) };
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
        self.grids = Some(Box::new(Grids::new(samples)));
        self.watch = Some(Box::new(RateWatch::new(samples)));
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let without_rate = "`rate` of `samples` is not set, so packets are numbered by their 4-bit count and not by their \
             timestamps: a loss of 16 packets in a row is not counted";
        let note = self.grids.is_none().then(|| without_rate.to_owned());
        note.into_iter().collect()
    }

    fn counts(&self) -> &'static [&'static str] {
        StreamCounts::NAMES
    }

    fn start(&mut self, name: &str, counts: &Counts) {
        self.first_stream = Arc::default();
        *self.notes = Notes {
            source: name.to_owned(),
            counts: StreamCounts::of(counts),
            ..Notes::default()
        };
    }

    /// The packet has the stream identifier 0 or that of the configuration. Unless the format is [for
    /// sending](Self::for_sending), the timestamp is a free-running count of samples, if the sample rate is known.
    fn build_header(
        &self,
        unit: u64,
        _: u32,
        timestamp: Option<u64>,
        payload: usize,
        out: &mut Vec<u8>,
    ) {
        let sending = self.sending.as_ref();
        let stamp = match (sending, &self.layout) {
            (Some(sending), _) => sending.stamp(unit, timestamp),
            (None, Some(layout)) if self.grids.is_some() => Stamp {
                unit: Fraction::FreeRunning,
                fraction: unit.wrapping_mul(layout.points as u64),
                ..Stamp::default()
            },
            _ => Stamp::default(),
        };
        let stream = self.stream_id.unwrap_or(0);
        let class = sending.and_then(|sending| sending.class);
        #[expect(clippy::cast_possible_truncation, reason = "4 bits are used")]
        let count = unit as u8 & 0xf;
        prologue::append(SIGNAL_DATA, stream, class, &stamp, count, payload, out);
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
            sending.describe(self.stream_id.unwrap_or(0), &stamp, packets);
        }
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
        })?;
        if let (Some(layout), Some(rate)) = (&format.layout, format.rate) {
            format.sending = Some(Arc::new(Sending::new(layout, rate)));
            format.reference = Some(Seconds::Utc);
        }
        Ok(Some(Format::Vita49(format)))
    }

    /// The payload ends at a whole word.
    fn trailer_len(&self) -> usize {
        self.payload.next_multiple_of(WORD) - self.payload
    }

    fn boxed_clone(&self) -> Box<dyn PacketFormat> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests;
