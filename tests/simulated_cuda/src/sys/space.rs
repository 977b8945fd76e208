//! Which addresses lead where: device memory, and host memory that the driver knows.

use super::physical::Physical;
use super::require;
use crate::code::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, OUT_OF_MEMORY,
    Result,
};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

/// Bytes of addresses that are kept for devices. None is reused, so that a use after free is detected.
const ARENA: usize = 16 << 40;
/// Granularity of virtual memory management.
pub const GRANULARITY: usize = 2 << 20;

/// What may be done with memory through its device address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// Why device memory has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was allocated with it.
    Allocated,
    /// It was mapped there.
    Mapped,
    /// It is a variable of a module.
    Variable,
}

/// Device memory with an address.
#[derive(Clone, Debug)]
struct Place {
    bytes: usize,
    memory: Arc<Physical>,
    offset: usize,
    access: Access,
    origin: Origin,
}

/// Host memory that the driver knows.
#[derive(Clone, Copy, Debug)]
struct Registration {
    bytes: usize,
    ordinal: i32,
    is_allocated: bool,
}

/// Where addresses lead.
#[derive(Debug)]
pub struct Space {
    arena: u64,
    next: u64,
    places: BTreeMap<u64, Place>,
    reservations: BTreeMap<u64, usize>,
    registrations: BTreeMap<u64, Registration>,
}

/// Memory that an address leads to, piece by piece.
#[derive(Debug, Default)]
pub struct Pieces {
    /// Where and how many bytes.
    list: Vec<(usize, usize)>,
    /// Keeps it from being freed while it is used.
    keep: Vec<Arc<Physical>>,
}

/// All addresses of the process.
pub fn lock() -> MutexGuard<'static, Space> {
    static SPACE: LazyLock<Mutex<Space>> = LazyLock::new(|| Mutex::new(Space::new()));
    super::lock(&SPACE)
}

/// `address + bytes`.
fn end(address: u64, bytes: usize) -> Result<u64> {
    address.checked_add(bytes as u64).ok_or(INVALID_VALUE)
}

/// How far behind a page memory of so many bytes begins that is allocated together with its address.
pub const fn skew(bytes: usize) -> usize {
    if bytes < 1 << 20 { 512 } else { 0 }
}

impl Space {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the system's choice overlaps no other memory.
        let arena =
            unsafe { libc::mmap(std::ptr::null_mut(), ARENA, libc::PROT_NONE, flags, -1, 0) };
        assert!(
            arena != libc::MAP_FAILED,
            "16 TiB of addresses can be reserved; is there a limit (ulimit -v)?"
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

    /// How many reservations of device addresses there are.
    pub fn reservations(&self) -> usize {
        self.reservations.len()
    }

    /// How many registrations and allocations of host memory there are.
    pub fn registrations(&self) -> usize {
        self.registrations.len()
    }

    /// Whether an address is one of a device, valid or not.
    pub fn is_device(&self, address: u64) -> bool {
        (self.arena..self.arena + ARENA as u64).contains(&address)
    }

    /// `bytes` new addresses with something unused behind them.
    fn addresses(&mut self, bytes: usize, alignment: usize, skew: u64) -> Result<u64> {
        let start = self.next.next_multiple_of(alignment as u64) + skew;
        let next = end(start, bytes)? + GRANULARITY as u64;
        if next > self.arena + ARENA as u64 {
            return Err(OUT_OF_MEMORY);
        }
        self.next = next;
        Ok(start)
    }

    /// Gives memory an address of its own. Only large memory is aligned to more than 512 bytes.
    pub fn place(&mut self, memory: Arc<Physical>, bytes: usize, origin: Origin) -> Result<u64> {
        let skew = skew(bytes);
        let alignment = if skew > 0 { 4096 } else { GRANULARITY };
        let address = self.addresses(bytes, alignment, skew as u64)?;
        let place = Place {
            bytes,
            memory,
            offset: 0,
            access: Access::ReadWrite,
            origin,
        };
        self.places.insert(address, place);
        Ok(address)
    }

    /// Takes the address of memory back that was given it with this `origin`.
    pub fn unplace(&mut self, address: u64, origin: Origin) -> Result<()> {
        require(
            self.places
                .get(&address)
                .is_some_and(|place| place.origin == origin),
        )?;
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
        require(
            self.places
                .range(address..end(address, bytes)?)
                .next()
                .is_none(),
        )?;
        self.reservations.remove(&address);
        Ok(())
    }

    /// Maps memory into a reservation, not yet accessible.
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
            access: Access::None,
            origin: Origin::Mapped,
        };
        self.places.insert(address, place);
        Ok(())
    }

    /// Undoes whole mappings that fill the range.
    pub fn unmap(&mut self, address: u64, bytes: usize) -> Result {
        for start in self.mapped(address, bytes)? {
            self.places.remove(&start);
        }
        Ok(())
    }

    /// Sets what may be done with whole mappings that fill the range.
    pub fn set_access(&mut self, address: u64, bytes: usize, access: Access) -> Result {
        for start in self.mapped(address, bytes)? {
            if let Some(place) = self.places.get_mut(&start) {
                place.access = access;
            }
        }
        Ok(())
    }

    /// The starts of the mappings that fill the range without gaps and end where it ends.
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

    /// The device memory that a range of device addresses leads to.
    pub fn device(&self, address: u64, bytes: usize, writes: bool) -> Result<Pieces> {
        let (mut next, end, mut pieces) = (address, end(address, bytes)?, Pieces::default());
        while next < end {
            let (start, place) = self
                .places
                .range(..=next)
                .next_back()
                .ok_or(INVALID_VALUE)?;
            let within = usize::try_from(next - start).map_err(|_| INVALID_VALUE)?;
            require(within < place.bytes)?;
            require(place.access == Access::ReadWrite || place.access == Access::Read && !writes)?;
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

    /// The memory behind a range that is the whole of it; an export covers no less.
    pub fn whole(&self, address: u64, bytes: usize) -> Result<Option<Arc<Physical>>> {
        self.device(address, bytes, false)?;
        let place = self.places.get(&address);
        let is_whole = |place: &&Place| place.offset == 0 && place.bytes >= bytes;
        Ok(place
            .filter(is_whole)
            .map(|place| Arc::clone(&place.memory)))
    }

    /// The memory behind a range that is all in one place, and where in its file the range begins.
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
    pub fn register(
        &mut self,
        address: u64,
        bytes: usize,
        ordinal: i32,
        is_allocated: bool,
    ) -> Result {
        let end = end(address, bytes)?;
        let touches_device = address < self.arena + ARENA as u64 && end > self.arena;
        require(bytes > 0 && address != 0 && !touches_device)?;
        if self.registered_bytes(address, bytes)? > 0 {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.registrations.insert(
            address,
            Registration {
                bytes,
                ordinal,
                is_allocated,
            },
        );
        Ok(())
    }

    /// Undoes a registration or an allocation of host memory; its bytes.
    pub fn unregister(&mut self, address: u64, is_allocated: bool) -> Result<usize> {
        let found = self
            .registrations
            .get(&address)
            .ok_or(HOST_MEMORY_NOT_REGISTERED)?;
        require(found.is_allocated == is_allocated)?;
        let bytes = found.bytes;
        self.registrations.remove(&address);
        Ok(bytes)
    }

    /// How many bytes of a range the driver knows.
    pub fn registered_bytes(&self, address: u64, bytes: usize) -> Result<usize> {
        let end = end(address, bytes)?;
        let mut known = 0;
        for (start, registration) in self.registrations.range(..end).rev() {
            let stop = start + registration.bytes as u64;
            if stop <= address {
                break;
            }
            known += stop.min(end) - address.max(*start);
        }
        usize::try_from(known).map_err(|_| INVALID_VALUE)
    }

    /// Forgets what the context of a device holds: allocations, their bytes, and registrations.
    pub fn forget(&mut self, ordinal: i32) -> (usize, usize, usize) {
        let is_meant = |place: &Place| {
            place.origin != Origin::Mapped && place.memory.device.ordinal == ordinal
        };
        let places: Vec<Place> = self
            .places
            .extract_if(.., |_, place| is_meant(place))
            .map(|(_, place)| place)
            .collect();
        let registered = self.registrations.len();
        self.registrations
            .retain(|_, registration| registration.ordinal != ordinal);
        let bytes = places.iter().map(|place| place.memory.bytes).sum();
        (places.len(), bytes, registered - self.registrations.len())
    }
}

impl Pieces {
    /// Host memory, which an address of the process leads to.
    pub fn host(address: u64, bytes: usize) -> Result<Self> {
        let address = usize::try_from(address).map_err(|_| INVALID_VALUE)?;
        Ok(Self {
            list: vec![(address, bytes)],
            keep: Vec::new(),
        })
    }

    /// The part of `bytes` bytes from `offset` on, piece by piece.
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
