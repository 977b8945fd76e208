//! Slots in host memory that the CPU fills, for engines without a device of their own, such as clients of a server.

use super::{DmaDevice, DmaError, Slots};
use crate::region::{Placement, Region};
use crate::sys::copy;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The "device" of an engine whose thread itself writes the slots. It accesses only host memory.
///
/// Nothing writes unless [`Engine::poll`](super::Engine::poll) runs, so nothing has to be stopped or reset.
pub struct HostMemory {
    name: String,
    mapped: Mutex<Vec<Arc<Region>>>,
}

impl HostMemory {
    /// Creates a device with the name `name` for messages.
    pub fn new(name: impl Into<String>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            mapped: Mutex::default(),
        })
    }

    fn mapped(&self) -> MutexGuard<'_, Vec<Arc<Region>>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a writer of `slots`, without credits. Fails if the slots are not in mapped host memory.
    ///
    /// # Safety
    /// Until the writer is dropped, the caller must give it only the credits that
    /// [`Engine::credit`](super::Engine::credit) gave since the engine was armed with `slots`.
    pub unsafe fn writer(&self, slots: &Slots) -> Result<SlotWriter, DmaError> {
        let mapped = self.mapped();
        let found = mapped.iter().find_map(|region| {
            let base = address(region);
            let offsets = slots.in_order().map(|slot| {
                let offset = usize::try_from(slot.checked_sub(base)?).ok()?;
                let end = offset.checked_add(slots.bytes)?;
                (end <= region.bytes()).then_some(offset)
            });
            let offsets: Option<Vec<_>> = offsets.collect();
            Some((region.clone(), offsets?))
        });
        let Some((region, offsets)) = found.filter(|(_, offsets)| !offsets.is_empty()) else {
            return Err(DmaError::Unreachable {
                device: self.name.clone(),
                memory: format!("the {} slots of the ring", slots.addresses.len()),
                why: "no mapped host memory contains all of them; this is a defect in daq"
                    .to_owned(),
            });
        };
        Ok(SlotWriter {
            region,
            offsets,
            bytes: slots.bytes,
            credited: 0,
            completed: 0,
        })
    }
}

fn address(region: &Region) -> u64 {
    region.address().as_ptr().addr() as u64
}

impl DmaDevice for HostMemory {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&self, region: &Arc<Region>) -> Result<u64, DmaError> {
        if region.placement() != Placement::Host {
            return Err(DmaError::Unreachable {
                device: self.name.clone(),
                memory: region.placement().to_string(),
                why: "the CPU writes these frames; set memory = \"host\" for the ring".to_owned(),
            });
        }
        self.mapped().push(region.clone());
        Ok(address(region))
    }

    fn unmap(&self, at: u64, _: usize) -> Result<(), DmaError> {
        let mut mapped = self.mapped();
        if let Some(index) = mapped.iter().position(|region| address(region) == at) {
            mapped.swap_remove(index);
        }
        Ok(())
    }

    fn disable_and_reset(&self) -> Result<(), DmaError> {
        Ok(())
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Writes the slots of a ring in order, as far as there are credits.
#[derive(Debug)]
pub struct SlotWriter {
    region: Arc<Region>,
    /// Offsets of the slots in the region, beginning with the slot that is filled first.
    offsets: Vec<usize>,
    bytes: usize,
    credited: u64,
    completed: u64,
}

impl SlotWriter {
    /// Allows the writer to fill `slots` further slots.
    pub fn credit(&mut self, slots: u32) {
        self.credited += u64::from(slots);
    }

    /// Returns the number of slots that can be filled.
    pub const fn room(&self) -> u64 {
        self.credited - self.completed
    }

    /// Returns the size of a slot in bytes.
    pub const fn slot_bytes(&self) -> usize {
        self.bytes
    }

    /// Fills the next slot with `parts`, one after the other. Returns the number of bytes; `None` if no credit is left or
    /// the parts do not fit into a slot. Then nothing is written.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder of a division by a usize fits into a usize"
    )]
    pub fn fill<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]> + Clone) -> Option<usize> {
        let total = parts
            .clone()
            .try_fold(0_usize, |sum, part| sum.checked_add(part.len()))?;
        if self.room() == 0 || total > self.bytes {
            return None;
        }
        let slot = self.offsets[(self.completed % self.offsets.len() as u64) as usize];
        let mut to = self.region.address().as_ptr().wrapping_add(slot);
        for part in parts {
            // SAFETY:
            // - All parts together fit into the slot, which is inside the region, which is host memory that stays mapped
            //   while `self.region` exists.
            // - The slot is credited and not completed, so no reader has a reference to it, and no other thread writes it.
            // - `part` is a Rust slice outside of the slot, because no reference to a credited slot exists.
            unsafe { copy::stream(part.as_ptr(), to, part.len()) };
            to = to.wrapping_add(part.len());
        }
        copy::fence();
        self.completed += 1;
        Some(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma::{DmaMap, SlotLayout};
    use crate::region::HostOptions;

    fn slots(map: &DmaMap, first: usize) -> Slots {
        let layout = SlotLayout {
            slots: 3,
            stride: 128,
            bytes: 100,
        };
        Slots {
            addresses: layout.addresses(map).unwrap(),
            bytes: 100,
            first,
            ..Slots::none()
        }
    }

    #[test]
    fn slots_are_filled_in_order_and_only_with_credits() {
        let device = HostMemory::new("test");
        let region = Region::host(4096, HostOptions::default()).unwrap();
        let map = DmaMap::new(device.clone(), region.clone()).unwrap();
        // SAFETY: nothing else accesses the region.
        let mut writer = unsafe { device.writer(&slots(&map, 2)) }.unwrap();
        assert_eq!(writer.fill([&[1_u8][..]].into_iter()), None, "no credit");
        writer.credit(2);
        assert_eq!(
            writer.fill([&[1_u8; 60][..], &[2; 41]].into_iter()),
            None,
            "too long"
        );
        assert_eq!(
            writer.fill([&[1_u8; 60][..], &[2; 40]].into_iter()),
            Some(100)
        );
        assert_eq!(writer.fill([&[3_u8; 5][..]].into_iter()), Some(5));
        assert_eq!((writer.room(), writer.fill(std::iter::empty())), (0, None));
        let mut found = [0; 384];
        assert!(region.read(0, &mut found));
        let mut expected = [0; 384];
        expected[..5].fill(3);
        expected[256..316].fill(1);
        expected[316..356].fill(2);
        assert_eq!(found, expected);
    }

    #[test]
    fn slots_outside_of_mapped_memory_are_rejected() {
        let device = HostMemory::new("test");
        let region = Region::host(4096, HostOptions::default()).unwrap();
        let map = DmaMap::new(device.clone(), region).unwrap();
        let slots = slots(&map, 0);
        drop(map);
        // SAFETY: no writer is created.
        let error = unsafe { device.writer(&slots) }.unwrap_err();
        assert!(
            error.to_string().contains("test cannot access the 3 slots"),
            "{error}"
        );
    }
}
