//! The PCIe tree of a recorded or present `/sys`: host bridges, ports, switches, devices.
//!
//! ```text
//!   pci0000:3a ── 0000:3a:00.0 ── 0000:3b:00.0 ──┬─ 0000:3c:04.0 ── 0000:3d:00.0
//!   host bridge     root port       a switch     └─ 0000:3c:08.0 ── 0000:3e:00.0
//! ```
//! Values that a machine does not report are `None`, never a guess.

pub use super::acs::Acs;
use super::pci::{self, Lanes, Link, canonical};
use std::fs;
use std::path::Path;

/// First two bytes of the PCI class of a PCI-to-PCI bridge.
const BRIDGE: u32 = 0x0604;
/// First byte of the class of display and 3D controllers.
const DISPLAY: u32 = 0x03;
/// First byte of the class of network controllers.
const NETWORK: u32 = 0x02;
/// PCI vendor identifiers and names of FPGA vendors.
const FPGA_MAKERS: [(u16, &str); 4] = [
    (0x10ee, "Xilinx"),
    (0x1172, "Altera"),
    (0x1204, "Lattice"),
    (0x11f8, "Microchip"),
];
/// Vendor and device identifiers of QEMU's educational device, which contains a DMA engine (docs/specs/edu.rst of
/// QEMU).
const EDU: (u16, u16) = (0x1234, 0x11e8);
/// The Linux driver that lets user-space programs use a device.
pub const VFIO: &str = "vfio-pci";

/// Whether an IOMMU translates the addresses that devices use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Iommu {
    /// The machine does not report it.
    #[default]
    Unknown,
    /// Addresses are not translated.
    Off,
    /// Addresses are translated.
    On,
}

/// Properties of the processor that determine which transfers between devices work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// Vendor, such as `AuthenticAMD`.
    pub vendor: Option<String>,
    /// Family number, such as 25.
    pub family: Option<u32>,
    /// Model name, such as `AMD EPYC 7763 64-Core Processor`.
    pub name: Option<String>,
    /// Whether this is the processor of a virtual machine, whose PCIe tree can differ from the physical tree.
    pub is_virtual: bool,
}

impl Processor {
    /// Parses the lines of the first processor in the text of `/proc/cpuinfo`.
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

    /// Returns the lines of `/proc/cpuinfo` that are read.
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

/// An IOMMU group: devices that the IOMMU cannot isolate from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Linux's number of the group.
    pub number: u32,
    /// Mode of address translation, such as `DMA-FQ` or `identity`.
    pub kind: Option<String>,
}

/// A PCI device or bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// PCI address, such as `0000:3b:00.0`.
    pub address: String,
    /// PCI vendor identifier.
    pub vendor: Option<u16>,
    /// PCI device identifier.
    pub device: Option<u16>,
    /// PCI class, such as 0x060400.
    pub class: Option<u32>,
    /// The Linux driver that the device is bound to.
    pub driver: Option<String>,
    /// NUMA node; `None` if the firmware does not report it.
    pub node: Option<u32>,
    /// PCIe link; for root ports and downstream ports of switches, the link below the port.
    pub link: Option<Link>,
    /// Sizes of the memory regions in bytes, in the order of the base address registers.
    pub regions: Vec<u64>,
    /// IOMMU group of the device.
    pub group: Option<Group>,
    /// For a bridge: its access control services.
    pub acs: Acs,
    /// The host bridge above the device, such as `pci0000:3a`.
    pub host: String,
    /// Addresses of the bridges between the device and the processor, the nearest to the device first.
    pub upstream: Vec<String>,
}

impl PciDevice {
    /// Returns the vendor and device identifiers, such as `10ee:903f`.
    pub fn id(&self) -> String {
        let hex = |number: Option<u16>| {
            number.map_or_else(|| "????".to_owned(), |number| format!("{number:04x}"))
        };
        format!("{}:{}", hex(self.vendor), hex(self.device))
    }

    /// Whether the device is a PCI-to-PCI bridge: a root port or a port of a switch.
    pub fn is_bridge(&self) -> bool {
        self.class.is_some_and(|class| class >> 8 == BRIDGE)
    }

    /// Whether the device is a display or 3D controller.
    pub(crate) fn is_display(&self) -> bool {
        self.class.is_some_and(|class| class >> 16 == DISPLAY)
    }

    /// Whether the device is a network controller, including InfiniBand controllers.
    pub fn is_network(&self) -> bool {
        self.class.is_some_and(|class| class >> 16 == NETWORK)
    }

    /// Whether the device is a card that a source driver can use: a device of an FPGA vendor, QEMU's educational
    /// device, or a device that is bound to vfio-pci.
    pub fn is_card(&self) -> bool {
        let is_fpga = FPGA_MAKERS
            .iter()
            .any(|(vendor, _)| self.vendor == Some(*vendor));
        let is_edu = (self.vendor, self.device) == (Some(EDU.0), Some(EDU.1));
        !self.is_bridge() && !self.is_display() && (is_fpga || is_edu || self.is_vfio_bound())
    }

    /// Whether the device is bound to vfio-pci, so that user-space programs can use it.
    pub(crate) fn is_vfio_bound(&self) -> bool {
        self.driver.as_deref() == Some(VFIO)
    }

    /// Returns the vendor's name, for a few known vendors.
    pub(crate) fn maker(&self) -> Option<&'static str> {
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

    /// Returns the address without the function number. All functions of a card have the same result.
    fn slot(&self) -> &str {
        self.address
            .rsplit_once('.')
            .map_or(&self.address, |(slot, _)| slot)
    }
}

/// One PCIe link between a device and the processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Address of the end further from the processor.
    pub below: String,
    /// Address of the port nearer to the processor; `None` if this port is not listed.
    pub above: Option<String>,
    /// Usable speed: the current speed. For a GPU, whose link is slower while idle, the maximum generation of both
    /// ends.
    pub effective: Lanes,
    /// Maximum speed that both ends support.
    pub max: Lanes,
    /// Maximum speed that the end further from the processor supports.
    pub device_max: Lanes,
}

/// The PCIe tree, with the IOMMU and the processor, which also determine the path of transfers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciTree {
    /// Devices and bridges, in ascending order of their addresses; empty if unknown.
    pub devices: Vec<PciDevice>,
    /// Whether an IOMMU translates addresses.
    pub iommu: Iommu,
    /// The processor.
    pub processor: Processor,
}

impl PciTree {
    /// Reads the tree from this machine's `/sys` or a recorded one, and the processor from the `/proc` in the same
    /// directory.
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

    /// Returns the device at an address, which may have any spelling.
    pub fn device(&self, address: &str) -> Option<&PciDevice> {
        let address = canonical(address)?;
        let found = self
            .devices
            .binary_search_by(|device| device.address.cmp(&address));
        Some(&self.devices[found.ok()?])
    }

    /// Returns the bridges between a device and the processor, the nearest to the device first.
    pub fn bridges(&self, device: &PciDevice) -> Vec<&PciDevice> {
        let upstream = device.upstream.iter();
        upstream
            .filter_map(|address| self.device(address))
            .collect()
    }

    /// Returns the devices of one IOMMU group.
    pub fn members(&self, group: u32) -> impl Iterator<Item = &PciDevice> {
        let is_member =
            move |device: &&PciDevice| device.group.as_ref().is_some_and(|g| g.number == group);
        self.devices.iter().filter(is_member)
    }

    /// Returns the device that represents a host bridge: the first device of its bus, if the device's number is 00.0 or
    /// the device is a port.
    ///
    /// Linux uses the same rule (`pci_host_bridge_dev` of drivers/pci/p2pdma.c).
    pub fn host(&self, name: &str) -> Option<&PciDevice> {
        let mut on_bus = self.devices.iter();
        let first = on_bus.find(|device| device.host == name && device.upstream.is_empty())?;
        (first.address.ends_with(":00.0") || first.is_bridge()).then_some(first)
    }

    /// Returns the names of the host bridges in ascending order.
    pub fn hosts(&self) -> Vec<&str> {
        let mut hosts: Vec<&str> = self.devices.iter().map(|d| d.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// Returns the devices that could be sources: cards and network controllers. Devices that are functions of a switch
    /// are left out.
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

    /// Returns the links between a device and the processor, the nearest to the device first. Connections inside a
    /// switch are not links.
    pub fn hops(&self, device: &PciDevice) -> Vec<Hop> {
        let bridges = self.bridges(device);
        let all: Vec<&PciDevice> = std::iter::once(device).chain(bridges).collect();
        // A link connects a device to the port above it, and a switch to the port above the switch. The steps between
        // are inside a switch. So every second step is a link.
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

/// Reads the device in the directory `at`; `None` if the directory is not below a host bridge.
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

/// Determines whether an IOMMU is in use. Linux lists each IOMMU in `class/iommu`. The existence of IOMMU groups is not
/// sufficient if this list exists, because VFIO without an IOMMU also creates groups.
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
