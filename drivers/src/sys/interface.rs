//! What the kernel says of a network interface, in the network namespace of this thread.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `ETHTOOL_GCHANNELS` of `linux/ethtool.h`.
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_channels` of `linux/ethtool.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// An interface that exists.
#[derive(Clone, Debug)]
pub struct Interface {
    name: String,
    index: u32,
}

/// A socket through which interfaces are asked about.
fn any_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// A request about the interface `name`, with nothing in it yet.
fn request(name: &str) -> Result<libc::ifreq, Errno> {
    // SAFETY: a plain C structure of integers and pointers, for which all zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(Errno::NODEV);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}

/// `ioctl(socket, code, request)`.
///
/// # Safety
/// `request` must hold what the request `code` reads, and pointers in it must be valid for what it does.
unsafe fn ask(
    socket: BorrowedFd<'_>,
    code: libc::c_ulong,
    request: &mut libc::ifreq,
) -> Result<(), Errno> {
    // SAFETY: the structure is borrowed mutably for the call; the caller vouches for what it holds.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), code as _, std::ptr::from_mut(request)) };
    if result >= 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

/// The name of the interface that has the IPv4 address `address`.
fn name_of(address: Ipv4Addr) -> io::Result<Option<String>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes one pointer to `first`, which lives for the call. On success it is the head of a list that
    // is ours until it is freed below, once.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut name = None;
    let mut next = first;
    while !next.is_null() && name.is_none() {
        // SAFETY: `next` is an element of the list, which is not freed yet; no one writes to it.
        let element = unsafe { &*next };
        let found = element.ifa_addr;
        // SAFETY: an address that is there begins with its family, whatever it is.
        if !found.is_null() && i32::from(unsafe { (*found).sa_family }) == libc::AF_INET {
            // SAFETY: of this family it is a `sockaddr_in`; read without asking for its alignment.
            let found: libc::sockaddr_in =
                unsafe { found.cast::<libc::sockaddr_in>().read_unaligned() };
            if Ipv4Addr::from_bits(u32::from_be(found.sin_addr.s_addr)) == address {
                // SAFETY: an element's name is a string that ends with zero and lives as long as the list.
                let text = unsafe { std::ffi::CStr::from_ptr(element.ifa_name) };
                // An address with a label is listed as `eth0:1`.
                let text = text.to_string_lossy();
                name = text.split(':').next().map(str::to_owned);
            }
        }
        next = element.ifa_next;
    }
    // SAFETY: `first` is the head that `getifaddrs` gave, freed here only; nothing that points into it is kept.
    unsafe { libc::freeifaddrs(first) };
    Ok(name)
}

impl Interface {
    /// The interface `name`.
    pub fn find(name: &str) -> Result<Self, Errno> {
        let index = rustix::net::netdevice::name_to_index(any_socket()?, name)?;
        Ok(Self {
            name: name.to_owned(),
            index,
        })
    }

    /// The interface that has the IPv4 address `address`; none where none has.
    pub fn with_address(address: Ipv4Addr) -> io::Result<Option<Self>> {
        let name = name_of(address)?;
        Ok(name.map(|name| Self::find(&name)).transpose()?)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Bytes of a packet after the Ethernet header, at most.
    pub fn mtu(&self) -> Result<usize, Errno> {
        let mut request = request(&self.name)?;
        // SAFETY: the request has a name that ends in a zero and no pointer; the kernel writes an int into it.
        unsafe { ask(any_socket()?.as_fd(), libc::SIOCGIFMTU, &mut request) }?;
        // SAFETY: the kernel has just written this field; any bytes make an int.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        usize::try_from(mtu).map_err(|_| Errno::INVAL)
    }

    /// Its MAC address; zeroes where it has none, as the loopback interface.
    pub fn mac(&self) -> Result<[u8; 6], Errno> {
        let mut request = request(&self.name)?;
        // SAFETY: the request has a name that ends in a zero and no pointer; the kernel writes an address into it.
        unsafe { ask(any_socket()?.as_fd(), libc::SIOCGIFHWADDR, &mut request) }?;
        // SAFETY: the kernel has just written this field; any bytes make an address.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        Ok(std::array::from_fn(|i| address.sa_data[i].cast_unsigned()))
    }

    /// The receive queues, if the driver reports them.
    pub fn queues(&self) -> Option<u32> {
        let mut channels = Channels {
            command: ETHTOOL_GCHANNELS,
            ..Channels::default()
        };
        let mut request = request(&self.name).ok()?;
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
        let socket = any_socket().ok()?;
        // SAFETY: the request has a name that ends in a zero and points to the structure that this command reads and
        // writes, which lives until after the call.
        unsafe { ask(socket.as_fd(), libc::SIOCETHTOOL, &mut request) }.ok()?;
        Some(channels.receive + channels.combined).filter(|queues| *queues > 0)
    }

    /// The NUMA node that it is attached to, where it is attached to one.
    pub fn node(&self) -> Option<u32> {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/sys/class/net/{}/{file}", self.name)).ok()
        };
        // The files may be those of another network namespace than this thread's.
        let is_it = read("ifindex")?.trim().parse() == Ok(self.index);
        is_it.then(|| read("device/numa_node")?.trim().parse().ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_address_and_foreign_address_is_not_found() {
        let loopback = Interface::with_address(Ipv4Addr::LOCALHOST)
            .unwrap()
            .unwrap();
        assert_eq!((loopback.name(), loopback.mac()), ("lo", Ok([0; 6])));
        let stranger = Interface::with_address(Ipv4Addr::new(192, 0, 2, 1)).unwrap();
        assert!(stranger.is_none());
    }
}
