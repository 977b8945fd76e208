//! Tests of recording and loading topologies.

use super::*;
use std::collections::BTreeMap;

/// Returns the directory of a machine that `daq topo --record` wrote.
fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/topology/tests/recorded")
}

/// Returns every file and symbolic link below a directory, with its text or its target.
fn files(at: &Path) -> BTreeMap<PathBuf, String> {
    fn visit(base: &Path, at: &Path, files: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(base).unwrap().to_owned();
            if path.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                files.insert(name, format!("-> {}", target.display()));
            } else if path.is_dir() {
                visit(base, &path, files);
            } else {
                files.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(at, at, &mut found);
    found
}

#[test]
fn recorded_machine_equals_original() {
    let shapes = [
        shape!("dgx"),
        shape!("redirect"),
        shape!("virtual-machine"),
        shape!("no-mapping"),
        shape!("plx-switch"),
        shape!("nic-rails"),
        shape!("nic-down"),
        shape!("nic-virtual"),
        shape!("nic-peermem"),
    ];
    for machine in shapes {
        let to = tempfile::tempdir().unwrap();
        let topology = machine.topology();
        topology.record(&machine.sys(), to.path()).unwrap();
        let mut expected = topology;
        for gpu in &mut expected.gpus {
            gpu.uuid = None;
        }
        let ports = expected.nics.iter_mut().flat_map(|nic| &mut nic.ports);
        for gid in ports.flat_map(|port| &mut port.gids) {
            gid.address = gid.anonymous();
        }
        let loaded = Topology::load(to.path()).unwrap();
        assert_eq!(loaded, expected);
        // A loaded recording can be recorded again.
        let again = tempfile::tempdir().unwrap();
        let at = again.path().join("deep/again");
        loaded.record(&to.path().join("sys"), &at).unwrap();
        assert_eq!(files(&at), files(to.path()));
    }
}

#[test]
fn recording_contains_no_identifying_data() {
    let machine = shape!("intel-server");
    let at = machine.sys().join("devices/pci0000:16/0000:16:02.0");
    fs::write(at.join("0000:17:00.0/serial"), "SECRET").unwrap();
    fs::write(at.join("serial"), "SECRET").unwrap();
    let mut config = fs::read(at.join("config")).unwrap();
    config[0x200..0x206].copy_from_slice(b"SECRET");
    fs::write(at.join("config"), config).unwrap();
    let to = tempfile::tempdir().unwrap();
    let topology = machine.topology();
    topology.record(&machine.sys(), to.path()).unwrap();
    for (path, text) in files(to.path()) {
        assert!(
            !text.contains("SECRET") && !text.contains("GPU-5d5e"),
            "{}",
            path.display()
        );
        assert!(
            !path.ends_with("config") && !path.ends_with("serial"),
            "{}",
            path.display()
        );
    }
}

/// Compares the recorded directory with a new recording. Run with `DAQ_UPDATE=1` to update the directory.
#[test]
fn recorded_folder_round_trips() {
    let machine = shape!("intel-server");
    let to = tempfile::tempdir().unwrap();
    machine
        .topology()
        .record(&machine.sys(), to.path())
        .unwrap();
    if std::env::var_os("DAQ_UPDATE").is_some() {
        let _ = fs::remove_dir_all(recorded());
        machine
            .topology()
            .record(&machine.sys(), &recorded())
            .unwrap();
    }
    assert_eq!(files(&recorded()), files(to.path()));
    let loaded = Topology::load(&recorded()).unwrap();
    assert_eq!(loaded.pci, machine.topology().pci);
}

#[test]
fn invalid_recording_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gpus.json");
    let error_of = |dir: &Path| Topology::load(dir).unwrap_err().to_string();
    assert!(error_of(dir.path()).contains("gpus.json"));
    fs::write(&path, "{").unwrap();
    assert!(error_of(dir.path()).contains("daq topo --record"));
    let machine = shape!("intel-server");
    let refused = machine.topology().record(&machine.sys(), dir.path());
    assert!(refused.unwrap_err().to_string().contains("not empty"));
}
