//! Checks every byte that sensors send, after it has passed through ring and file.

use crate::needs_room;
use crate::setup::{ALL, FRAME, FRAMES, PACKETS, Run, config, is_host_correct, options, own};
use daq_emulators::hsb::pattern::{Pattern, verify};
use daq_emulators::hsb::{Board, Options};
use daq_tests::network::recording;
use daq_tests::{Daq, binary};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

const EXPECTED: u64 = FRAMES * PACKETS as u64;

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos()).unwrap()
}

#[test]
fn frames_and_timestamps_are_exact() {
    needs_room!();
    for (embedded, offload) in [(false, true), (true, true), (false, false)] {
        let before = now();
        let run = Run::new(
            &Options {
                embedded,
                offload,
                ..options(&[])
            },
            "",
            EXPECTED,
        );
        run.is(0, 0, 0);
        run.has_all_but(&[], &[]);
        let alone = if embedded { 0 } else { FRAMES };
        assert_eq!(run.count("control"), alone);
        let sent = &run.counts.sensors[0];
        assert_eq!(sent.packets, EXPECTED + alone);
        let metas = daq_tests::files(&run.daq.path("out"), ".sigmf-meta");
        let meta: Value = serde_json::from_slice(&std::fs::read(&metas[0]).unwrap()).unwrap();
        let capture = &meta["captures"][0];
        assert_eq!(capture["daq:clock"], "sensor", "{meta:#}");
        let time = capture["daq:time_ns"].as_u64().unwrap();
        assert!((before..=now()).contains(&time), "{meta:#}");
    }
}

/// Tests several first packet numbers and both numbers of sequence bits.
#[test]
fn sequence_wrap_loses_nothing() {
    needs_room!();
    for (psn20, psn) in [
        (false, 0x00ff_ff00),
        (true, 0x000f_ff00),
        (true, 0x000f_ffff),
    ] {
        let run = Run::new(
            &Options {
                psn20,
                psn,
                ..options(&[])
            },
            "",
            EXPECTED,
        );
        run.is(0, 0, 0);
        run.has_all_but(&[], &[]);
    }
}

#[test]
fn page_reuse_loses_nothing() {
    needs_room!();
    for pages in [1, 2, 3] {
        let run = Run::new(&options(&[]), &format!("pages = {pages}"), EXPECTED);
        run.is(0, 0, 0);
        run.has_all_but(&[], &[]);
    }
}

#[test]
fn several_sensors_of_one_device_are_received() {
    const SENSORS: usize = 3;
    needs_room!();
    let board = Board::start(&Options {
        sensors: SENSORS,
        ..options(&[])
    })
    .unwrap();
    let daq = Daq::new(&config(&board.address().to_string(), SENSORS, ""));
    let mut live = daq.spawn(&[]);
    for sensor in 0..SENSORS {
        live.wait_count(&format!("sources.adc{sensor}.expected"), EXPECTED);
    }
    let outcome = live.stop().ok();
    for sensor in 0..SENSORS {
        let path = format!("sources.adc{sensor}.delivered");
        assert_eq!(outcome.count(&path), EXPECTED);
        let file = recording(&daq, &format!("disk{sensor}"));
        let sensor = u8::try_from(sensor).unwrap();
        for (frame, bytes) in file.data.chunks(FRAME).enumerate() {
            assert_eq!(
                verify(Pattern::Counter, sensor, frame as u64, 0, bytes),
                None
            );
        }
    }
    is_host_correct(&board.stop());
}

#[test]
fn emulator_process_is_received() {
    needs_room!();
    let address = own(1);
    let frames = FRAMES.to_string();
    let mut child = Command::new(binary())
        .env("DAQ_LOG", "warn")
        .args([
            "emulate",
            "hsb",
            "--announce",
            "off",
            "--rate",
            "200 Mbit/s",
        ])
        .args(["--once", "--json", "--fault", "drop@3", "--frames", &frames])
        .args(["--listen", &address.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, format!("listening on {address}\n"));
    // Without a port in the configuration, the default port is used.
    let daq = Daq::new(&config(&address.ip().to_string(), 1, ""));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc0.expected", EXPECTED);
    let outcome = live.stop().ok();
    assert_eq!(outcome.count("sources.adc0.lost.wire_gap"), 1);
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    let counts: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(counts["sensors"][0]["frames"], FRAMES, "{counts:#}");
    assert_eq!(counts["sensors"][0]["numbers"], FRAMES * ALL);
    assert_eq!(counts["sensors"][0]["dropped"], 1);
    assert_eq!(counts["order_errors"], 0);
}
