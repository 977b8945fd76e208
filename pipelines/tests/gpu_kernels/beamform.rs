//! Compares `beamform` on CPU and GPU with each other and with numpy. Numbers must differ by less than 1e-5 of the largest
//! one, integers by at most 1, and float16 numbers by at most one step.

use super::device;
use super::numpy::{SCRIPT, python, reference};
use super::trial::{Noise, as_f32, both, disturb, frames, layout, run, write_npy};
use daq_core::gpu::driver::Device;
use daq_core::layout::{Layout, Order, Samples, Scalar};
use daq_pipelines::kernels::beamform::Detect;
use daq_pipelines::kernels::{Axes, Beamform, OutputType};
use std::path::Path;

const TYPES: [Scalar; 4] = [
    Scalar::Int8,
    Scalar::Int16,
    Scalar::Float16,
    Scalar::Float32,
];

pub fn half(bits: u16) -> f64 {
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * 2_f32.powi(112);
    f64::from(if bits >> 15 == 1 {
        -magnitude
    } else {
        magnitude
    })
}

fn numbers(bytes: &[u8], output: OutputType) -> Vec<f64> {
    let pairs = bytes.as_chunks().0.iter();
    match output {
        OutputType::Float32 => as_f32(bytes),
        OutputType::Float16 => pairs.map(|x| half(u16::from_le_bytes(*x))).collect(),
        OutputType::Int16 => pairs.map(|x| f64::from(i16::from_le_bytes(*x))).collect(),
        OutputType::Int8 => bytes.iter().map(|x| f64::from(x.cast_signed())).collect(),
    }
}

fn compare(made: &[f64], want: &[f64], output: OutputType, what: &str) {
    assert_eq!(made.len(), want.len(), "{what}");
    let largest = want.iter().fold(0.0, |largest, x| x.abs().max(largest));
    for (i, (made, want)) in made.iter().zip(want).enumerate() {
        let tolerance = match output {
            OutputType::Float32 => 1e-5 * largest,
            OutputType::Float16 => want.abs() / 1024.0 + 1e-5 * largest,
            _ => 1.0,
        };
        let error = (made - want).abs();
        assert!(
            error <= tolerance,
            "{what}: number {i} is {made}, not {want}"
        );
    }
}

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

/// Writes random complex weights of this shape to an NPY file, and returns their numbers.
fn write_weights(path: &Path, shape: &[usize], noise: &mut Noise) -> Vec<f64> {
    let count = 2 * shape.iter().product::<usize>();
    let bytes = noise.numbers(Scalar::Float32, count);
    write_npy(path, "<c8", shape, &bytes);
    as_f32(&bytes)
}

fn cpu_and_gpu(
    spec: &Beamform,
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
    for (made, want) in both(spec, input, &given, &[2, 1, 4], device, &what) {
        let (made, want) = (numbers(&made, spec.output), numbers(&want, spec.output));
        compare(&made, &want, spec.output, &what);
    }
}

#[test]
fn beams_of_every_size_equal_cpu() {
    let Some(device) = device() else { return };
    let directory = tempfile::tempdir().unwrap();
    let sizes = [(1_usize, 1), (3, 5), (16, 16), (17, 33), (40, 70), (70, 12)];
    for (seed, (antennas, beams)) in (0..).zip(sizes) {
        for scalar in TYPES {
            let path = directory.path().join("weights.npy");
            let by_channel = seed % 2 == 1;
            let channels = 3;
            let shape = [beams, channels, antennas];
            let shape = if by_channel {
                &shape[..]
            } else {
                &[beams, antennas]
            };
            write_weights(&path, shape, &mut Noise(seed));
            let antennas = u32::try_from(antennas).unwrap();
            let input = voltages(scalar, Order::Planar, antennas, 3, 75);
            let spec = Beamform {
                beams,
                antennas: Some(antennas),
                weights: Some(path),
                ..Beamform::default()
            };
            cpu_and_gpu(&spec, &input, seed, 3, false, device);
        }
    }
}

#[test]
fn beams_of_every_order_and_type_equal_cpu() {
    let Some(device) = device() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights.npy");
    write_weights(&path, &[4, 5], &mut Noise(1));
    let all = [
        (Axes::TimeAntennaChannel, OutputType::Float32),
        (Axes::TimeChannelAntenna, OutputType::Float16),
        (Axes::AntennaChannelTime, OutputType::Int16),
        (Axes::AntennaTimeChannel, OutputType::Int8),
        (Axes::ChannelAntennaTime, OutputType::Float16),
        (Axes::ChannelTimeAntenna, OutputType::Int8),
    ];
    for (seed, (axes, output)) in (0..).zip(all) {
        for scalar in TYPES {
            let is_float = scalar.is_float();
            let input = voltages(scalar, Order::Interleaved, 5, 7, 40);
            let spec = Beamform {
                beams: 4,
                antennas: Some(5),
                axes: Some(axes),
                weights: Some(path.clone()),
                output,
                scale: match (output, scalar) {
                    (OutputType::Int8, _) if is_float => 60.0,
                    (OutputType::Int8, Scalar::Int8) => 0.5,
                    (OutputType::Int8, _) => 0.002,
                    (OutputType::Int16, _) if is_float => 10_000.0,
                    (OutputType::Float16, Scalar::Int16) => 0.1,
                    _ => 1.0,
                },
                ..Beamform::default()
            };
            cpu_and_gpu(&spec, &input, seed, 8, true, device);
        }
    }
}

#[test]
fn powers_of_beams_equal_cpu() {
    let Some(device) = device() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights.npy");
    write_weights(&path, &[10, 6], &mut Noise(2));
    for (seed, integrate) in (0..).zip([1, 6, 36, 60, 90, 180]) {
        for scalar in TYPES {
            let input = voltages(scalar, Order::Planar, 6, 2, 180);
            let spec = Beamform {
                beams: 10,
                antennas: Some(6),
                weights: Some(path.clone()),
                detect: Detect::Power,
                integrate,
                scale: 0.5,
                ..Beamform::default()
            };
            cpu_and_gpu(&spec, &input, seed, 3, false, device);
        }
    }
}

#[test]
fn beams_equal_numpy() {
    let Some(python) = python("numpy") else {
        return;
    };
    let gpu = device();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights.npy");
    let weights = write_weights(&path, &[3, 9, 6], &mut Noise(3));
    let (mut cases, mut made) = (Vec::new(), Vec::new());
    for scalar in TYPES {
        for order in [Order::Planar, Order::Interleaved] {
            let input = voltages(scalar, order, 6, 9, 50);
            let spec = Beamform {
                beams: 3,
                antennas: Some(6),
                weights: Some(path.clone()),
                ..Beamform::default()
            };
            let mut noise = Noise(12);
            let given = frames((0..2).map(|_| noise.numbers(scalar, input.numbers())));
            let bytes: Vec<u8> = given.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
            cases.push((
                format!(
                    "{{\"kernel\": \"beamform\", \"bytes\": {}, \"type\": \"{scalar}\", \"complex\": true, \
                     \"channels\": 54, \"points\": 50, \"planar\": {}, \"antennas\": 6, \"beams\": 3, \"rounds\": {}, \
                     \"weights\": {weights:?}}}\n",
                    bytes.len(),
                    order == Order::Planar,
                    matches!(scalar, Scalar::Int8 | Scalar::Float16),
                ),
                bytes,
            ));
            let on = |device| -> Vec<f64> {
                let outputs = run(&spec, &input, &given, &[2], device).outputs;
                outputs
                    .iter()
                    .flat_map(|(_, bytes)| as_f32(bytes))
                    .collect()
            };
            made.push((scalar, on(None), gpu.map(|gpu| on(Some(gpu)))));
        }
    }
    for ((scalar, cpu, gpu), want) in made.iter().zip(reference(&python, SCRIPT, &cases)) {
        for made in [Some(cpu), gpu.as_ref()].into_iter().flatten() {
            compare(made, &want, OutputType::Float32, scalar.name());
        }
    }
}
