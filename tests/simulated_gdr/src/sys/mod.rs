//! The functions of the library and the memory behind them: all foreign interfaces are in this folder.
//!
//! The functions' names and parameters are those of GDRCopy's `gdrapi.h`.

use crate::options::Options;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Bytes of a page of the GPU.
const PAGE: u64 = 64 << 10;
/// What `gdr_open` gives: it leads nowhere.
const OPEN: usize = 0x6d72;

/// `gdr_mh_t`. It goes by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Handle(c_ulong);

/// `gdr_info_v2_t`; the two flags are one word's lowest bits.
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
    /// The first byte, at a page of the GPU.
    address: u64,
    bytes: u64,
    /// The memory, which begins at `offset` of the file.
    file: OwnedFd,
    offset: u64,
    /// Where the CPU has it, and how many bytes.
    mapped: Option<(usize, usize)>,
}

#[derive(Debug, Default)]
struct State {
    pinned: BTreeMap<c_ulong, Pinned>,
    next: c_ulong,
    calls: BTreeMap<&'static str, u64>,
    /// Mappings that were made.
    maps: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
/// Panics where the options are wrong: a test must not run on another machine than it asked for.
static OPTIONS: LazyLock<Options> = LazyLock::new(|| {
    let text = std::env::var("DAQ_SIMULATED_GDR").unwrap_or_default();
    Options::parse(&text).unwrap_or_else(|error| panic!("{error}"))
});

/// Does what a function does, unless it is to fail, and notes the answer.
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

/// The file behind a device address and where in it the address is, from the simulated CUDA driver, which must be loaded.
fn memory(address: u64, bytes: u64) -> Result<(OwnedFd, u64), c_int> {
    type Find = unsafe extern "C" fn(u64, usize, *mut c_int, *mut u64) -> c_int;
    // SAFETY: the names are texts that end with a zero; the library is not loaded by this, only found.
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
    // SAFETY: this is how the simulated driver declares it.
    let find = unsafe { std::mem::transmute::<*mut c_void, Find>(find) };
    let (mut file, mut offset) = (-1, 0);
    let bytes = usize::try_from(bytes).map_err(|_| libc::EINVAL)?;
    // SAFETY: places for a descriptor and a number.
    match unsafe { find(address, bytes, &raw mut file, &raw mut offset) } {
        // SAFETY: a fresh descriptor that the driver leaves to its caller.
        0 => Ok((unsafe { OwnedFd::from_raw_fd(file) }, offset)),
        _ => Err(libc::EINVAL),
    }
}

#[unsafe(no_mangle)]
extern "C" fn gdr_open() -> *mut c_void {
    match call("gdr_open", |_| Ok(())) {
        0 => ptr::without_provenance_mut(OPEN),
        errno => {
            // SAFETY: the place of the calling thread.
            unsafe { *libc::__errno_location() = errno };
            ptr::null_mut()
        }
    }
}

/// As the library does, it gives back what was pinned.
#[unsafe(no_mangle)]
extern "C" fn gdr_close(_gdr: *mut c_void) -> c_int {
    call("gdr_close", |state| {
        state.pinned.clear();
        Ok(())
    })
}

/// # Safety
/// As the header asks: `handle` has room for one.
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
        // The memory must reach to the end of what is asked for, from the address on.
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
        // SAFETY: not null, so there is room for one, by the caller's word.
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
/// As the header asks: `address` has room for one.
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
        // SAFETY: a new mapping at an address of the system's choice overlaps no other memory.
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
        // SAFETY: not null, so there is room for one, by the caller's word.
        unsafe { address.write(base) };
        state.maps += 1;
        // SAFETY: the descriptor is open; every mapping of the file loses its memory, which is what
        // the option asks for.
        if state.maps == OPTIONS.lose && unsafe { libc::ftruncate(file, 0) } != 0 {
            return Err(last_error());
        }
        Ok(())
    })
}

/// # Safety
/// As the header asks: the mapping is no longer used.
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
        // SAFETY: `gdr_map` has mapped these bytes, and they are unused, as the caller guarantees.
        if unsafe { libc::munmap(address, bytes) } == 0 {
            Ok(())
        } else {
            Err(last_error())
        }
    })
}

/// # Safety
/// As the header asks: `info` has room for one.
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
        // SAFETY: not null, so there is room for one, by the caller's word.
        unsafe { info.write(answer) };
        Ok(())
    })
}

/// # Safety
/// As the header asks: both have room for one.
#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_runtime_get_version(major: *mut c_int, minor: *mut c_int) {
    // SAFETY: there is room for one each, by the caller's word.
    unsafe {
        major.write(2);
        minor.write(5);
    }
}
