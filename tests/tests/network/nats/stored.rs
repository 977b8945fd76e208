//! What the sink stores, as an independent client reads it.

use super::server::{Server, expected, nats, script, sink_config, stored};
use super::streams::{send, udp_config};
use daq_testkit::{Daq, assert_contains, assert_counts, free_udp_port, hex, python};

#[test]
fn messages_contain_frames_and_their_metadata() {
    nats!();
    let python = python!("nats");
    let server = Server::new("");
    let keys = "max_age = \"1 h\"\nmax_messages = 5000\nsubjects = [\"obs.>\"]";
    let config =
        sink_config(server.port, "events", keys).replace("obs.decisions", "obs.{run}.{ring}");
    let daq = Daq::new(&config);
    let outcome = daq.run(&["--set", "source.adc.frames=300"]).ok();
    assert_counts!(outcome, "sinks.tx" => frames: 300, published: 300, acknowledged: 300, refused: 0, lost: 0);
    let messages = stored(&python, server.port);
    assert_eq!(messages.len(), 300);
    let mut data = Vec::new();
    for (n, message) in messages.iter().enumerate() {
        let header = |name: &str| {
            message["headers"][name]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let run = header("Daq-Run");
        let (run_name, sink) = run.split_once('.').unwrap();
        assert_eq!(sink, "tx");
        assert_eq!(message["subject"], format!("obs.{run_name}.events"));
        assert_eq!(header("Nats-Msg-Id"), format!("{run}:{n}"));
        assert_eq!(
            [header("Daq-Number"), header("Daq-Sequence")],
            [n.to_string(), n.to_string()]
        );
        assert_eq!(header("Daq-Length"), "64");
        let layout: serde_json::Value = serde_json::from_str(&header("Daq-Layout")).unwrap();
        assert_eq!(
            (&layout["type"], &layout["points"]),
            (&"int16".into(), &32.into())
        );
        data.push(message["data"].as_str().unwrap().to_owned());
    }
    let all: String = data.concat();
    assert_eq!(all, hex(&expected(0, 300, 64)));
}

#[test]
fn large_frames_become_several_messages() {
    nats!();
    let python = python!("nats");
    let server = Server::new("max_payload: 65536");
    let config = sink_config(server.port, "events", "window = 4")
        .replace("64 B", "200 KiB")
        .replace("slots = 1024", "slots = 8");
    let outcome = Daq::new(&config)
        .run(&["--set", "source.adc.frames=5"])
        .ok();
    assert_counts!(outcome, "sinks.tx" => frames: 5, published: 5, acknowledged: 5, bytes: 5 * 200 * 1024);
    let messages = stored(&python, server.port);
    let mut frames = vec![String::new(); 5];
    for message in &messages {
        let header = |name: &str| message["headers"][name].as_str().unwrap().to_owned();
        let frame: usize = header("Daq-Sequence").parse().unwrap();
        let (index, count) = header("Daq-Chunk")
            .split_once('/')
            .map(|(i, n)| (i.to_owned(), n.to_owned()))
            .unwrap();
        assert_eq!(
            (count.as_str(), header("Daq-Length").as_str()),
            ("4", "204800")
        );
        assert!(header("Nats-Msg-Id").ends_with(&format!(":{frame}:{index}")));
        assert_eq!(
            header("Daq-Offset").parse::<usize>().unwrap() * 2,
            frames[frame].len()
        );
        frames[frame] += message["data"].as_str().unwrap();
    }
    assert!(frames.iter().all(|frame| frame.len() == 2 * 204_800));
}

/// Another program deletes all messages after the server has acknowledged them.
#[test]
fn acknowledged_frames_that_the_stream_does_not_hold_are_lost() {
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
        &script("await js.purge_stream('OBS')"),
        &[server.port.to_string()],
    );
    let outcome = live.stop();
    assert_counts!(outcome, "sinks.tx" => published: 20, acknowledged: 20, refused: 0, lost: 20);
    assert_contains!(
        outcome.stderr =>
        "20 acknowledged frames are not in the stream OBS",
        "it holds 0 of 20 messages",
        "raise the limits of the stream"
    );
}
