use super::super::tests::figure;
use super::super::trial::{SCALARS, as_f32, frames, run};
use super::*;
use daq_core::frame::Flags;
use daq_core::layout::Samples;
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

/// Computes the expected output from the definition, in float64 and one number at a time.
fn expected(bytes: &[u8], scalar: Scalar, factor: f64, offset: f64) -> Vec<f64> {
    let number = |raw: &[u8]| match scalar {
        Scalar::Int8 => f64::from(i8::from_le_bytes(raw.try_into().unwrap())),
        Scalar::Uint8 => f64::from(raw[0]),
        Scalar::Int16 => f64::from(i16::from_le_bytes(raw.try_into().unwrap())),
        Scalar::Int32 => f64::from(i32::from_le_bytes(raw.try_into().unwrap())),
        Scalar::Float32 => f64::from(f32::from_le_bytes(raw.try_into().unwrap())),
        Scalar::Float64 => f64::from_le_bytes(raw.try_into().unwrap()),
    };
    bytes
        .chunks_exact(scalar.bytes())
        .map(|raw| number(raw) * factor + offset)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn convert_scales_every_value_and_keeps_order(
        scalar in proptest::sample::select(&SCALARS[..]),
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
        let spec = Convert { scale: Scale::Factor(factor), offset, order: reorder.map(order) };
        let parts = if complex { 2 } else { 1 };
        let count = points * channels as usize * parts;
        let mut state = seed | 1;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let bytes: Vec<u8> = (0..count).flat_map(|_| match scalar {
            Scalar::Float32 => (random() as f32 / 1e6 - 1000.0).to_le_bytes().to_vec(),
            Scalar::Float64 => (f64::from(random()) / 1e6 - 1000.0).to_le_bytes().to_vec(),
            _ => random().to_le_bytes()[..scalar.bytes()].to_vec(),
        }).collect();
        let input = samples(scalar, complex, channels, order(planar)).layout(bytes.len()).unwrap();
        let outcome = run(&spec, &input, &frames([bytes.clone()]), &[1], None);
        let made = as_f32(&outcome.outputs[0].1);
        let want = expected(&bytes, scalar, factor, offset);
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
                    prop_assert!((made - want).abs() <= 3e-7 * scale, "{} is not {}", made, want);
                }
            }
        }
    }
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
    for scalar in [Scalar::Int8, Scalar::Int16, Scalar::Float64] {
        for order in [None, Some(Order::Planar)] {
            let input = samples(scalar, false, 2, Order::Interleaved)
                .layout(1 << 20)
                .unwrap();
            let spec = Convert {
                order,
                ..Convert::default()
            };
            figure(&format!("convert {scalar}, order {order:?}"), &spec, &input);
        }
    }
}
