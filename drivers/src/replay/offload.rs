//! Splits datagrams that segmentation offload captured as one record.
//!
//! With offload (GSO, GRO), `tcpdump` receives up to 64 KiB of UDP payload as one packet: datagrams of equal length, the last
//! one possibly shorter. The format determines the length of each datagram, so a record is split only if all of its bytes are
//! consistent with the format.

use crate::packet::pcap::Datagram;
use crate::packet::{Format, Parsed};
use daq_core::ledger::Counts;

/// A record that is longer than its first packet and cannot be split reliably.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "contains {bytes} bytes of UDP payload, but a packet has {packet}, and it cannot be split into packets. If segmentation \
     offload was enabled during capture, capture again with `ethtool -K IFACE gso off gro off tso off`, or on another host. \
     If other senders use this port, select packets with `port` and `destination`. Otherwise check the sizes of the format"
)]
pub(super) struct NotSplit {
    bytes: usize,
    packet: usize,
}

/// Returns the size of each datagram except the last in a captured record, or the whole size if it is one datagram.
pub(super) fn segment(format: &Format, record: &Datagram<'_>) -> Result<usize, NotSplit> {
    let payload = record.payload;
    let packet = format.packet_len(payload).unwrap_or(0);
    // Offload leaves the checksum incomplete, so a valid checksum means a single datagram.
    if packet == 0 || packet >= payload.len() || record.has_valid_checksum() {
        return Ok(payload.len());
    }
    let is_whole = |datagram: &[u8]| format.packet_len(datagram) == Some(datagram.len());
    if payload.chunks(packet).all(is_whole) {
        return Ok(packet);
    }
    if !begins_with_packets(format, payload, packet) {
        // One datagram that is longer than those of the format, such as a message. The format counts it.
        return Ok(payload.len());
    }
    Err(NotSplit {
        bytes: payload.len(),
        packet,
    })
}

/// Returns whether `payload` begins with two packets of `packet` bytes with consecutive numbers.
#[cold]
fn begins_with_packets(format: &Format, payload: &[u8], packet: usize) -> bool {
    let mut format = format.clone();
    // The attempt must not change the state and the counters that copies of a format share.
    format.start("", &Counts::default());
    let mut id = |chunk: usize| {
        let bytes = payload.get(chunk * packet..(chunk + 1) * packet)?;
        match format.parse(bytes).ok()? {
            Parsed::Data(packet) | Parsed::Sized { packet, .. } => Some(packet.id()),
            Parsed::Fragment(_) | Parsed::Control(_) => None,
        }
    };
    match (id(0), id(1)) {
        (Some(first), Some(second)) => format.facts().numbering.next(first) == second,
        _ => false,
    }
}
