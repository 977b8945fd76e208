//! Fuzz tests of packet formats and captures. Arbitrary bytes must be either parsed or rejected, without a panic, a
//! range outside the packet, or an endless loop.
//!
//! `DAQ_FUZZ_SECONDS` is the run time of each target in seconds (default 1).

use daq_core::layout::Samples;
use daq_core::reorder::Geometry;
use daq_drivers::packet::pcap::Capture;
use daq_drivers::packet::spead::{Item, Spead, SpeadConfig, build_packet};
use daq_drivers::packet::{
    Endian, Field, Finding, Format, Origins, PacketLayout, Parsed, Raw, RawConfig, Reject,
    SizeDetector, SourceOfFormat, Split, TimeScale, VdifConfig, Vita49Config,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn time() -> Duration {
    let seconds = std::env::var("DAQ_FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

const SCALE: TimeScale = TimeScale {
    nanoseconds: 1,
    ticks: 3,
    origin_ns: Some(1),
};

/// Checks the properties of every packet, passed as a whole and in two pieces split at `cut`.
fn check(format: &mut Format, packet: &[u8], cut: usize) {
    let whole = format.parse(packet);
    if let Ok(Parsed::Data(data)) = &whole {
        assert!(
            data.payload.end + format.facts().trailer <= packet.len()
                || format.facts().trailer == 0
        );
        assert!(data.payload.end <= packet.len());
        assert!(data.sub < format.facts().numbering.packets_per_unit);
        assert!(data.unit <= format.unit_mask());
        let layout = format.facts().layout;
        let place = layout.range(data.sub % layout.count());
        assert_eq!(data.payload.len(), place.len());
        assert_eq!(format.header_len(data.sub), data.payload.start);
    }
    if let Err(reject) = &whole {
        assert!(!reject.to_string().is_empty() && !reject.name().is_empty());
    }
    let cut = cut.min(packet.len());
    match format.parse_split(&packet[..cut], packet.len() - cut) {
        Ok(Split::Whole(parsed)) => assert_eq!(whole, Ok(parsed)),
        Ok(Split::Longer { header }) => assert!(cut < header && header <= packet.len()),
        Err(reject) => assert!(whole == Err(reject) || matches!(whole, Err(Reject::Short { .. }))),
    }
}

#[test]
fn fuzz_raw() {
    let sequence = Field::new(1, 6, Endian::Little, 3, 40);
    let time_field = Field::new(8, 8, Endian::Big, 0, 64);
    let raw = Raw::new(16, 20, 2, sequence, 5).timestamped(time_field, SCALE);
    bolero::check!()
        .with_type::<(Vec<u8>, u8)>()
        .with_test_time(time())
        .for_each(|(packet, cut)| {
            let mut format = Format::Raw(raw.clone());
            check(&mut format, packet, usize::from(*cut));
            // Also tests a packet of the right length, which arbitrary bytes rarely have.
            let mut right = packet.clone();
            right.resize(38, 0);
            check(&mut format, &right, usize::from(*cut));
        });
}

#[test]
fn fuzz_spead() {
    let layout = PacketLayout {
        unit_bytes: 100,
        first: 24,
        rest: 40,
    };
    bolero::check!()
        .with_type::<(Vec<u8>, Vec<(u8, bool, u64)>, u8, bool)>()
        .with_test_time(time())
        .for_each(|(bytes, items, cut, wide)| {
            let bits = if *wide { 48 } else { 40 };
            let mut format = Format::Spead(Spead::new(bits, layout, 1).timestamped(7, SCALE));
            check(&mut format, bytes, usize::from(*cut));
            // A packet with a valid header that contains items with arbitrary identifiers and values.
            let items: Vec<_> = items
                .iter()
                .map(|(id, immediate, value)| Item {
                    id: u64::from(id % 10),
                    value: if value % 2 == 0 { value % 128 } else { *value },
                    immediate: *immediate,
                })
                .collect();
            let mut packet = Vec::new();
            build_packet(bits, &items, bytes, &mut packet);
            check(&mut format, &packet, usize::from(*cut));
            // A valid packet with one changed byte.
            packet.clear();
            format.build(
                u64::from(*cut),
                u32::from(*cut) % 3,
                Some(9),
                bytes,
                &mut packet,
            );
            let at = bytes
                .first()
                .map_or(0, |byte| usize::from(*byte) % packet.len());
            packet[at] = *cut;
            check(&mut format, &packet, usize::from(*cut));
        });
}

/// Frames of several heaps: the numbers are in items of any packet of a heap, and sizes are known or detected.
#[test]
fn fuzz_spead_parts() {
    fn configured(keys: &str) -> Format {
        let numbers = "frame = { item = 7, step = 2 }\npart = [{ item = 8, count = 3 }, { item = 9, values = [0, 5] }]";
        let config: SpeadConfig =
            toml::from_str(&format!("{keys}\n{numbers}")).expect("the keys are valid");
        config.build().expect("the values are valid")
    }
    let geometry = Geometry {
        parts: 6,
        ..Geometry::new(600, 8)
    };
    bolero::check!()
        .with_type::<Vec<(u8, Vec<(u8, bool, u8)>, Vec<u8>)>>()
        .with_test_time(time())
        .for_each(|packets| {
            let mut format = configured("heap = 100\npacket = 40\nfirst = 24");
            let detector = detector(&configured("samples = \"adc\"\nheap = 100"), &geometry);
            let detector = detector.expect("sizes are unknown");
            for (cut, items, bytes) in packets {
                let items: Vec<_> = items
                    .iter()
                    .map(|(id, immediate, value)| Item {
                        id: u64::from(id % 12),
                        value: u64::from(*value),
                        immediate: *immediate,
                    })
                    .collect();
                let mut packet = Vec::new();
                build_packet(40, &items, bytes, &mut packet);
                check(&mut format, &packet, usize::from(*cut));
                let _ = detector.observe(&packet);
                packet.clear();
                format.build(
                    u64::from(*cut),
                    u32::from(*cut) % 18,
                    None,
                    bytes,
                    &mut packet,
                );
                check(&mut format, &packet, usize::from(*cut));
                let _ = detector.observe(&packet);
            }
            assert!(!detector.restart().is_empty());
        });
}

/// Heaps that differ in size.
#[test]
fn fuzz_spead_sizes() {
    let configured = |keys: &str| {
        let config: SpeadConfig = toml::from_str(keys).expect("the keys are valid");
        config.build().expect("the values are valid")
    };
    let geometry = Geometry::new(600, 8);
    bolero::check!()
        .with_type::<Vec<(Vec<(u8, bool, u8)>, Vec<u8>)>>()
        .with_test_time(time())
        .for_each(|packets| {
            let mut format = configured("max_heap = 200\npacket = 40\nfirst = 24");
            let detector = detector(&configured("max_heap = 200"), &geometry);
            let detector = detector.expect("sizes are unknown");
            for (items, bytes) in packets {
                // All mandatory items exist, and arbitrary items replace their values.
                let mandatory = [(1, 7), (2, 100), (3, 24), (4, bytes.len() as u64)];
                let mandatory = mandatory.map(|(id, value)| Item::immediate(id, value));
                let others = items.iter().map(|(id, immediate, value)| Item {
                    id: u64::from(id % 12),
                    value: u64::from(*value),
                    immediate: *immediate,
                });
                let items: Vec<_> = mandatory.into_iter().chain(others).collect();
                let mut packet = Vec::new();
                build_packet(40, &items, bytes, &mut packet);
                if let Ok(Parsed::Sized {
                    packet: data,
                    unit_bytes,
                }) = format.parse(&packet)
                {
                    let layout = PacketLayout {
                        unit_bytes,
                        ..format.facts().layout
                    };
                    assert!(unit_bytes <= 200 && data.payload.end <= packet.len());
                    assert!(data.sub < layout.count());
                    assert_eq!(data.payload.len(), layout.range(data.sub).len());
                }
                let _ = detector.observe(&packet);
            }
            assert!(!detector.restart().is_empty());
        });
}

#[test]
fn fuzz_kept_fields() {
    let raw = r#"
        header = 24
        payload = 8
        sequence = { offset = 0, bytes = 8 }
        keep = [{ offset = 21, bytes = 3, bits = 10, shift = 14, name = "a" }, { offset = 0, bytes = 8, name = "b" }]
    "#;
    let spead =
        "address_bits = BITS\nkeep = [{ item = 7, name = \"a\" }, { item = 9, name = \"b\" }]";
    let spead = [40, 48].map(|bits| spead.replace("BITS", &bits.to_string()));
    let raw: RawConfig = toml::from_str(raw).unwrap();
    let spead = spead.map(|keys| toml::from_str::<SpeadConfig>(&keys).unwrap());
    bolero::check!()
        .with_type::<(Vec<u8>, Vec<(u8, bool, u64)>)>()
        .with_test_time(time())
        .for_each(|(bytes, items)| {
            let item = |(id, immediate, value): &(u8, bool, u64)| Item {
                id: u64::from(id % 12),
                value: *value,
                immediate: *immediate,
            };
            let items: Vec<_> = items.iter().map(item).collect();
            let mut packet = Vec::new();
            build_packet(48, &items, bytes, &mut packet);
            let formats = [raw.build(), spead[0].build(), spead[1].build()].map(Result::unwrap);
            for (format, packet) in formats
                .iter()
                .flat_map(|format| [(format, bytes), (format, &packet)])
            {
                let kept = format.read_kept(packet);
                assert!(kept.mask() < 1 << format.facts().kept.len());
                for i in 0..3 {
                    assert_eq!(
                        format.explain(Finding::NoKeptField(i), packet).is_some(),
                        i < 2 && matches!(format, Format::Spead(_))
                    );
                }
            }
        });
}

/// Checks a format with arbitrary packets, and with valid packets with one changed byte. The parser keeps its state.
fn check_numbered_by_time(format: fn() -> Format) {
    bolero::check!()
        .with_type::<(Vec<u8>, Vec<(u32, u8, u8)>)>()
        .with_test_time(time())
        .for_each(|(bytes, changes)| {
            let mut format = format();
            check(&mut format, bytes, bytes.len() / 2);
            let mut packet = Vec::new();
            for (n, at, value) in changes {
                packet.clear();
                format.build(u64::from(*n), 0, None, &[7; 64], &mut packet);
                check(&mut format, &packet, usize::from(*at));
                let at = usize::from(*at) % packet.len();
                packet[at] = *value;
                check(&mut format, &packet, usize::from(*value));
                assert!(
                    format
                        .packet_len(&packet[..at])
                        .is_none_or(|length| length <= 1 << 27)
                );
            }
        });
}

fn samples() -> Samples {
    toml::from_str("type = \"int16\"\ncomplex = true\nrate = \"1.6 MHz\"").unwrap()
}

fn vita49() -> Format {
    let config: Vita49Config = toml::from_str("payload = 64\nstream_id = 3").unwrap();
    config.build().unwrap()
}

fn vdif(vtp: bool) -> Format {
    let config: VdifConfig = toml::from_str(&format!("payload = 64\nvtp = {vtp}")).unwrap();
    with_samples(config.build().unwrap())
}

fn with_samples(mut format: Format) -> Format {
    let source = SourceOfFormat {
        origins: &Origins::default(),
        samples: &samples(),
    };
    format.use_source(&source).unwrap();
    format
}

fn detector(format: &Format, geometry: &Geometry) -> Option<Arc<dyn SizeDetector>> {
    format
        .detect()?
        .start_detection(geometry, 1)
        .detect()?
        .detector()
}

#[test]
fn fuzz_vita49() {
    check_numbered_by_time(vita49);
    check_numbered_by_time(|| with_samples(vita49()));
}

#[test]
fn fuzz_vdif() {
    check_numbered_by_time(|| vdif(false));
    check_numbered_by_time(|| vdif(true));
}

#[test]
fn fuzz_pcap() {
    bolero::check!().with_type::<(u8, Vec<u8>, Vec<(u8, Vec<u8>)>)>().with_test_time(time()).for_each(
        |(kind, bytes, blocks)| {
            let mut file = match kind % 4 {
                0 => bytes.clone(),
                1 => b"\x0a\x0d\x0d\x0a\x1c\0\0\0\x4d\x3c\x2b\x1a\x01\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x1c\0\0\0".to_vec(),
                _ => b"\xd4\xc3\xb2\xa1\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\x04\0\x65\0\0\0".to_vec(),
            };
            for (block, body) in blocks {
                let length = u32::try_from(body.len()).expect("generated bodies are short");
                if kind % 4 == 1 {
                    let length = (length.next_multiple_of(4) + 12).to_le_bytes();
                    file.extend((u32::from(*block) % 8).to_le_bytes());
                    file.extend(length);
                    file.extend(body);
                    file.resize(file.len().next_multiple_of(4), 0);
                    file.extend(length);
                } else {
                    file.extend([[*block; 4], [0; 4], length.to_le_bytes(), length.to_le_bytes()].concat());
                    file.extend(body);
                }
            }
            file.extend(bytes);
            let Ok(mut capture) = Capture::new(Path::new("fuzz"), &file[..]) else { return };
            let mut datagrams = 0;
            while let Ok(Some(datagram)) = capture.next() {
                assert!(datagram.payload.len() <= file.len());
                datagrams += 1;
            }
            assert!(capture.next().is_ok_and(|more| more.is_none()), "an ended capture stays ended");
            let used = datagrams + capture.joined();
            assert_eq!(capture.frames(), used + capture.skipped().total());
        },
    );
}
