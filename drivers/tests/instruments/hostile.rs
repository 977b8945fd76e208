//! Instruments of which the sender of one part is hostile: its packets have wrong numbers, positions, lengths and bits. The
//! packets of all other parts must arrive.

use super::{Instrument, Packet, content, in_order, instruments};
use daq_testkit::Random;

const WINDOW: u64 = 8;
/// The frames of a run, and those in which one part is hostile. Afterwards, frames of all parts show where the run ends.
const FRAMES: std::ops::Range<u64> = 1000..1080;
const HOSTILE: std::ops::Range<u64> = 1012..1050;

impl Instrument {
    /// Builds a packet of `part` with the payload of a hostile sender.
    fn forged(&self, frame: u64, part: usize, place: usize) -> Vec<u8> {
        let mut payload = content(frame, part, place, (self.payload)(place));
        for byte in &mut payload {
            *byte ^= 0xff;
        }
        (self.packet)(frame, part, place, &payload)
    }

    /// Returns `bytes`, a packet of `part`, with some flipped bits. The bytes that identify the part are unchanged.
    fn flipped(&self, bytes: &[u8], (part, place): (usize, usize), random: &mut Random) -> Vec<u8> {
        let mut flipped = bytes.to_vec();
        // Most flips hit the header.
        let end = if random.below(4) > 0 { 64 } else { bytes.len() };
        for _ in 0..=random.below(3) {
            let at = index(random, end.min(bytes.len()));
            flipped[at] ^= 1 << random.below(8);
        }
        let payload = vec![0; (self.payload)(place)];
        let of = |part| (self.packet)(HOSTILE.start, part, place, &payload);
        let own = of(part);
        for other in (0..self.parts).map(of) {
            for i in (0..own.len()).filter(|i| own[*i] != other[*i]) {
                flipped[i] = bytes[i];
            }
        }
        flipped
    }

    /// Returns a packet that the hostile sender of `part` sends instead of the packet at `place` of `frame`.
    fn mutated(&self, (frame, part, place): (u64, usize, usize), random: &mut Random) -> Vec<u8> {
        let right = self.forged(frame, part, place);
        match random.below(8) {
            0 => self.forged(frame + 100 + random.below(100_000), part, place),
            1 | 2 => self.forged(frame + WINDOW + random.below(WINDOW), part, place),
            3 => self.forged(frame + 1 + random.below(WINDOW), part, place),
            4 => self.forged(frame - 1 - random.below(900), part, place),
            5 => self.forged(frame, part, self.packets + index(random, 5)),
            6 if random.below(2) == 0 => right[..index(random, right.len())].to_vec(),
            6 => [&right[..], &vec![0; 1 + index(random, 40)]].concat(),
            _ => self.flipped(&right, (part, place), random),
        }
    }

    /// Returns all packets, with `forged` packets per right packet of the hostile part. It sends its right packets too if
    /// `is_complete` is true.
    fn with_hostile(&self, hostile: usize, forged: u64, is_complete: bool) -> Vec<Packet> {
        let mut random = Random(hostile as u64 + 2 * forged + u64::from(is_complete) + 1);
        let mut sent = Vec::new();
        for packet in FRAMES.flat_map(|frame| self.frame(frame)) {
            let Packet {
                frame, part, place, ..
            } = packet;
            if part != hostile || !HOSTILE.contains(&frame) {
                sent.push(packet);
                continue;
            }
            sent.extend((0..forged).map(|_| Packet {
                frame,
                part,
                place: usize::MAX,
                bytes: self.mutated((frame, part, place), &mut random),
            }));
            if is_complete {
                sent.push(packet);
            }
        }
        sent
    }
}

fn index(random: &mut Random, below: usize) -> usize {
    usize::try_from(random.below(below as u64)).unwrap()
}

#[test]
fn hostile_part_changes_no_packet_of_the_other_parts() {
    for instrument in instruments().into_iter().filter(|all| all.parts > 1) {
        let all = (FRAMES.end - FRAMES.start) * instrument.packets as u64;
        for hostile in [0, instrument.parts - 1] {
            for (forged, is_complete) in [(1, false), (1, true), (3, true)] {
                let sent = instrument.with_hostile(hostile, forged, is_complete);
                let report = instrument.check_others(8, &sent, Some(hostile));
                let case = format!(
                    "{}: part {hostile} is hostile ({forged}, {is_complete}): {report:?}",
                    instrument.name
                );
                assert_eq!(report.epochs, 1, "{case}");
                for (i, part) in in_order(&report).iter().enumerate() {
                    if i != hostile {
                        assert_eq!((part.expected, part.delivered), (all, all), "{case}");
                        assert_eq!((part.rejected, part.duplicates), (0, 0), "{case}");
                    }
                }
            }
        }
    }
}
