//! From datagrams to places: what becomes of each write.

use super::metadata::{self, Metadata};
use super::order::{Course, Order};
use super::pages::{Pages, Refused, Spot};
use super::roce::{self, Malformed, Write};
use super::seen::Seen;
use daq_core::frame::Timestamp;
use daq_core::window::{Batch, Outcome, PacketId, Window};

/// Why a datagram is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Reject {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("packet sequence number {psn} does not belong in page {page}")]
    Astray { psn: u32, page: u32 },
}

impl Reject {
    /// Its kind among those that are told of once each.
    const fn kind(&self) -> u32 {
        match self {
            Self::Malformed(Malformed::Short { .. }) => 0,
            Self::Malformed(Malformed::Opcode { .. }) => 1,
            Self::Malformed(Malformed::Transport { .. }) => 2,
            Self::Malformed(Malformed::Length { .. }) => 3,
            Self::Refused(Refused::QueuePair { .. }) => 4,
            Self::Refused(Refused::Key { .. }) => 5,
            Self::Refused(Refused::Place { .. }) => 6,
            Self::Refused(Refused::Immediate { .. }) => 7,
            Self::Astray { .. } => 8,
        }
    }
}

/// Puts the payload of writes where it belongs.
#[derive(Debug)]
pub struct Placer {
    /// The source's name, for messages.
    name: String,
    pages: Pages,
    order: Order,
    packets: u32,
    /// Frames whose metadata came, and one more than the number of each: as many as the window may know of, by number.
    ended: Box<[u64]>,
    seen: Seen,
    /// Kinds of refused packets that were told of, a bit each.
    told: u32,
}

/// What is to be done with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Done,
    /// The window must be told first that the sender counts anew.
    Anew,
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
            pages,
            packets,
            // Open frames, and as many that were closed.
            ended: vec![0; 2 * window.max(1)].into(),
            seen: Seen::default(),
            told: 0,
        }
    }

    /// Takes packets of the past for repeated ones for ever: for a key that is ours and new each time the sensor is armed, so
    /// that a sensor that counts anew has another. Without it, a long row of nothing else opens an epoch.
    #[must_use]
    pub fn with_new_key(mut self) -> Self {
        self.order = self.order.without_return();
        self
    }

    /// What is known of the sensor so far.
    pub const fn seen(&self) -> Seen {
        self.seen
    }

    /// Places what every datagram carries.
    pub fn place<'d>(
        &mut self,
        window: &mut Window,
        datagrams: impl IntoIterator<Item = &'d [u8]>,
    ) {
        let mut datagrams = datagrams.into_iter();
        let mut anew = None;
        loop {
            if anew.is_some() {
                window.restart();
            }
            let mut batch = window.batch();
            if let Some(datagram) = anew.take() {
                self.put(&mut batch, datagram, true);
            }
            anew = datagrams.find(|datagram| self.put(&mut batch, datagram, false) == Put::Anew);
            if anew.is_none() {
                return;
            }
        }
    }

    /// Puts one datagram; `begins` = the window knows that the sender counts anew with it.
    #[inline]
    fn put(&mut self, batch: &mut Batch<'_>, datagram: &[u8], begins: bool) -> Put {
        let (write, spot) = match self.understand(datagram) {
            Ok(understood) => understood,
            Err(reject) => {
                batch.reject_unreadable(1);
                self.tell(&reject, datagram);
                return Put::Done;
            }
        };
        let frame = if begins {
            self.seen.begin();
            self.ended.fill(0);
            self.order.begin(write.psn, &spot);
            0
        } else {
            let knows = |unit| batch.knows(PacketId { unit, sub: 0 });
            match self.order.find_known(write.psn, &spot, knows) {
                Course::Frame(frame) => frame,
                Course::Anew => return Put::Anew,
                Course::Past => {
                    batch.repeated(1);
                    return Put::Done;
                }
                Course::Astray => {
                    batch.reject_unreadable(1);
                    let (psn, page) = (write.psn, spot.page);
                    self.tell(&Reject::Astray { psn, page }, datagram);
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
            self.end(batch, frame, &write, &spot, metadata);
            return Put::Done;
        }
        let id = PacketId {
            unit: frame,
            sub: spot.index,
        };
        let time = metadata.map_or_else(Timestamp::default, |metadata| metadata.time());
        match batch.put(id, &payload[..spot.bytes], time) {
            Outcome::Rejected => {}
            outcome => {
                self.order.follow(frame, write.psn, &spot);
                if write.immediate.is_some() && outcome != Outcome::Duplicate {
                    self.order.ends(false);
                    if let Some(metadata) = metadata {
                        self.note(frame, &metadata);
                    }
                }
            }
        }
        Put::Done
    }

    fn understand(&self, datagram: &[u8]) -> Result<(Write, Spot), Reject> {
        let write = roce::parse(datagram)?;
        let spot = self.pages.find(&write)?;
        Ok((write, spot))
    }

    /// Heeds metadata that came by themselves.
    fn end(
        &mut self,
        batch: &mut Batch<'_>,
        frame: u64,
        write: &Write,
        spot: &Spot,
        metadata: Option<Metadata>,
    ) {
        let Some(metadata) = metadata else {
            batch.reject_unreadable(1);
            return;
        };
        if self.ended[self.slot(frame)] == frame + 1 {
            batch.repeated(1);
            return;
        }
        batch.control(1);
        let id = PacketId {
            unit: frame,
            sub: self.packets - 1,
        };
        // One alone ahead of what is open moves nothing: only packets that the window believes do.
        if batch.end(id, metadata.time()) && self.order.is_near(frame) {
            self.order.follow(frame, write.psn, spot);
            self.order.ends(true);
            self.note(frame, &metadata);
        }
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
    fn tell(&mut self, reject: &Reject, datagram: &[u8]) {
        let bit = 1 << reject.kind();
        if self.told & bit != 0 {
            return;
        }
        self.told |= bit;
        let start = &datagram[..datagram.len().min(32)];
        tracing::warn!(
            "source {}: a packet of {} bytes is rejected: {reject}. It begins with {start:02x?}. More of the kind are only \
             counted, as `rejected`",
            self.name,
            datagram.len(),
        );
    }
}

/// Bytes of the largest datagram of frames of `frame` bytes in packets of `packet`: headers, payload, metadata, CRC.
pub const fn largest(packet: usize) -> usize {
    32 + packet + super::pages::GRAIN + metadata::BYTES + 4
}
