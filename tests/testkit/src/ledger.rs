//! The equations of the ledgers, computed from the printed report only.

use crate::Outcome;
use daq_core::ledger::{DeviceReport, Report};
use serde_json::{Map, Value};

/// The equations of counters that only some sinks have: the left side, and the terms of the right side.
const SINK_EQUATIONS: [(&str, &[&str]); 2] = [
    (
        "packets",
        &[
            "sent_packets",
            "absent_packets",
            "refused_queue_full",
            "refused_unreachable",
            "refused_other",
            "pending_packets",
        ],
    ),
    ("published", &["acknowledged", "refused", "unacknowledged"]),
];

/// Returns the number at `path`, as in `sources.adc.lost.late`; 0 if there is none.
pub fn count(report: &Value, path: &str) -> u64 {
    let mut value = report;
    for key in path.split('.') {
        match value.get(key) {
            Some(inner) => value = inner,
            None => return 0,
        }
    }
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{path} is {value}"))
}

/// Lost packets of a source, all causes together.
pub fn lost(report: &Value, source: &str) -> u64 {
    sum(&report["sources"][source]["lost"])
}

fn sum(causes: &Value) -> u64 {
    causes
        .as_object()
        .expect("`lost` is an object")
        .values()
        .map(|count| count.as_u64().unwrap())
        .sum()
}

/// Copies of all size classes.
fn sizes(copy: &Value) -> u64 {
    copy["sizes"]
        .as_array()
        .expect("`sizes` is an array")
        .iter()
        .map(|count| count.as_u64().unwrap())
        .sum()
}

/// Every component in a table of the report.
fn components<'a>(report: &'a Value, table: &str) -> &'a Map<String, Value> {
    report[table]
        .as_object()
        .unwrap_or_else(|| panic!("the report has no `{table}`"))
}

/// Returns violations of the equations that hold at any time. The equations are those that the ledgers declare.
pub fn violations_while_running(report: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for table in Report::tables() {
        for (name, component) in components(report, table.name) {
            let n = |key: &str| match &component[key] {
                // Losses by cause.
                causes @ Value::Object(_) => sum(causes),
                value => value
                    .as_u64()
                    .unwrap_or_else(|| panic!("{} {name} has no {key}", table.component)),
            };
            for key in &table.numbers {
                n(key);
            }
            for equation in table.equations {
                if n(equation.left) != equation.right.iter().map(|key| n(key)).sum::<u64>() {
                    wrong.push(format!("{name}: {equation} does not hold: {component}"));
                }
            }
        }
    }
    for (name, sink) in components(report, "sinks") {
        for (left, right) in SINK_EQUATIONS {
            if count(sink, left) != right.iter().map(|key| count(sink, key)).sum::<u64>() {
                wrong.push(format!(
                    "{name}: `{left}` is not the sum of its parts: {sink}"
                ));
            }
        }
    }
    for (name, ring) in components(report, "rings") {
        if count(ring, "high_water") > count(ring, "capacity") {
            wrong.push(format!("{name}: high_water exceeds capacity: {ring}"));
        }
    }
    for (name, copy) in components(report, "copies") {
        // A copy is counted before its size is, so the sizes may lag while running.
        if sizes(copy) > count(copy, "copies") {
            wrong.push(format!("{name}: more sizes than copies: {copy}"));
        }
        assert_eq!(
            copy["to"],
            name.as_str(),
            "a copy is called by the ring that it fills"
        );
    }
    let empty = serde_json::to_value(DeviceReport::default()).unwrap();
    for (name, kernel) in components(report, "kernels") {
        let Some(device) = kernel.get("device") else {
            continue;
        };
        for (key, value) in empty.as_object().unwrap() {
            assert!(
                device[key].is_u64() == value.is_u64() && !device[key].is_null(),
                "kernel {name} has no device.{key}: {device}"
            );
        }
    }
    assert!(report["seconds"].is_number());
    wrong
}

/// Returns violations in a final report: of the equations that hold at any time, and of those between components.
pub fn violations(report: &Value) -> Vec<String> {
    let mut wrong = violations_while_running(report);
    for (name, reader) in components(report, "readers") {
        // A client in another process attaches later, and leaves without a report.
        if reader.get("process").is_some() {
            continue;
        }
        let ring = reader["ring"].as_str().unwrap();
        let (seen, published) = (&reader["published"], &report["rings"][ring]["published"]);
        if seen != published {
            wrong.push(format!(
                "{name} attached before the start and saw {seen} of {published} frames of {ring}"
            ));
        }
        let n = |key: &str| count(reader, key);
        if let Some(kernel) = report["kernels"].get(name) {
            // Frames held by a hanging device are never retired.
            let taken = count(kernel, "in").saturating_sub(count(kernel, "pending"));
            if taken != n("read") {
                wrong.push(format!(
                    "kernel {name} settled {taken} frames and retired {}",
                    n("read")
                ));
            }
        }
        if let Some(sink) = report["sinks"].get(name) {
            let (frames, dropped) = (count(sink, "frames"), count(sink, "dropped"));
            if frames + dropped != n("read") + n("discarded") {
                wrong.push(format!(
                    "sink {name} took {frames} and dropped {dropped} frames: {reader}"
                ));
            }
            let lost = count(sink, "lost");
            if lost > frames {
                wrong.push(format!(
                    "sink {name} lost {lost} of the {frames} frames that it took"
                ));
            }
        }
    }
    for (name, copy) in components(report, "copies") {
        let n = |key: &str| count(copy, key);
        let from = copy["from"].as_str().unwrap_or_default();
        let mut read = 0;
        for ring in from.split(", ") {
            // A copy that joins several rings is a reader of each of them.
            let reader = match from {
                one if one == ring => format!("copy to {name}"),
                _ => format!("copy of {ring} to {name}"),
            };
            let reader = &report["readers"][reader];
            if reader["ring"] != ring {
                wrong.push(format!("the reader of the copy to {name} is {reader}"));
            }
            read += count(reader, "read");
        }
        let settled = n("frames") + n("failed");
        if read < settled {
            wrong.push(format!(
                "the copy to {name} settled {settled} frames and retired {read}"
            ));
        }
        let published = &report["rings"][name]["published"];
        if *published != n("frames") {
            wrong.push(format!(
                "{} frames were copied to {name} and {published} published",
                n("frames")
            ));
        }
        if sizes(copy) != n("copies") {
            wrong.push(format!(
                "{} copies to {name} have {} sizes",
                n("copies"),
                sizes(copy)
            ));
        }
    }
    wrong
}

/// Returns what is still pending in a final report.
pub fn open(report: &Value) -> Vec<String> {
    let mut open = Vec::new();
    for table in ["sources", "readers", "copies", "kernels"] {
        for (name, component) in components(report, table) {
            let pending = count(component, "pending");
            if pending > 0 && component.get("process").is_none() {
                open.push(format!("{table}.{name}: {pending} pending"));
            }
        }
    }
    for (name, sink) in components(report, "sinks") {
        let pending = count(sink, "pending_packets");
        if pending > 0 {
            open.push(format!("sinks.{name}: {pending} packets pending"));
        }
        let unacknowledged = count(sink, "unacknowledged");
        if unacknowledged > 0 {
            open.push(format!(
                "sinks.{name}: {unacknowledged} frames unacknowledged"
            ));
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> Value {
        json!({
            "sources": { "s": { "expected": 6, "delivered": 4, "pending": 1, "lost": { "late": 1 }, "bytes": 1,
                                "incomplete": 0, "duplicates": 0, "rejected": 0, "before_start": 0, "control": 0, "epochs": 1, "skipped": 0 } },
            "rings": { "r@host": { "capacity": 4, "high_water": 4, "produced": 4, "published": 4, "ring_full": 0 },
                       "r": { "capacity": 2, "high_water": 2, "produced": 3, "published": 2, "ring_full": 1 } },
            "readers": { "copy to r": { "ring": "r@host", "published": 4, "read": 3, "overrun": 0, "discarded": 0, "dropped_incomplete": 0,
                                        "pending": 1, "blocked": 0 },
                         "k": { "ring": "r", "published": 2, "read": 2, "overrun": 0, "discarded": 0, "dropped_incomplete": 0, "pending": 0, "blocked": 0 },
                         "d": { "ring": "r", "published": 2, "read": 1, "overrun": 0, "discarded": 1, "dropped_incomplete": 0, "pending": 0, "blocked": 0 } },
            "clients": { "r": { "attached": 1, "total": 2, "revoked": 0, "published": 5, "read": 1, "overrun": 1, "discarded": 1,
                                "unread": 1, "pending": 1 } },
            "copies": { "r": { "from": "r@host", "to": "r", "started": 4, "frames": 2, "failed": 1, "stored": 0, "pending": 1,
                               "copies": 3, "bytes": 9, "in_flight": 0, "busy_ns": 1,
                               "sizes": [1, 0, 2, 0, 0, 0, 0, 0] } },
            "kernels": { "k": { "in": 2, "consumed": 1, "accumulating": 1, "failed": 0, "filtered": 0, "pending": 0, "produced": 1,
                                "device": { "dispatch": "launch", "launches": 1, "busy_ns": 1, "gap_ns": 1, "occupancy_ppm": 1 } } },
            "sinks": { "d": { "frames": 1, "bytes": 1, "files": 0, "dropped": 1, "lost": 1, "connections": 0, "stalls": 0,
                               "packets": 9, "sent_packets": 4, "absent_packets": 1, "refused_queue_full": 1, "refused_unreachable": 1,
                               "refused_other": 1, "pending_packets": 1, "control_packets": 2, "undeliverable": 3,
                               "published": 6, "acknowledged": 3, "refused": 1, "unacknowledged": 2, "repeated": 1, "deduplicated": 1 } },
            "seconds": 1.0,
        })
    }

    #[test]
    fn ledger_equation_violation_is_reported() {
        assert_eq!(violations(&report()), [""; 0]);
        assert_eq!(
            open(&report()),
            [
                "sources.s: 1 pending",
                "readers.copy to r: 1 pending",
                "copies.r: 1 pending",
                "sinks.d: 1 packets pending",
                "sinks.d: 2 frames unacknowledged"
            ]
        );
        for (table, name, keys) in [
            ("sources", "s", &["expected", "delivered", "pending"][..]),
            ("rings", "r", &["produced", "published", "ring_full"]),
            (
                "readers",
                "k",
                &["published", "read", "overrun", "discarded", "pending"],
            ),
            ("clients", "r", &["published", "read", "unread", "pending"]),
            ("copies", "r", &["started", "frames", "failed", "pending"]),
            (
                "kernels",
                "k",
                &[
                    "in",
                    "consumed",
                    "accumulating",
                    "failed",
                    "filtered",
                    "pending",
                ],
            ),
            (
                "sinks",
                "d",
                &[
                    "frames",
                    "dropped",
                    "lost",
                    "packets",
                    "absent_packets",
                    "published",
                    "refused",
                ],
            ),
        ] {
            for key in keys {
                let mut broken = report();
                broken[table][name][key] = json!(100);
                assert!(!violations(&broken).is_empty(), "{table}.{name}.{key}");
            }
        }
        let mut broken = report();
        broken["sources"]["s"]["lost"]["late"] = json!(2);
        assert!(!violations_while_running(&broken).is_empty());
        let mut broken = report();
        broken["rings"]["r"]["high_water"] = json!(3);
        assert!(!violations_while_running(&broken).is_empty());
        let mut broken = report();
        broken["copies"]["r"]["sizes"][7] = json!(1);
        assert!(!violations_while_running(&broken).is_empty());
    }

    #[test]
    #[should_panic(expected = "kernel k has no device.gap_ns")]
    fn missing_gpu_statistic_is_reported() {
        let mut broken = report();
        broken["kernels"]["k"]["device"]["gap_ns"] = Value::Null;
        violations_while_running(&broken);
    }

    #[test]
    fn copy_counts_are_checked_against_rings() {
        for (table, name, key, value) in [
            // Balanced by itself.
            ("readers", "copy to r", "read", 2),
            ("copies", "r", "copies", 4),
        ] {
            let mut broken = report();
            broken[table][name][key] = json!(value);
            if key == "read" {
                broken[table][name]["pending"] = json!(2);
            }
            assert_eq!(violations_while_running(&broken), [""; 0]);
            assert_eq!(violations(&broken).len(), 1, "{table}.{name}.{key}");
        }
        let mut broken = report();
        for (key, value) in [("frames", 1), ("failed", 2)] {
            broken["copies"]["r"][key] = json!(value);
        }
        assert_eq!(violations_while_running(&broken), [""; 0]);
        assert_eq!(violations(&broken).len(), 1, "ring r published 2");
        let mut broken = report();
        broken["copies"]["r"]["from"] = json!("r");
        assert_eq!(violations(&broken).len(), 1, "another reader");
    }
}

/// The counters of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts {
    /// Packets that must arrive.
    pub expected: u64,
    /// Packets in published frames.
    pub delivered: u64,
    /// Lost packets by cause, without causes that lost none.
    pub lost: Vec<(&'static str, u64)>,
    /// Packets that arrived again.
    pub duplicates: u64,
    /// Packets without a place.
    pub rejected: u64,
    /// Packets without samples.
    pub control: u64,
    /// Epochs of the sequence.
    pub epochs: u64,
    /// Sequence numbers between epochs.
    pub skipped: u64,
}

impl SourceCounts {
    /// Returns the counts of `source`; panics if the report has an unknown cause of loss.
    pub fn of(outcome: &Outcome, source: &str) -> Self {
        let n = |key: &str| outcome.count(&format!("sources.{source}.{key}"));
        let lost = [
            "wire_gap",
            "late",
            "kernel_drop",
            "bad_packet",
            "ring_full",
            "expired",
        ];
        let counts = Self {
            expected: n("expected"),
            delivered: n("delivered"),
            lost: lost
                .into_iter()
                .map(|cause| (cause, n(&format!("lost.{cause}"))))
                .filter(|(_, n)| *n > 0)
                .collect(),
            duplicates: n("duplicates"),
            rejected: n("rejected"),
            control: n("control"),
            epochs: n("epochs"),
            skipped: n("skipped"),
        };
        let causes = outcome.report["sources"][source]["lost"].as_object();
        assert_eq!(
            causes.unwrap().len(),
            counts.lost.len(),
            "the report contains an unexpected cause of loss: {:#}",
            outcome.report
        );
        counts
    }

    /// Returns the counts of `packets` packets without a fault.
    pub fn whole(packets: u64) -> Self {
        Self {
            expected: packets,
            delivered: packets,
            epochs: 1,
            ..Self::default()
        }
    }

    /// Returns the counts of `packets` packets, of which those in `lost` were lost.
    pub fn lost(packets: u64, lost: &[(&'static str, u64)]) -> Self {
        let gone: u64 = lost.iter().map(|(_, n)| n).sum();
        Self {
            delivered: packets - gone,
            lost: lost.to_vec(),
            ..Self::whole(packets)
        }
    }
}
