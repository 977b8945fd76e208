//! Linux system calls of the sources, one thin function or type per call. Only these modules contain `unsafe` code of
//! this crate.

pub use daq_net::send;

pub(crate) mod bpf;
pub mod dmabuf;
pub(crate) mod filter;
pub(crate) mod inbox;
pub mod interface;
#[cfg(test)]
pub(crate) mod own_network;
pub mod packet_socket;
pub(crate) mod payload;
pub mod recv;
pub(crate) mod scatter;
pub mod socket;
pub(crate) mod vfio;
pub mod vfio_bar;
pub(crate) mod vfio_map;
pub(crate) mod xdp;

#[cfg(test)]
mod tests;
