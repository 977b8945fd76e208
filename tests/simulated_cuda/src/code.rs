//! Return codes of calls: the driver's `CUresult`.

use std::ffi::CStr;

/// A `CUresult`.
pub type Code = i32;
/// The result of a call, or its error code.
pub type Result<T = ()> = std::result::Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $value:literal $text:literal,)*) => {
        $(#[allow(dead_code, reason = "the table is complete; not every code is used")]
        pub const $name: Code = $value;)*

        /// The name and the description of a code.
        pub fn describe(code: Code) -> Option<(&'static CStr, &'static CStr)> {
            const fn text(bytes: &'static [u8]) -> &'static CStr {
                match CStr::from_bytes_with_nul(bytes) {
                    Ok(text) => text,
                    Err(_) => panic!("a text must contain exactly one NUL byte, at its end"),
                }
            }
            match code {
                $($value => Some((
                    const { text(concat!(codes!(@name $name), "\0").as_bytes()) },
                    const { text(concat!($text, "\0").as_bytes()) },
                )),)*
                _ => None,
            }
        }
    };
    (@name SUCCESS) => { "CUDA_SUCCESS" };
    (@name $name:ident) => { concat!("CUDA_ERROR_", stringify!($name)) };
}

codes! {
    SUCCESS = 0 "no error",
    INVALID_VALUE = 1 "invalid argument",
    OUT_OF_MEMORY = 2 "out of memory",
    NOT_INITIALIZED = 3 "initialization error",
    DEINITIALIZED = 4 "the driver is shutting down",
    DEVICE_UNAVAILABLE = 46 "device is busy or unavailable",
    NO_DEVICE = 100 "no device is detected",
    INVALID_DEVICE = 101 "invalid device ordinal",
    INVALID_IMAGE = 200 "device kernel image is invalid",
    INVALID_CONTEXT = 201 "invalid device context",
    MAP_FAILED = 205 "mapping failed",
    UNMAP_FAILED = 206 "unmapping failed",
    NO_BINARY_FOR_GPU = 209 "no kernel image for this device",
    ECC_UNCORRECTABLE = 214 "uncorrectable ECC error",
    INVALID_PTX = 218 "a PTX compilation failed",
    NVLINK_UNCORRECTABLE = 220 "uncorrectable NVLink error",
    JIT_COMPILER_NOT_FOUND = 221 "the compiler of the driver is not found",
    UNSUPPORTED_PTX_VERSION = 222 "the PTX is newer than this driver",
    CONTAINED = 226 "a contained error ended the context",
    OPERATING_SYSTEM = 304 "a call of the operating system failed",
    INVALID_HANDLE = 400 "invalid resource handle",
    ILLEGAL_STATE = 401 "the resource is in another state",
    NOT_FOUND = 500 "named symbol not found",
    NOT_READY = 600 "not ready",
    ILLEGAL_ADDRESS = 700 "an illegal memory access",
    LAUNCH_OUT_OF_RESOURCES = 701 "too many resources for a launch",
    LAUNCH_TIMEOUT = 702 "the launch timed out",
    CONTEXT_IS_DESTROYED = 709 "the context is destroyed",
    ASSERT = 710 "device-side assertion",
    HOST_MEMORY_ALREADY_REGISTERED = 712 "host memory is registered already",
    HOST_MEMORY_NOT_REGISTERED = 713 "host memory is not registered",
    HARDWARE_STACK_ERROR = 714 "hardware stack error",
    ILLEGAL_INSTRUCTION = 715 "illegal instruction",
    MISALIGNED_ADDRESS = 716 "misaligned address",
    INVALID_ADDRESS_SPACE = 717 "invalid address space",
    INVALID_PC = 718 "invalid program counter",
    LAUNCH_FAILED = 719 "the launch failed",
    COOPERATIVE_LAUNCH_TOO_LARGE = 720 "too many blocks to run at once",
    TENSOR_MEMORY_LEAK = 721 "tensor memory leak",
    NOT_PERMITTED = 800 "not permitted",
    NOT_SUPPORTED = 801 "not supported",
    SYSTEM_NOT_READY = 802 "the system is not ready",
    SYSTEM_DRIVER_MISMATCH = 803 "the driver does not match its kernel module",
    STREAM_CAPTURE_UNSUPPORTED = 900 "not permitted while the stream is capturing",
    STREAM_CAPTURE_INVALIDATED = 901 "the capture has already failed",
    STREAM_CAPTURE_WRONG_THREAD = 908 "the capture belongs to another thread",
    CAPTURED_EVENT = 907 "the event was recorded in a capture",
    UNKNOWN = 999 "unknown error",
}

/// Returns true if an error code makes the context unusable: every later call that needs the context returns the same
/// code.
pub const fn is_sticky(code: Code) -> bool {
    matches!(
        code,
        ECC_UNCORRECTABLE
            | NVLINK_UNCORRECTABLE
            | CONTAINED
            | ILLEGAL_ADDRESS
            | LAUNCH_TIMEOUT
            | ASSERT
            | HARDWARE_STACK_ERROR..=LAUNCH_FAILED | TENSOR_MEMORY_LEAK | UNKNOWN
    )
}
