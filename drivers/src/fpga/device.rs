//! The seam between engines and how their device is reached: kernel VFIO, the vfio-user protocol, a model in this process.

use daq_core::dma::DmaDevice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The largest number of base address registers of a PCI device.
pub const BARS: usize = 6;

/// What a register reads as when its device is gone: a PCIe read that nobody answers is all ones.
pub const GONE: u32 = u32::MAX;

/// Why a device could not be opened, or lacks something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {why}")]
pub struct DeviceError {
    /// The device, as the configuration names it.
    pub device: String,
    /// What happened and what helps.
    pub why: String,
}

impl DeviceError {
    /// An error about `device`.
    pub fn new(device: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            why: why.into(),
        }
    }
}

/// What a device says it is, from its configuration space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Vendor, offset 0x00.
    pub vendor: u16,
    /// Model, offset 0x02.
    pub device: u16,
    /// Class, subclass and programming interface, offset 0x09: 24 bits.
    pub class: u32,
}

/// A device that is open for one engine; closed when the last reference is gone.
///
/// Memory and bus mastering are enabled, interrupts are not.
pub trait Device: DmaDevice {
    /// What it is.
    fn identity(&self) -> Identity;

    /// The registers in base address register `bar`, 0 to 5.
    fn registers(&self, bar: usize) -> Result<Arc<dyn Registers>, DeviceError>;

    /// Connects the first `count` interrupt vectors, each with an event.
    fn interrupts(&self, count: usize) -> Result<Vec<Interrupt>, DeviceError>;

    /// Resets it: no DMA is in flight afterwards, registers have their first values, bus mastering is enabled again.
    fn reset(&self) -> Result<(), DeviceError>;

    /// Whether what was mapped for it still is, where others than this program can end that; one system call at most while
    /// all is well.
    fn check(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Where its registers are, as a `csr.csv` of LitePCIe, for a device that brings that description with it.
    fn csr(&self) -> Option<&str> {
        None
    }

    /// Itself, for engines' buffers and maps.
    fn as_dma(self: Arc<Self>) -> Arc<dyn DmaDevice>;
}

/// The 32-bit registers of one base address register.
///
/// Reads of a device that is gone are [`GONE`], writes to it have no effect. Both keep their order; a read returns after
/// the writes before it have reached the device.
pub trait Registers: Send + Sync {
    /// Bytes.
    fn bytes(&self) -> u64;

    /// The register at `offset`, a multiple of 4 inside of the bytes.
    fn read(&self, offset: u64) -> u32;

    /// Sets the register at `offset`.
    fn write(&self, offset: u64, value: u32);
}

/// An interrupt vector as an eventfd, which counts.
#[derive(Debug)]
pub struct Interrupt {
    event: OwnedFd,
}

impl Interrupt {
    /// A vector whose interrupts are counted by `event`, a non-blocking eventfd.
    pub const fn new(event: OwnedFd) -> Self {
        Self { event }
    }

    /// Waits until it was raised since the last call, or `limit` has passed; true if it was.
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
