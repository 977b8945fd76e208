//! The source `stream`: receives frames that the sink `stream` of another host writes into the slots of a ring, with RDMA
//! NICs or over plain TCP.
//!
//! ```text
//!   sink stream ══ rails: queue pairs, or connections ═══▶ slots of a ring, in host memory or on a GPU
//!       └────── connects ───▶ `listen`                   credits back: the sender writes only into free slots
//! ```
//! The guarantees across interruptions are described in [`daq_rdma::stream::receiver`]. GPU memory is registered with the
//! NICs by dma-buf or by nvidia-peermem. If both are refused, frames are staged in host memory, and the reasons are
//! logged.
//! These paths are tested with simulated responses. Streams were tested on emulated NICs and soft-RoCE only, not yet on
//! a ConnectX.
//!
//! # Ledger
//! The unit is the sender's frame.
//!
//! | event | counted as |
//! |---|---|
//! | the connection is interrupted, and frames can be sent again | nothing is lost |
//! | frames cannot be sent again, or are lost in transit (`uc`, `ud`) | lost, `wire_gap` |
//! | a frame over TCP does not match its checksums (`checksums = true` in the sink) | lost, `bad_packet`, with the fault `bad-checksum`; the connection continues |
//! | the sender was restarted, or it starts a new epoch | `epochs` |
//! | the sender or its NIC violates the protocol | the fault with its name; the connection is closed |
//! | a sender is rejected because its address is not in `from` or its token differs | `refused` |
//! | a sender connects, and its connection ends | `links`, `links_ended` |
//! | a sender ends the stream intentionally | no fault; sent frames that never arrived are lost, `wire_gap` |
//! | a sender ends the stream intentionally with `connection = "cm"`, which cannot signal the end | `peer-gone` |
//! | no sender is connected | nothing: the source waits |

use crate::packet::frames::{CHANGE_SLOT, frame_per_slot, sample_layout};
use crate::packet::keep::name_problems;
use crate::sender::{self, Allowed};
use daq_core::check::{FileUse, NamedFile};
use daq_core::claim::Claim;
use daq_core::config::List;
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::counts;
use daq_core::entry::{
    EngineRequirements, FrameFacts, Registry, SourceContext, SourceEntry, SourceFacts, SourceSpec,
};
use daq_core::gpu::Writer;
use daq_core::layout::Samples;
use daq_core::source::{Producers, SourceError};
use daq_core::topology::P2pPreference;
use daq_core::topology::nic::is_emulated_nic;
use daq_core::units::{ByteSize, counted};
use daq_rdma::connect::access::{Access, Allows, Secret, TokenKeys};
use daq_rdma::connect::{Connection, Listener};
use daq_rdma::nics::NicNames;
use daq_rdma::stream::Transport;
use daq_rdma::stream::receiver::{self, Counters, Options, Receiver};
use daq_rdma::stream::transport::RailKeys;
use daq_rdma::verbs::Service;
use daq_rdma::wire::{KeptNames, MAX_PACKETS_PER_FRAME, Mode, SamplePlaces};
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Default slot size in bytes, if the ring does not configure one.
const PREFERRED: usize = 1 << 20;
/// Maximum payload of a packet in bytes, limited by the size of a datagram.
const MAX_DATAGRAM: usize = 4096;

counts! {
    /// The counters of a `stream` source besides its ledger. A sender is connected if `links` is one more than
    /// `links_ended`.
    struct StreamCounts {
        /// Number of links that were established.
        links,
        /// Number of links that have ended.
        links_ended,
        /// Number of connections that were refused.
        refused,
    }
}

/// The registry entry of the source.
pub(crate) const ENTRY: SourceEntry = SourceEntry {
    name: "stream",
    summary: "Frames from a stream sink on another host, over TCP or by RDMA",
    example: r#"[source.NAME]
driver    = "stream"
transport = "tcp"             # plain TCP connections; "rdma": frames are written by RDMA network cards; must be the same
                              # for the sink
ring      = "OUTPUT"
listen    = "0.0.0.0:7471"    # the sink stream of the sending host connects to this address
samples   = { type = "int16", complex = true, channels = 1, rate = "100 MHz" }
# from       = ["10.0.0.5", "10.1.0.0/16"]  # accept only these senders
# token_file = "link.token"   # shared secret, the same for the sink; create a file with `openssl rand -hex 32`
# connections = 1             # number of TCP connections; as many as the sink has
# packets_per_frame = 1       # maximum number of packets per frame
# keep = ["feng_id"]          # names of the fields that frames keep, as on the sending host
# path       = "staged"       # copy frames for a GPU through host memory, which transport = "tcp" always does
# The following keys are only for transport = "rdma":
# nics       = "auto"         # the NIC nearest to the ring; ["mlx5_0", "mlx5_1"]: one rail per NIC, as many rails as the
                              # sink has; ["emulated"]: an emulated NIC, which needs no hardware but is slow
# queue_pairs = 1             # number of queue pairs per NIC; each queue pair is a rail
# connection = "cm"           # exchange addresses with rdma_cm instead of TCP; must be the same for the sink
# mode       = "send"         # send messages instead of writing into the slots; must be the same for the sink
# service    = "rc"           # "rc": reliable, "uc": unreliable writes, "ud": unreliable messages of one packet; must be
                              # the same for the sink
# relaxed_ordering = true     # allow the NIC's payload writes to overtake each other on the bus
"#,
    schema: |_| schemars::schema_for!(StreamConfig),
    parse,
    recognise: &[],
};

/// The keys of a `stream` source.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamConfig {
    /// How frames are received: `"rdma"`, written by RDMA NICs, or `"tcp"`, over plain TCP connections to `listen`, which
    /// needs no special hardware. The sink needs the same value.
    pub transport: Transport,
    /// Address and port to accept senders on, as in `"0.0.0.0:7471"`. Every host that can reach this address may send, unless
    /// `from` or a token excludes the host.
    pub listen: SocketAddr,
    /// Senders that may connect: addresses, networks, or addresses with a port, such as `["10.0.0.5", "10.1.0.0/16"]`; by
    /// default every sender. Other senders are refused when they connect, counted as `refused`, and logged.
    pub from: Option<List<Allowed>>,
    /// A secret of 16 to 64 bytes. The sink must have the same token. Without a token, every sender may connect. The token is
    /// sent unencrypted. It requires `connection = "tcp"`. Prefer `token_file`, because other users may read the configuration.
    pub token: Option<Secret>,
    /// A file that contains only the token, such as `"/etc/daq/link.token"`.
    pub token_file: Option<PathBuf>,
    /// Only for `"rdma"`: the NICs that receive, such as `"mlx5_0"`, `"mlx5_0:PORT"` or `"mlx5_0:PORT@GID"`; each is one rail, and the sender
    /// must have the same number of rails. `"emulated"` is an emulated NIC for tests; `"emulated:ADDRESS"` listens on ADDRESS,
    /// for senders on other hosts. `"auto"`, which must be the only entry, is the NIC nearest to the GPU of the ring, or, for a
    /// ring in host memory, the fastest that is up. Default `"auto"`.
    pub nics: Option<NicNames>,
    /// Only for `"rdma"`: number of queue pairs per NIC, each a separate rail; default 1. The total over all NICs must
    /// not exceed 255.
    pub queue_pairs: Option<usize>,
    /// Only for `"tcp"`: number of TCP connections, 1 to 32, over which frames are sent in turn; default 1. The sender needs
    /// the same number.
    pub connections: Option<usize>,
    /// Only for `"rdma"`: how the hosts connect: `"tcp"`, a plain TCP exchange, or `"cm"`, `rdma_cm`; default `"tcp"`. The
    /// sender needs the same value.
    pub connection: Option<Connection>,
    /// Only for `"rdma"`: `"write"`: the sender writes into the slots; `"send"`: it sends messages into posted receives;
    /// default `"write"`. The sender needs the same value.
    pub mode: Option<Mode>,
    /// Only for `"rdma"`: `"rc"`: reliable, no frame is lost and a full ring applies backpressure to the sender; `"uc"`:
    /// unreliable writes; `"ud"`: unreliable messages of one packet, over one queue pair; default `"rc"`. The sender needs
    /// the same value.
    pub service: Option<Service>,
    /// How frames reach a ring in GPU memory: `"auto"`, directly if the topology allows it and the test at startup
    /// succeeds; `"direct"`, directly even if the topology seems not to allow it; `"staged"`, through host memory.
    #[serde(default)]
    pub path: P2pPreference,
    /// Maximum number of packets per frame, at least 1, as counted by the source on the sending host. The bitmap of arrived
    /// packets is transferred with the frame.
    #[serde(default = "one_packet")]
    pub packets_per_frame: u32,
    /// Names of the fields that frames keep: those of `keep` in the format of the source on the sending host, in the same
    /// order. Without names, the fields are not transferred.
    #[serde(default)]
    pub keep: Vec<String>,
    /// Only for `"rdma"`: true allows PCIe to reorder the NIC's payload writes (relaxed ordering). Records and credits are never reordered.
    #[serde(default)]
    pub relaxed_ordering: bool,
    /// CPU core of the source's thread; default: any core.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// Sample format of the payload; default: real int8, one channel.
    pub samples: Option<Samples>,
}

const fn one_packet() -> u32 {
    1
}

impl StreamConfig {
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
            ("path", self.path == P2pPreference::Direct),
            ("relaxed_ordering", self.relaxed_ordering),
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

    /// Returns every problem of the configuration, each with a fix.
    fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut report = |key: &str, message: String, help: &str| {
            found.push(Problem::at(key, message).help(help));
        };
        let rails = self.rails();
        for (key, message, help) in rails.problems(&self.rdma_keys()) {
            report(key, message, &help);
        }
        let nics = rails.nics();
        let nics = nics.all();
        let emulated = nics.iter().filter(|nic| is_emulated_nic(nic)).count();
        if emulated > 0 && emulated < nics.len() {
            let help = "name only hardware NICs or only emulated NICs";
            report(
                "nics",
                "hardware and emulated NICs cannot be combined".to_owned(),
                help,
            );
        }
        if let Some((key, message, help)) = self.connection().problem(nics, self.service()) {
            report(key, message.to_owned(), help);
        }
        if let Some((message, help)) = self.mode().problem(self.service(), rails.count()) {
            report("service", message.to_owned(), help);
        }
        if self.packets_per_frame > MAX_PACKETS_PER_FRAME {
            let message = format!(
                "`packets_per_frame` is {}; the maximum is {MAX_PACKETS_PER_FRAME}",
                self.packets_per_frame
            );
            report(
                "packets_per_frame",
                message,
                "set the number of packets per frame of the sink's ring",
            );
        } else if self.packets_per_frame == 0 {
            report(
                "packets_per_frame",
                "`packets_per_frame` must be at least 1".to_owned(),
                "set 1 for frames that do not consist of packets",
            );
        }
        if let Some((message, help)) = self
            .token_keys()
            .problem(self.connection() == Connection::Tcp)
        {
            // The problem does not point to `token`, because then the line with the secret would be printed.
            report("token_file", message.to_owned(), help);
        }
        if self.cores.len() > 1 {
            let message = format!(
                "{} cores are given, but the source has one thread",
                self.cores.len()
            );
            report("cores", message, "set one core");
        }
        let names: Vec<_> = self.keep.iter().map(String::as_str).collect();
        found.extend(name_problems(&names, |i| format!("keep.{i}")));
        found.extend(sender::problems(self.from.as_ref(), &[self.listen]));
        found
    }

    fn token_keys(&self) -> TokenKeys {
        TokenKeys {
            token: self.token.clone(),
            file: self.token_file.clone(),
        }
    }

    /// Returns the listener, which rejects peers without access.
    fn listener(&self, context: &SourceContext) -> Result<Listener, SourceError> {
        let token = self.token_keys().read(&context.directory);
        let token = token.map_err(|error| {
            let (what, why) = (self.listen.to_string(), error.to_string());
            if daq_core::file::is_configuration(&error) {
                SourceError::configuration(what, why)
            } else {
                SourceError::new(what, why)
            }
        })?;
        let listener = self.connection().listener(self.listen).map_err(|error| {
            SourceError::new(format!("`listen` {}", self.listen), error.to_string())
        })?;
        let allowed = self.from.clone();
        let access = Access {
            name: format!("source {}", context.name),
            allows: allowed.map(|List(allowed)| -> Allows {
                Arc::new(move |peer| allowed.iter().any(|entry| entry.contains(peer)))
            }),
            token,
            refused: StreamCounts::of(&context.counts).refused,
        };
        Ok(listener.with_access(access))
    }

    fn is_emulated_nic(&self) -> bool {
        let nics = self.rails().nics();
        nics.all().iter().any(|nic| is_emulated_nic(nic))
    }
}

/// A source whose configuration was checked.
#[derive(Debug)]
struct StreamSource {
    config: StreamConfig,
    samples: Samples,
}

fn parse(
    section: &mut Section,
    _: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn SourceSpec>> {
    let config: StreamConfig = section.finish_checked(&[], diagnostics, StreamConfig::problems)?;
    let samples = config.samples.clone().unwrap_or_default();
    Some(Box::new(StreamSource { config, samples }))
}

impl StreamSource {
    fn engine(&self) -> EngineRequirements {
        let requirements = EngineRequirements::new(&receiver::INFO, Writer::Nic, self.config.path);
        if self.config.transport == Transport::Tcp {
            EngineRequirements {
                action: "Linux copies frames from TCP connections",
                host_only: Some("Linux receives TCP data only into host memory".to_owned()),
                ..requirements
            }
        } else {
            let why = "an emulated NIC can only write to host memory";
            EngineRequirements {
                device: self.config.rails().nics().device(),
                host_only: self.config.is_emulated_nic().then(|| why.to_owned()),
                ..requirements
            }
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.config.samples.is_none() {
            notes.push("the sample type is not declared, so int8 is assumed".to_owned());
        }
        notes.extend(sender::note(self.config.from.as_ref()));
        if self.config.transport == Transport::Tcp {
            let connections = counted(self.config.rails().count(), "TCP connection");
            notes.push(format!(
                "{connections}: the source's thread copies each frame from the socket into its slot, without RDMA hardware"
            ));
        } else if self.config.is_emulated_nic() {
            notes.push(
                "emulated NICs transfer frames over TCP, which is slow; use them only for tests"
                    .to_owned(),
            );
        } else {
            notes.push(
                "GPU memory is registered by dma-buf or nvidia-peermem; if both fail, frames go through host memory and the log gives the reasons"
                    .to_owned(),
            );
        }
        match self.config.service() {
            Service::Rc => {}
            Service::Uc => notes.push(
                "an unreliable connection does not retransmit: lost frames are counted as `wire_gap`"
                    .to_owned(),
            ),
            Service::Ud => notes.push(
                "datagrams have no backpressure: frames without a free slot are counted as `wire_gap`"
                    .to_owned(),
            ),
        }
        notes
    }
}

impl SourceSpec for StreamSource {
    fn facts(&self) -> SourceFacts {
        let config = &self.config;
        let listen = config.listen;
        let token_file = config.token_file.iter();
        SourceFacts {
            claims: vec![Claim::TcpPort(listen)],
            origins: vec![format!(
                "senders that connect to {listen}, received by {}",
                config.rails().names()
            )],
            files: token_file
                .map(|file| NamedFile::new("token_file", file, FileUse::Reads))
                .collect(),
            preferred_slot: Some(match config.service() {
                Service::Ud => MAX_DATAGRAM / 2,
                Service::Rc | Service::Uc => PREFERRED,
            }),
            // Each frame contains the sizes of its packets.
            detected_from: (config.packets_per_frame > 1).then_some("the frames"),
            kept: config.keep.clone(),
            supports_backpressure: config.service() != Service::Uc,
            engine: Some(self.engine()),
            counts: vec![StreamCounts::SET],
            cores: config.cores.clone(),
            notes: self.notes(),
            silence_hint: Box::new(move || {
                format!(
                    "a sink `stream` must connect to {listen}: check that daq runs on the sending host, that `to` of its \
                     sink is correct, and that no firewall blocks TCP port {} (`links` and `links_ended` of this source \
                     count the connections)",
                    listen.port()
                )
            }),
            ..SourceFacts::default()
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let geometry = frame_per_slot(self.config.packets_per_frame, slot_bytes)?;
        if self.config.service() == Service::Ud && slot_bytes > MAX_DATAGRAM {
            let slot = ByteSize(slot_bytes as u64);
            let message = format!("a frame of {slot} does not fit into a datagram");
            return Err(Problem::at("service", message).help(
                "lower `slot` of the ring: a frame and its record (at least 128 bytes) must fit into one datagram of 4 \
                 KiB",
            ));
        }
        let layout = sample_layout(&self.samples, geometry.frame_bytes, CHANGE_SLOT)?;
        Ok(FrameFacts::new(geometry, layout))
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let config = &self.config;
        let failed =
            |what: &str, why: &dyn std::fmt::Display| SourceError::new(what, why.to_string());
        let rails = config
            .rails()
            .open(context.nic.as_deref())
            .map_err(|error| failed(&error.nic.clone(), &error))?;
        let listener = config.listener(context)?;
        let counts = StreamCounts::of(&context.counts);
        let layout = config
            .samples
            .as_ref()
            .and_then(|samples| samples.layout(context.geometry.frame_bytes).ok());
        let places = layout.map_or_else(SamplePlaces::default, |layout| SamplePlaces::of(&layout));
        let options = Options {
            name: format!("source {}", context.name),
            mode: config.mode(),
            service: config.service(),
            packets_per_frame: config.packets_per_frame,
            kept: KeptNames::of(&config.keep),
            places,
            relaxed: config.relaxed_ordering,
            counters: Counters {
                links: counts.links,
                ended: counts.links_ended,
            },
        };
        let receiver = Receiver::new(&options, rails, listener)
            .map_err(|error| failed(&config.rails().names(), &error))?;
        Ok(Producers::Engine(Box::new(receiver)))
    }
}

#[cfg(test)]
mod tests;
