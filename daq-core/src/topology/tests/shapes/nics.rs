//! Tests of network cards: the nearest card, the meaning of names, and whether a card can write GPU memory.

use super::*;
use crate::assert_contains;
use crate::assert_fields;
use crate::topology::nic::{AUTO, GidKind, Layer};

fn p2p_path(topology: &Topology, device: &str, preference: P2pPreference) -> P2pPath {
    topology.p2p_path(&P2pQuery {
        device,
        gpu: 0,
        bytes: 1 << 20,
        preference,
        direction: PeerAccess::Write,
    })
}

#[test]
fn nearest_nic_with_link_is_selected() {
    for (machine, gpu, order) in [
        (shape!("nic-switch"), 0, vec!["mlx5_1", "mlx5_0"]),
        (shape!("nic-rails"), 0, vec!["rocep62s0", "rocep219s0"]),
        (shape!("nic-rails"), 1, vec!["rocep219s0", "rocep62s0"]),
        // The card nearest to the GPU has no link.
        (shape!("nic-down"), 0, vec!["mlx5_1", "mlx5_0"]),
        // A soft-RoCE card has no PCI device, so it is not in the list.
        (shape!("nic-virtual"), 0, vec!["mlx5_0"]),
        (shape!("dgx"), 0, vec![]),
    ] {
        let topology = machine.topology();
        let found = topology.nics_by_distance(gpu);
        let found: Vec<_> = found.iter().map(|(nic, _)| nic.name.as_str()).collect();
        assert_eq!(found, order);
        let nearest = topology.nearest_nic(gpu).map(|nic| nic.name.as_str());
        assert_eq!(nearest, order.first().copied());
    }
}

#[test]
fn equally_near_nics_are_ordered_by_speed_then_name() {
    let text = include_str!("nic-virtual.txt").replace("rxe0 eth0", "mlx5_9 0000:00:03.0");
    let text = text.replace("port rxe0", "port mlx5_9");
    let nearest = |text: &str| {
        let topology = Machine::new(text).topology();
        topology.nearest_nic(0).unwrap().name.clone()
    };
    assert_eq!(nearest(&text), "mlx5_0");
    assert_eq!(nearest(&text.replace("2.5", "100")), "mlx5_0");
    assert_eq!(nearest(&text.replace("2.5", "400")), "mlx5_9");
}

#[test]
fn declared_nic_overrides_nearest() {
    let topology = shape!("nic-switch").topology();
    let name = |gpu, declared| {
        let found = topology.nic_for(gpu, declared);
        found.map(|nic| nic.name.clone()).map_err(|e| e.to_string())
    };
    assert_eq!(name(Some(0), None).unwrap(), "mlx5_1");
    assert_eq!(name(Some(0), Some("mlx5_0")).unwrap(), "mlx5_0");
    assert_eq!(name(None, None).unwrap(), "mlx5_0", "the fastest");
    let error = name(Some(0), Some("mlx5_7")).unwrap_err();
    assert_contains!(error => "`mlx5_7`", "mlx5_0, mlx5_1");
    let none = shape!("dgx").topology();
    for declared in [None, Some("mlx5_0")] {
        let error = none.nic_for(Some(0), declared).unwrap_err().to_string();
        assert!(error.contains("daq doctor"), "{error}");
    }
}

#[test]
fn nic_name_resolves_to_pci_address() {
    let topology = shape!("nic-switch").topology();
    let by_address = p2p_path(&topology, "0000:3e:00.0", P2pPreference::Auto);
    assert!(
        by_address.direct && by_address.relation == Relation::Pix,
        "{by_address:?}"
    );
    assert_eq!(
        p2p_path(&topology, "mlx5_1", P2pPreference::Auto),
        by_address
    );
    assert_eq!(p2p_path(&topology, AUTO, P2pPreference::Auto), by_address);
    assert_eq!(
        p2p_path(&topology, "mlx5_0", P2pPreference::Auto).relation,
        Relation::Node
    );
    let device_path = DevicePath {
        name: "source rx".to_owned(),
        device: "mlx5_1".to_owned(),
        gpu: 0,
        direction: PeerAccess::Write,
        path: by_address,
    };
    let picture = topology.mermaid(&[device_path], false);
    assert_contains!(picture =>
        "n0000_3e_00_0 ==>|\"source rx direct PIX\"| n0000_3d_00_0", "<br/>mlx5_1\"]"
    );
    let soft = shape!("nic-virtual").topology();
    let found = p2p_path(&soft, "rxe0", P2pPreference::Direct);
    assert!(
        found.forbidden && found.reason.contains("only to host memory"),
        "{found:?}"
    );
}

#[test]
fn nic_access_depends_on_dma_buf_or_peermem_only() {
    let text = include_str!("nic-peermem.txt");
    for (from, to, direct, note) in [
        ("", "", true, "through nvidia-peermem"),
        ("peermem\npci", "pci", false, "sudo modprobe nvidia-peermem"),
        (" dma-buf=no", "", true, ""),
        (
            " dma-buf=no",
            " rdma=no",
            false,
            "does not support GPUDirect",
        ),
    ] {
        let topology = Machine::new(&text.replacen(from, to, 1)).topology();
        let found = p2p_path(&topology, "mlx5_0", P2pPreference::Auto);
        let all = format!("{}; {}", found.reason, found.warnings.join("; "));
        assert_eq!(found.direct, direct, "{all}");
        assert_eq!(found.forbidden, !direct, "{all}");
        assert!(all.contains(note), "{all}");
        let mentions = ["peermem", "dma-buf"].iter().any(|word| all.contains(word));
        assert!(mentions || !note.contains("peermem"), "{all}");
    }
}

#[test]
fn nic_ports_are_read_with_addresses() {
    let topology = shape!("nic-switch").topology();
    let port = &topology.nic("mlx5_0").unwrap().ports[0];
    assert_fields!(port => layer: Some(Layer::Ethernet), rate: Some(200_000_000_000));
    assert_eq!(
        (port.lanes.as_deref(), port.physical.as_deref()),
        (Some("4X HDR"), Some("LinkUp"))
    );
    let kinds: Vec<_> = port.gids.iter().filter_map(|gid| gid.kind).collect();
    assert_eq!(kinds, [GidKind::V1, GidKind::V2, GidKind::V1, GidKind::V2]);
    let best = port.best_gid().unwrap();
    assert_eq!((best.index, best.is_v4()), (3, true));
    assert_eq!(port.netdevs, ["ens3np0"]);
    let port = &topology.nic("mlx5_1").unwrap().ports[0];
    assert_eq!(port.best_gid().map(|gid| gid.index), Some(0), "InfiniBand");
    let down = shape!("nic-down").topology();
    let port = &down.nic("mlx5_0").unwrap().ports[0];
    assert_eq!(
        (port.is_active(), port.netdevs.as_slice()),
        (false, &["ens1np0".to_owned()][..])
    );
    assert_eq!(
        down.nic("mlx5_1").unwrap().ports[0].best_gid(),
        None,
        "RoCE v1 alone"
    );
    let rails = shape!("nic-rails").topology();
    let ports = &rails.nic("rocep62s0").unwrap().ports;
    assert_eq!(
        ports[1].netdevs,
        ["ens1f1np1"],
        "the interface of the card's own port is selected"
    );
}

#[test]
fn nic_recording_contains_no_host_identity() {
    let machine = shape!("nic-switch");
    let to = tempfile::tempdir().unwrap();
    let topology = machine.topology();
    topology.record(&machine.sys(), to.path()).unwrap();
    let loaded = Topology::load(to.path()).unwrap();
    let text = format!("{loaded:?}");
    for secret in ["10.0.0.1", "aabb", "feaa", "a103"] {
        assert!(format!("{topology:?}").contains(secret) || secret == "aabb");
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert!(
        !to.path()
            .join("sys/class/infiniband/mlx5_0/node_guid")
            .exists()
    );
    let kept = &loaded.nic("mlx5_0").unwrap().ports[0];
    assert_eq!(
        kept.best_gid().map(|gid| gid.index),
        Some(3),
        "the kind of the address is kept"
    );
}
