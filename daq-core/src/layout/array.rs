//! Frames as NumPy arrays: element type, shape, and the header of the file format NPY.
//!
//! Format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>

use super::{Axis, Layout, Order, Scalar};

/// Length of the magic string, the version and the length field of an NPY file.
const PREAMBLE: usize = 10;
/// Alignment of the data in an NPY file.
const ALIGNMENT: usize = 64;

/// Type and shape of an array that holds a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayType {
    /// The element type in NumPy's notation, such as `<f4`.
    pub dtype: &'static str,
    /// The number of elements in each dimension.
    pub shape: Vec<usize>,
    /// The name of each dimension: `time`, `frequency`, `value`, `module`, `y`, `x`, `channel`, `part`, `number` or `byte`.
    pub axes: Vec<&'static str>,
}

/// Returns NumPy's type of a number or a pair of numbers, and whether NumPy needs another dimension for pairs. NumPy has
/// neither bfloat16, which is returned as uint16, nor packed types, for which the result is `None`.
const fn element(scalar: Scalar, complex: bool) -> Option<(&'static str, bool)> {
    Some(match scalar {
        Scalar::Float32 if complex => ("<c8", false),
        Scalar::Float64 if complex => ("<c16", false),
        Scalar::Float32be if complex => (">c8", false),
        Scalar::Int8 => ("|i1", complex),
        Scalar::Uint8 => ("|u1", complex),
        Scalar::Int16 => ("<i2", complex),
        Scalar::Uint16 | Scalar::Bfloat16 => ("<u2", complex),
        Scalar::Int32 => ("<i4", complex),
        Scalar::Uint32 => ("<u4", complex),
        Scalar::Int64 => ("<i8", complex),
        Scalar::Float16 => ("<f2", complex),
        Scalar::Float32 => ("<f4", complex),
        Scalar::Float64 => ("<f8", complex),
        Scalar::Int16be => (">i2", complex),
        Scalar::Uint16be => (">u2", complex),
        Scalar::Int32be => (">i4", complex),
        Scalar::Uint32be => (">u4", complex),
        Scalar::Float32be => (">f4", complex),
        _ => return None,
    })
}

impl ArrayType {
    /// Returns the type of a whole frame: `[points, channels]` or, if planar, `[channels, points]`. Images have `[y, x]` instead of
    /// points, or `[module, y, x]`, and no dimension for a single channel. Pairs of integers have a last dimension of 2. A frame of
    /// a packed type is an array of bytes.
    ///
    /// ```
    /// use daq_core::layout::{ArrayType, Samples, Scalar};
    /// let samples = Samples { scalar: Scalar::Int16, complex: true, channels: 2, ..Samples::default() };
    /// let array = ArrayType::of(&samples.layout(800).unwrap());
    /// assert_eq!((array.dtype, array.shape), ("<i2", vec![100, 2, 2]));
    /// assert_eq!(array.axes, ["time", "channel", "part"]);
    /// ```
    pub fn of(layout: &Layout) -> Self {
        let Some((dtype, has_parts)) = element(layout.scalar, layout.complex) else {
            return Self::of_bytes(layout.frame_bytes());
        };
        let mut dimensions = match &layout.axis {
            Axis::Time { .. } => vec![(layout.points, "time")],
            Axis::Frequency { .. } => vec![(layout.points, "frequency")],
            Axis::Fields(_) => vec![(layout.points, "value")],
            Axis::Pixels(image) => {
                let modules = (!image.modules.is_empty()).then(|| (image.count(), "module"));
                let size = [(image.height as usize, "y"), (image.width as usize, "x")];
                modules.into_iter().chain(size).collect()
            }
        };
        let channels = (layout.channels as usize, "channel");
        match layout.order {
            _ if layout.image().is_some() && layout.channels <= 1 => {}
            Order::Interleaved => dimensions.push(channels),
            Order::Planar => dimensions.insert(0, channels),
        }
        if has_parts {
            dimensions.push((2, "part"));
        }
        let (shape, axes) = dimensions.into_iter().unzip();
        Self { dtype, shape, axes }
    }

    /// Returns the type of an array of `bytes` bytes.
    pub fn of_bytes(bytes: usize) -> Self {
        Self {
            dtype: "|u1",
            shape: vec![bytes],
            axes: vec!["byte"],
        }
    }

    /// Returns the type of a frame of `bytes` bytes, and how many of them the array contains. A shorter frame has fewer
    /// points. If it is planar, its channels cannot be separated, so it has one dimension.
    pub fn of_frame(layout: &Layout, bytes: usize) -> (Self, usize) {
        let mut array = Self::of(layout);
        if bytes == layout.frame_bytes() {
            return (array, bytes);
        }
        let row = array.element_bytes() * array.shape.iter().skip(1).product::<usize>();
        let has_channels_first = layout.order == Order::Planar && array.axes[0] == "channel";
        if array.shape.len() == 1 || !has_channels_first {
            array.shape[0] = bytes / row.max(1);
            let bytes = array.shape[0] * row;
            return (array, bytes);
        }
        let elements = bytes / array.element_bytes();
        let bytes = elements * array.element_bytes();
        let array = Self {
            shape: vec![elements],
            axes: vec!["number"],
            ..array
        };
        (array, bytes)
    }

    /// Returns the size of an element in bytes.
    pub fn element_bytes(&self) -> usize {
        self.dtype[2..].parse().unwrap_or(1)
    }

    /// Returns the description of the array in NumPy's notation, which NPY files and SPEAD descriptors contain.
    pub fn description(&self) -> String {
        let sizes: String = self
            .shape
            .iter()
            .map(|size| size.to_string() + ",")
            .collect();
        format!(
            "{{'descr': '{}', 'fortran_order': False, 'shape': ({sizes})}}",
            self.dtype
        )
    }

    /// Returns the header of an NPY file (version 1.0). The elements follow it in the order of C.
    pub fn header(&self) -> Vec<u8> {
        let mut text = self.description();
        let length = (PREAMBLE + text.len() + 1).next_multiple_of(ALIGNMENT) - PREAMBLE;
        text.push_str(&" ".repeat(length - text.len() - 1));
        text.push('\n');
        // At most a few dimensions of 20 digits each.
        let length = u16::try_from(length).unwrap_or(u16::MAX);
        [
            b"\x93NUMPY\x01\x00",
            &length.to_le_bytes()[..],
            text.as_bytes(),
        ]
        .concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Samples;

    fn layout(scalar: Scalar, complex: bool, order: Order) -> Layout {
        let samples = Samples {
            scalar,
            complex,
            channels: 3,
            order,
            ..Samples::default()
        };
        samples.layout(samples.point_bytes() * 40).unwrap()
    }

    #[test]
    fn images_have_rows_and_columns() {
        use crate::layout::{Module, Samples};
        let samples = |channels, order, modules| Samples {
            scalar: Scalar::Uint16,
            channels,
            order,
            width: Some(5),
            height: Some(4),
            modules,
            ..Samples::default()
        };
        let second = Module {
            x: 5,
            ..Module::default()
        };
        let two = || vec![Module::default(), second];
        for (samples, shape, axes) in [
            (
                samples(1, Order::Interleaved, vec![]),
                vec![4, 5],
                vec!["y", "x"],
            ),
            (
                samples(1, Order::Planar, two()),
                vec![2, 4, 5],
                vec!["module", "y", "x"],
            ),
            (
                samples(3, Order::Interleaved, vec![]),
                vec![4, 5, 3],
                vec!["y", "x", "channel"],
            ),
            (
                samples(3, Order::Planar, vec![]),
                vec![3, 4, 5],
                vec!["channel", "y", "x"],
            ),
        ] {
            let bytes = 2 * shape.iter().product::<usize>();
            let layout = samples.shaped(samples.layout(bytes).unwrap()).unwrap();
            let array = ArrayType::of(&layout);
            assert_eq!((array.shape, array.axes), (shape, axes));
            assert!(samples.shaped(samples.layout(bytes + 6).unwrap()).is_err());
        }
        let samples = samples(1, Order::Interleaved, vec![]);
        let layout = samples.shaped(samples.layout(40).unwrap()).unwrap();
        // A frame that ends inside the third row.
        assert_eq!(ArrayType::of_frame(&layout, 26).0.shape, [2, 5]);
    }

    #[test]
    fn every_type_has_an_array_of_the_size_of_a_frame() {
        for scalar in Scalar::ALL {
            for (complex, order) in [
                (false, Order::Interleaved),
                (true, Order::Interleaved),
                (true, Order::Planar),
            ] {
                let layout = layout(scalar, complex, order);
                let array = ArrayType::of(&layout);
                let bytes = array.element_bytes() * array.shape.iter().product::<usize>();
                assert_eq!(bytes, layout.frame_bytes(), "{scalar} {complex} {order:?}");
                assert_eq!(array.shape.len(), array.axes.len());
            }
        }
    }

    #[test]
    fn short_frames_have_fewer_points() {
        let interleaved = layout(Scalar::Int16, true, Order::Interleaved);
        let (array, bytes) = ArrayType::of_frame(&interleaved, 2 * 12 + 5);
        assert_eq!((array.shape, bytes), (vec![2, 3, 2], 24));
        let planar = layout(Scalar::Float32, false, Order::Planar);
        let (array, bytes) = ArrayType::of_frame(&planar, 23);
        assert_eq!(
            (array.shape, array.axes, bytes),
            (vec![5], vec!["number"], 20)
        );
    }

    #[test]
    fn header_is_aligned() {
        let header = ArrayType::of(&layout(Scalar::Float64, true, Order::Planar)).header();
        assert!(header.len().is_multiple_of(64) && header.ends_with(b"\n"));
        let text = String::from_utf8_lossy(&header[10..]);
        assert!(
            text.starts_with("{'descr': '<c16', 'fortran_order': False, 'shape': (3,40,)}"),
            "{text}"
        );
    }
}
