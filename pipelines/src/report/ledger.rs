//! The final ledger as text. A counter without a place of its own in the line of its component is added to the line if
//! it is above 0, so that every counter is shown.

use super::{above_zero, mean_size, numeric_order, percent, shown_latency, shown_rate};
use daq_core::gpu::Dispatch;
use daq_core::ledger::{
    ClientsReport, CopyReport, DeviceReport, EngineReport, KernelReport, ReaderReport, Report,
    RingReport, SinkReport, SourceReport,
};
use daq_core::units::counted;
use std::collections::BTreeMap;

/// Formats the final ledger as text, with one line per component.
pub fn ledger(report: &Report) -> String {
    let mut lines = Vec::new();
    for (name, report) in &report.sources {
        lines.push(source(name, report));
        let mut parts: Vec<_> = report.parts.iter().collect();
        parts.sort_by(|(a, _), (b, _)| numeric_order(a, b));
        for (part, counts) in parts {
            let counts = others(counts.counters(), &[]);
            let counts = match counts.trim_start_matches(", ") {
                "" => "no packets",
                counts => counts,
            };
            lines.push(format!("part {part} of source {name}: {counts}"));
        }
    }
    lines.extend(report.rings.iter().map(|(name, r)| ring(name, r)));
    lines.extend(report.copies.iter().map(|(name, c)| copy(name, c)));
    let kernels = report.kernels.iter();
    lines.extend(kernels.map(|(name, k)| kernel(name, k, report.seconds)));
    // There can be hundreds of clients, so only their sums are shown.
    let readers = report.readers.iter();
    let readers = readers.filter(|(_, reader)| reader.process.is_none());
    lines.extend(readers.map(|(name, r)| reader(name, r)));
    lines.extend(report.clients.iter().map(|(name, c)| clients(name, c)));
    lines.extend(report.sinks.iter().map(|(name, s)| sink(name, s)));
    lines.push(format!("{:.3} seconds\n", report.seconds));
    lines.join("\n")
}

/// Returns the counters above 0 that are not in `shown`.
fn others(counters: Vec<(&'static str, u64)>, shown: &[&str]) -> String {
    let others = counters.into_iter();
    let others = others.filter(|(name, _)| !shown.contains(name));
    let others = others.map(|(name, number)| match name {
        "control" => ("control packets".to_owned(), number),
        name => (name.replace('_', " "), number),
    });
    above_zero(", ", others)
}

fn by_name(separator: &str, numbers: &BTreeMap<&'static str, u64>) -> String {
    above_zero(separator, numbers.iter().map(|(name, n)| (*name, *n)))
}

fn source(name: &str, source: &SourceReport) -> String {
    // The loss names incomplete frames.
    let shown = [
        "expected",
        "delivered",
        "lost",
        "incomplete",
        "bytes",
        "epochs",
    ];
    let restarted = Some(source.epochs).filter(|epochs| *epochs > 1);
    let engine = source.engine.as_ref().map(engine);
    let counts = above_zero(", ", source.counts.counters());
    format!(
        "source {name}: {}; expected {}, delivered {}, pending {}{}{}{}{} ({} bytes){}",
        source.loss(),
        source.expected,
        source.delivered,
        source.pending,
        by_name(", lost to ", &source.lost),
        others(source.counters(), &shown),
        above_zero(", ", restarted.map(|epochs| ("epochs", epochs))),
        engine.unwrap_or_default(),
        source.bytes,
        counts.replacen(',', "; counts", 1),
    )
}

fn engine(engine: &EngineReport) -> String {
    format!(
        ", path {}{}{}",
        engine.path.name(),
        by_name(", fault ", &engine.faults),
        others(engine.counters(), &["path"])
    )
}

fn ring(name: &str, ring: &RingReport) -> String {
    let shown = ["capacity", "high_water", "published", "ring_full"];
    format!(
        "ring {name}: produced {}, published {}, refused {}; max in use {} of {}{}{}",
        ring.produced,
        ring.published,
        ring.ring_full,
        ring.high_water,
        ring.capacity,
        others(ring.counters(), &shown),
        shown_latency(&ring.latency)
    )
}

fn copy(name: &str, copy: &CopyReport) -> String {
    let stored = if copy.stored > 0 {
        format!(" ({} stored by the CPU)", copy.stored)
    } else {
        String::new()
    };
    let rate = if copy.busy_ns > 0 {
        copy.bytes as f64 * 8e9 / copy.busy_ns as f64
    } else {
        0.0
    };
    let shown = [
        "started",
        "frames",
        "failed",
        "stored",
        "copies",
        "bytes",
        "in_flight",
        "busy_ns",
        "sizes",
    ];
    format!(
        "copy to {name} from {}: started {}, frames {}{stored}, failed {}, pending {}; copies {}, bytes {}, \
         mean size {}, in flight {}; busy {:.3} s at {}{}",
        copy.from,
        copy.started,
        copy.frames,
        copy.failed,
        copy.pending,
        copy.copies,
        copy.bytes,
        mean_size(copy.bytes, copy.copies),
        copy.in_flight,
        copy.busy_ns as f64 / 1e9,
        shown_rate(rate),
        others(copy.counters(), &shown)
    )
}

fn kernel(name: &str, kernel: &KernelReport, seconds: f64) -> String {
    let device = kernel.device.map(|device| on_gpu(&device, seconds));
    let shown = ["input", "accumulating", "consumed", "failed", "produced"];
    format!(
        "kernel {name}: in {}, consumed {}, accumulating {}, failed {}, pending {}; produced {}{}{}",
        kernel.input,
        kernel.consumed,
        kernel.accumulating,
        kernel.failed,
        kernel.pending,
        kernel.produced,
        others(kernel.counters(), &shown),
        device.unwrap_or_default()
    )
}

/// Describes the GPU use of a kernel during a run of `seconds`.
fn on_gpu(device: &DeviceReport, seconds: f64) -> String {
    let cost = match device.dispatch {
        Dispatch::Launch => format!(
            "launches {}, GPU busy {:.3} s ({:.1} % of the run), gaps {:.3} s",
            device.launches,
            device.busy_ns as f64 / 1e9,
            percent(device.busy_ns, seconds),
            device.gap_ns as f64 / 1e9,
        ),
        Dispatch::Persistent => "persistent".to_owned(),
    };
    let shown = ["launches", "busy_ns", "gap_ns", "occupancy_ppm"];
    let occupancy = device.occupancy_ppm as f64 / 1e4;
    let others = others(device.counters(), &shown);
    format!("; {cost}, occupancy {occupancy:.1} %{others}")
}

fn reader(name: &str, reader: &ReaderReport) -> String {
    let blocked = if reader.blocked > 0 {
        format!(", blocked {}", counted(reader.blocked, "frame"))
    } else {
        String::new()
    };
    let shown = [
        "read",
        "overrun",
        "discarded",
        "dropped_incomplete",
        "blocked",
    ];
    format!(
        "reader {name} of {}: published {}, read {}, overrun {}, discarded {}{}, pending {}{blocked}{}{}",
        reader.ring,
        reader.published,
        reader.read,
        reader.overrun,
        reader.discarded,
        above_zero(", ", [("dropped as incomplete", reader.dropped_incomplete)]),
        reader.pending,
        others(reader.counters(), &shown),
        shown_latency(&reader.latency)
    )
}

fn clients(ring: &str, clients: &ClientsReport) -> String {
    let shown = [
        "total",
        "revoked",
        "published",
        "read",
        "overrun",
        "discarded",
        "unread",
    ];
    format!(
        "clients of {ring}: total {}, attached {}{}; published {}, read {}, overrun {}, discarded {}, unread {}, \
         pending {}{}",
        clients.total,
        clients.attached,
        above_zero(", ", [("revoked", clients.revoked)]),
        clients.published,
        clients.read,
        clients.overrun,
        clients.discarded,
        clients.unread,
        clients.pending,
        others(clients.counters(), &shown)
    )
}

fn sink(name: &str, sink: &SinkReport) -> String {
    let lost = if sink.lost > 0 {
        format!(", of which {} lost", sink.lost)
    } else {
        String::new()
    };
    let shown = ["frames", "bytes", "files", "full", "dropped", "lost"];
    format!(
        "sink {name}: frames {}{lost}, bytes {}, files {}{}{}",
        sink.frames,
        sink.bytes,
        sink.files,
        above_zero(", ", [("dropped", sink.dropped)]),
        others([sink.counters(), sink.counts.counters()].concat(), &shown)
    )
}
