//! The trait of DMA engines.

use super::DmaDevice;
use crate::frame::{Flags, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// The capabilities of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// true: it stops when it has no credits (backpressure); false: it runs freely and overwrites.
    pub supports_backpressure: bool,
    /// Number of bits of the count of finished transfers that it can write, as the last write of each transfer, to a
    /// given address ([`Slots::doorbell`]); 0 if it cannot.
    pub doorbell_bits: u32,
    /// Whether it reports the length of each frame.
    pub end_of_packet: bool,
    /// Alignment of slot addresses in bytes, a power of two.
    pub alignment: usize,
    /// Maximum number of bytes per slot.
    pub max_transfer: usize,
    /// Maximum number of slots in a ring.
    pub max_slots: usize,
}

/// The ring that an engine fills: transfer `n` since arming goes to slot `(first + n) % addresses.len()`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The addresses of all slots as the device sees them.
    pub addresses: Vec<u64>,
    /// Bytes per slot.
    pub bytes: usize,
    /// The slot that is filled first.
    pub first: usize,
    /// Where the device writes its count of finished transfers, as a 32-bit little-endian word whose low
    /// [`Caps::doorbell_bits`] bits are valid; `None` = only where the engine itself polls.
    pub doorbell: Option<u64>,
}

/// One slot that an engine has filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of valid bytes.
    pub length: usize,
    /// Whether the device reports that the payload is damaged.
    pub is_bad: bool,
    /// When.
    pub timestamp: Timestamp,
    /// Frames that were sent between the previous frame and this one and never arrived; 0 if unknown.
    pub missing: u64,
    /// Slots that were skipped before this one; only free-running engines skip slots.
    pub passed: u64,
    /// What the frame's sender reports about it; `None` for engines that only know transfers.
    pub origin: Option<Origin>,
}

/// What the sender of a frame reports about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The frame's number in the numbering of its producer.
    pub sequence: u64,
    /// Changes whenever that numbering has restarted.
    pub epoch: u64,
    /// The sender's flags; [`Flags::EPOCH`] is set independently here.
    pub flags: Flags,
    /// Number of packets of the frame.
    pub places: u32,
    /// Number of packets that arrived; [`Completions::push_with`] reports which ones.
    pub arrived: u32,
}

/// The completions of one poll, in slot order; holds a fixed number without allocating.
#[derive(Debug)]
pub struct Completions {
    done: Vec<Done>,
    /// Maximum number of completions for this poll, at most the capacity.
    limit: usize,
    overrun: u64,
    discarded: u64,
    missing: u64,
    faults: Vec<u64>,
    /// Number of words per frame in the bitmap of packets that arrived.
    words: usize,
    /// The bitmaps of all completions, one after the other.
    present: Vec<u64>,
}

impl Completions {
    /// Creates room for `capacity` completions per poll, of an engine with `faults` kinds of fault
    /// ([`Engine::faults`]) whose frames do not consist of packets.
    pub fn new(capacity: usize, faults: usize) -> Self {
        Self::with_places(capacity, faults, 0)
    }

    /// As [`new`](Self::new), for frames of up to `places` packets.
    pub fn with_places(capacity: usize, faults: usize, places: u32) -> Self {
        let words = (places as usize).div_ceil(64).max(1);
        Self {
            done: Vec::with_capacity(capacity),
            limit: capacity,
            overrun: 0,
            discarded: 0,
            missing: 0,
            faults: vec![0; faults],
            words,
            present: vec![0; capacity * words],
        }
    }

    /// Adds a completion of which all packets arrived. Returns false if there is no room; the engine must then report
    /// it at the next poll.
    pub fn push(&mut self, done: Done) -> bool {
        let places = done.origin.map_or(1, |origin| origin.places.max(1));
        let room = self.push_with(done, &[]);
        if room {
            let last = self.done.len() - 1;
            for (i, word) in self.present_mut(last).iter_mut().enumerate() {
                let bits = (places as usize).saturating_sub(64 * i).min(64);
                *word = if bits == 64 {
                    u64::MAX
                } else {
                    (1 << bits) - 1
                };
            }
        }
        room
    }

    /// Adds a completion with the bitmap of the packets that arrived, 64 per word from the lowest bit on. Missing
    /// words are zero; bits beyond the ring's packets are ignored. Returns false as [`push`](Self::push) does.
    pub fn push_with(&mut self, done: Done, present: &[u64]) -> bool {
        let room = self.room() > 0;
        if room {
            self.done.push(done);
            let words = self.present_mut(self.done.len() - 1);
            words.fill(0);
            let count = words.len().min(present.len());
            words[..count].copy_from_slice(&present[..count]);
        }
        room
    }

    fn present_mut(&mut self, i: usize) -> &mut [u64] {
        &mut self.present[i * self.words..(i + 1) * self.words]
    }

    /// The bitmap of the packets of the `i`-th completion that arrived.
    ///
    /// # Panics
    /// If there is no such completion.
    pub fn present(&self, i: usize) -> &[u64] {
        assert!(i < self.done.len(), "completion {i} of {}", self.done.len());
        &self.present[i * self.words..(i + 1) * self.words]
    }

    /// Number of completions that still fit.
    pub fn room(&self) -> usize {
        self.limit - self.done.len()
    }

    /// Counts transfers that were overwritten before this poll saw them. Call it before the completions are
    /// [pushed](Self::push).
    pub fn skip(&mut self, transfers: u64) {
        debug_assert!(self.done.is_empty(), "skipped transfers come first");
        self.overrun += transfers;
    }

    /// Counts frames that had arrived and were discarded when the engine was armed again: none of its slots holds
    /// them.
    pub fn discard(&mut self, frames: u64) {
        self.discarded += frames;
    }

    /// Counts frames that were sent and never arrived, if no later frame will report them ([`Done::missing`]): at the
    /// end of the sender's reports.
    pub fn add_missing(&mut self, frames: u64) {
        self.missing += frames;
    }

    /// Counts a fault after which the engine continues, by its index in [`Engine::faults`].
    ///
    /// # Panics
    /// If the engine has fewer faults.
    pub fn fault(&mut self, kind: usize) {
        self.faults[kind] += 1;
    }

    /// Marks the first completion as damaged.
    pub fn mark_first_bad(&mut self) {
        if let Some(first) = self.done.first_mut() {
            first.is_bad = true;
        }
    }

    /// The completions.
    pub fn as_slice(&self) -> &[Done] {
        &self.done
    }

    /// Transfers that were overwritten before this poll saw them.
    pub const fn overrun(&self) -> u64 {
        self.overrun
    }

    /// Frames that were discarded when the engine was armed again.
    pub const fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Frames that never arrived, in addition to those that completions report.
    pub const fn missing(&self) -> u64 {
        self.missing
    }

    /// The number of occurrences of each fault, in the order of [`Engine::faults`].
    pub fn faults(&self) -> &[u64] {
        &self.faults
    }

    /// Clears the list for a poll of at most `limit` completions.
    pub fn clear(&mut self, limit: usize) {
        self.done.clear();
        self.limit = limit.min(self.done.capacity());
        (self.overrun, self.discarded, self.missing) = (0, 0, 0);
        self.faults.fill(0);
    }
}

/// Why an engine stops.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The device does not match the configuration, or lacks a required capability.
    #[error("{device}: {why}")]
    Unfit {
        /// The device.
        device: String,
        /// What was found, what was expected, and the remedy.
        why: String,
    },
    /// The engine stopped with error bits. It may be armed again.
    #[error("{device}: {engine} stopped: {}", .faults.join(", "))]
    Faulted {
        /// The device.
        device: String,
        /// The engine.
        engine: &'static str,
        /// The bits, as [`Engine::faults`] names them.
        faults: Vec<&'static str>,
    },
    /// The device is no longer present: its registers read all ones, or its connection has closed.
    #[error(
        "{device} is gone; check whether it was removed or lost its link: dmesg | tail; lspci -s {device}"
    )]
    Gone {
        /// The device.
        device: String,
    },
    /// Memory could not be mapped for the device.
    #[error(transparent)]
    Dma(#[from] super::DmaError),
}

/// An engine that did not stop in time: its device must be reset before its slots are unmapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine} is still running {waited:?} after the request to stop")]
pub struct QuiesceTimeout {
    /// The engine.
    pub engine: String,
    /// How long it had to stop.
    pub waited: Duration,
}

/// A hardware producer that gets the addresses of all slots once and then fills them by itself.
///
/// `poll`, `credit` and `overwritten` are the data path: no allocation, no lock, and at most one register read per
/// call, if the device offers nothing else. Dropping an engine must leave nothing in flight.
pub trait Engine: Send {
    /// The engine's name in the configuration.
    fn name(&self) -> &'static str;

    /// The device that it belongs to.
    fn device(&self) -> &Arc<dyn DmaDevice>;

    /// What the engine can do.
    fn caps(&self) -> Caps;

    /// The names of all faults that it can report; [`Completions::fault`] uses their indices.
    fn faults(&self) -> &'static [&'static str];

    /// Whether packets are written directly into slots as they arrive. Then bytes after the end of a frame may
    /// change, up to the end of the slot, and missing packets leave old bytes. Changed bytes after a frame then do
    /// not indicate a fault.
    fn writes_past_length(&self) -> bool {
        false
    }

    /// Payload bytes of every packet of a frame but the last, if missing packets leave other content in the slot:
    /// they are filled with the ring's pattern before the frame is published. 0 if frames need no filling.
    fn place_bytes(&self) -> usize {
        0
    }

    /// Programs the ring and starts without credits. The engine must not be armed.
    fn arm(&mut self, slots: &Slots) -> Result<(), EngineError>;

    /// Collects the slots that were filled since the last call; never waits.
    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError>;

    /// Lets the engine fill `slots` further slots; no effect without backpressure.
    fn credit(&mut self, slots: u32);

    /// Returns the number of transfers since arming that may have been, or are being, overwritten by now; reads the
    /// device. 0 for an engine with backpressure.
    fn overwritten(&mut self) -> Result<u64, EngineError> {
        Ok(0)
    }

    /// Waits until the device interrupts or `limit` has passed; returns whether it waited, false if the device has no
    /// interrupts.
    fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        let _ = limit;
        Ok(false)
    }

    /// Stops the engine and returns once no transfer is in flight; no effect if it is not armed. Transfers that
    /// finished before can still be polled.
    fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrived_packet_slots_are_returned_with_their_frame() {
        let mut completions = Completions::with_places(2, 0, 100);
        let origin = Origin {
            places: 70,
            ..Origin::default()
        };
        let done = Done {
            origin: Some(origin),
            ..Done::default()
        };
        assert!(completions.push_with(done, &[5, 6, 7]) && completions.push(done));
        assert!(!completions.push(done));
        assert_eq!(completions.present(0), [5, 6]);
        assert_eq!(completions.present(1), [u64::MAX, 0x3f]);
        completions.clear(1);
        assert!(completions.push(Done::default()) && !completions.push(done));
        assert_eq!(completions.present(0), [1, 0]);
    }
}
