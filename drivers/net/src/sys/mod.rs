//! Linux system calls of the sockets that send. Only this module contains `unsafe` code of this crate.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Socket option and type of control message for the send time, from `asm-generic/socket.h`.
const SO_TXTIME: i32 = 61;
const SCM_TXTIME: i32 = SO_TXTIME;

/// Sets a socket option of type `int`.
pub fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_bytes(fd, level, name, &value.to_ne_bytes())
}

/// Sets a socket option to the bytes of its value.
pub(crate) fn set_bytes(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: `value` lives until the call returns, `length` is its size, and Linux only reads it. The descriptor is
    // open, because it is borrowed.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), length) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Allows each message of a socket to have a send time of `CLOCK_MONOTONIC`. The queueing discipline `fq` then delays
/// messages until their time; others ignore it.
pub(crate) fn allow_send_times(fd: BorrowedFd<'_>) -> io::Result<()> {
    // `struct sock_txtime` of `linux/net_tstamp.h`: the clock, and flags.
    let [a, b, c, d] = libc::CLOCK_MONOTONIC.to_ne_bytes();
    set_bytes(fd, libc::SOL_SOCKET, SO_TXTIME, &[a, b, c, d, 0, 0, 0, 0])
}

/// The time of `CLOCK_MONOTONIC` in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// One message of a batch: packets that Linux gets as one buffer.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The packets, as indices.
    pub packets: Range<usize>,
    /// Size in bytes of the packets into which Linux splits the message, of which the last may be shorter; 0 if Linux
    /// does not split it.
    pub segment: u16,
    /// The send time, see [`allow_send_times`].
    pub due_ns: Option<u64>,
}

/// Number of slices that a packet consists of.
pub(crate) const PIECES: usize = 3;
/// Number of bytes of the control messages of one message: the segment size and the send time, each with its header.
const CONTROL_BYTES: usize = control_space(size_of::<u16>()) + control_space(size_of::<u64>());

/// Returns the size of a control message with a value of `bytes` bytes: `CMSG_SPACE` on machines with 64-bit words.
const fn control_space(bytes: usize) -> usize {
    size_of::<libc::cmsghdr>() + bytes.next_multiple_of(8)
}

/// Memory for the arguments of `sendmmsg`, reused by all calls.
#[derive(Debug, Default)]
pub(crate) struct SendBatch {
    pieces: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    controls: Vec<[u64; CONTROL_BYTES / 8]>,
}

// SAFETY: the pointers in the vectors are only used during a call of `send`, which sets all of them.
unsafe impl Send for SendBatch {}

impl SendBatch {
    /// Creates memory for `messages` messages with `packets` packets in total.
    pub(crate) fn new(messages: usize, packets: usize) -> Self {
        Self {
            pieces: Vec::with_capacity(packets * PIECES),
            headers: Vec::with_capacity(messages),
            controls: Vec::with_capacity(messages),
        }
    }

    /// Sends `messages` with one call of `sendmmsg`. `packet` returns the slices of a packet. Returns the number of
    /// messages that Linux accepted.
    pub(crate) fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        flags: i32,
        messages: &[Message],
        packet: impl Fn(usize) -> [&'a [u8]; PIECES],
    ) -> io::Result<usize> {
        self.pieces.clear();
        self.headers.clear();
        self.controls.clear();
        self.controls.resize(messages.len(), [0; CONTROL_BYTES / 8]);
        for message in messages {
            // SAFETY: `mmsghdr` is a plain C structure of integers and pointers, for which all zero is valid.
            let mut header: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
            let before = self.pieces.len();
            for piece in message.packets.clone().flat_map(&packet) {
                if !piece.is_empty() {
                    self.pieces.push(libc::iovec {
                        iov_base: piece.as_ptr().cast_mut().cast(),
                        iov_len: piece.len(),
                    });
                }
            }
            header.msg_hdr.msg_iovlen = self.pieces.len() - before;
            self.headers.push(header);
        }
        // From here on, the vectors do not change, so pointers to their elements stay valid.
        let mut pieces = self.pieces.as_mut_ptr();
        let controls = messages.iter().zip(&mut self.controls);
        for (header, (message, control)) in self.headers.iter_mut().zip(controls) {
            header.msg_hdr.msg_iov = pieces;
            pieces = pieces.wrapping_add(header.msg_hdr.msg_iovlen);
            let used = fill_control(control, message);
            if used > 0 {
                header.msg_hdr.msg_control = control.as_mut_ptr().cast();
                header.msg_hdr.msg_controllen = used;
            }
        }
        let vlen = libc::c_uint::try_from(messages.len()).unwrap_or(libc::c_uint::MAX);
        // SAFETY:
        // - Each of the `vlen` headers points to `msg_iovlen` elements of `pieces` and to the element of `controls` for
        //   its message; these vectors do not change until the call returns.
        // - The elements of `pieces` are slices with the lifetime `'a`, which ends after the call. Linux only reads them.
        // - The descriptor is open, because it is borrowed.
        let sent =
            unsafe { libc::sendmmsg(fd.as_raw_fd(), self.headers.as_mut_ptr(), vlen, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Writes the control messages of `message`. Returns their size in bytes.
fn fill_control(control: &mut [u64; CONTROL_BYTES / 8], message: &Message) -> usize {
    let mut used = 0;
    // `struct cmsghdr`: the length of header and value, the level, and the type; then the value.
    let mut put = |level: i32, kind: i32, value: u64, bytes: usize| {
        let mut level_and_type = [0; 8];
        level_and_type[..4].copy_from_slice(&level.to_ne_bytes());
        level_and_type[4..].copy_from_slice(&kind.to_ne_bytes());
        control[used] = (size_of::<libc::cmsghdr>() + bytes) as u64;
        control[used + 1] = u64::from_ne_bytes(level_and_type);
        control[used + 2] = value;
        used += control_space(bytes) / 8;
    };
    if message.segment > 0 {
        let [a, b] = message.segment.to_ne_bytes();
        let value = u64::from_ne_bytes([a, b, 0, 0, 0, 0, 0, 0]);
        put(libc::SOL_UDP, libc::UDP_SEGMENT, value, size_of::<u16>());
    }
    if let Some(due_ns) = message.due_ns {
        put(libc::SOL_SOCKET, SCM_TXTIME, due_ns, size_of::<u64>());
    }
    used * 8
}

/// Maximum number of errors that one call of [`drain_errors`] removes.
const MAX_ERRORS: u64 = 1024;

/// Removes the entries of the socket's error queue. Returns the number of those that the network sent (ICMP).
pub(crate) fn drain_errors(fd: BorrowedFd<'_>) -> u64 {
    let mut reported = 0;
    for _ in 0..MAX_ERRORS {
        let mut control = [0_u64; 64];
        // SAFETY: `msghdr` is a plain C structure of integers and pointers, for which all zero is valid.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: `message` has no buffer for data, and a buffer for control messages that lives until the call returns
        // and whose size is `msg_controllen`. The descriptor is open, because it is borrowed.
        let result = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
        if result < 0 {
            break;
        }
        // The first control message of an error is the error itself; its header has 16 bytes.
        let origin = control[2].to_ne_bytes()[4];
        let is_error = message.msg_controllen >= size_of::<libc::cmsghdr>() + 16;
        reported += u64::from(
            is_error && matches!(origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6),
        );
    }
    reported
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_have_the_layout_of_linux() {
        let mut control = [0; CONTROL_BYTES / 8];
        let message = |segment, due_ns| Message {
            packets: 0..1,
            segment,
            due_ns,
        };
        assert_eq!(fill_control(&mut control, &message(0, None)), 0);
        let used = fill_control(&mut control, &message(1472, Some(7)));
        // SAFETY: these functions only calculate.
        let (first, second) = unsafe { (libc::CMSG_SPACE(2), libc::CMSG_SPACE(8)) };
        assert_eq!(used, (first + second) as usize);
        assert_eq!((control[0], control[3], control[5]), (18, 24, 7));
        assert_eq!(control[2].to_ne_bytes()[..2], 1472_u16.to_ne_bytes());
    }
}
