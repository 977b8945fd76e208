//! The metrics that are not part of a ledger.

use super::process::Process;
use daq_core::ledger::{Count, Metric, MetricKind, MetricText, Report, Sample, SinkReport};

/// The metrics of the whole pipeline.
pub(super) const PIPELINE: &[Metric<Report>] = &[
    Metric {
        text: MetricText {
            meaning: "If the value is above 0, the counters cannot be trusted.",
            cause: "A defect in daq.",
            remedy: "Report the defect with the output of `/status`.",
            ..MetricText::new(
                "daq_ledger_violations",
                MetricKind::Gauge,
                &[],
                "Ledgers whose equation does not hold; always 0 unless daq has a defect.",
            )
        },
        samples: |report, put| put(Sample::Value(report.violations().len() as f64)),
    },
    Metric {
        text: MetricText {
            meaning: "Starts again at 0 after a restart.",
            cause: "A restart: by an operator, by systemd, or after a crash.",
            remedy: "`journalctl -u 'daq@*'` shows what stopped the pipeline; `last_run` of `/status` shows whether \
                         the run ended uncleanly.",
            ..MetricText::new(
                "daq_uptime_seconds",
                MetricKind::Gauge,
                &[],
                "Seconds since the pipeline started.",
            )
        },
        samples: |report, put| put(Sample::Value(report.seconds)),
    },
];

/// The metrics of the process.
pub(super) const PROCESS: &[Metric<Process>] = &[
    Metric {
        text: MetricText {
            by: &["version"],
            meaning: "Join this metric with other metrics to see what an upgrade changed.",
            cause: "Constant.",
            ..MetricText::new(
                "daq_build_info",
                MetricKind::Gauge,
                &[],
                "Always 1; the label is the version.",
            )
        },
        samples: |_, put| put(Sample::Labelled(env!("CARGO_PKG_VERSION"), 1.0)),
    },
    Metric {
        text: MetricText {
            meaning: "Messages that did not fit into the log queue, or whose terminal, pipe or journal \
                          was closed. Logging does not delay data.",
            cause: "A terminal stopped with Ctrl-S, a pipe that is not read, a journal that stalls, a closed ssh session.",
            remedy: "Make sure that a process reads stderr, or redirect stderr to a file or to the \
                         journal.",
            ..MetricText::new(
                "daq_log_dropped_total",
                MetricKind::Counter,
                &[],
                "Log messages dropped because stderr was not read or failed.",
            )
        },
        samples: |process, put| put(Sample::Value(process.dropped_messages)),
    },
    Metric {
        text: MetricText {
            meaning: "The rate of this metric is the number of cores in use.",
            cause: "Threads with busy polling use a whole core each, by design.",
            remedy: "Choose a wait policy that sleeps if cores are scarce.",
            ..MetricText::new(
                "process_cpu_seconds_total",
                MetricKind::Counter,
                &[],
                "Processor time of all threads, user and system, in seconds.",
            )
        },
        samples: |process, put| put(Sample::Value(process.cpu_seconds)),
    },
    Metric {
        text: MetricText {
            meaning: "After startup the value stays near the total that `daq plan` prints.",
            cause: "Steady growth is a defect in daq.",
            remedy: "Report the defect with the output of `/status`.",
            ..MetricText::new(
                "process_resident_memory_bytes",
                MetricKind::Gauge,
                &[],
                "Resident memory (RAM) of the process, in bytes.",
            )
        },
        samples: |process, put| put(Sample::Value(process.resident_bytes)),
    },
    Metric {
        text: MetricText {
            meaning: "Most of the address space consists of mappings that use no RAM.",
            ..MetricText::new(
                "process_virtual_memory_bytes",
                MetricKind::Gauge,
                &[],
                "Address space, in bytes.",
            )
        },
        samples: |process, put| put(Sample::Value(process.virtual_bytes)),
    },
    Metric {
        text: MetricText {
            meaning: "Memory of rings that cannot be swapped out or moved.",
            cause: "A value below the size of all rings in `daq plan`: the memlock limit is too low.",
            remedy: "`daq doctor` prints the command that raises the memlock limit.",
            ..MetricText::new(
                "daq_process_locked_memory_bytes",
                MetricKind::Gauge,
                &[],
                "Memory locked in RAM, in bytes.",
            )
        },
        samples: |process, put| put(Sample::Value(process.locked_bytes)),
    },
    Metric {
        text: MetricText {
            meaning: "The threads that `daq plan` lists, plus a few for HTTP and signals.",
            cause: "Constant after startup.",
            ..MetricText::new(
                "process_threads",
                MetricKind::Gauge,
                &[],
                "Threads of the process.",
            )
        },
        samples: |process, put| put(Sample::Value(process.threads)),
    },
    Metric {
        text: MetricText {
            meaning: "Sockets, files that sinks write, and HTTP connections.",
            cause: "Steady growth is a defect in daq.",
            remedy: "Report the defect with the output of `ls -l /proc/$(pidof daq)/fd`.",
            ..MetricText::new(
                "process_open_fds",
                MetricKind::Gauge,
                &[],
                "Open file descriptors.",
            )
        },
        samples: |process, put| put(Sample::Value(process.open_fds)),
    },
    Metric {
        text: MetricText {
            meaning: "The soft limit.",
            cause: "Constant.",
            remedy: "To raise the limit, set LimitNOFILE= in the unit, or run `ulimit -n` in a shell.",
            ..MetricText::new(
                "process_max_fds",
                MetricKind::Gauge,
                &[],
                "Maximum number of open file descriptors.",
            )
        },
        samples: |process, put| put(Sample::Value(process.max_fds)),
    },
    Metric {
        text: MetricText {
            meaning: "The value changes at each restart.",
            cause: "See daq_uptime_seconds.",
            remedy: "See daq_uptime_seconds.",
            ..MetricText::new(
                "process_start_time_seconds",
                MetricKind::Gauge,
                &[],
                "Time at which the process set up its metrics, in seconds since 1970.",
            )
        },
        samples: |process, put| put(Sample::Value(process.started)),
    },
    Metric {
        text: MetricText {
            meaning: "At 0, timestamps of the clocks `host` and `kernel` have the unknown error of the system clock.",
            cause: "No time daemon runs, or it has not reached its servers yet.",
            remedy: "`daq doctor` prints the command that starts a time daemon.",
            ..MetricText::new(
                "daq_clock_synchronised",
                MetricKind::Gauge,
                &[],
                "1 if a time daemon synchronises the system clock, otherwise 0.",
            )
        },
        samples: |process, put| {
            if let Some(clock) = &process.clock {
                put(Sample::Value(f64::from(u8::from(clock.synchronised))));
            }
        },
    },
    Metric {
        text: MetricText {
            meaning: "Timestamps of the clocks `host` and `kernel` have at least this error.",
            cause: "The distance and the load of the network to the time servers.",
            remedy: "Use a nearer time server, or PTP.",
            ..MetricText::new(
                "daq_clock_error_seconds",
                MetricKind::Gauge,
                &[],
                "Error of the system clock that the time daemon estimates, in seconds.",
            )
        },
        samples: |process, put| {
            if let Some(clock) = &process.clock {
                put(Sample::Value(clock.estimated_error_us as f64 / 1e6));
            }
        },
    },
    Metric {
        text: MetricText {
            by: &["clock"],
            meaning: "37 for a clock in TAI, 0 for a clock in UTC, and unknown if daq may not read `/dev/ptpN`. Timestamps of the clock `hardware` count from the epoch of the PTP clock.",
            cause: "Other values: ptp4l or phc2sys does not run, or has not set the clock yet.",
            remedy: "`daq doctor` judges the PTP clocks; `journalctl -u ptp4l` shows what ptp4l does.",
            ..MetricText::new(
                "daq_ptp_clock_offset_seconds",
                MetricKind::Gauge,
                &[],
                "PTP clock minus system clock, in seconds.",
            )
        },
        samples: |process, put| {
            for (name, seconds) in &process.ptp_offsets {
                put(Sample::Labelled(name, *seconds));
            }
        },
    },
];

/// Returns the description of every metric, in the order of the reference page.
pub fn metrics() -> Vec<MetricText> {
    let mut all: Vec<_> = Report::metrics().into_iter().copied().collect();
    let counts = daq_sinks::COUNTS.iter().flat_map(|set| set.counts);
    all.extend(counts.filter_map(sink_metric));
    all.extend(PIPELINE.iter().map(|metric| metric.text));
    all.extend(PROCESS.iter().map(|metric| metric.text));
    all
}

/// Returns the metric of a counter that only some sinks have.
pub(super) fn sink_metric(count: &Count) -> Option<MetricText> {
    let component = SinkReport::METRICS[0].text.component;
    let metric = count.metric?;
    Some(MetricText {
        component,
        ..metric
    })
}

#[cfg(test)]
mod tests;
