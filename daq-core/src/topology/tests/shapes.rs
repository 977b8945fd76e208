//! Tests with many different machines, each described by a short text (a shape).
//!
//! A shape lists the processor, its NUMA nodes, the IOMMU units, then the host bridges with the indented devices below
//! them, then the GPU properties that CUDA reports. [`Machine::new`] creates `/sys` and `/proc/cpuinfo` from a shape.
//! Vendor and device identifiers are those of real chips in the PCI ID repository (pci-ids.ucw.cz). 10ee:903f and
//! 10ee:9038 are the default identifiers of Xilinx's DMA core (PG195).

use super::super::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tree::{Acs, Iommu};

mod judged;
mod kept;
mod nics;

/// The files of an emulated machine in a temporary directory.
pub(super) struct Machine {
    dir: tempfile::TempDir,
    gpus: Vec<Gpu>,
    /// Size in bytes of the ring in each query.
    ring: u64,
}

/// Parses a size such as `64K`, `1M` or `80G` and returns it in bytes.
fn bytes(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.len() - 1);
    let shift = match unit {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => panic!("no unit in {text}"),
    };
    number.parse::<u64>().unwrap() << shift
}

/// Converts a link such as `3x16` to the speed and width that `/sys` reports.
fn lanes(text: &str) -> (&str, &str) {
    let (generation, width) = text.split_once('x').unwrap();
    let speed = match generation {
        "1" => "2.5 GT/s PCIe",
        "2" => "5.0 GT/s PCIe",
        "3" => "8.0 GT/s PCIe",
        "4" => "16.0 GT/s PCIe",
        "5" => "32.0 GT/s PCIe",
        _ => panic!("no generation in {text}"),
    };
    (speed, width)
}

impl Machine {
    pub(super) fn new(shape: &str) -> Self {
        let mut machine = Self {
            dir: tempfile::tempdir().unwrap(),
            gpus: Vec::new(),
            ring: 64 << 20,
        };
        // The directories of the current branch, starting with the host bridge.
        let mut above: Vec<PathBuf> = Vec::new();
        for line in shape.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let depth = (line.len() - line.trim_start().len()) / 2;
            match words.as_slice() {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                ["cpu", vendor, family, name @ ..] => machine.write(
                    "proc/cpuinfo",
                    &format!(
                        "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel name\t: {}\nflags\t\t: fpu vme\n\nprocessor\t: 1\ncpu family\t: 1\n",
                        name.join(" ")
                    ),
                ),
                ["virtual"] => {
                    let text = fs::read_to_string(machine.dir.path().join("proc/cpuinfo")).unwrap();
                    machine.write("proc/cpuinfo", &text.replace("fpu vme", "fpu hypervisor vme"));
                }
                ["node", id, cores] => machine.write(
                    &format!("sys/devices/system/node/node{id}/cpulist"),
                    &format!("{cores}\n"),
                ),
                ["iommu", unit] => machine.lead(
                    "class/iommu",
                    unit,
                    &format!("devices/virtual/iommu/{unit}"),
                ),
                ["ring", size] => machine.ring = bytes(size),
                ["peermem"] => machine.write("sys/module/nvidia_peermem/initstate", "live\n"),
                ["rdma", name, place] => machine.rdma(name, place),
                ["port", nic, number, state, layer, rate, netdev, gids @ ..] => {
                    machine.port(nic, number, (state, layer, rate), netdev, gids);
                }
                ["cuda", address, facts @ ..] => machine.gpu(address, facts),
                [host] => above = vec![Path::new("devices").join(host)],
                [address, id, class, facts @ ..] => {
                    above.truncate(depth);
                    let at = above.last().unwrap().join(address);
                    machine.device(&at, address, id, class, facts);
                    above.push(at);
                }
                _ => panic!("not understood: {line}"),
            }
        }
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Creates a symbolic link `name` in `directory` of `/sys` to `target`.
    fn lead(&self, directory: &str, name: &str, target: &str) {
        let directory = self.sys().join(directory);
        fs::create_dir_all(&directory).unwrap();
        symlink(self.sys().join(target), directory.join(name)).unwrap();
    }

    fn device(&self, at: &Path, address: &str, id: &str, class: &str, facts: &[&str]) {
        let at = at.to_str().unwrap();
        let write = |file: &str, text: &str| self.write(&format!("sys/{at}/{file}"), text);
        let (vendor, device) = id.split_once(':').unwrap();
        write("vendor", &format!("0x{vendor}\n"));
        write("device", &format!("0x{device}\n"));
        write("class", &format!("0x{class}\n"));
        let mut config = vec![0; 64];
        let mut node = "-1";
        for fact in facts {
            let (key, value) = fact.split_once('=').unwrap();
            match key {
                "link" => {
                    let (now, max) = value.split_once('/').unwrap_or((value, value));
                    for (which, lanes) in [("current", lanes(now)), ("max", lanes(max))] {
                        write(&format!("{which}_link_speed"), &format!("{}\n", lanes.0));
                        write(&format!("{which}_link_width"), &format!("{}\n", lanes.1));
                    }
                }
                "node" => node = value,
                "regions" => {
                    let regions = value.split(',').map(|size| {
                        let (start, bytes) = (1_u64 << 40, bytes(size));
                        format!(
                            "{start:#018x} {:#018x} 0x000000000014220c\n",
                            start + bytes - 1
                        )
                    });
                    write("resource", &regions.collect::<String>());
                }
                "acs" => {
                    config.resize(4096, 0);
                    if value != "none" {
                        // ACS is the first and only extended capability, version 1.
                        let control = u32::from_str_radix(value, 16).unwrap();
                        config[0x100..0x104].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
                        config[0x104..0x108].copy_from_slice(&(control << 16 | 0x5f).to_le_bytes());
                    }
                }
                "group" => {
                    let group = format!("kernel/iommu_groups/{value}");
                    self.write(&format!("sys/{group}/type"), "DMA-FQ\n");
                    self.lead(at, "iommu_group", &group);
                }
                "driver" => self.lead(at, "driver", &format!("bus/pci/drivers/{value}")),
                _ => panic!("not understood: {fact}"),
            }
        }
        write("numa_node", &format!("{node}\n"));
        fs::write(self.sys().join(at).join("config"), config).unwrap();
        self.lead("bus/pci/devices", address, at);
    }

    /// Adds an RDMA NIC. `place` is its PCI address, or the network interface that a soft-RoCE NIC uses.
    fn rdma(&self, name: &str, place: &str) {
        let device = self.sys().join("bus/pci/devices").join(place);
        let device = device.canonicalize().ok();
        let at = match &device {
            Some(device) => device.join("infiniband").join(name),
            None => self.sys().join("devices/virtual/infiniband").join(name),
        };
        fs::create_dir_all(&at).unwrap();
        // The GUID identifies a single device, so it must never be recorded.
        fs::write(at.join("node_guid"), "0c42:a103:00aa:bbcc\n").unwrap();
        if let Some(device) = &device {
            fs::write(at.join("hca_type"), "MT4123\n").unwrap();
            fs::write(at.join("fw_ver"), "20.35.1012\n").unwrap();
            symlink(device, at.join("device")).unwrap();
        } else {
            fs::write(at.join("parent"), format!("{place}\n")).unwrap();
        }
        let cards = self.sys().join(nic::NICS);
        fs::create_dir_all(&cards).unwrap();
        symlink(at, cards.join(name)).unwrap();
    }

    /// Adds a port to a NIC, with its `rate` in Gbit/s and the addresses `gids`, such as `v2=::ffff:10.0.0.1`.
    fn port(
        &self,
        nic: &str,
        number: &str,
        (state, layer, rate): (&str, &str, &str),
        netdev: &str,
        gids: &[&str],
    ) {
        let at = format!("sys/{}/{nic}/ports/{number}", nic::NICS);
        let write = |file: &str, text: &str| self.write(&format!("{at}/{file}"), text);
        let state_number = if state == "ACTIVE" { 4 } else { 1 };
        write("state", &format!("{state_number}: {state}\n"));
        let link = if state == "ACTIVE" {
            "5: LinkUp"
        } else {
            "3: Disabled"
        };
        write("phys_state", &format!("{link}\n"));
        write("link_layer", &format!("{layer}\n"));
        write("rate", &format!("{rate} Gb/sec (4X HDR)\n"));
        for (index, gid) in gids.iter().enumerate() {
            let (kind, address) = gid.split_once('=').unwrap();
            write(&format!("gids/{index}"), &format!("{address}\n"));
            let kind = match kind {
                "v1" => "IB/RoCE v1",
                "v2" => "RoCE v2",
                _ => panic!("not understood: {gid}"),
            };
            write(&format!("gid_attrs/types/{index}"), &format!("{kind}\n"));
            if netdev != "-" {
                write(&format!("gid_attrs/ndevs/{index}"), &format!("{netdev}\n"));
            }
        }
        // The next entry of the GID table is empty.
        let rest = gids.len();
        write(
            &format!("gids/{rest}"),
            "0000:0000:0000:0000:0000:0000:0000:0000\n",
        );
        if netdev != "-"
            && self
                .dir
                .path()
                .join(format!("sys/{}/{nic}/device", nic::NICS))
                .exists()
        {
            let place = number.parse::<u32>().unwrap() - 1;
            let file = format!("sys/{}/{nic}/device/net/{netdev}/dev_port", nic::NICS);
            self.write(&file, &format!("{place}\n"));
        }
    }

    fn gpu(&mut self, address: &str, facts: &[&str]) {
        let ordinal = u32::try_from(self.gpus.len()).unwrap();
        let gpu = Gpu::new(ordinal, "").with_pci_facts(&pci::facts(&self.sys(), address));
        let mut gpu = Gpu {
            uuid: Some("GPU-5d5e".to_owned()),
            rdma: Some(true),
            dma_buf: Some(true),
            mappings: Some(vec![(Backend::Vulkan, Ok(()))]),
            ..gpu
        };
        for fact in facts {
            match fact.split_once('=') {
                Some(("bar1", sizes)) => {
                    let (all, free) = sizes.split_once('/').unwrap_or((sizes, sizes));
                    gpu.window = Some(Bar1 {
                        bytes: bytes(all),
                        free: Some(bytes(free)),
                    });
                }
                Some(("rdma", _)) => (gpu.rdma, gpu.dma_buf) = (Some(false), Some(false)),
                Some(("dma-buf", _)) => gpu.dma_buf = Some(false),
                Some(("maps", "untried")) => gpu.mappings = None,
                Some(("maps", _)) => {
                    let refused = |why: &str| Err(why.to_owned());
                    gpu.mappings = Some(vec![
                        (Backend::Gdrapi, refused("there is no libgdrapi.so.2")),
                        (Backend::Vulkan, refused("there is no libvulkan.so.1")),
                        (Backend::Host, Ok(())),
                    ]);
                }
                Some(_) => panic!("not understood: {fact}"),
                None if gpu.name.is_empty() => gpu.name = (*fact).to_owned(),
                None => gpu.name = format!("{} {fact}", gpu.name),
            }
        }
        self.gpus.push(gpu);
    }

    fn sys(&self) -> PathBuf {
        self.dir.path().join("sys")
    }

    pub(super) fn topology(&self) -> Topology {
        Topology {
            cores: vec![0, 1],
            gpus: self.gpus.clone(),
            no_gpu: String::new(),
            is_real: true,
            ..Topology::read(&self.sys())
        }
    }

    /// Returns the data paths of every pair of a device and a GPU.
    fn device_paths(&self, preference: P2pPreference) -> Vec<DevicePath> {
        let topology = self.topology();
        let pairs = topology.pci.pairs(&topology.gpus);
        pairs
            .map(|(device, gpu)| DevicePath {
                name: String::new(),
                device: device.address.clone(),
                gpu: gpu.ordinal,
                direction: PeerAccess::Write,
                path: topology.p2p_path(&P2pQuery {
                    device: &device.address,
                    gpu: gpu.ordinal,
                    bytes: self.ring,
                    preference,
                    direction: PeerAccess::Write,
                }),
            })
            .collect()
    }

    /// Renders the tree and the data paths of every pair.
    fn describe(&self) -> String {
        let device_paths = self.device_paths(P2pPreference::Auto);
        let device_paths: Vec<_> = device_paths.iter().map(DevicePath::text).collect();
        format!(
            "{}\n{}",
            self.topology().tree(false),
            device_paths.join("\n")
        )
    }
}

/// Creates the machine of a shape file.
macro_rules! shape {
    ($name:literal) => {
        Machine::new(include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/topology/tests/shapes/",
            $name,
            ".txt"
        )))
    };
}
use shape;

/// Defines tests that compare the description of a shape with its stored snapshot.
macro_rules! shapes {
    ($($test:ident, $name:literal;)*) => {$(
        #[test]
        fn $test() {
            insta::assert_snapshot!(shape!($name).describe());
        }
    )*};
}

shapes! {
    paths_on_one_socket, "one-socket";
    paths_on_two_sockets, "two-sockets";
    paths_below_plx_switch, "plx-switch";
    paths_of_gpus_and_nics_below_switches, "dgx";
    paths_on_amd_server, "amd-server";
    paths_on_amd_desktop, "amd-desktop";
    paths_on_intel_server, "intel-server";
    paths_on_intel_desktop, "intel-desktop";
    paths_in_virtual_machine, "virtual-machine";
    paths_in_one_iommu_group, "one-group";
    paths_to_geforce, "geforce";
    paths_with_link_below_capability, "narrow";
    paths_below_redirecting_switch, "redirect";
    paths_to_gpu_with_small_bar, "small-window";
    paths_without_any_mapping, "no-mapping";
    paths_of_nic_and_gpu_below_one_switch, "nic-switch";
    paths_of_two_rails, "nic-rails";
    paths_with_port_down, "nic-down";
    paths_of_nic_in_virtual_machine, "nic-virtual";
    paths_of_nic_without_dma_buf, "nic-peermem";
}
