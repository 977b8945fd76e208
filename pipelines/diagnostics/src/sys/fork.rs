//! Tests whether a forked child of this process can use BAR mappings.

use daq_core::gpu::bar_mapping::{BarMapping, BarMappingError};
use std::io;

/// Result of a child that tried to use a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// Every use was rejected because the child is a forked process.
    Refused,
    /// A use succeeded, or failed for another reason.
    Allowed,
    /// The signal with this number ended the child.
    Signal(i32),
}

/// Forks a child that tries to store to a mapping and to load from it.
pub(crate) fn child_uses(mapped: &BarMapping) -> io::Result<Child> {
    const REFUSED: i32 = 0;
    const ALLOWED: i32 = 1;
    // SAFETY: other threads may hold locks at the time of the fork. The child takes no lock and allocates no memory. It
    // calls the mapping, whose checks are a few loads and whose errors are numbers. It ends with `_exit`, which runs no
    // exit handlers.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let mut byte = [0];
            let is_refused = |result: Result<(), BarMappingError>| {
                matches!(result, Err(BarMappingError::Forked { .. }))
            };
            let is_all = is_refused(mapped.check())
                && is_refused(mapped.copy_to(0, &[1]))
                && is_refused(mapped.copy_from(0, &mut byte))
                && is_refused(mapped.stores().map(|_| ()));
            // SAFETY: `_exit` has no preconditions; it ends the child.
            unsafe { libc::_exit(if is_all { REFUSED } else { ALLOWED }) }
        }
        child => {
            let mut status = 0;
            loop {
                // SAFETY: `child` is the child that was just created, and `status` is valid memory for the result.
                let answer = unsafe { libc::waitpid(child, &raw mut status, 0) };
                if answer == child {
                    break;
                }
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            if libc::WIFSIGNALED(status) {
                return Ok(Child::Signal(libc::WTERMSIG(status)));
            }
            Ok(match libc::WEXITSTATUS(status) {
                REFUSED => Child::Refused,
                _ => Child::Allowed,
            })
        }
    }
}
