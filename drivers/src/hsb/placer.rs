//! From datagrams to places: what becomes of each write.

use super::metadata::{self, Metadata};
use super::order::{Course, Order};
use super::pages::{Pages, Refused, Spot};
use super::roce::{self, Malformed, Write};
use super::seen::Seen;
use crate::packet::datagram::held::{HEAD, Held};
use daq_core::frame::Timestamp;
use daq_core::ledger::{FAR_NUMBER, Rejections};
use daq_core::reorder::{Batch, Outcome, PacketId, ReorderWindow};

/// Why a datagram is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Reject {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("packet sequence number {psn} does not belong in page {page}")]
    Astray { psn: u32, page: u32 },
    #[error("it ends a frame without {} bytes of metadata", metadata::BYTES)]
    Metadata,
}

impl Reject {
    /// The reason in counts.
    const fn name(&self) -> &'static str {
        match self {
            Self::Malformed(Malformed::Short { .. }) => "short",
            Self::Malformed(Malformed::Opcode { .. }) => "opcode",
            Self::Malformed(Malformed::Transport { .. }) => "transport",
            Self::Malformed(Malformed::Length { .. }) => "length",
            Self::Refused(Refused::QueuePair { .. }) => "queue_pair",
            Self::Refused(Refused::Key { .. }) => "key",
            Self::Refused(Refused::Place { .. }) => "misplaced",
            Self::Refused(Refused::Immediate { .. }) => "immediate",
            Self::Astray { .. } => "sequence_number",
            Self::Metadata => "metadata",
        }
    }
}

/// Maximum memory for datagrams that may begin a new count.
const MAX_KEPT: usize = 64 << 20;

/// What a datagram that is kept counts as, unless it turns out to be of a new count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// `rejected`.
    Astray,
    /// `duplicates`.
    Past,
}

/// Puts the payload of writes where it belongs.
#[derive(Debug)]
pub struct Placer {
    /// The source's name, for messages.
    name: String,
    pages: Pages,
    order: Order,
    packets: u32,
    agree: u32,
    /// Frames whose metadata came, and one more than the number of each: as many as the window may know of, by number.
    ended: Box<[u64]>,
    seen: Seen,
    /// Number of packets with the right key at a place of a page.
    accepted: u64,
    rejections: Rejections,
    /// The packets in succession that may be the first of a new count, all of one kind.
    kept: Held,
    doubt: Doubt,
}

/// The result for a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Done,
    /// Its packet had arrived already.
    Duplicate,
    /// It confirms that the sender has restarted its count; nothing was placed.
    Restart,
}

impl Placer {
    /// For the source `name`, over `pages`; frames stay open while `window` are, and `agree` packets in succession are
    /// believed against the stream.
    pub fn new(name: &str, pages: Pages, window: usize, agree: u32) -> Self {
        let packets = u32::try_from(pages.packets()).unwrap_or(u32::MAX);
        let memory = window.saturating_sub(1) as u64;
        Self {
            name: name.to_owned(),
            order: Order::new(pages.count, packets, memory, agree),
            kept: Held::new(kept_bytes(&pages, agree, true)),
            doubt: Doubt::Astray,
            agree,
            pages,
            packets,
            // Open frames, and as many that were closed.
            ended: vec![0; 2 * window.max(1)].into(),
            seen: Seen::default(),
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

    /// Takes packets of the past for repeated ones for ever: for a key that is ours and new each time the sensor is armed, so
    /// that a sensor that counts anew has another. Without it, a long row of nothing else opens an epoch.
    #[must_use]
    pub fn with_new_key(mut self) -> Self {
        self.order = self.order.without_return();
        self.kept = Held::new(kept_bytes(&self.pages, self.agree, false));
        self
    }

    /// What is known of the sensor so far.
    pub const fn seen(&self) -> Seen {
        self.seen
    }

    /// Number of packets with the right key at a place of a page, so far.
    pub const fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Accepts packets with the key `rkey` only: the sensor was armed again. The next of them opens an epoch.
    pub fn rearm(&mut self, window: &mut ReorderWindow, rkey: u32) {
        self.finish(window);
        self.pages.rkey = rkey;
        self.order.forget();
    }

    /// Counts the packets that are still kept, as no more packets come that could confirm them.
    pub fn finish(&mut self, window: &mut ReorderWindow) {
        self.refute(&mut window.batch());
    }

    /// Places the payload of every datagram. Returns the index of the last one that had arrived already, if there was any.
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
            drop(batch);
            match confirms {
                Some((_, datagram)) => self.begin_epoch(window, datagram),
                None => return duplicate,
            }
        }
    }

    /// Opens an epoch at the first of the datagrams that were kept, and places them and the one that confirms them.
    #[cold]
    fn begin_epoch(&mut self, window: &mut ReorderWindow, confirms: &[u8]) {
        let mut kept = std::mem::take(&mut self.kept);
        let mut begins = true;
        while let Some((datagram, _)) = kept.front() {
            self.put_alone(window, datagram, std::mem::take(&mut begins));
            kept.pop();
        }
        self.put_alone(window, confirms, begins);
        self.kept = kept;
    }

    /// Puts one datagram that opens an epoch if it `begins` one, or must.
    fn put_alone(&mut self, window: &mut ReorderWindow, datagram: &[u8], begins: bool) {
        if !begins && self.put(&mut window.batch(), datagram, false) != Put::Restart {
            return;
        }
        window.restart();
        self.put(&mut window.batch(), datagram, true);
    }

    /// Puts one datagram; `begins` = the window is prepared for an epoch that begins with it.
    #[inline]
    fn put(&mut self, batch: &mut Batch<'_>, datagram: &[u8], begins: bool) -> Put {
        let (write, spot) = match self.understand(datagram) {
            Ok(understood) => understood,
            Err(reject) => {
                self.reject(batch, &reject, datagram);
                return Put::Done;
            }
        };
        self.accepted += 1;
        let frame = if begins {
            self.seen.begin();
            self.ended.fill(0);
            self.order.begin(write.psn, &spot);
            0
        } else {
            let knows = |unit| batch.knows(PacketId { unit, sub: 0 });
            match self.order.find_known(write.psn, &spot, knows) {
                Course::Frame(frame) => frame,
                Course::Anew => return Put::Restart,
                Course::Past => {
                    self.keep(batch, datagram, Doubt::Past, false);
                    return Put::Duplicate;
                }
                Course::Astray { begins } => {
                    self.keep(batch, datagram, Doubt::Astray, begins);
                    return Put::Done;
                }
            }
        };
        let payload = &datagram[write.payload.clone()];
        let metadata = spot
            .metadata
            .and_then(|at| payload.get(at..)?.first_chunk());
        let metadata = metadata.map(Metadata::parse);
        if spot.index == self.packets {
            let Some(metadata) = metadata else {
                self.reject(batch, &Reject::Metadata, datagram);
                return Put::Done;
            };
            return self.end(batch, frame, &write, &spot, metadata);
        }
        let id = PacketId {
            unit: frame,
            sub: spot.index,
        };
        let time = metadata.map_or_else(Timestamp::default, |metadata| metadata.time());
        let outcome = batch.put(id, &payload[..spot.bytes], time);
        match outcome {
            Outcome::Rejected | Outcome::Kept => self.log_far(frame),
            outcome => {
                self.follow(batch, frame, write.psn, &spot);
                if write.immediate.is_some() && outcome != Outcome::Duplicate {
                    self.order.ends(false);
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

    /// Says that a packet was put in frame `frame`: packets that were kept are of no new count.
    #[inline]
    fn follow(&mut self, batch: &mut Batch<'_>, frame: u64, psn: u32, spot: &Spot) {
        if !self.kept.is_empty() {
            self.refute(batch);
        }
        self.order.follow(frame, psn, spot);
    }

    /// Keeps a datagram that is of no frame of this count and may be of the next; `begins` = it does not agree with those
    /// that are kept.
    #[cold]
    fn keep(&mut self, batch: &mut Batch<'_>, datagram: &[u8], doubt: Doubt, begins: bool) {
        if begins || self.doubt != doubt {
            self.refute(batch);
        }
        self.doubt = doubt;
        let may_begin = doubt == Doubt::Astray || self.order.can_return();
        if !may_begin || !self.kept.push(datagram, Timestamp::default()) {
            self.dismiss(batch, datagram);
        }
    }

    /// Counts the datagrams that were kept: they are of no new count.
    #[cold]
    fn refute(&mut self, batch: &mut Batch<'_>) {
        let mut kept = std::mem::take(&mut self.kept);
        while let Some((datagram, _)) = kept.front() {
            self.dismiss(batch, datagram);
            kept.pop();
        }
        self.kept = kept;
    }

    fn dismiss(&self, batch: &mut Batch<'_>, datagram: &[u8]) {
        match (self.doubt, self.understand(datagram)) {
            (Doubt::Past, _) => batch.repeated(1),
            (Doubt::Astray, Ok((Write { psn, .. }, Spot { page, .. }))) => {
                self.reject(batch, &Reject::Astray { psn, page }, datagram);
            }
            (Doubt::Astray, Err(reject)) => self.reject(batch, &reject, datagram),
        }
    }

    fn understand(&self, datagram: &[u8]) -> Result<(Write, Spot), Reject> {
        let write = roce::parse(datagram)?;
        let spot = self.pages.find(&write)?;
        Ok((write, spot))
    }

    /// Handles metadata that arrive in a packet of their own.
    fn end(
        &mut self,
        batch: &mut Batch<'_>,
        frame: u64,
        write: &Write,
        spot: &Spot,
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
        // One alone ahead of what is open moves nothing: only packets that the window believes do.
        if batch.end(id, metadata.time()) && self.order.is_near(frame) {
            self.follow(batch, frame, write.psn, spot);
            self.order.ends(true);
            self.note(frame, &metadata);
        }
        Put::Done
    }

    /// Counts a frame's metadata, and the frames that the sensor says lie between it and the last.
    fn note(&mut self, frame: u64, metadata: &Metadata) {
        self.ended[self.slot(frame)] = frame + 1;
        self.seen.note(frame, self.pages.frame, metadata);
    }

    /// Where [`ended`](Self::ended) has frame `frame`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is below a usize"
    )]
    fn slot(&self, frame: u64) -> usize {
        (frame % self.ended.len() as u64) as usize
    }

    #[cold]
    fn reject(&self, batch: &mut Batch<'_>, reject: &Reject, datagram: &[u8]) {
        batch.reject_unreadable(1);
        let reason = reject.name();
        if self.rejections.count(reason, 1, reject) {
            let start = &datagram[..datagram.len().min(32)];
            tracing::warn!(
                "source {}: rejected a packet of {} bytes ({reason}): {reject}. It begins with {start:02x?}. Further packets \
                 rejected for this reason are only counted",
                self.name,
                datagram.len(),
            );
        }
    }

    /// Logs the first packet that the window does not accept, or not yet; the window counts them.
    #[cold]
    fn log_far(&self, frame: u64) {
        let message = format_args!(
            "a packet of frame {frame} is far from the packets before it; it is accepted if the packets after it agree"
        );
        if self.rejections.count(FAR_NUMBER, 0, message) {
            tracing::warn!(
                "source {}: {message}. Further ones are only counted",
                self.name,
            );
        }
    }
}

/// Memory for the packets that come before a new count is confirmed by `agree` of them, where `can_return` = also by
/// packets with numbers of the past.
pub const fn kept_bytes(pages: &Pages, agree: u32, can_return: bool) -> usize {
    let datagrams = Order::doubtful(pages.packets(), agree as usize, can_return);
    let bytes = datagrams.saturating_mul(HEAD + largest(pages.packet));
    if bytes < MAX_KEPT { bytes } else { MAX_KEPT }
}

/// Bytes of the largest datagram of frames of `frame` bytes in packets of `packet`: headers, payload, metadata, CRC.
pub const fn largest(packet: usize) -> usize {
    32 + packet + super::pages::GRAIN + metadata::BYTES + 4
}
