//! Device discovery: each device broadcasts an announcement once per second.
//!
//! The announcement is a BOOTP request (RFC 951) on other ports, sent from 12268 to 12267. The vendor area names the data
//! plane that sends it. The device's address is the source address of the packet.

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Destination port of announcements.
pub(super) const PORT: u16 = 12_267;
/// Listening time: the interval of two announcements, with some margin.
pub(super) const TIMEOUT: Duration = Duration::from_millis(2_500);

/// Minimum bytes of an announcement.
const BYTES: usize = 300;
/// Offset of the client's hardware address.
const HARDWARE: usize = 28;
/// Offset of the vendor area.
const VENDOR: usize = 236;
/// Tag of the vendor area, followed by a length and the vendor's name.
const TAG: u8 = 0xe0;
/// The vendor's name.
const NAME: &[u8] = b"NVDA";

/// The announcement of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announcement {
    /// MAC address of the device.
    pub mac: [u8; 6],
    /// The data plane that sends the announcement, if the vendor area names it.
    pub plane: Option<u8>,
}

/// A discovered device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Address of the device.
    pub address: IpAddr,
    /// The device's announcement.
    pub announcement: Announcement,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.address)?;
        for (byte, colon) in self
            .announcement
            .mac
            .iter()
            .zip(["", ":", ":", ":", ":", ":"])
        {
            write!(f, "{colon}{byte:02x}")?;
        }
        if let Some(plane) = self.announcement.plane {
            write!(f, ", plane {plane}")?;
        }
        f.write_str(")")
    }
}

/// Parses an announcement; `None` if the message is not one.
pub(super) fn parse(message: &[u8]) -> Option<Announcement> {
    // A BOOTP request over Ethernet with six-byte addresses.
    if message.len() < BYTES || message[..3] != [1, 1, 6] {
        return None;
    }
    let mac = *message.get(HARDWARE..)?.first_chunk()?;
    let vendor = message.get(VENDOR..)?;
    let is_known = vendor.first() == Some(&TAG) && vendor.get(2..6) == Some(NAME);
    Some(Announcement {
        mac,
        plane: is_known.then(|| vendor.get(6).copied()).flatten(),
    })
}

/// Listens on `listen` for `timeout`. Returns each device once.
pub(super) fn listen(listen: SocketAddr, timeout: Duration) -> io::Result<Vec<Found>> {
    let socket = open(listen)?;
    let deadline = Instant::now() + timeout;
    let mut found = BTreeMap::new();
    let mut message = [0; 2048];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(found.into_values().collect());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv_from(&mut message) {
            Ok((bytes, from)) => {
                if let Some(announcement) = parse(&message[..bytes]) {
                    let address = from.ip();
                    found.insert(
                        address,
                        Found {
                            address,
                            announcement,
                        },
                    );
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
}

/// Opens a socket that shares its port: each socket receives the broadcasts.
fn open(listen: SocketAddr) -> io::Result<UdpSocket> {
    let family = if listen.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let fd = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    rustix::net::bind(&fd, &listen)?;
    Ok(fd.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Vec<u8> {
        let mut message = vec![0; BYTES];
        message[..4].copy_from_slice(&[1, 1, 6, 0]);
        message[28..34].copy_from_slice(&[0x48, 0xb0, 0x2d, 1, 2, 3]);
        message[236..243].copy_from_slice(&[0xe0, 40, b'N', b'V', b'D', b'A', 1]);
        message
    }

    #[test]
    fn announcement_is_parsed() {
        let expected = Announcement {
            mac: [0x48, 0xb0, 0x2d, 1, 2, 3],
            plane: Some(1),
        };
        assert_eq!(parse(&message()), Some(expected));
        let mut plain = message();
        plain[236] = 99;
        assert_eq!(parse(&plain).unwrap().plane, None);
    }

    #[test]
    fn other_messages_are_ignored() {
        let good = message();
        for length in 0..BYTES {
            assert_eq!(parse(&good[..length]), None);
        }
        for at in 0..3 {
            let mut other = good.clone();
            other[at] = 2;
            assert_eq!(parse(&other), None);
        }
    }

    #[test]
    fn device_is_found_once() {
        // This socket is bound first to find a free port.
        let shared = open("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = shared.local_addr().unwrap();
        drop(shared);
        let listener = std::thread::spawn(move || listen(to, Duration::from_secs(2)).unwrap());
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        while !listener.is_finished() {
            for bytes in [&message()[..], b"hello"] {
                // Fails until the listener is ready.
                let _ = sender.send_to(bytes, to);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let found = listener.join().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].to_string(),
            "127.0.0.1 (48:b0:2d:01:02:03, plane 1)"
        );
    }
}
