//! Compares every byte that a device sends after it passed through ring, kernel and file.

use crate::setup::{LITEPCIE, SLOT, XDMA, assert_stream, config, daq, data, host, packets};
use daq_tests::{Daq, Outcome, binary};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// The kernel and the file of its output.
const FLOATS: &str = "[kernel.numbers]\nuse = \"convert\"\ninput = \"raw\"\noutput = \"floats\"\n\
                      [ring.floats]\nmemory = \"host\"\nslots = 8\n\
                      [sink.floats-on-disk]\ndriver = \"file\"\ninput = \"floats\"\npath = \"floats\"\n";

/// An emulated device in its own process, killed when the test ends.
pub struct Served {
    child: Child,
}

impl Served {
    /// Starts the emulator with `arguments` at `card.sock` in the directory of `daq`; returns when it listens. Its
    /// output goes to `card.log`.
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

/// The output of `convert` for int16.
fn floats(raw: &[u8]) -> Vec<u8> {
    raw.as_chunks::<2>()
        .0
        .iter()
        .flat_map(|number| f32::from(i16::from_le_bytes(*number)).to_le_bytes())
        .collect()
}

/// Checks that all `frames` frames of `bytes` bytes arrived, that no others were counted, and that both files have
/// every byte.
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
        outcome.report["sources"]["adc"]["engine"]["proof"],
        "proven"
    );
    let raw = data(daq, "raw");
    assert_eq!(raw.len(), bytes);
    assert_stream(&raw);
    assert!(data(daq, "floats") == floats(&raw), "the kernel's bytes");
}

/// Runs until `frames` frames have arrived.
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

/// Packets of one and a half slots: every second frame is short and is flagged as short.
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

/// All data of the LitePCIe device fits into the ring, so a slow reader cannot cause an overrun. The last frame is
/// complete only when the next one starts, which never happens: the stop reports it.
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
