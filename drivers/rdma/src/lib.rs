//! RDMA for daq: NICs, memory regions, and streams of frames from one host to another.
//!
//! ```text
//!   verbs.rs the interface: a NIC, memory regions, queue pairs
//!     ├─ sys/       hardware NICs: libibverbs and librdmacm, opened at run time
//!     └─ emulated/  an emulated NIC in this process, over TCP
//!   registration/ registers a region by dma-buf, nvidia-peermem or as host memory; records every failure
//!     └─ set.rs     registers regions with the NICs of all rails, as the device of a DMA engine
//!   connect/      connects two hosts by rdma_cm or by a plain TCP exchange
//!   stream/       frames over queue pairs: greeting, slots, records, credits, resuming after an interruption
//! ```
//! The source and the sink `rdma` both use `stream`; neither uses the other.

pub mod connect;
pub mod emulated;
pub mod nics;
pub mod registration;
pub mod stream;
pub mod sys;
pub mod verbs;
