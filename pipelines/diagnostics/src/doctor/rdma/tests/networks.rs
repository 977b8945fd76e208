//! Tests the findings about ports and their networks.

use super::*;

#[test]
fn port_down_is_reported() {
    let server = Server::new();
    server.is_ok("state", "active, linkup, Ethernet");
    server.port_file("state", "1: DOWN\n");
    server.port_file("phys_state", "3: Disabled\n");
    server.warns(
        "state",
        "down, disabled, Ethernet",
        "sudo ip link set eth0 up",
    );
    for name in ["rate", "GID table", "MTU", "PFC", "ECN"] {
        assert!(
            server.lacks(name),
            "{name} must not be reported for a port without a link"
        );
    }
    server.port_file("link_layer", "InfiniBand\n");
    server.warns("state", "down, disabled, InfiniBand", "iblinkinfo");
    server.port_file("state", "2: INIT\n");
    server.port_file("phys_state", "5: LinkUp\n");
    server.warns(
        "state",
        "init, linkup, InfiniBand",
        "systemctl start opensm",
    );
}

#[test]
fn second_port_down_is_accepted() {
    let server = Server::new();
    server.port(2, "eth1");
    server.write("/sys/class/net/eth1/mtu", "9000\n");
    server.write(&format!("{CARD}/ports/2/state"), "1: DOWN\n");
    let states: Vec<_> = server.all();
    let states: Vec<_> = states.iter().filter(|f| f.name == "state").collect();
    assert_eq!(states.len(), 2);
    assert_eq!(states[1].group, "rdma mlx5_0 port 2");
    assert_eq!(states[1].status, Status::Ok);
    assert!(states[1].why.as_ref().unwrap().contains("another port"));
}

#[test]
fn rate_beyond_slot_or_cable_is_reported() {
    let server = Server::new();
    server.is_ok("rate", "100 Gbit/s (4X EDR)");
    for end in [NIC, &format!("{UP}/0000:3c:08.0")] {
        server.write(&format!("{end}/current_link_width"), "4\n");
    }
    let found = server.found("rate");
    warns(&found, "100 Gbit/s (4X EDR)", "dmidecode -t slot");
    let why = found.why.unwrap();
    assert!(
        why.contains("slot limits the rate to 63"),
        "PCIe 4 x4: {why}"
    );
    server.write(&format!("{NIC}/current_link_width"), "16\n");
    server.port_file("link_layer", "InfiniBand\n");
    server.port_file("rate", "25 Gb/sec (1X EDR)\n");
    server.warns("rate", "25 Gbit/s (1X EDR)", "mlxlink -d mlx5_0");
}

#[test]
fn roce_addresses_are_judged() {
    let server = Server::new();
    server.is_ok("GID table", "RoCE v2 at 3 (::ffff:192.168.100.7)");
    let empty = "0000:0000:0000:0000:0000:0000:0000:0000\n";
    for index in [2, 3] {
        server.port_file(&format!("gids/{index}"), empty);
    }
    let found = server.found("GID table");
    is_ok(&found, "RoCE v2 at 1 (fe80::e42:a1ff:feaa:bbcc)");
    assert!(found.fix.unwrap().contains("ip addr add") && found.why.unwrap().contains("router"));
    server.port_file("gids/1", empty);
    server.warns("GID table", "only RoCE v1", "mlxconfig -d 0000:3e:00.0");
    server.port_file("gids/0", empty);
    server.warns("GID table", "empty", "sudo ip addr add");
}

#[test]
fn rdma_cm_default_of_roce_v1_is_reported() {
    let server = Server::new();
    server.is_ok("rdma_cm version", "RoCE v2");
    let mode = "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode";
    server.write(mode, "IB/RoCE v1\n");
    server.warns(
        "rdma_cm version",
        "IB/RoCE v1",
        "cma_roce_mode -d mlx5_0 -p 1 -m 2",
    );
    server.remove(mode);
    assert!(server.lacks("rdma_cm version"));
}

#[test]
fn rdma_mtu_below_interface_mtu_is_reported() {
    let server = Server::new();
    for (mtu, payload, status) in [
        (9000, 4096, Status::Ok),
        (4200, 4096, Status::Ok),
        (4191, 2048, Status::Warning),
        (1500, 1024, Status::Warning),
        (90, 0, Status::Warning),
    ] {
        server.write("/sys/class/net/eth0/mtu", format!("{mtu}\n"));
        let found = server.found("MTU");
        let read = format!("{mtu}: packets of {payload} B");
        assert_eq!((found.status, found.read), (status, read));
        let fix = found.fix.unwrap_or_default();
        assert_eq!(
            fix.contains("ip link set eth0 mtu 9000"),
            status == Status::Warning
        );
    }
    server.remove("/sys/class/net/eth0/mtu");
    assert_eq!(server.found("MTU").status, Status::Unknown);
}

#[test]
fn priority_flow_control_is_judged() {
    let server = Server::new();
    server.is_ok("PFC", "for priority 3");
    let path = "/sys/class/net/eth0/qos/pfc";
    server.write(path, "0 0 0 0 0 0 0 0\n");
    server.warns("PFC", "off", "mlnx_qos -i eth0 --pfc");
    for odd in ["", "0 1", "0 0 0 2 0 0 0 0"] {
        server.write(path, odd);
        let found = server.found("PFC");
        assert_eq!(found.status, Status::Unknown, "{odd}");
        assert!(found.fix.unwrap().contains("dcb pfc show dev eth0"));
    }
}

#[test]
fn congestion_notification_is_judged() {
    let server = Server::new();
    server.is_ok("ECN", "for priority 3");
    let side = |side: &str| format!("/sys/class/net/eth0/ecn/{side}/enable/3");
    server.write(&side("roce_rp"), "0\n");
    let found = server.found("ECN");
    warns(
        &found,
        "notifies senders but does not slow down itself",
        "roce_rp/enable/3",
    );
    server.write(&side("roce_np"), "0\n");
    server.warns("ECN", "off", "roce_np/enable/3");
    server.write(&side("roce_rp"), "1\n");
    server.warns(
        "ECN",
        "slows down but does not notify senders",
        "roce_np/enable/3",
    );
    server.remove("/sys/class/net/eth0/ecn");
    let found = server.found("ECN");
    assert_eq!(found.status, Status::Unknown);
    assert!(
        found
            .fix
            .unwrap()
            .contains("/sys/kernel/debug/mlx5/0000:3e:00.0")
    );
}

#[test]
fn growing_counters_are_reported_by_cause() {
    for (file, name, fix) in [
        ("counters/symbol_error", "link errors", "mlxlink -d mlx5_0"),
        (
            "hw_counters/out_of_sequence",
            "packets out of order",
            "mlnx_qos -i eth0",
        ),
        (
            "hw_counters/packet_seq_err",
            "packets out of order",
            "ethtool -S eth0",
        ),
        (
            "hw_counters/local_ack_timeout_err",
            "missing acknowledgements",
            "ethtool -S eth0",
        ),
        (
            "hw_counters/rnr_nak_retry_err",
            "receiver not ready",
            "more slots",
        ),
        ("hw_counters/rx_discards", "discards", "mlnx_qos -i eth0"),
        (
            "counters/port_xmit_discards",
            "discards",
            "mlnx_qos -i eth0",
        ),
        ("hw_counters/np_cnp_sent", "congestion", "mlnx_qos -i eth0"),
        (
            "hw_counters/rp_cnp_handled",
            "congestion",
            "mlnx_qos -i eth0",
        ),
        (
            "hw_counters/resp_remote_access_errors",
            "rejected accesses",
            "rdma resource show qp",
        ),
    ] {
        let server = Server::new();
        assert!(
            server.lacks(name),
            "a card without this counter must have no finding"
        );
        server.port_file(file, "0\n");
        let before = Counters::read(&server.root).ago(Duration::from_secs(1));
        let find = || one(&examine(&server.root, &before), name);
        is_ok(&find(), "none since boot");
        server.port_file(file, "7\n");
        let found = find();
        assert_eq!(found.status, Status::Warning, "{found:?}");
        assert!(found.read.starts_with("7 ") && found.read.ends_with("in 1 s, 7 since boot"));
        assert!(
            found.from.ends_with(file) && found.fix.as_ref().unwrap().contains(fix),
            "{found:?}"
        );
        // Counts from before the first reading are ignored.
        let before = Counters::read(&server.root).ago(Duration::from_secs(1));
        let found = one(&examine(&server.root, &before), name);
        assert_eq!(found.summary(), (Status::Ok, "none in 1 s, 7 since boot"));
        let unwatched = server.found(name);
        assert!(unwatched.status == Status::Ok && unwatched.why.unwrap().contains("--sample"));
    }
}

#[test]
fn fastest_growing_counter_is_named() {
    let server = Server::new();
    server.port_file("hw_counters/out_of_sequence", "1000\n");
    server.port_file("hw_counters/packet_seq_err", "5\n");
    let before = Counters::read(&server.root).ago(Duration::from_secs(1));
    server.port_file("hw_counters/packet_seq_err", "8\n");
    let found = one(&examine(&server.root, &before), "packets out of order");
    assert!(found.from.ends_with("packet_seq_err"), "{found:?}");
    assert_eq!(found.read, "3 packets in 1 s, 1008 since boot");
}
