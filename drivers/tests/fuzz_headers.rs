//! Fuzz test of network headers. Every packet must either yield a payload range inside the packet or be rejected.
//!
//! `DAQ_FUZZ_SECONDS` is the run time of each target in seconds (default 1).

use daq_drivers::xdp::headers::payload;
use std::time::Duration;

fn time() -> Duration {
    let seconds = std::env::var("DAQ_FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

fn check(packet: &[u8]) {
    if let Ok(found) = payload(packet) {
        assert!(found.start >= 42 && found.start <= found.end && found.end <= packet.len());
        // Bytes after the datagram must not change the result.
        let mut longer = packet.to_vec();
        longer.push(0);
        assert_eq!(payload(&longer), Ok(found));
    }
}

#[test]
fn fuzz_headers() {
    bolero::check!()
        .with_type::<(Vec<u8>, u8)>()
        .with_test_time(time())
        .for_each(|(bytes, kind)| {
            check(bytes);
            // Also tests packets with nearly valid headers, which arbitrary bytes rarely have.
            let mut packet = vec![0; 12];
            if kind & 2 != 0 {
                packet.extend([0x81, 0x00, 0, 1]);
            }
            if kind & 1 == 0 {
                packet.extend([0x08, 0x00, 0x45]);
            } else {
                packet.extend([0x86, 0xdd, 0x60]);
            }
            let network = packet.len() - 1;
            packet.extend(bytes);
            let protocol = network + if kind & 1 == 0 { 9 } else { 6 };
            if let (true, Some(byte)) = (kind & 4 == 0, packet.get_mut(protocol)) {
                *byte = 17;
            }
            if let (true, 0, Some(fragment)) = (
                kind & 8 == 0,
                kind & 1,
                packet.get_mut(network + 6..network + 8),
            ) {
                fragment.fill(0);
            }
            check(&packet);
        });
}
