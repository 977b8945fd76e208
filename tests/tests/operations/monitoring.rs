//! Tests the output for operators: metrics, probes, status and systemd.

use daq_testkit::{
    Daq, Live, Random, TIMEOUT, assert_contains, free_tcp_port, get, ledger, program, skip,
    wait_for,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A pipeline with all kinds of components and with faults.
const EVERYTHING: &str = r#"
[source.adc]
driver = "sim"
ring = "raw"
samples = { type = "int16", complex = true, channels = 2 }
noise = 0.1
packet = 1024
pace = "80 Mbit/s"

[source.adc.faults]
loss = 0.01
late = 0.001
duplicate = 0.01
reorder = 0.01
corrupt_header = 0.002
corrupt_payload = 0.002

[ring.raw]
slot = "16 KiB"
slots = 64

[kernel.spectrum]
use = "power-spectrum"
input = "raw"
output = "spectra"
size = 256
integrate = 100

[ring.spectra]

[kernel.health]
use = "stats"
input = "raw"
output = "statistics"

[ring.statistics]
slots = 8

[sink.disk]
driver = "file"
input = "spectra"
path = "out"

[sink.slow]
driver = "null"
input = "raw"
guarantee = false
delay = "30 ms"

[sink.drop]
driver = "null"
input = "statistics"

[http]
listen = "127.0.0.1:0"
"#;

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} must be a number"))
}

#[test]
fn metrics_pass_promtool_lint() {
    let Some(promtool) = program("promtool") else {
        skip!("promtool is not installed (Debian package prometheus)")
    };
    let daq = Daq::new(EVERYTHING);
    let mut live = daq.spawn(&[]);
    live.wait_count("rings.spectra.published", 1);
    let metrics = live.get("/metrics");
    assert_eq!(metrics.code, 200);
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(metrics.body.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success() && said.is_empty(),
        "{}\n{}",
        String::from_utf8_lossy(&said),
        metrics.body
    );
    // Every metric must have a help text, and every value in the report must have a metric.
    let names = |prefix: &str| -> BTreeSet<String> {
        let lines = metrics
            .body
            .lines()
            .filter_map(|line| line.strip_prefix(prefix));
        lines
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("# HELP "), names("# TYPE "));
    for series in [
        "daq_source_delivered_packets_total{source=\"adc\"}",
        "daq_source_lost_packets_total{source=\"adc\",cause=\"wire_gap\"}",
    ] {
        assert!(
            metrics.body.lines().any(|line| line.starts_with(series)),
            "{series} is not in\n{}",
            metrics.body
        );
    }
    let _ = live.stop().ok();
}

/// A child process, which is killed when the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the only value of a query; `None` if the query has no value.
fn query(server: SocketAddr, expression: &str) -> Option<f64> {
    let encoded = expression
        .replace('{', "%7B")
        .replace('}', "%7D")
        .replace('"', "%22");
    let answer = get(server, &format!("/api/v1/query?query={encoded}")).ok()?;
    let answer: Value = serde_json::from_str(&answer.body).ok()?;
    let result = answer["data"]["result"].as_array()?;
    assert!(result.len() <= 1, "{answer:#}");
    result.first()?["value"][1].as_str()?.parse().ok()
}

#[test]
fn metrics_are_scraped_by_prometheus() {
    let Some(prometheus) = program("prometheus") else {
        skip!("prometheus is not installed (Debian package prometheus)")
    };
    let daq = Daq::new(EVERYTHING);
    let mut live = daq.spawn(&[]);
    let target = live.address();
    let config = format!(
        "global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\n\
         scrape_configs:\n  - job_name: daq\n    static_configs:\n      - targets: ['{target}']\n"
    );
    let config = daq.write("prometheus.yml", &config);
    let server = SocketAddr::from(([127, 0, 0, 1], free_tcp_port()));
    let log = std::fs::File::create(daq.path("prometheus.log")).unwrap();
    let mut command = Command::new(prometheus);
    daq.prepare(&mut command)
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            daq.path("prometheus").display()
        ))
        .arg(format!("--web.listen-address={server}"))
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let mut child = Server(command.spawn().unwrap());
    wait_for("a scrape by Prometheus", || {
        if let Some(status) = child.0.try_wait().unwrap() {
            let log = std::fs::read_to_string(daq.path("prometheus.log")).unwrap();
            panic!("Prometheus ended, {status}:\n{log}");
        }
        query(server, "up{job=\"daq\"}").filter(|up| *up == 1.0)
    });
    for (expression, path) in [
        (
            "daq_source_delivered_packets_total{source=\"adc\"}",
            "sources.adc.delivered",
        ),
        (
            "daq_source_lost_packets_total{source=\"adc\",cause=\"wire_gap\"}",
            "sources.adc.lost.wire_gap",
        ),
    ] {
        // A scrape between two reads of /status must return a value between the two values.
        let before = ledger::count(&live.report(), path) as f64;
        let scraped = wait_for(expression, || {
            query(server, expression).filter(|scraped| *scraped >= before)
        });
        let after = ledger::count(&live.report(), path) as f64;
        assert!(
            scraped <= after,
            "{expression}: the scraped value {scraped} must be between {before} and {after}"
        );
    }
    let _ = live.stop().ok();
}

#[test]
fn metrics_counters_equal_report() {
    let daq = Daq::new(EVERYTHING);
    let mut live = daq.spawn(&[]);
    live.wait_count("rings.spectra.published", 2);
    let before = live.report();
    let metrics = live.get("/metrics").body;
    let after = live.report();
    let mut compared = 0;
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        let label = |name: &str| {
            series
                .split(&format!("{name}=\""))
                .nth(1)
                .map(|rest| rest.split('"').next().unwrap())
        };
        let path = match series.split('{').next().unwrap() {
            "daq_source_expected_packets_total" => {
                format!("sources.{}.expected", label("source").unwrap())
            }
            "daq_source_delivered_packets_total" => {
                format!("sources.{}.delivered", label("source").unwrap())
            }
            "daq_source_lost_packets_total" => {
                format!(
                    "sources.{}.lost.{}",
                    label("source").unwrap(),
                    label("cause").unwrap()
                )
            }
            "daq_source_duplicate_packets_total" => {
                format!("sources.{}.duplicates", label("source").unwrap())
            }
            "daq_source_rejected_packets_total" => {
                format!("sources.{}.rejected", label("source").unwrap())
            }
            "daq_ring_published_frames_total" => {
                format!("rings.{}.published", label("ring").unwrap())
            }
            "daq_reader_overrun_frames_total" => {
                format!("readers.{}.overrun", label("reader").unwrap())
            }
            "daq_reader_read_frames_total" => format!("readers.{}.read", label("reader").unwrap()),
            "daq_copy_started_frames_total" => format!("copies.{}.started", label("to").unwrap()),
            "daq_copy_frames_total" => format!("copies.{}.frames", label("to").unwrap()),
            "daq_copies_total" | "daq_copy_size_bytes_count" => {
                format!("copies.{}.copies", label("to").unwrap())
            }
            "daq_copy_bytes_total" | "daq_copy_size_bytes_sum" => {
                format!("copies.{}.bytes", label("to").unwrap())
            }
            "daq_kernel_launches_total" => {
                format!("kernels.{}.device.launches", label("kernel").unwrap())
            }
            _ => continue,
        };
        let (min, max) = (
            ledger::count(&before, &path) as f64,
            ledger::count(&after, &path) as f64,
        );
        assert!(
            (min..=max).contains(&value),
            "{series}: the value {value} must be between {min} and {max}"
        );
        compared += 1;
    }
    assert!(
        compared >= 20,
        "only {compared} counters were found in\n{metrics}"
    );
    let _ = live.stop().ok();
}

/// Waits until every data thread makes progress, which may take long on a busy machine.
fn wait_healthy(live: &mut Live) {
    wait_for("health", || {
        (live.get("/-/healthy").code == 200).then_some(())
    });
}

#[test]
fn health_and_readiness_probes_answer() {
    let daq = Daq::new(EVERYTHING);
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    wait_healthy(&mut live);
    assert_eq!(live.get("/-/ready").body, "ready\n");
    assert_eq!(live.get("/nowhere").code, 404);
    let page = live.get("/");
    assert!(
        page.head.contains("text/html") && page.body.contains("/status"),
        "{}",
        page.head
    );
    let status = wait_for("the state `running`", || {
        let status: Value = serde_json::from_str(&live.get("/status").body).unwrap();
        (status["state"] == "running").then_some(status)
    });
    assert_eq!(
        (&status["ready"], &status["name"]),
        (&true.into(), &"daq".into())
    );
    assert!(
        number(&status["seconds"]) >= 0.0
            && status["plan"]["rings"].is_array()
            && status["last_run"].is_null()
    );
    let _ = live.stop().ok();
}

#[test]
fn probe_while_stopping_is_healthy_but_not_ready() {
    // The frames in the ring take longer to drain than any wait in this test.
    let text = EVERYTHING
        .replace(
            "guarantee = false\ndelay = \"30 ms\"",
            "delay = \"1 s\"\nburst = 1",
        )
        .replace(
            "slot = \"16 KiB\"\nslots = 64",
            "slot = \"16 KiB\"\nslots = 1024",
        );
    let daq = Daq::new(&text);
    let mut live = daq.spawn(&[]);
    live.wait_count("readers.slow.pending", 2 * TIMEOUT.as_secs());
    live.interrupt();
    live.wait_log("stopping");
    wait_for("the state `stopping`", || {
        let answer = live.get("/-/ready");
        (answer.code == 503 && answer.body.contains("stopping")).then_some(())
    });
    wait_healthy(&mut live);
    drop(live);
}

#[test]
fn ledger_equations_hold_while_running() {
    let daq = Daq::new(EVERYTHING);
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let mut random = Random(1);
    let mut last = live.report();
    for _ in 0..50 {
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        // `report` checks the equations.
        let now = live.report();
        grows(&last, &now);
        last = now;
    }
    // The equations have been checked in every report.
    for path in [
        "sources.adc.lost.wire_gap",
        "sources.adc.lost.late",
        "sources.adc.lost.bad_packet",
        "readers.slow.overrun",
    ] {
        let now = live.wait_count(path, 1);
        grows(&last, &now);
        last = now;
    }
    let outcome = live.stop().ok();
    grows(&last, &outcome.report);
}

/// Checks that no counter has decreased.
fn grows(before: &Value, after: &Value) {
    for (table, keys) in [
        (
            "sources",
            &[
                "expected",
                "delivered",
                "bytes",
                "duplicates",
                "rejected",
                "epochs",
            ][..],
        ),
        (
            "rings",
            &["produced", "published", "ring_full", "high_water"],
        ),
        (
            "readers",
            &["published", "read", "overrun", "discarded", "blocked"],
        ),
        (
            "clients",
            &["total", "published", "read", "overrun", "discarded"],
        ),
        (
            "copies",
            &["started", "frames", "failed", "copies", "bytes", "busy_ns"],
        ),
        (
            "kernels",
            &[
                "in",
                "consumed",
                "failed",
                "produced",
                "device.launches",
                "device.busy_ns",
                "device.gap_ns",
            ],
        ),
        ("sinks", &["frames", "bytes", "files", "dropped", "lost"]),
    ] {
        for (name, old) in before[table].as_object().unwrap() {
            for key in keys {
                let (old, new) = (
                    ledger::count(old, key),
                    ledger::count(&after[table][name], key),
                );
                assert!(
                    new >= old,
                    "{table}.{name}.{key} must not decrease, but changed from {old} to {new}"
                );
            }
        }
    }
    for (name, source) in before["sources"].as_object().unwrap() {
        for (cause, count) in source["lost"].as_object().unwrap() {
            assert!(
                after["sources"][name]["lost"][cause].as_u64() >= count.as_u64(),
                "{cause}"
            );
        }
    }
}

/// Returns the next message that contains `wanted`.
fn message(socket: &UnixDatagram, live: &Live, wanted: &str) -> String {
    let mut buffer = [0; 4096];
    loop {
        let length = socket
            .recv(&mut buffer)
            .unwrap_or_else(|e| panic!("no {wanted}: {e}\n{}", live.stderr()));
        let message = String::from_utf8(buffer[..length].to_vec()).unwrap();
        if message.starts_with(wanted) {
            return message;
        }
    }
}

#[test]
fn systemd_is_notified() {
    let daq = Daq::new(EVERYTHING);
    let path = daq.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let daq = daq
        .env("NOTIFY_SOCKET", path.to_str().unwrap())
        .env("WATCHDOG_USEC", "300000");
    let live = daq.spawn(&[]);
    message(&socket, &live, "READY=1");
    message(&socket, &live, "WATCHDOG=1");
    let status = message(&socket, &live, "STATUS=");
    assert_contains!(status => "bit/s", "packets");
    message(&socket, &live, "WATCHDOG=1");
    live.interrupt();
    message(&socket, &live, "STOPPING=1");
    // The socket has no reader any more. A full queue must not block the exit.
    drop(socket);
    let _ = live.wait().ok();
}
