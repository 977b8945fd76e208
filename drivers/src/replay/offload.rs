//! Datagrams that segmentation offload captured as one record.
//!
//! A host that sends or receives with offload (GSO, GRO) hands `tcpdump` up to 64 KiB of UDP payload as one packet: datagrams
//! of equal length, the last one possibly shorter. The format states how long each datagram is, so the record is split only
//! where all of it agrees.

use crate::packet::Format;
use crate::packet::pcap::Datagram;

/// A record that is longer than its first packet and cannot be split for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "holds {bytes} bytes of UDP payload where a packet has {packet}, and cannot be split into packets. If segmentation offload \
     was on while it was captured, capture again with `ethtool -K IFACE gso off gro off tso off`, or on another host. \
     If other senders use this port, select with `port` and `destination`. Else check the sizes of the format"
)]
pub(super) struct NotSplit {
    bytes: usize,
    packet: usize,
}

/// Bytes of each datagram but the last in the payload of a captured record; all of them where the record is one datagram.
pub(super) fn segment(format: &Format, record: &Datagram<'_>) -> Result<usize, NotSplit> {
    let payload = record.payload;
    let packet = format.packet_len(payload).unwrap_or(0);
    // Offload leaves the checksum to be completed, so one that holds is that of a single datagram.
    if packet == 0 || packet >= payload.len() || record.has_valid_checksum() {
        return Ok(payload.len());
    }
    let is_whole = |datagram: &[u8]| format.packet_len(datagram) == Some(datagram.len());
    if payload.chunks(packet).all(is_whole) {
        return Ok(packet);
    }
    Err(NotSplit {
        bytes: payload.len(),
        packet,
    })
}
