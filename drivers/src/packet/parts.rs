//! The part of a frame that a packet belongs to: its detector module, antenna, or sender.

use super::field::{Endian, Field, FieldKeys};
use super::{Flow, FlowNeeds, Reject};
use crate::packet::checks::{Check, FIRST_ITEM};
use daq_core::config::Problem;
use schemars::JsonSchema;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Maximum number of parts of a frame.
pub(super) const MAX_PARTS: u32 = 1024;

/// `part`: what distinguishes the parts of a frame. A list of tables if several numbers distinguish them, such as antenna and
/// frequency; the last number of the list changes fastest from part to part.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum PartsConfig {
    /// One number, port or address.
    One(PartConfig),
    /// Several numbers, ports or addresses.
    Several(Vec<PartConfig>),
}

/// One number, port or address that distinguishes parts. Set `from`, `item`, or `offset` and `bytes`. Set `values`, or `count`, unless
/// the parts are the ports of `listen` or the addresses of `from` of the source.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartConfig {
    /// `"port"`: the port to which a packet was sent. `"address"`: the address of its sender.
    pub from: Option<Origin>,
    /// Format `spead`: identifier of the item that contains the number, as in `0x4101`; the item must be immediate.
    pub item: Option<u64>,
    /// Format `raw`: offset of a number in the header, in bytes from the start of the packet.
    pub offset: Option<usize>,
    /// Size of the number in bytes, 1 to 8.
    pub bytes: Option<usize>,
    /// Byte order of the number; default `"big"`.
    #[serde(default)]
    pub endian: Endian,
    /// Number of significant bits, by default all.
    pub bits: Option<u32>,
    /// Number of lowest bits that are not part of the number.
    #[serde(default)]
    pub shift: u32,
    /// The ports, addresses or numbers of the parts, in the order of the parts in a frame. The default of ports is those of `listen`,
    /// that of addresses is `from` of the source.
    pub values: Option<Vec<PartValue>>,
    /// Number of parts, which have consecutive ports or numbers.
    pub count: Option<u32>,
    /// With `count`: the port or number of the first part, by default 0. A port must be set.
    pub first: Option<u64>,
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

/// The addresses that the keys of a source name, for parts without `values`.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// The ports of `listen`, each once.
    ports: Vec<PartValue>,
    /// The addresses of `from`, each once.
    senders: Vec<PartValue>,
}

impl Origins {
    /// Returns the ports of `listen` and the addresses `senders`.
    pub(crate) fn new(listen: &[SocketAddr], senders: &[IpAddr]) -> Self {
        let mut origins = Self::default();
        for address in listen {
            add(&mut origins.ports, PartValue::Number(address.port().into()));
        }
        for sender in senders {
            add(&mut origins.senders, PartValue::Address(*sender));
        }
        origins
    }
}

/// Adds `value` unless `values` contain it.
fn add(values: &mut Vec<PartValue>, value: PartValue) {
    if !values.iter().any(|other| other.key() == value.key()) {
        values.push(value);
    }
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

/// Which numbers of a packet a format can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readable {
    /// Fields of a header of this many bytes.
    Fields(usize),
    /// Items with identifiers below this one.
    Items(u64),
}

/// Where a packet contains a number that distinguishes parts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Position {
    Field(Field),
    Item(u64),
}

/// The parts of the frames of a format.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    /// What distinguishes the parts. The last dimension changes fastest. Empty if a frame has one part.
    dimensions: Box<[Dimension]>,
}

/// One number, port or address that distinguishes parts.
#[derive(Clone, Debug)]
struct Dimension {
    source: Source,
    /// The values with their indices, in the order of the values.
    known: Box<[(u128, u32)]>,
    names: Vec<String>,
    /// Whether the values are not known until [`Parts::use_origins`] is called.
    is_open: bool,
}

#[derive(Clone, Debug)]
enum Source {
    Number(Position),
    /// The index of the current flow, if the flow belongs to a part.
    Flow(Origin, Option<u32>),
}

impl<'de> Deserialize<'de> for PartsConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;
        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = PartsConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table or a list of tables")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PartsConfig, A::Error> {
                let one = PartConfig::deserialize(MapAccessDeserializer::new(map));
                one.map(PartsConfig::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<PartsConfig, A::Error> {
                let several = Vec::deserialize(SeqAccessDeserializer::new(list));
                several.map(PartsConfig::Several)
            }
        }
        deserializer.deserialize_any(OneOrSeveral)
    }
}

impl PartsConfig {
    /// Returns the parts of a format that can read the numbers `readable`.
    pub(super) fn parts(&self, readable: Readable, check: &mut Check) -> Parts {
        let tables = match self {
            Self::One(part) => std::slice::from_ref(part),
            Self::Several(parts) => parts,
        };
        let dimensions: Box<[_]> = tables
            .iter()
            .map(|part| part.dimension(readable, check))
            .collect();
        let counts = dimensions
            .iter()
            .filter(|dimension| !dimension.is_open)
            .map(|dimension| dimension.known.len());
        let count = counts.fold(1, usize::saturating_mul);
        for origin in [Origin::Port, Origin::Address] {
            let uses = tables
                .iter()
                .filter(|part| part.from == Some(origin))
                .count();
            check.must(uses <= 1, "part.from", || {
                (
                    "two tables of `part` use the same address".to_owned(),
                    "list all values in one of them".to_owned(),
                )
            });
        }
        check.must((1..=MAX_PARTS as usize).contains(&count), "part", || {
            (
                format!("a frame can have 1 to {MAX_PARTS} parts, not {count}"),
                "list each part once".to_owned(),
            )
        });
        Parts { dimensions }
    }
}

impl PartConfig {
    fn dimension(&self, readable: Readable, check: &mut Check) -> Dimension {
        let source = self.source(readable, check);
        let values = self.values(check);
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
        let is_open = self.is_open();
        let dimension = Dimension::new(source, &values, is_open);
        let known = &dimension.known;
        let is_unique = known.windows(2).all(|pair| pair[0].0 != pair[1].0);
        check.must(is_unique, "part.values", || {
            (
                "two parts have the same value".to_owned(),
                "list each part once".to_owned(),
            )
        });
        dimension
    }

    /// Returns whether the values are those of the source's keys.
    const fn is_open(&self) -> bool {
        self.from.is_some() && self.values.is_none() && self.count.is_none()
    }

    fn source(&self, readable: Readable, check: &mut Check) -> Source {
        let is_field = self.offset.is_some() || self.bytes.is_some();
        let is_number = match readable {
            Readable::Fields(_) => is_field && self.item.is_none(),
            Readable::Items(_) => self.item.is_some() && !is_field,
        };
        let is_flow = self.from.is_some() && !is_field && self.item.is_none();
        check.must(is_flow || self.from.is_none() && is_number, "part", || {
            let (keys, position) = match readable {
                Readable::Fields(_) => (
                    "`offset` and `bytes`",
                    "the position of a number in the header",
                ),
                Readable::Items(_) => ("`item`", "the identifier of an item"),
            };
            let message = format!("`part` needs either `from`, or {keys}");
            (
                message,
                format!("set `from = \"port\"`, `from = \"address\"`, or {position}"),
            )
        });
        let is_cut = self.bits.is_some() || self.shift > 0;
        check.must(is_field || !is_cut, "part.bits", || {
            (
                "`bits` and `shift` belong to a number in the header".to_owned(),
                "remove them, or set `offset` and `bytes`".to_owned(),
            )
        });
        if let Some(origin) = self.from {
            return Source::Flow(origin, None);
        }
        Source::Number(match readable {
            Readable::Fields(header) => {
                let (offset, bytes) = (self.offset.unwrap_or(0), self.bytes.unwrap_or(1));
                let keys = FieldKeys::new(offset, bytes, self.endian).cut(self.bits, self.shift);
                Position::Field(keys.checked("part", header, check))
            }
            Readable::Items(end) => {
                let item = self.item.unwrap_or(FIRST_ITEM);
                check.item("part.item", item, end);
                Position::Item(item)
            }
        })
    }

    fn values(&self, check: &mut Check) -> Vec<PartValue> {
        let is_counted = self.count.is_some();
        let has_values = self.values.is_some() != is_counted || self.is_open();
        check.must(has_values, "part", || {
            let message = "`part` needs either `values` or `count`".to_owned();
            (
                message,
                "list the `values` of the parts, or set their `count` and the `first` value"
                    .to_owned(),
            )
        });
        check.must(is_counted || self.first.is_none(), "part.first", || {
            (
                "`first` is the first value of `count` parts".to_owned(),
                "remove `first`, or set `count` instead of `values`".to_owned(),
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
        let is_port = self.from == Some(Origin::Port) && is_counted;
        check.must(!is_port || self.first.is_some(), "part.count", || {
            (
                "the first of the consecutive ports is unknown".to_owned(),
                "set `first`, or remove `count` to use the ports of `listen`".to_owned(),
            )
        });
        if self.is_open() {
            return Vec::new();
        }
        let first = self.first.unwrap_or(0);
        // One more than the maximum is enough to report an error.
        let count = u64::from(self.count.unwrap_or(1)).min(u64::from(MAX_PARTS) + 1);
        let counted = || (0..count).map(|i| PartValue::Number(first.saturating_add(i)));
        let values = self.values.clone().unwrap_or_else(|| counted().collect());
        let is_port = |value: &PartValue| matches!(value, PartValue::Number(..=65_535));
        let are_ports = values.iter().all(is_port);
        check.must(self.from != Some(Origin::Port) || are_ports, "part", || {
            (
                "a port is at most 65535".to_owned(),
                "correct `values`, or `first` and `count`".to_owned(),
            )
        });
        values
    }
}

impl Parts {
    /// Uses the addresses of a source as the values of parts without `values`. Fails if the source names none, or too many.
    pub(crate) fn use_origins(&mut self, origins: &Origins) -> Result<(), Problem> {
        let problem = |message: String, help: &str| {
            Err(Problem::at("format.part", message).help(help.to_owned()))
        };
        for dimension in self
            .dimensions
            .iter_mut()
            .filter(|dimension| dimension.is_open)
        {
            let (values, what) = match dimension.origin() {
                Some(Origin::Address) => (&origins.senders, "the addresses of the senders"),
                _ => (&origins.ports, "the ports"),
            };
            if values.is_empty() {
                return problem(
                    format!("{what} that distinguish the parts are unknown"),
                    "list them in `values`: only the ports of `listen` and the single addresses of `from` are known without it",
                );
            }
            *dimension = Dimension::new(dimension.source.clone(), values, false);
        }
        if self.count() > MAX_PARTS {
            let message = format!(
                "a frame can have 1 to {MAX_PARTS} parts, not {}",
                self.count()
            );
            return problem(message, "list the parts in `values`");
        }
        Ok(())
    }

    /// Returns the highest possible number of parts.
    pub(super) fn max_count(&self) -> u32 {
        if self.dimensions.iter().any(|dimension| dimension.is_open) {
            MAX_PARTS
        } else {
            self.count()
        }
    }

    /// Returns the number of parts, at least 1.
    pub(crate) fn count(&self) -> u32 {
        let counts = self.dimensions.iter().map(Dimension::count);
        counts.fold(1, u32::saturating_mul).max(1)
    }

    /// Returns the values of the parts as text, in the order of the parts. Several numbers are separated by commas.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut dimensions = self.dimensions.iter().map(|dimension| &dimension.names);
        let Some(first) = dimensions.next() else {
            return Vec::new();
        };
        dimensions.fold(first.clone(), |before, names| {
            let pairs = before
                .iter()
                .flat_map(|a| names.iter().map(move |b| format!("{a},{b}")));
            pairs.collect()
        })
    }

    /// Selects the flow of the packets that follow.
    pub(crate) fn use_flow(&mut self, flow: &Flow) {
        for dimension in &mut self.dimensions {
            dimension.use_flow(flow);
        }
    }

    /// Returns the number of flows that belong to parts; 1 if flows do not distinguish parts.
    pub(super) fn flows(&self) -> usize {
        let flows = self
            .dimensions
            .iter()
            .filter(|dimension| dimension.origin().is_some());
        let flows = flows.fold(1, |flows, dimension| {
            dimension.count().saturating_mul(flows)
        });
        flows.min(MAX_PARTS) as usize
    }

    /// Returns the index of the current flow among those that belong to parts; `None` if it does not.
    pub(super) fn flow(&self) -> Option<usize> {
        let mut flow = 0;
        for dimension in &self.dimensions {
            if let Source::Flow(_, index) = dimension.source {
                flow = flow * dimension.count() as usize + index? as usize;
            }
        }
        Some(flow)
    }

    /// Returns whether packets contain numbers that distinguish parts.
    pub(super) fn has_numbers(&self) -> bool {
        let mut sources = self.dimensions.iter().map(|dimension| &dimension.source);
        sources.any(|source| matches!(source, Source::Number(_)))
    }

    /// Returns the identifiers of the items that distinguish parts.
    pub(super) fn items(&self) -> impl Iterator<Item = u64> {
        self.dimensions
            .iter()
            .filter_map(|dimension| match dimension.source {
                Source::Number(Position::Item(item)) => Some(item),
                Source::Number(Position::Field(_)) | Source::Flow(..) => None,
            })
    }

    /// Returns the addresses that distinguish parts.
    pub(super) fn flow_needs(&self) -> FlowNeeds {
        let origins = self.dimensions.iter().filter_map(Dimension::origin);
        let mut needs = FlowNeeds::default();
        for origin in origins {
            match origin {
                Origin::Address => needs.sender = true,
                Origin::Port => needs.destination = true,
            }
        }
        needs
    }

    /// Returns the part of a packet whose numbers the function `read` returns. Returns `None` if the packet does not contain a
    /// number.
    #[inline]
    pub(super) fn part(
        &self,
        read: impl Fn(&Position) -> Option<u64>,
    ) -> Result<Option<u32>, Reject> {
        let mut part = 0;
        for dimension in &self.dimensions {
            let index = match &dimension.source {
                Source::Flow(_, index) => index.ok_or(UNKNOWN_FLOW)?,
                Source::Number(position) => {
                    let Some(value) = read(position) else {
                        return Ok(None);
                    };
                    dimension.find(value.into()).ok_or_else(|| unknown(value))?
                }
            };
            part = part * dimension.count() + index;
        }
        Ok(Some(part))
    }

    /// Calls `write` for each number that packets of `part` contain.
    pub(super) fn write(&self, part: u32, mut write: impl FnMut(&Position, u64)) {
        let mut rest = part;
        for dimension in self.dimensions.iter().rev() {
            let index = rest % dimension.count();
            rest /= dimension.count();
            let value = dimension.known.iter().find(|(_, other)| *other == index);
            if let (Source::Number(position), Some((value, _))) = (&dimension.source, value) {
                write(position, u64::try_from(*value).unwrap_or(u64::MAX));
            }
        }
    }
}

impl Dimension {
    fn new(source: Source, values: &[PartValue], is_open: bool) -> Self {
        let mut known: Vec<_> = values.iter().map(PartValue::key).zip(0..).collect();
        known.sort_unstable();
        Self {
            source,
            known: known.into(),
            names: values.iter().map(PartValue::name).collect(),
            is_open,
        }
    }

    /// Returns the number of values, at least 1.
    fn count(&self) -> u32 {
        u32::try_from(self.known.len()).unwrap_or(u32::MAX).max(1)
    }

    const fn origin(&self) -> Option<Origin> {
        match self.source {
            Source::Flow(origin, _) => Some(origin),
            Source::Number(_) => None,
        }
    }

    fn use_flow(&mut self, flow: &Flow) {
        let Some(origin) = self.origin() else { return };
        let key = match origin {
            Origin::Port => flow.destination.map(|to| to.port().into()),
            Origin::Address => flow.source.map(|from: SocketAddr| key_of(from.ip())),
        };
        self.source = Source::Flow(origin, key.and_then(|key| self.find(key)));
    }

    /// Returns the index of the value `key`.
    fn find(&self, key: u128) -> Option<u32> {
        let (first, _) = *self.known.first()?;
        // Most values are consecutive.
        let guess = usize::try_from(key.checked_sub(first)?).ok();
        let found = guess
            .and_then(|guess| self.known.get(guess))
            .filter(|(other, _)| *other == key);
        if let Some((_, index)) = found {
            return Some(*index);
        }
        let at = self
            .known
            .binary_search_by_key(&key, |(other, _)| *other)
            .ok()?;
        Some(self.known[at].1)
    }
}

pub(super) const UNKNOWN_FLOW: Reject = Reject::Other {
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
    use crate::sender::{self, Allowed};

    fn parts(keys: &str) -> Result<Parts, String> {
        let text = format!("[part]\n{keys}");
        read(&text, Readable::Fields(64))
    }

    fn read(text: &str, readable: Readable) -> Result<Parts, String> {
        #[derive(Deserialize)]
        struct Table {
            part: PartsConfig,
        }
        let table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut check = Check::default();
        let parts = table.part.parts(readable, &mut check);
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
        assert!(ports.part(|_| None).is_err());
        ports.use_flow(&flow("10.0.0.1:9", "10.0.0.2:50000"));
        assert_eq!(ports.part(|_| None), Ok(Some(1)));
        let mut addresses =
            parts("from = \"address\"\nvalues = [\"10.0.0.7\", \"fe80::1\"]").unwrap();
        addresses.use_flow(&flow("[::ffff:10.0.0.7]:9", "10.0.0.2:1"));
        assert_eq!(addresses.part(|_| None), Ok(Some(0)));
        addresses.use_flow(&flow("10.0.0.8:9", "10.0.0.2:1"));
        assert_eq!(addresses.part(|_| None).unwrap_err().name(), "unknown_part");
        let field = parts("offset = 2\nbytes = 2\nvalues = [7, 3, 900]").unwrap();
        let part = |value: u64| field.part(|_| Some(value)).ok().flatten();
        assert_eq!([7, 3, 900, 4].map(part), [Some(0), Some(1), Some(2), None]);
        assert_eq!(field.part(|_| None), Ok(None));
    }

    #[test]
    fn several_numbers_distinguish_parts() {
        let text =
            "part = [{ item = 0x4101, count = 3 }, { from = \"port\", values = [7150, 7148] }]";
        let mut parts = read(text, Readable::Items(1 << 15)).unwrap();
        assert_eq!(parts.count(), 6);
        assert_eq!(
            parts.names(),
            ["0,7150", "0,7148", "1,7150", "1,7148", "2,7150", "2,7148"]
        );
        let part = |parts: &Parts, antenna: Option<u64>| parts.part(|_| antenna);
        assert!(part(&parts, Some(1)).is_err());
        parts.use_flow(&flow("10.0.0.1:9", "10.0.0.2:7148"));
        assert_eq!(part(&parts, Some(2)), Ok(Some(5)));
        assert_eq!(part(&parts, None), Ok(None));
        let mut written = Vec::new();
        parts.write(5, |position, value| match position {
            Position::Item(item) => written.push((*item, value)),
            Position::Field(_) => panic!("{position:?}"),
        });
        assert_eq!(written, [(0x4101, 2)]);
    }

    #[test]
    fn parts_without_values_are_ports_or_senders_of_source() {
        let listen: Vec<SocketAddr> = ["0.0.0.0:50001", "0.0.0.0:50000", "[::]:50001"]
            .map(|address| address.parse().unwrap())
            .into();
        let addresses = |text: &str| {
            let allowed: Vec<Allowed> = text.split(' ').map(|one| one.parse().unwrap()).collect();
            sender::addresses(&allowed)
        };
        let origins = Origins::new(&listen, &addresses("10.0.0.7 10.0.0.5:4000"));
        let mut ports = parts("from = \"port\"").unwrap();
        assert_eq!((ports.count(), ports.max_count()), (1, MAX_PARTS));
        ports.use_origins(&origins).unwrap();
        assert_eq!(ports.names(), ["50001", "50000"]);
        ports.use_flow(&flow("10.0.0.1:9", "10.0.0.2:50000"));
        assert_eq!(ports.part(|_| None), Ok(Some(1)));
        let mut senders = parts("from = \"address\"").unwrap();
        senders.use_origins(&origins).unwrap();
        assert_eq!(senders.names(), ["10.0.0.7", "10.0.0.5"]);
        let network = Origins::new(&listen, &addresses("10.0.0.7 10.1.0.0/16"));
        let mut unknown = parts("from = \"address\"").unwrap();
        let problem = unknown.use_origins(&network).unwrap_err();
        assert!(
            problem.message.contains("addresses of the senders"),
            "{problem}"
        );
        // Parts with values do not need them.
        parts("from = \"port\"\nvalues = [1]")
            .unwrap()
            .use_origins(&Origins::default())
            .unwrap();
    }

    #[test]
    fn contradictory_parts_are_refused() {
        for (text, wanted) in [
            ("count = 2", "either `from`"),
            (
                "from = \"port\"\ncount = 2",
                "first of the consecutive ports",
            ),
            ("from = \"port\"\nfirst = 2", "first value of `count`"),
            (
                "from = \"port\"\noffset = 1\nbytes = 1\ncount = 2",
                "either `from`",
            ),
            ("from = \"address\"\ncount = 2", "cannot be counted"),
            ("from = \"address\"\nvalues = [1]", "must be IP addresses"),
            ("from = \"port\"\nvalues = [1, 1]", "the same value"),
            ("from = \"port\"\nvalues = []", "1 to 1024 parts"),
            ("from = \"port\"\ncount = 4000000000", "1 to 1024 parts"),
            ("item = 7\ncount = 2", "`offset` and `bytes`"),
            ("offset = 63\nbytes = 2\ncount = 2", "exceed the header"),
        ] {
            let error = parts(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let error = read(
            "part = { offset = 1, bytes = 1, count = 2 }",
            Readable::Items(9),
        );
        assert!(error.unwrap_err().contains("`item`"));
        let error = read("part = { item = 5, count = 2 }", Readable::Items(1 << 15));
        assert!(error.unwrap_err().contains("reserved by SPEAD"));
        let error = read(
            "part = [{ item = 9, values = [1], count = 2, other = 1 }]",
            Readable::Items(1 << 15),
        );
        assert!(error.unwrap_err().contains("unknown field `other`"));
    }
}
