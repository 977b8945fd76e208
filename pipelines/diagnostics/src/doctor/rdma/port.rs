//! Checks a port: its state, its rate compared with its slot, its addresses and its MTU.

use super::{Card, Finding, NET, Verdict};
use daq_core::topology::nic::{GidKind, Layer, NicPort};
use daq_core::units::BitRate;

/// Directory of the rdma_cm settings of Linux.
const CM: &str = "/sys/kernel/config/rdma_cm";
/// The packet payload sizes that RDMA supports, in bytes.
const SIZES: [u32; 5] = [4096, 2048, 1024, 512, 256];
/// Number of bytes that RoCE adds to a packet within the interface's MTU: an IPv6-sized header, UDP, the transport
/// header with extensions, and the checksum (`iboe_get_mtu` in include/rdma/ib_addr.h of Linux).
const ROCE_HEADERS: u32 = 96;
/// MTU of the interface with which packets can contain 4096 payload bytes.
const MTU_WANTED: u32 = 4200;

pub(super) fn examine(card: &Card<'_>, port: &NicPort) -> Vec<Finding> {
    let mut findings = vec![state(card, port)];
    if !port.is_active() {
        return findings;
    }
    findings.push(rate(card, port));
    if port.layer == Some(Layer::Ethernet) {
        findings.push(gids(card, port));
        findings.extend(cm(card, port));
        findings.push(mtu(card, port));
    }
    findings
}

fn netdev(port: &NicPort) -> &str {
    port.netdevs.first().map_or("INTERFACE", String::as_str)
}

fn state(card: &Card<'_>, port: &NicPort) -> Finding {
    let finding = card.of_port(
        port,
        "state",
        card.port_file(port, "{state,phys_state,link_layer}"),
    );
    let Some(state) = &port.state else {
        return finding;
    };
    let parts = [
        Some(state.to_lowercase()),
        port.physical.as_ref().map(|link| link.to_lowercase()),
        port.layer.map(|layer| layer.to_string()),
    ];
    let read = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    if port.is_active() {
        return finding.read(Verdict::Ok, read);
    }
    if card.nic.is_active() {
        return finding
            .read(Verdict::Ok, read)
            .why("not needed, because another port of the card is up");
    }
    let is_up = port.physical.as_deref() == Some("LinkUp");
    let interface = netdev(port);
    let finding = finding.read(Verdict::Warn, read);
    match port.layer {
        Some(Layer::InfiniBand) if is_up => finding
            .why("the link is up, but no subnet manager has assigned an address to the port")
            .fix("sudo systemctl start opensm  # on one host of the network, if no switch runs a subnet manager"),
        Some(Layer::InfiniBand) => finding
            .why("the port cannot transfer data")
            .fix(format!("iblinkinfo; sudo mlxlink -d {}  # check the cable and the switch port", card.nic.name)),
        _ => finding
            .why("the port cannot transfer data")
            .fix(format!("sudo ip link set {interface} up; ethtool {interface}  # check the cable and the switch port")),
    }
}

/// Compares the port's rate with the rate of the card's slot, and reports the number of working lanes.
fn rate(card: &Card<'_>, port: &NicPort) -> Finding {
    let finding = card.of_port(port, "rate", card.port_file(port, "rate"));
    let Some(rate) = port.rate else {
        return finding;
    };
    let lanes = port.lanes.as_deref().unwrap_or_default();
    let shown = |rate: u64| BitRate(rate as f64).to_string();
    let read = if lanes.is_empty() {
        shown(rate)
    } else {
        format!("{} ({lanes})", shown(rate))
    };
    // InfiniBand links can fall back to one lane. For Ethernet, the lanes that the driver reports are not real.
    let width = lanes
        .split('X')
        .next()
        .and_then(|lanes| lanes.parse::<u32>().ok());
    if port.layer == Some(Layer::InfiniBand) && width.is_some_and(|width| width < 4) {
        return finding
            .read(Verdict::Warn, read)
            .why("not all lanes of the link are active, so the port cannot reach its maximum rate")
            .fix(format!(
                "sudo mlxlink -d {} -m  # shows what cable and port support; replace the cable, reset the link",
                card.nic.name
            ));
    }
    let tree = &card.machine.topology.pci;
    let hops = card.device.map(|device| tree.hops(device));
    let slot = hops
        .into_iter()
        .flatten()
        .map(|hop| hop.effective.rate().saturating_mul(8))
        .filter(|rate| *rate > 0)
        .min();
    match slot {
        Some(slot) if slot < rate && !tree.processor.is_virtual => finding
            .read(Verdict::Warn, read)
            .why(format!("the card's slot limits the rate to {}", shown(slot)))
            .fix("sudo dmidecode -t slot  # move the card to a slot that has the card's width and PCIe generation"),
        _ => finding.read(Verdict::Ok, read).why(format!(
            "to see the port's maximum rate, run ethtool {0} or sudo mlxlink -d {1}",
            netdev(port),
            card.nic.name
        )),
    }
}

/// Reports the GID that connections use.
fn gids(card: &Card<'_>, port: &NicPort) -> Finding {
    let finding = card.of_port(port, "GID table", card.port_file(port, "gids"));
    let interface = netdev(port);
    let give =
        format!("sudo ip addr add 192.168.100.1/24 dev {interface}  # an address of your network");
    match port.best_gid() {
        Some(gid) if gid.address.is_unicast_link_local() => finding
            .read(
                Verdict::Ok,
                format!("RoCE v2 at {} ({})", gid.index, gid.address),
            )
            .why("this is a link-local address; hosts behind a router cannot reach it")
            .fix(give),
        Some(gid) => finding.read(
            Verdict::Ok,
            format!("RoCE v2 at {} ({})", gid.index, gid.address),
        ),
        None if port.gids.iter().any(|gid| gid.kind == Some(GidKind::V1)) => finding
            .read(Verdict::Warn, "only RoCE v1")
            .why("daq requires RoCE v2, which the card or its driver does not offer")
            .fix(format!(
                "sudo mlxconfig -d {} query | grep -i roce  # RoCE v2 may be disabled in the firmware",
                card.nic.pci.as_deref().unwrap_or(&card.nic.name)
            )),
        None => finding
            .read(Verdict::Warn, "empty")
            .why("the port has no address, so peers cannot send to it")
            .fix(give),
    }
}

/// Reports the RoCE version that rdma_cm uses; returns `None` if Linux does not report the version.
fn cm(card: &Card<'_>, port: &NicPort) -> Option<Finding> {
    let path = format!(
        "{CM}/{}/ports/{}/default_roce_mode",
        card.nic.name, port.number
    );
    let mode = card.machine.root.text(&path)?;
    let finding = card.of_port(port, "rdma_cm version", path);
    Some(if mode == "RoCE v2" {
        finding.read(Verdict::Ok, mode)
    } else {
        finding
            .read(Verdict::Warn, mode)
            .why("rdma_cm uses RoCE v1 and cannot connect to peers that use RoCE v2")
            .fix(format!(
                "sudo cma_roce_mode -d {} -p {} -m 2",
                card.nic.name, port.number
            ))
    })
}

/// Reports the packet size, which is derived from the interface's MTU.
fn mtu(card: &Card<'_>, port: &NicPort) -> Finding {
    let interface = netdev(port);
    let path = format!("{NET}/{interface}/mtu");
    let finding = card.of_port(port, "MTU", path.as_str());
    let Some(mtu) = card.machine.root.value::<u32>(&path) else {
        return finding;
    };
    let room = mtu.saturating_sub(ROCE_HEADERS);
    let payload = SIZES.into_iter().find(|size| *size <= room).unwrap_or(0);
    let finding = finding.read(
        if mtu < MTU_WANTED {
            Verdict::Warn
        } else {
            Verdict::Ok
        },
        format!("{mtu}: packets of {payload} B"),
    );
    if mtu < MTU_WANTED {
        finding
            .why("small packets reduce throughput; if the peer's MTU differs, no packets arrive")
            .fix(format!(
                "sudo ip link set {interface} mtu 9000  # also on the peer and the switch"
            ))
    } else {
        finding.why("the peer and the switch must support packets of this size; test with ping -M do -s 4172 PEER")
    }
}
