//! Tests the operation of a run: recorded files, faults, interruptions, resource limits, monitoring, the page for browsers, and
//! terminals.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod attach;
mod bench_charts;
mod faults;
mod files;
mod history;
mod interruptions;
mod monitoring;
mod page;
mod resource_limits;
mod sender;
mod start_and_end;
mod terminal;
