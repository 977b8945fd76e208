//! Foreign calls of this crate, one documented function each.

pub(crate) mod blocks;
pub(crate) mod device_code;
pub(crate) mod upload;
