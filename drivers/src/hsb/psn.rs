//! Assigns each write to a frame, using its page and its packet sequence number (PSN).
//!
//! A page is reused for many frames, and the PSN grows by one with each packet and wraps. Together they identify one frame:
//! among all frames that use the page, the one whose packet would have this PSN. A PSN that fits none of them comes either
//! from a sender that restarted its PSNs (then the packets after it are consistent with it) or from a foreign sender (then
//! they are not).

use super::pages::PacketPosition;

/// Bits of a PSN.
const PSN_BITS: u32 = 24;
/// Bits of a PSN from senders that use a shorter counter.
const SHORT_PSN_BITS: u32 = 20;

/// The frame of a write, or the reason why it cannot be assigned to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PsnMatch {
    /// The packet belongs to the frame with this number.
    Frame(u64),
    /// The packet belongs to a frame that is no longer tracked, so it is a duplicate.
    Old,
    /// The PSN fits no frame in this page, or only a frame before the first. The packet may belong to a restarted count that is
    /// not confirmed yet.
    LostSync {
        /// Whether the packet starts a new group, because it is not consistent with the previous packets of this kind.
        starts: bool,
    },
    /// This packet confirms that the sender has restarted its PSNs.
    Restarted,
}

/// A packet with a known frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    frame: u64,
    page: u32,
    index: u32,
    psn: u32,
}

/// Packets that are consistent with each other, but not with the current stream.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    last: Point,
    count: u32,
}

/// Tracks the PSNs of a stream of writes.
#[derive(Clone, Debug)]
pub(super) struct PsnTracker {
    pages: u32,
    /// Number of packets per frame, including a separate metadata packet.
    stride: i64,
    /// Whether a frame end has confirmed `stride`; otherwise the true value may be one larger.
    is_stride_known: bool,
    /// Number of data packets per frame.
    packets: u32,
    /// Number of frames before the newest that are still tracked.
    memory: u64,
    /// Number of consecutive consistent packets that confirm a restart.
    resync_after: u32,
    /// Whether a sender may restart with PSNs that match old frames.
    old_can_restart: bool,
    newest: Option<Point>,
    candidate: Option<Candidate>,
    /// Number of consecutive old packets.
    old_in_row: u32,
    /// Whether a PSN with more than 20 bits was seen.
    is_wide: bool,
}

impl PsnTracker {
    /// Creates a tracker for frames of `packets` packets over `pages` pages. Packets of the last `memory` frames before
    /// the newest are accepted. `resync_after` consecutive consistent packets confirm a restart.
    pub(super) fn new(pages: u32, packets: u32, memory: u64, resync_after: u32) -> Self {
        Self {
            pages: pages.max(1),
            stride: i64::from(packets),
            is_stride_known: false,
            packets,
            memory,
            resync_after: resync_after.max(1),
            old_can_restart: true,
            newest: None,
            candidate: None,
            old_in_row: 0,
            is_wide: false,
        }
    }

    /// Always treats packets of old frames as duplicates. Use it if the sender gets a new key before it restarts its PSNs,
    /// because a restarted sender then uses another key.
    #[must_use]
    pub(super) const fn ignore_old_restarts(mut self) -> Self {
        self.old_can_restart = false;
        self
    }

    /// Returns whether consecutive old packets can confirm a restart.
    pub(super) const fn restarts_with_old(&self) -> bool {
        self.old_can_restart
    }

    /// Returns the maximum number of packets before the one that confirms a restart.
    pub(super) const fn max_unconfirmed(
        packets: usize,
        resync_after: usize,
        restarts_with_old: bool,
    ) -> usize {
        if restarts_with_old {
            2 * packets + resync_after
        } else {
            // Each packet may arrive twice.
            2 * resync_after
        }
    }

    /// Finds the frame of the write with `psn` to `position`. Frames are tracked as far back as `memory`. Only
    /// [`follow`](Self::follow) advances the tracker; this function only records packets that do not continue the
    /// stream.
    #[inline]
    pub(super) fn find(&mut self, psn: u32, position: &PacketPosition) -> PsnMatch {
        let newest = self.newest.map_or(0, |newest| newest.frame);
        let oldest = newest.saturating_sub(self.memory);
        self.find_tracked(psn, position, |frame| frame >= oldest)
    }

    /// Finds the frame as [`find`](Self::find) does. `is_known` returns whether a frame before the newest is still
    /// tracked.
    #[inline]
    pub(super) fn find_tracked(
        &mut self,
        psn: u32,
        position: &PacketPosition,
        is_tracked: impl FnOnce(u64) -> bool,
    ) -> PsnMatch {
        let Some(newest) = self.newest else {
            return PsnMatch::Restarted;
        };
        let Some((frame, _)) = self.frame(newest, psn, position) else {
            return self.handle_lost_sync(psn, position);
        };
        match u64::try_from(frame) {
            Ok(frame) if frame >= newest.frame || is_tracked(frame) => PsnMatch::Frame(frame),
            _ => self.handle_old(),
        }
    }

    /// Advances the tracker, because the write with `psn` was placed in frame `frame`.
    #[inline]
    pub(super) fn follow(&mut self, frame: u64, psn: u32, position: &PacketPosition) {
        let point = Point {
            frame,
            page: position.page,
            index: position.index,
            psn,
        };
        (self.candidate, self.old_in_row) = (None, 0);
        if !self.is_stride_known
            && let Some(newest) = self.newest
            && let Some((_, stride)) = self.frame(newest, psn, position)
        {
            self.stride = stride;
        }
        if psn >> SHORT_PSN_BITS != 0 {
            self.is_wide = true;
        }
        let key = |point: &Point| (point.frame, point.index);
        if self.newest.is_none_or(|newest| key(&point) > key(&newest)) {
            self.newest = Some(point);
        }
    }

    /// Discards the position of the stream, so that the next write starts again with frame 0.
    pub(super) const fn forget(&mut self) {
        (self.newest, self.candidate, self.old_in_row) = (None, None, 0);
    }

    /// Returns whether `frame` follows the newest frame so closely that a single packet is sufficient evidence.
    pub(super) fn is_near(&self, frame: u64) -> bool {
        self.newest.is_none_or(|newest| frame <= newest.frame + 1)
    }

    /// Starts again with frame 0 at this write. The detected number of packets per frame and the PSN width are kept.
    pub(super) fn begin(&mut self, psn: u32, position: &PacketPosition) {
        self.newest = None;
        self.follow(0, psn, position);
    }

    /// Sets whether each frame ends with a separate metadata packet, as seen in an end packet.
    pub(super) fn set_separate_metadata(&mut self, is_separate: bool) {
        self.stride = i64::from(self.packets) + i64::from(is_separate);
        self.is_stride_known = true;
    }

    /// Returns the frame number of the write and the stride that it is based on, if the PSN fits.
    #[inline]
    fn frame(&self, newest: Point, psn: u32, position: &PacketPosition) -> Option<(i64, i64)> {
        let stride = self.stride;
        let (frame, off) = self.point(newest, stride, psn, position)?;
        if off == 0 {
            return Some((frame, stride));
        }
        // The sensor ended a frame early: its last packets were never sent.
        let near = i64::try_from(newest.frame).ok()?;
        let packets = i64::from(self.packets);
        if position.index == self.packets
            && (near..=near + 1).contains(&frame)
            && (-packets..0).contains(&off)
        {
            return Some((frame, stride));
        }
        if self.is_stride_known {
            return None;
        }
        let other = 2 * packets + 1 - stride;
        let (frame, off) = self.point(newest, other, psn, position)?;
        (off == 0).then_some((frame, other))
    }

    /// Returns the number of packets from `from` to `to`, in the shorter direction.
    fn distance(&self, from: u32, to: u32) -> i64 {
        let is_wide = self.is_wide || to >> SHORT_PSN_BITS != 0;
        let spare = 32 - if is_wide { PSN_BITS } else { SHORT_PSN_BITS };
        i64::from((to.wrapping_sub(from) << spare).cast_signed() >> spare)
    }

    /// Returns the frame in the page of `position` whose packet is nearest to `psn`, and the distance in packets.
    fn point(
        &self,
        from: Point,
        stride: i64,
        psn: u32,
        position: &PacketPosition,
    ) -> Option<(i64, i64)> {
        let pages = i64::from(self.pages);
        let ahead =
            self.distance(from.psn, psn) + i64::from(from.index) - i64::from(position.index);
        let pages_on = (i64::from(position.page) - i64::from(from.page)).rem_euclid(pages);
        let round = pages * stride;
        let rounds = (2 * (ahead - pages_on * stride) + round).div_euclid(2 * round);
        let frames = pages_on + rounds * pages;
        let frame = i64::try_from(from.frame).ok()?.checked_add(frames)?;
        Some((frame, ahead - frames * stride))
    }

    #[cold]
    fn handle_lost_sync(&mut self, psn: u32, position: &PacketPosition) -> PsnMatch {
        self.old_in_row = 0;
        if self.candidate.is_some_and(|candidate| {
            let Point { page, index, .. } = candidate.last;
            candidate.count < self.resync_after
                && (candidate.last.psn, page, index) == (psn, position.page, position.index)
        }) {
            return PsnMatch::LostSync { starts: false };
        }
        let agreed = self.candidate.and_then(|candidate| {
            let (frame, off) = self.point(candidate.last, self.stride, psn, position)?;
            // At least the next frame, because a frame may consist of one packet.
            let ahead = self.memory.max(1);
            let near = candidate.last.frame.saturating_sub(1)..=candidate.last.frame + ahead;
            let frame = u64::try_from(frame).ok()?;
            let is_other = candidate.last.psn != psn;
            (off == 0 && is_other && near.contains(&frame)).then_some((frame, candidate.count + 1))
        });
        // Start far above 0, so that a packet slightly before the first is still consistent with it.
        let (frame, count) = agreed.unwrap_or((1 << 32, 1));
        let last = Point {
            frame,
            page: position.page,
            index: position.index,
            psn,
        };
        self.candidate = Some(Candidate { last, count });
        if count >= self.resync_after {
            PsnMatch::Restarted
        } else {
            PsnMatch::LostSync { starts: count == 1 }
        }
    }

    /// Handles a packet of an old frame. If two whole frames consist only of such packets, they confirm a restart,
    /// because a restarted sender may also use old PSNs.
    #[cold]
    fn handle_old(&mut self) -> PsnMatch {
        self.candidate = None;
        if !self.old_can_restart {
            return PsnMatch::Old;
        }
        self.old_in_row += 1;
        if self.old_in_row > 2 * self.packets + self.resync_after {
            PsnMatch::Restarted
        } else {
            PsnMatch::Old
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn position(page: u32, index: u32) -> PacketPosition {
        PacketPosition {
            page,
            index,
            bytes: 1,
            metadata: None,
        }
    }

    /// Returns packet `n` of a stream: its frame, PSN and position. Each frame has 5 data packets and one metadata
    /// packet.
    fn packet(first: u32, bits: u32, pages: u32, n: u64) -> (u64, u32, PacketPosition) {
        let psn = (u64::from(first) + n) & ((1 << bits) - 1);
        let frame = n / 6;
        let page = u32::try_from(frame % u64::from(pages)).unwrap();
        let index = u32::try_from(n % 6).unwrap();
        (frame, u32::try_from(psn).unwrap(), position(page, index))
    }

    /// Returns a tracker that has tracked the first packet and knows that metadata arrive in separate packets.
    fn tracker(first: u32, pages: u32) -> PsnTracker {
        let mut tracker = PsnTracker::new(pages, 5, 4, 4);
        let (_, psn, position) = packet(first, 24, pages, 0);
        assert_eq!(tracker.find(psn, &position), PsnMatch::Restarted);
        tracker.begin(psn, &position);
        tracker.set_separate_metadata(true);
        tracker
    }

    proptest! {
        #[test]
        fn gaps_of_any_length_are_tracked(
            start in 0_u32..1 << 24,
            is_narrow: bool,
            pages in 1_u32..9,
            gaps in proptest::collection::vec(prop_oneof![4 => 1_u64..4, 1 => 1_u64..200_000], 1..200),
        ) {
            let (bits, first) = if is_narrow { (20, start & 0xf_ffff) } else { (24, start) };
            let mut tracker = tracker(first, pages);
            let mut n = 0;
            for gap in gaps {
                n += gap;
                // A sender with 24 bits is detected as soon as a PSN exceeds 20 bits.
                if !is_narrow && !tracker.is_wide {
                    tracker.is_wide = true;
                }
                let (frame, psn, position) = packet(first, bits, pages, n);
                prop_assert_eq!(tracker.find(psn, &position), PsnMatch::Frame(frame));
                tracker.follow(frame, psn, &position);
            }
        }

        #[test]
        fn slightly_late_packets_are_found(back in 0_u64..24, first in 0_u32..1 << 20) {
            let mut tracker = tracker(first, 8);
            let (frame, psn, at) = packet(first, 24, 8, 100);
            prop_assert_eq!(tracker.find(psn, &at), PsnMatch::Frame(frame));
            tracker.follow(frame, psn, &at);
            let (frame, psn, at) = packet(first, 24, 8, 100 - back);
            prop_assert_eq!(tracker.find(psn, &at), PsnMatch::Frame(frame));
            tracker.follow(frame, psn, &at);
            let (frame, psn, at) = packet(first, 24, 8, 101);
            prop_assert_eq!(tracker.find(psn, &at), PsnMatch::Frame(frame));
        }
    }

    #[test]
    fn psn_without_frame_loses_sync_until_confirmed() {
        let mut tracker = tracker(0, 8);
        for n in 1..50 {
            let (frame, psn, at) = packet(0, 24, 8, n);
            tracker.follow(frame, psn, &at);
        }
        // Repetitions of the same packet do not confirm a restart.
        for n in 0..10 {
            let lost_sync = PsnMatch::LostSync { starts: n == 0 };
            assert_eq!(tracker.find(7001, &position(3, 2)), lost_sync);
        }
        // If the stream continues, the candidate is discarded.
        let (frame, psn, at) = packet(0, 24, 8, 50);
        assert_eq!(tracker.find(psn, &at), PsnMatch::Frame(frame));
        tracker.follow(frame, psn, &at);
        for i in 0..3 {
            let lost_sync = PsnMatch::LostSync { starts: i == 0 };
            for begins in [lost_sync, PsnMatch::LostSync { starts: false }] {
                assert_eq!(tracker.find(9001 + i, &position(3, 1 + i)), begins);
            }
        }
        assert_eq!(tracker.find(9004, &position(3, 4)), PsnMatch::Restarted);
        tracker.begin(9004, &position(3, 4));
        assert_eq!(tracker.find(9006, &position(4, 0)), PsnMatch::Frame(1));
    }

    #[test]
    fn frame_that_ends_early_is_tracked() {
        let mut tracker = tracker(0, 8);
        tracker.follow(0, 2, &position(0, 2));
        // Packets 3 and 4 were never sent; the metadata follow immediately.
        assert_eq!(tracker.find(3, &position(0, 5)), PsnMatch::Frame(0));
        tracker.follow(0, 3, &position(0, 5));
        assert_eq!(tracker.find(4, &position(1, 0)), PsnMatch::Frame(1));
    }

    #[test]
    fn separate_metadata_are_detected_when_lost() {
        for more in 0..2 {
            let mut tracker = PsnTracker::new(8, 5, 4, 4);
            tracker.begin(100, &position(0, 3));
            assert_eq!(
                tracker.find(102 + more, &position(1, 0)),
                PsnMatch::Frame(1)
            );
            tracker.follow(1, 102 + more, &position(1, 0));
            assert_eq!(
                tracker.find(107 + 2 * more, &position(2, 0)),
                PsnMatch::Frame(2)
            );
        }
    }

    #[test]
    fn repeated_packets_are_old() {
        let mut tracker = tracker(0, 8);
        for n in 1..600 {
            let (frame, psn, at) = packet(0, 24, 8, n);
            assert_eq!(tracker.find(psn, &at), PsnMatch::Frame(frame));
            tracker.follow(frame, psn, &at);
        }
        for n in 60..74 {
            let (_, psn, at) = packet(0, 24, 8, n);
            assert_eq!(tracker.find(psn, &at), PsnMatch::Old, "{n}");
        }
        let (_, psn, at) = packet(0, 24, 8, 74);
        assert_eq!(tracker.find(psn, &at), PsnMatch::Restarted);
    }

    #[test]
    fn old_packets_never_restart_with_unique_keys() {
        let mut tracker = tracker(0, 8).ignore_old_restarts();
        for n in 1..600 {
            let (frame, psn, at) = packet(0, 24, 8, n);
            tracker.follow(frame, psn, &at);
        }
        for n in 60..460 {
            let (_, psn, at) = packet(0, 24, 8, n);
            assert_eq!(tracker.find(psn, &at), PsnMatch::Old, "{n}");
        }
        let (frame, psn, at) = packet(0, 24, 8, 600);
        assert_eq!(tracker.find(psn, &at), PsnMatch::Frame(frame));
    }

    #[test]
    fn caller_decides_which_frames_are_tracked() {
        let mut tracker = tracker(0, 8);
        for n in 1..60 {
            let (frame, psn, at) = packet(0, 24, 8, n);
            tracker.follow(frame, psn, &at);
        }
        let (_, psn, at) = packet(0, 24, 8, 3);
        assert_eq!(
            tracker.find_tracked(psn, &at, |frame| frame == 0),
            PsnMatch::Frame(0)
        );
        assert_eq!(tracker.find_tracked(psn, &at, |_| false), PsnMatch::Old);
    }

    #[test]
    fn frames_of_one_packet_recover_from_a_restart() {
        let mut tracker = PsnTracker::new(8, 1, 0, 4);
        tracker.begin(500, &position(0, 0));
        tracker.set_separate_metadata(false);
        for n in 0..3 {
            let found = tracker.find(90_000 + n, &position(n, 0));
            assert_eq!(found, PsnMatch::LostSync { starts: n == 0 }, "{n}");
        }
        assert_eq!(tracker.find(90_003, &position(3, 0)), PsnMatch::Restarted);
    }

    #[test]
    fn find_does_not_advance() {
        let mut tracker = PsnTracker::new(8, 5, 4, 4);
        tracker.begin(100, &position(0, 3));
        // This packet suggests separate metadata, but the next packet contradicts that.
        assert_eq!(tracker.find(103, &position(1, 0)), PsnMatch::Frame(1));
        assert_eq!(tracker.find(102, &position(1, 0)), PsnMatch::Frame(1));
        tracker.follow(1, 102, &position(1, 0));
        assert_eq!(tracker.find(107, &position(2, 0)), PsnMatch::Frame(2));
        let lost_sync = PsnMatch::LostSync { starts: true };
        assert_eq!(tracker.find(109, &position(2, 0)), lost_sync);
    }

    #[test]
    fn restarted_sender_keeps_its_psn_width() {
        let mut tracker = tracker(0xf0_0000, 8);
        tracker.begin(0, &position(0, 0));
        // More than half of the 20-bit range.
        let (frame, psn, at) = packet(0, 24, 8, 600_000);
        assert_eq!(tracker.find(psn, &at), PsnMatch::Frame(frame));
    }
}
