//! RDMA network cards from `/sys/class/infiniband`: position in the PCIe tree, ports and addresses.
//!
//! Everything is read from files, so a recorded tree works like a real machine. The nearest card to a GPU is a pure
//! function of the tree.

mod read;

pub use read::read;
pub(super) use read::{names, peer_memory};

use super::{P2pPreference, P2pQuery, PeerAccess, Relation, Topology};
use crate::units::BitRate;
use std::fmt;
use std::net::Ipv6Addr;

/// Directory below `/sys` in which Linux lists the cards.
pub(super) const NICS: &str = "class/infiniband";
/// Linux modules that let network cards access GPU memory without dma-bufs. The second is the predecessor of the first.
pub(super) const PEER_MEMORY: [&str; 2] = ["module/nvidia_peermem", "module/nv_peer_mem"];
/// Prefix of the names of emulated cards, which run inside this process.
pub const EMULATED: &str = "emulated";
/// The name that selects the nearest card.
pub const AUTO: &str = "auto";

/// Link layer of a port.
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

/// Type of a port's address (GID), which determines the packet format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, or RoCE v1, which cannot be routed. Linux uses the same name for both.
    V1,
    /// RoCE v2: RDMA packets inside UDP packets.
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

/// An address (GID) of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Index in the port's GID table.
    pub index: u32,
    /// The address; an IPv4 address is written as `::ffff:a.b.c.d`.
    pub address: Ipv6Addr,
    /// Type of the address; `None` if Linux does not report it.
    pub kind: Option<GidKind>,
    /// The network interface that the address belongs to.
    pub netdev: Option<String>,
}

impl Gid {
    /// Whether the address is an IPv4 address.
    pub(crate) fn is_v4(&self) -> bool {
        self.address.to_ipv4_mapped().is_some()
    }

    /// Returns an address of the same kind, without the part that identifies the host.
    pub(super) fn anonymous(&self) -> Ipv6Addr {
        match self.address.segments() {
            [0xfe80, ..] => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0),
            _ if self.is_v4() => Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0),
            // The IPv6 prefix reserved for documentation (RFC 3849).
            _ => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0),
        }
    }
}

/// A port of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicPort {
    /// Port number, starting at 1.
    pub number: u32,
    /// Linux's name of the port state, such as `ACTIVE` or `DOWN`.
    pub state: Option<String>,
    /// Linux's name of the state of the physical link, such as `LinkUp` or `Disabled`.
    pub physical: Option<String>,
    /// Link layer of the port.
    pub layer: Option<Layer>,
    /// Data rate in bit/s.
    pub rate: Option<u64>,
    /// Number of lanes and speed per lane, such as `4X HDR`.
    pub lanes: Option<String>,
    /// Names of the port's network interfaces.
    pub netdevs: Vec<String>,
    /// Addresses of the port, without the empty entries of the GID table.
    pub gids: Vec<Gid>,
}

impl NicPort {
    /// Whether the port can transfer data.
    pub fn is_active(&self) -> bool {
        self.state.as_deref() == Some("ACTIVE")
    }

    /// Returns the address to use. On Ethernet, an IPv4 address of RoCE v2 takes precedence over other addresses of
    /// RoCE v2. On InfiniBand, the first address is used.
    pub fn best_gid(&self) -> Option<&Gid> {
        if self.layer == Some(Layer::InfiniBand) {
            return self.gids.first();
        }
        let mut v2 = self.gids.iter().filter(|gid| gid.kind == Some(GidKind::V2));
        v2.clone().find(|gid| gid.is_v4()).or_else(|| v2.next())
    }

    /// Describes the port in text for users.
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

/// An RDMA network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Name, such as `mlx5_0`.
    pub name: String,
    /// PCI address, such as `0000:3b:00.0`; `None` for a card without PCI device, such as the soft-RoCE card `rxe0`.
    pub pci: Option<String>,
    /// The NUMA node that the card is connected to.
    pub node: Option<u32>,
    /// The vendor's name of the model, such as `MT4123`.
    pub model: Option<String>,
    /// Firmware version.
    pub firmware: Option<String>,
    /// Ports, in ascending order.
    pub ports: Vec<NicPort>,
}

impl Nic {
    /// Whether at least one port can transfer data.
    pub fn is_active(&self) -> bool {
        self.ports.iter().any(NicPort::is_active)
    }

    /// Returns the data rate of the fastest active port in bit/s.
    pub fn rate(&self) -> u64 {
        let up = self.ports.iter().filter(|port| port.is_active());
        up.filter_map(|port| port.rate).max().unwrap_or(0)
    }

    /// Describes the card's name and ports in text for users.
    pub fn describe(&self) -> String {
        let ports: Vec<_> = self.ports.iter().map(NicPort::describe).collect();
        match ports.as_slice() {
            [] => format!("{} without ports", self.name),
            _ => format!("{} {}", self.name, ports.join("; ")),
        }
    }
}

/// Whether `name` is the name of an emulated card. An emulated card runs inside this process and copies with the CPU.
/// It has no PCI address and can write any memory that the CPU can write.
///
/// ```
/// use daq_core::topology::nic::is_emulated_nic;
/// assert!(is_emulated_nic("emulated") && is_emulated_nic("emulated:127.0.0.2"));
/// assert!(is_emulated_nic("emulated?hold") && !is_emulated_nic("mlx5_0"));
/// ```
pub fn is_emulated_nic(name: &str) -> bool {
    name.strip_prefix(EMULATED)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '?']))
}

/// The error for a network card that was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NicError {
    /// No card has the requested name.
    #[error("there is no RDMA network card `{name}`; available: {} (`emulated` needs no hardware)", named(.there))]
    Unknown {
        /// The requested name.
        name: String,
        /// The names of the available cards.
        there: Vec<String>,
    },
    /// The machine has no RDMA network card.
    #[error(
        "this machine has no RDMA network card; run daq doctor, or use the emulated card: nics = [\"emulated\"]"
    )]
    None,
}

/// Formats a list of card names for an error message.
fn named(names: &[String]) -> String {
    if names.is_empty() {
        return "none; run daq doctor".to_owned();
    }
    names.join(", ")
}

impl Topology {
    /// Returns the card with the given name.
    ///
    /// # Errors
    /// If no card has this name; the error lists the available cards.
    pub fn nic(&self, name: &str) -> Result<&Nic, NicError> {
        let mut nics = self.nics.iter();
        nics.find(|nic| nic.name == name)
            .ok_or_else(|| NicError::Unknown {
                name: name.to_owned(),
                there: self.nics.iter().map(|nic| nic.name.clone()).collect(),
            })
    }

    /// Returns the properties of a card that a stored measurement depends on, as text: PCI address, firmware version,
    /// and whether a Linux module lets cards access GPU memory. A measurement is valid only while this text is
    /// unchanged.
    pub fn measurement_basis(&self, name: &str) -> String {
        let nic = self.nics.iter().find(|nic| nic.name == name);
        let of = |parts: Option<&String>| parts.map_or("?", String::as_str).to_owned();
        format!(
            "{}|firmware {}|peer memory {}",
            of(nic.and_then(|nic| nic.pci.as_ref())),
            of(nic.and_then(|nic| nic.firmware.as_ref())),
            self.peer_memory
        )
    }

    /// Returns the PCI address of the device that writes into the memory of `gpu`. `device` may be the name of a card,
    /// or `auto` for the nearest card. Any other text is returned unchanged.
    pub fn address_of<'a>(&'a self, device: &'a str, gpu: u32) -> &'a str {
        let nic = match device {
            AUTO => self.nearest_nic(gpu),
            name => self.nic(name).ok(),
        };
        nic.and_then(|nic| nic.pci.as_deref()).unwrap_or(device)
    }

    /// Returns the distance between a card and a GPU.
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

    /// Returns the NICs on the PCIe bus with their distance from a GPU. NICs with an active port come first, then the
    /// nearest, then the fastest, then by name. Emulated NICs are left out, because they cannot write GPU memory.
    pub(crate) fn nics_by_distance(&self, gpu: u32) -> Vec<(&Nic, Relation)> {
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

    /// Returns the best card for a ring on a GPU, see [`nics_by_distance`](Self::nics_by_distance); `None` if no card
    /// is on the PCIe bus.
    pub(crate) fn nearest_nic(&self, gpu: u32) -> Option<&Nic> {
        self.nics_by_distance(gpu).first().map(|(nic, _)| *nic)
    }

    /// Selects the card for a ring. A `declared` card takes precedence. Otherwise the nearest card is selected for a
    /// ring on a GPU, and the fastest active card for a ring in host memory.
    ///
    /// # Errors
    /// If the machine has no card, or no card has the declared name.
    pub(crate) fn nic_for(
        &self,
        gpu: Option<u32>,
        declared: Option<&str>,
    ) -> Result<&Nic, NicError> {
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
