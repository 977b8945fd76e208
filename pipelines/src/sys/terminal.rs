//! Size of a terminal, and which signals this process ignores.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Returns the columns and rows of the terminal `fd`; `None` if it is no terminal or does not know its size.
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

/// Returns whether `signal` is ignored, as under `nohup`.
pub(crate) fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: all fields of `sigaction` are integers, pointers that may be null or sets of bits, so zeroes are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: with a null new action the call only writes the present action to the address given.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}
