//! Calls of NVIDIA's run-time compiler (`libnvrtc`), which is opened at run time by `cudarc`.
//!
//! `cudarc` panics where the library is missing: nothing here may be called before [`is_present`] has answered.

use cudarc::nvrtc::sys;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

pub use cudarc::nvrtc::sys::nvrtcProgram as Program;

/// A result code other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

fn check(result: sys::nvrtcResult) -> Result<(), Code> {
    match result as u32 {
        0 => Ok(()),
        code => Err(Code(code)),
    }
}

/// Whether the library can be opened.
pub fn is_present() -> bool {
    // SAFETY: opening the library runs its initialisers, which have no requirement on the process.
    unsafe { sys::is_culib_present() }
}

/// Opens the library at `path` and keeps it open: what is opened by its name afterwards is this one.
pub fn preload(path: &CStr) -> Result<(), String> {
    // SAFETY: a path of a library whose initialisers have no requirement on the process, by the word of the
    // person who named it.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(());
    }
    // SAFETY: the linker's message about the call just made on this thread.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return Err("the dynamic linker gives no reason".to_owned());
    }
    // SAFETY: a NUL-terminated string that stays until the linker's next call on this thread.
    Err(unsafe { CStr::from_ptr(message) }
        .to_string_lossy()
        .into_owned())
}

/// Major and minor version.
pub fn version() -> Result<(i32, i32), Code> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: places for two integers.
    check(unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) })?;
    Ok((major, minor))
}

/// A program of one source and headers, each with the name by which it is included.
pub fn create(source: &CStr, name: &CStr, headers: &[(CString, CString)]) -> Result<Program, Code> {
    let mut program = ptr::null_mut();
    let texts: Vec<*const c_char> = headers.iter().map(|(_, text)| text.as_ptr()).collect();
    let names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
    let count = c_int::try_from(headers.len()).unwrap_or(c_int::MAX);
    // SAFETY: NUL-terminated strings that live through the call, `count` headers and as many names.
    check(unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program,
            source.as_ptr(),
            name.as_ptr(),
            count,
            texts.as_ptr(),
            names.as_ptr(),
        )
    })?;
    Ok(program)
}

/// Compiles a program.
///
/// # Safety
/// The program came from [`create`] and is alive.
pub unsafe fn compile(program: Program, options: &[CString]) -> Result<(), Code> {
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let count = c_int::try_from(options.len()).unwrap_or(c_int::MAX);
    // SAFETY: the program by the caller's word; `count` NUL-terminated strings.
    check(unsafe { sys::nvrtcCompileProgram(program, count, options.as_ptr()) })
}

/// What the compiler said.
///
/// # Safety
/// The program is alive.
pub unsafe fn log(program: Program) -> Result<Vec<u8>, Code> {
    // SAFETY: the two calls go together, and the program is the caller's word.
    unsafe {
        fetch(
            program,
            sys::nvrtcGetProgramLogSize,
            sys::nvrtcGetProgramLog,
        )
    }
}

/// The compiled PTX, without the NUL at its end.
///
/// # Safety
/// The program is alive and was compiled for a virtual architecture.
pub unsafe fn ptx(program: Program) -> Result<Vec<u8>, Code> {
    // SAFETY: as above.
    unsafe { fetch(program, sys::nvrtcGetPTXSize, sys::nvrtcGetPTX) }.map(|mut text| {
        text.pop_if(|byte| *byte == 0);
        text
    })
}

/// The compiled code of a real architecture.
///
/// # Safety
/// The program is alive and was compiled for a real architecture.
pub unsafe fn cubin(program: Program) -> Result<Vec<u8>, Code> {
    // SAFETY: as above.
    unsafe { fetch(program, sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN) }
}

type Size = unsafe fn(Program, *mut usize) -> sys::nvrtcResult;
type Fetch = unsafe fn(Program, *mut c_char) -> sys::nvrtcResult;

/// # Safety
/// The program is alive, and `fetch` writes as many bytes as `size` says.
unsafe fn fetch(program: Program, size: Size, fetch: Fetch) -> Result<Vec<u8>, Code> {
    let mut bytes = 0;
    // SAFETY: the program by the caller's word; a place for one size.
    check(unsafe { size(program, &raw mut bytes) })?;
    let mut text = vec![0; bytes];
    // SAFETY: `text` has room for the bytes that the compiler just said.
    check(unsafe { fetch(program, text.as_mut_ptr().cast()) })?;
    Ok(text)
}

/// Frees a program.
///
/// # Safety
/// The program came from [`create`] and is not used again.
pub unsafe fn destroy(mut program: Program) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::nvrtcDestroyProgram(&raw mut program) })
}
