//! The hardware that the plan takes into account: NUMA nodes, the CPU cores of this process, GPUs, network cards, and
//! the PCIe tree.

mod acs;
mod memory;
pub mod nic;
pub mod p2p;
mod p2p_allowlist;
mod path;
pub mod pci;
mod peers;
mod record;
mod show;
#[cfg(test)]
mod tests;
pub mod tree;

pub use memory::{HostMemory, cgroup_directories};
pub use p2p::{P2pPath, P2pQuery, PeerAccess, Relation};
pub use path::DataPath;
pub use record::RecordError;
pub use show::DevicePath;

use crate::gpu::Backend;
use crate::gpu::bar_mapping;
use crate::gpu::driver::{Device, Identity, NoCuda, PeerLink};
use nic::Nic;
use pci::{Link, PciFacts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use tree::PciTree;

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Linux's number of the node.
    pub id: u32,
    /// CPU cores of the node, in ascending order.
    pub cores: Vec<usize>,
}

/// BAR1 of a GPU: the PCI memory region through which the CPU and other devices access the GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar1 {
    /// Size in bytes.
    pub bytes: u64,
    /// Number of bytes of BAR1 that are not mapped; `None` if unknown, because only NVML reports this number.
    pub free: Option<u64>,
}

/// A GPU whose memory can contain rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// CUDA device ordinal.
    pub ordinal: u32,
    /// Name of the GPU as CUDA reports it.
    pub name: String,
    /// UUID of the GPU as NVIDIA's driver reports it, such as `GPU-5d5e…`.
    pub uuid: Option<String>,
    /// PCI address, such as `0000:3b:00.0`.
    pub pci: Option<String>,
    /// The NUMA node that the GPU is connected to.
    pub node: Option<u32>,
    /// The GPU's PCIe link: current and maximum generation and width.
    pub link: Option<Link>,
    /// Size of the GPU's memory in bytes; `None` if CUDA was not queried.
    pub memory: Option<u64>,
    /// BAR1, through which the CPU and other devices access the GPU's memory.
    pub window: Option<Bar1>,
    /// Whether other devices may read and write the GPU's memory (GPUDirect, CUDA device attribute 116); `None` if CUDA
    /// was not queried.
    pub rdma: Option<bool>,
    /// Whether the GPU's memory can be exported as a dma-buf (CUDA device attribute 124); `None` if CUDA was not
    /// queried.
    pub dma_buf: Option<bool>,
    /// For each tested backend, whether it can map GPU memory into the CPU's address space, or why not; `None` if the
    /// backends were not tested.
    pub mappings: Option<Vec<(Backend, Result<(), String>)>>,
    /// The GPUs whose memory this GPU can write, by CUDA ordinal, and the link to each; `None` if CUDA was not queried.
    pub peers: Option<BTreeMap<u32, PeerLink>>,
}

impl Gpu {
    /// Creates a GPU of which only the ordinal and the name are known.
    pub fn new(ordinal: u32, name: impl Into<String>) -> Self {
        Self {
            ordinal,
            name: name.into(),
            uuid: None,
            pci: None,
            node: None,
            link: None,
            memory: None,
            window: None,
            rdma: None,
            dma_buf: None,
            mappings: None,
            peers: None,
        }
    }

    /// Creates a GPU from the properties that CUDA and `/sys` report.
    fn of(gpu: &Identity, all: &[Identity], sys: &Path) -> Self {
        let peers = all.iter();
        let peers = peers.filter_map(|peer| Some((peer.ordinal, gpu.link_to(peer)?)));
        Self {
            peers: Some(peers.collect()),
            uuid: Some(gpu.uuid.clone()),
            memory: Some(gpu.memory as u64),
            rdma: Some(gpu.attributes.rdma),
            dma_buf: Some(gpu.attributes.dma_buf),
            ..Self::new(gpu.ordinal, gpu.name.clone()).with_pci_facts(&pci::facts(sys, &gpu.pci))
        }
    }

    /// Tests which of the `allowed` backends can map this GPU's memory, and stores the results in `mappings`. Opens the
    /// device and creates a small mapping with each backend.
    #[must_use]
    pub fn with_probed_mappings(self, allowed: &[Backend]) -> Self {
        let mappings = match Device::open(self.ordinal) {
            Ok(device) => bar_mapping::probe(device, allowed)
                .into_iter()
                .map(|(backend, found)| {
                    let result = found.map(|_| ()).map_err(|refusal| refusal.why);
                    (backend, result)
                })
                .collect(),
            Err(error) => {
                let refused = allowed.iter();
                refused
                    .map(|backend| (*backend, Err(error.to_string())))
                    .collect()
            }
        };
        Self {
            mappings: Some(mappings),
            ..self
        }
    }

    /// Adds the GPU's PCI properties.
    #[must_use]
    pub fn with_pci_facts(self, facts: &PciFacts) -> Self {
        Self {
            pci: Some(facts.address.clone()),
            node: facts.node,
            link: facts.link,
            window: facts.bar1.map(|bytes| Bar1 { bytes, free: None }),
            ..self
        }
    }
}

/// A CPU core that belongs to a different NUMA node than a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the core is on NUMA node {node} and the GPU is on node {gpu}")]
pub(crate) struct RemoteNode {
    /// The core.
    pub core: usize,
    /// The core's node.
    pub node: u32,
    /// The GPU's node.
    pub gpu: u32,
}

/// Whether a device writes directly into a GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum P2pPreference {
    /// The device writes directly if the topology allows it and the verification at startup succeeds.
    #[default]
    Auto,
    /// The device writes directly even if the topology is unfavourable; the data path is still verified at startup.
    Direct,
    /// Frames are always copied through host memory.
    Staged,
}

/// The hardware topology of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// NUMA nodes, in ascending order; empty if unknown.
    pub nodes: Vec<Node>,
    /// CPU cores that this process may use, in ascending order; empty if unknown.
    pub cores: Vec<usize>,
    /// Host memory that this process can allocate; `None` if unknown.
    pub memory: Option<HostMemory>,
    /// The PCIe tree; empty if unknown.
    pub pci: PciTree,
    /// GPUs whose memory can contain rings.
    pub gpus: Vec<Gpu>,
    /// RDMA network cards, sorted by name.
    pub nics: Vec<Nic>,
    /// Whether a Linux module (nvidia-peermem) is loaded that lets network cards access GPU memory without a dma-buf.
    pub peer_memory: bool,
    /// Reason why no GPU was found, as a clause. Shown if `memory = "auto"` selects host memory.
    pub no_gpu: String,
    /// Whether this topology was read from a real machine; false for a plan made without hardware.
    pub is_real: bool,
}

/// Describes why CUDA finds no GPU. A missing driver is a fault only on a machine that has a GPU.
fn no_gpu(why: &NoCuda, sys: &Path) -> String {
    let has_no_gpu = pci::nvidia_gpus(sys).is_some_and(|gpus| gpus.is_empty());
    match why {
        NoCuda::NoLibrary if has_no_gpu => "this machine has no NVIDIA GPU".to_owned(),
        why => why.to_string(),
    }
}

impl Topology {
    /// Reads the topology of this machine.
    pub fn detect() -> Self {
        let sys = Path::new("/sys");
        let (gpus, no_gpu) = match Identity::all() {
            Ok(found) => (
                found.iter().map(|gpu| Gpu::of(gpu, &found, sys)).collect(),
                String::new(),
            ),
            Err(why) => (Vec::new(), no_gpu(&why, sys)),
        };
        Self {
            cores: crate::thread::allowed_cores(),
            memory: HostMemory::read(Path::new("/")),
            gpus,
            no_gpu,
            is_real: true,
            ..Self::read(sys)
        }
    }

    /// Creates an unknown topology, which is used to check a configuration without its hardware.
    pub fn unknown() -> Self {
        Self {
            nodes: Vec::new(),
            cores: Vec::new(),
            memory: None,
            pci: PciTree::default(),
            gpus: Vec::new(),
            nics: Vec::new(),
            peer_memory: false,
            no_gpu: "planned without hardware detection".to_owned(),
            is_real: false,
        }
    }

    /// Reads NUMA nodes, the PCIe tree and network cards from this machine's `/sys` or from a recorded one.
    pub fn read(sys: &Path) -> Self {
        let mut nodes: Vec<Node> = std::fs::read_dir(sys.join("devices/system/node"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let id = entry
                    .file_name()
                    .to_str()?
                    .strip_prefix("node")?
                    .parse()
                    .ok()?;
                let cores = std::fs::read_to_string(entry.path().join("cpulist")).ok()?;
                Some(Node {
                    id,
                    cores: parse_list(&cores),
                })
            })
            .collect();
        nodes.sort_by_key(|node| node.id);
        Self {
            nodes,
            pci: PciTree::read(sys),
            nics: nic::read(sys),
            peer_memory: nic::peer_memory(sys),
            ..Self::unknown()
        }
    }

    /// Returns the NUMA nodes of `core` and of a GPU if the two nodes differ; `None` if they are equal or one is
    /// unknown. `gpu` is the GPU's node.
    pub(crate) fn remote_node(&self, core: usize, gpu: Option<u32>) -> Option<RemoteNode> {
        let remote = RemoteNode {
            core,
            node: self.node_of(core)?,
            gpu: gpu?,
        };
        (remote.node != remote.gpu).then_some(remote)
    }

    /// Returns the NUMA node that a core belongs to.
    pub fn node_of(&self, core: usize) -> Option<u32> {
        self.nodes
            .iter()
            .find(|node| node.cores.contains(&core))
            .map(|node| node.id)
    }
}

/// Parses Linux's list format for CPUs and nodes.
pub(crate) fn parse_list(text: &str) -> Vec<usize> {
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse().ok()?..=last.trim().parse::<usize>().ok()?.min(1 << 16))
        })
        .flatten()
        .collect()
}
