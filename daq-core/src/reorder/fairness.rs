//! Fairness among the parts of frames: which packets may close frames of other parts.
//!
//! A packet after the open frames closes the oldest frames, and then packets of other parts in these frames are late. So one
//! sender with wrong numbers could make the packets of all others late. Therefore the window advances to such a packet only in
//! two cases:
//!
//! - Most of the parts that are alive have reached the frames that are open afterwards, except the oldest quarter of them. This
//!   quarter remains for packets that are out of order.
//! - Since the last complete frame, the sender of the packet has filled at least half of its packet slots from the oldest open
//!   frame to the packet, or it has filled all its packet slots of the open frames. So the sender is steady, and the other senders
//!   are silent or far behind.
//!
//! Any other packet is treated as far from the window: it is kept aside until most parts confirm its position.
//!
//! A frame with one part has one sender, so nothing is checked. With several parts, a packet in the open frames is not checked
//! either, and nothing is checked in the first window of an epoch, because the senders may begin at different frames.

use super::shared::Shared;
use crate::sync::Ordering;
use std::ops::Range;

impl Shared {
    /// Returns whether a packet of `part` in `frame`, which is after the open frames, may advance the window to its frame. `base`
    /// is the oldest open frame.
    pub(super) fn may_advance(&self, base: u64, frame: u64, part: u32) -> bool {
        let geometry = &self.geometry;
        // A source whose numbers are all trusted has a `resync_after` of 1.
        if geometry.parts == 1 || geometry.resync_after == 1 {
            return true;
        }
        let window = geometry.window as u64;
        if base < self.floor.load(Ordering::Acquire) + window {
            return true;
        }
        let (reached, alive) = self.count_parts(base, frame + 1 - window + window / 4, Some(part));
        2 * reached > alive || self.is_steady(base, frame, part)
    }

    /// Returns the frame before which frames may be closed because no packets arrive: `front`, or an earlier one that at least
    /// half of the parts that are alive have reached. `base` is the oldest open frame.
    pub(super) fn stale_front(&self, base: u64, front: u64) -> u64 {
        if self.geometry.parts == 1 {
            return front;
        }
        let is_reached = |frame: &u64| {
            let (reached, alive) = self.count_parts(base, *frame, None);
            2 * reached >= alive
        };
        (base..=front).rev().find(is_reached).unwrap_or(base)
    }

    /// Returns the number of parts that have reached `frame`, and the number of parts that are alive. `part` counts as both.
    fn count_parts(&self, base: u64, frame: u64, part: Option<u32>) -> (usize, usize) {
        let geometry = &self.geometry;
        let end = base + geometry.window as u64;
        let (mut reached, mut alive) = (0, 0);
        for other in 0..geometry.parts {
            let is_sender = part == Some(other);
            let has_reached = is_sender
                || (frame..end)
                    .rev()
                    .any(|frame| self.present(frame, other) > 0);
            let is_alive = has_reached || self.parts.is_alive(other, base, geometry.window as u64);
            reached += usize::from(has_reached);
            alive += usize::from(is_alive);
        }
        (reached, alive)
    }

    /// Records that the oldest open frame is complete, so that all its senders are active. Packets that are early now do not show
    /// that a sender is steady.
    pub(super) fn note_complete(&self) {
        if self.geometry.parts > 1 {
            let horizon = self.horizon.load(Ordering::Acquire);
            let frame = horizon.saturating_sub(1) / u64::from(self.geometry.packets_per_frame);
            self.ahead.store(frame, Ordering::Release);
        }
    }

    /// Returns whether `part` has filled all its packet slots of the open frames, or at least half of those from the frame `base` to
    /// the frame before `frame`, without packets that were early when the last complete frame was closed.
    fn is_steady(&self, base: u64, frame: u64, part: u32) -> bool {
        let end = base + self.geometry.window as u64;
        let start = base.max(self.ahead.load(Ordering::Acquire) + 1);
        let per_part = u64::from(self.geometry.packets_per_part());
        let present = |frames: Range<u64>| frames.map(|open| self.present(open, part)).sum::<u64>();
        2 * present(start..end) >= (frame - base) * per_part
            || present(base..end) == (end - base) * per_part
    }

    /// Returns the number of packets of `part` that have arrived in the open frame `frame`.
    fn present(&self, frame: u64, part: u32) -> u64 {
        let (record, packets) = (self.record(frame), self.geometry.packets_per_part());
        let indices = part * packets..(part + 1) * packets;
        indices.filter(|index| record.is_present(*index)).count() as u64
    }
}
