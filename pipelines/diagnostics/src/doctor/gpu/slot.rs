//! Checks the GPU's slot: link, bridges above the GPU, BAR1 window and NUMA node.

use super::super::root::list;
use super::{Card, Finding, GIB, MIB, Root, Verdict, is_virtual, nvml, size};
use daq_core::topology::Topology;
use daq_core::topology::pci::{Lanes, Link};

const STATUS: &str = "/proc/self/status";
const PARAMS: &str = "/proc/driver/nvidia/params";
/// Minimum size of the BAR1 window in bytes. A smaller window is too small for a useful ring.
const MIN_WINDOW: u64 = 256 * MIB;
/// A GPU with more memory than this must have a larger BAR1 window, unless the firmware limits the window.
const LARGE_CARD: u64 = 8 * GIB;
const LARGE_WINDOW: u64 = GIB;
/// The window counts as full if less than 1/`FREE_PART` of its size is free.
const FREE_PART: u64 = 10;

pub(super) fn examine(root: &Root, card: &Card) -> Vec<Finding> {
    let is_virtual = is_virtual(root);
    vec![
        link(card, is_virtual),
        slot(card, is_virtual),
        window(root, card),
        node(root, card),
    ]
}

/// Returns the GPU's link as reported in `/sys` or by NVML.
fn known_link(card: &Card) -> Option<Link> {
    card.pci
        .as_ref()
        .and_then(|pci| pci.link)
        .or(card.nvml.and_then(|nvml| nvml.link))
}

/// Returns the number of lanes of the slot; `None` if the port above the GPU is not physical.
fn lanes_of_slot(card: &Card, is_virtual: bool) -> Option<u32> {
    let pci = card.pci.as_ref().filter(|_| !is_virtual)?;
    Some(pci.bridges.first()?.link?.max.width)
}

/// Checks whether lanes that both the GPU and the slot support are not in use.
fn link(card: &Card, is_virtual: bool) -> Finding {
    let of_files = card.pci.as_ref().and_then(|pci| pci.link);
    let from = if of_files.is_none() && card.nvml.is_some_and(|nvml| nvml.link.is_some()) {
        nvml::SOURCE.to_owned()
    } else {
        card.file("{current,max}_link_{speed,width}")
    };
    let finding = card.finding("link", from);
    let Some(Link { current, max }) = known_link(card) else {
        return finding
            .why("this machine does not report the PCIe link; virtual machines often do not");
    };
    let expected = lanes_of_slot(card, is_virtual).map_or(max.width, |slot| slot.min(max.width));
    if current.width < expected {
        return finding
            .read(Verdict::Warn, format!("{current} of {max}"))
            .why(format!(
                "only {} of {expected} lanes are active, so copies reach at most {} % of the possible rate",
                current.width,
                100 * current.width / expected
            ))
            .fix(format!(
                "sudo lspci -vv -s {} | grep -E 'LnkCap|LnkSta'  # then reseat the card and its riser; check the firmware for lanes shared with another slot (bifurcation)",
                card.address
            ));
    }
    if current == max {
        return finding.read(Verdict::Ok, current.to_string());
    }
    let idle = "an idle GPU lowers its link speed and raises it under load";
    let finding = finding.read(Verdict::Ok, format!("{current} of {max}"));
    match (
        current.width < max.width,
        current.generation < max.generation,
    ) {
        (false, _) => finding.why(idle),
        (true, false) => finding.why("the link uses all lanes of the slot"),
        (true, true) => finding.why(format!("the link uses all lanes of the slot; {idle}")),
    }
}

/// Detects the slowest link between the GPU and the processor, except the GPU's own link.
fn slot(card: &Card, is_virtual: bool) -> Finding {
    let bridges = card.pci.as_ref().map_or(&[][..], |pci| &pci.bridges);
    let from = bridges.first().map_or_else(
        || card.file("../max_link_{speed,width}"),
        |bridge| format!("{}/{}/max_link_{{speed,width}}", super::PCI, bridge.address),
    );
    let finding = card.finding("slot", from);
    if is_virtual {
        return finding
            .read(Verdict::Unknown, "virtual machine")
            .why("the host's PCIe slots are not visible in a virtual machine");
    }
    let Some(max) = card
        .pci
        .as_ref()
        .and_then(|pci| pci.link)
        .map(|link| link.max)
    else {
        return finding;
    };
    // A port above a switch may use fewer lanes than it supports. The width of the slot itself is checked together with
    // the GPU's link.
    let narrowest = bridges
        .iter()
        .enumerate()
        .filter_map(|(place, bridge)| {
            let Link { current, max } = bridge.link?;
            let width = if place == 0 {
                max.width
            } else {
                max.width.min(current.width)
            };
            Some((bridge, Lanes { width, ..max }))
        })
        .min_by_key(|(_, lanes)| lanes.rate());
    let Some((bridge, lanes)) = narrowest else {
        return finding;
    };
    if lanes.rate() >= max.rate() {
        return finding.read(Verdict::Ok, lanes.to_string());
    }
    card.finding(
        "slot",
        format!("{}/{}/max_link_{{speed,width}}", super::PCI, bridge.address),
    )
    .read(Verdict::Warn, format!("{lanes} for {max}"))
    .why(format!(
        "the link of {} carries {:.0} GB/s, but the GPU supports {:.0} GB/s, so the link limits every copy",
        bridge.address,
        lanes.rate() as f64 / 1e9,
        max.rate() as f64 / 1e9
    ))
    .fix("sudo dmidecode -t slot  # move the card to a slot that has the card's width and PCIe generation")
}

/// Checks the BAR1 window, through which the processor and other devices access GPU memory.
fn window(root: &Root, card: &Card) -> Finding {
    let of_nvml = card.nvml.and_then(|nvml| nvml.bar1);
    let memory = card.nvml.and_then(|nvml| nvml.memory);
    let (total, used, from) = match (of_nvml, card.pci.as_ref().and_then(|pci| pci.bar1)) {
        (Some((total, used)), _) => (total, used, nvml::SOURCE.to_owned()),
        (None, Some(total)) => (total, 0, card.file("resource")),
        (None, None) => (0, 0, card.file("resource")),
    };
    let finding = card.finding("BAR1", from);
    if total == 0 {
        return finding
            .why("this machine does not report the size of BAR1; virtual machines often do not");
    }
    let large = memory.is_some_and(|memory| memory > LARGE_CARD);
    if total < MIN_WINDOW || (large && total < LARGE_WINDOW) {
        let mut fix =
            "sudo systemctl reboot --firmware-setup  # enable \"Above 4G decoding\" and \"Resizable BAR\""
                .to_owned();
        if root.field(PARAMS, "EnableResizableBar:").as_deref() == Some("0") {
            fix.push_str("; if that does not help, add the line options nvidia NVreg_EnableResizableBar=1 to /etc/modprobe.d/nvidia.conf");
        }
        return finding
            .read(Verdict::Warn, size(total))
            .why("resizable BAR is off; all rings that devices or the CPU write must fit in the BAR1 window")
            .fix(fix);
    }
    let free = total.saturating_sub(used);
    if free < total / FREE_PART {
        return finding
            .read(
                Verdict::Warn,
                format!("{}, {} free", size(total), size(free)),
            )
            .why("mappings of other processes fill the BAR1 window, so mapping a ring may fail")
            .fix(format!(
                "nvidia-smi -i {}  # lists the programs that use the GPU",
                card.address
            ));
    }
    if memory.is_none() && total < LARGE_WINDOW {
        return finding
            .read(Verdict::Unknown, size(total))
            .why("cannot check the BAR1 size, because NVML did not report the memory size of the GPU; a GPU with more than 8 GiB of memory needs a larger BAR1 window");
    }
    finding.read(Verdict::Ok, size(total))
}

/// Compares the GPU's NUMA node with the cores of this process.
fn node(root: &Root, card: &Card) -> Finding {
    let finding = card.finding("NUMA node", format!("{}, {STATUS}", card.file("numa_node")));
    let topology = Topology::read(&root.at("/sys"));
    let Some(id) = card.pci.as_ref().and_then(|pci| pci.node) else {
        return if topology.nodes.len() == 1 {
            finding.read(Verdict::Ok, "the only one")
        } else {
            finding.why(
                "the firmware does not report the GPU's NUMA node; virtual machines often do not",
            )
        };
    };
    let Some(node) = topology.nodes.iter().find(|node| node.id == id) else {
        return finding.read(Verdict::Unknown, id.to_string());
    };
    let cores = root
        .text(&format!("/sys/devices/system/node/node{id}/cpulist"))
        .unwrap_or_default();
    let allowed = root
        .field(STATUS, "Cpus_allowed_list:")
        .map(|text| list(&text));
    let Some(allowed) = allowed.filter(|allowed| !allowed.is_empty()) else {
        return finding.read(Verdict::Unknown, format!("{id}: cores {cores}"));
    };
    if node.cores.is_empty() {
        return finding
            .read(Verdict::Ok, id.to_string())
            .why("this NUMA node has no cores");
    }
    let finding_of = |verdict| {
        finding
            .clone()
            .read(verdict, format!("{id}: cores {cores}"))
    };
    let near = allowed
        .iter()
        .filter(|core| node.cores.contains(core))
        .count();
    if near == 0 {
        finding_of(Verdict::Warn)
            .why("this process cannot use any core of the GPU's NUMA node, so every copy crosses the link between sockets")
            .fix(format!(
                "taskset -c {cores} daq run …  # CPUAffinity={cores} in a systemd unit"
            ))
    } else if near < allowed.len() {
        finding_of(Verdict::Ok).why(format!(
            "pin the threads of this GPU's rings to these cores; {near} of this process's {} cores are on this node",
            allowed.len()
        ))
    } else {
        finding_of(Verdict::Ok)
    }
}
