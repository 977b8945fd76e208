//! Tests of loading, merging and expanding documents, and of rendered diagnostics.

use super::*;
use crate::assert_contains;

#[test]
fn syntax_errors_are_located() {
    assert_eq!(
        ring("[ring.raw]\nslot = \"1 MiB\nslots = [\n"),
        r#"error: invalid basic string, expected `"`
 --> daq.toml:2:14
  |
2 | slot = "1 MiB
  |              ^
"#,
        "errors after the first syntax error are not reported"
    );
    let mut diagnostics = Diagnostics::new();
    let twice = "[ring.raw]\nslots = 1\nslots = 2\nslot = 1\nslot = 2\n";
    let document = Document::from_text("daq.toml", twice, &mut diagnostics);
    assert_eq!(diagnostics.errors(), 2, "duplicate keys are reported");
    assert!(!document.is_whole());
}

#[test]
fn duplicate_section_is_reported_once() {
    let mut diagnostics = Diagnostics::new();
    let text = "[ring.raw]\nslots = 1\nslot = 1\n[ring.b]\n[ring.raw]\nslots = 2\nslot = 1\n[ring.b]\n[http]\nlisten = 1\nlisten = 2\n";
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    let shown = diagnostics.render(document.sources(), false);
    for place in [":5:", ":8:", ":11:"] {
        assert!(shown.contains(&format!("daq.toml{place}")), "{shown}");
    }
    assert_eq!(diagnostics.errors(), 3, "{shown}");
}

#[test]
fn nul_byte_is_located() {
    let mut diagnostics = Diagnostics::new();
    let text = "[ring.raw]\nsl\0ots = 1\n";
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    let shown = diagnostics.render(document.sources(), false);
    assert!(
        shown.starts_with("error: the file contains a NUL byte\n --> daq.toml:2:3\n"),
        "{shown}"
    );
    assert_eq!(diagnostics.errors(), 1, "{shown}");
    assert!(!document.is_whole());
}

#[test]
fn section_with_name_before_kind_yields_suggestion() {
    let mut diagnostics = Diagnostics::new();
    let text = "[adc.source]\ndriver = \"sim\"\n[adc.x]\n";
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    document.check_kinds(&["source", "ring"], &["daq"], &mut diagnostics);
    let shown = diagnostics.render(document.sources(), false);
    assert!(shown.contains("did you mean [source.adc]?"), "{shown}");
}

#[test]
fn definition_in_two_files_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("b.toml", "[ring.raw]\nslots = 2\n[http]\nlisten = \"b\"\n");
    write(
        "a.toml",
        "[ring.raw]\nslots = 1\n[ring.other]\n[http]\nlisten = \"a\"\n",
    );
    write(".hidden.toml", "= nonsense");
    write("readme.txt", "= nonsense");
    let mut diagnostics = Diagnostics::new();
    let document = Document::load_dir(directory.path(), &mut diagnostics);
    let place = format!("{}/", directory.path().display());
    assert_eq!(
        diagnostics
            .render(document.sources(), false)
            .replace(&place, ""),
        r#"error: section `ring.raw` is defined twice
 --> b.toml:1:1
  |
1 | [ring.raw]
  | ^^^^^^^^^^ defined again here
  |
 ::: a.toml:1:1
  |
1 | [ring.raw]
  | ---------- first defined here
  |
  = help: remove one of the two definitions

error: key `http.listen` is defined twice
 --> b.toml:4:1
  |
4 | listen = "b"
  | ^^^^^^ defined again here
  |
 ::: a.toml:5:1
  |
5 | listen = "a"
  | ------ first defined here
  |
  = help: remove one of the two definitions
"#
    );
    let names: Vec<String> = document
        .sections("ring")
        .iter()
        .map(|ring| ring.name().to_owned())
        .collect();
    assert_eq!(
        names,
        ["raw", "other"],
        "files are merged in their order, and the first definition is kept"
    );
}

#[test]
fn unreadable_file_is_reported_with_errors_of_other_files() {
    let directory = tempfile::tempdir().unwrap();
    let bad = directory.path().join("bad.toml");
    std::fs::write(&bad, "[").unwrap();
    let binary = directory.path().join("binary.toml");
    std::fs::write(&binary, [0xff, 0xfe]).unwrap();
    let mut diagnostics = Diagnostics::new();
    let document = Document::load(
        &[bad, binary, directory.path().join("absent.toml")],
        &mut diagnostics,
    );
    let shown = diagnostics.render(document.sources(), false);
    assert_eq!(diagnostics.errors(), 3, "{shown}");
    assert_contains!(shown => "absent.toml: No such file", "binary.toml is not UTF-8 text");
    let mut diagnostics = Diagnostics::new();
    Document::load_dir(&directory.path().join("absent"), &mut diagnostics);
    assert!(diagnostics.has_errors());
}

#[test]
fn document_top_level_errors_are_reported() {
    let mut diagnostics = Diagnostics::new();
    let text =
        "stray = 1\n[sorce.adc]\n[source]\nx = 1\n[[ring]]\n[sink.\"a b\"]\n[kernel.ok]\n[http]\n";
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    document.check_kinds(
        &["source", "ring", "kernel", "sink"],
        &["http", "daq"],
        &mut diagnostics,
    );
    document.check_names("sink", &mut diagnostics);
    assert_eq!(
        diagnostics.render(document.sources(), false),
        r#"error: unknown key `stray`
 --> daq.toml:1:1
  |
1 | stray = 1
  | ^^^^^
  |
  = help: known sections: [source.NAME], [ring.NAME], [kernel.NAME], [sink.NAME], [http] and [daq]

error: unknown section `sorce`
 --> daq.toml:2:2
  |
2 | [sorce.adc]
  |  ^^^^^
  |
  = help: did you mean `source`?

error: a source needs a name
 --> daq.toml:4:1
  |
3 | [source]
  | --------
4 | x = 1
  | ^
  |
  = help: write the section header [source.NAME] above these keys

error: `ring` is an array, but sections with names are expected
 --> daq.toml:5:1
  |
5 | [[ring]]
  | ^^^^^^^^
  |
  = help: write [ring.NAME] instead of [[ring]]

error: "a b" is not a valid name
 --> daq.toml:6:7
  |
6 | [sink."a b"]
  |       ^^^^^
  |
  = help: use letters, digits, `_` and `-`
"#
    );
}

#[test]
fn variables_outside_strings_are_not_expanded() {
    let lookup = |name: &str| (name == "OUT").then(|| "/data/${OUT}".to_owned());
    let text = "[sink.disk]\npath = \"${OUT}/${NO:-x}/$${A}/$5\"\nlist = [\"${OUT}\"]\n";
    let mut diagnostics = Diagnostics::new();
    let document =
        Document::from_text("daq.toml", text, &mut diagnostics).expanded(&lookup, &mut diagnostics);
    let mut sink = document.sections("sink").remove(0);
    let (path, span) = sink.take_string("path", &[], &mut diagnostics).unwrap();
    assert_eq!(diagnostics.render(document.sources(), false), "");
    assert_eq!(
        path, "/data/${OUT}/x/${A}/$5",
        "the value of a variable is not expanded again"
    );
    assert_eq!(
        document.sources().slice(span),
        "\"${OUT}/${NO:-x}/$${A}/$5\""
    );
}

#[test]
fn undefined_variable_is_located() {
    let text = "[sink.disk]\npath = \"$${OUT}${OUT}/${B C}/${\"\nother = \"\\u0041 ${NOPE}\"\n";
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", text, &mut diagnostics)
        .expanded(&|_| None, &mut diagnostics);
    assert_eq!(
        diagnostics.render(document.sources(), false),
        r#"error: environment variable `OUT` is not set
 --> daq.toml:2:16
  |
2 | path = "$${OUT}${OUT}/${B C}/${"
  |                ^^^^^^
  |
  = help: set the variable, or write a default value: `${OUT:-…}`

error: `B C` is not a valid name of an environment variable
 --> daq.toml:2:23
  |
2 | path = "$${OUT}${OUT}/${B C}/${"
  |                       ^^^^^^
  |
  = help: write `${NAME}` or `${NAME:-default}`, or `$${` for a literal `${`

error: `${` has no `}`
 --> daq.toml:2:30
  |
2 | path = "$${OUT}${OUT}/${B C}/${"
  |                              ^^
  |
  = help: write `${NAME}`, or `$${` for a literal `${`

error: environment variable `NOPE` is not set
 --> daq.toml:3:17
  |
3 | other = "\u0041 ${NOPE}"
  |                 ^^^^^^^
  |
  = help: set the variable, or write a default value: `${NOPE:-…}`
"#
    );
}

#[test]
fn wrong_value_from_variable_is_located_at_its_use() {
    let mut diagnostics = Diagnostics::new();
    let lookup = |_: &str| Some("lots".to_owned());
    let document = Document::from_text(
        "daq.toml",
        "[ring.raw]\nslot = \"${SIZE}\"\nslots = 1\n",
        &mut diagnostics,
    )
    .expanded(&lookup, &mut diagnostics);
    document.sections("ring")[0]
        .clone()
        .finish::<Ring>(&[], &mut diagnostics);
    assert_eq!(
        diagnostics.render(document.sources(), false),
        r#"error: `slot`: "lots" is not a size: it does not start with a number
 --> daq.toml:2:8
  |
2 | slot = "${SIZE}"
  |        ^^^^^^^^^
  |
  = help: write for instance "8 KiB"
"#
    );
}

#[test]
fn diagnostics_with_two_locations_are_joined_and_counted() {
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text(
        "daq.toml",
        "[source.a]\nport = 1\n[source.b]\nport = 1\n",
        &mut diagnostics,
    );
    let sections = document.sections("source");
    let [first, second] =
        [&sections[0], &sections[1]].map(|section| section.span_of("port").unwrap());
    let conflict = Diagnostic::error("two sources listen on port 1")
        .labelled(second, "`b` wants it")
        .also(first, "`a` has it");
    diagnostics.push(conflict.clone());
    diagnostics.push(conflict);
    diagnostics.push(Diagnostic::warning("nothing reads `raw`").at(sections[0].header()));
    assert_eq!(
        (diagnostics.errors(), diagnostics.warnings()),
        (1, 1),
        "the same error is reported once"
    );
    assert_eq!(
        diagnostics.render(document.sources(), false),
        r"warning: nothing reads `raw`
 --> daq.toml:1:1
  |
1 | [source.a]
  | ^^^^^^^^^^

error: two sources listen on port 1
 --> daq.toml:4:8
  |
2 | port = 1
  |        - `a` has it
3 | [source.b]
4 | port = 1
  |        ^ `b` wants it
"
    );
    assert!(
        diagnostics
            .render(document.sources(), true)
            .contains("\u{1b}[")
    );
    assert!(
        !diagnostics
            .render(document.sources(), false)
            .contains('\u{1b}')
    );
}

#[test]
fn unusual_text_keeps_line_and_column() {
    let shown = ring("\u{feff}[ring.raw]\r\nslot = \"1 MiB\" # µ\r\nslots = \"µ\"\r\n");
    assert!(shown.contains("daq.toml:3:9"), "{shown}");
    // Deep nesting must neither overflow the stack nor make the output too long to read.
    let deep = ".a".repeat(50_000);
    for text in [
        format!("a{deep} = 1\n"),
        format!("[a{deep}]\n"),
        format!("a = {}\n", "[".repeat(50_000)),
    ] {
        let mut diagnostics = Diagnostics::new();
        Document::from_text("daq.toml", &text, &mut diagnostics);
        assert!(diagnostics.has_errors());
    }
    let mut diagnostics = Diagnostics::new();
    let text = format!("[a{}]\nx = 1\n", ".a".repeat(60));
    let document = Document::from_text("daq.toml", &text, &mut diagnostics);
    assert!(
        diagnostics
            .render(document.sources(), false)
            .contains("nested deeper than 40 levels")
    );
    let mut diagnostics = Diagnostics::new();
    Document::from_text(
        "daq.toml",
        "a = 999999999999999999999999999999999999999999\n",
        &mut diagnostics,
    );
    assert!(diagnostics.has_errors());
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", "[ring.raw]\n[ring.raw]\n", &mut diagnostics);
    let shown = diagnostics.render(document.sources(), false);
    assert_contains!(shown => "written twice\n --> daq.toml:2:7");
}
