//! Network cards by libibverbs and librdmacm, which are opened at run time. Other `unsafe` of this
//! crate is in `emulated/sys`, which moves bytes between sockets and memory, and in `stream/sys`, memory that cards share.
//!
//! ```text
//!   device.rs   which cards there are, their ports and addresses
//!   context.rs  a card, opened; its protection domain; what happens to it
//!   nic.rs           the seam's `Nic` over it
//!     ├─ memory.rs      registrations
//!     ├─ queue_pair.rs  work, completions, waiting
//!     ├─ objects.rs     queue pair, completion queue, channel, address handle
//!     └─ modify.rs      from made to connected, by an endpoint or by what rdma_cm says
//!   cm.rs            rdma_cm's identifiers and events
//!   errno.rs    what a refusal means and what helps
//!   ffi/        the libraries' types, constants and functions
//! ```
//! Ownership: a queue pair and a registration keep the NIC alive, the NIC keeps its context. So they are destroyed in
//! this order: queue pair, completion queue, channel, protection domain, context.
//!
//! This has run on soft-RoCE (Linux 6.12, rdma-core 44), and not yet on a ConnectX or another card of hardware: the
//! registration of a GPU's memory, InfiniBand, and what is mlx5's own are therefore unproven.
//!
//! The calls are those of the C libraries, without a published wrapper: none of them has the private data of rdma_cm and
//! a device's events.

pub(crate) mod cm;
pub mod device;
pub mod errno;

mod context;
mod ffi;
mod memory;
mod modify;
mod nic;
mod objects;
mod queue_pair;

use crate::verbs::{Nic, VerbsError};
use std::sync::Arc;

pub use device::{Address, AddressKind, DeviceInfo, PortInfo};
pub use queue_pair::VerbsQueuePair;

/// The cards there are. An error where libibverbs or the kernel's part is absent says so in a sentence.
pub fn devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    let names = context::names()?;
    Ok(names
        .into_iter()
        .map(|name| device::info(device::SYSFS.as_ref(), &name))
        .collect())
}

/// Opens the card `name` at `port`, with an entry of that port's table of addresses, or the best one there
/// ([`device::choose`]).
pub fn open(name: &str, port: u8, gid_index: Option<u8>) -> Result<Arc<dyn Nic>, VerbsError> {
    Ok(Arc::new(nic::VerbsNic::open(name, port, gid_index)?))
}

#[cfg(test)]
mod tests {
    /// Without libibverbs, or without the kernel's part, there is a sentence with what to install or load; never a panic.
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
