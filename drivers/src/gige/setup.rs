//! Takes control of a camera, configures its registers and its stream, and starts the acquisition.
//!
//! | step | registers |
//! |---|---|
//! | take control | control channel privilege, 0x0a00 |
//! | read what the camera can do | capability 0x0934, heartbeat timeout 0x0938, tick rate 0x093c and 0x0940 |
//! | stop an acquisition of an earlier run | `stop` |
//! | configure the camera | `registers`, in their order |
//! | find the packet size | packet size 0x0d04 with the bit that sends a test packet |
//! | configure the stream | destination 0x0d18, packet size 0x0d04, port 0x0d00 |
//! | start | `start` |

use super::control::{Control, ControlError};
use super::gvcp::{self, register};
use super::gvsp::IP_UDP;
use super::keys::Register;
use super::placer::Setup;
use crate::sys::interface::Interface;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

/// Minimum packet size in bytes that all cameras and networks support.
pub(super) const MIN_PACKET_SIZE: usize = 576;
/// Maximum packet size in bytes that is tried automatically.
const MAX_PACKET_SIZE: usize = 9000;
/// Packet size in bytes that fits the default MTU of Ethernet.
const ETHERNET: usize = 1500;
/// Step in bytes in which the packet size is searched. Most cameras support only multiples of it.
const PACKET_STEP: usize = 4;
/// Time that a test packet has to arrive, and number of test packets.
const TEST: (Duration, u32) = (Duration::from_millis(100), 2);
/// Heartbeat timeout of a camera that does not report it: the default of the specification.
const HEARTBEAT_TIMEOUT: u32 = 3000;

/// Reason why a camera cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum SetupError {
    #[error("{0}")]
    Control(#[from] ControlError),
    #[error(
        "another application controls the camera: close that application. The camera ends its control at most {0} ms after that \
         application has stopped"
    )]
    Controlled(u32),
    #[error(
        "the camera does not answer the request for control; probably another application controls it: close that application. The \
         camera ends its control at most {0} ms after that application has stopped"
    )]
    Unanswered(u32),
    #[error("{what}: {source}")]
    Register {
        what: String,
        #[source]
        source: ControlError,
    },
    #[error(
        "the camera uses packets of {camera} bytes, but must use {needed}: set `packet_size = {camera}`"
    )]
    PacketSize { camera: usize, needed: usize },
    #[error("cannot open a socket for test packets: {0}")]
    Test(io::Error),
    #[error("cannot limit the stream's socket to packets of the camera: {0}")]
    Filter(io::Error),
}

/// The configured steps.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    pub(super) registers: Vec<Register>,
    pub(super) start: Option<Register>,
    pub(super) stop: Option<Register>,
    /// The configured packet size; `None`: the largest that the network carries.
    pub(super) packet_size: Option<usize>,
    /// The local port of the stream.
    pub(super) port: u16,
}

/// A camera that is under control and configured.
#[derive(Debug)]
pub(super) struct Session {
    control: Control,
    stop: Option<Register>,
    start: Option<Register>,
    setup: Setup,
    heartbeat_timeout: Duration,
}

impl Session {
    /// Takes control of the camera and configures it. Does not start the acquisition.
    pub(super) fn open(mut control: Control, steps: &Steps) -> Result<Self, SetupError> {
        let heartbeat = take_control(&mut control)?;
        let mut session = Self {
            control,
            stop: steps.stop,
            start: steps.start,
            setup: Setup::default(),
            heartbeat_timeout: Duration::from_millis(heartbeat.into()),
        };
        match session.configure(steps) {
            Ok(setup) => {
                session.setup = setup;
                Ok(session)
            }
            Err(error) => {
                // Otherwise the camera refuses the next attempt until its heartbeat timeout has passed. If the camera does
                // not answer, the first error is the one to report.
                let _ = session.control.write(register::PRIVILEGE, 0);
                Err(error)
            }
        }
    }

    /// Returns what the source must know about the camera.
    pub(super) const fn setup(&self) -> Setup {
        self.setup
    }

    pub(super) const fn camera(&self) -> SocketAddrV4 {
        self.control.camera()
    }

    /// Returns the interval of heartbeats: three of them fit into the camera's timeout.
    pub(super) fn heartbeat_interval(&self) -> Duration {
        (self.heartbeat_timeout / 3).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }

    pub(super) const fn take_failures(&mut self) -> u64 {
        self.control.take_failures()
    }

    fn configure(&mut self, steps: &Steps) -> Result<Setup, SetupError> {
        let control = &mut self.control;
        // Registers of the first version of the specification, but a camera without them still streams.
        let mut read = |address| control.read(address).unwrap_or(0);
        let can_resend = read(register::CAPABILITY) & gvcp::CAN_RESEND != 0;
        let tick_rate =
            u64::from(read(register::TICKS_HIGH)) << 32 | u64::from(read(register::TICKS_LOW));
        if let Some(stop) = steps.stop {
            write(control, "stop", stop)?;
        }
        for (i, register) in steps.registers.iter().enumerate() {
            write(control, &format!("registers[{i}]"), *register)?;
        }
        let host = control.host();
        let packet_size = packet_size(control, host, steps.packet_size)?;
        control.write(register::DESTINATION, host.to_bits())?;
        control.write(register::STREAM_PORT, steps.port.into())?;
        Ok(Setup {
            packet_size,
            tick_rate,
            can_resend,
        })
    }

    /// Starts the acquisition.
    pub(super) fn start(&mut self) -> Result<(), SetupError> {
        match self.start {
            Some(start) => write(&mut self.control, "start", start),
            None => Ok(()),
        }
    }

    /// Sends a heartbeat. Returns whether this application still controls the camera.
    pub(super) fn beat(&mut self) -> Result<bool, ControlError> {
        let privilege = self.control.read(register::PRIVILEGE)?;
        Ok(privilege & gvcp::CONTROLLED != 0)
    }

    /// Stops the acquisition, closes the stream and ends the control, as far as the camera answers.
    pub(super) fn close(mut self) {
        let control = &mut self.control;
        let stopped = self
            .stop
            .map_or(Ok(()), |stop| write(control, "stop", stop));
        let closed = stopped
            .and_then(|()| Ok(control.write(register::STREAM_PORT, 0)?))
            .and_then(|()| Ok(control.write(register::PRIVILEGE, 0)?));
        if let Err(error) = closed {
            tracing::warn!(
                "camera {}: cannot stop the camera: {error}",
                control.camera()
            );
        }
    }
}

/// Takes control of the camera. Returns its heartbeat timeout in milliseconds.
fn take_control(control: &mut Control) -> Result<u32, SetupError> {
    const DENIED: u16 = 0x8006;
    let taken = control.write(register::PRIVILEGE, gvcp::CONTROL);
    let heartbeat = match control.read(register::HEARTBEAT_TIMEOUT) {
        Ok(0) | Err(ControlError::Refused { .. }) => HEARTBEAT_TIMEOUT,
        read => read?,
    };
    match taken {
        Ok(()) => Ok(heartbeat),
        Err(ControlError::Refused { status: DENIED, .. }) => Err(SetupError::Controlled(heartbeat)),
        // Some cameras do not answer writes of an application that does not control them. The privilege is not read here, because
        // Aravis' fake camera counts a read by any application as a heartbeat of the one that has control.
        Err(ControlError::Silent { .. }) => Err(SetupError::Unanswered(heartbeat)),
        Err(error) => Err(error.into()),
    }
}

fn write(control: &mut Control, what: &str, register: Register) -> Result<(), SetupError> {
    let Register { address, value } = register;
    control
        .write(address, value)
        .map_err(|source| SetupError::Register {
            what: format!("`{what}`"),
            source,
        })
}

/// Determines and sets the packet size of the stream, including IP and UDP headers.
fn packet_size(
    control: &mut Control,
    host: Ipv4Addr,
    configured: Option<usize>,
) -> Result<usize, SetupError> {
    let current = control.read(register::PACKET_SIZE)? & gvcp::SIZE;
    let interface = Interface::with_address(host).ok().flatten();
    let mtu = interface.and_then(|interface| interface.mtu().ok());
    let mtu = mtu.unwrap_or(ETHERNET);
    let test = Test::open(control, host)?;
    let arrived = match configured {
        Some(size) => test.run(control, size)?.then_some(size),
        None => largest(mtu.min(MAX_PACKET_SIZE), |size| test.run(control, size))?,
    };
    control.write(register::STREAM_PORT, 0)?;
    let camera = control.camera();
    let size = match (arrived, configured) {
        (Some(size), _) => size,
        (None, Some(size)) => {
            tracing::warn!(
                "camera {camera}: no test packet of {size} bytes arrived, so the network may not carry `packet_size`: check the MTU \
                 along the path (the interface of this machine has {mtu}); some cameras do not support test packets"
            );
            size
        }
        (None, None) => {
            let size =
                (current as usize).clamp(MIN_PACKET_SIZE, mtu.clamp(MIN_PACKET_SIZE, ETHERNET));
            tracing::info!(
                "camera {camera}: no test packet arrived, so the packet size is {size} bytes; set `packet_size` for larger packets"
            );
            size
        }
    };
    control.write(
        register::PACKET_SIZE,
        u32::try_from(size).unwrap_or(gvcp::SIZE),
    )?;
    // The camera may round the size.
    let size = (control.read(register::PACKET_SIZE)? & gvcp::SIZE) as usize;
    let min = configured.unwrap_or(MIN_PACKET_SIZE);
    if size < min {
        return Err(SetupError::PacketSize {
            camera: size,
            needed: min,
        });
    }
    Ok(size)
}

/// Returns the largest packet size up to `max` for which `arrives` returns true; `None` if not even the smallest packets arrive.
/// Sizes below that of Ethernet, and between that of Ethernet and `max`, are searched in steps of [`PACKET_STEP`].
fn largest<E>(
    max: usize,
    mut arrives: impl FnMut(usize) -> Result<bool, E>,
) -> Result<Option<usize>, E> {
    let (mut good, mut bad) = (None, None);
    let mut known = vec![max, ETHERNET, MIN_PACKET_SIZE];
    known.retain(|size| *size <= max);
    known.dedup();
    for size in known {
        if arrives(size)? {
            good = Some(size);
            break;
        }
        bad = Some(size);
    }
    let (Some(mut good), Some(mut bad)) = (good, bad) else {
        return Ok(good);
    };
    loop {
        let next = (good / PACKET_STEP + 1) * PACKET_STEP;
        let middle = (usize::midpoint(good, bad) / PACKET_STEP * PACKET_STEP).max(next);
        if middle >= bad {
            return Ok(Some(good));
        }
        if arrives(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
}

/// Receives test packets on a port of its own, so that the stream's socket stays empty.
struct Test {
    socket: UdpSocket,
}

impl Test {
    fn open(control: &mut Control, host: Ipv4Addr) -> Result<Self, SetupError> {
        let open = || {
            let socket = UdpSocket::bind((host, 0))?;
            let port = socket.local_addr()?.port();
            Ok((socket, port))
        };
        let (socket, port) = open().map_err(SetupError::Test)?;
        control.write(register::DESTINATION, host.to_bits())?;
        control.write(register::STREAM_PORT, port.into())?;
        Ok(Self { socket })
    }

    /// Returns whether a test packet of `size` bytes arrives from the camera.
    fn run(&self, control: &mut Control, size: usize) -> Result<bool, SetupError> {
        let flags = gvcp::FIRE_TEST_PACKET | gvcp::DO_NOT_FRAGMENT;
        let value = u32::try_from(size).unwrap_or(gvcp::SIZE) | flags;
        let (timeout, tries) = TEST;
        for _ in 0..tries {
            match control.write(register::PACKET_SIZE, value) {
                // The camera does not support this size.
                Err(ControlError::Refused { .. }) => return Ok(false),
                written => written?,
            }
            if self
                .arrives(control.camera(), size, timeout)
                .map_err(SetupError::Test)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn arrives(&self, camera: SocketAddrV4, size: usize, timeout: Duration) -> io::Result<bool> {
        let start = Instant::now();
        let mut bytes = vec![0; 1 << 16];
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv_from(&mut bytes) {
                Ok((length, from)) if from.ip() == *camera.ip() && length + IP_UDP == size => {
                    return Ok(true);
                }
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::TimedOut
                    | io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_size_is_the_largest_that_arrives() {
        let found = |max: usize, path: usize| {
            let mut tests = 0;
            let found = largest(max, |size| {
                tests += 1;
                Ok::<_, ()>(size <= path)
            });
            assert!(tests <= 3 + 12, "{tests} tests for {max} and {path}");
            found.unwrap()
        };
        for (max, path, expected) in [
            (1500, 9000, Some(1500)),
            (1450, 1448, Some(1448)),
            (1500, 1450, Some(1448)),
            (9000, 9000, Some(9000)),
            (9000, 1500, Some(1500)),
            (9000, 8192, Some(8192)),
            (9000, 600, Some(600)),
            (576, 576, Some(576)),
            (1500, 500, None),
        ] {
            assert_eq!(found(max, path), expected, "{max} {path}");
        }
    }
}
