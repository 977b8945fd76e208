use super::super::tests::{figure, parse, sums};
use super::super::trial::{Noise, Record, SCALARS, as_f32, frames, layout, run};
use super::*;
use daq_core::frame::{Clock, Flags, Timestamp};
use daq_core::layout::Samples;
use daq_core::units::Frequency;
use proptest::prelude::*;
use std::f64::consts::TAU;

mod continuous;

/// Returns the bytes of `count` random numbers, and the values that the kernel reads from these bytes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_lossless,
    reason = "the values are in the range of the type"
)]
fn numbers(scalar: Scalar, count: usize, noise: &mut Noise) -> (Vec<u8>, Vec<f64>) {
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let x = noise.number();
        macro_rules! push {
            ($number:expr) => {{
                let number = $number;
                bytes.extend(number.to_le_bytes());
                values.push(f64::from(number as f32));
            }};
        }
        match scalar {
            Scalar::Int8 => push!((x * 127.0) as i8),
            Scalar::Uint8 => push!((x * 127.0 + 127.0) as u8),
            Scalar::Int16 => push!((x * 32_767.0) as i16),
            Scalar::Uint16 => push!((x * 32_767.0 + 32_767.0) as u16),
            Scalar::Int32 => push!((x * 2e9) as i32),
            Scalar::Float32 => push!(x as f32),
            Scalar::Float64 => push!(x),
            _ => panic!("{scalar} is not supported"),
        }
    }
    (bytes, values)
}

/// Returns |X[k]|² of `size` complex points, computed from the definition in float64.
fn dft(points: &[(f64, f64)], window: &[f64]) -> Vec<f64> {
    let size = points.len();
    let roots: Vec<(f64, f64)> = (0..size)
        .map(|i| (TAU * i as f64 / size as f64).sin_cos())
        .collect();
    (0..size)
        .map(|k| {
            let (mut re, mut im) = (0.0, 0.0);
            for (n, ((x, y), w)) in points.iter().zip(window).enumerate() {
                let (sin, cos) = roots[n * k % size];
                re += w * (x * cos + y * sin);
                im += w * (y * cos - x * sin);
            }
            re * re + im * im
        })
        .collect()
}

/// Computes the formula in the module's documentation for one channel, without the division.
fn reference(
    points: &[(f64, f64)],
    size: usize,
    hop: usize,
    window: &[f64],
    complex: bool,
) -> Vec<f64> {
    let mut mean = vec![0.0; size];
    let mut count = 0.0;
    for start in (0..=points.len() - size).step_by(hop) {
        count += 1.0;
        for (sum, power) in mean
            .iter_mut()
            .zip(dft(&points[start..start + size], window))
        {
            *sum += power;
        }
    }
    for power in &mut mean {
        *power /= count;
    }
    if complex {
        mean.rotate_left(size.div_ceil(2));
    } else {
        mean.truncate(size / 2 + 1);
    }
    mean
}

/// Checks that the results have the accuracy that the module's documentation states.
fn assert_near(made: &[f64], want: &[f64], what: &str) {
    assert_eq!(made.len(), want.len(), "{what}");
    let mean = want.iter().sum::<f64>() / want.len() as f64;
    for (k, (made, want)) in made.iter().zip(want).enumerate() {
        let near = (made - want).abs() <= 1e-5 * mean.max(*want);
        assert!(near, "{what}: bin {k} is {made}, not {want} (mean {mean})");
    }
}

const WINDOWS: [(WindowShape, &[f64]); 4] = [
    (WindowShape::Hann, &[0.5, -0.5]),
    (WindowShape::Hamming, &[0.54, -0.46]),
    (
        WindowShape::BlackmanHarris,
        &[0.35875, -0.48829, 0.14128, -0.01168],
    ),
    (WindowShape::Rectangular, &[1.0]),
];
/// Runs one random frame through the kernel and compares the output with the definition.
fn compare(samples: &Samples, points: usize, spec: &PowerSpectrum, terms: &[f64], seed: u64) {
    let input = layout(samples, points);
    let channels = samples.channels as usize;
    let parts = if samples.complex { 2 } else { 1 };
    let (bytes, values) = numbers(samples.scalar, points * channels * parts, &mut Noise(seed));
    let shape = spec.shape(&input).unwrap();
    let size = shape.size;
    let angle = |n: usize, k: usize| (TAU * n as f64 * k as f64 / size as f64).cos();
    let window: Vec<f64> = (0..size)
        .map(|n| terms.iter().enumerate().map(|(k, a)| a * angle(n, k)).sum())
        .collect();
    let sum: f64 = window.iter().sum();
    let squares: f64 = window.iter().map(|w| w * w).sum();
    let divisor = match spec.scaling {
        Scaling::Power | Scaling::Db | Scaling::OneSided => sum * sum,
        Scaling::Density | Scaling::OneSidedDensity => samples.rate.unwrap().0 * squares,
        Scaling::None => 1.0,
    };
    let outcome = run(spec, &input, &frames([bytes]), &[1], None);
    assert_eq!(sums(&outcome), [1, 0, 0]);
    let [(_, made)] = &outcome.outputs[..] else {
        panic!("{} outputs", outcome.outputs.len())
    };
    let made = as_f32(made);
    for channel in 0..channels {
        let at = |point: usize, part: usize| match samples.order {
            Order::Interleaved => values[(point * channels + channel) * parts + part],
            Order::Planar => values[(channel * points + point) * parts + part],
        };
        let points: Vec<(f64, f64)> = (0..points)
            .map(|n| (at(n, 0), if samples.complex { at(n, 1) } else { 0.0 }))
            .collect();
        let mut want = reference(&points, size, shape.hop, &window, samples.complex);
        for power in &mut want {
            *power /= divisor;
        }
        let made = &made[channel * shape.bins..][..shape.bins];
        let what = format!("{samples:?} {spec:?} channel {channel}");
        let power = |x: &f64| match spec.scaling {
            Scaling::Db => 10_f64.powf(*x / 10.0),
            _ => *x,
        };
        assert_near(&made.iter().map(power).collect::<Vec<_>>(), &want, &what);
    }
}

#[test]
fn spectrum_equals_definition_for_every_type_order_and_window() {
    let mut seed = 1;
    for scalar in SCALARS {
        for complex in [false, true] {
            for (channels, order) in [
                (1, Order::Interleaved),
                (3, Order::Interleaved),
                (2, Order::Planar),
            ] {
                for (window, terms) in WINDOWS {
                    for (size, points) in
                        [(2, 7), (3, 3), (15, 50), (64, 64), (97, 300), (128, 700)]
                    {
                        seed += 1;
                        let samples = Samples {
                            scalar,
                            complex,
                            channels,
                            order,
                            rate: None,
                            ..Samples::default()
                        };
                        let spec = PowerSpectrum {
                            size: Some(size),
                            window: window.into(),
                            ..PowerSpectrum::default()
                        };
                        compare(&samples, points, &spec, terms, seed);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn spectrum_equals_definition_for_any_size_overlap_and_scaling(
        size in 2_usize..200,
        more in 0_usize..500,
        overlap in 0.0_f64..0.9,
        complex: bool,
        channels in 1_u32..4,
        planar: bool,
        scaling in proptest::sample::select(vec![Scaling::Power, Scaling::Density, Scaling::Db, Scaling::None]),
        window in 0_usize..4,
        seed: u64,
    ) {
        let order = if planar { Order::Planar } else { Order::Interleaved };
        let rate = Some(Frequency(48_000.0));
        let samples = Samples { scalar: Scalar::Int16, complex, channels, order, rate, ..Samples::default() };
        let (window, terms) = WINDOWS[window];
        let spec = PowerSpectrum { size: Some(size), window: window.into(), overlap, scaling, ..PowerSpectrum::default() };
        compare(&samples, size + more, &spec, terms, seed);
    }

    #[test]
    fn spectrum_is_independent_of_bursts_and_counts_each_frame_once(
        bursts in proptest::collection::vec(1_usize..9, 1..5),
        count in 1_usize..40,
        integrate in 1_u64..14,
        points in 8_usize..30,
        complex: bool,
        skip: bool,
        restart: bool,
        continuous: bool,
        size in 2_usize..50,
        overlap in 0.0_f64..0.9,
        events in proptest::collection::vec(0_u8..12, 40),
        seed: u64,
    ) {
        let samples = Samples { scalar: Scalar::Int8, complex, ..Samples::default() };
        let input = layout(&samples, points);
        let mut noise = Noise(seed);
        let mut given = frames((0..count).map(|_| numbers(Scalar::Int8, input.frame_bytes(), &mut noise).0));
        let (mut missing, mut epoch) = (0, 0);
        for ((meta, bytes), event) in given.iter_mut().zip(events) {
            match event {
                0 => missing += 2,
                1 => epoch += 1,
                2 => { bytes.pop(); }
                3 => meta.flags = Flags::INCOMPLETE,
                _ => {}
            }
            meta.sequence += missing;
            meta.epoch = epoch;
        }
        let spec = PowerSpectrum {
            size: Some(if continuous { size } else { 8 }),
            overlap,
            continuous,
            integrate: Some(integrate),
            partial: if skip { Partial::Skip } else { Partial::Use },
            gap: if restart { Gap::Restart } else { Gap::Continue },
            ..PowerSpectrum::default()
        };
        let one = run(&spec, &input, &given, &[1], None);
        let many = run(&spec, &input, &given, &bursts, None);
        prop_assert_eq!(&one.outputs, &many.outputs);
        prop_assert_eq!(sums(&one), sums(&many));
        let [consumed, accumulating, failed] = sums(&many);
        prop_assert_eq!(consumed + accumulating + failed, count as u64);
        // The numbers of outputs increase within an epoch.
        for pair in many.outputs.windows(2) {
            let (a, b) = (pair[0].0, pair[1].0);
            prop_assert!(a.epoch < b.epoch || a.epoch == b.epoch && a.sequence < b.sequence);
        }
    }
}

#[test]
fn one_sided_spectrum_of_complex_samples_is_rejected() {
    let samples = Samples {
        complex: true,
        rate: Some(Frequency(8000.0)),
        ..Samples::default()
    };
    for scaling in [Scaling::OneSided, Scaling::OneSidedDensity] {
        let spec = PowerSpectrum {
            scaling,
            ..PowerSpectrum::default()
        };
        let problem = spec.layout(&layout(&samples, 64)).unwrap_err();
        assert_eq!(problem.key.as_deref(), Some("scaling"));
        assert!(problem.help.unwrap().contains("power"));
    }
}

#[test]
fn detrended_constant_samples_have_no_power() {
    let (input, _) = simple(0);
    let given = frames([vec![100; 8], vec![100; 8], vec![100; 8]]);
    for (detrend, first) in [(Detrend::None, 640_000.0), (Detrend::Constant, 0.0)] {
        let outcome = run(
            &PowerSpectrum { detrend, ..keys(3) },
            &input,
            &given,
            &[2],
            None,
        );
        assert_eq!(as_f32(&outcome.outputs[0].1), [first, 0.0, 0.0, 0.0, 0.0]);
    }
}

/// Returns frames of 8 real int8 points for a kernel with one spectrum per frame.
fn simple(count: u8) -> (Layout, Vec<Record>) {
    let samples = Samples {
        rate: Some(Frequency(8000.0)),
        ..Samples::default()
    };
    (
        layout(&samples, 8),
        frames((0..count).map(|i| vec![i, 0, 0, 0, 0, 0, 0, 0])),
    )
}

fn keys(integrate: u64) -> PowerSpectrum {
    PowerSpectrum {
        size: Some(8),
        integrate: Some(integrate),
        window: WindowShape::Rectangular.into(),
        scaling: Scaling::None,
        ..PowerSpectrum::default()
    }
}

#[test]
fn integration_spans_frames_and_counts_them_as_accumulating() {
    let (input, given) = simple(7);
    let outcome = run(&keys(3), &input, &given, &[2], None);
    let settled: Vec<_> = outcome
        .calls
        .iter()
        .map(|call| (call.consumed, call.accumulating, call.released, call.failed))
        .collect();
    assert_eq!(
        settled,
        [(0, 2, 0, 0), (1, 1, 2, 0), (2, 0, 1, 0), (0, 1, 0, 0)]
    );
    assert_eq!(sums(&outcome), [6, 1, 0]);
    // An impulse of height h has the power h² at every frequency.
    let means: Vec<_> = outcome
        .outputs
        .iter()
        .map(|(_, bytes)| as_f32(bytes))
        .collect();
    assert_eq!(
        means,
        [5.0, 50.0].map(|sum: f32| vec![f64::from(sum / 3.0); 5])
    );
    let stamps: Vec<_> = outcome
        .outputs
        .iter()
        .map(|(meta, _)| (meta.sequence, meta.timestamp.ns))
        .collect();
    assert_eq!(stamps, [(0, 0), (1, 3_000_000)]);
}

#[test]
fn outputs_within_one_frame_have_own_time_and_number() {
    let samples = Samples {
        rate: Some(Frequency(8000.0)),
        ..Samples::default()
    };
    let input = layout(&samples, 40);
    let outcome = run(
        &keys(2),
        &input,
        &frames([vec![1; 40], vec![1; 40]]),
        &[1],
        None,
    );
    let stamps: Vec<_> = outcome
        .outputs
        .iter()
        .map(|(meta, _)| (meta.sequence, meta.timestamp.ns))
        .collect();
    // A block lasts 1 ms, and the frames' timestamps are 1 ms apart.
    assert_eq!(
        stamps,
        [
            (0, 0),
            (1, 2_000_000),
            (2, 4_000_000),
            (3, 2_000_000),
            (4, 4_000_000)
        ]
    );
    assert_eq!(sums(&outcome), [2, 0, 0]);
}

#[test]
fn gap_restarts_integration_or_is_flagged() {
    let (input, mut given) = simple(6);
    for (meta, _) in &mut given[2..] {
        meta.sequence += 10;
    }
    let restarted = run(&keys(4), &input, &given, &[1], None);
    assert_eq!(sums(&restarted), [4, 0, 2]);
    assert_eq!(restarted.calls[2].dropped, 2);
    assert_eq!(restarted.outputs.len(), 1);
    let meta = restarted.outputs[0].0;
    assert_eq!((meta.sequence, meta.flags), (3, Flags::default()));

    let continued = run(
        &PowerSpectrum {
            gap: Gap::Continue,
            ..keys(4)
        },
        &input,
        &given,
        &[1],
        None,
    );
    assert_eq!(sums(&continued), [4, 2, 0]);
    let meta = continued.outputs[0].0;
    assert_eq!((meta.sequence, meta.flags), (0, Flags::INCOMPLETE));
}

#[test]
fn epoch_restart_is_logged_once() {
    let (input, mut given) = simple(7);
    given[0].0.flags = Flags::EPOCH;
    for (i, (meta, _)) in given[3..].iter_mut().enumerate() {
        (meta.epoch, meta.sequence) = (1, i as u64);
    }
    given[3].0.flags = Flags::EPOCH;
    let outcome = run(
        &PowerSpectrum {
            gap: Gap::Continue,
            ..keys(2)
        },
        &input,
        &given,
        &[3],
        None,
    );
    assert_eq!(sums(&outcome), [6, 0, 1]);
    let message: Vec<_> = outcome
        .outputs
        .iter()
        .map(|(meta, _)| (meta.epoch, meta.sequence, meta.flags))
        .collect();
    assert_eq!(
        message,
        [
            (0, 0, Flags::EPOCH),
            (1, 0, Flags::EPOCH),
            (1, 1, Flags::default())
        ]
    );
}

#[test]
fn incomplete_frames_are_flagged_or_skipped_and_counted() {
    let (input, mut given) = simple(4);
    given[1].0.flags = Flags::INCOMPLETE;
    given[1].0.timestamp = Timestamp {
        ns: 5,
        clock: Clock::None,
    };
    let used = run(&keys(2), &input, &given, &[4], None);
    assert_eq!(sums(&used), [4, 0, 0]);
    assert_eq!(used.outputs[0].0.flags, Flags::INCOMPLETE);
    assert_eq!(used.outputs[1].0.flags, Flags::default());

    let skipped = run(
        &PowerSpectrum {
            partial: Partial::Skip,
            ..keys(2)
        },
        &input,
        &given,
        &[4],
        None,
    );
    assert_eq!(sums(&skipped), [2, 1, 1]);
    assert_eq!(
        as_f32(&skipped.outputs[0].1),
        [2.0; 5],
        "the mean of 0² and 2²"
    );
    assert_eq!(skipped.outputs[0].0.flags, Flags::INCOMPLETE);
}

#[test]
fn spectrum_layout_has_frequency_axis() {
    let rate = Some(Frequency(1000.0));
    let complex = layout(
        &Samples {
            complex: true,
            rate,
            ..Samples::default()
        },
        50,
    );
    let made = PowerSpectrum {
        size: Some(5),
        ..PowerSpectrum::default()
    }
    .layout(&complex)
    .unwrap();
    assert_eq!(
        made.axis,
        Axis::Frequency {
            start: Some(-400.0),
            step: Some(200.0)
        }
    );
    assert_eq!((made.points, made.frame_rate), (5, Some(20.0)));
    let made = PowerSpectrum {
        integrate: Some(1),
        ..PowerSpectrum::default()
    }
    .layout(&complex)
    .unwrap();
    assert_eq!((made.points, made.frame_rate), (50, Some(20.0)));
    let unknown = layout(&Samples::default(), 10);
    let made = PowerSpectrum::default().layout(&unknown).unwrap();
    assert_eq!(
        (made.axis, made.points),
        (
            Axis::Frequency {
                start: None,
                step: None
            },
            6
        )
    );
}

#[test]
fn tone_appears_in_its_bin_with_its_power() {
    let rate = Some(Frequency(64.0));
    let input = layout(
        &Samples {
            scalar: Scalar::Float32,
            complex: true,
            rate,
            ..Samples::default()
        },
        64,
    );
    // A tone at -9 Hz with amplitude 3.
    let bytes = (0..64)
        .flat_map(|n| {
            let (sin, cos) = (-9.0 * TAU * f64::from(n) / 64.0).sin_cos();
            #[expect(clippy::cast_possible_truncation, reason = "float32 samples")]
            let part = |x: f64| ((3.0 * x) as f32).to_le_bytes();
            [part(cos), part(sin)].concat()
        })
        .collect();
    let spec = PowerSpectrum::default();
    let Axis::Frequency {
        start: Some(start),
        step: Some(step),
    } = spec.layout(&input).unwrap().axis
    else {
        panic!("the axis must have known frequencies")
    };
    let power = as_f32(&run(&spec, &input, &frames([bytes]), &[1], None).outputs[0].1);
    let peak = (0..64)
        .max_by(|a, b| power[*a].total_cmp(&power[*b]))
        .unwrap();
    assert_eq!(start + step * peak as f64, -9.0);
    assert!((power[peak] - 9.0).abs() < 1e-4, "{}", power[peak]);
}

#[test]
fn weak_noise_beside_strong_tone_has_documented_accuracy() {
    let (size, blocks) = (2000, 3);
    let input = layout(
        &Samples {
            scalar: Scalar::Float64,
            ..Samples::default()
        },
        size * blocks,
    );
    for scaling in [Scaling::None, Scaling::Db] {
        for amplitude in [1.0, 1e3, 1e6] {
            let mut noise = Noise(7);
            // The frequency is between two bins, so that the tone leaks into all bins.
            let sample = |n: usize| amplitude * (TAU * n as f64 * 123.4 / size as f64).sin();
            let values: Vec<f64> = (0..size * blocks)
                .map(|n| sample(n) + noise.number())
                .collect();
            let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            let spec = PowerSpectrum {
                size: Some(size),
                window: WindowShape::Rectangular.into(),
                scaling,
                ..PowerSpectrum::default()
            };
            let made = as_f32(&run(&spec, &input, &frames([bytes]), &[1], None).outputs[0].1);
            let power = |x: &f64| match scaling {
                Scaling::Db => 10_f64.powf(*x / 10.0),
                _ => *x,
            };
            let points: Vec<_> = values.iter().map(|x| (*x, 0.0)).collect();
            let mut want = reference(&points, size, size, &vec![1.0; size], false);
            if scaling == Scaling::Db {
                for power in &mut want {
                    *power /= (size * size) as f64;
                }
            }
            let made: Vec<f64> = made.iter().map(power).collect();
            assert_near(&made, &want, &format!("{scaling:?}, amplitude {amplitude}"));
        }
    }
}

#[test]
fn impossible_spectrum_is_rejected_with_fix() {
    let input = layout(&Samples::default(), 100);
    let why = |spec: PowerSpectrum, input: &Layout| spec.layout(input).unwrap_err();
    let long = why(
        PowerSpectrum {
            size: Some(101),
            ..PowerSpectrum::default()
        },
        &input,
    );
    assert!(
        long.key.as_deref() == Some("size") && long.message.contains("100"),
        "{long}"
    );
    let density = why(
        PowerSpectrum {
            scaling: Scaling::Density,
            ..PowerSpectrum::default()
        },
        &input,
    );
    assert!(density.help.unwrap().contains("rate"));
    let spectra = PowerSpectrum::default().layout(&input).unwrap();
    assert!(
        why(PowerSpectrum::default(), &spectra)
            .message
            .contains("not samples over time")
    );
    assert_eq!(
        why(PowerSpectrum::default(), &layout(&Samples::default(), 1))
            .key
            .as_deref(),
        Some("input")
    );
}

#[test]
fn spectrum_keys_are_parsed() {
    let text = "[kernel.k]\nuse = \"power-spectrum\"\ninput = \"a\"\noutput = \"b\"\nsize = 20\n\
                window = \"blackman-harris\"\nintegrate = 5\nscaling = \"db\"\n";
    let spec = parse(text).unwrap();
    let input = layout(&Samples::default(), 100);
    assert_eq!(spec.layout(&input).unwrap().points, 11);
    let facts = spec.input_facts(&input);
    assert!(facts.max_outputs == 1 && facts.memory > 0);
}

#[test]
#[ignore = "prints a figure"]
fn spectrum_throughput() {
    for size in [512, 4096, 65_536] {
        for (scalar, complex) in [
            (Scalar::Int8, false),
            (Scalar::Int16, true),
            (Scalar::Float32, false),
        ] {
            for channels in [1, 4] {
                let input = Samples {
                    scalar,
                    complex,
                    channels,
                    ..Samples::default()
                }
                .layout(1 << 20)
                .unwrap();
                let spec = PowerSpectrum {
                    size: Some(size),
                    ..PowerSpectrum::default()
                };
                let complex = if complex { "complex " } else { "" };
                let what =
                    format!("power-spectrum {complex}{scalar}, {channels} channels, size {size}");
                figure(&what, &spec, &input);
            }
        }
    }
}
