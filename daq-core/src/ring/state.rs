//! The state of a ring in memory that other processes can map read-only.
//!
//! ```text
//!   byte     0  magic, version
//!   byte    64  published    frames before this one can be read
//!   byte   128  reserved     frames before this one are being, or have been, written
//!   byte   192  closed       1 after the producer was dropped
//!   byte   256  wake         futex word of 4 bytes for readers in other processes
//!   byte  4096  records      one per slot, see `Slots`
//! ```
//! All words are little-endian.

use super::RingError;
use super::slot::Slots;
use crate::sync::AtomicU64;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::AtomicU32;

/// Offset of the records of the slots in bytes.
pub(super) const RECORDS: usize = 4096;
/// `daqring1` in ASCII.
const MAGIC: u64 = u64::from_le_bytes(*b"daqring1");
/// Version of the layout.
const VERSION: u64 = 1;

/// A value on its own cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Line<T>(T);

impl<T> Deref for Line<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The positions of a ring.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Positions {
    identity: Line<[u64; 2]>,
    /// Frames before this one can be read.
    pub(super) published: Line<AtomicU64>,
    /// Frames before this one are being, or have been, written.
    pub(super) reserved: Line<AtomicU64>,
    /// 1 after the producer was dropped.
    pub(super) closed: Line<AtomicU64>,
    /// Incremented when readers in other processes must be woken.
    pub(super) wake: Line<AtomicU32>,
}

impl Positions {
    fn new() -> Self {
        Self {
            identity: Line([MAGIC.to_le(), VERSION.to_le()]),
            published: Line(AtomicU64::new(0)),
            reserved: Line(AtomicU64::new(0)),
            closed: Line(AtomicU64::new(0)),
            wake: Line(AtomicU32::new(0)),
        }
    }
}

/// The positions and records of a ring.
pub(super) struct State {
    positions: memory::Positions,
    pub(super) slots: Slots,
}

impl State {
    /// Allocates the state of a ring of `slots` slots. Frames have at most `packets_per_frame` packets and keep `kept`
    /// fields.
    pub(super) fn new(
        slots: usize,
        packets_per_frame: u32,
        kept: usize,
    ) -> Result<Self, RingError> {
        let bytes = Slots::bytes(slots, packets_per_frame, kept);
        let (positions, records) = memory::allocate(bytes)?;
        Ok(Self {
            positions,
            slots: Slots::new(records, packets_per_frame, kept),
        })
    }

    /// Returns the size of the state in bytes.
    pub(super) const fn bytes(slots: usize, packets_per_frame: u32, kept: usize) -> usize {
        RECORDS + Slots::bytes(slots, packets_per_frame, kept)
    }

    /// Returns the memory, for sharing it with other processes.
    #[cfg(not(loom))]
    pub(super) const fn memory(&self) -> &std::sync::Arc<crate::region::Region> {
        self.positions.memory()
    }
}

impl Deref for State {
    type Target = Positions;

    fn deref(&self) -> &Positions {
        &self.positions
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("positions", &**self)
            .finish_non_exhaustive()
    }
}

pub(super) use memory::Records;

#[cfg(not(loom))]
mod memory {
    use super::RECORDS;
    use crate::region::{HostOptions, Region, RegionError};
    use std::ops::Deref;
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    /// Positions at the start of a region.
    pub(in crate::ring) struct Positions {
        positions: NonNull<super::Positions>,
        memory: Arc<Region>,
    }

    /// Words of a region.
    #[derive(Debug)]
    pub(in crate::ring) struct Records {
        words: NonNull<[AtomicU64]>,
        _memory: Arc<Region>,
    }

    // SAFETY: the memory contains only atomics and values that never change, and lives as long as the value.
    unsafe impl Send for Positions {}
    // SAFETY: as for `Send`.
    unsafe impl Sync for Positions {}
    // SAFETY: the memory contains only atomics, and lives as long as the value.
    unsafe impl Send for Records {}
    // SAFETY: as for `Send`.
    unsafe impl Sync for Records {}

    /// Allocates positions, and zeroed records of `bytes` bytes.
    pub(super) fn allocate(bytes: usize) -> Result<(Positions, Records), RegionError> {
        const { assert!(size_of::<super::Positions>() <= RECORDS) };
        let options = HostOptions {
            shared: true,
            ..HostOptions::default()
        };
        let memory = Region::host(RECORDS + bytes, options)?;
        let positions = memory.address().cast::<super::Positions>();
        // SAFETY: the region starts at a page boundary, is larger than the value, and nothing else uses it yet.
        unsafe { positions.write(super::Positions::new()) };
        // SAFETY: the records are inside the region.
        let records = unsafe { memory.address().add(RECORDS) }.cast::<AtomicU64>();
        let records = Records {
            words: NonNull::slice_from_raw_parts(records, bytes / 8),
            _memory: memory.clone(),
        };
        Ok((Positions { positions, memory }, records))
    }

    impl Positions {
        /// Returns the region that contains positions and records.
        pub(super) const fn memory(&self) -> &Arc<Region> {
            &self.memory
        }
    }

    impl Deref for Positions {
        type Target = super::Positions;

        #[inline]
        fn deref(&self) -> &super::Positions {
            // SAFETY: `allocate` has initialised the value, which is part of a region that lives as long as `self`. Other
            // processes can only read the memory, and this process changes only atomics.
            unsafe { self.positions.as_ref() }
        }
    }

    impl Deref for Records {
        type Target = [AtomicU64];

        #[inline]
        fn deref(&self) -> &[AtomicU64] {
            // SAFETY: the words are inside a zeroed region that lives as long as `self`. Other processes can only read
            // the memory.
            unsafe { self.words.as_ref() }
        }
    }
}

/// Under loom, private memory without system calls, because loom creates each ring many thousand times.
#[cfg(loom)]
mod memory {
    use crate::region::RegionError;
    use std::sync::atomic::AtomicU64;

    pub(in crate::ring) type Positions = Box<super::Positions>;
    pub(in crate::ring) type Records = Box<[AtomicU64]>;

    pub(super) fn allocate(bytes: usize) -> Result<(Positions, Records), RegionError> {
        let records = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        Ok((Box::new(super::Positions::new()), records))
    }
}
