use super::*;
use crate::packet::frames::Frames;
use crate::packet::{Origins, PacketKeys};
use daq_core::config::Problem;
use daq_core::layout::Samples;
use proptest::prelude::*;

const SCALE: TimeScale = TimeScale {
    nanoseconds: 1,
    ticks: 1,
    origin_ns: None,
};

/// Returns the recorded datagrams of one case.
fn recorded(case: &str) -> Vec<Vec<u8>> {
    let text = include_str!("../../../tests/data/spead2.hex");
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with(&format!("@ {case}")))
        .skip(1);
    let lines = lines.take_while(|line| !line.starts_with('@'));
    lines
        .map(|line| line.as_bytes().chunks(2).map(byte).collect())
        .collect()
}

/// A heap: heap counter, bytes and timestamp.
type Heap = (u64, Vec<u8>, Option<u64>);

/// Reassembles packets by the offsets that they state. Returns the heaps and the control messages.
fn assemble(spead: &mut Spead, packets: &[Vec<u8>]) -> (Vec<Heap>, Vec<Control>) {
    let mut heaps: Vec<Heap> = Vec::new();
    let mut messages = Vec::new();
    for packet in packets {
        match spead.parse(packet).unwrap() {
            Parsed::Control(control) => messages.push(control),
            other @ (Parsed::Fragment(_) | Parsed::Sized { .. }) => panic!("{other:?}"),
            Parsed::Data(data) => {
                if heaps.last().is_none_or(|heap| heap.0 != data.unit) {
                    heaps.push((data.unit, vec![0xee; spead.layout.unit_bytes], None));
                }
                let heap = heaps.last_mut().unwrap();
                heap.1[spead.layout.range(data.sub)].copy_from_slice(&packet[data.payload]);
                heap.2 = heap.2.or(data.timestamp);
            }
        }
    }
    (heaps, messages)
}

fn sent(heap: usize) -> Vec<u8> {
    (0..400)
        .map(|i| u8::try_from((i * 7 + heap) % 251).unwrap())
        .collect()
}

#[test]
fn recorded_heap_with_descriptors_differs() {
    let layout = PacketLayout {
        unit_bytes: 400,
        first: 144,
        rest: 160,
    };
    let mut spead = Spead::new(40, layout, 1).timestamped(0x1600, SCALE);
    let (heaps, messages) = assemble(&mut spead, &recorded("64-40 descriptors"));
    assert_eq!(heaps, [(2, sent(1), Some(1001))]);
    let mut expected = vec![
        Control::OtherUnit {
            unit: Some(1),
            bytes: 653
        };
        5
    ];
    expected.push(Control::EndOfStream { unit: Some(3) });
    assert_eq!(messages, expected);
}

/// Builds one packet of a heap of two packets of 8 bytes.
fn packet(counter: u64, offset: u64, items: &[(u64, u64)]) -> Vec<u8> {
    let position = [(1, counter), (2, 16), (3, offset), (4, 8)];
    let items: Vec<_> = position
        .iter()
        .chain(items)
        .map(|(id, value)| Item::immediate(*id, *value))
        .collect();
    let mut bytes = Vec::new();
    build_packet(40, &items, &[9; 8], &mut bytes);
    bytes
}

#[test]
fn items_of_the_first_packet_place_the_whole_heap() {
    let mut format = configured(
        "heap = 16\npacket = 8\nframe = { item = 0x1600, step = 10 }\npart = { item = 0x4101, values = [7, 3] }",
    )
    .unwrap();
    assert_eq!(
        (format.facts().parts, format.facts().part_names),
        (2, vec!["7".to_owned(), "3".to_owned()])
    );
    let mut place = |bytes: &[u8]| match format.parse(bytes) {
        Ok(Parsed::Data(data)) => Ok((data.unit, data.sub)),
        Ok(other) => panic!("{other:?}"),
        Err(reject) => Err(reject.name()),
    };
    let first = |counter, frame, antenna| packet(counter, 0, &[(0x1600, frame), (0x4101, antenna)]);
    assert_eq!(place(&packet(500, 8, &[])), Err("unknown_heap"));
    assert_eq!(place(&first(500, 20, 3)), Ok((20, 2)));
    assert_eq!(place(&first(900, 20, 7)), Ok((20, 0)));
    assert_eq!(place(&packet(500, 8, &[])), Ok((20, 3)));
    assert_eq!(place(&packet(900, 8, &[])), Ok((20, 1)));
    assert_eq!(place(&packet(901, 8, &[])), Err("unknown_heap"));
    assert_eq!(place(&first(901, 30, 4)), Err("unknown_part"));
    assert_eq!(
        place(&packet(901, 8, &[(0x4101, 3), (0x1600, 30)])),
        Ok((30, 3))
    );
    // Numbers of heaps before a restart do not place heaps after it.
    for counter in 902..920 {
        place(&first(counter, 10 * counter, 3)).unwrap();
    }
    assert_eq!(place(&packet(905, 8, &[])), Ok((9050, 3)));
    place(&first(904, 20_000, 3)).unwrap();
    assert_eq!(place(&packet(905, 8, &[])), Err("unknown_heap"));
    // The end of the stream has no frame number, so no frame is skipped.
    let end = packet(930, 0, &[(6, 2)]);
    assert_eq!(
        format.parse(&end),
        Ok(Parsed::Control(Control::EndOfStream { unit: None }))
    );
}

#[test]
fn rejected_packet_names_the_items_that_are_missing() {
    let mut format = configured(
        "heap = 16\npacket = 8\nframe = { item = 0x1600, step = 10 }\npart = [{ item = 0x4101, count = 4 }, { item = 0x4103, count = 2 }]",
    )
    .unwrap();
    let mut why = |items: &[(u64, u64)]| {
        format
            .parse(&packet(500, 0, items))
            .unwrap_err()
            .to_string()
    };
    let none = why(&[]);
    assert!(
        none.contains("contain item 0x1600, item 0x4101, item 0x4103, and"),
        "{none}"
    );
    let one = why(&[(0x1600, 20), (0x4103, 1)]);
    assert!(
        one.contains("does not contain item 0x4101, and no packet"),
        "{one}"
    );
}

#[test]
fn equal_counters_of_different_ports_are_different_heaps() {
    let mut format = configured(
        "heap = 16\npacket = 8\nframe = { item = 0x1600 }\npart = { from = \"port\", values = [1, 2] }",
    )
    .unwrap();
    let mut place = |port: u16, bytes: &[u8]| {
        let flow = Flow {
            source: None,
            destination: Some(([127, 0, 0, 1], port).into()),
        };
        format.use_flow(&flow).ok()?;
        let Ok(Parsed::Data(data)) = format.parse(bytes) else {
            return None;
        };
        Some((data.unit, data.sub))
    };
    assert_eq!(place(1, &packet(5, 0, &[(0x1600, 70)])), Some((70, 0)));
    assert_eq!(place(2, &packet(5, 0, &[(0x1600, 80)])), Some((80, 2)));
    assert_eq!(place(1, &packet(5, 8, &[])), Some((70, 1)));
    assert_eq!(place(2, &packet(5, 8, &[])), Some((80, 3)));
    assert_eq!(place(3, &packet(5, 8, &[(0x1600, 80)])), None);
}

/// Senders of spead2 count their heaps from 1, so heaps of several antennas have the same counter at the same time.
#[test]
fn equal_counters_of_different_senders_are_different_heaps() {
    let mut format = configured(
        "heap = 16\npacket = 8\nframe = { item = 0x1600 }\npart = { item = 0x4101, count = 2 }",
    )
    .unwrap();
    assert_eq!(
        format.facts().flow.origin(),
        Some(crate::packet::Origin::Address)
    );
    let mut place = |port: u16, bytes: &[u8]| {
        let flow = Flow {
            source: Some(([10, 0, 0, 1], port).into()),
            destination: None,
        };
        format.use_flow(&flow).unwrap();
        match format.parse(bytes) {
            Ok(Parsed::Data(data)) => Ok((data.unit, data.sub)),
            Ok(other) => panic!("{other:?}"),
            Err(reject) => Err(reject.name()),
        }
    };
    let first = |antenna| packet(1, 0, &[(0x1600, 70), (0x4101, antenna)]);
    let rest = packet(1, 8, &[]);
    assert_eq!(place(5000, &first(0)), Ok((70, 0)));
    assert_eq!(place(5001, &first(1)), Ok((70, 2)));
    assert_eq!(place(5000, &rest), Ok((70, 1)));
    assert_eq!(place(5001, &rest), Ok((70, 3)));
    // Two antennas behind one address, which cannot be distinguished.
    assert_eq!(place(5002, &first(0)), Ok((70, 0)));
    assert_eq!(place(5002, &first(1)), Ok((70, 2)));
    assert_eq!(place(5002, &rest), Err("ambiguous_heap"));
}

#[test]
fn contradictory_frame_keys_are_refused() {
    for (keys, key) in [
        ("frame = { item = 3 }", "format.frame.item"),
        ("frame = { item = 0x1600, step = 0 }", "format.frame.step"),
        (
            "frame = { item = 0x1600 }\nheap_step = 2",
            "format.heap_step",
        ),
        ("part = { item = 0x4101 }", "format.part"),
        ("part = { item = 0x4101, count = 2 }", "format.heap"),
        (
            "heap = 8\npart = { item = 0x4101, bits = 3, count = 2 }",
            "format.part.bits",
        ),
        (
            "heap = 8\npart = { item = 0x4101, values = [1, 2], first = 1 }",
            "format.part.first",
        ),
        (
            "heap = 8\npart = { from = \"port\", first = 65535, count = 2 }",
            "format.part",
        ),
        (
            "heap = 2147483648\npacket = 1\npart = { item = 0x4101, count = 2 }",
            "format.packet",
        ),
        (
            "heap = 8\npart = { offset = 8, bytes = 1, count = 2 }",
            "format.part",
        ),
        ("samples = 4", "format.samples"),
    ] {
        let problems = toml::from_str::<SpeadConfig>(keys)
            .unwrap()
            .build()
            .unwrap_err();
        let found: Vec<_> = problems
            .iter()
            .map(|problem| problem.key.as_deref())
            .collect();
        assert_eq!(found, [Some(key)], "{keys}");
    }
}

#[test]
fn recorded_repeated_pointers_give_equal_packets() {
    let layout = PacketLayout {
        unit_bytes: 400,
        first: 144,
        rest: 144,
    };
    let mut spead = Spead::new(40, layout, 1).timestamped(0x1600, SCALE);
    let (heaps, messages) = assemble(&mut spead, &recorded("64-40 start"));
    assert_eq!(heaps, [(2, sent(0), Some(1000)), (3, sent(1), Some(1001))]);
    assert_eq!(
        messages,
        [
            Control::OtherUnit {
                unit: Some(1),
                bytes: 0
            },
            Control::EndOfStream { unit: Some(4) }
        ]
    );
    assert_eq!((spead.header_len(0), spead.header_len(1)), (56, 56));
}

#[test]
fn recorded_wider_addresses_are_parsed() {
    let layout = PacketLayout {
        unit_bytes: 400,
        first: 152,
        rest: 160,
    };
    let packets = recorded("64-48");
    let (heaps, messages) = assemble(&mut Spead::new(48, layout, 1), &packets);
    assert_eq!(heaps, [(1, sent(0), None), (2, sent(1), None)]);
    assert_eq!(messages, [Control::EndOfStream { unit: Some(3) }]);
    let other = Spead::new(40, layout, 1).parse(&packets[0]).unwrap_err();
    assert_eq!(
        other,
        Reject::Flavour {
            pointer: 16,
            found: 48,
            expected: 40
        }
    );
    assert_eq!(
        other.to_string(),
        "the packet is SPEAD-64-48, but SPEAD-64-40 is configured: set `address_bits = 48`"
    );
}

#[test]
fn recorded_packets_of_other_size_name_keys() {
    let layout = PacketLayout {
        unit_bytes: 400,
        first: 160,
        rest: 160,
    };
    let packets = recorded("64-48");
    let mut spead = Spead::new(48, layout, 1);
    assert_eq!(
        spead.parse(&packets[0]),
        Err(Reject::PayloadLength {
            offset: 0,
            expected: 160,
            got: 152
        })
    );
    assert_eq!(
        spead.parse(&packets[1]),
        Err(Reject::Misplaced { offset: 152 })
    );
}

#[test]
fn built_packets_equal_recorded_packets() {
    let layout = PacketLayout {
        unit_bytes: 400,
        first: 152,
        rest: 160,
    };
    let spead = Spead::new(48, layout, 1);
    let mut at = 0;
    let recorded = recorded("64-48");
    for heap in 0..2 {
        for sub in 0..layout.count() {
            let mut packet = Vec::new();
            spead.build(
                heap as u64 + 1,
                sub,
                None,
                &sent(heap)[layout.range(sub)],
                &mut packet,
            );
            assert_eq!(packet, recorded[at], "heap {heap} packet {sub}");
            at += 1;
        }
    }
}

fn parse(items: &[Item], payload: usize) -> Result<Parsed, Reject> {
    let mut packet = Vec::new();
    build_packet(40, items, &vec![0; payload], &mut packet);
    Spead::new(
        40,
        PacketLayout {
            unit_bytes: 100,
            first: 40,
            rest: 40,
        },
        1,
    )
    .parse(&packet)
}

#[test]
fn missing_items_are_named() {
    let [counter, heap, offset, payload] =
        [(1, 7), (2, 100), (3, 80), (4, 20)].map(|(id, v)| Item::immediate(id, v));
    assert!(matches!(
        parse(&[counter, heap, offset, payload], 20),
        Ok(Parsed::Data(_))
    ));
    assert_eq!(
        parse(&[counter, heap, offset, payload], 21),
        Err(Reject::Long {
            expected: 60,
            got: 61
        })
    );
    assert_eq!(
        parse(&[counter, heap, offset, payload], 19),
        Err(Reject::Short { need: 60, got: 59 })
    );
    let name = |items: &[Item]| parse(items, 20).unwrap_err().to_string();
    assert_eq!(
        name(&[heap, offset, payload]),
        "the packet has no heap counter (item 1)"
    );
    assert_eq!(
        name(&[counter, offset, payload]),
        "the packet has no heap length (item 2)"
    );
    assert_eq!(
        name(&[counter, Item::immediate(2, 0), offset, payload]),
        "the packet has no heap length (item 2)"
    );
    assert_eq!(
        name(&[counter, heap, payload]),
        "the packet has no heap offset (item 3)"
    );
    assert_eq!(
        name(&[counter, heap, offset]),
        "the packet has no packet payload length (item 4)"
    );
    // An item with an address instead of an immediate value has no value.
    assert_eq!(
        name(&[
            Item {
                immediate: false,
                ..counter
            },
            heap,
            offset,
            payload
        ]),
        "the packet has no heap counter (item 1)"
    );
    assert!(matches!(
        parse(&[counter, heap, Item::immediate(3, 120), payload], 20),
        Err(Reject::Misplaced { offset: 120 })
    ));
    assert!(matches!(
        parse(&[counter, heap, Item::immediate(3, u64::MAX), payload], 20),
        Err(Reject::Misplaced { .. })
    ));
}

#[test]
fn truncated_or_damaged_packet_is_not_data() {
    let mut packet = Vec::new();
    let mut spead = Spead::new(
        40,
        PacketLayout {
            unit_bytes: 100,
            first: 40,
            rest: 40,
        },
        1,
    );
    spead.build(5, 0, None, &[1; 40], &mut packet);
    for length in 1..packet.len() {
        assert!(
            matches!(spead.parse(&packet[..length]), Err(Reject::Short { .. })),
            "{length}"
        );
    }
    for at in 0..packet.len() {
        for bit in 0..8 {
            let mut wrong = packet.clone();
            wrong[at] ^= 1 << bit;
            let _ = spead.parse(&wrong);
        }
    }
    assert_eq!(
        spead.parse(b"GET / HTTP/1.1"),
        Err(Reject::BadMagic {
            found: 0x4745,
            expected: 0x5304
        })
    );
}

proptest! {
    #[test]
    fn spead_packet_round_trips(
        unit: u64, ticks: u64, heap in 1usize..5000, first in 1usize..1500, rest in 1usize..1500, wide: bool, cut in 0usize..200,
    ) {
        let bits = if wide { 48 } else { 40 };
        let layout = PacketLayout { unit_bytes: heap, first, rest };
        let mut format = Format::Spead(Spead::new(bits, layout, 1).timestamped(0x1600, SCALE));
        let mask = format.unit_mask();
        for sub in 0..layout.count() {
            let payload = vec![u8::try_from(sub % 256).unwrap(); layout.range(sub).len()];
            let mut packet = Vec::new();
            format.build(unit & mask, sub, Some(ticks & mask), &payload, &mut packet);
            let header = packet.len() - payload.len();
            let expected = Parsed::Data(Packet {
                unit: unit & mask,
                sub,

                payload: header..packet.len(),
                timestamp: (sub == 0).then_some(ticks & mask),
            });
            prop_assert_eq!(format.parse(&packet), Ok(expected.clone()));
            prop_assert_eq!(format.header_len(sub), header);
            let cut = cut.min(packet.len());
            match format.parse_split(&packet[..cut], packet.len() - cut) {
                Ok(Split::Whole(whole)) => prop_assert!(cut >= header && whole == expected),
                Ok(Split::Longer { header: longer }) => prop_assert!(cut < longer && longer <= header),
                Err(reject) => prop_assert!(false, "{reject}"),
            }
        }
    }
}

fn configured(text: &str) -> Result<Format, Vec<Problem>> {
    toml::from_str::<SpeadConfig>(text).unwrap().build()
}

#[test]
fn all_problems_of_keys_are_reported_together() {
    let found = configured(
        r#"
        heap = 0
        packet = "70 kB"
        address_bits = 44
        heap_step = 0
        timestamp = { item = 3, rate = "1.5 Hz" }
    "#,
    );
    let found = found.unwrap_err();
    let keys: Vec<_> = found
        .iter()
        .filter_map(|problem| problem.key.clone())
        .collect();
    let expected = [
        "packet",
        "heap",
        "address_bits",
        "heap_step",
        "timestamp.item",
        "timestamp.rate",
    ];
    assert_eq!(keys, expected.map(|key| format!("format.{key}")));
    assert!(toml::from_str::<SpeadConfig>("heap = 4000\npacket = 1432\npackets = 3").is_err());
}

#[test]
fn heap_up_to_the_maximum_is_a_frame_of_its_own_size() {
    let mut format = configured("max_heap = 4000\npacket = 1432\nfirst = 1416").unwrap();
    let mut parse = |counter, heap, offset, bytes: usize, more: &[Item]| {
        let values = [(1, counter), (2, heap), (3, offset), (4, bytes as u64)];
        let items = values.map(|(id, value)| Item::immediate(id, value));
        let mut packet = Vec::new();
        build_packet(40, &[&items, more].concat(), &vec![0; bytes], &mut packet);
        format.parse(&packet)
    };
    let sized = |parsed| match parsed {
        Ok(Parsed::Sized { packet, unit_bytes }) => Some((packet.sub, unit_bytes)),
        _ => None,
    };
    assert_eq!(sized(parse(5, 4000, 2848, 1152, &[])), Some((2, 4000)));
    assert_eq!(sized(parse(6, 10, 0, 10, &[])), Some((0, 10)));
    assert_eq!(sized(parse(7, 1500, 1416, 84, &[])), Some((1, 1500)));
    // A packet that is shorter than its slot in this heap, and one that begins after the end of the heap.
    assert!(matches!(
        parse(7, 1500, 1416, 83, &[]),
        Err(Reject::PayloadLength { expected: 84, .. })
    ));
    assert!(parse(7, 1500, 2848, 10, &[]).is_err());
    // The second packet of a heap with descriptors does not show them.
    let control = |unit, bytes| {
        Ok(Parsed::Control(Control::OtherUnit {
            unit: Some(unit),
            bytes,
        }))
    };
    let descriptor = [Item::addressed(item::DESCRIPTOR, 0)];
    assert_eq!(parse(8, 1500, 0, 1416, &descriptor), control(8, 1500));
    assert_eq!(parse(8, 1500, 1416, 84, &[]), control(8, 1500));
    assert_eq!(parse(9, 4001, 0, 1416, &[]), control(9, 4001));

    let problems = configured("max_heap = 4000\nheap = 4000\nsamples = 0x4300").unwrap_err();
    let keys: Vec<_> = problems
        .iter()
        .filter_map(|found| found.key.as_deref())
        .collect();
    assert_eq!(keys, ["format.heap", "format.samples"]);
}

#[test]
fn configured_heap_is_one_frame() {
    let text = "heap = 4000\npacket = 1432\nfirst = 1416\naddress_bits = 48";
    let format = configured(text).unwrap();
    assert_eq!(format.facts().numbering.packets_per_unit, 3);
    let keys = PacketKeys {
        close_after: crate::packet::keys::default_close_after(),
        window: None,
        max_gap: None,
        resync_after: 4,
        samples: Some(Samples::default()),
    };
    let frames = Frames::new(format, &keys, &Origins::default(), 1, 64);
    let geometry = frames.geometry(8192).unwrap();
    assert_eq!(
        (geometry.packets_per_frame, geometry.frame_bytes),
        (3, 4000)
    );
    assert_eq!(
        (0..3).map(|i| geometry.extent(i)).collect::<Vec<_>>(),
        [0..1416, 1416..2848, 2848..4000]
    );
    assert_eq!(frames.preferred_slot(), 4000);
    let problem = frames.geometry(3999).unwrap_err();
    assert_eq!(problem.key.as_deref(), Some("format.heap"));
}
