//! Determines whether a device can directly write or read a GPU's memory (peer-to-peer). The result is a pure function
//! of the topology. A direct data path is verified again when the source starts.
//!
//! The direction matters if transfers pass through the processor: Intel's client processors forward writes but not
//! reads.
//!
//! | Positions of the device and the GPU | Path |
//! |---|---|
//! | below one switch (PIX, PXB) without ACS redirection | direct |
//! | below one switch with ACS redirection or with a vfio-pci device behind an IOMMU; below one host bridge (PHB) that is known to forward transfers | direct, with a warning; verified at startup |
//! | below two host bridges of one NUMA node (NODE), of two nodes (SYS) or of unknown nodes; in a virtual machine; or the ring does not fit into the free part of BAR1 | staged; direct if requested |
//! | a direct path is impossible: same IOMMU group, no backend can map the memory, or the ring is larger than BAR1 | staged |

mod pair;

use super::pci::canonical;
use super::tree::{Hop, PciDevice};
use super::{Gpu, P2pPreference, Topology};
use crate::topology::DataPath;
use pair::Pair;
use std::fmt;

/// Direction in which a device accesses a GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerAccess {
    /// The device writes into the GPU's memory, as a source does.
    #[default]
    Write,
    /// The device reads the GPU's memory, as the network card of a sink does.
    Read,
}

impl PeerAccess {
    /// Returns the noun for one transfer, such as "write" in "every write".
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

/// A query whether a device can directly access a ring in a GPU's memory.
#[derive(Clone, Copy, Debug)]
pub struct P2pQuery<'a> {
    /// The PCI address of the device in any spelling, or the name of a network card; `auto` is the nearest card.
    pub device: &'a str,
    /// CUDA device ordinal of the GPU.
    pub gpu: u32,
    /// Size of the ring in bytes.
    pub bytes: u64,
    /// The requested data path.
    pub preference: P2pPreference,
    /// Direction of the access.
    pub direction: PeerAccess,
}

/// Distance between a device and a GPU, in the terms of nvidia-smi and in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// At most one PCIe switch is between the device and the GPU.
    Pix,
    /// Several PCIe switches, but no host bridge, are between the device and the GPU.
    Pxb,
    /// Device and GPU are below the same host bridge.
    Phb,
    /// Device and GPU are below two host bridges of the same NUMA node.
    Node,
    /// Device and GPU are on different NUMA nodes, so transfers cross the link between processor sockets.
    Sys,
    /// The distance is unknown, for example in a virtual machine.
    Unknown,
}

impl Relation {
    /// Returns the name that nvidia-smi uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
            Self::Unknown => "UNKNOWN",
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The data path between a device and a GPU: the result of a [`P2pQuery`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P2pPath {
    /// Distance between the device and the GPU.
    pub relation: Relation,
    /// Whether the device accesses the GPU's memory directly.
    pub direct: bool,
    /// Whether a direct path is impossible, even if requested.
    pub forbidden: bool,
    /// Reason for this path, as a clause.
    pub reason: String,
    /// Remaining obstacles, and causes of low speed.
    pub warnings: Vec<String>,
    /// The slowest PCIe link of the path; `None` if no link is known.
    pub bottleneck: Option<Hop>,
}

impl P2pPath {
    /// Returns the data path for the plan: direct or staged.
    pub const fn data_path(&self) -> DataPath {
        if self.direct {
            DataPath::Direct
        } else {
            DataPath::Staged
        }
    }
}

/// Reason why a device or a GPU was not found in the PCIe tree.
struct NotFound {
    /// Whether the device or GPU certainly does not exist. If false, it may exist without being visible.
    is_certain: bool,
    why: String,
}

/// An obstacle to a direct path.
#[derive(Clone, Debug)]
enum P2pObstacle {
    /// A direct path is impossible, for this reason.
    Impossible(String),
    /// A direct path may work, but is not used unless requested, for this reason.
    Uncertain(String),
}

impl Topology {
    /// Determines whether a device can directly access a GPU's memory, and why or why not.
    pub fn p2p_path(&self, asked: &P2pQuery<'_>) -> P2pPath {
        let (preference, bytes) = (asked.preference, asked.bytes);
        let (device, gpu, card) = match self.pair(asked) {
            Ok(found) => found,
            Err(NotFound { is_certain, why }) => {
                let direct = preference == P2pPreference::Direct && !is_certain;
                let (reason, warnings) = if direct {
                    ("requested by the configuration".to_owned(), vec![why])
                } else {
                    (why, Vec::new())
                };
                return P2pPath {
                    relation: Relation::Unknown,
                    direct,
                    forbidden: is_certain,
                    reason,
                    warnings,
                    bottleneck: None,
                };
            }
        };
        let pair = Pair::new(self, device, card, asked.direction);
        let mut warnings = Vec::new();
        let mut against = pair.access(gpu, &mut warnings);
        against.extend(pair::bar_space(gpu, bytes, &mut warnings));
        against.extend(pair.obstacle(&mut warnings));
        against.sort_by_key(|against| matches!(against, P2pObstacle::Uncertain(_)));
        let forbidden = matches!(against.first(), Some(P2pObstacle::Impossible(_)));
        let mut against = against.into_iter().map(|against| match against {
            P2pObstacle::Impossible(why) | P2pObstacle::Uncertain(why) => why,
        });
        let (direct, reason) = match (preference, against.next()) {
            (P2pPreference::Staged, first) => {
                warnings.extend(first);
                (false, "requested by the configuration".to_owned())
            }
            (_, None) => (true, pair.sentence()),
            (P2pPreference::Direct, Some(first)) if !forbidden => {
                warnings.insert(0, first);
                (
                    true,
                    format!("requested by the configuration; {}", pair.sentence()),
                )
            }
            (_, Some(first)) => (false, first),
        };
        warnings.extend(against);
        let bottleneck = pair.bottleneck();
        warnings.extend(pair.slow());
        P2pPath {
            relation: pair.relation,
            direct,
            forbidden,
            reason,
            warnings,
            bottleneck,
        }
    }

    /// Describes the distance between a device and a GPU in text for users, with a note if only writes work directly.
    pub fn distance(&self, device: &str, gpu: u32) -> String {
        let judge = |direction| {
            self.p2p_path(&P2pQuery {
                device,
                gpu,
                bytes: 0,
                preference: P2pPreference::Auto,
                direction,
            })
        };
        let (write, read) = (judge(PeerAccess::Write), judge(PeerAccess::Read));
        let limit = if write.direct && !read.direct {
            " (only writes; direct reads are not possible)"
        } else {
            ""
        };
        format!("{}{limit}", write.relation)
    }

    /// Returns the device, the GPU and the GPU's PCI device in the tree.
    fn pair(&self, asked: &P2pQuery<'_>) -> Result<(&PciDevice, &Gpu, &PciDevice), NotFound> {
        let ordinal = asked.gpu;
        let mut gpus = self.gpus.iter();
        let gpu = gpus.find(|gpu| gpu.ordinal == ordinal).ok_or_else(|| {
            let why = format!("there is no cuda:{ordinal} on this machine");
            NotFound {
                is_certain: self.is_real,
                why,
            }
        })?;
        if let Ok(nic) = self.nic(asked.device)
            && nic.pci.is_none()
        {
            let why = format!(
                "{} is an emulated network card, which can write only to host memory",
                nic.name
            );
            return Err(NotFound {
                is_certain: true,
                why,
            });
        }
        let address = self.address_of(asked.device, ordinal);
        if canonical(address).is_none() {
            let why = format!(
                "`{address}` is not a PCI address, so its distance to cuda:{ordinal} is unknown"
            );
            return Err(NotFound {
                is_certain: false,
                why,
            });
        }
        if self.pci.devices.is_empty() {
            let why = "this machine has no visible PCI devices".to_owned();
            return Err(NotFound {
                is_certain: false,
                why,
            });
        }
        let device = self.pci.device(address).ok_or_else(|| {
            let why = format!("there is no PCI device {address} on this machine");
            NotFound {
                is_certain: true,
                why,
            }
        })?;
        let card = gpu.pci.as_deref().and_then(|at| self.pci.device(at));
        let card = card.ok_or_else(|| {
            let why = format!("cuda:{ordinal} is not among the visible PCI devices");
            NotFound {
                is_certain: false,
                why,
            }
        })?;
        Ok((device, gpu, card))
    }
}

/// Describes why a link is slower than the maximum of its device; `None` if the link is not slower.
pub fn slow(hop: &Hop) -> Option<String> {
    if hop.effective.rate() >= hop.device_max.rate() {
        return None;
    }
    let why = if hop.effective.rate() < hop.max.rate() {
        "both ends of the link support more; reseat the card, and check risers and shared lanes"
    } else {
        "the slot supports no more"
    };
    Some(format!(
        "{} runs at {}, but supports {}: {why}",
        hop.below, hop.effective, hop.device_max
    ))
}
