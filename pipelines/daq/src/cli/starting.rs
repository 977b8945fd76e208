//! Starts a pipeline on another thread, so that signals are handled whatever blocks the start.

use super::load::Loaded;
use super::signal::Signal;
use super::{exit, state};
use daq_core::kernel::KernelError;
use daq_core::ledger::{CounterFile, LastRun};
use daq_core::sink::SinkError;
use daq_core::topology::Topology;
use daq_pipelines::console::{self, print_error};
use daq_pipelines::profiles;
use daq_pipelines::runtime::{CurrentStep, Options, Pipeline, StartError, Startup};
use daq_pipelines::systemd;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Interval at which signals are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a step of the start is logged, and interval at which it is logged again.
const SLOW_STEP: Duration = Duration::from_secs(10);
/// Time by which a start that takes long extends the timeout of systemd, and the interval at which it is extended.
const EXTENSION: Duration = Duration::from_mins(1);
const EXTENSION_INTERVAL: Duration = Duration::from_secs(15);
/// Time after a signal after which the start is cancelled. The current step must then end in the same time.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// A pipeline that has started.
pub(super) struct Started {
    pub(super) pipeline: Pipeline,
    pub(super) loaded: Loaded,
    /// Counters of the last run, if it was killed.
    pub(super) last_run: Option<LastRun>,
}

/// What a start needs in addition to the configuration.
pub(super) struct Needs {
    /// Directory of the counter file.
    pub(super) state: Option<PathBuf>,
    /// Name of the counter file.
    pub(super) file: String,
    pub(super) drain: Duration,
}

/// What the thread of a start shares with the main thread.
#[derive(Default)]
struct Shared {
    startup: Arc<Startup>,
    /// The counter file as soon as it is open.
    counter_file: OnceLock<CounterFile>,
}

impl Shared {
    /// Marks the run as ended, so that the next start does not report that this run was killed.
    fn end(&self) {
        if let Some(file) = self.counter_file.get() {
            file.end();
        }
    }

    /// Exits although the thread of the start still runs.
    fn leave(&self, code: u8) -> ! {
        self.end();
        console::flush();
        signal_hook::low_level::exit(i32::from(code))
    }
}

/// Starts the pipeline. On failure, prints the error and returns the exit code.
///
/// Exits immediately if a step of the start blocks after a signal, or for longer than its limit.
pub(super) fn start(loaded: Loaded, needs: Needs, signals: &Signal) -> Result<Started, u8> {
    let shared = Arc::new(Shared::default());
    let (sender, result) = mpsc::channel();
    let thread = std::thread::Builder::new().name("daq-start".to_owned());
    let spawned = thread.spawn({
        let shared = shared.clone();
        // If this thread continues after the process was asked to end, nothing receives the result.
        move || drop(sender.send(run(loaded, needs, &shared)))
    });
    if let Err(error) = spawned {
        print_error!(
            "error: cannot start a thread: {error}; raise the limit on threads (ulimit -u)"
        );
        return Err(exit::UNAVAILABLE);
    }
    wait(&result, &shared, signals).map_err(|error| {
        shared.end();
        match (error, signals.came()) {
            (StartError::Cancelled, Some(signal)) => exit::of_signal(signal),
            (error, _) => {
                print_error!("error: {error}");
                code_of(&error)
            }
        }
    })
}

/// Starts the pipeline on the calling thread. The state directory and the GPUs may not respond, so they are accessed here too.
fn run(loaded: Loaded, needs: Needs, shared: &Shared) -> Result<Started, StartError> {
    let Needs { state, file, drain } = needs;
    let startup = &shared.startup;
    startup.begin("opening the counter file".to_owned())?;
    let (counter_file, last_run) = state::counter_file(state.as_deref(), &file);
    // The file is set once.
    let _ = shared.counter_file.set(counter_file.clone());
    if let Some(last) = &last_run {
        state::log_last_run(last);
    }
    startup.begin("detecting the hardware".to_owned())?;
    let options = Options {
        directory: super::directory(),
        // Only the process that has locked the counter file writes the history.
        history: state
            .as_ref()
            .filter(|_| counter_file.is_in_file())
            .map(|directory| directory.join(&file).with_extension("history.json")),
        counter_file,
        drain,
        startup: startup.clone(),
        profiles: if loaded.plan.copies.is_empty() {
            BTreeMap::new()
        } else {
            profiles::known(&Topology::detect(), state.as_deref())
        },
    };
    let pipeline = Pipeline::start(&loaded.config, &loaded.plan, &options)?;
    Ok(Started {
        pipeline,
        loaded,
        last_run,
    })
}

/// Waits for the end of the start.
fn wait(
    result: &Receiver<Result<Started, StartError>>,
    shared: &Shared,
    signals: &Signal,
) -> Result<Started, StartError> {
    let mut signalled: Option<Instant> = None;
    let mut is_cancelled = false;
    let mut next_line = SLOW_STEP;
    let mut extended = Instant::now();
    loop {
        match result.recv_timeout(POLL_INTERVAL) {
            Ok(started) => return started,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => shared.leave(exit::INTERNAL),
        }
        if let Some(signal) = signals.came() {
            // A start that soon ends is followed by a normal stop, with a report.
            let since = signalled.get_or_insert_with(Instant::now).elapsed();
            if since >= 2 * CANCEL_TIMEOUT {
                shared.leave(exit::of_signal(signal));
            }
            if since >= CANCEL_TIMEOUT && !std::mem::replace(&mut is_cancelled, true) {
                let step = shared.startup.current().map(|step| step.what);
                tracing::info!(
                    "{signal}: stopping the start ({})",
                    step.unwrap_or_default()
                );
                shared.startup.cancel();
            }
            continue;
        }
        let Some(step) = shared.startup.current() else {
            continue;
        };
        if extended.elapsed() >= EXTENSION_INTERVAL {
            // Allocating and locking large rings takes minutes.
            extended = Instant::now();
            systemd::extend_timeout(EXTENSION);
            systemd::status(&format!("starting: {}", step.what));
        }
        if step.is_overdue {
            print_error!("error: {}", overdue(&step));
            shared.leave(exit::INTERNAL);
        } else if step.elapsed >= next_line {
            tracing::warn!(
                "still starting: {} ({} s)",
                step.what,
                step.elapsed.as_secs()
            );
            next_line += SLOW_STEP;
        } else if step.elapsed < SLOW_STEP {
            next_line = SLOW_STEP;
        }
    }
}

fn overdue(step: &CurrentStep) -> String {
    format!(
        "{} has not ended within {} s; the GPU may wait for another kernel that runs permanently; check nvidia-smi and \
         dmesg | grep -i xid, and give a kernel with much local memory, printf or malloc a GPU of its own",
        step.what,
        step.elapsed.as_secs()
    )
}

/// Returns the exit code for a pipeline that does not start.
const fn code_of(error: &StartError) -> u8 {
    match error {
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
    }
}
