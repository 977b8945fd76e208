//! Kernels that stay on a device, and what must wait for their end.

use super::device::Device;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of all devices: host memory is pinned for each of them.
struct Stays {
    /// For each kernel the ordinal of its device and the part of it that it takes.
    kernels: Vec<(u32, f64)>,
    /// Calls of the driver that would wait for all work on a device, with the device and what they free.
    later: Vec<(&'static Device, &'static str, Box<dyn FnOnce() + Send>)>,
}

impl Stays {
    fn share(&self, device: &Device) -> f64 {
        let on = |kernel: &&(u32, f64)| kernel.0 == device.ordinal();
        self.kernels.iter().filter(on).map(|kernel| kernel.1).sum()
    }
}

fn stays() -> MutexGuard<'static, Stays> {
    static STAYS: Mutex<Stays> = Mutex::new(Stays {
        kernels: Vec::new(),
        later: Vec::new(),
    });
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
            for (device, what, free) in stays.later.drain(..) {
                device.free_now(what, free);
            }
        }
    }
}

impl Device {
    /// Announces a kernel that stays on the device and takes `share` of it, 0 to 1; `None` where other kernels that stay
    /// leave no room for it: it would never run.
    ///
    /// The driver waits for all kernels before it frees memory or unloads code, and holds up other calls meanwhile. So
    /// as long as the result lives what is dropped of any device is kept, and freed when the last such kernel has ended.
    pub fn stay(&'static self, share: f64) -> Option<Stay> {
        let mut stays = stays();
        if stays.share(self) + share > 1.0 {
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

    /// Whether a kernel stays on the device.
    pub fn has_stay(&self) -> bool {
        let ordinal = self.ordinal();
        stays().kernels.iter().any(|kernel| kernel.0 == ordinal)
    }

    /// Calls `free`, which may wait for all work on the device: now, or once no kernel stays. `what` names in messages
    /// what is freed; where that must be left to the driver `free` is not called.
    pub(crate) fn free(&'static self, what: &'static str, free: impl FnOnce() + Send + 'static) {
        // Held meanwhile: no kernel begins to stay before it is freed.
        let mut stays = stays();
        if stays.kernels.is_empty() {
            self.free_now(what, free);
        } else {
            stays.later.push((self, what, Box::new(free)));
        }
    }

    fn free_now(&self, what: &str, free: impl FnOnce()) {
        if self.enter_to_free(what) {
            free();
        }
    }
}
