//! Receives many messages with one system call, each into memory that the caller selects.
//!
//! ```text
//!   message m, plain:    | own buffer m                                  |
//!   message m, scatter:  | header 0 | packet i | header 1 | packet i+1 | ... | spare |
//! ```
//! A message is one packet. With coalescing, it is several consecutive packets of `segment` bytes, of which the last
//! may be shorter. All memory is allocated when the batch is created.

use super::socket::UdpSocket;
use memmap2::{Advice, MmapMut};
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd};

/// Maximum size of a message in bytes, including coalesced messages.
pub const MESSAGE_BYTES: usize = 65_536;
/// Maximum number of memory pieces per message: `UIO_MAXIOV`.
pub const MAX_PIECES: usize = 1024;

/// Size in bytes of the buffer for the control messages of one message: the size of timestamps (64) and segment size (24),
/// rounded up.
const CONTROL_BYTES: usize = 128;

/// Size of a sender's address in bytes.
const NAME_BYTES: libc::socklen_t = 28;
const _: () = assert!(size_of::<libc::sockaddr_in6>() == 28);

/// Buffer for control messages, which must be aligned like `cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Properties of one received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Number of bytes received.
    pub bytes: usize,
    /// Size in bytes of each packet in the message except the last; equal to `bytes` if nothing was coalesced.
    pub segment: usize,
    /// Receive time in nanoseconds since 1970, if Linux reported it, or in nanoseconds of the network card's clock; for a
    /// coalesced message, the receive time of the first packet.
    pub timestamp_ns: Option<u64>,
    /// Whether the network card read the receive time from its own clock.
    pub is_hardware_time: bool,
    /// Whether the message was longer than its memory; the end of the message is then discarded.
    pub truncated: bool,
}

impl Message {
    /// Returns the number of packets in the message.
    pub fn packets(&self) -> usize {
        self.bytes
            .checked_div(self.segment)
            .map_or(1, |_| self.bytes.div_ceil(self.segment))
    }
}

/// Zeroed memory for messages, in huge pages if available, because all of it is read repeatedly.
enum Own {
    Mapped(MmapMut),
    Boxed(Box<[u8]>),
}

impl Own {
    fn new(bytes: usize) -> Self {
        match MmapMut::map_anon(bytes) {
            Ok(memory) => {
                // Failure is ignored, because reception is only slower without huge pages.
                let _ = memory.advise(Advice::HugePage);
                Self::Mapped(memory)
            }
            Err(_) => Self::Boxed(vec![0; bytes].into_boxed_slice()),
        }
    }
}

impl Deref for Own {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(memory) => memory,
            Self::Boxed(memory) => memory,
        }
    }
}

impl DerefMut for Own {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Mapped(memory) => memory,
            Self::Boxed(memory) => memory,
        }
    }
}

/// Memory for a batch of messages.
pub struct RecvBatch {
    messages: usize,
    pieces_each: usize,
    headers: Box<[libc::mmsghdr]>,
    pieces: Box<[libc::iovec]>,
    used: Box<[usize]>,
    control: Box<[Control]>,
    /// Addresses of the senders.
    names: Box<[libc::sockaddr_in6]>,
    /// Number of messages at the start of a batch whose sender's address is requested.
    named: usize,
    /// Buffers of a plain batch, `own_each` bytes per message; empty in a scatter batch.
    own: Own,
    own_each: usize,
}

// SAFETY: the raw pointers in `headers` and `pieces` do not depend on the thread. They point to one of two kinds of
// memory:
// - heap memory of this batch, whose address does not change when the batch is moved;
// - memory that the caller of `push` guarantees to be valid until `clear`.
unsafe impl Send for RecvBatch {}

impl RecvBatch {
    /// Creates a batch of `messages` messages, each received into its own buffer of `bytes_each` bytes.
    pub fn plain(messages: usize, bytes_each: usize) -> Self {
        let mut batch = Self::new(messages, 1);
        batch.own = Own::new(batch.messages * bytes_each);
        batch.own_each = bytes_each;
        batch
    }

    /// Creates a batch of `messages` messages, each received into up to `pieces_each` pieces of memory passed to
    /// [`Self::push`].
    pub fn scatter(messages: usize, pieces_each: usize) -> Self {
        Self::new(messages, pieces_each)
    }

    fn new(messages: usize, pieces_each: usize) -> Self {
        let messages = messages.max(1);
        let pieces_each = pieces_each.clamp(1, MAX_PIECES);
        let nothing = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        // SAFETY: `mmsghdr` is a plain C structure of integers and pointers, for which all zero is valid.
        let header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        // SAFETY: `sockaddr_in6` is a plain C structure of integers, for which all zero is valid.
        let name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        Self {
            messages,
            pieces_each,
            headers: vec![header; messages].into_boxed_slice(),
            pieces: vec![nothing; messages * pieces_each].into_boxed_slice(),
            used: vec![0; messages].into_boxed_slice(),
            control: vec![Control([0; CONTROL_BYTES]); messages].into_boxed_slice(),
            names: vec![name; messages].into_boxed_slice(),
            named: 1,
            own: Own::Boxed(Box::default()),
            own_each: 0,
        }
    }

    /// Returns the maximum number of messages of the batch.
    pub(crate) fn capacity(&self) -> usize {
        self.messages
    }

    /// Removes all pieces of `message`.
    ///
    /// # Panics
    /// Panics if there is no such message.
    pub fn clear(&mut self, message: usize) {
        self.used[message] = 0;
    }

    /// Adds a piece of memory into which `message` is received. Returns false if the message has no room for another
    /// piece.
    ///
    /// # Safety
    /// From this call until [`Self::clear`] is called for `message` or the batch is dropped, the `length` bytes at
    /// `start` must be valid for writes. While [`Self::recv`] runs, nothing else may read, write or reference them.
    ///
    /// # Panics
    /// Panics if there is no such message.
    pub unsafe fn push(&mut self, message: usize, start: *mut u8, length: usize) -> bool {
        let used = self.used[message];
        if used == self.pieces_each {
            return false;
        }
        self.pieces[message * self.pieces_each + used] = libc::iovec {
            iov_base: start.cast(),
            iov_len: length,
        };
        self.used[message] = used + 1;
        true
    }

    /// Selects whether the next batches get the senders' addresses of all messages or only of the first, which is
    /// faster.
    pub fn name_all(&mut self, all: bool) {
        self.named = if all { self.messages } else { 1 };
    }

    /// Returns the sender of `message`, or `None` if its address was not requested.
    pub fn sender(&self, message: usize) -> Option<SocketAddr> {
        if message >= self.named {
            return None;
        }
        let name = &self.names[message];
        match i32::from(name.sin6_family) {
            libc::AF_INET => {
                // In `sockaddr_in`, the address follows the port, where `sockaddr_in6` has `sin6_flowinfo`.
                let address = name.sin6_flowinfo.to_ne_bytes();
                Some((address, u16::from_be(name.sin6_port)).into())
            }
            libc::AF_INET6 => Some((name.sin6_addr.s6_addr, u16::from_be(name.sin6_port)).into()),
            _ => None,
        }
    }

    /// Receives waiting messages into `memory`, one per [`MESSAGE_BYTES`], as many as fit. Returns the number of received
    /// messages, 0 if no message is waiting. Never blocks. The batch must not have other memory.
    ///
    /// Hidden from the documentation, because sources do not use it: this is the baseline with which `udp_bench`
    /// compares them.
    #[doc(hidden)]
    pub fn recv_into(&mut self, socket: &UdpSocket, memory: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        for piece in memory.chunks_exact_mut(MESSAGE_BYTES).take(self.messages) {
            self.clear(count);
            // SAFETY: the pieces do not overlap. They are borrowed for as long as the batch refers to them, which ends
            // with `clear` below.
            unsafe { self.push(count, piece.as_mut_ptr(), piece.len()) };
            count += 1;
        }
        let received = self.recv(socket, count);
        (0..count).for_each(|message| self.clear(message));
        received
    }

    /// Receives waiting messages, at most `limit` and at most the size of the batch. Returns the number of received messages, 0
    /// if no message is waiting. Never blocks.
    ///
    /// In a scatter batch, the caller must have added memory to each of the first `limit` messages. A message without
    /// memory is received empty and truncated.
    pub fn recv(&mut self, socket: &impl AsFd, limit: usize) -> io::Result<usize> {
        let count = limit.min(self.messages);
        if self.own_each > 0 {
            for (buffer, piece) in self
                .own
                .chunks_exact_mut(self.own_each)
                .zip(&mut self.pieces)
                .take(count)
            {
                *piece = libc::iovec {
                    iov_base: buffer.as_mut_ptr().cast(),
                    iov_len: buffer.len(),
                };
            }
            self.used[..count].fill(1);
        }
        let names = self.names.iter_mut().enumerate();
        let rows = self
            .pieces
            .chunks_exact_mut(self.pieces_each)
            .zip(&self.used)
            .zip(&mut self.control)
            .zip(names);
        for (header, (((pieces, used), control), (i, name))) in
            self.headers.iter_mut().zip(rows).take(count)
        {
            let header = &mut header.msg_hdr;
            if i < self.named {
                header.msg_name = (&raw mut *name).cast();
                header.msg_namelen = NAME_BYTES;
            } else {
                header.msg_name = std::ptr::null_mut();
                header.msg_namelen = 0;
            }
            header.msg_iov = pieces.as_mut_ptr();
            // The type of these lengths depends on the C library. Both numbers are far below every limit.
            header.msg_iovlen = *used as _;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
            header.msg_flags = 0;
        }
        let fd = socket.as_fd().as_raw_fd();
        let vlen = libc::c_uint::try_from(count).unwrap_or(libc::c_uint::MAX);
        loop {
            // SAFETY:
            // - `headers` contains at least `vlen` headers, which were filled above.
            // - Each header points to `msg_iovlen` pieces, to `CONTROL_BYTES` of control memory, and to either no name
            //   or one of `NAME_BYTES`. All of this is memory of this batch, which is mutably borrowed for the whole
            //   call.
            // - The pieces point to buffers of the batch, or to memory that the caller of `push` guarantees to be
            //   valid.
            // - No timeout is passed. Linux writes nothing after the call has returned.
            let received = unsafe {
                libc::recvmmsg(
                    fd,
                    self.headers.as_mut_ptr(),
                    vlen,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            };
            if let Ok(received) = usize::try_from(received) {
                return Ok(received);
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(0),
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            }
        }
    }

    /// Returns the properties of `message`. They are meaningful only for messages of the last [`Self::recv`].
    ///
    /// # Panics
    /// Panics if there is no such message.
    #[inline]
    pub fn message(&self, message: usize) -> Message {
        let header = &self.headers[message];
        let bytes = header.msg_len as usize;
        let flags = header.msg_hdr.msg_flags;
        // The type of this length depends on the C library, but its values always fit.
        #[allow(clippy::unnecessary_cast, clippy::cast_possible_truncation)]
        let length = (header.msg_hdr.msg_controllen as usize).min(CONTROL_BYTES);
        let control = &self.control[message].0[..length];
        let mut out = Message {
            bytes,
            segment: bytes,
            timestamp_ns: None,
            is_hardware_time: false,
            truncated: flags & libc::MSG_TRUNC != 0,
        };
        for (level, kind, data) in ControlMessages(control) {
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let size = int(data, 0).unwrap_or(0);
                    out.segment = usize::try_from(size)
                        .ok()
                        .filter(|size| *size > 0)
                        .unwrap_or(bytes)
                        .min(bytes);
                }
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => out.timestamp_ns = timespec_ns(data),
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => {
                    (out.timestamp_ns, out.is_hardware_time) = timestamping(data);
                }
                _ => {}
            }
        }
        out
    }

    /// Copies the bytes of `message`, starting at byte `from`, from its pieces to `out`. Returns the number of bytes
    /// copied.
    ///
    /// # Safety
    /// The pieces added to `message` must be valid for reads, and nothing else may write to them during the call. `out`
    /// must not overlap them.
    ///
    /// # Panics
    /// Panics if there is no such message.
    pub unsafe fn gather(&self, message: usize, from: usize, out: &mut [u8]) -> usize {
        let received = self.headers[message].msg_len as usize;
        let pieces = &self.pieces[message * self.pieces_each..][..self.used[message]];
        let (mut start, mut copied) = (0, 0);
        for piece in pieces {
            let end = (start + piece.iov_len).min(received);
            let skip = from.saturating_sub(start);
            if start + skip < end {
                let bytes = (end - start - skip).min(out.len() - copied);
                // SAFETY: `skip + bytes` is at most the size of the piece, which the caller guarantees to be readable.
                // `bytes` is at most the remaining size of `out`. The caller guarantees that the two do not overlap.
                unsafe {
                    let piece = piece.iov_base.cast::<u8>().add(skip);
                    std::ptr::copy_nonoverlapping(piece, out.as_mut_ptr().add(copied), bytes);
                }
                copied += bytes;
            }
            start += piece.iov_len;
            if start >= received {
                break;
            }
        }
        copied
    }

    /// Returns the received bytes of `message` in a plain batch; empty in a scatter batch.
    ///
    /// # Panics
    /// Panics if there is no such message.
    #[inline]
    pub fn bytes(&self, message: usize) -> &[u8] {
        let received = (self.headers[message].msg_len as usize).min(self.own_each);
        &self.own[message * self.own_each..][..received]
    }
}

/// Returns the receive time in a control message `SCM_TIMESTAMPING`, and whether the network card's clock is its source. The
/// message contains three `timespec`: the time of Linux, an unused one, and the time of the network card. A missing time is 0.
fn timestamping(data: &[u8]) -> (Option<u64>, bool) {
    let each = data.len() / 3;
    let time = |i: usize| timespec_ns(data.get(i * each..(i + 1) * each)?).filter(|ns| *ns > 0);
    match time(2) {
        Some(ns) => (Some(ns), true),
        None => (time(0), false),
    }
}

/// Converts a `timespec` in native byte order to nanoseconds.
fn timespec_ns(data: &[u8]) -> Option<u64> {
    let (seconds, nanoseconds) = match data.len() {
        // The layout of older 32-bit systems.
        8 => (i64::from(int(data, 0)?), i64::from(int(data, 4)?)),
        _ => (long(data, 0)?, long(data, 8)?),
    };
    let (seconds, nanoseconds) = (
        u64::try_from(seconds).ok()?,
        u64::try_from(nanoseconds).ok()?,
    );
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

fn int(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(*data.get(at..)?.first_chunk()?))
}

fn long(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_ne_bytes(*data.get(at..)?.first_chunk()?))
}

/// Iterator over control messages as (level, type, data). The iterator does not trust the length fields of the messages.
struct ControlMessages<'a>(&'a [u8]);

impl<'a> Iterator for ControlMessages<'a> {
    type Item = (i32, i32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        const ALIGN: usize = size_of::<usize>();
        const DATA: usize = size_of::<libc::cmsghdr>().next_multiple_of(ALIGN);
        const LEVEL: usize = std::mem::offset_of!(libc::cmsghdr, cmsg_level);
        const KIND: usize = std::mem::offset_of!(libc::cmsghdr, cmsg_type);
        // Linux writes the length as a machine word, regardless of its type in the C library.
        let length = usize::from_ne_bytes(*self.0.first_chunk()?);
        let (level, kind) = (int(self.0, LEVEL)?, int(self.0, KIND)?);
        let data = self.0.get(DATA..length)?;
        self.0 = self
            .0
            .get(length.next_multiple_of(ALIGN)..)
            .unwrap_or_default();
        Some((level, kind, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns three `timespec` of a 64-bit system.
    fn times(seconds: [i64; 3]) -> Vec<u8> {
        let words = seconds.into_iter().flat_map(|seconds| [seconds, 5]);
        words.flat_map(i64::to_ne_bytes).collect()
    }

    #[test]
    fn hardware_time_is_preferred_to_time_of_linux() {
        assert_eq!(timestamping(&times([7, 0, 9])), (Some(9_000_000_005), true));
        let mut software = times([7, 0, 0]);
        software[40..].fill(0);
        assert_eq!(timestamping(&software), (Some(7_000_000_005), false));
        assert_eq!(timestamping(&[0; 48]), (None, false));
        assert_eq!(timestamping(&[]), (None, false));
        assert_eq!(
            timestamping(&times([7, 0, -9])),
            (Some(7_000_000_005), false)
        );
    }
}
