//! The data plane of a sensor: a thread that generates frames and sends them as packets while the sensor is armed.

use super::Options;
use super::counts::Shared;
use super::faults::Faults;
use super::nic::Writer;
use super::packet::{
    self, Flow, Headers, METADATA, Metadata, OVERHEAD, PAGE, WRITE, WRITE_IMMEDIATE, immediate,
};
use super::pattern::{self, Pattern};
use super::registers::Target;
use daq_core::log_limit::LogLimit;
use daq_drivers::sys::send::Sender;
use daq_rdma::verbs::Nic;
use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum number of bytes per burst, which is the maximum that Linux splits in one call.
const BURST: usize = 60 << 10;
/// Maximum number of packets per burst, which is the maximum that Linux splits in one call.
const BURST_PACKETS: usize = 64;
/// An opcode of reliable connections, which sensors never send unless a fault requires it.
const FOREIGN: u8 = 0x04;
/// Limits log messages about unreachable hosts.
static LIMIT: LogLimit = LogLimit::new();

/// State that the control plane and the data plane of a sensor share.
#[derive(Debug, Default)]
pub(super) struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    target: Option<Target>,
    /// Number of times that the sensor was armed.
    armed: u64,
    /// Number of restarts of the board.
    reboots: u64,
    is_streaming: bool,
    is_ended: bool,
}

impl Line {
    /// Arms the sensor.
    pub(super) fn arm(&self, target: Target) {
        let mut state = self.lock();
        state.target = Some(target);
        state.armed += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// Records a restart of the board: the stream starts from the beginning when the sensor is armed again.
    pub(super) fn reboot(&self) {
        self.lock().reboots += 1;
    }

    /// Disarms the sensor. When this function returns, no more packets are sent.
    pub(super) fn disarm(&self) {
        self.lock().target = None;
        self.changed.notify_all();
        let state = self.lock();
        let waited = self
            .changed
            .wait_while(state, |state| state.is_streaming && !state.is_ended);
        drop(waited);
    }

    /// Makes the sensor's thread end.
    pub(super) fn end(&self) {
        self.lock().is_ended = true;
        self.changed.notify_all();
    }

    /// Waits until the sensor is armed again after arming number `last`. Returns `None` when the thread must end.
    fn wait_armed(&self, last: u64) -> Option<(Target, u64, u64)> {
        let mut state = self
            .changed
            .wait_while(self.lock(), |state| {
                !state.is_ended && (state.target.is_none() || state.armed == last)
            })
            .unwrap_or_else(PoisonError::into_inner);
        if state.is_ended {
            return None;
        }
        state.is_streaming = true;
        let (armed, reboots) = (state.armed, state.reboots);
        state.target.map(|target| (target, armed, reboots))
    }

    fn leave(&self) {
        self.lock().is_streaming = false;
        self.changed.notify_all();
    }

    /// Waits until `due`. Returns false if the sensor is no longer armed.
    fn wait_due(&self, due: Option<Instant>) -> bool {
        let mut state = self.lock();
        loop {
            if state.is_ended || state.target.is_none() {
                return false;
            }
            let left = due.and_then(|due| due.checked_duration_since(Instant::now()));
            let Some(left) = left.filter(|left| !left.is_zero()) else {
                return true;
            };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Locks the state, which is valid even if a thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reason why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The sensor was disarmed.
    Disarmed,
    /// All frames were sent, or a fault ended the stream.
    Done,
}

/// The state of a sensor's thread.
pub(super) struct Worker {
    sensor: usize,
    address: Ipv4Addr,
    /// Payload rate in bits per second.
    rate: Option<f64>,
    frames: Option<u64>,
    pattern: Pattern,
    embedded: bool,
    psn_mask: u32,
    first_psn: u32,
    offload: bool,
    /// The NIC that sends the packets, with its configured name.
    nic: Option<(Arc<dyn Nic>, String)>,
    faults: Faults,
    shared: Arc<Shared>,
}

/// The method by which packets are sent.
enum Transmitter {
    Socket(Sender),
    Card(Box<Writer>),
}

impl Transmitter {
    fn send_packets(&mut self, bytes: &[u8], size: usize) -> io::Result<()> {
        match self {
            Self::Socket(sender) => sender.send_packets(bytes, size),
            Self::Card(writer) => writer.send_packets(bytes, size),
        }
    }
}

/// The position of a stream. The stream continues from this position when the sensor is armed again.
struct Stream {
    /// Number of the next frame, counted from the start of the board.
    frame: u64,
    /// Number of the next packet, counted from the start of the board.
    packet: u64,
    /// The frame number and the packet number at the last restart of the numbers.
    restarted: (u64, u64),
    page: u32,
}

/// The division of a frame into packets.
#[derive(Clone, Copy)]
struct Cut {
    /// Number of data packets.
    data: u64,
    /// Number of all packets.
    all: u64,
    /// True if the last data packet is the last packet of the frame.
    ends_with_data: bool,
    has_metadata: bool,
}

/// Sends packets at the configured rate while the sensor is armed, and counts the sent packets.
struct Outlet<'a> {
    worker: &'a Worker,
    line: &'a Line,
    transmitter: Transmitter,
    start: Instant,
    /// Number of payload bytes since `start`.
    bytes: u64,
    /// Delayed packets that are sent after the next packet.
    held: Vec<Vec<u8>>,
}

impl Worker {
    pub(super) fn new(
        sensor: usize,
        address: Ipv4Addr,
        options: &Options,
        nic: Option<Arc<dyn Nic>>,
        shared: &Arc<Shared>,
    ) -> Self {
        Self {
            sensor,
            address,
            rate: options.rate.map(|rate| rate.0),
            frames: options.frames,
            pattern: options.pattern,
            embedded: options.embedded,
            psn_mask: if options.psn20 {
                0x000f_ffff
            } else {
                0x00ff_ffff
            },
            first_psn: options.psn,
            offload: options.offload,
            nic: nic.zip(options.nic.clone()),
            faults: Faults::new(&options.faults),
            shared: shared.clone(),
        }
    }

    pub(super) fn run(&self, line: &Line) {
        let mut stream = Stream {
            frame: 0,
            packet: 0,
            restarted: (0, 0),
            page: 0,
        };
        let (mut last, mut rebooted) = (0, 0);
        while let Some((target, armed, reboots)) = line.wait_armed(last) {
            last = armed;
            if reboots != rebooted {
                rebooted = reboots;
                stream.restarted = (stream.frame, stream.packet);
            }
            let flow = Flow {
                from: SocketAddrV4::new(self.address, target.from),
                to: target.to,
            };
            match self.transmitter(&target, &flow) {
                Ok(transmitter) => {
                    let mut outlet = Outlet {
                        worker: self,
                        line,
                        transmitter,
                        start: Instant::now(),
                        bytes: 0,
                        held: Vec::new(),
                    };
                    // A host may select other pages each time it arms the sensor.
                    stream.page = 0;
                    while self.frame(&mut stream, &target, &flow, &mut outlet) != Err(End::Done)
                        && line.wait_due(None)
                    {}
                    outlet.finish();
                }
                Err(error) => {
                    LIMIT.run(|suppressed| {
                        tracing::error!(
                            sensor = self.sensor,
                            "cannot send to {}: {error}{suppressed}",
                            target.to
                        );
                    });
                    self.shared
                        .sensor(self.sensor, |counts| counts.send_errors += 1);
                }
            }
            line.leave();
        }
    }

    fn transmitter(&self, target: &Target, flow: &Flow) -> Result<Transmitter, Box<dyn Error>> {
        Ok(match &self.nic {
            None => Transmitter::Socket(Sender::bound(flow.from, flow.to, self.offload)?),
            Some((nic, name)) => Transmitter::Card(Box::new(Writer::connect(nic, name, target)?)),
        })
    }

    /// Sends the next frame, with the faults that are due.
    fn frame(
        &self,
        stream: &mut Stream,
        target: &Target,
        flow: &Flow,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), End> {
        let number = stream.frame;
        if self.frames.is_some_and(|frames| number >= frames) {
            outlet.flush();
            return Err(End::Done);
        }
        if self.faults.count("silent", number).is_some() {
            // The fault occurs only once: when armed again, the sensor continues with the next frame.
            stream.frame += 1;
            self.shared
                .sensor(self.sensor, |counts| counts.silences += 1);
            outlet.flush();
            return Err(End::Done);
        }
        if self.sensor == 0 && self.faults.count("reboot", number).is_some() {
            // This frame is never sent. The board continues with the next frame once the sensor is armed again.
            stream.frame += 1;
            self.shared.reboot();
            outlet.flush();
            return Err(End::Done);
        }
        if self.faults.count("restart", number).is_some() {
            stream.restarted = (number, stream.packet);
            self.shared
                .sensor(self.sensor, |counts| counts.restarts += 1);
        }
        let cut = self.cut(number, target);
        let make = Make {
            worker: self,
            target,
            flow,
            cut,
            number,
            first_psn: self.psn(stream.packet - stream.restarted.1),
            metadata_number: number - stream.restarted.0,
            page: stream.page,
            began: now(),
        };
        let first = stream.packet;
        // The rest of a truncated frame is never sent, and its sequence numbers are not used.
        let mut used = 0;
        // A delayed packet is sent after one packet, not after a burst.
        let is_special = self.faults.touch(number, first, cut.all) || !outlet.held.is_empty();
        let sent = if is_special {
            self.by_packet(&make, first, outlet, &mut used)
        } else {
            Self::by_burst(&make, outlet, &mut used)
        };
        stream.packet += used;
        stream.frame += 1;
        stream.page = if stream.page >= target.last_page {
            0
        } else {
            stream.page + 1
        };
        self.shared.sensor(self.sensor, |counts| {
            counts.numbers += used;
            counts.frames += u64::from(sent.is_ok());
            counts.cut += u64::from(sent.is_err());
        });
        sent
    }

    fn psn(&self, packets: u64) -> u32 {
        let packets = packets & u64::from(self.psn_mask);
        let packets = u32::try_from(packets).unwrap_or(0);
        self.first_psn.wrapping_add(packets) & self.psn_mask
    }

    fn cut(&self, number: u64, target: &Target) -> Cut {
        let data = target.frame.div_ceil(target.packet) as u64;
        let has_metadata = self.faults.count("no-metadata", number).is_none();
        let before = (target.frame - 1) / target.packet * target.packet;
        let is_room = target.frame.next_multiple_of(PAGE) + METADATA - before <= target.packet;
        let ends_with_data = (self.embedded && is_room) || !has_metadata;
        Cut {
            data,
            all: data + u64::from(!ends_with_data),
            ends_with_data,
            has_metadata,
        }
    }

    /// Sends a frame without faults in bursts.
    fn by_burst(make: &Make<'_>, outlet: &mut Outlet<'_>, used: &mut u64) -> Result<(), End> {
        let one = make.target.packet + OVERHEAD;
        let burst = (BURST / one).clamp(1, BURST_PACKETS) as u64;
        // The last packet has a different size if it also contains metadata.
        let alike = make.cut.data - u64::from(make.cut.ends_with_data);
        let mut packets = Vec::with_capacity(one * 65);
        while *used < make.cut.all {
            let end = if *used < alike {
                (*used + burst).min(alike)
            } else {
                *used + 1
            };
            packets.clear();
            let mut payload = 0;
            for index in *used..end {
                payload += make.push(&mut packets, index, None);
            }
            let size = if *used < alike { one } else { packets.len() };
            outlet.send(&packets, size, end - *used, payload)?;
            *used = end;
        }
        Ok(())
    }

    /// Sends a frame packet by packet, with faults.
    fn by_packet(
        &self,
        make: &Make<'_>,
        first: u64,
        outlet: &mut Outlet<'_>,
        used: &mut u64,
    ) -> Result<(), End> {
        let mut all = Vec::new();
        while *used < make.cut.all {
            let index = *used;
            let number = first + index;
            let is_last = index + 1 == make.cut.all;
            if self.faults.hits("drop", number) || self.faults.hits("gap", number) {
                self.shared
                    .sensor(self.sensor, |counts| counts.dropped += 1);
                *used += 1;
                continue;
            }
            let hit = |name| self.faults.hits(name, number);
            let damage = Damage::ALL.iter().find(|(name, _)| hit(name));
            let damage = damage.map(|(_, damage)| *damage);
            if damage.is_some() {
                self.shared
                    .sensor(self.sensor, |counts| counts.damaged += 1);
            }
            let mut packet = Vec::new();
            let payload = make.push(&mut packet, index, damage);
            if hit("reorder") || (is_last && self.faults.hits("late-immediate", make.number)) {
                self.shared.sensor(self.sensor, |counts| counts.late += 1);
                outlet.held.push(packet.clone());
            } else {
                outlet.send(&packet, packet.len(), 1, payload)?;
                for _ in 0..self.faults.count("duplicate", number).unwrap_or(0) {
                    self.again(&packet, outlet)?;
                }
            }
            *used += 1;
            all.push(packet);
        }
        if self.faults.count("replay", make.number).is_some() {
            for packet in &all {
                self.again(packet, outlet)?;
            }
        }
        Ok(())
    }

    fn again(&self, packet: &[u8], outlet: &mut Outlet<'_>) -> Result<(), End> {
        self.shared
            .sensor(self.sensor, |counts| counts.duplicates += 1);
        outlet.send(packet, packet.len(), 1, 0)
    }
}

/// The damage of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Address,
    Key,
    Length,
    Opcode,
    Checksum,
}

impl Damage {
    /// All kinds of damage, with the names of the faults.
    const ALL: [(&'static str, Self); 5] = [
        ("bad-va", Self::Address),
        ("bad-rkey", Self::Key),
        ("bad-length", Self::Length),
        ("bad-opcode", Self::Opcode),
        ("bad-icrc", Self::Checksum),
    ];
}

/// Builds the packets of a frame.
struct Make<'a> {
    worker: &'a Worker,
    target: &'a Target,
    flow: &'a Flow,
    cut: Cut,
    number: u64,
    /// Packet sequence number (PSN) of the frame's first packet.
    first_psn: u32,
    /// The frame number in the metadata.
    metadata_number: u64,
    page: u32,
    began: (u64, u32),
}

impl Make<'_> {
    /// Appends packet `index` to `into`. Returns the number of frame bytes in the packet.
    fn push(&self, into: &mut Vec<u8>, index: u64, damage: Option<Damage>) -> usize {
        let target = self.target;
        let is_data = index < self.cut.data;
        let is_last = index + 1 == self.cut.all;
        let metadata_at = target.frame.next_multiple_of(PAGE);
        let offset = if is_data {
            usize::try_from(index).unwrap_or(usize::MAX) * target.packet
        } else {
            metadata_at
        };
        let data = target.frame.saturating_sub(offset).min(target.packet);
        let has_metadata = is_last && self.cut.has_metadata;
        let bytes = if has_metadata {
            metadata_at + METADATA - offset
        } else {
            data
        };
        // Both values are below 2^32: the index of a packet in a frame, and a sequence number of at most 24 bits.
        let ahead = u32::try_from(index).unwrap_or(0);
        let psn = self.first_psn.wrapping_add(ahead) & self.worker.psn_mask;
        let page = u64::from(self.page) * target.increment;
        let mut address = target.base + page + offset as u64;
        if damage == Some(Damage::Address) {
            address = target
                .base
                .wrapping_add(target.increment * (u64::from(target.last_page) + 1))
                .wrapping_add(offset as u64);
        }
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        let opcode = match (damage, is_last) {
            (Some(Damage::Opcode), _) => FOREIGN,
            (_, true) => WRITE_IMMEDIATE,
            (_, false) => WRITE,
        };
        let headers = Headers {
            opcode,
            queue: target.queue,
            psn,
            address,
            key: target.key ^ u32::from(damage == Some(Damage::Key)),
            length: length + 128 * u32::from(damage == Some(Damage::Length)),
            immediate: is_last.then(|| immediate(self.page, psn)),
            is_broken: damage == Some(Damage::Checksum),
        };
        packet::push(into, self.flow, &headers, bytes, |payload| {
            let (frame, rest) = payload.split_at_mut(data.min(bytes));
            let sensor = u8::try_from(self.worker.sensor).unwrap_or(u8::MAX);
            pattern::fill(
                self.worker.pattern,
                sensor,
                self.number,
                offset as u64,
                frame,
            );
            if has_metadata {
                let [.., a, b] = self.metadata_number.to_be_bytes();
                let metadata = Metadata {
                    psn,
                    start: self.began,
                    bytes: target.frame as u64,
                    frame: u16::from_be_bytes([a, b]),
                    made: now(),
                };
                let at = rest.len() - METADATA;
                rest[at..].copy_from_slice(&metadata.bytes());
            }
        });
        data
    }
}

impl Outlet<'_> {
    /// Waits until `packets` packets of `size` bytes each (the last may be shorter) are due. Sends them, followed by
    /// the delayed packets. `payload` is the number of payload bytes in these packets.
    fn send(&mut self, bytes: &[u8], size: usize, packets: u64, payload: usize) -> Result<(), End> {
        let due = self
            .worker
            .rate
            .map(|rate| self.start + Duration::from_secs_f64(self.bytes as f64 * 8.0 / rate));
        if !self.line.wait_due(due) {
            return Err(End::Disarmed);
        }
        self.bytes += payload as u64;
        let sent = self.transmitter.send_packets(bytes, size);
        self.count(&sent, packets, payload);
        self.flush();
        Ok(())
    }

    /// Waits until all packets were sent.
    fn finish(&mut self) {
        if let Transmitter::Card(writer) = &mut self.transmitter
            && let Err(error) = writer.finish()
        {
            LIMIT.run(|suppressed| {
                tracing::warn!(
                    sensor = self.worker.sensor,
                    "cannot send the packets through the NIC: {error}{suppressed}"
                );
            });
        }
    }

    /// Sends the delayed packets.
    fn flush(&mut self) {
        for packet in std::mem::take(&mut self.held) {
            let sent = self.transmitter.send_packets(&packet, packet.len());
            self.count(&sent, 1, 0);
        }
    }

    fn count(&self, sent: &io::Result<()>, packets: u64, payload: usize) {
        if let Err(error) = sent {
            LIMIT.run(|suppressed| {
                tracing::warn!(
                    sensor = self.worker.sensor,
                    "cannot send packets: {error}{suppressed}"
                );
            });
        }
        self.worker
            .shared
            .sensor(self.worker.sensor, |counts| match sent {
                Ok(()) => {
                    counts.packets += packets;
                    counts.bytes += payload as u64;
                }
                Err(_) => counts.send_errors += packets,
            });
    }
}

/// Returns seconds and nanoseconds of the system clock.
fn now() -> (u64, u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    (now.as_secs(), now.subsec_nanos())
}
