//! The data plane of a sensor: a thread that makes frames, and sends them as packets while it is armed.

use super::Options;
use super::card::Writer;
use super::counts::Shared;
use super::faults::Faults;
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

/// Bytes of packets that are sent at once: what the kernel cuts in one go.
const BURST: usize = 60 << 10;
/// Packets that the kernel cuts in one go, at most.
const BURST_PACKETS: usize = 64;
/// An opcode of reliable connections, which no sensor uses.
const FOREIGN: u8 = 0x04;
/// Limits log messages about a host that cannot be reached.
static LIMIT: LogLimit = LogLimit::new();

/// What control and data plane of a sensor share: where it streams to.
#[derive(Debug, Default)]
pub(super) struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    target: Option<Target>,
    /// Counts arming.
    armed: u64,
    /// Counts restarts of the board.
    reboots: u64,
    is_streaming: bool,
    is_ended: bool,
}

impl Line {
    /// Begins.
    pub(super) fn arm(&self, target: Target) {
        let mut state = self.lock();
        state.target = Some(target);
        state.armed += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// The board has restarted: the stream begins again when it is armed.
    pub(super) fn reboot(&self) {
        self.lock().reboots += 1;
    }

    /// Ends; when it returns, nothing more is sent.
    pub(super) fn disarm(&self) {
        self.lock().target = None;
        self.changed.notify_all();
        let state = self.lock();
        let waited = self
            .changed
            .wait_while(state, |state| state.is_streaming && !state.is_ended);
        drop(waited);
    }

    /// Has the thread end.
    pub(super) fn end(&self) {
        self.lock().is_ended = true;
        self.changed.notify_all();
    }

    /// Waits until it is armed another time than `last`; `None` when it is to end.
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

    /// Waits until `due`; whether it is still armed then.
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

    /// The state is valid even if a thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It was disarmed.
    Disarmed,
    /// Nothing more is to come.
    Done,
}

/// The thread's own.
pub(super) struct Worker {
    sensor: usize,
    address: Ipv4Addr,
    /// Bits a second of payload.
    rate: Option<f64>,
    frames: Option<u64>,
    pattern: Pattern,
    embedded: bool,
    psn_mask: u32,
    first_psn: u32,
    offload: bool,
    /// The card that it writes by, with its name.
    nic: Option<(Arc<dyn Nic>, String)>,
    faults: Faults,
    shared: Arc<Shared>,
}

/// How packets leave.
enum Way {
    Socket(Sender),
    Card(Box<Writer>),
}

impl Way {
    fn send_packets(&mut self, bytes: &[u8], size: usize) -> io::Result<()> {
        match self {
            Self::Socket(sender) => sender.send_packets(bytes, size),
            Self::Card(writer) => writer.send_packets(bytes, size),
        }
    }
}

/// The position of a stream. It continues from there when the sensor is armed again, like a sensor that never stops.
struct Stream {
    /// Number of the frame, counted over everything.
    frame: u64,
    /// Number of the frame's first packet, counted over everything.
    packet: u64,
    /// The same two at the last restart.
    restarted: (u64, u64),
    page: u32,
}

/// How a frame is cut.
#[derive(Clone, Copy)]
struct Cut {
    /// Packets of data.
    data: u64,
    /// All packets.
    all: u64,
    /// Whether the last packet of data is the frame's last one.
    ends_with_data: bool,
    has_metadata: bool,
}

/// One burst's outlet: sends what is due, and counts.
struct Outlet<'a> {
    worker: &'a Worker,
    line: &'a Line,
    way: Way,
    start: Instant,
    /// Bytes of frames since `start`.
    bytes: u64,
    /// Packets that are to come behind the next ones.
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
            match self.way(&target, &flow) {
                Ok(way) => {
                    let mut outlet = Outlet {
                        worker: self,
                        line,
                        way,
                        start: Instant::now(),
                        bytes: 0,
                        held: Vec::new(),
                    };
                    // A host may choose other pages each time.
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

    fn way(&self, target: &Target, flow: &Flow) -> Result<Way, Box<dyn Error>> {
        Ok(match &self.nic {
            None => Way::Socket(Sender::bound(flow.from, flow.to, self.offload)?),
            Some((nic, name)) => Way::Card(Box::new(Writer::connect(nic, name, target)?)),
        })
    }

    /// Sends a frame.
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
            // Once: when armed again, it continues with the next frame.
            stream.frame += 1;
            self.shared
                .sensor(self.sensor, |counts| counts.silences += 1);
            outlet.flush();
            return Err(End::Done);
        }
        if self.sensor == 0 && self.faults.count("reboot", number).is_some() {
            // This frame is never sent: the board goes on with the next one once it is armed again.
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
        // What is left of a frame that is cut short is never sent, and its numbers are not used.
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

    /// Sends a frame whose packets all go as they should.
    fn by_burst(make: &Make<'_>, outlet: &mut Outlet<'_>, used: &mut u64) -> Result<(), End> {
        let one = make.target.packet + OVERHEAD;
        let burst = (BURST / one).clamp(1, BURST_PACKETS) as u64;
        // The last packet has another size where it carries more than its data.
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

    /// Sends a frame packet by packet, with what is to go wrong.
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

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Address,
    Key,
    Length,
    Opcode,
    Checksum,
}

impl Damage {
    /// All of them, by the names of the faults.
    const ALL: [(&'static str, Self); 5] = [
        ("bad-va", Self::Address),
        ("bad-rkey", Self::Key),
        ("bad-length", Self::Length),
        ("bad-opcode", Self::Opcode),
        ("bad-icrc", Self::Checksum),
    ];
}

/// Makes the packets of a frame.
struct Make<'a> {
    worker: &'a Worker,
    target: &'a Target,
    flow: &'a Flow,
    cut: Cut,
    number: u64,
    /// Sequence number of the first packet.
    first_psn: u32,
    /// The frame number in the metadata.
    metadata_number: u64,
    page: u32,
    began: (u64, u32),
}

impl Make<'_> {
    /// Appends packet `index`; how many bytes of the frame are in it.
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
        // Both below 2^32: the index of a packet in a frame, and a number of at most 24 bits.
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
    /// Sends `packets` packets of `size` bytes each (the last may be shorter) when they are due, then the delayed packets.
    /// `payload` is the number of payload bytes in them.
    fn send(&mut self, bytes: &[u8], size: usize, packets: u64, payload: usize) -> Result<(), End> {
        let due = self
            .worker
            .rate
            .map(|rate| self.start + Duration::from_secs_f64(self.bytes as f64 * 8.0 / rate));
        if !self.line.wait_due(due) {
            return Err(End::Disarmed);
        }
        self.bytes += payload as u64;
        let sent = self.way.send_packets(bytes, size);
        self.count(&sent, packets, payload);
        self.flush();
        Ok(())
    }

    /// Has everything be on its way.
    fn finish(&mut self) {
        if let Way::Card(writer) = &mut self.way
            && let Err(error) = writer.finish()
        {
            LIMIT.run(|suppressed| {
                tracing::warn!(
                    sensor = self.worker.sensor,
                    "cannot write: {error}{suppressed}"
                );
            });
        }
    }

    /// Sends the delayed packets.
    fn flush(&mut self) {
        for packet in std::mem::take(&mut self.held) {
            let sent = self.way.send_packets(&packet, packet.len());
            self.count(&sent, 1, 0);
        }
    }

    fn count(&self, sent: &io::Result<()>, packets: u64, payload: usize) {
        if let Err(error) = sent {
            LIMIT.run(|suppressed| {
                tracing::warn!(
                    sensor = self.worker.sensor,
                    "cannot send: {error}{suppressed}"
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

/// Seconds and nanoseconds of this machine's clock.
fn now() -> (u64, u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    (now.as_secs(), now.subsec_nanos())
}
