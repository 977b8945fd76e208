//! Formats the results of the checks as text and as JSON.

use super::target::Memory;
use daq_core::gpu::Backend;
use daq_core::gpu::driver::Device;
use serde_json::{Value, json};
use std::fmt;

/// Outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The check succeeded.
    Ok,
    /// The expected and the actual result.
    Failed(String),
    /// The reason why the check does not apply.
    Skipped(String),
}

impl Outcome {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed(_) => "FAILED",
            Self::Skipped(_) => "skipped",
        }
    }

    pub(super) fn detail(&self) -> Option<&str> {
        match self {
            Self::Ok => None,
            Self::Failed(why) | Self::Skipped(why) => Some(why),
        }
    }
}

/// The result of one check with one mapping method.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) check: &'static str,
    pub(super) backend: Backend,
    pub(super) memory: Memory,
    pub(super) outcome: Outcome,
}

/// The results of all checks.
#[derive(Clone, Debug)]
pub struct Report {
    device: String,
    entries: Vec<Entry>,
}

impl Report {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            device: format!("{} (cuda:{})", device.name(), device.ordinal()),
            entries: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Returns whether a check failed.
    pub fn has_failed(&self) -> bool {
        self.count("FAILED") > 0
    }

    fn count(&self, name: &str) -> usize {
        let entries = self.entries.iter();
        entries.filter(|entry| entry.outcome.name() == name).count()
    }

    /// Returns the report as JSON: `device`, `results` with `check`, `backend`, `memory`, `outcome` and `detail` (null
    /// if the check succeeded), and the counts `ok`, `failed` and `skipped`.
    pub fn json(&self) -> Value {
        let results = self.entries.iter().map(|entry| {
            json!({
                "check": entry.check,
                "backend": entry.backend,
                "memory": entry.memory.name(),
                "outcome": entry.outcome.name().to_lowercase(),
                "detail": entry.outcome.detail(),
            })
        });
        json!({
            "device": self.device,
            "results": results.collect::<Vec<_>>(),
            "ok": self.count("ok"),
            "failed": self.count("FAILED"),
            "skipped": self.count("skipped"),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.device)?;
        for entry in &self.entries {
            let method = format!("{}, {}", entry.backend, entry.memory);
            let line = format!(
                "  {:<8} {:<19} {method:<21} {}",
                entry.outcome.name(),
                entry.check,
                entry.outcome.detail().unwrap_or_default()
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        writeln!(
            f,
            "{} ok, {} failed, {} skipped",
            self.count("ok"),
            self.count("FAILED"),
            self.count("skipped")
        )
    }
}
