//! Devices and their primary contexts; other contexts are not supported.

use super::stream::Stream;
use super::{Out, call, event, graph, lock, module, require, space, stream};
use crate::code::{
    CONTEXT_IS_DESTROYED, Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, Result,
};
use crate::faults::OPTIONS;
use crate::report::{self, Alive, COUNTS};
use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

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
    retained: Mutex<usize>,
    flags: AtomicU32,
    broken: AtomicI32,
    default_stream: Mutex<Option<Arc<Stream>>>,
}

static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    (0..OPTIONS.gpus)
        .map(|ordinal| Device {
            ordinal,
            used: AtomicUsize::new(0),
            persistent_kernels: AtomicUsize::new(0),
            engines: [const { Mutex::new(()) }; 3],
            retained: Mutex::new(0),
            flags: AtomicU32::new(0),
            broken: AtomicI32::new(0),
            default_stream: Mutex::new(None),
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
    let device = of(CURRENT.get())?;
    if *lock(&device.retained) == 0 {
        return Err(CONTEXT_IS_DESTROYED);
    }
    Ok(device)
}

/// Returns the number of retained contexts.
pub fn retained() -> usize {
    DEVICES
        .iter()
        .filter(|device| *lock(&device.retained) > 0)
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
        lock(&self.default_stream)
            .get_or_insert_with(|| Stream::start_default(self))
            .clone()
    }

    /// Returns the stream with the handle 0, if it was used.
    pub fn default_stream_in_use(&self) -> Option<Arc<Stream>> {
        lock(&self.default_stream).clone()
    }

    /// Returns all streams of the context.
    pub fn streams(&'static self) -> Vec<Arc<Stream>> {
        let mut streams = stream::STREAMS.all();
        streams.retain(|stream| std::ptr::eq(stream.device, self));
        streams.extend(self.default_stream_in_use());
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

    /// Destroys the context and its resources. Memory of the virtual memory API does not belong to a context.
    fn end(&'static self) {
        let streams = stream::STREAMS.take(|stream| std::ptr::eq(stream.device, self));
        let default_stream = lock(&self.default_stream).take();
        streams
            .iter()
            .chain(&default_stream)
            .for_each(|stream| stream.detach());
        let modules = module::MODULES.take(|module| std::ptr::eq(module.device, self));
        for module in &modules {
            module.unload();
        }
        let events = event::EVENTS.take(|event| std::ptr::eq(event.device, self));
        let graphs = graph::GRAPHS
            .take(|graph| std::ptr::eq(graph.device, self))
            .len()
            + graph::EXECUTABLES
                .take(|graph| std::ptr::eq(graph.device, self))
                .len();
        let (memory, memory_bytes, host) = space::lock().forget(self.ordinal);
        COUNTS.leaked(Alive {
            memory,
            memory_bytes,
            host,
            streams: streams.len(),
            events: events.len(),
            modules: modules.len(),
            graphs,
            ..Alive::default()
        });
        self.broken.store(0, Ordering::Release);
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<usize>, ordinal: c_int) -> Code {
    call!(cuDevicePrimaryCtxRetain).initialised(|| {
        let device = device(ordinal)?;
        context.set(device.handle())?;
        *lock(&device.retained) += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) -> Code {
    call!(cuDevicePrimaryCtxRelease_v2).alone().initialised(|| {
        let device = device(ordinal)?;
        let mut retained = lock(&device.retained);
        *retained = retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        let is_last = *retained == 0;
        drop(retained);
        if is_last {
            device.end();
            report::write();
        }
        Ok(())
    })
}

/// Checks and stores the scheduling flags, which have no effect.
fn set_flags(device: &Device, flags: c_uint) -> Result {
    // At most one scheduling flag; the higher bits are independent.
    require(matches!(flags & 7, 0 | 1 | 2 | 4) && flags & !0xff == 0)?;
    device.flags.store(flags, Ordering::Release);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxSetFlags_v2(ordinal: c_int, flags: c_uint) -> Code {
    call!(cuDevicePrimaryCtxSetFlags_v2).initialised(|| set_flags(device(ordinal)?, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(
    ordinal: c_int,
    flags: Out<c_uint>,
    is_active: Out<c_int>,
) -> Code {
    call!(cuDevicePrimaryCtxGetState).initialised(|| {
        let device = device(ordinal)?;
        flags.set(device.flags.load(Ordering::Acquire))?;
        is_active.set((*lock(&device.retained) > 0).into())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(flags: c_uint) -> Code {
    call!(cuCtxSetFlags).in_context(|device| set_flags(device, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> Code {
    call!(cuCtxSetCurrent).initialised(|| {
        if context != 0 {
            of(context)?;
        }
        CURRENT.set(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<usize>) -> Code {
    call!(cuCtxGetCurrent).initialised(|| context.set(CURRENT.get()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(ordinal: Out<c_int>) -> Code {
    call!(cuCtxGetDevice).in_context(|device| ordinal.set(device.ordinal))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Code {
    call!(cuCtxSynchronize)
        .alone()
        .in_context(Device::synchronise)
}

/// Streams have two priorities, 0 and -1.
#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(min: Out<c_int>, greatest: Out<c_int>) -> Code {
    call!(cuCtxGetStreamPriorityRange).in_context(|_| {
        min.offer(0);
        greatest.offer(-1);
        if min.is_null() && greatest.is_null() {
            Err(INVALID_VALUE)
        } else {
            Ok(())
        }
    })
}
