//! An emulated LitePCIe device with one DMA channel, which has only a writer from the device to the host.
//!
//! ```text
//!   stream ─▶ writer ──payload──▶ host memory
//!               ▲   └──interrupt (MSI)──▶
//!        cyclic table of descriptors
//! ```
//! [`CSR`] contains the register addresses. The behaviour follows LitePCIe's gateware, and the repository's tests
//! compare the emulated device with the gateware.
//!
//! - In loop mode the writer has no backpressure. A slow reader is overrun, and detects the overrun only from the loop
//!   count.
//! - `loop_status` shows the **last** finished descriptor, so it reads 0 both before and after the first descriptor is
//!   finished.
//! - The stream restarts when the writer is enabled, and does not mark the ends of packets.

mod table;

use super::stream::{Ready, Stream};
use super::{BARS, EmulatedDevice, Host, Identity, Step};
use crate::faults::Faults;
use daq_drivers::fpga::transports::emulated::{EmulatedOptions, FaultKind};
use std::time::Instant;
use table::Table;

/// The register addresses of this device in the format of `csr.csv`.
pub const CSR: &str = include_str!("litepcie/csr.csv");

/// The faults that can be injected.
pub const FAULTS: &[FaultKind] = &[
    (
        "overrun",
        "the DMA writer fills, in one burst, more slots than its table contains, so that no reader can keep up",
    ),
    ("stuck", "the writer hangs until a reset"),
    ("remove", "the card is removed"),
    (
        "lie",
        "the transfer is reported as complete, but its payload is not written",
    ),
    (
        "lost-interrupt",
        "the interrupt of the transfer is not raised",
    ),
];

/// Maximum number of bytes per memory write; a multiple of [`PAYLOAD`].
const PIECE: usize = 64 << 10;
/// Payload of one bus write in bytes. The writer buffers fewer bytes until the payload is complete, except for the last
/// bytes of a descriptor.
const PAYLOAD: usize = 256;
/// Maximum number of bytes per step.
const STEP: usize = 4 * PIECE;

const SCRATCH: u64 = 0x0004;
const MSI_ENABLE: u64 = 0x1800;
const MSI_CLEAR: u64 = 0x1804;
const MSI_VECTOR: u64 = 0x1808;
const ENABLE: u64 = 0x3800;
const VALUE_HIGH: u64 = 0x3804;
const VALUE_LOW: u64 = 0x3808;
const PUSH: u64 = 0x380c;
const LOOPS: u64 = 0x3810;
const STATUS: u64 = 0x3814;
const LEVEL: u64 = 0x3818;
const RESET: u64 = 0x381c;

/// The writer's bit in the interrupt registers.
const WRITER: u32 = 1 << 0;

/// An emulated LitePCIe device.
#[derive(Debug)]
pub struct LitePcie {
    options: EmulatedOptions,
    faults: Faults,
    stream: Stream,
    table: Table,
    is_enabled: bool,
    /// The current transfer.
    current: Option<Transfer>,
    /// Bytes that were read from the stream and wait to be written.
    buffer: Box<[u8]>,
    held: usize,
    /// Number of completed transfers since the last reset of the device.
    transfers: u64,
    /// Number of remaining transfers of a burst.
    burst: u64,
    is_stuck: bool,
    is_removed: bool,
    msi_enable: u32,
    msi_vector: u32,
    /// Values of registers that only store what is written.
    scratch: u32,
    msi_clear: u32,
    value: [u32; 2],
    push: u32,
    reset: u32,
}

/// The rest of the current descriptor's transfer.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    address: u32,
    left: usize,
    /// True if the fault `lie` applies: the device completes the transfer without writing the data to host memory.
    is_lie: bool,
    has_interrupt: bool,
}

/// Creates a device with these options.
pub fn build(options: &EmulatedOptions) -> Result<Box<dyn EmulatedDevice>, String> {
    Ok(Box::new(LitePcie::new(options)?))
}

impl LitePcie {
    /// Creates a device with these options. The error explains the invalid option and the fix.
    pub fn new(options: &EmulatedOptions) -> Result<Self, String> {
        options.check(FAULTS)?;
        Ok(Self::after_power_on(options))
    }

    /// Makes at least this number of bytes of the stream available immediately, earlier than the stream's rate allows.
    pub fn hurry(&mut self, bytes: u64) {
        self.stream.hurry(bytes);
    }

    fn after_power_on(options: &EmulatedOptions) -> Self {
        Self {
            faults: Faults::new(options),
            stream: Stream::new(options),
            table: Table::new(),
            is_enabled: false,
            current: None,
            buffer: vec![0; PIECE].into(),
            held: 0,
            transfers: 0,
            burst: 0,
            is_stuck: false,
            is_removed: false,
            msi_enable: 0,
            msi_vector: 0,
            scratch: 0x1234_5678,
            msi_clear: 0,
            value: [0; 2],
            push: 0,
            reset: 0,
            options: options.clone(),
        }
    }

    fn enable(&mut self, is_enabled: bool) {
        if is_enabled && !self.is_enabled {
            self.stream = Stream::new(&self.options);
        }
        if !is_enabled {
            // The unwritten rest of the current transfer is discarded; its descriptor stays in the table.
            self.current = None;
            self.held = 0;
            self.burst = 0;
        }
        self.is_enabled = is_enabled;
    }

    /// Starts the transfer of the next descriptor, if any, with the faults that are due.
    fn begin(&mut self) {
        if !self.is_enabled || self.current.is_some() {
            return;
        }
        let Some(descriptor) = self.table.next() else {
            return;
        };
        let due = self.transfers;
        self.is_removed |= self.faults.take("remove", due);
        // A length that is not a multiple of the word size creates invalid bus packets, so the emulated device hangs.
        let is_whole = descriptor.length > 0 && descriptor.length.is_multiple_of(8);
        self.is_stuck |= self.faults.take("stuck", due) || !is_whole;
        if self.faults.take("overrun", due) {
            let round = self.table.level() as u64;
            self.burst = round + round / 2 + 1;
            self.stream
                .hurry(self.burst.saturating_mul(u64::from(descriptor.length)));
        }
        self.current = Some(Transfer {
            address: descriptor.address,
            left: descriptor.length as usize,
            is_lie: self.faults.take("lie", due),
            has_interrupt: !self.faults.take("lost-interrupt", due),
        });
    }

    /// Performs a piece of work. Returns the number of moved bytes, or the time of the next work.
    fn advance(&mut self, host: &dyn Host, now: Instant) -> Result<usize, Step> {
        if self.is_removed {
            return Err(Step::Removed);
        }
        if !self.is_enabled || self.is_stuck {
            return Err(Step::Idle);
        }
        let Some(transfer) = self.current else {
            self.burst = 0;
            return Err(Step::Idle);
        };
        let end = transfer.left.min(PIECE);
        let none = match self.stream.ready(now) {
            Ready::Data => None,
            Ready::After(time) => Some(Step::After(time)),
            Ready::Ended => Some(Step::Idle),
        };
        let (taken, _) = self.stream.take(&mut self.buffer[self.held..end]);
        self.held += taken;
        if self.held == end {
            self.emit(transfer, end, host);
        } else if let Some(step) = none {
            self.emit(transfer, self.held / PAYLOAD * PAYLOAD, host);
            self.burst = 0;
            return Err(step);
        }
        Ok(taken)
    }

    /// Writes the first `bytes` buffered bytes. Completes the transfer if these are the last bytes of the transfer.
    fn emit(&mut self, transfer: Transfer, bytes: usize, host: &dyn Host) {
        if bytes == 0 {
            return;
        }
        if !transfer.is_lie {
            // The endpoint counts DMA faults; the device is not notified.
            let _ = host.write(transfer.address.into(), &self.buffer[..bytes]);
        }
        self.buffer.copy_within(bytes..self.held, 0);
        self.held -= bytes;
        let left = transfer.left - bytes;
        // `bytes` has at most 24 bits.
        #[expect(clippy::cast_possible_truncation, reason = "at most PIECE")]
        let address = transfer.address.wrapping_add(bytes as u32);
        self.current = (left > 0).then_some(Transfer {
            address,
            left,
            ..transfer
        });
        if left > 0 {
            return;
        }
        self.transfers += 1;
        self.burst = self.burst.saturating_sub(1);
        // The table's output at the end of the transfer decides whether an interrupt is raised. After a reset of the
        // table the output is a different descriptor, and a descriptor added meanwhile is removed with this one.
        let is_silent = self.table.shown().is_silent;
        self.table.pop();
        if !is_silent && transfer.has_interrupt && self.msi_enable & WRITER != 0 {
            self.msi_vector |= WRITER;
            host.interrupt(0);
        }
        self.begin();
    }
}

impl EmulatedDevice for LitePcie {
    fn csr(&self) -> Option<&'static str> {
        Some(CSR)
    }

    fn identity(&self) -> Identity {
        let mut bars = [0; BARS];
        bars[0] = 128 << 10;
        Identity {
            ids: [0x10ee, 0x7024, 0x10ee, 0x0007],
            class: 0x05_80_00,
            bars,
            vectors: 1,
        }
    }

    fn read(&mut self, bar: usize, offset: u64) -> u32 {
        if self.is_removed {
            return u32::MAX;
        }
        match (bar, offset) {
            (0, SCRATCH) => self.scratch,
            (0, MSI_ENABLE) => self.msi_enable,
            (0, MSI_CLEAR) => self.msi_clear,
            (0, MSI_VECTOR) => self.msi_vector,
            // Register accesses occur only between two bus writes, when the writer is idle.
            (0, ENABLE) => 2 | u32::from(self.is_enabled),
            (0, VALUE_HIGH) => self.value[0],
            (0, VALUE_LOW) => self.value[1],
            (0, PUSH) => self.push,
            (0, LOOPS) => self.table.loops().into(),
            (0, STATUS) => self.table.status(),
            (0, LEVEL) => u32::try_from(self.table.level()).unwrap_or(u32::MAX),
            (0, RESET) => self.reset,
            _ => 0,
        }
    }

    fn write(&mut self, bar: usize, offset: u64, value: u32, _: &dyn Host) {
        match (bar, offset) {
            (0, SCRATCH) => self.scratch = value,
            (0, MSI_ENABLE) => {
                self.msi_enable = value;
                self.msi_vector &= value;
            }
            (0, MSI_CLEAR) => {
                self.msi_clear = value;
                self.msi_vector &= !value;
            }
            (0, ENABLE) => self.enable(value & 1 != 0),
            (0, VALUE_HIGH) => self.value[0] = value,
            (0, VALUE_LOW) => self.value[1] = value,
            (0, PUSH) => {
                self.push = value;
                let [high, low] = self.value;
                self.table.push(high, low);
            }
            (0, LOOPS) => self.table.set_loops(value & 1 != 0),
            (0, RESET) => {
                self.reset = value & 1;
                if value & 1 != 0 {
                    self.table.reset();
                }
            }
            _ => {}
        }
        self.begin();
    }

    fn reset(&mut self) {
        // The faults that were already injected must not be repeated after the reset.
        let faults = std::mem::take(&mut self.faults);
        *self = Self::after_power_on(&std::mem::take(&mut self.options));
        self.faults = faults;
    }

    fn step(&mut self, host: &dyn Host) -> Step {
        let now = Instant::now();
        let mut moved = 0;
        // A burst is one step of any length: no register read may occur between its transfers.
        while moved < STEP || self.burst > 0 {
            match self.advance(host, now) {
                Ok(bytes) => moved += bytes,
                Err(step) => return step,
            }
        }
        Step::Busy
    }
}

#[cfg(test)]
mod tests;
