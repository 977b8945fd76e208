//! System calls of this crate, one documented function each.

pub(crate) mod signal;
