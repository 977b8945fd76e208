//! All calls of foreign functions in daq-core, each wrapped by one thin function.

pub(crate) mod copy;
pub(crate) mod cuda;
pub(crate) mod gdrapi;
pub(crate) mod guard;
pub(crate) mod memory;
pub(crate) mod nvrtc;
pub(crate) mod reference_copy;
pub(crate) mod store;
pub(crate) mod thread;
pub(crate) mod vulkan;
