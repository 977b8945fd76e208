//! Tests of overrides by environment variables and `--set`.

use super::*;
use crate::assert_contains;

#[test]
fn override_error_is_located_in_override() {
    let text = "[ring.raw]\nslot = \"1 MiB\"\nslots = 64\n";
    let (document, mut diagnostics) = overridden(
        text,
        &[
            ("DAQ__RING__RAW__SLOT", "1 MBi"),
            ("DAQ_LOG", "debug"),
            ("HOME", "/"),
        ],
        &[
            "ring.raw.slots=abc",
            "ring.raw.memori=host",
            "ring.row.slots=5",
            "slots",
        ],
    );
    assert!(
        document.sections("ring")[0]
            .clone()
            .finish::<Ring>(&[], &mut diagnostics)
            .is_none()
    );
    assert_eq!(
        diagnostics.render(document.sources(), false),
        r#"error: `slot`: "1 MBi" is not a size: unknown unit "MBi"
 --> environment DAQ__RING__RAW__SLOT:1:1
  |
1 | 1 MBi
  | ^^^^^
  |
  = help: write for instance "1 MiB"

error: `slots` is a string, but an integer is expected
 --> --set ring.raw.slots=abc:1:16
  |
1 | ring.raw.slots=abc
  |                ^^^

error: unknown key `memori` in [ring.raw]
 --> --set ring.raw.memori=host:1:10
  |
1 | ring.raw.memori=host
  |          ^^^^^^
  |
  = help: did you mean `memory`?

error: there is no section `ring.row`
 --> --set ring.row.slots=5:1:1
  |
1 | ring.row.slots=5
  | ^^^^^^^^^^^^^^
  |
  = help: did you mean `ring.raw`?

error: --set needs a key and a value
 --> --set slots:1:1
  |
1 | slots
  | ^^^^^
  |
  = help: write for instance --set ring.raw.slots=128
"#
    );
}

#[test]
fn override_of_table_by_value_is_rejected() {
    let (document, diagnostics) =
        overridden("[ring.raw]\nslot = 1\n", &[], &["ring.raw=5", "ring=5"]);
    assert_eq!(document.sections("ring").len(), 1);
    let shown = diagnostics.render(document.sources(), false);
    assert_contains!(shown => "`ring` is not a key of a section");
    let (document, diagnostics) = overridden("[ring.raw]\nslot = 1\n", &[], &["ring.raw=5"]);
    let shown = diagnostics.render(document.sources(), false);
    assert_contains!(shown => "set one of its keys: `ring.raw.slot`");
    let (document, diagnostics) =
        overridden("[ring.raw]\nslot = 1\n", &[], &["ring.raw.slot.x.y=5"]);
    let shown = diagnostics.render(document.sources(), false);
    assert_contains!(
        shown =>
        "`ring.raw.slot` is an integer and has no key `x`",
        "set the whole value: `ring.raw.slot=VALUE`"
    );
}

#[test]
fn override_may_change_the_type_of_a_value() {
    let text = "[ring.raw]\nslot = { bytes = 1 }\nslots = [1, 2]\nmemory = { cuda = 0 }\n";
    let set = [
        "ring.raw.slot=2 KiB",
        "ring.raw.slots=3",
        "ring.raw.memory=host",
    ];
    let (document, mut diagnostics) = overridden(text, &[], &set);
    let ring: Option<Ring> = document.sections("ring")[0]
        .clone()
        .finish(&[], &mut diagnostics);
    assert_eq!(diagnostics.render(document.sources(), false), "");
    let expected = Ring {
        memory: Some("host".into()),
        slot: ByteSize(2048),
        slots: 3,
    };
    assert_eq!(ring, Some(expected));
}

#[test]
fn overrides_follow_precedence_set_environment_file() {
    let text = "[ring.raw]\nslot = 1\nslots = 1\nmemory = \"a\"\n";
    let (document, mut diagnostics) = overridden(
        text,
        &[
            ("DAQ__RING__RAW__SLOT", "2 KiB"),
            ("DAQ__RING__RAW__SLOTS", "2"),
            ("DAQ__HTTP__LISTEN", "[::1]:1"),
        ],
        &[
            "ring.raw.slots=3",
            "ring.raw.memory=7",
            "ring.raw.slots = 4",
        ],
    );
    let ring: Option<Ring> = document.sections("ring")[0]
        .clone()
        .finish(&[], &mut diagnostics);
    let (listen, _) = document
        .table("http")
        .unwrap()
        .take_string("listen", &[], &mut diagnostics)
        .unwrap();
    assert_eq!(diagnostics.render(document.sources(), false), "");
    // A number is accepted as a string if the type expects a string.
    assert_eq!(
        ring,
        Some(Ring {
            memory: Some("7".into()),
            slot: ByteSize(2048),
            slots: 4
        })
    );
    assert_eq!(listen, "[::1]:1");
}

#[test]
fn environment_override_matches_capitals_and_hyphens() {
    let text = "[kernel.Power-Spectrum]\nmax-bins = 1\n[kernel.Power-Spectrum.inner]\nx = 1\n";
    let (document, diagnostics) = overridden(
        text,
        &[
            ("DAQ__KERNEL__POWER_SPECTRUM__MAX_BINS", "[1, 2]"),
            ("DAQ__KERNEL__POWER_SPECTRUM__INNER__Y", "true"),
            ("DAQ__KERNEL__POWER_SPECTRUM__NEW__Z", "2024-01-01"),
        ],
        &[],
    );
    assert_eq!(diagnostics.render(document.sources(), false), "");
    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "kebab-case", deny_unknown_fields)]
    struct Kernel {
        max_bins: Vec<u8>,
        inner: std::collections::BTreeMap<String, toml::Value>,
        new: std::collections::BTreeMap<String, String>,
    }
    let mut diagnostics = Diagnostics::new();
    let kernel: Kernel = document.sections("kernel")[0]
        .clone()
        .finish(&[], &mut diagnostics)
        .unwrap();
    assert_eq!(kernel.max_bins, [1, 2]);
    assert_eq!(kernel.inner["y"], toml::Value::Boolean(true));
    assert_eq!(kernel.new["z"], "2024-01-01");
}

#[test]
fn malformed_variable_name_is_reported() {
    let (document, diagnostics) = overridden(
        "",
        &[("DAQ__", "1"), ("DAQ__A____B", "1"), ("DAQ__A[9]__B", "1")],
        &[],
    );
    assert_eq!(
        diagnostics.errors(),
        3,
        "{}",
        diagnostics.render(document.sources(), false)
    );
}
