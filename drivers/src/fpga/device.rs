//! The interface between engines and devices. Implementations: Linux VFIO, vfio-user, an emulated device in this process.

use daq_core::dma::DmaDevice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of base address registers (BARs) of a PCI device.
pub const BARS: usize = 6;

/// The value of every register after the device was removed: an unanswered PCIe read returns all ones.
pub const GONE: u32 = u32::MAX;

/// Error: a device cannot be opened or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {why}")]
pub struct DeviceError {
    /// The name of the device in the configuration.
    pub device: String,
    /// What happened and how to fix it.
    pub why: String,
}

impl DeviceError {
    /// Creates an error about `device`.
    pub fn new(device: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            why: why.into(),
        }
    }
}

/// The identity of a device from its configuration space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Vendor identifier, offset 0x00.
    pub vendor: u16,
    /// Device identifier, offset 0x02.
    pub device: u16,
    /// Class, subclass and programming interface, offset 0x09: 24 bits.
    pub class: u32,
}

/// A device that is open for one engine. It is closed when the last reference is dropped.
///
/// Memory and bus mastering are enabled, interrupts are not.
pub trait Device: DmaDevice {
    /// Returns the identity of the device.
    fn identity(&self) -> Identity;

    /// Returns the registers in BAR `bar`, 0 to 5.
    fn registers(&self, bar: usize) -> Result<Arc<dyn Registers>, DeviceError>;

    /// Returns BAR `bar` with write combining: the CPU may join writes to bursts, and they may reach the device in another
    /// order. Reads and all writes to [`registers`](Self::registers) are executed after the writes before them. For
    /// windows of descriptors, never for registers with side effects. By default, writes are not combined.
    fn write_combined(&self, bar: usize) -> Result<Arc<dyn Registers>, DeviceError> {
        self.registers(bar)
    }

    /// Connects each of the first `count` interrupt vectors with an event.
    fn interrupts(&self, count: usize) -> Result<Vec<Interrupt>, DeviceError>;

    /// Resets the device. Afterwards no DMA is in flight, registers have their initial values, and bus mastering is enabled.
    fn reset(&self) -> Result<(), DeviceError>;

    /// Checks that memory is still mapped for the device, if Linux can revoke mappings. Makes at most one system call if no
    /// mapping was revoked.
    fn check(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns the register addresses in the format of a LitePCIe `csr.csv`, if the device provides them.
    fn csr(&self) -> Option<&str> {
        None
    }

    /// Returns the device as a [`DmaDevice`], which engines use for buffers and mappings.
    fn as_dma(self: Arc<Self>) -> Arc<dyn DmaDevice>;
}

/// The registers in one BAR, in little-endian words.
///
/// If the device was removed, reads return [`GONE`] and writes have no effect. Accesses keep their order. A read returns
/// after all earlier writes have reached the device.
pub trait Registers: Send + Sync {
    /// Returns the size of the BAR in bytes.
    fn bytes(&self) -> u64;

    /// Reads the register at `offset`, which must be a multiple of 4 and less than [`bytes`](Self::bytes).
    fn read(&self, offset: u64) -> u32;

    /// Writes the register at `offset`, which must be a multiple of 4 and less than [`bytes`](Self::bytes).
    fn write(&self, offset: u64, value: u32);

    /// Reads 64 bits at `offset`, a multiple of 8. One access if the transport has 64-bit accesses, otherwise two, the low
    /// half first.
    fn read64(&self, offset: u64) -> u64 {
        let low = u64::from(self.read(offset));
        low | u64::from(self.read(offset + 4)) << 32
    }

    /// Writes 64 bits at `offset`, a multiple of 8. One access if the transport has 64-bit accesses, otherwise two, the low
    /// half first.
    fn write64(&self, offset: u64, value: u64) {
        let (low, high) = halves(value);
        self.write(offset, low);
        self.write(offset + 4, high);
    }
}

/// Splits a value or an address into the values of two registers: the low half and the high half.
#[expect(clippy::cast_possible_truncation, reason = "each half has 32 bits")]
pub const fn halves(value: u64) -> (u32, u32) {
    (value as u32, (value >> 32) as u32)
}

/// An interrupt vector that is signalled by an eventfd.
#[derive(Debug)]
pub struct Interrupt {
    event: OwnedFd,
}

impl Interrupt {
    /// Creates a vector from a non-blocking eventfd that counts its interrupts.
    pub const fn new(event: OwnedFd) -> Self {
        Self { event }
    }

    /// Waits at most `limit` until the interrupt was raised since the last call. Returns whether it was raised.
    pub fn wait(&self, limit: Duration) -> bool {
        let mut count = [0; 8];
        if rustix::io::read(&self.event, &mut count).is_ok() {
            return true;
        }
        let limit = Timespec::try_from(limit).ok();
        let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
        poll(&mut fds, limit.as_ref()).is_ok_and(|ready| ready > 0)
            && rustix::io::read(&self.event, &mut count).is_ok()
    }
}
