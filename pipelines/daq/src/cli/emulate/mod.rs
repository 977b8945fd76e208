//! `daq sim-card` and `daq sim-hsb`: emulated devices for a source in another process.

pub(super) mod card;
pub(super) mod hsb;
