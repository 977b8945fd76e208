//! UDP sockets that send many packets with few system calls, and the network interfaces that they use.
//!
//! The crate is shared by sources, emulated senders, and the sink `udp`.

#![warn(unreachable_pub)]

pub mod interface;
pub mod send;
mod sys;

pub use sys::set_int;
