//! Checks that the example of every registry entry is valid and shows all keys, and that `null` counts frames.

use crate::support::{Feed, Sent, check, context, layout, registry, spec};
use daq_core::config::{Diagnostics, Document};
use daq_core::frame::FrameMeta;
use daq_core::layout::Scalar;
use daq_core::region::Placement;
use daq_sinks::{COUNTS, SINKS};

/// Keys that the runtime removes before a sink receives its section.
const ENGINE: [&str; 6] = ["driver", "input", "guarantee", "wait", "core", "burst"];

/// Returns the example, and the same example with the commented keys enabled, except those that are only for another
/// transport.
fn examples(example: &str) -> [String; 2] {
    let uncomment = |line: &str| match line.strip_prefix("# ") {
        Some(key)
            if key
                .split_once(" = ")
                .is_some_and(|(key, _)| key.chars().all(|c| c.is_lowercase() || c == '_')) =>
        {
            key.to_owned()
        }
        _ => line.to_owned(),
    };
    [
        example.to_owned(),
        example
            .lines()
            .scan(false, |is_other, line| {
                *is_other |= line.contains("only for transport");
                Some(if *is_other {
                    line.to_owned()
                } else {
                    uncomment(line)
                })
            })
            .collect::<Vec<_>>()
            .join("\n"),
    ]
}

#[test]
fn sink_examples_are_valid_and_show_every_key() {
    for entry in SINKS {
        let name = entry.name;
        let mut shown = Vec::new();
        for text in examples(entry.example) {
            let mut diagnostics = Diagnostics::new();
            let document = Document::from_text("daq.toml", &text, &mut diagnostics);
            let mut section = document.sections("sink").remove(0);
            assert_eq!(section.name(), "NAME", "{name}");
            shown = section.keys().into_iter().map(str::to_owned).collect();
            for (key, expected) in [("driver", name), ("input", "INPUT")] {
                let value = section.take_string(key, &[], &mut diagnostics);
                let value = value.map(|(value, _)| value);
                assert_eq!(value.as_deref(), Some(expected), "`{key}` of {name}");
            }
            let spec = (entry.parse)(&mut section, &registry(), &mut diagnostics);
            assert!(
                diagnostics.is_empty(),
                "{name}: {}",
                diagnostics.render(document.sources(), false)
            );
            let facts = spec.expect(name).facts();
            assert!(facts.accepts.contains(Placement::Host), "{name}");
            for set in facts.counts {
                let first = set.counts[0].name;
                let is_listed = COUNTS.iter().any(|known| known.counts[0].name == first);
                assert!(
                    is_listed,
                    "COUNTS lacks the counters of {name} with `{first}`"
                );
                assert!(
                    set.counts.iter().all(|count| count.metric.is_some()),
                    "a counter of {name} with `{first}` has no metric"
                );
            }
        }
        let schema = (entry.schema)(&registry());
        // The schema of a sink without keys has no `properties`.
        let keys = schema.get("properties");
        let keys = keys.map(|keys| keys.as_object().expect(name));
        for (key, value) in keys.into_iter().flatten() {
            // A key that excludes another key of the example is shown in a comment beside that key.
            assert!(
                shown.contains(key)
                    || entry.example.contains(&format!("`{key} = "))
                    || entry.example.contains(&format!("\n# {key} = ")),
                "the example of {name} must show `{key}`"
            );
            assert!(
                value.get("description").is_some(),
                "`{key}` of {name} has no description"
            );
        }
        for key in &shown {
            assert!(
                keys.is_some_and(|keys| keys.contains_key(key)) || ENGINE.contains(&key.as_str()),
                "`{key}` of {name} is unknown"
            );
        }
        assert!(
            !entry.summary.ends_with('.') && !entry.summary.is_empty(),
            "{name}"
        );
    }
}

#[test]
fn sinks_accept_types_or_name_the_fix() {
    for (name, keys, accepted) in [
        ("file", "path = \"out\"", 13),
        ("zarr", "path = \"out\"", 15),
        ("null", "", Scalar::ALL.len()),
    ] {
        let spec = spec(name, "n", keys).unwrap();
        let mut found = 0;
        for scalar in Scalar::ALL {
            match check(&*spec, &layout(scalar, false, 1, 64)) {
                Ok(()) => found += 1,
                Err(problem) => {
                    let text = problem.to_string();
                    assert!(
                        text.contains(scalar.name()) && text.contains(name),
                        "{text}"
                    );
                    assert!(problem.help.unwrap().contains("convert"), "{name} {scalar}");
                }
            }
        }
        assert_eq!(found, accepted, "{name}");
    }
}

#[test]
fn null_counts_received_frames() {
    for keys in ["", "touch = true", "delay = \"1 us\""] {
        let dir = tempfile::tempdir().unwrap();
        let context = context(dir.path(), "n", layout(Scalar::Int8, false, 1, 64), 0, 0);
        let ledger = context.ledger.clone();
        let spec = spec("null", "n", keys).unwrap();
        assert_eq!(
            spec.facts().accepts.contains(Placement::Cuda(0)),
            !keys.contains("touch")
        );
        let mut sink = spec.build(context).unwrap();
        let frames: Vec<_> = (0..30)
            .map(|n| Sent {
                meta: FrameMeta::whole(n, 60),
                bytes: vec![1; 60],
                present: Vec::new(),
            })
            .collect();
        Feed::new(8, 64, 0).give(&mut *sink, &frames);
        sink.finish().unwrap();
        assert_eq!(
            (ledger.frames.get(), ledger.bytes.get(), ledger.files.get()),
            (30, 1800, 0),
            "{keys}"
        );
    }
}
