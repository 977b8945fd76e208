//! Checks that every metric is described exactly once and completely.

use super::*;
use daq_core::ledger::Cause;
use std::collections::BTreeSet;

#[test]
fn metric_names_follow_prometheus_convention() {
    let metrics = metrics();
    let names: BTreeSet<_> = metrics.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), metrics.len(), "a metric name occurs twice");
    for metric in metrics {
        let counter = metric.kind == MetricKind::Counter;
        assert_eq!(metric.name.ends_with("_total"), counter, "{}", metric.name);
        let sizes = metric.by == ["le"];
        assert_eq!(
            metric.kind == MetricKind::Histogram,
            sizes,
            "{}",
            metric.name
        );
        for text in [metric.help, metric.meaning, metric.cause, metric.remedy] {
            let is_omitted = text.is_empty() && text == metric.meaning;
            assert!(
                (is_omitted || text.ends_with('.')) && !text.contains("  "),
                "{}: {text:?}",
                metric.name
            );
        }
    }
}

#[test]
fn metric_help_names_only_existing_metrics() {
    let names: BTreeSet<_> = metrics().iter().map(|metric| metric.name).collect();
    for metric in metrics() {
        for text in [metric.help, metric.meaning, metric.cause, metric.remedy] {
            for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                assert!(
                    !word.starts_with("daq_") || names.contains(word),
                    "{}: no metric {word}",
                    metric.name
                );
            }
        }
    }
}

#[test]
fn every_loss_cause_has_fix() {
    let mut metrics = metrics().into_iter();
    let metric = metrics.find(|metric| metric.by == ["cause"]).unwrap();
    for cause in Cause::ALL {
        assert!(
            metric.cause.contains(&format!("{cause}:")),
            "{cause} has no cause text"
        );
        assert!(
            metric.remedy.contains(cause.name()),
            "{cause} has no remedy"
        );
    }
}
