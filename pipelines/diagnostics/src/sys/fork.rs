//! What a child of this process may do with its BAR mappings.

use daq_core::gpu::bar_mapping::{BarMapping, BarMappingError};
use std::io;

/// Result of a child that used a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// Every use was refused because the process is a fork.
    Refused,
    /// A use succeeded, or failed for another reason.
    Allowed,
    /// The child was ended by this signal.
    Signal(i32),
}

/// Forks a child that tries to store to a mapping and to load from it.
pub(crate) fn child_uses(mapped: &BarMapping) -> io::Result<Child> {
    const REFUSED: i32 = 0;
    const ALLOWED: i32 = 1;
    // SAFETY: other threads may hold locks at the moment of the fork. The child takes no lock and allocates nothing: it
    // calls the mapping, whose checks are a few loads and whose errors are numbers, and ends with `_exit`, which runs
    // no exit handlers.
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
            // SAFETY: ends the child.
            unsafe { libc::_exit(if is_all { REFUSED } else { ALLOWED }) }
        }
        child => {
            let mut status = 0;
            loop {
                // SAFETY: waits for the child just created, with valid memory for the status.
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
