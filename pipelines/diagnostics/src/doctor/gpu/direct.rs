//! Checks CUDA's support for writes of other devices to GPU memory (GPUDirect), and for sharing memory with other
//! processes.

use super::driver::{INSTALL, Module};
use super::{Card, Finding, Root, Verdict, has_rdma};

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
pub struct CudaFacts {
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED` (116).
    pub rdma: bool,
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING` (118): 0 none, 100 owner, 200 all devices.
    pub write_ordering: i32,
    /// Whether the host can flush writes of other devices: `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`
    /// (117), bit 0.
    pub flush: bool,
    /// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED` (124).
    pub dma_buf: bool,
    /// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED` (102).
    pub vmm: bool,
    /// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED` (103).
    pub posix_fd: bool,
}

/// Returns the findings of one GPU; an empty list if CUDA was not queried.
pub(super) fn examine(root: &Root, card: &Card, module: Option<&Module>) -> Vec<Finding> {
    let Some(cuda) = card.cuda else {
        return Vec::new();
    };
    vec![
        rdma(root, card, cuda),
        dma_buf(card, cuda, module),
        ordering(card, cuda),
        shared(card, cuda),
    ]
}

fn attribute(card: &Card, name: &'static str, numbers: &str) -> Finding {
    card.finding(name, format!("CUDA attribute {numbers}"))
}

fn rdma(root: &Root, card: &Card, cuda: &CudaFacts) -> Finding {
    let finding = attribute(card, "GPUDirect RDMA", "116");
    if cuda.rdma {
        return finding.read(Verdict::Ok, "supported");
    }
    let finding =
        finding.why("network cards cannot write this GPU's memory, so daq uses the staged path");
    if has_rdma(root) {
        finding.read(Verdict::Warn, "not supported").fix(format!(
            "nvidia-smi -q -i {} | grep -i product  # data-centre and RTX PRO GPUs support GPUDirect RDMA, GeForce GPUs do not",
            card.address
        ))
    } else {
        finding.read(Verdict::Ok, "not supported")
    }
}

fn dma_buf(card: &Card, cuda: &CudaFacts, module: Option<&Module>) -> Finding {
    let finding = attribute(card, "dma-buf", "124");
    if cuda.dma_buf {
        return finding.read(Verdict::Ok, "supported");
    }
    let finding = finding.read(Verdict::Warn, "not supported");
    if module.is_some_and(|module| module.is_open) {
        finding
            .why("Linux or the GPU cannot export dma-bufs, so other devices cannot write this GPU's memory")
            .fix("uname -r  # needs Linux 5.12 or newer with CONFIG_DMA_SHARED_BUFFER, and a Turing GPU or newer")
    } else {
        finding
            .why("only NVIDIA's open kernel modules export dma-bufs")
            .fix(format!(
                "{INSTALL}  # install the open kernel modules; then reboot"
            ))
    }
}

fn ordering(card: &Card, cuda: &CudaFacts) -> Finding {
    let finding = attribute(card, "write ordering", "117, 118");
    let read = match cuda.write_ordering {
        0 => "none".to_owned(),
        OWNER => "owner".to_owned(),
        ALL_DEVICES => "all devices".to_owned(),
        other => other.to_string(),
    };
    if cuda.write_ordering >= OWNER {
        return finding.read(Verdict::Ok, read);
    }
    if cuda.flush {
        finding
            .read(Verdict::Ok, read)
            .why("daq flushes the writes after each completion, before a kernel reads the data")
    } else {
        finding
            .read(Verdict::Warn, read)
            .why("kernels could read stale data, and the writes cannot be flushed, so daq uses the staged path")
            .fix(format!("{INSTALL}  # installs a newer driver; then reboot"))
    }
}

fn shared(card: &Card, cuda: &CudaFacts) -> Finding {
    let finding = attribute(card, "shareable memory", "102, 103");
    if cuda.vmm && cuda.posix_fd {
        finding.read(Verdict::Ok, "supported")
    } else {
        finding
            .read(Verdict::Ok, "not supported")
            .why("rings use plain allocations, which no other process can map")
    }
}
