//! A replacement for the CUDA driver library `libcuda.so.1`, so that the whole of daq runs on machines without a GPU.
//!
//! It is stricter than the driver, because its purpose is to find errors: device memory cannot be accessed through its
//! address and is never zeroed, streams are separate threads, calls out of order are rejected with the documented code,
//! and everything is counted.
//!
//! Two environment variables configure it. `DAQ_SIMULATED_CUDA` is a list of options, see [`Options`]; an unknown
//! option ends the process. `DAQ_SIMULATED_CUDA_REPORT` names a file for a JSON report, written when a context or the
//! process ends:
//!
//! | key | meaning |
//! |---|---|
//! | `calls` | calls of each function |
//! | `copied` | bytes copied: `host_to_device`, `device_to_host`, `device_to_device`, `host_to_host` |
//! | `copies`, `fills`, `launches` | operations that streams have executed |
//! | `persistent` | frames that persistent kernels have started |
//! | `blocked` | calls that had to wait for a persistent kernel |
//! | `unregistered` | copies from or to host memory that is unknown to the driver: `copies` and their `bytes` |
//! | `leaks` | objects that outlived their context, and objects that exist now |
//! | `errors` | rejected calls by code; "not ready" (600) is not an error |
//!
//! In a broken context, calls that release something return the error, but what they release is not a leak. Freeing
//! memory waits for all streams of its context, as the driver does: if one hangs, the call does not return.
//!
//! `daq_simulated_memory` is not a function of the driver: through it, other simulated libraries find the memory behind
//! a device address.
//!
//! A persistent kernel (`daq_persistent`) blocks every call that waits for the device. Such a call is counted and logged
//! to stderr, and ends the process if it waits too long: a real program would hang.
//!
//! The library also replaces the run-time compiler `libnvrtc.so`: from any text that defines `on_frame` it makes code
//! with the entries that the text names.
//!
//! Not supported: running kernels (except those in `kernels.rs`, by name), peer access, memory pools, external memory,
//! capture across several streams.

mod attributes;
mod code;
mod echo;
mod faults;
mod kernels;
mod options;
mod persistent;
mod ptx;
mod report;
mod sys;

pub use options::Options;
