//! System calls of this crate: one thin, documented function each.

pub(crate) mod signal;
