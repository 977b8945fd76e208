//! RDMA for daq: NICs, memory regions, and frame streams from one host to another.
//!
//! ```text
//!   verbs.rs the interface: a NIC, memory regions, queue pairs
//!     ├─ sys/       hardware NICs: libibverbs and librdmacm, opened at run time
//!     └─ emulated/  an emulated NIC in this process, over TCP
//!   registration/ registers a region by dma-buf, by nvidia-peermem or as host memory; records every failure
//!     └─ set.rs     registers regions with the NICs of all rails; a DMA engine uses the set as its device
//!   engine.rs     what DMA engines over queue pairs have in common: slots, receives, faults
//!   connect/      connects two hosts by rdma_cm or by an exchange over plain TCP
//!   stream/       sends frames over queue pairs: greetings, slots, records, credits, resuming after an interruption
//! ```
//! The source and the sink `stream` both use `stream`; neither uses the other.

#![deny(unreachable_pub)]

pub mod connect;
pub mod emulated;
pub mod engine;
pub mod nics;
pub mod registration;
pub mod stream;
pub mod sys;
pub mod verbs;
