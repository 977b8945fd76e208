//! The process at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Returns the process ID, the user ID and the group ID of the process that has connected to `socket`. The process ID is 0 for a process
/// in another PID namespace, which `rustix` cannot represent.
pub(crate) fn credentials(socket: BorrowedFd<'_>) -> io::Result<(u32, u32, u32)> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: Linux writes at most `length` bytes to `peer`, which has that size and outlives the call, and the number of
    // written bytes to `length`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((peer.pid.cast_unsigned(), peer.uid, peer.gid))
}

/// Returns the supplementary groups of the process that has connected to `socket`.
pub(crate) fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let mut length = libc::socklen_t::try_from(size_of_val(&*groups)).unwrap_or(0);
        // SAFETY: Linux writes at most `length` bytes to `groups`, which has that size and outlives the call, and the number
        // of bytes to `length`.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}
