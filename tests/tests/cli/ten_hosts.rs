//! Runs the observation of the page about ten hosts, in network namespaces of its own.

use super::documents::{blocks, directory, file_name};
use daq_testkit::{Python, binary, program, repository, skip};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Number of pairs of hosts; the page has four.
const PAIRS: usize = 2;

#[test]
fn ten_hosts_run_one_observation() {
    if !rustix::process::geteuid().is_root() {
        skip!("network namespaces need root");
    }
    for name in ["ip", "nats-server"] {
        if program(name).is_none() {
            skip!("no program {name}; run tests/run to install it");
        }
    }
    let python = match Python::with(&["nats"]) {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let page = repository().join("docs/src/how-to/ten-hosts.md");
    let daq = directory(&page);
    assert!(
        blocks(&page)
            .iter()
            .any(|(_, block)| file_name(block) == Some("hosts.sh"))
    );
    let probe = daq.cli(&["plan", "compute.toml"]);
    if (probe.stdout + &probe.stderr).contains("without the NATS client") {
        skip!("daq was built without the feature nats");
    }
    let probe = Command::new("unshare").args(["-n", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        skip!("this machine does not allow network namespaces");
    }
    std::fs::create_dir(daq.path("bin")).unwrap();
    std::os::unix::fs::symlink(binary(), daq.path("bin/daq")).unwrap();
    // An interpreter finds its packages only at its own path.
    let wrapper = format!("#!/bin/sh\nexec {} \"$@\"\n", python.path().display());
    let wrapper = daq.write("bin/python3", &wrapper);
    std::fs::set_permissions(wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut path = vec![daq.path("bin")];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let path = std::env::join_paths(path).unwrap().into_string().unwrap();
    let daq = daq.env("PATH", &path).env("PAIRS", &PAIRS.to_string());
    let output = daq
        .prepare(Command::new("timeout").args(["--kill-after=20", "240", "bash", "hosts.sh", "4"]))
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{}\n{text}", output.status);
    let report = |name: String| -> Value {
        let report = std::fs::read_to_string(daq.path(&format!("reports/{name}.json"))).unwrap();
        let report: Value =
            serde_json::from_str(&report).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        let wrong = daq_testkit::ledger::violations(&report);
        assert!(wrong.is_empty(), "{name}: {wrong:#?}");
        report
    };
    let sent = report("telescope-1".to_owned())["sinks"]["fengine"]["frames"]
        .as_u64()
        .unwrap();
    assert!(sent > 20, "{sent}");
    for n in 1..=PAIRS {
        let [ingest, compute, archive] =
            ["ingest", "compute", "archive"].map(|stage| report(format!("{stage}-{n}")));
        let n = |report: &Value, path: &str| daq_testkit::ledger::count(report, path);
        let passed = n(&ingest, "sinks.next.frames");
        assert!(passed > sent / 2 && passed <= sent, "{passed} of {sent}");
        assert_eq!(n(&compute, "sources.channel.expected"), passed);
        assert_eq!(n(&compute, "sources.channel.delivered"), passed);
        let spectra = n(&compute, "sinks.spectra.acknowledged");
        assert!(spectra > 0);
        assert_eq!(n(&archive, "sources.spectra.expected"), spectra);
        assert_eq!(n(&archive, "sources.spectra.delivered"), spectra);
        assert_eq!(n(&archive, "sinks.files.frames"), spectra);
        assert!(n(&compute, "sinks.health.acknowledged") > 0);
    }
    let log = std::fs::read_to_string(daq.path("logs/state.log")).unwrap();
    assert!(!log.contains("Traceback"), "{log}");
    let stored = Command::new("grep")
        .args(["-rqa", "obs.state.compute-1"])
        .arg(daq.path("nats-store"))
        .status()
        .unwrap();
    assert!(
        stored.success(),
        "the server must store the state of the hosts: {log}"
    );
}
