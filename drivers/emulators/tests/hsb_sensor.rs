//! Tests of the source `hsb` with the emulated sensor bridge. The source and the emulated bridge are implemented
//! independently, so each verifies the other.

#[path = "../../src/sys/own_network.rs"]
mod own_network;

use daq_core::entry::{SourceContext, SourceSpec};
use daq_core::ledger::SourceReport;
use daq_core::source::{Polled, Producers};
use daq_core::units::BitRate;
use daq_drivers::hsb::ENTRY;
use daq_emulators::hsb::pattern::{Pattern, verify};
use daq_emulators::hsb::{ANNOUNCE, Board, Counts, Options};
use daq_testkit::assert_fields;
use daq_testkit::loopback::free_address;
use daq_testkit::source::{SourceFixture, new_fixture, spec};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

/// Payload bytes per packet, number of data packets per frame, and size of a frame in bytes. The last packet of a frame
/// has room for metadata.
const PACKET: usize = 1024;
const PACKETS: usize = 8;
const FRAME: usize = PACKET * PACKETS - 384;
/// Number of packets of a frame whose metadata is in a separate packet.
const ALL: u64 = PACKETS as u64 + 1;
const FRAMES: u64 = 64;

fn options(faults: &[&str]) -> Options {
    Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        rate: Some(BitRate(400e6)),
        frames: Some(FRAMES),
        faults: faults.iter().map(|fault| fault.parse().unwrap()).collect(),
        ..Options::default()
    }
}

fn source(board: &Board, more: &str) -> SourceFixture {
    let (listen, device) = (free_address(), board.address());
    let text = format!(
        "[source.camera]\ndriver = \"hsb\"\nring = \"raw\"\nlisten = \"{listen}\"\nframe = {FRAME}\n\
         packet = {PACKET}\ndevice = \"{device}\"\n{more}\n"
    );
    let spec = spec(&ENTRY, &text).unwrap();
    new_fixture(&*spec, 8192, 2 * usize::try_from(FRAMES).unwrap()).unwrap()
}

/// A received frame: number, epoch, bytes, and for each packet slot whether the packet arrived.
type Frame = (u64, u32, Vec<u8>, Vec<bool>);

/// Arms the sensor, receives until `expected` packets are accounted for and the sensor has sent its last frame, and
/// disarms the sensor.
fn run(options: &Options, more: &str, expected: u64) -> (Vec<Frame>, SourceFixture, Counts) {
    let board = Board::start(options).unwrap();
    let mut fixture = source(&board, more);
    fixture.fillers[0].start().unwrap();
    fixture.fill_while(|ledger| SourceReport::of(ledger).expected < expected);
    // Once the sensor has sent its last frame, the loopback interface has delivered it.
    while board.counts().sensors[0].frames < FRAMES {
        std::thread::yield_now();
    }
    fixture.fill_all();
    fixture.fillers.clear();
    for window in &mut fixture.windows {
        window.finish();
    }
    let frames = fixture.read();
    let counts = board.stop();
    assert_eq!(counts.mistakes, Vec::<String>::new());
    assert_fields!(counts => order_errors: 0, overlapped: 0, refused: 0);
    assert_eq!((counts.sensors[0].arms, counts.sensors[0].disarms), (1, 1));
    (frames, fixture, counts)
}

/// Panics if a received byte differs from the sensor's pattern.
fn check(frames: &[Frame]) {
    for (number, _, bytes, present) in frames {
        for (packet, bytes) in bytes.chunks(PACKET).enumerate() {
            if present[packet] {
                let at = (packet * PACKET) as u64;
                assert_eq!(
                    verify(Pattern::Counter, 0, *number, at, bytes),
                    None,
                    "{number}"
                );
            } else {
                assert!(bytes.iter().all(|byte| *byte == 0xee));
            }
        }
    }
}

#[test]
fn frames_arrive_intact() {
    let all = FRAMES * PACKETS as u64;
    for (embedded, offload, psn20, psn) in [
        (false, true, false, 0),
        (true, true, false, 0x00ff_ff00),
        (false, false, true, 0x000f_ff00),
        (true, true, true, 0x000f_ffff),
    ] {
        let options = Options {
            embedded,
            offload,
            psn20,
            psn,
            ..options(&[])
        };
        for pages in [1, 3, 64] {
            let (frames, fixture, _) = run(&options, &format!("pages = {pages}"), all);
            let report = fixture.report();
            assert_eq!((report.expected, report.delivered), (all, all));
            assert_eq!((report.duplicates, report.rejected), (0, 0));
            assert_eq!(report.control, if embedded { 0 } else { FRAMES });
            assert_eq!(frames.len() as u64, FRAMES);
            assert!(frames.iter().all(|frame| frame.3 == [true; PACKETS]));
            check(&frames);
        }
    }
}

#[test]
fn faults_are_counted() {
    let all = FRAMES * PACKETS as u64;
    let gaps = [
        (5, 1),
        (2 * ALL + 3, 3),
        (4 * ALL + 6, 6),
        (10 * ALL + 2, 3 * ALL),
    ];
    let text = gaps.map(|(at, count)| format!("gap@{at}:{count}"));
    let lost: Vec<(u64, u64)> = gaps
        .iter()
        .flat_map(|(at, count)| *at..at + count)
        .map(|packet| (packet / ALL, packet % ALL))
        .filter(|(_, packet)| *packet < PACKETS as u64)
        .collect();
    let gaps: Vec<&str> = text.iter().map(String::as_str).collect();
    // The window must be larger than the gaps. Beyond it, packets are accepted only if several in a row agree.
    let one = vec![(7, 2)];
    let wide = "window = 8";
    for (faults, missing, duplicates, rejected) in [
        (gaps, lost, 0, 0),
        (vec!["bad-va@65"], one.clone(), 0, 1),
        (vec!["bad-rkey@65"], one.clone(), 0, 1),
        (vec!["bad-length@65"], one.clone(), 0, 1),
        (vec!["bad-opcode@65"], one, 0, 1),
        (vec!["bad-icrc@65"], Vec::new(), 0, 0),
        (
            vec!["duplicate@10:2", "replay@20", "replay@40"],
            Vec::new(),
            2 + 2 * ALL,
            0,
        ),
        (vec!["reorder@29", "reorder@34"], Vec::new(), 0, 0),
        (vec!["late-immediate@20"], Vec::new(), 0, 0),
        (vec!["no-metadata@30"], Vec::new(), 0, 0),
        (vec!["ecb-silent@9:2", "ecb-sequence@14"], Vec::new(), 0, 0),
    ] {
        let (frames, fixture, _) = run(&options(&faults), wide, all);
        let report = fixture.report();
        let lost = missing.len() as u64;
        let found = (
            report.expected,
            report.delivered,
            report.duplicates,
            report.rejected,
        );
        assert_eq!(found, (all, all - lost, duplicates, rejected), "{faults:?}");
        check(&frames);
        let absent: Vec<(u64, u64)> = frames
            .iter()
            .flat_map(|frame| (0..).zip(&frame.3).map(|(place, is)| (frame.0, place, *is)))
            .filter(|(_, _, is_present)| !is_present)
            .map(|(number, place, _)| (number, place))
            .collect();
        // A frame without any received packet is not delivered.
        let numbers: Vec<u64> = frames.iter().map(|frame| frame.0).collect();
        let seen: Vec<(u64, u64)> = missing
            .into_iter()
            .filter(|(frame, _)| numbers.contains(frame))
            .collect();
        assert_eq!(absent, seen, "{faults:?}");
    }
}

#[test]
fn a_restart_opens_an_epoch() {
    let (frames, fixture, _) = run(&options(&["restart@20"]), "", 0);
    let report = fixture.report();
    // The packets before the one that confirms the new numbering are accepted too.
    assert_eq!((report.epochs, report.rejected), (2, 0));
    for (number, epoch, bytes, present) in &frames {
        let number = if *epoch == frames[0].1 {
            *number
        } else {
            number + 20
        };
        check(&[(number, 0, bytes.clone(), present.clone())]);
    }
    let last = frames.last().unwrap();
    assert_eq!(last.0, FRAMES - 21);
}

/// Runs all fixtures one after another, repeatedly, until `is_done` returns true.
fn fill_all(fixtures: &mut [SourceFixture], is_done: impl Fn(&[SourceFixture]) -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !is_done(fixtures) {
        assert!(
            Instant::now() < deadline,
            "timeout after a minute of waiting for frames"
        );
        for fixture in &mut *fixtures {
            let (filler, window) = (&mut fixture.fillers[0], &mut fixture.windows[0]);
            filler.fill(window, Duration::from_millis(5)).unwrap();
            window.tick(Instant::now());
        }
    }
}

#[test]
fn restarted_device_is_rearmed_and_opens_epoch() {
    let options = Options {
        frames: Some(60),
        ..options(&["reboot@20"])
    };
    let board = Board::start(&options).unwrap();
    let mut fixtures = [source(&board, "rearm_after = \"200 ms\"")];
    fixtures[0].fillers[0].start().unwrap();
    // The sensor restarts at frame 20.
    let expected = 59 * PACKETS as u64;
    fill_all(&mut fixtures, |fixtures| {
        fixtures
            .iter()
            .all(|fixture| fixture.report().delivered >= expected)
    });
    let [mut fixture] = fixtures;
    fixture.fillers.clear();
    fixture.windows[0].finish();
    let report = fixture.report();
    assert_eq!((report.expected, report.delivered), (expected, expected));
    assert_fields!(report => epochs: 2, rejected: 0, duplicates: 0);
    let frames = fixture.read();
    assert_eq!(frames.len(), 59);
    for (number, epoch, bytes, present) in frames {
        let number = if epoch == 1 { number } else { number + 21 };
        check(&[(number, 0, bytes, present)]);
    }
    let counts = board.stop();
    assert_eq!(counts.mistakes, Vec::<String>::new());
    assert_eq!((counts.reboots, counts.overlapped), (1, 0));
    assert_eq!((counts.sensors[0].arms, counts.sensors[0].disarms), (2, 2));
}

#[test]
fn device_replying_from_other_address_is_armed() {
    let options = Options {
        answer_from: Some(std::net::Ipv4Addr::new(127, 76, 0, 9)),
        ..options(&[])
    };
    let all = FRAMES * PACKETS as u64;
    let (frames, fixture, _) = run(&options, "", all);
    assert_eq!(fixture.report().delivered, all);
    check(&frames);
}

#[test]
fn silent_sensor_does_not_stop_others() {
    let options = Options {
        sensors: 3,
        dead: vec![1],
        ..options(&[])
    };
    let board = Board::start(&options).unwrap();
    // Sensor 1 sends nothing, and sensor 7 does not exist.
    let keys = |sensor: usize| format!("sensor = {sensor}\nrearm_after = \"100 ms\"");
    let mut fixtures = [0, 1, 2, 7].map(|sensor| source(&board, &keys(sensor)));
    for fixture in &mut fixtures {
        fixture.fillers[0].start().unwrap();
    }
    let all = FRAMES * PACKETS as u64;
    fill_all(&mut fixtures, |fixtures| {
        let delivered = |fixture: &SourceFixture| fixture.report().delivered;
        delivered(&fixtures[0]) == all && delivered(&fixtures[2]) == all
    });
    for (fixture, delivered) in fixtures.iter_mut().zip([all, 0, all, 0]) {
        fixture.fillers.clear();
        fixture.windows[0].finish();
        let report = fixture.report();
        assert_eq!((report.expected, report.delivered), (delivered, delivered));
    }
    let counts = board.stop();
    let arms: Vec<_> = counts.sensors.iter().map(|sensor| sensor.arms).collect();
    assert_eq!(arms, [1, 1, 1]);
    assert!(counts.refused > 0, "requests for sensor 7");
    assert_eq!(counts.order_errors, 0, "{:?}", counts.mistakes);
}

/// A measurement instead of a test; run this function with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn sensor_rate_is_measured() {
    const FRAME: usize = 1 << 20;
    let rate = std::env::var("RATE").map_or(8.0, |rate| rate.parse().unwrap());
    let packet: usize = std::env::var("PACKET").map_or(1408, |packet| packet.parse().unwrap());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "approximate rates in the output"
    )]
    let frames = (rate * 1e9 * 3.0 / 8.0) as u64 / FRAME as u64;
    let board = Board::start(&Options {
        rate: Some(BitRate(rate * 1e9)),
        frames: Some(frames),
        ..options(&[])
    })
    .unwrap();
    let (listen, device) = (free_address(), board.address());
    let text = format!(
        "[source.camera]\ndriver = \"hsb\"\nring = \"raw\"\nlisten = \"{listen}\"\nframe = {FRAME}\n\
         packet = {packet}\ndevice = \"{device}\"\n"
    );
    let spec = spec(&ENTRY, &text).unwrap();
    let mut fixture = new_fixture(&*spec, FRAME, 32).unwrap();
    fixture.fillers[0].start().unwrap();
    let start = Instant::now();
    let mut last = Instant::now();
    let (filler, window) = (&mut fixture.fillers[0], &mut fixture.windows[0]);
    while last.elapsed() < Duration::from_secs(1) {
        if filler.fill(window, Duration::from_millis(20)).unwrap() == Polled::Busy {
            last = Instant::now();
        }
        window.tick(Instant::now());
        while let Some(lease) = fixture.reader.poll(16) {
            drop(lease);
        }
    }
    let seconds = (last - start).as_secs_f64();
    let report = fixture.report();
    let gbit = report.bytes as f64 * 8.0 / 1e9 / seconds;
    println!(
        "packets of {packet} bytes: {rate} Gbit/s requested, {gbit:.2} Gbit/s received; expected {}, delivered {}, rejected {}",
        report.expected, report.delivered, report.rejected
    );
}

fn late(keys: &str) -> Result<Box<dyn SourceSpec>, String> {
    spec(
        &ENTRY,
        &format!("[source.camera]\ndriver = \"hsb\"\nring = \"raw\"\nframe = \"1 MiB\"\n{keys}"),
    )
}

fn context(spec: &dyn SourceSpec) -> SourceContext {
    let slot = spec.facts().preferred_slot.unwrap();
    daq_testkit::source::context(spec.frames(slot).unwrap().geometry)
}

/// Runs in a separate network namespace, so that no other device announces itself.
#[test]
fn device_announced_late_is_armed() {
    let thread = std::thread::spawn(|| {
        if own_network::enter().is_err() {
            return eprintln!("skipped: this user cannot create a network namespace");
        }
        let ip = std::process::Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        if !ip.is_ok_and(|status| status.success()) {
            return eprintln!("skipped: there is no `ip` command");
        }
        let pair = late("mode = \"queue-pair\"\nnics = [\"emulated\"]").unwrap();
        let built = pair.build(&context(&*pair)).unwrap();
        assert!(matches!(built, Producers::Engine(_)));
        let spec = late("listen = \"127.0.0.1:4791\"").unwrap();
        let Producers::Fillers(mut fillers) = spec.build(&context(&*spec)).unwrap() else {
            panic!("the source must use fillers")
        };
        fillers[0].start().unwrap();
        let board = Board::start(&Options {
            announce: Some(SocketAddrV4::new(Ipv4Addr::LOCALHOST, ANNOUNCE)),
            ..Options::default()
        })
        .unwrap();
        daq_testkit::wait_until("the sensor to be armed", || {
            board.counts().sensors[0].arms > 0
        });
        drop(fillers);
        assert_eq!(board.stop().sensors[0].arms, 1);
    });
    thread.join().unwrap();
}
