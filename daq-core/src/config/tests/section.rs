//! Tests of reading sections.

use super::*;

#[test]
fn valid_section_is_parsed() {
    let read = finish::<Udp>(
        "source",
        "[source.adc]\nlisten = \"0.0.0.0:4950\"\nformat.header = 16\nformat.payload = '8 KiB'\n\
         format.timeout = '5 ms'\nformat.sequence = { offset = 0x10, bytes = 8, endian = \"little\" }\n",
    );
    let expected = Udp {
        listen: "0.0.0.0:4950".parse().unwrap(),
        ttl: 0,
        format: Format {
            header: ByteSize(16),
            payload: ByteSize(8192),
            sequence: Sequence {
                offset: 16,
                bytes: 8,
                endian: Endian::Little,
            },
            timeout: Some(Time(std::time::Duration::from_millis(5))),
        },
    };
    assert_eq!(read, Ok(expected));
}

#[test]
fn unknown_key_is_reported_with_suggestion() {
    assert_eq!(
        ring("[ring.raw]\nslot = \"1 MiB\"\nslotz = 64\n"),
        r"error: unknown key `slotz` in [ring.raw]
 --> daq.toml:3:1
  |
3 | slotz = 64
  | ^^^^^
  |
  = help: did you mean `slots`?
"
    );
    assert_eq!(
        ring("[ring.raw]\nslot = \"1 MiB\"\nslots = 64\ngain = 2 # of the amplifier\n"),
        r"error: unknown key `gain` in [ring.raw]
 --> daq.toml:4:1
  |
4 | gain = 2 # of the amplifier
  | ^^^^
  |
  = help: known keys: `memory`, `slot`, `slots`, `driver`, `ring`
"
    );
}

#[test]
fn wrong_unit_is_reported() {
    assert_eq!(
        ring("[ring.raw]\nslot = \"1 MBi\"\nslots = 64\n"),
        r#"error: `slot`: "1 MBi" is not a size: unknown unit "MBi"
 --> daq.toml:2:8
  |
2 | slot = "1 MBi"
  |        ^^^^^^^
  |
  = help: write for instance "1 MiB"
"#
    );
}

#[test]
fn wrong_type_and_range_are_reported() {
    assert_eq!(
        ring("[ring.raw]\nslot = \"1 MiB\"\nslots = \"many\"\n"),
        r#"error: `slots` is a string, but an integer is expected
 --> daq.toml:3:9
  |
3 | slots = "many"
  |         ^^^^^^
"#
    );
    assert_eq!(
        ring("[ring.raw]\nslot = \"1 MiB\"\nslots = -1\n"),
        r"error: `slots` is -1, but an integer from 0 to 4294967295 is expected
 --> daq.toml:3:9
  |
3 | slots = -1
  |         ^^
"
    );
    let error = ring("[ring.raw]\nslot = \"1 MiB\"\nslots = 1e3\n");
    assert!(error.contains("= help: write 1000\n"), "{error}");
    for number in ["5000000000", "9223372036854775807"] {
        let error = ring(&format!("[ring.raw]\nslot = \"1 MiB\"\nslots = {number}\n"));
        let expected = format!("`slots` is {number}, but an integer from 0 to 4294967295");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn missing_keys_are_reported_with_example() {
    assert_eq!(
        ring("[ring.raw]\nmemory = \"host\"\n"),
        r#"error: missing key `slot` in [ring.raw]
 --> daq.toml:1:1
  |
1 | [ring.raw]
  | ^^^^^^^^^^
  |
  = help: add a line such as `slot = "8 KiB"`

error: missing key `slots` in [ring.raw]
 --> daq.toml:1:1
  |
1 | [ring.raw]
  | ^^^^^^^^^^
  |
  = help: add a line such as `slots = 1`
"#
    );
    assert_eq!(
        udp("[source.adc]\n"),
        r#"error: missing key `listen` in [source.adc]
 --> daq.toml:1:1
  |
1 | [source.adc]
  | ^^^^^^^^^^^^
  |
  = help: add a line such as `listen = "127.0.0.1:4950"`

error: missing key `format` in [source.adc]
 --> daq.toml:1:1
  |
1 | [source.adc]
  | ^^^^^^^^^^^^
  |
  = help: add a table `[source.adc.format]`
"#
    );
}

#[test]
fn several_errors_in_one_section_are_all_reported() {
    assert_eq!(
        ring("[ring.raw]\nslot = true\nslots = 1.5\ngain = 2\nmemory = 5\n"),
        r#"error: `slot` is a boolean, but a size such as "8 KiB" is expected
 --> daq.toml:2:8
  |
2 | slot = true
  |        ^^^^

error: `slots` is a number with a decimal point, but an integer is expected
 --> daq.toml:3:9
  |
3 | slots = 1.5
  |         ^^^

error: unknown key `gain` in [ring.raw]
 --> daq.toml:4:1
  |
4 | gain = 2
  | ^^^^
  |
  = help: known keys: `memory`, `slot`, `slots`, `driver`, `ring`

error: `memory` is an integer, but a string is expected
 --> daq.toml:5:10
  |
5 | memory = 5
  |          ^
"#
    );
}

#[test]
fn errors_in_nested_tables_are_located() {
    assert_eq!(
        udp(
            "[source.adc]\nlisten = \"here\"\n\n[source.adc.format]\nheader = \"16 B\"\npayloda = \"8 KiB\"\n\
             sequence = { offset = 0, endian = \"bigg\" }\n"
        ),
        r#"error: `listen`: invalid socket address syntax
 --> daq.toml:2:10
  |
2 | listen = "here"
  |          ^^^^^^
  |
  = help: write an address and a port, for instance "127.0.0.1:4950"

error: unknown key `payloda` in [source.adc.format]
 --> daq.toml:6:1
  |
6 | payloda = "8 KiB"
  | ^^^^^^^
  |
  = help: did you mean `payload`?

error: missing key `bytes` in [source.adc.format.sequence]
 --> daq.toml:7:12
  |
7 | sequence = { offset = 0, endian = "bigg" }
  |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: add a line such as `bytes = 1`

error: `format.sequence.endian` cannot be "bigg"
 --> daq.toml:7:35
  |
7 | sequence = { offset = 0, endian = "bigg" }
  |                                   ^^^^^^
  |
  = help: did you mean "big"?
"#
    );
}

#[test]
fn array_in_place_of_a_table_is_rejected() {
    let found = udp(
        "[source.adc]\nlisten = \"127.0.0.1:4950\"\n\n[source.adc.format]\nheader = \"16 B\"\npayload = \"8 KiB\"\n\
         sequence = [0, 8, \"big\"]\n",
    );
    assert!(
        found.starts_with("error: `format.sequence` is an array, but a table is expected\n"),
        "{found}"
    );
}

#[test]
fn wrong_tag_yields_suggestion() {
    let mut diagnostics = Diagnostics::new();
    let text = "[source.a]\ndrvier = \"udp\"\n[source.b]\ndriver = \"upd\"\nformat = 4\n[source.c]\ndriver = \"tape\"\n";
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    for mut section in document.sections("source") {
        let tag = section.take_string("driver", &["udp", "sim", "replay"], &mut diagnostics);
        assert!(tag.is_none());
        assert!(section.take_section("format", &mut diagnostics).is_none());
    }
    let mut first = document.sections("source").remove(0);
    assert!(first.require_section("format", &mut diagnostics).is_none());
    assert_eq!(
        diagnostics.render(document.sources(), false),
        r#"error: missing key `driver` in [source.a]
 --> daq.toml:1:1
  |
1 | [source.a]
  | ^^^^^^^^^^
2 | drvier = "udp"
  | ------ is this meant to be `driver`?
  |
  = help: add a line such as `driver = "udp"`; possible values: "udp", "sim" and "replay"

error: missing key `format` in [source.a]
 --> daq.toml:1:1
  |
1 | [source.a]
  | ^^^^^^^^^^
  |
  = help: add a table `[source.a.format]`

error: unknown driver "upd" in [source.b]
 --> daq.toml:4:10
  |
4 | driver = "upd"
  |          ^^^^^
  |
  = help: did you mean "udp"?

error: `format` is an integer, but a table is expected
 --> daq.toml:5:10
  |
5 | format = 4
  |          ^
  |
  = help: write a table `[source.b.format]`

error: unknown driver "tape" in [source.c]
 --> daq.toml:7:10
  |
7 | driver = "tape"
  |          ^^^^^^
  |
  = help: choose "udp", "sim" or "replay"
"#
    );
}

#[test]
fn section_is_split_between_two_structs() {
    #[derive(Debug, Deserialize, PartialEq)]
    struct Common {
        ring: String,
        #[serde(default)]
        core: Option<usize>,
    }
    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Own {
        rate: f64,
    }
    let mut diagnostics = Diagnostics::new();
    let text = "[source.sim]\nring = \"raw\"\nrate = 3\ncoer = 1\nformat.kind = \"raw\"\nformat.payload = \"3 B\"\n";
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    let mut section = document.sections("source").remove(0);
    let common: Common = section.take(&["ring", "core"], &mut diagnostics).unwrap();
    assert_eq!(
        common,
        Common {
            ring: "raw".into(),
            core: None
        }
    );
    let mut format = section.take_section("format", &mut diagnostics).unwrap();
    assert_eq!(format.title(), "source.sim.format");
    assert_eq!(
        format
            .take_string("kind", &["raw"], &mut diagnostics)
            .unwrap()
            .0,
        "raw"
    );
    assert!(section.finish::<Own>(&[], &mut diagnostics).is_none());
    diagnostics.push(
        section.problem(Problem::at("format.payload", "the payload is odd").help("make it even")),
    );
    diagnostics.push(section.problem(Problem::at("format.header", "no header")));
    diagnostics.push(section.problem(Problem::at("absent", "something absent")));
    diagnostics.push(section.problem(Problem::section("all of it")));
    assert_eq!(
        diagnostics.render(document.sources(), false),
        r#"error: something absent
 --> daq.toml:1:1
  |
1 | [source.sim]
  | ^^^^^^^^^^^^

error: all of it
 --> daq.toml:1:1
  |
1 | [source.sim]
  | ^^^^^^^^^^^^

error: unknown key `coer` in [source.sim]
 --> daq.toml:4:1
  |
4 | coer = 1
  | ^^^^
  |
  = help: did you mean `core`?

error: no header
 --> daq.toml:5:1
  |
5 | format.kind = "raw"
  | ^^^^^^

error: the payload is odd
 --> daq.toml:6:18
  |
6 | format.payload = "3 B"
  |                  ^^^^^
  |
  = help: make it even
"#
    );
    assert_eq!(
        section
            .span_of("ring")
            .map(|span| document.sources().slice(span)),
        Some("\"raw\"")
    );
    assert_eq!(section.span_of("absent"), None);
}

#[test]
fn errors_in_arrays_enums_and_checked_types_are_reported() {
    #[derive(Debug, Deserialize)]
    #[serde(try_from = "u32")]
    struct Even(#[expect(dead_code, reason = "only the parse error is checked")] u32);
    impl TryFrom<u32> for Even {
        type Error = String;
        fn try_from(value: u32) -> Result<Self, String> {
            if value.is_multiple_of(2) {
                Ok(Self(value))
            } else {
                Err(format!("{value} is odd; try {}", value + 1))
            }
        }
    }
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    #[expect(dead_code, reason = "only the parse error is checked")]
    enum Shape {
        Flat,
        Box { width: u8 },
        Size(ByteSize),
    }
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only the parse error is checked")]
    struct Kernel {
        even: Even,
        taps: Vec<f32>,
        shapes: Vec<Shape>,
        pair: (u8, u8),
        mode: Shape,
        also: bool,
    }
    let text = "[kernel.k]\neven = 3\ntaps = [1, 2.5, \"x\", true]\nshapes = [\"flat\", \"fat\", { box = { width = 256 } }, \
                { size = \"1 KiB\" }]\npair = [1, 2, 3]\nalso = 1\n";
    let shown = finish::<Kernel>("kernel", text).unwrap_err();
    let heads: Vec<&str> = shown
        .lines()
        .filter(|line| line.starts_with("error") || line.contains("help"))
        .collect();
    assert_eq!(
        heads,
        [
            "error: missing key `mode` in [kernel.k]",
            "  = help: add a line such as `mode = \"flat\"`",
            "error: `even`: 3 is odd",
            "  = help: write for instance 4",
            "error: `taps[2]` is a string, but a number is expected",
            "error: `taps[3]` is a boolean, but a number is expected",
            "error: `shapes[1]` cannot be \"fat\"",
            "  = help: did you mean \"flat\"?",
            "error: `shapes[2].box.width` is 256, but an integer from 0 to 255 is expected",
            "error: `pair`: the array has 3 elements, but 2 are expected",
            "error: `also` is an integer, but a boolean is expected",
        ],
        "{shown}"
    );
}

#[test]
fn keys_of_groups_are_read_with_their_locations() {
    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Shared {
        #[serde(default)]
        slots: u32,
        #[serde(default)]
        from: Vec<u8>,
    }
    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Keys {
        listen: String,
        #[serde(rename = "..shared")]
        shared: Shared,
        core: Option<u32>,
    }
    let read = |keys: &str| finish::<Keys>("source", &format!("[source.adc]\n{keys}"));
    let shared = Shared {
        slots: 4,
        from: vec![1],
    };
    let expected = Keys {
        listen: "here".into(),
        shared,
        core: Some(2),
    };
    assert_eq!(
        read("from = [1]\ncore = 2\nslots = 4\nlisten = 'here'\n"),
        Ok(expected)
    );
    let error = read("slotz = 4\nfrom = [1, 'x']\ncore = 'a'\n'..shared' = 1\n").unwrap_err();
    for expected in [
        "missing key `listen` in [source.adc]",
        "unknown key `slotz` in [source.adc]\n --> daq.toml:2:1\n",
        "did you mean `slots`?",
        "`from[1]` is a string, but an integer is expected\n --> daq.toml:3:12\n",
        "`core` is a string, but an integer is expected\n --> daq.toml:4:8\n",
        "unknown key `..shared` in [source.adc]",
    ] {
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
