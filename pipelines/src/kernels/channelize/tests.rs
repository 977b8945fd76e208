use super::super::npy;
use super::super::tests::{figure, parse};
use super::super::trial::{Noise, as_f32, frames, layout, run};
use super::*;
use daq_core::layout::Samples;
use daq_core::units::Frequency;
use std::f64::consts::TAU;

fn samples(scalar: Scalar, complex: bool) -> Samples {
    Samples {
        scalar,
        complex,
        rate: Some(Frequency(1e6)),
        ..Samples::default()
    }
}

/// Returns the complex numbers of the outputs, which have `channels` channels.
fn spectra(spec: &Channelize, input: &Layout, given: &[Vec<u8>]) -> Vec<Vec<(f64, f64)>> {
    let outcome = run(spec, input, &frames(given.to_vec()), &[2], None);
    let numbers: Vec<f64> = outcome
        .outputs
        .iter()
        .flat_map(|(_, bytes)| as_f32(bytes))
        .collect();
    let points: Vec<_> = numbers.chunks(2).map(|z| (z[0], z[1])).collect();
    let channels = spec.channels(input);
    points.chunks(channels).map(<[_]>::to_vec).collect()
}

fn float32(numbers: impl Iterator<Item = f64>) -> Vec<u8> {
    #[expect(clippy::cast_possible_truncation, reason = "the samples are float32")]
    let bytes = numbers.flat_map(|x| (x as f32).to_le_bytes());
    bytes.collect()
}

/// Returns a tone of amplitude 1 with this frequency in cycles per sample.
fn tone(frequency: f64, samples: std::ops::Range<usize>) -> Vec<u8> {
    float32(samples.flat_map(|t| {
        let (sin, cos) = (TAU * frequency * t as f64).sin_cos();
        [cos, sin]
    }))
}

#[test]
fn layout_has_channels_of_all_inputs_and_rate_of_spectra() {
    let input = Samples {
        channels: 3,
        ..samples(Scalar::Int8, true)
    };
    let spec = Channelize {
        channels: Some(64),
        oversampling: Ratio::new(4, 3).unwrap(),
        output: OutputType::Int8,
        ..Channelize::default()
    };
    let output = spec.layout(&layout(&input, 480)).unwrap();
    assert_eq!(
        output.to_string(),
        "complex int8, 192 channels × 10 samples at 20833.333333333332 Hz"
    );
    assert_eq!(output.frame_bytes(), 192 * 10 * 2);
}

/// A tone in the middle of a channel gives a constant output there, and nothing in channels that are not neighbours.
#[test]
fn tone_in_middle_of_channel_is_constant() {
    for (ratio, hop) in [(Ratio::ONE, 128), (Ratio::new(32, 27).unwrap(), 108)] {
        let spec = Channelize {
            channels: Some(128),
            taps: 8,
            oversampling: ratio,
            ..Channelize::default()
        };
        let points = hop * 4;
        let input = layout(&samples(Scalar::Float32, true), points);
        for (channel, cycles) in [(64, 0), (67, 3), (0, -64), (31, -33)] {
            let frequency = f64::from(cycles) / 128.0;
            let given: Vec<_> = (0..6)
                .map(|i| tone(frequency, i * points..(i + 1) * points))
                .collect();
            let made = spectra(&spec, &input, &given);
            // The first spectra contain zeros from before the first sample.
            for spectrum in &made[128 * 8 / hop..] {
                for (k, (re, im)) in spectrum.iter().enumerate() {
                    let distance = k.abs_diff(channel);
                    let want = match distance {
                        0 => 1.0,
                        1 | 127 => continue,
                        _ => 0.0,
                    };
                    let error = (re - want).hypot(*im);
                    assert!(error < 2e-3, "{ratio} channel {k} of {channel}: {re} {im}");
                }
            }
        }
    }
}

/// Each sample of a rectangular filter with one tap is in one spectrum, so the inverse transform gives the samples.
#[test]
fn samples_are_reconstructed_from_transforms() {
    let spec = Channelize {
        channels: Some(16),
        taps: 1,
        window: WindowShape::Rectangular.into(),
        cutoff: 1e-9,
        scale: 16.0,
        ..Channelize::default()
    };
    let input = layout(&samples(Scalar::Float32, true), 64);
    let bytes = Noise(3).numbers(Scalar::Float32, input.numbers());
    let numbers = as_f32(&bytes);
    let made = spectra(&spec, &input, std::slice::from_ref(&bytes));
    assert_eq!(made.len(), 4);
    for (block, spectrum) in numbers.chunks(32).zip(&made) {
        for (n, want) in block.chunks(2).enumerate() {
            let (mut re, mut im) = (0.0, 0.0);
            for (k, (x, y)) in spectrum.iter().enumerate() {
                let (sin, cos) = (TAU * (k as f64 - 8.0) * n as f64 / 16.0).sin_cos();
                re += x * cos - y * sin;
                im += x * sin + y * cos;
            }
            assert!((re / 16.0 - want[0]).abs() < 1e-5 && (im / 16.0 - want[1]).abs() < 1e-5);
        }
    }
}

/// The sum of all channels is a low-pass filter of the samples around each spectrum, so its power is close to that of noise.
#[test]
fn power_of_noise_is_preserved() {
    let spec = Channelize {
        channels: Some(64),
        taps: 8,
        ..Channelize::default()
    };
    let input = layout(&samples(Scalar::Float32, false), 128 * 200);
    let bytes = Noise(4).numbers(Scalar::Float32, input.numbers());
    let power = as_f32(&bytes).iter().map(|x| x * x).sum::<f64>() / input.points as f64;
    let made = spectra(&spec, &input, std::slice::from_ref(&bytes));
    let sum: f64 = made
        .iter()
        .flatten()
        .map(|(re, im)| re * re + im * im)
        .sum();
    // Noise of power P has the power P * sum(h ** 2) in each of the 128 channels at positive and negative frequencies.
    let shape = spec.shape(&input).unwrap();
    let filter = prototype::coefficients(&spec, &shape, std::path::Path::new(".")).unwrap();
    let gain: f64 = filter.iter().map(|h| f64::from(*h) * f64::from(*h)).sum();
    let mean = sum / (made.len() * 64) as f64;
    assert!(
        (mean / (power * gain) - 1.0).abs() < 0.05,
        "{mean} {power} {gain}"
    );
}

#[test]
fn bursts_do_not_change_outputs() {
    let spec = Channelize {
        channels: Some(32),
        taps: 5,
        ..Channelize::default()
    };
    let input = layout(&samples(Scalar::Int16, false), 64);
    let mut noise = Noise(5);
    let given = frames((0..12).map(|_| noise.numbers(Scalar::Int16, 64)));
    let once = run(&spec, &input, &given, &[12], None);
    let several = run(&spec, &input, &given, &[1, 4], None);
    assert_eq!(once.outputs, several.outputs);
    assert_eq!(once.outputs.len(), 12);
}

#[test]
fn integers_are_limited() {
    let spec = Channelize {
        channels: Some(16),
        taps: 1,
        output: OutputType::Int8,
        scale: 100.0,
        ..Channelize::default()
    };
    let input = layout(&samples(Scalar::Float32, true), 16);
    let one = float32((0..16).flat_map(|_| [-1.0, 3.0]));
    let made = run(&spec, &input, &frames([one]), &[1], None);
    let bytes: Vec<i8> = made.outputs[0].1.iter().map(|x| x.cast_signed()).collect();
    assert_eq!(bytes[16..18], [-100, 127]);
}

#[test]
fn filters_of_windows_are_symmetric() {
    let input = layout(&samples(Scalar::Float32, true), 256);
    for shape in [
        WindowShape::Rectangular,
        WindowShape::Hamming,
        WindowShape::BlackmanHarris,
        WindowShape::Kaiser(8.0),
    ] {
        let spec = Channelize {
            channels: Some(256),
            window: shape.into(),
            ..Channelize::default()
        };
        let of = spec.shape(&input).unwrap();
        let mut filter = prototype::coefficients(&spec, &of, std::path::Path::new(".")).unwrap();
        assert!(cuda::is_symmetric(&filter), "{shape:?}");
        filter[900] *= 1.001;
        assert!(!cuda::is_symmetric(&filter), "{shape:?}");
    }
    // Small coefficients that differ matter if there are many.
    let mut filter = vec![1e-6; 1 << 16];
    filter[1..1 << 15].fill(0.0);
    (filter[0], filter[(1 << 16) - 1]) = (1.0, 1.0);
    assert!(!cuda::is_symmetric(&filter));
}

#[test]
fn coefficients_are_read_from_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("h.npy");
    let data: Vec<u8> = (0..8_u8).flat_map(|n| f64::from(n).to_le_bytes()).collect();
    std::fs::write(&path, npy::tests::file("<f8", "(8,)", &data)).unwrap();
    let spec = |taps| Channelize {
        channels: Some(4),
        taps,
        coefficients: Some("h.npy".into()),
        ..Channelize::default()
    };
    let input = layout(&samples(Scalar::Float32, true), 8);
    let read = |spec: &Channelize| {
        let shape = spec.shape(&input).unwrap();
        prototype::coefficients(spec, &shape, directory.path())
    };
    let want: Vec<f32> = (0..8_u8).map(f32::from).collect();
    assert_eq!(*read(&spec(2)).unwrap(), *want);
    let context = CheckContext {
        directory: directory.path(),
        dispatch: daq_core::gpu::Dispatch::Launch,
        input: Some(&input),
    };
    assert_eq!(spec(2).check_files(&context), CheckReport::default());
    let problem = spec(4).check_files(&context).problems.remove(0);
    assert_eq!(problem.key.as_deref(), Some("coefficients"));
    assert!(problem.message.contains("needs 16 real coefficients"));
    let error = read(&spec(4)).unwrap_err().to_string();
    assert!(error.contains("needs 16 real coefficients"), "{error}");
    let missing = Channelize {
        coefficients: Some("absent.npy".into()),
        ..spec(2)
    };
    let error = read(&missing).unwrap_err().to_string();
    assert!(error.contains("absent.npy"), "{error}");
}

#[test]
fn impossible_sizes_name_the_fix() {
    let input = layout(&samples(Scalar::Int8, true), 1000);
    let problem = |spec: Channelize| spec.layout(&input).unwrap_err();
    let hop = problem(Channelize {
        channels: Some(64),
        oversampling: Ratio::new(32, 27).unwrap(),
        ..Channelize::default()
    });
    assert!(hop.help.unwrap().contains("multiple of 54 samples"));
    let ratio = problem(Channelize {
        channels: Some(100),
        oversampling: Ratio::new(32, 27).unwrap(),
        ..Channelize::default()
    });
    assert!(ratio.message.contains("100 / (32/27)"), "{}", ratio.message);
    let text = |keys: &str| {
        let text =
            format!("[kernel.k]\nuse = \"channelize\"\ninput = \"a\"\noutput = \"b\"\n{keys}\n");
        parse(&text).map(|_| ()).unwrap_err()
    };
    assert!(text("oversampling = \"3/4\"").contains("32/27"));
    assert!(text("taps = 0").contains("1 to 1024"));
    assert!(text("scale = 0").contains("destroys"));
    assert!(text("cutoff = 0").contains("above 0"));
    assert!(text("channels = 1").contains("2 to 1048576"));
}

#[test]
#[ignore = "prints a figure"]
fn channelize_throughput() {
    for complex in [false, true] {
        let spec = Channelize {
            channels: Some(1024),
            ..Channelize::default()
        };
        let input = layout(&samples(Scalar::Int8, complex), 1 << 17);
        figure(
            &format!("channelize int8, complex {complex}"),
            &spec,
            &input,
        );
    }
}
