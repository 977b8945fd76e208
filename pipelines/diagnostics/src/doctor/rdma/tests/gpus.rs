//! Tests the requirements for the card's writes to GPU memory.

use super::*;

#[test]
fn old_linux_without_dma_buf_registration_is_reported() {
    let server = Server::new();
    server.is_ok("dma-buf registration", "Linux 6.8.0-45-generic");
    server.write("/proc/sys/kernel/osrelease", "5.12.0\n");
    server.is_ok("dma-buf registration", "Linux 5.12.0");
    server.write("/proc/sys/kernel/osrelease", "5.4.0-200-generic\n");
    let old = server.found("dma-buf registration");
    warns(
        &old,
        "Linux 5.4.0-200-generic",
        "sudo modprobe nvidia-peermem",
    );
    server.write("/sys/module/nvidia_peermem/refcnt", "0\n");
    let found = server.found("dma-buf registration");
    is_ok(&found, "Linux 5.4.0-200-generic");
    assert!(found.why.unwrap().contains("nvidia-peermem"));
    server.remove("/proc/sys/kernel/osrelease");
    assert_eq!(server.found("dma-buf registration").status, Status::Unknown);
}

#[test]
fn mlx5_without_on_demand_paging_is_reported() {
    let server = Server::new();
    server.is_ok("on-demand paging", "on");
    let config = "/boot/config-6.8.0-45-generic";
    server.write(config, "# CONFIG_INFINIBAND_ON_DEMAND_PAGING is not set\n");
    server.warns("on-demand paging", "off", "ON_DEMAND_PAGING=y");
    server.write("/sys/module/nv_peer_mem/refcnt", "0\n");
    server.is_ok("on-demand paging", "off");
    server.remove(config);
    assert_eq!(server.found("on-demand paging").status, Status::Unknown);
    server.link(&format!("{NIC}/driver"), "/sys/bus/pci/drivers/bnxt_en");
    assert!(
        server.lacks("on-demand paging"),
        "other cards do not need it"
    );
}

#[test]
fn address_translation_is_reported() {
    let server = Server::new();
    server.is_ok("IOMMU translation", "none: the IOMMU is off");
    server.write("/sys/class/iommu/dmar0/name", "");
    server.link(&format!("{NIC}/iommu_group"), "/sys/kernel/iommu_groups/31");
    for (kind, is_fine) in [("DMA-FQ", false), ("DMA", false), ("identity", true)] {
        server.write("/sys/kernel/iommu_groups/31/type", format!("{kind}\n"));
        let found = server.found("IOMMU translation");
        if is_fine {
            is_ok(&found, kind);
        } else {
            warns(&found, &format!("mlx5_0 {kind}"), "iommu=pt");
        }
    }
    server.remove("/sys/kernel/iommu_groups/31/type");
    assert_eq!(server.found("IOMMU translation").status, Status::Unknown);
}

#[test]
fn payload_in_completions_is_reported() {
    let server = Server::new();
    assert!(
        server.lacks("MLX5_SCATTER_TO_CQE"),
        "another machine's environment"
    );
    let found = |set: &str| {
        let mut machine = Machine::read(&server.root);
        machine.scatter = Some(set.to_owned());
        one(
            &judge(&machine, &Counters::default()),
            "MLX5_SCATTER_TO_CQE",
        )
    };
    is_ok(&found("0"), "0");
    for (set, read) in [("", "not set"), ("1", "1")] {
        warns(&found(set), read, "export MLX5_SCATTER_TO_CQE=0");
    }
}

#[test]
fn machine_without_gpu_has_no_gpu_findings() {
    let server = Server::new();
    server.remove("/sys/bus/pci/devices/0000:3d:00.0");
    server.remove("/proc/driver/nvidia/version");
    for name in [
        "dma-buf registration",
        "on-demand paging",
        "IOMMU translation",
        "distance to GPUs",
        "ACS redirect",
    ] {
        assert!(server.lacks(name), "{name}");
    }
}
