//! The source `process`: frames of another process on the same machine, such as a Python program.
//!
//! The process connects to the attach server of the pipeline, requests `produce`, and passes a file in memory, the *inbox*.
//! It writes frames into the slots of the inbox and commits them. The source copies each committed frame into its ring and
//! acknowledges it, so that the process can use the slot again. One process at a time can produce; when it leaves, another
//! one can continue.
//!
//! # Ledger
//! A committed frame is expected, unless it is rejected. It is delivered, or lost to `ring_full` if no slot was free and
//! `backpressure` is false. Frames that were committed before the process ended or was killed are delivered. A process that
//! commits a slot that its inbox does not have, or does not read acknowledgements, is disconnected. Then the commits in its
//! last packet that were not copied yet are `rejected`. Each process opens an epoch.

mod filler;
mod inlet;

use crate::packet::frames::sample_layout;
use daq_core::config::Problem;
use daq_core::entry::{FrameFacts, SourceContext, SourceEntry, SourceFacts, SourceSpec};
use daq_core::layout::Samples;
use daq_core::reorder::Geometry;
use daq_core::source::{Producers, SourceError};
use daq_core::units::ByteSize;
use filler::ProcessFiller;
use inlet::Connections;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;

/// The registry entry of the source.
pub(crate) const ENTRY: SourceEntry = SourceEntry {
    name: "process",
    summary: "Frames of another process on this machine, such as a Python program",
    example: EXAMPLE,
    schema: |_| schemars::schema_for!(ProcessConfig),
    parse: |section, _, diagnostics| {
        let config: ProcessConfig =
            section.finish_checked(&[], diagnostics, ProcessConfig::problems)?;
        Some(Box::new(ProcessSource::new(config)))
    },
    recognise: &[],
};

const EXAMPLE: &str = r#"[source.NAME]
driver  = "process"           # Python: daq.produce("NAME"); see "The attach protocol"
ring    = "OUTPUT"
samples = { type = "float32", channels = 1, rate = "1 kHz" }
frame   = "4 KiB"             # bytes of each frame
# backpressure = false        # do not wait for free slots: drop frames and count `ring_full`
"#;

/// Number of frames open at the same time. Frames arrive in order, each as a whole.
const WINDOW: usize = 2;

/// The keys of the source.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ProcessConfig {
    /// Type and layout of the samples of a frame.
    #[serde(default)]
    samples: Samples,
    /// Number of bytes of each frame. Default: the slot size of the ring.
    frame: Option<ByteSize>,
    /// Whether the process waits for free slots (true). If false, frames without a free slot are counted as `ring_full`.
    #[serde(default = "enabled")]
    backpressure: bool,
}

const fn enabled() -> bool {
    true
}

/// The size of frames if neither the source nor its ring defines it.
const DEFAULT_FRAME: ByteSize = ByteSize(64 << 10);

impl ProcessConfig {
    fn problems(&self) -> Vec<Problem> {
        let is_zero = self.frame.is_some_and(|frame| frame.0 == 0);
        let problem = is_zero.then(|| {
            Problem::at("frame", "frames must have at least one byte")
                .help("write a size such as \"4 KiB\"")
        });
        problem.into_iter().collect()
    }
}

/// A configured source.
struct ProcessSource {
    config: ProcessConfig,
    connections: Arc<Connections>,
}

impl ProcessSource {
    fn new(config: ProcessConfig) -> Self {
        Self {
            config,
            connections: Arc::default(),
        }
    }
}

impl SourceSpec for ProcessSource {
    fn facts(&self) -> SourceFacts {
        let frame = self.config.frame.unwrap_or(DEFAULT_FRAME);
        SourceFacts {
            origins: vec!["a process that attaches".to_owned()],
            preferred_slot: usize::try_from(frame.0).ok(),
            supports_backpressure: self.config.backpressure,
            silence_hint: Box::new(|| {
                "check that the producing process runs; the log contains its connections".to_owned()
            }),
            inlet: Some(self.connections.clone()),
            ..SourceFacts::default()
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let frame = match self.config.frame {
            Some(frame) => usize::try_from(frame.0).unwrap_or(usize::MAX),
            None => slot_bytes,
        };
        if frame > slot_bytes {
            return Err(Problem::at(
                "frame",
                format!("frames of {frame} bytes do not fit into slots of {slot_bytes} bytes"),
            )
            .help("increase `slot` of the ring, or remove it"));
        }
        let help = "choose a `frame` that holds whole samples of all channels";
        let layout = sample_layout(&self.config.samples, frame, help)?;
        let geometry = Geometry {
            window: WINDOW,
            ..Geometry::new(1, frame)
        };
        Ok(FrameFacts::new(geometry, layout))
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let receiver = self.connections.open().ok_or_else(|| {
            SourceError::new(
                &*context.name,
                "the source is built twice; this is a defect in daq",
            )
        })?;
        let filler = ProcessFiller::new(
            context.name.clone(),
            context.geometry.frame_bytes,
            self.config.backpressure,
            self.connections.clone(),
            receiver,
        );
        Ok(Producers::Fillers(vec![Box::new(filler)]))
    }
}
