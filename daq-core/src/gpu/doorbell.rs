//! Words between the CPU and a persistent kernel: doorbells one way, credits the other.
//!
//! A doorbell is in GPU memory, where the kernel polls it without using the bus. Credits are in host memory, where
//! the CPU polls them. Neither side reads over the bus in a loop.

use crate::gpu::bar_mapping::{BarMapping, BarMappingError, Stores};
use crate::gpu::driver::{CudaError, Device};
use crate::region::{HostOptions, Region, RegionError};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A word that the CPU stores and a kernel polls.
#[derive(Clone, Debug)]
pub struct Doorbell {
    memory: Arc<BarMapping>,
    offset: usize,
}

impl Doorbell {
    /// The word at `offset` of `memory`.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8.
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

    /// The word's address, as the kernel sees it.
    pub fn address(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }

    /// Stores `value`. Earlier stores through the same memory, and stores fenced elsewhere, become visible first.
    pub fn ring(&self, value: u64) -> Result<(), BarMappingError> {
        let mut stores = self.memory.stores()?;
        self.ring_with(&mut stores, value)
    }

    /// Stores `value` after everything that was stored through `stores`, which must be of the same memory. It has
    /// left the CPU once `stores` are fenced again or dropped.
    ///
    /// # Panics
    /// If `stores` are of other memory.
    pub fn ring_with(&self, stores: &mut Stores<'_>, value: u64) -> Result<(), BarMappingError> {
        assert!(stores.are_of(&self.memory), "stores to other memory");
        stores.fence();
        stores.word(self.offset, value)
    }
}

/// Words in host memory through which a persistent kernel reports the frames that it has completed.
///
/// Frames, counted from the kernel's start, are assigned to `teams` in turn. A team has `blocks` blocks, and each
/// block has one word: the number of frames of its team that it has completed.
pub struct Credits {
    region: Arc<Region>,
    teams: u64,
    blocks: u64,
    /// Frames that are known to be complete.
    done: AtomicU64,
    /// Why no more frames will complete.
    failure: OnceLock<CudaError>,
}

impl Credits {
    /// Allocates zeroed words for `teams` teams of `blocks` blocks, each at least 1.
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

    /// The address of the words, as the kernel sees it: the word of block `b` of team `t` has index `t * blocks + b`.
    pub fn address(&self) -> u64 {
        self.region.address().as_ptr().addr() as u64
    }

    /// The words, each with one writer: a block of the kernel.
    fn words(&self) -> &[AtomicU64] {
        let words = usize::try_from(self.teams * self.blocks).unwrap_or(0);
        // SAFETY: the region has room for the words, lives as long as `self`, starts at a page and was zeroed. The
        // CPU and the GPU write only whole words.
        unsafe { std::slice::from_raw_parts(self.region.address().cast().as_ptr(), words) }
    }

    /// Records that the kernel has failed: no more frames will complete.
    pub fn fail(&self, error: CudaError) {
        let _ = self.failure.set(error);
    }

    /// Why the kernel failed; `None` if no failure is known.
    pub fn failure(&self) -> Option<&CudaError> {
        self.failure.get()
    }

    /// Whether all frames before `at` are complete.
    pub fn has(&self, at: u64) -> bool {
        if self.done.load(Ordering::Relaxed) >= at {
            // Another thread may have seen the words: pairs with its release below.
            std::sync::atomic::fence(Ordering::Acquire);
            return true;
        }
        let words = self.words();
        let blocks = usize::try_from(self.blocks).unwrap_or(1);
        for (team, words) in (0..).zip(words.chunks(blocks)) {
            // The number of the team's frames before `at`.
            let due = (at + self.teams - 1 - team) / self.teams;
            if words.iter().any(|word| word.load(Ordering::Acquire) < due) {
                return false;
            }
        }
        self.done.fetch_max(at, Ordering::Release);
        true
    }

    /// The current values, for messages about a kernel that hangs.
    pub fn values(&self) -> Vec<u64> {
        let words = self.words().iter();
        words.map(|word| word.load(Ordering::Acquire)).collect()
    }

    /// Leaks the words until the process ends: a kernel that hangs may still write them.
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
    /// Credits that are not pinned, and what a kernel would do to them.
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
