//! A sink: one line of text per frame.

use daq_core::entry::SinkEntry;
use daq_core::ledger::SinkLedger;
use daq_core::ring::Lease;
use daq_core::sink::{Sink, SinkContext, SinkError, SinkSpec};
use schemars::JsonSchema;
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

/// The registry entry of the sink.
pub const ENTRY: SinkEntry = SinkEntry::of::<IndexKeys>(
    "index",
    "Writes one line of text per frame",
    "\
[sink.NAME]
driver = \"index\"
input  = \"INPUT\"
path   = \"index.txt\"
",
);

/// The keys of an `index` sink.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct IndexKeys {
    /// The file to write; relative paths start from the working directory.
    path: PathBuf,
}

impl SinkSpec for IndexKeys {
    fn build(&self, context: SinkContext) -> Result<Box<dyn Sink>, SinkError> {
        let file = File::create(context.directory.join(&self.path)).map_err(failed)?;
        let lines = Vec::with_capacity(16 << 10);
        Ok(Box::new(Index { file, lines, ledger: context.ledger }))
    }
}

struct Index {
    file: File,
    lines: Vec<u8>,
    ledger: SinkLedger,
}

fn failed(error: io::Error) -> SinkError {
    let (what, why) = ("the index file".to_owned(), format!("cannot write: {error}"));
    SinkError::Failed { what, why }
}

impl Sink for Index {
    fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError> {
        self.lines.clear();
        for i in from..lease.len() {
            let frame = lease.frame(i);
            let first = frame.bytes().unwrap_or_default().first_chunk();
            let first = first.map_or(0, |bytes| i16::from_le_bytes(*bytes));
            writeln!(self.lines, "{} {first}", frame.meta().sequence).map_err(failed)?;
            self.ledger.bytes.add(frame.meta().length as u64);
        }
        // One system call per batch.
        self.file.write_all(&self.lines).map_err(failed)?;
        self.ledger.frames.add((lease.len() - from) as u64);
        Ok(lease.len() - from)
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.file.sync_all().map_err(failed)
    }
}
