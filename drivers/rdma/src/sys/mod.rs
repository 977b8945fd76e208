//! Hardware NICs by libibverbs and librdmacm, which are loaded at run time. The other `unsafe` code of this crate is in
//! `emulated/sys`, which moves bytes between sockets and memory.
//!
//! ```text
//!   device.rs         the driver, the ports and the addresses of a NIC
//!   context.rs        an opened NIC: protection domain, asynchronous events
//!   nic.rs            implements the trait `Nic`
//!     ├─ memory.rs      memory registrations
//!     ├─ queue_pair.rs  requests, completions, waiting
//!     ├─ objects.rs     queue pair, completion queue, channel, address handle
//!     └─ modify.rs      queue pair state transitions, with an endpoint or with attributes from rdma_cm
//!   cm.rs             identifiers and events of rdma_cm
//!   errno.rs          explanations and fixes for errors
//!   ffi/              types, constants and functions of the libraries
//! ```
//! Queue pairs and registrations keep the NIC alive, and the NIC keeps its context alive. Objects are therefore
//! destroyed in this order: queue pair, completion queue, channel, protection domain, context.
//!
//! Tested only on soft-RoCE (Linux 6.12, rdma-core 44), not on hardware such as a ConnectX. The registration of GPU
//! memory, InfiniBand and the code for mlx5 are therefore untested.
//!
//! This module calls the C libraries directly, because no published wrapper supports the private data of rdma_cm and
//! the events of a device.

pub(crate) mod cm;
pub mod device;
mod errno;

mod context;
mod ffi;
mod memory;
mod modify;
mod nic;
mod objects;
mod queue_pair;

use crate::verbs::{Nic, VerbsError};
use std::sync::Arc;

pub(crate) use queue_pair::VerbsQueuePair;

/// Returns the names of all NICs. If libibverbs or the RDMA support of Linux is missing, the error names what to
/// install or load.
pub fn devices() -> Result<Vec<String>, VerbsError> {
    context::names()
}

/// Opens the NIC `name` at `port`, with an entry of the port's GID table. Without an index, daq chooses the
/// entry.
pub fn open(name: &str, port: u8, gid_index: Option<u8>) -> Result<Arc<dyn Nic>, VerbsError> {
    Ok(Arc::new(nic::VerbsNic::open(name, port, gid_index)?))
}

#[cfg(test)]
mod tests {
    /// If libibverbs or the RDMA support of Linux is missing, the error must name what to install or load, without a
    /// panic.
    #[test]
    fn missing_library_is_reported() {
        match super::devices() {
            Ok(devices) => println!("this host has libibverbs, and {} cards", devices.len()),
            Err(error) => assert!(
                error.why.contains("install rdma-core") || error.why.contains("modprobe ib_uverbs"),
                "{error}"
            ),
        }
        let error = super::open("none_7", 1, None).unwrap_err();
        assert!(!error.why.is_empty(), "{error}");
    }
}
