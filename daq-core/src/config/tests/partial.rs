//! Tests of the errors reported for sections with unreadable values and for sections with many errors.

use super::*;
use crate::assert_contains;

/// Reads the format of [`Udp`] with the same checks that a component makes.
fn checked(text: &str) -> (Option<Format>, String) {
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    let mut section = document.sections("source").remove(0);
    let value = section.finish_checked(&[], &mut diagnostics, |format: &Format| {
        let Sequence { offset, bytes, .. } = format.sequence;
        let mut problems = Vec::new();
        if !(1..=8).contains(&bytes) {
            let message = format!("a number of {bytes} bytes cannot be read");
            problems.push(Problem::at("sequence.bytes", message).help("give 1 to 8"));
        }
        if (offset + bytes) as u64 > format.header.0 {
            let message = format!("{bytes} bytes at {offset} are outside of {}", format.header);
            problems.push(Problem::at("sequence.offset", message));
        }
        if format.payload.0 > 65_507 {
            let message = format!("{} is too large", format.payload);
            problems.push(Problem::at("payload", message));
        }
        if format.timeout.is_none() {
            problems.push(Problem::section("no timeout"));
        }
        problems
    });
    (value, diagnostics.render(document.sources(), false))
}

#[test]
fn bad_value_beside_unreadable_value_is_reported() {
    let (value, shown) = checked(
        "[source.adc]\nheader = \"16 B\"\npayload = \"8 parsecs\"\ntimeout = \"1 s\"\n\
         sequence = { offset = 12, bytes = 9 }\n",
    );
    assert!(value.is_none());
    assert_eq!(
        shown,
        r#"error: `payload`: "8 parsecs" is not a size: unknown unit "parsecs"
 --> daq.toml:3:11
  |
3 | payload = "8 parsecs"
  |           ^^^^^^^^^^^
  |
  = help: write for instance "8 KiB"

error: 9 bytes at 12 are outside of 16 B
 --> daq.toml:5:23
  |
5 | sequence = { offset = 12, bytes = 9 }
  |                       ^^

error: a number of 9 bytes cannot be read
 --> daq.toml:5:35
  |
5 | sequence = { offset = 12, bytes = 9 }
  |                                   ^
  |
  = help: give 1 to 8
"#
    );
}

#[test]
fn errors_caused_by_unreadable_value_are_not_reported() {
    // The values of `header` and `timeout` are unreadable, so errors that depend on them must not be reported.
    let (_, shown) = checked(
        "[source.adc]\nheader = \"16 parsecs\"\npayload = \"1 B\"\ntimeout = \"soon\"\n\
         sequence = { offset = 12, bytes = 9 }\n",
    );
    assert_eq!(shown.matches("error: ").count(), 3, "{shown}");
    assert_contains!(shown => "a number of 9 bytes", !"outside", !"no timeout");
    // A missing value is treated in the same way as an unreadable value.
    let (_, shown) =
        checked("[source.adc]\npayload = \"1 B\"\nsequence = { offset = 12, bytes = 9 }\n");
    assert_contains!(shown =>
        "missing key `header`", "a number of 9 bytes", "no timeout", !"outside"
    );
}

#[test]
fn readable_section_reports_all_errors() {
    let (value, shown) = checked(
        "[source.adc]\nheader = 16\npayload = \"1 MiB\"\nsequence = { offset = 12, bytes = 9 }\n",
    );
    assert!(value.is_none());
    assert_eq!(shown.matches("error: ").count(), 4, "{shown}");
}

/// The time to report errors must not be quadratic in the number of keys, because quadratic time would be hours.
#[test]
fn many_unknown_keys_are_summarised() {
    let keys = (0..200_000).map(|i| format!("slot{i} = {i}\n"));
    let keys = keys.collect::<Vec<_>>().concat();
    let shown = ring(&format!("[ring.raw]\nslot = 1\nslots = 2\n{keys}"));
    assert_eq!(shown.matches("error: unknown key").count(), 20, "{shown}");
    assert_contains!(shown => "error: 199980 more unknown keys in [ring.raw]");
    let mut diagnostics = Diagnostics::new();
    let document =
        Document::from_text("daq.toml", &format!("[ring.raw]\n{keys}"), &mut diagnostics);
    document.sections("ring")[0]
        .clone()
        .refuse_unknown(&["slot", "slots"], &mut diagnostics);
    assert_eq!(diagnostics.errors(), 21);
}

#[test]
fn many_errors_are_truncated() {
    let sections = (0..300).map(|i| format!("[ring.r{i}]\nslot = -1\n"));
    let sections = sections.collect::<Vec<_>>().concat();
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", &sections, &mut diagnostics);
    for mut section in document.sections("ring") {
        section.finish::<Ring>(&[], &mut diagnostics);
    }
    assert_eq!(diagnostics.errors(), 600);
    let shown = diagnostics.render(document.sources(), false);
    assert_eq!(shown.matches("error: ").count(), 100);
    assert!(
        shown.ends_with("\n500 more messages are not shown; fix these first\n"),
        "{shown}"
    );
}

#[test]
fn nul_in_string_is_located() {
    let mut diagnostics = Diagnostics::new();
    let text = "[sink.f]\npath = \"out\\u0000put\"\nnames = [\"a\", \"b\\u0000\"]\n";
    let document = Document::from_text("daq.toml", text, &mut diagnostics)
        .expanded(&|_| None, &mut diagnostics);
    let shown = diagnostics.render(document.sources(), false);
    assert_eq!(diagnostics.errors(), 2, "{shown}");
    assert_contains!(shown => "daq.toml:2:8", "daq.toml:3:15");
    assert!(
        shown.contains("NUL") && shown.contains("help: remove the character"),
        "{shown}"
    );
}

#[test]
fn unknown_numeric_type_lists_valid_types() {
    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Type {
        Int16,
        Uint8,
        Float32,
    }
    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Typed {
        r#type: Type,
    }
    let shown = |name: &str| {
        finish::<Typed>("ring", &format!("[ring.raw]\ntype = \"{name}\"\n")).unwrap_err()
    };
    for name in ["float16", "uint16", "int8"] {
        let shown = shown(name);
        assert_contains!(shown => "choose \"int16\", \"uint8\" or \"float32\"");
    }
    assert!(shown("flaot32").contains("did you mean \"float32\"?"));
}
