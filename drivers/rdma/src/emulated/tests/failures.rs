//! One test for each kind of failure.

use super::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

fn faults(text: &str) -> Faults {
    text.parse().unwrap()
}

fn simple(id: u64, verb: Verb, bytes: &[u8]) -> WorkRequest<'_> {
    WorkRequest {
        id,
        verb,
        payload: Payload::Inline(bytes),
        signaled: true,
    }
}

const SEND: Verb = Verb::Send { immediate: None };

/// Returns the id and the status of the next completion.
fn end(queue: &mut dyn QueuePair) -> (u64, Status) {
    let done = next(queue);
    (done.id, done.status)
}

fn refused_write(verb: impl Fn(&MemoryRegion) -> Verb, access: Access) {
    let mut two = healthy(Service::Rc, 4096);
    two.to.post_receive(9, &[]).unwrap();
    write(&mut two, 0, &[1; 8], 0, None);
    assert_eq!(end(&mut *two.from), (0, Status::Success));
    let far = two
        .nic
        .register(&region(4096), RegistrationMethod::Host, access)
        .unwrap();
    two.from
        .post_send(&simple(1, verb(&far), &[7; 16]))
        .unwrap();
    two.from.post_send(&simple(2, SEND, &[])).unwrap();
    assert_eq!(end(&mut *two.from), (1, Status::RemoteAccess));
    assert_eq!(end(&mut *two.from), (2, Status::Flushed));
    assert_eq!(end(&mut *two.to), (9, Status::Flushed));
    assert!(
        load(far.region(), 0, far.region().bytes())
            .iter()
            .all(|byte| *byte == 0)
    );
    // Requests that are posted after the failure are flushed too, on both sides.
    two.from.post_send(&simple(3, SEND, &[])).unwrap();
    assert_eq!(end(&mut *two.from), (3, Status::Flushed));
    two.to.post_receive(10, &[]).unwrap();
    assert_eq!(end(&mut *two.to), (10, Status::Flushed));
}

#[test]
fn write_without_permission_fails_both_queue_pairs() {
    let at = |address: u64, key: u32| Verb::write(address, key, None);
    refused_write(|far| at(far.address(), far.rkey() ^ 1), ANY);
    refused_write(|far| at(far.address(), far.lkey()), ANY);
    refused_write(|far| at(far.address() - 1, far.rkey()), ANY);
    refused_write(|far| at(far.address() + 4096 - 15, far.rkey()), ANY);
    refused_write(|far| at(u64::MAX - 3, far.rkey()), ANY);
    let local = Access {
        remote_write: false,
        ..ANY
    };
    refused_write(|far| at(far.address(), far.rkey()), local);
}

#[test]
fn dropped_memory_region_is_rejected_and_key_not_reused() {
    let mut two = healthy(Service::Rc, 4096);
    let region = Arc::clone(two.far.region());
    let again = two
        .nic
        .register(&region, RegistrationMethod::Host, ANY)
        .unwrap();
    let (key, address) = (two.far.rkey(), two.far.address());
    two.far = again;
    assert_ne!(two.far.rkey(), key);
    let verb = Verb::write(address, key, None);
    two.from.post_send(&simple(0, verb, &[1; 8])).unwrap();
    assert_eq!(end(&mut *two.from), (0, Status::RemoteAccess));
    assert_eq!(load(&region, 0, 8), [0; 8]);
}

#[test]
fn dropped_local_memory_region_fails_its_work() {
    let mut two = healthy(Service::Rc, 4096);
    // The request waits for a receive.
    write(&mut two, 4, &[1; 8], 0, Some(1));
    two.near = two
        .near_card
        .register(&region(1), RegistrationMethod::Host, ANY)
        .unwrap();
    two.to.post_receive(1, &[]).unwrap();
    assert_eq!(end(&mut *two.from), (4, Status::Local));
}

/// Writes repeatedly until a write fails, and returns its status.
fn keep_writing(
    mut from: Box<dyn QueuePair>,
    near: &MemoryRegion,
    (address, key): (u64, u32),
) -> Status {
    let (bytes, mut done) = (near.region().bytes(), [WorkCompletion::default()]);
    for round in (0..=u8::MAX).cycle() {
        crate::emulated::sys::store(near.region(), 0, &vec![round; bytes]).unwrap();
        let verb = Verb::write(address, key, None);
        let sges = [near.sge(0, bytes)];
        let work = WorkRequest {
            id: 0,
            verb,
            payload: Payload::Memory(&sges),
            signaled: true,
        };
        from.post_send(&work).unwrap();
        while from.poll(&mut done).unwrap() == 0 {
            from.wait(LONG).unwrap();
        }
        if done[0].status != Status::Success {
            break;
        }
    }
    done[0].status
}

/// Lets a peer write continuously, calls `stop`, and checks that nothing is written after `stop` has returned.
fn nothing_later(
    stop: impl FnOnce(
        Box<dyn QueuePair>,
        MemoryRegion,
    ) -> (Option<Box<dyn QueuePair>>, Option<MemoryRegion>),
) -> Status {
    let Two {
        from,
        to,
        near,
        far,
        ..
    } = healthy(Service::Rc, 3 << 20);
    let memory = Arc::clone(far.region());
    let target = (far.address(), far.rkey());
    let writer = std::thread::spawn(move || keep_writing(from, &near, target));
    while load(&memory, 0, 1) < vec![3] {
        std::thread::yield_now();
    }
    let kept = stop(to, far);
    let before = load(&memory, 0, memory.bytes());
    let status = writer.join().unwrap();
    assert!(
        load(&memory, 0, memory.bytes()) == before,
        "memory was written after the stop"
    );
    drop(kept);
    status
}

#[test]
fn dropped_queue_pair_writes_nothing() {
    let status = nothing_later(|to, far| {
        drop(to);
        (None, Some(far))
    });
    assert_eq!(status, Status::Unanswered);
}

#[test]
fn dropped_queue_pair_disconnects_peer() {
    for _ in 0..50 {
        let mut two = healthy(Service::Rc, 4096);
        let memory = Arc::clone(two.far.region());
        two.to.post_receive(1, &[two.far.sge(0, 8)]).unwrap();
        write(&mut two, 0, &[1; 8], 0, None);
        assert_eq!(end(&mut *two.from), (0, Status::Success));
        // Once this stream is rejected, the NIC's listening thread no longer holds a reference to the queue pair.
        shut_out(&two.to.endpoint(), 0);
        drop((two.to, two.far));
        // A thread that still ran would keep the queue pair alive, and with it the receive and the memory.
        assert_eq!(Arc::strong_count(&memory), 1);
    }
}

#[test]
fn dropped_memory_region_is_never_written() {
    let status = nothing_later(|to, far| {
        drop(far);
        (Some(to), None)
    });
    assert_eq!(status, Status::RemoteAccess);
}

#[test]
fn peer_without_receives_is_not_ready() {
    let none = Faults::none();
    let mut two = two(Service::Rc, &faults("timeout=20"), &none, 4096);
    write(&mut two, 0, &[1; 8], 0, None);
    two.from.post_send(&simple(1, SEND, &[])).unwrap();
    assert_eq!(end(&mut *two.from), (0, Status::Success));
    assert_eq!(end(&mut *two.from), (1, Status::NotReady));
}

#[test]
fn send_waits_for_receive() {
    let mut two = healthy(Service::Rc, 4096);
    two.from.post_send(&simple(1, SEND, b"word")).unwrap();
    two.to.post_receive(5, &[two.far.sge(0, 4)]).unwrap();
    assert_eq!(end(&mut *two.to), (5, Status::Success));
    assert_eq!(load(two.far.region(), 0, 4), b"word");
    assert_eq!(end(&mut *two.from), (1, Status::Success));
}

#[test]
fn link_is_cut_at_configured_message() {
    let none = Faults::none();
    let mut two = two(Service::Rc, &faults("cut@3"), &none, 4096);
    for id in 0..5 {
        two.to.post_receive(10 + id, &[two.far.sge(0, 8)]).unwrap();
    }
    for id in 0..5_u8 {
        two.from
            .post_send(&simple(id.into(), SEND, &[id; 8]))
            .unwrap();
    }
    let ends: Vec<_> = (0..3).map(|_| end(&mut *two.to)).collect();
    assert_eq!(ends, [10, 11, 12].map(|id| (id, Status::Success)));
    let found: Vec<_> = (0..5).map(|_| end(&mut *two.from)).collect();
    let cut = found
        .iter()
        .position(|(_, status)| *status == Status::Unanswered)
        .unwrap();
    // The number of acknowledgements before the cut depends on timing, but the third must never arrive.
    assert!(cut <= 2, "{found:?}");
    for (id, status) in found {
        let wanted = match id.cmp(&(cut as u64)) {
            std::cmp::Ordering::Less => Status::Success,
            std::cmp::Ordering::Equal => Status::Unanswered,
            std::cmp::Ordering::Greater => Status::Flushed,
        };
        assert_eq!(status, wanted);
    }
    // The receiver has no pending request, so it does not detect the cut.
    let mut done = [WorkCompletion::default()];
    assert_eq!(two.to.poll(&mut done).unwrap(), 0);
    two.to.post_send(&simple(20, SEND, &[])).unwrap();
    assert_eq!(end(&mut *two.to), (20, Status::Unanswered));
    assert_eq!(end(&mut *two.to), (13, Status::Flushed));
}

#[test]
fn link_is_cut_by_receiver() {
    let none = Faults::none();
    let mut two = two(Service::Rc, &none, &faults("cut-received@1"), 4096);
    two.to.post_receive(1, &[]).unwrap();
    two.from.post_send(&simple(0, SEND, &[])).unwrap();
    assert_eq!(end(&mut *two.to), (1, Status::Success));
    // The acknowledgement may have arrived before the cut.
    let first = end(&mut *two.from).1;
    two.from.post_send(&simple(1, SEND, &[])).unwrap();
    let second = end(&mut *two.from).1;
    let is_one = [
        (Status::Success, Status::Unanswered),
        (Status::Unanswered, Status::Flushed),
    ];
    assert!(is_one.contains(&(first, second)), "{first:?} {second:?}");
}

#[test]
fn connect_to_missing_peer_times_out() {
    let nic = EmulatedNic::new(LOOPBACK, faults("timeout=20")).unwrap();
    let (mut here, gone) = (
        nic.create_queue_pair(&options(Service::Rc)).unwrap(),
        nic.create_queue_pair(&options(Service::Rc)).unwrap(),
    );
    let endpoint = gone.endpoint();
    drop(gone);
    here.connect(&endpoint).unwrap();
    here.post_send(&simple(0, SEND, &[])).unwrap();
    assert_eq!(end(&mut *here), (0, Status::Unanswered));
}

#[test]
fn unreliable_queue_pair_loses_silently() {
    let none = Faults::none();
    let mut two = two(Service::Uc, &faults("lose@2"), &none, 4096);
    two.to.post_receive(5, &[]).unwrap();
    two.to.post_receive(6, &[]).unwrap();
    let wrong = Verb::write(two.far.address(), !two.far.rkey(), Some(0));
    write(&mut two, 0, &[1; 8], 0, Some(1));
    write(&mut two, 1, &[2; 8], 24, Some(2));
    two.from.post_send(&simple(2, wrong, &[3; 8])).unwrap();
    write(&mut two, 3, &[4; 8], 8, Some(4));
    // No receive is posted for this write.
    write(&mut two, 4, &[5; 8], 16, Some(5));
    for id in 0..5 {
        assert_eq!(end(&mut *two.from), (id, Status::Success));
    }
    assert_eq!(next(&mut *two.to).immediate, Some(1));
    assert_eq!(next(&mut *two.to).immediate, Some(4));
    let wanted = [[1; 8], [4; 8], [0; 8], [0; 8]].concat();
    assert_eq!(load(two.far.region(), 0, 32), wanted);
    drop(two.to);
    write_after(&mut *two.from);
}

/// Checks that requests of an unreliable queue pair still succeed after its peer has disconnected.
fn write_after(from: &mut dyn QueuePair) {
    for id in 0..3 {
        from.post_send(&simple(id, SEND, &[])).unwrap();
        assert_eq!(end(from), (id, Status::Success));
    }
}

#[test]
fn datagram_is_one_packet_with_qkey() {
    let mut two = healthy(Service::Ud, 8192);
    assert_ne!(two.to.endpoint().qkey, 0);
    two.to.post_receive(5, &[two.far.sge(0, 4096)]).unwrap();
    let send = |two: &mut Two, bytes| {
        let sges = [two.near.sge(0, bytes)];
        let work = WorkRequest {
            id: 1,
            verb: SEND,
            payload: Payload::Memory(&sges),
            signaled: true,
        };
        two.from.post_send(&work)
    };
    assert_eq!(send(&mut two, 4097).unwrap_err().errno, libc::EINVAL);
    send(&mut two, 4096).unwrap();
    assert_eq!(next(&mut *two.to).bytes, 4096);
    let write = Verb::write(two.far.address(), two.far.rkey(), None);
    assert!(two.from.post_send(&simple(2, write, &[])).is_err());
}

#[test]
fn acknowledgement_delay_is_applied() {
    let held = faults("hold");
    let mut two = two(Service::Rc, &Faults::none(), &held, 4096);
    two.to.post_receive(1, &[]).unwrap();
    two.from.post_send(&simple(0, SEND, &[])).unwrap();
    assert_eq!(end(&mut *two.to), (1, Status::Success));
    let mut done = [WorkCompletion::default()];
    assert_eq!(two.from.poll(&mut done).unwrap(), 0);
    held.hold(false);
    assert_eq!(end(&mut *two.from), (0, Status::Success));
}

#[test]
fn completion_queue_overrun_is_reported() {
    let small = faults("completions=2");
    let mut two = two(Service::Rc, &Faults::none(), &small, 4096);
    for id in 0..3 {
        two.to.post_receive(id, &[]).unwrap();
    }
    for id in 0..3 {
        two.from.post_send(&simple(id, SEND, &[])).unwrap();
    }
    for id in 0..3 {
        assert_eq!(end(&mut *two.from), (id, Status::Success));
    }
    let mut done = [WorkCompletion::default()];
    assert_eq!(two.to.poll(&mut done).unwrap_err().errno, libc::EOVERFLOW);
    assert_eq!(two.nic.event(), Some(NicEvent::CompletionOverrun));
    assert_eq!(two.nic.event(), None);
}

#[test]
fn queue_pair_has_stated_capacity() {
    let mut two = healthy(Service::Rc, 4096);
    let verb = Verb::write(two.far.address(), two.far.rkey(), None);
    let mut work = simple(0, verb, &[1]);
    work.signaled = false;
    for _ in 0..63 {
        two.from.post_send(&work).unwrap();
    }
    work.signaled = true;
    two.from.post_send(&work).unwrap();
    // A completed request occupies its entry until its completion is collected.
    assert_eq!(two.from.post_send(&work).unwrap_err().errno, libc::ENOMEM);
    assert_eq!(end(&mut *two.from), (0, Status::Success));
    for _ in 0..64 {
        two.from.post_send(&work).unwrap();
        assert_eq!(end(&mut *two.from), (0, Status::Success));
    }
    work.signaled = false;
    for _ in 0..64 {
        two.from.post_send(&work).unwrap();
    }
    assert_eq!(two.from.post_send(&work).unwrap_err().errno, libc::ENOMEM);
    for id in 0..64 {
        two.to.post_receive(id, &[]).unwrap();
    }
    assert_eq!(
        two.to.post_receive(64, &[]).unwrap_err().errno,
        libc::ENOMEM
    );
}

#[test]
fn killed_queue_pair_flushes() {
    let mut two = two(Service::Rc, &faults("kill@1"), &Faults::none(), 4096);
    two.from.post_receive(7, &[]).unwrap();
    let verb = Verb::write(two.far.address(), two.far.rkey(), None);
    two.from.post_send(&simple(0, verb, &[1])).unwrap();
    let mut ends = vec![end(&mut *two.from), end(&mut *two.from)];
    ends.sort_by_key(|(id, _)| *id);
    // The request may have been acknowledged before the failure.
    assert!(
        [Status::Other(0), Status::Success].contains(&ends[0].1),
        "{ends:?}"
    );
    assert_eq!(ends[1], (7, Status::Flushed));
    two.from.post_send(&simple(1, verb, &[1])).unwrap();
    assert_eq!(end(&mut *two.from), (1, Status::Flushed));
}

#[test]
fn port_down_disconnects_its_links() {
    let faults = Faults::none();
    let mut two = two(Service::Rc, &faults, &Faults::none(), 4096);
    two.to.post_receive(1, &[]).unwrap();
    two.from.post_send(&simple(0, SEND, &[])).unwrap();
    assert_eq!(end(&mut *two.from), (0, Status::Success));
    faults.port(false);
    assert!(!two.near_card.port().unwrap().is_active);
    assert_eq!(two.near_card.event(), Some(NicEvent::PortDown));
    two.from.post_send(&simple(1, SEND, &[])).unwrap();
    assert_eq!(end(&mut *two.from), (1, Status::Unanswered));
    let mut other = two
        .near_card
        .create_queue_pair(&options(Service::Rc))
        .unwrap();
    assert_eq!(
        other.connect(&two.to.endpoint()).unwrap_err().errno,
        libc::ENETDOWN
    );
    faults.port(true);
    assert!(two.near_card.port().unwrap().is_active);
    assert_eq!(two.near_card.event(), Some(NicEvent::PortUp));
}

#[test]
fn message_too_long_fails_both_queue_pairs() {
    let mut two = healthy(Service::Rc, 4096);
    two.to.post_receive(1, &[two.far.sge(0, 7)]).unwrap();
    two.from.post_send(&simple(0, SEND, &[9; 8])).unwrap();
    assert_eq!(end(&mut *two.to), (1, Status::Local));
    assert_eq!(end(&mut *two.from), (0, Status::RemoteOperation));
    assert_eq!(load(two.far.region(), 0, 8), [0; 8]);
}

#[test]
fn registration_fault_is_applied() {
    let faults = faults("dma-buf=95,host=12");
    let nic = EmulatedNic::new(LOOPBACK, faults.clone()).unwrap();
    let region = region(1);
    let errno = |method| {
        nic.register(&region, method, ANY)
            .map_err(|error| error.errno)
            .err()
    };
    assert_eq!(errno(RegistrationMethod::DmaBuf), Some(95));
    assert_eq!(errno(RegistrationMethod::Host), Some(12));
    assert_eq!(errno(RegistrationMethod::Peer), None);
    faults.refuse(RegistrationMethod::Host, None);
    assert_eq!(errno(RegistrationMethod::Host), None);
}

#[test]
fn fault_options_are_parsed_or_rejected() {
    for text in [
        "",
        "cut@100,lose@5",
        " hold , down",
        "delay=5,timeout=1,completions=1,kill@9,cut-received@3,peer=22",
    ] {
        assert!(text.parse::<Faults>().is_ok(), "{text}");
    }
    for text in [
        "cut",
        "cut@0",
        "cut@x",
        "lose@-1",
        "completions=0",
        "held",
        "host=",
        "dma-buf@3",
        "host=99999999999",
    ] {
        let error = text.parse::<Faults>().unwrap_err().to_string();
        assert!(error.contains(text) && error.contains("cut@N"), "{error}");
    }
}

/// Opens a stream to queue pair `number` of a NIC, and waits until the NIC closes it.
fn shut_out(nic: &Endpoint, number: u32) {
    let mut pending_peer = TcpStream::connect((LOOPBACK, nic.lid)).unwrap();
    pending_peer.set_read_timeout(Some(LONG)).unwrap();
    let preamble = Preamble {
        to: (number, nic.psn),
        from: (1, 2),
        service: Service::Rc,
        qkey: 0,
    };
    pending_peer.write_all(&preamble.encode()).unwrap();
    match pending_peer.read(&mut [0]) {
        Ok(bytes) => assert_eq!(bytes, 0),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

#[test]
fn foreign_connections_do_not_disturb_links() {
    let mut two = healthy(Service::Rc, 4096);
    let endpoint = two.to.endpoint();
    let at = SocketAddr::new(LOOPBACK, endpoint.lid);
    let mut pending_peers = Vec::new();
    for i in 0..100_u8 {
        let mut pending_peer = TcpStream::connect(at).unwrap();
        // The write fails if the NIC has already rejected the connection.
        let _ = pending_peer.write_all(&vec![i; usize::from(i)]);
        pending_peers.push(pending_peer);
    }
    // The first queue pair has a different peer, and no queue pair has number 0.
    shut_out(&endpoint, endpoint.number);
    shut_out(&endpoint, 0);
    two.to.post_receive(1, &[]).unwrap();
    write(&mut two, 0, &[1; 8], 0, Some(3));
    assert_eq!(end(&mut *two.to), (1, Status::Success));
    assert_eq!(end(&mut *two.from), (0, Status::Success));
}

#[test]
fn words_are_stored_immediately() {
    let memory = region(4096);
    let here = Arc::clone(&memory);
    let writer = std::thread::spawn(move || {
        for round in 0..2_000_000_u32 {
            crate::emulated::sys::store(&here, 8, &[round.to_le_bytes()[0]; 8]).unwrap();
        }
    });
    while !writer.is_finished() {
        let word = crate::emulated::sys::load_word(&memory, 8).to_ne_bytes();
        assert!(word.iter().all(|byte| *byte == word[0]), "{word:?}");
    }
    writer.join().unwrap();
}

#[test]
fn words_are_never_torn() {
    let mut two = healthy(Service::Rc, 4096);
    let memory = Arc::clone(two.far.region());
    let reader = std::thread::spawn(move || {
        loop {
            let word = crate::emulated::sys::load_word(&memory, 8).to_ne_bytes();
            assert!(word.iter().all(|byte| *byte == word[0]), "{word:?}");
            if word[0] == u8::MAX {
                break;
            }
        }
    });
    for round in 0..=u8::MAX {
        for _ in 0..8 {
            let verb = Verb::write(two.far.address() + 8, two.far.rkey(), None);
            let mut work = simple(0, verb, &[]);
            let bytes = [round; 8];
            work.payload = Payload::Inline(&bytes);
            two.from.post_send(&work).unwrap();
        }
        for _ in 0..8 {
            assert_eq!(end(&mut *two.from).1, Status::Success);
        }
    }
    reader.join().unwrap();
}
