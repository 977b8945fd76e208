//! The log of a run on stderr: levels, times, and priorities for the journal.

use daq_pipelines::console::{self, Prioritised, print_error};
use daq_pipelines::systemd;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Formats the time of day in UTC, for example `18:27:55Z`. The date is omitted, because terminals have few columns.
struct TimeOfDay;

impl FormatTime for TimeOfDay {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = now.map_or(0, |now| now.as_secs() % 86_400);
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        write!(writer, "{hours:02}:{minutes:02}:{:02}Z", seconds % 60)
    }
}

/// Writes messages to stderr, for the journal with a priority.
struct Journal;

impl MakeWriter<'_> for Journal {
    type Writer = Prioritised;

    fn make_writer(&self) -> Prioritised {
        Prioritised(Level::INFO)
    }

    fn make_writer_for(&self, message: &Metadata<'_>) -> Prioritised {
        Prioritised(*message.level())
    }
}

/// Parses the levels of the log: levels of modules (`MODULE=LEVEL`) and a level of all others, separated by commas.
fn levels_of(text: &str) -> Result<Targets, String> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let errors = Targets::new().with_default(LevelFilter::ERROR);
    parts.map(level_of).try_fold(errors, |levels, part| {
        let (module, level) = part?;
        Ok(match module {
            Some(module) => levels.with_target(module, level),
            None => levels.with_default(level),
        })
    })
}

/// Parses a level, or the level of one module. A module of daq without a level logs everything.
fn level_of(part: &str) -> Result<(Option<&str>, LevelFilter), String> {
    if let Ok(level) = part.parse() {
        return Ok((None, level));
    }
    let (module, level) = part.split_once('=').unwrap_or((part, "trace"));
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "_:".contains(letter);
    let is_module = !module.is_empty() && module.chars().all(is_letter);
    // A misspelt level must not hide the log.
    let is_module =
        is_module && (part.contains('=') || module.starts_with("daq") || module.contains("::"));
    match level.parse() {
        Ok(parsed) if is_module && !level.is_empty() => Ok((Some(module), parsed)),
        _ => Err(format!(
            "`{part}` is neither a level nor MODULE=LEVEL, as in `warn,daq_rdma=debug`"
        )),
    }
}

/// Starts the log on stderr. Messages contain the time of day on a terminal, no time in the journal (which adds the
/// time itself), and otherwise the date and the time. `DAQ_LOG` sets the level.
pub(super) fn start() {
    use tracing_subscriber::prelude::*;
    console::start();
    let on_terminal = console::is_interactive();
    let wanted = std::env::var("DAQ_LOG").unwrap_or_default();
    // The NATS client logs each connection, as daq does.
    let levels = if wanted.is_empty() {
        "info,async_nats=warn"
    } else {
        &wanted
    };
    let filter = levels_of(levels).unwrap_or_else(|why| {
        print_error!("cannot parse DAQ_LOG={wanted}: {why}; using DAQ_LOG=info");
        Targets::new().with_default(LevelFilter::INFO)
    });
    let builder = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(Journal)
        .log_internal_errors(false)
        .with_target(false);
    let _ = if on_terminal {
        builder
            .with_timer(TimeOfDay)
            .with_ansi(true)
            .finish()
            .with(filter)
            .try_init()
    } else if systemd::present() || console::is_journal() {
        builder
            .without_time()
            .with_ansi(false)
            .finish()
            .with(filter)
            .try_init()
    } else {
        builder.with_ansi(false).finish().with(filter).try_init()
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::filter::LevelFilter as Level;

    #[test]
    fn log_levels_are_parsed() {
        let levels = levels_of("info, daq_rdma=debug,,daq_core::ring").unwrap();
        let expected = Targets::new()
            .with_default(Level::INFO)
            .with_target("daq_rdma", Level::DEBUG)
            .with_target("daq_core::ring", Level::TRACE);
        assert_eq!(levels, expected);
        let errors = Targets::new().with_default(Level::ERROR);
        assert_eq!(levels_of("x=off"), Ok(errors.with_target("x", Level::OFF)));
        for text in [
            "x=",
            "=info",
            "*=debug",
            "x=loud",
            "x{y=1}=info",
            "a b",
            "wran",
        ] {
            assert!(levels_of(text).is_err(), "{text}");
        }
    }
}
