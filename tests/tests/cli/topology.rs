//! Tests `daq topo`, and plans for recorded machines.

use crate::commands::SMALL;
use daq_testkit::{Daq, assert_contains, repository};
use std::fs;

/// Returns the path of a recorded server with a card and a GPU below one host bridge, as `--record` writes it.
fn recorded() -> String {
    let path = repository().join("daq-core/src/topology/tests/recorded");
    path.to_str().unwrap().to_owned()
}

#[test]
fn topo_recorded_machine_is_shown() {
    let daq = Daq::new("");
    let text = daq.cli(&["topo", "--from", &recorded()]).ok().stdout;
    assert_contains!(text =>
        "pci0000:16  8086:09a2", "└─ 0000:18:00.0  cuda:0 NVIDIA A100-PCIE-40GB",
        "0000:17:00.0 → cuda:0  direct writes: both are below host bridge pci0000:16"
    );
    let large = daq.cli(&["topo", "--from", &recorded(), "--ring", "65 GiB"]);
    assert!(
        large
            .ok()
            .stdout
            .contains("cuda:0  staged writes: a ring of 65 GiB")
    );
    let picture = daq.cli(&["topo", "--from", &recorded(), "--format", "mermaid"]);
    let picture = picture.ok().stdout;
    assert!(picture.starts_with("flowchart TD\n") && picture.contains("==>|\"direct PHB\"|"));
}

#[test]
fn plan_on_recorded_machine_shows_sources() {
    let daq = Daq::new(&SMALL.replace("slot =", "memory = \"cuda:0\"\nslot ="));
    let text = daq.cli(&["topo", "--from", &recorded(), "daq.toml"]);
    let text = text.ok().stdout;
    assert_contains!(text => "source adc  staged: ", !"0000:17:00.0 → ");
    let plan = daq.cli(&["plan", "--topology", &recorded(), "daq.toml"]);
    assert!(plan.ok().stdout.contains("ring raw @ cuda:0"));
    for command in ["check", "plan"] {
        let nothing = daq.cli(&[command, "--topology", "nowhere", "daq.toml"]);
        assert_eq!(nothing.code, 74);
        assert!(nothing.stderr.contains("gpus.json"), "{}", nothing.stderr);
    }
}

#[test]
fn check_for_recorded_machine_uses_its_gpus_but_not_its_files() {
    let check = |text: &str| Daq::new(text).cli(&["check", "--topology", &recorded(), "daq.toml"]);
    // On this machine, the path of the sink is a file, not a directory.
    let sink = "[sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"daq.toml\"\n";
    let text = SMALL.replace("slot =", "memory = \"cuda:0\"\nslot =") + sink;
    let done = check(&text).ok().stdout;
    assert_contains!(done => "ok (1 source", "of the recorded machine (--topology)",
        "whether daq.toml can be written to (--topology)");
    let absent = check(&text.replace("cuda:0", "cuda:7"));
    assert_eq!(absent.code, 69, "{}", absent.stderr);
}

#[test]
fn topo_record_then_replay_shows_same_machine() {
    let daq = Daq::new("");
    let shown = daq.cli(&["topo", "--all"]).ok().stdout;
    let kept = daq.path("machine");
    let kept = kept.to_str().unwrap();
    let _ = daq.cli(&["topo", "--record", kept]).ok();
    let again = daq.cli(&["topo", "--all", "--from", kept]).ok().stdout;
    // Remove the free size of the GPU's window, because it may change between the two calls.
    let steady = |text: &str| {
        let lines = text.lines().filter(|line| !line.contains("free"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(steady(&shown), steady(&again));
    let second = daq.cli(&["topo", "--record", kept]);
    assert_eq!(second.code, 74);
    assert!(second.stderr.contains("not empty"), "{}", second.stderr);
    fs::write(daq.path("machine/gpus.json"), "{}").unwrap();
    let broken = daq.cli(&["topo", "--from", kept]);
    assert_eq!(broken.code, 74);
    assert_contains!(broken.stderr => "daq topo --record");
}
