//! Simulates faults and checks their effect on the ledger of a whole run.

use daq_core::reorder::Geometry;
use daq_drivers::sim::{SimConfig, State};
use daq_testkit::ledger::SourceCounts as Ledger;
use daq_testkit::{Daq, assert_counts};
use serde_json::{Value, json};
use std::fmt::Write;

/// Number of packets per run of the table.
const PACKETS: u64 = 1000;
/// Packets per frame.
const PACKETS_PER_FRAME: u64 = 8;

/// Returns the ledger of 1000 packets without a fault.
fn whole() -> Ledger {
    Ledger::whole(PACKETS)
}

/// Returns the ledger of 1000 packets, of which `count` were lost to `cause`.
fn lost(cause: &'static str, count: u64) -> Ledger {
    Ledger::lost(PACKETS, &[(cause, count)])
}

/// Returns a ledger with changed fields.
macro_rules! counts {
    ($base:expr, $($field:ident: $value:expr),+) => {
        Ledger { $($field: $value,)+ ..$base }
    };
}

/// Returns the keys of a source, the keys of its faults, and the ledger of 1000 packets, which was computed by hand.
fn table() -> Vec<(&'static str, &'static str, Ledger)> {
    vec![
        ("", "", whole()),
        ("", "lose = [5]", lost("wire_gap", 1)),
        ("", "lose = [5, \"100..110\"]", lost("wire_gap", 11)),
        // A complete frame is lost, and parts of its neighbours: 15 packets of the frames 24, 25 and 26.
        ("", "lose = [\"197..212\"]", lost("wire_gap", 15)),
        // Packets before the first and after the last received packet are not expected.
        ("", "lose = [\"0..3\", \"990..1000\"]", Ledger::whole(987)),
        // An unreadable sequence number leaves a gap at the packet's position.
        (
            "",
            "corrupt_header_at = [7, 8, 500]",
            counts!(lost("wire_gap", 3), rejected: 3),
        ),
        (
            "",
            "corrupt_payload_at = [9, \"20..24\"]",
            lost("bad_packet", 5),
        ),
        (
            "",
            "duplicate_at = [0, 3, \"100..200\", 999]",
            counts!(whole(), duplicates: 103),
        ),
        ("", "late_at = [100, \"200..204\"]", lost("late", 5)),
        // A packet delayed at the end of the stream arrives while its frame is still open.
        ("", "late_at = [998]", whole()),
        ("", "reorder_at = [2, 3, 50, \"600..610\"]", whole()),
        // The packets are overtaken by the maximum that the window allows: 4 frames minus one.
        ("", "reorder_at = [51, 123]\nreorder_by = 24", whole()),
        // Four successive packets are needed before a new sequence is accepted. The first three are kept until the
        // fourth starts the epoch.
        ("restart_at = 500", "", counts!(whole(), epochs: 2)),
        (
            "jump = { at = 500, by = 100000 }",
            "",
            counts!(whole(), epochs: 2, skipped: 100_000),
        ),
        // The new numbers are within the window, so the numbers in between count as lost.
        (
            "jump = { at = 500, by = 10 }",
            "",
            counts!(whole(), expected: 1010, delivered: 1000, lost: vec![("wire_gap", 10)]),
        ),
        // The number wraps around after 256 packets, nearly four times in the run.
        ("sequence_bits = 8\nstart = 250", "", whole()),
        // The numbers are 65 530 to 65 535 and continue with 0. The lists of faults use numbers before truncation.
        (
            "sequence_bits = 16\nstart = 65530",
            "lose = [\"65534..65538\"]",
            lost("wire_gap", 4),
        ),
        // The sender restarts, and its numbers have few bits.
        (
            "sequence_bits = 10\nrestart_at = 300",
            "lose = [10]",
            // Number 10 is lost in both epochs.
            counts!(lost("wire_gap", 2), epochs: 2),
        ),
        // All kinds of faults in one run.
        (
            "",
            "lose = [30, 31]\ncorrupt_header_at = [60]\ncorrupt_payload_at = [90]\nduplicate_at = [120]\n\
             late_at = [150]\nreorder_at = [180]",
            counts!(whole(), delivered: 995, lost: vec![("wire_gap", 3), ("late", 1), ("bad_packet", 1)], duplicates: 1, rejected: 1),
        ),
    ]
}

/// Returns a source, a ring that has room for all of its frames, and a reader.
fn pipeline(name: &str, packet: u64, pace: &str, keys: &str, faults: &str) -> String {
    let frame = PACKETS_PER_FRAME * packet;
    format!(
        "[source.{name}]\ndriver = \"sim\"\nring = \"{name}\"\npattern = \"counter\"\npacket = {packet}\n{pace}\n{keys}\n\
         [source.{name}.faults]\n{faults}\n\
         [ring.{name}]\nslot = {frame}\nslots = 256\n\
         [sink.{name}-out]\ndriver = \"null\"\ninput = \"{name}\"\n"
    )
}

/// Tests every fault at one rate and one packet size.
fn every_fault(packet: u64, pace: &str) {
    for (keys, faults, expected) in table() {
        let keys = format!("packets = {PACKETS}\n{keys}");
        let outcome = Daq::new(&pipeline("adc", packet, pace, &keys, faults))
            .run(&[])
            .ok();
        assert_eq!(
            Ledger::of(&outcome, "adc"),
            expected,
            "{keys}\n{faults}\n{:#}",
            outcome.report
        );
        assert_counts!(outcome, "sources.adc" =>
            bytes: expected.delivered * packet; "{keys}\n{faults}"
        );
        let (made, read) = (
            outcome.count("rings.adc.produced"),
            outcome.count("readers.adc-out.read"),
        );
        assert!(
            made == read && made >= expected.delivered.div_ceil(PACKETS_PER_FRAME),
            "{keys}\n{faults}"
        );
    }
}

/// Returns the pace of a source with `packets` packets of `packet` bytes per second.
fn paced(packet: u64, packets: u64) -> String {
    format!("pace = \"{} bit/s\"", packet * 8 * packets)
}

#[test]
fn faults_at_full_rate_are_counted() {
    every_fault(64, "backpressure = true");
    every_fault(1472, "backpressure = false");
    every_fault(8192, "backpressure = true");
}

#[test]
fn faults_at_slow_pace_are_counted() {
    every_fault(64, &paced(64, 10_000));
    every_fault(8192, &paced(8192, 20_000));
}

#[test]
fn faults_at_fast_pace_are_counted() {
    every_fault(64, &paced(64, 500_000));
    every_fault(1472, &(paced(1472, 200_000) + "\nbackpressure = true"));
}

/// Returns the ledger that the published schedule of faults predicts. Supports only faults that do not change the
/// sequence.
fn predict(keys: &Value, geometry: &Geometry) -> Ledger {
    let config: SimConfig = serde_json::from_value(keys.clone()).unwrap();
    let (mut low, mut high, mut front) = (u64::MAX, 0, 0);
    let mut seen = std::collections::BTreeSet::new();
    let mut ledger = Ledger::whole(0);
    let (mut late, mut bad) = (0, 0);
    for (i, arrival) in config.arrivals(geometry).enumerate() {
        let sequence = arrival.packet.sequence;
        let frame = sequence / u64::from(geometry.packets_per_frame);
        if arrival.state == State::BadHeader {
            ledger.rejected += 1;
            continue;
        }
        assert!(
            i > 0 || sequence == 0,
            "the first packet of this seed has a fault; choose a different seed"
        );
        (low, high, front) = (low.min(sequence), high.max(sequence), front.max(frame));
        if !seen.insert(sequence) {
            ledger.duplicates += 1;
        } else if arrival.state == State::BadPayload {
            bad += 1;
        } else if frame + geometry.window as u64 <= front {
            late += 1;
        } else {
            ledger.delivered += 1;
        }
    }
    ledger.expected = high - low + 1;
    let gaps = ledger.expected - ledger.delivered - late - bad;
    ledger.lost = [("wire_gap", gaps), ("late", late), ("bad_packet", bad)]
        .into_iter()
        .filter(|(_, n)| *n > 0)
        .collect();
    ledger
}

#[test]
fn faults_random_follow_schedule() {
    let geometry = Geometry::new(8, 64);
    let cases = [
        json!({ "loss": 0.05 }),
        json!({ "loss": 0.02, "loss_burst": 5.0 }),
        json!({ "corrupt_header": 0.03 }),
        json!({ "corrupt_payload": 0.1 }),
        json!({ "duplicate": 0.2 }),
        json!({ "late": 0.01 }),
        json!({ "reorder": 0.1, "reorder_by": 5 }),
        json!({ "loss": 0.01, "corrupt_header": 0.01, "corrupt_payload": 0.01, "duplicate": 0.01, "late": 0.002,
                "reorder": 0.05 }),
    ];
    for (i, mut faults) in cases.into_iter().enumerate() {
        for seed in [2, 3] {
            faults["seed"] = json!(seed);
            let text =
                faults
                    .as_object()
                    .unwrap()
                    .iter()
                    .fold(String::new(), |mut text, (key, value)| {
                        writeln!(text, "{key} = {value}").unwrap();
                        text
                    });
            let keys = json!({ "packets": 20_000, "packet": "64 B", "faults": faults });
            let expected = predict(&keys, &geometry);
            assert!(
                expected != Ledger::whole(20_000) || i == 6,
                "nothing happened"
            );
            let run = pipeline("adc", 64, "backpressure = true", "packets = 20000", &text);
            let outcome = Daq::new(&run).run(&[]).ok();
            assert_eq!(Ledger::of(&outcome, "adc"), expected, "{text}");
        }
    }
}

#[test]
fn sources_many_keep_separate_ledgers() {
    let mut text = String::new();
    for i in 0..8 {
        text += &pipeline(
            &format!("s{i}"),
            64,
            "",
            "packets = 5000",
            &format!("lose = [\"100..{}\"]", 101 + i),
        );
    }
    let outcome = Daq::new(&text).run(&[]).ok();
    for i in 0..8_u64 {
        let gaps = vec![("wire_gap", i + 1)];
        let expected = counts!(whole(), expected: 5000, delivered: 4999 - i, lost: gaps);
        assert_eq!(Ledger::of(&outcome, &format!("s{i}")), expected);
    }
}

/// Returns a free-running source with a reader that needs 2 ms per frame.
fn slow_reader(hold: bool, sink: &str, frames: u64) -> String {
    format!(
        "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = 64\nbackpressure = {hold}\n\
         frames = {frames}\npace = \"free\"\n[ring.raw]\nslot = 512\nslots = 16\n\
         [sink.slow]\ndriver = \"null\"\ninput = \"raw\"\ndelay = \"2 ms\"\nburst = 1\n{sink}\n"
    )
}

#[test]
fn source_with_backpressure_and_slow_reader_loses_nothing() {
    let outcome = Daq::new(&slow_reader(true, "", 200)).run(&[]).ok();
    assert_eq!(Ledger::of(&outcome, "adc"), Ledger::whole(1600));
    assert_eq!(outcome.count("rings.raw.ring_full"), 0);
    assert_eq!(outcome.count("readers.slow.read"), 200);
    // The ring must have been full.
    assert_eq!(outcome.count("rings.raw.high_water"), 16);
}

#[test]
fn source_without_backpressure_counts_ring_full_by_reader() {
    let other = "guarantee = true\n[sink.careless]\ndriver = \"null\"\ninput = \"raw\"\nguarantee = false\n";
    let outcome = Daq::new(&slow_reader(false, other, 2000)).run(&[]).ok();
    let refused = outcome.count("rings.raw.ring_full");
    assert!(refused > 0, "{:#}", outcome.report);
    assert_counts!(outcome, "rings.raw" => produced: 2000);
    assert_counts!(outcome, "readers.slow" => blocked: refused);
    assert_counts!(outcome, "readers.careless" => blocked: 0);
    let ledger = Ledger::of(&outcome, "adc");
    let expected = counts!(whole(), expected: 16_000, delivered: 16_000 - 8 * refused, lost: vec![("ring_full", 8 * refused)]);
    assert_eq!(ledger, expected);
}

#[test]
fn reader_without_guarantee_counts_overrun() {
    for hold in [true, false] {
        let outcome = Daq::new(&slow_reader(hold, "guarantee = false", 2000))
            .run(&[])
            .ok();
        let (read, overrun) = (
            outcome.count("readers.slow.read"),
            outcome.count("readers.slow.overrun"),
        );
        assert_eq!(
            read + overrun + outcome.count("readers.slow.discarded"),
            2000 - outcome.count("rings.raw.ring_full")
        );
        assert!(overrun > 0 && read > 0, "{:#}", outcome.report);
        assert_eq!(outcome.count("sinks.slow.frames"), read);
        if !hold {
            // A source without backpressure must never be blocked.
            assert_eq!(Ledger::of(&outcome, "adc"), Ledger::whole(16_000));
        }
    }
}

#[test]
fn kernel_chain_with_guarantee_applies_backpressure() {
    let text = "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = 512\nframes = 100\n\
                samples = { type = \"int16\" }\n\
                [ring.raw]\nslot = 1024\nslots = 8\n\
                [kernel.floats]\nuse = \"convert\"\ninput = \"raw\"\noutput = \"floats\"\nburst = 2\n\
                [ring.floats]\nslots = 4\n\
                [sink.slow]\ndriver = \"null\"\ninput = \"floats\"\ndelay = \"2 ms\"\nburst = 1\n";
    let outcome = Daq::new(text).run(&[]).ok();
    assert_eq!(outcome.count("sinks.slow.frames"), 100);
    assert_eq!(outcome.count("kernels.floats.consumed"), 100);
    assert_eq!(
        outcome.count("rings.floats.ring_full") + outcome.count("rings.raw.ring_full"),
        0
    );
}

#[test]
fn gap_beyond_window_with_backpressure_loses_nothing_else() {
    // Five complete frames are missing, but only four are open. The ring is always nearly full.
    let text = slow_reader(true, "", 100) + "[source.adc.faults]\nlose = [\"200..240\"]\n";
    let outcome = Daq::new(&text).run(&[]).ok();
    let expected = counts!(lost("wire_gap", 40), expected: 800);
    assert_eq!(
        Ledger::of(&outcome, "adc"),
        counts!(expected, delivered: 760)
    );
    assert_eq!(outcome.count("rings.raw.ring_full"), 0);
}
