//! The times at which packets are sent.

use daq_core::units::BitRate;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::time::{Duration, Instant};

/// The rate at which packets are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// At the sample rate `samples.rate`.
    Realtime,
    /// As fast as the ring accepts data.
    Free,
    /// At a payload rate.
    Payload(BitRate),
}

impl<'de> Deserialize<'de> for Pace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Pace;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"realtime\", \"free\" or a payload rate such as \"100 Mbit/s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Pace, E> {
                match text {
                    "realtime" => Ok(Pace::Realtime),
                    "free" => Ok(Pace::Free),
                    _ if text
                        .trim_start()
                        .starts_with(|c: char| c.is_ascii_digit() || c == '-') =>
                    {
                        text.parse().map(Pace::Payload).map_err(E::custom)
                    }
                    _ => Err(E::custom(format!(
                        "\"{text}\" is neither \"realtime\" nor \"free\" nor a payload rate; try \"100 Mbit/s\""
                    ))),
                }
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl JsonSchema for Pace {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Pace".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let rate = generator.subschema_for::<BitRate>();
        schemars::json_schema!({
            "anyOf": [{ "enum": ["realtime", "free"] }, rate],
            "examples": ["realtime", "free", "100 Mbit/s"],
        })
    }
}

/// An absolute schedule: packet `i` is due `(i + 1) / rate` seconds after the start, when its last sample is taken.
///
/// A sender that falls behind catches up, so the rate does not drift.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    start: Instant,
    /// Number of packets per second.
    rate: f64,
}

impl Pacer {
    /// Creates a schedule from `start` with `rate` packets per second.
    pub const fn new(start: Instant, rate: f64) -> Self {
        Self { start, rate }
    }

    /// Returns the number of packets due from the start until `now`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "never negative; saturates"
    )]
    pub fn due(&self, now: Instant) -> u64 {
        (now.saturating_duration_since(self.start).as_secs_f64() * self.rate) as u64
    }

    /// Returns the time from `now` until the packet after the first `made` packets is due, at least one nanosecond.
    pub fn until(&self, now: Instant, made: u64) -> Duration {
        let due =
            Duration::try_from_secs_f64((made as f64 + 1.0) / self.rate).unwrap_or(Duration::MAX);
        due.saturating_sub(now.saturating_duration_since(self.start))
            .max(Duration::from_nanos(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// After the returned wait, exactly one more packet is due, so the rate does not drift.
        #[test]
        fn wait_makes_the_next_packet_due(rate in 0.1_f64..1e7, seconds in 0.0_f64..1e5) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and not negative")]
            let made = (seconds * rate) as u64;
            let pacer = Pacer::new(Instant::now(), rate);
            let wait = pacer.until(pacer.start, made);
            let early = pacer.due(pacer.start + wait.saturating_sub(Duration::from_nanos(2)));
            prop_assert!(early <= made, "{early}");
            let due = pacer.due(pacer.start + wait + Duration::from_nanos(2));
            prop_assert!(due > made && due <= made + 1, "{due}");
        }
    }

    #[test]
    fn late_packets_are_due_immediately() {
        let pacer = Pacer::new(Instant::now(), 1000.0);
        let now = pacer.start + Duration::from_millis(500);
        assert_eq!(pacer.due(now), 500);
        assert_eq!(pacer.until(now, 10), Duration::from_nanos(1));
        assert_eq!(pacer.until(now, 500), Duration::from_millis(1));
        assert_eq!(pacer.due(pacer.start), 0);
    }

    #[test]
    fn paces_are_parsed() {
        #[derive(Debug, Deserialize)]
        struct Keys {
            pace: Pace,
        }
        let read = |pace: &str| {
            toml::from_str::<Keys>(&format!("pace = \"{pace}\"")).map(|keys| keys.pace)
        };
        assert_eq!(read("realtime").unwrap(), Pace::Realtime);
        assert_eq!(read("free").unwrap(), Pace::Free);
        assert_eq!(read("100 Mbit/s").unwrap(), Pace::Payload(BitRate(100e6)));
        assert!(read("fast").unwrap_err().message().contains("neither"));
        assert!(read("100 Mbits").unwrap_err().message().contains("unit"));
    }
}
