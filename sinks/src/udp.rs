//! `udp` sends frames as UDP packets, in the packet formats that sources receive.
//!
//! ```text
//!   frame ──▶ [split] ──▶ packets of receiver 0 ──▶ socket 0
//!                    └──▶ packets of receiver 1 ──▶ socket 1
//! ```
//! A packet has the number that the frame has in daq, so the receiver sees frames and packets that daq lost as lost. Packets
//! whose data the frame lacks are not sent.
//!
//! The payload is not copied: Linux reads it from the ring. Packets of equal size are passed to Linux as one message, which
//! Linux or the network card splits (segmentation offload). Frames of a ring on a GPU are first copied to host memory, as the
//! plan shows.
//!
//! # Rate
//! Without `rate`, packets are sent as fast as frames arrive. With `rate`, the sink sends short bursts and sleeps between them.
//! Each message also has a send time (`SO_TXTIME`): the queueing discipline `fq` spaces the messages of a burst evenly.
//!
//! # Ledger
//! `packets` counts the packets of frames that the sink began to send. Each of them was sent, was absent because the frame
//! lacks its data, was refused by Linux, or is pending. The sink never waits for the receiver. If Linux refuses packets, the
//! sink counts them and continues with the next packets; a full send queue is first given one second to drain. `undeliverable`
//! counts reports of the network, such as "port unreachable", about packets that were sent.

pub(crate) mod counts;
mod format;
mod pacer;
mod share;
mod transmit;

use crate::layout::check_layout;
use crate::peer::StallCounts;
use counts::UdpCounts;
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, List, Listed, Problem, Section};
use daq_core::entry::{Registry, SinkEntry};
use daq_core::layout::{Layout, Scalar};
use daq_core::ledger::CountSet;
use daq_core::outgoing::{OutgoingFormat, OutgoingFrames, PacketBuilder};
use daq_core::sink::{RingFrames, Sink, SinkContext, SinkError, SinkFacts, SinkNeeds, SinkSpec};
use daq_core::units::{BitRate, ByteSize, Span};
use daq_net::interface::Interface;
use daq_net::send::{Options, Sender};
use schemars::JsonSchema;
use serde::Deserialize;
use share::{Share, Split};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use transmit::{Receiver, Transmitter};

/// The counters of a sink `udp`.
const COUNTS: [&CountSet; 2] = [StallCounts::SET, UdpCounts::SET];

/// Registry entry of `udp`.
pub(crate) const ENTRY: SinkEntry = SinkEntry {
    name: "udp",
    summary: "Sends frames as UDP packets to one or several addresses or multicast groups",
    example: "\
[sink.NAME]
driver = \"udp\"
input = \"INPUT\"
# Addresses or multicast groups that receive the packets.
to = [\"239.1.0.1:7148\"]
# With several receivers: whole \"frames\" in turn, or of each frame the \"channels\" or \"parts\".
# split = \"frames\"
# Maximum rate of the packets to all receivers, with their headers; default: as fast as frames arrive.
# rate = \"8 Gbit/s\"
# Interface of the packets; default: the routing table selects it. Name it for multicast.
# interface = \"eth1\"
# Maximum number of routers that a packet passes; default: 1 for multicast, else the setting of the system.
# ttl = 4
# Source port; default: Linux selects one.
# port = 7000
# Size of the send buffer of each socket.
# send_buffer = \"4 MiB\"
# Let Linux or the network card split large messages into packets.
# offload = true
# Time between two descriptions of the stream (SPEAD: descriptors, VITA 49: context packets).
# describe = \"5 s\"

[sink.NAME.format]
kind = \"spead\"                # or \"raw\", \"vita49\"; the keys are those of a source
",
    schema: |registry| format::with_format(registry, schemars::schema_for!(UdpKeys)),
    parse,
    recognise: &[],
};

/// Maximum size in bytes of a packet, without IP and UDP headers, if the format selects the size: that of an Ethernet frame
/// without jumbo frames.
const fn max_packet(to: SocketAddr) -> usize {
    1500 - headers(to)
}

/// Size in bytes of the IP and UDP headers of packets to `to`.
const fn headers(to: SocketAddr) -> usize {
    if to.is_ipv4() { 28 } else { 48 }
}

/// An address with a port that packets are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct To(SocketAddr);

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "\"{text}\" is not an IP address with a port; try \"10.0.0.2:7148\" or \"[fd00::2]:7148\""
            )
        };
        let address: SocketAddr = text.parse().map_err(|_| wrong())?;
        if address.port() == 0 || address.ip().is_unspecified() {
            return Err(format!(
                "\"{text}\" cannot receive packets: name the address and the port of a receiver, such as \"10.0.0.2:7148\""
            ));
        }
        Ok(Self(address))
    }
}

impl fmt::Display for To {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Listed for To {
    const NAME: &'static str = "To";
    const WHAT: &'static str = "an address and a port such as \"239.1.0.1:7148\"";
    const EXAMPLES: [&'static str; 2] = ["239.1.0.1:7148", "10.0.0.2:7148"];
}

/// The keys of a `udp` sink, without the table `format`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UdpKeys {
    /// The receivers: addresses or multicast groups with a port, such as `"10.0.0.2:7148"` or `["239.1.0.1:7148",
    /// "239.1.0.2:7148"]`. See `split` for several receivers.
    pub to: List<To>,
    /// How frames are divided among several receivers; default `"frames"`.
    ///
    /// `"frames"`: receiver `i` of `n` gets the frames whose number modulo `n` is `i`, numbered by the quotient, so that each
    /// receiver gets consecutive numbers. `"channels"`: each receiver gets the same number of consecutive channels of each
    /// frame. `"parts"`: each receiver gets an equal, consecutive part of the bytes of each frame: channels if `order` is
    /// `planar`, else points.
    #[serde(default)]
    pub split: Split,
    /// Maximum rate of the packets to all receivers together, such as `"8 Gbit/s"`. Counts the headers of the format, but not
    /// those of Ethernet, IP and UDP. By default, packets are sent as fast as frames arrive.
    pub rate: Option<BitRate>,
    /// The interface of the packets: its name such as `"eth1"`, or an IPv4 address of it. By default, the routing table selects
    /// the interface. A group needs a route or this key.
    pub interface: Option<String>,
    /// Maximum number of routers that a packet passes, 1 to 255. The default is 1 for groups, else the setting of the system (64).
    pub ttl: Option<u8>,
    /// The source port; by default, Linux selects one for each receiver.
    #[serde(default)]
    pub port: u16,
    /// Size of the send buffer of each socket; default `"4 MiB"`. `net.core.wmem_max` limits the size unless the process has
    /// CAP_NET_ADMIN; a smaller granted size is logged.
    #[serde(default = "send_buffer")]
    pub send_buffer: ByteSize,
    /// Whether Linux or the network card splits large messages into packets, which saves most system calls and CPU time. Default
    /// true. The sink stops using it for a receiver if Linux refuses such messages.
    #[serde(default = "yes")]
    pub offload: bool,
    /// Time between two descriptions of the stream, for formats that have them: descriptors of SPEAD, context packets of
    /// VITA 49. A description is always sent before the first frame. Default `"5 s"`; `"0 s"` sends no further descriptions.
    #[serde(default = "describe")]
    pub describe: Span,
}

const fn send_buffer() -> ByteSize {
    ByteSize(4 << 20)
}

const fn yes() -> bool {
    true
}

const fn describe() -> Span {
    Span(Duration::from_secs(5))
}

/// Maximum number of receivers of one sink.
const MAX_RECEIVERS: usize = 1024;

impl UdpKeys {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut add = |key: &str, message: String, help: &str| {
            problems.push(Problem::at(key, message).help(help));
        };
        let to = &self.to.0;
        if to.is_empty() || to.len() > MAX_RECEIVERS {
            let message = format!(
                "`to` must name 1 to {MAX_RECEIVERS} receivers, not {}",
                to.len()
            );
            add("to", message, "try to = \"10.0.0.2:7148\"");
        }
        if let Some(twice) = (1..to.len()).find(|i| to[..*i].contains(&to[*i])) {
            let message = format!("{} is in `to` twice", to[twice]);
            add("to", message, "name each receiver once");
        }
        if self.rate.is_some_and(|rate| rate.0 < 1.0) {
            add(
                "rate",
                "`rate` must be at least 1 bit/s".to_owned(),
                "remove `rate` to send as fast as frames arrive",
            );
        }
        if self.ttl == Some(0) {
            add(
                "ttl",
                "packets with `ttl = 0` do not leave this host".to_owned(),
                "set `ttl` to at least 1",
            );
        }
        problems
    }

    fn receivers(&self) -> impl Iterator<Item = SocketAddr> {
        self.to.0.iter().map(|to| to.0)
    }

    fn options(&self) -> Options {
        Options {
            offload: self.offload,
            interface: self.interface.as_deref().map(Interface::from),
            ttl: self.ttl,
            port: self.port,
            send_buffer: self.send_buffer.bytes().unwrap_or(usize::MAX),
            paced: self.rate.is_some(),
            strict: true,
        }
    }
}

fn parse(
    section: &mut Section,
    registry: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn SinkSpec>> {
    let format = format::take(section, registry, diagnostics);
    let keys = section.finish_checked(&[], diagnostics, UdpKeys::problems)?;
    Some(Box::new(Udp {
        keys,
        format: Arc::from(format?),
    }))
}

/// The checked configuration of a `udp` sink.
#[derive(Clone)]
struct Udp {
    keys: UdpKeys,
    format: Arc<dyn OutgoingFormat>,
}

impl Udp {
    /// Returns the share of each receiver in frames of `layout` with `frame_bytes` bytes, and the builder of its packets.
    fn stream(
        &self,
        layout: &Layout,
        frame_bytes: usize,
    ) -> Result<(Share, Box<dyn PacketBuilder>), Problem> {
        let share = Share::new(self.keys.split, self.keys.to.0.len(), layout, frame_bytes)?;
        let max_packet = self.keys.receivers().map(max_packet).min();
        let builder = self.format.builder(&OutgoingFrames {
            layout: share.layout.clone(),
            frame_bytes: share.bytes,
            is_continuous: share.is_continuous,
            max_packet: max_packet.unwrap_or(0),
        })?;
        Ok((share, builder))
    }
}

impl SinkSpec for Udp {
    fn facts(&self) -> SinkFacts {
        let receivers = self.keys.receivers();
        SinkFacts {
            // Packets of two sinks to one receiver would mix.
            claims: receivers
                .map(|to| Claim::Device(format!("receiver {to}")))
                .collect(),
            counts: COUNTS.to_vec(),
            warnings: self.format.warnings(),
            ..SinkFacts::default()
        }
    }

    fn needs(&self, frames: RingFrames<'_>) -> Result<SinkNeeds, Problem> {
        check_layout(frames.layout, "udp", Scalar::bytes)?;
        self.stream(frames.layout, frames.layout.frame_bytes())?;
        let split = match self.keys.split {
            Split::Channels => frames.slot_bytes,
            _ => 0,
        };
        Ok(SinkNeeds {
            memory: transmit::HEADER_BYTES + split,
            note: None,
        })
    }

    fn build(&self, context: SinkContext) -> Result<Box<dyn Sink>, SinkError> {
        let options = self.keys.options();
        let mut receivers = Vec::new();
        for to in self.keys.receivers() {
            let sender = Sender::with_options(to, &options).map_err(|error| SinkError::Failed {
                what: format!("receiver {to}"),
                why: error.to_string(),
            })?;
            receivers.push(Receiver::new(to, sender));
        }
        let asked = options.send_buffer;
        let granted = receivers
            .first()
            .and_then(|receiver| receiver.sender.send_buffer().ok());
        if let Some(granted) = granted.filter(|granted| *granted < asked) {
            tracing::info!(
                "sink {}: send buffer: {granted} of {asked} bytes granted; raise the limit: sudo sysctl -w \
                 net.core.wmem_max={asked}",
                context.name
            );
        }
        let sink = Transmitter::open(self.clone(), receivers, context)?;
        Ok(Box::new(sink))
    }
}
