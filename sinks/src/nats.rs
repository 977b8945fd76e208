//! `nats` publishes frames as messages of a NATS server with JetStream, which stores them.
//!
//! ```text
//!   frame ──copy──▶ window ── messages ══▶ server: stream ──▶ source `nats` of other hosts, other programs
//!                     ◀══ acknowledgements ══
//! ```
//! For reduced data: spectra, decisions of a trigger, state. Each frame is one message, or several messages if it is larger
//! than the server accepts. The headers of a message contain the metadata of the frame ([`daq_nats::wire`]).
//!
//! # Server failures
//! A frame leaves the window when the server has acknowledged its messages. After an interruption, daq publishes the other
//! messages again, with the same `Nats-Msg-Id`; the server stores each id once. So a restarted server loses no
//! acknowledged frame and stores none twice, unless the interruption is longer than `duplicate_window`.
//!
//! While no server is available or the stream is full, the window fills. Then `guarantee` determines what happens to the
//! frames: they wait in the ring, or they are dropped and counted.
//!
//! # Ledger
//! `published = acknowledged + refused + unacknowledged`, in frames. `refused` frames also count as `lost`: the server refused
//! them, or did not acknowledge them before the end of the run.

pub(crate) mod counts;
mod keys;
mod publish;

use crate::peer::{ConnectionCounts, StallCounts};
use counts::NatsCounts;
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::{Registry, SinkEntry};
use daq_core::ledger::CountSet;
use daq_core::sink::{RingFrames, Sink, SinkContext, SinkError, SinkFacts, SinkNeeds, SinkSpec};
use daq_core::units::ByteSize;
use daq_nats::NatsError;
use daq_nats::keys::{self as server, Connection};
use daq_nats::options::{PublisherCounters, PublisherOptions, StreamOptions};
use daq_nats::subject::{Names, expand, pattern};
use daq_nats::wire::{MAX_PACKETS_PER_FRAME, layout_header};
use daq_nats::{Publisher, run_name};
use keys::NatsKeys;
use publish::NatsSink;

/// The counters of a sink `nats`.
const COUNTS: [&CountSet; 3] = [ConnectionCounts::SET, StallCounts::SET, NatsCounts::SET];

/// Registry entry of `nats`.
pub(crate) const ENTRY: SinkEntry = SinkEntry {
    name: "nats",
    summary: "Publishes frames as messages that a NATS server stores (JetStream)",
    example: "\
[sink.NAME]
driver = \"nats\"
input = \"INPUT\"
# The subject of the messages. Placeholders: {run} (start time and a random number), {pipeline}, {ring}, {sink}.
subject = \"obs.{run}.decisions\"
# The stream that stores the messages; created with the limits below if it does not exist.
stream = \"OBS\"
# Subjects that the stream stores; default: those of this sink.
# subjects = [\"obs.>\"]
# \"file\" survives a restart of the server; \"memory\" does not.
# storage = \"file\"
# Number of servers of a cluster that store each message.
# replicas = 3
# The server deletes older messages, or refuses new ones (discard = \"new\"), beyond these limits.
# max_age = \"168 h\"
# max_bytes = \"10 GiB\"
# max_messages = 1000000
# discard = \"old\"
# Time in which the server recognises messages that are published again.
# duplicate_window = \"2 min\"
# One or several servers of a cluster.
# servers = [\"127.0.0.1:4222\"]
# Secrets are in files: user and password_file, or token_file, or credentials_file.
# login = { user = \"daq\", password_file = \"nats.password\" }
# Encrypts the connection.
# tls = { ca_file = \"ca.pem\" }
# Maximum number of frames that the server has not acknowledged.
# window = 256
# Maximum payload of a message; default: as much as the server accepts.
# chunk = \"512 KiB\"
# Time without an acknowledgement after which messages are published again.
# timeout = \"5 s\"
",
    schema: |_| schemars::schema_for!(NatsKeys),
    parse,
    recognise: &[],
};

/// Maximum memory of the default window in bytes.
const DEFAULT_WINDOW_BYTES: usize = 64 << 20;
/// Maximum number of frames of the default window.
const DEFAULT_WINDOW: usize = 256;

fn parse(
    section: &mut Section,
    _: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn SinkSpec>> {
    let keys = section.finish_checked(&[], diagnostics, NatsKeys::problems)?;
    Some(Box::new(keys))
}

impl NatsKeys {
    /// Returns the number of frames of the window.
    fn frames(&self, slot_bytes: usize) -> usize {
        let default = (DEFAULT_WINDOW_BYTES / slot_bytes.max(1)).clamp(4, DEFAULT_WINDOW);
        self.window.map_or(default, |window| window as usize)
    }

    fn stream_options(&self, names: &Names) -> StreamOptions {
        let own = vec![self.subject.clone()];
        let subjects = self.subjects.as_ref().unwrap_or(&own).iter();
        StreamOptions {
            name: self.stream.clone(),
            subjects: subjects.map(|template| pattern(template, names)).collect(),
            has_subjects: self.subjects.is_some(),
            storage: self.storage,
            replicas: self.replicas,
            max_age: self.max_age.map(|age| age.0),
            max_bytes: self.max_bytes.map(|bytes| bytes.0),
            max_messages: self.max_messages,
            discard: self.discard,
            duplicate_window: self.duplicate_window.map(|window| window.0),
        }
    }
}

impl SinkSpec for NatsKeys {
    fn facts(&self) -> SinkFacts {
        SinkFacts {
            files: server::files(&self.login, self.tls.as_ref()),
            counts: COUNTS.to_vec(),
            ..SinkFacts::default()
        }
    }

    fn needs(&self, frames: RingFrames<'_>) -> Result<SinkNeeds, Problem> {
        let frame = ByteSize(frames.layout.frame_bytes() as u64);
        if let Some(max) = self.max_bytes.filter(|max| max.0 < frame.0) {
            let message = format!(
                "`max_bytes` is {max}, but a frame has {frame} and its headers, so the stream would not keep a whole frame"
            );
            return Err(Problem::at("max_bytes", message)
                .help("raise `max_bytes` to the frames that the stream must keep"));
        }
        let (slot, window) = (frames.slot_bytes, self.frames(frames.slot_bytes));
        let mut notes = vec![format!(
            "a NATS server with JetStream at {}; up to {window} frames of {} wait for its acknowledgements",
            self.server_names(),
            ByteSize(slot as u64)
        )];
        notes.extend(server::notes(&self.servers, &self.login, self.tls.as_ref()));
        Ok(SinkNeeds {
            memory: window * slot,
            note: Some(notes.join("; ")),
        })
    }

    fn unavailable(&self) -> Option<String> {
        (!daq_nats::HAS_CLIENT).then(|| NatsError::no_client().why)
    }

    fn build(&self, context: SinkContext) -> Result<Box<dyn Sink>, SinkError> {
        if context.packets_per_frame > MAX_PACKETS_PER_FRAME {
            return Err(SinkError::Configuration {
                what: format!("frames with {} packets", context.packets_per_frame),
                why: format!(
                    "the sink supports at most {MAX_PACKETS_PER_FRAME} packets per frame; use larger packets or shorter frames"
                ),
            });
        }
        let run = run_name();
        let names = Names {
            run: run.clone(),
            pipeline: context.pipeline.clone(),
            ring: context.ring.clone(),
            sink: context.name.clone(),
        };
        let options = PublisherOptions {
            name: format!("sink {}", context.name),
            connection: Connection {
                servers: self.servers.0.clone(),
                login: self.login.clone(),
                tls: self.tls.clone(),
                directory: context.directory.clone(),
            },
            subject: expand(&self.subject, &names),
            stream: self.stream_options(&names),
            run: expand("{run}.{sink}", &names),
            layout: layout_header(&context.layout),
            kept: context.kept.clone(),
            window: self.frames(context.slot_bytes),
            chunk: self.chunk.and_then(ByteSize::bytes),
            slot_bytes: context.slot_bytes,
            packets_per_frame: context.packets_per_frame,
            timeout: self.timeout.0,
        };
        let ledger = context.ledger;
        let counts = NatsCounts::of(&context.counts);
        let counters = PublisherCounters {
            published: counts.published,
            acknowledged: counts.acknowledged,
            refused: counts.refused,
            lost: ledger.lost.clone(),
            repeated: counts.repeated,
            deduplicated: counts.deduplicated,
            connections: ConnectionCounts::of(&context.counts).connections,
        };
        let stalls = StallCounts::of(&context.counts).stalls;
        let (subject, stream) = (options.subject.clone(), self.stream.clone());
        let publisher = Publisher::start(options, counters).map_err(failed)?;
        tracing::info!(
            "sink {}: publishes to \"{subject}\", stored in the stream {stream}",
            context.name
        );
        Ok(Box::new(NatsSink::new(
            publisher,
            ledger,
            stalls,
            context.wait,
        )))
    }
}

fn failed(error: NatsError) -> SinkError {
    let (what, why) = (error.what, error.why);
    if error.is_configuration {
        SinkError::Configuration { what, why }
    } else {
        SinkError::Unavailable { what, why }
    }
}
