//! UDP sockets as a source needs them: large receive buffer, coalescing, kernel timestamps, multicast.
//!
//! Everything that is a wish (buffer size, coalescing, timestamps, busy polling) is asked for, and what
//! was granted is logged; everything that is a must (address, group, interface) is an error with its remedy.

use super::filter;
use crate::sender::Allowed;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The largest receive buffer that can be asked for: the kernel keeps twice the value in an int.
pub const LARGEST_BUFFER: usize = i32::MAX as usize / 2;

/// Which network interface a multicast group is joined on or sent from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interface {
    /// By name, like `eth0`.
    Name(String),
    /// By an IPv4 address that it has.
    Address(Ipv4Addr),
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl From<&str> for Interface {
    fn from(text: &str) -> Self {
        text.parse()
            .map_or_else(|_| Self::Name(text.to_owned()), Self::Address)
    }
}

/// Options of a socket.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Let other sockets of this user share the port; the kernel spreads unicast flows over them.
    pub reuse_port: bool,
    /// Bytes of receive buffer to ask for; 0 leaves the system's default.
    pub receive_buffer: usize,
    /// Let the kernel hand over several packets of a flow as one message.
    pub coalesce: bool,
    /// Have the kernel tell when it received each message.
    pub timestamps: bool,
    /// How long a receive call may poll the device queue instead of sleeping; zero leaves the system's default.
    pub busy_poll: Duration,
    /// Multicast groups to join beside the bound address, which is joined by itself where it is one.
    pub groups: Vec<IpAddr>,
    /// Senders whose packets are accepted, the others' are dropped by the kernel; empty = every sender.
    pub from: Vec<Allowed>,
    /// Where to join; the routing table decides where this is not given.
    pub interface: Option<Interface>,
}

/// What came of asking for a receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Bytes asked for; 0 where nothing was.
    pub asked: usize,
    /// Bytes granted, in the same count (the kernel itself books twice that, for its own overhead).
    pub got: usize,
    /// Whether the system's limit was overridden by privilege (`CAP_NET_ADMIN`).
    pub forced: bool,
}

impl Granted {
    /// Whether less was granted than asked for.
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
                "receive buffer: {got} of {asked} bytes granted; no kernel grants more than {LARGEST_BUFFER}"
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

/// Memory of a socket, from `SO_MEMINFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// Bytes that wait in the receive buffer, with the kernel's overhead.
    pub queued: u32,
    /// Bytes that may wait there, with the kernel's overhead.
    pub limit: u32,
    /// Messages dropped since the socket was opened, because the buffer was full or a checksum was wrong.
    /// With coalescing a message is many packets: evidence for a loss, never its amount.
    pub drops: u32,
}

/// Why a socket could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Someone else has the port.
    #[error(
        "the port is in use by another program: stop it (`ss -lunp sport = :{}` names it) or listen on another port",
        address.port()
    )]
    InUse {
        /// What was to be bound.
        address: SocketAddr,
    },
    /// The port needs a privilege.
    #[error("no permission to bind it: take a port above 1023, or grant CAP_NET_BIND_SERVICE")]
    NotPermitted {
        /// What was to be bound.
        address: SocketAddr,
    },
    /// The address belongs to no interface here.
    #[error(
        "this machine does not have this address: `ip address` lists them; 0.0.0.0 or [::] takes all"
    )]
    NoSuchAddress {
        /// What was to be bound.
        address: SocketAddr,
    },
    /// The interface does not exist, or a group cannot be joined on it.
    #[error("there is no interface {interface}: `ip link` lists them")]
    NoSuchInterface {
        /// What was asked for.
        interface: Interface,
    },
    /// IPv6 groups know interfaces by name only.
    #[error("the group {group} is IPv6: give the interface by its name instead of {interface}")]
    InterfaceNeedsName {
        /// The group.
        group: IpAddr,
        /// What was asked for.
        interface: Interface,
    },
    /// A group cannot be joined.
    #[error(
        "cannot join {group}{}: {source}; name an interface that is up and has a route for it",
        interface.as_ref().map(|i| format!(" on {i}")).unwrap_or_default()
    )]
    Join {
        /// The group.
        group: IpAddr,
        /// Where it was to be joined.
        interface: Option<Interface>,
        /// The kernel's answer.
        source: Errno,
    },
    /// An address that is no multicast group was given as one.
    #[error("{group} is no multicast group: groups are 224.0.0.0 to 239.255.255.255 and ff00::/8")]
    NoGroup {
        /// What was given.
        group: IpAddr,
    },
    /// Anything else.
    #[error("cannot {action} for {address}: {source}")]
    Call {
        /// What was tried.
        action: &'static str,
        /// For which address.
        address: SocketAddr,
        /// The kernel's answer.
        source: Errno,
    },
}

/// A bound, non-blocking UDP socket that receives.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    local: SocketAddr,
    granted: Granted,
    coalesces: bool,
    stamps: bool,
}

impl UdpSocket {
    /// Binds `address` and joins what is to be joined. Port 0 takes a free one: see [`Self::local`].
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
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, true).map_err(call("restrict the socket to IPv6"))?;
        }
        if options.reuse_port {
            sockopt::set_socket_reuseport(&fd, true).map_err(call("share the port"))?;
        }
        if address.ip().is_multicast() {
            // Each socket bound to a group receives each of its packets, so sharing takes nothing from anyone.
            sockopt::set_socket_reuseaddr(&fd, true).map_err(call("share the group"))?;
        }
        // Before bind: a flow that is already there must find the full buffer.
        let granted = size_buffer(fd.as_fd(), options.receive_buffer)
            .map_err(call("size the receive buffer"))?;
        let coalesces =
            options.coalesce && set_int(fd.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        let stamps = options.timestamps
            && set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1).is_ok();
        let busy = i32::try_from(options.busy_poll.as_micros()).unwrap_or(i32::MAX);
        if busy > 0 {
            // Raising it above the system's value needs a privilege; without it reception is only later.
            let _ = set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BUSY_POLL, busy);
        }
        only_joined(fd.as_fd(), address);
        if !options.from.is_empty() {
            // Before bind: no packet of another sender must be there before the filter is.
            filter::attach(fd.as_fd(), &options.from, address.is_ipv4()).map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
                call("attach the filter of `from`")(errno)
            })?;
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
            stamps,
        })
    }

    /// The bound address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The receive buffer.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// Whether the kernel may hand over several packets as one message.
    pub fn coalesces(&self) -> bool {
        self.coalesces
    }

    /// Whether Linux reports receive timestamps.
    pub fn stamps(&self) -> bool {
        self.stamps
    }

    /// Waits until something can be received, at most `timeout`; `false` when nothing came.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec {
            tv_sec: 3600,
            tv_nsec: 0,
        });
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The socket's memory and drops; one system call.
    pub fn mem_info(&self) -> io::Result<MemInfo> {
        mem_info(self.fd.as_fd())
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `address` with the interface that a link-local address (group or not) has no meaning without.
pub(super) fn scoped(
    fd: BorrowedFd<'_>,
    address: SocketAddr,
    interface: Option<&Interface>,
) -> Result<SocketAddr, SocketError> {
    let SocketAddr::V6(mut six) = address else {
        return Ok(address);
    };
    // The scope of a group is the low half of its second byte: 1 is the interface, 2 the link.
    let ip = six.ip();
    let is_local = ip.is_unicast_link_local() || (ip.is_multicast() && ip.octets()[1] & 15 <= 2);
    if is_local && six.scope_id() == 0 && interface.is_some() {
        six.set_scope_id(interface_index(fd, address.ip(), interface)?);
    }
    Ok(six.into())
}

/// A non-blocking UDP socket of the address's family.
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

/// Asks for `asked` bytes of receive buffer, past the system's limit where that is allowed.
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

/// Keeps out groups that other programs joined; kernels too old for it let them in, and the format rejects them.
fn only_joined(fd: BorrowedFd<'_>, address: SocketAddr) {
    /// From `linux/in6.h`; the libc crate has it for some C libraries only.
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

/// The kernel's number of the interface, 0 where the routing table is to decide.
pub(super) fn interface_index(
    fd: BorrowedFd<'_>,
    group: IpAddr,
    interface: Option<&Interface>,
) -> Result<u32, SocketError> {
    match interface {
        None => Ok(0),
        Some(Interface::Name(name)) => {
            rustix::net::netdevice::name_to_index(fd, name).map_err(|_| {
                SocketError::NoSuchInterface {
                    interface: Interface::Name(name.clone()),
                }
            })
        }
        Some(interface) => Err(SocketError::InterfaceNeedsName {
            group,
            interface: interface.clone(),
        }),
    }
}

/// `setsockopt` of an option that takes an `int`.
pub(super) fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<i32>()).expect("4 fits");
    // SAFETY: `value` lives for the whole call and `length` is its size; the kernel only reads it. The
    // descriptor is borrowed, so it is open.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            length,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `getsockopt(SO_MEMINFO)`.
fn mem_info(fd: BorrowedFd<'_>) -> io::Result<MemInfo> {
    /// Words that the kernel has had since 4.12: `SK_MEMINFO_VARS`.
    const WORDS: usize = 9;
    let mut words = [0u32; WORDS];
    let mut length = libc::socklen_t::try_from(size_of_val(&words)).expect("36 fits");
    let (level, name) = (libc::SOL_SOCKET, libc::SO_MEMINFO);
    // SAFETY: `words` and `length` live for the whole call; the kernel writes at most `length` bytes, which
    // is the size of `words`, and the written length. Any bytes make a valid u32.
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
