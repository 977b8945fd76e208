//! Tests of the sender together with the receiver.

use super::*;
use crate::stream::receiver::{self, FAULTS, Receiver};
use crate::verbs::{Endpoint, QueuePair, Sge, VerbsError, WorkCompletion, WorkRequest};
use crate::wire::{KeptNames, SamplePlaces};
use daq_core::dma::{Completions, DmaBuffer, Done, Engine, Slots};
use daq_core::region::Placement;
use daq_testkit::assert_fields;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

const SLOTS: usize = 6;

/// A frame as reported by the receiver.
pub(super) struct ReceivedFrame {
    pub(super) done: Done,
    present: Vec<u64>,
    bytes: Vec<u8>,
}

/// A receiver that accepts frames on a thread until it is stopped.
pub(super) struct ReceiverFixture {
    pub(super) address: SocketAddr,
    stop: Arc<AtomicBool>,
    holds: Arc<AtomicBool>,
    /// Number of reported frames.
    received: Arc<AtomicUsize>,
    /// Number of frames that did not match their checksums.
    pub(super) damaged: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<Vec<ReceivedFrame>>,
}

impl ReceiverFixture {
    fn start(shape: &Shape) -> Self {
        let card = EmulatedNic::new(Ipv4Addr::LOCALHOST.into(), shape.faults.clone()).unwrap();
        Self::with(shape, card)
    }

    pub(super) fn with(shape: &Shape, card: Arc<dyn Nic>) -> Self {
        let waiting = tcp::listener((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = waiting.address();
        let options = receiver::Options {
            name: "far".to_owned(),
            mode: shape.mode,
            service: shape.service,
            packets_per_frame: shape.packets_per_frame,
            kept: KeptNames::default(),
            places: SamplePlaces::default(),
            relaxed: false,
            counters: receiver::Counters::default(),
        };
        let engine = Receiver::new(&options, vec![card; shape.rails], waiting).unwrap();
        let (stop, holds) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let received = Arc::<AtomicUsize>::default();
        let shape = shape.clone();
        let damaged = Arc::<AtomicU64>::default();
        let flags = (stop.clone(), holds.clone());
        let counts = (received.clone(), damaged.clone());
        let thread =
            std::thread::spawn(move || take(engine, &shape, (&flags.0, &flags.1), &counts));
        Self {
            address,
            stop,
            holds,
            received,
            damaged,
            thread,
        }
    }

    pub(super) fn end(self) -> Vec<ReceivedFrame> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

fn take(
    mut engine: Receiver,
    shape: &Shape,
    (stop, holds): (&AtomicBool, &AtomicBool),
    (received, damaged): &(Arc<AtomicUsize>, Arc<AtomicU64>),
) -> Vec<ReceivedFrame> {
    let stride = shape.slot.next_multiple_of(64);
    let memory = DmaBuffer::new(engine.device().clone(), SLOTS * stride).unwrap();
    let addresses = (0..SLOTS).map(|slot| memory.address() + (slot * stride) as u64);
    let slots = Slots {
        addresses: addresses.collect(),
        bytes: shape.slot,
        first: 2,
        doorbell: None,
        placement: Placement::Host,
    };
    // SAFETY: the engine is dropped, which ends its link, before the memory.
    unsafe { engine.arm(&slots) }.unwrap();
    engine.credit(u32::try_from(SLOTS).unwrap());
    let mut completions =
        Completions::with_packets_per_frame(SLOTS, FAULTS.len(), shape.packets_per_frame.max(1));
    let (mut first_slot, mut owed, mut got, mut is_quiet) = (2, 0, Vec::new(), false);
    loop {
        let is_last = stop.load(Ordering::Acquire);
        completions.clear(usize::MAX);
        engine.poll(&mut completions).unwrap();
        let fault = FAULTS.iter().position(|name| *name == "bad-checksum");
        damaged.fetch_add(completions.faults()[fault.unwrap()], Ordering::AcqRel);
        for (i, done) in completions.as_slice().iter().enumerate() {
            assert_eq!((done.missing, done.passed), (0, 0));
            let at = first_slot % SLOTS * stride;
            first_slot += 1;
            let words = (0..done.length.div_ceil(8)).map(|word| memory.read64(at + word * 8));
            let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            bytes.truncate(done.length);
            got.push(ReceivedFrame {
                done: *done,
                present: completions.present(i).to_vec(),
                bytes,
            });
            owed += 1;
            received.store(got.len(), Ordering::Release);
        }
        if !holds.load(Ordering::Acquire) {
            engine.credit(std::mem::take(&mut owed));
        }
        if completions.as_slice().is_empty() {
            if is_quiet {
                return got;
            }
            if is_last {
                // Frames that arrived before the stop are still reported.
                engine.quiesce(HANG).unwrap();
                is_quiet = true;
                continue;
            }
            engine.wait(Duration::from_millis(1)).unwrap();
        }
    }
}

pub(super) fn compare(sender_side: &SenderFixture, received: &[ReceivedFrame]) {
    compare_except(sender_side, received, None);
}

/// Compares as [`compare`], but the frame `damaged` must be marked as damaged.
pub(super) fn compare_except(
    sender_side: &SenderFixture,
    received: &[ReceivedFrame],
    damaged: Option<usize>,
) {
    assert_eq!(received.len(), sender_side.metas.len());
    for (n, (received, meta)) in received.iter().zip(&sender_side.metas).enumerate() {
        let origin = received.done.origin.unwrap();
        assert_eq!(received.done.is_bad, damaged == Some(n), "frame {n}");
        if received.done.is_bad {
            assert_eq!(origin.sequence, meta.sequence);
            continue;
        }
        assert_fields!(origin =>
            sequence: meta.sequence, flags: meta.flags, packets_per_frame: meta.packets_per_frame,
            arrived: meta.arrived
        );
        assert_fields!(received.done => timestamp: meta.timestamp, length: meta.length);
        let is_there = |i: u32| received.present[i as usize / 64] >> (i % 64) & 1 == 1;
        for i in 0..meta.packets_per_frame {
            assert_eq!(is_there(i), !(u64::from(i) + n as u64).is_multiple_of(5));
        }
        let wrong = received
            .bytes
            .iter()
            .enumerate()
            .find(|(i, is)| **is != byte(n as u64, *i));
        assert_eq!(wrong, None, "frame {n}");
    }
}

#[test]
fn sender_and_receiver_exchange_frames() {
    let base = Shape::default();
    for shape in [
        base.clone(),
        Shape {
            rails: 3,
            packets_per_frame: 130,
            ..base.clone()
        },
        Shape {
            mode: Mode::Send,
            ..base.clone()
        },
        Shape {
            mode: Mode::Send,
            rails: 2,
            packets_per_frame: 130,
            ..base.clone()
        },
        Shape {
            service: Service::Uc,
            ..base
        },
    ] {
        let far = ReceiverFixture::start(&shape);
        let options = Options {
            chunk: 1500,
            ..options(&shape)
        };
        let mut sender_side = SenderFixture::new(far.address, shape.rails, options);
        sender_side.run(&lengths(300));
        assert_eq!(
            sender_side.counters.connections.get(),
            1,
            "{:?} {shape:?}",
            sender_side.why
        );
        // Frames on an unreliable connection may still be in flight.
        let begun = Instant::now();
        while shape.service == Service::Uc && far.received.load(Ordering::Acquire) < 300 {
            assert!(begun.elapsed() < HANG);
            std::thread::yield_now();
        }
        compare(&sender_side, &far.end());
        sender_side.sender.finish();
    }
}

#[test]
fn receiver_without_free_slots_applies_backpressure() {
    let shape = Shape::default();
    let far = ReceiverFixture::start(&shape);
    let mut sender_side = SenderFixture::new(far.address, 1, options(&shape));
    sender_side.run(&[64; 3]);
    far.holds.store(true, Ordering::Release);
    sender_side.publish(&[64; 16]);
    let lease = sender_side.reader.poll(16).unwrap();
    let (mut taken, begun) = (0, Instant::now());
    let away = loop {
        match sender_side.sender.send(&lease, taken) {
            Ok(frames) => taken += frames,
            Err(away) => break away,
        }
        assert!(begun.elapsed() < HANG);
    };
    assert_eq!(away, Unavailable::Full);
    assert!(taken <= SLOTS, "{taken} frames");
    far.holds.store(false, Ordering::Release);
    while taken < lease.len() {
        taken += sender_side.sender.send(&lease, taken).unwrap_or(0);
        assert!(begun.elapsed() < HANG);
    }
    lease.retire(daq_core::ring::Completion::Immediate);
    assert_eq!(sender_side.counters.connections.get(), 1);
    compare(&sender_side, &far.end());
}

/// Returns a NIC whose first `count` queue pairs return no completions until they are stopped, like a NIC that is slow
/// to report what it has acknowledged. `flushes` counts the calls of [`QueuePair::flush`].
fn slow_nic(count: usize, flushes: &Arc<AtomicUsize>) -> Arc<dyn Nic> {
    let flushes = flushes.clone();
    let created = AtomicUsize::new(0);
    Arc::new(HookedNic {
        on_create: Box::new(move |_, create| {
            let is_slow = created.fetch_add(1, Ordering::AcqRel) < count;
            let queue = create()?;
            Ok(Box::new(SlowQueuePair {
                queue,
                is_slow,
                flushes: flushes.clone(),
            }))
        }),
        ..HookedNic::new()
    })
}

struct SlowQueuePair {
    queue: Box<dyn QueuePair>,
    is_slow: bool,
    flushes: Arc<AtomicUsize>,
}

impl QueuePair for SlowQueuePair {
    fn endpoint(&self) -> Endpoint {
        self.queue.endpoint()
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), VerbsError> {
        self.queue.connect(peer)
    }

    fn post_send(&mut self, work: &WorkRequest<'_>) -> Result<(), VerbsError> {
        self.queue.post_send(work)
    }

    fn post_receive(&mut self, id: u64, into: &[Sge<'_>]) -> Result<(), VerbsError> {
        self.queue.post_receive(id, into)
    }

    fn poll(&mut self, done: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        if self.is_slow {
            return Ok(0);
        }
        self.queue.poll(done)
    }

    fn stop(&mut self) -> Result<(), VerbsError> {
        self.is_slow = false;
        self.queue.stop()
    }

    fn flush(&mut self) {
        self.flushes.fetch_add(1, Ordering::AcqRel);
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, VerbsError> {
        if self.is_slow {
            return Ok(false);
        }
        self.queue.wait(limit)
    }
}

#[test]
fn acknowledged_frame_is_reported_before_late_completion() {
    for (mode, rails) in [
        (Mode::Write, 1),
        (Mode::Write, 3),
        (Mode::Send, 1),
        (Mode::Send, 2),
    ] {
        for is_cut in [true, false] {
            let shape = Shape {
                mode,
                rails,
                ..Shape::default()
            };
            let flushes = Arc::<AtomicUsize>::default();
            let far = ReceiverFixture::with(&shape, slow_nic(rails, &flushes));
            let mut sender_side = SenderFixture::new(far.address, rails, options(&shape));
            // All frames that the credits allow. The sender gets acknowledgements for all of them, but the receiver has
            // seen no completion.
            sender_side.run(&lengths(SLOTS));
            assert_eq!(sender_side.counters.connections.get(), 1);
            // A receiver that waits for the next frame must flush the queue pairs of all other rails.
            let begun = Instant::now();
            while rails > 1 && flushes.load(Ordering::Acquire) == 0 {
                assert!(begun.elapsed() < HANG);
                std::thread::yield_now();
            }
            if is_cut {
                sender_side.faults.cut();
                sender_side.run(&lengths(20));
                assert_eq!(sender_side.counters.connections.get(), 2);
            }
            compare(&sender_side, &far.end());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn random_link_faults_deliver_every_frame_once(
        near_faults in proptest::collection::vec(("cut@|kill@", 1..600_u32), 0..4),
        far_faults in proptest::collection::vec(("cut-received@|cut@|kill@", 1..600_u32), 0..4),
        rails in 1..4_usize,
        is_send: bool,
    ) {
        let text = |faults: &[(String, u32)]| {
            let words = faults.iter().map(|(what, at)| format!("{what}{at}"));
            words.chain(["timeout=100".to_owned()]).collect::<Vec<_>>().join(",")
        };
        let mode = if is_send { Mode::Send } else { Mode::Write };
        let faults = text(&far_faults).parse().unwrap();
        let shape = Shape { rails, mode, faults, packets_per_frame: 70, ..Shape::default() };
        let far = ReceiverFixture::start(&shape);
        let faults = text(&near_faults).parse().unwrap();
        let mut sender_side = SenderFixture::with(far.address, rails, options(&shape), (true, faults));
        sender_side.run(&lengths(400));
        compare(&sender_side, &far.end());
    }
}
