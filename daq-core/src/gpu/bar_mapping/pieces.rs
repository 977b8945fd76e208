//! Parts that several backends use: the components of a mapping, allocation of CUDA memory, and time measurement.

use super::Costs;
use crate::gpu::driver::{Backing, Device, Memory};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// The reason why a backend failed, with a remedy.
#[derive(Debug)]
pub(super) struct Refused(pub(super) String);

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self(why)
    }
}

/// The components of a mapping that a backend created. `M` owns the memory, and is dropped together with the mapping.
pub(super) struct Pieces<M> {
    pub(super) cpu: NonNull<u8>,
    pub(super) gpu: u64,
    pub(super) bytes: usize,
    pub(super) costs: Costs,
    pub(super) made: M,
}

impl<M> Pieces<M> {
    pub(super) fn new((cpu, gpu, bytes): (NonNull<u8>, u64, usize), made: M) -> Self {
        Self {
            cpu,
            gpu,
            bytes,
            costs: Costs::default(),
            made,
        }
    }

    /// Returns the same components with `own` applied to the owner of the memory.
    pub(super) fn map<N>(self, own: impl FnOnce(M) -> N) -> Pieces<N> {
        Pieces {
            cpu: self.cpu,
            gpu: self.gpu,
            bytes: self.bytes,
            costs: self.costs,
            made: own(self.made),
        }
    }
}

/// Measures the duration of each step.
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the last step.
    pub(super) fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now.saturating_duration_since(std::mem::replace(&mut self.0, now))
    }
}

/// Rounds `bytes` up to whole pages, at least one page.
pub(super) fn whole_pages(bytes: usize, page: usize) -> Result<usize, Refused> {
    let whole = bytes.max(1).checked_next_multiple_of(page);
    whole.ok_or_else(|| Refused(format!("{bytes} bytes exceed the address space")))
}

/// Allocates CUDA memory of kind `backing`; if `backing` is `None`, of the best kind that the device supports. The
/// memory contains a range of `bytes` bytes that starts at a multiple of `page`. Code other than CUDA may write to the
/// memory. Also returns how long the allocation took.
pub(super) fn allocate(
    device: &'static Device,
    bytes: usize,
    page: usize,
    backing: Option<Backing>,
) -> Result<(Memory, Duration), Refused> {
    let mut stopwatch = Stopwatch::new();
    let plain = |bytes: usize| Memory::with(device, bytes.saturating_add(page), Backing::Plain);
    let memory = match backing {
        Some(Backing::Plain) => plain(bytes),
        Some(backing) => Memory::with(device, bytes, backing),
        None => match Memory::new(device, bytes) {
            Ok(memory) if plain_offset(&memory, page) == 0 => Ok(memory),
            Ok(_) => plain(bytes),
            Err(error) => Err(error),
        },
    };
    let memory = memory.map_err(|error| error.to_string())?;
    memory
        .synchronize_copies()
        .map_err(|error| error.to_string())?;
    Ok((memory, stopwatch.lap()))
}

/// Returns the number of bytes of `memory` before the first multiple of `page`, because plain allocations need not be
/// aligned to pages.
pub(super) fn plain_offset(memory: &Memory, page: usize) -> u64 {
    memory.address().next_multiple_of(page as u64) - memory.address()
}
