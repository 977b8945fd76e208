//! Fuzz tests of SigMF metadata. Reading any file must return either a value with the guaranteed properties or an
//! error.

use daq_core::sigmf::Meta;
use daq_core::units::parse_datetime;
use std::fmt::Write as _;
use std::time::Duration;

fn time() -> Duration {
    Duration::from_secs(
        std::env::var("DAQ_FUZZ_SECONDS")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or(1),
    )
}

/// Removes all floats, because serde_json may change the last bit of a float.
fn without_floats(mut meta: Meta) -> Meta {
    meta.global.sample_rate = None;
    meta.captures
        .iter_mut()
        .for_each(|capture| capture.frequency = None);
    if let Some(stream) = &mut meta.global.stream {
        stream.axis = None;
    }
    meta
}

fn check(text: &[u8]) {
    let Ok(meta) = Meta::parse(text) else { return };
    assert!(meta.global.channels >= 1 && !meta.captures.is_empty());
    let size = text.len() as u64 * 1000;
    let mut end = 0;
    for span in meta.spans(size) {
        assert!(span.byte_start >= end && span.bytes % meta.group_bytes() == 0);
        end = span.byte_start + span.bytes;
        assert!(end <= size);
    }
    for (_, count) in meta.missing() {
        assert!(count > 0);
    }
    let again = Meta::parse(&meta.to_json()).expect("written metadata must be readable");
    assert_eq!(without_floats(again), without_floats(meta));
}

#[test]
fn sigmf_of_random_bytes_does_not_panic() {
    bolero::check!().with_test_time(time()).for_each(check);
}

/// Uses mostly valid text with random keys and values, so that the JSON parser accepts the text.
#[test]
fn sigmf_of_nearly_valid_metadata_does_not_panic() {
    let keys = [
        "core:datatype",
        "core:sample_rate",
        "core:num_channels",
        "core:offset",
        "core:dataset",
        "core:trailing_bytes",
        "core:sample_start",
        "core:sample_count",
        "core:header_bytes",
        "core:global_index",
        "core:datetime",
        "core:label",
        "daq:bytes",
        "daq:frames",
        "daq:packets_per_frame",
        "daq:first_bytes",
        "daq:packet_bytes",
        "daq:sequence",
        "daq:epoch",
        "daq:time_ns",
        "core:extensions",
    ];
    let values = [
        "0",
        "1",
        "-1",
        "1.0",
        "1.5",
        "1e300",
        "18446744073709551615",
        "9223372036854775807",
        "null",
        "true",
        "[]",
        "{}",
        "\"\"",
        "\"missing\"",
        "\"ci16_le\"",
        "\"2020-02-30T00:00:00Z\"",
        "\"..\"",
        "[{\"optional\":false}]",
        "\"\\u0000\"",
    ];
    bolero::check!().with_test_time(time()).for_each(|bytes: &[u8]| {
        let mut objects = [String::new(), String::new(), String::new()];
        objects[0].push_str("\"core:datatype\":\"ri16_le\"");
        for pick in bytes.chunks_exact(3).take(24) {
            let object = &mut objects[usize::from(pick[0] % 3)];
            if !object.is_empty() {
                object.push(',');
            }
            let key = keys[usize::from(pick[1]) % keys.len()];
            let value = values[usize::from(pick[2]) % values.len()];
            write!(object, "\"{key}\":{value}").expect("writing to a string cannot fail");
        }
        let [global, capture, annotation] = objects;
        check(
            format!("{{\"global\":{{{global}}},\"captures\":[{{{capture}}}],\"annotations\":[{{{annotation}}}]}}").as_bytes(),
        );
    });
}

#[test]
fn datetime_of_random_text_does_not_panic() {
    bolero::check!()
        .with_test_time(time())
        .for_each(|bytes: &[u8]| {
            if let Ok(text) = std::str::from_utf8(bytes) {
                let _ = parse_datetime(text);
            }
        });
}
