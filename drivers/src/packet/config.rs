//! The keys of `[source.NAME.format]`, and the format built from them.

use super::spead::Given;
use super::{Endian, Field, Format, PacketLayout, Raw, Spead, TimeScale};
use daq_core::config::Problem;
use daq_core::units::{ByteSize, Frequency, Period, UtcTime};
use schemars::JsonSchema;
use serde::Deserialize;

/// Maximum size in bytes of a UDP payload over IPv4.
const LARGEST_PACKET: usize = 65_507;
/// Size in bytes of a SPEAD header with the four mandatory items.
const SPEAD_HEADER: usize = 40;

/// An unsigned number at a fixed position of the header.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SequenceConfig {
    /// Offset in bytes from the start of the packet.
    pub offset: usize,
    /// Size in bytes, 1 to 8.
    pub bytes: usize,
    /// Byte order of the field.
    #[serde(default)]
    pub endian: Endian,
    /// Increment of the number from one packet to the next.
    #[serde(default = "one")]
    pub step: u64,
    /// Number of significant bits, by default all. The sequence number wraps at 2 to the power of `bits`.
    pub bits: Option<u32>,
    /// Number of lowest bits that are not part of the number.
    #[serde(default)]
    pub shift: u32,
}

/// The time in the header of a `raw` packet. Set at most one of `tick` and `rate`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimestampConfig {
    /// Offset in bytes from the start of the packet.
    pub offset: usize,
    /// Size in bytes, 1 to 8.
    pub bytes: usize,
    /// Byte order of the field.
    #[serde(default)]
    pub endian: Endian,
    /// Duration of one tick, such as `"8 ns"` or `"1 ps"`; default `"1 ns"` unless `rate` is set.
    pub tick: Option<Period>,
    /// Number of ticks per second, a whole number of Hz. Use it if a tick is not a whole number of nanoseconds.
    pub rate: Option<Frequency>,
    /// UTC time of tick 0: `"2026-11-22T10:00:00Z"` (RFC 3339), or the time since 1970-01-01T00:00:00Z such as `"10 s"`. If it
    /// is set, timestamps are UTC (clock `sensor-utc`) and files contain `core:datetime`; the ticks must not skip or repeat
    /// leap seconds. Otherwise, timestamps are the ticks in nanoseconds (clock `sensor`).
    pub origin: Option<UtcTime>,
}

/// `kind = "raw"`: a fixed header with a sequence number, a fixed payload, optionally a trailer.
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
    pub sequence: SequenceConfig,
    /// The time of a packet, if the header contains it.
    pub timestamp: Option<TimestampConfig>,
}

/// The time in an item of a `spead` heap. Set at most one of `tick` and `rate`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemConfig {
    /// Identifier of the item, as in `0x1600`; the item must be immediate, with its value in the item pointer.
    pub item: u64,
    /// Duration of one tick, such as `"8 ns"` or `"1 ps"`; default `"1 ns"` unless `rate` is set.
    pub tick: Option<Period>,
    /// Number of ticks per second, a whole number of Hz. Use it if a tick is not a whole number of nanoseconds.
    pub rate: Option<Frequency>,
    /// UTC time of tick 0: `"2026-11-22T10:00:00Z"` (RFC 3339), or the time since 1970-01-01T00:00:00Z such as `"10 s"`. If it
    /// is set, timestamps are UTC (clock `sensor-utc`) and files contain `core:datetime`; the ticks must not skip or repeat
    /// leap seconds. Otherwise, timestamps are the ticks in nanoseconds (clock `sensor`).
    pub origin: Option<UtcTime>,
}

/// `kind = "spead"`: heaps of SPEAD version 4; one heap is one frame.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeadConfig {
    /// Number of payload bytes in a heap. By default, daq detects the number from the first heaps and then fixes it; the
    /// maximum is the `slot` of the ring. Heaps of another length are counted as `control` and logged once.
    pub heap: Option<ByteSize>,
    /// Number of payload bytes in each packet except the first and the last of a heap. By default, daq detects the number from
    /// the first heaps.
    pub packet: Option<ByteSize>,
    /// Number of payload bytes in the first packet of a heap, if it is smaller than `packet`. Senders that do not repeat item
    /// pointers have 8 bytes less payload in this packet for each item of the heap. Default: `packet`, or detected if `heap` or
    /// `packet` is detected.
    pub first: Option<ByteSize>,
    /// Increment of the heap counter from one heap to the next. Default: 1, or detected if `heap` or `packet` is detected.
    pub heap_step: Option<u64>,
    /// Number of bits of an address: 40 for SPEAD-64-40, 48 for SPEAD-64-48. Default: 40, or detected if `heap` or `packet` is
    /// detected.
    pub address_bits: Option<u32>,
    /// The item that contains the time of a heap's first sample.
    pub timestamp: Option<ItemConfig>,
}

fn one() -> u64 {
    1
}

/// Collects problems, with keys relative to the source's section.
struct Check(Vec<Problem>);

impl Check {
    fn must(&mut self, holds: bool, key: &str, message: impl FnOnce() -> (String, String)) {
        if !holds {
            let (message, help) = message();
            self.0
                .push(Problem::at(format!("format.{key}"), message).help(help));
        }
    }

    fn size(&mut self, key: &str, size: ByteSize, min: usize, max: usize) -> usize {
        let bytes = size.bytes().unwrap_or(usize::MAX);
        self.must((min..=max).contains(&bytes), key, || {
            let (min, max) = (ByteSize(min as u64), ByteSize(max as u64));
            (
                format!("{size} is not between {min} and {max}"),
                "set the size that the sender uses".to_owned(),
            )
        });
        bytes
    }

    /// Checks that a field of `bytes` bytes at `offset` is readable in a header of `header` bytes.
    fn field(&mut self, key: &str, offset: usize, bytes: usize, header: usize) {
        self.must((1..=8).contains(&bytes), &format!("{key}.bytes"), || {
            (
                format!("a number must have 1 to 8 bytes, not {bytes}"),
                "set a number of bytes from 1 to 8".to_owned(),
            )
        });
        self.must(offset.checked_add(bytes).is_some_and(|end| end <= header), &format!("{key}.offset"), || {
            let message = format!("{bytes} bytes at offset {offset} exceed the header of {header} bytes");
            (message, "offsets count from the start of the packet; enlarge `header` or lower `offset`".to_owned())
        });
    }

    fn step(&mut self, key: &str, step: u64, bits: u32) {
        let max = if bits >= 64 {
            u64::MAX / 2
        } else {
            (1 << bits) / 2
        };
        let max = max.max(1);
        self.must((1..=max).contains(&step), key, || {
            let message = format!(
                "increment {step} is invalid for a {bits}-bit number: it must be 1 to {max}"
            );
            (
                message,
                "set the increment from one number to the next, at least 1".to_owned(),
            )
        });
    }

    fn scale(
        &mut self,
        tick: Option<Period>,
        rate: Option<Frequency>,
        origin: Option<UtcTime>,
    ) -> TimeScale {
        self.must(tick.is_none() || rate.is_none(), "timestamp.rate", || {
            (
                "`tick` and `rate` both set the duration of a tick".to_owned(),
                "set only `tick` or only `rate`".to_owned(),
            )
        });
        let mut scale = TimeScale {
            nanoseconds: 1,
            ticks: 1,
            origin_ns: origin.map(|origin| origin.0),
        };
        if let Some(tick) = tick {
            // `tick` is in picoseconds, so 1000 ticks last `tick` nanoseconds. This fraction is reduced if possible.
            let in_ns = if tick.0.is_multiple_of(1000) { 1000 } else { 1 };
            (scale.nanoseconds, scale.ticks) = (tick.0 / in_ns, 1000 / in_ns);
            self.must(tick.0 > 0, "timestamp.tick", || {
                (
                    format!("a tick must be longer than zero, not {tick}"),
                    "set a time such as \"8 ns\"".to_owned(),
                )
            });
        } else if let Some(rate) = rate {
            let is_whole = rate.0 >= 1.0 && rate.0 <= 1e18 && rate.0.fract() == 0.0;
            self.must(is_whole, "timestamp.rate", || {
                (
                    format!("{rate} is not a whole number of Hz"),
                    "set a rate such as \"1712 MHz\"".to_owned(),
                )
            });
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the range is checked above; if the check fails, the value is not used"
            )]
            let ticks = rate.0 as u64;
            (scale.nanoseconds, scale.ticks) = (1_000_000_000, ticks.max(1));
        }
        scale
    }

    fn end(self, format: Format) -> Result<Format, Vec<Problem>> {
        if self.0.is_empty() {
            Ok(format)
        } else {
            Err(self.0)
        }
    }
}

impl RawConfig {
    /// Returns the format, or every problem of the configuration.
    pub fn build(&self) -> Result<Format, Vec<Problem>> {
        let mut check = Check(Vec::new());
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
        let sequence = &self.sequence;
        check.field("sequence", sequence.offset, sequence.bytes, header);
        let width = u32::try_from(sequence.bytes.clamp(1, 8) * 8).unwrap_or(64);
        let bits = sequence
            .bits
            .unwrap_or_else(|| width.saturating_sub(sequence.shift).max(1));
        let fits = bits >= 1
            && bits
                .checked_add(sequence.shift)
                .is_some_and(|end| end <= width);
        check.must(
            fits,
            if sequence.bits.is_some() {
                "sequence.bits"
            } else {
                "sequence.shift"
            },
            || {
                let shift = sequence.shift;
                let message = format!("{bits} bits after a shift of {shift} bits exceed the {width} bits of the number");
                (
                    message,
                    "lower `bits` or `shift`, or raise `bytes`".to_owned(),
                )
            },
        );
        check.step("sequence.step", sequence.step, bits);
        let field = Field::new(
            sequence.offset,
            sequence.bytes,
            sequence.endian,
            sequence.shift,
            bits,
        );
        let mut raw = Raw::new(header, payload, trailer, field, sequence.step);
        if let Some(time) = &self.timestamp {
            check.field("timestamp", time.offset, time.bytes, header);
            let scale = check.scale(time.tick, time.rate, time.origin);
            raw = raw.timestamped(
                Field::new(time.offset, time.bytes, time.endian, 0, 64),
                scale,
            );
        }
        check.end(Format::Raw(raw))
    }
}

impl SpeadConfig {
    /// Returns the format, or every problem of the configuration.
    pub fn build(&self) -> Result<Format, Vec<Problem>> {
        let mut check = Check(Vec::new());
        let max = LARGEST_PACKET - SPEAD_HEADER;
        let mut size =
            |key, size: Option<ByteSize>, max| size.map(|size| check.size(key, size, 1, max));
        let packet = size("packet", self.packet, max);
        let first = size("first", self.first, max);
        // Packet indices have 32 bits. A heap of 1 TiB cannot exceed that at any realistic packet size.
        let heap = size("heap", self.heap, 1 << 40);
        let address_bits = self.address_bits.unwrap_or(40);
        check.must(matches!(address_bits, 40 | 48), "address_bits", || {
            let message = format!("SPEAD-64-{address_bits} is not supported");
            (message, "set `address_bits` to 40 or 48".to_owned())
        });
        let step = self.heap_step.unwrap_or(1);
        check.step("heap_step", step, address_bits.clamp(1, 48));
        let mut spead = match (heap, packet) {
            (Some(heap), Some(packet)) => {
                check.must(
                    heap.div_ceil(packet.max(1)) < u32::MAX as usize,
                    "packet",
                    || {
                        (
                            format!(
                                "a heap of {heap} bytes holds more packets of {packet} bytes than the maximum of {}",
                                u32::MAX - 1
                            ),
                            "set larger packets".to_owned(),
                        )
                    },
                );
                let layout = PacketLayout {
                    unit_bytes: heap,
                    first: first.unwrap_or(packet),
                    rest: packet,
                };
                Spead::new(address_bits, layout, step)
            }
            _ => Spead::detecting(Given {
                heap,
                packet,
                first,
                step: self.heap_step,
                address_bits: self.address_bits,
            }),
        };
        if let Some(time) = &self.timestamp {
            let bits = 63 - address_bits.clamp(8, 56);
            check.must(
                (7..1 << bits).contains(&time.item),
                "timestamp.item",
                || {
                    let message = format!(
                        "{:#x} is reserved by SPEAD or too large, so it cannot be the identifier of the sender's timestamp item",
                        time.item
                    );
                    (
                        message,
                        format!(
                            "set the identifier that the sender uses, 0x7 to {:#x}",
                            (1u64 << bits) - 1
                        ),
                    )
                },
            );
            let scale = check.scale(time.tick, time.rate, time.origin);
            spead = spead.timestamped(time.item, scale);
        }
        check.end(Format::Spead(spead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::frame::Clock;

    fn raw(text: &str) -> Result<Format, Vec<Problem>> {
        toml::from_str::<RawConfig>(text).unwrap().build()
    }

    fn spead(text: &str) -> Result<Format, Vec<Problem>> {
        toml::from_str::<SpeadConfig>(text).unwrap().build()
    }

    fn keys(result: Result<Format, Vec<Problem>>) -> Vec<String> {
        result
            .unwrap_err()
            .iter()
            .filter_map(|problem| problem.key.clone())
            .collect()
    }

    #[test]
    fn format_examples_are_valid() {
        for entry in super::super::FORMATS {
            let (kind, rest) = entry.example.split_once('\n').unwrap();
            assert_eq!(
                kind.split_whitespace().collect::<String>(),
                format!("kind={:?}", entry.name)
            );
            match entry.name {
                "raw" => drop(raw(rest).unwrap()),
                "spead" => drop(spead(rest).unwrap()),
                other => panic!("no test for {other}"),
            }
        }
    }

    #[test]
    fn all_problems_are_reported_together() {
        let found = raw(r#"
            header = "8 B"
            payload = "70 KB"
            sequence = { offset = 4, bytes = 8, bits = 65, step = 0 }
            timestamp = { offset = 8, bytes = 9, tick = "0 s", rate = "1 Hz" }
        "#
        .replace("KB", "kB")
        .as_str());
        let expected = [
            "payload",
            "sequence.offset",
            "sequence.bits",
            "sequence.step",
            "timestamp.bytes",
            "timestamp.offset",
            "timestamp.rate",
            "timestamp.tick",
        ];
        assert_eq!(keys(found), expected.map(|key| format!("format.{key}")));
        let found = spead(
            r#"
            heap = 0
            packet = "70 kB"
            address_bits = 44
            heap_step = 0
            timestamp = { item = 3, rate = "1.5 Hz" }
        "#,
        );
        let expected = [
            "packet",
            "heap",
            "address_bits",
            "heap_step",
            "timestamp.item",
            "timestamp.rate",
        ];
        assert_eq!(keys(found), expected.map(|key| format!("format.{key}")));
    }

    #[test]
    fn declared_format_is_parsed_as_declared() {
        let format = raw(r#"
            header = 16
            payload = "1 KiB"
            sequence = { offset = 2, bytes = 4, endian = "little", step = 8, bits = 20, shift = 4 }
            timestamp = { offset = 8, bytes = 8, rate = "1712 MHz", origin = "10 s" }
        "#)
        .unwrap();
        let numbering = format.numbering();
        assert_eq!((numbering.width, numbering.step), (20, 8));
        assert_eq!(
            format.time_scale().unwrap().ns(1_712_000_000),
            11_000_000_000
        );
        let format = spead("heap = 4000\npacket = 1432\nfirst = 1416\naddress_bits = 48").unwrap();
        assert_eq!(format.numbering().packets_per_unit, 3);
        assert_eq!(format.packet_layout().range(1), 1416..2848);
    }

    #[test]
    fn time_has_picosecond_tick_and_utc_origin() {
        let scale = |keys: &str| {
            let text = "header = 16\npayload = 16\nsequence = { offset = 0, bytes = 8 }\n";
            let time = format!("{text}timestamp = {{ offset = 8, bytes = 8{keys} }}");
            raw(&time).unwrap().time_scale().unwrap()
        };
        assert_eq!(scale(", tick = \"1 ps\"").ns(1_500_999), 1500);
        assert_eq!(scale(", tick = \"0.25 ns\"").ns(10), 2);
        assert_eq!(
            scale(", tick = \"8 ns\"").ns(u64::MAX / 8),
            u64::MAX / 8 * 8
        );
        for origin in ["2023-11-14T22:13:20Z", "1700000000 s"] {
            let scale = scale(&format!(", origin = \"{origin}\""));
            assert_eq!(
                (scale.ns(7), scale.clock()),
                (1_700_000_000_000_000_007, Clock::SensorUtc)
            );
        }
        assert_eq!((scale("").ns(7), scale("").clock()), (7, Clock::Sensor));
    }

    #[test]
    fn unknown_format_keys_are_rejected() {
        assert!(toml::from_str::<SpeadConfig>("heap = 4000\npacket = 1432\npackets = 3").is_err());
    }
}
