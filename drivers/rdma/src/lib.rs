//! RDMA for daq: network cards, memory that is registered with them, streams of frames from one host to another.
//!
//! ```text
//!   verbs.rs      the seam: a card, memory registered with it, a queue pair
//!     ├─ sys/       libibverbs and librdmacm, opened at run time
//!     └─ emulated/  the same by this process, over TCP
//!   registration/ which way a region is registered: dma-buf, nvidia-peermem, host memory; every refusal is kept
//!     └─ set.rs     a region's keys, of every card, as the memory of a DMA engine's device
//!   connect/      how two hosts find each other: rdma_cm, or a plain TCP exchange
//!   stream/       frames over queue pairs: greeting, slots, records, credits, going on after a break
//! ```
//! The source and the sink `rdma` are thin users of `stream`; they never meet.

pub mod connect;
pub mod emulated;
pub mod nics;
pub mod registration;
pub mod stream;
pub mod sys;
pub mod verbs;
