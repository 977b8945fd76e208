//! The keys of the format `raw`.

use super::frames::{FrameNumbers, Place};
use super::range::NumberRange;
use super::rules::MatchConfig;
use super::time::TimestampConfig;
use super::{Endian, Raw};
use crate::packet::Format;
use crate::packet::checks::{Check, LARGEST_PACKET};
use crate::packet::field::FieldKeys;
use crate::packet::keep::{Keep, KeptFieldConfig};
use crate::packet::parts::{Parts, PartsConfig, Readable};
use daq_core::config::Problem;
use daq_core::units::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;

/// `kind = "raw"`: a fixed header with numbers, a fixed payload, optionally a trailer.
///
/// Set `sequence` if packets are numbered in one sequence. Set `frame` if packets have the number of their frame; a frame
/// then consists of `packets` packets for each part.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    /// Number of bytes before the payload in each packet.
    pub header: ByteSize,
    /// Number of payload bytes in each packet.
    pub payload: ByteSize,
    /// Number of bytes after the payload in each packet.
    #[serde(default)]
    pub trailer: ByteSize,
    /// The sequence number of packets.
    pub sequence: Option<FieldKeys>,
    /// The number of the frame of a packet. One frame fills one slot of the ring.
    pub frame: Option<FieldKeys>,
    /// The number of a packet in its part of a frame.
    pub packet: Option<FieldKeys>,
    /// The offset of a packet's payload in its part of a frame, instead of `packet`. `step` is the unit of the offset in bytes.
    pub position: Option<FieldKeys>,
    /// Number of packets of a frame, or of each part of a frame; by default 1. With `sequence`, each `packets` packets are one
    /// frame that begins at a multiple of this number.
    pub packets: Option<u32>,
    /// Payload size of the last packet of each part, if it is shorter than `payload`.
    pub last: Option<ByteSize>,
    /// What distinguishes the parts of a frame, such as detector modules or antennas. Each part has `packets` packets.
    pub part: Option<PartsConfig>,
    /// Conditions that packets with data meet. Other packets, such as leaders and trailers, are counted as `control`,
    /// and so are empty datagrams.
    #[serde(default, rename = "match")]
    pub conditions: Vec<MatchConfig>,
    /// The time of a packet, if the header contains it.
    pub timestamp: Option<TimestampConfig>,
    /// Numbers in the header that travel with the frame to kernels, sinks and files, at most 8. A frame of several packets has
    /// the numbers of its first packet that arrives.
    #[serde(default)]
    pub keep: Vec<KeptFieldConfig>,
}

/// The block identifiers of 16 bits of GigE Vision: 0 is reserved.
const BLOCK_IDS: [u64; 2] = [1, 65_535];
const RANGE_NOTE: &str = "the header is that of a GigE Vision stream, whose frame numbers skip 0, so `range` of `frame` is [1, 65535]";

impl RawConfig {
    /// Returns the format, or every problem of the configuration.
    pub fn build(&self) -> Result<Format, Vec<Problem>> {
        let mut check = Check::default();
        let header = check.size("header", self.header, 1, LARGEST_PACKET);
        let payload = check.size("payload", self.payload, 1, LARGEST_PACKET);
        let trailer = check.size("trailer", self.trailer, 0, LARGEST_PACKET);
        let length = header.saturating_add(payload).saturating_add(trailer);
        check.must(
            length <= LARGEST_PACKET || header.max(payload).max(trailer) > LARGEST_PACKET,
            "payload",
            || {
                let message = format!("header, payload and trailer have {length} bytes in total, which is too large for a UDP packet");
                (
                    message,
                    format!(
                        "lower `payload`, `header` or `trailer`: a UDP packet can carry at most {LARGEST_PACKET} bytes"
                    ),
                )
            },
        );
        let number = self.number(header, &mut check);
        let frames = self.frame_numbers(header, payload, &mut check);
        let mut raw = Raw::new(header, payload, trailer, number.field(), number.step);
        raw.frames = frames.map(Box::new);
        raw.range = range(&number);
        if raw.range.is_none() && self.is_gvsp() {
            raw.range = Some(NumberRange::new(BLOCK_IDS[0], BLOCK_IDS[1]));
            raw.range_note = Some(RANGE_NOTE);
        }
        let conditions = self.conditions.iter();
        raw.rules = conditions
            .map(|condition| condition.rule(header, &mut check))
            .collect();
        raw.time = self
            .timestamp
            .as_ref()
            .map(|time| time.time(header, &mut check));
        raw.keep = Keep::fields(&mut check, &self.keep, header);
        raw.order_note = self.order_note().map(String::into_boxed_str);
        check.end(Format::Raw(raw))
    }

    /// Returns whether the keys describe the payload packets of a GigE Vision stream with block identifiers of 16 bits, as in the
    /// GigE Vision specification 2.0, section 24.
    fn is_gvsp(&self) -> bool {
        let is_at = |number: &Option<FieldKeys>, offset, bytes, first| {
            number.as_ref().is_some_and(|number| {
                let place = (number.offset, number.bytes, number.first);
                let is_whole = number.bits.is_none() && number.shift == 0 && number.step == 1;
                place == (offset, bytes, first)
                    && is_whole
                    && number.endian.unwrap_or_default() == Endian::Big
            })
        };
        self.header.0 == 8
            && is_at(&self.frame, 2, 2, 0)
            && is_at(&self.packet, 5, 3, 1)
            && self.conditions.iter().any(MatchConfig::is_gvsp_payload)
    }

    /// Returns a note about numbers of several bytes whose byte order is not configured.
    fn order_note(&self) -> Option<String> {
        let is_default = |number: &FieldKeys| number.bytes > 1 && number.endian.is_none();
        let keys: Vec<_> = self
            .numbers()
            .into_iter()
            .filter(|(_, number)| number.as_ref().is_some_and(is_default))
            .map(|(key, _)| format!("`{key}`"))
            .collect();
        let verb = if keys.len() > 1 { "are" } else { "is" };
        (!keys.is_empty()).then(|| {
            format!(
                "{} {verb} read in big-endian byte order, which is the default of `endian`",
                keys.join(" and ")
            )
        })
    }

    /// Returns the numbers that place packets, with their keys.
    const fn numbers(&self) -> [(&'static str, &Option<FieldKeys>); 4] {
        [
            ("sequence", &self.sequence),
            ("frame", &self.frame),
            ("packet", &self.packet),
            ("position", &self.position),
        ]
    }

    /// Returns the number of the unit of a packet: its own, or that of its frame.
    fn number(&self, header: usize, check: &mut Check) -> FieldKeys {
        check.must(self.sequence.is_some() != self.frame.is_some(), "sequence", || {
            let message = "a format needs either `sequence` or `frame`".to_owned();
            (message, "set `sequence` for a running number of packets, or `frame` for the number of the frame".to_owned())
        });
        for (key, number) in self.numbers() {
            let Some(number) = number else { continue };
            check_number(number, key, header, check);
            check.must(
                number.first == 0 || key == "packet",
                &format!("{key}.first"),
                || {
                    (
                        "`first` is the number of the first packet of a part".to_owned(),
                        format!("set `first` in `packet`, not in `{key}`"),
                    )
                },
            );
            let is_unit = matches!(key, "sequence" | "frame");
            let is_packed = key == "sequence" && self.packets.is_some();
            check.must(
                number.range.is_none() || is_unit && !is_packed,
                &format!("{key}.range"),
                || {
                    let message =
                        "`range` belongs to a number that counts packets or frames".to_owned();
                    (
                        message,
                        "set it in `frame`, or in `sequence` without `packets`".to_owned(),
                    )
                },
            );
        }
        let number = self.frame.or(self.sequence);
        number.unwrap_or(FieldKeys::big(0, 1))
    }

    /// Returns how packets form frames with numbers of their own; `None` if packets are numbered in one sequence.
    fn frame_numbers(
        &self,
        header: usize,
        payload: usize,
        check: &mut Check,
    ) -> Option<FrameNumbers> {
        let place = Place::of(self.packet.as_ref(), self.position.as_ref());
        let is_placed = !matches!(place, Place::Only);
        check.must(
            self.packet.is_none() || self.position.is_none(),
            "position",
            || {
                (
                    "`packet` and `position` both state the place of a packet".to_owned(),
                    "set only one of them".to_owned(),
                )
            },
        );
        check.must(self.packets != Some(0), "packets", || {
            (
                "a frame needs at least 1 packet".to_owned(),
                "set the number of packets of each part".to_owned(),
            )
        });
        let packets = self.packets.unwrap_or(1).max(1);
        check.must(!is_placed || self.sequence.is_none(), "frame", || {
            let message = "`packet` and `position` need the number of the frame".to_owned();
            (message, "set `frame` instead of `sequence`".to_owned())
        });
        check.must(!is_placed || self.packets.is_some(), "packets", || {
            let message = "the number of packets of a frame is unknown".to_owned();
            (
                message,
                "set `packets`: the number of packets of each part".to_owned(),
            )
        });
        check.must(
            packets == 1 || is_placed || self.frame.is_none(),
            "packet",
            || {
                let message = format!("the place of {packets} packets in a frame is unknown");
                (message, "set `packet` or `position`".to_owned())
            },
        );
        let last = self
            .last
            .map_or(payload, |last| check.size("last", last, 1, payload));
        let part = self.part.as_ref();
        let parts = part.map_or_else(Parts::default, |part| {
            part.parts(Readable::Fields(header), check)
        });
        let in_frame = u64::from(packets) * u64::from(parts.max_count());
        check.must(in_frame < u64::from(u32::MAX), "packets", || {
            (
                format!(
                    "a frame has more packets than the maximum of {}",
                    u32::MAX - 1
                ),
                "lower `packets`".to_owned(),
            )
        });
        let place = match &self.sequence {
            None => place,
            Some(number) => {
                self.check_remainder(number, packets, check);
                self.packets?;
                Place::Remainder
            }
        };
        Some(FrameNumbers {
            place,
            packets,
            parts,
            payload,
            last,
        })
    }

    /// Checks frames that are formed from sequence numbers.
    fn check_remainder(&self, number: &FieldKeys, packets: u32, check: &mut Check) {
        for (is_set, key) in [(self.part.is_some(), "part"), (self.last.is_some(), "last")] {
            check.must(!is_set || self.packets.is_some(), key, || {
                let message = format!("`{key}` needs frames of a fixed number of packets");
                (
                    message,
                    "set `frame`, or `packets` beside `sequence`".to_owned(),
                )
            });
        }
        let units = u64::from(packets).saturating_mul(number.step);
        let bits = number.field().bits();
        let wraps_in_frame = bits < 64 && !units.is_power_of_two();
        check.must(self.packets.is_none() || bits >= 64 || units < 1 << bits, "packets", || {
            let message = format!("a sequence number of {bits} bits contains no frame number if a frame has {packets} packets");
            (message, "set `frame` with the number of the frame, and `packet`; or fewer `packets`".to_owned())
        });
        check.must(self.packets.is_none() || !wraps_in_frame, "packets", || {
            let message = format!("the sequence number wraps inside a frame of {packets} packets");
            (message, "set a power of two".to_owned())
        });
        check.must(
            self.packets.is_none() || number.step == 1,
            "sequence.step",
            || {
                let message =
                    "frames of a fixed number of packets need consecutive sequence numbers"
                        .to_owned();
                (
                    message,
                    "remove `step`, or skip the lowest bits with `shift`".to_owned(),
                )
            },
        );
    }
}

/// Returns the range of a number that does not use all its bits.
fn range(number: &FieldKeys) -> Option<NumberRange> {
    let [first, last] = number.range?;
    Some(NumberRange::new(first, last))
}

fn check_number(number: &FieldKeys, key: &str, header: usize, check: &mut Check) {
    let bits = number.checked(key, header, check).bits();
    if let Some([first, last]) = number.range {
        let highest = u64::MAX >> (64 - number.field().bits());
        let is_valid = first < last && last <= highest && last - first < u64::MAX;
        check.must(is_valid, &format!("{key}.range"), || {
            (
                format!("[{first}, {last}] is not a range of numbers up to {highest}"),
                "set the lowest and the highest number that the sender uses".to_owned(),
            )
        });
        let count = NumberRange::new(first, last).count();
        check.must(
            count.is_multiple_of(number.step.max(1)),
            &format!("{key}.step"),
            || {
                let message = format!("the {count} numbers of `range` are not whole steps");
                (message, "correct `range` or `step`".to_owned())
            },
        );
    }
    check.step(&format!("{key}.step"), number.step, bits);
}
