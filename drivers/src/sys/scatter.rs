//! Receives packets directly into the packet slots of the next expected packets.
//!
//! ```text
//!   message m:  | header i | packet i | trailer i, header i+1 | packet i+1 | … | spare |
//!                 own        slot      own                     slot            own
//! ```
//! Linux continues a message in the next piece when a piece is full. So the header of each packet of a coalesced
//! message is stored in a separate buffer, and its payload in the packet slot. If a prediction was wrong,
//! [`Received::gather`] copies the message to contiguous memory. All memory is allocated when the [`Scatter`] is
//! created.

use super::recv::{MESSAGE_BYTES, Message, RecvBatch};
use super::socket::UdpSocket;
use daq_core::frame::{KeptFields, Timestamp};
use daq_core::reorder::{Batch, Outcome, PacketId, PacketSlot};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;

/// Maximum number of packets that Linux coalesces into one message: `UDP_GRO_CNT_MAX`.
pub(crate) const SEGMENTS: usize = 64;

/// Memory for batches of messages that are received into packet slots.
pub(crate) struct Scatter {
    recv: RecvBatch,
    slots: Vec<PacketSlot>,
    /// Predicted size in bytes of the header for each packet slot.
    header_lens: Vec<usize>,
    rows: Vec<Row>,
    /// `header_each` bytes per packet slot: the trailer of the previous packet, then the header.
    headers: Box<[u8]>,
    header_each: usize,
    trailer: usize,
    /// Memory for bytes beyond the prediction, [`MESSAGE_BYTES`] per message.
    spare: Box<[u8]>,
}

/// The predicted contents of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Index of the message's first packet slot.
    pub first: usize,
    /// Number of packets.
    pub count: usize,
    /// Size in bytes of the first packet, and therefore of every packet except the last.
    pub packet: usize,
}

/// Messages that were received into packet slots of `batch`.
pub(crate) struct Received<'a, 'w> {
    scatter: &'a Scatter,
    batch: &'a mut Batch<'w>,
    messages: usize,
}

impl Scatter {
    /// Allocates memory for batches of `messages` messages and `slots` packet slots. Headers have at most `header`
    /// bytes, trailers exactly `trailer` bytes.
    pub(crate) fn new(messages: usize, slots: usize, header: usize, trailer: usize) -> Self {
        let messages = messages.max(1);
        Self {
            recv: RecvBatch::scatter(messages, 2 * SEGMENTS + 1),
            slots: Vec::with_capacity(slots),
            header_lens: vec![0; slots],
            rows: Vec::with_capacity(messages),
            headers: vec![0; slots * (header + trailer)].into_boxed_slice(),
            header_each: header + trailer,
            trailer,
            spare: vec![0; messages * MESSAGE_BYTES].into_boxed_slice(),
        }
    }

    /// Receives at most `messages` messages of up to `segments` packets each into the packet slots that `batch`
    /// predicts. `header` returns the expected header bytes of a packet. Never blocks.
    ///
    /// Returns `None`, and receives nothing, if no packet slot can be predicted.
    pub(crate) fn receive<'a, 'w>(
        &'a mut self,
        batch: &'a mut Batch<'w>,
        socket: &UdpSocket,
        messages: usize,
        segments: usize,
        header: impl Fn(PacketId) -> usize,
    ) -> io::Result<Option<Received<'a, 'w>>> {
        let (messages, segments) = (
            messages.clamp(1, self.recv.capacity()),
            segments.clamp(1, SEGMENTS),
        );
        batch.predict(messages * segments, &mut self.slots);
        self.guess(messages, segments, header);
        if self.rows.is_empty() {
            return Ok(None);
        }
        // Linux writes to the pieces only during this call, while `batch` keeps the frames open.
        let messages = self.recv.recv(socket, self.rows.len())?;
        Ok(Some(Received {
            scatter: self,
            batch,
            messages,
        }))
    }

    /// Returns the header that was received for packet slot `slot`.
    fn header(&self, slot: usize) -> &[u8] {
        let at = slot * self.header_each + self.trailer;
        &self.headers[at..][..self.header_lens[slot]]
    }

    /// Returns the sender of `message` of the last batch, see [`RecvBatch::sender`].
    pub(crate) fn sender(&self, message: usize) -> Option<SocketAddr> {
        self.recv.sender(message)
    }

    /// Selects whether all senders' addresses are received, see [`RecvBatch::name_all`].
    pub(crate) fn name_all(&mut self, all: bool) {
        self.recv.name_all(all);
    }

    /// Assigns the predicted packet slots to messages.
    fn guess(&mut self, messages: usize, segments: usize, header: impl Fn(PacketId) -> usize) {
        self.rows.clear();
        let mut next = 0;
        for message in 0..messages {
            self.recv.clear(message);
            let first = next;
            let mut packet = 0;
            while next - first < segments
                && let Some(slot) = self.slots.get(next)
            {
                let header = header(slot.id());
                let bytes = header + slot.bytes() + self.trailer;
                // All packets of a message have the same size, except the last, which may be shorter.
                if self.trailer + header > self.header_each || (next > first && bytes > packet) {
                    break;
                }
                self.header_lens[next] = header;
                let before = if next > first { self.trailer } else { 0 };
                let at = next * self.header_each + self.trailer - before;
                let own = &mut self.headers[at..][..before + header];
                // SAFETY:
                // - `own` is a part of a box of this structure. Nothing else refers to it until the next call of
                //   `guess`.
                // - The packet slot is memory of an open slot that nothing else refers to while its batch lives (see
                //   `Batch::predict`).
                // - Only `recv` in `receive` writes to the pieces. `receive` has exclusive references to this structure
                //   and the batch.
                // - The pieces are cleared before the next prediction.
                unsafe {
                    self.recv.push(message, own.as_mut_ptr(), own.len());
                    self.recv.push(message, slot.memory(), slot.bytes());
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
            // SAFETY: the requirements are met as for `own` above.
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
    /// Returns the number of messages received.
    pub(crate) const fn messages(&self) -> usize {
        self.messages
    }

    /// Returns the properties of `message` that Linux reported.
    ///
    /// # Panics
    /// Panics if there is no such message.
    #[inline]
    pub(crate) fn message(&self, message: usize) -> Message {
        self.scatter.recv.message(message)
    }

    /// Returns the sender of `message`, see [`RecvBatch::sender`].
    pub(crate) fn sender(&self, message: usize) -> Option<SocketAddr> {
        self.scatter.recv.sender(message)
    }

    /// Returns the predicted contents of `message`.
    ///
    /// # Panics
    /// Panics if there is no such message.
    #[inline]
    pub(crate) fn row(&self, message: usize) -> Row {
        self.scatter.rows[message]
    }

    /// Returns the header that was received for packet slot `slot`, with the predicted size.
    ///
    /// # Panics
    /// Panics if there is no such packet slot.
    #[inline]
    pub(crate) fn header(&self, slot: usize) -> &[u8] {
        self.scatter.header(slot)
    }

    /// Returns the predicted byte range of the payload in the packet for packet slot `slot`.
    ///
    /// # Panics
    /// Panics if there is no such packet slot.
    #[inline]
    pub(crate) fn payload(&self, slot: usize) -> Range<usize> {
        let start = self.scatter.header_lens[slot];
        start..start + self.scatter.slots[slot].bytes()
    }

    /// Returns the predicted size in bytes of the packet for packet slot `slot`.
    ///
    /// # Panics
    /// Panics if there is no such packet slot.
    #[inline]
    pub(crate) fn packet_bytes(&self, slot: usize) -> usize {
        self.payload(slot).end + self.scatter.trailer
    }

    /// Records that packet slot `slot` contains the packet `id`. Returns false, and changes nothing, if the packet
    /// belongs to another packet slot.
    ///
    /// # Panics
    /// Panics if there is no such packet slot.
    #[inline]
    pub(crate) fn accept(&mut self, id: PacketId, slot: usize, time: Timestamp) -> bool {
        self.batch.accept(id, &self.scatter.slots[slot], time)
    }

    /// Stores the kept fields of the packet that was [accepted](Self::accept) last, in packet slot `slot`. `read` reads them
    /// from the packet's header; see [`Batch::keep_fields`].
    ///
    /// # Panics
    /// Panics if there is no such packet slot.
    pub(crate) fn keep_fields(&mut self, slot: usize, read: impl FnOnce(&[u8]) -> KeptFields) {
        let scatter = self.scatter;
        let read = || read(scatter.header(slot));
        self.batch.keep_fields(Outcome::Placed, read);
    }

    /// Copies the bytes of `message`, starting at byte `from`, to `out`. Returns the number of bytes copied.
    ///
    /// # Panics
    /// Panics if there is no such message.
    pub(crate) fn gather(&self, message: usize, from: usize, out: &mut [u8]) -> usize {
        assert!(
            message < self.messages,
            "message {message} of {}",
            self.messages
        );
        // SAFETY:
        // - Each piece is a part of a box of `scatter`, which is borrowed, or a packet slot of an open slot. The batch,
        //   which is also borrowed, has kept these slots open since the prediction.
        // - Nothing else writes to the pieces.
        // - The caller borrows `out` from other memory, so it does not overlap them.
        unsafe { self.scatter.recv.gather(message, from, out) }
    }
}

// SAFETY: the pointers in `slots` are used only between `guess` and the end of the batch that predicted them, through
// `Received`, which borrows both. At all other times they are unused values, so the structure can move to another
// thread.
unsafe impl Send for Scatter {}
