//! Packets with a header of fixed size that contains numbers: their places, and the keys of the format `raw`.

use super::field::FieldAt;
use super::{Key, Packet, Suggestion};
use crate::inspect::account::{Numbering, Place};
use crate::inspect::number;

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
    /// Payload of the last packet of a frame, if it is known.
    pub(super) last: Option<usize>,
    pub(super) numbers: Numbers,
    /// The lowest and the highest number of a frame, if these numbers do not use all their bits.
    pub(super) range: Option<(u64, u64)>,
    /// Keys of the table `samples`, if the format defines them.
    pub(super) samples: Option<String>,
    /// Lines at the end of the table, such as a timestamp.
    pub(super) more: Vec<Key>,
}

impl Fixed {
    pub(super) fn numbering(&self) -> Numbering {
        let (field, step, packets) = match &self.numbers {
            Numbers::Sequence { field, step } => (field, *step, 1),
            Numbers::Packets {
                frame,
                step,
                packets,
                ..
            }
            | Numbers::Position {
                frame,
                step,
                packets,
                ..
            } => (frame, *step, *packets),
        };
        Numbering {
            bits: field.bits(),
            step,
            packets,
            range: self.range,
        }
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
                keys.push(line(format!(
                    "sequence = {{ {}{} }}",
                    field.keys(),
                    step(*by)
                )));
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
