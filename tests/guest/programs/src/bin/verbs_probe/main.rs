//! Tests every RDMA card of this host, each connected to itself: queue pairs of each service, registrations, rejected
//! operations and rdma_cm. Prints one line per check, `ok …`, `FAIL …` or `skip …`. Exits with 1 if a check failed.
//! Soft-RoCE is sufficient.
//!
//! ```text
//! verbs_probe [CARD...]
//! ```

mod card;
mod ends;
mod managed;
mod work;

use crate::ends::{BYTES, End, Outcome, options, that};
use daq_rdma::sys;
use daq_rdma::verbs::{Nic, Service};
use std::process::ExitCode;
use std::sync::Arc;

/// Prints the result of each check, and counts failures.
#[derive(Default)]
struct Report {
    failed: usize,
}

impl Report {
    fn check(&mut self, name: &str, outcome: Outcome<String>) {
        match outcome {
            Ok(output) if output.is_empty() => println!("ok {name}"),
            Ok(output) => match output.strip_prefix("skip: ") {
                Some(why) => println!("skip {name}: {why}"),
                None => println!("ok {name}: {output}"),
            },
            Err(why) => {
                self.failed += 1;
                println!("FAIL {name}: {why}");
            }
        }
    }
}

fn main() -> ExitCode {
    let mut report = Report::default();
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let devices = match sys::devices() {
        Ok(devices) => devices,
        Err(error) => {
            println!("skip everything: {error}");
            return ExitCode::SUCCESS;
        }
    };
    let devices: Vec<_> = devices
        .into_iter()
        .filter(|device| wanted.is_empty() || wanted.contains(device))
        .collect();
    if devices.is_empty() {
        println!("skip everything: no matching RDMA card found");
    }
    report.check("opening a missing card fails", no_such_card());
    for device in &devices {
        match sys::open(device, 1, None) {
            Ok(nic) => all_of(&mut report, &nic),
            Err(error) => report.check(&format!("{device} opens"), Err(error.into())),
        }
    }
    if let [one, other, ..] = devices.as_slice() {
        let outcome = managed::undeclared(one, other);
        report.check("rdma_cm: an undeclared card is rejected", outcome);
        let outcome = managed::two_rails(one, other);
        report.check("rdma_cm: two rails over two cards", outcome);
    }
    if report.failed > 0 {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn no_such_card() -> Outcome<String> {
    match sys::open("none_7", 1, None) {
        Ok(_) => Err("the missing card was opened".into()),
        Err(error) => Ok(error.to_string()),
    }
}

fn all_of(report: &mut Report, nic: &Arc<dyn Nic>) {
    let name = nic.name().to_owned();
    report.check(&format!("{name}: port and limits"), port(nic));
    for service in [Service::Rc, Service::Uc] {
        let named = format!("{name} {}", service.name());
        report.check(&format!("{named}: writes"), work::writes(nic, service));
        report.check(&format!("{named}: sends"), work::sends(nic, service));
        report.check(&format!("{named}: inline"), work::inline(nic, service));
    }
    type Check = fn(&Arc<dyn Nic>) -> Outcome<String>;
    let checks: [(&str, Check); 17] = [
        (
            "rc: many frames as writes, with unsignaled payloads",
            work::many,
        ),
        ("rc: a wrong key ends with remote-access", work::wrong_key),
        ("rc: a freed key ends with remote-access", work::old_key),
        (
            "rc: a missing receive ends with receiver-not-ready",
            work::not_ready,
        ),
        (
            "rc: a destroyed peer ends with unanswered",
            work::unanswered,
        ),
        (
            "rc: work requests of a failed queue pair are flushed",
            work::flushed,
        ),
        (
            "rc: work requests too large for the queue pair are rejected",
            work::too_large,
        ),
        ("ud: datagrams", work::datagrams),
        (
            "waiting: earlier completions are detected",
            card::come_before,
        ),
        ("waiting: no event is lost", card::waiting),
        ("an overrun completion queue is reported", card::overrun),
        (
            "registering: host memory with methods for GPUs",
            card::other_ways,
        ),
        ("registering: GPU memory", card::gpu_memory),
        ("rdma_cm: both roles, and disconnecting", managed::managed),
        (
            "rdma_cm: a vanished peer is reported as disconnected",
            managed::vanished,
        ),
        (
            "rdma_cm: the reason of a rejection arrives unchanged",
            managed::refused,
        ),
        ("rdma_cm: no listener", managed::no_listener),
    ];
    for (what, check) in checks {
        report.check(&format!("{name} {what}"), check(nic));
    }
    report.check(&format!("{name} closes and opens again"), again(nic));
}

fn port(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (port, limits) = (nic.port()?, nic.limits());
    that(port.is_active, format!("the port is down: {port:?}"))?;
    that(
        port.mtu >= 256 && limits.max_sges >= 3,
        format!("{limits:?}"),
    )?;
    that(limits.max_inline >= 8, format!("{limits:?}"))?;
    Ok(format!("{port:?} {limits:?}"))
}

fn again(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let other = sys::open(nic.name(), 1, Some(nic.port()?.gid_index))?;
    let side = End::new(&other, options(Service::Rc))?;
    drop(other);
    that(
        side.key.region().bytes() == BYTES,
        "a queue pair and a memory region must keep the card open",
    )?;
    Ok(String::new())
}
