//! Reads the driver, the ports and the addresses of a NIC from sysfs.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Directory in which Linux lists its RDMA devices.
pub(crate) const SYSFS: &str = "/sys/class/infiniband";
/// Maximum number of entries that are read from a port's GID table; the largest tables have 256.
const MAX_ADDRESSES: u16 = 256;

/// The type of an entry in a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressKind {
    /// An address of an InfiniBand port.
    InfiniBand,
    /// RoCE in Ethernet frames, which are not routable.
    RoceV1,
    /// RoCE in UDP packets.
    RoceV2,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The index of this entry in the GID table.
    pub index: u8,
    /// The GID: the address of the port.
    pub gid: [u8; 16],
    /// The type of the address.
    pub kind: AddressKind,
}

impl Address {
    /// Returns the IPv4 address that the GID contains, if any.
    pub(crate) fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.gid).to_ipv4_mapped()
    }
}

/// A port of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortInfo {
    /// Port number, starting at 1.
    pub number: u8,
    /// True for Ethernet (RoCE), false for InfiniBand.
    pub is_ethernet: bool,
    /// The entries of the GID table.
    pub addresses: Vec<Address>,
}

/// A NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceInfo {
    /// The name of the NIC, as in `mlx5_0`.
    pub name: String,
    /// The Linux driver, as in `mlx5_core`; empty for a software device such as soft-RoCE.
    pub driver: String,
    /// The ports of the NIC.
    pub ports: Vec<PortInfo>,
}

/// Reads the attributes of the NIC `name` from sysfs under `root`. Missing attributes stay empty.
pub(crate) fn info(root: &Path, name: &str) -> DeviceInfo {
    let at = root.join(name);
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
    let driver = fs::canonicalize(at.join("device/driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name);
    DeviceInfo {
        name: name.to_owned(),
        driver: driver.map_or_else(String::new, |driver| driver.to_string_lossy().into_owned()),
        ports,
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

fn port(at: &Path, number: u8) -> PortInfo {
    let is_ethernet = text(&at.join("link_layer")) == "Ethernet";
    PortInfo {
        number,
        is_ethernet,
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
                Some(Address { index, gid, kind })
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
        }
    }

    fn port_of(is_ethernet: bool, addresses: Vec<Address>) -> PortInfo {
        PortInfo {
            number: 1,
            is_ethernet,
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
        write("drivers/mlx5_core/x", "");
        let port = "class/mlx5_0/ports/1";
        write(&format!("{port}/link_layer"), "Ethernet\n");
        for (index, gid, kind) in [
            (0, "fe80::1", "IB/RoCE v1"),
            (1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
            (2, "0000:0000:0000:0000:0000:0000:0000:0000", ""),
            (3, "2001:0db8:0000:0000:0000:0000:0000:0001", "RoCE v2"),
        ] {
            write(&format!("{port}/gids/{index}"), &format!("{gid}\n"));
            if !kind.is_empty() {
                let at = format!("{port}/gid_attrs/types/{index}");
                write(&at, &format!("{kind}\n"));
            }
        }
        fs::create_dir(at.join("class/mlx5_0/device")).unwrap();
        std::os::unix::fs::symlink(
            at.join("drivers/mlx5_core"),
            at.join("class/mlx5_0/device/driver"),
        )
        .unwrap();

        let info = info(&at.join("class"), "mlx5_0");
        assert_eq!(info.driver, "mlx5_core");
        let [port] = info.ports.as_slice() else {
            panic!("{info:?}")
        };
        assert!(port.is_ethernet);
        let places: Vec<_> = port
            .addresses
            .iter()
            .map(|address| (address.index, address.kind))
            .collect();
        assert_eq!(
            places,
            [
                (0, AddressKind::RoceV1),
                (1, AddressKind::RoceV2),
                (3, AddressKind::RoceV2),
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
        assert_eq!(info.driver, "");
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
    }
}
