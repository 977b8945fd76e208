//! Tests devices without backpressure. Overwritten frames and frames without a free slot must be counted, and no file
//! may contain a wrong byte.

use crate::bytes::Served;
use crate::setup::{LITEPCIE, XDMA, config, daq, data, host, numbers, packets};
use daq_emulators::pattern::Pattern;
use daq_testkit::{Daq, Outcome, assert_counts, ledger};
use rustix::process::Signal;
use std::time::Duration;

/// Checks that the file has complete frames in order, and that their number equals the ledger. The number of missing
/// frames must not exceed the number of frames that the ledger counts as lost. The ledger may count too many, because
/// of frames that were being written, but never too few.
fn is_honest(daq: &Daq, outcome: &Outcome) -> Vec<u64> {
    let seen = numbers(Pattern::Counter, &data(daq, "raw"));
    assert_eq!(seen.len() as u64, outcome.count("sources.adc.delivered"));
    let missing = seen.last().map_or(0, |last| last + 1) - seen.len() as u64;
    let lost = ledger::lost(&outcome.report, "adc");
    assert!(missing <= lost, "{missing} missing: {:#}", outcome.report);
    seen
}

#[test]
fn litepcie_burst_beyond_reader_rate_is_counted() {
    for notice in ["poll", "interrupt"] {
        let source = format!("{LITEPCIE}\ncompletion = \"{notice}\"");
        let card = format!(
            "{}rate = \"20 MB/s\"\nfaults = [\"overrun@50\"]",
            packets(400)
        );
        let daq = daq(&config(&source, &card, &host(16)));
        let mut live = daq.spawn(&[]);
        live.wait_count("sources.adc.lost.overrun", 1);
        live.wait_count("sources.adc.expected", 399);
        let outcome = live.stop().ok();
        let seen = is_honest(&daq, &outcome);
        assert!(!seen.is_empty());
        // The device counts its transfers, so the total is known after it has stopped.
        assert_eq!(outcome.count("sources.adc.expected"), 400);
    }
}

/// Stops the daemon's process while a device in another process continues. Repeats this until an overrun occurs.
fn stand_still(source: &str, card: &[&str]) {
    let daq = daq(&config(source, "", &host(16)));
    let _card = Served::new(&daq, card);
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.delivered", 50);
    daq_testkit::wait_for("an overrun", || {
        live.signal(Signal::STOP);
        // The position of the device is not visible. If this time is too short, the loop tries again.
        std::thread::sleep(Duration::from_millis(20));
        live.signal(Signal::CONT);
        (ledger::count(&live.report(), "sources.adc.lost.overrun") > 0).then_some(())
    });
    let delivered = ledger::count(&live.report(), "sources.adc.delivered");
    live.wait_count("sources.adc.delivered", delivered + 50);
    let outcome = live.stop().ok();
    is_honest(&daq, &outcome);
}

#[test]
fn litepcie_overrun_while_daemon_stopped_is_counted() {
    stand_still(
        "device = \"vfio-user:card.sock\"\nengine = \"litepcie\"\ncsr = \"csr.csv\"",
        &["litepcie", "--rate", "20 MB/s"],
    );
}

/// XDMA without credits is free-running as well.
#[test]
fn xdma_without_credits_counts_overrun() {
    stand_still(
        "device = \"vfio-user:card.sock\"\nengine = \"xdma\"\ncredits = false",
        &["xdma", "--packet", "4 KiB", "--rate", "20 MB/s"],
    );
}

/// Frames arrive while a reader occupies every slot of the ring.
#[test]
fn ring_full_drops_are_counted() {
    let slow = "[sink.slow]\ndriver = \"null\"\ninput = \"raw\"\ndelay = \"2 ms\"\nburst = 1\n";
    let card = "rate = \"20 MB/s\"\n";
    let daq = daq(&config(LITEPCIE, card, &(host(16) + slow)));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.lost.ring_full", 20);
    live.wait_count("sources.adc.delivered", 100);
    let outcome = live.stop().ok();
    is_honest(&daq, &outcome);
    assert_counts!(outcome, "sources.adc.lost" => ring_full: outcome.count("rings.raw.ring_full"));
}

/// XDMA with credits waits for the same reader, and must lose nothing.
#[test]
fn backpressure_waits_for_slow_reader() {
    const FRAMES: u64 = 100;
    let slow = "[sink.slow]\ndriver = \"null\"\ninput = \"raw\"\ndelay = \"1 ms\"\nburst = 1\n";
    let daq = daq(&config(XDMA, &packets(FRAMES), &(host(4) + slow)));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.delivered", FRAMES);
    let outcome = live.stop().ok();
    assert_eq!(is_honest(&daq, &outcome).len() as u64, FRAMES);
    assert_eq!(ledger::lost(&outcome.report, "adc"), 0);
    assert_eq!(outcome.count("sources.adc.expected"), FRAMES);
    assert_eq!(outcome.count("rings.raw.ring_full"), 0);
}
