//! Checks the requirements for writes of an RDMA card to GPU memory, except properties that are reported with each GPU.

use super::Machine;
use crate::doctor::check::{Judgement, not_applicable, ok, unreadable, warn};
use crate::doctor::system::release;
use daq_core::topology::tree::Iommu;

pub(super) const RELEASE: &str = "/proc/sys/kernel/osrelease";
pub(super) const GROUPS: &str = "/sys/kernel/iommu_groups/*/type";
const NVIDIA: &str = "/proc/driver/nvidia/version";
/// The first Linux version that supports `ibv_reg_dmabuf_mr`.
const DMA_BUF_KERNEL: (u32, u32) = (5, 12);
/// Linux build option that mlx5 needs for dma-bufs. Without this option, mlx5 rejects dma-bufs with EOPNOTSUPP.
const PAGING: &str = "CONFIG_INFINIBAND_ON_DEMAND_PAGING";

/// Returns whether the machine has a GPU or a GPU driver.
fn has_gpu(machine: &Machine<'_>) -> bool {
    !machine.topology.gpus.is_empty() || machine.root.exists(NVIDIA)
}

/// Returns whether the machine has a GPU and a card with the mlx5 driver.
fn has_mlx5(machine: &Machine<'_>) -> bool {
    has_gpu(machine) && machine.cards().any(|card| card.is_mlx5())
}

/// Checks whether Linux accepts GPU memory as a dma-buf.
pub(super) fn registration(machine: &Machine<'_>) -> Option<Judgement> {
    if !has_gpu(machine) {
        return Some(not_applicable());
    }
    let (version, release) = release(machine.root)?;
    let read = format!("Linux {release}");
    Some(if version >= DMA_BUF_KERNEL {
        ok(read).why("this Linux can register GPU memory as dma-bufs; the line `dma-buf` of each GPU shows whether the GPU exports them")
    } else if machine.topology.peer_memory {
        ok(read).why("this Linux does not support dma-bufs; daq uses nvidia-peermem instead")
    } else {
        warn(
            read,
            "Linux before 5.12 does not support dma-bufs, and nvidia-peermem is not loaded, so daq uses the staged path",
            "sudo modprobe nvidia-peermem  # or install Linux 5.12 or newer",
        )
    })
}

/// Checks whether the mlx5 driver of this Linux supports dma-bufs.
pub(super) fn paging(machine: &Machine<'_>) -> Option<Judgement> {
    if !has_mlx5(machine) {
        return Some(not_applicable());
    }
    let release = release(machine.root).map(|(_, release)| release);
    let path = format!("/boot/config-{}", release.as_deref().unwrap_or("*"));
    let Some(text) = machine.root.text(&path) else {
        let why = "mlx5 supports dma-bufs only if Linux was built with this option";
        return Some(unreadable().why(why).from(path));
    };
    let judged = if text.lines().any(|line| line == format!("{PAGING}=y")) {
        ok("on")
    } else if machine.topology.peer_memory {
        ok("off")
            .why("mlx5 does not support dma-bufs on this Linux; daq uses nvidia-peermem instead")
    } else {
        warn(
            "off",
            "mlx5 rejects dma-bufs (EOPNOTSUPP), so daq uses the staged path",
            format!("sudo modprobe nvidia-peermem  # or use a Linux kernel with {PAGING}=y"),
        )
    };
    Some(judged.from(path))
}

/// Checks whether the IOMMU translates the cards' addresses.
pub(super) fn translation(machine: &Machine<'_>) -> Option<Judgement> {
    if !has_gpu(machine) {
        return Some(not_applicable());
    }
    if machine.topology.pci.iommu == Iommu::Off {
        return Some(ok("none: the IOMMU is off"));
    }
    let kinds = machine.cards().filter_map(|card| {
        let kind = card.device?.group.as_ref()?.kind.clone()?;
        Some((card.nic.name.clone(), kind))
    });
    let kinds: Vec<_> = kinds.collect();
    let Some((name, kind)) = kinds.iter().find(|(_, kind)| kind.starts_with("DMA")) else {
        let (_, kind) = kinds.first()?;
        return Some(ok(kind.as_str()));
    };
    Some(warn(
        format!("{name} {kind}"),
        "the IOMMU translates the card's DMA addresses, so peer-to-peer writes to a GPU pass through the processor and are slow or rejected",
        "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub && sudo update-grub && sudo reboot",
    ))
}

/// Checks whether mlx5 may put small messages into completions instead of into GPU memory.
pub(super) fn scatter(machine: &Machine<'_>) -> Option<Judgement> {
    let set = machine.scatter.as_deref().filter(|_| has_mlx5(machine));
    let read = match set {
        None => return Some(not_applicable()),
        Some("0") => return Some(ok("0")),
        Some("") => "not set",
        Some(other) => other,
    };
    Some(warn(
        read,
        "mlx5 may deliver small messages inside completions; the CPU then copies the messages, but the CPU cannot write GPU memory",
        "export MLX5_SCATTER_TO_CQE=0  # Environment=MLX5_SCATTER_TO_CQE=0 in a systemd unit",
    ))
}
