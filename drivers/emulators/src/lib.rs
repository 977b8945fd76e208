//! Emulated PCI devices.
//!
//! ```text
//!   EmulatedDevice (registers, a step of work) ──▶ vfio_user: a socket for another process
//!                                              └─▶ in_process: a device in this process
//! ```
//! An emulated device is independent of its transport. The devices are written from vendor documentation, independently
//! of the drivers in [`daq_drivers::fpga`]. They share no constants, so that a mistake does not cancel out.

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
use daq_drivers::fpga::transports::emulated::{
    EmulatedDeviceEntry, EmulatedDevices, EmulatedOptions, FaultKind,
};
use std::sync::Arc;
use std::time::Duration;

/// The most base address registers of a PCI device.
pub const BARS: usize = 6;

/// A registry entry of an emulated device.
pub struct DeviceEntry {
    /// Its name, as in configuration and on the command line.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// The faults that can be injected.
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

/// The devices of this crate, for the source `fpga`.
#[derive(Debug)]
pub struct Emulators;

impl EmulatedDevices for Emulators {
    const DEVICES: &'static [EmulatedDeviceEntry] = &[emulated(&DEVICES[0]), emulated(&DEVICES[1])];
}

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

/// What a card shows in its configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor, device, subsystem vendor, subsystem.
    pub ids: [u16; 4],
    /// Class, subclass and programming interface: 24 bits.
    pub class: u32,
    /// Bytes of each base address register, 0 or a power of two of at least 4 KiB; all are 32-bit memory.
    pub bars: [u32; BARS],
    /// Interrupt vectors (MSI-X), 0 to 32.
    pub vectors: u16,
}

/// A DMA fault: the memory is not mapped, or bus mastering is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("DMA fault: the device cannot access {bytes} bytes at {address:#x}")]
pub struct Fault {
    /// The device address.
    pub address: u64,
    /// Bytes.
    pub bytes: usize,
}

/// The host as the device accesses it. Every access fails while bus mastering is disabled.
pub trait Host {
    /// Writes memory, in the order of calls.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Reads memory.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault>;

    /// Raises an interrupt vector, after all writes before; without effect while it is not connected.
    fn interrupt(&self, vector: u16);
}

/// When a card has work again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// At once.
    Busy,
    /// After so much time, or after an access to its registers.
    After(Duration),
    /// After an access to its registers.
    Idle,
    /// Never: the device was removed. Every register reads all ones, and the device no longer writes.
    Removed,
}

/// An emulated PCI device. Only one thread at a time calls it.
pub trait EmulatedDevice: Send {
    /// What it shows.
    fn identity(&self) -> Identity;

    /// The register at `offset`, a multiple of 4, of base address register `bar`.
    fn read(&mut self, bar: usize, offset: u64) -> u32;

    /// Sets a register. What follows from it may be done here or in the next step.
    fn write(&mut self, bar: usize, offset: u64, value: u32, host: &dyn Host);

    /// Everything as after power-on.
    fn reset(&mut self);

    /// Where its registers are, as the `csr.csv` that a LitePCIe design's build writes; `None` for other devices.
    fn csr(&self) -> Option<&'static str> {
        None
    }

    /// Does a bounded piece of work: at most some hundred microseconds.
    fn step(&mut self, host: &dyn Host) -> Step;
}
