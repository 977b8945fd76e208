//! Tests the operation of a run: recorded files, faults, interruptions, resource limits, monitoring and terminals.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod attach;
mod faults;
mod files;
mod interruptions;
mod monitoring;
mod resource_limits;
mod terminal;
