//! Random losses, duplicates and delays.

use super::*;

/// A fault of the simulated sender for one packet.
#[derive(Clone, Copy, Debug)]
enum PacketFault {
    Sent,
    Lost,
    Twice,
    /// The packet is sent this many packets later.
    Delayed(usize),
}

fn dispositions() -> impl Strategy<Value = Vec<PacketFault>> {
    let fault = prop_oneof![
        8 => Just(PacketFault::Sent),
        1 => Just(PacketFault::Lost),
        1 => Just(PacketFault::Twice),
        1 => (1_usize..40).prop_map(PacketFault::Delayed),
    ];
    prop::collection::vec(fault, 1..300)
}

proptest! {
    /// Any packets may be lost, duplicated or delayed, and the ring may be small. After every packet, the ledger must
    /// add up, `pending` must be the number of packets that are neither delivered nor lost, and no counter may
    /// decrease. Frames must be in order, each payload must be correct, and at the end nothing may be pending.
    #[test]
    fn every_packet_is_accounted(faults in dispositions(), slots in 2_usize..12, drain in 1_usize..50, step in prop_oneof![Just(1_u64), Just(4096)]) {
        let geometry = Geometry {
            window: 2,
            numbering: Numbering { width: 32, step, packets_per_unit: 1 },
            ..geometry()
        };
        let mut bench = bench(slots, geometry);
        let mut schedule: Vec<(usize, u64)> = Vec::new();
        for (i, fault) in faults.iter().enumerate() {
            let sequence = i as u64;
            match fault {
                PacketFault::Sent => schedule.push((i, sequence)),
                PacketFault::Lost => {}
                PacketFault::Twice => schedule.extend([(i, sequence), (i, sequence)]),
                PacketFault::Delayed(by) => schedule.push((i + by, sequence)),
            }
        }
        schedule.sort_unstable();
        let mut outcomes: BTreeMap<Outcome_, u64> = BTreeMap::new();
        let mut before = SourceReport::default();
        let mut frames = Vec::new();
        for (n, (_, sequence)) in schedule.iter().enumerate() {
            *outcomes.entry(Outcome_::from(bench.put_as((sequence * step) & 0xffff_ffff, *sequence))).or_default() += 1;
            let now = bench.report();
            prop_assert_eq!(now.expected, now.delivered + now.pending + now.lost_total());
            prop_assert!(now.expected >= before.expected && now.delivered >= before.delivered);
            for (cause, count) in &before.lost {
                prop_assert!(now.lost[cause] >= *count);
            }
            before = now;
            if n % drain == 0 {
                frames.extend(bench.read());
            }
        }
        bench.window.finish();
        frames.extend(bench.read());
        let report = bench.report();
        prop_assert_eq!(report.pending, 0);
        prop_assert_eq!(report.expected, report.delivered + report.lost_total());
        let count = |outcome| outcomes.get(&outcome).copied().unwrap_or(0);
        // A packet that was kept aside also ends in one of these counters.
        let kept: u64 = [
            (report.delivered + report.lost.get("ring_full").copied().unwrap_or(0), count(Outcome_::Placed) + count(Outcome_::RingFull)),
            (report.lost.get("late").copied().unwrap_or(0), count(Outcome_::Late)),
            (report.duplicates, count(Outcome_::Duplicate)),
            (report.before_start, count(Outcome_::BeforeStart)),
            (report.rejected, count(Outcome_::Rejected)),
        ]
        .into_iter()
        .map(|(counted, seen)| counted - seen)
        .sum();
        prop_assert_eq!(kept, count(Outcome_::Kept));
        prop_assert_eq!(report.delivered, frames.iter().map(|frame| frame.2.len() as u64).sum::<u64>());
        prop_assert_eq!(frames.len() as u64, bench.ring_ledger.published.get());
        prop_assert!(frames.is_sorted_by_key(|frame| (frame.1, frame.0)));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome_ {
    Placed,
    Duplicate,
    Late,
    RingFull,
    BeforeStart,
    Rejected,
    Kept,
}

impl From<Outcome> for Outcome_ {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Placed => Self::Placed,
            Outcome::Duplicate => Self::Duplicate,
            Outcome::Late => Self::Late,
            Outcome::RingFull => Self::RingFull,
            Outcome::BeforeStart => Self::BeforeStart,
            Outcome::Rejected => Self::Rejected,
            Outcome::Kept | Outcome::Repeated => Self::Kept,
        }
    }
}
