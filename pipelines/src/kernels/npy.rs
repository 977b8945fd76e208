//! Reads arrays of numbers from NPY files (`numpy.save`).

use super::samples::{Number, with_number};
use daq_core::kernel::KernelError;
use daq_core::layout::Scalar;
use daq_fft::Complex;
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";

/// An array in C order. Real numbers have imaginary parts of 0.
#[derive(Debug, PartialEq)]
pub(super) struct Array {
    pub(super) shape: Vec<usize>,
    pub(super) numbers: Vec<Complex<f64>>,
    pub(super) complex: bool,
}

/// Reads the array in the file that the key `key` names. `path` is relative to `directory`.
pub(super) fn read(key: &str, path: &Path, directory: &Path) -> Result<Array, KernelError> {
    let path = directory.join(path);
    let refused = |why: String| {
        KernelError::Refused(format!("`{key}`: cannot read {}: {why}", path.display()))
    };
    let bytes = daq_core::file::read(&path).map_err(|error| refused(error.to_string()))?;
    parse(&bytes).map_err(|why| {
        refused(format!(
            "{why}; save a little-endian float32, float64, complex64 or complex128 array in C order with numpy.save"
        ))
    })
}

/// Parses the content of a file. The error is a reason as a clause.
fn parse(bytes: &[u8]) -> Result<Array, String> {
    let short = || "the file ends inside its header".to_owned();
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is not an NPY file")?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
    let (length, rest) = match version[0] {
        1 => {
            let (length, rest) = rest.split_first_chunk().ok_or_else(short)?;
            (usize::from(u16::from_le_bytes(*length)), rest)
        }
        2 | 3 => {
            let (length, rest) = rest.split_first_chunk().ok_or_else(short)?;
            (
                usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX),
                rest,
            )
        }
        other => return Err(format!("the NPY version {other} is not known")),
    };
    let (header, data) = rest.split_at_checked(length).ok_or_else(short)?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text")?;
    let descr = value(header, "descr").ok_or("its header has no `descr`")?;
    let (scalar, complex) = match descr.trim_matches(['\'', '"']) {
        "<f4" => (Scalar::Float32, false),
        "<f8" => (Scalar::Float64, false),
        "<c8" => (Scalar::Float32, true),
        "<c16" => (Scalar::Float64, true),
        other => return Err(format!("the type {other} is not supported")),
    };
    if value(header, "fortran_order").is_none_or(|order| order.trim() != "False") {
        return Err("the array is not in C order".to_owned());
    }
    let shape = shape(header).ok_or("its header has no valid `shape`")?;
    let numbers = numbers(data, scalar, complex);
    let all = shape
        .iter()
        .try_fold(1_usize, |all, length| all.checked_mul(*length));
    if all != Some(numbers.len()) {
        return Err(format!(
            "it has {} numbers, which do not fill an array of shape {shape:?}",
            numbers.len()
        ));
    }
    Ok(Array {
        shape,
        numbers,
        complex,
    })
}

fn numbers(data: &[u8], scalar: Scalar, complex: bool) -> Vec<Complex<f64>> {
    with_number!(scalar, N => {
        let numbers = N::cut(data);
        if complex {
            let pairs = numbers.as_chunks::<2>().0.iter();
            pairs.map(|[re, im]| Complex::new(N::f64(*re), N::f64(*im))).collect()
        } else {
            numbers.iter().map(|x| Complex::new(N::f64(*x), 0.0)).collect()
        }
    }, _ => Vec::new())
}

/// Returns the text of the value of `key` in a Python dictionary, up to the next comma.
fn value<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let rest = after(header, key)?;
    Some(rest.split([',', '}']).next()?.trim())
}

fn after<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let at = header.find(&format!("'{key}'"))? + key.len() + 2;
    Some(
        header
            .get(at..)?
            .trim_start()
            .strip_prefix(':')?
            .trim_start(),
    )
}

fn shape(header: &str) -> Option<Vec<usize>> {
    let list = after(header, "shape")?.strip_prefix('(')?;
    let list = list.get(..list.find(')')?)?;
    let lengths = list
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty());
    lengths.map(|text| text.parse().ok()).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the content of an NPY file.
    pub(in super::super) fn file(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let mut header =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        while (header.len() + 11) % 64 != 0 {
            header.push(' ');
        }
        header.push('\n');
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn arrays_are_parsed() {
        let data: Vec<u8> = [1.0_f32, -2.0, 3.0, 4.5]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        let real = parse(&file("<f4", "(4,)", &data)).unwrap();
        assert_eq!((real.shape, real.complex), (vec![4], false));
        assert_eq!(real.numbers[3], Complex::new(4.5, 0.0));
        let complex = parse(&file("<c8", "(1, 2)", &data)).unwrap();
        assert_eq!((complex.shape, complex.complex), (vec![1, 2], true));
        assert_eq!(
            complex.numbers,
            [Complex::new(1.0, -2.0), Complex::new(3.0, 4.5)]
        );
    }

    #[test]
    fn other_files_are_rejected_with_reason() {
        let why = |bytes: &[u8]| parse(bytes).unwrap_err();
        assert!(why(b"hello").contains("not an NPY file"));
        assert!(why(b"\x93NUMPY\x01\x00\xff\xff").contains("ends inside its header"));
        assert!(why(&file(">f4", "(1,)", &[0; 4])).contains(">f4"));
        assert!(why(&file("<f4", "(2,)", &[0; 4])).contains("1 numbers"));
        let fortran =
            String::from_utf8_lossy(&file("<f4", "(1,)", &[0; 4])[10..]).replace("False", "True ");
        let mut bytes = file("<f4", "(1,)", &[0; 4]);
        bytes.splice(10.., fortran.bytes());
        assert!(why(&bytes).contains("C order"));
    }
}
