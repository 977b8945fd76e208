//! The lines of the live block.

use super::{above_zero, mean_size, percent, shown_rate, shown_scaled};
use crate::console::{Estimate, bar};
use daq_core::gpu::Dispatch;
use daq_core::ledger::{
    CopyReport, DeviceReport, KernelReport, PlaybackReport, ReaderReport, Report, RingReport,
    SinkReport, SourceReport,
};
use daq_core::units::{ByteSize, counted};
use std::time::Duration;

/// Returns the lines of the live block. Rates are those since the report `before`, which was made `passed` earlier.
pub fn block(now: &Report, before: &Report, passed: Duration) -> Vec<String> {
    let names = now
        .sources
        .keys()
        .chain(now.rings.keys())
        .chain(now.kernels.keys())
        .chain(now.sinks.keys());
    let width = names.map(String::len).max().unwrap_or(0).min(24);
    let seconds = passed.as_secs_f64();
    let mut lines = Vec::new();
    let mut add = |kind: &str, name: &str, text: String| {
        lines.push(format!("{kind:<6} {name:<width$}  {text}"));
    };
    for (name, report) in &now.sources {
        add(
            "source",
            name,
            source(report, before.sources.get(name), seconds),
        );
        if let Some(playback) = &report.playback {
            add("replay", name, replay(*playback, now.seconds));
        }
    }
    for (name, report) in &now.rings {
        let readers = now.readers.values();
        let readers = readers.filter(|r| r.ring == *name && r.process.is_none());
        let waiting = readers.map(|reader| reader.pending).max().unwrap_or(0);
        add("ring", name, ring(report, waiting.min(report.capacity)));
    }
    let lag = |reader: &str| now.readers.get(reader).map_or(0, |reader| reader.pending);
    for (name, report) in &now.copies {
        let text = copy(report, before.copies.get(name), seconds);
        let lag = lag(&format!("copy to {name}"));
        add("copy", name, format!("{text}  lag {lag}"));
    }
    for (name, report) in &now.kernels {
        let old = before.kernels.get(name).and_then(|kernel| kernel.device);
        add("kernel", name, kernel(report, old, lag(name), seconds));
    }
    for (name, report) in &now.sinks {
        add("sink", name, sink(report, now.readers.get(name)));
    }
    lines
}

fn source(source: &SourceReport, old: Option<&SourceReport>, seconds: f64) -> String {
    let rate = |of: fn(&SourceReport) -> u64| {
        of(source).saturating_sub(old.map_or(0, of)) as f64 / seconds
    };
    let bits = shown_rate(rate(|source| source.bytes) * 8.0);
    let packets = rate(|source| source.delivered);
    let epochs = match source.epochs {
        epochs @ 2.. => format!(", epochs {epochs}"),
        _ => String::new(),
    };
    let (unit, loss) = (source.unit(), source.loss());
    let packets = shown_scaled(packets);
    format!("{bits:>11}  {packets:>5} {unit}/s  {loss}{epochs}")
}

/// Formats how much of a recording is replayed after `seconds` of the run.
fn replay(playback: PlaybackReport, seconds: f64) -> String {
    let elapsed = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let estimate = Estimate::of_amount(playback.bytes, playback.total_bytes, elapsed);
    if playback.repeats {
        let pass = Estimate {
            remaining: None,
            ..estimate
        };
        return format!("{pass} of this pass");
    }
    estimate.to_string()
}

fn ring(ring: &RingReport, waiting: u64) -> String {
    format!(
        "{}  {waiting:>4} of {} waiting, max {}{}",
        bar(waiting, ring.capacity),
        ring.capacity,
        ring.high_water,
        above_zero("  ", [("refused", ring.ring_full)])
    )
}

/// Formats the activity of a copy since the report `old`: rate, mean size, copies in flight and failed copies.
fn copy(copy: &CopyReport, old: Option<&CopyReport>, seconds: f64) -> String {
    let bytes = copy.bytes.saturating_sub(old.map_or(0, |old| old.bytes));
    let copies = copy.copies.saturating_sub(old.map_or(0, |old| old.copies));
    format!(
        "{:>11}  {:>7} frames  {:>8} per copy  {} in flight{}",
        shown_rate(bytes as f64 * 8.0 / seconds),
        copy.frames,
        mean_size(bytes, copies),
        copy.in_flight,
        above_zero("  ", [("failed", copy.failed)])
    )
}

fn kernel(kernel: &KernelReport, old: Option<DeviceReport>, lag: u64, seconds: f64) -> String {
    let launched = |device: &DeviceReport| device.dispatch == Dispatch::Launch;
    let gpu = kernel.device.filter(launched).map(|device| {
        let busy = device
            .busy_ns
            .saturating_sub(old.unwrap_or_default().busy_ns);
        format!("  GPU busy {:3.0} %", percent(busy, seconds))
    });
    format!(
        "{:>9} in  {:>9} out  lag {lag}{}{}",
        kernel.input,
        kernel.produced,
        gpu.unwrap_or_default(),
        above_zero("  ", [("failed", kernel.failed)])
    )
}

fn sink(sink: &SinkReport, reader: Option<&ReaderReport>) -> String {
    let lag = reader.map(|reader| {
        let overrun = above_zero("  ", [("overrun", reader.overrun)]);
        format!("  lag {}{overrun}", reader.pending)
    });
    format!(
        "{:>9} frames  {:>10}  {}{}{}{}",
        sink.frames,
        ByteSize(sink.bytes).rounded(),
        counted(sink.files, "file"),
        lag.unwrap_or_default(),
        above_zero("  ", [("dropped", sink.dropped), ("lost", sink.lost)]),
        if sink.full { "  NO SPACE" } else { "" }
    )
}
