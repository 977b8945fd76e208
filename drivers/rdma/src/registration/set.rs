//! Memory that is registered with the NICs of all rails. A link acquires the registrations, and the end of the link
//! revokes them.
//!
//! A link is anything that allows a peer to write: the connection of a stream, or a queue pair that a sensor writes
//! through.

use crate::registration::{self, PeerFacts, UnregistrableError};
use crate::verbs::{Access, MemoryRegion, Nic};
use daq_core::dma::{DmaDevice, DmaError};
use daq_core::region::Region;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Function that closes all links that use a [`RegistrationSet`], including links that are still being established. An
/// error names the link that could not be closed.
pub type CloseLinks = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The registrations of one region, one for each NIC.
#[derive(Debug)]
pub struct RailRegions {
    /// The registrations, one per NIC.
    keys: Vec<MemoryRegion>,
    /// For each rail, the index of its NIC.
    cards: Vec<usize>,
}

impl RailRegions {
    /// Registers `region` with the NICs of `rails`; several rails may use the same NIC.
    pub(crate) fn register(
        rails: &[Arc<dyn Nic>],
        region: &Arc<Region>,
        access: Access,
    ) -> Result<Self, UnregistrableError> {
        let facts = PeerFacts::of(region.placement());
        let (nics, cards) = distinct(rails);
        let mut keys = Vec::with_capacity(nics.len());
        for nic in nics {
            let registered = registration::register_region(&*nic, region, access, &facts)?;
            for refused in &registered.refused {
                tracing::warn!(
                    "{}: memory on {}: {refused}",
                    nic.name(),
                    region.placement()
                );
            }
            keys.push(registered.region);
        }
        Ok(Self { keys, cards })
    }

    /// Returns the registration for a rail.
    pub fn of(&self, rail: usize) -> &MemoryRegion {
        &self.keys[self.cards[rail]]
    }

    /// Returns the registration methods, for the log.
    pub fn methods(&self) -> String {
        let mut methods: Vec<_> = self.keys.iter().map(|key| key.method().name()).collect();
        methods.dedup();
        methods.join(", ")
    }
}

struct Mapped {
    address: u64,
    region: Arc<Region>,
    /// Registrations that no link has used yet.
    unused: Option<RailRegions>,
    /// The registrations of the current or last link.
    in_use: Weak<RailRegions>,
}

/// Returns the distinct NICs of `rails`, and the index of the NIC of each rail.
fn distinct(rails: &[Arc<dyn Nic>]) -> (Vec<Arc<dyn Nic>>, Vec<usize>) {
    let mut nics: Vec<Arc<dyn Nic>> = Vec::new();
    let indices = rails.iter().map(|rail| {
        let known = nics.iter().position(|nic| Arc::ptr_eq(nic, rail));
        known.unwrap_or_else(|| {
            nics.push(rail.clone());
            nics.len() - 1
        })
    });
    let indices = indices.collect();
    (nics, indices)
}

/// Registers regions with the NICs of all rails. A DMA engine uses the set as its device.
pub struct RegistrationSet {
    name: String,
    rails: Vec<Arc<dyn Nic>>,
    access: Access,
    mapped: Mutex<Vec<Mapped>>,
    end: CloseLinks,
}

impl RegistrationSet {
    /// Creates a set for the NICs of `rails`; several rails may use the same NIC. When memory must be unmapped, `end`
    /// is called to close the links that still use the memory.
    pub fn new(rails: &[Arc<dyn Nic>], access: Access, end: CloseLinks) -> Arc<Self> {
        let (nics, _) = distinct(rails);
        let names: Vec<&str> = nics.iter().map(|nic| nic.name()).collect();
        Arc::new(Self {
            name: names.join("+"),
            rails: rails.to_vec(),
            access,
            mapped: Mutex::default(),
            end,
        })
    }

    fn mapped(&self) -> MutexGuard<'_, Vec<Mapped>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, region: &Arc<Region>) -> Result<RailRegions, DmaError> {
        RailRegions::register(&self.rails, region, self.access).map_err(|error| {
            DmaError::Unreachable {
                device: self.name.clone(),
                memory: format!("{} bytes on {}", region.bytes(), region.placement()),
                why: error.to_string(),
            }
        })
    }

    /// Returns the address and the number of bytes of the mapped region that contains `address`.
    pub(crate) fn find_containing(&self, address: u64) -> Option<(u64, usize)> {
        let mapped = self.mapped();
        let found = mapped.iter().find(|mapped| {
            let bytes = mapped.region.bytes() as u64;
            address
                .checked_sub(mapped.address)
                .is_some_and(|at| at < bytes)
        })?;
        Some((found.address, found.region.bytes()))
    }

    /// Returns the region that is mapped at `address`.
    pub(crate) fn region(&self, address: u64) -> Option<Arc<Region>> {
        let mapped = self.mapped();
        let found = mapped.iter().find(|mapped| mapped.address == address)?;
        Some(found.region.clone())
    }

    /// Returns registrations of the region mapped at `address` that no other link has used, so that the remote keys of
    /// an earlier peer do not give access to the memory.
    ///
    /// # Errors
    /// If no region is mapped at `address`, an earlier link still exists, or a NIC fails to register the memory.
    pub fn acquire(&self, address: u64) -> Result<Arc<RailRegions>, DmaError> {
        let mut mapped = self.mapped();
        let refused = |why: &str| DmaError::Refused {
            device: self.name.clone(),
            action: format!("registering the memory at {address:#x}"),
            why: why.to_owned(),
        };
        let Some(mapped) = mapped.iter_mut().find(|mapped| mapped.address == address) else {
            return Err(refused("no region is mapped at this address"));
        };
        if mapped.in_use.strong_count() > 0 {
            return Err(refused("an earlier link still uses the registration"));
        }
        let keys = match mapped.unused.take() {
            Some(keys) => keys,
            None => self.register(&mapped.region)?,
        };
        let keys = Arc::new(keys);
        mapped.in_use = Arc::downgrade(&keys);
        Ok(keys)
    }
}

impl DmaDevice for RegistrationSet {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&self, region: &Arc<Region>) -> Result<u64, DmaError> {
        let keys = self.register(region)?;
        // Remote addresses of dma-buf registrations start at 0, so this set identifies a region by its CPU address.
        // Each link uses the addresses of its own registrations.
        let address = region.address().as_ptr().addr() as u64;
        self.mapped().push(Mapped {
            address,
            region: region.clone(),
            unused: Some(keys),
            in_use: Weak::new(),
        });
        Ok(address)
    }

    fn unmap(&self, address: u64, _: usize) -> Result<(), DmaError> {
        let mut mapped = self.mapped();
        let Some(at) = mapped.iter().position(|mapped| mapped.address == address) else {
            return Ok(());
        };
        if mapped[at].in_use.strong_count() > 0 {
            return Err(DmaError::Refused {
                device: self.name.clone(),
                action: format!("unmapping {address:#x}"),
                why: "a link still uses the registration".to_owned(),
            });
        }
        mapped.swap_remove(at);
        Ok(())
    }

    fn disable_and_reset(&self) -> Result<(), DmaError> {
        (self.end)().map_err(|why| DmaError::Refused {
            device: self.name.clone(),
            action: "ending the links that use the registrations".to_owned(),
            why,
        })
    }
}
