//! A channel from the device to the host: fetches descriptors and writes a stream to the destinations in the
//! descriptors.

use super::descriptor::{BYTES, Descriptor, PAGE};
use super::{ERRORS, LATE, MARK, State, VERSION};
use crate::stream::{Ready, Stream};
use crate::{Host, Step};
use daq_drivers::fpga::transports::emulated::EmulatedOptions;
use std::collections::VecDeque;
use std::time::Instant;

/// Maximum number of bytes that are moved in one step; small enough for the cache of a CPU core.
pub(super) const PIECE: usize = 128 << 10;
/// Position of the bits of these channels in the registers that both directions share.
pub(super) const COMMON_SHIFT: usize = 16;

/// Bits of the control register.
const RUN: u32 = 1;
const POLL_WRITE_BACK: u32 = 1 << 26;
/// Mask of the implemented bits of the control register.
const CONTROL: u32 = 0x0ef8_3e7f;

/// Bits of the status register. Each bit except `BUSY` is set only if the control register enables it.
const BUSY: u32 = 1;
const STOPPED: u32 = 1 << 1;
const COMPLETED: u32 = 1 << 2;
const ALIGN: u32 = 1 << 3;
const MAGIC: u32 = 1 << 4;
const LENGTH: u32 = 1 << 5;
const IDLE: u32 = 1 << 6;
/// Status bit: a descriptor fetch got no response. This is the first of the bits for descriptor fetch errors.
const FETCH: u32 = 1 << 19;

/// Required alignment of payload addresses in bytes.
const ALIGNMENT: u64 = 64;
/// Value of the alignment register: alignment of addresses and lengths in bytes, and the number of address bits.
const ALIGNMENTS: u32 = 64 << 16 | 1 << 8 | 64;
/// The maximum number of credits.
const MAX_CREDITS: u32 = 0x3ff;
/// Mask of the number of completed descriptors in the word that is written back.
const COUNT: u32 = 0x00ff_ffff;
/// Error bit in the word that is written back.
const COUNT_ERROR: u32 = 1 << 31;
/// Magic number in the high half of the first word of a result. A result is the stream writeback of PG195: the status
/// and the length of a transfer.
const RESULT: u32 = 0x52b4 << 16;

/// A DMA channel from the device to the host.
#[derive(Debug)]
pub(super) struct Channel {
    number: usize,
    control: u32,
    status: u32,
    completed: u32,
    poll: u64,
    mask: u32,
    first: u64,
    first_adjacent: u32,
    credits: u32,
    is_busy: bool,
    /// The address of the next descriptor.
    next: u64,
    /// Number of descriptors adjacent to the next descriptor.
    adjacent: u32,
    /// Descriptors that were prefetched together with an earlier descriptor, with the address of each.
    fetched: VecDeque<(u64, Descriptor)>,
    current: Option<Current>,
    stream: Stream,
}

/// The current descriptor.
#[derive(Debug)]
struct Current {
    descriptor: Descriptor,
    /// Number of bytes of the descriptor that were moved.
    done: u32,
    /// True if the fault `lie` applies: the engine reports this descriptor as complete without
    /// writing the data to host memory.
    is_lie: bool,
}

impl Channel {
    /// Creates channel `number` in its state after power-on.
    pub(super) fn new(number: usize, options: &EmulatedOptions) -> Self {
        Self {
            number,
            control: 0,
            status: 0,
            completed: 0,
            poll: 0,
            mask: 0,
            first: 0,
            first_adjacent: 0,
            credits: 0,
            is_busy: false,
            next: 0,
            adjacent: 0,
            fetched: VecDeque::with_capacity(64),
            current: None,
            stream: Stream::new(options),
        }
    }

    /// Reads a register of the channel.
    pub(super) fn read(&mut self, offset: u64) -> u32 {
        match offset {
            0x00 => self.id(1),
            0x04 => self.control,
            0x40 => self.status(),
            0x44 => {
                let status = self.status();
                self.status = 0;
                status
            }
            0x48 => self.completed,
            0x4c => ALIGNMENTS,
            0x88 => low(self.poll),
            0x8c => high(self.poll),
            0x90 => self.mask,
            _ => 0,
        }
    }

    /// Writes a register of the channel.
    pub(super) fn write(&mut self, offset: u64, value: u32) {
        match offset {
            0x04 => self.set_control(value),
            0x08 => self.set_control(self.control | value),
            0x0c => self.set_control(self.control & !value),
            0x88 => set_low(&mut self.poll, value),
            0x8c => set_high(&mut self.poll, value),
            0x90 => self.mask = value,
            0x94 => self.mask |= value,
            0x98 => self.mask &= !value,
            _ => {}
        }
    }

    /// Reads a descriptor (SGDMA) register of the channel.
    pub(super) fn sgdma_read(&self, offset: u64) -> u32 {
        match offset {
            0x00 => self.id(5),
            0x80 => low(self.first),
            0x84 => high(self.first),
            0x88 => self.first_adjacent,
            0x8c => self.credits,
            _ => 0,
        }
    }

    /// Writes a descriptor (SGDMA) register of the channel.
    pub(super) fn sgdma_write(&mut self, offset: u64, value: u32, state: &State) {
        match offset {
            0x80 => set_low(&mut self.first, value),
            0x84 => set_high(&mut self.first, value),
            0x88 => self.first_adjacent = value & 0x3f,
            0x8c if self.has_credit_mode(state) => {
                self.credits = (self.credits + (value & MAX_CREDITS)).min(MAX_CREDITS);
            }
            _ => {}
        }
    }

    /// Clears the credits if the credit mode was disabled.
    pub(super) fn credit_mode_changed(&mut self, state: &State) {
        if !self.has_credit_mode(state) {
            self.credits = 0;
        }
    }

    /// Returns true if an enabled interrupt cause is pending.
    pub(super) const fn wants_interrupt(&self) -> bool {
        self.status & self.mask & !BUSY != 0
    }

    /// Performs a piece of work.
    pub(super) fn step(&mut self, state: &mut State, host: &dyn Host, now: Instant) -> Step {
        if !self.is_busy || state.is_stuck {
            return Step::Idle;
        }
        if self.control & RUN == 0
            && self
                .current
                .as_ref()
                .is_none_or(|current| current.done == 0)
        {
            // Only a transfer that has already started is finished.
            self.current = None;
            self.is_busy = false;
            self.log(IDLE);
            return Step::Idle;
        }
        if self.current.is_none() && !self.begin(state, host) {
            return Step::Idle;
        }
        if !state.has_stream {
            return Step::Idle;
        }
        match self.stream.ready(now) {
            Ready::Data => {
                self.transfer(state, host, now);
                Step::Busy
            }
            Ready::After(time) => Step::After(time),
            Ready::Ended => Step::Idle,
        }
    }

    /// Starts the next descriptor. Returns false if no descriptor is available or the descriptor is invalid.
    fn begin(&mut self, state: &mut State, host: &dyn Host) -> bool {
        let holds_credits = self.has_credit_mode(state);
        if state.halted >> self.common_bit() & 1 != 0 || holds_credits && self.credits == 0 {
            return false;
        }
        let Some(descriptor) = self.fetch(holds_credits, host) else {
            self.fail(FETCH, host);
            return false;
        };
        if holds_credits {
            self.credits -= 1;
        }
        let transfer = state.transfers;
        if state.faults.take("remove", transfer) {
            state.is_removed = true;
            return false;
        }
        if state.faults.take("stuck", transfer) {
            state.is_stuck = true;
            return false;
        }
        if state.faults.take("overrun", transfer) {
            self.stream.lose();
        }
        let injected = ERRORS
            .iter()
            .find(|(name, _)| state.faults.take(name, transfer));
        let wrong = match injected {
            Some((_, bit)) => Some(*bit),
            None if !descriptor.has_magic() => Some(MAGIC),
            None if descriptor.bytes == 0 => Some(LENGTH),
            None if descriptor.destination % ALIGNMENT != 0 => Some(ALIGN),
            None if (descriptor.destination)
                .checked_add(descriptor.bytes.into())
                .is_none() =>
            {
                Some(LENGTH)
            }
            None => None,
        };
        if let Some(bit) = wrong {
            self.fail(bit, host);
            return false;
        }
        self.current = Some(Current {
            descriptor,
            done: 0,
            is_lie: state.faults.take("lie", transfer),
        });
        true
    }

    /// Returns the next descriptor: a prefetched descriptor, or the first descriptor of a block that is fetched now.
    fn fetch(&mut self, holds_credits: bool, host: &dyn Host) -> Option<Descriptor> {
        if self.fetched.front().is_none_or(|(at, _)| *at != self.next) {
            self.fetched.clear();
            let count = if holds_credits {
                (1 + self.adjacent).min(self.credits)
            } else {
                1 + self.adjacent
            };
            let bytes = u64::from(count) * BYTES as u64;
            if self.next % PAGE as u64 + bytes > PAGE as u64 {
                return None;
            }
            let mut block = [0; PAGE];
            let block = block.get_mut(..usize::try_from(bytes).ok()?)?;
            host.read(self.next, block).ok()?;
            let (descriptors, _) = block.as_chunks::<BYTES>();
            let addresses = (self.next..).step_by(BYTES);
            let parsed = descriptors.iter().map(Descriptor::parse);
            self.fetched.extend(addresses.zip(parsed));
        }
        let (_, descriptor) = self.fetched.pop_front()?;
        self.next = descriptor.next;
        self.adjacent = descriptor.adjacent();
        Some(descriptor)
    }

    /// Moves a piece of the stream to the host.
    fn transfer(&mut self, state: &mut State, host: &dyn Host, now: Instant) {
        let Some(current) = &mut self.current else {
            return;
        };
        let left = (current.descriptor.bytes - current.done) as usize;
        let room = left.min(state.buffer.len());
        let (moved, is_end) = self.stream.take(&mut state.buffer[..room]);
        if !current.is_lie {
            // This is a posted write, so the device is not notified of a fault.
            let at = current.descriptor.destination + u64::from(current.done);
            let _ = host.write(at, &state.buffer[..moved]);
        }
        current.done += u32::try_from(moved).unwrap_or(0);
        state.moved += moved;
        if is_end || moved == left {
            self.complete(is_end, state, host, now);
        }
    }

    fn complete(&mut self, is_end: bool, state: &mut State, host: &dyn Host, now: Instant) {
        let Some(current) = self.current.take() else {
            return;
        };
        let descriptor = current.descriptor;
        let mut result = [0; 8];
        result[..4].copy_from_slice(&(RESULT | u32::from(is_end)).to_le_bytes());
        result[4..].copy_from_slice(&current.done.to_le_bytes());
        if state.faults.take("late", state.transfers) {
            state.late.push((now + LATE, descriptor.result, result));
        } else {
            let _ = host.write(descriptor.result, &result);
        }
        state.transfers += 1;
        self.completed = self.completed.wrapping_add(1);
        if descriptor.stops() {
            self.is_busy = false;
            self.log(STOPPED);
        }
        if descriptor.is_reported() {
            self.log(COMPLETED);
            self.write_back(0, host);
        }
    }

    /// Stops the channel with an error.
    fn fail(&mut self, bit: u32, host: &dyn Host) {
        self.is_busy = false;
        self.current = None;
        self.log(bit);
        self.write_back(COUNT_ERROR, host);
    }

    fn write_back(&self, error: u32, host: &dyn Host) {
        if self.control & POLL_WRITE_BACK != 0 {
            let word = self.completed & COUNT | error;
            let _ = host.write(self.poll, &word.to_le_bytes());
        }
    }

    fn set_control(&mut self, value: u32) {
        let before = self.control;
        self.control = value & CONTROL;
        if before & RUN == 0 && self.control & RUN != 0 {
            self.completed = 0;
            self.next = self.first;
            self.adjacent = self.first_adjacent;
            self.fetched.clear();
            // A transfer that has already started is finished first.
            self.current.take_if(|current| current.done == 0);
            self.is_busy = true;
        }
        if before & RUN != 0 && self.control & RUN == 0 {
            self.credits = 0;
        }
    }

    const fn log(&mut self, bit: u32) {
        self.status |= bit & self.control;
    }

    fn status(&self) -> u32 {
        self.status | if self.is_busy { BUSY } else { 0 }
    }

    fn id(&self, block: u32) -> u32 {
        /// Bit of a stream channel in the identifier.
        const STREAM: u32 = 1 << 15;
        let number = u32::try_from(self.number).unwrap_or(0);
        MARK | block << 16 | STREAM | number << 8 | VERSION
    }

    const fn common_bit(&self) -> usize {
        COMMON_SHIFT + self.number
    }

    const fn has_credit_mode(&self, state: &State) -> bool {
        state.credit_mode >> self.common_bit() & 1 != 0
    }
}

const fn low(address: u64) -> u32 {
    let [a, b, c, d, ..] = address.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

const fn high(address: u64) -> u32 {
    low(address >> 32)
}

const fn set_low(address: &mut u64, value: u32) {
    *address = *address >> 32 << 32 | value as u64;
}

const fn set_high(address: &mut u64, value: u32) {
    *address = (value as u64) << 32 | low(*address) as u64;
}
