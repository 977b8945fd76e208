//! Fuzz tests with arbitrary text as configuration, overrides and quantities. Invalid text must cause errors, never a
//! panic.
//!
//! The environment variable `DAQ_FUZZ_SECONDS` sets how many seconds each test runs; the default is 1.

use daq_core::config::{Diagnostics, Document, Overrides, Problem};
use daq_core::units::{BitRate, ByteSize, Frequency, Span};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::Duration;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the test only reads the value")]
struct Everything {
    a: ByteSize,
    b: Option<Span>,
    c: Vec<u8>,
    d: Inner,
    e: Choice,
    #[serde(default)]
    f: BTreeMap<String, Inner>,
    g: std::net::IpAddr,
    h: (bool, f32),
    i: char,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the test only reads the value")]
struct Inner {
    a: Option<Box<Inner>>,
    b: Frequency,
    c: Vec<Choice>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(dead_code, reason = "the test only reads the value")]
enum Choice {
    A,
    B(BitRate),
    C { a: i16 },
    D(Box<Choice>),
}

fn seconds() -> Duration {
    let seconds = std::env::var("DAQ_FUZZ_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

/// Reads `text` with the same steps as the program does.
fn read(text: &str, overrides: &Overrides) {
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("fuzz.toml", text, &mut diagnostics)
        .with_overrides(overrides, &mut diagnostics)
        .expanded(
            &|name| (name.len() < 3).then(|| name.to_owned()),
            &mut diagnostics,
        );
    document.check_kinds(&["a", "b", "source"], &["c", "http"], &mut diagnostics);
    for kind in ["a", "b", "source"] {
        for mut section in document.sections(kind) {
            section.take_string("driver", &["a", "b"], &mut diagnostics);
            section.take::<BTreeMap<String, String>>(&["b", "ring"], &mut diagnostics);
            if let Some(mut inner) = section.clone().take_section("d", &mut diagnostics) {
                let before = diagnostics.errors();
                let value = inner.finish::<Inner>(&[], &mut diagnostics);
                // An error that occurs twice is reported once, so the number of errors may not change.
                assert!(value.is_none() || diagnostics.errors() == before);
            }
            let before = diagnostics.has_errors();
            let value = section.finish::<Everything>(&["ring"], &mut diagnostics);
            assert!(
                value.is_some() || diagnostics.has_errors(),
                "rejected without an error message"
            );
            assert!(value.is_none() || before == diagnostics.has_errors());
            diagnostics.push(section.problem(Problem::at("d.c.0", "checked")));
        }
    }
    diagnostics.render(document.sources(), text.len().is_multiple_of(2));
}

fn reads_back<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let shown = value.to_string();
        assert_eq!(
            shown.parse().ok(),
            Some(value),
            "{text:?} is shown as {shown:?}"
        );
    }
}

#[test]
fn config_of_random_text_does_not_panic() {
    bolero::check!()
        .with_test_time(seconds())
        .with_max_len(512)
        .for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            read(&text, &Overrides::default());
            let (name, value) = text.split_at(text.char_indices().nth(5).map_or(0, |(at, _)| at));
            let overrides = Overrides {
                env: vec![
                    (format!("DAQ__{name}"), value.to_owned()),
                    ("DAQ__A__B__C".into(), value.to_owned()),
                ],
                set: vec![text.to_string(), format!("a.b.{name}={value}")],
            };
            read("[a.b]\nc = 1\n", &overrides);
            reads_back::<ByteSize>(&text);
            reads_back::<Span>(&text);
            reads_back::<BitRate>(&text);
            reads_back::<Frequency>(&text);
        });
}

/// Pieces of configuration text, which are combined because random bytes rarely form more than one valid line.
const PIECES: [&str; 48] = [
    "[a.b]\n",
    "[a.c]\n",
    "[a.b.d]\n",
    "[[a.b.c]]\n",
    "[c]\n",
    "[source]\n",
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "i",
    ".",
    " = ",
    " = ",
    " = ",
    "\n",
    "\n",
    "{ ",
    " }",
    "[",
    "]",
    ", ",
    "\"",
    "'",
    "\"\"\"",
    "4 MiB",
    "10 us",
    "1 MHz",
    "1.5",
    "-1",
    "0x1f",
    "true",
    "2024-01-01",
    "${",
    "${A}",
    "${LONG:-x}",
    "$${",
    "}",
    "#",
    "\r\n",
    "µ",
    "\u{0}",
    "127.0.0.1",
    "ring",
];

#[test]
fn config_of_random_fragments_does_not_panic() {
    bolero::check!()
        .with_test_time(seconds())
        .with_max_len(256)
        .for_each(|bytes: &[u8]| {
            let mut text: String = bytes
                .iter()
                .map(|byte| PIECES[usize::from(*byte) % PIECES.len()])
                .collect();
            read(&text, &Overrides::default());
            text.insert_str(0, "[a.b]\n");
            read(
                &text,
                &Overrides {
                    env: Vec::new(),
                    set: vec!["a.b.d.b=1 MHz".into(), "a.b.d.c=[]".into()],
                },
            );
        });
}
