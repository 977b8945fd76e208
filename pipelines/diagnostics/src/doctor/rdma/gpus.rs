//! What a card needs to write to GPU memory, except what is reported with each GPU.

use super::{Finding, GROUP, Machine, Verdict};
use daq_core::topology::tree::Iommu;

const RELEASE: &str = "/proc/sys/kernel/osrelease";
const NVIDIA: &str = "/proc/driver/nvidia/version";
/// Since then `ibv_reg_dmabuf_mr` is in the kernel.
const DMA_BUF_KERNEL: (u32, u32) = (5, 12);
/// Without it mlx5 refuses dma-bufs with EOPNOTSUPP.
const PAGING: &str = "CONFIG_INFINIBAND_ON_DEMAND_PAGING";

/// Nothing where no GPU or driver of one shows.
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

/// Whether the kernel takes a GPU's memory as a dma-buf.
fn registration(machine: &Machine<'_>) -> Finding {
    let finding = Finding::new(GROUP, "dma-buf registration", RELEASE);
    let Some((release, version)) = release(machine) else {
        return finding;
    };
    if version >= DMA_BUF_KERNEL {
        finding.read(Verdict::Ok, format!("Linux {release}")).why(
            "accepts GPU memory as dma-bufs; whether a GPU exports them is reported with the GPU",
        )
    } else if machine.topology.peer_memory {
        finding
            .read(Verdict::Ok, format!("Linux {release}"))
            .why("takes no dma-buf; nvidia-peermem takes its place")
    } else {
        finding
            .read(Verdict::Warn, format!("Linux {release}"))
            .why("takes no dma-buf before 5.12, and nvidia-peermem is not loaded: the staged path is used")
            .fix("sudo modprobe nvidia-peermem  # or a kernel of 5.12 or newer")
    }
}

/// Whether the kernel's mlx5 can.
fn paging(machine: &Machine<'_>) -> Finding {
    let path = release(machine).map_or_else(
        || "/boot/config-*".to_owned(),
        |(release, _)| format!("/boot/config-{release}"),
    );
    let finding = Finding::new(GROUP, "on-demand paging", path.as_str());
    let Some(text) = machine.root.text(&path) else {
        return finding.why("mlx5 takes dma-bufs only where the kernel was built with it");
    };
    let is_on = text.lines().any(|line| line == format!("{PAGING}=y"));
    if is_on {
        finding.read(Verdict::Ok, "on")
    } else if machine.topology.peer_memory {
        finding
            .read(Verdict::Ok, "off")
            .why("mlx5 takes no dma-buf; nvidia-peermem takes its place")
    } else {
        finding
            .read(Verdict::Warn, "off")
            .why("mlx5 refuses dma-bufs (EOPNOTSUPP): the staged path is used")
            .fix(format!(
                "sudo modprobe nvidia-peermem  # or a kernel with {PAGING}=y"
            ))
    }
}

/// Whether addresses of the cards are translated at the processor.
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
        .why("what the card writes to a GPU goes up to the processor to be translated: slow, or refused")
        .fix("sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub && sudo update-grub && sudo reboot")
}

/// Whether mlx5 may put small messages into completions, where a GPU's memory was meant.
pub(super) fn scatter(set: Option<&str>) -> Option<Finding> {
    let finding = Finding::new(GROUP, "MLX5_SCATTER_TO_CQE", "environment");
    Some(match set? {
        "0" => finding.read(Verdict::Ok, "0"),
        other => finding
            .read(
                Verdict::Warn,
                if other.is_empty() { "not set" } else { other },
            )
            .why("small messages come inside of completions and are copied by the CPU, which cannot write GPU memory")
            .fix("export MLX5_SCATTER_TO_CQE=0  # Environment=MLX5_SCATTER_TO_CQE=0 in a unit"),
    })
}
