//! What an XDMA channel reads and writes beside its slots.
//!
//! ```text
//!   | descriptor 0 … N-1 | result 0 … N-1 | count |
//!          │  ▲ source         │
//!          │  └────────────────┘ a stream has no source address: the engine writes each result there
//!          └─ next: a circle
//! ```

use super::layout::{COMPLETED, DESCRIPTOR, DESCRIPTOR_MAGIC, END_OF_PACKET, RESULT_MAGIC};
use daq_core::dma::{DmaBuffer, DmaDevice, DmaError, Slots};
use std::sync::Arc;

/// What a result says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing yet.
    None,
    /// So many bytes were written, 0 among them; whether the packet ends there.
    Done(u32, bool),
    /// It is no result.
    Damaged,
}

/// Descriptors, results and the count of one channel.
#[derive(Debug)]
pub struct Ring {
    memory: DmaBuffer,
    slots: usize,
}

impl Ring {
    /// Memory for `slots` slots.
    pub fn new(device: Arc<dyn DmaDevice>, slots: usize) -> Result<Self, DmaError> {
        let memory = DmaBuffer::new(device, slots * 2 * DESCRIPTOR + 64)?;
        Ok(Self { memory, slots })
    }

    /// Slots that it is for.
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// The device's address of a descriptor.
    pub const fn descriptor(&self, slot: usize) -> u64 {
        self.memory.address() + (slot * DESCRIPTOR) as u64
    }

    const fn result_offset(&self, slot: usize) -> usize {
        (self.slots + slot) * DESCRIPTOR
    }

    const fn count_offset(&self) -> usize {
        2 * self.slots * DESCRIPTOR
    }

    /// The device's address of the count.
    pub const fn count_address(&self) -> u64 {
        self.memory.address() + self.count_offset() as u64
    }

    /// Writes the circle of descriptors of `slots`, which are as many as it is for; results and count are zero afterwards.
    pub fn program(&self, slots: &Slots) {
        self.memory.clear();
        let length = u64::try_from(slots.bytes).unwrap_or(0);
        for (slot, target) in slots.addresses.iter().enumerate() {
            let at = slot * DESCRIPTOR;
            // No next_adjacent: each descriptor is fetched by itself, so that none is taken that has no credit.
            let first = u64::from(DESCRIPTOR_MAGIC | COMPLETED) | length << 32;
            let result = self.memory.address() + self.result_offset(slot) as u64;
            let next = self.descriptor((slot + 1) % self.slots);
            for (i, word) in [first, result, *target, next].into_iter().enumerate() {
                self.memory.write64(at + 8 * i, word);
            }
        }
    }

    /// What the result of `slot` says.
    #[inline]
    pub fn result(&self, slot: usize) -> Outcome {
        let word = self.memory.read64(self.result_offset(slot));
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let (state, length) = (word as u32, (word >> 32) as u32);
        if state == 0 {
            Outcome::None
        } else if state >> 16 == RESULT_MAGIC {
            Outcome::Done(length, state & END_OF_PACKET != 0)
        } else {
            Outcome::Damaged
        }
    }

    /// Makes the result of `slot` ready for its next transfer, which the engine must not have begun.
    #[inline]
    pub fn clear_result(&self, slot: usize) {
        self.memory.write64(self.result_offset(slot), 0);
    }

    /// The count as it was last written.
    #[inline]
    pub fn count(&self) -> u32 {
        self.memory.read32(self.count_offset())
    }

    /// The memory, as the device has it.
    #[cfg(test)]
    pub const fn memory(&self) -> &DmaBuffer {
        &self.memory
    }
}
