//! Kernels that stay on a device, and what must wait for their end.

use super::device::Device;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A call of the driver that waits for all work on a device.
struct Later {
    device: &'static Device,
    /// What it frees.
    what: &'static str,
    free: Box<dyn FnOnce() + Send>,
}

/// Of all devices: host memory is pinned for each of them.
struct Stays {
    /// For each kernel the ordinal of its device and the part of it that it takes.
    kernels: Vec<(u32, f64)>,
    /// What waits for their end.
    later: Vec<Later>,
    /// Calls under way that kernels to come must wait for.
    waiting: usize,
}

static STAYS: Mutex<Stays> = Mutex::new(Stays {
    kernels: Vec::new(),
    later: Vec::new(),
    waiting: 0,
});
static ENDED: Condvar = Condvar::new();

impl Stays {
    fn share(&self, device: &Device) -> f64 {
        let on = |kernel: &&(u32, f64)| kernel.0 == device.ordinal();
        self.kernels.iter().filter(on).map(|kernel| kernel.1).sum()
    }
}

fn stays() -> MutexGuard<'static, Stays> {
    STAYS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel stays on a device as long as this lives; see [`Device::stay`].
#[derive(Debug)]
#[must_use = "the kernel is taken for ended when this is dropped"]
pub struct Stay {
    device: &'static Device,
    share: f64,
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut stays = stays();
        let this = (self.device.ordinal(), self.share);
        if let Some(at) = stays.kernels.iter().position(|kernel| *kernel == this) {
            stays.kernels.swap_remove(at);
        }
        if stays.kernels.is_empty() {
            let later = std::mem::take(&mut stays.later);
            let _waiting = Waiting::begin(&mut stays);
            drop(stays);
            // Without the lock: what is freed may own what is freed in the same way.
            for Later { device, what, free } in later {
                device.free_now(what, free);
            }
        }
    }
}

/// A call under way that waits for all work on a device: kernels that want to stay wait for its end, however it ends.
pub(super) struct Waiting(());

impl Waiting {
    fn begin(stays: &mut Stays) -> Self {
        stays.waiting += 1;
        Self(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        stays().waiting -= 1;
        ENDED.notify_all();
    }
}

impl Device {
    /// Announces a kernel that stays on the device and takes `share` of it, 0 to 1; `None` where other kernels that stay
    /// leave no room for it: it would never run.
    ///
    /// The driver waits for all kernels before it frees memory or unloads code, and holds up other calls meanwhile. So
    /// as long as the result lives what is dropped of any device is kept, and freed when the last such kernel has ended.
    pub fn stay(&'static self, share: f64) -> Option<Stay> {
        let mut stays = ENDED
            .wait_while(stays(), |stays| stays.waiting > 0)
            .unwrap_or_else(PoisonError::into_inner);
        // Shares are fractions that may add up to a little more than all.
        if !(0.0..=1.0).contains(&share) || stays.share(self) + share > 1.0 + 1e-9 {
            return None;
        }
        stays.kernels.push((self.ordinal(), share));
        Some(Stay {
            device: self,
            share,
        })
    }

    /// The part of the device that kernels which stay take together.
    pub fn share(&self) -> f64 {
        stays().share(self)
    }

    /// Lets the caller wait for all work on the device: until the result is dropped no kernel comes to stay. `None` while
    /// one stays there.
    pub(super) fn waiting(&self) -> Option<Waiting> {
        let mut stays = stays();
        let ordinal = self.ordinal();
        let has_stay = stays.kernels.iter().any(|kernel| kernel.0 == ordinal);
        (!has_stay).then(|| Waiting::begin(&mut stays))
    }

    /// Calls `free`, which may wait for all work on the device: now, or once no kernel stays. `what` names in messages
    /// what is freed; where that must be left to the driver `free` is neither called nor dropped.
    pub(crate) fn free(&'static self, what: &'static str, free: impl FnOnce() + Send + 'static) {
        let mut stays = stays();
        if !stays.kernels.is_empty() {
            let free = Box::new(free);
            stays.later.push(Later {
                device: self,
                what,
                free,
            });
            return;
        }
        let _waiting = Waiting::begin(&mut stays);
        drop(stays);
        self.free_now(what, free);
    }

    fn free_now(&self, what: &str, free: impl FnOnce()) {
        if self.enter_to_free(what) {
            free();
        } else {
            // What it owns must not be dropped either: that would unmap memory that the device may still use.
            std::mem::forget(free);
        }
    }
}
