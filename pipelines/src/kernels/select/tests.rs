use super::super::tests::sums;
use super::super::trial::{frames, run};
use super::*;
use daq_core::layout::{Image, Samples, Scalar};
use daq_core::units::Frequency;
use proptest::prelude::*;

fn range(first: usize, count: Option<usize>, step: usize) -> Indices {
    Indices::Range(Range { first, count, step })
}

/// Returns the indices that a key keeps, one at a time.
fn kept(indices: Option<&Indices>, available: usize) -> Vec<usize> {
    match indices {
        None => (0..available).collect(),
        Some(Indices::List(list)) => list.clone(),
        Some(Indices::Range(range)) => (range.first..available)
            .step_by(range.step)
            .take(range.count.unwrap_or(usize::MAX))
            .collect(),
    }
}

/// Copies one sample at a time, as the documentation of the keys describes.
fn expected(select: &Select, input: &Layout, frame: &[u8]) -> Vec<u8> {
    let (channels, points) = (input.channels as usize, input.points);
    let is_planar = input.order == Order::Planar && channels > 1;
    let (count, keep) = select
        .parts
        .as_ref()
        .map_or((1, vec![0]), |parts| (parts.count, parts.keep.clone()));
    let (channels_each, points_each) = if is_planar {
        (channels / count, points)
    } else {
        (channels, points / count)
    };
    let mut channels_kept = kept(select.channels.as_ref(), channels_each);
    let mut points_kept = kept(select.points.as_ref(), points_each);
    let (divided, size) = if is_planar {
        (&mut channels_kept, channels / count)
    } else {
        (&mut points_kept, points / count)
    };
    *divided = keep
        .iter()
        .flat_map(|part| divided.iter().map(move |index| part * size + index))
        .collect();
    let sample = input.sample_bytes().unwrap();
    let mut out = Vec::new();
    let mut copy = |channel: usize, point: usize| {
        let index = if input.order == Order::Planar {
            channel * points + point
        } else {
            point * channels + channel
        };
        out.extend(&frame[index * sample..][..sample]);
    };
    if is_planar {
        for &channel in &channels_kept {
            for &point in &points_kept {
                copy(channel, point);
            }
        }
    } else {
        for &point in &points_kept {
            for &channel in &channels_kept {
                copy(channel, point);
            }
        }
    }
    out
}

fn indices(available: usize) -> impl Strategy<Value = Option<Indices>> {
    let list = proptest::sample::subsequence((0..available).collect::<Vec<_>>(), 1..=available)
        .prop_shuffle()
        .prop_map(|list| Some(Indices::List(list)));
    let ranges = (0..available, 1..=available).prop_flat_map(move |(first, step)| {
        let max = (available - first).div_ceil(step);
        proptest::option::of(1..=max).prop_map(move |count| Some(range(first, count, step)))
    });
    prop_oneof![Just(None), list, ranges]
}

/// Generates a selection, and the numbers of channels and points of its input.
fn case() -> impl Strategy<Value = (Select, u32, usize, bool)> {
    (1_u32..5, 1_usize..20, 1_usize..5, any::<bool>()).prop_flat_map(
        |(channels, points, count, planar)| {
            // All parts are equal, so the divided axis is a multiple of their number.
            let is_planar = planar && channels * u32::try_from(count).unwrap() > 1;
            let parts = proptest::sample::subsequence((0..count).collect::<Vec<_>>(), 1..=count)
                .prop_shuffle()
                .prop_map(move |keep| Some(Parts { count, keep }));
            (
                prop_oneof![Just(None), parts],
                indices(channels as usize),
                indices(points),
            )
                .prop_map(move |(parts, channels_kept, points_kept)| {
                    let count = parts.as_ref().map_or(1, |parts| parts.count);
                    let wide = u32::try_from(count).unwrap();
                    let (all_channels, all_points) = if is_planar && channels * wide > 1 {
                        (channels * wide, points)
                    } else {
                        (channels, points * count)
                    };
                    let select = Select {
                        parts,
                        channels: channels_kept,
                        points: points_kept,
                        ..Select::default()
                    };
                    (select, all_channels, all_points, planar)
                })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn select_copies_the_samples_of_the_definition(
        (select, channels, points, planar) in case(),
        scalar in proptest::sample::select(&[Scalar::Int8, Scalar::Uint16, Scalar::Float32, Scalar::Int64][..]),
        complex: bool,
    ) {
        let samples = Samples {
            scalar,
            complex,
            channels,
            order: if planar { Order::Planar } else { Order::Interleaved },
            ..Samples::default()
        };
        let input = samples.layout(points * samples.point_bytes()).unwrap();
        let frame: Vec<u8> = (0..input.frame_bytes()).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect();
        let output = select.layout(&input).unwrap();
        let outcome = run(&select, &input, &frames([frame.clone()]), &[1], None);
        let want = expected(&select, &input, &frame);
        prop_assert_eq!(output.frame_bytes(), want.len());
        prop_assert_eq!(&outcome.outputs[0].1, &want);
    }
}

fn input(scalar: Scalar, channels: u32, points: usize) -> Layout {
    let samples = Samples {
        scalar,
        channels,
        rate: Some(Frequency(1e6)),
        ..Samples::default()
    };
    samples.layout(points * samples.point_bits() / 8).unwrap()
}

#[test]
fn select_filters_frames_and_counts_them() {
    let input = input(Scalar::Int8, 1, 8);
    let select = Select {
        every: 2,
        drop: vec![Flag::Incomplete, Flag::Suspect],
        points: Some(range(2, None, 3)),
        ..Select::default()
    };
    let mut given = frames((0..8).map(|i| vec![i; 8]));
    given[1].0.flags = Flags::INCOMPLETE;
    given[2].0.flags = Flags::SUSPECT.with(Flags::EPOCH);
    given[4].0.flags = Flags::EPOCH;
    given[6].1.pop();
    let outcome = run(&select, &input, &given, &[3, 5], None);
    let made: Vec<_> = outcome
        .outputs
        .iter()
        .map(|(meta, bytes)| (meta.sequence, meta.timestamp.ns, meta.flags, &bytes[..]))
        .collect();
    // The first selected sample is 2 µs after the first sample of the frame.
    assert_eq!(
        made,
        [
            (0, 2000, Flags::default(), &[0; 2][..]),
            (2, 4_002_000, Flags::EPOCH, &[4; 2][..]),
        ]
    );
    assert_eq!(sums(&outcome), [2, 0, 1]);
    let filtered: u64 = outcome.calls.iter().map(|call| call.filtered).sum();
    assert_eq!(filtered, 5);
}

#[test]
fn select_describes_its_output() {
    let input = input(Scalar::Int16, 4, 1000);
    let select = |keys: &str| {
        let text = format!("use = \"select\"\ninput = \"a\"\noutput = \"b\"\n{keys}");
        super::super::tests::parse(&format!("[kernel.k]\n{text}")).unwrap()
    };
    let output =
        select("channels = [3, 0]\npoints = { first = 100, count = 50, step = 4 }\nevery = 5")
            .layout(&input)
            .unwrap();
    assert_eq!((output.channels, output.points), (2, 50));
    assert_eq!(output.sample_rate(), Some(250_000.0));
    assert_eq!(output.frame_rate, Some(200.0));
    let spectrum = Layout {
        axis: Axis::Frequency {
            start: Some(-500.0),
            step: Some(1.0),
        },
        ..input.clone()
    };
    let cut = select("points = { first = 250, count = 100, step = 2 }");
    assert_eq!(
        cut.layout(&spectrum).unwrap().axis,
        Axis::Frequency {
            start: Some(-250.0),
            step: Some(2.0)
        }
    );
    let scattered = select("points = [1, 5, 6]").layout(&spectrum).unwrap();
    assert_eq!(
        scattered.axis,
        Axis::Frequency {
            start: None,
            step: None
        }
    );
    // Colours follow their channels.
    let image = |colors: &str| {
        Axis::Pixels(Image {
            width: 50,
            height: 20,
            colors: Some(colors.to_owned()),
            modules: Vec::new(),
        })
    };
    let pixels = Layout {
        axis: image("RGBA"),
        ..input.clone()
    };
    let turned = select("channels = [2, 1, 0]").layout(&pixels).unwrap();
    assert_eq!(turned.axis, image("BGR"));
    let fields = Layout {
        points: 3,
        axis: Axis::Fields(vec!["min".to_owned(), "max".to_owned(), "rms".to_owned()]),
        ..input
    };
    assert_eq!(
        select("points = [2, 0]").layout(&fields).unwrap().axis,
        Axis::Fields(vec!["rms".to_owned(), "min".to_owned()])
    );
}

#[test]
fn select_of_packed_samples_needs_whole_bytes() {
    let packed = input(Scalar::Uint12p, 1, 24);
    let points = |points| Select {
        points: Some(points),
        ..Select::default()
    };
    assert_eq!(
        points(range(4, Some(6), 1))
            .layout(&packed)
            .unwrap()
            .frame_bytes(),
        9
    );
    for cut in [
        range(1, Some(4), 1),
        range(0, Some(5), 1),
        range(0, None, 2),
    ] {
        let problem = points(cut).layout(&packed).unwrap_err();
        assert!(problem.message.contains("uint12p"), "{problem}");
        assert!(problem.help.unwrap().contains("convert"));
    }
    let halves = Select {
        parts: Some(Parts {
            count: 2,
            keep: vec![1],
        }),
        ..Select::default()
    };
    assert_eq!(halves.layout(&packed).unwrap().points, 12);
    let nibbles = Samples {
        scalar: Scalar::Int4pmsb,
        complex: true,
        channels: 3,
        ..Samples::default()
    };
    let channels = Select {
        channels: Some(Indices::List(vec![2, 0])),
        ..Select::default()
    };
    let nibbles = nibbles.layout(9).unwrap();
    assert_eq!(channels.layout(&nibbles).unwrap().frame_bytes(), 6);
    let outcome = run(&channels, &nibbles, &frames([(0..9).collect()]), &[1], None);
    assert_eq!(outcome.outputs[0].1, [2, 0, 5, 3, 8, 6]);
}

#[test]
fn wrong_selections_name_the_key() {
    let input = input(Scalar::Int16, 4, 1000);
    let wrong = [
        (
            Select {
                channels: Some(Indices::List(vec![4])),
                ..Select::default()
            },
            "channels",
        ),
        (
            Select {
                channels: Some(Indices::List(vec![1, 1])),
                ..Select::default()
            },
            "channels",
        ),
        (
            Select {
                channels: Some(Indices::List(vec![])),
                ..Select::default()
            },
            "channels",
        ),
        (
            Select {
                points: Some(range(1000, None, 1)),
                ..Select::default()
            },
            "points",
        ),
        (
            Select {
                points: Some(range(0, Some(501), 2)),
                ..Select::default()
            },
            "points",
        ),
        (
            Select {
                points: Some(range(0, Some(2), usize::MAX)),
                ..Select::default()
            },
            "points",
        ),
        (
            Select {
                points: Some(range(0, None, 0)),
                ..Select::default()
            },
            "points",
        ),
        (
            Select {
                parts: Some(Parts {
                    count: 3,
                    keep: vec![0],
                }),
                ..Select::default()
            },
            "parts.count",
        ),
        (
            Select {
                parts: Some(Parts {
                    count: 2,
                    keep: vec![2],
                }),
                ..Select::default()
            },
            "parts.keep",
        ),
        (
            Select {
                parts: Some(Parts {
                    count: 0,
                    keep: vec![0],
                }),
                ..Select::default()
            },
            "parts.keep",
        ),
        (
            Select {
                every: 0,
                ..Select::default()
            },
            "every",
        ),
    ];
    for (select, key) in wrong {
        let problem = select.layout(&input).unwrap_err();
        assert_eq!(problem.key.as_deref(), Some(key), "{problem}");
        assert!(problem.help.is_some());
    }
}

/// Returns the rate and the frame rate of the output, and whether its frames continue each other, for 1000 points at 1 MHz.
fn timing(select: &Select) -> (Option<f64>, Option<f64>, bool) {
    let output = select.layout(&input(Scalar::Int16, 1, 1000)).unwrap();
    (
        output.sample_rate(),
        output.frame_rate,
        output.is_contiguous,
    )
}

fn points(points: Indices) -> Select {
    Select {
        points: Some(points),
        ..Select::default()
    }
}

fn every(every: u64) -> Select {
    Select {
        every,
        ..Select::default()
    }
}

fn parts(count: usize, keep: &[usize]) -> Select {
    Select {
        parts: Some(Parts {
            count,
            keep: keep.to_vec(),
        }),
        ..Select::default()
    }
}

#[test]
fn output_has_the_rate_of_the_selected_points() {
    let rate = |rate| (Some(rate), Some(1000.0));
    for (select, (sample_rate, frame_rate), is_contiguous) in [
        (Select::default(), rate(1e6), true),
        (points(range(0, None, 10)), rate(1e5), true),
        (points(range(7, None, 10)), rate(1e5), true),
        (points(range(7, Some(99), 10)), rate(1e5), false),
        (points(range(0, Some(500), 1)), rate(1e6), false),
        // One point per frame has the rate of the frames.
        (points(range(3, Some(1), 1)), rate(1e3), true),
        (points(Indices::List(vec![999])), rate(1e3), true),
        (
            points(Indices::List(vec![0, 1, 5])),
            (None, Some(1e3)),
            false,
        ),
        (every(4), (Some(1e6), Some(250.0)), false),
        // Single points of every fourth frame are a series too.
        (
            Select {
                every: 4,
                ..points(Indices::List(vec![5]))
            },
            (Some(250.0), Some(250.0)),
            true,
        ),
        (parts(4, &[2]), rate(1e6), false),
        (parts(4, &[0, 1, 2, 3]), rate(1e6), true),
        (parts(4, &[1, 2]), rate(1e6), false),
        (parts(4, &[0, 2]), (None, Some(1e3)), false),
        (
            Select {
                points: Some(range(3, None, 5)),
                ..parts(4, &[0, 1, 2, 3])
            },
            rate(2e5),
            true,
        ),
    ] {
        let found = timing(&select);
        assert_eq!(
            found,
            (sample_rate, frame_rate, is_contiguous),
            "{select:?}"
        );
    }
    // The output of another `select` stays interrupted.
    let gaps = every(2).layout(&input(Scalar::Int16, 1, 1000)).unwrap();
    let thinned = points(range(0, None, 10)).layout(&gaps).unwrap();
    assert!(!thinned.is_contiguous);
}

#[test]
fn time_of_output_is_that_of_its_first_sample_in_the_kept_parts() {
    let input = input(Scalar::Int16, 1, 1000);
    let given = frames([vec![0; 2000]]);
    for (select, us) in [
        (parts(4, &[2]), 500),
        (parts(4, &[3, 0]), 750),
        (
            Select {
                points: Some(range(10, None, 2)),
                ..parts(4, &[1, 3])
            },
            260,
        ),
    ] {
        let outcome = run(&select, &input, &given, &[1], None);
        assert_eq!(outcome.outputs[0].0.timestamp.ns, us * 1000, "{select:?}");
    }
}

/// Kernels that join samples of successive frames refuse frames that do not continue each other.
#[test]
fn interrupted_series_are_refused_with_the_fix() {
    use super::super::{Channelize, PowerSpectrum};
    let input = input(Scalar::Int16, 1, 1024);
    let continuous = PowerSpectrum {
        size: Some(64),
        continuous: true,
        ..PowerSpectrum::default()
    };
    let channelize = Channelize {
        channels: Some(16),
        ..Channelize::default()
    };
    let kernels: [&dyn KernelSpec; 2] = [&channelize, &continuous];
    for select in [every(3), points(range(0, Some(512), 1)), parts(2, &[1])] {
        let output = select.layout(&input).unwrap();
        for kernel in kernels {
            let problem = kernel.layout(&output).unwrap_err();
            assert_eq!(problem.key.as_deref(), Some("input"));
            assert!(problem.message.contains("do not continue each other"));
            assert!(problem.help.unwrap().contains("behind this kernel"));
        }
        // Blocks within a frame need no other frame.
        let within = PowerSpectrum {
            continuous: false,
            ..continuous.clone()
        };
        assert!(within.layout(&output).is_ok());
    }
    for select in [
        points(range(1, None, 2)),
        Select {
            drop: vec![Flag::Incomplete],
            ..Select::default()
        },
    ] {
        let output = select.layout(&input).unwrap();
        assert!(kernels.iter().all(|kernel| kernel.layout(&output).is_ok()));
    }
}

/// The number of outputs of a burst cannot be derived from the number of its frames.
#[test]
fn all_frames_of_a_burst_with_losses_can_be_kept() {
    let input = input(Scalar::Int8, 1, 8);
    let mut given = frames((0..3).map(|i| vec![i; 8]));
    for (meta, _) in &mut given {
        meta.sequence *= 100;
    }
    let outcome = run(&every(100), &input, &given, &[3], None);
    let numbers = outcome.outputs.iter().map(|(meta, _)| meta.sequence);
    assert_eq!(numbers.collect::<Vec<_>>(), [0, 1, 2]);
}
