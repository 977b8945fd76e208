//! Tests of sender and receiver over the transport `tcp`, with connections that are split and cut.

use super::end_to_end::{ReceiverFixture, compare, compare_except};
use super::*;
use crate::connect::exchange::{Frame, Rails};
use crate::tcp::TcpNic;
use crate::verbs::{Endpoint, Transport};
use crate::wire::Hello;
use daq_testkit::{Random, Relay};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

fn sender(address: SocketAddr, shape: &Shape, guarantee: bool) -> SenderFixture {
    let options = Options {
        chunk: usize::MAX,
        ..options(shape)
    };
    SenderFixture::with_nics(address, TcpNic::rails(shape.rails), options, guarantee)
}

fn receiver(shape: &Shape) -> ReceiverFixture {
    ReceiverFixture::with(shape, TcpNic::rails(1).remove(0))
}

#[test]
fn frames_arrive_over_connections() {
    for (rails, packets_per_frame) in [(1, 0), (3, 130)] {
        let shape = Shape {
            rails,
            packets_per_frame,
            ..Shape::default()
        };
        let far = receiver(&shape);
        let mut near = sender(far.address, &shape, true);
        near.run(&lengths(300));
        assert_eq!(near.counters.connections.get(), 1, "{:?}", near.why);
        compare(&near, &far.end());
        near.sender.finish();
    }
}

/// A ring without a guarantee passes copies of its frames to the sender.
#[test]
fn copied_frames_arrive() {
    let shape = Shape::default();
    let far = receiver(&shape);
    let mut near = sender(far.address, &shape, false);
    near.run(&lengths(100));
    compare(&near, &far.end());
}

#[test]
fn frames_arrive_in_pieces_of_any_size() {
    let shape = Shape {
        rails: 2,
        packets_per_frame: 70,
        ..Shape::default()
    };
    let far = receiver(&shape);
    let relay = Relay::to(far.address);
    relay.split(37);
    let mut near = sender(relay.address(), &shape, true);
    near.run(&lengths(40));
    assert_eq!(near.counters.connections.get(), 1, "{:?}", near.why);
    compare(&near, &far.end());
}

/// A frame with a flipped bit is marked as damaged, and only this frame. The connection continues.
#[test]
fn flipped_bit_is_detected_by_checksums() {
    let shape = Shape {
        packets_per_frame: 4096,
        ..Shape::default()
    };
    // A batch with one frame consists of a block of 88 bytes, the payload of 4096 bytes, and the record, most of which is
    // the bitmap. Acknowledgements of credits may be sent before it.
    for bit_in in [88 + 2000, 88 + 4096 + 72 + 256] {
        let far = receiver(&shape);
        let relay = Relay::to(far.address);
        let options = Options {
            has_checksums: true,
            chunk: usize::MAX,
            ..options(&shape)
        };
        let mut near = SenderFixture::with_nics(relay.address(), TcpNic::rails(1), options, true);
        near.run(&lengths(20));
        relay.flip_bit_after(bit_in);
        near.run(&[4096]);
        near.run(&lengths(20));
        assert_eq!(near.counters.connections.get(), 1, "{:?}", near.why);
        let damaged = far.damaged.clone();
        compare_except(&near, &far.end(), Some(20));
        assert_eq!(damaged.load(Ordering::Acquire), 1, "{bit_in}");
    }
}

#[test]
fn receiver_that_stalls_is_detected_and_gets_every_frame() {
    let shape = Shape::default();
    let far = receiver(&shape);
    let relay = Relay::to(far.address);
    let mut near = sender(relay.address(), &shape, true);
    near.run(&lengths(20));
    relay.stall(true);
    near.publish(&lengths(10));
    let lease = near.reader.poll(16).unwrap();
    let (mut taken, begun) = (0, Instant::now());
    // The sender reports the receiver as unavailable once nothing was acknowledged for several seconds.
    loop {
        match near.sender.send(&lease, taken) {
            Ok(frames) => taken += frames,
            // The stall may also keep credits back, so that no frame is in flight until the connection is checked.
            Err(Unavailable::Full) => {}
            Err(Unavailable::Disconnected(_)) => break,
        }
        assert!(begun.elapsed() < HANG);
    }
    relay.stall(false);
    while taken < lease.len() {
        taken += near.sender.send(&lease, taken).unwrap_or(0);
        assert!(begun.elapsed() < HANG);
    }
    lease.retire(daq_core::ring::Completion::Immediate);
    assert!(near.counters.connections.get() >= 2);
    compare(&near, &far.end());
}

#[test]
fn other_transport_is_rejected_with_reason() {
    let shape = Shape::default();
    let far = receiver(&shape);
    let mut near = SenderFixture::new(far.address, 1, options(&shape));
    near.publish(&[64]);
    let begun = Instant::now();
    loop {
        let lease = near.reader.poll(1);
        let why = lease.map_or_else(String::new, |lease| {
            near.sender
                .send(&lease, 0)
                .map_or_else(|away| away.to_string(), |_| String::new())
        });
        if why.contains(
            "the receiver has transport = \"tcp\", but this sink has transport = \"rdma\"",
        ) {
            break;
        }
        near.publish(&[64]);
        assert!(begun.elapsed() < HANG, "{why}");
    }
    assert!(far.end().is_empty());
}

/// A sender that stops in the middle of its handshake must not delay another sender for long.
#[test]
fn stalled_handshake_makes_room_for_another_sender() {
    let shape = Shape::default();
    let far = receiver(&shape);
    let hello = Hello {
        rails: 1,
        packets_per_frame: shape.packets_per_frame,
        slot: shape.slot as u64,
        stream: 77,
        ..Hello::default()
    };
    let rails = Rails {
        service: Service::Rc,
        transport: Transport::Tcp,
        endpoints: vec![Endpoint::default()],
        greetings: vec![hello.encode()],
    };
    let mut stalled = TcpStream::connect(far.address).unwrap();
    stalled.write_all(&Frame::Hello(rails).encode()).unwrap();
    // The first byte of the answer: the receiver now waits for the last message.
    stalled.read_exact(&mut [0]).unwrap();
    // A part of a message must not block the receiver either.
    stalled.write_all(&Frame::Ready.encode()[..5]).unwrap();
    let mut near = sender(far.address, &shape, true);
    near.run(&lengths(20));
    // The receiver has given up the stalled sender: it closes the connection, with or without unread bytes.
    stalled.set_read_timeout(Some(HANG)).unwrap();
    let mut rest = Vec::new();
    if let Err(error) = stalled.read_to_end(&mut rest) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    compare(&near, &far.end());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn random_cuts_deliver_every_frame_once(seed in 1..u64::MAX, rails in 1..4_usize, cuts in 1..6_u64, piece in 1..70_000_u64) {
        let shape = Shape { rails, packets_per_frame: 70, ..Shape::default() };
        let far = receiver(&shape);
        let relay = Relay::to(far.address);
        relay.split(piece);
        let mut near = sender(relay.address(), &shape, true);
        let mut random = Random(seed);
        for _ in 0..cuts {
            relay.cut_after(random.below(150_000));
            near.run(&lengths(80));
        }
        near.run(&lengths(20));
        compare(&near, &far.end());
    }
}
