//! Checks what programs need to access an RDMA card: the provider library, kernel modules and device files.

use super::{Card, Finding, GROUP, Machine, Verdict};
use rustix::fs::{Access, access};
use rustix::io::Errno;

const PROVIDERS: &str = "/etc/libibverbs.d";
const VERBS: &str = "/sys/class/infiniband_verbs";
const UVERBS: &str = "/sys/module/ib_uverbs";
const UCM: &str = "/sys/module/rdma_ucm";
const UCM_CLASS: &str = "/sys/class/misc/rdma_cm";
const DEVICES: &str = "/dev/infiniband";
/// Container options that are required for RDMA, in addition to the device files.
const CONTAINER_OPTIONS: &str = "--device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1";

pub(super) fn examine(machine: &Machine<'_>) -> Vec<Finding> {
    let mut findings = vec![provider(machine)];
    findings.push(module(
        machine,
        "ib_uverbs",
        [UVERBS, VERBS],
        "without this module programs cannot access any RDMA card",
    ));
    findings.push(module(
        machine,
        "rdma_ucm",
        [UCM, UCM_CLASS],
        "connections through rdma_cm are not possible; daq exchanges the queue pair parameters over TCP instead",
    ));
    if machine.root.exists(UCM) || machine.root.exists(UCM_CLASS) {
        findings.push(opened(machine, GROUP.to_owned(), "rdma_cm file", "rdma_cm"));
    }
    findings
}

/// Checks the libibverbs provider of the card. Without the provider, libibverbs does not list the card.
fn provider(machine: &Machine<'_>) -> Finding {
    let finding = Finding::new(GROUP, "providers", PROVIDERS);
    let there = machine.root.names(PROVIDERS);
    let names = there.iter().filter_map(|name| name.strip_suffix(".driver"));
    let names: Vec<_> = names.collect();
    // The names of a Linux driver and its provider have the same beginning, for example mlx5_core and mlx5.
    let missing = machine.cards().find_map(|card| {
        let driver = match card.device {
            Some(device) => device.driver.clone()?,
            None => card.nic.name.clone(),
        };
        let known = [
            "mlx5", "mlx4", "bnxt_re", "irdma", "qedr", "hns", "rxe", "siw",
        ];
        let wanted = match driver.as_str() {
            "ice" => "irdma",
            "bnxt_en" => "bnxt_re",
            "qede" => "qedr",
            other => known.into_iter().find(|name| other.starts_with(name))?,
        };
        (!names.contains(&wanted)).then(|| wanted.to_owned())
    });
    match missing {
        None if names.is_empty() => finding,
        None => finding.read(Verdict::Ok, format!("{} providers", names.len())),
        Some(name) => finding
            .read(Verdict::Warn, format!("none for {name}"))
            .why("libibverbs lists only cards for which it has a provider")
            .fix("sudo apt install ibverbs-providers"),
    }
}

/// Checks a Linux module. The module is present if any of its files in `/sys` or `/dev` exists.
fn module(
    machine: &Machine<'_>,
    name: &'static str,
    traces: [&str; 2],
    why: &'static str,
) -> Finding {
    let finding = Finding::new(GROUP, name, traces[0]);
    if traces.iter().any(|trace| machine.root.exists(trace)) {
        finding.read(Verdict::Ok, "loaded")
    } else {
        finding
            .read(Verdict::Warn, "not loaded")
            .why(why)
            .fix(format!("sudo modprobe {name}"))
    }
}

/// Checks the device file of a card.
pub(super) fn device(card: &Card<'_>) -> Finding {
    let root = card.machine.root;
    let files = root.names(VERBS);
    let mut files = files.iter();
    let file = files.find(|file| {
        root.text(&format!("{VERBS}/{file}/ibdev"))
            .is_some_and(|of| of == card.nic.name)
    });
    match file {
        Some(file) => opened(card.machine, card.group(), "device file", file),
        None => Finding::new(card.group(), "device file", VERBS)
            .read(Verdict::Warn, "none")
            .why("programs can access the card only through ib_uverbs")
            .fix("sudo modprobe ib_uverbs"),
    }
}

/// Checks whether a file below `/dev/infiniband` can be opened.
fn opened(machine: &Machine<'_>, group: String, name: &'static str, file: &str) -> Finding {
    let path = format!("{DEVICES}/{file}");
    let found = access(
        machine.root.at(&path).as_path(),
        Access::READ_OK | Access::WRITE_OK,
    );
    judge(Finding::new(group, name, path), found)
}

pub(super) fn judge(finding: Finding, found: Result<(), Errno>) -> Finding {
    let path = finding.from.clone();
    match found {
        Ok(()) => finding.read(Verdict::Ok, "can be opened"),
        Err(Errno::NOENT) => finding
            .read(Verdict::Warn, "missing")
            .why("Linux has the card, but the card's device file was not passed to this container")
            .fix(format!("docker run {CONTAINER_OPTIONS} …")),
        Err(Errno::ACCESS | Errno::PERM) => finding
            .read(Verdict::Warn, "permission denied")
            .why("this user cannot open the card")
            .fix(format!(
                "sudo chmod 0666 {path}  # permanently: KERNEL==\"uverbs*|rdma_cm\", MODE=\"0666\" in /etc/udev/rules.d/90-rdma.rules"
            )),
        Err(other) => finding.read(Verdict::Unknown, other.to_string()),
    }
}
