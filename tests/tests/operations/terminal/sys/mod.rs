//! Opens pseudo terminals.

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd};

const fn size(columns: u16, rows: u16) -> libc::winsize {
    libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Changes the size of the pseudo terminal with the given master side.
pub fn resize(master: &File, columns: u16, rows: u16) {
    let size = size(columns, rows);
    // SAFETY: the request only reads one `winsize`, which is valid during the call. The descriptor is open.
    let result = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Opens a pseudo terminal with `columns` columns and `rows` rows. Returns its master side, which a terminal emulator
/// reads, and its slave side.
pub fn open(columns: u16, rows: u16) -> (File, File) {
    let size = size(columns, rows);
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: the first two pointers are valid for one descriptor each, to which the call writes. `size` is valid and
    // only read. Null is allowed for the name and the modes.
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
        // SAFETY: the descriptor was just opened, and the call only sets its flag. Without the flag, a child process
        // would inherit the master side and keep the terminal open.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: SIG_DFL installs no handler in this process. It is needed because under nohup, child processes would
    // ignore the signal.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
    // SAFETY: both descriptors were just opened, and no other code owns or closes them.
    unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) }
}
