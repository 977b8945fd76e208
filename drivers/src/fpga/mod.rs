//! The source `fpga`: a card's DMA engine, driven from user space.

pub mod device;
pub mod owner;
pub mod vfio;
pub mod inproc;
pub mod iova;
pub mod dmabuf;
