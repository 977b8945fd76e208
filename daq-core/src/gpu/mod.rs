//! GPUs: what every room above may know of them.

mod backend;
mod dispatch;
mod event;

pub use backend::{Backend, Writer};
pub use dispatch::Dispatch;
pub use event::Event;
