//! The open blocks: which of their packets arrived, and which were requested again.
//!
//! ```text
//!   block      7                        8
//!   packet id  0      1 … n     n+1     0      1 … n     n+1
//!              leader payload trailer │ leader payload trailer
//!                     ▲         ▲                 ▲
//!                     │         │                 head: one past the newest packet
//!                     hole      checked: holes before it were requested
//!                               ◀──── distance ────▶
//! ```
//! A packet that is missing `distance` positions before the newest one is a hole, no longer a reordered packet. Its resend is
//! requested at once. A request whose packets do not arrive is repeated after `RETRY`.

use super::gvcp::Resend;
use super::number;
use daq_core::counts;
use daq_core::frame::Timestamp;
use std::time::{Duration, Instant};

/// Time after which a request is repeated.
pub(super) const RETRY: Duration = Duration::from_millis(10);
/// Time without packets after which the rest of the newest block is considered lost.
const TAIL: Duration = Duration::from_millis(40);
/// Maximum number of times that the requests of a block are repeated.
const REPEATS: u32 = 3;
/// Number of blocks whose leaders may arrive before the window opens their frames.
const AHEAD: usize = 2;
/// Maximum number of requests per receive call.
pub(super) const MAX_REQUESTS: usize = 64;

counts! {
    /// The counters of a camera besides its ledger.
    pub struct CameraCounts {
        /// Number of payload packets whose resend was requested.
        requested,
        /// Number of payload packets that arrived because they were requested.
        recovered,
        /// Number of payload packets whose original arrived after they were requested.
        reordered,
        /// Number of payload packets that were requested and did not arrive before their block was closed.
        unrecovered,
        /// Number of requested packets that the camera could not send again.
        unavailable,
        /// Number of blocks whose leader does not match the configuration.
        mismatched,
        /// Number of failed control requests.
        control_errors,
        /// Number of times that the camera was set up again after it was lost.
        reconnected,
    }
}

/// How lost packets are requested again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResendLimits {
    /// Number of packets that may overtake a packet before it is considered lost.
    pub distance: u32,
    /// Maximum number of packets of one block that are requested; `None`: a quarter of its packets, at least 16.
    pub per_block: Option<u32>,
}

/// One bit per packet of a block.
#[derive(Clone, Debug)]
struct Bits(Box<[u64]>);

impl Bits {
    fn new(packets: u32) -> Self {
        Self(vec![0; (packets as usize).div_ceil(64)].into())
    }

    #[inline]
    fn has(&self, id: u32) -> bool {
        self.0[id as usize / 64] >> (id % 64) & 1 == 1
    }

    /// Sets a bit. Returns whether it was clear.
    #[inline]
    fn set(&mut self, id: u32) -> bool {
        let word = &mut self.0[id as usize / 64];
        let is_new = *word >> (id % 64) & 1 == 0;
        *word |= 1 << (id % 64);
        is_new
    }
}

/// An open block.
#[derive(Clone, Debug)]
pub(super) struct Block {
    number: u64,
    /// Time in the leader.
    pub(super) time: Timestamp,
    /// Whether the leader does not match the configuration.
    pub(super) is_refused: bool,
    /// Whether the trailer arrived.
    pub(super) is_ended: bool,
    /// Whether the window counts the packets of the block although it has no slot for them.
    pub(super) is_counted: bool,
    arrived: Bits,
    requested: Bits,
    /// Number of packets that arrived, without the trailer.
    count: u32,
    /// Number of packets that were requested.
    asked: u32,
    /// Number of times that requests were repeated; at least [`REPEATS`] if no more requests are useful.
    repeats: u32,
    asked_at: Option<Instant>,
}

impl Block {
    /// Returns whether a payload packet arrived.
    pub(super) fn has_payload(&self) -> bool {
        self.is_counted || self.count > u32::from(self.arrived.has(0))
    }
}

/// The result of [`Blocks::arrive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    New,
    Repeated,
    /// The block is not open.
    Untracked,
}

/// The open blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    tracked: Box<[Block]>,
    /// Number of packet ids of a block: leader, payload packets and trailer.
    ids: u32,
    is_extended: bool,
    limits: Option<ResendLimits>,
    newest: Option<u64>,
    /// The block to which positions refer.
    origin: u64,
    /// One past the position of the newest packet.
    head: u64,
    /// Holes before this position were requested.
    checked: u64,
    last_arrival: Option<Instant>,
    swept: Option<Instant>,
    /// Whether the camera marks packets that it sends again.
    marks_resent: bool,
    /// Requests that are to be sent.
    pub(super) requests: Vec<Resend>,
    pub(super) counts: CameraCounts,
}

impl Blocks {
    /// Creates the state of blocks with `payload` payload packets each, of which the window holds `open`.
    pub(super) fn new(open: usize, payload: u32, is_extended: bool, counts: CameraCounts) -> Self {
        let ids = payload.saturating_add(2);
        let block = Block {
            number: 0,
            time: Timestamp::default(),
            is_refused: false,
            is_ended: false,
            is_counted: false,
            arrived: Bits::new(ids),
            requested: Bits::new(ids),
            count: 0,
            asked: 0,
            repeats: 0,
            asked_at: None,
        };
        Self {
            tracked: vec![block; open + AHEAD].into(),
            ids,
            is_extended,
            limits: None,
            newest: None,
            origin: 0,
            head: 0,
            checked: 0,
            last_arrival: None,
            swept: None,
            marks_resent: false,
            requests: Vec::with_capacity(MAX_REQUESTS),
            counts,
        }
    }

    /// Sets how lost packets are requested again; `None` if they are not.
    pub(super) const fn set_limits(&mut self, limits: Option<ResendLimits>) {
        self.limits = limits;
    }

    /// Returns the number of the newest block.
    pub(super) const fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// Returns whether block `number` is open, was closed recently, or is so close after the open blocks that it can be opened.
    pub(super) fn is_near(&self, number: u64) -> bool {
        let open = self.tracked.len() as u64;
        self.newest.is_none_or(|newest| {
            newest < number.saturating_add(2 * open) && number <= newest + open
        })
    }

    /// Returns block `number` if it is open.
    pub(super) fn get(&mut self, number: u64) -> Option<&mut Block> {
        let slot = self.slot(number);
        Some(&mut self.tracked[slot]).filter(|block| block.number == number && number > 0)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is less than the length, which is a usize"
    )]
    fn slot(&self, number: u64) -> usize {
        (number % self.tracked.len() as u64) as usize
    }

    /// Opens block `number` and all blocks between it and the newest one. Closes the oldest blocks.
    pub(super) fn open(&mut self, number: u64) {
        let open = self.tracked.len() as u64;
        let first = match self.newest {
            Some(newest) if number <= newest => return,
            Some(newest) => (newest + 1).max(number.saturating_sub(open - 1)),
            None => {
                (self.origin, self.head, self.checked) = (number, 0, 0);
                number
            }
        };
        for number in first..=number {
            self.close(self.slot(number));
            let slot = self.slot(number);
            self.tracked[slot].number = number;
        }
        self.newest = Some(number);
        let oldest = number.saturating_sub(open - 1);
        self.checked = self.checked.max(self.position(oldest, 0));
    }

    /// Closes all open blocks, because the numbers of blocks continue elsewhere.
    pub(super) fn close_all(&mut self) {
        (0..self.tracked.len()).for_each(|slot| self.close(slot));
        self.newest = None;
        self.requests.clear();
    }

    /// Closes the block in `slot` and counts its requested packets that did not arrive.
    fn close(&mut self, slot: usize) {
        let ids = self.ids;
        let block = &mut self.tracked[slot];
        if block.asked > 0 {
            let payload = 1..ids - 1;
            let lost = payload.filter(|id| block.requested.has(*id) && !block.arrived.has(*id));
            self.counts.unrecovered.add(lost.count() as u64);
        }
        block.arrived.0.fill(0);
        block.requested.0.fill(0);
        (block.number, block.count, block.asked, block.repeats) = (0, 0, 0, 0);
        (block.is_refused, block.is_ended, block.is_counted) = (false, false, false);
        (block.time, block.asked_at) = (Timestamp::default(), None);
    }

    /// Returns the position of a packet, counted from the origin.
    fn position(&self, number: u64, id: u32) -> u64 {
        number
            .saturating_sub(self.origin)
            .saturating_mul(self.ids.into())
            .saturating_add(id.into())
    }

    /// Considers all packets before packet `id` of block `number` as arrived, because the window holds them.
    pub(super) fn assume_before(&mut self, number: u64, id: u32) {
        if let Some(block) = self.get(number) {
            for id in 0..id {
                block.count += u32::from(block.arrived.set(id));
            }
        }
        self.checked = self.checked.max(self.position(number, id));
    }

    /// Records that packet `id` of block `number` arrived, and requests the holes that its arrival shows.
    #[inline]
    pub(super) fn arrive(
        &mut self,
        number: u64,
        id: u32,
        is_resent: bool,
        now: Instant,
    ) -> Arrival {
        let ids = self.ids;
        self.marks_resent |= is_resent;
        let marks_resent = self.marks_resent;
        let Some(block) = self.get(number).filter(|_| id < ids) else {
            return Arrival::Untracked;
        };
        if !block.arrived.set(id) {
            return Arrival::Repeated;
        }
        let is_trailer = id + 1 == ids;
        block.count += u32::from(!is_trailer);
        if block.asked > 0 && block.requested.has(id) && id > 0 && !is_trailer {
            let counter = if is_resent || !marks_resent {
                &self.counts.recovered
            } else {
                &self.counts.reordered
            };
            counter.add(1);
        }
        self.last_arrival = Some(now);
        let position = self.position(number, id);
        self.head = self.head.max(position.saturating_add(1));
        if let Some(limits) = self.limits {
            let settled = self.head.saturating_sub(limits.distance.into());
            if self.checked < settled {
                self.check(settled, limits, now);
            }
        }
        Arrival::New
    }

    /// Requests the holes before the position `end`.
    fn check(&mut self, end: u64, limits: ResendLimits, now: Instant) {
        let ids = u64::from(self.ids);
        while self.checked < end {
            let (number, id) = (self.origin + self.checked / ids, narrow(self.checked % ids));
            let last = narrow((end - self.checked).min(ids - u64::from(id))) + id;
            self.checked += u64::from(last - id);
            self.request(number, id..last, limits, now);
        }
    }

    /// Requests the missing packets of block `number` with ids in `range` that were not requested yet, or were requested
    /// at least [`RETRY`] ago.
    fn request(
        &mut self,
        number: u64,
        range: std::ops::Range<u32>,
        limits: ResendLimits,
        now: Instant,
    ) {
        let (is_extended, trailer) = (self.is_extended, self.ids - 1);
        let per_block = limits.per_block.unwrap_or((self.ids / 4).max(16));
        let slot = self.slot(number);
        let block = &mut self.tracked[slot];
        if block.number != number || block.is_refused || block.count == trailer {
            return;
        }
        let is_over =
            |asked: Option<Instant>| asked.is_none_or(|asked| now.duration_since(asked) >= RETRY);
        let may_repeat = is_over(block.asked_at);
        let mut run: Option<Resend> = None;
        let mut repeated = false;
        for id in range.start..range.end.min(trailer) {
            let is_known = block.requested.has(id);
            let wanted = !block.arrived.has(id)
                && block.repeats < REPEATS
                && if is_known {
                    may_repeat
                } else {
                    block.asked < per_block
                };
            if !wanted {
                self.requests.extend(run.take());
                continue;
            }
            if self.requests.len() >= MAX_REQUESTS - 1 {
                break;
            }
            if !is_known {
                block.requested.set(id);
                block.asked += 1;
                if id > 0 {
                    self.counts.requested.add(1);
                }
            }
            repeated |= is_known;
            run.get_or_insert(Resend {
                block: number::id(number, is_extended),
                is_extended,
                first: id,
                last: id,
            })
            .last = id;
            block.asked_at = Some(now);
        }
        self.requests.extend(run);
        block.repeats += u32::from(repeated);
    }

    /// Requests holes that no later packet shows, and repeats requests, at intervals of [`RETRY`].
    pub(super) fn sweep(&mut self, now: Instant) {
        let (Some(limits), Some(newest), Some(last)) =
            (self.limits, self.newest, self.last_arrival)
        else {
            return;
        };
        if self
            .swept
            .is_some_and(|swept| now.duration_since(swept) < RETRY)
        {
            return;
        }
        self.swept = Some(now);
        let idle = now.duration_since(last);
        let head = if idle >= TAIL {
            self.position(newest, self.ids)
        } else if idle >= RETRY {
            self.head
        } else {
            self.head.saturating_sub(limits.distance.into())
        };
        let oldest = newest.saturating_sub(self.tracked.len() as u64 - 1);
        for number in oldest.max(self.origin)..=newest {
            let start = self.position(number, 0);
            let end = narrow(head.saturating_sub(start).min(self.ids.into()));
            self.request(number, 0..end, limits, now);
        }
        self.checked = self.checked.max(head);
    }

    /// Returns whether packets are missing that may be requested.
    pub(super) fn has_holes(&self) -> bool {
        let trailer = self.ids - 1;
        self.limits.is_some()
            && self.tracked.iter().any(|block| {
                block.number > 0
                    && block.count < trailer
                    && !block.is_refused
                    && block.repeats < REPEATS
            })
    }

    /// Requests no more packets of block `number`, because its frame has no slot or the camera cannot send them.
    pub(super) fn give_up(&mut self, number: u64) {
        if let Some(block) = self.get(number) {
            block.repeats = REPEATS;
        }
    }
}

/// Converts a number of packets of a block, which always fits.
fn narrow(packets: u64) -> u32 {
    u32::try_from(packets).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ResendLimits = ResendLimits {
        distance: 2,
        per_block: Some(6),
    };

    /// Blocks of 8 payload packets, of which 3 are open.
    fn blocks() -> Blocks {
        let mut blocks = Blocks::new(3 - AHEAD, 8, false, CameraCounts::default());
        blocks.set_limits(Some(LIMITS));
        blocks
    }

    fn arrive(blocks: &mut Blocks, number: u64, ids: impl IntoIterator<Item = u32>, now: Instant) {
        blocks.open(number);
        for id in ids {
            assert_eq!(blocks.arrive(number, id, false, now), Arrival::New);
        }
    }

    fn ranges(blocks: &mut Blocks) -> Vec<(u64, u32, u32)> {
        let ranges = blocks.requests.iter();
        let ranges = ranges.map(|request| (request.block, request.first, request.last));
        let ranges = ranges.collect();
        blocks.requests.clear();
        ranges
    }

    #[test]
    fn hole_is_requested_after_reorder_distance() {
        let (mut blocks, now) = (blocks(), Instant::now());
        arrive(&mut blocks, 5, [0, 1, 3], now);
        assert_eq!(ranges(&mut blocks), []);
        arrive(&mut blocks, 5, [5], now);
        assert_eq!(ranges(&mut blocks), [(5, 2, 2)]);
        arrive(&mut blocks, 5, [6], now);
        assert_eq!(ranges(&mut blocks), [(5, 4, 4)]);
        arrive(&mut blocks, 5, [2, 4, 7, 8, 9], now);
        assert_eq!(ranges(&mut blocks), []);
        let counts = &blocks.counts;
        assert_eq!((counts.requested.get(), counts.recovered.get()), (2, 2));
    }

    #[test]
    fn original_after_request_is_not_recovered_if_camera_marks_resends() {
        let (mut blocks, now) = (blocks(), Instant::now());
        arrive(&mut blocks, 5, [0, 1, 4, 5, 6, 7], now);
        assert_eq!(blocks.arrive(5, 2, true, now), Arrival::New);
        assert_eq!(blocks.arrive(5, 3, false, now), Arrival::New);
        assert_eq!(blocks.arrive(5, 3, true, now), Arrival::Repeated);
        let counts = &blocks.counts;
        assert_eq!((counts.recovered.get(), counts.reordered.get()), (1, 1));
    }

    #[test]
    fn lost_end_and_lost_block_are_requested_once_next_block_arrives() {
        let (mut blocks, now) = (blocks(), Instant::now());
        arrive(&mut blocks, 5, 0..7, now);
        arrive(&mut blocks, 7, 0..3, now);
        // Six packets of block 6 at most.
        assert_eq!(ranges(&mut blocks), [(5, 7, 8), (6, 0, 5)]);
    }

    #[test]
    fn silence_shows_lost_end_and_requests_are_repeated() {
        let (mut blocks, start) = (blocks(), Instant::now());
        arrive(&mut blocks, 5, [0, 1, 3, 4, 5, 6], start);
        assert_eq!(ranges(&mut blocks), [(5, 2, 2)]);
        blocks.sweep(start + RETRY);
        assert_eq!(ranges(&mut blocks), [(5, 2, 2)]);
        blocks.sweep(start + TAIL);
        assert_eq!(ranges(&mut blocks), [(5, 2, 2), (5, 7, 8)]);
        for round in 1..10 {
            blocks.sweep(start + TAIL + RETRY * round);
        }
        assert_eq!(ranges(&mut blocks), [(5, 2, 2), (5, 7, 8)]);
        assert_eq!(blocks.counts.requested.get(), 3);
        blocks.close_all();
        assert_eq!(blocks.counts.unrecovered.get(), 3);
    }

    #[test]
    fn complete_block_needs_no_trailer() {
        let (mut blocks, now) = (blocks(), Instant::now());
        arrive(&mut blocks, 5, 0..9, now);
        arrive(&mut blocks, 6, 0..9, now);
        blocks.sweep(now + TAIL);
        assert_eq!(ranges(&mut blocks), []);
        assert!(!blocks.has_holes());
    }

    #[test]
    fn jump_over_many_blocks_keeps_newest_open() {
        let (mut blocks, now) = (blocks(), Instant::now());
        arrive(&mut blocks, 5, [0, 1], now);
        arrive(&mut blocks, 1 << 50, [0, 1], now);
        assert!(blocks.get(5).is_none());
        assert!(blocks.get((1 << 50) - 2).is_some());
        assert_eq!(blocks.newest(), Some(1 << 50));
    }
}
