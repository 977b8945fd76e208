//! Checks which cores handle a card's interrupts, and whether irqbalance moves them.

use super::{InSlot, Machine};
use crate::doctor::Status;
use crate::doctor::check::{Judgement, not_applicable, ok, warn};
use crate::doctor::root::list;
use std::collections::BTreeMap;

const INTERRUPTS: &str = "/proc/interrupts";

impl InSlot<'_> {
    /// Checks on which NUMA node the interrupts of the card are handled. Not applicable if the machine has only one node.
    pub(super) fn interrupts(&self) -> Option<Judgement> {
        let machine = self.card.machine;
        let nodes = &machine.topology.nodes;
        let node = nodes
            .iter()
            .find(|node| Some(node.id) == self.slot.device.node);
        let Some(node) = node.filter(|node| nodes.len() > 1 && !node.cores.is_empty()) else {
            return Some(not_applicable());
        };
        let root = machine.root;
        let directory = format!("{}/msi_irqs", self.slot.directory());
        let fired = fired(&root.text(INTERRUPTS).unwrap_or_default());
        let cores = |number: u32| {
            let at = format!("/proc/irq/{number}");
            let cores = root
                .text(&format!("{at}/effective_affinity_list"))
                .filter(|text| !text.is_empty())
                .or_else(|| root.text(&format!("{at}/smp_affinity_list")));
            list(&cores.unwrap_or_default())
        };
        let names = root.names(&directory);
        let numbers = names.iter().filter_map(|name| name.parse::<u32>().ok());
        let handled: Vec<_> = numbers
            // The affinity of an interrupt that has never fired is not meaningful.
            .filter(|number| fired.get(number).is_some_and(|count| *count > 0))
            .map(cores)
            .filter(|cores| !cores.is_empty())
            .collect();
        let is_remote = |cores: &&Vec<usize>| !cores.iter().any(|core| node.cores.contains(core));
        let (all, remote) = (handled.len(), handled.iter().filter(is_remote).count());
        let cores = root.text(&format!("/sys/devices/system/node/node{}/cpulist", node.id));
        Some(match (all, remote) {
            (0, _) => Judgement::new(Status::Unknown, "no interrupt has occurred yet"),
            (_, 0) => ok(format!("{all} on cores of node {}", node.id)),
            _ => warn(
                format!("{remote} of {all} on cores of other nodes than {}", node.id),
                "each completion that a thread waits for crosses the link between sockets",
                format!(
                    "for i in $(ls {directory}); do echo {} | sudo tee /proc/irq/$i/smp_affinity_list; done",
                    cores.unwrap_or_default()
                ),
            ),
        })
    }
}

/// Returns the number of times that each interrupt occurred, summed over all cores.
pub(super) fn fired(text: &str) -> BTreeMap<u32, u64> {
    let mut lines = text.lines();
    let cores = lines
        .next()
        .map_or(0, |head| head.split_whitespace().count());
    let line = |line: &str| {
        let (number, rest) = line.split_once(':')?;
        let counts = rest.split_whitespace().take(cores);
        let counts = counts.filter_map(|count| count.parse::<u64>().ok());
        let sum = counts.fold(0_u64, u64::saturating_add);
        Some((number.trim().parse().ok()?, sum))
    };
    lines.filter_map(line).collect()
}

/// Checks whether irqbalance is running. Not applicable if processes are not visible.
pub(super) fn irqbalance(machine: &Machine<'_>) -> Option<Judgement> {
    let root = machine.root;
    let mut processes = root.names("/proc");
    processes.retain(|name| name.parse::<u32>().is_ok());
    let is_it = |process: &String| {
        root.text(&format!("/proc/{process}/comm"))
            .is_some_and(|name| name == "irqbalance")
    };
    Some(if processes.is_empty() {
        not_applicable()
    } else if processes.iter().any(is_it) {
        ok("running")
            .why("irqbalance moves interrupts away from the cores they were pinned to")
            .fix("sudo systemctl disable --now irqbalance")
    } else {
        ok("not running")
    })
}
