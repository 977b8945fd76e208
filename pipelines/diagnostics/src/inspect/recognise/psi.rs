//! Packets of PSI's detectors (EIGER, JUNGFRAU, GOTTHARD, MOENCH, MYTHEN): 48 bytes of header, little endian.
//!
//! Source: the detector header of slsDetectorPackage: frame number (8 bytes), exposure (4), packet number (4), bunch id (8),
//! timestamp (8), module id, row, column (2 each), reserved (8), detector type (1), header version (1).

use super::field::FieldAt;
use super::fixed::{Fixed, Numbers};
use super::{Packet, Recognised, le, mode, percent};
use std::collections::{BTreeMap, BTreeSet};

const HEADER: usize = 48;
const FRAME: FieldAt = FieldAt::little(0, 8);
const PACKET: FieldAt = FieldAt::little(12, 4);
const DETECTOR: usize = 46;
const VERSION: usize = 47;
/// Names of the detector types 1 to 7.
const DETECTORS: [&str; 7] = [
    "EIGER",
    "GOTTHARD",
    "JUNGFRAU",
    "CHIPTESTBOARD",
    "MOENCH",
    "MYTHEN3",
    "GOTTHARD2",
];
/// Maximum number of packets in a frame of one port.
const MAX_PACKETS: u64 = 512;

/// Minimum number of frames that begin with the same packet, from which this packet is the first of a frame.
const MIN_FRAMES: usize = 3;

/// Maximum number of modules that are listed.
const MAX_MODULES: usize = 8;

/// Recognises packets of PSI's detectors.
pub(super) fn recognise(packets: &[&Packet]) -> Option<Recognised> {
    let (length, count) = mode(packets.iter().map(|packet| packet.length))?;
    let payload = length.checked_sub(HEADER).filter(|payload| *payload > 0)?;
    let read = |packet: &&Packet| {
        let head = &packet.head;
        let numbers = (FRAME.read(head)?, PACKET.read(head)?);
        let kind = (*head.get(DETECTOR)?, *head.get(VERSION)?);
        (packet.length == length && kind.0 <= 7 && (1..=9).contains(&kind.1))
            .then_some((numbers, kind))
    };
    let read: Vec<_> = packets.iter().filter_map(read).collect();
    if percent(read.len(), packets.len()) < 90 || percent(count, packets.len()) < 90 {
        return None;
    }
    let last = read.iter().map(|((_, packet), _)| *packet).max()?;
    let first = first(read.iter().map(|(numbers, _)| *numbers));
    // The packet number grows within a frame, and the frame number between frames.
    let follows = |pair: &&[((u64, u64), _)]| {
        let ((frame, packet), (next, then)) = (pair[0].0, pair[1].0);
        (next == frame && then == packet + 1)
            || (next > frame && next - frame < 1 << 20 && then <= packet)
    };
    let orderly = read.windows(2).filter(follows).count();
    let confidence = percent(orderly, read.len() - 1);
    if confidence < 50 || last >= MAX_PACKETS {
        return None;
    }
    let frames = read.iter().map(|((frame, _), _)| *frame);
    let frames: Vec<u64> = frames.collect();
    let moved = frames.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    let step = mode(moved.filter(|step| (1..1 << 32).contains(step))).map_or(1, |(step, _)| step);
    let ((detector, version), _) = mode(read.iter().map(|(_, kind)| *kind))?;
    let name = usize::from(detector)
        .checked_sub(1)
        .and_then(|index| DETECTORS.get(index))
        .copied()
        .unwrap_or("generic");
    let modules: BTreeSet<(u64, u64)> = packets
        .iter()
        .filter_map(|packet| Some((le::<2>(&packet.head, 34)?, le::<2>(&packet.head, 36)?)))
        .collect();
    let fixed = Fixed {
        header: HEADER,
        payload,
        last: None,
        numbers: Numbers::Packets {
            frame: FRAME,
            step,
            packet: PACKET,
            first,
            packets: last + 1 - first,
        },
        range: None,
        samples: Some("type = \"uint16\"".to_owned()),
        more: Vec::new(),
    };
    let places = packets.iter().map(|packet| {
        let is_data = packet.length == length;
        is_data.then(|| fixed.place(packet)).flatten()
    });
    Some(Recognised {
        name: format!("PSI detector ({name}, header version {version})"),
        confidence: confidence.max(percent(read.len(), packets.len()).min(95)),
        why: vec![
            format!(
                "48 bytes of header and {payload} B of payload; byte 46 names the detector: {name}"
            ),
            format!(
                "the frame number (bytes 0 to 7) grows by {step}; the packet number (bytes 12 to 15) counts {first} to {last}"
            ),
            format!("modules: {}", list(&modules)),
        ],
        ambiguous: (first > 0)
            .then(|| format!("the packets before {first} never arrive, as with a partial readout: they are not part of frames"))
            .into_iter()
            .collect(),
        numbering: fixed.numbering(),
        places: places.collect(),
        layout: format!("psi {length} {first} {last}"),
        suggestion: fixed.suggestion(),
    })
}

/// Returns the number of the first packet of a frame: 0, unless many frames begin with the same later packet and none with an
/// earlier one.
fn first(numbers: impl Iterator<Item = (u64, u64)>) -> u64 {
    let mut lowest: BTreeMap<u64, u64> = BTreeMap::new();
    for (frame, packet) in numbers {
        let low = lowest.entry(frame).or_insert(packet);
        *low = packet.min(*low);
    }
    // The capture may begin within the first frame.
    let least = lowest.values().copied().min().unwrap_or(0);
    let begin = lowest.values().filter(|low| **low == least).count();
    if begin >= MIN_FRAMES && begin * 2 > lowest.len() {
        least
    } else {
        0
    }
}

/// Returns the positions of at most [`MAX_MODULES`] modules as words.
fn list(modules: &BTreeSet<(u64, u64)>) -> String {
    let mut shown: Vec<_> = modules
        .iter()
        .take(MAX_MODULES)
        .map(|(row, column)| format!("row {row} column {column}"))
        .collect();
    let others = modules.len().saturating_sub(MAX_MODULES);
    if others > 0 {
        shown.push(format!("and {others} more"));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_listed_in_words() {
        assert_eq!(list(&[(0, 0)].into()), "row 0 column 0");
        let many = list(&(0..10).map(|row| (row, 1)).collect());
        assert!(
            many.starts_with("row 0 column 1, row 1 column 1, "),
            "{many}"
        );
        assert!(many.ends_with(", and 2 more"), "{many}");
    }
}
