//! Tests of emulated devices over every transport, and fuzz targets of their protocols.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

#[path = "common/bench.rs"]
mod bench;
mod cards;
mod fpga_cards;
mod fuzz_vfio_user;
mod hsb_sensor;
mod vfio_user_messages;
