//! The address space: device memory by device address, and registered host memory.

use super::context::Device;
use super::physical::Physical;
use super::require;
use crate::code::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_DEVICE, INVALID_VALUE,
    OUT_OF_MEMORY, Result,
};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

/// Number of bytes of addresses that are reserved for devices. Addresses are never reused, so that a use after free is
/// detected.
const ARENA: usize = 16 << 40;
/// Granularity of virtual memory management.
pub const GRANULARITY: usize = 2 << 20;

/// The access rights to memory through its device address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No access.
    None,
    /// Read access.
    Read,
    /// Read and write access.
    ReadWrite,
}

/// The reason why device memory has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The memory was allocated with an address.
    Allocated,
    /// The memory was mapped at the address.
    Mapped,
    /// The memory is a variable of a module.
    Variable,
}

/// Device memory at a device address.
#[derive(Clone, Debug)]
struct Place {
    bytes: usize,
    memory: Arc<Physical>,
    offset: usize,
    /// Access rights by ordinal of the device; other devices have no access.
    access: BTreeMap<i32, Access>,
    origin: Origin,
}

/// The mappings from addresses to memory.
#[derive(Debug)]
pub struct Space {
    arena: u64,
    next: u64,
    places: BTreeMap<u64, Place>,
    reservations: BTreeMap<u64, usize>,
    /// Size in bytes of each registered range of host memory.
    registrations: BTreeMap<u64, usize>,
}

/// The memory behind a range of addresses, as a list of contiguous pieces.
#[derive(Debug, Default)]
pub struct Pieces {
    /// CPU address and size in bytes of each piece.
    list: Vec<(usize, usize)>,
    /// Keeps the device memory allocated while it is used.
    keep: Vec<Arc<Physical>>,
}

/// Locks and returns the address space of the process.
pub fn lock() -> MutexGuard<'static, Space> {
    static SPACE: LazyLock<Mutex<Space>> = LazyLock::new(|| Mutex::new(Space::new()));
    super::lock(&SPACE)
}

/// Returns `address + bytes`, or an error on overflow.
fn end(address: u64, bytes: usize) -> Result<u64> {
    address.checked_add(bytes as u64).ok_or(INVALID_VALUE)
}

/// Returns the offset from a page boundary at which memory of this size is allocated with an address.
pub const fn skew(bytes: usize) -> usize {
    if bytes < 1 << 20 { 512 } else { 0 }
}

impl Space {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that Linux selects does not overlap other memory.
        let arena =
            unsafe { libc::mmap(std::ptr::null_mut(), ARENA, libc::PROT_NONE, flags, -1, 0) };
        assert!(
            arena != libc::MAP_FAILED,
            "cannot reserve 16 TiB of addresses; remove the address space limit (ulimit -v)"
        );
        let arena = arena as u64;
        Self {
            arena,
            next: arena.next_multiple_of(GRANULARITY as u64),
            places: BTreeMap::new(),
            reservations: BTreeMap::new(),
            registrations: BTreeMap::new(),
        }
    }

    /// Returns the number of reservations of device addresses.
    pub fn reservations(&self) -> usize {
        self.reservations.len()
    }

    /// Returns the number of registrations of host memory.
    pub fn registrations(&self) -> usize {
        self.registrations.len()
    }

    /// Returns true if an address is in the device address range, mapped or not.
    pub fn is_device(&self, address: u64) -> bool {
        (self.arena..self.arena + ARENA as u64).contains(&address)
    }

    /// Allocates `bytes` new addresses, followed by an unused gap.
    fn addresses(&mut self, bytes: usize, alignment: usize, skew: u64) -> Result<u64> {
        let start = self.next.next_multiple_of(alignment as u64) + skew;
        let next = end(start, bytes)? + GRANULARITY as u64;
        if next > self.arena + ARENA as u64 {
            return Err(OUT_OF_MEMORY);
        }
        self.next = next;
        Ok(start)
    }

    /// Assigns a new address to memory. Only large memory is aligned to more than 512 bytes.
    pub fn place(&mut self, memory: Arc<Physical>, bytes: usize, origin: Origin) -> Result<u64> {
        let skew = skew(bytes);
        let alignment = if skew > 0 { 4096 } else { GRANULARITY };
        let address = self.addresses(bytes, alignment, skew as u64)?;
        let place = Place {
            bytes,
            access: BTreeMap::from([(memory.device.ordinal, Access::ReadWrite)]),
            memory,
            offset: 0,
            origin,
        };
        self.places.insert(address, place);
        Ok(address)
    }

    /// Removes the address of memory that was assigned with this `origin`.
    pub fn unplace(&mut self, address: u64, origin: Origin) -> Result {
        let place = self.places.get(&address);
        require(place.is_some_and(|place| place.origin == origin))?;
        self.places.remove(&address);
        Ok(())
    }

    pub fn reserve(&mut self, bytes: usize, alignment: usize) -> Result<u64> {
        let address = self.addresses(bytes, alignment.max(GRANULARITY), 0)?;
        self.reservations.insert(address, bytes);
        Ok(address)
    }

    pub fn unreserve(&mut self, address: u64, bytes: usize) -> Result {
        require(self.reservations.get(&address) == Some(&bytes))?;
        let mut mapped = self.places.range(address..end(address, bytes)?);
        require(mapped.next().is_none())?;
        self.reservations.remove(&address);
        Ok(())
    }

    /// Maps memory into a reservation without access rights.
    pub fn map(
        &mut self,
        address: u64,
        bytes: usize,
        memory: Arc<Physical>,
        offset: usize,
    ) -> Result {
        let end = end(address, bytes)?;
        let (start, reserved) = self
            .reservations
            .range(..=address)
            .next_back()
            .ok_or(INVALID_VALUE)?;
        require(end <= start + *reserved as u64)?;
        require(self.overlapping(address, end).next().is_none())?;
        let place = Place {
            bytes,
            memory,
            offset,
            access: BTreeMap::new(),
            origin: Origin::Mapped,
        };
        self.places.insert(address, place);
        Ok(())
    }

    /// Removes the mappings that exactly fill the range.
    pub fn unmap(&mut self, address: u64, bytes: usize) -> Result {
        for start in self.mapped(address, bytes)? {
            self.places.remove(&start);
        }
        Ok(())
    }

    /// Sets the access rights of a device to the mappings that exactly fill the range. Fails if the device cannot
    /// access their memory.
    pub fn set_access(
        &mut self,
        address: u64,
        bytes: usize,
        by: &Device,
        access: Access,
    ) -> Result {
        for start in self.mapped(address, bytes)? {
            if let Some(place) = self.places.get_mut(&start) {
                let owner = place.memory.device;
                if owner.ordinal != by.ordinal && !by.can_access(owner) {
                    return Err(INVALID_DEVICE);
                }
                place.access.insert(by.ordinal, access);
            }
        }
        Ok(())
    }

    /// Returns the start addresses of the mappings that fill the range without gaps and end at its end.
    fn mapped(&self, address: u64, bytes: usize) -> Result<Vec<u64>> {
        let (mut next, end, mut starts) = (address, end(address, bytes)?, Vec::new());
        while next < end {
            let place = self.places.get(&next).ok_or(INVALID_VALUE)?;
            require(place.origin == Origin::Mapped)?;
            starts.push(next);
            next += place.bytes as u64;
        }
        require(next == end && bytes > 0)?;
        Ok(starts)
    }

    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Place)> {
        let places = self.places.range(..end).rev();
        places
            .map(|(from, place)| (*from, place))
            .take_while(move |(from, place)| from + place.bytes as u64 > start)
    }

    /// Returns the device memory behind a range of device addresses, as the device `by` accesses it.
    pub fn device(&self, by: &Device, address: u64, bytes: usize, writes: bool) -> Result<Pieces> {
        let (mut next, end, mut pieces) = (address, end(address, bytes)?, Pieces::default());
        while next < end {
            let (start, place) = self
                .places
                .range(..=next)
                .next_back()
                .ok_or(INVALID_VALUE)?;
            let within = usize::try_from(next - start).map_err(|_| INVALID_VALUE)?;
            require(within < place.bytes)?;
            let access = place.access.get(&by.ordinal).copied();
            require(access == Some(Access::ReadWrite) || access == Some(Access::Read) && !writes)?;
            let length =
                (place.bytes - within).min(usize::try_from(end - next).map_err(|_| INVALID_VALUE)?);
            pieces
                .list
                .push((place.memory.at(place.offset + within), length));
            pieces.keep.push(Arc::clone(&place.memory));
            next += length as u64;
        }
        Ok(pieces)
    }

    /// Returns the storage of a range that starts at the beginning of an allocation, because only whole allocations can
    /// be exported.
    pub fn whole(&self, by: &Device, address: u64, bytes: usize) -> Result<Option<Arc<Physical>>> {
        self.device(by, address, bytes, false)?;
        let place = self.places.get(&address);
        let is_whole = |place: &&Place| place.offset == 0 && place.bytes >= bytes;
        Ok(place
            .filter(is_whole)
            .map(|place| Arc::clone(&place.memory)))
    }

    /// Returns the storage of a range inside a single place, and the offset of the range in the file.
    pub fn behind(&self, address: u64, bytes: usize) -> Result<(Arc<Physical>, usize)> {
        let (start, place) = self
            .places
            .range(..=address)
            .next_back()
            .ok_or(INVALID_VALUE)?;
        let within = usize::try_from(address - start).map_err(|_| INVALID_VALUE)?;
        require(bytes > 0 && within < place.bytes && bytes <= place.bytes - within)?;
        Ok((
            Arc::clone(&place.memory),
            place.memory.in_file(place.offset + within),
        ))
    }

    /// Registers host memory.
    pub fn register(&mut self, address: u64, bytes: usize) -> Result {
        let end = end(address, bytes)?;
        let touches_device = address < self.arena + ARENA as u64 && end > self.arena;
        require(bytes > 0 && address != 0 && !touches_device)?;
        if self.registered_bytes(address, bytes)? > 0 {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.registrations.insert(address, bytes);
        Ok(())
    }

    /// Removes a registration of host memory.
    pub fn unregister(&mut self, address: u64) -> Result {
        let removed = self.registrations.remove(&address);
        removed.map(|_| ()).ok_or(HOST_MEMORY_NOT_REGISTERED)
    }

    /// Returns how many bytes of a range are registered.
    pub fn registered_bytes(&self, address: u64, bytes: usize) -> Result<usize> {
        let end = end(address, bytes)?;
        let mut known = 0;
        for (start, registered) in self.registrations.range(..end).rev() {
            let stop = start + *registered as u64;
            if stop <= address {
                break;
            }
            known += stop.min(end) - address.max(*start);
        }
        usize::try_from(known).map_err(|_| INVALID_VALUE)
    }
}

impl Pieces {
    /// Returns pieces for host memory at an address of this process.
    pub fn host(address: u64, bytes: usize) -> Result<Self> {
        let address = usize::try_from(address).map_err(|_| INVALID_VALUE)?;
        Ok(Self {
            list: vec![(address, bytes)],
            keep: Vec::new(),
        })
    }

    /// Returns the device whose memory all pieces are; `None` for host memory.
    pub fn owner(&self) -> Option<&'static Device> {
        self.keep.first().map(|memory| memory.device)
    }

    /// Returns the part of `bytes` bytes starting at `offset`, piece by piece.
    pub fn part(
        &self,
        mut offset: usize,
        mut bytes: usize,
    ) -> impl Iterator<Item = (usize, usize)> {
        self.list.iter().filter_map(move |(address, length)| {
            let skipped = offset.min(*length);
            offset -= skipped;
            let taken = (length - skipped).min(bytes);
            bytes -= taken;
            (taken > 0).then_some((address + skipped, taken))
        })
    }
}
