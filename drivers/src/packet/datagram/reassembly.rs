//! Reassembles units whose packet boundaries differ from the regular layout, such as SPEAD heaps with descriptors.

use crate::packet::{Format, Fragment, PacketLayout};
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
    units: Box<[PartialUnit]>,
    /// Index of the most recently started unit.
    newest: usize,
}

#[derive(Debug)]
struct PartialUnit {
    /// The unit and the part.
    unit: Option<(u64, u32)>,
    bytes: Box<[u8]>,
    /// One bit per byte: set if the byte has arrived.
    arrived: Box<[u64]>,
    /// Number of missing bytes of each packet slot.
    lacking: Box<[usize]>,
    is_placed: Box<[bool]>,
    /// Kept fields of the packets that have arrived.
    kept: KeptFields,
}

impl PartialUnit {
    fn new(layout: PacketLayout) -> Self {
        let count = layout.count() as usize;
        Self {
            unit: None,
            bytes: vec![0; layout.unit_bytes].into(),
            arrived: vec![0; layout.unit_bytes.div_ceil(64)].into(),
            lacking: vec![0; count].into(),
            is_placed: vec![false; count].into(),
            kept: KeptFields::default(),
        }
    }

    fn begin(&mut self, unit: (u64, u32), layout: PacketLayout) {
        self.unit = Some(unit);
        self.arrived.fill(0);
        self.is_placed.fill(false);
        self.kept = KeptFields::default();
        for (sub, lacking) in (0..).zip(&mut self.lacking) {
            *lacking = layout.range(sub).len();
        }
    }

    /// Records that the bytes `range`, which are in packet slot `sub`, have arrived.
    fn note(&mut self, sub: usize, range: Range<usize>) {
        for byte in range {
            let (word, bit) = (&mut self.arrived[byte / 64], 1 << (byte % 64));
            if *word & bit == 0 {
                *word |= bit;
                self.lacking[sub] -= 1;
            }
        }
    }
}

impl Reassembly {
    /// Returns the reassembly buffer for `format`, if its packets may be parts.
    pub(crate) fn of(format: &Format) -> Option<Box<Self>> {
        format
            .has_fragments()
            .then(|| Box::new(Self::new(format.packet_layout(), format.parts())))
    }

    fn new(layout: PacketLayout, parts: u32) -> Self {
        let count = UNITS * parts as usize;
        Self {
            layout,
            units: (0..count).map(|_| PartialUnit::new(layout)).collect(),
            newest: 0,
        }
    }

    /// Adds `payload`, the bytes of `fragment`, and the fields `kept` of its packet. Calls `place` for each packet slot that is
    /// complete and was not accepted before, with the payload and the fields of all packets of the unit. `place` returns whether it accepted the slot. If `place` returns false, this function does not call it again and
    /// returns false.
    pub(crate) fn add(
        &mut self,
        fragment: &Fragment,
        payload: &[u8],
        kept: KeptFields,
        mut place: impl FnMut(u32, &[u8], KeptFields) -> bool,
    ) -> bool {
        let unit = (fragment.unit, fragment.part);
        let known = self.units.iter().position(|other| other.unit == Some(unit));
        let index = known.unwrap_or((self.newest + 1) % self.units.len());
        let partial = &mut self.units[index];
        if known.is_none() {
            partial.begin(unit, self.layout);
            self.newest = index;
        }
        let end = fragment.offset.saturating_add(payload.len());
        let Some(into) = partial.bytes.get_mut(fragment.offset..end) else {
            return true;
        };
        into.copy_from_slice(payload);
        partial.kept.fill_from(&kept);
        let PacketLayout { first, rest, .. } = self.layout;
        let before = fragment.part * self.layout.count();
        let from = fragment.offset.checked_sub(first);
        let from = from.map_or(0, |after| after / rest.max(1) + 1);
        for (sub, number) in (from..partial.lacking.len()).zip((0..).skip(from)) {
            let extent = self.layout.range(number);
            if extent.start >= end {
                break;
            }
            partial.note(sub, extent.start.max(fragment.offset)..extent.end.min(end));
            if partial.lacking[sub] == 0 && !partial.is_placed[sub] {
                if !place(before + number, &partial.bytes[extent], partial.kept) {
                    return false;
                }
                partial.is_placed[sub] = true;
            }
        }
        true
    }
}
