//! Did-you-mean.

/// Below this similarity a suggestion confuses more than it helps.
const SIMILAR: f64 = 0.8;

/// The choice that `word` was most likely meant to be, if one is near enough.
///
/// ```
/// use daq_core::config::nearest;
/// assert_eq!(nearest("slotz", &["slot", "slots", "memory"]), Some("slots"));
/// assert_eq!(nearest("gain", &["slot", "slots", "memory"]), None);
/// ```
pub fn nearest<'c, C: AsRef<str>>(word: &str, choices: &'c [C]) -> Option<&'c str> {
    // Very long words are no typing errors, and the comparison is quadratic in time.
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
            // One edit in a short word is little, however large a part of the word it is.
            let near = if strsim::damerau_levenshtein(&folded, &other) == 1 && other.len() > 1 {
                // A wrong letter is likelier than one too many.
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

/// As [`nearest`] among values that a key can have.
///
/// Names that end in a number, such as `int16`, differ in meaning by a letter or a digit: one is suggested only if its
/// number is the one in `word` and no other kind is as near.
pub fn nearest_value<'c, C: AsRef<str>>(word: &str, choices: &'c [C]) -> Option<&'c str> {
    let meant = nearest(word, choices)?;
    let (folded, choice) = (fold(word), fold(meant));
    let (kind, number) = numbered(&choice);
    if number.is_empty() || folded == choice {
        return Some(meant);
    }
    let kinds: Vec<String> = choices
        .iter()
        .map(|choice| numbered(&fold(choice.as_ref())).0.to_owned())
        .collect();
    let (typed, typed_number) = numbered(&folded);
    let is_same = typed_number == number && nearest(typed, &kinds) == Some(kind);
    is_same.then_some(meant)
}

/// `int` and `16` of `int16`.
fn numbered(word: &str) -> (&str, &str) {
    word.split_at(word.trim_end_matches(|c: char| c.is_ascii_digit()).len())
}

/// Maximum number of unknown keys of one table that are reported one by one: comparing long lists of words with each
/// other takes long.
pub(crate) const MAX_UNKNOWN: usize = 20;

/// Case and the kind of separator are the commonest differences.
fn fold(word: &str) -> String {
    word.chars()
        .filter(|c| !matches!(c, '-' | '_' | ' '))
        .flat_map(char::to_lowercase)
        .collect()
}

/// "`a`, `b` or `c`", at most `limit` of them.
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
        for (typed, meant) in [
            ("drvier", "driver"),
            ("Listen", "listen"),
            ("rign", "ring"),
            ("multi_cast", "multicast"),
            ("max_frame", "max-frame"),
            ("cores", "core"),
        ] {
            assert_eq!(nearest(typed, &keys), Some(meant), "{typed}");
        }
        for unrelated in ["", "payload", "x", "gain"] {
            assert_eq!(nearest(unrelated, &keys), None, "{unrelated}");
        }
    }

    #[test]
    fn suggested_value_keeps_its_meaning() {
        let types = ["int8", "uint8", "int16", "int32", "float32", "float64"];
        for (typed, meant) in [
            ("Int16", "int16"),
            ("in16", "int16"),
            ("flaot32", "float32"),
            ("float-64", "float64"),
            ("unit8", "uint8"),
        ] {
            assert_eq!(nearest_value(typed, &types), Some(meant), "{typed}");
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
