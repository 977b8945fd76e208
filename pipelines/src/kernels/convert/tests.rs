use super::super::tests::figure;
use super::super::trial::{as_f32, frames, layout, run};
use super::*;
use daq_core::frame::{Flags, FrameMeta};
use daq_core::kernel::Stream;
use daq_core::layout::Samples;
use daq_core::region::{HostOptions, Region};
use daq_core::ring::RingOptions;
use daq_testkit::ring::RingFixture;
use proptest::prelude::*;

fn samples(scalar: Scalar, complex: bool, channels: u32, order: Order) -> Samples {
    Samples {
        scalar,
        complex,
        channels,
        order,
        ..Samples::default()
    }
}

/// Returns the numbers of a type, each assembled bit by bit.
fn numbers(bytes: &[u8], scalar: Scalar) -> Vec<f64> {
    let width = scalar.bits();
    let msb = scalar.is_big_endian() || scalar.packing().is_some_and(|packing| packing.msb_first);
    let bit = |i: usize| u64::from(bytes[i / 8] >> if msb { 7 - i % 8 } else { i % 8 } & 1);
    (0..bytes.len() * 8 / width)
        .map(|n| {
            let place = |k: usize| if msb { width - 1 - k } else { k };
            let code: u64 = (0..width).map(|k| bit(n * width + k) << place(k)).sum();
            number(code, scalar)
        })
        .collect()
}

/// Returns the value of the number with the bits `code`.
#[expect(clippy::cast_possible_truncation, reason = "the type has these bits")]
fn number(code: u64, scalar: Scalar) -> f64 {
    match scalar.little_endian() {
        Scalar::Float16 => {
            let (exponent, fraction) = ((code >> 10 & 31) as i32, (code & 1023) as f64);
            let magnitude = match exponent {
                0 => fraction * 2_f64.powi(-24),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
            };
            if code >> 15 == 1 {
                -magnitude
            } else {
                magnitude
            }
        }
        Scalar::Bfloat16 => f64::from(f32::from_bits((code as u32) << 16)),
        Scalar::Float32 => f64::from(f32::from_bits(code as u32)),
        Scalar::Float64 => f64::from_bits(code),
        _ if scalar.range().is_some_and(|(low, _)| low < 0) => {
            let unused = 64 - scalar.bits();
            ((code << unused).cast_signed() >> unused) as f64
        }
        _ => code as f64,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn convert_scales_every_value_and_keeps_order(
        scalar in proptest::sample::select(&Scalar::ALL[..]),
        complex: bool,
        channels in 1_u32..5,
        points in 1_usize..1200,
        planar: bool,
        reorder: Option<bool>,
        factor in 0.001_f64..10.0,
        offset in -5.0_f64..5.0,
        seed: u64,
    ) {
        let order = |planar| if planar { Order::Planar } else { Order::Interleaved };
        let spec = Convert { scale: Scale::Factor(factor), offset, order: reorder.map(order), ..Convert::default() };
        let parts = if complex { 2 } else { 1 };
        let samples = samples(scalar, complex, channels, order(planar));
        let input = layout(&samples, points);
        let points = input.points;
        let mut state = seed | 1;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let bytes: Vec<u8> = match scalar {
            Scalar::Float32 => (0..input.numbers())
                .flat_map(|_| (random() as f32 / 1e6 - 1000.0).to_le_bytes())
                .collect(),
            Scalar::Float32be => (0..input.numbers())
                .flat_map(|_| (random() as f32 / 1e6 - 1000.0).to_be_bytes())
                .collect(),
            Scalar::Float64 => (0..input.numbers())
                .flat_map(|_| (f64::from(random()) / 1e6 - 1000.0).to_le_bytes())
                .collect(),
            _ => (0..input.frame_bytes()).map(|_| random().to_le_bytes()[1]).collect(),
        };
        let outcome = run(&spec, &input, &frames([bytes.clone()]), &[1], None);
        let made = as_f32(&outcome.outputs[0].1);
        let want: Vec<f64> = numbers(&bytes, scalar).iter().map(|x| x * factor + offset).collect();
        prop_assert_eq!(made.len(), want.len());
        let channels = channels as usize;
        let at = |planar: bool, channel: usize, point: usize, part: usize| {
            (if planar { channel * points + point } else { point * channels + channel }) * parts + part
        };
        let planar_out = reorder.unwrap_or(planar);
        for channel in 0..channels {
            for point in 0..points {
                for part in 0..parts {
                    let want = want[at(planar, channel, point, part)];
                    let made = made[at(planar_out, channel, point, part)];
                    let scale = (want - offset).abs() + offset.abs();
                    let near = (made - want).abs() <= 3e-7 * scale + 1e-44;
                    prop_assert!(
                        near || (made.is_nan() && want.is_nan()) || made == want || want.abs() > 3e38,
                        "{} is not {}", made, want
                    );
                }
            }
        }
    }
}

#[test]
fn int16be_becomes_int16_without_change() {
    let spec = Convert {
        scalar: ConvertedType::Int16,
        ..Convert::default()
    };
    let all: Vec<i16> = (i16::MIN..=i16::MAX).collect();
    let input = samples(Scalar::Int16be, true, 1, Order::Interleaved)
        .layout(2 * all.len())
        .unwrap();
    assert_eq!(spec.layout(&input).unwrap().scalar, Scalar::Int16);
    assert!(spec.input_facts(&input).runs_on_gpu);
    let bytes = all.iter().flat_map(|x| x.to_be_bytes()).collect();
    let outcome = run(&spec, &input, &frames([bytes]), &[1], None);
    let expected: Vec<u8> = all.iter().flat_map(|x| x.to_le_bytes()).collect();
    assert!(outcome.outputs[0].1 == expected);
}

#[test]
fn int16_is_rounded_and_limited() {
    let spec = Convert {
        scalar: ConvertedType::Int16,
        scale: Scale::Factor(10.0),
        ..Convert::default()
    };
    for scalar in [Scalar::Float32, Scalar::Float64] {
        let values = [0.25, 0.75, -0.25, 1e9, -1e9, f32::NAN];
        let bytes: Vec<u8> = match scalar {
            Scalar::Float32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => values
                .iter()
                .flat_map(|x| f64::from(*x).to_le_bytes())
                .collect(),
        };
        let input = samples(scalar, false, 1, Order::Interleaved)
            .layout(bytes.len())
            .unwrap();
        let outcome = run(&spec, &input, &frames([bytes]), &[1], None);
        let found: Vec<i16> = outcome.outputs[0]
            .1
            .as_chunks()
            .0
            .iter()
            .map(|x| i16::from_le_bytes(*x))
            .collect();
        assert_eq!(found, [2, 8, -2, i16::MAX, i16::MIN, 0], "{scalar}");
    }
    let full = Convert {
        scale: Scale::Full,
        ..spec
    };
    assert_eq!(full.problems()[0].key.as_deref(), Some("scale"));
}

/// Each packet of the input is a packet of the output, so that missing samples stay known exactly.
#[test]
fn missing_packets_are_known_after_conversion() {
    let input = samples(Scalar::Int16be, false, 1, Order::Interleaved)
        .layout(16)
        .unwrap();
    let ring = |name, bytes, packets_per_frame| {
        let options = RingOptions {
            packets_per_frame,
            ..RingOptions::new(name, 4, bytes)
        };
        let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
        RingFixture::in_region(region, options)
    };
    let meta = FrameMeta {
        flags: Flags::INCOMPLETE,
        packets_per_frame: 4,
        arrived: 3,
        packet_sizes: PacketSizes::equal(4),
        ..FrameMeta::whole(7, 16)
    };
    // Without room for packets in the output ring, only the flag of the frame is known.
    for (scalar, bytes, packets) in [
        (ConvertedType::Int16, 4, 4),
        (ConvertedType::Float32, 8, 4),
        (ConvertedType::Float32, 8, 0),
    ] {
        let spec = Convert {
            scalar,
            ..Convert::default()
        };
        let output = spec.layout(&input).unwrap();
        let sizes = PacketSizes::equal(bytes);
        assert!(spec.input_facts(&input).keeps_packets);
        let scaled = converted_packets(&input, &output, meta.packet_sizes);
        assert_eq!(scaled, Some(sizes));
        let mut kernel = spec
            .build(&KernelContext::alone(&input, Side::Cpu))
            .unwrap();
        let mut source = ring("in", 16, 4);
        let mut sink = ring("out", output.frame_bytes(), packets);
        let mut slots = source.producer.reserve(1);
        slots.finish_with(meta, &[0b1011]);
        slots.publish();
        let lease = source.reader.poll(1).unwrap();
        let mut out = sink.producer.reserve(1);
        let submitted = kernel.run(&lease, &mut out, Stream::Host).unwrap();
        assert_eq!(submitted.consumed, 1);
        out.publish();
        let lease = sink.reader.poll(1).unwrap();
        let frame = lease.frame(0);
        let missing: Vec<_> = frame.present().missing().collect();
        assert!(frame.meta().is_incomplete());
        if packets == 0 {
            assert_eq!((frame.meta().packets_per_frame, missing.len()), (0, 0));
        } else {
            assert_eq!(
                (frame.meta().packet_sizes, frame.meta().arrived),
                (sizes, 3)
            );
            assert_eq!(missing, [(2, 1)]);
        }
    }
    let reordered = Convert {
        order: Some(Order::Planar),
        ..Convert::default()
    };
    let channels = samples(Scalar::Int16, false, 2, Order::Interleaved)
        .layout(16)
        .unwrap();
    assert!(!reordered.input_facts(&channels).keeps_packets);
}

#[test]
fn convert_full_scale_is_one() {
    let spec = Convert {
        scale: Scale::Full,
        ..Convert::default()
    };
    let input = samples(Scalar::Int16, false, 1, Order::Interleaved)
        .layout(6)
        .unwrap();
    let bytes = [i16::MIN, 0, i16::MAX]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let outcome = run(&spec, &input, &frames([bytes]), &[1], None);
    assert_eq!(
        as_f32(&outcome.outputs[0].1),
        [-1.0, 0.0, 32_767.0 / 32_768.0]
    );
    let input = samples(Scalar::Float32, false, 1, Order::Interleaved)
        .layout(8)
        .unwrap();
    assert_eq!(
        spec.layout(&input).unwrap_err().key.as_deref(),
        Some("scale")
    );
}

#[test]
fn convert_keeps_frame_records() {
    let input = samples(Scalar::Int8, false, 1, Order::Interleaved)
        .layout(2)
        .unwrap();
    let mut given = frames([vec![1, 2], vec![3, 4]]);
    given[1].0.flags = Flags::INCOMPLETE.with(Flags::EPOCH);
    given[1].0.epoch = 3;
    let outcome = run(&Convert::default(), &input, &given, &[2], None);
    for (made, given) in outcome.outputs.iter().zip(&given) {
        assert_eq!(
            made.0,
            daq_core::frame::FrameMeta {
                length: 8,
                ..given.0
            }
        );
    }
}

#[test]
#[ignore = "prints a figure"]
fn convert_throughput() {
    for scalar in [
        Scalar::Int8,
        Scalar::Int16,
        Scalar::Float64,
        Scalar::Float16,
        Scalar::Uint12p,
        Scalar::Uint10pmsb,
    ] {
        for order in [None, Some(Order::Planar)] {
            let input = layout(&samples(scalar, false, 2, Order::Interleaved), 1 << 18);
            let spec = Convert {
                order,
                ..Convert::default()
            };
            figure(&format!("convert {scalar}, order {order:?}"), &spec, &input);
        }
    }
}
