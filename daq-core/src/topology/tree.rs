//! The PCIe tree of a recorded or present `/sys`: host bridges, ports, switches, devices.
//!
//! ```text
//!   pci0000:3a ── 0000:3a:00.0 ── 0000:3b:00.0 ──┬─ 0000:3c:04.0 ── 0000:3d:00.0
//!   host bridge     root port       a switch     └─ 0000:3c:08.0 ── 0000:3e:00.0
//! ```
//! What a machine does not tell is `None`, never a guess.

pub use super::acs::Acs;
use super::pci::{self, Lanes, Link, canonical};
use std::fs;
use std::path::Path;

/// The first two bytes of the PCI class of a bridge between buses.
const BRIDGE: u32 = 0x0604;
/// The first byte of the class of display and 3D controllers.
const DISPLAY: u32 = 0x03;
/// The first byte of the class of network controllers.
const NETWORK: u32 = 0x02;
/// Makers of FPGAs, by their PCI vendor numbers, and their names.
const FPGA_MAKERS: [(u16, &str); 4] = [
    (0x10ee, "Xilinx"),
    (0x1172, "Altera"),
    (0x1204, "Lattice"),
    (0x11f8, "Microchip"),
];
/// QEMU's device for teaching, whose engine copies to and from memory (docs/specs/edu.rst of QEMU).
const EDU: (u16, u16) = (0x1234, 0x11e8);
/// The kernel's driver that gives a device to programs.
pub const VFIO: &str = "vfio-pci";

/// Whether the processor translates the addresses that devices use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Iommu {
    /// The machine does not tell.
    #[default]
    Unknown,
    /// It does not.
    Off,
    /// It does.
    On,
}

/// The processor, as far as it decides what devices may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// As in `AuthenticAMD`.
    pub vendor: Option<String>,
    /// As in 25.
    pub family: Option<u32>,
    /// As in `AMD EPYC 7763 64-Core Processor`.
    pub name: Option<String>,
    /// Whether it is one of a virtual machine, whose tree is its host's invention.
    pub is_virtual: bool,
}

impl Processor {
    /// From the text of `/proc/cpuinfo`: the first processor's lines.
    fn of(text: &str) -> Self {
        let field = |name: &str| {
            text.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        Self {
            vendor: field("vendor_id"),
            family: field("cpu family").and_then(|family| family.parse().ok()),
            name: field("model name"),
            is_virtual: field("flags")
                .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
        }
    }

    /// The lines of `/proc/cpuinfo` that are looked at.
    pub(super) fn recorded_lines(text: &str) -> String {
        let of = Self::of(text);
        let family = of.family.map(|family| family.to_string());
        let flags = of.is_virtual.then(|| "hypervisor".to_owned());
        let lines = [
            ("vendor_id\t", of.vendor),
            ("cpu family\t", family),
            ("model name\t", of.name),
            ("flags\t\t", flags),
        ];
        let lines = lines.into_iter();
        lines
            .filter_map(|(key, value)| Some(format!("{key}: {}\n", value?)))
            .collect()
    }
}

/// Devices that cannot be kept apart from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The kernel's number.
    pub number: u32,
    /// How their addresses are translated, as in `DMA-FQ` or `identity`.
    pub kind: Option<String>,
}

/// A device or a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// As in `0000:3b:00.0`.
    pub address: String,
    /// The maker's number.
    pub vendor: Option<u16>,
    /// The maker's number for the model.
    pub device: Option<u16>,
    /// What it is, as in 0x060400.
    pub class: Option<u32>,
    /// The kernel's driver that holds it.
    pub driver: Option<String>,
    /// Its NUMA node; `None` if the firmware does not say.
    pub node: Option<u32>,
    /// Its link; for ports of the processor and of switches downwards the one below them.
    pub link: Option<Link>,
    /// Bytes of its memory regions, in order.
    pub regions: Vec<u64>,
    /// Its IOMMU group.
    pub group: Option<Group>,
    /// Of a bridge: whether it redirects.
    pub acs: Acs,
    /// The host bridge above, as in `pci0000:3a`.
    pub host: String,
    /// Addresses of the bridges towards the processor, the nearest first.
    pub upstream: Vec<String>,
}

impl PciDevice {
    /// Maker and model, as in `10ee:903f`.
    pub fn id(&self) -> String {
        let hex = |number: Option<u16>| {
            number.map_or_else(|| "????".to_owned(), |number| format!("{number:04x}"))
        };
        format!("{}:{}", hex(self.vendor), hex(self.device))
    }

    /// Whether it is a bridge between buses: a port of the processor or of a switch.
    pub fn is_bridge(&self) -> bool {
        self.class.is_some_and(|class| class >> 8 == BRIDGE)
    }

    /// Whether it is a display or 3D controller.
    pub fn is_display(&self) -> bool {
        self.class.is_some_and(|class| class >> 16 == DISPLAY)
    }

    /// Whether it is a network controller, InfiniBand's among them.
    pub fn is_network(&self) -> bool {
        self.class.is_some_and(|class| class >> 16 == NETWORK)
    }

    /// Whether it is of a maker of FPGAs, QEMU's device for teaching, or given to programs already: what source drivers
    /// for cards are about.
    pub fn is_card(&self) -> bool {
        let is_fpga = FPGA_MAKERS
            .iter()
            .any(|(vendor, _)| self.vendor == Some(*vendor));
        let is_edu = (self.vendor, self.device) == (Some(EDU.0), Some(EDU.1));
        !self.is_bridge() && !self.is_display() && (is_fpga || is_edu || self.is_vfio_bound())
    }

    /// Whether programs may drive it.
    pub fn is_vfio_bound(&self) -> bool {
        self.driver.as_deref() == Some(VFIO)
    }

    /// The maker's name, of those that matter here.
    pub fn maker(&self) -> Option<&'static str> {
        let known = FPGA_MAKERS.iter().chain(&[
            (0x1000, "Broadcom"),
            (0x1022, "AMD"),
            (0x10b5, "PLX"),
            (0x10de, "NVIDIA"),
            (0x1234, "QEMU"),
            (0x14e4, "Broadcom"),
            (0x15b3, "Mellanox"),
            (0x1af4, "Red Hat"),
            (0x1b36, "Red Hat"),
            (0x8086, "Intel"),
        ]);
        known
            .into_iter()
            .find(|(vendor, _)| self.vendor == Some(*vendor))
            .map(|(_, name)| *name)
    }

    /// The address without the function: what one card's functions share.
    fn slot(&self) -> &str {
        self.address
            .rsplit_once('.')
            .map_or(&self.address, |(slot, _)| slot)
    }
}

/// One link on a device's way to the processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The end away from the processor.
    pub below: String,
    /// The port towards the processor; `None` where none is shown.
    pub above: Option<String>,
    /// What it carries: as it runs, but for GPUs, which slow down while idle, at the speed that both ends can do.
    pub effective: Lanes,
    /// What both ends can do.
    pub max: Lanes,
    /// What the end away from the processor can do.
    pub device_max: Lanes,
}

/// The PCIe tree and what else decides which way bytes go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciTree {
    /// Devices and bridges, ascending by address; empty if unknown.
    pub devices: Vec<PciDevice>,
    /// Whether addresses are translated.
    pub iommu: Iommu,
    /// The processor.
    pub processor: Processor,
}

impl PciTree {
    /// The tree of a recorded or present `/sys`, and the processor of the `/proc` beside it.
    pub fn read(sys: &Path) -> Self {
        let base = sys.canonicalize().unwrap_or_else(|_| sys.to_owned());
        let entries = fs::read_dir(base.join("bus/pci/devices"));
        let mut devices: Vec<_> = entries
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let address = canonical(entry.file_name().to_str()?)?;
                device(&base, &entry.path().canonicalize().ok()?, address)
            })
            .collect();
        devices.sort_by(|a, b| a.address.cmp(&b.address));
        let cpuinfo = base.parent().map(|root| root.join("proc/cpuinfo"));
        let cpuinfo = cpuinfo.and_then(|path| fs::read_to_string(path).ok());
        Self {
            iommu: iommu(&base, &devices),
            processor: Processor::of(&cpuinfo.unwrap_or_default()),
            devices,
        }
    }

    /// The device at an address of any spelling.
    pub fn device(&self, address: &str) -> Option<&PciDevice> {
        let address = canonical(address)?;
        let found = self
            .devices
            .binary_search_by(|device| device.address.cmp(&address));
        Some(&self.devices[found.ok()?])
    }

    /// The bridges on a device's way to the processor, the nearest first.
    pub fn bridges(&self, device: &PciDevice) -> Vec<&PciDevice> {
        let upstream = device.upstream.iter();
        upstream
            .filter_map(|address| self.device(address))
            .collect()
    }

    /// The devices of one IOMMU group.
    pub fn members(&self, group: u32) -> impl Iterator<Item = &PciDevice> {
        let is_member =
            move |device: &&PciDevice| device.group.as_ref().is_some_and(|g| g.number == group);
        self.devices.iter().filter(is_member)
    }

    /// What stands for a host bridge: the first device of its bus, if it is number 00.0 or a port.
    ///
    /// So does the kernel look it up (`pci_host_bridge_dev` of drivers/pci/p2pdma.c).
    pub fn host(&self, name: &str) -> Option<&PciDevice> {
        let mut on_bus = self.devices.iter();
        let first = on_bus.find(|device| device.host == name && device.upstream.is_empty())?;
        (first.address.ends_with(":00.0") || first.is_bridge()).then_some(first)
    }

    /// Names of the host bridges, in order.
    pub fn hosts(&self) -> Vec<&str> {
        let mut hosts: Vec<&str> = self.devices.iter().map(|d| d.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// Devices that could be sources: cards and network controllers. What sits in one package with a switch is none.
    pub fn candidates(&self) -> Vec<&PciDevice> {
        let of_switch = |device: &PciDevice| {
            let mut others = self.devices.iter();
            others.any(|other| other.is_bridge() && other.slot() == device.slot())
        };
        let devices = self.devices.iter();
        devices
            .filter(|device| (device.is_card() || device.is_network()) && !device.is_bridge())
            .filter(|device| !of_switch(device))
            .collect()
    }

    /// The links on a device's way, the nearest first. Links inside of a switch are none.
    pub fn hops(&self, device: &PciDevice) -> Vec<Hop> {
        let bridges = self.bridges(device);
        let all: Vec<&PciDevice> = std::iter::once(device).chain(bridges).collect();
        // A device and the port above it, a switch and the port above it: a link is every second step.
        all.chunks(2)
            .filter_map(|ends| {
                let (below, above) = (ends[0], ends.get(1).copied());
                let link = below.link?;
                let max = match above.and_then(|above| above.link) {
                    Some(above) => Lanes {
                        generation: link.max.generation.min(above.max.generation),
                        width: link.max.width.min(above.max.width),
                    },
                    None => link.max,
                };
                let generation = if below.is_display() {
                    max.generation
                } else {
                    link.current.generation
                };
                Some(Hop {
                    below: below.address.clone(),
                    above: above.map(|above| above.address.clone()),
                    effective: Lanes {
                        generation,
                        ..link.current
                    },
                    max,
                    device_max: link.max,
                })
            })
            .collect()
    }
}

/// The device whose directory is `at`; `None` where that is below no host bridge.
fn device(base: &Path, at: &Path, address: String) -> Option<PciDevice> {
    let mut host = None;
    let mut upstream = Vec::new();
    for part in at.strip_prefix(base).ok()?.parent()?.iter().rev() {
        let part = part.to_str()?;
        if let Some(bridge) = canonical(part) {
            upstream.push(bridge);
        } else if part.starts_with("pci") {
            host = Some(part.to_owned());
            break;
        }
    }
    let number = |file, digits: usize| {
        let text = pci::text(at, file)?;
        let text = text.strip_prefix("0x")?;
        u32::from_str_radix(text.get(..digits)?, 16).ok()
    };
    let short = |file| number(file, 4).and_then(|number| u16::try_from(number).ok());
    let mut device = PciDevice {
        vendor: short("vendor"),
        device: short("device"),
        class: number("class", 6),
        driver: pci::target(at, "driver"),
        node: pci::value(at, "numa_node"),
        link: pci::link(at),
        regions: pci::text(at, "resource").map_or_else(Vec::new, |text| pci::regions(&text)),
        group: pci::target(at, "iommu_group")
            .and_then(|group| group.parse().ok())
            .map(|number| Group {
                number,
                kind: pci::text(base, &format!("kernel/iommu_groups/{number}/type")),
            }),
        acs: Acs::Unknown,
        host: host?,
        upstream,
        address,
    };
    if device.is_bridge() {
        device.acs = Acs::read(at);
    }
    Some(device)
}

/// The kernel lists each IOMMU that it uses. Groups alone are no proof: VFIO without an IOMMU makes some, too.
fn iommu(base: &Path, devices: &[PciDevice]) -> Iommu {
    let units = fs::read_dir(base.join("class/iommu")).map(Iterator::count);
    match units {
        Ok(0) => Iommu::Off,
        Ok(_) => Iommu::On,
        Err(_) if devices.iter().any(|device| device.group.is_some()) => Iommu::On,
        Err(_) if devices.is_empty() => Iommu::Unknown,
        Err(_) => Iommu::Off,
    }
}
