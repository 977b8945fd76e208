//! Tests of PCI properties of recorded trees.

use super::super::Gpu;
use super::*;
use proptest::prelude::*;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

const CARD: &str = "0000:3b:00.0";
const ROOT_PORT: &str = "devices/pci0000:3a/0000:3a:01.0";

/// Creates a `/sys` with a card below a root port. `card` and `port` are the files of each.
fn tree(card: &[(&str, &str)], port: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let sys = dir.path().join("sys");
    let at = sys.join(ROOT_PORT).join(CARD);
    fs::create_dir_all(&at).unwrap();
    for (file, text) in card {
        fs::write(at.join(file), text).unwrap();
    }
    for (file, text) in port {
        fs::write(sys.join(ROOT_PORT).join(file), text).unwrap();
    }
    let devices = sys.join("bus/pci/devices");
    fs::create_dir_all(&devices).unwrap();
    symlink(format!("../../../{ROOT_PORT}/{CARD}"), devices.join(CARD)).unwrap();
    let driver = sys.join("bus/pci/drivers/nvidia");
    fs::create_dir_all(&driver).unwrap();
    symlink(driver, at.join("driver")).unwrap();
    (dir, sys)
}

const RESOURCE: &str = "\
0x0000022042000000 0x0000022042ffffff 0x000000000014220c\n\
0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
0x0000020000000000 0x0000021fffffffff 0x000000000014220c\n\
0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
0x0000022040000000 0x0000022041ffffff 0x000000000014220c\n";

#[test]
fn pci_device_is_read() {
    let (_dir, sys) = tree(
        &[
            ("vendor", "0x10de\n"),
            ("device", "0x2335\n"),
            ("class", "0x030200\n"),
            ("numa_node", "1\n"),
            ("resource", RESOURCE),
            ("current_link_speed", "2.5 GT/s PCIe\n"),
            ("current_link_width", "16\n"),
            ("max_link_speed", "32.0 GT/s PCIe\n"),
            ("max_link_width", "16\n"),
        ],
        &[
            ("current_link_speed", "2.5 GT/s PCIe\n"),
            ("current_link_width", "16\n"),
            ("max_link_speed", "16.0 GT/s PCIe\n"),
            ("max_link_width", "16\n"),
        ],
    );
    assert_eq!(nvidia_gpus(&sys).unwrap(), [CARD]);
    let lanes = |generation| Lanes {
        generation,
        width: 16,
    };
    let link = |max| Link {
        current: lanes(1),
        max: lanes(max),
    };
    let facts = facts(&sys, "00000000:3B:00.0");
    let expected = PciFacts {
        address: CARD.to_owned(),
        device: Some(0x2335),
        driver: Some("nvidia".to_owned()),
        node: Some(1),
        bar1: Some(128 << 30),
        link: Some(link(5)),
        bridges: vec![Bridge {
            address: "0000:3a:01.0".to_owned(),
            link: Some(link(4)),
        }],
    };
    assert_eq!(facts, expected);
    let gpu = Gpu::new(0, "H200").with_pci_facts(&facts);
    assert_eq!(
        (gpu.pci.as_deref(), gpu.node, gpu.link),
        (Some(CARD), Some(1), Some(link(5)))
    );
}

#[test]
fn pci_facts_missing_in_virtual_machine_are_unknown() {
    let (_dir, sys) = tree(
        &[
            ("vendor", "0x10de\n"),
            ("class", "0x030000\n"),
            ("numa_node", "-1\n"),
            ("current_link_speed", "Unknown\n"),
            ("current_link_width", "0\n"),
            ("max_link_speed", "Unknown\n"),
            ("max_link_width", "255\n"),
            ("resource", "0x0 0x0 0x0\n0x0 0x0 0x0\n"),
        ],
        &[],
    );
    let facts = facts(&sys, CARD);
    assert_eq!(
        (facts.node, facts.bar1, facts.link, facts.bridges[0].link),
        (None, None, None, None)
    );
}

#[test]
fn missing_pci_device_has_no_facts() {
    let (_dir, sys) = tree(&[], &[]);
    let gone = facts(&sys, "0000:99:00.0");
    assert_eq!(
        (
            gone.address.as_str(),
            gone.device,
            gone.driver,
            gone.bridges
        ),
        ("0000:99:00.0", None, None, Vec::new())
    );
    assert_eq!(nvidia_gpus(&sys), Some(Vec::new()));
    assert_eq!(nvidia_gpus(&sys.join("none")), None);
}

#[test]
fn only_nvidia_display_controllers_are_gpus() {
    for (vendor, class, found) in [
        ("0x10de", "0x030200", true),
        ("0x10de", "0x040300", false),
        ("0x1002", "0x030000", false),
    ] {
        let (_dir, sys) = tree(&[("vendor", vendor), ("class", class)], &[]);
        assert_eq!(
            !nvidia_gpus(&sys).unwrap().is_empty(),
            found,
            "{vendor} {class}"
        );
    }
}

#[test]
fn gpu_bar_is_second_memory_region() {
    let small = "0xde000000 0xdeffffff 0x40200\n0xc0000000 0xcfffffff 0x14220c\n0 0 0\n";
    assert_eq!(bar1(small), Some(256 << 20));
    // An I/O port region, and a region without an assigned address.
    let ports = "0xde000000 0xdeffffff 0x40200\n0xe000 0xe07f 0x40101\n0x0 0xfffffff 0x20140204\n";
    assert_eq!(bar1(ports), None);
    let roms = "0xde000000 0xdeffffff 0x40200\n0 0 0\n0 0 0\n0 0 0\n0 0 0\n0 0 0\n0xdf000000 0xdf07ffff 0x46200\n";
    assert_eq!(bar1(roms), None);
}

#[test]
fn pcie_rate_doubles_per_generation() {
    let rate = |generation, width| Lanes { generation, width }.rate();
    assert_eq!(rate(5, 16) / 1_000_000_000, 63);
    assert_eq!(rate(4, 8) * 2, rate(4, 16));
    assert!(rate(4, 16) < rate(5, 16) && rate(5, 16) < rate(6, 16));
    assert_eq!(rate(9, 16), 0);
}

proptest! {
    #[test]
    fn random_sysfs_text_does_not_panic(text: String) {
        let _ = (bar1(&text), generation(&text));
        if let Some(address) = canonical(&text) {
            prop_assert_eq!(canonical(&address), Some(address));
        }
    }

    #[test]
    fn random_regions_do_not_panic(start: u64, end: u64) {
        let line = format!("{start:#x} {end:#x} 0x200\n");
        prop_assert_eq!(bar1(&line.repeat(2)).is_some(), end > start);
    }
}
