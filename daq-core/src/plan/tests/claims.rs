//! Tests of names, and of claims on ports and paths.

use super::*;

#[test]
fn conflicting_claims_are_reported_with_both_locations() {
    let two = "port = 4950\n[source.other]\ndriver = \"fake\"\npacket = \"1 KiB\"\nport = 4950\nring = \"more\"\n[ring.more]";
    let error = error_of(("ring = \"raw\"", &format!("ring = \"raw\"\n{two}")));
    assert_contains!(error => "[source.adc] and [source.other] both claim UDP 0.0.0.0:4950");
    let two =
        "path = \"out\"\n[sink.twin]\ndriver = \"void\"\ninput = \"small\"\npath = \"out/deep\"";
    let error = error_of(("input = \"small\"", &format!("input = \"small\"\n{two}")));
    assert!(error.contains("both claim path out"), "{error}");
}

#[test]
fn claims_on_same_path_conflict_in_any_spelling() {
    // Relative paths refer to /data in this test.
    let sinks = |one: &str, other: &str| {
        let two = format!(
            "path = \"{one}\"\n[sink.twin]\ndriver = \"void\"\ninput = \"small\"\npath = \"{other}\""
        );
        let change = format!("input = \"small\"\n{two}");
        plan_of(&PIPELINE.replace("input = \"small\"", &change), &host())
    };
    for other in [
        "./out",
        "a/../out/",
        "/data/out",
        "../data/./out",
        "/data/x/../out/deep",
    ] {
        let rendered = sinks("out", other).unwrap_err();
        only(
            &rendered,
            &[&format!(
                "[sink.disk] and [sink.twin] both claim path {other}"
            )],
        );
        assert!(rendered.contains("claims path out"), "{rendered}");
    }
    for other in ["../out", "/out", "out2", "/data/../out"] {
        assert!(sinks("out", other).is_ok(), "{other}");
    }
}

#[test]
fn pipeline_name_in_path_is_expanded() {
    for name in ["telescope", "L-band 2", "größe", "a.b", &"x".repeat(200)] {
        let plan = plan_of(&format!("[daq]\nname = \"{name}\"\n{PIPELINE}"), &host()).unwrap();
        assert_eq!(plan.name, name);
    }
    for (name, why) in [
        ("", "must not be empty"),
        ("a/b", "must not contain '/'"),
        ("../up", "must not begin with a dot"),
        (".hidden", "must not begin with a dot"),
        ("a\\nb", "must not contain '\\n'"),
        (
            &"x".repeat(201),
            "has 201 bytes, but at most 200 are allowed",
        ),
    ] {
        let rendered =
            plan_of(&format!("[daq]\nname = \"{name}\"\n{PIPELINE}"), &host()).unwrap_err();
        only(&rendered, &[&format!("`name` in [daq] {why}")]);
        assert_contains!(rendered => "daq.toml:2:8", "write a word such as");
    }
}

#[test]
fn section_name_in_path_is_expanded() {
    let long = "x".repeat(201);
    for name in ["../x", "a/b", "", "a b", "é", ".", &long] {
        let rendered = error_of(("[sink.disk]", &format!("[sink.\"{name}\"]")));
        let wanted = if name == long {
            "the name has 201 characters, but at most 200 are allowed".to_owned()
        } else {
            format!("{name:?} is not a valid name")
        };
        only(&rendered, &[&wanted]);
        assert_contains!(rendered => "^^", "= help: ");
    }
    only(
        &error_of(("[kernel.quarter]", "[kernel.\"a/b\"]")),
        &["\"a/b\" is not a valid name"],
    );
}
