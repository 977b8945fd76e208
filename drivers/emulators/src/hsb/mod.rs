//! An emulated Holoscan Sensor Bridge.
//!
//! ```text
//!   discovery: announces its address once a second ──▶ hosts
//!   control:   one request at a time ◀──▶ host ──▶ registers ──▶ arms and disarms
//!   stream:    a thread a sensor: frames ──▶ packets of RoCE v2 in UDP ──▶ what the registers name
//!              or writes by a queue pair of a card
//! ```
//! Written from the vendor's documentation of the protocol, independently of the source `hsb`. They share no constants,
//! so that a mistake does not cancel out. The emulator also checks the host: requests that a real board would accept
//! silently, and that would make it write to wrong memory, are counted and logged.
//!
//! What it does not do: the invariant checksum is right for IP packets that carry identification 0 and must not be
//! fragmented; what the kernel really puts there a UDP socket cannot know, so a card that checks it against the IP
//! header drops the packets.

mod announce;
mod card;
mod control;
mod counts;
mod crc;
mod faults;
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
/// The most sensors of a board: bits of a mask.
pub const MAX_SENSORS: usize = 32;
/// The most planes of a board.
pub const MAX_PLANES: usize = 8;

/// Options of an emulated board.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where its control plane listens; data comes from the same address.
    pub listen: SocketAddrV4,
    /// Where it announces itself; nowhere without it.
    pub announce: Option<SocketAddrV4>,
    /// Sensors, 1 to 32.
    pub sensors: usize,
    /// Planes, 1 to 8: each has a mask of the sensors that it sends for.
    pub planes: usize,
    /// Payload of each sensor; without it, as fast as it goes.
    pub rate: Option<BitRate>,
    /// Each sensor falls silent after so many frames.
    pub frames: Option<u64>,
    /// What the payload is.
    pub pattern: Pattern,
    /// Metadata in the last data packet where there is room, instead of always in a packet of its own.
    pub embedded: bool,
    /// Only the low 20 bits of packet sequence numbers are kept.
    pub psn20: bool,
    /// The first packet sequence number, below 2^24.
    pub psn: u32,
    /// Whether the kernel cuts bursts into packets.
    pub offload: bool,
    /// The card by whose queue pairs it writes, as a configuration names it; without it, packets go by UDP.
    pub nic: Option<String>,
    /// Address that control requests are answered from; without it, the one of `listen`.
    pub answer_from: Option<Ipv4Addr>,
    /// Sensors that can be armed and send nothing.
    pub dead: Vec<usize>,
    /// What goes wrong, and when.
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

/// Why a board cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SensorError {
    /// The options are wrong.
    #[error("{0}")]
    Options(String),
    /// A socket cannot be opened.
    #[error(
        "{what} on {address}: {source}; each board takes an address of its own; on the loopback interface 127.0.0.2, 127.0.0.3 and so on"
    )]
    Socket {
        /// Which.
        what: &'static str,
        /// Where.
        address: SocketAddrV4,
        /// What the system says.
        source: io::Error,
    },
    /// The card cannot be opened.
    #[error(transparent)]
    Nic(#[from] VerbsError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// A board that runs, until it is dropped or stopped.
#[derive(Debug)]
pub struct Board {
    address: SocketAddrV4,
    stop: Arc<AtomicBool>,
    lines: Vec<Arc<Line>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Board {
    /// Starts a board; when it returns, the control plane is there.
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

    /// Where the control plane listens.
    pub const fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// Restarts the board: registers are lost, sensors end, and requests are not answered for 300 ms.
    pub fn reboot(&self) {
        self.shared.reboot();
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Whether a host has armed it and all its sensors are disarmed again.
    pub fn is_left(&self) -> bool {
        let counts = self.counts();
        let arms: u64 = counts.sensors.iter().map(|sensor| sensor.arms).sum();
        let disarms: u64 = counts.sensors.iter().map(|sensor| sensor.disarms).sum();
        arms > 0 && arms == disarms
    }

    /// Stops the board and returns its counts.
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
            // The panic was already logged.
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

/// What every board wants of its options.
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
            "dead sensor {dead} of a board with {} sensors; they count from 0",
            options.sensors
        ));
    }
    if options.psn >= 1 << 24 {
        return wrong(format!(
            "a first sequence number of {}: it has 24 bits, so it is below {}",
            options.psn,
            1 << 24
        ));
    }
    let is_impossible = |fault: &&FaultOption| card::IMPOSSIBLE.contains(&fault.name());
    if options.nic.is_some()
        && let Some(fault) = options.faults.iter().find(is_impossible)
    {
        return wrong(format!(
            "no card makes a packet with the fault {}; leave the card out",
            fault.name()
        ));
    }
    if let Some(BitRate(rate)) = options.rate
        && !(rate.is_finite() && rate > 0.0)
    {
        return wrong(format!(
            "a rate of {} sends nothing; leave it out for as fast as it goes",
            BitRate(rate)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
