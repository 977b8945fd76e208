use super::super::npy;
use super::super::tests::{figure, parse};
use super::super::trial::{Noise, as_f32, frames, layout, run};
use super::*;
use daq_core::layout::Samples;
use std::f64::consts::TAU;
use std::path::Path;

fn voltages(scalar: Scalar, channels: u32, times: usize) -> Layout {
    let samples = Samples {
        scalar,
        complex: true,
        channels,
        rate: Some(Frequency(1000.0)),
        order: Order::Planar,
        ..Samples::default()
    };
    layout(&samples, times)
}

fn save(path: &Path, descr: &str, shape: &str, numbers: &[f64]) {
    let data: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(path, npy::tests::file(descr, shape, &data)).unwrap();
}

/// Weights that select single antennas give the samples of these antennas.
#[test]
fn beam_with_one_weight_is_one_antenna() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("w.npy");
    // Beam 0 is antenna 2, beam 1 is antenna 0 times i.
    let weights = [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0];
    save(&path, "<c16", "(2, 3)", &weights);
    for scalar in [Scalar::Int8, Scalar::Float32] {
        let input = voltages(scalar, 3, 4);
        let spec = Beamform {
            beams: 2,
            antennas: Some(3),
            weights: Some(path.clone()),
            ..Beamform::default()
        };
        let bytes = Noise(1).numbers(scalar, 24);
        let x: Vec<f64> = match scalar {
            Scalar::Int8 => bytes.iter().map(|x| f64::from(x.cast_signed())).collect(),
            _ => as_f32(&bytes),
        };
        let made = as_f32(&run(&spec, &input, &frames([bytes]), &[1], None).outputs[0].1);
        assert_eq!(made[..8], x[16..]);
        let turned: Vec<f64> = x[..8].chunks(2).flat_map(|z| [-z[1], z[0]]).collect();
        assert_eq!(made[8..], turned);
    }
}

/// A wave that reaches the second antenna earlier adds up if that antenna is delayed.
#[test]
fn delays_point_a_beam_at_a_wave() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("delays.npy");
    let delay = 3.3e-9;
    save(&path, "<f8", "(2, 2)", &[0.0, delay, 0.0, 0.0]);
    let input = voltages(Scalar::Float32, 6, 5);
    let spec = Beamform {
        beams: 2,
        antennas: Some(2),
        delays: Some(path),
        frequency: Some(Frequency(1.4e9)),
        spacing: Some(Frequency(1e6)),
        ..Beamform::default()
    };
    #[expect(clippy::cast_possible_truncation, reason = "the samples are float32")]
    let frame = (0..2)
        .flat_map(|antenna| (0..3).map(move |channel| (antenna, channel)))
        .flat_map(|(antenna, channel)| {
            let frequency = 1.4e9 + f64::from(channel) * 1e6;
            let (sin, cos) = (TAU * frequency * delay * f64::from(antenna)).sin_cos();
            [cos as f32, sin as f32].repeat(5)
        })
        .flat_map(f32::to_le_bytes)
        .collect();
    let made = as_f32(&run(&spec, &input, &frames([frame]), &[1], None).outputs[0].1);
    for z in made[..30].chunks(2) {
        assert!((z[0] - 1.0).abs() < 1e-5 && z[1].abs() < 1e-5, "{z:?}");
    }
    let phase = TAU * 1.4e9 * delay;
    let want = (f64::midpoint(1.0, phase.cos()), phase.sin() / 2.0);
    assert!((made[30] - want.0).abs() < 1e-5 && (made[31] - want.1).abs() < 1e-5);
}

#[test]
fn powers_are_sums_of_squared_magnitudes() {
    let input = voltages(Scalar::Int16, 4, 6);
    let beams = Beamform {
        antennas: Some(2),
        ..Beamform::default()
    };
    let powers = Beamform {
        detect: Detect::Power,
        integrate: 3,
        scale: 0.5,
        ..beams.clone()
    };
    let given = frames([Noise(2).numbers(Scalar::Int16, input.numbers())]);
    let y = as_f32(&run(&beams, &input, &given, &[1], None).outputs[0].1);
    let made = as_f32(&run(&powers, &input, &given, &[1], None).outputs[0].1);
    assert_eq!(made.len(), 4);
    for (made, y) in made.iter().zip(y.chunks(6)) {
        let want = y.iter().map(|x| x * x).sum::<f64>() * 0.5;
        assert!((made / want - 1.0).abs() < 1e-6);
    }
    let output = powers.layout(&input).unwrap();
    assert_eq!(
        output.to_string(),
        "float32, 2 channels × 2 samples at 333.3333333333333 Hz"
    );
}

#[test]
fn wrong_keys_and_files_name_the_fix() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("w.npy");
    save(&path, "<f8", "(3,)", &[1.0, 2.0, 3.0]);
    let input = voltages(Scalar::Int8, 4, 6);
    let context = KernelContext::alone(&input, Side::Cpu);
    let spec = |weights, delays| Beamform {
        antennas: Some(4),
        weights,
        delays,
        frequency: Some(Frequency(1e9)),
        ..Beamform::default()
    };
    for spec in [spec(Some(path.clone()), None), spec(None, Some(path))] {
        let error = spec.build(&context).err().unwrap().to_string();
        assert!(error.contains("[3]") && error.contains("[1, 4]"), "{error}");
    }
    let text = |keys: &str| {
        let text =
            format!("[kernel.k]\nuse = \"beamform\"\ninput = \"a\"\noutput = \"b\"\n{keys}\n");
        parse(&text).map(|_| ()).unwrap_err()
    };
    assert!(text("beams = 0").contains("1 to 65536"));
    assert!(text("integrate = 4").contains("detect = \"power\""));
    assert!(text("delays = \"d.npy\"").contains("set `frequency`"));
    assert!(text("detect = \"power\"\ntype = \"int8\"").contains("powers are float32"));
    let odd = Beamform {
        detect: Detect::Power,
        integrate: 4,
        ..Beamform::default()
    };
    let problem = odd.layout(&input).unwrap_err();
    assert!(problem.message.contains("6 times"), "{}", problem.message);
}

#[test]
#[ignore = "prints a figure"]
fn beamform_throughput() {
    let input = voltages(Scalar::Int8, 16 * 64, 256);
    let spec = Beamform {
        beams: 8,
        antennas: Some(16),
        ..Beamform::default()
    };
    figure("beamform int8, 16 antennas, 8 beams", &spec, &input);
}

/// A frame that is not followed at once by the next frame has the same rate.
#[test]
fn rate_of_beams_is_that_of_the_samples_behind_select() {
    use super::super::Select;
    use super::super::select::{Indices, Range};
    let every = Select {
        every: 4,
        ..Select::default()
    };
    let half = Select {
        points: Some(Indices::Range(Range {
            count: Some(6),
            ..Range::default()
        })),
        ..Select::default()
    };
    let beam = |integrate| Beamform {
        detect: Detect::Power,
        integrate,
        ..Beamform::default()
    };
    for select in [every, half] {
        let input = select.layout(&voltages(Scalar::Int8, 4, 12)).unwrap();
        let output = |integrate| beam(integrate).layout(&input).unwrap();
        assert_eq!(output(1).sample_rate(), Some(1000.0));
        assert_eq!(output(3).sample_rate(), Some(1000.0 / 3.0));
        assert!(!output(3).is_contiguous);
        let one = output(input.points);
        assert_eq!(one.sample_rate(), input.frame_rate);
        assert!(one.is_contiguous);
    }
}

#[test]
fn check_reads_the_files_as_a_run_does() {
    let directory = tempfile::tempdir().unwrap();
    save(&directory.path().join("w.npy"), "<c16", "(1, 4)", &[1.0; 8]);
    save(&directory.path().join("d.npy"), "<f8", "(1, 4)", &[0.0; 4]);
    let spec = |antennas| Beamform {
        antennas: Some(antennas),
        weights: Some("w.npy".into()),
        delays: Some("d.npy".into()),
        frequency: Some(Frequency(1e9)),
        ..Beamform::default()
    };
    let check = |spec: &Beamform, input: Option<&Layout>| {
        spec.check_files(&CheckContext {
            directory: directory.path(),
            dispatch: daq_core::gpu::Dispatch::Launch,
            input,
        })
    };
    let input = voltages(Scalar::Int8, 4, 6);
    assert_eq!(check(&spec(4), Some(&input)), CheckReport::default());
    let other = voltages(Scalar::Int8, 5, 6);
    // Without a plan, the layout of the frames is not known.
    assert_eq!(check(&spec(5), None), CheckReport::default());
    let problems = check(&spec(5), Some(&other)).problems;
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].key.as_deref(), Some("weights"));
    assert!(problems[0].message.contains("has the shape [1, 4]"));
    assert!(
        problems[0]
            .help
            .as_deref()
            .unwrap()
            .contains("change the file")
    );
    // Another check reports missing files.
    let absent = Beamform {
        weights: Some("absent.npy".into()),
        ..spec(5)
    };
    assert_eq!(check(&absent, Some(&other)), CheckReport::default());
}
