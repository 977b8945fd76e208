//! Two connected queue pairs of one card, each with its own memory.

use crate::selftest::Verdict;
use crate::sys::shared_words::SharedWords;
use daq_core::gpu::driver::Device;
use daq_rdma::registration::{PeerFacts, Registered, register_region};
use daq_rdma::verbs::{
    Access, MemoryRegion, Nic, Payload, QueuePair, QueuePairOptions, Service, Sge, Side, Status,
    Verb, WorkCompletion, WorkRequest,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timeout for a completion. A card reports a peer without receives or replies well before.
const LIMIT: Duration = Duration::from_mins(1);
/// Access rights of the peer.
pub(super) const ANY: Access = Access {
    local_write: true,
    remote_write: true,
    relaxed: false,
};
/// Maximum number of work requests per queue pair and direction.
pub(super) const WORK: u32 = 64;

/// This host's and CUDA's support for registering GPU memory.
pub(super) fn facts(gpu: Option<&'static Device>) -> PeerFacts {
    let facts = PeerFacts::read(Path::new("/"));
    match gpu {
        Some(device) => facts.with_gpu(device.attributes()),
        None => facts,
    }
}

/// Memory that the card can access. Fields are dropped in order.
pub(super) struct Memory {
    pub(super) key: MemoryRegion,
    pub(super) shared: SharedWords,
}

impl Memory {
    /// Registers `bytes` bytes of host memory or of `gpu`. If the card cannot register GPU memory, the check does not
    /// apply.
    pub(super) fn new(
        nic: &dyn Nic,
        gpu: Option<&'static Device>,
        bytes: usize,
    ) -> Result<Self, Verdict> {
        let shared = SharedWords::new(gpu, bytes)?;
        match register_region(nic, shared.region(), ANY, &facts(gpu)) {
            Ok(Registered { region: key, .. }) => Ok(Self { key, shared }),
            Err(refused) if gpu.is_some() => Err(Verdict::Skipped(refused.to_string())),
            Err(refused) => Err(Verdict::Failed(refused.to_string())),
        }
    }

    /// Fails unless memory contains these words at word index `at`.
    pub(super) fn expect(&self, at: usize, words: &[u64], what: &str) -> Result<(), Verdict> {
        let found = self.shared.load(at, words.len())?;
        let wrong = words.iter().zip(&found).position(|(a, b)| a != b);
        wrong.map_or(Ok(()), |i| {
            Err(Verdict::Failed(format!(
                "{what}: expected {:#x} in word {} of {}, found {:#x}",
                words[i],
                at + i,
                self.shared.placement(),
                found[i]
            )))
        })
    }
}

/// Connected queue pairs. Fields are dropped in order: queue pairs before memory regions.
pub(super) struct Pair {
    pub(super) from: Box<dyn QueuePair>,
    pub(super) to: Box<dyn QueuePair>,
    pub(super) near: Memory,
    pub(super) far: Memory,
}

/// The queue pair that writes and the one that is written.
type Two = (Box<dyn QueuePair>, Box<dyn QueuePair>);

/// Returns words that all differ, derived from a number.
pub(super) fn pattern(number: u64, count: usize) -> Vec<u64> {
    (0..count as u64)
        .map(|i| (number << 40 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect()
}

/// Creates two connected queue pairs of `nic`.
pub(super) fn queues(nic: &dyn Nic, service: Service) -> Result<Two, Verdict> {
    let options = QueuePairOptions {
        service,
        sends: WORK,
        receives: WORK,
        sges: 2,
        inline: 64,
        events: true,
    };
    let (mut from, mut to) = (
        nic.create_queue_pair(&options)?,
        nic.create_queue_pair(&options)?,
    );
    from.connect(&to.endpoint())?;
    to.connect(&from.endpoint())?;
    Ok((from, to))
}

/// Waits for the next completion of `queue`.
pub(super) fn next(queue: &mut dyn QueuePair) -> Result<WorkCompletion, Verdict> {
    let mut done = [WorkCompletion {
        id: 0,
        side: Side::Sent,
        status: Status::Success,
        bytes: 0,
        immediate: None,
    }];
    let start = Instant::now();
    while queue.poll(&mut done)? == 0 {
        if start.elapsed() > LIMIT {
            return Err(Verdict::Failed(format!(
                "expected a completion, found none within {} s",
                LIMIT.as_secs()
            )));
        }
        if !queue.wait(Duration::from_millis(10))? {
            std::thread::yield_now();
        }
    }
    Ok(done[0])
}

/// Fails unless the next completion of `queue` belongs to this work request and has this status.
pub(super) fn ends(
    queue: &mut dyn QueuePair,
    id: u64,
    status: Status,
) -> Result<WorkCompletion, Verdict> {
    let done = next(queue)?;
    if done.id == id && done.status == status {
        return Ok(done);
    }
    Err(Verdict::Failed(format!(
        "expected work {id} to end with {}, found work {} with {}",
        status.name(),
        done.id,
        done.status.name()
    )))
}

/// Posts a write of `sge`.
pub(super) fn write(
    queue: &mut dyn QueuePair,
    id: u64,
    sge: Sge<'_>,
    (address, key): (u64, u32),
    immediate: Option<u32>,
) -> Result<(), Verdict> {
    let verb = Verb::Write {
        address,
        rkey: key,
        immediate,
    };
    Ok(queue.post_send(&WorkRequest {
        id,
        verb,
        payload: Payload::Memory(&[sge]),
        signaled: true,
    })?)
}

impl Pair {
    /// Creates two queue pairs of `nic` with `bytes` bytes each, of host memory or of a GPU.
    pub(super) fn new(
        nic: &Arc<dyn Nic>,
        service: Service,
        gpus: [Option<&'static Device>; 2],
        bytes: usize,
    ) -> Result<Self, Verdict> {
        let near = Memory::new(&**nic, gpus[0], bytes)?;
        let far = Memory::new(&**nic, gpus[1], bytes)?;
        let (from, to) = queues(&**nic, service)?;
        Ok(Self {
            from,
            to,
            near,
            far,
        })
    }

    /// Address and key of byte `at` of the far memory, for the peer.
    pub(super) fn far_at(&self, at: usize) -> (u64, u32) {
        (self.far.key.address() + at as u64, self.far.key.rkey())
    }
}
