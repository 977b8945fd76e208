//! Recognises packets with a header of fixed size: those of known instruments, and any header with counters.

mod behaviour;
mod e2sar;
pub(crate) mod fixed;
mod header;
mod headers;
mod psi;
mod seconds;

use crate::packet::recognise::Recogniser;

/// How packets that the format `raw` can parse are recognised.
pub(super) const RECOGNISERS: &[Recogniser] = &[
    Recogniser::new(header::recognise),
    Recogniser::new(e2sar::recognise),
    Recogniser::new(psi::recognise),
];
