//! Foreign calls of the kernels.

pub(crate) mod device_code;
