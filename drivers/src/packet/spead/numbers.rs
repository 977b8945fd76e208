//! Frame numbers and parts of heaps, if the heap counter alone does not state them.
//!
//! ```text
//!   first packet of a heap:  counter, frame, part ──▶ (frame, part), stored by counter
//!   later packets:           counter              ──▶ the stored (frame, part)
//! ```
//! A packet that repeats the items is placed by its own items.

use super::items::{Item, find_item};
use crate::packet::parts::{MAX_PARTS, Parts, Position, UNKNOWN_FLOW};
use crate::packet::{Flow, MissingItems, Reject};
use crate::packet::{FlowNeeds, Origins};
use daq_core::config::Problem;
use std::net::{IpAddr, SocketAddr};

/// Number of heaps for each part whose numbers are stored, and minimum number of heaps for each flow. The numbers of a heap are
/// needed until its last packet arrives, but the table must be much larger than the number of heaps that arrive at the same time,
/// so that few of them have the same hash.
const HEAPS_PER_PART: usize = 16;
const MIN_HEAPS: usize = 64;
/// Number of heaps with the same hash that are stored.
const WAYS: usize = 8;
/// Number of senders and parts whose restarts are noticed, as many as a number of 6 bits has values.
const SENDERS: usize = 1 << 6;
/// Number of heaps by which a heap can arrive out of order. A sender whose counter steps back further has restarted.
const OUT_OF_ORDER: u64 = 4;
/// The part of a counter that heaps of several parts of a frame use.
const AMBIGUOUS: u32 = u32::MAX;

/// How the frame and the part of a heap are found.
#[derive(Clone, Debug)]
pub(super) struct HeapNumbers {
    /// The item that contains the number of the frame; `None` if the heap counter is the number.
    pub(super) frame: Option<u64>,
    pub(super) parts: Parts,
    /// The numbers of recent heaps of each flow: a sender changes only those of its own flow. The index in a flow is a hash of the
    /// counter.
    recent: Box<[Box<[[Recent; WAYS]]>]>,
    /// Number of heaps that were stored.
    stored: u64,
    /// The newest heap counters of some senders and parts, to notice that they restart. The index is a hash of both.
    newest: Box<[Newest; SENDERS]>,
    /// Distinguishes senders of the current flow, because most senders count their heaps from 1.
    sender: u64,
}

/// The newest heap counter of a sender and a part.
#[derive(Clone, Copy, Debug, Default)]
struct Newest {
    /// Identifies both.
    key: u64,
    counter: u64,
    /// The smallest difference of counters of heaps that followed each other; 0 if it is unknown.
    step: u64,
}

impl Newest {
    /// Adds a heap of `key`. Returns whether its counter shows that the sender has restarted.
    fn add(&mut self, key: u64, counter: u64) -> bool {
        let last = *self;
        let ahead = counter.wrapping_sub(last.counter).cast_signed();
        if last.key != key || ahead == 0 {
            *self = Self {
                key,
                counter,
                step: 0,
            };
            return false;
        }
        if ahead > 0 {
            let step = ahead.unsigned_abs();
            self.step = if last.step == 0 {
                step
            } else {
                last.step.min(step)
            };
            self.counter = counter;
            return false;
        }
        let restarts = last.step > 0 && ahead.unsigned_abs() / last.step > OUT_OF_ORDER;
        if restarts {
            self.counter = counter;
        }
        restarts
    }
}

/// The numbers of a heap.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    counter: u64,
    sender: u64,
    frame: u64,
    part: u32,
    /// Number of heaps that were stored when this one was; 0 for an empty entry.
    age: u64,
}

impl HeapNumbers {
    pub(super) fn new(frame: Option<u64>, parts: Parts) -> Self {
        let flows = parts.flows();
        let heaps = parts.count().min(MAX_PARTS) as usize / flows * HEAPS_PER_PART;
        let sets = heaps.max(MIN_HEAPS).next_power_of_two() / WAYS;
        Self {
            frame,
            parts,
            recent: vec![vec![Default::default(); sets].into(); flows].into(),
            stored: 0,
            newest: Box::new([Newest::default(); SENDERS]),
            sender: 0,
        }
    }

    /// Uses the addresses of a source as the values of parts without `values`.
    pub(super) fn use_origins(&mut self, origins: &Origins) -> Result<(), Problem> {
        self.parts.use_origins(origins)?;
        *self = Self::new(self.frame, std::mem::take(&mut self.parts));
        Ok(())
    }

    /// Returns which addresses of packets are needed to place them. Items are in a heap's first packet, and most senders count their
    /// heaps from 1, so heaps are also distinguished by their sender.
    pub(super) fn flow_needs(&self) -> FlowNeeds {
        let needs = self.parts.flow_needs();
        let sender = needs.sender || self.frame.is_some() || self.parts.has_numbers();
        FlowNeeds {
            sender,
            sender_port: sender,
            ..needs
        }
    }

    /// Selects the flow of the packets that follow.
    pub(super) fn use_flow(&mut self, flow: &Flow) {
        self.parts.use_flow(flow);
        self.sender = flow.source.map_or(0, sender_of);
    }

    /// Returns the frame number and the part of the heap `counter`, of which a packet has the item pointers `items`.
    #[inline]
    pub(super) fn locate(
        &mut self,
        counter: u64,
        items: &[u8],
        address_bits: u32,
    ) -> Result<(u64, u32), Reject> {
        let item = |id| find_item(items, address_bits, id);
        let frame = match self.frame {
            Some(id) => item(id),
            None => Some(counter),
        };
        let part = self.parts.part(|position| match position {
            Position::Item(id) => item(*id),
            Position::Field(_) => None,
        })?;
        let Some(flow) = self.parts.flow() else {
            return Err(UNKNOWN_FLOW);
        };
        let sender = self.sender;
        if let (Some(_), Some(part)) = (frame, part) {
            // The heaps of each part may have counters of their own.
            let key = mixed(sender ^ u64::from(part));
            if self.newest[(key >> 58) as usize].add(key, counter) {
                self.forget(flow, part);
            }
        }
        let ways = ways(&mut self.recent[flow], counter ^ sender);
        let known = ways.iter().position(|recent| {
            recent.age > 0 && (recent.counter, recent.sender) == (counter, sender)
        });
        if let (Some(frame), Some(part)) = (frame, part) {
            let oldest = (0..WAYS).min_by_key(|i| ways[*i].age).unwrap_or(0);
            let recent = &mut ways[known.unwrap_or(oldest)];
            self.stored += 1;
            let is_shared = known.is_some() && recent.frame == frame && recent.part != part;
            *recent = Recent {
                counter,
                sender,
                frame,
                part: if is_shared { AMBIGUOUS } else { part },
                age: self.stored,
            };
            return Ok((frame, part));
        }
        match known.map(|known| ways[known]) {
            Some(recent) if recent.part == AMBIGUOUS => Err(AMBIGUOUS_HEAP),
            Some(recent) => Ok((recent.frame, recent.part)),
            None => Err(self.unknown_heap(items, address_bits)),
        }
    }

    /// Drops the numbers of the heaps of `part` that the sender of the current `flow` sent before it restarted.
    #[cold]
    fn forget(&mut self, flow: usize, part: u32) {
        for recent in self.recent[flow].iter_mut().flatten() {
            if (recent.sender, recent.part) == (self.sender, part) {
                recent.age = 0;
            }
        }
    }

    /// Returns the reason to reject a packet with the item pointers `items`, of whose heap no numbers are stored.
    #[cold]
    fn unknown_heap(&self, items: &[u8], address_bits: u32) -> Reject {
        let mut missing = MissingItems::default();
        for id in self.frame.into_iter().chain(self.parts.items()) {
            if find_item(items, address_bits, id).is_none() {
                missing.add(id);
            }
        }
        Reject::UnknownHeap { items: missing }
    }

    /// Returns the heap counter of `part` of `frame` for a sender whose frame numbers grow by `step`. Unless the counter is the
    /// number of the frame, each heap has a counter of its own.
    pub(super) fn counter(&self, frame: u64, step: u64, part: u32) -> u64 {
        match self.frame {
            None => frame,
            Some(_) => (frame / step.max(1))
                .wrapping_mul(self.parts.count().into())
                .wrapping_add(part.into()),
        }
    }

    /// Calls `add` for each item that the packets of `part` of `frame` contain.
    pub(super) fn items(&self, frame: u64, part: u32, mut add: impl FnMut(Item)) {
        if let Some(id) = self.frame {
            add(Item::immediate(id, frame));
        }
        self.parts.write(part, |position, value| {
            if let Position::Item(id) = position {
                add(Item::immediate(*id, value));
            }
        });
    }
}

/// Returns a number that is different for different addresses and ports, except by a rare coincidence.
fn sender_of(address: SocketAddr) -> u64 {
    let ip = match address.ip() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => {
            let bits = address.to_bits().to_ne_bytes();
            let halves = bits.as_chunks::<8>().0.iter();
            halves.fold(0, |hash, half| mixed(hash ^ u64::from_ne_bytes(*half)))
        }
    };
    mixed(ip << 16 | u64::from(address.port()))
}

/// Returns a number whose highest bits depend on all bits of `number`.
const fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the entries of heaps with the same hash as `key`. The number of sets is a power of two, at least 2.
fn ways(sets: &mut [[Recent; WAYS]], key: u64) -> &mut [Recent; WAYS] {
    let hash = mixed(key);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the index is below the number of sets"
    )]
    let index = (hash >> (64 - sets.len().trailing_zeros())) as usize;
    &mut sets[index]
}

const AMBIGUOUS_HEAP: Reject = Reject::Other {
    name: "ambiguous_heap",
    message: "heaps of several parts come from the same address with the same heap counter, and the packet does not contain the items that `part` names: \
              configure the sender to use different counters, or to repeat item pointers in each packet (spead2: `repeat_pointers`)",
};
