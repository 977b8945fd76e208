//! System calls of this crate, one documented function each.

pub(crate) mod descriptor;
pub(crate) mod signal;
