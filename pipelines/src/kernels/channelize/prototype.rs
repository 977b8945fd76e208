//! The prototype filter.

use super::super::npy;
use super::super::power_spectrum::Window;
use super::{Channelize, Shape};
use daq_core::kernel::KernelError;
use std::f64::consts::PI;
use std::path::Path;

/// Returns the coefficients of the prototype filter, multiplied by `scale`, in the order of the samples.
pub(super) fn coefficients(
    keys: &Channelize,
    shape: &Shape,
    directory: &Path,
) -> Result<Box<[f32]>, KernelError> {
    let length = shape.size * shape.taps;
    let filter = match &keys.coefficients {
        None => {
            let window = Window {
                symmetric: true,
                ..keys.window
            };
            window_sinc(length, keys.cutoff / shape.size as f64, |n| {
                window.at(n, length)
            })
        }
        Some(path) => {
            let array = npy::read("coefficients", path, directory)?;
            if array.shape != [length] || array.complex {
                return Err(KernelError::Refused(format!(
                    "`coefficients`: the array in {} has the shape {:?}{}, but the filter needs {length} real \
                     coefficients ({} points per transform × {} taps); change the file, `channels` or `taps`",
                    path.display(),
                    array.shape,
                    if array.complex {
                        " and complex numbers"
                    } else {
                        ""
                    },
                    shape.size,
                    shape.taps
                )));
            }
            array.numbers.iter().map(|number| number.re).collect()
        }
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the filter uses float32 values"
    )]
    Ok(filter.iter().map(|h| (h * keys.scale) as f32).collect())
}

/// Returns a low-pass filter with `length` coefficients, whose sum is 1. `cutoff` is the frequency of 6 dB attenuation as a
/// fraction of half the sample rate.
fn window_sinc(length: usize, cutoff: f64, window: impl Fn(usize) -> f64) -> Vec<f64> {
    let middle = (length - 1) as f64 / 2.0;
    let mut filter: Vec<f64> = (0..length)
        .map(|n| {
            let x = PI * cutoff * (n as f64 - middle);
            let sinc = if x == 0.0 { 1.0 } else { x.sin() / x };
            sinc * window(n)
        })
        .collect();
    let sum: f64 = filter.iter().sum();
    for h in &mut filter {
        *h /= sum;
    }
    filter
}
