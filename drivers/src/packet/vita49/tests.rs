#![allow(
    clippy::cast_possible_truncation,
    reason = "the fields of packets have this size"
)]

use super::*;
use crate::packet::Format;
use daq_core::frame::{Clock, Timestamp};
use daq_core::layout::Scalar;
use daq_core::units::Frequency;
use daq_testkit::Random;

/// A packet, built bit by bit as VITA 49.2 describes it.
#[derive(Clone, Debug)]
struct Sent {
    kind: u32,
    stream: Option<u32>,
    class: Option<u64>,
    tsi: u32,
    tsf: u32,
    seconds: u32,
    fraction: u64,
    count: u32,
    body: Vec<u8>,
    trailer: Option<u32>,
}

impl Default for Sent {
    fn default() -> Self {
        Self {
            kind: 1,
            stream: Some(0x2a),
            class: None,
            tsi: 1,
            tsf: 2,
            seconds: 1_700_000_000,
            fraction: 0,
            count: 0,
            body: vec![7; 64],
            trailer: None,
        }
    }
}

impl Sent {
    fn bytes(&self) -> Vec<u8> {
        let mut words = vec![0u32];
        words.extend(self.stream);
        if let Some(class) = self.class {
            words.extend([(class >> 32) as u32, class as u32]);
        }
        if self.tsi > 0 {
            words.push(self.seconds);
        }
        if self.tsf > 0 {
            words.extend([(self.fraction >> 32) as u32, self.fraction as u32]);
        }
        let size = words.len() + self.body.len() / 4 + usize::from(self.trailer.is_some());
        words[0] = self.kind * 0x1000_0000
            + u32::from(self.class.is_some()) * 0x0800_0000
            + u32::from(self.trailer.is_some()) * 0x0400_0000
            + self.tsi * 0x0040_0000
            + self.tsf * 0x0010_0000
            + self.count * 0x0001_0000
            + u32::try_from(size).unwrap();
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        bytes.extend(&self.body);
        bytes.extend(self.trailer.into_iter().flat_map(u32::to_be_bytes));
        bytes
    }
}

/// Returns the format of packets with 16 complex int16be samples, 1 MHz.
fn format(keys: &str, rate: Option<f64>) -> Format {
    let config: Vita49Config = toml::from_str(&format!("payload = 64\n{keys}")).unwrap();
    let mut format = config.build().unwrap();
    format.use_samples(&samples(rate)).unwrap();
    format
}

fn samples(rate: Option<f64>) -> Samples {
    Samples {
        scalar: Scalar::Int16be,
        complex: true,
        rate: rate.map(Frequency),
        ..Samples::default()
    }
}

fn data(format: &mut Format, sent: &Sent) -> Packet {
    match format.parse(&sent.bytes()) {
        Ok(Parsed::Data(packet)) => packet,
        other => panic!("{other:?}"),
    }
}

fn rejected(format: &mut Format, sent: &Sent) -> &'static str {
    format.parse(&sent.bytes()).unwrap_err().name()
}

#[test]
fn payload_follows_any_combination_of_fields() {
    for bits in 0..64 {
        let has = |bit: u32| bits >> bit & 1 == 1;
        let sent = Sent {
            kind: u32::from(has(0)),
            stream: has(0).then_some(0x2a),
            class: has(1).then_some(0x0012_3456_789a_bcde),
            tsi: u32::from(has(2)),
            tsf: 3 * u32::from(has(3)),
            trailer: has(4).then_some(0),
            count: if has(5) { 15 } else { 0 },
            ..Sent::default()
        };
        let bytes = sent.bytes();
        let packet = data(&mut format("", Some(1e6)), &sent);
        assert_eq!(bytes[packet.payload], [7; 64]);
    }
}

#[test]
fn padding_is_not_payload() {
    // The class states 24 bits of padding.
    let sent = Sent {
        class: Some(24 << 59),
        body: [vec![7; 61], vec![0; 3]].concat(),
        ..Sent::default()
    };
    let config: Vita49Config = toml::from_str("payload = 61").unwrap();
    let mut format = config.build().unwrap();
    assert_eq!(data(&mut format, &sent).payload.len(), 61);
}

#[test]
fn timestamps_are_utc_gps_or_of_the_sensor() {
    let time = |sent: &Sent| {
        let mut format = format("", Some(1e6));
        let packet = data(&mut format, sent);
        let received = Timestamp {
            ns: 5,
            clock: Clock::Kernel,
        };
        let time = format.time(packet.timestamp, received);
        (time.ns, time.clock)
    };
    let sent = Sent {
        fraction: 999_999_999_999,
        ..Sent::default()
    };
    assert_eq!(time(&sent), (1_700_000_000_999_999_999, Clock::SensorUtc));
    // 2017-01-01T00:00:00Z is 1167264018 s of GPS.
    let sent = Sent {
        tsi: 2,
        tsf: 1,
        seconds: 1_167_264_018,
        fraction: 16,
        ..Sent::default()
    };
    assert_eq!(time(&sent), (1_483_228_800_000_016_000, Clock::SensorUtc));
    let sent = Sent {
        tsi: 3,
        seconds: 9,
        ..Sent::default()
    };
    assert_eq!(time(&sent), (9_000_000_000, Clock::Sensor));
    // In DIFI, this is POSIX time.
    let sent = Sent {
        class: Some(0x6a_621e_0000_0000),
        ..sent
    };
    assert_eq!(time(&sent), (9_000_000_000, Clock::SensorUtc));
    let mut sent = Sent {
        tsi: 0,
        tsf: 3,
        fraction: 2_000_016,
        ..Sent::default()
    };
    assert_eq!(time(&sent), (2_000_016_000, Clock::Sensor));
    // The integer seconds say nothing about a free-running count.
    for tsi in [1, 2] {
        sent.tsi = tsi;
        assert_eq!(time(&sent), (2_000_016_000, Clock::Sensor));
    }
    let sent = Sent {
        tsf: 0,
        ..Sent::default()
    };
    assert_eq!(time(&sent), (5, Clock::Kernel));
}

#[test]
fn without_sample_rate_the_count_numbers_packets() {
    let mut format = format("", None);
    assert_eq!(format.facts().numbering.width, 4);
    assert!(format.facts().notes[0].contains("4-bit count"));
    let (key, help) = format.facts().number_advice;
    assert_eq!(key, "samples");
    assert!(help.starts_with("set `rate` in `samples`"), "{help}");
    for count in [3, 4, 15] {
        let sent = Sent {
            count,
            ..Sent::default()
        };
        assert_eq!(data(&mut format, &sent).unit, u64::from(count));
    }
}

#[test]
fn packets_without_timestamp_continue_by_their_count() {
    let mut format = format("", Some(1e6));
    let counts = Counts::in_memory(&format.facts().counts);
    format.start("adc", &counts);
    let sent = |count| Sent {
        tsi: 0,
        tsf: 0,
        count,
        ..Sent::default()
    };
    let first = data(&mut format, &sent(14)).unit;
    for (count, ahead) in [(15, 1), (1, 3), (0, 2), (0, 2), (1, 3), (8, 10)] {
        assert_eq!(data(&mut format, &sent(count)).unit, first + ahead);
    }
    assert_eq!(counts.read().get("untimed"), 6);
}

#[test]
fn other_streams_and_other_packets_are_rejected() {
    let mut one = format("stream_id = 0x2a", Some(1e6));
    let other = Sent {
        stream: Some(0x2b),
        ..Sent::default()
    };
    assert_eq!(rejected(&mut one, &other), "other_stream");
    let text = one.parse(&other.bytes()).unwrap_err().to_string();
    assert!(text.contains("stream_id 0x2b, not 0x2a"), "{text}");
    let unnamed = Sent {
        kind: 0,
        stream: None,
        ..Sent::default()
    };
    assert_eq!(rejected(&mut one, &unnamed), "missing_item");
    // By default, the stream of the first packet, for all threads.
    let mut first = format("", Some(1e6));
    let mut thread = first.clone();
    data(&mut first, &Sent::default());
    assert_eq!(rejected(&mut thread, &other), "other_stream");
    for (sent, reason) in [
        (
            Sent {
                kind: 3,
                ..Sent::default()
            },
            "extension_data",
        ),
        (
            Sent {
                kind: 8,
                ..Sent::default()
            },
            "packet_type",
        ),
        (
            Sent {
                body: vec![7; 60],
                ..Sent::default()
            },
            "payload_size",
        ),
        (
            Sent {
                fraction: 1_000_000_000_000,
                ..Sent::default()
            },
            "timestamp",
        ),
    ] {
        assert_eq!(rejected(&mut one, &sent), reason);
    }
    let mut bytes = Sent::default().bytes();
    bytes.push(0);
    assert_eq!(one.parse(&bytes).unwrap_err().name(), "long");
    bytes.truncate(80);
    assert_eq!(one.parse(&bytes).unwrap_err().name(), "short");
}

#[test]
fn trailer_is_counted_once_per_packet() {
    let mut format = format("", Some(1e6));
    let counts = Counts::in_memory(&format.facts().counts);
    format.start("adc", &counts);
    let enabled = [30, 25, 24].map(|bit| 1 << bit);
    let all: u32 = enabled.iter().sum();
    let trailers = [
        // Bits that are not enabled.
        1 << 13 | 1 << 12,
        // Valid data.
        all | 1 << 18,
        // Invalid data.
        all,
        all | 1 << 18 | 1 << 13,
        all | 1 << 18 | 1 << 12,
    ];
    for (n, trailer) in (0..).zip(trailers) {
        let sent = Sent {
            count: n,
            fraction: u64::from(n) * 16_000_000,
            trailer: Some(trailer),
            ..Sent::default()
        };
        let bytes = sent.bytes();
        // The trailer is not in the first bytes, so the parser asks for the whole packet.
        let split = format.parse_split(&bytes[..28], bytes.len() - 28);
        assert_eq!(
            split,
            Ok(Split::Longer {
                header: bytes.len()
            })
        );
        for _ in 0..2 {
            data(&mut format, &sent);
        }
    }
    let counts = counts.read();
    let flags =
        ["invalid_data", "over_range", "sample_loss", "off_grid"].map(|name| counts.get(name));
    assert_eq!(flags, [1, 1, 1, 0]);
}

/// A context packet with most fields of the indicator word.
fn context() -> Sent {
    let mut body = Vec::new();
    let mut add = |bytes: &[u8]| body.extend_from_slice(bytes);
    let hz = |hz: f64| ((hz * 1_048_576.0) as i64).to_be_bytes();
    // Changed, reference point, bandwidth, RF frequency, level, gain, sample rate, temperature, device, payload format;
    // a second indicator word.
    add(&0b1110_1001_1010_0110_1000_0000_0000_0010_u32.to_be_bytes());
    add(&[0xff; 4]);
    add(&[0; 4]);
    add(&hz(800_000.0));
    add(&hz(1_420_405_751.768));
    add(&[0, 0, 0xfb, 0x80]);
    add(&[0, 0, 0x0c, 0x80]);
    add(&hz(1e6));
    add(&[0, 0, 0x08, 0x20]);
    add(&[0, 0x12, 0x34, 0x56, 0, 0, 0x78, 0x9a]);
    // Complex cartesian, signed, 16 bits in 16 bits.
    add(&[0x20, 0, 0x03, 0xcf, 0, 0, 0, 0]);
    Sent {
        kind: 4,
        body,
        ..Sent::default()
    }
}

#[test]
fn context_is_read_and_its_changes_are_named() {
    let mut format = format("", Some(1e6));
    let packet = context().bytes();
    assert_eq!(format.parse(&packet), Ok(Parsed::Control(Control::Beside)));
    let Format::Vita49(vita49) = &format else {
        unreachable!()
    };
    let context = &vita49.streams[0].context;
    let text = context.changes(&Context::default());
    let mhz = 1_420_405_751.768_f64;
    let [first, rf, rest] = [0, 1, 2].map(|i| text.splitn(3, ", ").nth(i).unwrap().to_owned());
    assert_eq!(first, "bandwidth 800000 Hz");
    let found: f64 = rf.split(' ').nth(2).unwrap().parse().unwrap();
    assert!((found - mhz).abs() < 1e-6, "{rf}");
    assert_eq!(
        rest,
        "reference level -9 dBm, gain 25 dB, sample rate 1000000 Hz, temperature 32.5 °C, device 123456-789a, \
         payload complex int16be"
    );
    assert_eq!(context.changes(context), "");
    assert!(!vita49.notes.is_contradiction_logged);
    let mut other = super::Vita49::clone(vita49);
    other.use_samples(&samples(Some(2e6))).unwrap();
    other.parse(&packet).unwrap();
    assert!(other.notes.is_contradiction_logged);
}

#[test]
fn frames_keep_values_of_the_last_context() {
    let mut format = format(
        "keep = [\"sample_rate\", \"if_frequency\", \"rf_frequency\"]",
        Some(1e6),
    );
    assert_eq!(
        format.facts().kept,
        ["sample_rate", "if_frequency", "rf_frequency"]
    );
    assert_eq!(format.read_kept(&[]), KeptFields::default());
    format.parse(&context().bytes()).unwrap();
    // The context has no IF frequency.
    let expected = KeptFields::default()
        .with(0, 1_000_000)
        .with(2, 1_420_405_752);
    assert_eq!(format.read_kept(&[]), expected);
}

#[test]
fn context_of_another_stream_is_ignored() {
    let mut format = format("stream_id = 1", Some(1e6));
    format.parse(&context().bytes()).unwrap();
    let Format::Vita49(vita49) = &format else {
        unreachable!()
    };
    assert_eq!(vita49.streams[0].context, Context::default());
}

#[test]
fn built_packets_are_parsed() {
    for rate in [None, Some(1e6)] {
        let mut format = format("stream_id = 9", rate);
        let mut bytes = Vec::new();
        format.build(0, 0, None, &[7; 64], &mut bytes);
        let Ok(Parsed::Data(first)) = format.parse(&bytes) else {
            panic!("{bytes:?}")
        };
        bytes.clear();
        format.build(13, 0, None, &[7; 64], &mut bytes);
        let Ok(Parsed::Data(packet)) = format.parse(&bytes) else {
            panic!("{bytes:?}")
        };
        assert_eq!(packet.unit, first.unit + 13);
        assert_eq!(bytes[packet.payload], [7; 64]);
    }
}

/// Returns `format` for sending frames of 256 bytes of complex samples of `rate`.
fn for_sending(format: &Format, rate: Option<f64>, scalar: Scalar) -> Result<Format, Problem> {
    let samples = Samples {
        scalar,
        complex: true,
        ..samples(rate)
    };
    let frames = OutgoingFrames {
        layout: samples.layout(256).unwrap(),
        frame_bytes: 256,
        is_continuous: true,
        max_packet: 1472,
    };
    Ok(format.for_sending(&frames)?.unwrap())
}

#[test]
fn sent_packets_have_the_header_of_difi() {
    let sender = for_sending(&format("stream_id = 0x51", None), Some(1e6), Scalar::Int8).unwrap();
    let ns = 1_700_000_000_250_000_001;
    let mut bytes = Vec::new();
    sender.build(0x12d, 0, Some(ns), &[7; 64], &mut bytes);
    // Type 1 with class, POSIX time and picoseconds, count 13, 7 + 16 words.
    let words = [0x18ed_0017_u32, 0x51, 0x6a_621e, 0, 1_700_000_000];
    let fraction = 250_000_001_000_u64;
    let header: Vec<u8> = words
        .into_iter()
        .flat_map(u32::to_be_bytes)
        .chain(fraction.to_be_bytes())
        .collect();
    assert_eq!(bytes[..28], header);
    // The next packet is 32 samples later, whatever the time of its frame is.
    bytes.clear();
    sender.build(0x12e, 0, Some(ns + 17_777), &[7; 64], &mut bytes);
    assert_eq!(bytes[20..28], (fraction + 32_000_000).to_be_bytes());
    // DIFI's numbers of 16 bits are big-endian.
    let other = for_sending(&format("", None), Some(1e6), Scalar::Int16).unwrap();
    bytes.clear();
    other.build(0, 0, Some(ns), &[7; 64], &mut bytes);
    let prologue = Prologue::parse(&bytes).unwrap();
    assert_eq!((prologue.bytes, prologue.stream), (20, Some(0)));
}

/// Returns the words of the next description of a stream that begins with the packet `unit` at `ns`.
fn describe(sender: &Format, unit: u64, ns: u64, packets: &mut Vec<Vec<u8>>) -> Vec<u32> {
    let frames = OutgoingFrames {
        layout: samples(None).layout(256).unwrap(),
        frame_bytes: 256,
        is_continuous: true,
        max_packet: 1472,
    };
    sender.describe(&frames, unit, Some(ns), packets);
    let words = packets.iter().flat_map(|packet| packet.chunks(4));
    words
        .map(|word| u32::from_be_bytes(word.try_into().unwrap()))
        .collect()
}

#[test]
fn sent_context_has_the_fields_of_difi() {
    let sender = for_sending(&format("stream_id = 0x51", None), Some(1e6), Scalar::Int8).unwrap();
    let (ns, mut packets) = (1_700_000_000_250_000_000, Vec::new());
    let words = describe(&sender, 4, ns, &mut packets);
    let fraction = 250_000_000_000_u64;
    let rate = 1_000_000_u64 << 20;
    let high = |number: u64| (number >> 32) as u32;
    let low = |number: u64| number as u32;
    let mut wanted = vec![
        // Type 4 with class and the time of a change, POSIX time and picoseconds, count 0, 27 words.
        0x49e0_001b,
        0x51,
        0x6a_621e,
        1,
        1_700_000_000,
        high(fraction),
        low(fraction),
        // Changed: reference point, bandwidth, IF and RF frequency, offset, level, gain, rate, times, state and format.
        0xfbb9_8000,
        100,
        high(rate),
        low(rate),
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        high(rate),
        low(rate),
        0,
        0,
        0,
        0,
        // Without unused bits, complex, signed integers of 8 bits in 8 bits, one channel.
        0xa000_01c7,
        0,
    ];
    assert_eq!(words, wanted);
    // 32 samples later, the second packet has the next count, and states no change.
    let later = describe(&sender, 5, ns, &mut packets);
    wanted[0] += 1 << 16;
    wanted[6] += 32_000_000;
    wanted[7] &= !(1 << 31);
    assert_eq!(later, wanted);
    let Ok(Parsed::Control(_)) = sender.clone().parse(&packets[0]) else {
        panic!("{packets:?}")
    };
}

#[test]
fn sent_context_describes_all_types_of_the_standard() {
    for (scalar, item) in [
        (Scalar::Int8, 0x2000_01c7),
        (Scalar::Int16be, 0x2000_03cf),
        (Scalar::Uint16be, 0x3000_03cf),
        (Scalar::Int32be, 0x2000_07df),
        (Scalar::Float32be, 0x2e00_07df),
    ] {
        let sender = for_sending(&format("", None), Some(2.5), scalar).unwrap();
        let words = describe(&sender, 0, 7_000_000_000, &mut Vec::new());
        assert_eq!(words[words.len() - 2..], [1 << 31 | item, 0], "{scalar}");
        if !matches!(scalar, Scalar::Int8 | Scalar::Int16be) {
            // Prologue without class, sample rate and type.
            assert_eq!(words[0], 0x4160_000a, "{scalar}");
            assert_eq!(words[5..8], [0x8020_8000, 0, 5 << 19], "{scalar}");
        }
    }
    for scalar in [Scalar::Bfloat16, Scalar::Int16] {
        let sender = for_sending(&format("", None), Some(1e6), scalar).unwrap();
        assert!(describe(&sender, 0, 7_000_000_000, &mut Vec::new()).is_empty());
    }
}

#[test]
fn sent_packets_are_received_with_consecutive_numbers() {
    // The period of packets is not a whole number of picoseconds, and frames have receive times.
    let rate = Some(30_000_001.0 / 7.0);
    let sender = for_sending(&format("stream_id = 0x51", None), rate, Scalar::Int16).unwrap();
    let mut receiver = format("stream_id = 0x51", None);
    receiver
        .use_samples(&Samples {
            scalar: Scalar::Int16,
            complex: true,
            ..samples(rate)
        })
        .unwrap();
    let mut random = Random(5);
    let (mut first, mut ns) = (None, 1_700_000_000_000_000_000);
    for n in 0..50_000 {
        ns += 3733;
        let mut bytes = Vec::new();
        sender.build(
            n,
            0,
            Some(ns + random.below(1_000_000)),
            &[7; 64],
            &mut bytes,
        );
        if n % 97 < 40 && n > 0 {
            continue;
        }
        let Ok(Parsed::Data(packet)) = receiver.parse(&bytes) else {
            panic!("{bytes:?}")
        };
        let unit = packet.unit;
        let first = *first.get_or_insert(unit);
        assert_eq!(unit - first, n);
    }
    let Format::Vita49(vita49) = &receiver else {
        unreachable!()
    };
    assert!(!vita49.notes.is_off_grid_logged);
}

#[test]
fn frames_that_timestamps_cannot_number_are_not_sent() {
    let key = |result: Result<Format, Problem>| result.unwrap_err().key.unwrap();
    let any = format("", None);
    assert_eq!(key(for_sending(&any, None, Scalar::Int16)), "format.kind");
    let odd: Vita49Config = toml::from_str("payload = 62").unwrap();
    let odd = odd.build().unwrap();
    let found = for_sending(&odd, Some(1e6), Scalar::Int8);
    assert_eq!(key(found), "format.payload");
    for (is_continuous, order) in [(false, Order::Interleaved), (true, Order::Planar)] {
        let samples = Samples {
            channels: 2,
            order,
            ..samples(Some(1e6))
        };
        let frames = OutgoingFrames {
            layout: samples.layout(256).unwrap(),
            frame_bytes: 256,
            is_continuous,
            max_packet: 1472,
        };
        let problem = any.for_sending(&frames).unwrap_err();
        assert_eq!(problem.key.as_deref(), Some("format.kind"));
    }
}

#[test]
fn keys_that_do_not_fit_the_samples_are_reported() {
    let with = |keys: &str, rate| {
        let config: Vita49Config = toml::from_str(keys).unwrap();
        let mut format = config.build().map_err(|found| found[0].clone())?;
        format.use_samples(&samples(rate))
    };
    let key = |keys, rate| with(keys, rate).unwrap_err().key.unwrap();
    assert_eq!(key("payload = 66", Some(1e6)), "format.payload");
    assert_eq!(key("payload = 0", None), "format.payload");
    // 16 samples at 1 MHz last 16 µs.
    let keys = "payload = 64\ntolerance = \"8 us\"";
    assert_eq!(key(keys, Some(1e6)), "format.tolerance");
    assert!(with(keys, Some(1e3)).is_ok() && with("payload = 66", None).is_ok());
}

/// Returns packets with every combination of fields and arbitrary values.
fn packets() -> Vec<Sent> {
    let mut random = Random(49);
    let mut number = |below: u64| random.below(below);
    let packets = (0..300).map(|_| {
        let kind = u32::try_from(number(2)).unwrap();
        let words = 1 + number(20);
        Sent {
            kind,
            stream: (kind == 1).then_some(number(1 << 32) as u32),
            // Without padding, which Wireshark does not know.
            class: (number(2) == 1).then_some(number(1 << 56)),
            tsi: number(4) as u32,
            tsf: number(4) as u32,
            seconds: number(1 << 32) as u32,
            fraction: number(1_000_000_000_000),
            count: number(16) as u32,
            body: (0..4 * words).map(|_| number(256) as u8).collect(),
            trailer: (number(2) == 1).then_some(number(1 << 32) as u32),
        }
    });
    packets.collect()
}

/// Returns a capture of UDP datagrams to port 4991.
fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
    let words = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101];
    let mut file: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    for packet in packets {
        let udp = u16::try_from(packet.len() + 8).unwrap();
        let length = u32::from(udp) + 20;
        file.extend(
            [1, 0, length, length]
                .into_iter()
                .flat_map(u32::to_le_bytes),
        );
        file.extend([0x45, 0]);
        file.extend((udp + 20).to_be_bytes());
        file.extend([0, 1, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        file.extend([4991, 4991, udp, 0].into_iter().flat_map(u16::to_be_bytes));
        file.extend(packet);
    }
    file
}

#[test]
fn wireshark_finds_the_same_fields() {
    let Some(tshark) = daq_testkit::program("tshark") else {
        daq_testkit::skip!("tshark is not installed");
    };
    let sent = packets();
    let bytes: Vec<_> = sent.iter().map(Sent::bytes).collect();
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("vita49.pcap");
    std::fs::write(&path, capture(&bytes)).unwrap();
    let fields = [
        "type",
        "seq",
        "len",
        "sid",
        "tsi",
        "tsf",
        "ts_int",
        "ts_frac_sample",
        "ts_frac_picosecond",
        "data",
        "trailer",
        "valid_en",
        "valid",
        "overrng_en",
        "overrng",
        "sampleloss_en",
        "sampleloss",
    ];
    let output = std::process::Command::new(tshark)
        .arg("-r")
        .arg(&path)
        .args([
            "-d",
            "udp.port==4991,vrt",
            "-T",
            "fields",
            "-E",
            "separator=|",
        ])
        .args(
            fields
                .iter()
                .flat_map(|field| ["-e".to_owned(), format!("vrt.{field}")]),
        )
        .output()
        .unwrap();
    let lines = String::from_utf8_lossy(&output.stdout);
    assert_eq!(lines.lines().count(), sent.len(), "{output:?}");
    for (line, bytes) in lines.lines().zip(&bytes) {
        let found: Vec<_> = line.split('|').collect();
        let value = |name: &str| found[fields.iter().position(|field| *field == name).unwrap()];
        let number = |name: &str| {
            let text = value(name);
            match text.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
                None => text.parse().unwrap_or(0),
            }
        };
        let prologue = Prologue::parse(bytes).unwrap();
        assert_eq!(prologue.kind, Kind::SignalData);
        assert_eq!(
            u64::from(prologue.stream.is_some()),
            number("type"),
            "{line}"
        );
        assert_eq!(u64::from(prologue.count), number("seq"), "{line}");
        assert_eq!(prologue.packet as u64, 4 * number("len"), "{line}");
        assert_eq!(
            u64::from(prologue.stream.unwrap_or(0)),
            number("sid"),
            "{line}"
        );
        let stamp = prologue.stamp;
        assert_eq!(
            (stamp.reference as u64, stamp.unit as u64),
            (number("tsi"), number("tsf")),
            "{line}"
        );
        assert_eq!(u64::from(stamp.seconds), number("ts_int"), "{line}");
        // Wireshark names a free-running count `ts_frac_sample` too.
        let fraction = number("ts_frac_sample").max(number("ts_frac_picosecond"));
        assert_eq!(stamp.fraction, fraction, "{line}");
        let data = &bytes[prologue.bytes..prologue.packet - prologue.trailer];
        assert_eq!(daq_testkit::hex(data), value("data"), "{line}");
        assert_eq!(prologue.trailer > 0, !value("trailer").is_empty(), "{line}");
        if prologue.trailer > 0 {
            let counts = Counts::in_memory(&[StreamCounts::SET]);
            let notes = Notes {
                counts: StreamCounts::of(&counts),
                ..Notes::default()
            };
            notes.count_trailer(bytes, prologue.packet - WORD);
            let counts = counts.read();
            let is =
                |name: &str, state| number(&format!("{name}_en")) == 1 && number(name) == state;
            assert_eq!(counts.get("invalid_data") == 1, is("valid", 0), "{line}");
            assert_eq!(counts.get("over_range") == 1, is("overrng", 1), "{line}");
            assert_eq!(
                counts.get("sample_loss") == 1,
                is("sampleloss", 1),
                "{line}"
            );
        }
    }
}
