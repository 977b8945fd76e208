//! Memory that is mapped for an emulated device, by device address.

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

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Why memory could not be given to a card.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// It is empty, passes the end of the addresses, or overlaps what the card has.
    #[error(
        "cannot map {bytes} bytes at {address:#x}: the range is empty, too long, or overlaps another mapping"
    )]
    InvalidRange {
        /// Its first address.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// The CPU cannot reach it.
    #[error("the CPU cannot access this memory")]
    Unreachable,
    /// The file does not hold so much.
    #[error("the file has {have} bytes, but the mapping ends at {end}")]
    Short {
        /// Bytes of the file.
        have: u64,
        /// Where the memory ends in it.
        end: u64,
    },
    /// The system refused to map the file.
    #[error("cannot map the file: {0}")]
    System(#[from] Errno),
    /// It cannot be guarded against being cut off below us.
    #[error("{0}")]
    GuardError(#[from] daq_core::dma::GuardError),
}

/// What a card may reach. The owner of this value does every access, so unmapped memory is not
/// written afterwards.
#[derive(Debug, Default)]
pub struct DeviceMemory {
    /// By their first address.
    pieces: BTreeMap<u64, Piece>,
}

/// Memory of another process that is reached by messages to it; addresses are those of the card.
pub trait Remote: fmt::Debug + Send + Sync {
    /// Writes `bytes`; whether that was done.
    fn write(&self, address: u64, bytes: &[u8]) -> bool;

    /// Reads `bytes`; whether that was done.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;
}

/// Memory that a card is given.
#[derive(Debug)]
pub struct Piece {
    bytes: u64,
    memory: Memory,
    may_read: bool,
    may_write: bool,
}

#[derive(Debug)]
enum Memory {
    /// Host memory of this process, which is kept.
    Host {
        address: NonNull<u8>,
        _region: Arc<Region>,
    },
    /// A GPU's, through its mapping.
    Gpu(Arc<BarMapping>),
    /// A file of another process.
    File(FileMap),
    /// Memory of another process without a file.
    Remote(Arc<dyn Remote>),
}

// SAFETY: the pointers are to memory that is not bound to a thread, and only the owner of the value uses them.
unsafe impl Send for Memory {}

impl DeviceMemory {
    /// Gives `piece`, from `address` on.
    pub fn map(&mut self, address: u64, piece: Piece) -> Result<(), MapError> {
        self.check(address, piece.bytes)?;
        self.pieces.insert(address, piece);
        Ok(())
    }

    /// Takes away what was given at `address`; false if that is not `bytes` bytes.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> bool {
        let is_whole = self
            .pieces
            .get(&address)
            .is_some_and(|piece| piece.bytes == bytes);
        is_whole && self.pieces.remove(&address).is_some()
    }

    /// Takes everything away.
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// How many pieces there are.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Writes what of `bytes` can be reached up to the first byte that cannot; whether that was all. It is visible to
    /// others before what is written after it.
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
                // SAFETY: `find` says that the bytes lie in the piece, which is mapped: the piece keeps the region
                // of host memory. No reference to it is made.
                Memory::Host { address, .. } => unsafe {
                    store(address.as_ptr().wrapping_add(offset), now);
                    true
                },
                Memory::Gpu(mapped) => mapped.copy_to(offset, now).is_ok(),
                Memory::Remote(remote) => remote.write(address, now),
                // SAFETY: the same; a file is mapped until its value is dropped, and if the file was truncated below the
                // mapping the guard puts other pages there.
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

    /// Reads memory; false if some of it cannot be reached.
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
                // SAFETY: as in `write`.
                Memory::Host { address, .. } => unsafe {
                    load(address.as_ptr().wrapping_add(offset), now);
                    true
                },
                Memory::Gpu(mapped) => mapped.copy_from(offset, now).is_ok(),
                Memory::Remote(remote) => remote.read(address, now),
                // SAFETY: as in `write`.
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

    /// The piece that `address` lies in, where in it, and how many of `most` bytes lie there.
    fn find(&self, address: u64, most: usize) -> Option<(&Piece, usize, usize)> {
        let (first, piece) = self.pieces.range(..=address).next_back()?;
        let offset = address - first;
        let left = piece.bytes.checked_sub(offset).filter(|left| *left > 0)?;
        let length = usize::try_from(left).map_or(most, |left| left.min(most));
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
    /// All of `region`, which is kept until the card has it no more.
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

    /// `bytes` bytes that are reached through `remote`, for reading, writing or both.
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

    /// `bytes` bytes of `file` from `offset` on, for reading, writing or both.
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

/// A part of a file, mapped and guarded: the client may truncate the file at any time.
#[derive(Debug)]
struct FileMap {
    /// Dropped before the mapping, because afterwards the addresses may be reused.
    guard: Guard,
    address: NonNull<u8>,
    /// What was mapped, from page to page.
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
        // SAFETY: a null hint lets the kernel choose an address, so no existing mapping is replaced; that others write
        // the memory at any time is why no reference to it is ever made.
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
        // SAFETY: the mapping was just made and stays until `mapped` is dropped, after the guard; its bytes are reached
        // by pointers alone, by `store` and `load`, to which pages of zeros are as good as others.
        let guard = unsafe { Guard::new(start, length) }?;
        let lead = usize::try_from(lead).map_err(|_| Errno::OVERFLOW)?;
        Ok(Self {
            guard,
            // SAFETY: `lead` is less than the bytes mapped.
            address: unsafe { start.add(lead) },
            _mapped: mapped,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: address and length are those of the one mapping made in `FileMap::new`, and the only pointer to it
        // goes with the value that this is a part of.
        let result = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "unmapping a file failed: {result:?}");
    }
}

/// Copies `from` to `to`. Words of 4 and 8 bytes are stored whole, as a device stores them, and after everything that
/// was stored before; a thread that sees one sees that too.
///
/// # Safety
/// `to` is valid for writes of as many bytes, though others may access them meanwhile.
unsafe fn store(to: *mut u8, from: &[u8]) {
    #[expect(clippy::cast_ptr_alignment, reason = "looked at before each use")]
    let (short, long) = (to.cast::<u32>(), to.cast::<u64>());
    if let Ok(bytes) = from.try_into()
        && short.is_aligned()
    {
        // SAFETY: valid by the caller's word, aligned as just checked.
        unsafe { AtomicU32::from_ptr(short) }.store(u32::from_ne_bytes(bytes), Ordering::Release);
    } else if let Ok(bytes) = from.try_into()
        && long.is_aligned()
    {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(long) }.store(u64::from_ne_bytes(bytes), Ordering::Release);
    } else {
        fence(Ordering::Release);
        // SAFETY: valid by the caller's word; `from` is memory of this process that cards cannot reach.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }
}

/// Copies `from` to `to`, with what others wrote before it.
///
/// # Safety
/// `from` is valid for reads of as many bytes, though others may write them meanwhile.
unsafe fn load(from: *const u8, to: &mut [u8]) {
    // SAFETY: valid by the caller's word; `to` is memory of this process that cards cannot reach.
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
        // The CPU's address is not the card's.
        assert!(!memory.write(a.address().addr().get() as u64, &[1]));
        assert!(memory.unmap(0x10000, PAGE) && !memory.unmap(0x10000, PAGE));
        assert!(!memory.write(0x10000, &[1]));
    }

    #[test]
    fn mapped_file_is_shared_with_client() {
        let region = region(4 * PAGE);
        let file = region.file().unwrap();
        let mut memory = DeviceMemory::default();
        // Not from the beginning of a page.
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
