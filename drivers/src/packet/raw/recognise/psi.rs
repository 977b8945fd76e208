//! Packets of PSI's detectors (EIGER, JUNGFRAU, GOTTHARD, MOENCH, MYTHEN): 48 bytes of header, little endian.
//!
//! Source: the detector header of slsDetectorPackage: frame number (8 bytes), exposure (4), packet number (4), bunch id (8),
//! timestamp (8), module id, row, column (2 each), reserved (8), detector type (1), header version (1).

use super::fixed::{Fixed, Numbers};
use crate::packet::field::FieldKeys;
use crate::packet::recognise::{
    CapturedPacket, Key, MIN_SHARE, Place, Recognised, conflicts, mode, percent,
};
use std::collections::{BTreeMap, BTreeSet};

const HEADER: usize = 48;
const FRAME: FieldKeys = FieldKeys::little(0, 8);
const PACKET: FieldKeys = FieldKeys::little(12, 4);
const ROW: FieldKeys = FieldKeys::little(34, 2);
const COLUMN: FieldKeys = FieldKeys::little(36, 2);
/// Row and column as one number.
const ROW_AND_COLUMN: FieldKeys = FieldKeys::little(34, 4);
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

/// Minimum share in percent of the packets of the largest module that a module has. Fewer packets are damaged ones.
const MIN_MODULE: usize = 10;

/// Maximum share in percent of packets whose numbers contradict those before them.
const MAX_CONFLICTS: u64 = 5;

/// The numbers of a packet.
#[derive(Clone, Copy, Debug)]
struct Numbered {
    frame: u64,
    packet: u64,
    /// Row and column of the module.
    module: Module,
    /// Detector type and header version.
    kind: (u8, u8),
}

/// Row and column of a module.
type Module = (u64, u64);

fn numbered(packet: &CapturedPacket) -> Option<Numbered> {
    let head = &packet.head;
    let kind = (*head.get(DETECTOR)?, *head.get(VERSION)?);
    (kind.0 <= 7 && (1..=9).contains(&kind.1)).then_some(Numbered {
        frame: FRAME.read(head)?,
        packet: PACKET.read(head)?,
        module: (ROW.read(head)?, COLUMN.read(head)?),
        kind,
    })
}

/// Recognises packets of PSI's detectors.
pub(super) fn recognise(packets: &[&CapturedPacket]) -> Option<Recognised> {
    let (length, count) = mode(packets.iter().map(|packet| packet.length))?;
    let payload = length.checked_sub(HEADER).filter(|payload| *payload > 0)?;
    let read = packets.iter().filter(|packet| packet.length == length);
    let read: Vec<Numbered> = read.filter_map(|packet| numbered(packet)).collect();
    if percent(read.len(), packets.len()) < MIN_SHARE || percent(count, packets.len()) < MIN_SHARE {
        return None;
    }
    let last = read.iter().map(|numbers| numbers.packet).max()?;
    let first = first(&read);
    let confidence = orderly(&read);
    if confidence < 50 || last >= MAX_PACKETS {
        return None;
    }
    let frames: Vec<u64> = read.iter().map(|numbers| numbers.frame).collect();
    let moved = frames.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    let step = mode(moved.filter(|step| (1..1 << 32).contains(step))).map_or(1, |(step, _)| step);
    let ((detector, version), _) = mode(read.iter().map(|numbers| numbers.kind))?;
    let name = usize::from(detector)
        .checked_sub(1)
        .and_then(|index| DETECTORS.get(index))
        .copied()
        .unwrap_or("generic");
    let modules = modules(&read);
    let fixed = Fixed {
        header: HEADER,
        payload,
        last: None,
        numbers: Numbers::Packets {
            frame: FRAME.stepping(step),
            packet: FieldKeys { first, ..PACKET },
            packets: last + 1 - first,
        },
        samples: Some("type = \"uint16\"".to_owned()),
        more: part(&modules).into_iter().collect(),
    };
    let place = |packet: &&CapturedPacket| {
        let module = numbered(packet)?.module;
        let part = modules.iter().position(|known| *known == module)?;
        let place = fixed.whole_place(packet)?;
        Some(Place { part, ..place })
    };
    let places: Vec<_> = packets.iter().map(place).collect();
    let conflicts = conflicts(places.iter().copied(), &fixed.numbering());
    if conflicts * 100 > packets.len() as u64 * MAX_CONFLICTS {
        return None;
    }
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
        places,
        layout: format!("psi {length} {first} {last}"),
        // The parts of a source with several modules are already known.
        suggestion: fixed.suggestion(modules.len() == 1),
    })
}

/// Returns the share in percent of packets that follow the packet before them of the same module. The packet number grows within a
/// frame, and the frame number between frames.
fn orderly(read: &[Numbered]) -> u8 {
    let mut before: BTreeMap<Module, &Numbered> = BTreeMap::new();
    let (mut pairs, mut orderly) = (0, 0);
    for next in read {
        let Some(last) = before.insert(next.module, next) else {
            continue;
        };
        let is_within = next.frame == last.frame && next.packet == last.packet + 1;
        let is_between = next.frame > last.frame
            && next.frame - last.frame < 1 << 20
            && next.packet <= last.packet;
        pairs += 1;
        orderly += usize::from(is_within || is_between);
    }
    percent(orderly, pairs)
}

/// Returns the modules by row and column.
fn modules(read: &[Numbered]) -> Vec<Module> {
    let mut counts: BTreeMap<Module, usize> = BTreeMap::new();
    for numbers in read {
        *counts.entry(numbers.module).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(0);
    let is_real =
        |(module, count): (Module, usize)| (count * 100 >= most * MIN_MODULE).then_some(module);
    counts.into_iter().filter_map(is_real).collect()
}

/// Returns the key that distinguishes the modules: by row, by column, or by both; `None` for one module.
fn part(modules: &[Module]) -> Option<Key> {
    if modules.len() < 2 {
        return None;
    }
    let rows: BTreeSet<u64> = modules.iter().map(|(row, _)| *row).collect();
    let columns: BTreeSet<u64> = modules.iter().map(|(_, column)| *column).collect();
    let table = |field: &FieldKeys, values: &BTreeSet<u64>| {
        let values: Vec<String> = values.iter().map(u64::to_string).collect();
        let lines: Vec<_> = values.chunks(8).map(|line| line.join(", ")).collect();
        // Lines of an array can be broken inside of a table. Long ones do not fit into a terminal.
        let values = match &lines[..] {
            [line] if line.len() < 8 => line.clone(),
            lines => format!("\n  {},\n", lines.join(",\n  ")),
        };
        format!("{{ {field}, values = [{values}] }}")
    };
    let (line, by) = match (rows.len(), columns.len()) {
        (count, _) if count == modules.len() => (table(&ROW, &rows), "row"),
        (_, count) if count == modules.len() => (table(&COLUMN, &columns), "column"),
        (rows_count, columns_count) if rows_count * columns_count == modules.len() => {
            let (rows, columns) = (table(&ROW, &rows), table(&COLUMN, &columns));
            (format!("[\n  {rows},\n  {columns},\n]"), "row and column")
        }
        // Not every row has every column.
        _ => {
            let places = modules.iter().map(|(row, column)| row | column << 16);
            (
                table(&ROW_AND_COLUMN, &places.collect()),
                "row + 65536 * column",
            )
        }
    };
    Some(Key::new(
        format!("part     = {line}"),
        format!("the modules of the detector are the parts of a frame, by {by}:"),
    ))
}

/// Returns the number of the first packet of a frame: 0, unless many frames begin with the same later packet and none with an
/// earlier one.
fn first(read: &[Numbered]) -> u64 {
    let mut lowest: BTreeMap<u64, u64> = BTreeMap::new();
    for Numbered { frame, packet, .. } in read.iter().copied() {
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
fn list(modules: &[Module]) -> String {
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
    use crate::packet::recognise::{Suggestion, account};

    /// Returns packet `packet` of frame `frame` of a JUNGFRAU module.
    fn packet(frame: u64, packet: u32, (row, column): (u16, u16)) -> CapturedPacket {
        let mut head = frame.to_le_bytes().to_vec();
        head.extend(1000_u32.to_le_bytes());
        head.extend(packet.to_le_bytes());
        head.extend([0; 18]);
        head.extend([row.to_le_bytes(), column.to_le_bytes()].concat());
        head.extend([0; 8]);
        head.extend([3, 2, packet.to_le_bytes()[0]]);
        CapturedPacket {
            source: ([10, 0, 0, 1], 9).into(),
            ns: 0,
            length: 8240,
            head: head.into(),
        }
    }

    /// Returns 12 frames of 16 packets of each of the `modules`, which take turns.
    fn interleaved(modules: &[(u16, u16)]) -> Vec<CapturedPacket> {
        let frames = (0..12).flat_map(|frame| (0..16).map(move |number| (frame, number)));
        let all = frames.flat_map(|(frame, number)| {
            modules
                .iter()
                .map(move |module| packet(frame, number, *module))
        });
        all.collect()
    }

    fn part_line(modules: &[(u16, u16)]) -> Option<String> {
        let packets = interleaved(modules);
        let found = recognise(&packets.iter().collect::<Vec<_>>())?;
        let counts = account(found.places.iter().copied(), &found.numbering);
        assert_eq!((counts.lost, counts.duplicates), (0, 0), "{modules:?}");
        let Suggestion::Format { keys, .. } = found.suggestion else {
            return None;
        };
        let mut lines = keys.into_iter().map(|key| key.line);
        lines.find(|line| line.starts_with("part"))
    }

    #[test]
    fn interleaved_modules_are_parts_by_row_and_column() {
        let row = "offset = 34, bytes = 2, endian = \"little\"";
        let column = "offset = 36, bytes = 2, endian = \"little\"";
        assert_eq!(
            part_line(&[(0, 0), (1, 0)]),
            Some(format!("part     = {{ {row}, values = [0, 1] }}"))
        );
        assert_eq!(
            part_line(&[(1, 0), (1, 3)]),
            Some(format!("part     = {{ {column}, values = [0, 3] }}"))
        );
        let grid = part_line(&[(0, 0), (0, 1), (1, 0), (1, 1)]);
        let tables = format!(
            "part     = [\n  {{ {row}, values = [0, 1] }},\n  {{ {column}, values = [0, 1] }},\n]"
        );
        assert_eq!(grid, Some(tables));
        let corner = part_line(&[(0, 0), (0, 1), (1, 0)]);
        let both = "offset = 34, bytes = 4, endian = \"little\"";
        assert_eq!(
            corner,
            Some(format!(
                "part     = {{ {both}, values = [\n  0, 1, 65536,\n] }}"
            ))
        );
        assert_eq!(part_line(&[(4, 5)]), None);
    }

    #[test]
    fn modules_at_the_same_place_are_not_one_stream() {
        let packets = interleaved(&[(0, 0), (0, 0)]);
        assert!(recognise(&packets.iter().collect::<Vec<_>>()).is_none());
    }

    #[test]
    fn modules_are_listed_in_words() {
        assert_eq!(list(&[(0, 0)]), "row 0 column 0");
        let many = list(&(0..10).map(|row| (row, 1)).collect::<Vec<_>>());
        assert!(
            many.starts_with("row 0 column 1, row 1 column 1, "),
            "{many}"
        );
        assert!(many.ends_with(", and 2 more"), "{many}");
    }
}
