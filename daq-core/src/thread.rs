//! Where threads run.

pub use crate::sys::thread::{allowed_cores, pin, wake_on_time};
