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
use super::root::Root;
use super::{Finding, Verdict};
use daq_core::topology::nic::{Nic, NicPort};
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

    /// Creates a finding about a file of the card.
    fn finding(&self, name: &'static str, file: &str) -> Finding {
        Finding::new(
            self.group(),
            name,
            format!("{NICS}/{}/{file}", self.nic.name),
        )
    }

    /// Creates a finding about a port. If the card has several ports, the group of the finding contains the port
    /// number.
    fn of_port(&self, port: &NicPort, name: &'static str, from: impl Into<String>) -> Finding {
        let group = if self.nic.ports.len() == 1 {
            self.group()
        } else {
            format!("{} port {}", self.group(), port.number)
        };
        Finding::new(group, name, from)
    }

    /// Returns the path of a file of the port.
    fn port_file(&self, port: &NicPort, file: &str) -> String {
        format!("{NICS}/{}/ports/{}/{file}", self.nic.name, port.number)
    }

    /// Returns whether the card uses the mlx5 driver, for which special rules apply.
    fn is_mlx5(&self) -> bool {
        self.device
            .and_then(|device| device.driver.as_deref())
            .is_some_and(|driver| driver == "mlx5_core")
    }
}

/// Returns the findings. `before` contains the counters of the first reading.
pub(super) fn examine(root: &Root, before: &Counters) -> Vec<Finding> {
    let machine = Machine::read(root);
    judge(&machine, before)
}

fn judge(machine: &Machine<'_>, before: &Counters) -> Vec<Finding> {
    let mut findings = vec![cards(machine)];
    if machine.topology.nics.is_empty() {
        return findings;
    }
    findings.extend(files::examine(machine));
    findings.extend(gpus::examine(machine));
    findings.extend(interrupts::balance(machine));
    let now = Counters::read(machine.root);
    for card in machine.cards() {
        findings.push(firmware(&card));
        findings.push(files::device(&card));
        findings.extend(slot::examine(&card));
        findings.extend(interrupts::examine(&card));
        for port in &card.nic.ports {
            findings.extend(port::examine(&card, port));
            findings.extend(flow::examine(&card, port));
            findings.extend(before.watched(&now, &card, port));
        }
    }
    findings
}

/// Lists the RDMA cards, and network cards that could support RDMA.
fn cards(machine: &Machine<'_>) -> Finding {
    let finding = Finding::new(GROUP, "cards", NICS);
    let nics = &machine.topology.nics;
    let names: Vec<_> = nics.iter().map(|nic| nic.name.as_str()).collect();
    let names = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    // Network cards whose network driver is loaded, but whose RDMA module is not.
    let silent: Vec<_> = machine
        .topology
        .pci
        .devices
        .iter()
        .filter_map(|device| {
            let driver = device.driver.as_deref()?;
            let (_, module) = CAPABLE.iter().find(|(of, _)| *of == driver)?;
            let is_listed = nics
                .iter()
                .any(|nic| nic.pci.as_ref() == Some(&device.address));
            (!is_listed).then_some((device.address.as_str(), driver, *module))
        })
        .collect();
    // All cards of NVIDIA support RDMA. Of the other vendors, only some models do.
    let sure = silent.iter().find(|(_, driver, _)| *driver == "mlx5_core");
    match (sure, silent.first()) {
        (Some((address, _, module)), _) => finding
            .read(Verdict::Warn, names)
            .why(format!(
                "{address} supports RDMA, but its RDMA module is not loaded; `rdma` sources and sinks cannot use the card"
            ))
            .fix(format!("sudo modprobe {module} ib_uverbs rdma_ucm")),
        (None, Some((address, _, module))) if nics.is_empty() => finding
            .read(Verdict::Ok, names)
            .why(format!("{address} may support RDMA"))
            .fix(format!("sudo modprobe {module}")),
        (None, _) if nics.is_empty() => finding
            .read(Verdict::Ok, names)
            .why("no RDMA card found; `rdma` sources and sinks can use an emulated NIC (nics = [\"emulated\"])"),
        _ => finding.read(Verdict::Ok, names),
    }
}

/// Reports the model, the driver and the firmware of a card.
fn firmware(card: &Card<'_>) -> Finding {
    let finding = card.finding("firmware", "fw_ver");
    let driver = card.device.and_then(|device| device.driver.clone());
    let what: Vec<_> = card.nic.model.clone().into_iter().chain(driver).collect();
    let what = what.join(", ");
    match &card.nic.firmware {
        Some(version) if what.is_empty() => finding.read(Verdict::Ok, version.as_str()),
        Some(version) => finding.read(Verdict::Ok, format!("{version} ({what})")),
        None if card.nic.pci.is_none() => finding
            .read(Verdict::Ok, "none")
            .why("Linux emulates this card in software; the card works correctly but slowly"),
        None => finding,
    }
}

/// Returns the card in the form that the checks of PCIe slots use; FPGA cards use the same checks.
fn in_slot<'a>(card: &'a Card<'a>) -> Option<cards::Card<'a>> {
    Some(cards::Card {
        name: card.group(),
        device: card.device?,
        tree: &card.machine.topology.pci,
    })
}
