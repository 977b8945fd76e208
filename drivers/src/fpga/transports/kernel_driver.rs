//! A card that keeps its own driver. The Linux module `daq_dmabuf` maps memory for the card; daq does not access its
//! registers.
//!
//! ```text
//!   Region ── dma-buf (udmabuf, or the GPU's driver) ──▶ daq_dmabuf ──▶ bus addresses
//! ```
//! Linux selects the bus addresses. With an IOMMU the addresses of a region are consecutive; without one, only within a
//! page.

use super::dmabuf::{
    Attachment, Direction, DmabufError, Function, Module, Reason, State, revocation_eventfd,
};
use crate::fpga::device::{Device, DeviceError, Identity, Interrupt, Registers};
use crate::fpga::wait::wait_until;
use crate::sys::dmabuf as sys;
use daq_core::dma::{DmaDevice, DmaError};
use daq_core::region::Region;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The device that creates a dma-buf from host memory.
const UDMABUF: &str = "/dev/udmabuf";
/// Offset of `PCI_COMMAND` in the configuration space, and its bits that enable memory accesses and bus mastering (PCI
/// Local Bus Specification 3.0, section 6.2.2).
const COMMAND: u64 = 4;
const MEMORY: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
/// Maximum time for the module to disable bus mastering after its file was closed.
const CLOSING: Duration = Duration::from_secs(1);

/// A PCI device that keeps its driver, or that has no driver.
#[derive(Debug)]
pub struct KernelDriverDevice {
    name: String,
    function: Function,
    folder: PathBuf,
    address_bits: Option<u16>,
    identity: Identity,
    /// Whether this process enabled bus mastering, because the card has no driver.
    is_master: bool,
    revoked: Arc<OwnedFd>,
    state: Mutex<Maps>,
}

#[derive(Debug)]
struct Maps {
    /// The module; `None` after bus mastering was disabled.
    module: Option<Module>,
    /// The attachments, by the address of their first byte.
    attachments: BTreeMap<u64, Attachment>,
}

impl KernelDriverDevice {
    /// Opens the module for the device at a PCI address (`0000:3b:00.0`). For a device without a driver, `address_bits` is
    /// the width of its DMA addresses, and this function enables bus mastering.
    pub fn open(address: &str, address_bits: Option<u16>) -> Result<Arc<Self>, DeviceError> {
        let folder = Path::new("/sys/bus/pci/devices").join(address);
        let error = |why: String| DeviceError::new(address, why);
        let function: Function = address
            .parse()
            .map_err(|wrong| device_error(address, &wrong))?;
        if !folder.exists() {
            return Err(error(
                "no such PCI device; lspci -D lists all devices. To find a card that was programmed after boot, run \
                 echo 1 > /sys/bus/pci/rescan"
                    .to_owned(),
            ));
        }
        let module = Module::open().map_err(|wrong| device_error(address, &wrong))?;
        let revoked = revocation_eventfd().map_err(|wrong| device_error(address, &wrong))?;
        let identity = Identity {
            vendor: number(&folder, "vendor").unwrap_or(0),
            device: number(&folder, "device").unwrap_or(0),
            class: number(&folder, "class").unwrap_or(0),
        };
        let command = read_command(&folder)
            .map_err(|reason| error(format!("cannot read the configuration space: {reason}")))?;
        let has_driver = folder.join("driver").exists();
        let is_on = command & BUS_MASTER != 0;
        if has_driver && !is_on {
            tracing::warn!(
                "{address}: bus mastering is disabled, so the card cannot do DMA until its driver or the command enables it; \
                 if daq was killed during a run, unbind and rebind the driver"
            );
        }
        if !has_driver {
            write_command(&folder, command | MEMORY | BUS_MASTER).map_err(|reason| {
                error(format!(
                    "the card has no driver, and bus mastering cannot be enabled: {}/config: {reason}; run as root",
                    folder.display()
                ))
            })?;
        }
        Ok(Arc::new(Self {
            name: address.to_owned(),
            function,
            folder,
            address_bits,
            identity,
            is_master: !has_driver && !is_on,
            revoked,
            state: Mutex::new(Maps {
                module: Some(module),
                attachments: BTreeMap::new(),
            }),
        }))
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self, region: &Region, why: impl Into<String>) -> DmaError {
        DmaError::Refused {
            device: self.name.clone(),
            action: format!(
                "mapping {:#x} bytes of memory ({})",
                region.bytes(),
                region.placement()
            ),
            why: why.into(),
        }
    }
}

impl DmaDevice for KernelDriverDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&self, region: &Arc<Region>) -> Result<u64, DmaError> {
        let memory = match region.file() {
            Some(file) => udmabuf(file, region.bytes() as u64),
            None => region.dma_buf().map_err(|error| error.to_string()),
        }
        .map_err(|why| self.refused(region, why))?;
        let mut maps = self.maps();
        let Some(module) = &maps.module else {
            return Err(self.refused(region, "bus mastering was disabled after a quiesce timeout"));
        };
        // The device also reads its credits.
        let (function, direction) = (self.function, Direction::Both);
        let revoked = self.revoked.clone();
        let attachment = module
            .map_with_eventfd(
                memory.as_fd(),
                function,
                direction,
                self.address_bits,
                revoked,
            )
            .map_err(|error| self.refused(region, error.why))?;
        let Some((address, _)) = attachment.contiguous_from(0) else {
            return Err(self.refused(region, "Linux returned no addresses for the memory"));
        };
        tracing::debug!(
            "{}: mapped {:#x} bytes of {} in {} segments at {address:#x}; distance {:?}",
            self.name,
            attachment.bytes(),
            region.placement(),
            attachment.segments().len(),
            attachment.distance()
        );
        if maps.attachments.contains_key(&address) {
            let why = format!("the memory is already mapped at {address:#x}");
            return Err(self.refused(region, why));
        }
        maps.attachments.insert(address, attachment);
        Ok(address)
    }

    fn address_of(&self, address: u64, offset: usize, bytes: usize) -> Result<u64, DmaError> {
        let maps = self.maps();
        let found = maps
            .attachments
            .get(&address)
            .and_then(|attachment| attachment.contiguous_from(offset as u64));
        match found {
            Some((at, room)) if room >= bytes as u64 => Ok(at),
            found => Err(DmaError::Unreachable {
                device: self.name.clone(),
                memory: format!("{bytes} bytes at offset {offset} of the mapping at {address:#x}"),
                why: scattered(found),
            }),
        }
    }

    fn unmap(&self, address: u64, _: usize) -> Result<(), DmaError> {
        // If the mapping is not found, `disable_and_reset` has already removed it.
        let attachment = self.maps().attachments.remove(&address);
        drop(attachment);
        Ok(())
    }

    fn disable_and_reset(&self) -> Result<(), DmaError> {
        {
            let mut maps = self.maps();
            if maps.module.take().is_none() || maps.attachments.is_empty() {
                return Ok(());
            }
            let attachments = std::mem::take(&mut maps.attachments);
            attachments.into_values().for_each(Attachment::detach);
        }
        // A child process that is being started may keep the file open briefly.
        let is_off = wait_until(CLOSING, || {
            read_command(&self.folder)
                .is_ok_and(|command| command & BUS_MASTER == 0 || command == u16::MAX)
                || !self.folder.exists()
        });
        if is_off {
            return Ok(());
        }
        Err(DmaError::Refused {
            device: self.name.clone(),
            action: "disabling bus mastering".to_owned(),
            why: format!(
                "bus mastering is still enabled {CLOSING:?} after the daq_dmabuf file was closed; the driver or another program may have enabled it again: unload the driver"
            ),
        })
    }
}

impl Device for KernelDriverDevice {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn registers(&self, _: usize) -> Result<Arc<dyn Registers>, DeviceError> {
        Err(DeviceError::new(
            &self.name,
            "daq cannot access the registers, because the card's driver owns them; let the program in `command` write \
             the registers",
        ))
    }

    fn interrupts(&self, _: usize) -> Result<Vec<Interrupt>, DeviceError> {
        Err(DeviceError::new(
            &self.name,
            "daq cannot use the interrupts, because the card's driver owns them; set completion = \"poll\"",
        ))
    }

    fn reset(&self) -> Result<(), DeviceError> {
        Err(DeviceError::new(
            &self.name,
            "daq cannot reset a card that has its own driver; let the program in `command` reset the card",
        ))
    }

    fn check(&self) -> Result<(), DeviceError> {
        let mut events = [PollFd::new(&*self.revoked, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if matches!(poll(&mut events, Some(&now)), Ok(0) | Err(_)) {
            return Ok(());
        }
        let maps = self.maps();
        let reason = maps
            .attachments
            .values()
            .find_map(|attachment| match attachment.state() {
                Ok(State::Revoked(reason)) => Some(reason),
                Ok(State::Live) | Err(_) => None,
            });
        Err(DeviceError::new(&self.name, why_revoked(reason)))
    }

    fn as_dma(self: Arc<Self>) -> Arc<dyn DmaDevice> {
        self
    }
}

impl Drop for KernelDriverDevice {
    fn drop(&mut self) {
        if !self.is_master {
            return;
        }
        let off = read_command(&self.folder)
            .and_then(|command| write_command(&self.folder, command & !BUS_MASTER));
        if let Err(error) = off {
            tracing::debug!("{}: cannot disable bus mastering: {error}", self.name);
        }
    }
}

/// Creates a dma-buf from host memory.
fn udmabuf(memory: BorrowedFd<'_>, bytes: u64) -> Result<OwnedFd, String> {
    let device = File::options()
        .read(true)
        .write(true)
        .open(UDMABUF)
        .map_err(|error| {
            format!(
                "cannot open {UDMABUF}: {error}; run modprobe udmabuf and give this user access to this file"
            )
        })?;
    sys::udmabuf(device.as_fd(), memory, bytes).map_err(|errno| {
        let fix = match errno {
            Errno::INVAL => {
                "the size is limited by /sys/module/udmabuf/parameters/size_limit_mb, 64 MiB by default: raise this \
                 limit, or lower `slots` or `slot` of the ring"
            }
            Errno::NOMEM => "lower `slots` or `slot` of the ring",
            _ => "see dmesg | tail",
        };
        format!("{UDMABUF}: {errno}; {fix}")
    })
}

/// Explains that the range `found` of consecutive bus addresses is too small, and how to fix it.
fn scattered(found: Option<(u64, u64)>) -> String {
    found.map_or_else(
        || "nothing is mapped at this address".to_owned(),
        |(address, room)| {
            format!(
                "only {room} bytes from {address:#x} on have consecutive bus addresses; lower `slot` of the ring to at \
                 most {room} B, enable IOMMU translation (enable the IOMMU in the firmware and remove iommu=pt from \
                 the Linux command line), or use a ring in GPU memory"
            )
        },
    )
}

/// Explains why the mappings were revoked, and how to fix it.
fn why_revoked(reason: Option<Reason>) -> String {
    let happened = match reason {
        Some(Reason::Moved) => "the driver of the memory moved or revoked the memory",
        Some(Reason::Rebound) => "a driver was bound to the card or unbound from it",
        Some(Reason::Removed) => "the card was removed",
        Some(Reason::Other(_)) | None => "daq_dmabuf revoked the mappings",
    };
    format!(
        "the bus addresses of the slots are no longer valid: {happened}; the engine is stopped. Restart after the intended driver is bound to the card"
    )
}

fn device_error(address: &str, error: &DmabufError) -> DeviceError {
    DeviceError::new(address, error.to_string())
}

/// Reads a hexadecimal number from a file in the device's sysfs directory.
fn number<T: TryFrom<u32>>(folder: &Path, file: &str) -> Option<T> {
    let text = fs::read_to_string(folder.join(file)).ok()?;
    let text = text.trim().trim_start_matches("0x");
    u32::from_str_radix(text, 16).ok()?.try_into().ok()
}

fn read_command(folder: &Path) -> io::Result<u16> {
    let mut bytes = [0; 2];
    File::open(folder.join("config"))?.read_exact_at(&mut bytes, COMMAND)?;
    Ok(u16::from_le_bytes(bytes))
}

fn write_command(folder: &Path, command: u16) -> io::Result<()> {
    let config = File::options().write(true).open(folder.join("config"))?;
    config.write_all_at(&command.to_le_bytes(), COMMAND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::region::HostOptions;

    #[test]
    fn kernel_driver_obstacle_is_reported_with_fix() {
        assert!(scattered(Some((0x1000, 4096))).contains("at most 4096 B"));
        assert!(scattered(None).contains("nothing is mapped"));
        assert!(why_revoked(Some(Reason::Moved)).contains("moved"));
        assert!(why_revoked(Some(Reason::Rebound)).contains("unbound"));
        assert!(why_revoked(Some(Reason::Removed)).contains("removed"));
        let error = KernelDriverDevice::open("ffff:ff:1f.7", None).unwrap_err();
        assert!(error.to_string().contains("lspci -D"), "{error}");
    }

    #[test]
    fn kernel_driver_shared_region_becomes_dma_buf() {
        if !Path::new(UDMABUF).exists() {
            eprintln!("skipped: there is no {UDMABUF}");
            return;
        }
        let options = HostOptions {
            shared: true,
            ..HostOptions::default()
        };
        let region = Region::host(8192, options).unwrap();
        let file = region.file().unwrap();
        match udmabuf(file, region.bytes() as u64) {
            Ok(_) => {}
            Err(why) if why.contains("ermission") => eprintln!("skipped: {why}"),
            Err(why) => panic!("{why}"),
        }
    }
}
