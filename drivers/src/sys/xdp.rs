//! AF_XDP sockets: receive whole packets of one interface queue into memory shared with Linux.
//!
//! ```text
//!                 chunks of pinned memory
//!   fill ring    ──▶ free chunks, for Linux ──▶ packets arrive
//!   receive ring ◀── filled chunks, for daq, returned through the fill ring
//! ```
//! Each ring has as many entries as there are chunks, so neither can overflow. The code trusts Linux to follow the
//! protocol, except that offsets outside the memory cause a panic.

use daq_core::region::Region;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions, XdpOptionsFlags, XdpRingFlags,
    XdpRingOffset, XdpStatistics, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Number of bytes that Linux reserves before each packet in its chunk: `XDP_PACKET_HEADROOM`.
pub(crate) const HEADROOM: usize = 256;
/// Socket options from `asm-generic/socket.h` of Linux 5.11, which the libc crate does not define.
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;
/// Number of entries of the completion ring, which is mandatory although nothing is sent.
const SENT: u32 = 64;

/// Parameters of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Index of the interface.
    pub interface: u32,
    /// Receive queue of the interface.
    pub queue: u32,
    /// Chunk size in bytes, 2048 or 4096.
    pub chunk: usize,
    /// Number of chunks, a power of two.
    pub chunks: u32,
    /// Whether packets may occupy several chunks.
    pub pieces: bool,
    /// `Some(true)`: the NIC must write to the memory itself. `Some(false)`: it must not. `None`: Linux selects.
    pub zero_copy: Option<bool>,
    /// Maximum number of pieces received at a time.
    pub batch: usize,
    /// Maximum time that a call polls the NIC's queue instead of using interrupts; zero keeps the system's default.
    pub busy_poll: Duration,
}

/// The step at which opening a socket failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Create the socket.
    Socket,
    /// Register the memory.
    Memory,
    /// Create the rings.
    Rings,
    /// Bind the socket to the queue.
    Bind,
}

/// A ring shared with Linux. Its indices only increase.
struct Ring {
    memory: NonNull<u8>,
    bytes: usize,
    offsets: XdpRingOffset,
    mask: u32,
    /// The index that daq advances: the producer index of the fill ring, the consumer index of the receive ring.
    own: u32,
}

// SAFETY: the ring owns its mapping, and only the ring accesses it, so it can move to another thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of `socket` at file offset `at`, which has `entries` entries of type `T`.
    fn new<T>(
        socket: &OwnedFd,
        at: u64,
        offsets: XdpRingOffset,
        entries: u32,
    ) -> Result<Self, Errno> {
        let place = |offset: u64| usize::try_from(offset).map_err(|_| Errno::OVERFLOW);
        let bytes = place(offsets.desc)? + entries as usize * size_of::<T>();
        // SAFETY: Linux selects the address, so no existing mapping is replaced.
        let memory = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket,
                at,
            )
        }?;
        let memory = NonNull::new(memory.cast()).ok_or(Errno::FAULT)?;
        let ring = Self {
            memory,
            bytes,
            offsets,
            mask: entries - 1,
            own: 0,
        };
        let words = [
            offsets.producer,
            offsets.consumer,
            offsets.flags.unwrap_or(0),
        ];
        for offset in words {
            if place(offset)? + 4 > bytes || offset % 4 != 0 {
                return Err(Errno::OVERFLOW);
            }
        }
        Ok(ring)
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: `new` has checked that an aligned word of the mapping is at this offset. The mapping lives as long as
        // the ring. Linux also accesses this word as a whole.
        unsafe {
            let word = self
                .memory
                .as_ptr()
                .add(usize::try_from(offset).unwrap_or(0));
            AtomicU32::from_ptr(word.cast())
        }
    }

    /// Returns the address of the entry for `index`.
    fn entry<T>(&self, index: u32) -> *mut T {
        let start = usize::try_from(self.offsets.desc).unwrap_or(0);
        // SAFETY: `new` mapped `mask + 1` entries of this type after `desc`. Each ring is accessed with one type only.
        // Linux aligns entries to at least 8 bytes.
        unsafe {
            let entries = self.memory.as_ptr().add(start).cast::<T>();
            entries.add((index & self.mask) as usize)
        }
    }

    /// Returns whether Linux must be woken up for the entries in the ring.
    fn needs_wakeup(&self) -> bool {
        self.offsets.flags.is_some_and(|flags| {
            self.word(flags).load(Ordering::Relaxed) & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits()
                != 0
        })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: address and size are those of the mapping created in `new`, and no reference to it exists any more.
        let unmapped = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// A socket bound to a queue, with its memory.
pub(crate) struct XdpSocket {
    // Fields are dropped in this order: the rings, the socket, then the memory that Linux fills for the socket.
    fill: Ring,
    receive: Ring,
    _sent: Ring,
    socket: OwnedFd,
    memory: Arc<Region>,
    chunk: usize,
    is_zero_copy: bool,
    /// Pieces that were received and not returned yet.
    taken: Vec<Piece>,
}

/// The contents of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    start: usize,
    bytes: usize,
    /// Whether the packet continues in the next piece.
    goes_on: bool,
}

impl XdpSocket {
    /// Opens a socket with the first `chunks` chunks of `memory` and passes all of them to Linux.
    pub(crate) fn open(memory: Arc<Region>, options: &Options) -> Result<Self, (Step, Errno)> {
        let at = |step| move |errno| (step, errno);
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
            .map_err(at(Step::Socket))?;
        let (chunk, chunks) = (options.chunk, options.chunks);
        let bytes = chunk * chunks as usize;
        let address = memory.cpu_address().ok_or((Step::Memory, Errno::FAULT))?;
        let is_sound = matches!(chunk, 2048 | 4096) && chunks.is_power_of_two();
        if !is_sound || bytes > memory.bytes() {
            return Err((Step::Memory, Errno::INVAL));
        }
        let registration = XdpUmemReg {
            addr: address.as_ptr().expose_provenance() as u64,
            len: bytes as u64,
            chunk_size: u32::try_from(chunk).unwrap_or(0),
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        // Linux pins the pages. Even if the socket lived longer than the memory, Linux could not write to memory that
        // is reused.
        sockopt::set_xdp_umem_reg(&socket, registration).map_err(at(Step::Memory))?;
        let rings = || {
            sockopt::set_xdp_umem_fill_ring_size(&socket, chunks)?;
            sockopt::set_xdp_umem_completion_ring_size(&socket, SENT)?;
            sockopt::set_xdp_rx_ring_size(&socket, chunks)?;
            let offsets = sockopt::xdp_mmap_offsets(&socket)?;
            let fill = Ring::new::<u64>(&socket, XDP_UMEM_PGOFF_FILL_RING, offsets.fr, chunks)?;
            let receive = Ring::new::<XdpDesc>(&socket, XDP_PGOFF_RX_RING, offsets.rx, chunks)?;
            let at = XDP_UMEM_PGOFF_COMPLETION_RING;
            let sent = Ring::new::<u64>(&socket, at, offsets.cr, SENT)?;
            Ok((fill, receive, sent))
        };
        let (fill, receive, sent) = rings().map_err(at(Step::Rings))?;
        let mut this = Self {
            fill,
            receive,
            _sent: sent,
            socket,
            memory,
            chunk,
            is_zero_copy: false,
            taken: Vec::with_capacity(options.batch),
        };
        for chunk in 0..u64::from(chunks) {
            this.give(chunk * options.chunk as u64);
        }
        this.publish();
        this.poll_busily(options.busy_poll);
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        flags.set(SocketAddrXdpFlags::XDP_USE_SG, options.pieces);
        let zero_copy = options.zero_copy;
        flags.set(SocketAddrXdpFlags::XDP_ZEROCOPY, zero_copy == Some(true));
        flags.set(SocketAddrXdpFlags::XDP_COPY, zero_copy == Some(false));
        let address = SocketAddrXdp::new(flags, options.interface, options.queue);
        rustix::net::bind(&this.socket, &address).map_err(at(Step::Bind))?;
        this.is_zero_copy = sockopt::xdp_options(&this.socket)
            .is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        Ok(this)
    }

    /// Requests polling instead of interrupts. Failure is ignored, because it only increases latency.
    fn poll_busily(&self, limit: Duration) {
        let limit = i32::try_from(limit.as_micros()).unwrap_or(i32::MAX);
        if limit > 0 {
            let socket = self.socket.as_fd();
            for (option, value) in [
                (SO_PREFER_BUSY_POLL, 1),
                (libc::SO_BUSY_POLL, limit),
                (SO_BUSY_POLL_BUDGET, 64),
            ] {
                let _ = super::socket::set_int(socket, libc::SOL_SOCKET, option, value);
            }
        }
    }

    /// Returns whether the NIC writes to the memory itself.
    pub(crate) fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    /// Reads the counters of the socket, with one system call.
    pub(crate) fn statistics(&self) -> Result<XdpStatistics, Errno> {
        sockopt::xdp_statistics(&self.socket)
    }

    /// Wakes Linux so that it continues to receive, with one system call.
    ///
    /// Returns `ENETDOWN` while the interface is down, and `ENXIO` if the socket is no longer bound to a queue.
    pub(crate) fn wake(&self) -> Result<(), Errno> {
        match rustix::net::recv(&self.socket, &mut [0_u8; 0], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Reads and clears the error state of the socket, with one system call.
    ///
    /// Returns `ENETDOWN` if Linux has unbound the socket because the interface was removed. An interface that is only
    /// set down causes no error.
    pub(crate) fn failure(&self) -> Result<(), Errno> {
        sockopt::socket_error(&self.socket)?
    }

    /// Returns whether Linux waits for [`wake`](Self::wake).
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Receives waiting pieces, until at most `limit` pieces are held. Returns the number of held pieces. Never blocks.
    ///
    /// The pieces stay valid until they are [returned](Self::give_back).
    pub(crate) fn take(&mut self, limit: usize) -> usize {
        let ring = &self.receive;
        let there = ring.word(ring.offsets.producer).load(Ordering::Acquire);
        let there = there.wrapping_sub(ring.own) as usize;
        let room = limit
            .min(self.taken.capacity())
            .saturating_sub(self.taken.len());
        for _ in 0..room.min(there) {
            // SAFETY: the entry is inside the ring and before the producer index, which was read with Acquire ordering.
            // So Linux has written the entry, and does not write it again until the consumer index has passed it. Every
            // bit pattern is a valid descriptor.
            let descriptor = unsafe { self.receive.entry::<XdpDesc>(self.receive.own).read() };
            self.receive.own = self.receive.own.wrapping_add(1);
            self.taken.push(Piece {
                start: usize::try_from(descriptor.addr).unwrap_or(usize::MAX),
                bytes: descriptor.len as usize,
                goes_on: descriptor.options.contains(XdpDescOptions::XDP_PKT_CONTD),
            });
        }
        let ring = &self.receive;
        ring.word(ring.offsets.consumer)
            .store(ring.own, Ordering::Release);
        self.taken.len()
    }

    /// Returns the number of pieces that were received and not returned yet.
    pub(crate) fn count(&self) -> usize {
        self.taken.len()
    }

    /// Returns the bytes of held piece `i`, and whether its packet continues in the next piece.
    ///
    /// # Panics
    /// Panics if there is no such piece, or if Linux reports a piece outside the memory or beyond the end of its chunk.
    #[inline]
    pub(crate) fn taken(&self, i: usize) -> (&[u8], bool) {
        let piece = &self.taken[i];
        (self.bytes(piece), piece.goes_on)
    }

    /// Returns the bytes of `piece`, which must be one of `taken`.
    #[inline]
    fn bytes(&self, piece: &Piece) -> &[u8] {
        let end = piece.start.saturating_add(piece.bytes);
        let chunk_end = piece.start / self.chunk * self.chunk + self.chunk;
        assert!(
            end <= chunk_end && end <= self.memory.bytes(),
            "{piece:?} is outside the memory"
        );
        // SAFETY:
        // - The range is inside the memory, as checked above, and this socket holds the memory.
        // - Linux does not write to the chunk until it is returned. `give_back` removes the piece from `taken` and
        //   borrows the socket mutably, so no such reference exists then.
        // - Nothing else writes to the memory, which was zeroed when it was allocated.
        unsafe {
            let start = self.memory.address().as_ptr().add(piece.start);
            std::slice::from_raw_parts(start, piece.bytes)
        }
    }

    /// Returns the first `pieces` held pieces to Linux.
    pub(crate) fn give_back(&mut self, pieces: usize) {
        for i in 0..pieces.min(self.taken.len()) {
            let chunk = self.taken[i].start / self.chunk * self.chunk;
            self.give(chunk as u64);
        }
        self.taken.drain(..pieces.min(self.taken.len()));
        self.publish();
    }

    fn give(&mut self, chunk: u64) {
        // SAFETY: the entry is inside the ring. The ring has as many entries as there are chunks, and each chunk is in
        // at most one entry. So Linux has already consumed the previous contents of this entry.
        unsafe { self.fill.entry::<u64>(self.fill.own).write(chunk) };
        self.fill.own = self.fill.own.wrapping_add(1);
    }

    fn publish(&self) {
        let ring = &self.fill;
        ring.word(ring.offsets.producer)
            .store(ring.own, Ordering::Release);
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::fmt::Debug for XdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdpSocket")
            .field("memory", &self.memory)
            .field("is_zero_copy", &self.is_zero_copy)
            .finish_non_exhaustive()
    }
}
