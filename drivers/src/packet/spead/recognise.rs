//! SPEAD version 4 with 64-bit item pointers.
//!
//! Each packet states the counter and the length of its heap, and the offset and the length of its payload, so nothing is
//! guessed except the meaning of the sender's own items.

mod frame;
mod items;

use super::Spead;
use super::items::{Fields, IMMEDIATE, WORD, has_descriptor, item};
use crate::packet::recognise::{
    CapturedPacket, Key, MIN_SHARE, Numbering, Place, Recognised, Recogniser, Suggestion, mode,
    percent,
};
use frame::{FrameItems, HeapKey, Heaps};
use items::Items;
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// How SPEAD packets are recognised.
pub(super) const RECOGNISERS: &[Recogniser] = &[Recogniser {
    recognise,
    packet_len,
}];

/// Minimum number of different sizes of heaps, none of which has half of the packets, for which each heap is a frame of its own
/// size.
const MIN_SIZES: usize = 4;

/// The items of one packet.
#[derive(Clone, Debug)]
struct Heap {
    /// Senders that do not know of each other use the same counters.
    sender: SocketAddr,
    address_bits: u32,
    counter: u64,
    length: u64,
    offset: u64,
    payload: u64,
    is_message: bool,
    is_descriptor: bool,
    /// The sender's own items: identifier, and the value if the pointer contains it.
    own: Vec<(u64, Option<u64>)>,
    /// The items in the payload of the heap: identifier and offset. Empty if not all of them are stored.
    in_payload: Vec<(u64, u64)>,
}

impl Heap {
    /// Returns what distinguishes this heap from others.
    const fn key(&self) -> HeapKey {
        (self.sender, self.counter)
    }

    /// Returns the identifier and the size of the largest item in the payload, if this is the first packet of its heap.
    fn largest(&self) -> Option<(u64, u64)> {
        let offsets = || self.in_payload.iter().map(|(_, offset)| *offset);
        let size = |offset: u64| {
            let end = offsets().filter(|other| *other > offset).min();
            end.unwrap_or(self.length).saturating_sub(offset)
        };
        let items = self.in_payload.iter().filter(|_| self.offset == 0);
        items
            .map(|(id, offset)| (*id, size(*offset)))
            .max_by_key(|(_, size)| *size)
    }
}

/// The items of a packet that state its place, and the size of its header in bytes.
struct Start<'a> {
    address_bits: u32,
    header: usize,
    /// The item pointers. Those of a very long header may exceed the stored bytes.
    words: &'a [u8],
    counter: u64,
    heap: u64,
    offset: u64,
    payload: u64,
    is_message: bool,
}

impl<'a> Start<'a> {
    /// Reads the header at the start of `bytes`; `None` if it is not SPEAD, or if an item is missing.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let address_bits = Spead::flavour(bytes)?;
        let header = Spead::header_bytes(bytes)?;
        let words = bytes.get(WORD..header.min(bytes.len()))?;
        let fields = Fields::read(words, address_bits, None);
        Some(Self {
            address_bits,
            header,
            words,
            counter: fields.counter?,
            heap: fields.heap?,
            offset: fields.offset?,
            payload: fields.payload?,
            is_message: fields.control.is_some(),
        })
    }
}

/// Returns the items of a packet of a flow.
fn read(packet: &CapturedPacket) -> Option<Heap> {
    let start = Start::read(&packet.head)?;
    let mask = (1 << start.address_bits) - 1;
    let mut heap = Heap {
        sender: packet.source,
        address_bits: start.address_bits,
        counter: start.counter,
        length: start.heap,
        offset: start.offset,
        payload: start.payload,
        is_message: start.is_message,
        is_descriptor: has_descriptor(start.words, start.address_bits),
        own: Vec::new(),
        in_payload: Vec::new(),
    };
    for word in start.words.as_chunks::<WORD>().0 {
        let word = u64::from_be_bytes(*word);
        let (is_immediate, value) = (word & IMMEDIATE != 0, word & mask);
        let id = (word & !IMMEDIATE) >> start.address_bits;
        let is_protocol = match id {
            item::DESCRIPTOR => true,
            item::HEAP_COUNTER..=item::STREAM_CONTROL => is_immediate,
            _ => false,
        };
        if !is_protocol {
            heap.own.push((id, is_immediate.then_some(value)));
        }
        if !is_protocol && !is_immediate && id != 0 && start.header <= packet.head.len() {
            heap.in_payload.push((id, value));
        }
    }
    Some(heap)
}

/// Returns the size in bytes of the packet at the start of `bytes`.
fn packet_len(bytes: &[u8]) -> Option<usize> {
    let start = Start::read(bytes)?;
    start
        .header
        .checked_add(usize::try_from(start.payload).ok()?)
}

/// The sizes of a heap with samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    /// The size of a heap, or of the largest heap.
    heap: u64,
    /// Whether heaps differ in size.
    differs: bool,
    first: u64,
    rest: u64,
}

impl Sizes {
    /// Returns the most frequent sizes.
    fn of(heaps: &[&Heap]) -> Option<Self> {
        let (common, count) = mode(heaps.iter().map(|packet| packet.length))?;
        let lengths: BTreeSet<u64> = heaps.iter().map(|packet| packet.length).collect();
        let differs = lengths.len() >= MIN_SIZES && 2 * count < heaps.len();
        let heap = lengths
            .last()
            .copied()
            .filter(|_| differs)
            .unwrap_or(common);
        let inside = || {
            heaps
                .iter()
                .filter(move |packet| differs || packet.length == heap)
        };
        let at_start = inside()
            .filter(|packet| packet.offset == 0 && (!differs || packet.payload < packet.length));
        let (first, _) = mode(at_start.map(|packet| packet.payload))
            .or_else(|| mode(inside().map(|packet| packet.payload)))?;
        let is_middle =
            |packet: &&&Heap| packet.offset > 0 && packet.offset + packet.payload < packet.length;
        let middle = mode(inside().filter(is_middle).map(|packet| packet.payload));
        let rest = match middle {
            Some((rest, _)) => rest,
            None => inside().map(|packet| packet.payload).max()?,
        };
        (heap > 0 && first > 0 && rest > 0).then_some(Self {
            heap,
            differs,
            first,
            rest,
        })
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
fn recognise(packets: &[&CapturedPacket]) -> Option<Recognised> {
    let parsed: Vec<Option<Heap>> = packets.iter().map(|packet| read(packet)).collect();
    let all: Vec<&Heap> = parsed.iter().flatten().collect();
    let confidence = percent(all.len(), packets.len());
    if confidence < MIN_SHARE {
        return None;
    }
    let (address_bits, _) = mode(all.iter().map(|heap| heap.address_bits))?;
    // Items of a heap are usually in its first packet only.
    let described: BTreeSet<HeapKey> = all
        .iter()
        .filter(|heap| heap.is_descriptor)
        .map(|heap| heap.key())
        .collect();
    let is_data = |heap: &Heap| !heap.is_message && !described.contains(&heap.key());
    let data: Vec<&Heap> = all.iter().copied().filter(|heap| is_data(heap)).collect();
    let sizes = Sizes::of(&data)?;
    let is_frame = |heap: &Heap| is_data(heap) && (sizes.differs || heap.length == sizes.heap);
    let mut counters: Vec<u64> = data
        .iter()
        .filter(|heap| is_frame(heap))
        .map(|heap| heap.counter)
        .collect();
    counters.dedup();
    let steps = counters
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]));
    let step = mode(steps.filter(|step| (1..1 << 40).contains(step))).map_or(1, |(step, _)| step);
    let own = own_items(data.iter().copied().filter(|heap| is_frame(heap)));
    let frame = FrameItems::find(&own).filter(|_| !sizes.differs);
    let place = |heap: &Option<Heap>| {
        let heap = heap.as_ref()?;
        if sizes.differs {
            return (is_frame(heap) && heap.offset == 0).then_some(Place::of(heap.counter));
        }
        if let Some(frame) = &frame {
            let (frame, part) = frame.place(own.get(&heap.key())?)?;
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
            packet,
            ..Place::of(heap.counter)
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
    if sizes.differs {
        ambiguous.push(format!(
            "heaps have {} different sizes; the largest heap may not have been among them. Loss is counted in heaps, by their first \
             packets: the other packets are counted as without samples",
            others.len() + 1
        ));
    } else if !others.is_empty() {
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
    let has_several = items.has_several_in_payload();
    let largest = data.iter().filter(|heap| is_frame(heap));
    let samples = mode(largest.filter_map(|heap| heap.largest()));
    let samples = samples.filter(|_| has_several && !sizes.differs);
    let samples = samples.map(|(item, _)| item);
    let obstacle = if sizes.differs {
        None
    } else if has_several {
        Some("heaps contain several items")
    } else if !described.is_empty() {
        Some("heaps with descriptors have other packet boundaries")
    } else {
        None
    };
    let mut keys = keys(address_bits, &sizes, step, samples, obstacle);
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
            range: None,
            bits: address_bits,
            step: frame.as_ref().map_or(step, |frame| frame.step),
            packets: if sizes.differs { 1 } else { sizes.packets() },
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
        let values = own.entry(heap.key()).or_default();
        for (id, value) in &heap.own {
            values.extend(value.map(|value| (*id, value)));
        }
    }
    own
}

/// Returns the keys of the sizes. If there is an `obstacle` to fixing the sizes of packets, these keys are comments. `samples` is
/// the item with the samples and its size in bytes, if the payload of heaps consists of several items.
fn keys(
    address_bits: u32,
    sizes: &Sizes,
    step: u64,
    samples: Option<(u64, u64)>,
    obstacle: Option<&str>,
) -> Vec<Key> {
    let mut keys = Vec::new();
    if sizes.differs {
        let why =
            "the largest heap so far; set the size of the largest heap that the sender can send:";
        keys.push(Key::new(format!("max_heap = {}", sizes.heap), why));
    } else if let Some((item, bytes)) = samples {
        let why = "the largest item of a heap, and its size:";
        keys.push(Key::new(format!("samples = {item:#06x}"), why));
        keys.push(Key::new(format!("heap    = {bytes}"), ""));
    } else {
        let why = "the size that the packets state, with all items in the payload:";
        keys.push(Key::new(format!("heap   = {}", sizes.heap), why));
    }
    let (mark, why) = match obstacle {
        None => (
            "",
            "observed; without these keys, they are detected from the first heaps:".to_owned(),
        ),
        Some(obstacle) => (
            "# ",
            format!("detected from the first heaps, because {obstacle}; observed:"),
        ),
    };
    keys.push(Key::new(format!("{mark}packet = {}", sizes.rest), why));
    let mut add = |line: String| keys.push(Key::new(format!("{mark}{line}"), ""));
    if sizes.first != sizes.rest {
        add(format!("first  = {}", sizes.first));
    }
    add(format!("heap_step    = {step}"));
    add(format!("address_bits = {address_bits}"));
    keys
}
