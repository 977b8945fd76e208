//! What the kernel says of a network interface, in the network namespace of this thread.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
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

impl Interface {
    /// The interface `name`.
    pub fn find(name: &str) -> Result<Self, Errno> {
        let index = rustix::net::netdevice::name_to_index(any_socket()?, name)?;
        Ok(Self {
            name: name.to_owned(),
            index,
        })
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

    /// Its receive queues, where its driver tells.
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
