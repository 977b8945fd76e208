//! Tests requests for lost packets behind a relay that drops, delays and repeats known packets.

use super::relay::{Disposition, Relay, Seen};
use super::setup::{PACKET_SIZE, PACKETS, assert_file, at, config, count, options};
use daq_emulators::gige::{Camera, Counts, Options};
use daq_testkit::{Daq, Outcome, Random, skip};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

const FRAMES: u64 = 60;

/// What the relay did, by (image, packet id). Ids begin with the leader, 0.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// Packets whose first transmission is dropped.
    dropped: BTreeSet<(u64, u32)>,
    /// Packets of which no transmission passes.
    lost: BTreeSet<(u64, u32)>,
    twice: BTreeSet<(u64, u32)>,
    delayed: BTreeMap<(u64, u32), usize>,
}

impl Plan {
    /// Chooses packets at random, but nothing at the start and at the end of the stream, at most 12 losses per image.
    fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut plan = Self::default();
        for image in 0..FRAMES {
            for id in 0..=u32::try_from(PACKETS).unwrap() + 1 {
                let packet = (image, id);
                let lost = plan.dropped.range((image, 0)..).count();
                let is_payload = (1..=PACKETS).contains(&u64::from(id));
                let is_edge =
                    image == 0 && id < 3 || image + 1 == FRAMES && u64::from(id) > PACKETS - 8;
                match random.below(100) {
                    _ if is_edge => {}
                    0..5 if lost < 12 => {
                        plan.dropped.insert(packet);
                        if is_payload && random.below(4) == 0 {
                            plan.lost.insert(packet);
                        }
                    }
                    5..8 => drop(plan.twice.insert(packet)),
                    8..12 => drop(plan.delayed.insert(packet, 3)),
                    _ => {}
                }
            }
        }
        plan
    }

    fn disposition(&self, image: u64, seen: Seen, is_first: bool) -> Disposition {
        let packet = (image, seen.id);
        if self.lost.contains(&packet) || is_first && self.dropped.contains(&packet) {
            Disposition::Drop
        } else if !is_first {
            Disposition::Pass
        } else if self.twice.contains(&packet) {
            Disposition::Twice
        } else {
            self.delayed
                .get(&packet)
                .map_or(Disposition::Pass, |after| Disposition::After(*after))
        }
    }

    /// Returns the number of payload packets in `packets`.
    fn payload(packets: &BTreeSet<(u64, u32)>) -> u64 {
        let payload = packets
            .iter()
            .filter(|(_, id)| (1..=PACKETS).contains(&u64::from(*id)));
        payload.count() as u64
    }
}

/// Result of a run behind a relay.
struct Run {
    daq: Daq,
    outcome: Outcome,
    counts: Counts,
    /// Number of packets that the relay passed again.
    repeated: u64,
}

/// Runs daq behind a relay with `plan` until all packets that can arrive have arrived.
fn run(options: &Options, plan: &Plan) -> Run {
    let camera = Camera::start(options).unwrap();
    let (first, is_extended) = (options.first_block, options.extended);
    // The number of copies that passed, by packet.
    let passed = Arc::new(Mutex::new(BTreeMap::<_, u64>::new()));
    let decide = {
        let (plan, passed) = (plan.clone(), passed.clone());
        move |seen: Seen| {
            let image = if is_extended {
                seen.block - first
            } else {
                // 16-bit ids skip 0.
                (seen.block + 65_535 - first) % 65_535
            };
            let mut passed = passed.lock().unwrap();
            let is_first = !passed.contains_key(&(image, seen.id));
            let disposition = plan.disposition(image, seen, is_first);
            *passed.entry((image, seen.id)).or_default() += match disposition {
                Disposition::Drop => 0,
                Disposition::Pass | Disposition::After(_) => 1,
                Disposition::Twice => 2,
            };
            disposition
        }
    };
    let relay = Relay::start(Ipv4Addr::LOCALHOST, camera.address(), decide);
    // The header of a 64-bit block id is 12 bytes longer.
    let packet_size = PACKET_SIZE + if is_extended { 12 } else { 0 };
    let keys = format!("packet_size = {packet_size}\nwindow = 100");
    let daq = Daq::new(&config(&[at(relay.address())], &keys));
    let mut live = daq.spawn(&[]);
    live.wait_count(
        "sources.cam0.delivered",
        FRAMES * PACKETS - Plan::payload(&plan.lost),
    );
    // On a busy machine, delayed packets are requested too, leaders and trailers among them.
    let repeated = {
        let passed = passed.lock().unwrap();
        passed.values().map(|copies| copies.saturating_sub(1)).sum()
    };
    live.wait_count("sources.cam0.duplicates", repeated);
    let outcome = live.stop().ok();
    drop(relay);
    let counts = camera.stop();
    assert_eq!(counts.mistakes, Vec::<String>::new());
    Run {
        daq,
        outcome,
        counts,
        repeated,
    }
}

fn assert_exact(run: &Run, plan: &Plan) {
    let outcome = &run.outcome;
    let (dropped, lost) = (Plan::payload(&plan.dropped), Plan::payload(&plan.lost));
    let keys = [
        "expected",
        "delivered",
        "lost.wire_gap",
        "duplicates",
        "rejected",
        "epochs",
        "counts.requested",
        "counts.recovered",
        "counts.reordered",
        "counts.unrecovered",
    ];
    let found = keys.map(|key| (key, count(outcome, 0, key)));
    let all = FRAMES * PACKETS;
    // On a busy machine, packets that the relay delays may also be requested. Both copies arrive; the packet counts as
    // reordered if the delayed copy is the first.
    let (requested, reordered) = (count(outcome, 0, keys[6]), count(outcome, 0, keys[8]));
    let late = requested.saturating_sub(dropped);
    assert!(late <= plan.delayed.len() as u64, "{found:?}");
    let recovered = dropped - lost + late.saturating_sub(reordered);
    let expected = [
        all,
        all - lost,
        lost,
        run.repeated,
        0,
        1,
        dropped + late,
        recovered,
        requested - recovered - lost,
        lost,
    ];
    let expected: Vec<_> = keys.into_iter().zip(expected).collect();
    assert_eq!(found.to_vec(), expected, "{}", outcome.stderr);
    assert_file(&run.daq, 0, FRAMES, |frame, packet| {
        plan.lost
            .contains(&(frame, u32::try_from(packet).unwrap() + 1))
    });
}

/// Every lost packet that the camera can send again must be recovered, and the others must be counted as lost. 16-bit block ids
/// wrap during the run.
#[test]
fn dropped_packets_are_recovered_and_others_are_lost_exactly() {
    if let Some(why) = Relay::lacks_room() {
        skip!("{why}");
    }
    for (seed, extended, first_block, marks_resent) in [
        (1, false, 65_500, true),
        (2, true, 1, true),
        (3, true, (1 << 32) - 20, false),
        (4, false, 1, false),
    ] {
        let options = Options {
            extended,
            first_block,
            marks_resent,
            keep: 100,
            ..options(Some(FRAMES))
        };
        let plan = Plan::random(seed);
        assert!(!plan.lost.is_empty() && !plan.twice.is_empty() && !plan.delayed.is_empty());
        assert_exact(&run(&options, &plan), &plan);
    }
}

/// Without resends, all dropped packets are lost.
#[test]
fn camera_without_resend_gets_no_requests() {
    if let Some(why) = Relay::lacks_room() {
        skip!("{why}");
    }
    let mut plan = Plan::random(5);
    plan.lost = plan.dropped.clone();
    let options = Options {
        resend: false,
        ..options(Some(FRAMES))
    };
    let Run {
        daq,
        outcome,
        counts,
        ..
    } = run(&options, &plan);
    let lost = Plan::payload(&plan.lost);
    assert_eq!(count(&outcome, 0, "lost.wire_gap"), lost);
    assert_eq!(
        (count(&outcome, 0, "counts.requested"), counts.resends),
        (0, 0)
    );
    assert_file(&daq, 0, FRAMES, |frame, packet| {
        plan.lost
            .contains(&(frame, u32::try_from(packet).unwrap() + 1))
    });
}
