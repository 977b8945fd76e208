//! Runs pipelines with an emulated FPGA device.

use super::card::{Marks, TimedSource};
use crate::bench::BenchError;
use crate::bench::pipeline::{Environment, RunningPipeline, failed};
use daq_core::config::{Diagnostics, Document};
use daq_core::entry::SourceSpec;
use daq_core::ledger::{PathState, SourceReport};
use daq_core::plan::Component;
use daq_drivers::fpga::FpgaSource;
use daq_drivers::fpga::engines::xdma::Xdma;
use std::sync::Arc;

/// Name of the source. It must differ from the name of the device's thread.
const SOURCE: &str = "adc";

/// Starts the pipeline that `text` configures. Its emulated device records the time of each transfer in `marks`.
pub(super) fn start_timed(
    environment: &Environment,
    text: &str,
    marks: &Marks,
) -> Result<RunningPipeline, BenchError> {
    environment.start_changed(text, |config, document, diagnostics| {
        let timed = Arc::new(device(environment, document, diagnostics)?);
        let sources = std::mem::take(&mut config.sources).into_iter();
        config.sources = sources
            .map(|source| {
                let spec: Box<dyn SourceSpec> = Box::new(TimedSource {
                    planned: source.spec,
                    source: timed.clone(),
                    marks: marks.clone(),
                });
                Component { spec, ..source }
            })
            .collect();
        Ok(())
    })
}

/// Reads the source with the emulated device.
fn device(
    environment: &Environment,
    document: &Document,
    diagnostics: &mut Diagnostics,
) -> Result<FpgaSource<Xdma>, BenchError> {
    let section = document.sections("source").into_iter().next();
    let source = section.and_then(|mut section| {
        section.detach(&["driver", "ring", "wait"]);
        FpgaSource::read(&mut section, &environment.registry, diagnostics)
    });
    source.ok_or_else(|| failed("cannot read the configuration keys of the emulated device"))
}

/// Stops the pipeline and returns the source's counters. Returns an error if the pipeline failed or did not use the
/// expected path.
pub(super) fn end<T>(
    pipeline: RunningPipeline,
    measured: Result<T, BenchError>,
) -> Result<(T, SourceReport), BenchError> {
    let report = pipeline.end()?;
    let measured = measured?;
    let source = report.sources.get(SOURCE).cloned().unwrap_or_default();
    let engine = source.engine.clone().unwrap_or_default();
    if engine.path != PathState::Verified || engine.fallbacks > 0 || engine.restarts > 0 {
        return Err(failed(format!(
            "the data path must be verified, without path fallbacks and engine restarts, but its state is {}, with {} path fallbacks and {} engine restarts",
            engine.path.name(),
            engine.fallbacks,
            engine.restarts
        )));
    }
    Ok((measured, source))
}

#[cfg(test)]
mod tests {
    use super::super::rates::Method;
    use super::super::round_trips::RoundTrip;
    use super::super::tests::environment;
    use super::*;
    use daq_core::plan::Config;

    #[test]
    fn measured_configurations_are_valid() {
        let environment = environment();
        let frame = 64 << 10;
        let methods = Method::ALL.iter();
        let methods = methods.map(|method| method.text(&environment, frame, 0, 1e9));
        for text in methods.chain(
            RoundTrip::ALL
                .iter()
                .map(|round_trip| round_trip.text(frame, 0)),
        ) {
            let mut diagnostics = Diagnostics::new();
            let document = Document::from_text("bench", &text, &mut diagnostics);
            Config::read(&document, &environment.registry, "bench", &mut diagnostics);
            let rendered = diagnostics.render(document.sources(), false);
            assert!(rendered.is_empty(), "{rendered}");
        }
    }

    #[test]
    fn timed_device_reports_every_transfer() {
        let environment = environment();
        let text = Method::Host.text(&environment, 64 << 10, 0, 0.0);
        let text = text.replace("path ", "emulated = { packets = 160 }\npath ");
        let marks = Marks::new(0);
        let pipeline = start_timed(&environment, &text, &marks).unwrap();
        let done = pipeline.await_frames("raw", 10);
        let ((), source) = end(pipeline, done).unwrap();
        assert_eq!((source.delivered, source.lost_total()), (10, 0));
        let times = marks.take();
        assert_eq!(times.len(), 10);
        assert!(times.is_sorted());
    }
}
