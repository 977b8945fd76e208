//! The source `xdp`: packets of a network instrument, bypassing the Linux network stack (`AF_XDP`).
//!
//! ```text
//!   queue 0 ─▶ program ─ours─▶ chunks of pinned memory ─▶ thread 0 ─┐
//!   queue 1 ─▶ program ─ours─▶ chunks of pinned memory ─▶ thread 1 ─┼─▶ one window of open slots ─▶ ring
//!                 └─ everything else ─▶ the kernel's stack ─────────┘ (datagrams of ours that it gets)
//! ```
//! A small program, put together in `program` and run by the kernel for each packet, hands UDP packets to our addresses
//! to sockets whose memory the kernel, or with zero copy the card itself, fills. Everything else stays the kernel's: it
//! answers ARP and pings. It also still gets datagrams of ours that the program does not know by their first bytes (in
//! fragments, with options) or that come in a queue without a socket; they are taken from an ordinary UDP socket, which
//! claims the port and joins multicast groups as well. So nothing is lost uncounted whatever the card does with packets.
//!
//! # A filler, not an engine
//! The card chooses the chunk before it knows what comes, so a packet lands with its headers, in the order of arrival: its
//! payload belongs to a place of a frame that only the packet itself names. So payload is copied once, from the chunk into
//! its place in a slot, as `udp` does from the kernel's buffer, and frames are made by the same window and formats.
//!
//! # Ledger
//! As that of [`crate::udp`]. Evidence for `kernel_drop` is what the kernel counts at the queue's socket: no free chunk,
//! full ring; with zero copy also how often the card's driver found no free chunk, which is weak evidence, since it may find
//! one before anything is lost. What the card itself drops before that is in its own counters (`ethtool -S`) alone, and is a `wire_gap`
//! here. `rejected` also counts packets whose headers contradict themselves. A wrong checksum is the card's to see: it is
//! not computed again.
//!
//! # Time
//! The program gives packets no time; each gets the host's when its batch is taken (`host` in reports), unless the format
//! has a time of its own.
//!
//! # Why no crate for the sockets
//! Those on hand allocate the memory themselves, where ours is to be pinned, in hugepages, near the card. rustix speaks
//! the socket options; what is left, two rings and five calls of `bpf`, is in [`crate::sys::xdp`] and [`crate::sys::bpf`].
//!
//! # Limits
//! One program an interface, so one source. A virtual interface whose sender offloads segmentation hands uncut messages to a
//! program behind the driver (`attach = "generic"`): a message that is longer than a chunk is not received.
//! Tags of virtual networks are not looked at: with one or without, and many cards take them off before the program sees
//! the packet.
//!
//! Runs over virtual Ethernet interfaces in tests. Not yet run on a card with zero copy.

pub mod config;
mod filler;
pub mod headers;
mod link;
mod program;

pub use config::XdpConfig;

use crate::list::List;
use crate::packet::datagram;
use crate::packet::{self, Format, Frames};
use crate::sender::{self, SenderWatch};
use crate::silence;
use crate::sys::interface::Interface as Card;
use crate::sys::socket::{Interface, Options, SocketError, UdpSocket};
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::{SilenceHint, SourceContext, SourceEntry, SourceSpec};
use daq_core::layout::{Layout, Samples};
use daq_core::reorder::{Arrival, Geometry};
use daq_core::source::{Filler, Producers, SourceError};
use filler::{Parts, Receiver, Stack};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::Arc;

/// The registry entry.
pub const ENTRY: SourceEntry = SourceEntry {
    name: "xdp",
    summary: "Packets of a network instrument, bypassing the Linux network stack (AF_XDP), raw or SPEAD",
    example: EXAMPLE,
    schema: || packet::section::with_format(schemars::schema_for!(XdpConfig), true),
    parse,
};

/// Bytes that a chunk has in the two rings through which it is handed over: its address, and what was received into it.
const RING_BYTES: usize = 8 + 16;

const EXAMPLE: &str = r#"[source.NAME]
driver    = "xdp"
ring      = "OUTPUT"
interface = "eth1"
listen    = "10.0.0.1:4950"   # or several; a multicast group is joined
samples   = { type = "int16", complex = true, channels = 1, rate = "1 MHz" }
# from    = ["10.0.0.5", "10.1.0.0/16"]  # accept these senders only
# queues  = 1                 # receive queues 0 to N-1, or their numbers: [0, 3]; a thread each
# cores   = [2]               # one a thread
# mode    = "auto"            # or "zero-copy", "copy"
# attach  = "auto"            # or "native", "generic"
# chunk   = "4 KiB"           # memory for a packet; longer packets take several
# packets = 4096              # that the kernel holds for each queue
# window  = 64                # frames open at a time: how far packets may come out of order

[source.NAME.format]
kind     = "raw"              # or "spead"
header   = "16 B"             # before the payload of each packet
payload  = "1 KiB"            # of each packet
sequence = { offset = 0, bytes = 8, endian = "big" }
"#;

/// A checked configuration.
#[derive(Debug)]
struct Xdp {
    config: XdpConfig,
    format: Format,
    samples: Samples,
}

fn parse(section: &mut Section, diagnostics: &mut Diagnostics) -> Option<Box<dyn SourceSpec>> {
    let format = packet::section::take(section, diagnostics);
    let config: XdpConfig = section.finish_checked(&[], diagnostics, XdpConfig::problems)?;
    let samples = config.samples.clone().unwrap_or_default();
    let xdp = Xdp {
        format: format?,
        samples,
        config,
    };
    Some(Box::new(xdp))
}

impl Xdp {
    fn packets_arrive(&self) -> Arrival {
        Arrival {
            declared: self.config.window,
            threads: self.threads(),
            batch: link::BATCH,
        }
    }

    fn frames(&self) -> Frames<'_> {
        let XdpConfig {
            max_gap,
            resync_after,
            ..
        } = self.config;
        Frames {
            format: &self.format,
            samples: &self.samples,
            arrival: self.packets_arrive(),
            max_gap,
            resync_after,
        }
    }

    /// Ordinary sockets on the addresses: they claim the ports, join the groups, and get what the program passes on.
    fn stack(&self) -> Result<Vec<UdpSocket>, SourceError> {
        Card::find(&self.config.interface).map_err(|error| {
            let why = if error == Errno::NODEV {
                "the interface does not exist: `ip link` lists interfaces".to_owned()
            } else {
                error.to_string()
            };
            SourceError::new(format!("interface {}", self.config.interface), why)
        })?;
        let options = Options {
            receive_buffer: self.config.receive_buffer.bytes().unwrap_or(usize::MAX),
            timestamps: true,
            interface: Some(Interface::Name(self.config.interface.clone())),
            from: List::or_none(self.config.from.as_ref()).to_vec(),
            ..Options::default()
        };
        let name = &self.config.interface;
        let open = |address: SocketAddr| {
            UdpSocket::open(address, &options).map_err(|why| {
                let why = match why {
                    SocketError::NoSuchAddress { .. } => format!(
                        "this machine does not have this address: `ip address show {name}` lists the addresses of {name}"
                    ),
                    other => other.to_string(),
                };
                SourceError::new(format!("UDP {address}"), why)
            })
        };
        self.config.listen.0.iter().copied().map(open).collect()
    }
}

impl SourceSpec for Xdp {
    fn claims(&self) -> Vec<Claim> {
        let ports = self.config.listen.0.iter().copied().map(Claim::UdpPort);
        let interface = Claim::Device(self.config.interface.clone());
        ports.chain([interface]).collect()
    }

    fn origins(&self) -> Vec<String> {
        let XdpConfig {
            interface, listen, ..
        } = &self.config;
        let listen = listen.0.iter().map(|address| {
            let kind = if address.ip().is_multicast() {
                ", multicast"
            } else {
                ""
            };
            format!("UDP {address} on {interface}{kind}, bypassing the Linux network stack")
        });
        listen.collect()
    }

    fn preferred_slot(&self) -> Option<usize> {
        Some(self.frames().preferred_slot())
    }

    fn geometry(&self, slot_bytes: usize) -> Result<Geometry, Problem> {
        self.frames().geometry(slot_bytes)
    }

    fn arrival(&self) -> Option<Arrival> {
        Some(self.packets_arrive())
    }

    fn detected_from(&self) -> Option<&'static str> {
        self.frames().detected_from()
    }

    fn detects_frame_size(&self) -> bool {
        self.frames().detects_frame_size()
    }

    fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem> {
        self.frames().layout(geometry)
    }

    fn supports_backpressure(&self) -> bool {
        false
    }

    fn threads(&self) -> usize {
        self.config.queues.0.len()
    }

    fn memory(&self, geometry: &Geometry) -> usize {
        let chunks = self.config.chunk_bytes() * self.config.packets as usize;
        let packet = link::planned_max_packet(&self.config);
        let held = datagram::hold_bytes(&self.format, geometry, self.threads());
        (0..self.threads())
            .map(|i| {
                held + chunks
                    + RING_BYTES * self.config.packets as usize
                    + filler::memory(packet, i == 0)
            })
            .sum()
    }

    fn cores(&self) -> Vec<usize> {
        self.config.cores.clone()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.frames().notes();
        if self.config.samples.is_none() {
            notes.push("samples not declared: int8 assumed".to_owned());
        }
        notes.extend(sender::note(self.config.from.as_ref()));
        notes
    }

    fn silence_hint(&self) -> SilenceHint {
        let XdpConfig {
            listen,
            interface,
            from,
            ..
        } = self.config.clone();
        Box::new(move || silence::hint(&listen.0, &[], Some(&interface), from.is_some()))
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let mut stack = Stack::new(self.stack()?)
            .map_err(|errno| SourceError::new("waiting for several sockets", errno.to_string()))?;
        let opened = link::open(&self.config, &self.config.listen.0)?;
        stack
            .empty()
            .map_err(|why| SourceError::new("packets from before the start", why.to_string()))?;
        let mut stack = Some(stack);
        for sentence in &opened.notes {
            tracing::info!("source {}: {sentence}", context.name);
        }
        let format = self
            .format
            .start_learning(&context.geometry, self.threads());
        let attached = Arc::new(opened.attached);
        let senders = SenderWatch::new(&context.name, self.config.listen.0[0]);
        let queues = opened.sockets.into_iter().zip(&self.config.queues.0);
        let fillers = queues.map(|(socket, queue)| {
            let parts = Parts {
                name: context.name.clone(),
                rejections: context.rejections.clone(),
                senders: senders.another(self.config.listen.0[0]),
                what: format!("queue {queue} of {}", self.config.interface),
                socket,
                stack: stack.take(),
                format: format.clone(),
                packet: opened.packet,
                attached: attached.clone(),
                polls: !self.config.busy_poll.0.is_zero(),
            };
            Box::new(Receiver::new(parts)) as Box<dyn Filler>
        });
        Ok(Producers::Fillers(fillers.collect()))
    }
}
