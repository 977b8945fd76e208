#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::super::seen::CONTROL_ERRORS;
use super::*;
use daq_core::dma::{Armed as Engaged, DmaMap};
use daq_core::frame::Clock;
use daq_core::ledger::Counter;
use daq_core::region::{HostOptions, Region};
use daq_rdma::software::{Card, Faults};
use daq_rdma::verbs::{
    Limits, MemoryKey, Payload, Piece, Port, QueueOptions, Service, Verb, VerbsError, Way, Work,
};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::MutexGuard;

const FRAME: usize = 700;
const PACKET: usize = 128;
/// Packets of a frame: five whole ones and one of 60 bytes.
const PACKETS: usize = 6;
/// Where metadata begin: 700 rounded up to 128.
const BEHIND: usize = 768;
const STRIDE: usize = BEHIND + 128;
const PAGES: usize = 8;
const SECONDS: u64 = 1_700_000_000;
const MASK: u32 = 0x0200_030c;
/// Virtual port 3.
const PORT: u32 = 0x10c0;
const LONG: Duration = Duration::from_mins(1);

/// What cards, queues and the sensor's registers have seen, in turn.
#[derive(Default)]
struct Seen {
    told: Vec<String>,
    registers: BTreeMap<u32, u32>,
    /// The sensor's end of the newest queue.
    sensor: Option<Box<dyn Queue>>,
    /// The device refuses every request.
    refuses: bool,
    /// The queue's completions cannot be collected.
    fails: bool,
}

type Shared = Arc<Mutex<Seen>>;

fn lock(seen: &Shared) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap()
}

/// A card of software that connects the queues of its user with queues of a second one, the sensor's.
#[derive(Debug)]
struct Between {
    near: Arc<dyn Nic>,
    far: Arc<dyn Nic>,
    seen: Told,
}

#[derive(Clone)]
struct Told(Shared);

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("told")
    }
}

impl Nic for Between {
    fn name(&self) -> &str {
        self.near.name()
    }

    fn limits(&self) -> Limits {
        self.near.limits()
    }

    fn port(&self) -> Result<Port, VerbsError> {
        self.near.port()
    }

    fn register(
        &self,
        region: &Arc<Region>,
        way: Way,
        access: Access,
    ) -> Result<MemoryKey, VerbsError> {
        assert!(access.remote_write && access.local_write && !access.relaxed);
        self.near.register(region, way, access)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, VerbsError> {
        assert_eq!(options.service, Service::Uc);
        Ok(Box::new(Joined {
            queue: self.near.queue(options)?,
            far: self.far.clone(),
            seen: self.seen.clone(),
        }))
    }

    fn event(&self) -> Option<NicEvent> {
        self.near.event()
    }
}

struct Joined {
    queue: Box<dyn Queue>,
    far: Arc<dyn Nic>,
    seen: Told,
}

impl Queue for Joined {
    fn endpoint(&self) -> Endpoint {
        self.queue.endpoint()
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), VerbsError> {
        assert_eq!(
            peer.gid,
            Ipv4Addr::new(192, 0, 2, 7).to_ipv6_mapped().octets()
        );
        let mut far = self.far.queue(&QueueOptions {
            service: Service::Uc,
            sends: 4096,
            receives: 1,
            pieces: 1,
            inline: 256,
            events: true,
        })?;
        far.connect(&self.queue.endpoint())?;
        self.queue.connect(&far.endpoint())?;
        lock(&self.seen.0).sensor = Some(far);
        Ok(())
    }

    fn post(&mut self, work: &Work<'_>) -> Result<(), VerbsError> {
        self.queue.post(work)
    }

    fn receive(&mut self, id: u64, into: &[Piece<'_>]) -> Result<(), VerbsError> {
        self.queue.receive(id, into)
    }

    fn poll(&mut self, done: &mut [WorkDone]) -> Result<usize, VerbsError> {
        if std::mem::take(&mut lock(&self.seen.0).fails) {
            return Err(VerbsError {
                nic: "software".to_owned(),
                call: "collecting completions".to_owned(),
                errno: 75,
                why: String::new(),
            });
        }
        self.queue.poll(done)
    }

    fn stop(&mut self) -> Result<(), VerbsError> {
        self.queue.stop()
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, VerbsError> {
        self.queue.wait(limit)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        lock(&self.seen.0).told.push("queue destroyed".to_owned());
    }
}

/// A device whose registers are memory; ends with the process.
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
                    seen.told.push(format!("mask {word}"));
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
    engine: Option<Engaged>,
    idle: Option<(Box<dyn Engine>, DmaMap)>,
    region: Arc<Region>,
    completions: Completions,
    /// The next packet's number, and how many bits of it the sensor keeps.
    psn: u32,
    bits: u32,
    embeds: bool,
    /// Frames that the sensor has numbered and did not send.
    skipped: u64,
    /// All that were told of.
    faults: [u64; FAULTS.len()],
    counters: Counters,
}

fn payload(frame: u64) -> Vec<u8> {
    let seed = (frame + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..FRAME as u64)
        .map(|i| (seed.rotate_left((i % 61) as u32) ^ i).to_le_bytes()[0])
        .collect()
}

impl Bench {
    fn new(psn: u32, bits: u32, embeds: bool) -> Self {
        let seen = Shared::default();
        let address = device(&seen);
        let card = || Card::new(Ipv4Addr::LOCALHOST.into(), Faults::none()).unwrap();
        let nic = Arc::new(Between {
            near: card(),
            far: card(),
            seen: Told(seen.clone()),
        });
        let ecb = Ecb::shared(address).unwrap();
        let counters = Counters::default();
        let engine = Box::new(QueuePair::new(Parts {
            name: "source camera".to_owned(),
            nic,
            peer: Endpoint {
                gid: Ipv4Addr::new(192, 0, 2, 7).to_ipv6_mapped().octets(),
                ..Endpoint::default()
            },
            is_software: false,
            control: Control {
                taken: Taken::take(&ecb, 3).unwrap(),
                ecb,
                orders: Orders {
                    sensor: 3,
                    plane: 0,
                    pages: Pages {
                        base: 0,
                        stride: 0,
                        count: 0,
                        frame: FRAME,
                        packet: PACKET,
                        queue_pair: 0,
                        rkey: 0,
                    },
                    host: SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 4791),
                    mac: [2, 0, 0, 0, 0, 1],
                },
            },
            relaxed: false,
            counters: counters.clone(),
        }));
        let region = Region::host(STRIDE * PAGES, HostOptions::default()).unwrap();
        let map = DmaMap::new(engine.device().clone(), region.clone()).unwrap();
        let completions =
            Completions::with_places(64, FAULTS.len(), u32::try_from(PACKETS).unwrap());
        let mut bench = Self {
            seen,
            engine: None,
            idle: Some((engine, map)),
            region,
            completions,
            psn,
            bits,
            embeds,
            skipped: 0,
            faults: [0; FAULTS.len()],
            counters,
        };
        bench.arm();
        bench
    }

    fn arm(&mut self) {
        let (engine, map) = self.idle.take().unwrap();
        let addresses = (0..PAGES)
            .map(|page| map.address_of(page * STRIDE, STRIDE).unwrap())
            .collect();
        let slots = Slots {
            addresses,
            bytes: STRIDE,
            first: 0,
            bell: None,
        };
        self.engine = Some(Engaged::arm(engine, map, &slots).unwrap());
    }

    fn stop(&mut self) {
        let idle = self.engine.take().unwrap().stop(LONG);
        self.idle = Some((idle.engine, idle.memory.unwrap()));
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

    /// One write; true if it went out.
    fn write(&self, key: u32, address: u64, bytes: &[u8], immediate: Option<u32>) -> bool {
        let mut seen = lock(&self.seen);
        let queue = seen.sensor.as_mut().unwrap();
        let work = Work {
            id: 1,
            verb: Verb::Write {
                address,
                key,
                immediate,
            },
            payload: Payload::Inline(bytes),
            signaled: true,
        };
        if queue.post(&work).is_err() {
            return false;
        }
        let mut done = [WorkDone {
            id: 0,
            side: Side::Sent,
            status: Status::Flushed,
            bytes: 0,
            immediate: None,
        }];
        while queue.poll(&mut done).unwrap() == 0 {
            queue.wait(LONG).unwrap();
        }
        done[0].status == Status::Success
    }

    /// Sends frame `frame` of the sensor's count, of which the packets `lost` get lost; the last is that of the metadata.
    fn send(&mut self, frame: u64, lost: &[usize]) {
        let (key, base) = (self.key(), self.base());
        let step = u64::from(self.register(0x10)) * 128;
        let page = frame % (u64::from(self.register(0x14)) + 1);
        let at = base + page * step;
        let bytes = payload(frame);
        let last = if self.embeds { PACKETS - 1 } else { PACKETS };
        for index in 0..=last {
            let psn = self.psn;
            self.psn = (self.psn + 1) & ((1 << self.bits) - 1);
            let from = index * PACKET;
            let mut part = bytes[from.min(FRAME)..FRAME.min(from + PACKET)].to_vec();
            if index == last {
                part.resize(if self.embeds { BEHIND - from } else { 0 }, 0);
                part.extend(notes(frame, frame + self.skipped, psn));
            }
            if lost.contains(&index) {
                continue;
            }
            let address = at + if index == PACKETS { BEHIND } else { from } as u64;
            let immediate = (index == last).then(|| u32::try_from(page).unwrap() | psn << 12);
            assert!(self.write(key, address, &part, immediate));
        }
    }

    /// Sends frames of which each comes whole.
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

    /// Polls until something has come.
    fn next(&mut self) -> Vec<Done> {
        loop {
            let done = self.poll().unwrap();
            if !done.is_empty() {
                return done;
            }
            self.engine.as_mut().unwrap().wait(LONG).unwrap();
        }
    }

    /// Waits until the engine has heard of transfer `transfer`, without telling of it.
    fn hear(&mut self, transfer: u64) {
        let bound = (transfer + 2 + UNHEARD).saturating_sub(PAGES as u64);
        while self.engine.as_mut().unwrap().lapsed().unwrap() < bound {
            self.engine.as_mut().unwrap().wait(LONG).unwrap();
        }
    }

    /// The bytes of the page of a transfer.
    fn page(&self, transfer: u64) -> Vec<u8> {
        let page = usize::try_from(transfer).unwrap() % PAGES;
        let mut bytes = vec![0; STRIDE];
        assert!(words::read(&self.region, page * STRIDE, &mut bytes));
        bytes.truncate(FRAME);
        bytes
    }
}

fn notes(frame: u64, number: u64, psn: u32) -> [u8; 128] {
    let mut bytes = [0; 128];
    bytes[4..8].copy_from_slice(&psn.to_be_bytes());
    bytes[12..20].copy_from_slice(&(SECONDS + frame).to_be_bytes());
    bytes[34..36].copy_from_slice(&number.to_be_bytes()[6..]);
    bytes[24..32].copy_from_slice(&(FRAME as u64).to_be_bytes());
    bytes
}

#[test]
fn frames_come_byte_for_byte_over_many_rounds() {
    for (psn, bits, embeds) in [(7, 24, false), (0xf_ffd0, 24, true), (0xf_ffd0, 20, false)] {
        let mut bench = Bench::new(psn, bits, embeds);
        assert_eq!(bench.register(0), {
            let seen = lock(&bench.seen);
            seen.registers[&PORT] & 0xff_ffff
        });
        assert_eq!(bench.register(0x10) as usize, STRIDE / 128);
        assert_eq!(bench.register(0x14) as usize, PAGES - 1);
        assert_eq!(bench.register(0x18) as usize, FRAME);
        // The first only tells where the count begins.
        bench.send(0, &[]);
        for frame in 1..40 {
            bench.send(frame, &[]);
            let done = bench.next();
            assert_eq!(done.len(), 1);
            let origin = done[0].origin.unwrap();
            assert_eq!((origin.sequence, origin.epoch), (frame, 1));
            assert_eq!((origin.places, origin.arrived), (6, 6));
            assert_eq!((origin.flags, done[0].is_bad), (Flags(0), false));
            assert_eq!(bench.completions.present(0), [0x3f]);
            assert_eq!((done[0].length, done[0].missing), (FRAME, 0));
            assert_eq!(done[0].passed, u64::from(frame == 1));
            assert_eq!(done[0].timestamp.ns, (SECONDS + frame) * 1_000_000_000);
            assert_eq!(done[0].timestamp.clock, Clock::Sensor);
            assert!(bench.page(frame) == payload(frame), "frame {frame}");
            assert_eq!(bench.completions.faults(), [0; FAULTS.len()]);
        }
    }
}

#[test]
fn what_is_missing_is_counted_and_named() {
    for embeds in [false, true] {
        let last = if embeds { PACKETS - 1 } else { PACKETS };
        let mut bench = Bench::new(100, 24, embeds);
        bench.send_all(0..2);
        assert_eq!(bench.next().len(), 1);
        // Their ends are lost: nothing says that they were.
        bench.send(2, &[last]);
        bench.send(3, &[1, last]);
        bench.send(4, &[0, 3]);
        let done = bench.next();
        assert_eq!(done.len(), 1);
        assert_eq!((done[0].missing, done[0].passed), (2, 2));
        let origin = done[0].origin.unwrap();
        assert_eq!((origin.sequence, origin.places, origin.arrived), (4, 6, 4));
        assert_eq!(origin.flags, Flags::INCOMPLETE);
        assert_eq!(bench.completions.present(0), [0b11_0110]);
        assert_eq!(bench.completions.faults()[Fault::Incomplete as usize], 1);
        let (page, expected) = (bench.page(4), payload(4));
        for place in [1, 2, 4, 5] {
            let place = place * PACKET..FRAME.min((place + 1) * PACKET);
            assert_eq!(page[place.clone()], expected[place]);
        }
        // A round later the page that was passed over has marks again.
        let mut frames = Vec::new();
        for frame in 5..10 {
            bench.send(frame, &[]);
            frames.extend(bench.next());
        }
        bench.send(10, &[2]);
        bench.send(11, &[]);
        while frames.len() < 7 {
            frames.extend(bench.next());
        }
        let arrived: Vec<_> = frames
            .iter()
            .map(|done| (done.origin.unwrap().arrived, done.missing, done.is_bad))
            .collect();
        let whole = (6, 0, false);
        let expected = [whole, whole, whole, whole, whole, (5, 0, false), whole];
        assert_eq!(arrived, expected);
    }
}

#[test]
fn what_the_sensor_overtakes_is_not_told_as_whole() {
    let mut bench = Bench::new(0, 24, false);
    bench.send_all(0..20);
    bench.hear(19);
    assert_eq!(
        bench.engine.as_mut().unwrap().lapsed().unwrap(),
        19 + 2 + UNHEARD - 8
    );
    let done = bench.poll().unwrap();
    // Transfer 0 is not told, 1 to 11 were let go, 12 to 19 are there, in pages that were not made ready for them.
    assert_eq!(bench.completions.overrun(), 11);
    assert_eq!(done.len(), 8);
    assert_eq!(done[0].passed, 1);
    assert!(done.iter().all(|done| done.is_bad));
    assert_eq!(bench.completions.faults()[Fault::Overtaken as usize], 8);
    // The next in each page that is far enough from the sensor is whole again.
    assert!(bench.poll().unwrap().is_empty());
    bench.send_all(20..28);
    let mut frames = Vec::new();
    while frames.len() < 8 {
        frames.extend(bench.next());
    }
    // The bound was 14: pages of transfers 12 and 13 were not made ready for 20 and 21.
    let bad: Vec<_> = frames.iter().map(|done| done.is_bad).collect();
    assert_eq!(bad[..2], [true, true]);
    assert!(!bad[2..8].contains(&true), "{bad:?}");
}

#[test]
fn a_sensor_that_counts_anew_begins_an_epoch() {
    let mut bench = Bench::new(5, 24, false);
    bench.send_all(0..3);
    let mut told = bench.next().len();
    while told < 2 {
        told += bench.next().len();
    }
    bench.psn = 0x7_7777;
    bench.send_all(3..5);
    let mut frames = bench.next();
    while frames.len() < 2 {
        frames.extend(bench.next());
    }
    let origins: Vec<_> = frames
        .iter()
        .map(|done| {
            (
                done.origin.unwrap().sequence,
                done.origin.unwrap().epoch,
                done.missing,
            )
        })
        .collect();
    assert_eq!(origins, [(0, 2, 0), (1, 2, 0)]);
    assert!(frames.iter().all(|done| !done.is_bad && done.passed == 0));
}

#[test]
fn an_end_that_comes_again_is_no_frame_and_what_metadata_tell_is_counted() {
    let mut bench = Bench::new(5, 24, false);
    bench.send_all(0..3);
    let mut told = 0;
    while told < 2 {
        told += bench.next().len();
    }
    for frame in [2, 1] {
        let psn = bench.psn - 1 - 7 * u32::try_from(2 - frame).unwrap();
        let at = bench.base() + frame * STRIDE as u64 + BEHIND as u64;
        let immediate = Some(u32::try_from(frame).unwrap() | psn << 12);
        bench.write(bench.key(), at, &notes(frame, frame, psn), immediate);
    }
    bench.skipped = 3;
    bench.send(3, &[]);
    let frames = bench.next();
    let faults = bench.faults[Fault::Repeated as usize];
    assert_eq!((faults, frames.len()), (2, 1));
    let origin = frames[0].origin.unwrap();
    assert_eq!((origin.sequence, origin.epoch), (3, 1));
    assert_eq!((frames[0].missing, frames[0].passed), (0, 0));
    assert_eq!(bench.counters.each_ref().map(Counter::get), [3, 3, 0, 0]);
    // Again and again: it is the sensor that counts anew.
    for _ in 0..=REPEATS {
        let psn = bench.psn - 1;
        let at = bench.base() + 3 * STRIDE as u64 + BEHIND as u64;
        bench.write(bench.key(), at, &notes(3, 3, psn), Some(3 | psn << 12));
    }
    assert_eq!(bench.next()[0].origin.unwrap().epoch, 2);
}

#[test]
fn requests_that_fail_are_counted() {
    let mut bench = Bench::new(5, 24, false);
    lock(&bench.seen).refuses = true;
    bench.stop();
    assert_eq!(bench.counters[CONTROL_ERRORS].get(), 1);
}

#[test]
fn wrong_keys_and_addresses_change_nothing() {
    let mut bench = Bench::new(5, 24, false);
    let before: Vec<_> = (0..8).map(|page| bench.page(page)).collect();
    let end = bench.base() + (STRIDE * PAGES) as u64;
    let room = bench.region.bytes() as u64;
    for (key, address) in [
        (bench.key() ^ 1, bench.base()),
        (bench.key(), bench.base() - 64),
        (bench.key(), end - (STRIDE * PAGES) as u64 + room - 64),
        (bench.key(), 0),
    ] {
        bench.write(key, address, &[0xbd; 128], None);
        assert!(bench.poll().map_or(true, |done| done.is_empty()));
        let after: Vec<_> = (0..8).map(|page| bench.page(page)).collect();
        assert!(before == after);
    }
    // An end without a frame of ours.
    let mut bench = Bench::new(5, 24, false);
    bench.send_all(0..2);
    bench.write(bench.key(), bench.base(), &[0; 128], Some(9 | 70 << 12));
    bench.send(2, &[]);
    let mut told = 0;
    while told < 2 {
        told += bench.next().len();
    }
    assert_eq!(bench.faults[Fault::Immediate as usize], 1);
}

#[test]
fn after_a_failure_the_sensor_writes_by_another_key() {
    let mut bench = Bench::new(5, 24, false);
    bench.send_all(0..3);
    let mut told = bench.next().len();
    while told < 2 {
        told += bench.next().len();
    }
    let (pair, key, base) = (bench.register(0), bench.key(), bench.base());
    lock(&bench.seen).fails = true;
    let error = bench.poll().unwrap_err();
    assert!(
        matches!(&error, EngineError::Faulted { faults, .. } if faults[..] == ["queue"]),
        "{error}"
    );
    bench.stop();
    assert_eq!(
        (bench.key(), bench.base()),
        (0, 0),
        "the sensor was disarmed"
    );
    bench.arm();
    assert_ne!((bench.register(0), bench.key()), (pair, key));
    // By the key of before nothing is written; the queue may fail for it, as a card's does.
    let before = bench.page(0);
    bench.write(key, base, &[0xbd; 128], None);
    assert!(bench.page(0) == before);
    if bench.poll().is_err() {
        bench.stop();
        bench.arm();
    }
    bench.send_all(0..3);
    let mut frames = bench.next();
    while frames.len() < 2 {
        frames.extend(bench.next());
    }
    assert!(frames.iter().all(|done| !done.is_bad));
    assert_eq!(frames[1].origin.unwrap().sequence, 2);
    assert!(bench.page(2) == payload(2));
}

#[test]
fn once_stopped_nothing_is_written_and_what_had_ended_is_told() {
    let mut bench = Bench::new(5, 24, false);
    bench.send_all(0..4);
    bench.hear(3);
    let mut sensor = lock(&bench.seen).sensor.take().unwrap();
    let (key, base) = (bench.key(), bench.base());
    bench.stop();
    let told = lock(&bench.seen).told.clone();
    assert_eq!(told, ["mask 0", "mask 8", "mask 0", "queue destroyed"]);
    let before: Vec<_> = (0..8).map(|page| bench.page(page)).collect();
    let verb = Verb::Write {
        address: base,
        key,
        immediate: None,
    };
    let work = Work {
        id: 1,
        verb,
        payload: Payload::Inline(&[0xbd; 128]),
        signaled: true,
    };
    // Whatever becomes of it there.
    let _ = sensor.post(&work);
    let (engine, _) = bench.idle.as_mut().unwrap();
    bench.completions.clear(usize::MAX);
    engine.poll(&mut bench.completions).unwrap();
    let done = bench.completions.as_slice();
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|done| !done.is_bad));
    drop(sensor);
    let after: Vec<_> = (0..8).map(|page| bench.page(page)).collect();
    assert!(before == after);
}

#[test]
fn slots_that_are_no_pages_are_refused() {
    let mut bench = Bench::new(5, 24, false);
    bench.stop();
    let (mut engine, map) = bench.idle.take().unwrap();
    let base = map.address();
    let addresses = |count: u64, step: u64| (0..count).map(|i| base + i * step).collect();
    let stride = STRIDE as u64;
    let cases: [(Vec<u64>, usize, &str); 5] = [
        (addresses(3, stride), STRIDE, "3 slots"),
        (addresses(8, stride), FRAME, "its metadata"),
        (addresses(8, stride + 64), STRIDE, "multiples of 128"),
        (addresses(80, stride), STRIDE, "beyond"),
        (
            (0..8).map(|i| 64 + i * stride).collect(),
            STRIDE,
            "not mapped",
        ),
    ];
    for (addresses, bytes, word) in cases {
        let slots = Slots {
            addresses,
            bytes,
            first: 0,
            bell: None,
        };
        let error = engine.arm(&slots).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    drop(map);
}
