//! Counts lost, repeated and reordered packets by the numbers in their headers.

use daq_core::recognise::{Numbering, Place};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};

/// Maximum distance in frames between two packets of one run of numbers; a larger jump is a restart of the sender.
const MAX_JUMP: u64 = 1 << 20;
/// Minimum step back in packets to the first numbers of a run that is a restart of the sender instead of repeated numbers.
const MIN_RESTART: i128 = 64;

/// The numbers of one part between two restarts of its sender.
#[derive(Debug, Default)]
struct Run {
    /// The last frame number as in the packet, and its position in units of the step.
    last: Option<(u64, i128)>,
    packets: Vec<i128>,
    /// Frame numbers that belong to messages.
    messages: HashSet<i128>,
}

/// The result for the examined packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Number of packets between the first and the last number.
    pub expected: u64,
    /// Number of these packets that did not arrive.
    pub lost: u64,
    /// Number of packets whose numbers had arrived before.
    pub duplicates: u64,
    /// Number of packets that arrived after a packet with a higher number.
    pub reordered: u64,
    /// Number of packets without samples, such as leaders and messages.
    pub control: u64,
    /// Number of jumps that are too large for loss.
    pub restarts: u64,
}

impl Account {
    /// Adds the result of another sender.
    pub fn add(&mut self, other: &Self) {
        self.expected += other.expected;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
        self.control += other.control;
        self.restarts += other.restarts;
    }
}

/// Counts the packets with `places`, in the order of their arrival. A packet without a place is a control packet.
pub fn account(places: impl IntoIterator<Item = Option<Place>>, numbering: &Numbering) -> Account {
    let mut account = Account::default();
    let mut runs: BTreeMap<usize, Run> = BTreeMap::new();
    let packets = i128::from(numbering.packets.max(1));
    let step = numbering.step.max(1);
    for place in places {
        let Some(place) = place else {
            account.control += 1;
            continue;
        };
        let run = runs.entry(place.part).or_default();
        let frame = match run.last {
            None => 0,
            Some((number, frame)) => {
                let jump = numbering.jump(number, place.frame);
                if jump.unsigned_abs() / step > MAX_JUMP {
                    account.restarts += 1;
                    std::mem::take(run).close(packets, &mut account);
                    0
                } else {
                    frame + i128::from(jump) / i128::from(step)
                }
            }
        };
        run.last = Some((place.frame, frame));
        let packet = i128::from(place.packet);
        if packet < packets {
            run.packets.push(frame * packets + packet);
        } else {
            account.control += 1;
            run.messages.insert(frame);
        }
    }
    for run in runs.into_values() {
        run.close(packets, &mut account);
    }
    account
}

/// Returns the number of packets whose numbers contradict one run of numbers: those that had arrived before, and restarts. After a
/// restart, the sender may use all numbers again.
pub fn conflicts(places: impl IntoIterator<Item = Option<Place>>, numbering: &Numbering) -> u64 {
    let mut runs: BTreeMap<usize, Pass> = BTreeMap::new();
    let packets = i128::from(numbering.packets.max(1));
    let places = places.into_iter().flatten();
    let known = places.filter(|place| i128::from(place.packet) < packets);
    let conflicts = known.map(|place| {
        let pass = runs.entry(place.part).or_default();
        u64::from(!pass.accepts(&place, numbering, packets))
    });
    conflicts.sum()
}

/// The numbers of one part since its sender started.
#[derive(Debug, Default)]
struct Pass {
    /// The last frame number as in the packet, and its position in units of the step.
    last: Option<(u64, i128)>,
    seen: HashSet<i128>,
    lowest: i128,
    /// The number of the last packet.
    newest: i128,
}

impl Pass {
    /// Adds a packet. Returns false if its number contradicts those before it.
    fn accepts(&mut self, place: &Place, numbering: &Numbering, packets: i128) -> bool {
        let step = numbering.step.max(1);
        let packet = i128::from(place.packet);
        let Some((number, frame)) = self.last else {
            self.restart(place, packet);
            return true;
        };
        let jump = numbering.jump(number, place.frame);
        let frame = frame + i128::from(jump) / i128::from(step);
        let number = frame * packets + packet;
        let is_first = number <= self.lowest + MIN_RESTART && number + MIN_RESTART <= self.newest;
        if jump.unsigned_abs() / step > MAX_JUMP || is_first {
            self.restart(place, packet);
            return false;
        }
        self.last = Some((place.frame, frame));
        self.lowest = self.lowest.min(number);
        self.newest = number;
        self.seen.insert(number)
    }

    /// Starts again with a packet.
    fn restart(&mut self, place: &Place, packet: i128) {
        self.last = Some((place.frame, 0));
        self.seen.clear();
        self.seen.insert(packet);
        (self.lowest, self.newest) = (packet, packet);
    }
}

impl Run {
    /// Adds the packets to `account`; a frame has `packets` packets.
    fn close(self, packets: i128, account: &mut Account) {
        let mut seen = HashSet::with_capacity(self.packets.len());
        let (mut lowest, mut highest) = (i128::MAX, i128::MIN);
        for number in self.packets {
            if !seen.insert(number) {
                account.duplicates += 1;
            } else if number < highest {
                account.reordered += 1;
            }
            (lowest, highest) = (lowest.min(number), highest.max(number));
        }
        if seen.is_empty() {
            return;
        }
        let is_between = |frame: &&i128| (lowest..=highest).contains(&(**frame * packets));
        let messages = self.messages.iter().filter(is_between).count() as i128;
        let expected = (highest - lowest + 1 - messages * packets).max(seen.len() as i128);
        let count = |number: i128| u64::try_from(number).unwrap_or(u64::MAX);
        account.expected += count(expected);
        account.lost += count(expected - seen.len() as i128);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_duplicates_and_wraps_are_counted() {
        let numbering = Numbering {
            bits: 8,
            step: 2,
            packets: 4,
            range: None,
        };
        let mut places = Vec::new();
        for frame in 100..300u64 {
            for packet in 0..4 {
                let frame = frame * 2 % 256;
                places.push(Some(Place {
                    frame,
                    packet,
                    part: 0,
                }));
            }
        }
        places.swap(40, 41);
        places.remove(100);
        places.insert(200, places[150]);
        places.push(None);
        let found = account(places, &numbering);
        let expected = Account {
            expected: 800,
            lost: 1,
            duplicates: 1,
            reordered: 1,
            control: 1,
            restarts: 0,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn parts_are_counted_separately() {
        let numbering = Numbering {
            bits: 48,
            step: 1,
            packets: 1,
            range: None,
        };
        let place = |frame, part| {
            Some(Place {
                frame,
                packet: 0,
                part,
            })
        };
        // The second part is behind by three frames, and lost one packet.
        let places = (0..50_u64).flat_map(|n| [place(n + 3, 0), place(n, 1).filter(|_| n != 20)]);
        let places = places.flatten().map(Some);
        let found = account(places, &numbering);
        let counts = (found.expected, found.lost, found.reordered);
        assert_eq!(counts, (100, 1, 0));
    }

    #[test]
    fn interleaved_senders_conflict_and_second_acquisition_does_not() {
        let numbering = Numbering {
            bits: 32,
            step: 1,
            packets: 16,
            range: None,
        };
        let places = |frames: &[u64], packets: u64| -> Vec<_> {
            let frames = frames.iter().copied();
            let all = frames.flat_map(|frame| (0..packets).map(move |packet| (frame, packet)));
            all.map(|(frame, packet)| {
                Some(Place {
                    frame,
                    packet,
                    part: 0,
                })
            })
            .collect()
        };
        let frames: Vec<u64> = (7..27).collect();
        let once = places(&frames, 16);
        assert_eq!(conflicts(once.clone(), &numbering), 0);
        assert_eq!(
            conflicts([once.clone(), once.clone()].concat(), &numbering),
            1
        );
        // Two senders take turns by packet, or by frame.
        let by_packet = once.iter().flat_map(|place| [*place, *place]);
        assert_eq!(conflicts(by_packet, &numbering), 320);
        let frames: Vec<u64> = frames.iter().flat_map(|frame| [*frame; 2]).collect();
        assert_eq!(conflicts(places(&frames, 16), &numbering), 320);
    }

    #[test]
    fn huge_jump_is_restart_instead_of_loss() {
        let numbering = Numbering {
            bits: 64,
            step: 1,
            packets: 1,
            range: None,
        };
        let numbers = (5..20).chain(1 << 40..(1 << 40) + 10);
        let places = numbers.map(|frame| {
            Some(Place {
                frame,
                packet: 0,
                part: 0,
            })
        });
        let found = account(places, &numbering);
        assert_eq!((found.expected, found.lost, found.restarts), (25, 0, 1));
    }
}
