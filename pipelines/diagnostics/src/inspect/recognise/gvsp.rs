//! GVSP, the stream protocol of GigE Vision: for each image a leader, packets with pixels, and a trailer; big endian.
//!
//! Header of 8 bytes: status (2), block id (2), packet format (1: leader, 2: trailer, 3: payload), packet id (3). With the top
//! bit of the format byte set, the header has 20 bytes: the block id (8) and the packet id (4) follow.

use super::field::FieldAt;
use super::fixed::{Fixed, Numbers};
use super::{Key, Packet, Recognised, be, mode, percent};
use daq_drivers::gige::pixel::PixelFormat;
use std::collections::HashMap;

const LEADER: u8 = 1;
const TRAILER: u8 = 2;
const PAYLOAD: u8 = 3;
/// Bit of the format byte: the packet has extended ids.
const EXTENDED: u8 = 0x80;
#[derive(Clone, Copy)]
struct Ids {
    format: u8,
    block: u64,
    packet: u64,
}

fn ids(head: &[u8]) -> Option<Ids> {
    let kind = *head.get(4)?;
    let (block, packet) = if kind & EXTENDED == 0 {
        (be::<2>(head, 2)?, be::<3>(head, 5)?)
    } else {
        (be::<8>(head, 8)?, be::<4>(head, 16)?)
    };
    let format = kind & 0x0f;
    (matches!(format, LEADER | TRAILER | PAYLOAD) && kind & 0x70 == 0).then_some(Ids {
        format,
        block,
        packet,
    })
}

/// Recognises GVSP.
pub(super) fn recognise(packets: &[&Packet]) -> Option<Recognised> {
    let found: Vec<Option<Ids>> = packets.iter().map(|packet| ids(&packet.head)).collect();
    let known: Vec<Ids> = found.iter().copied().flatten().collect();
    let count = |format| known.iter().filter(|ids| ids.format == format).count();
    let (leaders, trailers, data) = (count(LEADER), count(TRAILER), count(PAYLOAD));
    // A leader has packet id 0, and payload counts from 1.
    let is_first = |ids: &&Ids| (ids.format == LEADER) == (ids.packet == 0);
    let valid = known.iter().filter(is_first).count();
    let confidence = percent(valid, packets.len());
    if confidence < 90 || data == 0 || (leaders == 0 && trailers == 0) {
        return None;
    }
    let is_extended = packets
        .iter()
        .any(|packet| packet.head.get(4).is_some_and(|kind| kind & EXTENDED != 0));
    let (header, frame, packet) = if is_extended {
        (20, FieldAt::big(8, 8), FieldAt::big(16, 4))
    } else {
        (8, FieldAt::big(2, 2), FieldAt::big(5, 3))
    };
    let is_payload = |ids: &Option<Ids>| ids.is_some_and(|ids| ids.format == PAYLOAD);
    let sizes = packets
        .iter()
        .zip(&found)
        .filter(|(_, ids)| is_payload(ids));
    let (length, _) = mode(sizes.map(|(packet, _)| packet.length))?;
    let payload = length.checked_sub(header).filter(|payload| *payload > 0)?;
    // The largest packet id of a block is that of its trailer, or of its last payload.
    let mut last: HashMap<u64, u64> = HashMap::new();
    for ids in known.iter().filter(|ids| ids.format == PAYLOAD) {
        let most = last.entry(ids.block).or_default();
        *most = (*most).max(ids.packet);
    }
    let (per_frame, _) = mode(last.values().copied())?;
    let blocks: Vec<u64> = known.iter().map(|ids| ids.block).collect();
    let moved = blocks.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    let step = mode(moved.filter(|step| (1..1 << 15).contains(step))).map_or(1, |(step, _)| step);
    let leader = packets.iter().zip(&found).find_map(|(packet, ids)| {
        (ids.as_ref()?.format == LEADER).then(|| image(&packet.head, header))?
    });
    let kind = PAYLOAD | if is_extended { EXTENDED } else { 0 };
    let is_last =
        |ids: &Option<Ids>| ids.is_some_and(|ids| ids.format == PAYLOAD && ids.packet == per_frame);
    let lasts = packets.iter().zip(&found).filter(|(_, ids)| is_last(ids));
    let lasts = lasts.map(|(packet, _)| packet.length);
    let mut why = vec![
        format!(
            "{leaders} leaders, {data} packets with pixels, {trailers} trailers: packet format 1, 3, 2 at byte 4"
        ),
        format!(
            "{per_frame} packets per image of {payload} B, the last one may be shorter; packet ids count from 1"
        ),
    ];
    let mut samples = None;
    if let Some((text, kind)) = leader {
        why.push(text);
        samples = kind;
    }
    let fixed = Fixed {
        header,
        payload,
        last: mode(lasts).map(|(length, _)| length.saturating_sub(header)),
        numbers: Numbers::Packets {
            frame,
            step,
            packet,
            first: 1,
            packets: per_frame,
        },
        // Block id 0 is reserved.
        range: (!is_extended).then_some((1, 0xffff)),
        samples,
        more: vec![Key::new(
            format!("match    = [{{ offset = 4, bytes = 1, values = [{kind}] }}]"),
            "leaders and trailers have another packet format and are counted as `control`:",
        )],
    };
    let place = |(packet, ids): (&&Packet, &Option<Ids>)| {
        is_payload(ids).then(|| fixed.place(packet)).flatten()
    };
    Some(Recognised {
        name: "GigE Vision stream (GVSP)".to_owned(),
        confidence,
        why,
        ambiguous: vec![
            "the packets do not show how the camera was started: the source `gige` sets it up, starts it and requests \
             lost packets again"
                .to_owned(),
        ],
        numbering: fixed.numbering(),
        places: packets.iter().zip(&found).map(place).collect(),
        layout: format!("gvsp {header} {payload} {per_frame}"),
        suggestion: fixed.suggestion(),
    })
}

/// Returns the size of the image and its pixel format from a leader, and the samples.
fn image(head: &[u8], header: usize) -> Option<(String, Option<String>)> {
    let (pixel, width, height) = (
        be::<4>(head, header + 12)?,
        be::<4>(head, header + 16)?,
        be::<4>(head, header + 20)?,
    );
    let known = PixelFormat::of_code(u32::try_from(pixel).ok()?);
    let name = known.map_or_else(
        || format!("pixel format {pixel:#010x}"),
        |format| format.name.to_owned(),
    );
    let text = format!("the leader states {width} x {height} pixels, {name}");
    let samples = known.map(|format| match format.channels {
        1 => format!("type = \"{}\"", format.scalar),
        channels => format!("type = \"{}\", channels = {channels}", format.scalar),
    });
    Some((text, samples))
}
