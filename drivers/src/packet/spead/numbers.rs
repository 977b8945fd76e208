//! Frame numbers and parts of heaps, if the heap counter alone does not state them.
//!
//! ```text
//!   first packet of a heap:  counter, frame, part ──▶ (frame, part), stored by counter
//!   later packets:           counter              ──▶ the stored (frame, part)
//! ```
//! A packet that repeats the items is placed by its own items.

use super::items::{Item, find_item};
use crate::packet::parts::{Parts, Position};
use crate::packet::{Flow, Reject};

/// Number of heaps for each part whose numbers are stored, and minimum number of heaps in total. The numbers of a heap are
/// needed until its last packet arrives, but the table must be much larger than the number of heaps that arrive at the same time,
/// so that few of them have the same hash.
const HEAPS_PER_PART: usize = 16;
const MIN_HEAPS: usize = 64;
/// Number of heaps with the same hash that are stored.
const WAYS: usize = 8;

/// How the frame and the part of a heap are found.
#[derive(Clone, Debug)]
pub(super) struct HeapNumbers {
    /// The item that contains the number of the frame; `None` if the heap counter is the number.
    pub(super) frame: Option<u64>,
    pub(super) parts: Parts,
    /// The numbers of recent heaps. The index is a hash of the counter.
    recent: Box<[[Recent; WAYS]]>,
    /// Number of heaps that were stored.
    stored: u64,
}

/// The numbers of a heap.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    counter: u64,
    /// Distinguishes heaps with the same counter; 0 for an empty entry.
    flow: u32,
    part: u32,
    frame: u64,
    /// Number of heaps that were stored before this one.
    age: u64,
}

impl HeapNumbers {
    pub(super) fn new(frame: Option<u64>, parts: Parts) -> Self {
        let heaps = (parts.count() as usize * HEAPS_PER_PART).max(MIN_HEAPS);
        Self {
            frame,
            parts,
            recent: vec![Default::default(); heaps.next_power_of_two() / WAYS].into(),
            stored: 0,
        }
    }

    /// Selects the flow of the packets that follow.
    pub(super) fn use_flow(&mut self, flow: &Flow) {
        self.parts.use_flow(flow);
    }

    /// Returns the frame number and the part of the heap `counter`, of which a packet has the item pointers `items`.
    #[inline]
    pub(super) fn locate(
        &mut self,
        counter: u64,
        items: &[u8],
        address_bits: u32,
    ) -> Result<(u64, u32), Reject> {
        let item = |id| find_item(items, address_bits, id);
        let frame = match self.frame {
            Some(id) => item(id),
            None => Some(counter),
        };
        let part = self.parts.part(|position| match position {
            Position::Item(id) => item(*id),
            Position::Field(_) => None,
        })?;
        let flow = self.parts.flow() + 1;
        let age = self.stored;
        let ways = self.ways(counter, flow);
        let known = ways
            .iter()
            .position(|recent| (recent.counter, recent.flow) == (counter, flow));
        if let (Some(frame), Some(part)) = (frame, part) {
            let oldest = (0..WAYS).min_by_key(|i| ways[*i].age).unwrap_or(0);
            ways[known.unwrap_or(oldest)] = Recent {
                counter,
                flow,
                part,
                frame,
                age,
            };
            self.stored += 1;
            return Ok((frame, part));
        }
        if let Some(known) = known {
            return Ok((ways[known].frame, ways[known].part));
        }
        Err(UNKNOWN_HEAP)
    }

    /// Returns the entries of heaps with the same hash as the heap `counter` of `flow`.
    fn ways(&mut self, counter: u64, flow: u32) -> &mut [Recent; WAYS] {
        let key = counter ^ u64::from(flow).rotate_right(16);
        // The highest bits of the product depend on all bits of the key.
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = self.recent.len().trailing_zeros();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the index is below the length"
        )]
        let index = (hash >> (64 - bits)) as usize;
        &mut self.recent[index]
    }

    /// Returns the heap counter of `part` of `frame` for a sender whose frame numbers grow by `step`. Unless the counter is the
    /// number of the frame, each heap has a counter of its own.
    pub(super) fn counter(&self, frame: u64, step: u64, part: u32) -> u64 {
        match self.frame {
            None => frame,
            Some(_) => (frame / step.max(1))
                .wrapping_mul(self.parts.count().into())
                .wrapping_add(part.into()),
        }
    }

    /// Calls `add` for each item that the packets of `part` of `frame` contain.
    pub(super) fn items(&self, frame: u64, part: u32, mut add: impl FnMut(Item)) {
        if let Some(id) = self.frame {
            add(Item::immediate(id, frame));
        }
        self.parts.write(part, |position, value| {
            if let Position::Item(id) = position {
                add(Item::immediate(*id, value));
            }
        });
    }
}

const UNKNOWN_HEAP: Reject = Reject::Other {
    name: "unknown_heap",
    message: "the packet does not contain the items that `frame` and `part` name, and the first packet of its heap did not arrive before it: \
              check their `item`, or configure the sender to repeat item pointers in each packet (spead2: `repeat_pointers`)",
};
