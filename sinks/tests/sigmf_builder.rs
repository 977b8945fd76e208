//! Compares the totals and spans of a segment's metadata with a list of every sample.

use daq_core::frame::{Clock, KeptFields, PacketSizes};
use daq_core::sigmf::{Capture, Datatype, Meta, Number};
use daq_sinks::sigmf::{CAUSE_TRUNCATED, MetaBuilder, Moment, Record, Recording};
use daq_testkit::assert_fields;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn recording(
    number: Number,
    channels: u32,
    packets_per_frame: u32,
    packet_bytes: u64,
) -> Recording {
    let frame_bytes = u64::from(packets_per_frame) * packet_bytes;
    Recording {
        datatype: Datatype::little(number, false),
        channels,
        sample_rate: None,
        frame_bytes,
        packets_per_frame,
        packet_sizes: PacketSizes::equal(packet_bytes.try_into().unwrap_or(u32::MAX)),
        detects_sizes: false,
        is_layout_maximum: false,
        source: "raw".into(),
        description: None,
        hardware: None,
        table: None,
        kept: Vec::new(),
    }
}

fn runs(packets: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &packet in packets {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == packet => *count += 1,
            _ => runs.push((packet, 1)),
        }
    }
    runs
}

proptest! {
    #[test]
    fn annotations_cover_exactly_missing_samples(
        frames in vec((1_u64..4, any::<bool>(), btree_set(0_u32..6, 0..4)), 1..12),
        channels in 1_u32..4, wide: bool, packet_bytes in 1_u64..9,
    ) {
        let number = if wide { Number::I16 } else { Number::I8 };
        let recording = recording(number, channels, 6, packet_bytes);
        let group = number.bytes() as u64 * u64::from(channels);
        let mut builder = MetaBuilder::new(recording.clone());
        let bytes = builder.whole(recording.frame_bytes);
        let (mut sequence, mut epoch, mut sample, mut lost, mut breaks) = (0_u64, 0, 0, 0, 0_usize);
        let (mut missing, mut lost_bytes) = (BTreeSet::new(), BTreeSet::new());
        for (i, (step, restart, packets)) in frames.iter().enumerate() {
            if *restart {
                epoch += 1;
                sequence = 0;
            } else {
                sequence += step;
                lost += if i > 0 { step - 1 } else { 0 };
            }
            breaks += usize::from(*restart || *step > 1 || i == 0 || bytes != recording.frame_bytes);
            builder.frame(&Record { sequence, epoch, bytes, restart: *restart, ..Record::default() }, runs(packets));
            for packet in packets {
                let first = (u64::from(*packet) * packet_bytes).min(bytes);
                let last = (first + packet_bytes).min(bytes);
                missing.extend((first..last).map(|byte| sample + byte / group));
                lost_bytes.extend((first..last).map(|byte| sample * group + byte));
            }
            sample += bytes / group;
        }
        let text = builder.build().to_json();
        let meta = builder.build();
        prop_assert_eq!(Meta::parse(&text).unwrap(), meta.clone());
        let listed: Vec<u64> = meta.missing().flat_map(|(first, count)| first..first + count).collect();
        prop_assert_eq!(listed, missing.iter().copied().collect::<Vec<_>>());
        let stream = meta.global.stream.as_ref().unwrap();
        prop_assert_eq!(stream.missing_samples, missing.len() as u64);
        prop_assert_eq!((stream.missing_frames, stream.frames, stream.bytes), (lost, frames.len() as u64, bytes * frames.len() as u64));
        prop_assert_eq!(meta.captures.len(), breaks);
        prop_assert_eq!(meta.captures.iter().filter_map(|c| c.frames).sum::<u64>(), frames.len() as u64);
        let starts: Vec<u64> = meta.annotations.iter().map(|a| a.sample_start).collect();
        prop_assert!(starts.is_sorted());
        let exact: BTreeSet<u64> = missing_bytes(&meta, group).collect();
        prop_assert_eq!(exact, lost_bytes);
    }
}

/// Returns the missing bytes according to the annotations.
fn missing_bytes(meta: &Meta, group: u64) -> impl Iterator<Item = u64> {
    let missing = meta
        .annotations
        .iter()
        .filter(|note| note.label.as_deref() == Some("missing"));
    missing.flat_map(move |note| {
        let whole = [note.sample_start, note.sample_count.unwrap()].map(|n| n * group);
        let mut ranges = note.missing_bytes.clone();
        if ranges.is_empty() {
            ranges.push(whole);
        }
        ranges
            .into_iter()
            .flat_map(|[first, count]| first..first + count)
    })
}

/// Packets that do not end where samples end are listed, also if another annotation or span before them covers whole samples.
#[test]
fn packets_inside_samples_are_listed_exactly() {
    // Samples have 8 bytes and packets 4.
    let mut builder = MetaBuilder::new(recording(Number::I16, 4, 8, 4));
    let mut frames = |frames: &[&[(u32, u32)]]| {
        builder.begin(0);
        for (sequence, missing) in (0..).zip(frames) {
            let record = Record {
                sequence,
                bytes: 32,
                packets_per_frame: 8,
                ..Record::default()
            };
            builder.frame(&record, missing.iter().copied());
        }
        let meta = Meta::parse(&builder.build().to_json()).unwrap();
        let notes = meta.annotations.into_iter();
        notes
            .map(|note| {
                (
                    note.sample_start,
                    note.sample_count.unwrap(),
                    note.missing_bytes,
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(frames(&[&[(2, 4)]]), [(1, 2, vec![])]);
    let expected = [(0, 3, vec![[4, 8], [20, 4]])];
    assert_eq!(frames(&[&[(1, 2), (5, 1)]]), expected);
    let expected = [(3, 2, vec![[24, 8], [32, 4]])];
    assert_eq!(frames(&[&[(6, 2)], &[(0, 1)]]), expected);
    let expected = [(0, 1, vec![[0, 4]]), (3, 1, vec![])];
    assert_eq!(frames(&[&[(0, 1), (6, 2)]]), expected);
}

/// A change of the receiver's frequency or bandwidth begins a capture, although the samples are continuous.
#[test]
fn change_of_tuning_begins_capture() {
    let names = ["sample_rate", "bandwidth", "rf_frequency"].map(str::to_owned);
    let mut builder = MetaBuilder::new(Recording {
        kept: names.to_vec(),
        ..recording(Number::I8, 1, 1, 10)
    });
    builder.begin(0);
    let tuned = |hz, bandwidth| {
        let kept = KeptFields::default();
        kept.with(0, 7).with(1, bandwidth).with(2, hz)
    };
    let fields = [
        KeptFields::default(),
        tuned(1_420_405_751, 8_000_000),
        tuned(1_420_405_751, 8_000_000),
        tuned(1_420_405_751, 4_000_000),
        tuned(1_665_000_000, 4_000_000),
    ];
    for (sequence, fields) in (0..).zip(fields) {
        let record = Record {
            sequence,
            bytes: 10,
            tuning: builder.tuning(&fields),
            ..Record::default()
        };
        builder.frame(&record, []);
        builder.keep(&fields);
    }
    let meta = Meta::parse(&builder.build().to_json()).unwrap();
    let captures = meta.captures.iter();
    let found: Vec<_> = captures
        .map(|capture| (capture.sample_start, capture.frequency, capture.bandwidth))
        .collect();
    let expected = [
        (0, None, None),
        (10, Some(1_420_405_751.0), Some(8e6)),
        (30, Some(1_420_405_751.0), Some(4e6)),
        (40, Some(1_665_000_000.0), Some(4e6)),
    ];
    assert_eq!(found, expected);
}

#[test]
fn new_segment_remembers_last_frame() {
    let mut builder = MetaBuilder::new(recording(Number::I8, 1, 1, 10));
    builder.begin(6);
    builder.frame(
        &Record {
            sequence: 4,
            bytes: 10,
            ..Record::default()
        },
        [(0, 1)],
    );
    builder.begin(7);
    assert_eq!((builder.frames(), builder.bytes()), (0, 0));
    builder.frame(
        &Record {
            sequence: 5,
            bytes: 10,
            ..Record::default()
        },
        [],
    );
    let meta = builder.build();
    let stream = meta.global.stream.unwrap();
    assert_fields!(stream => segment: 7, first_segment: Some(6), frames: 1, missing_samples: 0, missing_frames: 0);
    assert!(meta.annotations.is_empty());
    assert_eq!(
        (meta.captures.len(), meta.captures[0].sequence),
        (1, Some(5))
    );
}

#[test]
fn frames_never_sent_are_not_counted_as_missing() {
    // Frames have six packets of 10 samples. A case is (whether the frame starts an epoch, whether it is truncated,
    // missing packets) and the expected annotations as (first sample, number of samples, whether it is truncated).
    type Case = (
        bool,
        bool,
        &'static [(u32, u32)],
        &'static [(u64, u64, bool)],
    );
    let cases: [Case; 9] = [
        (true, true, &[(0, 2)], &[(0, 20, true)]),
        (false, true, &[(4, 2)], &[(40, 20, true)]),
        (true, true, &[(4, 2)], &[(40, 20, true)]),
        // Packets are lost before the end of the stream and after its beginning.
        (
            false,
            true,
            &[(0, 1), (2, 1), (5, 1)],
            &[(0, 10, false), (20, 10, false), (50, 10, true)],
        ),
        (
            true,
            true,
            &[(0, 1), (2, 1)],
            &[(0, 10, true), (20, 10, false)],
        ),
        // The flags do not show at which end the frame is truncated, so all missing packets count as lost.
        (
            true,
            true,
            &[(0, 1), (5, 1)],
            &[(0, 10, true), (50, 10, false)],
        ),
        // No packet has arrived.
        (true, true, &[(0, 6)], &[(0, 60, false)]),
        // The frame is not truncated, so the packets are lost.
        (true, false, &[(0, 2)], &[(0, 20, false)]),
        (false, false, &[(4, 2)], &[(40, 20, false)]),
    ];
    for (restart, truncated, missing, wanted) in cases {
        let mut builder = MetaBuilder::new(recording(Number::I8, 1, 6, 10));
        let record = Record {
            bytes: 60,
            packets_per_frame: 6,
            restart,
            truncated,
            ..Record::default()
        };
        builder.frame(&record, missing.iter().copied());
        let meta = builder.build();
        let cut = |cause: &Option<String>| cause.as_deref() == Some(CAUSE_TRUNCATED);
        let listed: Vec<_> = meta
            .annotations
            .iter()
            .map(|note| {
                (
                    note.sample_start,
                    note.sample_count.unwrap(),
                    cut(&note.cause),
                )
            })
            .collect();
        assert_eq!(listed, wanted, "{record:?} {missing:?}");
        let lost = wanted.iter().filter(|note| !note.2).map(|note| note.1);
        assert_eq!(
            meta.global.stream.as_ref().unwrap().missing_samples,
            lost.sum::<u64>()
        );
        // A replay must skip both truncated and lost samples.
        assert_eq!(meta.missing().count(), wanted.len());
    }
}

/// Samples outside of the stream are not written. Packets that are missing between others are.
#[test]
fn first_and_last_frame_are_trimmed() {
    // A frame has 6 packets of 10 samples and lasts 60 µs.
    let whole = Record {
        bytes: 60,
        packets_per_frame: 6,
        truncated: true,
        moment: Some(Moment {
            clock: Clock::SensorUtc,
            ns: 1_000_000,
        }),
        ..Record::default()
    };
    let mut builder = MetaBuilder::new(Recording {
        sample_rate: Some(1e6),
        ..recording(Number::I8, 1, 6, 10)
    });
    builder.begin(0);
    let frames: [(Record, &[(u32, u32)], _); 3] = [
        (
            Record {
                sequence: 3,
                restart: true,
                ..whole
            },
            &[(0, 2), (4, 1)],
            20..60,
        ),
        (
            Record {
                sequence: 4,
                truncated: false,
                moment: whole.moment.map(|moment| Moment {
                    ns: 1_060_000,
                    ..moment
                }),
                ..whole
            },
            &[(5, 1)],
            0..60,
        ),
        (
            Record {
                sequence: 5,
                moment: whole.moment.map(|moment| Moment {
                    ns: 1_120_000,
                    ..moment
                }),
                ..whole
            },
            &[(1, 1), (4, 2)],
            0..40,
        ),
    ];
    for (record, missing, expected) in frames {
        let inside = builder.inside(&record, missing.iter().copied());
        assert_eq!(inside, expected);
        let record = Record {
            bytes: inside.end - inside.start,
            trimmed: (inside.start, record.bytes - inside.end),
            ..record
        };
        builder.frame(&record, missing.iter().copied());
    }
    let meta = builder.build();
    let captures = meta.captures.iter();
    let found: Vec<_> = captures
        .map(|capture| (capture.sample_start, capture.global_index, capture.clock_ns))
        .collect();
    // The first sample of the stream is number 200. The captures continue each other.
    assert_eq!(
        found,
        [
            (0, Some(200), Some(1_020_000)),
            (40, Some(240), Some(1_060_000))
        ]
    );
    assert_eq!(meta.captures[0].sequence, Some(3));
    assert_eq!(meta.captures[1].frames, Some(2));
    let stream = meta.global.stream.as_ref().unwrap();
    assert_fields!(stream => bytes: 140, frames: 3, frame_bytes: 60, missing_samples: 30);
    let missing: Vec<_> = meta.missing().collect();
    assert_eq!(missing, [(20, 10), (90, 10), (110, 10)]);
}

/// Without exact packet sizes, or with several parts, a frame is written whole.
#[test]
fn frames_that_cannot_be_trimmed_are_written_whole() {
    let record = Record {
        bytes: 60,
        packets_per_frame: 6,
        truncated: true,
        restart: true,
        ..Record::default()
    };
    for (rest, parts) in [(0, 1), (10, 2)] {
        let sizes = PacketSizes {
            first: rest,
            rest,
            parts,
        };
        let builder = MetaBuilder::new(Recording {
            packet_sizes: sizes,
            ..recording(Number::I8, 1, 6, 10)
        });
        assert_eq!(builder.inside(&record, [(0, 2)]), 0..60);
    }
}

/// A recording of a replay has the datetime of the recording.
#[test]
fn recorded_utc_time_is_a_datetime() {
    let times = [1_767_225_600_000_000_000, 1_767_225_600_000_010_000];
    for (clock, expected) in [
        (Clock::RecordedUtc, Some("2026-01-01T00:00:00.000000000Z")),
        (Clock::Recorded, None),
    ] {
        let captures = captures_at(Some(1e6), clock, &times.map(Some));
        assert_eq!(captures[0].datetime.as_deref(), expected);
    }
}

#[test]
fn bytes_after_last_whole_sample_are_not_missing() {
    // Samples have 8 bytes and packets have 3 bytes. The frame has 21 bytes, of which 16 are written. Packet 5 contains
    // the bytes 15 to 17, packet 6 the rest.
    let mut builder = MetaBuilder::new(recording(Number::I16, 4, 7, 3));
    let bytes = builder.whole(21);
    assert_eq!(bytes, 16);
    for (missing, wanted) in [((6, 1), None), ((5, 2), Some((1, 1)))] {
        builder.begin(0);
        let record = Record {
            bytes,
            packets_per_frame: 7,
            ..Record::default()
        };
        builder.frame(&record, [missing]);
        assert_eq!(builder.build().missing().next(), wanted);
    }
}

/// The first frame of an epoch may lack the packet that contains the time.
#[test]
fn capture_has_time_of_first_frame_with_time() {
    let moment = |ns| {
        Some(Moment {
            clock: Clock::SensorUtc,
            ns,
        })
    };
    // Each frame has ten samples, which last 10 ns at 1 GHz.
    for (sample_rate, starts) in [
        (Some(1e9), vec![(0, Some(480))]),
        (None, vec![(0, None), (20, Some(500))]),
    ] {
        let mut builder = MetaBuilder::new(Recording {
            sample_rate,
            ..recording(Number::I8, 1, 1, 10)
        });
        for (sequence, moment) in [
            (7, None),
            (8, None),
            (9, moment(500)),
            (10, None),
            (11, moment(520)),
        ] {
            let record = Record {
                sequence,
                bytes: 10,
                moment,
                ..Record::default()
            };
            builder.frame(&record, []);
        }
        let captures = builder.build().captures;
        let found: Vec<_> = captures
            .iter()
            .map(|capture| (capture.sample_start, capture.clock_ns))
            .collect();
        assert_eq!(found, starts);
        let frames: u64 = captures.iter().filter_map(|capture| capture.frames).sum();
        assert_eq!(frames, 5);
        assert!(captures.last().unwrap().datetime.is_some());
    }
}

#[test]
fn frames_computed_from_incomplete_frames_are_annotated() {
    let mut builder = MetaBuilder::new(recording(Number::I8, 1, 64, 64));
    for (sequence, incomplete) in [false, true, true, false].into_iter().enumerate() {
        let record = Record {
            sequence: sequence as u64,
            bytes: 64,
            incomplete,
            ..Record::default()
        };
        builder.frame(&record, []);
    }
    let annotations = builder.build().annotations;
    let [note] = &annotations[..] else {
        panic!("{annotations:?}");
    };
    assert_eq!(note.label.as_deref(), Some("incomplete"));
    assert_eq!((note.sample_start, note.sample_count), (64, Some(128)));
}

/// The first heap shows the size of all heaps only if they do not differ.
#[test]
fn size_of_frames_is_that_of_the_first_or_the_maximum() {
    for (is_layout_maximum, expected) in [(false, (400, 4, true)), (true, (100, 1, false))] {
        let recording = Recording {
            detects_sizes: true,
            is_layout_maximum,
            ..recording(Number::I8, 1, 4, 100)
        };
        let mut builder = MetaBuilder::new(recording);
        let record = Record {
            bytes: 100,
            packets_per_frame: 1,
            packet_sizes: PacketSizes::equal(100),
            ..Record::default()
        };
        builder.frame(&record, []);
        let stream = builder.build().global.stream.unwrap();
        let differ = stream.sizes_differ.unwrap();
        assert_eq!(
            (stream.frame_bytes, stream.packets_per_frame, differ),
            expected
        );
        assert_eq!(stream.packet_sizes, Some(PacketSizes::equal(100)));
    }
}

/// A segment ends before a frame whose capture or annotations might not fit.
#[test]
fn segment_is_full_before_an_entry_is_left_out() {
    let mut builder = MetaBuilder::with_limits(recording(Number::I8, 1, 64, 1), 50, 70);
    for i in 0..1000 {
        let record = Record {
            sequence: 2 * i,
            bytes: 64,
            packets_per_frame: 64,
            suspect: true,
            ..Record::default()
        };
        let missing = [(0, 1), (2, 1), (4, 60)];
        if builder.is_full(missing.len()) {
            builder.begin(i);
        }
        builder.frame(&record, missing);
        let annotations = builder.build().annotations;
        let labels = annotations.iter().filter_map(|note| note.label.as_deref());
        assert!(!labels.into_iter().any(|label| label == "unlisted"), "{i}");
    }
}

#[test]
fn metadata_never_exceeds_its_bound() {
    let mut recording = recording(Number::I8, 1, 64, 1 << 40);
    recording.description = Some("\u{1}\"".repeat(500));
    let mut builder = MetaBuilder::with_limits(recording, 50, 70);
    let mut bound = builder.json_bytes(0);
    for i in 0..100 {
        assert!(builder.build().to_json().len() as u64 <= bound, "{i}");
        let record = Record {
            sequence: u64::MAX - 1000 + 2 * i,
            epoch: u32::MAX,
            bytes: 64 << 40,
            moment: Some(Moment {
                clock: Clock::Simulated,
                ns: u64::MAX,
            }),
            suspect: true,
            incomplete: true,
            packets_per_frame: 64,
            cause: Some("disk_full"),
            ..Record::default()
        };
        let missing = [(0, 1), (2, 1), (4, 60)];
        bound = builder.json_bytes(missing.len());
        builder.frame(&record, missing);
    }
    assert!(builder.build().to_json().len() as u64 <= bound);
}

#[test]
fn memory_for_kept_fields_is_part_of_the_plan() {
    let names = |count: usize| vec!["feng_id".to_owned(); count];
    let memory = [0, 1, 8].map(|count| MetaBuilder::memory(&names(count)));
    assert!(memory[1] > memory[0], "{memory:?}");
    // More fields per annotation leave room for fewer annotations, each of the same size in memory.
    assert!(memory[2] <= memory[1], "{memory:?}");
}

/// Returns the captures of frames of ten samples, each at a rate of 1 MHz if `rate` is given, with these times.
fn captures_at(rate: Option<f64>, clock: Clock, times: &[Option<u64>]) -> Vec<Capture> {
    let mut builder = MetaBuilder::new(Recording {
        sample_rate: rate,
        ..recording(Number::I8, 1, 1, 10)
    });
    for (sequence, ns) in times.iter().enumerate() {
        let record = Record {
            sequence: sequence as u64,
            bytes: 10,
            moment: ns.map(|ns| Moment { clock, ns }),
            ..Record::default()
        };
        builder.frame(&record, []);
    }
    let meta = builder.build();
    assert_eq!(Meta::parse(&meta.to_json()).unwrap(), meta);
    meta.captures
}

fn starts(captures: &[Capture]) -> Vec<(u64, Option<u64>)> {
    let start = |capture: &Capture| (capture.sample_start, capture.clock_ns);
    captures.iter().map(start).collect()
}

#[test]
fn capture_begins_at_a_step_in_time() {
    // A trigger, and a clock that is set back.
    let times = [5_000, 15_000, 300_000, 310_000, 200_000].map(Some);
    let captures = captures_at(Some(1e6), Clock::SensorUtc, &times);
    let expected = [(0, Some(5_000)), (20, Some(300_000)), (40, Some(200_000))];
    assert_eq!(starts(&captures), expected);
    assert!(captures.iter().all(|capture| capture.times_ns.is_empty()));
    // Another clock.
    let times = [Some(5_000), Some(15_000), None, Some(35_900)];
    let captures = captures_at(Some(1e6), Clock::Sensor, &times);
    assert_eq!(starts(&captures), [(0, Some(5_000))]);
    assert_eq!(captures[0].times_ns, [Some(30_900)]);
}

#[test]
fn times_that_vary_on_arrival_are_listed() {
    let times = [1_000_000, 1_010_000, 1_025_000, 1_030_000, 90_000_000].map(Some);
    let captures = captures_at(Some(1e6), Clock::Kernel, &times);
    assert_eq!(
        starts(&captures),
        [(0, Some(1_000_000)), (40, Some(90_000_000))]
    );
    assert_eq!(captures[0].times_ns, [Some(25_000), Some(30_000)]);
}

#[test]
fn times_of_frames_without_a_rate_are_listed() {
    let times = [Some(70), Some(99), None, Some(60)];
    let captures = captures_at(None, Clock::Sensor, &times);
    assert_eq!(starts(&captures), [(0, Some(70))]);
    assert_eq!(captures[0].times_ns, [Some(29), None, Some(-10)]);
}

#[test]
fn many_steps_do_not_fill_the_list_of_captures() {
    // Each frame is off by two samples.
    let times: Vec<_> = (0..20_000).map(|i| Some(1_000_000 + i * 12_000)).collect();
    let captures = captures_at(Some(1e6), Clock::Sensor, &times);
    assert!(captures.len() <= 5_001, "{}", captures.len());
    let frames = captures
        .iter()
        .filter_map(|capture| capture.frames)
        .sum::<u64>();
    assert_eq!(frames, 20_000);
    // Every time is still exact.
    let mut exact = Vec::new();
    for capture in &captures {
        let (start, frames) = (capture.clock_ns.unwrap(), capture.frames.unwrap());
        let listed = capture.times_ns.len() as u64;
        exact.extend((0..frames - listed).map(|frame| Some(start + frame * 10_000)));
        let offset = |offset: &Option<i64>| start.checked_add_signed(offset.unwrap());
        exact.extend(capture.times_ns.iter().map(offset));
    }
    assert_eq!(exact, times);
}
