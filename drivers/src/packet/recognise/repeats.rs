//! Packets that were captured twice, such as on the interface of a VLAN and on its network card (`tcpdump -i any`).

use super::{CapturedPacket, Recognised, Recogniser, percent};
use std::collections::HashMap;

/// Maximum number of packets between a packet and its repetition.
const MAX_DISTANCE: usize = 64;
/// Minimum share of repeated packets in percent from which they hide the order of the others.
const MIN_SHARE: u8 = 5;

/// Lets `recogniser` examine the packets that differ from those shortly before them, if many do not.
pub fn recognise(recogniser: &Recogniser, packets: &[&CapturedPacket]) -> Option<Recognised> {
    let firsts = firsts(packets);
    let unique: Vec<&CapturedPacket> = packets
        .iter()
        .zip(&firsts)
        .filter_map(|(packet, first)| first.is_none().then_some(*packet))
        .collect();
    let repeated = packets.len() - unique.len();
    if percent(repeated, packets.len()) < MIN_SHARE {
        return (recogniser.recognise)(packets);
    }
    let mut found = (recogniser.recognise)(&unique)?;
    let mut next = found.places.iter();
    let mut places = Vec::with_capacity(packets.len());
    for first in firsts {
        let place = match first {
            Some(index) => places[index],
            None => *next.next()?,
        };
        places.push(place);
    }
    found.places = places;
    found.ambiguous.push(format!(
        "{repeated} of {} packets repeat an earlier one, as if each had been captured on two interfaces: capture on one interface \
         (`tcpdump -i NAME`)",
        packets.len()
    ));
    Some(found)
}

/// Returns for each packet the index of an equal packet shortly before it.
fn firsts(packets: &[&CapturedPacket]) -> Vec<Option<usize>> {
    let mut seen: HashMap<(usize, &[u8]), usize> = HashMap::new();
    let mut firsts = Vec::with_capacity(packets.len());
    for (i, packet) in packets.iter().enumerate() {
        let key = (packet.length, &*packet.head);
        let before = seen.get(&key).copied();
        let before = before.filter(|before| i - before <= MAX_DISTANCE);
        if before.is_none() {
            seen.insert(key, i);
        }
        firsts.push(before);
    }
    firsts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::FORMATS;
    use crate::packet::recognise::{account, best};
    use daq_core::entry::Registry;

    fn packet(number: u64) -> CapturedPacket {
        let noise = |i: u64| (number * 31 + i * 17 + number * i) % 253;
        let noise: Vec<u8> = (0..200)
            .map(|i| u8::try_from(noise(i)).unwrap_or(0))
            .collect();
        CapturedPacket {
            source: ([10, 0, 0, 1], 9).into(),
            ns: 0,
            length: 1040,
            head: [&number.to_be_bytes()[..], &[0; 8], &noise].concat().into(),
        }
    }

    #[test]
    fn packets_captured_twice_are_recognised_and_counted() {
        for distance in [1, 7] {
            let mut numbers: Vec<u64> = (0..600).collect();
            for number in 0..600 {
                let at = numbers
                    .iter()
                    .position(|other| *other == number)
                    .unwrap_or(0);
                numbers.insert((at + distance).min(numbers.len()), number);
            }
            let packets: Vec<CapturedPacket> = numbers.into_iter().map(packet).collect();
            let packets: Vec<&CapturedPacket> = packets.iter().collect();
            let (_, found) = best(
                &Registry::default().with_all(FORMATS).recognisers(),
                &packets,
            )
            .expect("the counter is recognised");
            let counts = account(found.places.iter().copied(), &found.numbering);
            assert_eq!(
                (counts.expected, counts.lost, counts.duplicates),
                (600, 0, 600)
            );
            assert!(
                found
                    .ambiguous
                    .iter()
                    .any(|text| text.contains("600 of 1200 packets repeat"))
            );
        }
    }
}
