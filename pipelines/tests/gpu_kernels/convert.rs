//! Checks that `convert` gives the same bits on CPU and GPU.

use super::device;
use super::trial::{Noise, both, disturb, every_type, frames, layout};
use daq_core::layout::{Order, Scalar};
use daq_pipelines::kernels::Convert;
use daq_pipelines::kernels::convert::Scale;

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
            for order in [None, Some(Order::Planar), Some(Order::Interleaved)] {
                let spec = Convert {
                    scale: if samples.scalar.is_float() {
                        Scale::Factor(0.3)
                    } else {
                        Scale::Full
                    },
                    offset: -0.7,
                    order,
                    ..Convert::default()
                };
                let what = format!("{samples:?} {points} points, {order:?}");
                for (made, want) in both(&spec, &input, &given, &[2, 5], device, &what) {
                    assert!(made == want, "{what}: {made:?} {want:?}");
                }
            }
        }
    }
}
