//! Values from the environment (`DAQ__RING__RAW__SLOTS=128`) and from `--set ring.raw.slots=128`.
//!
//! The `config` crate collects the overrides and determines their precedence. Instead of each value, the crate stores
//! the index of the override, so that an error can point at the text of the override.

use super::diagnostic::{Diagnostic, Diagnostics};
use super::source_map::{Origin, SourceMap, Span};
use super::suggest::nearest;
use super::tree::{self, Entry, Node, Table, Value};
use ::config::{Config, ConfigError, Environment, Map, Source, ValueKind};

const PREFIX: &str = "DAQ";
const SEPARATOR: &str = "__";

/// Values that override the values of the configuration files. The environment takes precedence over files, and `set`
/// over the environment. If `set` assigns a key twice, the last assignment wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Environment variables as (name, value). Variables whose names do not begin with `DAQ__` are ignored.
    pub env: Vec<(String, String)>,
    /// Assignments such as `ring.raw.slots=128`.
    pub set: Vec<String>,
}

impl Overrides {
    /// Creates overrides from `set` and all environment variables of this process that are valid UTF-8.
    pub fn from_process(set: Vec<String>) -> Self {
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self { env, set }
    }

    /// Writes the values into `root` and adds their texts to `sources`.
    pub(super) fn apply(
        &self,
        sources: &mut SourceMap,
        root: &mut Table,
        diagnostics: &mut Diagnostics,
    ) {
        let written = self.written(sources, diagnostics);
        match collect(&written) {
            Ok(mut leaves) => {
                // The map has no defined order, so apply the overrides in the order in which they were written.
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

    /// Returns the well-formed overrides, the overrides from the environment first. Reports malformed overrides as
    /// errors.
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
                    Diagnostic::error(format!(
                        "environment variable {name} does not name a configuration key"
                    ))
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
                        Diagnostic::error("--set needs a key and a value")
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

/// Returns the part of `name` after `DAQ__`; `None` if `name` does not begin with `DAQ__` in any letter case.
fn after_prefix(name: &str) -> Option<&str> {
    let (prefix, rest) = name.split_at_checked(PREFIX.len())?;
    if prefix.eq_ignore_ascii_case(PREFIX) {
        rest.strip_prefix(SEPARATOR)
    } else {
        None
    }
}

/// Whether `path` consists of one or more parts separated by points, with only the characters allowed in names and
/// keys.
fn is_path(path: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    path.len() <= 256
        && path
            .split('.')
            .all(|part| !part.is_empty() && part.chars().all(good))
}

#[derive(Clone, Debug)]
enum From {
    /// An environment variable, by name.
    Environment(String),
    /// A `--set` argument, by the path before its equals sign.
    Set(String),
}

/// One override as the user wrote it.
#[derive(Clone, Debug)]
struct Written {
    from: From,
    path: Span,
    text: String,
    value: Span,
}

/// One `--set` argument as a source of the `config` crate.
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

/// Merges the overrides and returns, for each key, the index of the override that takes precedence.
fn collect(written: &[Written]) -> Result<Vec<(Vec<String>, usize)>, ConfigError> {
    let mut builder = Config::builder();
    for (index, written) in written.iter().enumerate() {
        builder = match &written.from {
            From::Environment(name) => builder.add_source(
                // The crate uses the same separator between the prefix and the rest of the name.
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
    /// Parses the text as a TOML value. Text that is not valid TOML becomes a string.
    fn node(&self, diagnostics: &mut Diagnostics) -> Node {
        let mut unfit = Vec::new();
        let parsed = toml::de::DeValue::parse(self.text.trim_end())
            .ok()
            .map(|value| tree::from_value(value, self.value.start, &mut unfit));
        for unfit in unfit {
            diagnostics.push(Diagnostic::error(unfit.message).at(unfit.span));
        }
        match parsed.map(|node| node.value) {
            // In an override, text that TOML parses as a date, `nan` or `inf` is more likely a name. Use it as a
            // string.
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

    /// Whether `part` of the path refers to `key`. Environment variables usually contain neither lower-case letters nor
    /// `-`, so their letter case is ignored and `_` matches `-`.
    fn means(&self, part: &str, key: &str) -> bool {
        match self.from {
            From::Set(_) => part == key,
            From::Environment(_) => part
                .replace('-', "_")
                .eq_ignore_ascii_case(&key.replace('-', "_")),
        }
    }

    /// Returns the key of `table` that `part` refers to. An exact match takes precedence.
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
        for (depth, part) in above.iter().enumerate() {
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
                let key = &path[depth + 1];
                let diagnostic = self.error(format!("`{title}` is {kind} and has no key `{key}`"));
                Box::new(diagnostic.help(format!("set the whole value: `{title}=VALUE`")))
            })?;
        }
        let node = self.node(diagnostics);
        let key = self.find(table, last).unwrap_or_else(|| last.clone());
        let key_span = match self.from {
            From::Set(_) => Span::new(self.path.end - last.len(), self.path.end),
            From::Environment(_) => self.path,
        };
        match table.get_mut(&key) {
            // Only values of sections can change from a table to another type.
            Some(entry)
                if above.len() < 2 && entry.node.table().is_some() && node.table().is_none() =>
            {
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

    /// Returns an error if `path` refers to a section that does not exist.
    fn check_section(&self, path: &[String], root: &Table) -> Result<(), Box<Diagnostic>> {
        let [top, name, rest @ ..] = path else {
            let example = "specify a key of a section, such as `ring.raw.slots` or `http.listen`";
            let message = format!("`{}` is not a key of a section", path.join("."));
            return Err(Box::new(self.error(message).help(example)));
        };
        let kind = self.find(root, top).and_then(|key| root.get(&key));
        let inner = kind.and_then(|entry| entry.node.table());
        // A table that contains only tables holds named sections, as `ring` holds `raw` in [ring.raw].
        let named = inner.is_some_and(|table| {
            !table.entries.is_empty()
                && table
                    .entries
                    .iter()
                    .all(|entry| entry.node.table().is_some())
        });
        let there = match inner {
            Some(table) => !named || self.find(table, name).is_some(),
            // A table without named sections, such as [http], is created when its first key is set.
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
            Some(suggestion) => format!("did you mean `{suggestion}`?"),
            None if sections.is_empty() => "no sections are defined".to_owned(),
            None => format!(
                "defined sections: {}",
                super::suggest::list(&sections, 16).replace(" or ", " and ")
            ),
        };
        Err(Box::new(
            self.error(format!("there is no section `{title}`"))
                .help(help),
        ))
    }
}
