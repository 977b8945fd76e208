//! Tests the findings about the card's slot.

use super::*;

#[test]
fn link_below_width_or_speed_is_reported() {
    let server = Server::new();
    server.is_ok("link", "PCIe 4 x16");
    server.write(&format!("{NIC}/current_link_width"), "8\n");
    server.warns("link", "PCIe 4 x8 of PCIe 4 x16", "lspci -vv");
    server.write(&format!("{NIC}/current_link_width"), "16\n");
    server.write(&format!("{NIC}/current_link_speed"), "8.0 GT/s PCIe\n");
    server.warns("link", "PCIe 3 x16 of PCIe 4 x16", "lspci -vv");
}

#[test]
fn relaxed_ordering_and_read_size_are_judged() {
    let server = Server::new();
    server.is_ok("relaxed ordering", "allowed");
    server.is_ok("MaxReadReq", "4096 B");
    let config = format!("{NIC}/config");
    server.write(&config, space(0x2000, 0));
    let found = server.found("relaxed ordering");
    warns(
        &found,
        "not allowed",
        "setpci -s 0000:3e:00.0 CAP_EXP+8.w=0010:0010",
    );
    let found = server.found("MaxReadReq");
    is_ok(&found, "512 B");
    assert!(found.fix.unwrap().contains("CAP_EXP+8.w=5000:7000"));
    server.write(&config, space(0x0010, 0));
    server.warns("MaxReadReq", "128 B", "CAP_EXP+8.w=5000:7000");
    // Users other than root can read only the first 64 bytes.
    server.write(&config, &space(0x5010, 0)[..64]);
    for name in ["relaxed ordering", "MaxReadReq"] {
        let found = server.found(name);
        assert_eq!(found.status, Status::Unknown);
        assert_eq!(found.fix.as_deref(), Some("sudo daq doctor"));
    }
}

#[test]
fn random_capability_list_does_not_panic() {
    use super::super::slot::device_control;
    assert_eq!(device_control(&space(0x2810, 0)), Some(0x2810));
    assert_eq!(device_control(&[]), None);
    assert_eq!(
        device_control(&[0xff; 256]),
        None,
        "the device does not answer"
    );
    let mut bites = space(0, 0);
    bites[0x41] = 0x40;
    assert_eq!(
        device_control(&bites),
        None,
        "the capability list is circular"
    );
    let mut short = space(0, 0);
    short.truncate(0x69);
    assert_eq!(
        device_control(&short),
        None,
        "the configuration space ends inside the register"
    );
}

#[test]
fn nic_on_other_socket_is_reported() {
    let server = Server::new();
    server.is_ok("distance to GPUs", "PIX to 0000:3d:00.0");
    // Move the GPU to another host bridge on the other NUMA node.
    server.remove("/sys/bus/pci/devices/0000:3d:00.0");
    let far = "/sys/devices/pci0000:d7/0000:d7:00.0/0000:d8:00.0";
    server.device(
        "/sys/devices/pci0000:d7/0000:d7:00.0",
        "8086:2030",
        "060400",
    );
    server.device(far, "10de:20f1", "030200");
    server.write(&format!("{far}/numa_node"), "1\n");
    let found = server.found("distance to GPUs");
    warns(&found, "SYS to 0000:d8:00.0", "socket");
    assert!(found.why.unwrap().contains("socket 0"));
    assert!(
        server.lacks("ACS redirect"),
        "there is no switch between card and GPU"
    );
    server.write(&format!("{far}/numa_node"), "-1\n");
    assert_eq!(server.found("distance to GPUs").status, Status::Unknown);
}

#[test]
fn switch_with_acs_redirect_is_reported_with_command() {
    let server = Server::new();
    server.is_ok(
        "ACS redirect",
        "no bridge redirects writes on the path to the nearest GPU",
    );
    let port = format!("{UP}/0000:3c:04.0/config");
    server.write(&port, space(0, 0x1d));
    let found = server.found("ACS redirect");
    warns(
        &found,
        "0000:3c:04.0 redirects writes (RR CR)",
        "sudo setpci -s 0000:3c:04.0 ECAP_ACS+6.w=0000",
    );
    server.write(&port, &space(0, 0)[..64]);
    assert_eq!(server.found("ACS redirect").status, Status::Unknown);
    // Bridges above both devices may redirect, because the writes do not pass through them.
    server.write(&port, space(0, 0));
    server.write(&format!("{UP}/config"), space(0, 0x1d));
    assert_eq!(server.found("ACS redirect").status, Status::Ok);
}
