//! Groups flows into streams: the flows that one source can receive.

use super::flow::{Flow, Flows};
use super::section::{self, Origin};
use super::{FlowReport, Format, Stream};
use daq_core::entry::Registry;
use daq_core::recognise::{CapturedPacket, Key, Recognised, Recogniser, Suggestion};
use daq_drivers::packet::recognise::{self, Account, account};
use std::collections::{BTreeMap, BTreeSet};

/// Reason why there is no source for one of several streams to a port.
const SHARED: &str = "another stream uses the same port and numbers its packets independently; one source per port can \
                      receive only one run of numbers";

/// Flows with the same format.
struct Group<'a> {
    flows: Vec<&'a Flow>,
    recogniser: Recogniser,
    found: Recognised,
    counts: Account,
}

/// Returns the streams of `flows`, largest first. The entries of `registry` recognise them.
pub(super) fn of(flows: &Flows, origin: &Origin<'_>, registry: &Registry) -> Vec<Stream> {
    let recognisers = registry.recognisers();
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut unknown: BTreeMap<_, Vec<&Flow>> = BTreeMap::new();
    for flow in &flows.list {
        let packets: Vec<&CapturedPacket> = flow.stored.iter().collect();
        match recognise::best(&recognisers, &packets) {
            Some((recogniser, found)) => groups.push(Group::new(vec![flow], recogniser, found)),
            None => unknown.entry(flow.destination).or_default().push(flow),
        }
    }
    let mut streams: Vec<Stream> = Vec::new();
    // A sender may change its port for each packet, so flows that are too short are examined together.
    for flows in unknown.into_values() {
        let together = union(&flows);
        match recognise::best(&recognisers, &together).filter(|_| flows.len() > 1) {
            Some((recogniser, found)) => groups.push(Group::new(flows, recogniser, found)),
            None => streams.push(unrecognised(&flows)),
        }
    }
    streams.sort_by_key(|stream| std::cmp::Reverse(stream.packets()));
    let mut groups = merge(groups);
    groups.sort_by_key(|group| std::cmp::Reverse(group.packets()));
    let count = groups.len();
    let ports: Vec<BTreeSet<u16>> = groups.iter().map(Group::ports).collect();
    let is_shared = |i: usize| (0..count).any(|k| k != i && !ports[k].is_disjoint(&ports[i]));
    let sources = groups.iter().filter(|group| group.is_source()).count();
    let mut number = 0;
    let recognised = groups.into_iter().enumerate().map(|(i, group)| {
        number += usize::from(group.is_source());
        let name = match sources {
            1 => "instrument".to_owned(),
            _ => format!("instrument-{number}"),
        };
        group.stream(name, origin, registry, is_shared(i))
    });
    recognised.chain(streams).collect()
}

/// Returns the packets of `flows` in the order of their capture times.
fn union<'a>(flows: &[&'a Flow]) -> Vec<&'a CapturedPacket> {
    let mut packets: Vec<&CapturedPacket> = flows.iter().flat_map(|flow| &flow.stored).collect();
    packets.sort_by_key(|packet| packet.ns);
    packets
}

/// Returns the section that `with` writes with `samples`, or without them if they do not fill the frames of the source. Fails if
/// `daq check` refuses both.
fn accepted(
    registry: &Registry,
    with: impl Fn(Option<&str>) -> String,
    samples: Option<&str>,
) -> Result<String, String> {
    let whole = with(samples);
    let Err(reason) = section::check(&whole, registry) else {
        return Ok(whole);
    };
    let plain = with(None);
    match section::check(&plain, registry) {
        Ok(()) if samples.is_some() => Ok(plain),
        _ => Err(reason),
    }
}

fn unrecognised(flows: &[&Flow]) -> Stream {
    let longest = flows
        .iter()
        .map(|flow| flow.stored.len())
        .max()
        .unwrap_or(0);
    let is_text = |packet: &CapturedPacket| {
        let is_printed = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
        !packet.head.is_empty() && packet.head.iter().all(is_printed)
    };
    let reason = if flows.iter().flat_map(|flow| &flow.stored).all(is_text) {
        "the packets contain text, such as messages of a control program, instead of samples"
    } else if longest < recognise::MIN_PACKETS * 2 {
        "too few packets to recognise a format: capture for longer"
    } else {
        "no known format, and no number in the first 128 bytes that counts packets. Numbers that many packets repeat do not: several \
         senders or detector modules may use the same ones"
    };
    Stream {
        flows: flows.iter().map(|flow| FlowReport::new(flow)).collect(),
        format: None,
        counts: None,
        name: String::new(),
        section: None,
        no_section: Some(reason.to_owned()),
    }
}

/// Merges groups of equal layout that share one run of numbers.
fn merge(groups: Vec<Group<'_>>) -> Vec<Group<'_>> {
    let mut merged: Vec<Group<'_>> = Vec::new();
    let mut by_layout: BTreeMap<String, Vec<Group<'_>>> = BTreeMap::new();
    for group in groups {
        by_layout
            .entry(group.found.layout.clone())
            .or_default()
            .push(group);
    }
    for groups in by_layout.into_values() {
        match together(&groups) {
            Some(group) => merged.push(group),
            None => merged.extend(parts(groups)),
        }
    }
    merged
}

/// Returns one group of all flows if their packets share one run of numbers.
fn together<'a>(groups: &[Group<'a>]) -> Option<Group<'a>> {
    let (first, rest) = groups.split_first()?;
    if rest.is_empty() {
        return None;
    }
    let flows: Vec<&Flow> = groups
        .iter()
        .flat_map(|group| group.flows.iter().copied())
        .collect();
    let found = recognise::without_repeats(&first.recogniser, &union(&flows))?;
    let one = Group::new(flows, first.recogniser, found);
    let mut apart = Account::default();
    for group in groups {
        apart.add(&group.counts);
    }
    let counts = &one.counts;
    let is_one = counts.duplicates * 20 <= counts.expected + apart.duplicates * 20
        && counts.lost <= apart.lost + counts.expected / 50
        && counts.restarts <= apart.restarts;
    is_one.then_some(one)
}

/// Returns one group of all flows if they send the parts of the same frames, such as detector modules. Otherwise, returns
/// `groups`.
fn parts(groups: Vec<Group<'_>>) -> Vec<Group<'_>> {
    let flows: Vec<&Flow> = groups
        .iter()
        .flat_map(|group| group.flows.iter().copied())
        .collect();
    let ranges = groups.iter().map(Group::frames);
    let common = ranges.reduce(|one, other| Some((one?.0.max(other?.0), one?.1.min(other?.1))));
    let is_common = matches!(common.flatten(), Some((first, last)) if first <= last);
    let ports: BTreeSet<u16> = flows.iter().map(|flow| flow.destination.port()).collect();
    let addresses: BTreeSet<_> = flows.iter().map(|flow| flow.source.ip()).collect();
    let values = |values: Vec<String>| values.join(", ");
    let part = if ports.len() == flows.len() {
        format!(
            "\"port\", values = [{}]",
            values(ports.iter().map(u16::to_string).collect())
        )
    } else if addresses.len() == flows.len() {
        let quoted = addresses.iter().map(|address| format!("\"{address}\""));
        format!("\"address\", values = [{}]", values(quoted.collect()))
    } else {
        return groups;
    };
    let has_parts = |group: &Group<'_>| {
        matches!(
            group.found.suggestion,
            Suggestion::Format {
                has_parts: true,
                ..
            }
        )
    };
    if groups.len() < 2 || !is_common || !groups.iter().all(has_parts) {
        return groups;
    }
    let mut counts = Account::default();
    for group in &groups {
        counts.add(&group.counts);
    }
    let Some(mut one) = groups.into_iter().next() else {
        return Vec::new();
    };
    if let Suggestion::Format { keys, .. } = &mut one.found.suggestion {
        let why = "the flows send parts of the same frames, in the order of `values`:";
        keys.push(Key::new(format!("part     = {{ from = {part} }}"), why));
    }
    one.found.why.push(format!(
        "{} flows send parts of the same frames",
        flows.len()
    ));
    vec![Group {
        flows,
        counts,
        ..one
    }]
}

impl<'a> Group<'a> {
    fn new(flows: Vec<&'a Flow>, recogniser: Recogniser, found: Recognised) -> Self {
        let counts = account(found.places.iter().copied(), &found.numbering);
        Self {
            flows,
            recogniser,
            found,
            counts,
        }
    }

    /// Returns the lowest and the highest frame number.
    fn frames(&self) -> Option<(u64, u64)> {
        let frames = || self.found.places.iter().flatten().map(|place| place.frame);
        Some((frames().min()?, frames().max()?))
    }

    fn packets(&self) -> u64 {
        self.flows.iter().map(|flow| flow.packets).sum()
    }

    fn is_source(&self) -> bool {
        matches!(self.found.suggestion, Suggestion::Format { .. })
    }

    fn ports(&self) -> BTreeSet<u16> {
        self.flows
            .iter()
            .map(|flow| flow.destination.port())
            .collect()
    }

    /// Returns the stream. If `is_shared`, other streams use the same ports.
    fn stream(
        self,
        name: String,
        origin: &Origin<'_>,
        registry: &Registry,
        is_shared: bool,
    ) -> Stream {
        let found = self.found;
        let (section, no_section) = match &found.suggestion {
            _ if is_shared => (None, Some(SHARED.to_owned())),
            Suggestion::Format {
                kind,
                keys,
                samples,
                ..
            } => {
                let with = |samples: Option<&str>| {
                    section::section(&name, kind, keys, samples, &self.flows, origin)
                };
                match accepted(registry, with, samples.as_deref()) {
                    Ok(section) => (Some(section), None),
                    Err(reason) => (None, Some(reason)),
                }
            }
            Suggestion::None(reason) => (None, Some(reason.clone())),
        };
        Stream {
            flows: self
                .flows
                .iter()
                .map(|flow| FlowReport::new(flow))
                .collect(),
            format: Some(Format {
                name: found.name,
                confidence: found.confidence,
                why: found.why,
                ambiguous: found.ambiguous,
            }),
            counts: Some(self.counts),
            name: if section.is_some() {
                name
            } else {
                String::new()
            },
            section,
            no_section,
        }
    }
}
