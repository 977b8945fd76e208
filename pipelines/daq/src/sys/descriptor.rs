//! File descriptors that this process inherits.

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;

/// Takes the inherited file descriptor `number`, which no other code of this process may use. Child processes do not inherit
/// it.
pub(crate) fn take(number: i32) -> io::Result<File> {
    // SAFETY: these commands only read and set flags of a descriptor, and fail if `number` is not open.
    let result = unsafe {
        match libc::fcntl(number, libc::F_GETFD) {
            -1 => -1,
            flags => libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC),
        }
    };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open. The user passed it to this process for this purpose only, and the caller is called before
    // the process opens descriptors of its own, so no other code owns it.
    Ok(unsafe { File::from_raw_fd(number) })
}
