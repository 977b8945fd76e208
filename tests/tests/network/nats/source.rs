//! What the source receives: frames of a sink, and messages that nats-py publishes.

use super::server::{Server, expected, nats, script, sink_config, source_config};
use daq_testkit::network::recording;
use daq_testkit::{Daq, assert_contains, assert_counts, python};

/// Publishes `frames` frames with the sink.
fn publish(server: &Server, frames: u64, keys: &str) {
    let set = format!("source.adc.frames={frames}");
    let outcome = Daq::new(&sink_config(server.port, "events", keys))
        .run(&["--set", &set])
        .ok();
    assert_counts!(outcome, "sinks.tx" => acknowledged: frames);
}

#[test]
fn source_continues_where_it_stopped() {
    nats!();
    let server = Server::new("");
    publish(&server, 500, "");
    let daq = Daq::new(&source_config(server.port, ""));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.rx.delivered", 500);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.rx" => expected: 500, delivered: 500, epochs: 1, counts.messages: 500);
    assert!(recording(&daq, "disk").data == expected(0, 500, 64));
    // Another run of the sender is another epoch. The restarted source receives only its frames.
    publish(&server, 200, "");
    let second = Daq::new(&source_config(server.port, ""));
    let mut live = second.spawn(&[]);
    live.wait_count("sources.rx.delivered", 200);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.rx" => expected: 200, delivered: 200, epochs: 1, counts.messages: 200);
    assert!(recording(&second, "disk").data == expected(0, 200, 64));
}

#[test]
fn frames_of_several_messages_are_joined() {
    nats!();
    let server = Server::new("max_payload: 65536");
    let large = |config: String| {
        config
            .replace("64 B", "200 KiB")
            .replace("slots = 1024", "slots = 8")
            .replace("slots = 256", "slots = 8")
    };
    let daq = Daq::new(&large(sink_config(server.port, "events", "")));
    let _ = daq.run(&["--set", "source.adc.frames=30"]).ok();
    let daq = Daq::new(&large(source_config(server.port, "")));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.rx.delivered", 30);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.rx" => expected: 30, delivered: 30, counts.messages: 120, counts.duplicates: 0);
    assert!(recording(&daq, "disk").data == expected(0, 30, 200 << 10));
}

#[test]
fn expired_messages_are_named_losses() {
    nats!();
    let python = python!("nats");
    let server = Server::new("");
    let limit = "max_messages = 100";
    publish(&server, 100, limit);
    let daq = Daq::new(&source_config(server.port, ""));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.rx.delivered", 100);
    let _ = live.stop().ok();
    // While the source is away, a sender publishes 130 frames. The stream keeps 100 of them, and a person deletes 10.
    publish(&server, 130, limit);
    let body = "for n in range(150, 160): await js.delete_msg('OBS', n)";
    let _ = python.run(&script(body), &[server.port.to_string()]);
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.rx.expected", 130);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.rx" => expected: 130, delivered: 90, lost.expired: 40, lost.wire_gap: 0);
}

#[test]
fn missing_part_loses_its_frame() {
    nats!();
    let python = python!("nats");
    let server = Server::new("max_payload: 65536");
    let large = |config: String| {
        config
            .replace("64 B", "200 KiB")
            .replace("slots = 1024", "slots = 8")
            .replace("slots = 256", "slots = 8")
    };
    let daq = Daq::new(&large(sink_config(server.port, "events", "window = 4")));
    let _ = daq.run(&["--set", "source.adc.frames=20"]).ok();
    // The second message of frame 2.
    let _ = python.run(
        &script("await js.delete_msg('OBS', 10)"),
        &[server.port.to_string()],
    );
    let daq = Daq::new(&large(source_config(server.port, "")));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.rx.expected", 20);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.rx" => expected: 20, delivered: 19, lost.expired: 1, counts.incomplete: 1);
    let whole = [expected(0, 2, 200 << 10), expected(3, 17, 200 << 10)].concat();
    assert!(recording(&daq, "disk").data == whole);
}

#[test]
fn messages_of_other_programs_are_received() {
    nats!();
    let python = python!("nats");
    let server = Server::new("");
    let body = "\
await js.add_stream(name='OBS', subjects=['obs.>'])
for n in range(50): await js.publish('obs.state', bytes([n % 32]) * (2 * (n % 32) + 2), headers={'Daq-Kept-gain': str(n * 3)})
await js.publish('obs.state', bytes(100))
await js.publish('obs.other', b'not for this source')
await js.publish('obs.state', b'x', headers={'Daq-Clock': 'sundial'})
await js.publish('obs.state', b'last', headers={'Daq-Sequence': '1000', 'Daq-Time': '5', 'Daq-Clock': 'host'})";
    let _ = python.run(&script(body), &[server.port.to_string()]);
    let daq = Daq::new(&source_config(
        server.port,
        "subject = \"obs.state\"\nkeep = [\"gain\"]",
    ));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.rx.delivered", 51);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.rx" => expected: 51, delivered: 51, counts.messages: 53, counts.invalid: 2, rejected: 2);
    assert_contains!(outcome.stderr => "its frame has 100 bytes");
    let data: Vec<u8> = (0..50_u8)
        .flat_map(|n| vec![n % 32; 2 * usize::from(n % 32) + 2])
        .chain(*b"last")
        .collect();
    assert_eq!(daq.data("out"), data);
}

/// A source whose samples or slots differ from those of the sender fails at its first frame, and uses up no message.
#[test]
fn other_layout_than_that_of_the_sender_is_reported() {
    nats!();
    let server = Server::new("");
    let sink = sink_config(server.port, "events", "")
        .replace("channels = 1", "channels = 4, rate = \"2 MHz\"");
    let _ = Daq::new(&sink).run(&["--set", "source.adc.frames=20"]).ok();
    let right = source_config(server.port, "").replace("channels = 1", "channels = 4");
    for (wrong, part) in [
        (
            right.replace("int16", "float32"),
            "`type` is \"int16\", not \"float32\"",
        ),
        (
            right.replace("channels = 4", "channels = 2"),
            "`channels` is 4, not 2",
        ),
        (right.replace("64 B", "32 B"), "set slot = \"64 B\""),
        (
            right.replace("channels = 4", "channels = 4, rate = \"1 MHz\""),
            "`rate` is 2000000 Hz, not 1000000 Hz",
        ),
    ] {
        let outcome = Daq::new(&wrong).run(&["--for", "30 s"]);
        assert_ne!(outcome.code, 0, "{}", outcome.stderr);
        assert_contains!(outcome.stderr => "message 1 of the NATS stream OBS", part);
        assert_counts!(outcome, "sources.rx" => delivered: 0, counts.invalid: 0);
    }
    let daq = Daq::new(&right);
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.rx.delivered", 20);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.rx" => expected: 20, delivered: 20, counts.invalid: 0);
    assert_eq!(daq.data("out"), expected(0, 20, 64));
}
