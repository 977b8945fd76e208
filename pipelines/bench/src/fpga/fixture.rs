//! Ends pipelines with an emulated FPGA device, and checks their data path.

use crate::BenchError;
use daq_core::ledger::{PathState, SourceReport};
use daq_diagnostics::fixture::{RunningPipeline, failed};

/// Name of the source. It must differ from the name of the device's thread.
const SOURCE: &str = "adc";

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
    use super::super::card::{reserve_marks, take_marks};
    use super::super::environment;
    use super::super::rates::Method;
    use super::super::round_trips::RoundTrip;
    use super::*;
    use daq_core::config::{Diagnostics, Document};
    use daq_core::plan::Config;

    #[test]
    fn measured_configurations_are_valid() {
        let environment = environment(&daq_pipelines::registry(), None).unwrap();
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
        let environment = environment(&daq_pipelines::registry(), None).unwrap();
        let text = Method::Host.text(&environment, 64 << 10, 0, 0.0);
        let text = text.replace("path ", "emulated = { packets = 160 }\npath ");
        reserve_marks(0);
        let text = text.replace("emulated:xdma", "emulated:timed");
        let pipeline = environment.start(&text).unwrap();
        let done = pipeline.await_frames("raw", 10);
        let ((), source) = end(pipeline, done).unwrap();
        assert_eq!((source.delivered, source.lost_total()), (10, 0));
        let times = take_marks();
        assert_eq!(times.len(), 10);
        assert!(times.is_sorted());
    }
}
