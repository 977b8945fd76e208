//! Reassembles units whose packet boundaries differ from the regular layout, such as SPEAD heaps with descriptors.
//!
//! A sender that restarts sends units with the same numbers. Therefore a unit begins again if the epoch has changed, if its number is
//! no longer near the stream, or if other bytes arrive at the same place.

use crate::packet::{FormatFacts, Fragment, PacketLayout};
use daq_core::frame::KeptFields;
use std::ops::Range;

/// Number of units of each part that are reassembled at the same time.
const UNITS: usize = 2;

/// Collects the bytes of units with other packet boundaries, and outputs the bytes in the packet slots of the regular layout.
///
/// The most recently started units are kept, two for each part. Incomplete packet slots of an older unit count as missing.
#[derive(Debug)]
pub(crate) struct Reassembly {
    /// The layout of one part of a unit.
    layout: PacketLayout,
    /// [`UNITS`] units of each part.
    units: Box<[PartialUnit]>,
    /// Which of its units each part has started most recently.
    newest: Box<[usize]>,
}

#[derive(Debug)]
struct PartialUnit {
    unit: Option<u64>,
    /// The epoch to which the unit belongs; `None` while its number is far from the stream.
    epoch: Option<u64>,
    bytes: Box<[u8]>,
    /// One bit per byte: set if the byte has arrived.
    arrived: Box<[u64]>,
    /// Number of missing bytes of each packet slot.
    lacking: Box<[usize]>,
    is_placed: Box<[bool]>,
    /// Timestamp and kept fields of the packets that have arrived.
    timestamp: Option<u64>,
    kept: KeptFields,
}

impl PartialUnit {
    fn new(layout: PacketLayout) -> Self {
        let count = layout.count() as usize;
        Self {
            unit: None,
            epoch: None,
            bytes: vec![0; layout.unit_bytes].into(),
            arrived: vec![0; layout.unit_bytes.div_ceil(64)].into(),
            lacking: vec![0; count].into(),
            is_placed: vec![false; count].into(),
            timestamp: None,
            kept: KeptFields::default(),
        }
    }

    fn begin(&mut self, unit: u64, layout: PacketLayout) {
        (self.unit, self.epoch) = (Some(unit), None);
        self.arrived.fill(0);
        self.is_placed.fill(false);
        self.timestamp = None;
        self.kept = KeptFields::default();
        for (sub, lacking) in (0..).zip(&mut self.lacking) {
            *lacking = layout.range(sub).len();
        }
    }

    /// Returns whether `payload` at `offset` belongs to another unit with the same number.
    fn is_other(&self, epoch: Option<u64>, offset: usize, payload: &[u8]) -> bool {
        if self.epoch.is_some() && self.epoch != epoch {
            return true;
        }
        let range = offset..offset.saturating_add(payload.len());
        let Some(bytes) = self.bytes.get(range.clone()) else {
            return false;
        };
        let has_arrived = |byte: usize| self.arrived[byte / 64] >> (byte % 64) & 1 == 1;
        let mut pairs = range.zip(bytes.iter().zip(payload));
        pairs.any(|(at, (old, new))| old != new && has_arrived(at))
    }

    /// Records that the bytes `range`, which are in packet slot `sub`, have arrived. Returns whether any of them is new.
    fn note(&mut self, sub: usize, range: Range<usize>) -> bool {
        let before = self.lacking[sub];
        for byte in range {
            let (word, bit) = (&mut self.arrived[byte / 64], 1 << (byte % 64));
            if *word & bit == 0 {
                *word |= bit;
                self.lacking[sub] -= 1;
            }
        }
        self.lacking[sub] < before
    }
}

/// The result of adding a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// Its bytes are new, or a packet slot was placed.
    New,
    /// All its bytes had arrived before.
    Repeated,
    /// A packet slot waits for memory; the fragment must be added again.
    Waiting,
    /// It is outside of the unit.
    Outside,
}

impl Reassembly {
    /// Returns the reassembly buffer for `format`, if its packets may be parts.
    pub(crate) fn of(format: &FormatFacts) -> Option<Box<Self>> {
        format
            .has_fragments
            .then(|| Box::new(Self::new(format.layout, format.parts)))
    }

    fn new(layout: PacketLayout, parts: u32) -> Self {
        let count = UNITS * parts as usize;
        Self {
            layout,
            units: (0..count).map(|_| PartialUnit::new(layout)).collect(),
            newest: vec![0; parts as usize].into(),
        }
    }

    /// Adds `payload`, the bytes of `fragment`, and the fields `kept` of its packet. Calls `place` for each packet slot that is
    /// complete and was not accepted before, with the payload and the fields of all packets of the unit. `place` returns whether it
    /// accepted the slot. If `place` returns false, this function does not call it again. `epoch` is the epoch to which the number
    /// of the unit belongs; `None` if the number is far from the stream.
    pub(crate) fn add(
        &mut self,
        fragment: &Fragment,
        epoch: Option<u64>,
        payload: &[u8],
        kept: KeptFields,
        mut place: impl FnMut(u32, &[u8], Option<u64>, KeptFields) -> bool,
    ) -> Added {
        let unit = fragment.unit;
        let part = fragment.part as usize;
        let units = part * UNITS..(part + 1) * UNITS;
        let (Some(newest), Some(units)) = (self.newest.get_mut(part), self.units.get_mut(units))
        else {
            return Added::Outside;
        };
        let known = units.iter().position(|other| other.unit == Some(unit));
        let index = known.unwrap_or((*newest + 1) % UNITS);
        let partial = &mut units[index];
        if known.is_none() || partial.is_other(epoch, fragment.offset, payload) {
            partial.begin(unit, self.layout);
            *newest = index;
        }
        partial.epoch = partial.epoch.or(epoch);
        let end = fragment.offset.saturating_add(payload.len());
        let Some(into) = partial.bytes.get_mut(fragment.offset..end) else {
            return Added::Outside;
        };
        into.copy_from_slice(payload);
        partial.kept.fill_from(&kept);
        partial.timestamp = partial.timestamp.or(fragment.timestamp);
        let PacketLayout { first, rest, .. } = self.layout;
        let before = fragment.part * self.layout.count();
        let from = fragment.offset.checked_sub(first);
        let from = from.map_or(0, |after| after / rest.max(1) + 1);
        let mut added = Added::Repeated;
        for (sub, number) in (from..partial.lacking.len()).zip((0..).skip(from)) {
            let extent = self.layout.range(number);
            if extent.start >= end {
                break;
            }
            if partial.note(sub, extent.start.max(fragment.offset)..extent.end.min(end)) {
                added = Added::New;
            }
            if partial.lacking[sub] == 0 && !partial.is_placed[sub] {
                if !place(
                    before + number,
                    &partial.bytes[extent],
                    partial.timestamp,
                    partial.kept,
                ) {
                    return Added::Waiting;
                }
                partial.is_placed[sub] = true;
                added = Added::New;
            }
        }
        added
    }

    /// Sets the epoch of the unit of `fragment`, because its packet slots may have opened one.
    pub(crate) fn set_epoch(&mut self, fragment: &Fragment, epoch: Option<u64>) {
        let part = fragment.part as usize;
        let units = self.units.get_mut(part * UNITS..(part + 1) * UNITS);
        let own = |unit: &&mut PartialUnit| unit.unit == Some(fragment.unit);
        if let Some(unit) = units.and_then(|units| units.iter_mut().find(own)) {
            unit.epoch = epoch.or(unit.epoch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Option<u64> = Some(1);

    /// A restarted sender begins with the unit that the last run began with.
    #[test]
    fn unit_of_a_restarted_sender_is_placed_again() {
        let layout = PacketLayout {
            unit_bytes: 16,
            first: 8,
            rest: 8,
        };
        let (far, next) = (None, Some(2));
        // The last run has lost the second half of the unit, or nothing.
        for halves in [1, 2] {
            // The epoch opens after the first packet, or after the unit.
            for states in [[far, next], [far, far], [next, next], [NEAR, NEAR]] {
                for run in [1, 2_u8] {
                    let mut reassembly = Reassembly::new(layout, 1);
                    let mut add = |epoch, half: usize, value: u8| {
                        let fragment = Fragment {
                            unit: 1,
                            part: 0,
                            offset: 8 * half,
                            payload: 0..8,
                            timestamp: None,
                        };
                        let mut placed = Vec::new();
                        reassembly.add(
                            &fragment,
                            epoch,
                            &[value; 8],
                            KeptFields::default(),
                            |sub, bytes, _, _| {
                                placed.push((sub, bytes[0]));
                                true
                            },
                        );
                        placed
                    };
                    for half in 0..halves {
                        assert_eq!(add(NEAR, half, 1).len(), 1);
                    }
                    let is_same = run == 1 && states == [NEAR; 2];
                    let again: Vec<_> = states
                        .iter()
                        .zip(0..)
                        .flat_map(|(state, half)| add(*state, half, run))
                        .collect();
                    let expected = if is_same {
                        // The packets are only repeated.
                        [(0, 1), (1, 1)][halves..].to_vec()
                    } else {
                        vec![(0, run), (1, run)]
                    };
                    assert_eq!(again, expected, "{halves} halves, {states:?}, run {run}");
                }
            }
        }
    }

    /// The epoch opens after a slot in the middle of the unit, while the start of the next slot has arrived.
    #[test]
    fn unit_continues_in_the_epoch_that_it_opens() {
        let layout = PacketLayout {
            unit_bytes: 16,
            first: 8,
            rest: 8,
        };
        let mut reassembly = Reassembly::new(layout, 1);
        let mut placed = Vec::new();
        for (epoch, opened, offset, length) in [
            (NEAR, NEAR, 0, 6),
            (NEAR, Some(2), 6, 6),
            (Some(2), Some(2), 12, 4),
        ] {
            let fragment = Fragment {
                unit: 1,
                part: 0,
                offset,
                payload: 0..length,
                timestamp: None,
            };
            let place = |sub, bytes: &[u8], _, _| {
                placed.push((sub, bytes[0]));
                true
            };
            let payload = vec![3; length];
            reassembly.add(&fragment, epoch, &payload, KeptFields::default(), place);
            reassembly.set_epoch(&fragment, opened);
        }
        assert_eq!(placed, [(0, 3), (1, 3)]);
    }

    /// The first packet of a heap contains the timestamp, but often only descriptors and the start of a slot.
    #[test]
    fn slots_have_the_timestamp_of_their_unit_and_part() {
        let layout = PacketLayout {
            unit_bytes: 16,
            first: 8,
            rest: 8,
        };
        let mut reassembly = Reassembly::new(layout, 2);
        let mut placed = Vec::new();
        let mut add = |unit, part, offset, length: usize, timestamp| {
            let fragment = Fragment {
                unit,
                part,
                offset,
                payload: 0..length,
                timestamp,
            };
            let payload = vec![u8::try_from(part).unwrap(); length];
            let kept = KeptFields::default();
            reassembly.add(
                &fragment,
                NEAR,
                &payload,
                kept,
                |sub, bytes, timestamp, _| {
                    placed.push((unit, sub, bytes[0], timestamp));
                    true
                },
            )
        };
        assert_eq!(add(5, 0, 0, 4, Some(70)), Added::New);
        assert_eq!(add(5, 0, 0, 4, Some(70)), Added::Repeated);
        assert_eq!(add(5, 2, 0, 4, Some(70)), Added::Outside);
        assert_eq!(add(5, 0, 14, 4, Some(70)), Added::Outside);
        // Many units of the other part do not end those of the first part.
        for unit in 100..110 {
            assert_eq!(add(unit, 1, 0, 4, Some(80)), Added::New);
        }
        assert_eq!(add(5, 0, 4, 12, None), Added::New);
        assert_eq!(add(5, 0, 4, 12, None), Added::Repeated);
        assert_eq!(add(109, 1, 4, 4, None), Added::New);
        assert_eq!(
            placed,
            [
                (5, 0, 0, Some(70)),
                (5, 1, 0, Some(70)),
                (109, 2, 1, Some(80))
            ]
        );
    }
}
