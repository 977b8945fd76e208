//! Sends many packets with few system calls.
//!
//! Packets of equal size are passed to Linux as one message, which Linux or the network card splits into packets
//! (UDP segmentation offload, GSO), and one system call passes many messages. The header and the payload of a packet
//! may be in different places, so that no payload is copied before Linux reads it.

use crate::interface::{Interface, SocketError, interface_index, scoped};
use crate::sys::{Message, SendBatch, allow_send_times, drain_errors, set_bytes, set_int};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

pub use crate::sys::monotonic_ns;

/// Maximum number of messages per system call.
const MESSAGES: usize = 64;
/// Maximum number of packets into which Linux splits one message: `UDP_MAX_SEGMENTS` of older Linux versions.
const SEGMENTS: usize = 64;
/// Maximum UDP payload over IPv4 in bytes.
pub const LARGEST: usize = 65_507;
/// Maximum number of packets of one call of [`Sender::try_send`].
pub const PACKETS: usize = 1024;

/// Options of a [`Sender`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Let Linux split large messages into packets, if it supports that.
    pub offload: bool,
    /// The interface of the packets. If `None`, the routing table selects it.
    pub interface: Option<Interface>,
    /// Maximum number of routers that a packet passes; `None` keeps the system's default, which is 1 for multicast.
    pub ttl: Option<u8>,
    /// The source port; 0 lets Linux select one. Several senders of the same user may share a port.
    pub port: u16,
    /// Requested size of the send buffer in bytes; 0 keeps the system's default.
    pub send_buffer: usize,
    /// Allow [send times](Pace).
    pub paced: bool,
    /// Fail for packets that exceed the MTU instead of fragmenting them, and report packets that the network could not
    /// deliver.
    pub strict: bool,
}

/// A packet in two buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// The bytes before the payload, in the buffer of headers.
    pub header: Range<usize>,
    /// The payload, in the buffer of payloads.
    pub payload: Range<usize>,
    /// The bytes after the payload, in the buffer of headers.
    pub trailer: Range<usize>,
}

impl Packet {
    /// Returns the size of the packet in bytes.
    pub fn bytes(&self) -> usize {
        self.header.len() + self.payload.len() + self.trailer.len()
    }
}

/// The send times of consecutive packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Send time of the first packet, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// Time per byte in nanoseconds.
    pub ns_per_byte: f64,
}

impl Pace {
    /// Returns the send time of a packet after `bytes` bytes.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "never negative; saturates"
    )]
    pub fn after(&self, bytes: usize) -> u64 {
        self.start_ns + (bytes as f64 * self.ns_per_byte) as u64
    }
}

/// A connected UDP socket for sending.
#[derive(Debug)]
pub struct Sender {
    fd: OwnedFd,
    offload: bool,
    batch: SendBatch,
    messages: Vec<Message>,
}

impl Sender {
    /// Opens a sender to `to`. With `offload`, Linux splits large messages into packets, if it supports that.
    ///
    /// `interface` is the interface of the packets; the routing table selects it by default.
    pub fn open(
        to: SocketAddr,
        offload: bool,
        interface: Option<&Interface>,
    ) -> Result<Self, SocketError> {
        let interface = interface.cloned();
        let options = Options {
            offload,
            interface,
            ..Options::default()
        };
        Self::with_options(to, &options)
    }

    /// Opens a sender to `to`.
    pub fn with_options(to: SocketAddr, options: &Options) -> Result<Self, SocketError> {
        let call = |action| {
            move |source| SocketError::Call {
                action,
                address: to,
                source,
            }
        };
        let io_call = |action| {
            move |error: io::Error| {
                call(action)(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
            }
        };
        let family = if to.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(call("open a socket"))?;
        let interface = options.interface.as_ref();
        if to.ip().is_multicast() {
            choose_multicast_interface(&fd, to, interface)?;
        } else if let Some(Interface::Name(name)) = interface {
            interface_index(fd.as_fd(), to.ip(), interface)?;
            let (level, option) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
            set_bytes(fd.as_fd(), level, option, name.as_bytes())
                .map_err(io_call("choose the interface"))?;
        }
        if let Some(ttl) = options.ttl {
            set_ttl(&fd, to, ttl).map_err(call("set the TTL"))?;
        }
        if options.send_buffer > 0 {
            let wanted = options.send_buffer.min(i32::MAX as usize / 2);
            sockopt::set_socket_send_buffer_size(&fd, wanted)
                .map_err(call("set the size of the send buffer"))?;
            if sockopt::socket_send_buffer_size(&fd).is_ok_and(|got| got / 2 < wanted) {
                // Needs a privilege. Failure is ignored, because `granted` reports the result.
                let _ = sockopt::set_socket_send_buffer_size_force(&fd, wanted);
            }
        }
        if options.paced {
            // Failure is ignored, because the sender also waits between messages.
            let _ = allow_send_times(fd.as_fd());
        }
        if options.strict {
            let (level, discover, errors) = if to.is_ipv4() {
                (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_RECVERR)
            } else {
                let (discover, errors) = (libc::IPV6_MTU_DISCOVER, libc::IPV6_RECVERR);
                (libc::IPPROTO_IPV6, discover, errors)
            };
            set_int(fd.as_fd(), level, discover, libc::IP_PMTUDISC_DO)
                .and_then(|()| set_int(fd.as_fd(), level, errors, 1))
                .map_err(io_call("request error reports"))?;
        }
        let address = match interface {
            Some(Interface::Address(address)) if to.is_ipv4() => *address,
            _ => Ipv4Addr::UNSPECIFIED,
        };
        if options.port > 0 || !address.is_unspecified() {
            sockopt::set_socket_reuseport(&fd, true).map_err(call("share the port"))?;
            let from: IpAddr = if to.is_ipv4() {
                address.into()
            } else {
                Ipv6Addr::UNSPECIFIED.into()
            };
            let bound = rustix::net::bind(&fd, &SocketAddr::new(from, options.port));
            bound.map_err(|source| match (source, interface) {
                (Errno::ADDRNOTAVAIL, Some(interface)) => SocketError::NoSuchInterface {
                    interface: interface.clone(),
                },
                _ => call("use the source port")(source),
            })?;
        }
        let to = scoped(fd.as_fd(), to, interface)?;
        rustix::net::connect(&fd, &to).map_err(|source| match source {
            Errno::NETUNREACH | Errno::HOSTUNREACH => SocketError::NoRoute { address: to },
            source => call("connect")(source),
        })?;
        Ok(Self::of(fd, options.offload))
    }

    /// Opens a sender whose packets come from `from`. Several senders of the same user may share this address.
    pub fn bound(from: SocketAddrV4, to: SocketAddrV4, offload: bool) -> Result<Self, SocketError> {
        let options = Options {
            offload,
            interface: Some(Interface::Address(*from.ip())),
            port: from.port(),
            ..Options::default()
        };
        Self::with_options(to.into(), &options)
    }

    fn of(fd: OwnedFd, offload: bool) -> Self {
        Self {
            fd,
            offload,
            batch: SendBatch::new(MESSAGES, PACKETS),
            messages: Vec::with_capacity(MESSAGES),
        }
    }

    /// Returns the size of the send buffer in bytes, in the unit of [`Options::send_buffer`].
    pub fn send_buffer(&self) -> io::Result<usize> {
        // Linux reserves twice as much for its own overhead.
        Ok(sockopt::socket_send_buffer_size(&self.fd)? / 2)
    }

    /// Returns the local address.
    pub fn local(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::try_from(rustix::net::getsockname(&self.fd)?)?)
    }

    /// Returns the MTU of the path to the receiver, as far as Linux knows it: the maximum size in bytes of a packet with its
    /// IP header.
    pub fn mtu(&self) -> io::Result<usize> {
        let mtu = if self.local()?.is_ipv4() {
            sockopt::ip_mtu(&self.fd)?
        } else {
            sockopt::ipv6_mtu(&self.fd)?
        };
        Ok(usize::try_from(mtu).unwrap_or(usize::MAX))
    }

    /// Returns whether Linux splits large messages into packets. If Linux refused a message because of that, the sender
    /// no longer uses it.
    pub const fn offloads(&self) -> bool {
        self.offload
    }

    /// Sends one packet. Waits while the send buffer is full.
    pub fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        retry(|| {
            Ok(rustix::net::send(
                &self.fd,
                packet,
                rustix::net::SendFlags::empty(),
            )?)
        })
        .map(drop)
    }

    /// Sends `bytes` as packets of `packet` bytes; the last packet may be shorter. Waits while the send buffer is full.
    pub fn send_packets(&mut self, bytes: &[u8], packet: usize) -> io::Result<()> {
        let packet = packet.clamp(1, LARGEST);
        let mut done = 0;
        while done < bytes.len() {
            let together = self.packets_per_message(packet);
            let rest = &bytes[done..];
            let message = |i: usize| {
                let start = (i * packet * together).min(rest.len());
                let end = (start + packet * together).min(rest.len());
                [&rest[start..end], &[][..], &[]]
            };
            self.messages.clear();
            let count = rest.len().div_ceil(packet * together).min(MESSAGES);
            self.messages.extend((0..count).map(|i| Message {
                packets: i..i + 1,
                segment: segment(packet, message(i)[0].len()),
                due_ns: None,
            }));
            let (fd, batch, messages) = (self.fd.as_fd(), &mut self.batch, &self.messages);
            match retry(|| batch.send(fd, 0, messages, message)) {
                Ok(sent) => done = (done + sent * packet * together).min(bytes.len()),
                Err(error) if together > 1 && is_offload_refusal(&error) => self.offload = false,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the number of packets of `packet` bytes that one message contains.
    const fn packets_per_message(&self, packet: usize) -> usize {
        let fitting = LARGEST / packet;
        match (self.offload, fitting) {
            (false, _) | (_, 0) => 1,
            (true, SEGMENTS..) => SEGMENTS,
            (true, fitting) => fitting,
        }
    }

    /// Sends as many of `packets` as Linux accepts at once, at most [`PACKETS`]. Never waits.
    ///
    /// The ranges of the packets refer to `headers` and `payloads`. Returns the number of packets that Linux accepted, at
    /// least 1. Fails if Linux did not accept the first packet. After [`io::ErrorKind::WouldBlock`], call
    /// [`wait`](Self::wait). Linux also reports that the network could not deliver earlier packets as an error; see
    /// [`undeliverable`](Self::undeliverable).
    ///
    /// # Panics
    /// If a range is outside its buffer, or `packets` is empty.
    pub fn try_send(
        &mut self,
        headers: &[u8],
        payloads: &[u8],
        packets: &[Packet],
        pace: Option<Pace>,
    ) -> io::Result<usize> {
        loop {
            self.group(&packets[..packets.len().min(PACKETS)], pace);
            let pieces = |i: usize| {
                let packet = &packets[i];
                [
                    &headers[packet.header.clone()],
                    &payloads[packet.payload.clone()],
                    &headers[packet.trailer.clone()],
                ]
            };
            let (fd, messages) = (self.fd.as_fd(), &self.messages);
            match self.batch.send(fd, libc::MSG_DONTWAIT, messages, pieces) {
                Ok(sent) => return Ok(messages[sent - 1].packets.end),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if messages[0].segment > 0 && is_offload_refusal(&error) => {
                    self.offload = false;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the number of packets in the first message of the last call of [`try_send`](Self::try_send), which Linux refused
    /// if the call failed.
    pub fn first_message(&self) -> usize {
        self.messages
            .first()
            .map_or(0, |message| message.packets.len())
    }

    /// Divides `packets` into messages: packets of equal size, of which the last may be shorter.
    fn group(&mut self, packets: &[Packet], pace: Option<Pace>) {
        self.messages.clear();
        let (mut first, mut before) = (0, 0);
        while first < packets.len() && self.messages.len() < MESSAGES {
            let size = packets[first].bytes();
            let max = self.packets_per_message(size.max(1));
            let (mut end, mut bytes) = (first + 1, size);
            while end < packets.len() && end - first < max {
                let next = packets[end].bytes();
                if next > size || next == 0 {
                    break;
                }
                end += 1;
                bytes += next;
                if next < size {
                    break;
                }
            }
            self.messages.push(Message {
                packets: first..end,
                segment: segment(size, bytes),
                due_ns: pace.map(|pace| pace.after(before)),
            });
            (first, before) = (end, before + bytes);
        }
    }

    /// Waits until the send buffer has room, at most `timeout`. Returns whether it has.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec {
            tv_sec: 3600,
            tv_nsec: 0,
        });
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) => Ok(fds[0].revents().contains(PollFlags::OUT)),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the number of reports of the network since the last call that packets could not be delivered, such as
    /// "port unreachable". Only for [strict](Options::strict) senders. Linux keeps a limited number of reports.
    pub fn undeliverable(&self) -> u64 {
        drain_errors(self.fd.as_fd())
    }
}

/// Returns the segment size of a message of `bytes` bytes in packets of `packet` bytes; 0 for a single packet.
fn segment(packet: usize, bytes: usize) -> u16 {
    if bytes > packet {
        u16::try_from(packet).unwrap_or(0)
    } else {
        0
    }
}

/// Whether Linux may have refused a message because it cannot split it.
fn is_offload_refusal(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(Errno::INVAL | Errno::IO | Errno::MSGSIZE | Errno::OPNOTSUPP)
    )
}

fn choose_multicast_interface(
    fd: &OwnedFd,
    to: SocketAddr,
    interface: Option<&Interface>,
) -> Result<(), SocketError> {
    let set = match (to, interface) {
        (_, None) => Ok(()),
        (SocketAddr::V4(_), Some(Interface::Address(address))) => {
            sockopt::set_ip_multicast_if(fd, address)
        }
        (SocketAddr::V4(_), named) => {
            let index = interface_index(fd.as_fd(), to.ip(), named)?;
            let any = Ipv4Addr::UNSPECIFIED;
            sockopt::set_ip_multicast_if_with_ifindex(fd, &any, &any, index)
        }
        (SocketAddr::V6(_), named) => {
            sockopt::set_ipv6_multicast_if(fd, interface_index(fd.as_fd(), to.ip(), named)?)
        }
    };
    set.map_err(|source| match (source, interface) {
        (Errno::ADDRNOTAVAIL, Some(interface)) => SocketError::NoSuchInterface {
            interface: interface.clone(),
        },
        _ => SocketError::Call {
            action: "choose the interface",
            address: to,
            source,
        },
    })
}

fn set_ttl(fd: &OwnedFd, to: SocketAddr, ttl: u8) -> Result<(), Errno> {
    match (to, to.ip().is_multicast()) {
        (SocketAddr::V4(_), true) => sockopt::set_ip_multicast_ttl(fd, ttl.into()),
        (SocketAddr::V4(_), false) => sockopt::set_ip_ttl(fd, ttl.into()),
        (SocketAddr::V6(_), true) => sockopt::set_ipv6_multicast_hops(fd, ttl.into()),
        (SocketAddr::V6(_), false) => sockopt::set_ipv6_unicast_hops(fd, Some(ttl)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn pair(options: &Options) -> (Sender, UdpSocket) {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let sender = Sender::with_options(receiver.local_addr().unwrap(), options).unwrap();
        (sender, receiver)
    }

    /// Packets of 10, 10, 10, 4, 12 and 3 bytes, from two buffers.
    fn packets() -> (Vec<u8>, Vec<u8>, Vec<Packet>) {
        let headers: Vec<u8> = (0..64).collect();
        let payloads: Vec<u8> = (100..200).collect();
        let packets = [10, 10, 10, 4, 12, 3].into_iter().enumerate();
        let packets = packets.map(|(i, bytes)| Packet {
            header: 2 * i..2 * i + 2,
            payload: 10 * i..10 * i + bytes - 3,
            trailer: 40 + i..41 + i,
        });
        (headers, payloads, packets.collect())
    }

    #[test]
    fn packets_of_two_buffers_arrive_unchanged() {
        for offload in [false, true] {
            let options = Options {
                offload,
                strict: true,
                paced: true,
                ..Options::default()
            };
            let (mut sender, receiver) = pair(&options);
            let (headers, payloads, packets) = packets();
            let pace = Pace {
                start_ns: monotonic_ns(),
                ns_per_byte: 1.0,
            };
            let mut sent = 0;
            while sent < packets.len() {
                sent += sender
                    .try_send(&headers, &payloads, &packets[sent..], Some(pace))
                    .unwrap();
            }
            for packet in &packets {
                let mut bytes = [0; 100];
                let got = receiver.recv(&mut bytes).unwrap();
                let expected = [
                    &headers[packet.header.clone()],
                    &payloads[packet.payload.clone()],
                    &headers[packet.trailer.clone()],
                ];
                assert_eq!(bytes[..got], expected.concat(), "{packet:?}");
            }
        }
    }

    #[test]
    fn messages_contain_packets_of_equal_size() {
        let (mut sender, _receiver) = pair(&Options {
            offload: true,
            ..Options::default()
        });
        let (_, _, packets) = packets();
        let pace = Pace {
            start_ns: 1000,
            ns_per_byte: 2.0,
        };
        sender.group(&packets, Some(pace));
        let messages = sender.messages.iter();
        let messages: Vec<_> = messages
            .map(|message| (message.packets.clone(), message.segment, message.due_ns))
            .collect();
        assert_eq!(
            messages,
            [(0..4, 10, Some(1000)), (4..6, 12, Some(1000 + 2 * 34)),]
        );
        sender.offload = false;
        sender.group(&packets, None);
        assert_eq!(sender.messages.len(), 6);
        assert!(sender.messages.iter().all(|message| message.segment == 0));
    }

    #[test]
    fn reports_of_closed_port_are_counted() {
        let (mut sender, receiver) = pair(&Options {
            strict: true,
            ..Options::default()
        });
        drop(receiver);
        let packet = [Packet {
            header: 0..4,
            ..Packet::default()
        }];
        // The loopback interface delivers the report before the call returns.
        sender.try_send(&[1; 4], &[], &packet, None).unwrap();
        let error = sender.try_send(&[1; 4], &[], &packet, None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(sender.undeliverable(), 1);
        assert_eq!(sender.undeliverable(), 0);
        assert!(sender.wait(Duration::ZERO).unwrap());
    }

    #[test]
    fn packets_larger_than_mtu_are_refused() {
        let (mut sender, _receiver) = pair(&Options {
            strict: true,
            ..Options::default()
        });
        assert!(sender.mtu().unwrap() >= 16384);
        let packet = [Packet {
            payload: 0..70_000,
            ..Packet::default()
        }];
        let error = sender.try_send(&[], &vec![0; 70_000], &packet, None);
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
    }

    #[test]
    fn unknown_interfaces_are_named() {
        for to in ["127.0.0.1:9", "239.1.2.3:9"] {
            for interface in ["nosuch0", "192.0.2.77"] {
                let interface = Interface::from(interface);
                let error = Sender::open(to.parse().unwrap(), true, Some(&interface)).unwrap_err();
                let text = format!("there is no interface {interface}");
                assert!(error.to_string().contains(&text), "{error}");
            }
        }
    }
}
