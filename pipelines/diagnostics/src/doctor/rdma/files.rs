//! Checks what programs need to access an RDMA card: the provider library, kernel modules and device files.

use super::{Card, Machine};
use crate::doctor::Status;
use crate::doctor::check::{Judgement, not_applicable, ok, warn};
use rustix::fs::{Access, access};
use rustix::io::Errno;

pub(super) const PROVIDERS: &str = "/etc/libibverbs.d";
pub(super) const VERBS: &str = "/sys/class/infiniband_verbs";
pub(super) const UVERBS: &str = "/sys/module/ib_uverbs";
pub(super) const UCM: &str = "/sys/module/rdma_ucm";
const UCM_CLASS: &str = "/sys/class/misc/rdma_cm";
const DEVICES: &str = "/dev/infiniband";
/// Container options that are required for RDMA, in addition to the device files.
const CONTAINER_OPTIONS: &str = "--device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1";

/// Checks the libibverbs provider of the card. Without the provider, libibverbs does not list the card.
pub(super) fn provider(machine: &Machine<'_>) -> Option<Judgement> {
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
        None if names.is_empty() => None,
        None => Some(ok(format!("{} providers", names.len()))),
        Some(name) => Some(warn(
            format!("none for {name}"),
            "libibverbs lists only cards for which it has a provider",
            "sudo apt install ibverbs-providers",
        )),
    }
}

pub(super) fn uverbs(machine: &Machine<'_>) -> Option<Judgement> {
    Some(if has_any(machine, [UVERBS, VERBS]) {
        ok("loaded")
    } else {
        let why = "without this module programs cannot access any RDMA card";
        warn("not loaded", why, "sudo modprobe ib_uverbs")
    })
}

pub(super) fn ucm(machine: &Machine<'_>) -> Option<Judgement> {
    Some(if has_any(machine, [UCM, UCM_CLASS]) {
        ok("loaded")
    } else {
        let why = "connections through rdma_cm are not possible; daq exchanges the queue pair parameters over TCP instead";
        warn("not loaded", why, "sudo modprobe rdma_ucm")
    })
}

/// Returns whether any of the files of a Linux module in `/sys` or `/dev` exists. A module that is built into Linux is
/// not listed.
fn has_any(machine: &Machine<'_>, files: [&str; 2]) -> bool {
    files.iter().any(|file| machine.root.exists(file))
}

/// Checks the device file of rdma_cm.
pub(super) fn cm(machine: &Machine<'_>) -> Option<Judgement> {
    Some(if has_any(machine, [UCM, UCM_CLASS]) {
        device_file(machine, "rdma_cm")
    } else {
        not_applicable()
    })
}

/// Checks the device file of a card.
pub(super) fn device(card: &Card<'_>) -> Option<Judgement> {
    let root = card.machine.root;
    let is_of_card = |file: &String| {
        let name = root.text(&format!("{VERBS}/{file}/ibdev"));
        name.is_some_and(|name| name == card.nic.name)
    };
    Some(match root.names(VERBS).into_iter().find(is_of_card) {
        Some(file) => device_file(card.machine, &file),
        None => warn(
            "none",
            "programs can access the card only through ib_uverbs",
            "sudo modprobe ib_uverbs",
        ),
    })
}

/// Checks whether a file below `/dev/infiniband` can be opened.
fn device_file(machine: &Machine<'_>, file: &str) -> Judgement {
    let path = format!("{DEVICES}/{file}");
    let mode = Access::READ_OK | Access::WRITE_OK;
    let found = access(machine.root.at(&path).as_path(), mode);
    judge_access(&path, found).from(path)
}

pub(super) fn judge_access(path: &str, found: Result<(), Errno>) -> Judgement {
    match found {
        Ok(()) => ok("can be opened"),
        Err(Errno::NOENT) => warn(
            "missing",
            "Linux has the card, but the card's device file was not passed to this container",
            format!("docker run {CONTAINER_OPTIONS} …"),
        ),
        Err(Errno::ACCESS | Errno::PERM) => warn(
            "permission denied",
            "this user cannot open the card",
            format!(
                "sudo chmod 0666 {path}  # permanently: KERNEL==\"uverbs*|rdma_cm\", MODE=\"0666\" in /etc/udev/rules.d/90-rdma.rules"
            ),
        ),
        Err(other) => Judgement::new(Status::Unknown, other.to_string()),
    }
}
