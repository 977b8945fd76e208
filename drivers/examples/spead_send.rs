//! Sends SPEAD heaps at a constant rate, for benchmarks of receivers:
//! `spead_send ADDRESS PACKET GBIT_PER_S SECONDS [CORE]`.
//!
//! Each packet has PACKET bytes of UDP payload. Segmentation offload is used unless `PLAIN=1` is set. A heap has about
//! 1 MiB. Prints the number of heaps, packets and payload bytes sent.

use daq_drivers::packet::spead::{Item, build_packet};
use daq_drivers::sys::send::Sender;
use std::time::{Duration, Instant};

/// Size in bytes of the header, the four items that determine the packet's position, and one that names the data.
const HEADER: usize = 8 + 5 * 8;
/// The first item identifier that SPEAD does not reserve.
const DATA: u64 = 0x1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what: &str| arguments.next().ok_or(format!("missing {what}"));
    let to = next("ADDRESS")?.parse()?;
    let packet: usize = next("PACKET")?.parse()?;
    let bits_per_ns: f64 = next("GBIT_PER_S")?.parse()?;
    let seconds: f64 = next("SECONDS")?.parse()?;
    if let Ok(core) = next("CORE") {
        daq_core::thread::pin(core.parse()?)?;
    }
    let payload = packet - HEADER;
    let packets = (1 << 20) / payload;
    let heap = packets * payload;
    let template: Vec<u8> = (0..payload).map(|i| i.to_le_bytes()[0]).collect();
    let offload = std::env::var_os("PLAIN").is_none();
    let mut sender = Sender::open(to, offload, None)?;
    let mut bytes = Vec::with_capacity(packets * packet);
    let build = |counter: u64, bytes: &mut Vec<u8>| {
        bytes.clear();
        for offset in (0..heap).step_by(payload) {
            let items = [
                Item::immediate(1, counter),
                Item::immediate(2, heap as u64),
                Item::immediate(3, offset as u64),
                Item::immediate(4, payload as u64),
                Item {
                    id: DATA,
                    value: 0,
                    immediate: false,
                },
            ];
            build_packet(40, &items, &template, bytes);
        }
    };
    build(1, &mut bytes);
    // Sixteen bursts per heap keep the rate even. Only the heap counter changes between heaps.
    let burst = packets.div_ceil(16) * packet;
    let start = Instant::now();
    let (mut sent, mut heaps) = (0_u64, 0_u64);
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        heaps += 1;
        for packet in bytes.chunks_mut(packet) {
            packet[8 + 3..16].copy_from_slice(&heaps.to_be_bytes()[3..]);
        }
        for burst in bytes.chunks(burst) {
            let due = sent as f64 * 8.0 / bits_per_ns;
            while (start.elapsed().as_nanos() as f64) < due {
                std::hint::spin_loop();
            }
            sender.send_packets(burst, packet)?;
            sent += burst.len() as u64;
        }
    }
    let passed = start.elapsed().as_secs_f64();
    println!(
        "{heaps} {} {} {passed}",
        heaps * packets as u64,
        heaps * heap as u64
    );
    Ok(())
}
