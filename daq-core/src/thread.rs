//! Where threads run.

pub use crate::sys::thread::{allowed_cores, current_core, pin, wake_on_time};
