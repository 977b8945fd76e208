//! What recognisers of packet formats and sources have in common, see [`daq_core::recognise`].
//!
//! The recogniser of a format is in the folder of its parser. [`by_parser`] is enough for a format whose keys follow from a few
//! bytes of its packets.

mod account;
mod number;
mod repeats;

pub use account::{Account, account, conflicts};
pub use daq_core::recognise::{
    CapturedPacket, Key, Numbering, Place, Recognised, Recogniser, Suggestion,
};
pub use number::{scaled, size, tick_rate};
pub use repeats::recognise as without_repeats;

use super::{PacketFormat, Parsed, Split};
use daq_core::reorder::PacketId;

/// Minimum number of packets from which a format is recognised.
pub const MIN_PACKETS: usize = 4;
/// Maximum number of characters in a line of a terminal or a suggested configuration.
pub const WIDTH: usize = 79;
/// Minimum share in percent of packets that must have the format.
pub(crate) const MIN_SHARE: u8 = 90;
/// Maximum share in percent of lost packets: a number with more holes does not count packets.
const MAX_LOST: u64 = 90;
/// Maximum share in percent of packets whose numbers contradict those before them.
const MAX_CONFLICTS: u64 = 5;

/// Returns the most probable format of `packets`, and the recogniser that found it. Of several with the same confidence, the
/// last recogniser is the result, so that a format of another crate takes precedence over a built-in one.
pub fn best(
    recognisers: &[Recogniser],
    packets: &[&CapturedPacket],
) -> Option<(Recogniser, Recognised)> {
    if packets.len() < MIN_PACKETS {
        return None;
    }
    let found = recognisers
        .iter()
        .filter_map(|one| Some((*one, without_repeats(one, packets)?)));
    found.max_by_key(|(_, found)| found.confidence)
}

/// Recognises the packets that `parser`, the format `kind` with `keys`, accepts, if their numbers follow each other. `name` is
/// the name of the format in words.
pub fn by_parser(
    name: &str,
    kind: &'static str,
    mut parser: impl PacketFormat,
    keys: Vec<Key>,
    packets: &[&CapturedPacket],
) -> Option<Recognised> {
    let facts = parser.facts();
    let numbering = Numbering {
        bits: facts.numbering.width,
        step: facts.numbering.step,
        packets: facts.layout.count().into(),
        range: None,
    };
    let mut accepted = 0;
    let mut places = Vec::with_capacity(packets.len());
    for packet in packets {
        let rest = packet.length.saturating_sub(packet.head.len());
        let Ok(Split::Whole(parsed)) = parser.parse_split(&packet.head, rest) else {
            places.push(None);
            continue;
        };
        accepted += 1;
        places.push(match parsed {
            Parsed::Data(packet) | Parsed::Sized { packet, .. } => {
                Some(place(packet.id(), numbering.packets))
            }
            Parsed::Fragment(_) | Parsed::Control(_) => None,
        });
    }
    let confidence = percent(accepted, packets.len());
    let is_known = confidence >= MIN_SHARE && is_numbered(&places, &numbering);
    let lines: Vec<&str> = keys.iter().map(|key| key.line.as_str()).collect();
    let layout = format!("{kind} {}", lines.join(" "));
    is_known.then(|| Recognised {
        name: name.to_owned(),
        confidence,
        why: vec![format!(
            "the parser of the format `{kind}` accepts {confidence} % of the packets, and their numbers follow each other"
        )],
        ambiguous: Vec::new(),
        numbering,
        places,
        layout,
        suggestion: Suggestion::format(kind, keys),
    })
}

/// Returns the place of a packet of a unit whose parts have `packets` packets.
fn place(id: PacketId, packets: u64) -> Place {
    let (sub, packets) = (u64::from(id.sub), packets.max(1));
    Place {
        frame: id.unit,
        packet: sub % packets,
        part: usize::try_from(sub / packets).unwrap_or(usize::MAX),
    }
}

/// Returns whether the packets with `places` are numbered one after the other, except for lost and repeated ones.
pub(crate) fn is_numbered(places: &[Option<Place>], numbering: &Numbering) -> bool {
    let placed = places.iter().flatten().count() as u64;
    let counts = account(places.iter().copied(), numbering);
    let conflicts = conflicts(places.iter().copied(), numbering);
    placed > 0
        && counts.lost * 100 <= counts.expected * MAX_LOST
        && conflicts * 100 <= placed * MAX_CONFLICTS
}

/// Returns `part` of `whole` in percent, rounded down.
pub fn percent(part: usize, whole: usize) -> u8 {
    u8::try_from(part * 100 / whole.max(1)).unwrap_or(100)
}

/// Returns the most frequent value and how often it occurs. Of several, the smallest.
pub fn mode<T: Ord + Copy>(values: impl IntoIterator<Item = T>) -> Option<(T, usize)> {
    let mut sorted: Vec<T> = values.into_iter().collect();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|a, b| a == b);
    runs.map(|run| (run[0], run.len()))
        .rev()
        .max_by_key(|(_, count)| *count)
}

/// Returns the big-endian number in the `N` bytes at `at`; `None` if the packet is shorter. `N` is at most 8.
pub fn be<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes: &[u8; N] = bytes.get(at..)?.first_chunk()?;
    Some(
        bytes
            .iter()
            .fold(0, |value, byte| (value << 8) | u64::from(*byte)),
    )
}

/// Divides `text` into lines of at most `width` characters, unless a word is longer.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SOURCES;
    use crate::packet::FORMATS;
    use daq_core::entry::Registry;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// First bytes of packets that recognisers examine further.
    const STARTS: [&[u8]; 7] = [
        &[],
        &[0x53, 4, 3, 5, 0, 0, 0, 2, 0x80],
        &[0x18, 0x60, 0, 12],
        &[0, 0, 0, 1, 3, 0, 0, 1],
        &[0x10, 0, 0, 1, 0, 0, 0],
        b"LB\x02\x01",
        &[0x42, 1, 0, 0x80, 0, 4],
    ];

    proptest! {
        #[test]
        fn hostile_packets_do_not_panic(
            start in 0..STARTS.len(),
            size in 0..100_usize,
            packets in vec((0..1000_u64, vec(any::<u8>(), 0..100)), 0..24),
        ) {
            let packets: Vec<CapturedPacket> = packets
                .into_iter()
                .map(|(ns, bytes)| {
                    let bytes = [STARTS[start], &bytes].concat();
                    // Many recognisers need packets of one size.
                    let head: Box<[u8]> = bytes.iter().copied().chain(std::iter::repeat(0)).take(size).collect();
                    CapturedPacket { source: ([10, 0, 0, 1], 9).into(), ns, length: size, head }
                })
                .collect();
            let packets: Vec<&CapturedPacket> = packets.iter().collect();
            let built_in = Registry::default().with_all(SOURCES).with_all(FORMATS);
            for Recogniser { recognise, .. } in built_in.recognisers() {
                if let Some(found) = (!packets.is_empty()).then(|| recognise(&packets)).flatten() {
                    prop_assert_eq!(found.places.len(), packets.len());
                    let counts = account(found.places.iter().copied(), &found.numbering);
                    prop_assert!(counts.lost <= counts.expected);
                }
            }
        }
    }

    #[test]
    fn mode_is_the_most_frequent_value() {
        assert_eq!(mode([3, 1, 2, 3, 1, 3]), Some((3, 3)));
        assert_eq!(mode([2, 1]), Some((1, 1)));
        assert_eq!(mode::<u8>([]), None);
    }
}
