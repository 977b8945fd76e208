//! Network cards by the names that configurations use.

use crate::software::{Card, Faults};
use crate::verbs::{Nic, VerbsError};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// The name of cards made of software.
pub const SOFTWARE: &str = "software";

/// Opens the card of this name: `software`, `software:ADDRESS` or `software:ADDRESS?FAULTS` for one made of software (at
/// 127.0.0.1 where no address is named, with [`Faults`] for tests), else a real one: `mlx5_0`, `mlx5_0:PORT`,
/// `mlx5_0:PORT@GID`.
pub fn open(name: &str) -> Result<Arc<dyn Nic>, VerbsError> {
    let (card, faults) = name.split_once('?').unwrap_or((name, ""));
    let refused = |why: String| VerbsError {
        nic: name.to_owned(),
        call: "opening the card".to_owned(),
        errno: 0,
        why,
    };
    if card == SOFTWARE || card.starts_with("software:") {
        let address = match card.strip_prefix("software:") {
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Some(address) => address.parse().map_err(|_| {
                refused(format!(
                    "{address:?} is no IP address, as in software:10.0.0.1"
                ))
            })?,
        };
        let faults: Faults = faults
            .parse()
            .map_err(|error| refused(format!("{error}")))?;
        return Card::new(address, faults);
    }
    hardware(name, refused)
}

#[cfg(feature = "verbs")]
fn hardware(
    name: &str,
    refused: impl Fn(String) -> VerbsError,
) -> Result<Arc<dyn Nic>, VerbsError> {
    let (card, rest) = name.split_once(':').unwrap_or((name, "1"));
    let (port, gid) = match rest.split_once('@') {
        Some((port, gid)) => (port, Some(gid)),
        None => (rest, None),
    };
    let number = |what: &str, text: &str| {
        let parsed = text.parse::<u8>();
        parsed.map_err(|_| refused(format!("{text:?} is no {what}, as in mlx5_0:1@3")))
    };
    let port = number("port", port)?;
    let gid = gid
        .map(|gid| number("index of an address", gid))
        .transpose()?;
    crate::sys::open(card, port, gid)
}

#[cfg(not(feature = "verbs"))]
fn hardware(
    _name: &str,
    refused: impl Fn(String) -> VerbsError,
) -> Result<Arc<dyn Nic>, VerbsError> {
    Err(refused(
        "this build drives no network cards: build it with the feature `verbs`, or name `software`"
            .to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_cards_have_addresses_and_faults() {
        for name in [
            "software",
            "software:127.0.0.1",
            "software?cut@3,hold",
            "software:127.0.0.1?lose@1",
        ] {
            assert_eq!(open(name).unwrap().name(), SOFTWARE);
        }
        assert!(
            open("software?down")
                .unwrap()
                .port()
                .is_ok_and(|port| !port.is_active)
        );
        for (name, word) in [
            ("software:here", "is no IP address"),
            ("software:127.0.0.1?often", "is no fault"),
            ("software:192.0.2.1", "an address of this host"),
        ] {
            let error = open(name).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    #[cfg(not(feature = "verbs"))]
    fn other_cards_take_another_build() {
        let error = open("mlx5_0").unwrap_err().to_string();
        assert!(error.contains("feature `verbs`"), "{error}");
    }
}
