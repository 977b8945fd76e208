//! The engine: a plan made to run.
//!
//! ```text
//!   source threads ──▶ ring ──▶ kernel thread ──▶ ring ──▶ sink thread
//!        stop ▲          closes when its producer ends, and so on down the line
//! ```
//! Every component runs on its own thread. Stopping begins at the sources: their windows publish what is
//! open and close their rings; kernels and sinks drain what is left and end in turn. After the start the
//! threads allocate nothing, take no lock and make no system call a frame.

mod kernel;
mod ledgers;
mod sink;
mod source;
mod staging;

pub use ledgers::Ledgers;

use crate::http::Health;
use daq_core::cuda::{self, CudaError, Device};
use daq_core::entry::SourceContext;
use daq_core::kernel::{KernelContext, KernelError, Side};
use daq_core::ledger::{Board, BoardError, Report};
use daq_core::mapped::Backend;
use daq_core::plan::{Config, Direction, Dispatch, Plan, PlannedRing};
use daq_core::region::{HostOptions, Placement, Region, RegionError};
use daq_core::ring::{Producer, Reader, Ring, RingError, RingOptions};
use daq_core::sink::{SinkContext, SinkError};
use daq_core::source::{Producers, SourceError};
use daq_core::staging::{CopyStream, Lane, Profile, Stager, measure};
use daq_core::wait::Bell;
use daq_core::window::Window;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest a data thread waits before it looks whether to stop.
const PATIENCE: Duration = Duration::from_millis(50);
/// A data thread that has not moved for so long stalls.
const STALL: Duration = Duration::from_secs(5);

/// Why a pipeline did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The plan needs hardware that is not there.
    #[error("{0}")]
    Unavailable(String),
    /// No memory.
    #[error("ring `{ring}`: {source}")]
    Region {
        /// The ring.
        ring: String,
        /// What happened.
        source: RegionError,
    },
    /// A ring could not be made.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// No place for counters.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// A source could not be opened.
    #[error("source `{name}`: {source}")]
    Source {
        /// The source.
        name: String,
        /// What happened.
        source: SourceError,
    },
    /// A kernel could not be built.
    #[error("kernel `{name}`: {source}")]
    Kernel {
        /// The kernel.
        name: String,
        /// What happened.
        source: KernelError,
    },
    /// A GPU refused what the start needs.
    #[error("{0}")]
    Cuda(#[from] CudaError),
    /// A sink could not be opened.
    #[error("sink `{name}`: {source}")]
    Sink {
        /// The sink.
        name: String,
        /// What happened.
        source: SinkError,
    },
    /// The system gave no thread.
    #[error("no thread for `{name}`: {source}")]
    Thread {
        /// The component.
        name: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// A medium, a socket or a file failed.
    Io,
    /// A GPU failed.
    Device,
    /// A defect of daq.
    Defect,
}

/// What went wrong while the pipeline ran; it drains and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Whose fault it is.
    pub kind: FailureKind,
    /// The component, such as ``sink `disk` ``.
    pub component: String,
    /// What happened and what helps.
    pub why: String,
}

/// How a pipeline is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where relative paths start.
    pub directory: PathBuf,
    /// Where counters live.
    pub board: Board,
    /// How long sinks that cannot write may hold up the end.
    pub drain: Duration,
    /// What was measured of GPUs before, by their ordinals; others are measured at the start.
    pub profiles: BTreeMap<u32, Profile>,
}

/// The bell of each staging thread, which the rings that it copies ring.
type Bells = BTreeMap<(u32, Direction), Arc<Bell>>;

fn bells(plan: &Plan) -> Bells {
    let copies = plan.copies.iter();
    copies
        .map(|copy| ((copy.device, copy.direction), Arc::default()))
        .collect()
}

/// What is known of the copies of each GPU; what is not is measured.
fn measured(bells: &Bells, options: &Options) -> Result<BTreeMap<u32, Profile>, StartError> {
    let mut profiles = options.profiles.clone();
    for &(ordinal, _) in bells.keys() {
        if let Entry::Vacant(unknown) = profiles.entry(ordinal) {
            let profile = match measure(Device::open(ordinal)?) {
                Ok(profile) => {
                    tracing::info!("cuda:{ordinal}: measured its copies; `daq tune` keeps that");
                    profile
                }
                Err(error) => {
                    tracing::warn!("cuda:{ordinal}: its copies are not tuned: {error}");
                    Profile::usual()
                }
            };
            unknown.insert(profile);
        }
    }
    Ok(profiles)
}

/// What threads and owner share.
#[derive(Debug)]
pub(crate) struct Control {
    stop: AtomicBool,
    /// When the end must not wait any longer for sinks that cannot write, in ms since `start`; 0 = not ending.
    deadline: AtomicU64,
    drain: Duration,
    start: Instant,
    failures: Mutex<Vec<Failure>>,
}

impl Control {
    fn new(drain: Duration) -> Self {
        Self {
            stop: AtomicBool::new(false),
            deadline: AtomicU64::new(0),
            drain,
            start: Instant::now(),
            failures: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Whether draining has taken longer than allowed.
    pub(crate) fn is_overdue(&self) -> bool {
        let deadline = self.deadline.load(Ordering::Acquire);
        deadline != 0 && self.since_start() >= deadline
    }

    fn since_start(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn stop(&self) {
        if !self.stop.swap(true, Ordering::AcqRel) {
            let drain = u64::try_from(self.drain.as_millis()).unwrap_or(u64::MAX);
            self.deadline
                .store((self.since_start() + drain).max(1), Ordering::Release);
        }
    }

    /// Records what went wrong and stops the sources.
    pub(crate) fn fail(&self, kind: FailureKind, component: String, why: String) {
        let failure = Failure {
            kind,
            component,
            why,
        };
        // The log last: whatever becomes of it, the pipeline stops.
        let line = format!("{}: {}", failure.component, failure.why);
        self.failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(failure);
        self.stop();
        tracing::error!("{line}");
    }
}

/// A sign of life of one data thread.
#[derive(Debug)]
pub(crate) struct Pulse {
    name: String,
    beats: AtomicU64,
    ended: AtomicBool,
    /// The beats at the last look, and when they last changed.
    seen: Mutex<(u64, Instant)>,
}

impl Pulse {
    fn new(name: String) -> Arc<Self> {
        Arc::new(Self {
            name,
            beats: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            seen: Mutex::new((0, Instant::now())),
        })
    }

    pub(crate) fn beat(&self) {
        self.beats.store(
            self.beats.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    fn is_stalled(&self) -> bool {
        let beats = self.beats.load(Ordering::Relaxed);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if beats != seen.0 || self.ended.load(Ordering::Acquire) {
            *seen = (beats, Instant::now());
        }
        seen.1.elapsed() > STALL
    }
}

/// Whether a device goes on with what it was given. The thread of one that does not shows no sign of life, so that it
/// is told as stalled.
#[derive(Debug)]
pub(crate) struct Progress {
    since: Instant,
    is_told: bool,
}

impl Progress {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            is_told: false,
        }
    }

    /// Whether it takes so long that asking the driver costs nothing.
    pub(crate) fn is_slow(&self) -> bool {
        self.since.elapsed() > PATIENCE
    }

    /// Takes note of one look at the device: whether it has work, and whether any was finished or begun. True if that is
    /// so long ago that it seems to hang.
    pub(crate) fn look(&mut self, has_work: bool, has_moved: bool, pulse: &Pulse) -> bool {
        if !has_work || has_moved {
            *self = Self::new();
            pulse.beat();
        } else if !self.is_told && self.since.elapsed() > STALL {
            self.is_told = true;
            tracing::warn!(
                "{}: its GPU has finished nothing for {} s; the GPU or its driver hangs: nvidia-smi; dmesg | grep -i xid",
                pulse.name,
                STALL.as_secs()
            );
        }
        self.is_told
    }
}

/// A running pipeline.
#[derive(Debug)]
pub struct Pipeline {
    control: Arc<Control>,
    ledgers: Arc<Ledgers>,
    rings: BTreeMap<String, Ring>,
    pulses: Vec<Arc<Pulse>>,
    started: Arc<AtomicU64>,
    sources: usize,
    threads: Vec<JoinHandle<()>>,
    board: Board,
}

impl Pipeline {
    /// Builds everything that `plan` says and starts it.
    ///
    /// Sinks and kernels are opened before sources, so that no packet is received before all can run.
    pub fn start(config: &Config, plan: &Plan, options: &Options) -> Result<Self, StartError> {
        if let Some(missing) = plan.unavailable.first() {
            return Err(StartError::Unavailable(missing.clone()));
        }
        let ledgers = Arc::new(Ledgers::new(plan, &options.board)?);
        let mut pipeline = Self {
            control: Arc::new(Control::new(options.drain)),
            ledgers,
            rings: BTreeMap::new(),
            pulses: Vec::new(),
            started: Arc::new(AtomicU64::new(0)),
            sources: plan.sources.iter().map(|source| source.threads).sum(),
            threads: Vec::new(),
            board: options.board.clone(),
        };
        let result = pipeline.build(config, plan, options);
        if result.is_err() {
            // Threads that run already end because the producers of their rings are gone.
            pipeline.control.stop();
            pipeline.join();
        }
        result.map(|()| pipeline)
    }

    fn build(&mut self, config: &Config, plan: &Plan, options: &Options) -> Result<(), StartError> {
        let mut producers = BTreeMap::new();
        let bells = bells(plan);
        // Before the rings take the memory that measuring wants for a moment.
        let profiles = measured(&bells, options)?;
        for planned in &plan.rings {
            let (ring, producer) = self.ring(plan, planned, &bells)?;
            self.rings.insert(planned.name.clone(), ring);
            producers.insert(planned.name.clone(), producer);
        }
        self.sinks(config, plan, options)?;
        let kernels = self.kernels(config, plan, options, &mut producers)?;
        self.copies(config, plan, &profiles, &bells, &mut producers)?;
        // Once a kernel stays on a GPU nothing can be allocated or loaded there.
        for (planned, mut runner) in plan.kernels.iter().zip(kernels) {
            runner.begin().map_err(|source| StartError::Kernel {
                name: planned.name.clone(),
                source,
            })?;
            self.spawn(&planned.name, planned.core, move |pulse| runner.run(pulse))?;
        }
        self.sources(config, plan, options, &mut producers)
    }

    fn ring(
        &self,
        plan: &Plan,
        planned: &PlannedRing,
        bells: &Bells,
    ) -> Result<(Ring, Producer), StartError> {
        let copies = plan.copies.iter();
        let copies = copies.filter(|copy| copy.from == planned.name || copy.to == planned.name);
        let ring_options = RingOptions {
            bells: copies
                .clone()
                .map(|copy| bells[&(copy.device, copy.direction)].clone())
                .collect(),
            ..planned.options()
        };
        let bytes = ring_options.region_bytes();
        let region = match planned.placement {
            Placement::Host => Region::host(
                bytes,
                HostOptions {
                    node: planned.node,
                    lock: planned.lock,
                    huge: planned.huge,
                },
            ),
            Placement::Cuda(ordinal) => Device::open(ordinal)
                .map_err(RegionError::from)
                .and_then(|device| Region::cuda(device, bytes)),
        };
        let region = region.map_err(|source| StartError::Region {
            ring: planned.name.clone(),
            source,
        })?;
        if let Some(memory) = region.memory() {
            tracing::info!("ring {}: {}", planned.name, memory.backing());
        } else if let Some(copy) = copies.clone().next() {
            Device::open(copy.device)
                .map_err(RegionError::from)
                .and_then(|device| region.pin(device))
                .map_err(|source| StartError::Region {
                    ring: planned.name.clone(),
                    source,
                })?;
        }
        for refused in &region.granted().refused {
            tracing::warn!("ring {}: {refused}", planned.name);
        }
        tracing::debug!("ring {}: {:?}", planned.name, region.granted());
        Ok(Ring::new(
            region,
            ring_options,
            self.ledgers.ring(&planned.name),
        )?)
    }

    fn attach(
        &self,
        ring: &str,
        reader: &str,
        guarantee: bool,
        burst: usize,
    ) -> Result<Reader, StartError> {
        Ok(self.rings[ring].attach(guarantee, burst, self.ledgers.reader(reader))?)
    }

    fn sinks(&mut self, config: &Config, plan: &Plan, options: &Options) -> Result<(), StartError> {
        for planned in &plan.sinks {
            let component = config.sinks.iter().find(|sink| sink.name() == planned.name);
            let component = component.expect("a plan's sinks are those of its configuration");
            let ring = plan
                .ring(&planned.input)
                .expect("a plan's readers read its rings");
            let ledger = self.ledgers.sink(&planned.name);
            let context = SinkContext {
                pipeline: plan.name.clone(),
                name: planned.name.clone(),
                ring: ring.name.clone(),
                layout: ring.layout.clone(),
                slot_bytes: ring.slot_bytes,
                places: ring.places,
                first_bytes: ring.first_bytes,
                place_bytes: ring.place_bytes,
                directory: options.directory.clone(),
                ledger: ledger.clone(),
            };
            let sink = component
                .spec
                .build(context)
                .map_err(|source| StartError::Sink {
                    name: planned.name.clone(),
                    source,
                })?;
            let reader = self.attach(
                &planned.input,
                &planned.name,
                planned.guarantee,
                planned.burst,
            )?;
            let control = self.control.clone();
            let runner = sink::Runner {
                name: planned.name.clone(),
                sink,
                reader,
                ledger,
                guarantee: planned.guarantee,
                burst: planned.burst,
                wait: planned.wait,
                control,
            };
            self.spawn(&planned.name, planned.core, move |pulse| runner.run(pulse))?;
        }
        Ok(())
    }

    fn kernels(
        &mut self,
        config: &Config,
        plan: &Plan,
        options: &Options,
        producers: &mut BTreeMap<String, Producer>,
    ) -> Result<Vec<kernel::Runner>, StartError> {
        let mut runners = Vec::new();
        for planned in &plan.kernels {
            let component = config
                .kernels
                .iter()
                .find(|kernel| kernel.name() == planned.name);
            let component = component.expect("a plan's kernels are those of its configuration");
            let ring = plan
                .ring(&planned.input)
                .expect("a plan's readers read its rings");
            let context = KernelContext {
                name: planned.name.clone(),
                directory: options.directory.clone(),
                input: ring.layout.clone(),
                side: planned.side,
                burst: planned.burst,
                places: ring.places,
                slots: self.rings[&planned.input].slice(),
                output: self.rings[&planned.output].slice(),
                dispatch: planned.dispatch.unwrap_or(Dispatch::Launch),
                backends: Backend::ALL.to_vec(),
            };
            let kernel = component
                .spec
                .build(&context)
                .map_err(|source| StartError::Kernel {
                    name: planned.name.clone(),
                    source,
                })?;
            let stream = match planned.side {
                // A kernel that stays has a stream of its own.
                _ if planned.dispatch == Some(Dispatch::Persistent) => None,
                Side::Cpu => None,
                Side::Cuda(ordinal) => Some(cuda::Stream::timed(
                    Device::open(ordinal)?,
                    // One more for the last one that was timed.
                    kernel::MOST_IN_FLIGHT + 1,
                )?),
            };
            let ledger = self.ledgers.kernel(&planned.name);
            if let Some(occupancy) = kernel.occupancy() {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a part of one"
                )]
                ledger.occupancy.set((occupancy * 1e6) as u64);
            }
            let reader = self.attach(
                &planned.input,
                &planned.name,
                planned.guarantee,
                planned.burst,
            )?;
            let producer = producers
                .remove(&planned.output)
                .expect("a ring has one producer, checked by the plan");
            runners.push(kernel::Runner {
                name: planned.name.clone(),
                reader,
                producer,
                stream,
                kernel: Some(kernel),
                ledger,
                burst: planned.burst,
                wait: planned.wait,
                control: self.control.clone(),
                patience: kernel::HANG,
                hanging: None,
                hung: false,
                failed: false,
            });
        }
        Ok(runners)
    }

    /// Starts the staging threads: one a GPU and direction.
    fn copies(
        &mut self,
        config: &Config,
        plan: &Plan,
        profiles: &BTreeMap<u32, Profile>,
        bells: &Bells,
        producers: &mut BTreeMap<String, Producer>,
    ) -> Result<(), StartError> {
        let keys = &config.staging;
        for (i, (&(ordinal, direction), bell)) in bells.iter().enumerate() {
            let device = Device::open(ordinal)?;
            let profile = &profiles[&ordinal];
            let chunk = keys
                .chunk
                .map(|chunk| usize::try_from(chunk.0).unwrap_or(usize::MAX));
            let depth = keys.depth.map(|depth| depth as usize);
            let tuning = profile.tuning_for(direction, chunk, depth);
            let stream = CopyStream::new(device, direction, tuning.depth)?;
            let mut stager = Stager::new(Box::new(stream), tuning, bell.clone());
            let copies = plan.copies.iter();
            for copy in copies.filter(|copy| (copy.device, copy.direction) == (ordinal, direction))
            {
                let reader = self.attach(&copy.from, &copy.name, true, 1)?;
                let producer = producers
                    .remove(&copy.to)
                    .expect("a ring has one producer, checked by the plan");
                let ledger = self.ledgers.copy(&copy.to);
                stager.add(Lane::new(reader, producer, ledger, tuning.chunk));
            }
            let way = match direction {
                Direction::In => "to",
                Direction::Out => "from",
            };
            let name = format!("copies {way} cuda:{ordinal}");
            let wait = keys.wait.into();
            let runner = staging::Runner::new(name.clone(), stager, wait, self.control.clone());
            let core = (!keys.cores.is_empty()).then(|| keys.cores[i % keys.cores.len()]);
            self.spawn(&name, core, move |pulse| runner.run(pulse))?;
        }
        Ok(())
    }

    fn sources(
        &mut self,
        config: &Config,
        plan: &Plan,
        options: &Options,
        producers: &mut BTreeMap<String, Producer>,
    ) -> Result<(), StartError> {
        for planned in &plan.sources {
            let component = config
                .sources
                .iter()
                .find(|source| source.name() == planned.name);
            let component = component.expect("a plan's sources are those of its configuration");
            let context = SourceContext {
                name: planned.name.clone(),
                directory: options.directory.clone(),
                geometry: planned.geometry,
            };
            let fail = |source| StartError::Source {
                name: planned.name.clone(),
                source,
            };
            let fillers = match component.spec.build(&context).map_err(fail)? {
                Producers::Fillers(fillers) => fillers,
                Producers::Engine(_) => {
                    return Err(StartError::Unavailable(format!(
                        "source `{}`: this version runs no DMA engines",
                        planned.name
                    )));
                }
            };
            let producer = producers
                .remove(&planned.ring)
                .expect("a ring has one producer, checked by the plan");
            let ledger = self.ledgers.source(&planned.name);
            let windows = Window::new(producer, planned.geometry, fillers.len(), &ledger);
            let writing = Arc::new(AtomicU64::new(0));
            let mut runners = Vec::new();
            // All of them before the first runs: none may find itself alone.
            for (filler, window) in fillers.into_iter().zip(windows) {
                runners.push(source::Runner {
                    name: planned.name.clone(),
                    filler,
                    window,
                    wait: planned.wait,
                    writing: source::Writing::join(&writing),
                    started: self.started.clone(),
                    control: self.control.clone(),
                });
            }
            for (i, runner) in runners.into_iter().enumerate() {
                let name = if i == 0 {
                    planned.name.clone()
                } else {
                    format!("{}.{i}", planned.name)
                };
                self.spawn(&name, planned.cores.get(i).copied(), move |pulse| {
                    runner.run(pulse);
                })?;
            }
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        name: &str,
        core: Option<usize>,
        work: impl FnOnce(&Pulse) + Send + 'static,
    ) -> Result<(), StartError> {
        let pulse = Pulse::new(name.to_owned());
        self.pulses.push(pulse.clone());
        let control = self.control.clone();
        let component = name.to_owned();
        let thread = std::thread::Builder::new()
            .name(format!("daq-{name}").chars().take(15).collect())
            .spawn(move || {
                if let Some(core) = core
                    && let Err(errno) = daq_core::thread::pin(core)
                {
                    tracing::warn!(
                        "{component}: cannot run on core {core}: {errno}; running anywhere"
                    );
                }
                // A panic is a defect of ours; it must end the pipeline with its ledgers, not hang it.
                let result =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&pulse)));
                pulse.ended.store(true, Ordering::Release);
                if result.is_err() {
                    control.fail(
                        FailureKind::Defect,
                        component,
                        "stopped by a defect of daq; please report it with the lines above"
                            .to_owned(),
                    );
                }
            })
            .map_err(|source| StartError::Thread {
                name: name.to_owned(),
                source,
            })?;
        self.threads.push(thread);
        Ok(())
    }

    /// The ledgers now.
    pub fn report(&self) -> Report {
        self.ledgers.report()
    }

    /// The ledgers, for threads that show them.
    pub fn ledgers(&self) -> Arc<Ledgers> {
        self.ledgers.clone()
    }

    /// Signs of life, for threads that show them.
    pub fn health(&self) -> impl Fn() -> Health + Send + Sync + 'static {
        let (pulses, started, sources) = (
            self.pulses.clone(),
            self.started.clone(),
            self.sources as u64,
        );
        let control = self.control.clone();
        move || Health {
            ready: started.load(Ordering::Acquire) >= sources,
            stopping: control.is_stopping(),
            stalled: pulses
                .iter()
                .filter(|pulse| pulse.is_stalled())
                .map(|pulse| pulse.name.clone())
                .collect(),
        }
    }

    /// Frames published in `ring` so far; `None` if there is no such ring.
    pub fn published(&self, ring: &str) -> Option<u64> {
        Some(self.rings.get(ring)?.published())
    }

    /// Asks the sources to stop; the rest drains.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Whether every thread has ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits until every thread has ended and closes the ledgers: the last report and what went wrong.
    pub fn finish(mut self) -> (Report, Vec<Failure>) {
        self.join();
        let report = self.report();
        for violation in report.violations() {
            tracing::error!("the ledger does not balance, a defect of daq: {violation}");
        }
        self.board.end();
        let failures = std::mem::take(
            &mut *self
                .control
                .failures
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        (report, failures)
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // Panics are caught inside the thread.
            let _ = thread.join();
        }
    }
}
