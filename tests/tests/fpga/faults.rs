//! Tests every fault of a device, by its name.

use crate::bytes::Served;
use crate::setup::{LITEPCIE, SLOT, XDMA, assert_stream, config, daq, data, host, packets};
use daq_emulators::xdma::ERRORS;
use daq_testkit::{Live, Outcome, assert_contains, assert_counts};

/// The methods to detect completions.
const NOTICES: [&str; 2] = ["poll", "interrupt"];

fn engine<'a>(outcome: &'a Outcome, key: &str) -> &'a serde_json::Value {
    &outcome.report["sources"]["adc"]["engine"][key]
}

/// Every error bit stops the engine once. The engine must be restarted each time, and no byte may be missing.
#[test]
fn xdma_errors_are_named_and_reception_continues() {
    const FRAMES: u64 = 100;
    for notice in NOTICES {
        let faults: Vec<String> = ERRORS
            .iter()
            .zip((7..).step_by(7))
            .map(|((name, _), at)| format!("{name}@{at}"))
            .collect();
        let source = format!("{XDMA}\ncompletion = \"{notice}\"");
        let card = format!("{}faults = {faults:?}", packets(FRAMES));
        let daq = daq(&config(&source, &card, &host(8)));
        let mut live = daq.spawn(&[]);
        live.wait_count("sources.adc.delivered", FRAMES);
        let metrics = live.get("/metrics").body;
        let outcome = live.stop().ok();
        let reported = engine(&outcome, "faults").as_object().unwrap();
        assert_eq!(reported.len(), ERRORS.len(), "{reported:#?}");
        for (name, _) in ERRORS {
            assert_eq!(reported[name], 1, "{name}: {reported:#?}");
            assert!(outcome.stderr.contains(name), "{name}: {}", outcome.stderr);
            assert!(
                metrics
                    .lines()
                    .any(|line| line.contains(name) && line.ends_with(" 1")),
                "{name}: {metrics}"
            );
        }
        let restarts = ERRORS.len() as u64;
        assert_eq!(engine(&outcome, "restarts"), restarts);
        // Each restart counts as an interruption of the stream.
        assert_counts!(outcome, "sources.adc" => epochs: restarts + 1, expected: FRAMES);
        let raw = data(&daq, "raw");
        assert_eq!(raw.len() as u64, FRAMES * SLOT as u64);
        assert_stream(&raw);
    }
}

/// The error occurs before the data path is verified.
#[test]
fn xdma_error_in_first_transfer_is_counted() {
    const FRAMES: u64 = 20;
    let card = format!("{}faults = [\"read-decode@0\"]", packets(FRAMES));
    let daq = daq(&config(XDMA, &card, &host(8)));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.delivered", FRAMES);
    let outcome = live.stop().ok();
    assert_eq!(engine(&outcome, "faults")["read-decode"], 1);
    assert_eq!(engine(&outcome, "path"), "verified");
    assert_counts!(outcome, "sources.adc" => epochs: 1; "the stream must not be interrupted");
    assert_stream(&data(&daq, "raw"));
}

/// An engine that never completes a frame must not be restarted forever.
#[test]
fn xdma_engine_that_always_fails_ends_run() {
    // Each fault occurs once, so each one uses up one restart.
    let faults: Vec<String> = ERRORS.iter().map(|(name, _)| format!("{name}@5")).collect();
    let card = format!("{}faults = {faults:?}", packets(20));
    let daq = daq(&config(XDMA, &card, &host(8)));
    let outcome = daq.run(&[]);
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "8 consecutive faults");
    assert_eq!(outcome.count("sources.adc.delivered"), 5);
    assert_eq!(engine(&outcome, "restarts"), 7);
    assert_eq!(data(&daq, "raw").len(), 5 * SLOT);
}

/// The engine must wait for a result that is written after the completion count.
#[test]
fn xdma_late_writeback_loses_nothing() {
    const FRAMES: u64 = 40;
    let card = format!("{}faults = [\"late@3\", \"late@20\"]", packets(FRAMES));
    let daq = daq(&config(XDMA, &card, &host(8)));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.delivered", FRAMES);
    let outcome = live.stop().ok();
    assert_eq!(engine(&outcome, "restarts"), 0);
    assert_stream(&data(&daq, "raw"));
}

/// Checks the result of a run whose device failed after `frames` frames.
fn is_whole_until(daq: &daq_testkit::Daq, outcome: &Outcome, frames: u64) {
    assert_eq!(daq_testkit::ledger::open(&outcome.report), [""; 0]);
    assert_counts!(outcome, "sources.adc" => expected: frames, delivered: frames);
    assert_counts!(outcome, "sinks.disk" => frames: frames);
    let raw = data(daq, "raw");
    assert_eq!(raw.len() as u64, frames * SLOT as u64);
    assert_stream(&raw);
}

/// If the device is removed, the run must end, and the file must contain all received data. This also applies if only
/// memory is polled.
#[test]
fn device_removed_in_process_ends_run() {
    for source in [XDMA, LITEPCIE] {
        for notice in NOTICES {
            let source = format!("{source}\ncompletion = \"{notice}\"");
            let card = format!("{}faults = [\"remove@30\"]", packets(100));
            let daq = daq(&config(&source, &card, &host(64)));
            let outcome = daq.run(&[]);
            assert_eq!(outcome.code, 69, "{}", outcome.stderr);
            assert!(outcome.stderr.contains("is gone"), "{}", outcome.stderr);
            assert_eq!(engine(&outcome, "quiesce_timeouts"), 0);
            // The position of LitePCIe's writer is no longer known, so some of the last frames may be missing.
            let frames = outcome.count("sources.adc.delivered");
            assert!(frames == 30 || source.contains("litepcie") && frames < 30);
            is_whole_until(&daq, &outcome, frames);
        }
    }
}

/// If a device in another process is removed, the run must end, and the file must contain all received data. The
/// device's registers are accessed through a socket.
#[test]
fn device_removed_over_socket_ends_run() {
    for notice in NOTICES {
        let source = format!(
            "device = \"vfio-user:card.sock\"\nengine = \"xdma\"\ncompletion = \"{notice}\""
        );
        let daq = daq(&config(&source, "", &host(64)));
        let packet = format!("{SLOT} B");
        let _card = Served::new(&daq, &["xdma", "--packet", &packet, "--fault", "remove@30"]);
        let outcome = daq.run(&[]);
        assert_eq!(outcome.code, 69, "{}", outcome.stderr);
        is_whole_until(&daq, &outcome, 30);
    }
}

/// If the process of an emulated device is killed, the run must end, and the file must contain all received data.
#[test]
fn device_emulator_killed_ends_run() {
    let source = "device = \"vfio-user:card.sock\"\nengine = \"xdma\"";
    let daq = daq(&config(source, "", &host(64)));
    let packet = format!("{SLOT} B");
    let card = Served::new(&daq, &["xdma", "--packet", &packet, "--packets", "30"]);
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.delivered", 30);
    drop(card);
    let outcome = live.wait();
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    is_whole_until(&daq, &outcome, 30);
}

/// Ends a run whose engine no longer transfers data.
fn stop_stuck(mut live: Live, frames: u64) -> Outcome {
    live.wait_count("sources.adc.delivered", frames);
    live.stop().ok()
}

/// If an engine does not stop, bus mastering must be disabled and the event counted. The file must contain all received
/// data.
#[test]
fn xdma_quiesce_timeout_disables_bus_mastering() {
    for notice in NOTICES {
        let source = format!("{XDMA}\ncompletion = \"{notice}\"");
        let card = format!("{}faults = [\"stuck@30\"]", packets(100));
        let daq = daq(&config(&source, &card, &host(64)));
        let outcome = stop_stuck(daq.spawn(&[]), 30);
        assert_eq!(
            engine(&outcome, "quiesce_timeouts"),
            1,
            "{:#}",
            outcome.report
        );
        assert_contains!(outcome.stderr => "bus mastering was disabled");
        is_whole_until(&daq, &outcome, 30);
    }
}

/// LitePCIe's writer is idle between two writes on the bus, so a writer that hangs at this point can be stopped
/// normally.
#[test]
fn litepcie_quiesce_timeout_loses_nothing() {
    let card = format!("{}faults = [\"stuck@30\"]", packets(100));
    let daq = daq(&config(LITEPCIE, &card, &host(64)));
    // The previous transfer is reported when the next one ends, or at the stop.
    let outcome = stop_stuck(daq.spawn(&[]), 29);
    is_whole_until(&daq, &outcome, 30);
}

/// A lost interrupt must only delay a frame.
#[test]
fn xdma_lost_interrupt_loses_nothing() {
    let source = format!("{LITEPCIE}\ncompletion = \"interrupt\"");
    let card = format!(
        "{}faults = [\"lost-interrupt@3\", \"lost-interrupt@59\"]",
        packets(60)
    );
    let daq = daq(&config(&source, &card, &host(64)));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.delivered", 59);
    let outcome = live.stop().ok();
    is_whole_until(&daq, &outcome, 60);
}

/// A transfer is reported as written, but its data never arrives. With host memory, there is no other path to use.
#[test]
fn xdma_transfer_that_never_completes_ends_run() {
    for source in [XDMA, LITEPCIE] {
        let card = format!("{}faults = [\"lie@0\"]", packets(60));
        let daq = daq(&config(source, &card, &host(64)));
        let outcome = daq.run(&[]);
        assert_eq!(outcome.code, 69, "{}", outcome.stderr);
        assert_eq!(engine(&outcome, "path"), "failed");
        assert_eq!(outcome.count("sources.adc.delivered"), 0);
        assert_contains!(outcome.stderr => "are unchanged");
        assert_eq!(data(&daq, "raw").len(), 0);
    }
}
