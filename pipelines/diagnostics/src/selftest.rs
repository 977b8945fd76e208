//! `daq selftest gpu` verifies that the CPU and a GPU can exchange data, with every backend of this machine. The module
//! [`rdma`] contains `daq selftest rdma`.

mod bytes;
mod kernels;
mod lives;
pub mod rdma;
mod report;
mod target;

pub use report::Report;

use crate::fixture::FixtureError;
use daq_core::gpu::Backend;
use daq_core::gpu::bar_mapping::{BarMappingError, Refusal};
use daq_core::gpu::driver::{CudaError, Device};
use daq_core::region::RegionError;
use daq_pipelines::console::Progress;
use report::{Columns, Outcome};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use target::{Method, Target};

/// Options of `daq selftest gpu`.
#[derive(Clone, Debug)]
pub struct Options {
    /// CUDA device number of the GPU.
    pub device: u32,
    /// The backends to test.
    pub backends: Vec<Backend>,
    /// Names of the checks to run. An empty list runs all checks.
    pub checks: Vec<String>,
    /// Maximum time for a kernel to stop.
    pub limit: Duration,
}

/// The reason why a check did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// The expected and the actual result.
    Failed(String),
    /// The reason why the check does not apply.
    Skipped(String),
}

macro_rules! failures {
    ($($error:ty),*) => {
        $(impl From<$error> for Verdict {
            fn from(error: $error) -> Self {
                Self::Failed(format!("expected no error, got: {error}"))
            }
        })*
    };
}

failures!(
    FixtureError,
    CudaError,
    BarMappingError,
    Refusal,
    RegionError,
    std::io::Error
);

/// Returns an error unless `holds` is true. `what` returns the expected and the actual result.
fn expect(holds: bool, what: impl FnOnce() -> String) -> Result<(), Verdict> {
    if holds {
        return Ok(());
    }
    Err(Verdict::Failed(what()))
}

/// A check of one mapping method.
struct Check {
    name: &'static str,
    /// The property that the check verifies.
    what: &'static str,
    run: fn(&Target) -> Result<(), Verdict>,
}

/// All checks in the order in which they run.
const CHECKS: [Check; 12] = [
    Check {
        name: "data",
        what: "CUDA reads back what the CPU stored at odd offsets and sizes, and the CPU reads what CUDA wrote",
        run: bytes::data,
    },
    Check {
        name: "edges",
        what: "bytes before and after a store are unchanged",
        run: bytes::edges,
    },
    Check {
        name: "small-buffers",
        what: "many buffers of 1 B to 4 KiB can be mapped and used at the same time",
        run: bytes::small_buffers,
    },
    Check {
        name: "two-mappings",
        what: "two buffers do not overlap, and one stays valid after the other is freed",
        run: lives::two_mappings,
    },
    Check {
        name: "double-map",
        what: "a second mapping of the same memory shows the same bytes or fails; each mapping stays valid after the other is unmapped",
        run: lives::double_map,
    },
    Check {
        name: "use-after-free",
        what: "accesses beyond the end of a mapping return an error; memory stays mapped until its last reference is dropped",
        run: lives::use_after_free,
    },
    Check {
        name: "concurrent-pinning",
        what: "several threads can map, use and unmap GPU memory concurrently",
        run: lives::concurrent_pinning,
    },
    Check {
        name: "fork",
        what: "after fork, every use of the mapping in the child returns an error, and stores by the parent still reach GPU memory",
        run: lives::fork,
    },
    Check {
        name: "kernel-sees",
        what: "a kernel reads the data that the CPU stored before the CPU rang the doorbell",
        run: kernels::kernel_sees,
    },
    Check {
        name: "word-order",
        what: "whenever a kernel sees the doorbell, the kernel also sees the data that was stored before the doorbell",
        run: kernels::word_order,
    },
    Check {
        name: "staging",
        what: "frames through a mapped ring with credits arrive complete and in order",
        run: kernels::staging,
    },
    Check {
        name: "persistent-stop",
        what: "a persistent kernel stops within the time limit",
        run: kernels::persistent_stop,
    },
];

/// The check that makes the device unusable for this process. It runs after all other checks.
const LOST: (&str, &str) = (
    "lost",
    "after the device is marked as lost, every use of a mapping returns an error",
);

/// Returns the name and the meaning of each check.
pub fn list() -> Vec<(&'static str, &'static str)> {
    let checks = CHECKS.iter().map(|check| (check.name, check.what));
    checks.chain([LOST]).collect()
}

/// Runs the requested checks with every mapping method that works. If the check `lost` is requested, this process
/// cannot use the device afterwards. `progress` shows the current check.
///
/// # Errors
/// If the GPU does not exist.
pub fn gpu(options: &Options, progress: &Progress) -> Result<Report, CudaError> {
    let device = Device::open(options.device)?;
    let about = format!("{} (cuda:{})", device.name(), device.ordinal());
    let mut report = Report::new(about.clone(), Columns::CheckFirst, [("device", about)]);
    let is_wanted =
        |name: &str| options.checks.is_empty() || options.checks.iter().any(|check| check == name);
    let mut targets = Vec::new();
    for &backend in &options.backends {
        for &memory in target::Memory::of(backend) {
            let method = Method {
                device,
                backend,
                memory,
            };
            match Target::new(method, options.limit) {
                Ok(target) => targets.push(target),
                Err(why) => report.add(method.entry("map", Outcome::Skipped(why))),
            }
        }
    }
    // The reason why the remaining checks are skipped.
    let mut given_up: Option<String> = None;
    let checks: Vec<_> = CHECKS
        .iter()
        .filter(|check| is_wanted(check.name))
        .collect();
    progress.rounds(targets.len(), checks.len());
    for target in &targets {
        for check in &checks {
            progress.step(Some(format!(
                "{} with {}",
                check.name, target.method.backend
            )));
            let outcome = match &given_up {
                Some(why) => Outcome::Skipped(String::clone(why)),
                None => run(|| (check.run)(target)),
            };
            report.add(target.method.entry(check.name, outcome));
            // If the device hangs, all later checks would fail for this reason.
            if given_up.is_none() && device.is_hung() {
                let Method {
                    backend, memory, ..
                } = target.method;
                given_up = Some(format!(
                    "the device was lost during check {} with {backend}, {memory}; see dmesg | grep -i xid, and run this check alone with --check and --backend",
                    check.name
                ));
            }
        }
    }
    if is_wanted(LOST.0) {
        device.mark_hung();
        for target in &targets {
            report.add(target.method.entry(LOST.0, run(|| lives::lost(target))));
        }
    }
    Ok(report)
}

fn run(check: impl FnOnce() -> Result<(), Verdict>) -> Outcome {
    // A panic in one check must not end the other checks.
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(Ok(())) => Outcome::Ok,
        Ok(Err(Verdict::Failed(why))) => Outcome::Failed(why),
        Ok(Err(Verdict::Skipped(why))) => Outcome::Skipped(why),
        Err(_) => Outcome::Failed("the check panicked; this is a defect in daq".to_owned()),
    }
}
