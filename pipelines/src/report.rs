//! Formats reports as text: the final ledger, the live block and the status line.

mod block;
mod ledger;

pub use block::block;
pub use ledger::ledger;

use daq_core::ledger::{LatencyReport, Report};
use daq_core::units::ByteSize;
use std::cmp::Ordering;
use std::fmt::Display;
use std::time::Duration;

/// Returns `SEPARATOR NAME NUMBER` for each number above 0.
fn above_zero<N: Display>(separator: &str, numbers: impl IntoIterator<Item = (N, u64)>) -> String {
    let numbers = numbers.into_iter().filter(|(_, number)| *number > 0);
    let parts = numbers.map(|(name, number)| format!("{separator}{name} {number}"));
    parts.collect()
}

/// Returns the mean size of the copies in a report.
fn mean_size(bytes: u64, copies: u64) -> ByteSize {
    ByteSize(bytes.checked_div(copies).unwrap_or(0)).rounded()
}

/// Compares names as a reader sorts them: groups of digits are numbers, so that `9` precedes `10`.
fn numeric_order(a: &str, b: &str) -> Ordering {
    numeric_key(a).cmp(&numeric_key(b)).then_with(|| a.cmp(b))
}

/// Returns the groups of digits and of other characters in `name`, so that keys can be compared. Zeros at the start of numbers
/// are omitted.
fn numeric_key(name: &str) -> Vec<(bool, usize, &str)> {
    let groups = name
        .as_bytes()
        .chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
    let mut start = 0;
    let keys = groups.map(|group| {
        let text = &name[start..start + group.len()];
        start += group.len();
        if group[0].is_ascii_digit() {
            let digits = text.trim_start_matches('0');
            (false, digits.len(), digits)
        } else {
            (true, 0, text)
        }
    });
    keys.collect()
}

/// Returns the percentage of `seconds` that `busy_ns` represents, at most 100. Work is counted when it is complete.
/// Therefore the time counted in a short interval can be longer than the interval.
fn percent(busy_ns: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        (busy_ns as f64 / 1e9 / seconds * 100.0).min(100.0)
    } else {
        0.0
    }
}

/// Returns a status line with the total rate of all sources since `before`, the loss state, and the sinks that accept
/// no frames.
///
/// ```
/// use daq_core::ledger::{Report, SourceReport};
/// use daq_pipelines::report::status_line;
/// let mut now = Report { seconds: 2.0, ..Report::default() };
/// let source = SourceReport { expected: 4, delivered: 3, lost: [("late", 1)].into(), bytes: 1000, ..Default::default() };
/// now.sources.insert("adc".to_owned(), source);
/// assert_eq!(status_line(&now, &Report::default()), "4 kbit/s, lost 1 of 4 packets (late 1)");
/// ```
pub fn status_line(now: &Report, before: &Report) -> String {
    let bytes = |report: &Report| {
        report
            .sources
            .values()
            .map(|source| source.bytes)
            .sum::<u64>()
    };
    let seconds = now.seconds - before.seconds;
    let bits = bytes(now).saturating_sub(bytes(before)) as f64 * 8.0;
    let rate = if seconds > 0.0 { bits / seconds } else { 0.0 };
    let mut parts = vec![shown_rate(rate), now.loss().to_string()];
    let full = now.sinks.iter().filter(|(_, sink)| sink.full);
    parts.extend(full.map(|(name, _)| format!("{name}: accepts no frames")));
    parts.join(", ")
}

/// Formats a rate of `bits` per second with three significant digits, because further digits change too fast to read.
pub fn shown_rate(bits: f64) -> String {
    let (number, prefix) = significant(bits);
    format!("{number} {prefix}bit/s")
}

/// Formats the latencies of a ring or reader as the end of a line; empty without measured frames.
fn shown_latency(latency: &LatencyReport) -> String {
    let quantiles = latency.quantile(0.5).zip(latency.quantile(0.99));
    quantiles.map_or_else(String::new, |(median, high)| {
        let (median, high) = (shown_time(median), shown_time(high));
        format!("; latency {median} (median), {high} (99 %)")
    })
}

/// Formats a duration with three significant digits.
pub fn shown_time(duration: Duration) -> String {
    let ns = duration.as_nanos() as f64;
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")];
    let unit = units.into_iter().find(|(size, _)| ns >= 0.9995 * size);
    let (size, unit) = unit.unwrap_or((1.0, "ns"));
    format!("{} {unit}", significant(ns / size).0)
}

/// Formats a number with three significant digits and a letter for its factor, such as `12.3k`.
pub fn shown_scaled(number: f64) -> String {
    let (number, prefix) = significant(number);
    format!("{number}{prefix}")
}

/// Returns a number with three significant digits, and the prefix of its unit.
fn significant(number: f64) -> (String, &'static str) {
    let prefixes = ["", "k", "M", "G", "T"];
    let (mut scaled, mut prefix) = (number.max(0.0), 0);
    while scaled >= 999.5 && prefix + 1 < prefixes.len() {
        scaled /= 1000.0;
        prefix += 1;
    }
    let text = match scaled {
        99.95.. => format!("{scaled:.0}"),
        9.995.. => format!("{scaled:.1}"),
        _ => format!("{scaled:.2}"),
    };
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    (text.to_owned(), prefixes[prefix])
}

#[cfg(test)]
pub(crate) mod tests;
