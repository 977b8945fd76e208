//! Rates and sizes as text.

use daq_core::units::ByteSize;

/// Minimum time in nanoseconds from which the rate of a clock is estimated.
const MIN_SPAN: u64 = 1_000_000;

/// Returns the rate of a counter in packets, such as `1.712 GHz`, from pairs of capture time in nanoseconds and value. Returns
/// `None` if the capture is too short or the value does not grow.
pub fn tick_rate(values: impl IntoIterator<Item = (u64, u64)>) -> Option<String> {
    let mut values = values.into_iter();
    let (start, first) = values.next()?;
    let (end, last) = values.last()?;
    let span = end.checked_sub(start).filter(|span| *span >= MIN_SPAN)?;
    let ticks = last.checked_sub(first).filter(|ticks| *ticks > 0)?;
    (start > 0).then(|| scaled(ticks as f64 / (span as f64 / 1e9), "Hz"))
}

/// Returns `value` with a prefix and three or four digits, such as `1.712 G` and the unit. Every value below 1000 is a whole
/// number.
pub fn scaled(value: f64, unit: &str) -> String {
    let prefixes = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (factor, prefix) = prefixes
        .into_iter()
        .find(|(factor, _)| value >= factor * 0.9995)
        .unwrap_or((1.0, ""));
    let value = value / factor;
    let digits = match value {
        _ if prefix.is_empty() => 0,
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {prefix}{unit}")
}

/// Returns a size in bytes as a value of a configuration: a quoted string for whole binary units, else a number.
pub fn size(bytes: usize) -> String {
    if bytes >= 1024 && bytes.is_multiple_of(1024) {
        format!("\"{}\"", ByteSize(bytes as u64))
    } else {
        bytes.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_prefix() {
        let cases = [
            (0.0, "0 Hz"),
            (999.0, "999 Hz"),
            (1712e6, "1.71 GHz"),
            (52_340.0, "52.3 kHz"),
            (999_990.0, "1.00 MHz"),
        ];
        for (value, text) in cases {
            assert_eq!(scaled(value, "Hz"), text);
        }
        let values = [(1_000_000, 5), (2_000_000, 9), (3_000_000, 2005)];
        assert_eq!(tick_rate(values).as_deref(), Some("1.00 MHz"));
        assert_eq!(tick_rate([(5, 5)]), None);
    }
}
