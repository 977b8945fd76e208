//! Recognises VITA 49 (VRT, DIFI): each packet begins with a prologue that states its type, its timestamp and its size.

use super::COUNT_BITS;
use super::prologue::{Fraction, Kind, Prologue, Seconds};
use crate::packet::recognise::{
    CapturedPacket, Key, MIN_SHARE, Numbering, Place, Recognised, Recogniser, Suggestion, mode,
    percent, size,
};
use std::collections::BTreeSet;

/// How VITA 49 packets are recognised.
pub(super) const RECOGNISERS: &[Recogniser] = &[Recogniser {
    recognise,
    packet_len,
}];

/// Number of values of the packet count.
const COUNTS: u8 = 1 << COUNT_BITS;

fn keys(payload: usize, stream: Option<u32>) -> Vec<Key> {
    let mut keys = vec![Key::plain(format!("payload   = {}", size(payload)))];
    keys.extend(stream.map(|id| Key::plain(format!("stream_id = {id:#x}"))));
    keys
}

/// Returns the prologue of the packet at the start of `bytes`, if the packet has a payload.
fn prologue(bytes: &[u8]) -> Option<Prologue> {
    let prologue = Prologue::parse(bytes).ok()?;
    let has_payload = prologue.packet > prologue.bytes + prologue.trailer;
    (prologue.kind != Kind::Unknown && has_payload).then_some(prologue)
}

/// Returns the size in bytes of the packet at the start of `bytes`.
fn packet_len(bytes: &[u8]) -> Option<usize> {
    prologue(bytes).map(|prologue| prologue.packet)
}

const fn is_data(prologue: &Prologue) -> bool {
    matches!(prologue.kind, Kind::SignalData | Kind::ExtensionData)
}

/// Recognises VITA-49.
fn recognise(packets: &[&CapturedPacket]) -> Option<Recognised> {
    let parse = |packet: &&CapturedPacket| {
        let prologue = prologue(&packet.head)?;
        (prologue.packet == packet.length).then_some(prologue)
    };
    let parsed: Vec<Option<Prologue>> = packets.iter().map(parse).collect();
    let known: Vec<Prologue> = parsed.iter().copied().flatten().collect();
    let data: Vec<Prologue> = known.iter().copied().filter(is_data).collect();
    let share = percent(known.len(), packets.len());
    let (stream, _) = mode(data.iter().map(|header| header.stream))?;
    let is_chosen = |header: &Prologue| is_data(header) && header.stream == stream;
    let chosen: Vec<Prologue> = data.iter().copied().filter(is_chosen).collect();
    let counts: Vec<u8> = chosen.iter().map(|header| header.count).collect();
    let follows = counts
        .windows(2)
        .filter(|pair| pair[1] == (pair[0] + 1) % COUNTS)
        .count();
    if share < MIN_SHARE || counts.len() < 2 || percent(follows, counts.len() - 1) < 50 {
        return None;
    }
    let example = chosen.first()?;
    let payload = |header: &Prologue| header.packet - header.bytes - header.trailer;
    let (payload, _) = mode(chosen.iter().map(payload))?;
    // Types 4 and 5.
    let is_context = |packet: &CapturedPacket| matches!(packet.head[0] >> 4, 4 | 5);
    let whole = packets.iter().zip(&parsed);
    let context = whole
        .filter(|(packet, header)| header.is_some() && is_context(packet))
        .count();
    let seconds = match example.stamp.reference {
        Seconds::None => "no",
        Seconds::Utc => "UTC",
        Seconds::Gps => "GPS",
        Seconds::Other => "other",
    };
    let fraction = match example.stamp.unit {
        Fraction::None => "none",
        Fraction::Samples => "sample count",
        Fraction::Picoseconds => "picoseconds",
        Fraction::FreeRunning => "free-running count",
    };
    let name = stream.map_or_else(
        || "no stream id".to_owned(),
        |id| format!("stream id {id:#010x}"),
    );
    let streams: BTreeSet<_> = data.iter().map(|header| header.stream).collect();
    let mut ambiguous =
        vec!["the 4-bit count cannot show the loss of exactly 16 packets".to_owned()];
    if streams.len() > 1 {
        ambiguous.push(format!(
            "{} streams in one flow; the counts are those of {name}",
            streams.len()
        ));
    }
    let place = |header: &Option<Prologue>| {
        let header = header.filter(is_chosen)?;
        Some(Place::of(header.count.into()))
    };
    Some(Recognised {
        name: "VITA-49".to_owned(),
        confidence: share,
        why: vec![
            format!(
                "{share} % of the packets have the size in their first word, and the 4-bit count follows"
            ),
            format!(
                "{name}; {} B of header, {payload} B of payload, {} B of trailer",
                example.bytes, example.trailer
            ),
            format!(
                "integer time: {seconds}, fractional time: {fraction}; {context} context packets"
            ),
        ],
        ambiguous,
        numbering: Numbering {
            bits: COUNT_BITS,
            ..Numbering::PLAIN
        },
        places: parsed.iter().map(place).collect(),
        layout: format!("vita49 {} {payload} {}", example.bytes, example.trailer),
        suggestion: Suggestion::format("vita49", keys(payload, stream)),
    })
}
