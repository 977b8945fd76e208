//! Reads the port counters that indicate problems. The counters are read twice, because only an increase is a warning.

use super::{NICS, Port};
use crate::doctor::check::{Finding, finding};
use crate::doctor::drops::CounterChange;
use crate::doctor::root::Root;
use std::collections::BTreeMap;
use std::time::Duration;

/// Counters that indicate the same problem.
struct Trouble {
    name: &'static str,
    /// What is counted, as a plural noun.
    what: &'static str,
    /// Paths of counter files below the port's directory. A card provides some of these files.
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
        why: "the link corrupts or loses packets",
        fix: "sudo mlxlink -d CARD -c  # shows bit errors; replace the cable or module, clean fibres",
    },
    Trouble {
        name: "packets out of order",
        what: "packets",
        files: &[
            "hw_counters/out_of_sequence",
            "hw_counters/packet_seq_err",
            "hw_counters/implied_nak_seq_err",
        ],
        why: "the network loses or reorders packets; an RC sender retransmits all packets from the lost one on, and a UC stream loses the frame",
        fix: "mlnx_qos -i NETDEV; ethtool -S NETDEV | grep -E 'pause|discard|out_of_buffer'  # check PFC on card and switch",
    },
    Trouble {
        name: "missing acknowledgements",
        what: "time-outs",
        files: &["hw_counters/local_ack_timeout_err"],
        why: "the peer or the network did not answer in time",
        fix: "ethtool -S NETDEV | grep -E 'pause|discard'; daq doctor  # also on the peer; check the MTU, PFC and the peer's port",
    },
    Trouble {
        name: "receiver not ready",
        what: "refusals",
        files: &["hw_counters/rnr_nak_retry_err", "hw_counters/out_of_buffer"],
        why: "a message arrived while the receiver had no posted receive",
        fix: "daq plan daq.toml  # on the receiver: use more slots in the ring or faster readers",
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
        why: "switches mark packets and senders slow down, because the network is congested",
        fix: "mlnx_qos -i NETDEV  # use fewer senders per port, a faster link or another path",
    },
    Trouble {
        name: "rejected accesses",
        what: "accesses",
        files: &[
            "hw_counters/resp_remote_access_errors",
            "hw_counters/req_remote_access_errors",
        ],
        why: "a peer accessed memory without permission; possible causes are a stale remote key after a reconnection, a wrong address or an unknown sender",
        fix: "rdma resource show qp  # lists the connected queue pairs; then check the configuration of those peers",
    },
];

/// The counters of all ports at one point in time.
#[derive(Clone, Debug, Default)]
pub(in crate::doctor) struct Counters {
    /// The values of the counters, by the path of the counter file.
    values: BTreeMap<String, u64>,
    /// Time between the two readings; `None` if the counters were read only once.
    watched: Option<Duration>,
}

impl Counters {
    /// Reads the counters of all ports once.
    pub(in crate::doctor) fn read(root: &Root) -> Self {
        let mut values = BTreeMap::new();
        for card in root.names(NICS) {
            for port in root.names(&format!("{NICS}/{card}/ports")) {
                for file in TROUBLES.iter().flat_map(|trouble| trouble.files) {
                    let path = format!("{NICS}/{card}/ports/{port}/{file}");
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

    /// Sets the time between this reading and the next reading to `time`.
    pub(in crate::doctor) fn ago(self, time: Duration) -> Self {
        Self {
            watched: Some(time),
            ..self
        }
    }

    /// Returns the increase of a port's counters between this reading and `now`, for each problem that the card counts.
    pub(super) fn watched(&self, now: &Self, port: &Port<'_>) -> Vec<Finding> {
        let found = TROUBLES.iter().filter_map(|trouble| {
            let mut counted: Vec<(String, u64, Option<u64>)> = Vec::new();
            for file in trouble.files {
                let path = port.file(file);
                let Some(&total) = now.values.get(&path) else {
                    continue;
                };
                let grown = self
                    .values
                    .get(&path)
                    .map(|then| total.saturating_sub(*then));
                counted.push((path, total, grown));
            }
            // The finding's origin is the counter with the largest increase or, if none increased, the largest counter.
            let worst = counted
                .iter()
                .max_by_key(|(_, total, grown)| (*grown, *total));
            let from = worst?.0.clone();
            let grown: Option<u64> = counted.iter().map(|(_, _, grown)| *grown).sum();
            let fix = trouble.fix.replace("NETDEV", port.interface());
            let change = CounterChange {
                what: trouble.what,
                total: counted.iter().map(|(_, total, _)| total).sum(),
                grown: grown.zip(self.watched),
                min: 1,
                why: trouble.why,
                fix: fix.replace("CARD", &port.card.nic.name),
            };
            finding(port.group(), trouble.name, from, Some(change.judge()))
        });
        found.collect()
    }
}
