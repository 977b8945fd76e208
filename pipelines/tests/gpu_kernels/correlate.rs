//! Compares `correlate` on CPU and GPU with each other and with numpy. Visibilities of int8 samples must be equal. Others
//! must differ by less than 1e-5 of the largest visibility, or 1e-4 for float16 samples.

use super::device;
use super::numpy::{SCRIPT, python, reference};
use super::trial::{Noise, as_f32, both, disturb, frames, layout, run};
use daq_core::gpu::driver::Device;
use daq_core::layout::{Layout, Order, Samples, Scalar};
use daq_pipelines::kernels::correlate::VisibilityType;
use daq_pipelines::kernels::power_spectrum::Gap;
use daq_pipelines::kernels::{Axes, Correlate};

const TYPES: [Scalar; 4] = [
    Scalar::Int8,
    Scalar::Int16,
    Scalar::Float16,
    Scalar::Float32,
];

fn numbers(bytes: &[u8], output: VisibilityType) -> Vec<f64> {
    match output {
        VisibilityType::Float32 => as_f32(bytes),
        VisibilityType::Int32 => {
            let numbers = bytes.as_chunks().0.iter();
            numbers.map(|x| f64::from(i32::from_le_bytes(*x))).collect()
        }
    }
}

fn compare(made: &[f64], want: &[f64], scalar: Scalar, what: &str) {
    assert_eq!(made.len(), want.len(), "{what}");
    let largest = want.iter().fold(0.0, |largest, x| x.abs().max(largest));
    let tolerance = match scalar {
        Scalar::Int8 => 0.0,
        // Tensor cores do not round sums to nearest.
        Scalar::Float16 => 1e-4 * largest,
        _ => 1e-5 * largest,
    };
    for (i, (made, want)) in made.iter().zip(want).enumerate() {
        let error = (made - want).abs();
        assert!(
            error <= tolerance,
            "{what}: number {i} is {made}, not {want}"
        );
    }
}

/// Returns the layout of frames of `antennas` × `channels` × `times` samples.
fn voltages(scalar: Scalar, order: Order, antennas: u32, channels: u32, times: usize) -> Layout {
    let samples = Samples {
        scalar,
        complex: true,
        channels: antennas * channels,
        order,
        ..Samples::default()
    };
    layout(&samples, times)
}

fn cpu_and_gpu(
    spec: &Correlate,
    input: &Layout,
    seed: u64,
    count: usize,
    disturbed: bool,
    device: &'static Device,
) {
    let mut noise = Noise(seed);
    let mut given = frames((0..count).map(|_| noise.numbers(input.scalar, input.numbers())));
    if disturbed {
        disturb(&mut given, &mut noise);
    }
    let what = format!("{spec:?} {input} seed {seed}");
    let made = both(spec, input, &given, &[2, 1, 4], device, &what);
    assert!(!made.is_empty(), "{what}");
    for (made, want) in made {
        let (made, want) = (numbers(&made, spec.output), numbers(&want, spec.output));
        compare(&made, &want, input.scalar, &what);
    }
}

#[test]
fn visibilities_of_every_number_of_antennas_equal_cpu() {
    let Some(device) = device() else { return };
    for (seed, antennas) in (0..).zip([1, 2, 7, 31, 33, 64, 65, 100, 130]) {
        for scalar in TYPES {
            let input = voltages(scalar, Order::Planar, antennas, 3, 37);
            let spec = Correlate {
                antennas: Some(antennas),
                ..Correlate::default()
            };
            cpu_and_gpu(&spec, &input, seed, 2, false, device);
        }
    }
}

#[test]
fn visibilities_of_every_order_equal_cpu() {
    let Some(device) = device() else { return };
    let all = [
        Axes::TimeAntennaChannel,
        Axes::TimeChannelAntenna,
        Axes::AntennaChannelTime,
        Axes::AntennaTimeChannel,
        Axes::ChannelAntennaTime,
        Axes::ChannelTimeAntenna,
    ];
    for (seed, axes) in (0..).zip(all) {
        for scalar in TYPES {
            let input = voltages(scalar, Order::Interleaved, 5, 40, 48);
            let spec = Correlate {
                antennas: Some(5),
                axes: Some(axes),
                integrate: Some(16),
                scale: 0.25,
                ..Correlate::default()
            };
            cpu_and_gpu(&spec, &input, seed, 5, false, device);
        }
    }
}

#[test]
fn visibilities_of_long_integrations_equal_cpu() {
    let Some(device) = device() else { return };
    for (seed, gap) in (0..).zip([Gap::Restart, Gap::Continue, Gap::Restart]) {
        for (order, output) in [
            (Order::Planar, VisibilityType::Int32),
            (Order::Interleaved, VisibilityType::Float32),
        ] {
            let input = voltages(Scalar::Int8, order, 4, 2, 64);
            let spec = Correlate {
                antennas: Some(4),
                integrate: Some(64 * 3),
                output,
                gap,
                ..Correlate::default()
            };
            cpu_and_gpu(&spec, &input, seed, 60, true, device);
        }
    }
}

#[test]
fn visibilities_equal_numpy() {
    let Some(python) = python("numpy") else {
        return;
    };
    let gpu = device();
    let (mut cases, mut made) = (Vec::new(), Vec::new());
    for scalar in TYPES {
        for order in [Order::Planar, Order::Interleaved] {
            let input = voltages(scalar, order, 6, 9, 50);
            let spec = Correlate {
                antennas: Some(6),
                output: if scalar == Scalar::Int8 {
                    VisibilityType::Int32
                } else {
                    VisibilityType::Float32
                },
                ..Correlate::default()
            };
            let mut noise = Noise(11);
            let given = frames((0..3).map(|_| noise.numbers(scalar, input.numbers())));
            let bytes: Vec<u8> = given.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
            cases.push((
                format!(
                    "{{\"kernel\": \"correlate\", \"bytes\": {}, \"type\": \"{scalar}\", \"complex\": true, \
                     \"channels\": 54, \"points\": 50, \"planar\": {}, \"antennas\": 6}}\n",
                    bytes.len(),
                    order == Order::Planar
                ),
                bytes,
            ));
            let on = |device| -> Vec<f64> {
                let outputs = run(&spec, &input, &given, &[2], device).outputs;
                let each = |(_, bytes): &(_, Vec<u8>)| numbers(bytes, spec.output);
                outputs.iter().flat_map(each).collect()
            };
            made.push((scalar, on(None), gpu.map(|gpu| on(Some(gpu)))));
        }
    }
    for ((scalar, cpu, gpu), want) in made.iter().zip(reference(&python, SCRIPT, &cases)) {
        for made in [Some(cpu), gpu.as_ref()].into_iter().flatten() {
            compare(made, &want, *scalar, scalar.name());
        }
    }
}
