//! Stores fields and flags that travel with their frame.

use super::{Batch, Outcome};
use crate::frame::{Flags, KeptFields};
use crate::sync::Ordering;

impl Batch<'_> {
    /// Sets `flags` of the frame of the packet that was placed last, with this `outcome`.
    pub fn flag(&mut self, outcome: Outcome, flags: Flags) {
        if outcome == Outcome::Placed && flags != Flags(0) {
            let (frame, _) = self.geometry().split(self.state.cursor - 1);
            let record = self.shared.record(frame);
            record.flags.fetch_or(flags.0, Ordering::AcqRel);
        }
    }

    /// Stores kept fields of the packet that was placed or [accepted](Self::accept) last, with this `outcome`. `read` returns
    /// the packet's fields. It is called only if the packet belongs to a frame that still lacks a field.
    #[inline]
    pub fn keep_fields(&mut self, outcome: Outcome, read: impl FnOnce() -> KeptFields) {
        match outcome {
            Outcome::Placed => {
                let (frame, _) = self.geometry().split(self.state.cursor - 1);
                let record = self.shared.record(frame);
                if record.lacks_fields() {
                    record.keep(&read());
                }
            }
            Outcome::Kept | Outcome::Repeated => self.state.candidates.set_fields(read()),
            _ => {}
        }
    }
}
