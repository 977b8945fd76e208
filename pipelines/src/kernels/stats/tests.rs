use super::super::tests::{figure, sums};
use super::super::trial::{Record, SCALARS, as_f64, frames, run};
use super::*;
use daq_core::frame::Flags;
use daq_core::layout::Samples;
use proptest::prelude::*;

/// Computes the fields as the documentation defines them, one number at a time.
fn reference(
    x: &[f64],
    clip: impl Fn(f64) -> bool,
    bins: usize,
    [low, high]: [f64; 2],
) -> Vec<f64> {
    let x: Vec<f64> = x.iter().copied().filter(|x| !x.is_nan()).collect();
    let count = x.len() as f64;
    let mean = x.iter().sum::<f64>() / count;
    let rms = (x.iter().map(|x| x * x).sum::<f64>() / count).sqrt();
    let ends = [
        x.iter().copied().fold(f64::NAN, f64::min),
        x.iter().copied().fold(f64::NAN, f64::max),
    ];
    let clipped = x.iter().filter(|x| clip(**x)).count() as f64;
    let step = (high - low) / bins as f64;
    let edges: Vec<f64> = (0..bins)
        .map(|i| i as f64 * step + low)
        .chain([high])
        .collect();
    let histogram = (0..bins).map(|i| {
        let last = i + 1 == bins;
        x.iter()
            .filter(|x| **x >= edges[i] && (**x < edges[i + 1] || last && **x <= high))
            .count() as f64
    });
    [count, ends[0], ends[1], mean, rms, clipped]
        .into_iter()
        .chain(histogram)
        .collect()
}

fn assert_same(made: &[f64], want: &[f64]) {
    assert_eq!(made.len(), want.len());
    for (i, (made, want)) in made.iter().zip(want).enumerate() {
        let near = (made - want).abs() <= 1e-9 * want.abs().max(1.0);
        let exact = i != 3 && i != 4;
        assert!(
            made.is_nan() && want.is_nan() || made == want || !exact && near,
            "field {i}: {made} is not {want}"
        );
    }
}

/// Returns the bytes and the values of `count` numbers. Many of them are the smallest or the largest value of their
/// type.
#[expect(
    clippy::cast_possible_wrap,
    clippy::cast_lossless,
    reason = "any number is suitable"
)]
fn numbers(scalar: Scalar, count: usize, seed: u64) -> (Vec<u8>, Vec<f64>) {
    let (mut bytes, mut values, mut state) = (Vec::new(), Vec::new(), seed);
    for _ in 0..count {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let random = (state >> 32) as u32;
        macro_rules! push {
            ($type:ident) => {{
                let number = match random % 16 {
                    0 => $type::MIN,
                    1 => $type::MAX,
                    _ => (random >> 4) as $type,
                };
                bytes.extend(number.to_le_bytes());
                values.push(number as f64);
            }};
            (float $type:ident) => {{
                let number = match random % 16 {
                    0 => $type::NAN,
                    1 => 1.0,
                    2 => -1.0,
                    _ => ((random >> 4) as $type / (1 << 27) as $type) - 1.0,
                };
                bytes.extend(number.to_le_bytes());
                values.push(number as f64);
            }};
        }
        match scalar {
            Scalar::Int8 => push!(i8),
            Scalar::Uint8 => push!(u8),
            Scalar::Int16 => push!(i16),
            Scalar::Uint16 => push!(u16),
            Scalar::Int32 => push!(i32),
            Scalar::Float32 => push!(float f32),
            Scalar::Float64 => push!(float f64),
            _ => panic!("{scalar} is not supported"),
        }
    }
    (bytes, values)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn stats_equal_definition(
        scalar in proptest::sample::select(&SCALARS[..]),
        complex: bool,
        channels in 1_u32..4,
        points in 1_usize..1300,
        planar: bool,
        bins in 0_usize..40,
        range in proptest::option::of((-300.0_f64..0.0, 0.1_f64..400.0)),
        clip in proptest::option::of(0.1_f64..130.0),
        seed: u64,
    ) {
        let order = if planar { Order::Planar } else { Order::Interleaved };
        let samples = Samples { scalar, complex, channels, order, ..Samples::default() };
        let parts = if complex { 2 } else { 1 };
        let channels = channels as usize;
        let (bytes, values) = numbers(scalar, points * channels * parts, seed);
        let input = samples.layout(bytes.len()).unwrap();
        let natural = codes(scalar).map(|(low, high)| [low, high + 1.0]);
        // A float type has no codes, so use a range with numbers at its edges.
        let range = range.map(|(low, width)| [low, low + width]).or(natural.is_none().then_some([-1.0, 1.0]));
        let spec = Stats { bins: Some(bins), range, clip, ..Stats::default() };
        let outcome = run(&spec, &input, &frames([bytes]), &[1], None);
        prop_assert_eq!(sums(&outcome), [1, 0, 0]);
        let made = as_f64(&outcome.outputs[0].1);
        let clipped = |x: f64| match (clip, codes(scalar)) {
            (Some(clip), _) => x.abs() >= clip,
            (None, Some((low, high))) => x == low || x == high,
            (None, None) => x.is_infinite(),
        };
        for channel in 0..channels {
            let of_channel: Vec<f64> = (0..points)
                .map(|n| if planar { channel * points + n } else { n * channels + channel } * parts)
                .flat_map(|at| values[at..at + parts].to_vec())
                .collect();
            let want = reference(&of_channel, clipped, bins, range.or(natural).unwrap());
            assert_same(&made[channel * want.len()..][..want.len()], &want);
        }
    }

    #[test]
    fn stats_are_independent_of_bursts_and_count_each_frame_once(
        bursts in proptest::collection::vec(1_usize..9, 1..5),
        count in 1_usize..40,
        every in 1_u64..6,
        events in proptest::collection::vec(0_u8..10, 40),
    ) {
        let (input, mut given) = simple(u8::try_from(count).unwrap());
        let (mut missing, mut epoch) = (0, 0);
        for ((meta, bytes), event) in given.iter_mut().zip(events) {
            match event {
                0 => missing += 2,
                1 => epoch += 1,
                2 => { bytes.pop(); }
                _ => {}
            }
            meta.sequence += missing;
            meta.epoch = epoch;
        }
        let spec = Stats { every, bins: Some(0), ..Stats::default() };
        let one = run(&spec, &input, &given, &[1], None);
        let many = run(&spec, &input, &given, &bursts, None);
        prop_assert_eq!(&one.outputs, &many.outputs);
        prop_assert_eq!(sums(&one), sums(&many));
        let [consumed, accumulating, failed] = sums(&many);
        prop_assert_eq!(consumed + accumulating + failed, count as u64);
        let counted: f64 = many.outputs.iter().map(|(_, bytes)| as_f64(bytes)[0]).sum();
        prop_assert_eq!(counted, 4.0 * consumed as f64, "every number of a consumed frame must be counted");
    }
}

#[test]
fn values_at_bin_edges_are_binned_as_by_numpy() {
    let ranges = [
        [0.1, 0.7],
        [-1.0, 1.0],
        [-2.5, 2.1],
        [1e-3, 1e3],
        [1e9, 1e9 + 0.3],
        [-0.3, 0.0],
    ];
    for [low, high] in ranges {
        for bins in 1..130 {
            let step = (high - low) / f64::from(bins);
            let edges = (0..=bins).map(|i| {
                if i == bins {
                    high
                } else {
                    f64::from(i) * step + low
                }
            });
            let x: Vec<f64> = edges
                .flat_map(|edge: f64| [edge.next_down(), edge, edge.next_up()])
                .collect();
            let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
            let samples = Samples {
                scalar: Scalar::Float64,
                ..Samples::default()
            };
            let input = samples.layout(bytes.len()).unwrap();
            let bins = usize::try_from(bins).unwrap();
            let spec = Stats {
                bins: Some(bins),
                range: Some([low, high]),
                ..Stats::default()
            };
            let made = as_f64(&run(&spec, &input, &frames([bytes]), &[1], None).outputs[0].1);
            assert_same(&made, &reference(&x, f64::is_infinite, bins, [low, high]));
        }
    }
}

/// Returns frames of 4 int8 numbers, which are all equal.
fn simple(count: u8) -> (Layout, Vec<Record>) {
    let contents = (0..count).map(|i| vec![i; 4]);
    (Samples::default().layout(4).unwrap(), frames(contents))
}

#[test]
fn merged_frames_are_counted_as_accumulating() {
    let (input, given) = simple(7);
    let spec = Stats {
        every: 3,
        bins: Some(0),
        ..Stats::default()
    };
    let outcome = run(&spec, &input, &given, &[2], None);
    let settled: Vec<_> = outcome
        .calls
        .iter()
        .map(|call| (call.consumed, call.accumulating, call.released))
        .collect();
    assert_eq!(settled, [(0, 2, 0), (1, 1, 2), (2, 0, 1), (0, 1, 0)]);
    let made: Vec<_> = outcome
        .outputs
        .iter()
        .map(|(meta, bytes)| (meta.sequence, as_f64(bytes)))
        .collect();
    let rms = |squares: f64| (squares / 3.0).sqrt();
    assert_eq!(made[0], (0, vec![12.0, 0.0, 2.0, 1.0, rms(5.0), 0.0]));
    assert_eq!(made[1], (1, vec![12.0, 3.0, 5.0, 4.0, rms(50.0), 0.0]));
}

#[test]
fn new_epoch_ends_output_early_and_gap_is_flagged() {
    let (input, mut given) = simple(6);
    given[1].0.sequence = 5;
    for (i, (meta, _)) in given[2..].iter_mut().enumerate() {
        (meta.epoch, meta.sequence) = (1, i as u64);
    }
    given[2].0.flags = Flags::EPOCH;
    let spec = Stats {
        every: 4,
        bins: Some(0),
        ..Stats::default()
    };
    let outcome = run(&spec, &input, &given, &[6], None);
    assert_eq!(sums(&outcome), [6, 0, 0]);
    let message: Vec<_> = outcome
        .outputs
        .iter()
        .map(|(meta, bytes)| (meta.epoch, meta.flags, as_f64(bytes)[0]))
        .collect();
    assert_eq!(
        message,
        [(0, Flags::INCOMPLETE, 8.0), (1, Flags::EPOCH, 16.0)]
    );
}

#[test]
fn frame_without_finite_values_is_reported() {
    let input = Samples {
        scalar: Scalar::Float32,
        ..Samples::default()
    }
    .layout(8)
    .unwrap();
    let given = frames([[f32::NAN.to_le_bytes(); 2].concat()]);
    let made = as_f64(&run(&Stats::default(), &input, &given, &[1], None).outputs[0].1);
    assert_eq!((made[0], made[5]), (0.0, 0.0));
    assert!(made[1..5].iter().all(|value| value.is_nan()), "{made:?}");
}

#[test]
fn histogram_of_floats_without_range_is_rejected() {
    let input = Samples {
        scalar: Scalar::Float64,
        ..Samples::default()
    }
    .layout(8)
    .unwrap();
    let problem = Stats {
        bins: Some(8),
        ..Stats::default()
    }
    .layout(&input)
    .unwrap_err();
    assert!(problem.key.as_deref() == Some("bins") && problem.help.unwrap().contains("range"));
    assert_eq!(
        Stats::default().layout(&input).unwrap().points,
        FIELDS.len()
    );
    let ranged = Stats {
        range: Some([0.0, 1.0]),
        ..Stats::default()
    };
    assert_eq!(ranged.layout(&input).unwrap().points, FIELDS.len() + 256);
}

#[test]
#[ignore = "prints a figure"]
fn stats_throughput() {
    for scalar in SCALARS {
        for channels in [1, 4] {
            let input = Samples {
                scalar,
                channels,
                ..Samples::default()
            }
            .layout(1 << 20)
            .unwrap();
            let range = codes(scalar).is_none().then_some([-1.0, 1.0]);
            figure(
                &format!("stats {scalar}, {channels} channels"),
                &Stats {
                    range,
                    ..Stats::default()
                },
                &input,
            );
        }
    }
}
