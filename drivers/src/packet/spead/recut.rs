//! Reassembles heaps whose packet boundaries differ from the regular layout because they also contain descriptors.

use super::super::{PacketLayout, Part};
use std::ops::Range;

/// Number of heaps that are reassembled at the same time.
const HEAPS: usize = 2;

/// Collects the bytes of heaps with other packet boundaries, and outputs the bytes in the packet slots of the regular layout.
///
/// The two most recently started heaps are kept. Incomplete packet slots of an older heap count as missing.
#[derive(Debug)]
pub struct Recut {
    layout: PacketLayout,
    heaps: [Heap; HEAPS],
    /// Index of the most recently started heap.
    newest: usize,
}

#[derive(Debug)]
struct Heap {
    unit: Option<u64>,
    bytes: Box<[u8]>,
    /// One bit per byte: set if the byte has arrived.
    arrived: Box<[u64]>,
    /// Number of missing bytes of each packet slot.
    lacking: Box<[usize]>,
    is_placed: Box<[bool]>,
}

impl Heap {
    fn new(layout: PacketLayout) -> Self {
        let count = layout.count() as usize;
        Self {
            unit: None,
            bytes: vec![0; layout.unit_bytes].into(),
            arrived: vec![0; layout.unit_bytes.div_ceil(64)].into(),
            lacking: vec![0; count].into(),
            is_placed: vec![false; count].into(),
        }
    }

    fn begin(&mut self, unit: u64, layout: PacketLayout) {
        self.unit = Some(unit);
        self.arrived.fill(0);
        self.is_placed.fill(false);
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

impl Recut {
    pub(super) fn new(layout: PacketLayout) -> Self {
        Self {
            layout,
            heaps: [Heap::new(layout), Heap::new(layout)],
            newest: 0,
        }
    }

    /// Adds `payload`, the bytes of `part`, and calls `place` for each packet slot that is complete and was not accepted
    /// before. `place` returns whether it accepted the slot. If `place` returns false, this function does not call it again and
    /// returns false.
    pub fn add(
        &mut self,
        part: &Part,
        payload: &[u8],
        mut place: impl FnMut(u32, &[u8]) -> bool,
    ) -> bool {
        let known = self
            .heaps
            .iter()
            .position(|heap| heap.unit == Some(part.unit));
        let index = known.unwrap_or((self.newest + 1) % HEAPS);
        let heap = &mut self.heaps[index];
        if known.is_none() {
            heap.begin(part.unit, self.layout);
            self.newest = index;
        }
        let end = part.offset.saturating_add(payload.len());
        let Some(into) = heap.bytes.get_mut(part.offset..end) else {
            return true;
        };
        into.copy_from_slice(payload);
        let PacketLayout { first, rest, .. } = self.layout;
        let from = part.offset.checked_sub(first);
        let from = from.map_or(0, |after| after / rest.max(1) + 1);
        for (sub, number) in (from..heap.lacking.len()).zip((0..).skip(from)) {
            let extent = self.layout.range(number);
            if extent.start >= end {
                break;
            }
            heap.note(sub, extent.start.max(part.offset)..extent.end.min(end));
            if heap.lacking[sub] == 0 && !heap.is_placed[sub] {
                if !place(number, &heap.bytes[extent]) {
                    return false;
                }
                heap.is_placed[sub] = true;
            }
        }
        true
    }
}
