//! Creates configurations of a source `hsb`, emulated devices for them, and the expected bytes.

use daq_core::units::BitRate;
use daq_emulators::hsb::pattern::{Pattern, verify};
use daq_emulators::hsb::{Board, Counts, Options};
use daq_testkit::network::{Recording, recording};
use daq_testkit::{Daq, Outcome, binary, free_udp_port};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddrV4;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Payload bytes per packet. The next constants are the data packets per frame and the bytes per frame. The last packet
/// is shorter than the others, and has room for the metadata.
pub const PACKET: usize = 1024;
pub const PACKETS: usize = 8;
pub const FRAME: usize = PACKET * PACKETS - 384;
/// Packets per frame if the metadata has a separate packet.
pub const ALL: u64 = PACKETS as u64 + 1;
/// Frames per stream, which is half a megabyte.
pub const FRAMES: u64 = 64;

/// Returns the options of a device that stops after [`FRAMES`] frames.
pub fn options(faults: &[&str]) -> Options {
    Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        rate: Some(BitRate(200e6)),
        frames: Some(FRAMES),
        faults: faults.iter().map(|fault| fault.parse().unwrap()).collect(),
        ..Options::default()
    }
}

/// Returns the sources `adc0`, `adc1` and so on, one per sensor of the device at `device`. Each has a ring and a file.
/// `keys` apply to every source.
pub fn config(device: &str, sensors: usize, keys: &str) -> String {
    let mut text = "[http]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    for sensor in 0..sensors {
        let port = free_udp_port();
        text += &format!(
            "[source.adc{sensor}]\ndriver = \"hsb\"\nring = \"raw{sensor}\"\nlisten = \"127.0.0.1:{port}\"\n\
             frame = {FRAME}\npacket = {PACKET}\ndevice = \"{device}\"\nsensor = {sensor}\n\
             samples = {{ type = \"uint8\" }}\n{keys}\n\
             [ring.raw{sensor}]\nmemory = \"host\"\nslot = \"8 KiB\"\nslots = 128\n\
             [sink.disk{sensor}]\ndriver = \"file\"\ninput = \"raw{sensor}\"\npath = \"out\"\nbuffer = \"256 KiB\"\n"
        );
    }
    text
}

/// Size in bytes of a receive buffer that can hold a whole stream, including Linux's overhead per packet.
const ROOM: usize = 2 << 20;

/// Skips the test and prints the reason if receive buffers cannot hold a whole stream.
#[macro_export]
macro_rules! needs_room {
    () => {
        if let Some(why) = $crate::hsb::setup::lacks_room() {
            daq_testkit::skip!("{why}");
        }
    };
}

/// Returns the reason why a stream may not fit into a socket's buffer; `None` if it fits.
pub fn lacks_room() -> Option<String> {
    let options = daq_drivers::sys::socket::Options {
        receive_buffer: ROOM,
        ..Default::default()
    };
    let any = "127.0.0.1:0".parse().unwrap();
    let socket = daq_drivers::sys::socket::UdpSocket::open(any, &options).unwrap();
    let granted = socket.granted();
    granted.is_short().then(|| granted.to_string())
}

/// The result of a run with one sensor of a device.
pub struct Run {
    pub daq: Daq,
    pub outcome: Outcome,
    pub counts: Counts,
    pub file: Recording,
}

impl Run {
    /// Runs daq and the device until `packets` packets were expected, then stops both.
    pub fn new(options: &Options, keys: &str, packets: u64) -> Self {
        let board = Board::start(options).unwrap();
        let daq = Daq::new(&config(&board.address().to_string(), 1, keys));
        let mut live = daq.spawn(&[]);
        live.wait_count("sources.adc0.expected", packets);
        let outcome = live.stop().ok();
        let counts = board.stop();
        is_host_correct(&counts);
        let file = recording(&daq, "disk0");
        Self {
            daq,
            outcome,
            counts,
            file,
        }
    }

    pub fn count(&self, key: &str) -> u64 {
        self.outcome.count(&format!("sources.adc0.{key}"))
    }

    /// Panics unless the ledger has these counts. All lost packets must be counted as wire gap.
    pub fn is(&self, lost: u64, duplicates: u64, rejected: u64) {
        let all = FRAMES * PACKETS as u64;
        let found = [
            "expected",
            "delivered",
            "lost.wire_gap",
            "duplicates",
            "rejected",
            "epochs",
        ]
        .map(|key| self.count(key));
        assert_eq!(
            found,
            [all, all - lost, lost, duplicates, rejected, 1],
            "{:#}\n{}",
            self.outcome.report,
            self.outcome.stderr
        );
    }

    /// Panics unless the file has all frames of a stream in order, except those in `without`. All bytes of the frames
    /// must be correct, except those of the packets `missing`, given as (frame, packet).
    pub fn has_all_but(&self, without: &[u64], missing: &[(u64, usize)]) {
        let frames: Vec<u64> = (0..FRAMES)
            .filter(|frame| !without.contains(frame))
            .collect();
        assert_eq!(self.file.data.len(), frames.len() * FRAME);
        assert_eq!(self.file.frames, without.len() as u64);
        let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
        for (place, (frame, bytes)) in frames.iter().zip(self.file.data.chunks(FRAME)).enumerate() {
            for (packet, bytes) in bytes.chunks(PACKET).enumerate() {
                let at = packet * PACKET;
                if missing.contains(&(*frame, packet)) {
                    let range = place * FRAME + at..place * FRAME + at + bytes.len();
                    match ranges.last_mut() {
                        Some(last) if last.end == range.start => last.end = range.end,
                        _ => ranges.push(range),
                    }
                    continue;
                }
                let wrong = verify(Pattern::Counter, 0, *frame, at as u64, bytes);
                assert_eq!(wrong, None, "frame {frame}, packet {packet}");
            }
        }
        assert_eq!(self.file.missing, ranges);
    }
}

/// Panics unless the host has armed and disarmed in the correct order, with one request at a time.
pub fn is_host_correct(counts: &Counts) {
    assert_eq!(counts.mistakes, Vec::<String>::new());
    let found = (
        counts.order_errors,
        counts.overlapped,
        counts.malformed,
        counts.sensors.iter().map(|sensor| sensor.send_errors).sum(),
    );
    assert_eq!(found, (0, 0, 0, 0), "{counts:#?}");
    for sensor in &counts.sensors {
        assert_eq!(sensor.arms, sensor.disarms, "{counts:#?}");
    }
}

/// Returns the addresses of one device, with the default ports.
pub fn own(last: u8) -> SocketAddrV4 {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    SocketAddrV4::new([127, 64 + high % 64, low, last].into(), 8192)
}

/// A process that emulates a sensor bridge for [`FRAMES`] frames.
pub struct Emulator {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Emulator {
    /// Starts the process at `address` with additional arguments.
    pub fn start(address: SocketAddrV4, arguments: &[&str]) -> Self {
        let (frames, address) = (FRAMES.to_string(), address.to_string());
        let mut child = Command::new(binary())
            .env("DAQ_LOG", "warn")
            .args(["emulate", "hsb", "--announce", "off", "--once", "--json"])
            .args([
                "--rate",
                "200 Mbit/s",
                "--frames",
                &frames,
                "--listen",
                &address,
            ])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, format!("listening on {address}\n"));
        Self { child, stdout }
    }

    /// Waits until the process ends. Returns the counts of its sensor, and checks that the host made no mistake.
    pub fn finish(mut self) -> Value {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success());
        let counts: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(counts["order_errors"], 0, "{counts:#}");
        assert_eq!(counts["sensors"][0]["frames"], FRAMES, "{counts:#}");
        counts["sensors"][0].clone()
    }
}
