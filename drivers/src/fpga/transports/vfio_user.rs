//! The vfio-user protocol: access to a PCI device in another process over a UNIX socket.
//!
//! Version 0.1 of the protocol, as specified by the libvfio-user project. This module contains the parts of both sides,
//! the [messages](wire) and the [`socket`], and the client, [`open`]. The server is in the crate `daq-emulators`.

mod client;
pub mod socket;
pub mod wire;

pub use client::open;
