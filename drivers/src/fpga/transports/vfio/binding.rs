//! Checks whether VFIO can open a device: its driver, its IOMMU group, and the commands that fix problems.

use crate::fpga::device::DeviceError;
use std::fs;
use std::path::{Path, PathBuf};

/// The driver that gives programs access to devices.
const VFIO: &str = "vfio-pci";
/// Drivers that do no DMA. Their devices may stay in an IOMMU group that VFIO uses.
const HARMLESS: [&str; 2] = ["pcieport", "pci-stub"];

/// Returns the commands that bind `address` to vfio-pci.
fn commands(address: &str, has_driver: bool) -> String {
    let device = format!("/sys/bus/pci/devices/{address}");
    let unbind = if has_driver {
        format!("echo {address} > {device}/driver/unbind; ")
    } else {
        String::new()
    };
    format!(
        "(as root) driverctl set-override {address} {VFIO} (persistent), or until the next boot: \
         modprobe {VFIO}; echo {VFIO} > {device}/driver_override; \
         {unbind}echo {address} > /sys/bus/pci/drivers_probe"
    )
}

/// Checks that a program can open the device `address` and returns its directory in sysfs. `root` replaces `/`.
pub(super) fn check(root: &Path, address: &str) -> Result<PathBuf, DeviceError> {
    let error = |why: String| DeviceError::new(address, why);
    if !is_address(address) {
        return Err(error(
            "not a PCI address; the format is 0000:3b:00.0, see lspci -D".to_owned(),
        ));
    }
    let device = root.join("sys/bus/pci/devices").join(address);
    if !device.exists() {
        return Err(error(
            "no such PCI device; lspci -D lists all devices. To find a card that was programmed after boot, run \
             echo 1 > /sys/bus/pci/rescan"
                .to_owned(),
        ));
    }
    let Some(group) = name_of(&device.join("iommu_group")) else {
        return Err(error(
            "no IOMMU, which is required to confine the device's DMA: enable VT-d or AMD-Vi in the firmware, and on Intel \
             add intel_iommu=on to the Linux command line"
                .to_owned(),
        ));
    };
    let driver = driver(&device);
    if driver.as_deref() != Some(VFIO) {
        return Err(error(format!(
            "the device is bound to {}, not to {VFIO}; bind it with: {}",
            driver
                .as_ref()
                .map_or("no driver".to_owned(), |driver| format!(
                    "the driver {driver}"
                )),
            commands(address, driver.is_some())
        )));
    }
    let others = blocking_devices(&device.join("iommu_group/devices"), address);
    if !others.is_empty() {
        let blocking: Vec<_> = others
            .iter()
            .map(|(address, driver)| format!("{address} ({driver})"))
            .collect();
        let remedies: Vec<_> = others
            .iter()
            .map(|(address, _)| commands(address, true))
            .collect();
        return Err(error(format!(
            "VFIO needs IOMMU group {group} as a whole, but other devices in it are bound to drivers: {}. Move the card \
             to another slot, or bind these devices to {VFIO} too: {}",
            blocking.join(", "),
            remedies.join("; ")
        )));
    }
    let node = root.join("dev/vfio").join(&group);
    if let Err(reason) = fs::File::options().read(true).write(true).open(&node) {
        // If another process has the group open, opening the device fails later with a better error.
        if reason.kind() == std::io::ErrorKind::PermissionDenied {
            return Err(error(format!(
                "cannot open {}: {reason}; give this user access: chown $USER /dev/vfio/{group}, or add a udev rule",
                node.display()
            )));
        }
    }
    Ok(device)
}

/// Returns true if `text` has the format `DDDD:BB:DD.F` in hexadecimal.
fn is_address(text: &str) -> bool {
    let pattern = b"xxxx:xx:xx.x";
    text.len() == pattern.len()
        && text
            .bytes()
            .zip(pattern)
            .all(|(byte, wanted)| match wanted {
                b'x' => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
                other => byte == *other,
            })
}

/// Returns the devices, with their drivers, that prevent VFIO from using the group.
fn blocking_devices(group: &Path, address: &str) -> Vec<(String, String)> {
    let Ok(devices) = fs::read_dir(group) else {
        return Vec::new();
    };
    let mut others: Vec<_> = devices
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let driver = driver(&entry.path())?;
            (name != address && driver != VFIO && !HARMLESS.contains(&driver.as_str()))
                .then_some((name, driver))
        })
        .collect();
    others.sort();
    others
}

fn driver(device: &Path) -> Option<String> {
    name_of(&device.join("driver"))
}

/// Returns the file name of the target of a link.
fn name_of(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Creates a sysfs tree with devices: address, group, driver.
    fn machine(devices: &[(&str, Option<&str>, Option<&str>)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let sys = root.path().join("sys");
        for (address, group, driver) in devices {
            let device = sys.join("bus/pci/devices").join(address);
            fs::create_dir_all(&device).unwrap();
            if let Some(group) = group {
                let group = sys.join("kernel/iommu_groups").join(group);
                fs::create_dir_all(group.join("devices")).unwrap();
                symlink(&device, group.join("devices").join(address)).unwrap();
                symlink(&group, device.join("iommu_group")).unwrap();
            }
            if let Some(driver) = driver {
                symlink(
                    sys.join("bus/pci/drivers").join(driver),
                    device.join("driver"),
                )
                .unwrap();
            }
        }
        root
    }

    fn refusal(root: &tempfile::TempDir, address: &str) -> String {
        check(root.path(), address).unwrap_err().to_string()
    }

    #[test]
    fn device_bound_to_vfio_is_opened() {
        let root = machine(&[
            ("0000:3b:00.0", Some("17"), Some("vfio-pci")),
            ("0000:3a:00.0", Some("17"), Some("pcieport")),
            ("0000:3b:00.1", Some("17"), None),
        ]);
        let device = check(root.path(), "0000:3b:00.0").unwrap();
        assert!(device.ends_with("sys/bus/pci/devices/0000:3b:00.0"));
    }

    #[test]
    fn invalid_address_or_missing_device_is_reported() {
        let root = machine(&[]);
        for text in [
            "3b:00.0",
            "0000:3B:00.0",
            "0000:3b:00.0 ",
            "../../etc/pass",
            "0000-3b:00.0",
        ] {
            assert!(refusal(&root, text).contains("not a PCI address"), "{text}");
        }
        assert!(refusal(&root, "0000:3b:00.0").contains("no such PCI device; lspci -D"));
    }

    #[test]
    fn device_bound_to_other_driver_is_reported_with_commands() {
        let root = machine(&[
            ("0000:3b:00.0", Some("17"), Some("xdma")),
            ("0000:3c:00.0", Some("18"), None),
            ("0000:3d:00.0", None, Some("xdma")),
        ]);
        let error = refusal(&root, "0000:3b:00.0");
        assert!(
            error.contains("bound to the driver xdma, not to vfio-pci"),
            "{error}"
        );
        assert!(
            error.contains("driverctl set-override 0000:3b:00.0 vfio-pci"),
            "{error}"
        );
        assert!(
            error.contains("echo vfio-pci > /sys/bus/pci/devices/0000:3b:00.0/driver_override"),
            "{error}"
        );
        assert!(
            error.contains("driver/unbind") && error.contains("as root"),
            "{error}"
        );
        let free = refusal(&root, "0000:3c:00.0");
        assert!(free.contains("bound to no driver"), "{free}");
        assert!(!free.contains("unbind"), "{free}");
        assert!(refusal(&root, "0000:3d:00.0").contains("no IOMMU"));
    }

    #[test]
    fn iommu_group_with_gpu_is_reported() {
        let root = machine(&[
            ("0000:3b:00.0", Some("17"), Some("vfio-pci")),
            ("0000:3c:00.0", Some("17"), Some("nvidia")),
        ]);
        let error = refusal(&root, "0000:3b:00.0");
        assert!(error.contains("IOMMU group 17 as a whole"), "{error}");
        assert!(error.contains("0000:3c:00.0 (nvidia)"), "{error}");
        assert!(
            error.contains("driverctl set-override 0000:3c:00.0"),
            "{error}"
        );
    }
}
