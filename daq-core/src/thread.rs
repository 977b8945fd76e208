//! The CPU cores of threads.

pub use crate::sys::thread::{allowed_cores, current_core, pin, wake_on_time};
