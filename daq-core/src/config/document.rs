//! A complete configuration: its source texts and the tree of values that they are merged into.

use super::diagnostic::{Diagnostic, Diagnostics};
use super::expand::expand;
use super::overrides::Overrides;
use super::section::Section;
use super::source_map::{Origin, SourceMap};
use super::suggest::{list, nearest};
use super::tree::{self, Entry, Table, Value};
use crate::units::ByteSize;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Maximum size of a file in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The source texts of a configuration and the tree of values that they are merged into.
///
/// Errors are added to the caller's [`Diagnostics`]. After an error, the document contains the parts that could be
/// read. Such a partial document may be checked for more errors but must not be run.
#[derive(Clone, Debug, Default)]
pub struct Document {
    sources: SourceMap,
    root: Table,
    /// Whether a text could not be read or has a syntax error.
    is_broken: bool,
}

impl Document {
    /// Parses one text. Error messages show `name` as the file name of the text.
    pub fn from_text(name: &str, text: &str, diagnostics: &mut Diagnostics) -> Self {
        let mut document = Self::default();
        document.add(name, text.to_owned(), diagnostics);
        document
    }

    /// Reads several files into one document. A key that two files define is an error.
    pub fn load(paths: &[PathBuf], diagnostics: &mut Diagnostics) -> Self {
        let mut document = Self::default();
        for path in paths {
            match read(path).map(String::from_utf8) {
                Ok(Ok(text)) => document.add(&path.display().to_string(), text, diagnostics),
                Ok(Err(_)) => document.refuse(
                    Diagnostic::error(format!("{} is not UTF-8 text", path.display()))
                        .help("save the file as UTF-8, because TOML files must be UTF-8"),
                    diagnostics,
                ),
                Err(error) => document.refuse(unreadable(path, &error), diagnostics),
            }
        }
        document
    }

    /// Reads all files `*.toml` of a directory in the order of their names, except hidden files.
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
                Diagnostic::error(format!(
                    "the directory {} contains no file *.toml",
                    directory.display()
                ))
                .help("specify the directory that contains the configuration"),
                diagnostics,
            );
            return document;
        }
        Self::load(&paths, diagnostics)
    }

    /// Whether every text could be read and parsed. If this is false, the document lacks sections that the user wrote,
    /// and further checks would report errors that do not exist.
    pub const fn is_whole(&self) -> bool {
        !self.is_broken
    }

    fn refuse(&mut self, why: Diagnostic, diagnostics: &mut Diagnostics) {
        self.is_broken = true;
        diagnostics.push(why);
    }

    fn add(&mut self, name: &str, text: String, diagnostics: &mut Diagnostics) {
        // Some editors begin a file with a byte order mark, which is not valid TOML.
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
                    "remove the NUL byte; if every second byte is NUL, save the file as UTF-8 instead of UTF-16",
                ),
                diagnostics,
            );
            return;
        }
        let (table, mut errors) = toml::de::DeTable::parse_recoverable(&text);
        errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
        // After a syntax error, the parser guesses how the text continues, so later errors may be wrong and are not
        // reported. Duplicate keys are certain.
        let syntax = errors.iter().position(|error| error.message() != DUPLICATE);
        let mut section_end = 0;
        for error in errors
            .iter()
            .take(syntax.map_or(errors.len(), |first| first + 1))
        {
            let span = error.span().unwrap_or(0..0);
            // In a section that is written twice, every key can be a duplicate. Report the section only.
            if error.message() == DUPLICATE {
                if span.start < section_end {
                    continue;
                }
                section_end = end_of_section(&text, span.start);
            }
            let span = super::Span::new(base + span.start, base + span.end);
            diagnostics.push(Diagnostic::error(plain_words(error.message())).at(span));
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

    /// Replaces values of the document by values from environment variables and `--set`.
    #[must_use]
    pub fn with_overrides(mut self, overrides: &Overrides, diagnostics: &mut Diagnostics) -> Self {
        overrides.apply(&mut self.sources, &mut self.root, diagnostics);
        self
    }

    /// Replaces `${NAME}` and `${NAME:-default}` in all string values by the value that `lookup` returns for the name.
    /// `lookup` is usually [`environment`](super::environment). Reports strings that contain NUL, which ends a string
    /// in C.
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
                            .help("remove the character; file names, addresses and other names cannot contain NUL"),
                    );
                }
            });
        }
        self
    }

    /// Adds the text of a file that is not part of the configuration, so that diagnostics can quote it. Returns the
    /// offset of the text's first byte in the common numbering of [`SourceMap`].
    pub fn add_file(&mut self, name: &str, text: &str) -> usize {
        self.sources.add_file(name, text)
    }

    /// Returns the texts that the spans of this document refer to.
    pub fn sources(&self) -> &SourceMap {
        &self.sources
    }

    /// Returns the sections `[kind.NAME]` in the order in which the files define them.
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

    /// Reports an error for each section `[kind.NAME]` whose name is not valid. Section names become part of metric
    /// labels, file names and thread names.
    pub(crate) fn check_names(&self, kind: &str, diagnostics: &mut Diagnostics) {
        let table = self.root.get(kind).and_then(|entry| entry.node.table());
        for entry in table.map_or(&[][..], |table| &table.entries) {
            if let Some(fault) = fault_of_name(&entry.key) {
                diagnostics.push(fault.at(entry.key_span));
            }
        }
    }

    /// Returns the table `[name]`, or `None` if the configuration does not contain it.
    pub fn table(&self, name: &str) -> Option<Section> {
        let node = &self.root.get(name)?.node;
        node.table()?;
        Some(Section::new(name, "", node))
    }

    /// Reports every top-level entry that is neither a section `[kind.NAME]` of one of `kinds` nor one of `tables`.
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
                            "`{key}` is {}, but a table is expected",
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
                } else if let Some(suggestion) = nearest(key, &known) {
                    format!("did you mean `{suggestion}`?")
                } else {
                    let named = kinds.iter().map(|kind| format!("[{kind}.NAME]"));
                    let plain = tables.iter().map(|table| format!("[{table}]"));
                    let all: Vec<String> = named.chain(plain).collect();
                    format!(
                        "known sections: {}",
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

/// Returns the byte offset at which the section ends whose header is at offset `at`; returns `at` if no header is at
/// this offset.
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

/// Error message of the `toml` crate for a key or section that is written twice.
const DUPLICATE: &str = "duplicate key";

/// Replaces error messages of the `toml` crate that are too short to be understood.
fn plain_words(message: &str) -> &str {
    match message {
        DUPLICATE => "this key or section is written twice",
        "recursion limit" => "tables and arrays are nested too deeply",
        _ => message,
    }
}

/// Reports an error if `node`, the value of the top-level key `kind`, does not consist of sections `[kind.NAME]` only.
fn check_named(kind: &str, node: &tree::Node, diagnostics: &mut Diagnostics) {
    let Some(table) = node.table() else {
        let mut diagnostic = Diagnostic::error(format!(
            "`{kind}` is {}, but sections with names are expected",
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
                .help(format!(
                    "write the section header [{kind}.NAME] above these keys"
                )),
        );
    }
}

/// Returns an error if `name` is not valid as the name of a section.
pub(super) fn fault_of_name(name: &str) -> Option<Diagnostic> {
    // A file name may have at most 255 bytes. Sinks add up to 40 bytes to the name of their section.
    const MAX_NAME_LENGTH: usize = 200;
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || !name.chars().all(is_good) {
        let fault = Diagnostic::error(format!("{name:?} is not a valid name"));
        Some(fault.help("use letters, digits, `_` and `-`"))
    } else if name.len() > MAX_NAME_LENGTH {
        let length = name.len();
        let fault = Diagnostic::error(format!(
            "the name has {length} characters, but at most {MAX_NAME_LENGTH} are allowed"
        ));
        Some(fault.help("the name becomes part of file names; choose a shorter one"))
    } else {
        None
    }
}

/// Reads a file of at most [`MAX_BYTES`] bytes.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Diagnostic {
    let diagnostic = Diagnostic::error(format!("cannot read {}: {error}", path.display()));
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            diagnostic.help("check the file name; relative paths start from the working directory")
        }
        std::io::ErrorKind::PermissionDenied => {
            diagnostic.help("check the read permissions: ls -l")
        }
        std::io::ErrorKind::FileTooLarge => diagnostic.help(format!(
            "a configuration has at most {}; check the file name",
            ByteSize(MAX_BYTES)
        )),
        std::io::ErrorKind::IsADirectory => {
            diagnostic.help("name a file; to read all files *.toml of a directory, use -C DIR")
        }
        _ => diagnostic,
    }
}

/// Adds the entries of `new` to `table`. Only top-level tables may be split over several texts.
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
                // For a section, underline the whole header instead of only the last part of its name.
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
                        .help("remove one of the two definitions"),
                );
            }
        }
    }
}
