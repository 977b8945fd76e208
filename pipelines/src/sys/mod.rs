//! System calls and other foreign calls of this crate: one thin, documented function each.

pub(crate) mod clock;
pub(crate) mod group;
pub(crate) mod peer;
pub(crate) mod terminal;
