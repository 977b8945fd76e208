//! Formats the results of checks as text and as JSON.

use crate::doctor::{self, Finding};
use serde_json::{Map, Value, json};
use std::fmt;

/// Outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
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

    fn detail(&self) -> Option<&str> {
        match self {
            Self::Ok => None,
            Self::Failed(why) | Self::Skipped(why) => Some(why),
        }
    }
}

/// The result of one check of one subject.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) check: &'static str,
    /// The names and values that identify the subject in JSON.
    pub(super) subject: Vec<(&'static str, String)>,
    pub(super) outcome: Outcome,
    /// The details of a successful check.
    pub(super) found: Option<String>,
}

impl Entry {
    fn detail(&self) -> Option<&str> {
        self.outcome.detail().or(self.found.as_deref())
    }

    /// Returns the subject as text.
    fn subject(&self) -> String {
        let values: Vec<_> = self.subject.iter().map(|(_, value)| &**value).collect();
        values.join(", ")
    }
}

/// The order of the columns in the text of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    /// The check, then its subject.
    CheckFirst,
    /// The subject, then its check.
    SubjectFirst,
}

/// The results of all checks.
#[derive(Clone, Debug)]
pub struct Report {
    heading: String,
    columns: Columns,
    /// The machine and the version, in JSON.
    about: Map<String, Value>,
    entries: Vec<Entry>,
    /// The findings of `daq doctor` that belong to the report, if any were requested.
    pub(super) findings: Option<Vec<Finding>>,
}

impl Report {
    pub(super) fn new(
        heading: String,
        columns: Columns,
        about: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Self {
        let about = about.into_iter();
        Self {
            heading,
            columns,
            about: about
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect(),
            entries: Vec::new(),
            findings: None,
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

    /// Returns the report as JSON: the tested machine, `results` with `check`, the subject, `outcome` and `detail` (null
    /// without details), the counts `ok`, `failed` and `skipped`, and `findings` as in `daq doctor` if the report has
    /// any.
    pub fn json(&self) -> Value {
        let results = self.entries.iter().map(|entry| {
            let mut result = json!({
                "check": entry.check,
                "outcome": entry.outcome.name().to_lowercase(),
                "detail": entry.detail(),
            });
            for (name, value) in &entry.subject {
                result[name] = json!(value);
            }
            result
        });
        let mut report = Value::Object(self.about.clone());
        report["results"] = results.collect();
        for name in ["ok", "FAILED", "skipped"] {
            report[name.to_lowercase()] = json!(self.count(name));
        }
        if let Some(findings) = &self.findings {
            report["findings"] = json!(findings);
        }
        report
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.heading)?;
        let subjects = self.entries.iter().map(|entry| entry.subject().len());
        let width = subjects.max().unwrap_or(0);
        for entry in &self.entries {
            let (check, subject) = (entry.check, entry.subject());
            let columns = match self.columns {
                Columns::CheckFirst => format!("{check:<19} {subject:<21}"),
                Columns::SubjectFirst => format!("{subject:<width$}  {check:<19}"),
            };
            let (outcome, detail) = (entry.outcome.name(), entry.detail().unwrap_or_default());
            let line = format!("  {outcome:<8} {columns} {detail}");
            writeln!(f, "{}", line.trim_end())?;
        }
        if let Some(findings) = self
            .findings
            .as_ref()
            .filter(|findings| !findings.is_empty())
        {
            writeln!(f, "\n{}\n", doctor::render(findings, false).trim_end())?;
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
