//! What keeps an Ethernet network from dropping RoCE's packets: pause frames by priority (PFC), and congestion marks
//! (ECN).

use super::{Card, Finding, NET, Verdict};
use daq_core::topology::nic::{Layer, NicPort};

const PRIORITIES: usize = 8;

/// Nothing for InfiniBand, which holds senders back by itself, and for ports that are down.
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

/// `0` and `1` of a file's priorities; `None` where it has others.
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

/// Which priorities are paused; only Mellanox' own drivers show it as a file.
fn pfc(card: &Card<'_>, port: &NicPort, interface: &str) -> Finding {
    let path = format!("{NET}/{interface}/qos/pfc");
    let finding = card.of_port(port, "PFC", path.as_str());
    let read = card.machine.root.text(&path);
    let Some(flags) = read.as_deref().and_then(flags) else {
        return finding
            .read(Verdict::Unknown, "not shown as a file")
            .why("without pause frames a full switch drops packets, and RC sends all since the lost one again")
            .fix(format!("mlnx_qos -i {interface}  # or: dcb pfc show dev {interface}"));
    };
    if flags.contains(&true) {
        finding
            .read(Verdict::Ok, format!("for priority {}", on(&flags)))
            .why("the traffic must have that priority, on the switch, too")
    } else {
        finding
            .read(Verdict::Warn, "off")
            .why("a full switch drops packets, and RC sends all since the lost one again")
            .fix(format!(
                "sudo mlnx_qos -i {interface} --pfc 0,0,0,1,0,0,0,0 --trust dscp  # or: sudo dcb pfc set dev {interface} prio-pfc 3:on; the same priority on the switch"
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
            .read(Verdict::Unknown, "not shown as files")
            .why("marks of switches slow senders down before anything is dropped")
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
            (true, _) => "notifies senders, does not slow down itself",
            (false, true) => "slows down, does not notify senders",
            (false, false) => "off",
        };
        finding
            .read(Verdict::Warn, read)
            .why("senders learn of a full switch only from what is lost")
            .fix(format!(
                "echo 1 | sudo tee {base}/roce_np/enable/3 {base}/roce_rp/enable/3  # the priority of the traffic"
            ))
    }
}
