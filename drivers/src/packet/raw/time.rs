//! The time in the header: one number of ticks, or whole seconds and a number of ticks.

use super::{Endian, Field};
use crate::packet::checks::Check;
use crate::packet::field::FieldKeys;
use crate::packet::{TimeScale, TimeWrap};
use daq_core::units::{Frequency, Period, UtcTime};
use schemars::JsonSchema;
use serde::Deserialize;

/// The time in the header of a `raw` packet. Set at most one of `tick` and `rate`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimestampConfig {
    /// Offset in bytes from the start of the packet.
    pub offset: usize,
    /// Size in bytes, 1 to 8.
    pub bytes: usize,
    /// Byte order of the field; default `"big"`.
    #[serde(default)]
    pub endian: Endian,
    /// Number of significant bits of the ticks, by default all. A time that wraps is continued: it is the one nearest to the times
    /// before it, and the first is the one nearest to the host's clock if `origin` is set.
    pub bits: Option<u32>,
    /// Number of lowest bits that are not part of the ticks.
    #[serde(default)]
    pub shift: u32,
    /// Duration of one tick, such as `"8 ns"` or `"1 ps"`; default `"1 ns"` unless `rate` is set.
    pub tick: Option<Period>,
    /// Number of ticks per second, a whole number of Hz. Use it if a tick is not a whole number of nanoseconds.
    pub rate: Option<Frequency>,
    /// The whole seconds of the time, if it has two parts. The ticks then count from the start of the second: `tick = "1 ns"`
    /// for nanoseconds, or `rate = "4294967296 Hz"` for a binary fraction of 32 bits.
    pub seconds: Option<SecondsConfig>,
    /// UTC time of tick 0, or of second 0 if `seconds` is set: `"2026-11-22T10:00:00Z"` (RFC 3339), or the time since
    /// 1970-01-01T00:00:00Z such as `"10 s"`. If it is set, timestamps are UTC (clock `sensor-utc`) and files contain
    /// `core:datetime`; the time must not skip or repeat leap seconds. Otherwise, timestamps are the time in nanoseconds (clock
    /// `sensor`).
    pub origin: Option<UtcTime>,
}

/// The position of the whole seconds of a time in two parts.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecondsConfig {
    /// Offset in bytes from the start of the packet.
    pub offset: usize,
    /// Size in bytes, 1 to 8.
    pub bytes: usize,
    /// Byte order of the field; default `"big"`.
    #[serde(default)]
    pub endian: Endian,
}

impl TimestampConfig {
    /// Returns the time in headers of `header` bytes.
    pub(super) fn time(&self, header: usize, check: &mut Check) -> HeaderTime {
        let keys = FieldKeys::new(self.offset, self.bytes, self.endian).cut(self.bits, self.shift);
        let ticks = keys.checked("timestamp", header, check);
        let scale = check.scale(self.tick, self.rate, self.origin);
        let time = HeaderTime::new(ticks, scale).declared(self.bits.is_some());
        let Some(seconds) = &self.seconds else {
            return time;
        };
        let keys = FieldKeys::new(seconds.offset, seconds.bytes, seconds.endian);
        time.after(keys.checked("timestamp.seconds", header, check))
    }
}

/// The time in a header.
#[derive(Clone, Debug)]
pub(super) struct HeaderTime {
    ticks: Field,
    /// The whole seconds and the scale of the ticks after them, if the time has two parts.
    seconds: Option<(Field, TimeScale)>,
    /// The scale of the numbers that [`read`](Self::read) returns.
    pub(super) scale: TimeScale,
    /// Set if the time repeats because its field wraps.
    pub(super) wrap: Option<TimeWrap>,
}

impl HeaderTime {
    /// Returns a time of one number.
    pub(super) fn new(ticks: Field, scale: TimeScale) -> Self {
        Self {
            ticks,
            seconds: None,
            scale,
            wrap: TimeWrap::new(&scale, 1 << ticks.bits()),
        }
    }

    /// Sets whether the configuration declares the number of bits of the ticks.
    fn declared(self, is_declared: bool) -> Self {
        let wrap = self.wrap.map(|wrap| wrap.declared(is_declared));
        Self { wrap, ..self }
    }

    /// Drops the times of previous packets.
    pub(super) fn restart(&mut self) {
        let wrap = self.wrap.take();
        self.wrap = wrap.and_then(|wrap| wrap.restarted(&self.scale));
    }

    /// Returns a time in two parts: `seconds`, and the ticks after them. It is read in nanoseconds.
    fn after(self, seconds: Field) -> Self {
        let of_ticks = TimeScale {
            origin_ns: None,
            ..self.scale
        };
        let scale = TimeScale {
            nanoseconds: 1,
            ticks: 1,
            ..self.scale
        };
        Self {
            seconds: Some((seconds, of_ticks)),
            scale,
            wrap: TimeWrap::new(&scale, 1_000_000_000 << seconds.bits()),
            ..self
        }
    }

    /// Returns the time in ticks, or in nanoseconds if it has two parts. Returns `None` if `header` ends before the end of a
    /// field.
    #[inline]
    pub(super) fn read(&self, header: &[u8]) -> Option<u64> {
        let ticks = self.ticks.read(header)?;
        match &self.seconds {
            None => Some(ticks),
            Some((seconds, scale)) => Some(scale.ns_after(seconds.read(header)?, ticks)),
        }
    }

    /// Writes a time as [`read`](Self::read) returns it.
    pub(super) fn write(&self, header: &mut [u8], time: u64) {
        let ticks = match &self.seconds {
            None => time,
            Some((field, scale)) => {
                let (seconds, ticks) = scale.parts_at(time);
                field.write(header, seconds);
                ticks
            }
        };
        self.ticks.write(header, ticks);
    }
}

#[cfg(test)]
mod tests {
    use crate::packet::{Format, Parsed, RawConfig};
    use daq_core::frame::{Clock, Timestamp};

    fn format(timestamp: &str) -> Format {
        let text = format!(
            "header = 24\npayload = 4\nsequence = {{ offset = 0, bytes = 4 }}\ntimestamp = {timestamp}"
        );
        toml::from_str::<RawConfig>(&text).unwrap().build().unwrap()
    }

    fn time(format: &mut Format, packet: &[u8]) -> Timestamp {
        let Ok(Parsed::Data(data)) = format.parse(packet) else {
            panic!("{packet:?}")
        };
        format.time(data.timestamp, Timestamp::default())
    }

    #[test]
    fn seconds_and_fraction_are_one_time() {
        let mut packet = [0; 28];
        packet[8..14].copy_from_slice(&1_700_000_000_u64.to_be_bytes()[2..]);
        packet[14..18].copy_from_slice(&999_999_u32.to_be_bytes());
        let two = "offset = 14, bytes = 4, tick = \"1 us\", seconds = { offset = 8, bytes = 6 }";
        let mut sensor = format(&format!("{{ {two} }}"));
        let mut utc = format(&format!("{{ {two}, origin = \"10 s\" }}"));
        assert_eq!(
            time(&mut sensor, &packet),
            Timestamp {
                ns: 1_700_000_000_999_999_000,
                clock: Clock::Sensor
            }
        );
        assert_eq!(
            time(&mut utc, &packet),
            Timestamp {
                ns: 1_700_000_010_999_999_000,
                clock: Clock::SensorUtc
            }
        );
        // A binary fraction of 32 bits: three quarters of a second.
        packet[14..18].copy_from_slice(&[0xc0, 0, 0, 0]);
        let mut binary = format(
            "{ offset = 14, bytes = 4, rate = \"4294967296 Hz\", seconds = { offset = 8, bytes = 6 } }",
        );
        assert_eq!(time(&mut binary, &packet).ns, 1_700_000_000_750_000_000);
    }

    #[test]
    fn built_times_in_two_parts_are_read_again() {
        for ticks in [
            "tick = \"1 ns\"",
            "tick = \"1 us\"",
            "rate = \"4294967296 Hz\"",
        ] {
            let mut format = format(&format!(
                "{{ offset = 14, bytes = 4, {ticks}, endian = \"little\", seconds = {{ offset = 8, bytes = 4 }}, origin = \"0 s\" }}"
            ));
            let scale = format.time_scale().unwrap();
            for ns in [
                0,
                5_000,
                7_000_000_000,
                7_999_999_000,
                1_700_000_000_123_456_000,
            ] {
                let mut packet = Vec::new();
                format.build(1, 0, Some(scale.ticks_at(ns)), &[0; 4], &mut packet);
                assert_eq!(time(&mut format, &packet).ns, ns, "{ticks}");
            }
            // Between two ticks, the time is rounded up, also to the next second.
            let mut packet = Vec::new();
            format.build(1, 0, Some(7_999_999_999), &[0; 4], &mut packet);
            let found = time(&mut format, &packet).ns;
            assert!((7_999_999_999..=8_000_000_000).contains(&found), "{ticks}");
        }
    }

    #[test]
    fn seconds_outside_the_header_are_refused() {
        let text = "header = 16\npayload = 4\nsequence = { offset = 0, bytes = 4 }\n\
                    timestamp = { offset = 8, bytes = 4, seconds = { offset = 12, bytes = 9 } }";
        let found = toml::from_str::<RawConfig>(text)
            .unwrap()
            .build()
            .unwrap_err();
        let keys: Vec<_> = found
            .iter()
            .filter_map(|problem| problem.key.as_deref())
            .collect();
        assert_eq!(
            keys,
            [
                "format.timestamp.seconds.bytes",
                "format.timestamp.seconds.offset"
            ]
        );
    }
}
