//! Tests of the transforms, outside of the library, whose code would otherwise be compiled twice.

use daq_fft::{Complex, forward};

#[test]
fn tone_is_in_one_point() {
    let turn = std::f32::consts::TAU / 8.0;
    let mut points: Vec<_> = (0..8_u8)
        .map(|i| Complex::from_polar(1.0, 3.0 * turn * f32::from(i)))
        .collect();
    forward(8).process(&mut points);
    let norms: Vec<_> = points.iter().map(|point| point.norm().round()).collect();
    assert_eq!(norms, [0.0, 0.0, 0.0, 8.0, 0.0, 0.0, 0.0, 0.0]);
}
