//! Writes payload into a packet slot in several parts, without an intermediate copy.

use daq_core::frame::Timestamp;
use daq_core::reorder::{Batch, Outcome, PacketId};

/// Writer for the memory of one packet slot, from front to back.
#[derive(Debug)]
pub(crate) struct PayloadWriter {
    next: *mut u8,
    left: usize,
}

impl PayloadWriter {
    /// Appends `bytes`, truncated to the remaining space.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(self.left);
        // SAFETY:
        // - `next` is valid for writes of `left` bytes. `put` set both from the start and the size of a packet slot
        //   that the batch keeps open and nothing else writes. Both advance together.
        // - `bytes` does not overlap the packet slot, because no reference to the packet slot exists.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.next, n);
            self.next = self.next.add(n);
        }
        self.left -= n;
    }
}

/// Calls `write` to fill the packet slot of `id`, which has `bytes` bytes. Bytes that `write` does not write are
/// zeroed.
///
/// `write` is called only if the outcome is [`Outcome::Placed`].
pub(crate) fn put(
    batch: &mut Batch<'_>,
    id: PacketId,
    bytes: usize,
    time: Timestamp,
    write: impl FnOnce(&mut PayloadWriter),
) -> Outcome {
    batch.place_with(id, bytes, time, |memory| {
        let mut payload = PayloadWriter {
            next: memory,
            left: bytes,
        };
        write(&mut payload);
        // SAFETY: `next` is valid for writes of `left` bytes, as in `push`.
        unsafe { payload.next.write_bytes(0, payload.left) };
    })
}
