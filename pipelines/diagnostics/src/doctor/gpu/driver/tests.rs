//! Tests the findings about additional kernel modules, such as nvidia_peermem.

use super::super::super::root::tests::machine;
use super::*;

const LOADED: (&str, &str) = ("/sys/module/nvidia_peermem/refcnt", "0");
const OLD: (&str, &str) = ("/sys/module/nv_peer_mem/refcnt", "0");
const CARD: (&str, &str) = ("/sys/class/infiniband/mlx5_0/fw_ver", "1");

fn found(files: &[(&str, &str)], is_open: bool) -> Finding {
    let (_dir, root) = machine(files);
    let module = Module {
        version: None,
        is_open,
    };
    peermem(&root, Some(&module), &BTreeMap::new())
}

#[test]
fn conflicting_peer_memory_modules_are_reported() {
    let one = found(&[LOADED, CARD], false);
    assert_eq!((one.verdict, one.read.as_str()), (Verdict::Ok, "loaded"));
    for (files, read) in [
        (&[LOADED, OLD, CARD][..], "loaded beside nv_peer_mem"),
        (
            &[OLD, CARD],
            "the older module nv_peer_mem is loaded instead",
        ),
    ] {
        let found = found(files, true);
        assert_eq!((found.verdict, found.read.as_str()), (Verdict::Warn, read));
        assert!(found.fix.unwrap().contains("modprobe -r nv_peer_mem"));
    }
}

#[test]
fn linux_without_peer_memory_api_is_reported() {
    let api = "0000000000000000 T ib_register_peer_memory_client\t[ib_core]\n";
    for (symbols, is_open, verdict, read) in [
        (api, false, Verdict::Warn, "not loaded"),
        (
            "0000000000000000 T ib_register_client\n",
            false,
            Verdict::Warn,
            "cannot be loaded",
        ),
        (
            "0000000000000000 T ib_register_client\n",
            true,
            Verdict::Ok,
            "not loaded",
        ),
        // Symbols that Linux hides from this user do not count.
        ("", false, Verdict::Warn, "not loaded"),
    ] {
        let found = found(&[CARD, (SYMBOLS, symbols)], is_open);
        assert_eq!(
            (found.verdict, found.read.as_str()),
            (verdict, read),
            "{symbols}"
        );
    }
}

#[test]
fn gdrdrv_must_match_the_library_version() {
    let found = |version: &str| {
        let (_dir, root) = machine(&[("/sys/module/gdrdrv/version", version)]);
        gdrdrv(&root)
    };
    let good = found("2.5\n");
    assert_eq!(
        (good.verdict, good.read.as_str()),
        (Verdict::Ok, "loaded, version 2.5")
    );
    let bad = found("1.3\n");
    assert_eq!(
        (bad.verdict, bad.read.as_str()),
        (Verdict::Warn, "version 1.3")
    );
    assert!(bad.fix.unwrap().contains("gdrdrv-dkms"));
}
