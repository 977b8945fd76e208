//! The control plane: reads and writes the registers of a device over UDP.
//!
//! ```text
//!   request  0  command │ flags │ sequence (2) │ reserved (2)        │ address (4) │ data (4)
//!   reply    0  command with bit 7 │ flags │ sequence (2) │ status │ reserved │ address (4) │ data (4)
//! ```
//! All fields are big-endian. Only one request at a time: the device answers a request before it reads the next, so all
//! sources of a device
//! share one [`Ecb`].
//!
//! A device with several interfaces may answer from another of its addresses. A reply is therefore accepted from any address,
//! but only from the control port, and only if it repeats the command, the register and the sequence number of the one
//! request that waits for an answer. The first sequence number is random, so that a host that cannot read the traffic
//! has to guess the number and this socket's port.

use daq_core::log_limit::LogLimit;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The port that devices listen on.
pub(super) const PORT: u16 = 8192;

/// Command: write a word.
const WRITE: u8 = 0x04;
/// Command: read a word.
const READ: u8 = 0x14;
/// Bit that a reply adds to the command of its request.
const REPLY: u8 = 0x80;
/// Flag: request an answer.
const ANSWER: u8 = 0x01;
/// Size in bytes of a request, and minimum size of a reply.
const BYTES: usize = 14;
/// Timeout of the first attempt; doubled with each retry.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum number of times that a request is sent.
const TRIES: u32 = 4;

/// Reason why a register access failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum EcbError {
    /// The socket failed.
    #[error("cannot reach the control port {device}: {source}; `ip route get {}` shows the route", device.ip())]
    Socket {
        /// Control port of the device.
        device: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The device did not answer.
    #[error(
        "the device {device} does not answer (register {address:#010x}, {TRIES} attempts): check `ping {}`; `device = \"auto\"` \
         discovers devices", device.ip()
    )]
    Silent {
        /// Control port of the device.
        device: SocketAddr,
        /// Address of the register.
        address: u32,
    },
    /// The device returned an error status.
    #[error(
        "the device {device} refused to {action} register {address:#010x}: status {status:#04x}"
    )]
    Refused {
        /// Control port of the device.
        device: SocketAddr,
        /// "read" or "write".
        action: &'static str,
        /// Address of the register.
        address: u32,
        /// Status code of the device.
        status: u8,
    },
}

/// Register: gateware version.
const VERSION: u32 = 0x80;
/// Register: date of the gateware.
const DATE: u32 = 0x84;
/// The oldest version with the registers that [`arm`](super::arm) writes. Older versions have one register for each of four
/// page addresses instead.
const OLDEST: u32 = 0x2602;
/// The newest version whose registers are known.
const NEWEST: u32 = 0x2606;

/// The gateware version of a device, in BCD: 0x2602 is February 2026. All fields are 0 if the device does not report a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Version {
    /// Year and month.
    pub number: u32,
    /// Year, month and day.
    pub date: u32,
}

impl Version {
    /// Returns why a device with this version may not work, or `None` for a known version.
    pub(super) fn problem(self) -> Option<String> {
        match self.number {
            0 => Some(
                "the version is unknown; if no frames arrive, check that the device is a Holoscan Sensor Bridge"
                    .to_owned(),
            ),
            older @ 1..OLDEST => Some(format!(
                "version {older:#06x} is too old: its page registers differ from those of version {OLDEST:#06x}, so \
                 the device may send nothing or write to wrong addresses; update the gateware"
            )),
            OLDEST..=NEWEST => None,
            newer => Some(format!(
                "version {newer:#06x} is newer than the newest known version {NEWEST:#06x}; its registers may differ"
            )),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gateware {:#06x} of {:08x}", self.number, self.date)
    }
}

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

/// Access to the registers of a device.
#[derive(Debug)]
pub(super) struct Ecb {
    socket: UdpSocket,
    device: SocketAddr,
    sequence: u16,
    failures: u64,
    /// The last address from which the device answered, if it is not the configured address; each such address is logged once.
    answers_from: Option<IpAddr>,
    /// Limits the log messages about other addresses.
    senders: LogLimit,
    /// The last version read.
    version: Option<Version>,
    /// Sensors used by sources of this process, one bit each.
    reserved: u32,
}

/// Reserves a sensor of a device for one source of this process, until it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    ecb: Arc<Mutex<Ecb>>,
    sensor: u32,
}

impl Reservation {
    /// Reserves sensor `sensor`, 0 to 31; `None` if another source uses it.
    pub(super) fn new(ecb: &Arc<Mutex<Ecb>>, sensor: u32) -> Option<Self> {
        let reserved = &mut ecb.lock().unwrap_or_else(PoisonError::into_inner).reserved;
        let bit = 1 << sensor;
        if *reserved & bit != 0 {
            return None;
        }
        *reserved |= bit;
        Some(Self {
            ecb: ecb.clone(),
            sensor,
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut ecb = self.ecb.lock().unwrap_or_else(PoisonError::into_inner);
        ecb.reserved &= !(1 << self.sensor);
    }
}

/// The open control planes, by device.
static SHARED: Mutex<Option<HashMap<SocketAddr, Weak<Mutex<Ecb>>>>> = Mutex::new(None);

impl Ecb {
    /// Returns the registers of `device`, shared by all users in this process.
    pub(super) fn shared(device: SocketAddr) -> Result<Arc<Mutex<Self>>, EcbError> {
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
        // The socket is not connected to the device, because Linux would then drop answers from another address.
        let socket = unbound(device).map_err(|source| EcbError::Socket { device, source })?;
        Ok(Self {
            socket,
            device,
            sequence: random(),
            failures: 0,
            answers_from: None,
            senders: LogLimit::new(),
            version: None,
            reserved: 0,
        })
    }

    /// Returns the number of requests so far that were refused or not answered in time.
    pub(super) const fn failures(&self) -> u64 {
        self.failures
    }

    pub(super) const fn device(&self) -> SocketAddr {
        self.device
    }

    /// Returns this host's address as the device sees it.
    pub(super) fn host(&self) -> Result<IpAddr, EcbError> {
        local_address_to(self.device).map_err(|source| self.failed(source))
    }

    /// Reads the gateware version of the device, and logs the version if it changed.
    pub(super) fn read_version(&mut self) -> Result<Version, EcbError> {
        let mut read = || {
            let number = self.read(VERSION)?;
            let date = self.read(DATE)?;
            Ok(Version { number, date })
        };
        let version = match read() {
            // A device without these registers can still be armed.
            Err(EcbError::Refused { .. }) => Version::default(),
            read => read?,
        };
        if self.version.replace(version) != Some(version) {
            match version.problem() {
                None => tracing::info!("device {}: {version}", self.device),
                Some(problem) => tracing::warn!("device {}: {version}: {problem}", self.device),
            }
        }
        Ok(version)
    }

    /// Reads the register at `address`.
    pub(super) fn read(&mut self, address: u32) -> Result<u32, EcbError> {
        self.ask(READ, address, 0)
    }

    /// Writes `data` to the register at `address`.
    pub(super) fn write(&mut self, address: u32, data: u32) -> Result<(), EcbError> {
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
            // Sends the same request again, because writing a value twice is harmless.
            let sent = self.socket.send_to(&bytes, self.device);
            sent.map_err(|source| self.failed(source))?;
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

    /// Waits for the reply to the last request; ignores replies to earlier requests.
    fn answer(
        &mut self,
        command: u8,
        address: u32,
        timeout: Duration,
    ) -> Result<Option<Reply>, EcbError> {
        let deadline = Instant::now() + timeout;
        let mut bytes = [0; 512];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let wait = self.socket.set_read_timeout(Some(left));
            wait.map_err(|source| self.failed(source))?;
            let (got, from) = match self.socket.recv_from(&mut bytes) {
                Ok(got) => got,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::TimedOut
                    | io::ErrorKind::Interrupted => continue,
                    _ => return Err(self.failed(error)),
                },
            };
            let ours = |reply: &Reply| {
                (reply.command, reply.sequence, reply.address)
                    == (command | REPLY, self.sequence, address)
            };
            if from.port() != self.device.port() {
                continue;
            }
            if let Some(reply) = parse(&bytes[..got]).filter(ours) {
                self.note_sender(from.ip());
                return Ok(Some(reply));
            }
        }
    }

    /// Logs the first answer from an address other than the configured one.
    fn note_sender(&mut self, from: IpAddr) {
        if from != self.device.ip() && self.answers_from != Some(from) {
            self.answers_from = Some(from);
            self.senders.run(|suppressed| {
                tracing::info!(
                    "device {} answers from another address, {from}{suppressed}",
                    self.device
                );
            });
        }
    }
}

/// Opens a socket on any free port, of the address family of `device`.
fn unbound(device: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = if device.is_ipv4() {
        [0; 4].into()
    } else {
        [0_u16; 8].into()
    };
    UdpSocket::bind((any, 0))
}

/// Returns the local address from which packets to `device` leave. Sends nothing.
pub(super) fn local_address_to(device: SocketAddr) -> io::Result<IpAddr> {
    let socket = unbound(device)?;
    socket.connect(device)?;
    Ok(socket.local_addr()?.ip())
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "any 16 bits of the random number can be used"
)]
fn random() -> u16 {
    RandomState::new().build_hasher().finish() as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// Starts a device that returns `answer` for request `n`.
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
    fn registers_are_written_and_read() {
        let (address, thread) = device(2, |_, request| vec![reply(request, 0, 0x1234_5678)]);
        let ecb = Ecb::shared(address).unwrap();
        assert!(Arc::ptr_eq(&ecb, &Ecb::shared(address).unwrap()));
        let mut ecb = ecb.lock().unwrap();
        ecb.write(0x0200_0304, 0xa0b0_c0d0).unwrap();
        assert_eq!(ecb.read(0x0200_030c).unwrap(), 0x1234_5678);
        let seen = thread.join().unwrap();
        // The first number is random.
        let [first, second] =
            [0, 1].map(|request: usize| u16::from_be_bytes([seen[request][2], seen[request][3]]));
        assert_eq!(second, first.wrapping_add(1));
        let [a, b] = first.to_be_bytes();
        let [c, d] = second.to_be_bytes();
        let write = [4, 1, a, b, 0, 0, 2, 0, 3, 4, 0xa0, 0xb0, 0xc0, 0xd0];
        let read = [0x14, 1, c, d, 0, 0, 2, 0, 3, 0x0c, 0, 0, 0, 0];
        assert_eq!(seen, [write.to_vec(), read.to_vec()]);
    }

    #[test]
    fn lost_request_is_repeated_and_foreign_replies_are_ignored() {
        let (address, thread) = device(2, |n, request| {
            let mut stale = reply(request, 0, 1);
            stale[2] ^= 0xff;
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
    fn refusal_and_silence_are_reported() {
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

    #[test]
    fn answer_from_another_address_of_the_device_is_accepted() {
        // The device has two addresses. The request goes to one; the reply comes from the other, from the control port.
        let asked = UdpSocket::bind((Ipv4Addr::new(127, 77, 0, 1), 0)).unwrap();
        let address = asked.local_addr().unwrap();
        let other = UdpSocket::bind((Ipv4Addr::new(127, 77, 0, 2), address.port())).unwrap();
        let foreign = UdpSocket::bind((Ipv4Addr::new(127, 77, 0, 3), 0)).unwrap();
        let thread = std::thread::spawn(move || {
            let mut bytes = [0; 64];
            let (got, from) = asked.recv_from(&mut bytes).unwrap();
            let mut wrong = reply(&bytes[..got], 0, 1);
            // The first reply does not come from the control port. The second does, but has another sequence number.
            foreign.send_to(&wrong, from).unwrap();
            wrong[3] ^= 1;
            other.send_to(&wrong, from).unwrap();
            other.send_to(&reply(&bytes[..got], 0, 7), from).unwrap();
        });
        let ecb = Ecb::shared(address).unwrap();
        assert_eq!(ecb.lock().unwrap().read(0x80).unwrap(), 7);
        assert_eq!(
            ecb.lock().unwrap().answers_from,
            Some(Ipv4Addr::new(127, 77, 0, 2).into())
        );
        thread.join().unwrap();
    }

    #[test]
    fn versions_with_unknown_registers_are_reported() {
        for (number, part) in [
            (0, Some("unknown")),
            (0x2511, Some("update the gateware")),
            (0x2602, None),
            (0x2606, None),
            (0x2701, Some("newer")),
        ] {
            let version = Version {
                number,
                date: 0x2026_0101,
            };
            let problem = version.problem();
            match part {
                None => assert_eq!(problem, None),
                Some(part) => assert!(problem.is_some_and(|text| text.contains(part))),
            }
            assert!(version.to_string().contains("20260101"));
        }
    }

    #[test]
    fn device_without_version_register_is_usable() {
        let (address, thread) = device(3, |n, request| match n {
            0 => vec![reply(request, 0, 0x2603)],
            1 => vec![reply(request, 0, 0x2026_0315)],
            _ => vec![reply(request, 3, 0)],
        });
        let ecb = Ecb::shared(address).unwrap();
        let mut ecb = ecb.lock().unwrap();
        let version = ecb.read_version().unwrap();
        assert_eq!((version.number, version.date), (0x2603, 0x2026_0315));
        assert_eq!(ecb.read_version().unwrap(), Version::default());
        thread.join().unwrap();
    }
}
