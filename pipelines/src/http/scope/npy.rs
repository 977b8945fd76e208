//! The newest frame as a file for NumPy.

use super::decode::Samples;
use daq_core::layout::{ArrayType, Layout};

/// Returns a frame as the bytes of an NPY file. Packed numbers are unpacked to `int16`.
pub(super) fn npy(layout: &Layout, samples: &Samples<'_>) -> Vec<u8> {
    let layout = Layout {
        scalar: samples.scalar(),
        ..layout.clone()
    };
    let (array, length) = ArrayType::of_frame(&layout, samples.bytes().len());
    let mut file = array.header();
    file.extend_from_slice(&samples.bytes()[..length]);
    file
}
