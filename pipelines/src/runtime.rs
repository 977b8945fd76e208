//! Runs a plan.
//!
//! ```text
//!   source threads ──▶ ring ──▶ kernel thread ──▶ ring ──▶ sink thread
//!        stop ▲          closes when its producer ends, and so on down the line
//! ```
//! Every component runs on its own thread. Stopping begins at the sources: they publish open frames and close their
//! rings. Kernels and sinks then drain the remaining frames and end, one after another. After startup, the threads
//! allocate nothing, take no lock and make no system call per frame.

mod build;
pub mod control;
mod dma;
pub mod kernel;
mod ledgers;
mod monitor;
mod sink;
mod source;
mod staging;
mod startup;

pub use ledgers::Ledgers;
pub use startup::{CurrentStep, Startup};

use crate::attach::{Offer, OfferedRing, OfferedSource, Ready};
use crate::history::History;
use crate::http::Health;
pub use control::STALL_TIMEOUT;
use control::{Control, Heartbeat, Progress, Role, STOP_POLL_INTERVAL};
use daq_core::gpu::driver::CudaError;
use daq_core::kernel::KernelError;
use daq_core::ledger::{CounterFile, CounterFileError, Missing, Report};
use daq_core::plan::{Config, Plan};
use daq_core::region::RegionError;
use daq_core::ring::{Ring, RingError};
use daq_core::sink::SinkError;
use daq_core::source::SourceError;
use daq_core::staging::Profile;
use monitor::Monitor;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time after the drain deadline for threads whose GPU hangs to end, for sinks to close their files, and for a sink whose write hangs
/// to count its frames.
const HANG_GRACE: Duration = Duration::from_secs(7);

/// Reasons why a pipeline cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The plan needs hardware that is not available.
    #[error("{0}")]
    Unavailable(String),
    /// The start was cancelled.
    #[error("the start was cancelled")]
    Cancelled,
    /// The memory of a ring cannot be allocated.
    #[error("ring `{ring}`: {source}")]
    Region {
        /// Name of the ring.
        ring: String,
        /// The error that caused the failure.
        source: RegionError,
    },
    /// A ring could not be created.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The counter file could not be created.
    #[error(transparent)]
    CounterFile(#[from] CounterFileError),
    /// A source could not be opened.
    #[error("source `{name}`: {source}")]
    Source {
        /// Name of the source.
        name: String,
        /// The error that caused the failure.
        source: SourceError,
    },
    /// A kernel could not be built.
    #[error("kernel `{name}`: {source}")]
    Kernel {
        /// Name of the kernel.
        name: String,
        /// The error that caused the failure.
        source: KernelError,
    },
    /// A GPU operation at startup failed.
    #[error("{0}")]
    Cuda(#[from] CudaError),
    /// A sink could not be opened.
    #[error("sink `{name}`: {source}")]
    Sink {
        /// Name of the sink.
        name: String,
        /// The error that caused the failure.
        source: SinkError,
    },
    /// Linux cannot start a thread.
    #[error(
        "cannot start a thread for `{name}`: {source}; raise the limits on threads and memory (ulimit -u and -v, \
         TasksMax= and MemoryMax=)"
    )]
    Thread {
        /// Name of the component.
        name: String,
        /// The error that Linux reported.
        source: std::io::Error,
    },
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// An input or output error of a disk, a socket or a file.
    Io,
    /// A GPU failed.
    Device,
    /// A defect in daq.
    Defect,
}

/// A failure of the running pipeline; the pipeline drains and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// The component, such as ``sink `disk` ``.
    pub component: String,
    /// What happened and how to fix it.
    pub why: String,
}

/// A thread that prevents the end of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HungThread(Failure);

/// Options for running a pipeline.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory from which relative paths start.
    pub directory: PathBuf,
    /// File that contains the counters, so that they survive a kill of the process.
    pub counter_file: CounterFile,
    /// File that keeps the history of the ledgers when daq restarts; `None` to keep the history in memory only.
    pub history: Option<PathBuf>,
    /// Maximum time that sinks that cannot write may delay the end of the pipeline.
    pub drain: Duration,
    /// The steps of the start.
    pub startup: Arc<Startup>,
    /// Saved profiles of GPUs by ordinal. GPUs without a profile are measured at startup.
    pub profiles: BTreeMap<u32, Profile>,
}

/// A running pipeline.
#[derive(Debug)]
pub struct Pipeline {
    control: Arc<Control>,
    ledgers: Arc<Ledgers>,
    history: Arc<History>,
    rings: BTreeMap<String, Ring>,
    heartbeats: Vec<Arc<Heartbeat>>,
    started: Arc<AtomicU64>,
    sources: usize,
    threads: Vec<JoinHandle<()>>,
    /// Monitors the sources; `None` until the sources run.
    monitor: Option<Monitor>,
    /// Packets that never arrived, by source; see [`add_missing`](Self::add_missing).
    missing: Mutex<BTreeMap<String, Missing>>,
    counter_file: CounterFile,
}

impl Pipeline {
    /// Builds everything in `plan` and starts it.
    ///
    /// Sinks and kernels are opened before sources, so that packets arrive only when all components can process them.
    pub fn start(config: &Config, plan: &Plan, options: &Options) -> Result<Self, StartError> {
        if let Some(missing) = plan.unavailable.first() {
            return Err(StartError::Unavailable(missing.clone()));
        }
        let ledgers = Arc::new(Ledgers::new(plan, &options.counter_file)?);
        let mut pipeline = Self {
            control: Arc::new(Control::new(options.drain)),
            ledgers,
            history: Arc::new(monitor::history_of(plan)),
            rings: BTreeMap::new(),
            heartbeats: Vec::new(),
            started: Arc::new(AtomicU64::new(0)),
            sources: plan.sources.iter().map(|source| source.threads).sum(),
            threads: Vec::new(),
            monitor: None,
            missing: Mutex::default(),
            counter_file: options.counter_file.clone(),
        };
        let result = pipeline.build(config, plan, options);
        if result.is_err() {
            // Threads that are already running end, because dropping the other parts closes their rings.
            pipeline.control.stop();
            pipeline.join();
        }
        result.map(|()| pipeline)
    }

    /// Reads all ledgers.
    pub fn report(&self) -> Report {
        self.ledgers.report()
    }

    /// Returns the ledgers, for threads that report them.
    pub fn ledgers(&self) -> Arc<Ledgers> {
        self.ledgers.clone()
    }

    /// Returns the history of the ledgers.
    pub fn history(&self) -> Arc<History> {
        self.history.clone()
    }

    /// Returns a function that reports the health of the data threads.
    pub fn health(&self) -> impl Fn() -> Health + Send + Sync + 'static {
        let (heartbeats, started, sources) = (
            self.heartbeats.clone(),
            self.started.clone(),
            self.sources as u64,
        );
        let (control, ledgers) = (self.control.clone(), self.ledgers.clone());
        move || Health {
            silent: [ledgers.activity().silences(), ledgers.obstacles().collect()].concat(),
            started: started.load(Ordering::Acquire) >= sources,
            stopping: control.is_stopping(),
            stalled: heartbeats
                .iter()
                .filter(|heartbeat| heartbeat.is_stalled())
                .map(|heartbeat| heartbeat.name.clone())
                .collect(),
        }
    }

    /// Returns the rings by name.
    pub const fn rings(&self) -> &BTreeMap<String, Ring> {
        &self.rings
    }

    /// Returns the number of frames published in `ring`; `None` if the pipeline has no ring of this name.
    pub fn published(&self, ring: &str) -> Option<u64> {
        Some(self.rings.get(ring)?.published())
    }

    /// Returns what the attach server offers to other processes. `http` is the address of the HTTP server.
    pub fn offer(&self, config: &Config, plan: &Plan, http: Option<SocketAddr>) -> Offer {
        let rings = plan.rings.iter().filter_map(|planned| {
            let offered = OfferedRing {
                ring: self.rings.get(&planned.name)?.clone(),
                planned: planned.clone(),
                ledger: self.ledgers.ring(&planned.name),
            };
            Some((planned.name.clone(), offered))
        });
        let sources = plan.sources.iter().filter_map(|planned| {
            let mut configured = config.sources.iter();
            let source = configured.find(|source| source.name() == planned.name)?;
            let offered = OfferedSource {
                ring: planned.ring.clone(),
                frame_bytes: planned.geometry.frame_bytes,
                inlet: source.spec.facts().inlet?,
            };
            Some((planned.name.clone(), offered))
        });
        Offer {
            sources: sources.collect(),
            pipeline: plan.name.clone(),
            group: config.attach.group.clone(),
            ready: {
                let health = self.health();
                Ready(Arc::new(move || health().is_ready()))
            },
            http,
            rings: rings.collect(),
            clients: self.ledgers.clients().clone(),
        }
    }

    /// Requests the sources to stop; the other threads then drain their rings.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Returns whether every thread has ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Returns whether another program truncated the counter file. If so, a later start cannot report that this run was
    /// killed.
    pub fn is_state_lost(&self) -> bool {
        self.counter_file.is_state_lost()
    }

    /// Records packets of `source` that never arrived after its last packet. They count as expected and lost when the
    /// pipeline has ended.
    pub fn add_missing(&self, source: &str, packets: Missing) {
        if !matches!(packets, Missing::Packets { packets: 0, .. }) {
            self.control.request_whole_frames(source);
        }
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        missing.insert(source.to_owned(), packets);
    }

    /// Returns the threads that hang, if the drain time is over and no other thread delays the end: sinks whose writes
    /// hang, or sources and kernels that do not return from their work.
    ///
    /// Must be called regularly. The result is empty in all other cases.
    pub fn hung_threads(&self) -> Vec<HungThread> {
        if !self.control.is_overdue() {
            return Vec::new();
        }
        let open = self.heartbeats.iter().filter(|thread| !thread.has_ended());
        let (stalled, others): (Vec<_>, Vec<_>) = open.partition(|thread| thread.is_stalled());
        let hung = || stalled.iter().map(|thread| self.describe(thread)).collect();
        let is_sink = |thread: &&Arc<Heartbeat>| thread.role == Role::Sink;
        if stalled.iter().all(is_sink) {
            // A sink whose disk hangs first drops its frames, so that the report counts each of them once.
            let has_final_counts = stalled.iter().all(|thread| thread.has_final_counts())
                || self.control.is_overdue_by(HANG_GRACE);
            // Kernels wait for the sinks.
            let is_blocked =
                has_final_counts && others.iter().all(|thread| thread.role == Role::Step);
            return if is_blocked { hung() } else { Vec::new() };
        }
        // A thread whose GPU hangs ends by itself.
        if !self.control.is_overdue_by(HANG_GRACE) {
            return Vec::new();
        }
        // The other sinks close their files.
        self.control.close_sinks();
        if others.iter().any(is_sink) && !self.control.is_overdue_by(2 * HANG_GRACE) {
            return Vec::new();
        }
        hung()
    }

    fn describe(&self, thread: &Heartbeat) -> HungThread {
        let name = &thread.name;
        let (kind, component) = match thread.role {
            Role::Sink => (FailureKind::Io, format!("sink `{name}`")),
            Role::Source => (FailureKind::Defect, format!("source `{name}`")),
            Role::Step if self.ledgers.is_kernel(name) => {
                (FailureKind::Defect, format!("kernel `{name}`"))
            }
            Role::Step => (FailureKind::Defect, name.clone()),
        };
        let why = match thread.role {
            Role::Sink => {
                "a write has not returned for {} s and the drain time is over; the last file may be incomplete; check \
                 the disk (dmesg); `--drain` sets the drain time"
            }
            Role::Source => {
                "the source has not returned for {} s and the drain time is over; its last frames are not complete"
            }
            Role::Step => {
                "a frame has not been finished for {} s and the drain time is over; frames that were not processed \
                 remain `pending`; use smaller frames or a faster kernel, or increase `--drain`"
            }
        };
        HungThread(Failure {
            kind,
            component,
            why: why.replace("{}", &STALL_TIMEOUT.as_secs().to_string()),
        })
    }

    /// Ends the pipeline without waiting for the threads `hung`. Returns the last report and the failures. The memory of
    /// those threads is leaked. Frames that these threads still hold remain `pending` in the report.
    pub fn leave(mut self, hung: Vec<HungThread>) -> (Report, Vec<Failure>) {
        for HungThread(failure) in hung {
            self.control
                .fail(failure.kind, failure.component, failure.why);
        }
        self.threads.clear();
        self.monitor = None;
        self.close()
    }

    /// Waits until every thread has ended and closes the ledgers. Returns the last report and the failures.
    pub fn finish(mut self) -> (Report, Vec<Failure>) {
        self.join();
        self.monitor = None;
        self.close()
    }

    /// Returns the last report and the failures; marks this run as ended in the counter file.
    fn close(&self) -> (Report, Vec<Failure>) {
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        for (source, packets) in &*missing {
            self.ledgers.source(source).add_missing(*packets);
        }
        let report = self.report();
        for violation in report.violations() {
            tracing::error!("the ledger does not balance: {violation}; this is a defect in daq");
        }
        self.counter_file.end();
        let failures = self.control.failures();
        (report, failures)
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // Panics are caught inside the thread, so joining it cannot fail.
            let _ = thread.join();
        }
    }
}
