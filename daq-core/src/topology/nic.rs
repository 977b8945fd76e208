//! Network cards for RDMA, as `/sys/class/infiniband` shows them: where each hangs, its ports, its addresses.
//!
//! Everything is read from files, so a recorded tree does as well as the machine. Which card is nearest to a GPU is a
//! pure function of the tree.

mod read;

pub use read::read;
pub(super) use read::{names, peer_memory};

use super::{P2pPreference, P2pQuery, PeerAccess, Relation, Topology};
use crate::units::BitRate;
use std::fmt;
use std::net::Ipv6Addr;

/// Where the kernel lists the cards.
pub(super) const CARDS: &str = "class/infiniband";
/// Kernel modules by which a card is parts where a GPU's memory is; the second is the first's predecessor.
pub(super) const PEER_MEMORY: [&str; 2] = ["module/nvidia_peermem", "module/nv_peer_mem"];
/// What the names of cards begin with that this process is itself.
pub const EMULATED: &str = "emulated";
/// A card's name that stands for the nearest one.
pub const AUTO: &str = "auto";

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// RoCE.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "Ethernet",
            Self::InfiniBand => "InfiniBand",
        })
    }
}

/// How a port's address is written on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, and RoCE v1, which no router passes on; the kernel gives both one name.
    V1,
    /// RoCE v2: inside of UDP packets.
    V2,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "IB/RoCE v1",
            Self::V2 => "RoCE v2",
        })
    }
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u32,
    /// The address; one of IPv4 as `::ffff:a.b.c.d`.
    pub address: Ipv6Addr,
    /// How it is written on the wire; `None` where the kernel does not say.
    pub kind: Option<GidKind>,
    /// The network interface that it belongs to.
    pub netdev: Option<String>,
}

impl Gid {
    /// Whether it is the address of an interface that has an IPv4 address.
    pub fn is_v4(&self) -> bool {
        self.address.to_ipv4_mapped().is_some()
    }

    /// The address without the part that identifies a host; the kind of address is kept.
    pub(super) fn anonymous(&self) -> Ipv6Addr {
        match self.address.segments() {
            [0xfe80, ..] => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0),
            _ if self.is_v4() => Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0),
            // A prefix of documentation (RFC 3849).
            _ => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0),
        }
    }
}

/// A port of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicPort {
    /// Its number, from 1 on.
    pub number: u32,
    /// What the kernel calls its state, as in `ACTIVE` or `DOWN`.
    pub state: Option<String>,
    /// What the kernel calls the state of its link, as in `LinkUp` or `Disabled`.
    pub physical: Option<String>,
    /// What it speaks.
    pub layer: Option<Layer>,
    /// Bits a second.
    pub rate: Option<u64>,
    /// How the rate comes about, as in `4X HDR`.
    pub lanes: Option<String>,
    /// Its network interfaces.
    pub netdevs: Vec<String>,
    /// Its addresses, those places left out that are empty.
    pub gids: Vec<Gid>,
}

impl NicPort {
    /// Whether data can pass.
    pub fn is_active(&self) -> bool {
        self.state.as_deref() == Some("ACTIVE")
    }

    /// The place of the address to use: RoCE v2 of IPv4, else any of RoCE v2; on InfiniBand the first.
    pub fn best_gid(&self) -> Option<&Gid> {
        if self.layer == Some(Layer::InfiniBand) {
            return self.gids.first();
        }
        let mut v2 = self.gids.iter().filter(|gid| gid.kind == Some(GidKind::V2));
        v2.clone().find(|gid| gid.is_v4()).or_else(|| v2.next())
    }

    /// What is known of it, for people.
    pub fn describe(&self) -> String {
        let mut parts = vec![format!(
            "port {} {}",
            self.number,
            self.state
                .as_deref()
                .map_or_else(|| "in unknown state".to_owned(), str::to_lowercase)
        )];
        let layer = self.layer.map(|layer| layer.to_string());
        let rate = self.rate.map(|rate| BitRate(rate as f64).to_string());
        let speed: Vec<_> = [layer, rate].into_iter().flatten().collect();
        if !speed.is_empty() {
            parts.push(speed.join(" "));
        }
        parts.extend(self.netdevs.iter().cloned());
        if self.layer == Some(Layer::Ethernet) {
            parts.push(match self.best_gid() {
                Some(gid) => format!("RoCE v2 at GID {}", gid.index),
                None => "no RoCE v2 GID".to_owned(),
            });
        }
        parts.join(", ")
    }
}

/// A network card for RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// As in `mlx5_0`.
    pub name: String,
    /// Its address, as in `0000:3b:00.0`; `None` for one of software, as `rxe0`.
    pub pci: Option<String>,
    /// The NUMA node it hangs on.
    pub node: Option<u32>,
    /// What the maker calls the model, as in `MT4123`.
    pub model: Option<String>,
    /// The version of its firmware.
    pub firmware: Option<String>,
    /// Its ports, ascending.
    pub ports: Vec<NicPort>,
}

impl Nic {
    /// Whether data can pass through any of its ports.
    pub fn is_active(&self) -> bool {
        self.ports.iter().any(NicPort::is_active)
    }

    /// Bits a second of its fastest port that is up.
    pub fn rate(&self) -> u64 {
        let up = self.ports.iter().filter(|port| port.is_active());
        up.filter_map(|port| port.rate).max().unwrap_or(0)
    }

    /// Its name and ports, for people.
    pub fn describe(&self) -> String {
        let ports: Vec<_> = self.ports.iter().map(NicPort::describe).collect();
        match ports.as_slice() {
            [] => format!("{} without ports", self.name),
            _ => format!("{} {}", self.name, ports.join("; ")),
        }
    }
}

/// Whether a card's name is that of one which this process is itself: its engine is the CPU, so it has no place and
/// writes whatever the CPU reaches.
///
/// ```
/// use daq_core::topology::nic::is_emulated_nic;
/// assert!(is_emulated_nic("emulated") && is_emulated_nic("emulated:127.0.0.2"));
/// assert!(!is_emulated_nic("mlx5_0"));
/// ```
pub fn is_emulated_nic(name: &str) -> bool {
    name.strip_prefix(EMULATED)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// There is no such card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NicError {
    /// Not of that name.
    #[error("there is no RDMA network card `{name}`; available: {} (`emulated` needs no hardware)", named(.there))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names of those that are there.
        there: Vec<String>,
    },
    /// None at all.
    #[error(
        "this machine has no RDMA network card; run daq doctor, or use the emulated card: nics = [\"emulated\"]"
    )]
    None,
}

/// A list for people.
fn named(names: &[String]) -> String {
    if names.is_empty() {
        return "none; run daq doctor".to_owned();
    }
    names.join(", ")
}

impl Topology {
    /// The card of that name.
    ///
    /// # Errors
    /// If there is no such card; the error lists the available cards.
    pub fn nic(&self, name: &str) -> Result<&Nic, NicError> {
        let mut nics = self.nics.iter();
        nics.find(|nic| nic.name == name)
            .ok_or_else(|| NicError::Unknown {
                name: name.to_owned(),
                there: self.nics.iter().map(|nic| nic.name.clone()).collect(),
            })
    }

    /// What must not change for a measurement of the card of that name to hold, as text: its place, its firmware, and whether
    /// a module lets cards reach GPUs' memory.
    pub fn card_basis(&self, name: &str) -> String {
        let nic = self.nics.iter().find(|nic| nic.name == name);
        let of = |parts: Option<&String>| parts.map_or("?", String::as_str).to_owned();
        format!(
            "{}|firmware {}|peer memory {}",
            of(nic.and_then(|nic| nic.pci.as_ref())),
            of(nic.and_then(|nic| nic.firmware.as_ref())),
            self.peer_memory
        )
    }

    /// The address of a device that is to write into that GPU's memory: `device` itself, where it is none of a card's
    /// names; `auto` is the nearest card.
    pub fn address_of<'a>(&'a self, device: &'a str, gpu: u32) -> &'a str {
        let nic = match device {
            AUTO => self.nearest_nic(gpu),
            name => self.nic(name).ok(),
        };
        nic.and_then(|nic| nic.pci.as_deref()).unwrap_or(device)
    }

    /// How far a card is from a GPU.
    pub fn nic_relation(&self, nic: &Nic, gpu: u32) -> Relation {
        let Some(device) = &nic.pci else {
            return Relation::Unknown;
        };
        let asked = P2pQuery {
            device,
            gpu,
            bytes: 0,
            preference: P2pPreference::Auto,
            direction: PeerAccess::Write,
        };
        self.p2p_path(&asked).relation
    }

    /// Returns the NICs on the PCIe bus with their distance from a GPU. NICs with an active port come first, then the nearest,
    /// then the fastest, then by name. Emulated NICs are left out, because they cannot write GPU memory.
    pub fn nics_by_distance(&self, gpu: u32) -> Vec<(&Nic, Relation)> {
        let on_bus = self.nics.iter().filter(|nic| nic.pci.is_some());
        let mut nics: Vec<_> = on_bus
            .map(|nic| (nic, self.nic_relation(nic, gpu)))
            .collect();
        nics.sort_by_key(|(nic, relation)| {
            let idle = !nic.is_active();
            (idle, *relation, std::cmp::Reverse(nic.rate()), &nic.name)
        });
        nics
    }

    /// The card that serves a ring on that GPU best; `None` where the bus has none.
    pub fn nearest_nic(&self, gpu: u32) -> Option<&Nic> {
        self.nics_by_distance(gpu).first().map(|(nic, _)| *nic)
    }

    /// The card for a ring: the one that is declared, else for one on a GPU the nearest, for one in host memory the
    /// fastest that is up.
    ///
    /// # Errors
    /// If there is none, or none of that name.
    pub fn nic_for(&self, gpu: Option<u32>, declared: Option<&str>) -> Result<&Nic, NicError> {
        if let Some(name) = declared {
            return self.nic(name);
        }
        let found = if let Some(gpu) = gpu {
            self.nearest_nic(gpu)
        } else {
            let nics = self.nics.iter();
            nics.min_by_key(|nic| {
                let rate = std::cmp::Reverse(nic.rate());
                (!nic.is_active(), nic.pci.is_none(), rate)
            })
        };
        found.ok_or(NicError::None)
    }
}
