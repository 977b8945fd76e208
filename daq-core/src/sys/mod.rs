//! All calls of foreign functions in daq-core, each wrapped by one thin function.

pub mod copy;
pub mod cuda;
pub mod gdrapi;
pub mod guard;
pub mod memory;
pub mod nvrtc;
pub mod reference_copy;
pub mod store;
pub mod thread;
pub mod vulkan;
