//! An emulated Holoscan Sensor Bridge.
//!
//! ```text
//!   discovery: announces its address once a second ──▶ hosts
//!   control:   one request at a time ◀──▶ host ──▶ registers ──▶ arms and disarms
//!   stream:    one thread per sensor: frames ──▶ packets of RoCE v2 in UDP ──▶ the destination in the registers
//!              or RDMA writes by a queue pair of a NIC
//! ```
//! The emulator is written from the vendor's documentation of the protocol, independently of the source `hsb`. The two
//! share no constants, so that the same mistake is unlikely to be in both and stay undetected. The emulator also checks
//! the host. It counts and logs requests that a real board would accept without an error, but that would make the board
//! write to wrong memory.
//!
//! Limitation: the invariant checksum is valid only for IP packets with identification 0 and the don't-fragment flag. A
//! UDP socket cannot read the identification that Linux sets, so a NIC that verifies the checksum with the IP header
//! drops the packets.

mod announce;
mod control;
mod counts;
mod crc;
mod faults;
mod nic;
mod packet;
pub mod pattern;
mod registers;
mod stream;

pub use counts::{Counts, SensorCounts};
pub use faults::{FAULTS, FaultOption};

use counts::Shared;
use daq_core::units::BitRate;
use daq_rdma::nics;
use daq_rdma::verbs::VerbsError;
use faults::Faults;
use pattern::Pattern;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use stream::Line;

/// The UDP port of the control plane.
pub const CONTROL: u16 = 8192;
/// The UDP port that announcements are sent to.
pub const ANNOUNCE: u16 = 12_267;
/// The maximum number of sensors of a board: the number of bits of a mask.
pub const MAX_SENSORS: usize = 32;
/// The maximum number of planes of a board.
pub const MAX_PLANES: usize = 8;

/// Options of an emulated board.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address of the control plane; data packets use the same source address.
    pub listen: SocketAddrV4,
    /// The destination of announcements; with `None`, the board sends no announcements.
    pub announce: Option<SocketAddrV4>,
    /// Number of sensors, 1 to 32.
    pub sensors: usize,
    /// Number of planes, 1 to 8. Each plane has a mask of the sensors whose packets the plane sends.
    pub planes: usize,
    /// Payload rate of each sensor; with `None`, sensors send as fast as possible.
    pub rate: Option<BitRate>,
    /// Number of frames after which each sensor stops sending; `None` means no limit.
    pub frames: Option<u64>,
    /// The contents of the payload.
    pub pattern: Pattern,
    /// True: metadata is appended to the last data packet if it fits. False: metadata is always in a separate packet.
    pub embedded: bool,
    /// True: packet sequence numbers have only 20 bits.
    pub psn20: bool,
    /// The first packet sequence number (PSN); must be below 2^24.
    pub psn: u32,
    /// True: Linux splits bursts into packets (UDP segmentation offload).
    pub offload: bool,
    /// The name of the NIC whose queue pairs send the packets; `None` sends UDP packets through a socket.
    pub nic: Option<String>,
    /// Source address of control replies; `None` uses the address of `listen`.
    pub answer_from: Option<Ipv4Addr>,
    /// Sensors that can be armed but send nothing.
    pub dead: Vec<usize>,
    /// The faults that the board injects.
    pub faults: Vec<FaultOption>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddrV4::new(Ipv4Addr::LOCALHOST, CONTROL),
            announce: None,
            sensors: 1,
            planes: 1,
            rate: None,
            frames: None,
            pattern: Pattern::Counter,
            embedded: false,
            psn20: false,
            psn: 0,
            offload: true,
            nic: None,
            answer_from: None,
            dead: Vec::new(),
            faults: Vec::new(),
        }
    }
}

/// Error: a board cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SensorError {
    /// The options are invalid.
    #[error("{0}")]
    Options(String),
    /// A socket cannot be opened.
    #[error(
        "{what} on {address}: {source}; each board needs its own address; on the loopback interface use 127.0.0.2, 127.0.0.3 and so on"
    )]
    Socket {
        /// The purpose of the socket.
        what: &'static str,
        /// The address of the socket.
        address: SocketAddrV4,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The NIC cannot be opened.
    #[error(transparent)]
    Nic(#[from] VerbsError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// A running board, which stops when this value is dropped.
#[derive(Debug)]
pub struct Board {
    address: SocketAddrV4,
    stop: Arc<AtomicBool>,
    lines: Vec<Arc<Line>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Board {
    /// Starts a board. When this function returns, the control plane accepts requests.
    pub fn start(options: &Options) -> Result<Self, SensorError> {
        check(options)?;
        let nic = options.nic.as_deref().map(nics::open).transpose()?;
        let socket = UdpSocket::bind(options.listen).map_err(|source| SensorError::Socket {
            what: "listening for control requests",
            address: options.listen,
            source,
        })?;
        let address = match socket.local_addr() {
            Ok(std::net::SocketAddr::V4(address)) => address,
            _ => options.listen,
        };
        let answers = options
            .answer_from
            .map(|ip| {
                let address = SocketAddrV4::new(ip, address.port());
                UdpSocket::bind(address).map_err(|source| SensorError::Socket {
                    what: "answering control requests",
                    address,
                    source,
                })
            })
            .transpose()?;
        let shared = Arc::new(Shared::new(options.sensors));
        let stop = Arc::new(AtomicBool::new(false));
        let lines: Vec<Arc<Line>> = (0..options.sensors)
            .map(|_| Arc::new(Line::default()))
            .collect();
        let mut board = Self {
            address,
            stop: stop.clone(),
            lines: lines.clone(),
            shared: shared.clone(),
            threads: Vec::new(),
        };
        for (sensor, line) in lines.iter().enumerate() {
            let worker = stream::Worker::new(sensor, *address.ip(), options, nic.clone(), &shared);
            let line = line.clone();
            board.spawn(&format!("hsb-sensor-{sensor}"), move || worker.run(&line))?;
        }
        if let Some(to) = options.announce {
            let announcer = announce::Announcer::open(address, to)?;
            let (stop, shared) = (stop.clone(), shared.clone());
            board.spawn("hsb-announce", move || announcer.run(&stop, &shared))?;
        }
        let registers = registers::Registers::new(options.sensors, options.planes);
        let faults = Faults::new(&options.faults);
        let sockets = (socket, answers);
        let dead = options.dead.clone();
        let server = control::Server::new(sockets, registers, dead, faults, lines, shared);
        board.spawn("hsb-control", move || server.run(&stop))?;
        Ok(board)
    }

    /// Returns the address of the control plane.
    pub const fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// Restarts the board: registers are lost, sensors end, and requests are not answered for 300 ms.
    pub fn reboot(&self) {
        self.shared.reboot();
    }

    /// Returns the current counters.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Returns true if a host has armed the board and all sensors are disarmed again.
    pub fn is_left(&self) -> bool {
        let counts = self.counts();
        let arms: u64 = counts.sensors.iter().map(|sensor| sensor.arms).sum();
        let disarms: u64 = counts.sensors.iter().map(|sensor| sensor.disarms).sum();
        arms > 0 && arms == disarms
    }

    /// Stops the board and returns its counters.
    pub fn stop(mut self) -> Counts {
        self.end();
        self.counts()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Release);
        for line in &self.lines {
            line.end();
        }
        for thread in self.threads.drain(..) {
            // The panic of a thread was already logged.
            let _ = thread.join();
        }
    }

    fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), SensorError> {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(SensorError::Thread)?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.end();
    }
}

/// Checks that the options are valid.
fn check(options: &Options) -> Result<(), SensorError> {
    let wrong = |why: String| Err(SensorError::Options(why));
    if !(1..=MAX_SENSORS).contains(&options.sensors) {
        return wrong(format!(
            "sensors = {}: must be 1 to {MAX_SENSORS}",
            options.sensors
        ));
    }
    if !(1..=MAX_PLANES).contains(&options.planes) {
        return wrong(format!(
            "planes = {}: must be 1 to {MAX_PLANES}",
            options.planes
        ));
    }
    if let Some(dead) = options.dead.iter().find(|dead| **dead >= options.sensors) {
        return wrong(format!(
            "dead sensor {dead} does not exist; the board has {} sensors, numbered from 0",
            options.sensors
        ));
    }
    if options.psn >= 1 << 24 {
        return wrong(format!(
            "the first packet sequence number is {}, but must be below {} (24 bits)",
            options.psn,
            1 << 24
        ));
    }
    let is_impossible = |fault: &&FaultOption| nic::IMPOSSIBLE.contains(&fault.name());
    if options.nic.is_some()
        && let Some(fault) = options.faults.iter().find(is_impossible)
    {
        return wrong(format!(
            "a NIC cannot send a packet with the fault {}; remove this fault or `nic`",
            fault.name()
        ));
    }
    if let Some(BitRate(rate)) = options.rate
        && !(rate.is_finite() && rate > 0.0)
    {
        return wrong(format!(
            "the rate is {}, but must be greater than 0; omit the rate to send as fast as possible",
            BitRate(rate)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
