//! `daq selftest rdma` verifies that network cards support what daq needs, and prints a report. Each card sends to
//! itself.
//!
//! The checks do not cover effects of a switch or of another host, such as congestion, lost packets or a disconnected
//! cable.

mod checks;
mod pair;
mod stream;

use super::report::{Columns, Entry, Report};
use super::{Verdict, run};
use crate::doctor;
use checks::Found;
use daq_core::entry::Registry;
use daq_core::gpu::driver::Device;
use daq_pipelines::console::Progress;
use daq_rdma::nics;
use daq_rdma::verbs::{Nic, VerbsError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

impl From<VerbsError> for Verdict {
    fn from(error: VerbsError) -> Self {
        Self::Failed(format!("expected no error, got: {error}"))
    }
}

/// Options of `daq selftest rdma`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of the cards. An empty list selects all RDMA cards.
    pub nics: Vec<String>,
    /// CUDA device number of the GPU.
    pub device: u32,
    /// Names of the checks to run. An empty list runs all checks.
    pub checks: Vec<String>,
}

/// The input of every check.
struct Setup {
    registry: Registry,
    name: String,
    nic: Arc<dyn Nic>,
    gpu: Result<&'static Device, String>,
}

impl Setup {
    fn gpu(&self) -> Result<&'static Device, Verdict> {
        self.gpu.clone().map_err(|_| {
            Verdict::Skipped("no GPU available; the reason is at the top of this report".to_owned())
        })
    }
}

/// A check of one card.
struct Check {
    name: &'static str,
    /// The property that the check verifies.
    what: &'static str,
    run: fn(&Setup) -> Found,
}

const CHECKS: [Check; 17] = [
    Check {
        name: "port",
        what: "the card's port is up",
        run: checks::port,
    },
    Check {
        name: "register-host",
        what: "host memory can be registered, with a different key each time",
        run: checks::register_host,
    },
    Check {
        name: "register-gpu",
        what: "GPU memory can be registered with the preferred method; methods that were refused are listed",
        run: checks::register_gpu,
    },
    Check {
        name: "register-dma-buf",
        what: "GPU memory can be registered by dma-buf",
        run: checks::register_dma_buf,
    },
    Check {
        name: "register-peermem",
        what: "GPU memory can be registered by address, through nvidia-peermem",
        run: checks::register_peer,
    },
    Check {
        name: "write-host",
        what: "writes with immediate data to host memory arrive complete, neighbouring bytes are unchanged",
        run: checks::write_host,
    },
    Check {
        name: "write-to-gpu",
        what: "like write-host, but from host memory to GPU memory, read back by CUDA",
        run: checks::write_to_gpu,
    },
    Check {
        name: "write-from-gpu",
        what: "like write-host, but from GPU memory to host memory",
        run: checks::write_from_gpu,
    },
    Check {
        name: "write-between-gpus",
        what: "like write-host, but from GPU memory to GPU memory",
        run: checks::write_between_gpus,
    },
    Check {
        name: "send",
        what: "messages arrive in receive requests with two scatter entries each, and an inline message arrives",
        run: checks::send,
    },
    Check {
        name: "wrong-key",
        what: "a write with a wrong key or beyond the end of the region is rejected and changes nothing",
        run: checks::wrong_key,
    },
    Check {
        name: "no-receive",
        what: "a send to a peer without posted receives fails within a bounded time",
        run: checks::no_receive,
    },
    Check {
        name: "reconnect",
        what: "after memory is registered again, a write with the old key is rejected and changes nothing",
        run: checks::reconnect,
    },
    Check {
        name: "unreliable",
        what: "an unreliable connection drops messages for which no receive is posted, keeps the order of the other messages, and continues",
        run: checks::unreliable,
    },
    Check {
        name: "stream-host",
        what: "a sink `stream` sends the frames of a host ring to a source `stream`, which writes them to another host ring; content and ledger are verified",
        run: stream::host,
    },
    Check {
        name: "stream-staged",
        what: "like stream-host, but from a GPU ring to a GPU ring through host memory",
        run: stream::staged,
    },
    Check {
        name: "stream-direct",
        what: "like stream-host, but from a GPU ring to a GPU ring; the card reads and writes GPU memory",
        run: stream::direct,
    },
];

/// The check of this host's configuration.
const DOCTOR: (&str, &str) = ("doctor", "`daq doctor` finds no RDMA problem on this host");

/// Returns the name and the meaning of each check.
pub fn list() -> Vec<(&'static str, &'static str)> {
    let checks = CHECKS.iter().map(|check| (check.name, check.what));
    checks.chain([DOCTOR]).collect()
}

/// Runs the requested checks on every card, in a program with the entries of `registry`. `progress` shows the current
/// check.
///
/// # Errors
/// If there is no card, or a requested card cannot be opened.
pub fn rdma(
    registry: &Registry,
    options: &Options,
    progress: &Progress,
) -> Result<Report, VerbsError> {
    let names = if options.nics.is_empty() {
        cards().map_err(|mut error| {
            error.why += "; `--nics emulated` tests the emulated NIC, which needs no hardware";
            error
        })?
    } else {
        options.nics.clone()
    };
    let is_wanted =
        |name: &str| options.checks.is_empty() || options.checks.iter().any(|check| check == name);
    let device = Device::open(options.device);
    let gpu = device.map_err(|error| format!("no GPU available: {error}"));
    let about = match &gpu {
        Ok(device) => format!("{} (cuda:{})", device.name(), device.ordinal()),
        Err(why) => why.clone(),
    };
    let version = env!("CARGO_PKG_VERSION");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.trim();
    let mut report = Report::new(
        format!("daq {version}, Linux {kernel}, {about}"),
        Columns::SubjectFirst,
        [
            ("version", version.to_owned()),
            ("kernel", kernel.to_owned()),
            ("gpu", about),
        ],
    );
    report.findings = Some(Vec::new());
    let checks: Vec<_> = CHECKS
        .iter()
        .filter(|check| is_wanted(check.name))
        .collect();
    progress.rounds(names.len(), checks.len());
    for name in names {
        let setup = Setup {
            registry: registry.clone(),
            nic: nics::open(&name)?,
            name,
            gpu: gpu.clone(),
        };
        for check in &checks {
            progress.step(Some(format!("{} with {}", check.name, setup.name)));
            let mut found = None;
            let outcome = run(|| {
                found = Some((check.run)(&setup)?);
                Ok(())
            });
            report.add(Entry {
                check: check.name,
                subject: vec![("nic", setup.name.clone())],
                outcome,
                found,
            });
        }
    }
    if is_wanted(DOCTOR.0) {
        examine(&mut report);
    }
    Ok(report)
}

/// Returns the names of this host's RDMA cards.
fn cards() -> Result<Vec<String>, VerbsError> {
    let devices = daq_rdma::sys::devices()?;
    if devices.is_empty() {
        return Err(none("this host has no RDMA card"));
    }
    Ok(devices)
}

fn none(why: &str) -> VerbsError {
    VerbsError {
        nic: "no network card".to_owned(),
        call: "list RDMA cards".to_owned(),
        errno: 0,
        why: format!(
            "{why}; `--nics emulated` tests the emulated NIC; `daq doctor` reports what is missing"
        ),
    }
}

fn examine(report: &mut Report) {
    let findings = doctor::examine(Path::new("/"), Duration::ZERO);
    let about = findings.into_iter().filter(|finding| {
        finding.group.starts_with("rdma") || ["rdma", "rdmacm", "ibverbs"].contains(&finding.name)
    });
    let findings: Vec<_> = about.collect();
    let bad = findings.iter().find(|finding| finding.is_bad());
    let outcome = run(|| match bad {
        None => Ok(()),
        Some(finding) => Err(Verdict::Failed(format!(
            "{} {}: {}{}",
            finding.group,
            finding.name,
            finding.read,
            finding
                .fix
                .as_ref()
                .map(|fix| format!("; {fix}"))
                .unwrap_or_default()
        ))),
    });
    let found = Some(format!("{} findings below", findings.len()));
    report.findings = Some(findings);
    report.add(Entry {
        check: DOCTOR.0,
        subject: vec![("nic", "this host".to_owned())],
        outcome,
        found,
    });
}
