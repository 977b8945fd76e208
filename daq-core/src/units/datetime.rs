//! Points in time in the format of SigMF: RFC 3339 in UTC.

use std::fmt::Write as _;

const DAY: u64 = 86_400;
const SECOND_NS: u64 = 1_000_000_000;

/// Formats the time `ns` nanoseconds after 1970-01-01T00:00:00Z, with nine decimals of the second.
///
/// ```
/// use daq_core::units::{format_datetime, parse_datetime};
/// let text = format_datetime(1_700_000_000_000_000_001);
/// assert_eq!(text, "2023-11-14T22:13:20.000000001Z");
/// assert_eq!(parse_datetime(&text), Some(1_700_000_000_000_000_001));
/// ```
pub fn format_datetime(ns: u64) -> String {
    let seconds = ns / SECOND_NS;
    let (days, second) = (seconds / DAY, seconds % DAY);
    let mut year = 1970;
    let mut left = days;
    // A u64 of nanoseconds ends in the year 2554, so the loop runs less than 600 times.
    while left >= days_of_year(year) {
        left -= days_of_year(year);
        year += 1;
    }
    let mut month = 1;
    while left >= days_of_month(year, month) {
        left -= days_of_month(year, month);
        month += 1;
    }
    let mut text = String::with_capacity(30);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    write!(
        text,
        "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z",
        left + 1,
        ns % SECOND_NS
    )
    .expect("writing to a string cannot fail");
    text
}

/// Parses an RFC 3339 time and returns the number of nanoseconds since 1970-01-01T00:00:00Z. Returns `None` for times
/// before 1970 or after 2554 and for text that is not an RFC 3339 time. Digits beyond nanoseconds are dropped. A leap
/// second counts as the start of the next second.
pub fn parse_datetime(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = bytes.get(from..to)?;
        digits
            .iter()
            .all(u8::is_ascii_digit)
            .then(|| digits.iter().fold(0, |n, d| n * 10 + u64::from(d - b'0')))
    };
    let is = |at: usize, wanted: &[u8]| bytes.get(at).is_some_and(|b| wanted.contains(b));
    if !(is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let valid = year >= 1970
        && (1..=12).contains(&month)
        && (1..=days_of_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !valid {
        return None;
    }
    let mut at = 19;
    let mut fraction = 0;
    if is(at, b".,") {
        at += 1;
        let first = at;
        let mut unit = SECOND_NS / 10;
        while let Some(digit) = bytes.get(at).filter(|b| b.is_ascii_digit()) {
            fraction += u64::from(digit - b'0') * unit;
            unit /= 10;
            at += 1;
        }
        if at == first {
            return None;
        }
    }
    // Offset of the time zone from UTC in seconds.
    let ahead = if is(at, b"Zz") && at + 1 == bytes.len() {
        0
    } else if is(at, b"+-") && is(at + 3, b":") && at + 6 == bytes.len() {
        let (hours, minutes) = (number(at + 1, at + 3)?, number(at + 4, at + 6)?);
        if hours > 23 || minutes > 59 {
            return None;
        }
        let seconds = i64::try_from(hours * 3600 + minutes * 60).ok()?;
        if is(at, b"-") { -seconds } else { seconds }
    } else {
        return None;
    };
    let years: u64 = (1970..year).map(days_of_year).sum();
    let months: u64 = (1..month).map(|month| days_of_month(year, month)).sum();
    let seconds = (years + months + day - 1) * DAY + hour * 3600 + minute * 60 + second;
    let seconds = u64::try_from(i64::try_from(seconds).ok()? - ahead).ok()?;
    seconds.checked_mul(SECOND_NS)?.checked_add(fraction)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn datetime_of_known_times_is_exact() {
        for (ns, text) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400_000_000_000, "2000-02-29T00:00:00.000000000Z"),
            (4_107_542_399_999_999_999, "2100-02-28T23:59:59.999999999Z"),
            (4_107_542_400_000_000_000, "2100-03-01T00:00:00.000000000Z"),
            (u64::MAX, "2554-07-21T23:34:33.709551615Z"),
        ] {
            assert_eq!(format_datetime(ns), text);
            assert_eq!(parse_datetime(text), Some(ns));
        }
    }

    #[test]
    fn datetime_of_other_writers_is_parsed() {
        assert_eq!(parse_datetime("1970-01-01T00:00:01Z"), Some(SECOND_NS));
        assert_eq!(
            parse_datetime("1970-01-01T00:00:00.5Z"),
            Some(SECOND_NS / 2)
        );
        assert_eq!(
            parse_datetime("1970-01-01T00:00:00.1234567891234Z"),
            Some(123_456_789)
        );
        assert_eq!(
            parse_datetime("2016-12-31T23:59:60Z"),
            parse_datetime("2017-01-01T00:00:00Z")
        );
        for bad in [
            "",
            "1969-12-31T23:59:59Z",
            "2023-02-29T00:00:00Z",
            "2023-01-01",
            "2023-01-01T00:00:00.Z",
            "é",
            "9999-01-01T00:00:00Z",
        ] {
            assert_eq!(parse_datetime(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn datetime_round_trips(ns: u64) {
            prop_assert_eq!(parse_datetime(&format_datetime(ns)), Some(ns));
        }
    }
}
