//! The packets and the expected result of each case.

use daq_testkit::Random;
pub use daq_testkit::ledger::SourceCounts as Ledger;
use std::collections::BTreeSet;
use std::ops::Range;

/// Packets per frame.
pub const PACKETS_PER_FRAME: u64 = 8;
/// Number of packet slots that the window keeps open.
pub const OPEN: u64 = 4 * PACKETS_PER_FRAME;
/// Number of packets of most cases.
pub const PACKETS: u64 = 400;

/// One datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shot {
    /// The correct packet for a packet slot.
    Good(u64),
    /// A packet that is one byte too short.
    Short(u64),
    /// A packet that is one byte too long.
    Long(u64),
    /// A datagram with this many zero bytes.
    Garbage(usize),
    /// A packet whose sequence number is between two valid ones.
    Between(u64),
    /// A SPEAD packet with a fault.
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
    /// A heap of another length, which is not a fault.
    OtherLength,
}

/// The packets and the expected result of one case.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: &'static str,
    /// Additional keys of the source.
    pub keys: &'static str,
    /// Number of bytes of the sequence number (only `raw`). The next field is the difference between successive
    /// sequence numbers.
    pub bytes: usize,
    pub step: u64,
    pub shots: Vec<Shot>,
    pub ledger: Ledger,
    /// The expected file: the range of packet slots of each epoch, and the missing ones.
    pub stored: Vec<(Range<u64>, BTreeSet<u64>)>,
}

pub fn good(packets: Range<u64>) -> impl Iterator<Item = Shot> + Clone {
    packets.map(Shot::Good)
}

/// Returns packets in order. For some packets, `replace` returns other packets.
pub fn with(packets: Range<u64>, mut replace: impl FnMut(u64) -> Option<Vec<Shot>>) -> Vec<Shot> {
    packets
        .flat_map(|n| replace(n).unwrap_or_else(|| vec![Shot::Good(n)]))
        .collect()
}

impl Case {
    /// Creates a case for the packet slots `packets` of a 64-bit sequence. `shots` are sent, and `missing` must not be
    /// in the file.
    pub fn new(
        name: &'static str,
        packets: Range<u64>,
        shots: Vec<Shot>,
        missing: &[u64],
        ledger: Ledger,
    ) -> Self {
        let stored = vec![(packets, missing.iter().copied().collect())];
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

/// Returns the cases that apply to every format.
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
        // A complete frame is lost, and parts of the frames before and after it.
        Case::new(
            "many-lost",
            all.clone(),
            but(&run(197..212)),
            &run(197..212),
            Ledger::lost(PACKETS, &[("wire_gap", 15)]),
        ),
        // Packets before the first and after the last received packet are not expected, but they are missing in their
        // frames.
        Case::new(
            "ends-lost",
            3..390,
            good(3..390).collect(),
            &[],
            Ledger::whole(387),
        ),
        // Packet 51 arrives after packet 75, the last packet before its frame is closed. Two neighbours and two
        // complete frames are swapped.
        Case::new(
            "reordered",
            all.clone(),
            with(0..PACKETS, |n| match n {
                51 | 121 => Some(vec![]),
                75 => Some(vec![Good(75), Good(51)]),
                120 => Some(vec![Good(121), Good(120)]),
                200..216 => Some(vec![Good(if n < 208 { n + 8 } else { n - 8 })]),
                // Three frames arrive in reverse order. All of them are still open when the last packet arrives first.
                328..352 => Some(vec![Good(679 - n)]),
                _ => None,
            }),
            &[],
            Ledger::whole(PACKETS),
        ),
        // Packets 100 and 259 each arrive one packet after their frame was closed by the first packet of a frame four
        // frames later.
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
        // The packet is so late that its number is no longer plausible, because its slot was accounted for long ago.
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
        // Duplicates arrive immediately, while the frame is open, and after the frame was closed.
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
        // The packet arrives twice, both times too late. The second one counts as a duplicate.
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
        // Datagrams that are not packets must not cause a loss.
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
                rejected: 6,
                // Empty datagrams contain no data.
                control: 2,
                ..Ledger::whole(PACKETS)
            },
        ),
        // Distant sequence numbers that do not continue each other. One of them arrives repeatedly.
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
                // Three successive packets are one fewer than the default of `resync_after`.
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
        // The new numbers are within the range of the window, so the numbers in between count as lost.
        Case::new(
            "small-jump",
            0..PACKETS + 30,
            good(0..200).chain(good(230..430)).collect(),
            &run(200..230),
            Ledger::lost(PACKETS + 30, &[("wire_gap", 30)]),
        ),
        // The new numbers are beyond twice the window. The first three packets are kept, and the fourth confirms the
        // gap. The gap counts as lost if it is not longer than the maximum gap.
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
        // The gap is longer than the maximum gap, so the fourth packet starts a new epoch.
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
        // The sender restarts twice. One of the restarts has gaps before and after it.
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
    /// Sets the first expected packet. Packets before it do not count as lost.
    fn from(mut self, first: u64) -> Self {
        self.stored[0].0.start = first;
        self
    }
}

/// Returns cases with sequence numbers that only `raw` packets can have.
pub fn raw_table() -> Vec<Case> {
    let run = |first: u64, lost: &[u64], swap: u64| {
        let packets = first..first + PACKETS;
        with(packets, |n| match n {
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
        // The numbers wrap around more than once.
        wrap("8-bit", 1, 250, &[255, 256, 512], 300),
        // The packets 65 534 to 65 537 are lost, across the wrap.
        wrap(
            "16-bit",
            2,
            65_436,
            &[65_534, 65_535, 65_536, 65_537],
            65_532,
        ),
        // The last packet before the wrap and the first packet after it are swapped.
        wrap("32-bit", 4, end - 100, &[], end - 1),
        // The sequence number counts samples. Numbers between those of two packets are not valid.
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
        // A 16-bit sequence number counts samples and wraps around every 64 packets.
        Case {
            step: 1024,
            ..wrap("16-bit-steps", 2, 40, &[63, 64, 129], 191)
        },
    ]
}

/// Returns the cases that apply only to `spead`.
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
        // A heap of descriptors has a heap number but no packet slots. It is sent before the first heap and repeated
        // later.
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

/// Returns a case with random faults. The fault of each packet is drawn first and determines when the packet is sent.
pub fn mixed(name: &'static str, seed: u64) -> Case {
    let mut random = Random(seed);
    let count = 640;
    let mut ledger = Ledger::whole(count);
    let (mut gaps, mut late, mut missing) = (0, 0, BTreeSet::new());
    // Sending time in packet slots, order at the same time, and the packet.
    let mut order: Vec<(u64, u64, Shot)> = Vec::new();
    for n in 0..count {
        let frame = n / PACKETS_PER_FRAME;
        // The first packet of a frame is never delayed, so that late packets are late at all rates. The packets at the
        // end have no fault.
        let is_safe = n % PACKETS_PER_FRAME == 0 || n + 20 * PACKETS_PER_FRAME > count;
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
                    (frame + 4) * PACKETS_PER_FRAME + 1 + random.below(PACKETS_PER_FRAME - 1),
                    Shot::Good(n),
                );
                (late, _) = (late + 1, missing.insert(n));
            }
            3 => {
                at((frame + 9) * PACKETS_PER_FRAME + 1, Shot::Good(n));
                ledger.rejected += 1;
                (gaps, _) = (gaps + 1, missing.insert(n));
            }
            4..8 => {
                at(n, Shot::Good(n));
                at(n + random.below(OPEN - PACKETS_PER_FRAME), Shot::Good(n));
                ledger.duplicates += 1;
            }
            8..14 => at(
                n + 1 + random.below(OPEN - PACKETS_PER_FRAME),
                Shot::Good(n),
            ),
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
        assert!(
            lost > 0,
            "the seed {seed} must cause at least one loss with the cause {cause}"
        );
        ledger.lost.push((cause, lost));
        ledger.delivered -= lost;
    }
    let shots = order.into_iter().map(|(_, _, shot)| shot).collect();
    Case {
        stored: vec![(0..count, missing)],
        ..Case::new(name, 0..0, shots, &[], ledger)
    }
}
