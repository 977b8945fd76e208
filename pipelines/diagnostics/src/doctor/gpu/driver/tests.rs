//! Tests the findings about additional kernel modules, such as nvidia_peermem.

use super::super::super::root::tests::machine;
use super::super::super::tests::one;
use super::*;
use Status::{Ok, Warning};

const LOADED: (&str, &str) = ("/sys/module/nvidia_peermem/refcnt", "0");
const OLD: (&str, &str) = ("/sys/module/nv_peer_mem/refcnt", "0");
const CARD: (&str, &str) = ("/sys/class/infiniband/mlx5_0/fw_ver", "1");

fn examine(files: &[(&str, &str)], is_open: bool, name: &str) -> Finding {
    let (_dir, root) = machine(files);
    let module = Module {
        version: None,
        is_open,
    };
    let driver = Driver {
        root: &root,
        module: Some(&module),
        asked: None,
        cuda: &BTreeMap::new(),
    };
    one(&driver.examine(), name)
}

fn found(files: &[(&str, &str)], is_open: bool) -> Finding {
    examine(files, is_open, "nvidia_peermem")
}

#[test]
fn conflicting_peer_memory_modules_are_reported() {
    let one = found(&[LOADED, CARD], false);
    assert_eq!(one.summary(), (Ok, "loaded"));
    for (files, read) in [
        (&[LOADED, OLD, CARD][..], "loaded beside nv_peer_mem"),
        (
            &[OLD, CARD],
            "the older module nv_peer_mem is loaded instead",
        ),
    ] {
        let found = found(files, true);
        assert_eq!(found.summary(), (Warning, read));
        assert!(found.fix.unwrap().contains("modprobe -r nv_peer_mem"));
    }
}

#[test]
fn linux_without_peer_memory_api_is_reported() {
    let api = "0000000000000000 T ib_register_peer_memory_client\t[ib_core]\n";
    for (symbols, is_open, status, read) in [
        (api, false, Warning, "not loaded"),
        (
            "0000000000000000 T ib_register_client\n",
            false,
            Warning,
            "cannot be loaded",
        ),
        (
            "0000000000000000 T ib_register_client\n",
            true,
            Ok,
            "not loaded",
        ),
        // Symbols that Linux hides from this user do not count.
        ("", false, Warning, "not loaded"),
    ] {
        let found = found(&[CARD, (SYMBOLS, symbols)], is_open);
        assert_eq!(found.summary(), (status, read), "{symbols}");
    }
}

#[test]
fn gdrdrv_must_match_the_library_version() {
    let found = |version| examine(&[("/sys/module/gdrdrv/version", version)], true, "gdrdrv");
    assert_eq!(found("2.5\n").summary(), (Ok, "loaded, version 2.5"));
    let old = found("1.3\n");
    assert_eq!(old.summary(), (Warning, "version 1.3"));
    assert!(old.fix.unwrap().contains("gdrdrv-dkms"));
}
