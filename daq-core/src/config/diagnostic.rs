//! Errors and warnings about configuration, and how they are shown.

use super::source_map::{SourceMap, Span};
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use std::collections::HashSet;
use std::fmt;

/// Maximum number of diagnostics that are rendered. Rendering one costs time in proportion to the length of its text.
const MAX_SHOWN: usize = 100;

/// How much a diagnostic matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Nothing may be started.
    Error,
    /// It may be started, though perhaps it does not do what was meant.
    Warning,
}

/// A place that a diagnostic points at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    /// The place.
    pub span: Span,
    /// What stands beside the caret; may be empty.
    pub text: String,
}

/// One error or warning: what is wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Diagnostic {
    /// How much it matters.
    pub severity: Severity,
    /// What is wrong, without a full stop.
    pub message: String,
    /// The place that is wrong, `^^^`; `None` when no text is at fault.
    pub primary: Option<Label>,
    /// Other places that matter, `---`.
    pub others: Vec<Label>,
    /// What to do.
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

    /// An error without a place yet.
    pub fn error(message: impl Into<String>) -> Self {
        Self::new(Severity::Error, message)
    }

    /// A warning without a place yet.
    pub fn warning(message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, message)
    }

    /// Points at the place that is wrong.
    #[must_use]
    pub fn at(self, span: Span) -> Self {
        self.labelled(span, "")
    }

    /// Points at the place that is wrong, with words beside the caret.
    #[must_use]
    pub fn labelled(mut self, span: Span, text: impl Into<String>) -> Self {
        self.primary = Some(Label {
            span,
            text: text.into(),
        });
        self
    }

    /// Points at another place that matters, such as the other one of two that conflict.
    #[must_use]
    pub fn also(mut self, span: Span, text: impl Into<String>) -> Self {
        self.others.push(Label {
            span,
            text: text.into(),
        });
        self
    }

    /// The same with all places moved by `bytes`.
    #[must_use]
    pub fn moved(mut self, bytes: usize) -> Self {
        for label in self.primary.iter_mut().chain(&mut self.others) {
            label.span = Span::new(label.span.start + bytes, label.span.end + bytes);
        }
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help.push(text.into());
        self
    }

    /// Says what to do, where something can be said.
    #[must_use]
    pub fn maybe_help(self, text: Option<impl Into<String>>) -> Self {
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

    /// The diagnostic as text, in the manner of rustc.
    pub fn render(&self, sources: &SourceMap, color: bool) -> String {
        let renderer = if color {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        renderer.render(&self.groups(sources))
    }
}

/// Errors and warnings as they are found.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    seen: HashSet<Diagnostic>,
}

impl Diagnostics {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one, unless the same is already there.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        if self.seen.insert(diagnostic.clone()) {
            self.list.push(diagnostic);
        }
    }

    /// Adds all of `other`.
    pub fn append(&mut self, other: Self) {
        for diagnostic in other.list {
            self.push(diagnostic);
        }
    }

    /// Whether anything forbids going on.
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

    /// How many errors.
    pub fn errors(&self) -> usize {
        self.list
            .iter()
            .filter(|diagnostic| diagnostic.severity == Severity::Error)
            .count()
    }

    /// How many warnings.
    pub fn warnings(&self) -> usize {
        self.list.len() - self.errors()
    }

    /// Whether there is neither error nor warning.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of them, in the order of their places; those without a place come first.
    pub fn sorted(&self) -> Vec<&Diagnostic> {
        let mut sorted: Vec<&Diagnostic> = self.list.iter().collect();
        sorted.sort_by_key(|diagnostic| diagnostic.primary.as_ref().map(|label| label.span));
        sorted
    }

    /// The first 100 as text with source lines and carets, in the order of their places, with an empty line
    /// between two and a newline at the end. A last line counts the others.
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
            text.push_str(&format!("\n{more} more are not shown; fix these first\n"));
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

/// Something wrong with a section that was found after it was read, by who knows what the values mean.
///
/// [`Section::problem`](super::Section::problem) gives it its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key at fault, as in `format.payload`; `None` is the section as a whole.
    pub key: Option<String>,
    /// What is wrong, without a full stop.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

impl Problem {
    /// The value of `key` is wrong; a key of an inner table is written `format.payload`.
    pub fn at(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: Some(key.into()),
            message: message.into(),
            help: None,
        }
    }

    /// The section is wrong as a whole.
    pub fn section(message: impl Into<String>) -> Self {
        Self {
            key: None,
            message: message.into(),
            help: None,
        }
    }

    /// Says what to do.
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
