//! Checks every byte that a device sends, after it has passed through ring, kernel and file.

use crate::setup::{LITEPCIE, SLOT, XDMA, assert_stream, config, daq, data, host, packets};
use daq_testkit::{Daq, Outcome, binary};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// The kernel `convert`, and a file sink for its output.
const FLOATS: &str = "[kernel.numbers]\nuse = \"convert\"\ninput = \"raw\"\noutput = \"floats\"\n\
                      [ring.floats]\nmemory = \"host\"\nslots = 8\n\
                      [sink.floats-on-disk]\ndriver = \"file\"\ninput = \"floats\"\npath = \"floats\"\n";

/// An emulated device in a separate process, which is killed when the test ends.
pub struct Served {
    child: Child,
}

impl Served {
    /// Starts the emulator with `arguments` at the socket `card.sock` in the directory of `daq`. Returns when it is
    /// listening. Its output goes to `card.log`.
    pub fn new(daq: &Daq, arguments: &[&str]) -> Self {
        let log = std::fs::File::create(daq.path("card.log")).unwrap();
        let mut child = Command::new(binary())
            .env("DAQ_LOG", "warn")
            .arg("emulate")
            .args(arguments)
            .arg("--socket")
            .arg(daq.path("card.sock"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut lines = stdout.lines().map(Result::unwrap);
        assert!(
            lines.any(|line| line.starts_with("listening on ")),
            "{}",
            std::fs::read_to_string(daq.path("card.log")).unwrap()
        );
        Self { child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the output of `convert` for int16 samples.
fn floats(raw: &[u8]) -> Vec<u8> {
    raw.as_chunks::<2>()
        .0
        .iter()
        .flat_map(|number| f32::from(i16::from_le_bytes(*number)).to_le_bytes())
        .collect()
}

/// Checks that all `frames` frames of `bytes` bytes have arrived and that no other frames were counted. Checks every
/// byte of both files.
fn is_whole(daq: &Daq, outcome: &Outcome, frames: u64, bytes: usize) {
    let count = |path| outcome.count(path);
    for path in [
        "sources.adc.expected",
        "sources.adc.delivered",
        "rings.raw.published",
        "kernels.numbers.consumed",
    ] {
        assert_eq!(count(path), frames, "{path}: {:#}", outcome.report);
    }
    assert_eq!(count("sources.adc.bytes"), bytes as u64);
    assert_eq!(
        outcome.report["sources"]["adc"]["engine"]["path"],
        "verified"
    );
    let raw = data(daq, "raw");
    assert_eq!(raw.len(), bytes);
    assert_stream(&raw);
    assert!(
        data(daq, "floats") == floats(&raw),
        "the kernel's output differs"
    );
}

/// Runs daq until `frames` frames have arrived.
fn run(daq: &Daq, frames: u64) -> Outcome {
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.delivered", frames);
    live.stop().ok()
}

#[test]
fn xdma_in_process_delivers_every_byte() {
    const FRAMES: u64 = 200;
    for completion in ["poll", "interrupt"] {
        let source = format!("{XDMA}\ncompletion = \"{completion}\"\nchannel = 2");
        let daq = daq(&config(&source, &packets(FRAMES), &(host(16) + FLOATS)));
        let outcome = run(&daq, FRAMES);
        is_whole(
            &daq,
            &outcome,
            FRAMES,
            SLOT * usize::try_from(FRAMES).unwrap(),
        );
    }
}

/// Packets have one and a half times the size of a slot. So every second frame is short and has the flag for short
/// frames.
#[test]
fn xdma_end_of_packet_ends_frame() {
    const PACKETS: usize = 50;
    let card = format!("packet = {}\npackets = {PACKETS}\n", SLOT * 3 / 2);
    let text = config(XDMA, &card, &host(16));
    let daq = daq(&text);
    let outcome = run(&daq, 2 * PACKETS as u64);
    assert_eq!(outcome.count("sources.adc.expected"), 2 * PACKETS as u64);
    let raw = data(&daq, "raw");
    assert_eq!(raw.len(), PACKETS * SLOT * 3 / 2);
    assert_eq!(outcome.count("sources.adc.bytes"), raw.len() as u64);
    assert_stream(&raw);
}

#[test]
fn xdma_over_socket_delivers_every_byte() {
    const FRAMES: u64 = 200;
    for completion in ["poll", "interrupt"] {
        let source = format!(
            "device = \"vfio-user:card.sock\"\nengine = \"xdma\"\ncompletion = \"{completion}\""
        );
        let daq = daq(&config(&source, "", &(host(16) + FLOATS)));
        let packet = format!("{SLOT} B");
        let frames = FRAMES.to_string();
        let _card = Served::new(&daq, &["xdma", "--packet", &packet, "--packets", &frames]);
        let outcome = run(&daq, FRAMES);
        is_whole(
            &daq,
            &outcome,
            FRAMES,
            SLOT * usize::try_from(FRAMES).unwrap(),
        );
    }
}

/// All data of the LitePCIe device fits into the ring, so even a slow reader cannot cause an overrun. A frame is
/// reported when the next one starts. The last frame has no successor, so it is reported by the stop.
#[test]
fn litepcie_in_process_delivers_every_byte() {
    const FRAMES: u64 = 60;
    for completion in ["poll", "interrupt"] {
        let source = format!("{LITEPCIE}\ncompletion = \"{completion}\"");
        let daq = daq(&config(&source, &packets(FRAMES), &(host(64) + FLOATS)));
        let outcome = run(&daq, FRAMES - 1);
        is_whole(
            &daq,
            &outcome,
            FRAMES,
            SLOT * usize::try_from(FRAMES).unwrap(),
        );
    }
}
