//! Tests daq with an emulated Holoscan Sensor Bridge over the loopback interface.
//!
//! The whole stream of a test fits into the socket's buffer, so nothing is lost even on a slow machine.

mod bytes;
mod control;
mod faults;
mod hostile;
mod queue_pair;
mod setup;
