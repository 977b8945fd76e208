//! Opens NICs by the names that configurations use.

use crate::emulated::{EmulatedNic, Faults};
use crate::verbs::{Nic, VerbsError};
pub use daq_core::topology::nic::EMULATED;
use daq_core::topology::nic::{AUTO, is_emulated_nic};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// The NICs of a configuration section: a list of names, or a single name.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(untagged, expecting = "a list of NIC names, or \"auto\"")]
pub enum NicNames {
    /// A single name, as in `"auto"`.
    One(String),
    /// A list of names.
    Several(Vec<String>),
}

impl NicNames {
    /// Returns all names.
    pub fn all(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        }
    }

    /// Returns true if the only name is `auto`: the plan then chooses the NIC.
    pub fn is_auto(&self) -> bool {
        self.all() == [AUTO]
    }

    /// Returns true if `auto` is combined with other names, which is invalid.
    pub fn is_mixed(&self) -> bool {
        self.all().len() > 1 && self.all().iter().any(|name| name == AUTO)
    }

    /// Returns the first hardware NIC, for the plan; `None` if all NICs are emulated.
    pub fn device(&self) -> Option<String> {
        let mut names = self.all().iter();
        let first = names.find(|name| !is_emulated_nic(name))?;
        Some(first.split(':').next().unwrap_or(first).to_owned())
    }

    /// Returns all names, with `auto` replaced by `chosen`.
    pub fn resolved(&self, chosen: Option<&str>) -> Vec<String> {
        match chosen {
            Some(chosen) if self.is_auto() => vec![chosen.to_owned()],
            _ => self.all().to_vec(),
        }
    }
}

/// Opens a NIC by its name. `emulated`, `emulated:ADDRESS` and `emulated:ADDRESS?FAULTS` open an emulated NIC; the
/// default address is 127.0.0.1, and [`Faults`] are for tests. `mlx5_0`, `mlx5_0:PORT` and `mlx5_0:PORT@GID` open a
/// hardware NIC.
pub fn open(name: &str) -> Result<Arc<dyn Nic>, VerbsError> {
    let (card, faults) = name.split_once('?').unwrap_or((name, ""));
    let refused = |why: String| VerbsError {
        nic: name.to_owned(),
        call: "open the NIC".to_owned(),
        errno: 0,
        why,
    };
    if is_emulated_nic(name) {
        let address = match card.strip_prefix("emulated:") {
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Some(address) => address.parse().map_err(|_| {
                refused(format!(
                    "{address:?} is not an IP address; write the NIC as in emulated:10.0.0.1"
                ))
            })?,
        };
        let faults: Faults = faults
            .parse()
            .map_err(|error| refused(format!("{error}")))?;
        return EmulatedNic::new(address, faults);
    }
    if name == AUTO {
        let why = "no NIC was found for `auto`: name a NIC, set transport = \"tcp\", or use nics = [\"emulated\"] for a test";
        return Err(refused(why.to_owned()));
    }
    hardware(name, refused)
}

/// Opens the NICs of a stream's rails: all named NICs in order, repeated for every further queue pair, so that
/// consecutive frames use different NICs. A NIC that is named several times is opened once. Both hosts number their
/// rails in this order.
pub fn open_rails(names: &[String], queues: usize) -> Result<Vec<Arc<dyn Nic>>, VerbsError> {
    rails(names, queues, open)
}

fn rails<T: Clone, E>(
    names: &[String],
    queues: usize,
    mut open: impl FnMut(&str) -> Result<T, E>,
) -> Result<Vec<T>, E> {
    let mut cards: Vec<T> = Vec::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        let card = match names[..i].iter().position(|other| other == name) {
            Some(known) => cards[known].clone(),
            None => open(name)?,
        };
        cards.push(card);
    }
    Ok((0..queues).flat_map(|_| cards.iter().cloned()).collect())
}

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
        parsed.map_err(|_| {
            refused(format!(
                "{text:?} is not a valid {what}; write the NIC as NAME:PORT@GID, as in mlx5_0:1@3"
            ))
        })
    };
    let port = number("port", port)?;
    let gid = gid.map(|gid| number("GID index", gid)).transpose()?;
    // Without a device list the error does not contain the NIC's name yet.
    crate::sys::open(card, port, gid).map_err(|error| VerbsError {
        nic: name.to_owned(),
        ..error
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulated_nics_have_addresses_and_faults() {
        for name in [
            "emulated",
            "emulated:127.0.0.1",
            "emulated?cut@3,hold",
            "emulated:127.0.0.1?lose@1",
        ] {
            assert_eq!(open(name).unwrap().name(), EMULATED);
        }
        assert!(
            open("emulated?down")
                .unwrap()
                .port()
                .is_ok_and(|port| !port.is_active)
        );
        for (name, word) in [
            ("emulated:here", "is not an IP address"),
            ("emulated:127.0.0.1?often", "is not a fault"),
            ("emulated:192.0.2.1", "an address of this host"),
        ] {
            let error = open(name).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn auto_uses_planned_nic() {
        let auto = NicNames::One(AUTO.to_owned());
        assert!(auto.is_auto() && !auto.is_mixed());
        assert_eq!(auto.resolved(Some("mlx5_1")), ["mlx5_1"]);
        assert_eq!(auto.device().as_deref(), Some(AUTO));
        let error = open(&auto.resolved(None)[0]).unwrap_err().to_string();
        assert!(error.contains("emulated"), "{error}");
        let names = |names: &[&str]| NicNames::Several(names.iter().map(|&it| it.into()).collect());
        let two = names(&["mlx5_0:1@3", "mlx5_1"]);
        assert_eq!(two.resolved(Some("mlx5_7")), ["mlx5_0:1@3", "mlx5_1"]);
        assert_eq!(two.device().as_deref(), Some("mlx5_0"));
        assert!(names(&[AUTO, "mlx5_0"]).is_mixed());
        assert_eq!(names(&["emulated?cut@3", "emulated:::1"]).device(), None);
    }

    #[test]
    fn rails_are_spread_over_nics_opened_once() {
        let names = ["a", "b", "a"].map(str::to_owned);
        let mut opened = Vec::new();
        let open = |name: &str| {
            opened.push(name.to_owned());
            Ok::<_, ()>(name.to_owned())
        };
        assert_eq!(
            rails(&names, 2, open).unwrap(),
            ["a", "b", "a", "a", "b", "a"]
        );
        assert_eq!(opened, ["a", "b"]);
        let cards = open_rails(&["emulated".to_owned(), "emulated".to_owned()], 2).unwrap();
        assert!(cards.len() == 4 && cards.iter().all(|card| Arc::ptr_eq(card, &cards[0])));
    }
}
