//! `daq doctor` diagnoses what prevents lossless data on this machine, and shows the commands that fix it.
//!
//! Most checks read a few files and change nothing. Libraries are loaded only on the running machine, and only if an
//! NVIDIA GPU or its driver is present. NVML and CUDA open the driver's device files, and wake a GPU without
//! persistence mode for a few seconds. Each backend for CPU stores allocates and frees a small piece of GPU memory.
//!
//! Counters of drops and of problems in RDMA networks are read twice, because only an increasing counter is a warning.
//! Each finding contains the value, its origin, and the command that fixes the problem.

#![allow(
    clippy::unnecessary_wraps,
    reason = "all functions in a table of checks have the same signature"
)]

mod cards;
mod cgroup;
mod check;
mod drops;
mod gpu;
mod libraries;
mod memory;
mod network;
mod processor;
mod rdma;
mod root;
mod system;

pub use check::{Finding, Status};
use drops::Drops;
pub use gpu::read_bar1_sizes;
use root::Root;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Runs every check on the machine whose file system begins at `root`: `/`, or a directory with copies of the required
/// files.
///
/// Reads the counters of drops twice, with the time `sample` between the two readings. If `sample` is zero, the
/// increase of the counters is not measured.
pub fn examine(root: &Path, sample: Duration) -> Vec<Finding> {
    let root = Root::new(root);
    let mut before = Drops::read(&root);
    let mut counters = rdma::Counters::read(&root);
    if !sample.is_zero() {
        let start = Instant::now();
        std::thread::sleep(sample);
        before = before.ago(start.elapsed());
        counters = counters.ago(start.elapsed());
    }
    let found = [
        system::examine(&root),
        memory::examine(&root),
        processor::examine(&root),
        network::examine(&root, &before),
        rdma::examine(&root, &counters),
        gpu::examine(&root),
        cards::examine(&root),
        libraries::examine(&root),
    ];
    grouped(found.concat())
}

/// Moves findings of the same group together, in the order in which the groups first appear.
fn grouped(mut findings: Vec<Finding>) -> Vec<Finding> {
    let groups: Vec<_> = findings.iter().map(|f| f.group.clone()).collect();
    findings.sort_by_key(|finding| groups.iter().position(|group| *group == finding.group));
    findings
}

/// Formats the findings as aligned lines, one per finding, followed by a summary line. Uses colours if `color` is true.
pub fn render(findings: &[Finding], color: bool) -> String {
    let width = |of: fn(&Finding) -> &str| {
        findings
            .iter()
            .map(|f| of(f).chars().count())
            .max()
            .unwrap_or(0)
    };
    let (names, reads) = (width(|f| f.name), width(|f| &f.read).min(34));
    let paint = |code: &str, text: &str| {
        if color {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    };
    let mut text = String::new();
    let mut group = "";
    // Writing to a `String` cannot fail.
    for finding in findings {
        if finding.group != group {
            if !group.is_empty() {
                text.push('\n');
            }
            group = &finding.group;
            let _ = writeln!(text, "{}", paint("1", group));
        }
        let Finding {
            name,
            read,
            from,
            status,
            why,
            fix,
            ..
        } = finding;
        let word = paint(status.color(), &format!("{:<4}", status.word()));
        let _ = write!(
            text,
            "  {word}  {name:<names$}  {read:<reads$}  {}",
            paint("2", &format!("({from})"))
        );
        if let Some(why) = why {
            let _ = write!(text, "  {why}");
        }
        if let Some(fix) = fix {
            let label = if *status == Status::Ok {
                "optional"
            } else {
                "fix"
            };
            let _ = write!(text, "  {label}: {}", paint("1", fix));
        }
        text.push('\n');
    }
    let count = |status| findings.iter().filter(|f| f.status == status).count();
    let sum = match (count(Status::Problem), count(Status::Warning)) {
        (0, 0) => "No problems found.".to_owned(),
        (0, 1) => "1 warning: daq runs, but slower or with less margin before it loses packets."
            .to_owned(),
        (0, warnings) => {
            format!(
                "{warnings} warnings: daq runs, but slower or with less margin before it loses packets."
            )
        }
        (bad, _) => format!("{bad} of these findings prevent daq from running."),
    };
    let _ = write!(text, "\n{sum}\n");
    if findings.iter().any(|finding| {
        finding
            .fix
            .as_ref()
            .is_some_and(|fix| fix.contains("sysctl -w"))
    }) {
        text.push_str("sysctl -w changes a value until the next boot; to keep the value, add it to /etc/sysctl.d/90-daq.conf.\n");
    }
    text
}

#[cfg(test)]
mod tests;
