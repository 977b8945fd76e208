use super::decode::Samples;
use super::hub::Hub;
use super::npy::NpyFile;
use super::reduce::Reducer;
use super::threads::Threads;
use super::*;
use daq_core::frame::{Clock, Flags, FrameMeta, PacketSizes, Present, Timestamp};
use daq_core::layout::{Axis, Order, Samples as SampleKeys, Scalar};
use daq_core::ring::RingOptions;
use daq_core::units::Frequency;
use daq_testkit::ring::RingFixture;
use daq_testkit::{assert_contains, wait_for};
use serde_json::Value;
use std::collections::BTreeMap;
use std::f64::consts::TAU;

mod budget;
mod images;

/// A ring of frames with the layout that `samples` describes.
fn scoped(samples: &SampleKeys, bytes: usize, packets: u32) -> (RingFixture, ScopedRing) {
    let options = RingOptions {
        packets_per_frame: packets,
        ..RingOptions::new("raw", 8, bytes)
    };
    let fixture = RingFixture::new(options);
    let ring = ScopedRing {
        ring: fixture.ring.clone(),
        layout: samples.layout(bytes).unwrap(),
        parts: Vec::new(),
    };
    (fixture, ring)
}

/// Real int16 samples at 1 MHz.
fn int16(channels: u32) -> SampleKeys {
    SampleKeys {
        scalar: Scalar::Int16,
        channels,
        rate: Some(Frequency(1e6)),
        ..SampleKeys::default()
    }
}

fn bytes_of(numbers: impl IntoIterator<Item = i16>) -> Vec<u8> {
    numbers.into_iter().flat_map(i16::to_le_bytes).collect()
}

/// A sine of `amplitude` in bin `bin` of `size` points.
fn tone(amplitude: f64, bin: f64, size: usize, count: usize) -> impl Iterator<Item = i16> {
    (0..count).map(move |n| (amplitude * (TAU * bin * n as f64 / size as f64).cos()).round() as i16)
}

/// A decoded message.
struct Message {
    header: Value,
    data: BTreeMap<String, Vec<f32>>,
}

impl Message {
    fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let (text, data) = bytes[8..].split_at(word(0));
        assert_eq!((data.len(), data.len() % 4, word(0) % 4), (word(4), 0, 0));
        let header: Value = serde_json::from_slice(text).unwrap();
        let mut floats = data
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes));
        let mut arrays = BTreeMap::new();
        for array in header["arrays"].as_array().into_iter().flatten() {
            let shape = array["shape"].as_array().unwrap();
            let count = shape
                .iter()
                .map(|axis| axis.as_u64().unwrap() as usize)
                .product();
            let values: Vec<_> = floats.by_ref().take(count).collect();
            assert_eq!(values.len(), count, "{array}");
            arrays.insert(array["name"].as_str().unwrap().to_owned(), values);
        }
        assert_eq!(floats.next(), None, "the message has more data than arrays");
        Self {
            header,
            data: arrays,
        }
    }

    /// Returns the index and the value of the largest number of an array.
    fn peak(&self, name: &str) -> (usize, f32) {
        let values = self.data[name].iter().copied().enumerate();
        values.max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap()
    }
}

/// Publishes a frame, and reduces it.
fn reduced(
    fixture: &mut RingFixture,
    ring: &ScopedRing,
    meta: FrameMeta,
    bytes: Vec<u8>,
    query: &str,
) -> Message {
    fixture.write(&[(meta, bytes)]);
    let mut tap = ring.ring.tap().unwrap();
    let frame = tap.newest().unwrap().unwrap();
    let samples = Samples::new(&ring.layout, frame.meta(), frame.present(), frame.bytes());
    let mut reducer = Reducer::new(View::parse(query).unwrap());
    Message::parse(&reducer.reduce(ring, frame.index(), &samples, &|| true))
}

fn meta(sequence: u64) -> FrameMeta {
    FrameMeta {
        timestamp: Timestamp {
            ns: 1_500_000_000,
            clock: Clock::Host,
        },
        ..FrameMeta::whole(sequence, 0)
    }
}

#[test]
fn tone_stands_in_its_bin_at_its_height() {
    let (mut fixture, ring) = scoped(&int16(2), 4 * 8192, 0);
    // Channel 0 is silent, channel 1 has a tone of an eighth of the full scale.
    let samples = tone(4096.0, 100.0, 1024, 8192).flat_map(|sample| [0, sample]);
    let message = reduced(
        &mut fixture,
        &ring,
        meta(7),
        bytes_of(samples),
        "channel=1&size=1024",
    );
    let (bin, power) = message.peak("spectrum");
    assert_eq!(bin, 100);
    let decibel = 10.0 * power.log10();
    assert!(
        (f64::from(decibel) - 20.0 * 0.125_f64.log10()).abs() < 0.01,
        "{decibel}"
    );
    assert_eq!(message.header["spectrum"]["step"], 1e6 / 1024.0);
    assert_eq!(message.data["spectrum"].len(), 513);
    assert_eq!(message.data["waterfall"].len(), 4 * 513);
    let header = &message.header;
    assert_eq!(header["sequence"], 7);
    assert_eq!(header["time_ms"], 1500.0);
    assert_eq!(header["clock"], "host");
    assert_eq!(header["full_scale"], 32768.0);
    // A converter of 14 bits in int16.
    let samples = tone(4096.0, 100.0, 1024, 8192).flat_map(|sample| [0, sample]);
    let message = reduced(
        &mut fixture,
        &ring,
        meta(8),
        bytes_of(samples),
        "channel=1&full_scale=8192",
    );
    let decibel = 10.0 * message.peak("spectrum").1.log10();
    assert!(
        (f64::from(decibel) - 20.0 * 0.5_f64.log10()).abs() < 0.01,
        "{decibel}"
    );
}

#[test]
fn complex_tone_stands_at_its_negative_frequency() {
    let samples = SampleKeys {
        complex: true,
        ..int16(1)
    };
    let (mut fixture, ring) = scoped(&samples, 4 * 4096, 0);
    let turn = |n: usize| TAU * -100.0 * n as f64 / 1024.0;
    let samples = (0..4096)
        .flat_map(|n| [turn(n).cos(), turn(n).sin()].map(|part| (16384.0 * part).round() as i16));
    let message = reduced(&mut fixture, &ring, meta(0), bytes_of(samples), "");
    let (bin, power) = message.peak("spectrum");
    assert_eq!((bin, message.data["spectrum"].len()), (512 - 100, 1024));
    assert!((power - 0.25).abs() < 1e-3, "{power}");
    assert_eq!(message.header["spectrum"]["start"], -5e5);
    assert!(message.data.contains_key("min_im"));
}

#[test]
fn curve_contains_minima_and_maxima_of_its_window() {
    let (mut fixture, ring) = scoped(&int16(1), 2 * 1000, 0);
    let samples = || bytes_of((0..1000).map(|n| if n == 505 { -77 } else { n }));
    let message = reduced(&mut fixture, &ring, meta(0), samples(), "width=100");
    assert_eq!(
        (message.data["min"][50], message.data["max"][50]),
        (-77.0, 509.0)
    );
    assert_eq!(message.data["min"].len(), 100);
    let message = reduced(
        &mut fixture,
        &ring,
        meta(1),
        samples(),
        "width=100&first=500&points=10",
    );
    let window: Vec<f32> = vec![
        500.0, 501.0, 502.0, 503.0, 504.0, -77.0, 506.0, 507.0, 508.0, 509.0,
    ];
    assert_eq!(message.data["min"], window);
    assert_eq!(message.data["max"], window);
    // A window beyond the end of the frame.
    let message = reduced(
        &mut fixture,
        &ring,
        meta(2),
        samples(),
        "first=5000&points=10",
    );
    assert_eq!(message.data["min"], [999.0]);
}

#[test]
fn missing_packets_are_not_a_number_and_not_counted() {
    let (mut fixture, ring) = scoped(&int16(1), 8 * 1024, 8);
    let mut slots = fixture.producer.reserve(1);
    slots.bytes_mut().unwrap().fill(1);
    let present = |i: u32| i != 2 && i != 7;
    slots.finish_with(
        FrameMeta {
            flags: Flags::INCOMPLETE,
            length: 8 * 1024,
            packets_per_frame: 8,
            arrived: 6,
            packet_sizes: PacketSizes::equal(1024),
            ..meta(0)
        },
        &[(0..8)
            .filter(|i| present(*i))
            .fold(0, |word, i| word | 1 << i)],
    );
    slots.publish();
    let mut tap = ring.ring.tap().unwrap();
    let frame = tap.newest().unwrap().unwrap();
    let samples = Samples::new(&ring.layout, frame.meta(), frame.present(), frame.bytes());
    let mut reducer = Reducer::new(View::parse("width=16&size=256").unwrap());
    let message = Message::parse(&reducer.reduce(&ring, 0, &samples, &|| true));
    assert_eq!(
        message.header["missing"],
        serde_json::json!([[1024, 1536], [3584, 4096]])
    );
    let missing: Vec<_> = message.data["min"]
        .iter()
        .map(|value| value.is_nan())
        .collect();
    let expected: Vec<_> = (0..8).flat_map(|packet| [!present(packet); 2]).collect();
    assert_eq!(missing, expected);
    // The rows of the waterfall are in reverse order, and have two packets each.
    let rows = message.data["waterfall"]
        .chunks(129)
        .map(|row| row[0].is_nan());
    assert_eq!(rows.collect::<Vec<_>>(), [true, false, true, false]);
    assert!(
        message.data["spectrum"]
            .iter()
            .all(|power| power.is_finite())
    );
    assert_eq!(message.header["histogram"]["count"], 6 * 512);
    assert_eq!(message.header["histogram"]["not_finite"], 0);
}

#[test]
fn histogram_counts_values_at_the_limits_of_the_converter() {
    let (mut fixture, ring) = scoped(&int16(1), 2 * 8, 0);
    let samples = || bytes_of([i16::MIN, i16::MAX, i16::MAX, 0, 1, 2, -1, 0]);
    let message = reduced(&mut fixture, &ring, meta(0), samples(), "");
    let histogram = &message.header["histogram"];
    assert_eq!(
        (&histogram["low"], &histogram["high"]),
        (&1.into(), &2.into())
    );
    assert_eq!(message.data["histogram"].iter().sum::<f32>(), 8.0);
    assert_eq!(histogram["step"], 256.0);
    let message = reduced(
        &mut fixture,
        &ring,
        meta(1),
        bytes_of([-2; 8]),
        "full_scale=2",
    );
    assert_eq!(message.header["histogram"]["low"], 8);
    assert_eq!(message.data["histogram"], [8.0]);
}

#[test]
fn npy_has_type_and_shape_of_the_frame() {
    let check = |samples: SampleKeys, bytes: &[u8], header: &str, data: &[u8]| {
        let (mut fixture, ring) = scoped(&samples, bytes.len(), 0);
        fixture.write(&[(meta(0), bytes.to_vec())]);
        let mut tap = ring.ring.tap().unwrap();
        let frame = tap.newest().unwrap().unwrap();
        let samples = Samples::new(&ring.layout, frame.meta(), frame.present(), frame.bytes());
        let file = NpyFile::new(&ring.layout, &samples).bytes;
        let (head, body) = file.split_at(128);
        assert_contains!(String::from_utf8_lossy(head) => header);
        assert_eq!(body, data);
    };
    let bytes: Vec<u8> = (0..24).collect();
    let interleaved = "'descr': '<i2', 'fortran_order': False, 'shape': (4,3,)";
    check(int16(3), &bytes, interleaved, &bytes);
    let complex = SampleKeys {
        complex: true,
        ..int16(3)
    };
    check(complex, &bytes, "'shape': (2,3,2,)", &bytes);
    let packed = SampleKeys {
        scalar: Scalar::Int12p,
        ..int16(1)
    };
    let unpacked = [1, 0, 0xff, 0xff];
    check(
        packed,
        &[0x01, 0xf0, 0xff],
        "'descr': '<i2', 'fortran_order': False, 'shape': (2,1,)",
        &unpacked,
    );
}

#[test]
fn queries_with_unknown_keys_or_values_are_rejected() {
    assert_eq!(View::parse("").unwrap(), View::default());
    for (query, part) in [
        ("colour=1", "the keys are channel, part"),
        ("channel=-1", "`channel` must be a whole number"),
        ("size=1000", "power of two"),
        ("size=131072", "from 16 to 65536"),
        ("width=1", "from 16 to 4096"),
        ("points=0", "`points`"),
        ("full_scale=nan", "`full_scale` must be a number above 0"),
        ("row=1", "`row` must be a whole number of at least 2"),
        ("index=newest", "`index` must be the number of a frame"),
        (
            "channel=1&channel=2",
            "`channel` must not occur more than once",
        ),
    ] {
        assert_contains!(View::parse(query).unwrap_err().to_string() => part);
    }
    assert_eq!(index_of("").unwrap(), None);
    assert_eq!(index_of("index=7").unwrap(), Some(7));
    for query in ["index=", "channel=1", "index"] {
        assert_contains!(index_of(query).unwrap_err().to_string() => "index");
    }
}

#[test]
fn queries_that_the_frames_do_not_satisfy_are_rejected() {
    // 500 points of two channels.
    let (_fixture, mut ring) = scoped(&int16(2), 2000, 0);
    let check = |ring: &ScopedRing, query: &str| View::parse(query).unwrap().check(ring);
    for query in [
        "",
        "channel=1&size=256&first=499&points=1&row=500",
        "points=500&row=2",
    ] {
        check(&ring, query).unwrap();
    }
    for (query, part) in [
        (
            "channel=5",
            "`channel` must be a whole number from 0 to 1 for ring `raw`, whose frames have 2 channels, not \"5\"",
        ),
        (
            "size=512",
            "`size` must be a whole number from 16 to 256 for ring `raw`, because 500 points are shown",
        ),
        ("first=500", "`first` must be a whole number from 0 to 499"),
        (
            "first=490&points=11",
            "`points` must be a whole number from 1 to 10",
        ),
        ("row=501", "`row` must be a whole number from 2 to 500"),
        (
            "part=0",
            "`part` must be left out, because the frames of ring `raw` do not consist of parts",
        ),
    ] {
        assert_contains!(check(&ring, query).unwrap_err().to_string() => part);
    }
    ring.parts = vec!["a".into(), "b".into()];
    check(&ring, "part=1&first=249").unwrap();
    for (query, part) in [
        ("part=2", "`part` must be a whole number from 0 to 1"),
        ("part=1&first=250", "from 0 to 249"),
    ] {
        assert_contains!(check(&ring, query).unwrap_err().to_string() => part);
    }
    ring.layout.axis = Axis::Frequency {
        start: None,
        step: None,
    };
    for query in ["size=16", "first=1", "points=1", "row=2"] {
        let text = check(&ring, query).unwrap_err().to_string();
        assert_contains!(text => "because the frames of ring `raw` are not samples over time");
    }
    // Frames that are too short for a transform.
    let (_fixture, ring) = scoped(&int16(1), 16, 0);
    check(&ring, "").unwrap();
    assert_contains!(check(&ring, "size=16").unwrap_err().to_string() => "`size` must be left out for ring `raw`");
}

/// Publishes a frame of 1024 int16 samples in 8 packets, of which those in `missing` are missing.
fn publish_incomplete(fixture: &mut RingFixture, sequence: u64, missing: &[u32]) {
    let mut slots = fixture.producer.reserve(1);
    slots.bytes_mut().unwrap().fill(1);
    slots.finish_with(
        FrameMeta {
            flags: Flags::INCOMPLETE,
            length: 2048,
            packets_per_frame: 8,
            arrived: 8 - missing.len() as u32,
            packet_sizes: PacketSizes::equal(256),
            ..meta(sequence)
        },
        &[(0..8)
            .filter(|i| !missing.contains(i))
            .fold(0, |word, i| word | 1 << i)],
    );
    slots.publish();
}

#[test]
fn file_of_incomplete_frame_lists_missing_elements() {
    let headers = |samples: &SampleKeys| -> BTreeMap<_, _> {
        let (mut fixture, ring) = scoped(samples, 2048, 8);
        publish_incomplete(&mut fixture, 41, &[2, 3, 7]);
        let mut tap = ring.ring.tap().unwrap();
        let frame = tap.newest().unwrap().unwrap();
        let samples = Samples::new(&ring.layout, frame.meta(), frame.present(), frame.bytes());
        let file = NpyFile::new(&ring.layout, &samples);
        file.headers("raw@host", 5, &samples).into_iter().collect()
    };
    let found = headers(&int16(1));
    assert_eq!(
        (&*found["daq-missing"], &*found["daq-missing-elements"]),
        ("256:512,896:1024", "384")
    );
    assert_eq!(
        (&*found["daq-index"], &*found["daq-complete"]),
        ("5", "false")
    );
    let name = "attachment; filename=\"raw@host-41-incomplete.npy\"";
    assert_eq!(found["content-disposition"], name);
    // A pair of floats is one element, and packed numbers are unpacked.
    let complex = SampleKeys {
        scalar: Scalar::Float32,
        complex: true,
        ..int16(1)
    };
    assert_eq!(headers(&complex)["daq-missing"], "64:128,224:256");
    let packed = SampleKeys {
        scalar: Scalar::Uint4p,
        ..int16(1)
    };
    assert_eq!(headers(&packed)["daq-missing"], "1024:2048,3584:4096");
}

#[test]
fn positions_of_missing_packets_do_not_depend_on_bytes_after_the_last_point() {
    // Seven points of three channels, and the first bytes of another point.
    let meta = FrameMeta {
        flags: Flags::INCOMPLETE,
        length: 7 * 6 + 5,
        packets_per_frame: 4,
        arrived: 2,
        packet_sizes: PacketSizes::equal(12),
        ..meta(0)
    };
    let bytes = [0; 7 * 6 + 5];
    let missing = |order, channels, present: u64| {
        let keys = SampleKeys {
            order,
            ..int16(channels)
        };
        let layout = keys.layout(48).unwrap();
        let words = [present];
        let samples = Samples::new(&layout, &meta, Present::new(&words, 4), &bytes);
        let file = NpyFile::new(&layout, &samples);
        let last = samples.missing(channels as usize - 1);
        (file.missing, last)
    };
    assert_eq!(
        missing(Order::Interleaved, 3, 0b0101),
        (vec![6..12, 18..21], vec![2..4, 6..7])
    );
    assert_eq!(
        missing(Order::Planar, 1, 0b0101),
        (vec![6..12, 18..23], vec![6..12, 18..23])
    );
}

#[test]
fn short_planar_frame_is_an_error() {
    let samples = SampleKeys {
        order: Order::Planar,
        ..int16(2)
    };
    let (mut fixture, ring) = scoped(&samples, 64, 0);
    let short = FrameMeta {
        length: 32,
        ..meta(4)
    };
    let message = reduced(&mut fixture, &ring, short, vec![0; 32], "");
    assert_contains!(message.header["error"].as_str().unwrap() => "frame 4 of ring `raw`", "32 of 64 bytes");
}

#[test]
fn frozen_frame_stays_in_memory_while_a_browser_shows_it() {
    let (mut fixture, ring) = scoped(&int16(1), 64, 0);
    let hub = hub(&ring);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let download = |index| runtime.block_on(hub.download("raw", Some(index)));
    let subscribe = |query: &str| {
        let messages = hub.subscribe("raw", View::parse(query).unwrap());
        messages.map(|messages| messages.newest)
    };
    let shows = |messages: &tokio::sync::watch::Receiver<axum::body::Bytes>, index: u64| {
        wait_for("a frame", || {
            let message = messages.borrow().clone();
            (!message.is_empty() && Message::parse(&message).header["index"] == index).then_some(())
        });
    };
    assert!(matches!(subscribe("index=0"), Err(ScopeError::Gone { .. })));
    let live = subscribe("").unwrap();
    fixture.write(&[(meta(0), bytes_of([3; 32]))]);
    shows(&live, 0);
    let frozen = subscribe("index=0").unwrap();
    // A zoomed view of the same frame.
    let zoomed = subscribe("index=0&first=4&points=2").unwrap();
    drop(frozen);
    for index in 1..40 {
        assert_eq!(fixture.read().len(), 1);
        fixture.write(&[(meta(index), bytes_of([4; 32]))]);
        shows(&live, index);
    }
    shows(&zoomed, 0);
    assert_eq!(Message::parse(&zoomed.borrow()).data["max"], [3.0, 3.0]);
    assert!(download(0).unwrap().file.ends_with(&bytes_of([3; 32])));
    assert!(download(39).unwrap().file.ends_with(&bytes_of([4; 32])));
    assert!(matches!(
        download(1),
        Err(ScopeError::Gone { index: 1, .. })
    ));
    drop(live);
    assert!(download(0).is_ok(), "the other page is closed");
    drop(zoomed);
    wait_for("the end of the thread", || {
        (hub.threads() == 0).then_some(())
    });
    let error = download(0).err().unwrap().to_string();
    assert_contains!(error => "frame 0 of ring `raw` is not in memory");
    hub.join();
}

#[test]
fn frames_larger_than_the_limit_are_not_kept() {
    let mut recent = frames::Recent::of(2);
    let (mut fixture, ring) = scoped(&int16(1), 24 << 20, 0);
    let mut tap = ring.ring.tap().unwrap();
    for index in 0..4 {
        fixture.write(&[(meta(index), vec![0; 24 << 20])]);
        assert_eq!(fixture.read().len(), 1);
        let frame = tap.newest().unwrap().unwrap();
        recent.keep(frames::Copied::new(&frame), |index| index == 0);
    }
    let kept = [0, 1, 2, 3].map(|index| recent.find(index).is_some());
    assert_eq!(kept, [true, false, false, true]);
}

#[test]
fn budget_limits_frames_and_bytes() {
    assert_eq!(
        TapBudget::of(1 << 20).to_string(),
        "at most 10 frames/s, 10 MiB/s"
    );
    let large = TapBudget::of(1 << 30);
    assert!(large.frames_per_second < 0.1 && large.bytes_per_second <= MAX_BYTES_PER_SECOND);
}

fn hub(ring: &ScopedRing) -> Hub {
    Hub::new(BTreeMap::from([("raw".to_owned(), ring.clone())]))
}

#[test]
fn views_share_one_thread_that_ends_with_the_last_browser() {
    let (mut fixture, ring) = scoped(&int16(1), 2048, 0);
    let hub = hub(&ring);
    let view = |query| {
        let messages = hub.subscribe("raw", View::parse(query).unwrap());
        messages.map(|messages| messages.newest)
    };
    let mut first = view("").unwrap();
    fixture.write(&[(meta(3), bytes_of(0..1024))]);
    wait_for("a message", || first.has_changed().unwrap().then_some(()));
    assert_eq!(
        Message::parse(&first.borrow_and_update()).header["sequence"],
        3
    );
    // The same view receives the newest message immediately, and another view the same frame.
    let same = view("").unwrap();
    assert!(same.has_changed().unwrap());
    let other = view("size=64").unwrap();
    wait_for("a message", || other.has_changed().unwrap().then_some(()));
    assert_eq!(hub.threads(), 1);
    drop((first, same, other));
    wait_for("the end of the thread", || {
        (hub.threads() == 0).then_some(())
    });
    let again = view("").unwrap();
    wait_for("a message", || again.has_changed().unwrap().then_some(()));
    hub.join();
    assert!(again.has_changed().is_err());
    assert!(matches!(view(""), Err(ScopeError::Stopped)));
}

#[test]
fn stalled_browser_keeps_only_the_newest_message_and_blocks_no_frame() {
    let (mut fixture, ring) = scoped(&int16(1), 64, 0);
    let hub = hub(&ring);
    let stalled = hub.subscribe("raw", View::default()).unwrap().newest;
    for sequence in 0..200 {
        fixture.write(&[(meta(sequence), vec![0; 64])]);
        assert_eq!(fixture.read().len(), 1);
    }
    wait_for("the newest frame", || {
        let message = stalled.borrow().clone();
        (!message.is_empty() && Message::parse(&message).header["sequence"] == 199).then_some(())
    });
    hub.join();
}

#[test]
fn number_of_views_is_limited() {
    let (_fixture, ring) = scoped(&int16(1), 64, 0);
    let hub = hub(&ring);
    let view = |width: usize| hub.subscribe("raw", View::parse(&format!("width={width}")).unwrap());
    let held: Vec<_> = (0..16).map(|i| view(100 + i).unwrap()).collect();
    assert_contains!(view(99).unwrap_err().to_string() => "16 different views");
    assert!(view(100).is_ok(), "an existing view is shared");
    drop(held);
    assert!(view(99).is_ok());
    hub.join();
}

#[test]
fn views_of_all_rings_and_their_streams_are_limited() {
    let (_fixtures, rings): (Vec<_>, Vec<_>) = ["a", "b"]
        .map(|name| {
            let (fixture, ring) = scoped(&int16(1), 64, 0);
            (fixture, (name.to_owned(), ring))
        })
        .into_iter()
        .unzip();
    let hub = Hub::new(rings.into_iter().collect());
    let view = |ring: &str, width: usize| {
        hub.subscribe(ring, View::parse(&format!("width={width}")).unwrap())
    };
    let mut shown: Vec<_> = (0..16)
        .map(|i| view(["a", "b"][i % 2], 100 + i).unwrap())
        .collect();
    assert_contains!(view("b", 99).unwrap_err().to_string() => "16 different views");
    shown.extend((0..16).map(|_| view("a", 100).unwrap()));
    assert_contains!(view("a", 100).unwrap_err().to_string() => "32 pages already show rings");
    drop(shown);
    assert!(view("b", 99).is_ok());
    hub.join();
}

#[test]
fn every_sample_type_is_decoded() {
    for scalar in Scalar::ALL {
        let samples = SampleKeys {
            scalar,
            rate: None,
            ..int16(1)
        };
        let (mut fixture, ring) = scoped(&samples, 120, 0);
        // Only the byte 1 of each number of whole bytes differs from 0.
        let bytes: Vec<u8> = match scalar.bytes() {
            Some(size) => (0..120).map(|i| u8::from(i % size == 0)).collect(),
            None => vec![0x11; 120],
        };
        let message = reduced(&mut fixture, &ring, meta(0), bytes, "width=16");
        let value = message.data["max"][0];
        let expected = match (scalar, scalar.bytes()) {
            _ if scalar.is_float() => {
                assert!((0.0..1e-3).contains(&value), "{scalar}: {value}");
                continue;
            }
            (_, Some(size)) if scalar.is_big_endian() => [256.0, 16_777_216.0][size / 4],
            (_, Some(_)) => 1.0,
            (_, None) => {
                assert!(
                    value.abs() <= 2048.0 && value.fract() == 0.0,
                    "{scalar}: {value}"
                );
                continue;
            }
        };
        assert_eq!(value, expected, "{scalar}");
        assert_eq!(message.header["type"], scalar.name());
    }
}

#[test]
fn thread_that_a_gpu_blocks_does_not_block_the_stop() {
    let fixture = RingFixture::host("raw", 2, 8);
    let threads = Threads::default();
    let (release, released) = std::sync::mpsc::channel::<()>();
    threads
        .spawn("daq-scope", &fixture.ring, move |_| {
            let _ = released.recv();
        })
        .unwrap();
    assert_eq!(threads.join(Duration::from_millis(1)), 1);
    drop(release);
    assert_eq!(threads.join(daq_testkit::TIMEOUT), 0);
}
