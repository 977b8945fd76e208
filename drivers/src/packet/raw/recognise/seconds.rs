//! Times of two parts in a header: whole seconds, and a number of ticks that starts again with each second.
//!
//! Read as one number, such a time grows by a regular step only within a second, so it cannot number packets as it is.

use super::fixed::dotted;
use super::headers::Headers;
use crate::packet::field::{Endian, FieldKeys};
use crate::packet::recognise::{Key, Numbering, Place};

/// Size of each part in bytes.
const PART: usize = 4;
/// Units of the ticks: their number per second, and the value of the key `tick`.
const UNITS: [(u64, &str); 3] = [
    (1_000, "1 ms"),
    (1_000_000, "1 us"),
    (1_000_000_000, "1 ns"),
];
/// Maximum number of steps from the last packet of a second to the first one of the next.
const MAX_STEPS: u64 = 256;
/// Minimum share in percent of the ends of seconds at which the time grows by whole steps.
const MIN_REGULAR: usize = 80;

/// A time of two parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitTime {
    pub(super) seconds: FieldKeys,
    pub(super) ticks: FieldKeys,
    /// Number of ticks per second.
    pub(super) per_second: u64,
    tick: &'static str,
    /// Whether the seconds are the time since 1970.
    is_utc: bool,
}

impl SplitTime {
    /// Returns the time whose ticks are in the lowest bytes of `number` and grow by `step` from packet to packet. The seconds are
    /// next to them.
    pub(super) fn find(headers: &Headers<'_>, number: &FieldKeys, step: u64) -> Option<Self> {
        let ticks = lowest(number)?;
        let before = ticks.offset.checked_sub(PART);
        let beside = [before, Some(ticks.end())];
        // The most significant part is the most likely one, which precedes the ticks in network byte order.
        let seconds = beside
            .into_iter()
            .flatten()
            .map(|offset| FieldKeys { offset, ..ticks });
        let mut found = seconds.filter_map(|seconds| Self::of(headers, seconds, ticks, step));
        found.next()
    }

    fn of(headers: &Headers<'_>, seconds: FieldKeys, ticks: FieldKeys, step: u64) -> Option<Self> {
        if seconds.end() > headers.end() {
            return None;
        }
        let (whole, parts) = (headers.values(&seconds), headers.values(&ticks));
        let times: Vec<(u64, u64)> = whole.into_iter().zip(parts).collect();
        let highest = times.iter().map(|(_, ticks)| *ticks).max()?;
        let is_utc = headers.is_seconds(&seconds);
        let ends = times.windows(2).filter(|pair| pair[0].0 != pair[1].0);
        let ends: Vec<_> = ends.map(|pair| (pair[0], pair[1])).collect();
        let mut units = UNITS.iter().filter(|(per_second, _)| highest < *per_second);
        let (per_second, tick) = if ends.is_empty() {
            // No second ends, so only the time of capture shows that this is a time, and its unit.
            let is_fast = |per_second: u64| headers.grows_with(&ticks, per_second as f64);
            units.find(|(per_second, _)| is_utc && is_fast(*per_second))?
        } else {
            units.find(|(per_second, _)| is_regular(&ends, *per_second, step))?
        };
        Some(Self {
            seconds,
            ticks,
            per_second: *per_second,
            tick,
            is_utc,
        })
    }

    /// Returns the range of the ticks, if they can number packets: a second is then a whole number of steps.
    pub(super) fn range(&self, step: u64) -> Option<[u64; 2]> {
        let is_whole = self.per_second.is_multiple_of(step.max(1));
        is_whole.then_some([0, self.per_second - 1])
    }

    /// Returns the place of a packet with this header in a run of whole times.
    pub(super) fn place(&self, head: &[u8]) -> Option<Place> {
        let seconds = self.seconds.read(head)?;
        let ticks = self.ticks.read(head)?;
        Some(Place::of(seconds * self.per_second + ticks))
    }

    /// Returns how [`place`](Self::place) numbers packets.
    pub(super) const fn numbering(step: u64) -> Numbering {
        Numbering {
            step,
            ..Numbering::PLAIN
        }
    }

    /// Returns the time in words.
    pub(super) fn words(&self) -> String {
        format!(
            "{} and {} are a time: whole seconds, and ticks of {}",
            self.seconds.words(),
            self.ticks.words(),
            self.tick
        )
    }

    pub(super) fn overlaps(&self, field: &FieldKeys) -> bool {
        self.seconds.overlaps(field) || self.ticks.overlaps(field)
    }

    /// Returns the first byte after the time.
    pub(super) fn end(&self) -> usize {
        self.seconds.end().max(self.ticks.end())
    }

    /// Returns the keys of the timestamp. A table in one line would be too long for a terminal.
    pub(super) fn key(&self) -> Key {
        let mut lines = dotted("timestamp", &self.ticks.to_string());
        lines.push(format!("timestamp.tick = \"{}\"", self.tick));
        lines.push(format!("timestamp.seconds = {{ {} }}", self.seconds));
        if self.is_utc {
            lines.push("timestamp.origin = \"1970-01-01T00:00:00Z\"".to_owned());
        }
        Key::new(lines.join("\n"), format!("{}:", self.words()))
    }
}

/// Returns the field of the lowest [`PART`] bytes of `number`; `None` if it has fewer bytes.
fn lowest(number: &FieldKeys) -> Option<FieldKeys> {
    let more = number.bytes.checked_sub(PART)?;
    Some(match number.endian.unwrap_or_default() {
        Endian::Big => FieldKeys::big(number.offset + more, PART),
        Endian::Little => FieldKeys::little(number.offset, PART),
    })
}

/// A second and the ticks in it.
type Time = (u64, u64);

/// Returns whether the time grows by few whole steps at the `ends` of seconds.
fn is_regular(ends: &[(Time, Time)], per_second: u64, step: u64) -> bool {
    let grows = |((second, ticks), (next, later)): &(Time, Time)| {
        let seconds = next.wrapping_sub(*second);
        let time = seconds.checked_mul(per_second)?.checked_add(*later)?;
        let grown = time.checked_sub(*ticks)?;
        Some(grown.is_multiple_of(step) && grown / step <= MAX_STEPS)
    };
    let regular = ends.iter().filter(|end| grows(end) == Some(true)).count();
    step > 0 && regular * 100 >= ends.len() * MIN_REGULAR
}
