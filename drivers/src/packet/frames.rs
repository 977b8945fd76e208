//! Assembles packets of a format into frames.

use super::{Format, PacketLayout};
use daq_core::config::Problem;
use daq_core::layout::{Layout, Order, Samples};
use daq_core::reorder::{Arrival, Geometry};
use daq_core::units::ByteSize;

/// Approximate default slot size in bytes.
const SLOT: usize = 1 << 20;

/// For a detected format: maximum number of packets per frame in small slots, and minimum packet size in bytes in large
/// slots.
const MAX_DETECTED_PACKETS: usize = 4096;
const MIN_DETECTED_PACKET: usize = 256;

/// Default number of frames open at the same time.
pub(crate) const fn default_window() -> usize {
    8
}

/// Default maximum number of packets missing in a row, beyond twice the window.
pub(crate) const fn default_max_gap() -> u64 {
    1 << 16
}

/// Default number of packets in a row that must have consistent sequence numbers before a jump of more than twice the window is
/// accepted.
pub(crate) const fn default_resync_after() -> u32 {
    4
}

/// Checks the keys `window` and `resync_after`.
pub(crate) fn problems(window: usize, resync_after: u32) -> Vec<Problem> {
    let mut found = Vec::new();
    if window == 0 {
        found.push(
            Problem::at("window", "`window` must be at least 1 frame").help("set at least 1"),
        );
    }
    if resync_after == 0 {
        found.push(
            Problem::at("resync_after", "`resync_after` must be at least 1 packet")
                .help("set at least 1"),
        );
    }
    found
}

/// The frame parameters of a packet source.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    /// The packet format.
    pub format: &'a Format,
    /// Type and layout of the payload samples.
    pub samples: &'a Samples,
    /// How packets arrive.
    pub arrival: Arrival,
    /// Maximum number of packets missing in a row, beyond twice the window.
    pub max_gap: u64,
    /// Number of packets in a row that must have consistent sequence numbers before a jump of more than twice the window is
    /// accepted.
    pub resync_after: u32,
}

impl Frames<'_> {
    /// Returns the preferred number of payload bytes in a slot.
    pub fn preferred_slot(&self) -> usize {
        match self.format {
            Format::Raw(_) => {
                let payload = self.format.packet_layout().unit_bytes;
                self.packets(SLOT).max(self.whole()) * payload
            }
            Format::Spead(spead) => match spead.given() {
                Some(given) => given.heap.unwrap_or(SLOT),
                None => self.format.packet_layout().unit_bytes,
            },
        }
    }

    /// Returns notes for `daq plan` if the sizes of the format are detected at run time.
    pub fn notes(&self) -> Vec<String> {
        let Format::Spead(spead) = self.format else {
            return Vec::new();
        };
        let Some(given) = spead.given() else {
            return Vec::new();
        };
        let limit = match given.heap {
            Some(_) => String::new(),
            None => "; kernels that read the ring need heaps of the same size as the ring's slots"
                .to_owned(),
        };
        vec![format!(
            "packet sizes and the step of heap counters are detected from the first heaps{limit}"
        )]
    }

    /// Returns what the frame geometry is detected from, or `None` if the geometry is known.
    pub fn detected_from(&self) -> Option<&'static str> {
        self.format.is_detecting().then_some("the first heaps")
    }

    /// Returns whether the frame size is also detected at run time.
    pub fn detects_frame_size(&self) -> bool {
        matches!(self.format, Format::Spead(spead) if spead.given().is_some_and(|given| given.heap.is_none()))
    }

    /// Returns the size in bytes of one sample of all channels.
    fn point(&self) -> usize {
        let samples = self.samples;
        samples.scalar.bytes()
            * if samples.complex { 2 } else { 1 }
            * samples.channels.max(1) as usize
    }

    /// Returns the minimum number of packets per frame so that a frame contains whole points (samples of all channels).
    fn whole(&self) -> usize {
        let point = self.point();
        let payload = self.format.packet_layout().unit_bytes;
        point / gcd(point, payload)
    }

    /// Returns the maximum number of `raw` packets in a slot of `slot` bytes, rounded down so that the frame contains
    /// whole points if possible.
    fn packets(&self, slot: usize) -> usize {
        let max = slot / self.format.packet_layout().unit_bytes.max(1);
        let whole = self.whole();
        if max >= whole {
            max / whole * whole
        } else {
            max
        }
    }

    /// Returns the frame geometry for slots of `slot` bytes.
    pub fn geometry(&self, slot: usize) -> Result<Geometry, Problem> {
        let mut layout = self.format.packet_layout();
        if let Format::Spead(spead) = self.format
            && let Some(given) = spead.given()
        {
            layout = largest(given.heap.unwrap_or(slot));
        }
        let slot_size = ByteSize(slot as u64);
        let (count, frame_bytes) = match self.format {
            Format::Raw(_) => {
                let packets = self.packets(slot);
                if packets == 0 {
                    let payload = ByteSize(layout.unit_bytes as u64);
                    let message =
                        format!("a payload of {payload} does not fit into slots of {slot_size}");
                    return Err(
                        Problem::at("format.payload", message).help("raise `slot` of the ring")
                    );
                }
                (
                    u32::try_from(packets).unwrap_or(u32::MAX),
                    packets * layout.unit_bytes,
                )
            }
            Format::Spead(_) => {
                if layout.unit_bytes > slot {
                    let heap = ByteSize(layout.unit_bytes as u64);
                    let message =
                        format!("a heap of {heap} does not fit into slots of {slot_size}");
                    let help = format!(
                        "one heap is one frame: set `slot = \"{heap}\"` in the ring's section"
                    );
                    return Err(Problem::at("format.heap", message).help(help));
                }
                (layout.count(), layout.unit_bytes)
            }
        };
        Ok(Geometry {
            packets_per_frame: count,
            first_bytes: layout.range(0).len(),
            packet_bytes: layout.rest,
            frame_bytes,
            numbering: self.format.numbering(),
            // The planner limits a default window to the slots of the ring.
            window: self.arrival.declared.unwrap_or(default_window()),
            max_gap: self.max_gap,
            resync_after: self.resync_after,
            frame_ns: self.frame_ns(frame_bytes),
        })
    }

    /// Returns the signal duration of a frame in nanoseconds, or 0 if packet timestamps cannot be converted to frame
    /// timestamps.
    fn frame_ns(&self, frame_bytes: usize) -> u64 {
        // The timestamp of a heap is that of its frame. In planar order a packet's timestamp is independent of its position.
        let is_of_frame =
            matches!(self.format, Format::Spead(_)) && self.format.time_scale().is_some();
        let is_in_order = self.samples.order == Order::Interleaved;
        match self.samples.rate {
            Some(rate) if is_in_order && !is_of_frame && rate.0 > 0.0 => {
                let points = frame_bytes as f64 / self.point() as f64;
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "positive; saturates"
                )]
                let ns = (points / rate.0 * 1e9).round() as u64;
                ns
            }
            _ => 0,
        }
    }

    /// Returns the sample layout of frames with `geometry`.
    pub fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem> {
        let mut bytes = geometry.frame_bytes;
        if self.detects_frame_size() {
            // A slot may be longer than a heap, so it need not contain whole points.
            bytes -= bytes % self.point();
        }
        self.samples.layout(bytes).map_err(|rest| {
            let message = format!(
                "a frame of {bytes} bytes is not a whole number of samples of all channels: {rest} bytes are left over"
            );
            Problem::at("samples", message)
                .help("correct `type`, `complex` or `channels`, or change `slot` of the ring")
        })
    }
}

/// Returns the layout with the smallest packets that a detected format may use in a frame of `bytes` bytes.
fn largest(bytes: usize) -> PacketLayout {
    let packet = (bytes / MAX_DETECTED_PACKETS).clamp(1, MIN_DETECTED_PACKET);
    PacketLayout {
        unit_bytes: bytes.max(1),
        first: packet,
        rest: packet,
    }
}

/// Replaces the upper bounds of `planned` with the sizes that `format` has detected.
pub(crate) fn pinned(planned: &Geometry, format: &Format) -> Geometry {
    let layout = format.packet_layout();
    let frame_ns = u128::from(planned.frame_ns) * layout.unit_bytes as u128
        / planned.frame_bytes.max(1) as u128;
    Geometry {
        packets_per_frame: layout.count(),
        first_bytes: layout.range(0).len(),
        packet_bytes: layout.rest,
        frame_bytes: layout.unit_bytes,
        numbering: format.numbering(),
        frame_ns: u64::try_from(frame_ns).unwrap_or(u64::MAX),
        ..*planned
    }
}

const fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    if a == 0 { 1 } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Endian, Field, Raw, Spead};
    use daq_core::layout::Scalar;

    fn frames<'a>(format: &'a Format, samples: &'a Samples) -> Frames<'a> {
        Frames {
            format,
            samples,
            arrival: Arrival {
                declared: None,
                threads: 1,
                batch: 64,
            },
            max_gap: 0,
            resync_after: 4,
        }
    }

    #[test]
    fn raw_frames_hold_complete_packets_and_points() {
        let format = Format::Raw(Raw::new(
            16,
            1456,
            0,
            Field::new(0, 8, Endian::Big, 0, 64),
            1,
        ));
        let bytes = Samples::default();
        let geometry = frames(&format, &bytes).geometry(1 << 20).unwrap();
        assert_eq!(
            (geometry.packets_per_frame, geometry.frame_bytes),
            (720, 720 * 1456)
        );
        // One point has 12 bytes, so three packets contain whole points.
        let points = Samples {
            scalar: Scalar::Int16,
            complex: true,
            channels: 3,
            ..Samples::default()
        };
        let geometry = frames(&format, &points).geometry(5 * 1456).unwrap();
        assert_eq!(geometry.packets_per_frame, 3);
        assert!(frames(&format, &points).layout(&geometry).is_ok());
        let geometry = frames(&format, &points).geometry(2 * 1456).unwrap();
        let problem = frames(&format, &points).layout(&geometry).unwrap_err();
        assert_eq!(problem.key.as_deref(), Some("samples"));
        assert_eq!(
            frames(&format, &bytes)
                .geometry(1000)
                .unwrap_err()
                .key
                .as_deref(),
            Some("format.payload")
        );
    }

    #[test]
    fn spead_heap_is_one_frame() {
        let layout = PacketLayout {
            unit_bytes: 4000,
            first: 1416,
            rest: 1432,
        };
        let format = Format::Spead(Spead::new(40, layout, 1));
        let samples = Samples::default();
        let geometry = frames(&format, &samples).geometry(8192).unwrap();
        assert_eq!(
            (
                geometry.packets_per_frame,
                geometry.first_bytes,
                geometry.frame_bytes
            ),
            (3, 1416, 4000)
        );
        assert_eq!(
            (0..3).map(|i| geometry.extent(i)).collect::<Vec<_>>(),
            [0..1416, 1416..2848, 2848..4000]
        );
        assert_eq!(frames(&format, &samples).preferred_slot(), 4000);
        assert_eq!(
            frames(&format, &samples)
                .geometry(3999)
                .unwrap_err()
                .key
                .as_deref(),
            Some("format.heap")
        );
    }
}
