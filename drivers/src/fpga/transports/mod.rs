//! How a card is reached.

pub mod dmabuf;
pub mod inproc;
pub mod iova;
pub mod kernel_driver;
pub mod vfio;
pub mod vfio_user;

use super::config::DeviceKey;
use super::device::{Device, DeviceError};
use crate::cards::{self, options::CardOptions};
use std::path::Path;
use std::sync::Arc;
use vfio::VfioDevice;

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
        DeviceKey::VfioUser(path) => vfio_user::open(&options.directory.join(path)),
        DeviceKey::Inproc(name) => {
            let options = options.card.cloned().unwrap_or_default();
            let card = cards::build(name, &options)
                .map_err(|why| DeviceError::new(device.to_string(), why))?;
            inproc::open(card)
        }
    }
}
