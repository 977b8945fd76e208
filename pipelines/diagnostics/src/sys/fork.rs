//! What a child of this process may do with its mappings.

use daq_core::gpu::bar_mapping::{BarMapping, BarMappingError};
use std::io;

/// What became of a child that used a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// Every use was refused because the process is a fork.
    Refused,
    /// A use was allowed, or was refused for another reason.
    Allowed,
    /// A signal with this number ended it.
    Signal(i32),
}

/// Has a child try to store to a mapping and to load from it.
pub(crate) fn child_uses(mapped: &BarMapping) -> io::Result<Child> {
    const REFUSED: i32 = 0;
    const ALLOWED: i32 = 1;
    // SAFETY: other threads may hold locks at the moment of the fork. The child takes none and allocates nothing: it
    // asks the mapping, whose checks are a few loads and whose errors are numbers, and ends by `_exit`, which runs
    // nothing that was to be run at an exit.
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
                // SAFETY: waits for the child just made, with a place for one number.
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
