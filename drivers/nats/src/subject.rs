//! Subjects: templates of a sink, and patterns of streams and sources.

/// The values of the placeholders in a subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// `{run}`: start time and a random number, such as `20261128T044904Z-9c41d2e0`; the same for all sinks of a run of daq.
    pub run: String,
    /// `{pipeline}`: the name of the pipeline.
    pub pipeline: String,
    /// `{ring}`: the name of the ring that the sink reads.
    pub ring: String,
    /// `{sink}`: the name of the sink.
    pub sink: String,
}

/// The placeholders of a template.
const PLACEHOLDERS: [&str; 4] = ["{run}", "{pipeline}", "{ring}", "{sink}"];

/// Returns `name` as a part of a token: characters with a meaning in subjects become `_`.
fn token(name: &str) -> String {
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !".*>".contains(c);
    name.chars()
        .map(|c| if is_plain(c) { c } else { '_' })
        .collect()
}

/// Returns the subject of `template`.
///
/// ```
/// use daq_nats::subject::{Names, expand};
/// let names = Names { run: "r1".into(), ring: "beam 3".into(), ..Names::default() };
/// assert_eq!(expand("obs.{run}.{ring}", &names), "obs.r1.beam_3");
/// ```
pub fn expand(template: &str, names: &Names) -> String {
    let values = [&names.run, &names.pipeline, &names.ring, &names.sink];
    let pairs = PLACEHOLDERS.iter().zip(values);
    pairs.fold(template.to_owned(), |subject, (placeholder, value)| {
        subject.replace(placeholder, &token(value))
    })
}

/// Returns the pattern of the subjects of `template` in all runs.
///
/// ```
/// use daq_nats::subject::{Names, pattern};
/// let names = Names { ring: "events".into(), ..Names::default() };
/// assert_eq!(pattern("obs.{run}.{ring}", &names), "obs.*.events");
/// ```
pub fn pattern(template: &str, names: &Names) -> String {
    let tokens = template.split('.');
    let tokens = tokens.map(|token| if token.contains("{run}") { "*" } else { token });
    expand(&tokens.collect::<Vec<_>>().join("."), names)
}

/// Whether the pattern `outer` can contain the subjects of the template `inner` in all runs. The names that replace placeholders
/// are not known.
///
/// ```
/// use daq_nats::subject::can_cover;
/// assert!(can_cover("obs.>", "obs.{run}.{ring}") && can_cover("obs.events", "obs.{ring}"));
/// assert!(!can_cover("obs.events", "obs.{run}") && !can_cover("other.{ring}", "obs.{ring}"));
/// ```
pub fn can_cover(outer: &str, inner: &str) -> bool {
    let (mut outer, mut inner) = (outer.split('.'), inner.split('.'));
    loop {
        match (outer.next(), inner.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(outer), Some(inner)) if inner.contains("{run}") => {
                if !outer.contains("{run}") {
                    return false;
                }
            }
            (Some(outer), Some(inner))
                if outer == inner || outer.contains('{') || inner.contains('{') => {}
            _ => return false,
        }
    }
}

/// Returns what is wrong with a subject and the fix; `None` if it is valid.
pub fn problem(subject: &str, may_have_wildcards: bool) -> Option<(String, &'static str)> {
    let count = subject.split('.').count();
    for (i, token) in subject.split('.').enumerate() {
        let plain = PLACEHOLDERS
            .iter()
            .fold(token.to_owned(), |token, placeholder| {
                token.replace(placeholder, "")
            });
        let message = if token.is_empty() {
            format!("the subject \"{subject}\" has an empty part")
        } else if token.chars().any(|c| c.is_whitespace() || c.is_control()) {
            format!("the subject \"{subject}\" contains white space")
        } else if plain.contains(['{', '}']) {
            let help = "the placeholders are {run}, {pipeline}, {ring} and {sink}";
            return Some((
                format!("the subject \"{subject}\" has an unknown placeholder"),
                help,
            ));
        } else if token.contains(['*', '>']) {
            let is_whole = token == "*" || (token == ">" && i + 1 == count);
            if may_have_wildcards && is_whole {
                continue;
            }
            let help = "publish to a subject without * and >; in patterns, * is a whole part and > the last part";
            return Some((
                format!("\"{token}\" in the subject \"{subject}\" is not allowed"),
                help,
            ));
        } else {
            continue;
        };
        return Some((
            message,
            "write parts separated by dots, as in \"obs.{run}.decisions\"",
        ));
    }
    None
}

/// Whether every subject of the pattern `inner` is also one of the pattern `outer`.
///
/// ```
/// use daq_nats::subject::covers;
/// assert!(covers("obs.>", "obs.*.decisions") && covers("obs.*.a", "obs.1.a"));
/// assert!(!covers("obs.*", "obs.1.a") && !covers("obs.1", "obs.*"));
/// ```
pub fn covers(outer: &str, inner: &str) -> bool {
    let (mut outer, mut inner) = (outer.split('.'), inner.split('.'));
    loop {
        match (outer.next(), inner.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(inner)) if inner != ">" => {}
            (Some(outer), Some(inner)) if outer == inner && inner != ">" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_subjects_are_reported() {
        for valid in ["a", "obs.{run}.decisions", "{pipeline}.{ring}-{sink}"] {
            assert_eq!(problem(valid, false), None, "{valid}");
        }
        for pattern in ["obs.*.a", "obs.>", ">"] {
            assert_eq!(problem(pattern, true), None, "{pattern}");
            assert!(problem(pattern, false).is_some(), "{pattern}");
        }
        for wrong in ["", "a..b", "a b", "a.{obs}", "a.>.b", "a.b*", ".a"] {
            assert!(problem(wrong, true).is_some(), "{wrong}");
        }
    }
}
