//! GPUs: driver calls, memory that the CPU can write to, and doorbells.
//!
//! | Module | Content |
//! |---|---|
//! | [`driver`] | devices, memory, streams and code, through the CUDA driver |
//! | [`bar_mapping`] | GPU memory that the CPU can write to |
//! | [`doorbell`] | words through which the CPU and a persistent kernel notify each other |

mod backend;
pub mod bar_mapping;
mod dispatch;
pub mod doorbell;
pub mod driver;
mod event;

pub use backend::{Backend, Writer};
pub use dispatch::Dispatch;
pub use event::Event;
