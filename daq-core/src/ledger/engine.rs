//! What is counted of a DMA engine beside its source's frames.

use super::{Counter, CounterFile, CounterFileError};
use serde::Serialize;
use std::collections::BTreeMap;

/// Whether the path of an engine's bytes was seen to work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Proof {
    /// Nothing has come yet.
    #[default]
    Unproven,
    /// The first transfer wrote what it said, and nothing else.
    Proven,
    /// It did not: frames go through host memory instead, if the ring is on a GPU.
    Disproved,
}

impl Proof {
    /// The name in reports and metrics.
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
        /// Times that it was armed again after it had stopped with a fault.
        restarts,
        /// Times that its path was given up for another.
        fallbacks,
        /// Times that it would not stop and was cut off.
        stuck,
        /// 0 unproven, 1 proven, 2 disproved (gauge).
        proof,
    }
}

/// The counters of a DMA engine and of each fault that it can report.
#[derive(Clone, Debug, Default)]
pub struct EngineCounters {
    /// What every engine has.
    pub ledger: EngineLedger,
    faults: Vec<(&'static str, Counter)>,
}

impl EngineCounters {
    /// Counters on `board`, named `PREFIX.FIELD` and `PREFIX.fault.NAME`.
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

    /// Takes note of what is known of the path.
    pub fn prove(&self, proof: Proof) {
        self.ledger.proof.set(proof as u64);
    }

    /// Counts a fault by its name; true if it is the first of its kind. One that was not announced is not counted.
    pub fn fault(&self, name: &str, times: u64) -> bool {
        let Some((_, counter)) = self.faults.iter().find(|(known, _)| *known == name) else {
            return false;
        };
        let is_first = counter.get() == 0;
        counter.add(times);
        is_first
    }

    /// The counters of faults, by name.
    pub fn faults(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.faults
            .iter()
            .map(|(name, counter)| (*name, counter.get()))
    }
}

/// An engine's counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineReport {
    /// Whether its path was seen to work.
    pub proof: Proof,
    /// Times that it was armed again after a fault.
    pub restarts: u64,
    /// Times that its path was given up for another.
    pub fallbacks: u64,
    /// Times that it would not stop and was cut off.
    pub stuck: u64,
    /// Faults that it reported, by name; those that never came are left out.
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
            stuck: ledger.stuck.get(),
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
        counters.fault("nobody knows it", 1);
        counters.prove(Proof::Disproved);
        let report = EngineReport::of(&counters);
        assert_eq!(report.faults, BTreeMap::from([("align", 2)]));
        assert_eq!(report.proof, Proof::Disproved);
    }
}
