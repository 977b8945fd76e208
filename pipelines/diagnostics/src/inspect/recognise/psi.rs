//! Packets of PSI's detectors (EIGER, JUNGFRAU, GOTTHARD, MOENCH, MYTHEN): 48 bytes of header, little endian.
//!
//! Source: the detector header of slsDetectorPackage: frame number (8 bytes), exposure (4), packet number (4), bunch id (8),
//! timestamp (8), module id, row, column (2 each), reserved (8), detector type (1), header version (1).

use super::field::FieldAt;
use super::fixed::{Fixed, Numbers};
use super::{Packet, Recognised, le, mode, percent};

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
    let modules: std::collections::BTreeSet<(u64, u64)> = packets
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
            first: 0,
            packets: last + 1,
        },
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
                "the frame number (bytes 0 to 7) grows by {step}; the packet number (bytes 12 to 15) counts 0 to {last}"
            ),
            format!("modules (row, column): {}", list(&modules)),
        ],
        ambiguous: Vec::new(),
        numbering: fixed.numbering(),
        places: places.collect(),
        layout: format!("psi {length} {last}"),
        suggestion: fixed.suggestion(),
    })
}

fn list(modules: &std::collections::BTreeSet<(u64, u64)>) -> String {
    let shown: Vec<_> = modules
        .iter()
        .take(8)
        .map(|module| format!("{module:?}"))
        .collect();
    shown.join(", ")
}
