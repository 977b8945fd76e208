//! Rings: a region divided into equal slots, with one producer and any number of readers.
//!
//! ```text
//!            oldest frame a reader holds          published      reserved
//!                      │                              │              │
//!   frames  … ─────────┼── leased or waiting ─────────┼── being ─────┼── free …
//!                      │                              │   written    │
//!                      └────────────── at most `slots` ──────────────┘
//! ```
//! Frame `n` (counted from the creation of the ring) is stored in slot `n % slots`.
//!
//! # Guarantees
//! - A reader sees frames in order, each at most once, and never a frame that is still being written.
//! - The frames of a lease do not change while it exists. A *guaranteed* reader applies backpressure to the producer.
//!   An unguaranteed reader protects only the slots that it has leased, and only from a producer that supports
//!   backpressure. If the producer does not, the lease covers a private copy that was checked after copying.
//! - `published since attach = read + overrun + discarded + pending`, at any moment.
//! - After a reader is attached, no function of this module blocks, allocates memory or makes a system call, except to
//!   wake a sleeping thread.
//!
//! # Not guaranteed
//! - An unguaranteed reader can miss frames. Missed frames are counted as `overrun`.

mod completion;
mod frame;
mod lease;
mod producer;
mod reader;
mod scratch;
#[cfg(not(loom))]
mod share;
mod slot;
mod state;
mod tap;
mod work;

pub use completion::Completion;
pub use frame::Frame;
pub use lease::Lease;
pub use producer::{Producer, SlotsMut};
pub use reader::Reader;
#[cfg(not(loom))]
pub use share::SharedRing;
pub use tap::{Tap, TapFrame};
pub use work::WorkInFlight;

use crate::frame::MAX_KEPT_FIELDS;
use crate::gpu::driver::CudaError;
use crate::ledger::{ReaderLedger, RingLedger};
use crate::notify::Notifier;
use crate::region::{Placement, Region, RegionError};
use crate::sync::{Arc, AtomicU64, Ordering, fence};
use crossbeam_utils::CachePadded;
use state::State;
use std::sync::PoisonError;

#[cfg(test)]
mod tests;

/// The pattern that missing packets are filled with before a frame is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill([u8; 4]);

impl Fill {
    /// A pattern of zeros.
    pub const ZERO: Self = Self([0; 4]);

    /// Creates a pattern in which every byte is `byte`.
    pub const fn byte(byte: u8) -> Self {
        Self([byte; 4])
    }

    /// Creates a pattern of quiet NaNs. Bytes of ones are NaN in every IEEE 754 format and in bfloat16, in both byte orders.
    pub const fn nan() -> Self {
        Self::byte(0xff)
    }

    /// Returns the four bytes that are repeated from the start of the frame.
    pub const fn pattern(self) -> [u8; 4] {
        self.0
    }
}

impl Default for Fill {
    fn default() -> Self {
        Self::ZERO
    }
}

/// Options for creating a ring.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// The ring's name in reports.
    pub name: String,
    /// Number of slots, at least 2.
    pub slots: usize,
    /// Slot size in payload bytes, at least 1.
    pub slot_bytes: usize,
    /// Maximum number of packets in a frame; 0 if frames do not consist of packets.
    pub packets_per_frame: u32,
    /// Names of the fields that frames keep ([`FrameMeta::kept`](crate::frame::FrameMeta::kept)), at most
    /// [`MAX_KEPT_FIELDS`]. Further fields are not stored.
    pub kept: Vec<String>,
    /// Whether the producer can wait for free slots (backpressure).
    pub supports_backpressure: bool,
    /// Maximum number of readers attached at a time.
    pub readers: usize,
    /// The fill pattern for missing packets.
    pub fill: Fill,
    /// Notified when frames are published and when slots are freed, for threads that serve several rings.
    pub notifiers: Vec<std::sync::Arc<Notifier>>,
    /// Whether one thread is both the producer and the only reader. The ring then sends no notifications, because the
    /// fence of a notification would wait for stores to a GPU.
    pub single_threaded: bool,
}

impl RingOptions {
    /// Creates options with default values: frames without packets, a producer with backpressure, at most eight
    /// readers, and zeros for missing packets.
    pub fn new(name: impl Into<String>, slots: usize, slot_bytes: usize) -> Self {
        Self {
            name: name.into(),
            slots,
            slot_bytes,
            packets_per_frame: 0,
            kept: Vec::new(),
            supports_backpressure: true,
            readers: 8,
            fill: Fill::ZERO,
            notifiers: Vec::new(),
            single_threaded: false,
        }
    }

    /// Returns the distance between the starts of neighbouring slots in bytes.
    pub const fn stride(&self) -> usize {
        self.slot_bytes.next_multiple_of(64)
    }

    /// Returns the minimum size of the ring's region in bytes.
    pub const fn region_bytes(&self) -> usize {
        self.stride() * self.slots
    }

    /// Returns the size in bytes of the host memory outside the region, which contains frame metadata and `present`
    /// bitmaps.
    pub fn metadata_bytes(&self) -> usize {
        State::bytes(self.slots, self.packets_per_frame, self.kept_fields())
    }

    /// Returns the number of fields that each frame can keep.
    pub fn kept_fields(&self) -> usize {
        self.kept.len().min(MAX_KEPT_FIELDS)
    }
}

/// The error for a ring that could not be created, or a reader that could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Fewer than two slots, or slots of zero bytes.
    #[error(
        "ring `{name}` has {slots} slots of {slot_bytes} bytes, but a ring needs at least 2 slots of at least 1 byte"
    )]
    Shape {
        /// Name of the ring.
        name: String,
        /// Requested number of slots.
        slots: usize,
        /// Requested slot size in bytes.
        slot_bytes: usize,
    },
    /// The region is too small.
    #[error("ring `{name}` needs {need} bytes, but its region has only {have}")]
    RegionTooSmall {
        /// Name of the ring.
        name: String,
        /// Required size of the region in bytes.
        need: usize,
        /// Actual size of the region in bytes.
        have: usize,
    },
    /// The memory for positions and metadata could not be allocated.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// A reader would have to copy frames out of memory that the CPU cannot read.
    #[error(
        "cannot attach a reader without `guarantee` to ring `{name}`: the ring's producer does not support backpressure, so frames must be copied, but the CPU cannot read memory on {placement}; set `guarantee = true` for this reader"
    )]
    Unreadable {
        /// Name of the ring.
        name: String,
        /// The memory of the ring.
        placement: Placement,
    },
    /// The maximum number of readers is attached.
    #[error("ring `{name}` already has {readers} readers, which is the maximum")]
    Readers {
        /// Name of the ring.
        name: String,
        /// The maximum number of readers.
        readers: usize,
    },
}

/// Consecutive slots of a ring, for access by a device. Frame `i` starts at `base + (first + i) % slots * stride`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// The address of the ring's first slot.
    pub base: u64,
    /// Distance between the starts of neighbouring slots in bytes.
    pub stride: usize,
    /// Number of slots of the ring.
    pub slots: usize,
    /// The slot of the first frame.
    pub first: usize,
    /// Number of frames.
    pub len: usize,
}

impl Slice {
    /// Returns the slots after the first `frames` frames.
    #[must_use]
    pub const fn after(&self, frames: usize) -> Self {
        Self {
            first: (self.first + frames) % self.slots,
            len: self.len.saturating_sub(frames),
            ..*self
        }
    }

    /// Returns the address of frame `i`.
    pub const fn address(&self, i: usize) -> u64 {
        self.base + ((self.first + i) % self.slots * self.stride) as u64
    }

    /// Returns the number of frames before the end of the ring. These frames are contiguous in memory.
    pub const fn contiguous(&self) -> usize {
        let before_end = self.slots - self.first;
        if self.len < before_end {
            self.len
        } else {
            before_end
        }
    }
}

/// Value of a reader's bound if the reader protects no slots from being overwritten.
const UNBOUND: u64 = u64::MAX;

/// The state that a reader shares with the producer, called the reader's cell.
#[derive(Debug)]
struct Cell {
    /// Slots of this frame and all later frames must not be overwritten; [`UNBOUND`] if no slot is protected.
    bound: AtomicU64,
    /// Frames before this one are retired; [`UNBOUND`] while the cell is free.
    retired: AtomicU64,
}

/// Cells that represent the payload of each slot in model checking.
#[cfg(loom)]
#[derive(Debug)]
struct Canaries(Box<[crate::sync::UnsafeCell<u64>]>);

// SAFETY: loom checks that no access to a cell is concurrent with a write.
#[cfg(loom)]
unsafe impl Sync for Canaries {}

#[cfg(loom)]
impl std::ops::Index<usize> for Canaries {
    type Output = crate::sync::UnsafeCell<u64>;

    fn index(&self, slot: usize) -> &Self::Output {
        &self.0[slot]
    }
}

#[derive(Debug)]
struct Shared {
    options: RingOptions,
    region: std::sync::Arc<Region>,
    /// The positions of the producer, and the metadata of the frames.
    state: State,
    /// 1 after a reader was detached whose device may still use its slots.
    leaked: AtomicU64,
    cells: Box<[CachePadded<Cell>]>,
    /// The ledgers of the attached readers, by index of the reader's cell.
    readers: std::sync::Mutex<Vec<Option<ReaderLedger>>>,
    ledger: RingLedger,
    /// Notified when frames are published.
    filled: Notifier,
    /// Notified when slots are freed.
    freed: Notifier,
    /// Represents the payload of each slot in model checking, where loom detects every unordered access.
    #[cfg(loom)]
    canary: Canaries,
}

/// A handle to a ring, to attach readers and query its state.
#[derive(Clone, Debug)]
pub struct Ring {
    shared: Arc<Shared>,
}

impl Ring {
    /// Creates a ring by dividing `region` into slots. Also returns the ring's only producer.
    ///
    /// ```
    /// use daq_core::ledger::{ReaderLedger, RingLedger};
    /// use daq_core::region::{HostOptions, Region};
    /// use daq_core::ring::{Ring, RingOptions};
    /// use daq_core::frame::FrameMeta;
    ///
    /// let options = RingOptions::new("raw", 4, 1024);
    /// let region = Region::host(options.region_bytes(), HostOptions::default())?;
    /// let (ring, mut producer) = Ring::new(region, options, RingLedger::default())?;
    /// let mut reader = ring.attach(true, 1, ReaderLedger::default())?;
    ///
    /// let mut slots = producer.reserve(1);
    /// slots.bytes_mut().unwrap()[..5].copy_from_slice(b"hello");
    /// slots.finish(FrameMeta::whole(0, 5));
    /// slots.publish();
    ///
    /// let lease = reader.poll(8).unwrap();
    /// assert_eq!(lease.frame(0).bytes(), Some(&b"hello"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(
        region: std::sync::Arc<Region>,
        options: RingOptions,
        ledger: RingLedger,
    ) -> Result<(Self, Producer), RingError> {
        if options.slots < 2 || options.slot_bytes == 0 {
            let RingOptions {
                name,
                slots,
                slot_bytes,
                ..
            } = options;
            return Err(RingError::Shape {
                name,
                slots,
                slot_bytes,
            });
        }
        if region.bytes() < options.region_bytes() {
            let (need, have) = (options.region_bytes(), region.bytes());
            return Err(RingError::RegionTooSmall {
                name: options.name,
                need,
                have,
            });
        }
        ledger.capacity.set(options.slots as u64);
        let shared = Arc::new(Shared {
            state: State::new(
                options.slots,
                options.packets_per_frame,
                options.kept_fields(),
            )?,
            leaked: AtomicU64::new(0),
            cells: (0..options.readers)
                .map(|_| {
                    CachePadded::new(Cell {
                        bound: AtomicU64::new(UNBOUND),
                        retired: AtomicU64::new(UNBOUND),
                    })
                })
                .collect(),
            readers: std::sync::Mutex::new(vec![None; options.readers]),
            ledger,
            filled: Notifier::default(),
            freed: Notifier::default(),
            #[cfg(loom)]
            canary: Canaries(
                (0..options.slots)
                    .map(|_| crate::sync::UnsafeCell::new(0))
                    .collect(),
            ),
            region,
            options,
        });
        Ok((
            Self {
                shared: shared.clone(),
            },
            Producer::new(shared),
        ))
    }

    /// Attaches a reader, which receives the frames that are published after this call.
    ///
    /// With `guarantee` the producer never overwrites a frame that this reader has not retired. `burst` is the
    /// maximum number of frames in a lease over copies, and sizes the memory for them.
    pub fn attach(
        &self,
        guarantee: bool,
        burst: usize,
        ledger: ReaderLedger,
    ) -> Result<Reader, RingError> {
        let shared = &self.shared;
        if !guarantee && !shared.options.supports_backpressure && !shared.is_host() {
            return Err(RingError::Unreadable {
                name: shared.options.name.clone(),
                placement: shared.region.placement(),
            });
        }
        let mut readers = shared
            .readers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(index) = readers.iter().position(Option::is_none) else {
            return Err(RingError::Readers {
                name: shared.options.name.clone(),
                readers: shared.options.readers,
            });
        };
        readers[index] = Some(ledger.clone());
        let cell = &shared.cells[index];
        let first = shared.state.published.load(Ordering::Acquire);
        cell.retired.store(first, Ordering::Relaxed);
        cell.bound
            .store(if guarantee { first } else { UNBOUND }, Ordering::Relaxed);
        // Pairs with the fence in `Producer::claim`: either the producer's next claim sees this bound, or the
        // position read below is one that the claim did not overwrite.
        fence(Ordering::SeqCst);
        let position = shared.state.published.load(Ordering::Acquire);
        cell.retired.store(position, Ordering::Release);
        if guarantee {
            cell.bound.store(position, Ordering::Release);
        }
        drop(readers);
        Ok(Reader::new(
            shared.clone(),
            index,
            position,
            guarantee,
            burst,
            ledger,
        ))
    }

    /// Creates a tap, which copies the newest frames without attaching a reader.
    ///
    /// # Errors
    /// If the ring is on a GPU that cannot be opened.
    pub fn tap(&self) -> Result<Tap, CudaError> {
        Tap::new(self.shared.clone())
    }

    /// Returns the options that the ring was created with.
    pub fn options(&self) -> &RingOptions {
        &self.shared.options
    }

    /// Returns all slots, for access by a device.
    pub fn slice(&self) -> Slice {
        self.shared.run(0, self.shared.options.slots)
    }

    /// Returns the region that contains the slots.
    pub fn region(&self) -> &std::sync::Arc<Region> {
        &self.shared.region
    }

    /// Returns the number of frames published so far.
    pub fn published(&self) -> u64 {
        self.shared.state.published.load(Ordering::Acquire)
    }

    /// Whether the producer is dropped, so that no more frames will be published.
    pub fn is_closed(&self) -> bool {
        self.shared.state.closed.load(Ordering::Acquire) != 0
    }
}

impl Shared {
    /// Whether the slots are in host memory.
    fn is_host(&self) -> bool {
        self.region.placement() == Placement::Host
    }

    /// Wakes threads that wait for frames.
    fn notify_filled(&self) {
        if !self.options.single_threaded {
            Notifier::notify_all(self.notifiers(&self.filled));
        }
    }

    /// Wakes threads that wait for slots.
    fn notify_freed(&self) {
        if !self.options.single_threaded {
            Notifier::notify_all(self.notifiers(&self.freed));
        }
    }

    fn notifiers<'a>(&'a self, own: &'a Notifier) -> impl Iterator<Item = &'a Notifier> {
        std::iter::once(own).chain(self.options.notifiers.iter().map(|notifier| &**notifier))
    }

    /// Returns the slots of `len` frames starting with frame `first`.
    fn run(&self, first: u64, len: usize) -> Slice {
        Slice {
            base: self.region.address().as_ptr() as u64,
            stride: self.options.stride(),
            slots: self.options.slots,
            first: self.slot_of(first),
            len,
        }
    }

    /// Returns the slot of frame `index`, counted from the creation of the ring.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder of a division by a usize fits into a usize"
    )]
    fn slot_of(&self, index: u64) -> usize {
        let slots = self.options.slots as u64;
        // In most rings the number of slots is a power of two. For small frames, a division would take most of the
        // time.
        if slots.is_power_of_two() {
            (index & (slots - 1)) as usize
        } else {
            (index % slots) as usize
        }
    }

    /// Returns the slots of frame `index` and all following frames. Avoids a division per frame.
    fn around(&self, index: u64) -> impl Iterator<Item = usize> + use<> {
        let (slots, mut next) = (self.options.slots, self.slot_of(index));
        std::iter::repeat_with(move || {
            let slot = next;
            next = if slot + 1 == slots { 0 } else { slot + 1 };
            slot
        })
    }

    /// Returns the address of the slot of frame `index`.
    fn address_of(&self, index: u64) -> *mut u8 {
        let offset = self.slot_of(index) * self.options.stride();
        // `Ring::new` has checked that all slots are inside the region. The pointer may be a GPU address, which is not
        // dereferenced.
        self.region.address().as_ptr().wrapping_add(offset)
    }

    /// Whether the producer had not claimed the slot of frame `index` again before the caller's last read of the slot.
    fn is_intact(&self, index: u64) -> bool {
        // Pairs with the fence in `Producer::claim`: if the caller had read a byte of the new frame, this load would see
        // the claim that was stored before the byte.
        fence(Ordering::Acquire);
        let reserved = self.state.reserved.load(Ordering::Relaxed);
        index + (self.options.slots as u64) >= reserved
    }

    /// Returns the lowest bound of all readers, which the producer must not pass, and the index of this reader's cell.
    fn bound(&self) -> (u64, Option<usize>) {
        let mut min = (UNBOUND, None);
        for (index, cell) in self.cells.iter().enumerate() {
            let bound = cell.bound.load(Ordering::Acquire);
            if bound < min.0 {
                min = (bound, Some(index));
            }
        }
        min
    }

    /// Returns the number of frames that the slowest reader has not retired, at most the number of slots.
    fn occupancy(&self, published: u64) -> u64 {
        if cfg!(loom) {
            // The value is only informational, but each load multiplies the number of interleavings that loom checks.
            return 0;
        }
        let slowest = self
            .cells
            .iter()
            .map(|cell| cell.retired.load(Ordering::Relaxed))
            .min()
            .unwrap_or(UNBOUND);
        published
            .saturating_sub(slowest)
            .min(self.options.slots as u64)
    }
}
