//! Exports the ledgers as Prometheus metrics. The ledgers are read for each request, never by the data threads.

use super::metric::{Kind, Metric, Read, seconds};
use super::process::{self, Process};
use super::table::METRICS;
use daq_core::gpu::Dispatch;
use daq_core::ledger::{Cause, CopyLedger, CopyReport, DeviceReport, EngineReport, Report};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric as Sample, MetricFamily, MetricType,
};
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
        let descriptors = METRICS
            .iter()
            .map(|metric| {
                let labels = metric
                    .labels()
                    .iter()
                    .map(|label| (*label).to_owned())
                    .collect();
                Desc::new(
                    metric.name.to_owned(),
                    metric.help.to_owned(),
                    labels,
                    HashMap::new(),
                )
            })
            .collect::<prometheus::Result<_>>()?;
        Ok(Self {
            report,
            descriptors,
            started: process::now(),
        })
    }

    fn samples(&self, metric: &Metric, report: &Report, process: &Process) -> Vec<Sample> {
        let sample = |values: &[&str], value: f64| {
            let mut sample = Sample::from_label(pairs(metric.labels(), values));
            if metric.kind == Kind::Counter {
                let mut counter = Counter::default();
                counter.set_value(value);
                sample.set_counter(counter);
            } else {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                sample.set_gauge(gauge);
            }
            sample
        };
        match metric.read {
            Read::Source(of) => each(&report.sources, |name, s| sample(&[name], of(s) as f64)),
            Read::Lost => report
                .sources
                .iter()
                .flat_map(|(name, source)| {
                    Cause::ALL.into_iter().map(move |cause| {
                        let lost = source.lost.get(cause.name()).copied().unwrap_or(0);
                        sample(&[name, cause.name()], lost as f64)
                    })
                })
                .collect(),
            Read::Counts => report
                .sources
                .iter()
                .flat_map(|(name, source)| {
                    let counts = source.counts.iter();
                    counts.map(move |(count, n)| (name, *count, *n))
                })
                .map(|(name, count, n)| sample(&[name, count], n as f64))
                .collect(),
            Read::Engine(of) => engines(report)
                .map(|(name, engine)| sample(&[name], of(engine) as f64))
                .collect(),
            Read::Faults => engines(report)
                .flat_map(|(name, engine)| {
                    let faults = engine.faults.iter();
                    faults.map(move |(fault, count)| (name, *fault, *count))
                })
                .map(|(name, fault, count)| sample(&[name, fault], count as f64))
                .collect(),
            Read::Ring(of) => each(&report.rings, |name, r| sample(&[name], of(r) as f64)),
            Read::LastPacket => each(&report.sources, |name, source| {
                sample(&[name], seconds(source.last_packet_ns.unwrap_or(0)))
            }),
            Read::FrameAge => report
                .rings
                .iter()
                .filter_map(|(name, ring)| {
                    Some(sample(&[name], seconds(ring.newest_frame_age_ns?)))
                })
                .collect(),
            Read::Mapping => report
                .rings
                .iter()
                .filter_map(|(name, ring)| Some(sample(&[name, ring.mapping?.name()], 1.0)))
                .collect(),
            Read::Reader(of) => each(&report.readers, |name, r| {
                sample(&[name, &r.ring], of(r) as f64)
            }),
            Read::Copy(of) => each(&report.copies, |_, c| sample(&[&c.from, &c.to], of(c))),
            Read::CopySizes => each(&report.copies, |_, c| {
                // The text format adds the label `le` to each size class.
                let mut sample = Sample::from_label(pairs(metric.labels(), &[&c.from, &c.to]));
                sample.set_histogram(sizes(c));
                sample
            }),
            Read::Kernel(of) => each(&report.kernels, |name, k| sample(&[name], of(k) as f64)),
            Read::Device(of) => on_device(report)
                .map(|(name, device)| sample(&[name], of(device)))
                .collect(),
            Read::Launched(of) => on_device(report)
                .filter(|(_, device)| device.dispatch == Dispatch::Launch)
                .map(|(name, device)| sample(&[name], of(device)))
                .collect(),
            Read::Dispatch => on_device(report)
                .map(|(name, device)| sample(&[name, device.dispatch.name()], 1.0))
                .collect(),
            Read::Sink(of) => each(&report.sinks, |name, s| sample(&[name], of(s) as f64)),
            Read::Pipeline(of) => vec![sample(&[], of(report))],
            Read::Build => vec![sample(&[env!("CARGO_PKG_VERSION")], 1.0)],
            Read::Process(of) => vec![sample(&[], of(process))],
            Read::Start => vec![sample(&[], self.started)],
        }
    }
}

fn each<T>(parts: &BTreeMap<String, T>, sample: impl Fn(&str, &T) -> Sample) -> Vec<Sample> {
    parts
        .iter()
        .map(|(name, part)| sample(name, part))
        .collect()
}

/// Returns the sources with a DMA engine.
fn engines(report: &Report) -> impl Iterator<Item = (&str, &EngineReport)> {
    let sources = report.sources.iter();
    sources.filter_map(|(name, source)| Some((name.as_str(), source.engine.as_ref()?)))
}

/// Returns the kernels on a GPU.
fn on_device(report: &Report) -> impl Iterator<Item = (&str, &DeviceReport)> {
    let kernels = report.kernels.iter();
    kernels.filter_map(|(name, kernel)| Some((name.as_str(), kernel.device.as_ref()?)))
}

/// Returns the number of copies per size class in Prometheus' cumulative form: each class includes all smaller classes.
fn sizes(copy: &CopyReport) -> Histogram {
    let mut up_to = 0;
    let buckets = CopyLedger::BOUNDS
        .iter()
        .zip(copy.sizes)
        .map(|(bound, count)| {
            up_to += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound as f64);
            bucket.set_cumulative_count(up_to);
            bucket
        });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(copy.copies);
    histogram.set_sample_sum(copy.bytes as f64);
    histogram
}

fn pairs(names: &[&str], values: &[&str]) -> Vec<LabelPair> {
    names
        .iter()
        .zip(values)
        .map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        })
        .collect()
}

impl Collector for Ledgers {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptors.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (report, process) = ((self.report)(), Process::read());
        METRICS
            .iter()
            .map(|metric| {
                let mut family = MetricFamily::default();
                family.set_name(metric.name.to_owned());
                family.set_help(metric.help.to_owned());
                family.set_field_type(match metric.kind {
                    Kind::Counter => MetricType::COUNTER,
                    Kind::Gauge => MetricType::GAUGE,
                    Kind::Histogram => MetricType::HISTOGRAM,
                });
                family.set_metric(self.samples(metric, &report, &process));
                family
            })
            .collect()
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
pub(super) mod tests {
    use super::*;
    use daq_core::gpu::Backend;
    use daq_core::ledger::{
        KernelReport, Proof, ReaderReport, RingReport, SinkReport, SourceReport,
    };
    use std::collections::BTreeSet;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    /// A report in which every number differs and every equation holds.
    pub(in crate::http) fn sample_report() -> Report {
        let mut report = Report {
            seconds: 12.5,
            ..Report::default()
        };
        let source = SourceReport {
            expected: 1000,
            delivered: 900,
            pending: 60,
            lost: [("wire_gap", 37), ("late", 3)].into(),
            bytes: 921_600,
            duplicates: 5,
            rejected: 6,
            rejected_by: [("length", 6)].into(),
            control: 7,
            epochs: 2,
            skipped: 8,
            last_packet_ns: Some(1_700_000_000_500_000_000),
            silent: true,
            incomplete: 9,
            engine: Some(EngineReport {
                proof: Proof::Proven,
                restarts: 9,
                fallbacks: 10,
                quiesce_timeouts: 11,
                faults: [("descriptor: magic", 12)].into(),
            }),
            counts: [("skipped", 4711)].into(),
        };
        report.sources.insert("adc".to_owned(), source);
        let ring = RingReport {
            capacity: 64,
            high_water: 33,
            produced: 110,
            published: 100,
            ring_full: 10,
            newest_frame_age_ns: Some(250_000_000),
            mapping: Some(Backend::Vulkan),
        };
        report.rings.insert("raw".to_owned(), ring);
        // This ring has no BAR mapping.
        report
            .rings
            .insert("raw@host".to_owned(), RingReport::default());
        let reader = ReaderReport {
            ring: "raw".to_owned(),
            published: 99,
            read: 70,
            overrun: 9,
            discarded: 4,
            dropped_incomplete: 0,
            pending: 16,
            blocked: 11,
        };
        report.readers.insert("spectrum".to_owned(), reader);
        let kernel = KernelReport {
            input: 80,
            consumed: 64,
            accumulating: 12,
            failed: 1,
            pending: 3,
            produced: 13,
            device: None,
        };
        report.kernels.insert("spectrum".to_owned(), kernel);
        let kernel = KernelReport {
            input: 85,
            consumed: 85,
            produced: 86,
            device: Some(DeviceReport {
                dispatch: Dispatch::Launch,
                launches: 23,
                busy_ns: 1_500_000_000,
                gap_ns: 250_000_000,
                occupancy_ppm: 625_000,
            }),
            ..KernelReport::default()
        };
        report.kernels.insert("beam".to_owned(), kernel);
        let kernel = KernelReport {
            device: Some(DeviceReport {
                dispatch: Dispatch::Persistent,
                occupancy_ppm: 125_000,
                ..DeviceReport::default()
            }),
            ..KernelReport::default()
        };
        report.kernels.insert("trigger".to_owned(), kernel);
        let copy = CopyReport {
            from: "raw@host".to_owned(),
            to: "raw".to_owned(),
            started: 107,
            frames: 100,
            failed: 2,
            stored: 31,
            pending: 5,
            copies: 36,
            bytes: 409_600,
            in_flight: 3,
            busy_ns: 750_000_000,
            sizes: [1, 2, 3, 4, 5, 6, 7, 8],
        };
        report.copies.insert("raw".to_owned(), copy);
        let sink = SinkReport {
            frames: 17,
            bytes: 69_632,
            files: 14,
            full: true,
            dropped: 15,
            lost: 16,
            connections: 18,
            stalls: 19,
        };
        report.sinks.insert("di\"sk".to_owned(), sink);
        assert_eq!(report.violations(), []);
        report
    }

    fn text() -> String {
        Exposition::new(Arc::new(sample_report))
            .unwrap()
            .text()
            .unwrap()
    }

    #[test]
    fn metrics_text_equals_metrics_table() {
        let text = text();
        for (prefix, expected) in [
            (
                "# HELP ",
                METRICS
                    .iter()
                    .map(|m| format!("{} {}", m.name, m.help))
                    .collect::<BTreeSet<_>>(),
            ),
            (
                "# TYPE ",
                METRICS
                    .iter()
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
        let mut expected: Vec<_> = CopyLedger::BOUNDS
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
