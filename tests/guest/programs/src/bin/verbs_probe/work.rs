//! Checks work requests and their completions.

use crate::ends::{
    End, NOTHING, OPEN, Outcome, TIMEOUT, next, options, pair, succeeded, telling, that, write,
};
use daq_rdma::verbs::{Nic, Payload, RegistrationMethod, Service, Side, Status, Verb, WorkRequest};
use std::sync::Arc;
use std::time::Instant;

pub fn writes(nic: &Arc<dyn Nic>, service: Service) -> Outcome<String> {
    let (mut one, mut other) = pair(nic, options(service))?;
    one.fill(0, b"payload!")?;
    one.fill(100, b"and its record")?;
    other.queue.post_receive(7, &[])?;
    let sges = [one.key.sge(0, 8)];
    let payload = write(&other.key, 4096, Payload::Memory(&sges));
    one.queue.post_send(&WorkRequest {
        signaled: false,
        ..payload
    })?;
    let sges = [one.key.sge(100, 4), one.key.sge(104, 10)];
    let record = write(&other.key, 64, Payload::Memory(&sges));
    one.queue.post_send(&telling(record, 0xdead_beef))?;
    let done = next(&mut *other.queue)?;
    succeeded(&done, 7, Side::Received)?;
    that(
        (done.immediate, done.bytes) == (Some(0xdead_beef), 14),
        format!("{done:?}"),
    )?;
    other.holds(4096, b"payload!")?;
    other.holds(64, b"and its record")?;
    succeeded(&next(&mut *one.queue)?, 1, Side::Sent)?;
    let mut more = [NOTHING];
    that(
        one.queue.poll(&mut more)? == 0,
        "an unsignaled work request must not report a completion",
    )?;
    Ok(String::new())
}

pub fn sends(nic: &Arc<dyn Nic>, service: Service) -> Outcome<String> {
    let (mut one, mut other) = pair(nic, options(service))?;
    one.fill(0, b"recordpayload")?;
    let into = [other.key.sge(0, 6), other.key.sge(1024, 100)];
    other.queue.post_receive(3, &into)?;
    let sges = [one.key.sge(0, 6), one.key.sge(6, 7)];
    let work = WorkRequest {
        id: 5,
        verb: Verb::Send { immediate: None },
        payload: Payload::Memory(&sges),
        signaled: true,
    };
    one.queue.post_send(&telling(work, 17))?;
    let done = next(&mut *other.queue)?;
    succeeded(&done, 3, Side::Received)?;
    that(
        (done.immediate, done.bytes) == (Some(17), 13),
        format!("{done:?}"),
    )?;
    other.holds(0, b"record")?;
    other.holds(1024, b"payload\0")?;
    succeeded(&next(&mut *one.queue)?, 5, Side::Sent)?;
    other.queue.post_receive(4, &into)?;
    one.queue.post_send(&work)?;
    let done = next(&mut *other.queue)?;
    that(done.immediate.is_none(), format!("{done:?}"))?;
    Ok(String::new())
}

pub fn inline(nic: &Arc<dyn Nic>, service: Service) -> Outcome<String> {
    let (mut one, mut other) = pair(nic, options(service))?;
    other.queue.post_receive(1, &[])?;
    let mut bytes = *b"8 bytes!";
    let work = write(&other.key, 8, Payload::Inline(&bytes));
    one.queue.post_send(&telling(work, 1))?;
    bytes.fill(0);
    succeeded(&next(&mut *other.queue)?, 1, Side::Received)?;
    other.holds(8, b"8 bytes!")?;
    // An empty write, as used for keep-alive.
    one.queue
        .post_send(&write(&other.key, 0, Payload::Memory(&[])))?;
    succeeded(&next(&mut *one.queue)?, 1, Side::Sent)?;
    succeeded(&next(&mut *one.queue)?, 1, Side::Sent)?;
    let long = vec![0; nic.limits().max_inline as usize + 4096];
    match one
        .queue
        .post_send(&write(&other.key, 0, Payload::Inline(&long)))
    {
        Ok(()) => Err("more inline bytes than the limit were accepted".into()),
        Err(error) => Ok(error.to_string()),
    }
}

pub fn many(nic: &Arc<dyn Nic>) -> Outcome<String> {
    const FRAMES: u32 = 500;
    let (mut one, mut other) = pair(nic, options(Service::Rc))?;
    for id in 0..16 {
        other.queue.post_receive(id, &[])?;
    }
    let mut done = [NOTHING; 8];
    let (mut sent, mut acknowledged, mut arrived) = (0, 0, 0);
    let begin = Instant::now();
    while arrived < FRAMES {
        that(
            begin.elapsed() < 4 * TIMEOUT,
            format!("only {arrived} of {FRAMES} frames arrived"),
        )?;
        // At most 8 writes are in flight, so that no slot is overwritten before it is checked.
        while sent < FRAMES && sent < acknowledged + 8 && sent < arrived + 8 {
            let slot = (sent % 8) as usize * 1024;
            one.fill(slot, &sent.to_le_bytes())?;
            let sges = [one.key.sge(slot, 1024)];
            let payload = write(&other.key, slot as u64, Payload::Memory(&sges));
            one.queue.post_send(&WorkRequest {
                signaled: false,
                ..payload
            })?;
            let record = write(&other.key, 0x8000, Payload::Inline(b"data"));
            one.queue.post_send(&telling(record, sent))?;
            sent += 1;
        }
        let count = one.queue.poll(&mut done)?;
        for done in &done[..count] {
            succeeded(done, 1, Side::Sent)?;
            acknowledged += 1;
        }
        let count = other.queue.poll(&mut done)?;
        for done in &done[..count] {
            that(
                done.immediate == Some(arrived),
                format!("found {done:?}, expected the immediate value {arrived}"),
            )?;
            other.holds((arrived % 8) as usize * 1024, &arrived.to_le_bytes())?;
            other.queue.post_receive(done.id, &[])?;
            arrived += 1;
        }
    }
    Ok(format!("{FRAMES} frames"))
}

pub fn wrong_key(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut one, other) = pair(nic, options(Service::Rc))?;
    let sges = [one.key.sge(0, 8)];
    let mut work = write(&other.key, 0, Payload::Memory(&sges));
    if let Verb::Write { rkey, .. } = &mut work.verb {
        *rkey ^= 0x0055_5500;
    }
    one.queue.post_send(&work)?;
    let done = next(&mut *one.queue)?;
    that(done.status == Status::RemoteAccess, format!("{done:?}"))?;
    Ok(String::new())
}

pub fn old_key(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut one, other) = pair(nic, options(Service::Rc))?;
    let (address, key) = (other.key.address(), other.key.rkey());
    let End { queue, key: ended } = other;
    let region = Arc::clone(ended.region());
    drop(ended);
    let again = nic.register(&region, RegistrationMethod::Host, OPEN)?;
    that(
        again.rkey() != key,
        "memory that is registered again must get a different key",
    )?;
    let sges = [one.key.sge(0, 8)];
    one.queue.post_send(&WorkRequest {
        id: 9,
        verb: Verb::write(address, key, None),
        payload: Payload::Memory(&sges),
        signaled: false,
    })?;
    let done = next(&mut *one.queue)?;
    that(
        (done.status, done.id) == (Status::RemoteAccess, 9),
        format!("{done:?}"),
    )?;
    drop(queue);
    Ok(String::new())
}

pub fn not_ready(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut one, other) = pair(nic, options(Service::Rc))?;
    let sges = [one.key.sge(0, 8)];
    let work = write(&other.key, 0, Payload::Memory(&sges));
    one.queue.post_send(&telling(work, 1))?;
    let done = next(&mut *one.queue)?;
    that(done.status == Status::NotReady, format!("{done:?}"))?;
    Ok(String::new())
}

pub fn unanswered(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut one, other) = pair(nic, options(Service::Rc))?;
    let (address, key) = (other.key.address(), other.key.rkey());
    drop(other);
    let begin = Instant::now();
    one.queue.post_send(&WorkRequest {
        id: 1,
        verb: Verb::write(address, key, None),
        payload: Payload::Memory(&[]),
        signaled: true,
    })?;
    let done = next(&mut *one.queue)?;
    that(done.status == Status::Unanswered, format!("{done:?}"))?;
    Ok(format!("after {} ms", begin.elapsed().as_millis()))
}

pub fn flushed(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut one, other) = pair(nic, options(Service::Rc))?;
    one.queue.post_receive(77, &[])?;
    let sges = [one.key.sge(0, 8)];
    let work = write(&other.key, 0, Payload::Memory(&sges));
    one.queue.post_send(&telling(work, 1))?;
    let first = next(&mut *one.queue)?;
    that(first.status == Status::NotReady, format!("{first:?}"))?;
    let second = next(&mut *one.queue)?;
    that(
        (second.id, second.status) == (77, Status::Flushed),
        format!("{second:?}"),
    )?;
    Ok(String::new())
}

pub fn too_large(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let mut lone = End::new(nic, options(Service::Rc))?;
    let sge = lone.key.sge(0, 8);
    let work = WorkRequest {
        id: 1,
        verb: Verb::Send { immediate: None },
        payload: Payload::Memory(&[sge]),
        signaled: true,
    };
    let unconnected = lone.queue.post_send(&work);
    that(
        unconnected.is_err(),
        "an unconnected queue pair must reject sends",
    )?;
    let (mut one, _other) = pair(nic, options(Service::Rc))?;
    let sges = [one.key.sge(0, 8); 17];
    let work = WorkRequest {
        payload: Payload::Memory(&sges),
        ..work
    };
    match (one.queue.post_send(&work), one.queue.post_receive(1, &sges)) {
        (Err(error), Err(_)) => Ok(error.to_string()),
        answers => Err(format!("{answers:?}").into()),
    }
}

pub fn datagrams(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut one, mut other) = pair(nic, options(Service::Ud))?;
    one.fill(0, b"a datagram")?;
    let into = [other.key.sge(0, 4), other.key.sge(512, 100)];
    other.queue.post_receive(1, &into)?;
    let sges = [one.key.sge(0, 10)];
    let work = WorkRequest {
        id: 2,
        verb: Verb::Send {
            immediate: Some(99),
        },
        payload: Payload::Memory(&sges),
        signaled: true,
    };
    one.queue.post_send(&work)?;
    let done = next(&mut *other.queue)?;
    succeeded(&done, 1, Side::Received)?;
    that(
        (done.bytes, done.immediate) == (10, Some(99)),
        format!("{done:?}"),
    )?;
    other.holds(0, b"a da")?;
    other.holds(512, b"tagram\0\0")?;
    succeeded(&next(&mut *one.queue)?, 2, Side::Sent)?;
    let long = [one.key.sge(0, 8192)];
    let long = WorkRequest {
        payload: Payload::Memory(&long),
        ..work
    };
    let write = write(&other.key, 0, Payload::Memory(&sges));
    match (one.queue.post_send(&long), one.queue.post_send(&write)) {
        (Err(error), Err(_)) => Ok(error.to_string()),
        answers => Err(format!("{answers:?}").into()),
    }
}
