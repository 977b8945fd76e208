//! Calls of NVIDIA's runtime compiler (`libnvrtc`), which is loaded at run time.
//!
//! `cudarc` finds the library if no [path](open) is given, and declares its types. If the library or a function is
//! missing, calls return [`MISSING`]; [`is_present`] and [`open`] report it beforehand.

use cudarc::nvrtc::sys;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

pub(crate) use cudarc::nvrtc::sys::nvrtcProgram as Program;

/// The compiler's result code of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub u32);

/// The result of a function that the library lacks: `NVRTC_ERROR_INTERNAL_ERROR`.
const MISSING: c_uint = 11;

/// Defines a function for each name, which looks up the library's function on first use, and the list of names.
/// Results are integers, because newer libraries have codes that `cudarc`'s enumeration lacks.
macro_rules! functions {
    ($($function:ident = $name:literal($($argument:ident: $kind:ty),*);)*) => {
        const NAMES: &[&CStr] = &[$($name),*];

        $(
            /// # Safety
            /// The arguments must meet the requirements of NVIDIA's documentation.
            unsafe fn $function($($argument: $kind),*) -> c_uint {
                type Call = unsafe extern "C" fn($($kind),*) -> c_uint;
                static CALL: OnceLock<Option<Call>> = OnceLock::new();
                let find = || {
                    // SAFETY: the function is declared with this type, a C enumeration is an integer, and a function
                    // pointer has the size of a data pointer.
                    symbol($name).map(|at| unsafe { std::mem::transmute::<NonNull<c_void>, Call>(at) })
                };
                match CALL.get_or_init(find) {
                    // SAFETY: the caller guarantees all requirements of this call.
                    Some(call) => unsafe { call($($argument),*) },
                    None => MISSING,
                }
            }
        )*
    };
}

functions! {
    version_of = c"nvrtcVersion"(major: *mut c_int, minor: *mut c_int);
    create_program = c"nvrtcCreateProgram"(
        program: *mut Program, source: *const c_char, name: *const c_char, count: c_int,
        headers: *const *const c_char, names: *const *const c_char
    );
    destroy_program = c"nvrtcDestroyProgram"(program: *mut Program);
    compile_program = c"nvrtcCompileProgram"(
        program: Program, count: c_int, options: *const *const c_char
    );
    log_size = c"nvrtcGetProgramLogSize"(program: Program, bytes: *mut usize);
    log_text = c"nvrtcGetProgramLog"(program: Program, text: *mut c_char);
    ptx_size = c"nvrtcGetPTXSize"(program: Program, bytes: *mut usize);
    ptx_text = c"nvrtcGetPTX"(program: Program, text: *mut c_char);
    cubin_size = c"nvrtcGetCUBINSize"(program: Program, bytes: *mut usize);
    cubin_bytes = c"nvrtcGetCUBIN"(program: Program, bytes: *mut c_char);
}

const fn check(result: c_uint) -> Result<(), Code> {
    match result {
        0 => Ok(()),
        code => Err(Code(code)),
    }
}

/// A handle of the dynamic linker, which is never closed.
struct Library(NonNull<c_void>);

// SAFETY: the dynamic linker's functions accept a handle from any thread.
unsafe impl Send for Library {}
// SAFETY: the dynamic linker's functions accept a handle from several threads at the same time.
unsafe impl Sync for Library {}

impl Library {
    fn open(path: &CStr) -> Result<Self, String> {
        // SAFETY: opening a library runs its initialisers. The user who configured this path is responsible for a
        // library whose initialisers have no requirements.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if let Some(handle) = NonNull::new(handle) {
            return Ok(Self(handle));
        }
        // SAFETY: `dlerror` has no requirements. It returns the message for the last call on this thread.
        let message = unsafe { libc::dlerror() };
        if message.is_null() {
            return Err("the dynamic linker reported no reason".to_owned());
        }
        // SAFETY: the message is a NUL-terminated string, which is valid until the next linker call on this thread.
        Err(unsafe { CStr::from_ptr(message) }
            .to_string_lossy()
            .into_owned())
    }

    fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the library is open, and the name ends in NUL.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

/// The library that was opened by its path.
static OPENED: OnceLock<Library> = OnceLock::new();

fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    if let Some(library) = OPENED.get() {
        return library.symbol(name);
    }
    // `cudarc` would panic without the library.
    if !is_present() {
        return None;
    }
    // SAFETY: the symbol is only looked up, never called or read through this type.
    unsafe { sys::culib().get::<*mut c_void>(name.to_bytes_with_nul()) }
        .ok()
        .and_then(|symbol| NonNull::new(*symbol))
}

/// Whether the library is open or can be opened by its name.
pub(crate) fn is_present() -> bool {
    // SAFETY: opening the library runs its initialisers, which have no requirement on the process.
    OPENED.get().is_some() || unsafe { sys::is_culib_present() }
}

/// Opens the library at `path` for all later calls. The file may have any name. If a library was opened before, it
/// stays in use.
///
/// # Errors
/// The error is a clause: the dynamic linker's message, or the function that the library lacks.
pub(crate) fn open(path: &CStr) -> Result<(), String> {
    let library = Library::open(path)?;
    let is_missing = |name: &&&CStr| library.symbol(name).is_none();
    if let Some(missing) = NAMES.iter().find(is_missing) {
        return Err(format!(
            "the library is not NVIDIA's runtime compiler, because it lacks {}",
            missing.to_string_lossy()
        ));
    }
    OPENED.get_or_init(|| library);
    Ok(())
}

/// Opens another library, which the compiler needs and finds only by its name.
pub(crate) fn preload(path: &CStr) -> Result<(), String> {
    Library::open(path).map(drop)
}

/// Returns the major and minor version of the compiler.
pub(crate) fn version() -> Result<(i32, i32), Code> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the result pointers refer to two writable integers.
    check(unsafe { version_of(&raw mut major, &raw mut minor) })?;
    Ok((major, minor))
}

/// Creates a program from a source and headers. Each header has the name by which it is included.
pub(crate) fn create(
    source: &CStr,
    name: &CStr,
    headers: &[(CString, CString)],
) -> Result<Program, Code> {
    let mut program = ptr::null_mut();
    let texts: Vec<*const c_char> = headers.iter().map(|(_, text)| text.as_ptr()).collect();
    let names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
    let count = c_int::try_from(headers.len()).unwrap_or(c_int::MAX);
    // SAFETY: all strings are NUL-terminated and alive during the call. There are `count` headers and `count` names.
    check(unsafe {
        create_program(
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
/// The program must come from [`create`] and must not be destroyed.
pub(crate) unsafe fn compile(program: Program, options: &[CString]) -> Result<(), Code> {
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let count = c_int::try_from(options.len()).unwrap_or(c_int::MAX);
    // SAFETY: the caller guarantees a valid program; `options` contains `count` NUL-terminated strings.
    check(unsafe { compile_program(program, count, options.as_ptr()) })
}

/// Returns the compiler's log.
///
/// # Safety
/// The program must not be destroyed.
pub(crate) unsafe fn log(program: Program) -> Result<Vec<u8>, Code> {
    // SAFETY: the size and fetch functions belong together; the caller guarantees a valid program.
    unsafe { fetch(program, log_size, log_text) }
}

/// Returns the compiled PTX, without the NUL at its end.
///
/// # Safety
/// The program must not be destroyed, and must have been compiled for a virtual architecture.
pub(crate) unsafe fn ptx(program: Program) -> Result<Vec<u8>, Code> {
    // SAFETY: the size and fetch functions belong together; the caller guarantees a valid program.
    unsafe { fetch(program, ptx_size, ptx_text) }.map(|mut text| {
        text.pop_if(|byte| *byte == 0);
        text
    })
}

/// Returns the machine code of a program that was compiled for a real architecture.
///
/// # Safety
/// The program must not be destroyed, and must have been compiled for a real architecture.
pub(crate) unsafe fn cubin(program: Program) -> Result<Vec<u8>, Code> {
    // SAFETY: the size and fetch functions belong together; the caller guarantees a valid program.
    unsafe { fetch(program, cubin_size, cubin_bytes) }
}

type Size = unsafe fn(Program, *mut usize) -> c_uint;
type Fetch = unsafe fn(Program, *mut c_char) -> c_uint;

/// # Safety
/// The program must not be destroyed, and `fetch` must write as many bytes as `size` returns.
unsafe fn fetch(program: Program, size: Size, fetch: Fetch) -> Result<Vec<u8>, Code> {
    let mut bytes = 0;
    // SAFETY: the caller guarantees a valid program; the result pointer refers to one writable size.
    check(unsafe { size(program, &raw mut bytes) })?;
    let mut text = vec![0; bytes];
    // SAFETY: `text` has the size that the compiler just returned.
    check(unsafe { fetch(program, text.as_mut_ptr().cast()) })?;
    Ok(text)
}

/// Frees a program.
///
/// # Safety
/// The program must come from [`create`] and must not be used again.
pub(crate) unsafe fn destroy(mut program: Program) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { destroy_program(&raw mut program) })
}
