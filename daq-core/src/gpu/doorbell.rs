//! Words between the CPU and a persistent kernel: doorbells one way, credits the other.
//!
//! A doorbell lies in GPU memory, where the kernel polls it without the bus; credits lie in host memory, where the CPU
//! polls them. Neither side ever reads over the bus in a loop.

use crate::gpu::bar_mapping::{BarMapping, BarMappingError, Stores};
use crate::gpu::driver::{CudaError, Device};
use crate::region::{HostOptions, Region, RegionError};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A word that a kernel polls and the CPU stores.
#[derive(Clone, Debug)]
pub struct Doorbell {
    memory: Arc<BarMapping>,
    offset: usize,
}

impl Doorbell {
    /// The word at `offset` of `memory`, which must be a multiple of 8.
    ///
    /// # Panics
    /// If it is none.
    pub fn new(memory: Arc<BarMapping>, offset: usize) -> Result<Self, BarMappingError> {
        assert!(offset.is_multiple_of(8), "a word lies on a multiple of 8");
        if offset.saturating_add(8) > memory.bytes() {
            return Err(BarMappingError::Outside {
                offset,
                bytes: 8,
                have: memory.bytes(),
            });
        }
        Ok(Self { memory, offset })
    }

    /// Where the kernel finds it.
    pub fn address(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }

    /// Stores `value`: what was stored before through the same memory, or was fenced elsewhere, is there first.
    pub fn ring(&self, value: u64) -> Result<(), BarMappingError> {
        let mut stores = self.memory.stores()?;
        self.ring_with(&mut stores, value)
    }

    /// Stores `value` behind everything that was stored through `stores`, which are of the same memory; it has left the
    /// CPU once they are fenced again or dropped.
    ///
    /// # Panics
    /// If they are of other memory.
    pub fn ring_with(&self, stores: &mut Stores<'_>, value: u64) -> Result<(), BarMappingError> {
        assert!(stores.are_of(&self.memory), "stores to other memory");
        stores.fence();
        stores.word(self.offset, value)
    }
}

/// Words in host memory through which a persistent kernel says which frames it is done with.
///
/// Frames, counted from the kernel's start, are dealt to `teams` in turn; a team has `blocks` blocks, and each block has
/// a word: how many frames of its team it is done with.
pub struct Credits {
    region: Arc<Region>,
    teams: u64,
    blocks: u64,
    /// Frames that are known to be done.
    done: AtomicU64,
    /// Why no more will be done.
    failure: OnceLock<CudaError>,
}

impl Credits {
    /// Words for `teams` teams of `blocks` blocks, each at least 1, all zero.
    pub fn new(device: &'static Device, teams: u32, blocks: u32) -> Result<Arc<Self>, RegionError> {
        let credits = Self::unpinned(teams, blocks)?;
        credits.region.pin(device)?;
        Ok(Arc::new(credits))
    }

    fn unpinned(teams: u32, blocks: u32) -> Result<Self, RegionError> {
        let (teams, blocks) = (u64::from(teams.max(1)), u64::from(blocks.max(1)));
        let bytes = usize::try_from(teams * blocks * 8).unwrap_or(usize::MAX);
        Ok(Self {
            region: Region::host(bytes, HostOptions::default())?,
            teams,
            blocks,
            done: AtomicU64::new(0),
            failure: OnceLock::new(),
        })
    }

    /// Where the kernel finds the words: that of block `b` of team `t` is number `t * blocks + b`.
    pub fn address(&self) -> u64 {
        self.region.address().as_ptr().addr() as u64
    }

    /// The words, each with one writer: a block of the kernel.
    fn words(&self) -> &[AtomicU64] {
        let words = usize::try_from(self.teams * self.blocks).unwrap_or(0);
        // SAFETY: the region has room for them, lives as long as `self`, begins at a page and was zeroed; whoever
        // writes them, here or on the GPU, writes whole words.
        unsafe { std::slice::from_raw_parts(self.region.address().cast().as_ptr(), words) }
    }

    /// The kernel has failed: no more frames will be done.
    pub fn fail(&self, error: CudaError) {
        let _ = self.failure.set(error);
    }

    /// Why the kernel failed; `None` while it is not known to have.
    pub fn failure(&self) -> Option<&CudaError> {
        self.failure.get()
    }

    /// Whether all frames before `at` are done.
    pub fn has(&self, at: u64) -> bool {
        if self.done.load(Ordering::Relaxed) >= at {
            // Whoever saw it may have been another thread.
            std::sync::atomic::fence(Ordering::Acquire);
            return true;
        }
        let words = self.words();
        let blocks = usize::try_from(self.blocks).unwrap_or(1);
        for (team, words) in (0..).zip(words.chunks(blocks)) {
            // Frames before `at` that are the team's.
            let due = (at + self.teams - 1 - team) / self.teams;
            if words.iter().any(|word| word.load(Ordering::Acquire) < due) {
                return false;
            }
        }
        self.done.fetch_max(at, Ordering::Release);
        true
    }

    /// The words now, for messages about a kernel that hangs.
    pub fn values(&self) -> Vec<u64> {
        let words = self.words().iter();
        words.map(|word| word.load(Ordering::Acquire)).collect()
    }

    /// Keeps the words until the process ends: a kernel that hangs may still write them.
    pub fn leak_memory(self: &Arc<Self>) {
        std::mem::forget(self.clone());
    }
}

impl fmt::Debug for Credits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credits")
            .field("teams", &self.teams)
            .field("blocks", &self.blocks)
            .field("done", &self.done.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Credits {
    /// Credits that nobody pinned, and what a kernel would do to them.
    pub(crate) fn fake(teams: u32, blocks: u32) -> Arc<Self> {
        Arc::new(Self::unpinned(teams, blocks).unwrap())
    }

    pub(crate) fn give(&self, word: usize, value: u64) {
        self.words()[word].store(value, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_completes_when_all_its_blocks_complete() {
        let credits = Credits::fake(3, 2);
        assert!(credits.has(0));
        assert!(!credits.has(1));
        credits.give(0, 1);
        assert!(!credits.has(1), "the second block is not done");
        credits.give(1, 1);
        assert!(credits.has(1));
        assert!(!credits.has(2));
        // Team 2 is ahead of team 1.
        credits.give(4, 2);
        credits.give(5, 2);
        assert!(!credits.has(2));
        credits.give(2, 1);
        credits.give(3, 1);
        assert!(credits.has(3));
        assert!(!credits.has(4));
        credits.give(0, 2);
        credits.give(1, 2);
        assert!(credits.has(4));
        assert!(!credits.has(5) && !credits.has(6));
        assert_eq!(credits.values(), [2, 2, 1, 1, 2, 2]);
    }

    /// Any counts of the blocks against the frames one by one.
    #[test]
    fn completed_frames_end_before_first_incomplete() {
        for teams in 1..5_u32 {
            for counts in 0..4_u64.pow(teams) {
                let credits = Credits::fake(teams, 1);
                let count = |team: u64| counts / 4_u64.pow(u32::try_from(team).unwrap()) % 4;
                for team in 0..u64::from(teams) {
                    credits.give(usize::try_from(team).unwrap(), count(team));
                }
                let teams = u64::from(teams);
                let done = (0..100).find(|frame| frame / teams >= count(frame % teams));
                let done = done.unwrap();
                for at in 0..20 {
                    assert_eq!(
                        Credits::has(&credits, at),
                        at <= done,
                        "{teams} {counts} {at}"
                    );
                }
            }
        }
    }
}
