//! Writing payload into a place, piece by piece, without an intermediate copy.

use daq_core::frame::Timestamp;
use daq_core::reorder::{Batch, Outcome, PacketId};

/// The memory of one place, written from front to back.
#[derive(Debug)]
pub struct PlaceWriter {
    next: *mut u8,
    left: usize,
}

impl PlaceWriter {
    /// Bytes not written yet.
    pub const fn left(&self) -> usize {
        self.left
    }

    /// Appends as much of `bytes` as there is room for.
    pub fn push(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(self.left);
        // SAFETY: `next` is valid for writing `left` bytes: `put` made it from the start and the length of a place
        // that the batch keeps open and that nothing else writes, and both move together. `bytes` cannot lie in
        // the place, to which no reference exists.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.next, n);
            self.next = self.next.add(n);
        }
        self.left -= n;
    }
}

/// Has `write` fill the place of `bytes` bytes that `id` names; what it leaves becomes zeroes.
///
/// `write` is called only if the outcome is [`Outcome::Placed`].
pub fn put(
    batch: &mut Batch<'_>,
    id: PacketId,
    bytes: usize,
    time: Timestamp,
    write: impl FnOnce(&mut PlaceWriter),
) -> Outcome {
    batch.put_with(id, bytes, time, |memory| {
        let mut place = PlaceWriter {
            next: memory,
            left: bytes,
        };
        write(&mut place);
        // SAFETY: `next` is valid for writing `left` bytes, as in `push`.
        unsafe { place.next.write_bytes(0, place.left) };
    })
}
