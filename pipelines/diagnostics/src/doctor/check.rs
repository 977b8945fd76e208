//! A check is a row in the table of its area: the name, the origin of the value, and a function that reads and judges
//! the value.

use serde::Serialize;
use std::borrow::Cow;

/// Result of a check, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Status {
    /// The value is correct, or does not matter on this machine.
    #[serde(rename = "ok")]
    Ok,
    /// The value cannot be read.
    #[serde(rename = "unknown")]
    Unknown,
    /// daq runs, but is slower, or begins to lose packets at lower data rates.
    #[serde(rename = "warn")]
    Warning,
    /// daq cannot run.
    #[serde(rename = "bad")]
    Problem,
}

impl Status {
    /// Returns the word with which the line of a finding begins.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "?",
            Self::Warning => "warn",
            Self::Problem => "BAD",
        }
    }

    /// Returns the SGR parameter of the status' colour on a terminal.
    pub(super) const fn color(self) -> &'static str {
        match self {
            Self::Ok => "32",
            Self::Unknown => "36",
            Self::Warning => "33",
            Self::Problem => "1;31",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The component to which the finding belongs, for example `network` or, if there are several devices, `gpu
    /// 0000:3b:00.0`.
    pub group: Cow<'static, str>,
    /// The name of the check, for example `rmem_max`.
    pub name: &'static str,
    /// The value in readable form, for example `4 MiB`.
    pub read: String,
    /// The file or call that the value was read from.
    pub from: String,
    /// How the value was judged.
    #[serde(rename = "verdict")]
    pub status: Status,
    /// The consequence of the value, or the reason for the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The command that fixes the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    /// Returns whether daq cannot run because of this finding. Slow or missing hardware does not count.
    pub fn is_bad(&self) -> bool {
        self.status == Status::Problem
    }
}

/// A value and how it is judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) status: Status,
    read: String,
    why: Option<String>,
    fix: Option<String>,
    /// The origin of the value, if it differs from that in the table.
    from: Option<String>,
    /// Whether the check makes sense on this machine. If not, there is no finding.
    is_applicable: bool,
}

impl Judgement {
    pub(super) fn new(status: Status, read: impl Into<String>) -> Self {
        Self {
            status,
            read: read.into(),
            why: None,
            fix: None,
            from: None,
            is_applicable: true,
        }
    }

    pub(super) fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    pub(super) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    pub(super) fn from(mut self, from: impl Into<String>) -> Self {
        self.from = Some(from.into());
        self
    }
}

/// Judges a value as correct.
pub(super) fn ok(read: impl Into<String>) -> Judgement {
    Judgement::new(Status::Ok, read)
}

/// Judges a value with which daq is slower or loses packets earlier. `fix` is the command that changes the value.
pub(super) fn warn(
    read: impl Into<String>,
    why: impl Into<String>,
    fix: impl Into<String>,
) -> Judgement {
    Judgement::new(Status::Warning, read).why(why).fix(fix)
}

/// Judges a value with which daq cannot run. `fix` is the command that changes the value.
pub(super) fn bad(
    read: impl Into<String>,
    why: impl Into<String>,
    fix: impl Into<String>,
) -> Judgement {
    Judgement::new(Status::Problem, read).why(why).fix(fix)
}

/// Returns a value that cannot be judged.
pub(super) fn unknown(read: impl Into<String>, why: impl Into<String>) -> Judgement {
    Judgement::new(Status::Unknown, read).why(why)
}

/// Returns the result of a value that cannot be read.
pub(super) fn unreadable() -> Judgement {
    Judgement::new(Status::Unknown, "not readable")
}

/// Returns the result of a check that makes no sense on this machine.
pub(super) fn not_applicable() -> Judgement {
    Judgement {
        is_applicable: false,
        ..unreadable()
    }
}

/// One row of a table of checks for the subject `S`.
pub(super) struct Check<S> {
    name: &'static str,
    from: &'static str,
    judge: fn(&S) -> Option<Judgement>,
}

/// Returns a row. The origin `from` of the value is a file or a call; `./` stands for the directory of the subject.
/// `judge` returns `None` if the value cannot be read.
pub(super) const fn check<S>(
    name: &'static str,
    from: &'static str,
    judge: fn(&S) -> Option<Judgement>,
) -> Check<S> {
    Check { name, from, judge }
}

/// Runs the checks of a table on `subject`, whose files are in `directory`.
pub(super) fn table<S>(
    group: impl Into<Cow<'static, str>>,
    directory: &str,
    subject: &S,
    checks: &[Check<S>],
) -> Vec<Finding> {
    let group = group.into();
    let findings = checks.iter().filter_map(|check| {
        let from = match check.from.strip_prefix("./") {
            Some(file) => format!("{directory}/{file}"),
            None => check.from.to_owned(),
        };
        finding(group.clone(), check.name, from, (check.judge)(subject))
    });
    findings.collect()
}

/// Returns the finding of one check; `None` if the check makes no sense on this machine.
pub(super) fn finding(
    group: impl Into<Cow<'static, str>>,
    name: &'static str,
    from: impl Into<String>,
    judged: Option<Judgement>,
) -> Option<Finding> {
    let judged = judged.unwrap_or_else(unreadable);
    judged.is_applicable.then(|| Finding {
        group: group.into(),
        name,
        read: judged.read,
        from: judged.from.unwrap_or_else(|| from.into()),
        status: judged.status,
        why: judged.why,
        fix: judged.fix,
    })
}
