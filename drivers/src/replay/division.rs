//! Divides a SigMF recording into frames and packets.

use super::recording::Recording;
use daq_core::config::Problem;
use daq_core::frame::PacketSizes;
use daq_core::layout::{Axis, Layout, Order};
use daq_core::reorder::{CLOSE_AFTER, Geometry, Numbering};
use daq_core::sigmf::Stream;
use daq_core::units::ByteSize;
use serde::Deserialize as _;
use serde_json::Value;

/// Approximate slot size in bytes for recordings without frames.
const DEFAULT_SLOT: usize = 1 << 20;
/// Maximum packet size in bytes for recordings without packets, unless a sample is larger.
const MAX_PACKET: usize = 8 << 10;
/// Minimum packet size in bytes; smaller packets that divide the data evenly would be too slow.
const MIN_PACKET: usize = 64;
/// Maximum number of missing packets in a row. The metadata contain every start of an epoch, so all frames that the numbers of an
/// epoch skip are missing.
const MAX_GAP: u64 = 1 << 48;

/// The packets of a whole frame: their number, and the bytes of the first packet and of each other one except the last.
#[derive(Clone, Copy, Debug)]
struct Packets {
    count: u32,
    first: usize,
    rest: usize,
}

impl Packets {
    /// Returns packets of `rest` bytes in a frame of `frame_bytes` bytes.
    fn equal(rest: usize, frame_bytes: usize) -> Self {
        let count = u32::try_from(frame_bytes.div_ceil(rest)).unwrap_or(u32::MAX);
        Self {
            count,
            first: if count == 1 { frame_bytes } else { rest },
            rest,
        }
    }

    /// Returns the packets of a frame of `frame_bytes` bytes according to the metadata. Returns `None` if the frame has fewer than
    /// two packets, if the metadata do not contain their sizes, or if the sizes contradict each other. Parts of frames are
    /// supported only if all packets are equal.
    fn recorded(stream: &Stream, frame_bytes: usize, has_sizes: bool) -> Option<Self> {
        let PacketSizes { first, rest, parts } = stream.packet_sizes?;
        let (count, first, rest) = (stream.packets_per_frame, first as usize, rest as usize);
        let last = first.checked_add(rest.checked_mul(count.checked_sub(2)? as usize)?)?;
        let is_divided = first > 0 && rest > 0 && last < frame_bytes;
        let equal = Self::equal(rest.max(1), frame_bytes);
        // The last packet may be longer than the others, unless the size of a frame determines the number of its packets.
        let is_regular = last.saturating_add(rest) >= frame_bytes;
        let is_plain = parts <= 1 && (is_regular || !has_sizes);
        let is_even = first == rest && frame_bytes.is_multiple_of(rest.max(1));
        let is_supported = is_plain || is_even && equal.count == count && !has_sizes;
        (is_divided && is_supported).then_some(Self { count, first, rest })
    }
}

impl Recording {
    /// Returns the size in bytes of a recorded frame, if the recording contains frames.
    fn frame_bytes(&self) -> Option<usize> {
        self.stream
            .as_ref()
            .map(|stream| usize::try_from(stream.frame_bytes).unwrap_or(usize::MAX))
    }

    /// Returns the packet size for recordings without packets. It is the largest size that divides all runs that continue each
    /// other evenly, unless that results in too many packets.
    fn packet_bytes(&self, max: usize) -> usize {
        let common = self
            .joined_runs()
            .fold(0, |common, bytes| gcd(common, bytes / self.group as u64));
        let common = usize::try_from(common).unwrap_or(usize::MAX).max(1);
        let max = (max.min(MAX_PACKET) / self.group).max(1);
        let min = MIN_PACKET.div_ceil(self.group).min(max);
        (min..=max)
            .rev()
            .find(|groups| common.is_multiple_of(*groups))
            .unwrap_or(max)
            * self.group
    }

    pub(super) fn preferred_slot(&self) -> usize {
        self.frame_bytes().unwrap_or_else(|| {
            let packet = self.packet_bytes(DEFAULT_SLOT);
            (DEFAULT_SLOT / packet).max(1) * packet
        })
    }

    pub(super) fn geometry(&self, slot: usize) -> Result<Geometry, Problem> {
        let too_small = |bytes: usize, what: &str| {
            let (bytes, slot) = (ByteSize(bytes as u64), ByteSize(slot as u64));
            let message = format!("{what} of {bytes} does not fit into slots of {slot}");
            Problem::at("path", message)
                .help(format!("set `slot = \"{bytes}\"` in the ring's section"))
        };
        let (frame_bytes, packets) = if let Some(frame_bytes) = self.frame_bytes() {
            if frame_bytes > slot {
                return Err(too_small(frame_bytes, "a recorded frame"));
            }
            (frame_bytes, self.packets_of_frame(frame_bytes))
        } else {
            if self.group > slot {
                return Err(too_small(self.group, "a sample"));
            }
            let packet = self.packet_bytes(slot);
            let frame_bytes = slot / packet * packet;
            (frame_bytes, Packets::equal(packet, frame_bytes))
        };
        Ok(Geometry {
            packets_per_frame: packets.count,
            parts: 1,
            first_bytes: packets.first,
            packet_bytes: packets.rest,
            frame_bytes,
            numbering: Numbering::PLAIN,
            // A recording is in order and all its numbers are valid, so one open frame is sufficient.
            window: 1,
            max_gap: MAX_GAP,
            resync_after: 1,
            close_after: CLOSE_AFTER,
            // Each piece has the timestamp of its first packet, even if that packet is missing.
            frame_ns: 0,
            declared_ns: 0,
        })
    }

    /// Returns the packets of a recorded frame of `frame_bytes` bytes.
    fn packets_of_frame(&self, frame_bytes: usize) -> Packets {
        let stream = self.stream.as_ref();
        let recorded =
            stream.and_then(|stream| Packets::recorded(stream, frame_bytes, self.has_sizes));
        let count = stream.map_or(0, |stream| stream.packets_per_frame as usize);
        recorded.unwrap_or_else(|| {
            // Earlier versions of daq did not record the sizes.
            let packet = if count > 0 {
                frame_bytes.div_ceil(count)
            } else {
                self.packet_bytes(frame_bytes)
            };
            Packets::equal(packet, frame_bytes)
        })
    }

    /// Returns the number of bytes at the ends of runs that do not fill a packet.
    pub(super) fn rest(&self) -> u64 {
        if self.stream.is_some() {
            return 0;
        }
        let packet = self.packet_bytes(DEFAULT_SLOT) as u64;
        self.joined_runs().map(|bytes| bytes % packet).sum()
    }

    pub(super) fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem> {
        let bytes = geometry.frame_bytes;
        let stream = self.stream.as_ref();
        if let Some((stream, points)) = stream.and_then(|stream| Some((stream, stream.points?))) {
            let layout = Layout {
                scalar: self.samples.scalar,
                complex: self.samples.complex,
                channels: stream.channels.unwrap_or(1).max(1),
                points: usize::try_from(points).unwrap_or(0),
                order: if stream.order.as_deref() == Some("planar") {
                    Order::Planar
                } else {
                    Order::Interleaved
                },
                axis: axis(stream.axis.as_ref()),
                frame_rate: stream.frame_rate,
                is_contiguous: true,
            };
            let whole = layout
                .sample_bytes()
                .and_then(|sample| sample.checked_mul(layout.channels as usize));
            if whole.and_then(|whole| whole.checked_mul(layout.points)) == Some(bytes) {
                return Ok(layout);
            }
            let message = format!(
                "frames of {bytes} bytes do not match the channels and points in the metadata"
            );
            return Err(Problem::at("path", message)
                .help("correct `daq:channels` or `daq:points` in the metadata"));
        }
        self.samples.layout(bytes).map_err(|rest| {
            let message = format!(
                "recorded frames of {bytes} bytes are not a whole number of samples of all channels: {rest} bytes are \
                 left over"
            );
            Problem::at("path", message).help("correct `daq:frame_bytes` in the metadata")
        })
    }
}

/// Returns the axis that the metadata describe.
fn axis(value: Option<&Value>) -> Axis {
    let axis = value.and_then(|value| Axis::deserialize(value).ok());
    axis.unwrap_or(Axis::Time { rate: None })
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
