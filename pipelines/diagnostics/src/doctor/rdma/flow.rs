//! Settings that prevent an Ethernet network from dropping RoCE packets: pause frames per priority (PFC) and congestion
//! marks (ECN).

use super::{Card, Finding, NET, Verdict};
use daq_core::topology::nic::{Layer, NicPort};

const PRIORITIES: usize = 8;

/// Returns no findings for InfiniBand, which has link-level flow control, and for ports that are down.
pub(super) fn examine(card: &Card<'_>, port: &NicPort) -> Vec<Finding> {
    let is_card = card.device.is_some();
    let interface = port.netdevs.first();
    match interface {
        Some(interface) if is_card && port.is_active() && port.layer == Some(Layer::Ethernet) => {
            vec![pfc(card, port, interface), ecn(card, port, interface)]
        }
        _ => Vec::new(),
    }
}

/// Parses a file with one `0` or `1` per priority; `None` if it has another format.
fn flags(text: &str) -> Option<Vec<bool>> {
    let words = text.split_whitespace();
    let flags: Option<Vec<_>> = words
        .map(|word| match word {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        })
        .collect();
    flags.filter(|flags| flags.len() == PRIORITIES)
}

fn on(flags: &[bool]) -> String {
    let on = flags.iter().zip(0..).filter(|(on, _)| **on);
    on.map(|(_, i): (_, u32)| i.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

/// Which priorities use PFC; only NVIDIA's own drivers show this in a file.
fn pfc(card: &Card<'_>, port: &NicPort, interface: &str) -> Finding {
    let path = format!("{NET}/{interface}/qos/pfc");
    let finding = card.of_port(port, "PFC", path.as_str());
    let read = card.machine.root.text(&path);
    let Some(flags) = read.as_deref().and_then(flags) else {
        return finding
            .read(Verdict::Unknown, "not reported in a file")
            .why("without pause frames a full switch drops packets, and RC repeats all packets since the lost one")
            .fix(format!("mlnx_qos -i {interface}  # or: dcb pfc show dev {interface}"));
    };
    if flags.contains(&true) {
        finding
            .read(Verdict::Ok, format!("for priority {}", on(&flags)))
            .why("the traffic must use that priority, also on the switch")
    } else {
        finding
            .read(Verdict::Warn, "off")
            .why("a full switch drops packets, and RC repeats all packets since the lost one")
            .fix(format!(
                "sudo mlnx_qos -i {interface} --pfc 0,0,0,1,0,0,0,0 --trust dscp  # or: sudo dcb pfc set dev {interface} prio-pfc 3:on; set the same priority on the switch"
            ))
    }
}

/// Whether the card notifies senders of ECN marks (notification point) and slows down when notified (reaction point).
fn ecn(card: &Card<'_>, port: &NicPort, interface: &str) -> Finding {
    let base = format!("{NET}/{interface}/ecn");
    let finding = card.of_port(port, "ECN", format!("{base}/roce_{{np,rp}}/enable/*"));
    let side = |side: &str| -> Option<Vec<bool>> {
        let priority = |i| {
            let value = card
                .machine
                .root
                .text(&format!("{base}/{side}/enable/{i}"))?;
            Some(value == "1")
        };
        (0..PRIORITIES).map(priority).collect()
    };
    let (Some(np), Some(rp)) = (side("roce_np"), side("roce_rp")) else {
        return finding
            .read(Verdict::Unknown, "not reported in files")
            .why("switches mark packets so that senders slow down before packets are dropped")
            .fix(format!(
                "sudo grep -r . /sys/kernel/debug/mlx5/{}/cc_params/  # and rp_cnp_handled of its counters",
                card.nic.pci.as_deref().unwrap_or("*")
            ));
    };
    let both: Vec<_> = np.iter().zip(&rp).map(|(np, rp)| *np && *rp).collect();
    if both.contains(&true) {
        finding.read(Verdict::Ok, format!("for priority {}", on(&both)))
    } else {
        let read = match (np.contains(&true), rp.contains(&true)) {
            (true, _) => "notifies senders but does not slow down itself",
            (false, true) => "slows down but does not notify senders",
            (false, false) => "off",
        };
        finding
            .read(Verdict::Warn, read)
            .why("senders slow down only after a full switch has dropped packets")
            .fix(format!(
                "echo 1 | sudo tee {base}/roce_np/enable/3 {base}/roce_rp/enable/3  # use the priority of the traffic"
            ))
    }
}
