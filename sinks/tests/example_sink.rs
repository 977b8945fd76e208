//! The sink that `CONTRIBUTING.md` shows as an example.

use crate::support::{Feed, Sent, context, layout};
use daq_core::config::{Diagnostics, Document};
use daq_core::entry::Registry;
use daq_core::frame::FrameMeta;
use daq_core::layout::Scalar;

use daq_core::entry::SinkEntry;
use daq_core::ledger::SinkLedger;
use daq_core::ring::Lease;
use daq_core::sink::{Sink, SinkContext, SinkError, SinkSpec};
use schemars::JsonSchema;
use serde::Deserialize;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

/// What daq needs to know of the sink.
pub const ENTRY: SinkEntry = SinkEntry::of::<IndexKeys>(
    "index",
    "Writes one line of text per frame",
    "\
[sink.NAME]
driver = \"index\"
input = \"INPUT\"
# The file to write.
path = \"index.txt\"
",
);

/// The keys of an `index` sink. These comments become the reference page.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IndexKeys {
    /// The file to write; relative paths start from the working directory.
    pub path: PathBuf,
}

impl SinkSpec for IndexKeys {
    fn build(&self, context: SinkContext) -> Result<Box<dyn Sink>, SinkError> {
        let path = context.directory.join(&self.path);
        let file = File::create(&path).map_err(|error| failed(&path, &error))?;
        let ledger = context.ledger;
        Ok(Box::new(Index {
            path,
            file,
            lines: Vec::with_capacity(16 << 10),
            ledger,
        }))
    }
}

struct Index {
    path: PathBuf,
    file: File,
    lines: Vec<u8>,
    ledger: SinkLedger,
}

fn failed(path: &std::path::Path, error: &std::io::Error) -> SinkError {
    SinkError::Failed {
        what: path.display().to_string(),
        why: format!("cannot write: {error}"),
    }
}

impl Sink for Index {
    fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError> {
        self.lines.clear();
        let mut bytes = 0;
        for i in from..lease.len() {
            let meta = *lease.frame(i).meta();
            writeln!(
                self.lines,
                "{} {} {}",
                meta.epoch, meta.sequence, meta.length
            )
            .map_err(|error| failed(&self.path, &error))?;
            bytes += meta.length as u64;
        }
        // One system call per batch.
        self.file
            .write_all(&self.lines)
            .map_err(|error| failed(&self.path, &error))?;
        let frames = lease.len() - from;
        self.ledger.frames.add(frames as u64);
        self.ledger.bytes.add(bytes);
        Ok(frames)
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.file
            .sync_all()
            .map_err(|error| failed(&self.path, &error))
    }
}

#[test]
fn example_sink_writes_one_line_per_frame() {
    let dir = tempfile::tempdir().unwrap();
    let mut diagnostics = Diagnostics::new();
    let text = "[sink.n]\npath = \"index.txt\"\n";
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    let mut section = document.sections("sink").remove(0);
    let spec = (ENTRY.parse)(&mut section, &Registry::default(), &mut diagnostics).unwrap();
    let context = context(dir.path(), "n", layout(Scalar::Int8, false, 1, 64), 0, 0);
    let ledger = context.ledger.clone();
    let mut sink = spec.build(context).unwrap();
    let frames: Vec<_> = (0..3)
        .map(|n| Sent {
            meta: FrameMeta::whole(n, 64),
            bytes: vec![1; 64],
            present: Vec::new(),
        })
        .collect();
    Feed::new(8, 64, 0).give(&mut *sink, &frames);
    sink.finish().unwrap();
    assert_eq!(ledger.frames.get(), 3);
    let text = std::fs::read_to_string(dir.path().join("index.txt")).unwrap();
    assert_eq!(text, "0 0 64\n0 1 64\n0 2 64\n");
}

#[test]
fn contributing_shows_this_sink() {
    let guide = include_str!("../../CONTRIBUTING.md");
    let (_, block) = guide.split_once("```rust\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    assert!(
        include_str!("example_sink.rs").contains(block),
        "the example in CONTRIBUTING.md differs from this file"
    );
}
