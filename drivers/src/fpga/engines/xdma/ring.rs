//! Memory of an XDMA channel, apart from its slots: descriptors, results and the count.
//!
//! ```text
//!   | descriptor 0 … N-1 | result 0 … N-1 | count |
//!          │  ▲ source         │
//!          │  └────────────────┘ a stream has no source address; the engine writes each result to this address
//!          └─ next: the descriptors form a cycle
//! ```

use super::layout::{COMPLETED, DESCRIPTOR, DESCRIPTOR_MAGIC, END_OF_PACKET, RESULT_MAGIC};
use daq_core::dma::{DmaBuffer, DmaDevice, DmaError, Slots};
use std::sync::Arc;

/// The decoded result (C2H stream writeback) of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// No result was written yet.
    None,
    /// Number of written bytes, which may be 0, and whether the packet ends with this transfer.
    Done(u32, bool),
    /// The word is not a valid result.
    Damaged,
}

/// Descriptors, results and the count of one channel.
#[derive(Debug)]
pub(super) struct Ring {
    memory: DmaBuffer,
    slots: usize,
}

impl Ring {
    /// Allocates the memory for `slots` slots.
    pub(super) fn new(device: Arc<dyn DmaDevice>, slots: usize) -> Result<Self, DmaError> {
        let memory = DmaBuffer::new(device, slots * 2 * DESCRIPTOR + 64)?;
        Ok(Self { memory, slots })
    }

    /// Returns the number of slots.
    pub(super) const fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the device address of a descriptor.
    pub(super) const fn descriptor(&self, slot: usize) -> u64 {
        self.memory.address() + (slot * DESCRIPTOR) as u64
    }

    const fn result_offset(&self, slot: usize) -> usize {
        (self.slots + slot) * DESCRIPTOR
    }

    const fn count_offset(&self) -> usize {
        2 * self.slots * DESCRIPTOR
    }

    /// Returns the device address of the count.
    pub(super) const fn count_address(&self) -> u64 {
        self.memory.address() + self.count_offset() as u64
    }

    /// Writes a cycle of descriptors for `slots`, whose number must match. Clears the results and the count.
    pub(super) fn program(&self, slots: &Slots) {
        self.memory.clear();
        let length = u64::try_from(slots.bytes).unwrap_or(0);
        for (slot, target) in slots.addresses.iter().enumerate() {
            let at = slot * DESCRIPTOR;
            // The field `next_adjacent` is 0, so that each descriptor is fetched separately and none is fetched without
            // a credit.
            let first = u64::from(DESCRIPTOR_MAGIC | COMPLETED) | length << 32;
            let result = self.memory.address() + self.result_offset(slot) as u64;
            let next = self.descriptor((slot + 1) % self.slots);
            for (i, word) in [first, result, *target, next].into_iter().enumerate() {
                self.memory.write64(at + 8 * i, word);
            }
        }
    }

    /// Decodes the result of `slot`.
    #[inline]
    pub(super) fn result(&self, slot: usize) -> Outcome {
        let word = self.memory.read64(self.result_offset(slot));
        #[expect(clippy::cast_possible_truncation, reason = "each half has 32 bits")]
        let (state, length) = (word as u32, (word >> 32) as u32);
        if state == 0 {
            Outcome::None
        } else if state >> 16 == RESULT_MAGIC {
            Outcome::Done(length, state & END_OF_PACKET != 0)
        } else {
            Outcome::Damaged
        }
    }

    /// Clears the result of `slot` for its next transfer, which the engine must not have started.
    #[inline]
    pub(super) fn clear_result(&self, slot: usize) {
        self.memory.write64(self.result_offset(slot), 0);
    }

    /// Returns the last written count word.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.memory.read32(self.count_offset())
    }

    /// Returns the memory that the device accesses.
    #[cfg(test)]
    pub(super) const fn memory(&self) -> &DmaBuffer {
        &self.memory
    }
}
