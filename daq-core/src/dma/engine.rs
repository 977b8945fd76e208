//! The seam of DMA engines.

use super::DmaDevice;
use crate::frame::{Flags, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// What an engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Whether it stops when it has no credits; else it goes round and overwrites.
    pub supports_backpressure: bool,
    /// Bits of the count of finished transfers that it can write, as the last write of each transfer, to an address of our
    /// choosing ([`Slots::doorbell`]); 0 if it cannot.
    pub doorbell_bits: u32,
    /// Whether it reports the length of each frame.
    pub end_of_packet: bool,
    /// Alignment of slot addresses in bytes, a power of two.
    pub alignment: usize,
    /// Most bytes of one slot.
    pub max_transfer: usize,
    /// Most slots of a ring.
    pub max_slots: usize,
}

/// The ring that an engine fills: transfer `n` since it was armed goes to slot `(first + n) % addresses.len()`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Every slot, as the device sees it.
    pub addresses: Vec<u64>,
    /// Bytes of each.
    pub bytes: usize,
    /// The slot that is filled first.
    pub first: usize,
    /// Where the device is to write its count of finished transfers, as a 32-bit little-endian word of which the low
    /// [`Caps::doorbell_bits`] count; `None` = nowhere but where the engine itself looks.
    pub doorbell: Option<u64>,
}

/// One slot that an engine has filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Valid bytes.
    pub length: usize,
    /// Whether the device says that the payload is damaged.
    pub is_bad: bool,
    /// When.
    pub timestamp: Timestamp,
    /// Frames that were sent before this one, after the one before it, and never came; 0 where nobody can say.
    pub missing: u64,
    /// Slots that were passed over before this one; only engines that go round pass any over.
    pub passed: u64,
    /// What the frame's sender says of it; `None` where an engine knows of transfers alone.
    pub origin: Option<Origin>,
}

/// What the sender of a frame says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The frame's number in its producer's counting.
    pub sequence: u64,
    /// Another value whenever that counting has begun anew.
    pub epoch: u64,
    /// Flags, of which [`Flags::EPOCH`] is set anew here.
    pub flags: Flags,
    /// Places that make up the frame.
    pub places: u32,
    /// Places that really arrived; which ones, [`Completions::push_with`] says.
    pub arrived: u32,
}

/// The completions that one poll yields, in slot order; holds a fixed number without allocating.
#[derive(Debug)]
pub struct Completions {
    done: Vec<Done>,
    /// Completions that are wanted, at most as many as there is room for.
    limit: usize,
    overrun: u64,
    discarded: u64,
    missing: u64,
    faults: Vec<u64>,
    /// Words that tell of a frame which places arrived.
    words: usize,
    /// Those words, of one completion after the other.
    present: Vec<u64>,
}

impl Completions {
    /// Room for `capacity` completions a poll, of an engine that knows `faults` kinds of fault ([`Engine::faults`]), of
    /// frames without places.
    pub fn new(capacity: usize, faults: usize) -> Self {
        Self::with_places(capacity, faults, 0)
    }

    /// The same for frames of up to `places` places.
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

    /// Adds one of which all arrived; false if there is no room, and the engine must report it at the next poll.
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

    /// Adds one of whose places those arrived whose bits are set in `present`, 64 a word from the lowest bit on; words
    /// that are not given are zero, those beyond the ring's places are left out. False as of [`push`](Self::push).
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

    /// Which places of the `i`-th completion arrived.
    ///
    /// # Panics
    /// If there is no such completion.
    pub fn present(&self, i: usize) -> &[u64] {
        assert!(i < self.done.len(), "completion {i} of {}", self.done.len());
        &self.present[i * self.words..(i + 1) * self.words]
    }

    /// Completions that still fit.
    pub fn room(&self) -> usize {
        self.limit - self.done.len()
    }

    /// Counts transfers that were overwritten before this poll saw them: they come before those that are
    /// [pushed](Self::push).
    pub fn skip(&mut self, transfers: u64) {
        debug_assert!(self.done.is_empty(), "skipped transfers come first");
        self.overrun += transfers;
    }

    /// Counts frames that had come and were let go when the engine was armed anew: none of the slots that it fills now was
    /// theirs.
    pub fn discard(&mut self, frames: u64) {
        self.discarded += frames;
    }

    /// Counts frames that were sent and never came, where no later frame will tell of them ([`Done::missing`]): at the end
    /// of what their sender tells.
    pub fn add_missing(&mut self, frames: u64) {
        self.missing += frames;
    }

    /// Counts a fault that the engine goes on after, by its place in [`Engine::faults`].
    ///
    /// # Panics
    /// If the engine does not know that many.
    pub fn fault(&mut self, kind: usize) {
        self.faults[kind] += 1;
    }

    /// Takes the first completion for damaged.
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

    /// Frames that were let go when the engine was armed anew.
    pub const fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Frames that never came, beside those that completions tell of.
    pub const fn missing(&self) -> u64 {
        self.missing
    }

    /// How often each fault was met, in the order of [`Engine::faults`].
    pub fn faults(&self) -> &[u64] {
        &self.faults
    }

    /// Empties the list for a poll of at most `limit` completions, and no more than fit.
    pub fn clear(&mut self, limit: usize) {
        self.done.clear();
        self.limit = limit.min(self.done.capacity());
        (self.overrun, self.discarded, self.missing) = (0, 0, 0);
        self.faults.fill(0);
    }
}

/// Why an engine does not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The device is not what the configuration says, or cannot do what is asked of it.
    #[error("{device}: {why}")]
    Unfit {
        /// The device.
        device: String,
        /// What was found, what was expected, what helps.
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
    /// The device is not there any more: its registers read all ones, or its connection has closed.
    #[error(
        "{device} is gone; look whether it was removed or has lost its link: dmesg | tail; lspci -s {device}"
    )]
    Gone {
        /// The device.
        device: String,
    },
    /// Memory could not be given to the device.
    #[error(transparent)]
    Dma(#[from] super::DmaError),
}

/// An engine that would not stop: it must be cut off before its slots are unmapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine} still runs {waited:?} after it was told to stop")]
pub struct QuiesceTimeout {
    /// The engine.
    pub engine: String,
    /// How long it was given.
    pub waited: Duration,
}

/// A producer that is given the addresses of all slots once and fills them by itself.
///
/// `poll`, `credit` and `overwritten` are the data path: no allocation, no lock, at most one register read a call where the
/// device offers nothing else. An engine that is dropped must leave nothing in flight.
pub trait Engine: Send {
    /// The engine's name, as in configuration.
    fn name(&self) -> &'static str;

    /// The device that it belongs to.
    fn device(&self) -> &Arc<dyn DmaDevice>;

    /// What the engine can do.
    fn caps(&self) -> Caps;

    /// The names of all faults that it can report, in the order of [`Completions::fault`].
    fn faults(&self) -> &'static [&'static str];

    /// Whether packets are written into slots as they come: behind a frame's length too, up to the end of the slot, and of a
    /// frame of which some never came not those. What changes behind a frame then proves nothing.
    fn writes_past_length(&self) -> bool {
        false
    }

    /// Bytes of each place of a frame but the last, where those that did not arrive hold something else: they are filled as
    /// the ring says before anybody sees the frame. 0 where frames come as they are to be seen.
    fn place_bytes(&self) -> usize {
        0
    }

    /// Programs the ring and starts, without credits. It is not armed when this is called.
    fn arm(&mut self, slots: &Slots) -> Result<(), EngineError>;

    /// Collects what has been filled since the last call; never waits.
    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError>;

    /// Lets the engine fill `slots` further slots; without effect where it cannot be held back.
    fn credit(&mut self, slots: u32);

    /// How many transfers since it was armed may have been overwritten, or be being overwritten, by now; reads the
    /// device. 0 for an engine that is held back.
    fn overwritten(&mut self) -> Result<u64, EngineError> {
        Ok(0)
    }

    /// Waits until the device interrupts or `limit` has passed; true if it waited, false where there are no interrupts.
    fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        let _ = limit;
        Ok(false)
    }

    /// Stops it and returns once no transfer is in flight; without effect where it is not armed. What is finished until
    /// then can still be polled.
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
