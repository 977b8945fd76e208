//! Kills the server while frames are published and received.
//!
//! `DAQ_NATS_FRAMES` and `DAQ_NATS_KILLS` set the number of frames and of kills; the defaults suit continuous integration.

use super::server::{Server, expected, nats, sink_config, source_config, stored};
use daq_testkit::network::recording;
use daq_testkit::{Daq, Relay, assert_counts, python, wait_for};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[test]
fn killed_server_loses_and_duplicates_nothing() {
    nats!();
    let python = python!("nats");
    let frames = setting("DAQ_NATS_FRAMES", 12_000);
    let kills = setting("DAQ_NATS_KILLS", 6);
    let mut server = Server::new("");
    let sender = Daq::new(&sink_config(server.port, "events", "timeout = \"2 s\""));
    let count = format!("source.adc.frames={frames}");
    // The sender must not be finished before the last kill.
    let pace = format!("source.adc.pace={} bit/s", frames * 64 * 8 / (kills + 2));
    let mut sending = sender.spawn(&["--set", &count, "--set", &pace]);
    sending.wait_count("sinks.tx.acknowledged", 1);
    let receiver = Daq::new(&source_config(server.port, ""));
    let mut receiving = receiver.spawn(&[]);
    receiving.wait_ready();
    for kill in 1..=kills {
        // Each part of the frames has its kill; frames keep arriving while the server is down.
        sending.wait_count("sinks.tx.acknowledged", frames * kill / (kills + 2));
        server.kill();
        server.start();
        server.wait();
    }
    let outcome = sending.wait().ok();
    assert_counts!(outcome, "sinks.tx" =>
        frames: frames, published: frames, acknowledged: frames, refused: 0, lost: 0, dropped: 0
    );
    assert!(
        outcome.count("sinks.tx.connections") > kills,
        "{:#}",
        outcome.report
    );
    let messages = stored(&python, server.port);
    let ids: BTreeSet<_> = messages
        .iter()
        .map(|message| message["headers"]["Nats-Msg-Id"].as_str().unwrap())
        .collect();
    assert_eq!(
        (messages.len() as u64, ids.len() as u64),
        (frames, frames),
        "stored, and different ids"
    );
    receiving.wait_count("sources.rx.delivered", frames);
    let received = receiving.stop().ok();
    assert_counts!(received, "sources.rx" => expected: frames, delivered: frames, epochs: 1);
    assert!(
        recording(&receiver, "disk").data == expected(0, frames, 64),
        "the files must contain every frame once, in order"
    );
    println!(
        "{frames} frames, {kills} kills: repeated {}, deduplicated {}, received again {}",
        outcome.count("sinks.tx.repeated"),
        outcome.count("sinks.tx.deduplicated"),
        received.count("sources.rx.counts.duplicates")
    );
}

#[test]
fn interrupted_receiver_loses_nothing() {
    nats!();
    let server = Server::new("");
    let sender = Daq::new(&sink_config(server.port, "events", ""));
    let _ = sender.run(&["--set", "source.adc.frames=4000"]).ok();
    let relay = Relay::to((Ipv4Addr::LOCALHOST, server.port).into());
    let receiver = Daq::new(&source_config(relay.address().port(), ""));
    relay.cut_after(400_000);
    let mut live = receiver.spawn(&[]);
    wait_for("the second connection", || {
        (relay.connections() > 1).then_some(())
    });
    relay.cut_after(400_000);
    live.wait_count("sources.rx.delivered", 4000);
    assert!(
        relay.connections() > 2,
        "{} connections",
        relay.connections()
    );
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.rx" => expected: 4000, delivered: 4000, epochs: 1, counts.late: 0);
    assert!(recording(&receiver, "disk").data == expected(0, 4000, 64));
}

#[test]
fn killed_receiver_continues() {
    nats!();
    let server = Server::new("");
    let sender = Daq::new(&sink_config(server.port, "events", ""));
    let _ = sender.run(&["--set", "source.adc.frames=4000"]).ok();
    let receiver = Daq::new(&source_config(server.port, "window = 64"));
    let mut live = receiver.spawn(&[]);
    live.wait_count("sources.rx.delivered", 500);
    let _ = live.kill();
    let second = Daq::new(&source_config(server.port, "window = 64"));
    let mut live = second.spawn(&[]);
    // Messages that the killed process has not acknowledged arrive again; acknowledged ones do not, and none is lost.
    let idle = wait_for("all frames", || {
        let report = live.report();
        let delivered = daq_testkit::ledger::count(&report["sources"]["rx"], "delivered");
        let last = daq_testkit::ledger::count(&report["sources"]["rx"], "expected");
        (delivered > 0 && server_is_drained(&server)).then_some((delivered, last))
    });
    assert!(idle.0 <= 3500, "{idle:?}");
    let outcome = live.stop().ok();
    assert_eq!(
        outcome.report["sources"]["rx"]["lost"],
        serde_json::json!({})
    );
    let data = recording(&second, "disk").data;
    assert!(data.ends_with(&expected(3000, 1000, 64)));
}

/// Whether the consumer `rx` has nothing pending.
fn server_is_drained(server: &Server) -> bool {
    let Ok(python) = daq_testkit::Python::with(&["nats"]) else {
        return false;
    };
    let body = "i = await js.consumer_info('OBS', 'rx')\nprint(i.num_pending + i.num_ack_pending)";
    python
        .run(&super::server::script(body), &[server.port.to_string()])
        .trim()
        == "0"
}
