//! Errors and warnings about the configuration, and their rendering as text.

use super::source_map::{SourceMap, Span};
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use std::collections::HashSet;
use std::fmt;

/// Maximum number of diagnostics that are rendered. The time to render one diagnostic grows with the length of its
/// source file.
const MAX_SHOWN: usize = 100;

/// Severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used, but may not do what the user intended.
    Warning,
}

/// A location in the configuration that a diagnostic marks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    /// The marked bytes.
    pub span: Span,
    /// Text beside the caret; may be empty.
    pub text: String,
}

/// One error or warning: what is wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Diagnostic {
    /// Whether this is an error or a warning.
    pub severity: Severity,
    /// Description of the fault, without a full stop.
    pub message: String,
    /// The location of the fault, marked with `^^^`; `None` if the fault is not in a configuration text.
    pub primary: Option<Label>,
    /// Related locations, marked with `---`.
    pub others: Vec<Label>,
    /// Suggested fixes.
    pub help: Vec<String>,
}

impl Diagnostic {
    fn new(severity: Severity, message: impl Into<String>) -> Self {
        Self {
            severity,
            message: message.into(),
            primary: None,
            others: Vec::new(),
            help: Vec::new(),
        }
    }

    /// Creates an error without a location.
    pub fn error(message: impl Into<String>) -> Self {
        Self::new(Severity::Error, message)
    }

    /// Creates a warning without a location.
    pub fn warning(message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, message)
    }

    /// Sets the location of the fault.
    #[must_use]
    pub fn at(self, span: Span) -> Self {
        self.labelled(span, "")
    }

    /// Sets the location of the fault and the text beside its caret.
    #[must_use]
    pub fn labelled(mut self, span: Span, text: impl Into<String>) -> Self {
        self.primary = Some(Label {
            span,
            text: text.into(),
        });
        self
    }

    /// Adds a related location, such as the second of two conflicting keys, and the text beside its marker.
    #[must_use]
    pub fn also(mut self, span: Span, text: impl Into<String>) -> Self {
        self.others.push(Label {
            span,
            text: text.into(),
        });
        self
    }

    /// Moves all locations towards the end of the text by `bytes`.
    #[must_use]
    pub fn moved(mut self, bytes: usize) -> Self {
        for label in self.primary.iter_mut().chain(&mut self.others) {
            label.span = Span::new(label.span.start + bytes, label.span.end + bytes);
        }
        self
    }

    /// Adds a suggested fix.
    #[must_use]
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help.push(text.into());
        self
    }

    /// Adds a suggested fix if `text` is `Some`.
    #[must_use]
    pub(crate) fn maybe_help(self, text: Option<impl Into<String>>) -> Self {
        match text {
            Some(text) => self.help(text),
            None => self,
        }
    }

    fn groups<'s>(&'s self, sources: &'s SourceMap) -> Vec<Group<'s>> {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = Group::with_title(level.primary_title(&self.message));
        let labels: Vec<(AnnotationKind, &Label)> = self
            .primary
            .iter()
            .map(|label| (AnnotationKind::Primary, label))
            .chain(
                self.others
                    .iter()
                    .map(|label| (AnnotationKind::Context, label)),
            )
            .collect();
        let mut shown = Vec::new();
        for (_, label) in &labels {
            let Some(index) = sources.index_of(label.span) else {
                continue;
            };
            if shown.contains(&index) {
                continue;
            }
            shown.push(index);
            let text = sources.text(index);
            let mut snippet = Snippet::source(text.content.as_str()).path(text.origin.to_string());
            for (kind, label) in &labels {
                if sources.index_of(label.span) == Some(index)
                    && let Some((_, range)) = sources.local(label.span)
                {
                    let words = (!label.text.is_empty()).then_some(label.text.as_str());
                    snippet = snippet.annotation(kind.span(range).label(words));
                }
            }
            group = group.element(snippet);
        }
        for help in &self.help {
            let help = annotate_snippets::normalize_untrusted_str(help);
            group = group.element(Level::HELP.message(help));
        }
        vec![group]
    }

    /// Renders the diagnostic as text in the style of rustc.
    pub fn render(&self, sources: &SourceMap, color: bool) -> String {
        let renderer = if color {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        renderer.render(&self.groups(sources))
    }
}

/// A list of errors and warnings without duplicates, in the order in which they were found.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    seen: HashSet<Diagnostic>,
}

impl Diagnostics {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `diagnostic` unless the list already contains an equal one.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        if self.seen.insert(diagnostic.clone()) {
            self.list.push(diagnostic);
        }
    }

    /// Adds all diagnostics of `other`.
    pub fn append(&mut self, other: Self) {
        for diagnostic in other.list {
            self.push(diagnostic);
        }
    }

    /// Whether the list contains an error.
    pub fn has_errors(&self) -> bool {
        self.list
            .iter()
            .any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// Whether there is an error at `span`.
    pub fn has_error_at(&self, span: Span) -> bool {
        self.list.iter().any(|diagnostic| {
            let place = diagnostic.primary.as_ref().map(|label| label.span);
            diagnostic.severity == Severity::Error && place == Some(span)
        })
    }

    /// Returns the number of errors.
    pub fn errors(&self) -> usize {
        self.list
            .iter()
            .filter(|diagnostic| diagnostic.severity == Severity::Error)
            .count()
    }

    /// Returns the number of warnings.
    pub fn warnings(&self) -> usize {
        self.list.len() - self.errors()
    }

    /// Whether the list contains neither errors nor warnings.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns all diagnostics: first the diagnostics without a location, then the others in the order of their
    /// locations.
    pub fn sorted(&self) -> Vec<&Diagnostic> {
        let mut sorted: Vec<&Diagnostic> = self.list.iter().collect();
        sorted.sort_by_key(|diagnostic| diagnostic.primary.as_ref().map(|label| label.span));
        sorted
    }

    /// Renders the first 100 diagnostics as text with source lines and carets, in the order of their locations. Empty
    /// lines separate the diagnostics, and the text ends with a newline. A last line reports the number of omitted
    /// diagnostics.
    pub fn render(&self, sources: &SourceMap, color: bool) -> String {
        let mut text = String::new();
        for (index, diagnostic) in self.sorted().into_iter().take(MAX_SHOWN).enumerate() {
            if index > 0 {
                text.push('\n');
            }
            text.push_str(&diagnostic.render(sources, color));
            text.push('\n');
        }
        if let Some(more @ 1..) = self.list.len().checked_sub(MAX_SHOWN) {
            text.push_str(&format!(
                "\n{more} more messages are not shown; fix these first\n"
            ));
        }
        text
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Self {
        let mut diagnostics = Self::new();
        diagnostics.push(diagnostic);
        diagnostics
    }
}

/// A fault in a section that was found after deserialization, by code that checks the meaning of the values.
///
/// [`Section::problem`](super::Section::problem) adds the location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key at fault, such as `format.payload`; `None` if the fault concerns the whole section.
    pub key: Option<String>,
    /// Description of the fault, without a full stop.
    pub message: String,
    /// A suggested fix.
    pub help: Option<String>,
}

impl Problem {
    /// Creates a problem with the value of `key`. A key of an inner table is written as a dotted path:
    /// `format.payload`.
    pub fn at(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: Some(key.into()),
            message: message.into(),
            help: None,
        }
    }

    /// Creates a problem that concerns the whole section.
    pub fn section(message: impl Into<String>) -> Self {
        Self {
            key: None,
            message: message.into(),
            help: None,
        }
    }

    /// Sets the suggested fix.
    #[must_use]
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = &self.key {
            write!(f, "`{key}`: ")?;
        }
        f.write_str(&self.message)?;
        if let Some(help) = &self.help {
            write!(f, "; {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}
