//! SPEAD version 4 with 64-bit item pointers.
//!
//! Each packet states the counter and the length of its heap, and the offset and the length of its payload, so nothing is
//! guessed except the meaning of the sender's own items.

mod frame;

use super::{Key, Packet, Recognised, Suggestion, mode, percent};
use crate::inspect::account::{Numbering, Place};
use crate::inspect::number;
use daq_drivers::packet::spead::item;
use frame::{FrameItems, Heaps, MAX_PARTS};
use std::collections::{BTreeMap, BTreeSet};

/// Minimum share in percent of packets that must be SPEAD.
const MIN_SHARE: u8 = 90;

/// The items of one packet.
#[derive(Clone, Debug, Default)]
struct Heap {
    address_bits: u32,
    counter: u64,
    length: u64,
    offset: u64,
    payload: u64,
    header: usize,
    is_message: bool,
    is_descriptor: bool,
    /// The sender's own items: identifier, and the value if the pointer contains it.
    own: Vec<(u64, Option<u64>)>,
}

/// Returns the items of a packet.
fn parse(bytes: &[u8]) -> Option<Heap> {
    let [0x53, 4, pointer, address @ (5 | 6), _, _, high, low] = *bytes.first_chunk::<8>()? else {
        return None;
    };
    if pointer + address != 8 {
        return None;
    }
    let address_bits = u32::from(address) * 8;
    let header = 8 + 8 * usize::from(u16::from_be_bytes([high, low]));
    let mut heap = Heap {
        address_bits,
        header,
        ..Heap::default()
    };
    let mut found = [false; 4];
    // The items of a very long header may exceed the stored bytes.
    let items = bytes.get(8..header.min(bytes.len()))?;
    for word in items.as_chunks::<8>().0 {
        let word = u64::from_be_bytes(*word);
        let (is_immediate, value) = (word >> 63 == 1, word & ((1 << address_bits) - 1));
        let id = (word & !(1 << 63)) >> address_bits;
        let field = match (id, is_immediate) {
            (item::HEAP_COUNTER, true) => &mut heap.counter,
            (item::HEAP_LENGTH, true) => &mut heap.length,
            (item::HEAP_OFFSET, true) => &mut heap.offset,
            (item::PAYLOAD_LENGTH, true) => &mut heap.payload,
            (item::STREAM_CONTROL, true) => {
                heap.is_message = true;
                continue;
            }
            (item::DESCRIPTOR, _) => {
                heap.is_descriptor = true;
                continue;
            }
            _ => {
                heap.own.push((id, is_immediate.then_some(value)));
                continue;
            }
        };
        *field = value;
        if let Some(found) = usize::try_from(id - 1).ok().and_then(|i| found.get_mut(i)) {
            *found = true;
        }
    }
    (found == [true; 4]).then_some(heap)
}

/// Returns the size in bytes of the packet at the start of `bytes`.
pub(in crate::inspect) fn packet_len(bytes: &[u8]) -> Option<usize> {
    let heap = parse(bytes)?;
    Some(heap.header + usize::try_from(heap.payload).ok()?)
}

/// The sizes of a heap with samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    heap: u64,
    first: u64,
    rest: u64,
}

impl Sizes {
    /// Returns the most frequent sizes.
    fn of(heaps: &[&Heap]) -> Option<Self> {
        let (heap, _) = mode(heaps.iter().map(|packet| packet.length))?;
        let inside = || heaps.iter().filter(move |packet| packet.length == heap);
        let at_start = inside().filter(|packet| packet.offset == 0);
        let (first, _) = mode(at_start.map(|packet| packet.payload))
            .or_else(|| mode(inside().map(|packet| packet.payload)))?;
        let is_middle =
            |packet: &&&Heap| packet.offset > 0 && packet.offset + packet.payload < packet.length;
        let middle = mode(inside().filter(is_middle).map(|packet| packet.payload));
        let rest = match middle {
            Some((rest, _)) => rest,
            None => inside().map(|packet| packet.payload).max()?,
        };
        (heap > 0 && first > 0 && rest > 0).then_some(Self { heap, first, rest })
    }

    fn packets(&self) -> u64 {
        1 + self.heap.saturating_sub(self.first).div_ceil(self.rest)
    }

    fn packet(&self, offset: u64) -> u64 {
        match offset.checked_sub(self.first) {
            None => 0,
            Some(after) => 1 + after / self.rest,
        }
    }
}

/// Recognises SPEAD.
pub(super) fn recognise(packets: &[&Packet]) -> Option<Recognised> {
    let parsed: Vec<Option<Heap>> = packets.iter().map(|packet| parse(&packet.head)).collect();
    let all: Vec<&Heap> = parsed.iter().flatten().collect();
    let confidence = percent(all.len(), packets.len());
    if confidence < MIN_SHARE {
        return None;
    }
    let (address_bits, _) = mode(all.iter().map(|heap| heap.address_bits))?;
    // Items of a heap are usually in its first packet only.
    let described: BTreeSet<u64> = all
        .iter()
        .filter(|heap| heap.is_descriptor)
        .map(|heap| heap.counter)
        .collect();
    let is_data = |heap: &Heap| !heap.is_message && !described.contains(&heap.counter);
    let data: Vec<&Heap> = all.iter().copied().filter(|heap| is_data(heap)).collect();
    let sizes = Sizes::of(&data)?;
    let mut counters: Vec<u64> = data
        .iter()
        .filter(|heap| heap.length == sizes.heap)
        .map(|heap| heap.counter)
        .collect();
    counters.dedup();
    let steps = counters
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]));
    let step = mode(steps.filter(|step| (1..1 << 40).contains(step))).map_or(1, |(step, _)| step);
    let is_frame = |heap: &Heap| is_data(heap) && heap.length == sizes.heap;
    let own = own_items(data.iter().copied().filter(|heap| is_frame(heap)));
    let frame = FrameItems::find(&own);
    let place = |heap: &Option<Heap>| {
        let heap = heap.as_ref()?;
        if let Some(frame) = &frame {
            let (frame, part) = frame.place(own.get(&heap.counter)?)?;
            return is_frame(heap).then(|| Place {
                frame,
                packet: sizes.packet(heap.offset),
                part,
            });
        }
        // Packets of messages and of heaps with descriptors or another length have an index beyond the frame.
        let packet = if is_frame(heap) {
            sizes.packet(heap.offset)
        } else {
            u64::MAX
        };
        Some(Place {
            frame: heap.counter,
            packet,
            part: 0,
        })
    };
    let mut why = vec![
        format!("{confidence} % of the packets begin with 53 04 and have items 1 to 4"),
        format!(
            "heap {} B; payload of packets {} B, of the first {} B; counter step {step}",
            sizes.heap, sizes.rest, sizes.first
        ),
    ];
    let others: BTreeSet<u64> = data
        .iter()
        .filter(|heap| heap.length != sizes.heap)
        .map(|heap| heap.length)
        .collect();
    let mut ambiguous = Vec::new();
    if !others.is_empty() {
        let list: Vec<_> = others.iter().take(6).map(u64::to_string).collect();
        ambiguous.push(format!(
            "there are also heaps of {} B; they are not frames of this source",
            list.join(", ")
        ));
    }
    if !described.is_empty() {
        why.push(format!(
            "descriptors are in {}",
            daq_core::units::counted(described.len(), "heap")
        ));
    }
    if all.iter().any(|heap| heap.is_message) {
        why.push("a packet ends or starts the stream (item 6)".to_owned());
    }
    let items = Items::of(&data);
    why.extend(items.list());
    let obstacle = if !described.is_empty() {
        Some("heaps with descriptors have other packet boundaries")
    } else if items.has_several_in_payload() {
        Some("heaps contain several items, of which the largest is the frame")
    } else {
        None
    };
    let mut keys = keys(address_bits, &sizes, step, obstacle);
    match &frame {
        Some(frame) => {
            why.push(frame.words());
            // The counter is not used.
            keys.retain(|key| !key.line.contains("heap_step"));
            keys.extend(frame.keys());
        }
        None => ambiguous.extend(items.part_note()),
    }
    keys.extend(items.time_key(packets, &parsed));
    Some(Recognised {
        name: format!("SPEAD-64-{address_bits}"),
        confidence,
        why,
        ambiguous,
        numbering: Numbering {
            bits: address_bits,
            step: frame.as_ref().map_or(step, |frame| frame.step),
            packets: sizes.packets(),
        },
        places: parsed.iter().map(place).collect(),
        layout: format!("spead {address_bits} {sizes:?}"),
        suggestion: Suggestion::Format {
            kind: "spead",
            keys,
            samples: None,
            has_parts: frame.is_none(),
        },
    })
}

/// Returns the values of the sender's own items in each of `heaps`.
fn own_items<'a>(heaps: impl Iterator<Item = &'a Heap>) -> Heaps {
    let mut own = Heaps::new();
    for heap in heaps {
        let values = own.entry(heap.counter).or_default();
        for (id, value) in &heap.own {
            values.extend(value.map(|value| (*id, value)));
        }
    }
    own
}

/// Returns the keys of the sizes. They are comments if there is an `obstacle` to fixing the sizes.
fn keys(address_bits: u32, sizes: &Sizes, step: u64, obstacle: Option<&str>) -> Vec<Key> {
    let why = match obstacle {
        None => "the packets state these sizes; without these keys, the sizes are detected from the first heaps".to_owned(),
        Some(obstacle) => format!("detected from the first heaps, because {obstacle}; observed:"),
    };
    let mut lines = vec![
        format!("heap   = {}", sizes.heap),
        format!("packet = {}", sizes.rest),
    ];
    if sizes.first != sizes.rest {
        lines.push(format!("first  = {}", sizes.first));
    }
    lines.push(format!("heap_step    = {step}"));
    lines.push(format!("address_bits = {address_bits}"));
    let mark = if obstacle.is_none() { "" } else { "# " };
    let reasons = std::iter::once(why).chain(std::iter::repeat(String::new()));
    let keys = lines.iter().zip(reasons);
    keys.map(|(line, why)| Key::new(format!("{mark}{line}"), why))
        .collect()
}

/// The sender's own items and the values that were observed.
struct Items(BTreeMap<u64, BTreeSet<Option<u64>>>);

impl Items {
    fn of(data: &[&Heap]) -> Self {
        let mut items: BTreeMap<u64, BTreeSet<Option<u64>>> = BTreeMap::new();
        for (id, value) in data.iter().flat_map(|heap| &heap.own) {
            items.entry(*id).or_default().insert(*value);
        }
        Self(items)
    }

    /// Returns whether the payload of heaps consists of several items.
    fn has_several_in_payload(&self) -> bool {
        let in_payload =
            |(id, values): &(&u64, &BTreeSet<Option<u64>>)| **id != 0 && values.contains(&None);
        self.0.iter().filter(in_payload).count() > 1
    }

    /// Returns one line for each item.
    fn list(&self) -> impl Iterator<Item = String> + '_ {
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
    fn part_note(&self) -> Option<String> {
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
    fn time_key(&self, packets: &[&Packet], parsed: &[Option<Heap>]) -> Option<Key> {
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
        let rate = number::tick_rate(times)?;
        Some(Key::new(
            format!("# timestamp = {{ item = {id:#06x}, rate = \"{rate}\" }}"),
            format!("item {id:#06x} grows by about {rate} of capture time; set the exact rate:"),
        ))
    }
}
