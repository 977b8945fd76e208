//! Assembles packets of a format into frames.

use super::keys::PacketKeys;
use super::{Detect, Format, FormatFacts, Origins, PacketLayout, Selector, SourceOfFormat};
use daq_core::config::Problem;
use daq_core::entry::{FrameFacts, SourceContext, SourceFacts};
use daq_core::layout::{Layout, Order, Samples};
use daq_core::reorder::{Arrival, Geometry};
use daq_core::units::ByteSize;

/// Approximate default slot size in bytes.
const SLOT: usize = 1 << 20;

/// For a detected format: maximum number of packets per frame in small slots, and minimum packet size in bytes in large
/// slots.
const MAX_DETECTED_PACKETS: usize = 4096;
const MIN_DETECTED_PACKET: usize = 256;

/// Number of frames open at the same time, until the planner computes the default.
const WINDOW: usize = 8;

/// The packets of a source, and how they form frames.
#[derive(Clone, Debug)]
pub(crate) struct Frames {
    format: Format,
    facts: FormatFacts,
    keys: PacketKeys,
    samples: Samples,
    /// Why packets of the format cannot contain the samples.
    problem: Option<Problem>,
    /// Number of receiving threads.
    threads: usize,
    /// Maximum number of packets that a thread receives in one batch.
    batch: usize,
}

impl Frames {
    /// Returns the frames of packets in `format` that `threads` threads receive, each at most `batch` packets at once. The keys of
    /// the source name the addresses `origins`.
    pub(crate) fn new(
        mut format: Format,
        keys: &PacketKeys,
        origins: &Origins,
        threads: usize,
        batch: usize,
    ) -> Self {
        let samples = keys.samples();
        let source = SourceOfFormat {
            origins,
            samples: &samples,
        };
        Self {
            problem: format.use_source(&source).err(),
            facts: format.facts(),
            format,
            samples,
            keys: keys.clone(),
            threads,
            batch,
        }
    }

    /// Returns the facts about a source of these frames that follow from the packets. A source adds its own facts.
    pub(crate) fn facts(&self) -> SourceFacts {
        let format = &self.facts;
        SourceFacts {
            preferred_slot: Some(self.preferred_slot()),
            detected_from: self.detected_from(),
            detects_frame_size: self.detects_frame_size(),
            kept: format.kept.clone(),
            arrival: Some(Arrival {
                declared: self.keys.window,
                threads: self.threads,
                batch: self.batch,
                is_detected: format.unknown_sizes.is_some(),
            }),
            number_advice: format.number_advice,
            counts: format.counts.clone(),
            parts: format.named_parts(),
            threads: self.threads,
            notes: self.notes(),
            ..SourceFacts::default()
        }
    }

    /// Returns the frames in slots of `slot` bytes. The memory is that of one thread, while the format is detected.
    pub(crate) fn in_slots(&self, slot: usize) -> Result<FrameFacts, Problem> {
        let geometry = self.geometry(slot)?;
        let layout = self.layout(&geometry)?;
        let format = self.start_detection(&geometry);
        let detector = format.detect().and_then(Detect::detector);
        Ok(FrameFacts {
            memory: detector.map_or(0, |detector| detector.hold_bytes()),
            ..FrameFacts::new(geometry, layout)
        })
    }

    /// Returns which datagrams belong to the source, if several sources can receive from one port.
    pub(crate) fn selector(&self) -> Option<Selector> {
        self.facts.selector.clone()
    }

    /// Returns the format for the receiving threads of the source of `context`.
    pub(crate) fn start(&self, context: &SourceContext) -> Format {
        let mut format = self.start_detection(&context.geometry);
        format.start(&context.name, &context.counts);
        format
    }

    /// Returns the format for the receiving threads, which detect its unknown sizes together.
    fn start_detection(&self, geometry: &Geometry) -> Format {
        match self.format.detect() {
            Some(detect) => detect.start_detection(geometry, self.threads),
            None => self.format.clone(),
        }
    }

    /// Returns the preferred number of payload bytes in a slot.
    pub(crate) fn preferred_slot(&self) -> usize {
        let unit = self.facts.unit_bytes();
        match self.facts.unknown_sizes {
            Some(known) => known.frame.unwrap_or(SLOT),
            None if self.facts.is_unit_frame => unit,
            None => self.packets(SLOT).max(self.whole()) * unit,
        }
    }

    /// Returns notes for `daq plan`.
    fn notes(&self) -> Vec<String> {
        self.detection_note()
            .into_iter()
            .chain(self.keys.note())
            .chain(self.facts.notes.iter().cloned())
            .collect()
    }

    /// Returns a note if the sizes of the format are detected at run time.
    fn detection_note(&self) -> Option<String> {
        let unknown = self.facts.unknown_sizes?;
        let limit = match unknown.frame {
            Some(_) => String::new(),
            None => format!(
                "; kernels that read the ring need {}s of the same size as the ring's slots",
                self.facts.unit_key
            ),
        };
        let (values, from) = (unknown.values, unknown.from);
        Some(format!("{values} are detected from {from}{limit}"))
    }

    /// Returns what the frame geometry is detected from, or `None` if the geometry is known.
    pub(crate) fn detected_from(&self) -> Option<&'static str> {
        self.facts.unknown_sizes.map(|unknown| unknown.from)
    }

    /// Returns whether the frame size is also detected at run time.
    fn detects_frame_size(&self) -> bool {
        let unknown = self.facts.unknown_sizes;
        unknown.is_some_and(|known| known.frame.is_none())
    }

    /// Returns the smallest number of bytes that contains whole points (samples of all channels).
    fn point(&self) -> usize {
        self.samples.point_bytes()
    }

    /// Returns the minimum number of packets per frame so that a frame contains whole points (samples of all channels).
    fn whole(&self) -> usize {
        let point = self.point();
        let payload = self.facts.layout.unit_bytes;
        point / gcd(point, payload)
    }

    /// Returns the maximum number of `raw` packets in a slot of `slot` bytes, rounded down so that the frame contains
    /// whole points if possible.
    fn packets(&self, slot: usize) -> usize {
        let max = slot / self.facts.layout.unit_bytes.max(1);
        let whole = self.whole();
        if max >= whole {
            max / whole * whole
        } else {
            max
        }
    }

    /// Returns the frame geometry for slots of `slot` bytes.
    pub(crate) fn geometry(&self, slot: usize) -> Result<Geometry, Problem> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let format = &self.facts;
        let parts = format.parts;
        let layout = match format.unknown_sizes {
            Some(known) => largest(known.frame.unwrap_or(slot) / parts.max(1) as usize),
            None => format.layout,
        };
        let (count, frame_bytes) = if format.is_unit_frame {
            (
                layout.count().saturating_mul(parts),
                layout.unit_bytes.saturating_mul(parts as usize),
            )
        } else {
            let packets = self.packets(slot);
            (
                u32::try_from(packets).unwrap_or(u32::MAX),
                packets * layout.unit_bytes,
            )
        };
        if count == 0 || frame_bytes > slot {
            return Err(self.too_large(frame_bytes.max(layout.unit_bytes), slot));
        }
        Ok(Geometry {
            packets_per_frame: count,
            parts,
            first_bytes: layout.range(0).len(),
            packet_bytes: layout.rest,
            frame_bytes,
            numbering: format.numbering,
            // The planner limits a default window to the slots of the ring.
            window: self.keys.window.unwrap_or(WINDOW),
            max_gap: self.keys.max_gap(),
            resync_after: self.keys.resync_after,
            close_after: self.keys.close_after.0,
            frame_ns: self.frame_ns(frame_bytes),
            declared_ns: self.declared_ns(frame_bytes),
        })
    }

    /// Returns the error for a unit that does not fit into a slot.
    fn too_large(&self, unit: usize, slot: usize) -> Problem {
        let (key, unit, slot) = (
            self.facts.unit_key,
            ByteSize(unit as u64),
            ByteSize(slot as u64),
        );
        let message = format!("a {key} of {unit} does not fit into slots of {slot}");
        let help = if self.facts.is_unit_frame {
            format!("one {key} is one frame: set `slot = \"{unit}\"` in the ring's section")
        } else {
            "raise `slot` of the ring".to_owned()
        };
        Problem::at(format!("format.{key}"), message).help(help)
    }

    /// Returns the signal duration of a frame in nanoseconds, or 0 if packet timestamps cannot be converted to frame
    /// timestamps.
    fn frame_ns(&self, frame_bytes: usize) -> u64 {
        // The timestamp of a unit that is a frame is that of the frame. In planar order a packet's timestamp is independent of its position.
        let is_of_frame = self.facts.has_frame_times;
        let is_in_order = self.samples.order == Order::Interleaved;
        if is_in_order && !is_of_frame {
            self.declared_ns(frame_bytes)
        } else {
            0
        }
    }

    /// Returns the signal duration of a frame in nanoseconds according to the sample rate, or 0 if the rate is unknown.
    fn declared_ns(&self, frame_bytes: usize) -> u64 {
        let rate = self.samples.rate.map_or(0.0, |rate| rate.0);
        if rate <= 0.0 {
            return 0;
        }
        let points = frame_bytes as f64 * 8.0 / self.samples.point_bits() as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive; saturates"
        )]
        let ns = (points / rate * 1e9).round() as u64;
        ns
    }

    /// Returns the sample layout of frames with `geometry`.
    fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem> {
        // Packets may end inside a packed number. Only whole frames contain whole numbers.
        let number = self.samples.scalar.bytes().unwrap_or(1);
        let packet = geometry.packet_bytes;
        if !self.facts.is_unit_frame && !packet.is_multiple_of(number) {
            let message = format!(
                "a packet with {packet} bytes of payload does not contain a whole number of samples of {number} bytes"
            );
            return Err(Problem::at("samples", message)
                .help("correct `type`, or the size of a packet in the table `format`"));
        }
        let mut bytes = geometry.frame_bytes;
        if self.detects_frame_size() {
            // A slot may be longer than a heap, so it need not contain whole points.
            bytes -= bytes % self.point();
        }
        sample_layout(&self.samples, bytes, CHANGE_SLOT)
    }
}

/// The fix if a slot does not hold a whole number of samples.
pub(crate) const CHANGE_SLOT: &str =
    "correct `type`, `complex` or `channels`, or change `slot` of the ring";

/// Returns the geometry of frames that another host has already assembled, each of at most one slot.
pub(crate) fn frame_per_slot(
    packets_per_frame: u32,
    slot_bytes: usize,
) -> Result<Geometry, Problem> {
    if slot_bytes < packets_per_frame as usize {
        let slot = ByteSize(slot_bytes as u64);
        let message = format!(
            "`packets_per_frame` is {packets_per_frame}, but a slot of {slot} has fewer bytes, and each packet needs at least 1 byte"
        );
        return Err(Problem::at("packets_per_frame", message)
            .help("raise `slot` of the ring, or lower `packets_per_frame`"));
    }
    Ok(Geometry {
        frame_bytes: slot_bytes,
        ..Geometry::new(packets_per_frame, slot_bytes / packets_per_frame as usize)
    })
}

/// Returns the layout of frames of `bytes` bytes. The error contains `help` as its fix.
pub(crate) fn sample_layout(
    samples: &Samples,
    bytes: usize,
    help: &str,
) -> Result<Layout, Problem> {
    let layout = samples.layout(bytes).map_err(|rest| {
        let point = samples.point_bytes();
        let message = match samples.scalar.packing() {
            None => format!(
                "a frame of {bytes} bytes is not a whole number of samples of all channels: {rest} bytes are left over"
            ),
            Some(packing) => {
                let (numbers, packed) = packing.group();
                format!(
                    "a frame of {bytes} bytes ends inside a group of packed samples: {} has {numbers} numbers in \
                     {packed} bytes, so frames must be multiples of {point} bytes, but {rest} bytes are left over",
                    samples.scalar
                )
            }
        };
        Problem::at("samples", message).help(help)
    })?;
    samples.shaped(layout)
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
    let facts = format.facts();
    let (layout, frame_bytes) = (facts.layout, facts.unit_bytes());
    let scaled = |ns: u64| {
        let scaled = u128::from(ns) * frame_bytes as u128 / planned.frame_bytes.max(1) as u128;
        u64::try_from(scaled).unwrap_or(u64::MAX)
    };
    Geometry {
        packets_per_frame: layout.count().saturating_mul(facts.parts),
        first_bytes: layout.range(0).len(),
        packet_bytes: layout.rest,
        frame_bytes,
        numbering: facts.numbering,
        frame_ns: scaled(planned.frame_ns),
        declared_ns: scaled(planned.declared_ns),
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
    use crate::packet::{Endian, Field, Raw};
    use daq_core::layout::Scalar;

    fn frames(format: &Format, samples: &Samples) -> Frames {
        let keys = PacketKeys {
            window: None,
            max_gap: None,
            resync_after: 4,
            close_after: crate::packet::keys::default_close_after(),
            samples: Some(samples.clone()),
        };
        Frames::new(format.clone(), &keys, &Origins::default(), 1, 64)
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
        // Two packets contain whole samples, but a sample would be in both packets.
        let odd = Format::Raw(Raw::new(
            16,
            1001,
            0,
            Field::new(0, 8, Endian::Big, 0, 64),
            1,
        ));
        let words = Samples {
            scalar: Scalar::Int16,
            ..Samples::default()
        };
        let geometry = frames(&odd, &words).geometry(2002).unwrap();
        let problem = frames(&odd, &words).layout(&geometry).unwrap_err();
        assert!(
            problem.to_string().contains("1001 bytes of payload"),
            "{problem}"
        );
        let geometry = frames(&format, &points).geometry(2 * 1456).unwrap();
        let problem = frames(&format, &points).layout(&geometry).unwrap_err();
        assert_eq!(problem.key.as_deref(), Some("samples"));
        // Two numbers of 12 bits have 3 bytes, so three packets contain whole groups.
        let packed = Samples {
            scalar: Scalar::Uint12p,
            ..Samples::default()
        };
        let geometry = frames(&format, &packed).geometry(5 * 1456).unwrap();
        assert_eq!(geometry.packets_per_frame, 3);
        let layout = frames(&format, &packed).layout(&geometry).unwrap();
        assert_eq!((layout.points, layout.frame_bytes()), (2912, 3 * 1456));
        let timed = Samples {
            rate: Some(daq_core::units::Frequency(1e6)),
            ..packed.clone()
        };
        assert_eq!(frames(&format, &timed).frame_ns(3 * 1456), 2_912_000);
        let geometry = frames(&format, &packed).geometry(2 * 1456).unwrap();
        let problem = frames(&format, &packed).layout(&geometry).unwrap_err();
        let message = &problem.message;
        assert!(message.contains("ends inside a group"), "{message}");
        assert!(
            message.contains("multiples of 3 bytes, but 2 bytes"),
            "{message}"
        );
        assert_eq!(
            frames(&format, &bytes)
                .geometry(1000)
                .unwrap_err()
                .key
                .as_deref(),
            Some("format.payload")
        );
    }
}
