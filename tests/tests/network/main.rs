//! Tests the network sources: UDP sockets, SPEAD, AF_XDP and malformed packets.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod hostile;
mod senders;
mod spead2;
mod spead2_detected;
mod udp_sockets;
mod udp_window;
mod veth;
mod xdp;
