//! Transports: ways to access a card.

pub mod dmabuf;
pub mod emulated;
pub mod iova;
pub mod kernel_driver;
pub mod vfio;
pub mod vfio_user;

use super::device::{Device, DeviceError};
use super::keys::DeviceKey;
use daq_core::entry::Registry;
use emulated::{EmulatedDeviceEntry, EmulatedOptions};
use std::path::Path;
use std::sync::Arc;
use vfio::VfioDevice;

/// Context for opening a card.
#[derive(Clone, Copy)]
pub struct Open<'a> {
    /// Base directory of relative paths.
    pub directory: &'a Path,
    /// The entries of the program, which contain its emulated devices.
    pub registry: &'a Registry,
    /// Options of an emulated device in this process.
    pub emulated_options: Option<&'a EmulatedOptions>,
}

/// Opens a card for one engine.
pub fn open(device: &DeviceKey, options: &Open) -> Result<Arc<dyn Device>, DeviceError> {
    match device {
        DeviceKey::Pci(address) => Ok(VfioDevice::open(address, None)?),
        DeviceKey::VfioUser(path) => vfio_user::open(&options.directory.join(path)),
        DeviceKey::Emulated(name) => {
            let known = options.registry.find::<EmulatedDeviceEntry>(name);
            let known = known.ok_or_else(|| {
                DeviceError::new(
                    device.to_string(),
                    format!("there is no emulated device `{name}`"),
                )
            })?;
            let emulated_options = options.emulated_options.cloned().unwrap_or_default();
            let built = (known.build)(&emulated_options);
            (known.open)(built.map_err(|why| DeviceError::new(device.to_string(), why))?)
        }
    }
}
