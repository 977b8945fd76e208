//! The keys of a `udp` source.

use super::timestamps::TimestampSource;
use crate::packet::PacketKeys;
use crate::socket::SocketKeys;
use daq_core::config::List;
use daq_core::config::Problem;
use daq_core::units::counted;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};

/// Maximum number of sockets per address.
const MAX_SOCKETS: usize = 64;

/// The keys of a `udp` source, without the table `format`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UdpConfig {
    /// Address and port to receive on, such as `"0.0.0.0:4950"`, or an array of such addresses. A multicast group is joined.
    /// Each address has its own socket and thread; all threads fill one window.
    pub listen: List<SocketAddr>,
    /// Number of sockets per address, 1 to 64, each with its own thread. Linux distributes unicast flows over the sockets, each
    /// flow to one of them. A multicast group needs exactly 1.
    #[serde(default = "one")]
    pub sockets: usize,
    /// CPU cores of the threads, one core per thread in the order of addresses and sockets; by default any core.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// Multicast groups to join, such as `["239.1.2.3"]`.
    #[serde(default)]
    pub groups: Vec<IpAddr>,
    /// Network interface on which to join the groups, by name or by its IPv4 address; by default the routing table selects it.
    pub interface: Option<String>,
    /// Receive times of packets, which frames get unless the format has a `timestamp`. `"software"`: Linux reads the host's clock
    /// (clock `kernel`). `"hardware"`: the network card reads its PTP clock (clock `hardware`, usually TAI); daq does not start if
    /// the timestamps of the card are off. If `listen` is `0.0.0.0` or `[::]`, set `interface`; otherwise daq does not know the
    /// card, and packets without a time of the card get that of Linux. `"auto"`: the time of the card if its timestamps are on,
    /// otherwise that of Linux. daq does not turn on the timestamps of a card: run `hwstamp_ctl -i eth1 -r 1`.
    #[serde(default)]
    pub timestamps: TimestampSource,
    /// The keys of Linux sockets.
    #[serde(rename = "..socket_keys")]
    #[schemars(flatten)]
    pub socket_keys: SocketKeys,
    /// The keys about packets and frames.
    #[serde(rename = "..packet_keys")]
    #[schemars(flatten)]
    pub packet_keys: PacketKeys,
}

const fn one() -> usize {
    1
}

impl UdpConfig {
    /// Returns every problem of the configuration.
    pub(super) fn problems(&self) -> Vec<Problem> {
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
        found.extend(self.socket_keys.problems(listen));
        found.extend(self.packet_keys.problems());
        found
    }

    /// Returns the number of threads.
    pub(super) fn threads(&self) -> usize {
        self.listen.0.len() * self.sockets
    }
}
