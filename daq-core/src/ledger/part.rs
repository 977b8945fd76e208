//! The ledgers of the parts of a source's frames: detector modules, antennas, or other senders.

use super::stored::{Balanced, Make, Stored};
use super::{Counter, CounterFile, CounterFileError};
use std::collections::BTreeMap;
use std::sync::Arc;

ledger! {
    /// The counters of one part of a source's frames.
    ledger PartLedger {}
    /// A snapshot of the ledger of one part.
    report PartReport ["source", "part"] {
        /// Packets of the part in frames that were closed.
        expected: u64 = Counter, counter "daq_part_expected_packets_total" {
            meaning: "Always the sum of delivered, pending and lost. The label `part` is the port, address or number in \
                      the key `part`. Packets of open frames are not included.",
        },
        /// Packets of the part in published frames.
        delivered: u64 = Counter, counter "daq_part_delivered_packets_total" {
            meaning: "The rate is 0 while the part is silent.",
            cause: "A rate of 0: the module or antenna is off, its cable is unplugged, or its frame numbers differ from those \
                    of the other parts.",
            remedy: "Compare daq_part_rejected_packets_total: if it grows, restart all parts together.",
        },
        /// Packets of the part that are missing in closed frames, and are not counted as lost yet.
        pending: u64, gauge "daq_part_pending_packets" {
            meaning: "A packet that is missing when its frame is closed is pending until no late copy of it can arrive any more. \
                      It is then lost. The value is low unless the part loses packets.",
            cause: "A high value: the sender of this part is silent, or sends its packets later than the other parts.",
            remedy: "Compare daq_part_delivered_packets_total with the other parts; if packets arrive, but too late, raise \
                     `window` of the source.",
        },
        /// Packets of the part that were lost, for any cause.
        lost: u64 = Counter, counter "daq_part_lost_packets_total" {
            meaning: "The causes are in daq_source_lost_packets_total.",
            cause: "As for daq_source_lost_packets_total.",
            remedy: "If only one part loses packets, check the cable, port and power of its sender.",
        },
        /// Packets of the part whose packet slot was already filled; not included in daq_part_expected_packets_total.
        duplicates: u64 = Counter, counter "daq_part_duplicate_packets_total" {
            meaning: "The first packet was kept, this packet was dropped.",
            cause: "Two senders with the same number, port or address of the part, two paths through the network, or a sender \
                    that repeats packets.",
            remedy: "If two modules or antennas are configured with the same number, give each its own. If a second number \
                     distinguishes senders, set `part` to a list of both.",
        },
        /// Packets of the part with implausible numbers.
        rejected: u64 = Counter, counter "daq_part_rejected_packets_total" {
            meaning: "A new epoch starts only if most parts confirm it, so one part that restarts alone is rejected.",
            cause: "The sender of this part has restarted, and the others have not.",
            remedy: "Restart the numbering of all senders together.",
        },
    }
    equation expected = delivered + lost, pending;
}

/// The ledgers of the parts of a source's frames, in the order of the parts. Empty if frames have one part.
#[derive(Clone, Debug, Default)]
pub struct PartLedgers(Arc<[(String, PartLedger)]>);

impl PartLedgers {
    /// Creates the counters of the parts `names` of `source` in `counter_file`.
    pub fn on(
        counter_file: &CounterFile,
        source: &str,
        names: &[String],
    ) -> Result<Self, CounterFileError> {
        let ledgers = names.iter().map(|name| {
            let ledger = PartLedger::on(counter_file, &format!("part.{source}.{name}"))?;
            Ok((name.clone(), ledger))
        });
        Ok(Self(ledgers.collect::<Result<_, CounterFileError>>()?))
    }

    /// Returns whether frames have one part.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of parts with a ledger.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the ledger of part `part`, if it has one.
    pub(crate) fn get(&self, part: u32) -> Option<&PartLedger> {
        self.0.get(part as usize).map(|(_, ledger)| ledger)
    }
}

impl Stored for PartLedgers {
    type Value = BTreeMap<String, PartReport>;

    /// The names of the parts are not known here, see [`PartLedgers::on`].
    fn create(_: &str, _: &str, _: Make<'_>) -> Result<Self, CounterFileError> {
        Ok(Self::default())
    }

    fn read(&self) -> BTreeMap<String, PartReport> {
        let reports = self.0.iter().map(|(name, ledger)| {
            let mut report = ledger.read();
            report.settle();
            (name.clone(), report)
        });
        reports.collect()
    }
}
