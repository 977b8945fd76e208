//! Checks settings that prevent an Ethernet network from dropping RoCE packets: priority flow control (PFC) and
//! explicit congestion notification (ECN).

use super::{Card, Finding, NET, Verdict};
use daq_core::topology::nic::{Layer, NicPort};

const PRIORITIES: usize = 8;

/// Returns the findings of a port. Returns an empty list for InfiniBand, which has link-level flow control, and for a
/// port that is down.
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

/// Parses a file that contains one `0` or `1` per priority; returns `None` for another format.
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

/// Reports which priorities use PFC. Only drivers from NVIDIA's driver packages show this setting in a file.
fn pfc(card: &Card<'_>, port: &NicPort, interface: &str) -> Finding {
    let path = format!("{NET}/{interface}/qos/pfc");
    let finding = card.of_port(port, "PFC", path.as_str());
    let read = card.machine.root.text(&path);
    let Some(flags) = read.as_deref().and_then(flags) else {
        return finding
            .read(Verdict::Unknown, "not reported in /sys")
            .why("without pause frames, a switch with full buffers drops packets, and RC retransmits all packets from the lost one on")
            .fix(format!("mlnx_qos -i {interface}  # or: dcb pfc show dev {interface}"));
    };
    if flags.contains(&true) {
        finding
            .read(Verdict::Ok, format!("for priority {}", on(&flags)))
            .why("the RDMA traffic must use this priority on the hosts and on the switch")
    } else {
        finding
            .read(Verdict::Warn, "off")
            .why("a switch with full buffers drops packets, and RC retransmits all packets from the lost one on")
            .fix(format!(
                "sudo mlnx_qos -i {interface} --pfc 0,0,0,1,0,0,0,0 --trust dscp  # or: sudo dcb pfc set dev {interface} prio-pfc 3:on; set the same priority on the switch"
            ))
    }
}

/// Checks whether the card reports ECN marks to senders (notification point), and slows down when it receives such
/// reports (reaction point).
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
            .read(Verdict::Unknown, "not reported in /sys")
            .why("switches mark packets so that senders slow down before packets are dropped")
            .fix(format!(
                "sudo grep -r . /sys/kernel/debug/mlx5/{}/cc_params/  # also check the counter rp_cnp_handled",
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
            .why("senders slow down only after a switch with full buffers has dropped packets")
            .fix(format!(
                "echo 1 | sudo tee {base}/roce_np/enable/3 {base}/roce_rp/enable/3  # use the priority of the traffic"
            ))
    }
}
