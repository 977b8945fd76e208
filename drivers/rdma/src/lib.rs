//! Frame streams from one host to another, and what they need: RDMA NICs, memory regions, and a transport over plain TCP.
//!
//! ```text
//!   verbs.rs the interface: a NIC, memory regions, queue pairs
//!     ├─ sys/       hardware NICs: libibverbs and librdmacm, opened at run time
//!     ├─ emulated/  an emulated NIC in this process, for tests
//!     └─ tcp/       the transport `tcp`: writes over plain TCP connections, without a NIC
//!   registration/ registers a region by dma-buf, by nvidia-peermem or as host memory; records every failure
//!     └─ set.rs     registers regions with the NICs of all rails; a DMA engine uses the set as its device
//!   wait.rs       waits for several queue pairs at once
//!   engine.rs     what DMA engines over queue pairs have in common: slots, receives, faults
//!   connect/      connects two hosts by rdma_cm or by an exchange over plain TCP
//!   wire.rs       the greetings and records of a stream
//!   stream/       sends frames over queue pairs: greetings, slots, records, credits, resuming after an interruption
//! ```
//! The source and the sink `stream` both use `stream`; neither uses the other.

#![deny(unreachable_pub)]

pub mod connect;
pub mod emulated;
pub mod engine;
pub mod nics;
mod random;
pub mod registration;
pub mod stream;
pub mod sys;
pub mod tcp;
pub mod verbs;
mod wait;
pub mod wire;
