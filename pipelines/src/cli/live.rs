//! What a run shows while it runs: one live block on a terminal, a log line a second elsewhere.

use daq_core::ledger::{Report, SourceReport};
use daq_core::units::{BitRate, ByteSize};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How often the block is drawn.
const DRAW: Duration = Duration::from_millis(200);
/// Characters of a ring's bar.
const BAR: u64 = 20;

/// The live block on the terminal, while there is one: what else is written must go round it.
static BLOCK: OnceLock<MultiProgress> = OnceLock::new();

/// stderr for logs and notices, which takes the live block away while it is written to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let write = || {
            std::io::stderr()
                .lock()
                .write_all(bytes)
                .map(|()| bytes.len())
        };
        match BLOCK.get() {
            Some(block) => block.suspend(write),
            None => write(),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Shows reports as they come.
pub(super) struct Live {
    block: Option<Block>,
    last: (Report, Instant),
}

struct Block {
    multi: MultiProgress,
    lines: Vec<ProgressBar>,
}

impl Live {
    /// A live block if `on_terminal`, else log lines.
    pub(super) fn new(on_terminal: bool) -> Self {
        let block = on_terminal.then(|| Block {
            multi: BLOCK.get_or_init(MultiProgress::new).clone(),
            lines: Vec::new(),
        });
        Self {
            block,
            last: (Report::default(), Instant::now()),
        }
    }

    /// Shows what `report` gives, if it is time.
    pub(super) fn show(&mut self, report: impl FnOnce() -> Report) {
        let period = if self.block.is_some() {
            DRAW
        } else {
            Duration::from_secs(1)
        };
        let passed = self.last.1.elapsed();
        if passed < period {
            return;
        }
        let report = report();
        tell_epochs(&report, &self.last.0);
        if let Some(block) = &mut self.block {
            block.draw(&lines(&report, &self.last.0, passed));
        } else {
            tracing::info!("{}", crate::systemd::status_line(&report, &self.last.0));
        }
        self.last = (report, Instant::now());
    }

    /// Takes the block away, leaving what was logged.
    pub(super) fn clear(&mut self) {
        if let Some(block) = &mut self.block {
            let _ = block.multi.clear();
        }
    }
}

impl Block {
    fn draw(&mut self, lines: &[String]) {
        while self.lines.len() < lines.len() {
            let bar = self.multi.add(ProgressBar::new_spinner());
            bar.set_style(
                ProgressStyle::with_template("{msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            self.lines.push(bar);
        }
        for (bar, line) in self.lines.iter().zip(lines) {
            bar.set_message(line.clone());
        }
    }
}

/// Logs that a source's counting has begun anew: what lies between is in no equation.
fn tell_epochs(now: &Report, before: &Report) {
    for (name, source) in &now.sources {
        let empty = SourceReport::default();
        let old = before.sources.get(name).unwrap_or(&empty);
        if source.epochs > old.epochs.max(1) {
            let jumped = source.jumped - old.jumped;
            tracing::warn!(
                "source {name}: counting began anew (epoch {}); {jumped} packets were jumped over, lost or never sent",
                source.epochs
            );
        }
    }
}

/// The lines of the block.
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
        let bits = BitRate((rate(source.bytes, old.bytes) * 8.0 / 1e6).round() * 1e6);
        let packets = rate(source.delivered, old.delivered);
        let lost = if source.lost.is_empty() {
            "nothing lost".to_owned()
        } else {
            let causes: Vec<_> = source
                .lost
                .iter()
                .map(|(cause, count)| format!("{cause} {count}"))
                .collect();
            format!("lost {} ({})", source.lost_total(), causes.join(", "))
        };
        let lost = lost + &apart(source);
        lines.push(format!(
            "source {name:<width$}  {bits:>14}  {packets:>9.0} packets/s  {lost}"
        ));
    }
    for (name, ring) in &now.rings {
        let readers = now.readers.values().filter(|reader| reader.ring == *name);
        let waiting = readers
            .map(|reader| reader.pending)
            .max()
            .unwrap_or(0)
            .min(ring.capacity);
        let filled = (waiting * BAR).div_ceil(ring.capacity.max(1));
        let bar: String = (0..BAR)
            .map(|i| if i < filled { '█' } else { '·' })
            .collect();
        let full = if ring.ring_full > 0 {
            format!("  refused {}", ring.ring_full)
        } else {
            String::new()
        };
        lines.push(format!(
            "ring   {name:<width$}  {bar}  {waiting:>4} of {} waiting, most {}{full}",
            ring.capacity, ring.high_water
        ));
    }
    for (name, kernel) in &now.kernels {
        let failed = if kernel.failed > 0 {
            format!("  failed {}", kernel.failed)
        } else {
            String::new()
        };
        let lag = now.readers.get(name).map_or(0, |reader| reader.pending);
        lines.push(format!(
            "kernel {name:<width$}  {:>9} in  {:>9} out  lag {lag}{failed}",
            kernel.input, kernel.made
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
        if sink.full {
            notes += "  NO SPACE";
        }
        let bytes = ByteSize(sink.bytes).rounded();
        lines.push(format!(
            "sink   {name:<width$}  {:>9} frames  {bytes:>10}  {} files{notes}",
            sink.frames, sink.files
        ));
    }
    lines
}

/// What is counted beside the equation, where there is any.
fn apart(source: &SourceReport) -> String {
    let epochs = if source.epochs > 1 { source.epochs } else { 0 };
    let mut text = String::new();
    for (count, what) in [
        (source.rejected, "rejected"),
        (source.jumped, "jumped over"),
        (epochs, "epochs"),
    ] {
        if count > 0 {
            text += &format!(", {what} {count}");
        }
    }
    text
}

/// The final ledger as text.
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
            (source.jumped, "jumped over"),
        ] {
            if count > 0 {
                parts.push(format!("{what} {count}"));
            }
        }
        if source.epochs > 1 {
            parts.push(format!("epochs {}", source.epochs));
        }
        text += &format!(
            "source {name}: {} ({} bytes)\n",
            parts.join(", "),
            source.bytes
        );
    }
    for (name, ring) in &report.rings {
        text += &format!(
            "ring {name}: made {}, published {}, refused {}; most in use {} of {}\n",
            ring.made, ring.published, ring.ring_full, ring.high_water, ring.capacity
        );
    }
    for (name, kernel) in &report.kernels {
        text += &format!(
            "kernel {name}: in {}, consumed {}, withheld {}, failed {}, pending {}; made {}\n",
            kernel.input,
            kernel.consumed,
            kernel.withheld,
            kernel.failed,
            kernel.pending,
            kernel.made
        );
    }
    for (name, reader) in &report.readers {
        let held = if reader.held > 0 {
            format!(", held up {} frames", reader.held)
        } else {
            String::new()
        };
        text += &format!(
            "reader {name} of {}: published {}, read {}, overrun {}, discarded {}, pending {}{held}\n",
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
        text += &format!(
            "sink {name}: frames {}, bytes {}, files {}{dropped}\n",
            sink.frames, sink.bytes, sink.files
        );
    }
    text + &format!("{:.3} seconds\n", report.seconds)
}
