//! Checks of texts and of fields, in one line each.

/// Panics with the whole text unless it contains all of the given parts, and none of those after `!`. The text after `;`
/// names the case.
///
/// ```
/// let log = "queue 5 of near0 is busy".to_owned();
/// daq_testkit::assert_contains!(log => "queue 5", "near0", !"panicked"; "case {}", 1);
/// ```
#[macro_export]
macro_rules! assert_contains {
    ($text:expr => $($parts:tt)+) => {
        match &$text {
            text => {
                let text: &str = text.as_ref();
                $crate::assert_contains!(@ text [] $($parts)+);
            }
        }
    };
    (@ $text:ident [$($checks:tt)*] !$part:expr $(, $($rest:tt)+)?) => {
        $crate::assert_contains!(@ $text [$($checks)* (false, $part)] $($($rest)+)?);
    };
    (@ $text:ident [$($checks:tt)*] !$part:expr; $($case:tt)+) => {
        $crate::assert_contains!(@ $text [$($checks)* (false, $part)]; $($case)+);
    };
    (@ $text:ident [$($checks:tt)*] $part:expr $(, $($rest:tt)+)?) => {
        $crate::assert_contains!(@ $text [$($checks)* (true, $part)] $($($rest)+)?);
    };
    (@ $text:ident [$($checks:tt)*] $part:expr; $($case:tt)+) => {
        $crate::assert_contains!(@ $text [$($checks)* (true, $part)]; $($case)+);
    };
    (@ $text:ident [$(($present:literal, $part:expr))+] $(; $($case:tt)+)?) => {
        let case = || $crate::case!($($($case)+)?);
        $($crate::check_part($text, &$part, $present, case);)+
    };
}

/// Panics unless `text` contains `part` (if it must be present).
#[doc(hidden)]
#[track_caller]
pub fn check_part(
    text: &str,
    part: &(impl AsRef<str> + ?Sized),
    present: bool,
    case: impl Fn() -> String,
) {
    let part = part.as_ref();
    let verb = if present { "contain" } else { "not contain" };
    assert!(
        text.contains(part) == present,
        "{}the text must {verb} {part:?}:\n{text}",
        case()
    );
}

/// Panics with the whole value unless its fields have the given values. The text after `;` names the case.
///
/// ```
/// let range = 3..7;
/// daq_testkit::assert_fields!(range => start: 3, end: 7; "case {}", 1);
/// ```
#[macro_export]
macro_rules! assert_fields {
    ($value:expr => $($field:ident: $expected:expr),+ $(; $($case:tt)+)?) => {{
        let value = &$value;
        assert_eq!(
            ($(&value.$field,)+), ($(&$expected,)+),
            "{}{} of {value:?}", $crate::case!($($($case)+)?), concat!($(stringify!($field), " ",)+)
        );
    }};
}

/// Panics with the report of an outcome unless the counts of a component have the given values. The text after `;` names
/// the case.
///
/// `assert_counts!(outcome, "sources.adc" => expected: 8, lost.late: 1; "{keys}")`
#[macro_export]
macro_rules! assert_counts {
    ($outcome:expr, $of:expr => $($key:ident $(. $part:ident)*: $expected:expr),+ $(; $($case:tt)+)?) => {{
        let (outcome, of) = (&$outcome, String::from($of));
        let case = $crate::case!($($($case)+)?);
        $({
            let path = [&of, stringify!($key), $(stringify!($part),)*].join(".");
            assert_eq!(
                outcome.count(&path), $expected,
                "{case}{path}:\n{:#}\n{}", outcome.report, outcome.stderr
            );
        })+
    }};
}

/// Formats the name of a case.
#[doc(hidden)]
#[macro_export]
macro_rules! case {
    () => {
        String::new()
    };
    ($($case:tt)+) => {
        format!("{}: ", format_args!($($case)+))
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn present_and_absent_parts_are_found() {
        let (text, part) = ("a ring of 8 slots".to_owned(), "ring".to_owned());
        assert_contains!(text => part, "8 slots", !"frames", &format!("{}", 8));
        assert_contains!(&text => "ring"; "a case");
        let missing = std::panic::catch_unwind(|| assert_contains!(text => "frames"));
        let present = std::panic::catch_unwind(|| assert_contains!(text => "a", !"ring"; "{}", 1));
        assert!(missing.is_err() && present.is_err());
    }

    #[test]
    fn fields_are_compared() {
        assert_fields!((1_u64..7) => start: 1, end: 7);
        let wrong = std::panic::catch_unwind(|| assert_fields!((1..7) => start: 1, end: 8));
        assert!(wrong.is_err());
    }
}
