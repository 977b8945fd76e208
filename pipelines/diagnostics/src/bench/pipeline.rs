//! Runs whole pipelines, as `daq run` builds them.

use super::BenchError;
use super::scratch::Scratch;
use daq_core::config::{Diagnostics, Document};
use daq_core::entry::Registry;
use daq_core::gpu::Backend;
use daq_core::gpu::driver::Device;
use daq_core::ledger::{CounterFile, Report};
use daq_core::plan::{Config, PlanContext, resolve};
use daq_core::staging::{Profile, measure};
use daq_core::topology::Topology;
use daq_pipelines::runtime::{Options, Pipeline};
use std::collections::BTreeMap;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timeout for a pipeline that makes no progress.
pub(crate) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(20);

/// The directory of the pipelines' files, the machine, and the copy profiles of its GPUs.
pub(crate) struct Environment {
    pub(crate) scratch: Scratch,
    pub(crate) topology: Topology,
    pub(crate) profiles: BTreeMap<u32, Profile>,
    /// The entries that configurations can name.
    pub(super) registry: Registry,
}

/// A running pipeline.
pub(crate) struct RunningPipeline(Pipeline);

pub(super) fn failed(why: impl std::fmt::Display) -> BenchError {
    BenchError::Thread(why.to_string())
}

/// Returns a free port on `host`.
pub(crate) fn free_port(host: IpAddr) -> Result<u16, BenchError> {
    let bound = TcpListener::bind((host, 0)).and_then(|listener| listener.local_addr());
    bound
        .map(|address| address.port())
        .map_err(|error| failed(format!("no free TCP port at {host}: {error}")))
}

impl Environment {
    /// Detects the machine. If a GPU is given, measures its copies and tries which backends can map its memory.
    pub(crate) fn new(
        registry: Registry,
        scratch: Scratch,
        gpu: Option<&'static Device>,
    ) -> Result<Self, BenchError> {
        let mut topology = Topology::detect();
        let mut profiles = BTreeMap::new();
        if let Some(device) = gpu {
            profiles.insert(device.ordinal(), measure(device)?);
            let gpus = topology.gpus.into_iter();
            topology.gpus = gpus
                .map(|gpu| {
                    if gpu.ordinal == device.ordinal() {
                        gpu.with_probed_mappings(&Backend::ALL)
                    } else {
                        gpu
                    }
                })
                .collect();
        }
        Ok(Self {
            scratch,
            topology,
            profiles,
            registry,
        })
    }

    /// Starts the pipeline that `text` configures.
    pub(crate) fn start(&self, text: &str) -> Result<RunningPipeline, BenchError> {
        let mut diagnostics = Diagnostics::new();
        let document = Document::from_text("bench", text, &mut diagnostics);
        let config = Config::read(&document, &self.registry, "bench", &mut diagnostics);
        let directory = self.scratch.path().to_owned();
        let context = PlanContext {
            directory: directory.clone(),
            ..PlanContext::default()
        };
        let plan = resolve(&config, &self.topology, &context, &mut diagnostics);
        let Some(plan) = plan.filter(|_| !diagnostics.has_errors()) else {
            return Err(failed(diagnostics.render(document.sources(), false)));
        };
        let options = Options {
            directory,
            counter_file: CounterFile::in_memory(),
            history: None,
            drain: PROGRESS_TIMEOUT,
            profiles: self.profiles.clone(),
            startup: Arc::default(),
        };
        let started = Pipeline::start(&config, &plan, &options);
        started.map(RunningPipeline).map_err(failed)
    }
}

impl RunningPipeline {
    /// Returns the number of frames published in `ring`.
    pub(crate) fn published(&self, ring: &str) -> u64 {
        self.0.published(ring).unwrap_or(0)
    }

    /// Returns the current counters.
    pub(crate) fn report(&self) -> Report {
        self.0.report()
    }

    /// Returns whether the pipeline has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.0.health()().stopping || self.0.is_finished()
    }

    /// Waits until `frames` frames have been published in `ring`.
    pub(crate) fn await_frames(&self, ring: &str, frames: u64) -> Result<(), BenchError> {
        let (mut last, mut since) = (self.published(ring), Instant::now());
        while last < frames {
            let now = self.published(ring);
            if now > last {
                (last, since) = (now, Instant::now());
            } else {
                self.check(ring, since)?;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Returns an error if the pipeline has ended, or if the last frame in `ring` arrived at `since` and the next frame
    /// is overdue.
    pub(super) fn check(&self, ring: &str, since: Instant) -> Result<(), BenchError> {
        if !self.is_over() && since.elapsed() <= PROGRESS_TIMEOUT {
            return Ok(());
        }
        Err(failed(format!(
            "ring `{ring}` has received {} frames, but the next frame did not arrive in time",
            self.published(ring)
        )))
    }

    /// Stops the pipeline and returns its counters, or an error if a component failed.
    pub(crate) fn end(self) -> Result<Report, BenchError> {
        self.0.stop();
        let (report, failures) = self.0.finish();
        match failures.first() {
            Some(failure) => Err(failed(format!("{}: {}", failure.component, failure.why))),
            None => Ok(report),
        }
    }
}
