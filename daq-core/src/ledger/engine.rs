//! Counters of a DMA engine, in addition to the frames of its source.

use super::metric::{Put, Sample, Sampled};
use super::stored::{State, Stored, Word};
use super::{Counter, CounterFile, CounterFileError};
use serde::Serialize;
use std::collections::BTreeMap;

/// Whether the data path of a DMA engine has been verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PathState {
    /// No transfer has arrived yet.
    #[default]
    Unverified,
    /// The first transfer wrote exactly what the engine reported, and nothing else.
    Verified,
    /// The first transfer did not write what the engine reported. If the ring is on a GPU, frames are now copied
    /// through host memory.
    Failed,
}

impl PathState {
    /// Returns the name used in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unverified => "unverified",
            Self::Verified => "verified",
            Self::Failed => "failed",
        }
    }
}

impl Word for PathState {
    fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Verified,
            2 => Self::Failed,
            _ => Self::Unverified,
        }
    }

    fn to_word(self) -> u64 {
        self as u64
    }
}

impl Sampled for PathState {
    fn sample(&self, put: Put<'_>) {
        put(Sample::Value(self.to_word() as f64));
    }
}

ledger! {
    /// The counters of a DMA engine.
    ledger EngineLedger {}
    /// A snapshot of an engine's counters.
    report EngineReport ["source"] {
        /// Number of times that a DMA engine switched from direct writes to the path through host memory.
        fallbacks: u64 = Counter, counter "daq_path_fallback_total" {
            meaning: "The device wrote to a wrong address, or could not access the memory of the ring. The frames \
                      now go through host memory.",
            cause: "Peer-to-peer writes between two PCIe slots of this machine do not arrive.",
            remedy: "`daq topo` names the slots. Move the card, or set path = \"staged\".",
        },
        /// Whether the data path of a DMA engine was verified: 0 not yet, 1 verified, 2 failed.
        path: PathState = State<PathState>, gauge "daq_path_state" {
            meaning: "The first transfer is compared with a pattern that was written to its slot before.",
            cause: "Value 0: no transfer yet. Value 2: the engine reported a transfer whose data did not arrive.",
            remedy: "Value 0: check whether the FPGA design sends data. Value 2: run `dmesg | grep -iE \
                     'dmar|iommu|aer'` and look for IOMMU or PCIe errors.",
        },
        /// Number of times that a DMA engine was restarted after a fault.
        restarts: u64 = Counter, counter "daq_engine_restarts_total" {
            meaning: "Each restart interrupts the stream.",
            cause: "Faults on the bus or in the FPGA design.",
            remedy: "daq_engine_faults_total names the faults.",
        },
        /// Number of times that a DMA engine did not stop in time (quiesce timeout).
        quiesce_timeouts: u64 = Counter, counter "daq_engine_quiesce_timeouts_total" {
            meaning: "Bus mastering was disabled and the device was reset before its memory was freed.",
            cause: "The FPGA design hangs.",
            remedy: "Check whether the FPGA design ends its streams and has a running clock.",
        },
        /// Faults that a DMA engine reported, by name.
        faults: BTreeMap<&'static str, u64>, counter "daq_engine_faults_total" by "fault" {
            meaning: "The error bits of the engine's status register, by name.",
            cause: "The label `fault` names the cause. Read errors and unsupported requests are bus faults. The \
                    reference of each source lists its faults.",
            remedy: "Bus faults: run `dmesg | grep -iE 'dmar|iommu|aer'` and look for IOMMU or PCIe errors. Other \
                     faults: check the FPGA design.",
        },
    }
}

/// The counters of a DMA engine, and one for each fault that it can report.
#[derive(Clone, Debug, Default)]
pub struct EngineCounters {
    /// The counters that every engine has.
    pub ledger: EngineLedger,
    faults: Vec<(&'static str, Counter)>,
}

impl EngineCounters {
    /// Creates counters in `counter_file`, named `PREFIX.FIELD` and `PREFIX.fault.NAME`.
    pub fn on(
        counter_file: &CounterFile,
        prefix: &str,
        faults: &[&'static str],
    ) -> Result<Self, CounterFileError> {
        let faults = faults.iter().map(|name| {
            let counter = counter_file.counter(&format!("{prefix}.fault.{name}"))?;
            Ok((*name, counter))
        });
        Ok(Self {
            ledger: EngineLedger::on(counter_file, prefix)?,
            faults: faults.collect::<Result<_, CounterFileError>>()?,
        })
    }

    /// Records the result of the data path verification.
    pub fn set_path(&self, path: PathState) {
        self.ledger.path.set(path);
    }

    /// Counts a fault by its name and returns whether it is the first fault with this name. A fault that was not
    /// declared is not counted.
    pub fn fault(&self, name: &str, times: u64) -> bool {
        let Some((_, counter)) = self.faults.iter().find(|(known, _)| *known == name) else {
            return false;
        };
        let is_first = counter.get() == 0;
        counter.add(times);
        is_first
    }

    /// Returns the names of the faults and their counts.
    pub fn faults(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.faults
            .iter()
            .map(|(name, counter)| (*name, counter.get()))
    }
}

impl EngineReport {
    /// Reads the counters. Faults that never occurred are left out.
    pub fn of(counters: &EngineCounters) -> Self {
        Self {
            faults: counters.faults().filter(|(_, count)| *count > 0).collect(),
            ..counters.ledger.read()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_faults_are_counted_by_name() {
        let counters = EngineCounters::on(
            &CounterFile::in_memory(),
            "source.adc.engine",
            &["magic", "align"],
        )
        .unwrap();
        assert_eq!(EngineReport::of(&counters), EngineReport::default());
        counters.fault("align", 2);
        counters.fault("unknown", 1);
        counters.set_path(PathState::Failed);
        let report = EngineReport::of(&counters);
        assert_eq!(report.faults, BTreeMap::from([("align", 2)]));
        assert_eq!(report.path, PathState::Failed);
    }
}
