//! Frames of a lease.

use crate::frame::{FrameMeta, Present};

/// One frame of a lease.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub(super) meta: FrameMeta,
    pub(super) bytes: Option<&'a [u8]>,
    pub(super) words: &'a [u64],
    pub(super) address: *const u8,
}

impl<'a> Frame<'a> {
    /// Returns the metadata of the frame.
    pub const fn meta(&self) -> &FrameMeta {
        &self.meta
    }

    /// Returns the payload; `None` if the ring is not in host memory.
    pub const fn bytes(&self) -> Option<&'a [u8]> {
        self.bytes
    }

    /// Returns which packets of the frame arrived.
    pub fn present(&self) -> Present<'a> {
        let limit = u32::try_from(self.words.len() * 64).unwrap_or(u32::MAX);
        Present::new(self.words, self.meta.packets_per_frame.min(limit))
    }

    /// Returns the address of the payload, for access by a device.
    pub const fn address(&self) -> *const u8 {
        self.address
    }
}
