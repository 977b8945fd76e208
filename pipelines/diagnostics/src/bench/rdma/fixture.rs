//! Runs whole pipelines, as `daq run` builds them.

use crate::bench::BenchError;
use daq_core::config::{Diagnostics, Document};
use daq_core::ledger::{CounterFile, Report};
use daq_core::plan::{Config, PlanContext, resolve};
use daq_core::staging::Profile;
use daq_core::topology::Topology;
use daq_pipelines::registry;
use daq_pipelines::runtime::{Options, Pipeline};
use std::collections::BTreeMap;
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

/// Timeout for a pipeline that makes no progress.
pub(crate) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(20);

/// A running pipeline.
pub(crate) struct Fixture(Pipeline);

fn failed(why: impl Into<String>) -> BenchError {
    BenchError::Thread(why.into())
}

/// Returns a free port on `host`.
pub(crate) fn free_port(host: IpAddr) -> Result<u16, BenchError> {
    let bound = TcpListener::bind((host, 0)).and_then(|listener| listener.local_addr());
    bound
        .map(|address| address.port())
        .map_err(|error| failed(format!("no free TCP port at {host}: {error}")))
}

impl Fixture {
    /// Starts the pipeline that `text` configures. The files of the pipeline are written below `directory`.
    pub(crate) fn start(
        text: &str,
        directory: &Path,
        topology: &Topology,
        profiles: &BTreeMap<u32, Profile>,
    ) -> Result<Self, BenchError> {
        let mut diagnostics = Diagnostics::new();
        let document = Document::from_text("rdma", text, &mut diagnostics);
        let config = Config::read(&document, &registry(), "rdma", &mut diagnostics);
        let around = PlanContext {
            directory: directory.to_owned(),
            ..PlanContext::default()
        };
        let plan = resolve(&config, topology, &around, &mut diagnostics);
        let Some(plan) = plan.filter(|_| !diagnostics.has_errors()) else {
            return Err(failed(diagnostics.render(document.sources(), false)));
        };
        let options = Options {
            directory: directory.to_owned(),
            counter_file: CounterFile::in_memory(),
            drain: PROGRESS_TIMEOUT,
            profiles: profiles.clone(),
        };
        let started = Pipeline::start(&config, &plan, &options);
        started.map(Self).map_err(|error| failed(error.to_string()))
    }

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
            } else if self.is_over() || since.elapsed() > PROGRESS_TIMEOUT {
                return Err(failed(format!(
                    "ring `{ring}` has received {now} of {frames} frames, but the next frame did not arrive in time"
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
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
