//! Tests the checks of FPGA cards. Each test changes some files of a machine that `daq topo --record` recorded.

use super::super::root::tests::machine;
use super::super::tests::one;
use super::*;
use crate::doctor::Status::{Ok, Unknown, Warning};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

const CARD: &str = "/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0";
const PORT: &str = "/sys/devices/pci0000:16/0000:16:02.0";
const GPU: &str = "/sys/devices/pci0000:16/0000:16:04.0/0000:18:00.0";

/// Returns the recorded server: an FPGA card bound to vfio-pci, and a GPU below the same host bridge.
fn server() -> (TempDir, Root) {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
            let to = to.join(name);
            if path.is_symlink() {
                symlink(fs::read_link(path).unwrap(), to).unwrap();
            } else if path.is_dir() {
                copy(&path, &to);
            } else {
                fs::copy(path, to).unwrap();
            }
        }
    }
    let recorded = "../../daq-core/src/topology/tests/recorded";
    let (dir, root) = machine(&[]);
    copy(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join(recorded),
        dir.path(),
    );
    (dir, root)
}

fn write(root: &Root, path: &str, text: &str) {
    fs::write(root.at(path), text).unwrap();
}

fn remove(root: &Root, path: &str) {
    fs::remove_file(root.at(path)).unwrap();
}

/// Makes the symbolic link at `path` point to `name`.
fn lead(root: &Root, path: &str, name: &str) {
    remove(root, path);
    symlink(Path::new("..").join(name), root.at(path)).unwrap();
}

fn found(root: &Root, name: &str) -> Finding {
    one(&examine(root), name)
}

#[test]
fn recorded_server_has_no_findings() {
    let (_dir, root) = server();
    for (name, read) in [
        ("IOMMU", "on"),
        ("driver", "vfio-pci"),
        ("IOMMU group", "70: user programs can open the group"),
        ("ACS", "no switch above the card"),
        ("distance to GPUs", "PHB to 0000:18:00.0"),
    ] {
        let found = found(&root, name);
        assert_eq!(found.summary(), (Ok, read));
    }
    assert_eq!(found(&root, "driver").group, "card 0000:17:00.0");
}

#[test]
fn iommu_off_without_cards_is_not_reported() {
    let (_dir, root) = machine(&[]);
    assert_eq!(found(&root, "IOMMU").status, Unknown);
    let (_dir, root) = server();
    write(&root, &format!("{CARD}/vendor"), "0x8086\n");
    lead(&root, &format!("{CARD}/driver"), "nvme");
    remove(&root, "/sys/class/iommu/dmar0");
    let found = found(&root, "IOMMU");
    assert_eq!(found.summary(), (Ok, "off"));
    assert_eq!(examine(&root).len(), 1);
}

#[test]
fn iommu_off_is_reported_with_kernel_arguments() {
    let (_dir, root) = server();
    remove(&root, "/sys/class/iommu/dmar0");
    for (vendor, flags, expected) in [
        ("GenuineIntel", "fpu", "intel_iommu=on iommu=pt"),
        ("AuthenticAMD", "fpu", "&iommu=pt "),
        ("GenuineIntel", "hypervisor", "-device intel-iommu"),
    ] {
        let text = format!("vendor_id\t: {vendor}\nflags\t\t: {flags}\n");
        write(&root, "/proc/cpuinfo", &text);
        let found = found(&root, "IOMMU");
        assert_eq!(found.status, Warning);
        assert!(found.fix.unwrap().contains(expected), "{vendor}");
    }
}

#[test]
fn device_without_access_is_reported_with_commands() {
    let (_dir, root) = server();
    lead(&root, &format!("{CARD}/driver"), "xdma");
    let held = found(&root, "driver");
    assert_eq!(held.summary(), (Ok, "xdma"));
    remove(&root, &format!("{CARD}/driver"));
    let free = found(&root, "driver");
    assert_eq!(free.status, Warning);
    for command in [
        "driverctl set-override 0000:17:00.0 vfio-pci",
        "driver_override",
        "drivers_probe",
    ] {
        assert!(free.fix.as_ref().unwrap().contains(command), "{command}");
        assert!(held.fix.as_ref().unwrap().contains(command), "{command}");
    }
}

#[test]
fn iommu_group_with_device_in_use_is_reported() {
    let (_dir, root) = server();
    lead(&root, &format!("{GPU}/iommu_group"), "70");
    let shared = found(&root, "IOMMU group");
    assert_eq!(shared.status, Warning);
    assert_eq!(shared.read, "70: shared with 0000:18:00.0 (nvidia)");
    // Bridges, devices without a driver and devices bound to the stub driver do not prevent VFIO.
    lead(&root, &format!("{PORT}/iommu_group"), "70");
    lead(&root, &format!("{GPU}/driver"), "pci-stub");
    assert_eq!(found(&root, "IOMMU group").status, Ok);
    remove(&root, &format!("{CARD}/iommu_group"));
    assert_eq!(found(&root, "IOMMU group").status, Unknown);
}

#[test]
fn link_below_capability_reports_its_limit() {
    let (_dir, root) = server();
    let slot = found(&root, "link");
    assert_eq!(slot.summary(), (Warning, "PCIe 3 x8 of PCIe 3 x16"));
    assert!(slot.fix.unwrap().contains("dmidecode"));
    write(&root, &format!("{CARD}/max_link_width"), "8\n");
    let whole = found(&root, "link");
    assert_eq!(whole.summary(), (Ok, "PCIe 3 x8"));
    write(&root, &format!("{CARD}/current_link_width"), "4\n");
    let loose = found(&root, "link");
    assert_eq!(loose.status, Warning);
    assert!(loose.fix.unwrap().contains("lspci"));
    write(&root, "/proc/cpuinfo", "flags\t\t: hypervisor\n");
    assert_eq!(found(&root, "link").status, Unknown);
}

#[test]
fn switch_acs_redirect_is_reported_or_unknown_without_root() {
    // The configuration space of a bridge with access control services (capability 0x000d) and their control register.
    let config = |control: u32| format!("100 0001000d\n104 {control:04x}005f\n");
    for (control, status, read) in [
        (Some(0x1d), Ok, "0000:02:08.0 redirects writes (RR CR)"),
        (Some(0), Ok, "no switch redirects writes"),
        (None, Unknown, "not readable"),
    ] {
        let switch = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
        let (below, card) = (
            format!("{switch}/0000:02:08.0"),
            format!("{switch}/0000:02:08.0/0000:03:00.0"),
        );
        let (dir, root) = machine(&[(&format!("{card}/vendor"), "0x10ee\n")]);
        write(&root, &format!("{card}/class"), "0x070001\n");
        let devices = dir.path().join("sys/bus/pci/devices");
        fs::create_dir_all(&devices).unwrap();
        for path in [
            "/sys/devices/pci0000:00/0000:00:01.0",
            switch,
            &below,
            &card,
        ] {
            let name = path.rsplit('/').next().unwrap();
            symlink(root.at(path), devices.join(name)).unwrap();
            if path != card {
                write(&root, &format!("{path}/class"), "0x060400\n");
                write(&root, &format!("{path}/config.hex"), &config(0));
            }
        }
        match control {
            Some(control) => write(&root, &format!("{below}/config.hex"), &config(control)),
            None => remove(&root, &format!("{below}/config.hex")),
        }
        let found = found(&root, "ACS");
        assert_eq!(found.summary(), (status, read));
    }
}
