//! Reads the properties of network cards from `/sys`.

use super::{Gid, GidKind, Layer, NICS, Nic, NicPort, PEER_MEMORY};
use crate::topology::pci::{self, canonical};
use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;

/// Reads the cards from this machine's `/sys` or from a recorded one, sorted by name.
pub fn read(sys: &Path) -> Vec<Nic> {
    let mut nics: Vec<_> = names(&sys.join(NICS))
        .into_iter()
        .map(|name| nic(sys, name))
        .collect();
    nics.sort_by(|a, b| a.name.cmp(&b.name));
    nics
}

/// Whether a Linux module is loaded that lets network cards access GPU memory without dma-bufs.
pub(in crate::topology) fn peer_memory(sys: &Path) -> bool {
    PEER_MEMORY.iter().any(|module| sys.join(module).is_dir())
}

pub(in crate::topology) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

fn nic(sys: &Path, name: String) -> Nic {
    let at = sys.join(NICS).join(&name);
    // A driver can split a PCI device into several sub-devices. The card's device directory is then below that of the
    // PCI device, so search the parent directories for a PCI address.
    let device = at.join("device").canonicalize().ok();
    let pci = device.as_ref().and_then(|device| {
        let mut above = device.ancestors();
        above.find_map(|path| canonical(path.file_name()?.to_str()?))
    });
    let node = pci
        .as_ref()
        .and_then(|address| pci::value(&sys.join("bus/pci/devices").join(address), "numa_node"));
    let mut ports: Vec<_> = names(&at.join("ports"))
        .iter()
        .filter_map(|number| port(&at, number.parse().ok()?))
        .collect();
    ports.sort_by_key(|port| port.number);
    Nic {
        model: pci::text(&at, "hca_type"),
        firmware: pci::text(&at, "fw_ver"),
        name,
        pci,
        node,
        ports,
    }
}

fn port(card: &Path, number: u32) -> Option<NicPort> {
    let at = card.join("ports").join(number.to_string());
    let after_colon = |file| {
        let text = pci::text(&at, file)?;
        let name = text.split_once(':').map_or(text.as_str(), |(_, name)| name);
        Some(name.trim().to_owned())
    };
    let rate = pci::text(&at, "rate");
    let mut gids: Vec<_> = names(&at.join("gids"))
        .iter()
        .filter_map(|index| gid(&at, index.parse().ok()?))
        .collect();
    gids.sort_by_key(|gid| gid.index);
    let mut netdevs: Vec<_> = gids.iter().filter_map(|gid| gid.netdev.clone()).collect();
    // A port that was never up has an empty GID table. Then use the network interfaces of the card's device. If these
    // report their port, use only those of this port.
    if netdevs.is_empty() {
        let of_device = card.join("device/net");
        netdevs = names(&of_device);
        let of_port = |name: &String| {
            let place = pci::value::<u32>(&of_device.join(name), "dev_port");
            place.is_none_or(|place| place + 1 == number)
        };
        netdevs.retain(of_port);
        netdevs.extend(pci::text(card, "parent"));
    }
    netdevs.sort();
    netdevs.dedup();
    at.is_dir().then(|| NicPort {
        number,
        state: after_colon("state"),
        physical: after_colon("phys_state"),
        layer: match pci::text(&at, "link_layer").as_deref() {
            Some("Ethernet") => Some(Layer::Ethernet),
            Some("InfiniBand") => Some(Layer::InfiniBand),
            _ => None,
        },
        rate: rate.as_deref().and_then(bits),
        lanes: rate.as_deref().and_then(|rate| {
            let (_, lanes) = rate.split_once('(')?;
            Some(lanes.trim_end_matches(')').to_owned())
        }),
        netdevs,
        gids,
    })
}

/// Parses a rate such as `2.5 Gb/sec (1X SDR)` and returns it in bit/s.
fn bits(rate: &str) -> Option<u64> {
    let number = rate.split_whitespace().next()?;
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u64 = whole.parse().ok()?;
    let tenth = tenth.chars().next()?.to_digit(10)?;
    whole
        .checked_mul(1_000_000_000)?
        .checked_add(u64::from(tenth) * 100_000_000)
        .filter(|rate| *rate > 0)
}

fn gid(port: &Path, index: u32) -> Option<Gid> {
    let address: Ipv6Addr = pci::value(port, &format!("gids/{index}"))?;
    if address.is_unspecified() {
        return None;
    }
    let kind = pci::text(port, &format!("gid_attrs/types/{index}"));
    let netdev = pci::text(port, &format!("gid_attrs/ndevs/{index}"));
    Some(Gid {
        index,
        address,
        kind: match kind.as_deref() {
            Some("RoCE v2") => Some(GidKind::V2),
            Some("IB/RoCE v1" | "IB/RoCE V1") => Some(GidKind::V1),
            _ => None,
        },
        netdev: netdev.filter(|name| !name.is_empty()),
    })
}
