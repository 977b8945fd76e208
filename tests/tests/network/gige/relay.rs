//! A relay between a camera and daq, which decides what happens to each packet of the stream.
//!
//! ```text
//!   daq ── control ──▶ relay ── control, with the relay as the destination of the stream ──▶ camera
//!   daq ◀── stream, changed ── relay ◀── stream ── camera
//! ```

use rustix::net::sockopt;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Size in bytes of the receive buffers.
const ROOM: usize = 16 << 20;

const WRITE: u16 = 0x82;
const RESEND: u16 = 0x40;
const STREAM_PORT: u32 = 0xd00;
const DESTINATION: u32 = 0xd18;

/// A packet of a stream with 16-bit or 64-bit block ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub block: u64,
    pub id: u32,
    /// Whether the camera marked the packet as sent again.
    pub is_resent: bool,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    Pass,
    Drop,
    Twice,
    /// Sent after this number of further packets.
    After(usize),
}

/// Decides the disposition of a packet.
type Decide = dyn FnMut(Seen) -> Disposition + Send;

/// A running relay, which stops when it is dropped.
pub struct Relay {
    address: SocketAddrV4,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// The destination of the stream, and the address of the last control request.
#[derive(Default)]
struct Peers {
    ip: Option<Ipv4Addr>,
    port: u16,
    control: Option<SocketAddr>,
}

impl Relay {
    /// Starts a relay on `ip` to the camera at `camera`.
    pub fn start(
        ip: Ipv4Addr,
        camera: SocketAddrV4,
        decide: impl FnMut(Seen) -> Disposition + Send + 'static,
    ) -> Self {
        let open = || {
            let socket = UdpSocket::bind((ip, 0)).unwrap();
            // A whole stream fits, so that only the relay loses packets, even on a slow host.
            let _ = sockopt::set_socket_recv_buffer_size_force(&socket, ROOM);
            let timeout = Some(Duration::from_millis(20));
            socket.set_read_timeout(timeout).unwrap();
            socket
        };
        let (control, upstream, stream) = (open(), open(), open());
        upstream.connect(camera).unwrap();
        let IpAddr::V4(own) = stream.local_addr().unwrap().ip() else {
            panic!("an IPv4 socket")
        };
        let SocketAddr::V4(address) = control.local_addr().unwrap() else {
            panic!("an IPv4 socket")
        };
        let port = stream.local_addr().unwrap().port();
        let peers = Arc::new(Mutex::new(Peers::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let spawn = |mut step: Box<dyn FnMut() + Send>| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    step();
                }
            })
        };
        let requests = {
            let (peers, control) = (peers.clone(), control.try_clone().unwrap());
            let upstream = upstream.try_clone().unwrap();
            let mut bytes = [0; 2048];
            spawn(Box::new(move || {
                if let Ok((length, from)) = control.recv_from(&mut bytes) {
                    let mut peers = peers.lock().unwrap();
                    change(&mut bytes[..length], from, (own, port), &mut peers);
                    let _ = upstream.send(&bytes[..length]);
                }
            }))
        };
        let answers = {
            let peers = peers.clone();
            let mut bytes = [0; 2048];
            spawn(Box::new(move || {
                if let Ok(length) = upstream.recv(&mut bytes)
                    && let Some(to) = peers.lock().unwrap().control
                {
                    let _ = control.send_to(&bytes[..length], to);
                }
            }))
        };
        let packets = {
            let mut changer = Changer {
                decide: Box::new(decide),
                delayed: VecDeque::new(),
            };
            let mut bytes = vec![0; 1 << 16];
            spawn(Box::new(move || {
                if let Ok(length) = stream.recv(&mut bytes) {
                    let to = {
                        let peers = peers.lock().unwrap();
                        peers.ip.map(|ip| SocketAddrV4::new(ip, peers.port))
                    };
                    for packet in changer.pass(&bytes[..length]) {
                        if let Some(to) = to.filter(|to| to.port() != 0) {
                            let _ = stream.send_to(&packet, to);
                        }
                    }
                }
            }))
        };
        Self {
            address,
            stop,
            threads: vec![requests, answers, packets],
        }
    }

    /// Returns the reason why a relay may lose packets that it must pass; `None` if it cannot.
    pub fn lacks_room() -> Option<&'static str> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let forced = sockopt::set_socket_recv_buffer_size_force(&socket, ROOM);
        forced
            .err()
            .map(|_| "a large receive buffer requires CAP_NET_ADMIN")
    }

    /// Returns the address of the control channel.
    pub const fn address(&self) -> SocketAddrV4 {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Replaces the destination of the stream in a request, and records it.
fn change(message: &mut [u8], from: SocketAddr, own: (Ipv4Addr, u16), peers: &mut Peers) {
    let command = u16::from_be_bytes([message[2], message[3]]);
    if command != RESEND {
        peers.control = Some(from);
    }
    if command != WRITE {
        return;
    }
    for access in message[8..].chunks_exact_mut(8) {
        let (address, value) = access.split_at_mut(4);
        let address = u32::from_be_bytes(address.try_into().unwrap());
        let word = u32::from_be_bytes((*value).try_into().unwrap());
        let new = match address {
            STREAM_PORT => {
                peers.port = u16::try_from(word).unwrap();
                if word == 0 { 0 } else { own.1.into() }
            }
            DESTINATION => {
                peers.ip = Some(Ipv4Addr::from_bits(word));
                own.0.to_bits()
            }
            _ => word,
        };
        value.copy_from_slice(&new.to_be_bytes());
    }
}

struct Changer {
    decide: Box<Decide>,
    /// Delayed packets, each with the number of packets that pass before it.
    delayed: VecDeque<(usize, Vec<u8>)>,
}

impl Changer {
    /// Returns the packets that are sent now.
    fn pass(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        let whole = packet.to_vec();
        match parse(packet).map_or(Disposition::Pass, |seen| (self.decide)(seen)) {
            Disposition::Pass => sent.push(whole),
            Disposition::Drop => return sent,
            Disposition::Twice => sent.extend([whole.clone(), whole]),
            Disposition::After(packets) => {
                self.delayed.push_back((packets, whole));
                return sent;
            }
        }
        for (left, _) in &mut self.delayed {
            *left -= 1;
        }
        while self.delayed.front().is_some_and(|(left, _)| *left == 0) {
            sent.extend(self.delayed.pop_front().map(|(_, packet)| packet));
        }
        sent
    }
}

/// Parses a packet; `None` for a test packet.
fn parse(packet: &[u8]) -> Option<Seen> {
    let format = *packet.get(4)?;
    let (block, id) = if format & 0x80 == 0 {
        let id = u32::from_be_bytes(*packet[4..].first_chunk()?) & 0xff_ffff;
        (u16::from_be_bytes([packet[2], packet[3]]).into(), id)
    } else {
        let block = u64::from_be_bytes(*packet.get(8..)?.first_chunk()?);
        (block, u32::from_be_bytes(*packet.get(16..)?.first_chunk()?))
    };
    let status = u16::from_be_bytes([packet[0], packet[1]]);
    (block > 0).then_some(Seen {
        block,
        id,
        is_resent: status == 0x0100,
    })
}
