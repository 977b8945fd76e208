//! Stores fields of packets that travel with their frame.

use super::{Batch, Outcome};
use crate::frame::KeptFields;

impl Batch<'_> {
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
