//! Expansion of `${NAME}` and `${NAME:-default}` in string values. `$${` is an escape for a literal `${`.

use super::diagnostic::{Diagnostic, Diagnostics};
use super::source_map::{SourceMap, Span};

/// Returns an environment variable of this process; `None` if the variable is not set or not valid UTF-8.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns `text` with its variables replaced. Reports variables that cannot be replaced and leaves them unchanged.
pub(crate) fn expand(
    text: &str,
    span: Span,
    sources: &SourceMap,
    lookup: &dyn Fn(&str) -> Option<String>,
    diagnostics: &mut Diagnostics,
) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    let mut place = Place {
        span,
        sources,
        next: span.start,
    };
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$${") {
            expanded.push_str("${");
            rest = after;
            place.of("$${");
            continue;
        }
        let Some(body) = rest.strip_prefix("${") else {
            expanded.push('$');
            rest = &rest[1..];
            continue;
        };
        let Some(length) = body.find('}') else {
            diagnostics.push(
                Diagnostic::error("`${` has no `}`")
                    .at(place.of(rest))
                    .help("write `${NAME}`, or `$${` for a literal `${`"),
            );
            break;
        };
        let whole = &rest[..length + 3];
        let at = place.of(whole);
        let (name, default) = match body[..length].split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (&body[..length], None),
        };
        if !is_name(name) {
            diagnostics.push(
                Diagnostic::error(format!(
                    "`{name}` is not a valid name of an environment variable"
                ))
                .at(at)
                .help("write `${NAME}` or `${NAME:-default}`, or `$${` for a literal `${`"),
            );
            expanded.push_str(whole);
        } else if let Some(value) = lookup(name).or_else(|| default.map(str::to_owned)) {
            expanded.push_str(&value);
        } else {
            diagnostics.push(
                Diagnostic::error(format!("environment variable `{name}` is not set"))
                    .at(at)
                    .help(format!(
                        "set the variable, or write a default value: `${{{name}:-…}}`"
                    )),
            );
            expanded.push_str(whole);
        }
        rest = &rest[whole.len()..];
    }
    expanded.push_str(rest);
    expanded
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Finds the parts of a string value in the source text of the value.
struct Place<'s> {
    span: Span,
    sources: &'s SourceMap,
    /// Byte offset of the end of the last part that was found.
    next: usize,
}

impl Place<'_> {
    /// Returns the span of the next occurrence of `part`, or the span of the whole value if escape sequences hide
    /// `part`.
    fn of(&mut self, part: &str) -> Span {
        let rest = Span::new(self.next, self.span.end);
        match self.sources.slice(rest).find(part) {
            Some(at) => {
                let start = self.next + at;
                self.next = start + part.len();
                Span::new(start, self.next)
            }
            None => self.span,
        }
    }
}
