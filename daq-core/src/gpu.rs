//! GPUs: driver calls and memory that the CPU can write to.
//!
//! | Module | Content |
//! |---|---|
//! | [`driver`] | devices, memory, streams and code, through the CUDA driver |
//! | [`bar_mapping`] | GPU memory that the CPU can write to |

mod backend;
pub mod bar_mapping;
mod dispatch;
pub mod driver;
mod event;

pub use backend::{Backend, Writer};
pub use dispatch::Dispatch;
pub use event::Event;
