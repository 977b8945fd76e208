//! The vfio-user protocol: a PCI device over a UNIX socket, so that it may live in another process.
//!
//! Version 0.1 of the protocol as the libvfio-user project specifies it. What both sides need is here: [messages](wire) and
//! [their way through a socket](socket); the device's side is the crate `daq-emulators`, the user's
//! [`open`].

mod client;
pub mod socket;
pub mod wire;

pub use client::open;
