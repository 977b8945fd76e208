//! The source `rdma`: frames that the sink `rdma` of another host writes into a ring's slots, by network cards that do
//! RDMA.
//!
//! ```text
//!   sink rdma ══ rails: queues of network cards ══▶ slots of a ring, in host memory or on a GPU
//!       └────── dials ──────▶ `listen`                credits back: a sender never overruns what is not free
//! ```
//! The guarantees across interruptions are described in [`daq_rdma::stream::receiver`]. GPU memory is registered with the
//! NICs by dma-buf or by nvidia-peermem; if both are refused, frames are staged in host memory, and the reasons are logged.
//! These paths are tested with simulated answers. Streams have run on emulated NICs and soft-RoCE only, not yet on a ConnectX.
//!
//! # Ledger
//! The unit is the frame, as the sender counts it.
//!
//! | what happens | what is counted |
//! |---|---|
//! | a connection breaks, and frames can be sent again | nothing is lost |
//! | frames can not be sent again, or get lost on the way (`uc`, `ud`) | lost, `wire_gap` |
//! | another run of the sender, or its own new epoch | `epochs` |
//! | the sender or its card does what cannot be | the fault by its name; the connection is ended |
//! | a sender is refused: its address is not in `from`, or it has another token | `refused` |
//! | a sender comes, and its connection ends | `links`, `links_ended` |
//! | a sender ends on purpose | no fault; what it sent and never came is lost, `wire_gap` |
//! | the same by `rdma_cm`, which has no word for it | `peer-gone` |
//! | no sender is there | nothing: the source waits |

use crate::list::List;
use crate::sender::{self, Allowed};
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::{EngineRequirements, SilenceHint, SourceContext, SourceEntry, SourceSpec};
use daq_core::examine::{FileUse, NamedFile};
use daq_core::gpu::Writer;
use daq_core::layout::{Layout, Samples};
use daq_core::reorder::Geometry;
use daq_core::source::{Producers, SourceError};
use daq_core::topology::P2pPreference;
use daq_core::units::ByteSize;
use daq_rdma::connect::access::{Access, Guarded, Secret, TokenKeys};
use daq_rdma::connect::{Connection, Listener};
use daq_rdma::nics::{self, NicNames};
use daq_rdma::stream::receiver::{Counters, FAULTS, Options, Receiver};
use daq_rdma::stream::wire::{MAX_PLACES, Mode};
use daq_rdma::verbs::Service;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Slots of a ring that does not say.
const PREFERRED: usize = 1 << 20;
/// Most slots of a ring; a card that takes less says so at the start.
const MAX_SLOTS: usize = 1 << 16;
/// Most bytes of a slot; the same.
const MAX_SLOT: usize = 1 << 40;
/// Most rails of a stream.
const MAX_RAILS: usize = daq_rdma::stream::wire::MAX_RAILS as usize;
/// Bytes of a packet's payload at most: what a datagram carries.
const MAX_DATAGRAM: usize = 4096;

/// What is counted beside frames: a sender is connected now where one link more was made than has ended.
const COUNTS: &[&str] = &["links", "links_ended", "refused"];

/// The registry entry.
pub const ENTRY: SourceEntry = SourceEntry {
    name: "rdma",
    summary: "Frames of another host's sink rdma, written into the ring by a network card that does RDMA",
    example: EXAMPLE,
    schema: || schemars::schema_for!(RdmaConfig),
    parse,
};

const EXAMPLE: &str = r#"[source.NAME]
driver  = "rdma"
ring    = "OUTPUT"
listen  = "0.0.0.0:7471"      # the sink rdma of the other host goes there
nics    = ["emulated"]        # needs no hardware, and is slow; "auto": the card that suits the ring; ["mlx5_0", "mlx5_1"]: one
                              # rail each, as many as the sink has
samples = { type = "int16", complex = true, channels = 1, rate = "100 MHz" }
# from       = ["10.0.0.5", "10.1.0.0/16"]  # refuse other senders
# token_file = "link.token"   # a secret that the sink must have, too; `openssl rand -hex 32` makes one
# queue_pairs = 1              # of each card, a rail each
# connection = "cm"           # find each other by rdma_cm instead of a plain TCP exchange; as the sink has it
# mode       = "send"         # by messages instead of writes into the slots; as the sink has it
# service    = "rc"           # reliable; "uc": unreliable writes, "ud": unreliable messages of one packet; as the sink has it
# places     = 1              # most packets that make up a frame there
# path       = "staged"       # never straight into a GPU's memory; "direct": even where that looks impossible
# relaxed_ordering = true     # let the card's payload writes pass each other on the bus
"#;

/// The keys of an `rdma` source.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RdmaConfig {
    /// Address and port to accept senders on, as in `"0.0.0.0:7471"`. Every host that can reach it may send, unless `from` or a token refuses it.
    pub listen: SocketAddr,
    /// Senders that may connect: addresses, networks, or addresses with a port, such as `["10.0.0.5", "10.1.0.0/16"]`; without
    /// it, every sender. Others are refused when they connect, counted as `refused`, and logged.
    pub from: Option<List<Allowed>>,
    /// A secret of 16 to 64 bytes that the sink must have, too; without it, every sender may connect. It is not encrypted on
    /// its way. Needs `connection = "tcp"`. Others may read the configuration: prefer `token_file`.
    pub token: Option<Secret>,
    /// A file that holds the token alone, such as `"/etc/daq/link.token"`.
    pub token_file: Option<PathBuf>,
    /// The NICs that receive, such as `"mlx5_0"`, `"mlx5_0:PORT"` or `"mlx5_0:PORT@GID"`; each is one rail, and the sender
    /// must have as many. `"emulated"` is an emulated NIC for tests; `"emulated:ADDRESS"` listens on ADDRESS, for senders on
    /// other hosts. `"auto"`, which must be the only entry, is the NIC nearest to the GPU of the ring, or, for a ring in host
    /// memory, the fastest that is up.
    pub nics: NicNames,
    /// Number of queue pairs per NIC, each a separate rail. The total over all NICs must not exceed 255.
    #[serde(default = "one")]
    pub queue_pairs: usize,
    /// How the hosts connect: `"tcp"`, a plain TCP exchange, or `"cm"`, `rdma_cm`. The sender needs the same value.
    #[serde(default)]
    pub connection: Connection,
    /// `"write"`: the sender writes into the slots; `"send"`: it sends messages into posted receives. The sender
    /// needs the same value.
    #[serde(default)]
    pub mode: Mode,
    /// `"rc"`: reliable, no frame is lost and a full ring applies backpressure to the sender; `"uc"`: unreliable
    /// writes; `"ud"`: unreliable messages of one packet, over one queue pair. The sender needs the same value.
    #[serde(default)]
    pub service: Service,
    /// How frames reach a ring in GPU memory: `"auto"`, directly if the topology allows it and the test at startup
    /// succeeds; `"direct"`, directly even if the topology seems not to allow it; `"staged"`, through host memory.
    #[serde(default)]
    pub path: P2pPreference,
    /// Most places of a frame, at least 1: the packets that make it up where the sender received it. The bitmap of
    /// arrived packets is transferred with the frame.
    #[serde(default = "one_place")]
    pub places: u32,
    /// True allows PCIe to reorder the NIC's payload writes (relaxed ordering). Records and credits are never reordered.
    #[serde(default)]
    pub relaxed_ordering: bool,
    /// CPU core of its thread; default: any core.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// Sample format of the payload; default: real int8, one channel.
    pub samples: Option<Samples>,
}

const fn one() -> usize {
    1
}

const fn one_place() -> u32 {
    1
}

impl RdmaConfig {
    /// Returns every problem with a fix.
    fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut report = |key: &str, message: String, help: &str| {
            found.push(Problem::at(key, message).help(help));
        };
        let nics = self.nics.all();
        let rails = nics.len().saturating_mul(self.queue_pairs);
        if nics.is_empty() {
            let help = "name one, as in [\"mlx5_0\"]; `rdma link` lists them";
            report("nics", "no NIC is named".to_owned(), help);
        } else if rails == 0 || rails > MAX_RAILS {
            report(
                "queue_pairs",
                format!("the total number of queue pairs is {rails}; it must be 1 to {MAX_RAILS}"),
                "try 1",
            );
        }
        if self.nics.is_mixed() {
            let message = "`auto` cannot be combined with other NICs".to_owned();
            report("nics", message, "write nics = \"auto\" alone, or name each");
        }
        let emulated = nics.iter().filter(|nic| nics::is_emulated_nic(nic)).count();
        if emulated > 0 && emulated < nics.len() {
            let help = "name only hardware NICs or only emulated NICs";
            report(
                "nics",
                "hardware and emulated NICs cannot be combined".to_owned(),
                help,
            );
        }
        if let Some((key, message, help)) = self.connection.problem(self.nics.all(), self.service) {
            report(key, message.to_owned(), help);
        }
        if let Some((message, help)) = self.mode.problem(self.service, rails) {
            report("service", message.to_owned(), help);
        }
        if self.places > MAX_PLACES {
            let message = format!("{} places; a frame has {MAX_PLACES} at most", self.places);
            report("places", message, "as many as the sink's ring has");
        } else if self.places == 0 {
            report(
                "places",
                "a frame of no places".to_owned(),
                "without packets it has 1",
            );
        }
        if let Some((message, help)) = self
            .token_keys()
            .problem(self.connection == Connection::Tcp)
        {
            // Not at `token`: the line with the secret must not be printed.
            report("token_file", message.to_owned(), help);
        }
        if self.cores.len() > 1 {
            let message = format!("{} cores for one thread", self.cores.len());
            report("cores", message, "give one core");
        }
        found.extend(sender::problems(self.from.as_ref(), &[self.listen]));
        found
    }

    fn token_keys(&self) -> TokenKeys {
        TokenKeys {
            token: self.token.clone(),
            file: self.token_file.clone(),
        }
    }

    /// The listener that refuses peers without access.
    fn listener(&self, context: &SourceContext) -> Result<Box<dyn Listener>, SourceError> {
        let listen = self.listen.to_string();
        let failed =
            |why: &dyn std::fmt::Display| SourceError::new(listen.clone(), why.to_string());
        let token = self.token_keys().read(&context.directory);
        let token = token.map_err(|error| failed(&error))?;
        let listener = self
            .connection
            .listener(self.listen)
            .map_err(|error| failed(&error))?;
        let allowed = self.from.clone();
        let access = Access {
            name: format!("source {}", context.name),
            allows: allowed.map(|List(allowed)| {
                let allows = move |peer| allowed.iter().any(|entry| entry.contains(peer));
                Box::new(allows) as Box<dyn Fn(SocketAddr) -> bool + Send + Sync>
            }),
            token,
            refused: context.counts.counter(COUNTS[2]),
        };
        Ok(Box::new(Guarded::new(listener, access)))
    }

    fn is_emulated_nic(&self) -> bool {
        self.nics.all().iter().any(|nic| nics::is_emulated_nic(nic))
    }
}

/// A checked configuration.
#[derive(Debug)]
struct Rdma {
    config: RdmaConfig,
    samples: Samples,
}

fn parse(section: &mut Section, diagnostics: &mut Diagnostics) -> Option<Box<dyn SourceSpec>> {
    let config: RdmaConfig = section.finish_checked(&[], diagnostics, RdmaConfig::problems)?;
    let samples = config.samples.clone().unwrap_or_default();
    Some(Box::new(Rdma { config, samples }))
}

impl SourceSpec for Rdma {
    fn claims(&self) -> Vec<Claim> {
        vec![Claim::TcpPort(self.config.listen)]
    }

    fn files(&self) -> Vec<NamedFile> {
        let file = self.config.token_file.iter();
        file.map(|file| NamedFile::new("token_file", file, FileUse::Reads))
            .collect()
    }

    fn origins(&self) -> Vec<String> {
        let RdmaConfig { listen, nics, .. } = &self.config;
        vec![format!(
            "senders that come to {listen}, through {}",
            nics.all().join(", ")
        )]
    }

    fn preferred_slot(&self) -> Option<usize> {
        Some(match self.config.service {
            Service::Ud => MAX_DATAGRAM / 2,
            Service::Rc | Service::Uc => PREFERRED,
        })
    }

    fn geometry(&self, slot_bytes: usize) -> Result<Geometry, Problem> {
        let places = self.config.places;
        if slot_bytes < places as usize {
            let slot = ByteSize(slot_bytes as u64);
            let message = format!("{places} places in slots of {slot}");
            return Err(Problem::at("places", message).help("raise `slot` of the ring"));
        }
        if self.config.service == Service::Ud && slot_bytes > MAX_DATAGRAM {
            let slot = ByteSize(slot_bytes as u64);
            let message = format!("a frame of {slot} does not fit into a datagram");
            return Err(Problem::at("service", message).help(
                "lower `slot` of the ring below 4 KiB, less the record of 128 bytes or more",
            ));
        }
        Ok(Geometry {
            frame_bytes: slot_bytes,
            ..Geometry::new(places, slot_bytes / places as usize)
        })
    }

    fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem> {
        let bytes = geometry.frame_bytes;
        self.samples.layout(bytes).map_err(|rest| {
            let message = format!("a frame of {bytes} bytes ends {rest} bytes into a sample");
            Problem::at("samples", message)
                .help("correct `type`, `complex` or `channels`, or choose another slot")
        })
    }

    fn supports_backpressure(&self) -> bool {
        self.config.service != Service::Uc
    }

    fn engine(&self) -> Option<EngineRequirements> {
        let is_emulated_nic = self.config.is_emulated_nic();
        Some(EngineRequirements {
            device: self.config.nics.device(),
            writer: Writer::Nic,
            preference: self.config.path,
            host_only: is_emulated_nic.then(|| "an emulated NIC uses only host memory".to_owned()),
            cpu_reads_memory: false,
            can_ring_doorbell: false,
            faults: FAULTS,
            alignment: 1,
            max_slot: MAX_SLOT,
            max_slots: MAX_SLOTS,
        })
    }

    fn counts(&self) -> &'static [&'static str] {
        COUNTS
    }

    fn cores(&self) -> Vec<usize> {
        self.config.cores.clone()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.config.samples.is_none() {
            notes.push("samples not declared: int8 assumed".to_owned());
        }
        notes.extend(sender::note(self.config.from.as_ref()));
        if self.config.is_emulated_nic() {
            notes.push("emulated NICs use TCP: for tests and trials, not for speed".to_owned());
        } else {
            notes.push(
                "GPU memory is registered by dma-buf or nvidia-peermem; if both fail, frames go through host memory and the log gives the reasons"
                    .to_owned(),
            );
        }
        match self.config.service {
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

    fn silence_hint(&self) -> SilenceHint {
        let listen = self.config.listen;
        Box::new(move || {
            format!(
                "a sink `rdma` must connect to {listen}: check that the other daq runs, its `to`, and that no firewall blocks TCP \
                 port {} (`links` and `links_ended` of the source count its connections)",
                listen.port()
            )
        })
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let config = &self.config;
        let failed =
            |what: &str, why: &dyn std::fmt::Display| SourceError::new(what, why.to_string());
        let names = config.nics.resolved(context.nic.as_deref());
        let rails = nics::open_rails(&names, config.queue_pairs)
            .map_err(|error| failed(&error.nic.clone(), &error))?;
        let listener = config.listener(context)?;
        let options = Options {
            name: format!("source {}", context.name),
            mode: config.mode,
            service: config.service,
            places: config.places,
            relaxed: config.relaxed_ordering,
            counters: Counters {
                links: context.counts.counter(COUNTS[0]),
                ended: context.counts.counter(COUNTS[1]),
            },
        };
        let receiver = Receiver::new(&options, rails, listener)
            .map_err(|error| failed(&config.nics.all().join(", "), &error))?;
        Ok(Producers::Engine(Box::new(receiver)))
    }
}

#[cfg(test)]
mod tests;
