//! Tests several senders, rejected senders and silent senders, and their counters and log lines.

use crate::stream::{self, PACKETS_PER_FRAME, listening};
use daq_testkit::loopback::Queue;
use daq_testkit::{Daq, Live, assert_contains, free_udp_port, wait_for};
use serde_json::Value;
use std::net::UdpSocket;

/// Payload bytes per packet.
const PAYLOAD: usize = 256;

/// Returns the source `adc` with `keys`, which must set the address, and a sink that discards frames.
fn config(keys: &str) -> String {
    let keys = format!("driver = \"udp\"\n{keys}");
    stream::config(&keys, PAYLOAD, 512, "driver = \"null\"")
}

fn packet(n: u64) -> Vec<u8> {
    stream::packet(n, PAYLOAD)
}

/// Returns a socket that is bound to a loopback address.
fn sender(address: &str) -> UdpSocket {
    UdpSocket::bind((address, 0)).unwrap()
}

fn status(live: &mut Live) -> Value {
    serde_json::from_str(&live.get("/status").body).unwrap()
}

#[test]
fn equal_sequences_from_two_senders_are_logged_with_both() {
    const PACKETS: u64 = 3840;
    let ports = [free_udp_port(), free_udp_port()];
    let [a, b] = ports;
    let daq = Daq::new(&config(&format!(
        "listen = [\"127.0.0.1:{a}\", \"127.0.0.1:{b}\"]"
    )));
    let mut live = listening(&daq);
    let modules = [sender("127.0.0.11"), sender("127.0.0.12")];
    for n in 0..PACKETS {
        for (module, port) in modules.iter().zip(ports) {
            module.send_to(&packet(n), ("127.0.0.1", port)).unwrap();
        }
        if n % 16 == 15 {
            Queue::drained(a);
            Queue::drained(b);
        }
    }
    live.wait_count("sources.adc.expected", PACKETS);
    live.wait_count("sources.adc.duplicates", PACKETS);
    live.wait_log("dropped as duplicates");
    let loss = status(&mut live)["loss"]["adc"].clone();
    assert_eq!(loss["is_loss"], true, "{loss}");
    let outcome = live.stop().ok();
    let log = &outcome.stderr;
    let line = log
        .lines()
        .find(|line| line.contains("dropped as duplicates"));
    for module in &modules {
        let name = module.local_addr().unwrap().to_string();
        assert!(line.unwrap().contains(&name), "{name} is not in {line:?}");
    }
    assert!(line.unwrap().contains("`from`"), "{line:?}");
    let count = log.matches("dropped as duplicates").count();
    assert_eq!(count, 1, "{log}");
    assert_eq!(outcome.count("sources.adc.duplicates"), PACKETS);
    let second = log
        .lines()
        .find(|line| line.contains("arrive from more than one address"));
    assert!(second.is_some_and(|line| line.contains("WARN")), "{log}");
}

#[test]
fn packets_all_rejected_are_logged_with_reason_and_fix() {
    let port = free_udp_port();
    let daq = Daq::new(&config(&format!("listen = \"127.0.0.1:{port}\"")));
    let mut live = listening(&daq);
    let loss = status(&mut live)["loss"]["adc"]["text"].clone();
    assert_eq!(loss, "no data yet");
    let module = sender("127.0.0.1");
    for n in 0..50 {
        let mut long = packet(n);
        long.push(0);
        module.send_to(&long, ("127.0.0.1", port)).unwrap();
    }
    module.send_to(&[1], ("127.0.0.1", port)).unwrap();
    live.wait_count("sources.adc.rejected", 51);
    live.wait_log("all arriving packets are rejected");
    let report = live.report();
    let reasons = &report["sources"]["adc"]["rejected_by"];
    let sum: u64 = reasons
        .as_object()
        .unwrap()
        .values()
        .map(|n| n.as_u64().unwrap())
        .sum();
    assert_eq!((sum, &reasons["length"]), (51, &51.into()), "{reasons}");
    let outcome = live.stop().ok();
    let log = &outcome.stderr;
    let line = log
        .lines()
        .find(|line| line.contains("all arriving packets"));
    let length = 8 + PAYLOAD;
    for part in [
        "51 packets".to_owned(),
        format!(
            "the packet has {} bytes, but header, payload and trailer of this packet add up to {length}",
            length + 1
        ),
        "check `header`, `payload`".to_owned(),
    ] {
        assert!(line.unwrap().contains(&part), "{part:?} is not in {line:?}");
    }
    assert!(!log.contains("no loss"), "{log}");
}

/// Another sender sends packets with distant numbers between the packets of the accepted sender.
#[test]
fn packets_from_other_senders_with_from_are_dropped() {
    const PACKETS: u64 = 4096;
    let port = free_udp_port();
    let daq = Daq::new(&config(&format!(
        "listen = \"127.0.0.1:{port}\"\nfrom = [\"127.0.1.0/24\", \"fd00::/8\"]"
    )));
    let mut live = listening(&daq);
    let (good, other) = (sender("127.0.1.9"), sender("127.0.2.9"));
    let to = ("127.0.0.1", port);
    for n in 0..PACKETS {
        good.send_to(&packet(n), to).unwrap();
        other.send_to(&packet(n + 16 * 9 + 1), to).unwrap();
        other.send_to(&packet(n ^ 0x5555_5555), to).unwrap();
        if n % 16 == 15 {
            Queue::drained(port);
        }
    }
    live.wait_count("sources.adc.delivered", PACKETS - PACKETS_PER_FRAME as u64);
    let outcome = live.stop().ok();
    let n = |key: &str| outcome.count(&format!("sources.adc.{key}"));
    let counts = [
        n("expected"),
        n("delivered"),
        n("duplicates"),
        n("rejected"),
        n("epochs"),
    ];
    assert_eq!(counts, [PACKETS, PACKETS, 0, 0, 1], "{:#}", outcome.report);
    let log = &outcome.stderr;
    assert!(!log.contains("more than one address"), "{log}");
}

#[test]
fn silence_fails_readiness_and_is_logged() {
    let port = free_udp_port();
    let daq = Daq::new(&config(&format!(
        "listen = \"127.0.0.1:{port}\"\nsilent_after = \"1 s\""
    )));
    let mut live = listening(&daq);
    live.wait_log("no data packet for");
    let answer = live.get("/-/ready");
    assert_eq!(answer.code, 503);
    assert_contains!(answer.body => "silent: source adc: no data packet for more than 1 s");
    assert_eq!(live.get("/-/healthy").code, 200);
    assert_eq!(status(&mut live)["state"], "silent");
    let report = live.report();
    assert_eq!(report["sources"]["adc"]["last_packet_ns"], Value::Null);
    let module = sender("127.0.0.1");
    let mut n = 0;
    wait_for("readiness after packets", || {
        for _ in 0..PACKETS_PER_FRAME {
            module.send_to(&packet(n), ("127.0.0.1", port)).unwrap();
            n += 1;
        }
        let metrics = live.get("/metrics").body;
        let is_silent = metrics.contains("daq_source_silent{source=\"adc\"} 1");
        (!is_silent && live.get("/-/ready").code == 200).then_some(())
    });
    live.wait_log("packets arrive again after");
    let report = live.report();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let last = report["sources"]["adc"]["last_packet_ns"].as_u64().unwrap() / 1_000_000_000;
    assert!(
        now.abs_diff(last) < 600,
        "the last packet must be at most 600 s from now ({now}), but is at {last}"
    );
    assert!(
        report["rings"]["raw"]["newest_frame_age_ns"].is_u64(),
        "{report:#}"
    );
    let metrics = live.get("/metrics").body;
    assert_contains!(metrics =>
        "daq_source_last_packet_timestamp_seconds{source=\"adc\"} ",
        "daq_ring_newest_frame_age_seconds{ring=\"raw\"} "
    );
    let outcome = live.stop().ok();
    let hint = format!("tcpdump -ni any udp port {port}");
    assert!(outcome.stderr.contains(&hint), "{}", outcome.stderr);
}

/// Returns a SPEAD-64-40 heap of one packet, with `item` in addition to the usual items.
fn heap(n: u64, item: u64) -> Vec<u8> {
    let immediate = |id: u64, value: u64| 1 << 63 | id << 40 | value;
    let mut packet = vec![0x53, 4, 3, 5, 0, 0, 0, 5];
    for item in [
        immediate(1, n),
        immediate(2, PAYLOAD as u64),
        immediate(3, 0),
        immediate(4, PAYLOAD as u64),
        item,
    ] {
        packet.extend(item.to_be_bytes());
    }
    packet.resize(packet.len() + PAYLOAD, 7);
    packet
}

#[test]
fn heaps_without_declared_time_are_logged_once_with_fix() {
    for (item, why) in [
        (
            1 << 63 | 0x1700 << 40,
            "the first packet of a heap has no item 0x1600",
        ),
        (
            0x1600 << 40,
            "not in its item pointer: configure the sender to send an immediate item",
        ),
        (1 << 63 | 0x1600 << 40 | 9, ""),
    ] {
        let port = free_udp_port();
        let daq = Daq::new(&format!(
            "[http]\nlisten = \"127.0.0.1:0\"\n\
             [source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"127.0.0.1:{port}\"\n\
             [source.adc.format]\nkind = \"spead\"\nheap = {PAYLOAD}\npacket = {PAYLOAD}\ntimestamp = {{ item = 0x1600 }}\n\
             [ring.raw]\nmemory = \"host\"\nslots = 512\n[sink.end]\ndriver = \"null\"\ninput = \"raw\"\n"
        ));
        let mut live = listening(&daq);
        let module = sender("127.0.0.1");
        for n in 0..20 {
            module.send_to(&heap(n, item), ("127.0.0.1", port)).unwrap();
        }
        live.wait_count("sources.adc.delivered", 20);
        let log = live.stop().ok().stderr;
        let lines: Vec<_> = log
            .lines()
            .filter(|line| line.contains("frames have no timestamp"))
            .collect();
        assert_eq!(lines.len(), usize::from(!why.is_empty()), "{log}");
        assert!(
            lines
                .iter()
                .all(|line| line.contains(why) && line.contains("omit `timestamp`")),
            "{log}"
        );
    }
}
