//! Determines the size of a terminal.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Returns the columns and rows of the terminal `fd`; `None` if `fd` is not a terminal or its size is unknown.
pub(crate) fn size(fd: BorrowedFd<'_>) -> Option<(u16, u16)> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: `fd` is open for the length of the call, and TIOCGWINSZ writes one `winsize` to the address given.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (result == 0 && size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}
