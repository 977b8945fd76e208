//! Tests frames that a sensor writes through a queue pair, with emulated NICs on both sides.
//!
//! The ring has more slots than a stream has frames, so no frame is overwritten even on a slow machine.

use crate::hsb::control::announcements;
use crate::hsb::setup::{
    ALL, Emulator, FRAME, FRAMES, PACKET, PACKETS, is_host_correct, options, own,
};
use daq_emulators::hsb::pattern::{Pattern, verify};
use daq_emulators::hsb::{Board, Counts, Options};
use daq_testkit::network::recording;
use daq_testkit::{Daq, Outcome, assert_contains, files, wait_for};
use serde_json::Value;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

fn board(faults: &[&str]) -> Options {
    Options {
        nic: Some("emulated".to_owned()),
        ..options(faults)
    }
}

/// Returns the sources `adc0`, `adc1` and so on, one per sensor of the device at `device`. Each has a ring and a file.
fn config(device: &str, sensors: usize) -> String {
    let mut text = "[http]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    for sensor in 0..sensors {
        text += &format!(
            "[source.adc{sensor}]\ndriver = \"hsb\"\nring = \"raw{sensor}\"\nmode = \"queue-pair\"\n\
             nics = [\"emulated\"]\nframe = {FRAME}\npacket = {PACKET}\ndevice = \"{device}\"\nsensor = {sensor}\n\
             samples = {{ type = \"uint8\" }}\n\
             [ring.raw{sensor}]\nmemory = \"host\"\nslot = \"8 KiB\"\nslots = 128\nfill = 165\n\
             [sink.disk{sensor}]\ndriver = \"file\"\ninput = \"raw{sensor}\"\npath = \"out\"\nbuffer = \"256 KiB\"\n"
        );
    }
    text
}

struct Run {
    daq: Daq,
    outcome: Outcome,
    counts: Counts,
}

impl Run {
    /// Runs one sensor of a device until `frames` frames were expected, then stops the run and the device.
    fn new(options: &Options, frames: u64) -> Self {
        let board = Board::start(options).unwrap();
        let daq = Daq::new(&config(&board.address().to_string(), 1));
        let mut live = daq.spawn(&[]);
        live.wait_count("sources.adc0.expected", frames);
        let outcome = live.stop().ok();
        let counts = board.stop();
        is_host_correct(&counts);
        Self {
            daq,
            outcome,
            counts,
        }
    }

    fn counts<const N: usize>(&self, keys: [&str; N]) -> [u64; N] {
        keys.map(|key| self.outcome.count(&format!("sources.adc0.{key}")))
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos()).unwrap()
}

/// Panics unless `bytes` are exactly the frames `frames` of a sensor. The packets `without`, given as (frame, packet),
/// must be filled. Returns the byte ranges of those packets.
fn has(bytes: &[u8], sensor: u8, frames: &[u64], without: &[(u64, usize)]) -> Vec<Range<usize>> {
    assert_eq!(bytes.len(), frames.len() * FRAME);
    let mut missing = Vec::new();
    for (i, (frame, bytes)) in frames.iter().zip(bytes.chunks(FRAME)).enumerate() {
        for (packet, bytes) in bytes.chunks(PACKET).enumerate() {
            let at = packet * PACKET;
            if without.contains(&(*frame, packet)) {
                assert!(bytes.iter().all(|byte| *byte == 165), "frame {frame}");
                missing.push(i * FRAME + at..i * FRAME + at + bytes.len());
                continue;
            }
            let wrong = verify(Pattern::Counter, sensor, *frame, at as u64, bytes);
            assert_eq!(wrong, None, "frame {frame}, packet {packet}");
        }
    }
    missing
}

#[test]
fn queue_pair_frames_and_timestamps_are_exact() {
    for (embedded, psn20, psn) in [(false, false, 0x00ff_ff00), (true, true, 0x000f_ffff)] {
        let before = now();
        let run = Run::new(
            &Options {
                embedded,
                psn20,
                psn,
                ..board(&[])
            },
            FRAMES,
        );
        let found = run.counts([
            "expected",
            "delivered",
            "epochs",
            "counts.metadata",
            "counts.skipped",
            "counts.short",
            "counts.control_errors",
        ]);
        assert_eq!(found, [FRAMES, FRAMES, 1, FRAMES, 0, 0, 0]);
        let file = recording(&run.daq, "disk0");
        let frames: Vec<u64> = (0..FRAMES).collect();
        has(&file.data, 0, &frames, &[]);
        assert!(file.missing.is_empty());
        assert_eq!(run.counts.sensors[0].frames, FRAMES);
        let metas = files(&run.daq.path("out"), ".sigmf-meta");
        let meta: Value = serde_json::from_slice(&std::fs::read(&metas[0]).unwrap()).unwrap();
        let capture = &meta["captures"][0];
        assert_eq!(capture["daq:clock"], "sensor", "{meta:#}");
        let time = capture["daq:time_ns"].as_u64().unwrap();
        assert!((before..=now()).contains(&time), "{meta:#}");
    }
}

#[test]
fn queue_pair_faults_are_counted() {
    let packet = |frame: u64, packet: u64| frame * ALL + packet;
    let faults = [
        // The first faults drop a packet, the end of a frame, two successive ends, and the first packet of a frame.
        format!("drop@{}", packet(5, 3)),
        format!("drop@{}", packet(7, PACKETS as u64)),
        format!("drop@{}:10", packet(20, PACKETS as u64)),
        format!("drop@{}", packet(23, 0)),
        // The NIC rejects the packet.
        format!("bad-rkey@{}", packet(10, 2)),
        format!("bad-va@{}", packet(12, 4)),
        // The end of a frame arrives twice.
        format!("duplicate@{}", packet(15, PACKETS as u64)),
        // Without metadata, a frame ends with its last data packet.
        "restart@40".to_owned(),
    ];
    let faults: Vec<&str> = faults.iter().map(String::as_str).collect();
    let run = Run::new(&board(&faults), FRAMES);
    let found = run.counts([
        "expected",
        "delivered",
        "lost.wire_gap",
        "epochs",
        "incomplete",
    ]);
    assert_eq!(
        found,
        [FRAMES, FRAMES - 3, 3, 2, 4],
        "{:#}",
        run.outcome.report
    );
    let file = recording(&run.daq, "disk0");
    let frames: Vec<u64> = (0..FRAMES)
        .filter(|frame| ![7, 20, 21].contains(frame))
        .collect();
    let without = [(5, 3), (10, 2), (12, 4), (23, 0)];
    assert_eq!(file.missing, has(&file.data, 0, &frames, &without));
    assert_contains!(run.outcome.stderr => "reports fault repeated", "reports fault order");
}

#[test]
fn queue_pair_first_frame_without_metadata_is_counted() {
    let run = Run::new(&board(&["no-metadata@0"]), FRAMES);
    let found = run.counts(["expected", "delivered", "epochs", "counts.metadata"]);
    assert_eq!(found, [FRAMES, FRAMES, 1, FRAMES - 1]);
    assert!(!run.outcome.stderr.contains("reports fault order"));
}

#[test]
fn queue_pair_several_sensors_are_received() {
    const SENSORS: usize = 3;
    let board = Board::start(&Options {
        sensors: SENSORS,
        ..board(&[])
    })
    .unwrap();
    let daq = Daq::new(&config(&board.address().to_string(), SENSORS));
    let mut live = daq.spawn(&[]);
    for sensor in 0..SENSORS {
        live.wait_count(&format!("sources.adc{sensor}.expected"), FRAMES);
    }
    let outcome = live.stop().ok();
    let frames: Vec<u64> = (0..FRAMES).collect();
    for sensor in 0..SENSORS {
        let path = format!("sources.adc{sensor}.delivered");
        assert_eq!(outcome.count(&path), FRAMES);
        let file = recording(&daq, &format!("disk{sensor}"));
        has(&file.data, u8::try_from(sensor).unwrap(), &frames, &[]);
    }
    is_host_correct(&board.stop());
}

/// The ring has fewer slots than the stream has frames, and the sensor does not support backpressure. Overwritten
/// frames must be counted, and no frame with mixed content may be delivered.
#[test]
fn queue_pair_page_wrap_tears_no_frame() {
    // The number of frame ends does not exceed what the queue pair can hold while it is not polled.
    const MANY: u64 = 3000;
    let board = Board::start(&Options {
        rate: None,
        frames: Some(MANY),
        ..board(&[])
    })
    .unwrap();
    let text = config(&board.address().to_string(), 1).replace("slots = 128", "slots = 8");
    let daq = Daq::new(&text);
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc0.expected", MANY);
    let outcome = live.stop().ok();
    let count = |key: &str| outcome.count(&format!("sources.adc0.{key}"));
    let lost = ["overrun", "bad_packet", "wire_gap", "ring_full"];
    let lost: u64 = lost
        .iter()
        .map(|cause| count(&format!("lost.{cause}")))
        .sum();
    assert_eq!((count("expected"), count("delivered") + lost), (MANY, MANY));
    let file = recording(&daq, "disk0");
    let mut last = None;
    let mut missing = file.missing.iter().peekable();
    for (i, bytes) in file.data.chunks(FRAME).enumerate() {
        let start = i * FRAME;
        while missing.next_if(|range| range.end <= start).is_some() {}
        if missing
            .peek()
            .is_some_and(|range| range.start < start + FRAME)
        {
            continue;
        }
        let frame = (last.map_or(0, |last| last + 1)..MANY)
            .find(|frame| verify(Pattern::Counter, 0, *frame, 0, bytes).is_none());
        assert!(frame.is_some(), "frame {i} of the file has mixed content");
        last = frame;
    }
    is_host_correct(&board.stop());
}

#[test]
fn queue_pair_emulator_process_is_received() {
    let address = own(2);
    let emulator = Emulator::start(address, &["--nic", "emulated"]);
    let daq = Daq::new(&config(&address.ip().to_string(), 1));
    let plan = daq.cli(&["plan", "daq.toml"]).ok();
    assert_contains!(plan.stdout => "queue pair of emulated", "cannot wait");
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc0.expected", FRAMES);
    let outcome = live.stop().ok();
    assert_eq!(outcome.count("sources.adc0.delivered"), FRAMES);
    assert_eq!(emulator.finish()["disarms"], 1);
}

#[test]
fn queue_pair_late_announcement_is_awaited() {
    let _alone = announcements();
    let text = config("auto", 1).replace("sensor = 0", "sensor = 0\nsilent_after = \"1 s\"");
    let daq = Daq::new(&text);
    let mut live = daq.spawn(&[]);
    live.wait_log("no device announced itself");
    wait_for("an answer that daq is not ready", || {
        let answer = live.get("/-/ready");
        (answer.code == 503 && answer.body.contains("adc0")).then_some(())
    });
    let board = Board::start(&Options {
        listen: own(13),
        announce: Some("127.0.0.1:12267".parse().unwrap()),
        ..board(&[])
    })
    .unwrap();
    live.wait_count("sources.adc0.expected", FRAMES);
    let outcome = live.stop().ok();
    assert_eq!(outcome.count("sources.adc0.delivered"), FRAMES);
    is_host_correct(&board.stop());
}

#[test]
fn queue_pair_unsupported_fault_is_rejected() {
    let error = Board::start(&board(&["bad-icrc@3"]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("bad-icrc"), "{error}");
}
