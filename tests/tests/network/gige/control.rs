//! Tests taking control of a camera, losing it, and what a user sees if that is not possible.

use super::setup::{IMAGE, SIDE, assert_file, at, config, count, options};
use daq_emulators::gige::{Camera, IMAGE as IMAGE_REGISTERS, Options};
use daq_testkit::loopback::Queue;
use daq_testkit::{Daq, assert_contains, assert_counts, free_udp_port, wait_for};
use std::net::UdpSocket;

/// Options of a camera that never stops sending and notices within 300 ms that daq is gone.
fn endless() -> Options {
    Options {
        heartbeat_ms: 300,
        ..options(None)
    }
}

#[test]
fn several_cameras_are_received_and_stopped() {
    let cameras: Vec<_> = (0..3)
        .map(|_| Camera::start(&options(Some(20))).unwrap())
        .collect();
    let addresses: Vec<_> = cameras.iter().map(|camera| at(camera.address())).collect();
    let daq = Daq::new(&config(&addresses, "packet_size = 1064\nwindow = 30"));
    let mut live = daq.spawn(&[]);
    for i in 0..3 {
        live.wait_count(&format!("sinks.disk{i}.frames"), 20);
    }
    let outcome = live.stop().ok();
    for (i, camera) in cameras.into_iter().enumerate() {
        assert_file(&daq, i, 20, |_, _| false);
        let found = ["rejected", "epochs"];
        assert_eq!(found.map(|key| count(&outcome, i, key)), [0, 1]);
        // Loopback can deliver packets in another order if the sender's thread changes the processor. daq then requests them.
        let [duplicates, requested] =
            ["duplicates", "counts.requested"].map(|key| count(&outcome, i, key));
        assert!(duplicates <= requested, "{:#}", outcome.report);
        let counts = camera.stop();
        assert_eq!((counts.controls, counts.releases, counts.starts), (1, 1, 1));
        assert_eq!(counts.mistakes, Vec::<String>::new());
    }
}

/// The largest packet that the network carries must be used, and registers must be written before the start.
#[test]
fn packet_size_is_tested_and_registers_are_written() {
    for (mtu, test_packets, size) in [
        (None, true, 9000),
        (Some(3000), true, 3000),
        (Some(1000), true, 1000),
        (None, false, 1500),
    ] {
        let camera = Camera::start(&Options {
            width: 64,
            height: 64,
            mtu,
            test_packets,
            ..options(Some(10))
        })
        .unwrap();
        let [width, height, _] = IMAGE_REGISTERS;
        let keys = format!(
            "registers = [{{ address = {width}, value = {} }}, {{ address = {height}, value = {} }}]\nwindow = 20",
            SIDE.0, SIDE.1
        );
        let daq = Daq::new(&config(&[at(camera.address())], &keys));
        let mut live = daq.spawn(&[]);
        live.wait_count("sinks.disk0.frames", 10);
        let outcome = live.stop().ok();
        assert_contains!(outcome.stderr => format!("packets of {size} bytes"));
        let packets = IMAGE.div_ceil(size - 36) as u64;
        assert_eq!(count(&outcome, 0, "delivered"), 10 * packets);
        assert_file(&daq, 0, 10, |_, _| false);
    }
}

/// A camera that restarts loses its registers and ends the control. It must be set up again, with a new epoch.
#[test]
fn restarted_camera_is_set_up_again() {
    let camera = Camera::start(&endless()).unwrap();
    let daq = Daq::new(&config(&[at(camera.address())], "packet_size = 1064"));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.cam0.delivered", 500);
    camera.reboot();
    live.wait_count("sources.cam0.epochs", 2);
    live.wait_count("sources.cam0.counts.reconnected", 1);
    let outcome = live.stop().ok();
    assert_contains!(outcome.stderr => "is lost", "is set up again");
    let counts = camera.stop();
    assert_eq!((counts.controls, counts.starts), (2, 2));
    assert_eq!(counts.mistakes, Vec::<String>::new());
}

/// Heartbeats must keep the control while the camera sends nothing for longer than its heartbeat timeout.
#[test]
fn heartbeat_keeps_control_of_silent_camera() {
    let camera = Camera::start(&Options {
        frames: Some(2),
        ..endless()
    })
    .unwrap();
    let daq = Daq::new(&config(&[at(camera.address())], "packet_size = 1064"));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.cam0.delivered", 2);
    let before = camera.counts().requests;
    daq_testkit::wait_until("ten heartbeats", || camera.counts().requests >= before + 10);
    let _ = live.stop().ok();
    let counts = camera.stop();
    assert_eq!(
        (counts.controls, counts.timeouts, counts.releases),
        (1, 0, 1)
    );
}

/// A run after a killed run must wait until the camera ends the control of the killed run.
#[test]
fn run_after_killed_run_takes_control() {
    let camera = Camera::start(&endless()).unwrap();
    let daq = Daq::new(&config(&[at(camera.address())], "packet_size = 1064"));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.cam0.delivered", 100);
    live.kill();
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.cam0.delivered", 100);
    let _ = live.stop().ok();
    let counts = camera.stop();
    assert_eq!((counts.controls, counts.releases), (2, 1));
}

/// Packets arrive at the port of a camera that does not answer yet. They are not the camera's, so they are only counted.
#[test]
fn packets_before_camera_is_set_up_are_counted() {
    const EARLY: u64 = 20;
    let port = free_udp_port();
    let camera = Camera::start(&options(None)).unwrap();
    let address = camera.address();
    let _ = camera.stop();
    let keys = format!("packet_size = 1064\nlisten = \"127.0.0.1:{port}\"");
    let daq = Daq::new(&config(&[at(address)], &keys));
    let mut live = daq.spawn(&[]);
    wait_for("the socket", || (Queue::of(port).sockets > 0).then_some(()));
    let other = UdpSocket::bind("127.0.0.9:0").unwrap();
    for _ in 0..EARLY {
        other.send_to(&[0; 100], ("127.0.0.1", port)).unwrap();
    }
    let _camera = Camera::start(&Options {
        listen: address,
        ..options(None)
    })
    .unwrap();
    live.wait_count("sources.cam0.delivered", 100);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.cam0" => before_start: EARLY, rejected: 0, duplicates: 0);
}

#[test]
fn wrong_image_is_an_error_that_names_both() {
    for (options, sent) in [
        (
            Options {
                width: 252,
                height: 128,
                ..options(None)
            },
            "sends 252 × 128 pixels, Mono8",
        ),
        (
            Options {
                pixel_format: 0x0108_0009,
                ..options(None)
            },
            "sends 256 × 126 pixels, BayerRG8",
        ),
    ] {
        let camera = Camera::start(&options).unwrap();
        let daq = Daq::new(&config(&[at(camera.address())], "packet_size = 1064"));
        let outcome = daq.spawn(&[]).wait();
        assert_ne!(outcome.code, 0);
        assert_contains!(outcome.stderr => sent, "the configuration declares 256 × 126, Mono8", "set `width`");
        assert_eq!(outcome.count("sources.cam0.delivered"), 0);
        assert_eq!(camera.stop().releases, 1);
    }
}

/// If a camera is controlled, refuses a register or is missing, the reason and a fix must be logged, and other sources must run.
#[test]
fn failed_set_up_is_reported_and_retried() {
    let camera = Camera::start(&Options {
        // Longer than this test waits, so daq must end the control of the camera after each failure.
        heartbeat_ms: 600_000,
        ..options(None)
    })
    .unwrap();
    let daq = Daq::new(&config(&[at(camera.address())], "packet_size = 1064"));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.cam0.delivered", 1);
    let second = Daq::new(&config(&[at(camera.address())], "packet_size = 1064"));
    let mut other = second.spawn(&[]);
    other.wait_log("another application controls the camera");
    let _ = other.stop();
    let _ = live.stop().ok();

    let refused = "registers = [{ address = 0x48, value = 1 }]";
    let daq = Daq::new(&config(&[at(camera.address())], refused));
    let mut live = daq.spawn(&[]);
    live.wait_log("`registers[0]`: the camera refused to write register 0x00000048: the register is read-only");
    let _ = live.stop();

    let missing = daq_testkit::free_udp_port();
    let cameras = [at(format!("127.0.0.1:{missing}")), at(camera.address())];
    let daq = Daq::new(&config(&cameras, "packet_size = 1064"));
    let mut live = daq.spawn(&[]);
    live.wait_log("the camera does not answer");
    live.wait_count("sources.cam1.delivered", 100);
    let _ = live.stop();
}

#[test]
fn configuration_errors_name_key_and_fix() {
    for (keys, error) in [
        ("packet_size = 100", "packets must have 576 to 65535 bytes"),
        ("from = \"10.0.0.1\"", "`from` cannot be set"),
        (
            "registers = [{ address = 6, value = 1 }]",
            "0x6 is not a multiple of 4",
        ),
        ("resend_limit = 0", "set `resend = false`"),
    ] {
        let daq = Daq::new(&config(&["\"auto\"".to_owned()], keys));
        let done = daq.cli(&["check", "daq.toml"]);
        assert_ne!(done.code, 0);
        let text = done.stderr + &done.stdout;
        assert_contains!(text => error);
    }
    let daq = Daq::new(&config(&["\"camera\"".to_owned()], ""));
    let done = daq.cli(&["check", "daq.toml"]);
    let text = done.stderr + &done.stdout;
    assert_contains!(text => "selects no camera");
}

/// `daq emulate gige` must serve the same camera.
#[test]
fn emulated_camera_of_command_line_is_received() {
    let port = daq_testkit::free_udp_port();
    let daq = Daq::new(&config(
        &[at(format!("127.0.0.1:{port}"))],
        "packet_size = 1064\nwindow = 30",
    ));
    let camera = daq
        .command(&[
            "emulate",
            "gige",
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--width",
            "256",
            "--height",
            "126",
            "--interval",
            "5 ms",
            "--frames",
            "20",
            "--once",
            "--json",
        ])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut live = daq.spawn(&[]);
    live.wait_count("sinks.disk0.frames", 20);
    let _ = live.stop().ok();
    assert_file(&daq, 0, 20, |_, _| false);
    let output = camera.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_contains!(text => "\"images\":20", "\"mistakes\":[]");
    assert!(output.status.success());
}

#[test]
fn pipeline_without_its_camera_has_started_but_is_not_ready() {
    // A port that no camera has.
    let camera = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = camera.local_addr().unwrap();
    let daq = Daq::new(&config(&[at(address)], ""));
    let mut shell = std::process::Command::new("sh");
    let script = "exec \"$0\" run daq.toml --report json --ready-fd 3 3>ready";
    daq.prepare(&mut shell)
        .args(["-c", script])
        .arg(daq_testkit::binary());
    let mut live = daq.spawn_command(shell);
    live.wait_log("all sources have started");
    wait_for("a source without its camera", || {
        (live.get("/-/ready").body.contains("source cam0")).then_some(())
    });
    let done = daq.cli_line("wait-ready --timeout 0s");
    assert_eq!(done.code, 69, "{}", done.stderr);
    assert_contains!(done.stderr => "is not ready");
    assert_eq!(std::fs::read_to_string(daq.path("ready")).unwrap(), "");
    let _ = live.stop();
    assert_eq!(std::fs::read_to_string(daq.path("ready")).unwrap(), "");
}
