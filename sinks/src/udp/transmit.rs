//! Sends the packets of frames to the receivers.

use super::counts::UdpCounts;
use super::pacer::Pacer;
use super::share::Share;
use super::{Udp, headers};
use crate::peer::StallCounts;
use daq_core::frame::{Clock, Flags, FrameMeta, PacketSizes, Present, Timestamp};
use daq_core::layout::{Layout, Order};
use daq_core::ledger::{Counter, SinkLedger};
use daq_core::log_limit::LogLimit;
use daq_core::outgoing::PacketBuilder;
use daq_core::ring::{Frame, Lease};
use daq_core::sink::{Sink, SinkContext, SinkError};
use daq_net::send::{LARGEST, PACKETS, Pace, Packet, Sender, monotonic_ns};
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Maximum number of bytes of packets per system call.
const CHUNK: usize = 1 << 20;
/// Size in bytes of the buffer for headers.
pub(super) const HEADER_BYTES: usize = CHUNK + 2 * LARGEST;
/// Time after which a call of `consume` returns, so that the runtime sees a heartbeat and can stop.
const CALL_TIME: Duration = Duration::from_millis(50);
/// Time without an accepted packet after which packets count as refused, because the send queue is full.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two attempts if the queue of the interface drops packets.
const QUEUE_RETRY: Duration = Duration::from_millis(1);
/// Maximum number of attempts for a message if the network reports that earlier packets could not be delivered.
const REPORTED_ATTEMPTS: u32 = 16;

/// One receiver, and what was sent to it of the current frame.
pub(super) struct Receiver {
    to: SocketAddr,
    pub(super) sender: Sender,
    /// Index of the next packet of the current frame; the number of packets if the receiver has its share.
    next: u32,
    /// Number that ends the stream: the number after that of the last frame, or its own if the stream ended inside of it. So
    /// receivers do not expect packets that were never sent.
    end: u64,
}

impl Receiver {
    pub(super) const fn new(to: SocketAddr, sender: Sender) -> Self {
        Self {
            to,
            sender,
            next: 0,
            end: 0,
        }
    }
}

/// How frames are divided into packets.
struct Stream {
    share: Share,
    builder: Box<dyn PacketBuilder>,
    packets: u32,
    trailer: usize,
    /// The packets that last described the stream.
    description: Vec<Vec<u8>>,
    /// Time per byte of the frame in nanoseconds, if it is known and bytes are in the order of time.
    ns_per_byte: Option<f64>,
}

/// The frame that is being sent.
#[derive(Clone, Copy)]
struct Current {
    sequence: u64,
    epoch: u32,
    is_refused: bool,
}

/// A sink that sends packets.
pub(super) struct Transmitter {
    name: String,
    config: Udp,
    layout: Layout,
    /// Sizes of the packets of an input frame, unless each frame's record contains them.
    input_packets: PacketSizes,
    stream: Option<Stream>,
    receivers: Vec<Receiver>,
    pacer: Option<Pacer>,
    described: Option<Instant>,
    current: Option<Current>,
    /// Time since which no packet was accepted, because the queue is full.
    blocked: Option<Instant>,
    attempts: u32,
    /// The shares of the current frame, if they are gathered.
    shares: Vec<u8>,
    headers: Vec<u8>,
    chunk: Vec<Packet>,
    /// Index of each packet of the chunk.
    indices: Vec<u32>,
    limits: [LogLimit; 2],
    ledger: SinkLedger,
    counts: UdpCounts,
    stalls: Counter,
}

/// The result of an attempt to send.
enum Step {
    /// Packets were sent, refused or absent.
    Progress,
    /// Nothing can be sent for this time.
    Wait(Duration),
    /// Nothing can be sent to this receiver while its send buffer is full.
    Full(usize),
    /// The frame is complete.
    Complete,
}

impl Transmitter {
    pub(super) fn open(
        config: Udp,
        receivers: Vec<Receiver>,
        context: SinkContext,
    ) -> Result<Self, SinkError> {
        let pacer = config.keys.rate.map(|rate| Pacer::new(rate.0));
        let mut transmitter = Self {
            name: context.name,
            config,
            input_packets: context.packet_sizes,
            stream: None,
            receivers,
            pacer,
            described: None,
            current: None,
            blocked: None,
            attempts: 0,
            shares: Vec::new(),
            headers: Vec::with_capacity(HEADER_BYTES),
            chunk: Vec::with_capacity(PACKETS),
            indices: Vec::with_capacity(PACKETS),
            limits: Default::default(),
            counts: UdpCounts::of(&context.counts),
            stalls: StallCounts::of(&context.counts).stalls,
            ledger: context.ledger,
            layout: context.layout,
        };
        // If sizes are detected while the source runs, the first frame shows the size of frames.
        if context.packets_per_frame == 0 || context.packet_sizes.rest > 0 {
            transmitter.start(transmitter.layout.frame_bytes())?;
        }
        Ok(transmitter)
    }

    /// Determines the packets of frames with `frame_bytes` bytes.
    fn start(&mut self, frame_bytes: usize) -> Result<(), SinkError> {
        let failed = |what: String, why| SinkError::Failed { what, why };
        let (share, builder) =
            self.config
                .stream(&self.layout, frame_bytes)
                .map_err(|problem| {
                    let help = problem.help.map(|help| format!("; {help}"));
                    let why = format!("{}{}", problem.message, help.unwrap_or_default());
                    failed(format!("frames of {frame_bytes} bytes"), why)
                })?;
        let packets = builder.packets();
        let trailer = builder.trailer_len();
        let size = |packet: u32| {
            let mut header = Vec::new();
            // A header with a time is the longest.
            let time = Timestamp {
                ns: 0,
                clock: Clock::Host,
            };
            builder.append_header(0, packet, time, &mut header);
            header.len() + builder.payload(packet).len() + trailer
        };
        let largest = [0, 1.min(packets - 1), packets - 1].map(size);
        let largest = largest.into_iter().max().unwrap_or(0);
        for Receiver { to, sender, .. } in &self.receivers {
            let mtu = sender.mtu().unwrap_or(usize::MAX);
            let fitting = mtu.saturating_sub(headers(*to)).min(LARGEST);
            if largest > fitting {
                let why = format!(
                    "packets of {largest} bytes exceed the MTU of the path, {mtu} bytes, of which {fitting} bytes remain after \
                     the IP and UDP headers: lower the packet size in [sink.{}.format], or raise the MTU with `ip link set \
                     DEV mtu {}`",
                    self.name,
                    largest + headers(*to)
                );
                return Err(failed(format!("receiver {to}"), why));
            }
        }
        let point = layout_point(&share.layout);
        let is_in_order = share.layout.order == Order::Interleaved || share.layout.channels == 1;
        let rate = share.layout.sample_rate().filter(|_| is_in_order);
        if share.is_gathered() {
            self.shares = vec![0; frame_bytes];
        }
        tracing::info!(
            "sink {}: {packets} packets of up to {largest} bytes per frame{}",
            self.name,
            match (share.shares, share.turns) {
                (1, 1) => String::new(),
                (1, turns) => format!(", to {turns} receivers in turn"),
                (shares, _) => format!(" and receiver, to {shares} receivers"),
            }
        );
        self.stream = Some(Stream {
            ns_per_byte: rate.map(|rate| 1e9 / rate / point as f64),
            description: Vec::new(),
            share,
            packets,
            trailer,
            builder,
        });
        Ok(())
    }

    /// Continues with `frame`. If another frame was being sent, the rest of it counts as refused.
    fn begin(&mut self, frame: &Frame<'_>) -> Result<(), SinkError> {
        let meta = frame.meta();
        let is_current =
            |current: &Current| (current.sequence, current.epoch) == (meta.sequence, meta.epoch);
        if self.current.as_ref().is_some_and(is_current) {
            return Ok(());
        }
        self.abandon();
        if self.stream.is_none() {
            self.start(meta.length)?;
        }
        self.describe(meta);
        let Some(stream) = &self.stream else {
            return Ok(());
        };
        if let Some(bytes) = frame.bytes() {
            let bytes = &bytes[..bytes.len().min(self.shares.len())];
            stream.share.gather(bytes, &mut self.shares);
        }
        let turn = meta.sequence % stream.share.turns as u64;
        for (i, receiver) in self.receivers.iter_mut().enumerate() {
            let has_share = stream.share.turns == 1 || i as u64 == turn;
            receiver.next = if has_share { 0 } else { stream.packets };
            if has_share {
                let is_whole = !meta.flags.contains(Flags::TRUNCATED);
                receiver.end = stream.share.number(meta) + u64::from(is_whole);
            }
        }
        let packets = u64::from(stream.packets) * stream.share.shares as u64;
        self.counts.packets.add(packets);
        self.current = Some(Current {
            sequence: meta.sequence,
            epoch: meta.epoch,
            is_refused: false,
        });
        Ok(())
    }

    /// Ends the current frame. Packets that were not sent count as refused.
    fn abandon(&mut self) {
        let (Some(stream), Some(_)) = (&self.stream, self.current.take()) else {
            return;
        };
        for receiver in &mut self.receivers {
            let rest = stream.packets - receiver.next;
            self.counts.refused_other.add(rest.into());
            receiver.next = stream.packets;
        }
    }

    /// Sends the description of the stream before the frame `meta`, if it is due.
    fn describe(&mut self, meta: &FrameMeta) {
        let interval = self.config.keys.describe.0;
        let is_due = self
            .described
            .is_none_or(|last| !interval.is_zero() && last.elapsed() >= interval);
        let Some(stream) = self.stream.as_mut().filter(|_| is_due) else {
            return;
        };
        self.described = Some(Instant::now());
        let packets = &mut stream.description;
        stream
            .builder
            .describe(stream.share.number(meta), meta.timestamp, packets);
        for receiver in &mut self.receivers {
            send_control(receiver, &stream.description, &self.counts);
        }
    }

    /// Sends the next packets of the current frame.
    fn step(&mut self, frame: &Frame<'_>) -> Step {
        let Some(stream) = &self.stream else {
            return Step::Complete;
        };
        let least = self.receivers.iter().enumerate();
        let least = least.min_by_key(|(_, receiver)| receiver.next);
        let Some((index, next)) = least
            .map(|(index, receiver)| (index, receiver.next))
            .filter(|(_, next)| *next < stream.packets)
        else {
            return Step::Complete;
        };
        let pace = match self.pacer.as_mut().map(|pacer| pacer.next(monotonic_ns())) {
            Some(Err(wait)) => return Step::Wait(wait),
            Some(Ok(pace)) => Some(pace),
            None => None,
        };
        let share = if stream.share.turns == 1 { index } else { 0 };
        let end = self.fill(frame, share, next);
        let Some(stream) = &self.stream else {
            return Step::Complete;
        };
        let receiver = &mut self.receivers[index];
        if self.chunk.is_empty() {
            self.counts.absent_packets.add((end - next).into());
            receiver.next = end;
            return Step::Progress;
        }
        let payloads = if stream.share.is_gathered() {
            &self.shares
        } else {
            frame.bytes().unwrap_or_default()
        };
        let result = receiver
            .sender
            .try_send(&self.headers, payloads, &self.chunk, pace);
        match result {
            Ok(sent) => {
                let packets = &self.chunk[..sent];
                let payload: usize = packets.iter().map(|packet| packet.payload.len()).sum();
                self.ledger.bytes.add(payload as u64);
                if let (Some(pacer), Some(pace)) = (&mut self.pacer, pace) {
                    pacer.sent(pace, packets.iter().map(Packet::bytes).sum());
                }
                self.counts.sent_packets.add(sent as u64);
                self.advance(index, sent, end);
                self.blocked = None;
                self.attempts = 0;
                Step::Progress
            }
            Err(error) => self.failed(index, &error, end, pace),
        }
    }

    /// Collects the packets of the share `share` from packet `next` on for one system call. Returns the index of the packet
    /// after them.
    fn fill(&mut self, frame: &Frame<'_>, share: usize, next: u32) -> u32 {
        self.headers.clear();
        self.chunk.clear();
        self.indices.clear();
        let (Some(stream), meta) = (&self.stream, frame.meta()) else {
            return next;
        };
        let number = stream.share.number(meta);
        let input = InputPackets::of(frame, self.input_packets);
        let base = if stream.share.shares > 1 {
            share * stream.share.bytes
        } else {
            0
        };
        let max = self.pacer.map_or(CHUNK, |pacer| pacer.burst());
        let (mut packet, mut bytes) = (next, 0);
        while packet < stream.packets && self.chunk.len() < PACKETS && (bytes < max || bytes == 0) {
            let payload = stream.builder.payload(packet);
            if input.has(&stream.share.in_frame(share, payload.clone())) {
                let ns_per_byte = stream.ns_per_byte.unwrap_or(0.0);
                let after = whole(payload.start as f64 * ns_per_byte);
                let time = Timestamp {
                    ns: meta.timestamp.ns.saturating_add(after),
                    clock: meta.timestamp.clock,
                };
                let begin = self.headers.len();
                let out = &mut self.headers;
                stream.builder.append_header(number, packet, time, out);
                let header = begin..out.len();
                out.resize(header.end + stream.trailer, 0);
                let built = Packet {
                    trailer: header.end..out.len(),
                    header,
                    payload: base + payload.start..base + payload.end,
                };
                bytes += built.bytes();
                self.chunk.push(built);
                self.indices.push(packet);
            }
            packet += 1;
        }
        packet
    }

    /// Moves a receiver past the first `done` packets of the chunk, and counts the absent packets among them. `end` is the
    /// index of the packet after the chunk.
    fn advance(&mut self, index: usize, done: usize, end: u32) {
        let receiver = &mut self.receivers[index];
        let next = self.indices.get(done).copied().unwrap_or(end);
        let absent = u64::from(next - receiver.next) - done as u64;
        self.counts.absent_packets.add(absent);
        receiver.next = next;
    }

    /// Handles the error of a system call.
    fn failed(&mut self, index: usize, error: &io::Error, end: u32, pace: Option<Pace>) -> Step {
        let receiver = &self.receivers[index];
        let reports = receiver.sender.undeliverable();
        if reports > 0 {
            self.counts.undeliverable.add(reports);
            let (name, to) = (&self.name, receiver.to);
            self.limits[0].run(|suppressed| {
                tracing::warn!(
                    "sink {name}: the network reports that packets to {to} cannot be delivered: {error}; check that a program \
                     listens on this port, and that no firewall rejects the packets{suppressed}"
                );
            });
            self.attempts += 1;
            if self.attempts < REPORTED_ATTEMPTS {
                return Step::Progress;
            }
        }
        let is_full = error.kind() == io::ErrorKind::WouldBlock;
        let is_dropped = errno(error) == Some(Errno::NOBUFS);
        if is_full || is_dropped {
            let since = *self.blocked.get_or_insert_with(|| {
                self.stalls.add(1);
                Instant::now()
            });
            if since.elapsed() < QUEUE_TIMEOUT {
                return if is_full {
                    Step::Full(index)
                } else {
                    Step::Wait(QUEUE_RETRY)
                };
            }
        }
        self.refuse(index, error, end, pace);
        Step::Progress
    }

    /// Counts the packets of the first message as refused, and logs the reason.
    fn refuse(&mut self, index: usize, error: &io::Error, end: u32, pace: Option<Pace>) {
        let receiver = &self.receivers[index];
        let count = receiver.sender.first_message().min(self.chunk.len());
        let (counter, remedy) = cause(&self.counts, error);
        counter.add(count as u64);
        let (name, to) = (&self.name, receiver.to);
        let mtu = receiver.sender.mtu().unwrap_or(0);
        let bytes = self.chunk.first().map_or(0, Packet::bytes);
        self.limits[1].run(|suppressed| {
            if errno(error) == Some(Errno::MSGSIZE) {
                tracing::error!(
                    "sink {name}: packets of {bytes} bytes to {to} exceed the MTU of the path, which is now {mtu} bytes, so they \
                     are lost; lower the packet size in [sink.{name}.format], or raise the MTU{suppressed}"
                );
            } else {
                tracing::error!(
                    "sink {name}: cannot send packets to {to}, so they are lost: {error}; {remedy}{suppressed}"
                );
            }
        });
        // The rate also limits refused packets, so that an input that can wait is not lost in an instant.
        if let (Some(pacer), Some(pace)) = (&mut self.pacer, pace) {
            pacer.sent(pace, self.chunk[..count].iter().map(Packet::bytes).sum());
        }
        if let Some(current) = &mut self.current {
            current.is_refused = true;
        }
        self.blocked = None;
        self.attempts = 0;
        self.advance(index, count, end);
    }
}

/// Returns the counter of packets that Linux refused with `error`, and how to fix it.
fn cause<'a>(counts: &'a UdpCounts, error: &io::Error) -> (&'a Counter, &'static str) {
    match errno(error) {
        Some(Errno::AGAIN | Errno::NOBUFS) => (
            &counts.refused_queue_full,
            "the send queue is full; check the link with `ip -s link`, and lower `rate`",
        ),
        Some(
            Errno::NETUNREACH
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::HOSTDOWN
            | Errno::NODEV
            | Errno::ADDRNOTAVAIL
            | Errno::CONNREFUSED,
        ) => (
            &counts.refused_unreachable,
            "check the interface with `ip link`, and the route with `ip route get ADDRESS`",
        ),
        Some(Errno::PERM | Errno::ACCESS) => (
            &counts.refused_other,
            "a firewall of this host drops the packets; `nft list ruleset` lists its rules",
        ),
        _ => (
            &counts.refused_other,
            "`ip -s link` and `nstat -az Udp*` show errors of the network",
        ),
    }
}

fn errno(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

/// Sends packets without data. Gives up if the send buffer stays full.
fn send_control(receiver: &mut Receiver, packets: &[Vec<u8>], counts: &UdpCounts) {
    for bytes in packets {
        let packet = [Packet {
            header: 0..bytes.len(),
            ..Packet::default()
        }];
        for _ in 0..REPORTED_ATTEMPTS {
            match receiver.sender.try_send(bytes, &[], &packet, None) {
                Ok(_) => {
                    counts.control_packets.add(1);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let _ = receiver.sender.wait(QUEUE_RETRY);
                }
                Err(_) => counts.undeliverable.add(receiver.sender.undeliverable()),
            }
        }
    }
}

/// Returns the size in bytes of one point of all channels, at least 1.
const fn layout_point(layout: &Layout) -> usize {
    // The sink accepts no packed types.
    let bytes = layout.sample_bits() / 8 * layout.channels as usize;
    if bytes == 0 { 1 } else { bytes }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "never negative; saturates"
)]
const fn whole(number: f64) -> u64 {
    number as u64
}

/// Which bytes of a frame arrived.
struct InputPackets<'a> {
    present: Option<Present<'a>>,
    sizes: PacketSizes,
    length: usize,
}

impl<'a> InputPackets<'a> {
    /// `sizes` are the sizes of the packets, if the frame's record does not contain them.
    fn of(frame: &Frame<'a>, sizes: PacketSizes) -> Self {
        let meta: &FrameMeta = frame.meta();
        let sizes = match meta.packet_sizes.rest {
            0 => sizes,
            _ => meta.packet_sizes,
        };
        let is_whole = meta.arrived >= meta.packets_per_frame || sizes.rest == 0;
        Self {
            present: (!is_whole).then(|| frame.present()),
            sizes,
            length: meta.length,
        }
    }

    /// Returns whether all bytes of `range` arrived.
    fn has(&self, range: &Range<usize>) -> bool {
        if range.end > self.length {
            return false;
        }
        let Some(present) = &self.present else {
            return true;
        };
        let parts = self.sizes.parts.max(1);
        let part_bytes = (self.length / parts as usize).max(1);
        let packets = present.packets_per_frame() / parts;
        let packet = |byte: usize| {
            let after = (byte % part_bytes).checked_sub(self.sizes.first as usize);
            let in_part = after.map_or(0, |after| 1 + after / self.sizes.rest as usize);
            let index = (byte / part_bytes) * packets as usize + in_part;
            u32::try_from(index).unwrap_or(u32::MAX)
        };
        (packet(range.start)..=packet(range.end.saturating_sub(1)))
            .all(|packet| present.is_present(packet))
    }
}

impl Sink for Transmitter {
    fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError> {
        let deadline = Instant::now() + CALL_TIME;
        for i in from..lease.len() {
            let frame = lease.frame(i);
            self.begin(&frame)?;
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() && i > from {
                    return Ok(i - from);
                }
                match self.step(&frame) {
                    Step::Complete => break,
                    Step::Progress if !left.is_zero() => continue,
                    Step::Progress => {}
                    Step::Wait(time) => std::thread::sleep(time.min(left)),
                    Step::Full(index) => {
                        let _ = self.receivers[index].sender.wait(left);
                    }
                }
                if left.is_zero() {
                    return Ok(i - from);
                }
            }
            let current = self.current.take();
            let is_refused = current.is_some_and(|current| current.is_refused);
            self.ledger.lost.add(is_refused.into());
            self.ledger.frames.add(1);
        }
        Ok(lease.len() - from)
    }

    fn tick(&mut self) -> Result<(), SinkError> {
        for receiver in &self.receivers {
            self.counts
                .undeliverable
                .add(receiver.sender.undeliverable());
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.abandon();
        if let (Some(stream), Some(_)) = (&self.stream, self.described) {
            for receiver in &mut self.receivers {
                let end = stream.builder.end(receiver.end);
                send_control(receiver, &end, &self.counts);
            }
        }
        self.tick()
    }
}
