//! Suggestions ("did you mean …?") for misspelt keys and values.

/// Minimum similarity of a suggestion to the misspelt word. Less similar suggestions confuse more than they help.
const SIMILAR: f64 = 0.8;

/// Returns the choice of which `word` is most likely a misspelling, or `None` if no choice is similar enough.
///
/// ```
/// use daq_core::config::nearest;
/// assert_eq!(nearest("slotz", &["slot", "slots", "memory"]), Some("slots"));
/// assert_eq!(nearest("gain", &["slot", "slots", "memory"]), None);
/// ```
pub fn nearest<'c, C: AsRef<str>>(word: &str, choices: &'c [C]) -> Option<&'c str> {
    // A very long word is not a misspelling, and the time of a comparison is quadratic in the length.
    if word.len() > 256 {
        return None;
    }
    let folded = fold(word);
    let mut best: Option<(&str, f64)> = None;
    for choice in choices {
        let choice = choice.as_ref();
        let other = fold(choice);
        let score = if folded == other {
            3.0
        } else if other.chars().count() <= 3 && strsim::damerau_levenshtein(&folded, &other) > 1 {
            0.0
        } else {
            let edits = strsim::normalized_damerau_levenshtein(&folded, &other);
            // A single edit is always near, even if it changes a large part of a short word.
            let near = if strsim::damerau_levenshtein(&folded, &other) == 1 && other.len() > 1 {
                // A wrong letter is more likely than a missing or extra letter.
                let alike = if other.len() == folded.len() {
                    0.5
                } else {
                    0.0
                };
                1.0 + edits + alike
            } else {
                0.0
            };
            strsim::jaro_winkler(&folded, &other).max(edits).max(near)
        };
        if score >= SIMILAR && best.is_none_or(|(_, highest)| score > highest) {
            best = Some((choice, score));
        }
    }
    best.map(|(choice, _)| choice)
}

/// Returns the choice that is most similar to `word`, for values of a key instead of key names (see [`nearest`]).
///
/// Among names that end in a number, such as `int16`, a single letter or digit changes the meaning. Such a name is
/// suggested only if its number equals the number in `word` and its letters are the most similar to those of `word`.
pub(crate) fn nearest_value<'c, C: AsRef<str>>(word: &str, choices: &'c [C]) -> Option<&'c str> {
    let suggestion = nearest(word, choices)?;
    let (folded, choice) = (fold(word), fold(suggestion));
    let (kind, number) = numbered(&choice);
    if number.is_empty() || folded == choice {
        return Some(suggestion);
    }
    let kinds: Vec<String> = choices
        .iter()
        .map(|choice| numbered(&fold(choice.as_ref())).0.to_owned())
        .collect();
    let (typed, typed_number) = numbered(&folded);
    let is_same = typed_number == number && nearest(typed, &kinds) == Some(kind);
    is_same.then_some(suggestion)
}

/// Splits a name into its letters and its final number: `int16` into `int` and `16`.
fn numbered(word: &str) -> (&str, &str) {
    word.split_at(word.trim_end_matches(|c: char| c.is_ascii_digit()).len())
}

/// Maximum number of unknown keys of one table that are reported one by one, because comparing long lists of words
/// takes long.
pub(crate) const MAX_UNKNOWN: usize = 20;

/// Converts to lower case and removes separators, which are the most common differences between a word and its
/// misspelling.
fn fold(word: &str) -> String {
    word.chars()
        .filter(|c| !matches!(c, '-' | '_' | ' '))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Formats choices as "`a`, `b` or `c`", and lists at most `limit` of them.
pub(crate) fn list<C: AsRef<str>>(choices: &[C], limit: usize) -> String {
    let mut text = String::new();
    let shown = choices.len().min(limit);
    for (index, choice) in choices[..shown].iter().enumerate() {
        if index > 0 {
            let last = index + 1 == choices.len();
            text.push_str(if last { " or " } else { ", " });
        }
        text.push('`');
        text.push_str(choice.as_ref());
        text.push('`');
    }
    if choices.len() > shown {
        text.push_str(", …");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_key_yields_suggestion() {
        let keys = ["driver", "listen", "ring", "multicast", "core", "max-frame"];
        for (typed, suggestion) in [
            ("drvier", "driver"),
            ("Listen", "listen"),
            ("rign", "ring"),
            ("multi_cast", "multicast"),
            ("max_frame", "max-frame"),
            ("cores", "core"),
        ] {
            assert_eq!(nearest(typed, &keys), Some(suggestion), "{typed}");
        }
        for unrelated in ["", "payload", "x", "gain"] {
            assert_eq!(nearest(unrelated, &keys), None, "{unrelated}");
        }
    }

    #[test]
    fn suggested_value_keeps_its_meaning() {
        let types = ["int8", "uint8", "int16", "int32", "float32", "float64"];
        for (typed, suggestion) in [
            ("Int16", "int16"),
            ("in16", "int16"),
            ("flaot32", "float32"),
            ("float-64", "float64"),
            ("unit8", "uint8"),
        ] {
            assert_eq!(nearest_value(typed, &types), Some(suggestion), "{typed}");
        }
        for other in [
            "float16", "uint16", "unit16", "uint32", "int64", "int24", "float", "int", "f32", "u8",
        ] {
            assert_eq!(nearest_value(other, &types), None, "{other}");
        }
        assert_eq!(
            nearest_value("hamning", &["hann", "hamming"]),
            Some("hamming")
        );
    }

    #[test]
    fn list_is_joined_as_prose() {
        assert_eq!(list::<&str>(&[], 5), "");
        assert_eq!(list(&["a"], 5), "`a`");
        assert_eq!(list(&["a", "b", "c"], 5), "`a`, `b` or `c`");
        assert_eq!(list(&["a", "b", "c"], 2), "`a`, `b`, …");
    }
}
