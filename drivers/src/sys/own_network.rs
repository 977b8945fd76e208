//! A network namespace for tests: interfaces, addresses and ports that no other process uses.

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

/// Moves the calling thread, and threads that it starts later, into a new network namespace, which ends with them.
pub(crate) fn enter() -> Result<(), Errno> {
    // SAFETY: the file descriptor table stays shared with the other threads; only the network namespace of this thread
    // changes.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
}
