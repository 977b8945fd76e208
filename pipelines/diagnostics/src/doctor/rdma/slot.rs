//! Checks the card's slot: link, distance to GPUs, NUMA node and PCIe device control.

use super::InSlot;
use crate::doctor::cards::needs_root;
use crate::doctor::check::{Judgement, not_applicable, ok, unknown, warn};
use daq_core::topology::Relation;
use daq_core::topology::tree::PciDevice;

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

impl InSlot<'_> {
    /// Reports the distance to each GPU. A card that has no GPU on its own CPU socket writes to GPUs slowly.
    pub(super) fn distance(&self) -> Option<Judgement> {
        let (topology, nic) = (&self.card.machine.topology, self.card.nic);
        let distances = topology.gpus.iter().filter_map(|gpu| {
            let relation = topology.nic_relation(nic, gpu.ordinal);
            let distance = topology.distance(nic.pci.as_deref()?, gpu.ordinal);
            Some((relation, format!("{distance} to {}", gpu.pci.as_deref()?)))
        });
        let (relations, read): (Vec<_>, Vec<_>) = distances.unzip();
        let read = read.join(", ");
        Some(match relations.into_iter().min() {
            None => not_applicable(),
            Some(Relation::Sys) => {
                let node = self.slot.device.node;
                let node = node.map_or_else(String::new, |node| format!(" {node}"));
                let why = format!(
                    "no GPU is on the card's socket{node}; writes would cross the link between sockets, so daq uses the staged path"
                );
                warn(
                    read,
                    why,
                    "sudo dmidecode -t slot  # move the card to a slot of the GPU's socket, preferably below the same switch",
                )
            }
            Some(Relation::Unknown) => {
                let why = "the virtual machine or the firmware does not report where the card and the GPUs are connected";
                unknown(read, why)
            }
            Some(_) => ok(read).why("`daq topo` shows the resulting path"),
        })
    }

    /// Returns the bridges between the card and the nearest GPU below a common switch; `None` if there is no such GPU.
    fn route(&self) -> Option<Vec<&PciDevice>> {
        let tree = self.slot.tree;
        let ours = tree.bridges(self.slot.device);
        let routes = self.card.machine.topology.gpus.iter().filter_map(|gpu| {
            let theirs = tree.bridges(tree.device(gpu.pci.as_deref()?)?);
            let common = *ours.iter().find(|bridge| theirs.contains(bridge))?;
            let sides = [&ours, &theirs].into_iter();
            let route = sides.flat_map(|side| {
                let bridges = side.iter().copied();
                bridges.take_while(move |bridge| *bridge != common)
            });
            Some(route.collect::<Vec<_>>())
        });
        routes.min_by_key(Vec::len)
    }

    /// Detects bridges between the card and a GPU below the same switch that redirect writes to the processor.
    pub(super) fn redirect(&self) -> Option<Judgement> {
        let Some(route) = self.route() else {
            return Some(not_applicable());
        };
        let bridges = route.iter();
        let redirecting: Vec<_> = bridges
            .filter(|bridge| bridge.acs.redirects() == Some(true))
            .collect();
        let Some(first) = redirecting.first() else {
            let is_unknown = route.iter().any(|bridge| bridge.acs.redirects().is_none());
            return Some(if is_unknown {
                needs_root()
            } else {
                ok("no bridge redirects writes on the path to the nearest GPU")
            });
        };
        let commands = redirecting
            .iter()
            .map(|bridge| format!("sudo setpci -s {} ECAP_ACS+6.w=0000", bridge.address));
        Some(warn(
            format!("{} redirects writes ({})", first.address, first.acs.bits()),
            "the card's writes to the nearest GPU pass through the processor instead of only through the switch",
            format!(
                "{}  # until the next boot; do not use if a virtual machine needs ACS",
                commands.collect::<Vec<_>>().join(" && ")
            ),
        ))
    }

    /// Returns the PCIe Device Control register; `None` if it cannot be read.
    fn control(&self) -> Option<u16> {
        let path = format!("{}/config", self.slot.directory());
        device_control(&self.card.machine.root.bytes(&path)?)
    }

    /// Checks whether the card may reorder its writes (relaxed ordering).
    pub(super) fn relaxed(&self) -> Option<Judgement> {
        Some(match self.control() {
            None => needs_root(),
            Some(control) if control & RELAXED != 0 => ok("allowed"),
            Some(_) => warn(
                "not allowed",
                "the card's writes are strictly ordered, so many processors (especially AMD's) do not reach the card's rate; this matters only if `relaxed_ordering` is set in the configuration",
                format!(
                    "sudo setpci -s {} CAP_EXP+8.w=0010:0010  # until the next boot; to keep the value, set it in the firmware",
                    self.slot.device.address
                ),
            ),
        })
    }

    /// Checks the maximum size of the card's read requests, which limits its send rate.
    pub(super) fn read_size(&self) -> Option<Judgement> {
        let Some(control) = self.control() else {
            return Some(needs_root());
        };
        let bytes = 128_u32 << (control >> MAX_READ_SHIFT & 7);
        let read = format!("{bytes} B");
        let fix = format!(
            "sudo setpci -s {} CAP_EXP+8.w=5000:7000  # 4096 B, until the next boot",
            self.slot.device.address
        );
        Some(match bytes {
            ..MIN_READ_BYTES => {
                let why = "the card reads outgoing data in small requests and cannot send at its full rate";
                warn(read, why, fix)
            }
            MIN_READ_BYTES..READ_WANTED => ok(read).fix(fix),
            _ => ok(read),
        })
    }
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
