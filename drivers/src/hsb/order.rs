//! Which frame a write belongs to, counted without end: from its page and its packet sequence number.
//!
//! A page says where a frame lies, and nothing of which round over the pages it is; the sequence number grows by one with
//! each packet and wraps. Together they name one frame: of all frames that may lie in the page, the one whose packet would
//! have that number. A number that fits none of them comes from a sender that counts anew (then those after it agree with
//! it), or from a stranger (then they do not).

use super::pages::Spot;

/// Bits of a packet sequence number.
const WIDE: u32 = 24;
/// Bits of those senders that keep fewer.
const NARROW: u32 = 20;

/// What a write is, in the order of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// A packet of the frame with this number.
    Frame(u64),
    /// A packet of a frame that has passed so long ago that nothing is known of it any more: sent again.
    Past,
    /// Its number fits no frame in its page, or one before the first. It may be of a new count that is not confirmed yet.
    Astray {
        /// It does not agree with the packets of this kind before it.
        begins: bool,
    },
    /// Packets in succession agree that the sender has restarted its count; this is the last of them.
    Anew,
}

/// A packet's place in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    /// Its frame's number.
    frame: u64,
    page: u32,
    index: u32,
    psn: u32,
}

/// Packets that agree with each other and not with the stream.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    last: Point,
    count: u32,
}

/// Follows a stream of writes.
#[derive(Clone, Debug)]
pub struct Order {
    pages: u32,
    /// Packets from one frame to the next …
    stride: i64,
    /// … as the end of a frame has told; else it may be one more.
    is_sure: bool,
    /// Packets of a frame that carry some of it.
    packets: u32,
    /// Frames behind the newest that are not yet past.
    memory: u64,
    /// Packets in succession that are believed.
    agree: u32,
    /// Whether a sender may count anew with numbers of the past.
    returns: bool,
    newest: Option<Point>,
    candidate: Option<Candidate>,
    /// Packets of the past in succession.
    past: u32,
    /// Whether numbers beyond the narrow ones were seen.
    is_wide: bool,
}

impl Order {
    /// For frames of `packets` packets over `pages` pages; `memory` frames behind the newest may still come, and `agree`
    /// packets in succession are believed against the stream.
    pub fn new(pages: u32, packets: u32, memory: u64, agree: u32) -> Self {
        Self {
            pages: pages.max(1),
            stride: i64::from(packets),
            is_sure: false,
            packets,
            memory,
            agree: agree.max(1),
            returns: true,
            newest: None,
            candidate: None,
            past: 0,
            is_wide: false,
        }
    }

    /// Takes packets of the past for such for ever, however many come in a row: for a sender that is told a new key before
    /// it counts anew, so that what has the key was sent since.
    #[must_use]
    pub const fn without_return(mut self) -> Self {
        self.returns = false;
        self
    }

    /// Whether packets of the past in succession open a new count.
    pub const fn can_return(&self) -> bool {
        self.returns
    }

    /// Packets that come before the one that confirms a new count, at most.
    pub const fn doubtful(packets: usize, agree: usize, can_return: bool) -> usize {
        if can_return {
            2 * packets + agree
        } else {
            // Each may come twice.
            2 * agree
        }
    }

    /// Where the write of `psn` to `spot` belongs, with frames known as far back as `memory` says. The stream is not moved
    /// by it until [`follow`](Self::follow) says that it was put there; only what does not go on from it is remembered.
    #[inline]
    pub fn find(&mut self, psn: u32, spot: &Spot) -> Course {
        let newest = self.newest.map_or(0, |newest| newest.frame);
        let oldest = newest.saturating_sub(self.memory);
        self.find_known(psn, spot, |frame| frame >= oldest)
    }

    /// [`find`](Self::find) where `knows` says of a frame before the newest whether it is known still.
    #[inline]
    pub fn find_known(&mut self, psn: u32, spot: &Spot, knows: impl FnOnce(u64) -> bool) -> Course {
        let Some(newest) = self.newest else {
            return Course::Anew;
        };
        let Some((frame, _)) = self.frame(newest, psn, spot) else {
            return self.stray(psn, spot);
        };
        match u64::try_from(frame) {
            Ok(frame) if frame >= newest.frame || knows(frame) => Course::Frame(frame),
            _ => self.pass(),
        }
    }

    /// Says that the write of `psn` to `spot` was put in frame `frame`.
    #[inline]
    pub fn follow(&mut self, frame: u64, psn: u32, spot: &Spot) {
        let point = Point {
            frame,
            page: spot.page,
            index: spot.index,
            psn,
        };
        (self.candidate, self.past) = (None, 0);
        if !self.is_sure
            && let Some(newest) = self.newest
            && let Some((_, stride)) = self.frame(newest, psn, spot)
        {
            self.stride = stride;
        }
        if psn >> NARROW != 0 {
            self.is_wide = true;
        }
        let place = |point: &Point| (point.frame, point.index);
        if self
            .newest
            .is_none_or(|newest| place(&point) > place(&newest))
        {
            self.newest = Some(point);
        }
    }

    /// Forgets where the stream stands: the next write begins again as frame 0.
    pub const fn forget(&mut self) {
        (self.newest, self.candidate, self.past) = (None, None, 0);
    }

    /// Whether `frame` comes so soon after the newest that one packet alone may be believed.
    pub fn is_near(&self, frame: u64) -> bool {
        self.newest.is_none_or(|newest| frame <= newest.frame + 1)
    }

    /// Begins anew with the write of `psn` to `spot`, as frame 0. What was learned of how the sender counts remains.
    pub fn begin(&mut self, psn: u32, spot: &Spot) {
        self.newest = None;
        self.follow(0, psn, spot);
    }

    /// Says whether frames end with a packet of metadata alone, as a packet that ended one told.
    pub fn ends(&mut self, alone: bool) {
        self.stride = i64::from(self.packets) + i64::from(alone);
        self.is_sure = true;
    }

    /// The number of the frame that the write of `psn` to `spot` belongs to, if there is one, and the stride that says so.
    #[inline]
    fn frame(&self, newest: Point, psn: u32, spot: &Spot) -> Option<(i64, i64)> {
        let stride = self.stride;
        let (frame, off) = self.point(newest, stride, psn, spot)?;
        if off == 0 {
            return Some((frame, stride));
        }
        // A frame that the sensor ended early: its last packets were never sent.
        let near = i64::try_from(newest.frame).ok()?;
        let packets = i64::from(self.packets);
        if spot.index == self.packets
            && (near..=near + 1).contains(&frame)
            && (-packets..0).contains(&off)
        {
            return Some((frame, stride));
        }
        if self.is_sure {
            return None;
        }
        let other = 2 * packets + 1 - stride;
        let (frame, off) = self.point(newest, other, psn, spot)?;
        (off == 0).then_some((frame, other))
    }

    /// Packets from the number `from` to `to`, the shorter way round.
    fn distance(&self, from: u32, to: u32) -> i64 {
        let is_wide = self.is_wide || to >> NARROW != 0;
        let spare = 32 - if is_wide { WIDE } else { NARROW };
        i64::from((to.wrapping_sub(from) << spare).cast_signed() >> spare)
    }

    /// The frame in the page of `spot` whose packet comes nearest to the number `psn`, and how far it is from it.
    fn point(&self, from: Point, stride: i64, psn: u32, spot: &Spot) -> Option<(i64, i64)> {
        let pages = i64::from(self.pages);
        let ahead = self.distance(from.psn, psn) + i64::from(from.index) - i64::from(spot.index);
        let pages_on = (i64::from(spot.page) - i64::from(from.page)).rem_euclid(pages);
        let round = pages * stride;
        let rounds = (2 * (ahead - pages_on * stride) + round).div_euclid(2 * round);
        let frames = pages_on + rounds * pages;
        let frame = i64::try_from(from.frame).ok()?.checked_add(frames)?;
        Some((frame, ahead - frames * stride))
    }

    #[cold]
    fn stray(&mut self, psn: u32, spot: &Spot) -> Course {
        self.past = 0;
        if self.candidate.is_some_and(|candidate| {
            let Point { page, index, .. } = candidate.last;
            candidate.count < self.agree
                && (candidate.last.psn, page, index) == (psn, spot.page, spot.index)
        }) {
            return Course::Astray { begins: false };
        }
        let agreed = self.candidate.and_then(|candidate| {
            let (frame, off) = self.point(candidate.last, self.stride, psn, spot)?;
            // At least the next one: frames may be no longer than a packet.
            let ahead = self.memory.max(1);
            let near = candidate.last.frame.saturating_sub(1)..=candidate.last.frame + ahead;
            let frame = u64::try_from(frame).ok()?;
            let is_other = candidate.last.psn != psn;
            (off == 0 && is_other && near.contains(&frame)).then_some((frame, candidate.count + 1))
        });
        // Far from 0, so that one a little before the first is no other count.
        let (frame, count) = agreed.unwrap_or((1 << 32, 1));
        let last = Point {
            frame,
            page: spot.page,
            index: spot.index,
            psn,
        };
        self.candidate = Some(Candidate { last, count });
        if count >= self.agree {
            Course::Anew
        } else {
            Course::Astray { begins: count == 1 }
        }
    }

    /// A packet of the past, which a sender that counts anew may send as well: believed after two frames of nothing else.
    #[cold]
    fn pass(&mut self) -> Course {
        self.candidate = None;
        if !self.returns {
            return Course::Past;
        }
        self.past += 1;
        if self.past > 2 * self.packets + self.agree {
            Course::Anew
        } else {
            Course::Past
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn spot(page: u32, index: u32) -> Spot {
        Spot {
            page,
            index,
            bytes: 1,
            metadata: None,
        }
    }

    /// Packet `n` of a stream: its number and place. 5 packets of data a frame, and one of metadata.
    fn packet(first: u32, bits: u32, pages: u32, n: u64) -> (u64, u32, Spot) {
        let psn = (u64::from(first) + n) & ((1 << bits) - 1);
        let frame = n / 6;
        let page = u32::try_from(frame % u64::from(pages)).unwrap();
        let index = u32::try_from(n % 6).unwrap();
        (frame, u32::try_from(psn).unwrap(), spot(page, index))
    }

    /// An order that has seen the first packet and knows that metadata come alone.
    fn order(first: u32, pages: u32) -> Order {
        let mut order = Order::new(pages, 5, 4, 4);
        let (_, psn, spot) = packet(first, 24, pages, 0);
        assert_eq!(order.find(psn, &spot), Course::Anew);
        order.begin(psn, &spot);
        order.ends(true);
        order
    }

    proptest! {
        #[test]
        fn psn_gaps_of_any_length_are_counted(
            start in 0_u32..1 << 24,
            is_narrow: bool,
            pages in 1_u32..9,
            gaps in proptest::collection::vec(prop_oneof![4 => 1_u64..4, 1 => 1_u64..200_000], 1..200),
        ) {
            let (bits, first) = if is_narrow { (20, start & 0xf_ffff) } else { (24, start) };
            let mut order = order(first, pages);
            let mut n = 0;
            for gap in gaps {
                n += gap;
                // A wide sender is known as one once a number shows it.
                if !is_narrow && !order.is_wide {
                    order.is_wide = true;
                }
                let (frame, psn, spot) = packet(first, bits, pages, n);
                prop_assert_eq!(order.find(psn, &spot), Course::Frame(frame));
                order.follow(frame, psn, &spot);
            }
        }

        #[test]
        fn psn_slightly_late_packet_is_located(back in 0_u64..24, first in 0_u32..1 << 20) {
            let mut order = order(first, 8);
            let (frame, psn, at) = packet(first, 24, 8, 100);
            prop_assert_eq!(order.find(psn, &at), Course::Frame(frame));
            order.follow(frame, psn, &at);
            let (frame, psn, at) = packet(first, 24, 8, 100 - back);
            prop_assert_eq!(order.find(psn, &at), Course::Frame(frame));
            order.follow(frame, psn, &at);
            let (frame, psn, at) = packet(first, 24, 8, 101);
            prop_assert_eq!(order.find(psn, &at), Course::Frame(frame));
        }
    }

    #[test]
    fn psn_outside_frames_is_lost_sync_until_confirmed() {
        let mut order = order(0, 8);
        for n in 1..50 {
            let (frame, psn, at) = packet(0, 24, 8, n);
            order.follow(frame, psn, &at);
        }
        // The same packet again and again confirms nothing.
        for n in 0..10 {
            let astray = Course::Astray { begins: n == 0 };
            assert_eq!(order.find(7001, &spot(3, 2)), astray);
        }
        // The stream goes on: all is forgotten.
        let (frame, psn, at) = packet(0, 24, 8, 50);
        assert_eq!(order.find(psn, &at), Course::Frame(frame));
        order.follow(frame, psn, &at);
        for i in 0..3 {
            let astray = Course::Astray { begins: i == 0 };
            for begins in [astray, Course::Astray { begins: false }] {
                assert_eq!(order.find(9001 + i, &spot(3, 1 + i)), begins);
            }
        }
        assert_eq!(order.find(9004, &spot(3, 4)), Course::Anew);
        order.begin(9004, &spot(3, 4));
        assert_eq!(order.find(9006, &spot(4, 0)), Course::Frame(1));
    }

    #[test]
    fn psn_short_frame_counts_as_frame() {
        let mut order = order(0, 8);
        order.follow(0, 2, &spot(0, 2));
        // Packets 3 and 4 were never made: metadata come next.
        assert_eq!(order.find(3, &spot(0, 5)), Course::Frame(0));
        order.follow(0, 3, &spot(0, 5));
        assert_eq!(order.find(4, &spot(1, 0)), Course::Frame(1));
    }

    #[test]
    fn psn_separate_metadata_packet_is_detected_when_lost() {
        for more in 0..2 {
            let mut order = Order::new(8, 5, 4, 4);
            order.begin(100, &spot(0, 3));
            assert_eq!(order.find(102 + more, &spot(1, 0)), Course::Frame(1));
            order.follow(1, 102 + more, &spot(1, 0));
            assert_eq!(order.find(107 + 2 * more, &spot(2, 0)), Course::Frame(2));
        }
    }

    #[test]
    fn psn_repeated_packet_is_in_the_past() {
        let mut order = order(0, 8);
        for n in 1..600 {
            let (frame, psn, at) = packet(0, 24, 8, n);
            assert_eq!(order.find(psn, &at), Course::Frame(frame));
            order.follow(frame, psn, &at);
        }
        for n in 60..74 {
            let (_, psn, at) = packet(0, 24, 8, n);
            assert_eq!(order.find(psn, &at), Course::Past, "{n}");
        }
        let (_, psn, at) = packet(0, 24, 8, 74);
        assert_eq!(order.find(psn, &at), Course::Anew);
    }

    #[test]
    fn psn_with_new_key_never_restarts_in_the_past() {
        let mut order = order(0, 8).without_return();
        for n in 1..600 {
            let (frame, psn, at) = packet(0, 24, 8, n);
            order.follow(frame, psn, &at);
        }
        for n in 60..460 {
            let (_, psn, at) = packet(0, 24, 8, n);
            assert_eq!(order.find(psn, &at), Course::Past, "{n}");
        }
        let (frame, psn, at) = packet(0, 24, 8, 600);
        assert_eq!(order.find(psn, &at), Course::Frame(frame));
    }

    #[test]
    fn psn_known_position_is_set_externally() {
        let mut order = order(0, 8);
        for n in 1..60 {
            let (frame, psn, at) = packet(0, 24, 8, n);
            order.follow(frame, psn, &at);
        }
        let (_, psn, at) = packet(0, 24, 8, 3);
        assert_eq!(
            order.find_known(psn, &at, |frame| frame == 0),
            Course::Frame(0)
        );
        assert_eq!(order.find_known(psn, &at, |_| false), Course::Past);
    }

    #[test]
    fn psn_one_packet_frames_recover_after_restart() {
        let mut order = Order::new(8, 1, 0, 4);
        order.begin(500, &spot(0, 0));
        order.ends(false);
        for n in 0..3 {
            let course = order.find(90_000 + n, &spot(n, 0));
            assert_eq!(course, Course::Astray { begins: n == 0 }, "{n}");
        }
        assert_eq!(order.find(90_003, &spot(3, 0)), Course::Anew);
    }

    #[test]
    fn psn_lookup_changes_nothing() {
        let mut order = Order::new(8, 5, 4, 4);
        order.begin(100, &spot(0, 3));
        // As if metadata came alone, which the next packet contradicts.
        assert_eq!(order.find(103, &spot(1, 0)), Course::Frame(1));
        assert_eq!(order.find(102, &spot(1, 0)), Course::Frame(1));
        order.follow(1, 102, &spot(1, 0));
        assert_eq!(order.find(107, &spot(2, 0)), Course::Frame(2));
        let astray = Course::Astray { begins: true };
        assert_eq!(order.find(109, &spot(2, 0)), astray);
    }

    #[test]
    fn psn_width_is_kept_after_restart() {
        let mut order = order(0xf0_0000, 8);
        order.begin(0, &spot(0, 0));
        // Beyond half of what fewer bits count.
        let (frame, psn, at) = packet(0, 24, 8, 600_000);
        assert_eq!(order.find(psn, &at), Course::Frame(frame));
    }
}
