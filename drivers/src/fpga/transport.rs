//! How a card is reached.

use super::config::DeviceKey;
use super::device::{Device, DeviceError};
use super::inproc;
use super::vfio::VfioDevice;
use crate::cards::{self, options::CardOptions};
use std::path::Path;
use std::sync::Arc;

/// What opening a card may need beside its name.
#[derive(Clone, Copy, Debug)]
pub struct Open<'a> {
    /// The directory that relative paths start from.
    pub directory: &'a Path,
    /// How a simulated card in this process behaves.
    pub card: Option<&'a CardOptions>,
}

/// Opens a card for one engine.
pub fn open(device: &DeviceKey, options: &Open) -> Result<Arc<dyn Device>, DeviceError> {
    match device {
        DeviceKey::Pci(address) => Ok(VfioDevice::open(address, None)?),
        DeviceKey::VfioUser(path) => Err(DeviceError::new(
            options.directory.join(path).display().to_string(),
            "this build has no vfio-user transport",
        )),
        DeviceKey::Inproc(name) => {
            let options = options.card.cloned().unwrap_or_default();
            let card = cards::build(name, &options)
                .map_err(|why| DeviceError::new(device.to_string(), why))?;
            inproc::open(card)
        }
    }
}
