//! Tests that packets of other senders, and malformed packets of the camera's address, change nothing but counters.

use super::relay::{Disposition, Relay};
use super::setup::{PACKETS, assert_file, at, config, count, options};
use daq_emulators::gige::Camera;
use daq_testkit::{Daq, Random, skip};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const FRAMES: u64 = 40;
/// The address of the relay, which daq sees as the camera.
const CAMERA: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 21);

/// Returns packets that look like packets of the stream: leaders of other images, payload, trailers, and random bytes.
fn forged(random: &mut Random) -> Vec<u8> {
    let block = u16::try_from(random.below(0x1_0000)).unwrap().to_be_bytes();
    let format = u8::try_from(random.below(5)).unwrap();
    let id = u8::try_from(random.below(40)).unwrap();
    let length = usize::try_from(random.below(1100)).unwrap();
    let mut packet = vec![0, 0, block[0], block[1], format, 0, 0, id];
    packet.extend((0..length).map(|i| u8::try_from(i % 251).unwrap()));
    if random.below(4) == 0 {
        packet.truncate(usize::try_from(random.below(9)).unwrap());
    }
    packet
}

/// A sender with another address must change no byte and no counter.
#[test]
fn other_senders_change_nothing() {
    if let Some(why) = Relay::lacks_room() {
        skip!("{why}");
    }
    let camera = Camera::start(&options(Some(FRAMES))).unwrap();
    let target = Arc::new(AtomicU64::new(0));
    let seen = Arc::new(AtomicU64::new(0));
    let decide = {
        let seen = seen.clone();
        move |_| {
            seen.fetch_add(1, Ordering::AcqRel);
            Disposition::Pass
        }
    };
    let relay = Relay::start(CAMERA, camera.address(), decide);
    let port = daq_testkit::free_udp_port();
    let keys = format!("packet_size = 1064\nwindow = 60\nlisten = \"0.0.0.0:{port}\"");
    let daq = Daq::new(&config(&[at(relay.address())], &keys));
    let mut live = daq.spawn(&[]);
    let stop = target.clone();
    let attacker = std::thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.22:0").unwrap();
        let to: SocketAddr = (CAMERA, port).into();
        let mut random = Random(7);
        let mut sent = 0;
        while stop.load(Ordering::Acquire) == 0 || sent < 2000 {
            let _ = socket.send_to(&forged(&mut random), to);
            sent += 1;
        }
    });
    live.wait_count("sources.cam0.delivered", FRAMES * PACKETS);
    target.store(1, Ordering::Release);
    attacker.join().unwrap();
    let outcome = live.stop().ok();
    assert_eq!(seen.load(Ordering::Acquire), FRAMES * (PACKETS + 2));
    let keys = [
        "expected",
        "delivered",
        "rejected",
        "duplicates",
        "epochs",
        "control",
    ];
    let all = FRAMES * PACKETS;
    assert_eq!(
        keys.map(|key| count(&outcome, 0, key)),
        [all, all, 0, 0, 1, 2 * FRAMES]
    );
    assert_file(&daq, 0, FRAMES, |_, _| false);
}
