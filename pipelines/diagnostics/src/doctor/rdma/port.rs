//! Checks a port: its state, its rate compared with its slot, its addresses and its MTU.

use super::{NET, Port};
use crate::doctor::cards::SLOW_SLOT;
use crate::doctor::check::{Judgement, not_applicable, ok, unreadable, warn};
use daq_core::topology::nic::{GidKind, Layer};
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

impl Port<'_> {
    pub(super) fn state(&self) -> Option<Judgement> {
        let port = self.port;
        let parts = [
            Some(port.state.as_ref()?.to_lowercase()),
            port.physical.as_ref().map(|link| link.to_lowercase()),
            port.layer.map(|layer| layer.to_string()),
        ];
        let read = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        if port.is_active() {
            return Some(ok(read));
        }
        if self.card.nic.is_active() {
            return Some(ok(read).why("not needed, because another port of the card is up"));
        }
        let is_up = port.physical.as_deref() == Some("LinkUp");
        let (why, fix) = match port.layer {
            Some(Layer::InfiniBand) if is_up => (
                "the link is up, but no subnet manager has assigned an address to the port",
                "sudo systemctl start opensm  # on one host of the network, if no switch runs a subnet manager".to_owned(),
            ),
            Some(Layer::InfiniBand) => (
                "the port cannot transfer data",
                format!(
                    "iblinkinfo; sudo mlxlink -d {}  # check the cable and the switch port",
                    self.card.nic.name
                ),
            ),
            _ => (
                "the port cannot transfer data",
                format!(
                    "sudo ip link set {0} up; ethtool {0}  # check the cable and the switch port",
                    self.interface()
                ),
            ),
        };
        Some(warn(read, why, fix))
    }

    /// Compares the port's rate with the rate of the card's slot, and reports the number of working lanes.
    pub(super) fn rate(&self) -> Option<Judgement> {
        let rate = self.port.rate?;
        let name = &self.card.nic.name;
        let lanes = self.port.lanes.as_deref().unwrap_or_default();
        let shown = |rate: u64| BitRate(rate as f64).to_string();
        let read = match lanes {
            "" => shown(rate),
            lanes => format!("{} ({lanes})", shown(rate)),
        };
        // InfiniBand links can fall back to one lane. For Ethernet, the lanes that the driver reports are not real.
        let width = lanes.split('X').next();
        let width: Option<u32> = width.and_then(|lanes| lanes.parse().ok());
        if self.port.layer == Some(Layer::InfiniBand) && width.is_some_and(|width| width < 4) {
            return Some(warn(
                read,
                "not all lanes of the link are active, so the port cannot reach its maximum rate",
                format!(
                    "sudo mlxlink -d {name} -m  # shows what cable and port support; replace the cable, reset the link"
                ),
            ));
        }
        let tree = &self.card.machine.topology.pci;
        let hops = self.card.device.map(|device| tree.hops(device));
        let slot = hops
            .into_iter()
            .flatten()
            .map(|hop| hop.effective.rate().saturating_mul(8))
            .filter(|rate| *rate > 0)
            .min();
        Some(match slot {
            Some(slot) if slot < rate && !tree.processor.is_virtual => {
                let why = format!("the card's slot limits the rate to {}", shown(slot));
                warn(read, why, SLOW_SLOT)
            }
            _ => ok(read).why(format!(
                "to see the port's maximum rate, run ethtool {0} or sudo mlxlink -d {name}",
                self.interface()
            )),
        })
    }

    /// Reports the GID that connections use.
    pub(super) fn gids(&self) -> Option<Judgement> {
        let give = format!(
            "sudo ip addr add 192.168.100.1/24 dev {}  # an address of your network",
            self.interface()
        );
        if let Some(gid) = self.port.best_gid() {
            let judged = ok(format!("RoCE v2 at {} ({})", gid.index, gid.address));
            return Some(if gid.address.is_unicast_link_local() {
                let why = "this is a link-local address; hosts behind a router cannot reach it";
                judged.why(why).fix(give)
            } else {
                judged
            });
        }
        let has_v1 = self
            .port
            .gids
            .iter()
            .any(|gid| gid.kind == Some(GidKind::V1));
        let nic = self.card.nic;
        Some(if has_v1 {
            warn(
                "only RoCE v1",
                "daq requires RoCE v2, which the card or its driver does not offer",
                format!(
                    "sudo mlxconfig -d {} query | grep -i roce  # RoCE v2 may be disabled in the firmware",
                    nic.pci.as_deref().unwrap_or(&nic.name)
                ),
            )
        } else {
            let why = "the port has no address, so peers cannot send to it";
            warn("empty", why, give)
        })
    }

    /// Reports the RoCE version that rdma_cm uses, if Linux reports it.
    pub(super) fn cm(&self) -> Option<Judgement> {
        let (name, number) = (&self.card.nic.name, self.port.number);
        let path = format!("{CM}/{name}/ports/{number}/default_roce_mode");
        let judged = match self.card.machine.root.text(&path) {
            None => not_applicable(),
            Some(mode) if mode == "RoCE v2" => ok(mode),
            Some(mode) => warn(
                mode,
                "rdma_cm uses RoCE v1 and cannot connect to peers that use RoCE v2",
                format!("sudo cma_roce_mode -d {name} -p {number} -m 2"),
            ),
        };
        Some(judged.from(path))
    }

    /// Reports the packet size, which is derived from the interface's MTU.
    pub(super) fn mtu(&self) -> Option<Judgement> {
        let path = format!("{NET}/{}/mtu", self.interface());
        let Some(mtu) = self.card.machine.root.value::<u32>(&path) else {
            return Some(unreadable().from(path));
        };
        let room = mtu.saturating_sub(ROCE_HEADERS);
        let payload = SIZES.into_iter().find(|size| *size <= room).unwrap_or(0);
        let read = format!("{mtu}: packets of {payload} B");
        let judged = if mtu < MTU_WANTED {
            let why =
                "small packets reduce throughput; if the peer's MTU differs, no packets arrive";
            let fix = format!(
                "sudo ip link set {} mtu 9000  # also on the peer and the switch",
                self.interface()
            );
            warn(read, why, fix)
        } else {
            ok(read).why("the peer and the switch must support packets of this size; test with ping -M do -s 4172 PEER")
        };
        Some(judged.from(path))
    }
}
