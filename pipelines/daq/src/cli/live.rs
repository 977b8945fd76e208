//! Shows the state of a run: as a live block on a terminal, otherwise as periodic log lines.

use super::changes::LossChanges;
use daq_core::ledger::{Report, SourceReport};
use daq_core::log_limit::LogLimit;
use daq_core::units::counted;
use daq_pipelines::{console, report};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Interval at which the block is redrawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Time over which the block averages rates, so that data that arrive in bursts have a steady rate.
const AVERAGING_TIME: Duration = Duration::from_secs(2);

/// How the state of a run is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// A live block at the bottom of the terminal.
    Block,
    /// One log line per interval of this length.
    Lines(Duration),
}

/// The reports of the last [`AVERAGING_TIME`], the oldest first.
#[derive(Debug, Default)]
struct Recent(VecDeque<(Report, Instant)>);

impl Recent {
    fn push(&mut self, report: Report, now: Instant) {
        self.0.push_back((report, now));
        // The second report is old enough to replace the first.
        while self
            .0
            .get(1)
            .is_some_and(|(_, at)| now.saturating_duration_since(*at) >= AVERAGING_TIME)
        {
            self.0.pop_front();
        }
    }

    /// Returns the report with which rates begin; `None` if there is only one report.
    fn oldest(&self) -> Option<(&Report, Instant)> {
        let (report, at) = self.0.front().filter(|_| self.0.len() > 1)?;
        Some((report, *at))
    }
}

/// Shows reports while the pipeline runs.
#[derive(Debug)]
pub(super) struct Live {
    style: Style,
    last: (Report, Instant),
    recent: Recent,
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
            recent: Recent::default(),
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
            Style::Block => {
                let now = Instant::now();
                self.recent.push(report.clone(), now);
                let (before, at) = self.recent.oldest().unwrap_or((&self.last.0, self.last.1));
                let passed = now.saturating_duration_since(at).max(DRAW_INTERVAL);
                console::show_block(report::block(&report, before, passed));
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_averaged_over_two_seconds() {
        let (start, mut recent) = (Instant::now(), Recent::default());
        for i in 0..100 {
            let seconds = f64::from(i) / 5.0;
            let report = Report {
                seconds,
                ..Report::default()
            };
            let now = start + DRAW_INTERVAL * i;
            recent.push(report, now);
            match recent.oldest() {
                None => assert_eq!(i, 0),
                Some((before, at)) => {
                    let expected = i.min(10);
                    assert_eq!(now - at, DRAW_INTERVAL * expected);
                    assert!((seconds - before.seconds - f64::from(expected) / 5.0).abs() < 1e-9);
                }
            }
        }
    }
}
