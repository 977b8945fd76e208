use super::super::{Item, build_packet};
use super::*;
use crate::packet::datagram::{Added, Reassembly};
use crate::packet::{Control, Format, PacketFormat, Parse, Parsed};
use daq_core::frame::KeptFields;
use daq_testkit::assert_fields;

/// Builds the datagrams of one heap: `described` bytes of descriptors, then `samples` bytes, in packets of `packet`
/// bytes.
fn heap(bits: u32, unit: u64, described: usize, samples: usize, packet: usize) -> Vec<Vec<u8>> {
    let length = described + samples;
    let mut datagrams = Vec::new();
    let mut offset = 0;
    while offset < length {
        let mut items = vec![
            Item::immediate(item::HEAP_COUNTER, unit),
            Item::immediate(item::HEAP_LENGTH, length as u64),
            Item::immediate(item::HEAP_OFFSET, offset as u64),
        ];
        let addressed = |id, at: usize| Item {
            id,
            value: at as u64,
            immediate: false,
        };
        let mut pointers = Vec::new();
        if offset == 0 {
            if described > 0 {
                pointers.push(addressed(item::DESCRIPTOR, 0));
            }
            pointers.push(addressed(0x1234, described));
        }
        let room = packet - WORD - (items.len() + 1 + pointers.len()) * WORD;
        let end = (offset + room).min(length);
        items.push(Item::immediate(item::PAYLOAD_LENGTH, (end - offset) as u64));
        items.extend(pointers);
        let payload: Vec<u8> = (offset..end)
            .map(|at| u8::try_from((at as u64 + unit) % 251).unwrap())
            .collect();
        let mut datagram = Vec::new();
        build_packet(bits, &items, &payload, &mut datagram);
        datagrams.push(datagram);
        offset = end;
    }
    datagrams
}

fn detector(given: Given) -> Detector {
    let geometry = Geometry::new(4096, 16);
    Detector::new(&Spead::detecting(given), &geometry, 1)
}

/// Passes `datagrams` to the detector until it has detected the values. Returns the values and the format.
fn detect(given: Given, datagrams: impl IntoIterator<Item = Vec<u8>>) -> (Detected, Spead) {
    let detector = detector(given);
    for datagram in datagrams {
        if detector.observe(&datagram).unwrap() == Progress::Detected {
            break;
        }
    }
    assert_eq!(detector.settle(Instant::now(), true), Progress::Detected);
    let spead = detector.detected_spead("adc").unwrap();
    (*detector.detected.get().unwrap(), spead)
}

#[test]
fn sizes_step_and_flavour_are_detected_from_default_heaps() {
    for (bits, step) in [(40, 1), (48, 2), (40, 24)] {
        let heaps = (0..8).flat_map(|i| {
            let described = if i == 0 { 172 } else { 0 };
            heap(bits, 3 + i * step, described, 60_000, 1472)
        });
        let (detected, _) = detect(Given::default(), heaps);
        let layout = PacketLayout {
            unit_bytes: 60_000,
            first: 1424,
            rest: 1432,
        };
        assert_fields!(detected => layout: layout, step: step, address_bits: bits);
        assert_eq!(detected.described.map(|extent| extent.start), Some(172));
    }
}

#[test]
fn heaps_with_descriptors_equal_heaps_without() {
    let heaps = (0..6).flat_map(|i| heap(40, i, if i == 0 { 172 } else { 0 }, 60_000, 1472));
    let (_, mut spead) = detect(Given::default(), heaps);
    let mut reassembly = Reassembly::of(&spead.facts()).unwrap();
    let mut frame = vec![0; 60_000];
    let mut placed = 0;
    let layout = spead.facts().layout;
    for datagram in heap(40, 9, 172, 60_000, 1472).iter().rev() {
        let Parsed::Fragment(fragment) = spead.parse(datagram).unwrap() else {
            panic!("no fragment");
        };
        let payload = &datagram[fragment.payload.clone()];
        let kept = KeptFields::default();
        let added = reassembly.add(&fragment, Some(1), payload, kept, |sub, bytes, _, _| {
            frame[layout.range(sub)].copy_from_slice(bytes);
            placed += 1;
            true
        });
        assert_eq!(added, Added::New);
        let again = reassembly.add(&fragment, Some(1), payload, kept, |_, _, _, _| {
            panic!("placed twice")
        });
        assert_eq!(again, Added::Repeated);
    }
    assert_eq!(placed, layout.count());
    let expected = (172..60_172).map(|at| u8::try_from((at + 9) % 251).unwrap());
    assert!(frame.into_iter().eq(expected));
}

#[test]
fn packets_with_descriptors_only_are_control() {
    let heaps = (0..6).flat_map(|i| heap(40, i, 3000, 60_000, 1472));
    let (_, spead) = detect(Given::default(), heaps);
    let datagrams = heap(40, 7, 3000, 60_000, 1472);
    let layout = spead.facts().layout;
    let mut format = Format::Spead(spead);
    let first = format.parse(&datagrams[0]).unwrap();
    assert_eq!(first, Parsed::Control(Control::Beside));
    let mut bytes = 0;
    for datagram in &datagrams {
        if let Parsed::Data(data) = format.parse(datagram).unwrap() {
            assert_eq!(layout.range(data.sub).start, bytes);
            bytes += data.payload.len();
        }
    }
    assert_eq!(bytes, 60_000);
}

#[test]
fn one_wrong_packet_does_not_change_detected_sizes() {
    let wrong = heap(40, 1 << 30, 0, 64, 1472);
    let heaps = (0..6).flat_map(|i| heap(40, 2 * i, 0, 60_000, 1472));
    let (detected, _) = detect(Given::default(), wrong.into_iter().chain(heaps));
    assert_fields!(detected.layout => unit_bytes: 60_000, first: 1424);
}

#[test]
fn off_grid_counters_do_not_change_step() {
    // A forged heap between the others, and heaps of descriptors with a separate count.
    let forged = |i: u64| (i == 1).then(|| heap(40, 3, 0, 60_000, 1472));
    let descriptors = |i: u64| (i % 3 == 2).then(|| heap(40, 1 << 35 | i, 300, 0, 1472));
    for others in [
        &forged as &dyn Fn(u64) -> Option<Vec<Vec<u8>>>,
        &descriptors,
    ] {
        let heaps = (0..8).flat_map(|i| {
            let mut datagrams = heap(40, 8 * i, 0, 60_000, 1472);
            datagrams.extend(others(i).into_iter().flatten());
            datagrams
        });
        assert_eq!(detect(Given::default(), heaps).0.step, 8);
    }
}

#[test]
fn heap_longer_than_slot_is_rejected_with_fix() {
    let detector = detector(Given::default());
    let datagrams: Vec<_> = (0..6).flat_map(|i| heap(40, i, 0, 70_000, 1472)).collect();
    let refused = datagrams
        .iter()
        .any(|datagram| detector.observe(datagram).unwrap() == Progress::Refused);
    assert!(refused);
    let why = detector.restart();
    assert!(why.contains("set `slot = "), "{why}");
}

#[test]
fn other_heap_size_than_configured_is_reported() {
    for (samples, wanted) in [
        (
            None,
            "a heap has 60000 bytes, but `heap` is 50000: set `heap = 60000`",
        ),
        (
            Some(0x1234),
            "the item 0x1234 of a heap has 60000 bytes, but `heap` is 50000",
        ),
        (Some(0x1235), "no heap has the item 0x1235 in its payload"),
    ] {
        let mut spead = Spead::detecting(Given {
            heap: Some(50_000),
            ..Given::default()
        });
        spead.samples = samples.map(SampleItem::Id);
        let detector = Detector::new(&spead, &Geometry::new(4096, 16), 1);
        for datagram in (0..6).flat_map(|i| heap(40, i, 0, 60_000, 1472)) {
            assert_eq!(detector.observe(&datagram), Ok(Progress::Detecting));
        }
        assert_eq!(detector.settle(Instant::now(), true), Progress::Refused);
        let why = detector.restart();
        assert!(why.contains(wanted), "{why}");
    }
}

#[test]
fn given_keys_are_kept() {
    let given = Given {
        heap: Some(60_000),
        step: Some(1),
        ..Given::default()
    };
    let heaps = (0..6).flat_map(|i| heap(40, 2 * i, 0, 60_000, 1472));
    let (detected, _) = detect(given, heaps);
    assert_eq!((detected.step, detected.layout.unit_bytes), (1, 60_000));
}

#[test]
fn datagram_longer_than_its_header_states_is_rejected() {
    let heaps = (0..6).flat_map(|i| heap(40, i, 0, 60_000, 1472));
    let (_, mut spead) = detect(Given::default(), heaps);
    for mut datagram in heap(40, 7, 0, 60_000, 1472) {
        let expected = datagram.len();
        assert_eq!(spead.packet_len(&datagram), Some(expected));
        datagram.push(0);
        let long = Reject::Long {
            expected,
            got: expected + 1,
        };
        assert_eq!(spead.parse(&datagram), Err(long));
    }
}

#[test]
fn packet_with_thousands_of_items_is_observed() {
    let item = |id: u64, value: u64| (1 << 63 | id << 48 | value).to_be_bytes();
    let longest = (1 << 48) - 1;
    let mut words = vec![item(1, 7), item(2, longest), item(3, 0), item(4, 0)];
    words.resize(8000, (0x1000_u64 << 48).to_be_bytes());
    let count = u16::try_from(words.len()).unwrap().to_be_bytes();
    let mut datagram = vec![0x53, 4, 2, 6, 0, 0, count[0], count[1]];
    datagram.extend(words.concat());
    let detector = detector(Given::default());
    assert_eq!(detector.observe(&datagram), Ok(Progress::Detecting));
    assert!(matches!(
        detector.settle(Instant::now(), true),
        Progress::Detecting | Progress::Refused
    ));
}
