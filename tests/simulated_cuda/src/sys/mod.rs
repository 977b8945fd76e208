//! The functions of the driver and the memory behind them. All foreign interfaces are in this folder.
//!
//! The functions have the names and parameters of NVIDIA's `cuda.h`. Pointer parameters have the types [`Out`] and
//! [`In`]. Handles are numbers that must not be dereferenced.

#![allow(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "names and parameters follow the driver"
)]

mod bar;
mod batch;
mod compiler;
mod context;
mod copy;
mod device;
mod error;
mod event;
mod fill;
mod graph;
mod host;
mod launch;
mod memory;
mod module;
mod persistent;
mod physical;
mod space;
mod stream;
mod table;
mod virtual_memory;

use crate::code::{self, Code, INVALID_VALUE, NOT_INITIALIZED, Result, SUCCESS};
use crate::report::{Alive, COUNTS};
use crate::{faults, report};
use context::Device;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// True if `cuInit` has succeeded.
static INITIALISED: AtomicBool = AtomicBool::new(false);

/// Defines functions of the driver: the condition under which a call is allowed, with a name for the current device if
/// the body needs it; `alone` if the call waits for persistent kernels; the signature; and the body, whose error is the
/// function's return code.
macro_rules! driver {
    ($(
        $(#[$doc:meta])*
        $allowed:ident($($device:tt)?)$(.$alone:ident)? fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block
    )*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $kind),*) -> $crate::code::Code {
            $crate::sys::Call(stringify!($name))$(.$alone())?.$allowed(|$($device)?| $body)
        }
    )*};
}
pub(crate) use driver;

/// A call of a driver function.
struct Call(&'static str);

impl Call {
    /// Runs a call that is always allowed.
    fn anytime(&self, body: impl FnOnce() -> Result) -> Code {
        let nth = COUNTS.called(self.0);
        let done = match faults::of_call(self.0, nth) {
            Some(code) => {
                if code::is_sticky(code)
                    && let Some(device) = context::concerned()
                {
                    device.fail(code);
                }
                Err(code)
            }
            None => body(),
        };
        let code = done.err().unwrap_or(SUCCESS);
        COUNTS.returned(code);
        code
    }

    /// Runs a call that is allowed only after `cuInit`.
    fn initialised(&self, body: impl FnOnce() -> Result) -> Code {
        self.anytime(|| {
            if INITIALISED.load(Ordering::Acquire) {
                body()
            } else {
                Err(NOT_INITIALIZED)
            }
        })
    }

    /// Runs a call that needs a current context that is not broken.
    fn in_context(&self, body: impl FnOnce(&'static Device) -> Result) -> Code {
        self.initialised(|| {
            let device = context::current()?;
            device.check()?;
            body(device)
        })
    }

    /// Runs a call that releases a resource. In a broken context the call releases the resource and returns the error.
    /// The resource then does not count as a leak, which would hide real leaks.
    fn giving_back(&self, body: impl FnOnce(&'static Device) -> Result) -> Code {
        self.initialised(|| {
            let device = context::current()?;
            let done = body(device);
            device.check()?;
            done
        })
    }
}

/// Memory to which a function writes its result.
///
/// Created only by callers of the driver's functions. According to the driver's manual they guarantee that the pointer
/// is null or valid for all writes of `T` that the function makes, and that no other code uses the memory during the
/// call.
#[repr(transparent)]
struct Out<T>(*mut T);

impl<T> Out<T> {
    fn set(&self, value: T) -> Result {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the pointer is not null, so by the invariant of the type it is valid for a write of one `T`. The old
        // value is neither read nor dropped.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes `value` unless the pointer is null.
    fn offer(&self, value: T) {
        let _ = self.set(value);
    }

    const fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

impl Out<c_char> {
    /// Writes a text with a terminating NUL, truncated to `room` bytes.
    fn text(&self, text: &str, room: i32) -> Result {
        let room = usize::try_from(room)
            .ok()
            .filter(|room| *room > 0)
            .ok_or(INVALID_VALUE)?;
        if self.is_null() {
            return Err(INVALID_VALUE);
        }
        let kept = text.len().min(room - 1);
        // SAFETY:
        // - The pointer is not null, so by the invariant of the type it is valid for writes of `room` bytes.
        // - `kept + 1 <= room`, and `text` has at least `kept` bytes.
        unsafe {
            self.0
                .cast::<u8>()
                .copy_from_nonoverlapping(text.as_ptr(), kept);
            self.0.add(kept).write(0);
        }
        Ok(())
    }
}

/// Memory from which a function reads one or several `T`.
///
/// Created only by callers of the driver's functions. According to the driver's manual they guarantee that the pointer
/// is null or valid for all reads of `T` that the function makes, and that no other code writes the memory during the
/// call.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads element `n`.
    fn at(&self, n: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the pointer is not null, so by the invariant of the type it is valid for reads of all elements that
        // the function uses, which include this one. `T` is plain data in the driver's layout.
        Ok(unsafe { self.0.add(n).read_unaligned() })
    }

    fn get(self) -> Result<T> {
        self.at(0)
    }

    const fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

impl In<c_char> {
    /// Reads a NUL-terminated text.
    fn text(&self) -> Result<String> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the pointer is not null, so by the invariant of the type it is a NUL-terminated text. The text is
        // copied before the call returns.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| INVALID_VALUE)
    }
}

/// Locks a mutex. Poisoning is ignored, because a panic ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns `INVALID_VALUE` unless `condition` is true.
const fn require(condition: bool) -> Result {
    if condition {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

/// Returns the resources that currently exist.
pub fn alive() -> Alive {
    let space = space::lock();
    Alive {
        memory: physical::alive().0,
        memory_bytes: physical::alive().1,
        reservations: space.reservations(),
        host: space.registrations(),
        streams: stream::STREAMS.len(),
        events: event::EVENTS.len(),
        modules: module::MODULES.len(),
        graphs: graph::GRAPHS.len() + graph::EXECUTABLES.len(),
        contexts: context::retained(),
    }
}

extern "C" fn end() {
    // A process that only loaded the library has nothing to report.
    if COUNTS.any() {
        report::write();
    }
}

/// Pointer to a function that runs at the end of the process.
#[used]
// SAFETY: the section contains pointers to functions without parameters that are called once when the process ends.
// `end` is such a function. It uses only statics of this library, which are never destroyed.
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
