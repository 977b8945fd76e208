//! Sends many packets with few system calls; used by tests, benchmarks and examples.

use super::socket::{Interface, SocketError, interface_index, scoped, set_int};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Maximum number of messages per system call.
const MESSAGES: usize = 64;
/// Maximum number of packets into which Linux splits one message: `UDP_MAX_SEGMENTS` of older Linux versions.
const SEGMENTS: usize = 64;
/// Maximum UDP payload over IPv4 in bytes.
const LARGEST: usize = 65_507;

/// A connected, blocking UDP socket for sending.
#[derive(Debug)]
pub struct Sender {
    fd: OwnedFd,
    /// Packet size into which Linux currently splits messages; 0 if it does not split.
    segment: usize,
    offload: bool,
}

impl Sender {
    /// Opens a sender to `to`. With `offload`, Linux splits large messages into packets, if it supports that.
    ///
    /// `interface` is the interface for multicast packets.
    pub fn open(
        to: SocketAddr,
        offload: bool,
        interface: Option<&Interface>,
    ) -> Result<Self, SocketError> {
        let call = |action| {
            move |source| SocketError::Call {
                action,
                address: to,
                source,
            }
        };
        let family = if to.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(call("open a socket"))?;
        if to.ip().is_multicast() {
            let set = match (to, interface) {
                (SocketAddr::V4(_), Some(Interface::Address(address))) => {
                    sockopt::set_ip_multicast_if(&fd, address)
                }
                (SocketAddr::V4(_), named) => {
                    let index = interface_index(fd.as_fd(), to.ip(), named)?;
                    let any = std::net::Ipv4Addr::UNSPECIFIED;
                    sockopt::set_ip_multicast_if_with_ifindex(&fd, &any, &any, index)
                }
                (SocketAddr::V6(_), named) => sockopt::set_ipv6_multicast_if(
                    &fd,
                    interface_index(fd.as_fd(), to.ip(), named)?,
                ),
            };
            set.map_err(call("choose the interface"))?;
        }
        let to = scoped(fd.as_fd(), to, interface)?;
        rustix::net::connect(&fd, &to).map_err(call("connect"))?;
        Ok(Self {
            fd,
            segment: 0,
            offload,
        })
    }

    /// Opens a sender whose packets come from `from`. Several senders of the same user may share this address.
    pub fn bound(from: SocketAddrV4, to: SocketAddrV4, offload: bool) -> Result<Self, SocketError> {
        let call = |action, address: SocketAddrV4| {
            move |source| SocketError::Call {
                action,
                address: address.into(),
                source,
            }
        };
        let flags = SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)
            .map_err(call("open a socket", from))?;
        sockopt::set_socket_reuseport(&fd, true).map_err(call("share the port", from))?;
        rustix::net::bind(&fd, &from).map_err(call("bind", from))?;
        rustix::net::connect(&fd, &to).map_err(call("connect", to))?;
        Ok(Self {
            fd,
            segment: 0,
            offload,
        })
    }

    /// Sends one packet.
    pub fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        self.cut(0)?;
        retry(|| {
            Ok(rustix::net::send(
                &self.fd,
                packet,
                rustix::net::SendFlags::empty(),
            )?)
        })
        .map(drop)
    }

    /// Sends `bytes` as packets of `packet` bytes; the last packet may be shorter.
    pub fn send_packets(&mut self, bytes: &[u8], packet: usize) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let packet = packet.clamp(1, LARGEST);
        let together = if self.offload && packet * 2 <= LARGEST {
            (LARGEST / packet).min(SEGMENTS)
        } else {
            1
        };
        let together = if together > 1 && self.cut(packet).is_ok() {
            together
        } else {
            1
        };
        if together == 1 {
            self.offload &= packet * 2 > LARGEST;
            self.cut(0)?;
        }
        // One system call per iteration, because Linux may accept fewer messages than it was passed.
        let mut messages = bytes.chunks(packet * together);
        let mut batch = Vec::with_capacity(MESSAGES);
        loop {
            batch.extend(messages.by_ref().take(MESSAGES - batch.len()));
            if batch.is_empty() {
                return Ok(());
            }
            let sent = retry(|| self.send_batch(&batch))?;
            batch.drain(..sent);
        }
    }

    /// Makes Linux split messages into packets of `segment` bytes; 0 disables splitting.
    fn cut(&mut self, segment: usize) -> io::Result<()> {
        if self.segment != segment {
            let value = i32::try_from(segment).unwrap_or(0);
            set_int(self.fd.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, value)?;
            self.segment = segment;
        }
        Ok(())
    }

    /// Sends one message per slice with `sendmmsg`. Returns the number of messages accepted.
    fn send_batch(&self, batch: &[&[u8]]) -> io::Result<usize> {
        let count = batch.len().min(MESSAGES);
        let mut pieces = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; MESSAGES];
        // SAFETY: `mmsghdr` is a plain C structure of integers and pointers, for which all zero is valid.
        let mut headers: [libc::mmsghdr; MESSAGES] = unsafe { std::mem::zeroed() };
        for ((bytes, piece), header) in batch.iter().zip(&mut pieces).zip(&mut headers) {
            *piece = libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            };
            header.msg_hdr.msg_iov = &raw mut *piece;
            header.msg_hdr.msg_iovlen = 1;
        }
        let vlen = libc::c_uint::try_from(count).expect("at most 64");
        // SAFETY:
        // - Each of the first `vlen` headers points to one piece, which points to a slice of `batch`.
        // - All of them live until the call returns, and Linux only reads the slices.
        // - The descriptor is open, because `self` owns it.
        let sent = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), headers.as_mut_ptr(), vlen, 0) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Repeats a call that was interrupted, found the send queue full, or reported the rejection of an earlier packet.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    // Each rejection by the remote host is reported once; the limit prevents an endless loop in a broken network.
    for _ in 0..10_000 {
        match call() {
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::INTR | Errno::CONNREFUSED) => {}
                Some(Errno::AGAIN | Errno::NOBUFS) => std::thread::yield_now(),
                _ => return Err(error),
            },
            done => return done,
        }
    }
    call()
}
