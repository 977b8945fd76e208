//! The CPU cores of threads.

pub(crate) use crate::sys::thread::{allowed_cores, current_core};
pub use crate::sys::thread::{pin, wake_on_time};
