//! Persistent kernels, and the calls that wait for them.

use super::context::{self, Device};
use super::copy::AddressKind;
use super::space::{self, Pieces};
use super::{Call, copy};
use crate::code::{ILLEGAL_ADDRESS, MISALIGNED_ADDRESS, Result};
use crate::faults::OPTIONS;
use crate::report::{self, COUNTS};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A persistent kernel, from its launch to its end.
#[derive(Debug)]
pub struct Running {
    device: &'static Device,
    is_over: AtomicBool,
}

impl Running {
    /// Records the launch of a persistent kernel.
    pub fn begin(device: &'static Device) -> Arc<Self> {
        device.persistent_kernels.fetch_add(1, Ordering::AcqRel);
        Arc::new(Self {
            device,
            is_over: AtomicBool::new(false),
        })
    }

    /// Records that the kernel has ended or will never start.
    pub fn end(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            self.device
                .persistent_kernels
                .fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

impl Call {
    /// Waits until no persistent kernel runs on the device, as the driver does in this call.
    pub fn alone(self) -> Self {
        if let Ok(device) = context::current() {
            let waits =
                || device.persistent_kernels.load(Ordering::Acquire) > 0 && device.check().is_ok();
            if waits() {
                COUNTS.blocked.fetch_add(1, Ordering::Relaxed);
                eprintln!(
                    "DAQ_SIMULATED_CUDA: {} waits for a persistent kernel",
                    self.0
                );
                let since = Instant::now();
                while waits() {
                    give_up(since, self.0);
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        self
    }
}

/// Aborts the process if a wait that started at `since` exceeds the limit.
pub fn give_up(since: Instant, what: &str) {
    let timeout = OPTIONS.timeout;
    if since.elapsed() > timeout {
        eprintln!(
            "DAQ_SIMULATED_CUDA: {what} has waited {} s for a persistent kernel; a GPU would hang here",
            timeout.as_secs()
        );
        report::write();
        std::process::abort();
    }
}

/// Accesses the word at an address, as a kernel of the device `by` does.
fn word<T>(
    by: &Device,
    address: u64,
    writes: bool,
    with: impl FnOnce(&AtomicU64) -> T,
) -> Result<T> {
    if !address.is_multiple_of(8) {
        return Err(MISALIGNED_ADDRESS);
    }
    let pieces: Pieces = copy::reach(
        &space::lock(),
        by,
        (AddressKind::Device, address),
        8,
        writes,
    )
    .map_err(|_| ILLEGAL_ADDRESS)?;
    // The word is inside a single piece, because pieces start and end at word boundaries.
    let (at, _) = pieces.part(0, 8).next().ok_or(ILLEGAL_ADDRESS)?;
    // SAFETY:
    // - 8 bytes are inside a piece. `at` is a multiple of 8, because the address is one and pieces are aligned like
    //   their addresses.
    // - Pieces of device memory are mapped as long as they are held. Registered host memory is mapped as long as it is
    //   registered, and unregistering waits for persistent kernels.
    // - All other code accesses the word only as a whole, which launchers of such kernels guarantee.
    Ok(with(unsafe { AtomicU64::from_ptr(at as *mut u64) }))
}

/// Loads the word at an address with acquire ordering.
pub fn load(by: &Device, address: u64) -> Result<u64> {
    word(by, address, false, |word| word.load(Ordering::Acquire))
}

/// Stores the word at an address with release ordering.
pub fn store(by: &Device, address: u64, value: u64) -> Result {
    word(by, address, true, |word| {
        word.store(value, Ordering::Release);
    })
}
