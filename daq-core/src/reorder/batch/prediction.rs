//! Predicts the packet slots of the next packets, so that Linux can receive into them.

use super::{Batch, stamp};
use crate::frame::Timestamp;
use crate::reorder::PacketId;
use crate::reorder::record::{Record, state};
use crate::reorder::shared::Epoch;
use crate::sync::Ordering;

/// A packet slot: the memory of a predicted packet in an open frame.
#[derive(Clone, Copy, Debug)]
pub struct PacketSlot {
    id: PacketId,
    /// Number of the segment in which the packet was predicted.
    segment: u64,
    /// Position of the frame, in frames.
    frame: u64,
    /// Index of the packet in the frame.
    index: u32,
    bytes: usize,
    memory: *mut u8,
}

impl PacketSlot {
    /// Returns the number of the packet that is expected in this packet slot.
    pub const fn id(&self) -> PacketId {
        self.id
    }

    /// Returns the address for the payload. It is valid for writes until the batch ends.
    pub const fn memory(&self) -> *mut u8 {
        self.memory
    }

    /// Returns the expected size of the payload in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Batch<'_> {
    /// Predicts the packet slots of the next packets, assuming that they arrive in order. Stores at most `n`
    /// packet slots in `slots`, only those that have memory and whose packet has not arrived. Windows that are not
    /// exclusive predict none.
    ///
    /// The memory may be written until the batch ends. Data written to a packet slot that is not
    /// [accepted](Self::accept) is overwritten later.
    pub fn predict(&mut self, n: usize, slots: &mut Vec<PacketSlot>) {
        slots.clear();
        if !self.shared.is_exclusive() || self.state.opens_epoch() {
            return;
        }
        let (shared, geometry) = (self.shared, self.geometry());
        let per_frame = u64::from(geometry.packets_per_frame);
        let end = (self.base + geometry.window as u64) * per_frame;
        let first = self.state.cursor.max(self.base * per_frame);
        let n = n
            .min(slots.capacity())
            .min(usize::try_from(end.saturating_sub(first)).unwrap_or(usize::MAX));
        let Epoch {
            segment,
            unit,
            position,
            ..
        } = self.state.epoch;
        let mut id = geometry.numbering.after(unit, first - position);
        let (mut frame, mut index) = geometry.split(first);
        while slots.len() < n {
            let record = shared.record(frame);
            let Some(memory) = self.assigned(frame, record) else {
                return;
            };
            while index < geometry.packets_per_frame && slots.len() < n {
                if record.is_present(index) {
                    return;
                }
                let extent = geometry.extent(index);
                // SAFETY: `extent` is inside the slot that starts at `memory`, as in `place_with`.
                let memory = unsafe { memory.add(extent.start) };
                slots.push(PacketSlot {
                    id,
                    segment,
                    frame,
                    index,
                    bytes: extent.len(),
                    memory,
                });
                id = geometry.numbering.next(id);
                index += 1;
            }
            (frame, index) = (frame + 1, 0);
        }
    }

    /// Records that packet `id` has been written to `slot`, which must come from [`predict`](Self::predict) of this
    /// batch. Returns false, and changes nothing, if the packet belongs to another packet slot.
    #[inline]
    pub fn accept(&mut self, id: PacketId, slot: &PacketSlot, time: Timestamp) -> bool {
        // The window may have advanced since the prediction.
        if id != slot.id || slot.frame < self.base || slot.segment != self.state.epoch.segment {
            return false;
        }
        let record = self.shared.record(slot.frame);
        if !record.mark_present(slot.index, true) {
            return false;
        }
        self.arrived += 1;
        let position = self.follow(id, slot.frame, slot.index);
        self.refute(id);
        self.horizon = self.horizon.max(position + 1);
        self.start = self.start.min(position);
        stamp(record, self.geometry(), slot.index, time);
        true
    }

    /// Returns the memory of a frame if it has a slot or a slot is free.
    fn assigned(&mut self, frame: u64, record: &Record) -> Option<*mut u8> {
        if record.state.load(Ordering::Relaxed) == state::UNASSIGNED {
            self.state.sequencer.as_mut()?.assign(self.shared, frame);
        }
        (record.state.load(Ordering::Relaxed) == state::ASSIGNED)
            .then(|| record.memory.load(Ordering::Relaxed))
    }
}
