//! Checks the requirements for writes of an RDMA card to GPU memory, except properties that are reported with each GPU.

use super::{Finding, GROUP, Machine, Verdict};
use daq_core::topology::tree::Iommu;

const RELEASE: &str = "/proc/sys/kernel/osrelease";
const NVIDIA: &str = "/proc/driver/nvidia/version";
/// The first Linux version that supports `ibv_reg_dmabuf_mr`.
const DMA_BUF_KERNEL: (u32, u32) = (5, 12);
/// Linux build option that mlx5 needs for dma-bufs. Without this option, mlx5 rejects dma-bufs with EOPNOTSUPP.
const PAGING: &str = "CONFIG_INFINIBAND_ON_DEMAND_PAGING";

/// Returns the findings; an empty list if the machine has neither a GPU nor a GPU driver.
pub(super) fn examine(machine: &Machine<'_>) -> Vec<Finding> {
    if machine.topology.gpus.is_empty() && !machine.root.exists(NVIDIA) {
        return Vec::new();
    }
    let mut findings = vec![registration(machine), translation(machine)];
    if machine.cards().any(|card| card.is_mlx5()) {
        findings.push(paging(machine));
        findings.extend(scatter(machine.scatter.as_deref()));
    }
    findings
}

fn release(machine: &Machine<'_>) -> Option<(String, (u32, u32))> {
    let release = machine.root.text(RELEASE)?;
    let mut parts = release.split(['.', '-']);
    let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((release, (major, minor)))
}

/// Checks whether Linux accepts GPU memory as a dma-buf.
fn registration(machine: &Machine<'_>) -> Finding {
    let finding = Finding::new(GROUP, "dma-buf registration", RELEASE);
    let Some((release, version)) = release(machine) else {
        return finding;
    };
    if version >= DMA_BUF_KERNEL {
        finding.read(Verdict::Ok, format!("Linux {release}")).why(
            "this Linux can register GPU memory as dma-bufs; the line `dma-buf` of each GPU shows whether the GPU exports them",
        )
    } else if machine.topology.peer_memory {
        finding
            .read(Verdict::Ok, format!("Linux {release}"))
            .why("this Linux does not support dma-bufs; daq uses nvidia-peermem instead")
    } else {
        finding
            .read(Verdict::Warn, format!("Linux {release}"))
            .why("Linux before 5.12 does not support dma-bufs, and nvidia-peermem is not loaded, so daq uses the staged path")
            .fix("sudo modprobe nvidia-peermem  # or install Linux 5.12 or newer")
    }
}

/// Checks whether the mlx5 driver of this Linux supports dma-bufs.
fn paging(machine: &Machine<'_>) -> Finding {
    let path = release(machine).map_or_else(
        || "/boot/config-*".to_owned(),
        |(release, _)| format!("/boot/config-{release}"),
    );
    let finding = Finding::new(GROUP, "on-demand paging", path.as_str());
    let Some(text) = machine.root.text(&path) else {
        return finding.why("mlx5 supports dma-bufs only if Linux was built with this option");
    };
    let is_on = text.lines().any(|line| line == format!("{PAGING}=y"));
    if is_on {
        finding.read(Verdict::Ok, "on")
    } else if machine.topology.peer_memory {
        finding
            .read(Verdict::Ok, "off")
            .why("mlx5 does not support dma-bufs on this Linux; daq uses nvidia-peermem instead")
    } else {
        finding
            .read(Verdict::Warn, "off")
            .why("mlx5 rejects dma-bufs (EOPNOTSUPP), so daq uses the staged path")
            .fix(format!(
                "sudo modprobe nvidia-peermem  # or use a Linux kernel with {PAGING}=y"
            ))
    }
}

/// Checks whether the IOMMU translates the cards' addresses.
fn translation(machine: &Machine<'_>) -> Finding {
    let tree = &machine.topology.pci;
    let finding = Finding::new(
        GROUP,
        "IOMMU translation",
        "/sys/kernel/iommu_groups/*/type",
    );
    if tree.iommu == Iommu::Off {
        return finding.read(Verdict::Ok, "none: the IOMMU is off");
    }
    let kinds = machine.cards().filter_map(|card| {
        let kind = card.device?.group.as_ref()?.kind.clone()?;
        Some((card.nic.name.clone(), kind))
    });
    let kinds: Vec<_> = kinds.collect();
    let Some((name, kind)) = kinds.iter().find(|(_, kind)| kind.starts_with("DMA")) else {
        return match kinds.first() {
            Some((_, kind)) => finding.read(Verdict::Ok, kind.as_str()),
            None => finding,
        };
    };
    finding
        .read(Verdict::Warn, format!("{name} {kind}"))
        .why("the IOMMU translates the card's DMA addresses, so peer-to-peer writes to a GPU pass through the processor and are slow or rejected")
        .fix("sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub && sudo update-grub && sudo reboot")
}

/// Checks whether mlx5 may put small messages into completions instead of into GPU memory.
pub(super) fn scatter(set: Option<&str>) -> Option<Finding> {
    let finding = Finding::new(GROUP, "MLX5_SCATTER_TO_CQE", "environment");
    Some(match set? {
        "0" => finding.read(Verdict::Ok, "0"),
        other => finding
            .read(
                Verdict::Warn,
                if other.is_empty() { "not set" } else { other },
            )
            .why("mlx5 may deliver small messages inside completions; the CPU then copies the messages, but the CPU cannot write GPU memory")
            .fix("export MLX5_SCATTER_TO_CQE=0  # Environment=MLX5_SCATTER_TO_CQE=0 in a systemd unit"),
    })
}
