//! A stream of raw packets with a header of 8 bytes, and a run that receives it.

use daq_testkit::network::{payload, recording};
use daq_testkit::{Daq, Live, Outcome, assert_counts, loopback};
use serde_json::json;

/// Packets per frame.
pub const PACKETS_PER_FRAME: usize = 16;
/// The file sink `disk`.
pub const DISK: &str = "driver = \"file\"\npath = \"out\"\nbuffer = \"256 KiB\"";

/// Returns the source `adc` with `keys` and packets of `bytes` payload bytes, its ring, and the sink `disk`.
pub fn config(keys: &str, bytes: usize, slots: usize, sink: &str) -> String {
    let frame = bytes * PACKETS_PER_FRAME;
    format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n[source.adc]\nring = \"raw\"\n{keys}\n\
         [source.adc.format]\nkind = \"raw\"\nheader = 8\npayload = {bytes}\nsequence = {{ offset = 0, bytes = 8 }}\n\
         [ring.raw]\nmemory = \"host\"\nslot = {frame}\nslots = {slots}\n[sink.disk]\ninput = \"raw\"\n{sink}\n"
    )
}

/// Returns packet `n` with `bytes` payload bytes.
pub fn packet(n: u64, bytes: usize) -> Vec<u8> {
    let mut packet = n.to_be_bytes().to_vec();
    packet.resize(8 + bytes, 0);
    payload(1, n, &mut packet[8..]);
    packet
}

/// Starts a run. When this function returns, packets can be sent to it.
pub fn listening(daq: &Daq) -> Live {
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    loopback::stay();
    live
}

/// Waits until all `packets` packets have arrived, and stops the run. Checks that they are in the ledger and in the file.
pub fn assert_whole(daq: &Daq, mut live: Live, packets: u64, bytes: usize) -> Outcome {
    live.wait_count("sources.adc.expected", packets);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.adc" =>
        expected: packets, delivered: packets, duplicates: 0, rejected: 0, epochs: 1
    );
    assert_eq!(outcome.report["sources"]["adc"]["lost"], json!({}));
    let sent: Vec<_> = (0..packets)
        .flat_map(|n| packet(n, bytes).split_off(8))
        .collect();
    let file = recording(daq, "disk").data;
    assert!(
        file == sent,
        "the file must contain the bytes that were sent; {} bytes in the file, {} bytes sent",
        file.len(),
        sent.len()
    );
    outcome
}
