//! Frame streams over queue pairs.

pub mod receiver;
pub mod sender;
pub mod wire;
