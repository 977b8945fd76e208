//! The machine as the plan sees it: NUMA nodes, the cores of this process, GPUs, the PCIe tree.

mod acs;
pub mod nic;
pub mod p2p;
mod p2p_allowlist;
mod path;
pub mod pci;
mod record;
mod show;
#[cfg(test)]
mod tests;
pub mod tree;

pub use p2p::{P2pPath, P2pQuery, PeerAccess, Relation};
pub use path::DataPath;
pub use record::RecordError;
pub use show::DevicePath;

use crate::gpu::Backend;
use crate::gpu::bar_mapping;
use crate::gpu::driver::{Device, Identity};
use nic::Nic;
use pci::{Link, PciFacts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tree::PciTree;

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number.
    pub id: u32,
    /// Its cores, ascending.
    pub cores: Vec<usize>,
}

/// The window through which others reach a GPU's memory, BAR1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar1 {
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of BAR1 that are not mapped; `None` if unknown (only NVML reports it).
    pub free: Option<u64>,
}

/// A GPU that rings can lie on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// CUDA's ordinal.
    pub ordinal: u32,
    /// CUDA's name for it.
    pub name: String,
    /// The driver's identity of the card, as in `GPU-5d5e…`.
    pub uuid: Option<String>,
    /// Its address, as in `0000:3b:00.0`.
    pub pci: Option<String>,
    /// The NUMA node it hangs on.
    pub node: Option<u32>,
    /// Its PCIe link, now and at most.
    pub link: Option<Link>,
    /// The window through which others reach its memory.
    pub window: Option<Bar1>,
    /// Whether other devices may read and write its memory (GPUDirect, CUDA's attribute 116); `None` where CUDA was not
    /// asked.
    pub rdma: Option<bool>,
    /// Whether its memory can be exported as a dma-buf (CUDA's attribute 124); `None` where CUDA was not asked.
    pub dma_buf: Option<bool>,
    /// What can make memory on it that the CPU stores to, or why it cannot; `None` where that was not tried.
    pub mappings: Option<Vec<(Backend, Result<(), String>)>>,
}

impl Gpu {
    /// A GPU of which no more is known.
    pub fn new(ordinal: u32, name: impl Into<String>) -> Self {
        Self {
            ordinal,
            name: name.into(),
            uuid: None,
            pci: None,
            node: None,
            link: None,
            window: None,
            rdma: None,
            dma_buf: None,
            mappings: None,
        }
    }

    /// What CUDA and `/sys` say of a GPU.
    fn of(gpu: &Identity, sys: &Path) -> Self {
        Self {
            uuid: Some(gpu.uuid.clone()),
            rdma: Some(gpu.attributes.rdma),
            dma_buf: Some(gpu.attributes.dma_buf),
            ..Self::new(gpu.ordinal, gpu.name.clone()).with_pci_facts(&pci::facts(sys, &gpu.pci))
        }
    }

    /// The GPU, its mappings tried with those backends that are `allowed`: opens the device and makes a small mapping
    /// with each.
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

    /// The GPU with its place on the bus.
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

/// A core on another node than a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is on NUMA node {node}, the GPU is on node {gpu}")]
pub struct RemoteNode {
    /// The core.
    pub core: usize,
    /// Its node.
    pub node: u32,
    /// The GPU's node.
    pub gpu: u32,
}

/// Whether a device is to write into a GPU's memory by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum P2pPreference {
    /// Where the machine's topology lets it, and the start proves it.
    #[default]
    Auto,
    /// Direct, even if the topology advises against it; the data path is still verified at startup.
    Direct,
    /// Never.
    Staged,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// NUMA nodes, ascending; empty if unknown.
    pub nodes: Vec<Node>,
    /// Cores that this process may use, ascending; empty if unknown.
    pub cores: Vec<usize>,
    /// The PCIe tree; empty if unknown.
    pub pci: PciTree,
    /// GPUs that rings can lie on.
    pub gpus: Vec<Gpu>,
    /// Network cards for RDMA, by name.
    pub nics: Vec<Nic>,
    /// Whether a kernel module is loaded by which cards are result where a GPU's memory is without a dma-buf.
    pub peer_memory: bool,
    /// Why there are no GPUs, as a clause; shown where `memory = "auto"` became host memory.
    pub no_gpu: String,
    /// Whether this was read from the machine; false for plans made without hardware.
    pub is_real: bool,
}

impl Topology {
    /// This machine.
    pub fn detect() -> Self {
        let sys = Path::new("/sys");
        let (gpus, no_gpu) = match Identity::all() {
            Ok(found) => (
                found.iter().map(|gpu| Gpu::of(gpu, sys)).collect(),
                String::new(),
            ),
            Err(why) => (Vec::new(), why.to_string()),
        };
        Self {
            cores: crate::thread::allowed_cores(),
            gpus,
            no_gpu,
            is_real: true,
            ..Self::read(sys)
        }
    }

    /// No machine in particular: for checking a configuration anywhere.
    pub fn unknown() -> Self {
        Self {
            nodes: Vec::new(),
            cores: Vec::new(),
            pci: PciTree::default(),
            gpus: Vec::new(),
            nics: Vec::new(),
            peer_memory: false,
            no_gpu: "planned without hardware detection".to_owned(),
            is_real: false,
        }
    }

    /// The nodes, the PCIe tree and the network cards of a recorded or present `/sys`.
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

    /// How remote `core` is from a GPU on node `gpu`; `None` on the same node, and where either node is unknown.
    pub fn remote_node(&self, core: usize, gpu: Option<u32>) -> Option<RemoteNode> {
        let remote = RemoteNode {
            core,
            node: self.node_of(core)?,
            gpu: gpu?,
        };
        (remote.node != remote.gpu).then_some(remote)
    }

    /// The node that a core belongs to.
    pub fn node_of(&self, core: usize) -> Option<u32> {
        self.nodes
            .iter()
            .find(|node| node.cores.contains(&core))
            .map(|node| node.id)
    }
}

/// Reads the kernel's list format.
///
/// ```
/// assert_eq!(daq_core::topology::parse_list("0-2,5\n"), [0, 1, 2, 5]);
/// assert!(daq_core::topology::parse_list("").is_empty());
/// ```
pub fn parse_list(text: &str) -> Vec<usize> {
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse().ok()?..=last.trim().parse::<usize>().ok()?.min(1 << 16))
        })
        .flatten()
        .collect()
}
