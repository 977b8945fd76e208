//! The one place that decides which way a region is registered with a card.
//!
//! ```text
//!   host memory   ibv_reg_mr
//!   a GPU's       its dma-buf ──refused──▶ nvidia-peermem ──refused──▶ none: the caller stages through host memory
//! ```
//! Whatever was tried, or not even tried, is kept with its reason and its remedy.

pub mod set;

use crate::verbs::{Access, MemoryRegion, Nic, RegistrationMethod, VerbsError};
use daq_core::gpu::driver::{Attributes, Device};
use daq_core::region::{Placement, Region};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// What this host says about reaching a GPU's memory from other devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerFacts {
    /// The module that resolves a GPU's addresses for network cards, if one is loaded: `nvidia_peermem`, or `nv_peer_mem`
    /// of before it.
    pub peer_module: Option<&'static str>,
    /// Whether NVIDIA's kernel modules are the open ones, which alone export dma-bufs; `None` where there are none.
    pub open_modules: Option<bool>,
    /// Whether NVIDIA's driver maps peers' memory through an IOMMU (`DmaRemapPeerMmio`).
    pub remaps_peers: Option<bool>,
    /// Whether other devices may reach the GPU's memory (CUDA's attribute 116); `None` where CUDA was not asked.
    pub rdma: Option<bool>,
    /// Whether the GPU exports dma-bufs (CUDA's attribute 124); `None` where CUDA was not asked.
    pub dma_buf: Option<bool>,
}

impl PeerFacts {
    /// What `/sys` and `/proc` under `root` say. What is not there stays unknown.
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

    /// What decides in which way memory at `placement` is registered: of a GPU's, what this host and CUDA say.
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

    /// The same with what CUDA says of the GPU.
    #[must_use]
    pub const fn with_gpu(mut self, attributes: &Attributes) -> Self {
        self.rdma = Some(attributes.rdma);
        self.dma_buf = Some(attributes.dma_buf);
        self
    }
}

/// A way that was not gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The way.
    pub method: RegistrationMethod,
    /// The kernel's answer; 0 where it was not asked.
    pub errno: i32,
    /// What was found, or answered.
    pub why: String,
    /// What helps.
    pub remedy: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.method, self.why, self.remedy)
    }
}

/// A region that a card reaches.
#[derive(Debug)]
pub struct Registered {
    /// What names it.
    pub region: MemoryRegion,
    /// The ways that would have been better.
    pub refused: Vec<Refusal>,
}

/// A region that a card cannot reach.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{nic} cannot reach memory on {placement}: {}", join_refusals(.refused))]
pub struct UnregistrableError {
    /// The card.
    pub nic: String,
    /// Where the region lies.
    pub placement: Placement,
    /// Every way, in the order in which they were tried.
    pub refused: Vec<Refusal>,
}

fn join_refusals(refused: &[Refusal]) -> String {
    let all: Vec<_> = refused.iter().map(ToString::to_string).collect();
    all.join("; ")
}

/// Registers all of `region` in the best way there is. Relaxed ordering is for payload alone; for words that tell of
/// payload there is [`words`].
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

/// Registers host memory that holds records, credits or other words that tell of payload: never with relaxed ordering.
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

/// Goes through the ways, best first.
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

/// Why a way need not be tried.
fn known_failure(method: RegistrationMethod, facts: &PeerFacts) -> Option<Refusal> {
    let (why, remedy) = match method {
        RegistrationMethod::DmaBuf if facts.dma_buf == Some(false) => (
            "the GPU's driver exports no dma-buf (CUDA's attribute 124 is 0)",
            if facts.open_modules == Some(false) {
                "install NVIDIA's open kernel modules, driver 535 or newer"
            } else {
                "it takes a data centre's or workstation's GPU and driver 535 or newer"
            },
        ),
        RegistrationMethod::Peer if facts.rdma == Some(false) => (
            "other devices cannot reach this GPU's memory (CUDA's attribute 116 is 0)",
            "it takes a GPU with GPUDirect RDMA",
        ),
        RegistrationMethod::Peer if facts.peer_module.is_none() => (
            "the module nvidia-peermem is not loaded",
            "modprobe nvidia-peermem; it answers \"Invalid argument\" where the kernel has no peer-memory interface: install MLNX_OFED or DOCA-OFED, then the GPU's driver again",
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

/// `ENOTSUPP`: an error number of the kernel's own, which it should not return to programs and which `libc` does not define.
/// NVIDIA's driver answers it when it refuses to attach a card to a dma-buf.
const ENOTSUPP: i32 = 524;

/// The remedy for the kernel's answer `errno`.
fn remedy(method: RegistrationMethod, errno: i32, facts: &PeerFacts) -> String {
    let text = match (method, errno) {
        (_, libc::ENOMEM | libc::EAGAIN) if method != RegistrationMethod::DmaBuf => {
            "let it lock more memory: ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit"
        }
        (_, libc::EPERM | libc::EACCES) => {
            "let it open /dev/infiniband/uverbs* and lock memory: group of the device, LimitMEMLOCK=infinity in the unit"
        }
        (RegistrationMethod::DmaBuf, libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT) => {
            if facts.open_modules == Some(false) {
                "install NVIDIA's open kernel modules, which export dma-bufs, or modprobe nvidia-peermem"
            } else {
                "it takes kernel 5.12 or newer, a card whose driver takes dma-bufs (mlx5 with on-demand paging), and rdma-core 34 or newer; or modprobe nvidia-peermem"
            }
        }
        (RegistrationMethod::DmaBuf, ENOTSUPP) if facts.open_modules == Some(false) => {
            "error 524 is ENOTSUPP: the GPU's driver exports no dma-buf to this card; install NVIDIA's open kernel modules (driver 535 or newer), or modprobe nvidia-peermem"
        }
        (RegistrationMethod::DmaBuf, ENOTSUPP) => {
            "error 524 is ENOTSUPP: the GPU's driver refused to attach this card, because it knows no supported PCIe path between the two, or because the card's driver does not accept memory of PCIe peers; put both below one PCIe switch or root complex, use a kernel built with CONFIG_PCI_P2PDMA and CONFIG_DMABUF_MOVE_NOTIFY and a current driver with NVIDIA's open kernel modules, or modprobe nvidia-peermem"
        }
        (RegistrationMethod::DmaBuf, libc::EINVAL) => {
            "the card's driver refuses this dma-buf: have one of its kernel's version, or modprobe nvidia-peermem"
        }
        (
            RegistrationMethod::DmaBuf | RegistrationMethod::Peer,
            libc::EIO | libc::EFAULT | libc::ENXIO | libc::EREMOTEIO,
        ) if facts.remaps_peers == Some(false) => {
            "let the driver map peers through the IOMMU: options nvidia NVreg_DmaRemapPeerMmio=1, or turn the IOMMU off"
        }
        (RegistrationMethod::Peer, libc::EFAULT | libc::EINVAL) => {
            if facts.peer_module == Some("nv_peer_mem") {
                "replace nv_peer_mem by nvidia-peermem, which comes with the driver: rmmod nv_peer_mem; modprobe nvidia-peermem"
            } else {
                "the kernel's InfiniBand modules do not ask nvidia-peermem: install MLNX_OFED or DOCA-OFED, then the GPU's driver again"
            }
        }
        (RegistrationMethod::Host, libc::EFAULT) => {
            "the card reaches no memory of other devices that is mapped into a process: stage through host memory"
        }
        (RegistrationMethod::DmaBuf, libc::ENOMEM | libc::EAGAIN | libc::ENOSPC) => {
            "the GPU's window (BAR1) or the card's tables are full: fewer or smaller slots, or a larger window (resizable BAR)"
        }
        _ => "see dmesg for what the card's driver says of it",
    };
    text.to_owned()
}

#[cfg(test)]
mod tests;
