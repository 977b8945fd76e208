//! Recognises packet formats. Each format is one file with a function, and one row in [`RECOGNISERS`].

mod e2sar;
mod field;
mod fixed;
mod gvcp;
mod gvsp;
mod header;
mod headers;
mod psi;
pub(super) mod repeats;
mod seconds;
pub(super) mod spead;
mod vdif;
pub(super) mod vita49;

use super::account::{Numbering, Place};
use super::flow::Packet;

/// Minimum number of packets from which a format is recognised.
pub(super) const MIN_PACKETS: usize = 4;

/// A key of the format, and the reason for its value.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// The reason, printed as a comment above the line; empty for a value that needs no reason.
    pub(super) why: String,
    /// The line of the table, such as `header = 16`; empty for a note.
    pub(super) line: String,
}

impl Key {
    pub(super) fn new(line: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            line: line.into(),
        }
    }

    /// Returns a comment without a key.
    pub(super) fn note(text: impl Into<String>) -> Self {
        Self::new("", text)
    }
}

/// How a source can receive the packets.
#[derive(Clone, Debug)]
pub(super) enum Suggestion {
    /// With the packet format `kind`.
    Format {
        /// The value of `format.kind`.
        kind: &'static str,
        /// The other keys of the format.
        keys: Vec<Key>,
        /// The keys of the table `samples`, if the format defines them.
        samples: Option<String>,
        /// Whether a frame can consist of parts, such as detector modules.
        has_parts: bool,
    },
    /// Not at all, for this reason.
    None(String),
}

/// What a function of [`RECOGNISERS`] found.
#[derive(Clone, Debug)]
pub(super) struct Recognised {
    /// The name of the format.
    pub(super) name: String,
    /// How well the packets match, in percent.
    pub(super) confidence: u8,
    /// The observations that led to the result.
    pub(super) why: Vec<String>,
    /// What the packets do not decide, and the alternatives.
    pub(super) ambiguous: Vec<String>,
    pub(super) numbering: Numbering,
    /// The place of each packet; `None` for packets without samples.
    pub(super) places: Vec<Option<Place>>,
    /// Flows with equal layouts can belong to one source.
    pub(super) layout: String,
    pub(super) suggestion: Suggestion,
}

/// Examines the packets of one flow, or of several flows in the order of arrival. Returns `None` for another format.
pub(super) type Recogniser = fn(&[&Packet]) -> Option<Recognised>;

/// All formats. Of several with the same confidence, the first is the result.
pub(super) const RECOGNISERS: &[Recogniser] = &[
    spead::recognise,
    psi::recognise,
    gvsp::recognise,
    gvcp::recognise,
    e2sar::recognise,
    vita49::recognise,
    vdif::recognise,
    header::recognise,
];

/// Returns the most probable format of `packets`, and the function that recognised it.
pub(super) fn best(packets: &[&Packet]) -> Option<(Recogniser, Recognised)> {
    if packets.len() < MIN_PACKETS {
        return None;
    }
    let found = RECOGNISERS
        .iter()
        .filter_map(|recognise| Some((*recognise, repeats::recognise(*recognise, packets)?)));
    // `max_by_key` returns the last maximum.
    found.rev().max_by_key(|(_, found)| found.confidence)
}

/// Returns `part` of `whole` in percent, rounded down.
pub(super) fn percent(part: usize, whole: usize) -> u8 {
    u8::try_from(part * 100 / whole.max(1)).unwrap_or(100)
}

/// Returns the most frequent value and how often it occurs. Of several, the smallest.
pub(super) fn mode<T: Ord + Copy>(values: impl IntoIterator<Item = T>) -> Option<(T, usize)> {
    let mut sorted: Vec<T> = values.into_iter().collect();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|a, b| a == b);
    runs.map(|run| (run[0], run.len()))
        .rev()
        .max_by_key(|(_, count)| *count)
}

/// Returns the big-endian number in the `N` bytes at `at`; `None` if the packet is shorter. `N` is at most 8.
pub(super) fn be<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes: &[u8; N] = bytes.get(at..)?.first_chunk()?;
    Some(
        bytes
            .iter()
            .fold(0, |value, byte| (value << 8) | u64::from(*byte)),
    )
}

/// Returns the little-endian number in the `N` bytes at `at`; `None` if the packet is shorter. `N` is at most 8.
pub(super) fn le<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes: &[u8; N] = bytes.get(at..)?.first_chunk()?;
    let reversed = bytes.iter().rev();
    Some(reversed.fold(0, |value, byte| (value << 8) | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::super::account::account;
    use super::*;
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
            let packets: Vec<Packet> = packets
                .into_iter()
                .map(|(ns, bytes)| {
                    let bytes = [STARTS[start], &bytes].concat();
                    // Many recognisers need packets of one size.
                    let head: Box<[u8]> = bytes.iter().copied().chain(std::iter::repeat(0)).take(size).collect();
                    Packet { source: ([10, 0, 0, 1], 9).into(), ns, length: size, head }
                })
                .collect();
            let packets: Vec<&Packet> = packets.iter().collect();
            for recognise in RECOGNISERS {
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
