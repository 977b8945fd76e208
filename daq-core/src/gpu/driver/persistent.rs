//! Persistent kernels on a device, and calls that must wait for their end.

use super::device::Device;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A deferred call of the driver that waits for all work on a device.
struct DeferredFree {
    device: &'static Device,
    /// What it frees.
    what: &'static str,
    free: Box<dyn FnOnce() + Send>,
}

/// For all devices: host memory is pinned for each of them.
struct PersistentKernels {
    /// For each kernel the ordinal of its device and the part of the device that it occupies.
    kernels: Vec<(u32, f64)>,
    /// Calls that wait for the end of all kernels.
    deferred: Vec<DeferredFree>,
    /// Calls in progress that new persistent kernels must wait for.
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

/// Registers a persistent kernel while it exists; see [`Device::add_persistent_kernel`].
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
            // Without the lock: a freed object may own others that are freed in the same way.
            for DeferredFree { device, what, free } in deferred {
                device.free_now(what, free);
            }
        }
    }
}

/// A call in progress that waits for all work on a device: new persistent kernels wait until it ends.
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
    /// Registers a persistent kernel that occupies `share` of the device, 0 to 1; `None` if other persistent kernels
    /// leave too little room, because it would never run.
    ///
    /// Before it frees memory or unloads code, the driver waits for all kernels, and it blocks other calls meanwhile.
    /// So while the result exists, dropped objects of all devices are kept, and freed when the last persistent kernel
    /// has ended.
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

    /// The part of the device that persistent kernels occupy in total.
    pub fn share(&self) -> f64 {
        lock().share(self)
    }

    /// Allows the caller to wait for all work on the device: no persistent kernel starts until the result is dropped.
    /// `None` while one runs.
    pub(super) fn waiting(&self) -> Option<Waiting> {
        let mut persistent = lock();
        let ordinal = self.ordinal();
        let has_kernel = persistent.kernels.iter().any(|kernel| kernel.0 == ordinal);
        (!has_kernel).then(|| Waiting::begin(&mut persistent))
    }

    /// Calls `free`, which may wait for all work on the device: now, or once no persistent kernel runs. `what` names
    /// the object in messages. If the object must be left to the driver, `free` is neither called nor dropped.
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
            // Its content must not be dropped either: that would unmap memory that the device may still use.
            std::mem::forget(free);
        }
    }
}
