//! Receiving many messages with one system call, each into memory of the caller's choice.
//!
//! ```text
//!   message m, plain:    | own buffer m                                  |
//!   message m, scatter:  | header 0 | place i | header 1 | place i+1 | ... | spare |
//! ```
//! A message is one packet, or with coalescing several packets of `segment` bytes in a row (the last may be
//! shorter). Everything is allocated when the batch is made.

use super::socket::UdpSocket;
use memmap2::{Advice, MmapMut};
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd};

/// The largest message: what coalescing can make of packets.
pub const MESSAGE_BYTES: usize = 65_536;
/// Memory pieces that the kernel takes for one message: `UIO_MAXIOV`.
pub const MAX_PIECES: usize = 1024;

/// Bytes for the control messages of one message: timestamp (32) and segment size (24), twice over.
const CONTROL_BYTES: usize = 128;

/// Bytes of a sender's address.
const NAME_BYTES: libc::socklen_t = 28;
const _: () = assert!(size_of::<libc::sockaddr_in6>() == 28);

/// Control messages must be aligned as `cmsghdr` is.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// What is known of one received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Bytes received.
    pub bytes: usize,
    /// Bytes of each packet in it but the last; equal to `bytes` where nothing was coalesced.
    pub segment: usize,
    /// When the kernel received it (the first of its packets, where coalesced): nanoseconds since 1970, if reported.
    pub timestamp_ns: Option<u64>,
    /// The message was longer than the memory given for it; what did not fit is gone.
    pub truncated: bool,
}

impl Message {
    /// Packets in the message.
    pub fn packets(&self) -> usize {
        self.bytes
            .checked_div(self.segment)
            .map_or(1, |_| self.bytes.div_ceil(self.segment))
    }
}

/// Zeroed memory for messages, in hugepages if available, because all of it is read again and again.
enum Own {
    Mapped(MmapMut),
    Boxed(Box<[u8]>),
}

impl Own {
    fn new(bytes: usize) -> Self {
        match MmapMut::map_anon(bytes) {
            Ok(memory) => {
                // A wish: without it reception is only slower.
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
    /// The senders' addresses.
    names: Box<[libc::sockaddr_in6]>,
    /// The first so many messages of a batch get their sender's address.
    named: usize,
    /// The own buffers of a plain batch, `own_each` bytes a message; empty in a scatter batch.
    own: Own,
    own_each: usize,
}

// SAFETY: the raw pointers in `headers` and `pieces` point into this batch's own memory, which moves with it
// without moving their contents, or to memory for which the caller of `push` vouched until `clear`,
// regardless of thread.
unsafe impl Send for RecvBatch {}

impl RecvBatch {
    /// A batch of `messages` messages, each received into an own buffer of `bytes_each` bytes.
    pub fn plain(messages: usize, bytes_each: usize) -> Self {
        let mut batch = Self::new(messages, 1);
        batch.own = Own::new(batch.messages * bytes_each);
        batch.own_each = bytes_each;
        batch
    }

    /// A batch of `messages` messages, each received into up to `pieces_each` pieces of memory given by [`Self::push`].
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
        // SAFETY: mmsghdr is a plain C structure of integers and pointers, for which all zero is valid.
        let header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        // SAFETY: sockaddr_in6 is a plain C structure of integers, for which all zero is valid.
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

    /// Messages of a full batch.
    pub fn len(&self) -> usize {
        self.messages
    }

    /// Never: a batch has at least one message.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Pieces that message may still be given.
    pub fn room(&self, message: usize) -> usize {
        self.pieces_each - self.used[message]
    }

    /// Forgets the memory given for `message`.
    ///
    /// # Panics
    /// When there is no such message.
    pub fn clear(&mut self, message: usize) {
        self.used[message] = 0;
    }

    /// Appends a piece of memory to what `message` is received into; `false` where there is no room for it.
    ///
    /// # Safety
    /// The `length` bytes at `start` must be valid for writes, and no one else may read, write or refer to them
    /// while [`Self::recv`] runs, from now until [`Self::clear`] is called for `message` or the batch is dropped.
    ///
    /// # Panics
    /// When there is no such message.
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

    /// Whether the next batches get the senders' addresses of all messages, or of the first alone, which costs less.
    pub fn name_all(&mut self, all: bool) {
        self.named = if all { self.messages } else { 1 };
    }

    /// Who sent `message`; `None` where that was not asked for.
    pub fn sender(&self, message: usize) -> Option<SocketAddr> {
        if message >= self.named {
            return None;
        }
        let name = &self.names[message];
        match i32::from(name.sin6_family) {
            libc::AF_INET => {
                // As in sockaddr_in: port, then address.
                let address = name.sin6_flowinfo.to_ne_bytes();
                Some((address, u16::from_be(name.sin6_port)).into())
            }
            libc::AF_INET6 => Some((name.sin6_addr.s6_addr, u16::from_be(name.sin6_port)).into()),
            _ => None,
        }
    }

    /// Receives what is there into `memory`, a piece of [`MESSAGE_BYTES`] a message, as many as it holds; 0 when nothing
    /// is. Never blocks. The batch has no other memory then.
    ///
    /// Hidden, because sources do not receive so: this is the bare loop that `udp_bench` measures them against.
    #[doc(hidden)]
    pub fn recv_into(&mut self, socket: &UdpSocket, memory: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        for piece in memory.chunks_exact_mut(MESSAGE_BYTES).take(self.messages) {
            self.clear(count);
            // SAFETY: the pieces do not overlap, and are borrowed for as long as the batch refers to them: until they
            // are forgotten below.
            unsafe { self.push(count, piece.as_mut_ptr(), piece.len()) };
            count += 1;
        }
        let received = self.recv(socket, count);
        (0..count).for_each(|message| self.clear(message));
        received
    }

    /// Receives what is there, at most the first `limit` messages of the batch; 0 when nothing is. Never blocks.
    ///
    /// A scatter message without memory receives an empty, truncated message: give each of the first `limit` some.
    pub fn recv(&mut self, socket: &UdpSocket, limit: usize) -> io::Result<usize> {
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
            // The C libraries disagree on the types of these lengths; both numbers are far below any limit.
            header.msg_iovlen = *used as _;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
            header.msg_flags = 0;
        }
        let fd = socket.as_fd().as_raw_fd();
        let vlen = libc::c_uint::try_from(count).unwrap_or(libc::c_uint::MAX);
        loop {
            // SAFETY: `headers` holds at least `vlen` headers, filled just above: each points to `msg_iovlen`
            // pieces, `CONTROL_BYTES` of control memory and no name or one of `NAME_BYTES`, all in this batch, which is
            // borrowed mutably for the whole call. The pieces point to own buffers, or to memory for which the caller of `push` vouched.
            // No timeout is given. The kernel writes nothing after the call has returned.
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

    /// What is known of `message`; meaningful for the messages of the last [`Self::recv`] only.
    ///
    /// # Panics
    /// When there is no such message.
    #[inline]
    pub fn message(&self, message: usize) -> Message {
        let header = &self.headers[message];
        let bytes = header.msg_len as usize;
        let flags = header.msg_hdr.msg_flags;
        // The same type on every C library that has it as a size or an int.
        #[allow(clippy::unnecessary_cast, clippy::cast_possible_truncation)]
        let length = (header.msg_hdr.msg_controllen as usize).min(CONTROL_BYTES);
        let control = &self.control[message].0[..length];
        let mut out = Message {
            bytes,
            segment: bytes,
            timestamp_ns: None,
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
                _ => {}
            }
        }
        out
    }

    /// Copies the bytes of `message` from byte `from` on to `out`, out of the pieces that it was received into; how
    /// many they were.
    ///
    /// # Safety
    /// The pieces given for `message` must be valid for reads, and no one else may write to them meanwhile; `out` must
    /// not overlap them.
    ///
    /// # Panics
    /// When there is no such message.
    pub unsafe fn gather(&self, message: usize, from: usize, out: &mut [u8]) -> usize {
        let received = self.headers[message].msg_len as usize;
        let pieces = &self.pieces[message * self.pieces_each..][..self.used[message]];
        let (mut start, mut copied) = (0, 0);
        for piece in pieces {
            let end = (start + piece.iov_len).min(received);
            let skip = from.saturating_sub(start);
            if start + skip < end {
                let bytes = (end - start - skip).min(out.len() - copied);
                // SAFETY: `skip + bytes` is at most the piece's length, which the caller vouches for; `bytes` is at
                // most what is left of `out`, and the two do not overlap, as the caller vouches.
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

    /// The bytes of `message` of a plain batch, as received; empty in a scatter batch.
    ///
    /// # Panics
    /// When there is no such message.
    #[inline]
    pub fn bytes(&self, message: usize) -> &[u8] {
        let received = (self.headers[message].msg_len as usize).min(self.own_each);
        &self.own[message * self.own_each..][..received]
    }
}

/// Nanoseconds of a `timespec` in native byte order.
fn timespec_ns(data: &[u8]) -> Option<u64> {
    let (seconds, nanoseconds) = match data.len() {
        // 32-bit systems of the older kind.
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

/// Walks control messages without trusting their lengths: level, type, data.
struct ControlMessages<'a>(&'a [u8]);

impl<'a> Iterator for ControlMessages<'a> {
    type Item = (i32, i32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        const ALIGN: usize = size_of::<usize>();
        const DATA: usize = size_of::<libc::cmsghdr>().next_multiple_of(ALIGN);
        const LEVEL: usize = std::mem::offset_of!(libc::cmsghdr, cmsg_level);
        const KIND: usize = std::mem::offset_of!(libc::cmsghdr, cmsg_type);
        // The kernel writes the length as a word of the machine, whatever the C library calls it.
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
