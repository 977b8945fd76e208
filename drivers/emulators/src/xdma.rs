//! An emulated device with AMD's DMA/Bridge Subsystem for PCI Express (XDMA, PG195), in AXI stream mode, with four
//! channels from the device to the host.
//!
//! ```text
//!   stream ─▶ channel 0..3 ──payload, result, count──▶ host memory
//!                  ▲                └────interrupt──▶
//!             descriptors, credits
//! ```
//! Base address register (BAR) 0 contains the user's registers: an id, a switch for the streams, and a scratch word.
//! BAR 1 contains the registers of the DMA subsystem. The device has no channels from the host to the device, so their
//! ids read as 0. Bit `n` of the interrupt registers belongs to channel `n`.
//!
//! The emulation is stricter than some hardware, so that it detects driver mistakes that would otherwise show only on
//! specific hardware:
//!
//! - Status bits are set only if they are enabled in the control register.
//! - An interrupt is raised only on the rising edge of its cause.
//! - A block of descriptors must not cross a page boundary.

mod channel;
mod descriptor;

use super::{BARS, EmulatedDevice, Host, Identity, Step};
use crate::faults::Faults;
use channel::Channel;
use daq_drivers::fpga::transports::emulated::{EmulatedOptions, FaultKind};
use std::time::{Duration, Instant};

/// Number of channels from the device to the host.
const CHANNELS: usize = 4;

/// Index of the BAR with the user's registers.
const USER: usize = 0;
const USER_ID: u64 = 0x0;
const USER_STREAM: u64 = 0x4;
const USER_SCRATCH: u64 = 0x8;
/// The id of the user's registers: `DAQ1` in ASCII.
const USER_MARK: u32 = 0x3151_4144;

/// Index of the BAR with the subsystem's registers.
const SUBSYSTEM: usize = 1;
/// The high bits of the id of each register block.
const MARK: u32 = 0x1fc0_0000;
/// The version in the low bits of the id of each register block.
const VERSION: u32 = 0x06;

/// The faults that can be injected.
pub const FAULTS: &[FaultKind] = &[
    (
        "align",
        "status bit 3: the source or destination address is not aligned",
    ),
    (
        "descriptor-magic",
        "status bit 4: the magic number of a descriptor is wrong",
    ),
    (
        "invalid-length",
        "status bit 5: the length of a descriptor is invalid",
    ),
    (
        "read-decode",
        "status bit 9: stream read error, decode error",
    ),
    (
        "read-slave",
        "status bit 10: stream read error, slave error",
    ),
    (
        "read-2",
        "status bit 11: stream read error, bit 2 of the read error field",
    ),
    (
        "read-3",
        "status bit 12: stream read error, bit 3 of the read error field",
    ),
    (
        "read-4",
        "status bit 13: stream read error, bit 4 of the read error field",
    ),
    (
        "descriptor-unsupported",
        "status bit 19: descriptor fetch error, unsupported request",
    ),
    (
        "descriptor-abort",
        "status bit 20: descriptor fetch error, completer abort",
    ),
    (
        "descriptor-parity",
        "status bit 21: descriptor fetch error, parity error",
    ),
    (
        "descriptor-poisoned",
        "status bit 22: descriptor fetch error, poisoned data",
    ),
    (
        "descriptor-unexpected",
        "status bit 23: descriptor fetch error, unexpected completion",
    ),
    ("overrun", "the stream loses the packet before the transfer"),
    ("stuck", "the channel hangs and stays busy until a reset"),
    ("remove", "the card is removed"),
    (
        "lie",
        "the transfer is reported as complete, but its payload is not written",
    ),
    ("late", "the result is written some milliseconds late"),
];

/// The faults that set a status bit, and the bit. A driver reports each error under the same name.
pub const ERRORS: [(&str, u32); 13] = [
    ("align", 1 << 3),
    ("descriptor-magic", 1 << 4),
    ("invalid-length", 1 << 5),
    ("read-decode", 1 << 9),
    ("read-slave", 1 << 10),
    ("read-2", 1 << 11),
    ("read-3", 1 << 12),
    ("read-4", 1 << 13),
    ("descriptor-unsupported", 1 << 19),
    ("descriptor-abort", 1 << 20),
    ("descriptor-parity", 1 << 21),
    ("descriptor-poisoned", 1 << 22),
    ("descriptor-unexpected", 1 << 23),
];

/// Maximum number of pieces of work that a channel performs per step.
const ROUNDS: u32 = 32;

/// Delay of a result that the fault `late` delays.
const LATE: Duration = Duration::from_millis(5);

/// An emulated XDMA device.
#[derive(Debug)]
pub struct Xdma {
    options: EmulatedOptions,
    state: State,
    channels: [Channel; CHANNELS],
    irq: Irq,
    scratch: u32,
}

/// The state that all channels share.
#[derive(Debug)]
struct State {
    faults: Faults,
    /// Number of completed transfers of all channels.
    transfers: u64,
    /// True if the user's design produces a stream.
    has_stream: bool,
    /// Channels that must not fetch descriptors, as in the halt register.
    halted: u32,
    /// Channels that need one credit per descriptor fetch, as in the mode register.
    credit_mode: u32,
    /// Delayed results, each with the time of the write, the address and the bytes.
    late: Vec<(Instant, u64, [u8; 8])>,
    is_stuck: bool,
    is_removed: bool,
    /// Number of bytes that a channel has moved in this step.
    moved: usize,
    /// Buffer for payload that is being moved.
    buffer: Box<[u8]>,
}

/// The interrupt block.
#[derive(Debug, Default)]
struct Irq {
    /// Channels whose interrupts are enabled.
    enabled: u32,
    /// Channels with a pending interrupt cause.
    requested: u32,
    user_enabled: u32,
    vectors: [u32; 2],
    user_vectors: [u32; 4],
}

/// Creates a device with these options.
pub fn build(options: &EmulatedOptions) -> Result<Box<dyn EmulatedDevice>, String> {
    options.check(FAULTS)?;
    Ok(Box::new(Xdma::new(options)))
}

impl Xdma {
    fn new(options: &EmulatedOptions) -> Self {
        Self {
            state: State {
                faults: Faults::new(options),
                transfers: 0,
                has_stream: true,
                halted: 0,
                credit_mode: 0,
                late: Vec::new(),
                is_stuck: false,
                is_removed: false,
                moved: 0,
                buffer: vec![0; channel::PIECE].into(),
            },
            channels: std::array::from_fn(|number| Channel::new(number, options)),
            irq: Irq::default(),
            scratch: 0,
            options: options.clone(),
        }
    }

    /// Raises the vectors of channels whose interrupt cause became true.
    fn interrupt(&mut self, host: &dyn Host) {
        let requested = self.requests();
        let rising = requested & self.irq.enabled & !self.irq.requested;
        self.irq.requested = requested & self.irq.enabled;
        for channel in (0..CHANNELS).filter(|channel| rising >> channel & 1 != 0) {
            // Each word contains four 5-bit fields, one per byte.
            let field = self.irq.vectors[channel / 4] >> (8 * (channel % 4)) & 0x1f;
            host.interrupt(u16::try_from(field).unwrap_or(0));
        }
    }

    fn requests(&self) -> u32 {
        let bits = self.channels.iter().zip(0..);
        bits.map(|(channel, bit)| u32::from(channel.wants_interrupt()) << bit)
            .sum()
    }

    fn irq_read(&self, offset: u64) -> u32 {
        match offset {
            0x00 => MARK | 0x2_0000 | VERSION,
            0x04 => self.irq.user_enabled,
            0x10 => self.irq.enabled,
            0x44 => self.requests(),
            0x4c => self.requests() & self.irq.enabled,
            0x80..0x90 => self.irq.user_vectors[word(offset - 0x80)],
            0xa0..0xa8 => self.irq.vectors[word(offset - 0xa0)],
            _ => 0,
        }
    }

    fn irq_write(&mut self, offset: u64, value: u32) {
        let all = (1 << CHANNELS) - 1;
        match offset {
            0x04 => self.irq.user_enabled = value,
            0x08 => self.irq.user_enabled |= value,
            0x0c => self.irq.user_enabled &= !value,
            0x10 => self.irq.enabled = value & all,
            0x14 => self.irq.enabled |= value & all,
            0x18 => self.irq.enabled &= !value,
            0x80..0x90 => self.irq.user_vectors[word(offset - 0x80)] = value & 0x1f1f_1f1f,
            0xa0..0xa8 => self.irq.vectors[word(offset - 0xa0)] = value & 0x1f1f_1f1f,
            _ => {}
        }
    }

    fn common_read(&self, offset: u64) -> u32 {
        match offset {
            0x00 => MARK | 0x6_0000 | VERSION,
            0x10 => self.state.halted,
            0x20 => self.state.credit_mode,
            _ => 0,
        }
    }

    fn common_write(&mut self, offset: u64, value: u32) {
        let all = ((1 << CHANNELS) - 1) << channel::COMMON_SHIFT;
        let State {
            halted,
            credit_mode,
            ..
        } = &mut self.state;
        match offset {
            0x10 => *halted = value & all,
            0x14 => *halted |= value & all,
            0x18 => *halted &= !value,
            0x20 => *credit_mode = value & all,
            0x24 => *credit_mode |= value & all,
            0x28 => *credit_mode &= !value,
            _ => {}
        }
        for channel in &mut self.channels {
            channel.credit_mode_changed(&self.state);
        }
    }
}

impl EmulatedDevice for Xdma {
    fn identity(&self) -> Identity {
        let mut bars = [0; BARS];
        bars[USER] = 0x1000;
        bars[SUBSYSTEM] = 0x1_0000;
        Identity {
            ids: [0x10ee, 0x9038, 0x10ee, 0x0007],
            class: 0x05_80_00,
            bars,
            vectors: 32,
        }
    }

    fn read(&mut self, bar: usize, offset: u64) -> u32 {
        if bar == USER {
            return match offset {
                USER_ID => USER_MARK,
                USER_STREAM => self.state.has_stream.into(),
                USER_SCRATCH => self.scratch,
                _ => 0,
            };
        }
        let within = offset & 0xff;
        let value = match (offset >> 12, block(offset)) {
            (1, number @ 0..CHANNELS) => self.channels[number].read(within),
            (2, 0) => self.irq_read(within),
            (3, 0) if within == 0 => MARK | 0x3_0000 | VERSION,
            (5, number @ 0..CHANNELS) => self.channels[number].sgdma_read(within),
            (6, 0) => self.common_read(within),
            _ => 0,
        };
        // The read may have cleared the status and thus its interrupt cause.
        self.irq.requested &= self.requests();
        value
    }

    fn write(&mut self, bar: usize, offset: u64, value: u32, host: &dyn Host) {
        if bar == USER {
            match offset {
                USER_STREAM => self.state.has_stream = value & 1 != 0,
                USER_SCRATCH => self.scratch = value,
                _ => {}
            }
            return;
        }
        let within = offset & 0xff;
        match (offset >> 12, block(offset)) {
            (1, number @ 0..CHANNELS) => self.channels[number].write(within, value),
            (2, 0) => self.irq_write(within, value),
            (5, number @ 0..CHANNELS) => {
                self.channels[number].sgdma_write(within, value, &self.state);
            }
            (6, 0) => self.common_write(within, value),
            _ => {}
        }
        self.interrupt(host);
    }

    fn reset(&mut self) {
        // The faults that were already injected must not be repeated after the reset.
        let faults = std::mem::take(&mut self.state.faults);
        *self = Self::new(&std::mem::take(&mut self.options));
        self.state.faults = faults;
    }

    fn step(&mut self, host: &dyn Host) -> Step {
        let now = Instant::now();
        let mut next = Step::Idle;
        self.state.late.retain(|(due, address, word)| {
            if *due <= now {
                // The endpoint counts DMA faults.
                let _ = host.write(*address, word);
            }
            *due > now
        });
        for channel in &mut self.channels {
            self.state.moved = 0;
            let mut step = Step::Busy;
            for _ in 0..ROUNDS {
                step = channel.step(&mut self.state, host, now);
                if step != Step::Busy || self.state.moved >= channel::PIECE {
                    break;
                }
            }
            next = sooner(next, step);
        }
        if self.state.is_removed {
            return Step::Removed;
        }
        for (due, ..) in &self.state.late {
            next = sooner(next, Step::After(*due - now));
        }
        self.interrupt(host);
        next
    }
}

/// Returns the step that has its next work earlier.
fn sooner(a: Step, b: Step) -> Step {
    match (a, b) {
        (Step::Removed, _) | (_, Step::Removed) => Step::Removed,
        (Step::Busy, _) | (_, Step::Busy) => Step::Busy,
        (Step::After(a), Step::After(b)) => Step::After(a.min(b)),
        (after @ Step::After(_), Step::Idle) | (Step::Idle, after) => after,
    }
}

/// Returns the index of the register word at `offset`.
fn word(offset: u64) -> usize {
    usize::try_from(offset / 4).unwrap_or(usize::MAX)
}

/// Returns the index of the 256-byte block at `offset` within its 4 KiB.
fn block(offset: u64) -> usize {
    usize::try_from(offset >> 8 & 0xf).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
