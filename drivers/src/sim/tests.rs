//! Runs the source through a window and a ring, and compares the ledger with the prediction for every fault.

use super::faults::Disposition;
use super::schedule::Packet;
use super::signal::Pattern;
use super::*;
use daq_core::config::{Diagnostics, Document};
use daq_core::entry::Registry;
use daq_core::frame::{Clock, FrameMeta};
use daq_core::ledger::SourceReport;
use daq_core::reorder::Geometry;
use daq_core::source::Polled;
use daq_testkit::source::{SourceFixture, new_fixture, parse};
use daq_testkit::{assert_contains, assert_fields};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const FILL: u8 = 0xee;

/// A source built from its configuration keys, with a ring and a reader that applies backpressure.
struct Bench {
    source: SourceFixture,
    config: SimConfig,
    frames: Vec<Got>,
}

/// A frame that the reader received.
struct Got {
    meta: FrameMeta,
    present: Vec<bool>,
    bytes: Vec<u8>,
}

fn spec(text: &str) -> Result<Box<dyn SourceSpec>, String> {
    let text = text.replace("[faults]", "[source.adc.faults]");
    parse(&ENTRY, &format!("[source.adc]\n{text}"))
}

fn bench(text: &str, slot: usize, slots: usize) -> Bench {
    let spec = spec(text).unwrap_or_else(|errors| panic!("{errors}"));
    let mut source = new_fixture(&*spec, slot, slots).unwrap();
    source.fillers[0].start().unwrap();
    Bench {
        source,
        config: toml::from_str(text).unwrap(),
        frames: Vec::new(),
    }
}

impl Bench {
    fn fill(&mut self) -> Polled {
        self.source.fill()
    }

    /// Reads at most `max` frames. Checks all bytes if the pattern is `counter`.
    fn read(&mut self, max: usize) -> usize {
        let mut read = 0;
        while read < max
            && let Some(lease) = self.source.reader.poll(1)
        {
            let frame = lease.frame(0);
            let meta = *frame.meta();
            let bytes = frame.bytes().unwrap()[..meta.length].to_vec();
            let present: Vec<_> = (0..self.source.geometry.packets_per_frame)
                .map(|i| frame.present().is_present(i))
                .collect();
            for (i, is_present) in (0..).zip(&present) {
                let extent = self.source.geometry.extent(i);
                let offset =
                    meta.sequence * self.source.geometry.frame_bytes as u64 + extent.start as u64;
                if !is_present {
                    assert!(
                        bytes[extent].iter().all(|byte| *byte == FILL),
                        "stale bytes in a missing packet slot"
                    );
                } else if self.config.pattern == Some(Pattern::Counter) {
                    assert_eq!(
                        verify(&bytes[extent], offset),
                        None,
                        "frame {} packet {i}",
                        meta.sequence
                    );
                }
            }
            self.frames.push(Got {
                meta,
                present,
                bytes,
            });
            read += 1;
        }
        read
    }

    /// Runs to the end while the reader reads all frames.
    fn run(mut self) -> Self {
        let mut idle = 0;
        loop {
            match self.fill() {
                Polled::Ended => break,
                Polled::Full => {
                    self.source.windows[0].tick(Instant::now());
                    idle += 1;
                    assert!(
                        idle < 1000,
                        "blocked forever: {:?} {:?}",
                        self.report(),
                        self.source.ring_ledger
                    );
                }
                _ => idle = 0,
            }
            self.read(usize::MAX);
        }
        self.finish();
        self
    }

    fn finish(&mut self) {
        self.source.windows[0].finish();
        self.read(usize::MAX);
    }

    fn report(&self) -> SourceReport {
        SourceReport {
            // The prediction counts packets only. Incomplete frames are checked separately.
            incomplete: 0,
            ..SourceReport::of(&self.source.ledger)
        }
    }

    /// Returns the sequence numbers of packets that arrived.
    fn arrived(&self) -> BTreeSet<u64> {
        let packets_per_frame = u64::from(self.source.geometry.packets_per_frame);
        let mut arrived = BTreeSet::new();
        for frame in &self.frames {
            for (packet, present) in (0..).zip(&frame.present) {
                if *present {
                    arrived.insert(frame.meta.sequence * packets_per_frame + packet);
                }
            }
        }
        arrived
    }
}

fn lost(causes: &[(&'static str, u64)]) -> BTreeMap<&'static str, u64> {
    causes
        .iter()
        .copied()
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// Slot and packet sizes: one packet per frame, a few, many, and slots that packets do not fill evenly.
const SHAPES: [(usize, usize); 6] = [
    (64, 64),
    (256, 64),
    (1000, 100),
    (1024, 24),
    (4096, 32),
    (16_384, 8192),
];

/// A fault and its expected effect on the ledger, in packets.
struct Case {
    keys: &'static str,
    lost: &'static [(&'static str, u64)],
    duplicates: u64,
    rejected: u64,
}

#[test]
fn every_single_fault_matches_the_ledger() {
    let fault = |keys, lost| Case {
        keys,
        lost,
        duplicates: 0,
        rejected: 0,
    };
    let cases = [
        fault("", &[]),
        fault("lose = [5, 17, \"30..33\"]", &[("wire_gap", 5)]),
        Case {
            rejected: 3,
            ..fault("corrupt_header_at = [7, 8, 50]", &[("wire_gap", 3)])
        },
        fault("corrupt_payload_at = [9, \"20..24\"]", &[("bad_packet", 5)]),
        Case {
            duplicates: 4,
            ..fault("duplicate_at = [0, 3, 4, 60]", &[])
        },
        fault("reorder_at = [2, 11, 12, 40]\nreorder_by = 1", &[]),
        fault("late_at = [4, 23, 24, 61]", &[("late", 4)]),
    ];
    for (slot, packet) in SHAPES {
        // Enough packets for the delayed ones to become due.
        let packets = 100 + 6 * (slot / packet) as u64;
        for hold in [true, false] {
            for case in &cases {
                let text = format!(
                    "pattern = \"counter\"\npacket = {packet}\nbackpressure = {hold}\npackets = {packets}\n[faults]\n{}",
                    case.keys
                );
                let bench = bench(&text, slot, 128).run();
                let report = bench.report();
                let expected = SourceReport {
                    expected: packets,
                    delivered: packets - case.lost.iter().map(|(_, count)| count).sum::<u64>(),
                    lost: lost(case.lost),
                    duplicates: case.duplicates,
                    rejected: case.rejected,
                    bytes: bench.arrived().len() as u64 * packet as u64,
                    epochs: 1,
                    ..SourceReport::default()
                };
                assert_eq!(report, expected, "slot {slot}, {text}");
                assert_eq!(report.delivered, bench.arrived().len() as u64, "{text}");
            }
        }
    }
}

#[test]
fn packets_lost_at_the_ends_are_not_expected() {
    let text = "packet = 64\npackets = 40\n[faults]\nlose = [0, 1, 38, 39]";
    let report = bench(text, 256, 16).run().report();
    assert_fields!(report => expected: 36, delivered: 36, lost: lost(&[]));
}

/// Predicts the ledger from the schedule alone: orders and counts the arrivals without a window. Returns `None` if so
/// many packets are missing in a row that the window would reject the next packets or has discarded the frame of a late
/// one.
fn predict(config: &SimConfig, geometry: &Geometry) -> Option<SourceReport> {
    let (packets_per_frame, window) = (
        u64::from(geometry.packets_per_frame),
        geometry.window as u64,
    );
    let by = config
        .faults
        .reorder_by
        .unwrap_or(8)
        .min((window - 1) * packets_per_frame);
    let mut order: Vec<Packet> = Vec::new();
    let mut held: BTreeMap<u64, Packet> = BTreeMap::new();
    let mut front = 0;
    for packet in config.schedule(geometry) {
        let now = match packet.disposition {
            Disposition::Sent | Disposition::BadPayload | Disposition::BadHeader => vec![packet],
            Disposition::Duplicated => vec![packet, packet],
            Disposition::Lost => vec![],
            Disposition::Late | Disposition::Reordered => {
                held.insert(packet.index, packet);
                vec![]
            }
        };
        if !now.is_empty() && packet.disposition != Disposition::BadHeader {
            front = front.max(packet.sequence / packets_per_frame);
        }
        order.extend(now);
        let mut before = usize::MAX;
        while held.len() < before {
            before = held.len();
            for (index, old) in held.clone() {
                let due = match old.disposition {
                    Disposition::Late => front >= old.sequence / packets_per_frame + window,
                    _ => packet.index >= index + by,
                };
                if due {
                    front = front.max(old.sequence / packets_per_frame);
                    order.extend(held.remove(&index));
                }
            }
        }
    }
    order.extend(held.into_values());

    let mut report = SourceReport::default();
    let (mut present, mut damaged, mut late) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut floor, mut front, mut low, mut high) = (None, 0, u64::MAX, 0);
    for packet in &order {
        let (sequence, frame) = (packet.sequence, packet.sequence / packets_per_frame);
        if packet.disposition == Disposition::BadHeader {
            report.rejected += 1;
            continue;
        }
        report.epochs = 1;
        if floor.is_some() && frame > front + window {
            return None;
        }
        if frame < *floor.get_or_insert(frame) {
            if frame + window <= front {
                // The number is so far behind that it may announce a restart of the sender.
                return None;
            }
            report.before_start += 1;
        } else if frame + window <= front {
            if present.contains(&sequence) {
                report.duplicates += 1;
            } else if sequence < low {
                report.before_start += 1;
            } else if frame + 2 * window <= front {
                // Whole frames are missing, so the packet arrives after the window has discarded its frame.
                return None;
            } else {
                late.insert(sequence);
            }
        } else {
            front = front.max(frame);
            (low, high) = (low.min(sequence), high.max(sequence + 1));
            let fresh = match packet.disposition {
                Disposition::BadPayload => damaged.insert(sequence),
                _ => present.insert(sequence),
            };
            report.duplicates += u64::from(!fresh);
        }
    }
    report.expected = high.saturating_sub(low);
    report.delivered = present.len() as u64;
    report.bytes = report.delivered * geometry.packet_bytes as u64;
    let (damaged, late) = (damaged.len() as u64, late.len() as u64);
    report.lost = lost(&[
        ("bad_packet", damaged),
        ("late", late),
        (
            "wire_gap",
            report.expected - report.delivered - damaged - late,
        ),
    ]);
    Some(report)
}

proptest! {
    /// Combines all faults with any shape. The ledger must match the prediction, with and without backpressure and
    /// pacing.
    #[test]
    fn all_faults_together_match_the_prediction(
        // TOML integers have at most 63 bits without the sign.
        seed in 0..=i64::MAX,
        chances in prop::array::uniform6(0.0_f64..0.06),
        burst in 1.0_f64..2.5,
        by in 1_u64..12,
        packets_per_frame in 1_usize..9,
        window in 2_usize..6,
        packets in 0_u64..1500,
        start in 0_u64..100,
        bits in prop::sample::select(vec![10_u32, 16, 64]),
    ) {
        let by = by.min((window as u64 - 1) * packets_per_frame as u64);
        let [loss, header, payload, duplicate, late, reorder] = chances;
        let text = |keys: &str| format!(
            "pattern = \"counter\"\npacket = 24\nwindow = {window}\npackets = {packets}\nstart = {start}\n\
             sequence_bits = {bits}\n{keys}\n[faults]\nseed = {seed}\nloss = {loss}\nloss_burst = {burst}\n\
             corrupt_header = {header}\ncorrupt_payload = {payload}\nduplicate = {duplicate}\nlate = {late}\n\
             reorder = {reorder}\nreorder_by = {by}"
        );
        let slot = packets_per_frame * 24 + 5;
        let mut results = Vec::new();
        for keys in ["", "backpressure = false", "pace = \"1000 Gbit/s\"", "pace = \"1000 Gbit/s\"\nbackpressure = true"] {
            let bench = bench(&text(keys), slot, 128).run();
            let report = bench.report();
            prop_assert_eq!(report.expected, report.delivered + report.lost_total());
            prop_assert_eq!(report.delivered, bench.arrived().len() as u64);
            let predicted = predict(&bench.config, &bench.source.geometry);
            let Some(predicted) = predicted else { return Ok(()) };
            prop_assert_eq!(&report, &predicted, "{}", keys);
            results.push(bench.arrived());
        }
        prop_assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "it depends on pacing");
    }

    /// With few slots and a reader that reads irregularly, a source with backpressure must lose nothing.
    #[test]
    fn waiting_source_loses_nothing(slots in 2_usize..6, packets_per_frame in 1_usize..70, packets in 0_u64..600, reads in prop::collection::vec(0_usize..4, 1..20), window in 2_usize..5) {
        let text = format!("pattern = \"counter\"\npacket = 24\npackets = {packets}\nwindow = {window}");
        let mut bench = bench(&text, packets_per_frame * 24, slots);
        let mut reads = reads.iter().cycle();
        let mut turns = 0;
        while bench.fill() != Polled::Ended {
            bench.read(*reads.next().unwrap());
            turns += 1;
            if turns % 20 == 0 {
                bench.read(1);
            }
        }
        bench.finish();
        let report = bench.report();
        prop_assert_eq!((report.expected, report.delivered, report.lost_total()), (packets, packets, 0));
        prop_assert_eq!(bench.arrived().len() as u64, packets);
        prop_assert_eq!(bench.source.ring_ledger.ring_full.get(), 0);
    }
}

#[test]
fn waiting_source_loses_only_faults() {
    let text = "pattern = \"counter\"\npacket = 64\npackets = 5000\nwindow = 3\n[faults]\nloss = 0.02\nlate = 0.02\n\
                reorder = 0.1\nreorder_by = 5\nduplicate = 0.05";
    let mut bench = bench(text, 512, 4);
    let mut turns = 0;
    loop {
        match bench.fill() {
            Polled::Ended => break,
            Polled::Full => {
                turns += 1;
                assert!(turns < 100_000, "blocked forever");
                bench.read(1);
            }
            _ => {}
        }
    }
    bench.finish();
    assert_eq!(
        Some(bench.report()),
        predict(&bench.config, &bench.source.geometry)
    );
    assert!(turns > 500, "the ring was never full");
}

#[test]
fn free_running_source_loses_ring_full() {
    for pace in ["pace = \"1000 Gbit/s\"", "backpressure = false"] {
        let text = format!("pattern = \"counter\"\npacket = 64\npackets = 400\n{pace}");
        let mut bench = bench(&text, 256, 8);
        while bench.fill() != Polled::Ended {}
        bench.finish();
        let report = bench.report();
        assert_fields!(report => expected: 400, delivered: 32, lost: lost(&[("ring_full", 368)]));
        assert_eq!(
            (
                bench.source.ring_ledger.published.get(),
                bench.source.ring_ledger.ring_full.get()
            ),
            (8, 92)
        );
    }
}

#[test]
fn restarted_sender_opens_an_epoch() {
    for (backpressure, slots) in [(true, 5), (false, 128)] {
        let text = format!(
            "pattern = \"counter\"\npacket = 64\npackets = 300\nrestart_at = 202\nbackpressure = {backpressure}"
        );
        let bench = bench(&text, 512, slots).run();
        let report = bench.report();
        assert_eq!((report.epochs, report.rejected, report.skipped), (2, 0, 0));
        assert_eq!(
            (report.expected, report.delivered, report.lost_total()),
            (300, 300, 0),
            "backpressure = {backpressure}"
        );
        let epochs: Vec<_> = bench
            .frames
            .iter()
            .map(|frame| (frame.meta.epoch, frame.meta.sequence))
            .collect();
        assert_eq!((epochs[25], epochs[26]), ((1, 25), (2, 0)));
    }
}

#[test]
fn jump_is_a_gap_or_an_epoch() {
    let near = bench(
        "packet = 64\npackets = 300\njump = { at = 100, by = 20 }",
        512,
        128,
    )
    .run()
    .report();
    assert_eq!((near.epochs, near.rejected, near.skipped), (1, 0, 0));
    assert_fields!(near => expected: 320, delivered: 300, lost: lost(&[("wire_gap", 20)]));
    for hold in [true, false] {
        let text = format!(
            "pattern = \"counter\"\npacket = 64\npackets = 300\njump = {{ at = 100, by = 50_000 }}\nbackpressure = {hold}"
        );
        let far = bench(&text, 512, 128).run();
        let report = far.report();
        assert_fields!(report => epochs: 2, rejected: 0, skipped: 50_000);
        assert_eq!(
            (report.expected, report.delivered, report.lost_total()),
            (300, 300, 0)
        );
        assert_eq!(far.arrived().last(), Some(&50_299));
    }
}

#[test]
fn narrow_numbers_wrap_without_loss() {
    let bench = bench(
        "pattern = \"counter\"\npacket = 64\npackets = 1000\nsequence_bits = 8\nstart = 250",
        256,
        64,
    )
    .run();
    let report = bench.report();
    assert_fields!(report => expected: 1000, delivered: 1000, epochs: 1, rejected: 0);
    assert_eq!(
        bench.arrived().into_iter().collect::<Vec<_>>(),
        (250..1250).collect::<Vec<_>>()
    );
}

#[test]
fn frames_include_packets_removed_by_faults() {
    let text = "packet = 64\nframes = 50\n[faults]\nlose = [3]\nduplicate_at = [5]";
    let bench = bench(text, 512, 8).run();
    assert_eq!(
        (bench.report().expected, bench.report().delivered),
        (400, 399)
    );
    assert_eq!(bench.frames.len(), 50);
}

#[test]
fn frame_time_is_time_of_first_sample() {
    let text = "samples = { type = \"int16\", rate = \"1 MHz\" }\npacket = 64\nframes = 40\nspeed = 1e6\nstart = 3";
    let bench = bench(text, 512, 64).run();
    let first = bench.frames[1].meta.timestamp;
    assert_eq!(first.clock, Clock::Simulated);
    assert!(first.ns > 1_600_000_000_000_000_000, "{first:?}");
    for (i, frame) in (0_u64..).zip(&bench.frames[1..]) {
        // 256 samples at 1 MHz last 256 µs.
        assert_eq!(frame.meta.timestamp.ns - first.ns, i * 256_000);
    }
    assert_eq!(first.ns - bench.frames[0].meta.timestamp.ns, 256_000);
}

#[test]
fn slow_rate_returns_the_next_time() {
    let mut bench = bench("pace = \"8 bit/s\"\npacket = \"8 KiB\"", 8192, 4);
    match bench.fill() {
        Polled::Until(wait) => assert!(
            wait > Duration::from_secs(4000) && wait <= Duration::from_secs(8192),
            "{wait:?}"
        ),
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.report(), SourceReport::default());
}

#[test]
fn fill_returns_when_all_packets_are_lost() {
    let mut forever = bench("packet = 64\n[faults]\nloss = 1.0", 512, 4);
    for _ in 0..100 {
        assert_eq!(forever.fill(), Polled::Busy);
    }
    assert_eq!(forever.report(), SourceReport::default());
    let mut late = bench(
        "packet = 64\npackets = 10_000\n[faults]\nlate = 1.0",
        512,
        4,
    )
    .run();
    assert_eq!(late.fill(), Polled::Ended);
    let report = late.report();
    assert_eq!(report.expected, report.delivered + report.lost_total());
    assert!(report.delivered > 9000, "{report:?}");
}

#[test]
fn same_seed_gives_same_bytes() {
    let run = |seed: u64, pace: &str| {
        let text = format!(
            "samples = {{ type = \"int8\", channels = 2, rate = \"1 MHz\" }}\nnoise = 0.1\nseed = {seed}\npacket = 64\n\
             frames = 60\n{pace}\ntones = [{{ frequency = \"100 kHz\", amplitude = 0.2 }}]\n[faults]\nloss = 0.1\nseed = {seed}"
        );
        let bench = bench(&text, 512, 128).run();
        bench
            .frames
            .into_iter()
            .map(|frame| (frame.meta.sequence, frame.present, frame.bytes))
            .collect::<Vec<_>>()
    };
    let one = run(1, "pace = \"free\"");
    assert!(
        one == run(1, "speed = 1e6")
            && one == run(1, "pace = \"1000 Gbit/s\"\nbackpressure = true")
    );
    assert!(one != run(2, "pace = \"free\""));
}

#[test]
fn tones_continue_across_packets_and_frames() {
    let text = "samples = { type = \"float32\", complex = true, rate = \"1 MHz\" }\npacket = 72\nframes = 100\npace = \"free\"\n\
                tones = [{ frequency = \"12.5 kHz\", amplitude = 0.5 }]";
    let bench = bench(text, 1000, 4).run();
    let mut n = 0_u64;
    for frame in &bench.frames {
        for point in frame.bytes.chunks_exact(8) {
            let real = f64::from(f32::from_le_bytes(point[..4].try_into().unwrap()));
            let imaginary = f64::from(f32::from_le_bytes(point[4..].try_into().unwrap()));
            let angle = std::f64::consts::TAU * (n % 80) as f64 / 80.0;
            assert!(
                (real - 0.5 * angle.cos()).abs() < 1e-6
                    && (imaginary - 0.5 * angle.sin()).abs() < 1e-6,
                "{n}"
            );
            n += 1;
        }
    }
    assert_eq!(n, 100 * 117);
}

#[test]
fn delayed_packets_allocate_nothing() {
    let config: SimConfig = toml::from_str(
        "packets = 20_000\npacket = 8\n[faults]\nlate = 0.4\nreorder = 0.4\nreorder_by = 20",
    )
    .unwrap();
    let mut arrivals = config.arrivals(&config.geometry(64).unwrap());
    let before = arrivals.capacities();
    assert_eq!(arrivals.by_ref().count(), 20_000);
    assert_eq!(arrivals.capacities(), before);
}

#[test]
fn sim_example_is_valid() {
    let mut diagnostics = Diagnostics::new();
    let text = ENTRY
        .example
        .replace("NAME", "adc")
        .replace("OUTPUT", "raw");
    // Each line that is commented out must also be valid when it is enabled alone.
    for (i, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.starts_with("# ") && line.contains(" = "))
    {
        let mut lines: Vec<&str> = text.lines().collect();
        lines[i] = &line[2..];
        if line.contains("pattern") {
            lines.retain(|line| !line.starts_with("noise") && !line.starts_with("tones"));
        }
        if line.contains("loss") || line.contains("duplicate_at") {
            lines.insert(i, "[source.adc.faults]");
        }
        if line.contains("speed") || line.contains("backpressure") || !line.contains("With") {
            let document = Document::from_text("daq.toml", &lines.join("\n"), &mut diagnostics);
            let mut section = document.sections("source").remove(0);
            section.take_string("driver", &["sim"], &mut diagnostics);
            section.take_string("ring", &[], &mut diagnostics);
            let spec = (ENTRY.parse)(&mut section, &Registry::default(), &mut diagnostics);
            assert!(
                spec.is_some(),
                "{line}: {}",
                diagnostics.render(document.sources(), false)
            );
        }
    }
    assert!(diagnostics.is_empty());
    let schema = serde_json::to_value((ENTRY.schema)(&Registry::default())).unwrap();
    for key in ["samples", "tones", "faults", "pace", "restart_at"] {
        assert!(
            schema["properties"][key]["description"].is_string()
                || schema["properties"][key]["$ref"].is_string(),
            "{key}"
        );
    }
}

#[test]
fn sim_errors_are_located() {
    let errors = spec("samples = { channels = 2, rate = \"1 MHz\" }\nnoise = 0.1\ntones = [{ frequency = \"1 kHz\", amplitude = 0.5, channel = 7 }]\n[faults]\nloss = 1.5\nlose = [\"9..3\"]")
        .err()
        .unwrap();
    assert_contains!(errors => "daq.toml:7:9", "the range \"9..3\" is empty");
    let errors = spec("samples = { channels = 2, rate = \"1 MHz\" }\nnoise = 0.1\ntones = [{ frequency = \"1 kHz\", amplitude = 0.5, channel = 7 }]\n[faults]\nloss = 1.5")
        .err()
        .unwrap();
    assert_contains!(errors =>
        "daq.toml:4:60", "channel 7 does not exist", "daq.toml:6:8", "1.5 is not a probability"
    );
    let errors = spec("pace = \"fast\"\nsampels = 1").err().unwrap();
    assert_contains!(errors => "did you mean `samples`?", "neither \"realtime\"");
}

#[test]
#[ignore = "prints a figure"]
fn free_running_rate_is_measured() {
    for signal in ["pattern = \"counter\"", "pattern = \"ramp\"", "noise = 0.1"] {
        for packet in [1024, 8192] {
            let mut bench = bench(&format!("packet = {packet}\n{signal}"), 1 << 20, 64);
            let start = Instant::now();
            let mut frames = 0_u64;
            while start.elapsed() < Duration::from_secs(1) {
                if bench.fill() == Polled::Full {
                    while bench.source.reader.poll(1).is_some() {
                        frames += 1;
                    }
                }
            }
            let rate = (frames << 20) as f64 / start.elapsed().as_secs_f64() / 1e9;
            println!("{signal}, packets of {packet} bytes: {rate:.2} GB/s");
        }
    }
}
