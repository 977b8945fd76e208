//! Recognises the protocols of GigE Vision.

mod gvcp;
mod gvsp;

use crate::packet::recognise::Recogniser;

/// How packets of cameras are recognised.
pub(super) const RECOGNISERS: &[Recogniser] = &[
    Recogniser::new(gvcp::recognise),
    Recogniser::new(gvsp::recognise),
];
