//! Tests streams over TCP through a relay that splits, stalls and cuts connections, and with foreign peers at the port.

use super::streams::{FILE, PACKETS_PER_FRAME, TCP, counter, data, end, far, near, paced};
use daq_testkit::{Random, Relay, assert_contains, assert_counts, free_tcp_port, ledger};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

/// Version of the handshake.
const VERSION: u8 = 3;

/// Number of frames of the tests with interruptions. A longer test sets the environment variable.
fn frames() -> u64 {
    let frames = std::env::var("DAQ_TEST_FRAMES");
    frames.map_or(20_000, |frames| frames.parse().unwrap())
}

fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Every frame arrives exactly once through cut connections, at any position in the data.
#[test]
fn cut_connections_lose_and_repeat_nothing() {
    let (port, frames) = (free_tcp_port(), frames());
    let keys = format!("{TCP}\nconnections = 2");
    let receiver = far(port, &keys, FILE);
    let mut live = receiver.spawn(&[]);
    live.wait_ready();
    let relay = Relay::to(address(port));
    relay.split(3000);
    let mut random = Random(19);
    let sender = near(relay.address().port(), frames, &keys, "");
    let here = sender.spawn(&[]);
    let bytes = frames * 600;
    for cut in 1..=6 {
        relay.cut_after(1 + random.below(bytes / 10));
        live.wait_count("sources.link.counts.links", cut + 1);
    }
    let sent = here.wait().ok();
    let came = end(live, frames);
    assert_counts!(sent, "sinks.far" => frames: frames, dropped: 0);
    assert!(sent.count("sinks.far.connections") > 6, "{}", sent.stderr);
    // The end of an interruption is logged even if it was short.
    assert_contains!(sent.stderr => "after an interruption of");
    assert_counts!(came, "sources.link" => expected: frames, delivered: frames);
    assert_eq!(ledger::lost(&came.report, "link"), 0);
    assert!(data(&receiver) == counter(0..frames * PACKETS_PER_FRAME, |_| false));
}

/// A connection on which nothing arrives any more, without an end, is detected and replaced.
#[test]
fn half_open_connection_is_replaced() {
    let (port, frames) = (free_tcp_port(), 400);
    let receiver = far(port, TCP, FILE);
    let mut live = receiver.spawn(&[]);
    live.wait_ready();
    let relay = Relay::to(address(port));
    let sender = paced(relay.address().port(), frames, "2 Mbit/s", TCP, "");
    let mut here = sender.spawn(&[]);
    live.wait_count("sources.link.delivered", 20);
    relay.stall(true);
    here.wait_log("the connection is lost: the receiver has acknowledged nothing");
    relay.stall(false);
    let sent = here.wait().ok();
    let came = end(live, frames);
    assert_counts!(sent, "sinks.far" => frames: frames, dropped: 0);
    assert_eq!(ledger::lost(&came.report, "link"), 0);
    assert!(data(&receiver) == counter(0..frames * PACKETS_PER_FRAME, |_| false));
}

/// Foreign peers that send garbage, parts of greetings or nothing do not disturb a stream, and do not delay a sender.
#[test]
fn foreign_peers_do_not_disturb_stream() {
    let (port, frames) = (free_tcp_port(), 2000);
    let receiver = far(port, TCP, FILE);
    let mut live = receiver.spawn(&[]);
    live.wait_ready();
    let mut peers = Vec::new();
    let mut greet = |bytes: &[u8]| {
        let mut peer = TcpStream::connect(address(port)).unwrap();
        peer.write_all(bytes).unwrap();
        peers.push(peer);
    };
    greet(b"");
    greet(b"GET / HTTP/1.1\r\n\r\n");
    // A greeting that does not end, and the greeting of a further connection with an unknown key.
    let header = |version: u8, kind: u8, bytes: u32| {
        let magic = 0x6371_6164_u32.to_le_bytes();
        [&magic[..], &[version, 0, kind, 0], &bytes.to_le_bytes()].concat()
    };
    greet(&header(VERSION, 1, 500));
    greet(&[header(VERSION, 6, 12), vec![7; 12]].concat());
    greet(&header(VERSION - 1, 1, 500));
    let sent = near(port, frames, TCP, "").run(&[]).ok();
    let came = end(live, frames);
    assert_counts!(sent, "sinks.far" => frames: frames, connections: 1);
    assert_counts!(came, "sources.link" => expected: frames, delivered: frames);
    assert!(data(&receiver) == counter(0..frames * PACKETS_PER_FRAME, |_| false));
    // The connections of foreign peers that are not from daq have ended.
    for peer in [1, 3] {
        assert!(!matches!(peers[peer].read(&mut [0; 64]), Ok(1..)));
    }
    // A peer with another version gets a rejection of the version of this host.
    let mut rejection = [0; 12];
    peers[4].read_exact(&mut rejection).unwrap();
    assert_eq!((rejection[4], rejection[6]), (VERSION, 3));
    assert_contains!(came.stderr => "the peer's protocol version is");
}

#[test]
fn different_transports_and_connections_are_reported() {
    let port = free_tcp_port();
    let receiver = far(port, TCP, FILE);
    let mut live = receiver.spawn(&[]);
    live.wait_ready();
    let cases = [
        (
            "transport = \"rdma\"\nnics = [\"emulated\"]",
            "set the same transport on both hosts",
        ),
        (
            "transport = \"tcp\"\nconnections = 2",
            "set the same number of `connections` on both hosts",
        ),
    ];
    for (keys, expected) in cases {
        let sender = near(port, 10, keys, "");
        let mut here = sender.spawn(&[]);
        here.wait_log(expected);
        live.wait_log(expected);
        assert_contains!(here.stop().stderr => expected);
    }
    assert_eq!(live.stop().ok().count("sources.link.delivered"), 0);
}
