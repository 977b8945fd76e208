//! Moves bytes between sockets and registered memory without creating a Rust reference to the memory, because other CPU
//! threads, devices and the peer may write it at the same time.

use daq_core::region::Region;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// Maximum number of scatter/gather elements per message.
pub(crate) const MAX_SGES: usize = 16;

/// Returns the CPU address of `bytes` bytes at `offset`. Fails if these bytes are not completely inside the region, or
/// if the CPU cannot access them.
fn place(region: &Region, offset: usize, bytes: usize) -> io::Result<NonNull<u8>> {
    let is_inside = offset
        .checked_add(bytes)
        .is_some_and(|end| end <= region.bytes());
    match region.cpu_address() {
        // SAFETY: `offset` is at most the region's length, so the pointer stays inside the region's mapping or one past
        // its end.
        Some(base) if is_inside => Ok(unsafe { base.add(offset) }),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

fn checked(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Receives up to `bytes` bytes directly to `offset` of `region`. Never blocks.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    region: &Region,
    offset: usize,
    bytes: usize,
) -> io::Result<usize> {
    let to = place(region, offset, bytes)?;
    // SAFETY:
    // - `place` has checked that the `bytes` bytes are inside the region's mapping, which the borrow keeps mapped.
    // - Linux writes the bytes, and no Rust reference to them exists.
    let result = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            to.as_ptr().cast(),
            bytes,
            libc::MSG_DONTWAIT,
        )
    };
    // Stores to GPU memory may be combined. They must be visible before any word that announces them.
    fence(Ordering::SeqCst);
    checked(result)
}

/// Sends `head` and then the slices (region, offset, bytes), up to the free space of the socket buffer. Never blocks.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    head: &[u8],
    sges: &[(&Region, usize, usize)],
) -> io::Result<usize> {
    let empty = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    };
    let mut parts = [empty; MAX_SGES + 1];
    parts[0] = libc::iovec {
        iov_base: head.as_ptr().cast_mut().cast(),
        iov_len: head.len(),
    };
    if sges.len() > MAX_SGES {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (part, (region, offset, bytes)) in parts[1..].iter_mut().zip(sges) {
        *part = libc::iovec {
            iov_base: place(region, *offset, *bytes)?.as_ptr().cast(),
            iov_len: *bytes,
        };
    }
    // SAFETY: all fields of a message header may be zero; those that matter are set below.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = sges.len() + 1;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY:
    // - `message` names `sges.len() + 1` entries of `parts`, which lives until the call returns.
    // - The first entry is `head`, which is only read.
    // - `place` has checked that the other entries are inside mappings, which the borrows of their regions keep mapped.
    // - Linux reads the bytes, and no Rust reference to them exists.
    checked(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
}

/// Size in bytes from which a call gets no further parts. More parts per call would not save calls of that size, but each
/// call prepares all of its parts, even if the socket accepts or has only a few bytes.
pub(crate) const CALL_BYTES: usize = 256 << 10;

/// The parts of one message to a socket: bytes of this process, or a range of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// Bytes that only the queue pair uses.
    Bytes(&'a [u8]),
    /// Region, offset and number of bytes.
    Memory(&'a Region, usize, usize),
}

impl Part<'_> {
    /// Returns the number of bytes.
    pub(crate) const fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(_, _, bytes) => *bytes,
        }
    }
}

/// The list of the parts of a call, whose memory is used again by all calls.
#[derive(Debug, Default)]
pub(crate) struct Vectors(Vec<libc::iovec>);

// SAFETY: the pointers in the list are only used during a call of `send` or `receive`, which sets all of them.
unsafe impl Send for Vectors {}

impl Vectors {
    /// Creates a list for `parts` parts.
    pub(crate) fn new(parts: usize) -> Self {
        Self(Vec::with_capacity(parts))
    }

    fn add(&mut self, base: *mut u8, bytes: usize) {
        if bytes > 0 {
            self.0.push(libc::iovec {
                iov_base: base.cast(),
                iov_len: bytes,
            });
        }
    }

    /// Sends `parts` in order, up to the free space of the socket buffer. Never blocks.
    pub(crate) fn send<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        parts: impl Iterator<Item = Part<'a>>,
    ) -> io::Result<usize> {
        self.0.clear();
        for part in parts {
            match part {
                Part::Bytes(bytes) => self.add(bytes.as_ptr().cast_mut(), bytes.len()),
                Part::Memory(region, offset, bytes) => {
                    self.add(place(region, offset, bytes)?.as_ptr(), bytes);
                }
            }
        }
        let message = self.header();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY:
        // - `message` names the entries of `self.0`, which live until the call returns.
        // - Each entry is a borrowed slice, or was checked by `place` to be inside a mapping, which the borrow of its
        //   region keeps mapped. Both borrows have the lifetime `'a`, which outlives this function.
        // - Linux reads the bytes, and no Rust reference to the bytes of a region exists.
        checked(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
    }

    /// Receives bytes to `parts` (region, offset, number of bytes) in order, and further bytes to `rest`. Never blocks.
    pub(crate) fn receive<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        parts: impl Iterator<Item = (&'a Region, usize, usize)>,
        rest: &mut [u8],
    ) -> io::Result<usize> {
        self.0.clear();
        for (region, offset, bytes) in parts {
            self.add(place(region, offset, bytes)?.as_ptr(), bytes);
        }
        self.add(rest.as_mut_ptr(), rest.len());
        let mut message = self.header();
        // SAFETY:
        // - `message` names the entries of `self.0`, which live until the call returns.
        // - `place` has checked that the entries of regions are inside mappings, which the borrows of their regions keep
        //   mapped. The last entry is `rest`, which is borrowed mutably.
        // - Linux writes the bytes, and no Rust reference to the bytes of a region exists.
        let result =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        // Stores to GPU memory may be combined. They must be visible before any word that announces them.
        fence(Ordering::SeqCst);
        checked(result)
    }

    fn header(&mut self) -> libc::msghdr {
        // SAFETY: all fields of a message header may be zero; those that matter are set below.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.0.as_mut_ptr();
        message.msg_iovlen = self.0.len();
        message
    }
}

/// Stores `bytes` at `offset` of `region`, in ascending order and after all earlier stores of this thread. Aligned
/// 8-byte words are stored atomically, so that no reader sees a partial word.
pub(crate) fn store(region: &Region, offset: usize, bytes: &[u8]) -> io::Result<()> {
    let to = place(region, offset, bytes.len())?.as_ptr();
    fence(Ordering::Release);
    let mut at = 0;
    while at < bytes.len() {
        let here = to.wrapping_add(at);
        let word = bytes[at..].first_chunk::<8>();
        if let Some(word) = word.filter(|_| here.addr().is_multiple_of(8)) {
            // SAFETY:
            // - `place` has checked that all bytes are inside the region's mapping, which the borrow keeps mapped.
            // - At least eight bytes are left, the address is aligned, and the memory is initialised because Linux maps
            //   zeroed pages.
            // - Threads that access the same words concurrently (credits, slot words) use atomic word operations too.
            // - No thread accesses other bytes before they are announced, which happens after the fence below.
            let to = unsafe { AtomicU64::from_ptr(here.cast()) };
            to.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            at += 8;
        } else {
            // SAFETY: the conditions above hold for one byte too, and every address is aligned for a byte.
            let to = unsafe { AtomicU8::from_ptr(here) };
            to.store(bytes[at], Ordering::Relaxed);
            at += 1;
        }
    }
    fence(Ordering::SeqCst);
    Ok(())
}

/// Returns the bytes at `offset` of `region`.
#[cfg(test)]
pub(crate) fn load(region: &Region, offset: usize, bytes: usize) -> Vec<u8> {
    let from = place(region, offset, bytes).unwrap().as_ptr();
    (0..bytes)
        .map(|i| {
            // SAFETY:
            // - `place` has checked that all bytes are inside the region's mapping, which the borrow keeps mapped.
            // - In tests no other thread writes these bytes concurrently by words of a different size.
            unsafe { AtomicU8::from_ptr(from.wrapping_add(i)) }.load(Ordering::Relaxed)
        })
        .collect()
}

/// Returns the 8-byte word at `offset` of `region`, read atomically.
#[cfg(test)]
pub(crate) fn load_word(region: &Region, offset: usize) -> u64 {
    let from = place(region, offset, 8).unwrap().cast::<u64>();
    assert!(from.is_aligned());
    // SAFETY:
    // - `place` has checked that the eight bytes are inside the region's mapping, which the borrow keeps mapped.
    // - The address is aligned.
    // - Concurrent writers store whole words atomically, as [`store`] does.
    unsafe { AtomicU64::from_ptr(from.as_ptr()) }.load(Ordering::Acquire)
}
