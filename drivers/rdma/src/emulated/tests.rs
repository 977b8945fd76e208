//! Tests of two emulated NICs in this process: a model of the memory, and one test per kind of failure.
#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod failures;
mod model;

use super::sys::load;
use super::*;
use crate::verbs::{Payload, Side, Status, Verb, WorkCompletion, WorkRequest};
use daq_core::region::HostOptions;
use daq_testkit::assert_fields;
use std::net::Ipv4Addr;
use std::time::Duration;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ANY: Access = Access::WRITE;
const LONG: Duration = Duration::from_mins(1);

fn options(service: Service) -> QueuePairOptions {
    QueuePairOptions {
        service,
        sends: 64,
        receives: 64,
        sges: 4,
        inline: 64,
        events: true,
    }
}

fn region(bytes: usize) -> Arc<Region> {
    Region::host(bytes, HostOptions::default()).unwrap()
}

struct Two {
    near_card: Arc<dyn Nic>,
    nic: Arc<dyn Nic>,
    from: Box<dyn QueuePair>,
    to: Box<dyn QueuePair>,
    near: MemoryRegion,
    far: MemoryRegion,
}

fn two(service: Service, near: &Faults, far: &Faults, bytes: usize) -> Two {
    let near = EmulatedNic::new(LOOPBACK, near.clone()).unwrap();
    let far = EmulatedNic::new(LOOPBACK, far.clone()).unwrap();
    let mut from = near.create_queue_pair(&options(service)).unwrap();
    let mut to = far.create_queue_pair(&options(service)).unwrap();
    from.connect(&to.endpoint()).unwrap();
    to.connect(&from.endpoint()).unwrap();
    Two {
        from,
        to,
        near: near
            .register(&region(bytes), RegistrationMethod::Host, ANY)
            .unwrap(),
        far: far
            .register(&region(bytes), RegistrationMethod::Host, ANY)
            .unwrap(),
        near_card: near,
        nic: far,
    }
}

/// Returns a pair without faults.
fn healthy(service: Service, bytes: usize) -> Two {
    two(service, &Faults::none(), &Faults::none(), bytes)
}

/// Waits for the next completion, without a timeout.
fn next(queue: &mut dyn QueuePair) -> WorkCompletion {
    let mut done = [WorkCompletion::default()];
    while queue.poll(&mut done).unwrap() == 0 {
        assert!(queue.wait(LONG).unwrap());
    }
    done[0]
}

fn write(two: &mut Two, id: u64, bytes: &[u8], at: usize, immediate: Option<u32>) {
    super::sys::store(two.near.region(), at, bytes).unwrap();
    let verb = Verb::write(two.far.address() + at as u64, two.far.rkey(), immediate);
    let work = WorkRequest {
        id,
        verb,
        payload: Payload::Memory(&[two.near.sge(at, bytes.len())]),
        signaled: true,
    };
    two.from.post_send(&work).unwrap();
}

#[test]
fn write_with_immediate_arrives() {
    let none = Faults::none();
    let mut two = two(Service::Rc, &none, &none, 1 << 20);
    two.to.post_receive(7, &[]).unwrap();
    let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
    write(&mut two, 3, &bytes, 5, Some(99));
    let done = next(&mut *two.to);
    assert_fields!(done => id: 7, side: Side::Received, status: Status::Success);
    assert_eq!((done.bytes, done.immediate), (100_000, Some(99)));
    assert_eq!(load(two.far.region(), 5, bytes.len()), bytes);
    let done = next(&mut *two.from);
    assert_eq!((done.id, done.status), (3, Status::Success));
}

#[test]
fn write_to_open_queue_pair_needs_only_its_number() {
    let (nic, sensor) = (
        EmulatedNic::new(LOOPBACK, Faults::none()).unwrap(),
        EmulatedNic::new(LOOPBACK, Faults::none()).unwrap(),
    );
    let memory = nic
        .register(&region(4096), RegistrationMethod::Host, ANY)
        .unwrap();
    let mut queue = nic.create_queue_pair(&options(Service::Uc)).unwrap();
    for id in 5..9 {
        queue.post_receive(id, &[]).unwrap();
    }
    queue
        .connect(&Endpoint {
            gid: gid(LOOPBACK),
            ..Endpoint::default()
        })
        .unwrap();
    let own = queue.endpoint();
    let known = Endpoint {
        number: own.number,
        lid: own.lid,
        gid: own.gid,
        mtu: own.mtu,
        ..Endpoint::default()
    };
    let foreign = Endpoint {
        psn: own.psn ^ 1,
        ..known
    };
    let work = |at, immediate| WorkRequest {
        id: 1,
        verb: Verb::write(memory.address() + at, memory.rkey(), Some(immediate)),
        payload: Payload::Inline(b"whole words are!"),
        signaled: true,
    };
    // Foreign peers stay connected until all checks are done.
    let mut pending_peers = Vec::new();
    // A peer with a wrong first PSN and a peer with a reliable connection must both be ignored.
    for (service, peer) in [(Service::Uc, foreign), (Service::Rc, own)] {
        let mut pending_peer = sensor.create_queue_pair(&options(service)).unwrap();
        // The connection may be rejected immediately.
        let _ = pending_peer.connect(&peer);
        if pending_peer.post_send(&work(128, 8)).is_ok() && service == Service::Uc {
            // Wait until this message was sent, so that it precedes the following ones.
            next(&mut *pending_peer);
        }
        pending_peers.push(pending_peer);
    }
    let mut writer = sensor.create_queue_pair(&options(Service::Uc)).unwrap();
    writer.connect(&known).unwrap();
    for (id, at, immediate) in [(5, 64, 7), (6, 96, 9)] {
        writer.post_send(&work(at, immediate)).unwrap();
        assert_eq!(next(&mut *writer).status, Status::Success);
        let done = next(&mut *queue);
        assert_fields!(done =>
            id: id, side: Side::Received, status: Status::Success, immediate: Some(immediate)
        );
    }
    assert_eq!(load(memory.region(), 64, 16), b"whole words are!");
    assert_eq!(load(memory.region(), 128, 16), [0; 16]);
}
