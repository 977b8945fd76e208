//! Tests arming and disarming, for every reply of the device and every end of the run.

use crate::hsb::setup::{FRAMES, PACKETS, Run, config, is_host_correct, options, own};
use crate::needs_room;
use daq_core::units::BitRate;
use daq_emulators::hsb::{Board, Options};
use daq_testkit::{Daq, assert_contains, wait_for};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Options of a device that never stops sending, at a rate that is low enough for any machine.
fn endless(faults: &[&str]) -> Options {
    Options {
        frames: None,
        rate: Some(BitRate(20e6)),
        ..options(faults)
    }
}

#[test]
fn run_end_disarms_device() {
    let board = Board::start(&endless(&[])).unwrap();
    let daq = Daq::new(&config(&board.address().to_string(), 1, ""));
    for round in 1..=2 {
        let mut live = daq.spawn(&[]);
        live.wait_count("sources.adc0.delivered", 100);
        let _ = live.stop().ok();
        let counts = board.counts();
        assert_eq!(counts.sensors[0].arms, round);
        is_host_correct(&counts);
    }
}

#[test]
fn run_after_killed_run_rearms_device() {
    let board = Board::start(&endless(&[])).unwrap();
    let daq = Daq::new(&config(&board.address().to_string(), 1, ""));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc0.delivered", 100);
    live.kill();
    let counts = board.counts();
    assert_eq!((counts.sensors[0].arms, counts.sensors[0].disarms), (1, 0));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc0.delivered", 100);
    let outcome = live.stop();
    assert_contains!(outcome.stderr => "taking over the sensor");
    let counts = board.stop();
    assert_eq!(counts.sensors[0].arms, 2);
    is_host_correct(&counts);
}

/// A request must be repeated if its reply is lost or belongs to another request.
#[test]
fn control_reply_lost_is_retried() {
    needs_room!();
    let faults = [
        "ecb-silent@0",
        "ecb-silent@9:2",
        "ecb-sequence@14",
        "ecb-silent@17:2",
    ];
    let run = Run::new(&options(&faults), "", FRAMES * PACKETS as u64);
    run.is(0, 0, 0);
    run.has_all_but(&[], &[]);
    assert_eq!(run.counts.ecb_faults, 6);
}

/// A failed arming must be reported and repeated until it succeeds.
#[test]
fn control_refusal_or_silence_is_reported_and_retried() {
    for (fault, reason) in [
        ("ecb-status@5", "refused to write register"),
        ("ecb-silent@5:8", "does not answer"),
    ] {
        let board = Board::start(&endless(&[fault])).unwrap();
        let daq = Daq::new(&config(&board.address().to_string(), 1, ""));
        let mut live = daq.spawn(&[]);
        live.wait_count("sources.adc0.delivered", 100);
        let outcome = live.stop().ok();
        assert_contains!(outcome.stderr => "cannot be armed", reason, "Retrying at intervals");
        assert_ne!(outcome.count("sources.adc0.counts.control_errors"), 0);
        let counts = board.stop();
        assert_eq!(counts.sensors[0].arms, 1);
        is_host_correct(&counts);
    }
}

/// A device that restarts loses its registers. Both of its sensors must be armed again, with new keys.
#[test]
fn device_restarted_is_rearmed() {
    let options = Options {
        sensors: 2,
        ..endless(&[])
    };
    let board = Board::start(&options).unwrap();
    let keys = "rearm_after = \"300 ms\"";
    let daq = Daq::new(&config(&board.address().to_string(), 2, keys));
    let mut live = daq.spawn(&[]);
    for sensor in 0..2 {
        live.wait_count(&format!("sources.adc{sensor}.delivered"), 100);
    }
    board.reboot();
    for sensor in 0..2 {
        live.wait_count(&format!("sources.adc{sensor}.epochs"), 2);
    }
    let outcome = live.stop().ok();
    for sensor in 0..2 {
        let count = |key: &str| outcome.count(&format!("sources.adc{sensor}.{key}"));
        assert_eq!((count("epochs"), count("counts.rearmed")), (2, 1));
        let lost = format!(
            "sensor {sensor} of {}: the sensor's register values are lost",
            board.address()
        );
        assert!(outcome.stderr.contains(&lost), "{}", outcome.stderr);
    }
    let counts = board.stop();
    assert_eq!((counts.reboots, counts.sensors[0].arms), (1, 2));
    is_host_correct(&counts);
}

/// Waits for exclusive use of the announcement port, which all processes in this network namespace share. The port is
/// in use until the result is dropped.
pub fn announcements() -> UnixListener {
    let name = SocketAddr::from_abstract_name("daq test of announcements to UDP 12267").unwrap();
    wait_for("other tests to release the announcement port", || {
        UnixListener::bind_addr(&name).ok()
    })
}

#[test]
fn device_is_discovered() {
    let _alone = announcements();
    let board = |last| {
        Board::start(&Options {
            listen: own(last),
            announce: Some("127.0.0.1:12267".parse().unwrap()),
            ..endless(&[])
        })
        .unwrap()
    };
    let first = board(11);
    let daq = Daq::new(&config("auto", 1, ""));
    // Announcements are sent once per second. On a busy machine, one may be missed, so the test listens again.
    wait_for("daq to discover the device", || {
        let outcome = daq.run(&["--for", "200 ms"]);
        let is_silent = outcome.stderr.contains("no device announced itself");
        assert!(outcome.code == 0 || is_silent, "{}", outcome.stderr);
        (outcome.code == 0).then_some(())
    });
    assert!(first.counts().sensors[0].arms > 0);
    let second = board(12);
    let outcome = wait_for("daq to discover both devices", || {
        let outcome = daq.run(&["--for", "200 ms"]);
        let several = "several devices announce themselves";
        outcome.stderr.contains(several).then_some(outcome)
    });
    assert_ne!(outcome.code, 0);
    for last in [11, 12] {
        let address = own(last).ip().to_string();
        assert!(outcome.stderr.contains(&address), "{}", outcome.stderr);
    }
    assert_eq!(second.stop().sensors[0].arms, 0);
    is_host_correct(&first.stop());
}
