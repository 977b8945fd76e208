//! What every DMA engine over queue pairs has in common: the slots of its ring, its receives, and its faults.

use crate::registration::set::RegistrationSet;
use crate::verbs::{QueuePair, Sge, VerbsError, WorkCompletion};
use daq_core::dma::Slots;
use std::time::Duration;

/// The slots of a ring inside memory that is registered with NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredSlots {
    /// Address of the memory in the [`RegistrationSet`].
    pub memory: u64,
    /// Offset of slot 0 in the memory, in bytes.
    pub offset: usize,
    /// Number of slots.
    pub count: u32,
    /// Size of a slot in bytes.
    pub bytes: usize,
    /// Distance in bytes between the starts of consecutive slots.
    pub stride: usize,
    /// The slot of transfer 0.
    pub first: u32,
}

impl RegisteredSlots {
    /// Finds the memory of `slots`. Returns the reason if the slots do not have equal distances or are not registered.
    pub fn find(set: &RegistrationSet, slots: &Slots) -> Result<Self, String> {
        let (addresses, bytes) = (&slots.addresses, slots.bytes);
        let (Some(base), Ok(count)) = (addresses.first(), u32::try_from(addresses.len())) else {
            return Err(format!(
                "the ring has {} slots, but must have 1 to {}",
                addresses.len(),
                u32::MAX
            ));
        };
        let stride = addresses
            .get(1)
            .map_or(bytes as u64, |second| second.wrapping_sub(*base));
        let mut pairs = addresses.windows(2);
        let is_even = pairs.all(|pair| pair[1].wrapping_sub(pair[0]) == stride);
        let stride = usize::try_from(stride)
            .ok()
            .filter(|stride| is_even && *stride >= bytes)
            .ok_or("the slots of the ring do not have equal distances")?;
        let (memory, size) = set
            .find_containing(*base)
            .ok_or("the ring's slots are not registered with the NIC")?;
        let offset = usize::try_from(base - memory).unwrap_or(usize::MAX);
        (addresses.len() - 1)
            .checked_mul(stride)
            .and_then(|last| last.checked_add(bytes)?.checked_add(offset))
            .filter(|end| *end <= size)
            .ok_or("the ring's slots exceed the registered memory region")?;
        Ok(Self {
            memory,
            offset,
            count,
            bytes,
            stride,
            first: u32::try_from(slots.first % addresses.len()).unwrap_or(0),
        })
    }

    /// Returns the slot of a transfer. The transfers of a ring are numbered from 0.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder of a division by a u32 fits into a u32"
    )]
    pub const fn slot(&self, transfer: u64) -> u32 {
        let count = self.count as u64;
        ((self.first as u64 + transfer % count) % count) as u32
    }

    /// Returns the offset of `slot` in the memory, in bytes.
    pub const fn offset_of(&self, slot: usize) -> usize {
        self.offset + slot * self.stride
    }
}

/// A queue pair with the state of its receives.
pub struct ReceiveQueue {
    queue_pair: Box<dyn QueuePair>,
    /// Number of posted receives that have not completed.
    open: u64,
    /// Number of receives without memory that must be posted again.
    used: u32,
}

impl ReceiveQueue {
    /// Wraps a queue pair with `open` posted receives.
    pub const fn new(queue_pair: Box<dyn QueuePair>, open: u64) -> Self {
        Self {
            queue_pair,
            open,
            used: 0,
        }
    }

    /// Returns the queue pair, for send requests and for [`QueuePair::stop`].
    pub fn queue_pair(&mut self) -> &mut dyn QueuePair {
        &mut *self.queue_pair
    }

    /// Returns the number of posted receives that have not completed.
    pub const fn open(&self) -> u64 {
        self.open
    }

    /// Collects completions without waiting, as [`QueuePair::poll`] does. The caller calls
    /// [`completed`](Self::completed) for each receive.
    pub fn poll(&mut self, done: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        self.queue_pair.poll(done)
    }

    /// Counts a completed receive.
    pub const fn completed(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// Marks a completed receive without memory as free, so that it is posted again.
    pub const fn free(&mut self) {
        self.used += 1;
    }

    /// Posts the free receives again.
    pub fn post_again(&mut self) -> Result<(), VerbsError> {
        while self.used > 0 {
            self.post(0, &[])?;
            self.used -= 1;
        }
        Ok(())
    }

    /// Posts a receive.
    pub fn post(&mut self, id: u64, into: &[Sge<'_>]) -> Result<(), VerbsError> {
        self.open += 1;
        self.queue_pair.post_receive(id, into)
    }

    /// Waits for a completion, as [`QueuePair::wait`] does.
    pub fn wait(&mut self, limit: Duration) -> Result<bool, VerbsError> {
        self.queue_pair.wait(limit)
    }
}

/// Declares the faults of an engine as an enum, and the list of their names in metrics.
#[macro_export]
macro_rules! faults {
    (
        $(#[$meta:meta])* $visibility:vis enum $fault:ident;
        $(#[$list_meta:meta])* $list_visibility:vis const $list:ident;
        $($(#[$doc:meta])* $variant:ident = $name:literal,)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $fault {
            $($(#[$doc])* $variant,)*
        }

        $(#[$list_meta])*
        $list_visibility const $list: &[&str] = &[$($name,)*];
    };
}
