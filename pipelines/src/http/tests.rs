//! Tests the server over a plain TCP connection, as a client uses it.

use super::*;
use crate::report::tests::sample_report;
use daq_core::frame::FrameMeta;
use daq_core::ledger::{MetricKind, MetricText};
use daq_testkit::assert_contains;
use daq_testkit::ring::RingFixture;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn state(health: HealthFn) -> HttpState {
    HttpState {
        name: "telescope".to_owned(),
        hosts: vec!["daq.lab.example".to_owned()],
        report: Arc::new(sample_report),
        health,
        history: Arc::new(sample_history()),
        plan: serde_json::json!({ "rings": { "raw": "host" } }),
        last_run: None,
        rings: BTreeMap::new(),
    }
}

/// Returns a history of one second at the time 1000 s, with the changes of the sample report.
fn sample_history() -> History {
    let sources = [("adc".to_owned(), "raw".to_owned())].into();
    let history = History::new(sources, vec!["raw".to_owned()], 1000);
    history.start(None).unwrap();
    history.record(&sample_report(), 1000);
    history.record(&sample_report(), 1001);
    history
}

fn running() -> HttpState {
    state(Arc::new(|| Health {
        started: true,
        ..Health::default()
    }))
}

/// Sends a request; returns the status code, the headers and the body of the response.
fn ask(server: &Server, method: &str, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    (code, head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn metrics_endpoint_returns_prometheus_text() {
    let server = serve(ANY, running()).unwrap();
    let (code, head, body) = ask(&server, "GET", "/metrics");
    assert_eq!(code, 200);
    assert_contains!(head => "content-type: text/plain; version=0.0.4");
    assert_contains!(body => "daq_source_expected_packets_total{source=\"adc\"} 1000\n");
    server.stop();
}

#[test]
fn status_endpoint_returns_one_object() {
    let mut state = running();
    state.last_run = Some(serde_json::json!({ "pid": 7 }));
    let server = serve(ANY, state).unwrap();
    let (code, head, body) = ask(&server, "GET", "/status");
    let status: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(code, 200);
    assert!(head.contains("content-type: application/json"), "{head}");
    assert_eq!(status["name"], "telescope");
    assert_eq!(status["state"], "running");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["seconds"], 12.5);
    assert_eq!(status["report"]["sources"]["adc"]["lost"]["wire_gap"], 37);
    assert_eq!(status["report"]["kernels"]["spectrum"]["in"], 80);
    let copy = &status["report"]["copies"]["raw"];
    assert_eq!(
        (&copy["from"], &copy["frames"]),
        (&"raw@host".into(), &100.into())
    );
    assert_eq!(
        status["report"]["kernels"]["beam"]["device"]["launches"],
        23
    );
    assert_eq!(status["plan"]["rings"]["raw"], "host");
    assert_eq!(status["last_run"]["pid"], 7);
}

#[test]
fn history_endpoint_returns_complete_buckets() {
    let server = serve(ANY, running()).unwrap();
    let history = |query: &str| ask(&server, "GET", &format!("/history{query}"));
    let (code, head, body) = history("?span=10m&since=1000");
    assert_eq!(code, 200, "{body}");
    assert!(head.contains("content-type: application/json"), "{head}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    let adc = &answer["sources"]["adc"];
    assert_eq!(
        (&answer["step"], &answer["start"]),
        (&1.into(), &1000.into())
    );
    assert_eq!(adc["expected"], serde_json::json!([1000]));
    let lost = serde_json::json!({ "wire_gap": [37], "late": [3] });
    assert_eq!((&adc["lost"], &adc["unit"]), (&lost, &"frames".into()));
    assert_eq!(adc["blocked"], serde_json::json!({ "spectrum": [11] }));
    assert_eq!(answer["rings"]["raw"]["fill"], serde_json::json!([16]));
    assert_eq!(answer["marks"][0]["kind"], "start");
    assert_eq!(history("?span=24h").0, 200);
    assert_eq!(history("").2, history("?span=10m").2);
    for query in ["?span=1h", "?since=now", "?until=3"] {
        let (code, _, body) = history(query);
        assert_eq!(code, 400, "{body}");
        assert_contains!(body => "span=24h");
    }
}

#[test]
fn probes_reflect_data_threads() {
    let health = Arc::new(Mutex::new(Health::default()));
    let shared = health.clone();
    let server = serve(ANY, state(Arc::new(move || shared.lock().unwrap().clone()))).unwrap();
    let probe = |path| {
        let (code, _, body) = ask(&server, "GET", path);
        (code, body)
    };
    assert_eq!(probe("/-/healthy"), (200, "healthy\n".to_owned()));
    assert_eq!(probe("/-/ready"), (503, "not ready: starting\n".to_owned()));
    health.lock().unwrap().started = true;
    assert_eq!(probe("/-/ready"), (200, "ready\n".to_owned()));
    health.lock().unwrap().silent = vec!["source adc: no packet with data".to_owned()];
    assert_eq!(
        probe("/-/ready"),
        (
            503,
            "not ready: silent: source adc: no packet with data\n".to_owned()
        )
    );
    health.lock().unwrap().stalled = vec!["source adc".to_owned(), "sink disk".to_owned()];
    let (code, body) = probe("/-/healthy");
    assert_eq!(code, 503);
    assert!(body.contains("source adc, sink disk"), "{body}");
    *health.lock().unwrap() = Health {
        started: true,
        stopping: true,
        ..Health::default()
    };
    assert_eq!(probe("/-/ready"), (503, "not ready: stopping\n".to_owned()));
    assert_eq!(probe("/-/healthy").0, 200);
}

/// All files of the page with their contents, in the order in which the page loads them.
fn page_files(server: &Server) -> Vec<(String, String, String)> {
    let mut found: Vec<(String, String, String)> = Vec::new();
    let mut open = vec!["/".to_owned()];
    while let Some(path) = open.pop() {
        if found.iter().any(|(known, ..)| *known == path) {
            continue;
        }
        let (code, head, body) = ask(server, "GET", &path);
        assert_eq!(code, 200, "{path} is a dead link");
        // src="/page/…", href="/page/…", fetch("/page/…"), from "./…"
        for quoted in body
            .split('"')
            .skip(1)
            .step_by(2)
            .filter(|_| !path.contains("uPlot"))
        {
            if quoted.starts_with("/page/") {
                open.push(quoted.to_owned());
            } else if let Some(name) = quoted.strip_prefix("./") {
                open.push(format!("/page/{name}"));
            }
        }
        found.push((path, head, body));
    }
    found
}

#[test]
fn page_loads_no_external_resource() {
    let server = serve(ANY, running()).unwrap();
    let files = page_files(&server);
    assert!(files.len() > 10, "{}", files.len());
    for (path, head, body) in &files {
        assert_contains!(head =>
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
            "x-content-type-options: nosniff"
        );
        assert!(!head.contains("unsafe"), "{head}");
        // The namespace of an SVG is not loaded, and the licence of uPlot names its author's page.
        let body = body.replace("http://www.w3.org/2000/svg", "");
        if !path.contains("uPlot") {
            assert!(
                !body.contains("http:") && !body.contains("https:"),
                "{path}"
            );
            assert!(
                !body.contains("innerHTML") && !body.contains("style=\""),
                "{path}"
            );
        }
        let kind = match path.rsplit('.').next().unwrap() {
            "/" => "text/html",
            "js" => "text/javascript",
            "css" => "text/css",
            "svg" => "image/svg+xml",
            "json" => "application/json",
            _ => "text/plain",
        };
        assert_contains!(head => format!("content-type: {kind}").as_str());
    }
    let (_, _, index) = &files[0];
    for path in ["/metrics", "/status", "/-/healthy", "/-/ready"] {
        assert!(
            index.contains(&format!("href=\"{path}\"")),
            "no link to {path}"
        );
        assert_ne!(ask(&server, "GET", path).0, 404, "{path} is a dead link");
    }
    let (_, _, licence) = files
        .iter()
        .find(|(path, ..)| path == "/page/uPlot.LICENSE")
        .unwrap();
    assert_contains!(licence => "The MIT License", "Leon Sorokin");
    assert_eq!(ask(&server, "GET", "/page/other.js").0, 404);
}

#[test]
fn page_has_a_colour_for_each_cause_of_loss_and_its_remedy() {
    let server = serve(ANY, running()).unwrap();
    let style = ask(&server, "GET", "/page/style.css").2;
    let remedies: Value =
        serde_json::from_str(&ask(&server, "GET", "/page/remedies.json").2).unwrap();
    for cause in daq_core::ledger::Cause::ALL {
        let name = cause.name();
        // Light and dark.
        assert_eq!(style.matches(&format!("--{name}: #")).count(), 2, "{name}");
        assert_eq!(remedies["causes"][name], cause.remedy());
    }
    let text = remedies["metrics"]["daq_ring_full_frames_total"].as_str();
    assert_contains!(text.unwrap() => "increase `slots`");
}

#[test]
fn page_names_copy_size_classes() {
    use daq_core::ledger::CopySizes;
    use daq_core::units::ByteSize;
    let bounds = CopySizes::BOUNDS.map(|bound| format!("\"≤ {}\"", ByteSize(bound)));
    let classes = format!("const classes = [{}, \"larger\"];", bounds.join(", "));
    assert!(
        include_str!("page/ledger.js").contains(&classes),
        "{classes}"
    );
}

/// A server with a ring `raw@host`, whose frames are eight bytes.
fn with_ring() -> (Server, RingFixture) {
    let fixture = RingFixture::host("raw@host", 4, 8);
    let layout = daq_core::layout::Samples::default().layout(8).unwrap();
    let ring = ScopedRing {
        ring: fixture.ring.clone(),
        layout,
        parts: Vec::new(),
    };
    let state = HttpState {
        rings: BTreeMap::from([("raw@host".to_owned(), ring)]),
        ..running()
    };
    (serve(ANY, state).unwrap(), fixture)
}

fn publish(fixture: &mut RingFixture, sequence: u64) {
    fixture.write(&[(FrameMeta::whole(sequence, 8), vec![7; 8])]);
    assert_eq!(fixture.read().len(), 1);
}

/// Opens the stream of a ring.
fn open_scope(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    write!(
        stream,
        "GET /rings/raw%40host/scope?channel=0 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    .unwrap();
    stream
}

/// Reads until `text` arrives.
fn read_until(stream: &mut TcpStream, text: &str) {
    stream
        .set_read_timeout(Some(Duration::from_mins(2)))
        .unwrap();
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&all).contains(text) {
        let count = stream.read(&mut buffer).unwrap();
        assert_ne!(
            count,
            0,
            "the stream ended: {}",
            String::from_utf8_lossy(&all)
        );
        all.extend_from_slice(&buffer[..count]);
    }
}

#[test]
fn scope_streams_frames_until_the_server_stops() {
    let (server, mut fixture) = with_ring();
    let mut stream = open_scope(&server);
    read_until(&mut stream, "content-type: application/octet-stream");
    publish(&mut fixture, 41);
    read_until(&mut stream, "\"sequence\":41");
    publish(&mut fixture, 42);
    read_until(&mut stream, "\"sequence\":42");
    server.stop();
    // The end of a chunked response. Without it, a browser reports an error of the network.
    read_until(&mut stream, "0\r\n\r\n");
}

#[test]
fn stalled_browsers_do_not_delay_others() {
    let (server, mut fixture) = with_ring();
    let _stalled: Vec<_> = (0..10).map(|_| open_scope(&server)).collect();
    let mut stream = open_scope(&server);
    for sequence in 0..5 {
        publish(&mut fixture, sequence);
        read_until(&mut stream, &format!("\"sequence\":{sequence},"));
        assert_eq!(ask(&server, "GET", "/-/ready").0, 200);
    }
}

#[test]
fn rings_are_checked_before_they_are_shown() {
    let (server, mut fixture) = with_ring();
    for (path, code, text) in [
        (
            "/rings/none/scope",
            404,
            "there is no ring `none`; the pipeline has the rings raw@host",
        ),
        ("/rings/none/frame.npy", 404, "there is no ring `none`"),
        (
            "/rings/raw@host/scope?channel=x",
            400,
            "`channel` must be a whole number",
        ),
        ("/rings/raw@host/frame.npy", 503, "no frame yet"),
        ("/rings/raw@host/other", 404, "not found"),
    ] {
        let (found, _, body) = ask(&server, "GET", path);
        assert_eq!(found, code, "{path}: {body}");
        assert_contains!(body => text);
    }
    assert_eq!(ask(&server, "POST", "/rings/raw@host/scope").0, 405);
    publish(&mut fixture, 5);
    let mut stream = TcpStream::connect(server.address()).unwrap();
    write!(stream, "GET /rings/raw@host/frame.npy HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8_lossy(&answer);
    assert_contains!(text => "daq-sequence: 5\r\n", "content-length: 136\r\n", "'shape': (8,1,)");
    assert!(answer.ends_with(&[7; 8]));
}

/// Returns the lines that the view "Ledger" shows for each `/status` response in `answers`. Runs the page's script on a
/// simulated document; returns `None` if Node.js is not installed.
fn shown(answers: &[Value]) -> Option<Vec<String>> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http");
    let started = std::process::Command::new("node")
        .arg("page_shown.js")
        .current_dir(directory)
        .env("LC_ALL", "en_US.UTF-8")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut node = match started {
        Ok(node) => node,
        Err(error) => {
            eprintln!("skipped: node (Debian: nodejs) does not start: {error}");
            return None;
        }
    };
    let mut input = node.stdin.take().unwrap();
    serde_json::to_writer(&mut input, answers).unwrap();
    drop(input);
    let output = node.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(str::to_owned).collect())
}

#[test]
fn page_shows_copies_and_gpus() {
    let server = serve(ANY, running()).unwrap();
    let first: Value = serde_json::from_str(&ask(&server, "GET", "/status").2).unwrap();
    let mut second = first.clone();
    let report = &mut second["report"];
    report["seconds"] = serde_json::json!(14.5);
    report["copies"]["raw"]["bytes"] = serde_json::json!(8_000_409_600_u64);
    let Some(lines) = shown(&[first.clone(), second]) else {
        return;
    };
    for line in [
        "# copies",
        "name | from | started | frames | failed | stored | pending | copies | bytes | in flight | busy s | sizes | rate",
        "raw | raw@host | 107 | 100 | 2! | 31 | 5 | 36 | 8,000,409,600 | 3 | 0.75 | ≤ 4 KiB 1, ≤ 16 KiB 2, \
         ≤ 64 KiB 3, ≤ 256 KiB 4, ≤ 1 MiB 5, ≤ 4 MiB 6, ≤ 16 MiB 7, larger 8 | 32.0 Gbit/s",
        "name | in | accumulating | consumed | failed | filtered | pending | produced | gpu dispatch | gpu launches | \
         gpu busy s | gpu gap s | gpu occupancy %",
        "beam | 85 | 0 | 85 | 0 | 0 | 0 | 86 | launch | 23 | 1.5 | 0.25 | 62.5",
        "spectrum | 80 | 12 | 64 | 1! | 0 | 3 | 13 | – | – | – | – | –",
        "trigger | 0 | 0 | 0 | 0 | 0 | 0 | 0 | persistent | 0 | 0 | 0 | 12.5",
    ] {
        assert!(
            lines.iter().any(|shown| shown == line),
            "{line:?} is not in {lines:#?}"
        );
    }
    let sources = lines.iter().position(|line| line == "# sources").unwrap();
    let (titles, values) = (&lines[sources + 1], &lines[sources + 2]);
    let part = "adc 50001 | 470 | 2! | 500 | 10! | 20 | 1!";
    assert!(
        lines.iter().any(|line| line.starts_with("adc 50001 | ")),
        "{part} is not in {lines:#?}"
    );
    assert_contains!(titles => "| engine path |", "| engine faults");
    assert_contains!(values => "| verified |", "| 10! |", "| descriptor: magic 12!");
    assert!(
        !lines.iter().any(|line| line.contains("[object")),
        "{lines:#?}"
    );
    // A report without any.
    let mut without = first;
    let report = without["report"].as_object_mut().unwrap();
    report.remove("copies");
    let kernels = report["kernels"].as_object_mut().unwrap();
    kernels.retain(|_, kernel| kernel.get("device").is_none());
    let lines = shown(&[without]).unwrap();
    assert!(
        lines[0].starts_with("running"),
        "the page failed: {}",
        lines[0]
    );
    assert!(!lines.iter().any(|line| line == "# copies"), "{lines:#?}");
    let header = "name | in | accumulating | consumed | failed | filtered | pending | produced";
    assert!(lines.iter().any(|line| line == header), "{lines:#?}");
}

#[test]
fn status_and_page_show_duplicates_and_rejected_packets_as_loss() {
    let server = serve(ANY, running()).unwrap();
    let status: Value = serde_json::from_str(&ask(&server, "GET", "/status").2).unwrap();
    let text = "lost 40 of 1000 frames (late 3, wire_gap 37; part 50001: 10), 5 duplicates, 6 rejected, 8 skipped, 9 frames incomplete";
    let loss = serde_json::json!({ "text": text, "is_loss": true });
    assert_eq!(status["loss"]["adc"], loss);
    let mut clean = status.clone();
    clean["loss"]["adc"] = serde_json::json!({ "text": "no loss in 3 frames", "is_loss": false });
    for key in ["lost", "duplicates", "rejected", "skipped", "incomplete"] {
        clean["report"]["sources"]["adc"][key] = 0.into();
    }
    clean["report"]["sources"]["adc"]["silent"] = false.into();
    clean["report"]["sources"]["adc"]["engine"] = Value::Null;
    let Some(lines) = shown(&[status]) else {
        return;
    };
    let sentence = format!("source adc: {text}!");
    assert!(lines.contains(&sentence), "{lines:#?}");
    let row = "adc | 1,000 | 900 | 60 | late 3, wire_gap 37! | 9! | 921,600 | 5! | 6! | length 6 | 7 | 14 | 2 | 8! | 2023-11-14T22:13:20.500Z | true!";
    assert!(lines.iter().any(|line| line.starts_with(row)), "{lines:#?}");
    let lines = shown(&[clean]).unwrap();
    let sentence = "source adc: no loss in 3 frames".to_owned();
    assert!(lines.contains(&sentence), "{lines:#?}");
    let row = lines.iter().find(|line| line.starts_with("adc | "));
    assert!(!row.unwrap().contains('!'), "{row:?}");
}

#[test]
fn unknown_path_returns_not_found() {
    let server = serve(ANY, running()).unwrap();
    assert_eq!(ask(&server, "GET", "/nothing").0, 404);
    assert_eq!(ask(&server, "POST", "/status").0, 405);
    assert_eq!(ask(&server, "HEAD", "/metrics").0, 200);
}

#[test]
fn http_port_in_use_is_error_at_startup() {
    let server = serve(ANY, running()).unwrap();
    let error = serve(server.address(), running()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, HttpError::Listen { .. }), "{text}");
    assert_contains!(text =>
        server.address().to_string().as_str(), "ss -ltnp", "`listen` of [http]"
    );
}

#[test]
fn http_foreign_address_is_error_at_startup() {
    // A documentation address (RFC 5737), which no interface has.
    let text = serve("192.0.2.1:9464".parse().unwrap(), running())
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("192.0.2.1:9464") && text.contains("ip addr"),
        "{text}"
    );
}

#[test]
fn stop_with_silent_client_frees_port() {
    // Use a loopback address of its own, because on a shared address another program could take the port immediately.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let own = SocketAddr::from(([127, 83, high, low], 0));
    let server = serve(own, running()).unwrap();
    let address = server.address();
    let mut silent = TcpStream::connect(address).unwrap();
    // After one response, the server has certainly accepted the connection. The connection stays open.
    write!(silent, "GET /-/ready HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut first = [0; 12];
    silent.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let _mute = TcpStream::connect(address).unwrap();
    server.stop();
    // A child process that another test starts also holds the socket until it executes its program.
    let is_free = |_| {
        std::thread::sleep(Duration::from_millis(10));
        TcpListener::bind(address).is_ok()
    };
    assert!((0..1000).any(is_free));
}

/// Waits until the server closes `stream`, that is, until a read returns end of file or an error.
fn wait_closed(mut stream: TcpStream) {
    // A timeout makes the test fail instead of hanging.
    stream
        .set_read_timeout(Some(Duration::from_mins(5)))
        .unwrap();
    let mut rest = Vec::new();
    if let Err(error) = stream.read_to_end(&mut rest) {
        assert_ne!(
            error.kind(),
            io::ErrorKind::WouldBlock,
            "the connection stays open"
        );
    }
    assert_eq!(String::from_utf8_lossy(&rest), "");
}

#[test]
fn idle_connections_are_limited_and_oldest_is_closed() {
    let limits = Limits {
        connections: 3,
        idle: Duration::from_hours(1),
    };
    let server = serve_within(bind(ANY).unwrap(), running(), limits).unwrap();
    let connect = || TcpStream::connect(server.address()).unwrap();
    let mut idle: Vec<_> = (0..20).map(|_| connect()).collect();
    assert_eq!(ask(&server, "GET", "/-/ready").0, 200);
    // Three connections were open, and the request above has closed the oldest of them, so two remain.
    let youngest = idle.split_off(18);
    idle.into_iter().for_each(wait_closed);
    for mut stream in youngest {
        write!(
            stream,
            "GET /-/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn connections_without_complete_request_are_closed() {
    let limits = Limits {
        connections: 8,
        idle: Duration::from_millis(50),
    };
    let server = serve_within(bind(ANY).unwrap(), running(), limits).unwrap();
    let connect = || TcpStream::connect(server.address()).unwrap();
    let mut begun = connect();
    begun
        .write_all(b"GET /-/ready HTTP/1.1\r\nHost: loc")
        .unwrap();
    wait_closed(connect());
    wait_closed(begun);
    // Bytes that arrive slowly do not extend the deadline of a request.
    let mut slow = connect();
    let is_closed = |_| {
        std::thread::sleep(Duration::from_millis(10));
        slow.write_all(b"X").is_err()
    };
    assert!((0..10_000).any(is_closed), "the request never ends");
}

#[test]
fn requests_for_foreign_host_names_are_rejected() {
    let server = serve(ANY, running()).unwrap();
    let code = |head: &str| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        write!(stream, "{head}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_whitespace().nth(1).unwrap().to_owned()
    };
    for accepted in [
        "GET /status HTTP/1.0",
        "GET /status HTTP/1.1\r\nHost: localhost:9464",
        "GET /status HTTP/1.1\r\nHost: daq.lab.example",
        "GET /status HTTP/1.1\r\nHost: 192.0.2.1",
    ] {
        assert_eq!(code(accepted), "200", "{accepted}");
    }
    for refused in [
        "GET /status HTTP/1.1\r\nHost: rebind.example:9464",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nHost: rebind.example",
        "GET http://rebind.example/status HTTP/1.1\r\nHost: localhost",
        "GET /metrics HTTP/1.1\r\nHost: ",
        "GET /rings/raw/scope HTTP/1.1\r\nHost: rebind.example",
        "GET /rings/raw/frame.npy HTTP/1.1\r\nHost: rebind.example",
        "GET /page/main.js HTTP/1.1\r\nHost: rebind.example",
    ] {
        assert_eq!(code(refused), "421", "{refused}");
    }
}

#[test]
fn unknown_http_keys_are_rejected_and_default_is_loopback() {
    let read = |text: &str| serde_json::from_str::<Http>(text);
    assert_eq!(read("{}").unwrap(), Http::default());
    assert!(Http::default().listen.ip().is_loopback());
    assert_eq!(read(r#"{"listen": "[::1]:80"}"#).unwrap().listen.port(), 80);
    assert!(
        read(r#"{"listne": "[::1]:80"}"#)
            .unwrap_err()
            .to_string()
            .contains("listne")
    );
    let schema = serde_json::to_value(schemars::schema_for!(Http)).unwrap();
    assert_eq!(schema["additionalProperties"], false);
}

/// Collects every value with the key `expr`, at any depth.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "expr" => found.push(text.clone()),
                    _ => expressions(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

fn dashboard() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/grafana/daq.json");
    let text = std::fs::read_to_string(path).unwrap();
    let mut found = Vec::new();
    expressions(&serde_json::from_str(&text).unwrap(), &mut found);
    assert!(found.len() > 10);
    found
}

/// Returns the expressions of the alert rules.
fn alerts() -> Vec<String> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../configs/prometheus/alerts.yml"
    );
    let text = std::fs::read_to_string(path).unwrap();
    // An expression ends before the next key of its rule.
    let rules = text.split("expr:").skip(1);
    let expressions: Vec<_> = rules
        .map(|rule| rule.split("labels:").next().unwrap().to_owned())
        .collect();
    assert!(expressions.len() > 10);
    expressions
}

#[test]
fn dashboard_and_alerts_use_only_existing_metrics() {
    for expression in dashboard().into_iter().chain(alerts()) {
        for word in expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let is_name = word.starts_with("daq_") || word.starts_with("process_");
            let is_of = |metric: &MetricText| {
                let series = word.strip_prefix(metric.name);
                let parts: &[_] = match metric.kind {
                    MetricKind::Histogram => &["_bucket", "_sum", "_count"],
                    MetricKind::Counter | MetricKind::Gauge => &[""],
                };
                series.is_some_and(|part| parts.contains(&part))
            };
            assert!(
                !is_name || metrics().iter().any(is_of),
                "no metric {word}: {expression}"
            );
        }
    }
}

#[test]
fn dashboard_queries_are_valid_promql() {
    use std::fmt::Write as _;
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (number, expression) in dashboard().iter().enumerate() {
        let expression =
            serde_json::to_string(&expression.replace("$__rate_interval", "1m")).unwrap();
        writeln!(rules, "  - record: rule{number}\n    expr: {expression}").unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules.yml");
    std::fs::write(&path, rules).unwrap();
    match std::process::Command::new("promtool")
        .args(["check", "rules"])
        .arg(&path)
        .output()
    {
        Err(error) => eprintln!("skipped: promtool (Debian: prometheus) does not start: {error}"),
        Ok(output) => assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

#[test]
fn alert_rules_pass_their_unit_tests() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/prometheus");
    let read = |name: &str| std::fs::read_to_string(format!("{directory}/{name}")).unwrap();
    let tests = read("alerts_test.yml");
    for rule in read("alerts.yml").split("alert: ").skip(1) {
        let name = rule.lines().next().unwrap();
        for end in ["fires", "does not fire"] {
            let test = format!("name: {name} {end}\n");
            assert!(
                tests.contains(&test),
                "alerts_test.yml has no test {test:?}"
            );
        }
    }
    for arguments in [["check", "alerts.yml"], ["test", "alerts_test.yml"]] {
        let [verb, file] = arguments;
        let run = std::process::Command::new("promtool")
            .args([verb, "rules", file])
            .current_dir(directory)
            .output();
        let output = match run {
            Ok(output) => output,
            Err(error) => {
                eprintln!("skipped: promtool (Debian: prometheus) does not start: {error}");
                return;
            }
        };
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        assert!(
            output.status.success(),
            "promtool {verb} rules {file}:\n{printed}"
        );
    }
}
