//! Linux system calls of the sources, one thin function or type per call. Only these modules contain `unsafe` code of
//! this crate.

pub mod bpf;
pub mod dmabuf;
pub mod filter;
pub mod interface;
#[cfg(test)]
pub mod own_network;
pub mod payload;
pub mod recv;
pub mod scatter;
pub mod send;
pub mod socket;
pub mod vfio;
pub mod vfio_bar;
pub mod vfio_map;
pub mod xdp;

#[cfg(test)]
mod tests;
