//! Runs the program of `docs/examples/own-instrument`, and uses each of its entries.

use super::inspect::{Pcap, RECEIVER, SENDER};
use daq_testkit::{Daq, assert_contains, binary, free_udp_port, repository, wait_for};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;

const CONFIG: &str = r#"
[source.ramp]
driver = "ramp"
packets = 800
ring = "numbers"

[source.card]
driver = "fpga"
device = "emulated:fifo"
ring = "frames"

[source.served]
driver = "fpga"
device = "vfio-user:card.sock"
engine = "fifo"
ring = "served-frames"

[source.net]
driver = "udp"
listen = "127.0.0.1:PORT"
format = { kind = "counted", magic = 0xda01 }
ring = "packets"

[ring.numbers]
memory = "host"
slots = 8

[kernel.peak]
use = "peak"
input = "numbers"
output = "peaks"

[ring.peaks]
memory = "host"
slots = 8

[sink.index]
driver = "index"
input = "peaks"
path = "index.txt"

[ring.frames]
memory = "host"
slots = 8

[sink.drop]
driver = "null"
input = "frames"

[ring.served-frames]
memory = "host"
slots = 8

[sink.drop-served]
driver = "null"
input = "served-frames"

[ring.packets]
memory = "host"
slot = "1 KiB"
slots = 64

[sink.drop-packets]
driver = "null"
input = "packets"

[http]
listen = "127.0.0.1:0"
"#;

/// Returns the program of the example, which is a member of the workspace.
fn program() -> PathBuf {
    let program = binary().with_file_name("own-instrument");
    assert!(
        program.is_file(),
        "{} does not exist; build it with `cargo build -p own-instrument`",
        program.display()
    );
    program
}

/// Returns a packet of the format `counted`.
fn packet(number: u32) -> Vec<u8> {
    let mut packet = vec![0; 8 + 512];
    packet[..2].copy_from_slice(&[0xda, 0x01]);
    packet[4..8].copy_from_slice(&number.to_be_bytes());
    packet
}

#[test]
fn own_instrument_has_all_commands_of_daq() {
    let port = free_udp_port();
    let daq = Daq::new(&CONFIG.replace("PORT", &port.to_string()));
    let own = program();
    let command = |arguments: &[&str]| {
        let mut command = Command::new(&own);
        daq.prepare(&mut command).args(arguments);
        command
    };
    let print = |arguments: &[&str]| {
        let output = command(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    };
    let names = ["ramp", "counted", "fifo", "peak", "index"];
    let pages = ["schema", "config"].map(|page| print(&["reference", page]));
    let list = print(&["list"]);
    for name in names {
        let is_first = |line: &str| line.split_whitespace().next() == Some(name);
        assert!(list.lines().any(is_first), "{name} is not in\n{list}");
        for page in &pages {
            assert!(
                page.contains(&format!("\"{name}\"")),
                "{name} is not in\n{page}"
            );
        }
    }
    daq.write("new.toml", &print(&["new", "ramp/peak/index"]));
    assert!(print(&["check", "new.toml"]).contains("ok"));

    let mut capture = Pcap::new();
    (0..64).for_each(|number| capture.add(SENDER, RECEIVER, &packet(number)));
    std::fs::write(daq.path("capture.pcap"), &capture.bytes).unwrap();
    let report = print(&["inspect", "capture.pcap"]);
    assert_contains!(report => "1. counted packets (100 % sure)", "kind = \"counted\"\nmagic = 0xda01");
    daq.write(
        "inspected.toml",
        &print(&["inspect", "capture.pcap", "--toml"]),
    );
    assert!(print(&["check", "inspected.toml"]).contains("ok"));

    let mut card = command(&["emulate", "fifo", "--socket", "card.sock", "--once"]);
    let mut card = card.spawn().unwrap();
    wait_for("the socket of the card", || {
        daq.path("card.sock").exists().then_some(())
    });
    let mut live = daq.spawn_command(command(&["run", "daq.toml", "--report", "json"]));
    live.wait_ready();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for number in 0_u32..64 {
        socket
            .send_to(&packet(number), ("127.0.0.1", port))
            .unwrap();
    }
    for source in ["ramp", "card", "served", "net"] {
        let least = if source == "ramp" { 800 } else { 32 };
        live.wait_count(&format!("sources.{source}.delivered"), least);
    }
    let _ = live.stop().ok();
    assert!(card.wait().unwrap().success());
    let index = std::fs::read_to_string(daq.path("index.txt")).unwrap();
    let lines: Vec<_> = index.lines().collect();
    assert_eq!(
        (lines.len(), lines[0], lines[99]),
        (100, "0 262", "99 1054")
    );
}

#[test]
fn own_crate_guide_shows_this_program() {
    let read = |name: &str| std::fs::read_to_string(repository().join(name)).unwrap();
    let program = read("docs/examples/own-instrument/src/main.rs");
    let main = &program[program.find("fn main").unwrap()..];
    assert!(read("docs/src/how-to/own-crate.md").contains(main));
}
