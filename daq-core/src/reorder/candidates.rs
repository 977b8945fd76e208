//! Packets with sequence numbers far from the stream, which are kept until a new epoch is confirmed or refuted.

use super::{Geometry, PacketId, PacketSize, count_rejected};
use crate::frame::{KeptFields, Timestamp};
use crate::ledger::SourceLedger;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum binary logarithm of the factor by which alternating senders increase the number of packets that confirm an epoch.
pub(super) const MAX_DISTRUST: u32 = 6;

/// Maximum size of one thread's buffer in bytes.
const MAX_BYTES: usize = 8 << 20;
/// Maximum size of one thread's buffer in bytes if it is larger than necessary for senders that do not alternate.
const MAX_DISTRUST_BYTES: usize = 2 << 20;
/// Maximum number of packets in such a buffer.
const MAX_PACKETS: usize = 1024;
/// Maximum time for which candidates are kept while no other packet arrives.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The contents of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Payload of this size.
    Payload(PacketSize),
    /// Damaged payload, so only the position is used.
    Damaged,
    /// The unit intentionally contains no data. It is not counted as a packet.
    NoData,
}

/// How a candidate is counted if the stream continues without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Refuted {
    /// The number is implausible.
    #[default]
    Rejected,
    /// The packet has arrived before.
    Duplicate,
    /// The packet precedes the first packet of the run.
    BeforeStart,
    /// The packet precedes the first packet of a later epoch.
    BeforeEpoch,
}

impl Refuted {
    /// Counts the packet `id`.
    pub(super) fn count(self, ledger: &SourceLedger, geometry: &Geometry, id: PacketId) {
        match self {
            Self::Rejected | Self::BeforeEpoch => count_rejected(ledger, geometry, id),
            Self::BeforeStart => ledger.before_start.add_shared(1),
            Self::Duplicate => {
                ledger.duplicates.add_shared(1);
                if let Some(part) = ledger.parts.get(geometry.part_of(id)) {
                    part.duplicates.add_shared(1);
                }
            }
        }
    }
}

/// A packet that is kept aside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) id: PacketId,
    pub(super) content: Content,
    pub(super) time: Timestamp,
    /// When Linux received the packet; 0 if unknown.
    pub(super) received: u64,
    pub(super) fields: KeptFields,
    /// How the packet is counted if the stream continues without it.
    pub(super) refuted: Refuted,
    /// Offset of the payload in the buffer.
    offset: usize,
}

/// A bounded buffer of candidates in the order of arrival. Its memory is allocated once.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    memory: Box<[u8]>,
    max_payload: usize,
    kept: VecDeque<Kept>,
    capacity: usize,
    /// Index of the payload buffer that is used next.
    next: usize,
    /// Whether the new epoch or the gap is confirmed and the packets only wait for slots.
    pub(super) is_confirmed: bool,
    /// Time at which the current packets were first seen.
    seen: Option<Instant>,
}

impl Candidates {
    /// Returns the number of packets that are kept: for each part, as many as can be necessary to confirm an epoch while senders
    /// alternate, and twice `resync_after`, because there may be units without data between them.
    pub(super) fn capacity_for(geometry: &Geometry) -> usize {
        let before = geometry.resync_after.max(1) as usize - 1;
        let wanted = (before << MAX_DISTRUST).saturating_mul(geometry.parts as usize);
        let min = 2 * before * geometry.parts as usize;
        let max = |bytes: usize| bytes / geometry.max_payload().max(1);
        wanted
            .min(MAX_PACKETS)
            .min(max(MAX_DISTRUST_BYTES))
            .max(min.min(max(MAX_BYTES)))
    }

    /// Creates a buffer for the packets before the one that confirms an epoch.
    pub(super) fn new(geometry: &Geometry) -> Self {
        let max_payload = geometry.max_payload();
        let capacity = Self::capacity_for(geometry);
        Self {
            memory: vec![0; capacity * max_payload].into_boxed_slice(),
            max_payload,
            kept: VecDeque::with_capacity(capacity),
            capacity,
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Keeps a packet and returns the memory for its payload, or `None` if it cannot be kept. A full buffer drops its
    /// oldest packet. The second value is that packet, if it was a packet with data.
    pub(super) fn push(
        &mut self,
        id: PacketId,
        content: Content,
        time: Timestamp,
        received: u64,
    ) -> (Option<&mut [u8]>, Option<Kept>) {
        let bytes = match content {
            Content::Payload(size) => size.payload,
            Content::Damaged | Content::NoData => 0,
        };
        if self.capacity == 0 || bytes > self.max_payload {
            return (None, None);
        }
        let is_full = self.kept.len() == self.capacity;
        let dropped = is_full.then(|| self.kept.pop_front()).flatten();
        let dropped = dropped.filter(|kept| kept.packets() > 0);
        let offset = self.next * self.max_payload;
        self.next = (self.next + 1) % self.capacity;
        self.kept.push_back(Kept {
            id,
            content,
            time,
            received,
            fields: KeptFields::default(),
            refuted: Refuted::default(),
            offset,
        });
        self.seen = None;
        let memory = &mut self.memory[offset..offset + bytes];
        (Some(memory), dropped)
    }

    /// Sets the kept fields of the newest packet.
    pub(super) fn set_fields(&mut self, fields: KeptFields) {
        if let Some(kept) = self.kept.back_mut() {
            kept.fields = fields;
        }
    }

    /// Sets how the newest packet is counted if the stream continues without it.
    pub(super) fn set_refuted(&mut self, refuted: Refuted) {
        if let Some(kept) = self.kept.back_mut() {
            kept.refuted = refuted;
        }
    }

    /// Returns the payload of the newest packet.
    pub(super) fn newest_payload(&self) -> &[u8] {
        self.kept.back().map_or(&[], |kept| self.payload(kept))
    }

    /// Returns the oldest packet.
    pub(super) fn front(&self) -> Option<Kept> {
        self.kept.front().copied()
    }

    /// Removes the oldest packet; its payload stays valid until the next [`push`](Self::push).
    pub(super) fn pop(&mut self) -> Option<Kept> {
        let kept = self.kept.pop_front();
        self.is_confirmed &= !self.kept.is_empty();
        kept
    }

    /// Returns the payload of a packet that was removed.
    pub(super) fn payload(&self, kept: &Kept) -> &[u8] {
        match kept.content {
            Content::Payload(size) => &self.memory[kept.offset..kept.offset + size.payload],
            Content::Damaged | Content::NoData => &[],
        }
    }

    /// Returns the packets, without units that contain no data.
    pub(super) fn packets(&self) -> impl Iterator<Item = &Kept> {
        self.kept.iter().filter(|kept| kept.packets() > 0)
    }

    /// Returns the numbers of the packets, without units that contain no data.
    pub(super) fn ids(&self) -> impl Iterator<Item = PacketId> {
        self.packets().map(|kept| kept.id)
    }

    /// Returns when Linux received the first of the packets, or of a packet received at `last`; 0 if unknown.
    pub(super) fn received(&self, last: u64) -> u64 {
        let times = self.packets().map(|kept| kept.received);
        times.chain([last]).min().unwrap_or(0)
    }

    /// Drops all packets.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        (self.is_confirmed, self.seen) = (false, None);
    }

    /// Records that the source waits for slots, so that the packets do not become old.
    pub(super) fn wait(&mut self) {
        self.seen = None;
    }

    /// Returns whether the packets have been kept for longer than the maximum time without being confirmed.
    pub(super) fn is_too_old(&mut self, now: Instant) -> bool {
        let seen = *self.seen.get_or_insert(now);
        !self.is_confirmed && now.saturating_duration_since(seen) >= MAX_AGE
    }
}

impl Kept {
    const fn packets(&self) -> u64 {
        match self.content {
            Content::Payload(_) | Content::Damaged => 1,
            Content::NoData => 0,
        }
    }
}
