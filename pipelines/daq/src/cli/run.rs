//! `daq run` runs a pipeline.

use super::finite::Finite;
use super::live::{Live, Style};
use super::load::{Hardware, Loaded, Sources};
use super::signal::Signal;
use super::starting::{self, Needs, Started};
use super::{exit, log, state};
use crate::sys::descriptor;
use clap::{Args as ClapArgs, ValueEnum};
use daq_core::entry::Registry;
use daq_core::ledger::Report;
use daq_core::plan::{Plan, PlannedRing};
use daq_core::units::Span;
use daq_pipelines::attach;
use daq_pipelines::console::{self, print_error};
use daq_pipelines::http::{self, HttpState, ScopedRing, Server};
use daq_pipelines::report;
use daq_pipelines::runtime::{Failure, FailureKind, Pipeline, STALL_TIMEOUT};
use daq_pipelines::systemd::{self, Watchdog};
use rustix::fs::FileType;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which a message is logged if the pipeline has not stopped.
const SLOW_STOP: Duration = Duration::from_secs(1);
/// Interval at which the main thread checks for a stop request.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Interval of the log lines with the state, without `--verbose`.
const SUMMARY_INTERVAL: Duration = Duration::from_mins(1);

/// Arguments of `daq run`.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    #[command(flatten)]
    sources: Sources,
    /// Stop after this time, for example `10s`.
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<Span>,
    /// Stop when RING has published N frames, or when no packet arrives for the time `--idle`. Frames in progress are still
    /// delivered. Packets of the N frames that never arrived count as lost.
    #[arg(long, value_name = "RING=N", value_parser = frames)]
    frames: Option<(String, u64)>,
    /// With `--frames`: time without packets, after the first packet, after which the run stops.
    #[arg(long, value_name = "TIME", default_value = "5 s")]
    idle: Span,
    /// Print the final ledger to stdout in this format. Nothing else is printed to stdout.
    #[arg(long, value_enum)]
    report: Option<Form>,
    /// Maximum time to wait at the end for sinks that cannot write.
    #[arg(long, value_name = "TIME", default_value = "10 s")]
    drain: Span,
    /// Write the line `ready` to this inherited file descriptor and close it when the pipeline is ready: all sources have
    /// started, and none waits for its device. Closed without the line if the run ends first.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(3..))]
    ready_fd: Option<i32>,
    /// Log the state every second. By default the state is logged every minute, or shown live on a terminal.
    #[arg(short, long)]
    verbose: bool,
}

/// Help text about signals, environment and exit codes.
const AFTER_HELP: &str = "\
Signals:
  SIGINT, SIGTERM, SIGHUP  stop the sources, drain the rings, close the files, print the report, exit.
                           A SIGINT or SIGTERM more than 0.1 s later exits immediately with status 128 + signal number.
                           A SIGHUP does not count as the first signal. A signal before the pipeline has
                           started exits with status 128 + signal number.
                           A terminal that closes sends SIGHUP; under nohup SIGHUP is ignored and the run continues.
Environment:
  DAQ_LOG  level of the log on stderr: error, warn, info (default), debug or trace, for all modules or
           for single modules, as in `DAQ_LOG=warn,daq_rdma=debug`.
If stderr is not read, data are not delayed: log messages that do not fit into the queue are dropped and
counted (daq_log_dropped_total).";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Json,
    Text,
}

fn frames(text: &str) -> Result<(String, u64), String> {
    let (ring, count) = text.split_once('=').ok_or("write RING=N, as in raw=1000")?;
    let count = count
        .parse()
        .map_err(|_| format!("`{count}` is not a number of frames"))?;
    Ok((ring.to_owned(), count))
}

pub(super) fn run(registry: &Registry, args: &Args) -> u8 {
    // First, because the process has not opened files of its own.
    let ready = match args.ready_fd.map(descriptor::take).transpose() {
        Ok(ready) => ready,
        Err(error) => {
            print_error!("error: --ready-fd: {error}; pass an open file descriptor to the process");
            return exit::USAGE;
        }
    };
    log::start();
    let loaded = match Loaded::read(registry, &args.sources, Hardware::Probe) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    console::reserve_stdout();
    if let Some((ring, _)) = &args.frames
        && loaded.plan.ring(ring).is_none()
    {
        let rings: Vec<_> = loaded
            .plan
            .rings
            .iter()
            .map(|ring| ring.name.as_str())
            .collect();
        print_error!(
            "error: --frames: there is no ring `{ring}`; the rings are {}",
            rings.join(", ")
        );
        return exit::USAGE;
    }
    let signals = match Signal::listen() {
        Ok(signals) => signals,
        Err(error) => {
            print_error!(
                "error: cannot catch signals: {error}; raise the limits on open files and threads (ulimit -n and -u, \
                 LimitNOFILE= and TasksMax=)"
            );
            return exit::UNAVAILABLE;
        }
    };
    // Bind the port before any file is written, because a run that cannot bind its port must leave no files behind.
    let listener = match loaded.http.as_ref().map(|http| http::bind(http.listen)) {
        None => None,
        Some(Ok(listener)) => Some(listener),
        Some(Err(error)) => {
            print_error!("error: {error}");
            return exit::UNAVAILABLE;
        }
    };
    let directory = args.sources.state();
    let needs = Needs {
        state: directory.clone(),
        file: state::file_name(&loaded.plan.name, args.sources.place()),
        drain: args.drain.0,
    };
    let Started {
        pipeline,
        loaded,
        last_run,
    } = match starting::start(loaded, needs, &signals) {
        Ok(started) => started,
        Err(code) => return code,
    };
    let side = match Side::start(
        &loaded,
        listener,
        &pipeline,
        last_run.as_ref(),
        directory.as_deref(),
    ) {
        Ok(side) => side,
        Err(error) => {
            pipeline.stop();
            let _ = pipeline.finish();
            print_error!("error: {error}");
            return match error {
                http::HttpError::Metrics(_) => exit::INTERNAL,
                http::HttpError::Listen { .. } | http::HttpError::Thread(_) => exit::UNAVAILABLE,
            };
        }
    };
    let reported = Reported {
        ready_file: ready,
        ..Reported::default()
    };
    let (report, failures) = watch(args, &loaded.plan, pipeline, &signals, reported);
    side.stop();
    conclude(args, &report, &failures)
}

/// The services that run in parallel with the data threads, for example the HTTP server.
struct Side {
    /// Stopped first: its clients read the pipeline's memory.
    attach: Option<attach::Server>,
    server: Option<Server>,
    watchdog: Option<Watchdog>,
}

impl Side {
    fn start(
        loaded: &Loaded,
        listener: Option<TcpListener>,
        pipeline: &Pipeline,
        last: Option<&daq_core::ledger::LastRun>,
        state: Option<&Path>,
    ) -> Result<Self, http::HttpError> {
        let health: http::HealthFn = Arc::new(pipeline.health());
        let address = listener
            .as_ref()
            .and_then(|listener| listener.local_addr().ok());
        let offer = pipeline.offer(&loaded.config, &loaded.plan, address);
        // Recording data is more important than a client. Processes that wait for `/-/ready` can then attach.
        let attach = attach::Server::start(offer, &attach::directories(state))
            .inspect(|server| tracing::debug!("serving {}", server.path().display()))
            .inspect_err(|error| tracing::warn!("{error}"));
        let server = match listener {
            Some(listener) => {
                let ledgers = pipeline.ledgers();
                let state = HttpState {
                    name: loaded.plan.name.clone(),
                    hosts: loaded.http.as_ref().map_or_else(Vec::new, |http| http.hosts.clone()),
                    report: Arc::new(move || ledgers.report()),
                    health: health.clone(),
                    history: pipeline.history(),
                    plan: serde_json::to_value(&loaded.plan).unwrap_or_default(),
                    last_run: last.map(|last| {
                        let counters: serde_json::Map<_, _> =
                            last.counters.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
                        serde_json::json!({ "pid": last.pid, "start_ns": last.start_ns, "counters": counters })
                    }),
                    rings: scoped(&loaded.plan, pipeline),
                };
                let server = http::serve_on(listener, state)?;
                tracing::info!("serving http://{}/", server.address());
                Some(server)
            }
            None => None,
        };
        Ok(Self {
            attach: attach.ok(),
            server,
            watchdog: Watchdog::start(health),
        })
    }

    fn stop(self) {
        if let Some(attach) = self.attach {
            attach.stop();
        }
        if let Some(server) = self.server {
            server.stop();
        }
        drop(self.watchdog);
    }
}

/// Returns the rings that browsers can show.
fn scoped(plan: &Plan, pipeline: &Pipeline) -> BTreeMap<String, ScopedRing> {
    let ring = |ring: &PlannedRing| {
        let source = plan.source_of(&ring.name);
        let scoped = ScopedRing {
            ring: pipeline.rings().get(&ring.name)?.clone(),
            layout: ring.layout.clone(),
            parts: source.map_or_else(Vec::new, |source| source.parts.clone()),
        };
        Some((ring.name.clone(), scoped))
    };
    plan.rings.iter().filter_map(ring).collect()
}

/// The state of the pipeline at the last report.
#[derive(Default)]
struct Reported {
    started: bool,
    /// The file of `--ready-fd`, until the pipeline is ready.
    ready_file: Option<File>,
    stopping: bool,
    /// The threads that make no progress.
    stalled: Vec<String>,
    /// Messages to systemd that could not be sent because the socket was full.
    unsent: Vec<&'static str>,
    /// The time of the last status line, and the report that it was computed from.
    status: Option<(Instant, Report)>,
}

impl Reported {
    /// Logs changes of the pipeline's state. Sends these changes and the status line to systemd.
    fn update(&mut self, health: &http::Health, pipeline: &Pipeline) {
        if health.started && !std::mem::replace(&mut self.started, true) {
            tracing::info!("running: all sources have started");
            // A service has started also if its camera is switched on later.
            self.unsent.push(systemd::READY);
        }
        if health.is_ready()
            && let Some(mut file) = self.ready_file.take()
        {
            // The reader may have ended.
            let _ = file.write_all(b"ready\n");
        }
        // A signal or a failure has started the stop.
        if health.stopping && !std::mem::replace(&mut self.stopping, true) {
            self.unsent.push(systemd::STOPPING);
        }
        if health.stalled != self.stalled {
            // The watchdog logs stalled threads itself.
            if !health.stalled.is_empty() && Watchdog::period().is_none() {
                tracing::warn!(
                    "no progress for {} s: {}",
                    STALL_TIMEOUT.as_secs(),
                    health.stalled.join(", ")
                );
            }
            self.stalled.clone_from(&health.stalled);
        }
        if !systemd::present() {
            return;
        }
        while let Some(state) = self.unsent.first()
            && systemd::send(state)
        {
            self.unsent.remove(0);
        }
        let is_due = |(at, _): &(Instant, Report)| at.elapsed() >= Duration::from_secs(1);
        if self.status.as_ref().is_none_or(is_due) {
            let now = pipeline.report();
            let before = self.status.take().map(|(_, before)| before);
            systemd::status(&report::status_line(&now, &before.unwrap_or_default()));
            self.status = Some((Instant::now(), now));
        }
    }
}

/// Selects how the state of a run is shown.
fn style(args: &Args) -> Style {
    let interactive = console::is_interactive();
    if args.verbose || (interactive && args.report.is_some()) {
        Style::Lines(Duration::from_secs(1))
    } else if interactive {
        Style::Block
    } else {
        Style::Lines(SUMMARY_INTERVAL)
    }
}

/// The stop of a run, and what was logged about it.
#[derive(Default)]
struct Stop {
    /// Time at which this thread requested the stop.
    since: Option<Instant>,
    is_logged: bool,
    is_signal_logged: bool,
}

impl Stop {
    /// Logs a signal, also one that arrives while the pipeline already stops, and a stop that takes long.
    fn log(&mut self, signal: Option<&str>, drain: Span) {
        if let Some(signal) = signal
            && !std::mem::replace(&mut self.is_signal_logged, true)
        {
            self.is_logged = true;
            tracing::info!(
                "{signal}: stopping; draining rings and closing files (at most {drain}); {} exits at once",
                match signal {
                    "SIGHUP" => "the second SIGINT or SIGTERM",
                    _ => "another SIGINT or SIGTERM",
                }
            );
        }
        if self.since.is_some_and(|since| since.elapsed() >= SLOW_STOP)
            && !std::mem::replace(&mut self.is_logged, true)
        {
            tracing::info!("stopping: draining rings (at most {drain})");
        }
    }
}

/// Monitors the pipeline on the main thread while data flows.
fn watch(
    args: &Args,
    plan: &Plan,
    pipeline: Pipeline,
    signals: &Signal,
    mut reported: Reported,
) -> (Report, Vec<Failure>) {
    let start = Instant::now();
    let finite = args.frames.clone().map(|(ring, frames)| Finite {
        ring,
        frames,
        idle: args.idle,
    });
    let health = pipeline.health();
    let mut live = Live::new(style(args));
    let mut stop = Stop::default();
    let mut is_state_lost = false;
    while !pipeline.is_finished() {
        std::thread::sleep(POLL_INTERVAL);
        let time_is_up = args
            .duration
            .is_some_and(|duration| start.elapsed() >= duration.0);
        let signal = signals.came();
        let has_ended = |finite: &Finite| finite.has_ended(plan, &pipeline);
        let is_over = || signal.is_some() || time_is_up || finite.as_ref().is_some_and(has_ended);
        if stop.since.is_none() && is_over() {
            stop.since = Some(Instant::now());
            pipeline.stop();
        }
        stop.log(signal, args.drain);
        live.show(|| pipeline.report());
        // Reading the health here detects stalls even without HTTP requests.
        let health = health();
        reported.update(&health, &pipeline);
        if pipeline.is_state_lost() && !std::mem::replace(&mut is_state_lost, true) {
            tracing::warn!(
                "another program truncated the counter file of this run; the counters are correct, but they are lost if the \
                 process is killed; exclude the state directory from clean-up jobs"
            );
        }
        let hung = pipeline.hung_threads();
        if !hung.is_empty() {
            live.clear();
            return pipeline.leave(hung);
        }
    }
    live.clear();
    pipeline.finish()
}

/// Returns whether stdout is a terminal that was closed.
fn is_hangup(error: &std::io::Error) -> bool {
    // `fstat` still returns the file type of a closed terminal.
    let is_device = rustix::fs::fstat(console::stdout())
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice);
    is_device && error.raw_os_error() == Some(libc::EIO)
}

/// Prints the final ledger; returns the exit code.
fn conclude(args: &Args, report: &Report, failures: &[Failure]) -> u8 {
    let text = match args.report {
        Some(Form::Json) => serde_json::to_string(report).unwrap_or_default() + "\n",
        _ => report::ledger(report),
    };
    let shown = match console::print(text) {
        // A closed pipe is not an error. If stdout is a closed terminal, the user cannot read the report, which is not
        // an error either.
        Err(error) if error.kind() == ErrorKind::BrokenPipe || is_hangup(&error) => 0,
        Err(error) if error.kind() == ErrorKind::TimedOut && args.report.is_none() => 0,
        Err(error) => {
            print_error!("error: cannot write the report to stdout: {error}");
            exit::IO
        }
        Ok(()) => 0,
    };
    for Failure { component, why, .. } in failures {
        print_error!("error: {component}: {why}");
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
