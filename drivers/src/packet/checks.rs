//! Checks of the keys of `[source.NAME.format]`.

use super::{Format, TimeScale};
use daq_core::config::Problem;
use daq_core::units::{ByteSize, Frequency, Period, UtcTime};

/// Maximum size in bytes of a UDP payload over IPv4.
pub(super) const LARGEST_PACKET: usize = 65_507;

/// The lowest identifier of SPEAD items that the protocol does not define.
pub(super) const FIRST_ITEM: u64 = 7;

/// Collects problems, with keys relative to the source's section.
#[derive(Debug, Default)]
pub(super) struct Check(Vec<Problem>);

impl Check {
    pub(super) fn must(
        &mut self,
        holds: bool,
        key: &str,
        message: impl FnOnce() -> (String, String),
    ) {
        if !holds {
            let (message, help) = message();
            self.0
                .push(Problem::at(format!("format.{key}"), message).help(help));
        }
    }

    pub(super) fn size(&mut self, key: &str, size: ByteSize, min: usize, max: usize) -> usize {
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
    pub(super) fn field(&mut self, key: &str, offset: usize, bytes: usize, header: usize) {
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

    /// Checks that `bits` bits after a shift of `shift` bits are inside a number of `bytes` bytes. Returns the number of bits, by
    /// default all.
    pub(super) fn bits(&mut self, key: &str, bytes: usize, bits: Option<u32>, shift: u32) -> u32 {
        let width = u32::try_from(bytes.clamp(1, 8) * 8).unwrap_or(64);
        let wanted = bits.unwrap_or_else(|| width.saturating_sub(shift).max(1));
        let fits = wanted >= 1 && wanted.checked_add(shift).is_some_and(|end| end <= width);
        let wrong = if bits.is_some() { "bits" } else { "shift" };
        self.must(fits, &format!("{key}.{wrong}"), || {
            let message = format!(
                "{wanted} bits after a shift of {shift} bits exceed the {width} bits of the number"
            );
            (
                message,
                "lower `bits` or `shift`, or raise `bytes`".to_owned(),
            )
        });
        wanted
    }

    /// Checks the identifier of a SPEAD item, which must be below `end`.
    pub(super) fn item(&mut self, key: &str, item: u64, end: u64) {
        self.must((FIRST_ITEM..end).contains(&item), key, || {
            (
                format!("the item {item:#x} is reserved by SPEAD, or its identifier is too large"),
                format!(
                    "set the identifier that the sender uses, {FIRST_ITEM:#x} to {:#x}",
                    end - 1
                ),
            )
        });
    }

    pub(super) fn step(&mut self, key: &str, step: u64, bits: u32) {
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

    pub(super) fn scale(
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

    pub(super) fn end(self, format: Format) -> Result<Format, Vec<Problem>> {
        match self.problems() {
            problems if problems.is_empty() => Ok(format),
            problems => Err(problems),
        }
    }

    pub(super) fn problems(self) -> Vec<Problem> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::RawConfig;
    use daq_core::frame::Clock;

    fn raw(text: &str) -> Result<Format, Vec<Problem>> {
        toml::from_str::<RawConfig>(text).unwrap().build()
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
        let found = found.unwrap_err();
        let keys: Vec<_> = found
            .iter()
            .filter_map(|problem| problem.key.clone())
            .collect();
        assert_eq!(keys, expected.map(|key| format!("format.{key}")));
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
        let numbering = format.facts().numbering;
        assert_eq!((numbering.width, numbering.step), (20, 8));
        assert_eq!(
            format.time_scale().unwrap().ns(1_712_000_000),
            11_000_000_000
        );
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
}
