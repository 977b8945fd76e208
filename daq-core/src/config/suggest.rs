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
    fn typing_errors_are_seen_through() {
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
    fn lists_read_as_prose() {
        assert_eq!(list::<&str>(&[], 5), "");
        assert_eq!(list(&["a"], 5), "`a`");
        assert_eq!(list(&["a", "b", "c"], 5), "`a`, `b` or `c`");
        assert_eq!(list(&["a", "b", "c"], 2), "`a`, `b`, …");
    }
}
