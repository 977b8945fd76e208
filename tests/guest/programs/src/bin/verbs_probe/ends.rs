//! Provides two connected ends for checks: queue pairs, memory whose content can be read, and completions.

use daq_core::region::{HostOptions, Region};
use daq_rdma::verbs::{
    Access, MemoryRegion, Nic, Payload, QueuePair, QueuePairOptions, RegistrationMethod, Service,
    Side, Status, Verb, WorkCompletion, WorkRequest,
};
use std::error::Error;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Size of each memory region in bytes.
pub const BYTES: usize = 1 << 16;
/// Timeout of every operation. It is long, because an emulated machine is slow.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Access rights that the memory grants to the peer.
pub const OPEN: Access = Access::WRITE;

pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Returns the error `why` unless `holds` is true.
pub fn that(holds: bool, why: impl Into<String>) -> Outcome {
    if holds {
        Ok(())
    } else {
        Err(why.into().into())
    }
}

pub const fn options(service: Service) -> QueuePairOptions {
    QueuePairOptions {
        service,
        sends: 32,
        receives: 32,
        sges: 2,
        inline: 64,
        events: true,
    }
}

/// One end: a queue pair and memory. The queue pair is the first field, so it is dropped before the memory is freed.
pub struct End {
    /// The queue pair.
    pub queue: Box<dyn QueuePair>,
    /// The memory region.
    pub key: MemoryRegion,
}

impl End {
    pub fn new(nic: &Arc<dyn Nic>, options: QueuePairOptions) -> Outcome<Self> {
        Ok(Self {
            queue: nic.create_queue_pair(&options)?,
            key: memory(nic)?,
        })
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) -> Outcome {
        let file = self.key.region().file().ok_or("the region has no file")?;
        std::fs::File::from(file.try_clone_to_owned()?).write_all_at(bytes, offset as u64)?;
        Ok(())
    }

    pub fn holds(&self, offset: usize, bytes: &[u8]) -> Outcome {
        let file = self.key.region().file().ok_or("the region has no file")?;
        let mut found = vec![0; bytes.len()];
        std::fs::File::from(file.try_clone_to_owned()?).read_exact_at(&mut found, offset as u64)?;
        that(
            found == bytes,
            format!("found {found:02x?} at offset {offset}, expected {bytes:02x?}"),
        )
    }
}

/// Creates memory whose content can be read through its file.
pub fn memory(nic: &Arc<dyn Nic>) -> Outcome<MemoryRegion> {
    let shared = HostOptions {
        shared: true,
        ..HostOptions::default()
    };
    let region = Region::host(BYTES, shared)?;
    Ok(nic.register(&region, RegistrationMethod::Host, OPEN)?)
}

/// Creates two ends that are connected to each other.
pub fn pair(nic: &Arc<dyn Nic>, options: QueuePairOptions) -> Outcome<(End, End)> {
    let (mut one, mut other) = (End::new(nic, options)?, End::new(nic, options)?);
    let (first, second) = (one.queue.endpoint(), other.queue.endpoint());
    one.queue.connect(&second)?;
    other.queue.connect(&first)?;
    Ok((one, other))
}

pub const NOTHING: WorkCompletion = WorkCompletion {
    id: u64::MAX,
    side: Side::Sent,
    status: Status::Other(u32::MAX),
    bytes: 0,
    immediate: None,
};

/// Returns the next completion.
pub fn next(queue: &mut dyn QueuePair) -> Outcome<WorkCompletion> {
    let begin = Instant::now();
    let mut done = [NOTHING];
    while begin.elapsed() < TIMEOUT {
        if queue.poll(&mut done)? > 0 {
            return Ok(done[0]);
        }
        std::thread::yield_now();
    }
    Err("no completion arrived".into())
}

pub fn write<'a>(to: &MemoryRegion, offset: u64, payload: Payload<'a>) -> WorkRequest<'a> {
    WorkRequest {
        id: 1,
        verb: Verb::write(to.address() + offset, to.rkey(), None),
        payload,
        signaled: true,
    }
}

/// Returns the same work request with the immediate value `value`.
pub fn telling(work: WorkRequest<'_>, value: u32) -> WorkRequest<'_> {
    let verb = match work.verb {
        Verb::Write {
            address, rkey: key, ..
        } => Verb::write(address, key, Some(value)),
        Verb::Send { .. } => Verb::Send {
            immediate: Some(value),
        },
    };
    WorkRequest { verb, ..work }
}

pub fn succeeded(done: &WorkCompletion, id: u64, side: Side) -> Outcome {
    that(
        (done.id, done.side, done.status) == (id, side, Status::Success),
        format!("{done:?}"),
    )
}
