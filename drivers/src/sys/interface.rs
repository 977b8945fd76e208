//! Properties of a network interface in this thread's network namespace.

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
    max: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// `ETHTOOL_GET_TS_INFO` of `linux/ethtool.h`.
const ETHTOOL_GET_TS_INFO: u32 = 0x41;
/// `SIOCGHWTSTAMP` of `linux/sockios.h`.
const SIOCGHWTSTAMP: libc::c_ulong = 0x89b1;
/// `SOF_TIMESTAMPING_RX_HARDWARE` and `SOF_TIMESTAMPING_RAW_HARDWARE` of `linux/net_tstamp.h`.
const RX_AND_RAW_HARDWARE: u32 = 1 << 2 | 1 << 6;
/// `HWTSTAMP_FILTER_ALL` of `linux/net_tstamp.h`: the card timestamps all packets that it receives.
const FILTER_ALL: u32 = 1;

/// `struct ethtool_ts_info` of `linux/ethtool.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct TimestampInfo {
    command: u32,
    flags: u32,
    clock: i32,
    transmit_types: u32,
    reserved: [u32; 3],
    receive_filters: u32,
    reserved_too: [u32; 3],
}
const _: () = assert!(size_of::<TimestampInfo>() == 44);

/// `struct hwtstamp_config` of `linux/net_tstamp.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct TimestampConfig {
    flags: i32,
    transmit_type: u32,
    receive_filter: u32,
}

/// The hardware timestamps of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamping {
    /// Whether the card can report the time at which it received a packet.
    can_report: bool,
    /// Bit `n` is set if the card supports the receive filter `n` of `linux/net_tstamp.h`.
    filters: u32,
    /// Number of the PTP clock, `N` of `/dev/ptpN`; `None` if the card has no PTP clock.
    clock: Option<u32>,
    /// The receive filter in use; `None` if the driver does not report it.
    filter: Option<u32>,
}

impl Timestamping {
    /// Returns whether the card can timestamp all packets that it receives.
    pub const fn can_receive(&self) -> bool {
        self.can_report && self.filters >> FILTER_ALL & 1 == 1
    }

    /// Returns whether the card timestamps all packets that it receives.
    pub fn is_on(&self) -> bool {
        self.can_report && self.filter == Some(FILTER_ALL)
    }

    /// Returns the number of the PTP clock, `N` of `/dev/ptpN`.
    pub const fn clock(&self) -> Option<u32> {
        self.clock
    }
}

/// Returns the hardware timestamps of the interface `name`, or `None` if there is no such interface or its driver has no
/// information about timestamps.
pub fn timestamping(name: &str) -> Option<Timestamping> {
    Interface::find(name).ok()?.timestamping()
}

/// An interface that exists.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    name: String,
    index: u32,
}

/// Opens a socket for ioctls about interfaces.
fn any_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// Returns an empty request for the interface `name`.
fn request(name: &str) -> Result<libc::ifreq, Errno> {
    // SAFETY: `ifreq` is a plain C structure of integers and pointers, for which all zero is valid.
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
/// `request` must contain the input of `code`, and its pointers must be valid for all accesses of the call.
unsafe fn ask(
    socket: BorrowedFd<'_>,
    code: libc::c_ulong,
    request: &mut libc::ifreq,
) -> Result<(), Errno> {
    // SAFETY: the structure is mutably borrowed for the call. The caller guarantees its contents.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), code as _, std::ptr::from_mut(request)) };
    if result >= 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

/// Calls `visit` with each IPv4 address of this machine, its subnet mask and the name of its interface, until it returns a value.
fn find_address<T>(
    mut visit: impl FnMut(Ipv4Addr, Ipv4Addr, &std::ffi::CStr) -> Option<T>,
) -> io::Result<Option<T>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes one pointer to `first`, which lives longer than the call. On success, `first` is the head
    // of a list that this function owns and frees once below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut result = None;
    let mut next = first;
    while !next.is_null() && result.is_none() {
        // SAFETY: `next` is an element of the list, which is not freed yet and which nothing modifies.
        let element = unsafe { &*next };
        // SAFETY: these are the pointers of an element of the list, which are null or point to socket addresses.
        let (found, mask) = unsafe { (ipv4(element.ifa_addr), ipv4(element.ifa_netmask)) };
        if let Some(found) = found {
            // SAFETY: the name of an element is a zero-terminated string that lives as long as the list.
            let name = unsafe { std::ffi::CStr::from_ptr(element.ifa_name) };
            result = visit(found, mask.unwrap_or(Ipv4Addr::BROADCAST), name);
        }
        next = element.ifa_next;
    }
    // SAFETY: `first` is the head of the list from `getifaddrs`. It is freed only here, and no pointer into the list is
    // used afterwards.
    unsafe { libc::freeifaddrs(first) };
    Ok(result)
}

/// Returns the IPv4 address in `found`; `None` if it has another family.
///
/// # Safety
/// `found` must be null, or point to a socket address.
unsafe fn ipv4(found: *const libc::sockaddr) -> Option<Ipv4Addr> {
    // SAFETY: the pointer is not null, and every socket address begins with its family.
    if found.is_null() || i32::from(unsafe { (*found).sa_family }) != libc::AF_INET {
        return None;
    }
    // SAFETY: a socket address of this family is a `sockaddr_in`. The read does not require alignment.
    let found: libc::sockaddr_in = unsafe { found.cast::<libc::sockaddr_in>().read_unaligned() };
    Some(Ipv4Addr::from_bits(u32::from_be(found.sin_addr.s_addr)))
}

/// Returns the subnet mask of the interface whose network contains `address`.
pub fn netmask(address: Ipv4Addr) -> Option<Ipv4Addr> {
    let found = find_address(|found, mask, _| (found & mask == address & mask).then_some(mask));
    found.ok().flatten()
}

/// Returns the name of the interface that has the IPv4 address `address`.
fn name_of(address: Ipv4Addr) -> io::Result<Option<String>> {
    find_address(|found, _, name| {
        // An address with a label appears as `eth0:1`.
        let name = name.to_string_lossy();
        let name = name.split(':').next().unwrap_or_default();
        (found == address).then(|| name.to_owned())
    })
}

/// Returns the IPv4 addresses of this machine.
pub(crate) fn addresses() -> io::Result<Vec<Ipv4Addr>> {
    let mut addresses = Vec::new();
    find_address(|address, _, _| {
        addresses.push(address);
        None::<()>
    })?;
    Ok(addresses)
}

impl Interface {
    /// Returns the interface `name`.
    pub(crate) fn find(name: &str) -> Result<Self, Errno> {
        let index = rustix::net::netdevice::name_to_index(any_socket()?, name)?;
        Ok(Self {
            name: name.to_owned(),
            index,
        })
    }

    /// Returns the interface that has the IPv4 address `address`, or `None` if no interface has this address.
    pub(crate) fn with_address(address: Ipv4Addr) -> io::Result<Option<Self>> {
        let name = name_of(address)?;
        Ok(name.map(|name| Self::find(&name)).transpose()?)
    }

    /// Returns the name of the interface.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the index of the interface.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Returns the MTU: the maximum size in bytes of a packet after the Ethernet header.
    pub(crate) fn mtu(&self) -> Result<usize, Errno> {
        let mut request = request(&self.name)?;
        // SAFETY: the request contains a zero-terminated name and no pointer. Linux writes an int into it.
        unsafe { ask(any_socket()?.as_fd(), libc::SIOCGIFMTU, &mut request) }?;
        // SAFETY: Linux has just written this field, and every bit pattern is a valid int.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        usize::try_from(mtu).map_err(|_| Errno::INVAL)
    }

    /// Returns the MAC address; all zero if the interface has none, such as the loopback interface.
    pub(crate) fn mac(&self) -> Result<[u8; 6], Errno> {
        let mut request = request(&self.name)?;
        // SAFETY: the request contains a zero-terminated name and no pointer. Linux writes an address into it.
        unsafe { ask(any_socket()?.as_fd(), libc::SIOCGIFHWADDR, &mut request) }?;
        // SAFETY: Linux has just written this field, and every bit pattern is a valid address.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        Ok(std::array::from_fn(|i| address.sa_data[i].cast_unsigned()))
    }

    /// Returns the number of receive queues, if the driver reports it.
    pub(crate) fn queues(&self) -> Option<u32> {
        let mut channels = Channels {
            command: ETHTOOL_GCHANNELS,
            ..Channels::default()
        };
        let mut request = request(&self.name).ok()?;
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
        let socket = any_socket().ok()?;
        // SAFETY: the request contains a zero-terminated name and a pointer to the structure that this command reads
        // and writes. The structure lives until the call returns.
        unsafe { ask(socket.as_fd(), libc::SIOCETHTOOL, &mut request) }.ok()?;
        Some(channels.receive + channels.combined).filter(|queues| *queues > 0)
    }

    /// Returns the hardware timestamps of the interface, if its driver has information about them.
    pub(crate) fn timestamping(&self) -> Option<Timestamping> {
        let mut info = TimestampInfo {
            command: ETHTOOL_GET_TS_INFO,
            ..TimestampInfo::default()
        };
        let socket = any_socket().ok()?;
        let mut first = request(&self.name).ok()?;
        first.ifr_ifru.ifru_data = (&raw mut info).cast();
        // SAFETY: the request contains a zero-terminated name and a pointer to the structure that this command reads
        // and writes. The structure lives until the call returns.
        unsafe { ask(socket.as_fd(), libc::SIOCETHTOOL, &mut first) }.ok()?;
        let mut config = TimestampConfig::default();
        let mut second = request(&self.name).ok()?;
        second.ifr_ifru.ifru_data = (&raw mut config).cast();
        // SAFETY: as above. The command writes the structure and changes nothing.
        let is_known = unsafe { ask(socket.as_fd(), SIOCGHWTSTAMP, &mut second) }.is_ok();
        Some(Timestamping {
            can_report: info.flags & RX_AND_RAW_HARDWARE == RX_AND_RAW_HARDWARE,
            filters: info.receive_filters,
            clock: u32::try_from(info.clock).ok(),
            filter: is_known.then_some(config.receive_filter),
        })
    }

    /// Returns the NUMA node of the interface, if it has one.
    pub(crate) fn node(&self) -> Option<u32> {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/sys/class/net/{}/{file}", self.name)).ok()
        };
        // The files in sysfs may belong to a different network namespace than this thread's, so compare the index.
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
        let timestamps = loopback.timestamping();
        assert!(
            timestamps.is_none_or(|state| !state.can_receive() && !state.is_on()),
            "{timestamps:?}"
        );
        let unknown = Interface::with_address(Ipv4Addr::new(192, 0, 2, 1)).unwrap();
        assert!(unknown.is_none());
    }
}
