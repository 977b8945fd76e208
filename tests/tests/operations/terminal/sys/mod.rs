//! Pseudo terminals.

use std::fs::File;
use std::os::fd::FromRawFd;

/// Opens a pseudo terminal of `columns` and `rows`. Returns its master, which a terminal emulator reads, and its slave.
pub fn open(columns: u16, rows: u16) -> (File, File) {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: the call writes one descriptor to each of the first two addresses and reads `size`; null is allowed for
    // the name and the modes.
    let result = unsafe {
        libc::openpty(
            &raw mut master,
            &raw mut slave,
            std::ptr::null_mut(),
            std::ptr::null(),
            &raw const size,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    for descriptor in [master, slave] {
        // SAFETY: the descriptor was just opened; the call only sets its flag. A child that inherited the master would
        // keep the terminal open.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: the default action is not a function of this process. Under nohup, children would ignore the signal.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
    // SAFETY: both descriptors were just opened and are closed by no other code.
    unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) }
}
