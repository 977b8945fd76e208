//! UDP sockets of sources: large receive buffer, coalescing, Linux timestamps and multicast.
//!
//! Optional settings (buffer size, coalescing, timestamps, busy polling) are requested, and the granted values are
//! logged. Mandatory settings (address, group, interface) cause an error that names the fix.

use super::filter::{self, Accepted};
use crate::packet::Selector;
use crate::sender::Allowed;
pub use daq_net::interface::{Interface, SocketError};
use daq_net::interface::{interface_index, scoped};
pub(super) use daq_net::set_int;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Maximum size in bytes of the receive buffer that can be requested, because Linux stores twice the value in an int.
pub const LARGEST_BUFFER: usize = i32::MAX as usize / 2;

/// Flags of `SO_TIMESTAMPING`, from `linux/net_tstamp.h`.
const RX_HARDWARE: i32 = 1 << 2;
const RX_SOFTWARE: i32 = 1 << 3;
const REPORT_SOFTWARE: i32 = 1 << 4;
const REPORT_RAW_HARDWARE: i32 = 1 << 6;

/// The receive times of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamps {
    /// No times.
    #[default]
    Off,
    /// The time at which Linux received a message.
    Software,
    /// The time at which the network card received a message, if the card reports it, otherwise the time of Linux.
    Hardware,
}

/// Options of a socket.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Allow other sockets of the same user to share the port. Linux distributes unicast flows over them.
    pub reuse_port: bool,
    /// Requested receive buffer in bytes; 0 keeps the system's default.
    pub receive_buffer: usize,
    /// Allow Linux to return several packets of a flow as one message.
    pub coalesce: bool,
    /// The receive times of messages that are requested from Linux.
    pub timestamps: Timestamps,
    /// Maximum time that a receive call polls the device queue instead of sleeping; zero keeps the system's default.
    pub busy_poll: Duration,
    /// Multicast groups to join. If the bound address is a multicast group, the socket joins that group too.
    pub groups: Vec<IpAddr>,
    /// Senders whose packets are accepted; empty for every sender. Linux drops packets from other senders.
    pub from: Vec<Allowed>,
    /// The streams whose packets are accepted; `None` for every stream. Linux drops other packets.
    pub streams: Option<Selector>,
    /// Drop all packets until `accept_packets` is called, or another filter of senders is attached. Packets are not
    /// coalesced until [`UdpSocket::coalesce`] is called.
    pub closed: bool,
    /// Interface on which to join the groups; if `None`, the routing table selects the interface.
    pub interface: Option<Interface>,
}

/// The result of requesting a receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Requested size in bytes; 0 if no size was requested.
    pub asked: usize,
    /// Granted size in bytes, in the same unit as `asked`. (Linux reserves twice as much for its own overhead.)
    pub got: usize,
    /// Whether the process exceeded the system's limit by privilege (`CAP_NET_ADMIN`).
    pub forced: bool,
}

impl Granted {
    /// Returns whether less was granted than requested.
    pub const fn is_short(&self) -> bool {
        self.got < self.asked
    }
}

impl fmt::Display for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asked, got) = (self.asked, self.got);
        if asked > LARGEST_BUFFER {
            write!(
                f,
                "receive buffer: {got} of {asked} bytes granted; Linux grants at most {LARGEST_BUFFER} bytes"
            )
        } else if self.is_short() {
            write!(
                f,
                "receive buffer: {got} of {asked} bytes granted, so bursts may be lost; raise the limit: \
                 sudo sysctl -w net.core.rmem_max={asked}"
            )
        } else {
            write!(
                f,
                "receive buffer: {} bytes{}",
                self.got,
                if self.forced {
                    " (limit overridden)"
                } else {
                    ""
                }
            )
        }
    }
}

/// Memory use of a socket, from `SO_MEMINFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// Number of bytes in the receive buffer, including the overhead of Linux.
    pub queued: u32,
    /// Maximum number of bytes in the receive buffer, including the overhead of Linux.
    pub limit: u32,
    /// Number of messages dropped since the socket was opened, because the buffer was full or a checksum was wrong.
    /// With coalescing, a message contains many packets, so this shows that packets were lost but not how many.
    pub drops: u32,
}

/// A bound, non-blocking UDP socket for receiving.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    local: SocketAddr,
    granted: Granted,
    coalesces: bool,
    streams: Option<Selector>,
}

impl UdpSocket {
    /// Binds `address` and joins the multicast groups. For port 0, Linux selects a free port: see [`Self::local`].
    pub fn open(address: SocketAddr, options: &Options) -> Result<Self, SocketError> {
        let fd = create(address)?;
        let address = scoped(fd.as_fd(), address, options.interface.as_ref())?;
        let call = |action| {
            move |source| SocketError::Call {
                action,
                address,
                source,
            }
        };
        let io_call = |action| {
            move |error: io::Error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
                call(action)(errno)
            }
        };
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, true).map_err(call("restrict the socket to IPv6"))?;
        }
        if options.reuse_port {
            sockopt::set_socket_reuseport(&fd, true).map_err(call("share the port"))?;
        }
        if address.ip().is_multicast() {
            // Every socket bound to a group receives all packets of the group, so sharing the address is safe.
            sockopt::set_socket_reuseaddr(&fd, true).map_err(call("share the group"))?;
        }
        // Before bind, so that an ongoing flow finds the full buffer.
        let granted = size_buffer(fd.as_fd(), options.receive_buffer)
            .map_err(call("set the size of the receive buffer"))?;
        let coalesces = options.coalesce && coalesce(fd.as_fd(), true).is_ok();
        if coalesces && options.closed {
            // Linux counts a coalesced message that it drops as one packet.
            coalesce(fd.as_fd(), false).map_err(io_call("receive packets one by one"))?;
        }
        // Failure is ignored, because frames then only lack the receive time.
        let _ = match options.timestamps {
            Timestamps::Off => Ok(()),
            Timestamps::Software => set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1),
            Timestamps::Hardware => {
                let flags = RX_HARDWARE | RX_SOFTWARE | REPORT_SOFTWARE | REPORT_RAW_HARDWARE;
                set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags)
            }
        };
        let busy = i32::try_from(options.busy_poll.as_micros()).unwrap_or(i32::MAX);
        if busy > 0 {
            // Values above the system's default need a privilege. Failure is ignored, because it only increases
            // latency.
            let _ = set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BUSY_POLL, busy);
        }
        only_joined(fd.as_fd(), address);
        let accepted = Accepted {
            from: match (options.closed, &options.from[..]) {
                (true, _) => Some(&[]),
                (false, []) => None,
                (false, from) => Some(from),
            },
            streams: options.streams.as_ref(),
        };
        if accepted.from.is_some() || accepted.streams.is_some() {
            // Before bind, so that no other packet can arrive before the filter is active.
            filter::attach(fd.as_fd(), accepted, address.is_ipv4())
                .map_err(io_call("attach the filter of senders and streams"))?;
        }
        rustix::net::bind(&fd, &address).map_err(|source| match source {
            Errno::ADDRINUSE => SocketError::InUse { address },
            Errno::ACCESS | Errno::PERM => SocketError::NotPermitted { address },
            Errno::ADDRNOTAVAIL => SocketError::NoSuchAddress { address },
            source => SocketError::Call {
                action: "bind",
                address,
                source,
            },
        })?;
        let bound = address.ip();
        for group in options
            .groups
            .iter()
            .copied()
            .chain(bound.is_multicast().then_some(bound))
        {
            join(fd.as_fd(), group, options.interface.as_ref())?;
        }
        let local = rustix::net::getsockname(&fd)
            .and_then(SocketAddr::try_from)
            .map_err(call("read the bound address"))?;
        Ok(Self {
            fd,
            local,
            granted,
            coalesces,
            streams: options.streams.clone(),
        })
    }

    /// Accepts packets of the senders `allowed`, or of every sender if there are none. Returns the number of packets that the
    /// socket has dropped before. For a socket that was opened [`closed`](Options::closed).
    pub(crate) fn accept_packets(&self, allowed: &[Allowed]) -> io::Result<u32> {
        let accepted = Accepted {
            from: (!allowed.is_empty()).then_some(allowed),
            streams: self.streams.as_ref(),
        };
        if accepted.from.is_none() && accepted.streams.is_none() {
            filter::detach(self.fd.as_fd())?;
        } else {
            filter::attach(self.fd.as_fd(), accepted, self.local.is_ipv4())?;
        }
        Ok(self.mem_info()?.drops)
    }

    /// Drops the packets that arrive from now on.
    pub(crate) fn drop_packets(&self) -> io::Result<()> {
        let none = Accepted {
            from: Some(&[]),
            streams: None,
        };
        filter::attach(self.fd.as_fd(), none, self.local.is_ipv4())
    }

    /// Makes Linux deliver the datagrams to the port of this socket, which several sockets share, to the sockets of `selectors`, which
    /// are in the order in which the sockets were opened.
    pub(crate) fn select(&self, selectors: &[&Selector]) -> io::Result<()> {
        filter::select(self.fd.as_fd(), selectors)
    }

    /// Allows Linux to return several packets as one message if it supports that.
    pub fn coalesce(&self) -> io::Result<()> {
        if self.coalesces {
            coalesce(self.fd.as_fd(), true)?;
        }
        Ok(())
    }

    /// Returns the bound address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the size of the receive buffer.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// Returns whether Linux may return several packets as one message.
    pub fn coalesces(&self) -> bool {
        self.coalesces
    }

    /// Waits until a message can be received, at most `timeout`. Returns false on timeout.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        wait_readable(self.fd.as_fd(), timeout)
    }

    /// Reads the socket's memory use and drops, with one system call.
    pub fn mem_info(&self) -> io::Result<MemInfo> {
        mem_info(self.fd.as_fd())
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until a message can be received from a socket, at most `timeout`. Returns false on timeout.
pub(super) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec {
        tv_sec: 3600,
        tv_nsec: 0,
    });
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match rustix::event::poll(&mut fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Creates a non-blocking UDP socket of the address's family.
fn create(address: SocketAddr) -> Result<OwnedFd, SocketError> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::DGRAM, flags, None).map_err(|source| {
        SocketError::Call {
            action: "open a socket",
            address,
            source,
        }
    })
}

/// Allows Linux to return several packets of a flow as one message, or forbids it.
fn coalesce(fd: BorrowedFd<'_>, is_allowed: bool) -> io::Result<()> {
    set_int(fd, libc::SOL_UDP, libc::UDP_GRO, is_allowed.into())
}

/// Requests `asked` bytes of receive buffer, beyond the system's limit if permitted.
fn size_buffer(fd: BorrowedFd<'_>, asked: usize) -> Result<Granted, Errno> {
    let wanted = asked.min(LARGEST_BUFFER);
    let mut forced = false;
    if wanted > 0 {
        sockopt::set_socket_recv_buffer_size(fd, wanted)?;
        if sockopt::socket_recv_buffer_size(fd)? / 2 < wanted {
            forced = sockopt::set_socket_recv_buffer_size_force(fd, wanted).is_ok();
        }
    }
    Ok(Granted {
        asked,
        got: sockopt::socket_recv_buffer_size(fd)? / 2,
        forced,
    })
}

/// Excludes groups that other programs have joined. Older Linux versions cannot do this; then the packet format rejects
/// such packets.
fn only_joined(fd: BorrowedFd<'_>, address: SocketAddr) {
    /// Socket option from `linux/in6.h`; the libc crate defines this constant for some C libraries only.
    const IPV6_MULTICAST_ALL: i32 = 29;
    let _ = match address {
        SocketAddr::V4(_) => set_int(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0),
        SocketAddr::V6(_) => set_int(fd, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0),
    };
}

fn join(
    fd: BorrowedFd<'_>,
    group: IpAddr,
    interface: Option<&Interface>,
) -> Result<(), SocketError> {
    if !group.is_multicast() {
        return Err(SocketError::NoGroup { group });
    }
    let joined = match (group, interface) {
        (IpAddr::V4(group), Some(Interface::Address(address))) => {
            sockopt::set_ip_add_membership(fd, &group, address)
        }
        (IpAddr::V4(group), named) => {
            let index = interface_index(fd, group.into(), named)?;
            sockopt::set_ip_add_membership_with_ifindex(fd, &group, &Ipv4Addr::UNSPECIFIED, index)
        }
        (IpAddr::V6(group), named) => {
            sockopt::set_ipv6_add_membership(fd, &group, interface_index(fd, group.into(), named)?)
        }
    };
    joined.map_err(|source| SocketError::Join {
        group,
        interface: interface.cloned(),
        source,
    })
}

/// Reads `SO_MEMINFO`.
fn mem_info(fd: BorrowedFd<'_>) -> io::Result<MemInfo> {
    /// Number of words since Linux 4.12: `SK_MEMINFO_VARS`.
    const WORDS: usize = 9;
    let mut words = [0u32; WORDS];
    let mut length = libc::socklen_t::try_from(size_of_val(&words)).expect("36 fits");
    let (level, name) = (libc::SOL_SOCKET, libc::SO_MEMINFO);
    // SAFETY: `words` and `length` live until the call returns. Linux writes at most `length` bytes, which is the size
    // of `words`, and the written length. Every bit pattern is a valid u32.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            words.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let word = |index: i32| {
        usize::try_from(index)
            .ok()
            .and_then(|index| words.get(index))
            .copied()
            .unwrap_or(0)
    };
    Ok(MemInfo {
        queued: word(libc::SK_MEMINFO_RMEM_ALLOC),
        limit: word(libc::SK_MEMINFO_RCVBUF),
        drops: word(libc::SK_MEMINFO_DROPS),
    })
}
