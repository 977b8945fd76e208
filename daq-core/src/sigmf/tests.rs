#![allow(clippy::unwrap_used)]

use super::*;
use crate::assert_contains;
use crate::units::format_datetime;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn parse(text: &str) -> Result<Meta, SigmfError> {
    Meta::parse(text.as_bytes())
}

#[test]
fn byte_order_mark_is_ignored() {
    let text = br#"{"global": {"core:datatype": "ri16_le"}}"#;
    let marked = [&b"\xef\xbb\xbf"[..], text].concat();
    assert_eq!(Meta::parse(&marked).unwrap(), Meta::parse(text).unwrap());
}

#[test]
fn datatypes_round_trip() {
    for number in Number::ALL {
        for (complex, big_endian) in [(false, false), (true, false), (false, true), (true, true)] {
            let datatype = Datatype {
                number,
                complex,
                big_endian: big_endian && number.bytes() > 1,
            };
            assert_eq!(datatype.to_string().parse::<Datatype>().unwrap(), datatype);
        }
    }
    assert_eq!("cu8".parse::<Datatype>().unwrap().bytes(), 2);
    assert_eq!("ri8_be".parse::<Datatype>().unwrap().to_string(), "ri8");
    assert_eq!("rf64_le".parse::<Datatype>().unwrap().bytes(), 8);
    for bad in [
        "",
        "c",
        "i16_le",
        "ci16_me",
        "ci16_le_le",
        "cf16_le",
        "é",
        "ci12",
    ] {
        assert!(bad.parse::<Datatype>().is_err(), "{bad}");
    }
}

#[test]
fn minimal_third_party_metadata_is_parsed() {
    let meta = parse(r#"{"global":{"core:datatype":"cf32_le","core:version":"1.0.0"},"captures":[],"annotations":[]}"#).unwrap();
    assert_eq!((meta.global.channels, meta.group_bytes()), (1, 8));
    assert_eq!(meta.global.stream, None);
    assert_eq!(
        meta.spans(83),
        [Span {
            capture: 0,
            byte_start: 0,
            bytes: 80
        }]
    );
    assert_eq!(
        meta.data_path(Path::new("a/b.c.sigmf-meta")),
        Path::new("a/b.c.sigmf-data")
    );
}

#[test]
fn unusual_third_party_metadata_is_parsed() {
    let meta = parse(
        r#"{"global":{"core:datatype":"ci16_be","core:num_channels":2.0,"core:offset":100,"core:sample_rate":-3,
            "core:description":7,"other:thing":{"a":[]},"core:extensions":[{"name":"other","version":"1","optional":true}]},
            "captures":[{"core:sample_start":110,"core:header_bytes":5},{"core:sample_start":100.0,"core:datetime":"yesterday"}],
            "annotations":[{"core:sample_start":112,"core:label":"missing","core:sample_count":3},
                           {"core:sample_start":101,"core:label":"bird"}]}"#,
    )
    .unwrap();
    assert_eq!(meta.global.sample_rate, None);
    assert_eq!(meta.captures[0].sample_start, 100, "sorted");
    assert_eq!(meta.captures[0].time_ns(), None);
    assert_eq!(meta.missing().collect::<Vec<_>>(), [(12, 3)]);
    let spans = meta.spans(200);
    assert_eq!(
        spans[0],
        Span {
            capture: 0,
            byte_start: 0,
            bytes: 80
        }
    );
    assert_eq!(
        spans[1],
        Span {
            capture: 1,
            byte_start: 85,
            bytes: 112
        }
    );
}

#[test]
fn metadata_error_names_field() {
    for (text, wanted) in [
        ("[", "not valid JSON"),
        ("[]", "lacks the object `global`"),
        (r#"{"global":{}}"#, "lacks global.core:datatype"),
        (
            r#"{"global":{"core:datatype":"x"}}"#,
            "global.core:datatype is x",
        ),
        (
            r#"{"global":{"core:datatype":"ri8","core:num_channels":0}}"#,
            "global.core:num_channels is 0",
        ),
        (
            r#"{"global":{"core:datatype":"ri8"},"captures":[{"core:sample_start":-1}]}"#,
            "captures[0].core:sample_start is -1",
        ),
        (
            r#"{"global":{"core:datatype":"ri8"},"captures":[{}]}"#,
            "lacks captures[0].core:sample_start",
        ),
        (
            r#"{"global":{"core:datatype":"ri8"},"annotations":{}}"#,
            "annotations is an object",
        ),
        (
            r#"{"global":{"core:datatype":"ri8","core:dataset":"../x"}}"#,
            "global.core:dataset is ../x",
        ),
        (
            r#"{"global":{"core:datatype":"ri8","core:extensions":[{"name":"zip","version":"1","optional":false}]}}"#,
            "core:extensions is zip",
        ),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert_contains!(error => wanted; "does not contain {wanted:?}");
    }
}

fn text() -> impl Strategy<Value = Option<String>> {
    option::of("\\PC{0,8}")
}

/// Returns a number that JSON text represents exactly. For other numbers, serde_json may change the last bit.
fn quarters(n: u32) -> f64 {
    f64::from(n) / 4.0
}

prop_compose! {
    fn global()(
        number in 0..Number::ALL.len(), complex: bool, big_endian: bool, channels in 1_u32..9,
        sample_rate in option::of((1_u32..).prop_map(quarters)), trailing_bytes in 0_u64..9, recorder in text(), description in text(),
        author in text(), hardware in text(), stream in option::of((any::<[u64; 6]>(), any::<[u32; 2]>(), text())),
    ) -> Global {
        let number = Number::ALL[number];
        Global {
            datatype: Datatype { number, complex, big_endian: big_endian && number.bytes() > 1 },
            version: SPECIFICATION.into(), sample_rate, channels, offset: 0, dataset: None, trailing_bytes,
            recorder, description, author, hardware,
            extensions: vec![Extension { name: NAMESPACE.into(), version: "1".into(), optional: true }],
            stream: stream.map(|(n, m, source)| Stream {
                bytes: n[0], frames: n[1], frame_bytes: n[2], packets_per_frame: m[0], segment: n[3], missing_samples: n[4],
                packet_sizes: m[1].is_multiple_of(2).then_some(PacketSizes { first: m[0], rest: m[1], parts: m[0].max(1) }),
                sizes_differ: m[1].is_multiple_of(3).then_some(m[0] > m[1]),
                first_segment: m[0].is_multiple_of(2).then_some(n[5]),
                missing_frames: n[5], channels: Some(m[1]), points: Some(n[0]), order: source.clone(), source,
                axis: Some(serde_json::json!({"kind": "frequency", "step": 0.5})), frame_rate: Some(quarters(m[0])),
                kept: vec!["feng_id".to_owned()],
            }),
        }
    }
}

prop_compose! {
    fn capture()(
        sample_start: u64, global_index: Option<u64>, ns: Option<u64>, frequency in option::of(any::<u32>().prop_map(quarters)),
        header_bytes: u64, sequence: Option<u64>, epoch: Option<u32>, clock in text(), frames: Option<u64>,
        missing_frames: u64, times_ns: Vec<Option<i64>>,
    ) -> Capture {
        Capture {
            sample_start, global_index, datetime: ns.map(format_datetime), frequency, bandwidth: frequency, header_bytes, sequence, epoch, clock,
            clock_ns: ns, times_ns, frames, missing_frames,
        }
    }
}

prop_compose! {
    fn annotation()(
        sample_start: u64, sample_count: Option<u64>, label in text(), comment in text(), cause in text(),
        missing_frames: u64, missing_bytes: Vec<[u64; 2]>, merged: u64,
    ) -> Annotation {
        Annotation { sample_start, sample_count, label, comment, cause, missing_frames, missing_bytes, merged, kept: BTreeMap::from([("feng_id".to_owned(), merged)]) }
    }
}

proptest! {
    #[test]
    fn metadata_round_trips(
        global in global(), mut captures in vec(capture(), 1..5), mut annotations in vec(annotation(), 0..5), size: u64,
    ) {
        captures.sort_by_key(|c| c.sample_start);
        annotations.sort_by_key(|a| a.sample_start);
        let meta = Meta { global, captures, annotations };
        let read = Meta::parse(&meta.to_json()).unwrap();
        prop_assert_eq!(&read, &meta);
        let mut end = 0;
        for span in read.spans(size) {
            prop_assert!(span.byte_start >= end && span.bytes % meta.group_bytes() == 0);
            end = span.byte_start.checked_add(span.bytes).unwrap();
            prop_assert!(end <= size);
        }
    }
}
