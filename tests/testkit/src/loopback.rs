//! The loopback interface. Packets arrive in order, and tests can wait until they have arrived, even on a slow host.

use crate::TIMEOUT;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Pins the calling thread, which sends, to its current core. The interface has one queue per core, so a thread that
/// moves to another core would overtake its own packets. Threads and processes that it starts later are pinned to the
/// same core.
pub fn stay() {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    // If pinning is not permitted, packets may be reordered.
    let _ = sched_setaffinity(None, &here);
}

/// Returns when all packets that this thread has sent since [`stay`] are in their sockets or were dropped there. It
/// waits for a packet that it sends to itself afterwards.
pub fn arrived() {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let address = socket.local_addr().unwrap();
    socket.send_to(&[0], address).unwrap();
    socket
        .recv(&mut [0])
        .expect("the loopback interface carries packets");
}

/// Returns a free UDP port of the loopback interface that no other test gets.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, crate::free_udp_port()).into()
}

/// The total state of all sockets bound to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Number of sockets.
    pub sockets: usize,
    /// Number of bytes that wait to be received.
    pub bytes: u64,
    /// Number of messages that Linux dropped.
    pub drops: u64,
}

impl Queue {
    /// Reads the state of UDP port `port` from `/proc/net`.
    pub fn of(port: u16) -> Self {
        let mut found = Self::default();
        for table in ["/proc/net/udp", "/proc/net/udp6"] {
            let text = std::fs::read_to_string(table).unwrap_or_default();
            for line in text.lines().skip(1) {
                let fields: Vec<_> = line.split_whitespace().collect();
                let hex =
                    |text: &str| u64::from_str_radix(text.rsplit(':').next().unwrap(), 16).unwrap();
                if hex(fields[1]) == u64::from(port) {
                    found.sockets += 1;
                    found.bytes += hex(fields[4]);
                    found.drops += fields[12].parse::<u64>().unwrap();
                }
            }
        }
        found
    }

    /// Waits until everything sent to `port` is received. A sender that calls this never overruns the receiver, even on
    /// a slow host with small buffers.
    pub fn drained(port: u16) {
        Self::all_drained(port, 1);
    }

    /// Waits until everything sent to the `sockets` sockets of `port` is received.
    pub fn all_drained(port: u16, sockets: usize) {
        arrived();
        let start = Instant::now();
        loop {
            let queue = Self::of(port);
            // Linux's table may omit a socket while others are opened and closed.
            if queue.bytes == 0 && queue.sockets >= sockets {
                return;
            }
            assert!(
                start.elapsed() < TIMEOUT,
                "{queue:?} of port {port} is not received"
            );
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Returns the number of messages that Linux has dropped at `port`.
    pub fn drops(port: u16) -> u64 {
        let start = Instant::now();
        loop {
            let queue = Self::of(port);
            if queue.sockets > 0 {
                return queue.drops;
            }
            assert!(start.elapsed() < TIMEOUT, "no socket has port {port}");
        }
    }
}
