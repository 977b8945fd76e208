//! Runs whole pipelines with an FPGA device, as `daq run` builds them.

use super::card::{Marks, TimedSource};
use crate::bench::BenchError;
use crate::bench::cpu;
use crate::bench::scratch::Scratch;
use daq_core::config::{Diagnostics, Document};
use daq_core::entry::SourceSpec;
use daq_core::ledger::{CounterFile, Proof, SourceReport};
use daq_core::plan::{Component, Config, PlanContext, resolve};
use daq_core::staging::Profile;
use daq_core::topology::Topology;
use daq_drivers::fpga::FpgaSource;
use daq_pipelines::registry;
use daq_pipelines::runtime::{Options, Pipeline};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timeout for a pipeline that makes no progress.
pub(super) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// Name of the source. It must differ from the name of the device's thread.
const SOURCE: &str = "adc";
/// Name of the emulated device's thread in this process.
const CARD: &str = "daq-card";

/// Options shared by all pipelines of the benchmark.
pub(super) struct Bench {
    pub(super) scratch: Scratch,
    pub(super) topology: Topology,
    /// Copy profiles of the GPUs, which are measured only once.
    pub(super) profiles: BTreeMap<u32, Profile>,
}

/// A running pipeline.
pub(super) struct Fixture(Pipeline);

/// CPU times at one point in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    at: Instant,
    process: Duration,
    /// CPU time of the device, and whether the CPU time of this process includes it.
    card: Option<Duration>,
    is_within: bool,
}

impl Spent {
    /// Reads the current CPU times. `card` is the process ID of the device. If `card` is `None`, the device is a thread
    /// of this process.
    pub(super) fn now(card: Option<&str>) -> Self {
        Self {
            at: Instant::now(),
            process: cpu::of_process(),
            card: match card {
                None => cpu::of_threads("self", Some(CARD)),
                Some(process) => cpu::of_threads(process, None),
            },
            is_within: card.is_none(),
        }
    }

    /// Returns the mean number of busy cores since `before`: first for daq without the device, then for the device.
    /// Both numbers are NaN if Linux does not report the CPU times.
    pub(super) fn since(&self, before: &Self) -> [f64; 2] {
        let took = self.seconds(before);
        let both = self.card.zip(before.card);
        let card = both.map_or(f64::NAN, |(after, before)| {
            after.saturating_sub(before).as_secs_f64()
        });
        let process = self.process.saturating_sub(before.process).as_secs_f64();
        let daq = if self.is_within {
            process - card
        } else {
            process
        };
        [daq.max(0.0) / took, card / took].map(|cores| if card.is_nan() { f64::NAN } else { cores })
    }

    /// Returns the mean number of busy cores of this process since `before`.
    pub(super) fn alone(&self, before: &Self) -> f64 {
        self.process.saturating_sub(before.process).as_secs_f64() / self.seconds(before)
    }

    /// Returns the seconds since `before`.
    pub(super) fn seconds(&self, before: &Self) -> f64 {
        (self.at - before.at).as_secs_f64()
    }
}

fn failed(why: impl Into<String>) -> BenchError {
    BenchError::Thread(why.into())
}

impl Bench {
    /// Starts the pipeline that `text` configures. If `marks` is given, the emulated device of the pipeline records the
    /// time of each transfer.
    pub(super) fn start(&self, text: &str, marks: Option<Marks>) -> Result<Fixture, BenchError> {
        let mut diagnostics = Diagnostics::new();
        let document = Document::from_text("bench", text, &mut diagnostics);
        let mut config = Config::read(&document, &registry(), "bench", &mut diagnostics);
        let directory = self.scratch.path().to_owned();
        let around = PlanContext {
            directory: directory.clone(),
            ..PlanContext::default()
        };
        let plan = resolve(&config, &self.topology, &around, &mut diagnostics);
        let Some(plan) = plan.filter(|_| !diagnostics.has_errors()) else {
            return Err(failed(diagnostics.render(document.sources(), false)));
        };
        if let Some(marks) = marks {
            let mut sections = document.sections("source").into_iter();
            let of_card = sections.next().and_then(|mut section| {
                section.detach(&["driver", "ring", "wait"]);
                FpgaSource::read(&mut section, &registry(), &mut diagnostics)
            });
            let of_card = of_card.ok_or_else(|| {
                failed("cannot read the configuration keys of the emulated device")
            })?;
            let of_card = Arc::new(of_card);
            let sources = std::mem::take(&mut config.sources).into_iter();
            config.sources = sources
                .map(|source| {
                    let spec: Box<dyn SourceSpec> = Box::new(TimedSource {
                        planned: source.spec,
                        source: of_card.clone(),
                        marks: marks.clone(),
                    });
                    Component { spec, ..source }
                })
                .collect();
        }
        let options = Options {
            directory,
            counter_file: CounterFile::in_memory(),
            drain: PROGRESS_TIMEOUT,
            profiles: self.profiles.clone(),
        };
        let started = Pipeline::start(&config, &plan, &options);
        started
            .map(Fixture)
            .map_err(|error| failed(error.to_string()))
    }
}

impl Fixture {
    /// Returns the number of frames published in `ring`.
    pub(super) fn published(&self, ring: &str) -> u64 {
        self.0.published(ring).unwrap_or(0)
    }

    /// Returns whether the pipeline has ended.
    pub(super) fn is_over(&self) -> bool {
        self.0.health()().stopping || self.0.is_finished()
    }

    /// Waits until `frames` frames have been published in `ring`.
    pub(super) fn await_frames(&self, ring: &str, frames: u64) -> Result<(), BenchError> {
        let (mut last, mut since) = (0, Instant::now());
        while last < frames {
            let now = self.published(ring);
            if now > last {
                (last, since) = (now, Instant::now());
            } else if self.is_over() || since.elapsed() > PROGRESS_TIMEOUT {
                return Err(self.silent(ring));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Returns the error that reports a missing frame.
    pub(super) fn silent(&self, ring: &str) -> BenchError {
        failed(format!(
            "ring `{ring}` has received {} frames, but the next frame did not arrive in time",
            self.published(ring)
        ))
    }

    /// Stops the pipeline and returns the source's counters. Returns an error if the pipeline failed or did not use the
    /// expected path.
    pub(super) fn end<T>(
        self,
        measured: Result<T, BenchError>,
    ) -> Result<(T, SourceReport), BenchError> {
        self.0.stop();
        let (report, failures) = self.0.finish();
        if let Some(failure) = failures.first() {
            return Err(failed(format!("{}: {}", failure.component, failure.why)));
        }
        let measured = measured?;
        let source = report.sources.get(SOURCE).cloned().unwrap_or_default();
        let engine = source.engine.clone().unwrap_or_default();
        if engine.proof != Proof::Proven || engine.fallbacks > 0 || engine.restarts > 0 {
            return Err(failed(format!(
                "the data path must be proven, without path fallbacks and engine restarts, but its state is {}, with {} path fallbacks and {} engine restarts",
                engine.proof.name(),
                engine.fallbacks,
                engine.restarts
            )));
        }
        Ok((measured, source))
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::Method;
    use super::super::round_trips::RoundTrip;
    use super::super::tests::bench;
    use super::*;

    #[test]
    fn measured_configurations_are_valid() {
        let bench = bench();
        let frame = 64 << 10;
        let methods = Method::HOST.iter().chain(&Method::GPU);
        let methods = methods.map(|method| method.text(&bench, frame, 0, 1e9));
        for text in methods.chain(
            RoundTrip::ALL
                .iter()
                .map(|round_trip| round_trip.text(frame, 0)),
        ) {
            let mut diagnostics = Diagnostics::new();
            let document = Document::from_text("bench", &text, &mut diagnostics);
            Config::read(&document, &registry(), "bench", &mut diagnostics);
            let rendered = diagnostics.render(document.sources(), false);
            assert!(rendered.is_empty(), "{rendered}");
        }
    }

    #[test]
    fn timed_device_reports_every_transfer() {
        let text = Method::Host.text(&bench(), 64 << 10, 0, 0.0);
        let text = text.replace("path ", "emulated = { packets = 160 }\npath ");
        let marks = Marks::new(0);
        let fixture = bench().start(&text, Some(marks.clone())).unwrap();
        let done = fixture.await_frames("raw", 10);
        let ((), source) = fixture.end(done).unwrap();
        assert_eq!((source.delivered, source.lost_total()), (10, 0));
        let times = marks.take();
        assert_eq!(times.len(), 10);
        assert!(times.is_sorted());
    }
}
