//! Reads a table into a type and reports all faults of the table, not only the first.
//!
//! Serde stops at the first fault. Therefore the reader records the fault, replaces the faulty value by a placeholder
//! that is accepted, and reads the table again, until it finds no further fault.

use super::de::Input;
use super::diagnostic::{Diagnostic, Diagnostics, Problem};
use super::fault::{Fault, ReadError};
use super::source_map::Span;
use super::suggest::{MAX_UNKNOWN, list, nearest, nearest_value};
use super::tree::{Entry, Node, Placeholder, Step, Value};
use serde::de::DeserializeOwned;

/// Maximum number of attempts to read one table.
const ROUNDS: usize = 1000;
/// Maximum number of values that are tried for one placeholder.
const ATTEMPTS: usize = 24;
/// Maximum number of known keys that are listed if none of them resembles the unknown key.
const LISTED: usize = 16;

/// A table that is being read.
pub(super) struct Reader<'r> {
    /// Name of the table, such as `ring.raw`.
    pub(super) title: &'r str,
    /// Keys of the table that other readers read.
    pub(super) also_known: &'r [&'r str],
    pub(super) root: Node,
    /// Keys that are missing only because they are misspelt.
    renamed: Vec<Vec<Step>>,
    /// Paths of the missing keys, and the spans of the tables that lack them.
    missing: Vec<(Vec<Step>, Span)>,
    clean: bool,
}

impl<'r> Reader<'r> {
    pub(super) fn new(title: &'r str, also_known: &'r [&'r str], root: Node) -> Self {
        Self {
            title,
            also_known,
            root,
            renamed: Vec::new(),
            missing: Vec::new(),
            clean: true,
        }
    }

    /// Sets the top-level `keys` whose misspellings were already reported, so that they are not reported as missing.
    pub(super) fn with_corrected_keys(mut self, keys: &[String]) -> Self {
        let paths = keys.iter().map(|key| vec![Step::Key(key.clone())]);
        self.renamed.extend(paths);
        self
    }

    /// Returns the top-level keys whose misspellings were reported as unknown keys.
    pub(super) fn corrected_keys(self) -> Vec<String> {
        let paths = self.renamed.into_iter();
        paths
            .filter_map(|path| match <[Step; 1]>::try_from(path) {
                Ok([Step::Key(key)]) => Some(key),
                _ => None,
            })
            .collect()
    }

    /// Reads the table into a value. Returns `None` after at least one error was reported.
    pub(super) fn read<T: DeserializeOwned>(&mut self, diagnostics: &mut Diagnostics) -> Option<T> {
        self.read_checked(diagnostics, &|_| Vec::new()).0
    }

    /// Reads the table as [`read`](Self::read) does, and also returns the problems that `check` finds in the value. If
    /// values are missing or wrong, only problems that do not depend on these values are returned.
    pub(super) fn read_checked<T: DeserializeOwned>(
        &mut self,
        diagnostics: &mut Diagnostics,
        check: &dyn Fn(&T) -> Vec<Problem>,
    ) -> (Option<T>, Vec<Problem>) {
        let mut value = None;
        for _ in 0..ROUNDS {
            match T::deserialize(Input::Node(&self.root)) {
                Ok(read) => {
                    value = Some(read);
                    break;
                }
                Err(error) => {
                    if !self.note(error, diagnostics) {
                        break;
                    }
                }
            }
        }
        self.report_missing(diagnostics);
        let mut problems = value.as_ref().map(check).unwrap_or_default();
        if self.clean {
            return (value, problems);
        }
        if !problems.is_empty() {
            let others = self
                .retry_with_second_set::<T>()
                .map_or_else(Vec::new, |other| check(&other));
            problems
                .retain(|problem| others.contains(problem) && !self.concerns_placeholder(problem));
        }
        (None, problems)
    }

    /// Reads the value again with the second set of placeholder values. Returns `None` if the type accepts none of
    /// them.
    fn retry_with_second_set<T: DeserializeOwned>(&mut self) -> Option<T> {
        self.root.each_placeholder(&mut |placeholder| {
            (placeholder.attempt, placeholder.other) = (0, true);
        });
        for _ in 0..ROUNDS {
            let mut path = match T::deserialize(Input::Node(&self.root)) {
                Ok(value) => return Some(value),
                Err(error) => error.path,
            };
            path.reverse();
            match self.root.descend_mut(&path).map(|node| &mut node.value) {
                Some(Value::Placeholder(placeholder)) if placeholder.attempt < ATTEMPTS => {
                    placeholder.attempt += 1;
                }
                _ => return None,
            }
        }
        None
    }

    /// Whether a problem concerns a value that a placeholder replaces, or a part of such a value.
    fn concerns_placeholder(&self, problem: &Problem) -> bool {
        let mut node = &self.root;
        for part in problem.key.as_deref().unwrap_or_default().split('.') {
            let step = match (&node.value, part.parse()) {
                (Value::Array(_), Ok(index)) => Step::Index(index),
                _ => Step::Key(part.to_owned()),
            };
            match node.descend(&[step]) {
                Some(next) => node = next,
                None => return false,
            }
            if matches!(node.value, Value::Placeholder(_)) {
                return true;
            }
        }
        false
    }

    /// Reports a fault and replaces the faulty value by a placeholder. Returns `false` if reading cannot continue.
    fn note(&mut self, mut error: ReadError, diagnostics: &mut Diagnostics) -> bool {
        self.clean = false;
        error.path.reverse();
        let path = error.path;
        // If a type's own check rejects a placeholder value, the error is not marked as an error of a placeholder but has the path of
        // the placeholder.
        if let Some(Value::Placeholder(placeholder)) =
            self.root.descend_mut(&path).map(|node| &mut node.value)
        {
            placeholder.attempt += 1;
            return placeholder.attempt < ATTEMPTS;
        }
        if error.is_placeholder_error {
            return false;
        }
        match error.fault {
            Fault::UnknownKey(known) => self.unknown_keys(&path, &known, diagnostics),
            Fault::Missing(key) => self.missing_key(path, key),
            fault => {
                let Some(node) = self.root.descend(&path) else {
                    return false;
                };
                // If the value contains placeholders, these may have caused the error.
                if !node.has_placeholder() {
                    diagnostics.push(self.describe(&path, node, &fault));
                }
                if path.is_empty() {
                    return false;
                }
                let Some(node) = self.root.descend_mut(&path) else {
                    return false;
                };
                node.value = Value::Placeholder(Placeholder::default());
                node.loose = None;
                true
            }
        }
    }

    /// Reports all unknown keys of the table that contains the last step of `path`, and removes these keys.
    fn unknown_keys(
        &mut self,
        path: &[Step],
        known: &[&str],
        diagnostics: &mut Diagnostics,
    ) -> bool {
        let Some((_, above)) = path.split_last() else {
            return false;
        };
        let title = self.title_of(above);
        let Some(table) = self.root.descend_mut(above).and_then(Node::table_mut) else {
            return false;
        };
        let (kept, unknown) = std::mem::take(&mut table.entries)
            .into_iter()
            .partition(|entry| known.contains(&entry.key.as_str()));
        table.entries = kept;
        let unknown: Vec<Entry> = unknown;
        let mut known = known.to_vec();
        if above.is_empty() {
            let others = self.also_known.iter().copied();
            known.extend(
                others
                    .filter(|key| !known.contains(key))
                    .collect::<Vec<_>>(),
            );
        }
        // A key that the table already contains cannot be the one that the user misspelt.
        let free: Vec<&str> = known
            .iter()
            .filter(|known| table.get(known).is_none())
            .copied()
            .collect();
        let listed = match known.as_slice() {
            [] => "this table has no keys".to_owned(),
            known => format!("known keys: {}", list(known, LISTED).replace(" or ", ", ")),
        };
        for corrected in refuse_unknown(&title, &unknown, &free, Some(&listed), diagnostics) {
            let mut renamed = above.to_vec();
            renamed.push(Step::Key(corrected));
            self.renamed.push(renamed);
        }
        !unknown.is_empty()
    }

    fn missing_key(&mut self, mut path: Vec<Step>, key: String) -> bool {
        let Some(node) = self.root.descend_mut(&path) else {
            return false;
        };
        let span = node.span;
        let Some(table) = node.table_mut() else {
            return false;
        };
        if table.get(&key).is_some() {
            return false;
        }
        let value = Value::Placeholder(Placeholder::default());
        table.entries.push(Entry {
            key: key.clone(),
            key_span: span,
            node: Node::new(span, value),
        });
        path.push(Step::Key(key));
        if !self.renamed.contains(&path) {
            self.missing.push((path, span));
        }
        true
    }

    /// Reports the missing keys, each with the example value that its placeholder stored.
    fn report_missing(&self, diagnostics: &mut Diagnostics) {
        for (path, span) in &self.missing {
            let Some((Step::Key(key), above)) = path.split_last() else {
                continue;
            };
            let title = self.title_of(above);
            let example = self.root.descend(path).and_then(|node| match &node.value {
                Value::Placeholder(placeholder) => placeholder.example.borrow().clone(),
                _ => None,
            });
            let help = match example.as_deref() {
                Some("{…}") => format!("add a table `[{title}.{key}]`"),
                Some(example) => format!("add a line such as `{key} = {example}`"),
                None => format!("add `{key}`"),
            };
            diagnostics.push(
                Diagnostic::error(format!("missing key `{key}` in [{title}]"))
                    .at(*span)
                    .help(help),
            );
        }
    }

    fn describe(&self, path: &[Step], node: &Node, fault: &Fault) -> Diagnostic {
        let subject = match path {
            [] => format!("[{}]", self.title),
            _ => format!("`{}`", joined(path)),
        };
        let (message, help) = match fault {
            Fault::Type(expected) => {
                let expected = plain_words(expected);
                // The type is wrong, so do not show the range.
                let kind = expected
                    .split_once(" from ")
                    .map_or(expected.as_str(), |(kind, _)| kind);
                // A number that the integer type cannot contain has the right type, but no valid value.
                let message = if kind == node.kind() {
                    format!("{subject} is {}, but {expected} is expected", shown(node))
                } else {
                    format!("{subject} is {}, but {kind} is expected", node.kind())
                };
                let help = whole_number(node).filter(|_| kind == "an integer");
                (message, help.map(|number| format!("write {number}")))
            }
            Fault::Range(expected) => {
                let expected = plain_words(expected);
                (
                    format!("{subject} is {}, but {expected} is expected", shown(node)),
                    None,
                )
            }
            Fault::UnknownVariant(known) => {
                let value = match &node.value {
                    Value::String(text) => text.as_str(),
                    // An enum variant written as `{ name = … }`.
                    Value::Table(table) => table.keys().first().copied().unwrap_or(""),
                    _ => node.loose.as_deref().unwrap_or(""),
                };
                let help = match nearest_value(value, known) {
                    Some(suggestion) => format!("did you mean \"{suggestion}\"?"),
                    None => format!("choose {}", list(known, LISTED).replace('`', "\"")),
                };
                (format!("{subject} cannot be {value:?}"), Some(help))
            }
            Fault::Custom(message) => match message.split_once("; try ") {
                Some((message, example)) => (
                    format!("{subject}: {message}"),
                    Some(format!("write for instance {example}")),
                ),
                None => (
                    format!("{subject}: {message}"),
                    advice(message).map(str::to_owned),
                ),
            },
            Fault::UnknownKey(_) | Fault::Missing(_) => (format!("{subject} is invalid"), None),
        };
        Diagnostic::error(message).at(node.span).maybe_help(help)
    }

    /// Returns the dotted name of the table at `path`.
    fn title_of(&self, path: &[Step]) -> String {
        match path {
            [] => self.title.to_owned(),
            _ => format!("{}.{}", self.title, joined(path)),
        }
    }
}

/// Returns the integer that `node` is, if it is written as a number with a decimal point or an exponent, such as `1e3`.
fn whole_number(node: &Node) -> Option<String> {
    let Value::Float(number) = node.value else {
        return None;
    };
    // Integers up to 2^53 are exact.
    let is_exact = number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0;
    is_exact.then(|| number.to_string())
}

/// Reports the unknown keys of the table `title`. Returns the keys of `free` that the unknown keys are most likely
/// meant to be. `listed` is the help text for a key that resembles no key of `free`.
pub(super) fn refuse_unknown<'e>(
    title: &str,
    unknown: impl IntoIterator<Item = &'e Entry>,
    free: &[&str],
    listed: Option<&str>,
    diagnostics: &mut Diagnostics,
) -> Vec<String> {
    let mut corrected = Vec::new();
    let mut unknown = unknown.into_iter();
    for Entry { key, key_span, .. } in unknown.by_ref().take(MAX_UNKNOWN) {
        let suggestion = nearest(key, free);
        corrected.extend(suggestion.map(str::to_owned));
        let help = match suggestion {
            Some(suggestion) => Some(format!("did you mean `{suggestion}`?")),
            None => listed.map(str::to_owned),
        };
        diagnostics.push(
            Diagnostic::error(format!("unknown key `{key}` in [{title}]"))
                .at(*key_span)
                .maybe_help(help),
        );
    }
    if let Some(next) = unknown.next() {
        let more = 1 + unknown.count();
        diagnostics.push(
            Diagnostic::error(format!("{more} more unknown keys in [{title}]"))
                .at(next.key_span)
                .help("fix or remove the unknown keys above first"),
        );
    }
    corrected
}

/// Formats a path such as `channels[2].gain`.
fn joined(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => {
                text.push('.');
                text.push_str(key);
            }
            Step::Index(index) => {
                text.push('[');
                text.push_str(&index.to_string());
                text.push(']');
            }
        }
    }
    text
}

/// Formats a value as short text.
fn shown(node: &Node) -> String {
    match &node.value {
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(value) => value.to_string(),
        Value::String(text) if text.len() <= 40 => format!("{text:?}"),
        _ => node.kind().to_owned(),
    }
}

/// Replaces the expected-value descriptions of Rust's standard types by words that a user of TOML knows.
fn plain_words(expected: &str) -> String {
    let words = match expected {
        "u8" => "an integer from 0 to 255",
        "u16" => "an integer from 0 to 65535",
        "u32" => "an integer from 0 to 4294967295",
        "u64" | "u128" | "usize" => "an integer that is not negative",
        "i8" => "an integer from -128 to 127",
        "i16" => "an integer from -32768 to 32767",
        "i32" => "an integer from -2147483648 to 2147483647",
        "i64" | "i128" | "isize" => "an integer",
        "f32" | "f64" => "a number",
        "a nonzero u8" => "an integer from 1 to 255",
        "a nonzero u16" => "an integer from 1 to 65535",
        "a nonzero u32" => "an integer from 1 to 4294967295",
        "a nonzero u64" | "a nonzero usize" => "an integer above 0",
        "path string" => "a path in quotes",
        "socket address" => "an address and a port such as \"127.0.0.1:4950\"",
        "IP address" | "IPv4 address" => "an address such as \"127.0.0.1\"",
        "IPv6 address" => "an address such as \"::1\"",
        "a sequence" => "an array",
        "a map" => "a table",
        "a character" => "a single character in quotes",
        _ if expected.starts_with("struct ") || expected.starts_with("internally tagged enum ") => {
            "a table"
        }
        _ if expected.starts_with("a tuple") || expected.starts_with("tuple ") => "an array",
        _ => return expected.to_owned(),
    };
    words.to_owned()
}

/// Returns a suggested fix for error messages of the standard library's types.
fn advice(message: &str) -> Option<&'static str> {
    Some(match message {
        "invalid socket address syntax" | "invalid IPv4 socket address syntax" => {
            "write an address and a port, for instance \"127.0.0.1:4950\""
        }
        "invalid IPv6 socket address syntax" => "write for instance \"[::1]:4950\"",
        "invalid IP address syntax" | "invalid IPv4 address syntax" => {
            "write for instance \"127.0.0.1\""
        }
        "invalid IPv6 address syntax" => "write for instance \"::1\"",
        _ => return None,
    })
}
