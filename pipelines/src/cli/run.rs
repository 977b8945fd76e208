//! `daq run`.

use super::live::{Live, Stderr, ledger};
use super::load::{Loaded, Look, Sources};
use super::{exit, state};
use crate::engine::{Failure, FailureKind, Options, Pipeline, StartError};
use crate::http::{self, HttpState, Server};
use crate::systemd::{self, Watchdog};
use clap::{Args as ClapArgs, ValueEnum};
use daq_core::kernel::KernelError;
use daq_core::ledger::Report;
use daq_core::region::RegionError;
use daq_core::topology::Topology;
use daq_core::units::Span;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A stop that takes longer is told of.
const SOON: Duration = Duration::from_secs(1);
/// How often the main thread looks whether to stop.
const LOOK: Duration = Duration::from_millis(20);

/// `eprintln!` that takes no notice of a stderr that cannot be written.
macro_rules! complain {
    ($($text:tt)*) => {{
        let _ = writeln!(Stderr, $($text)*);
    }};
}

/// What `daq run` is told.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    sources: Sources,
    /// Stop after this long, as in `10s`.
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<Span>,
    /// Stop as soon as a ring has published this many frames; what is open then is still delivered.
    #[arg(long, value_name = "RING=N", value_parser = frames)]
    frames: Option<(String, u64)>,
    /// Print the final ledger on stdout in this form, and nothing else there.
    #[arg(long, value_enum)]
    report: Option<Form>,
    /// How long sinks that cannot write may hold up the end.
    #[arg(long, value_name = "TIME", default_value = "10 s")]
    drain: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Json,
    Text,
}

fn frames(text: &str) -> Result<(String, u64), String> {
    let (ring, count) = text.split_once('=').ok_or("write RING=N, as in raw=1000")?;
    let count = count
        .parse()
        .map_err(|_| format!("`{count}` is no number of frames"))?;
    Ok((ring.to_owned(), count))
}

pub(super) fn run(args: &Args) -> u8 {
    let on_terminal = std::io::stderr().is_terminal();
    log(on_terminal);
    let loaded = match Loaded::read(&args.sources, Look::Into) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    if let Some((ring, _)) = &args.frames
        && loaded.plan.ring(ring).is_none()
    {
        let rings: Vec<_> = loaded
            .plan
            .rings
            .iter()
            .map(|ring| ring.name.as_str())
            .collect();
        complain!(
            "error: --frames names ring `{ring}`; there are {}",
            rings.join(", ")
        );
        return exit::USAGE;
    }
    let Ok(signals) = Signal::listen() else {
        complain!("error: signals cannot be caught");
        return exit::INTERNAL;
    };
    // Before anything is counted or recorded, for nothing ought to be where the port cannot be had.
    let listener = match loaded.http.as_ref().map(|http| http::bind(http.listen)) {
        None => None,
        Some(Ok(listener)) => Some(listener),
        Some(Err(error)) => {
            complain!("error: {error}");
            return exit::UNAVAILABLE;
        }
    };
    let directory = args.sources.state();
    let file = state::file_name(&loaded.plan.name, args.sources.place());
    let (board, last_run) = state::board(directory.as_deref(), &file);
    if let Some(last) = &last_run {
        state::tell(last);
    }
    let options = Options {
        directory: super::directory(),
        board,
        drain: args.drain.0,
        profiles: if loaded.plan.copies.is_empty() {
            BTreeMap::new()
        } else {
            super::tune::known(&Topology::detect(), directory.as_deref())
        },
    };
    let pipeline = match Pipeline::start(&loaded.config, &loaded.plan, &options) {
        Ok(pipeline) => pipeline,
        Err(error) => {
            options.board.end();
            complain!("error: {error}");
            return match error {
                StartError::Unavailable(_)
                | StartError::Source { .. }
                | StartError::Cuda(_)
                | StartError::Region {
                    source: RegionError::Cuda(_),
                    ..
                } => exit::UNAVAILABLE,
                StartError::Kernel { source, .. } => match source {
                    KernelError::Refused(_) => exit::CONFIG,
                    KernelError::Unavailable(_) | KernelError::Cuda(_) => exit::UNAVAILABLE,
                    KernelError::Defect(_) | KernelError::Hung(_) => exit::INTERNAL,
                },
                _ => exit::IO,
            };
        }
    };
    let side = match Side::start(&loaded, listener, &pipeline, last_run.as_ref()) {
        Ok(side) => side,
        Err(error) => {
            pipeline.stop();
            let _ = pipeline.finish();
            complain!("error: {error}");
            return exit::IO;
        }
    };
    let (report, failures) = watch(args, pipeline, &signals, on_terminal);
    side.stop();
    conclude(args, &report, &failures)
}

/// Logs to stderr: plain on a terminal, with time elsewhere. `DAQ_LOG` sets the level.
pub(super) fn log(on_terminal: bool) {
    use tracing_subscriber::{EnvFilter, fmt};
    let filter = EnvFilter::try_from_env("DAQ_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = fmt()
        .with_env_filter(filter)
        .with_writer(|| Stderr)
        // A log that cannot be written must not end a thread that moves data.
        .log_internal_errors(false)
        .with_target(false);
    // systemd's journal and terminals tell the time themselves.
    let _ = if on_terminal || systemd::present() {
        builder.without_time().with_ansi(on_terminal).try_init()
    } else {
        builder.with_ansi(false).try_init()
    };
}

/// SIGINT, SIGTERM and SIGHUP (the terminal has gone): the first asks to stop, the second ends at once.
struct Signal(Arc<AtomicBool>);

impl Signal {
    fn listen() -> std::io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let asked = Arc::new(AtomicBool::new(false));
        let set = asked.clone();
        std::thread::Builder::new()
            .name("daq-signals".to_owned())
            .spawn(move || {
                for signal in &mut signals {
                    if set.swap(true, Ordering::AcqRel) {
                        std::process::exit(128 + signal);
                    }
                    // A terminal that has gone takes no notice, and that is no reason to stop draining.
                    let _ = Stderr.write_all(
                        b"stopping: draining rings and closing files; a second signal leaves at once\n",
                    );
                }
            })?;
        Ok(Self(asked))
    }

    fn came(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What runs beside the data threads.
struct Side {
    server: Option<Server>,
    watchdog: Option<Watchdog>,
}

impl Side {
    fn start(
        loaded: &Loaded,
        listener: Option<TcpListener>,
        pipeline: &Pipeline,
        last: Option<&daq_core::ledger::LastRun>,
    ) -> Result<Self, http::HttpError> {
        let health: http::HealthFn = Arc::new(pipeline.health());
        let server = match listener {
            Some(listener) => {
                let ledgers = pipeline.ledgers();
                let state = HttpState {
                    name: loaded.plan.name.clone(),
                    report: Arc::new(move || ledgers.report()),
                    health: health.clone(),
                    plan: serde_json::to_value(&loaded.plan).unwrap_or_default(),
                    last_run: last.map(|last| {
                        let counters: serde_json::Map<_, _> =
                            last.counters.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
                        serde_json::json!({ "pid": last.pid, "start_ns": last.start_ns, "counters": counters })
                    }),
                };
                let server = http::serve_on(listener, state)?;
                tracing::info!("serving http://{}/", server.address());
                Some(server)
            }
            None => None,
        };
        Ok(Self {
            server,
            watchdog: Watchdog::start(health),
        })
    }

    fn stop(self) {
        if let Some(server) = self.server {
            server.stop();
        }
        drop(self.watchdog);
    }
}

/// What systemd knows of the run.
#[derive(Default)]
struct Told {
    ready: bool,
    stopping: bool,
    /// The last status, and when it was told.
    status: Option<(Instant, Report)>,
}

impl Told {
    fn tell(&mut self, health: &http::Health, pipeline: &Pipeline) {
        if health.ready && !std::mem::replace(&mut self.ready, true) {
            systemd::ready();
        }
        // Asked to, or by a failure.
        if health.stopping && !std::mem::replace(&mut self.stopping, true) {
            systemd::stopping();
        }
        let is_due = |(at, _): &(Instant, Report)| at.elapsed() >= Duration::from_secs(1);
        if self.status.as_ref().is_none_or(is_due) {
            let report = pipeline.report();
            let before = self.status.take().map(|(_, before)| before);
            systemd::status(&systemd::status_line(&report, &before.unwrap_or_default()));
            self.status = Some((Instant::now(), report));
        }
    }
}

/// The main thread while data flows.
fn watch(
    args: &Args,
    pipeline: Pipeline,
    signals: &Signal,
    on_terminal: bool,
) -> (Report, Vec<Failure>) {
    let start = Instant::now();
    let health = pipeline.health();
    let mut live = Live::new(on_terminal && args.report.is_none());
    let mut told = Told::default();
    let mut stopping = None;
    let mut is_told = false;
    while !pipeline.is_finished() {
        std::thread::sleep(LOOK);
        let time_is_up = args
            .duration
            .is_some_and(|duration| start.elapsed() >= duration.0);
        let has_enough = args.frames.as_ref().is_some_and(|(ring, count)| {
            pipeline
                .published(ring)
                .is_some_and(|published| published >= *count)
        });
        if stopping.is_none() && (signals.came() || time_is_up || has_enough) {
            stopping = Some(Instant::now());
            pipeline.stop();
        }
        if stopping.is_some_and(|since| since.elapsed() >= SOON) && !is_told {
            is_told = true;
            tracing::info!(
                "stopping: what is in rings is waited for, {} at most",
                args.drain
            );
        }
        live.show(|| pipeline.report());
        if systemd::present() {
            told.tell(&health(), &pipeline);
        }
    }
    live.clear();
    pipeline.finish()
}

/// Prints the ledger and gives the exit code.
fn conclude(args: &Args, report: &Report, failures: &[Failure]) -> u8 {
    let text = match args.report {
        Some(Form::Json) => serde_json::to_string(report).unwrap_or_default() + "\n",
        _ => ledger(report),
    };
    let shown = super::show(&text);
    for Failure { component, why, .. } in failures {
        complain!("error: {component}: {why}");
    }
    let has = |kind| failures.iter().any(|failure| failure.kind == kind);
    if has(FailureKind::Defect) || !report.violations().is_empty() {
        exit::INTERNAL
    } else if has(FailureKind::Device) {
        exit::UNAVAILABLE
    } else if !failures.is_empty() {
        exit::IO
    } else {
        shown
    }
}
