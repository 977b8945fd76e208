//! The receiving thread of one socket: places its packets in the reorder window.
//!
//! If this thread alone fills the window and packets are large, the thread predicts the next packets. It passes the
//! addresses of their packet slots to Linux, so only the payload of mispredicted packets must be copied. Otherwise, and
//! while predictions fail, packets are received into buffers that stay in the CPU cache and are copied with
//! non-temporal stores. (Measured: Linux needs 70 ns more for each packet that it scatters from a coalesced message,
//! about as long as copying 4 KiB.)

use super::group::SocketGroup;
use super::shared::SharedPort;
use crate::packet::datagram::{Depacketizer, split_message};
use crate::packet::{Flow, Format, Origin, Parsed, Split};
use crate::sender::message_of;
use crate::socket::SourceSocket;
use crate::sys::recv::{MESSAGE_BYTES, Message, RecvBatch};
use crate::sys::scatter::Scatter;
use crate::sys::socket::UdpSocket;
use daq_core::entry::SourceContext;
use daq_core::frame::{Clock, Timestamp};
use daq_core::reorder::{PacketId, ReorderWindow};
use daq_core::source::{Filler, Polled, SourceError};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of messages per system call.
const MESSAGES: usize = 64;
/// Maximum number of coalesced messages per system call, if their payload is copied.
const COALESCED: usize = 8;
/// Maximum number of packet slots predicted for one system call.
const MAX_BATCH_PACKETS: usize = 512;
/// Number of mispredicted batches in a row after which prediction pauses.
const BAD: u32 = 3;
/// Length of a prediction pause in batches: initial value and maximum.
const REST: (u32, u32) = (32, 2048);
/// Number of batches in a row with smaller messages after which fewer packets per message are predicted.
const SMALLER: u32 = 16;

/// Maximum header size in bytes that is predicted, if the format does not fix it.
const HEADER: usize = 512;
/// Maximum number of bytes of all predicted headers.
const HEADERS: usize = 4 << 20;
/// Minimum payload bytes for which scattering a message costs less than copying it.
const MIN_SCATTER_PAYLOAD: usize = 4096;

/// Receives from one socket.
pub(super) struct Receiver {
    socket: SourceSocket,
    depacketizer: Depacketizer,
    plain: RecvBatch,
    scatter: Option<Scatter>,
    tune: Tune,
    /// Copies of mispredicted messages, [`MESSAGE_BYTES`] each.
    bounce: Box<[u8]>,
    rest: Vec<Moved>,
    /// Whether this thread alone fills the window.
    exclusive: bool,
    is_prepared: bool,
    /// The sockets of all threads, if there are several.
    group: Option<Arc<SocketGroup>>,
    /// The port of the socket, if other sources share it: its sockets stay open until the last source ends.
    _port: Option<Arc<SharedPort>>,
}

/// A message, or its last part, in the bounce buffer.
#[derive(Clone, Copy, Debug)]
struct Moved {
    message: usize,
    bytes: usize,
    segment: usize,
    time: Timestamp,
}

/// Returns the size in bytes of one thread's receive buffers, for packets of `payload` bytes and `threads` threads.
pub(super) fn memory(payload: usize, threads: usize) -> usize {
    let buffers = MESSAGES * MESSAGE_BYTES;
    if threads == 1 && payload >= MIN_SCATTER_PAYLOAD {
        2 * buffers + HEADERS
    } else {
        buffers
    }
}

/// Returns the maximum number of packets that one receive call can return: [`MESSAGES`] single packets, or fewer messages that
/// Linux has coalesced from several packets. A thread may run ahead of the other threads by this number of packets.
pub(super) fn batch(payload: usize, threads: usize) -> usize {
    if threads == 1 {
        return MESSAGES;
    }
    let coalesced = MESSAGE_BYTES / payload.max(1);
    MESSAGES.max(COALESCED * coalesced)
}

/// The result of one receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    Nothing,
    /// All packets were predicted correctly.
    AsGuessed,
    Something,
}

impl Receiver {
    /// Creates a receiver for the source of `context`. `exclusive` is true if it alone fills the window.
    pub(super) fn new(
        context: &SourceContext,
        socket: SourceSocket,
        format: Format,
        exclusive: bool,
    ) -> Self {
        let mut receiver = Self {
            socket,
            depacketizer: Depacketizer::new(&context.name, format)
                .with_rejections(context.rejections.clone()),
            plain: RecvBatch::plain(MESSAGES, MESSAGE_BYTES),
            scatter: None,
            tune: Tune::default(),
            bounce: Box::default(),
            rest: Vec::with_capacity(MESSAGES),
            exclusive,
            is_prepared: false,
            group: None,
            _port: None,
        };
        receiver.depacketizer.use_flow(Flow {
            source: None,
            destination: Some(receiver.socket.socket.local()),
        });
        receiver.prepare();
        receiver
    }

    /// Keeps the sockets of other sources open that share `port`.
    pub(super) fn sharing(self, port: Option<Arc<SharedPort>>) -> Self {
        Self {
            _port: port,
            ..self
        }
    }

    pub(super) const fn socket(&self) -> &Arc<UdpSocket> {
        &self.socket.socket
    }

    /// Makes this thread end together with the threads of `group`. `dropped` is the number of packets that arrived at its socket
    /// before the group began.
    pub(super) fn join(&mut self, group: Arc<SocketGroup>, dropped: u32) {
        self.socket.set_dropped_before(dropped);
        self.group = Some(group);
    }

    /// Prepares to receive into predicted packet slots if the packets are large enough, once the format is known.
    fn prepare(&mut self) {
        let format = self.depacketizer.format().facts();
        if format.unknown_sizes.is_some() {
            return;
        }
        self.is_prepared = true;
        let trailer = format.trailer;
        let header = format.header.unwrap_or(HEADER);
        let packets = MAX_BATCH_PACKETS.min(HEADERS / (header + trailer).max(1));
        if self.exclusive
            && format.layout.rest >= MIN_SCATTER_PAYLOAD
            && !format.has_sized_units
            && !self.is_by_sender()
        {
            self.scatter = Some(Scatter::new(MESSAGES, packets, header, trailer));
            self.bounce = vec![0; MESSAGES * MESSAGE_BYTES].into_boxed_slice();
        }
    }

    /// Returns whether the format needs the address of a packet's sender.
    fn is_by_sender(&self) -> bool {
        self.depacketizer.flow_origin() == Some(Origin::Address)
    }

    fn receive(&mut self, window: &mut ReorderWindow) -> io::Result<Got> {
        if !self.is_prepared {
            self.depacketizer.poll(window);
            self.prepare();
        }
        let guesses = self.scatter.is_some()
            && !self.depacketizer.is_catching_up()
            && window.is_exclusive()
            && self.tune.guesses();
        if guesses && let Some(got) = self.receive_into_slots(window)? {
            return Ok(got);
        }
        self.receive_and_copy(window, !guesses)
    }

    fn receive_and_copy(&mut self, window: &mut ReorderWindow, is_rule: bool) -> io::Result<Got> {
        let is_by_sender = self.is_by_sender();
        self.plain
            .name_all(is_by_sender || self.socket.senders.wants_all());
        let count = self
            .plain
            .recv(&self.socket.socket, self.tune.plain(is_rule))?;
        if count == 0 {
            return Ok(Got::Nothing);
        }
        let (plain, tune) = (&self.plain, &mut self.tune);
        let datagrams = (0..count).flat_map(|message| {
            let about = plain.message(message);
            tune.saw_plain(about.packets());
            split_message(plain.bytes(message), about.segment)
                .map(move |bytes| (message, bytes, received_at(&about)))
        });
        let duplicate = if is_by_sender {
            let destination = Some(self.socket.socket.local());
            let flows = datagrams.map(|(message, bytes, received)| {
                let source = plain.sender(message);
                (
                    bytes,
                    received,
                    Flow {
                        source,
                        destination,
                    },
                )
            });
            self.depacketizer.place_flows(window, flows)
        } else {
            let datagrams = datagrams.map(|(_, bytes, received)| (bytes, received));
            self.depacketizer.place(window, datagrams)
        };
        self.socket.saw(plain, count, duplicate);
        Ok(Got::Something)
    }

    /// Receives into predicted packet slots. Returns `None` if no prediction is possible.
    fn receive_into_slots(&mut self, window: &mut ReorderWindow) -> io::Result<Option<Got>> {
        let Some(scatter) = &mut self.scatter else {
            return Ok(None);
        };
        let (messages, segments) = self.tune.guess();
        let keeps_fields = self.depacketizer.keeps_fields();
        let format = self.depacketizer.format_mut();
        scatter.name_all(self.socket.senders.wants_all());
        let mut batch = window.batch();
        let header = |id: PacketId| format.header_len(id.sub);
        let Some(mut received) =
            scatter.receive(&mut batch, &self.socket.socket, messages, segments, header)?
        else {
            batch.commit();
            return Ok(None);
        };
        self.rest.clear();
        if received.messages() > 0 {
            self.socket.senders.saw(received.sender(0));
        }
        let mut seen = Seen {
            messages: received.messages(),
            ..Seen::default()
        };
        let mut mismatched = None;
        let mut compared = None;
        for message in 0..received.messages() {
            let (about, row) = (received.message(message), received.row(message));
            let (count, time) = (about.packets(), received_at(&about));
            seen.fullest = seen.fullest.max(count);
            seen.uneven |= count != row.count && message + 1 < received.messages();
            let mut matched = 0;
            // After a mispredicted packet, all later packets are at the wrong address too.
            if self.rest.is_empty() {
                let is_aligned = about.segment == row.packet || count == 1;
                let max = if is_aligned { count.min(row.count) } else { 0 };
                while matched < max {
                    let slot = row.first + matched;
                    let length = about.segment.min(about.bytes - matched * about.segment);
                    let header = received.header(slot);
                    if length != received.packet_bytes(slot) {
                        break;
                    }
                    let parsed = format.parse_split(header, length - header.len());
                    if let Ok(Split::Whole(Parsed::Data(packet))) = &parsed
                        && packet.payload == received.payload(slot)
                        && received.accept(packet.id(), slot, format.time(packet.timestamp, time))
                    {
                        if keeps_fields {
                            received.keep_fields(slot, |header| format.read_kept(header));
                        }
                        matched += 1;
                        compared = Some((packet.id(), packet.timestamp, time));
                    } else {
                        mismatched = Some(parsed);
                        break;
                    }
                }
            }
            seen.matched += matched as u64;
            if matched < count {
                seen.moved += (count - matched) as u64;
                // Copy the packets out of the packet slots before other packets are written into these slots.
                let bounce = &mut self.bounce[self.rest.len() * MESSAGE_BYTES..][..MESSAGE_BYTES];
                let bytes = received.gather(message, matched * about.segment, bounce);
                self.rest.push(Moved {
                    message,
                    bytes,
                    segment: about.segment,
                    time,
                });
            }
        }
        batch.commit();
        if let Some((id, ticks, received)) = compared {
            let time = format.time(ticks, received);
            self.depacketizer
                .check_clock(id, time, received, window.geometry());
        }
        self.tune.saw(seen);
        let moved = self
            .rest
            .iter()
            .zip(self.bounce.chunks_exact(MESSAGE_BYTES))
            .flat_map(|(moved, bytes)| {
                split_message(&bytes[..moved.bytes], moved.segment)
                    .map(move |bytes| (bytes, moved.time))
            });
        let duplicate =
            (seen.moved > 0).then(|| self.depacketizer.place_rest(window, mismatched, moved));
        if let Some(duplicate) = duplicate.flatten() {
            let packets = |moved: &Moved| moved.bytes.div_ceil(moved.segment.max(1)).max(1);
            let moved = message_of(self.rest.iter().map(packets), duplicate);
            let sender = self
                .rest
                .get(moved)
                .and_then(|moved| scatter.sender(moved.message));
            self.socket.senders.duplicate(sender);
        }
        Ok(Some(match (seen.messages, seen.moved) {
            (0, _) => Got::Nothing,
            (_, 0) => Got::AsGuessed,
            _ => Got::Something,
        }))
    }
}

/// Returns the receive time of a message.
fn received_at(message: &Message) -> Timestamp {
    let clock = if message.is_hardware_time {
        Clock::Hardware
    } else {
        Clock::Kernel
    };
    message
        .timestamp_ns
        .map_or_else(Timestamp::default, |ns| Timestamp { ns, clock })
}

impl Filler for Receiver {
    fn fill(
        &mut self,
        window: &mut ReorderWindow,
        timeout: Duration,
    ) -> Result<Polled, SourceError> {
        let got = self
            .receive(window)
            .map_err(|why| self.socket.error(&why))?;
        if got == Got::AsGuessed && !window.wants_drops() {
            return Ok(Polled::Busy);
        }
        self.socket.senders.alternated(window.alternations());
        // Packets that are missing or arrived out of order may have been dropped by this socket.
        self.socket.read_drops(window);
        if got != Got::Nothing {
            return Ok(Polled::Busy);
        }
        window.idle(|| self.socket.wait(timeout))
    }

    fn finish(&mut self, window: &mut ReorderWindow) {
        // The other sockets may have received packets after this thread stopped, so this socket may too.
        if let Some(group) = self.group.take()
            && group.end().is_ok()
        {
            while matches!(self.receive(window), Ok(got) if got != Got::Nothing) {}
        }
        self.depacketizer.flush(window, false);
    }
}

/// Result of a batch that was received into predicted packet slots.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Number of messages received.
    messages: usize,
    /// Number of packets in the largest message.
    fullest: usize,
    /// Whether a message other than the last had a different number of packets than predicted.
    uneven: bool,
    /// Number of packets that were predicted correctly.
    matched: u64,
    /// Number of packets that must be moved to another packet slot.
    moved: u64,
}

/// The current prediction and its history.
#[derive(Clone, Debug)]
struct Tune {
    /// Number of messages to predict.
    messages: usize,
    /// Number of packets per message to predict.
    segments: usize,
    /// Number of batches in a row whose largest message was smaller than predicted.
    smaller: u32,
    /// Number of even batches since the number of messages last changed. In an even batch, all messages but the last
    /// have the predicted size.
    even: u32,
    /// Number of even batches required before more messages are predicted.
    trust: u32,
    /// Number of mispredicted batches in a row.
    bad: u32,
    /// Number of batches until prediction resumes.
    rest: u32,
    /// Number of batches of the next pause.
    next_rest: u32,
}

impl Default for Tune {
    fn default() -> Self {
        Self {
            messages: 4,
            segments: 1,
            smaller: 0,
            even: 0,
            trust: 1,
            bad: 0,
            rest: 0,
            next_rest: REST.0,
        }
    }
}

impl Tune {
    /// Returns whether to receive the next batch into predicted packet slots.
    fn guesses(&mut self) -> bool {
        let rests = self.rest > 0;
        self.rest = self.rest.saturating_sub(1);
        !rests
    }

    /// Returns the number of messages and the number of packets per message to predict.
    fn guess(&self) -> (usize, usize) {
        (
            self.messages
                .min((MAX_BATCH_PACKETS / self.segments).max(1)),
            self.segments,
        )
    }

    /// Returns the number of messages to receive without prediction. `is_rule` is false if a prediction was due but not
    /// possible; then the batch is small, so that the next prediction follows soon.
    fn plain(&self, is_rule: bool) -> usize {
        // The messages are read immediately, so they should still fit into a CPU cache.
        let cached = if self.segments > 1 {
            COALESCED
        } else {
            MESSAGES
        };
        if is_rule { cached } else { cached / 4 }
    }

    /// Updates the prediction after a batch that was received without prediction.
    fn saw_plain(&mut self, fullest: usize) {
        self.segments = self.segments.max(fullest);
    }

    /// Updates the prediction after a batch that was received into predicted packet slots.
    fn saw(&mut self, seen: Seen) {
        if seen.messages == 0 {
            return;
        }
        self.size(seen.fullest);
        if seen.uneven {
            // A single message can have any size without affecting later messages.
            (self.messages, self.even) = (1, 0);
            self.trust = (self.trust * 2).min(1024);
        } else {
            self.even += 1;
            if self.even >= self.trust {
                self.even = 0;
                self.messages = (self.messages * 2).min(MESSAGES);
            }
        }
        if seen.moved <= seen.matched {
            (self.bad, self.next_rest) = (0, REST.0);
            return;
        }
        self.bad += 1;
        if self.bad >= BAD {
            (self.bad, self.rest) = (0, self.next_rest);
            self.next_rest = (self.next_rest * 2).min(REST.1);
        }
    }

    fn size(&mut self, fullest: usize) {
        if fullest >= self.segments {
            (self.segments, self.smaller) = (fullest, 0);
            return;
        }
        self.smaller += 1;
        if self.smaller >= SMALLER {
            (self.segments, self.smaller) = (fullest.max(1), 0);
        }
    }
}

#[cfg(test)]
mod tests;
