//! The part of a frame that a packet belongs to: its detector module, antenna, or sender.

use super::raw::{Endian, Field};
use super::{Flow, Reject};
use crate::packet::checks::Check;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};

/// Maximum number of parts of a frame.
const MAX_PARTS: usize = 1024;

/// `part`: what distinguishes the parts of a frame. Set `from`, or `offset` and `bytes`. Set `values`, or `count`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartConfig {
    /// `"port"`: the port to which a packet was sent. `"address"`: the address of its sender.
    pub from: Option<Origin>,
    /// Offset of a number in the header, in bytes from the start of the packet.
    pub offset: Option<usize>,
    /// Size of the number in bytes, 1 to 8.
    pub bytes: Option<usize>,
    /// Byte order of the number.
    #[serde(default)]
    pub endian: Endian,
    /// Number of significant bits, by default all.
    pub bits: Option<u32>,
    /// Number of lowest bits that are not part of the number.
    #[serde(default)]
    pub shift: u32,
    /// The ports, addresses or numbers of the parts, in the order of the parts in a frame.
    pub values: Option<Vec<PartValue>>,
    /// Number of parts, which have consecutive ports or numbers.
    pub count: Option<u32>,
    /// With `count`: the port or number of the first part.
    #[serde(default)]
    pub first: u64,
}

/// What distinguishes parts if it is not in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The port to which the packet was sent.
    Port,
    /// The sender's IP address.
    Address,
}

/// The port, number or IP address of a part.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PartValue {
    /// A port or number.
    Number(u64),
    /// An IP address.
    Address(IpAddr),
}

impl PartValue {
    /// Returns a number that is different for different values of one kind.
    fn key(&self) -> u128 {
        match self {
            Self::Number(number) => (*number).into(),
            Self::Address(address) => key_of(*address),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Address(address) => address.to_string(),
        }
    }
}

/// Returns a number that is different for different addresses. An IPv4 address and its IPv6-mapped form are the same.
fn key_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The parts of the frames of a format.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    source: PartSource,
    /// The parts with their values, in the order of the values. Empty if a frame has one part.
    known: Box<[(u128, u32)]>,
    names: Vec<String>,
}

#[derive(Clone, Debug, Default)]
enum PartSource {
    /// A frame has one part.
    #[default]
    One,
    Field(Field),
    /// The part of the current flow, if the flow belongs to a part.
    Flow(Origin, Option<u32>),
}

impl PartConfig {
    /// Returns the parts. `header` is the size of the header in bytes.
    pub(super) fn parts(&self, header: usize, check: &mut Check) -> Parts {
        let values = self.values(check);
        let is_field = self.offset.is_some() || self.bytes.is_some();
        check.must(self.from.is_some() != is_field, "part", || {
            let message = "`part` needs either `from`, or `offset` and `bytes`".to_owned();
            (message, "set `from = \"port\"`, `from = \"address\"`, or the position of a number in the header".to_owned())
        });
        let source = if let Some(origin) = self.from {
            PartSource::Flow(origin, None)
        } else {
            let (offset, bytes) = (self.offset.unwrap_or(0), self.bytes.unwrap_or(1));
            check.field("part", offset, bytes, header);
            let bits = self.bits.unwrap_or(64);
            PartSource::Field(Field::new(offset, bytes, self.endian, self.shift, bits))
        };
        let needs_addresses = self.from == Some(Origin::Address);
        let is_kind = |value: &PartValue| matches!(value, PartValue::Address(_)) == needs_addresses;
        check.must(values.iter().all(is_kind), "part.values", || {
            let wanted = if needs_addresses {
                "IP addresses such as \"10.0.0.1\""
            } else {
                "numbers"
            };
            (
                format!("the values of these parts must be {wanted}"),
                format!("list {wanted}"),
            )
        });
        let mut known: Vec<_> = values.iter().map(PartValue::key).zip(0..).collect();
        known.sort_unstable();
        let is_unique = known.windows(2).all(|pair| pair[0].0 != pair[1].0);
        check.must(is_unique, "part.values", || {
            (
                "two parts have the same value".to_owned(),
                "list each part once".to_owned(),
            )
        });
        Parts {
            source,
            known: known.into(),
            names: values.iter().map(PartValue::name).collect(),
        }
    }

    fn values(&self, check: &mut Check) -> Vec<PartValue> {
        let is_counted = self.count.is_some();
        check.must(self.values.is_some() != is_counted, "part", || {
            let message = "`part` needs either `values` or `count`".to_owned();
            (
                message,
                "list the `values` of the parts, or set their `count` and the `first` value"
                    .to_owned(),
            )
        });
        check.must(
            !is_counted || self.from != Some(Origin::Address),
            "part.count",
            || {
                let message =
                    "addresses cannot be counted, because they need not be consecutive".to_owned();
                (
                    message,
                    "list the addresses of the senders in `values`".to_owned(),
                )
            },
        );
        let count = match (&self.values, self.count) {
            (Some(values), _) => values.len(),
            (None, count) => count.unwrap_or(1) as usize,
        };
        check.must(
            (1..=MAX_PARTS).contains(&count),
            if is_counted {
                "part.count"
            } else {
                "part.values"
            },
            || {
                (
                    format!("a frame can have 1 to {MAX_PARTS} parts, not {count}"),
                    "list each part once".to_owned(),
                )
            },
        );
        let counted = || {
            (0..count.min(MAX_PARTS) as u64)
                .map(|i| PartValue::Number(self.first.saturating_add(i)))
        };
        self.values.clone().unwrap_or_else(|| counted().collect())
    }
}

impl Parts {
    /// Returns the number of parts, at least 1.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.known.len()).unwrap_or(u32::MAX).max(1)
    }

    /// Returns the values of the parts as text, in the order of the parts.
    pub(crate) fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Returns what distinguishes flows of different parts.
    pub(crate) const fn origin(&self) -> Option<Origin> {
        match self.source {
            PartSource::Flow(origin, _) => Some(origin),
            _ => None,
        }
    }

    /// Selects the flow of the packets that follow.
    pub(crate) fn use_flow(&mut self, flow: &Flow) {
        let key = match self.source {
            PartSource::Flow(Origin::Port, _) => flow.destination.map(|to| to.port().into()),
            PartSource::Flow(Origin::Address, _) => {
                flow.source.map(|from: SocketAddr| key_of(from.ip()))
            }
            _ => return,
        };
        let part = key.and_then(|key| self.find(key));
        if let PartSource::Flow(_, current) = &mut self.source {
            *current = part;
        }
    }

    /// Returns the part of the packet with this header.
    #[inline]
    pub(crate) fn part(&self, header: &[u8]) -> Result<u32, Reject> {
        match &self.source {
            PartSource::One => Ok(0),
            PartSource::Field(field) => {
                let value = field.read(header).unwrap_or(u64::MAX);
                self.find(value.into()).ok_or_else(|| unknown(value))
            }
            PartSource::Flow(_, part) => part.ok_or(UNKNOWN_FLOW),
        }
    }

    fn find(&self, key: u128) -> Option<u32> {
        let (first, _) = *self.known.first()?;
        // Most values are consecutive.
        let guess = usize::try_from(key.checked_sub(first)?).ok();
        let found = guess
            .and_then(|guess| self.known.get(guess))
            .filter(|(other, _)| *other == key);
        if let Some((_, part)) = found {
            return Some(*part);
        }
        let index = self
            .known
            .binary_search_by_key(&key, |(other, _)| *other)
            .ok()?;
        Some(self.known[index].1)
    }

    /// Writes the value of `part` into `header`, if the header contains it.
    pub(crate) fn write(&self, part: u32, header: &mut [u8]) {
        if let PartSource::Field(field) = &self.source
            && let Some((value, _)) = self.known.iter().find(|(_, other)| *other == part)
        {
            field.write(header, u64::try_from(*value).unwrap_or(u64::MAX));
        }
    }
}

const UNKNOWN_FLOW: Reject = Reject::Other {
    name: "unknown_part",
    message: "the sender's address or the port of the packet is not listed in `part`: add it to `values`, or keep this sender away",
};

fn unknown(value: u64) -> Reject {
    Reject::Number {
        name: "unknown_part",
        key: "part",
        value,
        why: "which is not the value of a part: check `values`, `count` and `first`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Result<Parts, String> {
        let config: PartConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut check = Check::default();
        let parts = config.parts(64, &mut check);
        let problems = check.problems();
        if problems.is_empty() {
            return Ok(parts);
        }
        Err(problems
            .iter()
            .map(|problem| problem.message.clone())
            .collect::<Vec<_>>()
            .join("; "))
    }

    fn flow(source: &str, destination: &str) -> Flow {
        Flow {
            source: source.parse().ok(),
            destination: destination.parse().ok(),
        }
    }

    #[test]
    fn part_is_found_by_port_address_or_field() {
        let mut ports = parts("from = \"port\"\nvalues = [50001, 50000]").unwrap();
        assert_eq!(
            (ports.count(), ports.names()),
            (2, vec!["50001".to_owned(), "50000".to_owned()])
        );
        assert!(ports.part(&[]).is_err());
        ports.use_flow(&flow("10.0.0.1:9", "10.0.0.2:50000"));
        assert_eq!(ports.part(&[]), Ok(1));
        let mut addresses =
            parts("from = \"address\"\nvalues = [\"10.0.0.7\", \"fe80::1\"]").unwrap();
        addresses.use_flow(&flow("[::ffff:10.0.0.7]:9", "10.0.0.2:1"));
        assert_eq!(addresses.part(&[]), Ok(0));
        addresses.use_flow(&flow("10.0.0.8:9", "10.0.0.2:1"));
        assert_eq!(addresses.part(&[]).unwrap_err().name(), "unknown_part");
        let field = parts("offset = 2\nbytes = 2\nvalues = [7, 3, 900]").unwrap();
        let part = |value: u16| {
            field
                .part(&[&[0, 0], &value.to_be_bytes()[..]].concat())
                .ok()
        };
        assert_eq!([7, 3, 900, 4].map(part), [Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn contradictory_parts_are_refused() {
        for (text, wanted) in [
            ("count = 2", "either `from`"),
            ("from = \"port\"", "either `values`"),
            (
                "from = \"port\"\noffset = 1\nbytes = 1\ncount = 2",
                "either `from`",
            ),
            ("from = \"address\"\ncount = 2", "cannot be counted"),
            ("from = \"address\"\nvalues = [1]", "must be IP addresses"),
            ("from = \"port\"\nvalues = [1, 1]", "the same value"),
            ("from = \"port\"\nvalues = []", "1 to 1024 parts"),
            ("offset = 63\nbytes = 2\ncount = 2", "exceed the header"),
        ] {
            let error = parts(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
