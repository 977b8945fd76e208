//! Tests of sinks that start processes: readers in Python, processes to kill, small disks and other users.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod file_full;
mod lock_users;
mod segment_full;
mod segment_kill;
mod sigmf_python;
#[path = "../support.rs"]
mod support;
mod zarr_python;
mod zarr_sink;
