//! Checks that `stats` gives the same counts and extremes on CPU and GPU, and sums that differ only by rounding.

use super::device;
use super::trial::{Noise, Record, SCALARS, as_f64, both, disturb, every_type, frames, layout};
use daq_core::gpu::driver::Device;
use daq_core::layout::{Layout, Scalar};
use daq_pipelines::kernels::Stats;

/// Compares the outputs. Mean and RMS must agree within 1e-12 of the RMS; all other fields must be equal.
fn compare(spec: &Stats, input: &Layout, device: &'static Device, seed: u64, count: usize) {
    let mut noise = Noise(seed);
    let numbers = input.numbers();
    let mut given = frames((0..count).map(|_| noise.odd_numbers(input.scalar, numbers)));
    disturb(&mut given, &mut noise);
    compare_over(spec, input, device, &given);
}

fn compare_over(spec: &Stats, input: &Layout, device: &'static Device, given: &[Record]) {
    let what = format!("{spec:?} {input} {:?}", input.order);
    let channels = input.channels as usize;
    for (made, want) in both(spec, input, given, &[3, 1, 6], device, &what) {
        let (made, want) = (as_f64(&made), as_f64(&want));
        assert_eq!(made.len(), want.len(), "{what}");
        let fields = made.len() / channels;
        for (i, (made, want_here)) in made.iter().zip(&want).enumerate() {
            let same = made == want_here || made.is_nan() && want_here.is_nan();
            let rms = want[i / fields * fields + 4];
            let is_sum = matches!(i % fields, 3 | 4);
            let near = is_sum && (made - want_here).abs() <= 1e-12 * rms;
            assert!(same || near, "{what}: field {i} is {made}, not {want_here}");
        }
    }
}

#[test]
fn stats_of_every_type_agree_with_cpu() {
    let Some(device) = device() else { return };
    for (seed, samples) in (0..).zip(every_type(&SCALARS, &[1, 3])) {
        let is_float = matches!(samples.scalar, Scalar::Float32 | Scalar::Float64);
        for points in [1, 37, 1000] {
            let input = layout(&samples, points);
            let plain = Stats::default();
            let some = Stats {
                every: 3,
                clip: Some(0.5),
                bins: Some(7),
                range: Some(if is_float {
                    [-0.7, 0.9]
                } else {
                    [-100.3, 1000.7]
                }),
            };
            compare(&plain, &input, device, seed, 12);
            compare(&some, &input, device, seed + 1000, 12);
        }
    }
}

#[test]
fn stats_bins_at_edges_equal_cpu() {
    let Some(device) = device() else { return };
    let mut noise = Noise(5);
    for samples in every_type(&SCALARS, &[1]) {
        if !matches!(samples.scalar, Scalar::Float32 | Scalar::Float64) {
            continue;
        }
        let input = layout(&samples, 500);
        let numbers = input.numbers();
        let given = frames((0..3).map(|_| noise.tenths(samples.scalar, numbers)));
        for bins in [3, 7, 10, 20, 30, 1000] {
            for range in [[-1.0, 1.0], [-0.7, 0.9], [-0.3, 0.6]] {
                let spec = Stats {
                    bins: Some(bins),
                    range: Some(range),
                    ..Stats::default()
                };
                compare_over(&spec, &input, device, &given);
            }
        }
    }
}

#[test]
fn stats_of_long_frames_and_histograms_agree_with_cpu() {
    let Some(device) = device() else { return };
    for (seed, samples) in (0..).zip(every_type(&SCALARS, &[1, 2])) {
        let input = layout(&samples, 21_003);
        for bins in [300, 20_000] {
            let spec = Stats {
                every: 2,
                clip: None,
                bins: Some(bins),
                range: Some([-0.8, 0.83]),
            };
            compare(&spec, &input, device, seed, 5);
        }
    }
    // The histograms are so long that not all outputs of a burst have a buffer.
    let samples = &every_type(&SCALARS, &[30])[4];
    let input = layout(samples, 50);
    let spec = Stats {
        bins: Some(65_536),
        ..Stats::default()
    };
    assert_eq!(input.scalar, Scalar::Uint8);
    compare(&spec, &input, device, 7, 12);
}
