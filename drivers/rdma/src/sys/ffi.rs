//! Bindings of libibverbs, librdmacm and libmlx5: generated types and constants, and functions that load their library
//! at the first call.
//!
//! The names are those of the headers. A function whose library or symbol is absent sets `errno` to `EOPNOTSUPP` and
//! returns a null pointer or -1. `drivers/rdma/bindings` generates `bindings.rs`.

mod inline;

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

pub(crate) use bindings::*;
pub(crate) use inline::{ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_req_notify_cq, query_port};

#[allow(
    missing_docs,
    dead_code,
    unreachable_pub,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    clippy::pedantic
)]
mod bindings {
    use super::functions;
    use libc::{
        pthread_cond_t, pthread_mutex_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage,
    };

    include!("ffi/bindings.rs");
}

/// Defines each function of a header as a call through a pointer that is looked up once.
macro_rules! functions {
    ($(pub fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {$(
        /// The library's function with this name.
        ///
        /// # Safety
        /// The requirements are those that the library documents.
        pub(crate) unsafe fn $name($($argument: $type),*) $(-> $result)? {
            type Function = unsafe extern "C" fn($($type),*) $(-> $result)?;
            static FUNCTION: std::sync::OnceLock<Option<Function>> = std::sync::OnceLock::new();
            let function = FUNCTION.get_or_init(|| {
                let symbol = super::symbol(stringify!($name))?;
                // SAFETY: the symbol is this function, whose type was generated from the library's header.
                Some(unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(symbol.as_ptr()) })
            });
            match function {
                // SAFETY: the caller upholds the function's contract; its library is never closed.
                Some(function) => unsafe { function($($argument),*) },
                None => super::absent(),
            }
        }
    )*};
}
use functions;

/// The prefix of the function names of each library.
const LIBRARIES: [(&str, &str); 3] = [
    ("ibv_", "libibverbs.so.1"),
    ("rdma_", "librdmacm.so.1"),
    ("mlx5dv_", "libmlx5.so.1"),
];

/// Returns the address of the function `name`. The library of the function stays loaded until the process ends.
fn symbol(name: &str) -> Option<std::ptr::NonNull<c_void>> {
    static OPEN: [OnceLock<Option<libloading::Library>>; LIBRARIES.len()] =
        [const { OnceLock::new() }; LIBRARIES.len()];
    let at = LIBRARIES
        .iter()
        .position(|(prefix, _)| name.starts_with(prefix))?;
    let library = OPEN[at].get_or_init(|| {
        let file = LIBRARIES[at].1;
        // SAFETY: the libraries of rdma-core have no constructors with special requirements.
        let opened = unsafe { libloading::Library::new(file) };
        opened
            .inspect_err(|error| tracing::debug!("cannot open {file}: {error}"))
            .ok()
    });
    // SAFETY: the type is a plain address; `functions!` converts it to the type from the header.
    let symbol = unsafe { library.as_ref()?.get::<*mut c_void>(name) };
    let address = symbol
        .inspect_err(|error| tracing::debug!("{error}"))
        .ok()?;
    std::ptr::NonNull::new(*address)
}

/// Returns true if the installed library has the function `name`.
pub(crate) fn is_present(name: &str) -> bool {
    symbol(name).is_some()
}

/// Defines the value that a function returns if its library is absent.
trait Failure {
    const FAILURE: Self;
}

impl Failure for () {
    const FAILURE: Self = ();
}

impl Failure for c_int {
    const FAILURE: Self = -1;
}

impl<T> Failure for *mut T {
    const FAILURE: Self = std::ptr::null_mut();
}

impl<T> Failure for *const T {
    const FAILURE: Self = std::ptr::null();
}

fn absent<T: Failure>() -> T {
    // SAFETY: the pointer is the address of the calling thread's `errno`.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
    T::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_symbol_is_none() {
        assert!(symbol("ibv_no_such_function").is_none());
        assert!(symbol("no_such_library").is_none());
    }

    #[test]
    fn function_of_absent_library_fails_with_eopnotsupp() {
        let errno = || std::io::Error::last_os_error().raw_os_error();
        assert_eq!(absent::<c_int>(), -1);
        assert_eq!(errno(), Some(libc::EOPNOTSUPP));
        assert!(absent::<*mut ibv_context>().is_null());
        assert!(absent::<*const c_void>().is_null());
    }

    /// The installed libraries must have every function of the bindings.
    #[test]
    fn installed_library_has_every_bound_function() {
        let names: Vec<&str> = include_str!("ffi/bindings.rs")
            .lines()
            .filter_map(|line| line.trim().strip_prefix("pub fn ")?.split('(').next())
            .collect();
        assert!(names.len() > 40, "{names:?}");
        for (prefix, file) in LIBRARIES {
            // SAFETY: the libraries of rdma-core have no constructors with special requirements.
            if let Err(error) = unsafe { libloading::Library::new(file) } {
                println!("skipped {file}: {error}");
                continue;
            }
            for name in names.iter().filter(|name| name.starts_with(prefix)) {
                assert!(symbol(name).is_some(), "{file} lacks {name}");
            }
        }
    }
}
