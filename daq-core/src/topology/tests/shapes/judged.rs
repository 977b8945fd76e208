//! Tests of data paths that are not covered by the snapshots.

use super::*;
use crate::assert_contains;

fn p2p_path(
    machine: &Machine,
    device: &str,
    gpu: u32,
    bytes: u64,
    preference: P2pPreference,
) -> P2pPath {
    machine.topology().p2p_path(&P2pQuery {
        device,
        gpu,
        bytes,
        preference,
        direction: PeerAccess::Write,
    })
}

#[test]
fn relations_follow_slot_positions() {
    use Relation::{Node, Phb, Pix, Pxb, Sys, Unknown};
    for (machine, relations) in [
        (shape!("one-socket"), vec![Phb]),
        (shape!("two-sockets"), vec![Node, Sys]),
        (shape!("plx-switch"), vec![Pix]),
        (shape!("dgx"), vec![Pix, Sys, Sys, Pxb]),
        (shape!("amd-server"), vec![Phb, Node]),
        (shape!("virtual-machine"), vec![Unknown, Unknown]),
    ] {
        let device_paths = machine.device_paths(P2pPreference::Auto);
        let found: Vec<_> = device_paths
            .iter()
            .map(|device_path| device_path.path.relation)
            .collect();
        assert_eq!(found, relations);
    }
}

#[test]
fn preference_is_applied_if_possible() {
    for (machine, device, gpu, auto, forced) in [
        (shape!("plx-switch"), "0000:05:00.0", 0, true, true),
        (shape!("two-sockets"), "0000:3b:00.0", 0, false, true),
        (shape!("two-sockets"), "0000:3b:00.0", 1, false, true),
        (shape!("intel-desktop"), "0000:02:00.0", 0, true, true),
        (shape!("virtual-machine"), "0000:00:06.0", 0, false, true),
        (shape!("one-group"), "0000:02:00.0", 0, false, false),
        (shape!("no-mapping"), "0000:41:00.0", 0, false, false),
        (shape!("geforce"), "0000:43:00.0", 0, false, false),
    ] {
        let ask = |preference| p2p_path(&machine, device, gpu, 1 << 20, preference);
        let (chosen, preferred) = (ask(P2pPreference::Auto), ask(P2pPreference::Direct));
        assert_eq!(chosen.direct, auto, "{device}: {chosen:?}");
        assert_eq!(preferred.direct, forced, "{device}: {preferred:?}");
        assert_eq!(preferred.forbidden, !forced, "{device}: {preferred:?}");
        if forced && !auto {
            let all = preferred.warnings.join("; ");
            assert_contains!(all => &chosen.reason; "the overridden obstacle is reported");
        }
        let staged = ask(P2pPreference::Staged);
        assert!(!staged.direct && staged.reason == "requested by the configuration");
        assert_eq!(staged.data_path(), crate::topology::DataPath::Staged);
    }
}

#[test]
fn missing_device_is_reported() {
    let machine = shape!("plx-switch");
    let ask = |device, gpu| p2p_path(&machine, device, gpu, 1, P2pPreference::Direct);
    let found = ask("0000:99:00.0", 0);
    assert!(found.forbidden && found.reason.contains("no PCI device 0000:99:00.0"));
    let found = ask("0000:05:00.0", 7);
    assert!(found.forbidden && found.reason.contains("no cuda:7"));
    let found = ask("vfio-user:card.sock", 0);
    assert!(
        found.direct && !found.forbidden,
        "a requested direct path is used if it is not impossible"
    );
    assert!(found.warnings[0].contains("not a PCI address"));
    assert!(ask("05:00.0", 0).direct, "any spelling");
    let topology = Topology {
        gpus: vec![Gpu::new(0, "Test")],
        ..Topology::unknown()
    };
    let found = topology.p2p_path(&P2pQuery {
        device: "0000:05:00.0",
        gpu: 0,
        bytes: 1,
        preference: P2pPreference::Auto,
        direction: PeerAccess::Write,
    });
    assert!(!found.direct && !found.forbidden, "{found:?}");
}

#[test]
fn device_not_yet_bound_to_vfio_is_usable() {
    let text = include_str!("two-sockets.txt").replace(" driver=vfio-pci", "");
    let machine = Machine::new(&text);
    let found = p2p_path(&machine, "0000:3b:00.0", 0, 1 << 20, P2pPreference::Direct);
    assert!(found.direct, "{found:?}");
}

#[test]
fn path_through_root_complex_is_reported() {
    let change = |from: &str, to: &str| {
        let machine = Machine::new(&include_str!("redirect.txt").replace(from, to));
        let found = p2p_path(&machine, "0000:3d:00.0", 0, 1 << 20, P2pPreference::Auto);
        assert!(found.direct, "{found:?}");
        (found.warnings.join("; "), found.bottleneck.unwrap())
    };
    let (rendered, _) = change("", "");
    assert_contains!(rendered => "ACS redirection is enabled on 0000:3c:08.0", !"list");
    let (rendered, _) = change("driver=xdma", "driver=vfio-pci");
    assert!(rendered.contains("vfio-pci devices"), "{rendered}");
    let (rendered, _) = change(" driver=xdma", "");
    assert_contains!(rendered => "vfio-pci devices"; "it will be bound to vfio-pci");
    let (rendered, _) = change("8086:2030", "8086:1901");
    assert!(rendered.contains("ACS redirection") && rendered.contains("not on Linux's list"));
    let (rendered, hop) = change("acs=1d", "acs=0");
    assert!(!rendered.contains("ACS redirection"), "{rendered}");
    assert_eq!(hop.below, "0000:3d:00.0");
    // A path through the upstream port includes the link above the switch.
    let slow = "10b5:8747 060400 link=3x16 node=0 acs=none";
    let (_, hop) = change(slow, &slow.replace("3x16", "3x4/3x16"));
    assert_eq!(hop.below, "0000:3b:00.0");
    let machine = include_str!("redirect.txt").replace("acs=1d", "acs=0");
    let machine = Machine::new(&machine.replace(slow, &slow.replace("3x16", "3x4/3x16")));
    let found = p2p_path(&machine, "0000:3d:00.0", 0, 1 << 20, P2pPreference::Auto);
    assert_eq!(found.bottleneck.unwrap().below, "0000:3d:00.0");
}

#[test]
fn ring_larger_than_bar_is_not_direct() {
    let machine = shape!("amd-server");
    let ask = |bytes| p2p_path(&machine, "0000:41:00.0", 0, bytes, P2pPreference::Auto);
    let found = ask(63 << 30);
    assert!(found.direct && !found.forbidden);
    let found = ask((63 << 30) + 1);
    assert!(!found.direct && !found.forbidden);
    let found = ask((64 << 30) + 1);
    assert!(!found.direct && found.forbidden);
}

#[test]
fn p2p_allowlist_decides_between_host_bridges() {
    let intel = |id: &str, other: &str| {
        let shape = format!(
            "cpu GenuineIntel 6 Xeon\npci0000:00\n  0000:00:00.0 8086:{id} 060000\npci0000:80\n  0000:80:00.0 8086:{other} 060000\n"
        );
        let tree = Machine::new(&shape).topology().pci;
        let (one, two) = ("pci0000:00", "pci0000:80");
        (
            tree.check_peer_path(one, one, PeerAccess::Read).is_ok(),
            tree.check_peer_path(one, two, PeerAccess::Write).is_ok(),
        )
    };
    for (id, other, expected) in [
        ("2f00", "2f00", (true, false)),
        ("3c00", "2020", (true, false)),
        ("2020", "09a2", (true, true)),
        ("09a2", "0b25", (true, true)),
        ("2020", "4660", (true, false)),
        ("4660", "2020", (false, false)),
        ("29c0", "29c0", (false, false)),
    ] {
        assert_eq!(intel(id, other), expected, "{id} {other}");
    }
    for (vendor, family, expected) in [
        ("AuthenticAMD", 0x17, true),
        ("AuthenticAMD", 0x19, true),
        ("AuthenticAMD", 0x16, false),
        ("GenuineIntel", 0x19, false),
    ] {
        let shape =
            format!("cpu {vendor} {family} X\npci0000:00\n  0000:00:00.0 1022:1480 060000\n");
        let tree = Machine::new(&shape).topology().pci;
        assert_eq!(
            tree.check_peer_path("pci0000:00", "pci0000:00", PeerAccess::Read)
                .is_ok(),
            expected,
            "{vendor} {family}"
        );
    }
    // A first device that is neither number 00.0 nor a port does not represent the host bridge.
    let tree = Machine::new("pci0000:00\n  0000:00:05.0 8086:09a2 088000\n")
        .topology()
        .pci;
    assert!(tree.host("pci0000:00").is_none());
    let tree = Machine::new("pci0000:00\n  0000:00:02.0 8086:2032 060400\n")
        .topology()
        .pci;
    assert!(
        tree.check_peer_path("pci0000:00", "pci0000:00", PeerAccess::Read)
            .is_ok()
    );
}

#[test]
fn pci_tree_is_parsed() {
    let topology = shape!("redirect").topology();
    let tree = &topology.pci;
    assert_eq!(tree.iommu, Iommu::On);
    assert_eq!(shape!("plx-switch").topology().pci.iommu, Iommu::Off);
    assert_eq!(Topology::unknown().pci.iommu, Iommu::Unknown);
    let device = tree.device("3d:00.0").unwrap();
    assert_eq!(device.id(), "10ee:903f");
    assert_eq!(device.regions, [64 << 10, 1 << 20]);
    assert_eq!(
        device.upstream,
        ["0000:3c:08.0", "0000:3b:00.0", "0000:3a:00.0"]
    );
    assert_eq!(device.host, "pci0000:3a");
    assert_eq!(device.driver.as_deref(), Some("xdma"));
    let acs: Vec<_> = tree
        .bridges(device)
        .iter()
        .map(|bridge| bridge.acs)
        .collect();
    assert_eq!(acs, [Acs::Control(0x1d), Acs::Absent, Acs::Control(0x1d)]);
    let unread = tree.device("0000:5f:08.0").unwrap();
    assert_eq!(unread.acs, Acs::Unknown);
    let hops = tree.hops(device);
    let ends: Vec<_> = hops.iter().map(|hop| hop.below.as_str()).collect();
    assert_eq!(
        ends,
        ["0000:3d:00.0", "0000:3b:00.0"],
        "the connection inside a switch is not a link"
    );
}

#[test]
fn fpga_candidates_and_network_controllers_are_listed() {
    let shape = "pci0000:00
  0000:00:00.0 8086:1237 060000
  0000:00:01.0 1234:11e8 00ff00
  0000:00:02.0 1234:1111 030000
  0000:00:03.0 1af4:1041 020000
  0000:00:04.0 8086:1234 010802 driver=vfio-pci
  0000:00:05.0 8086:1234 010802 driver=nvme
  0000:00:06.0 10de:2330 030200 driver=vfio-pci
  0000:00:07.0 11f8:4052 060400
  0000:00:07.1 11f8:4052 058000
  0000:00:08.0 11f8:1556 ff0000
  0000:00:09.0 1204:9c1d ff0000
";
    let tree = Machine::new(shape).topology().pci;
    let found: Vec<_> = tree.candidates().iter().map(|d| &d.address[8..]).collect();
    assert_eq!(found, ["01.0", "03.0", "04.0", "08.0", "09.0"]);
}

#[test]
fn topology_picture_shows_tree_and_paths() {
    let machine = shape!("two-sockets");
    insta::assert_snapshot!(
        machine
            .topology()
            .mermaid(&machine.device_paths(P2pPreference::Auto), false)
    );
    let all = machine.topology().tree(true);
    assert!(all.lines().count() >= machine.topology().tree(false).lines().count());
}

/// Intel's client processors forward writes between devices but not reads. Intel's and AMD's server processors forward
/// both.
#[test]
fn path_below_intel_client_cpu_depends_on_direction() {
    let desktop = include_str!("intel-desktop.txt");
    let driver = |driver: &str| desktop.replace("driver=vfio-pci", driver);
    let ask = |text: &str, device: &str, direction| {
        let machine = Machine::new(text);
        machine.topology().p2p_path(&P2pQuery {
            device,
            gpu: 0,
            bytes: 1 << 20,
            preference: P2pPreference::Auto,
            direction,
        })
    };
    for text in [driver("driver=vfio-pci"), driver("driver=xdma")] {
        let distance = Machine::new(&text).topology().distance("0000:02:00.0", 0);
        assert!(distance.contains("only writes"), "{distance}");
        let write = ask(&text, "0000:02:00.0", PeerAccess::Write);
        assert!(write.direct, "{write:?}");
        let warnings = write.warnings.join("; ");
        assert!(
            warnings.contains("every write passes through the processor"),
            "{warnings}"
        );
        assert!(warnings.contains("Intel client processor"), "{warnings}");
        let read = ask(&text, "0000:02:00.0", PeerAccess::Read);
        assert!(!read.direct && !read.forbidden, "{read:?}");
        assert!(read.reason.contains("writes but not reads"), "{read:?}");
    }
    // It is unknown whether a Xeon that is not in the list forwards transfers, in either direction.
    let xeon =
        driver("driver=xdma").replace("12th Gen Intel(R) Core(TM) i9-12900K", "Intel Xeon E-2378");
    for direction in [PeerAccess::Write, PeerAccess::Read] {
        let found = ask(&xeon, "0000:02:00.0", direction);
        assert!(found.reason.contains("not on Linux's list"), "{found:?}");
    }
    for (text, device) in [
        (include_str!("intel-server.txt"), "0000:17:00.0"),
        (include_str!("plx-switch.txt"), "0000:05:00.0"),
        (include_str!("amd-server.txt"), "0000:41:00.0"),
    ] {
        for direction in [PeerAccess::Write, PeerAccess::Read] {
            let found = ask(text, device, direction);
            assert!(found.direct, "{device} {direction:?}: {found:?}");
        }
    }
}
