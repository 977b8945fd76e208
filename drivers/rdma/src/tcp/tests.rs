//! Tests of queue pairs over TCP: two queue pairs, and one queue pair with a peer that this test implements.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "panicking is how tests report; patterns are truncated"
)]

use super::join::{JoinKey, Joins};
use super::sys;
use super::wire::{HEAD, Head, Message};
use super::*;
use crate::verbs::{Payload, Service, Side, Status, Verb, WorkCompletion, WorkRequest};
use crate::wait::wait_any;
use daq_core::region::HostOptions;
use daq_testkit::{Relay, TIMEOUT};
use proptest::prelude::*;
use std::any::Any;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const OPTIONS: QueuePairOptions = QueuePairOptions {
    service: Service::Rc,
    sends: 64,
    receives: 256,
    sges: 1,
    inline: 64,
    events: true,
};

/// Size of the memory of each side in bytes.
const BYTES: usize = 1 << 20;

/// A queue pair with memory.
struct End {
    queue_pair: Box<dyn QueuePair>,
    memory: MemoryRegion,
    nic: TcpNic,
    completions: Vec<WorkCompletion>,
}

impl End {
    fn new(access: Access) -> Self {
        let nic = TcpNic::default();
        let region = Region::host(BYTES, HostOptions::default()).unwrap();
        let memory = nic
            .register(&region, RegistrationMethod::Host, access)
            .unwrap();
        Self {
            queue_pair: nic.create_queue_pair(&OPTIONS).unwrap(),
            memory,
            nic,
            completions: Vec::new(),
        }
    }

    fn over_tcp(&mut self) -> &mut TcpQueuePair {
        let any: &mut dyn Any = &mut *self.queue_pair;
        any.downcast_mut().unwrap()
    }

    /// Posts a write of `bytes` bytes of this memory at `from` to the peer's memory at `to`.
    fn write(&mut self, peer: (u64, u32), (from, to, bytes): (usize, u64, usize), id: u64) {
        let sge = [self.memory.sge(from, bytes)];
        let work = WorkRequest {
            id,
            verb: Verb::write(peer.0 + to, peer.1, Some(u32::try_from(id).unwrap())),
            payload: Payload::Memory(&sge),
            signaled: true,
        };
        self.queue_pair.post_send(&work).unwrap();
    }

    fn place(&self) -> (u64, u32) {
        (self.memory.address(), self.memory.rkey())
    }

    fn poll(&mut self) {
        let mut done = [WorkCompletion::default(); 16];
        let count = self.queue_pair.poll(&mut done).unwrap();
        self.completions.extend(&done[..count]);
    }

    fn bytes(&self, at: usize, bytes: usize) -> Vec<u8> {
        sys::load(self.memory.region(), at, bytes)
    }

    fn statuses(&self) -> Vec<Status> {
        self.completions.iter().map(|done| done.status).collect()
    }
}

/// Calls `step` until it returns true.
fn until(mut step: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !step() {
        assert!(
            begun.elapsed() < TIMEOUT,
            "nothing happened for a long time"
        );
        std::thread::yield_now();
    }
}

fn streams(listener: &TcpListener, to: SocketAddr) -> (TcpStream, TcpStream) {
    let near = TcpStream::connect(to).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Returns two connected queue pairs; the second one's memory has this access. With a relay, its connection is split
/// into pieces of up to `piece` bytes.
fn pair(access: Access, piece: Option<u64>) -> (End, End, Option<Relay>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let relay = piece.map(|piece| {
        let relay = Relay::to(address);
        relay.split(piece);
        relay
    });
    let to = relay.as_ref().map_or(address, Relay::address);
    let (near, far) = streams(&listener, to);
    let mut ends = (End::new(Access::WRITE), End::new(access), relay);
    ends.0.over_tcp().join(near).unwrap();
    ends.1.over_tcp().join(far).unwrap();
    ends
}

/// Returns a queue pair with memory, and the stream of its peer.
fn with_peer() -> (End, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (near, far) = streams(&listener, listener.local_addr().unwrap());
    let mut end = End::new(Access::WRITE);
    end.over_tcp().join(far).unwrap();
    (end, near)
}

fn block(messages: &[Message]) -> Vec<u8> {
    let mut block = Vec::new();
    let head = Head {
        count: messages.len(),
        ..Head::default()
    };
    head.encode(messages.iter().copied(), &mut block);
    block
}

#[derive(Clone, Debug)]
struct Write1 {
    bytes: usize,
    is_inline: bool,
    has_immediate: bool,
}

fn writes() -> impl Strategy<Value = Vec<Write1>> {
    let bytes = prop_oneof![
        Just(0_usize),
        Just(8),
        1..9_usize,
        1..65_usize,
        1..20_000_usize
    ];
    let one = (bytes, any::<bool>(), any::<bool>());
    let one = one.prop_map(|(bytes, is_inline, has_immediate)| Write1 {
        bytes,
        is_inline: is_inline && bytes <= 64,
        has_immediate,
    });
    prop::collection::vec(one, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Random writes, over a connection that is split at random places, must be stored exactly, and complete in order.
    #[test]
    fn writes_arrive_exactly(writes in writes(), piece in prop_oneof![1..40_u64, 1..300_000_u64]) {
        let (mut near, mut far, _relay) = pair(Access::WRITE, Some(piece));
        for id in 0..256 {
            far.queue_pair.post_receive(id, &[]).unwrap();
        }
        let pattern: Vec<u8> = (0..BYTES).map(|i| (i * 7 % 251) as u8 + 1).collect();
        sys::store(near.memory.region(), 0, &pattern).unwrap();
        let (place, mut posted, mut at) = (far.place(), 0, 0);
        let mut places = Vec::new();
        let sent = |end: &End| end.completions.iter().filter(|done| done.side == Side::Sent).count();
        until(|| {
            while posted < writes.len() && posted - sent(&near) < 64 {
                let Write1 { bytes, is_inline, has_immediate } = writes[posted];
                let from = (posted * 131) % 1000;
                let verb = Verb::write(place.0 + at as u64, place.1, has_immediate.then_some(posted as u32));
                let sge = [near.memory.sge(from, bytes)];
                let payload = if is_inline { Payload::Inline(&pattern[from..from + bytes]) } else { Payload::Memory(&sge) };
                let work = WorkRequest { id: posted as u64, verb, payload, signaled: true };
                near.queue_pair.post_send(&work).unwrap();
                places.push((from, at, bytes));
                // Words are stored as a whole, so they are aligned.
                at = (at + bytes).next_multiple_of(8);
                posted += 1;
            }
            near.poll();
            far.poll();
            sent(&near) == writes.len()
        });
        until(|| {
            far.poll();
            far.completions.len() == writes.iter().filter(|write| write.has_immediate).count()
        });
        for (i, done) in near.completions.iter().enumerate() {
            prop_assert_eq!((done.id, done.status), (i as u64, Status::Success));
        }
        let immediates = writes.iter().enumerate().filter(|(_, write)| write.has_immediate);
        for (done, (i, write)) in far.completions.iter().zip(immediates) {
            prop_assert_eq!((done.immediate, done.bytes as usize, done.status), (Some(i as u32), write.bytes, Status::Success));
        }
        let mut end = 0;
        for (from, to, bytes) in places {
            prop_assert!(far.bytes(to, bytes) == pattern[from..from + bytes]);
            prop_assert!(far.bytes(end, to - end).iter().all(|byte| *byte == 0), "bytes between writes must not change");
            end = to + bytes;
        }
        prop_assert!(far.bytes(end, 64).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn garbage_changes_nothing(bytes in prop::collection::vec(any::<u8>(), HEAD..300)) {
        let (mut end, mut peer) = with_peer();
        end.queue_pair.post_receive(5, &[]).unwrap();
        peer.write_all(&bytes).unwrap();
        until(|| {
            end.poll();
            !end.completions.is_empty()
        });
        prop_assert_eq!(end.statuses(), [Status::Other(0)]);
        prop_assert!(end.bytes(0, BYTES).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn write_without_right_is_refused() {
    type Place = fn(&End) -> (u64, u32);
    let places: [(Place, Access); 4] = [
        (
            |far| (far.memory.address(), far.memory.rkey() ^ 1),
            Access::WRITE,
        ),
        (
            |far| (far.memory.address() - 1, far.memory.rkey()),
            Access::WRITE,
        ),
        (
            |far| (far.memory.address() + BYTES as u64 - 99, far.memory.rkey()),
            Access::WRITE,
        ),
        (End::place, Access::default()),
    ];
    for (place, access) in places {
        let (mut near, mut far, _) = pair(access, None);
        sys::store(near.memory.region(), 0, &[9; 100]).unwrap();
        far.queue_pair.post_receive(0, &[]).unwrap();
        let allowed = far.place();
        if access == Access::WRITE {
            near.write(allowed, (0, 4096, 100), 1);
        }
        near.write(place(&far), (0, 0, 100), 2);
        near.write(allowed, (0, 8192, 100), 3);
        until(|| {
            near.poll();
            far.poll();
            near.completions.len() >= 2 && far.completions.len() == 1
        });
        let failed = [Status::RemoteAccess, Status::Flushed];
        let (done, received) = (near.statuses(), far.statuses());
        if access == Access::WRITE {
            assert_eq!(done[0], Status::Success);
            assert_eq!((&done[1..], received), (&failed[..], vec![Status::Success]));
            assert_eq!(far.bytes(4096, 100), [9; 100]);
        } else {
            assert_eq!((&done[..], received), (&failed[..], vec![Status::Flushed]));
        }
        assert!(far.bytes(0, 4096).iter().all(|byte| *byte == 0));
        assert!(far.bytes(8192, BYTES - 8192).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn immediate_without_receive_is_refused() {
    let (mut near, mut far, _) = pair(Access::WRITE, None);
    near.write(far.place(), (0, 0, 8), 1);
    until(|| {
        near.poll();
        far.poll();
        !near.completions.is_empty()
    });
    assert_eq!(near.statuses(), [Status::NotReady]);
}

#[test]
fn memory_is_not_written_after_its_registration_ends() {
    let (mut near, mut far, _) = pair(Access::WRITE, None);
    sys::store(near.memory.region(), 0, &[9; 100]).unwrap();
    for id in 0..2 {
        far.queue_pair.post_receive(id, &[]).unwrap();
    }
    let place = far.place();
    near.write(place, (0, 0, 100), 1);
    until(|| {
        near.poll();
        far.poll();
        near.completions.len() == 1
    });
    let region = far.memory.region().clone();
    far.memory = far
        .nic
        .register(&region, RegistrationMethod::Host, Access::WRITE)
        .unwrap();
    near.write(place, (0, 4096, 100), 2);
    until(|| {
        near.poll();
        far.poll();
        near.completions.len() == 2
    });
    assert_eq!(near.statuses(), [Status::Success, Status::RemoteAccess]);
    assert_eq!(sys::load(&region, 0, 100), [9; 100]);
    assert!(sys::load(&region, 4096, 100).iter().all(|byte| *byte == 0));
}

/// A reader of a word, such as the credits of a stream, must never see a part of it.
#[test]
fn word_is_stored_as_a_whole() {
    let (mut end, mut peer) = with_peer();
    let (address, rkey) = end.place();
    let message = Message {
        address: address + 16,
        bytes: 8,
        rkey,
        immediate: None,
        is_urgent: true,
    };
    let word = 0x1122_3344_5566_7788_u64.to_le_bytes();
    let bytes = [block(&[message]), word.to_vec()].concat();
    for (i, byte) in bytes.iter().enumerate() {
        assert_eq!(end.bytes(16, 8), [0; 8], "after {i} bytes");
        peer.write_all(&[*byte]).unwrap();
        for _ in 0..20 {
            end.poll();
        }
    }
    until(|| {
        end.poll();
        end.bytes(16, 8) == word
    });
    // The acknowledgement of the one message.
    let mut answer = [0; HEAD];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(Head::decode(&answer).unwrap().done, 1);
}

/// Messages that are not urgent are acknowledged together: by the next urgent one, and before the thread sleeps.
#[test]
fn messages_are_acknowledged_together() {
    let (mut end, mut peer) = with_peer();
    let (address, rkey) = end.place();
    let messages = |urgent: &[bool]| {
        let message = |&is_urgent: &bool| Message {
            address,
            bytes: 0,
            rkey,
            immediate: None,
            is_urgent,
        };
        block(&urgent.iter().map(message).collect::<Vec<_>>())
    };
    let mut answer = [0; HEAD];
    peer.write_all(&messages(&[false, false, false, true]))
        .unwrap();
    let begun = Instant::now();
    while peer_has_nothing(&peer) && begun.elapsed() < TIMEOUT {
        end.poll();
    }
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(Head::decode(&answer).unwrap().done, 4);
    peer.write_all(&messages(&[false, false])).unwrap();
    until(|| {
        end.poll();
        end.over_tcp().done == 6
    });
    assert!(end.queue_pair.wait(Duration::ZERO).unwrap());
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(Head::decode(&answer).unwrap().done, 6);
    peer.write_all(&messages(&[false, false])).unwrap();
    until(|| {
        end.poll();
        end.over_tcp().done == 8
    });
    end.queue_pair.flush();
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(Head::decode(&answer).unwrap().done, 8);
}

#[test]
fn acknowledgements_are_requested_in_the_set_interval() {
    let (mut end, mut peer) = with_peer();
    end.queue_pair.set_acknowledgement_interval(3);
    let place = end.place();
    for id in 0..6 {
        end.write(place, (0, 0, 0), id);
    }
    end.queue_pair.flush();
    let bytes = block(&[Message::default(); 6]).len();
    let mut sent = vec![0; bytes];
    peer.read_exact(&mut sent).unwrap();
    let urgent: Vec<_> = (0..6)
        .map(|i| Message::decode(&sent, i).unwrap().is_urgent)
        .collect();
    assert_eq!(urgent, [false, false, true, false, false, true]);
}

/// A wait for two queue pairs must end when data arrives for either of them, and must send what both have stored.
#[test]
fn wait_ends_with_event_of_any_queue_pair() {
    let (mut ends, mut peers): (Vec<_>, Vec<_>) = (0..2).map(|_| with_peer()).unzip();
    let wait = |ends: &mut [End], limit| {
        let begun = Instant::now();
        let queue_pairs = ends.iter_mut().map(|end| &mut *end.queue_pair);
        assert!(wait_any(queue_pairs, limit).unwrap());
        begun.elapsed()
    };
    let short = Duration::from_millis(20);
    assert!(wait(&mut ends, short) >= short);
    for i in [1, 0] {
        let place = ends[1 - i].place();
        ends[1 - i].write(place, (0, 0, 0), 1);
        peers[i].write_all(&block(&[])).unwrap();
        assert!(wait(&mut ends, TIMEOUT) < TIMEOUT);
        peers[1 - i].read_exact(&mut [0; HEAD]).unwrap();
        ends[i].poll();
    }
    // A queue pair without a stream does not end the wait at once.
    let mut new = End::new(Access::WRITE);
    let queue_pairs = [&mut new, &mut ends[0]].map(|end| &mut *end.queue_pair);
    assert!(wait_any(queue_pairs.into_iter(), TIMEOUT).unwrap());
}

/// The peer must be able to read a rejection although it was sent after requests that fill all socket buffers, and although
/// the queue pair does not read what the peer has sent after the rejected message.
#[test]
fn rejection_is_sent_after_full_socket_buffer() {
    let (mut end, mut peer) = with_peer();
    let place = end.place();
    for id in 0..16 {
        end.write(place, (0, 0, BYTES), id);
    }
    until(|| {
        end.poll();
        end.queue_pair.is_blocked()
    });
    let message = Message {
        address: place.0,
        bytes: 8,
        rkey: place.1 ^ 1,
        immediate: None,
        is_urgent: false,
    };
    let unread = [block(&[message]), vec![0; 1 << 15]].concat();
    peer.write_all(&unread).unwrap();
    until(|| {
        end.poll();
        end.over_tcp().refusal.is_some()
    });
    peer.set_nonblocking(true).unwrap();
    let (mut sent, mut part) = (Vec::new(), vec![0; BYTES]);
    until(|| {
        end.poll();
        match peer.read(&mut part) {
            Ok(0) => return true,
            Ok(bytes) => sent.extend_from_slice(&part[..bytes]),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        false
    });
    let last = Head::decode(sent.last_chunk::<HEAD>().unwrap()).unwrap();
    assert_eq!(last.refusal, Some(Status::RemoteAccess));
    assert!(sent.len() > 16 * BYTES);
    assert!(end.completions.is_empty());
    drop(peer);
    until(|| {
        end.poll();
        end.completions.len() == 16
    });
}

fn peer_has_nothing(peer: &TcpStream) -> bool {
    peer.set_nonblocking(true).unwrap();
    let result = peer.peek(&mut [0]);
    peer.set_nonblocking(false).unwrap();
    result.is_err()
}

#[test]
fn impossible_acknowledgement_fails() {
    let (mut end, mut peer) = with_peer();
    let place = end.place();
    end.write(place, (0, 0, 8), 1);
    let mut block = Vec::new();
    let head = Head {
        done: 2,
        ..Head::default()
    };
    head.encode(std::iter::empty(), &mut block);
    peer.write_all(&block).unwrap();
    until(|| {
        end.poll();
        !end.completions.is_empty()
    });
    assert_eq!(end.statuses(), [Status::Other(0)]);
}

#[test]
fn requests_and_receives_complete_after_peer_has_ended() {
    let (mut end, peer) = with_peer();
    for id in 0..3 {
        end.queue_pair.post_receive(id, &[]).unwrap();
    }
    let place = end.place();
    end.write(place, (0, 0, 8), 7);
    drop(peer);
    until(|| {
        end.poll();
        end.completions.len() == 4
    });
    let rest = [Status::Flushed; 3];
    assert_eq!(end.statuses()[0], Status::Unanswered);
    assert_eq!(end.statuses()[1..], rest);
    // Later requests are flushed, and do not wait.
    end.write(place, (0, 0, 8), 8);
    end.poll();
    assert_eq!(end.completions.last().map(|done| done.id), Some(8));
}

#[test]
fn stopped_queue_pair_flushes_receives_after_arrived_messages() {
    let (mut near, mut far, _) = pair(Access::WRITE, None);
    for id in 0..3 {
        far.queue_pair.post_receive(id, &[]).unwrap();
    }
    near.write(far.place(), (0, 0, 8), 1);
    until(|| {
        near.poll();
        far.poll();
        !near.completions.is_empty()
    });
    far.queue_pair.stop().unwrap();
    until(|| {
        far.poll();
        far.completions.len() == 3
    });
    let flushed = Status::Flushed;
    assert_eq!(far.statuses(), [Status::Success, flushed, flushed]);
}

#[test]
fn stream_with_unknown_key_is_closed() {
    let joins = Joins::default();
    let mut end = End::new(Access::WRITE);
    let (key, mailbox) = end.over_tcp().expect();
    joins.expect(key, mailbox);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (mut wrong, stream) = streams(&listener, address);
    joins.deliver(JoinKey([1, 2, 3]), stream);
    assert_eq!(wrong.read(&mut [0; 8]).unwrap(), 0);
    let (right, stream) = streams(&listener, address);
    joins.deliver(key, stream);
    let mut peer = End::new(Access::WRITE);
    peer.over_tcp().join(right).unwrap();
    peer.write(end.place(), (0, 0, 0), 1);
    end.queue_pair.post_receive(1, &[]).unwrap();
    until(|| {
        peer.poll();
        end.poll();
        peer.completions.len() == 1 && end.completions.len() == 1
    });
    // The key is valid once.
    let (mut late, stream) = streams(&listener, address);
    joins.deliver(key, stream);
    late.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    assert_eq!(late.read(&mut [0; 8]).unwrap(), 0);
}
