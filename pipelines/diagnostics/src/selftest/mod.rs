//! `daq selftest gpu`: verifies that data that the CPU and a GPU store for each other arrives, with every backend of
//! this machine; and `daq selftest rdma`.

mod bytes;
mod kernels;
mod lives;
pub mod rdma;
mod report;
mod target;

pub use report::{Outcome, Report};

use crate::bench::BenchError;
use daq_core::gpu::Backend;
use daq_core::gpu::bar_mapping::{BarMappingError, Refusal};
use daq_core::gpu::driver::{CudaError, Device};
use daq_core::region::RegionError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use target::{Method, Target};

/// Options of `daq selftest gpu`.
#[derive(Clone, Debug)]
pub struct Options {
    /// CUDA's index of the GPU.
    pub device: u32,
    /// The backends to test.
    pub backends: Vec<Backend>,
    /// Names of the checks to run; all if empty.
    pub checks: Vec<String>,
    /// Timeout for a kernel to stop.
    pub limit: Duration,
}

/// Why a check did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Expected and actual result.
    Failed(String),
    /// Why the check does not apply.
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
    BenchError,
    CudaError,
    BarMappingError,
    Refusal,
    RegionError,
    std::io::Error
);

/// Fails unless `holds`; `what` returns the expected and actual result.
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
        what: "many buffers of 1 B to 4 KiB work at the same time",
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
        what: "accesses beyond the end fail; memory stays mapped until its last reference is dropped",
        run: lives::use_after_free,
    },
    Check {
        name: "concurrent-pinning",
        what: "threads map, use and unmap concurrently",
        run: lives::concurrent_pinning,
    },
    Check {
        name: "fork",
        what: "a forked child gets an error, and the parent's stores still arrive",
        run: lives::fork,
    },
    Check {
        name: "kernel-sees",
        what: "a kernel reads data that was stored before its doorbell",
        run: kernels::kernel_sees,
    },
    Check {
        name: "word-order",
        what: "data is visible whenever the doorbell is visible",
        run: kernels::word_order,
    },
    Check {
        name: "staging",
        what: "frames through a mapped ring with credits arrive complete and in order",
        run: kernels::staging,
    },
    Check {
        name: "persistent-stop",
        what: "a persistent kernel stops within the limit",
        run: kernels::persistent_stop,
    },
];

/// The check that ends the use of the device and therefore runs last.
const LOST: (&str, &str) = (
    "lost",
    "after the device is marked as lost, every use returns an error",
);

/// Name and meaning of each check.
pub fn list() -> Vec<(&'static str, &'static str)> {
    let checks = CHECKS.iter().map(|check| (check.name, check.what));
    checks.chain([LOST]).collect()
}

/// Runs the requested checks with every mapping method that works. If the check `lost` is among them, this process
/// cannot use the device afterwards.
///
/// # Errors
/// If the GPU does not exist.
pub fn gpu(options: &Options) -> Result<Report, CudaError> {
    let device = Device::open(options.device)?;
    let mut report = Report::new(device);
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
    // Why the remaining checks do not apply.
    let mut given_up: Option<String> = None;
    for target in &targets {
        for check in CHECKS.iter().filter(|check| is_wanted(check.name)) {
            let outcome = match &given_up {
                Some(why) => Outcome::Skipped(String::clone(why)),
                None => run(|| (check.run)(target)),
            };
            report.add(target.method.entry(check.name, outcome));
            // All later checks would fail for this reason.
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
    // A panic in one check does not affect the others.
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(Ok(())) => Outcome::Ok,
        Ok(Err(Verdict::Failed(why))) => Outcome::Failed(why),
        Ok(Err(Verdict::Skipped(why))) => Outcome::Skipped(why),
        Err(_) => Outcome::Failed("the check panicked; this is a defect in daq".to_owned()),
    }
}
