//! Reassembly headers of EJ-FAT (E2SAR): events in packets that are placed by their byte offset; big endian.
//!
//! Reassembly header of 20 bytes: version (upper 4 bits, 1) and reserved bits (2), data id (2), offset in the buffer (4), length
//! of the buffer (4), event number (8). The header of the load balancer (16 bytes, `LB`) may precede it.

use super::fixed::{Fixed, Numbers};
use crate::packet::field::FieldKeys;
use crate::packet::recognise::{CapturedPacket, MIN_SHARE, Recognised, be, mode, percent};
use std::collections::BTreeSet;

const BALANCER: usize = 16;
const HEADER: usize = 20;

#[derive(Clone, Copy)]
struct Segment {
    data_id: u64,
    offset: u64,
    length: u64,
    event: u64,
}

fn segment(packet: &CapturedPacket, at: usize) -> Option<Segment> {
    let head = packet.head.get(at..)?;
    let payload = packet.length.checked_sub(at + HEADER)? as u64;
    let segment = Segment {
        data_id: be::<2>(head, 2)?,
        offset: be::<4>(head, 4)?,
        length: be::<4>(head, 8)?,
        event: be::<8>(head, 12)?,
    };
    let is_version = head.first() == Some(&0x10) && head.get(1) == Some(&0);
    (is_version && payload > 0 && segment.offset + payload <= segment.length).then_some(segment)
}

/// Recognises E2SAR.
pub(super) fn recognise(packets: &[&CapturedPacket]) -> Option<Recognised> {
    let balanced = packets
        .iter()
        .filter(|packet| packet.head.starts_with(b"LB"))
        .count();
    let at = if percent(balanced, packets.len()) >= MIN_SHARE {
        BALANCER
    } else {
        0
    };
    let segments: Vec<_> = packets.iter().map(|packet| segment(packet, at)).collect();
    let known: Vec<Segment> = segments.iter().copied().flatten().collect();
    let confidence = percent(known.len(), packets.len());
    // Without several offsets, any packet with these few constant bits would match.
    let offsets: BTreeSet<u64> = known.iter().map(|segment| segment.offset).collect();
    if confidence < MIN_SHARE || !offsets.contains(&0) || offsets.len() < 2 {
        return None;
    }
    let (length, _) = mode(known.iter().map(|segment| segment.length))?;
    let (size, _) = mode(packets.iter().map(|packet| packet.length))?;
    let payload = size
        .checked_sub(at + HEADER)
        .filter(|payload| *payload > 0)?;
    let events: Vec<u64> = known.iter().map(|segment| segment.event).collect();
    let moved = events.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    let step = mode(moved.filter(|step| (1..1 << 40).contains(step))).map_or(1, |(step, _)| step);
    let ids: BTreeSet<u64> = known.iter().map(|segment| segment.data_id).collect();
    let mut ambiguous = Vec::new();
    if ids.len() > 1 {
        ambiguous.push(format!(
            "{} data ids in one flow: each is a sender of its own",
            ids.len()
        ));
    }
    let fixed = Fixed {
        header: at + HEADER,
        payload,
        last: usize::try_from(length)
            .ok()
            .map(|length| match length % payload {
                0 => payload,
                rest => rest,
            }),
        numbers: Numbers::Position {
            frame: FieldKeys::big(at + 12, 8).stepping(step),
            position: FieldKeys::big(at + 4, 4),
            packets: length.div_ceil(payload as u64),
        },
        samples: None,
        more: Vec::new(),
    };
    let place = |(packet, segment): (&&CapturedPacket, &Option<Segment>)| {
        segment.filter(|segment| segment.length == length)?;
        fixed.place(packet)
    };
    Some(Recognised {
        name: "E2SAR reassembly header (EJ-FAT)".to_owned(),
        confidence,
        why: vec![
            format!(
                "version 1, and offset + payload never exceed the length of the buffer: {length} B{}",
                if at > 0 {
                    "; the header of the load balancer (`LB`) precedes"
                } else {
                    ""
                }
            ),
            format!(
                "event numbers grow by {step}; data id {}",
                ids.iter()
                    .map(u64::to_string)
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        ],
        ambiguous,
        numbering: fixed.numbering(),
        places: packets.iter().zip(&segments).map(place).collect(),
        layout: format!("e2sar {at} {length} {payload}"),
        suggestion: fixed.suggestion(true),
    })
}
