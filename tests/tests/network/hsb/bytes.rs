//! Checks every byte that sensors send, after it has passed through ring and file.

use crate::hsb::setup::{
    ALL, Emulator, FRAME, FRAMES, PACKETS, Run, config, is_host_correct, options, own,
};
use crate::needs_room;
use daq_emulators::hsb::pattern::{Pattern, verify};
use daq_emulators::hsb::{Board, Options};
use daq_testkit::Daq;
use daq_testkit::network::recording;
use serde_json::Value;
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
        let metas = daq_testkit::files(&run.daq.path("out"), ".sigmf-meta");
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
    let emulator = Emulator::start(address, &["--fault", "drop@3"]);
    // Without a port in the configuration, the default port is used.
    let daq = Daq::new(&config(&address.ip().to_string(), 1, ""));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc0.expected", EXPECTED);
    let outcome = live.stop().ok();
    assert_eq!(outcome.count("sources.adc0.lost.wire_gap"), 1);
    let sensor = emulator.finish();
    assert_eq!(sensor["numbers"], FRAMES * ALL);
    assert_eq!(sensor["dropped"], 1);
}
