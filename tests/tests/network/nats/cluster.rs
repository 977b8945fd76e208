//! A cluster of three servers on loopback, one of which is killed.

use super::server::{Server, nats, sink_config, source_config, stored};
use daq_testkit::{Daq, assert_counts, free_tcp_port, python, wait_for};
use std::collections::BTreeSet;

/// Starts three servers, and waits until they store a replicated stream.
fn cluster() -> Vec<Server> {
    let routes: Vec<u16> = (0..3).map(|_| free_tcp_port()).collect();
    let urls: Vec<_> = routes
        .iter()
        .map(|port| format!("\"nats-route://127.0.0.1:{port}\""))
        .collect();
    let mut servers: Vec<_> = routes
        .iter()
        .map(|port| {
            let extra = format!(
                "cluster {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{}], no_advertise: true }}",
                urls.join(", ")
            );
            Server::idle(free_tcp_port(), &extra)
        })
        .collect();
    servers.iter_mut().for_each(Server::start);
    servers.iter_mut().for_each(Server::wait);
    servers
}

#[test]
fn cluster_survives_one_killed_server() {
    nats!();
    let python = python!("nats");
    let mut servers = cluster();
    let names: Vec<_> = servers
        .iter()
        .map(|server| format!("\"127.0.0.1:{}\"", server.port))
        .collect();
    let all = |config: String| {
        let one = format!("servers = \"127.0.0.1:{}\"", servers[0].port);
        config.replace(&one, &format!("servers = [{}]", names.join(", ")))
    };
    // The servers elect a leader before they can create the stream.
    let sender = Daq::new(&all(sink_config(
        servers[0].port,
        "events",
        "replicas = 3\ntimeout = \"2 s\"",
    )));
    wait_for("the cluster to create the stream", || {
        let outcome = sender.run(&["--set", "source.adc.frames=1"]);
        (outcome.code == 0).then_some(())
    });
    let receiver = Daq::new(&all(source_config(servers[0].port, "")));
    let mut receiving = wait_for("the cluster to create the consumer", || {
        let mut live = receiver.spawn(&[]);
        daq_testkit::wait_until("start", || {
            !live.is_running() || live.stderr().contains("serving http://")
        });
        live.is_running().then_some(live)
    });
    receiving.wait_count("sources.rx.delivered", 1);
    let frames = 3000;
    let set = format!("source.adc.frames={frames}");
    let mut sending = sender.spawn(&["--set", &set]);
    sending.wait_count("sinks.tx.acknowledged", 800);
    servers[0].kill();
    let outcome = sending.wait().ok();
    assert_counts!(outcome, "sinks.tx" => frames: frames, acknowledged: frames, refused: 0, lost: 0);
    receiving.wait_count("sources.rx.delivered", frames + 1);
    let received = receiving.stop().ok();
    assert_counts!(received, "sources.rx" => expected: frames + 1, delivered: frames + 1);
    let messages = stored(&python, servers[1].port);
    let ids: BTreeSet<_> = messages
        .iter()
        .map(|message| message["headers"]["Nats-Msg-Id"].as_str().unwrap())
        .collect();
    assert_eq!(
        (messages.len() as u64, ids.len() as u64),
        (frames + 1, frames + 1)
    );
}
