//! Tests the checks of RDMA cards. Each test changes some files of a correctly configured server.

mod gpus;
mod interrupts;
mod networks;
mod slots;

use super::super::root::tests::machine;
use super::super::tests::{one, sound};
use super::*;
use crate::doctor::Status;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;
use tempfile::TempDir;

const HOST: &str = "/sys/devices/pci0000:3a";
const UP: &str = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
const NIC: &str = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3e:00.0";
const GPU: &str = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:04.0/0000:3d:00.0";
const CARD: &str =
    "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3e:00.0/infiniband/mlx5_0";

/// Files of a correctly configured server, except those of its devices.
const FILES: [(&str, &str); 19] = [
    (
        "/proc/interrupts",
        "     CPU0  CPU1  CPU2  CPU3\n 80:  5 0 0 0  IR-PCI-MSIX-0000:3e:00.0  mlx5_async0@pci:0000:3e:00.0\n 81:  0 9 0 0  IR-PCI-MSIX  mlx5_comp0@pci:0000:3e:00.0\n 82:  0 0 0 0  IR-PCI-MSIX  other\nNMI:  1 1 1 1  Non-maskable interrupts\n",
    ),
    ("/proc/irq/80/effective_affinity_list", "0\n"),
    ("/proc/irq/81/effective_affinity_list", "1\n"),
    ("/proc/4711/comm", "systemd\n"),
    ("/sys/devices/system/node/node0/cpulist", "0-1\n"),
    ("/sys/devices/system/node/node1/cpulist", "2-3\n"),
    ("/sys/class/net/eth0/mtu", "9000\n"),
    ("/sys/class/net/eth0/qos/pfc", "0 0 0 1 0 0 0 0\n"),
    (
        "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode",
        "RoCE v2\n",
    ),
    ("/sys/module/ib_uverbs/refcnt", "3\n"),
    ("/sys/module/rdma_ucm/refcnt", "0\n"),
    ("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n"),
    ("/dev/infiniband/uverbs0", ""),
    ("/dev/infiniband/rdma_cm", ""),
    ("/etc/libibverbs.d/mlx5.driver", "driver mlx5\n"),
    ("/etc/libibverbs.d/rxe.driver", "driver rxe\n"),
    ("/proc/sys/kernel/osrelease", "6.8.0-45-generic\n"),
    (
        "/boot/config-6.8.0-45-generic",
        "CONFIG_INFINIBAND=m\nCONFIG_INFINIBAND_ON_DEMAND_PAGING=y\n",
    ),
    (
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n",
    ),
];

/// A machine whose files can be changed.
struct Server {
    _dir: TempDir,
    root: Root,
}

impl Server {
    /// Creates an empty machine.
    fn minimal() -> Self {
        let (dir, root) = machine(&[]);
        Self { _dir: dir, root }
    }

    /// Creates a machine with a GPU and a RoCE card of 100 Gbit/s below one switch, on the first of two NUMA nodes.
    fn new() -> Self {
        let server = Self::minimal();
        for (path, id, class) in [
            (&format!("{HOST}/0000:3a:00.0")[..], "8086:2030", "060400"),
            (UP, "10b5:8747", "060400"),
            (&format!("{UP}/0000:3c:04.0"), "10b5:8747", "060400"),
            (&format!("{UP}/0000:3c:08.0"), "10b5:8747", "060400"),
            (GPU, "10de:20f1", "030200"),
            (NIC, "15b3:101d", "020000"),
        ] {
            server.device(path, id, class);
        }
        server.link(&format!("{NIC}/driver"), "/sys/bus/pci/drivers/mlx5_core");
        server.link(&format!("{CARD}/device"), NIC);
        server.link("/sys/class/infiniband/mlx5_0", CARD);
        server.port(1, "eth0");
        server.write(&format!("{NIC}/msi_irqs/80"), "msix\n");
        server.write(&format!("{NIC}/msi_irqs/81"), "msix\n");
        server.write(&format!("{CARD}/hca_type"), "MT4125\n");
        server.write(&format!("{CARD}/fw_ver"), "22.35.1012\n");
        for side in ["roce_np", "roce_rp"] {
            for priority in 0..8 {
                let on = u8::from(priority == 3);
                let path = format!("/sys/class/net/eth0/ecn/{side}/enable/{priority}");
                server.write(&path, format!("{on}\n"));
            }
        }
        for (path, text) in FILES {
            server.write(path, text);
        }
        fs::create_dir_all(server.root.at("/sys/class/iommu")).unwrap();
        server
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.root.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.root.at(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    /// Makes the symbolic link at `path` point to `target`.
    fn link(&self, path: &str, target: &str) {
        let path = self.root.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(self.root.at(target), path).unwrap();
    }

    /// Adds a PCI device with a PCIe 4 x16 link, without access control, with relaxed ordering and read requests of
    /// 4096 bytes.
    fn device(&self, path: &str, id: &str, class: &str) {
        let (vendor, device) = id.split_once(':').unwrap();
        self.write(&format!("{path}/vendor"), format!("0x{vendor}\n"));
        self.write(&format!("{path}/device"), format!("0x{device}\n"));
        self.write(&format!("{path}/class"), format!("0x{class}\n"));
        self.write(&format!("{path}/numa_node"), "0\n");
        for which in ["current", "max"] {
            self.write(&format!("{path}/{which}_link_speed"), "16.0 GT/s PCIe\n");
            self.write(&format!("{path}/{which}_link_width"), "16\n");
        }
        self.write(&format!("{path}/config"), space(0x5010, 0));
        let name = path.rsplit('/').next().unwrap();
        self.link(&format!("/sys/bus/pci/devices/{name}"), path);
    }

    /// Adds a port of the card that is up, with GIDs of both RoCE versions.
    fn port(&self, number: u32, interface: &str) {
        let at = format!("{CARD}/ports/{number}");
        let write = |file: &str, text: &str| self.write(&format!("{at}/{file}"), text);
        write("state", "4: ACTIVE\n");
        write("phys_state", "5: LinkUp\n");
        write("link_layer", "Ethernet\n");
        write("rate", "100 Gb/sec (4X EDR)\n");
        for (index, (kind, address)) in [
            ("IB/RoCE v1", "fe80::e42:a1ff:feaa:bbcc"),
            ("RoCE v2", "fe80::e42:a1ff:feaa:bbcc"),
            ("IB/RoCE v1", "::ffff:192.168.100.7"),
            ("RoCE v2", "::ffff:192.168.100.7"),
        ]
        .into_iter()
        .enumerate()
        {
            write(&format!("gids/{index}"), &format!("{address}\n"));
            write(&format!("gid_attrs/types/{index}"), &format!("{kind}\n"));
            write(
                &format!("gid_attrs/ndevs/{index}"),
                &format!("{interface}\n"),
            );
        }
    }

    fn port_file(&self, file: &str, text: &str) {
        self.write(&format!("{CARD}/ports/1/{file}"), text);
    }

    fn all(&self) -> Vec<Finding> {
        examine(&self.root, &Counters::read(&self.root))
    }

    /// Returns the finding called `name`. Checks that all findings are complete.
    fn found(&self, name: &str) -> Finding {
        one(&self.all(), name)
    }

    /// Asserts that the finding `name` is a warning with the value `read` and the fix `fix`.
    fn warns(&self, name: &str, read: &str, fix: &str) {
        warns(&self.found(name), read, fix);
    }

    /// Asserts that the finding `name` is good and has the value `read`.
    fn is_ok(&self, name: &str, read: &str) {
        is_ok(&self.found(name), read);
    }

    fn lacks(&self, name: &str) -> bool {
        !self.all().iter().any(|finding| finding.name == name)
    }
}

/// Returns a configuration space with the PCI Express capability after another capability, and with access control.
fn space(control: u16, acs: u16) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    bytes[0x34] = 0x40;
    // The first capability is power management, the second PCI Express.
    bytes[0x40..0x42].copy_from_slice(&[0x01, 0x60]);
    bytes[0x60..0x62].copy_from_slice(&[0x10, 0x00]);
    bytes[0x68..0x6a].copy_from_slice(&control.to_le_bytes());
    bytes[0x100..0x104].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
    bytes[0x106..0x108].copy_from_slice(&acs.to_le_bytes());
    bytes
}

/// Asserts that a finding is a warning with the value `read` and the fix `fix`.
fn warns(found: &Finding, read: &str, fix: &str) {
    assert_eq!(found.summary(), (Status::Warning, read), "{found:?}");
    assert!(found.fix.as_ref().unwrap().contains(fix), "{found:?}");
}

fn is_ok(found: &Finding, read: &str) {
    assert_eq!(found.summary(), (Status::Ok, read), "{found:?}");
}

#[test]
fn well_configured_server_has_no_findings() {
    let server = Server::new();
    for finding in sound(server.all()) {
        assert_eq!(finding.status, Status::Ok, "{finding:?}");
    }
    server.is_ok("cards", "mlx5_0");
    server.is_ok("firmware", "22.35.1012 (MT4125, mlx5_core)");
    assert_eq!(server.found("firmware").group, "rdma mlx5_0");
    server.remove(&format!("{CARD}/fw_ver"));
    assert_eq!(server.found("firmware").status, Status::Unknown);
}

#[test]
fn nic_without_link_is_reported_beside_others() {
    let server = Server::new();
    let other = format!("{UP}/0000:3c:04.0/0000:3f:00.0");
    server.device(&other, "8086:1593", "020000");
    server.link(&format!("{other}/driver"), "/sys/bus/pci/drivers/ice");
    server.is_ok("cards", "mlx5_0");
    server.link(&format!("{other}/driver"), "/sys/bus/pci/drivers/mlx5_core");
    let found = server.found("cards");
    warns(&found, "mlx5_0", "modprobe mlx5_ib ib_uverbs");
    assert!(found.why.unwrap().contains("0000:3f:00.0"));
}

#[test]
fn missing_rdma_nic_is_reported() {
    let server = Server::minimal();
    assert_eq!(server.all().len(), 1);
    let none = server.found("cards");
    is_ok(&none, "none");
    assert!(none.why.unwrap().contains("emulated"));
    let server = Server::new();
    server.remove("/sys/class/infiniband/mlx5_0");
    server.warns("cards", "none", "modprobe mlx5_ib ib_uverbs");
    server.link(&format!("{NIC}/driver"), "/sys/bus/pci/drivers/ice");
    let maybe = server.found("cards");
    is_ok(&maybe, "none");
    assert!(maybe.fix.unwrap().contains("modprobe irdma"));
}

#[test]
fn missing_modules_and_providers_are_reported() {
    let server = Server::new();
    server.is_ok("ib_uverbs", "loaded");
    server.is_ok("rdma_ucm", "loaded");
    server.is_ok("providers", "2 providers");
    // A module that is built into Linux is not listed, but its device class exists.
    server.remove("/sys/module/ib_uverbs");
    server.is_ok("ib_uverbs", "loaded");
    server.remove("/sys/class/infiniband_verbs");
    server.warns("ib_uverbs", "not loaded", "sudo modprobe ib_uverbs");
    server.warns("device file", "none", "sudo modprobe ib_uverbs");
    server.remove("/sys/module/rdma_ucm");
    server.warns("rdma_ucm", "not loaded", "sudo modprobe rdma_ucm");
    assert!(server.lacks("rdma_cm file"));
    server.remove("/etc/libibverbs.d/mlx5.driver");
    server.warns(
        "providers",
        "none for mlx5",
        "apt install ibverbs-providers",
    );
}

#[test]
fn container_without_device_files_is_reported_with_arguments() {
    let server = Server::new();
    server.is_ok("device file", "can be opened");
    server.is_ok("rdma_cm file", "can be opened");
    server.remove("/dev/infiniband");
    for name in ["device file", "rdma_cm file"] {
        server.warns(name, "missing", "--device=/dev/infiniband");
    }
    // If the tests run as root, every file can be opened.
    let path = "/dev/infiniband/uverbs0";
    let judge = |error| files::judge_access(path, Err(error)).status;
    assert_eq!(judge(Errno::ACCESS), Status::Warning);
    assert_eq!(judge(Errno::IO), Status::Unknown);
    let refused = format!("{:?}", files::judge_access(path, Err(Errno::ACCESS)));
    assert!(
        refused.contains("chmod 0666 /dev/infiniband/uverbs0"),
        "{refused}"
    );
}

#[test]
fn soft_roce_nic_is_recognised() {
    let server = Server::minimal();
    let at = "/sys/devices/virtual/infiniband/rxe0";
    server.link("/sys/class/infiniband/rxe0", at);
    server.write(&format!("{at}/parent"), "eth0\n");
    for (file, text) in [
        ("state", "4: ACTIVE\n"),
        ("phys_state", "5: LinkUp\n"),
        ("link_layer", "Ethernet\n"),
        ("rate", "2.5 Gb/sec (1X SDR)\n"),
        ("gids/1", "::ffff:10.0.0.1\n"),
        ("gid_attrs/types/1", "RoCE v2\n"),
    ] {
        server.write(&format!("{at}/ports/1/{file}"), text);
    }
    server.write("/etc/libibverbs.d/mlx5.driver", "driver mlx5\n");
    server.is_ok("firmware", "none");
    server.is_ok("GID table", "RoCE v2 at 1 (::ffff:10.0.0.1)");
    server.warns("providers", "none for rxe", "ibverbs-providers");
    for name in [
        "PFC",
        "ECN",
        "link",
        "relaxed ordering",
        "interrupts",
        "dma-buf registration",
    ] {
        assert!(server.lacks(name), "{name}");
    }
}
