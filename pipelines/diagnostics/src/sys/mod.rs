//! Foreign calls of this crate, one documented function each.

pub(crate) mod device_code;
pub(crate) mod fork;
pub(crate) mod nic_memory;
pub(crate) mod transfer;
