//! Frame numbers: each packet states its frame, its place in the frame, and the part of the frame.

use super::Field;
use crate::packet::Reject;
use crate::packet::field::FieldKeys;
use crate::packet::parts::{Parts, Position};
use daq_core::reorder::PacketId;

/// The place of a packet in its part.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// A part has one packet.
    Only,
    /// A number that counts the packets of a part from `first`, with increment `step`.
    Number {
        /// The number.
        field: Field,
        /// The number of the first packet.
        first: u64,
        /// Increment from one packet to the next, at least 1.
        step: u64,
    },
    /// The offset of the payload in its part, in units of `unit` bytes.
    Offset {
        /// The offset.
        field: Field,
        /// Number of bytes, at least 1.
        unit: u64,
    },
    /// The remainder of the sequence number.
    Remainder,
}

/// How packets form frames that have numbers of their own.
#[derive(Clone, Debug)]
pub(super) struct FrameNumbers {
    pub(super) place: Place,
    /// Number of packets of a part, at least 1.
    pub(super) packets: u32,
    pub(super) parts: Parts,
    /// Number of payload bytes of every packet of a part except the last.
    pub(super) payload: usize,
    /// Number of payload bytes of the last packet of a part, at most `payload`.
    pub(super) last: usize,
}

impl Place {
    /// Returns the place that the keys `packet` and `position` describe.
    pub(super) fn of(packet: Option<&FieldKeys>, position: Option<&FieldKeys>) -> Self {
        match (packet, position) {
            (Some(number), _) => Self::Number {
                field: number.field(),
                first: number.first,
                step: number.step.max(1),
            },
            (None, Some(offset)) => Self::Offset {
                field: offset.field(),
                unit: offset.step.max(1),
            },
            (None, None) => Self::Only,
        }
    }
}

impl FrameNumbers {
    /// Returns the number of payload bytes of a part.
    pub(super) const fn part_bytes(&self) -> usize {
        (self.packets as usize - 1) * self.payload + self.last
    }

    /// Returns the number of payload bytes of packet `sub` of a frame.
    #[inline]
    pub(super) const fn payload_of(&self, sub: u32) -> usize {
        if self.last == self.payload || sub % self.packets + 1 < self.packets {
            self.payload
        } else {
            self.last
        }
    }

    /// Returns the frame and the place of the packet with this header. `number` is the number of the frame, or of the packet
    /// if its remainder is the place.
    #[inline]
    pub(super) fn id(&self, number: u64, header: &[u8]) -> Result<PacketId, Reject> {
        let (unit, packet) = match &self.place {
            Place::Only => (number, 0),
            Place::Number { field, first, step } => {
                let value = read(field, header)?;
                let after = value.wrapping_sub(*first);
                let is_whole = *step == 1 || after.is_multiple_of(*step);
                let packet = after / *step;
                if !is_whole || packet >= self.packets.into() {
                    return Err(Reject::Number {
                        name: "packet_number",
                        key: "packet",
                        value,
                        why: "which is not the number of a packet: check `packets`, `packet.first` and `packet.step`",
                    });
                }
                (number, packet)
            }
            Place::Offset { field, unit } => {
                let value = read(field, header)?;
                let (offset, payload) = (value.saturating_mul(*unit), self.payload as u64);
                let packet = offset / payload;
                if !offset.is_multiple_of(payload) || packet >= self.packets.into() {
                    return Err(Reject::Number {
                        name: "misplaced",
                        key: "position",
                        value,
                        why: "where no packet begins: check `packets`, `payload` and `position.step`",
                    });
                }
                (number, packet)
            }
            Place::Remainder => {
                let packets = u64::from(self.packets);
                (number / packets, number % packets)
            }
        };
        let part = self.parts.part(|position| match position {
            Position::Field(field) => field.read(header),
            Position::Item(_) => None,
        })?;
        let part = part.ok_or(TOO_SHORT)?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the packet is below `packets`, which is a u32"
        )]
        let sub = part * self.packets + packet as u32;
        Ok(PacketId { unit, sub })
    }

    /// Returns the number that packet `sub` of frame `unit` contains.
    pub(super) fn number(&self, unit: u64, sub: u32) -> u64 {
        match self.place {
            Place::Remainder => unit * u64::from(self.packets) + u64::from(sub % self.packets),
            _ => unit,
        }
    }

    /// Writes the place of packet `sub` of a frame into `header`.
    pub(super) fn write(&self, sub: u32, header: &mut [u8]) {
        let (part, packet) = (sub / self.packets, u64::from(sub % self.packets));
        match &self.place {
            Place::Only | Place::Remainder => {}
            Place::Number { field, first, step } => {
                field.write(header, first.wrapping_add(packet.wrapping_mul(*step)));
            }
            Place::Offset { field, unit } => {
                field.write(header, packet * self.payload as u64 / unit);
            }
        }
        self.parts.write(part, |position, value| {
            if let Position::Field(field) = position {
                field.write(header, value);
            }
        });
    }
}

/// Never returned for whole headers, because the fields are inside the header.
const TOO_SHORT: Reject = Reject::Other {
    name: "short",
    message: "the packet ends before the number of its part",
};

#[inline]
fn read(field: &Field, header: &[u8]) -> Result<u64, Reject> {
    field.read(header).ok_or(Reject::Short {
        need: field.end(),
        got: header.len(),
    })
}
