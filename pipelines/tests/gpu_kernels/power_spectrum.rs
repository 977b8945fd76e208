//! Compares `power-spectrum` on CPU and GPU. Metadata must be equal. Bins must differ by less than 1e-5 of the bin or
//! of the spectrum's mean, whichever is larger.

use super::device;
use super::trial::{Noise, SCALARS, as_f32, both, disturb, every_type, frames, layout};
use daq_core::gpu::driver::Device;
use daq_core::kernel::KernelSpec;
use daq_core::layout::{Layout, Order, Samples, Scalar};
use daq_core::units::Frequency;
use daq_pipelines::kernels::PowerSpectrum;
use daq_pipelines::kernels::power_spectrum::{
    Average, Detrend, Gap, Partial, Scaling, WindowShape,
};

/// Returns the largest error of a spectrum, relative to the bin or to the spectrum's mean, whichever is larger.
pub fn error(made: &[f64], want: &[f64]) -> f64 {
    assert_eq!(made.len(), want.len());
    let mean = want.iter().sum::<f64>() / want.len() as f64;
    made.iter()
        .zip(want)
        .map(|(made, want)| (made - want).abs() / mean.max(*want))
        // A NaN counts as the largest error.
        .fold(
            0.0,
            |worst, error| if error <= worst { worst } else { error },
        )
}

/// Checks that all outputs agree within 1e-5, and returns their number.
fn compare(
    spec: &PowerSpectrum,
    input: &Layout,
    device: &'static Device,
    seed: u64,
    count: usize,
    bursts: &[usize],
    disturbed: bool,
) -> usize {
    let mut noise = Noise(seed);
    let numbers = input.numbers();
    let mut given = frames((0..count).map(|_| noise.numbers(input.scalar, numbers)));
    if disturbed {
        disturb(&mut given, &mut noise);
    }
    let what = format!("{spec:?} {input} {:?} seed {seed}", input.order);
    let pairs = both(spec, input, &given, bursts, device, &what);
    let bins = spec_bins(spec, input);
    for (made, want) in &pairs {
        let power = |x: &f64| match spec.scaling {
            Scaling::Db => 10_f64.powf(x / 10.0),
            _ => *x,
        };
        let made: Vec<f64> = as_f32(made).iter().map(power).collect();
        let want: Vec<f64> = as_f32(want).iter().map(power).collect();
        for (made, want) in made.chunks(bins).zip(want.chunks(bins)) {
            let error = error(made, want);
            assert!(error <= 1e-5, "{what}: error {error}: {made:?} {want:?}");
        }
    }
    pairs.len()
}

fn spec_bins(spec: &PowerSpectrum, input: &Layout) -> usize {
    spec.layout(input).unwrap().points
}

#[test]
fn spectra_of_every_type_equal_cpu() {
    let Some(device) = device() else { return };
    for (seed, samples) in (0..).zip(every_type(&SCALARS, &[1, 3])) {
        for (size, points) in [(64, 700), (15, 50)] {
            let spec = PowerSpectrum {
                size: Some(size),
                overlap: 0.3,
                integrate: Some(7),
                ..PowerSpectrum::default()
            };
            let made = compare(
                &spec,
                &layout(&samples, points),
                device,
                seed,
                5,
                &[2],
                false,
            );
            assert!(made > 0);
        }
    }
}

#[test]
fn spectra_of_every_radix_equal_cpu() {
    let Some(device) = device() else { return };
    let sizes = [
        2, 3, 4, 5, 6, 7, 8, 9, 14, 16, 30, 35, 49, 60, 63, 105, 128, 210, 243, 256, 343, 512, 625,
        1000, 1024, 2048, 2401, 3125, 4096, 4374, 6000, 6561, 8192,
    ];
    for size in sizes {
        for complex in [false, true] {
            let samples = Samples {
                scalar: Scalar::Int16,
                complex,
                ..Samples::default()
            };
            for (integrate, window) in [
                (1, WindowShape::BlackmanHarris),
                (3, WindowShape::Rectangular),
            ] {
                let spec = PowerSpectrum {
                    size: Some(size),
                    integrate: Some(integrate),
                    window: window.into(),
                    ..PowerSpectrum::default()
                };
                let input = layout(&samples, size * 5 / 2);
                let made = compare(&spec, &input, device, size as u64, 4, &[3], false);
                assert_eq!(made as u64, 8 / integrate);
            }
        }
    }
}

#[test]
fn spectra_detrended_and_one_sided_equal_cpu() {
    let Some(device) = device() else { return };
    for (seed, samples) in (0..).zip(every_type(&SCALARS, &[1, 3])) {
        let rate = Some(Frequency(48_000.0));
        let samples = Samples { rate, ..samples };
        for (size, points) in [(64, 700), (15, 50), (10_000, 21_000)] {
            if size > 1000 && !matches!(samples.scalar, Scalar::Uint8 | Scalar::Float64) {
                continue;
            }
            for scaling in [Scaling::OneSided, Scaling::OneSidedDensity, Scaling::Power] {
                if samples.complex && scaling != Scaling::Power {
                    continue;
                }
                let spec = PowerSpectrum {
                    size: Some(size),
                    overlap: 0.3,
                    integrate: Some(3),
                    scaling,
                    detrend: Detrend::Constant,
                    ..PowerSpectrum::default()
                };
                let input = layout(&samples, points);
                assert!(compare(&spec, &input, device, seed, 5, &[2], false) > 0);
            }
        }
    }
}

#[test]
fn spectra_of_long_transforms_equal_cpu() {
    let Some(device) = device() else { return };
    for (size, channels, count) in [
        (7000, 1, 5),
        (10_000, 2, 4),
        (16_384, 3, 6),
        (16_807, 1, 4),
        (24_576, 1, 5),
        (65_536, 1, 3),
        (1_048_576, 1, 1),
    ] {
        for complex in [false, true] {
            let samples = Samples {
                scalar: Scalar::Int8,
                complex,
                channels,
                order: Order::Planar,
                rate: None,
                ..Samples::default()
            };
            let spec = PowerSpectrum {
                size: Some(size),
                integrate: Some(count.min(3)),
                ..PowerSpectrum::default()
            };
            let input = layout(&samples, size);
            let frames = usize::try_from(count).unwrap();
            let made = compare(&spec, &input, device, count, frames, &[2, 3], false);
            assert_eq!(made as u64, count / count.min(3));
        }
    }
}

#[test]
fn spectra_records_and_counts_equal_cpu() {
    let Some(device) = device() else { return };
    let mut made = 0;
    let mut choice = Noise(99);
    for seed in 0..150 {
        let mut one_of = |count: u64| choice.below(count);
        let samples = Samples {
            scalar: Scalar::Int8,
            complex: one_of(2) == 0,
            channels: u32::try_from(one_of(2) + 1).unwrap(),
            order: Order::Planar,
            rate: Some(Frequency(8000.0)),
            ..Samples::default()
        };
        let spec = PowerSpectrum {
            size: Some(8),
            overlap: [0.0, 0.5][usize::try_from(one_of(2)).unwrap()],
            integrate: Some(one_of(14) + 1),
            partial: [Partial::Use, Partial::Skip][usize::try_from(one_of(2)).unwrap()],
            gap: [Gap::Restart, Gap::Continue][usize::try_from(one_of(2)).unwrap()],
            average: [Average::Mean, Average::Median][usize::try_from(one_of(2)).unwrap()],
            continuous: one_of(2) == 0,
            scaling: [Scaling::Db, Scaling::Density, Scaling::None]
                [usize::try_from(one_of(3)).unwrap()],
            ..PowerSpectrum::default()
        };
        let input = layout(&samples, usize::try_from(one_of(40) + 8).unwrap());
        let bursts: Vec<usize> = (0..3)
            .map(|_| usize::try_from(one_of(9) + 1).unwrap())
            .collect();
        made += compare(&spec, &input, device, seed, 40, &bursts, true);
    }
    assert!(made > 1000, "{made} outputs");
}

#[test]
fn integration_of_many_spectra_is_split() {
    let Some(device) = device() else { return };
    for (size, integrate, points) in [
        (32, 1000, 20_000),
        (32, 333, 9000),
        (32, 3000, 20_000),
        // Blocks add up more spectra than float32 sums may contain.
        (128, 30_000, 700_000),
    ] {
        for complex in [false, true] {
            let samples = Samples {
                scalar: Scalar::Int16,
                complex,
                channels: 2,
                ..Samples::default()
            };
            let spec = PowerSpectrum {
                size: Some(size),
                integrate: Some(integrate),
                ..PowerSpectrum::default()
            };
            let made = compare(
                &spec,
                &layout(&samples, points),
                device,
                integrate,
                7,
                &[3],
                false,
            );
            assert!(made > 0);
        }
    }
}

#[test]
fn spectra_padded_and_of_medians_equal_cpu() {
    let Some(device) = device() else { return };
    for (size, fft, integrate, points) in [
        (8, None, 1, 100),
        (8, None, 2, 100),
        (60, Some(64), 5, 700),
        (128, None, 9, 1500),
        (100, Some(128), 40, 1500),
        (3000, Some(8192), 3, 7000),
        (16_384, None, 3, 40_000),
        (9000, Some(10_000), 4, 20_000),
    ] {
        for (complex, channels) in [(false, 1), (true, 1), (false, 3)] {
            for average in [Average::Mean, Average::Median] {
                let samples = Samples {
                    scalar: Scalar::Int16,
                    complex,
                    channels,
                    ..Samples::default()
                };
                let spec = PowerSpectrum {
                    size: Some(size),
                    fft,
                    average,
                    integrate: Some(integrate),
                    ..PowerSpectrum::default()
                };
                let input = layout(&samples, points);
                assert!(spec.input_facts(&input).runs_on_gpu, "{spec:?}");
                let made = compare(&spec, &input, device, integrate, 6, &[2, 1], false);
                assert!(made > 0);
            }
        }
    }
}

#[test]
fn spectra_of_continuous_blocks_equal_cpu() {
    let Some(device) = device() else { return };
    for (seed, samples) in (0..).zip(every_type(&SCALARS, &[1, 3])) {
        for (size, overlap, points) in [(128, 0.5, 300), (100, 0.3, 77), (16_384, 0.0, 5000)] {
            if size > 1000 && samples.scalar != Scalar::Int16 {
                continue;
            }
            let spec = PowerSpectrum {
                size: Some(size),
                overlap,
                continuous: true,
                integrate: Some(3),
                ..PowerSpectrum::default()
            };
            let made = compare(
                &spec,
                &layout(&samples, points),
                device,
                seed,
                24,
                &[5, 1],
                false,
            );
            assert!(made > 0);
            compare(
                &spec,
                &layout(&samples, points),
                device,
                seed,
                24,
                &[2, 3],
                true,
            );
        }
    }
}
