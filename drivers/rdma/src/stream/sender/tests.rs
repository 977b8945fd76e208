//! Tests of senders on emulated NICs with a minimal receiver that implements only the wire protocol.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "panicking is how tests report; patterns are truncated"
)]

mod baseline;
mod end_to_end;
mod hooked_nic;
mod limits;
mod over_tcp;

use super::{Counters, Options, Sender, Unavailable};
use crate::connect::tcp;
use crate::emulated::{EmulatedNic, Faults};
use crate::verbs::{Nic, Service};
use crate::wire::Mode;
use baseline::{BaselineReceiver, Got, Shape, expected};
use daq_core::frame::{Clock, Flags, FrameMeta, Timestamp};
use daq_core::ledger::{ReaderLedger, RingLedger};
use daq_core::notify::Wait;
use daq_core::region::{HostOptions, Region};
use daq_core::ring::{Lease, Producer, Reader, Ring, RingOptions};
use hooked_nic::HookedNic;
use proptest::prelude::*;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time after which an operation counts as hanging.
const HANG: Duration = Duration::from_mins(2);

/// A ring with a sender that reads it.
struct SenderFixture {
    // Dropped before the ring, in the same order as in the engine.
    sender: Sender,
    reader: Reader,
    producer: Producer,
    faults: Faults,
    counters: Counters,
    metas: Vec<FrameMeta>,
    packets_per_frame: u32,
    /// The last reason for which the receiver was unavailable.
    why: Option<String>,
}

/// Returns byte `i` of frame `n`.
fn byte(n: u64, i: usize) -> u8 {
    (n as usize)
        .wrapping_mul(31)
        .wrapping_add(i.wrapping_mul(7)) as u8
}

fn options(shape: &Shape) -> Options {
    Options {
        mode: shape.mode,
        service: shape.service,
        wait: Wait::Event,
        timeout: Duration::from_millis(300),
        ..Options::new("there", shape.slot, shape.packets_per_frame)
    }
}

impl SenderFixture {
    fn new(address: SocketAddr, rails: usize, options: Options) -> Self {
        Self::with(address, rails, options, (true, Faults::none()))
    }

    fn with(
        address: SocketAddr,
        rails: usize,
        options: Options,
        (guarantee, faults): (bool, Faults),
    ) -> Self {
        let card = EmulatedNic::new(Ipv4Addr::LOCALHOST.into(), faults.clone()).unwrap();
        Self {
            faults,
            ..Self::with_nics(address, vec![card; rails], options, guarantee)
        }
    }

    fn with_nics(
        address: SocketAddr,
        nics: Vec<Arc<dyn Nic>>,
        options: Options,
        guarantee: bool,
    ) -> Self {
        let (slot, packets_per_frame) = (options.slot, options.packets_per_frame);
        let ring = RingOptions {
            packets_per_frame,
            supports_backpressure: guarantee,
            ..RingOptions::new("near", 16, slot)
        };
        let region = Region::host(ring.region_bytes(), HostOptions::default()).unwrap();
        let (ring, producer) = Ring::new(region, ring, RingLedger::default()).unwrap();
        let reader = ring.attach(guarantee, 16, ReaderLedger::default()).unwrap();
        let counters = Counters::default();
        let connector = tcp::connector(address);
        let options = Options {
            copied: !guarantee,
            ..options
        };
        let sender =
            Sender::new(nics, connector, ring.region(), options, counters.clone()).unwrap();
        Self {
            sender,
            reader,
            producer,
            faults: Faults::none(),
            counters,
            metas: Vec::new(),
            packets_per_frame,
            why: None,
        }
    }

    /// Publishes frames with these lengths.
    fn publish(&mut self, lengths: &[usize]) {
        for &length in lengths {
            let n = self.metas.len() as u64;
            let mut words = vec![0; (self.packets_per_frame as usize).div_ceil(64)];
            let mut meta = FrameMeta {
                timestamp: Timestamp {
                    ns: n * 1000 + 1,
                    clock: Clock::Kernel,
                },
                epoch: 3,
                ..FrameMeta::whole(n, length)
            };
            if self.packets_per_frame > 0 {
                meta.packets_per_frame = self.packets_per_frame - (n % 2) as u32;
                for i in
                    (0..meta.packets_per_frame).filter(|i| !(u64::from(*i) + n).is_multiple_of(5))
                {
                    words[i as usize / 64] |= 1 << (i % 64);
                    meta.arrived += 1;
                }
                meta.flags = Flags::INCOMPLETE;
            }
            let mut slots = self.producer.reserve(1);
            let into = &mut slots.bytes_mut().unwrap()[..length];
            into.iter_mut()
                .enumerate()
                .for_each(|(i, to)| *to = byte(n, i));
            slots.finish_with(meta, &words);
            assert_eq!(slots.publish(), 1);
            self.metas.push(meta);
        }
    }

    /// Sends all published frames as the engine does for a reader with a guarantee: waits while the receiver is
    /// unavailable.
    fn send_all(&mut self) {
        let begun = Instant::now();
        while let Some(lease) = self.reader.poll(16) {
            let mut taken = 0;
            while taken < lease.len() {
                match send(&mut self.sender, &lease, taken) {
                    Ok(frames) => taken += frames,
                    Err(away) => self.why = Some(away.to_string()),
                }
                assert!(begun.elapsed() < HANG, "timeout: {:?}", self.why);
            }
        }
    }

    /// Sends frames with these lengths, in batches that fit into the ring.
    fn run(&mut self, lengths: &[usize]) {
        for part in lengths.chunks(16) {
            self.publish(part);
            self.send_all();
        }
    }

    /// Checks that `got` contains every published frame exactly once and in order.
    fn compare(&self, got: &[Got]) {
        assert_eq!(got.len(), self.metas.len());
        for (n, (got, meta)) in got.iter().zip(&self.metas).enumerate() {
            same(got, meta, n as u64);
        }
    }
}

fn same(got: &Got, meta: &FrameMeta, number: u64) {
    assert_eq!(got.record, expected(meta, number));
    let arrived: u32 = got.words.iter().map(|word| word.count_ones()).sum();
    assert_eq!(arrived, meta.arrived, "frame {number}");
    for i in 0..meta.packets_per_frame {
        let is_there = got.words[i as usize / 64] >> (i % 64) & 1 == 1;
        assert_eq!(is_there, !(u64::from(i) + meta.sequence).is_multiple_of(5));
    }
    assert_eq!(got.bytes.len(), meta.length);
    let wrong = got
        .bytes
        .iter()
        .enumerate()
        .find(|(i, is)| **is != byte(meta.sequence, *i));
    assert_eq!(wrong, None, "frame {number}");
}

/// Calls `send` once, and checks that it returns in time.
fn send(sender: &mut Sender, lease: &Lease<'_>, from: usize) -> Result<usize, Unavailable> {
    sender.send(lease, from)
}

/// Lengths that cover all paths: empty, inline, one write, several writes.
const LENGTHS: [usize; 8] = [4096, 0, 1, 256, 257, 64, 4095, 1000];

fn lengths(frames: usize) -> Vec<usize> {
    (0..frames)
        .map(|i| LENGTHS[i * 5 % LENGTHS.len()])
        .collect()
}

#[test]
fn frames_arrive_by_every_method() {
    let base = Shape::default();
    for shape in [
        base.clone(),
        Shape {
            rails: 3,
            ..base.clone()
        },
        Shape {
            service: Service::Uc,
            ..base.clone()
        },
        Shape {
            mode: Mode::Send,
            ..base.clone()
        },
        Shape {
            mode: Mode::Send,
            rails: 2,
            ..base.clone()
        },
        Shape {
            packets_per_frame: 130,
            ..base.clone()
        },
        Shape {
            packets_per_frame: 3000,
            ..base.clone()
        },
        Shape {
            packets_per_frame: 130,
            mode: Mode::Send,
            ..base.clone()
        },
        Shape {
            mode: Mode::Send,
            service: Service::Ud,
            slot: 1000,
            slots: 64,
            ..base.clone()
        },
        Shape { slots: 2, ..base },
    ] {
        let far = BaselineReceiver::start(shape.clone());
        let options = Options {
            chunk: 1500,
            // A slow machine must not be mistaken for a receiver that accepts nothing.
            timeout: HANG,
            ..options(&shape)
        };
        let mut sender_side = SenderFixture::new(far.address, shape.rails, options);
        // Datagrams have no backpressure, so the number of frames is limited to the posted receives.
        let frames = if shape.service == Service::Ud {
            60
        } else {
            200
        };
        let lengths: Vec<_> = lengths(frames)
            .iter()
            .map(|l| *l.min(&shape.slot))
            .collect();
        sender_side.run(&lengths);
        // Frames that were sent on an unreliable service arrive later or never.
        let begun = Instant::now();
        while far.orders.came.load(Ordering::Acquire) < frames as u64 {
            assert!(begun.elapsed() < HANG, "frames of {shape:?}");
            sender_side.sender.tick();
        }
        sender_side.sender.finish();
        assert_eq!(
            sender_side.counters.connections.get(),
            1,
            "{:?}",
            sender_side.why
        );
        sender_side.compare(&far.end());
    }
}

#[test]
fn copied_frames_use_registered_memory() {
    let shape = Shape::default();
    let far = BaselineReceiver::start(shape.clone());
    let mut sender_side =
        SenderFixture::with(far.address, 1, options(&shape), (false, Faults::none()));
    sender_side.run(&lengths(100));
    sender_side.sender.finish();
    sender_side.compare(&far.end());
}

#[test]
fn full_receiver_is_reported_and_awaited() {
    let shape = Shape {
        slots: 4,
        ..Shape::default()
    };
    let far = BaselineReceiver::start(shape.clone());
    let mut sender_side = SenderFixture::new(far.address, 1, options(&shape));
    sender_side.run(&[100; 3]);
    far.orders.hold.store(true, Ordering::Release);
    let begun = Instant::now();
    // A grant that is still in progress would end the first stall.
    while !far.orders.is_holding.load(Ordering::Acquire) {
        assert!(begun.elapsed() < HANG);
        std::thread::yield_now();
    }
    sender_side.publish(&[100; 16]);
    let (mut taken, mut away) = (0, None);
    let lease = sender_side.reader.poll(16).unwrap();
    while away.is_none() {
        match sender_side.sender.send(&lease, taken) {
            Ok(frames) => taken += frames,
            Err(error) => away = Some(error),
        }
        assert!(begun.elapsed() < HANG);
    }
    assert_eq!(away, Some(Unavailable::Full));
    assert!(taken <= 4, "{taken} frames were sent into 4 slots");
    assert_eq!(sender_side.counters.stalls.get(), 1);
    // The receiver is still unavailable, and this call must return quickly.
    assert!(sender_side.sender.send(&lease, taken).is_err());
    far.orders.hold.store(false, Ordering::Release);
    while taken < lease.len() {
        taken += sender_side.sender.send(&lease, taken).unwrap_or(0);
        assert!(begun.elapsed() < HANG);
    }
    lease.retire(daq_core::ring::Completion::Immediate);
    sender_side.sender.finish();
    assert_eq!(sender_side.counters.connections.get(), 1);
    sender_side.compare(&far.end());
}

#[test]
fn receiver_reconnected_gets_remaining_frames() {
    for (rails, mode) in [(1, Mode::Write), (3, Mode::Write), (2, Mode::Send)] {
        let shape = Shape {
            mode,
            rails,
            ..Shape::default()
        };
        let far = BaselineReceiver::start(shape.clone());
        let mut sender_side = SenderFixture::new(far.address, rails, options(&shape));
        for round in 1..6 {
            far.orders.die_at.store(round * 37, Ordering::Release);
            sender_side.run(&lengths(50));
        }
        sender_side.sender.finish();
        assert!(far.orders.connections.load(Ordering::Acquire) > 3);
        sender_side.compare(&far.end());
    }
}

#[test]
fn rejected_region_and_missing_receives_are_retried() {
    let shape = Shape {
        faults: "timeout=50".parse().unwrap(),
        ..Shape::default()
    };
    for case in ["key", "receives"] {
        let far = BaselineReceiver::start(shape.clone());
        let order = if case == "key" {
            &far.orders.revoke
        } else {
            &far.orders.unready
        };
        order.store(true, Ordering::Release);
        let mut sender_side = SenderFixture::new(far.address, 1, options(&shape));
        sender_side.run(&lengths(40));
        sender_side.sender.finish();
        assert!(sender_side.counters.connections.get() > 1, "{case}");
        sender_side.compare(&far.end());
    }
}

#[test]
fn frame_size_mismatch_is_rejected_with_reason() {
    for (slot, packets_per_frame, received) in [
        (8192, 0, "slot = \"8192 B\""),
        (4096, 70, "packets_per_frame = 70"),
    ] {
        let shape = Shape::default();
        let far = BaselineReceiver::start(shape.clone());
        let options = Options {
            slot,
            packets_per_frame,
            ..options(&shape)
        };
        let mut sender_side = SenderFixture::new(far.address, 1, options);
        sender_side.publish(&[10]);
        let lease = sender_side.reader.poll(1).unwrap();
        let begun = Instant::now();
        loop {
            let away = sender_side.sender.send(&lease, 0).unwrap_err();
            if away.to_string().contains(received) {
                break;
            }
            assert!(begun.elapsed() < HANG, "{away}");
        }
        drop(lease);
        assert!(far.end().is_empty());
    }
}

#[test]
fn frames_dropped_during_outage_are_not_announced() {
    let shape = Shape::default();
    let far = BaselineReceiver::start(shape.clone());
    let mut sender_side = SenderFixture::new(far.address, 1, options(&shape));
    sender_side.run(&[100; 5]);
    // Acknowledgements stop, then the link is cut: the sender does not know which frames arrived.
    far.orders.hold.store(true, Ordering::Release);
    sender_side.faults.kill();
    sender_side.publish(&[100; 6]);
    let lease = sender_side.reader.poll(6).unwrap();
    let sent = sender_side.sender.send(&lease, 0).unwrap_or(0);
    lease.discard_after(sent);
    far.orders.hold.store(false, Ordering::Release);
    sender_side.run(&[100; 20]);
    sender_side.sender.finish();
    let got = far.end();
    // Each frame once and in order, including every frame that was reported as sent.
    let sequences: Vec<_> = got.iter().map(|got| got.record.sequence).collect();
    assert!(sequences.is_sorted_by(|a, b| a < b), "{sequences:?}");
    for n in (0..5 + sent as u64).chain(11..31) {
        assert!(sequences.contains(&n), "{n} is missing in {sequences:?}");
    }
}

#[test]
fn missing_receiver_does_not_hang() {
    let shape = Shape::default();
    let unused = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = unused.local_addr().unwrap();
    drop(unused);
    let mut sender_side = SenderFixture::new(address, 1, options(&shape));
    sender_side.publish(&[10]);
    let lease = sender_side.reader.poll(1).unwrap();
    let begun = Instant::now();
    while !sender_side
        .sender
        .send(&lease, 0)
        .unwrap_err()
        .to_string()
        .contains("refused")
    {
        assert!(begun.elapsed() < HANG);
    }
    drop(lease);
    sender_side.sender.tick();
    sender_side.sender.finish();
}

#[test]
fn receiver_exit_while_idle_is_detected() {
    let shape = Shape::default();
    let far = BaselineReceiver::start(shape.clone());
    let mut sender_side = SenderFixture::new(far.address, 1, options(&shape));
    sender_side.run(&[10]);
    assert!(sender_side.sender.connection.is_some());
    far.end();
    let begun = Instant::now();
    while sender_side.sender.connection.is_some() {
        sender_side.sender.tick();
        assert!(begun.elapsed() < HANG);
    }
}

#[test]
fn link_cut_while_idle_is_detected() {
    for mode in [Mode::Write, Mode::Send] {
        let faults: Faults = "timeout=20".parse().unwrap();
        let shape = Shape {
            mode,
            ..Shape::default()
        };
        let far = BaselineReceiver::start(shape.clone());
        let mut sender_side =
            SenderFixture::with(far.address, 1, options(&shape), (true, faults.clone()));
        sender_side.run(&[10]);
        faults.cut();
        let begun = Instant::now();
        while sender_side.sender.connection.is_some() {
            sender_side.sender.tick();
            assert!(begun.elapsed() < HANG);
        }
        sender_side.run(&[10; 5]);
        sender_side.sender.finish();
        sender_side.compare(&far.end());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn random_faults_deliver_every_frame_once(
        near_faults in proptest::collection::vec(("cut@|kill@", 1..400_u32), 0..4),
        far_faults in proptest::collection::vec(("cut-received@|cut@", 1..400_u32), 0..4),
        dies in proptest::collection::vec(1..150_u64, 0..3),
        rails in 1..4_usize,
        is_send: bool,
    ) {
        let text = |faults: &[(String, u32)]| {
            let words = faults.iter().map(|(what, at)| format!("{what}{at}"));
            words.chain(["timeout=100".to_owned()]).collect::<Vec<_>>().join(",")
        };
        let mode = if is_send { Mode::Send } else { Mode::Write };
        let faults: Faults = text(&far_faults).parse().unwrap();
        let shape = Shape { mode, rails, faults, ..Shape::default() };
        let far = BaselineReceiver::start(shape.clone());
        let faults = text(&near_faults).parse().unwrap();
        let mut sender_side = SenderFixture::with(far.address, rails, options(&shape), (true, faults));
        let mut dies = dies.into_iter();
        for part in lengths(150).chunks(16) {
            if far.orders.die_at.load(Ordering::Acquire) == 0 && let Some(at) = dies.next() {
                far.orders.die_at.store(at, Ordering::Release);
            }
            sender_side.run(part);
        }
        sender_side.sender.finish();
        sender_side.compare(&far.end());
    }
}
