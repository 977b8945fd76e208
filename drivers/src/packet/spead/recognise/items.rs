//! The sender's own items.

use super::Heap;
use super::frame::MAX_PARTS;
use crate::packet::recognise::{CapturedPacket, Key, tick_rate};
use std::collections::{BTreeMap, BTreeSet};

/// The sender's own items and the values that were observed.
pub(super) struct Items(BTreeMap<u64, BTreeSet<Option<u64>>>);

impl Items {
    pub(super) fn of(data: &[&Heap]) -> Self {
        let mut items: BTreeMap<u64, BTreeSet<Option<u64>>> = BTreeMap::new();
        for (id, value) in data.iter().flat_map(|heap| &heap.own) {
            items.entry(*id).or_default().insert(*value);
        }
        Self(items)
    }

    /// Returns whether the payload of heaps consists of several items.
    pub(super) fn has_several_in_payload(&self) -> bool {
        let in_payload =
            |(id, values): &(&u64, &BTreeSet<Option<u64>>)| **id != 0 && values.contains(&None);
        self.0.iter().filter(in_payload).count() > 1
    }

    /// Returns one line for each item.
    pub(super) fn list(&self) -> impl Iterator<Item = String> + '_ {
        self.0
            .iter()
            .filter(|(id, _)| **id != 0)
            .map(|(id, values)| {
                let numbers: Vec<u64> = values.iter().flatten().copied().collect();
                let what = match numbers.as_slice() {
                    [] => "in the payload".to_owned(),
                    [one] => format!("always {one}"),
                    [first, .., last] => format!("{} values, {first} to {last}", numbers.len()),
                };
                format!("item {id:#06x}: {what}")
            })
    }

    /// Returns items with few values that repeat, which may number antennas or bands.
    pub(super) fn part_note(&self) -> Option<String> {
        let most = self.0.values().map(BTreeSet::len).max()?;
        let is_part = |values: &BTreeSet<Option<u64>>| {
            !values.contains(&None)
                && (2..=MAX_PARTS).contains(&values.len())
                && values.len() * 4 <= most
        };
        let ids: Vec<_> = self
            .0
            .iter()
            .filter(|(_, values)| is_part(values))
            .map(|(id, values)| format!("{id:#06x} ({} values)", values.len()))
            .collect();
        (!ids.is_empty()).then(|| {
            format!(
                "few values repeat in the items {}: they may number antennas or bands",
                ids.join(", ")
            )
        })
    }

    /// Returns the key of the item whose value grows with the time of capture.
    pub(super) fn time_key(
        &self,
        packets: &[&CapturedPacket],
        parsed: &[Option<Heap>],
    ) -> Option<Key> {
        let (id, _) = self
            .0
            .iter()
            .filter(|(_, values)| !values.contains(&None) && values.len() > 2)
            .max_by_key(|(_, values)| values.len())?;
        let times = packets.iter().zip(parsed).filter_map(|(packet, heap)| {
            let own = &heap.as_ref()?.own;
            let (_, value) = own.iter().find(|(own, _)| own == id)?;
            Some((packet.ns, (*value)?))
        });
        let rate = tick_rate(times)?;
        Some(Key::new(
            format!("# timestamp = {{ item = {id:#06x}, rate = \"{rate}\" }}"),
            format!("item {id:#06x} grows by about {rate} of capture time; set the exact rate:"),
        ))
    }
}
