//! Packets with a header of fixed size that contains numbers: their places, and the keys of the format `raw`.

use crate::packet::field::FieldKeys;
use crate::packet::recognise::{CapturedPacket, Key, Numbering, Place, Suggestion, WIDTH, size};

/// The numbers of a packet in its header.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Numbers {
    /// One number, which grows from packet to packet.
    Sequence(FieldKeys),
    /// A number for each frame, and one for each packet of the frame.
    Packets {
        frame: FieldKeys,
        packet: FieldKeys,
        /// Number of packets in a frame.
        packets: u64,
    },
    /// A number for each frame, and the offset of the payload in the frame.
    Position {
        frame: FieldKeys,
        position: FieldKeys,
        /// Number of packets in a frame.
        packets: u64,
    },
}

impl Numbers {
    /// Returns the number of the packet, or of its frame.
    const fn unit(&self) -> &FieldKeys {
        match self {
            Self::Sequence(number) => number,
            Self::Packets { frame, .. } | Self::Position { frame, .. } => frame,
        }
    }

    /// Returns the positions of the numbers.
    pub(crate) fn fields(&self) -> Vec<FieldKeys> {
        match self {
            Self::Sequence(number) => vec![*number],
            Self::Packets { frame, packet, .. } => vec![*frame, *packet],
            Self::Position {
                frame, position, ..
            } => vec![*frame, *position],
        }
    }
}

/// Packets with a header of fixed size.
#[derive(Clone, Debug)]
pub(crate) struct Fixed {
    /// Sizes in bytes.
    pub(crate) header: usize,
    pub(crate) payload: usize,
    /// Payload of the last packet of a frame, if it is known; at most `payload`.
    pub(crate) last: Option<usize>,
    pub(crate) numbers: Numbers,
    /// Keys of the table `samples`, if the format defines them.
    pub(crate) samples: Option<String>,
    /// Lines at the end of the table, such as a timestamp.
    pub(crate) more: Vec<Key>,
}

impl Fixed {
    pub(crate) fn numbering(&self) -> Numbering {
        let unit = self.numbers.unit();
        Numbering {
            bits: unit.field().bits(),
            step: unit.step,
            packets: self.packets(),
            range: unit.range.map(|[first, last]| (first, last)),
        }
    }

    /// Returns the number of packets of a frame, or of a part of it.
    pub(crate) const fn packets(&self) -> u64 {
        match &self.numbers {
            Numbers::Sequence(_) => 1,
            Numbers::Packets { packets, .. } | Numbers::Position { packets, .. } => *packets,
        }
    }

    /// Returns the size of the packet at `place` in bytes.
    pub(crate) fn length(&self, place: &Place) -> usize {
        let is_last = place.packet + 1 == self.packets();
        let last = self.last.filter(|_| is_last);
        self.header + last.unwrap_or(self.payload)
    }

    /// Returns the place of a packet that has the size of its place.
    pub(crate) fn whole_place(&self, packet: &CapturedPacket) -> Option<Place> {
        self.place(packet)
            .filter(|place| self.length(place) == packet.length)
    }

    /// Returns the place of a packet with samples.
    pub(crate) fn place(&self, packet: &CapturedPacket) -> Option<Place> {
        let head = &packet.head;
        let (frame, packet) = match &self.numbers {
            Numbers::Sequence(number) => (number.read(head)?, 0),
            Numbers::Packets { frame, packet, .. } => (
                frame.read(head)?,
                packet.read(head)?.checked_sub(packet.first)?,
            ),
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

    /// Returns the keys of the format `raw`. If `has_parts`, several senders may send the parts of numbered frames.
    pub(crate) fn suggestion(&self, has_parts: bool) -> Suggestion {
        let mut keys = vec![
            Key::plain(format!("header   = {}", self.header)),
            Key::plain(format!("payload  = {}", size(self.payload))),
        ];
        let mut table = |name: &str, number: &FieldKeys| {
            keys.push(Key::plain(format!("{name:<8} = {{ {number} }}")));
        };
        match &self.numbers {
            Numbers::Sequence(number) => {
                keys.push(Key::plain(table_of("sequence", &number.to_string())));
            }
            Numbers::Packets { frame, packet, .. } => {
                table("frame", frame);
                table("packet", packet);
            }
            Numbers::Position {
                frame, position, ..
            } => {
                table("frame", frame);
                table("position", position);
            }
        }
        if !matches!(self.numbers, Numbers::Sequence(_)) {
            keys.push(Key::plain(format!("packets  = {}", self.packets())));
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
            has_parts: has_parts && !matches!(self.numbers, Numbers::Sequence(_)),
        }
    }
}

/// Returns the table `name` with `keys`, in several lines if one would be too long for a terminal.
fn table_of(name: &str, keys: &str) -> String {
    let line = format!("{name} = {{ {keys} }}");
    if line.chars().count() <= WIDTH {
        return line;
    }
    dotted(name, keys).join("\n")
}

/// Returns a line for each of the `keys` of the table `name`.
pub(super) fn dotted(name: &str, keys: &str) -> Vec<String> {
    // A comma within a list does not end a key.
    let mut lines: Vec<String> = Vec::new();
    for part in keys.split(", ") {
        match lines.last_mut() {
            Some(list) if !part.contains('=') => *list = format!("{list}, {part}"),
            _ => lines.push(format!("{name}.{part}")),
        }
    }
    lines
}
