//! Checks that `convert` gives the same bits on CPU and GPU.

use super::device;
use super::trial::{Noise, both, disturb, every_type, frames, layout};
use daq_core::layout::{Order, Scalar};
use daq_pipelines::kernels::Convert;
use daq_pipelines::kernels::convert::{ConvertedType, Scale};

#[test]
fn convert_bits_equal_cpu() {
    let Some(device) = device() else { return };
    let mut noise = Noise(1);
    for samples in every_type(&Scalar::ALL, &[1, 3, 40]) {
        for points in [1, 7, 301] {
            let input = layout(&samples, points);
            let numbers = input.numbers();
            let count = if points == 7 { 9 } else { 3 };
            let mut given = frames((0..count).map(|_| noise.odd_numbers(samples.scalar, numbers)));
            if points == 7 {
                disturb(&mut given, &mut noise);
            }
            let orders = [None, Some(Order::Planar), Some(Order::Interleaved)];
            for (order, scalar) in orders.into_iter().flat_map(|order| {
                [ConvertedType::Float32, ConvertedType::Int16].map(|to| (order, to))
            }) {
                let spec = Convert {
                    scale: if samples.scalar.is_float() || scalar == ConvertedType::Int16 {
                        Scale::Factor(0.3)
                    } else {
                        Scale::Full
                    },
                    offset: -0.7,
                    order,
                    scalar,
                };
                let what = format!("{samples:?} {points} points, {order:?}, {scalar:?}");
                for (made, want) in both(&spec, &input, &given, &[2, 5], device, &what) {
                    assert!(made == want, "{what}: {made:?} {want:?}");
                }
            }
        }
    }
}
