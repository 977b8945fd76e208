//! A sender of numbered UDP packets, and the source that receives them.

use daq_testkit::free_udp_port;
use std::net::UdpSocket;

/// Payload bytes per packet.
const PAYLOAD: usize = 1024;

/// Sends packets with consecutive numbers to one port.
pub(super) struct Sender {
    socket: UdpSocket,
    port: u16,
    next: u64,
}

impl Sender {
    /// Creates a sender for a free port.
    pub(super) fn new() -> Self {
        let (socket, port) = (UdpSocket::bind("127.0.0.1:0").unwrap(), free_udp_port());
        socket.connect(("127.0.0.1", port)).unwrap();
        Self {
            socket,
            port,
            next: 0,
        }
    }

    /// Returns the sections of the source `name`, which receives the packets and fills `ring`.
    pub(super) fn source(&self, name: &str, ring: &str) -> String {
        let port = self.port;
        format!(
            r#"
[source.{name}]
driver = "udp"
listen = "127.0.0.1:{port}"
ring = "{ring}"
[source.{name}.format]
kind = "raw"
header = "16 B"
payload = {PAYLOAD}
sequence = {{ offset = 0, bytes = 8 }}
"#
        )
    }

    /// Sends the next `packets` packets.
    pub(super) fn send(&mut self, packets: u64) {
        for number in self.next..self.next + packets {
            self.send_number(number);
        }
        self.next += packets;
    }

    /// Sends the packet with this number.
    pub(super) fn send_number(&self, number: u64) {
        let mut packet = [0; 16 + PAYLOAD];
        packet[..8].copy_from_slice(&number.to_be_bytes());
        // Ignore an error, because it would refer to an earlier packet.
        let _ = self.socket.send(&packet);
    }
}
