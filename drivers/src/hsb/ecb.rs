//! The control plane: a sensor's registers, read and written by UDP.
//!
//! ```text
//!   request  0  command │ flags │ sequence (2) │ reserved (2)        │ address (4) │ data (4)
//!   reply    0  command with bit 7 │ flags │ sequence (2) │ status │ reserved │ address (4) │ data (4)
//! ```
//! Big-endian. One request at a time: the device answers the one that it has before it looks at the next, so all sources of
//! a device share one [`Ecb`].

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The port that devices listen on.
pub const PORT: u16 = 8192;

/// Command: write a word.
const WRITE: u8 = 0x04;
/// Command: read a word.
const READ: u8 = 0x14;
/// What a reply adds to its request's command.
const REPLY: u8 = 0x80;
/// Flag: the device is to answer.
const ANSWER: u8 = 0x01;
/// Bytes of a request, and of a reply at least.
const BYTES: usize = 14;
/// How long the first answer is waited for; each next time twice as long.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Times that a request is sent.
const TRIES: u32 = 4;

/// Why a register could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum EcbError {
    /// The socket failed.
    #[error("cannot reach the control port {device}: {source}; `ip route get {}` shows the way", device.ip())]
    Socket {
        /// Which device.
        device: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// Nothing came back.
    #[error(
        "the device {device} does not answer (register {address:#010x}, asked {TRIES} times): `ping {}` shows whether it is \
         there; `device = \"auto\"` finds what there is", device.ip()
    )]
    Silent {
        /// Which device.
        device: SocketAddr,
        /// Which register.
        address: u32,
    },
    /// The device refused.
    #[error(
        "the device {device} refuses to {action} register {address:#010x}: status {status:#04x}"
    )]
    Refused {
        /// Which device.
        device: SocketAddr,
        /// What was asked.
        action: &'static str,
        /// Which register.
        address: u32,
        /// What it said.
        status: u8,
    },
}

/// What a reply says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reply {
    command: u8,
    sequence: u16,
    status: u8,
    address: u32,
    data: u32,
}

fn request(command: u8, sequence: u16, address: u32, data: u32) -> [u8; BYTES] {
    let [s0, s1] = sequence.to_be_bytes();
    let [a0, a1, a2, a3] = address.to_be_bytes();
    let [d0, d1, d2, d3] = data.to_be_bytes();
    [
        command, ANSWER, s0, s1, 0, 0, a0, a1, a2, a3, d0, d1, d2, d3,
    ]
}

fn parse(bytes: &[u8]) -> Option<Reply> {
    let [
        command,
        _,
        s0,
        s1,
        status,
        _,
        a0,
        a1,
        a2,
        a3,
        d0,
        d1,
        d2,
        d3,
    ] = *bytes.first_chunk::<BYTES>()?;
    Some(Reply {
        command,
        sequence: u16::from_be_bytes([s0, s1]),
        status,
        address: u32::from_be_bytes([a0, a1, a2, a3]),
        data: u32::from_be_bytes([d0, d1, d2, d3]),
    })
}

/// A device's registers.
#[derive(Debug)]
pub struct Ecb {
    socket: UdpSocket,
    device: SocketAddr,
    sequence: u16,
    failures: u64,
    /// Sensors that a source of this process has, a bit each.
    taken: u32,
}

/// A sensor of a device, for one source of this process alone, until it is dropped.
#[derive(Debug)]
pub struct Taken {
    ecb: Arc<Mutex<Ecb>>,
    sensor: u32,
}

impl Taken {
    /// Takes sensor `sensor`, 0 to 31, of the device; none if another source has it.
    pub fn take(ecb: &Arc<Mutex<Ecb>>, sensor: u32) -> Option<Self> {
        let taken = &mut ecb.lock().unwrap_or_else(PoisonError::into_inner).taken;
        let bit = 1 << sensor;
        if *taken & bit != 0 {
            return None;
        }
        *taken |= bit;
        Some(Self {
            ecb: ecb.clone(),
            sensor,
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut ecb = self.ecb.lock().unwrap_or_else(PoisonError::into_inner);
        ecb.taken &= !(1 << self.sensor);
    }
}

/// The control planes in use, by device.
static SHARED: Mutex<Option<HashMap<SocketAddr, Weak<Mutex<Ecb>>>>> = Mutex::new(None);

impl Ecb {
    /// The registers of `device`, shared by all that use them in this process.
    pub fn shared(device: SocketAddr) -> Result<Arc<Mutex<Self>>, EcbError> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = shared.get_or_insert_default();
        if let Some(ecb) = shared.get(&device).and_then(Weak::upgrade) {
            return Ok(ecb);
        }
        shared.retain(|_, ecb| ecb.strong_count() > 0);
        let ecb = Arc::new(Mutex::new(Self::open(device)?));
        shared.insert(device, Arc::downgrade(&ecb));
        Ok(ecb)
    }

    fn open(device: SocketAddr) -> Result<Self, EcbError> {
        let open = || {
            let any: IpAddr = if device.is_ipv4() {
                [0; 4].into()
            } else {
                [0_u16; 8].into()
            };
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(device)?;
            Ok(socket)
        };
        let socket = open().map_err(|source| EcbError::Socket { device, source })?;
        Ok(Self {
            socket,
            device,
            sequence: 0,
            failures: 0,
            taken: 0,
        })
    }

    /// Requests so far that were not answered in time, or refused.
    pub const fn failures(&self) -> u64 {
        self.failures
    }

    /// Which device it is.
    pub const fn device(&self) -> SocketAddr {
        self.device
    }

    /// This host's address as the device sees it.
    pub fn host(&self) -> Result<IpAddr, EcbError> {
        let address = self
            .socket
            .local_addr()
            .map_err(|source| self.failed(source))?;
        Ok(address.ip())
    }

    /// Reads the register at `address`.
    pub fn read(&mut self, address: u32) -> Result<u32, EcbError> {
        self.ask(READ, address, 0)
    }

    /// Writes `data` to the register at `address`.
    pub fn write(&mut self, address: u32, data: u32) -> Result<(), EcbError> {
        self.ask(WRITE, address, data).map(drop)
    }

    const fn failed(&self, source: io::Error) -> EcbError {
        EcbError::Socket {
            device: self.device,
            source,
        }
    }

    fn ask(&mut self, command: u8, address: u32, data: u32) -> Result<u32, EcbError> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request(command, self.sequence, address, data);
        for attempt in 0..TRIES {
            // Sent again as it was: to write a word twice does no harm.
            match self.socket.send(&bytes) {
                // What an earlier packet met comes with the next call.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(self.failed(error)),
                Ok(_) => {}
            }
            let Some(reply) = self.answer(command, address, TIMEOUT * 2_u32.pow(attempt))? else {
                self.failures += 1;
                continue;
            };
            if reply.status != 0 {
                self.failures += 1;
                return Err(EcbError::Refused {
                    device: self.device,
                    action: if command == READ { "read" } else { "write" },
                    address,
                    status: reply.status,
                });
            }
            return Ok(reply.data);
        }
        Err(EcbError::Silent {
            device: self.device,
            address,
        })
    }

    /// Waits for the reply to the last request, past those to earlier ones.
    fn answer(
        &self,
        command: u8,
        address: u32,
        patience: Duration,
    ) -> Result<Option<Reply>, EcbError> {
        let deadline = Instant::now() + patience;
        let mut bytes = [0; 512];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let wait = self.socket.set_read_timeout(Some(left));
            wait.map_err(|source| self.failed(source))?;
            let got = match self.socket.recv(&mut bytes) {
                Ok(got) => got,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::TimedOut
                    | io::ErrorKind::Interrupted => continue,
                    // Nobody listens now; the device may be starting.
                    io::ErrorKind::ConnectionRefused => {
                        std::thread::sleep(left);
                        return Ok(None);
                    }
                    _ => return Err(self.failed(error)),
                },
            };
            let ours = |reply: &Reply| {
                (reply.command, reply.sequence, reply.address)
                    == (command | REPLY, self.sequence, address)
            };
            if let Some(reply) = parse(&bytes[..got]).filter(ours) {
                return Ok(Some(reply));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// A device that treats request `n` as `answer` says: what it sends back.
    fn device(
        requests: usize,
        answer: impl Fn(usize, &[u8]) -> Vec<Vec<u8>> + Send + 'static,
    ) -> (SocketAddr, std::thread::JoinHandle<Vec<Vec<u8>>>) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let mut seen = Vec::new();
            let mut bytes = [0; 64];
            while seen.len() < requests {
                let (got, from) = socket.recv_from(&mut bytes).unwrap();
                for reply in answer(seen.len(), &bytes[..got]) {
                    socket.send_to(&reply, from).unwrap();
                }
                seen.push(bytes[..got].to_vec());
            }
            seen
        });
        (address, thread)
    }

    fn reply(request: &[u8], status: u8, data: u32) -> Vec<u8> {
        let mut reply = request.to_vec();
        reply[0] |= 0x80;
        reply[4] = status;
        reply[10..14].copy_from_slice(&data.to_be_bytes());
        reply
    }

    #[test]
    fn words_are_written_and_read() {
        let (address, thread) = device(2, |_, request| vec![reply(request, 0, 0x1234_5678)]);
        let ecb = Ecb::shared(address).unwrap();
        assert!(Arc::ptr_eq(&ecb, &Ecb::shared(address).unwrap()));
        let mut ecb = ecb.lock().unwrap();
        ecb.write(0x0200_0304, 0xa0b0_c0d0).unwrap();
        assert_eq!(ecb.read(0x0200_030c).unwrap(), 0x1234_5678);
        let write = [4, 1, 0, 1, 0, 0, 2, 0, 3, 4, 0xa0, 0xb0, 0xc0, 0xd0];
        let read = [0x14, 1, 0, 2, 0, 0, 2, 0, 3, 0x0c, 0, 0, 0, 0];
        assert_eq!(thread.join().unwrap(), [write.to_vec(), read.to_vec()]);
    }

    #[test]
    fn what_is_lost_is_asked_again_and_strangers_are_ignored() {
        let (address, thread) = device(2, |n, request| {
            let stale = reply(&[0x14, 1, 0xff, 0xff, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0], 0, 1);
            let short = reply(request, 0, 2)[..13].to_vec();
            let other = reply(&[&request[..9], &[9, 0, 0, 0, 0]].concat(), 0, 3);
            match n {
                0 => vec![stale, short, other],
                _ => vec![reply(request, 0, 4)],
            }
        });
        let ecb = Ecb::shared(address).unwrap();
        assert_eq!(ecb.lock().unwrap().read(8).unwrap(), 4);
        let seen = thread.join().unwrap();
        assert_eq!(seen[0], seen[1]);
    }

    #[test]
    fn a_refusal_and_silence_are_told() {
        let (address, thread) = device(1 + TRIES as usize, |n, request| match n {
            0 => vec![reply(request, 3, 0)],
            _ => Vec::new(),
        });
        let ecb = Ecb::shared(address).unwrap();
        let refused = ecb.lock().unwrap().write(0x10, 1).unwrap_err();
        assert!(
            matches!(
                refused,
                EcbError::Refused {
                    status: 3,
                    address: 0x10,
                    ..
                }
            ),
            "{refused}"
        );
        let silent = ecb.lock().unwrap().read(0x10).unwrap_err();
        assert!(matches!(silent, EcbError::Silent { .. }), "{silent}");
        thread.join().unwrap();
    }
}
