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

/// Maximum number of sockets per address.
const MAX_SOCKETS: usize = 64;

/// One address or several.
pub type Listen = List<SocketAddr>;

/// The keys of a `udp` source, without the table `format`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UdpConfig {
    /// Address and port to receive on, such as `"0.0.0.0:4950"`, or an array of such addresses. A multicast group is joined.
    /// Each address has its own socket and thread; all threads fill one window.
    pub listen: Listen,
    /// Number of sockets per address, 1 to 64, each with its own thread. Linux distributes unicast flows over the sockets, each
    /// flow to one of them. A multicast group needs exactly 1.
    #[serde(default = "one")]
    pub sockets: usize,
    /// CPU cores of the threads, one core per thread in the order of addresses and sockets; by default any core.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// Senders whose packets are accepted: addresses, networks, or addresses with a port, such as `["10.0.0.5",
    /// "10.1.0.0/16", "10.0.0.7:4000"]`; by default every sender. Linux drops the other packets and counts them among the drops
    /// of the socket, not among `rejected`.
    pub from: Option<List<Allowed>>,
    /// Multicast groups to join, such as `["239.1.2.3"]`.
    #[serde(default)]
    pub groups: Vec<IpAddr>,
    /// Network interface on which to join the groups, by name or by its IPv4 address; by default the routing table selects it.
    pub interface: Option<String>,
    /// Size of the receive buffer of each socket, which stores packets while the thread is delayed. `net.core.rmem_max` limits
    /// the size unless the process has CAP_NET_ADMIN; a smaller granted size is logged.
    #[serde(default = "receive_buffer")]
    pub receive_buffer: ByteSize,
    /// Maximum time that a receive call polls the NIC instead of sleeping, such as `"50 us"`, if the driver of the NIC supports
    /// polling. The default is the setting of the system.
    #[serde(default)]
    pub busy_poll: Span,
    /// Number of frames open at the same time, at least 1. This number limits how far packets may arrive out of order. The
    /// default is large enough for several receive batches of each thread, at least 8, and limited by the number of slots of
    /// the ring; `daq plan` prints the number and the reason. If SPEAD sizes are detected automatically, the default is
    /// computed for the maximum number of packets in a slot: set `window` if `late` grows. A frame with missing packets is
    /// published when a packet of a frame `window` frames later arrives, or when the source ends. There is no timeout: while
    /// the sender is silent, the frame stays `pending`, and so do complete frames behind it.
    pub window: Option<usize>,
    /// Maximum number of packets missing in a row, beyond twice the window. A larger gap, or a step back, is not counted as
    /// loss but starts a new epoch.
    #[serde(default = "frames::default_max_gap")]
    pub max_gap: u64,
    /// Number of packets in a row that must have consistent sequence numbers before daq accepts a jump of more than twice the
    /// window. Until then, daq buffers the packets; if their numbers are not consistent, it rejects them. At least 1.
    #[serde(default = "frames::default_resync_after")]
    pub resync_after: u32,
    /// Type and layout of the payload samples; by default real int8 with one channel.
    pub samples: Option<Samples>,
}

const fn one() -> usize {
    1
}

const fn receive_buffer() -> ByteSize {
    ByteSize(64 << 20)
}

impl UdpConfig {
    /// Returns every problem of the configuration.
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
            "set at least one address and port, such as \"0.0.0.0:4950\"",
        );
        for (i, address) in listen.iter().enumerate() {
            let is_other = |other: &SocketAddr| {
                let either_any = other.ip().is_unspecified() || address.ip().is_unspecified();
                other.port() != address.port() || (other.ip() != address.ip() && !either_any)
            };
            must(
                listen[..i].iter().all(is_other),
                &format!("listen.{i}"),
                format!("{address} overlaps with another address of the list"),
                "use different ports, or remove one address; `sockets` opens several sockets per address",
            );
        }
        must(
            (1..=MAX_SOCKETS).contains(&self.sockets),
            "sockets",
            format!(
                "`sockets` is {}, but must be 1 to {MAX_SOCKETS}",
                self.sockets
            ),
            "one socket per flow is sufficient: Linux never distributes one flow over several sockets",
        );
        let is_multicast =
            !self.groups.is_empty() || listen.iter().any(|address| address.ip().is_multicast());
        must(
            self.sockets <= 1 || !is_multicast,
            "sockets",
            format!(
                "a multicast group cannot have {} sockets, because each socket would receive a copy of every packet",
                self.sockets
            ),
            "set `sockets = 1`; use a separate source or address for each group to distribute the load",
        );
        for (i, group) in self.groups.iter().enumerate() {
            let at = format!("groups.{i}");
            let help = "groups are 224.0.0.0 to 239.255.255.255 and ff00::/8";
            must(
                group.is_multicast(),
                &at,
                format!("{group} is not a multicast group"),
                help,
            );
            must(
                listen
                    .iter()
                    .any(|address| address.is_ipv4() == group.is_ipv4()),
                &at,
                format!("no socket listens on the IP version of the group {group}"),
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
            "list one core for each socket of each address",
        );
        found.extend(sender::problems(self.from.as_ref(), listen));
        found.extend(frames::problems(
            self.window.unwrap_or(1),
            self.resync_after,
        ));
        found
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.listen.0.len() * self.sockets
    }
}
