use super::super::tests::{figure, parse, sums};
use super::super::trial::{Noise, as_f32, frames, layout, run};
use super::*;
use daq_core::layout::Samples;

const ALL_AXES: [Axes; 6] = [
    Axes::TimeAntennaChannel,
    Axes::TimeChannelAntenna,
    Axes::AntennaChannelTime,
    Axes::AntennaTimeChannel,
    Axes::ChannelAntennaTime,
    Axes::ChannelTimeAntenna,
];

fn voltages(scalar: Scalar, channels: u32, times: usize) -> Layout {
    let samples = Samples {
        scalar,
        complex: true,
        channels,
        rate: Some(Frequency(1000.0)),
        ..Samples::default()
    };
    layout(&samples, times)
}

/// Sample (antenna, channel, time) of the tests.
fn sample(antenna: usize, channel: usize, time: usize) -> (i64, i64) {
    let mix = |x: usize| i64::try_from(((x * 2_654_435_761) >> 7) % 256).unwrap() - 128;
    let n = (antenna * 101 + channel) * 1009 + time;
    (mix(n), mix(n + 77_777))
}

/// Returns the sum of the products of two antennas over `times`.
fn visibility(i: usize, j: usize, channel: usize, times: std::ops::Range<usize>) -> (i64, i64) {
    times.fold((0, 0), |(re, im), time| {
        let (one, other) = (sample(i, channel, time), sample(j, channel, time));
        (
            re + one.0 * other.0 + one.1 * other.1,
            im + one.1 * other.0 - one.0 * other.1,
        )
    })
}

/// Writes every sample of a frame at the place that its axes give, and checks all sums.
#[test]
fn every_order_has_the_same_visibilities() {
    let (antennas, channels, times) = (3, 4, 10);
    let input = voltages(Scalar::Int8, 12, times);
    for axes in ALL_AXES {
        let steps = axes.steps(antennas, channels, times);
        let mut frame = vec![0_u8; input.frame_bytes()];
        for antenna in 0..antennas {
            for channel in 0..channels {
                for time in 0..times {
                    let (re, im) = sample(antenna, channel, time);
                    let at = antenna * steps.antenna + channel * steps.channel + time * steps.time;
                    frame[2 * at] = re.to_le_bytes()[0];
                    frame[2 * at + 1] = im.to_le_bytes()[0];
                }
            }
        }
        let spec = Correlate {
            antennas: Some(3),
            axes: Some(axes),
            integrate: Some(5),
            output: VisibilityType::Int32,
            ..Correlate::default()
        };
        let made = run(&spec, &input, &frames([frame]), &[1], None).outputs;
        assert_eq!(made.len(), 2);
        for (output, (meta, bytes)) in made.iter().enumerate() {
            assert_eq!(meta.sequence, output as u64);
            assert_eq!(meta.timestamp.ns, output as u64 * 5_000_000);
            let mut numbers = bytes
                .as_chunks()
                .0
                .iter()
                .map(|x| i64::from(i32::from_le_bytes(*x)));
            for channel in 0..channels {
                for i in 0..antennas {
                    for j in i..antennas {
                        let made = (numbers.next().unwrap(), numbers.next().unwrap());
                        let times = output * 5..(output + 1) * 5;
                        assert_eq!(
                            made,
                            visibility(i, j, channel, times),
                            "{axes:?} {channel} {i} {j}"
                        );
                    }
                }
            }
            assert_eq!(numbers.next(), None);
        }
    }
}

/// A plane wave that arrives later at the second antenna has a visibility with the phase of the delay.
#[test]
fn phase_is_that_of_first_antenna_minus_second() {
    let input = voltages(Scalar::Float32, 2, 16);
    let phase = 0.7_f32;
    let frame = (0..16)
        .flat_map(|_| [1.0, 0.0, phase.cos(), -phase.sin()])
        .flat_map(f32::to_le_bytes)
        .collect();
    let spec = Correlate {
        scale: 1.0 / 16.0,
        ..Correlate::default()
    };
    let made = as_f32(&run(&spec, &input, &frames([frame]), &[1], None).outputs[0].1);
    assert!((made[0] - 1.0).abs() < 1e-6 && made[1] == 0.0);
    assert!((made[2] - f64::from(phase.cos())).abs() < 1e-6);
    assert!((made[3] - f64::from(phase.sin())).abs() < 1e-6);
}

#[test]
fn integration_spans_frames_and_restarts_after_gap() {
    let input = voltages(Scalar::Int16, 2, 8);
    let spec = Correlate {
        integrate: Some(24),
        ..Correlate::default()
    };
    let mut noise = Noise(1);
    let mut given = frames((0..8).map(|_| noise.numbers(Scalar::Int16, input.numbers())));
    // Frame 4 is missing.
    for (meta, _) in &mut given[4..] {
        meta.sequence += 1;
    }
    let outcome = run(&spec, &input, &given, &[3, 2], None);
    let sequences: Vec<_> = outcome
        .outputs
        .iter()
        .map(|(meta, _)| meta.sequence)
        .collect();
    assert_eq!(sequences, [0, 1]);
    // Frame 3 is dropped. The last frame is in an integration that has not ended.
    assert_eq!(sums(&outcome), [6, 1, 1]);
}

#[test]
fn layout_has_baselines_and_frequencies() {
    let spec = Correlate {
        antennas: Some(4),
        frequency: Some(Frequency(1e9)),
        spacing: Some(Frequency(2e5)),
        integrate: Some(20),
        ..Correlate::default()
    };
    let output = spec.layout(&voltages(Scalar::Int8, 256, 10)).unwrap();
    assert_eq!(
        (output.channels, output.points, output.order),
        (10, 64, Order::Interleaved)
    );
    assert_eq!(
        output.axis,
        Axis::Frequency {
            start: Some(1e9),
            step: Some(2e5)
        }
    );
    assert_eq!(output.frame_rate, Some(50.0));
}

#[test]
fn impossible_shapes_name_the_fix() {
    let input = voltages(Scalar::Int8, 12, 10);
    let problem = |spec: Correlate| spec.layout(&input).unwrap_err().message;
    assert!(
        problem(Correlate {
            antennas: Some(5),
            ..Correlate::default()
        })
        .contains("12 channels cannot be divided among 5 antennas")
    );
    assert!(
        problem(Correlate {
            antennas: Some(7),
            channels: Some(5),
            ..Correlate::default()
        })
        .contains("7 antennas × 5 channels")
    );
    assert!(
        problem(Correlate {
            integrate: Some(4),
            ..Correlate::default()
        })
        .contains("10 times")
    );
    assert!(
        problem(Correlate {
            integrate: Some(65_540),
            output: VisibilityType::Int32,
            ..Correlate::default()
        })
        .contains("does not fit into int32")
    );
    let real = layout(&Samples::default(), 10);
    let problem = Correlate::default().layout(&real).unwrap_err();
    assert!(problem.message.contains("not complex samples"));
    let text = |keys: &str| {
        let text =
            format!("[kernel.k]\nuse = \"correlate\"\ninput = \"a\"\noutput = \"b\"\n{keys}\n");
        parse(&text).map(|_| ()).unwrap_err()
    };
    assert!(text("antennas = 0").contains("at least 1"));
    assert!(text("type = \"int32\"\nscale = 2.0").contains("exact sums"));
    assert!(text("axes = \"time-antenna\"").contains("time-antenna-channel"));
}

#[test]
#[ignore = "prints a figure"]
fn correlate_throughput() {
    for antennas in [4, 16] {
        let input = voltages(Scalar::Int8, antennas * 64, 256);
        let spec = Correlate {
            antennas: Some(antennas),
            ..Correlate::default()
        };
        figure(
            &format!("correlate int8, {antennas} antennas"),
            &spec,
            &input,
        );
    }
}

/// Four outputs of a frame are a quarter of the duration of the frame apart, also if the next frames are left out.
#[test]
fn times_behind_select_follow_the_sample_rate() {
    let every = super::super::Select {
        every: 4,
        ..super::super::Select::default()
    };
    let input = voltages(Scalar::Int8, 2, 8);
    let fewer = every.layout(&input).unwrap();
    assert_eq!(fewer.frame_rate, input.frame_rate.map(|rate| rate / 4.0));
    let spec = Correlate {
        integrate: Some(2),
        ..Correlate::default()
    };
    let given = frames([Noise(3).numbers(Scalar::Int8, input.numbers())]);
    let times = |input: &Layout| -> Vec<u64> {
        let outcome = run(&spec, input, &given, &[1], None);
        let times = outcome.outputs.iter().map(|(meta, _)| meta.timestamp.ns);
        times.collect()
    };
    assert_eq!(times(&fewer), [0, 2_000_000, 4_000_000, 6_000_000]);
    assert_eq!(times(&fewer), times(&input));
}

#[test]
fn keys_that_contradict_the_channels_of_the_ring_are_refused() {
    let input = voltages(Scalar::Int8, 8, 12);
    let spec = |antennas, channels, axes| Correlate {
        antennas,
        channels,
        axes,
        ..Correlate::default()
    };
    let problem = |antennas, channels| {
        let problem = spec(antennas, channels, None).layout(&input).unwrap_err();
        (problem.key.unwrap(), problem.message, problem.help.unwrap())
    };
    // Half of the channels would be other antennas or times.
    for (antennas, channels) in [(4, 1), (2, 2), (4, 4), (1, 1)] {
        let (_, message, help) = problem(Some(antennas), Some(channels));
        assert!(message.contains("are not the 8 channels"), "{message}");
        assert!(help.contains("`axes`"), "{help}");
    }
    let (key, message, _) = problem(None, Some(3));
    assert_eq!(key, "channels");
    assert!(message.contains("8 channels cannot be divided among antennas with 3 channels"));
    for (antennas, channels) in [
        (Some(4), Some(2)),
        (None, Some(2)),
        (Some(4), None),
        (None, None),
    ] {
        assert!(spec(antennas, channels, None).layout(&input).is_ok());
    }
    // With `axes`, the keys describe the frame.
    let axes = Some(Axes::AntennaChannelTime);
    let output = spec(Some(4), Some(4), axes).layout(&input).unwrap();
    assert_eq!((output.channels, output.points), (10, 4));
}

#[test]
fn spectra_are_no_voltages() {
    let spectra = Layout {
        axis: Axis::Frequency {
            start: None,
            step: None,
        },
        ..voltages(Scalar::Float32, 2, 8)
    };
    let problem = Correlate::default().layout(&spectra).unwrap_err();
    assert!(
        problem.message.contains("not samples over time"),
        "{problem}"
    );
    // A kernel of the user can produce the spectra of antennas.
    let declared = Correlate {
        antennas: Some(2),
        channels: Some(8),
        axes: Some(Axes::TimeChannelAntenna),
        ..Correlate::default()
    };
    assert!(declared.layout(&spectra).is_ok());
}
