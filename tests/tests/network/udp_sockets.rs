//! Tests sockets: several for one stream, multicast, IPv6, buffers, and ports in use.

use crate::stream::{self, DISK, assert_whole, listening};
use daq_drivers::sys::send::Sender;
use daq_drivers::sys::socket::Interface;
use daq_testkit::loopback::Queue;
use daq_testkit::{Daq, Live, Outcome, assert_contains, free_udp_port, program, skip};
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

const PAYLOAD: usize = 1024;

/// Returns the source `adc` with `keys`, which must set the address, and the file sink `disk`.
fn config(keys: &str) -> String {
    stream::config(&format!("driver = \"udp\"\n{keys}"), PAYLOAD, 512, DISK)
}

fn packet(n: u64) -> Vec<u8> {
    stream::packet(n, PAYLOAD)
}

fn whole(daq: &Daq, live: Live, packets: u64) -> Outcome {
    assert_whole(daq, live, packets, PAYLOAD)
}

#[test]
fn udp_several_flows_fill_one_window() {
    const PACKETS: u64 = 8192;
    let port = free_udp_port();
    let daq = Daq::new(&config(&format!(
        "listen = \"127.0.0.1:{port}\"\nsockets = 2\nwindow = 16\nreceive_buffer = \"1 MiB\""
    )));
    let live = listening(&daq);
    assert_eq!(Queue::of(port).sockets, 2);
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut flows: Vec<_> = (0..16)
        .map(|_| Sender::open(to, false, None).unwrap())
        .collect();
    for n in 0..PACKETS {
        // Each flow sends every sixteenth packet. The flows stay within 8 frames of each other.
        let flow = usize::try_from(n).unwrap() % flows.len();
        flows[flow].send(&packet(n)).unwrap();
        if n % 64 == 63 {
            Queue::all_drained(port, 2);
        }
    }
    whole(&daq, live, PACKETS);
}

/// One source has two addresses, and each address receives half of the packets.
#[test]
fn udp_several_addresses_fill_one_window() {
    const PACKETS: u64 = 2048;
    let ports = [free_udp_port(), free_udp_port()];
    let [a, b] = ports;
    let daq = Daq::new(&config(&format!(
        "listen = [\"127.0.0.1:{a}\", \"[::1]:{b}\"]\nwindow = 16"
    )));
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        skip!("this machine has no IPv6 loopback address");
    }
    let live = listening(&daq);
    let to = [
        SocketAddr::from((Ipv4Addr::LOCALHOST, a)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, b)),
    ];
    let mut flows = to.map(|to| Sender::open(to, false, None).unwrap());
    for n in 0..PACKETS {
        flows[usize::try_from(n % 2).unwrap()]
            .send(&packet(n))
            .unwrap();
        if n % 64 == 63 {
            for port in ports {
                Queue::drained(port);
            }
        }
    }
    whole(&daq, live, PACKETS);
}

#[test]
fn udp_ipv6_is_received() {
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        skip!("this machine has no IPv6 loopback address");
    }
    let port = free_udp_port();
    let daq = Daq::new(&config(&format!("listen = \"[::1]:{port}\"")));
    let live = listening(&daq);
    let mut sender =
        Sender::open(SocketAddr::from((Ipv6Addr::LOCALHOST, port)), true, None).unwrap();
    for n in (0..512).step_by(32) {
        let packets: Vec<_> = (n..n + 32).flat_map(packet).collect();
        sender.send_packets(&packets, 8 + PAYLOAD).unwrap();
        Queue::drained(port);
    }
    whole(&daq, live, 512);
}

/// Tests both configurations: listen on the group address, or listen on any address and join the group.
#[test]
fn udp_multicast_groups_are_joined() {
    for (group, keys) in [
        (
            Ipv4Addr::new(239, 77, 1, 2),
            "listen = \"GROUP:PORT\"\ninterface = \"127.0.0.1\"",
        ),
        (
            Ipv4Addr::new(239, 77, 1, 3),
            "listen = \"0.0.0.0:PORT\"\ngroups = [\"GROUP\"]\ninterface = \"lo\"",
        ),
    ] {
        let port = free_udp_port();
        let loopback = Interface::Address(Ipv4Addr::LOCALHOST);
        // Determine whether this machine supports multicast on its loopback interface.
        let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        probe
            .set_read_timeout(Some(std::time::Duration::from_secs(1)))
            .unwrap();
        let probed = SocketAddr::new(IpAddr::V4(group), probe.local_addr().unwrap().port());
        let is_carried = probe
            .join_multicast_v4(&group, &Ipv4Addr::LOCALHOST)
            .is_ok()
            && Sender::open(probed, false, Some(&loopback))
                .is_ok_and(|mut sender| sender.send(b"?").is_ok())
            && probe.recv(&mut [0; 8]).is_ok();
        drop(probe);
        if !is_carried {
            skip!("this machine does not deliver multicast packets over its loopback interface");
        }
        let keys = keys
            .replace("GROUP", &group.to_string())
            .replace("PORT", &port.to_string());
        let daq = Daq::new(&config(&keys));
        let live = listening(&daq);
        let to = SocketAddr::new(IpAddr::V4(group), port);
        let mut sender = Sender::open(to, false, Some(&loopback)).unwrap();
        for n in 0..256 {
            sender.send(&packet(n)).unwrap();
            if n % 32 == 31 {
                Queue::drained(port);
            }
        }
        whole(&daq, live, 256);
    }
}

/// Tests one socket and several sockets. The port is used by another process's socket, which may allow sharing.
#[test]
fn udp_port_in_use_is_reported() {
    for sockets in [1, 2] {
        for is_shared in [false, true] {
            let port = free_udp_port();
            let address = format!("127.0.0.1:{port}");
            let taken = rustix::net::socket(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::DGRAM,
                None,
            )
            .unwrap();
            rustix::net::sockopt::set_socket_reuseport(&taken, is_shared).unwrap();
            rustix::net::bind(&taken, &address.parse::<SocketAddr>().unwrap()).unwrap();
            let daq = Daq::new(&config(&format!(
                "listen = \"{address}\"\nsockets = {sockets}"
            )));
            let outcome = daq.run(&[]);
            assert_eq!(
                outcome.code, 69,
                "{sockets} sockets, shared: {is_shared}\n{}",
                outcome.stderr
            );
            assert_contains!(outcome.stderr => &address, "in use");
            drop(taken);
        }
    }
}

/// The address does not belong to this machine.
#[test]
fn udp_foreign_address_is_reported() {
    let daq = Daq::new(&config("listen = \"192.0.2.1:4950\""));
    let outcome = daq.run(&[]);
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "192.0.2.1:4950");
}

/// If the process cannot exceed the system limit, the limit is logged with the command that raises it.
#[test]
fn udp_small_receive_buffer_is_reported() {
    let limit = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
    let limit: u64 = limit.trim().parse().unwrap();
    let asked = limit + 4096;
    if asked > 1 << 30 {
        skip!("net.core.rmem_max is already the maximum, so the test cannot exceed it");
    }
    let port = free_udp_port();
    let keys = |bytes: u64| format!("listen = \"127.0.0.1:{port}\"\nreceive_buffer = {bytes}");
    let warning = format!("net.core.rmem_max={asked}");
    for (bytes, is_logged) in [(asked, true), (limit, false)] {
        let daq = Daq::new(&config(&keys(bytes)));
        let mut command = daq.command(&["run", "daq.toml", "--report", "json", "--for", "100ms"]);
        if rustix::process::geteuid().is_root() {
            let Some(setpriv) = program("setpriv") else {
                skip!("root can exceed net.core.rmem_max, and setpriv is not installed")
            };
            let inner = command;
            command = std::process::Command::new(setpriv);
            daq.prepare(&mut command).args([
                "--bounding-set=-net_admin",
                "--inh-caps=-net_admin",
                "--",
            ]);
            command.arg(inner.get_program()).args(inner.get_args());
        }
        let outcome = daq.spawn_command(command).wait().ok();
        assert_eq!(
            outcome.stderr.contains(&warning),
            is_logged,
            "{bytes} of {limit}:\n{}",
            outcome.stderr
        );
    }
}

/// If no packet arrives, no packet is expected, and the run succeeds.
#[test]
fn udp_silence_is_not_counted_as_loss() {
    let port = free_udp_port();
    let outcome = Daq::new(&config(&format!(
        "listen = \"127.0.0.1:{port}\"\nsockets = 3"
    )))
    .run(&["--for", "200ms"])
    .ok();
    assert_eq!(outcome.count("sources.adc.expected"), 0);
    assert_eq!(outcome.count("rings.raw.produced"), 0);
    assert_eq!(outcome.report["sources"]["adc"]["lost"], json!({}));
}
