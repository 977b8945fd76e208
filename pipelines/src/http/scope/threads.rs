//! The threads that read rings for browsers. Only these threads call functions of GPUs.

use daq_core::gpu::driver::Device;
use daq_core::region::Placement;
use daq_core::ring::Ring;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// Priority of the threads; the lowest that Linux has.
const NICE: i32 = 19;

/// The rings that threads read, one entry per thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Threads(Arc<(Mutex<Vec<Reading>>, Condvar)>);

/// The name and the memory of a ring that a thread reads.
#[derive(Clone, Debug)]
struct Reading {
    ring: String,
    placement: Placement,
    calls: TapCalls,
}

/// Whether a thread is in a call that uses a tap. If the ring is on a GPU that hangs, such a call does not return.
#[derive(Clone, Debug, Default)]
pub(crate) struct TapCalls(Arc<AtomicBool>);

impl TapCalls {
    /// Makes a call that uses a tap.
    pub(crate) fn run<T>(&self, call: impl FnOnce() -> T) -> T {
        self.0.store(true, Ordering::Relaxed);
        let result = call();
        self.0.store(false, Ordering::Relaxed);
        result
    }

    /// Returns why a call for a ring in the memory `placement` takes long. If it is a GPU that hangs, returns the number of the
    /// GPU as well.
    pub(crate) fn obstacle(&self, placement: Placement) -> (String, Option<u32>) {
        match placement {
            Placement::Cuda(ordinal) if self.0.load(Ordering::Relaxed) => (
                format!("cuda:{ordinal} does not respond; `nvidia-smi` shows its state"),
                Some(ordinal),
            ),
            _ => ("the machine is overloaded".to_owned(), None),
        }
    }
}

/// [Marks a GPU as hung](Device::mark_hung), so that nothing waits for it.
pub(crate) fn mark_hung(ordinal: u32) {
    // The device is open, because a ring is in its memory.
    if let Ok(device) = Device::open(ordinal) {
        device.mark_hung();
    }
}

impl Threads {
    fn running(&self) -> MutexGuard<'_, Vec<Reading>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `run`, which reads `ring`, on a thread of the lowest priority.
    pub(super) fn spawn(
        &self,
        name: &str,
        ring: &Ring,
        run: impl FnOnce(&TapCalls) + Send + 'static,
    ) -> io::Result<Thread> {
        let calls = TapCalls::default();
        let reading = Reading {
            ring: ring.options().name.clone(),
            placement: ring.region().placement(),
            calls: calls.clone(),
        };
        let ended = Ended(self.clone(), reading.clone());
        self.running().push(reading);
        // If the thread cannot start, `ended` is dropped with the closure.
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                lower_priority();
                let _ended = ended;
                run(&calls);
            })?;
        Ok(thread.thread().clone())
    }

    /// Waits until all threads have ended, at most for `timeout`. Returns the number of threads that still run. The GPUs
    /// that they call are [marked as hung](Device::mark_hung), so that nothing waits for them.
    pub(super) fn join(&self, timeout: Duration) -> usize {
        let wait = self
            .0
            .1
            .wait_timeout_while(self.running(), timeout, |running| !running.is_empty());
        let (running, _) = wait.unwrap_or_else(PoisonError::into_inner);
        for reading in running.iter() {
            let ring = &reading.ring;
            let (reason, hung) = reading.calls.obstacle(reading.placement);
            hung.into_iter().for_each(mark_hung);
            tracing::error!(
                %ring,
                "the thread that reads this ring for browsers has not ended within {timeout:?}: {reason}; the thread and the \
                 memory of the ring remain until the process exits"
            );
        }
        running.len()
    }
}

/// Removes the entry of a thread when the thread ends.
struct Ended(Threads, Reading);

impl Drop for Ended {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(ring = %self.1.ring, "the thread that reads this ring for browsers panicked; this is a defect in daq");
        }
        let mut running = self.0.running();
        let is_own = |reading: &Reading| Arc::ptr_eq(&reading.calls.0, &self.1.calls.0);
        if let Some(at) = running.iter().position(is_own) {
            running.swap_remove(at);
        }
        drop(running);
        self.0.0.1.notify_all();
    }
}

/// Gives the calling thread the lowest priority, so that it does not compete with data threads.
fn lower_priority() {
    // Linux sets the priority of the calling thread only. A failure leaves the thread with the normal priority.
    let _ = rustix::process::setpriority_process(None, NICE);
}
