//! The thread of one queue: moves packets from the memory shared with the NIC into the reorder window.

use super::link::{Attached, BATCH};
use super::{checksum, headers};
use crate::packet::datagram::Depacketizer;
use crate::packet::{Flow, Format};
use crate::sender::SenderWatch;
use crate::sys::recv::{MESSAGE_BYTES, RecvBatch};
use crate::sys::socket::UdpSocket;
use crate::sys::xdp::XdpSocket;
use daq_core::frame::{Clock, Timestamp};
use daq_core::ledger::Rejections;
use daq_core::reorder::ReorderWindow;
use daq_core::source::{Filler, Polled, SourceError};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of messages received from the Linux network stack per system call.
const MESSAGES: usize = 8;
/// Maximum number of receive calls to the network stack in a row before the XDP queue is polled again. The calls together
/// receive at most the packets of one batch of the queue.
const ROUNDS: usize = BATCH / MESSAGES;
/// Maximum number of receive calls to the network stack when the sockets are emptied at startup, so that a full receive buffer
/// is emptied.
const BACKLOG: usize = 1 << 14;
/// Minimum interval between reads of Linux's drop counters, and of packets from the network stack, while packets arrive in
/// the queue.
const STACK_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum time of one wait. Linux does not wake waiting threads when an interface is removed.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Returns the buffer size of one thread in bytes. `packet` is the maximum length of packets in several pieces (0 if
/// there are none). The thread with `first` set also receives from the network stack.
pub(super) fn memory(packet: usize, first: bool) -> usize {
    BATCH * packet + if first { MESSAGES * MESSAGE_BYTES } else { 0 }
}

/// Sockets for packets that arrive through the Linux network stack instead of an XDP queue.
pub(super) struct Stack {
    sockets: Vec<UdpSocket>,
    /// An epoll descriptor that is readable if any of the sockets has a packet.
    ready: OwnedFd,
    batch: RecvBatch,
    is_reported: bool,
    /// Number of packets discarded at startup, until they are counted.
    discarded: u64,
    /// Number of packets that the sockets dropped before that.
    dropped_before: u64,
}

impl Stack {
    /// Receives from `sockets`, which are bound to the addresses that the XDP program selects.
    pub(super) fn new(sockets: Vec<UdpSocket>) -> Result<Self, Errno> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for socket in &sockets {
            epoll::add(
                &ready,
                socket,
                epoll::EventData::new_u64(0),
                epoll::EventFlags::IN,
            )?;
        }
        Ok(Self {
            sockets,
            ready,
            batch: RecvBatch::plain(MESSAGES, MESSAGE_BYTES),
            is_reported: false,
            discarded: 0,
            dropped_before: 0,
        })
    }

    /// Discards all packets received so far, because they are older than the packets in the XDP queues and would be placed
    /// after those packets. They are counted when the thread runs.
    pub(super) fn empty(&mut self) -> std::io::Result<()> {
        for socket in &self.sockets {
            for _ in 0..BACKLOG {
                let count = self.batch.recv(socket, MESSAGES)?;
                if count == 0 {
                    break;
                }
                self.discarded += count as u64;
            }
            self.dropped_before += u64::from(socket.mem_info()?.drops);
        }
        self.discarded += self.dropped_before;
        Ok(())
    }

    /// Receives up to [`ROUNDS`] batches from each socket and passes each to `place`.
    fn take(&mut self, mut place: impl FnMut(&RecvBatch, usize)) -> std::io::Result<Got> {
        let mut got = Got::default();
        for socket in &self.sockets {
            for round in 0..ROUNDS {
                let count = self.batch.recv(socket, MESSAGES)?;
                if count > 0 {
                    got.any = true;
                    place(&self.batch, count);
                }
                if count < MESSAGES {
                    break;
                }
                got.more |= round + 1 == ROUNDS;
            }
        }
        Ok(got)
    }
}

/// Result of receiving from the network stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Got {
    any: bool,
    /// Whether more packets are left in a socket.
    more: bool,
}

/// Receives from one queue.
pub(super) struct Receiver {
    name: String,
    /// Name of the interface and the queue, for messages.
    what: String,
    socket: XdpSocket,
    /// The sockets for packets from the network stack; only the first thread has these sockets.
    stack: Option<Stack>,
    depacketizer: Depacketizer,
    rejections: Rejections,
    senders: SenderWatch,
    /// Buffer in which packets of several pieces are reassembled.
    whole: Box<[u8]>,
    packets: Vec<Packet>,
    stack_polled: Option<Instant>,
    is_down_reported: bool,
    /// Whether a system call makes Linux poll the NIC.
    polls: bool,
    /// Whether the checksums of packets are verified.
    verifies: bool,
    /// Detaches the program when the last thread ends.
    _attached: Arc<Attached>,
}

/// The rejected packets of a batch: the last fault of each kind, and the number of packets.
#[derive(Clone, Copy, Debug, Default)]
struct Wrongs {
    headers: Option<(headers::Wrong, u64)>,
    checksums: Option<(headers::Wrong, u64)>,
}

impl Wrongs {
    fn add(&mut self, wrong: headers::Wrong) {
        let kind = match wrong {
            headers::Wrong::Checksum => &mut self.checksums,
            _ => &mut self.headers,
        };
        *kind = Some((wrong, kind.map_or(1, |(_, packets)| packets + 1)));
    }

    fn total(&self) -> u64 {
        let both = [self.headers, self.checksums];
        both.into_iter().flatten().map(|(_, packets)| packets).sum()
    }
}

/// Location of a packet's bytes.
#[derive(Clone, Copy, Debug)]
struct Packet {
    /// Index of the packet's first piece.
    piece: usize,
    /// Byte range in [`Receiver::whole`], if the packet was reassembled from several pieces.
    whole: Option<(usize, usize)>,
}

/// Arguments of [`Receiver::new`].
pub(super) struct Parts {
    pub(super) name: String,
    pub(super) rejections: Rejections,
    pub(super) senders: SenderWatch,
    pub(super) what: String,
    pub(super) socket: XdpSocket,
    pub(super) stack: Option<Stack>,
    pub(super) format: Format,
    /// Maximum size in bytes of a packet in several pieces.
    pub(super) packet: usize,
    pub(super) attached: Arc<Attached>,
    /// Whether Linux polls the NIC while the queue is empty, instead of waiting for an interrupt.
    pub(super) polls: bool,
    /// Whether the checksums of packets are verified.
    pub(super) verifies: bool,
}

impl Receiver {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            depacketizer: Depacketizer::new(&parts.name, parts.format)
                .with_rejections(parts.rejections.clone()),
            rejections: parts.rejections,
            senders: parts.senders,
            name: parts.name,
            what: parts.what,
            socket: parts.socket,
            stack: parts.stack,
            whole: vec![0; BATCH * parts.packet].into_boxed_slice(),
            packets: Vec::with_capacity(BATCH),
            stack_polled: None,
            is_down_reported: false,
            polls: parts.polls,
            verifies: parts.verifies,
            _attached: parts.attached,
        }
    }

    /// Receives from the queue. Returns false if it was empty.
    fn receive(&mut self, window: &mut ReorderWindow) -> bool {
        if self.socket.take(BATCH) == 0 {
            return false;
        }
        let pieces = self.gather();
        let received = now();
        let mut wrongs = Wrongs::default();
        let verifies = self.verifies;
        let pieces_at = |i: usize| self.socket.taken(i).0;
        let whole = &self.whole;
        let datagrams = self.packets.iter().filter_map(|packet| {
            let bytes = match packet.whole {
                None => pieces_at(packet.piece),
                Some((start, end)) => &whole[start..end],
            };
            let payload = headers::payload(bytes).and_then(|payload| {
                if verifies {
                    checksum::verify(bytes, &payload)?;
                }
                Ok(payload)
            });
            match payload {
                Ok(payload) => Some((bytes, payload, received)),
                Err(why) => {
                    wrongs.add(why);
                    None
                }
            }
        });
        let duplicate = if self.depacketizer.flow_origin().is_some() {
            let flows = datagrams.map(|(whole, payload, received)| {
                let flow = headers::flow(whole).unwrap_or_default();
                (&whole[payload], received, flow)
            });
            self.depacketizer.place_flows(window, flows)
        } else {
            let datagrams = datagrams.map(|(whole, payload, received)| (&whole[payload], received));
            self.depacketizer.place(window, datagrams)
        };
        let packet = |i: usize| {
            let packet = self.packets.get(i)?;
            Some(match packet.whole {
                None => pieces_at(packet.piece),
                Some((start, end)) => &whole[start..end],
            })
        };
        self.senders.saw(packet(0).and_then(headers::sender));
        // If packets were rejected, the index does not match `self.packets`.
        if let Some(duplicate) = duplicate.filter(|_| wrongs.total() == 0) {
            self.senders
                .duplicate(packet(duplicate).and_then(headers::sender));
        }
        if wrongs.total() > 0 {
            window.reject(wrongs.total());
            for (wrong, packets) in [wrongs.headers, wrongs.checksums].into_iter().flatten() {
                self.log_rejected(wrong, packets);
            }
        }
        // The pieces of an incomplete packet stay until its last piece arrives.
        self.socket.give_back(pieces);
        true
    }

    /// Finds the complete packets among the received pieces, and reassembles packets that consist of several pieces. Returns
    /// the number of pieces that the complete packets occupy.
    fn gather(&mut self) -> usize {
        self.packets.clear();
        let (mut done, mut first, mut used) = (0, None, 0);
        for i in 0..self.socket.count() {
            let (bytes, goes_on) = self.socket.taken(i);
            let (piece, start) = *first.get_or_insert((i, used));
            let is_alone = piece == i && !goes_on;
            if !is_alone {
                // A packet can be larger than the interface allows. It is truncated, and its length is rejected later.
                let room = &mut self.whole[used..];
                let fits = bytes.len().min(room.len());
                room[..fits].copy_from_slice(&bytes[..fits]);
                used += fits;
            }
            if !goes_on {
                let whole = (!is_alone).then_some((start, used));
                self.packets.push(Packet { piece, whole });
                (done, first) = (i + 1, None);
            }
        }
        if done == 0 && self.socket.count() == BATCH {
            // A single packet has more pieces than the batch can hold, so drop the pieces.
            done = BATCH;
        }
        done
    }

    #[cold]
    fn log_rejected(&self, wrong: headers::Wrong, packets: u64) {
        let reason = wrong.reason();
        if self.rejections.count(reason, packets, wrong) {
            tracing::warn!(
                "source {}: rejected a packet of {} ({reason}): {wrong}. Further packets rejected for this reason are only counted",
                self.name,
                self.what,
            );
        }
    }

    /// Receives the packets that arrived through the Linux network stack.
    fn receive_from_stack(&mut self, window: &mut ReorderWindow) -> Result<Got, std::io::Error> {
        let Some(stack) = &mut self.stack else {
            return Ok(Got::default());
        };
        if stack.discarded > 0 {
            window.count_before_start(std::mem::take(&mut stack.discarded));
        }
        let depacketizer = &mut self.depacketizer;
        // The addresses of these packets are unknown, so they must not be taken for packets of the last flow.
        depacketizer.use_flow(Flow::default());
        let got = stack.take(|batch, count| {
            let datagrams = (0..count).map(|i| {
                let ns = batch.message(i).timestamp_ns;
                let time = ns.map_or_else(Timestamp::default, |ns| Timestamp {
                    ns,
                    clock: Clock::Kernel,
                });
                (batch.bytes(i), time)
            });
            depacketizer.place(window, datagrams);
        })?;
        if got.any && !std::mem::replace(&mut stack.is_reported, true) {
            tracing::warn!(
                "source {}: some packets arrive through the Linux network stack, which is slower. daq receives these packets too. Possible causes: NIC queues without a socket (see `ethtool -l` and `ethtool -S`, then raise \
                 `queues`), IP fragments, IP options, senders on this machine, or packets that arrived before the \
                 start",
                self.name,
            );
        }
        Ok(got)
    }

    /// Reads the number of packets that Linux has dropped.
    ///
    /// With zero copy the NIC drops packets for which it has no chunk, and Linux counts only how often it found no chunk. This
    /// is weak evidence, because Linux may find a chunk before a packet is lost. In copy mode Linux counts such packets as
    /// dropped.
    fn read_drops(&self, window: &ReorderWindow) {
        let Ok(statistics) = self.socket.statistics() else {
            return;
        };
        let of_queue = statistics.rx_dropped
            + statistics.rx_ring_full.unwrap_or(0)
            + statistics
                .rx_fill_ring_empty_descs
                .filter(|_| self.socket.is_zero_copy())
                .unwrap_or(0);
        let stack = self.stack.iter().flat_map(|stack| &stack.sockets);
        let of_stack: u64 = stack
            .filter_map(|socket| socket.mem_info().ok())
            .map(|memory| u64::from(memory.drops))
            .sum();
        let before = self.stack.as_ref().map_or(0, |stack| stack.dropped_before);
        window.note_drops((of_queue + of_stack).saturating_sub(before));
    }

    /// Waits until a packet arrives, at most `timeout`.
    fn wait(&self, timeout: Duration) -> Result<bool, SourceError> {
        let timeout = Timespec::try_from(timeout.min(MAX_WAIT)).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        let of_queue = PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN);
        let mut both = [of_queue.clone(), of_queue];
        let mut count = 1;
        if let Some(stack) = &self.stack {
            both[1] = PollFd::new(&stack.ready, PollFlags::IN);
            count = 2;
        }
        let ready = rustix::event::poll(&mut both[..count], Some(&timeout));
        let of_queue = both[0].revents();
        match ready {
            Ok(_) if of_queue.intersects(PollFlags::ERR | PollFlags::HUP) => {
                // The error state persists, so further polls would return immediately without a packet.
                Err(self.failure().unwrap_or_else(|| self.removed()))
            }
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(self.error(&errno.into())),
        }
    }

    /// Makes Linux continue to receive. An interface that is down is only logged, because it may come up again.
    fn wake(&mut self) -> Result<(), SourceError> {
        match self.socket.wake() {
            Ok(()) => Ok(()),
            Err(Errno::NETDOWN) => {
                if let Some(failure) = self.failure() {
                    return Err(failure);
                }
                self.warn_down();
                Ok(())
            }
            Err(Errno::NXIO) => Err(self.removed()),
            Err(errno) => Err(self.error(&errno.into())),
        }
    }

    /// Returns the error state of the socket: `None` unless the interface was removed.
    fn failure(&self) -> Option<SourceError> {
        match self.socket.failure() {
            Ok(()) => None,
            Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => Some(self.removed()),
            Err(errno) => Some(self.error(&errno.into())),
        }
    }

    #[cold]
    fn removed(&self) -> SourceError {
        SourceError::new(
            self.what.as_str(),
            "cannot receive: the interface or its receive queue was removed; check the interface with `ip link`, then start \
             daq again",
        )
    }

    #[cold]
    fn warn_down(&mut self) {
        if !std::mem::replace(&mut self.is_down_reported, true) {
            tracing::warn!(
                "source {}: {}: the interface is down (see `ip link`); daq receives again when it is up. This is logged once",
                self.name,
                self.what,
            );
        }
    }

    fn error(&self, why: &std::io::Error) -> SourceError {
        SourceError::new(
            self.what.as_str(),
            format!(
                "cannot receive: {why}; check with `ip -s link` that the interface exists and is up"
            ),
        )
    }
}

impl Filler for Receiver {
    fn fill(
        &mut self,
        window: &mut ReorderWindow,
        timeout: Duration,
    ) -> Result<Polled, SourceError> {
        self.depacketizer.poll(window);
        let mut any = self.receive(window);
        if self.socket.needs_wakeup() || (self.polls && !any) {
            self.wake()?;
        }
        let now = Instant::now();
        let is_time = self
            .stack_polled
            .is_none_or(|last| now.saturating_duration_since(last) >= STACK_INTERVAL);
        if is_time || (!any && !timeout.is_zero()) {
            self.stack_polled = Some(now);
            let got = self
                .receive_from_stack(window)
                .map_err(|why| self.error(&why))?;
            if got.more {
                // Poll again after the next batch of the queue, so that neither delays the other.
                self.stack_polled = None;
            }
            if !any {
                // The interface may be down or removed, which only this system call reports.
                self.wake()?;
            }
            any |= got.any;
            self.senders.alternated(window.alternations());
            if window.wants_drops() {
                self.read_drops(window);
            }
        }
        if any {
            return Ok(Polled::Busy);
        }
        let ready = !timeout.is_zero() && window.idle(|| self.wait(timeout))?;
        Ok(if ready { Polled::Busy } else { Polled::Idle })
    }

    fn finish(&mut self, window: &mut ReorderWindow) {
        self.depacketizer.flush(window, false);
    }
}

/// Returns the system time.
fn now() -> Timestamp {
    let now = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Timestamp {
        ns: seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0),
        clock: Clock::Host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket::Options;

    #[test]
    fn network_stack_packets_are_received_in_turn() {
        const SENT: usize = ROUNDS * MESSAGES + 2 * MESSAGES + 1;
        let options = Options {
            receive_buffer: 1 << 20,
            ..Options::default()
        };
        let socket = UdpSocket::open("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let to = socket.local();
        let mut stack = Stack::new(vec![socket]).unwrap();
        let from = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for n in 0..SENT {
            from.send_to(&[u8::try_from(n).unwrap()], to).unwrap();
        }
        let mut seen = Vec::new();
        let mut take =
            || stack.take(|batch, count| seen.extend((0..count).map(|i| batch.bytes(i)[0])));
        let (any, more) = (true, true);
        assert_eq!(take().unwrap(), Got { any, more });
        assert_eq!(take().unwrap(), Got { any, more: false });
        assert_eq!(take().unwrap(), Got::default());
        assert!(seen.iter().map(|n| usize::from(*n)).eq(0..SENT), "{seen:?}");
    }
}
