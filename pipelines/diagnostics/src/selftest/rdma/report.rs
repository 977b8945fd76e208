//! Formats the results of the checks of network cards as text and as JSON.

use crate::doctor::{self, Finding};
use crate::selftest::Outcome;
use serde_json::{Value, json};
use std::fmt;

/// The result of one check of one card.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) check: &'static str,
    pub(super) nic: String,
    pub(super) outcome: Outcome,
    /// The details of a successful check.
    pub(super) found: Option<String>,
}

impl Entry {
    fn detail(&self) -> Option<&str> {
        self.outcome.detail().or(self.found.as_deref())
    }
}

/// The results of all checks.
#[derive(Clone, Debug)]
pub struct Report {
    gpu: String,
    kernel: String,
    entries: Vec<Entry>,
    /// The RDMA findings of `daq doctor`.
    pub(super) findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(gpu: String) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        Self {
            gpu,
            kernel: kernel.unwrap_or_default().trim().to_owned(),
            entries: Vec::new(),
            findings: Vec::new(),
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

    /// Returns the report as JSON: `version`, `kernel`, `gpu`, `results` with `check`, `nic`, `outcome` and `detail`,
    /// `findings` as in `daq doctor`, and the counts `ok`, `failed` and `skipped`.
    pub fn json(&self) -> Value {
        let results = self.entries.iter().map(|entry| {
            json!({
                "check": entry.check,
                "nic": entry.nic,
                "outcome": entry.outcome.name().to_lowercase(),
                "detail": entry.detail(),
            })
        });
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "kernel": self.kernel,
            "gpu": self.gpu,
            "results": results.collect::<Vec<_>>(),
            "findings": self.findings,
            "ok": self.count("ok"),
            "failed": self.count("FAILED"),
            "skipped": self.count("skipped"),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "daq {}, Linux {}, {}",
            env!("CARGO_PKG_VERSION"),
            self.kernel,
            self.gpu
        )?;
        let width = self.entries.iter().map(|entry| entry.nic.len()).max();
        let width = width.unwrap_or(0);
        for entry in &self.entries {
            let line = format!(
                "  {:<8} {:<width$}  {:<19} {}",
                entry.outcome.name(),
                entry.nic,
                entry.check,
                entry.detail().unwrap_or_default()
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        if !self.findings.is_empty() {
            writeln!(f, "\n{}", doctor::render(&self.findings, false).trim_end())?;
            writeln!(f)?;
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
