//! Tests sequence numbers inside frames, and registers of the gateware.

use crate::setup::{LITEPCIE, SLOT, XDMA, config, daq, data, host, numbers};
use daq_emulators::pattern::Pattern;
use daq_testkit::assert_counts;
use daq_testkit::ledger;

const SEQUENCE: &str = "sequence = { offset = 0, bytes = 8, endian = \"little\" }";

fn card(packets: u64) -> String {
    format!("packet = {SLOT}\npackets = {packets}\npattern = \"sequence\"\n")
}

/// The gateware loses packets before the DMA engine, so only the sequence numbers show the loss.
#[test]
fn gateware_loss_is_counted() {
    const FRAMES: u64 = 100;
    for notice in ["poll", "interrupt"] {
        let source = format!("{XDMA}\n{SEQUENCE}\ncompletion = \"{notice}\"");
        let card = format!(
            "{}faults = [\"overrun@10\", \"overrun@40\", \"overrun@41\"]",
            card(FRAMES)
        );
        let daq = daq(&config(&source, &card, &host(16)));
        let mut live = daq.spawn(&[]);
        live.wait_count("sources.adc.delivered", FRAMES - 3);
        let outcome = live.stop().ok();
        let lost = &outcome.report["sources"]["adc"]["lost"];
        assert_eq!(lost["wire_gap"], 3, "{lost}");
        assert_eq!(ledger::lost(&outcome.report, "adc"), 3);
        assert_counts!(outcome, "sources.adc" => expected: FRAMES, epochs: 1);
        let seen = numbers(Pattern::Sequence, &data(&daq, "raw"));
        let missing: Vec<u64> = (0..FRAMES).filter(|n| !seen.contains(n)).collect();
        assert_eq!(missing.len(), 3, "{missing:?}");
    }
}

/// A device with a fixed rate and little memory is blocked by a slow reader, so its buffer overflows.
#[test]
fn backpressure_overflow_in_device_is_counted_as_gap() {
    let slow = "[sink.slow]\ndriver = \"null\"\ninput = \"raw\"\ndelay = \"2 ms\"\nburst = 1\n";
    let source = format!("{XDMA}\n{SEQUENCE}");
    let card =
        format!("packet = {SLOT}\npattern = \"sequence\"\nrate = \"20 MB/s\"\nfifo = \"16 KiB\"\n");
    let daq = daq(&config(&source, &card, &(host(4) + slow)));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.lost.wire_gap", 10);
    live.wait_count("sources.adc.delivered", 50);
    let outcome = live.stop().ok();
    let seen = numbers(Pattern::Sequence, &data(&daq, "raw"));
    let delivered = outcome.count("sources.adc.delivered");
    assert_eq!(seen.len() as u64, delivered);
    let spanned = seen[seen.len() - 1] + 1 - seen[0];
    assert_counts!(outcome, "sources.adc" => expected: spanned);
    assert_counts!(outcome, "sources.adc.lost" => wire_gap: spanned - delivered);
}

/// Sequence numbers show how much is lost, and the engine reports the cause. Overwritten frames must not count as wire
/// gaps.
#[test]
fn engine_overrun_is_not_counted_as_wire_gap() {
    let source = format!("{LITEPCIE}\n{SEQUENCE}");
    let card = format!("{}rate = \"20 MB/s\"\nfaults = [\"overrun@50\"]", card(400));
    let daq = daq(&config(&source, &card, &host(16)));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.lost.overrun", 1);
    let outcome = live.stop().ok();
    let seen = numbers(Pattern::Sequence, &data(&daq, "raw"));
    let delivered = outcome.count("sources.adc.delivered");
    assert_eq!(seen.len() as u64, delivered);
    let lost = &outcome.report["sources"]["adc"]["lost"];
    let spanned = seen[seen.len() - 1] + 1 - seen[0];
    // Losses after the last received frame are also expected. A slow reader may have caused some of them.
    let expected = outcome.count("sources.adc.expected");
    assert!(expected >= spanned, "{expected} and {spanned}");
    assert_eq!(ledger::lost(&outcome.report, "adc"), expected - delivered);
    assert!(lost["overrun"].as_u64() > Some(0), "{lost}");
    assert!(
        lost.get("wire_gap").is_none_or(|count| count == 0),
        "{lost}"
    );
}

/// Frames without a free ring slot must not count as wire gaps either.
#[test]
fn ring_full_is_not_counted_as_wire_gap() {
    let slow = "[sink.slow]\ndriver = \"null\"\ninput = \"raw\"\ndelay = \"2 ms\"\nburst = 1\n";
    let source = format!("{LITEPCIE}\n{SEQUENCE}");
    let card = format!("packet = {SLOT}\npattern = \"sequence\"\nrate = \"20 MB/s\"\n");
    let daq = daq(&config(&source, &card, &(host(16) + slow)));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.lost.ring_full", 20);
    let outcome = live.stop().ok();
    let seen = numbers(Pattern::Sequence, &data(&daq, "raw"));
    let spanned = seen[seen.len() - 1] + 1 - seen[0];
    let expected = outcome.count("sources.adc.expected");
    assert!(expected >= spanned, "{expected} and {spanned}");
    let lost = &outcome.report["sources"]["adc"]["lost"];
    assert!(
        lost.get("wire_gap").is_none_or(|count| count == 0),
        "{lost}"
    );
    assert_eq!(
        lost["ring_full"].as_u64(),
        Some(outcome.count("rings.raw.ring_full"))
    );
}

/// Registers must contain the written values, in order, after the start and before the stop.
#[test]
fn registers_are_written_at_start_and_before_stop() {
    let registers = "registers = [\n\
        { bar = 0, offset = 0x8, value = 0x1234 },\n\
        { bar = 0, offset = 0x8, value = 0x1234, wait = \"1 min\" },\n\
        { bar = 0, offset = 0x8, value = 0xf0, mask = 0xf0 },\n\
        { bar = 0, offset = 0x8, value = 0x12f4, wait = \"1 min\" },\n\
        { bar = 0, offset = 0x4, value = SENDS },\n\
        { bar = 0, offset = 0x4, value = 0, when = \"stop\" },\n\
        { bar = 0, offset = 0x4, value = 0, wait = \"1 min\", when = \"stop\" },\n\
        ]";
    // The gateware sends only if this register enables it. Without data, the run must not fail.
    for (sends, frames) in [("1", 20), ("0", 0)] {
        let source = format!("{XDMA}\n{}", registers.replace("SENDS", sends));
        let daq = daq(&config(&source, &card(20), &host(8)));
        let mut live = daq.spawn(&[]);
        live.wait_ready();
        live.wait_count("sources.adc.delivered", frames);
        let outcome = live.stop().ok();
        assert_eq!(outcome.count("sources.adc.delivered"), frames);
        let path = if frames > 0 { "verified" } else { "unverified" };
        assert_eq!(outcome.report["sources"]["adc"]["engine"]["path"], path);
        assert_eq!(
            numbers(Pattern::Sequence, &data(&daq, "raw")).len() as u64,
            frames
        );
    }
    // A register that never has the expected value must be reported with its actual value.
    let source =
        format!("{XDMA}\nregisters = [{{ bar = 0, offset = 0x8, value = 7, wait = \"1 ms\" }}]");
    let outcome = daq(&config(&source, &card(20), &host(8))).run(&[]);
    assert_ne!(outcome.code, 0);
    assert!(outcome.stderr.contains("0x8"), "{}", outcome.stderr);
}
