//! `spead`: SPEAD version 4 with 64-bit item pointers (SPEAD-64-40 and SPEAD-64-48), as radio telescopes send it.
//!
//! ```text
//!   | 53 04 pw aw 00 00 nn nn | item pointer 0 | ... | item pointer n-1 | payload |
//!   item pointer: 1 bit immediate, 63-a bits identifier, a bits value (or address); big endian
//! ```
//! One heap is one frame, or one part of a frame (module `numbers`). A heap of a different length contains descriptors or other
//! items. Its heap counter is used, but its data is skipped.
//!
//! By default, senders put all item pointers into a heap's first packet only. That packet has a longer header and less
//! payload: `first`. Sizes that are not configured are detected from the first heaps, see the module `detect`.
//! Source: SPEAD protocol document of the SKA South Africa project, and the packets of PyPI's `spead2`.

mod config;
mod descriptors;
mod detect;
mod items;
mod numbers;
mod recognise;
mod step;

pub use config::SpeadConfig;
pub use detect::Given;
pub use items::{Item, build_packet, item};

use super::keep::Keep;
use super::parts::UNKNOWN_FLOW;
use super::{
    Build, Control, Detect, Finding, Flow, Format, FormatEntry, FormatFacts, Fragment, Numbering,
    Packet, PacketClock, PacketFormat, PacketLayout, Parse, Parsed, Reject, SizeDetector,
    SourceOfFormat, Split, TimeScale, TimeWrap, UnknownSizes, section,
};
use daq_core::config::Problem;
use daq_core::frame::KeptFields;
use daq_core::ledger::Counts;
use daq_core::outgoing::OutgoingFrames;
use daq_core::reorder::Geometry;
use daq_core::units::counted;
use detect::{Detector, Extent, SampleItem};
use items::{Fields, HeaderBuilder, IMMEDIATE, MAGIC, VERSION, WORD, find_item, has_descriptor};
use numbers::HeapNumbers;
use schemars::JsonSchema;
use std::sync::Arc;
use step::StepCheck;

/// The registry entry of this format.
pub(super) const ENTRY: FormatEntry = FormatEntry {
    name: "spead",
    summary: "SPEAD-64-40/48 heaps, as radio telescopes send them",
    example: r#"kind   = "spead"
# heap and packet sizes are detected from the first heaps unless set:
# heap   = "1 MiB"       # payload of one heap: one frame
# packet = "8 KiB"       # payload of each packet except the first and the last
# first  = "8176 B"      # payload of a heap's first packet, if smaller
"#,
    schema: SpeadConfig::json_schema,
    parse: |table, diagnostics| section::finish(table, diagnostics, SpeadConfig::build),
    recognise: recognise::RECOGNISERS,
};

/// The key and the help of the warning that heap counters repeat.
const NUMBER_ADVICE: (&str, &str) = (
    "format.step",
    "check `step` and `address_bits`, which limit the number of different heap counters; otherwise compare `delivered` with the \
     sender's own count",
);

/// Value of the stream control item that marks the end of a stream.
const STREAM_STOP: u64 = 2;

/// The SPEAD format, with the header sizes of the sender's last packets.
#[derive(Clone, Debug)]
pub struct Spead {
    address_bits: u32,
    layout: PacketLayout,
    /// Increment of the heap counter, or of the number of the frame.
    step: u64,
    /// Set if the heap counter alone does not state the frame and its part.
    numbers: Option<Box<HeapNumbers>>,
    /// The item that contains the samples, if it is configured.
    samples: Option<SampleItem>,
    /// Whether heaps differ in size. The layout is then that of the largest heap.
    is_sized: bool,
    /// If heaps differ in size, the counter of the last heap with descriptors. Only its first packet shows the descriptors.
    last_described: Option<u64>,
    timestamp: Option<u64>,
    scale: Option<TimeScale>,
    /// Number of significant bits of the timestamp, if it has fewer than an address.
    time_bits: Option<u32>,
    /// Set if the timestamp repeats because its item wraps.
    wrap: Option<TimeWrap>,
    keep: Keep<u64>,
    /// Size in bytes of the header of the last packet that was the first of its heap.
    first_header: usize,
    /// Size in bytes of the header of the last packet that was not the first of its heap.
    rest_header: usize,
    /// Extent of the frame in heaps with the regular packet boundaries.
    regular: Extent,
    /// Extent of the frame in heaps that also contain descriptors and therefore have other packet boundaries.
    described: Option<Extent>,
    /// The configured values, if the other values must be detected.
    given: Option<Given>,
    /// Detects the values that are not configured while the source runs.
    detector: Option<Arc<Detector>>,
    /// Checks whether later heaps match the detected step.
    step_check: Option<Box<StepCheck>>,
}

impl Spead {
    /// Creates a format of heaps with `layout`. Heap counters have `address_bits` bits (40 or 48) and grow by `step`.
    pub fn new(address_bits: u32, layout: PacketLayout, step: u64) -> Self {
        let address_bits = address_bits.clamp(8, 56);
        // Counter, length, offset and payload length. The first packet also has a pointer to the samples.
        let rest_header = WORD + 4 * WORD;
        let first_header = rest_header + WORD;
        Self {
            address_bits,
            layout,
            step: step.max(1),
            numbers: None,
            samples: None,
            is_sized: false,
            last_described: None,
            timestamp: None,
            scale: None,
            time_bits: None,
            wrap: None,
            keep: Keep::default(),
            first_header,
            rest_header,
            regular: Extent::whole(layout.unit_bytes as u64),
            described: None,
            given: None,
            detector: None,
            step_check: None,
        }
    }

    /// Creates a format of which only the values `given` are known. The other values are detected from the first heaps.
    pub fn detecting(given: Given) -> Self {
        let layout = PacketLayout {
            unit_bytes: given.heap.unwrap_or(0),
            first: 1,
            rest: 1,
        };
        let address_bits = given.address_bits.unwrap_or(40);
        Self {
            given: Some(given),
            ..Self::new(address_bits, layout, given.step.unwrap_or(1))
        }
    }

    /// Returns whether the packet is a stream control message: the start or the end of the stream.
    fn is_message(packet: &[u8]) -> bool {
        Self::flavour(packet)
            .zip(Self::item_words(packet))
            .is_some_and(|(bits, items)| Fields::read(items, bits, None).control.is_some())
    }

    /// Returns the reason to reject bytes that are not a SPEAD packet of a supported flavour.
    fn refuse(packet: &[u8]) -> Reject {
        let layout = PacketLayout {
            unit_bytes: 1,
            first: 1,
            rest: 1,
        };
        let short = Reject::Short {
            need: WORD,
            got: packet.len(),
        };
        Self::new(40, layout, 1)
            .parse(packet)
            .err()
            .unwrap_or(short)
    }

    /// Returns the number of address bits in the packet, or `None` for other formats and unsupported flavours.
    fn flavour(packet: &[u8]) -> Option<u32> {
        let [magic, version, pointer, address, ..] = *packet.first_chunk::<WORD>()?;
        let is_known = (magic, version) == (MAGIC, VERSION)
            && matches!(address, 5 | 6)
            && pointer + address == 8;
        is_known.then(|| u32::from(address) * 8)
    }

    /// Returns the size of the packet's header in bytes.
    fn header_bytes(packet: &[u8]) -> Option<usize> {
        let [.., high, low] = *packet.first_chunk::<WORD>()?;
        Some(WORD + WORD * usize::from(u16::from_be_bytes([high, low])))
    }

    /// Returns the item pointers of the packet.
    fn item_words(packet: &[u8]) -> Option<&[u8]> {
        packet.get(WORD..Self::header_bytes(packet)?)
    }

    /// Adds a timestamp in the item `id`, whose ticks have the time scale `scale`.
    #[must_use]
    pub fn timestamped(self, id: u64, scale: TimeScale) -> Self {
        Self {
            timestamp: Some(id),
            scale: Some(scale),
            first_header: self.first_header + WORD,
            ..self
        }
        .with_wrap()
    }

    /// Uses only the lowest `bits` bits of timestamps, if it is set.
    fn with_time_bits(self, bits: Option<u32>) -> Self {
        Self {
            time_bits: bits,
            ..self
        }
        .with_wrap()
    }

    /// Continues timestamps that wrap, without knowledge of previous packets.
    fn with_wrap(self) -> Self {
        let bits = self.time_bits.unwrap_or(u32::MAX).min(self.address_bits);
        let wrap = self
            .scale
            .and_then(|scale| TimeWrap::new(&scale, 1 << bits))
            .map(|wrap| wrap.declared(self.time_bits.is_some()));
        Self { wrap, ..self }
    }

    /// Returns the number of ticks without bits that do not belong to it.
    #[inline]
    fn ticks(&self, value: Option<u64>) -> Option<u64> {
        match self.time_bits {
            None => value,
            Some(bits) => value.map(|value| value & ((1 << bits) - 1)),
        }
    }

    /// Returns why `packet` does not contain the immediate item `id`, which `key` names.
    fn why_no_item(&self, id: u64, key: &str, packet: &[u8]) -> String {
        let items = Self::item_words(packet).unwrap_or_default();
        let mut words = items
            .as_chunks::<WORD>()
            .0
            .iter()
            .map(|word| u64::from_be_bytes(*word));
        let is_addressed = |word: u64| word & IMMEDIATE == 0 && word >> self.address_bits == id;
        if words.any(is_addressed) {
            format!(
                "the item {id:#x} is in the payload of the heap, not in its item pointer: configure the sender to send \
                 an immediate item (spead2: shape `()`, format `[('u', {})]`)",
                self.address_bits
            )
        } else {
            format!(
                "the first packet of a heap has no item {id:#x}: set `item` of `{key}` to the identifier that the sender uses"
            )
        }
    }

    /// Adds frame numbers in an item, and parts.
    #[must_use]
    fn numbered(self, numbers: HeapNumbers) -> Self {
        let mut items = 0;
        numbers.items(0, 0, |_| items += 1);
        Self {
            numbers: Some(Box::new(numbers)),
            first_header: self.first_header + items * WORD,
            rest_header: self.rest_header + items * WORD,
            ..self
        }
    }

    /// Places a packet of `length` bytes in its frame. `words` are its item pointers, in a header of `header` bytes.
    #[inline]
    fn place(&mut self, words: &[u8], header: usize, length: usize) -> Result<Parsed, Reject> {
        let items = Fields::read(words, self.address_bits, self.timestamp);
        let missing = |item| Reject::MissingItem { item };
        let counter = items.counter.ok_or(missing("heap counter (item 1)"))?;
        // Heaps without samples use the number of a frame if the heap counter is the number. If a frame has several parts, the
        // sender of one part must not change what is expected of the others.
        let number = self.numbers.is_none().then_some(counter);
        if let Some(value) = items.control {
            return Ok(Parsed::Control(if value == STREAM_STOP {
                Control::EndOfStream { unit: number }
            } else {
                Control::OtherUnit {
                    unit: number,
                    bytes: 0,
                }
            }));
        }
        // Heap length 0 means "not known yet". Such a heap cannot be placed before it has ended, so it is not
        // supported.
        let heap = items
            .heap
            .filter(|heap| *heap > 0)
            .ok_or(missing("heap length (item 2)"))?;
        let (extent, is_regular) = match self.described {
            _ if self.is_sized => match self.sized_extent(words, counter, heap) {
                Some(extent) => (extent, true),
                None => {
                    return Ok(Parsed::Control(Control::OtherUnit {
                        unit: number,
                        bytes: heap,
                    }));
                }
            },
            _ if heap == self.regular.heap => (self.regular, true),
            Some(described) if heap == described.heap => (described, false),
            _ => {
                return Ok(Parsed::Control(Control::OtherUnit {
                    unit: number,
                    bytes: heap,
                }));
            }
        };
        let (unit, part) = match &mut self.numbers {
            None => (counter, 0),
            Some(numbers) => numbers.locate(counter, words, self.address_bits)?,
        };
        let offset = items.offset.ok_or(missing("heap offset (item 3)"))?;
        let got = items
            .payload
            .ok_or(missing("packet payload length (item 4)"))?;
        let begin = offset.max(extent.start);
        let end = offset.saturating_add(got);
        let is_beside = begin >= end.min(extent.end);
        let at = usize::try_from(begin.saturating_sub(extent.start)).unwrap_or(usize::MAX);
        let mut sub = 0;
        if is_regular && (!is_beside || offset >= heap) {
            let layout = PacketLayout {
                unit_bytes: usize::try_from(extent.len()).unwrap_or(usize::MAX),
                ..self.layout
            };
            sub = layout.at(at as u64).ok_or(Reject::Misplaced { offset })?;
            let range = layout.range(sub);
            if end > heap || end.min(extent.end) - begin != range.len() as u64 {
                return Err(Reject::PayloadLength {
                    offset,
                    expected: range.len(),
                    got,
                });
            }
        } else if end > heap {
            return Err(Reject::Misplaced { offset });
        }
        let expected = usize::try_from(got).map_or(usize::MAX, |got| header.saturating_add(got));
        match length {
            _ if length < expected => {
                return Err(Reject::Short {
                    need: expected,
                    got: length,
                });
            }
            _ if length > expected => {
                return Err(Reject::Long {
                    expected,
                    got: length,
                });
            }
            _ if is_beside => return Ok(Parsed::Control(Control::Beside)),
            _ => {}
        }
        // The range is inside the packet, as checked above.
        let narrow = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let payload =
            header + narrow(begin - offset)..header + narrow(end.min(extent.end) - offset);
        if !is_regular {
            return Ok(Parsed::Fragment(Fragment {
                unit,
                part,
                offset: at,
                payload,
                timestamp: self.ticks(items.timestamp),
            }));
        }
        if sub == 0
            && let Some(check) = &mut self.step_check
        {
            let is_counted = self
                .numbers
                .as_ref()
                .is_none_or(|numbers| numbers.frame.is_none());
            check.see(if is_counted { counter } else { unit });
        }
        *(if sub == 0 {
            &mut self.first_header
        } else {
            &mut self.rest_header
        }) = payload.start;
        if part > 0 {
            sub += part * self.layout.count();
        }
        let packet = Packet {
            unit,
            sub,
            payload,
            timestamp: self.ticks(items.timestamp),
        };
        Ok(if self.is_sized {
            let unit_bytes = narrow(heap);
            Parsed::Sized { packet, unit_bytes }
        } else {
            Parsed::Data(packet)
        })
    }

    /// Returns the extent of a heap of `heap` bytes with the item pointers `words`, if heaps differ in size and this heap is a
    /// frame.
    fn sized_extent(&mut self, words: &[u8], counter: u64, heap: u64) -> Option<Extent> {
        if has_descriptor(words, self.address_bits) {
            self.last_described = Some(counter);
        } else if self.last_described != Some(counter) {
            // A later heap may have the same counter if the sender restarts.
            self.last_described = None;
        }
        let is_frame = heap <= self.layout.unit_bytes as u64 && self.last_described.is_none();
        is_frame.then(|| Extent::whole(heap))
    }

    /// Returns whether the heap counter is the number of the frame.
    fn is_counted(&self) -> bool {
        let numbers = self.numbers.as_ref();
        numbers.is_none_or(|numbers| numbers.frame.is_none())
    }

    /// Returns the part of packet `sub`, and the index of the packet in its heap.
    fn split(&self, sub: u32) -> (u32, u32) {
        let packets = self.layout.count();
        (sub / packets, sub % packets)
    }

    /// Returns the format with the sizes of the heaps that contain `frames`.
    fn sized(&self, frames: &OutgoingFrames) -> Result<Self, Problem> {
        let known = Given {
            heap: Some(self.layout.unit_bytes),
            packet: Some(self.layout.rest),
            first: Some(self.layout.first),
            ..Given::default()
        };
        let given = self.given.unwrap_or(known);
        let (parts, frame) = (self.parts() as usize, frames.frame_bytes);
        let heap = given.heap.unwrap_or(frame / parts);
        if heap.saturating_mul(parts) != frame {
            let heaps = counted(parts, "heap");
            let message =
                format!("{heaps} of {heap} bytes cannot contain a frame of {frame} bytes");
            let help = if frame.is_multiple_of(parts) {
                format!("remove `heap`, or set it to {}", frame / parts)
            } else {
                format!(
                    "set another number of parts, or another frame size: {frame} bytes cannot be divided into {heaps}"
                )
            };
            return Err(Problem::at("format.heap", message).help(help));
        }
        // A heap begins at a multiple of the item size in its packets.
        let room = |header: usize| frames.max_packet.saturating_sub(header).max(WORD) / WORD * WORD;
        let rest = given.packet.unwrap_or(room(self.rest_header));
        let first = given.packet.unwrap_or(room(self.first_header));
        let layout = PacketLayout {
            unit_bytes: heap,
            first: given.first.unwrap_or(first),
            rest,
        };
        Ok(Self {
            timestamp: self.timestamp,
            scale: self.scale,
            time_bits: self.time_bits,
            numbers: self.numbers.clone(),
            first_header: self.first_header,
            rest_header: self.rest_header,
            ..Self::new(self.address_bits, layout, self.step)
        }
        .with_wrap())
    }

    /// Appends the packet that ends the stream, using the heap counter `unit`.
    pub fn build_end(&self, unit: u64, out: &mut Vec<u8>) {
        let items = [
            Item::immediate(item::HEAP_COUNTER, unit),
            Item::immediate(item::HEAP_LENGTH, 1),
            Item::immediate(item::HEAP_OFFSET, 0),
            Item::immediate(item::PAYLOAD_LENGTH, 1),
            Item::immediate(item::STREAM_CONTROL, STREAM_STOP),
        ];
        build_packet(self.address_bits, &items, &[0], out);
    }

    /// The heap counter or an item is the number, and a unit has one heap for each part.
    fn numbering(&self) -> Numbering {
        Numbering {
            width: self.address_bits,
            step: self.step,
            packets_per_unit: self.layout.count() * self.parts(),
        }
    }

    fn parts(&self) -> u32 {
        let numbers = self.numbers.as_ref();
        numbers.map_or(1, |numbers| numbers.parts.count())
    }

    fn unknown_sizes(&self) -> Option<UnknownSizes> {
        self.given.map(|given| UnknownSizes {
            frame: given
                .heap
                .map(|heap| heap.saturating_mul(self.parts() as usize)),
            values: if self.is_counted() {
                "packet sizes and the step of heap counters"
            } else {
                "packet sizes"
            },
            from: "the first heaps",
        })
    }

    fn other_unit_note(&self, bytes: u64) -> String {
        let wanted = self.layout.unit_bytes;
        // Only the first such heap is logged.
        if self.is_sized && self.last_described.is_none() {
            return format!(
                "a heap has {bytes} bytes, more than `max_heap`, which is {wanted}. Its packets and those of further such heaps \
                 are counted as `control`. If the heap contains samples, set `max_heap = {bytes}`, or more"
            );
        }
        if self.is_sized {
            return format!(
                "a heap of {bytes} bytes contains descriptors, so it is not a frame. Its packets and those of further such heaps \
                 are counted as `control`. If it also contains samples, configure the sender to send descriptors in heaps of \
                 their own"
            );
        }
        format!(
            "a heap has {bytes} bytes, not {wanted}, so it is not a frame. Its packets and those of further such \
             heaps are counted as `control`, like the packets of descriptors. If it is the first heap of a sender, and contains \
             samples and descriptors (as with spead2), set `samples` to the item with the samples and remove `packet` and `first`, \
             so that daq finds them. If all heaps have this size, set `heap = {bytes}`. If heaps differ in size, replace `heap` \
             with `max_heap`, the size of the largest heap"
        )
    }
}

impl Detect for Spead {
    fn start_detection(&self, geometry: &Geometry, threads: usize) -> Format {
        let detector = Detector::new(self, geometry, threads);
        Format::Spead(Self {
            detector: Some(Arc::new(detector)),
            ..self.clone()
        })
    }

    fn detector(&self) -> Option<Arc<dyn SizeDetector>> {
        Some(self.detector.clone()?)
    }
}

impl Parse for Spead {
    #[inline]
    fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject> {
        let length = header.len().saturating_add(rest);
        let Some(first) = header.first_chunk::<WORD>() else {
            return if length < WORD {
                Err(Reject::Short {
                    need: WORD,
                    got: length,
                })
            } else {
                Ok(Split::Longer { header: WORD })
            };
        };
        let [magic, version, pointer, address, _, _, count @ ..] = *first;
        if (magic, version) != (MAGIC, VERSION) {
            let found = u16::from_be_bytes([magic, version]);
            return Err(Reject::BadMagic {
                found,
                expected: u16::from_be_bytes([MAGIC, VERSION]),
            });
        }
        if u32::from(address) * 8 != self.address_bits
            || u32::from(pointer) * 8 + self.address_bits != 64
        {
            let (pointer, found) = (u16::from(pointer) * 8, u16::from(address) * 8);
            return Err(Reject::Flavour {
                pointer,
                found,
                expected: self.address_bits,
            });
        }
        let end = WORD + WORD * usize::from(u16::from_be_bytes(count));
        let Some(items) = header.get(WORD..end) else {
            return if length < end {
                Err(Reject::Short {
                    need: end,
                    got: length,
                })
            } else {
                Ok(Split::Longer { header: end })
            };
        };
        self.place(items, end, length).map(Split::Whole)
    }

    fn packet_len(&self, packet: &[u8]) -> Option<usize> {
        let bits = Self::flavour(packet)?;
        let items = Self::item_words(packet)?;
        let fields = Fields::read(items, bits, None);
        // Stream control messages may have no payload.
        let payload = fields.payload.or(fields.control.map(|_| 0))?;
        usize::try_from(payload)
            .ok()?
            .checked_add(WORD + items.len())
    }

    #[inline]
    fn header_len(&self, sub: u32) -> usize {
        if sub == 0 || self.numbers.is_some() && self.split(sub).1 == 0 {
            self.first_header
        } else {
            self.rest_header
        }
    }

    #[inline]
    fn clock(&self) -> Option<PacketClock<'_>> {
        Some(PacketClock {
            scale: self.scale?,
            wrap: self.wrap.as_ref(),
        })
    }

    fn use_flow(&mut self, flow: &Flow) -> Result<(), Reject> {
        let Some(numbers) = &mut self.numbers else {
            return Ok(());
        };
        numbers.use_flow(flow);
        numbers.parts.flow().map(|_| ()).ok_or(UNKNOWN_FLOW)
    }

    fn read_kept(&self, packet: &[u8]) -> KeptFields {
        let items = Self::item_words(packet).unwrap_or_default();
        self.keep
            .read(|id| find_item(items, self.address_bits, *id))
    }
}

impl Build for Spead {
    /// Only the first packet of a heap contains the timestamp and the pointer to the samples. Each packet contains the numbers of
    /// the frame and the part.
    fn build_header(
        &self,
        unit: u64,
        sub: u32,
        timestamp: Option<u64>,
        payload: usize,
        out: &mut Vec<u8>,
    ) {
        let (part, sub) = self.split(sub);
        let numbers = self.numbers.as_ref();
        let counter = numbers.map_or(unit, |numbers| numbers.counter(unit, self.step, part));
        let mut header = HeaderBuilder::new(self.address_bits, out);
        header.push(Item::immediate(item::HEAP_COUNTER, counter));
        header.push(Item::immediate(
            item::HEAP_LENGTH,
            self.layout.unit_bytes as u64,
        ));
        header.push(Item::immediate(
            item::HEAP_OFFSET,
            self.layout.range(sub).start as u64,
        ));
        header.push(Item::immediate(item::PAYLOAD_LENGTH, payload as u64));
        if let Some(numbers) = numbers {
            numbers.items(unit, part, |item| header.push(item));
        }
        if sub > 0 {
            return;
        }
        if let Some((id, ticks)) = self.timestamp.zip(timestamp)
            && numbers.is_none_or(|numbers| numbers.frame != Some(id))
        {
            header.push(Item::immediate(id, ticks));
        }
        header.push(Item::addressed(item::SAMPLES, 0));
    }

    /// A heap is a frame. Unless `packet` is configured, all packets but the last have the same size with their headers.
    fn for_sending(&self, frames: &OutgoingFrames) -> Result<Option<Format>, Problem> {
        if self.is_sized {
            let message = "all heaps that are sent have the same size".to_owned();
            return Err(
                Problem::at("format.max_heap", message).help("replace `max_heap` with `heap`")
            );
        }
        self.sized(frames).map(|sized| Some(Format::Spead(sized)))
    }

    /// The descriptors never change.
    fn describe(
        &self,
        frames: &OutgoingFrames,
        _: u64,
        _: Option<u64>,
        packets: &mut Vec<Vec<u8>>,
    ) {
        if packets.is_empty() {
            let heap = OutgoingFrames {
                frame_bytes: self.layout.unit_bytes,
                ..frames.clone()
            };
            packets.push(descriptors::build(self.address_bits, self.timestamp, &heap));
        }
    }

    fn end(&self, unit: u64) -> Vec<Vec<u8>> {
        let mut packet = Vec::new();
        self.build_end(unit, &mut packet);
        vec![packet]
    }
}

impl PacketFormat for Spead {
    fn facts(&self) -> FormatFacts {
        let facts = FormatFacts {
            number_advice: NUMBER_ADVICE,
            unit_key: "heap",
            is_unit_frame: true,
            has_frame_times: self.scale.is_some(),
            kept: self.keep.names(),
            has_fragments: self.described.is_some(),
            has_sized_units: self.is_sized,
            unknown_sizes: self.unknown_sizes(),
            ..FormatFacts::new(self.numbering(), self.layout)
        };
        match &self.numbers {
            None => facts,
            Some(numbers) => FormatFacts {
                parts: numbers.parts.count(),
                part_names: numbers.parts.names(),
                has_parts_by_address: numbers.parts.flow_needs().origin().is_some(),
                flow: numbers.flow_needs(),
                ..facts
            },
        }
    }

    fn use_source(&mut self, source: &SourceOfFormat<'_>) -> Result<(), Problem> {
        match &mut self.numbers {
            Some(numbers) => numbers.use_origins(source.origins),
            None => Ok(()),
        }
    }

    fn detect(&self) -> Option<&dyn Detect> {
        self.given.map(|_| self as &dyn Detect)
    }

    fn explain(&self, finding: Finding, packet: &[u8]) -> Option<String> {
        match finding {
            Finding::NoTimestamp => Some(self.why_no_item(self.timestamp?, "timestamp", packet)),
            Finding::NoKeptField(i) => {
                Some(self.why_no_item(*self.keep.position(i)?, "keep", packet))
            }
            Finding::OtherUnit { bytes } => Some(self.other_unit_note(bytes)),
        }
    }

    fn start(&mut self, name: &str, _: &Counts) {
        let (wrap, scale) = (self.wrap.take(), self.scale);
        self.wrap = wrap.and_then(|wrap| wrap.restarted(&scale?));
        let item = self.numbers.as_ref().and_then(|numbers| numbers.frame);
        self.step_check = item.map(|item| {
            Box::new(StepCheck::of_item(
                name,
                item,
                self.step,
                self.address_bits,
                None,
            ))
        });
    }
}

#[cfg(test)]
mod tests;
