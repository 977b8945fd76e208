//! Tests the texts of reports.

use super::*;
use daq_core::gpu::{Backend, Dispatch};
use daq_core::ledger::{
    ClientsReport, CopyReport, Counts, DeviceReport, EngineReport, KernelReport, Latency,
    LatencyReport, PartReport, PathState, PlaybackReport, ReaderReport, RingReport, SinkReport,
    SourceReport,
};
use std::time::Duration;

daq_core::counts! {
    /// The counters of a sensor.
    struct SensorCounts {
        /// Frames that the sensor skipped.
        skipped,
    }
}

/// Latencies of frames in nanoseconds.
fn latency(frames: &[u64]) -> LatencyReport {
    let latency = Latency::default();
    for ns in frames {
        latency.add(*ns);
    }
    latency.report()
}

/// A report in which every number differs and every equation holds.
pub(crate) fn sample_report() -> Report {
    let mut report = Report {
        seconds: 12.5,
        ..Report::default()
    };
    let engine = EngineReport {
        path: PathState::Verified,
        restarts: 9,
        fallbacks: 10,
        quiesce_timeouts: 11,
        ..EngineReport::default()
    };
    let mut source = SourceReport {
        expected: 1000,
        delivered: 900,
        pending: 60,
        lost: [("wire_gap", 37), ("late", 3)].into(),
        bytes: 921_600,
        duplicates: 5,
        rejected: 6,
        rejected_by: [("length", 6)].into(),
        control: 7,
        before_start: 14,
        epochs: 2,
        skipped: 8,
        last_packet_ns: Some(1_700_000_000_500_000_000),
        silent: true,
        incomplete: 9,
        engine: Some(EngineReport {
            faults: [("descriptor: magic", 12)].into(),
            ..engine
        }),
        ..SourceReport::default()
    };
    let counts = Counts::in_memory(&[SensorCounts::SET]);
    counts.counter("skipped").set(4711);
    source.counts = counts.read();
    let part = PartReport {
        expected: 500,
        delivered: 470,
        pending: 20,
        lost: 10,
        duplicates: 2,
        rejected: 1,
    };
    source.parts = [("50001".to_owned(), part)].into();
    report.sources.insert("adc".to_owned(), source);
    let ring = RingReport {
        capacity: 64,
        high_water: 33,
        produced: 110,
        published: 100,
        ring_full: 10,
        newest_frame_age_ns: Some(250_000_000),
        latency: latency(&[1500, 1500, 3_000_000]),
        mapping: Some(Backend::Vulkan),
    };
    report.rings.insert("raw".to_owned(), ring);
    // This ring has no BAR mapping.
    report
        .rings
        .insert("raw@host".to_owned(), RingReport::default());
    let reader = ReaderReport {
        ring: "raw".to_owned(),
        process: None,
        published: 99,
        read: 70,
        overrun: 9,
        discarded: 4,
        dropped_incomplete: 0,
        pending: 16,
        blocked: 11,
        latency: latency(&[150_000]),
    };
    report.readers.insert("spectrum".to_owned(), reader);
    let clients = ClientsReport {
        attached: 2,
        total: 103,
        revoked: 5,
        published: 1000,
        read: 600,
        overrun: 200,
        discarded: 107,
        unread: 51,
        pending: 42,
    };
    report.clients.insert("raw".to_owned(), clients);
    let kernel = KernelReport {
        input: 80,
        consumed: 64,
        accumulating: 12,
        failed: 1,
        filtered: 0,
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
    let counts = Counts::in_memory(daq_sinks::COUNTS);
    for (name, value) in [
        ("connections", 18),
        ("stalls", 19),
        ("packets", 50),
        ("sent_packets", 20),
        ("absent_packets", 9),
        ("refused_queue_full", 8),
        ("refused_unreachable", 7),
        ("refused_other", 4),
        ("control_packets", 21),
        ("undeliverable", 22),
        ("published", 60),
        ("acknowledged", 40),
        ("refused", 13),
        ("repeated", 23),
        ("deduplicated", 24),
    ] {
        counts.counter(name).set(value);
    }
    let sink = SinkReport {
        frames: 17,
        bytes: 69_632,
        files: 14,
        full: true,
        dropped: 15,
        lost: 16,
        counts: counts.read(),
    };
    report.sinks.insert("di\"sk".to_owned(), sink);
    assert_eq!(report.violations(), []);
    report
}

#[test]
fn ledger_shows_every_counter() {
    assert_eq!(
        ledger(&sample_report()).lines().collect::<Vec<_>>(),
        [
            "source adc: lost 40 of 1000 frames (late 3, wire_gap 37; part 50001: 10), 5 duplicates, 6 rejected, 8 skipped, 9 frames \
             incomplete; expected 1000, delivered 900, pending 60, lost to late 3, lost to wire_gap 37, duplicates 5, \
             rejected 6, control packets 7, before start 14, skipped 8, epochs 2, path verified, \
             fault descriptor: magic 12, fallbacks 10, restarts 9, quiesce timeouts 11 (921600 bytes); counts skipped 4711",
            "part 50001 of source adc: expected 500, delivered 470, lost 10, duplicates 2, rejected 1",
            "ring raw: produced 110, published 100, refused 10; max in use 33 of 64; latency 1.75 us (median), 2.97 ms (99 %)",
            "ring raw@host: produced 0, published 0, refused 0; max in use 0 of 0",
            "copy to raw from raw@host: started 107, frames 100 (31 stored by the CPU), failed 2, pending 5; \
             copies 36, bytes 409600, mean size 11 KiB, in flight 3; busy 0.750 s at 4.37 Mbit/s",
            "kernel beam: in 85, consumed 85, accumulating 0, failed 0, pending 0; produced 86; launches 23, \
             GPU busy 1.500 s (12.0 % of the run), gaps 0.250 s, occupancy 62.5 %",
            "kernel spectrum: in 80, consumed 64, accumulating 12, failed 1, pending 3; produced 13",
            "kernel trigger: in 0, consumed 0, accumulating 0, failed 0, pending 0; produced 0; persistent, \
             occupancy 12.5 %",
            "reader spectrum of raw: published 99, read 70, overrun 9, discarded 4, pending 16, blocked 11 frames; latency 125 us (median), 150 us (99 %)",
            "clients of raw: total 103, attached 2, revoked 5; published 1000, read 600, overrun 200, discarded 107, \
             unread 51, pending 42",
            "sink di\"sk: frames 17, of which 16 lost, bytes 69632, files 14, dropped 15, connections 18, stalls 19, packets 50, \
             sent packets 20, absent packets 9, refused queue full 8, refused unreachable 7, refused other 4, \
             control packets 21, undeliverable 22, published 60, acknowledged 40, refused 13, repeated 23, deduplicated 24",
            "12.500 seconds",
        ]
    );
}

/// Returns the report of a GPU pipeline after `seconds` seconds, with counters that increase at constant rates.
fn report(seconds: u64, failed: u64) -> Report {
    let copy = CopyReport {
        from: "raw@host".to_owned(),
        to: "raw".to_owned(),
        started: 1000 * seconds + failed,
        frames: 1000 * seconds,
        failed,
        copies: 4000 * seconds,
        bytes: (4000 << 20) * seconds,
        in_flight: 2,
        busy_ns: 500_000_000 * seconds,
        ..CopyReport::default()
    };
    let kernel = |device| KernelReport {
        input: 7,
        consumed: 7,
        device,
        ..KernelReport::default()
    };
    let device = DeviceReport {
        dispatch: Dispatch::Launch,
        launches: 10 * seconds,
        busy_ns: 250_000_000 * seconds,
        gap_ns: 125_000_000 * seconds,
        occupancy_ppm: 625_000,
    };
    Report {
        copies: [("raw".to_owned(), copy)].into(),
        kernels: [
            ("beam".to_owned(), kernel(Some(device))),
            ("stats".to_owned(), kernel(None)),
        ]
        .into(),
        seconds: seconds as f64,
        ..Report::default()
    }
}

fn line<'a>(lines: impl IntoIterator<Item = &'a str>, start: &str) -> &'a str {
    lines
        .into_iter()
        .find(|line| line.starts_with(start))
        .unwrap()
}

#[test]
fn live_line_shows_current_copy_rate() {
    let passed = Duration::from_secs(2);
    let shown = block(&report(6, 0), &report(4, 0), passed);
    let copy = line(shown.iter().map(String::as_str), "copy   raw ");
    for part in [
        "  33.6 Gbit/s",
        " 6000 frames",
        " 1 MiB per copy",
        "2 in flight",
        "lag 0",
    ] {
        assert!(copy.contains(part), "{part:?} is not in {copy:?}");
    }
    assert!(!copy.contains("failed"), "{copy}");
    // If no data flows, the rates are zero. The totals count from the start of the run.
    let still = block(&report(6, 3), &report(6, 3), passed);
    let copy = line(still.iter().map(String::as_str), "copy   raw ");
    assert!(
        copy.contains("  0 bit/s") && copy.contains(" 0 B per copy") && copy.contains("failed 3"),
        "{copy}"
    );
    let first = block(&report(2, 0), &Report::default(), passed);
    let copy = line(first.iter().map(String::as_str), "copy   raw ");
    assert!(copy.contains("  33.6 Gbit/s"), "{copy}");
}

#[test]
fn live_line_shows_gpu_utilisation_by_kernel() {
    for (passed, share) in [(2, " 25 %"), (8, "  6 %"), (1, " 50 %")] {
        let shown = block(&report(6, 0), &report(4, 0), Duration::from_secs(passed));
        let lines = || shown.iter().map(String::as_str);
        let beam = line(lines(), "kernel beam ");
        assert!(beam.contains(&format!("GPU busy {share}")), "{beam}");
        let stats = line(lines(), "kernel stats");
        assert!(!stats.contains("GPU"), "{stats}");
    }
    assert_eq!((percent(3, 1e-9), percent(3, 0.0)), (100.0, 0.0));
}

#[test]
fn final_ledger_lists_copies_and_gpu_kernels() {
    let text = ledger(&report(8, 5));
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        [
            "copy to raw from raw@host: started 8005, frames 8000, failed 5, pending 0; copies 32000, \
             bytes 33554432000, mean size 1 MiB, in flight 2; busy 4.000 s at 67.1 Gbit/s",
            "kernel beam: in 7, consumed 7, accumulating 0, failed 0, pending 0; produced 0; launches 80, GPU busy \
             2.000 s (25.0 % of the run), gaps 1.000 s, occupancy 62.5 %",
            "kernel stats: in 7, consumed 7, accumulating 0, failed 0, pending 0; produced 0",
            "8.000 seconds",
        ]
    );
    assert!(!ledger(&Report::default()).contains("copy"));
}

#[test]
fn persistent_kernel_and_stores_are_not_reported_as_launches_and_copies() {
    let mut report = report(8, 0);
    let beam = report.kernels.get_mut("beam").unwrap();
    beam.device.as_mut().unwrap().dispatch = Dispatch::Persistent;
    report.copies.get_mut("raw").unwrap().stored = 7000;
    let text = ledger(&report);
    let beam = line(text.lines(), "kernel beam");
    assert!(
        beam.ends_with("produced 0; persistent, occupancy 62.5 %"),
        "{beam}"
    );
    let copy = line(text.lines(), "copy to raw");
    assert!(
        copy.contains("frames 8000 (7000 stored by the CPU), failed 0"),
        "{copy}"
    );
    let shown = block(&report, &Report::default(), Duration::from_secs(1));
    let beam = line(shown.iter().map(String::as_str), "kernel beam ");
    assert!(!beam.contains("busy"), "{beam}");
}

#[test]
fn block_shows_how_much_of_a_recording_is_replayed() {
    let shown = |bytes, repeats| {
        let playback = PlaybackReport {
            bytes,
            total_bytes: 100,
            repeats,
        };
        let source = SourceReport {
            playback: Some(playback),
            ..SourceReport::default()
        };
        let mut report = Report {
            seconds: 6.0,
            ..Report::default()
        };
        report.sources.insert("adc".to_owned(), source);
        block(&report, &Report::default(), Duration::from_secs(1))[1].clone()
    };
    let cases = [
        (0, false, "··········   0 %"),
        (30, false, "███·······  30 %  about 14 s left"),
        (100, false, "██████████ 100 %"),
        (30, true, "███·······  30 % of this pass"),
    ];
    for (bytes, repeats, text) in cases {
        assert_eq!(shown(bytes, repeats), format!("replay adc  {text}"));
    }
}

#[test]
fn status_line_has_rate_and_loss() {
    let mut before = Report {
        seconds: 10.0,
        ..Report::default()
    };
    let source = SourceReport {
        expected: 10,
        delivered: 10,
        bytes: 1000,
        ..SourceReport::default()
    };
    before.sources.insert("adc".to_owned(), source.clone());
    before.sources.insert("ref".to_owned(), source);
    assert_eq!(
        status_line(&before, &before),
        "0 bit/s, no loss in 20 packets"
    );
    let mut now = before.clone();
    now.seconds = 12.0;
    let adc = now.sources.get_mut("adc").unwrap();
    (adc.expected, adc.bytes) = (13, 1000 + 308_641_975);
    adc.lost = [("wire_gap", 1), ("late", 2)].into();
    assert_eq!(
        status_line(&now, &before),
        "1.23 Gbit/s, lost 3 of 23 packets (late 2, wire_gap 1)"
    );
    now.readers.insert(
        "view".to_owned(),
        ReaderReport {
            overrun: 5,
            ..ReaderReport::default()
        },
    );
    now.sinks.insert(
        "disk".to_owned(),
        SinkReport {
            full: true,
            dropped: 6,
            ..SinkReport::default()
        },
    );
    let line = status_line(&now, &before);
    assert!(
        line.ends_with(", 5 frames overrun, 6 frames not written, disk: accepts no frames"),
        "{line}"
    );
}

#[test]
fn status_line_has_partial_frames() {
    let source = SourceReport {
        expected: 7,
        delivered: 7,
        incomplete: 2,
        engine: Some(EngineReport::default()),
        ..SourceReport::default()
    };
    let mut now = Report::default();
    now.sources.insert("camera".to_owned(), source);
    assert_eq!(
        status_line(&now, &now),
        "0 bit/s, lost 0 of 7 frames, 2 frames incomplete"
    );
}

#[test]
fn status_line_rate_has_three_digits() {
    for (rate, shown) in [
        (0.0, "0 bit/s"),
        (0.125, "0.12 bit/s"),
        (1.0, "1 bit/s"),
        (1234.0, "1.23 kbit/s"),
        (99_960.0, "100 kbit/s"),
        (999.6e6, "1 Gbit/s"),
        (12_345e6, "12.3 Gbit/s"),
        (67_108_864_000.0, "67.1 Gbit/s"),
        (500e9, "500 Gbit/s"),
    ] {
        assert_eq!(shown_rate(rate), shown);
    }
}

#[test]
fn parts_are_sorted_as_numbers() {
    let mut report = Report::default();
    let names = ["10,2", "9,10", "9,2", "a10", "a9", "010"];
    let parts = names.map(|name| (name.to_owned(), PartReport::default()));
    let source = SourceReport {
        parts: parts.into(),
        ..SourceReport::default()
    };
    report.sources.insert("adc".to_owned(), source);
    let text = super::ledger(&report);
    let shown = text.lines().filter_map(|line| line.strip_prefix("part "));
    let shown: Vec<_> = shown.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(shown, ["9,2", "9,10", "010", "10,2", "a9", "a10"]);
}
