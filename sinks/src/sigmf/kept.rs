//! Collects the kept fields of the frames of a segment.

use daq_core::frame::KeptFields;
use daq_core::sigmf::{Annotation, LABEL_KEPT};

/// Maximum number of annotations with kept fields in a segment's metadata.
const MAX_RUNS: usize = 32_768;

/// Maximum number of bytes of these annotations in the metadata text.
const MAX_BYTES: usize = 24 << 20;

/// Maximum number of bytes of an annotation without its fields, and of one field without its name.
const ENTRY_BYTES: usize = 256;
const FIELD_BYTES: usize = 48;

/// Samples of frames that have the same kept fields.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    count: u64,
    fields: KeptFields,
}

/// The kept fields of a segment.
#[derive(Debug)]
pub(super) struct Kept {
    names: Vec<String>,
    max: usize,
    runs: Vec<Run>,
}

impl Kept {
    /// Creates a list for fields with these names. Allocates all memory that the other methods use, except
    /// [`annotations`](Self::annotations).
    pub(super) fn new(names: &[String]) -> Self {
        let max = max_runs(names);
        Self {
            names: names.to_vec(),
            max,
            runs: Vec::with_capacity(max),
        }
    }

    /// Returns the number of bytes of memory that a list from [`new`](Self::new) uses.
    pub(super) fn memory(names: &[String]) -> usize {
        max_runs(names) * size_of::<Run>()
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }

    /// Returns whether the list may have no room for another frame.
    pub(super) fn is_full(&self) -> bool {
        self.max > 0 && self.runs.len() == self.max
    }

    /// Adds a frame of `count` samples from sample `start` on.
    pub(super) fn add(&mut self, start: u64, count: u64, fields: &KeptFields) {
        if fields.mask() == 0 {
            return;
        }
        let continues = |run: &&mut Run| run.fields == *fields && run.start + run.count == start;
        if let Some(run) = self.runs.last_mut().filter(continues) {
            run.count += count;
        } else if self.runs.len() < self.max {
            self.runs.push(Run {
                start,
                count,
                fields: *fields,
            });
        }
    }

    /// Returns the maximum number of bytes of the annotations in the metadata text after one more frame.
    pub(super) fn json_bytes(&self) -> u64 {
        ((self.runs.len() + 1).min(self.max) * entry_bytes(&self.names)) as u64
    }

    pub(super) fn annotations(&self) -> impl Iterator<Item = Annotation> {
        let names = || self.names.iter().enumerate();
        self.runs.iter().map(move |run| Annotation {
            sample_start: run.start,
            sample_count: Some(run.count),
            label: Some(LABEL_KEPT.into()),
            kept: names()
                .filter_map(|(i, name)| Some((name.clone(), run.fields.get(i)?)))
                .collect(),
            ..Annotation::default()
        })
    }
}

/// Returns the maximum number of annotations with the fields `names`.
fn max_runs(names: &[String]) -> usize {
    if names.is_empty() {
        0
    } else {
        MAX_RUNS.min(MAX_BYTES / entry_bytes(names))
    }
}

/// Returns the maximum number of bytes of one annotation in the metadata text.
fn entry_bytes(names: &[String]) -> usize {
    let field = |name: &String| FIELD_BYTES + name.len();
    ENTRY_BYTES + names.iter().map(field).sum::<usize>()
}
