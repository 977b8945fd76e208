//! A minimal receiver that implements only the wire protocol and is controlled by the test.

use crate::connect::{Link, Listener};
use crate::emulated::{EmulatedNic, Faults};
use crate::verbs::{
    Access, MemoryRegion, Nic, Payload, QueuePair, QueuePairOptions, RegistrationMethod, Service,
    Sge, Side, Status, Verb, VerbsError, WorkCompletion, WorkRequest,
};
use crate::wire::{Hello, Mode, Offer, Record};
use daq_core::frame::FrameMeta;
use daq_core::region::SharedWords;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The properties of a receiver.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) mode: Mode,
    pub(super) service: Service,
    pub(super) rails: usize,
    pub(super) slots: u32,
    pub(super) slot: usize,
    pub(super) packets_per_frame: u32,
    /// Faults of the receiver's NIC.
    pub(super) faults: Faults,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            mode: Mode::Write,
            service: Service::Rc,
            rails: 1,
            slots: 8,
            slot: 4096,
            packets_per_frame: 0,
            faults: Faults::none(),
        }
    }
}

/// A received frame.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Got {
    pub(super) record: Record,
    pub(super) words: Vec<u64>,
    pub(super) bytes: Vec<u8>,
}

/// Requests of a test to a running receiver.
#[derive(Debug, Default)]
pub(super) struct Directives {
    pub(super) stop: AtomicBool,
    /// True: no slot is freed.
    pub(super) hold: AtomicBool,
    /// True once the receiver has read `hold`; from then on the receiver grants no credits.
    pub(super) is_holding: AtomicBool,
    /// True: no receive is posted at the next connection.
    pub(super) unready: AtomicBool,
    /// True: the memory regions of the slots are dropped once the next connection is established.
    pub(super) revoke: AtomicBool,
    /// The connection is dropped once this number of frames has arrived; 0 means never.
    pub(super) die_at: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) came: AtomicU64,
    /// The first frame number in each greeting, in the order of the connections.
    pub(super) firsts: Mutex<Vec<u64>>,
}

/// A receiver on a thread.
pub(super) struct BaselineReceiver {
    pub(super) address: SocketAddr,
    pub(super) orders: Arc<Directives>,
    frames: mpsc::Receiver<Got>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl BaselineReceiver {
    pub(super) fn start(shape: Shape) -> Self {
        let listener = crate::connect::tcp::listener((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (address, orders) = (listener.address(), Arc::new(Directives::default()));
        let card = EmulatedNic::new(Ipv4Addr::LOCALHOST.into(), shape.faults.clone()).unwrap();
        let (sender, frames) = mpsc::channel();
        let mut work = Receiver {
            nics: vec![card; shape.rails],
            shape,
            listener,
            orders: orders.clone(),
            frames: sender,
            next: 0,
            first_slot: 0,
            waiting: BTreeMap::new(),
        };
        let thread = std::thread::spawn(move || work.run());
        Self {
            address,
            orders,
            frames,
            thread: Some(thread),
        }
    }

    /// Ends the receiver and returns all received frames in order.
    pub(super) fn end(mut self) -> Vec<Got> {
        self.orders.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
        self.frames.try_iter().collect()
    }
}

struct Receiver {
    shape: Shape,
    nics: Vec<Arc<dyn Nic>>,
    listener: Listener,
    orders: Arc<Directives>,
    frames: mpsc::Sender<Got>,
    /// The next expected frame.
    next: u64,
    /// The slot of the next expected frame.
    first_slot: u32,
    /// Frames that arrived out of order.
    waiting: BTreeMap<u64, Got>,
}

/// One connection. The queue pairs are dropped before the memory regions.
struct Session {
    link: Link,
    slot_keys: Vec<MemoryRegion>,
    record_keys: Vec<MemoryRegion>,
    slots: SharedWords,
    records: SharedWords,
    hellos: Vec<Hello>,
    begin: u64,
    first_slot: u32,
    granted: u64,
}

impl Receiver {
    fn run(&mut self) {
        while !self.orders.stop.load(Ordering::Acquire) {
            if let Some(mut session) = self.accept() {
                self.orders.connections.fetch_add(1, Ordering::AcqRel);
                while !self.orders.stop.load(Ordering::Acquire) && self.step(&mut session) {
                    std::hint::spin_loop();
                }
                self.close(session);
            }
        }
    }

    fn accept(&mut self) -> Option<Session> {
        let incoming = self
            .listener
            .accept(&self.nics, Duration::from_millis(10))
            .ok()?
            .connector()
            .ok()?;
        let hellos: Vec<_> = incoming
            .greetings()
            .iter()
            .map(|greeting| Hello::decode(greeting).unwrap())
            .collect();
        self.orders.firsts.lock().unwrap().push(hellos[0].first);
        self.next = self.next.max(hellos[0].first);
        let shape = self.shape.clone();
        let stride = shape.slot.next_multiple_of(64);
        let record = Record::bytes(shape.packets_per_frame, 0);
        let slots = SharedWords::new(stride * shape.slots as usize).unwrap();
        let records = SharedWords::new(record * shape.slots as usize).unwrap();
        let keys = |area: &SharedWords| -> Vec<_> {
            let key = |nic: &Arc<dyn Nic>| {
                nic.register(area.region(), RegistrationMethod::Host, Access::WRITE)
                    .unwrap()
            };
            self.nics.iter().map(key).collect()
        };
        let (slot_keys, record_keys) = (keys(&slots), keys(&records));
        let holds = self.orders.hold.load(Ordering::Acquire);
        let granted = if holds { 0 } else { shape.slots.into() };
        let offers: Vec<_> = (0..shape.rails)
            .map(|rail| {
                Offer {
                    next: self.next,
                    slots: shape.slots,
                    first_slot: self.first_slot,
                    slot: shape.slot as u64,
                    stride: stride as u64,
                    slot_address: slot_keys[rail].address(),
                    record_address: record_keys[rail].address(),
                    slot_rkey: slot_keys[rail].rkey(),
                    record_rkey: record_keys[rail].rkey(),
                    packets_per_frame: shape.packets_per_frame,
                    kept: 0,
                    credits: granted,
                }
                .encode()
            })
            .collect();
        let options = QueuePairOptions {
            service: shape.service,
            sends: 64,
            receives: shape.slots + 1,
            sges: 2,
            inline: 8,
            events: false,
        };
        let (begin, first_slot) = (self.next, self.first_slot);
        let unready = self.orders.unready.swap(false, Ordering::AcqRel);
        let mut prepare = |rail: usize, queue: &mut dyn QueuePair| -> Result<(), VerbsError> {
            if unready {
                return Ok(());
            }
            for i in 0..u64::from(shape.slots) {
                let n = begin + i;
                match shape.mode {
                    Mode::Write => queue.post_receive(n, &[])?,
                    Mode::Send if n % shape.rails as u64 == rail as u64 => {
                        let slot = (i + u64::from(first_slot)) % u64::from(shape.slots);
                        let sges = packets_of(&shape, &slot_keys[rail], &record_keys[rail], slot);
                        queue.post_receive(n, &sges)?;
                    }
                    Mode::Send => {}
                }
            }
            Ok(())
        };
        let link = incoming.accept(&options, &offers, &mut prepare).ok()?;
        let slot_keys = if self.orders.revoke.swap(false, Ordering::AcqRel) {
            Vec::new()
        } else {
            slot_keys
        };
        Some(Session {
            link,
            slot_keys,
            record_keys,
            slots,
            records,
            hellos,
            begin,
            first_slot,
            granted,
        })
    }

    /// Processes arrived frames and frees slots. Returns false when the connection has ended.
    fn step(&mut self, session: &mut Session) -> bool {
        let die_at = self.orders.die_at.load(Ordering::Acquire);
        if die_at > 0 && self.orders.came.load(Ordering::Acquire) >= die_at {
            self.orders.die_at.store(0, Ordering::Release);
            return false;
        }
        if session.link.monitor.poll_disconnect().is_some() || !self.take(session) {
            return false;
        }
        let holds = self.orders.hold.load(Ordering::Acquire);
        self.orders.is_holding.store(holds, Ordering::Release);
        let granted = self.next - session.begin + u64::from(self.shape.slots);
        if !holds && granted > session.granted {
            return self.grant(session, granted);
        }
        std::thread::yield_now();
        true
    }

    /// Grants credits for `granted` frames in total.
    fn grant(&mut self, session: &mut Session, granted: u64) -> bool {
        let shape = &self.shape;
        for frame in session.granted..granted {
            let n = session.begin + frame;
            let rail = usize::try_from(n % shape.rails as u64).unwrap();
            let queue = &mut session.link.rails[rail];
            let posted = match shape.mode {
                Mode::Write => queue.post_receive(n, &[]),
                Mode::Send if session.slot_keys.is_empty() => Ok(()),
                Mode::Send => {
                    let slot = (frame + u64::from(session.first_slot)) % u64::from(shape.slots);
                    let (slots, records) = (&session.slot_keys[rail], &session.record_keys[rail]);
                    queue.post_receive(n, &packets_of(shape, slots, records, slot))
                }
            };
            if posted.is_err() {
                return false;
            }
        }
        session.granted = granted;
        if shape.service == Service::Ud {
            return true;
        }
        session
            .link
            .rails
            .iter_mut()
            .zip(&session.hellos)
            .all(|(queue, hello)| {
                let work = WorkRequest {
                    id: u64::MAX,
                    verb: Verb::write(hello.credit_address, hello.credit_rkey, None),
                    payload: Payload::Inline(&granted.to_le_bytes()),
                    signaled: true,
                };
                queue.post_send(&work).is_ok()
            })
    }

    /// Collects arrived frames. Returns false when the connection has ended.
    fn take(&mut self, session: &mut Session) -> bool {
        let mut done = [WorkCompletion::default(); 16];
        let mut is_good = true;
        for rail in 0..session.link.rails.len() {
            loop {
                let Ok(found) = session.link.rails[rail].poll(&mut done) else {
                    return false;
                };
                for done in &done[..found] {
                    if done.status != Status::Success {
                        is_good = false;
                    } else if done.side == Side::Received {
                        self.arrived(session, rail, done);
                    }
                }
                if found < done.len() {
                    break;
                }
            }
        }
        let is_lossy = self.shape.service != Service::Rc;
        while let Some(got) = self.waiting.remove(&self.next).or_else(|| {
            let next = self.waiting.keys().next().copied().filter(|_| is_lossy)?;
            self.waiting.remove(&next)
        }) {
            self.next = got.record.number + 1;
            let _ = self.frames.send(got);
            self.orders.came.fetch_add(1, Ordering::AcqRel);
        }
        is_good
    }

    /// Ends a connection. Frames that were acknowledged before the end of the queue pairs are accepted, because the
    /// sender assumes that they arrived. If the completion of a frame was not collected, its stored record identifies
    /// the frame.
    fn close(&mut self, mut session: Session) {
        self.take(&mut session);
        session.link.rails.clear();
        self.waiting.clear();
        while self.shape.service == Service::Rc && self.next < session.begin + session.granted {
            let slot = slot_of(&session, &self.shape, self.next) as usize;
            let stride = Record::bytes(self.shape.packets_per_frame, 0);
            let bytes = session.records.read(slot * stride, stride);
            match Record::decode(&bytes) {
                Ok(record) if record.number == self.next => {
                    let _ = self
                        .frames
                        .send(got(&self.shape, &session, record, &bytes, slot));
                    self.next += 1;
                }
                _ => break,
            }
        }
        self.first_slot = slot_of(&session, &self.shape, self.next);
    }

    fn arrived(&mut self, session: &Session, rail: usize, done: &WorkCompletion) {
        let (shape, immediate) = (&self.shape, done.immediate.unwrap());
        let base = self.next.saturating_sub(u64::from(shape.slots));
        let low = |n: u64| u32::try_from(n & u64::from(u32::MAX)).unwrap();
        let n = base + u64::from(immediate.wrapping_sub(low(base)));
        assert!(
            n >= self.next,
            "frame {n} arrived again instead of frame {}",
            self.next
        );
        assert!(
            shape.service == Service::Ud || n < session.begin + session.granted,
            "frame {n} exceeds the {} credits counted from {}",
            session.granted,
            session.begin
        );
        assert_eq!(n % shape.rails as u64, rail as u64, "the rail of frame {n}");
        // A message is in the slot of its receive, a write in the slot of its frame number.
        let place = if shape.mode == Mode::Send { done.id } else { n };
        let slot = slot_of(session, shape, place) as usize;
        let stride = Record::bytes(shape.packets_per_frame, 0);
        let bytes = session.records.read(slot * stride, stride);
        let record = Record::decode(&bytes).unwrap();
        assert_eq!(record.number, n);
        let got = got(shape, session, record, &bytes, slot);
        assert!(
            self.waiting.insert(n, got).is_none(),
            "frame {n} arrived twice"
        );
    }
}

fn got(shape: &Shape, session: &Session, record: Record, bytes: &[u8], slot: usize) -> Got {
    let words = bytes[Record::HEAD..].as_chunks::<8>().0.iter();
    let words = words.map(|word| u64::from_le_bytes(*word));
    let words = words
        .take((record.packets_per_frame as usize).div_ceil(64))
        .collect();
    let at = slot * shape.slot.next_multiple_of(64);
    let length = usize::try_from(record.length).unwrap();
    Got {
        record,
        words,
        bytes: session.slots.read(at, length),
    }
}

fn slot_of(session: &Session, shape: &Shape, n: u64) -> u32 {
    let slot = (n - session.begin + u64::from(session.first_slot)) % u64::from(shape.slots);
    u32::try_from(slot).unwrap()
}

fn packets_of<'a>(
    shape: &Shape,
    slots: &'a MemoryRegion,
    records: &'a MemoryRegion,
    slot: u64,
) -> [Sge<'a>; 2] {
    let (slot, record) = (
        usize::try_from(slot).unwrap(),
        Record::bytes(shape.packets_per_frame, 0),
    );
    [
        records.sge(slot * record, record),
        slots.sge(slot * shape.slot.next_multiple_of(64), shape.slot),
    ]
}

/// Returns the expected record of a frame with the metadata `meta`.
pub(super) fn expected(meta: &FrameMeta, number: u64) -> Record {
    Record {
        number,
        sequence: meta.sequence,
        epoch: meta.epoch.into(),
        timestamp: meta.timestamp,
        length: meta.length as u64,
        flags: meta.flags.0,
        packets_per_frame: meta.packets_per_frame,
        arrived: meta.arrived,
        packet_sizes: meta.packet_sizes,
        kept_mask: 0,
        checksums: None,
    }
}
