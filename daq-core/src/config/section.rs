//! One table of the configuration, from which several components take their keys.

use super::de::Input;
use super::diagnostic::{Diagnostic, Diagnostics, Problem};
use super::read::{self, Reader};
use super::source_map::Span;
use super::suggest::{list, nearest, nearest_value};
use super::tree::{Entry, Node, Step, Table, Value};
use serde::de::DeserializeOwned;

/// A table such as `[source.adc]` or `[http]`.
///
/// Each component takes its own keys. The last component calls [`finish`](Self::finish), which rejects unknown keys.
/// The locations of keys remain available after the keys were taken.
#[derive(Clone, Debug)]
pub struct Section {
    kind: String,
    name: String,
    title: String,
    /// The table as the user wrote it.
    written: Node,
    /// Keys that were not taken yet.
    left: Node,
    /// Keys that were requested, including keys that the section does not contain.
    asked: Vec<String>,
    /// Keys whose misspellings were reported as unknown keys.
    corrected: Vec<String>,
}

/// Keys that were taken from a section but not read yet.
#[derive(Debug)]
pub struct DetachedKeys {
    keys: Vec<String>,
    table: Table,
}

impl Section {
    pub(super) fn new(kind: &str, name: &str, node: &Node) -> Self {
        let title = if name.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{name}")
        };
        Self {
            kind: kind.to_owned(),
            name: name.to_owned(),
            title,
            written: node.clone(),
            left: node.clone(),
            asked: Vec::new(),
            corrected: Vec::new(),
        }
    }

    /// Returns the kind of the section: `source` for `[source.adc]`, `http` for `[http]`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the name of the section: `adc` for `[source.adc]`; empty for a table without a name such as `[http]`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether [`Document::check_names`](super::Document::check_names) accepts the name.
    pub(crate) fn is_well_named(&self) -> bool {
        super::document::fault_of_name(&self.name).is_none()
    }

    /// Returns the kind and the name as in the header: `source.adc` for `[source.adc]`.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Returns the location of the header.
    pub fn header(&self) -> Span {
        self.written.span
    }

    /// Returns all keys of the section in the order in which they are written, including the keys that were taken.
    pub fn keys(&self) -> Vec<&str> {
        self.written.table().map(Table::keys).unwrap_or_default()
    }

    /// Whether the section contains `key`. A key of an inner table is written as a dotted path: `format.payload`.
    pub fn has(&self, key: &str) -> bool {
        self.span_of(key).is_some()
    }

    /// Returns the location of the value of `key`, or `None` if the section does not contain `key`. A key of an inner
    /// table is written `format.payload`, and an element of an array `taps.0`.
    pub(crate) fn span_of(&self, key: &str) -> Option<Span> {
        let (node, whole) = self.deepest(key);
        whole.then_some(node.span)
    }

    /// Returns the location of the value of `key`. If the section does not contain `key`, returns the location of the
    /// innermost table on the path to `key`.
    pub fn place_of(&self, key: &str) -> Span {
        self.deepest(key).0.span
    }

    /// Returns the node at the dotted path `key` and `true`, or the last existing node on the path and `false`.
    fn deepest(&self, key: &str) -> (&Node, bool) {
        let mut node = &self.written;
        for part in key.split('.') {
            let step = match (&node.value, part.parse()) {
                (Value::Array(_), Ok(index)) => Step::Index(index),
                _ => Step::Key(part.to_owned()),
            };
            match node.descend(&[step]) {
                Some(next) => node = next,
                None => return (node, false),
            }
        }
        (node, true)
    }

    fn remove(&mut self, key: &str) -> Option<Node> {
        if !self.asked.iter().any(|asked| asked == key) {
            self.asked.push(key.to_owned());
        }
        Some(self.left.table_mut()?.remove(key)?.node)
    }

    /// Takes a required string, which must be one of `choices` unless `choices` is empty.
    pub fn take_string(
        &mut self,
        key: &str,
        choices: &[&str],
        diagnostics: &mut Diagnostics,
    ) -> Option<(String, Span)> {
        let Some(node) = self.remove(key) else {
            diagnostics.push(self.lacking(key, choices));
            // The error already suggests the misspelt key, so that key is not reported again as unknown.
            let near = self.near(key).map(|entry| entry.key.clone());
            if let (Some(near), Some(table)) = (near, self.left.table_mut()) {
                table.remove(&near);
            }
            return None;
        };
        let text = match (node.loose, node.value) {
            (Some(text), _) | (None, Value::String(text)) => text,
            (None, value) => {
                let node = Node::new(node.span, value);
                diagnostics.push(
                    Diagnostic::error(format!(
                        "`{key}` is {}, but a string is expected",
                        node.kind()
                    ))
                    .at(node.span),
                );
                return None;
            }
        };
        if !choices.is_empty() && !choices.contains(&text.as_str()) {
            let help = match nearest_value(&text, choices) {
                Some(suggestion) => format!("did you mean \"{suggestion}\"?"),
                None => format!("choose {}", list(choices, 24).replace('`', "\"")),
            };
            diagnostics.push(
                Diagnostic::error(format!("unknown {key} {text:?} in [{}]", self.title))
                    .at(node.span)
                    .help(help),
            );
            return None;
        }
        Some((text, node.span))
    }

    /// Returns the remaining entry whose key is most likely a misspelling of `key`.
    fn near(&self, key: &str) -> Option<&Entry> {
        let table = self.left.table()?;
        table.get(nearest(key, &table.keys())?)
    }

    /// Creates the error for a missing required `key`.
    fn lacking(&self, key: &str, choices: &[&str]) -> Diagnostic {
        let title = &self.title;
        let mut diagnostic =
            Diagnostic::error(format!("missing key `{key}` in [{title}]")).at(self.header());
        if let Some(near) = self.near(key) {
            diagnostic = diagnostic.also(near.key_span, format!("is this meant to be `{key}`?"));
        }
        match choices.first() {
            Some(first) => diagnostic.help(format!(
                "add a line such as `{key} = \"{first}\"`; possible values: {}",
                list(choices, 24)
                    .replace('`', "\"")
                    .replace(" or ", " and ")
            )),
            None => diagnostic.help(format!("add a line `{key} = \"…\"`")),
        }
    }

    /// Takes `keys` from the section and reads them into `T`. Keys that the section does not contain are skipped.
    ///
    /// Returns `None` after an error was reported.
    pub fn take<T: DeserializeOwned>(
        &mut self,
        keys: &[&str],
        diagnostics: &mut Diagnostics,
    ) -> Option<T> {
        let detached = self.detach(keys);
        self.read(detached, diagnostics)
    }

    /// Takes `keys` from the section, so that [`read`](Self::read) can read them after the other keys. Keys that the
    /// section does not contain are skipped.
    ///
    /// This way, a misspelling of one of these keys is reported once, and the key itself is not reported as missing.
    pub fn detach(&mut self, keys: &[&str]) -> DetachedKeys {
        let mut table = Table::default();
        for key in keys {
            let entry = self.left.table().and_then(|table| table.get(key)).cloned();
            table.entries.extend(entry);
            self.remove(key);
        }
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        DetachedKeys { keys, table }
    }

    /// Reads keys that were detached into `T`.
    ///
    /// Returns `None` after an error was reported.
    pub fn read<T: DeserializeOwned>(
        &mut self,
        detached: DetachedKeys,
        diagnostics: &mut Diagnostics,
    ) -> Option<T> {
        let DetachedKeys { keys, table } = detached;
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let root = Node::new(self.written.span, Value::Table(table));
        Reader::new(&self.title, &keys, root)
            .with_corrected_keys(&self.corrected)
            .read(diagnostics)
    }

    /// Reads the value of `key` without taking it; also works for keys that were taken. Returns `None` without an error
    /// if the key is missing or its value is not a `T`.
    pub fn peek<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        T::deserialize(Input::Node(&self.written.table()?.get(key)?.node)).ok()
    }

    /// Reports remaining keys that are neither in `known` nor were requested before.
    ///
    /// Used for a section whose driver is unknown. `known` then contains the keys of all drivers.
    pub(crate) fn refuse_unknown(&mut self, known: &[&str], diagnostics: &mut Diagnostics) {
        let asked = self.asked.iter().map(String::as_str);
        let all: Vec<&str> = known.iter().copied().chain(asked).collect();
        let entries = self.left.table().map(|table| &table.entries);
        let unknown = entries.into_iter().flatten();
        let unknown = unknown.filter(|entry| !all.contains(&entry.key.as_str()));
        let free: Vec<&str> = all.iter().filter(|key| !self.has(key)).copied().collect();
        let corrected = read::refuse_unknown(&self.title, unknown, &free, None, diagnostics);
        self.corrected.extend(corrected);
    }

    /// Takes an inner table such as `[source.adc.format]` as a separate section.
    ///
    /// Returns `None` without an error if the inner table is missing; see [`require_section`](Self::require_section).
    pub fn take_section(&mut self, key: &str, diagnostics: &mut Diagnostics) -> Option<Self> {
        let node = self.remove(key)?;
        if node.table().is_none() {
            diagnostics.push(
                Diagnostic::error(format!(
                    "`{key}` is {}, but a table is expected",
                    node.kind()
                ))
                .at(node.span)
                .help(format!("write a table `[{}.{key}]`", self.title)),
            );
            return None;
        }
        Some(Self {
            kind: self.kind.clone(),
            name: self.name.clone(),
            title: format!("{}.{key}", self.title),
            written: node.clone(),
            left: node,
            asked: Vec::new(),
            corrected: Vec::new(),
        })
    }

    /// Takes an inner table as [`take_section`](Self::take_section) does, and reports an error if the table is missing.
    pub fn require_section(&mut self, key: &str, diagnostics: &mut Diagnostics) -> Option<Self> {
        if self
            .left
            .table()
            .is_none_or(|table| table.get(key).is_none())
        {
            let mut diagnostic = self.lacking(key, &[]);
            diagnostic.help = vec![format!("add a table `[{}.{key}]`", self.title)];
            diagnostics.push(diagnostic);
            return None;
        }
        self.take_section(key, diagnostics)
    }

    /// Reads the remaining keys into `T` and reports all errors. `T` must deny unknown fields.
    ///
    /// `also_known` lists keys of this section that other components read; keys that were requested before need not be
    /// listed. If the error message of a type ends in `; try EXAMPLE`, the example is shown as help. Returns `None`
    /// after an error was reported.
    pub fn finish<T: DeserializeOwned>(
        &mut self,
        also_known: &[&str],
        diagnostics: &mut Diagnostics,
    ) -> Option<T> {
        self.finish_checked(also_known, diagnostics, |_| Vec::new())
    }

    /// Reads the remaining keys as [`finish`](Self::finish) does, and also reports the problems that `check` finds in
    /// the value. If values are missing or wrong, only problems that do not depend on these values are reported.
    pub fn finish_checked<T: DeserializeOwned>(
        &mut self,
        also_known: &[&str],
        diagnostics: &mut Diagnostics,
        check: impl Fn(&T) -> Vec<Problem>,
    ) -> Option<T> {
        let empty = Node::new(self.written.span, Value::Table(Table::default()));
        let left = std::mem::replace(&mut self.left, empty);
        let known: Vec<&str> = also_known
            .iter()
            .copied()
            .chain(self.asked.iter().map(String::as_str))
            .collect();
        let mut reader = Reader::new(&self.title, &known, left);
        let (value, problems) = reader.read_checked(diagnostics, &check);
        self.corrected.extend(reader.corrected_keys());
        let is_sound = problems.is_empty();
        for problem in problems {
            diagnostics.push(self.problem(problem));
        }
        value.filter(|_| is_sound)
    }

    /// Creates the error for a problem that was found after reading. The error points at the value of the problem's
    /// key.
    pub fn problem(&self, problem: Problem) -> Diagnostic {
        self.located(Diagnostic::error, problem)
    }

    /// Creates the warning for a problem that does not prevent a run, as [`problem`](Self::problem) creates an error.
    pub fn warning(&self, problem: Problem) -> Diagnostic {
        self.located(Diagnostic::warning, problem)
    }

    fn located(&self, kind: fn(String) -> Diagnostic, problem: Problem) -> Diagnostic {
        let key = problem.key.as_deref();
        let span = key.map_or(self.header(), |key| self.place_of(key));
        kind(problem.message).at(span).maybe_help(problem.help)
    }
}
