//! Registration of persistent kernels, and driver calls that must wait for the end of these kernels.

use super::device::Device;
use crate::leak::leak;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A deferred call of the driver that waits for all work on a device.
struct DeferredFree {
    device: &'static Device,
    /// Name of the freed object, for messages.
    what: &'static str,
    free: Box<dyn FnOnce() + Send>,
}

/// The persistent kernels of all devices. They are registered together because host memory is pinned for all devices.
struct PersistentKernels {
    /// For each kernel, the ordinal of its device and the fraction of the device that it occupies.
    kernels: Vec<(u32, f64)>,
    /// Calls that wait for the end of all kernels.
    deferred: Vec<DeferredFree>,
    /// Number of calls in progress that new persistent kernels must wait for.
    waiting: usize,
}

static KERNELS: Mutex<PersistentKernels> = Mutex::new(PersistentKernels {
    kernels: Vec::new(),
    deferred: Vec::new(),
    waiting: 0,
});
static ENDED: Condvar = Condvar::new();

impl PersistentKernels {
    fn share(&self, device: &Device) -> f64 {
        let on = |kernel: &&(u32, f64)| kernel.0 == device.ordinal();
        self.kernels.iter().filter(on).map(|kernel| kernel.1).sum()
    }
}

fn lock() -> MutexGuard<'static, PersistentKernels> {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a persistent kernel registered until the guard is dropped; see [`Device::add_persistent_kernel`].
#[derive(Debug)]
#[must_use = "dropping this ends the registration of the kernel"]
pub struct PersistentKernelGuard {
    device: &'static Device,
    share: f64,
}

impl Drop for PersistentKernelGuard {
    fn drop(&mut self) {
        let mut persistent = lock();
        let this = (self.device.ordinal(), self.share);
        if let Some(at) = persistent.kernels.iter().position(|kernel| *kernel == this) {
            persistent.kernels.swap_remove(at);
        }
        if persistent.kernels.is_empty() {
            let deferred = std::mem::take(&mut persistent.deferred);
            let _waiting = Waiting::begin(&mut persistent);
            drop(persistent);
            // The lock is released first, because a freed object may own other objects that are freed in the same way.
            for DeferredFree { device, what, free } in deferred {
                device.free_now(what, free);
            }
        }
    }
}

/// A call in progress that waits for all work on a device. New persistent kernels wait until the call ends.
pub(super) struct Waiting(());

impl Waiting {
    fn begin(persistent: &mut PersistentKernels) -> Self {
        persistent.waiting += 1;
        Self(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock().waiting -= 1;
        ENDED.notify_all();
    }
}

impl Device {
    /// Registers a persistent kernel that occupies the fraction `share` of the device, 0 to 1. Returns `None` if other
    /// persistent kernels leave too little room, because the kernel would then never run.
    ///
    /// Before the driver frees memory or unloads code, it waits for the end of all kernels, and blocks other calls
    /// meanwhile. Therefore, while the returned guard exists, dropped objects of all devices are kept. They are freed
    /// when the last persistent kernel has ended.
    pub fn add_persistent_kernel(&'static self, share: f64) -> Option<PersistentKernelGuard> {
        let mut persistent = ENDED
            .wait_while(lock(), |persistent| persistent.waiting > 0)
            .unwrap_or_else(PoisonError::into_inner);
        // Shares are fractions whose sum may slightly exceed 1.
        if !(0.0..=1.0).contains(&share) || persistent.share(self) + share > 1.0 + 1e-9 {
            return None;
        }
        persistent.kernels.push((self.ordinal(), share));
        Some(PersistentKernelGuard {
            device: self,
            share,
        })
    }

    /// Returns the fraction of the device that all persistent kernels occupy in total.
    pub fn share(&self) -> f64 {
        lock().share(self)
    }

    /// Allows the caller to wait for all work on the device. No persistent kernel starts until the returned value is
    /// dropped. Returns `None` while a persistent kernel runs.
    pub(super) fn waiting(&self) -> Option<Waiting> {
        let mut persistent = lock();
        let ordinal = self.ordinal();
        let has_kernel = persistent.kernels.iter().any(|kernel| kernel.0 == ordinal);
        (!has_kernel).then(|| Waiting::begin(&mut persistent))
    }

    /// Calls `free`, which may wait for all work on the device. The call is deferred while a persistent kernel runs.
    /// `what` is the name of the object in messages. If the device hangs, `free` is neither called nor dropped, because
    /// only the driver may free the object.
    pub(crate) fn free(&'static self, what: &'static str, free: impl FnOnce() + Send + 'static) {
        let mut persistent = lock();
        if !persistent.kernels.is_empty() {
            let free = Box::new(free);
            persistent.deferred.push(DeferredFree {
                device: self,
                what,
                free,
            });
            return;
        }
        let _waiting = Waiting::begin(&mut persistent);
        drop(persistent);
        self.free_now(what, free);
    }

    fn free_now(&self, what: &str, free: impl FnOnce()) {
        if self.enter_to_free(what) {
            free();
        } else {
            // The values inside `free` must not be dropped either, because that would unmap memory that the device may
            // still use.
            leak(free);
        }
    }
}
