//! Tests with software of the Aravis project: daq with its fake camera, and its programs with the emulated camera.
//!
//! Cameras run in a network namespace of their own, because they need port 3956 and broadcasts.

use super::setup::count;
use crate::veth::{FAR, Far, NEAR, ip, wire};
use daq_emulators::gige::{Camera, Options};
use daq_testkit::network::recording;
use daq_testkit::{Daq, assert_contains, program, skip, wait_until};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const FAKE: &str = "arv-fake-gv-camera-0.8";
const SIDE: usize = 512;

/// A process that is killed when this value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the fake camera with `serial` on `address` in the far namespace.
fn fake(far: &Far, address: &str, serial: &str, lost_per_thousand: u32) -> Running {
    let lost = lost_per_thousand.to_string();
    let child = far.run(|| {
        Command::new(FAKE)
            .args(["-i", address, "-s", serial, "-r", &lost])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    });
    Running(child)
}

/// Returns a configuration with a source per value of the key `camera`, for images of the fake camera with 8 bits per pixel.
fn config(cameras: &[&str], keys: &str) -> String {
    let mut text = "[http]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    for (i, camera) in cameras.iter().enumerate() {
        text += &format!(
            "[source.cam{i}]\ndriver = \"gige\"\nring = \"raw{i}\"\ncamera = {camera}\nwidth = {SIDE}\nheight = {SIDE}\n\
             pixel_format = \"Mono8\"\nstart = {{ address = 0x124, value = 1 }}\nstop = {{ address = 0x124, value = 0 }}\n{keys}\n\
             [ring.raw{i}]\nmemory = \"host\"\nslots = 64\n\
             [sink.disk{i}]\ndriver = \"file\"\ninput = \"raw{i}\"\npath = \"out\"\n"
        );
    }
    text
}

/// Packets of a stream by (block, packet id).
type Packets = BTreeMap<(u64, u32), Vec<u8>>;

/// Reads the payload packets of the camera at `from` from a capture. Numbers of blocks do not wrap: they are counted from the id
/// of the first block.
fn captured(path: &Path, from: [u8; 4]) -> Packets {
    let bytes = std::fs::read(path).unwrap();
    let mut packets = Packets::new();
    let (mut at, mut first) = (24, None);
    while let Some(head) = bytes.get(at..at + 16) {
        let length = u32::from_ne_bytes(head[8..12].try_into().unwrap()) as usize;
        let Some(frame) = bytes.get(at + 16..at + 16 + length) else {
            break;
        };
        at += 16 + length;
        let (ip, udp) = (&frame[14..], &frame[34..]);
        if ip[9] != 17 || ip[12..16] != from || udp[0..2] == 3956_u16.to_be_bytes() {
            continue;
        }
        let gvsp = &udp[8..];
        let id = u32::from_be_bytes(gvsp[4..8].try_into().unwrap());
        let block = u64::from(u16::from_be_bytes([gvsp[2], gvsp[3]]));
        if id >> 24 == 3 {
            let first = *first.get_or_insert(block);
            // Ids skip 0.
            let number = (block + 65_535 - first) % 65_535;
            packets.insert((number, id & 0xff_ffff), gvsp[8..].to_vec());
        }
    }
    packets
}

/// The fake camera must be received with its default settings, its random losses must be counted exactly, and each byte must be as
/// captured on the wire. Its 16-bit block ids wrap during the run.
#[test]
fn fake_camera_is_received_and_its_losses_are_counted_exactly() {
    if program(FAKE).is_none() || program("tcpdump").is_none() {
        skip!("{FAKE} (package aravis-tools) or tcpdump is not installed");
    }
    let far = match wire(1, 1500) {
        Ok(far) => far,
        Err(why) => skip!("{why}"),
    };
    for (lost, format, code, bytes) in [
        (0, "Mono8", 0x0108_0001, 1),
        (10, "Mono8", 0x0108_0001, 1),
        (0, "Mono16", 0x0110_0007, 2),
    ] {
        let image_bytes = SIDE * SIDE * bytes;
        let _camera = fake(&far, "10.77.0.2", "GV07", lost);
        // The pixel format, and 500 images per second.
        let keys = format!(
            "registers = [{{ address = 0x128, value = {code} }}, {{ address = 0x138, value = 2000 }}]\nwindow = 4"
        );
        let daq = Daq::new(&config(&["\"10.77.0.2\""], &keys).replace("Mono8", format));
        let path = daq.path("wire.pcap");
        let log = daq.path("tcpdump.log");
        let capture = Command::new("tcpdump")
            .args(["-i", NEAR, "-s", "0", "-B", "65536", "-Z", "root", "-w"])
            .arg(&path)
            .arg("udp")
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut capture = Running(capture);
        let logged = || std::fs::read_to_string(&log).unwrap();
        wait_until("the capture", || logged().contains("listening on"));
        let mut live = daq.spawn(&[]);
        // The first block id is near 65400, so ids wrap after at most 200 images.
        live.wait_count("sources.cam0.delivered", 250 * 190 * bytes as u64);
        let outcome = live.stop().ok();
        let pid = rustix::process::Pid::from_child(&capture.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let _ = capture.0.wait();
        if !logged().contains("\n0 packets dropped by kernel") {
            skip!(
                "tcpdump lost packets, so its capture cannot be compared: {}",
                logged()
            );
        }
        let packets = captured(&path, [10, 77, 0, 2]);
        let all = count(&outcome, 0, "expected");
        let (&(_, first), _) = packets.first_key_value().unwrap();
        let payload = packets.values().map(Vec::len).max().unwrap();
        let each = image_bytes.div_ceil(payload) as u64;
        let start = u64::from(first) - 1;
        let position = |block: u64, id: u32| block * each + u64::from(id) - 1;
        let arrived = packets
            .keys()
            .filter(|(block, id)| position(*block, *id) < start + all);
        let arrived = arrived.count() as u64;
        if arrived < count(&outcome, 0, "delivered") {
            skip!("the capture has fewer packets than the camera sent, so it cannot be compared");
        }
        let keys = ["delivered", "rejected", "duplicates", "epochs"];
        assert_eq!(
            keys.map(|key| count(&outcome, 0, key)),
            [arrived, 0, 0, 1],
            "{}",
            outcome.stderr
        );
        assert_eq!(
            daq_testkit::ledger::lost(&outcome.report, "cam0"),
            all - arrived
        );
        assert_eq!(all - arrived > 0, lost > 0);
        let file = recording(&daq, "disk0");
        let mut missing = vec![false; file.data.len()];
        for range in &file.missing {
            // Ranges count samples.
            missing[range.start * bytes..range.end * bytes].fill(true);
        }
        assert!(file.data.len() >= 200 * image_bytes);
        for (frame, (image, missing)) in file
            .data
            .chunks(image_bytes)
            .zip(missing.chunks(image_bytes))
            .enumerate()
        {
            for (i, (bytes, missing)) in image
                .chunks(payload)
                .zip(missing.chunks(payload))
                .enumerate()
            {
                let id = u32::try_from(i).unwrap() + 1;
                match packets.get(&(frame as u64, id)) {
                    Some(sent) if !missing[0] => {
                        assert!(sent == bytes, "packet {id} of frame {frame}");
                    }
                    sent => assert!(
                        missing[0] && (sent.is_none() || position(frame as u64, id) >= start + all),
                        "packet {id} of frame {frame}"
                    ),
                }
            }
        }
    }
}

/// Cameras must be found by serial number, MAC address and model, and the error for a missing one must list those that answer.
#[test]
fn fake_cameras_are_found_by_identity() {
    if program(FAKE).is_none() {
        skip!("{FAKE} (package aravis-tools) is not installed");
    }
    let far = match wire(1, 1500) {
        Ok(far) => far,
        Err(why) => skip!("{why}"),
    };
    far.run(|| ip(&format!("address add 10.77.0.3/24 dev {FAR}")))
        .unwrap();
    let _one = fake(&far, "10.77.0.2", "GV07", 0);
    let _two = fake(&far, "10.77.0.3", "GV08", 0);
    let daq = Daq::new(&config(
        &[
            "{ serial = \"GV07\" }",
            "{ serial = \"GV08\", model = \"Fake\" }",
        ],
        "",
    ));
    let mut live = daq.spawn(&[]);
    for i in 0..2 {
        live.wait_count(&format!("sources.cam{i}.delivered"), 200);
    }
    let outcome = live.stop().ok();
    assert_contains!(outcome.stderr => "found Aravis Fake at 10.77.0.2 (serial GV07", "found Aravis Fake at 10.77.0.3 (serial GV08");
    for (camera, error) in [
        (
            "{ serial = \"GV09\" }",
            "there is no camera with serial GV09; found: ",
        ),
        ("{ model = \"Fake\" }", "several cameras match model Fake"),
    ] {
        let daq = Daq::new(&config(&[camera], ""));
        let mut live = daq.spawn(&[]);
        live.wait_log(error);
        let log = live.stop().stderr;
        assert_contains!(log => "serial GV07", "serial GV08");
    }
}

/// Aravis' fake camera counts a read of the privilege as a heartbeat of the application that controls it, also if that application
/// was killed and another one reads.
#[test]
fn fake_camera_is_set_up_again_after_a_killed_run() {
    if program(FAKE).is_none() {
        skip!("{FAKE} (package aravis-tools) is not installed");
    }
    let far = match wire(1, 1500) {
        Ok(far) => far,
        Err(why) => skip!("{why}"),
    };
    let _camera = fake(&far, "10.77.0.2", "GV07", 0);
    let daq = Daq::new(&config(&["\"10.77.0.2\""], ""));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.cam0.delivered", 200);
    live.kill();
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.cam0.delivered", 200);
    let _ = live.stop().ok();
}

/// Programs of Aravis must find the emulated camera, read its description, and receive its images without errors.
#[test]
fn aravis_programs_use_emulated_camera() {
    const TEST: &str = "arv-camera-test-0.8";
    const TOOL: &str = "arv-tool-0.8";
    if program(TEST).is_none() || program(TOOL).is_none() {
        skip!("{TEST} or {TOOL} (packages aravis-tools, aravis-tools-cli) is not installed");
    }
    let far = match wire(1, 1500) {
        Ok(far) => far,
        Err(why) => skip!("{why}"),
    };
    let camera = far.run(|| {
        Camera::start(&Options {
            listen: "10.77.0.2:3956".parse().unwrap(),
            // Fits into the receive buffer of the program.
            width: 128,
            height: 100,
            interval: Duration::from_millis(20),
            ..Options::default()
        })
        .unwrap()
    });
    let run = |name: &str, arguments: &[&str]| {
        let done = Command::new(name).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        text + &String::from_utf8_lossy(&done.stderr)
    };
    assert_contains!(run(TOOL, &[]) => "daq-EmulatedCamera-EMULATED (10.77.0.2)");
    let values = run(
        TOOL,
        &[
            "-a",
            "10.77.0.2",
            "control",
            "Width",
            "Height",
            "PixelFormat",
            "PayloadSize",
        ],
    );
    assert_contains!(values => "Width = 128", "Height = 100", "PixelFormat = Mono8", "PayloadSize = 12800");
    let text = run(TEST, &["--duration=2", "--no-packet-socket"]);
    let value = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{name}: {text}"));
        line.split('=')
            .nth(1)
            .unwrap()
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    assert!(value("n_completed_buffers") > 10, "{text}");
    for name in [
        "n_failures",
        "n_missing_frames",
        "n_size_mismatch_errors",
        "n_missing_packets",
        "n_error_packets",
    ] {
        assert_eq!(value(name), 0, "{text}");
    }
    assert!(camera.stop().images > 10);
}
