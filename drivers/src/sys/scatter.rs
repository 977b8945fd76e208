//! Receiving straight into the places where the next packets belong if they come in order.
//!
//! ```text
//!   message m:  | header i | place i | trailer i, header i+1 | place i+1 | … | spare |
//!                 own        slot      own                     slot            own
//! ```
//! The kernel cuts a message wherever the pieces end, so each packet of a coalesced message lands with its
//! header beside and its payload in the slot. Where the guess was wrong, [`Received::gather`] gives the bytes
//! back in a row. Everything is allocated when the [`Scatter`] is made.

use super::recv::{MESSAGE_BYTES, Message, RecvBatch};
use super::socket::UdpSocket;
use daq_core::frame::Timestamp;
use daq_core::reorder::{Batch, PacketId, Place};
use std::io;
use std::net::SocketAddr;

/// Packets that the kernel makes one message of, at most: `UDP_GRO_CNT_MAX`.
pub const SEGMENTS: usize = 64;

/// Memory for batches that are received into places.
pub struct Scatter {
    recv: RecvBatch,
    places: Vec<Place>,
    /// Header bytes that were guessed for each place.
    header_lens: Vec<usize>,
    rows: Vec<Row>,
    /// `header_each` bytes a place: trailer of the packet before, then header.
    headers: Box<[u8]>,
    header_each: usize,
    trailer: usize,
    /// What comes beyond the guess, [`MESSAGE_BYTES`] a message.
    spare: Box<[u8]>,
}

/// What was guessed of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index of its first place.
    pub first: usize,
    /// Packets.
    pub count: usize,
    /// Bytes of its first packet, and so of each but the last.
    pub packet: usize,
}

/// A batch that was received into places of `batch`.
pub struct Received<'a, 'w> {
    scatter: &'a Scatter,
    batch: &'a mut Batch<'w>,
    messages: usize,
}

impl Scatter {
    /// Room for `messages` messages and `places` places a batch; headers are at most `header` bytes, trailers exactly
    /// `trailer`.
    pub fn new(messages: usize, places: usize, header: usize, trailer: usize) -> Self {
        let messages = messages.max(1);
        Self {
            recv: RecvBatch::scatter(messages, 2 * SEGMENTS + 1),
            places: Vec::with_capacity(places),
            header_lens: vec![0; places],
            rows: Vec::with_capacity(messages),
            headers: vec![0; places * (header + trailer)].into_boxed_slice(),
            header_each: header + trailer,
            trailer,
            spare: vec![0; messages * MESSAGE_BYTES].into_boxed_slice(),
        }
    }

    /// Receives at most `messages` messages of up to `segments` packets each into the places that `batch` predicts;
    /// `header` returns the expected header bytes of a packet. Never blocks.
    ///
    /// `None` if no place can be predicted: nothing was received then.
    pub fn receive<'a, 'w>(
        &'a mut self,
        batch: &'a mut Batch<'w>,
        socket: &UdpSocket,
        messages: usize,
        segments: usize,
        header: impl Fn(PacketId) -> usize,
    ) -> io::Result<Option<Received<'a, 'w>>> {
        let (messages, segments) = (
            messages.clamp(1, self.recv.len()),
            segments.clamp(1, SEGMENTS),
        );
        batch.predict(messages * segments, &mut self.places);
        self.guess(messages, segments, header);
        if self.rows.is_empty() {
            return Ok(None);
        }
        // The kernel writes to the pieces during this call only, while `batch` keeps the frames open.
        let messages = self.recv.recv(socket, self.rows.len())?;
        Ok(Some(Received {
            scatter: self,
            batch,
            messages,
        }))
    }

    /// Who sent `message` of the last batch, see [`RecvBatch::sender`].
    pub fn sender(&self, message: usize) -> Option<SocketAddr> {
        self.recv.sender(message)
    }

    /// See [`RecvBatch::name_all`].
    pub fn name_all(&mut self, all: bool) {
        self.recv.name_all(all);
    }

    /// Lays the predicted places out as messages.
    fn guess(&mut self, messages: usize, segments: usize, header: impl Fn(PacketId) -> usize) {
        self.rows.clear();
        let mut next = 0;
        for message in 0..messages {
            self.recv.clear(message);
            let first = next;
            let mut packet = 0;
            while next - first < segments
                && let Some(place) = self.places.get(next)
            {
                let header = header(place.id());
                let bytes = header + place.bytes() + self.trailer;
                // Packets of a message are equally long; only the last may be shorter.
                if self.trailer + header > self.header_each || (next > first && bytes > packet) {
                    break;
                }
                self.header_lens[next] = header;
                let before = if next > first { self.trailer } else { 0 };
                let at = next * self.header_each + self.trailer - before;
                let own = &mut self.headers[at..][..before + header];
                // SAFETY: `own` is a part of a box of this structure that nothing else refers to until the next
                // guess; the place is memory of an open slot that nothing else refers to while its batch lives
                // (see `Batch::predict`). The pieces are written by `recv` in `receive` only, which holds both
                // this structure and the batch by exclusive references; they are cleared before the next.
                unsafe {
                    self.recv.push(message, own.as_mut_ptr(), own.len());
                    self.recv.push(message, place.memory(), place.bytes());
                }
                next += 1;
                if next == first + 1 {
                    packet = bytes;
                } else if bytes < packet {
                    break;
                }
            }
            if next == first {
                return;
            }
            let spare = &mut self.spare[message * MESSAGE_BYTES..][..MESSAGE_BYTES];
            // SAFETY: as for `own` above.
            unsafe { self.recv.push(message, spare.as_mut_ptr(), spare.len()) };
            self.rows.push(Row {
                first,
                count: next - first,
                packet,
            });
        }
    }
}

impl Received<'_, '_> {
    /// Messages received.
    pub const fn messages(&self) -> usize {
        self.messages
    }

    /// What the kernel says of `message`.
    ///
    /// # Panics
    /// When there is no such message.
    #[inline]
    pub fn message(&self, message: usize) -> Message {
        self.scatter.recv.message(message)
    }

    /// Who sent `message`, see [`RecvBatch::sender`].
    pub fn sender(&self, message: usize) -> Option<SocketAddr> {
        self.scatter.recv.sender(message)
    }

    /// What was guessed of `message`.
    ///
    /// # Panics
    /// When there is no such message.
    #[inline]
    pub fn row(&self, message: usize) -> Row {
        self.scatter.rows[message]
    }

    /// The header that was received beside place `place`, as long as was guessed.
    ///
    /// # Panics
    /// When there is no such place.
    #[inline]
    pub fn header(&self, place: usize) -> &[u8] {
        let at = place * self.scatter.header_each + self.scatter.trailer;
        &self.scatter.headers[at..][..self.scatter.header_lens[place]]
    }

    /// Bytes of the packet that was guessed for place `place`.
    ///
    /// # Panics
    /// When there is no such place.
    #[inline]
    pub fn packet_bytes(&self, place: usize) -> usize {
        self.scatter.header_lens[place] + self.scatter.places[place].bytes() + self.scatter.trailer
    }

    /// Says that the packet `id` is in place `place`; false if it belongs elsewhere, and nothing has changed.
    ///
    /// # Panics
    /// When there is no such place.
    #[inline]
    pub fn accept(&mut self, id: PacketId, place: usize, time: Timestamp) -> bool {
        self.batch.accept(id, &self.scatter.places[place], time)
    }

    /// Copies the bytes of `message` from byte `from` on to `out`; how many they were.
    ///
    /// # Panics
    /// When there is no such message.
    pub fn gather(&self, message: usize, from: usize, out: &mut [u8]) -> usize {
        assert!(
            message < self.messages,
            "message {message} of {}",
            self.messages
        );
        // SAFETY: the pieces are parts of `scatter`'s own boxes, borrowed here, and places of open slots, kept open by
        // the batch that is borrowed here since they were predicted; no one else writes to them, and none overlaps
        // `out`, which the caller borrows from elsewhere.
        unsafe { self.scatter.recv.gather(message, from, out) }
    }
}

// SAFETY: the pointers in `places` are only used between `guess` and the end of the batch that predicted them,
// through `Received`, which borrows both; in between they are values without meaning, on whatever thread.
unsafe impl Send for Scatter {}
