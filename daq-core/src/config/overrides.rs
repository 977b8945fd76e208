//! Values from the environment (`DAQ__RING__RAW__SLOTS=128`) and from `--set ring.raw.slots=128`.
//!
//! The `config` crate collects them and decides which wins. It carries a number in the place of each value,
//! which leads back to the text that was written, so that errors can point into it.

use super::diagnostic::{Diagnostic, Diagnostics};
use super::source_map::{Origin, SourceMap, Span};
use super::suggest::nearest;
use super::tree::{self, Entry, Node, Table, Value};
use ::config::{Config, ConfigError, Environment, Map, Source, ValueKind};

const PREFIX: &str = "DAQ";
const SEPARATOR: &str = "__";

/// What to override; the environment wins over files, `set` over the environment, the last over the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Variables by name and value; those that do not begin with `DAQ__` are ignored.
    pub env: Vec<(String, String)>,
    /// Assignments such as `ring.raw.slots=128`.
    pub set: Vec<String>,
}

impl Overrides {
    /// All variables of this process's environment that are UTF-8, and `set`.
    pub fn from_process(set: Vec<String>) -> Self {
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self { env, set }
    }

    /// Puts the values into `root` and their texts into `sources`.
    pub(super) fn apply(
        &self,
        sources: &mut SourceMap,
        root: &mut Table,
        diagnostics: &mut Diagnostics,
    ) {
        let written = self.written(sources, diagnostics);
        match collect(&written) {
            Ok(mut leaves) => {
                // In the order they were written, whatever the order of the map.
                leaves.sort_by_key(|(_, index)| *index);
                for (path, index) in leaves {
                    if let Some(written) = written.get(index)
                        && let Err(diagnostic) = written.place(&path, root, diagnostics)
                    {
                        diagnostics.push(*diagnostic);
                    }
                }
            }
            Err(error) => diagnostics.push(Diagnostic::error(format!(
                "overrides cannot be merged: {error}"
            ))),
        }
    }

    /// The well-formed ones, environment first.
    fn written(&self, sources: &mut SourceMap, diagnostics: &mut Diagnostics) -> Vec<Written> {
        let mut env: Vec<&(String, String)> = self
            .env
            .iter()
            .filter(|(name, _)| after_prefix(name).is_some())
            .collect();
        env.sort();
        let mut all = Vec::new();
        for (name, value) in env {
            let base = sources.add(Origin::Environment(name.clone()), value.clone());
            let span = Span::new(base, base + value.len());
            let path = after_prefix(name)
                .unwrap_or_default()
                .replace(SEPARATOR, ".");
            if is_path(&path) {
                let from = From::Environment(name.clone());
                all.push(Written {
                    from,
                    path: span,
                    text: value.clone(),
                    value: span,
                });
            } else {
                diagnostics.push(
                    Diagnostic::error(format!("environment variable {name} names no key"))
                        .at(span)
                        .help("write for instance DAQ__RING__RAW__SLOTS=128 for `slots` of [ring.raw]"),
                );
            }
        }
        for argument in &self.set {
            let base = sources.add(Origin::Set(argument.clone()), argument.clone());
            let split = argument
                .split_once('=')
                .map(|(path, value)| (path.trim_end(), value.trim_start()));
            let (path, text) = match split {
                Some((path, text)) if is_path(path) => (path, text),
                _ => {
                    diagnostics.push(
                        Diagnostic::error("--set takes a key and a value")
                            .at(Span::new(base, base + argument.len()))
                            .help("write for instance --set ring.raw.slots=128"),
                    );
                    continue;
                }
            };
            let end = base + argument.len();
            all.push(Written {
                from: From::Set(path.to_owned()),
                path: Span::new(base, base + path.len()),
                text: text.to_owned(),
                value: Span::new(end - text.len(), end),
            });
        }
        all
    }
}

/// What follows `DAQ__`.
fn after_prefix(name: &str) -> Option<&str> {
    let (prefix, rest) = name.split_at_checked(PREFIX.len())?;
    if prefix.eq_ignore_ascii_case(PREFIX) {
        rest.strip_prefix(SEPARATOR)
    } else {
        None
    }
}

/// Whether this is at least one part with points between, of the characters that names and keys have.
fn is_path(path: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    path.len() <= 256
        && path
            .split('.')
            .all(|part| !part.is_empty() && part.chars().all(good))
}

#[derive(Clone, Debug)]
enum From {
    /// The variable's name.
    Environment(String),
    /// The path left of the sign.
    Set(String),
}

/// One override as it was written.
#[derive(Clone, Debug)]
struct Written {
    from: From,
    path: Span,
    text: String,
    value: Span,
}

/// One `--set` for the `config` crate.
#[derive(Clone, Debug)]
struct Assignment {
    path: String,
    index: usize,
}

impl Source for Assignment {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, ::config::Value>, ConfigError> {
        let value = ::config::Value::new(None, ValueKind::String(self.index.to_string()));
        Ok(Map::from_iter([(self.path.clone(), value)]))
    }
}

/// Merges the overrides and returns which one of them each key got.
fn collect(written: &[Written]) -> Result<Vec<(Vec<String>, usize)>, ConfigError> {
    let mut builder = Config::builder();
    for (index, written) in written.iter().enumerate() {
        builder = match &written.from {
            From::Environment(name) => builder.add_source(
                // The separator between prefix and rest is the same one.
                Environment::with_prefix(PREFIX)
                    .separator(SEPARATOR)
                    .source(Some(Map::from_iter([(name.clone(), index.to_string())]))),
            ),
            From::Set(path) => builder.add_source(Assignment {
                path: path.clone(),
                index,
            }),
        };
    }
    let mut leaves = Vec::new();
    gather(&builder.build()?.cache, &mut Vec::new(), &mut leaves);
    Ok(leaves)
}

fn gather(value: &::config::Value, path: &mut Vec<String>, leaves: &mut Vec<(Vec<String>, usize)>) {
    match &value.kind {
        ValueKind::Table(table) => {
            for (key, value) in table {
                path.push(key.clone());
                gather(value, path, leaves);
                path.pop();
            }
        }
        ValueKind::String(index) => {
            if let Ok(index) = index.parse() {
                leaves.push((path.clone(), index));
            }
        }
        _ => {}
    }
}

impl Written {
    /// The value: TOML where it is TOML, else the text itself as a string.
    fn node(&self, diagnostics: &mut Diagnostics) -> Node {
        let mut unfit = Vec::new();
        let parsed = toml::de::DeValue::parse(self.text.trim_end())
            .ok()
            .map(|value| tree::from_value(value, self.value.start, &mut unfit));
        for unfit in unfit {
            diagnostics.push(Diagnostic::error(unfit.message).at(unfit.span));
        }
        match parsed.map(|node| node.value) {
            // Dates, `nan` and `inf` are rather names here than what TOML takes them for.
            Some(Value::Datetime(_)) | None => {
                Node::new(self.value, Value::String(self.text.clone()))
            }
            Some(Value::Float(number)) if !number.is_finite() => {
                Node::new(self.value, Value::String(self.text.clone()))
            }
            Some(value) => {
                let scalar = matches!(
                    value,
                    Value::Integer(_) | Value::Float(_) | Value::Boolean(_)
                );
                Node {
                    span: self.value,
                    value,
                    loose: scalar.then(|| self.text.trim().to_owned()),
                }
            }
        }
    }

    fn error(&self, message: String) -> Diagnostic {
        Diagnostic::error(message).at(self.path)
    }

    /// Whether this part of the path means `key`. Variables have neither small letters nor `-`.
    fn means(&self, part: &str, key: &str) -> bool {
        match self.from {
            From::Set(_) => part == key,
            From::Environment(_) => part
                .replace('-', "_")
                .eq_ignore_ascii_case(&key.replace('-', "_")),
        }
    }

    /// The key of `table` that `part` means: an exact one first.
    fn find(&self, table: &Table, part: &str) -> Option<String> {
        let exact = table.get(part);
        let near = || {
            table
                .entries
                .iter()
                .find(|entry| self.means(part, &entry.key))
        };
        exact.or_else(near).map(|entry| entry.key.clone())
    }

    fn place(
        &self,
        path: &[String],
        root: &mut Table,
        diagnostics: &mut Diagnostics,
    ) -> Result<(), Box<Diagnostic>> {
        self.check_section(path, root)?;
        let Some((last, above)) = path.split_last() else {
            return Ok(());
        };
        let mut table = root;
        let mut title = String::new();
        for part in above {
            let key = self.find(table, part).unwrap_or_else(|| part.clone());
            if !title.is_empty() {
                title.push('.');
            }
            title.push_str(&key);
            if table.get(&key).is_none() {
                let node = Node::new(self.path, Value::Table(Table::default()));
                table.entries.push(Entry {
                    key: key.clone(),
                    key_span: self.path,
                    node,
                });
            }
            let node = table.get_mut(&key).map(|entry| &mut entry.node);
            let kind = node.as_ref().map_or("missing", |node| node.kind());
            table = node.and_then(Node::table_mut).ok_or_else(|| {
                Box::new(self.error(format!("`{title}` is {kind} and has no key `{last}`")))
            })?;
        }
        let node = self.node(diagnostics);
        let key = self.find(table, last).unwrap_or_else(|| last.clone());
        let key_span = match self.from {
            From::Set(_) => Span::new(self.path.end - last.len(), self.path.end),
            From::Environment(_) => self.path,
        };
        match table.get_mut(&key) {
            Some(entry) if entry.node.table().is_some() && node.table().is_none() => {
                let diagnostic = self.error(format!("`{title}.{key}` is a table, not a value"));
                let inner = entry.node.table().and_then(|table| table.entries.first());
                let inner = inner.map_or("KEY", |entry| entry.key.as_str());
                Err(Box::new(diagnostic.help(format!(
                    "set one of its keys: `{title}.{key}.{inner}`"
                ))))
            }
            Some(entry) => {
                entry.key_span = key_span;
                entry.node = node;
                Ok(())
            }
            None => {
                table.entries.push(Entry {
                    key,
                    key_span,
                    node,
                });
                Ok(())
            }
        }
    }

    /// Refuses a path into a section that is not there.
    fn check_section(&self, path: &[String], root: &Table) -> Result<(), Box<Diagnostic>> {
        let [top, name, rest @ ..] = path else {
            let example = "name a key of a section, as in `ring.raw.slots` or `http.listen`";
            let message = format!("`{}` names no key of a section", path.join("."));
            return Err(Box::new(self.error(message).help(example)));
        };
        let kind = self.find(root, top).and_then(|key| root.get(&key));
        let inner = kind.and_then(|entry| entry.node.table());
        // A table of tables has sections with names, as `ring` in [ring.raw].
        let named = inner.is_some_and(|table| {
            !table.entries.is_empty()
                && table
                    .entries
                    .iter()
                    .all(|entry| entry.node.table().is_some())
        });
        let there = match inner {
            Some(table) => !named || self.find(table, name).is_some(),
            // [http] comes into being by its first key.
            None => kind.is_some() || rest.is_empty(),
        };
        if there {
            return Ok(());
        }
        let title = format!("{top}.{name}");
        let sections: Vec<String> = root
            .entries
            .iter()
            .flat_map(|entry| {
                let inner = entry
                    .node
                    .table()
                    .map(|table| table.entries.as_slice())
                    .unwrap_or_default();
                let tables = inner.iter().filter(|inner| inner.node.table().is_some());
                tables
                    .map(|inner| format!("{}.{}", entry.key, inner.key))
                    .collect::<Vec<_>>()
            })
            .collect();
        let help = match nearest(&title, &sections) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None if sections.is_empty() => "no sections are defined".to_owned(),
            None => format!(
                "there are {}",
                super::suggest::list(&sections, 16).replace(" or ", " and ")
            ),
        };
        Err(Box::new(
            self.error(format!("there is no section `{title}`"))
                .help(help),
        ))
    }
}
