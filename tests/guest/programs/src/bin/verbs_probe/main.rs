//! Tries every RDMA card of this host with itself: queues of each service, registrations, refusals, rdma_cm. Prints one
//! line a check, `ok …`, `FAIL …` or `skip …`; its status is 1 where one failed. Soft-RoCE is enough.
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

/// Says how each check ended.
#[derive(Default)]
struct Report {
    failed: usize,
}

impl Report {
    fn check(&mut self, name: &str, outcome: Outcome<String>) {
        match outcome {
            Ok(said) if said.is_empty() => println!("ok {name}"),
            Ok(said) => match said.strip_prefix("skip: ") {
                Some(why) => println!("skip {name}: {why}"),
                None => println!("ok {name}: {said}"),
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
        .filter(|device| wanted.is_empty() || wanted.contains(&device.name))
        .collect();
    if devices.is_empty() {
        println!("skip everything: there is no such card");
    }
    report.check("a card that is not there is refused", no_such_card());
    for device in &devices {
        println!("{device:?}");
        match sys::open(&device.name, 1, None) {
            Ok(nic) => all_of(&mut report, &nic),
            Err(error) => report.check(&format!("{} opens", device.name), Err(error.into())),
        }
    }
    if let [one, other, ..] = devices.as_slice() {
        let outcome = managed::undeclared(&one.name, &other.name);
        report.check("rdma_cm: a card that was not declared is refused", outcome);
        let outcome = managed::two_rails(&one.name, &other.name);
        report.check("rdma_cm: two rails by two cards", outcome);
    }
    if report.failed > 0 {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn no_such_card() -> Outcome<String> {
    match sys::open("none_7", 1, None) {
        Ok(_) => Err("it was opened".into()),
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
            "rc: many frames by write, with unsignaled payloads",
            work::many,
        ),
        ("rc: a wrong key is remote-access", work::wrong_key),
        ("rc: a freed key is remote-access", work::old_key),
        ("rc: no receive is receiver-not-ready", work::not_ready),
        ("rc: a peer that is gone is unanswered", work::unanswered),
        ("rc: work of a failed queue is flushed", work::flushed),
        (
            "rc: work too large for its queue is refused",
            work::too_large,
        ),
        ("ud: datagrams", work::datagrams),
        ("waiting: what came before is seen", card::come_before),
        ("waiting: no event is lost", card::waiting),
        ("an overrun completion queue is reported", card::overrun),
        ("registering: host memory by other ways", card::other_ways),
        ("registering: a GPU's memory", card::gpu_memory),
        ("rdma_cm: both roles, and parting", managed::managed),
        ("rdma_cm: a peer that vanishes is gone", managed::vanished),
        ("rdma_cm: a refusal arrives in its words", managed::refused),
        ("rdma_cm: no listener", managed::no_listener),
    ];
    for (what, check) in checks {
        report.check(&format!("{name} {what}"), check(nic));
    }
    report.check(&format!("{name} ends and opens again"), again(nic));
}

fn port(nic: &Arc<dyn Nic>) -> Outcome<String> {
    let (port, limits) = (nic.port()?, nic.limits());
    that(port.is_active, format!("it is down: {port:?}"))?;
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
        "a queue and a key keep their card",
    )?;
    Ok(String::new())
}
