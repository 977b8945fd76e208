//! An emulated camera with GigE Vision.
//!
//! ```text
//!   control: discovery, registers, heartbeat, requests for lost packets ◀──▶ host
//!   stream:  images as leader, payload and trailer packets ──▶ the destination in the registers
//! ```
//! The emulator is written from the protocol, independently of the source `gige`. The two share no constants, so that the same
//! mistake is unlikely to be in both and stay undetected. Its description file lets programs with GenICam, such as those of
//! Aravis, use the camera too.

mod registers;
mod server;
mod stream;

use daq_core::log_limit::LogLimit;
use server::Server;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The UDP port of the control channel.
pub const CONTROL: u16 = 3956;
/// Register that starts the acquisition with value 1 and stops it with value 0.
pub const ACQUISITION: u32 = registers::ACQUISITION;
/// Registers of width, height and pixel format.
pub const IMAGE: [u32; 3] = [registers::WIDTH, registers::HEIGHT, registers::FORMAT];

/// Options of an emulated camera.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each field is an independent property of a camera"
)]
pub struct Options {
    /// The address of the control channel; packets of the stream have the same source address.
    pub listen: SocketAddrV4,
    /// The serial number, at most 15 bytes.
    pub serial: String,
    /// Width of the image in pixels after power-on.
    pub width: u32,
    /// Height of the image in pixels after power-on.
    pub height: u32,
    /// Code of the pixel format after power-on, such as 0x01080001 for `Mono8`.
    pub pixel_format: u32,
    /// Time between two images.
    pub interval: Duration,
    /// Number of images after which the camera stops sending; `None` means no limit.
    pub frames: Option<u64>,
    /// Whether block ids have 64 bits.
    pub extended: bool,
    /// Id of the first block of each acquisition.
    pub first_block: u64,
    /// Whether the camera can send packets again.
    pub resend: bool,
    /// Whether packets that are sent again are marked in their status.
    pub marks_resent: bool,
    /// Number of images that can be sent again.
    pub keep: usize,
    /// Whether the camera sends test packets.
    pub test_packets: bool,
    /// Maximum packet size in bytes that the emulated network carries; `None` means no limit.
    pub mtu: Option<usize>,
    /// Maximum packet size in bytes of the camera.
    pub max_packet: u32,
    /// Time in milliseconds without a command after which the camera ends the control.
    pub heartbeat_ms: u32,
    /// Ticks of the camera's clock per second.
    pub tick_rate: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddrV4::new(Ipv4Addr::LOCALHOST, CONTROL),
            serial: "EMULATED".to_owned(),
            width: 512,
            height: 512,
            pixel_format: 0x0108_0001,
            interval: Duration::from_millis(40),
            frames: None,
            extended: false,
            first_block: 1,
            resend: true,
            marks_resent: true,
            keep: 16,
            test_packets: true,
            mtu: None,
            max_packet: 9000,
            heartbeat_ms: 3000,
            tick_rate: 1_000_000_000,
        }
    }
}

/// Error: a camera cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum CameraError {
    /// The options are invalid.
    #[error("{0}")]
    Options(String),
    /// A socket cannot be opened.
    #[error(
        "listening for control requests on {address}: {source}; each camera needs its own address; on the loopback interface use 127.0.0.2, 127.0.0.3 and so on"
    )]
    Socket {
        /// The address of the socket.
        address: SocketAddrV4,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// What a camera counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Number of control requests.
    pub requests: u64,
    /// Number of times that an application took control.
    pub controls: u64,
    /// Number of times that an application ended its control.
    pub releases: u64,
    /// Number of times that the camera ended the control because it received no heartbeat.
    pub timeouts: u64,
    /// Number of times that the acquisition was started.
    pub starts: u64,
    /// Number of images sent.
    pub images: u64,
    /// Number of packets sent in the last acquisition, without packets that were sent again.
    pub packets: u64,
    /// Number of requests to send packets again.
    pub resends: u64,
    /// Number of packets sent again.
    pub resent: u64,
    /// Number of requested packets that were not stored.
    pub unavailable: u64,
    /// What the host did wrong.
    pub mistakes: Vec<String>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    reboots: AtomicU64,
    requests: AtomicU64,
    controls: AtomicU64,
    releases: AtomicU64,
    timeouts: AtomicU64,
    starts: AtomicU64,
    images: AtomicU64,
    packets: AtomicU64,
    resends: AtomicU64,
    resent: AtomicU64,
    unavailable: AtomicU64,
    mistakes: Mutex<(Vec<String>, LogLimit)>,
}

/// Maximum number of mistakes that are kept.
const MAX_MISTAKES: usize = 16;

impl Shared {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            stop: AtomicBool::new(false),
            reboots: zero(),
            requests: zero(),
            controls: zero(),
            releases: zero(),
            timeouts: zero(),
            starts: zero(),
            images: zero(),
            packets: zero(),
            resends: zero(),
            resent: zero(),
            unavailable: zero(),
            mistakes: Mutex::new((Vec::new(), LogLimit::new())),
        }
    }

    /// Records what the host did wrong.
    fn mistake(&self, what: String) {
        let mut mistakes = self.mistakes.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, limit) = &mut *mistakes;
        limit.run(|suppressed| tracing::warn!("the host made a mistake: {what}{suppressed}"));
        if kept.len() < MAX_MISTAKES {
            kept.push(what);
        }
    }
}

/// A running camera, which stops when this value is dropped.
#[derive(Debug)]
pub struct Camera {
    address: SocketAddrV4,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Camera {
    /// Starts a camera. When this function returns, the control channel accepts requests.
    pub fn start(options: &Options) -> Result<Self, CameraError> {
        check(options)?;
        let failed = |source| CameraError::Socket {
            address: options.listen,
            source,
        };
        let control = UdpSocket::bind(options.listen).map_err(failed)?;
        let address = match control.local_addr().map_err(failed)? {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(_) => options.listen,
        };
        let output = UdpSocket::bind((*address.ip(), 0)).map_err(failed)?;
        // Several cameras of one machine cannot all receive broadcasts.
        let broadcasts = UdpSocket::bind((Ipv4Addr::BROADCAST, address.port())).ok();
        let broadcasts = broadcasts
            .filter(|socket| address.port() == CONTROL && socket.set_nonblocking(true).is_ok());
        let shared = Arc::new(Shared::new());
        let sockets = (control, broadcasts, output);
        let server = Server::new(options, address, sockets, shared.clone());
        let thread = std::thread::Builder::new()
            .name("gige-camera".to_owned())
            .spawn(move || server.run())
            .map_err(CameraError::Thread)?;
        Ok(Self {
            address,
            shared,
            thread: Some(thread),
        })
    }

    /// Returns the address of the control channel.
    pub const fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// Restarts the camera: registers are lost, the stream ends, and requests are not answered for 300 ms.
    pub fn reboot(&self) {
        self.shared.reboots.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the current counters.
    pub fn counts(&self) -> Counts {
        let shared = &*self.shared;
        let get = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        let mistakes = shared
            .mistakes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Counts {
            requests: get(&shared.requests),
            controls: get(&shared.controls),
            releases: get(&shared.releases),
            timeouts: get(&shared.timeouts),
            starts: get(&shared.starts),
            images: get(&shared.images),
            packets: get(&shared.packets),
            resends: get(&shared.resends),
            resent: get(&shared.resent),
            unavailable: get(&shared.unavailable),
            mistakes: mistakes.0.clone(),
        }
    }

    /// Stops the camera and returns its counters.
    pub fn stop(mut self) -> Counts {
        self.end();
        self.counts()
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The panic of a thread was already logged.
            let _ = thread.join();
        }
    }
}

impl Drop for Camera {
    fn drop(&mut self) {
        self.end();
    }
}

/// Checks that the options are valid.
fn check(options: &Options) -> Result<(), CameraError> {
    let wrong = |why: String| Err(CameraError::Options(why));
    let side = 1..=16_384;
    if !side.contains(&options.width) || !side.contains(&options.height) {
        return wrong(format!(
            "an image of {} × {} pixels: width and height must be 1 to 16384",
            options.width, options.height
        ));
    }
    if options.serial.len() > 15 {
        return wrong(format!(
            "serial number {:?} has more than 15 bytes",
            options.serial
        ));
    }
    if options.interval.is_zero() {
        return wrong("the time between two images must be longer than zero".to_owned());
    }
    let max = if options.extended {
        u64::MAX >> 2
    } else {
        0xffff
    };
    if !(1..=max).contains(&options.first_block) {
        return wrong(format!(
            "the first block id is {}, but must be 1 to {max}",
            options.first_block
        ));
    }
    Ok(())
}

/// Writes the pixels of image `number`, counted from 0 in each acquisition, to `bytes`. No byte is zero.
pub fn fill(number: u64, bytes: &mut [u8]) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        let mixed = (number << 40 ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *byte = mixed.to_be_bytes()[0] | 1;
    }
}
