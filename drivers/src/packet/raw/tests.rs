use super::*;
use crate::packet::Format;
use proptest::prelude::*;

fn format() -> Raw {
    let scale = TimeScale {
        nanoseconds: 8,
        ticks: 1,
        origin_ns: None,
    };
    Raw::new(16, 32, 4, Field::new(2, 6, Endian::Big, 0, 48), 2)
        .timestamped(Field::new(8, 4, Endian::Little, 0, 32), scale)
}

#[test]
fn raw_packet_written_by_hand_is_parsed() {
    let mut packet = [0u8; 52];
    packet[..12].copy_from_slice(&[0xab, 0xcd, 0, 0, 0, 0, 1, 2, 0x10, 0x20, 0, 0]);
    let expected = Packet {
        unit: 258,
        sub: 0,
        payload: 16..48,
        timestamp: Some(0x2010),
    };
    assert_eq!(format().parse(&packet), Ok(Parsed::Data(expected)));
    assert_eq!(
        format().facts().numbering,
        Numbering {
            width: 48,
            step: 2,
            packets_per_unit: 1
        }
    );
}

#[test]
fn raw_packet_of_other_length_is_rejected() {
    for length in (0..200).filter(|length| *length != 52) {
        let expected = Err(Reject::Length {
            expected: 52,
            got: length,
        });
        assert_eq!(format().parse(&vec![0; length]), expected);
    }
}

#[test]
fn raw_field_outside_header_does_not_panic() {
    let mut raw = Raw::new(4, 4, 0, Field::new(6, 8, Endian::Big, 0, 64), 1);
    assert_eq!(raw.parse(&[0; 8]), Err(Reject::Short { need: 4, got: 8 }));
    let mut out = Vec::new();
    raw.build(1, 0, None, &[0; 4], &mut out);
    assert_eq!(out, [0; 8]);
}

proptest! {
    #[test]
    fn raw_packet_round_trips(unit: u64, ticks: u32, payload in proptest::collection::vec(any::<u8>(), 32), cut in 0usize..=52) {
        let mut format = Format::Raw(format());
        let unit = unit & format.unit_mask();
        let mut packet = Vec::new();
        format.build(unit, 0, Some(ticks.into()), &payload, &mut packet);
        let parsed = format.parse(&packet);
        let expected = Packet { unit, sub: 0, payload: 16..48, timestamp: Some(ticks.into()) };
        prop_assert_eq!(&parsed, &Ok(Parsed::Data(expected.clone())));
        prop_assert_eq!(&packet[16..48], &payload[..]);
        let split = format.parse_split(&packet[..cut], packet.len() - cut);
        let whole = if cut < 16 { Split::Longer { header: 16 } } else { Split::Whole(Parsed::Data(expected)) };
        prop_assert_eq!(split, Ok(whole));
    }
}

#[test]
fn range_is_checked_and_continues_numbers() {
    let build = |keys: &str| {
        let text = format!("header = 16\npayload = 8\n{keys}");
        toml::from_str::<RawConfig>(&text).unwrap().build()
    };
    for (keys, wrong) in [
        (
            "sequence = { offset = 0, bytes = 2, range = [1, 65536] }",
            "sequence.range",
        ),
        (
            "sequence = { offset = 0, bytes = 2, range = [5, 5] }",
            "sequence.range",
        ),
        (
            "sequence = { offset = 0, bytes = 2, range = [1, 65535], step = 2 }",
            "sequence.step",
        ),
        (
            "packets = 2\nsequence = { offset = 0, bytes = 2, range = [1, 65535] }",
            "sequence.range",
        ),
        (
            "packets = 256\nsequence = { offset = 0, bytes = 1 }",
            "packets",
        ),
        (
            "packets = 2\nframe = { offset = 0, bytes = 2 }\npacket = { offset = 2, bytes = 2, range = [1, 2] }",
            "packet.range",
        ),
    ] {
        let found = build(keys).unwrap_err();
        assert_eq!(
            found[0].key.as_deref(),
            Some(&*format!("format.{wrong}")),
            "{keys}"
        );
    }
    let keys = "frame = { offset = 0, bytes = 2, range = [1, 65535] }\npackets = 2\npacket = { offset = 2, bytes = 2 }";
    let mut format = build(keys).unwrap();
    assert_eq!(format.facts().numbering.width, 64);
    for unit in 65_533..65_540 {
        let mut packet = Vec::new();
        format.build(unit, 1, None, &[0; 8], &mut packet);
        let Ok(Parsed::Data(data)) = format.parse(&packet) else {
            panic!("{packet:?}")
        };
        assert_eq!((data.unit, data.sub), (unit, 1));
        assert_ne!(packet[..2], [0, 0]);
    }
}

#[test]
fn block_identifiers_of_gige_vision_skip_zero() {
    let gvsp = "header = 8\npayload = 8\npackets = 2\nframe = { offset = 2, bytes = 2 }\n\
                packet = { offset = 5, bytes = 3, first = 1 }\nmatch = [{ offset = 4, bytes = 1, values = [3] }]";
    let notes = |keys: &str| {
        toml::from_str::<RawConfig>(keys)
            .unwrap()
            .build()
            .unwrap()
            .facts()
            .notes
            .concat()
    };
    assert!(notes(gvsp).contains("`range` of `frame` is [1, 65535]"));
    let mut format = toml::from_str::<RawConfig>(gvsp).unwrap().build().unwrap();
    let mut units = Vec::new();
    for block in [65_534_u16, 65_535, 1, 2] {
        let [high, low] = block.to_be_bytes();
        let packet = [0, 0, high, low, 3, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        let Ok(Parsed::Data(data)) = format.parse(&packet) else {
            panic!("{block}")
        };
        units.push(data.unit);
    }
    assert_eq!(units, [65_534, 65_535, 65_536, 65_537]);
    // Another header, or a range that is set.
    for (old, new) in [
        ("values = [3]", "values = [2]"),
        ("bytes = 3, first = 1", "bytes = 3"),
        ("header = 8", "header = 9"),
        (
            "offset = 2, bytes = 2",
            "offset = 2, bytes = 2, range = [0, 9]",
        ),
    ] {
        let other = notes(&gvsp.replace(old, new));
        assert!(!other.contains("range"), "{new}: {other}");
    }
}

#[test]
fn default_byte_order_is_noted() {
    let notes = |keys: &str| {
        let config: RawConfig =
            toml::from_str(&format!("header = 16\npayload = 8\n{keys}")).unwrap();
        let Format::Raw(raw) = config.build().unwrap() else {
            panic!("{keys}");
        };
        raw.facts().notes.concat()
    };
    let note =
        notes("packets = 2\nframe = { offset = 0, bytes = 8 }\npacket = { offset = 8, bytes = 4 }");
    assert!(
        note.starts_with("`frame` and `packet` are read in big-endian"),
        "{note}"
    );
    let note = notes("sequence = { offset = 0, bytes = 8 }");
    assert!(
        note.starts_with("`sequence` is read in big-endian"),
        "{note}"
    );
    assert_eq!(notes("sequence = { offset = 0, bytes = 1 }"), "");
    for endian in ["little", "big"] {
        let keys = format!("sequence = {{ offset = 0, bytes = 8, endian = \"{endian}\" }}");
        assert_eq!(notes(&keys), "", "{endian}");
    }
    let note = notes(
        "packets = 2\nframe = { offset = 0, bytes = 8, endian = \"big\" }\npacket = { offset = 8, bytes = 4 }",
    );
    assert!(note.starts_with("`packet` is read in big-endian"), "{note}");
}
