//! The whole of daq with an emulated Holoscan Sensor Bridge over the loopback interface.
//!
//! A test's whole stream fits into the socket's buffer, so that nothing is lost however slow the machine is.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod bytes;
mod control;
mod faults;
mod hostile;
mod queue_pair;
mod setup;
