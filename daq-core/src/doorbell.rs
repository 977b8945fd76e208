//! Words through which the CPU and a persistent kernel notify each other: doorbells to the kernel, credits to the CPU.
//!
//! A doorbell is in GPU memory, where the kernel polls it without using the PCIe bus. Credits are in host memory, where
//! the CPU polls them. Neither side polls over the bus.

use crate::gpu::bar_mapping::{BarMapping, BarMappingError, Stores};
use crate::gpu::driver::{CudaError, Device};
use crate::leak::leak;
use crate::region::{RegionError, SharedWords};
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
    /// Creates a doorbell that uses the word at `offset` of `memory`.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8.
    pub fn new(memory: Arc<BarMapping>, offset: usize) -> Result<Self, BarMappingError> {
        assert!(
            offset.is_multiple_of(8),
            "the offset of a word must be a multiple of 8"
        );
        if offset.saturating_add(8) > memory.bytes() {
            return Err(BarMappingError::Outside {
                offset,
                bytes: 8,
                have: memory.bytes(),
            });
        }
        Ok(Self { memory, offset })
    }

    /// Returns the word's address, as the kernel sees it.
    pub fn address(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }

    /// Stores `value`. Earlier stores through the same mapping, and earlier fenced stores to other memory, become
    /// visible to the kernel first.
    pub fn ring(&self, value: u64) -> Result<(), BarMappingError> {
        let mut stores = self.memory.stores()?;
        self.ring_with(&mut stores, value)
    }

    /// Stores `value` after all earlier stores of `stores`, which must belong to the same mapping. The value has left
    /// the CPU after `stores` is fenced again or dropped.
    ///
    /// # Panics
    /// If `stores` belongs to another mapping.
    pub fn ring_with(&self, stores: &mut Stores<'_>, value: u64) -> Result<(), BarMappingError> {
        assert!(
            stores.are_of(&self.memory),
            "the stores must belong to the doorbell's mapping"
        );
        stores.fence();
        stores.word(self.offset, value)
    }
}

/// Words in host memory through which a persistent kernel reports the frames that it has completed.
///
/// Frame `n`, counted from the kernel's start, belongs to group `n % groups`. A group has `blocks` blocks. Each block
/// has one word, which contains the number of the group's frames that the block has completed.
pub struct Credits {
    words: SharedWords,
    groups: u64,
    blocks: u64,
    /// Number of frames that are known to be complete, counted from the kernel's start without gaps.
    done: AtomicU64,
    /// The failure because of which no more frames will complete.
    failure: OnceLock<CudaError>,
}

impl Credits {
    /// Allocates zeroed words for `groups` groups of `blocks` blocks, each at least 1.
    pub fn new(
        device: &'static Device,
        groups: u32,
        blocks: u32,
    ) -> Result<Arc<Self>, RegionError> {
        let bytes = u64::from(groups.max(1)) * u64::from(blocks.max(1)) * 8;
        let words = SharedWords::pinned(device, usize::try_from(bytes).unwrap_or(usize::MAX))?;
        Ok(Arc::new(Self::with(words, groups, blocks)))
    }

    /// Uses `words`, which must have room for the words of all blocks.
    pub(crate) fn with(words: SharedWords, groups: u32, blocks: u32) -> Self {
        Self {
            words,
            groups: groups.max(1).into(),
            blocks: blocks.max(1).into(),
            done: AtomicU64::new(0),
            failure: OnceLock::new(),
        }
    }

    /// Sets one word, as the kernel does.
    #[cfg(test)]
    pub(crate) fn set(&self, word: usize, value: u64) {
        self.words.store64(8 * word, value);
    }

    /// Returns the address of the words, as the kernel sees it. The word of block `b` of group `t` has the index
    /// `t * blocks + b`.
    pub fn address(&self) -> u64 {
        self.words.address()
    }

    /// Returns the words. Exactly one block of the kernel writes each word.
    fn words(&self) -> &[AtomicU64] {
        let words = usize::try_from(self.groups * self.blocks).unwrap_or(0);
        &self.words.words()[..words]
    }

    /// Records that the kernel has failed: no more frames will complete.
    pub fn fail(&self, error: CudaError) {
        let _ = self.failure.set(error);
    }

    /// Returns the kernel's failure; `None` if no failure is known.
    pub fn failure(&self) -> Option<&CudaError> {
        self.failure.get()
    }

    /// Whether all frames before frame `at` are complete.
    pub fn has(&self, at: u64) -> bool {
        if self.done.load(Ordering::Relaxed) >= at {
            // Another thread may have read the words. This fence pairs with the release store of that thread below.
            std::sync::atomic::fence(Ordering::Acquire);
            return true;
        }
        let words = self.words();
        let blocks = usize::try_from(self.blocks).unwrap_or(1);
        for (group, words) in (0..).zip(words.chunks(blocks)) {
            // The number of the group's frames before `at`.
            let due = (at + self.groups - 1 - group) / self.groups;
            if words.iter().any(|word| word.load(Ordering::Acquire) < due) {
                return false;
            }
        }
        self.done.fetch_max(at, Ordering::Release);
        true
    }

    /// Returns the current values, for messages about a kernel that hangs.
    pub fn values(&self) -> Vec<u64> {
        let words = self.words().iter();
        words.map(|word| word.load(Ordering::Acquire)).collect()
    }

    /// [Leaks](crate::leak) the words, because a kernel that hangs may still write them.
    pub fn leak(self: &Arc<Self>) {
        leak(self.clone());
    }
}

impl fmt::Debug for Credits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credits")
            .field("groups", &self.groups)
            .field("blocks", &self.blocks)
            .field("done", &self.done.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns credits and their words, which the test writes instead of a kernel.
    fn credits(groups: u32, blocks: u32) -> Credits {
        let words = SharedWords::new(8 * groups as usize * blocks as usize).unwrap();
        Credits::with(words, groups, blocks)
    }

    #[test]
    fn frame_completes_when_all_its_blocks_complete() {
        let credits = credits(3, 2);
        let give = |word: usize, value| credits.set(word, value);
        assert!(credits.has(0));
        assert!(!credits.has(1));
        give(0, 1);
        assert!(!credits.has(1), "the second block has not finished");
        give(1, 1);
        assert!(credits.has(1));
        assert!(!credits.has(2));
        // Group 2 is ahead of group 1.
        give(4, 2);
        give(5, 2);
        assert!(!credits.has(2));
        give(2, 1);
        give(3, 1);
        assert!(credits.has(3));
        assert!(!credits.has(4));
        give(0, 2);
        give(1, 2);
        assert!(credits.has(4));
        assert!(!credits.has(5) && !credits.has(6));
        assert_eq!(credits.values(), [2, 2, 1, 1, 2, 2]);
    }

    /// Compares the result for arbitrary counts of the blocks with a check of each single frame.
    #[test]
    fn completed_frames_end_before_first_incomplete() {
        for groups in 1..5_u32 {
            for counts in 0..4_u64.pow(groups) {
                let credits = credits(groups, 1);
                let count = |group: u64| counts / 4_u64.pow(u32::try_from(group).unwrap()) % 4;
                for group in 0..u64::from(groups) {
                    credits.set(usize::try_from(group).unwrap(), count(group));
                }
                let groups = u64::from(groups);
                let done = (0..100).find(|frame| frame / groups >= count(frame % groups));
                let done = done.unwrap();
                for at in 0..20 {
                    assert_eq!(credits.has(at), at <= done, "{groups} {counts} {at}");
                }
            }
        }
    }
}
