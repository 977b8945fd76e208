//! Packets with a header of fixed size that contains numbers: their places, and the keys of the format `raw`.

use super::field::FieldAt;
use super::{Key, Packet, Suggestion};
use crate::inspect::account::{Numbering, Place};
use crate::inspect::number;
use crate::inspect::section::WIDTH;

/// The numbers of a packet in its header.
#[derive(Clone, Debug)]
pub(super) enum Numbers {
    /// One number, which grows by `step` from packet to packet.
    Sequence { field: FieldAt, step: u64 },
    /// A number for each frame, and one for each packet of the frame.
    Packets {
        frame: FieldAt,
        /// Increment of the frame number.
        step: u64,
        packet: FieldAt,
        /// Number of the first packet of a frame.
        first: u64,
        /// Number of packets in a frame.
        packets: u64,
    },
    /// A number for each frame, and the offset of the payload in the frame.
    Position {
        frame: FieldAt,
        /// Increment of the frame number.
        step: u64,
        position: FieldAt,
        /// Number of packets in a frame.
        packets: u64,
    },
}

/// Packets with a header of fixed size.
#[derive(Clone, Debug)]
pub(super) struct Fixed {
    /// Sizes in bytes.
    pub(super) header: usize,
    pub(super) payload: usize,
    /// Payload of the last packet of a frame, if it is known; at most `payload`.
    pub(super) last: Option<usize>,
    pub(super) numbers: Numbers,
    /// The lowest and the highest number of a packet or frame, if these numbers do not use all their bits.
    pub(super) range: Option<(u64, u64)>,
    /// Keys of the table `samples`, if the format defines them.
    pub(super) samples: Option<String>,
    /// Lines at the end of the table, such as a timestamp.
    pub(super) more: Vec<Key>,
}

impl Fixed {
    pub(super) fn numbering(&self) -> Numbering {
        let (field, step) = match &self.numbers {
            Numbers::Sequence { field, step } => (field, *step),
            Numbers::Packets { frame, step, .. } | Numbers::Position { frame, step, .. } => {
                (frame, *step)
            }
        };
        Numbering {
            bits: field.bits(),
            step,
            packets: self.packets(),
            range: self.range,
        }
    }

    /// Returns the number of packets of a frame, or of a part of it.
    pub(super) const fn packets(&self) -> u64 {
        match &self.numbers {
            Numbers::Sequence { .. } => 1,
            Numbers::Packets { packets, .. } | Numbers::Position { packets, .. } => *packets,
        }
    }

    /// Returns the size of the packet at `place` in bytes.
    pub(super) fn length(&self, place: &Place) -> usize {
        let is_last = place.packet + 1 == self.packets();
        let last = self.last.filter(|_| is_last);
        self.header + last.unwrap_or(self.payload)
    }

    /// Returns the place of a packet that has the size of its place.
    pub(super) fn whole_place(&self, packet: &Packet) -> Option<Place> {
        self.place(packet)
            .filter(|place| self.length(place) == packet.length)
    }

    /// Returns the place of a packet with samples.
    pub(super) fn place(&self, packet: &Packet) -> Option<Place> {
        let head = &packet.head;
        let (frame, packet) = match &self.numbers {
            Numbers::Sequence { field, .. } => (field.read(head)?, 0),
            Numbers::Packets {
                frame,
                packet,
                first,
                ..
            } => (frame.read(head)?, packet.read(head)?.checked_sub(*first)?),
            Numbers::Position {
                frame, position, ..
            } => (
                frame.read(head)?,
                position.read(head)? / self.payload.max(1) as u64,
            ),
        };
        Some(Place {
            frame,
            packet,
            part: 0,
        })
    }

    /// Returns the keys of the format `raw`.
    pub(super) fn suggestion(&self) -> Suggestion {
        let line = |text: String| Key::new(text, "");
        let step = |step: u64| match step {
            1 => String::new(),
            step => format!(", step = {step}"),
        };
        let mut keys = vec![
            line(format!("header   = {}", self.header)),
            line(format!("payload  = {}", number::size(self.payload))),
        ];
        let range = self
            .range
            .map(|(first, last)| format!(", range = [{first}, {last}]"));
        let range = range.unwrap_or_default();
        let frame = |frame: &FieldAt, by: u64| {
            line(format!(
                "frame    = {{ {}{}{range} }}",
                frame.keys(),
                step(by)
            ))
        };
        match &self.numbers {
            Numbers::Sequence { field, step: by } => {
                let table = format!("{}{}{range}", field.keys(), step(*by));
                keys.push(line(table_of("sequence", &table)));
            }
            Numbers::Packets {
                frame: field,
                step: by,
                packet,
                first,
                packets,
            } => {
                let first = match first {
                    0 => String::new(),
                    first => format!(", first = {first}"),
                };
                keys.push(frame(field, *by));
                keys.push(line(format!("packet   = {{ {}{first} }}", packet.keys())));
                keys.push(line(format!("packets  = {packets}")));
            }
            Numbers::Position {
                frame: field,
                step: by,
                position,
                packets,
            } => {
                keys.push(frame(field, *by));
                keys.push(line(format!("position = {{ {} }}", position.keys())));
                keys.push(line(format!("packets  = {packets}")));
            }
        }
        if let Some(last) = self.last.filter(|last| *last != self.payload) {
            keys.push(Key::new(
                format!("last     = {last}"),
                "the last packet of a frame is shorter:",
            ));
        }
        keys.extend(self.more.iter().cloned());
        Suggestion::Format {
            kind: "raw",
            keys,
            samples: self.samples.clone(),
            has_parts: !matches!(self.numbers, Numbers::Sequence { .. }),
        }
    }
}

/// Returns the table `name` with `keys`, in several lines if one would be too long for a terminal.
fn table_of(name: &str, keys: &str) -> String {
    let line = format!("{name} = {{ {keys} }}");
    if line.chars().count() <= WIDTH {
        return line;
    }
    // A comma within a list does not end a key.
    let mut lines: Vec<String> = Vec::new();
    for part in keys.split(", ") {
        match lines.last_mut() {
            Some(list) if !part.contains('=') => *list = format!("{list}, {part}"),
            _ => lines.push(format!("{name}.{part}")),
        }
    }
    lines.join("\n")
}
