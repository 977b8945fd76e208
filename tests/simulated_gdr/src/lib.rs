//! A replacement for GDRCopy's library `libgdrapi.so.2`, based on the device memory of `daq-simulated-cuda`. Stores of
//! the CPU through a mapping are visible to the simulated devices.
//!
//! It is stricter than the real library: mapped memory cannot be unpinned, and only whole GPU pages can be mapped. Two
//! environment variables configure it. `DAQ_SIMULATED_GDR` is a list of options, see [`Options`]; an unknown option
//! ends the process. `DAQ_SIMULATED_GDR_REPORT` names a file. Each call of a function that acquires or releases a
//! resource is appended to this file as a line `NAME RESULT`.

mod options;
mod sys;

pub use options::Options;
