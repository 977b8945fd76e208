//! Network interfaces by name or address, and why a socket could not be opened.

use rustix::io::Errno;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;

/// The network interface on which a multicast group is joined or to which multicast packets are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Name of the interface, such as `eth0`.
    Name(String),
    /// An IPv4 address of the interface.
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

/// Reason why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another socket uses the port.
    #[error(
        "the port is in use by another program: stop that program (`ss -lunp sport = :{}` names it) or listen on another port",
        address.port()
    )]
    InUse {
        /// The address to bind.
        address: SocketAddr,
    },
    /// The port requires a privilege.
    #[error("no permission to bind the port: use a port above 1023, or grant CAP_NET_BIND_SERVICE")]
    NotPermitted {
        /// The address to bind.
        address: SocketAddr,
    },
    /// No interface of this host has the address.
    #[error(
        "this machine does not have this address: `ip address` lists its addresses; 0.0.0.0 or [::] receives on all of \
         them"
    )]
    NoSuchAddress {
        /// The address to bind.
        address: SocketAddr,
    },
    /// The interface does not exist, or a group cannot be joined on it.
    #[error("there is no interface {interface}: `ip link` lists all interfaces")]
    NoSuchInterface {
        /// The configured interface.
        interface: Interface,
    },
    /// For an IPv6 group, the interface must be given by name.
    #[error("the group {group} is IPv6: set the name of the interface instead of {interface}")]
    InterfaceNeedsName {
        /// The group to join.
        group: IpAddr,
        /// The configured interface.
        interface: Interface,
    },
    /// A group cannot be joined.
    #[error(
        "cannot join {group}{}: {source}; set an interface that is up and has a route for the group",
        interface.as_ref().map(|i| format!(" on {i}")).unwrap_or_default()
    )]
    Join {
        /// The group to join.
        group: IpAddr,
        /// The configured interface.
        interface: Option<Interface>,
        /// Error of the system call.
        source: Errno,
    },
    /// A configured group is not a multicast address.
    #[error(
        "{group} is not a multicast group: groups are 224.0.0.0 to 239.255.255.255 and ff00::/8"
    )]
    NoGroup {
        /// The configured address.
        group: IpAddr,
    },
    /// No route leads to a receiver.
    #[error(
        "there is no route to {}: `ip route get {}` shows the route; set the interface, or bring the link up",
        address.ip(),
        address.ip()
    )]
    NoRoute {
        /// The receiver.
        address: SocketAddr,
    },
    /// Any other failed call.
    #[error("cannot {action} for {address}: {source}")]
    Call {
        /// The attempted action.
        action: &'static str,
        /// The address of the socket.
        address: SocketAddr,
        /// Error of the system call.
        source: Errno,
    },
}

/// Adds the interface number to `address` if it is a link-local address (group or not), which is ambiguous without an interface
/// number.
///
/// `fd` is any socket.
pub fn scoped(
    fd: BorrowedFd<'_>,
    address: SocketAddr,
    interface: Option<&Interface>,
) -> Result<SocketAddr, SocketError> {
    let SocketAddr::V6(mut six) = address else {
        return Ok(address);
    };
    // The scope of a group is the low half of its second byte: 1 is interface-local, 2 is link-local.
    let ip = six.ip();
    let is_local = ip.is_unicast_link_local() || (ip.is_multicast() && ip.octets()[1] & 15 <= 2);
    if is_local && six.scope_id() == 0 && interface.is_some() {
        six.set_scope_id(interface_index(fd, address.ip(), interface)?);
    }
    Ok(six.into())
}

/// Returns the index of `interface`; 0, which lets the routing table select the interface, for `None`. `fd` is any socket.
///
/// Fails for an interface given by address, because only IPv4 groups have such an interface.
pub fn interface_index(
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
