//! A device and a GPU in the PCIe tree: their distance, the bridges between them, and obstacles to a direct path.

use super::super::tree::{Hop, Iommu, PciDevice, PciTree};
use super::super::{Gpu, Topology};
use super::{P2pObstacle, PeerAccess, Relation, slow};
use crate::gpu::Writer;
use crate::units::ByteSize;

/// A device and a GPU in the PCIe tree.
pub(super) struct Pair<'a> {
    tree: &'a PciTree,
    device: &'a PciDevice,
    card: &'a PciDevice,
    direction: PeerAccess,
    /// Whether a Linux module is loaded that lets network cards access GPU memory without dma-bufs.
    peer_memory: bool,
    pub(super) relation: Relation,
    /// The nearest bridge (switch port or root port) that is above both the device and the GPU.
    common: Option<&'a PciDevice>,
    /// The bridges of both devices that are below the common bridge.
    apart: Vec<&'a PciDevice>,
    /// Whether the device is bound to its own Linux driver. Otherwise it is used through vfio-pci, or will be after it
    /// is bound to vfio-pci.
    is_own: bool,
    /// Whether the device is used through vfio-pci and an IOMMU translates its addresses.
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

    /// Describes the positions of the device and the GPU as a clause.
    pub(super) fn sentence(&self) -> String {
        let common = self.common.map_or("", |bridge| &bridge.address);
        let (ours, theirs) = (&self.device.host, &self.card.host);
        match self.relation {
            Relation::Pix => format!("connected through a single PCIe switch at {common}"),
            Relation::Pxb => {
                format!("connected through PCIe switches only, the topmost at {common}")
            }
            Relation::Phb => format!("both are below host bridge {ours}"),
            Relation::Node => {
                format!("host bridges {ours} and {theirs} belong to the same NUMA node")
            }
            Relation::Sys => {
                format!("host bridges {ours} and {theirs} belong to different NUMA nodes")
            }
            Relation::Unknown if self.tree.processor.is_virtual => {
                "the physical connection is unknown inside a virtual machine".to_owned()
            }
            Relation::Unknown => format!(
                "the NUMA nodes of host bridges {ours} and {theirs} are unknown, because the firmware does not report them"
            ),
        }
    }

    /// Returns the obstacles to the device's access to the GPU's memory: IOMMU groups, memory export and mappings.
    pub(super) fn access(&self, gpu: &Gpu, warnings: &mut Vec<String>) -> Vec<P2pObstacle> {
        let (device, name) = (self.device, format!("cuda:{}", gpu.ordinal));
        let mut against = Vec::new();
        if !self.is_own
            && let (Some(ours), Some(theirs)) = (&device.group, &self.card.group)
            && ours.number == theirs.number
            && let Some(driver) = &self.card.driver
        {
            against.push(P2pObstacle::Impossible(format!(
                "{} and {name} are in the same IOMMU group ({}), and VFIO cannot use a device while another device of its group is bound to {driver}; move one of them to another slot",
                device.address, ours.number
            )));
        }
        if self.is_own {
            if gpu.rdma == Some(false) {
                against.push(P2pObstacle::Impossible(format!(
                    "{name} ({}) does not support GPUDirect, so other devices' drivers cannot get the address of its memory",
                    gpu.name
                )));
            } else if gpu.dma_buf == Some(false) && device.is_network() {
                if self.peer_memory {
                    warnings.push(format!(
                        "{name} does not export dma-bufs; the network card gets the memory's address through nvidia-peermem"
                    ));
                } else {
                    against.push(P2pObstacle::Impossible(format!(
                        "{name} does not export dma-bufs and nvidia-peermem is not loaded, so network cards cannot access its memory; run sudo modprobe nvidia-peermem, or install NVIDIA's open kernel modules, which export dma-bufs"
                    )));
                }
            } else if gpu.dma_buf == Some(false) {
                against.push(P2pObstacle::Impossible(format!(
                    "{name} does not export dma-bufs, which the driver of {} needs to access its memory; install NVIDIA's open kernel modules",
                    device.address
                )));
            }
            return against;
        }
        if gpu.rdma == Some(false) {
            warnings.push(format!(
                "{name} ({}) does not support GPUDirect; its memory is accessible only through resizable BAR",
                gpu.name
            ));
        }
        match gpu.mappings.as_deref() {
            None => warnings.push(format!(
                "mapping memory of {name} for a device was not tested"
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
                    "no backend can map memory of {name} for a device: {}",
                    refused.join("; ")
                )));
            }
        }
        against
    }

    /// Returns the obstacle on the PCIe path between the device and the GPU, if any.
    pub(super) fn obstacle(&self, warnings: &mut Vec<String>) -> Option<P2pObstacle> {
        let passes = self
            .tree
            .check_peer_path(&self.device.host, &self.card.host, self.direction);
        let transfer = self.direction.name();
        if self.tree.processor.is_virtual && self.relation != Relation::Unknown {
            warnings.push(
                "this is the virtual machine's PCI tree, which may differ from the physical slots"
                    .to_owned(),
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
                        "the IOMMU translates addresses of vfio-pci devices at the root port, so every {transfer} passes through the root port"
                    )
                } else if let Some(bridge) = redirecting {
                    format!(
                        "ACS redirection is enabled on {} ({}), so every {transfer} passes through the root port",
                        bridge.address,
                        bridge.acs.bits()
                    )
                } else if let Some(bridge) = unknown {
                    warnings.push(format!(
                        "the ACS setting of {} is unknown, because only root can read it",
                        bridge.address
                    ));
                    return None;
                } else {
                    return None;
                };
                warnings.push(why);
                match passes {
                    // The processor does not forward reads, so a direct path fails. Use it only if requested.
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
                    warnings.push(format!(
                        "every {transfer} passes through the processor; {why}"
                    ));
                    None
                }
                // Behind an IOMMU, every write passes through the processor. The verification at startup decides
                // whether the direct path works.
                Err(why) if self.is_translated && self.direction == PeerAccess::Write => {
                    warnings.push(format!(
                        "every {transfer} passes through the processor; {why}"
                    ));
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
                        "{transfer}s between them are slow on many machines; measure before you request a direct path"
                    ),
                    Err(why) => why,
                };
                Some(P2pObstacle::Uncertain(format!(
                    "{}; {why}",
                    self.sentence()
                )))
            }
            Relation::Sys => Some(P2pObstacle::Uncertain(format!(
                "{}; {transfer}s between sockets are slow or fail",
                self.sentence()
            ))),
            Relation::Unknown => Some(P2pObstacle::Uncertain(self.sentence())),
        }
    }

    /// Returns the PCIe links that a transfer passes on a direct path, or on the path through the processor if a direct
    /// path is impossible. Returns no links if the physical connection is unknown.
    fn hops(&self) -> Vec<Hop> {
        if self.relation == Relation::Unknown {
            return Vec::new();
        }
        // Redirected transfers pass through the root port. A direct transfer below a switch does not use the links
        // above the switch.
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

    /// Whether the bridge at `address` is above the common bridge.
    fn is_above(&self, address: &str) -> bool {
        let upstream = self.common.map_or(&[][..], |common| &common.upstream);
        upstream.iter().any(|bridge| bridge == address)
    }

    /// Returns the slowest link; among links of equal speed, the one nearest to the device.
    pub(super) fn bottleneck(&self) -> Option<Hop> {
        self.hops()
            .into_iter()
            .min_by_key(|hop| hop.effective.rate())
    }

    /// Describes the links that are slower than the maximum of the connected card.
    pub(super) fn slow(&self) -> Vec<String> {
        self.hops().iter().filter_map(slow).collect()
    }
}

/// Returns an obstacle if the ring does not fit into BAR1 of the GPU. Adds a warning if the size of BAR1 is unknown.
pub(super) fn bar_space(gpu: &Gpu, bytes: u64, warnings: &mut Vec<String>) -> Option<P2pObstacle> {
    let (name, ring) = (format!("cuda:{}", gpu.ordinal), ByteSize(bytes));
    let Some(window) = gpu.window else {
        warnings.push(format!(
            "the BAR1 size of {name} is unknown, so it is not certain that the ring fits"
        ));
        return None;
    };
    let total = ByteSize(window.bytes);
    if bytes > window.bytes {
        return Some(P2pObstacle::Impossible(format!(
            "a ring of {ring} does not fit into BAR1 of {name}, which has {total}; make the ring smaller, or enable resizable BAR in the firmware"
        )));
    }
    let free = window.free.filter(|free| bytes > *free)?;
    Some(P2pObstacle::Uncertain(format!(
        "a ring of {ring} does not fit into BAR1 of {name}, which has {} free of {total}",
        ByteSize(free)
    )))
}
