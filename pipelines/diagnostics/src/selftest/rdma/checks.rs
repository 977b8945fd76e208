//! Checks of one card, which transfers data between two of its own queue pairs.

use super::Setup;
use super::pair::{Memory, Pair, WORK, ends, next, pattern, queues, write};
use crate::selftest::{Verdict, expect};
use crate::sys::nic_memory::{ANY, NicMemory};
use daq_core::gpu::driver::Device;
use daq_rdma::registration::register_words;
use daq_rdma::verbs::{
    Payload, RegistrationMethod, Service, Side, Status, Verb, WorkCompletion, WorkRequest,
};

/// The details of a successful check, or the reason why the check did not succeed.
pub(super) type Found = Result<String, Verdict>;

/// Size of the memory of most checks in bytes.
const BYTES: usize = 4 << 20;
const WORD: usize = size_of::<u64>();
/// Number of words before and after a written range. These words must not change.
const MARGIN: usize = 8;
/// Number of words per write: less than a packet, whole packets, and many packets.
const SIZES: [usize; 7] = [1, 3, 8, 127, 512, 4096, 128 << 10];

fn failed(what: impl Into<String>) -> Verdict {
    Verdict::Failed(what.into())
}

pub(super) fn port(setup: &Setup) -> Found {
    let port = setup.nic.port()?;
    let limits = setup.nic.limits();
    let link = if port.is_ethernet {
        "Ethernet"
    } else {
        "InfiniBand"
    };
    let gid = std::net::Ipv6Addr::from(port.gid);
    let summary = format!(
        "port {}, {link}, packets of {} B, GID {} {gid}, {} B inline, {} scatter entries",
        port.number, port.mtu, port.gid_index, limits.max_inline, limits.max_sges
    );
    expect(port.is_active, || {
        format!("expected a port that is up, found one that is down: {summary}; see `rdma link`")
    })?;
    Ok(summary)
}

pub(super) fn register_host(setup: &Setup) -> Found {
    let shared = NicMemory::new(None, BYTES)?;
    let first = shared
        .register(&*setup.nic)
        .map_err(|refused| failed(refused.to_string()))?;
    let second = register_words(&*setup.nic, shared.region(), ANY)
        .map_err(|refused| failed(refused.to_string()))?;
    expect(first.region.rkey() != second.rkey(), || {
        "expected a different key after registering the same memory again, found the same key"
            .to_owned()
    })?;
    Ok("host memory, payload and notification words".to_owned())
}

/// Registers GPU memory with the first method that succeeds, in order of preference. Lists the methods that failed.
pub(super) fn register_gpu(setup: &Setup) -> Found {
    let device = setup.gpu()?;
    let shared = NicMemory::new(Some(device), BYTES)?;
    match shared.register(&*setup.nic) {
        Ok(registered) => {
            let refused = registered.refused.iter().map(ToString::to_string);
            let summary =
                std::iter::once(format!("method: {}", registered.region.method())).chain(refused);
            Ok(summary.collect::<Vec<_>>().join("; failed method: "))
        }
        Err(refused) => Err(Verdict::Skipped(refused.to_string())),
    }
}

/// Registers GPU memory with the method `method`, even if a better method works.
fn register_by(setup: &Setup, method: RegistrationMethod) -> Found {
    let device = setup.gpu()?;
    let shared = NicMemory::new(Some(device), BYTES)?;
    match setup.nic.register(shared.region(), method, ANY) {
        Ok(key) => Ok(format!("key {:#x}", key.rkey())),
        Err(refused) => Err(Verdict::Skipped(refused.to_string())),
    }
}

pub(super) fn register_dma_buf(setup: &Setup) -> Found {
    register_by(setup, RegistrationMethod::DmaBuf)
}

pub(super) fn register_peer(setup: &Setup) -> Found {
    register_by(setup, RegistrationMethod::Peer)
}

/// Makes writes of all sizes with immediate values from one memory to the other, and verifies each write.
fn writes(setup: &Setup, gpus: [Option<&'static Device>; 2]) -> Found {
    let mut pair = Pair::new(&setup.nic, Service::Rc, gpus, BYTES)?;
    let mut bytes = 0;
    for (id, (&count, turn)) in SIZES
        .iter()
        .zip(1..)
        .cycle()
        .take(4 * SIZES.len())
        .enumerate()
    {
        let id = id as u64 + 1;
        let data = pattern(id, count);
        // Use different offsets for each write, on both sides.
        let (from, to) = (MARGIN * turn, MARGIN * (turn + 1) + turn);
        let around = pattern(!id >> 24, count + 2 * MARGIN);
        pair.near.shared.store(from, &data)?;
        pair.far.shared.store(to - MARGIN, &around)?;
        let target = pair.far_at(to * WORD);
        let immediate = u32::try_from(id).unwrap_or(0);
        pair.to.post_receive(id, &[])?;
        let sge = pair.near.key.sge(from * WORD, count * WORD);
        write(&mut *pair.from, id, sge, target, Some(immediate))?;
        let came = ends(&mut *pair.to, id, Status::Success)?;
        expect(
            came.side == Side::Received && came.immediate == Some(immediate),
            || format!("expected immediate {immediate}, found {came:?}"),
        )?;
        let what = format!("{} B written", count * WORD);
        pair.far.expect(to, &data, &what)?;
        pair.far.expect(
            to - MARGIN,
            &around[..MARGIN],
            "words before the written words",
        )?;
        let behind = &around[MARGIN + count..];
        pair.far
            .expect(to + count, behind, "words after the written words")?;
        ends(&mut *pair.from, id, Status::Success)?;
        bytes += count * WORD;
    }
    Ok(format!(
        "{} writes, {bytes} B, {} → {}",
        4 * SIZES.len(),
        pair.near.key.method(),
        pair.far.key.method()
    ))
}

pub(super) fn write_host(setup: &Setup) -> Found {
    writes(setup, [None, None])
}

pub(super) fn write_to_gpu(setup: &Setup) -> Found {
    writes(setup, [None, Some(setup.gpu()?)])
}

pub(super) fn write_from_gpu(setup: &Setup) -> Found {
    writes(setup, [Some(setup.gpu()?), None])
}

pub(super) fn write_between_gpus(setup: &Setup) -> Found {
    let device = Some(setup.gpu()?);
    writes(setup, [device, device])
}

/// Sends messages that are received into two separate memory ranges, and one inline message.
pub(super) fn send(setup: &Setup) -> Found {
    const HEAD: usize = 16;
    const BODY: usize = 1024;
    let mut pair = Pair::new(&setup.nic, Service::Rc, [None, None], BYTES)?;
    for id in 1..=16 {
        let data = pattern(id, HEAD + BODY);
        pair.near.shared.store(0, &data)?;
        let sges = [
            pair.far.key.sge(0, HEAD * WORD),
            pair.far.key.sge(BYTES / 2, BODY * WORD),
        ];
        pair.to.post_receive(id, &sges)?;
        let sge = [pair.near.key.sge(0, data.len() * WORD)];
        pair.from.post_send(&WorkRequest {
            id,
            verb: Verb::Send { immediate: None },
            payload: Payload::Memory(&sge),
            signaled: true,
        })?;
        let came = ends(&mut *pair.to, id, Status::Success)?;
        expect(came.bytes as usize == data.len() * WORD, || {
            format!("expected {} B, found {}", data.len() * WORD, came.bytes)
        })?;
        pair.far.expect(0, &data[..HEAD], "the first piece")?;
        pair.far
            .expect(BYTES / 2 / WORD, &data[HEAD..], "the second piece")?;
        ends(&mut *pair.from, id, Status::Success)?;
    }
    let sge = [pair.far.key.sge(0, WORD)];
    pair.to.post_receive(99, &sge)?;
    pair.from.post_send(&WorkRequest {
        id: 99,
        verb: Verb::Send { immediate: Some(7) },
        payload: Payload::Inline(&42_u64.to_ne_bytes()),
        signaled: true,
    })?;
    let came = ends(&mut *pair.to, 99, Status::Success)?;
    expect(came.immediate == Some(7), || {
        format!("expected immediate 7, found {:?}", came.immediate)
    })?;
    pair.far.expect(0, &[42], "a message sent inline")?;
    Ok("16 messages into two pieces each, one inline".to_owned())
}

pub(super) fn wrong_key(setup: &Setup) -> Found {
    let mut pair = Pair::new(&setup.nic, Service::Rc, [None, None], BYTES)?;
    let kept = pattern(1, 64);
    pair.far.shared.store(0, &kept)?;
    pair.near.shared.store(0, &pattern(2, 64))?;
    let (address, key) = pair.far_at(0);
    let sge = pair.near.key.sge(0, 64 * WORD);
    write(&mut *pair.from, 1, sge, (address, key ^ 0x5a5a_0001), None)?;
    ends(&mut *pair.from, 1, Status::RemoteAccess)?;
    pair.far
        .expect(0, &kept, "memory after a write with a wrong key")?;
    // The key is correct, but the write exceeds the end of the memory.
    let (mut from, _to) = queues(&*setup.nic, Service::Rc)?;
    let end = address + pair.far.key.region().bytes() as u64;
    let sge = pair.near.key.sge(0, 64 * WORD);
    write(&mut *from, 2, sge, (end - 8, key), None)?;
    ends(&mut *from, 2, Status::RemoteAccess)?;
    let last = pair.far.key.region().bytes() / WORD - 1;
    pair.far.expect(
        last,
        &[0],
        "last word of the region, after a write past the end of the region",
    )?;
    Ok("the card rejected both writes; memory is unchanged".to_owned())
}

pub(super) fn no_receive(setup: &Setup) -> Found {
    let mut pair = Pair::new(&setup.nic, Service::Rc, [None, None], BYTES)?;
    let target = pair.far_at(0);
    write(
        &mut *pair.from,
        1,
        pair.near.key.sge(0, 64),
        target,
        Some(1),
    )?;
    ends(&mut *pair.from, 1, Status::NotReady)?;
    // The queue pair has failed. So posting fails immediately, or the work request completes as flushed.
    let posted = write(
        &mut *pair.from,
        2,
        pair.near.key.sge(0, 64),
        target,
        Some(2),
    );
    if posted.is_ok() {
        ends(&mut *pair.from, 2, Status::Flushed)?;
    }
    Ok(format!("completed with status {}", Status::NotReady.name()))
}

/// Destroys the queue pair of a peer and registers the peer's memory again. Writes with the old key must not change the
/// memory.
pub(super) fn reconnect(setup: &Setup) -> Found {
    let Pair {
        mut from,
        mut to,
        near,
        far,
    } = Pair::new(&setup.nic, Service::Rc, [None, None], BYTES)?;
    let old = (far.key.address(), far.key.rkey());
    near.shared.store(0, &pattern(1, 512))?;
    to.post_receive(1, &[])?;
    write(&mut *from, 1, near.key.sge(0, 512 * WORD), old, Some(1))?;
    ends(&mut *to, 1, Status::Success)?;
    ends(&mut *from, 1, Status::Success)?;
    let Memory { key, shared } = far;
    drop(to);
    drop(key);
    let kept = pattern(2, 512);
    shared.store(0, &kept)?;
    near.shared.store(0, &pattern(3, 512))?;
    // Write to the destroyed queue pair.
    write(&mut *from, 2, near.key.sge(0, 512 * WORD), old, None)?;
    let done = next(&mut *from)?;
    expect(done.status != Status::Success, || {
        "expected a write to a destroyed queue pair to fail, but it succeeded".to_owned()
    })?;
    let gone = done.status.name();
    drop(from);
    let key = shared
        .register(&*setup.nic)
        .map_err(|refused| failed(refused.to_string()))?
        .region;
    let far = Memory { key, shared };
    far.expect(0, &kept, "memory after a write to a destroyed queue pair")?;
    expect(far.key.rkey() != old.1, || {
        format!(
            "expected a different key after registering the same memory again, found the same key {:#x}",
            old.1
        )
    })?;
    // A write with the stale key must fail, even over a new queue pair.
    let (mut from, _to) = queues(&*setup.nic, Service::Rc)?;
    write(&mut *from, 3, near.key.sge(0, 512 * WORD), old, None)?;
    ends(&mut *from, 3, Status::RemoteAccess)?;
    far.expect(0, &kept, "memory after a write with the stale key")?;
    // A write with the new key must succeed over another queue pair.
    let (mut from, mut to) = queues(&*setup.nic, Service::Rc)?;
    let target = (far.key.address(), far.key.rkey());
    to.post_receive(4, &[])?;
    write(&mut *from, 4, near.key.sge(0, 512 * WORD), target, Some(4))?;
    ends(&mut *to, 4, Status::Success)?;
    far.expect(0, &pattern(3, 512), "memory written after the reconnection")?;
    // The writes that read `near` must be complete before `near` is dropped.
    ends(&mut *from, 4, Status::Success)?;
    Ok(format!(
        "a write to a destroyed queue pair ends with {gone}; the stale key is rejected, the new key accepted"
    ))
}

/// Sends more messages than receive requests are posted. An unreliable connection must lose some messages and continue.
pub(super) fn unreliable(setup: &Setup) -> Found {
    const RECEIVES: u64 = 4;
    const REQUIRED: usize = 8;
    let mut pair = Pair::new(&setup.nic, Service::Uc, [None, None], BYTES)?;
    for id in 0..RECEIVES {
        pair.to.post_receive(id, &[])?;
    }
    let mut sent = 0;
    let mut came: Vec<u32> = Vec::new();
    for _ in 0..3 * RECEIVES {
        one(&mut pair, &mut sent)?;
    }
    // The link may drop the first messages, but not all messages.
    let mut receives = RECEIVES;
    while came.len() < REQUIRED {
        expect(sent < 10_000, || {
            format!(
                "expected at least {REQUIRED} messages to arrive, found {} of {sent}",
                came.len()
            )
        })?;
        let mut done = [WorkCompletion::default()];
        while pair.to.poll(&mut done)? > 0 {
            expect(done[0].status == Status::Success, || {
                format!("expected a received or lost message, found {:?}", done[0])
            })?;
            let number = done[0].immediate.unwrap_or(u32::MAX);
            let at = number as usize * MARGIN;
            pair.far
                .expect(at, &pattern(number.into(), MARGIN), "a received message")?;
            came.push(number);
            if receives < u64::from(WORK) {
                pair.to.post_receive(receives, &[])?;
                receives += 1;
            }
        }
        pair.to.wait(std::time::Duration::from_millis(1))?;
        one(&mut pair, &mut sent)?;
    }
    expect(came.is_sorted_by(|a, b| a < b), || {
        format!("expected each message once and in order, found {came:?}")
    })?;
    let last = came.last().map_or(0, |last| u64::from(*last) + 1);
    Ok(format!(
        "{} of {last} messages arrived, {} were lost without a posted receive and counted by sequence number",
        came.len(),
        last - came.len() as u64
    ))
}

/// Sends message number `sent` to its own memory range, and waits until the send is complete.
fn one(pair: &mut Pair, sent: &mut u32) -> Result<(), Verdict> {
    let at = *sent as usize * MARGIN;
    pair.near
        .shared
        .store(at, &pattern((*sent).into(), MARGIN))?;
    let target = pair.far_at(at * WORD);
    let sge = pair.near.key.sge(at * WORD, MARGIN * WORD);
    write(&mut *pair.from, (*sent).into(), sge, target, Some(*sent))?;
    ends(&mut *pair.from, (*sent).into(), Status::Success)?;
    *sent += 1;
    Ok(())
}
