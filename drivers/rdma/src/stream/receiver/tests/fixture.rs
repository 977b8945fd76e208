//! A receiver on emulated NICs, and a minimal sender that uses queue pairs and shared words without the checks of the
//! real sender.

use super::super::{Counters, FAULTS, Options, Receiver};
use crate::connect::{ConnectError, Handshake, Link, Listener, tcp};
use crate::emulated::{EmulatedNic, Faults};
use crate::registration::set::{RailRegions, RegistrationSet};
use crate::verbs::{
    Access, Nic, Payload, QueuePair, QueuePairOptions, Service, Sge, Status, Verb, WorkCompletion,
    WorkRequest,
};
use crate::wire::{Hello, KeptNames, Mode, Offer, Record, SamplePlaces};
use daq_core::dma::{Completions, DmaBuffer, Done, Engine, Slots};
use daq_core::frame::{Clock, PacketSizes, Timestamp};
use daq_core::region::Placement;
use daq_testkit::assert_fields;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

pub(super) const SLOT: usize = 256;
pub(super) const STRIDE: usize = 320;
pub(super) const PACKETS_PER_FRAME: u32 = 70;
const LONG: Duration = Duration::from_mins(1);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Returns word `i` of frame `n` of a stream.
pub(super) const fn content(stream: u64, n: u64, i: usize) -> u64 {
    (stream << 48) ^ (n << 16) ^ i as u64
}

/// Returns the number of valid bytes of frame `n`.
pub(super) const fn length(n: u64) -> usize {
    SLOT - 8 * (n % 5) as usize
}

/// Returns the record of frame `n`.
pub(super) fn record(n: u64) -> Record {
    Record {
        number: n,
        sequence: n + 1000,
        epoch: 7,
        timestamp: Timestamp {
            ns: n * 10,
            clock: Clock::Sensor,
        },
        length: length(n) as u64,
        flags: 0,
        packets_per_frame: PACKETS_PER_FRAME,
        arrived: 65,
        packet_sizes: PacketSizes::equal(16),
        kept_mask: 0,
        checksums: None,
    }
}

pub(super) const PRESENT: [u64; 2] = [u64::MAX, 0b10_0000];

pub(super) fn card() -> Arc<dyn Nic> {
    EmulatedNic::new(LOOPBACK, Faults::none()).unwrap()
}

/// A frame that was reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Got {
    pub(super) number: u64,
    pub(super) epoch: u64,
    pub(super) missing: u64,
    pub(super) passed: u64,
}

pub(super) struct Fixture {
    pub(super) engine: Receiver,
    pub(super) memory: DmaBuffer,
    pub(super) address: SocketAddr,
    pub(super) slots: usize,
    /// The slot of the next expected frame, without the modulo operation.
    pub(super) first_slot: usize,
    /// The frames that were reported since the receiver was armed.
    pub(super) got: Vec<Got>,
    pub(super) faults: Vec<u64>,
    /// Streams in the order of their first frames. The expected contents depend on the stream.
    pub(super) streams: Vec<u64>,
    completions: Completions,
    /// True if the slot of a frame is credited again immediately.
    pub(super) gives: bool,
    /// Maximum number of frames accepted per poll.
    pub(super) max: usize,
}

impl Fixture {
    pub(super) fn new(mode: Mode, service: Service, rails: usize, slots: usize) -> Self {
        let waiting = tcp::listener((LOOPBACK, 0).into()).unwrap();
        Self::at(waiting, mode, service, rails, slots)
    }

    pub(super) fn at(
        waiting: Listener,
        mode: Mode,
        service: Service,
        rails: usize,
        slots: usize,
    ) -> Self {
        let address = waiting.address();
        // Two rails share a NIC, and a third one has a separate NIC.
        let (one, other) = (card(), card());
        let nics = (0..rails).map(|rail| if rail < 2 { one.clone() } else { other.clone() });
        let options = Options {
            name: "test".to_owned(),
            mode,
            service,
            packets_per_frame: PACKETS_PER_FRAME,
            kept: KeptNames::default(),
            places: SamplePlaces::default(),
            relaxed: false,
            counters: Counters::default(),
        };
        let engine = Receiver::new(&options, nics.collect(), waiting).unwrap();
        let memory = DmaBuffer::new(engine.device().clone(), slots * STRIDE).unwrap();
        let mut fixture = Self {
            engine,
            memory,
            address,
            slots,
            first_slot: 0,
            got: Vec::new(),
            faults: vec![0; FAULTS.len()],
            streams: Vec::new(),
            completions: Completions::with_packets_per_frame(
                slots,
                FAULTS.len(),
                PACKETS_PER_FRAME,
            ),
            gives: true,
            max: usize::MAX,
        };
        fixture.arm(1);
        fixture
    }

    pub(super) fn arm(&mut self, first: usize) {
        self.first_slot = first;
        let addresses = (0..self.slots).map(|slot| self.memory.address() + (slot * STRIDE) as u64);
        let slots = Slots {
            addresses: addresses.collect(),
            bytes: SLOT,
            first,
            doorbell: None,
            placement: Placement::Host,
        };
        // SAFETY: the engine is dropped, which ends its link, before the memory.
        unsafe { self.engine.arm(&slots) }.unwrap();
        self.engine.credit(u32::try_from(self.slots).unwrap());
    }

    pub(super) fn word(&self, slot: usize, i: usize) -> u64 {
        self.memory.read64(slot * STRIDE + 8 * i)
    }

    /// Polls once and checks every reported frame.
    pub(super) fn pump(&mut self) -> usize {
        self.completions.clear(self.max);
        self.engine.poll(&mut self.completions).unwrap();
        for (sum, times) in self.faults.iter_mut().zip(self.completions.faults()) {
            *sum += times;
        }
        let done: Vec<Done> = self.completions.as_slice().to_vec();
        for (i, done) in done.iter().enumerate() {
            let origin = done.origin.unwrap();
            let number = origin.sequence - 1000;
            if self
                .got
                .last()
                .is_none_or(|last| last.epoch != origin.epoch)
            {
                let known = usize::try_from(origin.epoch).unwrap();
                assert!(
                    known <= self.streams.len(),
                    "the epoch belongs to an unknown stream"
                );
            }
            let stream = self.streams[usize::try_from(origin.epoch).unwrap() - 1];
            self.first_slot += usize::try_from(done.passed).unwrap();
            let slot = self.first_slot % self.slots;
            self.first_slot += 1;
            assert_eq!(done.length, length(number));
            assert_fields!(origin => packets_per_frame: PACKETS_PER_FRAME, arrived: 65);
            assert_eq!(self.completions.present(i), PRESENT);
            assert_eq!(done.timestamp.ns, number * 10);
            for word in 0..done.length / 8 {
                let found = self.word(slot, word);
                assert_eq!(
                    found,
                    content(stream, number, word),
                    "frame {number}, word {word}"
                );
            }
            self.got.push(Got {
                number,
                epoch: origin.epoch,
                missing: done.missing,
                passed: done.passed,
            });
        }
        if self.gives {
            self.engine.credit(u32::try_from(done.len()).unwrap());
        }
        done.len()
    }

    pub(super) fn until(&mut self, mut ready: impl FnMut(&Self) -> bool) {
        while !ready(self) {
            if self.pump() == 0 {
                self.engine.wait(Duration::from_millis(1)).unwrap();
            }
        }
    }

    /// Polls repeatedly while `work` runs in another thread.
    pub(super) fn meanwhile<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(work);
            while !thread.is_finished() {
                if self.pump() == 0 {
                    self.engine.wait(Duration::from_millis(1)).unwrap();
                }
            }
            thread.join().unwrap()
        })
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.got.iter().map(|got| got.number).collect()
    }

    pub(super) fn fault(&self, name: &str) -> u64 {
        self.faults[FAULTS.iter().position(|fault| *fault == name).unwrap()]
    }
}

/// A sender that does exactly what the test requests, valid or not.
pub(super) struct BaselineSender {
    nics: Vec<Arc<dyn Nic>>,
    pub(super) hello: Hello,
    service: Service,
    memory: DmaBuffer,
    keys: Arc<RailRegions>,
    credits: DmaBuffer,
    credit_keys: Arc<RailRegions>,
    pub(super) link: Option<Link>,
    pub(super) offers: Vec<Offer>,
    /// Number of posted signaled work requests without a completion, by rail.
    open: Vec<usize>,
    /// The first status of a request that failed.
    pub(super) failed: Option<Status>,
}

/// Number of frames whose copies a baseline sender keeps.
const COPIES: usize = 64;

impl BaselineSender {
    pub(super) fn new(mode: Mode, service: Service, rails: usize, stream: u64) -> Self {
        let nics: Vec<_> = (0..rails).map(|_| card()).collect();
        let local = RegistrationSet::new(&nics, Access::WRITE, Box::new(|| Ok(())));
        let stride = Record::bytes(PACKETS_PER_FRAME, 0) + SLOT;
        let memory = DmaBuffer::new(local.clone(), COPIES * stride).unwrap();
        let keys = local.acquire(memory.address()).unwrap();
        let local = RegistrationSet::new(&nics, Access::WRITE, Box::new(|| Ok(())));
        let credits = DmaBuffer::new(local.clone(), 64).unwrap();
        let credit_keys = local.acquire(credits.address()).unwrap();
        let hello = Hello {
            mode,
            rails: u8::try_from(rails).unwrap(),
            packets_per_frame: PACKETS_PER_FRAME,
            stream,
            slot: SLOT as u64,
            credit_address: credit_keys.of(0).address(),
            credit_rkey: credit_keys.of(0).rkey(),
            ..Hello::default()
        };
        Self {
            nics,
            hello,
            service,
            memory,
            keys,
            credits,
            credit_keys,
            link: None,
            offers: Vec::new(),
            open: vec![0; rails],
            failed: None,
        }
    }

    pub(super) fn try_connect(&mut self, address: SocketAddr) -> Result<(), ConnectError> {
        let greetings: Vec<Vec<u8>> = (0..self.nics.len())
            .map(|rail| {
                let key = self.credit_keys.of(rail);
                let hello = Hello {
                    rail: u8::try_from(rail).unwrap(),
                    credit_address: key.address(),
                    credit_rkey: key.rkey(),
                    ..self.hello
                };
                hello.encode()
            })
            .collect();
        self.connect_with(address, &greetings)
    }

    pub(super) fn connect_with(
        &mut self,
        address: SocketAddr,
        greetings: &[Vec<u8>],
    ) -> Result<(), ConnectError> {
        self.link = None;
        self.credits.clear();
        let options = QueuePairOptions {
            service: self.service,
            sends: 256,
            receives: 1,
            sges: 2,
            inline: 64,
            events: true,
        };
        let handshake = Handshake {
            nics: &self.nics,
            options: &options,
            greetings,
            prepare: &mut |_, _| Ok(()),
        };
        let link = tcp::connector(address).connect(handshake, LONG)?;
        self.offers = link
            .greetings
            .iter()
            .map(|offer| Offer::decode(offer).unwrap())
            .collect();
        self.open.fill(0);
        self.failed = None;
        self.link = Some(link);
        Ok(())
    }

    /// Returns the total number of frames that may have been sent.
    pub(super) fn credits(&self) -> u64 {
        self.offers[0].next + self.offers[0].credits.max(self.credits.read64(0))
    }

    pub(super) fn rail(&self, n: u64) -> usize {
        usize::try_from(n % self.nics.len() as u64).unwrap()
    }

    pub(super) fn slot(&self, n: u64) -> u64 {
        let offer = &self.offers[0];
        (n - offer.next + u64::from(offer.first_slot)) % u64::from(offer.slots)
    }

    /// Stores frame `n` and its record in the send memory and returns the offset.
    pub(super) fn lay(&self, n: u64, record: &Record) -> usize {
        let bytes = Record::bytes(PACKETS_PER_FRAME, 0);
        let at = usize::try_from(n).unwrap() % COPIES * (bytes + SLOT);
        let mut head = vec![0; bytes];
        record.encode(PRESENT.into_iter(), &mut head);
        for (i, word) in head.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().unwrap());
            self.memory.write64(at + 8 * i, word);
        }
        for i in 0..SLOT / 8 {
            let word = content(self.hello.stream, n, i);
            self.memory.write64(at + bytes + 8 * i, word);
        }
        at
    }

    pub(super) fn post(
        &mut self,
        rail: usize,
        verb: Verb,
        sges: &[(usize, usize)],
        signaled: bool,
    ) {
        let sges: Vec<Sge<'_>> = sges
            .iter()
            .map(|(at, bytes)| self.keys.of(rail).sge(*at, *bytes))
            .collect();
        let work = WorkRequest {
            id: 1,
            verb,
            payload: Payload::Memory(&sges),
            signaled,
        };
        self.link.as_mut().unwrap().rails[rail]
            .post_send(&work)
            .unwrap();
        self.open[rail] += usize::from(signaled);
    }

    /// Writes the payload of frame `n`.
    pub(super) fn payload(&mut self, n: u64, signaled: bool) {
        let (at, rail) = (self.lay(n, &record(n)), self.rail(n));
        let offer = self.offers[rail];
        let verb = Verb::write(
            offer.slot_address + self.slot(n) * offer.stride,
            offer.slot_rkey,
            None,
        );
        let from = at + Record::bytes(PACKETS_PER_FRAME, 0);
        self.post(rail, verb, &[(from, length(n))], signaled);
    }

    /// Writes the record of frame `n`, with immediate data.
    pub(super) fn send_record(&mut self, n: u64, record: &Record, immediate: Option<u32>) {
        let (at, rail) = (self.lay(n, record), self.rail(n));
        let offer = self.offers[rail];
        let bytes = Record::bytes(PACKETS_PER_FRAME, 0);
        let verb = Verb::write(
            offer.record_address + self.slot(n) * bytes as u64,
            offer.record_rkey,
            immediate,
        );
        self.post(rail, verb, &[(at, bytes)], true);
    }

    /// Sends frame `n` in the configured mode.
    pub(super) fn send(&mut self, n: u64) {
        match self.hello.mode {
            Mode::Write => {
                self.payload(n, false);
                self.send_record(n, &record(n), Some(low(n)));
            }
            Mode::Send => self.message(n, &record(n)),
        }
    }

    pub(super) fn message(&mut self, n: u64, record: &Record) {
        let (at, rail) = (self.lay(n, record), self.rail(n));
        let verb = Verb::Send { immediate: None };
        self.post(
            rail,
            verb,
            &[(at, Record::bytes(PACKETS_PER_FRAME, 0) + length(n))],
            true,
        );
    }

    /// Collects completions. Returns false if a request has failed.
    pub(super) fn collect(&mut self) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        for (queue, open) in link.rails.iter_mut().zip(&mut self.open) {
            while let Some(done) = next(&mut **queue) {
                if done.status == Status::Success {
                    *open -= 1;
                } else {
                    self.failed.get_or_insert(done.status);
                }
            }
        }
        self.failed.is_none()
    }

    /// Waits until all posted requests have completed or one request has failed.
    pub(super) fn finish(&mut self) {
        while self.collect() && self.open.iter().any(|open| *open > 0) {
            std::thread::yield_now();
        }
    }

    /// Waits until the sender detects that the receiver has disconnected.
    pub(super) fn await_failure_of_link(&mut self) {
        while self
            .link
            .as_mut()
            .unwrap()
            .monitor
            .poll_disconnect()
            .is_none()
        {
            std::thread::yield_now();
        }
    }

    /// Waits until a request fails, and returns the status of this request.
    pub(super) fn await_failure(&mut self) -> Status {
        while self.collect() {
            std::thread::yield_now();
        }
        self.failed.unwrap()
    }
}

fn next(queue: &mut dyn QueuePair) -> Option<WorkCompletion> {
    let mut done = [WorkCompletion::default()];
    (queue.poll(&mut done).unwrap() == 1).then_some(done[0])
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "only the low half is needed"
)]
pub(super) const fn low(n: u64) -> u32 {
    n as u32
}
