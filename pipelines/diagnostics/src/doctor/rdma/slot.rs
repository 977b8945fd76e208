//! Checks the card's slot: link, distance to GPUs, NUMA node and PCIe device control.

use super::{Card, Finding, Verdict, in_slot};
use daq_core::topology::tree::PciDevice;
use daq_core::topology::{Gpu, Relation};

/// Offset of the pointer to the capability list. The next constant is the ID of the PCI Express capability (PCI Local
/// Bus Specification; PCI Express Base Specification 7.5.3).
const FIRST_CAPABILITY: usize = 0x34;
const EXPRESS: u8 = 0x10;
/// Offset of the Device Control register from the start of the capability.
const DEVICE_CONTROL: usize = 8;
const RELAXED: u16 = 1 << 4;
const MAX_READ_SHIFT: u16 = 12;
/// Maximum number of capabilities in a configuration space.
const MAX_CAPABILITIES: usize = 48;
/// Minimum size of read requests in bytes that is sufficient for the full rate of a 100 Gbit/s link.
const MIN_READ_BYTES: u32 = 512;
const READ_WANTED: u32 = 4096;

pub(super) fn examine(card: &Card<'_>) -> Vec<Finding> {
    let (Some(device), Some(slot)) = (card.device, in_slot(card)) else {
        return Vec::new();
    };
    let control = control(card, device);
    let mut findings = vec![slot.link(), relaxed(card, control), read(card, control)];
    findings.extend(gpus(card, device));
    findings.extend(redirect(card, device));
    findings
}

/// Returns the GPU's PCI device.
fn placed<'a>(card: &'a Card<'_>, gpu: &'a Gpu) -> Option<&'a PciDevice> {
    let tree = &card.machine.topology.pci;
    tree.device(gpu.pci.as_deref()?)
}

/// Reports the distance to each GPU. A card that has no GPU on its own CPU socket writes to GPUs slowly.
fn gpus(card: &Card<'_>, device: &PciDevice) -> Option<Finding> {
    let topology = &card.machine.topology;
    let distances: Vec<_> = topology
        .gpus
        .iter()
        .filter_map(|gpu| {
            let relation = topology.nic_relation(card.nic, gpu.ordinal);
            let distance = topology.distance(card.nic.pci.as_deref()?, gpu.ordinal);
            Some((relation, format!("{distance} to {}", gpu.pci.as_deref()?)))
        })
        .collect();
    let nearest = distances.iter().map(|(relation, _)| *relation).min()?;
    let read: Vec<_> = distances
        .iter()
        .map(|(_, distance)| distance.as_str())
        .collect();
    let read = read.join(", ");
    let finding = in_slot(card)?.finding("distance to GPUs", "numa_node");
    Some(match nearest {
        Relation::Sys => {
            let node = device
                .node
                .map_or_else(String::new, |node| format!(" {node}"));
            finding
                .read(Verdict::Warn, read)
                .why(format!(
                    "no GPU is on the card's socket{node}; writes would cross the link between sockets, so daq uses the staged path"
                ))
                .fix("sudo dmidecode -t slot  # move the card to a slot of the GPU's socket, preferably below the same switch")
        }
        Relation::Unknown => finding
            .read(Verdict::Unknown, read)
            .why("the virtual machine or the firmware does not report where the card and the GPUs are connected"),
        _ => finding
            .read(Verdict::Ok, read)
            .why("`daq topo` shows the resulting path"),
    })
}

/// Detects bridges between the card and a GPU below the same switch that redirect writes to the processor.
fn redirect(card: &Card<'_>, device: &PciDevice) -> Option<Finding> {
    let topology = &card.machine.topology;
    let tree = &topology.pci;
    let ours = tree.bridges(device);
    // The nearest GPU below a common switch, and the bridges between the card and that GPU.
    let mut routes: Vec<Vec<&PciDevice>> = topology
        .gpus
        .iter()
        .filter_map(|gpu| {
            let theirs = tree.bridges(placed(card, gpu)?);
            let common = *ours.iter().find(|bridge| theirs.contains(bridge))?;
            let sides = [&ours, &theirs].into_iter();
            let apart = sides.flat_map(|side| {
                let bridges = side.iter().copied();
                bridges.take_while(move |bridge| *bridge != common)
            });
            Some(apart.collect())
        })
        .collect();
    routes.sort_by_key(Vec::len);
    let apart = routes.into_iter().next()?;
    let finding = in_slot(card)?.finding("ACS redirect", "../config");
    let redirecting: Vec<_> = apart
        .iter()
        .filter(|bridge| bridge.acs.redirects() == Some(true))
        .collect();
    if let Some(first) = redirecting.first() {
        let commands = redirecting
            .iter()
            .map(|bridge| format!("sudo setpci -s {} ECAP_ACS+6.w=0000", bridge.address));
        return Some(
            finding
                .read(
                    Verdict::Warn,
                    format!("{} redirects writes ({})", first.address, first.acs.bits()),
                )
                .why(
                    "the card's writes to the nearest GPU pass through the processor instead of only through the switch",
                )
                .fix(format!(
                    "{}  # until the next boot; do not use if a virtual machine needs ACS",
                    commands.collect::<Vec<_>>().join(" && ")
                )),
        );
    }
    Some(
        if apart.iter().any(|bridge| bridge.acs.redirects().is_none()) {
            finding
                .why("only root can read the PCIe settings")
                .fix("sudo daq doctor")
        } else {
            finding.read(
                Verdict::Ok,
                "no bridge redirects writes on the path to the nearest GPU",
            )
        },
    )
}

/// Returns the PCIe Device Control register; `None` if it cannot be read.
fn control(card: &Card<'_>, device: &PciDevice) -> Option<u16> {
    let path = format!("/sys/bus/pci/devices/{}/config", device.address);
    device_control(&card.machine.root.bytes(&path)?)
}

/// Reads the Device Control register from the bytes of a configuration space. Returns `None` if the register is not in
/// these bytes. Users other than root can read only the first 64 bytes.
pub(super) fn device_control(space: &[u8]) -> Option<u16> {
    let byte = |at: usize| space.get(at).copied();
    let mut at = usize::from(byte(FIRST_CAPABILITY)? & !3);
    for _ in 0..MAX_CAPABILITIES {
        // The first 64 bytes are the header. A pointer into the header ends the list.
        if at < 0x40 {
            return None;
        }
        if byte(at)? == EXPRESS {
            let low = byte(at + DEVICE_CONTROL)?;
            return Some(u16::from_le_bytes([low, byte(at + DEVICE_CONTROL + 1)?]));
        }
        at = usize::from(byte(at + 1)? & !3);
    }
    None
}

/// Creates a finding about the Device Control register.
fn of_control(card: &Card<'_>, name: &'static str) -> Finding {
    let address = card.device.map_or("", |device| device.address.as_str());
    Finding::new(
        card.group(),
        name,
        format!("/sys/bus/pci/devices/{address}/config"),
    )
}

/// Checks whether the card may reorder its writes (relaxed ordering).
fn relaxed(card: &Card<'_>, control: Option<u16>) -> Finding {
    let finding = of_control(card, "relaxed ordering");
    let address = card.device.map_or("", |device| device.address.as_str());
    match control {
        None => finding.why("only root can read the PCIe settings").fix("sudo daq doctor"),
        Some(control) if control & RELAXED != 0 => finding.read(Verdict::Ok, "allowed"),
        Some(_) => finding
            .read(Verdict::Warn, "not allowed")
            .why("the card's writes are strictly ordered, so many processors (especially AMD's) do not reach the card's rate; this matters only if `relaxed_ordering` is set in the configuration")
            .fix(format!(
                "sudo setpci -s {address} CAP_EXP+8.w=0010:0010  # until the next boot; to keep the value, set it in the firmware"
            )),
    }
}

/// Checks the maximum size of the card's read requests, which limits its send rate.
fn read(card: &Card<'_>, control: Option<u16>) -> Finding {
    let finding = of_control(card, "MaxReadReq");
    let address = card.device.map_or("", |device| device.address.as_str());
    let Some(control) = control else {
        return finding
            .why("only root can read the PCIe settings")
            .fix("sudo daq doctor");
    };
    let bytes = 128_u32 << (control >> MAX_READ_SHIFT & 7);
    let shown = format!("{bytes} B");
    let fix =
        format!("sudo setpci -s {address} CAP_EXP+8.w=5000:7000  # 4096 B, until the next boot");
    if bytes < MIN_READ_BYTES {
        finding
            .read(Verdict::Warn, shown)
            .why("the card reads outgoing data in small requests and cannot send at its full rate")
            .fix(fix)
    } else if bytes < READ_WANTED {
        finding.read(Verdict::Ok, shown).fix(fix)
    } else {
        finding.read(Verdict::Ok, shown)
    }
}
