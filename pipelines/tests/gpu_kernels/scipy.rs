//! Compares `power-spectrum` with scipy, on the CPU and, if there is one, on a GPU.

use super::device;
use super::numpy::{python, reference};
use super::power_spectrum::error;
use super::trial::{Noise, as_f32, frames, layout, run};
use daq_core::kernel::KernelSpec;
use daq_core::layout::{Order, Samples, Scalar};
use daq_core::units::Frequency;
use daq_pipelines::kernels::PowerSpectrum;
use daq_pipelines::kernels::power_spectrum::{Average, Detrend, Scaling, Window, WindowShape};

const SCRIPT: &str = include_str!("scipy.py");
const RATE: f64 = 48_000.0;
const FRAMES: u64 = 3;

fn rated(scalar: Scalar, complex: bool, channels: u32, order: Order) -> Samples {
    Samples {
        scalar,
        complex,
        channels,
        order,
        rate: Some(Frequency(RATE)),
        ..Samples::default()
    }
}

/// Returns the name of a type in numpy.
fn numpy_type(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::Int8 => "i1",
        Scalar::Int16 => "<i2",
        Scalar::Float32 => "<f4",
        _ => panic!("{scalar} is not compared"),
    }
}

/// Returns the keys of a case for the script; the case has a window with the name `window` in scipy.
fn header(spec: &PowerSpectrum, samples: &Samples, points: usize, window: &str) -> String {
    let input = layout(samples, points);
    let size = spec.size.unwrap();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of points"
    )]
    let hop = size - (size as f64 * spec.overlap).round() as usize;
    let is_density = matches!(spec.scaling, Scaling::Density | Scaling::OneSidedDensity);
    let is_one_sided = matches!(spec.scaling, Scaling::OneSided | Scaling::OneSidedDensity);
    format!(
        "{{\"bytes\": {}, \"type\": \"{}\", \"complex\": {}, \"channels\": {}, \"points\": {points}, \"planar\": {}, \
         \"rate\": {RATE}, \"size\": {size}, \"hop\": {hop}, \"fft\": {}, \"window\": {window}, \"symmetric\": {}, \
         \"detrend\": {}, \"onesided\": {is_one_sided}, \"scaling\": \"{}\", \"average\": \"{}\", \"continuous\": {}, \"integrate\": {}, \"pairs\": {:?}}}\n",
        input.frame_bytes() as u64 * FRAMES,
        numpy_type(samples.scalar),
        samples.complex,
        samples.channels,
        samples.order == Order::Planar,
        spec.fft.unwrap_or(size),
        spec.window.symmetric,
        if spec.detrend == Detrend::Constant {
            "\"constant\""
        } else {
            "false"
        },
        if is_density { "density" } else { "spectrum" },
        if spec.average == Average::Median {
            "median"
        } else {
            "mean"
        },
        spec.continuous,
        spec.integrate.unwrap_or_default(),
        spec.pairs,
    )
}

/// Returns the largest error of a cross-spectrum, relative to its root mean square.
fn complex_error(made: &[f64], want: &[f64]) -> f64 {
    let squares = want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64;
    let differences = made
        .iter()
        .zip(want)
        .map(|(made, want)| (made - want).abs());
    // A NaN counts as the largest error.
    differences.fold(
        0.0,
        |worst, error| if error <= worst { worst } else { error },
    ) / squares.sqrt()
}

/// Compares the spectra of each case with scipy. A case is a kernel, its input, the number of points of a frame, and the
/// window in scipy.
fn compare(cases: &[(PowerSpectrum, Samples, usize, &str)]) {
    let Some(python) = python("scipy.signal") else {
        return;
    };
    let mut noise = Noise(5);
    let mut questions = Vec::new();
    let mut answers = Vec::new();
    for (spec, samples, points, window) in cases {
        let input = layout(samples, *points);
        let given = frames((0..FRAMES).map(|_| noise.numbers(samples.scalar, input.numbers())));
        let bytes: Vec<u8> = given.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        questions.push((header(spec, samples, *points, window), bytes));
        let gpu = device().filter(|_| spec.input_facts(&input).runs_on_gpu);
        let sides = [None].into_iter().chain(gpu.map(Some));
        let made: Vec<Vec<f64>> = sides
            .map(|side| {
                let outputs = run(spec, &input, &given, &[2], side).outputs;
                outputs
                    .iter()
                    .flat_map(|(_, bytes)| as_f32(bytes))
                    .collect()
            })
            .collect();
        let output = spec.layout(&input).unwrap();
        answers.push((output.numbers() / output.channels as usize, made));
    }
    let wanted = reference(&python, SCRIPT, &questions);
    for (((bins, made), want), (spec, samples, ..)) in answers.iter().zip(&wanted).zip(cases) {
        for (side, made) in made.iter().enumerate() {
            assert_eq!(made.len(), want.len(), "{spec:?} {samples:?}");
            for (made, want) in made.chunks(*bins).zip(want.chunks(*bins)) {
                let error = if spec.pairs.is_empty() {
                    error(made, want)
                } else {
                    complex_error(made, want)
                };
                assert!(
                    error <= 1e-5,
                    "side {side}: error {error}: {spec:?} {samples:?}"
                );
            }
        }
    }
}

#[test]
fn spectra_with_every_window_equal_scipy() {
    let plain = |shape: WindowShape| Window::from(shape);
    let symmetric = |shape| Window {
        shape,
        symmetric: true,
    };
    let windows = [
        (plain(WindowShape::Hann), "\"hann\""),
        (plain(WindowShape::Hamming), "\"hamming\""),
        (plain(WindowShape::Blackman), "\"blackman\""),
        (plain(WindowShape::BlackmanHarris), "\"blackmanharris\""),
        (plain(WindowShape::Nuttall), "\"nuttall\""),
        (plain(WindowShape::Flattop), "\"flattop\""),
        (plain(WindowShape::Rectangular), "\"boxcar\""),
        (plain(WindowShape::Kaiser(0.0)), "[\"kaiser\", 0.0]"),
        (plain(WindowShape::Kaiser(14.0)), "[\"kaiser\", 14.0]"),
        (plain(WindowShape::Kaiser(300.0)), "[\"kaiser\", 300.0]"),
        (plain(WindowShape::Gaussian(17.5)), "[\"gaussian\", 17.5]"),
        (plain(WindowShape::Tukey(0.25)), "[\"tukey\", 0.25]"),
        (plain(WindowShape::Tukey(1.0)), "[\"tukey\", 1.0]"),
        (symmetric(WindowShape::Hann), "\"hann\""),
        (symmetric(WindowShape::Kaiser(8.6)), "[\"kaiser\", 8.6]"),
        (
            symmetric(WindowShape::Gaussian(17.5)),
            "[\"gaussian\", 17.5]",
        ),
        (symmetric(WindowShape::Tukey(0.4)), "[\"tukey\", 0.4]"),
    ];
    let samples = rated(Scalar::Int16, false, 1, Order::Planar);
    let cases = windows.iter().flat_map(|(window, name)| {
        [100, 125, 128].map(|size| {
            let spec = PowerSpectrum {
                size: Some(size),
                window: *window,
                scaling: Scaling::OneSidedDensity,
                ..PowerSpectrum::default()
            };
            (spec, samples.clone(), 700, *name)
        })
    });
    compare(&cases.collect::<Vec<_>>());
}

/// Padded transforms, medians, overlaps, scalings and detrended blocks, in every combination.
#[test]
fn spectra_with_every_key_equal_scipy() {
    let mut cases = Vec::new();
    let mut case = 0_usize;
    for average in [Average::Mean, Average::Median] {
        for (size, fft) in [
            (60, None),
            (60, Some(64)),
            (100, Some(135)),
            (128, None),
            (128, Some(512)),
            (300, Some(6000)),
        ] {
            for scaling in [
                Scaling::Power,
                Scaling::Density,
                Scaling::OneSided,
                Scaling::OneSidedDensity,
            ] {
                for detrend in [Detrend::None, Detrend::Constant] {
                    case += 1;
                    let is_one_sided =
                        matches!(scaling, Scaling::OneSided | Scaling::OneSidedDensity);
                    let scalar = [Scalar::Int8, Scalar::Int16, Scalar::Float32][case % 3];
                    let order = [Order::Planar, Order::Interleaved][case / 2 % 2];
                    let samples = rated(
                        scalar,
                        !is_one_sided && (case / 3).is_multiple_of(2),
                        1 + u32::from(case.is_multiple_of(5)),
                        order,
                    );
                    let spec = PowerSpectrum {
                        size: Some(size),
                        fft,
                        overlap: [0.0, 0.5, 0.25][case / 2 % 3],
                        average,
                        scaling,
                        detrend,
                        ..PowerSpectrum::default()
                    };
                    // Between one and about 30 spectra, an even or an odd number.
                    cases.push((spec, samples, size + case * 37 % (7 * size), "\"hann\""));
                }
            }
        }
    }
    compare(&cases);
}

/// Blocks that cross frames, and blocks that are longer than frames.
#[test]
fn continuous_spectra_equal_scipy() {
    let mut cases = Vec::new();
    for (case, (points, size, overlap, integrate)) in [
        (1000, 128, 0.5, 7),
        (1000, 100, 0.0, 11),
        (100, 64, 0.75, 5),
        (500, 1000, 0.5, 1),
        (513, 256, 0.25, 2),
        (700, 600, 0.9, 9),
    ]
    .into_iter()
    .enumerate()
    {
        for complex in [false, true] {
            for (channels, order) in [
                (1, Order::Planar),
                (3, Order::Interleaved),
                (2, Order::Planar),
            ] {
                let scalar = [Scalar::Int8, Scalar::Int16, Scalar::Float32][case % 3];
                let spec = PowerSpectrum {
                    size: Some(size),
                    overlap,
                    continuous: true,
                    integrate: Some(integrate),
                    average: [Average::Mean, Average::Median][case % 2],
                    scaling: Scaling::Density,
                    ..PowerSpectrum::default()
                };
                let samples = rated(scalar, complex, channels, order);
                cases.push((spec, samples, points, "\"hann\""));
            }
        }
    }
    compare(&cases);
}

#[test]
fn cross_spectra_equal_scipy() {
    let mut cases = Vec::new();
    for (case, (size, fft, overlap, scaling)) in [
        (128, None, 0.5, Scaling::Density),
        (100, Some(135), 0.0, Scaling::Power),
        (125, None, 0.25, Scaling::OneSided),
        (64, Some(256), 0.5, Scaling::OneSidedDensity),
    ]
    .into_iter()
    .enumerate()
    {
        for order in [Order::Planar, Order::Interleaved] {
            for detrend in [Detrend::None, Detrend::Constant] {
                let scalar = [Scalar::Int8, Scalar::Int16, Scalar::Float32][case % 3];
                let is_one_sided = case >= 2;
                let samples = rated(scalar, !is_one_sided && order == Order::Planar, 3, order);
                let spec = PowerSpectrum {
                    size: Some(size),
                    fft,
                    overlap,
                    scaling,
                    detrend,
                    pairs: vec![[0, 1], [2, 0], [1, 1]],
                    ..PowerSpectrum::default()
                };
                // An odd number of blocks, so that the last block has no partner.
                cases.push((spec, samples, size * 7, "\"hann\""));
            }
        }
    }
    compare(&cases);
}
