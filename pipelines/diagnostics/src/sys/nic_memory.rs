//! Host or GPU memory that network cards read and write. The CPU accesses this memory in words of 8 bytes.

use daq_core::gpu::driver::{CudaError, Device, Stream};
use daq_core::region::{Placement, Region, RegionError, SharedWords};
use daq_rdma::registration::{PeerFacts, Registered, UnregistrableError, register_region};
use daq_rdma::verbs::{Access, Nic};
use std::path::Path;
use std::sync::Arc;

/// Number of words that are copied from or to a GPU per step.
const PIECE: usize = 128 << 10;
const WORD: usize = size_of::<u64>();

/// Memory on the host or on a GPU whose words the CPU can read and write.
#[derive(Debug)]
pub struct NicMemory {
    /// The words on the host: the memory itself, or pinned words for copies from and to GPU memory.
    words: SharedWords,
    /// The memory on a GPU with the CUDA stream for copies; `None` for host memory.
    gpu: Option<(Stream, Arc<Region>)>,
    device: Option<&'static Device>,
}

/// Access rights that the memory grants to the peer.
pub const ANY: Access = Access::WRITE;

impl NicMemory {
    /// Allocates at least `bytes` zeroed bytes in host memory, or on `gpu`.
    pub fn new(gpu: Option<&'static Device>, bytes: usize) -> Result<Self, RegionError> {
        let Some(device) = gpu else {
            return Ok(Self {
                words: SharedWords::new(bytes)?,
                gpu: None,
                device: None,
            });
        };
        Ok(Self {
            words: SharedWords::pinned(device, PIECE * WORD)?,
            gpu: Some((Stream::new(device, 1)?, Region::cuda(device, bytes)?)),
            device: gpu,
        })
    }

    /// Returns the region of the memory.
    pub fn region(&self) -> &Arc<Region> {
        match &self.gpu {
            Some((_, region)) => region,
            None => self.words.region(),
        }
    }

    /// Registers the memory with the first method that works on this host.
    pub fn register(&self, nic: &dyn Nic) -> Result<Registered, UnregistrableError> {
        let facts = PeerFacts::read(Path::new("/"));
        let facts = match self.device {
            Some(device) => facts.with_gpu(device.attributes()),
            None => facts,
        };
        register_region(nic, self.region(), ANY, &facts)
    }

    /// Where the memory is allocated.
    pub fn placement(&self) -> Placement {
        self.region().placement()
    }

    /// Stores `words` at word index `at`.
    ///
    /// # Panics
    /// If the words exceed the memory.
    pub fn store(&self, at: usize, words: &[u64]) -> Result<(), CudaError> {
        self.check(at, words.len());
        let Some((stream, region)) = &self.gpu else {
            self.words.store_words(at * WORD, words);
            return Ok(());
        };
        for (i, piece) in words.chunks(PIECE).enumerate() {
            self.words.store_words(0, piece);
            let to = region.address().addr().get() + (at + i * PIECE) * WORD;
            let from = self.words.region().address().as_ptr();
            // SAFETY:
            // - The pinned memory has room for a piece. It is used only here, between two waits for its stream.
            // - The target is inside the region, as checked above, and `self` keeps the region. No reference to it
            //   exists.
            unsafe { stream.copy_in(to as u64, from, piece.len() * WORD) }?;
            stream.synchronize()?;
        }
        Ok(())
    }

    /// Loads `count` words at word index `at`.
    ///
    /// # Panics
    /// If the words exceed the memory.
    pub fn load(&self, at: usize, count: usize) -> Result<Vec<u64>, CudaError> {
        self.check(at, count);
        let load =
            |at: usize, count: usize| (at..at + count).map(|at| self.words.load64(at * WORD));
        let Some((stream, region)) = &self.gpu else {
            return Ok(load(at, count).collect());
        };
        let mut words = Vec::with_capacity(count);
        while words.len() < count {
            let piece = (count - words.len()).min(PIECE);
            let from = region.address().addr().get() + (at + words.len()) * WORD;
            let to = self.words.region().address().as_ptr();
            // SAFETY: the same invariants hold as in `store`, with source and target exchanged.
            unsafe { stream.copy_out(to, from as u64, piece * WORD) }?;
            stream.synchronize()?;
            words.extend(load(0, piece));
        }
        Ok(words)
    }

    fn check(&self, at: usize, count: usize) {
        let end = at.checked_add(count).and_then(|end| end.checked_mul(WORD));
        assert!(
            end.is_some_and(|end| end <= self.region().bytes()),
            "{count} words at word {at} exceed the region of {} bytes",
            self.region().bytes()
        );
    }
}

impl Drop for NicMemory {
    fn drop(&mut self) {
        if let Some((stream, _)) = &self.gpu {
            // After an error, copies may still be in flight, so wait for them before the memory is freed.
            let _ = stream.synchronize();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_words_round_trip() {
        let shared = NicMemory::new(None, 4096).unwrap();
        shared.store(3, &[7, 8]).unwrap();
        assert_eq!(shared.load(2, 4).unwrap(), [0, 7, 8, 0]);
    }

    #[test]
    #[should_panic(expected = "2 words at word 511")]
    fn shared_words_outside_are_rejected() {
        let shared = NicMemory::new(None, 4096).unwrap();
        let _ = shared.load(511, 2);
    }
}
