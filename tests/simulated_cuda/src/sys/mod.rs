//! The functions of the driver and the memory behind them: all foreign interfaces are in this folder.
//!
//! The functions' names and parameters are those of NVIDIA's `cuda.h`. Pointers come in as [`Out`] and [`In`], handles
//! as numbers that lead nowhere.

#![allow(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "names and parameters are the driver's"
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

/// Whether `cuInit` has succeeded.
static INITIALISED: AtomicBool = AtomicBool::new(false);

/// Names a function once for counting and for the options.
macro_rules! call {
    ($name:ident) => {
        $crate::sys::Call(stringify!($name))
    };
}
pub(crate) use call;

/// A call of one of the driver's functions.
struct Call(&'static str);

impl Call {
    /// A call that is always allowed.
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

    /// A call that is allowed after `cuInit`.
    fn initialised(&self, body: impl FnOnce() -> Result) -> Code {
        self.anytime(|| {
            if INITIALISED.load(Ordering::Acquire) {
                body()
            } else {
                Err(NOT_INITIALIZED)
            }
        })
    }

    /// A call that needs a context that is current and not broken.
    fn in_context(&self, body: impl FnOnce(&'static Device) -> Result) -> Code {
        self.initialised(|| {
            let device = context::current()?;
            device.check()?;
            body(device)
        })
    }

    /// A call that gives something back. In a broken context it does so, but says that it is broken: that what a
    /// program has given back counts as a leak would hide what it forgot.
    fn giving_back(&self, body: impl FnOnce(&'static Device) -> Result) -> Code {
        self.initialised(|| {
            let device = context::current()?;
            let done = body(device);
            device.check()?;
            done
        })
    }
}

/// Where a function puts what it gives.
///
/// Made only by callers of the driver's functions, which vouch, as the driver's manual asks, that it is null or
/// valid for writes of as many `T` as the function gives, and that no other code uses that memory during the call.
#[repr(transparent)]
struct Out<T>(*mut T);

impl<T> Out<T> {
    fn set(&self, value: T) -> Result {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so valid for a write of one `T`: the invariant of the type. Nothing is read or dropped.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Puts `value` there if a place was given.
    fn offer(&self, value: T) {
        let _ = self.set(value);
    }

    const fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

impl Out<c_char> {
    /// Puts a text there that ends with a zero, cut where it is longer than `room` bytes.
    fn text(&self, text: &str, room: i32) -> Result {
        let room = usize::try_from(room)
            .ok()
            .filter(|room| *room > 0)
            .ok_or(INVALID_VALUE)?;
        if self.is_null() {
            return Err(INVALID_VALUE);
        }
        let kept = text.len().min(room - 1);
        // SAFETY: not null, so valid for writes of `room` bytes: the invariant of the type and what the functions
        // that take a room ask for. `kept + 1 <= room`, and `text` holds `kept` bytes.
        unsafe {
            self.0
                .cast::<u8>()
                .copy_from_nonoverlapping(text.as_ptr(), kept);
            self.0.add(kept).write(0);
        }
        Ok(())
    }
}

/// What a function is given to read, one `T` or several.
///
/// Made only by callers of the driver's functions, which vouch, as the driver's manual asks, that it is null or
/// valid for reads of as many `T` as the function takes, and that no other code writes that memory during the call.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The `n`-th of those that the function takes.
    fn at(&self, n: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so valid for reads of all `T` that the function takes, of which this is one: the
        // invariant of the type. `T` is plain data in the driver's layout.
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
    /// A text that ends with a zero.
    fn text(&self) -> Result<String> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so a text with a zero at its end: the invariant of the type. It is copied before the
        // call returns.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| INVALID_VALUE)
    }
}

/// Locks; a thread that panicked has ended the process already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `INVALID_VALUE` unless `condition`.
const fn require(condition: bool) -> Result {
    if condition {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

/// What lives now.
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
    // A process that only opened the library has nothing to report.
    if COUNTS.any() {
        report::write();
    }
}

/// Runs at the end of the process.
#[used]
// SAFETY: the section holds pointers to functions without parameters that are called once when the process ends;
// this is one, and it does not depend on anything that was ended before: statics of this library need no ending.
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
