//! Checks the GPU's slot: link, bridges above the GPU, BAR1 window and NUMA node.

use super::{Card, GIB, MIB, PCI, SOURCE, size};
use crate::doctor::Status;
use crate::doctor::cards::SLOW_SLOT;
use crate::doctor::check::{Judgement, ok, unknown, unreadable, warn};
use crate::doctor::root::list;
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

/// Returns the GPU's link as reported in `/sys` or by NVML.
fn known_link(card: &Card) -> Option<Link> {
    card.pci
        .as_ref()
        .and_then(|pci| pci.link)
        .or(card.nvml.and_then(|nvml| nvml.link))
}

/// Returns the number of lanes of the slot; `None` if the port above the GPU is not physical.
fn lanes_of_slot(card: &Card<'_>) -> Option<u32> {
    let pci = card.pci.as_ref().filter(|_| !card.is_virtual())?;
    Some(pci.bridges.first()?.link?.max.width)
}

/// Checks whether lanes that both the GPU and the slot support are not in use.
pub(super) fn link(card: &Card<'_>) -> Option<Judgement> {
    let Some(Link { current, max }) = known_link(card) else {
        let why = "this machine does not report the PCIe link; virtual machines often do not";
        return Some(unreadable().why(why));
    };
    let expected = lanes_of_slot(card).map_or(max.width, |slot| slot.min(max.width));
    let idle = "an idle GPU lowers its link speed and raises it under load";
    let judged = if current.width < expected {
        warn(
            format!("{current} of {max}"),
            format!(
                "only {} of {expected} lanes are active, so copies reach at most {} % of the possible rate",
                current.width,
                100 * current.width / expected
            ),
            format!(
                "sudo lspci -vv -s {} | grep -E 'LnkCap|LnkSta'  # then reseat the card and its riser; check the firmware for lanes shared with another slot (bifurcation)",
                card.address
            ),
        )
    } else if current == max {
        ok(current.to_string())
    } else {
        let is_slow = current.generation < max.generation;
        let why = match (current.width < max.width, is_slow) {
            (false, _) => idle.to_owned(),
            (true, false) => "the link uses all lanes of the slot".to_owned(),
            (true, true) => format!("the link uses all lanes of the slot; {idle}"),
        };
        ok(format!("{current} of {max}")).why(why)
    };
    let is_in_files = card.pci.as_ref().is_some_and(|pci| pci.link.is_some());
    Some(if is_in_files {
        judged
    } else {
        judged.from(SOURCE)
    })
}

/// Detects the slowest link between the GPU and the processor, except the GPU's own link.
pub(super) fn slot(card: &Card<'_>) -> Option<Judgement> {
    let bridges = card.pci.as_ref().map_or(&[][..], |pci| &pci.bridges);
    let max = card.pci.as_ref().and_then(|pci| Some(pci.link?.max));
    // A port above a switch may use fewer lanes than it supports. The width of the slot itself is checked together with
    // the GPU's link.
    let narrowest = bridges
        .iter()
        .enumerate()
        .filter_map(|(i, bridge)| {
            let Link { current, max } = bridge.link?;
            let width = if i == 0 {
                max.width
            } else {
                max.width.min(current.width)
            };
            Some((bridge, Lanes { width, ..max }))
        })
        .min_by_key(|(_, lanes)| lanes.rate());
    let (judged, bridge) = match (max, narrowest) {
        _ if card.is_virtual() => {
            let why = "the host's PCIe slots are not visible in a virtual machine";
            (unknown("virtual machine", why), bridges.first())
        }
        (Some(max), Some((bridge, lanes))) if lanes.rate() < max.rate() => {
            let why = format!(
                "the link of {} carries {:.0} GB/s, but the GPU supports {:.0} GB/s, so the link limits every copy",
                bridge.address,
                lanes.rate() as f64 / 1e9,
                max.rate() as f64 / 1e9
            );
            let read = format!("{lanes} for {max}");
            (warn(read, why, SLOW_SLOT), Some(bridge))
        }
        (Some(_), Some((_, lanes))) => (ok(lanes.to_string()), bridges.first()),
        _ => (unreadable(), bridges.first()),
    };
    Some(match bridge {
        Some(bridge) => judged.from(format!("{PCI}/{}/max_link_{{speed,width}}", bridge.address)),
        None => judged,
    })
}

/// Checks the BAR1 window, through which the processor and other devices access GPU memory.
pub(super) fn window(card: &Card<'_>) -> Option<Judgement> {
    let of_nvml = card.nvml.and_then(|nvml| nvml.bar1);
    let memory = card.nvml.and_then(|nvml| nvml.memory);
    let of_pci = card.pci.as_ref().and_then(|pci| pci.bar1);
    let (total, used) = of_nvml.unwrap_or((of_pci.unwrap_or(0), 0));
    let free = total.saturating_sub(used);
    let judged = if total == 0 {
        unreadable()
            .why("this machine does not report the size of BAR1; virtual machines often do not")
    } else if total < MIN_WINDOW || (memory > Some(LARGE_CARD) && total < LARGE_WINDOW) {
        let is_disabled = card.root.field(PARAMS, "EnableResizableBar:").as_deref() == Some("0");
        let option = if is_disabled {
            "; if that does not help, add the line options nvidia NVreg_EnableResizableBar=1 to /etc/modprobe.d/nvidia.conf"
        } else {
            ""
        };
        warn(
            size(total),
            "resizable BAR is off; all rings that devices or the CPU write must fit in the BAR1 window",
            format!(
                "sudo systemctl reboot --firmware-setup  # enable \"Above 4G decoding\" and \"Resizable BAR\"{option}"
            ),
        )
    } else if free < total / FREE_PART {
        warn(
            format!("{}, {} free", size(total), size(free)),
            "mappings of other processes fill the BAR1 window, so mapping a ring may fail",
            format!(
                "nvidia-smi -i {}  # lists the programs that use the GPU",
                card.address
            ),
        )
    } else if memory.is_none() && total < LARGE_WINDOW {
        let why = "cannot check the BAR1 size, because NVML did not report the memory size of the GPU; a GPU with more than 8 GiB of memory needs a larger BAR1 window";
        unknown(size(total), why)
    } else {
        ok(size(total))
    };
    Some(match of_nvml {
        Some(_) => judged.from(SOURCE),
        None => judged,
    })
}

/// Compares the GPU's NUMA node with the cores of this process.
pub(super) fn node(card: &Card<'_>) -> Option<Judgement> {
    let root = card.root;
    let topology = Topology::read(&root.at("/sys"));
    let Some(id) = card.pci.as_ref().and_then(|pci| pci.node) else {
        return Some(if topology.nodes.len() == 1 {
            ok("the only one")
        } else {
            let why =
                "the firmware does not report the GPU's NUMA node; virtual machines often do not";
            unreadable().why(why)
        });
    };
    let Some(node) = topology.nodes.iter().find(|node| node.id == id) else {
        return Some(Judgement::new(Status::Unknown, id.to_string()));
    };
    let cores = root.text(&format!("/sys/devices/system/node/node{id}/cpulist"));
    let cores = cores.unwrap_or_default();
    let read = format!("{id}: cores {cores}");
    let allowed = root.field(STATUS, "Cpus_allowed_list:");
    let allowed = allowed.map(|text| list(&text)).unwrap_or_default();
    let near = allowed.iter().filter(|core| node.cores.contains(core));
    Some(match near.count() {
        _ if allowed.is_empty() => Judgement::new(Status::Unknown, read),
        _ if node.cores.is_empty() => ok(id.to_string()).why("this NUMA node has no cores"),
        0 => warn(
            read,
            "this process cannot use any core of the GPU's NUMA node, so every copy crosses the link between sockets",
            format!("taskset -c {cores} daq run …  # CPUAffinity={cores} in a systemd unit"),
        ),
        near if near < allowed.len() => ok(read).why(format!(
            "pin the threads of this GPU's rings to these cores; {near} of this process's {} cores are on this node",
            allowed.len()
        )),
        _ => ok(read),
    })
}
