//! `daq run` runs a pipeline.

use super::live::{Live, Style};
use super::load::{Hardware, Loaded, Sources};
use super::{exit, state};
use clap::{Args as ClapArgs, ValueEnum};
use daq_core::entry::Registry;
use daq_core::kernel::KernelError;
use daq_core::ledger::{Report, SourceReport};
use daq_core::plan::{Plan, PlannedRing};
use daq_core::sink::SinkError;
use daq_core::topology::Topology;
use daq_core::units::Span;
use daq_pipelines::attach;
use daq_pipelines::console::{self, Stderr, print_error};
use daq_pipelines::http::{self, HttpState, ScopedRing, Server};
use daq_pipelines::report;
use daq_pipelines::runtime::{Failure, FailureKind, Options, Pipeline, StartError};
use daq_pipelines::systemd::{self, Watchdog};
use rustix::fs::FileType;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Time after which a message is logged if the pipeline has not stopped.
const SLOW_STOP: Duration = Duration::from_secs(1);
/// Interval at which the main thread checks for a stop request.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time without packets after which a frame with a gap is assumed to be the last frame of `--frames`.
const LAST_FRAME_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// Stop when RING has published N frames, or when packets of N frames have arrived and the source has been silent for
    /// 5 s, because the last frame has a gap. Frames in progress are still delivered.
    #[arg(long, value_name = "RING=N", value_parser = frames)]
    frames: Option<(String, u64)>,
    /// Print the final ledger to stdout in this format. Nothing else is printed to stdout.
    #[arg(long, value_enum)]
    report: Option<Form>,
    /// Maximum time to wait at the end for sinks that cannot write.
    #[arg(long, value_name = "TIME", default_value = "10 s")]
    drain: Span,
    /// Log the state every second. By default the state is logged every minute, or shown live on a terminal.
    #[arg(short, long)]
    verbose: bool,
}

/// Help text about signals, environment and exit codes.
const AFTER_HELP: &str = "\
Signals:
  SIGINT, SIGTERM, SIGHUP  stop the sources, drain the rings, close the files, print the report, exit.
                           A second SIGINT or SIGTERM exits immediately with status 128 + signal number.
                           A SIGHUP does not count as the first signal.
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
    log();
    let loaded = match Loaded::read(registry, &args.sources, Hardware::Probe) {
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
    let file = state::file_name(&loaded.plan.name, args.sources.place());
    let (counter_file, last_run) = state::counter_file(directory.as_deref(), &file);
    if let Some(last) = &last_run {
        state::log_last_run(last);
    }
    let options = Options {
        directory: super::directory(),
        // Only the process that has locked the counter file writes the history.
        history: directory
            .as_ref()
            .filter(|_| counter_file.is_in_file())
            .map(|directory| directory.join(&file).with_extension("history.json")),
        counter_file,
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
            options.counter_file.end();
            print_error!("error: {error}");
            return match error {
                StartError::Sink {
                    source: SinkError::Configuration { .. },
                    ..
                } => exit::CONFIG,
                StartError::Source { source, .. } if source.is_configuration => exit::CONFIG,
                StartError::Unavailable(_)
                | StartError::Source { .. }
                | StartError::Sink {
                    source: SinkError::Unavailable { .. },
                    ..
                }
                | StartError::Thread { .. }
                | StartError::Cuda(_)
                | StartError::Region { .. } => exit::UNAVAILABLE,
                StartError::Kernel { source, .. } => match source {
                    KernelError::Refused(_) => exit::CONFIG,
                    KernelError::Unavailable(_) | KernelError::Cuda(_) => exit::UNAVAILABLE,
                    KernelError::Defect(_) | KernelError::Hung(_) => exit::INTERNAL,
                },
                _ => exit::IO,
            };
        }
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
    let (report, failures) = watch(args, &loaded.plan, pipeline, &signals);
    side.stop();
    conclude(args, &report, &failures)
}

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

/// Parses a level, or the level of one module. A module without a level logs everything.
fn level_of(part: &str) -> Result<(Option<&str>, LevelFilter), String> {
    if let Ok(level) = part.parse() {
        return Ok((None, level));
    }
    let (module, level) = part.split_once('=').unwrap_or((part, "trace"));
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "_:".contains(letter);
    let is_module = !module.is_empty() && module.chars().all(is_letter);
    match level.parse() {
        Ok(parsed) if is_module && !level.is_empty() => Ok((Some(module), parsed)),
        _ => Err(format!(
            "`{part}` is neither a level nor MODULE=LEVEL, as in `warn,daq_rdma=debug`"
        )),
    }
}

/// Starts the log on stderr. Messages contain the time of day on a terminal, no time in the journal (which adds the
/// time itself), and otherwise the date and the time. `DAQ_LOG` sets the level.
pub(super) fn log() {
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
        .with_writer(|| Stderr)
        .log_internal_errors(false)
        .with_target(false);
    let _ = if on_terminal {
        builder
            .with_timer(TimeOfDay)
            .with_ansi(true)
            .finish()
            .with(filter)
            .try_init()
    } else if systemd::present() {
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

/// Signals that end a run. Their handlers only store to atomic variables. The first signal requests a stop. A second
/// SIGINT or SIGTERM exits immediately, even if threads are blocked.
struct Signal {
    came: Arc<AtomicUsize>,
}

impl Signal {
    fn listen() -> std::io::Result<Self> {
        // With a handler, a file that reaches `ulimit -f` causes a write error instead of ending the process.
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        let came = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for (signal, number) in [(SIGINT, 2), (SIGTERM, 15), (SIGHUP, 1)] {
            // Under `nohup`, the run continues after SIGHUP. A closing terminal can send SIGHUP twice, and a service
            // manager can send SIGTERM after SIGHUP. So SIGHUP does not exit immediately, and the signal after SIGHUP
            // does not either.
            if signal == SIGHUP {
                if crate::sys::signal::is_ignored(SIGHUP) {
                    continue;
                }
            } else {
                // Register this handler first, so that it runs before the flag is set.
                flag::register_conditional_shutdown(signal, 128 + signal, again.clone())?;
                flag::register(signal, again.clone())?;
            }
            flag::register_usize(signal, came.clone(), number)?;
        }
        Ok(Self { came })
    }

    /// Returns the name of the received signal.
    fn came(&self) -> Option<&'static str> {
        match self.came.load(Ordering::Acquire) {
            0 => None,
            1 => Some("SIGHUP"),
            2 => Some("SIGINT"),
            _ => Some("SIGTERM"),
        }
    }
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
        let offer = pipeline.offer(
            &loaded.config,
            &loaded.plan,
            server.as_ref().map(Server::address),
        );
        // Recording data is more important than a client.
        let attach = attach::Server::start(offer, &attach::directories(state))
            .inspect(|server| tracing::debug!("serving {}", server.path().display()))
            .inspect_err(|error| tracing::warn!("{error}"));
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
            row: source.and_then(|source| source.image_width),
        };
        Some((ring.name.clone(), scoped))
    };
    plan.rings.iter().filter_map(ring).collect()
}

/// The state of the pipeline at the last report.
#[derive(Default)]
struct Reported {
    ready: bool,
    stopping: bool,
    /// Messages to systemd that could not be sent because the socket was full.
    unsent: Vec<&'static str>,
    /// The time of the last status line, and the report that it was computed from.
    status: Option<(Instant, Report)>,
}

impl Reported {
    /// Logs changes of the pipeline's state. Sends these changes and the status line to systemd.
    fn update(&mut self, health: &http::Health, pipeline: &Pipeline) {
        if health.ready && !std::mem::replace(&mut self.ready, true) {
            tracing::info!("running: all sources have started");
            self.unsent.push(systemd::READY);
        }
        // A signal or a failure has started the stop.
        if health.stopping && !std::mem::replace(&mut self.stopping, true) {
            self.unsent.push(systemd::STOPPING);
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

/// Returns whether packets of `count` frames with up to `packets` packets have arrived from `source`, but no packet for
/// [`LAST_FRAME_TIMEOUT`]. A frame with missing packets is published only when packets of later frames arrive.
fn awaits_gap(source: &SourceReport, packets: u64, count: u64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let last = source.last_packet_ns.map(Duration::from_nanos);
    let silence = now
        .unwrap_or_default()
        .saturating_sub(last.unwrap_or(Duration::MAX));
    source.pending > 0
        && source.expected.div_ceil(packets.max(1)) >= count
        && silence >= LAST_FRAME_TIMEOUT
}

/// Monitors the pipeline on the main thread while data flows.
fn watch(args: &Args, plan: &Plan, pipeline: Pipeline, signals: &Signal) -> (Report, Vec<Failure>) {
    let start = Instant::now();
    let health = pipeline.health();
    let mut live = Live::new(style(args));
    let mut reported = Reported::default();
    let mut stopping = None;
    let mut is_logged = false;
    let mut is_state_lost = false;
    while !pipeline.is_finished() {
        std::thread::sleep(POLL_INTERVAL);
        let time_is_up = args
            .duration
            .is_some_and(|duration| start.elapsed() >= duration.0);
        let has_enough = args.frames.as_ref().is_some_and(|(ring, count)| {
            pipeline
                .published(ring)
                .is_some_and(|published| published >= *count)
                || plan.source_of(ring).is_some_and(|source| {
                    let packets = u64::from(source.geometry.packets_per_frame);
                    let report = pipeline.report();
                    let report = report.sources.get(&source.name);
                    report.is_some_and(|report| awaits_gap(report, packets, *count))
                })
        });
        let signal = signals.came();
        if stopping.is_none() && (signal.is_some() || time_is_up || has_enough) {
            stopping = Some(Instant::now());
            pipeline.stop();
            if let Some(signal) = signal {
                is_logged = true;
                tracing::info!(
                    "{signal}: stopping; draining rings and closing files (at most {}); {} exits at once",
                    args.drain,
                    match signal {
                        "SIGHUP" => "the second SIGINT or SIGTERM",
                        _ => "another SIGINT or SIGTERM",
                    }
                );
            }
        }
        if stopping.is_some_and(|since| since.elapsed() >= SLOW_STOP) && !is_logged {
            is_logged = true;
            tracing::info!("stopping: draining rings (at most {})", args.drain);
        }
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
        let hung = pipeline.hung_sinks();
        if !hung.is_empty() {
            live.clear();
            return pipeline.leave(&hung);
        }
    }
    live.clear();
    pipeline.finish()
}

/// Returns whether stdout is a terminal that was closed.
fn is_hangup(error: &std::io::Error) -> bool {
    // `fstat` still returns the file type of a closed terminal.
    let is_device = rustix::fs::fstat(std::io::stdout())
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

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::filter::LevelFilter as Level;

    #[test]
    fn frame_with_gap_is_last_after_silence() {
        let silent = SourceReport {
            expected: 35,
            delivered: 30,
            pending: 5,
            last_packet_ns: Some(1),
            ..SourceReport::default()
        };
        // The fourth frame has begun, with 10 packets per frame.
        assert!(awaits_gap(&silent, 10, 4) && !awaits_gap(&silent, 10, 5));
        let complete = SourceReport {
            expected: 30,
            pending: 0,
            ..silent.clone()
        };
        assert!(!awaits_gap(&complete, 10, 3));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let last = u64::try_from(now.as_nanos()).unwrap();
        let receiving = SourceReport {
            last_packet_ns: Some(last),
            ..silent.clone()
        };
        assert!(!awaits_gap(&receiving, 10, 4));
        let not_started = SourceReport {
            last_packet_ns: None,
            ..silent
        };
        assert!(!awaits_gap(&not_started, 10, 4));
    }

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
        for text in ["x=", "=info", "*=debug", "x=loud", "x{y=1}=info", "a b"] {
            assert!(levels_of(text).is_err(), "{text}");
        }
    }
}
