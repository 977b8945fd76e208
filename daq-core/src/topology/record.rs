//! Recording of a machine's topology in a directory, which contains only the data that the topology is read from.
//!
//! ```text
//!   DIR/sys/…          the files and links of /sys that are read, with the same paths
//!   DIR/proc/cpuinfo   the lines of /proc/cpuinfo that are read
//!   DIR/gpus.json      properties of the GPUs from CUDA and NVML
//! ```
//! Serial numbers are not recorded: neither a GPU's UUID nor the parts of a configuration space that contain one. Of a
//! network card's addresses, the kind is recorded but not the part that identifies the host.

use super::tree::Processor;
use super::{Bar1, Gpu, Topology, acs, nic, pci};
use crate::gpu::Backend;
use crate::gpu::driver::PeerLink;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

/// Files that are read from a device's directory.
const FILES: [&str; 9] = [
    "vendor",
    "device",
    "class",
    "numa_node",
    "resource",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
];
/// Symbolic links of a device, and the directory of their targets. Only the last component of the target is read.
const LINKS: [(&str, &str); 2] = [
    ("driver", "bus/pci/drivers"),
    ("iommu_group", "kernel/iommu_groups"),
];
/// Files that are read from a network card's directory. These files do not contain the card's GUIDs.
const NIC_FILES: [&str; 3] = ["hca_type", "fw_ver", "parent"];
/// Files that are read from a port's directory.
const PORT_FILES: [&str; 4] = ["state", "phys_state", "link_layer", "rate"];
const DEVICES: &str = "bus/pci/devices";
const UNITS: &str = "class/iommu";
const NODES: &str = "devices/system/node";
const CPUINFO: &str = "proc/cpuinfo";
const GPUS: &str = "gpus.json";

/// The error for a topology that could not be recorded, or a recording that could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The directory exists and is not empty.
    #[error("{} is not empty; name a new directory", .path.display())]
    NotEmpty {
        /// Path of the directory.
        path: PathBuf,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The directory does not contain a recorded machine.
    #[error("{} was not written by `daq topo --record`: {why}", .path.display())]
    Foreign {
        /// The file that is not valid.
        path: PathBuf,
        /// Reason why the file is not valid.
        why: String,
    },
}

/// Recorded properties that neither `/sys` nor `/proc` contains.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    /// CPU cores that the recording process was allowed to use.
    cores: Vec<usize>,
    /// Reason why no GPU was found, as a clause.
    no_gpu: String,
    gpus: Vec<RecordedGpu>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedGpu {
    ordinal: u32,
    name: String,
    pci: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
    window: Option<Bar1>,
    rdma: Option<bool>,
    dma_buf: Option<bool>,
    mappings: Option<Vec<RecordedMapping>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    peers: Option<BTreeMap<u32, PeerLink>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedMapping {
    backend: Backend,
    /// Reason why the backend could not map memory; `None` if it could.
    refused: Option<String>,
}

impl Topology {
    /// Records this topology, which was read from `sys`, in the directory `dir`.
    ///
    /// # Errors
    /// If the directory is not empty or cannot be written.
    pub fn record(&self, sys: &Path, dir: &Path) -> Result<(), RecordError> {
        if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(RecordError::NotEmpty {
                path: dir.to_owned(),
            });
        }
        let base = sys.canonicalize().unwrap_or_else(|_| sys.to_owned());
        let to = dir.join("sys");
        for device in &self.pci.devices {
            let entry = Path::new(DEVICES).join(&device.address);
            // Leave out a device that was removed in the meantime.
            let Ok(from) = base.join(&entry).canonicalize() else {
                continue;
            };
            let Ok(place) = from.strip_prefix(&base) else {
                continue;
            };
            let at = to.join(place);
            for file in FILES {
                copy(&from.join(file), &at.join(file))?;
            }
            for (name, parent) in LINKS {
                if let Some(end) = pci::target(&from, name) {
                    link(place, name, &Path::new(parent).join(end), &to)?;
                }
            }
            if device.is_bridge()
                && let Some((name, text)) = acs::recorded_words(&from)
            {
                write(&at.join(name), &text)?;
            }
            if let Some(group) = &device.group {
                let kind = format!("kernel/iommu_groups/{}/type", group.number);
                copy(&base.join(&kind), &to.join(&kind))?;
            }
            link(Path::new(DEVICES), &device.address, place, &to)?;
        }
        self.record_nics(&base, &to)?;
        for unit in fs::read_dir(base.join(UNITS))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = unit.file_name();
            let target = Path::new("devices/virtual/iommu").join(&name);
            link(Path::new(UNITS), &name.to_string_lossy(), &target, &to)?;
        }
        for node in &self.nodes {
            let list = format!("{NODES}/node{}/cpulist", node.id);
            copy(&base.join(&list), &to.join(&list))?;
        }
        let cpuinfo = base.parent().map(|root| root.join(CPUINFO));
        if let Some(text) = cpuinfo.and_then(|path| fs::read_to_string(path).ok()) {
            write(&dir.join(CPUINFO), &Processor::recorded_lines(&text))?;
        }
        let recorded = serde_json::to_string_pretty(&self.to_recorded()).map_err(|error| {
            let path = dir.join(GPUS);
            RecordError::File {
                path,
                source: io::Error::other(error),
            }
        })?;
        write(&dir.join(GPUS), &(recorded + "\n"))
    }

    /// Records the network cards of the `/sys` directory `base` below the directory `to`.
    fn record_nics(&self, base: &Path, to: &Path) -> Result<(), RecordError> {
        for nic in &self.nics {
            let from = base.join(nic::NICS).join(&nic.name);
            let Ok(from) = from.canonicalize() else {
                continue;
            };
            let Ok(place) = from.strip_prefix(base) else {
                continue;
            };
            let at = to.join(place);
            for file in NIC_FILES {
                copy(&from.join(file), &at.join(file))?;
            }
            let device = from.join("device").canonicalize().ok();
            if let Some(device) = &device
                && let Ok(target) = device.strip_prefix(base)
            {
                link(place, "device", target, to)?;
                for name in nic::names(&device.join("net")) {
                    let file = Path::new("net").join(name).join("dev_port");
                    copy(&device.join(&file), &to.join(target).join(&file))?;
                }
            }
            for port in &nic.ports {
                let below = format!("ports/{}", port.number);
                let (from, at) = (from.join(&below), at.join(&below));
                for file in PORT_FILES {
                    copy(&from.join(file), &at.join(file))?;
                }
                for gid in &port.gids {
                    let index = gid.index;
                    write(
                        &at.join(format!("gids/{index}")),
                        &format!("{}\n", gid.anonymous()),
                    )?;
                    for file in ["types", "ndevs"] {
                        let file = format!("gid_attrs/{file}/{index}");
                        copy(&from.join(&file), &at.join(&file))?;
                    }
                }
            }
            link(Path::new(nic::NICS), &nic.name, place, to)?;
        }
        for module in nic::PEER_MEMORY {
            let state = format!("{module}/initstate");
            copy(&base.join(&state), &to.join(&state))?;
        }
        Ok(())
    }

    /// Loads a recorded topology from the directory `dir`.
    ///
    /// # Errors
    /// If the directory does not exist, or was not written by [`record`](Self::record).
    pub fn load(dir: &Path) -> Result<Self, RecordError> {
        let path = dir.join(GPUS);
        let text = fs::read_to_string(&path).map_err(|source| RecordError::File {
            path: path.clone(),
            source,
        })?;
        let recorded: Recorded =
            serde_json::from_str(&text).map_err(|error| RecordError::Foreign {
                path,
                why: error.to_string(),
            })?;
        let sys = dir.join("sys");
        let gpus = recorded
            .gpus
            .into_iter()
            .map(|gpu| gpu.with_pci_facts(&sys));
        Ok(Self {
            cores: recorded.cores,
            gpus: gpus.collect(),
            no_gpu: recorded.no_gpu,
            is_real: true,
            ..Self::read(&sys)
        })
    }

    fn to_recorded(&self) -> Recorded {
        let gpus = self.gpus.iter().map(|gpu| RecordedGpu {
            ordinal: gpu.ordinal,
            name: gpu.name.clone(),
            pci: gpu.pci.clone(),
            memory: gpu.memory,
            window: gpu.window,
            rdma: gpu.rdma,
            dma_buf: gpu.dma_buf,
            peers: gpu.peers.clone(),
            mappings: gpu.mappings.as_ref().map(|tried| {
                let tried = tried.iter();
                tried
                    .map(|(backend, found)| RecordedMapping {
                        backend: *backend,
                        refused: found.clone().err(),
                    })
                    .collect()
            }),
        });
        Recorded {
            cores: self.cores.clone(),
            no_gpu: self.no_gpu.clone(),
            gpus: gpus.collect(),
        }
    }
}

impl RecordedGpu {
    /// Adds the PCI properties from the recorded `/sys`.
    fn with_pci_facts(self, sys: &Path) -> Gpu {
        let gpu = Gpu::new(self.ordinal, self.name);
        let gpu = match &self.pci {
            Some(address) => gpu.with_pci_facts(&pci::facts(sys, address)),
            None => gpu,
        };
        let mappings = self.mappings.map(|tried| {
            let tried = tried.into_iter();
            tried
                .map(|tried| (tried.backend, tried.refused.map_or(Ok(()), Err)))
                .collect()
        });
        Gpu {
            memory: self.memory,
            window: self.window.or(gpu.window),
            rdma: self.rdma,
            dma_buf: self.dma_buf,
            peers: self.peers,
            mappings,
            ..gpu
        }
    }
}

/// Writes a file, and creates its parent directories.
fn write(path: &Path, text: &str) -> Result<(), RecordError> {
    let failed = |source| RecordError::File {
        path: path.to_owned(),
        source,
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)
}

/// Copies a file. A missing or unreadable file is not an error.
fn copy(from: &Path, to: &Path) -> Result<(), RecordError> {
    match fs::read_to_string(from) {
        Ok(text) => write(to, &text),
        Err(_) => Ok(()),
    }
}

/// Creates a symbolic link `name` in `directory` to `target`, both below `to`. The link is relative, so that the
/// recording can be moved.
fn link(directory: &Path, name: &str, target: &Path, to: &Path) -> Result<(), RecordError> {
    let path = to.join(directory).join(name);
    let failed = |source| RecordError::File {
        path: path.clone(),
        source,
    };
    let up = directory.components().map(|_| Component::ParentDir);
    let target: PathBuf = up.chain(target.components()).collect();
    fs::create_dir_all(to.join(directory)).map_err(failed)?;
    symlink(target, &path).map_err(failed)
}
