//! All ledgers of a pipeline.

use super::monitor::Activity;
use crate::attach::Clients;
use daq_core::gpu::Backend;
use daq_core::gpu::Dispatch;
use daq_core::ledger::{
    CopyLedger, CopyReport, CounterFile, CounterFileError, Counts, EngineCounters, EngineReport,
    KernelLedger, KernelReport, PartLedgers, Playback, ReaderLedger, ReaderReport, Rejections,
    Report, RingLedger, RingReport, SinkLedger, SinkReport, SourceLedger, SourceReport,
};
use daq_core::plan::Plan;
use daq_core::source::Obstacle;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The counters of every component, by the component's name.
#[derive(Debug)]
pub struct Ledgers {
    /// For each source: its ledger, the counters of its DMA engine (if the source has an engine), and driver-specific
    /// counters.
    sources: BTreeMap<String, (SourceLedger, Option<EngineCounters>, Counts)>,
    /// For each source: the number of rejected packets per reason.
    rejections: BTreeMap<String, Rejections>,
    /// For each source: why it cannot receive data.
    obstacles: BTreeMap<String, Obstacle>,
    /// For each source: its position in its recording.
    playbacks: BTreeMap<String, Playback>,
    /// For each ring: its ledger, and the BAR mapping backend if the ring is on a GPU and the CPU can store to it.
    rings: BTreeMap<String, (RingLedger, OnceLock<Backend>)>,
    /// For each reader: the name of its ring, and its ledger.
    readers: BTreeMap<String, (String, ReaderLedger)>,
    /// For each target ring of a copy: the name of the source ring, and the ledger of the copy.
    copies: BTreeMap<String, (String, CopyLedger)>,
    /// For each kernel: its dispatch method (`None` for a kernel on the CPU), and its ledger.
    kernels: BTreeMap<String, (Option<Dispatch>, KernelLedger)>,
    /// For each sink: its ledger, and the counters that only this kind of sink has.
    sinks: BTreeMap<String, (SinkLedger, Counts)>,
    clients: Arc<Clients>,
    activity: Activity,
    start: Instant,
}

impl Ledgers {
    /// Creates counters in `counter_file` for all components in `plan`.
    pub fn new(plan: &Plan, counter_file: &CounterFile) -> Result<Self, CounterFileError> {
        let mut ledgers = Self {
            sources: BTreeMap::new(),
            rejections: BTreeMap::new(),
            obstacles: BTreeMap::new(),
            playbacks: BTreeMap::new(),
            rings: BTreeMap::new(),
            readers: BTreeMap::new(),
            copies: BTreeMap::new(),
            kernels: BTreeMap::new(),
            sinks: BTreeMap::new(),
            clients: Arc::default(),
            activity: Activity::default(),
            start: Instant::now(),
        };
        for source in &plan.sources {
            let prefix = format!("source.{}", source.name);
            let ledger = SourceLedger {
                parts: PartLedgers::on(counter_file, &source.name, &source.parts)?,
                ..SourceLedger::on(counter_file, &prefix)?
            };
            let rejections = Rejections::default();
            ledgers.rejections.insert(source.name.clone(), rejections);
            let obstacle = Obstacle::default();
            ledgers.obstacles.insert(source.name.clone(), obstacle);
            let playback = Playback::default();
            ledgers.playbacks.insert(source.name.clone(), playback);
            let counts = Counts::on(counter_file, &format!("{prefix}.count"), &source.counts)?;
            let engine = source.engine.as_ref().map(|engine| {
                let prefix = format!("source.{}.engine", source.name);
                EngineCounters::on(counter_file, &prefix, engine.faults)
            });
            ledgers
                .sources
                .insert(source.name.clone(), (ledger, engine.transpose()?, counts));
        }
        for ring in &plan.rings {
            let ledger = RingLedger::on(counter_file, &format!("ring.{}", ring.name))?;
            let ledger = (ledger, OnceLock::new());
            ledgers.rings.insert(ring.name.clone(), ledger);
        }
        for kernel in &plan.kernels {
            let ledger = KernelLedger::on(counter_file, &format!("kernel.{}", kernel.name))?;
            let ledger = (kernel.dispatch, ledger);
            ledgers.kernels.insert(kernel.name.clone(), ledger);
            ledgers.add_reader(&kernel.name, &kernel.input, counter_file)?;
        }
        for copy in &plan.copies {
            let ledger = CopyLedger::on(counter_file, &format!("copy.{}", copy.to))?;
            ledgers
                .copies
                .insert(copy.to.clone(), (copy.from.clone(), ledger));
            ledgers.add_reader(&copy.name, &copy.from, counter_file)?;
        }
        for gather in &plan.gathers {
            let ledger = CopyLedger::on(counter_file, &format!("copy.{}", gather.to))?;
            ledgers
                .copies
                .insert(gather.to.clone(), (gather.sources(), ledger));
            for (reader, ring) in gather.readers.iter().zip(&gather.from) {
                ledgers.add_reader(reader, ring, counter_file)?;
            }
        }
        for sink in &plan.sinks {
            let prefix = format!("sink.{}", sink.name);
            let counts = Counts::on(counter_file, &prefix, &sink.counts)?;
            let ledger = (SinkLedger::on(counter_file, &prefix)?, counts);
            ledgers.sinks.insert(sink.name.clone(), ledger);
            ledgers.add_reader(&sink.name, &sink.input, counter_file)?;
        }
        Ok(ledgers)
    }

    fn add_reader(
        &mut self,
        name: &str,
        ring: &str,
        counter_file: &CounterFile,
    ) -> Result<(), CounterFileError> {
        let ledger = ReaderLedger::on(counter_file, &format!("reader.{name}"))?;
        self.readers
            .insert(name.to_owned(), (ring.to_owned(), ledger));
        Ok(())
    }

    pub(super) fn source(&self, name: &str) -> SourceLedger {
        self.sources[name].0.clone()
    }

    /// Returns the driver-specific counters of a source.
    pub(super) fn counts(&self, name: &str) -> Counts {
        self.sources[name].2.clone()
    }

    /// Returns why a source cannot receive data.
    pub(super) fn obstacle(&self, name: &str) -> Obstacle {
        self.obstacles[name].clone()
    }

    /// Returns one sentence per source that cannot receive data.
    pub(super) fn obstacles(&self) -> impl Iterator<Item = String> {
        let known = self.obstacles.iter();
        known.filter_map(|(name, obstacle)| Some(format!("source {name}: {}", obstacle.get()?)))
    }

    /// Returns the counters of a source's rejected packets by reason.
    pub(super) fn rejections(&self, name: &str) -> Rejections {
        self.rejections[name].clone()
    }

    /// Returns the position of a source in its recording.
    pub(super) fn playback(&self, name: &str) -> Playback {
        self.playbacks[name].clone()
    }

    /// Returns the times of the last activity of sources and rings.
    pub(super) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Returns the counters of a source's DMA engine.
    pub(super) fn engine(&self, name: &str) -> EngineCounters {
        self.sources[name].1.clone().unwrap_or_default()
    }

    /// Returns the clients of all rings.
    pub(super) fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }

    pub(super) fn ring(&self, name: &str) -> RingLedger {
        self.rings[name].0.clone()
    }

    /// Records the backend with which the CPU can store to a ring on a GPU.
    pub(super) fn mapped(&self, ring: &str, backend: Backend) {
        // Each ring is recorded only once.
        let _ = self.rings[ring].1.set(backend);
    }

    /// Requests that each ring records the time of its next publication, which it otherwise records less often at high
    /// rates.
    pub(super) fn refresh_times(&self) {
        for (ring, _) in self.rings.values() {
            ring.times.refresh();
        }
    }

    pub(super) fn reader(&self, name: &str) -> ReaderLedger {
        self.readers[name].1.clone()
    }

    /// Returns whether `name` is a kernel.
    pub(super) fn is_kernel(&self, name: &str) -> bool {
        self.kernels.contains_key(name)
    }

    pub(super) fn kernel(&self, name: &str) -> KernelLedger {
        self.kernels[name].1.clone()
    }

    pub(super) fn copy(&self, to: &str) -> CopyLedger {
        self.copies[to].1.clone()
    }

    /// Returns the ledger of a sink, and the counters that only this kind of sink has.
    pub(super) fn sink(&self, name: &str) -> (SinkLedger, Counts) {
        self.sinks[name].clone()
    }

    /// Reads all ledgers. Reads the ledgers from the sinks to the sources, so that no ledger shows frames that the
    /// ledgers upstream do not show yet.
    pub fn report(&self) -> Report {
        let sinks = self
            .sinks
            .iter()
            .map(|(name, (ledger, counts))| (name.clone(), SinkReport::of(ledger, counts)))
            .collect();
        let kernels = self
            .kernels
            .iter()
            .map(|(name, (dispatch, ledger))| {
                let report = match dispatch {
                    Some(dispatch) => KernelReport::on_device(ledger, *dispatch),
                    None => KernelReport::of(ledger),
                };
                (name.clone(), report)
            })
            .collect();
        let copies = self
            .copies
            .iter()
            .map(|(to, (from, ledger))| (to.clone(), CopyReport::of(ledger, from, to)))
            .collect();
        let mut report = Report::default();
        self.clients.add_to(&mut report);
        let readers = self
            .readers
            .iter()
            .map(|(name, (ring, ledger))| {
                (
                    name.clone(),
                    ReaderReport::of(ledger, ring, &self.rings[ring].0),
                )
            })
            .collect::<BTreeMap<_, _>>();
        report.readers.extend(readers);
        let rings = self
            .rings
            .iter()
            .map(|(name, (ledger, mapping))| {
                let report = RingReport {
                    mapping: mapping.get().copied(),
                    ..RingReport::of(ledger)
                };
                (name.clone(), report)
            })
            .collect();
        let sources = self
            .sources
            .iter()
            .map(|(name, (ledger, engine, counts))| {
                let of_ledger = SourceReport::of(ledger);
                let report = SourceReport {
                    counts: counts.read(),
                    rejected_by: self.rejections[name].read(of_ledger.rejected),
                    warning: self.rejections[name].warning(),
                    engine: engine.as_ref().map(EngineReport::of),
                    playback: self.playbacks[name].read(),
                    ..of_ledger
                };
                (name.clone(), report)
            })
            .collect();
        report.sources = sources;
        report.rings = rings;
        report.copies = copies;
        report.kernels = kernels;
        report.sinks = sinks;
        report.seconds = self.start.elapsed().as_secs_f64();
        self.activity.add_to(&mut report);
        for (name, source) in &mut report.sources {
            source.silent |= self.obstacles[name].get().is_some();
        }
        report
    }
}
