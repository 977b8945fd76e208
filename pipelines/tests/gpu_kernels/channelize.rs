//! Compares `channelize` on CPU and GPU with each other and with scipy. Numbers must differ by less than 1e-5 of the RMS of
//! their frame, integers by at most 1.

use super::beamform::half;
use super::device;
use super::numpy::{SCRIPT, python, reference};
use super::trial::{Noise, as_f32, both, disturb, frames, layout, run, write_npy};
use daq_core::gpu::driver::Device;
use daq_core::kernel::KernelSpec;
use daq_core::layout::{Layout, Order, Samples, Scalar};
use daq_pipelines::kernels::channelize::Ratio;
use daq_pipelines::kernels::power_spectrum::WindowShape;
use daq_pipelines::kernels::{Channelize, OutputType};

/// Types of samples that the GPU supports.
const TYPES: [Scalar; 3] = [Scalar::Int8, Scalar::Int16, Scalar::Float32];

fn numbers(bytes: &[u8], output: OutputType) -> Vec<f64> {
    match output {
        OutputType::Float32 => as_f32(bytes),
        OutputType::Float16 => {
            let numbers = bytes.as_chunks().0.iter();
            numbers.map(|x| half(u16::from_le_bytes(*x))).collect()
        }
        OutputType::Int16 => {
            let numbers = bytes.as_chunks().0.iter();
            numbers.map(|x| f64::from(i16::from_le_bytes(*x))).collect()
        }
        OutputType::Int8 => bytes.iter().map(|x| f64::from(x.cast_signed())).collect(),
    }
}

/// Checks that all numbers of a frame agree.
fn compare(made: &[f64], want: &[f64], output: OutputType, what: &str) {
    assert_eq!(made.len(), want.len(), "{what}");
    let rms = (want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
    let tolerance = match output {
        OutputType::Float32 => 1e-5 * rms,
        // The largest numbers are far below 64 times the RMS.
        OutputType::Float16 => rms / 32.0,
        _ => 1.0,
    };
    for (i, (made, want)) in made.iter().zip(want).enumerate() {
        let error = (made - want).abs();
        assert!(
            error <= tolerance,
            "{what}: number {i} is {made}, not {want}, RMS {rms}"
        );
    }
}

fn samples(scalar: Scalar, complex: bool, channels: u32, order: Order) -> Samples {
    Samples {
        scalar,
        complex,
        channels,
        order,
        ..Samples::default()
    }
}

fn cpu_and_gpu(
    spec: &Channelize,
    input: &Layout,
    seed: u64,
    count: usize,
    disturbed: bool,
    device: &'static Device,
) {
    let mut noise = Noise(seed);
    let numbers_per_frame = input.numbers();
    let mut given = frames((0..count).map(|_| noise.numbers(input.scalar, numbers_per_frame)));
    if disturbed {
        disturb(&mut given, &mut noise);
    }
    let what = format!("{spec:?} {input} {:?} seed {seed}", input.order);
    for (made, want) in both(spec, input, &given, &[1, 3, 2], device, &what) {
        let (made, want) = (numbers(&made, spec.output), numbers(&want, spec.output));
        compare(&made, &want, spec.output, &what);
    }
}

/// Compares all kinds of filter banks with `channels` channels.
fn every_kind_of_size(channels: usize, seed: u64, device: &'static Device) {
    for complex in [false, true] {
        for (ratio, divisor) in [(Ratio::ONE, 1), (Ratio::new(2, 1).unwrap(), 2)] {
            let size = if complex { channels } else { 2 * channels };
            let hop = size / divisor;
            let spec = Channelize {
                channels: Some(channels),
                taps: 4,
                oversampling: ratio,
                ..Channelize::default()
            };
            let samples = samples(Scalar::Int16, complex, 1, Order::Planar);
            cpu_and_gpu(&spec, &layout(&samples, 2 * hop), seed, 4, false, device);
        }
    }
}

#[test]
fn channels_of_every_size_equal_cpu() {
    let Some(device) = device() else { return };
    for (seed, channels) in (0..).zip([64, 128, 256, 512, 1024, 2048, 4096]) {
        every_kind_of_size(channels, seed, device);
        long_frames_of_size(channels, seed, device);
    }
}

/// This size needs more shared memory than small devices have.
#[test]
fn largest_number_of_channels_equals_cpu() {
    let Some(device) = device() else { return };
    every_kind_of_size(8192, 7, device);
    long_frames_of_size(8192, 7, device);
}

/// Compares filter banks with `channels` channels whose frames contain so many spectra that many blocks read only one frame.
fn long_frames_of_size(channels: usize, seed: u64, device: &'static Device) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("filter.npy");
    let is_even = seed.is_multiple_of(2);
    for (taps, is_symmetric, complex) in [
        (8, true, false),
        (8, true, true),
        (24, true, is_even),
        (8, false, !is_even),
    ] {
        let size = if complex { channels } else { 2 * channels };
        // Another seed than that of the samples: a filter equal to the samples would give one very large number.
        let filter = Noise(seed + 100).numbers(Scalar::Float32, size * taps);
        write_npy(&path, "<f4", &[size * taps], &filter);
        let spec = Channelize {
            channels: Some(channels),
            taps,
            coefficients: (!is_symmetric).then(|| path.clone()),
            ..Channelize::default()
        };
        let scalar = TYPES[(usize::try_from(seed).unwrap() + taps / 8) % TYPES.len()];
        let spectra = (2048 / channels).max(6) + 2 * taps;
        let samples = samples(scalar, complex, 2, Order::Planar);
        let input = layout(&samples, spectra * size);
        cpu_and_gpu(&spec, &input, seed, 2, false, device);
    }
}

#[test]
fn channels_of_every_type_equal_cpu() {
    let Some(device) = device() else { return };
    let mut case = 0;
    for scalar in TYPES {
        for complex in [false, true] {
            for (inputs, order) in [
                (1, Order::Planar),
                (3, Order::Planar),
                (3, Order::Interleaved),
            ] {
                for ratio in [Ratio::ONE, Ratio::new(32, 27).unwrap()] {
                    let size = if complex { 128 } else { 256 };
                    let hop = if ratio == Ratio::ONE {
                        size
                    } else {
                        size / 32 * 27
                    };
                    let output = [
                        OutputType::Float32,
                        OutputType::Int16,
                        OutputType::Int8,
                        OutputType::Float16,
                    ][case % 4];
                    let spec = Channelize {
                        channels: Some(128),
                        taps: 5,
                        oversampling: ratio,
                        output,
                        scale: match (output, scalar) {
                            (OutputType::Float32 | OutputType::Float16, _) => 0.3,
                            (OutputType::Int16, Scalar::Float32) => 1e4,
                            (OutputType::Int8, Scalar::Float32) => 500.0,
                            (OutputType::Int8, Scalar::Int16) => 0.02,
                            _ => 2.0,
                        },
                        ..Channelize::default()
                    };
                    let samples = samples(scalar, complex, inputs, order);
                    let seed = 100 + case as u64;
                    cpu_and_gpu(&spec, &layout(&samples, 3 * hop), seed, 12, true, device);
                    case += 1;
                }
            }
        }
    }
}

/// The history spans several frames, of which bursts contain only a few.
#[test]
fn channels_with_long_history_equal_cpu() {
    let Some(device) = device() else { return };
    for order in [Order::Planar, Order::Interleaved] {
        let spec = Channelize {
            channels: Some(64),
            taps: 16,
            oversampling: Ratio::new(4, 3).unwrap(),
            ..Channelize::default()
        };
        let input = layout(&samples(Scalar::Int8, true, 2, order), 2 * 48);
        cpu_and_gpu(&spec, &input, 7, 40, false, device);
        cpu_and_gpu(&spec, &input, 8, 60, true, device);
    }
}

/// A direct polyphase filter bank in numpy, with `scipy.signal.firwin` as the prototype filter, is the reference.
#[test]
fn channels_equal_scipy() {
    let Some(python) = python("scipy.signal") else {
        return;
    };
    let gpu = device();
    let (mut cases, mut made) = (Vec::new(), Vec::new());
    let windows = [
        (WindowShape::Hamming, "\"hamming\""),
        (WindowShape::Kaiser(8.0), "[\"kaiser\", 8.0]"),
        (WindowShape::BlackmanHarris, "\"blackmanharris\""),
        (WindowShape::Rectangular, "\"boxcar\""),
    ];
    let ratios = [(1, 1), (4, 3), (32, 27), (2, 1)];
    for (seed, ((window, name), (up, down))) in (0..).zip(windows.into_iter().zip(ratios)) {
        for complex in [false, true] {
            for order in [Order::Planar, Order::Interleaved] {
                let channels = 192;
                let size = if complex { channels } else { 2 * channels };
                // Only a multiple of 27 and 32 has this ratio.
                let channels = if up == 32 { 128 } else { channels };
                let size = if up == 32 { size / 3 * 2 } else { size };
                let hop = size * down / up;
                let spec = Channelize {
                    channels: Some(channels),
                    taps: 6,
                    window: window.into(),
                    cutoff: 1.1,
                    oversampling: Ratio::new(
                        u32::try_from(up).unwrap(),
                        u32::try_from(down).unwrap(),
                    )
                    .unwrap(),
                    ..Channelize::default()
                };
                let samples = samples(Scalar::Int16, complex, 2, order);
                let input = layout(&samples, 4 * hop);
                let mut noise = Noise(seed);
                let given = frames((0..3).map(|_| noise.numbers(Scalar::Int16, input.numbers())));
                let bytes: Vec<u8> = given.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
                cases.push((
                    format!(
                        "{{\"kernel\": \"channelize\", \"bytes\": {}, \"type\": \"int16\", \"complex\": {complex}, \
                         \"channels\": 2, \"points\": {}, \"planar\": {}, \"size\": {size}, \"taps\": 6, \"hop\": {hop}, \
                         \"cutoff\": 1.1, \"window\": {name}}}\n",
                        bytes.len(),
                        input.points,
                        order == Order::Planar
                    ),
                    bytes,
                ));
                let on = |device: Option<&'static Device>| -> Vec<f64> {
                    let outputs = run(&spec, &input, &given, &[2], device).outputs;
                    outputs
                        .iter()
                        .flat_map(|(_, bytes)| as_f32(bytes))
                        .collect()
                };
                let gpu = gpu.filter(|_| spec.input_facts(&input).runs_on_gpu);
                made.push((
                    format!("{spec:?} {input}"),
                    on(None),
                    gpu.map(|gpu| on(Some(gpu))),
                ));
            }
        }
    }
    for ((what, cpu, gpu), want) in made.iter().zip(reference(&python, SCRIPT, &cases)) {
        for made in [Some(cpu), gpu.as_ref()].into_iter().flatten() {
            compare(made, &want, OutputType::Float32, what);
        }
    }
}
