//! A frame as a file for NumPy.

use super::decode::Samples;
use daq_core::frame::Flags;
use daq_core::layout::{ArrayType, Layout};
use std::ops::Range;

/// Maximum number of ranges of missing elements in the header of a response.
const MAX_RANGES: usize = 256;

/// A file, and which elements of its array are missing.
pub(super) struct NpyFile {
    pub(super) bytes: Vec<u8>,
    /// Ranges of elements of the flat array.
    pub(super) missing: Vec<Range<usize>>,
}

impl NpyFile {
    /// Returns a frame as an NPY file. Packed numbers are unpacked to `int16`.
    pub(super) fn new(layout: &Layout, samples: &Samples<'_>) -> Self {
        let unpacked = Layout {
            scalar: samples.scalar(),
            ..layout.clone()
        };
        let (array, length) = ArrayType::of_frame(&unpacked, samples.bytes().len());
        let mut bytes = array.header();
        bytes.extend_from_slice(&samples.bytes()[..length]);
        // Each packed number is an element.
        let bits = match layout.scalar.packing() {
            None => array.element_bytes() * 8,
            Some(packing) => packing.bits as usize,
        };
        Self {
            bytes,
            missing: samples.missing_elements(length / array.element_bytes(), bits),
        }
    }

    /// Returns the metadata of the frame and a name for the file as HTTP headers.
    pub(super) fn headers(&self, ring: &str, index: u64, samples: &Samples<'_>) -> Headers {
        let meta = samples.meta;
        let range = |range: &Range<usize>| format!("{}:{}", range.start, range.end);
        let ranges: Vec<_> = self.missing.iter().take(MAX_RANGES).map(range).collect();
        let missing: usize = self.missing.iter().map(Range::len).sum();
        let is_complete = missing == 0 && !meta.flags.contains(Flags::INCOMPLETE);
        let suffix = if is_complete { "" } else { "-incomplete" };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        let ring = ring.replace(|c| !is_plain(c), "_");
        let name = format!("{ring}-{}{suffix}.npy", meta.sequence);
        vec![
            ("daq-index", index.to_string()),
            ("daq-sequence", meta.sequence.to_string()),
            ("daq-epoch", meta.epoch.to_string()),
            ("daq-time-ns", meta.timestamp.ns.to_string()),
            ("daq-clock", meta.timestamp.clock.to_string()),
            ("daq-packets", meta.packets_per_frame.to_string()),
            ("daq-arrived", meta.arrived.to_string()),
            ("daq-complete", is_complete.to_string()),
            ("daq-missing", ranges.join(",")),
            ("daq-missing-elements", missing.to_string()),
            (
                "content-disposition",
                format!("attachment; filename=\"{name}\""),
            ),
        ]
    }
}

/// HTTP headers: names and values.
pub(in super::super) type Headers = Vec<(&'static str, String)>;
