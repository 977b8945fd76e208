//! The sources' foreign calls: one thin, documented function or type a call, and the only `unsafe` of this crate.

pub mod bpf;
pub mod dmabuf;
pub mod filter;
pub mod interface;
#[cfg(test)]
pub mod own_network;
pub mod place;
pub mod recv;
pub mod scatter;
pub mod send;
pub mod socket;
pub mod vfio;
pub mod vfio_bar;
pub mod vfio_map;
pub mod words;
pub mod xdp;

#[cfg(test)]
mod tests;
