//! The source `fpga`: a card's DMA engine, driven from user space.

pub mod device;
pub mod dmabuf;
pub mod inproc;
pub mod iova;
pub mod owner;
pub mod vfio;
