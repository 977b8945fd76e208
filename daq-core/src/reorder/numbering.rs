//! Sequence numbers in packets: limited in width, wrapping, with a step.

/// How a stream numbers its packets.
///
/// A packet contains a unit number, which wraps at `2^width` and advances by `step`, and its index in the unit. For a
/// simple packet counter the unit is the packet; for SPEAD it is the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// Number of bits of the unit number, 1 to 64.
    pub width: u32,
    /// Difference between the numbers of consecutive units, at least 1.
    pub step: u64,
    /// Number of packets per unit, at least 1.
    pub packets_per_unit: u32,
}

impl Numbering {
    /// A 64-bit packet counter.
    pub const PLAIN: Self = Self {
        width: 64,
        step: 1,
        packets_per_unit: 1,
    };

    /// Returns the signed distance from unit number `from` to `to`, in the shorter direction around the wrap.
    ///
    /// ```
    /// use daq_core::reorder::Numbering;
    /// let narrow = Numbering { width: 16, ..Numbering::PLAIN };
    /// assert_eq!(narrow.distance(0xffff, 1), 2);
    /// assert_eq!(narrow.distance(1, 0xffff), -2);
    /// ```
    pub const fn distance(&self, from: u64, to: u64) -> i64 {
        let spare = 64 - self.width;
        (to.wrapping_sub(from) << spare).cast_signed() >> spare
    }

    /// Returns the number of packets from the first packet of unit `from` to packet `to`, or `None` if `to` is not a
    /// whole number of steps away or the distance overflows.
    pub(crate) fn packets_between(&self, from: u64, to: PacketId) -> Option<i64> {
        let units = self.distance(from, to.unit);
        let step = i64::try_from(self.step).ok()?;
        if units % step != 0 || to.sub >= self.packets_per_unit {
            return None;
        }
        (units / step)
            .checked_mul(i64::from(self.packets_per_unit))?
            .checked_add(i64::from(to.sub))
    }

    /// Returns the number of packets after which the numbers repeat.
    pub(super) fn packets_to_wrap(&self) -> u128 {
        let numbers = 1_u128 << self.width.clamp(1, 64);
        (numbers / u128::from(self.step.max(1))).max(1) * u128::from(self.packets_per_unit)
    }

    /// Returns the lowest of `id` and those of `others` that are less than half of the number range away from `id`.
    pub(super) fn lowest(&self, id: PacketId, others: impl Iterator<Item = PacketId>) -> PacketId {
        let before = |other: &PacketId| {
            let distance = self.packets_between(id.unit, *other)?;
            Some(distance - i64::from(id.sub))
        };
        others
            .filter_map(|other| Some((before(&other)?, other)))
            .chain([(0, id)])
            .min_by_key(|(distance, _)| *distance)
            .map_or(id, |(_, lowest)| lowest)
    }

    /// Returns the number of the packet that is `ahead` packets after the first packet of `unit`.
    pub const fn after(&self, unit: u64, ahead: u64) -> PacketId {
        let packets_per_unit = self.packets_per_unit as u64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the remainder is less than `packets_per_unit`, which is a u32"
        )]
        let sub = (ahead % packets_per_unit) as u32;
        PacketId {
            unit: self
                .wrapped(unit.wrapping_add((ahead / packets_per_unit).wrapping_mul(self.step))),
            sub,
        }
    }

    /// Returns the number of the packet after `id`.
    #[inline]
    pub const fn next(&self, id: PacketId) -> PacketId {
        if id.sub + 1 < self.packets_per_unit {
            return PacketId {
                unit: id.unit,
                sub: id.sub + 1,
            };
        }
        PacketId::of(self.wrapped(id.unit.wrapping_add(self.step)))
    }

    const fn wrapped(&self, unit: u64) -> u64 {
        unit & (u64::MAX >> (64 - self.width))
    }

    /// Returns the frame of the packet `id` and its index in this frame, if frames of `packets_per_frame` packets are
    /// counted from unit 0. The number of a packet can need more than 64 bits.
    pub(super) fn frame_of(&self, id: PacketId, packets_per_frame: u32) -> (u64, u32) {
        let (units, per_frame) = (
            u128::from(id.unit / self.step),
            u128::from(packets_per_frame),
        );
        let packet = units * u128::from(self.packets_per_unit) + u128::from(id.sub);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the remainder is less than `packets_per_frame`, and frame numbers wrap at 2^64"
        )]
        let frame_and_index = ((packet / per_frame) as u64, (packet % per_frame) as u32);
        frame_and_index
    }
}

/// The sequence number of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketId {
    /// The unit number, [`Numbering::width`] bits wide.
    pub unit: u64,
    /// Index of the packet in the unit.
    pub sub: u32,
}

impl PacketId {
    /// Returns the number of the first packet of `unit`.
    pub const fn of(unit: u64) -> Self {
        Self { unit, sub: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn distance_across_wrap_is_exact(width in 8_u32..=64, from: u64, by in -100_i64..100) {
            let numbering = Numbering { width, ..Numbering::PLAIN };
            let mask = u64::MAX >> (64 - width);
            let to = from.wrapping_add_signed(by) & mask;
            prop_assert_eq!(numbering.distance(from & mask, to), by);
        }

        #[test]
        fn next_packet_is_one_slot_away(width in 16_u32..=64, step in 1_u64..8, unit: u64, per in 1_u32..64, ahead in 0_u64..1000) {
            let numbering = Numbering { width, step, packets_per_unit: per };
            let unit = unit & (u64::MAX >> (64 - width));
            let id = numbering.after(unit, ahead);
            prop_assert_eq!(numbering.packets_between(unit, id), Some(i64::try_from(ahead).unwrap()));
            prop_assert_eq!(numbering.next(id), numbering.after(unit, ahead + 1));
        }

        #[test]
        fn steps_and_sub_indices_map_to_packet_slots(step in 1_u64..10_000, unit in 0_u64..1000, per in 1_u32..64, ahead in 0_u64..1000, sub in 0_u32..64) {
            let numbering = Numbering { width: 48, step, packets_per_unit: per };
            let to = PacketId { unit: (unit + ahead) * step, sub };
            let expected = (sub < per).then(|| i64::try_from(ahead).unwrap() * i64::from(per) + i64::from(sub));
            prop_assert_eq!(numbering.packets_between(unit * step, to), expected);
        }
    }

    #[test]
    fn sequence_between_steps_has_no_packet_slot() {
        let numbering = Numbering {
            width: 32,
            step: 8192,
            packets_per_unit: 1,
        };
        assert_eq!(numbering.packets_between(0, PacketId::of(8192)), Some(1));
        assert_eq!(numbering.packets_between(0, PacketId::of(8191)), None);
    }
}
