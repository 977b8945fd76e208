//! Shows the state of a run: as a live block on a terminal, otherwise as periodic log lines.

use super::changes::LossChanges;
use daq_core::gpu::Dispatch;
use daq_core::ledger::{CopyReport, DeviceReport, Report, SourceReport};
use daq_core::log_limit::LogLimit;
use daq_core::units::{ByteSize, counted};
use daq_pipelines::console;
use std::time::{Duration, Instant};

/// Interval at which the block is redrawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Width of a ring's bar in characters.
const BAR_WIDTH: u64 = 20;

/// How the state of a run is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// A live block at the bottom of the terminal.
    Block,
    /// One log line per interval of this length.
    Lines(Duration),
}

/// Shows reports while the pipeline runs.
#[derive(Debug)]
pub(super) struct Live {
    style: Style,
    last: (Report, Instant),
    /// The report of the last log line.
    logged: (Report, Instant),
    epochs: LogLimit,
    losses: LossChanges,
}

impl Live {
    pub(super) fn new(style: Style) -> Self {
        let now = Instant::now();
        Self {
            style,
            last: (Report::default(), now),
            logged: (Report::default(), now),
            epochs: LogLimit::new(),
            losses: LossChanges::default(),
        }
    }

    /// If the next output is due, calls `report` and shows the returned report.
    pub(super) fn show(&mut self, report: impl FnOnce() -> Report) {
        let passed = self.last.1.elapsed();
        let period = match self.style {
            Style::Block => DRAW_INTERVAL,
            Style::Lines(_) => Duration::from_secs(1),
        };
        if passed < period {
            return;
        }
        let report = report();
        log_epochs(&report, &self.last.0, &self.epochs);
        self.losses.log(&report, &self.last.0, Instant::now());
        match self.style {
            Style::Block => console::show_block(lines(&report, &self.last.0, passed)),
            Style::Lines(period) if self.logged.1.elapsed() >= period => {
                tracing::info!(
                    "{}",
                    daq_pipelines::systemd::status_line(&report, &self.logged.0)
                );
                self.logged = (report.clone(), Instant::now());
            }
            Style::Lines(_) => {}
        }
        self.last = (report, Instant::now());
    }

    /// Removes the live block; the log remains.
    pub(super) fn clear(&mut self) {
        if self.style == Style::Block {
            console::show_block(Vec::new());
        }
    }
}

/// Logs restarts of senders, because the ledger does not count packets that a restart skips as lost.
fn log_epochs(now: &Report, before: &Report, limit: &LogLimit) {
    for (name, source) in &now.sources {
        let empty = SourceReport::default();
        let old = before.sources.get(name).unwrap_or(&empty);
        if source.epochs > old.epochs.max(1) {
            let skipped = source.skipped.saturating_sub(old.skipped);
            limit.run(|suppressed| {
                tracing::warn!(
                    "source {name}: sender restarted (epoch {}), {} skipped{suppressed}",
                    source.epochs,
                    counted(skipped, source.unit().trim_end_matches('s'))
                );
            });
        }
    }
}

/// Returns the lines of the live block.
fn lines(now: &Report, before: &Report, passed: Duration) -> Vec<String> {
    let mut lines = Vec::new();
    let names = now
        .sources
        .keys()
        .chain(now.rings.keys())
        .chain(now.kernels.keys())
        .chain(now.sinks.keys());
    let width = names.map(String::len).max().unwrap_or(0).min(24);
    for (name, source) in &now.sources {
        let empty = SourceReport::default();
        let old = before.sources.get(name).unwrap_or(&empty);
        let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / passed.as_secs_f64();
        let bits = daq_pipelines::systemd::shown_rate(rate(source.bytes, old.bytes) * 8.0);
        let packets = rate(source.delivered, old.delivered);
        let epochs = match source.epochs {
            epochs @ 2.. => format!(", epochs {epochs}"),
            _ => String::new(),
        };
        lines.push(format!(
            "source {name:<width$}  {bits:>14}  {packets:>9.0} {}/s  {}{epochs}",
            source.unit(),
            source.loss()
        ));
    }
    for (name, ring) in &now.rings {
        let readers = now.readers.values().filter(|reader| reader.ring == *name);
        let waiting = readers
            .map(|reader| reader.pending)
            .max()
            .unwrap_or(0)
            .min(ring.capacity);
        let filled = (waiting * BAR_WIDTH).div_ceil(ring.capacity.max(1));
        let bar: String = (0..BAR_WIDTH)
            .map(|i| if i < filled { '█' } else { '·' })
            .collect();
        let full = if ring.ring_full > 0 {
            format!("  refused {}", ring.ring_full)
        } else {
            String::new()
        };
        lines.push(format!(
            "ring   {name:<width$}  {bar}  {waiting:>4} of {} waiting, max {}{full}",
            ring.capacity, ring.high_water
        ));
    }
    for (name, copy) in &now.copies {
        let empty = CopyReport::default();
        let old = before.copies.get(name).unwrap_or(&empty);
        let lag = now
            .readers
            .get(&format!("copy to {name}"))
            .map_or(0, |reader| reader.pending);
        lines.push(format!(
            "copy   {name:<width$}  {}  lag {lag}",
            copying(copy, old, passed)
        ));
    }
    for (name, kernel) in &now.kernels {
        let failed = if kernel.failed > 0 {
            format!("  failed {}", kernel.failed)
        } else {
            String::new()
        };
        let lag = now.readers.get(name).map_or(0, |reader| reader.pending);
        let launched = |device: &DeviceReport| device.dispatch == Dispatch::Launch;
        let gpu = kernel
            .device
            .filter(launched)
            .map_or_else(String::new, |device| {
                let old = before.kernels.get(name).and_then(|kernel| kernel.device);
                let new_ns = device
                    .busy_ns
                    .saturating_sub(old.unwrap_or_default().busy_ns);
                format!("  GPU busy {:3.0} %", percent(new_ns, passed.as_secs_f64()))
            });
        lines.push(format!(
            "kernel {name:<width$}  {:>9} in  {:>9} out  lag {lag}{gpu}{failed}",
            kernel.input, kernel.produced
        ));
    }
    for (name, sink) in &now.sinks {
        let mut notes = String::new();
        if let Some(reader) = now.readers.get(name) {
            notes += &format!("  lag {}", reader.pending);
            if reader.overrun > 0 {
                notes += &format!("  overrun {}", reader.overrun);
            }
        }
        if sink.dropped > 0 {
            notes += &format!("  dropped {}", sink.dropped);
        }
        if sink.lost > 0 {
            notes += &format!("  lost {}", sink.lost);
        }
        if sink.full {
            notes += "  NO SPACE";
        }
        let bytes = ByteSize(sink.bytes).rounded();
        lines.push(format!(
            "sink   {name:<width$}  {:>9} frames  {bytes:>10}  {}{notes}",
            sink.frames,
            counted(sink.files, "file")
        ));
    }
    lines
}

/// Formats the activity of a copy since the report `old`: rate, mean size, copies in flight and failed copies. `passed`
/// is the time since that report.
fn copying(copy: &CopyReport, old: &CopyReport, passed: Duration) -> String {
    let bytes = copy.bytes.saturating_sub(old.bytes);
    let rate = daq_pipelines::systemd::shown_rate(bytes as f64 * 8.0 / passed.as_secs_f64());
    let size = mean(bytes, copy.copies.saturating_sub(old.copies));
    let failed = if copy.failed > 0 {
        format!("  failed {}", copy.failed)
    } else {
        String::new()
    };
    format!(
        "{rate:>14}  {:>9} frames  {size:>8} per copy  {} in flight{failed}",
        copy.frames, copy.in_flight
    )
}

/// Returns the mean size of `copies` copies with `bytes` bytes in total; 0 if `copies` is 0.
fn mean(bytes: u64, copies: u64) -> ByteSize {
    ByteSize(bytes.checked_div(copies).unwrap_or(0)).rounded()
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
    let occupancy = device.occupancy_ppm as f64 / 1e4;
    format!("; {cost}, occupancy {occupancy:.1} %")
}

/// Formats the final ledger as text.
pub(super) fn ledger(report: &Report) -> String {
    let mut text = String::new();
    for (name, source) in &report.sources {
        let mut parts = vec![
            format!("expected {}", source.expected),
            format!("delivered {}", source.delivered),
            format!("pending {}", source.pending),
        ];
        parts.extend(
            source
                .lost
                .iter()
                .map(|(cause, count)| format!("lost to {cause} {count}")),
        );
        for (count, what) in [
            (source.duplicates, "duplicates"),
            (source.rejected, "rejected"),
            (source.control, "control packets"),
            (source.skipped, "skipped"),
        ] {
            if count > 0 {
                parts.push(format!("{what} {count}"));
            }
        }
        if source.epochs > 1 {
            parts.push(format!("epochs {}", source.epochs));
        }
        if let Some(engine) = &source.engine {
            parts.push(format!("path {}", engine.proof.name()));
            let faults = engine.faults.iter();
            parts.extend(faults.map(|(fault, count)| format!("fault {fault} {count}")));
            for (count, what) in [
                (engine.fallbacks, "fallbacks"),
                (engine.restarts, "restarts"),
                (engine.quiesce_timeouts, "quiesce timeouts"),
            ] {
                if count > 0 {
                    parts.push(format!("{what} {count}"));
                }
            }
        }
        text += &format!(
            "source {name}: {}; {} ({} bytes)\n",
            source.loss(),
            parts.join(", "),
            source.bytes
        );
    }
    for (name, ring) in &report.rings {
        text += &format!(
            "ring {name}: produced {}, published {}, refused {}; max in use {} of {}\n",
            ring.produced, ring.published, ring.ring_full, ring.high_water, ring.capacity
        );
    }
    for (name, copy) in &report.copies {
        let busy = copy.busy_ns as f64 / 1e9;
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
        let rate = daq_pipelines::systemd::shown_rate(rate);
        text += &format!(
            "copy to {name} from {}: started {}, frames {}{stored}, failed {}, pending {}; copies {}, bytes {}, \
             mean size {}, in flight {}; busy {busy:.3} s at {rate}\n",
            copy.from,
            copy.started,
            copy.frames,
            copy.failed,
            copy.pending,
            copy.copies,
            copy.bytes,
            mean(copy.bytes, copy.copies),
            copy.in_flight
        );
    }
    for (name, kernel) in &report.kernels {
        let gpu = kernel
            .device
            .map_or_else(String::new, |device| on_gpu(&device, report.seconds));
        text += &format!(
            "kernel {name}: in {}, consumed {}, accumulating {}, failed {}, pending {}; produced {}{gpu}\n",
            kernel.input,
            kernel.consumed,
            kernel.accumulating,
            kernel.failed,
            kernel.pending,
            kernel.produced
        );
    }
    for (name, reader) in &report.readers {
        let dropped = if reader.dropped_incomplete > 0 {
            format!(", dropped as incomplete {}", reader.dropped_incomplete)
        } else {
            String::new()
        };
        let blocked = if reader.blocked > 0 {
            format!(", blocked {}", counted(reader.blocked, "frame"))
        } else {
            String::new()
        };
        text += &format!(
            "reader {name} of {}: published {}, read {}, overrun {}, discarded {}{dropped}, pending {}{blocked}\n",
            reader.ring,
            reader.published,
            reader.read,
            reader.overrun,
            reader.discarded,
            reader.pending
        );
    }
    for (name, sink) in &report.sinks {
        let dropped = if sink.dropped > 0 {
            format!(", dropped {}", sink.dropped)
        } else {
            String::new()
        };
        let lost = if sink.lost > 0 {
            format!(", of which {} lost", sink.lost)
        } else {
            String::new()
        };
        text += &format!(
            "sink {name}: frames {}, bytes {}, files {}{dropped}{lost}\n",
            sink.frames, sink.bytes, sink.files
        );
    }
    text + &format!("{:.3} seconds\n", report.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::ledger::KernelReport;

    /// Returns the report of a GPU pipeline after `seconds` seconds, with counters that increase at constant rates.
    fn report(seconds: u64, failed: u64) -> Report {
        let copy = CopyReport {
            from: "raw@host".to_owned(),
            to: "raw".to_owned(),
            started: 1000 * seconds + failed,
            frames: 1000 * seconds,
            failed,
            copies: 4000 * seconds,
            bytes: (4000 << 20) * seconds,
            in_flight: 2,
            busy_ns: 500_000_000 * seconds,
            ..CopyReport::default()
        };
        let kernel = |device| KernelReport {
            input: 7,
            consumed: 7,
            device,
            ..KernelReport::default()
        };
        let device = DeviceReport {
            dispatch: Dispatch::Launch,
            launches: 10 * seconds,
            busy_ns: 250_000_000 * seconds,
            gap_ns: 125_000_000 * seconds,
            occupancy_ppm: 625_000,
        };
        Report {
            copies: [("raw".to_owned(), copy)].into(),
            kernels: [
                ("beam".to_owned(), kernel(Some(device))),
                ("stats".to_owned(), kernel(None)),
            ]
            .into(),
            seconds: seconds as f64,
            ..Report::default()
        }
    }

    fn line<'a>(lines: impl IntoIterator<Item = &'a str>, start: &str) -> &'a str {
        lines
            .into_iter()
            .find(|line| line.starts_with(start))
            .unwrap()
    }

    #[test]
    fn live_line_shows_current_copy_rate() {
        let passed = Duration::from_secs(2);
        let shown = lines(&report(6, 0), &report(4, 0), passed);
        let copy = line(shown.iter().map(String::as_str), "copy   raw ");
        for part in [
            "  33.6 Gbit/s",
            " 6000 frames",
            " 1 MiB per copy",
            "2 in flight",
            "lag 0",
        ] {
            assert!(copy.contains(part), "{part:?} is not in {copy:?}");
        }
        assert!(!copy.contains("failed"), "{copy}");
        // If no data flows, the rates are zero. The totals count from the start of the run.
        let still = lines(&report(6, 3), &report(6, 3), passed);
        let copy = line(still.iter().map(String::as_str), "copy   raw ");
        assert!(
            copy.contains("  0 bit/s")
                && copy.contains(" 0 B per copy")
                && copy.contains("failed 3"),
            "{copy}"
        );
        let first = lines(&report(2, 0), &Report::default(), passed);
        let copy = line(first.iter().map(String::as_str), "copy   raw ");
        assert!(copy.contains("  33.6 Gbit/s"), "{copy}");
    }

    #[test]
    fn live_line_shows_gpu_utilisation_by_kernel() {
        for (passed, share) in [(2, " 25 %"), (8, "  6 %"), (1, " 50 %")] {
            let shown = lines(&report(6, 0), &report(4, 0), Duration::from_secs(passed));
            let lines = || shown.iter().map(String::as_str);
            let beam = line(lines(), "kernel beam ");
            assert!(beam.contains(&format!("GPU busy {share}")), "{beam}");
            let stats = line(lines(), "kernel stats");
            assert!(!stats.contains("GPU"), "{stats}");
        }
        assert_eq!((percent(3, 1e-9), percent(3, 0.0)), (100.0, 0.0));
    }

    #[test]
    fn final_ledger_lists_copies_and_gpu_kernels() {
        let text = ledger(&report(8, 5));
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "copy to raw from raw@host: started 8005, frames 8000, failed 5, pending 0; copies 32000, \
                 bytes 33554432000, mean size 1 MiB, in flight 2; busy 4.000 s at 67.1 Gbit/s",
                "kernel beam: in 7, consumed 7, accumulating 0, failed 0, pending 0; produced 0; launches 80, GPU busy \
                 2.000 s (25.0 % of the run), gaps 1.000 s, occupancy 62.5 %",
                "kernel stats: in 7, consumed 7, accumulating 0, failed 0, pending 0; produced 0",
                "8.000 seconds",
            ]
        );
        assert!(!ledger(&Report::default()).contains("copy"));
    }

    #[test]
    fn persistent_kernel_and_stores_are_not_reported_as_launches_and_copies() {
        let mut report = report(8, 0);
        let beam = report.kernels.get_mut("beam").unwrap();
        beam.device.as_mut().unwrap().dispatch = Dispatch::Persistent;
        report.copies.get_mut("raw").unwrap().stored = 7000;
        let text = ledger(&report);
        let beam = line(text.lines(), "kernel beam");
        assert!(
            beam.ends_with("produced 0; persistent, occupancy 62.5 %"),
            "{beam}"
        );
        let copy = line(text.lines(), "copy to raw");
        assert!(
            copy.contains("frames 8000 (7000 stored by the CPU), failed 0"),
            "{copy}"
        );
        let shown = lines(&report, &Report::default(), Duration::from_secs(1));
        let beam = line(shown.iter().map(String::as_str), "kernel beam ");
        assert!(!beam.contains("busy"), "{beam}");
    }
}
