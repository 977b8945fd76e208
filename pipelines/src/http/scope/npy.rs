//! The newest frame as a `.npy` file ([format version
//! 1.0](https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html)).

use super::decode::Samples;
use super::reduce::unpacked;
use daq_core::layout::{Layout, Order, Scalar};

/// Length of the header with its prefix; the header is padded to this length.
const HEADER: usize = 128;

/// Returns a frame as the bytes of a `.npy` file. Packed numbers become `int16`, `bfloat16` becomes `float32`. Complex
/// integers get a last axis of length 2.
pub(super) fn npy(layout: &Layout, samples: &Samples<'_>) -> Vec<u8> {
    let layout = unpacked(layout, samples);
    let numbers = layout.numbers() * layout.scalar.bytes().unwrap_or(1);
    let bytes = samples.bytes();
    let bytes = &bytes[..numbers.min(bytes.len())];
    let mut file = header(&layout);
    if layout.scalar == Scalar::Bfloat16 {
        let floats = bytes
            .as_chunks::<2>()
            .0
            .iter()
            .flat_map(|[low, high]| [0, 0, *low, *high]);
        file.extend(floats);
    } else {
        file.extend_from_slice(bytes);
    }
    file
}

fn header(layout: &Layout) -> Vec<u8> {
    let (channels, points) = (layout.channels as usize, layout.points);
    let mut shape = match (channels, layout.order) {
        (1, _) => vec![points],
        (_, Order::Interleaved) => vec![points, channels],
        (_, Order::Planar) => vec![channels, points],
    };
    let kind = match (layout.scalar, layout.complex) {
        (Scalar::Float32, true) => "<c8",
        (Scalar::Float64, true) => "<c16",
        (Scalar::Float32be, true) => ">c8",
        (scalar, complex) => {
            if complex {
                shape.push(2);
            }
            real(scalar)
        }
    };
    let shape: String = shape.iter().map(|axis| format!("{axis}, ")).collect();
    let text = format!(
        "{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}), }}",
        shape.trim_end()
    );
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend(((HEADER - 10) as u16).to_le_bytes());
    header.extend_from_slice(text.as_bytes());
    header.resize(HEADER - 1, b' ');
    header.push(b'\n');
    header
}

/// Returns numpy's name of a type.
fn real(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::Int8 => "|i1",
        Scalar::Uint8 => "|u1",
        Scalar::Uint16 => "<u2",
        Scalar::Int32 => "<i4",
        Scalar::Uint32 => "<u4",
        Scalar::Int64 => "<i8",
        Scalar::Float16 => "<f2",
        Scalar::Float32 | Scalar::Bfloat16 => "<f4",
        Scalar::Float64 => "<f8",
        Scalar::Int16be => ">i2",
        Scalar::Uint16be => ">u2",
        Scalar::Int32be => ">i4",
        Scalar::Uint32be => ">u4",
        Scalar::Float32be => ">f4",
        // Packed numbers are unpacked.
        _ => "<i2",
    }
}
