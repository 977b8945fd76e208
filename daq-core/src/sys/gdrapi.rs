//! GDRCopy's library (`libgdrapi.so.2`), loaded at run time.
//!
//! Functions and layouts follow the project's public header, `gdrapi.h`, versions 2.0 and newer.

use libloading::Library;
use rustix::io::Errno;
use std::ffi::{c_int, c_ulong, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The library's file name.
pub(crate) const LIBRARY: &str = "libgdrapi.so.2";
/// Size of a GPU page in bytes (`GPU_PAGE_SIZE`). Mapped addresses and sizes are multiples of it.
pub(crate) const PAGE: usize = 64 << 10;

/// A pinned buffer (`gdr_mh_t`), which is passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pin(c_ulong);

/// Properties of a pinned buffer (`gdr_info_v2_t`), with room for fields that later versions append.
#[repr(C)]
struct Info {
    address: u64,
    bytes: u64,
    page: u32,
    cycles: u64,
    cycles_per_ms: u32,
    flags: u32,
    kind: u32,
    more: [u64; 8],
}

type Handle = *mut c_void;

struct Functions {
    pin: unsafe extern "C" fn(Handle, c_ulong, usize, u64, u32, *mut Pin) -> c_int,
    unpin: unsafe extern "C" fn(Handle, Pin) -> c_int,
    map: unsafe extern "C" fn(Handle, Pin, *mut *mut c_void, usize) -> c_int,
    unmap: unsafe extern "C" fn(Handle, Pin, *mut c_void, usize) -> c_int,
    info: unsafe extern "C" fn(Handle, Pin, *mut Info) -> c_int,
}

/// The library and its connection to the driver, kept until the process ends.
struct Gdr {
    handle: Handle,
    functions: Functions,
}

// SAFETY: the library keeps lists behind the handle. All calls hold the lock of `lock`, so only one thread accesses
// them at a time.
unsafe impl Send for Gdr {}

/// The error for a library that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoGdr {
    /// The library is missing.
    #[error("{LIBRARY} cannot be opened ({0})")]
    NoLibrary(String),
    /// The library lacks a function.
    #[error("{LIBRARY} lacks {0}")]
    Incomplete(&'static str),
    /// The library finds no driver.
    #[error("gdr_open of {LIBRARY} {0}.{1} failed ({2})")]
    NoDriver(i32, i32, Errno),
}

static OPEN: Mutex<Option<Gdr>> = Mutex::new(None);

/// Opens the library on first use; no other thread calls it while the guard exists.
fn lock() -> Result<Locked, NoGdr> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if open.is_none() {
        *open = Some(Gdr::open()?);
    }
    Ok(Locked(open))
}

struct Locked(MutexGuard<'static, Option<Gdr>>);

impl Locked {
    fn get(&self) -> &Gdr {
        self.0
            .as_ref()
            .expect("`lock` returns only after the library was loaded")
    }
}

/// Opens the library, unless it is open.
pub(crate) fn open() -> Result<(), NoGdr> {
    lock().map(drop)
}

impl Gdr {
    fn open() -> Result<Self, NoGdr> {
        // SAFETY: the library's initialisers have no requirements.
        let library = unsafe { Library::new(LIBRARY) }
            .map_err(|error| NoGdr::NoLibrary(error.to_string()))?;
        // The library's functions are used until the process ends, so the library is never closed.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: the header declares the functions with these types.
        let (open, version, functions) = unsafe {
            (
                find::<unsafe extern "C" fn() -> Handle>(library, "gdr_open")?,
                find::<unsafe extern "C" fn(*mut c_int, *mut c_int)>(
                    library,
                    "gdr_runtime_get_version",
                )?,
                Functions {
                    pin: find(library, "gdr_pin_buffer")?,
                    unpin: find(library, "gdr_unpin_buffer")?,
                    map: find(library, "gdr_map")?,
                    unmap: find(library, "gdr_unmap")?,
                    info: find(library, "gdr_get_info_v2")?,
                },
            )
        };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the result pointers refer to two writable integers.
        unsafe { version(&raw mut major, &raw mut minor) };
        // SAFETY: the call has no requirements.
        let handle = unsafe { open() };
        if handle.is_null() {
            let errno = Errno::from_io_error(&std::io::Error::last_os_error());
            return Err(NoGdr::NoDriver(major, minor, errno.unwrap_or(Errno::NODEV)));
        }
        Ok(Self { handle, functions })
    }
}

/// # Safety
/// `F` must be the type of the C function called `name`.
unsafe fn find<F: Copy>(library: &'static Library, name: &'static str) -> Result<F, NoGdr> {
    // SAFETY: the caller guarantees the correct type, and the library is never closed.
    unsafe { library.get::<F>(name.as_bytes()) }
        .map(|symbol| *symbol)
        .map_err(|_| NoGdr::Incomplete(name))
}

/// A failed call and its result. Most results are Linux error numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GdrError {
    /// The library cannot be used.
    #[error(transparent)]
    Missing(#[from] NoGdr),
    /// A call failed.
    #[error("{0} returned {1}")]
    Call(&'static str, Answer),
    /// The mapping starts at another address.
    #[error("the mapping starts at GPU address {found:#x} instead of {wanted:#x}")]
    Elsewhere {
        /// The requested address.
        wanted: u64,
        /// The address of the mapping.
        found: u64,
    },
}

/// The result of a call, displayed with its error text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer(pub i32);

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The library returns some error numbers as negative numbers.
        let error = std::io::Error::from_raw_os_error(self.0.saturating_abs());
        write!(f, "{} ({error})", self.0)
    }
}

const fn check(name: &'static str, answer: c_int) -> Result<(), GdrError> {
    match answer {
        0 => Ok(()),
        answer => Err(GdrError::Call(name, Answer(answer))),
    }
}

/// Pins memory of a GPU.
///
/// # Safety
/// `bytes` bytes at `address` must be CUDA memory that stays allocated until [`unpin`]. Address and size must
/// be multiples of [`PAGE`].
pub(crate) unsafe fn pin(address: u64, bytes: usize) -> Result<Pin, GdrError> {
    let gdr = lock()?;
    let gdr = gdr.get();
    let mut pin = Pin(0);
    // SAFETY: the handle is open, the caller guarantees valid memory, and the result pointer refers to one writable
    // handle. The two zeros are tokens from before CUDA 6, which the library ignores.
    let answer = unsafe { (gdr.functions.pin)(gdr.handle, address, bytes, 0, 0, &raw mut pin) };
    check("gdr_pin_buffer", answer)?;
    Ok(pin)
}

/// Unpins memory that [`pin`] pinned.
///
/// # Safety
/// The pin must come from [`pin`], must not be mapped, and must not be used again.
pub(crate) unsafe fn unpin(pin: Pin) -> Result<(), GdrError> {
    let gdr = lock()?;
    let gdr = gdr.get();
    // SAFETY: the caller guarantees all requirements of this call.
    check("gdr_unpin_buffer", unsafe {
        (gdr.functions.unpin)(gdr.handle, pin)
    })
}

/// Maps a pinned buffer.
///
/// # Safety
/// The pin must come from [`pin`] of `bytes` bytes at `address`, and must not be mapped already.
pub(crate) unsafe fn map(pin: Pin, address: u64, bytes: usize) -> Result<NonNull<u8>, GdrError> {
    let gdr = lock()?;
    let gdr = gdr.get();
    let mut mapped = ptr::null_mut();
    // SAFETY: the caller guarantees a valid pin; the result pointer refers to one writable pointer.
    check("gdr_map", unsafe {
        (gdr.functions.map)(gdr.handle, pin, &raw mut mapped, bytes)
    })?;
    let info = info(gdr, pin);
    let found = info.as_ref().map_or(address, |info| info.address);
    match (NonNull::new(mapped.cast()), found == address) {
        (Some(mapped), true) if info.is_ok() => Ok(mapped),
        _ => {
            // SAFETY: the memory was mapped just above, and nothing uses the mapping.
            let _ = unsafe { (gdr.functions.unmap)(gdr.handle, pin, mapped, bytes) };
            info?;
            Err(GdrError::Elsewhere {
                wanted: address,
                found,
            })
        }
    }
}

fn info(gdr: &Gdr, pin: Pin) -> Result<Info, GdrError> {
    let mut info = Info {
        address: 0,
        bytes: 0,
        page: 0,
        cycles: 0,
        cycles_per_ms: 0,
        flags: 0,
        kind: 0,
        more: [0; 8],
    };
    // SAFETY: the pin belongs to this handle; the buffer is larger than what the library writes.
    check("gdr_get_info_v2", unsafe {
        (gdr.functions.info)(gdr.handle, pin, &raw mut info)
    })?;
    Ok(info)
}

/// Unmaps memory that [`map`] mapped.
///
/// # Safety
/// Pin, address and size must be those of one call of [`map`], and the mapping must not be used any more.
pub(crate) unsafe fn unmap(pin: Pin, address: NonNull<u8>, bytes: usize) -> Result<(), GdrError> {
    let gdr = lock()?;
    let gdr = gdr.get();
    // SAFETY: the caller guarantees all requirements of this call.
    check("gdr_unmap", unsafe {
        (gdr.functions.unmap)(gdr.handle, pin, address.as_ptr().cast(), bytes)
    })
}
