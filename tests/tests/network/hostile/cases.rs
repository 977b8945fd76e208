//! The packets of each case, and the expected result.

use daq_tests::{Outcome, Random};
use std::collections::BTreeSet;
use std::ops::Range;

/// Packets per frame.
pub const PLACES: u64 = 8;
/// Packet slots that the window keeps open.
pub const OPEN: u64 = 4 * PLACES;
/// Packets of most cases.
pub const PACKETS: u64 = 400;

/// One datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shot {
    /// The correct packet of a packet slot.
    Good(u64),
    /// One byte too short.
    Short(u64),
    /// One byte too long.
    Long(u64),
    /// So many zero bytes.
    Garbage(usize),
    /// A sequence number between the valid ones.
    Between(u64),
    /// Only for `spead`.
    Spead(u64, Wrong),
}

/// Faults of a SPEAD packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Magic,
    Version,
    Flavour,
    NoCounter,
    NoLength,
    NoOffset,
    Offset,
    Items,
    /// Not a fault: a heap of another length.
    OtherLength,
}

/// The expected counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    pub expected: u64,
    pub delivered: u64,
    pub lost: Vec<(&'static str, u64)>,
    pub duplicates: u64,
    pub rejected: u64,
    pub control: u64,
    pub epochs: u64,
    pub skipped: u64,
}

impl Ledger {
    pub fn of(outcome: &Outcome, source: &str) -> Self {
        let n = |key: &str| outcome.count(&format!("sources.{source}.{key}"));
        let lost = ["wire_gap", "late", "kernel_drop", "bad_packet", "ring_full"];
        let ledger = Self {
            expected: n("expected"),
            delivered: n("delivered"),
            lost: lost
                .into_iter()
                .map(|cause| (cause, n(&format!("lost.{cause}"))))
                .filter(|(_, n)| *n > 0)
                .collect(),
            duplicates: n("duplicates"),
            rejected: n("rejected"),
            control: n("control"),
            epochs: n("epochs"),
            skipped: n("skipped"),
        };
        let causes = outcome.report["sources"][source]["lost"]
            .as_object()
            .unwrap()
            .len();
        assert_eq!(
            causes,
            ledger.lost.len(),
            "a cause that this test does not know: {:#}",
            outcome.report
        );
        ledger
    }

    /// All `packets` without a fault.
    pub fn whole(packets: u64) -> Self {
        Self {
            expected: packets,
            delivered: packets,
            epochs: 1,
            ..Self::default()
        }
    }

    /// All `packets` except for those lost.
    pub fn lost(packets: u64, lost: &[(&'static str, u64)]) -> Self {
        let gone: u64 = lost.iter().map(|(_, n)| n).sum();
        Self {
            delivered: packets - gone,
            lost: lost.to_vec(),
            ..Self::whole(packets)
        }
    }
}

/// The packets of a case, and the expected result.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: &'static str,
    /// Additional keys of the source.
    pub keys: &'static str,
    /// Bytes of the sequence number (`raw`), and its step.
    pub bytes: usize,
    pub step: u64,
    pub shots: Vec<Shot>,
    pub ledger: Ledger,
    /// The expected file: for each epoch the range of packet slots, and the missing ones.
    pub stored: Vec<(Range<u64>, BTreeSet<u64>)>,
}

pub fn good(places: Range<u64>) -> impl Iterator<Item = Shot> + Clone {
    places.map(Shot::Good)
}

/// Packets in order, except where `replace` defines something else.
pub fn with(places: Range<u64>, mut replace: impl FnMut(u64) -> Option<Vec<Shot>>) -> Vec<Shot> {
    places
        .flat_map(|n| replace(n).unwrap_or_else(|| vec![Shot::Good(n)]))
        .collect()
}

impl Case {
    /// Packet slots `places` of a 64-bit sequence, of which `shots` are sent and `missing` are never stored.
    pub fn new(
        name: &'static str,
        places: Range<u64>,
        shots: Vec<Shot>,
        missing: &[u64],
        ledger: Ledger,
    ) -> Self {
        let stored = vec![(places, missing.iter().copied().collect())];
        Self {
            name,
            keys: "",
            bytes: 8,
            step: 1,
            shots,
            ledger,
            stored,
        }
    }
}

/// Faults that exist in every format.
pub fn table() -> Vec<Case> {
    use Shot::{Garbage, Good, Long, Short};
    let all = 0..PACKETS;
    let but = |lost: &[u64]| with(0..PACKETS, |n| lost.contains(&n).then(Vec::new));
    let run = |range: Range<u64>| range.collect::<Vec<_>>();
    vec![
        Case::new(
            "whole",
            all.clone(),
            good(all.clone()).collect(),
            &[],
            Ledger::whole(PACKETS),
        ),
        Case::new(
            "one-lost",
            all.clone(),
            but(&[5]),
            &[5],
            Ledger::lost(PACKETS, &[("wire_gap", 1)]),
        ),
        // A complete frame and the edges of its neighbours.
        Case::new(
            "many-lost",
            all.clone(),
            but(&run(197..212)),
            &run(197..212),
            Ledger::lost(PACKETS, &[("wire_gap", 15)]),
        ),
        // No packets are expected before the first and after the last, but their frames have holes.
        Case::new(
            "ends-lost",
            3..390,
            good(3..390).collect(),
            &[],
            Ledger::whole(387),
        ),
        // 51 comes after 75, the last packet that keeps its frame open; neighbours and complete frames are swapped.
        Case::new(
            "reordered",
            all.clone(),
            with(0..PACKETS, |n| match n {
                51 | 121 => Some(vec![]),
                75 => Some(vec![Good(75), Good(51)]),
                120 => Some(vec![Good(121), Good(120)]),
                200..216 => Some(vec![Good(if n < 208 { n + 8 } else { n - 8 })]),
                // Three frames in reverse order: all of them are open when the last one arrives first.
                328..352 => Some(vec![Good(679 - n)]),
                _ => None,
            }),
            &[],
            Ledger::whole(PACKETS),
        ),
        // The first packet four frames ahead closes their frames: both packets arrive one packet later.
        Case::new(
            "late",
            all.clone(),
            with(0..PACKETS, |n| match n {
                100 | 259 => Some(vec![]),
                128 | 288 => Some(vec![Good(n), Good(if n == 128 { 100 } else { 259 })]),
                _ => None,
            }),
            &[100, 259],
            Ledger::lost(PACKETS, &[("late", 2)]),
        ),
        // So late that its disposition was final long ago: not a plausible sequence number.
        Case::new(
            "very-late",
            all.clone(),
            with(0..PACKETS, |n| match n {
                100 => Some(vec![]),
                300 => Some(vec![Good(300), Good(100)]),
                _ => None,
            }),
            &[100],
            Ledger {
                rejected: 1,
                ..Ledger::lost(PACKETS, &[("wire_gap", 1)])
            },
        ),
        // Duplicates: immediately, while the frame is open, after it was closed.
        Case::new(
            "duplicates",
            all.clone(),
            with(0..PACKETS, |n| match n {
                0 | 3 | 100..200 => Some(vec![Good(n), Good(n)]),
                230 => Some(vec![Good(230), Good(210), Good(210)]),
                240 => Some(vec![Good(240), Good(215)]),
                _ => None,
            }),
            &[],
            Ledger {
                duplicates: 105,
                ..Ledger::whole(PACKETS)
            },
        ),
        // Late twice: the second one is a duplicate.
        Case::new(
            "late-twice",
            all.clone(),
            with(0..PACKETS, |n| match n {
                100 => Some(vec![]),
                128 => Some(vec![Good(128), Good(100), Good(100)]),
                _ => None,
            }),
            &[100],
            Ledger {
                duplicates: 1,
                ..Ledger::lost(PACKETS, &[("late", 1)])
            },
        ),
        Case::new(
            "truncated",
            all.clone(),
            with(0..PACKETS, |n| {
                matches!(n, 0 | 40 | 41 | 200..208).then(|| vec![Short(n)])
            }),
            &[&[40, 41][..], &run(200..208)].concat(),
            Ledger {
                rejected: 11,
                ..Ledger::lost(PACKETS - 1, &[("wire_gap", 10)])
            },
        )
        .from(1),
        Case::new(
            "oversized",
            all.clone(),
            with(0..PACKETS, |n| matches!(n, 60 | 61).then(|| vec![Long(n)])),
            &[60, 61],
            Ledger {
                rejected: 2,
                ..Ledger::lost(PACKETS, &[("wire_gap", 2)])
            },
        ),
        // Datagrams that are not packets cause no loss.
        Case::new(
            "garbage",
            all.clone(),
            with(0..PACKETS, |n| match n {
                0 => Some(vec![Garbage(0), Garbage(1), Good(0)]),
                7 => Some(vec![
                    Good(7),
                    Garbage(0),
                    Garbage(1),
                    Garbage(7),
                    Garbage(8),
                    Garbage(9),
                ]),
                100 => Some(vec![Garbage(60_000), Good(100)]),
                _ => None,
            }),
            &[],
            Ledger {
                rejected: 8,
                ..Ledger::whole(PACKETS)
            },
        ),
        // Distant sequence numbers that do not agree with each other; one of them repeatedly.
        Case::new(
            "strays",
            all.clone(),
            with(0..PACKETS, |n| match n {
                50 => Some(vec![
                    Good(50),
                    Good(1 << 20),
                    Good(1 << 30),
                    Good(1 << 31),
                    Good(1 << 25),
                ]),
                200 => Some([vec![Good(200)], vec![Good(1 << 30); 9]].concat()),
                // Three resync_after: one too few.
                300 => Some(vec![
                    Good(1 << 30),
                    Good((1 << 30) + 1),
                    Good((1 << 30) + 2),
                    Good(300),
                ]),
                _ => None,
            }),
            &[],
            Ledger {
                rejected: 4 + 9 + 3,
                ..Ledger::whole(PACKETS)
            },
        ),
        // Within range: the numbers in between were lost.
        Case::new(
            "small-jump",
            0..PACKETS + 30,
            good(0..200).chain(good(230..430)).collect(),
            &run(200..230),
            Ledger::lost(PACKETS + 30, &[("wire_gap", 30)]),
        ),
        // Beyond twice the window: the first three packets are kept, the fourth confirms the gap, which counts as lost
        // if it is not longer than the maximum gap.
        Case::new(
            "long-gap",
            0..1200,
            good(0..200).chain(good(1000..1200)).collect(),
            &run(200..1000),
            Ledger::lost(1200, &[("wire_gap", 800)]),
        ),
        Case {
            keys: "resync_after = 1",
            ..Case::new(
                "long-gap-believed-at-once",
                0..1200,
                good(0..200).chain(good(1000..1200)).collect(),
                &run(200..1000),
                Ledger::lost(1200, &[("wire_gap", 800)]),
            )
        },
        Case {
            keys: "max_gap = 100",
            stored: vec![(0..200, BTreeSet::new()), (1000..1200, BTreeSet::new())],
            ..Case::new(
                "too-long-a-gap",
                0..0,
                good(0..200).chain(good(1000..1200)).collect(),
                &[],
                Ledger {
                    epochs: 2,
                    skipped: 800,
                    ..Ledger::whole(400)
                },
            )
        },
        // Longer than the maximum gap: the fourth packet confirms an epoch.
        Case {
            stored: vec![
                (0..200, BTreeSet::new()),
                (100_000..100_200, BTreeSet::new()),
            ],
            ..Case::new(
                "jump",
                0..0,
                good(0..200).chain(good(100_000..100_200)).collect(),
                &[],
                Ledger {
                    epochs: 2,
                    skipped: 100_000 - 200,
                    ..Ledger::whole(400)
                },
            )
        },
        Case {
            keys: "resync_after = 1",
            stored: vec![
                (0..200, BTreeSet::new()),
                (100_004..100_200, BTreeSet::new()),
            ],
            ..Case::new(
                "jump-believed-at-once",
                0..0,
                good(0..200).chain(good(100_004..100_200)).collect(),
                &[],
                Ledger {
                    epochs: 2,
                    skipped: 100_004 - 200,
                    ..Ledger::whole(396)
                },
            )
        },
        // The sender restarts twice, once with gaps before and after.
        Case {
            stored: vec![
                (1000..1198, BTreeSet::from([1003])),
                (0..200, BTreeSet::from([10, 11])),
                (0..100, BTreeSet::new()),
            ],
            ..Case::new(
                "restarts",
                0..0,
                good(1000..1003)
                    .chain(good(1004..1198))
                    .chain(good(0..10))
                    .chain(good(12..200))
                    .chain(good(0..100))
                    .collect(),
                &[],
                Ledger {
                    epochs: 3,
                    ..Ledger::lost(198 + 200 + 100, &[("wire_gap", 3)])
                },
            )
        },
        mixed("mixed-1", 1),
        mixed("mixed-2", 2),
        mixed("mixed-3", 3),
    ]
}

impl Case {
    /// No packet before `first` was ever expected.
    fn from(mut self, first: u64) -> Self {
        self.stored[0].0.start = first;
        self
    }
}

/// Sequence numbers that only `raw` packets can have.
pub fn raw_table() -> Vec<Case> {
    let run = |first: u64, lost: &[u64], swap: u64| {
        let places = first..first + PACKETS;
        with(places, |n| match n {
            _ if lost.contains(&n) => Some(vec![]),
            _ if n == swap => Some(vec![Shot::Good(n + 1), Shot::Good(n)]),
            _ if n == swap + 1 => Some(vec![]),
            _ => None,
        })
    };
    let wrap = |name, bytes: usize, first: u64, lost: &[u64], swap| Case {
        bytes,
        ..Case::new(
            name,
            first..first + PACKETS,
            run(first, lost, swap),
            lost,
            Ledger::lost(
                PACKETS,
                &[("wire_gap", lost.len() as u64)][..usize::from(!lost.is_empty())],
            ),
        )
    };
    let end = 1 << 32;
    vec![
        // More than one wrap.
        wrap("8-bit", 1, 250, &[255, 256, 512], 300),
        // 65 534 to 65 537 are lost across the wrap.
        wrap(
            "16-bit",
            2,
            65_436,
            &[65_534, 65_535, 65_536, 65_537],
            65_532,
        ),
        // The last packet before the wrap and the first after it are swapped.
        wrap("32-bit", 4, end - 100, &[], end - 1),
        // Counts samples: values between two packets are not valid packet numbers.
        Case {
            step: 4096,
            ..Case::new(
                "steps",
                0..PACKETS,
                with(0..PACKETS, |n| match n {
                    70..73 => Some(vec![]),
                    100 => Some(vec![Shot::Between(100), Shot::Good(100)]),
                    _ => None,
                }),
                &[70, 71, 72],
                Ledger {
                    rejected: 1,
                    ..Ledger::lost(PACKETS, &[("wire_gap", 3)])
                },
            )
        },
        // Counts samples with 16 bits: one wrap per 64 packets.
        Case {
            step: 1024,
            ..wrap("16-bit-steps", 2, 40, &[63, 64, 129], 191)
        },
    ]
}

/// Faults that exist only in `spead`.
pub fn spead_table() -> Vec<Case> {
    use Wrong::{
        Flavour, Items, Magic, NoCounter, NoLength, NoOffset, Offset, OtherLength, Version,
    };
    let wrong = [
        Magic, Version, Flavour, NoCounter, NoLength, NoOffset, Offset, Items,
    ];
    let replaced: Vec<u64> = (0..wrong.len() as u64).map(|i| 20 + 11 * i).collect();
    vec![
        Case::new(
            "headers",
            0..PACKETS,
            with(0..PACKETS, |n| {
                let i = replaced.iter().position(|place| *place == n)?;
                Some(vec![Shot::Spead(n, wrong[i])])
            }),
            &replaced,
            Ledger {
                rejected: 8,
                ..Ledger::lost(PACKETS, &[("wire_gap", 8)])
            },
        ),
        // A heap of descriptors takes a heap number but no packet slot: before the first, in between, and repeated.
        Case {
            stored: vec![(8..PACKETS, (80..88).collect())],
            ..Case::new(
                "descriptors",
                0..0,
                with(0..PACKETS, |n| match n {
                    0 | 80 => Some(vec![Shot::Spead(n, OtherLength)]),
                    1..8 | 81..88 => Some(vec![]),
                    _ => None,
                }),
                &[],
                Ledger {
                    control: 2,
                    ..Ledger::whole(PACKETS - 16)
                },
            )
        },
        Case {
            step: 256,
            ..Case::new(
                "heap-steps",
                0..PACKETS,
                with(0..PACKETS, |n| match n {
                    70..90 => Some(vec![]),
                    100 => Some(vec![Shot::Between(100), Shot::Good(100)]),
                    _ => None,
                }),
                &(70..90).collect::<Vec<_>>(),
                Ledger {
                    rejected: 1,
                    ..Ledger::lost(PACKETS, &[("wire_gap", 20)])
                },
            )
        },
    ]
}

/// Random faults. The disposition of a packet is drawn first; its sending time follows from it.
pub fn mixed(name: &'static str, seed: u64) -> Case {
    let mut random = Random(seed);
    let count = 640;
    let mut ledger = Ledger::whole(count);
    let (mut gaps, mut late, mut missing) = (0, 0, BTreeSet::new());
    // Sending time in packet slots, order within it, and the packet.
    let mut order: Vec<(u64, u64, Shot)> = Vec::new();
    for n in 0..count {
        let frame = n / PLACES;
        // The first packets of frames are in time, so that late packets are late at all rates; the last packet is as
        // well.
        let is_safe = n % PLACES == 0 || n + 20 * PLACES > count;
        let dice = if is_safe { 50 } else { random.below(50) };
        let mut at = |place: u64, shot| order.push((place, order.len() as u64, shot));
        match dice {
            0 => (gaps, _) = (gaps + 1, missing.insert(n)),
            1 => {
                at(n, Shot::Short(n));
                ledger.rejected += 1;
                (gaps, _) = (gaps + 1, missing.insert(n));
            }
            2 => {
                at(
                    (frame + 4) * PLACES + 1 + random.below(PLACES - 1),
                    Shot::Good(n),
                );
                (late, _) = (late + 1, missing.insert(n));
            }
            3 => {
                at((frame + 9) * PLACES + 1, Shot::Good(n));
                ledger.rejected += 1;
                (gaps, _) = (gaps + 1, missing.insert(n));
            }
            4..8 => {
                at(n, Shot::Good(n));
                at(n + random.below(OPEN - PLACES), Shot::Good(n));
                ledger.duplicates += 1;
            }
            8..14 => at(n + 1 + random.below(OPEN - PLACES), Shot::Good(n)),
            14 => {
                at(n, Shot::Good(n));
                at(
                    n,
                    Shot::Garbage(1 + usize::try_from(random.below(300)).unwrap()),
                );
                ledger.rejected += 1;
            }
            15 => {
                at(n, Shot::Good((1 << 31) + (n << 16)));
                at(n, Shot::Good(n));
                ledger.rejected += 1;
            }
            _ => at(n, Shot::Good(n)),
        }
    }
    order.sort_by_key(|(place, order, _)| (*place, *order));
    for (cause, lost) in [("wire_gap", gaps), ("late", late)] {
        assert!(lost > 0, "the seed {seed} draws no {cause}");
        ledger.lost.push((cause, lost));
        ledger.delivered -= lost;
    }
    let shots = order.into_iter().map(|(_, _, shot)| shot).collect();
    Case {
        stored: vec![(0..count, missing)],
        ..Case::new(name, 0..0, shots, &[], ledger)
    }
}
