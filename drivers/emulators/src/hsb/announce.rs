//! The announcement that a board sends once a second for discovery. The announcement has 300 bytes in the layout of a
//! BOOTP request (RFC 951). It contains the board's addresses and, in the vendor area, the board's identity.

use super::SensorError;
use super::counts::Shared;
use std::net::{SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The UDP source port of announcements.
const FROM: u16 = 12_268;
/// The gateware version.
pub(super) const GATEWARE: u16 = 0x2602;
const BYTES: usize = 300;
const EVERY: Duration = Duration::from_secs(1);
/// Interval at which the thread checks whether it must end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Sends the announcements of a board.
#[derive(Debug)]
pub(super) struct Announcer {
    socket: UdpSocket,
    to: SocketAddrV4,
    board: SocketAddrV4,
}

impl Announcer {
    pub(super) fn open(board: SocketAddrV4, to: SocketAddrV4) -> Result<Self, SensorError> {
        let from = SocketAddrV4::new(*board.ip(), FROM);
        let open = || {
            let socket = UdpSocket::bind(from)?;
            socket.set_broadcast(true)?;
            Ok(socket)
        };
        let socket = open().map_err(|source| SensorError::Socket {
            what: "announcing",
            address: from,
            source,
        })?;
        Ok(Self { socket, to, board })
    }

    pub(super) fn run(self, stop: &AtomicBool, shared: &Shared) {
        let start = Instant::now();
        let mut number = 0_u32;
        while !stop.load(Ordering::Acquire) {
            let due = start + EVERY * number;
            match due.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => std::thread::sleep(left.min(POLL_INTERVAL)),
                _ => {
                    let seconds = u16::try_from(start.elapsed().as_secs()).unwrap_or(u16::MAX);
                    match self.socket.send_to(&message(self.board, seconds), self.to) {
                        Ok(_) => shared.lock().announcements += 1,
                        // No host listens yet. A later announcement may be received.
                        Err(error) => {
                            tracing::debug!("cannot send an announcement to {}: {error}", self.to);
                        }
                    }
                    number += 1;
                }
            }
        }
    }
}

/// Returns the Ethernet address of a board: a locally administered address that contains the board's IP address.
fn ethernet(board: SocketAddrV4) -> [u8; 6] {
    let [a, b, c, d] = board.ip().octets();
    [0x02, 0xda, a, b, c, d]
}

/// Builds an announcement. `seconds` is the uptime of the board.
fn message(board: SocketAddrV4, seconds: u16) -> [u8; BYTES] {
    let ethernet = ethernet(board);
    let [.., host] = board.ip().octets();
    // Vendor tag, length of the rest, vendor, data plane, version of this layout, board.
    let mut vendor = vec![0xe0, 39];
    vendor.extend(b"NVDA");
    vendor.extend([0, 2, 2, 0]);
    // The board type (20 bytes) and the serial number (7 bytes).
    vendor.extend(b"daq simulated sensor");
    vendor.extend([b'S', b'I', b'M', 0, 0, 0, host]);
    // The gateware version (little-endian) and the gateware checksum.
    vendor.extend(GATEWARE.to_le_bytes());
    vendor.extend([0, 0]);
    let pieces: [&[u8]; 11] = [
        // BOOTP request, Ethernet, length of an Ethernet address, hops.
        &[1, 1, 6, 0],
        // Transaction identifier.
        &[0; 4],
        &seconds.to_be_bytes(),
        // Flags.
        &[0; 2],
        // The board's IP address.
        &board.ip().octets(),
        // Assigned address, server address and gateway address.
        &[0; 12],
        &ethernet,
        &[0; 10],
        // Server name and boot file.
        &[0; 64],
        &[0; 128],
        &vendor,
    ];
    let mut message = [0; BYTES];
    for (byte, value) in message.iter_mut().zip(pieces.into_iter().flatten()) {
        *byte = *value;
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcement_fields_are_at_specified_offsets() {
        let message = message("192.168.0.2:8192".parse().unwrap(), 0x0102);
        assert_eq!(message[..4], [1, 1, 6, 0]);
        assert_eq!(message[8..10], [1, 2]);
        assert_eq!(message[12..16], [192, 168, 0, 2]);
        assert_eq!(message[28..34], [0x02, 0xda, 192, 168, 0, 2]);
        assert_eq!(message[236..242], [0xe0, 39, b'N', b'V', b'D', b'A']);
        // The length excludes the tag and the length itself.
        let vendor = &message[236..];
        assert_eq!(vendor[2 + 39 - 4..2 + 39], [0x02, 0x26, 0, 0]);
        assert!(vendor[2 + 39..].iter().all(|byte| *byte == 0));
    }
}
