//! Checks FPGA devices: the IOMMU, the driver bound to each card, its IOMMU group, its link, and the bridges above it.
//!
//! `daq topo` shows the resulting data path. The checks of each GPU report whether its memory can be mapped.

use super::check::{
    Finding, Judgement, check, finding, not_applicable, ok, table, unknown, unreadable, warn,
};
use super::root::Root;
use daq_core::topology::p2p::slow;
use daq_core::topology::tree::{Iommu, PciDevice, PciTree, VFIO};
use daq_core::topology::{Gpu, Topology, pci};

const GROUP: &str = "cards";
const DEVICES: &str = "/sys/bus/pci/devices";
const UNITS: &str = "/sys/class/iommu";
/// The fix for a slot that is slower than its card.
pub(super) const SLOW_SLOT: &str = "sudo dmidecode -t slot  # move the card to a slot that has the card's width and PCIe generation";
/// The Linux driver that is bound to a device only to keep other drivers away.
const STUB: &str = "pci-stub";

pub(super) fn examine(root: &Root) -> Vec<Finding> {
    let topology = Topology::read(&root.at("/sys"));
    let tree = &topology.pci;
    let cards: Vec<_> = tree.devices.iter().filter(|d| d.is_card()).collect();
    let iommu = finding(GROUP, "IOMMU", UNITS, iommu(tree, !cards.is_empty()));
    let cards = cards.into_iter().flat_map(|device| {
        let fpga = Fpga {
            card: Card { device, tree },
            root,
            topology: &topology,
        };
        let checks = [
            check("driver", "./driver", Fpga::driver),
            check("IOMMU group", "./iommu_group", Fpga::group),
            check("link", "./{current,max}_link_{speed,width}", Fpga::link),
            check("ACS", "./..", Fpga::acs),
            check("distance to GPUs", "./", Fpga::gpus),
        ];
        let group = format!("card {}", device.address);
        table(group, &fpga.card.directory(), &fpga, &checks)
    });
    iommu.into_iter().chain(cards).collect()
}

/// Checks whether the IOMMU translates the addresses of devices.
fn iommu(tree: &PciTree, is_needed: bool) -> Option<Judgement> {
    match tree.iommu {
        Iommu::Unknown => None,
        Iommu::On => Some(ok("on")),
        Iommu::Off if !is_needed => {
            Some(ok("off").why("no FPGA card on this machine requires the IOMMU"))
        }
        Iommu::Off => Some(warn(
            "off",
            "VFIO needs the IOMMU to give user programs access to cards",
            turn_on(tree),
        )),
    }
}

/// Returns how to enable the IOMMU, depending on the processor vendor.
fn turn_on(tree: &PciTree) -> String {
    if tree.processor.is_virtual {
        return "qemu-system-x86_64 -machine q35,kernel-irqchip=split -device intel-iommu,intremap=on,caching-mode=on …  # run this on the host to give the virtual machine an IOMMU".to_owned();
    }
    let (firmware, arguments) = match tree.processor.vendor.as_deref() {
        Some("AuthenticAMD") => ("AMD-Vi, also called IOMMU", "iommu=pt"),
        Some("GenuineIntel") => ("VT-d", "intel_iommu=on iommu=pt"),
        _ => ("the IOMMU", "iommu=pt"),
    };
    format!(
        "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{arguments} /' /etc/default/grub && sudo update-grub && sudo systemctl reboot --firmware-setup  # then enable {firmware} in the firmware setup"
    )
}

/// A card in the PCI tree.
pub(super) struct Card<'a> {
    pub(super) device: &'a PciDevice,
    pub(super) tree: &'a PciTree,
}

impl Card<'_> {
    /// Returns the directory of the card's files.
    pub(super) fn directory(&self) -> String {
        format!("{DEVICES}/{}", self.device.address)
    }

    /// Checks whether a link between the card and the processor is slower than the devices at its two ends support.
    pub(super) fn link(&self) -> Judgement {
        let hops = self.tree.hops(self.device);
        if self.tree.processor.is_virtual || hops.is_empty() {
            return unreadable()
                .why("this machine does not report the PCIe link; virtual machines often do not");
        }
        let Some((hop, why)) = hops.iter().find_map(|hop| Some((hop, slow(hop)?))) else {
            return ok(hops[0].effective.to_string());
        };
        let fix = if hop.effective.rate() < hop.max.rate() {
            format!(
                "sudo lspci -vv -s {} | grep -E 'LnkCap|LnkSta'  # then reseat the card and its riser",
                hop.below
            )
        } else {
            SLOW_SLOT.to_owned()
        };
        warn(format!("{} of {}", hop.effective, hop.device_max), why, fix)
    }
}

/// An FPGA card and its machine.
struct Fpga<'a> {
    card: Card<'a>,
    root: &'a Root,
    topology: &'a Topology,
}

impl Fpga<'_> {
    fn link(&self) -> Option<Judgement> {
        Some(self.card.link())
    }

    /// Checks which driver is bound to the card, and how user programs can access the card.
    fn driver(&self) -> Option<Judgement> {
        let address = &self.card.device.address;
        let give = format!(
            "sudo modprobe {VFIO} && sudo driverctl set-override {address} {VFIO}  # permanently; or only until the next boot: echo {VFIO} | sudo tee {DEVICES}/{address}/driver_override; echo {address} | sudo tee {DEVICES}/{address}/driver/unbind; echo {address} | sudo tee /sys/bus/pci/drivers_probe"
        );
        Some(match self.card.device.driver.as_deref() {
            Some(VFIO) => ok(VFIO),
            Some(other) => ok(other)
                .why("user programs cannot access the card while this driver is bound to it")
                .fix(give),
            None => warn(
                "none",
                "user programs can access the card only through VFIO",
                give,
            ),
        })
    }

    /// Checks whether VFIO can give user programs access to the whole IOMMU group of the card.
    fn group(&self) -> Option<Judgement> {
        let Some(group) = &self.card.device.group else {
            let why = "IOMMU groups exist only if the IOMMU is enabled";
            return (self.card.tree.iommu != Iommu::On).then(|| unknown("none", why));
        };
        // Bridges may keep their drivers (`vfio_dev_viable` in drivers/vfio of Linux).
        let is_free = |other: &PciDevice| {
            other.address == self.card.device.address
                || other.is_bridge()
                || matches!(other.driver.as_deref(), None | Some(VFIO | STUB))
        };
        let number = group.number;
        let others = self
            .card
            .tree
            .members(number)
            .filter(|other| !is_free(other));
        let (held, commands): (Vec<_>, Vec<_>) = others
            .map(|other| {
                let driver = other.driver.as_deref().unwrap_or_default();
                (
                    format!("{} ({driver})", other.address),
                    format!("sudo driverctl set-override {} {VFIO}", other.address),
                )
            })
            .unzip();
        if held.is_empty() {
            return Some(ok(format!("{number}: user programs can open the group")));
        }
        Some(warn(
            format!("{number}: shared with {}", held.join(", ")),
            "the card cannot be opened, because VFIO requires all devices of an IOMMU group to be bound to vfio-pci",
            format!(
                "{}  # if nothing else uses these devices; otherwise move the card to a slot below another root port",
                commands.join(" && ")
            ),
        ))
    }

    /// Checks whether PCIe switches above the card redirect peer-to-peer writes to the processor (ACS).
    fn acs(&self) -> Option<Judgement> {
        let bridges = self.card.tree.bridges(self.card.device);
        // Ignore the root port, because traffic to the processor passes through it in any case.
        let switches = bridges.split_last().map_or(&[][..], |(_, below)| below);
        let Some(nearest) = switches.first() else {
            return Some(ok("no switch above the card"));
        };
        let redirects = |wanted| {
            let mut switches = switches.iter();
            switches.find(move |bridge| bridge.acs.redirects() == wanted)
        };
        let judged = if let Some(bridge) = redirects(Some(true)) {
            ok(format!("{} redirects writes ({})", bridge.address, bridge.acs.bits()))
                .why("peer-to-peer writes to a GPU are redirected through the processor, which is slower than through the switch")
        } else if redirects(None).is_some() {
            needs_root()
        } else {
            ok("no switch redirects writes")
                .why("peer-to-peer writes to a GPU below the same switch stay in the switch, unless the card uses vfio-pci and the IOMMU is enabled")
        };
        Some(judged.from(format!("{DEVICES}/{}/config", nearest.address)))
    }

    /// Reports the distance from the card to NVIDIA GPUs.
    fn gpus(&self) -> Option<Judgement> {
        let sys = self.root.at("/sys");
        let gpus = pci::nvidia_gpus(&sys).unwrap_or_default();
        if gpus.is_empty() {
            return Some(not_applicable());
        }
        let paths = gpus.iter().zip(0..).map(|(address, ordinal)| {
            let gpu = Gpu::new(ordinal, "").with_pci_facts(&pci::facts(&sys, address));
            let topology = Topology {
                gpus: vec![gpu],
                ..self.topology.clone()
            };
            let distance = topology.distance(&self.card.device.address, ordinal);
            format!("{distance} to {address}")
        });
        let why = "`daq topo` shows the resulting path; the line `CPU stores` of the GPU shows whether its memory can be mapped";
        Some(ok(paths.collect::<Vec<_>>().join(", ")).why(why))
    }
}

/// The result of a check of PCIe settings that this user cannot read.
pub(super) fn needs_root() -> Judgement {
    unreadable()
        .why("only root can read the PCIe settings")
        .fix("sudo daq doctor")
}

#[cfg(test)]
mod tests;
