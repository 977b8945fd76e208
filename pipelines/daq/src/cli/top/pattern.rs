//! Patterns for names, with `*` for any text and `?` for any character.

use std::str::FromStr;

/// A pattern for names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(Vec<char>);

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a pattern must not be empty; `*` matches all names".to_owned());
        }
        Ok(Self(text.chars().collect()))
    }
}

impl Pattern {
    /// Whether the whole `name` matches.
    pub(super) fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        // The positions after the last `*`, to which the comparison returns after a difference.
        let (mut p, mut n, mut star) = (0, 0, None);
        while n < name.len() {
            match self.0.get(p) {
                Some('*') => {
                    star = Some((p + 1, n));
                    p += 1;
                }
                Some(c) if *c == '?' || *c == name[n] => {
                    p += 1;
                    n += 1;
                }
                _ => {
                    let Some((after, begin)) = star else {
                        return false;
                    };
                    (p, n) = (after, begin + 1);
                    star = Some((after, begin + 1));
                }
            }
        }
        self.0[p..].iter().all(|c| *c == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        let matches = |pattern: &str, name| pattern.parse::<Pattern>().unwrap().matches(name);
        for (pattern, name) in [
            ("raw", "raw"),
            ("*", "raw"),
            ("r*", "raw"),
            ("*w", "raw"),
            ("r?w", "raw"),
            ("copy to *", "copy to raw"),
            ("*a*a*", "abca"),
            ("*ab", "aab"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("raw", "raw2"), ("r?", "raw"), ("*a*a*", "abc"), ("?", "")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!("".parse::<Pattern>().is_err());
    }
}
