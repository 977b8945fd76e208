//! Frames of heaps that are cut into other packets than most: those that also carry descriptors.

use super::super::{Part, Places};
use std::ops::Range;

/// Heaps that are put together at a time.
const HEAPS: usize = 2;

/// Puts the bytes of such heaps together until places of the regular cut are whole.
///
/// The two heaps begun last are kept; a place of an older one that is not whole yet stays missing.
#[derive(Debug)]
pub struct Recut {
    places: Places,
    heaps: [Heap; HEAPS],
    /// The heap begun last.
    newest: usize,
}

#[derive(Debug)]
struct Heap {
    unit: Option<u64>,
    bytes: Box<[u8]>,
    /// A bit for each byte that has arrived.
    arrived: Box<[u64]>,
    /// Bytes that each place still lacks.
    lacking: Box<[usize]>,
    is_placed: Box<[bool]>,
}

impl Heap {
    fn new(places: Places) -> Self {
        let count = places.count() as usize;
        Self {
            unit: None,
            bytes: vec![0; places.unit_bytes].into(),
            arrived: vec![0; places.unit_bytes.div_ceil(64)].into(),
            lacking: vec![0; count].into(),
            is_placed: vec![false; count].into(),
        }
    }

    fn begin(&mut self, unit: u64, places: Places) {
        self.unit = Some(unit);
        self.arrived.fill(0);
        self.is_placed.fill(false);
        for (sub, lacking) in (0..).zip(&mut self.lacking) {
            *lacking = places.range(sub).len();
        }
    }

    /// Notes that `range`, which lies in place `sub`, has arrived.
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
    pub(super) fn new(places: Places) -> Self {
        Self {
            places,
            heaps: [Heap::new(places), Heap::new(places)],
            newest: 0,
        }
    }

    /// Adds `payload`, the bytes of `part`, and calls `place` with each place that is whole and was not accepted before;
    /// `place` returns whether it accepts it, and is not called again if not. Returns whether it accepted all.
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
            heap.begin(part.unit, self.places);
            self.newest = index;
        }
        let end = part.offset.saturating_add(payload.len());
        let Some(into) = heap.bytes.get_mut(part.offset..end) else {
            return true;
        };
        into.copy_from_slice(payload);
        let Places { first, rest, .. } = self.places;
        let from = part.offset.checked_sub(first);
        let from = from.map_or(0, |after| after / rest.max(1) + 1);
        for (sub, number) in (from..heap.lacking.len()).zip((0..).skip(from)) {
            let extent = self.places.range(number);
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
