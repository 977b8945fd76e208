//! Compares the CUDA implementations with numpy, on random input.

use super::device;
use super::power_spectrum::error;
use super::trial::{Noise, SCALARS, as_f32, as_f64, every_type, frames, layout, run};
use daq_core::kernel::KernelSpec;
use daq_core::layout::{Order, Samples, Scalar};
use daq_pipelines::kernels::convert::Scale;
use daq_pipelines::kernels::{Convert, PowerSpectrum, Stats};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub const SCRIPT: &str = include_str!("reference.py");

/// Returns a Python interpreter with `module`: the one that `DAQ_TEST_PYTHON` names, otherwise `python3`.
pub fn python(module: &str) -> Option<PathBuf> {
    let given = std::env::var_os("DAQ_TEST_PYTHON").filter(|path| !path.is_empty());
    let python = PathBuf::from(given.unwrap_or_else(|| "python3".into()));
    let import = format!("import {module}");
    let found = Command::new(&python).args(["-c", &import]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    eprintln!("skipped: {} has no {module}", python.display());
    None
}

/// Returns the numbers that `script` computes for each case. A case consists of the kernel's keys and the frames.
pub fn reference(python: &PathBuf, script: &str, cases: &[(String, Vec<u8>)]) -> Vec<Vec<f64>> {
    let mut child = Command::new(python)
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The script reads its whole input before it writes, so this cannot deadlock.
    for (keys, frames) in cases {
        stdin.write_all(keys.as_bytes()).unwrap();
        stdin.write_all(frames).unwrap();
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let mut rest = &output.stdout[..];
    let answers = cases.iter().map(|_| {
        let (count, later) = rest.split_first_chunk().unwrap();
        let bytes = usize::try_from(u64::from_le_bytes(*count)).unwrap() * 8;
        let (numbers, later) = later.split_at(bytes);
        rest = later;
        as_f64(numbers)
    });
    answers.collect()
}

/// Runs a kernel over three frames for samples of every type. `spec` returns the kernel and its keys for a case. Passes
/// the kernel's and numpy's numbers of each case to `compare`.
fn each(
    kernel: &str,
    scalars: &[Scalar],
    points: &[usize],
    numbers: fn(&[u8]) -> Vec<f64>,
    spec: impl Fn(usize, &Samples) -> (Box<dyn KernelSpec>, String),
    compare: impl Fn(&[f64], &[f64], &str),
) {
    let (Some(device), Some(python)) = (device(), python("numpy")) else {
        return;
    };
    let (mut cases, mut made) = (Vec::new(), Vec::new());
    let all = every_type(scalars, &[2]);
    let all = points
        .iter()
        .enumerate()
        .flat_map(|(case, points)| all.iter().map(move |samples| (case, *points, samples)));
    for (seed, (case, points, samples)) in (0..).zip(all) {
        let input = layout(samples, points);
        let (spec, keys) = spec(case, samples);
        let mut noise = Noise(seed);
        let given = frames((0..3).map(|_| noise.numbers(samples.scalar, input.numbers())));
        let bytes: Vec<u8> = given.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        let header = format!(
            "{{\"kernel\": \"{kernel}\", \"bytes\": {}, \"type\": \"{}\", \"complex\": {}, \"channels\": {}, \
             \"points\": {}, \"planar\": {}, {keys}}}\n",
            bytes.len(),
            samples.scalar,
            samples.complex,
            samples.channels,
            input.points,
            samples.order == Order::Planar,
        );
        let outputs = run(&*spec, &input, &given, &[2], Some(device)).outputs;
        let outputs: Vec<u8> = outputs.into_iter().flat_map(|(_, bytes)| bytes).collect();
        made.push((format!("{samples:?} {keys}"), numbers(&outputs)));
        cases.push((header, bytes));
    }
    for ((what, made), want) in made.iter().zip(reference(&python, SCRIPT, &cases)) {
        assert_eq!(made.len(), want.len(), "{what}");
        compare(made, &want, what);
    }
}

#[test]
fn convert_equals_numpy() {
    let spec = |_, _: &Samples| -> (Box<dyn KernelSpec>, String) {
        let spec = Convert {
            scale: Scale::Factor(0.37),
            offset: 1.5,
            order: None,
            ..Convert::default()
        };
        let keys = "\"scale\": 0.37, \"offset\": 1.5";
        (Box::new(spec), keys.to_owned())
    };
    each(
        "convert",
        &Scalar::ALL,
        &[1003],
        as_f32,
        spec,
        |made, want, what| {
            assert_eq!(made, want, "{what}");
        },
    );
}

/// Converts each code of the 16-bit types, among them NaNs, infinities and denormal numbers, and each pair of bytes of
/// the packed types.
#[test]
fn convert_of_every_code_equals_numpy() {
    let Some(python) = python("numpy") else {
        return;
    };
    let bytes: Vec<u8> = (0..5)
        .flat_map(|_| (0..=u16::MAX).flat_map(u16::to_le_bytes))
        .chain([0; 5])
        .collect();
    let (mut cases, mut made) = (Vec::new(), Vec::new());
    for scalar in Scalar::ALL {
        let samples = Samples {
            scalar,
            ..Samples::default()
        };
        let bytes = &bytes[..bytes.len() / samples.point_bytes() * samples.point_bytes()];
        let input = samples.layout(bytes.len()).unwrap();
        cases.push((
            format!(
                "{{\"kernel\": \"convert\", \"bytes\": {}, \"type\": \"{scalar}\", \"complex\": false, \
                 \"channels\": 1, \"points\": {}, \"planar\": false, \"scale\": 0.37, \"offset\": 1.5}}\n",
                bytes.len(),
                input.points
            ),
            bytes.to_vec(),
        ));
        let spec = Convert {
            scale: Scale::Factor(0.37),
            offset: 1.5,
            order: None,
            ..Convert::default()
        };
        let given = frames([bytes.to_vec()]);
        let on = |device| as_f32(&run(&spec, &input, &given, &[1], device).outputs[0].1);
        made.push((scalar, on(None), device().map(|device| on(Some(device)))));
    }
    for ((scalar, cpu, gpu), want) in made.iter().zip(reference(&python, SCRIPT, &cases)) {
        for made in [Some(cpu), gpu.as_ref()].into_iter().flatten() {
            assert_eq!(made.len(), want.len(), "{scalar}");
            for (i, (made, want)) in made.iter().zip(&want).enumerate() {
                let equal = made.to_bits() == want.to_bits() || (made.is_nan() && want.is_nan());
                assert!(equal, "{scalar}: number {i} is {made}, not {want}");
            }
        }
    }
}

#[test]
fn spectra_equal_numpy() {
    let sizes = [256, 360, 1000, 4096, 8000];
    let points = [5000, 1700, 3000, 20_000, 20_000];
    let spec = |case: usize, _: &Samples| -> (Box<dyn KernelSpec>, String) {
        let size = sizes[case];
        let spec = PowerSpectrum {
            size: Some(size),
            overlap: 0.5,
            ..PowerSpectrum::default()
        };
        let keys = format!("\"size\": {size}, \"hop\": {}", size / 2);
        (Box::new(spec), keys)
    };
    each(
        "power-spectrum",
        &SCALARS,
        &points,
        as_f32,
        spec,
        |made, want, what| {
            // The output has three frames of two channels.
            let bins = want.len() / 6;
            for (made, want) in made.chunks(bins).zip(want.chunks(bins)) {
                let error = error(made, want);
                assert!(error <= 1e-5, "{what}: error {error}");
            }
        },
    );
}

#[test]
fn stats_equal_numpy() {
    let spec = |_, samples: &Samples| -> (Box<dyn KernelSpec>, String) {
        let (low, high) = match samples.scalar {
            Scalar::Int8 | Scalar::Uint8 => (-90.0, 110.5),
            Scalar::Int16 => (-30_000.5, 29_999.0),
            Scalar::Uint16 => (100.5, 60_000.0),
            Scalar::Int32 => (-2e9, 1.9e9),
            _ => (-0.77, 0.93),
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
    each(
        "stats",
        &SCALARS,
        &[9001],
        as_f64,
        spec,
        |made, want, what| {
            for (i, (made, want_here)) in made.iter().zip(want).enumerate() {
                let rms = want[i / 43 * 43 + 4];
                let is_sum = matches!(i % 43, 3 | 4);
                let near = is_sum && (made - want_here).abs() <= 1e-12 * rms;
                assert!(
                    near || made == want_here,
                    "{what}: field {i} is {made}, not {want_here}"
                );
            }
        },
    );
}
