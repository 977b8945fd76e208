//! Tests frames of one packet that arrive on several sockets, as from a digitiser that sends to several multicast
//! groups. Also tests restarts of such a sender.

use daq_drivers::sys::send::Sender;
use daq_testkit::loopback::{self, Queue};
use daq_testkit::network::{payload, recording};
use daq_testkit::{Daq, assert_contains, assert_counts, files, free_udp_port, wait_until};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

const PAYLOAD: usize = 512;
/// Maximum number of packets in flight.
const BURST: u64 = 512;

struct Stream {
    flows: Vec<(u16, Sender)>,
    step: u64,
}

impl Stream {
    /// Sends the packets `numbers`, each through the next socket, and returns their payload. `run` makes the payload of
    /// each run different.
    fn send(&mut self, run: u64, numbers: std::ops::Range<u64>) -> Vec<u8> {
        let mut sent = Vec::new();
        let count = self.flows.len() as u64;
        let start = numbers.start;
        for n in numbers {
            let mut packet = (n * self.step).to_be_bytes().to_vec();
            packet.resize(8 + PAYLOAD, 0);
            payload(run, n, &mut packet[8..]);
            let flow = usize::try_from(n % count).unwrap();
            self.flows[flow].1.send(&packet).unwrap();
            sent.extend_from_slice(&packet[8..]);
            // The first packet of each socket is sent alone, so that the first number of a run is certain.
            if n < start + count || n % BURST == 0 {
                self.drain();
            }
        }
        self.drain();
        sent
    }

    fn drain(&self) {
        for (port, _) in &self.flows {
            Queue::all_drained(*port, 1);
        }
    }
}

fn config(ports: &[u16], step: u64, more: &str) -> String {
    let listen: Vec<_> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = {listen:?}\n{more}\n\
         [source.adc.format]\nkind = \"raw\"\nheader = 8\npayload = {PAYLOAD}\n\
         sequence = {{ offset = 0, bytes = 8, step = {step} }}\n\
         [ring.raw]\nmemory = \"host\"\nslot = {PAYLOAD}\nslots = 65536\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\nbuffer = \"256 KiB\"\n"
    )
}

#[test]
fn frames_on_eight_sockets_across_restart_lose_nothing() {
    const PACKETS: u64 = 4096;
    for (sockets, step) in [(8, 1), (8, 2), (1, 2)] {
        let ports: Vec<_> = (0..sockets).map(|_| free_udp_port()).collect();
        let daq = Daq::new(&config(&ports, step, ""));
        let mut live = daq.spawn(&[]);
        live.wait_ready();
        loopback::stay();
        let flows = ports.iter().map(|port| {
            let to = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
            (*port, Sender::open(to, false, None).unwrap())
        });
        let mut stream = Stream {
            flows: flows.collect(),
            step,
        };
        let mut sent = stream.send(1, 1000..1000 + PACKETS);
        live.wait_count("sources.adc.expected", PACKETS);
        // The window is longer than this run. So lower numbers count as a restart only after one second of silence.
        wait_until("silence", || {
            let last = live.report()["sources"]["adc"]["last_packet_ns"].as_u64();
            let last = last.map(|ns| std::time::UNIX_EPOCH + Duration::from_nanos(ns));
            last.and_then(|last| last.elapsed().ok())
                .is_some_and(|silent| silent > Duration::from_millis(1500))
        });
        sent.extend(stream.send(2, 0..PACKETS));
        live.wait_count("sources.adc.expected", 2 * PACKETS);
        let outcome = live.stop().ok();
        assert_counts!(outcome, "sources.adc" =>
            expected: 2 * PACKETS, delivered: 2 * PACKETS, duplicates: 0, rejected: 0, epochs: 2;
            "{sockets} sockets, step {step}"
        );
        assert_eq!(outcome.report["sources"]["adc"]["lost"], json!({}));
        let file = recording(&daq, "disk");
        assert!(
            file.data == sent,
            "{sockets} sockets: the file contains wrong bytes"
        );
        assert!(file.missing.is_empty() && file.frames == 0, "{file:?}");
        let meta = files(&daq.path("out"), ".sigmf-meta");
        let meta = meta.first().cloned().unwrap_or_else(|| daq.path("out"));
        let meta: Value = serde_json::from_slice(&std::fs::read(meta).unwrap()).unwrap();
        let epochs = meta["captures"].as_array().unwrap();
        assert_eq!(epochs.len(), 2, "{epochs:?}");
        assert!(
            epochs
                .iter()
                .all(|epoch| epoch["core:datetime"].is_string()),
            "{epochs:?}"
        );
    }
}

/// Packets of one socket arrive far behind the window. They must count as late or lost, and must not start an epoch.
#[test]
fn socket_lag_beyond_window_opens_no_epoch() {
    const PACKETS: u64 = 2000;
    let ports: Vec<_> = (0..2).map(|_| free_udp_port()).collect();
    let daq = Daq::new(&config(&ports, 1, "window = 8"));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    loopback::stay();
    let mut flows: Vec<_> = ports
        .iter()
        .map(|port| Sender::open((Ipv4Addr::LOCALHOST, *port).into(), false, None).unwrap())
        .collect();
    let mut send = |flow: usize, numbers: &mut dyn Iterator<Item = u64>| {
        for n in numbers {
            let mut packet = n.to_be_bytes().to_vec();
            packet.resize(8 + PAYLOAD, 1);
            flows[flow].send(&packet).unwrap();
        }
        for port in &ports {
            Queue::all_drained(*port, 1);
        }
    };
    for part in 0..4 {
        let packets = part * PACKETS..(part + 1) * PACKETS;
        send(0, &mut packets.clone().step_by(2));
        live.wait_count("sources.adc.expected", packets.end - 1);
        send(1, &mut packets.skip(1).step_by(2));
    }
    let outcome = live.stop().ok();
    let n = |key: &str| outcome.count(&format!("sources.adc.{key}"));
    let report = &outcome.report;
    assert_eq!(n("epochs"), 1, "{report:#}");
    assert!(
        (4 * PACKETS - 1..=4 * PACKETS).contains(&n("expected")),
        "{report:#}"
    );
    let lost = report["sources"]["adc"]["lost"].as_object().unwrap();
    let lost: u64 = lost.values().filter_map(Value::as_u64).sum();
    assert_eq!(n("expected"), n("delivered") + lost, "{report:#}");
    assert!(n("delivered") >= 2 * PACKETS, "{report:#}");
}

#[test]
fn small_window_and_short_counter_are_reported_by_check_and_plan() {
    let ports: Vec<_> = (0..8).map(|_| free_udp_port()).collect();
    let daq = Daq::new(&config(&ports, 1, "window = 8"));
    let done = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok();
    assert_contains!(done.stderr => "a window of 8 frames holds 8 packets");
    let text = config(&ports, 1, "");
    let daq = Daq::new(&text);
    let done = daq.cli(&["plan", "--no-hardware", "daq.toml"]).ok();
    assert!(!done.stderr.contains("a window of"), "{}", done.stderr);
    let note = "frames: the window holds 4 batches of";
    assert!(done.stdout.contains(note), "{}", done.stdout);
    for (bits, packets) in [(4, 16), (7, 128)] {
        let short = format!("offset = 0, bytes = 8, bits = {bits}");
        let daq = Daq::new(&text.replace("offset = 0, bytes = 8", &short));
        for command in ["check", "plan"] {
            let done = daq.cli(&[command, "--no-hardware", "daq.toml"]).ok();
            let loss = format!("a loss of {packets} packets in a row");
            assert!(done.stderr.contains(&loss), "{command}: {}", done.stderr);
        }
    }
}
