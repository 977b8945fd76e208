//! Places the payload of each write in its frame.

use super::counts::Statistics;
use super::metadata::{self, Metadata};
use super::pages::{PacketPosition, Pages, Refused};
use super::psn::{PsnMatch, PsnTracker};
use super::roce::{self, Malformed, Write};
use crate::packet::datagram::log_reject;
use crate::packet::datagram::pending::{HEAD, PendingDatagrams};
use daq_core::frame::Timestamp;
use daq_core::ledger::{FAR_NUMBER, Rejections};
use daq_core::reorder::{Batch, Outcome, PacketId, ReorderWindow};

/// Reason why a datagram is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Reject {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("packet sequence number {psn} does not belong in page {page}")]
    Psn { psn: u32, page: u32 },
    #[error(
        "the packet ends a frame, but has fewer than {} bytes of metadata",
        metadata::BYTES
    )]
    Metadata,
}

impl Reject {
    /// Returns the name of the reason in the ledger.
    const fn name(&self) -> &'static str {
        match self {
            Self::Malformed(Malformed::Short { .. }) => "short",
            Self::Malformed(Malformed::Opcode { .. }) => "opcode",
            Self::Malformed(Malformed::Transport { .. }) => "transport",
            Self::Malformed(Malformed::Length { .. }) => "length",
            Self::Refused(Refused::QueuePair { .. }) => "queue_pair",
            Self::Refused(Refused::Key { .. }) => "key",
            Self::Refused(Refused::Position { .. }) => "misplaced",
            Self::Refused(Refused::Immediate { .. }) => "immediate",
            Self::Psn { .. } => "sequence_number",
            Self::Metadata => "metadata",
        }
    }
}

/// Maximum memory in bytes for datagrams that are kept until it is known whether the sender restarted its packet sequence
/// numbers.
const MAX_KEPT: usize = 64 << 20;

/// How a kept datagram is counted if the sender did not restart its packet sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeptAs {
    /// Counted as `rejected`.
    Rejected,
    /// Counted as `duplicates`.
    Duplicate,
}

/// Places the payload of writes in the window.
#[derive(Debug)]
pub struct Placer {
    /// Name of the source, for messages.
    name: String,
    pages: Pages,
    tracker: PsnTracker,
    packets: u32,
    resync_after: u32,
    /// For each recent frame, the frame number + 1 once its metadata arrived; indexed by frame number modulo length.
    ended: Box<[u64]>,
    seen: Statistics,
    /// Number of packets with the right key and a valid position in a page.
    accepted: u64,
    rejections: Rejections,
    /// Consecutive packets that may be the first after the sender restarted its packet sequence numbers. All of them have the
    /// same [`KeptAs`].
    kept: PendingDatagrams,
    kept_as: KeptAs,
}

/// The result of placing a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Done,
    /// The packet had already arrived.
    Duplicate,
    /// The packet confirms that the sender has restarted its packet sequence numbers. Nothing was placed.
    Restart,
}

impl Placer {
    /// Creates a placer for the source `name` with `pages`. `window` is the maximum number of open frames.
    /// `resync_after` consecutive consistent packets confirm a restart.
    pub fn new(name: &str, pages: Pages, window: usize, resync_after: u32) -> Self {
        let packets = u32::try_from(pages.packets()).unwrap_or(u32::MAX);
        let memory = window.saturating_sub(1) as u64;
        Self {
            name: name.to_owned(),
            tracker: PsnTracker::new(pages.count, packets, memory, resync_after),
            kept: PendingDatagrams::new(kept_bytes(&pages, resync_after, true)),
            kept_as: KeptAs::Rejected,
            resync_after,
            pages,
            packets,
            // Open frames, and the same number of closed frames.
            ended: vec![0; 2 * window.max(1)].into(),
            seen: Statistics::default(),
            accepted: 0,
            rejections: Rejections::default(),
        }
    }

    /// Counts rejected packets by reason in `rejections`.
    #[must_use]
    pub fn with_rejections(mut self, rejections: Rejections) -> Self {
        self.rejections = rejections;
        self
    }

    /// Always treats packets of old frames as duplicates. Use it if the source chooses a new key each time it arms the
    /// sensor, because a restarted sensor then has another key. Otherwise, a long sequence of such packets opens an
    /// epoch.
    #[must_use]
    pub fn with_unique_key(mut self) -> Self {
        self.tracker = self.tracker.ignore_old_restarts();
        self.kept = PendingDatagrams::new(kept_bytes(&self.pages, self.resync_after, false));
        self
    }

    /// Returns the sensor's statistics so far.
    pub const fn seen(&self) -> Statistics {
        self.seen
    }

    /// Returns the number of packets so far with the right key and a valid position in a page.
    pub const fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Accepts only packets with the key `rkey` from now on, because the sensor was armed again. The next packet opens
    /// an epoch.
    pub fn rearm(&mut self, window: &mut ReorderWindow, rkey: u32) {
        self.finish(window);
        self.pages.rkey = rkey;
        self.tracker.forget();
    }

    /// Counts the packets that are still kept, because no more packets will arrive to confirm them.
    pub fn finish(&mut self, window: &mut ReorderWindow) {
        window.with_batch(|batch| self.discard_kept(batch));
    }

    /// Places the payload of every datagram. Returns the index of the last datagram that had already arrived, or `None` if no
    /// datagram had.
    pub fn place<'d>(
        &mut self,
        window: &mut ReorderWindow,
        datagrams: impl IntoIterator<Item = &'d [u8]>,
    ) -> Option<usize> {
        let mut datagrams = datagrams.into_iter().enumerate();
        let mut duplicate = None;
        loop {
            let mut batch = window.batch();
            let confirms = datagrams.find(|(i, datagram)| {
                let put = self.put(&mut batch, datagram, false);
                if put == Put::Duplicate {
                    duplicate = Some(*i);
                }
                put == Put::Restart
            });
            batch.commit();
            match confirms {
                Some((_, datagram)) => self.begin_epoch(window, datagram),
                None => return duplicate,
            }
        }
    }

    /// Opens an epoch at the first kept datagram, and places the kept datagrams and the one that confirms them.
    #[cold]
    fn begin_epoch(&mut self, window: &mut ReorderWindow, confirms: &[u8]) {
        let mut kept = std::mem::take(&mut self.kept);
        let mut begins = true;
        while let Some((datagram, ..)) = kept.front() {
            self.put_alone(window, datagram, std::mem::take(&mut begins));
            kept.pop();
        }
        self.put_alone(window, confirms, begins);
        self.kept = kept;
    }

    /// Places one datagram; opens an epoch if `begins` is true or the datagram confirms a restart.
    fn put_alone(&mut self, window: &mut ReorderWindow, datagram: &[u8], begins: bool) {
        if !begins && window.with_batch(|batch| self.put(batch, datagram, false)) != Put::Restart {
            return;
        }
        window.restart();
        window.with_batch(|batch| self.put(batch, datagram, true));
    }

    /// Places one datagram. `begins` is true if the window is prepared for an epoch that begins with this datagram.
    #[inline]
    fn put(&mut self, batch: &mut Batch<'_>, datagram: &[u8], begins: bool) -> Put {
        let (write, position) = match self.parse(datagram) {
            Ok(parsed) => parsed,
            Err(reject) => {
                self.reject(batch, &reject, datagram);
                return Put::Done;
            }
        };
        self.accepted += 1;
        let frame = if begins {
            self.seen.begin();
            self.ended.fill(0);
            self.tracker.begin(write.psn, &position);
            0
        } else {
            let knows = |unit| batch.knows(PacketId { unit, sub: 0 });
            match self.tracker.find_tracked(write.psn, &position, knows) {
                PsnMatch::Frame(frame) => frame,
                PsnMatch::Restarted => return Put::Restart,
                PsnMatch::Old => {
                    self.keep(batch, datagram, KeptAs::Duplicate, false);
                    return Put::Duplicate;
                }
                PsnMatch::LostSync { starts } => {
                    self.keep(batch, datagram, KeptAs::Rejected, starts);
                    return Put::Done;
                }
            }
        };
        let payload = &datagram[write.payload.clone()];
        let metadata = position
            .metadata
            .and_then(|at| payload.get(at..)?.first_chunk());
        let metadata = metadata.map(Metadata::parse);
        if position.index == self.packets {
            let Some(metadata) = metadata else {
                self.reject(batch, &Reject::Metadata, datagram);
                return Put::Done;
            };
            return self.end(batch, frame, &write, &position, metadata);
        }
        let id = PacketId {
            unit: frame,
            sub: position.index,
        };
        let time = metadata.map_or_else(Timestamp::default, |metadata| metadata.time());
        let outcome = batch.place(id, &payload[..position.bytes], time);
        match outcome {
            Outcome::Rejected | Outcome::Kept => self.log_far(frame),
            Outcome::BeforeStart | Outcome::Repeated => {}
            outcome => {
                self.follow(batch, frame, write.psn, &position);
                if write.immediate.is_some() && outcome != Outcome::Duplicate {
                    self.tracker.set_separate_metadata(false);
                    if let Some(metadata) = metadata {
                        self.note(frame, &metadata);
                    }
                }
            }
        }
        if outcome == Outcome::Duplicate {
            Put::Duplicate
        } else {
            Put::Done
        }
    }

    /// Records that a packet was placed in frame `frame`. The kept packets therefore do not belong to a restarted count.
    #[inline]
    fn follow(&mut self, batch: &mut Batch<'_>, frame: u64, psn: u32, position: &PacketPosition) {
        if !self.kept.is_empty() {
            self.discard_kept(batch);
        }
        self.tracker.follow(frame, psn, position);
    }

    /// Keeps a datagram that fits no frame of this count and may start the next count. `begins` is true if it is not
    /// consistent with the kept datagrams.
    #[cold]
    fn keep(&mut self, batch: &mut Batch<'_>, datagram: &[u8], kept_as: KeptAs, begins: bool) {
        if begins || self.kept_as != kept_as {
            self.discard_kept(batch);
        }
        self.kept_as = kept_as;
        let can_start = kept_as == KeptAs::Rejected || self.tracker.restarts_with_old();
        if !can_start || !self.kept.push(datagram, Timestamp::default(), 0) {
            self.dismiss(batch, datagram);
        }
    }

    /// Counts the kept datagrams as rejected or duplicate, because they do not belong to a restarted count.
    #[cold]
    fn discard_kept(&mut self, batch: &mut Batch<'_>) {
        let mut kept = std::mem::take(&mut self.kept);
        while let Some((datagram, ..)) = kept.front() {
            self.dismiss(batch, datagram);
            kept.pop();
        }
        self.kept = kept;
    }

    fn dismiss(&self, batch: &mut Batch<'_>, datagram: &[u8]) {
        match (self.kept_as, self.parse(datagram)) {
            (KeptAs::Duplicate, _) => batch.repeated(1),
            (KeptAs::Rejected, Ok((Write { psn, .. }, PacketPosition { page, .. }))) => {
                self.reject(batch, &Reject::Psn { psn, page }, datagram);
            }
            (KeptAs::Rejected, Err(reject)) => self.reject(batch, &reject, datagram),
        }
    }

    fn parse(&self, datagram: &[u8]) -> Result<(Write, PacketPosition), Reject> {
        let write = roce::parse(datagram)?;
        let position = self.pages.find(&write)?;
        Ok((write, position))
    }

    /// Handles metadata that arrive in a separate packet.
    fn end(
        &mut self,
        batch: &mut Batch<'_>,
        frame: u64,
        write: &Write,
        position: &PacketPosition,
        metadata: Metadata,
    ) -> Put {
        if self.ended[self.slot(frame)] == frame + 1 {
            batch.repeated(1);
            return Put::Duplicate;
        }
        batch.control(1);
        let id = PacketId {
            unit: frame,
            sub: self.packets - 1,
        };
        // A separate metadata packet ahead of the open frames does not advance the tracker. Only packets that the
        // window accepts do.
        if batch.end(id, metadata.time()) && self.tracker.is_near(frame) {
            self.follow(batch, frame, write.psn, position);
            self.tracker.set_separate_metadata(true);
            self.note(frame, &metadata);
        }
        Put::Done
    }

    /// Counts a frame's metadata, and the frames that the sensor skipped since the last frame.
    fn note(&mut self, frame: u64, metadata: &Metadata) {
        self.ended[self.slot(frame)] = frame + 1;
        self.seen.note(frame, self.pages.frame, metadata);
    }

    /// Returns the index of frame `frame` in [`ended`](Self::ended).
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is less than the length, which is a usize"
    )]
    fn slot(&self, frame: u64) -> usize {
        (frame % self.ended.len() as u64) as usize
    }

    #[cold]
    fn reject(&self, batch: &mut Batch<'_>, reject: &Reject, datagram: &[u8]) {
        batch.reject_unreadable(1);
        log_reject(
            &self.name,
            &self.rejections,
            reject.name(),
            reject,
            datagram,
        );
    }

    /// Logs the first packet that the window rejects or keeps until it is confirmed; the window counts them.
    #[cold]
    fn log_far(&self, frame: u64) {
        let message = format_args!(
            "a packet belongs to frame {frame}, far from the frames of the previous packets; the packet is accepted if \
             the next packets are consistent with it"
        );
        if self.rejections.count(FAR_NUMBER, 0, message) {
            tracing::warn!(
                "source {}: {message}. Further such packets are only counted",
                self.name,
            );
        }
    }
}

/// Returns the maximum memory for the packets before a restart is confirmed by `resync_after` of them.
/// `restarts_with_old` is true if packets of old frames can also confirm a restart.
pub const fn kept_bytes(pages: &Pages, resync_after: u32, restarts_with_old: bool) -> usize {
    let datagrams =
        PsnTracker::max_unconfirmed(pages.packets(), resync_after as usize, restarts_with_old);
    let bytes = datagrams.saturating_mul(HEAD + largest(pages.packet));
    if bytes < MAX_KEPT { bytes } else { MAX_KEPT }
}

/// Returns the maximum size of a datagram with `packet` bytes of payload: headers, payload, padding, metadata and CRC.
pub const fn largest(packet: usize) -> usize {
    32 + packet + super::pages::ALIGNMENT + metadata::BYTES + 4
}
