#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod arming;
mod ends;
mod frames;

use super::super::arm::ArmParameters;
use super::super::counts::SensorCounts;
use super::super::ecb::{Ecb, Reservation};
use super::super::supervisor::Control;
use super::*;
use daq_core::dma::{DmaMap, Done, Running, SlotLayout, Stopped};
use daq_core::frame::{Clock, Flags};
use daq_core::region::{HostOptions, Placement, Region};
use daq_rdma::emulated::{EmulatedNic, Faults};
use daq_rdma::verbs::{
    self, Endpoint, Limits, MemoryRegion, Payload, Port, QueuePairOptions, RegistrationMethod,
    Service, Sge, Status, Verb, VerbsError, WorkRequest,
};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::{Mutex, MutexGuard};

const FRAME: usize = 700;
const PACKET: usize = 128;
/// Number of packets per frame: five of 128 bytes and one of 60 bytes.
const PACKETS: usize = 6;
/// Offset of the metadata: 700 rounded up to a multiple of 128.
const BEHIND: usize = 768;
const STRIDE: usize = BEHIND + 128;
const PAGES: usize = 8;
const SECONDS: u64 = 1_700_000_000;
const MASK: u32 = 0x0200_030c;
/// Registers of virtual port 3.
const PORT: u32 = 0x10c0;
const LONG: Duration = Duration::from_mins(1);

/// Recorded calls and registers, in order, and the failures to inject.
#[derive(Default)]
struct Seen {
    calls: Vec<String>,
    registers: BTreeMap<u32, u32>,
    /// The sensor's side of the newest queue pair.
    sensor: Option<Box<dyn verbs::QueuePair>>,
    /// Whether the device rejects every request.
    refuses: bool,
    /// The next call of the queue pair that must fail.
    fails: Option<Call>,
    /// Maximum number of work requests of a queue pair, if it must differ from the NIC's.
    max: Option<u32>,
}

/// A call of a queue pair that must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Poll,
    Wait,
    Receive,
    /// The queue pair itself fails, which its completions show.
    All,
}

type Shared = Arc<Mutex<Seen>>;

fn lock(seen: &Shared) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap()
}

/// An emulated NIC that connects each queue pair with one of a second NIC, which belongs to the sensor.
#[derive(Debug)]
struct Between {
    near: Arc<dyn Nic>,
    far: Arc<dyn Nic>,
    seen: SharedCalls,
}

#[derive(Clone)]
struct SharedCalls(Shared);

impl std::fmt::Debug for SharedCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("calls")
    }
}

impl Nic for Between {
    fn name(&self) -> &str {
        self.near.name()
    }

    fn limits(&self) -> Limits {
        let limits = self.near.limits();
        Limits {
            max_work: lock(&self.seen.0).max.unwrap_or(limits.max_work),
            ..limits
        }
    }

    fn port(&self) -> Result<Port, VerbsError> {
        self.near.port()
    }

    fn register(
        &self,
        region: &Arc<Region>,
        method: RegistrationMethod,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        assert!(access.remote_write && access.local_write && !access.relaxed);
        self.near.register(region, method, access)
    }

    fn create_queue_pair(
        &self,
        options: &QueuePairOptions,
    ) -> Result<Box<dyn verbs::QueuePair>, VerbsError> {
        assert_eq!(options.service, Service::Uc);
        Ok(Box::new(Joined {
            queue: self.near.create_queue_pair(options)?,
            far: self.far.clone(),
            seen: self.seen.clone(),
        }))
    }

    fn event(&self) -> Option<NicEvent> {
        self.near.event()
    }
}

struct Joined {
    queue: Box<dyn verbs::QueuePair>,
    far: Arc<dyn Nic>,
    seen: SharedCalls,
}

impl Joined {
    /// Returns an error if `call` must fail.
    fn meet(&self, call: Call) -> Result<(), VerbsError> {
        if lock(&self.seen.0)
            .fails
            .take_if(|fails| *fails == call)
            .is_none()
        {
            return Ok(());
        }
        Err(VerbsError {
            nic: "emulated".to_owned(),
            call: format!("{call:?}"),
            errno: 75,
            why: String::new(),
        })
    }
}

impl verbs::QueuePair for Joined {
    fn endpoint(&self) -> Endpoint {
        self.queue.endpoint()
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), VerbsError> {
        assert_eq!(peer.gid, Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
        let mut far = self.far.create_queue_pair(&QueuePairOptions {
            service: Service::Uc,
            sends: 4096,
            receives: 1,
            sges: 1,
            inline: 256,
            events: true,
        })?;
        far.connect(&self.queue.endpoint())?;
        self.queue.connect(&far.endpoint())?;
        lock(&self.seen.0).sensor = Some(far);
        Ok(())
    }

    fn post_send(&mut self, work: &WorkRequest<'_>) -> Result<(), VerbsError> {
        self.queue.post_send(work)
    }

    fn post_receive(&mut self, id: u64, into: &[Sge<'_>]) -> Result<(), VerbsError> {
        self.meet(Call::Receive)?;
        self.queue.post_receive(id, into)
    }

    fn poll(&mut self, done: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        self.meet(Call::Poll)?;
        if self.meet(Call::All).is_err() {
            self.queue.stop()?;
        }
        self.queue.poll(done)
    }

    fn stop(&mut self) -> Result<(), VerbsError> {
        self.queue.stop()
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, VerbsError> {
        self.meet(Call::Wait)?;
        self.queue.wait(limit)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        lock(&self.seen.0).calls.push("queue destroyed".to_owned());
    }
}

/// Starts a device whose registers are stored in memory. It runs until the process ends.
fn device(seen: &Shared) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let seen = seen.clone();
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        loop {
            let (got, from) = socket.recv_from(&mut bytes).unwrap();
            let reply = &mut bytes[..got];
            let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().unwrap());
            let (writes, address, word) = (reply[0] == 4, word(6), word(10));
            let mut seen = lock(&seen);
            if writes {
                seen.registers.insert(address, word);
                if address == MASK {
                    seen.calls.push(format!("mask {word}"));
                }
            }
            reply[0] |= 0x80;
            reply[4] = u8::from(seen.refuses);
            let word = seen.registers.get(&address).copied().unwrap_or(0);
            drop(seen);
            reply[10..14].copy_from_slice(&word.to_be_bytes());
            socket.send_to(reply, from).unwrap();
        }
    });
    address
}

struct Bench {
    seen: Shared,
    engine: Option<Running>,
    /// The engine and its memory until it is armed for the first time.
    fresh: Option<(Box<dyn Engine>, DmaMap)>,
    idle: Option<Stopped>,
    region: Arc<Region>,
    completions: Completions,
    /// PSN of the next packet, and number of PSN bits that the sensor uses.
    psn: u32,
    bits: u32,
    embeds: bool,
    /// Whether frames end without metadata.
    plain: bool,
    /// Number of frames that the sensor has numbered but not sent.
    skipped: u64,
    /// Sum of all reported faults.
    faults: [u64; FAULTS.len()],
    counters: SensorCounts,
}

fn payload(frame: u64) -> Vec<u8> {
    let seed = (frame + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..FRAME as u64)
        .map(|i| (seed.rotate_left((i % 61) as u32) ^ i).to_le_bytes()[0])
        .collect()
}

impl Bench {
    fn new(psn: u32, bits: u32, embeds: bool) -> Self {
        Self::with(psn, bits, embeds, Duration::ZERO)
    }

    /// Returns an armed bench. The registers are read back after a silence of `rearm_after`.
    fn with(psn: u32, bits: u32, embeds: bool, rearm_after: Duration) -> Self {
        let mut bench = Self::of(psn, bits, embeds, rearm_after, Target::Known);
        bench.arm();
        bench
    }

    /// Returns a bench that is not armed yet. `target` selects its sensor.
    fn of(
        psn: u32,
        bits: u32,
        embeds: bool,
        rearm_after: Duration,
        target: impl FnOnce(Control) -> Target,
    ) -> Self {
        let seen = Shared::default();
        let address = device(&seen);
        let card = || EmulatedNic::new(Ipv4Addr::LOCALHOST.into(), Faults::none()).unwrap();
        let nic = Arc::new(Between {
            near: card(),
            far: card(),
            seen: SharedCalls(seen.clone()),
        });
        let ecb = Ecb::shared(address).unwrap();
        let counters = SensorCounts::default();
        let pages = Pages {
            base: 0,
            stride: 0,
            count: 0,
            frame: FRAME,
            packet: PACKET,
            queue_pair: 0,
            rkey: 0,
        };
        let engine = QueuePair::new(Parts {
            name: "source camera".to_owned(),
            nic,
            is_emulated_nic: false,
            target: target(Control {
                reservation: Reservation::new(&ecb, 3).unwrap(),
                ecb,
                parameters: ArmParameters {
                    sensor: 3,
                    plane: 0,
                    pages,
                    host: SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 4791),
                    mac: [2, 0, 0, 0, 0, 1],
                },
            }),
            pages,
            rearm_after,
            relaxed: false,
            counters: counters.clone(),
        });
        let engine = Box::new(engine.unwrap());
        let region = Region::host(STRIDE * PAGES, HostOptions::default()).unwrap();
        let map = DmaMap::new(engine.device().clone(), region.clone()).unwrap();
        let completions =
            Completions::with_packets_per_frame(64, FAULTS.len(), u32::try_from(PACKETS).unwrap());
        Self {
            seen,
            engine: None,
            fresh: Some((engine, map)),
            idle: None,
            region,
            completions,
            psn,
            bits,
            embeds,
            plain: false,
            skipped: 0,
            faults: [0; FAULTS.len()],
            counters,
        }
    }

    fn arm(&mut self) {
        self.try_arm().unwrap();
    }

    fn try_arm(&mut self) -> Result<(), EngineError> {
        let idle = self.idle.take().unwrap_or_else(|| {
            let (engine, map) = self.fresh.take().unwrap();
            Stopped::new(engine, map)
        });
        let layout = SlotLayout {
            slots: PAGES,
            stride: STRIDE,
            bytes: STRIDE,
        };
        match idle.start(layout, 0, None) {
            Ok(engine) => self.engine = Some(engine),
            Err(refused) => {
                self.idle = refused.stopped;
                return Err(refused.error);
            }
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.stop_within(LONG);
    }

    fn stop_within(&mut self, timeout: Duration) {
        self.idle = Some(self.engine.take().unwrap().stop(timeout).unwrap());
    }

    fn register(&self, register: u32) -> u32 {
        lock(&self.seen).registers[&(PORT + register)]
    }

    fn key(&self) -> u32 {
        self.register(4)
    }

    fn base(&self) -> u64 {
        u64::from(self.register(8)) | u64::from(self.register(0xc)) << 32
    }

    /// Writes `bytes` to `address`. Returns true if the write was completed successfully.
    fn write(&self, key: u32, address: u64, bytes: &[u8], immediate: Option<u32>) -> bool {
        let mut seen = lock(&self.seen);
        let queue = seen.sensor.as_mut().unwrap();
        let work = WorkRequest {
            id: 1,
            verb: Verb::write(address, key, immediate),
            payload: Payload::Inline(bytes),
            signaled: true,
        };
        if queue.post_send(&work).is_err() {
            return false;
        }
        let mut done = [WorkCompletion::default()];
        while queue.poll(&mut done).unwrap() == 0 {
            queue.wait(LONG).unwrap();
        }
        done[0].status == Status::Success
    }

    /// Sends frame `frame` of the sensor's count, except the packets with the indices `lost`. The last index is that of
    /// the metadata packet.
    fn send(&mut self, frame: u64, lost: &[usize]) {
        let (key, base) = (self.key(), self.base());
        let step = u64::from(self.register(0x10)) * 128;
        let page = frame % (u64::from(self.register(0x14)) + 1);
        let at = base + page * step;
        let bytes = payload(frame);
        let last = if self.embeds || self.plain {
            PACKETS - 1
        } else {
            PACKETS
        };
        for index in 0..=last {
            let psn = self.psn;
            self.psn = (self.psn + 1) & ((1 << self.bits) - 1);
            let from = index * PACKET;
            let mut part = bytes[from.min(FRAME)..FRAME.min(from + PACKET)].to_vec();
            if index == last && !self.plain {
                part.resize(if self.embeds { BEHIND - from } else { 0 }, 0);
                part.extend(metadata_bytes(frame, frame + self.skipped, psn));
            }
            if lost.contains(&index) {
                continue;
            }
            let address = at + if index == PACKETS { BEHIND } else { from } as u64;
            let immediate = (index == last).then(|| u32::try_from(page).unwrap() | psn << 12);
            assert!(self.write(key, address, &part, immediate));
        }
    }

    /// Sends frame `frame`, but ends it after `bytes` bytes.
    fn send_cut(&mut self, frame: u64, bytes: usize) {
        let page = frame % PAGES as u64;
        let at = self.base() + page * STRIDE as u64;
        let all = payload(frame);
        for from in (0..bytes).step_by(PACKET) {
            let psn = self.psn;
            self.psn = (self.psn + 1) & ((1 << self.bits) - 1);
            let part = &all[from..bytes.min(from + PACKET)];
            let is_last = self.plain && from + PACKET >= bytes;
            let immediate = is_last.then(|| u32::try_from(page).unwrap() | psn << 12);
            assert!(self.write(self.key(), at + from as u64, part, immediate));
        }
        if !self.plain {
            let mut notes = metadata_bytes(frame, frame + self.skipped, self.psn);
            notes[24..32].copy_from_slice(&(bytes as u64).to_be_bytes());
            self.end(page, self.psn, &notes);
            self.psn = (self.psn + 1) & ((1 << self.bits) - 1);
        }
    }

    /// Sends complete frames.
    fn send_all(&mut self, frames: std::ops::Range<u64>) {
        for frame in frames {
            self.send(frame, &[]);
        }
    }

    fn poll(&mut self) -> Result<Vec<Done>, EngineError> {
        self.completions.clear(usize::MAX);
        let engine = self.engine.as_mut().unwrap();
        let polled = engine.poll(&mut self.completions);
        for (all, new) in self.faults.iter_mut().zip(self.completions.faults()) {
            *all += new;
        }
        polled?;
        Ok(self.completions.as_slice().to_vec())
    }

    /// Polls until at least one frame is reported.
    fn next(&mut self) -> Vec<Done> {
        loop {
            let done = self.poll().unwrap();
            if !done.is_empty() {
                return done;
            }
            self.engine.as_mut().unwrap().wait(LONG).unwrap();
        }
    }

    /// Polls until exactly `count` frames were reported.
    fn take(&mut self, count: usize) -> Vec<Done> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.next());
        }
        assert_eq!(all.len(), count);
        all
    }

    /// Polls until a fault was reported `times` times. No frame may arrive meanwhile.
    fn until(&mut self, fault: Fault, times: u64) {
        while self.faults[fault as usize] < times {
            assert!(self.poll().unwrap().is_empty());
            if self.faults[fault as usize] < times {
                self.engine.as_mut().unwrap().wait(LONG).unwrap();
            }
        }
        assert_eq!(self.faults[fault as usize], times);
    }

    /// Returns the remaining reports of a stopped engine, and the bound of overwritten transfers.
    fn rest(&mut self) -> (Vec<Done>, u64) {
        let engine = self.idle.as_mut().unwrap();
        self.completions.clear(usize::MAX);
        engine.poll(&mut self.completions).unwrap();
        (
            self.completions.as_slice().to_vec(),
            engine.overwritten().unwrap(),
        )
    }

    fn overwritten(&mut self) -> u64 {
        self.engine.as_mut().unwrap().overwritten().unwrap()
    }

    /// Ends the frame in `page` with a packet whose PSN is `psn`.
    fn end(&self, page: u64, psn: u32, notes: &[u8]) {
        let at = self.base() + page * STRIDE as u64 + BEHIND as u64;
        let immediate = Some(u32::try_from(page).unwrap() | (psn & 0xf_ffff) << 12);
        assert!(self.write(self.key(), at, notes, immediate));
    }

    /// Waits until the engine has received the end of transfer `transfer`, which must be at least 6. Does not report
    /// frames.
    fn await_end(&mut self, transfer: u64) {
        let bound = transfer + 2 + UNREPORTED - PAGES as u64;
        assert!(bound > 0);
        while self.engine.as_mut().unwrap().overwritten().unwrap() < bound {
            self.engine.as_mut().unwrap().wait(LONG).unwrap();
        }
    }

    /// Returns the bytes of the page of a transfer.
    fn page(&self, transfer: u64) -> Vec<u8> {
        let page = usize::try_from(transfer).unwrap() % PAGES;
        let mut bytes = vec![0; STRIDE];
        assert!(self.region.read(page * STRIDE, &mut bytes));
        bytes.truncate(FRAME);
        bytes
    }
}

fn metadata_bytes(frame: u64, number: u64, psn: u32) -> [u8; 128] {
    let mut bytes = [0; 128];
    bytes[4..8].copy_from_slice(&psn.to_be_bytes());
    bytes[12..20].copy_from_slice(&(SECONDS + frame).to_be_bytes());
    bytes[34..36].copy_from_slice(&number.to_be_bytes()[6..]);
    bytes[24..32].copy_from_slice(&(FRAME as u64).to_be_bytes());
    bytes
}
