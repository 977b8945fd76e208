//! Exports the ledgers as Prometheus metrics. The ledgers are read for each request, never by the data threads.

use super::process::{self, Process};
use super::table::{self, PIPELINE, PROCESS};
use daq_core::ledger::{
    ClientsReport, CopyReport, DeviceReport, EngineReport, KernelReport, Metric, MetricKind,
    MetricText, PartReport, ReaderReport, Report, RingReport, Sample, SinkReport, SourceReport,
};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{self, Bucket, LabelPair, MetricFamily, MetricType};
use prometheus::{Registry, TextEncoder};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Returns a snapshot of all ledgers at the time of the call.
pub type ReportFn = Arc<dyn Fn() -> Report + Send + Sync>;

/// The collector behind `/metrics`; it calls the report function once per scrape.
pub struct Ledgers {
    report: ReportFn,
    descriptors: Vec<Desc>,
    started: f64,
}

impl Ledgers {
    /// Creates a collector of the values in `report`.
    ///
    /// # Errors
    /// If the table contains an invalid metric name; a test excludes this.
    pub fn new(report: ReportFn) -> prometheus::Result<Self> {
        let describe = |text: &MetricText| {
            let labels = text.labels().map(str::to_owned).collect();
            Desc::new(
                text.name.to_owned(),
                text.help.to_owned(),
                labels,
                HashMap::new(),
            )
        };
        let metrics = table::metrics();
        Ok(Self {
            report,
            descriptors: metrics
                .iter()
                .map(describe)
                .collect::<prometheus::Result<_>>()?,
            started: process::now(),
        })
    }
}

/// Adds the metrics of components. Each component is given with the values of the labels that name it.
fn add<'a, R>(
    families: &mut Vec<MetricFamily>,
    metrics: &[Metric<R>],
    components: impl IntoIterator<Item = (Vec<&'a str>, &'a R)>,
) {
    let components: Vec<_> = components.into_iter().collect();
    for Metric { text, samples } in metrics {
        let mut family = family(text);
        for (names, component) in &components {
            let mut put = |sample: Sample<'_>| {
                family.mut_metric().push(exported(text, names, sample));
            };
            samples(component, &mut put);
        }
        families.push(family);
    }
}

/// Returns a metric without samples.
fn family(text: &MetricText) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(text.name.to_owned());
    family.set_help(text.help.to_owned());
    family.set_field_type(match text.kind {
        MetricKind::Counter => MetricType::COUNTER,
        MetricKind::Gauge => MetricType::GAUGE,
        MetricKind::Histogram => MetricType::HISTOGRAM,
    });
    family
}

/// Adds the metrics of counters that only some sinks have. Sinks of several kinds can share a metric.
fn add_sink_counts(families: &mut Vec<MetricFamily>, sinks: &BTreeMap<String, SinkReport>) {
    let start = families.len();
    for (name, sink) in sinks {
        for (count, value) in sink.counts.iter() {
            let Some(text) = table::sink_metric(count) else {
                continue;
            };
            let sample = exported(&text, &[name], Sample::Value(value as f64));
            let mut known = families[start..].iter_mut();
            if let Some(family) = known.find(|family| family.name() == text.name) {
                family.mut_metric().push(sample);
            } else {
                let mut family = family(&text);
                family.mut_metric().push(sample);
                families.push(family);
            }
        }
    }
}

/// Converts a sample of the component with the given names.
fn exported(text: &MetricText, names: &[&str], sample: Sample<'_>) -> proto::Metric {
    let by = match sample {
        Sample::Labelled(value, _) => Some(value),
        // The text format adds the label `le` to each size class.
        Sample::Value(_) | Sample::Histogram { .. } => None,
    };
    let pairs = text.labels().zip(names.iter().copied().chain(by));
    let pairs = pairs.map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    });
    let mut metric = proto::Metric::from_label(pairs.collect());
    match sample {
        Sample::Value(value) | Sample::Labelled(_, value) if text.kind == MetricKind::Counter => {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
        Sample::Value(value) | Sample::Labelled(_, value) => {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        Sample::Histogram {
            bounds,
            counts,
            count,
            sum,
            divisor,
        } => {
            let mut histogram = proto::Histogram::default();
            histogram.set_bucket(cumulative(bounds, counts, divisor));
            histogram.set_sample_count(count);
            histogram.set_sample_sum(sum as f64 / divisor);
            metric.set_histogram(histogram);
        }
    }
    metric
}

/// Returns the size classes in Prometheus' cumulative form: each class includes all smaller classes.
fn cumulative(bounds: &[u64], counts: &[u64], divisor: f64) -> Vec<Bucket> {
    let mut up_to = 0;
    let classes = bounds.iter().zip(counts).map(|(bound, count)| {
        up_to += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(*bound as f64 / divisor);
        bucket.set_cumulative_count(up_to);
        bucket
    });
    classes.collect()
}

impl Collector for Ledgers {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptors.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (report, process) = ((self.report)(), Process::read(self.started));
        let (sources, kernels) = (report.sources.iter(), report.kernels.iter());
        let mut all = Vec::new();
        let by_name = sources
            .clone()
            .map(|(name, source)| (vec![name.as_str()], source));
        add(&mut all, SourceReport::METRICS, by_name);
        let parts = sources.clone().flat_map(|(name, source)| {
            let parts = source.parts.iter();
            parts.map(move |(part, report)| (vec![name.as_str(), part], report))
        });
        add(&mut all, PartReport::METRICS, parts);
        let engines =
            sources.filter_map(|(name, s)| Some((vec![name.as_str()], s.engine.as_ref()?)));
        add(&mut all, EngineReport::METRICS, engines);
        let rings = report.rings.iter();
        add(
            &mut all,
            RingReport::METRICS,
            rings.map(|(name, ring)| (vec![name.as_str()], ring)),
        );
        // The names of clients in other processes change, so only their sums are exported.
        let readers = report.readers.iter();
        let readers = readers.filter(|(_, reader)| reader.process.is_none());
        let readers = readers.map(|(name, reader)| (vec![name.as_str(), &reader.ring], reader));
        add(&mut all, ReaderReport::METRICS, readers);
        let clients = report.clients.iter();
        let clients = clients.map(|(ring, clients)| (vec![ring.as_str()], clients));
        add(&mut all, ClientsReport::METRICS, clients);
        let copies = report.copies.values();
        let copies = copies.map(|copy| (vec![copy.from.as_str(), &copy.to], copy));
        add(&mut all, CopyReport::METRICS, copies);
        let by_name = kernels
            .clone()
            .map(|(name, kernel)| (vec![name.as_str()], kernel));
        add(&mut all, KernelReport::METRICS, by_name);
        let devices =
            kernels.filter_map(|(name, k)| Some((vec![name.as_str()], k.device.as_ref()?)));
        add(&mut all, DeviceReport::METRICS, devices);
        let sinks = report.sinks.iter();
        add(
            &mut all,
            SinkReport::METRICS,
            sinks.map(|(name, sink)| (vec![name.as_str()], sink)),
        );
        add_sink_counts(&mut all, &report.sinks);
        add(&mut all, PIPELINE, [(Vec::new(), &report)]);
        add(&mut all, PROCESS, [(Vec::new(), &process)]);
        all
    }
}

/// The metrics registry, which produces the text of `/metrics`.
#[derive(Clone)]
pub struct Exposition {
    registry: Registry,
}

impl Exposition {
    /// Creates a separate registry that contains the ledgers of `report`.
    ///
    /// # Errors
    /// If the table of metrics is inconsistent; a test excludes this.
    pub fn new(report: ReportFn) -> prometheus::Result<Self> {
        let registry = Registry::new();
        registry.register(Box::new(Ledgers::new(report)?))?;
        Ok(Self { registry })
    }

    /// Returns the registry. Callers can add other collectors to it.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the current metrics in text format 0.0.4. Metrics without samples are omitted, for example kernel
    /// metrics in a pipeline without kernels.
    ///
    /// # Errors
    /// If another collector returns invalid metrics.
    pub fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::report::tests::sample_report;
    use daq_core::ledger::{Cause, CopySizes};
    use std::collections::BTreeSet;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    fn text() -> String {
        Exposition::new(Arc::new(sample_report))
            .unwrap()
            .text()
            .unwrap()
    }

    /// Returns whether this machine has the clock that the metric shows.
    fn is_available(metric: &MetricText) -> bool {
        match metric.name {
            "daq_ptp_clock_offset_seconds" => !clock::ptp_clocks().is_empty(),
            "daq_clock_synchronised" | "daq_clock_error_seconds" => clock::state().is_ok(),
            _ => true,
        }
    }

    #[test]
    fn metrics_text_equals_metrics_table() {
        let text = text();
        for (prefix, expected) in [
            (
                "# HELP ",
                table::metrics()
                    .iter()
                    .filter(|m| is_available(m))
                    .map(|m| format!("{} {}", m.name, m.help))
                    .collect::<BTreeSet<_>>(),
            ),
            (
                "# TYPE ",
                table::metrics()
                    .iter()
                    .filter(|m| is_available(m))
                    .map(|m| format!("{} {}", m.name, m.kind.name()))
                    .collect(),
            ),
        ] {
            let found: BTreeSet<_> = text
                .lines()
                .filter_map(|line| line.strip_prefix(prefix))
                .map(str::to_owned)
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn every_report_counter_is_exported() {
        let text = text();
        for line in [
            r#"daq_source_expected_packets_total{source="adc"} 1000"#,
            r#"daq_source_delivered_packets_total{source="adc"} 900"#,
            r#"daq_source_pending_packets{source="adc"} 60"#,
            r#"daq_source_delivered_bytes_total{source="adc"} 921600"#,
            r#"daq_source_duplicate_packets_total{source="adc"} 5"#,
            r#"daq_source_rejected_packets_total{source="adc"} 6"#,
            r#"daq_source_control_packets_total{source="adc"} 7"#,
            r#"daq_source_before_start_packets_total{source="adc"} 14"#,
            r#"daq_source_epochs_total{source="adc"} 2"#,
            r#"daq_source_skipped_packets_total{source="adc"} 8"#,
            r#"daq_source_incomplete_frames_total{source="adc"} 9"#,
            r#"daq_source_last_packet_timestamp_seconds{source="adc"} 1700000000.5"#,
            r#"daq_source_silent{source="adc"} 1"#,
            r#"daq_ring_newest_frame_age_seconds{ring="raw"} 0.25"#,
            r#"daq_ring_capacity_slots{ring="raw"} 64"#,
            r#"daq_ring_high_water_slots{ring="raw"} 33"#,
            r#"daq_ring_produced_frames_total{ring="raw"} 110"#,
            r#"daq_ring_published_frames_total{ring="raw"} 100"#,
            r#"daq_ring_full_frames_total{ring="raw"} 10"#,
            r#"daq_ring_mapping_info{ring="raw",backend="vulkan"} 1"#,
            r#"daq_reader_published_frames_total{reader="spectrum",ring="raw"} 99"#,
            r#"daq_reader_read_frames_total{reader="spectrum",ring="raw"} 70"#,
            r#"daq_reader_overrun_frames_total{reader="spectrum",ring="raw"} 9"#,
            r#"daq_reader_discarded_frames_total{reader="spectrum",ring="raw"} 4"#,
            r#"daq_reader_pending_frames{reader="spectrum",ring="raw"} 16"#,
            r#"daq_reader_blocked_frames_total{reader="spectrum",ring="raw"} 11"#,
            r#"daq_kernel_input_frames_total{kernel="spectrum"} 80"#,
            r#"daq_kernel_consumed_frames_total{kernel="spectrum"} 64"#,
            r#"daq_kernel_accumulating_frames{kernel="spectrum"} 12"#,
            r#"daq_kernel_failed_frames_total{kernel="spectrum"} 1"#,
            r#"daq_kernel_pending_frames{kernel="spectrum"} 3"#,
            r#"daq_kernel_produced_frames_total{kernel="spectrum"} 13"#,
            r#"daq_copy_started_frames_total{from="raw@host",to="raw"} 107"#,
            r#"daq_copy_frames_total{from="raw@host",to="raw"} 100"#,
            r#"daq_copy_failed_frames_total{from="raw@host",to="raw"} 2"#,
            r#"daq_copy_stored_frames_total{from="raw@host",to="raw"} 31"#,
            r#"daq_copy_pending_frames{from="raw@host",to="raw"} 5"#,
            r#"daq_copies_total{from="raw@host",to="raw"} 36"#,
            r#"daq_copy_bytes_total{from="raw@host",to="raw"} 409600"#,
            r#"daq_copy_in_flight{from="raw@host",to="raw"} 3"#,
            r#"daq_copy_busy_seconds_total{from="raw@host",to="raw"} 0.75"#,
            r#"daq_kernel_dispatch_info{kernel="beam",dispatch="launch"} 1"#,
            r#"daq_kernel_dispatch_info{kernel="trigger",dispatch="persistent"} 1"#,
            r#"daq_kernel_occupancy_ratio{kernel="trigger"} 0.125"#,
            r#"daq_kernel_launches_total{kernel="beam"} 23"#,
            r#"daq_kernel_device_seconds_total{kernel="beam"} 1.5"#,
            r#"daq_kernel_launch_gap_seconds_total{kernel="beam"} 0.25"#,
            r#"daq_kernel_occupancy_ratio{kernel="beam"} 0.625"#,
            r#"daq_sink_frames_total{sink="di\"sk"} 17"#,
            r#"daq_sink_bytes_total{sink="di\"sk"} 69632"#,
            r#"daq_sink_files_total{sink="di\"sk"} 14"#,
            r#"daq_sink_full{sink="di\"sk"} 1"#,
            r#"daq_sink_dropped_frames_total{sink="di\"sk"} 15"#,
            r#"daq_sink_lost_frames_total{sink="di\"sk"} 16"#,
            "daq_uptime_seconds 12.5",
            "daq_ledger_violations 0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }

    #[test]
    fn only_mapped_rings_are_reported_as_mapped() {
        let text = text();
        let series = text.lines();
        let series = series.filter(|line| line.starts_with("daq_ring_mapping_info{"));
        assert_eq!(series.count(), 1);
    }

    #[test]
    fn copy_sizes_are_exported_as_histogram() {
        let text = text();
        let found: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("daq_copy_size_bytes"))
            .collect();
        // Each class includes the smaller ones; the last class includes all.
        let mut expected: Vec<_> = CopySizes::BOUNDS
            .iter()
            .zip([1, 3, 6, 10, 15, 21, 28])
            .map(|(bound, count)| (bound.to_string(), count))
            .collect();
        expected.push(("+Inf".to_owned(), 36));
        let mut expected: Vec<_> = expected
            .iter()
            .map(|(bound, count)| {
                format!(
                    r#"daq_copy_size_bytes_bucket{{from="raw@host",to="raw",le="{bound}"}} {count}"#
                )
            })
            .collect();
        for (series, value) in [("sum", 409_600), ("count", 36)] {
            expected.push(format!(
                r#"daq_copy_size_bytes_{series}{{from="raw@host",to="raw"}} {value}"#
            ));
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn cpu_kernels_export_no_gpu_metrics() {
        let text = text();
        for (name, kernels) in [
            ("daq_kernel_launches_total", 1),
            ("daq_kernel_device_seconds_total", 1),
            ("daq_kernel_launch_gap_seconds_total", 1),
            ("daq_kernel_occupancy_ratio", 2),
            ("daq_kernel_dispatch_info", 2),
        ] {
            let series = text.lines().filter(|line| line.starts_with(name));
            assert_eq!(series.count(), kernels, "{name}");
        }
    }

    #[test]
    fn every_loss_cause_is_exported_from_startup() {
        let text = text();
        for cause in Cause::ALL {
            let lost = match cause {
                Cause::WireGap => 37,
                Cause::Late => 3,
                _ => 0,
            };
            let line =
                format!(r#"daq_source_lost_packets_total{{source="adc",cause="{cause}"}} {lost}"#);
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }

    #[test]
    fn empty_pipeline_reports_only_process_metrics() {
        let text = Exposition::new(Arc::new(Report::default))
            .unwrap()
            .text()
            .unwrap();
        assert!(
            !text.contains("daq_source")
                && !text.contains("daq_cop")
                && text.contains("\ndaq_uptime_seconds 0\n"),
            "{text}"
        );
    }

    #[test]
    fn promtool_reports_no_problem() {
        let promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut promtool = match promtool {
            Ok(promtool) => promtool,
            Err(error) => {
                eprintln!("skipped: promtool (Debian: prometheus) does not start: {error}");
                return;
            }
        };
        promtool
            .stdin
            .take()
            .unwrap()
            .write_all(text().as_bytes())
            .unwrap();
        let output = promtool.wait_with_output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        assert!(
            output.status.success() && printed.is_empty(),
            "{}",
            String::from_utf8_lossy(&printed)
        );
    }
}
