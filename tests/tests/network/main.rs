//! Tests the network sources: UDP sockets, SPEAD, AF_XDP, malformed packets, sensor bridges and RDMA.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod gige;
mod hostile;
mod hsb;
mod kept;
mod nats;
mod numbered_by_time;
mod rdma;
mod senders;
mod spead2;
mod spead2_detected;
mod spead2_parts;
mod spead2_sizes;
mod startup;
mod stream;
mod udp_sink;
mod udp_sockets;
mod udp_window;
mod veth;
mod xdp;
