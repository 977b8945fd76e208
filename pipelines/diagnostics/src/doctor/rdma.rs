//! Checks RDMA network cards: the required Linux modules and libraries, the PCIe slots of the cards and their distance
//! to GPUs, the ports, and the network.
//!
//! The groups `gpu`, `memory` and `libraries` report facts about GPUs, locked memory and libraries.

mod counters;
mod files;
mod flow;
mod gpus;
mod interrupts;
mod port;
mod slot;
#[cfg(test)]
mod tests;

pub(super) use counters::Counters;

use super::cards;
use super::check::{Finding, Judgement, check, ok, table, warn};
use super::root::Root;
use daq_core::topology::nic::{Layer, Nic, NicPort};
use daq_core::topology::tree::PciDevice;
use daq_core::topology::{Gpu, Topology, pci};

const GROUP: &str = "rdma";
const NICS: &str = "/sys/class/infiniband";
const NET: &str = "/sys/class/net";
/// Drivers of network cards that can support RDMA, each with the Linux module that adds RDMA to the driver.
const CAPABLE: [(&str, &str); 6] = [
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_core", "mlx4_ib"),
    ("ice", "irdma"),
    ("bnxt_en", "bnxt_re"),
    ("qede", "qedr"),
    ("hns3", "hns_roce_hw_v2"),
];

/// The machine with its network cards and GPUs.
struct Machine<'a> {
    root: &'a Root,
    topology: Topology,
    /// Value of MLX5_SCATTER_TO_CQE in this process; `None` if the files of another machine are examined.
    scatter: Option<String>,
}

/// A network card of the machine.
struct Card<'a> {
    machine: &'a Machine<'a>,
    nic: &'a Nic,
    /// The PCI device of the card; `None` for an emulated card, or if `/sys` does not show the device.
    device: Option<&'a PciDevice>,
}

impl<'a> Machine<'a> {
    fn read(root: &'a Root) -> Self {
        let sys = root.at("/sys");
        let gpus = pci::nvidia_gpus(&sys).unwrap_or_default();
        let gpus = gpus.iter().zip(0..);
        let gpus =
            gpus.map(|(address, i)| Gpu::new(i, "").with_pci_facts(&pci::facts(&sys, address)));
        let scatter = std::env::var("MLX5_SCATTER_TO_CQE").unwrap_or_default();
        Self {
            topology: Topology {
                gpus: gpus.collect(),
                ..Topology::read(&sys)
            },
            scatter: root.is_real().then_some(scatter),
            root,
        }
    }

    fn cards(&'a self) -> impl Iterator<Item = Card<'a>> {
        let nics = self.topology.nics.iter();
        nics.map(|nic| Card {
            machine: self,
            nic,
            device: nic
                .pci
                .as_ref()
                .and_then(|address| self.topology.pci.device(address)),
        })
    }
}

impl Card<'_> {
    fn group(&self) -> String {
        format!("{GROUP} {}", self.nic.name)
    }

    /// Returns whether the card uses the mlx5 driver, for which special rules apply.
    fn is_mlx5(&self) -> bool {
        self.device
            .and_then(|device| device.driver.as_deref())
            .is_some_and(|driver| driver == "mlx5_core")
    }

    /// Returns the checks of the card and, if its PCI device is visible, of its slot.
    fn examine(&self) -> Vec<Finding> {
        let directory = format!("{NICS}/{}", self.nic.name);
        let mut findings = table(
            self.group(),
            &directory,
            self,
            &[
                check("firmware", "./fw_ver", firmware),
                check("device file", files::VERBS, files::device),
            ],
        );
        if let Some(device) = self.device {
            let slot = InSlot {
                card: self,
                slot: cards::Card {
                    device,
                    tree: &self.machine.topology.pci,
                },
            };
            findings.extend(slot.examine());
        }
        findings
    }
}

/// A card whose PCI device is visible.
struct InSlot<'a> {
    card: &'a Card<'a>,
    /// The card in the form that the checks of PCIe slots use; FPGA cards use the same checks.
    slot: cards::Card<'a>,
}

impl InSlot<'_> {
    fn link(&self) -> Option<Judgement> {
        Some(self.slot.link())
    }

    fn examine(&self) -> Vec<Finding> {
        let checks = [
            check("link", "./{current,max}_link_{speed,width}", Self::link),
            check("relaxed ordering", "./config", Self::relaxed),
            check("MaxReadReq", "./config", Self::read_size),
            check("distance to GPUs", "./numa_node", Self::distance),
            check("ACS redirect", "./../config", Self::redirect),
            check("interrupts", "./msi_irqs", Self::interrupts),
        ];
        table(self.card.group(), &self.slot.directory(), self, &checks)
    }
}

/// A port of a card.
struct Port<'a> {
    card: &'a Card<'a>,
    port: &'a NicPort,
}

impl Port<'_> {
    /// Returns the group of the findings. If the card has several ports, the group contains the port number.
    fn group(&self) -> String {
        match self.card.nic.ports.len() {
            1 => self.card.group(),
            _ => format!("{} port {}", self.card.group(), self.port.number),
        }
    }

    /// Returns the path of a file of the port.
    fn file(&self, file: &str) -> String {
        format!(
            "{NICS}/{}/ports/{}/{file}",
            self.card.nic.name, self.port.number
        )
    }

    /// Returns the name of the network interface, or a placeholder.
    fn interface(&self) -> &str {
        let mut names = self.port.netdevs.iter();
        names.next().map_or("INTERFACE", String::as_str)
    }

    fn is_ethernet(&self) -> bool {
        self.port.layer == Some(Layer::Ethernet)
    }

    fn examine(&self) -> Vec<Finding> {
        let directory = self.file("");
        let table = |checks: &[_]| {
            let directory = directory.trim_end_matches('/');
            table(self.group(), directory, self, checks)
        };
        let mut findings = table(&[check(
            "state",
            "./{state,phys_state,link_layer}",
            Self::state,
        )]);
        if self.port.is_active() {
            findings.extend(table(&[check("rate", "./rate", Self::rate)]));
        }
        if self.port.is_active() && self.is_ethernet() {
            findings.extend(table(&[
                check("GID table", "./gids", Self::gids),
                check("rdma_cm version", "", Self::cm),
                check("MTU", "", Self::mtu),
                check("PFC", "", Self::pfc),
                check("ECN", "", Self::ecn),
            ]));
        }
        findings
    }
}

/// Returns the findings. `before` contains the counters of the first reading.
pub(super) fn examine(root: &Root, before: &Counters) -> Vec<Finding> {
    judge(&Machine::read(root), before)
}

fn judge(machine: &Machine<'_>, before: &Counters) -> Vec<Finding> {
    let mut findings = table(GROUP, "", machine, &[check("cards", NICS, cards)]);
    if machine.topology.nics.is_empty() {
        return findings;
    }
    let checks = [
        check("providers", files::PROVIDERS, files::provider),
        check("ib_uverbs", files::UVERBS, files::uverbs),
        check("rdma_ucm", files::UCM, files::ucm),
        check("rdma_cm file", "/dev/infiniband/rdma_cm", files::cm),
        check("dma-buf registration", gpus::RELEASE, gpus::registration),
        check("IOMMU translation", gpus::GROUPS, gpus::translation),
        check("on-demand paging", "/boot/config-*", gpus::paging),
        check("MLX5_SCATTER_TO_CQE", "environment", gpus::scatter),
        check("irqbalance", "/proc/*/comm", interrupts::irqbalance),
    ];
    findings.extend(table(GROUP, "", machine, &checks));
    let now = Counters::read(machine.root);
    for card in machine.cards() {
        findings.extend(card.examine());
        for port in &card.nic.ports {
            let port = Port { card: &card, port };
            findings.extend(port.examine());
            findings.extend(before.watched(&now, &port));
        }
    }
    findings
}

/// Lists the RDMA cards, and network cards that could support RDMA.
fn cards(machine: &Machine<'_>) -> Option<Judgement> {
    let nics = &machine.topology.nics;
    let names: Vec<_> = nics.iter().map(|nic| nic.name.as_str()).collect();
    let names = match names.as_slice() {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    // Network cards whose network driver is loaded, but whose RDMA module is not.
    let devices = machine.topology.pci.devices.iter();
    let silent: Vec<_> = devices
        .filter_map(|device| {
            let driver = device.driver.as_deref()?;
            let (_, module) = CAPABLE.iter().find(|(of, _)| *of == driver)?;
            let is_it = |nic: &Nic| nic.pci.as_ref() == Some(&device.address);
            (!nics.iter().any(is_it)).then_some((device.address.as_str(), driver, *module))
        })
        .collect();
    // All cards of NVIDIA support RDMA. Of the other vendors, only some models do.
    let sure = silent.iter().find(|(_, driver, _)| *driver == "mlx5_core");
    Some(match (sure, silent.first()) {
        (Some((address, _, module)), _) => warn(
            names,
            format!(
                "{address} supports RDMA, but its RDMA module is not loaded; `stream` sources and sinks cannot use the card"
            ),
            format!("sudo modprobe {module} ib_uverbs rdma_ucm"),
        ),
        (None, Some((address, _, module))) if nics.is_empty() => ok(names)
            .why(format!("{address} may support RDMA"))
            .fix(format!("sudo modprobe {module}")),
        (None, _) if nics.is_empty() => ok(names).why(
            "no RDMA card found; `stream` sources and sinks can use an emulated NIC (nics = [\"emulated\"])",
        ),
        _ => ok(names),
    })
}

/// Reports the model, the driver and the firmware of a card.
fn firmware(card: &Card<'_>) -> Option<Judgement> {
    let driver = card.device.and_then(|device| device.driver.clone());
    let model: Vec<_> = card.nic.model.clone().into_iter().chain(driver).collect();
    let model = model.join(", ");
    match &card.nic.firmware {
        Some(version) if model.is_empty() => Some(ok(version.as_str())),
        Some(version) => Some(ok(format!("{version} ({model})"))),
        None if card.nic.pci.is_none() => {
            let why = "Linux emulates this card in software; the card works correctly but slowly";
            Some(ok("none").why(why))
        }
        None => None,
    }
}
