//! The CUDA sides against numpy, on random input.

use super::device;
use super::power_spectrum::error;
use super::trial::{Noise, as_f32, as_f64, every_type, frames, layout, run};
use daq_core::kernel::KernelSpec;
use daq_core::layout::{Layout, Order, Samples, Scalar};
use daq_pipelines::kernels::convert::Scale;
use daq_pipelines::kernels::{Convert, PowerSpectrum, Stats};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("reference.py");

/// A Python with numpy: the one that `DAQ_TEST_PYTHON` names, else `python3`.
fn python() -> Option<PathBuf> {
    let given = std::env::var_os("DAQ_TEST_PYTHON").filter(|path| !path.is_empty());
    let python = PathBuf::from(given.unwrap_or_else(|| "python3".into()));
    let found = Command::new(&python).args(["-c", "import numpy"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    eprintln!("skipped: {} has no numpy", python.display());
    None
}

/// What numpy makes of `frames` of `samples`.
fn numpy(
    python: &PathBuf,
    kernel: &str,
    samples: &Samples,
    input: &Layout,
    keys: &str,
    frames: &[u8],
) -> Vec<f64> {
    let header = format!(
        "{{\"kernel\": \"{kernel}\", \"type\": \"{}\", \"complex\": {}, \"channels\": {}, \"points\": {}, \
         \"planar\": {}, {keys}}}\n",
        samples.scalar,
        samples.complex,
        samples.channels,
        input.points,
        samples.order == Order::Planar,
    );
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The script reads all before it writes.
    stdin.write_all(header.as_bytes()).unwrap();
    stdin.write_all(frames).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{kernel} {header}");
    as_f64(&output.stdout)
}

/// For some samples: numpy's numbers for three frames and the kernel's outputs, in a row.
fn each(
    kernel: &str,
    points: usize,
    spec: impl Fn(&Samples) -> (Box<dyn KernelSpec>, String),
    compare: impl Fn(&[Vec<u8>], &[f64], &str),
) {
    let (Some(device), Some(python)) = (device(), python()) else {
        return;
    };
    for (seed, samples) in (0..).zip(every_type(&[2])) {
        let input = layout(&samples, points);
        let (spec, keys) = spec(&samples);
        let mut noise = Noise(seed);
        let numbers = input.frame_bytes() / samples.scalar.bytes();
        let given = frames((0..3).map(|_| noise.numbers(samples.scalar, numbers)));
        let all: Vec<u8> = given.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        let made = run(&*spec, &input, &given, &[2], Some(device)).outputs;
        let made: Vec<Vec<u8>> = made.into_iter().map(|(_, bytes)| bytes).collect();
        let want = numpy(&python, kernel, &samples, &input, &keys, &all);
        compare(&made, &want, &format!("{samples:?}"));
    }
}

#[test]
fn convert_equals_numpy() {
    let spec = |_: &Samples| -> (Box<dyn KernelSpec>, String) {
        let spec = Convert {
            scale: Scale::Factor(0.37),
            offset: 1.5,
            order: None,
        };
        (
            Box::new(spec),
            "\"scale\": 0.37, \"offset\": 1.5".to_owned(),
        )
    };
    each("convert", 1003, spec, |made, want, what| {
        assert_eq!(as_f32(&made.concat()), want, "{what}");
    });
}

#[test]
fn spectra_equal_numpy() {
    for (size, points) in [(256, 5000), (360, 1700), (1000, 3000), (4096, 20_000)] {
        let spec = |_: &Samples| -> (Box<dyn KernelSpec>, String) {
            let spec = PowerSpectrum {
                size: Some(size),
                overlap: 0.5,
                ..PowerSpectrum::default()
            };
            let keys = format!("\"size\": {size}, \"hop\": {}", size / 2);
            (Box::new(spec), keys)
        };
        each("power-spectrum", points, spec, |made, want, what| {
            let made = as_f32(&made.concat());
            assert_eq!(made.len(), want.len());
            // Three frames of two channels.
            let bins = want.len() / 6;
            for (made, want) in made.chunks(bins).zip(want.chunks(bins)) {
                let error = error(made, want);
                assert!(error <= 1e-5, "{what}: error {error}");
            }
        });
    }
}

#[test]
fn stats_equal_numpy() {
    let spec = |samples: &Samples| -> (Box<dyn KernelSpec>, String) {
        let (low, high) = match samples.scalar {
            Scalar::Float32 | Scalar::Float64 => (-0.77, 0.93),
            Scalar::Int8 | Scalar::Uint8 => (-90.0, 110.5),
            Scalar::Int16 => (-30_000.5, 29_999.0),
            Scalar::Int32 => (-2e9, 1.9e9),
        };
        let clip = high * 0.9;
        let spec = Stats {
            every: 1,
            clip: Some(clip),
            bins: Some(37),
            range: Some([low, high]),
        };
        let keys = format!("\"range\": [{low:?}, {high:?}], \"bins\": 37, \"clip\": {clip:?}");
        (Box::new(spec), keys)
    };
    each("stats", 9001, spec, |made, want, what| {
        let made = as_f64(&made.concat());
        assert_eq!(made.len(), want.len());
        for (i, (made, want_here)) in made.iter().zip(want).enumerate() {
            let rms = want[i / 43 * 43 + 4];
            let is_sum = matches!(i % 43, 3 | 4);
            let near = is_sum && (made - want_here).abs() <= 1e-12 * rms;
            assert!(
                near || made == want_here,
                "{what}: field {i} is {made}, not {want_here}"
            );
        }
    });
}
