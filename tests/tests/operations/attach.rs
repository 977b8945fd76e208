//! Tests processes that attach to a running pipeline: what they can read, and that they cannot harm the pipeline.

use daq_drivers::sim::verify;
use daq_testkit::{
    Daq, Live, Outcome, Python, assert_contains, ledger, program, python, skip, wait_for,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

const CLIENT: &str = include_str!("../../python/attach_client.py");
/// Bytes per frame.
const FRAME: u64 = 8192;

/// A source that waits for slots and is paced, so that every lost frame is the fault of a reader.
const PIPELINE: &str = r#"
[source.adc]
driver = "sim"
ring = "raw"
samples = { type = "int16", channels = 2, rate = "1 MHz" }
pattern = "counter"
packet = 1024
pace = "80 Mbit/s"
backpressure = true

[ring.raw]
memory = "host"
slot = 8192
slots = 256

[sink.drain]
driver = "null"
input = "raw"

[http]
listen = "127.0.0.1:0"
"#;

/// Returns a running pipeline that has published frames, and the path of its socket.
fn start(daq: &Daq) -> (Live, String) {
    let mut live = daq.spawn(&[]);
    live.wait_count("rings.raw.published", 10);
    let socket = daq.path("state/daq/daq.attach");
    (live, socket.to_str().unwrap().to_owned())
}

/// A client in another process.
struct Client {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Client {
    /// Starts a client that keeps its connection until it is stopped.
    fn start(python: &Python, arguments: &[&str]) -> Self {
        let mut child = Command::new(python.path())
            .args(["-c", CLIENT])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Returns the next value that the client prints.
    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Closes the standard input of the client, which then leaves.
    fn leave(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until no client is attached to `raw`.
fn wait_detached(live: &mut Live) -> Value {
    wait_for("clients that leave", || {
        let report = live.report();
        (ledger::count(&report, "clients.raw.attached") == 0).then_some(report)
    })
}

/// Panics unless the pipeline has lost nothing.
fn assert_nothing_lost(outcome: &Outcome) {
    assert_eq!(
        ledger::lost(&outcome.report, "adc"),
        0,
        "{:#}",
        outcome.report
    );
    assert_eq!(outcome.count("rings.raw.ring_full"), 0);
    assert_eq!(
        outcome.count("readers.drain.read"),
        outcome.count("rings.raw.published")
    );
}

#[test]
fn ls_lists_pipelines_and_rings() {
    let daq = Daq::new(PIPELINE);
    let none = daq.cli_line("ls").ok();
    assert_contains!(none.stderr => "no pipeline runs", "state/daq");
    let (mut live, socket) = start(&daq);
    let address = live.address().to_string();
    let pipelines = daq.cli_line("ls --json").ok().json();
    let pipeline = &pipelines[0];
    assert_eq!(pipeline["pipeline"], "daq");
    assert_eq!(pipeline["pid"], live.pid());
    assert_eq!(pipeline["http"], address);
    assert_eq!(pipeline["socket"], socket);
    let ring = &pipeline["rings"][0];
    assert_eq!(
        (&ring["name"], &ring["memory"]),
        (&json!("raw"), &json!("host"))
    );
    assert_eq!(
        (&ring["attachable"], &ring["clients"]),
        (&json!(true), &json!(0))
    );
    assert_eq!(ring["layout"]["shape"], json!([2048, 2]));
    let table = daq.cli_line("ls").ok().stdout;
    assert_contains!(table => "pipeline daq: process", "RING", "raw", "host", "256", "8 KiB", "int16 [2048, 2]", "yes");

    // A killed daemon leaves its socket behind, and the next run replaces it.
    live.kill();
    let killed = daq.cli_line("ls").ok();
    assert_contains!(killed.stderr => "daq.attach", "was killed");
    let (live, _) = start(&daq);
    assert_eq!(daq.cli_line("ls --json").ok().json()[0]["pid"], live.pid());
    // A second run with the same name records data, but no process can attach to it.
    let second = daq
        .run(&["--frames", "raw=10", "--set", "daq.name=daq"])
        .ok();
    assert_contains!(second.stderr => "another run serves", "daq.attach", "`name` in [daq]");
    assert_eq!(daq.cli_line("ls --json").ok().json()[0]["pid"], live.pid());
    assert_nothing_lost(&live.stop().ok());
    assert!(!Path::new(&socket).exists());
}

#[test]
fn tap_prints_frames_that_numpy_reads() {
    let python = python!("numpy");
    let daq = Daq::new(PIPELINE);
    let (live, _) = start(&daq);
    let shell = |command: &str| {
        let binary = daq_testkit::binary();
        let mut sh = Command::new("sh");
        daq.prepare(&mut sh)
            .env("DAQ", binary)
            .args(["-c", command]);
        let output = sh.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command}: {errors}");
        (String::from_utf8(output.stdout).unwrap(), errors)
    };
    shell("$DAQ tap raw --format npy --every 100ms --count 2 > frames.npy");
    let read = "import numpy, sys\n\
                file = open(sys.argv[1], 'rb')\n\
                for _ in range(2):\n\
                \x20   frame = numpy.load(file)\n\
                \x20   words = frame.ravel().view('<u8')\n\
                \x20   assert frame.shape == (2048, 2) and frame.dtype == '<i2', frame\n\
                \x20   assert (numpy.diff(words) == 1).all() and words[0] % 1024 == 0, words\n\
                assert not file.read()";
    python.run(read, &[daq.path("frames.npy")]);
    shell("$DAQ tap raw --format raw --count 1 > frame.raw");
    let raw = std::fs::read(daq.path("frame.raw")).unwrap();
    let first = u64::from_le_bytes(raw[..8].try_into().unwrap()) * 8;
    assert_eq!((raw.len() as u64, verify(&raw, first)), (FRAME, None));

    let json = daq.cli_line("tap raw --count 1").ok().json();
    assert_eq!(
        (&json["ring"], &json["length"]),
        (&json!("raw"), &json!(FRAME))
    );
    assert_eq!((&json["missing"], &json["flags"]), (&json!([]), &json!([])));
    assert_eq!(json["samples"].as_array().unwrap().len(), 2048);
    let csv = daq.cli_line("tap raw --format csv --count 1").ok().stdout;
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!((lines[0], lines.len()), ("frame,time_ns,point,c0,c1", 2049));
    assert_eq!(lines[1].split(',').count(), 5);

    // A closed pipe is not an error.
    let (first, errors) = shell("$DAQ tap raw --format csv --every 1ms | head -n 1");
    assert_eq!(
        (first.trim_end(), &*errors),
        ("frame,time_ns,point,c0,c1", "")
    );
    let wrong = daq.cli_line("tap rwa --count 1");
    assert_eq!(wrong.code, 69);
    assert_contains!(wrong.stderr => "no ring `rwa`", "raw of pipeline `daq`");
    let wrong = daq.cli_line("tap raw --pipeline other");
    assert_contains!(wrong.stderr => "no ring `raw` of pipeline `other`");
    assert_nothing_lost(&live.stop().ok());
    let none = daq.cli_line("tap raw");
    assert_eq!(none.code, 69);
    assert_contains!(none.stderr => "no pipeline runs", "daq run");
}

#[test]
fn directory_of_another_user_is_reported() {
    let Some(setpriv) = program("setpriv").filter(|_| rustix::process::geteuid().is_root()) else {
        skip!("setpriv is not installed, or this is not root");
    };
    let daq = Daq::new(PIPELINE);
    let directory = daq.path("foreign");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&directory, Some(65534), None).unwrap();
    for arguments in [&["ls"][..], &["tap", "raw"]] {
        let mut command = Command::new(&setpriv);
        daq.prepare(&mut command);
        // Without its capabilities, root has the permissions of a user.
        command
            .args(["--bounding-set=-all", "--inh-caps=-all"])
            .arg(daq_testkit::binary());
        let output = command
            .args(arguments)
            .arg("--state-dir")
            .arg(&directory)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_contains!(text => "cannot read", "Permission denied", "use the account that runs the pipeline"; "{arguments:?}");
        assert!(!text.contains("no pipeline runs"), "{text}");
    }
}

#[test]
fn tap_reports_that_it_waits_and_that_the_run_has_ended() {
    let daq = Daq::new(PRODUCED);
    let (mut live, _) = start_produced(&daq);
    let address = live.address().to_string();
    let mut command = daq.command(&["tap", "flags"]);
    let mut tap = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(tap.stderr.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert_contains!(next() =>
        "waiting for the first frame of ring `flags`", format!("`daq top {address}`"), "press Ctrl-C to end"
    );
    let _ = live.stop().ok();
    assert_eq!(next(), "the run has ended");
    assert!(tap.wait().unwrap().success());
}

#[test]
fn client_reads_ring_without_copy_and_is_counted() {
    let python = python!("json");
    let daq = Daq::new(PIPELINE);
    let (mut live, socket) = start(&daq);
    let mut client = Client::start(&python, &[&socket, "read", "500", "none"]);
    let counts = client.next();
    assert_eq!(counts["read"], 500);
    let name = format!("python3[{}]", client.child.id());
    let found = wait_for("the client's counts", || {
        let report = live.report();
        let readers = report["readers"].as_object().unwrap();
        let reader = readers
            .values()
            .find(|reader| reader["process"] == client.child.id())?;
        (reader["read"] == 500).then(|| (report.clone(), reader.clone()))
    });
    let (report, reader) = found;
    assert_eq!(
        (&reader["ring"], &reader["overrun"]),
        (&json!("raw"), &counts["overrun"])
    );
    assert_eq!(ledger::count(&report, "clients.raw.attached"), 1, "{name}");
    let metrics = live.get("/metrics").body;
    assert_contains!(metrics => "daq_ring_clients{ring=\"raw\"} 1", "daq_ring_client_read_frames_total{ring=\"raw\"} 500");
    assert_contains!(metrics => !format!("[{}]", client.child.id()));
    client.leave();
    let report = wait_detached(&mut live);
    assert_eq!(ledger::count(&report, "clients.raw.read"), 500);
    assert_eq!(ledger::count(&report, "clients.raw.total"), 1);
    assert_eq!(report["readers"].as_object().unwrap().len(), 1);
    assert_nothing_lost(&live.stop().ok());
}

#[test]
fn slow_client_counts_overwritten_frames() {
    let python = python!("json");
    let daq = Daq::new(PIPELINE);
    let (mut live, socket) = start(&daq);
    let mut client = Client::start(&python, &[&socket, "slow"]);
    let counts = client.next();
    assert_eq!(counts["read"], 2);
    assert!(counts["overrun"].as_u64() > Some(256), "{counts}");
    client.leave();
    let report = wait_detached(&mut live);
    assert_eq!(report["clients"]["raw"]["overrun"], counts["overrun"]);
    assert_nothing_lost(&live.stop().ok());
}

#[test]
fn guaranteed_client_reads_every_frame_and_is_revoked_if_it_stops() {
    let python = python!("json");
    let daq = Daq::new(PIPELINE);
    let guaranteed = "ring.raw.attach={ guarantee = true, hold = \"300 ms\" }";
    let mut live = daq.spawn(&["--set", guaranteed]);
    live.wait_count("rings.raw.published", 10);
    let socket = daq.path("state/daq/daq.attach");
    let socket = socket.to_str().unwrap();
    let mut client = Client::start(&python, &[socket, "read", "300", "guarantee"]);
    let counts = client.next();
    assert_eq!(
        (&counts["read"], &counts["overrun"], &counts["gaps"]),
        (&json!(300), &json!(0), &json!(0))
    );
    // The client reads no more frames, so the source waits until the client is revoked.
    live.wait_count("clients.raw.revoked", 1);
    drop(client);
    let mut stopped = Client::start(&python, &[socket, "hold", "guarantee"]);
    stopped.next();
    stopped.signal(Signal::STOP);
    live.wait_count("clients.raw.revoked", 2);
    stopped.signal(Signal::CONT);
    assert_contains!(stopped.next()["revoked"].as_str().unwrap() => "has not retired frame", "300 ms");
    let mut killed = Client::start(&python, &[socket, "hold", "guarantee"]);
    killed.next();
    killed.signal(Signal::KILL);
    let report = wait_detached(&mut live);
    let published = ledger::count(&report, "rings.raw.published");
    live.wait_count("rings.raw.published", published + 1000);
    assert_contains!(live.stderr() => "revoked python", "from ring raw", "`hold` of the ring");
    assert_nothing_lost(&live.stop().ok());
}

#[test]
fn hostile_clients_are_disconnected_and_the_pipeline_loses_nothing() {
    let python = python!("json");
    let daq = Daq::new(PIPELINE);
    let (mut live, socket) = start(&daq);
    let replies = python
        .json_lines(CLIENT, &[&socket, "hostile", "1"])
        .remove(0);
    let error = |name: &str| {
        replies[name]["error"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_contains!(error("huge") => "at most 65536 bytes");
    assert_contains!(error("nested") => "not a JSON object");
    assert_eq!(replies["descriptors"], true);
    assert_contains!(error("ring") => "no ring `no?such`", "its rings are raw");
    assert_contains!(error("guarantee") => "attach = { guarantee = true }", "[ring.raw]");
    assert_contains!(error("early") => "attach to a ring first");
    assert_eq!(replies["deaf"], "disconnected");
    let revoked = replies["revoked"].as_array().unwrap();
    for (reason, expected) in revoked.iter().zip([
        "frames were published",
        "1 frames read",
        "overrun",
        "invalid value",
        "invalid type",
        "another request",
        "`read` 0 after 1",
    ]) {
        assert_contains!(reason.as_str().unwrap() => expected);
    }
    let report = wait_detached(&mut live);
    assert_eq!(ledger::count(&report, "clients.raw.revoked"), 7);
    assert_nothing_lost(&live.stop().ok());
}

#[test]
fn hundreds_of_clients_and_killed_clients_leave_nothing_behind() {
    let python = python!("json");
    let daq = Daq::new(PIPELINE);
    let (mut live, socket) = start(&daq);
    let count = |what: &str, live: &Live| {
        let path = format!("/proc/{}/{what}", live.pid());
        std::fs::read_dir(path).unwrap().count()
    };
    // The first client starts the thread that wakes clients.
    let mut first = Client::start(&python, &[&socket, "read", "5", "none"]);
    first.next();
    first.leave();
    wait_detached(&mut live);
    let before = (count("task", &live), count("fd", &live));
    let mut many = Client::start(&python, &[&socket, "many", "300"]);
    assert_eq!(many.next(), 300);
    let report = live.wait_count("clients.raw.attached", 300);
    assert!(ledger::count(&report, "clients.raw.read") >= 300);
    many.signal(Signal::KILL);
    wait_detached(&mut live);
    python.run(CLIENT, &[&*socket, "churn", "1000"]);
    let report = wait_detached(&mut live);
    assert_eq!(ledger::count(&report, "clients.raw.total"), 1301);
    wait_for("freed descriptors and threads", || {
        ((count("task", &live), count("fd", &live)) <= before).then_some(())
    });
    assert_nothing_lost(&live.stop().ok());
}

#[test]
fn clients_cannot_write_and_other_users_cannot_attach() {
    let python = python!("json");
    let daq = Daq::new(PIPELINE);
    let (mut live, socket) = start(&daq);
    let succeeded = python.json_lines(CLIENT, &[&socket, "write"]).remove(0);
    assert_eq!(succeeded, json!([]));
    let mut private = daq.spawn(&[
        "--set",
        "daq.name=private",
        "--set",
        "ring.raw.attach=false",
    ]);
    private.wait_count("rings.raw.published", 1);
    let pipelines = daq.cli_line("ls --json").ok().json();
    let ring = &pipelines[1]["rings"][0];
    assert_eq!(pipelines[1]["pipeline"], "private");
    assert_contains!(ring["attachable"].as_str().unwrap() => "attach = false");
    // A copy of a frame is not the memory of the ring.
    let tapped = daq
        .cli_line("tap raw --pipeline private --format csv --count 1")
        .ok();
    assert_eq!(tapped.stdout.lines().count(), 2049);
    assert_nothing_lost(&private.stop().ok());
    if !rustix::process::geteuid().is_root() {
        live.interrupt();
        skip!("only root can start processes of another user");
    }
    // Even if the permissions of the file are wrong, the daemon rejects the process.
    for (mode, expected) in [
        (0o600, "PermissionError"),
        (0o666, "only the user who runs"),
    ] {
        std::fs::set_permissions(&socket, Permissions::from_mode(mode)).unwrap();
        for path in Path::new(&socket).ancestors().skip(1).take(3) {
            std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        let error = python.json_lines(CLIENT, &[&*socket, "refused"]).remove(0);
        assert_contains!(error.as_str().unwrap() => expected);
    }
    live.wait_log("rejected a connection of user 65534");
    assert_eq!(ledger::count(&live.report(), "clients.raw.total"), 1);
    assert_nothing_lost(&live.stop().ok());
}

/// Frames that another process produces, recorded in a file.
const PRODUCED: &str = r#"
[source.flags]
driver = "process"
ring = "flags"
frame = "4 KiB"

[ring.flags]
memory = "host"
slots = 16

[sink.disk]
driver = "file"
input = "flags"
path = "out"

[http]
listen = "127.0.0.1:0"
"#;

/// Starts a pipeline whose source is another process.
fn start_produced(daq: &Daq) -> (Live, String) {
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let socket = daq.path("state/daq/daq.attach");
    (live, socket.to_str().unwrap().to_owned())
}

#[test]
fn frames_of_another_process_are_recorded_and_counted() {
    let python = python!("json");
    let daq = Daq::new(PRODUCED);
    let (mut live, socket) = start_produced(&daq);
    let mut producer = Client::start(&python, &[&socket, "produce", "0", "500", "wait"]);
    assert_eq!(producer.next(), json!({ "taken": 500, "refused": 0 }));
    producer.leave();
    // Committed frames are published, although the process ends without waiting for them.
    let mut producer = Client::start(&python, &[&socket, "produce", "500", "300", "leave"]);
    producer.next();
    live.wait_count("rings.flags.published", 800);
    let outcome = live.stop().ok();
    assert_eq!(outcome.count("sources.flags.expected"), 800);
    assert_eq!(outcome.count("sources.flags.delivered"), 800);
    assert_eq!(outcome.count("sources.flags.epochs"), 2);
    assert_eq!(outcome.count("sinks.disk.frames"), 800);
    let data = daq.data("out");
    assert_eq!((data.len(), verify(&data, 0)), (800 * 4096, None));
}

#[test]
fn frames_without_a_free_slot_are_refused_and_counted() {
    let python = python!("json");
    let daq = Daq::new(PRODUCED);
    let mut live = daq.spawn(&[
        "--set",
        "source.flags.backpressure=false",
        "--set",
        "ring.flags.attach={ guarantee = true, hold = \"10 min\" }",
    ]);
    live.wait_ready();
    let socket = daq.path("state/daq/daq.attach");
    let socket = socket.to_str().unwrap();
    // This client retires no frame, so the ring becomes full.
    let mut holding = Client::start(&python, &[socket, "hold", "guarantee", "flags"]);
    holding.next();
    let mut producer = Client::start(&python, &[socket, "produce", "0", "100", "wait"]);
    let counts = producer.next();
    assert_eq!(counts["taken"], 100);
    assert!(counts["refused"].as_u64() >= Some(84), "{counts}");
    producer.leave();
    let outcome = live.stop();
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert_eq!(outcome.count("sources.flags.expected"), 100);
    assert_eq!(
        outcome.report["sources"]["flags"]["lost"]["ring_full"],
        counts["refused"]
    );
    let refused = counts["refused"].as_u64().unwrap();
    assert_eq!(outcome.count("sources.flags.delivered"), 100 - refused);
}

#[test]
fn killed_and_wrong_producers_do_not_stop_the_pipeline() {
    let python = python!("json");
    let daq = Daq::new(PRODUCED);
    let (mut live, socket) = start_produced(&daq);
    let errors = python
        .json_lines(CLIENT, &[&socket, "produce_wrongly"])
        .remove(0);
    let expected = [
        "F_SEAL_SHRINK",
        "F_SEAL_GROW",
        "64 bytes; it must have 1 to 1024 slots of 4096 bytes",
        "1 to 1024 slots",
        "one file descriptor",
        "source `adc`; sources with the driver `process`: flags",
        "another process produces",
        "a commit is invalid",
    ];
    let errors = errors.as_array().unwrap();
    assert_eq!(errors.len(), expected.len());
    for (error, expected) in errors.iter().zip(expected) {
        assert_contains!(error.as_str().unwrap() => expected);
    }
    let mut killed = Client::start(&python, &[&socket, "produce", "0", "100000000", "wait"]);
    live.wait_count("rings.flags.published", 100);
    killed.signal(Signal::KILL);
    killed.child.wait().unwrap();
    let mut next = wait_for("a free source", || {
        let mut next = Client::start(&python, &[&socket, "produce", "0", "10", "wait"]);
        let mut line = String::new();
        next.lines.read_line(&mut line).unwrap();
        (!line.is_empty()).then_some(next)
    });
    drop(next.child.stdin.take());
    let outcome = live.stop().ok();
    let expected = outcome.count("sources.flags.expected");
    assert_eq!(outcome.count("sources.flags.delivered"), expected);
    assert_eq!(outcome.count("sources.flags.rejected"), 2);
    assert_eq!(outcome.count("sources.flags.epochs"), 2);
}
