//! Errors name the server, the stream and the fix.

use super::server::{Server, nats, script, sink_config, source_config};
use daq_testkit::{Daq, assert_contains, assert_counts, free_tcp_port, python};

/// Exit codes: a server is not available, or the configuration must be corrected.
pub(super) const UNAVAILABLE: i32 = 69;
pub(super) const CONFIGURATION: i32 = 78;

/// Runs a configuration that cannot start, checks its exit code, and returns its log.
fn failure(code: i32, config: &str, files: &[(&str, &str)]) -> String {
    let daq = Daq::new(config);
    for (name, text) in files {
        daq.write(name, text);
    }
    let outcome = daq.run(&["--for", "5 s"]);
    assert_eq!(outcome.code, code, "{}", outcome.stderr);
    outcome.stderr
}

#[test]
fn missing_server_is_reported() {
    nats!();
    let port = free_tcp_port();
    for config in [sink_config(port, "events", ""), source_config(port, "")] {
        let log = failure(UNAVAILABLE, &config, &[]);
        assert_contains!(
            log =>
            format!("NATS server 127.0.0.1:{port}"),
            "start the server",
            "servers"
        );
    }
}

#[test]
fn wrong_login_is_reported() {
    nats!();
    let server = Server::new("authorization { user: daq, password: right }");
    let login = "login = { user = \"daq\", password_file = \"password\" }";
    let log = failure(UNAVAILABLE, &sink_config(server.port, "events", ""), &[]);
    assert_contains!(log => "authorization violation", "set `login`");
    let config = sink_config(server.port, "events", login);
    let log = failure(UNAVAILABLE, &config, &[("password", "wrong\n")]);
    assert_contains!(log => "correct `login`");
    assert!(!log.contains("wrong\n") && !log.contains("right"), "{log}");
    let log = failure(CONFIGURATION, &config, &[]);
    assert_contains!(log => "password");
    let log = failure(CONFIGURATION, &config, &[("password", "\n")]);
    assert_contains!(log => "login.password_file", "the file is empty");
    let daq = Daq::new(&config);
    daq.write("password", "right\n");
    let outcome = daq.run(&["--set", "source.adc.frames=3"]).ok();
    assert_counts!(outcome, "sinks.tx" => acknowledged: 3, connections: 1);
}

/// A server acknowledges messages that the stream cannot keep.
#[test]
fn stream_that_cannot_keep_a_frame_is_reported() {
    nats!();
    let server = Server::new("max_payload: 65536");
    let config = |keys: &str| {
        sink_config(server.port, "events", keys)
            .replace("64 B", "200 KiB")
            .replace("slots = 1024", "slots = 8")
    };
    let log = failure(CONFIGURATION, &config("max_bytes = \"64 KiB\""), &[]);
    assert_contains!(log => "`max_bytes` is 64 KiB", "200 KiB");
    let log = failure(CONFIGURATION, &config("max_messages = 3"), &[]);
    assert_contains!(log => "`max_messages` is 3", "a frame needs 4");
}

#[test]
fn differing_stream_is_reported() {
    nats!();
    let server = Server::new("");
    let run = |keys: &str| {
        Daq::new(&sink_config(server.port, "events", keys)).run(&["--set", "source.adc.frames=1"])
    };
    let _ = run("storage = \"file\"\nmax_messages = 100").ok();
    let _ = run("").ok();
    let config = sink_config(
        server.port,
        "events",
        "storage = \"memory\"\nmax_messages = 200",
    );
    let log = failure(CONFIGURATION, &config, &[]);
    assert_contains!(
        log =>
        "NATS stream OBS: the stream exists with other settings",
        "`storage` is file in the server, but memory is configured",
        "`max_messages` is 100 in the server, but 200 is configured",
        "nats stream edit OBS"
    );
    let config = sink_config(server.port, "events", "").replace("obs.decisions", "other.decisions");
    assert_contains!(
        failure(CONFIGURATION, &config, &[]) =>
        "but not the subject \"other.decisions\""
    );
    let config = source_config(server.port, "").replace("\"OBS\"", "\"NONE\"");
    assert_contains!(
        failure(UNAVAILABLE, &config, &[]) =>
        "NATS stream NONE",
        "start its sink first"
    );
}

#[test]
fn push_consumer_is_reported() {
    nats!();
    let python = python!("nats");
    let server = Server::new("");
    let body = "\
await js.add_stream(name='OBS', subjects=['obs.>'])
await js.add_consumer('OBS', api.ConsumerConfig(durable_name='rx', deliver_subject='push.rx', ack_policy=api.AckPolicy.EXPLICIT))";
    let _ = python.run(&script(body), &[server.port.to_string()]);
    assert_contains!(
        failure(CONFIGURATION, &source_config(server.port, ""), &[]) =>
        "NATS consumer rx of stream OBS",
        "push consumer",
        "nats consumer rm OBS rx"
    );
}

#[test]
fn server_without_jetstream_is_reported() {
    nats!();
    let server = Server::new("");
    // The account of the user has no JetStream.
    drop(server);
    let server = Server::new("accounts { A { users: [ { user: daq, password: x } ] } }");
    let login = "login = { user = \"daq\", password_file = \"password\" }";
    let log = failure(
        UNAVAILABLE,
        &sink_config(server.port, "events", login),
        &[("password", "x")],
    );
    assert_contains!(log => "NATS stream OBS", "enable JetStream");
}

#[test]
fn too_large_messages_are_reported() {
    nats!();
    let server = Server::new("");
    let log = failure(
        CONFIGURATION,
        &sink_config(server.port, "events", "chunk = \"2 MiB\""),
        &[],
    );
    assert_contains!(
        log =>
        "`chunk` of sink tx",
        "max_payload",
        "set chunk to at most"
    );
}

#[test]
fn full_stream_drops_or_blocks_as_declared() {
    nats!();
    let server = Server::new("");
    let limits = "discard = \"new\"\nmax_messages = 50\nwindow = 20\ntimeout = \"300 ms\"";
    let config =
        sink_config(server.port, "events", limits).replace("guarantee = true", "guarantee = false");
    let daq = Daq::new(&config);
    let mut live = daq.spawn(&[]);
    live.wait_count("sinks.tx.dropped", 100);
    assert_contains!(
        live.stderr() =>
        "has no space left",
        "the stream OBS does not store messages",
        "maximum"
    );
    let outcome = live.stop();
    assert_counts!(outcome, "sinks.tx" => acknowledged: 50, refused: 20, published: 70, lost: 20);
}
