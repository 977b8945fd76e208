//! Discovery of cameras: a broadcast that all cameras answer.

use super::gvcp::{self, Acknowledge, Identity, command};
use crate::sys::interface;
use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

/// Time that cameras have to answer. The specification allows them 1 s.
const TIMEOUT: Duration = Duration::from_millis(1_100);
/// Time after which the broadcast is repeated, because it may be lost.
const REPEAT: Duration = Duration::from_millis(400);
/// Interval at which the sockets are read.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of cameras.
const MAX_CAMERAS: usize = 256;

/// Returns the cameras in the networks of all interfaces. Stops early once `is_enough` returns true for the cameras found so
/// far.
pub(super) fn discover(
    mut is_enough: impl FnMut(&BTreeSet<Identity>) -> bool,
) -> io::Result<BTreeSet<Identity>> {
    let sockets: Vec<UdpSocket> = interface::addresses()?
        .into_iter()
        .filter_map(|address| open(address).ok())
        .collect();
    let id = 0xffff;
    let message = gvcp::request(command::DISCOVERY, id, &[]);
    let to = SocketAddrV4::new(Ipv4Addr::BROADCAST, gvcp::PORT);
    let start = Instant::now();
    let mut sent = None::<Instant>;
    let mut found = BTreeSet::new();
    let mut bytes = [0; 1024];
    while start.elapsed() < TIMEOUT {
        if sent.is_none_or(|sent| sent.elapsed() >= REPEAT) {
            sent = Some(Instant::now());
            for socket in &sockets {
                // An interface without a route for broadcasts has no cameras.
                let _ = socket.send_to(&message, to);
            }
        }
        for socket in &sockets {
            while found.len() < MAX_CAMERAS
                && let Ok((length, from)) = socket.recv_from(&mut bytes)
            {
                let answer = Acknowledge::parse(&bytes[..length]).filter(|answer| {
                    (answer.command, answer.id, answer.status) == (command::DISCOVERY, id, 0)
                });
                let is_camera = from.port() == gvcp::PORT;
                found.extend(
                    answer
                        .filter(|_| is_camera)
                        .and_then(|a| Identity::parse(a.data)),
                );
            }
        }
        if is_enough(&found) {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(found)
}

fn open(address: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, 0))?;
    socket.set_broadcast(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Returns the cameras as a list for an error message.
pub(super) fn list(cameras: &BTreeSet<Identity>) -> String {
    if cameras.is_empty() {
        return "no camera answers a broadcast in the networks of this machine: check power and cable, that the camera has an \
                address in the network of an interface (`ip -4 address`), and that no firewall drops UDP port 3956"
            .to_owned();
    }
    let cameras: Vec<_> = cameras.iter().map(Identity::to_string).collect();
    format!("found: {}", cameras.join("; "))
}
