//! A device and a GPU in the tree: how far apart, what is between them, what speaks against a direct path.

use super::super::tree::{Hop, Iommu, PciDevice, PciTree};
use super::super::{Gpu, Topology};
use super::{P2pObstacle, PeerAccess, Relation, slow};
use crate::gpu::Writer;
use crate::units::ByteSize;

/// A device and a GPU in the tree.
pub(super) struct Pair<'a> {
    tree: &'a PciTree,
    device: &'a PciDevice,
    card: &'a PciDevice,
    direction: PeerAccess,
    /// Whether a module is loaded by which network cards are told of GPU memory without a dma-buf.
    peer_memory: bool,
    pub(super) relation: Relation,
    /// The switch or port that both are below.
    common: Option<&'a PciDevice>,
    /// The bridges below it.
    apart: Vec<&'a PciDevice>,
    /// Whether a driver of its own holds the device; else programs drive it, or will once it is given to them.
    is_own: bool,
    /// Whether programs drive it, its addresses translated.
    is_translated: bool,
}

impl<'a> Pair<'a> {
    pub(super) fn new(
        topology: &'a Topology,
        device: &'a PciDevice,
        card: &'a PciDevice,
        direction: PeerAccess,
    ) -> Self {
        let tree = &topology.pci;
        let (ours, theirs) = (tree.bridges(device), tree.bridges(card));
        let common = ours.iter().find(|bridge| theirs.contains(bridge)).copied();
        let below = |bridges: &[&'a PciDevice]| -> Vec<&'a PciDevice> {
            let bridges = bridges.iter().copied();
            bridges
                .take_while(|bridge| Some(*bridge) != common)
                .collect()
        };
        let (ours_apart, theirs_apart) = (below(&ours), below(&theirs));
        let is_flat = ours.is_empty() || theirs.is_empty();
        let relation = if tree.processor.is_virtual && is_flat {
            Relation::Unknown
        } else if common.is_some() {
            if ours_apart.len() <= 1 && theirs_apart.len() <= 1 {
                Relation::Pix
            } else {
                Relation::Pxb
            }
        } else if device.host == card.host {
            Relation::Phb
        } else {
            match (device.node, card.node) {
                (Some(a), Some(b)) if a == b => Relation::Node,
                (Some(_), Some(_)) => Relation::Sys,
                _ if topology.nodes.len() == 1 => Relation::Node,
                _ => Relation::Unknown,
            }
        };
        let is_own = device.driver.is_some() && !device.is_vfio_bound();
        Self {
            tree,
            device,
            card,
            direction,
            peer_memory: topology.peer_memory,
            relation,
            apart: [ours_apart, theirs_apart].concat(),
            common,
            is_own,
            is_translated: !is_own && tree.iommu == Iommu::On,
        }
    }

    /// How far they are apart, as a clause.
    pub(super) fn sentence(&self) -> String {
        let common = self.common.map_or("", |bridge| &bridge.address);
        let (ours, theirs) = (&self.device.host, &self.card.host);
        match self.relation {
            Relation::Pix => format!("no more than one switch is between the two, at {common}"),
            Relation::Pxb => {
                format!("switches alone are between the two, the uppermost at {common}")
            }
            Relation::Phb => format!("both are below {ours}"),
            Relation::Node => format!("{ours} and {theirs} are host bridges of one NUMA node"),
            Relation::Sys => format!("{ours} and {theirs} are host bridges of two NUMA nodes"),
            Relation::Unknown if self.tree.processor.is_virtual => {
                "a virtual machine does not show how its host wired the two".to_owned()
            }
            Relation::Unknown => format!(
                "{ours} and {theirs} are host bridges, and the firmware does not say of which NUMA nodes"
            ),
        }
    }

    /// What is between the device's engine and the GPU's memory: groups, exports, mappings.
    pub(super) fn access(&self, gpu: &Gpu, warnings: &mut Vec<String>) -> Vec<P2pObstacle> {
        let (device, name) = (self.device, format!("cuda:{}", gpu.ordinal));
        let mut against = Vec::new();
        if !self.is_own
            && let (Some(ours), Some(theirs)) = (&device.group, &self.card.group)
            && ours.number == theirs.number
            && let Some(driver) = &self.card.driver
        {
            against.push(P2pObstacle::Impossible(format!(
                "{} and {name} are in one IOMMU group ({}), and VFIO gives no device of a group to programs while {driver} holds another: put one of them into another slot",
                device.address, ours.number
            )));
        }
        if self.is_own {
            if gpu.rdma == Some(false) {
                against.push(P2pObstacle::Impossible(format!(
                    "{name} ({}) has no GPUDirect, so no driver of another device is told where its memory is",
                    gpu.name
                )));
            } else if gpu.dma_buf == Some(false) && device.is_network() {
                if self.peer_memory {
                    warnings.push(format!(
                        "{name} exports no dma-buf: nvidia-peermem tells the card where its memory is"
                    ));
                } else {
                    against.push(P2pObstacle::Impossible(format!(
                        "{name} exports no dma-buf and nvidia-peermem is not loaded, so no network card is told where its memory is: sudo modprobe nvidia-peermem, or NVIDIA's open kernel modules, which export dma-bufs"
                    )));
                }
            } else if gpu.dma_buf == Some(false) {
                against.push(P2pObstacle::Impossible(format!(
                    "{name} exports no dma-buf, by which the driver of {} would be told where its memory is: NVIDIA's open kernel modules export it",
                    device.address
                )));
            }
            return against;
        }
        if gpu.rdma == Some(false) {
            warnings.push(format!(
                "{name} ({}) has no GPUDirect; its memory is reached through resizable BAR alone",
                gpu.name
            ));
        }
        match gpu.mappings.as_deref() {
            None => warnings.push(format!(
                "whether memory of {name} can be mapped for a device was not tried"
            )),
            Some(tried) => {
                let mut refused = Vec::new();
                for backend in Writer::Fpga.backends() {
                    match tried.iter().find(|(tried, _)| tried == backend) {
                        Some((_, Ok(()))) => return against,
                        Some((_, Err(why))) => refused.push(format!("{backend}: {why}")),
                        None => {}
                    }
                }
                against.push(P2pObstacle::Impossible(format!(
                    "nothing maps memory of {name} for a device: {}",
                    refused.join("; ")
                )));
            }
        }
        against
    }

    /// What is said of the way between the two.
    pub(super) fn obstacle(&self, warnings: &mut Vec<String>) -> Option<P2pObstacle> {
        let passes = self
            .tree
            .passes(&self.device.host, &self.card.host, self.direction);
        let transfer = self.direction.name();
        if self.tree.processor.is_virtual && self.relation != Relation::Unknown {
            warnings.push(
                "the tree is what a virtual machine shows, not how the slots are wired".to_owned(),
            );
        }
        match self.relation {
            Relation::Pix | Relation::Pxb => {
                let redirecting = self
                    .apart
                    .iter()
                    .find(|bridge| bridge.acs.redirects() == Some(true));
                let unknown = self
                    .apart
                    .iter()
                    .find(|bridge| bridge.acs.redirects().is_none());
                let why = if self.is_translated {
                    format!(
                        "addresses of a device behind vfio-pci are translated at the processor's port, so every {transfer} goes up to it and back down"
                    )
                } else if let Some(bridge) = redirecting {
                    format!(
                        "{} redirects (ACS {}), so every {transfer} goes up to the processor's port and back down",
                        bridge.address,
                        bridge.acs.bits()
                    )
                } else if let Some(bridge) = unknown {
                    warnings.push(format!(
                        "whether {} redirects (ACS) is not known: only root may read it",
                        bridge.address
                    ));
                    return None;
                } else {
                    return None;
                };
                warnings.push(why);
                match passes {
                    // Nothing answers the reads: what is known to fail is not tried unless asked for.
                    Err(why) if self.direction == PeerAccess::Read => {
                        Some(P2pObstacle::Uncertain(why))
                    }
                    passes => {
                        warnings.extend(passes.err());
                        None
                    }
                }
            }
            Relation::Phb => match passes {
                Ok(why) => {
                    warnings.push(format!("every {transfer} crosses the processor; {why}"));
                    None
                }
                // Behind an IOMMU that is the way of every write, and the proof decides.
                Err(why) if self.is_translated && self.direction == PeerAccess::Write => {
                    warnings.push(format!("every {transfer} crosses the processor; {why}"));
                    None
                }
                Err(why) => Some(P2pObstacle::Uncertain(format!(
                    "{}; {why}",
                    self.sentence()
                ))),
            },
            Relation::Node => {
                let why = match passes {
                    Ok(_) => format!(
                        "{transfer}s between them are slow on many machines: measure before you ask for it"
                    ),
                    Err(why) => why,
                };
                Some(P2pObstacle::Uncertain(format!(
                    "{}; {why}",
                    self.sentence()
                )))
            }
            Relation::Sys => Some(P2pObstacle::Uncertain(format!(
                "{}; {transfer}s between sockets are slow or lost",
                self.sentence()
            ))),
            Relation::Unknown => Some(P2pObstacle::Uncertain(self.sentence())),
        }
    }

    /// The links that bytes take on a direct path, or on the way to the processor where there is none; nothing where they
    /// are not known to be the slots'.
    fn hops(&self) -> Vec<Hop> {
        if self.relation == Relation::Unknown {
            return Vec::new();
        }
        // What is redirected goes up to the processor's port; what is above the switch both ways share.
        let is_short = matches!(self.relation, Relation::Pix | Relation::Pxb)
            && !self.is_translated
            && !self
                .apart
                .iter()
                .any(|bridge| bridge.acs.redirects() == Some(true));
        let above = |hop: &Hop| {
            let common = self.common.map(|common| common.address.as_str());
            is_short && (common == Some(hop.below.as_str()) || self.is_above(&hop.below))
        };
        let mut hops = self.tree.hops(self.device);
        for hop in self.tree.hops(self.card) {
            if !hops.contains(&hop) {
                hops.push(hop);
            }
        }
        hops.retain(|hop| !above(hop));
        hops
    }

    /// Whether the bridge at `address` is above what both are below.
    fn is_above(&self, address: &str) -> bool {
        let upstream = self.common.map_or(&[][..], |common| &common.upstream);
        upstream.iter().any(|bridge| bridge == address)
    }

    /// The slowest link, the one nearest to the device among equals.
    pub(super) fn bottleneck(&self) -> Option<Hop> {
        self.hops()
            .into_iter()
            .min_by_key(|hop| hop.effective.rate())
    }

    /// Links that carry less than the card in the slot could take.
    pub(super) fn slow(&self) -> Vec<String> {
        self.hops().iter().filter_map(slow).collect()
    }
}

/// Whether the ring fits into the window through which others reach the GPU's memory.
pub(super) fn bar_space(gpu: &Gpu, bytes: u64, warnings: &mut Vec<String>) -> Option<P2pObstacle> {
    let (name, ring) = (format!("cuda:{}", gpu.ordinal), ByteSize(bytes));
    let Some(window) = gpu.window else {
        warnings.push(format!(
            "how much of {name}'s memory others can reach (BAR1) is not shown"
        ));
        return None;
    };
    let total = ByteSize(window.bytes);
    if bytes > window.bytes {
        return Some(P2pObstacle::Impossible(format!(
            "a ring of {ring} is larger than the {total} through which others reach {name}'s memory (BAR1): make it smaller, or enable resizable BAR in the firmware"
        )));
    }
    let free = window.free.filter(|free| bytes > *free)?;
    Some(P2pObstacle::Uncertain(format!(
        "a ring of {ring} is larger than the {} that are free of the {total} through which others reach {name}'s memory (BAR1)",
        ByteSize(free)
    )))
}
