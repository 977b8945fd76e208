//! Work and how it ends.

use crate::ends::{
    End, NOTHING, OPEN, Outcome, TIMEOUT, next, options, pair, succeeded, telling, that, write,
};
use daq_rdma::verbs::{Nic, Payload, Service, Side, Status, Verb, Way, Work};
use std::sync::Arc;
use std::time::Instant;

pub fn writes(nic: &Arc<dyn Nic>, service: Service) -> Outcome<String> {
    let (mut one, mut other) = pair(nic, options(service))?;
    one.fill(0, b"payload!")?;
    one.fill(100, b"and its record")?;
    other.queue.receive(7, &[])?;
    let pieces = [one.key.piece(0, 8)];
    let payload = write(&other.key, 4096, Payload::Memory(&pieces));
    one.queue.post(&Work {
        signaled: false,
        ..payload
    })?;
    let pieces = [one.key.piece(100, 4), one.key.piece(104, 10)];
    let record = write(&other.key, 64, Payload::Memory(&pieces));
    one.queue.post(&telling(record, 0xdead_beef))?;
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
        "unsignaled work has completed visibly",
    )?;
    Ok(String::new())
}

pub fn sends(nic: &Arc<dyn Nic>, service: Service) -> Outcome<String> {
    let (mut one, mut other) = pair(nic, options(service))?;
    one.fill(0, b"recordpayload")?;
    let into = [other.key.piece(0, 6), other.key.piece(1024, 100)];
    other.queue.receive(3, &into)?;
    let pieces = [one.key.piece(0, 6), one.key.piece(6, 7)];
    let work = Work {
        id: 5,
        verb: Verb::Send { immediate: None },
        payload: Payload::Memory(&pieces),
        signaled: true,
    };
    one.queue.post(&telling(work, 17))?;
    let done = next(&mut *other.queue)?;
    succeeded(&done, 3, Side::Received)?;
    that(
        (done.immediate, done.bytes) == (Some(17), 13),
        format!("{done:?}"),
    )?;
    other.holds(0, b"record")?;
    other.holds(1024, b"payload\0")?;
    succeeded(&next(&mut *one.queue)?, 5, Side::Sent)?;
    other.queue.receive(4, &into)?;
    one.queue.post(&work)?;
    let done = next(&mut *other.queue)?;
    that(done.immediate.is_none(), format!("{done:?}"))?;
    Ok(String::new())
}

pub fn inline(nic: &Arc<dyn Nic>, service: Service) -> Outcome<String> {
    let (mut one, mut other) = pair(nic, options(service))?;
    other.queue.receive(1, &[])?;
    let mut bytes = *b"8 bytes!";
    let work = write(&other.key, 8, Payload::Inline(&bytes));
    one.queue.post(&telling(work, 1))?;
    bytes.fill(0);
    succeeded(&next(&mut *other.queue)?, 1, Side::Received)?;
    other.holds(8, b"8 bytes!")?;
    // The keep-alive: nothing at all.
    one.queue
        .post(&write(&other.key, 0, Payload::Memory(&[])))?;
    succeeded(&next(&mut *one.queue)?, 1, Side::Sent)?;
    succeeded(&next(&mut *one.queue)?, 1, Side::Sent)?;
    let long = vec![0; nic.limits().max_inline as usize + 4096];
    match one
        .queue
        .post(&write(&other.key, 0, Payload::Inline(&long)))
    {
        Ok(()) => Err("too many bytes went inline".into()),
        Err(error) => Ok(error.to_string()),
    }
}

pub fn many(nic: &Arc<dyn Nic>) -> Outcome<String> {
    const FRAMES: u32 = 500;
    let (mut one, mut other) = pair(nic, options(Service::Rc))?;
    for id in 0..16 {
        other.queue.receive(id, &[])?;
    }
    let mut done = [NOTHING; 8];
    let (mut sent, mut acknowledged, mut arrived) = (0, 0, 0);
    let begin = Instant::now();
    while arrived < FRAMES {
        that(begin.elapsed() < 4 * TIMEOUT, format!("{arrived} arrived"))?;
        // No more than 8 on their way, so that slots are not written before they are looked at.
        while sent < FRAMES && sent < acknowledged + 8 && sent < arrived + 8 {
            let slot = (sent % 8) as usize * 1024;
            one.fill(slot, &sent.to_le_bytes())?;
            let pieces = [one.key.piece(slot, 1024)];
            let payload = write(&other.key, slot as u64, Payload::Memory(&pieces));
            one.queue.post(&Work {
                signaled: false,
                ..payload
            })?;
            let record = write(&other.key, 0x8000, Payload::Inline(b"told"));
            one.queue.post(&telling(record, sent))?;
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
                format!("{done:?}, {arrived} was due"),
            )?;
            other.holds((arrived % 8) as usize * 1024, &arrived.to_le_bytes())?;
            other.queue.receive(done.id, &[])?;
            arrived += 1;
        }
    }
    Ok(format!("{FRAMES} frames"))
}

pub fn wrong_key(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut one, other) = pair(nic, options(Service::Rc))?;
    let pieces = [one.key.piece(0, 8)];
    let mut work = write(&other.key, 0, Payload::Memory(&pieces));
    if let Verb::Write { key, .. } = &mut work.verb {
        *key ^= 0x0055_5500;
    }
    one.queue.post(&work)?;
    let done = next(&mut *one.queue)?;
    that(done.status == Status::RemoteAccess, format!("{done:?}"))?;
    Ok(String::new())
}

pub fn old_key(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut one, other) = pair(nic, options(Service::Rc))?;
    let (address, key) = (other.key.address(), other.key.remote());
    let End { queue, key: ended } = other;
    let region = Arc::clone(ended.region());
    drop(ended);
    let again = nic.register(&region, Way::Host, OPEN)?;
    that(
        again.remote() != key,
        "memory that was registered again has the same key",
    )?;
    let pieces = [one.key.piece(0, 8)];
    one.queue.post(&Work {
        id: 9,
        verb: Verb::Write {
            address,
            key,
            immediate: None,
        },
        payload: Payload::Memory(&pieces),
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
    let pieces = [one.key.piece(0, 8)];
    let work = write(&other.key, 0, Payload::Memory(&pieces));
    one.queue.post(&telling(work, 1))?;
    let done = next(&mut *one.queue)?;
    that(done.status == Status::NotReady, format!("{done:?}"))?;
    Ok(String::new())
}

pub fn unanswered(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut one, other) = pair(nic, options(Service::Rc))?;
    let (address, key) = (other.key.address(), other.key.remote());
    drop(other);
    let begin = Instant::now();
    one.queue.post(&Work {
        id: 1,
        verb: Verb::Write {
            address,
            key,
            immediate: None,
        },
        payload: Payload::Memory(&[]),
        signaled: true,
    })?;
    let done = next(&mut *one.queue)?;
    that(done.status == Status::Unanswered, format!("{done:?}"))?;
    Ok(format!("after {} ms", begin.elapsed().as_millis()))
}

pub fn flushed(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut one, other) = pair(nic, options(Service::Rc))?;
    one.queue.receive(77, &[])?;
    let pieces = [one.key.piece(0, 8)];
    let work = write(&other.key, 0, Payload::Memory(&pieces));
    one.queue.post(&telling(work, 1))?;
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
    let piece = lone.key.piece(0, 8);
    let work = Work {
        id: 1,
        verb: Verb::Send { immediate: None },
        payload: Payload::Memory(&[piece]),
        signaled: true,
    };
    let unconnected = lone.queue.post(&work);
    that(unconnected.is_err(), "it sends before it is connected")?;
    let (mut one, _other) = pair(nic, options(Service::Rc))?;
    let pieces = [one.key.piece(0, 8); 17];
    let work = Work {
        payload: Payload::Memory(&pieces),
        ..work
    };
    match (one.queue.post(&work), one.queue.receive(1, &pieces)) {
        (Err(error), Err(_)) => Ok(error.to_string()),
        answers => Err(format!("{answers:?}").into()),
    }
}

pub fn datagrams(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (mut one, mut other) = pair(nic, options(Service::Ud))?;
    one.fill(0, b"a datagram")?;
    let into = [other.key.piece(0, 4), other.key.piece(512, 100)];
    other.queue.receive(1, &into)?;
    let pieces = [one.key.piece(0, 10)];
    let work = Work {
        id: 2,
        verb: Verb::Send {
            immediate: Some(99),
        },
        payload: Payload::Memory(&pieces),
        signaled: true,
    };
    one.queue.post(&work)?;
    let done = next(&mut *other.queue)?;
    succeeded(&done, 1, Side::Received)?;
    that(
        (done.bytes, done.immediate) == (10, Some(99)),
        format!("{done:?}"),
    )?;
    other.holds(0, b"a da")?;
    other.holds(512, b"tagram\0\0")?;
    succeeded(&next(&mut *one.queue)?, 2, Side::Sent)?;
    let long = [one.key.piece(0, 8192)];
    let long = Work {
        payload: Payload::Memory(&long),
        ..work
    };
    let write = write(&other.key, 0, Payload::Memory(&pieces));
    match (one.queue.post(&long), one.queue.post(&write)) {
        (Err(error), Err(_)) => Ok(error.to_string()),
        answers => Err(format!("{answers:?}").into()),
    }
}
