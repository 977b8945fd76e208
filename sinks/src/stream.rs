//! `stream` sends frames to the source `stream` of another host, over plain TCP or with network cards that support RDMA.
//!
//! The sender transfers each frame with its metadata (number, epoch, timestamp, and which packets arrived). The sender
//! either writes into the receiver's slots or sends messages. [`daq_rdma::stream`] describes the protocol, its
//! guarantees and the behaviour without a receiver. This file reads the configuration and opens the network cards. Over
//! TCP, Linux sends each frame directly from the ring, which must be in host memory.
//!
//! # Data path from the ring to the card
//! The card itself reads a ring in host memory. By default, the staging engine first copies a ring on a GPU to host
//! memory, as shown in the plan. With `path = "direct"`, the card reads the GPU's memory instead; if the card cannot do
//! so, the start fails with all reasons. Which of the two paths is faster depends on the card, the GPU and the frame
//! size. `path = "auto"` selects the path that `daq bench rdma --keep` has measured as faster on this machine; without
//! a measurement, it selects the staged path. Reading a GPU's memory has never been tested with a real card.
//!
//! # Without a receiver
//! The sink's `guarantee` determines what happens to frames while no receiver is connected: they wait, or they are
//! dropped and counted. A receiver whose ring is full also counts as disconnected after it has accepted nothing for
//! `timeout`.

use crate::peer::{ConnectionCounts, StallCounts};
use daq_core::check::{FileUse, NamedFile};
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::{Registry, SinkEntry};
use daq_core::ledger::{CountSet, SinkLedger};
use daq_core::ring::Lease;
use daq_core::sink::{
    Placements, RingFrames, Sink, SinkContext, SinkError, SinkFacts, SinkNeeds, SinkSpec,
};
use daq_core::units::{ByteSize, Span};
use daq_rdma::connect::Connection;
use daq_rdma::connect::access::{Secret, TokenKeys};
use daq_rdma::nics::NicNames;
use daq_rdma::stream::Transport;
use daq_rdma::stream::sender::{Counters, Options, Sender};
use daq_rdma::stream::transport::RailKeys;
use daq_rdma::verbs::Service;
use daq_rdma::wire::{KeptNames, Mode, Record, SamplePlaces};
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// The counters of a sink `stream`.
const COUNTS: [&CountSet; 2] = [ConnectionCounts::SET, StallCounts::SET];

/// Registry entry of `stream`.
pub const ENTRY: SinkEntry = SinkEntry {
    name: "stream",
    summary: "Sends frames to a stream source on another host, over TCP or by RDMA",
    example: "\
[sink.NAME]
driver = \"stream\"
# \"tcp\": plain TCP connections; \"rdma\": frames are written by RDMA network cards. The receiver needs the same value.
transport = \"tcp\"
input = \"INPUT\"
# Host and port of the receiver, a source stream.
to = \"receiver.example:7471\"
# Number of TCP connections; the receiver needs as many.
# connections = 1
# Checksums over each frame, which the receiver verifies; only for transport = \"tcp\".
# checksums = false
# A file with the secret that the receiver requires; or, from the environment, the secret itself:
# `token = \"${LINK_TOKEN}\"`.
# token_file = \"link.token\"
# Maximum number of frames in flight per rail.
# depth = 128
# The sink treats a receiver that accepts no frame for this time as unavailable.
# timeout = \"1 s\"
# The following keys are only for transport = \"rdma\".
# The NICs that send, one rail each; the receiver needs as many. \"auto\": the NIC nearest to the ring; [\"emulated\"] needs
# no hardware, and is slow.
# nics = \"auto\"
# Queue pairs per NIC, one rail each.
# queue_pairs = 1
# How the hosts connect: by a plain TCP exchange (\"tcp\") or by rdma_cm (\"cm\").
# connection = \"tcp\"
# \"write\": write into the receiver's slots; \"send\": send messages. The receiver needs the same value.
# mode = \"write\"
# \"rc\": reliable; \"uc\": unreliable writes; \"ud\": unreliable messages of one packet. The receiver needs the same value.
# service = \"rc\"
# How frames of a GPU's ring get to the card: \"staged\" by host memory, or \"direct\"; \"auto\" is the faster one of them,
# where `daq bench rdma --keep` has measured it on this machine, else staged.
# path = \"auto\"
# Payloads and records up to this size are sent inline, inside the work request.
# inline = \"256 B\"
# Maximum size of one write.
# chunk = \"1 MiB\"
",
    schema: |_| schemars::schema_for!(StreamKeys),
    parse,
    recognise: &[],
};

/// The keys of a `stream` sink.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamKeys {
    /// How frames are sent: `"rdma"`, written by RDMA NICs, or `"tcp"`, over plain TCP connections, which needs no special
    /// hardware. The source needs the same value.
    pub transport: Transport,
    /// Host and port of the receiver, which is a source `stream`, as in `"10.0.0.2:7471"`.
    pub to: String,
    /// Only for `"rdma"`: the NICs that send, such as `"mlx5_0"`, `"mlx5_0:PORT"` or `"mlx5_0:PORT@GID"`; frame `n` is sent over rail `n`
    /// modulo the number of rails. `"emulated"` is an emulated NIC for tests. `"auto"`, which must be the only entry,
    /// is the fastest NIC that is up, or with `path = "direct"` the NIC nearest to the GPU of the ring. Default `"auto"`.
    pub nics: Option<NicNames>,
    /// Only for `"rdma"`: number of queue pairs per NIC, each a separate rail; default 1. The total over all NICs must not
    /// exceed 255.
    pub queue_pairs: Option<usize>,
    /// Only for `"tcp"`: number of TCP connections, 1 to 32, over which frames are sent in turn; default 1. The receiver
    /// needs the same number.
    pub connections: Option<usize>,
    /// Only for `"tcp"`: true sends each frame with checksums (CRC-32C), which the receiver verifies. A damaged frame is lost as
    /// `bad_packet`, with the fault `bad-checksum` of the receiver's source. Default false, because the checksums need CPU time
    /// on both hosts. The receiver needs no key.
    pub checksums: Option<bool>,
    /// Only for `"rdma"`: how the hosts connect: `"tcp"`, a plain TCP exchange, or `"cm"`, `rdma_cm`; default `"tcp"`. The
    /// receiver needs the same value.
    pub connection: Option<Connection>,
    /// The shared secret that the receiver requires, 16 to 64 bytes. The secret is sent unencrypted. Needs `connection
    /// = "tcp"`. Other users may be able to read the configuration, so prefer `token_file`.
    pub token: Option<Secret>,
    /// A file that contains only the token, such as `"/etc/daq/link.token"`.
    pub token_file: Option<PathBuf>,
    /// Only for `"rdma"`: `"write"` writes into the receiver's slots; `"send"` sends messages into the receives that the
    /// receiver has posted. Default `"write"`. The receiver needs the same value.
    pub mode: Option<Mode>,
    /// Only for `"rdma"`: `"rc"` is a reliable connection: no frame is lost. `"uc"` uses unreliable writes. `"ud"` uses
    /// unreliable messages of one packet, over one queue pair, without backpressure. Default `"rc"`. The receiver needs the
    /// same value.
    pub service: Option<Service>,
    /// How the card reads frames of a ring on a GPU. `"staged"` first copies the frames to a ring in host memory. With
    /// `"direct"` the card reads the GPU's memory; if the card cannot read it, the start fails. Default `"auto"`
    /// selects the path that `daq bench rdma --keep` has measured as faster for this frame size, GPU and card on this
    /// machine; without a measurement, `"auto"` selects `"staged"`.
    #[serde(default)]
    pub path: PathKey,
    /// Only for `"rdma"`: maximum size of payloads and records that are sent inline, inside the work request. At most 4 KiB
    /// and the NIC's limit. Default `"256 B"`.
    pub inline: Option<ByteSize>,
    /// Only for `"rdma"`: maximum size of one write, at least 4 KiB; default `"1 MiB"`.
    pub chunk: Option<ByteSize>,
    /// Maximum number of frames in flight per rail, 1 to 16384; default 128, or less if the NIC supports less.
    #[serde(default = "depth")]
    pub depth: u32,
    /// Time without an accepted frame after which the sink treats the receiver as unavailable. Default
    /// `"1 s"`, at most `"60 s"`.
    #[serde(default = "timeout")]
    pub timeout: Span,
}

/// Default of [`StreamKeys::inline`].
const INLINE: ByteSize = ByteSize(256);
/// Default of [`StreamKeys::chunk`].
const CHUNK: ByteSize = ByteSize(1 << 20);

const fn depth() -> u32 {
    128
}

const fn timeout() -> Span {
    Span(Duration::from_secs(1))
}

/// Maximum of [`StreamKeys::timeout`], because a stop may wait this long.
const MAX_TIMEOUT: Duration = Duration::from_mins(1);

/// How frames of a ring in GPU memory reach the NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PathKey {
    /// The path that was measured as faster; without a measurement, the staged path.
    #[default]
    Auto,
    /// The card reads the GPU's memory.
    Direct,
    /// Frames are copied to host memory first.
    Staged,
}

impl StreamKeys {
    fn rails(&self) -> RailKeys<'_> {
        RailKeys {
            transport: self.transport,
            nics: self.nics.as_ref(),
            queue_pairs: self.queue_pairs,
            connections: self.connections,
        }
    }

    /// Returns the names of the keys that are set and have a meaning only with RDMA.
    fn rdma_keys(&self) -> Vec<&'static str> {
        let keys = [
            ("connection", self.connection.is_some()),
            ("mode", self.mode.is_some()),
            ("service", self.service.is_some()),
            ("path", self.path == PathKey::Direct),
            ("inline", self.inline.is_some()),
            ("chunk", self.chunk.is_some()),
        ];
        let set = keys.into_iter().filter(|(_, is_set)| *is_set);
        set.map(|(key, _)| key).collect()
    }

    fn connection(&self) -> Connection {
        self.connection.unwrap_or_default()
    }

    fn mode(&self) -> Mode {
        self.mode.unwrap_or_default()
    }

    fn service(&self) -> Service {
        self.service.unwrap_or_default()
    }

    fn token_keys(&self) -> TokenKeys {
        TokenKeys {
            token: self.token.clone(),
            file: self.token_file.clone(),
        }
    }

    fn check(&self) -> Result<(), Problem> {
        let port = self.to.rsplit_once(':').map(|(host, port)| {
            let port = port.parse::<u16>().ok().filter(|port| *port > 0);
            (!host.is_empty()).then_some(port).flatten()
        });
        if port.flatten().is_none() {
            let message = format!("\"{}\" is not a host with a port", self.to);
            return Err(Problem::at("to", message).help("try \"10.0.0.2:7471\""));
        }
        let rails = self.rails();
        let problems = rails.problems(&self.rdma_keys());
        if let Some((key, message, help)) = problems.into_iter().next() {
            return Err(Problem::at(key, message).help(help));
        }
        if self.checksums.is_some() && self.transport == Transport::Rdma {
            let message = "`checksums` has no meaning with transport = \"rdma\"";
            let help =
                "remove `checksums`, because RDMA network cards check every packet themselves";
            return Err(Problem::at("checksums", message).help(help));
        }
        if let Some((message, help)) = self.mode().problem(self.service(), rails.count()) {
            return Err(Problem::at("service", message).help(help));
        }
        let (nics, connection) = (rails.nics(), self.connection());
        if let Some((key, message, help)) = connection.problem(nics.all(), self.service()) {
            return Err(Problem::at(key, message).help(help));
        }
        if let Some((message, help)) = self.token_keys().problem(connection == Connection::Tcp) {
            // The error is not reported at `token`, because the line with the secret must not be printed.
            return Err(Problem::at("token_file", message).help(help));
        }
        if self.timeout.0 > MAX_TIMEOUT {
            let message = "`timeout` must be at most 60 s, because a stop may wait this long";
            return Err(Problem::at("timeout", message).help("try \"1 s\""));
        }
        let (inline, chunk) = (self.inline.unwrap_or(INLINE), self.chunk.unwrap_or(CHUNK));
        if inline.0 > 4096 {
            let message = format!("`inline` must be at most 4 KiB, not {inline}");
            return Err(Problem::at("inline", message).help("try \"256 B\""));
        }
        if chunk.0 < 4096 {
            let message = format!("`chunk` must be at least 4 KiB, not {chunk}");
            return Err(Problem::at("chunk", message).help("try \"1 MiB\""));
        }
        if !(1..=16384).contains(&self.depth) {
            let message = format!("`depth` must be from 1 to 16384, not {}", self.depth);
            return Err(Problem::at("depth", message).help("try 128"));
        }
        Ok(())
    }

    fn options(&self, context: &SinkContext) -> Options {
        let chunk = match self.transport {
            Transport::Rdma => self.chunk.unwrap_or(CHUNK).bytes().unwrap_or(usize::MAX),
            // A frame over TCP is one message.
            Transport::Tcp => usize::MAX,
        };
        Options {
            mode: self.mode(),
            service: self.service(),
            copied: context.copied,
            inline: u32::try_from(self.inline.unwrap_or(INLINE).0).unwrap_or(u32::MAX),
            chunk,
            depth: self.depth,
            burst: context.burst,
            wait: context.wait,
            timeout: self.timeout.0,
            kept: KeptNames::of(&context.kept),
            places: if context.is_layout_maximum {
                SamplePlaces::default()
            } else {
                SamplePlaces::of(&context.layout)
            },
            has_checksums: self.checksums.unwrap_or(false),
            ..Options::new(&self.to, context.slot_bytes, context.packets_per_frame)
        }
    }

    fn address(&self) -> Result<SocketAddr, SinkError> {
        let why = match self.to.to_socket_addrs() {
            Ok(mut addresses) => match addresses.next() {
                Some(address) => return Ok(address),
                None => "the host name has no IP address".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        Err(SinkError::Unavailable {
            what: format!("receiver {}", self.to),
            why: format!(
                "{why}; set `to` to the receiver's IP address, or make the name resolvable on this host"
            ),
        })
    }
}

fn parse(
    section: &mut Section,
    _: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn SinkSpec>> {
    let problems = |keys: &StreamKeys| keys.check().err().into_iter().collect();
    let keys = section.finish_checked(&[], diagnostics, problems)?;
    Some(Box::new(keys))
}

impl SinkSpec for StreamKeys {
    fn facts(&self) -> SinkFacts {
        let file = self.token_file.iter();
        SinkFacts {
            // A receiver accepts only one sender.
            claims: vec![Claim::Device(format!("receiver {}", self.to))],
            files: file
                .map(|file| NamedFile::new("token_file", file, FileUse::Reads))
                .collect(),
            counts: COUNTS.to_vec(),
            accepts: match (self.transport, self.path) {
                (Transport::Tcp, _) | (_, PathKey::Staged) => Placements::Host,
                (_, PathKey::Direct) => Placements::Any,
                (_, PathKey::Auto) => Placements::Measured,
            },
            nic: self.rails().nics().device(),
            burst: Some(self.rails().count() * self.depth as usize),
            ..SinkFacts::default()
        }
    }

    fn needs(&self, frames: RingFrames<'_>) -> Result<SinkNeeds, Problem> {
        let bytes = frames.layout.frame_bytes();
        if let Some((message, help)) = self.mode().too_long(self.service(), bytes) {
            return Err(Problem::at("service", message).help(help));
        }
        Ok(SinkNeeds {
            memory: self.rails().count() * self.depth as usize * Record::bytes(0, 0),
            note: Some(format!(
                "the source stream at {} needs slots of {} and packets_per_frame = {}",
                self.to,
                ByteSize(frames.slot_bytes as u64),
                frames.packets_per_frame.max(1)
            )),
        })
    }

    fn build(&self, context: SinkContext) -> Result<Box<dyn Sink>, SinkError> {
        let address = self.address()?;
        let what = if self.to.parse::<SocketAddr>().is_ok() {
            format!("receiver {}", self.to)
        } else {
            format!("receiver {} ({address})", self.to)
        };
        let rails = self.rails();
        let nics = rails
            .open(context.nic.as_deref())
            .map_err(|error| SinkError::Unavailable {
                what: format!("card {}", error.nic),
                why: error.to_string(),
            })?;
        let token = self.token_keys().read(&context.directory);
        let token = token.map_err(|error| {
            let (what, why) = (what.clone(), error.to_string());
            if daq_core::file::is_configuration(&error) {
                SinkError::Configuration { what, why }
            } else {
                SinkError::Unavailable { what, why }
            }
        })?;
        let connector = self.connection().connector(address).with_token(token);
        let counters = Counters {
            connections: ConnectionCounts::of(&context.counts).connections,
            stalls: StallCounts::of(&context.counts).stalls,
        };
        let options = self.options(&context);
        let sender =
            Sender::new(nics, connector, &context.memory, options, counters).map_err(|error| {
                SinkError::Failed {
                    what: what.clone(),
                    why: error.to_string(),
                }
            })?;
        tracing::info!("sink {}: {}", context.name, sender.path());
        Ok(Box::new(StreamSink {
            sender,
            what,
            ledger: context.ledger,
        }))
    }
}

struct StreamSink {
    sender: Sender,
    what: String,
    ledger: SinkLedger,
}

impl Sink for StreamSink {
    fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError> {
        let sent = self
            .sender
            .send(lease, from)
            .map_err(|unavailable| SinkError::Away {
                why: unavailable.to_string(),
                what: self.what.clone(),
            })?;
        let bytes: usize = (from..from + sent).map(|i| lease.length(i)).sum();
        self.ledger.frames.add(sent as u64);
        self.ledger.bytes.add(bytes as u64);
        Ok(sent)
    }

    fn tick(&mut self) -> Result<(), SinkError> {
        self.sender.tick();
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.sender.finish();
        Ok(())
    }
}
