//! Counters of a DMA engine, in addition to the frames of its source.

use super::{Counter, CounterFile, CounterFileError};
use serde::Serialize;
use std::collections::BTreeMap;

/// Whether the data path of a DMA engine has been verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Proof {
    /// No transfer has arrived yet.
    #[default]
    Unproven,
    /// The first transfer wrote exactly what the engine reported, and nothing else.
    Proven,
    /// The first transfer did not write what the engine reported. If the ring is on a GPU, frames are now copied
    /// through host memory.
    Disproved,
}

impl Proof {
    /// Returns the name used in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unproven => "unproven",
            Self::Proven => "proven",
            Self::Disproved => "disproved",
        }
    }
}

ledger! {
    /// The counters of a DMA engine.
    EngineLedger {
        /// Number of times that the engine was armed again after a fault stopped it.
        restarts,
        /// Number of times that the data path was replaced by another.
        fallbacks,
        /// Number of times that the engine did not stop in time and its device was reset.
        quiesce_timeouts,
        /// Result of the verification of the data path: 0 unproven, 1 proven, 2 disproved (gauge).
        proof,
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
    pub fn prove(&self, proof: Proof) {
        self.ledger.proof.set(proof as u64);
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

/// A snapshot of an engine's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineReport {
    /// Whether the data path has been verified.
    pub proof: Proof,
    /// Number of times that the engine was armed again after a fault.
    pub restarts: u64,
    /// Number of times that the data path was replaced by another.
    pub fallbacks: u64,
    /// Number of times that the engine did not stop in time and its device was reset.
    pub quiesce_timeouts: u64,
    /// Reported faults by name; faults that never occurred are left out.
    pub faults: BTreeMap<&'static str, u64>,
}

impl EngineReport {
    /// Reads the counters.
    pub fn of(counters: &EngineCounters) -> Self {
        let ledger = &counters.ledger;
        Self {
            proof: match ledger.proof.get() {
                1 => Proof::Proven,
                2 => Proof::Disproved,
                _ => Proof::Unproven,
            },
            restarts: ledger.restarts.get(),
            fallbacks: ledger.fallbacks.get(),
            quiesce_timeouts: ledger.quiesce_timeouts.get(),
            faults: counters.faults().filter(|(_, count)| *count > 0).collect(),
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
        counters.prove(Proof::Disproved);
        let report = EngineReport::of(&counters);
        assert_eq!(report.faults, BTreeMap::from([("align", 2)]));
        assert_eq!(report.proof, Proof::Disproved);
    }
}
