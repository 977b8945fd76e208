//! Selects the method by which a region is registered with a NIC.
//!
//! ```text
//!   host memory   ibv_reg_mr
//!   GPU memory    its dma-buf ──refused──▶ nvidia-peermem ──refused──▶ none: the caller stages through host memory
//! ```
//! Every method that failed or was skipped is recorded with the reason and the fix.

pub mod set;

use crate::verbs::{Access, MemoryRegion, Nic, RegistrationMethod, VerbsError};
use daq_core::gpu::driver::{Attributes, Device};
use daq_core::region::{Placement, Region};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Facts of this host that decide how a NIC can access GPU memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerFacts {
    /// The loaded kernel module that resolves GPU addresses for NICs: `nvidia_peermem`, or its predecessor
    /// `nv_peer_mem`.
    pub peer_module: Option<&'static str>,
    /// True if NVIDIA's open kernel modules are loaded, which are required for dma-bufs; `None` without NVIDIA modules.
    pub open_modules: Option<bool>,
    /// True if NVIDIA's driver maps peer memory through the IOMMU (`DmaRemapPeerMmio`).
    pub remaps_peers: Option<bool>,
    /// True if other devices may access the GPU's memory (CUDA device attribute 116); `None` if unknown.
    pub rdma: Option<bool>,
    /// True if the GPU exports dma-bufs (CUDA device attribute 124); `None` if unknown.
    pub dma_buf: Option<bool>,
}

impl PeerFacts {
    /// Reads the facts from `/sys` and `/proc` under `root`. Facts without a file stay unknown.
    pub fn read(root: &Path) -> Self {
        let modules = ["nvidia_peermem", "nv_peer_mem"];
        let is_loaded = |module: &&str| root.join("sys/module").join(module).is_dir();
        let text = |path| std::fs::read_to_string(root.join(path)).ok();
        let params = text("proc/driver/nvidia/params");
        let remap = params.as_deref().and_then(|text| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(name, _)| name.trim() == "DmaRemapPeerMmio")
        });
        Self {
            peer_module: modules.into_iter().find(is_loaded),
            open_modules: text("proc/driver/nvidia/version")
                .map(|version| version.contains("Open Kernel Module")),
            remaps_peers: remap.map(|(_, value)| value.trim() != "0"),
            rdma: None,
            dma_buf: None,
        }
    }

    /// Returns the facts for memory at `placement`; empty for host memory.
    pub fn of(placement: Placement) -> Self {
        let Placement::Cuda(ordinal) = placement else {
            return Self::default();
        };
        let facts = Self::read(Path::new("/"));
        match Device::open(ordinal) {
            Ok(device) => facts.with_gpu(device.attributes()),
            Err(_) => facts,
        }
    }

    /// Adds the GPU attributes that CUDA reports.
    #[must_use]
    pub const fn with_gpu(mut self, attributes: &Attributes) -> Self {
        self.rdma = Some(attributes.rdma);
        self.dma_buf = Some(attributes.dma_buf);
        self
    }
}

/// A registration method that failed or was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The registration method.
    pub method: RegistrationMethod,
    /// The errno that Linux returned; 0 if the method was skipped.
    pub errno: i32,
    /// The reason why the method failed or was skipped.
    pub why: String,
    /// The action that fixes the problem.
    pub remedy: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.method, self.why, self.remedy)
    }
}

/// A region that is registered with a NIC.
#[derive(Debug)]
pub struct Registered {
    /// The registration.
    pub region: MemoryRegion,
    /// Methods that were preferred to the one used, but failed or were skipped.
    pub refused: Vec<Refusal>,
}

/// Error: every method to register a region failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{nic} cannot access memory on {placement}: {}", join_refusals(.refused))]
pub struct UnregistrableError {
    /// The NIC.
    pub nic: String,
    /// The location of the region.
    pub placement: Placement,
    /// Every method in the order of the attempts, with the reason why it failed or was skipped.
    pub refused: Vec<Refusal>,
}

fn join_refusals(refused: &[Refusal]) -> String {
    let all: Vec<_> = refused.iter().map(ToString::to_string).collect();
    all.join("; ")
}

/// Registers all of `region` by the best available method. Only payload may use relaxed ordering; use
/// [`register_words`] for words that announce payload.
pub fn register_region(
    nic: &dyn Nic,
    region: &Arc<Region>,
    access: Access,
    facts: &PeerFacts,
) -> Result<Registered, UnregistrableError> {
    let attempt = |method| nic.register(region, method, access);
    match try_methods(region.placement(), facts, attempt) {
        Ok((region, refused)) => Ok(Registered { region, refused }),
        Err(refused) => Err(UnregistrableError {
            nic: nic.name().to_owned(),
            placement: region.placement(),
            refused,
        }),
    }
}

/// Registers host memory for records, credits and other words that announce payload; always without relaxed ordering.
pub fn register_words(
    nic: &dyn Nic,
    region: &Arc<Region>,
    access: Access,
) -> Result<MemoryRegion, UnregistrableError> {
    let access = Access {
        relaxed: false,
        ..access
    };
    register_region(nic, region, access, &PeerFacts::default()).map(|registered| registered.region)
}

/// Tries the methods in order of preference.
fn try_methods<K>(
    placement: Placement,
    facts: &PeerFacts,
    mut attempt: impl FnMut(RegistrationMethod) -> Result<K, VerbsError>,
) -> Result<(K, Vec<Refusal>), Vec<Refusal>> {
    let methods: &[RegistrationMethod] = match placement {
        Placement::Host => &[RegistrationMethod::Host],
        Placement::Cuda(_) => &[RegistrationMethod::DmaBuf, RegistrationMethod::Peer],
    };
    let mut refused = Vec::new();
    for method in methods.iter().copied() {
        if let Some(refusal) = known_failure(method, facts) {
            refused.push(refusal);
            continue;
        }
        match attempt(method) {
            Ok(key) => return Ok((key, refused)),
            Err(error) => refused.push(Refusal {
                method,
                errno: error.errno,
                why: error.to_string(),
                remedy: remedy(method, error.errno, facts),
            }),
        }
    }
    Err(refused)
}

/// Returns why a method cannot succeed, if that is known without an attempt.
fn known_failure(method: RegistrationMethod, facts: &PeerFacts) -> Option<Refusal> {
    let (why, remedy) = match method {
        RegistrationMethod::DmaBuf if facts.dma_buf == Some(false) => (
            "the GPU driver cannot export dma-bufs (CUDA device attribute 124 is 0)",
            if facts.open_modules == Some(false) {
                "install NVIDIA's open kernel modules, driver 535 or newer"
            } else {
                "use a data-centre or workstation GPU with driver 535 or newer"
            },
        ),
        RegistrationMethod::Peer if facts.rdma == Some(false) => (
            "other devices cannot access the memory of this GPU (CUDA device attribute 116 is 0)",
            "use a GPU that supports GPUDirect RDMA",
        ),
        RegistrationMethod::Peer if facts.peer_module.is_none() => (
            "the kernel module nvidia-peermem is not loaded",
            "run modprobe nvidia-peermem; if it fails with \"Invalid argument\", this Linux version has no peer-memory interface: install MLNX_OFED or DOCA-OFED, then reinstall the GPU driver",
        ),
        RegistrationMethod::DmaBuf | RegistrationMethod::Peer | RegistrationMethod::Host => {
            return None;
        }
    };
    Some(Refusal {
        method,
        errno: 0,
        why: why.to_owned(),
        remedy: remedy.to_owned(),
    })
}

/// `ENOTSUPP`: an internal error number of Linux, which system calls should not return and `libc` does not define.
/// NVIDIA's driver returns this number when the driver refuses to attach a NIC to a dma-buf.
const ENOTSUPP: i32 = 524;

/// Returns the fix for `errno`.
fn remedy(method: RegistrationMethod, errno: i32, facts: &PeerFacts) -> String {
    let text = match (method, errno) {
        (_, libc::ENOMEM | libc::EAGAIN) if method != RegistrationMethod::DmaBuf => {
            "raise the limit of locked memory: ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit"
        }
        (_, libc::EPERM | libc::EACCES) => {
            "allow daq to open /dev/infiniband/uverbs* (add the user to the group that owns them) and to lock memory (LimitMEMLOCK=infinity in the systemd unit)"
        }
        (RegistrationMethod::DmaBuf, libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT) => {
            if facts.open_modules == Some(false) {
                "install NVIDIA's open kernel modules, which export dma-bufs, or run modprobe nvidia-peermem"
            } else {
                "use Linux 5.12 or newer, rdma-core 34 or newer and a NIC whose driver accepts dma-bufs (mlx5 with on-demand paging); or run modprobe nvidia-peermem"
            }
        }
        (RegistrationMethod::DmaBuf, ENOTSUPP) if facts.open_modules == Some(false) => {
            "error 524 is ENOTSUPP: the GPU driver cannot export dma-bufs to this NIC; install NVIDIA's open kernel modules (driver 535 or newer), or run modprobe nvidia-peermem"
        }
        (RegistrationMethod::DmaBuf, ENOTSUPP) => {
            "error 524 is ENOTSUPP: the GPU driver refused to attach this NIC, because there is no supported PCIe path between the two, or because the NIC driver does not accept memory of PCIe peers; put both below one PCIe switch or root complex, use a kernel built with CONFIG_PCI_P2PDMA and CONFIG_DMABUF_MOVE_NOTIFY and a current driver with NVIDIA's open kernel modules, or run modprobe nvidia-peermem"
        }
        (RegistrationMethod::DmaBuf, libc::EINVAL) => {
            "the NIC driver rejected this dma-buf: install a NIC driver that matches the running kernel, or run modprobe nvidia-peermem"
        }
        (
            RegistrationMethod::DmaBuf | RegistrationMethod::Peer,
            libc::EIO | libc::EFAULT | libc::ENXIO | libc::EREMOTEIO,
        ) if facts.remaps_peers == Some(false) => {
            "allow the GPU driver to map peer devices through the IOMMU (options nvidia NVreg_DmaRemapPeerMmio=1 in /etc/modprobe.d), or disable the IOMMU"
        }
        (RegistrationMethod::Peer, libc::EFAULT | libc::EINVAL) => {
            if facts.peer_module == Some("nv_peer_mem") {
                "replace nv_peer_mem with nvidia-peermem, which is part of the GPU driver: rmmod nv_peer_mem; modprobe nvidia-peermem"
            } else {
                "the InfiniBand modules of this kernel do not support nvidia-peermem: install MLNX_OFED or DOCA-OFED, then reinstall the GPU driver"
            }
        }
        (RegistrationMethod::Host, libc::EFAULT) => {
            "the NIC cannot access device memory that is mapped into a process: stage frames through host memory"
        }
        (RegistrationMethod::DmaBuf, libc::ENOMEM | libc::EAGAIN | libc::ENOSPC) => {
            "the GPU's BAR1 or the NIC's translation table is full: use fewer or smaller slots, or enable resizable BAR"
        }
        _ => "check dmesg for messages of the NIC driver",
    };
    text.to_owned()
}

#[cfg(test)]
mod tests;
