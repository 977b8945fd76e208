//! Counters of ports that tell of trouble, watched for a moment.

use super::super::drops::Watched;
use super::super::root::Root;
use super::{CARDS, Card};
use crate::doctor::Finding;
use daq_core::topology::nic::NicPort;
use std::collections::BTreeMap;
use std::time::Duration;

/// Counters that tell of one trouble.
struct Trouble {
    name: &'static str,
    /// In the plural.
    what: &'static str,
    /// Below the port's directory; those that a card has.
    files: &'static [&'static str],
    why: &'static str,
    fix: &'static str,
}

const TROUBLES: [Trouble; 7] = [
    Trouble {
        name: "link errors",
        what: "errors",
        files: &[
            "counters/symbol_error",
            "counters/link_error_recovery",
            "counters/link_downed",
            "counters/port_rcv_errors",
            "counters/local_link_integrity_errors",
        ],
        why: "the link damages or loses packets",
        fix: "sudo mlxlink -d CARD -c  # bit errors; change cable or module, clean fibres",
    },
    Trouble {
        name: "packets out of order",
        what: "packets",
        files: &[
            "hw_counters/out_of_sequence",
            "hw_counters/packet_seq_err",
            "hw_counters/implied_nak_seq_err",
        ],
        why: "packets are lost or overtake each other in the network, and all since the lost one is sent again; a UC stream loses the frame",
        fix: "mlnx_qos -i NETDEV; ethtool -S NETDEV | grep -E 'pause|discard|out_of_buffer'  # PFC on card and switch",
    },
    Trouble {
        name: "acknowledgements that never came",
        what: "time-outs",
        files: &["hw_counters/local_ack_timeout_err"],
        why: "the peer or the network did not answer in time",
        fix: "ethtool -S NETDEV | grep -E 'pause|discard'; daq doctor  # at the peer, too: MTU, PFC, its port",
    },
    Trouble {
        name: "receiver not ready",
        what: "refusals",
        files: &["hw_counters/rnr_nak_retry_err", "hw_counters/out_of_buffer"],
        why: "a receiver had no posted receive when a message came",
        fix: "daq plan daq.toml  # at the receiver: more slots in the ring, or a reader that keeps up",
    },
    Trouble {
        name: "discards",
        what: "packets",
        files: &[
            "counters/port_xmit_discards",
            "counters/excessive_buffer_overrun_errors",
            "counters/VL15_dropped",
            "hw_counters/rx_discards",
            "hw_counters/rx_icrc_encapsulated",
        ],
        why: "the port dropped packets",
        fix: "mlnx_qos -i NETDEV; ethtool -S NETDEV | grep -E 'pause|discard'",
    },
    Trouble {
        name: "congestion",
        what: "notices",
        files: &[
            "hw_counters/np_cnp_sent",
            "hw_counters/rp_cnp_handled",
            "hw_counters/np_ecn_marked_roce_packets",
        ],
        why: "switches mark packets and senders slow down: the network is fuller than it can carry",
        fix: "mlnx_qos -i NETDEV  # fewer senders to one port, a faster link, or another path",
    },
    Trouble {
        name: "accesses refused",
        what: "accesses",
        files: &[
            "hw_counters/resp_remote_access_errors",
            "hw_counters/req_remote_access_errors",
        ],
        why: "a peer wrote to a forbidden address: an old key after a reconnection, a wrong address, or an unknown sender",
        fix: "rdma resource show qp  # whose queue pairs are connected; then the configuration of those peers",
    },
];

/// Counters of all ports at one moment.
#[derive(Clone, Debug, Default)]
pub(in crate::doctor) struct Counters {
    /// By path.
    values: BTreeMap<String, u64>,
    /// How long they were watched until now, if at all.
    watched: Option<Duration>,
}

impl Counters {
    /// Reads them.
    pub(in crate::doctor) fn read(root: &Root) -> Self {
        let mut values = BTreeMap::new();
        for card in root.names(CARDS) {
            for port in root.names(&format!("{CARDS}/{card}/ports")) {
                for file in TROUBLES.iter().flat_map(|trouble| trouble.files) {
                    let path = format!("{CARDS}/{card}/ports/{port}/{file}");
                    if let Some(value) = root.value(&path) {
                        values.insert(path, value);
                    }
                }
            }
        }
        Self {
            values,
            watched: None,
        }
    }

    /// The same, `time` ago.
    pub(in crate::doctor) fn ago(self, time: Duration) -> Self {
        Self {
            watched: Some(time),
            ..self
        }
    }

    /// What became of a port's until `now`; of troubles alone that the card counts.
    pub(super) fn watched(&self, now: &Self, card: &Card<'_>, port: &NicPort) -> Vec<Finding> {
        let of_port = card.port_file(port, "");
        let found = TROUBLES.iter().filter_map(|trouble| {
            let mut counted: Vec<(&str, u64, Option<u64>)> = Vec::new();
            for file in trouble.files {
                let path = format!("{of_port}{file}");
                let Some(total) = now.values.get(&path) else {
                    continue;
                };
                let then = self.values.get(&path);
                let grown = then.map(|then| total.saturating_sub(*then));
                counted.push((file, *total, grown));
            }
            // The one that grew most, or is the largest, gives the finding its file.
            let worst = counted
                .iter()
                .max_by_key(|(_, total, grown)| (*grown, *total))?;
            let grown: Option<u64> = counted.iter().map(|(_, _, grown)| *grown).sum();
            let interface = port.netdevs.first().map_or("INTERFACE", String::as_str);
            let fix = trouble.fix.replace("NETDEV", interface);
            let watched = Watched {
                finding: card.of_port(port, trouble.name, format!("{of_port}{}", worst.0)),
                what: trouble.what,
                total: Some(counted.iter().map(|(_, total, _)| total).sum()),
                grown: grown.zip(self.watched),
                least: 1,
                why: trouble.why,
                fix: fix.replace("CARD", &card.nic.name),
            };
            Some(watched.finding())
        });
        found.collect()
    }
}
