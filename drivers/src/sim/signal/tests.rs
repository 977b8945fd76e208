//! Compares signals with their closed forms.

use super::*;
use daq_core::layout::Layout;
use daq_core::units::Period;
use proptest::prelude::*;

const SCALARS: [Scalar; 9] = [
    Scalar::Int8,
    Scalar::Uint8,
    Scalar::Int16,
    Scalar::Uint16,
    Scalar::Int32,
    Scalar::Uint32,
    Scalar::Int64,
    Scalar::Float32,
    Scalar::Float64,
];

fn signal_config(samples: Samples) -> SignalConfig {
    SignalConfig {
        samples,
        pattern: Pattern::Ramp,
        tones: Vec::new(),
        pulses: Vec::new(),
        noise: 0.0,
        seed: 0,
    }
}

fn samples(scalar: Scalar, complex: bool, channels: u32, order: Order, rate: f64) -> Samples {
    Samples {
        scalar,
        complex,
        channels,
        order,
        rate: Some(Frequency(rate)),
        ..Samples::default()
    }
}

fn tone(frequency: f64, amplitude: f64, phase: f64, channel: Option<u32>) -> Tone {
    Tone {
        frequency: Frequency(frequency),
        amplitude,
        phase,
        channel,
    }
}

/// Returns a number relative to full scale, and its resolution.
fn decode(scalar: Scalar, bytes: &[u8]) -> (f64, f64) {
    match scalar {
        Scalar::Int8 => (
            f64::from(i8::from_le_bytes([bytes[0]])) / 127.0,
            1.0 / 127.0,
        ),
        Scalar::Uint8 => ((f64::from(bytes[0]) - 128.0) / 127.0, 1.0 / 127.0),
        Scalar::Int16 => (
            f64::from(i16::from_le_bytes(bytes.try_into().unwrap())) / 32767.0,
            1.0 / 32767.0,
        ),
        Scalar::Uint16 => {
            let code = f64::from(u16::from_le_bytes(bytes.try_into().unwrap()));
            ((code - 32_768.0) / 32_767.0, 1.0 / 32_767.0)
        }
        Scalar::Uint32 => {
            let code = f64::from(u32::from_le_bytes(bytes.try_into().unwrap()));
            ((code - 2_147_483_648.0) / 2_147_483_647.0, 1e-9)
        }
        Scalar::Int64 => {
            let code = i64::from_le_bytes(bytes.try_into().unwrap());
            (code as f64 / 2_f64.powi(63), 1e-9)
        }
        Scalar::Int32 => {
            let full = f64::from(i32::MAX);
            (
                f64::from(i32::from_le_bytes(bytes.try_into().unwrap())) / full,
                1.0 / full,
            )
        }
        Scalar::Float32 => (
            f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
            1e-6,
        ),
        Scalar::Float64 => (f64::from_le_bytes(bytes.try_into().unwrap()), 1e-9),
        _ => panic!("{scalar} has no signal"),
    }
}

/// Returns the position in a frame of number `part` of point `point` of `channel`.
fn position(layout: &Layout, point: usize, channel: usize, part: usize) -> usize {
    let sample = match layout.order {
        Order::Interleaved => point * layout.channels as usize + channel,
        Order::Planar => channel * layout.points + point,
    };
    sample * layout.sample_bytes().unwrap() + part * number_bytes(layout.scalar)
}

fn bytes(signal: &Signal, frame: u64, extent: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes = Vec::new();
    signal.write(frame, extent, |piece| bytes.extend_from_slice(piece));
    bytes
}

proptest! {
    /// Every sample of every frame must be the sum of the tones at its time, for every sample type.
    #[test]
    fn tones_have_declared_amplitude_and_frequency(
        scalar in prop::sample::select(SCALARS.to_vec()),
        complex: bool,
        channels in 1_u32..4,
        planar: bool,
        rate in prop::sample::select(vec![1_000_000_u64, 44_100, 48_000, 1_712_000_000]),
        parts in 1_u64..50,
        phase in -180.0_f64..180.0,
        points in 1_usize..5000,
        frame in prop_oneof![0_u64..10, 0_u64..1_000_000_000_000],
        at: prop::sample::Index,
        only in prop::option::of(0_u32..3),
    ) {
        let order = if planar { Order::Planar } else { Order::Interleaved };
        let first = rate / 100 * parts;
        let second = rate / 20;
        let mut signal_config = signal_config(samples(scalar, complex, channels, order, rate as f64));
        signal_config.tones = vec![
            tone(first as f64, 0.6, phase, None),
            tone(second as f64, 0.3, 0.0, only.filter(|only| *only < channels)),
        ];
        prop_assert_eq!(signal_config.problems(), []);
        prop_assert_eq!(signal_config.notes(), Vec::<String>::new());
        let layout = signal_config.samples.layout(signal_config.samples.point_bytes() * points).unwrap();
        let signal = signal_config.build(layout.frame_bytes());
        let point = at.index(points);
        let n = u128::from(frame) * points as u128 + point as u128;
        let angle = |frequency: u64| TAU * (n * u128::from(frequency) % u128::from(rate)) as f64 / rate as f64;
        for channel in 0..channels as usize {
            for part in 0..if complex { 2 } else { 1 } {
                let of = |angle: f64| if part == 0 { angle.cos() } else { angle.sin() };
                let mut expected = 0.6 * of(angle(first) + phase.to_radians());
                if signal_config.tones[1].channel.is_none_or(|only| only as usize == channel) {
                    expected += 0.3 * of(angle(second));
                }
                let at = position(&layout, point, channel, part);
                let (value, step) = decode(scalar, &bytes(&signal, frame, at..at + number_bytes(scalar)));
                prop_assert!((value - expected).abs() <= step * 0.51 + 1e-7, "{} instead of {}", value, expected);
            }
        }
    }

    /// The bytes of a frame must not depend on how it is divided into pieces.
    #[test]
    fn bytes_do_not_depend_on_the_pieces(
        pattern in prop::sample::select(vec![Pattern::Ramp, Pattern::Counter, Pattern::Silence]),
        noise in prop::sample::select(vec![0.0, 0.1]),
        planar: bool,
        points in 1_usize..3000,
        frame in 0_u64..1000,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let order = if planar { Order::Planar } else { Order::Interleaved };
        let mut signal_config = signal_config(samples(Scalar::Int16, true, 3, order, 1e6));
        (signal_config.pattern, signal_config.noise) = (pattern, noise);
        let length = signal_config.samples.point_bytes() * points;
        let signal = signal_config.build(length);
        let whole = bytes(&signal, frame, 0..length);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(length)).chain([0, length]).collect();
        cuts.sort_unstable();
        let pieces: Vec<u8> = cuts.windows(2).flat_map(|cut| bytes(&signal, frame, cut[0]..cut[1])).collect();
        prop_assert_eq!(whole.len(), length);
        prop_assert!(whole == pieces);
    }
}

#[test]
fn non_periodic_frequency_is_approximated_and_reported() {
    let mut signal_config =
        signal_config(samples(Scalar::Float32, false, 1, Order::Interleaved, 1e6));
    signal_config.tones = vec![tone(123_456.789, 1.0, 0.0, None)];
    let plan = signal_config.cycles();
    let made = plan.cycles[0] as f64 * 1e6 / plan.period as f64;
    assert!(
        (made - 123_456.789).abs() <= 0.5 * 1e6 / plan.period as f64,
        "{made}"
    );
    assert!(plan.period * 4 <= MAX_TABLE_BYTES);
    let notes = signal_config.notes();
    assert!(
        notes.len() == 1
            && notes[0].starts_with("the tone of 123456.789 Hz is generated at 123456.9549"),
        "{notes:?}"
    );
}

#[test]
fn integers_clip_and_floats_do_not() {
    let value = |scalar: Scalar, value: f64| {
        let mut bytes = vec![0; number_bytes(scalar)];
        encode(value, scalar, &mut bytes);
        bytes
    };
    assert_eq!(value(Scalar::Int16, 1.0), i16::MAX.to_le_bytes());
    assert_eq!(value(Scalar::Int16, 2.0), i16::MAX.to_le_bytes());
    assert_eq!(value(Scalar::Int16, -2.0), i16::MIN.to_le_bytes());
    assert_eq!(value(Scalar::Int8, -5.0), [0x80]);
    assert_eq!(
        (
            value(Scalar::Uint8, 0.0),
            value(Scalar::Uint8, 9.0),
            value(Scalar::Uint8, -9.0)
        ),
        (vec![128], vec![255], vec![0])
    );
    assert_eq!(value(Scalar::Int32, 3.0), i32::MAX.to_le_bytes());
    assert_eq!(value(Scalar::Uint16, 9.0), u16::MAX.to_le_bytes());
    assert_eq!(value(Scalar::Uint16, 0.0), 32_768_u16.to_le_bytes());
    assert_eq!(value(Scalar::Uint32, 9.0), u32::MAX.to_le_bytes());
    assert_eq!(value(Scalar::Int64, 1.0), i64::MAX.to_le_bytes());
    assert_eq!(value(Scalar::Int64, -9.0), i64::MIN.to_le_bytes());
    assert_eq!(value(Scalar::Float32, 3.0), 3.0_f32.to_le_bytes());
    assert_eq!(value(Scalar::Float64, -3.0), (-3.0_f64).to_le_bytes());
}

#[test]
fn noise_is_gaussian_independent_and_repeatable() {
    let mut signal_config = signal_config(samples(Scalar::Float32, true, 2, Order::Planar, 1e6));
    (signal_config.noise, signal_config.seed) = (0.25, 5);
    let points = 100_000;
    let signal = signal_config.build(signal_config.samples.point_bytes() * points);
    let frame = bytes(&signal, 0, 0..signal.frame_bytes);
    let numbers: Vec<f64> = frame
        .chunks_exact(4)
        .map(|bytes| decode(Scalar::Float32, bytes).0)
        .collect();
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let variance = numbers.iter().map(|x| x * x).sum::<f64>() / count;
    let beyond = numbers.iter().filter(|x| x.abs() > 0.5).count() as f64 / count;
    assert!(
        mean.abs() < 0.002 && (variance.sqrt() - 0.25).abs() < 0.002,
        "{mean} {variance}"
    );
    assert!((beyond - 0.0455).abs() < 0.003, "{beyond}: not Gaussian");
    // Compare real with imaginary parts, and one channel with the other.
    let parts: f64 = numbers
        .chunks_exact(2)
        .map(|pair| pair[0] * pair[1])
        .sum::<f64>()
        / count;
    let (one, other) = numbers.split_at(numbers.len() / 2);
    let channels: f64 = one.iter().zip(other).map(|(a, b)| a * b).sum::<f64>() / count;
    assert!(
        parts.abs() < 0.001 && channels.abs() < 0.001,
        "{parts} {channels}"
    );
    assert!(
        frame
            == bytes(
                &signal_config.build(signal.frame_bytes),
                0,
                0..signal.frame_bytes
            )
    );
    let another = SignalConfig {
        seed: 6,
        ..signal_config.clone()
    };
    assert!(frame != bytes(&another.build(signal.frame_bytes), 0, 0..signal.frame_bytes));
    assert_eq!(
        signal_config.notes(),
        [format!(
            "the noise repeats after {} samples",
            MAX_TABLE_BYTES / 16
        )]
    );
}

#[test]
fn pulses_are_added_to_the_real_part_of_their_channels() {
    let mut signal_config =
        signal_config(samples(Scalar::Float64, true, 2, Order::Interleaved, 1e6));
    (signal_config.noise, signal_config.seed) = (0.1, 3);
    let length = signal_config.samples.point_bytes() * 10_000;
    let quiet = bytes(&signal_config.build(length), 0, 0..length);
    signal_config.pulses = vec![Pulses {
        rate: Frequency(10_000.0),
        amplitude: 0.5,
        rise: Period::default(),
        decay: Period(10_000_000),
        channels: Some(vec![1]),
        shared: 0.0,
    }];
    assert_eq!(signal_config.problems(), []);
    let period = MAX_TABLE_BYTES / signal_config.samples.point_bytes();
    let events = (period as f64 / 100.0).round();
    assert_eq!(
        signal_config.notes(),
        [
            format!(
                "the pulses of 10 kHz consist of {events} events that repeat after {period} samples"
            ),
            format!("the noise repeats after {period} samples")
        ]
    );
    let pulsed = bytes(&signal_config.build(length), 0, 0..length);
    let numbers = |bytes: &[u8]| -> Vec<f64> {
        let numbers = bytes.chunks_exact(8);
        numbers
            .map(|bytes| decode(Scalar::Float64, bytes).0)
            .collect()
    };
    // Each point has a complex number of channel 0, then one of channel 1. Only the real part of channel 1 (index 2)
    // contains pulses.
    let mut sum = 0.0;
    for (with, without) in numbers(&pulsed)
        .chunks_exact(4)
        .zip(numbers(&quiet).chunks_exact(4))
    {
        assert_eq!(
            (with[0], with[1], with[3]),
            (without[0], without[1], without[3])
        );
        assert!(with[2] >= without[2]);
        sum += with[2] - without[2];
    }
    // About a hundred events, each with a mean height of 0.5 and a decay of 10 points.
    assert!((200.0..1000.0).contains(&sum), "{sum}");
    signal_config.pulses[0].channels = Some(vec![2]);
    let key = signal_config.problems().remove(0).key;
    assert_eq!(key.as_deref(), Some("pulses.0.channels"));
}

#[test]
fn ramp_counts_samples() {
    for scalar in SCALARS {
        let mut signal_config = signal_config(samples(scalar, true, 3, Order::Interleaved, 1.0));
        signal_config.samples.rate = None;
        let sample = 2 * number_bytes(scalar);
        let signal = signal_config.build(sample * 3 * 100);
        let frame = 1_000_001;
        for (i, found) in bytes(&signal, frame, 0..signal.frame_bytes)
            .chunks_exact(sample)
            .enumerate()
        {
            let n = (frame * 300 + i as u64) % 65_536;
            let (real, imaginary) = found.split_at(number_bytes(scalar));
            if matches!(scalar, Scalar::Float32 | Scalar::Float64) {
                let expected = n as f64 / 32_768.0 - 1.0;
                assert_eq!(decode(scalar, real).0, expected);
                assert_eq!(decode(scalar, imaginary).0, -expected);
            } else {
                assert_eq!(real, &n.to_le_bytes()[..number_bytes(scalar)]);
                assert_eq!(
                    imaginary,
                    &n.wrapping_neg().to_le_bytes()[..number_bytes(scalar)]
                );
            }
        }
    }
}

#[test]
fn silence_is_the_middle() {
    let mut silent = signal_config(samples(Scalar::Uint8, false, 1, Order::Interleaved, 1.0));
    silent.pattern = Pattern::Silence;
    assert_eq!(bytes(&silent.build(1000), 7, 100..110), [128; 10]);
    silent.samples.scalar = Scalar::Float32;
    assert_eq!(bytes(&silent.build(1000), 7, 100..112), [0; 12]);
}

#[test]
fn invalid_parameters_are_reported() {
    let mut wrong = signal_config(samples(Scalar::Int16, false, 2, Order::Interleaved, 1e6));
    wrong.noise = -1.0;
    wrong.tones = vec![
        tone(6e5, f64::NAN, 0.0, Some(2)),
        tone(5e5, 1.0, f64::INFINITY, Some(1)),
    ];
    let keys: Vec<_> = wrong
        .problems()
        .into_iter()
        .filter_map(|problem| problem.key)
        .collect();
    assert_eq!(
        keys,
        [
            "noise",
            "tones.0.amplitude",
            "tones.0.channel",
            "tones.0.frequency",
            "tones.1.phase"
        ]
    );
    wrong.samples.complex = true;
    assert_eq!(wrong.problems().len(), 4);
    wrong.samples.rate = None;
    assert_eq!(wrong.problems().len(), 6);
}
