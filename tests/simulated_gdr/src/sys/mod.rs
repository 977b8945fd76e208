//! The functions of the library and the memory behind them. All foreign interfaces are in this folder.
//!
//! The functions have the names and parameters of GDRCopy's `gdrapi.h`.

use crate::options::Options;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Page size of the GPU in bytes.
const PAGE: u64 = 64 << 10;
/// The handle that `gdr_open` returns. It must not be dereferenced.
const OPEN: usize = 0x6d72;

/// `gdr_mh_t`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Handle(c_ulong);

/// `gdr_info_v2_t`. Its two flags are the lowest bits of one word.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Info {
    address: u64,
    bytes: u64,
    page: u32,
    cycles: u64,
    cycles_per_ms: u32,
    flags: c_uint,
    kind: c_uint,
}

/// A pinned buffer.
#[derive(Debug)]
struct Pinned {
    /// Address of the first byte, which is at a GPU page boundary.
    address: u64,
    bytes: u64,
    /// The file with the memory. The buffer starts at `offset` in the file.
    file: OwnedFd,
    offset: u64,
    /// CPU address and size in bytes of the mapping, if mapped.
    mapped: Option<(usize, usize)>,
}

#[derive(Debug, Default)]
struct State {
    pinned: BTreeMap<c_ulong, Pinned>,
    next: c_ulong,
    calls: BTreeMap<&'static str, u64>,
    /// Number of mappings created so far.
    maps: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
/// The options. Panics if they are invalid, because a test must not run with a different configuration than it
/// requested.
static OPTIONS: LazyLock<Options> = LazyLock::new(|| {
    let text = std::env::var("DAQ_SIMULATED_GDR").unwrap_or_default();
    Options::parse(&text).unwrap_or_else(|error| panic!("{error}"))
});

/// Runs `body` as the function `name`, unless an injected fault applies, and records the result.
fn call(
    name: &'static str,
    body: impl FnOnce(&mut MutexGuard<'_, State>) -> Result<(), c_int>,
) -> c_int {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let nth = state.calls.entry(name).or_default();
    *nth += 1;
    let nth = *nth;
    let fails = OPTIONS
        .fail
        .iter()
        .find(|(symbol, at, _)| symbol == name && *at == nth);
    let answer = match fails {
        Some((_, _, errno)) => *errno,
        None => body(&mut state).err().unwrap_or(0),
    };
    if let Some(path) = std::env::var_os("DAQ_SIMULATED_GDR_REPORT") {
        let written = std::fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut file| writeln!(file, "{name} {answer}"));
        if let Err(error) = written {
            eprintln!("DAQ_SIMULATED_GDR_REPORT: {error}");
        }
    }
    answer
}

fn last_error() -> c_int {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EINVAL)
}

/// Returns the file behind a device address and the offset of the address in it. The simulated CUDA driver must be
/// loaded.
fn memory(address: u64, bytes: u64) -> Result<(OwnedFd, u64), c_int> {
    type Find = unsafe extern "C" fn(u64, usize, *mut c_int, *mut u64) -> c_int;
    // SAFETY: the names are NUL-terminated. With `RTLD_NOLOAD` the library is only looked up, not loaded.
    let find = unsafe {
        let flags = libc::RTLD_NOLOAD | libc::RTLD_LAZY;
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), flags);
        if library.is_null() {
            return Err(libc::ENODEV);
        }
        libc::dlsym(library, c"daq_simulated_memory".as_ptr())
    };
    if find.is_null() {
        return Err(libc::ENODEV);
    }
    // SAFETY: the simulated driver declares the function with this type.
    let find = unsafe { std::mem::transmute::<*mut c_void, Find>(find) };
    let (mut file, mut offset) = (-1, 0);
    let bytes = usize::try_from(bytes).map_err(|_| libc::EINVAL)?;
    // SAFETY: both pointers are valid for the descriptor and the offset that the function writes.
    match unsafe { find(address, bytes, &raw mut file, &raw mut offset) } {
        // SAFETY: the descriptor is new, and the driver passes its ownership to the caller.
        0 => Ok((unsafe { OwnedFd::from_raw_fd(file) }, offset)),
        _ => Err(libc::EINVAL),
    }
}

#[unsafe(no_mangle)]
extern "C" fn gdr_open() -> *mut c_void {
    match call("gdr_open", |_| Ok(())) {
        0 => ptr::without_provenance_mut(OPEN),
        errno => {
            // SAFETY: the pointer refers to the calling thread's `errno`.
            unsafe { *libc::__errno_location() = errno };
            ptr::null_mut()
        }
    }
}

/// Closes the library and unpins all buffers, as the real library does.
#[unsafe(no_mangle)]
extern "C" fn gdr_close(_gdr: *mut c_void) -> c_int {
    call("gdr_close", |state| {
        state.pinned.clear();
        Ok(())
    })
}

/// # Safety
/// `handle` must be null or valid for a write, as the header requires.
#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_pin_buffer(
    gdr: *mut c_void,
    address: c_ulong,
    bytes: usize,
    _token: u64,
    _space: u32,
    handle: *mut Handle,
) -> c_int {
    call("gdr_pin_buffer", |state| {
        if gdr.addr() != OPEN || handle.is_null() || bytes == 0 {
            return Err(libc::EINVAL);
        }
        let start = address / PAGE * PAGE;
        let length = (address - start + bytes as u64).next_multiple_of(PAGE);
        // The memory must cover the requested range, and its file must also contain the start of the page.
        let (file, offset) = memory(address, bytes as u64)?;
        let offset = offset.checked_sub(address - start).ok_or(libc::EINVAL)?;
        state.next += 1;
        let next = state.next;
        state.pinned.insert(
            next,
            Pinned {
                address: start,
                bytes: length,
                file,
                offset,
                mapped: None,
            },
        );
        // SAFETY: the pointer is not null, so the caller guarantees that it is valid for a write.
        unsafe { handle.write(Handle(next)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn gdr_unpin_buffer(_gdr: *mut c_void, handle: Handle) -> c_int {
    call("gdr_unpin_buffer", |state| {
        let pinned = state.pinned.get(&handle.0).ok_or(libc::EINVAL)?;
        if pinned.mapped.is_some() {
            return Err(libc::EBUSY);
        }
        state.pinned.remove(&handle.0);
        Ok(())
    })
}

/// # Safety
/// `address` must be null or valid for a write, as the header requires.
#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_map(
    _gdr: *mut c_void,
    handle: Handle,
    address: *mut *mut c_void,
    bytes: usize,
) -> c_int {
    call("gdr_map", |state| {
        let pinned = state.pinned.get_mut(&handle.0).ok_or(libc::EINVAL)?;
        if pinned.mapped.is_some() {
            return Err(libc::EAGAIN);
        }
        if address.is_null() || bytes == 0 || bytes as u64 > pinned.bytes {
            return Err(libc::EINVAL);
        }
        let offset = libc::off_t::try_from(pinned.offset).map_err(|_| libc::EINVAL)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let file = pinned.file.as_raw_fd();
        // SAFETY: a new mapping at an address that Linux selects does not overlap other memory.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                file,
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(last_error());
        }
        pinned.mapped = Some((base.addr(), bytes));
        // SAFETY: the pointer is not null, so the caller guarantees that it is valid for a write.
        unsafe { address.write(base) };
        state.maps += 1;
        // SAFETY: the descriptor is open. Truncating the file removes the memory of all its mappings, which is the
        // purpose of the option.
        if state.maps == OPTIONS.lose && unsafe { libc::ftruncate(file, 0) } != 0 {
            return Err(last_error());
        }
        Ok(())
    })
}

/// # Safety
/// The mapping must no longer be used, as the header requires.
#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_unmap(
    _gdr: *mut c_void,
    handle: Handle,
    address: *mut c_void,
    bytes: usize,
) -> c_int {
    call("gdr_unmap", |state| {
        let pinned = state.pinned.get_mut(&handle.0).ok_or(libc::EINVAL)?;
        if pinned.mapped != Some((address.addr(), bytes)) {
            return Err(libc::EINVAL);
        }
        pinned.mapped = None;
        // SAFETY: `gdr_map` has mapped these bytes, and the caller guarantees that they are no longer used.
        if unsafe { libc::munmap(address, bytes) } == 0 {
            Ok(())
        } else {
            Err(last_error())
        }
    })
}

/// # Safety
/// `info` must be null or valid for a write, as the header requires.
#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_get_info_v2(_gdr: *mut c_void, handle: Handle, info: *mut Info) -> c_int {
    call("gdr_get_info_v2", |state| {
        let pinned = state.pinned.get(&handle.0).ok_or(libc::EINVAL)?;
        if info.is_null() {
            return Err(libc::EINVAL);
        }
        let is_mapped = c_uint::from(pinned.mapped.is_some());
        let early = if OPTIONS.misalign { PAGE } else { 0 };
        let answer = Info {
            address: pinned.address - early,
            bytes: pinned.bytes,
            page: u32::try_from(PAGE).unwrap_or(0),
            cycles: 0,
            cycles_per_ms: 0,
            flags: is_mapped * 3,
            kind: is_mapped,
        };
        // SAFETY: the pointer is not null, so the caller guarantees that it is valid for a write.
        unsafe { info.write(answer) };
        Ok(())
    })
}

/// # Safety
/// Both pointers must be valid for writes, as the header requires.
#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_runtime_get_version(major: *mut c_int, minor: *mut c_int) {
    // SAFETY: the caller guarantees that both pointers are valid for writes.
    unsafe {
        major.write(2);
        minor.write(5);
    }
}
