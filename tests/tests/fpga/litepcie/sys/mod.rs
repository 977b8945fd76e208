//! The simulated core. It is a library that `tests/litepcie/build` builds, with the C interface of
//! `tests/litepcie/shim.cpp`.

use libloading::Library;
use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;

/// Maximum payload of one TLP, in bytes.
pub const PAYLOAD: usize = 256;

/// An event of the core, with the memory layout of the library.
#[repr(C)]
struct Raw {
    kind: u32,
    bytes: u32,
    address: u64,
    tag: u32,
    header_words: u32,
    data: [u8; PAYLOAD],
}

/// An event of the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A memory write.
    Write {
        /// Address of the first byte.
        address: u64,
        /// The written data.
        data: Vec<u8>,
        /// Number of words of the TLP header: 3 for addresses below 4 GiB.
        header: u32,
    },
    /// A memory read. [`Core::complete`] must answer it with the same tag.
    Read {
        /// Address of the first byte.
        address: u64,
        /// Length in bytes.
        bytes: u32,
        /// Identifies the read request.
        tag: u32,
    },
    /// A message-signalled interrupt.
    Msi(u64),
}

type Handle = *mut c_void;

/// The functions of the library, as declared in shim.cpp.
struct Functions {
    free: unsafe extern "C" fn(Handle),
    reset: unsafe extern "C" fn(Handle),
    run: unsafe extern "C" fn(Handle, u32, u32) -> u32,
    settle: unsafe extern "C" fn(Handle, u32, u32) -> i32,
    write: unsafe extern "C" fn(Handle, u32, u32),
    read: unsafe extern "C" fn(Handle, u32, *mut u32) -> i32,
    complete: unsafe extern "C" fn(Handle, u32, u64, *const u8, u32),
    next: unsafe extern "C" fn(Handle, *mut Raw) -> i32,
}

/// A simulated core.
pub struct Core {
    handle: NonNull<c_void>,
    functions: Functions,
    /// Keeps the library loaded, so that the functions stay valid.
    _library: Library,
}

// SAFETY: a core is plain memory that is accessed only through its handle. Every method takes `&mut self`, so only one
// thread accesses it at a time. Between calls, the library keeps no data in thread-local variables or in global
// variables that cores of other threads share.
unsafe impl Send for Core {}

impl Core {
    /// Loads the library at `path`, creates a core and resets it.
    pub fn load(path: &Path) -> Self {
        // SAFETY: the build script made the library from files of this repository. Its initialisers are those of the
        // C++ library and of Verilator, which have no preconditions.
        let library = unsafe { Library::new(path) }.unwrap();
        // SAFETY: the types match the definitions in shim.cpp. The library is loaded during the call, and the function
        // has no preconditions.
        let bytes = unsafe {
            library
                .get::<unsafe extern "C" fn() -> u32>(b"litepcie_event_bytes\0")
                .unwrap()()
        };
        assert_eq!(bytes as usize, size_of::<Raw>(), "events differ in layout");
        // SAFETY: the types match the definitions in shim.cpp. The pointers are stored together with the library, which
        // is unloaded after their last use.
        let functions = unsafe {
            Functions {
                free: *library.get(b"litepcie_free\0").unwrap(),
                reset: *library.get(b"litepcie_reset\0").unwrap(),
                run: *library.get(b"litepcie_run\0").unwrap(),
                settle: *library.get(b"litepcie_settle\0").unwrap(),
                write: *library.get(b"litepcie_write\0").unwrap(),
                read: *library.get(b"litepcie_read\0").unwrap(),
                complete: *library.get(b"litepcie_complete\0").unwrap(),
                next: *library.get(b"litepcie_next\0").unwrap(),
            }
        };
        // SAFETY: the type matches the definition in shim.cpp, and the function has no preconditions.
        let handle = unsafe {
            library
                .get::<unsafe extern "C" fn() -> Handle>(b"litepcie_new\0")
                .unwrap()()
        };
        let mut core = Self {
            handle: NonNull::new(handle).unwrap(),
            functions,
            _library: library,
        };
        core.reset();
        core
    }

    /// Resets the core to its state at power-on.
    pub fn reset(&mut self) {
        // SAFETY: the handle belongs to a core that has not been freed. No other code uses the core during the call.
        unsafe { (self.functions.reset)(self.handle.as_ptr()) }
    }

    /// Clocks the core with an open stream until it has read `words` words or `cycles` cycles have passed. Returns the
    /// number of words read.
    pub fn run(&mut self, words: u32, cycles: u32) -> u32 {
        // SAFETY: the handle belongs to a core that has not been freed. No other code uses the core during the call.
        unsafe { (self.functions.run)(self.handle.as_ptr(), words, cycles) }
    }

    /// Clocks the core with a closed stream until it has emitted nothing for `quiet` cycles. Returns false if that does
    /// not happen within `limit` cycles.
    pub fn settle(&mut self, quiet: u32, limit: u32) -> bool {
        // SAFETY: the handle belongs to a core that has not been freed. No other code uses the core during the call.
        unsafe { (self.functions.settle)(self.handle.as_ptr(), quiet, limit) != 0 }
    }

    /// Writes a register and waits until the write is done.
    pub fn write(&mut self, offset: u32, value: u32) {
        // SAFETY: the handle belongs to a core that has not been freed. No other code uses the core during the call.
        unsafe { (self.functions.write)(self.handle.as_ptr(), offset, value) }
    }

    /// Reads a register with a closed stream. Returns `None` if the register does not answer.
    pub fn read(&mut self, offset: u32) -> Option<u32> {
        let mut value = 0;
        // SAFETY: the handle belongs to a core that has not been freed. No other code uses the core during the call.
        // The pointer is valid for one word.
        let answered =
            unsafe { (self.functions.read)(self.handle.as_ptr(), offset, &raw mut value) };
        (answered != 0).then_some(value)
    }

    /// Answers a memory read.
    pub fn complete(&mut self, tag: u32, address: u64, data: &[u8]) {
        assert!(data.len() <= PAYLOAD && data.len().is_multiple_of(4));
        let bytes = u32::try_from(data.len()).unwrap();
        // SAFETY: the handle belongs to a core that has not been freed. No other code uses the core during the call.
        // `data` has the given length and is only read during the call.
        unsafe {
            (self.functions.complete)(self.handle.as_ptr(), tag, address, data.as_ptr(), bytes);
        }
    }

    /// Returns the next event; `None` if there is no event.
    pub fn next(&mut self) -> Option<Event> {
        let mut raw = Raw {
            kind: 0,
            bytes: 0,
            address: 0,
            tag: 0,
            header_words: 0,
            data: [0; PAYLOAD],
        };
        // SAFETY: the handle belongs to a core that has not been freed. No other code uses the core during the call.
        // `raw` has the library's layout, whose size was checked, and every bit pattern is valid for it.
        if unsafe { (self.functions.next)(self.handle.as_ptr(), &raw mut raw) } == 0 {
            return None;
        }
        Some(match raw.kind {
            1 => Event::Write {
                address: raw.address,
                data: raw.data[..raw.bytes as usize].to_vec(),
                header: raw.header_words,
            },
            2 => Event::Read {
                address: raw.address,
                bytes: raw.bytes,
                tag: raw.tag,
            },
            3 => Event::Msi(raw.address),
            kind => panic!(
                "unknown event of the core: kind {kind}, first word {:#010x}",
                raw.address
            ),
        })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: the handle belongs to a core that has not been freed, and it is not used again.
        unsafe { (self.functions.free)(self.handle.as_ptr()) }
    }
}
