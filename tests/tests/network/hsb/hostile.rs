//! Tests a sender that knows the queue pair and the key, and sends random packets.

use crate::hsb::setup::{FRAME, PACKET};
use daq_testkit::loopback::{self, Queue};
use daq_testkit::{Daq, Random, free_udp_port};
use std::net::UdpSocket;

const KEY: u32 = 0x5eed_0001;
const BASE: u64 = 0x7000_0000;
const PAGES: u64 = 4;
/// Distance between two pages in bytes.
const STRIDE: u64 = 8192;
const PACKETS: u64 = 20_000;

/// Returns a random packet that resembles a packet of a sensor.
fn packet(random: &mut Random, psn: u32) -> Vec<u8> {
    let page = random.below(PAGES);
    let index = random.below(9);
    let (at, bytes) = match index {
        8 => (FRAME as u64, 128),
        7 => (7 * PACKET as u64, PACKET - 384),
        index => (index * PACKET as u64, PACKET),
    };
    let has_immediate = index == 8;
    let mut packet = vec![0x2a + u8::from(has_immediate), 0, 0xff, 0xff];
    packet.extend(7_u32.to_be_bytes());
    let psn = if random.below(4) == 0 {
        u32::try_from(random.below(1 << 24)).unwrap()
    } else {
        psn & 0x00ff_ffff
    };
    packet.extend(psn.to_be_bytes());
    packet.extend((BASE + page * STRIDE + at).to_be_bytes());
    packet.extend(KEY.to_be_bytes());
    packet.extend(u32::try_from(bytes).unwrap().to_be_bytes());
    if has_immediate {
        packet.extend((u32::try_from(page).unwrap() | (psn << 12)).to_be_bytes());
    }
    packet.resize(packet.len() + bytes + 4, 0xa5);
    // Flip bits of the headers, and add or remove bytes.
    for _ in 0..random.below(3) {
        let at = usize::try_from(random.below(32)).unwrap();
        packet[at] ^= 1 << random.below(8);
    }
    match random.below(8) {
        0 => packet.truncate(usize::try_from(random.below(packet.len() as u64)).unwrap()),
        1 => packet.resize(
            packet.len() + usize::try_from(random.below(300)).unwrap(),
            1,
        ),
        _ => {}
    }
    packet
}

/// The process must not crash, must count each packet, and must end normally.
#[test]
fn random_packets_are_all_counted() {
    let port = free_udp_port();
    let daq = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.adc0]\ndriver = \"hsb\"\nring = \"raw0\"\nlisten = \"127.0.0.1:{port}\"\n\
         frame = {FRAME}\npacket = {PACKET}\ncontrol = false\nqueue_pair = 7\nrkey = {KEY}\nbase = {BASE}\n\
         stride = {STRIDE}\npages = {PAGES}\nsamples = {{ type = \"uint8\" }}\n\
         [ring.raw0]\nmemory = \"host\"\nslot = \"8 KiB\"\nslots = 128\n\
         [sink.disk0]\ndriver = \"null\"\ninput = \"raw0\"\n"
    ));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    loopback::stay();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", port)).unwrap();
    let mut random = Random(1);
    for n in 0..PACKETS {
        let psn = u32::try_from(n).unwrap();
        socket.send(&packet(&mut random, psn)).unwrap();
        if n % 64 == 63 {
            Queue::all_drained(port, 1);
        }
        if n % 2048 == 0 {
            // The equations of the report hold at any time.
            live.report();
        }
    }
    Queue::all_drained(port, 1);
    let outcome = live.stop().ok();
    assert!(outcome.count("sources.adc0.rejected") > 0);
    let n = |key: &str| outcome.count(&format!("sources.adc0.{key}"));
    // Each packet must be counted once. Late packets were expected, and are counted as lost.
    let lost = n("lost.late") + n("lost.ring_full");
    let all = n("delivered") + n("duplicates") + n("rejected") + n("control") + lost;
    assert_eq!(all, PACKETS, "{:#}", outcome.report);
}
