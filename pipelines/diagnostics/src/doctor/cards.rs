//! Checks FPGA devices: the IOMMU, the driver bound to each card, its IOMMU group, its link, and the bridges above it.
//!
//! `daq topo` shows the resulting data path. The checks of each GPU report whether its memory can be mapped.

use super::root::Root;
use super::{Finding, Verdict};
use daq_core::topology::p2p::slow;
use daq_core::topology::tree::{Iommu, PciDevice, PciTree, VFIO};
use daq_core::topology::{Gpu, Topology, pci};

const GROUP: &str = "cards";
const DEVICES: &str = "/sys/bus/pci/devices";
const UNITS: &str = "/sys/class/iommu";
/// The Linux driver that is bound to a device only to keep other drivers away.
const STUB: &str = "pci-stub";

pub(super) fn examine(root: &Root) -> Vec<Finding> {
    let topology = Topology::read(&root.at("/sys"));
    let tree = &topology.pci;
    let cards: Vec<_> = tree.devices.iter().filter(|d| d.is_card()).collect();
    let mut findings = vec![iommu(tree, !cards.is_empty())];
    for card in cards {
        let card = Card {
            name: format!("card {}", card.address),
            device: card,
            tree,
        };
        findings.extend([card.driver(), card.group(), card.link(), card.acs()]);
        findings.extend(card.gpus(root, &topology));
    }
    findings
}

/// Checks whether the IOMMU translates the addresses of devices.
fn iommu(tree: &PciTree, is_needed: bool) -> Finding {
    let finding = Finding::new(GROUP, "IOMMU", UNITS);
    match tree.iommu {
        Iommu::Unknown => finding,
        Iommu::On => finding.read(Verdict::Ok, "on"),
        Iommu::Off if !is_needed => finding
            .read(Verdict::Ok, "off")
            .why("no FPGA card on this machine requires the IOMMU"),
        Iommu::Off => finding
            .read(Verdict::Warn, "off")
            .why("VFIO needs the IOMMU to give user programs access to cards")
            .fix(turn_on(tree)),
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

/// An FPGA card in the PCI tree.
pub(super) struct Card<'a> {
    /// Name of the card in findings, for example `card 0000:3b:00.0`.
    pub(super) name: String,
    pub(super) device: &'a PciDevice,
    pub(super) tree: &'a PciTree,
}

impl Card<'_> {
    pub(super) fn finding(&self, name: &'static str, file: &str) -> Finding {
        let from = format!("{DEVICES}/{}/{file}", self.device.address);
        Finding::new(self.name.clone(), name, from)
    }

    /// Checks which driver is bound to the card, and how user programs can access the card.
    fn driver(&self) -> Finding {
        let finding = self.finding("driver", "driver");
        let address = &self.device.address;
        let give = format!(
            "sudo modprobe {VFIO} && sudo driverctl set-override {address} {VFIO}  # permanently; or only until the next boot: echo {VFIO} | sudo tee {DEVICES}/{address}/driver_override; echo {address} | sudo tee {DEVICES}/{address}/driver/unbind; echo {address} | sudo tee /sys/bus/pci/drivers_probe"
        );
        match self.device.driver.as_deref() {
            Some(VFIO) => finding.read(Verdict::Ok, VFIO),
            Some(other) => finding
                .read(Verdict::Ok, other)
                .why("user programs cannot access the card while this driver is bound to it")
                .fix(give),
            None => finding
                .read(Verdict::Warn, "none")
                .why("user programs can access the card only through VFIO")
                .fix(give),
        }
    }

    /// Checks whether VFIO can give user programs access to the whole IOMMU group of the card.
    fn group(&self) -> Finding {
        let finding = self.finding("IOMMU group", "iommu_group");
        let Some(group) = &self.device.group else {
            return if self.tree.iommu == Iommu::On {
                finding
            } else {
                finding
                    .read(Verdict::Unknown, "none")
                    .why("IOMMU groups exist only if the IOMMU is enabled")
            };
        };
        // Bridges may keep their drivers (`vfio_dev_viable` in drivers/vfio of Linux).
        let is_free = |other: &PciDevice| {
            other.address == self.device.address
                || other.is_bridge()
                || matches!(other.driver.as_deref(), None | Some(VFIO | STUB))
        };
        let number = group.number;
        let mut held = Vec::new();
        let mut others = Vec::new();
        for other in self.tree.members(number).filter(|other| !is_free(other)) {
            let driver = other.driver.as_deref().unwrap_or_default();
            held.push(format!("{} ({driver})", other.address));
            others.push(other.address.as_str());
        }
        if held.is_empty() {
            return finding.read(
                Verdict::Ok,
                format!("{number}: user programs can open the group"),
            );
        }
        let commands = others
            .iter()
            .map(|other| format!("sudo driverctl set-override {other} {VFIO}"));
        finding
            .read(
                Verdict::Warn,
                format!("{number}: shared with {}", held.join(", ")),
            )
            .why("the card cannot be opened, because VFIO requires all devices of an IOMMU group to be bound to vfio-pci")
            .fix(format!(
                "{}  # if nothing else uses these devices; otherwise move the card to a slot below another root port",
                commands.collect::<Vec<_>>().join(" && ")
            ))
    }

    /// Checks whether a link between the card and the processor is slower than the devices at its two ends support.
    pub(super) fn link(&self) -> Finding {
        let finding = self.finding("link", "{current,max}_link_{speed,width}");
        let hops = self.tree.hops(self.device);
        if self.tree.processor.is_virtual || hops.is_empty() {
            return finding
                .why("this machine does not report the PCIe link; virtual machines often do not");
        }
        let narrow = hops.iter().find_map(|hop| Some((hop, slow(hop)?)));
        let Some((hop, why)) = narrow else {
            return finding.read(Verdict::Ok, hops[0].effective.to_string());
        };
        let fix = if hop.effective.rate() < hop.max.rate() {
            format!(
                "sudo lspci -vv -s {} | grep -E 'LnkCap|LnkSta'  # then reseat the card and its riser",
                hop.below
            )
        } else {
            "sudo dmidecode -t slot  # move the card to a slot that has the card's width and PCIe generation"
                .to_owned()
        };
        finding
            .read(
                Verdict::Warn,
                format!("{} of {}", hop.effective, hop.device_max),
            )
            .why(why)
            .fix(fix)
    }

    /// Checks whether PCIe switches above the card redirect peer-to-peer writes to the processor (ACS).
    fn acs(&self) -> Finding {
        let bridges = self.tree.bridges(self.device);
        // Ignore the root port, because traffic to the processor passes through it in any case.
        let switches = bridges.split_last().map_or(&[][..], |(_, below)| below);
        let Some(nearest) = switches.first() else {
            return self
                .finding("ACS", "..")
                .read(Verdict::Ok, "no switch above the card");
        };
        let finding = Finding::new(
            self.name.clone(),
            "ACS",
            format!("{DEVICES}/{}/config", nearest.address),
        );
        let redirects = |wanted| {
            let mut switches = switches.iter();
            switches.find(move |bridge| bridge.acs.redirects() == wanted)
        };
        if let Some(bridge) = redirects(Some(true)) {
            finding
                .read(
                    Verdict::Ok,
                    format!("{} redirects writes ({})", bridge.address, bridge.acs.bits()),
                )
                .why("peer-to-peer writes to a GPU are redirected through the processor, which is slower than through the switch")
        } else if redirects(None).is_some() {
            finding
                .why("only root can read the PCIe settings")
                .fix("sudo daq doctor")
        } else {
            finding
                .read(Verdict::Ok, "no switch redirects writes")
                .why("peer-to-peer writes to a GPU below the same switch stay in the switch, unless the card uses vfio-pci and the IOMMU is enabled")
        }
    }

    /// Reports the distance from the card to NVIDIA GPUs.
    fn gpus(&self, root: &Root, topology: &Topology) -> Option<Finding> {
        let sys = root.at("/sys");
        let gpus = pci::nvidia_gpus(&sys).filter(|gpus| !gpus.is_empty())?;
        let paths = gpus.iter().zip(0..).map(|(address, ordinal)| {
            let gpu = Gpu::new(ordinal, "").with_pci_facts(&pci::facts(&sys, address));
            let topology = Topology {
                gpus: vec![gpu],
                ..topology.clone()
            };
            let distance = topology.distance(&self.device.address, ordinal);
            format!("{distance} to {address}")
        });
        Some(
            self.finding("distance to GPUs", "")
                .read(Verdict::Ok, paths.collect::<Vec<_>>().join(", "))
                .why("`daq topo` shows the resulting path; the line `CPU stores` of the GPU shows whether its memory can be mapped"),
        )
    }
}

#[cfg(test)]
mod tests;
