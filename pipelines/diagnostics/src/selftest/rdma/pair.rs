//! Two connected queue pairs of one card, each with its own memory.

use crate::selftest::Verdict;
use crate::sys::nic_memory::NicMemory;
use daq_core::gpu::driver::Device;
use daq_rdma::registration::Registered;
use daq_rdma::verbs::{
    MemoryRegion, Nic, Payload, QueuePair, QueuePairOptions, Service, Sge, Status, Verb,
    WorkCompletion, WorkRequest,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time to wait for a completion. If the peer posts no receive requests or does not answer, the card reports an
/// error much earlier.
const LIMIT: Duration = Duration::from_mins(1);
/// Maximum number of work requests per queue pair and direction.
pub(super) const WORK: u32 = 64;

/// Memory that the card can access. The order of the fields matters, because fields are dropped in the order of their
/// declaration.
pub(super) struct Memory {
    pub(super) key: MemoryRegion,
    pub(super) shared: NicMemory,
}

impl Memory {
    /// Registers `bytes` bytes of host memory, or of memory on `gpu`. If the card cannot register GPU memory, the check
    /// is skipped.
    pub(super) fn new(
        nic: &dyn Nic,
        gpu: Option<&'static Device>,
        bytes: usize,
    ) -> Result<Self, Verdict> {
        let shared = NicMemory::new(gpu, bytes)?;
        match shared.register(nic) {
            Ok(Registered { region: key, .. }) => Ok(Self { key, shared }),
            Err(refused) if gpu.is_some() => Err(Verdict::Skipped(refused.to_string())),
            Err(refused) => Err(Verdict::Failed(refused.to_string())),
        }
    }

    /// Returns an error unless the memory contains `words` at word index `at`.
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

/// Two connected queue pairs. The order of the fields matters: queue pairs are dropped before memory regions.
pub(super) struct Pair {
    pub(super) from: Box<dyn QueuePair>,
    pub(super) to: Box<dyn QueuePair>,
    pub(super) near: Memory,
    pub(super) far: Memory,
}

/// The queue pair that writes, and the queue pair whose memory is written.
type Two = (Box<dyn QueuePair>, Box<dyn QueuePair>);

/// Returns `count` words that all differ and depend on `number`.
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
    let mut done = [WorkCompletion::default()];
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

/// Returns an error unless the next completion of `queue` belongs to work request `id` and has the status `status`.
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
        "expected work request {id} to end with status {}, found work request {} with status {}",
        status.name(),
        done.id,
        done.status.name()
    )))
}

/// Posts a write of the memory `sge`.
pub(super) fn write(
    queue: &mut dyn QueuePair,
    id: u64,
    sge: Sge<'_>,
    (address, key): (u64, u32),
    immediate: Option<u32>,
) -> Result<(), Verdict> {
    let verb = Verb::write(address, key, immediate);
    Ok(queue.post_send(&WorkRequest {
        id,
        verb,
        payload: Payload::Memory(&[sge]),
        signaled: true,
    })?)
}

impl Pair {
    /// Creates two queue pairs of `nic`, each with `bytes` bytes of host or GPU memory.
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

    /// Returns the address and the remote key of byte `at` of the memory that the peer writes.
    pub(super) fn far_at(&self, at: usize) -> (u64, u32) {
        (self.far.key.address() + at as u64, self.far.key.rkey())
    }
}
