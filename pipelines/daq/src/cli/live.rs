//! Shows the state of a run: as a live block on a terminal, otherwise as periodic log lines.

use super::changes::LossChanges;
use daq_core::ledger::{Report, SourceReport};
use daq_core::log_limit::LogLimit;
use daq_core::units::counted;
use daq_pipelines::{console, report};
use std::time::{Duration, Instant};

/// Interval at which the block is redrawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);

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
            Style::Block => console::show_block(report::block(&report, &self.last.0, passed)),
            Style::Lines(period) if self.logged.1.elapsed() >= period => {
                tracing::info!("{}", report::status_line(&report, &self.logged.0));
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
