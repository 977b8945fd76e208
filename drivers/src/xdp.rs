//! The source `xdp`: packets of a network instrument, bypassing the Linux network stack (`AF_XDP`).
//!
//! ```text
//!   queue 0 ─▶ program ─selected─▶ chunks of pinned memory ─▶ thread 0 ─┐
//!   queue 1 ─▶ program ─selected─▶ chunks of pinned memory ─▶ thread 1 ─┼─▶ one window of open slots ─▶ ring
//!                 └─ everything else ─▶ Linux network stack ────────────┘ (selected addresses, other packet types)
//! ```
//! Linux runs a small program, which the module `program` assembles, for each packet. The program redirects UDP packets
//! for the source's addresses to sockets. Linux fills the memory of these sockets, or with zero copy the NIC does. All
//! other packets continue to the Linux network stack, so ARP and ping still work. Some packets for the source's
//! addresses also continue there: those that the program does not recognise (fragments, IP options) and those in a
//! queue without a socket. The source receives these from an ordinary UDP socket, which also claims the port and joins
//! multicast groups. So every packet is received or counted, however the NIC distributes packets to its queues.
//!
//! # Why the payload is copied
//! The NIC selects the chunk before it knows the packet. So a packet is stored with its headers in order of arrival,
//! while only the packet itself determines its frame and its packet slot. The payload is therefore copied once, from
//! the chunk into its packet slot, as `udp` copies from the socket buffer. Both sources use the same window and
//! formats.
//!
//! # Ledger
//! Events are counted as in [`crate::udp`]. Evidence for `kernel_drop` are the counters of the queue's socket: no free
//! chunk, and full ring. With zero copy, the source also uses how often the NIC's driver found no free chunk. This is
//! weak evidence, since the driver may find one before a packet is lost. Packets that the NIC drops earlier appear only
//! in its own counters (`ethtool -S`) and count as `wire_gap`. `rejected` also counts packets with contradictory
//! headers, and packets with a wrong checksum of IPv4 or UDP, unless `checksums = false`.
//!
//! # Time
//! The program cannot add timestamps. Each packet gets the host's time when its batch is received (`host` in reports),
//! unless the packet format contains timestamps.
//!
//! # Why no crate for the sockets
//! The available crates allocate the packet memory themselves, but daq must pin it and allocate it in huge pages on the
//! NIC's NUMA node. The crate `rustix` supports the socket options. The remaining parts, two rings and five calls of
//! `bpf`, are in `sys/xdp` and `sys/bpf`.
//!
//! # Limits
//! Only one program can be attached to an interface, so only one source can use it. If the sender on a virtual
//! interface uses segmentation offload, a program after the driver (`attach = "generic"`) receives unsegmented
//! messages. A message longer than a chunk is lost. VLAN tags are not compared: packets with and without a tag are
//! accepted, because many NICs remove the tag before the program runs.
//!
//! Tested with virtual Ethernet interfaces. Not yet tested on a NIC with zero copy.

pub mod checksum;
mod filler;
pub mod headers;
mod keys;
mod link;
mod program;

use keys::XdpConfig;

use crate::packet::Origins;
use crate::packet::frames::Frames;
use crate::packet::section;
use crate::sender::SenderWatch;
use crate::silence;
use crate::sys::interface::Interface as Card;
use crate::sys::socket::{Interface, Options, SocketError, Timestamps, UdpSocket};
use daq_core::claim::Claim;
use daq_core::config::Problem;
use daq_core::entry::{FrameFacts, SourceContext, SourceEntry, SourceFacts, SourceSpec};
use daq_core::source::{Filler, Producers, SourceError};
use daq_core::units::ByteSize;
use filler::{Parts, Receiver, Stack};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The registry entry of the source.
pub const ENTRY: SourceEntry = SourceEntry {
    name: "xdp",
    summary: "Packets of a network instrument, bypassing the Linux network stack (AF_XDP): raw, SPEAD, VITA 49 or VDIF",
    example: EXAMPLE,
    schema: |registry| {
        let keys = schemars::schema_for!(XdpConfig);
        let defaults = [("receive_buffer", RECEIVE_BUFFER.to_string().into())];
        section::with_format(registry, section::with_defaults(keys, defaults), true)
    },
    parse: |section, registry, diagnostics| {
        let (format, config) = section::read(section, registry, diagnostics, XdpConfig::problems)?;
        let threads = config.queues.0.len();
        let origins = Origins::new(&config.listen.0, &config.socket_keys.senders());
        let frames = Frames::new(format, &config.packet_keys, &origins, threads, link::BATCH);
        Some(Box::new(Xdp { config, frames }))
    },
    recognise: &[],
};

/// Number of bytes per chunk in the two rings: the chunk's address in the fill ring, and its descriptor in the receive ring.
const RING_BYTES: usize = 8 + 16;
/// Default size of the receive buffer for packets from the Linux network stack.
const RECEIVE_BUFFER: ByteSize = ByteSize(8 << 20);

const EXAMPLE: &str = section::example!(
    r#"[source.NAME]
driver    = "xdp"
ring      = "OUTPUT"
interface = "eth1"
listen    = "10.0.0.1:4950"   # or several; a multicast group is joined automatically
samples   = { type = "int16", complex = true, channels = 1, rate = "1 MHz" }
# from    = ["10.0.0.5", "10.1.0.0/16"]  # accept only packets from these senders
# queues  = 1                 # receive queues 0 to N-1, or a list of queue numbers: [0, 3]; one thread per queue
# cores   = [2]               # one CPU core for each thread
# mode    = "auto"            # or "zero-copy", "copy"
# attach  = "auto"            # or "native", "generic"
# chunk   = "4 KiB"           # memory per packet; a longer packet uses several chunks
# packets = 4096              # number of packets that Linux stores per queue while its thread is delayed
# checksums = true            # verify the checksums of IPv4 and UDP
"#,
    r#""1 KiB""#
);

/// A source whose configuration was checked.
#[derive(Debug)]
struct Xdp {
    config: XdpConfig,
    frames: Frames,
}

impl Xdp {
    /// Opens ordinary sockets on the addresses. They claim the ports, join the groups, and receive what the program
    /// passes on.
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
            timestamps: Timestamps::Software,
            // Only the XDP queues are polled.
            busy_poll: Duration::ZERO,
            interface: Some(Interface::Name(self.config.interface.clone())),
            ..self.config.socket_keys.options(RECEIVE_BUFFER)
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
    fn facts(&self) -> SourceFacts {
        let XdpConfig {
            interface, listen, ..
        } = &self.config;
        let ports = listen.0.iter().copied().map(Claim::UdpPort);
        let origins = listen.0.iter().map(|address| {
            let kind = if address.ip().is_multicast() {
                ", multicast"
            } else {
                ""
            };
            format!("UDP {address} on {interface}{kind}, bypassing the Linux network stack")
        });
        let port = listen.0.first().map_or(0, SocketAddr::port);
        let mut facts = self.frames.facts();
        facts.notes.extend(self.config.socket_keys.note());
        let config = self.config.clone();
        SourceFacts {
            claims: ports.chain([Claim::Device(interface.clone())]).collect(),
            origins: origins.collect(),
            cores: self.config.cores.clone(),
            silence_hint: Box::new(move || {
                let is_filtered = config.socket_keys.from.is_some();
                silence::hint(&config.listen.0, &[], Some(&config.interface), is_filtered)
            }),
            inspect_advice: (port != 0).then(|| {
                format!("stop daq and run `daq inspect --interface {interface} --port {port}`")
            }),
            ..facts
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let frames = self.frames.in_slots(slot_bytes)?;
        let packets = self.config.packets as usize;
        let chunks = self.config.chunk_bytes() * packets;
        let packet = link::planned_max_packet(&self.config);
        let memory = (0..self.config.queues.0.len())
            .map(|i| frames.memory + chunks + RING_BYTES * packets + filler::memory(packet, i == 0))
            .sum();
        Ok(FrameFacts { memory, ..frames })
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let mut stack = Stack::new(self.stack()?)
            .map_err(|errno| SourceError::new("waiting for several sockets", errno.to_string()))?;
        let opened = link::open(&self.config, &self.config.listen.0)?;
        stack.empty().map_err(|why| {
            SourceError::new(
                "discarding the packets that arrived before the start",
                why.to_string(),
            )
        })?;
        let mut stack = Some(stack);
        for sentence in &opened.notes {
            tracing::info!("source {}: {sentence}", context.name);
        }
        let format = self.frames.start(context);
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
                verifies: self.config.checksums,
                polls: !self.config.socket_keys.busy_poll.0.is_zero(),
            };
            Box::new(Receiver::new(parts)) as Box<dyn Filler>
        });
        Ok(Producers::Fillers(fillers.collect()))
    }
}
