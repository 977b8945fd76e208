//! Memory registered with the card of every rail, under keys that a link takes with it and that die with the link.
//!
//! A link is whatever keeps a peer able to write: the connection of a stream, or a queue that a sensor writes through.

use crate::registration::{self, PeerFacts};
use crate::verbs::{Access, MemoryRegion, Nic};
use daq_core::dma::{DmaDevice, DmaError};
use daq_core::region::Region;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Ends the links of a [`RegistrationSet`], whatever they are doing; an error says which did not end.
pub type CloseLinks = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The keys of one region, of each card one.
#[derive(Debug)]
pub struct RailRegions {
    /// One a card.
    keys: Vec<MemoryRegion>,
    /// The card of each rail.
    cards: Arc<[usize]>,
}

impl RailRegions {
    /// The key for a rail.
    pub fn of(&self, rail: usize) -> &MemoryRegion {
        &self.keys[self.cards[rail]]
    }

    /// In which ways, for the log.
    pub fn methods(&self) -> String {
        let mut methods: Vec<_> = self.keys.iter().map(|key| key.method().name()).collect();
        methods.dedup();
        methods.join(", ")
    }
}

struct Mapped {
    address: u64,
    region: Arc<Region>,
    /// Keys that no link has had.
    unused: Option<RailRegions>,
    /// Those that the last link has, or had.
    in_use: Weak<RailRegions>,
}

/// Registers regions with the cards of all rails, and stands for them as the device of an engine.
pub struct RegistrationSet {
    name: String,
    nics: Vec<Arc<dyn Nic>>,
    cards: Arc<[usize]>,
    access: Access,
    mapped: Mutex<Vec<Mapped>>,
    end: CloseLinks,
}

impl RegistrationSet {
    /// For the cards of `rails`, of which one may stand for several rails. `end` is asked to end what still has keys when
    /// memory must go.
    pub fn new(rails: &[Arc<dyn Nic>], access: Access, end: CloseLinks) -> Arc<Self> {
        let mut nics: Vec<Arc<dyn Nic>> = Vec::new();
        let cards = rails
            .iter()
            .map(|rail| {
                let known = nics.iter().position(|nic| Arc::ptr_eq(nic, rail));
                known.unwrap_or_else(|| {
                    nics.push(rail.clone());
                    nics.len() - 1
                })
            })
            .collect();
        let names: Vec<&str> = nics.iter().map(|nic| nic.name()).collect();
        Arc::new(Self {
            name: names.join("+"),
            nics,
            cards,
            access,
            mapped: Mutex::default(),
            end,
        })
    }

    fn mapped(&self) -> MutexGuard<'_, Vec<Mapped>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, region: &Arc<Region>) -> Result<RailRegions, DmaError> {
        let facts = PeerFacts::of(region.placement());
        let mut keys = Vec::with_capacity(self.nics.len());
        for nic in &self.nics {
            let registered = registration::register_region(&**nic, region, self.access, &facts);
            let registered = registered.map_err(|error| DmaError::Unreachable {
                device: self.name.clone(),
                memory: format!("{} bytes on {}", region.bytes(), region.placement()),
                why: error.to_string(),
            })?;
            for refused in &registered.refused {
                tracing::warn!(
                    "{}: memory on {}: {refused}",
                    nic.name(),
                    region.placement()
                );
            }
            keys.push(registered.region);
        }
        Ok(RailRegions {
            keys,
            cards: self.cards.clone(),
        })
    }

    /// The address and the bytes of what is mapped around `address`.
    pub fn find_containing(&self, address: u64) -> Option<(u64, usize)> {
        let mapped = self.mapped();
        let found = mapped.iter().find(|mapped| {
            let bytes = mapped.region.bytes() as u64;
            address
                .checked_sub(mapped.address)
                .is_some_and(|at| at < bytes)
        })?;
        Some((found.address, found.region.bytes()))
    }

    /// Keys of what is mapped at `address` that no link has had: what names it for an earlier peer names nothing any more.
    ///
    /// # Errors
    /// Where nothing is mapped there, an earlier link still lives, or a card refuses.
    pub fn acquire(&self, address: u64) -> Result<Arc<RailRegions>, DmaError> {
        let mut mapped = self.mapped();
        let refused = |why: &str| DmaError::Refused {
            device: self.name.clone(),
            action: format!("keys for the memory at {address:#x}"),
            why: why.to_owned(),
        };
        let Some(mapped) = mapped.iter_mut().find(|mapped| mapped.address == address) else {
            return Err(refused("it is not mapped"));
        };
        if mapped.in_use.strong_count() > 0 {
            return Err(refused("an earlier link still has some"));
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
        // Keys of dma-bufs count from 0 on; this is ours to choose, for each link names addresses by its own keys.
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
                why: "a link still has its keys".to_owned(),
            });
        }
        mapped.swap_remove(at);
        Ok(())
    }

    fn disable_and_reset(&self) -> Result<(), DmaError> {
        (self.end)().map_err(|why| DmaError::Refused {
            device: self.name.clone(),
            action: "ending what still has its keys".to_owned(),
            why,
        })
    }
}
