//! Checks that packets from the network cannot flood the log.

use daq_testkit::{Daq, free_tcp_port, free_udp_port, wait_for};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

/// Maximum number of log lines at the start and the end of a run, in addition to one line every five seconds.
const MAX_LINES: usize = 40;
/// Version of the handshake between daemons.
const HANDSHAKE_VERSION: u16 = 3;

#[test]
fn rdma_greetings_malformed_are_counted_and_log_is_rate_limited() {
    let port = free_tcp_port();
    let daq = Daq::new(&format!(
        "[source.a]\ndriver = \"stream\"\ntransport = \"rdma\"\nlisten = \"127.0.0.1:{port}\"\nring = \"v\"\nnics = [\"emulated\"]\n\
         [ring.v]\nslot = \"64 KiB\"\nslots = 8\n[sink.n]\ndriver = \"null\"\ninput = \"v\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n"
    ));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let mut body = vec![1, 0, 0, 0];
    body.extend([0; 36]);
    body.extend(52_u16.to_le_bytes());
    body.extend([0xff; 52]);
    let mut greeting = Vec::new();
    greeting.extend(0x6371_6164_u32.to_le_bytes());
    greeting.extend(HANDSHAKE_VERSION.to_le_bytes());
    greeting.extend([1, 1]);
    greeting.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    greeting.extend(body);
    let greet = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        let _ = stream.write_all(&greeting);
        // A greeting of another version is not answered.
        let answered = stream.read(&mut [0; 300]).unwrap_or(0);
        assert!(answered > 0, "the greeting was not answered");
    };
    wait_for("200 rejected greetings", || {
        greet();
        let report = live.report();
        let faults = report["sources"]["a"]["engine"]["faults"].as_object()?;
        let count: u64 = faults.values().filter_map(serde_json::Value::as_u64).sum();
        (count >= 200).then_some(())
    });
    let outcome = live.stop();
    let lines = outcome.stderr.lines();
    assert!(
        lines
            .clone()
            .any(|line| line.contains("rejected connection")),
        "{}",
        outcome.stderr
    );
    let count = lines.filter(|line| line.contains("rejected")).count();
    assert!(count <= MAX_LINES, "{count} lines:\n{}", outcome.stderr);
}

#[test]
fn epochs_opened_by_flood_log_is_rate_limited() {
    let port = free_udp_port();
    let daq = Daq::new(&format!(
        "[source.a]\ndriver = \"udp\"\nlisten = \"127.0.0.1:{port}\"\nring = \"v\"\nresync_after = 1\n\
         [source.a.format]\nkind = \"raw\"\nheader = \"16 B\"\npayload = \"64 B\"\n\
         sequence = {{ offset = 0, bytes = 8 }}\n[ring.v]\nslot = \"64 B\"\n[sink.n]\ndriver = \"null\"\n\
         input = \"v\"\n[http]\nlisten = \"127.0.0.1:0\"\n"
    ));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", port)).unwrap();
    let mut random = daq_testkit::Random(1);
    wait_for("1000 epochs", || {
        for _ in 0..100 {
            let mut packet = [0; 80];
            packet[..8].copy_from_slice(&random.below(1 << 60).to_be_bytes());
            let _ = socket.send(&packet);
        }
        let report = live.report();
        (daq_testkit::ledger::count(&report, "sources.a.epochs") >= 1000).then_some(())
    });
    wait_for("the log", || {
        live.stderr().contains("sender restarted").then_some(())
    });
    let outcome = live.stop();
    let count = outcome.stderr.lines().count();
    assert!(count <= MAX_LINES, "{count} lines:\n{}", outcome.stderr);
}
