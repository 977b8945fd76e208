//! Lists NICs from sysfs with their ports, addresses and PCI locations.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Directory in which Linux lists its RDMA devices.
pub(crate) const SYSFS: &str = "/sys/class/infiniband";
/// Maximum number of entries that are read from a port's GID table; the largest tables have 256.
const MAX_ADDRESSES: u16 = 256;

/// The type of an entry in a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// An address of an InfiniBand port.
    InfiniBand,
    /// RoCE in Ethernet frames, which are not routable.
    RoceV1,
    /// RoCE in UDP packets.
    RoceV2,
}

impl fmt::Display for AddressKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The index of this entry in the GID table.
    pub index: u8,
    /// The GID: the address of the port.
    pub gid: [u8; 16],
    /// The type of the address.
    pub kind: AddressKind,
    /// The network device of the address.
    pub netdev: Option<String>,
}

impl Address {
    /// Returns the IPv4 address that the GID contains, if any.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.gid).to_ipv4_mapped()
    }
}

/// A port of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Port number, starting at 1.
    pub number: u8,
    /// True if the port is up.
    pub is_active: bool,
    /// True for Ethernet (RoCE), false for InfiniBand.
    pub is_ethernet: bool,
    /// The speed as Linux reports it, as in `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// Local identifier (LID); 0 on Ethernet.
    pub lid: u16,
    /// The entries of the GID table.
    pub addresses: Vec<Address>,
}

/// A NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name of the NIC, as in `mlx5_0`.
    pub name: String,
    /// The GUID, as in `b83f:d203:00a1:b2c4`.
    pub guid: String,
    /// Firmware version; empty if unknown.
    pub firmware: String,
    /// The Linux driver, as in `mlx5_core`; empty for a software device such as soft-RoCE.
    pub driver: String,
    /// The PCI address, as in `0000:3b:00.0`; `None` for a software device.
    pub pci: Option<String>,
    /// The NUMA node, if known.
    pub node: Option<u32>,
    /// The ports of the NIC.
    pub ports: Vec<PortInfo>,
}

/// Reads the attributes of the NIC `name` from sysfs under `root`. Missing attributes stay empty.
pub(crate) fn info(root: &Path, name: &str) -> DeviceInfo {
    let at = root.join(name);
    let device = at.join("device");
    let mut ports: Vec<PortInfo> = fs::read_dir(at.join("ports"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some(port(&entry.path(), number))
        })
        .collect();
    ports.sort_by_key(|port| port.number);
    let base = |link: &Path| -> Option<String> {
        Some(
            fs::canonicalize(link)
                .ok()?
                .file_name()?
                .to_str()?
                .to_owned(),
        )
    };
    DeviceInfo {
        name: name.to_owned(),
        guid: text(&at.join("node_guid")),
        firmware: text(&at.join("fw_ver")),
        driver: base(&device.join("driver")).unwrap_or_default(),
        pci: base(&device).filter(|last| is_pci(last)),
        node: text(&device.join("numa_node")).parse().ok(),
        ports,
    }
}

/// Returns true for a PCI address with its domain, as in `0000:3b:00.0`.
fn is_pci(name: &str) -> bool {
    let mut parts = name.split([':', '.']);
    let hex = |part: Option<&str>, digits: usize| {
        part.is_some_and(|part| {
            part.len() >= digits && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    hex(parts.next(), 4)
        && hex(parts.next(), 2)
        && hex(parts.next(), 2)
        && hex(parts.next(), 1)
        && parts.next().is_none()
}

fn text(path: &Path) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

fn port(at: &Path, number: u8) -> PortInfo {
    let is_ethernet = text(&at.join("link_layer")) == "Ethernet";
    let lid = text(&at.join("lid"));
    PortInfo {
        number,
        is_active: text(&at.join("state")).ends_with("ACTIVE"),
        is_ethernet,
        rate: text(&at.join("rate")),
        lid: u16::from_str_radix(lid.trim_start_matches("0x"), 16).unwrap_or(0),
        addresses: (0..MAX_ADDRESSES)
            .map_while(|index| {
                let gid = fs::read_to_string(at.join(format!("gids/{index}"))).ok()?;
                let gid: Option<Ipv6Addr> = gid.trim().parse().ok();
                Some((u8::try_from(index).ok()?, gid?.octets()))
            })
            .filter(|(_, gid)| *gid != [0; 16])
            .filter_map(|(index, gid)| {
                let kind = match text(&at.join(format!("gid_attrs/types/{index}"))).as_str() {
                    "RoCE v2" => AddressKind::RoceV2,
                    "IB/RoCE v1" | "RoCE v1" if is_ethernet => AddressKind::RoceV1,
                    _ if is_ethernet => return None,
                    _ => AddressKind::InfiniBand,
                };
                let netdev = text(&at.join(format!("gid_attrs/ndevs/{index}")));
                Some(Address {
                    index,
                    gid,
                    kind,
                    netdev: (!netdev.is_empty()).then_some(netdev),
                })
            })
            .collect(),
    }
}

/// Returns the default entry of a port's GID table. On Ethernet the default is the first RoCE v2 entry with an IPv4
/// address, or else the first RoCE v2 entry that is not link-local, or else the first RoCE v2 entry. On InfiniBand the
/// default is the first entry.
pub(crate) fn choose(port: &PortInfo) -> Option<&Address> {
    if !port.is_ethernet {
        return port.addresses.first();
    }
    let v2 = || {
        port.addresses
            .iter()
            .filter(|address| address.kind == AddressKind::RoceV2)
    };
    v2().find(|address| address.ipv4().is_some())
        .or_else(|| v2().find(|address| !Ipv6Addr::from(address.gid).is_unicast_link_local()))
        .or_else(|| v2().next())
}

/// Returns the IP address that a GID contains; `None` for an unspecified or link-local address.
pub fn ip(gid: [u8; 16]) -> Option<IpAddr> {
    let address = Ipv6Addr::from(gid);
    match address.to_ipv4_mapped() {
        Some(v4) => Some(v4.into()),
        None if address.is_unicast_link_local() || address.is_unspecified() => None,
        None => Some(address.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(index: u8, gid: &str, kind: AddressKind) -> Address {
        Address {
            index,
            gid: gid.parse::<Ipv6Addr>().unwrap().octets(),
            kind,
            netdev: None,
        }
    }

    fn port_of(is_ethernet: bool, addresses: Vec<Address>) -> PortInfo {
        PortInfo {
            number: 1,
            is_active: true,
            is_ethernet,
            rate: String::new(),
            lid: 0,
            addresses,
        }
    }

    #[test]
    fn best_gid_is_selected() {
        use AddressKind::{InfiniBand, RoceV1, RoceV2};
        let link = "fe80::b83f:d2ff:fea1:b2c4";
        let typical = vec![
            address(0, link, RoceV1),
            address(1, link, RoceV2),
            address(2, "::ffff:10.0.0.1", RoceV1),
            address(3, "::ffff:10.0.0.1", RoceV2),
            address(4, "2001:db8::1", RoceV2),
        ];
        let index = |port: &PortInfo| choose(port).map(|address| address.index);
        assert_eq!(index(&port_of(true, typical.clone())), Some(3));
        let six: Vec<Address> = typical
            .iter()
            .filter(|address| address.ipv4().is_none())
            .cloned()
            .collect();
        assert_eq!(index(&port_of(true, six)), Some(4));
        assert_eq!(index(&port_of(true, typical[..2].to_vec())), Some(1));
        assert_eq!(
            index(&port_of(true, typical[..1].to_vec())),
            None,
            "RoCE v1 must not be chosen"
        );
        assert_eq!(index(&port_of(true, vec![])), None);
        let infiniband = vec![address(0, "fe80::1", InfiniBand)];
        assert_eq!(index(&port_of(false, infiniband)), Some(0));
    }

    #[test]
    fn nic_attributes_are_read_from_sysfs() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        let write = |path: &str, text: &str| {
            let path = at.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("pci/0000:3b:00.1/numa_node", "1\n");
        write("drivers/mlx5_core/x", "");
        write("class/mlx5_0/node_guid", "b83f:d203:00a1:b2c4\n");
        write("class/mlx5_0/fw_ver", "28.39.1002\n");
        let port = "class/mlx5_0/ports/1";
        write(&format!("{port}/state"), "4: ACTIVE\n");
        write(&format!("{port}/link_layer"), "Ethernet\n");
        write(&format!("{port}/rate"), "100 Gb/sec (4X EDR)\n");
        write(&format!("{port}/lid"), "0x0\n");
        for (index, gid, kind, netdev) in [
            (
                0,
                "fe80:0000:0000:0000:0000:0000:0000:0001",
                "IB/RoCE v1",
                "eth0",
            ),
            (
                1,
                "0000:0000:0000:0000:0000:ffff:0a00:0001",
                "RoCE v2",
                "eth0",
            ),
            (2, "0000:0000:0000:0000:0000:0000:0000:0000", "", ""),
            (
                3,
                "2001:0db8:0000:0000:0000:0000:0000:0001",
                "RoCE v2",
                "eth0.7",
            ),
        ] {
            write(&format!("{port}/gids/{index}"), &format!("{gid}\n"));
            if !kind.is_empty() {
                write(
                    &format!("{port}/gid_attrs/types/{index}"),
                    &format!("{kind}\n"),
                );
                write(
                    &format!("{port}/gid_attrs/ndevs/{index}"),
                    &format!("{netdev}\n"),
                );
            }
        }
        std::os::unix::fs::symlink(at.join("pci/0000:3b:00.1"), at.join("class/mlx5_0/device"))
            .unwrap();
        std::os::unix::fs::symlink(
            at.join("drivers/mlx5_core"),
            at.join("pci/0000:3b:00.1/driver"),
        )
        .unwrap();

        let info = info(&at.join("class"), "mlx5_0");
        assert_eq!(info.pci.as_deref(), Some("0000:3b:00.1"));
        assert_eq!((info.node, info.driver.as_str()), (Some(1), "mlx5_core"));
        assert_eq!(info.guid, "b83f:d203:00a1:b2c4");
        let [port] = info.ports.as_slice() else {
            panic!("{info:?}")
        };
        assert!(port.is_active && port.is_ethernet);
        let places: Vec<_> = port
            .addresses
            .iter()
            .map(|address| (address.index, address.kind, address.netdev.as_deref()))
            .collect();
        assert_eq!(
            places,
            [
                (0, AddressKind::RoceV1, Some("eth0")),
                (1, AddressKind::RoceV2, Some("eth0")),
                (3, AddressKind::RoceV2, Some("eth0.7")),
            ]
        );
        assert_eq!(
            choose(port).unwrap().ipv4(),
            Some(Ipv4Addr::new(10, 0, 0, 1))
        );
    }

    /// A NIC without sysfs attributes, for example because it was just removed, must not cause a panic.
    #[test]
    fn removed_nic_has_no_attributes() {
        let info = info(Path::new("/proc/none"), "mlx5_9");
        assert_eq!((info.name.as_str(), info.ports.len()), ("mlx5_9", 0));
        assert_eq!((info.pci, info.node), (None, None));
    }

    #[test]
    fn ip_gids_are_distinguished_from_link_local() {
        let gid = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        assert_eq!(
            ip(gid("::ffff:10.0.0.1")),
            Some("10.0.0.1".parse().unwrap())
        );
        assert_eq!(ip(gid("2001:db8::1")), Some("2001:db8::1".parse().unwrap()));
        assert_eq!(ip(gid("fe80::1")), None);
        assert_eq!(ip([0; 16]), None);
        assert!(is_pci("0000:3b:00.0") && is_pci("10000:3b:00.0"));
        assert!(!is_pci("rxe0") && !is_pci("virtio0") && !is_pci("0000:3b:00"));
    }
}
