//! The source `udp`: receives packets of a network instrument through Linux sockets.
//!
//! ```text
//!   socket 0 ─▶ thread 0 ─┐
//!   socket 1 ─▶ thread 1 ─┼─▶ one window of open slots ─▶ ring
//!      …          …      ─┘
//! ```
//! Each thread receives many packets per system call, coalesced if Linux supports it, with their receive timestamps. If only one
//! thread fills the window, Linux writes payload directly to the slots, see `sys/scatter.rs`.
//!
//! # Ledger
//! | event | counted as |
//! |---|---|
//! | a packet never arrives | lost, `wire_gap`; `kernel_drop` if Linux counted drops at the socket meanwhile |
//! | a packet arrives after its frame was closed | lost, `late` |
//! | a packet arrives twice | `duplicates` |
//! | a packet does not match the format, or its number is implausible | `rejected` |
//! | a packet contains a message instead of data | `control` |
//! | a packet precedes the run: it arrives before all sockets are open, or belongs to a frame before the first | `before_start` |
//! | the ring has no free slot for the frame of a packet | lost, `ring_full` |

mod filler;
mod group;
mod keys;
mod shared;
mod timestamps;

use keys::UdpConfig;

use crate::packet::frames::Frames;
use crate::packet::section;
use crate::packet::{Origins, Selector};
use crate::sender::SenderWatch;
use crate::silence;
use crate::socket::{RECEIVE_BUFFER, SourceSocket};
use crate::sys::socket::{Interface, Options, SocketError, UdpSocket};
use daq_core::claim::Claim;
use daq_core::config::Problem;
use daq_core::entry::{FrameFacts, SourceContext, SourceEntry, SourceFacts, SourceSpec};
use daq_core::source::{Filler, Producers, SourceError};
use filler::Receiver;
use group::SocketGroup;
use shared::SharedPort;
use std::net::SocketAddr;
use std::sync::Arc;
use timestamps::TimestampSource;

/// The registry entry of the source.
pub const ENTRY: SourceEntry = SourceEntry {
    name: "udp",
    summary: "Packets of a network instrument over UDP: raw, SPEAD, VITA 49 or VDIF",
    example: EXAMPLE,
    schema: |registry| {
        let keys = schemars::schema_for!(UdpConfig);
        let defaults = [("receive_buffer", RECEIVE_BUFFER.to_string().into())];
        section::with_format(registry, section::with_defaults(keys, defaults), true)
    },
    parse: |section, registry, diagnostics| {
        let (format, config) = section::read(section, registry, diagnostics, UdpConfig::problems)?;
        let threads = config.threads();
        let facts = format.facts();
        let payload = match facts.unknown_sizes {
            // The packets of coalesced messages are counted only if their size is known.
            Some(_) => usize::MAX,
            None => facts.layout.rest,
        };
        let batch = filler::batch(payload, threads);
        let origins = Origins::new(&config.listen.0, &config.socket_keys.senders());
        let frames = Frames::new(format, &config.packet_keys, &origins, threads, batch);
        Some(Box::new(Udp { config, frames }))
    },
    recognise: &[],
};

const EXAMPLE: &str = section::example!(
    r#"[source.NAME]
driver  = "udp"
ring    = "OUTPUT"
listen  = "0.0.0.0:4950"      # or several: ["10.0.0.1:4950", "10.0.1.1:4950"]
samples = { type = "int16", complex = true, channels = 1, rate = "1 MHz" }
# sockets = 2                 # sockets per address, each with its own thread; must be 1 for multicast
# cores   = [2, 3]            # one CPU core for each thread
# from    = ["10.0.0.5", "10.1.0.0/16"]  # accept only packets from these senders
# groups  = ["239.1.2.3"]     # multicast groups to join
# interface = "eth1"          # interface that joins the groups
# receive_buffer = "64 MiB"   # limited by net.core.rmem_max
# timestamps = "auto"         # receive times by the network card's PTP clock if its timestamps are on
"#,
    r#""8 KiB""#
);

/// A source whose configuration was checked.
#[derive(Debug)]
struct Udp {
    config: UdpConfig,
    frames: Frames,
}

/// The sockets of one address, and their port if other sources share it.
type Opened = (Vec<Arc<UdpSocket>>, Option<Arc<SharedPort>>);

impl Udp {
    fn options(&self, reuse_port: bool) -> Options {
        Options {
            reuse_port,
            coalesce: true,
            // The sockets of several threads accept packets once all of them are open.
            closed: self.config.threads() > 1,
            timestamps: self.config.timestamps.request(),
            groups: self.config.groups.clone(),
            interface: self.config.interface.as_deref().map(Interface::from),
            ..self.config.socket_keys.options(RECEIVE_BUFFER)
        }
    }

    /// Returns why hardware timestamps are missing, if they are requested.
    fn timestamp_fault(&self) -> Option<String> {
        let interface = self.config.interface.as_deref();
        self.config
            .timestamps
            .fault(&self.config.listen.0, interface)
    }

    /// Returns which datagrams are accepted at `address`, if other sources receive from it too.
    fn shared_streams(&self, address: SocketAddr, beside: &[Claim]) -> Option<Selector> {
        let is_here =
            |claim: &Claim| matches!(claim, Claim::UdpStreams(other, _) if *other == address);
        let is_shared = address.port() != 0 && beside.iter().any(is_here);
        self.selector().filter(|_| is_shared)
    }

    /// Returns which datagrams belong to this source, if other sources can receive from its ports.
    fn selector(&self) -> Option<Selector> {
        let selector = self.frames.selector();
        selector.filter(|_| self.config.sockets == 1)
    }

    /// Opens the sockets of one address. Also returns the port if other sources of the pipeline, which claim `beside`, share it.
    fn open(&self, address: SocketAddr, beside: &[Claim]) -> Result<Opened, SocketError> {
        let count = self.config.sockets;
        let mut options = self.options(count > 1);
        options
            .groups
            .retain(|group| group.is_ipv4() == address.is_ipv4());
        if let Some(streams) = self.shared_streams(address, beside) {
            let (socket, port) = SharedPort::open(address, &streams, &options)?;
            return Ok((vec![socket], Some(port)));
        }
        if count > 1 {
            // Joining a group succeeds even if another process uses the port. Only a socket without port sharing
            // detects that.
            let alone = Options {
                reuse_port: false,
                receive_buffer: 0,
                ..options.clone()
            };
            UdpSocket::open(address, &alone)?;
        }
        let first = UdpSocket::open(address, &options)?;
        let address = first.local();
        let mut sockets = vec![Arc::new(first)];
        while sockets.len() < count {
            sockets.push(Arc::new(UdpSocket::open(address, &options)?));
        }
        Ok((sockets, None))
    }

    /// Returns the ports, or the streams of ports that are shared with other sources.
    fn claims(&self) -> Vec<Claim> {
        let listen = self.config.listen.0.iter().copied();
        match self.selector() {
            Some(selector) => listen
                .map(|address| Claim::UdpStreams(address, selector.streams.clone()))
                .collect(),
            None => listen.map(Claim::UdpPort).collect(),
        }
    }

    /// Returns the addresses and multicast groups for the plan.
    fn origins(&self) -> Vec<String> {
        let on = self.config.interface.as_ref();
        let on = on.map_or(String::new(), |interface| format!(" on {interface}"));
        let listen = self.config.listen.0.iter().map(|address| {
            if address.ip().is_multicast() {
                format!("UDP {address}, multicast{on}")
            } else {
                format!("UDP {address}")
            }
        });
        let groups = &self.config.groups;
        listen
            .chain(groups.iter().map(|group| format!("multicast {group}{on}")))
            .collect()
    }

    /// Returns the command that shows the packets. `None` if Linux chooses the port.
    fn inspect_advice(&self) -> Option<String> {
        let port = self.config.listen.0.first()?.port();
        if port == 0 {
            return None;
        }
        let groups = self
            .config
            .groups
            .iter()
            .map(|group| format!(" --group {group}"));
        let groups: String = groups.collect();
        Some(format!(
            "stop daq and run `daq inspect --port {port}{groups}`, or run it now as root and add `--interface NAME`"
        ))
    }
}

impl SourceSpec for Udp {
    fn facts(&self) -> SourceFacts {
        let mut facts = self.frames.facts();
        facts.notes.extend(self.config.socket_keys.note());
        if facts.threads > 1 {
            facts.notes.push(format!(
                "{} threads fill one reorder window, so the payload is copied once more than with one thread",
                facts.threads
            ));
        }
        let config = self.config.clone();
        SourceFacts {
            claims: self.claims(),
            origins: self.origins(),
            cores: self.config.cores.clone(),
            silence_hint: Box::new(move || {
                silence::hint(
                    &config.listen.0,
                    &config.groups,
                    config.interface.as_deref(),
                    config.socket_keys.from.is_some(),
                )
            }),
            inspect_advice: self.inspect_advice(),
            ..facts
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let frames = self.frames.in_slots(slot_bytes)?;
        let payload = match self.frames.detected_from() {
            Some(_) => usize::MAX,
            None => frames.geometry.packet_bytes,
        };
        let threads = self.config.threads();
        Ok(FrameFacts {
            memory: threads * (filler::memory(payload, threads) + frames.memory),
            ..frames
        })
    }

    fn unavailable(&self) -> Option<String> {
        if self.config.timestamps != TimestampSource::Hardware {
            return None;
        }
        let fault = self.timestamp_fault()?;
        Some(format!(
            "{fault}; or set timestamps = \"auto\" to use the receive time of Linux"
        ))
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        if let Some(fault) = self.timestamp_fault() {
            tracing::info!(
                "source {}: packets have the receive time of Linux, because {fault}",
                context.name
            );
        }
        let exclusive = self.config.threads() == 1;
        let format = self.frames.start(context);
        let mut receivers = Vec::new();
        let mut is_logged = false;
        let mut senders = None::<SenderWatch>;
        for address in &self.config.listen.0 {
            let (sockets, port) = self
                .open(*address, &context.beside)
                .map_err(|why| SourceError::new(format!("UDP {address}"), why.to_string()))?;
            for socket in sockets {
                let granted = socket.granted();
                if granted.is_short() && !is_logged {
                    is_logged = true;
                    tracing::warn!("source {}: {granted}", context.name);
                }
                if !socket.coalesces() && port.is_none() {
                    tracing::debug!(
                        "source {}: this Linux version does not coalesce packets (UDP_GRO)",
                        context.name
                    );
                }
                let local = socket.local();
                let watch = senders
                    .get_or_insert_with(|| SenderWatch::new(&context.name, local))
                    .another(local);
                let socket = SourceSocket::new(socket, watch);
                let receiver = Receiver::new(context, socket, format.clone(), exclusive);
                receivers.push(receiver.sharing(port.clone()));
            }
        }
        if !exclusive {
            SocketGroup::begin(&mut receivers, self.config.socket_keys.from()).map_err(
                |error| {
                    let why = format!("cannot accept packets at all sockets: {error}");
                    SourceError::new(format!("source {}", context.name), why)
                },
            )?;
        }
        let fillers = receivers
            .into_iter()
            .map(|receiver| Box::new(receiver) as Box<dyn Filler>);
        Ok(Producers::Fillers(fillers.collect()))
    }
}
