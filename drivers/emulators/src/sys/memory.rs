//! Memory that is mapped for an emulated device, by its device address.

use daq_core::dma::Guard;
use daq_core::gpu::bar_mapping::BarMapping;
use daq_core::region::Region;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Page size in bytes.
pub(crate) const PAGE: u64 = 4096;

/// Error: memory cannot be mapped for a device.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The range is empty, exceeds the address space, or overlaps another mapping.
    #[error(
        "cannot map {bytes} bytes at {address:#x}: the range is empty, too long, or overlaps another mapping"
    )]
    InvalidRange {
        /// First device address of the range.
        address: u64,
        /// Size of the range in bytes.
        bytes: u64,
    },
    /// The CPU cannot access the memory.
    #[error("the CPU cannot access this memory")]
    Unreachable,
    /// The file is too short.
    #[error("the file has {have} bytes, but the mapping ends at byte {end}")]
    Short {
        /// Size of the file in bytes.
        have: u64,
        /// Offset in the file at which the mapping ends.
        end: u64,
    },
    /// The system failed to map the file.
    #[error("cannot map the file: {0}")]
    System(#[from] Errno),
    /// The mapping cannot be protected against a truncation of the file.
    #[error("{0}")]
    GuardError(#[from] daq_core::dma::GuardError),
}

/// The memory that an emulated device may access. Only the owner of this value accesses the memory, so memory is not
/// written after it was unmapped.
#[derive(Debug, Default)]
pub struct DeviceMemory {
    /// The mappings, by their first device address.
    pieces: BTreeMap<u64, Piece>,
}

/// Memory of another process that is accessed by messages. Addresses are device addresses.
pub trait Remote: fmt::Debug + Send + Sync {
    /// Writes `bytes`. Returns true on success.
    fn write(&self, address: u64, bytes: &[u8]) -> bool;

    /// Reads `bytes`. Returns true on success.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;
}

/// Memory that can be mapped for a device.
#[derive(Debug)]
pub struct Piece {
    bytes: u64,
    memory: Memory,
    may_read: bool,
    may_write: bool,
}

#[derive(Debug)]
enum Memory {
    /// Host memory of this process; the region is kept alive.
    Host {
        address: NonNull<u8>,
        _region: Arc<Region>,
    },
    /// GPU memory, accessed through its BAR mapping.
    Gpu(Arc<BarMapping>),
    /// A mapped file of another process.
    File(FileMap),
    /// Memory of another process without a file.
    Remote(Arc<dyn Remote>),
}

// SAFETY: the memory behind the pointers is not bound to a thread, and only the owner of the value uses the pointers.
unsafe impl Send for Memory {}

impl DeviceMemory {
    /// Maps `piece` at `address`.
    pub fn map(&mut self, address: u64, piece: Piece) -> Result<(), MapError> {
        self.check(address, piece.bytes)?;
        self.pieces.insert(address, piece);
        Ok(())
    }

    /// Removes the mapping at `address`. Returns false if no mapping at `address` has exactly `bytes` bytes.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> bool {
        let is_whole = self
            .pieces
            .get(&address)
            .is_some_and(|piece| piece.bytes == bytes);
        is_whole && self.pieces.remove(&address).is_some()
    }

    /// Removes all mappings.
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Returns the number of mappings.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns true if no memory is mapped.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Writes `bytes` up to the first byte that is not accessible. Returns true if all bytes were written.
    /// The bytes become visible before the bytes of later writes.
    pub fn write(&self, address: u64, bytes: &[u8]) -> bool {
        let (mut address, mut rest) = (address, bytes);
        while !rest.is_empty() {
            let Some((piece, offset, length)) = self.find(address, rest.len()) else {
                return false;
            };
            if !piece.may_write {
                return false;
            }
            let (now, later) = rest.split_at(length);
            let is_done = match &piece.memory {
                // SAFETY:
                // - `find` returns only ranges inside the piece.
                // - The piece keeps the region of host memory mapped.
                // - No reference to the memory is created.
                Memory::Host { address, .. } => unsafe {
                    store(address.as_ptr().wrapping_add(offset), now);
                    true
                },
                Memory::Gpu(mapped) => mapped.copy_to(offset, now).is_ok(),
                Memory::Remote(remote) => remote.write(address, now),
                // SAFETY:
                // - `find` returns only ranges inside the piece.
                // - The file is mapped until its value is dropped. If the file is truncated, the guard replaces the
                //   missing pages.
                // - No reference to the memory is created.
                Memory::File(file) => unsafe {
                    store(file.address.as_ptr().wrapping_add(offset), now);
                    !file.guard.is_lost()
                },
            };
            if !is_done {
                return false;
            }
            address = address.wrapping_add(length as u64);
            rest = later;
        }
        true
    }

    /// Reads memory. Returns false if a part of the memory is not accessible.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let (mut address, mut rest) = (address, bytes);
        while !rest.is_empty() {
            let Some((piece, offset, length)) = self.find(address, rest.len()) else {
                return false;
            };
            if !piece.may_read {
                return false;
            }
            let (now, later) = rest.split_at_mut(length);
            let is_done = match &piece.memory {
                // SAFETY: the conditions in `write` apply.
                Memory::Host { address, .. } => unsafe {
                    load(address.as_ptr().wrapping_add(offset), now);
                    true
                },
                Memory::Gpu(mapped) => mapped.copy_from(offset, now).is_ok(),
                Memory::Remote(remote) => remote.read(address, now),
                // SAFETY: the conditions in `write` apply.
                Memory::File(file) => unsafe {
                    load(file.address.as_ptr().wrapping_add(offset), now);
                    !file.guard.is_lost()
                },
            };
            if !is_done {
                return false;
            }
            address = address.wrapping_add(length as u64);
            rest = later;
        }
        true
    }

    /// Returns the piece that contains `address`, the offset of `address` in the piece, and how many of the next `max`
    /// bytes are inside the piece.
    fn find(&self, address: u64, max: usize) -> Option<(&Piece, usize, usize)> {
        let (first, piece) = self.pieces.range(..=address).next_back()?;
        let offset = address - first;
        let left = piece.bytes.checked_sub(offset).filter(|left| *left > 0)?;
        let length = usize::try_from(left).map_or(max, |left| left.min(max));
        Some((piece, usize::try_from(offset).ok()?, length))
    }

    fn check(&self, address: u64, bytes: u64) -> Result<(), MapError> {
        let wrong = MapError::InvalidRange { address, bytes };
        let Some(end) = address.checked_add(bytes).filter(|_| bytes > 0) else {
            return Err(wrong);
        };
        let before = self.pieces.range(..end).next_back();
        match before {
            Some((first, piece)) if first + piece.bytes > address => Err(wrong),
            _ => Ok(()),
        }
    }
}

impl Piece {
    /// Returns a piece for all of `region`, which is kept alive until the piece is dropped.
    pub fn of(region: &Arc<Region>) -> Result<Self, MapError> {
        let memory = match (region.mapping(), region.cpu_address()) {
            (Some(mapped), _) => Memory::Gpu(mapped.clone()),
            (None, Some(address)) => Memory::Host {
                address,
                _region: region.clone(),
            },
            (None, None) => return Err(MapError::Unreachable),
        };
        Ok(Self {
            bytes: region.bytes() as u64,
            memory,
            may_read: true,
            may_write: true,
        })
    }

    /// Returns a piece of `bytes` bytes that are accessed through `remote`, for reading, writing or both.
    pub const fn of_remote(
        remote: Arc<dyn Remote>,
        bytes: u64,
        (may_read, may_write): (bool, bool),
    ) -> Self {
        Self {
            bytes,
            memory: Memory::Remote(remote),
            may_read,
            may_write,
        }
    }

    /// Returns a piece for `bytes` bytes of `file` starting at `offset`, for reading, writing or both.
    pub fn of_file(
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        (may_read, may_write): (bool, bool),
    ) -> Result<Self, MapError> {
        let memory = Memory::File(FileMap::new(file, offset, bytes, may_write)?);
        Ok(Self {
            bytes,
            memory,
            may_read,
            may_write,
        })
    }
}

/// A mapped part of a file. A guard protects accesses, because the client may truncate the file at any time.
#[derive(Debug)]
struct FileMap {
    /// Dropped before the mapping, because the addresses may be reused after unmapping.
    guard: Guard,
    address: NonNull<u8>,
    /// The mapping, extended to whole pages.
    _mapped: Mapping,
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl FileMap {
    fn new(
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        may_write: bool,
    ) -> Result<Self, MapError> {
        let end = offset.checked_add(bytes).ok_or(Errno::OVERFLOW)?;
        let have = rustix::fs::fstat(file)?.st_size;
        let have = u64::try_from(have).unwrap_or(0);
        if have < end {
            return Err(MapError::Short { have, end });
        }
        let lead = offset % PAGE;
        let length = usize::try_from(bytes + lead).map_err(|_| Errno::OVERFLOW)?;
        let protection = if may_write {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY:
        // - With a null hint Linux selects a free address, so no existing mapping is replaced.
        // - Other processes may write the memory at any time, so no reference to it is ever created.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                file,
                offset - lead,
            )
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::FAULT)?;
        let mapped = Mapping {
            start,
            bytes: length,
        };
        // SAFETY:
        // - The mapping was just created and exists until `mapped` is dropped, which is after the guard.
        // - Its bytes are accessed only through pointers by `store` and `load`, which accept replaced pages of zeros.
        let guard = unsafe { Guard::new(start, length) }?;
        let lead = usize::try_from(lead).map_err(|_| Errno::OVERFLOW)?;
        Ok(Self {
            guard,
            // SAFETY: `lead` is less than the number of mapped bytes.
            address: unsafe { start.add(lead) },
            _mapped: mapped,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: address and length are those of the mapping created in `FileMap::new`. The only pointer to it is in
        // the value that contains this mapping, so it is dropped too.
        let result = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "unmapping a file failed: {result:?}");
    }
}

/// Copies `from` to `to`. Aligned words of 4 and 8 bytes are stored atomically, as a device does, and after all earlier
/// stores. A thread that reads such a word also sees these earlier stores.
///
/// # Safety
/// `to` must be valid for writes of `from.len()` bytes. Other threads and devices may access the memory concurrently.
unsafe fn store(to: *mut u8, from: &[u8]) {
    #[expect(
        clippy::cast_ptr_alignment,
        reason = "the alignment is checked before each use"
    )]
    let (short, long) = (to.cast::<u32>(), to.cast::<u64>());
    if let Ok(bytes) = from.try_into()
        && short.is_aligned()
    {
        // SAFETY: the caller guarantees validity, and the alignment was just checked.
        unsafe { AtomicU32::from_ptr(short) }.store(u32::from_ne_bytes(bytes), Ordering::Release);
    } else if let Ok(bytes) = from.try_into()
        && long.is_aligned()
    {
        // SAFETY: the caller guarantees validity, and the alignment was just checked.
        unsafe { AtomicU64::from_ptr(long) }.store(u64::from_ne_bytes(bytes), Ordering::Release);
    } else {
        fence(Ordering::Release);
        // SAFETY: the caller guarantees validity. `from` is memory of this process that is not mapped for a device.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }
}

/// Copies `from` to `to`, with acquire ordering: later reads see everything that was written before the copied data.
///
/// # Safety
/// `from` must be valid for reads of `to.len()` bytes. Other threads and devices may write the memory concurrently.
unsafe fn load(from: *const u8, to: &mut [u8]) {
    // SAFETY: the caller guarantees validity. `to` is memory of this process that is not mapped for a device.
    unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    fence(Ordering::Acquire);
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::region::HostOptions;
    use proptest::prelude::*;
    use std::os::fd::AsFd;

    fn region(bytes: u64) -> Arc<Region> {
        let options = HostOptions {
            shared: true,
            ..HostOptions::default()
        };
        Region::host(usize::try_from(bytes).unwrap(), options).unwrap()
    }

    #[test]
    fn memory_access_spans_mappings_and_stays_inside() {
        let (a, b) = (region(PAGE), region(PAGE));
        let mut memory = DeviceMemory::default();
        memory.map(0x10000, Piece::of(&a).unwrap()).unwrap();
        memory.map(0x10000 + PAGE, Piece::of(&b).unwrap()).unwrap();
        assert!(memory.write(0x10000 + PAGE - 3, b"across"));
        let mut bytes = [0; 6];
        assert!(memory.read(0x10000 + PAGE - 3, &mut bytes));
        assert_eq!(&bytes, b"across");
        assert!(!memory.write(0xffff, &[1]));
        assert!(!memory.write(0x10000 + 2 * PAGE - 1, &[1, 2]));
        assert!(!memory.read(0x10000 + 2 * PAGE, &mut [0]));
        // CPU addresses are not device addresses.
        assert!(!memory.write(a.address().addr().get() as u64, &[1]));
        assert!(memory.unmap(0x10000, PAGE) && !memory.unmap(0x10000, PAGE));
        assert!(!memory.write(0x10000, &[1]));
    }

    #[test]
    fn mapped_file_is_shared_with_client() {
        let region = region(4 * PAGE);
        let file = region.file().unwrap();
        let mut memory = DeviceMemory::default();
        // The range does not start at a page boundary.
        memory
            .map(
                0x5000,
                Piece::of_file(file, PAGE + 8, PAGE, (true, true)).unwrap(),
            )
            .unwrap();
        memory
            .map(
                0x9000,
                Piece::of_file(file, 0, PAGE, (true, false)).unwrap(),
            )
            .unwrap();
        assert!(memory.write(0x5000, b"bytes of a file"));
        assert!(!memory.write(0x9000, b"no"));
        let mut own = DeviceMemory::default();
        own.map(0, Piece::of(&region).unwrap()).unwrap();
        let mut bytes = [0; 15];
        assert!(own.read(PAGE + 8, &mut bytes));
        assert_eq!(&bytes, b"bytes of a file");
        let short = Piece::of_file(file, 3 * PAGE, 2 * PAGE, (true, true));
        assert!(matches!(short, Err(MapError::Short { .. })), "{short:?}");
    }

    #[test]
    fn truncated_file_returns_fault() {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 2 * PAGE).unwrap();
        let mut memory = DeviceMemory::default();
        memory
            .map(
                0,
                Piece::of_file(file.as_fd(), 0, 2 * PAGE, (true, true)).unwrap(),
            )
            .unwrap();
        assert!(memory.write(PAGE, &[1]));
        rustix::fs::ftruncate(&file, 0).unwrap();
        assert!(!memory.write(PAGE, &[1]));
        assert!(!memory.read(0, &mut [0; 16]));
        memory.clear();
    }

    proptest! {
        #[test]
        fn overlapping_mapping_is_rejected(asked in prop::collection::vec((0_u64..64, 0_u64..6), 1..20)) {
            let region = region(6 * PAGE);
            let file = region.file().unwrap();
            let mut memory = DeviceMemory::default();
            let mut given = Vec::new();
            for (page, pages) in asked {
                let (address, bytes) = (page * PAGE, pages * PAGE);
                let is_free = bytes > 0
                    && given.iter().all(|(first, length)| address + bytes <= *first || address >= first + length);
                let result = Piece::of_file(file, 0, bytes, (true, true)).and_then(|piece| memory.map(address, piece));
                prop_assert_eq!(result.is_ok(), is_free);
                if is_free {
                    given.push((address, bytes));
                }
            }
            prop_assert_eq!(memory.len(), given.len());
        }
    }

    #[test]
    fn mapping_remains_while_device_uses_it() {
        let region = region(PAGE);
        let mut memory = DeviceMemory::default();
        memory.map(0, Piece::of(&region).unwrap()).unwrap();
        let weak = Arc::downgrade(&region);
        drop(region);
        assert!(memory.write(0, &[1]) && weak.upgrade().is_some());
        assert!(memory.unmap(0, PAGE) && weak.upgrade().is_none());
    }

    #[test]
    fn address_overflow_is_rejected() {
        let region = region(PAGE);
        let mut memory = DeviceMemory::default();
        assert!(
            memory
                .map(u64::MAX - 10, Piece::of(&region).unwrap())
                .is_err()
        );
        assert!(memory.map(0, Piece::of(&region).unwrap()).is_ok());
        assert!(!memory.write(u64::MAX, &[1, 2]));
        assert_eq!(memory.len(), 1);
    }
}
