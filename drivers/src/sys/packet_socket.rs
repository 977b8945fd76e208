//! Packet sockets (`AF_PACKET`): a copy of each IP packet that an interface receives, for `daq inspect`.
//!
//! A socket for one protocol receives incoming packets only, so the loopback interface delivers each packet once. A `DGRAM`
//! socket removes the link-layer header, so packets begin with their IP header on each kind of interface.

use super::interface::Interface;
use super::socket::{set_int, wait_readable};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Requested receive buffer in bytes.
const RECEIVE_BUFFER: usize = 64 << 20;

/// The IP version whose packets a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Reason why a packet socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PacketSocketError {
    /// There is no such interface.
    #[error("there is no interface {0}: `ip link` lists all interfaces")]
    NoSuchInterface(String),
    /// The process lacks CAP_NET_RAW.
    #[error("no permission to capture on an interface (CAP_NET_RAW)")]
    NotPermitted,
    /// Any other failed call.
    #[error("cannot {action} to capture on {interface}: {source}")]
    Call {
        /// The attempted action.
        action: &'static str,
        /// Name of the interface.
        interface: String,
        /// Error of the system call.
        source: Errno,
    },
}

/// A non-blocking socket that receives a copy of each incoming packet of an interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens a socket for packets of `version` that arrive at the interface `name`.
    pub fn open(name: &str, version: IpVersion) -> Result<Self, PacketSocketError> {
        let interface = Interface::find(name)
            .map_err(|_| PacketSocketError::NoSuchInterface(name.to_owned()))?;
        let call = |action| {
            move |source| match source {
                Errno::PERM | Errno::ACCESS => PacketSocketError::NotPermitted,
                source => PacketSocketError::Call {
                    action,
                    interface: name.to_owned(),
                    source,
                },
            }
        };
        let ethertype = match version {
            IpVersion::V4 => libc::ETH_P_IP,
            IpVersion::V6 => libc::ETH_P_IPV6,
        };
        // Values of `linux/if_ether.h` have 16 bits.
        let ethertype = u16::try_from(ethertype).unwrap_or_default().to_be();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0: without a protocol, the socket receives nothing until it is bound to the interface.
        let fd = rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)
            .map_err(call("open a socket"))?;
        let _ = sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER);
        let _ = sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER);
        // Failure is ignored, because packets then only lack the receive time.
        let _ = set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
        bind(fd.as_fd(), &interface, ethertype).map_err(call("bind a socket"))?;
        Ok(Self { fd })
    }

    /// Waits until a packet can be received, at most `timeout`. Returns false on timeout.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        wait_readable(self.fd.as_fd(), timeout)
    }

    /// Returns the number of packets that Linux dropped since the last call, because the buffer was full.
    pub fn drops(&self) -> io::Result<u32> {
        /// `struct tpacket_stats` of `linux/if_packet.h`.
        #[repr(C)]
        struct Statistics {
            packets: u32,
            drops: u32,
        }
        let mut statistics = Statistics {
            packets: 0,
            drops: 0,
        };
        #[expect(clippy::cast_possible_truncation, reason = "the size is 8")]
        let mut length = size_of::<Statistics>() as libc::socklen_t;
        // SAFETY: `statistics` and `length` live until the call returns. Linux writes at most `length` bytes, which is the
        // size of `statistics`, and the written length. Every bit pattern is a valid u32.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        if result == 0 {
            Ok(statistics.drops)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Binds a packet socket to `interface` for packets of `protocol`, in network byte order.
fn bind(fd: BorrowedFd<'_>, interface: &Interface, protocol: u16) -> Result<(), Errno> {
    // SAFETY: `sockaddr_ll` is a plain C structure of integers, for which all zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).map_err(|_| Errno::INVAL)?;
    address.sll_protocol = protocol;
    address.sll_ifindex = i32::try_from(interface.index()).map_err(|_| Errno::NODEV)?;
    let length = libc::socklen_t::try_from(size_of_val(&address)).expect("20 fits");
    // SAFETY: `address` lives until the call returns, `length` is its size, and Linux only reads it. The descriptor is
    // open, because it is borrowed.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}
