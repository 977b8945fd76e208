//! Starts a pipeline on another thread, so that signals are handled whatever blocks the start.

use super::exit;
use super::load::Loaded;
use super::signal::Signal;
use daq_core::kernel::KernelError;
use daq_core::sink::SinkError;
use daq_pipelines::console::{self, print_error};
use daq_pipelines::runtime::{CurrentStep, Options, Pipeline, StartError};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Interval at which signals are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a step of the start is logged, and interval at which it is logged again.
const SLOW_STEP: Duration = Duration::from_secs(10);
/// Time after a signal after which the start is cancelled. The current step must then end in the same time.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// The result of a start.
type Started = Result<(Pipeline, Loaded), StartError>;

/// Starts the pipeline, and returns it with its configuration. On failure, prints the error and returns the exit code.
///
/// Exits immediately if a step of the start blocks after a signal, or for longer than its limit.
pub(super) fn start(
    loaded: Loaded,
    options: &Options,
    signals: &Signal,
) -> Result<(Pipeline, Loaded), u8> {
    let (sender, result) = mpsc::channel();
    let context = options.clone();
    let thread = std::thread::Builder::new().name("daq-start".to_owned());
    let spawned = thread.spawn(move || {
        // If this thread continues after the process was asked to end, nothing receives the result.
        let started = Pipeline::start(&loaded.config, &loaded.plan, &context);
        let _ = sender.send(started.map(|pipeline| (pipeline, loaded)));
    });
    if let Err(error) = spawned {
        options.counter_file.end();
        print_error!(
            "error: cannot start a thread: {error}; raise the limit on threads (ulimit -u)"
        );
        return Err(exit::UNAVAILABLE);
    }
    wait(&result, options, signals).map_err(|error| {
        options.counter_file.end();
        match (error, signals.came()) {
            (StartError::Cancelled, Some(signal)) => exit::of_signal(signal),
            (error, _) => {
                print_error!("error: {error}");
                code_of(&error)
            }
        }
    })
}

/// Waits for the end of the start.
fn wait(result: &Receiver<Started>, options: &Options, signals: &Signal) -> Started {
    let mut signalled: Option<Instant> = None;
    let mut is_cancelled = false;
    let mut next_line = SLOW_STEP;
    loop {
        match result.recv_timeout(POLL_INTERVAL) {
            Ok(started) => return started,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                leave(options, exit::INTERNAL);
            }
        }
        let Some(step) = options.startup.current() else {
            continue;
        };
        if let Some(signal) = signals.came() {
            // A start that soon ends is followed by a normal stop, with a report.
            let since = signalled.get_or_insert_with(Instant::now).elapsed();
            if since >= 2 * CANCEL_TIMEOUT {
                leave(options, exit::of_signal(signal));
            }
            if since >= CANCEL_TIMEOUT && !std::mem::replace(&mut is_cancelled, true) {
                tracing::info!("{signal}: stopping the start ({})", step.what);
                options.startup.cancel();
            }
        } else if step.is_overdue {
            print_error!("error: {}", overdue(&step));
            leave(options, exit::INTERNAL);
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

/// Exits although the thread of the start still runs.
fn leave(options: &Options, code: u8) -> ! {
    options.counter_file.end();
    console::flush();
    signal_hook::low_level::exit(i32::from(code))
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
