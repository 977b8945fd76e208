//! One table of the configuration, from which parsers take their keys.

use super::diagnostic::{Diagnostic, Diagnostics, Problem};
use super::read::{self, Reader};
use super::source_map::Span;
use super::suggest::{list, nearest, nearest_value};
use super::tree::{Entry, Node, Step, Table, Value};
use serde::de::DeserializeOwned;

/// A table such as `[source.adc]` or `[http]`.
///
/// Each parser takes its own keys; the last one calls [`finish`](Self::finish), which rejects the remaining keys.
/// Locations stay known after keys were taken.
#[derive(Clone, Debug)]
pub struct Section {
    kind: String,
    name: String,
    title: String,
    /// As it was written.
    written: Node,
    /// Keys that were not taken yet.
    left: Node,
    /// Keys that were requested, written or not.
    asked: Vec<String>,
    /// Keys that unknown ones were most likely meant to be.
    meant: Vec<String>,
}

/// Keys that were taken out of a section and not read yet.
#[derive(Debug)]
pub struct Aside {
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
            meant: Vec::new(),
        }
    }

    /// `source` of `[source.adc]`, `http` of `[http]`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// `adc` of `[source.adc]`; empty for a table without a name such as `[http]`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether [`Document::check_names`](super::Document::check_names) has nothing against the name.
    pub(crate) fn is_well_named(&self) -> bool {
        super::document::fault_of_name(&self.name).is_none()
    }

    /// `source.adc` of `[source.adc]`.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The place of the header.
    pub fn header(&self) -> Span {
        self.written.span
    }

    /// The keys as written, in their order, whether taken or not.
    pub fn keys(&self) -> Vec<&str> {
        self.written.table().map(Table::keys).unwrap_or_default()
    }

    /// Whether `key` is written; a key of an inner table is `format.payload`.
    pub fn has(&self, key: &str) -> bool {
        self.span_of(key).is_some()
    }

    /// The place of the value of `key`; a key of an inner table is `format.payload`, of an array `taps.0`.
    pub fn span_of(&self, key: &str) -> Option<Span> {
        let (node, whole) = self.deepest(key);
        whole.then_some(node.span)
    }

    /// The place of the value of `key` if it is written, else of the table that it should stand in.
    pub fn place_of(&self, key: &str) -> Span {
        self.deepest(key).0.span
    }

    /// The node at the dotted `key`, or the last one on the way there.
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

    /// Takes a required string, which must be one of `choices` unless those are empty.
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
                    Diagnostic::error(format!("`{key}` is {}, a string is expected", node.kind()))
                        .at(node.span),
                );
                return None;
            }
        };
        if !choices.is_empty() && !choices.contains(&text.as_str()) {
            let help = match nearest_value(&text, choices) {
                Some(meant) => format!("did you mean \"{meant}\"?"),
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

    /// What is left over and looks like `key`.
    fn near(&self, key: &str) -> Option<&Entry> {
        let table = self.left.table()?;
        table.get(nearest(key, &table.keys())?)
    }

    /// The error that the required `key` is not written.
    fn lacking(&self, key: &str, choices: &[&str]) -> Diagnostic {
        let title = &self.title;
        let mut diagnostic =
            Diagnostic::error(format!("missing key `{key}` in [{title}]")).at(self.header());
        if let Some(near) = self.near(key) {
            diagnostic = diagnostic.also(near.key_span, format!("is this meant to be `{key}`?"));
        }
        match choices.first() {
            Some(first) => diagnostic.help(format!(
                "add a line such as `{key} = \"{first}\"`; there are {}",
                list(choices, 24)
                    .replace('`', "\"")
                    .replace(" or ", " and ")
            )),
            None => diagnostic.help(format!("add a line `{key} = \"…\"`")),
        }
    }

    /// Takes `keys` out, as far as they are written, and reads them into `T`.
    ///
    /// `None` after an error was reported.
    pub fn take<T: DeserializeOwned>(
        &mut self,
        keys: &[&str],
        diagnostics: &mut Diagnostics,
    ) -> Option<T> {
        let aside = self.set_aside(keys);
        self.read(aside, diagnostics)
    }

    /// Takes `keys` out, as far as they are written, to [`read`](Self::read) them after the other keys.
    ///
    /// This way, a misspelling of one of these keys is reported once, and the key itself is not reported as missing.
    pub fn set_aside(&mut self, keys: &[&str]) -> Aside {
        let mut table = Table::default();
        for key in keys {
            let entry = self.left.table().and_then(|table| table.get(key)).cloned();
            table.entries.extend(entry);
            self.remove(key);
        }
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        Aside { keys, table }
    }

    /// Reads what was set aside into `T`.
    ///
    /// `None` after an error was reported.
    pub fn read<T: DeserializeOwned>(
        &mut self,
        aside: Aside,
        diagnostics: &mut Diagnostics,
    ) -> Option<T> {
        let Aside { keys, table } = aside;
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let root = Node::new(self.written.span, Value::Table(table));
        Reader::new(&self.title, &keys, root)
            .meant(&self.meant)
            .read(diagnostics)
    }

    /// The value of `key` as written, whether taken or not; `None`, and no error, where it is missing or no
    /// `T`.
    pub fn peek<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        T::deserialize(&self.written.table()?.get(key)?.node).ok()
    }

    /// Reports remaining keys that are not in `known`; keys that were requested before are known as well.
    ///
    /// For a section whose driver is unknown; `known` are then the keys of all drivers.
    pub fn refuse_unknown(&mut self, known: &[&str], diagnostics: &mut Diagnostics) {
        let asked = self.asked.iter().map(String::as_str);
        let all: Vec<&str> = known.iter().copied().chain(asked).collect();
        let entries = self.left.table().map(|table| &table.entries);
        let unknown = entries.into_iter().flatten();
        let unknown = unknown.filter(|entry| !all.contains(&entry.key.as_str()));
        let free: Vec<&str> = all.iter().filter(|key| !self.has(key)).copied().collect();
        let meant = read::refuse_unknown(&self.title, unknown, &free, None, diagnostics);
        self.meant.extend(meant);
    }

    /// Takes an inner table such as `[source.adc.format]` as a section of its own, if it is written.
    ///
    /// `None` without an error means that it is not written; see [`require_section`](Self::require_section).
    pub fn take_section(&mut self, key: &str, diagnostics: &mut Diagnostics) -> Option<Self> {
        let node = self.remove(key)?;
        if node.table().is_none() {
            diagnostics.push(
                Diagnostic::error(format!("`{key}` is {}, a table is expected", node.kind()))
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
            meant: Vec::new(),
        })
    }

    /// As [`take_section`](Self::take_section), and an error if it is not written.
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

    /// Reads what is left into `T`, whose type must refuse unknown fields, and reports all that is wrong.
    ///
    /// `also_known` are keys of this section that others read; those asked for before are known without. A
    /// type's own error may end in `; try EXAMPLE`, which is shown as help. `None` after an error was reported.
    pub fn finish<T: DeserializeOwned>(
        &mut self,
        also_known: &[&str],
        diagnostics: &mut Diagnostics,
    ) -> Option<T> {
        self.finish_checked(also_known, diagnostics, |_| Vec::new())
    }

    /// As [`finish`](Self::finish), and reports what `check` finds wrong with the value. Beside missing and wrong values,
    /// those problems are reported that do not depend on them.
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
        self.meant.extend(reader.meant_here());
        let is_sound = problems.is_empty();
        for problem in problems {
            diagnostics.push(self.problem(problem));
        }
        value.filter(|_| is_sound)
    }

    /// The error for a problem that was found after reading, at the value that it names.
    pub fn problem(&self, problem: Problem) -> Diagnostic {
        let span = problem
            .key
            .as_deref()
            .map_or(self.header(), |key| self.place_of(key));
        Diagnostic::error(problem.message)
            .at(span)
            .maybe_help(problem.help)
    }
}
