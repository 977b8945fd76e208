//! The key `timestamps`: which clock the receive times of packets are read from.

use crate::sys::interface::Interface;
use crate::sys::socket::Timestamps;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};

/// Where receive times come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum TimestampSource {
    /// Linux reads the host's clock.
    #[default]
    Software,
    /// The network card reads its PTP clock.
    Hardware,
    /// The network card reads its PTP clock if its timestamps are on, otherwise Linux reads the host's clock.
    Auto,
}

impl TimestampSource {
    /// Returns the times to request from Linux.
    pub(super) const fn request(self) -> Timestamps {
        match self {
            Self::Software => Timestamps::Software,
            Self::Hardware | Self::Auto => Timestamps::Hardware,
        }
    }

    /// Returns why hardware timestamps are missing on the interfaces of a source that listens on `listen`, whose key
    /// `interface` is `interface`. Returns `None` if all are on, or if they are not requested.
    pub(super) fn fault(self, listen: &[SocketAddr], interface: Option<&str>) -> Option<String> {
        if self == Self::Software {
            return None;
        }
        let mut interfaces: Vec<_> = listen
            .iter()
            .filter_map(|address| find(address.ip(), interface))
            .collect();
        interfaces.dedup_by(|a, b| a.index() == b.index());
        interfaces.iter().find_map(missing)
    }
}

/// Returns the interface that receives packets to `address`, if it is known.
fn find(address: IpAddr, interface: Option<&str>) -> Option<Interface> {
    match (interface, address) {
        (Some(name), _) => match name.parse() {
            Ok(address) => Interface::with_address(address).ok()?,
            Err(_) => Interface::find(name).ok(),
        },
        (None, IpAddr::V4(address)) => Interface::with_address(address).ok()?,
        (None, IpAddr::V6(address)) if address.is_loopback() => Interface::find("lo").ok(),
        (None, IpAddr::V6(_)) => None,
    }
}

/// Returns why `interface` does not timestamp all packets that it receives, with a fix.
fn missing(interface: &Interface) -> Option<String> {
    let name = interface.name();
    match interface.timestamping() {
        Some(state) if state.is_on() => None,
        Some(state) if state.can_receive() => Some(format!(
            "the hardware timestamps of interface {name} are off; turn them on: sudo hwstamp_ctl -i {name} -r 1"
        )),
        _ => Some(format!(
            "interface {name} cannot timestamp received packets in hardware (`ethtool -T {name}` shows what it supports)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_hardware_timestamps() {
        let listen = ["127.0.0.1:5000".parse().unwrap()];
        for (source, is_fault) in [
            (TimestampSource::Software, false),
            (TimestampSource::Hardware, true),
            (TimestampSource::Auto, true),
        ] {
            let fault = source.fault(&listen, None);
            let names_lo = fault
                .as_ref()
                .is_some_and(|why| why.contains("interface lo cannot"));
            assert_eq!(names_lo, is_fault, "{fault:?}");
        }
        let any = ["0.0.0.0:5000".parse().unwrap()];
        assert_eq!(TimestampSource::Auto.fault(&any, None), None);
        assert!(TimestampSource::Auto.fault(&any, Some("lo")).is_some());
    }
}
