//! Builds a running pipeline from a plan: it first allocates memory, then loads code, then starts threads.

mod copies;
mod gathers;

use super::control::{Heartbeat, Role};
use super::monitor::{Monitor, MonitoredSource};
use super::{FailureKind, Options, Pipeline, StartError, dma, kernel, sink, source};
use daq_core::entry::{SourceContext, SourceSpec};
use daq_core::gpu::Dispatch;
use daq_core::gpu::Writer;
use daq_core::gpu::driver::{self, Device};
use daq_core::kernel::{DeviceDoorbell, FrameShare, KernelContext, Side};
use daq_core::notify::Notifier;
use daq_core::plan::{
    Config, DoorbellInitiator, Incomplete, Plan, PlannedCopy, PlannedKernel, PlannedRing,
    PlannedSource,
};
use daq_core::region::{HostOptions, Placement, Region, RegionError};
use daq_core::reorder::ReorderWindow;
use daq_core::ring::{Producer, Reader, Ring, RingOptions};
use daq_core::sink::SinkContext;
use daq_core::source::{Producers, SourceError};
use daq_core::staging::{Profile, RingCopy, Route};
use daq_core::units::ByteSize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The thread that performs a copy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Copier {
    /// The copy engine thread of this route.
    Engine(Route),
    /// The thread of the kernel with this name.
    Kernel(String),
    /// The thread that joins shares in the ring with this name.
    Gather(String),
}

/// Notifiers of the threads that perform copies. Both rings of a copy notify the thread of the copy.
type Notifiers = BTreeMap<Copier, Arc<Notifier>>;

/// Parts that are created before any thread runs.
struct Parts<'a> {
    config: &'a Config,
    plan: &'a Plan,
    options: &'a Options,
    regions: BTreeMap<String, Arc<Region>>,
    profiles: BTreeMap<u32, Profile>,
    notifiers: Notifiers,
    producers: BTreeMap<String, Producer>,
    /// DMA engines of the sources by name, created before any persistent kernel starts.
    engines: BTreeMap<String, dma::Runner>,
    /// Doorbells that devices ring, by the name of the kernel that polls the doorbell.
    device_bells: BTreeMap<String, DeviceDoorbell>,
}

impl Parts<'_> {
    /// Returns the thread that performs `copy`: the planned kernel thread if the CPU can store to the target ring,
    /// otherwise a copy engine thread.
    fn copier(&self, copy: &PlannedCopy) -> Copier {
        let is_mapped = |ring: &String| self.regions[ring].mapping().is_some();
        match &copy.kernel_thread {
            Some(kernel) if is_mapped(&copy.to) => Copier::Kernel(kernel.clone()),
            _ => Copier::Engine(copy.route),
        }
    }

    /// Returns the copies that copy engine threads perform, by route.
    fn staged(&self) -> BTreeMap<Route, Vec<&PlannedCopy>> {
        let mut staged = BTreeMap::<_, Vec<_>>::new();
        for copy in &self.plan.copies {
            if let Copier::Engine(route) = self.copier(copy) {
                staged.entry(route).or_default().push(copy);
            }
        }
        staged
    }

    fn source_context(
        &self,
        planned: &PlannedSource,
        ledgers: &crate::runtime::Ledgers,
    ) -> SourceContext {
        let others = self.config.sources.iter();
        let others = others.filter(|source| source.name() != planned.name);
        SourceContext {
            beside: others
                .flat_map(|source| source.spec.facts().claims)
                .collect(),
            name: planned.name.clone(),
            directory: self.options.directory.clone(),
            geometry: planned.geometry,
            nic: planned.nic.clone(),
            counts: ledgers.counts(&planned.name),
            rejections: ledgers.rejections(&planned.name),
            playback: ledgers.playback(&planned.name),
            obstacle: ledgers.obstacle(&planned.name),
        }
    }

    /// Begins to open a source.
    fn opening(&self, planned: &PlannedSource) -> Result<(), StartError> {
        let step = format!("opening source `{}`", planned.name);
        self.options.startup.begin(step)
    }

    /// Removes and returns the producer of a ring; each ring has exactly one producer.
    fn producer(&mut self, ring: &str) -> Producer {
        self.producers
            .remove(ring)
            .expect("the plan ensures that each ring has exactly one producer")
    }
}

/// Returns the name of thread `i` of a source.
fn thread_name(source: &str, i: usize) -> String {
    match i {
        0 => source.to_owned(),
        _ => format!("{source}.{i}"),
    }
}

/// Returns another kernel that is persistent on the GPU of `planned`.
fn persistent_beside(plan: &Plan, planned: &PlannedKernel) -> Option<String> {
    let mut kernels = plan.kernels.iter();
    let found = kernels.find(|other| {
        let is_persistent = other.dispatch == Some(Dispatch::Persistent);
        is_persistent && other.side == planned.side && other.name != planned.name
    });
    found.map(|other| other.name.clone())
}

fn two_kinds(source: &str) -> StartError {
    StartError::Unavailable(format!(
        "source `{source}` builds a different kind of producer than declared; this is a defect in its driver"
    ))
}

/// Returns the configured source called `name`.
fn spec_of<'a>(config: &'a Config, name: &str) -> &'a dyn SourceSpec {
    let component = config.sources.iter().find(|source| source.name() == name);
    let component = component.expect("the plan contains only sources of its configuration");
    &*component.spec
}

/// Allocates the memory of a ring. If CPU stores were planned but are not possible, allocates GPU memory that only
/// copies can access.
fn region(config: &Config, plan: &Plan, planned: &PlannedRing) -> Result<Arc<Region>, StartError> {
    let bytes = planned.options().region_bytes();
    let make = || -> Result<Arc<Region>, RegionError> {
        let Placement::Cuda(ordinal) = planned.placement else {
            let host = HostOptions {
                node: planned.node,
                lock: planned.lock,
                huge: planned.huge,
                // The device may be emulated by another process, so its memory must be shared, too.
                shared: planned.attach.is_some()
                    || plan
                        .sources
                        .iter()
                        .any(|source| source.engine.is_some() && source.ring == planned.name),
            };
            let region = Region::host(bytes, host)?;
            // Memory pinned for one GPU is pinned for all.
            if let Some(route) = plan.routes_of(&planned.name).next() {
                region.pin(Device::open(route.device())?)?;
            }
            return Ok(region);
        };
        let device = Device::open(ordinal)?;
        let writer = planned.writer.unwrap_or(Writer::Cpu);
        if planned.mapping.is_some() || planned.writer.is_some() {
            match Region::mapped(device, bytes, writer, &config.staging.backends) {
                Ok(region) => return Ok(region),
                // The NIC does not need CPU stores to this ring.
                Err(RegionError::Unmappable(error)) if writer == Writer::Nic => {
                    tracing::debug!("ring {}: {error}", planned.name);
                }
                Err(RegionError::Unmappable(error)) => tracing::warn!(
                    "ring {}: {error}; the copy engine copies the frames of this ring",
                    planned.name
                ),
                Err(error) => return Err(error),
            }
        }
        let region = Region::cuda(device, bytes)?;
        for (from, to) in plan.routes_of(&planned.name).filter_map(Route::peers) {
            if to == ordinal {
                region.grant(Device::open(from)?)?;
            }
        }
        Ok(region)
    };
    let region = make().map_err(|source| StartError::Region {
        ring: planned.name.clone(),
        source,
    })?;
    if let Some(memory) = region.memory() {
        tracing::info!("ring {}: {}", planned.name, memory.backing());
    } else if let Some(mapping) = region.mapping() {
        let costs = mapping.costs();
        tracing::info!(
            "ring {}: {} stores to GPU memory (backend {}); allocated in {:?}, pinned in {:?}, mapped in {:?}",
            planned.name,
            if planned.writer.is_some() {
                "the source's device"
            } else {
                "the CPU"
            },
            mapping.backend(),
            costs.allocate,
            costs.pin,
            costs.map
        );
    }
    for refused in &region.granted().refused {
        if region.mapping().is_some() {
            tracing::debug!("ring {}: {refused}", planned.name);
        } else {
            tracing::warn!("ring {}: {refused}", planned.name);
        }
    }
    tracing::debug!("ring {}: {:?}", planned.name, region.granted());
    Ok(region)
}

impl Pipeline {
    pub(super) fn build(
        &mut self,
        config: &Config,
        plan: &Plan,
        options: &Options,
    ) -> Result<(), StartError> {
        let startup = &options.startup;
        startup.begin("measuring copies".to_owned())?;
        let mut parts = Parts {
            config,
            plan,
            options,
            // Measure before the rings are allocated, because the measurement temporarily needs memory.
            profiles: copies::measured(config, plan, options)?,
            regions: BTreeMap::new(),
            notifiers: Notifiers::new(),
            producers: BTreeMap::new(),
            engines: BTreeMap::new(),
            device_bells: BTreeMap::new(),
        };
        for planned in &plan.rings {
            let bytes = ByteSize(planned.region_bytes as u64).rounded();
            startup.begin(format!("allocating ring `{}` ({bytes})", planned.name))?;
            let region = region(config, plan, planned)?;
            if let Some(mapping) = region.mapping() {
                self.ledgers.mapped(&planned.name, mapping.backend());
            }
            parts.regions.insert(planned.name.clone(), region);
        }
        for copy in &plan.copies {
            let copier = parts.copier(copy);
            parts.notifiers.entry(copier).or_default();
        }
        for gather in &plan.gathers {
            let copier = Copier::Gather(gather.to.clone());
            parts.notifiers.entry(copier).or_default();
        }
        for planned in &plan.rings {
            let (ring, producer) = self.ring(&parts, planned)?;
            self.rings.insert(planned.name.clone(), ring);
            parts.producers.insert(planned.name.clone(), producer);
        }
        self.sinks(&parts)?;
        let kernels = self.kernels(&mut parts)?;
        self.engines(&mut parts)?;
        self.copies(&mut parts)?;
        self.gathers(&mut parts)?;
        let has_persistent = |planned: &PlannedKernel| {
            let is_persistent = planned.dispatch == Some(Dispatch::Persistent);
            is_persistent || persistent_beside(plan, planned).is_some()
        };
        let mut kernels = kernels;
        for (planned, runner) in plan.kernels.iter().zip(&mut kernels) {
            if has_persistent(planned) {
                startup.begin_kernel("launching", planned)?;
                runner.launch_empty().map_err(|source| StartError::Kernel {
                    name: planned.name.clone(),
                    source,
                })?;
            }
        }
        // After a persistent kernel has started on a GPU, no memory is allocated and no code is loaded on that GPU.
        for (planned, mut runner) in plan.kernels.iter().zip(kernels) {
            startup.begin_kernel("starting", planned)?;
            runner.start().map_err(|source| StartError::Kernel {
                name: planned.name.clone(),
                source,
            })?;
            self.spawn(&planned.name, Role::Step, planned.core, move |heartbeat| {
                runner.run(heartbeat);
            })?;
        }
        self.sources(&mut parts)?;
        self.monitor(&parts)
    }

    /// Starts the thread that monitors the sources.
    fn monitor(&mut self, parts: &Parts<'_>) -> Result<(), StartError> {
        let sources = parts.config.sources.iter().filter_map(|source| {
            let name = source.name();
            let planned = parts
                .plan
                .sources
                .iter()
                .find(|planned| planned.name == name)?;
            // The names of additional threads are the source's name and a number.
            let threads = (0..planned.threads.max(1)).map(|i| thread_name(name, i));
            let facts = source.spec.facts();
            let heartbeat = |name: String| {
                self.heartbeats
                    .iter()
                    .find(|heartbeat| heartbeat.name == name)
                    .cloned()
            };
            Some(MonitoredSource {
                name: name.to_owned(),
                silent_after: source.keys.silent_after.map(|span| span.0),
                supports_backpressure: planned.supports_backpressure,
                hint: facts.silence_hint,
                inspect: facts.inspect_advice,
                rejections: self.ledgers.rejections(name),
                heartbeats: threads.filter_map(heartbeat).collect(),
            })
        });
        let monitor = Monitor::start(
            self.ledgers.clone(),
            self.control.clone(),
            sources.collect(),
            self.history.clone(),
            parts.options.history.clone(),
        );
        self.monitor = Some(monitor.map_err(|source| StartError::Thread {
            name: "monitor".to_owned(),
            source,
        })?);
        Ok(())
    }

    fn ring(
        &self,
        parts: &Parts<'_>,
        planned: &PlannedRing,
    ) -> Result<(Ring, Producer), StartError> {
        let copies = parts.plan.copies.iter();
        let copies = copies.filter(|copy| copy.from == planned.name || copy.to == planned.name);
        // The thread that performs the copy is the ring's only reader.
        let mut into = copies.clone().filter(|copy| copy.to == planned.name);
        let single_threaded = into.any(|copy| matches!(parts.copier(copy), Copier::Kernel(_)));
        let gathers = parts
            .plan
            .gathers
            .iter()
            .filter(|gather| gather.to == planned.name || gather.from.contains(&planned.name));
        let copiers = copies.map(|copy| parts.copier(copy));
        let copiers = copiers.chain(gathers.map(|gather| Copier::Gather(gather.to.clone())));
        let ring_options = RingOptions {
            single_threaded,
            notifiers: copiers
                .map(|copier| parts.notifiers[&copier].clone())
                .collect(),
            ..planned.options()
        };
        Ok(Ring::new(
            parts.regions[&planned.name].clone(),
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

    fn sinks(&mut self, parts: &Parts<'_>) -> Result<(), StartError> {
        let Parts {
            config,
            plan,
            options,
            ..
        } = parts;
        for planned in &plan.sinks {
            options
                .startup
                .begin(format!("opening sink `{}`", planned.name))?;
            let component = config.sinks.iter().find(|sink| sink.name() == planned.name);
            let component = component.expect("the plan contains only sinks of its configuration");
            let ring = plan
                .ring(&planned.input)
                .expect("the plan contains the input ring of each reader");
            let (ledger, counts) = self.ledgers.sink(&planned.name);
            let context = SinkContext {
                pipeline: plan.name.clone(),
                name: planned.name.clone(),
                ring: ring.name.clone(),
                layout: ring.layout.clone(),
                slot_bytes: ring.slot_bytes,
                packets_per_frame: ring.packets_per_frame,
                kept: ring.kept.clone(),
                packet_sizes: ring.packet_sizes,
                is_layout_maximum: ring.is_layout_maximum,
                directory: options.directory.clone(),
                memory: parts.regions[&ring.name].clone(),
                nic: planned.nic.clone(),
                copied: !planned.guarantee
                    && !self.rings[planned.input.as_str()]
                        .options()
                        .supports_backpressure,
                burst: planned.burst.min(ring.slots),
                wait: planned.wait,
                ledger: ledger.clone(),
                counts,
            };
            let sink = component
                .spec
                .build(context)
                .map_err(|source| StartError::Sink {
                    name: planned.name.clone(),
                    source,
                })?;
            let reader = self
                .attach(
                    &planned.input,
                    &planned.name,
                    planned.guarantee,
                    planned.burst,
                )?
                .dropping_incomplete(planned.incomplete == Incomplete::Drop);
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
            self.spawn(&planned.name, Role::Sink, planned.core, move |heartbeat| {
                runner.run(heartbeat);
            })?;
        }
        Ok(())
    }

    fn kernels(&mut self, parts: &mut Parts<'_>) -> Result<Vec<kernel::Runner>, StartError> {
        let (config, plan, options) = (parts.config, parts.plan, parts.options);
        let mut runners = Vec::new();
        for planned in &plan.kernels {
            let step = format!("loading kernel `{}`", planned.name);
            options.startup.begin(step)?;
            let component = config
                .kernels
                .iter()
                .find(|kernel| kernel.name() == planned.component);
            let component = component.expect("the plan contains only kernels of its configuration");
            let ring = plan
                .ring(&planned.input)
                .expect("the plan contains the input ring of each reader");
            let context = KernelContext {
                name: planned.name.clone(),
                directory: options.directory.clone(),
                input: ring.layout.clone(),
                side: planned.side,
                burst: planned.burst,
                packets_per_frame: ring.packets_per_frame,
                kept: ring.kept.clone(),
                slots: self.rings[&planned.input].slice(),
                output: self.rings[&planned.output].slice(),
                dispatch: planned.dispatch.unwrap_or(Dispatch::Launch),
                backends: config.staging.backends.clone(),
                device_rings_doorbell: planned
                    .doorbell
                    .as_ref()
                    .is_some_and(|bell| bell.initiator == DoorbellInitiator::Device),
                share: ring
                    .share
                    .as_ref()
                    .map_or_else(FrameShare::default, |share| share.frame_share(&ring.layout)),
            };
            let kernel = component
                .spec
                .build(&context)
                .map_err(|source| StartError::Kernel {
                    name: planned.name.clone(),
                    source,
                })?;
            if let Some(bell) = kernel.device_doorbell() {
                parts.device_bells.insert(planned.name.clone(), bell);
            }
            let stream = match planned.side {
                // A persistent kernel has its own stream.
                _ if planned.dispatch == Some(Dispatch::Persistent) => None,
                Side::Cpu => None,
                Side::Cuda(ordinal) => Some(driver::Stream::timed(
                    Device::open(ordinal)?,
                    // One more event, for the last burst that was timed.
                    kernel::MAX_IN_FLIGHT + 1,
                )?),
            };
            let ledger = self.ledgers.kernel(&planned.name);
            if let Some(occupancy) = kernel.occupancy() {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "the occupancy is between 0 and 1"
                )]
                ledger.device.occupancy_ppm.set((occupancy * 1e6) as u64);
            }
            let reader = self
                .attach(
                    &planned.input,
                    &planned.name,
                    planned.guarantee,
                    planned.burst,
                )?
                .dropping_incomplete(planned.incomplete == Incomplete::Drop);
            let producer = parts.producer(&planned.output);
            let inline_copy = self.inline_copy(parts, &planned.name, planned.burst)?;
            runners.push(kernel::Runner::new(kernel::Parts {
                name: planned.name.clone(),
                reader,
                producer,
                stream,
                kernel,
                ledger,
                burst: planned.burst,
                wait: planned.wait,
                control: self.control.clone(),
                on_device: planned.side != Side::Cpu,
                isolated: gathers::is_isolated(ring),
                persistent: persistent_beside(plan, planned),
                inline_copy,
            }));
        }
        Ok(runners)
    }

    /// Returns the copy that the thread of a kernel performs, and the notifier that both rings of this copy use.
    fn inline_copy(
        &self,
        parts: &mut Parts<'_>,
        kernel: &str,
        burst: usize,
    ) -> Result<Option<(RingCopy, Arc<Notifier>)>, StartError> {
        let copier = Copier::Kernel(kernel.to_owned());
        let copies = &mut parts.plan.copies.iter();
        let Some(copy) = copies.find(|copy| parts.copier(copy) == copier) else {
            return Ok(None);
        };
        let notifier = parts.notifiers[&copier].clone();
        let reader = self.attach(&copy.from, &copy.name, true, 1)?;
        let producer = parts.producer(&copy.to);
        let ledger = self.ledgers.copy(&copy.to);
        let inline_copy = RingCopy::inline(reader, producer, ledger, burst);
        let inline_copy = inline_copy
            .expect("`copier` selects a kernel thread only if the CPU can store to the ring");
        Ok(Some((inline_copy, notifier)))
    }

    /// Opens the devices of DMA engines and maps their memory. Does not start the engines.
    fn engines(&self, parts: &mut Parts<'_>) -> Result<(), StartError> {
        let (config, plan) = (parts.config, parts.plan);
        for planned in &plan.sources {
            let Some(engine) = &planned.engine else {
                continue;
            };
            parts.opening(planned)?;
            let fail = |source| StartError::Source {
                name: planned.name.clone(),
                source,
            };
            let spec = spec_of(config, &planned.name);
            let facts = spec.facts();
            let built = spec
                .build(&parts.source_context(planned, &self.ledgers))
                .map_err(fail)?;
            let Producers::Engine(device) = built else {
                return Err(two_kinds(&planned.name));
            };
            let bell = engine
                .doorbell_of
                .as_ref()
                .and_then(|kernel| parts.device_bells.remove(kernel));
            let name = device.device().name().to_owned();
            let runner = dma::Runner::new(dma::Parts {
                name: planned.name.clone(),
                engine: device,
                producer: parts.producer(&planned.ring),
                numbers: facts.frame_sequence,
                ledger: self.ledgers.source(&planned.name),
                counters: self.ledgers.engine(&planned.name),
                wait: planned.wait,
                started: self.started.clone(),
                control: self.control.clone(),
                bell,
                backends: config.staging.backends.clone(),
                writer: facts.engine.map_or(Writer::Fpga, |needs| needs.writer),
            });
            let runner = runner.map_err(|error| fail(SourceError::new(name, error.to_string())))?;
            parts.engines.insert(planned.name.clone(), runner);
        }
        Ok(())
    }

    fn sources(&mut self, parts: &mut Parts<'_>) -> Result<(), StartError> {
        let (config, plan) = (parts.config, parts.plan);
        for planned in &plan.sources {
            if let Some(runner) = parts.engines.remove(&planned.name) {
                let core = planned.cores.first().copied();
                self.spawn(&planned.name, Role::Source, core, move |heartbeat| {
                    runner.run(heartbeat);
                })?;
                continue;
            }
            parts.opening(planned)?;
            let fail = |source| StartError::Source {
                name: planned.name.clone(),
                source,
            };
            let built =
                spec_of(config, &planned.name).build(&parts.source_context(planned, &self.ledgers));
            let Producers::Fillers(fillers) = built.map_err(fail)? else {
                return Err(two_kinds(&planned.name));
            };
            let producer = parts.producer(&planned.ring);
            let ledger = self.ledgers.source(&planned.name);
            let windows = ReorderWindow::new(producer, planned.geometry, fillers.len(), &ledger);
            let writing = Arc::new(AtomicU64::new(0));
            let mut runners = Vec::new();
            // Create the state of all threads before the first thread runs, so that no thread assumes that it is the
            // only one.
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
                let name = thread_name(&planned.name, i);
                self.spawn(
                    &name,
                    Role::Source,
                    planned.cores.get(i).copied(),
                    move |heartbeat| {
                        runner.run(heartbeat);
                    },
                )?;
            }
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        name: &str,
        role: Role,
        core: Option<usize>,
        work: impl FnOnce(&Heartbeat) + Send + 'static,
    ) -> Result<(), StartError> {
        let heartbeat = Heartbeat::new(name.to_owned(), role);
        self.heartbeats.push(heartbeat.clone());
        let control = self.control.clone();
        let component = name.to_owned();
        let thread = std::thread::Builder::new()
            .name(format!("daq-{name}").chars().take(15).collect())
            .spawn(move || {
                if let Some(core) = core
                    && let Err(errno) = daq_core::thread::pin(core)
                {
                    tracing::warn!(
                        "{component}: cannot pin the thread to core {core}: {errno}; the thread runs on any core"
                    );
                }
                // A panic is a defect in daq. It must end the pipeline with correct ledgers instead of hanging it.
                let result =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&heartbeat)));
                heartbeat.end();
                if result.is_err() {
                    control.fail(
                        FailureKind::Defect,
                        component,
                        "stopped by a defect in daq; please report it with the log lines above"
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
}
