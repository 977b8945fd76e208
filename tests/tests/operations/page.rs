//! Tests the page for browsers with Chromium, and its streams.

use daq_testkit::{
    Daq, Live, TIMEOUT, assert_contains, get, ledger, program, python, repository, skip,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};

/// A tone in the middle of bin 128 of 1024, a quarter of the full scale (-12.04 dB). A second with losses begins after
/// five seconds: 1 MHz are 977 packets/s.
const TONE: &str = r#"
[source.antenna]
driver = "sim"
ring = "voltages"
samples = { type = "int16", complex = true, channels = 2, rate = "1 MHz" }
tones = [{ frequency = "125 kHz", amplitude = 0.25, channel = 1 }]
noise = 0.001
packet = "8 KiB"
[source.antenna.faults]
lose = ["4883..4893"]
[ring.voltages]
slot = "256 KiB"
slots = 64
[kernel.spectrum]
use = "power-spectrum"
input = "voltages"
output = "spectra"
size = 1024
[ring.spectra]
[sink.drop]
driver = "null"
input = "spectra"
[http]
listen = "127.0.0.1:0"
"#;

/// Runs `tests/python/page.py`, which prints the reason if Chromium is missing.
fn browse(live: &mut Live, check: &str) -> Output {
    let pictures = repository().join("target/page");
    std::fs::create_dir_all(&pictures).unwrap();
    Command::new("python3")
        .arg(repository().join("tests/python/page.py"))
        .arg(check)
        .arg(format!("http://{}", live.address()))
        .arg(pictures)
        .output()
        .unwrap()
}

/// Whether the page can be opened in a browser on this machine.
pub(crate) fn has_browser() -> bool {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    program("python3").is_some() && names.iter().any(|name| program(name).is_some())
}

#[test]
fn page_shows_tone_and_losses_where_they_are() {
    if !has_browser() {
        skip!("python3 and Chromium are not installed (Debian packages python3 and chromium)")
    }
    let daq = Daq::new(TONE);
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    for check in ["tone", "losses", "views"] {
        let output = browse(&mut live, check);
        assert!(
            output.status.success(),
            "{check}: {}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let outcome = live.stop();
    assert_eq!(
        ledger::count(&outcome.report, "sources.antenna.lost.wire_gap"),
        10
    );
}

/// A source that receives nothing, and a source with frames of 16 samples.
const EMPTY: &str = r#"
[source.deaf]
driver = "udp"
listen = "127.0.0.1:0"
ring = "never"
samples = { type = "int16", channels = 4, rate = "1 MHz" }
[source.deaf.format]
kind = "raw"
header = 8
payload = 1024
sequence = { offset = 0, bytes = 8 }
[ring.never]
slot = "64 KiB"
[sink.first]
driver = "null"
input = "never"
[source.tiny]
driver = "sim"
ring = "small"
samples = { type = "int16", complex = true, rate = "2 kHz" }
tones = [{ frequency = "250 Hz", amplitude = 0.25 }]
packet = 64
[ring.small]
slot = 64
[sink.second]
driver = "null"
input = "small"
[http]
listen = "127.0.0.1:0"
"#;

#[test]
fn page_says_why_a_ring_has_no_frame_and_shows_short_frames() {
    if !has_browser() {
        skip!("python3 and Chromium are not installed (Debian packages python3 and chromium)")
    }
    let daq = Daq::new(EMPTY);
    let mut live = daq.spawn(&[]);
    live.wait_count("rings.small.published", 1);
    let output = browse(&mut live, "empty");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let _ = live.stop();
}

/// Images whose pixels count up, also behind a colour filter, visibilities of a tone with the same phase in all antennas, and a histogram.
const KINDS: &str = r#"
[source.camera]
driver = "sim"
ring = "images"
pattern = "counter"
samples = { type = "uint8", width = 32, height = 24 }
packet = 768
pace = "1 Mbit/s"
[ring.images]
slot = 768
slots = 64
[kernel.health]
use = "stats"
input = "images"
output = "health"
[ring.health]
slots = 16
[sink.first]
driver = "null"
input = "health"
[source.colours]
driver = "sim"
ring = "colours"
pattern = "counter"
samples = { type = "uint8", width = 32, height = 24, colors = "BayerGB" }
packet = 768
pace = "1 Mbit/s"
[ring.colours]
slot = 768
slots = 64
[sink.third]
driver = "null"
input = "colours"
[source.antennas]
driver = "sim"
ring = "voltages"
samples = { type = "int8", channels = 2, order = "planar", rate = "8 MHz" }
tones = [{ frequency = "1 MHz", amplitude = 0.2 }]
noise = 0.01
pace = "10 Mbit/s"
[ring.voltages]
slot = "32 KiB"
slots = 64
[kernel.f-engine]
use = "channelize"
input = "voltages"
output = "spectra"
channels = 64
taps = 4
[ring.spectra]
slots = 16
[kernel.x-engine]
use = "correlate"
input = "spectra"
output = "visibilities"
antennas = 2
integrate = 128
frequency = "0 Hz"
spacing = "62.5 kHz"
[ring.visibilities]
slots = 16
[sink.second]
driver = "null"
input = "visibilities"
[http]
listen = "127.0.0.1:0"
"#;

#[test]
fn page_shows_images_phases_and_histograms() {
    if !has_browser() {
        skip!("python3 and Chromium are not installed (Debian packages python3 and chromium)")
    }
    let daq = Daq::new(KINDS);
    let mut live = daq.spawn(&[]);
    live.wait_count("rings.visibilities.published", 1);
    live.wait_count("rings.health.published", 1);
    let output = browse(&mut live, "kinds");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let _ = live.stop();
}

#[test]
fn ten_open_pages_lose_nothing() {
    let config = TONE
        .replace("lose = [\"4883..4893\"]", "")
        .replace("[ring.voltages]", "[ring.voltages]\nlock = false");
    let daq = Daq::new(&config);
    let mut live = daq.spawn(&["--set", "source.antenna.pace=free"]);
    live.wait_ready();
    let address = live.address();
    let mut streams: Vec<_> = (0..10)
        .map(|page| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let path = format!(
                "/rings/voltages/scope?channel={}&width={}",
                page % 2,
                300 + page
            );
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            stream
        })
        .collect();
    // Half of the pages read, the others stall.
    for _ in 0..3 {
        for stream in &mut streams[..5] {
            let mut part = vec![0; 64 << 10];
            stream.read_exact(&mut part).unwrap();
        }
    }
    let before = ledger::count(&live.report(), "rings.voltages.published");
    live.wait_count("rings.voltages.published", before + 100);
    assert_eq!(get(address, "/-/healthy").unwrap().code, 200);
    drop(streams);
    let outcome = live.stop().ok();
    let report = &outcome.report;
    assert_eq!(ledger::count(report, "rings.voltages.ring_full"), 0);
    let readers: Vec<_> = report["readers"].as_object().unwrap().keys().collect();
    assert_eq!(readers, ["drop", "spectrum"]);
    assert_eq!(
        ledger::count(report, "readers.spectrum.read"),
        ledger::count(report, "rings.voltages.published")
    );
}

#[test]
fn plan_shows_what_a_scope_reads() {
    let daq = Daq::new(TONE);
    let plan = daq.cli_line("plan daq.toml");
    assert_contains!(plan.stdout =>
        "while a browser shows ring voltages, reads at most 10 frames/s, 2.5 MiB/s of it"
    );
}

#[test]
fn newest_frame_is_a_numpy_file() {
    let python = python!("numpy");
    let daq = Daq::new(TONE);
    let mut live = daq.spawn(&[]);
    live.wait_count("rings.spectra.published", 1);
    let script = "import io, sys, urllib.request, numpy as np\n\
        def load(ring):\n\
        \x20   with urllib.request.urlopen(f'{sys.argv[1]}/rings/{ring}/frame.npy') as answer:\n\
        \x20       return np.load(io.BytesIO(answer.read()))\n\
        raw, spectra = load('voltages'), load('spectra')\n\
        assert raw.shape == (32768, 2, 2) and raw.dtype == '<i2', (raw.shape, raw.dtype)\n\
        z = raw[:, 1, 0] + 1j * raw[:, 1, 1]\n\
        power = abs(np.fft.fft(z[:1024])) ** 2\n\
        assert power.argmax() == 128, power.argmax()\n\
        assert abs(np.abs(z).mean() / 8192 - 1) < 0.01, np.abs(z).mean()\n\
        assert spectra.shape == (2, 1024) or spectra.shape == (1024, 2), spectra.shape\n";
    python.run(script, &[format!("http://{}", live.address())]);
}
