//! Whether a device can write straight into a GPU's memory, or read it: a pure function of the machine. What it calls direct
//! is proved when the source starts.
//!
//! The direction matters where transfers cross the processor: Intel's client processors pass writes, not reads.
//!
//! | the two are | path |
//! |---|---|
//! | below one switch (PIX, PXB) that does not redirect | direct |
//! | the same with redirection, or the device is given to programs behind an IOMMU; below one host bridge (PHB) that is known to pass on | direct, with a warning: the proof at the start decides |
//! | below two host bridges of one NUMA node (NODE), of two (SYS), of unknown nodes; in a virtual machine; the ring does not fit | staged, direct if requested |
//! | such that nothing can make it work: one IOMMU group, no way to map the memory, a ring larger than the window | staged |

mod pair;

use super::pci::canonical;
use super::tree::{Hop, PciDevice};
use super::{Gpu, P2pPreference, Topology};
use crate::topology::DataPath;
use pair::Pair;
use std::fmt;

/// Which way a device transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerAccess {
    /// It writes into the GPU's memory, as a source does.
    #[default]
    Write,
    /// It reads the GPU's memory, as the network card of a sink does.
    Read,
}

impl PeerAccess {
    /// One transfer, as in "every write".
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

/// A question: may this device write into a ring on that GPU, or read from it?
#[derive(Clone, Copy, Debug)]
pub struct P2pQuery<'a> {
    /// The device's PCI address, in any spelling, or the name of a network card; `auto` is the nearest one.
    pub device: &'a str,
    /// CUDA's number of the GPU.
    pub gpu: u32,
    /// Bytes of the ring.
    pub bytes: u64,
    /// What is wanted.
    pub preference: P2pPreference,
    /// Which way it transfers.
    pub direction: PeerAccess,
}

/// How far a device and a GPU are apart, in the words of nvidia-smi; the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// At most one switch between them.
    Pix,
    /// Several switches, but not the processor.
    Pxb,
    /// One host bridge.
    Phb,
    /// Two host bridges of one NUMA node.
    Node,
    /// The link between sockets.
    Sys,
    /// It cannot be seen, as in a virtual machine.
    Unknown,
}

impl Relation {
    /// The name.
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

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P2pPath {
    /// How far the two are apart.
    pub relation: Relation,
    /// Whether the device is to write into the GPU's memory.
    pub direct: bool,
    /// Whether it cannot, whatever is wished.
    pub forbidden: bool,
    /// Why, as a clause.
    pub reason: String,
    /// What stands against it all the same, or slows it down.
    pub warnings: Vec<String>,
    /// The slowest link on the way; `None` where none is shown.
    pub bottleneck: Option<Hop>,
}

impl P2pPath {
    /// The path in the plan's words.
    pub const fn data_path(&self) -> DataPath {
        if self.direct {
            DataPath::Direct
        } else {
            DataPath::Staged
        }
    }
}

/// Why a pair is not in the tree.
struct NotFound {
    /// Whether it cannot be anywhere.
    is_certain: bool,
    why: String,
}

/// An obstacle to a direct path.
#[derive(Clone, Debug)]
enum P2pObstacle {
    /// It is impossible.
    Impossible(String),
    /// It may work.
    Uncertain(String),
}

impl Topology {
    /// Whether a device can write straight into a GPU's memory, and why.
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

    /// How far a device is from a GPU, for people; with the limit that only its writes are passed, where that is known.
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
            " (writes only, reads do not work)"
        } else {
            ""
        };
        format!("{}{limit}", write.relation)
    }

    /// The device, the GPU and the GPU's place in the tree.
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

/// What is wrong with a link that carries less than the end away from the processor can do.
pub fn slow(hop: &Hop) -> Option<String> {
    if hop.effective.rate() >= hop.device_max.rate() {
        return None;
    }
    let why = if hop.effective.rate() < hop.max.rate() {
        "both ends support more; reseat the card, and check risers and shared lanes"
    } else {
        "this is the slot's maximum"
    };
    Some(format!(
        "{} runs at {} of {}: {why}",
        hop.below, hop.effective, hop.device_max
    ))
}
