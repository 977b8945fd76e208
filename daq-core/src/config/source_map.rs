//! Maps byte offsets to origins and lines. All texts share one numbering of bytes, so a span identifies file and line.

use std::fmt;

/// A range of bytes in a [`SourceMap`], which identifies the text, the line and the column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// Creates a span of the bytes from `start` up to but not including `end`.
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }
}

/// Origin of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file, by the path that the user specified.
    File(String),
    /// An environment variable, by name; the text is its value.
    Environment(String),
    /// A `--set` argument; the text is the argument.
    Set(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name) => f.write_str(name),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Set(argument) => write!(f, "--set {argument}"),
        }
    }
}

/// One text of a [`SourceMap`].
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub(crate) origin: Origin,
    /// Offset of the text's first byte in the common numbering.
    pub(crate) base: usize,
    pub(crate) content: String,
}

/// All texts of a configuration.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    texts: Vec<Text>,
}

impl SourceMap {
    /// Adds a text and returns the offset of its first byte in the common numbering.
    pub(crate) fn add(&mut self, origin: Origin, text: String) -> usize {
        // One offset is left unused between two texts, so that the end of one text is not the start of the next.
        let base = self
            .texts
            .last()
            .map_or(0, |last| last.base + last.content.len() + 1);
        self.texts.push(Text {
            origin,
            base,
            content: text,
        });
        base
    }

    /// Adds the text of a file that is not part of the configuration, so that diagnostics can quote it. Returns the
    /// offset of the text's first byte; add it to positions in the file to get offsets for spans.
    pub fn add_file(&mut self, name: &str, text: &str) -> usize {
        self.add(Origin::File(name.to_owned()), text.to_owned())
    }

    /// Returns the index of the text that contains the start of `span`.
    pub(crate) fn index_of(&self, span: Span) -> Option<usize> {
        let index = self
            .texts
            .partition_point(|text| text.base <= span.start)
            .checked_sub(1)?;
        let text = &self.texts[index];
        (span.start - text.base <= text.content.len()).then_some(index)
    }

    pub(crate) fn text(&self, index: usize) -> &Text {
        &self.texts[index]
    }

    /// Returns the text of `span` and the byte range within this text, widened to whole characters.
    pub(crate) fn local(&self, span: Span) -> Option<(&Text, std::ops::Range<usize>)> {
        let text = &self.texts[self.index_of(span)?];
        let length = text.content.len();
        let mut start = (span.start - text.base).min(length);
        let mut end = span.end.saturating_sub(text.base).clamp(start, length);
        while !text.content.is_char_boundary(start) {
            start -= 1;
        }
        while !text.content.is_char_boundary(end) {
            end += 1;
        }
        Some((text, start..end))
    }

    /// Returns the text at `span`; empty for a span of another map.
    pub fn slice(&self, span: Span) -> &str {
        self.local(span)
            .map_or("", |(text, range)| &text.content[range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_is_located_in_its_origin() {
        let mut map = SourceMap::default();
        let first = map.add(Origin::File("a.toml".into()), "x = 1\ny = 2".into());
        let second = map.add(Origin::Environment("DAQ__A__B".into()), "µs".into());
        let third = map.add(Origin::Set("a.b=3".into()), "a.b=3".into());
        let place = |at| {
            let (text, range) = map.local(Span::new(at, at + 1)).unwrap();
            (text.origin.to_string(), range.start)
        };
        assert_eq!(place(first + 10), ("a.toml".into(), 10));
        assert_eq!(
            place(first + 11),
            ("a.toml".into(), 11),
            "the position after the last character belongs to the same text"
        );
        assert_eq!(place(second + 2), ("environment DAQ__A__B".into(), 2));
        assert_eq!(place(third + 4), ("--set a.b=3".into(), 4));
        assert_eq!(map.slice(Span::new(third + 4, third + 5)), "3");
        assert_eq!(
            map.slice(Span::new(second + 1, second + 2)),
            "µ",
            "the span must be widened to whole characters"
        );
        assert!(map.local(Span::new(999, 999)).is_none());
    }
}
