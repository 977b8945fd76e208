//! A replacement for the CUDA driver library `libcuda.so.1`. It allows all of daq to run on machines without a GPU.
//!
//! It is stricter than the driver, because its purpose is to find errors. Device memory cannot be accessed by the CPU
//! at its device address and is never zeroed. Copies and kernels of a device cannot access another device's memory,
//! unless `cuMemSetAccess` grants the access. Streams are separate threads. Calls in the wrong order are rejected with
//! the documented code. All calls and operations are counted.
//!
//! Two environment variables configure it. `DAQ_SIMULATED_CUDA` is a list of options, see [`Options`]; an unknown
//! option ends the process. `DAQ_SIMULATED_CUDA_REPORT` names a file for a JSON report, written when the process
//! ends:
//!
//! | key | meaning |
//! |---|---|
//! | `calls` | calls of each function |
//! | `copied` | bytes copied: `host_to_device`, `device_to_host`, `device_to_device` (within a device), `peer` (between devices), `host_to_host` |
//! | `copies`, `fills`, `launches` | operations that streams have executed |
//! | `persistent` | frames that persistent kernels have started |
//! | `blocked` | calls that had to wait for a persistent kernel |
//! | `unregistered` | copies from or to host memory that is unknown to the driver: `copies` and their `bytes` |
//! | `leaks` | objects that exist at the end |
//! | `errors` | rejected calls by code; "not ready" (600) is not an error |
//!
//! In a broken context, calls that release a resource return the error, but the resource does not count as a leak.
//! Freeing memory waits for all streams of its context, as with the driver. If one of the streams hangs, the call does
//! not return.
//!
//! `daq_simulated_memory` is not a function of the driver. Other simulated libraries use it to find the memory behind a
//! device address.
//!
//! A persistent kernel (`daq_persistent`) blocks every call that waits for the device. Such a call is counted and
//! logged to stderr. It ends the process if it waits too long, where a real program would hang.
//!
//! The library also replaces the run-time compiler `libnvrtc.so`. From any text that defines `on_frame` it generates
//! code with the entries that occur in the text.
//!
//! Only functions that daq calls are simulated. Not supported: running kernels (except those in `kernels.rs`, by name), peer access to plain allocations, memory pools, external memory,
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
