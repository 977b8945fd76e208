//! Tests what `daq top` shows for responses of daemons.

use super::*;
use serde_json::{Value, json};

fn status(seconds: f64, packets: u64) -> Value {
    json!({
        "version": "0.1.0", "name": "telescope", "state": "silent", "seconds": seconds, "stalled": ["sink disk"],
        "silent": ["source adc: no data packet for more than 5 s"],
        "loss": { "adc": { "text": "lost 41 of 2000 packets (wire_gap 41)", "is_loss": true } },
        "report": {
            "seconds": seconds,
            "sources": { "adc": { "delivered": packets, "bytes": 1000 * packets, "lost": { "wire_gap": 41 }, "silent": true } },
            "rings": { "raw": {
                "capacity": 64, "high_water": 60, "published": packets / 10, "ring_full": 2, "newest_frame_age_ns": 200_000_000,
                "latency": { "count": 9, "p50_us": 1200.0, "p99_us": 3400.0, "recent_count": 1, "recent_p50_us": 1500.0, "recent_p99_us": 1600.0 }
            } },
            "readers": { "disk": { "ring": "raw", "read": packets / 10, "pending": 60, "blocked": 2, "latency": { "p50_us": 12.0, "p99_us": 40.0 } } },
            "kernels": {},
            "sinks": { "disk": { "frames": packets / 10, "bytes": 1000 * packets, "full": true } }
        }
    })
}

fn daemon(history: &Value) -> Daemon {
    let mut daemon = Daemon::new("daq1:9464".to_owned());
    for (seconds, packets) in [(10.0, 1000), (12.0, 3000)] {
        daemon.update(Ok(Answer {
            status: status(seconds, packets),
            history: history.clone(),
        }));
    }
    daemon
}

fn text(daemons: &[Daemon], patterns: &[&str]) -> String {
    let patterns: Vec<_> = patterns.iter().map(|text| text.parse().unwrap()).collect();
    view::plain(view::lines(daemons, &patterns, usize::MAX))
}

#[test]
fn narrow_terminal_omits_columns_but_no_digits() {
    let history = json!({ "sources": { "adc": { "sentence": "lost 12345 of 6000000 packets (wire_gap 12345)" } } });
    let daemons = [daemon(&history)];
    let whole = text(&daemons, &[]);
    let words: Vec<&str> = whole.split_whitespace().collect();
    for width in 0..100 {
        let lines = view::lines(&daemons, &[], width);
        let shown = view::plain(lines);
        for line in shown.lines() {
            assert!(line.chars().count() <= width, "{width}: {line:?}");
            let is_whole = |word: &str| word == "…" || words.contains(&word);
            assert!(line.split_whitespace().all(is_whole), "{width}: {line:?}");
        }
    }
    let shown = view::plain(view::lines(&daemons, &[], 80));
    assert!(
        shown.contains("  raw        100       60     64   60        2  200 ms  1.5 ms  1.6 ms\n"),
        "{shown}"
    );
    assert!(!shown.contains('…'), "{shown}");
}

#[test]
fn numbers_of_a_daemon_are_shown_with_rates() {
    let history = json!({ "sources": { "adc": { "sentence": "complete since 03:12:07 UTC", "bytes": [null, 1, 8] } } });
    assert_eq!(
        text(&[daemon(&history)], &[]),
        "\
telescope  silent  8 Mbit/s  up 12 s  daq1:9464  version 0.1.0
  no progress: sink disk
  source adc: no data packet for more than 5 s
  SOURCE      RATE  PER S  LOST  REJECTED  LAST 30 S
  adc     8 Mbit/s     1k    41         0  ·▁█
    complete since 03:12:07 UTC
  RING  FILL        FRAMES/S  WAITING  SLOTS  MAX  REFUSED  NEWEST     P50  P99 FROM ARRIVAL
  raw   ██████████       100       60     64   60        2  200 ms  1.5 ms  1.6 ms
  READER  RING  FRAMES/S  LAG  OVERRUN  DISCARDED  BLOCKED    P50  P99 FROM PUBLICATION
  disk    raw        100   60        0          0        2  12 us  40 us
  SINK      RATE  FRAMES/S  FILES  DROPPED  LOST  STATE
  disk  8 Mbit/s       100      0        0     0  accepts no frames
"
    );
}

#[test]
fn patterns_select_names() {
    let shown = text(&[daemon(&Value::Null)], &["r*"]);
    assert!(
        shown.contains("RING") && shown.contains("  raw "),
        "{shown}"
    );
    assert!(
        !shown.contains("SOURCE") && !shown.contains("disk  "),
        "{shown}"
    );
}

#[test]
fn daemon_without_history_shows_its_loss() {
    let shown = text(&[daemon(&Value::Null)], &[]);
    assert!(
        shown.contains("lost 41 of 2000 packets (wire_gap 41)\n"),
        "{shown}"
    );
}

#[test]
fn daemon_that_fails_is_shown_beside_others_and_recovers() {
    let mut down = daemon(&Value::Null);
    down.update(Err("connection refused; trying again".to_owned()));
    let shown = text(&[down.clone(), daemon(&Value::Null)], &[]);
    let first = "daq1:9464  connection refused; trying again\n\ntelescope  ";
    assert!(shown.starts_with(first), "{shown}");
    down.update(Ok(Answer {
        status: status(2.0, 10),
        history: Value::Null,
    }));
    let shown = text(&[down], &[]);
    assert!(shown.starts_with("telescope  silent  up 2 s"), "{shown}");
    assert!(
        shown.contains(" – "),
        "rates are not known after one answer: {shown}"
    );
    assert_eq!(
        text(&[Daemon::new("a:1".to_owned())], &[]),
        "a:1  waiting for the first answer\n"
    );
}

#[test]
fn answers_with_other_content_are_shown_without_failure() {
    for report in [
        json!({}),
        json!({ "sources": { "adc": 3 }, "rings": [1], "seconds": "x" }),
    ] {
        let mut daemon = Daemon::new("a:1".to_owned());
        for _ in 0..2 {
            daemon.update(Ok(Answer {
                status: json!({ "name": "\u{1b}[31mx", "seconds": -1, "report": report.clone() }),
                history: json!(7),
            }));
        }
        let shown = text(&[daemon], &[]);
        assert!(
            shown.starts_with("[31mx") && !shown.contains('\u{1b}'),
            "{shown}"
        );
    }
}
