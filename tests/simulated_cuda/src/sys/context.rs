//! Devices and their primary contexts; other contexts are not supported.

use super::stream::Stream;
use super::{Out, driver, stream};
use crate::code::{Code, INVALID_CONTEXT, INVALID_DEVICE, Result};
use crate::faults::OPTIONS;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

/// A device and the state of its primary context.
#[derive(Debug)]
pub struct Device {
    /// Device ordinal.
    pub ordinal: c_int,
    /// Device memory in use, in bytes.
    pub used: AtomicUsize,
    /// Number of persistent kernels on the device.
    pub persistent_kernels: AtomicUsize,
    /// Copy engines: to, from and within the device. Locked for the modelled duration of a copy.
    pub engines: [Mutex<()>; 3],
    is_retained: AtomicBool,
    broken: AtomicI32,
    default_stream: OnceLock<Arc<Stream>>,
}

static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    (0..OPTIONS.gpus)
        .map(|ordinal| Device {
            ordinal,
            used: AtomicUsize::new(0),
            persistent_kernels: AtomicUsize::new(0),
            engines: [const { Mutex::new(()) }; 3],
            is_retained: AtomicBool::new(false),
            broken: AtomicI32::new(0),
            default_stream: OnceLock::new(),
        })
        .collect()
});

/// Handle of the first device's context; the handles of other devices follow.
const FIRST: usize = 0x00c0_0000;

thread_local! {
    /// Handle of the context that is current in this thread; 0 if none is set.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Returns the device with this ordinal.
pub fn device(ordinal: c_int) -> Result<&'static Device> {
    usize::try_from(ordinal)
        .ok()
        .and_then(|ordinal| DEVICES.get(ordinal))
        .ok_or(INVALID_DEVICE)
}

/// Returns the device whose context an error of a call breaks: the current device, or the first one if none is current.
pub fn concerned() -> Option<&'static Device> {
    current().ok().or_else(|| DEVICES.first())
}

/// Returns the device whose context is current in this thread.
pub fn current() -> Result<&'static Device> {
    of(CURRENT.get())
}

/// Returns the number of retained contexts.
pub fn retained() -> usize {
    DEVICES
        .iter()
        .filter(|device| device.is_retained.load(Ordering::Acquire))
        .count()
}

fn of(handle: usize) -> Result<&'static Device> {
    handle
        .checked_sub(FIRST)
        .filter(|offset| offset % 16 == 0)
        .and_then(|offset| DEVICES.get(offset / 16))
        .ok_or(INVALID_CONTEXT)
}

impl Device {
    fn handle(&self) -> usize {
        FIRST + 16 * self.ordinal.cast_unsigned() as usize
    }

    /// Returns true if the device can access the memory of another device.
    pub fn can_access(&self, peer: &Self) -> bool {
        let pair = (self.ordinal, peer.ordinal);
        let excluded = |one: i32, other: i32| OPTIONS.no_peer.contains(&(one, other));
        pair.0 != pair.1 && !excluded(pair.0, pair.1) && !excluded(pair.1, pair.0)
    }

    /// Returns the error that broke the context, if any.
    pub fn check(&self) -> Result {
        match self.broken.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Breaks the context; the first error is kept.
    pub fn fail(&self, code: Code) {
        let _ = self
            .broken
            .compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns the stream with the handle 0.
    pub fn default_stream(&'static self) -> Arc<Stream> {
        let stream = self
            .default_stream
            .get_or_init(|| Stream::start(self, true));
        Arc::clone(stream)
    }

    /// Returns all streams of the context.
    pub fn streams(&'static self) -> Vec<Arc<Stream>> {
        let mut streams = stream::STREAMS.all();
        streams.retain(|stream| std::ptr::eq(stream.device, self));
        streams.extend(self.default_stream.get().cloned());
        streams
    }

    /// Waits for all streams.
    pub fn synchronise(&'static self) -> Result {
        self.streams()
            .iter()
            .try_for_each(|stream| stream.synchronise())
    }

    /// Waits for the work submitted to all streams so far.
    pub fn drain(&'static self) -> Result {
        self.streams().iter().try_for_each(|stream| stream.drain())
    }
}

driver! {
    initialised() fn cuDevicePrimaryCtxRetain(context: Out<usize>, ordinal: c_int) {
        let device = device(ordinal)?;
        context.set(device.handle())?;
        device.is_retained.store(true, Ordering::Release);
        Ok(())
    }

    initialised() fn cuCtxSetCurrent(context: usize) {
        if context != 0 {
            of(context)?;
        }
        CURRENT.set(context);
        Ok(())
    }

    in_context(device).alone fn cuCtxSynchronize() {
        Device::synchronise(device)
    }
}
