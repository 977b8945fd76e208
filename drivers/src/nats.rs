//! The source `nats`: receives the frames that a NATS server stores (JetStream).
//!
//! ```text
//!   sink nats of another host ══▶ server: stream ══ messages ══▶ frames in order ──copy──▶ ring
//!                                             ◀══ acknowledged after the frame is in the ring
//! ```
//! The server stores the position of the source under the name `consumer`. A restarted source continues where it stopped; a
//! second source with another name receives all frames too. A full ring stops the server (backpressure).
//!
//! Frames keep number, epoch, time, flags, missing packets and kept fields of their sender. Messages of other programs are
//! frames as well: their payload is the frame, and their sequence number in the stream is the frame's number unless the
//! headers of [`daq_nats::wire`] state one. Without `Daq-Run`, each message is a new frame whatever its number is.
//!
//! # Ledger
//! The unit is the sender's frame. The numbers in the headers show which frames are missing.
//!
//! | event | counted as |
//! |---|---|
//! | a limit of the stream deleted frames before they were received | lost, `expired` |
//! | frames that the server refused, or that are not usable | lost, `wire_gap` |
//! | a message arrives that is not usable: it has wrong headers, another layout than `samples`, a number that no second frame confirms, or its frame does not fit into a slot | rejected and `invalid`; if it is the first one of a sink `nats`, the run fails |
//! | a part of a frame is missing | `incomplete`; the frame is lost |
//! | a message arrives again, because the server or the source restarted | `duplicates`; nothing is lost |
//! | another program begins again with the same `Daq-Run` and numbers | `epochs` |
//! | a frame arrives after it was counted as lost | `late` |
//! | the sender was restarted, or frames of another sender follow | `epochs` |
//! | the connection to the server is established, also after an interruption | `connections` |
//!
//! The source acknowledges a frame after it is in the ring. If daq is killed between these two steps, the next run receives
//! the frame again. Run, epoch and number of a frame together identify it.

mod engine;

use crate::packet::frames::{CHANGE_SLOT, frame_per_slot, sample_layout};
use crate::packet::keep::name_problems;
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, List, Problem, Section};
use daq_core::counts;
use daq_core::entry::{
    EngineRequirements, FrameFacts, Registry, SourceContext, SourceEntry, SourceFacts, SourceSpec,
};
use daq_core::gpu::Writer;
use daq_core::layout::{Layout, Samples};
use daq_core::reorder::Geometry;
use daq_core::source::{Producers, SourceError};
use daq_core::topology::P2pPreference;
use daq_nats::keys::{self as server, Connection, Login, Server, Tls};
use daq_nats::options::{Begin, ConsumerCounters, ConsumerOptions};
use daq_nats::wire::{MAX_PACKETS_PER_FRAME, layout_header};
use daq_nats::{Consumer, NatsError, subject};
use engine::NatsEngine;
use schemars::JsonSchema;
use serde::Deserialize;

/// Default slot size in bytes, if the ring does not configure one.
const PREFERRED: usize = 64 << 10;
/// Maximum number of frames that are received and not acknowledged.
const MAX_WINDOW: u32 = 1 << 16;

counts! {
    /// The counters of a `nats` source besides its ledger.
    struct NatsCounts {
        /// Number of connections to a server.
        connections,
        /// Number of messages that were received.
        messages,
        /// Number of messages that were received again.
        duplicates,
        /// Number of frames that arrived after they were counted as lost.
        late,
        /// Number of frames of which a message is missing.
        incomplete,
        /// Number of messages that are not usable.
        invalid,
    }
}

/// The registry entry of the source.
pub(crate) const ENTRY: SourceEntry = SourceEntry {
    name: "nats",
    summary: "Frames that a NATS server stores (JetStream), from a nats sink or other programs",
    example: r#"[source.NAME]
driver   = "nats"
ring     = "OUTPUT"
stream   = "OBS"              # the stream that a sink nats has created
consumer = "archive"          # the server stores the position of the source under this name
samples  = { type = "float32", channels = 1, rate = "1 kHz" }
# subject = "obs.*.decisions" # receive only these messages of the stream
# begin   = "new"             # a new consumer receives only messages that arrive from now on
# servers = ["127.0.0.1:4222"] # one or several servers of a cluster
# login   = { user = "daq", password_file = "nats.password" }
# tls     = { ca_file = "ca.pem" }
# window  = 256               # maximum number of frames that are received and not acknowledged
# packets_per_frame = 1       # maximum number of packets per frame
# keep = ["feng_id"]          # names of the fields that frames keep
"#,
    schema: |_| schemars::schema_for!(NatsConfig),
    parse,
    recognise: &[],
};

/// The keys of a `nats` source.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NatsConfig {
    /// The servers: host and port, such as `"127.0.0.1:4222"`, or a list of servers of a cluster. daq connects to one of them,
    /// and to another one if it fails. Default `"127.0.0.1:4222"`.
    #[serde(default = "server::default_servers")]
    pub servers: List<Server>,
    /// How daq logs in.
    #[serde(default)]
    pub login: Login,
    /// Encrypts the connection; `tls = {}` checks the server's certificate with the certificates of the system.
    pub tls: Option<Tls>,
    /// The stream to receive from. It must exist.
    pub stream: String,
    /// Receives only messages with these subjects, such as `"obs.*.decisions"`; `*` is one part, `>` all further parts. By
    /// default, all messages of the stream.
    pub subject: Option<String>,
    /// The name under which the server stores the position of this source. A source that starts with the same name continues
    /// after the last frame. Only one source at a time may use a name.
    pub consumer: String,
    /// Where a new consumer begins: with `"all"` messages of the stream (default), or only with `"new"` ones.
    #[serde(default)]
    pub begin: Begin,
    /// Maximum number of frames that are received and not acknowledged, 1 to 65536; default 256. Should be at least the
    /// `window` of the sink.
    #[serde(default = "window")]
    pub window: u32,
    /// Maximum number of packets per frame, as counted by the source on the sending host.
    #[serde(default = "one")]
    pub packets_per_frame: u32,
    /// Names of the fields that frames keep, as on the sending host, in any order.
    #[serde(default)]
    pub keep: Vec<String>,
    /// Sample format of the payload; default: real int8, one channel.
    pub samples: Option<Samples>,
}

const fn window() -> u32 {
    256
}

const fn one() -> u32 {
    1
}

/// Whether `name` can be the name of a stream or consumer.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || ".*>/\\".contains(c))
}

impl NatsConfig {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = server::problems(&self.servers, &self.login, self.tls.as_ref());
        let mut add = |key: &str, message: String, help: &str| {
            problems.push(Problem::at(key, message).help(help));
        };
        for (key, name) in [("stream", &self.stream), ("consumer", &self.consumer)] {
            if !is_name(name) {
                let message = format!("\"{name}\" is not the name of a {key}");
                add(key, message, "use letters, digits, - and _, as in \"OBS\"");
            }
        }
        if let Some((message, help)) = self
            .subject
            .as_deref()
            .and_then(|text| subject::problem(text, true))
        {
            add("subject", message, help);
        }
        if !(1..=MAX_WINDOW).contains(&self.window) {
            add(
                "window",
                format!("`window` must be 1 to {MAX_WINDOW}"),
                "try 256",
            );
        }
        if !(1..=MAX_PACKETS_PER_FRAME).contains(&self.packets_per_frame) {
            let message = format!("`packets_per_frame` must be 1 to {MAX_PACKETS_PER_FRAME}");
            add(
                "packets_per_frame",
                message,
                "use the value that the plan of the sending host shows",
            );
        }
        let names: Vec<_> = self.keep.iter().map(String::as_str).collect();
        problems.extend(name_problems(&names, |i| format!("keep.{i}")));
        problems
    }

    fn server_names(&self) -> String {
        let names: Vec<_> = self.servers.0.iter().map(ToString::to_string).collect();
        names.join(", ")
    }

    /// Returns the options of the client. `layout` is that of the frames, if `samples` declares it.
    fn options(&self, context: &SourceContext, layout: Option<Layout>) -> ConsumerOptions {
        ConsumerOptions {
            name: format!("source {}", context.name),
            connection: Connection {
                servers: self.servers.0.clone(),
                login: self.login.clone(),
                tls: self.tls.clone(),
                directory: context.directory.clone(),
            },
            stream: self.stream.clone(),
            subject: self.subject.clone(),
            consumer: self.consumer.clone(),
            begin: self.begin,
            window: self.window as usize,
            kept: self.keep.clone(),
            layout: layout.map(|layout| layout_header(&layout)),
            slot_bytes: context.geometry.frame_bytes,
            packets_per_frame: self.packets_per_frame,
        }
    }
}

/// A source whose configuration was checked.
#[derive(Debug)]
struct NatsSource {
    config: NatsConfig,
    samples: Samples,
}

fn parse(
    section: &mut Section,
    _: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn SourceSpec>> {
    let config: NatsConfig = section.finish_checked(&[], diagnostics, NatsConfig::problems)?;
    let samples = config.samples.clone().unwrap_or_default();
    Some(Box::new(NatsSource { config, samples }))
}

impl NatsSource {
    /// Two sources with the same position would each receive a part of the frames.
    fn claims(&self) -> Vec<Claim> {
        let NatsConfig {
            consumer, stream, ..
        } = &self.config;
        let servers = self.config.servers.0.iter();
        servers
            .map(|server| {
                Claim::Device(format!(
                    "consumer {consumer} of stream {stream} on the NATS server {server}"
                ))
            })
            .collect()
    }

    fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem> {
        sample_layout(&self.samples, geometry.frame_bytes, CHANGE_SLOT)
    }
}

impl SourceSpec for NatsSource {
    fn facts(&self) -> SourceFacts {
        let config = &self.config;
        let (stream, servers) = (config.stream.clone(), config.server_names());
        let mut notes = server::notes(&config.servers, &config.login, config.tls.as_ref());
        if config.samples.is_none() {
            notes.push("the sample type is not declared, so int8 is assumed".to_owned());
        }
        notes.push(format!(
            "a frame is acknowledged after it is in the ring; up to {} frames are received before",
            config.window
        ));
        SourceFacts {
            claims: self.claims(),
            origins: vec![format!("stream {stream} of the NATS server {servers}")],
            files: server::files(&config.login, config.tls.as_ref()),
            preferred_slot: Some(PREFERRED),
            // Each frame contains the sizes of its packets.
            detected_from: (config.packets_per_frame > 1).then_some("the frames"),
            kept: config.keep.clone(),
            supports_backpressure: true,
            engine: Some(EngineRequirements {
                host_only: Some("the CPU writes the frames of a NATS server".to_owned()),
                ..EngineRequirements::new(&engine::INFO, Writer::Nic, P2pPreference::Auto)
            }),
            counts: vec![NatsCounts::SET],
            notes,
            silence_hint: Box::new(move || {
                format!(
                    "check that a sink publishes to the stream {stream} of {servers}: `nats stream info {stream}` shows its messages"
                )
            }),
            ..SourceFacts::default()
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let geometry = frame_per_slot(self.config.packets_per_frame, slot_bytes)?;
        Ok(FrameFacts::new(geometry, self.layout(&geometry)?))
    }

    fn unavailable(&self) -> Option<String> {
        (!daq_nats::HAS_CLIENT).then(|| NatsError::no_client().why)
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let counts = NatsCounts::of(&context.counts);
        let counters = ConsumerCounters {
            connections: counts.connections,
            messages: counts.messages,
            duplicates: counts.duplicates,
            late: counts.late,
            incomplete: counts.incomplete,
            invalid: counts.invalid,
            rejections: context.rejections.clone(),
        };
        let layout = self.layout(&context.geometry).ok();
        let layout = layout.filter(|_| self.config.samples.is_some());
        let options = self.config.options(context, layout);
        let consumer = Consumer::start(options, counters).map_err(|error| {
            if error.is_configuration {
                SourceError::configuration(error.what, error.why)
            } else {
                SourceError::new(error.what, error.why)
            }
        })?;
        let name = format!("NATS server {}", self.config.server_names());
        Ok(Producers::Engine(Box::new(NatsEngine::new(name, consumer))))
    }
}
