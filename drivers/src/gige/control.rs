//! The control channel of one camera: reads and writes its registers.

use super::gvcp::{self, Acknowledge, command, status_text};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

/// Timeout of an attempt.
const TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of times that a request is sent.
const TRIES: u32 = 3;
/// Maximum additional time that a camera gets if it asks for more.
const MAX_PENDING: Duration = Duration::from_secs(10);

/// Reason why a register access failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControlError {
    /// The socket failed.
    #[error(
        "cannot reach the camera: {0}; `ip route get` with the camera's address shows the route"
    )]
    Socket(io::Error),
    /// The camera did not answer.
    #[error("the camera does not answer (register {address:#010x}, {TRIES} attempts)")]
    Silent {
        /// Address of the register.
        address: u32,
    },
    /// The camera returned an error status.
    #[error(
        "the camera refused to {action} register {address:#010x}: {} (status {status:#06x})", status_text(*.status)
    )]
    Refused {
        /// "read" or "write".
        action: &'static str,
        /// Address of the register.
        address: u32,
        /// Status code of the camera.
        status: u16,
    },
}

/// An open control channel.
#[derive(Debug)]
pub(super) struct Control {
    socket: UdpSocket,
    camera: SocketAddrV4,
    host: Ipv4Addr,
    id: u16,
    failures: u64,
}

impl Control {
    /// Opens a control channel from the address `local`, which may be unspecified, to `camera`. Sends nothing.
    pub(super) fn open(local: Ipv4Addr, camera: SocketAddrV4) -> Result<Self, ControlError> {
        let open = || {
            let socket = UdpSocket::bind((local, 0))?;
            // Linux then drops packets of other senders.
            socket.connect(camera)?;
            let std::net::IpAddr::V4(host) = socket.local_addr()?.ip() else {
                return Err(io::ErrorKind::AddrNotAvailable.into());
            };
            Ok((socket, host))
        };
        let (socket, host) = open().map_err(ControlError::Socket)?;
        Ok(Self {
            socket,
            camera,
            host,
            #[expect(
                clippy::cast_possible_truncation,
                reason = "any 16 bits of the random number can be used"
            )]
            id: RandomState::new().hash_one(0) as u16,
            failures: 0,
        })
    }

    pub(super) const fn camera(&self) -> SocketAddrV4 {
        self.camera
    }

    /// Returns this host's address in the network of the camera.
    pub(super) const fn host(&self) -> Ipv4Addr {
        self.host
    }

    /// Returns the number of requests that were refused or not answered in time since the last call.
    pub(super) const fn take_failures(&mut self) -> u64 {
        std::mem::replace(&mut self.failures, 0)
    }

    /// Reads the register at `address`.
    pub(super) fn read(&mut self, address: u32) -> Result<u32, ControlError> {
        self.ask(command::READ, address, None)
    }

    /// Writes `value` to the register at `address`.
    pub(super) fn write(&mut self, address: u32, value: u32) -> Result<(), ControlError> {
        self.ask(command::WRITE, address, Some(value)).map(drop)
    }

    fn ask(&mut self, command: u16, address: u32, value: Option<u32>) -> Result<u32, ControlError> {
        // Id 0 is not valid.
        self.id = self.id.wrapping_add(1).max(1);
        let data: Vec<_> = [Some(address), value].into_iter().flatten().collect();
        let message = gvcp::request(command, self.id, &data);
        for _ in 0..TRIES {
            match self.socket.send(&message) {
                // The camera is not running, or its network is not reachable yet.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                sent => drop(sent.map_err(ControlError::Socket)?),
            }
            let Some((status, word)) = self.answer(command)? else {
                self.failures += 1;
                continue;
            };
            if status == 0 {
                return Ok(word.unwrap_or(0));
            }
            self.failures += 1;
            let action = if value.is_some() { "write" } else { "read" };
            return Err(ControlError::Refused {
                action,
                address,
                status,
            });
        }
        Err(ControlError::Silent { address })
    }

    /// Waits for the answer to the last request: its status and the first word of its data.
    fn answer(&self, command: u16) -> Result<Option<(u16, Option<u32>)>, ControlError> {
        let start = Instant::now();
        let mut limit = TIMEOUT;
        let mut bytes = [0; 1024];
        loop {
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let wait = self.socket.set_read_timeout(Some(left));
            wait.map_err(ControlError::Socket)?;
            let length = match self.socket.recv(&mut bytes) {
                Ok(length) => length,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::TimedOut
                    | io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::ConnectionRefused => {
                        std::thread::sleep(left);
                        return Ok(None);
                    }
                    _ => return Err(ControlError::Socket(error)),
                },
            };
            let answer = Acknowledge::parse(&bytes[..length]);
            let Some(answer) = answer.filter(|answer| answer.id == self.id) else {
                continue;
            };
            if let Some(more) = answer.pending_ms() {
                let more = Duration::from_millis(more.into());
                limit = (start.elapsed() + more).min(MAX_PENDING);
            } else if answer.command == command {
                return Ok(Some((answer.status, answer.word())));
            }
        }
    }
}
