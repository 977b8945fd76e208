//! The keys of a `udp` source.

use crate::list::List;
use crate::packet::frames;
use crate::sender::{self, Allowed};
use daq_core::config::Problem;
use daq_core::layout::Samples;
use daq_core::units::{ByteSize, Span, counted};
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};

/// Sockets of one address, at most.
const MAX_SOCKETS: usize = 64;

/// One address or several.
pub type Listen = List<SocketAddr>;

/// The keys of a `udp` source, but for the table `format`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UdpConfig {
    /// Address and port to receive on, such as `"0.0.0.0:4950"`, or an array of them; a multicast group is
    /// joined. Each address has its own socket and thread, all fill one window.
    pub listen: Listen,
    /// Sockets of each address, 1 to 64, each with its own thread. The kernel spreads unicast flows over
    /// them, each flow to one; a multicast group needs exactly 1.
    #[serde(default = "one")]
    pub sockets: usize,
    /// Cores for the threads, one each in the order of addresses and sockets; without it, any.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// Senders whose packets are accepted: addresses, networks, or addresses with a port, such as `["10.0.0.5",
    /// "10.1.0.0/16", "10.0.0.7:4000"]`; without it, every sender. The kernel drops the other packets, and counts them among
    /// the drops of the socket, not among `rejected`.
    pub from: Option<List<Allowed>>,
    /// Multicast groups to join, such as `["239.1.2.3"]`.
    #[serde(default)]
    pub groups: Vec<IpAddr>,
    /// The network interface to join them on, by name or by its IPv4 address; without it, the routing table
    /// decides.
    pub interface: Option<String>,
    /// Receive buffer to ask of the kernel for each socket: what it holds while the thread is held up.
    /// Limited by `net.core.rmem_max` unless the process has CAP_NET_ADMIN; what was granted is told.
    #[serde(default = "receive_buffer")]
    pub receive_buffer: ByteSize,
    /// How long a receiving call may poll the network card instead of sleeping, such as `"50 us"`; takes
    /// effect where the card's driver supports it. Without it, the system's value.
    #[serde(default)]
    pub busy_poll: Span,
    /// Frames open at a time, so how far packets may come out of order; at least 1. Without it, as many as hold several
    /// receive batches of each thread, at least 8, as far as the ring has slots: `daq plan` prints the number and the reason.
    /// Where SPEAD sizes are learned, it is computed for the most packets that a slot may hold, not for those of the heaps: set
    /// `window` if `late` grows.
    /// A frame that lacks packets is published when a packet of a frame `window` frames later arrives, or when the source
    /// ends, and never because of time: while the sender is silent, it stays `pending`, and so do complete frames behind it.
    pub window: Option<usize>,
    /// Packets beyond twice the window that may be missing in a row: a longer gap, or a step back, is no
    /// loss but a count that begins anew, an epoch.
    #[serde(default = "frames::default_max_gap")]
    pub max_gap: u64,
    /// Packets in a row that must agree on a number beyond twice the window before any of them is believed. They are
    /// kept aside until then, and rejected if they do not agree. At least 1.
    #[serde(default = "frames::default_resync_after")]
    pub agree: u32,
    /// What the payload means; without it, real int8 of one channel.
    pub samples: Option<Samples>,
}

const fn one() -> usize {
    1
}

const fn receive_buffer() -> ByteSize {
    ByteSize(64 << 20)
}

impl UdpConfig {
    /// Everything that is wrong with it.
    pub fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut must = |holds: bool, key: &str, message: String, help: &str| {
            if !holds {
                found.push(Problem::at(key, message).help(help));
            }
        };
        let listen = &self.listen.0;
        must(
            !listen.is_empty(),
            "listen",
            "no address to listen on".into(),
            "give one such as \"0.0.0.0:4950\"",
        );
        for (i, address) in listen.iter().enumerate() {
            let is_other = |other: &SocketAddr| {
                let either_any = other.ip().is_unspecified() || address.ip().is_unspecified();
                other.port() != address.port() || (other.ip() != address.ip() && !either_any)
            };
            must(
                listen[..i].iter().all(is_other),
                &format!("listen.{i}"),
                format!("{address} takes what another address of the list takes"),
                "give each another port, or remove one; `sockets` gives one address several sockets",
            );
        }
        must(
            (1..=MAX_SOCKETS).contains(&self.sockets),
            "sockets",
            format!("{} sockets; 1 to {MAX_SOCKETS} are possible", self.sockets),
            "one a flow is enough: the kernel never spreads one flow",
        );
        let is_multicast =
            !self.groups.is_empty() || listen.iter().any(|address| address.ip().is_multicast());
        must(
            self.sockets <= 1 || !is_multicast,
            "sockets",
            format!(
                "{} sockets for a multicast group: each would get a copy of every packet",
                self.sockets
            ),
            "set `sockets = 1`; give each group a source or an address of its own to spread the load",
        );
        for (i, group) in self.groups.iter().enumerate() {
            let at = format!("groups.{i}");
            let help = "groups are 224.0.0.0 to 239.255.255.255 and ff00::/8";
            must(
                group.is_multicast(),
                &at,
                format!("{group} is no multicast group"),
                help,
            );
            must(
                listen
                    .iter()
                    .any(|address| address.is_ipv4() == group.is_ipv4()),
                &at,
                format!("no socket listens on the protocol of the group {group}"),
                "listen on 0.0.0.0 for IPv4 groups and on [::] for IPv6 groups",
            );
        }
        must(
            self.cores.is_empty() || self.cores.len() == self.threads(),
            "cores",
            format!(
                "{} for {}",
                counted(self.cores.len(), "core"),
                counted(self.threads(), "thread")
            ),
            "give one core for each socket of each address",
        );
        found.extend(sender::problems(self.from.as_ref(), listen));
        found.extend(frames::problems(self.window.unwrap_or(1), self.agree));
        found
    }

    /// Threads that it runs on.
    pub fn threads(&self) -> usize {
        self.listen.0.len() * self.sockets
    }
}
