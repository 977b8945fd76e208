//! Checks which cores handle a card's interrupts, and whether irqbalance moves them.

use super::super::root::list;
use super::{Card, Finding, GROUP, Machine, Verdict, in_slot};
use std::collections::BTreeMap;

const INTERRUPTS: &str = "/proc/interrupts";

/// Returns the finding; `None` if the machine has only one NUMA node, or if Linux does not show the card's interrupts.
pub(super) fn examine(card: &Card<'_>) -> Option<Finding> {
    let machine = card.machine;
    let device = card.device?;
    let nodes = &machine.topology.nodes;
    let node = nodes.iter().find(|node| Some(node.id) == device.node)?;
    if nodes.len() < 2 || node.cores.is_empty() {
        return None;
    }
    let root = machine.root;
    let directory = format!("/sys/bus/pci/devices/{}/msi_irqs", device.address);
    let numbers = root.names(&directory);
    let fired = fired(&root.text(INTERRUPTS).unwrap_or_default());
    let finding = in_slot(card)?.finding("interrupts", "msi_irqs");
    let mut seen = 0;
    let mut far = Vec::new();
    for number in numbers.iter().filter_map(|name| name.parse::<u32>().ok()) {
        // The affinity of an interrupt that has never fired is not meaningful.
        if fired.get(&number).is_none_or(|count| *count == 0) {
            continue;
        }
        let at = format!("/proc/irq/{number}");
        let cores = root
            .text(&format!("{at}/effective_affinity_list"))
            .filter(|text| !text.is_empty())
            .or_else(|| root.text(&format!("{at}/smp_affinity_list")));
        let cores = list(&cores.unwrap_or_default());
        if cores.is_empty() {
            continue;
        }
        seen += 1;
        if !cores.iter().any(|core| node.cores.contains(core)) {
            far.push(number);
        }
    }
    if seen == 0 {
        return Some(finding.read(Verdict::Unknown, "no interrupt has occurred yet"));
    }
    let cores = root
        .text(&format!("/sys/devices/system/node/node{}/cpulist", node.id))
        .unwrap_or_default();
    if far.is_empty() {
        return Some(finding.read(Verdict::Ok, format!("{seen} on cores of node {}", node.id)));
    }
    Some(
        finding
            .read(
                Verdict::Warn,
                format!("{} of {seen} on cores of other nodes than {}", far.len(), node.id),
            )
            .why("each completion that a thread waits for crosses the link between sockets")
            .fix(format!(
                "for i in $(ls {directory}); do echo {cores} | sudo tee /proc/irq/$i/smp_affinity_list; done"
            )),
    )
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

/// Checks whether irqbalance is running; returns `None` if processes are not visible.
pub(super) fn balance(machine: &Machine<'_>) -> Option<Finding> {
    let root = machine.root;
    let mut processes = root
        .names("/proc")
        .into_iter()
        .filter(|name| name.parse::<u32>().is_ok())
        .peekable();
    processes.peek()?;
    let is_running = processes.any(|process| {
        root.text(&format!("/proc/{process}/comm"))
            .is_some_and(|name| name == "irqbalance")
    });
    let finding = Finding::new(GROUP, "irqbalance", "/proc/*/comm");
    Some(if is_running {
        finding
            .read(Verdict::Ok, "running")
            .why("irqbalance moves interrupts away from the cores they were pinned to")
            .fix("sudo systemctl disable --now irqbalance")
    } else {
        finding.read(Verdict::Ok, "not running")
    })
}
