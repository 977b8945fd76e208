//! The sending side of a queue pair over TCP: posted requests, and the batch that is being sent.

use super::sys::{CALL_BYTES, Part, Vectors};
use super::wire::{Head, MAX_BLOCK, MAX_MESSAGES, Message};
use crate::verbs::Status;
use daq_core::region::Region;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The payload of a posted request.
#[derive(Clone, Copy, Debug, Default)]
enum Source {
    /// The request's part of the buffer of inline payloads.
    #[default]
    Inline,
    /// Index of the region, and offset in it.
    Memory(usize, usize),
}

/// A posted request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Posted {
    pub(super) id: u64,
    pub(super) is_signaled: bool,
    message: Message,
    source: Source,
}

impl Posted {
    fn payload_bytes(&self) -> usize {
        usize::try_from(self.message.bytes).unwrap_or(0)
    }
}

/// The payload of a new request.
pub(super) enum NewPayload<'a> {
    Inline(&'a [u8]),
    /// Region, and offset in it.
    Memory(&'a Arc<Region>, usize),
}

/// The rest of the batch that is being sent.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    /// Number of bytes of the block that were sent.
    block: usize,
    /// Number of the first request whose payload was not sent completely, and the number of requests from it on.
    first: u64,
    count: usize,
    /// Number of bytes of the payload of request `first` that were sent.
    payload: usize,
}

/// Requests from posting to acknowledgement. Request `n` is stored at index `n % len`.
pub(super) struct Output {
    requests: Box<[Posted]>,
    /// The inline payloads of all requests, `inline_bytes` for each.
    inline: Box<[u8]>,
    inline_bytes: usize,
    /// The regions of all requests so far. A queue pair sends from few regions.
    regions: Vec<Arc<Region>>,
    /// Numbers of the next request to post, to add to a batch, to be acknowledged, and to be collected.
    posted: u64,
    batched: u64,
    acknowledged: u64,
    reclaimed: u64,
    block: Vec<u8>,
    batch: Option<Batch>,
    /// The last one of this number of consecutive requests must be acknowledged at once, so that several acknowledgements
    /// arrive while as many requests as possible are in flight.
    urgent_every: u64,
    vectors: Vectors,
    /// The acknowledgement that was last sent.
    reported: u64,
    is_refusal_sent: bool,
}

impl Output {
    /// Creates the state of at most `requests` requests with up to `inline_bytes` bytes inline.
    pub(super) fn new(requests: usize, inline_bytes: usize) -> Self {
        Self {
            requests: vec![Posted::default(); requests].into(),
            inline: vec![0; requests * inline_bytes].into(),
            inline_bytes,
            regions: Vec::with_capacity(4),
            posted: 0,
            batched: 0,
            acknowledged: 0,
            reclaimed: 0,
            block: Vec::with_capacity(MAX_BLOCK),
            batch: None,
            urgent_every: (requests as u64 / 4).max(1),
            vectors: Vectors::new(MAX_MESSAGES + 1),
            reported: 0,
            is_refusal_sent: false,
        }
    }

    /// Sets the number of consecutive requests of which the last one must be acknowledged at once.
    pub(super) fn set_urgent_every(&mut self, requests: u64) {
        self.urgent_every = requests.max(1);
    }

    fn index(&self, number: u64) -> usize {
        usize::try_from(number % self.requests.len() as u64).unwrap_or(0)
    }

    /// Returns the maximum number of bytes of an inline payload.
    pub(super) const fn inline_bytes(&self) -> usize {
        self.inline_bytes
    }

    /// Returns true if another request can be posted.
    pub(super) const fn has_room(&self) -> bool {
        self.posted - self.reclaimed < self.requests.len() as u64
    }

    /// Adds a request, for which there must be [room](Self::has_room). An inline payload must not be longer than
    /// [`inline_bytes`](Self::inline_bytes).
    pub(super) fn post(
        &mut self,
        (id, is_signaled): (u64, bool),
        message: Message,
        payload: &NewPayload<'_>,
    ) {
        let index = self.index(self.posted);
        let source = match *payload {
            NewPayload::Inline(bytes) => {
                let at = index * self.inline_bytes;
                self.inline[at..at + bytes.len()].copy_from_slice(bytes);
                Source::Inline
            }
            NewPayload::Memory(region, offset) => {
                let known = self
                    .regions
                    .iter()
                    .position(|known| Arc::ptr_eq(known, region));
                let known = known.unwrap_or_else(|| {
                    self.regions.push(region.clone());
                    self.regions.len() - 1
                });
                Source::Memory(known, offset)
            }
        };
        let message = Message {
            is_urgent: (self.posted + 1).is_multiple_of(self.urgent_every),
            ..message
        };
        self.requests[index] = Posted {
            id,
            is_signaled,
            message,
            source,
        };
        self.posted += 1;
    }

    /// Returns true if a part of a batch could not be sent yet, or requests wait for the next batch.
    pub(super) const fn is_pending(&self) -> bool {
        self.batch.is_some() || self.batched < self.posted
    }

    /// Returns true if the rest of a batch waits for space in the socket buffer.
    pub(super) const fn is_blocked(&self) -> bool {
        self.batch.is_some()
    }

    /// Returns true if a rejection was sent completely.
    pub(super) const fn is_refusal_sent(&self) -> bool {
        self.is_refusal_sent && !self.is_blocked()
    }

    /// Returns the acknowledgement that was last sent.
    pub(super) const fn reported(&self) -> u64 {
        self.reported
    }

    /// Sends requests and the acknowledgement of the `done` messages of the other side that have completed, until
    /// everything is sent or the socket buffer is full. `refusal` rejects message `done`.
    pub(super) fn flush(
        &mut self,
        socket: BorrowedFd<'_>,
        done: u64,
        refusal: Option<Status>,
    ) -> io::Result<()> {
        loop {
            if self.batch.is_none() && !self.next_batch(done, refusal) {
                return Ok(());
            }
            match self.send(socket) {
                Ok(true) => self.batch = self.batch.filter(|batch| batch.count > 0),
                Ok(false) => return Ok(()),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Creates the next batch. Returns false if there is nothing to send.
    fn next_batch(&mut self, done: u64, refusal: Option<Status>) -> bool {
        let count = if refusal.is_some() {
            0
        } else {
            usize::try_from(self.posted - self.batched)
                .unwrap_or(MAX_MESSAGES)
                .min(MAX_MESSAGES)
        };
        let has_refusal = refusal.is_some() && !self.is_refusal_sent;
        if count == 0 && done == self.reported && !has_refusal {
            return false;
        }
        let (first, head) = (
            self.batched,
            Head {
                done,
                count,
                refusal,
            },
        );
        self.block.clear();
        let (requests, len) = (&self.requests, self.requests.len() as u64);
        let messages = (first..first + count as u64)
            .map(|number| requests[usize::try_from(number % len).unwrap_or(0)].message);
        head.encode(messages, &mut self.block);
        self.batch = Some(Batch {
            first,
            count,
            ..Batch::default()
        });
        self.batched = first + count as u64;
        self.reported = done;
        self.is_refusal_sent |= has_refusal;
        true
    }

    /// Sends the next part of the batch. Returns false if the socket buffer is full.
    fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        let Self {
            requests,
            inline,
            inline_bytes,
            regions,
            block,
            batch,
            vectors,
            ..
        } = self;
        let Some(batch) = batch else {
            return Ok(true);
        };
        let len = requests.len() as u64;
        let request = |number: u64| &requests[usize::try_from(number % len).unwrap_or(0)];
        let (first, payload) = (batch.first, batch.payload);
        let mut offered = block.len() - batch.block;
        let payloads = (first..first + batch.count as u64).map(|number| {
            let request = request(number);
            let bytes = request.payload_bytes();
            let skip = if number == first { payload } else { 0 };
            match request.source {
                Source::Inline => {
                    let at = usize::try_from(number % len).unwrap_or(0) * *inline_bytes;
                    Part::Bytes(&inline[at + skip..at + bytes])
                }
                Source::Memory(region, offset) => {
                    Part::Memory(&regions[region], offset + skip, bytes - skip)
                }
            }
        });
        let payloads = payloads.take_while(|part| {
            let is_taken = offered < CALL_BYTES;
            offered += if is_taken { part.bytes() } else { 0 };
            is_taken
        });
        let head = std::iter::once(Part::Bytes(&block[batch.block..]));
        let mut sent = vectors.send(socket, head.chain(payloads))?;
        let is_full = sent < offered;
        let of_block = sent.min(block.len() - batch.block);
        batch.block += of_block;
        sent -= of_block;
        while batch.block == block.len() && batch.count > 0 {
            let left = request(batch.first).payload_bytes() - batch.payload;
            if sent < left {
                batch.payload += sent;
                break;
            }
            sent -= left;
            batch.payload = 0;
            batch.first += 1;
            batch.count -= 1;
        }
        Ok(!is_full)
    }

    /// Returns the number below which all requests were sent completely.
    fn sent(&self) -> u64 {
        self.batch.map_or(self.batched, |batch| batch.first)
    }

    /// Handles the acknowledgement of all requests with a number below `done`; calls `complete` with the number of each.
    /// Returns false if the number is impossible.
    pub(super) fn acknowledge(
        &mut self,
        done: u64,
        mut complete: impl FnMut(u64, &Posted),
    ) -> bool {
        if done > self.sent() || done < self.acknowledged {
            return false;
        }
        while self.acknowledged < done {
            let number = self.acknowledged;
            complete(number, &self.requests[self.index(number)]);
            self.acknowledged += 1;
        }
        true
    }

    /// Removes all requests that are not acknowledged; calls `complete` with the number of each.
    pub(super) fn abort(&mut self, mut complete: impl FnMut(u64, &Posted)) {
        self.batch = None;
        while self.acknowledged < self.posted {
            let number = self.acknowledged;
            complete(number, &self.requests[self.index(number)]);
            self.acknowledged += 1;
        }
        self.batched = self.posted;
    }

    /// Marks the request as collected, which also frees the places of all earlier requests.
    pub(super) fn reclaim(&mut self, number: u64) {
        self.reclaimed = self.reclaimed.max(number + 1);
    }
}
