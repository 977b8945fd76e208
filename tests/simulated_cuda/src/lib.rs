//! A stand-in for the CUDA driver library `libcuda.so.1`, so that the whole of daq runs on machines without a GPU.
//!
//! It is strict where the driver forgives, since it exists to find mistakes: device memory cannot be touched through
//! its address and is never zero by itself, streams are threads of their own, what is out of order is refused with
//! the code that the driver documents, and everything is counted.
//!
//! Two variables shape it. `DAQ_SIMULATED_CUDA` is a list of options, see [`Options`]; an option that is not known
//! ends the process. `DAQ_SIMULATED_CUDA_REPORT` names a file that gets a report in JSON when a context ends and when
//! the process does:
//!
//! | key | meaning |
//! |---|---|
//! | `calls` | calls of each function |
//! | `copied` | bytes copied: `host_to_device`, `device_to_host`, `device_to_device`, `host_to_host` |
//! | `copies`, `fills`, `launches` | operations that streams have executed |
//! | `resident` | frames that kernels which stay have begun |
//! | `blocked` | calls that had to wait for a kernel that stays |
//! | `unregistered` | copies from or to host memory that the driver did not know: `copies` and their `bytes` |
//! | `leaks` | what lived on when its context ended, and what lives now |
//! | `errors` | calls that were refused, by their code; answers "not ready" (600) are no errors |
//!
//! In a broken context calls that give something back say that it is broken, but what they give back is no leak. Freeing
//! memory waits for all streams of its context, as the driver does: where one hangs, it does not return.
//!
//! `daq_simulated_memory` is no function of the driver's: through it the stand-ins of other libraries find the memory
//! behind a device address.
//!
//! A kernel that stays on its device (`daq_resident`) holds up every call that waits for the device. Such a call is
//! counted and told on stderr, and ends the process if it waits for too long: a program that makes one would hang.
//!
//! The library is a stand-in for the run-time compiler `libnvrtc.so` too: it makes, of any text that defines
//! `on_frame`, code with the entries that the text names.
//!
//! What it does not do: run kernels (only those in `kernels.rs`, by name), peer access, memory pools, external
//! memory, capture across several streams.

mod attributes;
mod code;
mod echo;
mod faults;
mod kernels;
mod options;
mod ptx;
mod report;
mod resident;
mod sys;

pub use options::Options;
