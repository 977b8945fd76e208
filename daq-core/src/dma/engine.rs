//! The trait of DMA engines.

use super::{DmaDevice, DmaError, DmaMap};
use crate::frame::{Flags, KeptFields, PacketSizes, Timestamp};
use crate::region::Placement;
use std::sync::Arc;
use std::time::Duration;

/// The capabilities of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Whether the engine stops when it has no credits (backpressure). If false, the engine is free-running and
    /// overwrites slots.
    pub supports_backpressure: bool,
    /// Number of bits of the counter of finished transfers that the engine can write to a given address
    /// ([`Slots::doorbell`]) as the last write of each transfer; 0 if the engine cannot write the counter.
    pub doorbell_bits: u32,
    /// Alignment of slot addresses in bytes, a power of two.
    pub alignment: usize,
    /// Maximum number of bytes per slot.
    pub max_transfer: usize,
    /// Maximum number of slots in a ring.
    pub max_slots: usize,
    /// Whether packets are written directly to slots as they arrive. If so, bytes after the end of a frame may change up to
    /// the end of the slot, and the positions of missing packets contain old data. Changed bytes after a frame then do not
    /// indicate a fault.
    pub writes_past_length: bool,
    /// The payload bytes of every packet of a frame except the last, if missing packets leave other content in the slot. Such
    /// packets are filled with the ring's pattern before the frame is published. 0 if frames need no filling.
    pub packet_bytes: usize,
}

impl Caps {
    /// Returns the capabilities of an engine that has those of its description, no doorbell, and writes whole frames.
    pub const fn of(info: &EngineInfo) -> Self {
        Self {
            supports_backpressure: info.supports_backpressure,
            doorbell_bits: 0,
            alignment: info.limits.alignment,
            max_transfer: info.limits.max_slot,
            max_slots: info.limits.max_slots,
            writes_past_length: false,
            packet_bytes: 0,
        }
    }
}

/// When a completion proves that its payload has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionOrder {
    /// The payload arrives first in every memory: the device writes the completion after the payload and over the same
    /// path, or the engine reports a transfer only when the next one has finished.
    AfterPayload,
    /// The payload arrives first only in host memory, because the engine reads a register. The reply to a read waits for
    /// earlier writes to host memory, but not for writes to another device. Such an engine never gets slots on a GPU.
    HostMemory,
}

/// The limits of an engine that are independent of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// Alignment of slot sizes and addresses in bytes, a power of two.
    pub alignment: usize,
    /// Maximum slot size in bytes.
    pub max_slot: usize,
    /// Maximum number of slots.
    pub max_slots: usize,
    /// Default slot size in bytes.
    pub preferred: usize,
}

/// The description of an engine, which is valid before any device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineInfo {
    /// The name of the engine in the configuration.
    pub name: &'static str,
    /// A summary of one sentence, without a full stop.
    pub summary: &'static str,
    /// The limits of the engine.
    pub limits: SlotLimits,
    /// The names of the faults that the engine can report; [`Completions::fault`] uses the indices of this list.
    pub faults: &'static [&'static str],
    /// Whether the engine supports backpressure, unless the configuration selects another mode.
    pub supports_backpressure: bool,
    /// When a completion proves that its payload has arrived.
    pub order: CompletionOrder,
}

/// The arrangement of slots in mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    /// Number of slots.
    pub slots: usize,
    /// Distance in bytes between the starts of two slots. The first slot is at the start of the memory.
    pub stride: usize,
    /// Size of each slot in bytes.
    pub bytes: usize,
}

impl SlotLayout {
    /// Returns the device's addresses of all slots in `memory`. Fails if a slot has no consecutive addresses.
    ///
    /// # Panics
    /// Panics if the slots exceed the memory.
    pub fn addresses(&self, memory: &DmaMap) -> Result<Vec<u64>, DmaError> {
        (0..self.slots)
            .map(|slot| memory.address_of(slot * self.stride, self.bytes))
            .collect()
    }
}

/// The ring that an engine fills. Transfer `n` since arming goes to slot `(first + n) % addresses.len()`.
///
/// [`Stopped::start`](super::Stopped::start) takes the addresses from the [`DmaMap`] that it keeps while the engine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The device's addresses of all slots.
    pub addresses: Vec<u64>,
    /// Size of each slot in bytes.
    pub bytes: usize,
    /// The slot that is filled first.
    pub first: usize,
    /// The address to which the device writes its counter of finished transfers, as a 32-bit little-endian word whose
    /// low [`Caps::doorbell_bits`] bits are valid. `None` if only the engine itself polls the counter.
    pub doorbell: Option<u64>,
    /// The memory of the slots.
    pub placement: Placement,
}

impl Slots {
    /// Returns a ring without slots, the state of an engine that was never armed.
    pub const fn none() -> Self {
        Self {
            addresses: Vec::new(),
            bytes: 0,
            first: 0,
            doorbell: None,
            placement: Placement::Host,
        }
    }

    /// Returns the address of the `n`-th slot that is filled, counted from 0, in a ring with slots.
    pub fn nth(&self, n: u64) -> u64 {
        let count = self.addresses.len();
        let slot = usize::try_from(n % count as u64).unwrap_or(0);
        self.addresses[(self.first + slot) % count]
    }

    /// Returns the addresses in the order in which the slots are filled, beginning with the slot [`first`](Self::first).
    pub fn in_order(&self) -> impl Iterator<Item = u64> {
        let (before, from_first) = self.addresses.split_at(self.first);
        from_first.iter().chain(before).copied()
    }
}

/// One slot that an engine has filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of valid bytes.
    pub length: usize,
    /// Whether the device reports that the payload is damaged.
    pub is_bad: bool,
    /// Time of the frame.
    pub timestamp: Timestamp,
    /// Number of missing frames between the previous frame and this frame, which were sent but never arrived; 0 if
    /// unknown.
    pub missing: u64,
    /// Number of slots skipped before this one; only free-running engines skip slots.
    pub passed: u64,
    /// Information from the frame's sender; `None` if the engine gets no such information.
    pub origin: Option<Origin>,
}

/// Information from the sender of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The frame's number, as counted by its producer.
    pub sequence: u64,
    /// A value that changes whenever the producer has restarted its numbers.
    pub epoch: u64,
    /// The sender's flags. [`Flags::EPOCH`] is set independently by the receiver.
    pub flags: Flags,
    /// Number of packets of the frame.
    pub packets_per_frame: u32,
    /// Number of packets that arrived; [`Completions::push_with`] reports which ones.
    pub arrived: u32,
    /// Sizes of the packets; 0 if those of the ring apply.
    pub packet_sizes: PacketSizes,
    /// Values that the frame keeps from the headers of its packets.
    pub kept: KeptFields,
}

/// The completions of one poll, in slot order. The list has a fixed capacity and does not allocate.
#[derive(Debug)]
pub struct Completions {
    done: Vec<Done>,
    /// Maximum number of completions in this poll, at most the capacity.
    limit: usize,
    overrun: u64,
    discarded: u64,
    missing: u64,
    expired: u64,
    rejected: u64,
    faults: Vec<u64>,
    /// Number of words per frame in the bitmap of packets that arrived.
    words: usize,
    /// The bitmaps of all completions, one after the other.
    present: Vec<u64>,
}

impl Completions {
    /// Creates a list for `capacity` completions per poll. The engine has `faults` kinds of faults
    /// ([`EngineInfo::faults`]), and its frames do not consist of packets.
    pub fn new(capacity: usize, faults: usize) -> Self {
        Self::with_packets_per_frame(capacity, faults, 0)
    }

    /// Creates a list as [`new`](Self::new) does, for frames of up to `packets_per_frame` packets.
    pub fn with_packets_per_frame(capacity: usize, faults: usize, packets_per_frame: u32) -> Self {
        let words = (packets_per_frame as usize).div_ceil(64).max(1);
        Self {
            done: Vec::with_capacity(capacity),
            limit: capacity,
            overrun: 0,
            discarded: 0,
            missing: 0,
            expired: 0,
            rejected: 0,
            faults: vec![0; faults],
            words,
            present: vec![0; capacity * words],
        }
    }

    /// Adds a completion whose packets have all arrived. Returns false if the list is full; the engine must then report
    /// the completion in the next poll.
    pub fn push(&mut self, done: Done) -> bool {
        let packets_per_frame = done
            .origin
            .map_or(1, |origin| origin.packets_per_frame.max(1));
        let room = self.push_with(done, &[]);
        if room {
            let last = self.done.len() - 1;
            for (i, word) in self.present_mut(last).iter_mut().enumerate() {
                let bits = (packets_per_frame as usize).saturating_sub(64 * i).min(64);
                *word = if bits == 64 {
                    u64::MAX
                } else {
                    (1 << bits) - 1
                };
            }
        }
        room
    }

    /// Adds a completion with the bitmap of the packets that arrived, 64 per word, starting at the lowest bit. If
    /// `present` is too short, the missing words are zero; bits after the ring's packets are ignored. Returns false if
    /// the list is full, as [`push`](Self::push) does.
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

    /// Returns the bitmap of the packets of completion `i` that arrived.
    ///
    /// # Panics
    /// Panics if completion `i` does not exist.
    pub fn present(&self, i: usize) -> &[u64] {
        assert!(
            i < self.done.len(),
            "completion {i} is outside the list of {} completions",
            self.done.len()
        );
        &self.present[i * self.words..(i + 1) * self.words]
    }

    /// Returns the number of completions that can still be added.
    pub fn room(&self) -> usize {
        self.limit - self.done.len()
    }

    /// Counts transfers that were overwritten before this poll saw them. Must be called before the completions are
    /// [pushed](Self::push).
    pub fn skip(&mut self, transfers: u64) {
        debug_assert!(
            self.done.is_empty(),
            "skipped transfers must be counted before completions are pushed"
        );
        self.overrun += transfers;
    }

    /// Counts frames that had arrived and were discarded because the engine was armed again. No slot contains these
    /// frames.
    pub fn discard(&mut self, frames: u64) {
        self.discarded += frames;
    }

    /// Counts frames that were sent and never arrived, if no later frame will report these frames ([`Done::missing`])
    /// because the sender's reports have ended.
    pub fn add_missing(&mut self, frames: u64) {
        self.missing += frames;
    }

    /// Counts frames that a server deleted before the engine received them. No later frame may report these frames as
    /// [missing](Done::missing).
    pub fn expire(&mut self, frames: u64) {
        self.expired += frames;
    }

    /// Counts messages that arrived and belong to no frame, because they are not usable.
    pub fn reject(&mut self, messages: u64) {
        self.rejected += messages;
    }

    /// Counts a fault after which the engine continues. `kind` is the fault's index in [`EngineInfo::faults`].
    ///
    /// # Panics
    /// Panics if `kind` is not less than the number of fault kinds.
    pub fn fault(&mut self, kind: usize) {
        self.faults[kind] += 1;
    }

    /// Marks the first completion as damaged.
    pub fn mark_first_bad(&mut self) {
        if let Some(first) = self.done.first_mut() {
            first.is_bad = true;
        }
    }

    /// Returns the completions.
    pub fn as_slice(&self) -> &[Done] {
        &self.done
    }

    /// Returns the number of transfers that were overwritten before this poll saw them.
    pub const fn overrun(&self) -> u64 {
        self.overrun
    }

    /// Returns the number of frames that were discarded because the engine was armed again.
    pub const fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Returns the number of frames that never arrived, in addition to those that completions report.
    pub const fn missing(&self) -> u64 {
        self.missing
    }

    /// Returns the number of frames that a server deleted before they were received.
    pub const fn expired(&self) -> u64 {
        self.expired
    }

    /// Returns the number of messages that are not usable.
    pub const fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Returns the number of occurrences of each fault, in the order of [`EngineInfo::faults`].
    pub fn faults(&self) -> &[u64] {
        &self.faults
    }

    /// Clears the list for a poll of at most `limit` completions.
    pub fn clear(&mut self, limit: usize) {
        self.done.clear();
        self.limit = limit.min(self.done.capacity());
        (self.overrun, self.discarded, self.missing, self.expired) = (0, 0, 0, 0);
        self.rejected = 0;
        self.faults.fill(0);
    }
}

/// Returns how to find the reason why the device disappeared. Only a PCI address names a device that `lspci` knows.
fn how_to_find(device: &str) -> String {
    if device.starts_with("emulated:") {
        "the emulated device was removed (fault `remove`) or its thread ended".to_owned()
    } else if device.starts_with("vfio-user:") {
        "check that the process that emulates it still runs".to_owned()
    } else {
        format!("check whether it was removed or lost its link: dmesg | tail; lspci -s {device}")
    }
}

/// Returns whether the pipeline stops.
pub type StopCheck = Arc<dyn Fn() -> bool + Send + Sync>;

/// Reason why an engine stops.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The device does not match the configuration, or lacks a required capability.
    #[error("{device}: {why}")]
    Unfit {
        /// Name of the device.
        device: String,
        /// The actual value, the expected value, and the fix.
        why: String,
    },
    /// The engine stopped with error bits. It can be armed again.
    #[error("{device}: {engine} stopped: {}", .faults.join(", "))]
    Faulted {
        /// Name of the device.
        device: String,
        /// Name of the engine.
        engine: &'static str,
        /// The error bits, named as in [`EngineInfo::faults`].
        faults: Vec<&'static str>,
    },
    /// The device is no longer present: its registers read all ones, or its connection has closed.
    #[error(
        "{device} is gone; {}", how_to_find(.device)
    )]
    Gone {
        /// Name of the device.
        device: String,
    },
    /// The pipeline stopped while the engine was being armed.
    #[error("{device}: the start was cancelled, because the pipeline stops")]
    Cancelled {
        /// Name of the device.
        device: String,
    },
    /// Memory could not be mapped for the device.
    #[error(transparent)]
    Dma(#[from] super::DmaError),
}

/// An engine could not be armed. There is no conversion from [`EngineError`], because each failure must state whether the
/// engine may write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArmError {
    /// The engine does not write: it was not started, or it was stopped again. The core does not call
    /// [`Engine::quiesce`].
    #[error(transparent)]
    Stopped(EngineError),
    /// The engine may already write. The core calls [`Engine::quiesce`], and resets the device if this fails.
    #[error(transparent)]
    Started(EngineError),
}

impl ArmError {
    /// Returns the reason.
    pub fn into_reason(self) -> EngineError {
        match self {
            Self::Stopped(reason) | Self::Started(reason) => reason,
        }
    }
}

/// An engine did not stop in time. Its device must be reset before its slots are unmapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine} is still running {waited:?} after the stop request")]
pub struct QuiesceTimeout {
    /// Name of the engine.
    pub engine: String,
    /// The time limit.
    pub waited: Duration,
}

/// A hardware producer that gets the addresses of all slots once and then fills the slots without the CPU.
///
/// [`Running`](super::Running) and [`Stopped`](super::Stopped) call the methods in the right state: `poll`, `credit`,
/// `overwritten`, `wait` and `quiesce` only while the engine runs, `poll_stopped` and `overwritten_stopped` only after it
/// has stopped. So an engine needs no flag for its state, and no `Drop` that stops it.
///
/// `poll`, `credit` and `overwritten` are called on the data path. They must not allocate or lock, and should read at
/// most one register per call.
///
/// # Safety
/// The core unmaps and frees the memory of the slots while it relies on the following:
/// - The device writes only to the slots of the last [`arm`](Self::arm), at most [`Slots::bytes`] bytes to each, to
///   [`Slots::doorbell`], and to memory that the engine itself owns and keeps until it has stopped.
/// - The device writes only from a call of `arm` until the next `quiesce` that returns `Ok`. After an `arm` that returns
///   [`ArmError::Stopped`] the device does not write.
/// - [`device`](Self::device) always returns the device that writes, so that
///   [`disable_and_reset`](DmaDevice::disable_and_reset) ends all its writes.
pub unsafe trait Engine: Send {
    /// Returns the description of the engine.
    fn info(&self) -> &'static EngineInfo;

    /// Returns the device of the engine.
    fn device(&self) -> &Arc<dyn DmaDevice>;

    /// Returns the capabilities of the engine. By default, those of [`info`](Self::info).
    fn caps(&self) -> Caps {
        Caps::of(self.info())
    }

    /// Sets the function that returns whether the pipeline stops. An engine whose [`arm`](Self::arm) may wait for long
    /// calls this function while it waits, and then returns [`EngineError::Cancelled`].
    fn stop_when(&mut self, is_stopping: StopCheck) {
        let _ = is_stopping;
    }

    /// Programs the ring, and starts the engine without credits.
    ///
    /// # Safety
    /// The engine must be stopped. The caller must keep the memory of `slots` mapped until [`quiesce`](Self::quiesce)
    /// has returned `Ok` or the device was reset, also if this call returns [`ArmError::Started`].
    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError>;

    /// Collects the slots that were filled since the last call. Never waits.
    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError>;

    /// Collects the slots that were filled before the engine stopped and were not collected yet.
    fn poll_stopped(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.poll(done)
    }

    /// Allows the engine to fill `slots` further slots. Has no effect on an engine without backpressure.
    fn credit(&mut self, slots: u32);

    /// Returns the number of transfers since arming that may have been, or are being, overwritten; always 0 for an
    /// engine with backpressure. This call reads the device.
    fn overwritten(&mut self) -> Result<u64, EngineError> {
        Ok(0)
    }

    /// Returns the value of [`overwritten`](Self::overwritten) at the time when the engine stopped.
    fn overwritten_stopped(&mut self) -> Result<u64, EngineError> {
        self.overwritten()
    }

    /// Waits until the device raises an interrupt or `limit` has passed. Returns true if the function has waited, false
    /// if the device has no interrupts.
    fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        let _ = limit;
        Ok(false)
    }

    /// Stops the engine and returns once no transfer is in flight. A device that was removed does not write. Transfers
    /// that finished before this call are reported by [`poll_stopped`](Self::poll_stopped).
    fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrived_packet_slots_are_returned_with_their_frame() {
        let mut completions = Completions::with_packets_per_frame(2, 0, 100);
        let origin = Origin {
            packets_per_frame: 70,
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
