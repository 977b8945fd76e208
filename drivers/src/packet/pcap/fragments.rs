//! Assembles datagrams from IP fragments.
//!
//! Memory is bounded: of many incomplete datagrams, the oldest is dropped. An identifier is used again after at most 65,536
//! datagrams of IPv4, so a datagram that stays incomplete is dropped long before.

use super::dissect::{Found, Piece, Skip, datagram};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;

/// Maximum number of incomplete datagrams.
const MAX_INCOMPLETE: usize = 256;
/// Number of later datagrams after which an incomplete datagram is dropped.
const MAX_LATER: u64 = 1024;
/// Maximum size of a datagram in bytes.
const MAX_DATAGRAM: usize = 1 << 16;

/// Addresses and identifier that the fragments of one datagram share.
pub(super) type Key = (IpAddr, IpAddr, u32);

/// The fragments of one datagram that have arrived.
#[derive(Debug)]
struct Partial {
    key: Key,
    /// Number of datagrams that began before this one.
    number: u64,
    bytes: Vec<u8>,
    /// The ranges that arrived, sorted and without overlap.
    ranges: Vec<Range<usize>>,
    /// Size of the datagram, if its last fragment has arrived.
    size: Option<usize>,
    /// Number of its fragments.
    frames: u64,
}

/// Datagrams whose fragments arrive.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    /// Incomplete datagrams, the oldest first.
    incomplete: VecDeque<Partial>,
    /// Number of datagrams that began so far.
    datagrams: u64,
}

impl Fragments {
    /// Adds a fragment with the payload `bytes`. If it completes its datagram, writes the datagram without IP header to `whole`
    /// and returns its position there and the number of its fragments.
    pub(super) fn add(
        &mut self,
        piece: &Piece,
        bytes: &[u8],
        whole: &mut Vec<u8>,
    ) -> Option<(Result<Found, Skip>, u64)> {
        if piece.offset + bytes.len() > MAX_DATAGRAM {
            return None;
        }
        let index = self.find(piece);
        let partial = &mut self.incomplete[index];
        partial.add(piece, bytes);
        if !partial.is_complete() {
            return None;
        }
        let partial = self.incomplete.remove(index)?;
        whole.clear();
        whole.extend_from_slice(&partial.bytes);
        let (source, destination, _) = partial.key;
        Some((datagram(whole, source, destination), partial.frames))
    }

    /// Returns the index of the datagram of `piece`.
    fn find(&mut self, piece: &Piece) -> usize {
        let oldest = self.datagrams.saturating_sub(MAX_LATER);
        while let Some(first) = self.incomplete.front()
            && (first.number < oldest || self.incomplete.len() >= MAX_INCOMPLETE)
        {
            self.incomplete.pop_front();
        }
        let mut known = self.incomplete.iter();
        if let Some(index) = known.rposition(|partial| partial.key == piece.key) {
            return index;
        }
        self.incomplete.push_back(Partial {
            key: piece.key,
            number: self.datagrams,
            bytes: Vec::new(),
            ranges: Vec::new(),
            size: None,
            frames: 0,
        });
        self.datagrams += 1;
        self.incomplete.len() - 1
    }
}

impl Partial {
    /// Stores a fragment. A fragment that was captured twice is stored once.
    fn add(&mut self, piece: &Piece, bytes: &[u8]) {
        let range = piece.offset..piece.offset + bytes.len();
        self.frames += 1;
        if !piece.has_more {
            self.size = Some(range.end);
        }
        if range.is_empty() {
            return;
        }
        if self.bytes.len() < range.end {
            self.bytes.resize(range.end, 0);
        }
        self.bytes[range.clone()].copy_from_slice(bytes);
        self.ranges.push(range);
        self.ranges.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<usize>> = Vec::with_capacity(self.ranges.len());
        for range in self.ranges.drain(..) {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        self.ranges = joined;
    }

    fn is_complete(&self) -> bool {
        match &self.ranges[..] {
            [all] => all.start == 0 && Some(all.end) == self.size,
            _ => false,
        }
    }
}
