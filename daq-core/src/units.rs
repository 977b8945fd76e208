//! Quantities that are written with their unit, such as `"4 MiB"`, `"10 us"`, `"25 Gbit/s"`, `"44.1 kHz"`.
//!
//! Each type can be parsed from text and from TOML. Its `Display` output parses to the same value. Units are
//! case-sensitive, because `Mb` and `MB` differ by a factor of eight. For a wrong letter case, the error shows the
//! correct unit.

mod datetime;

pub use datetime::{format_datetime, parse_datetime};

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A number of bytes; in TOML a string such as `"64 KiB"`, `"1 GB"`, or an integer.
///
/// ```
/// use daq_core::units::ByteSize;
/// assert_eq!("4 MiB".parse(), Ok(ByteSize(4 << 20)));
/// assert_eq!("1.5kB".parse(), Ok(ByteSize(1500)));
/// assert_eq!(ByteSize(65536).to_string(), "64 KiB");
/// let error = "4 mib".parse::<ByteSize>().unwrap_err();
/// assert_eq!(error.to_string(), r#""4 mib" is not a size: unknown unit "mib"; try "4 MiB""#);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A duration with a resolution of 1 ns; in TOML a string such as `"10 us"`, `"1.5 s"`, `"5 min"`.
///
/// ```
/// use daq_core::units::Span;
/// use std::time::Duration;
/// assert_eq!("10 us".parse(), Ok(Span(Duration::from_micros(10))));
/// assert_eq!(Span(Duration::from_millis(1500)).to_string(), "1.5 s");
/// assert!("10".parse::<Span>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// Time that is longer than any program runs.
const CENTURY: Duration = Duration::from_hours(100 * 365 * 24);

/// Returns the time after `wait`. A wait that the clock cannot represent is limited to a hundred years.
///
/// ```
/// use std::time::{Duration, Instant};
/// let far = daq_core::units::deadline(Duration::MAX);
/// assert!(far > Instant::now() + Duration::from_secs(1 << 30));
/// ```
pub fn deadline(wait: Duration) -> Instant {
    Instant::now() + wait.min(CENTURY)
}

/// A data rate in bit/s; in TOML a string such as `"25 Gbit/s"`, `"100 MB/s"`, `"3 GiB/s"`.
///
/// ```
/// use daq_core::units::BitRate;
/// assert_eq!("25 Gbit/s".parse(), Ok(BitRate(25e9)));
/// assert_eq!("1 MiB/s".parse(), Ok(BitRate(8.0 * 1048576.0)));
/// assert_eq!(BitRate(1e8).to_string(), "100 Mbit/s");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct BitRate(pub f64);

/// A frequency or sample rate in Hz; in TOML a string such as `"44.1 kHz"`, `"1 MS/s"`.
///
/// ```
/// use daq_core::units::Frequency;
/// assert_eq!("44.1 kHz".parse(), Ok(Frequency(44_100.0)));
/// assert_eq!("1 MS/s".parse(), Ok(Frequency(1e6)));
/// assert_eq!(Frequency(2.5e9).to_string(), "2.5 GHz");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Frequency(pub f64);

/// A short duration, such as the period of a clock; in TOML a string such as `"250 ps"`, `"8 ns"`. The resolution is
/// 1 ps, and the maximum is 213 days.
///
/// ```
/// use daq_core::units::Period;
/// assert_eq!("1 ps".parse(), Ok(Period(1)));
/// assert_eq!("0.5 ns".parse(), Ok(Period(500)));
/// assert_eq!(Period(8000).to_string(), "8 ns");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(pub u64);

/// A point in time in nanoseconds since 1970-01-01T00:00:00Z; in TOML an RFC 3339 string such as
/// `"2026-11-22T10:00:00Z"`, or the time since 1970-01-01T00:00:00Z such as `"10 s"`. The latest year is 2554.
///
/// ```
/// use daq_core::units::UtcTime;
/// assert_eq!("1970-01-01T00:00:01Z".parse(), Ok(UtcTime(1_000_000_000)));
/// assert_eq!("1970-01-01T02:00:01.5+02:00".parse(), Ok(UtcTime(1_500_000_000)));
/// assert_eq!("10 s".parse(), Ok(UtcTime(10_000_000_000)));
/// assert_eq!(UtcTime(0).to_string(), "1970-01-01T00:00:00.000000000Z");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UtcTime(pub u64);

/// The error for a text that is not a valid quantity.
///
/// In the message, the text after `; try ` is an example of a valid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{read:?} is not a {wanted}: {why}; try {example:?}")]
pub struct UnitError {
    /// The text that was parsed.
    pub read: String,
    /// Name of the expected quantity, such as `size`.
    pub wanted: &'static str,
    /// Reason why the text is not valid.
    pub why: String,
    /// A valid value, as similar to the input as possible.
    pub example: String,
}

/// The name of a unit, and its size as a multiple of the base unit.
type Unit = (&'static str, u64);

/// One kind of quantity: its name, an example, and its units.
struct Quantity {
    wanted: &'static str,
    example: &'static str,
    /// The unit suggested for a number without one.
    suggested: &'static str,
    /// Units, from the smallest to the largest within each family. Suggestions prefer earlier units.
    units: &'static [Unit],
}

const BYTES: Quantity = Quantity {
    wanted: "size",
    // A size that packets, slots and buffers can have.
    example: "8 KiB",
    suggested: "B",
    units: &[
        ("B", 1),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ],
};

const TIME: Quantity = Quantity {
    wanted: "time",
    example: "10 ms",
    suggested: "s",
    units: &[
        ("ns", 1),
        ("us", 1000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("min", 60_000_000_000),
        ("h", 3_600_000_000_000),
        // The prefix is the micro sign or the Greek letter mu.
        ("\u{b5}s", 1000),
        ("\u{3bc}s", 1000),
    ],
};

const PERIOD: Quantity = Quantity {
    wanted: "period",
    example: "8 ns",
    suggested: "ns",
    units: &[
        ("ps", 1),
        ("ns", 1000),
        ("us", 1_000_000),
        ("ms", 1_000_000_000),
        ("s", 1_000_000_000_000),
        // The prefix is the micro sign or the Greek letter mu.
        ("\u{b5}s", 1_000_000),
        ("\u{3bc}s", 1_000_000),
    ],
};

const UTC: Quantity = Quantity {
    wanted: "time in UTC",
    example: "2026-11-22T10:00:00Z",
    suggested: "s",
    units: TIME.units,
};

const RATE: Quantity = Quantity {
    wanted: "data rate",
    example: "10 Gbit/s",
    suggested: "bit/s",
    units: &[
        ("bit/s", 1),
        ("kbit/s", 1000),
        ("Mbit/s", 1_000_000),
        ("Gbit/s", 1_000_000_000),
        ("Tbit/s", 1_000_000_000_000),
        ("B/s", 8),
        ("kB/s", 8000),
        ("MB/s", 8_000_000),
        ("GB/s", 8_000_000_000),
        ("KiB/s", 8 << 10),
        ("MiB/s", 8 << 20),
        ("GiB/s", 8 << 30),
    ],
};

const HERTZ: Quantity = Quantity {
    wanted: "frequency",
    example: "1 MHz",
    suggested: "Hz",
    units: &[
        ("Hz", 1),
        ("kHz", 1000),
        ("MHz", 1_000_000),
        ("GHz", 1_000_000_000),
        ("THz", 1_000_000_000_000),
        ("S/s", 1),
        ("kS/s", 1000),
        ("MS/s", 1_000_000),
        ("GS/s", 1_000_000_000),
    ],
};

impl Quantity {
    fn error(&self, read: &str, why: impl Into<String>) -> UnitError {
        UnitError {
            read: read.to_owned(),
            wanted: self.wanted,
            why: why.into(),
            example: self.example.to_owned(),
        }
    }

    /// Splits `text` into its number and the scale of its unit.
    fn split<'t>(&self, text: &'t str) -> Result<(&'t str, u64), UnitError> {
        let trimmed = text.trim();
        let end = trimmed
            .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_')))
            .unwrap_or(trimmed.len());
        let (number, unit) = (&trimmed[..end], trimmed[end..].trim_start());
        if !number.contains(|c: char| c.is_ascii_digit()) {
            let why = if trimmed.starts_with('-') {
                "it is negative"
            } else {
                "it does not start with a number"
            };
            return Err(self.error(text, why));
        }
        if let Some((_, scale)) = self.units.iter().find(|(name, _)| *name == unit) {
            return Ok((number, *scale));
        }
        let mut error = if unit.is_empty() {
            self.error(text, "the unit is missing")
        } else {
            self.error(text, format!("unknown unit {unit:?}"))
        };
        let nearest = if unit.is_empty() {
            Some(self.suggested.to_owned())
        } else {
            self.suggestion(unit).map(str::to_owned)
        };
        if let Some(nearest) = nearest {
            error.example = format!("{number} {nearest}");
        }
        Err(error)
    }

    /// Returns the unit of which `unit` is another spelling. Does not guess if `unit` is ambiguous: `m` is not read as
    /// `ms`, nor `Mb` as `MB`.
    fn suggestion(&self, unit: &str) -> Option<&'static str> {
        const NAMES: [(&str, &[&str]); 20] = [
            ("ps", &["psec", "picosecond", "picoseconds"]),
            ("ns", &["nsec", "nanosecond", "nanoseconds"]),
            ("us", &["usec", "microsecond", "microseconds"]),
            ("ms", &["msec", "millisecond", "milliseconds"]),
            ("s", &["sec", "secs", "second", "seconds"]),
            ("min", &["mins", "minute", "minutes"]),
            ("h", &["hr", "hrs", "hour", "hours"]),
            ("B", &["byte", "bytes", "octets"]),
            ("KiB", &["kib", "KBi", "KIB"]),
            ("MiB", &["mib", "MBi", "MIB"]),
            ("GiB", &["gib", "GBi", "GIB"]),
            ("TiB", &["tib", "TBi", "TIB"]),
            ("kB", &["KB"]),
            ("bit/s", &["bps", "bits/s", "b/s"]),
            ("kbit/s", &["kbps", "Kbps", "Kbit/s", "kbits/s"]),
            ("Mbit/s", &["Mbps", "mbps", "Mbits/s", "mbit/s"]),
            ("Gbit/s", &["Gbps", "gbps", "Gbits/s", "gbit/s"]),
            ("Tbit/s", &["Tbps", "tbps", "Tbits/s", "tbit/s"]),
            ("MS/s", &["Msps", "MSps", "MSPS"]),
            ("GS/s", &["Gsps", "GSps", "GSPS"]),
        ];
        let known = |name: &str| self.units.iter().find(|(known, _)| *known == name);
        let named = NAMES.iter().find(|(_, others)| others.contains(&unit));
        if let Some((name, _)) = named.and_then(|(name, _)| known(name)) {
            return Some(name);
        }
        // `mHz` (millihertz) and `Mb` (megabit) are different units, not misspellings of `MHz` and `MB`.
        let is_other = unit == "mHz" || unit.ends_with('b');
        let mut folded = self.units.iter().map(|(name, _)| *name);
        folded.find(|name| !is_other && name.eq_ignore_ascii_case(unit))
    }

    /// Parses a quantity that must be a whole number of base units, without rounding.
    fn integer(&self, text: &str) -> Result<u128, UnitError> {
        let (number, scale) = self.split(text)?;
        let digits: String = number.chars().filter(|c| *c != '_').collect();
        let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
        if fraction.contains('.') {
            return Err(self.error(text, "the number has two decimal points"));
        }
        let fraction = fraction.trim_end_matches('0');
        let too_large = || self.error(text, "the number is too large");
        let mut value: u128 = 0;
        for digit in whole.bytes().chain(fraction.bytes()) {
            value = value
                .checked_mul(10)
                .and_then(|v| v.checked_add(u128::from(digit - b'0')))
                .ok_or_else(too_large)?;
        }
        let value = value.checked_mul(u128::from(scale)).ok_or_else(too_large)?;
        let divisor = u32::try_from(fraction.len())
            .ok()
            .and_then(|n| 10_u128.checked_pow(n))
            .ok_or_else(|| self.error(text, "the number has too many digits"))?;
        if value % divisor != 0 {
            let smallest = self.units[0].0;
            return Err(self.error(text, format!("it is not a whole number of {smallest}")));
        }
        Ok(value / divisor)
    }

    /// Parses a quantity as a finite floating-point number of base units.
    fn float(&self, text: &str) -> Result<f64, UnitError> {
        let (number, scale) = self.split(text)?;
        let digits: String = number.chars().filter(|c| *c != '_').collect();
        let value: f64 = digits
            .parse()
            .map_err(|_| self.error(text, format!("{number:?} is not a number")))?;
        let value = value * scale as f64;
        if value.is_finite() {
            Ok(value)
        } else {
            Err(self.error(text, "the number is too large"))
        }
    }

    /// Formats `value` in the largest of the first `count` units in which the text parses to the same value.
    fn show_float(&self, value: f64, count: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, scale) in self.units[..count].iter().rev() {
            let scale = *scale as f64;
            let scaled = value / scale;
            if value >= scale && scaled * scale == value {
                let text = scaled.to_string();
                // A smaller unit is easier to read than a long fraction.
                if text.len() <= 9 {
                    return f.pad(&format!("{text} {name}"));
                }
            }
        }
        f.pad(&format!("{value} {}", self.units[0].0))
    }
}

/// Formats `value / scale` with at most `digits` decimals. Returns `None` if the result would not be exact.
fn exact_decimal(value: u128, scale: u128, digits: u32) -> Option<String> {
    let whole = value / scale;
    let rest = (value % scale) * 10_u128.pow(digits);
    if !rest.is_multiple_of(scale) {
        return None;
    }
    let fraction = format!("{:0width$}", rest / scale, width = digits as usize);
    let fraction = fraction.trim_end_matches('0');
    Some(if fraction.is_empty() {
        whole.to_string()
    } else {
        format!("{whole}.{fraction}")
    })
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = u128::from(self.0);
        let (binary, decimal) = BYTES.units.split_at(5);
        let shown = binary[1..]
            .iter()
            .rev()
            .find(|(_, scale)| self.0 >= *scale)
            .and_then(|(name, scale)| Some((*name, exact_decimal(value, u128::from(*scale), 2)?)))
            .or_else(|| {
                decimal
                    .iter()
                    .chain(&binary[1..])
                    .rev()
                    .find(|(_, scale)| self.0 != 0 && self.0.is_multiple_of(*scale))
                    .map(|(name, scale)| (*name, (self.0 / scale).to_string()))
            });
        match shown {
            Some((name, number)) => f.pad(&format!("{number} {name}")),
            None => f.pad(&format!("{} B", self.0)),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0.as_nanos();
        if value == 0 {
            return f.pad("0 s");
        }
        for (name, scale) in TIME.units[..6].iter().rev() {
            let scale = u128::from(*scale);
            let digits = if matches!(*name, "min" | "h") { 0 } else { 3 };
            if value >= scale
                && let Some(number) = exact_decimal(value, scale, digits)
            {
                return f.pad(&format!("{number} {name}"));
            }
        }
        f.pad(&format!("{value} ns"))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, scale) in PERIOD.units[..5].iter().rev() {
            if self.0 >= *scale
                && let Some(number) = exact_decimal(self.0.into(), (*scale).into(), 3)
            {
                return f.pad(&format!("{number} {name}"));
            }
        }
        f.pad(&format!("{} ps", self.0))
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format_datetime(self.0))
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RATE.show_float(self.0, 5, f)
    }
}

impl fmt::Display for Frequency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        HERTZ.show_float(self.0, 5, f)
    }
}

/// Formats a count and its noun, such as `1 frame` and `2 frames`. `noun` is the singular; its plural must end in `s`.
///
/// ```
/// use daq_core::units::counted;
/// assert_eq!(counted(1_u64, "frame"), "1 frame");
/// assert_eq!(counted(0_usize, "frame"), "0 frames");
/// ```
pub fn counted<N: Copy + fmt::Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let ending = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        u64::try_from(BYTES.integer(text)?)
            .map(Self)
            .map_err(|_| BYTES.error(text, "the number is too large"))
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let nanoseconds = TIME.integer(text)?;
        let seconds = u64::try_from(nanoseconds / 1_000_000_000)
            .map_err(|_| TIME.error(text, "the number is too large"))?;
        let rest = u32::try_from(nanoseconds % 1_000_000_000)
            .expect("a remainder modulo 10^9 fits in 32 bits");
        Ok(Self(Duration::new(seconds, rest)))
    }
}

impl FromStr for Period {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        u64::try_from(PERIOD.integer(text)?)
            .map(Self)
            .map_err(|_| PERIOD.error(text, "the number is too large"))
    }
}

impl FromStr for UtcTime {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if let Some(ns) = parse_datetime(text) {
            return Ok(Self(ns));
        }
        // The text begins like a date, but is not a complete RFC 3339 time.
        if text.len() > 4 && text.as_bytes()[4] == b'-' {
            let why = "expected a date, a time of day, and `Z` or a UTC offset; the year must be 1970 to 2554";
            return Err(UTC.error(text, why));
        }
        let ns = TIME.integer(text).map_err(|error| UnitError {
            wanted: UTC.wanted,
            example: UTC.example.to_owned(),
            ..error
        })?;
        u64::try_from(ns)
            .map(Self)
            .map_err(|_| UTC.error(text, "the time is after the year 2554"))
    }
}

impl FromStr for BitRate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        RATE.float(text).map(Self)
    }
}

impl FromStr for Frequency {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        HERTZ.float(text).map(Self)
    }
}

impl ByteSize {
    /// Rounds the size down to a whole number of binary units with at least two digits, for output to users.
    ///
    /// ```
    /// use daq_core::units::ByteSize;
    /// assert_eq!(ByteSize(574_952).rounded().to_string(), "561 KiB");
    /// assert_eq!(ByteSize(999).rounded().to_string(), "999 B");
    /// ```
    #[must_use]
    pub const fn rounded(self) -> Self {
        let mut unit = 1 << 40;
        while unit > 1 && self.0 < unit * 10 {
            unit >>= 10;
        }
        Self(self.0 / unit * unit)
    }

    /// Returns the size as a `usize`; `None` if `usize` is too small.
    pub fn bytes(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }
}

/// Implements serde and the JSON schema for a quantity. `$integer` converts an integer without unit, if that is
/// allowed.
macro_rules! quantity {
    ($type:ident, $quantity:ident, $pattern:literal, [$($example:literal),+], $json:tt $(, $integer:expr)?) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Reader;
                impl Visitor<'_> for Reader {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        write!(f, "a {} such as {:?}", $quantity.wanted, $quantity.example)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                    $(
                        fn visit_u64<E: de::Error>(self, value: u64) -> Result<$type, E> {
                            Ok($integer(value))
                        }

                        fn visit_i64<E: de::Error>(self, value: i64) -> Result<$type, E> {
                            let unexpected = de::Unexpected::Signed(value);
                            u64::try_from(value)
                                .map($integer)
                                .map_err(|_| E::invalid_value(unexpected, &self))
                        }
                    )?
                }
                deserializer.deserialize_any(Reader)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": $json,
                    "pattern": $pattern,
                    "examples": [$($example),+],
                })
            }
        }
    };
}

quantity!(
    ByteSize,
    BYTES,
    r"^\s*[0-9_]*\.?[0-9_]+\s*(B|[KMGT]iB|[kMGT]B)\s*$",
    ["4 MiB", "64 KiB", "1 GB", "16 B"],
    ["string", "integer"],
    ByteSize
);
quantity!(
    Span,
    TIME,
    r"^\s*[0-9_]*\.?[0-9_]+\s*(ns|[uµμ]s|ms|s|min|h)\s*$",
    ["10 us", "100 ms", "1.5 s", "5 min"],
    "string"
);
quantity!(
    Period,
    PERIOD,
    r"^\s*[0-9_]*\.?[0-9_]+\s*(ps|ns|[uµμ]s|ms|s)\s*$",
    ["1 ps", "8 ns", "1 us"],
    "string"
);
quantity!(
    UtcTime,
    UTC,
    r"^([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}.*|\s*[0-9_]*\.?[0-9_]+\s*(ns|[uµμ]s|ms|s|min|h)\s*)$",
    ["2026-11-22T10:00:00Z", "10 s"],
    "string"
);
quantity!(
    BitRate,
    RATE,
    r"^\s*[0-9_]*\.?[0-9_]+\s*([kMGT]?bit/s|[kMG]?B/s|[KMG]iB/s)\s*$",
    ["25 Gbit/s", "100 Mbit/s", "3 GB/s"],
    "string"
);
quantity!(
    Frequency,
    HERTZ,
    r"^\s*[0-9_]*\.?[0-9_]+\s*([kMGT]?Hz|[kMG]?S/s)\s*$",
    ["1 MHz", "44.1 kHz", "1 MS/s"],
    "string"
);

#[cfg(test)]
mod tests;
