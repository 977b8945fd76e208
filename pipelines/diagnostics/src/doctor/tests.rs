//! Tests the findings as a whole. Helpers for the tests of all areas.

use super::check::{Judgement, finding as found};
use super::root::tests::machine;
use super::*;
use std::collections::BTreeSet;

impl Finding {
    /// Returns the status and the value.
    pub(in crate::doctor) fn summary(&self) -> (Status, &str) {
        (self.status, &self.read)
    }
}

/// Returns the finding called `name` of a machine with the files `files`.
pub(in crate::doctor) fn judged(
    examine: impl Fn(&Root) -> Vec<Finding>,
    files: &[(&str, &str)],
    name: &str,
) -> Finding {
    let (_dir, root) = machine(files);
    find(&examine(&root), name).clone()
}

/// Returns the finding called `name`, of which there must be exactly one. Checks that all findings are complete.
pub(in crate::doctor) fn one(findings: &[Finding], name: &str) -> Finding {
    findings.iter().for_each(assert_complete);
    let count = findings.iter().filter(|found| found.name == name).count();
    assert!(count < 2, "several findings are called {name}");
    find(findings, name).clone()
}

pub(in crate::doctor) fn find<'a>(findings: &'a [Finding], name: &str) -> &'a Finding {
    let mut named = findings.iter().filter(|finding| finding.name == name);
    let found = named.next();
    found.unwrap_or_else(|| panic!("{name} is missing in {findings:#?}"))
}

/// Returns `findings`. Checks that all findings are complete and that all names differ.
pub(in crate::doctor) fn sound(findings: Vec<Finding>) -> Vec<Finding> {
    let mut names = BTreeSet::new();
    for finding in &findings {
        assert_complete(finding);
        let is_new = names.insert((finding.group.clone(), finding.name));
        assert!(is_new, "{finding:?}");
    }
    findings
}

/// Checks that a finding has a value and an origin, and that a warning has a reason and a command.
fn assert_complete(finding: &Finding) {
    assert!(!finding.is_bad(), "{finding:?}");
    assert!(
        !finding.read.is_empty() && !finding.from.is_empty(),
        "{finding:?}"
    );
    let is_fixable = finding.why.is_some() && finding.fix.is_some();
    assert!(
        finding.status < Status::Warning || is_fixable,
        "{finding:?}"
    );
}

fn finding(status: Status) -> Finding {
    let judged = Judgement::new(status, "4 MiB").fix("sudo sysctl -w net.core.rmem_max=67108864");
    let from = "/proc/sys/net/core/rmem_max";
    found("network", "rmem_max", from, Some(judged)).unwrap()
}

#[test]
fn empty_root_is_unknown_and_not_bad() {
    let (_dir, root) = machine(&[]);
    let findings = sound(examine(&root.at("/"), Duration::ZERO));
    assert!(findings.len() >= 25);
}

#[test]
fn doctor_on_this_machine_does_not_fail() {
    let findings = examine(Path::new("/"), Duration::from_millis(1));
    let mut names = BTreeSet::new();
    for finding in &findings {
        let is_fixable = finding.why.is_some() && finding.fix.is_some();
        assert!(
            finding.status < Status::Warning || is_fixable,
            "{finding:?}"
        );
        assert!(names.insert((&finding.group, finding.name)), "{finding:?}");
    }
    for name in ["kernel", "memlock"] {
        assert_ne!(find(&findings, name).status, Status::Unknown);
    }
}

#[test]
fn exit_status_fails_only_for_bad_findings() {
    for status in [Status::Ok, Status::Unknown, Status::Warning] {
        assert!(!finding(status).is_bad());
    }
    assert!(finding(Status::Problem).is_bad());
}

#[test]
fn finding_line_has_all_parts() {
    let mut short = finding(Status::Ok);
    (short.name, short.fix) = ("swap", Some("sudo swapoff -a".to_owned()));
    let mut long = finding(Status::Warning);
    long.why = Some("too small".to_owned());
    let text = render(&[long, short], false);
    let expected = "network\n  \
        warn  rmem_max  4 MiB  (/proc/sys/net/core/rmem_max)  too small  fix: sudo sysctl -w net.core.rmem_max=67108864\n  \
        ok    swap      4 MiB  (/proc/sys/net/core/rmem_max)  optional: sudo swapoff -a\n\n\
        1 warning: daq runs, but slower or with less margin before it loses packets.\n\
        sysctl -w changes a value until the next boot; to keep the value, add it to /etc/sysctl.d/90-daq.conf.\n";
    assert_eq!(text, expected);
}

#[test]
fn colour_keeps_text() {
    let findings = [finding(Status::Problem), finding(Status::Unknown)];
    let colored = render(&findings, true);
    let mut plain = String::new();
    let mut parts = colored.split('\x1b');
    plain.push_str(parts.next().unwrap());
    for part in parts {
        plain.push_str(part.split_once('m').unwrap().1);
    }
    assert_ne!(colored, plain);
    assert_eq!(plain, render(&findings, false));
}

#[test]
fn json_has_all_parts() {
    let json = serde_json::to_value(finding(Status::Warning)).unwrap();
    assert_eq!(json["verdict"], "warn");
    assert_eq!(json["read"], "4 MiB");
    assert_eq!(json["from"], "/proc/sys/net/core/rmem_max");
    assert_eq!(json["fix"], "sudo sysctl -w net.core.rmem_max=67108864");
    assert!(json.get("why").is_none());
}

#[test]
fn findings_of_a_group_are_together() {
    let of = |group: &'static str| found(group, "cores", "/proc/cpuinfo", None).unwrap();
    let found = grouped(["network", "eth0", "network", "gpu"].map(of).into());
    let groups: Vec<_> = found.iter().map(|finding| &*finding.group).collect();
    assert_eq!(groups, ["network", "network", "eth0", "gpu"]);
}
