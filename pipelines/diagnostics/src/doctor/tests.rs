//! Tests the findings as a whole.

use super::root::tests::machine;
use super::*;

fn finding(verdict: Verdict) -> Finding {
    Finding::new("network", "rmem_max", "/proc/sys/net/core/rmem_max")
        .read(verdict, "4 MiB")
        .fix("sudo sysctl -w net.core.rmem_max=67108864")
}

#[test]
fn empty_root_is_unknown_and_not_bad() {
    let (_dir, root) = machine(&[]);
    let findings = examine(&root.at("/"), Duration::ZERO);
    assert!(findings.len() >= 25);
    assert!(!findings.iter().any(Finding::is_bad));
    for finding in &findings {
        assert!(
            !finding.read.is_empty() && !finding.from.is_empty(),
            "{finding:?}"
        );
    }
}

#[test]
fn doctor_on_this_machine_does_not_fail() {
    let findings = examine(Path::new("/"), Duration::from_millis(1));
    let read = |name| {
        findings
            .iter()
            .find(|finding| finding.name == name)
            .unwrap()
    };
    assert_ne!(read("kernel").verdict, Verdict::Unknown);
    assert_ne!(read("memlock").verdict, Verdict::Unknown);
    for finding in &findings {
        let must_fix = finding.verdict >= Verdict::Warn;
        assert!(
            !must_fix || finding.fix.is_some(),
            "the command is missing in {finding:?}"
        );
        assert!(
            !must_fix || finding.why.is_some(),
            "the reason is missing in {finding:?}"
        );
    }
}

#[test]
fn finding_names_are_unique() {
    let findings = examine(Path::new("/"), Duration::from_millis(1));
    let mut names: Vec<_> = findings
        .iter()
        .map(|finding| (&finding.group, finding.name))
        .collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn exit_status_fails_only_for_bad_findings() {
    for verdict in [Verdict::Ok, Verdict::Unknown, Verdict::Warn] {
        assert!(!finding(verdict).is_bad());
    }
    assert!(finding(Verdict::Bad).is_bad());
}

#[test]
fn finding_line_has_all_parts() {
    let mut short = finding(Verdict::Ok);
    (short.name, short.fix) = ("swap", Some("sudo swapoff -a".to_owned()));
    let text = render(&[finding(Verdict::Warn).why("too small"), short], false);
    let expected = "network\n  \
        warn  rmem_max  4 MiB  (/proc/sys/net/core/rmem_max)  too small  fix: sudo sysctl -w net.core.rmem_max=67108864\n  \
        ok    swap      4 MiB  (/proc/sys/net/core/rmem_max)  optional: sudo swapoff -a\n\n\
        1 warning: daq runs, but slower or with less margin before it loses packets.\n\
        sysctl -w changes a value until the next boot; to keep the value, add it to /etc/sysctl.d/90-daq.conf.\n";
    assert_eq!(text, expected);
}

#[test]
fn colour_keeps_text() {
    let findings = [finding(Verdict::Bad), finding(Verdict::Unknown)];
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
    let json = serde_json::to_value(finding(Verdict::Warn)).unwrap();
    assert_eq!(json["verdict"], "warn");
    assert_eq!(json["read"], "4 MiB");
    assert_eq!(json["from"], "/proc/sys/net/core/rmem_max");
    assert_eq!(json["fix"], "sudo sysctl -w net.core.rmem_max=67108864");
    assert!(json.get("why").is_none());
}
