//! Payloads of packets, and recordings of them.

use crate::{Daq, Random, files};
use serde_json::Value;
use std::ops::Range;
use std::path::Path;

/// Fills `bytes` with the payload of packet `n` of stream `stream`: never zero, so that it differs from fill values.
pub fn payload(stream: u64, n: u64, bytes: &mut [u8]) {
    let mut random = Random(stream.wrapping_mul(0x1_0000_0001).wrapping_add(n << 8));
    for chunk in bytes.chunks_mut(8) {
        let word = (random.below(u64::MAX) | 0x0101_0101_0101_0101).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// The output of a file sink, all segments in order.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The data.
    pub data: Vec<u8>,
    /// Continuous ranges: bytes of the data, and the index of the first byte in the stream.
    pub runs: Vec<(Range<usize>, u64)>,
    /// Byte ranges that are annotated as missing, in order, with adjacent ranges joined.
    pub missing: Vec<Range<usize>>,
    /// Number of frames annotated as missing between others.
    pub frames: u64,
}

impl Recording {
    /// Reads the recording of one-byte samples named `stem` in `dir`.
    pub fn read(dir: &Path, stem: &str) -> Self {
        let mut all = Self::default();
        let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        for path in files(dir, ".sigmf-meta") {
            if !path
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(&format!("{stem}-"))
            {
                continue;
            }
            let meta: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let data = std::fs::read(path.with_extension("sigmf-data")).unwrap();
            let at = all.data.len();
            let captures = meta["captures"].as_array().unwrap();
            for (i, capture) in captures.iter().enumerate() {
                let start = number(&capture["core:sample_start"]);
                let end = captures
                    .get(i + 1)
                    .map_or(data.len(), |next| number(&next["core:sample_start"]));
                all.runs.push((
                    at + start..at + end,
                    capture["core:global_index"].as_u64().unwrap(),
                ));
            }
            for note in meta["annotations"].as_array().unwrap() {
                let is_gap = note["core:label"] == "gap";
                assert!(is_gap || note["core:label"] == "missing", "{note}");
                all.frames += note
                    .get("daq:missing_frames")
                    .map_or(0, |frames| frames.as_u64().unwrap());
                let start = at + number(&note["core:sample_start"]);
                let end = start + number(&note["core:sample_count"]);
                if is_gap {
                    continue;
                }
                match all.missing.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ if end > start => all.missing.push(start..end),
                    _ => {}
                }
            }
            all.data.extend_from_slice(&data);
        }
        all
    }
}

/// Reads the recording of the file sink `sink` in the directory `out`.
pub fn recording(daq: &Daq, sink: &str) -> Recording {
    Recording::read(&daq.path("out"), sink)
}
