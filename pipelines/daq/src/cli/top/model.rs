//! The numbers of one daemon, read from `/status` and `/history`.

use super::client::printable;
use serde_json::Value;
use std::time::Duration;

/// The state of a daemon at one moment, and the state before, from which rates are computed.
#[derive(Clone, Debug, Default)]
pub(super) struct Daemon {
    /// The address as shown.
    pub(super) address: String,
    /// The last response of `/status`; `None` before the first.
    status: Option<Value>,
    before: Option<Value>,
    /// The last response of `/history`. Null before the first response, and if the daemon keeps no history.
    history: Value,
    /// Why the last request failed.
    pub(super) failure: Option<String>,
}

/// The response of a daemon.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: Value,
    pub(super) history: Value,
}

impl Daemon {
    pub(super) fn new(address: String) -> Self {
        Self {
            address,
            ..Self::default()
        }
    }

    /// Stores a response, or the reason why the daemon did not respond.
    pub(super) fn update(&mut self, answer: Result<Answer, String>) {
        match answer {
            Ok(answer) => {
                self.before = self.status.replace(answer.status);
                self.history = answer.history;
                self.failure = None;
            }
            Err(why) => {
                // Old numbers would look like current ones.
                (self.status, self.before) = (None, None);
                self.failure = Some(why);
            }
        }
    }

    /// Whether the daemon has answered the last request.
    pub(super) const fn is_up(&self) -> bool {
        self.status.is_some()
    }

    /// Whether rates are known.
    pub(super) fn has_rates(&self) -> bool {
        self.passed().is_some()
    }

    /// Returns the text at `path` of `/status`, such as `name`.
    pub(super) fn text(&self, path: &str) -> String {
        let value = self.status.as_ref().map(|status| at(status, path));
        printable(value.and_then(Value::as_str).unwrap_or_default())
    }

    /// Returns the time since the start of the pipeline.
    pub(super) fn uptime(&self) -> Duration {
        let seconds = self.status.as_ref().map(|status| number(status, "seconds"));
        Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default()
    }

    /// Returns the sentences in the list `key` of `/status`, such as `silent`.
    pub(super) fn list(&self, key: &str) -> Vec<String> {
        let list = self
            .status
            .as_ref()
            .and_then(|status| status[key].as_array());
        let texts = list.into_iter().flatten().filter_map(Value::as_str);
        texts.map(printable).collect()
    }

    /// Returns the time between the last two responses; `None` if there are no two responses of the same run.
    fn passed(&self) -> Option<f64> {
        let seconds = |status: &Value| number(status, "report.seconds");
        let passed = seconds(self.status.as_ref()?) - seconds(self.before.as_ref()?);
        (passed > 0.0).then_some(passed)
    }

    /// Returns the components in the table `kind` of the report, such as `sources`.
    pub(super) fn components<'a>(
        &'a self,
        kind: &'static str,
    ) -> impl Iterator<Item = Component<'a>> {
        let table = self
            .status
            .as_ref()
            .and_then(|status| status["report"][kind].as_object());
        table
            .into_iter()
            .flatten()
            .map(move |(name, now)| Component {
                name: printable(name),
                key: name,
                now,
                before: self
                    .before
                    .as_ref()
                    .and_then(|before| before["report"][kind].get(name)),
                passed: self.passed(),
            })
    }

    /// Returns the sentence about the completeness of a source, and whether data is missing.
    pub(super) fn sentence(&self, source: &Component<'_>) -> (String, bool) {
        let sentence = self.history["sources"][source.key]["sentence"].as_str();
        let loss = self
            .status
            .as_ref()
            .map(|status| &status["loss"][source.key]);
        let loss = loss.unwrap_or(&Value::Null);
        let text = sentence.or_else(|| loss["text"].as_str());
        let is_loss = match sentence {
            Some(sentence) => sentence.starts_with("losing"),
            None => loss["is_loss"] == true,
        };
        (printable(text.unwrap_or_default()), is_loss)
    }

    /// Returns the bytes per second of a source in the last complete seconds, oldest first.
    pub(super) fn past(&self, source: &Component<'_>) -> Vec<u64> {
        let bytes = self.history["sources"][source.key]["bytes"].as_array();
        let bytes = bytes.into_iter().flatten();
        bytes.map(|n| n.as_u64().unwrap_or(0)).collect()
    }
}

/// A source, ring, reader, copy, kernel or sink in a report.
#[derive(Clone, Debug)]
pub(super) struct Component<'a> {
    pub(super) name: String,
    key: &'a str,
    now: &'a Value,
    before: Option<&'a Value>,
    passed: Option<f64>,
}

impl Component<'_> {
    /// Returns the number at `path`, or the sum of all numbers of an object. Returns 0 if the report has no number at `path`.
    pub(super) fn count(&self, path: &str) -> u64 {
        total(at(self.now, path))
    }

    pub(super) fn text(&self, path: &str) -> String {
        printable(at(self.now, path).as_str().unwrap_or_default())
    }

    /// Whether the value at `path` is true.
    pub(super) fn is_set(&self, path: &str) -> bool {
        at(self.now, path) == true
    }

    /// Returns the value at `path`, if it is a number.
    pub(super) fn value(&self, path: &str) -> Option<f64> {
        at(self.now, path).as_f64()
    }

    /// Returns by how much the number at `path` increased per second; `None` if the rate is not known yet.
    pub(super) fn rate(&self, path: &str) -> Option<f64> {
        let before = total(at(self.before?, path));
        Some(self.count(path).saturating_sub(before) as f64 / self.passed?)
    }
}

/// Returns the value at a path such as `report.seconds`. Returns null if the path does not exist.
fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, key| &value[key])
}

fn number(value: &Value, path: &str) -> f64 {
    at(value, path).as_f64().unwrap_or(0.0)
}

fn total(value: &Value) -> u64 {
    match value {
        Value::Object(map) => map
            .values()
            .filter_map(Value::as_u64)
            .fold(0, u64::saturating_add),
        other => other.as_u64().unwrap_or(0),
    }
}
