//! Tests of parsing and formatting quantities with units.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn sizes_round_trip(value: u64) {
        prop_assert_eq!(ByteSize(value).to_string().parse(), Ok(ByteSize(value)));
    }

    #[test]
    fn round_sizes_round_trip(value in 0_u64..4096, shift in 0_u32..40, scale in 0_u32..9) {
        for value in [value << shift, value * 10_u64.pow(scale)] {
            prop_assert_eq!(ByteSize(value).to_string().parse(), Ok(ByteSize(value)));
        }
    }

    #[test]
    fn durations_round_trip(seconds: u64, nanoseconds in 0_u32..1_000_000_000) {
        for seconds in [seconds, seconds % 7200, 0] {
            let span = Span(Duration::new(seconds, nanoseconds));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
        }
    }

    #[test]
    fn rates_round_trip(value in 0.0_f64..1e15, exponent in 0_i32..13, mantissa in 1_u32..100_000) {
        for value in [value, f64::from(mantissa) * 10_f64.powi(exponent)] {
            prop_assert_eq!(BitRate(value).to_string().parse(), Ok(BitRate(value)));
            prop_assert_eq!(Frequency(value).to_string().parse(), Ok(Frequency(value)));
        }
    }

    #[test]
    fn random_text_is_value_or_error(text in "\\PC*") {
        // The example in an error message must itself be a valid value.
        if let Err(error) = text.parse::<ByteSize>() {
            prop_assert!(error.example.parse::<ByteSize>().is_ok() || error.why.contains("unit"));
        }
        let _ = (text.parse::<Span>(), text.parse::<BitRate>(), text.parse::<Frequency>());
    }
}

#[test]
fn every_unit_is_parsed() {
    for (name, scale) in BYTES.units {
        assert_eq!(format!("3 {name}").parse(), Ok(ByteSize(3 * scale)));
    }
    for (name, scale) in TIME.units {
        assert_eq!(
            format!("3{name}").parse(),
            Ok(Span(Duration::from_nanos(3 * scale)))
        );
    }
    for (name, scale) in RATE.units {
        assert_eq!(
            format!("2 {name}").parse(),
            Ok(BitRate(2.0 * *scale as f64))
        );
    }
    for (name, scale) in HERTZ.units {
        assert_eq!(
            format!("2 {name}").parse(),
            Ok(Frequency(2.0 * *scale as f64))
        );
    }
}

#[test]
fn periods_have_picosecond_resolution_and_round_trip() {
    for ps in [0, 1, 250, 999, 1000, 1001, 8_000, 1_500_000, u64::MAX] {
        assert_eq!(Period(ps).to_string().parse(), Ok(Period(ps)));
    }
    assert_eq!("1.5 ps".parse::<Period>().unwrap_err().example, "8 ns");
    let error = "1 ps".parse::<Span>().unwrap_err();
    assert_eq!(error.example, "10 ms", "a longer time is not suggested");
}

#[test]
fn times_are_dates_or_seconds_since_1970() {
    let read = |text: &str| text.parse::<UtcTime>().map(|time| time.0);
    assert_eq!(read("2023-11-14T22:13:20Z"), Ok(1_700_000_000_000_000_000));
    assert_eq!(
        read("2023-11-14T23:13:20+01:00"),
        read("2023-11-14T22:13:20Z")
    );
    assert_eq!(
        read("2023-11-14t17:43:20.5-04:30"),
        Ok(1_700_000_000_500_000_000)
    );
    assert_eq!(read("1 h"), Ok(3_600_000_000_000));
    for bad in [
        "2023-11-14",
        "2023-11-14T22:13:20",
        "2023-13-14T22:13:20Z",
        "1969-12-31T23:59:59Z",
        "2023-11-14T22:13:20+25:00",
        "soon",
        "9999999999999 h",
    ] {
        let error = read(bad).unwrap_err();
        assert_eq!(error.wanted, "time in UTC", "{bad}");
        assert!(read(&error.example).is_ok(), "{error}");
    }
}

#[test]
fn suggested_unit_has_same_meaning() {
    let size = |text: &str| text.parse::<ByteSize>().unwrap_err().example;
    assert_eq!(
        (size("4 mib"), size("2 bytes")),
        ("4 MiB".into(), "2 B".into())
    );
    assert_eq!(
        size("7 Mb"),
        "8 KiB",
        "megabits must not be read as megabytes"
    );
    let time = |text: &str| text.parse::<Span>().unwrap_err().example;
    assert_eq!(
        (time("7 sec"), time("7 minutes")),
        ("7 s".into(), "7 min".into())
    );
    assert_eq!(time("7 m"), "10 ms", "the intended unit is ambiguous");
    let hertz = |text: &str| text.parse::<Frequency>().unwrap_err().example;
    assert_eq!(
        (hertz("7 mhz"), hertz("7 mHz")),
        ("7 MHz".into(), "1 MHz".into())
    );
    assert_eq!("7 Mbps".parse::<BitRate>().unwrap_err().example, "7 Mbit/s");
}

#[test]
fn values_are_printed_in_natural_unit() {
    let sizes = [
        (0, "0 B"),
        (16, "16 B"),
        (1500, "1500 B"),
        (8192, "8 KiB"),
        (1_000_000, "1 MB"),
        (3 << 19, "1.5 MiB"),
        (64 << 30, "64 GiB"),
        (u64::MAX, "18446744073709551615 B"),
    ];
    for (value, shown) in sizes {
        assert_eq!(ByteSize(value).to_string(), shown);
    }
    let spans = [
        (0, "0 s"),
        (1, "1 ns"),
        (1_500, "1.5 us"),
        (300_000_000_000, "5 min"),
    ];
    for (value, shown) in spans {
        assert_eq!(Span(Duration::from_nanos(value)).to_string(), shown);
    }
    assert_eq!(Span(Duration::from_millis(90_500)).to_string(), "90.5 s");
    assert_eq!(Frequency(44_100.0).to_string(), "44.1 kHz");
    assert_eq!(BitRate(400e9).to_string(), "400 Gbit/s");
}

#[test]
fn unit_error_names_value_and_correction() {
    let says = |text: &str| text.parse::<ByteSize>().unwrap_err().to_string();
    assert_eq!(
        says("4"),
        r#""4" is not a size: the unit is missing; try "4 B""#
    );
    assert_eq!(
        "10".parse::<Span>().unwrap_err().to_string(),
        r#""10" is not a time: the unit is missing; try "10 s""#
    );
    assert_eq!(
        says("4 MBi"),
        r#""4 MBi" is not a size: unknown unit "MBi"; try "4 MiB""#
    );
    assert_eq!(
        says("lots"),
        r#""lots" is not a size: it does not start with a number; try "8 KiB""#
    );
    assert_eq!(
        says("1.5 B"),
        r#""1.5 B" is not a size: it is not a whole number of B; try "8 KiB""#
    );
    assert_eq!(
        says("-1 B"),
        r#""-1 B" is not a size: it is negative; try "8 KiB""#
    );
    assert!(says("99999999999999999999 TiB").contains("too large"));
    assert!(says("1.2.3 B").contains("two decimal points"));
    let time = "10 seconds".parse::<Span>().unwrap_err().to_string();
    assert!(time.contains(r#"unknown unit "seconds""#), "{time}");
}

#[test]
fn integer_without_unit_is_bytes_only() {
    #[derive(serde::Deserialize)]
    struct Sizes {
        size: ByteSize,
    }
    assert_eq!(
        toml::from_str::<Sizes>("size = 16").unwrap().size,
        ByteSize(16)
    );
    assert!(toml::from_str::<Sizes>("size = -1").is_err());
    #[derive(Debug, serde::Deserialize)]
    struct Times {
        #[expect(dead_code, reason = "only the parse error is checked")]
        time: Span,
    }
    let error = toml::from_str::<Times>("time = 16").unwrap_err();
    assert!(
        error.message().contains(r#"a time such as "10 ms""#),
        "{error}"
    );
}
