//! Streams that do not keep frames, and streams that disappear.

use super::errors::CONFIGURATION;
use super::server::{Server, nats, script, sink_config, source_config, stored};
use daq_testkit::{Daq, assert_contains, assert_counts, free_udp_port, python};
use std::net::UdpSocket;

/// Returns a sink like that of [`sink_config`], whose frames are UDP packets that arrive at `port`.
pub(super) fn udp_config(server: &Server, port: u16, keys: &str) -> String {
    let source = "driver = \"sim\"\nring = \"events\"\npattern = \"counter\"\n\
                  samples = { type = \"int16\", channels = 1 }\npacket = \"64 B\"\nbackpressure = true\n";
    let packets = format!(
        "driver = \"udp\"\nring = \"events\"\nlisten = \"127.0.0.1:{port}\"\n\
         samples = {{ type = \"int16\", channels = 1 }}\n\
         [source.adc.format]\nkind = \"raw\"\nheader = \"8 B\"\npayload = \"64 B\"\nsequence = {{ offset = 0, bytes = 8 }}\n"
    );
    let config = sink_config(server.port, "events", keys);
    assert!(config.contains(source));
    config.replace(source, &packets)
}

/// Sends the packets `numbers` to `port`.
pub(super) fn send(port: u16, numbers: std::ops::Range<u64>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for number in numbers {
        let packet = [&number.to_be_bytes()[..], &[0; 64]].concat();
        socket.send_to(&packet, ("127.0.0.1", port)).unwrap();
    }
}

#[test]
fn streams_that_keep_no_frames_are_refused() {
    nats!();
    let python = python!("nats");
    for (setting, part) in [
        ("retention=api.RetentionPolicy.INTEREST", "no consumer"),
        ("no_ack=True", "`no_ack`"),
    ] {
        let server = Server::new("");
        let body = format!(
            "await js.add_stream(api.StreamConfig(name='OBS', subjects=['obs.>'], {setting}))"
        );
        let _ = python.run(&script(&body), &[server.port.to_string()]);
        let daq = Daq::new(&sink_config(server.port, "events", ""));
        let outcome = daq.run(&["--set", "source.adc.frames=3"]);
        assert_eq!(outcome.code, CONFIGURATION, "{}", outcome.stderr);
        assert_contains!(outcome.stderr => "NATS stream OBS", part);
    }
}

#[test]
fn settings_that_the_server_refuses_are_configuration_errors() {
    nats!();
    let server = Server::new("");
    for (keys, part) in [
        ("max_age = \"1 ms\"", "`max_age` must be at least 100 ms"),
        (
            "duplicate_window = \"0 s\"",
            "`duplicate_window` must be at least 100 ms",
        ),
        ("replicas = 3", "cannot create the stream"),
    ] {
        let daq = Daq::new(&sink_config(server.port, "events", keys));
        let outcome = daq.run(&["--set", "source.adc.frames=3"]);
        assert_eq!(outcome.code, CONFIGURATION, "{}", outcome.stderr);
        assert_contains!(outcome.stderr => part);
    }
}

#[test]
fn placeholders_of_the_subject_are_stored() {
    nats!();
    let python = python!("nats");
    for keys in ["", "subjects = [\"obs.{run}.{ring}\"]"] {
        let server = Server::new("");
        let config =
            sink_config(server.port, "events", keys).replace("obs.decisions", "obs.{run}.{ring}");
        let outcome = Daq::new(&config)
            .run(&["--set", "source.adc.frames=3"])
            .ok();
        assert_counts!(outcome, "sinks.tx" => acknowledged: 3);
        let messages = stored(&python, server.port);
        let subject = messages[0]["subject"].as_str().unwrap();
        assert!(subject.starts_with("obs.") && subject.ends_with(".events"));
        assert_eq!(messages.len(), 3);
    }
}

#[test]
fn deleted_stream_loses_its_frames() {
    nats!();
    let python = python!("nats");
    let server = Server::new("");
    let port = free_udp_port();
    let daq = Daq::new(&udp_config(&server, port, ""));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    send(port, 0..20);
    live.wait_count("sinks.tx.acknowledged", 20);
    let _ = python.run(
        &script("await js.delete_stream('OBS')"),
        &[server.port.to_string()],
    );
    let outcome = live.stop();
    assert_counts!(outcome, "sinks.tx" => published: 20, acknowledged: 20, refused: 0, lost: 20);
    assert_contains!(outcome.stderr => "20 acknowledged frames are not in the stream OBS", "the stream was deleted");
}

/// A server that stores a stream in memory deletes it when it restarts.
#[test]
fn stream_in_memory_is_created_again() {
    nats!();
    let mut server = Server::new("");
    let port = free_udp_port();
    let keys = "storage = \"memory\"\ntimeout = \"500 ms\"";
    let sender = Daq::new(&udp_config(&server, port, keys));
    let mut sending = sender.spawn(&[]);
    sending.wait_ready();
    let receiver = Daq::new(&source_config(server.port, ""));
    let mut receiving = receiver.spawn(&[]);
    receiving.wait_ready();
    send(port, 0..20);
    receiving.wait_count("sources.rx.delivered", 20);
    server.kill();
    server.start();
    server.wait();
    send(port, 20..40);
    sending.wait_count("sinks.tx.acknowledged", 40);
    receiving.wait_count("sources.rx.delivered", 40);
    let received = receiving.stop().ok();
    assert_counts!(received, "sources.rx" => expected: 40, delivered: 40, epochs: 1);
    assert_contains!(received.stderr => "the stream was deleted and created again");
    let outcome = sending.stop();
    assert_counts!(outcome, "sinks.tx" => published: 40, acknowledged: 40, refused: 0);
    assert_contains!(outcome.stderr => "the stream OBS was deleted; daq has created it again");
}

/// Frames with equal numbers, which a source of other programs can deliver, are different messages.
#[test]
fn frames_with_equal_numbers_are_all_stored() {
    nats!();
    let python = python!("nats");
    let server = Server::new("");
    let body = "\
await js.add_stream(name='OBS', subjects=['obs.>'])
for n in range(10): await js.publish('obs.a', bytes([n]) * 64, headers={'Daq-Sequence': str(n % 2)})";
    let _ = python.run(&script(body), &[server.port.to_string()]);
    let relay = format!(
        "[sink.disk]\ndriver = \"nats\"\ninput = \"received\"\nguarantee = true\nservers = \"127.0.0.1:{}\"\n\
         stream = \"RELAY\"\nsubject = \"relay.a\"\n",
        server.port
    );
    let config = source_config(server.port, "");
    let (source, _) = config.split_once("[sink.disk]").unwrap();
    let daq = Daq::new(&(source.to_owned() + &relay));
    let mut live = daq.spawn(&[]);
    live.wait_count("sinks.disk.acknowledged", 10);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sinks.disk" => acknowledged: 10, deduplicated: 0, lost: 0);
    let body = "print((await js.stream_info('RELAY')).state.messages)";
    let count = python.run(&script(body), &[server.port.to_string()]);
    assert_eq!(count.trim(), "10");
}

#[test]
fn limit_of_the_account_blocks_the_sink() {
    nats!();
    let accounts = "accounts { A { jetstream { max_file: 100000, max_mem: 100000 }, users: [ { user: daq, password: x } ] } }";
    let server = Server::new(accounts);
    let keys = "login = { user = \"daq\", password_file = \"password\" }\nwindow = 20\ntimeout = \"300 ms\"";
    let daq = Daq::new(&sink_config(server.port, "events", keys));
    daq.write("password", "x\n");
    let live = daq.spawn(&["--drain", "1 s"]);
    daq_testkit::wait_until("the limit", || live.stderr().contains("has no space left"));
    assert_contains!(live.stderr() => "raise the limits of the server's account", "blocking the ring");
    let outcome = live.stop();
    assert_ne!(outcome.code, 0, "{}", outcome.stderr);
}

#[test]
fn two_sources_cannot_share_a_consumer() {
    nats!();
    let config = source_config(4222, "");
    let (_, rest) = config.split_once("[source.rx]").unwrap();
    let (source, _) = rest.split_once("[ring.received]").unwrap();
    let daq = Daq::new(&format!("{config}\n[source.second]{source}"));
    let outcome = daq.cli(&["check", "daq.toml"]);
    assert_eq!(outcome.code, CONFIGURATION);
    assert_contains!(outcome.stdout + &outcome.stderr => "consumer rx of stream OBS on the NATS server 127.0.0.1:4222");
}
