//! Sockets that receive whole packets of one queue of an interface, into memory that both sides share.
//!
//! ```text
//!                 chunks of pinned memory
//!   fill ring   ──▶ free chunks, for the kernel ──▶ packets come
//!   receive ring ◀── filled chunks, for us, given back through the fill ring
//! ```
//! Both rings hold as many entries as there are chunks, so neither can overflow by our doing. A kernel that does not
//! keep to its own rules is not defended against, but for places outside the memory, which panic.

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

/// Bytes that the kernel keeps before each packet in its chunk: `XDP_PACKET_HEADROOM`.
pub const HEADROOM: usize = 256;
/// From `asm-generic/socket.h`, Linux 5.11; the libc crate does not have them.
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;
/// Entries of the completion ring, which is required although nothing is sent.
const SENT: u32 = 64;

/// What is asked of a socket.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The number of the interface.
    pub interface: u32,
    /// Its receive queue.
    pub queue: u32,
    /// Bytes of a chunk, 2048 or 4096.
    pub chunk: usize,
    /// Chunks, a power of two.
    pub chunks: u32,
    /// Let packets lie in several chunks.
    pub pieces: bool,
    /// Whether the card must, or must not, write to the memory itself; `None` takes what there is.
    pub zero_copy: Option<bool>,
    /// Pieces that are taken at a time, at most.
    pub batch: usize,
    /// How long a call may poll the card's queue instead of having it interrupt; zero leaves that to the system.
    pub busy_poll: Duration,
}

/// Where opening a socket failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The kernel makes no such socket for us.
    Socket,
    /// It does not take the memory.
    Memory,
    /// It makes no rings.
    Rings,
    /// It does not tie the socket to the queue.
    Bind,
}

/// One ring of indices that only grow, shared with the kernel.
struct Ring {
    memory: NonNull<u8>,
    bytes: usize,
    offsets: XdpRingOffset,
    mask: u32,
    /// The end that is ours.
    own: u32,
}

// SAFETY: a ring's memory belongs to the ring, and is reached through it only: from whatever thread owns it.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of `entries` entries of `T`s of `socket` that lies at `at`.
    fn new<T>(
        socket: &OwnedFd,
        at: u64,
        offsets: XdpRingOffset,
        entries: u32,
    ) -> Result<Self, Errno> {
        let place = |offset: u64| usize::try_from(offset).map_err(|_| Errno::OVERFLOW);
        let bytes = place(offsets.desc)? + entries as usize * size_of::<T>();
        // SAFETY: the kernel chooses the address, so nothing is replaced.
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
        // SAFETY: `new` has seen that a whole, aligned word of the mapping lies there, which lives as long as the ring;
        // the kernel reads and writes it by whole words, too.
        unsafe {
            let word = self
                .memory
                .as_ptr()
                .add(usize::try_from(offset).unwrap_or(0));
            AtomicU32::from_ptr(word.cast())
        }
    }

    /// The memory of the entry that `index` leads to.
    fn entry<T>(&self, index: u32) -> *mut T {
        let start = usize::try_from(self.offsets.desc).unwrap_or(0);
        // SAFETY: the mapping was made for `mask + 1` entries of this type behind `desc`, see `new`; each ring is read or
        // written as one type only. The kernel aligns entries to 8 bytes and more.
        unsafe {
            let entries = self.memory.as_ptr().add(start).cast::<T>();
            entries.add((index & self.mask) as usize)
        }
    }

    /// Whether Linux must be woken up for the entries in the ring.
    fn needs_wakeup(&self) -> bool {
        self.offsets.flags.is_some_and(|flags| {
            self.word(flags).load(Ordering::Relaxed) & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits()
                != 0
        })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: address and length are those of the one mapping made in `new`, and no reference to it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// A socket that is bound to a queue, with its memory.
pub struct XdpSocket {
    // In this order: the rings, the socket, the memory that the kernel fills for the socket.
    fill: Ring,
    receive: Ring,
    _sent: Ring,
    socket: OwnedFd,
    memory: Arc<Region>,
    chunk: usize,
    is_zero_copy: bool,
    /// What the kernel has handed over and was not given back.
    taken: Vec<Piece>,
}

/// What lies in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    start: usize,
    bytes: usize,
    /// Whether the packet goes on in the next piece.
    goes_on: bool,
}

impl XdpSocket {
    /// Opens a socket over the first `chunks` chunks of `memory`, all of which it gives to the kernel.
    pub fn open(memory: Arc<Region>, options: &Options) -> Result<Self, (Step, Errno)> {
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
        // The kernel pins the pages, so even a socket that outlived them could write to nothing of ours.
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

    /// Asks for polling instead of interrupts; where that is not to be had, reception is only later.
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

    /// Whether the card writes to the memory itself.
    pub fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    /// The kernel's counters; one system call.
    pub fn statistics(&self) -> Result<XdpStatistics, Errno> {
        sockopt::xdp_statistics(&self.socket)
    }

    /// Has the kernel go on where it waits for that; a system call.
    ///
    /// `ENETDOWN` while the interface is down, `ENXIO` when the socket is at no queue any more.
    pub fn wake(&self) -> Result<(), Errno> {
        match rustix::net::recv(&self.socket, &mut [0_u8; 0], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// The error that the kernel has left at the socket, once; a system call.
    ///
    /// `ENETDOWN` when it has taken the socket from its queue because the interface was removed. An interface that is only
    /// set down leaves none.
    pub fn failure(&self) -> Result<(), Errno> {
        sockopt::socket_error(&self.socket)?
    }

    /// Whether the kernel waits for [`wake`](Self::wake).
    pub fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Takes what has come and not been taken yet, so that in all at most `limit` pieces are taken; how many they are. Never
    /// waits.
    ///
    /// They stay as they are until they are [given back](Self::give_back).
    pub fn take(&mut self, limit: usize) -> usize {
        let ring = &self.receive;
        let there = ring.word(ring.offsets.producer).load(Ordering::Acquire);
        let there = there.wrapping_sub(ring.own) as usize;
        let room = limit
            .min(self.taken.capacity())
            .saturating_sub(self.taken.len());
        for _ in 0..room.min(there) {
            // SAFETY: the entry is one of the ring's, and before the producer's index that was read with Acquire, so the
            // kernel has written it and writes it no more until the consumer's index has passed it. Any bytes make a
            // valid descriptor.
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

    /// Pieces that were taken and not given back yet.
    pub fn count(&self) -> usize {
        self.taken.len()
    }

    /// Piece `i` of what was taken: its bytes, and whether its packet goes on in the next one.
    ///
    /// # Panics
    /// When there is no such piece, or the kernel says that it lies outside the memory or over the end of a chunk.
    #[inline]
    pub fn taken(&self, i: usize) -> (&[u8], bool) {
        let piece = &self.taken[i];
        (self.bytes(piece), piece.goes_on)
    }

    /// What lies in `piece`, one of `taken`.
    #[inline]
    fn bytes(&self, piece: &Piece) -> &[u8] {
        let end = piece.start.saturating_add(piece.bytes);
        let chunk_end = piece.start / self.chunk * self.chunk + self.chunk;
        assert!(
            end <= chunk_end && end <= self.memory.bytes(),
            "{piece:?} is outside the memory"
        );
        // SAFETY: inside the memory, as just seen, which this socket holds. The kernel has handed the chunk over and writes
        // to it no more until it is given back: `give_back` empties `taken` and borrows the socket mutably, so no such
        // reference is left then. No one else writes to the memory, which was zeroed when it was made.
        unsafe {
            let start = self.memory.address().as_ptr().add(piece.start);
            std::slice::from_raw_parts(start, piece.bytes)
        }
    }

    /// Gives the first `pieces` of what was taken back to the kernel.
    pub fn give_back(&mut self, pieces: usize) {
        for i in 0..pieces.min(self.taken.len()) {
            let chunk = self.taken[i].start / self.chunk * self.chunk;
            self.give(chunk as u64);
        }
        self.taken.drain(..pieces.min(self.taken.len()));
        self.publish();
    }

    fn give(&mut self, chunk: u64) {
        // SAFETY: the entry is one of the ring's. The ring has as many entries as there are chunks, and each chunk is in
        // at most one place, so the kernel has consumed what this entry held before.
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
