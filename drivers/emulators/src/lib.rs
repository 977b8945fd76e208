//! Emulated PCI devices.
//!
//! ```text
//!   EmulatedDevice (registers, steps of work) ──▶ vfio_user: serves the device to another process over a socket
//!                                             └─▶ in_process: runs the device in this process
//! ```
//! An emulated device is independent of its transport. The devices are written from vendor documentation, independently
//! of the drivers in [`daq_drivers::fpga`]. The devices and the drivers share no constants, so that the same mistake is
//! unlikely to be in both and stay undetected.

#![warn(unreachable_pub)]

mod config_space;
pub mod conformance;
pub mod endpoint;
pub mod faults;
pub mod gige;
pub mod hsb;
pub mod in_process;
pub mod litepcie;
pub mod pattern;
mod sequence;
pub mod stream;
mod sys;
pub mod vfio_user;
pub mod xdma;

pub use daq_drivers::fpga::device::BARS;
pub use daq_drivers::fpga::transports::emulated::{
    EmulatedDevice, EmulatedDeviceEntry, Fault, Host, Identity, Step,
};

use daq_core::entry::Registry;
use daq_drivers::fpga::transports::emulated::EmulatedOptions;

/// All emulated devices.
pub const DEVICES: &[EmulatedDeviceEntry] = &[
    EmulatedDeviceEntry {
        name: "xdma",
        summary: "AMD/Xilinx XDMA, AXI stream, four channels to the host",
        faults: xdma::FAULTS,
        build: xdma::build,
        check_sequence: sequence::check,
        open: in_process::open,
    },
    EmulatedDeviceEntry {
        name: "litepcie",
        summary: "LitePCIe's DMA writer, one free-running channel to the host",
        faults: litepcie::FAULTS,
        build: litepcie::build,
        check_sequence: sequence::check,
        open: in_process::open,
    },
];

/// Returns the registry entry of the device `D` in its state after power-on, without options and faults.
pub const fn entry<D: EmulatedDevice + Default + 'static>(
    name: &'static str,
    summary: &'static str,
) -> EmulatedDeviceEntry {
    EmulatedDeviceEntry {
        name,
        summary,
        faults: &[],
        build: |_| Ok(Box::<D>::default()),
        check_sequence: |_, _| Ok(()),
        open: in_process::open,
    }
}

/// Returns the emulated device `name` of a program. The error names the devices, and the sensor bridge `hsb` and the camera
/// `gige`, which `daq emulate` emulates too.
pub fn find(registry: &Registry, name: &str) -> Result<&'static EmulatedDeviceEntry, String> {
    let mut names = registry.names::<EmulatedDeviceEntry>();
    names.extend(["hsb", "gige"]);
    registry
        .find(name)
        .ok_or_else(|| match daq_core::config::nearest(name, &names) {
            Some(near) => format!("there is no emulated device `{name}`; did you mean `{near}`?"),
            None => format!(
                "there is no emulated device `{name}`; available: {}",
                names.join(", ")
            ),
        })
}

/// Creates the emulated device `name` of [`DEVICES`].
pub fn build(name: &str, options: &EmulatedOptions) -> Result<Box<dyn EmulatedDevice>, String> {
    let entry = find(&Registry::default().with_all(DEVICES), name)?;
    (entry.build)(options)
}
