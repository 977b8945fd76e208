//! Checks CUDA's support for writes of other devices to GPU memory (GPUDirect), and for sharing memory with other
//! processes.

use super::driver::INSTALL;
use super::{Card, has_rdma};
use crate::doctor::check::{Judgement, not_applicable, ok, warn};

/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`: the context that owns the memory sees writes of other devices in order.
const OWNER: i32 = 100;
/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES`.
const ALL_DEVICES: i32 = 200;

/// Attributes of a CUDA device that determine how other devices can transfer data to its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each field is a separate attribute of CUDA"
)]
pub(super) struct CudaFacts {
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED` (116).
    pub(super) rdma: bool,
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING` (118): 0 none, 100 owner, 200 all devices.
    pub(super) write_ordering: i32,
    /// Whether the host can flush writes of other devices: `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`
    /// (117), bit 0.
    pub(super) flush: bool,
    /// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED` (124).
    pub(super) dma_buf: bool,
    /// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED` (102).
    pub(super) vmm: bool,
    /// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED` (103).
    pub(super) posix_fd: bool,
}

pub(super) fn rdma(card: &Card<'_>) -> Option<Judgement> {
    let why = "network cards cannot write this GPU's memory, so daq uses the staged path";
    Some(match card.cuda {
        None => not_applicable(),
        Some(cuda) if cuda.rdma => ok("supported"),
        Some(_) if has_rdma(card.root) => warn(
            "not supported",
            why,
            format!(
                "nvidia-smi -q -i {} | grep -i product  # data-centre and RTX PRO GPUs support GPUDirect RDMA, GeForce GPUs do not",
                card.address
            ),
        ),
        Some(_) => ok("not supported").why(why),
    })
}

pub(super) fn dma_buf(card: &Card<'_>) -> Option<Judgement> {
    Some(match card.cuda {
        None => not_applicable(),
        Some(cuda) if cuda.dma_buf => ok("supported"),
        Some(_) if card.module.is_some_and(|module| module.is_open) => warn(
            "not supported",
            "Linux or the GPU cannot export dma-bufs, so other devices cannot write this GPU's memory",
            "uname -r  # needs Linux 5.12 or newer with CONFIG_DMA_SHARED_BUFFER, and a Turing GPU or newer",
        ),
        Some(_) => warn(
            "not supported",
            "only NVIDIA's open kernel modules export dma-bufs",
            format!("{INSTALL}  # install the open kernel modules; then reboot"),
        ),
    })
}

pub(super) fn ordering(card: &Card<'_>) -> Option<Judgement> {
    let Some(cuda) = card.cuda else {
        return Some(not_applicable());
    };
    let read = match cuda.write_ordering {
        0 => "none".to_owned(),
        OWNER => "owner".to_owned(),
        ALL_DEVICES => "all devices".to_owned(),
        other => other.to_string(),
    };
    Some(if cuda.write_ordering >= OWNER {
        ok(read)
    } else if cuda.flush {
        ok(read).why("daq flushes the writes after each completion, before a kernel reads the data")
    } else {
        warn(
            read,
            "kernels could read stale data, and the writes cannot be flushed, so daq uses the staged path",
            format!("{INSTALL}  # installs a newer driver; then reboot"),
        )
    })
}

pub(super) fn shared(card: &Card<'_>) -> Option<Judgement> {
    Some(match card.cuda {
        None => not_applicable(),
        Some(cuda) if cuda.vmm && cuda.posix_fd => ok("supported"),
        Some(_) => {
            ok("not supported").why("rings use plain allocations, which no other process can map")
        }
    })
}

/// Reports which other GPUs' memory the GPU can write, and over which link.
pub(super) fn peers(card: &Card<'_>) -> Option<Judgement> {
    let Some(peers) = card.peers.filter(|peers| !peers.is_empty()) else {
        return Some(not_applicable());
    };
    let linked = peers
        .iter()
        .filter_map(|(name, link)| Some((name, (*link)?)));
    let linked: Vec<_> = linked
        .map(|(name, link)| format!("{name} ({link})"))
        .collect();
    let read = if linked.is_empty() {
        "none".to_owned()
    } else {
        linked.join(", ")
    };
    let unlinked = peers.iter().filter(|(_, link)| link.is_none());
    let unlinked: Vec<_> = unlinked.map(|(name, _)| name.as_str()).collect();
    Some(if unlinked.is_empty() {
        ok(read)
    } else {
        ok(read).why(format!(
            "frames for {} are copied through host memory",
            unlinked.join(", ")
        ))
    })
}
