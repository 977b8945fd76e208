//! Parses compiler messages and shows them with the affected lines of the user's file.

use super::unit::{HEADER_NAME, OURS, PARAMETER, Unit};
use daq_core::config::{Diagnostic, Diagnostics, SourceMap, Span, nearest};

/// Signature of the function that every kernel file defines.
const SIGNATURE: &str =
    "__device__ void on_frame(const daq::Frame& in, daq::Out& out, const Params& p)";

/// One message of the compiler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    /// Name of the file; empty if the message refers to the end of the text.
    pub(super) file: String,
    /// Line number, counted from 1.
    pub(super) line: usize,
    /// Column in bytes, counted from 1; `None` if the compiler does not report it.
    pub(super) column: Option<usize>,
    pub(super) is_error: bool,
    pub(super) text: String,
    /// Other positions that the message refers to.
    pub(super) also: Vec<(String, usize)>,
}

/// Splits a line of the form `FILE(LINE): REST`.
fn head(line: &str) -> Option<(&str, usize, &str)> {
    let (place, rest) = line.split_once("): ")?;
    let (file, number) = place.rsplit_once('(')?;
    Some((file, number.parse().ok()?, rest))
}

/// Returns the text after `error: `, `error #20: ` and similar prefixes, and whether the message is an error.
fn severity(rest: &str) -> Option<(bool, &str)> {
    for (word, is_error) in [
        ("error", true),
        ("catastrophic error", true),
        ("internal error", true),
        ("warning", false),
        ("remark", false),
    ] {
        if let Some(rest) = rest.strip_prefix(word) {
            let (number, text) = rest.split_once(": ")?;
            if number.is_empty() || number.starts_with(" #") {
                return Some((is_error, text));
            }
        }
    }
    None
}

/// Returns the position in a line about an instantiation, such as `… at line 12` or `… at line 12 of my.cu`.
fn place_in(line: &str, file: &str) -> Option<(String, usize)> {
    let (_, rest) = line.split_once("at line ")?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let number = rest[..digits].parse().ok()?;
    let file = rest[digits..].trim().strip_prefix("of ").unwrap_or(file);
    Some((file.trim_matches('"').to_owned(), number))
}

/// Parses a compiler log.
pub(super) fn messages(log: &str) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("At end of source: ")
            && let Some((is_error, text)) = severity(text)
        {
            messages.push(Message {
                is_error,
                text: text.to_owned(),
                ..Message::default()
            });
            continue;
        }
        if let Some((file, number, rest)) = head(line) {
            if let Some((is_error, text)) = severity(rest) {
                messages.push(Message {
                    file: file.to_owned(),
                    line: number,
                    is_error,
                    text: text.to_owned(),
                    ..Message::default()
                });
            } else if let Some(last) = messages.last_mut() {
                // A note, or a continuation line with a position.
                if !rest.starts_with("note") {
                    last.text = format!("{} {rest}", last.text);
                }
                last.also.push((file.to_owned(), number));
            }
            continue;
        }
        let Some(last) = messages.last_mut() else {
            continue;
        };
        // The next two lines are the source line and the caret below it, both indented by two spaces.
        if let Some(under) = lines.peek()
            && under.trim() == "^"
        {
            if last.column.is_none() && last.also.is_empty() {
                last.column = under.find('^').and_then(|at| at.checked_sub(1));
            }
            lines.next();
        } else if line.starts_with("      ") {
            let text = line.trim();
            match place_in(text, &last.file) {
                Some(place) => last.also.push(place),
                None => last.text = format!("{}; {text}", last.text),
            }
        }
    }
    messages
}

/// Errors in a compiler log.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Errors in the user's text, with positions in that text.
    pub(super) text: Vec<Diagnostic>,
    /// Errors in parameters, by the parameter's key.
    pub(super) params: Vec<(String, Diagnostic)>,
}

/// Returns all errors in the user's text and in the parameters.
pub(super) fn findings(unit: &Unit<'_>, log: &str) -> Findings {
    let mut messages = messages(log);
    messages.retain(|message| message.is_error);
    let mut found = Findings {
        text: messages
            .iter()
            .filter_map(|message| theirs(unit, message))
            .collect(),
        params: Vec::new(),
    };
    // After an unclosed brace, all later errors are consequences.
    let is_open = messages.iter().any(|message| message.file.is_empty());
    for message in messages.iter().filter(|_| !is_open) {
        if let Some(key) = message.file.strip_prefix(PARAMETER)
            && !found.params.iter().any(|(known, _)| known == key)
        {
            let diagnostic = parameter(unit, key, message);
            found.params.push((key.to_owned(), diagnostic));
        }
    }
    if found.text.is_empty() && found.params.is_empty() {
        found.text = messages
            .iter()
            .map(|message| added(unit, message))
            .collect();
    }
    found
}

/// Returns all errors in the user's text with their lines, as one text.
pub(super) fn compile_error(unit: &Unit<'_>, log: &str) -> String {
    let Findings { text, params } = findings(unit, log);
    let mut sources = SourceMap::default();
    sources.add_file(unit.name, unit.text);
    let mut diagnostics = Diagnostics::new();
    let params = params.into_iter().map(|(_, diagnostic)| diagnostic);
    for diagnostic in text.into_iter().chain(params) {
        diagnostics.push(diagnostic);
    }
    if diagnostics.is_empty() {
        // The log has an unknown format.
        return format!("{} does not compile:\n{log}", unit.name);
    }
    let count = match diagnostics.errors() {
        1 => "an error".to_owned(),
        errors => format!("{errors} errors"),
    };
    let rendered = diagnostics.render(&sources, false);
    format!("{} has {count}\n\n{}", unit.name, rendered.trim_end())
}

/// Returns the diagnostic for an error in the user's text or in a file that the text includes.
fn theirs(unit: &Unit<'_>, message: &Message) -> Option<Diagnostic> {
    if message.file.is_empty() {
        // Report the opening brace that is never closed.
        let (_, line) = message.also.iter().find(|(file, _)| file == unit.name)?;
        return Some(Diagnostic::error(&message.text).labelled(
            span(unit.text, *line, None, &message.text),
            "this is not closed",
        ));
    }
    if message.file == unit.name {
        let span = span(unit.text, message.line, message.column, &message.text);
        let diagnostic = Diagnostic::error(&message.text).at(span);
        return Some(match missing_header(&message.text) {
            Some(help) => diagnostic.help(help),
            None => diagnostic,
        });
    }
    if message.file == OURS || message.file.starts_with(PARAMETER) {
        return None;
    }
    let text = format!("{} ({}:{})", message.text, message.file, message.line);
    let diagnostic = Diagnostic::error(text);
    // Report an error in a header at the user's line that uses the header.
    let user = message.also.iter().find(|(file, _)| file == unit.name);
    Some(match user {
        Some((_, line)) => diagnostic.labelled(span(unit.text, *line, None, ""), "used here"),
        None if message.file == HEADER_NAME => {
            diagnostic.help("check whether a macro in `options` changes the meaning of the header")
        }
        None => diagnostic,
    })
}

/// Returns where to find the header that the compiler cannot open according to `text`.
fn missing_header(text: &str) -> Option<&'static str> {
    let (_, rest) = text.split_once("open source file \"")?;
    let (header, _) = rest.split_once('"')?;
    let starts = [
        "cuda",
        "cooperative_groups",
        "mma.h",
        "vector_",
        "math_constants",
        "crt/",
    ];
    Some(
        if header.starts_with("cuda/") || header.starts_with("cub/") {
            "this header belongs to the CUDA toolkit (Debian: nvidia-cuda-toolkit; PyPI: nvidia-cuda-cccl-cu12 for CUDA 12, \
         nvidia-cuda-cccl for CUDA 13): install it, and add its directory with options = [\"--include-path=DIRECTORY\"]"
        } else if starts.iter().any(|start| header.starts_with(start)) {
            "this header belongs to the CUDA toolkit (Debian: nvidia-cuda-toolkit; PyPI: nvidia-cuda-runtime-cu12 for CUDA 12, \
         nvidia-cuda-runtime for CUDA 13): install it, and add its directory with options = [\"--include-path=DIRECTORY\"], \
         for example …/site-packages/nvidia/cuda_runtime/include or …/site-packages/nvidia/cu13/include"
        } else {
            "headers are searched in the directory of the file, and in those of options = [\"--include-path=DIRECTORY\"]"
        },
    )
}

/// Returns the diagnostic for a parameter that cannot be set.
fn parameter(unit: &Unit<'_>, key: &str, message: &Message) -> Diagnostic {
    let file = unit.name;
    if message.text.contains("daq::NoParams") {
        return Diagnostic::error(format!("`params.{key}`: {file} has no `struct Params`")).help(
            format!("add `struct Params {{ float {key} = 1; }};` to the file, or remove `params`"),
        );
    }
    if message.text.contains("has no member") {
        let mut names = names(of_params(unit.text));
        names.retain(|name| *name != key);
        let near = nearest(key, &names);
        return Diagnostic::error(format!(
            "`params.{key}`: `struct Params` in {file} has no member `{key}`"
        ))
        .help(match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("add the member to the struct, as in `float {key} = 1;`"),
        });
    }
    Diagnostic::error(format!(
        "`params.{key}`: member `{key}` of `struct Params` in {file} cannot be set: {}",
        message.text
    ))
    .help("change the member to a public, non-static number, boolean or array of them")
}

/// Returns the diagnostic for an error in a line that daq added.
fn added(unit: &Unit<'_>, message: &Message) -> Diagnostic {
    let file = unit.name;
    let end = Span::new(unit.text.trim_end().len(), unit.text.trim_end().len());
    if message.file.is_empty() {
        return Diagnostic::error(&message.text).labelled(end, "the end of the file");
    }
    let says = |what: &str| message.text.contains(what);
    if says("on_frame") && (says("undefined") || says("has no")) {
        return Diagnostic::error(format!("{file} defines no function `on_frame`"))
            .help(format!("add `{SIGNATURE} {{ … }}`"));
    }
    if says("dynamic initialization") {
        return Diagnostic::error(format!(
            "the default values of `struct Params` in {file} must be constants"
        ))
        .help("write numbers after `=`, and remove constructors");
    }
    if says("60 KiB") {
        return Diagnostic::error(format!(
            "`struct Params` in {file} is larger than the maximum of 60 KiB"
        ))
        .help("shorten the arrays of the struct; parameters are stored in constant memory");
    }
    let line = unit
        .text
        .lines()
        .position(|line| line.contains("on_frame"))
        .map(|line| span(unit.text, line + 1, None, "\"on_frame\""));
    let diagnostic = Diagnostic::error(format!(
        "`on_frame` has the wrong signature: {}",
        message.text
    ))
    .help(format!("declare it as `{SIGNATURE}`"));
    match line {
        Some(span) => diagnostic.at(span),
        None => diagnostic,
    }
}

/// Returns the span of a message at `line`: the word at `column`, otherwise the text that the message quotes, otherwise
/// the line.
fn span(text: &str, line: usize, column: Option<usize>, message: &str) -> Span {
    let mut start = 0;
    for _ in 1..line {
        start = text[start..]
            .find('\n')
            .map_or(text.len(), |end| start + end + 1);
    }
    let whole = text[start..].lines().next().unwrap_or("");
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    if let Some(column) = column
        && let Some(rest) = whole.get(column - 1..)
        && let Some(first) = rest.chars().next()
    {
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let length = if word == 0 { first.len_utf8() } else { word };
        return Span::new(start + column - 1, start + column - 1 + length);
    }
    for quoted in message.split('"').skip(1).step_by(2) {
        let at = whole.match_indices(quoted).find(|(at, _)| {
            let before = whole[..*at].chars().next_back();
            let behind = whole[at + quoted.len()..].chars().next();
            !quoted.is_empty() && !before.is_some_and(is_word) && !behind.is_some_and(is_word)
        });
        if let Some((at, _)) = at {
            return Span::new(start + at, start + at + quoted.len());
        }
    }
    let indent = whole.len() - whole.trim_start().len();
    Span::new(start + indent, start + whole.trim_end().len().max(indent))
}

/// Returns the part of the text that most likely defines `struct Params`.
fn of_params(text: &str) -> &str {
    let from = text.find("struct Params").unwrap_or(0);
    let end = text[from..].find("};").map_or(text.len(), |end| from + end);
    &text[from..end]
}

/// Returns the identifiers in a C++ text.
fn names(text: &str) -> Vec<&str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| super::params::is_identifier(word))
        .collect()
}
