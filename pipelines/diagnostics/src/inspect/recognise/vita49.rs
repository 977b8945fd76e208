//! VITA-49 (VRT, DIFI): each packet begins with a 32-bit word that states its type, its time stamps and its size.
//!
//! First word, big endian: type (4 bits), class id present (1), trailer present (1 of the next 3), integer and fractional time
//! (2 each), count (4), size in 32-bit words (16).

use super::{Key, Packet, Recognised, Suggestion, be, mode, percent};
use crate::inspect::account::{Numbering, Place};
use crate::inspect::number;
use std::collections::BTreeSet;

/// Number of values of the packet count.
const COUNTS: u64 = 16;

/// The header of one packet. `before` and `trailer` are the number of bytes before and after the payload.
#[derive(Clone, Copy)]
struct Header {
    kind: u8,
    stream: Option<u64>,
    tsi: u8,
    tsf: u8,
    count: u64,
    before: usize,
    trailer: usize,
}

impl Header {
    const fn is_data(&self) -> bool {
        self.kind < 4
    }
}

fn keys(payload: usize, stream: Option<u64>) -> Vec<Key> {
    let mut keys = vec![Key::new(
        format!("payload   = {}", number::size(payload)),
        "",
    )];
    keys.extend(stream.map(|id| Key::new(format!("stream_id = {id:#x}"), "")));
    keys
}

/// Returns the size in bytes of the packet at the start of `bytes`.
pub(in crate::inspect) fn packet_len(bytes: &[u8]) -> Option<usize> {
    let words = usize::try_from(be::<2>(bytes, 2)?).ok()?;
    let header = header(bytes)?;
    (words * 4 > header.before + header.trailer).then_some(words * 4)
}

fn header(bytes: &[u8]) -> Option<Header> {
    let [first, second, _, _] = *bytes.first_chunk()?;
    let (kind, tsi, tsf) = (first >> 4, second >> 6, second >> 4 & 3);
    if kind > 7 {
        return None;
    }
    // Types 0 and 2 have no stream id.
    let has_stream = !matches!(kind, 0 | 2);
    let words = 1
        + usize::from(has_stream)
        + if first & 8 == 0 { 0 } else { 2 }
        + usize::from(tsi != 0)
        + if tsf == 0 { 0 } else { 2 };
    Some(Header {
        kind,
        stream: if has_stream {
            Some(be::<4>(bytes, 4)?)
        } else {
            None
        },
        tsi,
        tsf,
        count: u64::from(second) % COUNTS,
        before: words * 4,
        trailer: if kind < 4 && first & 4 != 0 { 4 } else { 0 },
    })
}

/// Recognises VITA-49.
pub(super) fn recognise(packets: &[&Packet]) -> Option<Recognised> {
    let parse = |packet: &&Packet| {
        let is_whole = packet_len(&packet.head) == Some(packet.length);
        is_whole.then(|| header(&packet.head)).flatten()
    };
    let parsed: Vec<Option<Header>> = packets.iter().map(parse).collect();
    let known: Vec<Header> = parsed.iter().copied().flatten().collect();
    let data: Vec<Header> = known.iter().copied().filter(Header::is_data).collect();
    let share = percent(known.len(), packets.len());
    let (stream, _) = mode(data.iter().map(|header| header.stream))?;
    let counts: Vec<u64> = data
        .iter()
        .filter(|header| header.stream == stream)
        .map(|header| header.count)
        .collect();
    let follows = counts
        .windows(2)
        .filter(|pair| pair[1] == (pair[0] + 1) % COUNTS)
        .count();
    if share < 90 || counts.len() < 2 || percent(follows, counts.len() - 1) < 50 {
        return None;
    }
    let example = data.iter().find(|header| header.stream == stream)?;
    let sizes = packets.iter().zip(&parsed).filter_map(|(packet, header)| {
        let header = header.filter(|header| header.is_data() && header.stream == stream)?;
        packet.length.checked_sub(header.before + header.trailer)
    });
    let (payload, _) = mode(sizes)?;
    let context = known
        .iter()
        .filter(|header| matches!(header.kind, 4 | 5))
        .count();
    let seconds = ["no", "UTC", "GPS", "other"][usize::from(example.tsi)];
    let fraction =
        ["none", "sample count", "picoseconds", "free-running count"][usize::from(example.tsf)];
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
    let place = |header: &Option<Header>| {
        let header = header.filter(|header| header.is_data() && header.stream == stream)?;
        Some(Place {
            frame: header.count,
            packet: 0,
            part: 0,
        })
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
                example.before, example.trailer
            ),
            format!(
                "integer time: {seconds}, fractional time: {fraction}; {context} context packets"
            ),
        ],
        ambiguous,
        numbering: Numbering {
            bits: 4,
            step: 1,
            packets: 1,
            range: None,
        },
        places: parsed.iter().map(place).collect(),
        layout: format!("vita49 {} {payload} {}", example.before, example.trailer),
        suggestion: Suggestion::Format {
            kind: "vita49",
            keys: keys(payload, stream),
            samples: None,
            has_parts: false,
        },
    })
}
