//! Frame streams over queue pairs.

pub mod receiver;
pub mod sender;
mod sys;
pub mod wire;
