//! A network namespace for tests: interfaces, addresses and ports that no other process uses.

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

/// Moves the calling thread, and what it starts afterwards, into a network namespace of its own, which goes with them.
pub fn enter() -> Result<(), Errno> {
    // SAFETY: the table of descriptors stays shared; only the network that this thread sees becomes another.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
}
