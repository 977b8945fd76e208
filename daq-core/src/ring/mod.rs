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
//! - Once a reader is attached nothing here blocks, allocates or makes a system call, except to wake a sleeping
//!   thread.
//!
//! # Not guaranteed
//! - That an unguaranteed reader sees every frame: the frames it missed are counted as `overrun`.

mod completion;
mod lease;
mod producer;
mod reader;
mod scratch;
mod slot;

pub use completion::Completion;
pub use lease::{Frame, Lease};
pub use producer::{Producer, SlotsMut};
pub use reader::Reader;

use crate::ledger::{ReaderLedger, RingLedger};
use crate::notify::Notifier;
use crate::region::{Placement, Region};
use crate::sync::{Arc, AtomicU64, Ordering, fence};
use crossbeam_utils::CachePadded;
use slot::Slots;
use std::sync::PoisonError;

#[cfg(test)]
mod tests;

/// The pattern that missing packets are filled with before a frame is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill([u8; 4]);

impl Fill {
    /// Zeroes.
    pub const ZERO: Self = Self([0; 4]);

    /// Every byte `byte`.
    pub const fn byte(byte: u8) -> Self {
        Self([byte; 4])
    }

    /// Quiet NaNs of binary32.
    pub const fn nan() -> Self {
        Self(f32::NAN.to_le_bytes())
    }

    /// The four bytes that repeat from the start of the frame.
    pub const fn pattern(self) -> [u8; 4] {
        self.0
    }
}

impl Default for Fill {
    fn default() -> Self {
        Self::ZERO
    }
}

/// How a ring is created.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// The ring's name in reports.
    pub name: String,
    /// Number of slots, at least 2.
    pub slots: usize,
    /// Payload bytes per slot, at least 1.
    pub slot_bytes: usize,
    /// Maximum number of packets in a frame; 0 if frames do not consist of packets.
    pub places: u32,
    /// true: the producer waits for free slots (backpressure); false: it cannot wait.
    pub supports_backpressure: bool,
    /// Maximum number of readers attached at a time.
    pub readers: usize,
    /// The fill pattern for missing packets.
    pub fill: Fill,
    /// Notified when frames are published and when slots are freed, for threads that serve several rings.
    pub notifiers: Vec<std::sync::Arc<Notifier>>,
    /// Whether one thread is both the producer and the only reader. It needs no notifications; their fence would wait
    /// for stores to a GPU.
    pub single_threaded: bool,
}

impl RingOptions {
    /// Options with the most common choices: frames without packets, a producer with backpressure, eight readers,
    /// zero fill.
    pub fn new(name: impl Into<String>, slots: usize, slot_bytes: usize) -> Self {
        Self {
            name: name.into(),
            slots,
            slot_bytes,
            places: 0,
            supports_backpressure: true,
            readers: 8,
            fill: Fill::ZERO,
            notifiers: Vec::new(),
            single_threaded: false,
        }
    }

    /// Distance between the starts of neighbouring slots in bytes.
    pub const fn stride(&self) -> usize {
        self.slot_bytes.next_multiple_of(64)
    }

    /// Bytes of the region that the ring needs.
    pub const fn region_bytes(&self) -> usize {
        self.stride() * self.slots
    }

    /// Bytes of host memory outside the region, for frame metadata and `present` bitmaps.
    pub const fn metadata_bytes(&self) -> usize {
        Slots::bytes(self.slots, self.places)
    }
}

/// Why a ring could not be created or a reader not attached.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Fewer than two slots, or slots of zero bytes.
    #[error(
        "ring `{name}`: {slots} slots of {slot_bytes} bytes; a ring needs at least 2 slots of 1 byte"
    )]
    Shape {
        /// The ring.
        name: String,
        /// Slots asked for.
        slots: usize,
        /// Bytes a slot asked for.
        slot_bytes: usize,
    },
    /// The region is too small.
    #[error("ring `{name}` needs {need} bytes, its region has {have}")]
    RegionTooSmall {
        /// The ring.
        name: String,
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        have: usize,
    },
    /// A reader would have to copy frames out of memory that the CPU cannot read.
    #[error(
        "ring `{name}` is in memory of {placement} and its producer does not support backpressure: set `guarantee = true` for its readers"
    )]
    Unreadable {
        /// The ring.
        name: String,
        /// The memory of the ring.
        placement: Placement,
    },
    /// All reader cells are in use.
    #[error("ring `{name}` already has {readers} readers, the maximum")]
    Readers {
        /// The ring.
        name: String,
        /// The limit.
        readers: usize,
    },
}

/// Consecutive slots of a ring, for a device: frame `i` starts at `base + (first + i) % slots * stride`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// The address of the ring's first slot.
    pub base: u64,
    /// Bytes from one slot to the next.
    pub stride: usize,
    /// Number of slots of the ring.
    pub slots: usize,
    /// The slot of the first frame.
    pub first: usize,
    /// Number of frames.
    pub len: usize,
}

impl Slice {
    /// The slots after the first `frames` frames.
    #[must_use]
    pub const fn after(&self, frames: usize) -> Self {
        Self {
            first: (self.first + frames) % self.slots,
            len: self.len.saturating_sub(frames),
            ..*self
        }
    }

    /// The address of frame `i`.
    pub const fn address(&self, i: usize) -> u64 {
        self.base + ((self.first + i) % self.slots * self.stride) as u64
    }

    /// Number of frames before the end of the ring: these are contiguous in memory.
    pub const fn contiguous(&self) -> usize {
        let before_end = self.slots - self.first;
        if self.len < before_end {
            self.len
        } else {
            before_end
        }
    }
}

/// The bound of a reader that protects no slots.
const UNBOUND: u64 = u64::MAX;

/// What a reader publishes to the producer.
#[derive(Debug)]
struct Cell {
    /// Slots of frames from here on must not be overwritten; [`UNBOUND`] if none is protected.
    bound: AtomicU64,
    /// Frames before this one are retired; [`UNBOUND`] while the cell is free.
    retired: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    options: RingOptions,
    region: std::sync::Arc<Region>,
    /// Frames before this one can be read.
    published: CachePadded<AtomicU64>,
    /// Frames before this one are being, or have been, written.
    reserved: CachePadded<AtomicU64>,
    /// 1 once the producer is dropped.
    closed: AtomicU64,
    /// 1 once a reader has detached whose device may still use its slots.
    leaked: AtomicU64,
    cells: Box<[CachePadded<Cell>]>,
    /// The ledgers of the attached readers, by cell.
    seats: std::sync::Mutex<Vec<Option<ReaderLedger>>>,
    slots: Slots,
    ledger: RingLedger,
    /// Notified when frames are published.
    filled: Notifier,
    /// Notified when slots are freed.
    freed: Notifier,
    /// Represents the payload in model checking: loom finds every unordered access.
    #[cfg(loom)]
    canary: Box<[crate::sync::UnsafeCell<u64>]>,
}

/// A handle to a ring, to attach readers and query its state.
#[derive(Clone, Debug)]
pub struct Ring {
    shared: Arc<Shared>,
}

impl Ring {
    /// Divides `region` into slots. Also returns the only producer.
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
            published: CachePadded::new(AtomicU64::new(0)),
            reserved: CachePadded::new(AtomicU64::new(0)),
            closed: AtomicU64::new(0),
            leaked: AtomicU64::new(0),
            cells: (0..options.readers)
                .map(|_| {
                    CachePadded::new(Cell {
                        bound: AtomicU64::new(UNBOUND),
                        retired: AtomicU64::new(UNBOUND),
                    })
                })
                .collect(),
            seats: std::sync::Mutex::new(vec![None; options.readers]),
            slots: Slots::new(options.slots, options.places),
            ledger,
            filled: Notifier::default(),
            freed: Notifier::default(),
            #[cfg(loom)]
            canary: (0..options.slots)
                .map(|_| crate::sync::UnsafeCell::new(0))
                .collect(),
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

    /// Attaches a reader that sees frames published from now on.
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
        let mut seats = shared.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(index) = seats.iter().position(Option::is_none) else {
            return Err(RingError::Readers {
                name: shared.options.name.clone(),
                readers: shared.options.readers,
            });
        };
        seats[index] = Some(ledger.clone());
        let cell = &shared.cells[index];
        let first = shared.published.load(Ordering::Acquire);
        cell.retired.store(first, Ordering::Relaxed);
        cell.bound
            .store(if guarantee { first } else { UNBOUND }, Ordering::Relaxed);
        // Pairs with the fence in `Producer::claim`: either the producer's next claim sees this bound, or the
        // position read below is one that the claim did not overwrite.
        fence(Ordering::SeqCst);
        let position = shared.published.load(Ordering::Acquire);
        cell.retired.store(position, Ordering::Release);
        if guarantee {
            cell.bound.store(position, Ordering::Release);
        }
        drop(seats);
        Ok(Reader::new(
            shared.clone(),
            index,
            position,
            guarantee,
            burst,
            ledger,
        ))
    }

    /// The options that the ring was created with.
    pub fn options(&self) -> &RingOptions {
        &self.shared.options
    }

    /// All slots, for a device.
    pub fn slice(&self) -> Slice {
        self.shared.run(0, self.shared.options.slots)
    }

    /// The region that holds the slots.
    pub fn region(&self) -> &std::sync::Arc<Region> {
        &self.shared.region
    }

    /// Frames published so far.
    pub fn published(&self) -> u64 {
        self.shared.published.load(Ordering::Acquire)
    }

    /// Whether the producer is dropped: no more frames will be published.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire) != 0
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

    /// The slots of `len` frames starting with `first`.
    fn run(&self, first: u64, len: usize) -> Slice {
        Slice {
            base: self.region.address().as_ptr() as u64,
            stride: self.options.stride(),
            slots: self.options.slots,
            first: self.slot_of(first),
            len,
        }
    }

    /// The slot of frame `index`, counted from the creation of the ring.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is below a usize"
    )]
    fn slot_of(&self, index: u64) -> usize {
        let slots = self.options.slots as u64;
        // Most rings have a power of two slots; a division would dominate the cost of a small frame.
        if slots.is_power_of_two() {
            (index & (slots - 1)) as usize
        } else {
            (index % slots) as usize
        }
    }

    /// The slots of frame `index` and the following frames, cyclically and without a division each.
    fn around(&self, index: u64) -> impl Iterator<Item = usize> + use<> {
        let (slots, mut next) = (self.options.slots, self.slot_of(index));
        std::iter::repeat_with(move || {
            let slot = next;
            next = if slot + 1 == slots { 0 } else { slot + 1 };
            slot
        })
    }

    /// The address of the slot of frame `index`.
    fn address_of(&self, index: u64) -> *mut u8 {
        let offset = self.slot_of(index) * self.options.stride();
        // Inside the region, as `Ring::new` has checked. GPU addresses are only numbers here.
        self.region.address().as_ptr().wrapping_add(offset)
    }

    /// The lowest bound of all readers, and the cell of that reader: the producer must not pass it.
    fn bound(&self) -> (u64, Option<usize>) {
        let mut least = (UNBOUND, None);
        for (index, cell) in self.cells.iter().enumerate() {
            let bound = cell.bound.load(Ordering::Acquire);
            if bound < least.0 {
                least = (bound, Some(index));
            }
        }
        least
    }

    /// Frames that the slowest reader, at most one ring behind, has not retired.
    fn occupancy(&self, published: u64) -> u64 {
        if cfg!(loom) {
            // Only informational, but each of its loads multiplies the interleavings to check.
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
