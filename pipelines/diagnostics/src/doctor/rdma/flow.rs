//! Checks settings that prevent an Ethernet network from dropping RoCE packets: priority flow control (PFC) and
//! explicit congestion notification (ECN).

use super::{NET, Port};
use crate::doctor::check::{Judgement, not_applicable, ok, unknown, warn};

const PRIORITIES: usize = 8;

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

impl Port<'_> {
    /// Returns the network interface of the port; `None` for an emulated card, which has no flow control.
    fn device_interface(&self) -> Option<&str> {
        self.card.device?;
        self.port.netdevs.first().map(String::as_str)
    }

    /// Reports which priorities use PFC. Only drivers from NVIDIA's driver packages show this setting in a file.
    pub(super) fn pfc(&self) -> Option<Judgement> {
        let Some(interface) = self.device_interface() else {
            return Some(not_applicable());
        };
        let path = format!("{NET}/{interface}/qos/pfc");
        let read = self.card.machine.root.text(&path);
        let judged = match read.as_deref().and_then(flags) {
            None => unknown(
                "not reported in /sys",
                "without pause frames, a switch with full buffers drops packets, and RC retransmits all packets from the lost one on",
            )
            .fix(format!("mlnx_qos -i {interface}  # or: dcb pfc show dev {interface}")),
            Some(flags) if flags.contains(&true) => ok(format!("for priority {}", on(&flags)))
                .why("the RDMA traffic must use this priority on the hosts and on the switch"),
            Some(_) => warn(
                "off",
                "a switch with full buffers drops packets, and RC retransmits all packets from the lost one on",
                format!(
                    "sudo mlnx_qos -i {interface} --pfc 0,0,0,1,0,0,0,0 --trust dscp  # or: sudo dcb pfc set dev {interface} prio-pfc 3:on; set the same priority on the switch"
                ),
            ),
        };
        Some(judged.from(path))
    }

    /// Checks whether the card reports ECN marks to senders (notification point), and slows down when it receives such
    /// reports (reaction point).
    pub(super) fn ecn(&self) -> Option<Judgement> {
        let Some(interface) = self.device_interface() else {
            return Some(not_applicable());
        };
        let base = format!("{NET}/{interface}/ecn");
        let root = self.card.machine.root;
        let side = |side: &str| -> Option<Vec<bool>> {
            let priority = |i| Some(root.text(&format!("{base}/{side}/enable/{i}"))? == "1");
            (0..PRIORITIES).map(priority).collect()
        };
        let judged = if let (Some(np), Some(rp)) = (side("roce_np"), side("roce_rp")) {
            let both: Vec<_> = np.iter().zip(&rp).map(|(np, rp)| *np && *rp).collect();
            let why = "senders slow down only after a switch with full buffers has dropped packets";
            let fix = format!(
                "echo 1 | sudo tee {base}/roce_np/enable/3 {base}/roce_rp/enable/3  # use the priority of the traffic"
            );
            match (np.contains(&true), rp.contains(&true)) {
                _ if both.contains(&true) => ok(format!("for priority {}", on(&both))),
                (true, _) => warn("notifies senders but does not slow down itself", why, fix),
                (false, true) => warn("slows down but does not notify senders", why, fix),
                (false, false) => warn("off", why, fix),
            }
        } else {
            let pci = self.card.nic.pci.as_deref().unwrap_or("*");
            let why = "switches mark packets so that senders slow down before packets are dropped";
            unknown("not reported in /sys", why).fix(format!(
            "sudo grep -r . /sys/kernel/debug/mlx5/{pci}/cc_params/  # also check the counter rp_cnp_handled"
        ))
        };
        Some(judged.from(format!("{base}/roce_{{np,rp}}/enable/*")))
    }
}
