//! A whole configuration: its texts, and the tree that they make together.

use super::diagnostic::{Diagnostic, Diagnostics};
use super::expand::expand;
use super::overrides::Overrides;
use super::section::Section;
use super::source_map::{Origin, SourceMap};
use super::suggest::{list, nearest};
use super::tree::{self, Entry, Table, Value};
use std::path::{Path, PathBuf};

/// Texts and their common tree.
///
/// Errors go into the caller's [`Diagnostics`]; after an error the document is what could be read, good enough
/// to find more errors in, not to be run.
#[derive(Clone, Debug, Default)]
pub struct Document {
    sources: SourceMap,
    root: Table,
    /// Whether a text could not be read or has a syntax error.
    is_broken: bool,
}

impl Document {
    /// One text, shown under `name` in errors.
    pub fn from_text(name: &str, text: &str, diagnostics: &mut Diagnostics) -> Self {
        let mut document = Self::default();
        document.add(name, text.to_owned(), diagnostics);
        document
    }

    /// Several files as one; what two of them define is an error.
    pub fn load(paths: &[PathBuf], diagnostics: &mut Diagnostics) -> Self {
        let mut document = Self::default();
        for path in paths {
            match std::fs::read(path).map(String::from_utf8) {
                Ok(Ok(text)) => document.add(&path.display().to_string(), text, diagnostics),
                Ok(Err(_)) => document.refuse(
                    Diagnostic::error(format!("{} is not UTF-8 text", path.display()))
                        .help("configuration is TOML, which is UTF-8"),
                    diagnostics,
                ),
                Err(error) => document.refuse(unreadable(path, &error), diagnostics),
            }
        }
        document
    }

    /// All files `*.toml` of a directory that are not hidden, in the order of their names.
    pub fn load_dir(directory: &Path, diagnostics: &mut Diagnostics) -> Self {
        let listed = std::fs::read_dir(directory).and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.path()))
                .collect::<std::io::Result<Vec<_>>>()
        });
        let mut paths = match listed {
            Ok(paths) => paths,
            Err(error) => {
                let mut document = Self::default();
                document.refuse(unreadable(directory, &error), diagnostics);
                return document;
            }
        };
        paths.retain(|path| {
            let hidden = path
                .file_name()
                .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
            !hidden
                && path
                    .extension()
                    .is_some_and(|extension| extension == "toml")
                && path.is_file()
        });
        paths.sort();
        if paths.is_empty() {
            let mut document = Self::default();
            document.refuse(
                Diagnostic::error(format!("{} has no file *.toml", directory.display()))
                    .help("name the directory that contains the configuration"),
                diagnostics,
            );
            return document;
        }
        Self::load(&paths, diagnostics)
    }

    /// Whether every text could be read. Otherwise sections are missing that were written, and further checks would
    /// report errors that do not exist.
    pub const fn is_whole(&self) -> bool {
        !self.is_broken
    }

    fn refuse(&mut self, why: Diagnostic, diagnostics: &mut Diagnostics) {
        self.is_broken = true;
        diagnostics.push(why);
    }

    fn add(&mut self, name: &str, text: String, diagnostics: &mut Diagnostics) {
        // Editors on other systems begin a file with a mark that TOML does not know.
        let text = text
            .strip_prefix('\u{feff}')
            .map(str::to_owned)
            .unwrap_or(text);
        let base = self
            .sources
            .add(Origin::File(name.to_owned()), text.clone());
        if let Some(at) = text.find('\0') {
            let span = super::Span::new(base + at, base + at + 1);
            self.refuse(
                Diagnostic::error("the file contains a NUL byte").at(span).help(
                    "remove it; if the file has one beside every letter, save it as UTF-8 instead of UTF-16",
                ),
                diagnostics,
            );
            return;
        }
        let (table, mut errors) = toml::de::DeTable::parse_recoverable(&text);
        errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
        // What follows a syntax error is a guess of the parser; keys that are written twice are certain.
        let syntax = errors.iter().position(|error| error.message() != DUPLICATE);
        let mut section_end = 0;
        for error in errors
            .iter()
            .take(syntax.map_or(errors.len(), |first| first + 1))
        {
            let span = error.span().unwrap_or(0..0);
            // All keys of a section that is written twice can be duplicates, too.
            if error.message() == DUPLICATE {
                if span.start < section_end {
                    continue;
                }
                section_end = end_of_section(&text, span.start);
            }
            let span = super::Span::new(base + span.start, base + span.end);
            diagnostics.push(Diagnostic::error(in_words(error.message())).at(span));
        }
        let mut unfit = Vec::new();
        let table = tree::from_table(table.into_inner(), base, &mut unfit);
        for unfit in unfit {
            diagnostics.push(Diagnostic::error(unfit.message).at(unfit.span));
        }
        if errors.is_empty() {
            merge(&mut self.root, table, "", diagnostics);
        } else {
            self.is_broken = true;
        }
    }

    /// Replaces values by those of the environment and of `--set`.
    #[must_use]
    pub fn with_overrides(mut self, overrides: &Overrides, diagnostics: &mut Diagnostics) -> Self {
        overrides.apply(&mut self.sources, &mut self.root, diagnostics);
        self
    }

    /// Replaces `${NAME}` and `${NAME:-default}` in all string values by what `lookup` gives for the name,
    /// usually [`environment`](super::environment). Reports strings that contain NUL, which ends a string in C.
    #[must_use]
    pub fn expanded(
        mut self,
        lookup: &dyn Fn(&str) -> Option<String>,
        diagnostics: &mut Diagnostics,
    ) -> Self {
        for entry in &mut self.root.entries {
            entry.node.each_string(&mut |text, span| {
                if text.contains('$') {
                    *text = expand(text, span, &self.sources, lookup, diagnostics);
                }
                if text.contains('\0') {
                    diagnostics.push(
                        Diagnostic::error("this string contains a NUL character (\\u0000)")
                            .at(span)
                            .help("remove it: no file name, address or other name can contain it"),
                    );
                }
            });
        }
        self
    }

    /// Adds the text of another file, to be shown in diagnostics; returns the number of its first byte.
    pub fn add_file(&mut self, name: &str, text: &str) -> usize {
        self.sources.add_file(name, text)
    }

    /// The texts that places refer to.
    pub fn sources(&self) -> &SourceMap {
        &self.sources
    }

    /// The sections `[kind.NAME]` in the order of the files.
    pub fn sections(&self, kind: &str) -> Vec<Section> {
        let Some(table) = self.root.get(kind).and_then(|entry| entry.node.table()) else {
            return Vec::new();
        };
        let mut entries: Vec<&Entry> = table
            .entries
            .iter()
            .filter(|entry| entry.node.table().is_some())
            .collect();
        entries.sort_by_key(|entry| entry.node.span);
        entries
            .into_iter()
            .map(|entry| Section::new(kind, &entry.key, &entry.node))
            .collect()
    }

    /// Reports the names of sections `[kind.NAME]` that are unfit for what they become a part of: labels of metrics,
    /// names of files and threads.
    pub fn check_names(&self, kind: &str, diagnostics: &mut Diagnostics) {
        let table = self.root.get(kind).and_then(|entry| entry.node.table());
        for entry in table.map_or(&[][..], |table| &table.entries) {
            if let Some(fault) = fault_of_name(&entry.key) {
                diagnostics.push(fault.at(entry.key_span));
            }
        }
    }

    /// The table `[name]`, if it is written.
    pub fn table(&self, name: &str) -> Option<Section> {
        let node = &self.root.get(name)?.node;
        node.table()?;
        Some(Section::new(name, "", node))
    }

    /// Reports everything at the top that is neither `[kind.NAME]` of one of `kinds` nor one of `tables`.
    pub fn check_kinds(&self, kinds: &[&str], tables: &[&str], diagnostics: &mut Diagnostics) {
        for Entry {
            key,
            key_span,
            node,
        } in &self.root.entries
        {
            if kinds.contains(&key.as_str()) {
                check_named(key, node, diagnostics);
            } else if tables.contains(&key.as_str()) {
                if node.table().is_none() {
                    diagnostics.push(
                        Diagnostic::error(format!(
                            "`{key}` is {}, a table is expected",
                            node.kind()
                        ))
                        .at(node.span)
                        .help(format!("write a table `[{key}]`")),
                    );
                }
            } else {
                let known: Vec<&str> = kinds.iter().chain(tables).copied().collect();
                let what = if node.table().is_some() {
                    "section"
                } else {
                    "key"
                };
                let swapped = node.table().and_then(|table| {
                    let mut named = table
                        .entries
                        .iter()
                        .filter(|entry| entry.node.table().is_some());
                    named.find(|entry| kinds.contains(&entry.key.as_str()))
                });
                let help = if let Some(kind) = swapped {
                    format!("did you mean [{}.{key}]?", kind.key)
                } else if let Some(meant) = nearest(key, &known) {
                    format!("did you mean `{meant}`?")
                } else {
                    let named = kinds.iter().map(|kind| format!("[{kind}.NAME]"));
                    let plain = tables.iter().map(|table| format!("[{table}]"));
                    let all: Vec<String> = named.chain(plain).collect();
                    format!(
                        "there are {}",
                        list(&all, 16).replace('`', "").replace(" or ", " and ")
                    )
                };
                diagnostics.push(
                    Diagnostic::error(format!("unknown {what} `{key}`"))
                        .at(*key_span)
                        .help(help),
                );
            }
        }
    }
}

/// Where the section ends whose header is at `at`; `at` itself if no header is there.
fn end_of_section(text: &str, at: usize) -> usize {
    let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
    if !text[line..].trim_start().starts_with('[') {
        return at;
    }
    let mut end = line;
    for (i, line) in text[line..].split_inclusive('\n').enumerate() {
        if i > 0 && line.trim_start().starts_with('[') {
            break;
        }
        end += line.len();
    }
    end
}

/// What the TOML reader says of a key or section that is written twice.
const DUPLICATE: &str = "duplicate key";

/// What the TOML reader says too briefly, in full.
fn in_words(message: &str) -> &str {
    match message {
        DUPLICATE => "this key or section is written twice",
        "recursion limit" => "tables and arrays are nested too deep",
        _ => message,
    }
}

/// Reports what is not `[kind.NAME]`.
fn check_named(kind: &str, node: &tree::Node, diagnostics: &mut Diagnostics) {
    let Some(table) = node.table() else {
        let mut diagnostic = Diagnostic::error(format!(
            "`{kind}` is {}, sections with names are expected",
            node.kind()
        ))
        .at(node.span);
        diagnostic = match node.value {
            Value::Array(_) => {
                diagnostic.help(format!("write [{kind}.NAME] instead of [[{kind}]]"))
            }
            _ => diagnostic.help(format!("write a section [{kind}.NAME]")),
        };
        diagnostics.push(diagnostic);
        return;
    };
    if let Some(entry) = table
        .entries
        .iter()
        .find(|entry| entry.node.table().is_none())
    {
        diagnostics.push(
            Diagnostic::error(format!("a {kind} needs a name"))
                .at(entry.key_span)
                .also(node.span, "")
                .help(format!("write [{kind}.NAME] above its keys")),
        );
    }
}

/// What is wrong with the name of a section.
pub(super) fn fault_of_name(name: &str) -> Option<Diagnostic> {
    // A file's name may have 255 bytes, and sinks add up to 40 to theirs.
    const LONGEST: usize = 200;
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || !name.chars().all(is_good) {
        let fault = Diagnostic::error(format!("{name:?} cannot be a name"));
        Some(fault.help("use letters, digits, `_` and `-`"))
    } else if name.len() > LONGEST {
        let length = name.len();
        let fault = Diagnostic::error(format!(
            "the name has {length} characters, but at most {LONGEST} are allowed"
        ));
        Some(fault.help("the name becomes part of file names; choose a shorter one"))
    } else {
        None
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Diagnostic {
    let diagnostic = Diagnostic::error(format!("cannot read {}: {error}", path.display()));
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            diagnostic.help("check the name, and the directory it starts from")
        }
        std::io::ErrorKind::PermissionDenied => diagnostic.help("check who may read it: ls -l"),
        _ => diagnostic,
    }
}

/// Adds `new` to `table`. Only the tables at the top may come from several texts.
fn merge(table: &mut Table, new: Table, above: &str, diagnostics: &mut Diagnostics) {
    for entry in new.entries {
        let key = &entry.key;
        let title = if above.is_empty() {
            key.clone()
        } else {
            format!("{above}.{key}")
        };
        let Some(old) = table.get_mut(key) else {
            table.entries.push(entry);
            continue;
        };
        match (&mut old.node.value, entry.node.value) {
            (Value::Table(old), Value::Table(new)) if above.is_empty() => {
                merge(old, new, &title, diagnostics);
            }
            (_, value) => {
                // A header underlines better than the last part of it.
                let place = |is_table: bool, key, node| if is_table { node } else { key };
                let what = if matches!(value, Value::Table(_)) {
                    "section"
                } else {
                    "key"
                };
                let is_table = matches!(value, Value::Table(_));
                let second = place(is_table, entry.key_span, entry.node.span);
                let first = place(old.node.table().is_some(), old.key_span, old.node.span);
                diagnostics.push(
                    Diagnostic::error(format!("{what} `{title}` is defined twice"))
                        .labelled(second, "defined again here")
                        .also(first, "first defined here")
                        .help("remove one of the two"),
                );
            }
        }
    }
}
