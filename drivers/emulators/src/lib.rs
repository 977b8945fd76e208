//! Emulated PCI devices.
//!
//! ```text
//!   EmulatedDevice (registers, steps of work) ──▶ vfio_user: serves the device to another process over a socket
//!                                             └─▶ in_process: runs the device in this process
//! ```
//! An emulated device is independent of its transport. The devices are written from vendor documentation, independently
//! of the drivers in [`daq_drivers::fpga`]. The devices and the drivers share no constants, so that the same mistake is
//! unlikely to be in both and stay undetected.

mod config_space;
pub mod endpoint;
mod faults;
pub mod hsb;
pub mod in_process;
pub mod litepcie;
pub mod pattern;
mod sequence;
pub mod stream;
mod sys;
pub mod vfio_user;
pub mod xdma;

use daq_drivers::fpga::device::{Device, DeviceError};
use daq_drivers::fpga::transports::emulated::{EmulatedDeviceEntry, EmulatedOptions, FaultKind};
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of base address registers (BARs) of a PCI device.
pub const BARS: usize = 6;

/// A registry entry of an emulated device.
pub struct DeviceEntry {
    /// The name in configuration and on the command line.
    pub name: &'static str,
    /// A description of the device in one line.
    pub summary: &'static str,
    /// The faults that the device can inject.
    pub faults: &'static [FaultKind],
    /// Creates the device. The error explains the invalid option and the fix.
    pub build: fn(&EmulatedOptions) -> Result<Box<dyn EmulatedDevice>, String>,
}

/// All emulated devices.
pub const DEVICES: &[DeviceEntry] = &[
    DeviceEntry {
        name: "xdma",
        summary: "AMD/Xilinx XDMA, AXI stream, four channels to the host",
        faults: xdma::FAULTS,
        build: xdma::build,
    },
    DeviceEntry {
        name: "litepcie",
        summary: "LitePCIe's DMA writer, one free-running channel to the host",
        faults: litepcie::FAULTS,
        build: litepcie::build,
    },
];

/// The entries of all emulated devices for the source `fpga`.
pub const SOURCE_DEVICES: &[EmulatedDeviceEntry] = &[emulated(&DEVICES[0]), emulated(&DEVICES[1])];

const fn emulated(card: &DeviceEntry) -> EmulatedDeviceEntry {
    EmulatedDeviceEntry {
        name: card.name,
        summary: card.summary,
        faults: card.faults,
        check_sequence: sequence::check,
        open: start,
    }
}

fn start(name: &str, options: &EmulatedOptions) -> Result<Arc<dyn Device>, DeviceError> {
    let card =
        build(name, options).map_err(|why| DeviceError::new(format!("emulated:{name}"), why))?;
    in_process::open(card)
}

/// Creates the emulated device `name`.
pub fn build(name: &str, options: &EmulatedOptions) -> Result<Box<dyn EmulatedDevice>, String> {
    let names: Vec<&str> = DEVICES.iter().map(|card| card.name).collect();
    match DEVICES.iter().find(|card| card.name == name) {
        Some(card) => (card.build)(options),
        None => Err(match daq_core::config::nearest(name, &names) {
            Some(near) => format!("there is no emulated device `{name}`; did you mean `{near}`?"),
            None => format!(
                "there is no emulated device `{name}`; available: {}",
                names.join(", ")
            ),
        }),
    }
}

/// The identity of a device in its configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor, device, subsystem vendor and subsystem identifiers.
    pub ids: [u16; 4],
    /// Class, subclass and programming interface, 24 bits.
    pub class: u32,
    /// Size in bytes of each base address register: 0, or a power of two of at least 4 KiB. All are 32-bit memory.
    pub bars: [u32; BARS],
    /// Number of interrupt vectors (MSI-X), 0 to 32.
    pub vectors: u16,
}

/// A DMA fault: the memory is not mapped, or bus mastering is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("DMA fault: the device cannot access {bytes} bytes at {address:#x}")]
pub struct Fault {
    /// The device address.
    pub address: u64,
    /// The number of bytes.
    pub bytes: usize,
}

/// Access to the host's memory and interrupts. Memory accesses fail while bus mastering is disabled.
pub trait Host {
    /// Writes memory. Writes become visible in the order of the calls.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Reads memory.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault>;

    /// Raises an interrupt vector after all earlier writes. No effect if the vector is not connected.
    fn interrupt(&self, vector: u16);
}

/// The time at which a device has more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The device has more work immediately.
    Busy,
    /// The device has more work after this time, or after an access to its registers.
    After(Duration),
    /// The device has more work only after an access to its registers.
    Idle,
    /// The device was removed and has no more work. Every register reads all ones, and the device no longer writes.
    Removed,
}

/// An emulated PCI device. Only one thread at a time uses a device.
pub trait EmulatedDevice: Send {
    /// Returns the identity of the device.
    fn identity(&self) -> Identity;

    /// Reads the register at `offset`, a multiple of 4, of base address register `bar`.
    fn read(&mut self, bar: usize, offset: u64) -> u32;

    /// Writes a register. The effects occur during this call or in the next [`step`](Self::step).
    fn write(&mut self, bar: usize, offset: u64, value: u32, host: &dyn Host);

    /// Restores the state after power-on.
    fn reset(&mut self);

    /// Returns the register addresses in the format of LitePCIe's `csr.csv`; `None` for other devices.
    fn csr(&self) -> Option<&'static str> {
        None
    }

    /// Performs a bounded amount of work, at most some hundred microseconds.
    fn step(&mut self, host: &dyn Host) -> Step;
}
