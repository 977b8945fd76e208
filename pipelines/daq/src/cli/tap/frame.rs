//! A frame that `daq tap` prints.

use super::{End, Form};
use daq_core::frame::PacketSizes;
use daq_core::layout::{ArrayType, Layout, Order};
use daq_pipelines::attach::client::Tapped;
use daq_pipelines::numbers::{Number, numbers};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Maximum number of ranges of missing packets in a warning.
const MAX_LISTED: usize = 8;

/// A frame with its description.
pub(super) struct Frame {
    pub(super) index: u64,
    /// The description of the frame.
    properties: Map<String, Value>,
    layout: Layout,
    array: ArrayType,
    pub(super) bytes: Vec<u8>,
    /// Number of bytes that the array contains. The rest of a short frame is less than one point.
    used: usize,
}

impl Frame {
    pub(super) fn read(tapped: Tapped) -> io::Result<Self> {
        let length = tapped.file.metadata()?.len();
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        // All clients share the position of the file.
        tapped.file.read_exact_at(&mut bytes, 0)?;
        Ok(Self::new(
            tapped.index,
            tapped.properties,
            tapped.layout,
            bytes,
        ))
    }

    fn new(index: u64, properties: Map<String, Value>, layout: Layout, bytes: Vec<u8>) -> Self {
        let (array, used) = ArrayType::of_frame(&layout, bytes.len());
        Self {
            index,
            properties,
            layout,
            array,
            bytes,
            used,
        }
    }

    /// Returns the numbers of the array.
    fn numbers(&self) -> Vec<Number> {
        numbers(self.layout.scalar, &self.bytes[..self.used])
    }

    fn has_separable_channels(&self) -> bool {
        self.layout.has_separable_channels(self.bytes.len())
    }

    /// Returns the packets of the frame. Without packets, none is missing.
    fn packets(&self) -> Packets {
        Packets::deserialize(&self.properties).unwrap_or_default()
    }

    /// Returns what the output in this format does not show about missing packets.
    pub(super) fn warning(&self, form: Form) -> Option<String> {
        let packets = self.packets();
        let is_marked = match form {
            Form::Json => true,
            Form::Csv => packets.are_positions_known(),
            Form::Npy | Form::Raw => false,
        };
        (!is_marked && packets.total > packets.arrived).then(|| {
            format!(
                "frame {}: {} of {} packets did not arrive ({}); their samples have the fill value of the ring",
                self.index,
                packets.total - packets.arrived,
                packets.total,
                packets.listed()
            )
        })
    }

    pub(super) fn npy(&self, output: &mut impl Write) -> io::Result<()> {
        output.write_all(&self.array.header())?;
        output.write_all(&self.bytes[..self.used])
    }

    /// Returns the shape of the samples; complex samples are arrays of two numbers.
    fn shape(&self, numbers: usize) -> Vec<usize> {
        if !self.has_separable_channels() {
            return vec![numbers];
        }
        let (channels, parts) = (self.layout.channels as usize, self.layout.parts());
        let points = numbers / (channels * parts).max(1);
        let mut shape = match self.layout.order {
            Order::Interleaved => vec![points, channels],
            Order::Planar => vec![channels, points],
        };
        if parts == 2 {
            shape.push(2);
        }
        shape
    }

    /// Prints one line with the metadata and the samples.
    pub(super) fn json(mut self, ring: &str, output: &mut impl Write) -> Result<(), End> {
        let numbers = self.numbers();
        let samples = nested(&self.shape(numbers.len()), &numbers)?;
        let mut line = Map::new();
        line.insert("ring".to_owned(), ring.into());
        line.append(&mut self.properties);
        line.insert("samples".to_owned(), samples);
        serde_json::to_writer(&mut *output, &line)?;
        Ok(output.write_all(b"\n")?)
    }

    /// Returns the names of the columns in CSV.
    fn columns(&self) -> String {
        if !self.has_separable_channels() {
            return "frame,time_ns,number,value".to_owned();
        }
        let mut columns = "frame,time_ns,point".to_owned();
        for channel in 0..self.layout.channels {
            columns += &if self.layout.complex {
                format!(",re{channel},im{channel}")
            } else {
                format!(",c{channel}")
            };
        }
        columns
    }

    /// Prints one line per point, with the samples of all channels. If the channels cannot be separated, prints one line per
    /// number. A header precedes the lines if its columns are not `columns`, which are those of the last frame.
    pub(super) fn csv(&self, output: &mut impl Write, columns: &mut String) -> Result<(), End> {
        let header = self.columns();
        if header != *columns {
            writeln!(output, "{header}")?;
            *columns = header;
        }
        let (channels, parts) = if self.has_separable_channels() {
            (self.layout.channels as usize, self.layout.parts())
        } else {
            (1, 1)
        };
        let numbers = self.numbers();
        let points = numbers.len() / (channels * parts).max(1);
        let time = self.properties.get("time_ns").unwrap_or(&Value::Null);
        let missing = self.packets().missing_bytes(self.bytes.len() as u64);
        let bits = self.layout.scalar.bits() as u64;
        for point in 0..points {
            write!(output, "{},{time},{point}", self.index)?;
            for channel in 0..channels {
                let sample = match self.layout.order {
                    Order::Interleaved => point * channels + channel,
                    Order::Planar => channel * points + point,
                };
                for (i, number) in numbers.iter().enumerate().skip(sample * parts).take(parts) {
                    let first = i as u64 * bits / 8;
                    let end = ((i as u64 + 1) * bits).div_ceil(8);
                    let next = missing.partition_point(|gap| gap.end <= first);
                    if missing.get(next).is_some_and(|gap| gap.start < end) {
                        write!(output, ",")?;
                    } else {
                        write!(output, ",{number}")?;
                    }
                }
            }
            writeln!(output)?;
        }
        Ok(())
    }
}

/// The packets of a frame, as the daemon describes them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Packets {
    #[serde(rename = "packets")]
    total: u32,
    arrived: u32,
    /// First packet and number of packets of each range, in ascending order.
    missing: Vec<(u32, u32)>,
    sizes: Option<Sizes>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Sizes {
    first_bytes: u32,
    packet_bytes: u32,
    #[serde(default)]
    parts: u32,
}

impl Packets {
    /// Whether the positions of all missing packets are known.
    fn are_positions_known(&self) -> bool {
        // The daemon describes a limited number of ranges.
        let described: u32 = self.missing.iter().map(|(_, count)| count).sum();
        self.sizes.is_some() && described == self.total.saturating_sub(self.arrived)
    }

    /// Returns the bytes of the missing packets in a payload of `length` bytes, in ascending order.
    fn missing_bytes(&self, length: u64) -> Vec<Range<u64>> {
        let Some(sizes) = self.sizes else {
            return Vec::new();
        };
        let sizes = PacketSizes {
            first: sizes.first_bytes,
            rest: sizes.packet_bytes,
            parts: sizes.parts,
        };
        let start = |packet: u32| {
            if packet >= self.total {
                length
            } else {
                sizes.offset(packet, self.total, length)
            }
        };
        let ranges = self.missing.iter();
        ranges
            .map(|(first, count)| start(*first)..start(first.saturating_add(*count)))
            .collect()
    }

    /// Returns the first ranges as text.
    fn listed(&self) -> String {
        let ranges = self.missing.iter().take(MAX_LISTED);
        let mut listed: Vec<_> = ranges
            .map(|(first, count)| match count {
                1 => first.to_string(),
                _ => format!("{first} to {}", first + count - 1),
            })
            .collect();
        if self.missing.len() > MAX_LISTED {
            listed.push("…".to_owned());
        }
        listed.join(", ")
    }
}

/// Returns `numbers` as nested arrays of the given shape.
fn nested(shape: &[usize], numbers: &[Number]) -> Result<Value, End> {
    let [size, inner @ ..] = shape else {
        return Ok(serde_json::to_value(numbers.first())?);
    };
    let length = inner.iter().product::<usize>();
    let parts = (0..*size).map(|i| nested(inner, numbers.get(i * length..).unwrap_or_default()));
    Ok(Value::Array(parts.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::layout::{Samples, Scalar};

    fn frame(scalar: Scalar, complex: bool, order: Order, bytes: &[u8]) -> Frame {
        let samples = Samples {
            scalar,
            complex,
            channels: 2,
            order,
            rate: None,
            ..Samples::default()
        };
        of_layout(samples.layout(bytes.len()).unwrap(), bytes)
    }

    fn of_layout(layout: Layout, bytes: &[u8]) -> Frame {
        let properties = Map::from_iter([("time_ns".to_owned(), Value::from(5))]);
        Frame::new(7, properties, layout, bytes.to_vec())
    }

    /// Returns the CSV text of a frame after a frame with the same columns.
    fn lines(frame: &Frame) -> String {
        text(|output| frame.csv(output, &mut frame.columns()))
    }

    fn text(print: impl FnOnce(&mut Vec<u8>) -> Result<(), End>) -> String {
        let mut output = Vec::new();
        print(&mut output).unwrap();
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn pairs_are_printed_as_csv_and_json() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 255];
        let pairs = || frame(Scalar::Int8, true, Order::Interleaved, &bytes);
        assert_eq!(
            text(|output| pairs().csv(output, &mut String::new())),
            "frame,time_ns,point,re0,im0,re1,im1\n7,5,0,1,2,3,4\n7,5,1,5,6,7,-1\n"
        );
        assert_eq!(
            text(|output| pairs().json("raw", output)),
            "{\"ring\":\"raw\",\"time_ns\":5,\"samples\":[[[1,2],[3,4]],[[5,6],[7,-1]]]}\n"
        );
    }

    #[test]
    fn planar_floats_are_printed_as_csv_and_json() {
        let numbers = [0.5, 1.0, f32::NAN, 2.0];
        let bytes: Vec<_> = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let planar = || frame(Scalar::Float32, false, Order::Planar, &bytes);
        assert_eq!(lines(&planar()), "7,5,0,0.5,NaN\n7,5,1,1,2\n");
        let json = text(|output| planar().json("raw", output));
        assert!(
            json.ends_with("\"samples\":[[0.5,1.0],[null,2.0]]}\n"),
            "{json}"
        );
    }

    #[test]
    fn samples_of_missing_packets_are_empty_in_csv_and_named_for_npy() {
        let mut incomplete = frame(Scalar::Int16, false, Order::Interleaved, &[1; 16]);
        let described = serde_json::json!({
            "packets": 3, "arrived": 1, "missing": [[0, 1], [2, 1]], "sizes": { "first_bytes": 2, "packet_bytes": 8 }
        });
        incomplete
            .properties
            .extend(described.as_object().unwrap().clone());
        assert_eq!(
            lines(&incomplete),
            "7,5,0,,257\n7,5,1,257,257\n7,5,2,257,\n7,5,3,,\n"
        );
        assert_eq!(incomplete.warning(Form::Csv), None);
        assert_eq!(incomplete.warning(Form::Json), None);
        let warning = "frame 7: 2 of 3 packets did not arrive (0, 2); their samples have the fill value of the ring";
        assert_eq!(incomplete.warning(Form::Npy).unwrap(), warning);
        incomplete.properties.remove("sizes");
        assert_eq!(incomplete.warning(Form::Csv).unwrap(), warning);
        assert_eq!(
            frame(Scalar::Int16, false, Order::Interleaved, &[1; 16]).warning(Form::Raw),
            None
        );
    }

    #[test]
    fn short_frames_print_their_whole_points_and_all_raw_bytes() {
        let long = frame(Scalar::Int16, false, Order::Interleaved, &[1; 16]);
        let short = || of_layout(long.layout.clone(), &[1, 0, 2, 0, 3]);
        assert_eq!(lines(&short()), "7,5,0,1,2\n");
        assert_eq!(short().bytes, [1, 0, 2, 0, 3]);
        let mut npy = Vec::new();
        short().npy(&mut npy).unwrap();
        assert!(npy.ends_with(b"\n\x01\0\x02\0"));
        // The last packet has only bytes after the last whole point.
        let mut incomplete = short();
        let described = serde_json::json!({
            "packets": 2, "arrived": 1, "missing": [[1, 1]], "sizes": { "first_bytes": 4, "packet_bytes": 4 }
        });
        incomplete
            .properties
            .extend(described.as_object().unwrap().clone());
        assert_eq!(lines(&incomplete), "7,5,0,1,2\n");
    }

    #[test]
    fn channels_of_short_planar_frames_are_not_separated() {
        let long = frame(Scalar::Int8, false, Order::Planar, &[1, 2, 3, 4, 5, 6]);
        let short = || of_layout(long.layout.clone(), &[1, 2, 3, 4]);
        let mut columns = String::new();
        let mut both = text(|output| long.csv(output, &mut columns));
        both += &text(|output| short().csv(output, &mut columns));
        assert_eq!(
            both,
            "frame,time_ns,point,c0,c1\n7,5,0,1,4\n7,5,1,2,5\n7,5,2,3,6\n\
             frame,time_ns,number,value\n7,5,0,1\n7,5,1,2\n7,5,2,3\n7,5,3,4\n"
        );
        let json = text(|output| short().json("raw", output));
        assert!(json.ends_with("\"samples\":[1,2,3,4]}\n"), "{json}");
    }

    #[test]
    fn packed_samples_are_printed_as_numbers() {
        let packed = frame(Scalar::Uint4p, false, Order::Interleaved, &[0x21, 0x43]);
        let json = text(|output| packed.json("raw", output));
        assert!(json.ends_with("\"samples\":[[1,2],[3,4]]}\n"), "{json}");
    }

    #[test]
    fn npy_has_the_header_and_the_bytes() {
        let mut output = Vec::new();
        let bytes = [1, 0, 2, 0];
        frame(Scalar::Int16, false, Order::Interleaved, &bytes)
            .npy(&mut output)
            .unwrap();
        assert!(output.starts_with(b"\x93NUMPY") && output.ends_with(&bytes));
    }
}
