//! Reads the kept fields of packets that are placed.

use super::Depacketizer;
use crate::packet::{Finding, FormatFacts};
use daq_core::reorder::{Batch, Outcome};

/// Whether fields are kept, and whether a missing field was logged.
#[derive(Debug)]
pub(super) struct Keeping {
    /// Number of kept fields.
    fields: usize,
    is_missing_logged: bool,
}

impl Keeping {
    pub(super) fn of(format: &FormatFacts) -> Self {
        Self {
            fields: format.kept.len(),
            is_missing_logged: false,
        }
    }

    /// Returns whether frames keep fields.
    pub(super) const fn is_active(&self) -> bool {
        self.fields > 0
    }
}

impl Depacketizer {
    /// Stores the kept fields of `packet`, packet `sub` of its unit, which was placed with `outcome`.
    pub(super) fn keep_fields(
        &mut self,
        batch: &mut Batch<'_>,
        outcome: Outcome,
        sub: u32,
        packet: &[u8],
    ) {
        let mut read = None;
        batch.keep_fields(outcome, || *read.insert(self.format.read_kept(packet)));
        if let Some(kept) = read
            && sub == 0
            && !self.keeping.is_missing_logged
            && let Some(missing) = (0..self.keeping.fields).find(|i| kept.get(*i).is_none())
        {
            self.keeping.is_missing_logged = true;
            if let Some(why) = self.format.explain(Finding::NoKeptField(missing), packet) {
                tracing::warn!("source {}: frames lack a kept field: {why}", self.name);
            }
        }
    }
}
