//! Packets to send: the part of a packet format that builds packets from frames.
//!
//! Packet formats and the sinks that send do not depend on each other. A sink finds the formats in the registry
//! ([`Registry::outgoing_formats`](crate::entry::Registry::outgoing_formats)), and uses them only through these traits.

use crate::config::{Diagnostics, Problem, Section};
use crate::frame::Timestamp;
use crate::layout::Layout;
use schemars::{Schema, SchemaGenerator};
use std::ops::Range;

/// The frames of one receiver, whose packets are built.
#[derive(Clone, Debug)]
pub struct OutgoingFrames {
    /// The meaning of a frame's bytes.
    pub layout: Layout,
    /// Number of bytes in a frame.
    pub frame_bytes: usize,
    /// Whether the receiver gets all points of its channels, so that its frames follow each other without a gap in time.
    pub is_continuous: bool,
    /// Maximum size in bytes of a packet, with its header and without IP and UDP headers, if the format selects the size.
    pub max_packet: usize,
}

/// The registry entry of a packet format that can be sent.
pub trait OutgoingFormatEntry: Send + Sync {
    /// Returns the JSON schema of the keys of a table `format`, without `kind`.
    fn schema(&self, generator: &mut SchemaGenerator) -> Schema;

    /// Reads the keys of a table `format`, without `kind`. Returns `None` after reporting an error.
    fn parse(
        &self,
        table: &mut Section,
        diagnostics: &mut Diagnostics,
    ) -> Option<Box<dyn OutgoingFormat>>;
}

/// The checked keys of a table `format`.
pub trait OutgoingFormat: Send + Sync {
    /// Returns the builder for `frames`, or why they cannot be sent in this format. Keys of the problem begin with
    /// `format.`.
    fn builder(&self, frames: &OutgoingFrames) -> Result<Box<dyn PacketBuilder>, Problem>;

    /// Returns warnings about the keys, which do not prevent sending. Keys begin with `format.`.
    fn warnings(&self) -> Vec<Problem> {
        Vec::new()
    }
}

/// Builds the packets of one receiver. Methods that are called for each packet do not allocate memory if `out` has room.
pub trait PacketBuilder: Send {
    /// Returns the number of packets of a frame, at least 1.
    fn packets(&self) -> u32;

    /// Returns the byte range of the frame that is the payload of `packet`.
    fn payload(&self, packet: u32) -> Range<usize>;

    /// Appends the header of `packet` of the frame with the number `frame` to `out`. `time` is the time of the first sample of
    /// the packet. A time in another scale than that of the packets counts as unknown.
    fn append_header(&self, frame: u64, packet: u32, time: Timestamp, out: &mut Vec<u8>);

    /// Returns the number of zero bytes after the payload of every packet.
    fn trailer_len(&self) -> usize {
        0
    }

    /// Writes the packets that describe the stream to `packets`. They are sent before the frame with the number `frame`, whose
    /// first sample has the time `time`. `packets` contains the packets of the previous call; it
    /// is empty before the first frame. Only the first call may allocate memory.
    fn describe(&self, frame: u64, time: Timestamp, packets: &mut Vec<Vec<u8>>) {
        let _ = (frame, time, packets);
    }

    /// Returns the packets that end the stream. `next` is the number of the frame after the last one.
    fn end(&self, next: u64) -> Vec<Vec<u8>> {
        let _ = next;
        Vec::new()
    }
}
