//! A stand-in for GDRCopy's library `libgdrapi.so.2`, over the device memory of `daq-simulated-cuda`: what the CPU stores
//! through a mapping is what the simulated devices see.
//!
//! It is strict where the library forgives: what is mapped cannot be unpinned, and what is no page of a GPU cannot be
//! mapped. Two variables shape it. `DAQ_SIMULATED_GDR` is a list of options, see [`Options`]; an option that is not known
//! ends the process. `DAQ_SIMULATED_GDR_REPORT` names a file to which each call of a function that takes or gives back
//! something is appended as a line, `NAME ANSWER`.

mod options;
mod sys;

pub use options::Options;
