//! Detects frame and packet sizes of a SPEAD sender from the first heaps that arrive.
//!
//! Each packet states the counter and the length of its heap and the offset of its payload. A heap's first packet has
//! pointers to the items of the heap. These values are detected and then fixed: the flavour, the size of a frame and
//! its offset in the heap, the payload size of the first and of the other packets, and the step of the heap counter.
//!
//! A frame, or each part of a frame, is the item `samples`, if it is configured; otherwise the whole payload of a heap. If one
//! item contains nearly all of the payload except descriptors, that item is the frame. So heaps that also contain descriptors yield
//! the same frames as heaps without descriptors. Their packet boundaries differ, so their packets are
//! [fragments](super::Fragment).

use super::descriptors::read_name;
use super::items::{Fields, IMMEDIATE, WORD, item};
use super::step::{Counters, StepCheck};
use super::{Format, PacketLayout, Reject, SizeDetector, Spead};
use crate::packet::{Progress, TimeWrap, hold_bytes};
use daq_core::reorder::Geometry;
use daq_core::units::{ByteSize, counted};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of heaps that are stored during detection, and how many more for each heap counter of a frame.
const MAX_HEAPS: usize = 64;
const MORE_HEAPS: usize = 2 * MIN_COUNTERS;
/// Minimum number of heaps with the same packet boundaries, for each heap counter of a frame.
const MIN_ALIKE: usize = 3;
/// Minimum number of different heap counters, for each heap counter of a frame.
const MIN_COUNTERS: usize = 4;
/// Minimum number of packets: in total for one thread, per thread for several threads, because threads receive parts of
/// the stream in bursts. A larger number would cause a larger burst into the ring after detection.
const MIN_PACKETS: usize = 16;
const MIN_PACKETS_PER_THREAD: usize = 128;
/// Maximum duration of detection, from the first packet on. Detection then ends with the packets received so far.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of items that are examined per packet, because the examination time grows with the square of the number of
/// items.
const MAX_ITEMS: usize = 1024;
/// Maximum number of names of items that are stored, and maximum length of a name in bytes.
const MAX_NAMES: usize = 64;
const MAX_NAME: usize = 64;
/// Minimum size of the largest item, in sixteenths of the payload, for which that item is the frame.
const SIXTEENTHS: u64 = 15;

/// Minimum number of different sizes of heaps, none of which has half of the bytes, for which the heaps have no common size.
const MIN_SIZES: usize = 4;

/// Configured values, which are not detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Size of a frame in bytes.
    pub heap: Option<usize>,
    /// Number of payload bytes in each packet except the first and the last.
    pub packet: Option<usize>,
    /// Number of payload bytes in the first packet.
    pub first: Option<usize>,
    /// Increment of the heap counter.
    pub step: Option<u64>,
    /// Number of address bits.
    pub address_bits: Option<u32>,
}

/// The item of a heap that contains the samples: its identifier, or its name in the sender's descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SampleItem {
    /// The identifier.
    Id(u64),
    /// The name.
    Name(String),
}

impl fmt::Display for SampleItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id:#x}"),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// The part of a heap that is the frame, as byte offsets in the heap's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Size of the heap's payload in bytes.
    pub(super) heap: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Extent {
    /// Returns the extent of the whole payload of a heap of `heap` bytes.
    pub(super) const fn whole(heap: u64) -> Self {
        Self {
            heap,
            start: 0,
            end: heap,
        }
    }

    pub(super) const fn len(&self) -> u64 {
        self.end - self.start
    }
}

/// The detected values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Detected {
    pub(super) address_bits: u32,
    /// Extent of the frame in heaps with the regular packet boundaries.
    pub(super) regular: Extent,
    /// Extent of the frame in heaps with descriptors, whose packet boundaries differ.
    pub(super) described: Option<Extent>,
    pub(super) layout: PacketLayout,
    pub(super) step: u64,
    /// Whether heaps differ in size.
    is_sized: bool,
    /// Whether the step is that of the heap counter.
    is_counted: bool,
    /// Number of heaps used for detection.
    heaps: usize,
}

impl fmt::Display for Detected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PacketLayout {
            unit_bytes,
            first,
            rest,
        } = self.layout;
        let size = |bytes: usize| ByteSize(bytes as u64);
        f.write_str("detected ")?;
        if !self.is_sized {
            write!(f, "heap = {}, ", size(unit_bytes))?;
        }
        write!(f, "packet = {}, first = {}, ", size(rest), size(first))?;
        if self.is_counted {
            write!(f, "counter step = {}, ", self.step)?;
        }
        write!(
            f,
            "SPEAD-64-{} from {}",
            self.address_bits,
            counted(self.heaps, "heap"),
        )?;
        if self.regular.len() < self.regular.heap {
            write!(
                f,
                " (each frame is the largest item of a heap: {} bytes at offset {} of the {}-byte heap payload)",
                self.regular.len(),
                self.regular.start,
                self.regular.heap
            )?;
        }
        Ok(())
    }
}

/// Which item of a heap is the frame.
#[derive(Clone, Copy, Debug)]
enum Samples {
    /// The item that contains nearly all of the payload.
    Largest,
    /// The item with this identifier, if the identifier is known yet.
    Item(Option<u64>),
    /// The whole payload of heaps that differ in size. The first packet has this number of payload bytes.
    Whole(u64),
}

/// The observed properties of one heap.
#[derive(Clone, Debug)]
struct Heap {
    unit: u64,
    length: u64,
    /// Number of payload bytes that have arrived.
    received: u64,
    extent: Option<Extent>,
    /// Size in bytes of the samples, if it is not the configured one.
    other_size: Option<u64>,
    has_descriptors: bool,
    is_control: bool,
    /// Number of payload bytes in the first packet.
    first: Option<u64>,
    /// Number of payload bytes in a packet that is neither the first nor the last.
    rest: Option<u64>,
    /// Number of payload bytes in the last packet, if this packet is not also the first.
    last: Option<u64>,
}

/// The packets and heaps observed so far.
#[derive(Debug, Default)]
struct State {
    address_bits: Option<u32>,
    heaps: Vec<Heap>,
    packets: usize,
    counters: Counters,
    since: Option<Instant>,
    is_ended: bool,
    /// Names and identifiers of items, if the item with the samples is configured by name.
    names: Vec<(String, u64)>,
    /// Reason why detection failed with the heaps so far.
    refusal: Option<String>,
}

/// Detection state shared by all threads of a source.
#[derive(Debug)]
pub(super) struct Detector {
    /// The format, of which only the values `given` are known.
    spead: Spead,
    given: Given,
    /// Number of heaps of a frame, and of their different counters.
    parts: usize,
    counters: usize,
    /// Maximum size in bytes and maximum number of packets of a heap.
    max_heap: usize,
    max_packets: u32,
    threads: usize,
    state: Mutex<State>,
    detected: OnceLock<Detected>,
    /// The times of previous packets, for the formats of all threads.
    time_wrap: OnceLock<Option<TimeWrap>>,
    is_logged: AtomicBool,
}

impl Detector {
    pub(super) fn new(spead: &Spead, geometry: &Geometry, threads: usize) -> Self {
        Self {
            spead: spead.clone(),
            given: spead.given.unwrap_or_default(),
            parts: geometry.parts as usize,
            counters: if spead.is_counted() {
                1
            } else {
                geometry.parts as usize
            },
            max_heap: geometry.frame_bytes / geometry.parts as usize,
            max_packets: geometry.packets_per_part(),
            threads,
            state: Mutex::default(),
            detected: OnceLock::new(),
            time_wrap: OnceLock::new(),
            is_logged: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the format with the detected values, for one thread of the source `name`. Later heaps are compared with
    /// the detected step, unless the step is configured.
    fn detected_spead(&self, name: &str) -> Option<Spead> {
        let Detected {
            address_bits,
            regular,
            described,
            layout,
            step,
            ..
        } = *self.detected.get()?;
        let frame = self
            .spead
            .numbers
            .as_ref()
            .and_then(|numbers| numbers.frame);
        let step_check = match frame {
            Some(item) => Some(StepCheck::of_item(
                name,
                item,
                step,
                address_bits,
                Some(self.threads),
            )),
            None if self.given.step.is_none() => {
                Some(StepCheck::new(name, step, address_bits, self.threads))
            }
            None => None,
        };
        let wrap = self.time_wrap.get_or_init(|| {
            let known = self.spead.clone();
            Spead {
                address_bits,
                ..known
            }
            .with_wrap()
            .wrap
        });
        Some(Spead {
            timestamp: self.spead.timestamp,
            scale: self.spead.scale,
            time_bits: self.spead.time_bits,
            wrap: wrap.clone(),
            keep: self.spead.keep.clone(),
            is_sized: self.spead.is_sized,
            numbers: self.spead.numbers.clone(),
            regular,
            described,
            step_check: step_check.map(Box::new),
            ..Spead::new(address_bits, layout, step)
        })
    }

    fn conclude(&self, state: &mut State, force: bool) -> Progress {
        let force = force || state.is_ended;
        let min_packets = match self.threads {
            0 | 1 => MIN_PACKETS,
            threads => MIN_PACKETS_PER_THREAD * threads,
        };
        let is_enough = |state: &State| {
            state.packets >= min_packets && state.heaps.len() >= MIN_COUNTERS * self.counters
        };
        if !force && !is_enough(state) {
            return Progress::Detecting;
        }
        match state.detect(self, force) {
            Ok(Some(detected)) => {
                let _ = self.detected.set(detected);
                Progress::Detected
            }
            Ok(None) if force && state.lacks_frames() => {
                let why = state.why_other_size(self);
                state.refusal = why.or_else(|| state.why_no_samples(&self.spead));
                if state.refusal.is_some() {
                    Progress::Refused
                } else {
                    Progress::Detecting
                }
            }
            Ok(None) => Progress::Detecting,
            Err(why) => {
                state.refusal = Some(why);
                Progress::Refused
            }
        }
    }
}

impl SizeDetector for Detector {
    fn hold_bytes(&self) -> usize {
        hold_bytes(self.max_heap * self.parts, self.threads)
    }

    fn observe(&self, datagram: &[u8]) -> Result<Progress, Reject> {
        let bits = Spead::flavour(datagram).ok_or_else(|| Spead::refuse(datagram))?;
        let items = Spead::item_words(datagram).ok_or(Reject::Short {
            need: WORD + 1,
            got: datagram.len(),
        })?;
        if self.detected.get().is_some() {
            return Ok(Progress::Detected);
        }
        let mut state = self.state();
        let wanted = self.given.address_bits.or(state.address_bits);
        if let Some(expected) = wanted.filter(|expected| *expected != bits) {
            return Err(Reject::Flavour {
                pointer: u16::from(datagram[2]) * 8,
                found: u16::from(datagram[3]) * 8,
                expected,
            });
        }
        let payload = &datagram[WORD + items.len()..];
        state.observe(items, payload, bits, self);
        Ok(self.conclude(&mut state, false))
    }

    fn settle(&self, now: Instant, force: bool) -> Progress {
        if self.detected.get().is_some() {
            return Progress::Detected;
        }
        let mut state = self.state();
        let is_late = state
            .since
            .is_some_and(|since| now.saturating_duration_since(since) >= MAX_WAIT);
        if force || is_late {
            self.conclude(&mut state, true)
        } else {
            Progress::Detecting
        }
    }

    fn detected(&self, name: &str) -> Option<Format> {
        self.detected_spead(name).map(Format::Spead)
    }

    fn summary(&self) -> Option<String> {
        let is_first = !self.is_logged.swap(true, Ordering::Relaxed);
        let detected = self.detected.get().filter(|_| is_first)?;
        Some(detected.to_string())
    }

    fn restart(&self) -> String {
        std::mem::take(&mut *self.state())
            .refusal
            .unwrap_or_else(|| "no packet of a heap with samples arrived".to_owned())
    }

    fn is_message(&self, datagram: &[u8]) -> bool {
        Spead::is_message(datagram)
    }
}

impl State {
    fn observe(&mut self, items: &[u8], payload: &[u8], address_bits: u32, detector: &Detector) {
        let fields = Fields::read(items, address_bits, None);
        let Some(unit) = fields.counter else {
            return;
        };
        self.address_bits = Some(address_bits);
        self.since.get_or_insert_with(Instant::now);
        self.packets += 1;
        self.counters.add(unit);
        self.is_ended |= fields.control == Some(super::STREAM_STOP);
        let (Some(length), Some(offset), Some(bytes)) = (
            fields.heap.filter(|heap| *heap > 0),
            fields.offset,
            fields.payload,
        ) else {
            return;
        };
        let known = self
            .heaps
            .iter()
            .rposition(|heap| (heap.unit, heap.length) == (unit, length));
        let index = known.unwrap_or(self.heaps.len());
        if index == MAX_HEAPS + MORE_HEAPS * (detector.counters - 1) {
            return;
        }
        if index == self.heaps.len() {
            self.heaps.push(Heap::new(unit, length));
        }
        let heap = &mut self.heaps[index];
        heap.received = heap.received.saturating_add(payload.len() as u64);
        heap.is_control |= fields.control.is_some();
        if offset == 0 {
            heap.first = Some(bytes);
            let samples = match &detector.spead.samples {
                _ if detector.spead.is_sized => Samples::Whole(bytes),
                None => Samples::Largest,
                Some(SampleItem::Id(id)) => Samples::Item(Some(*id)),
                Some(SampleItem::Name(name)) => {
                    learn_names(&mut self.names, items, payload, address_bits);
                    let known = self.names.iter().find(|(other, _)| other == name);
                    Samples::Item(known.map(|(_, id)| *id))
                }
            };
            heap.look_at_items(items, address_bits, detector.given.heap, samples);
        } else if offset.saturating_add(bytes) < length {
            heap.rest = Some(bytes);
        } else {
            heap.last = Some(bytes);
        }
    }

    /// Returns whether heaps arrived, but none that shows where the samples are, or none with samples of the configured size.
    fn lacks_frames(&self) -> bool {
        !self.heaps.is_empty() && self.heaps.iter().all(|heap| heap.extent.is_none())
    }

    /// Returns why `heap` is not the size of the samples; `None` if no samples of another size arrived.
    fn why_other_size(&self, detector: &Detector) -> Option<String> {
        let heap = detector.given.heap?;
        let data = self.heaps.iter().filter(|heap| !heap.is_control);
        let got = most_frequent(&data.filter_map(|heap| heap.other_size))?;
        let what = match &detector.spead.samples {
            Some(item) => format!("the item {item} of a heap has"),
            None => "a heap has".to_owned(),
        };
        Some(format!(
            "{what} {got} bytes, but `heap` is {heap}: set `heap = {got}`, or correct `samples`"
        ))
    }

    /// Returns why no heap shows where the samples are; `None` if no item and no variable size is configured.
    fn why_no_samples(&self, spead: &Spead) -> Option<String> {
        if spead.is_sized {
            return Some(
                "no heap of several packets arrived, so the size of packets is unknown: set `packet`, and `first` if the first \
                 packet of a heap has less payload".to_owned()
            );
        }
        let samples = spead.samples.as_ref()?;
        let wanted = samples.to_string();
        let names: Vec<_> = self
            .names
            .iter()
            .map(|(name, id)| format!("{name:?} ({id:#x})"))
            .collect();
        Some(match samples {
            SampleItem::Name(_) if names.is_empty() => format!(
                "no descriptor of the item {wanted} arrived: configure the sender to repeat descriptors, or set `samples` to the \
                 identifier of the item"
            ),
            SampleItem::Name(_) => format!(
                "no heap has the item {wanted}: the descriptors name {}. Correct `samples`",
                names.join(", ")
            ),
            SampleItem::Id(_) => {
                format!("no heap has the item {wanted} in its payload: correct `samples`")
            }
        })
    }

    /// Returns the values that the heaps so far show, or `None` if there are not enough heaps.
    fn detect(&self, detector: &Detector, force: bool) -> Result<Option<Detected>, String> {
        let given = detector.given;
        let data = || {
            self.heaps.iter().filter_map(|heap| {
                let extent = heap.extent.filter(|_| !heap.is_control)?;
                Some((heap, extent))
            })
        };
        // The frame size is the one that most of the received bytes belong to. A heap that does not fit into a slot must not hide
        // the others.
        let mut bytes_of = BTreeMap::new();
        for (heap, extent) in data() {
            *bytes_of.entry(extent.len()).or_insert(0_u64) += heap.received;
        }
        let fits = |length: u64| length <= detector.max_heap as u64;
        let Some(frame) = data()
            .map(|(_, extent)| extent.len())
            .filter(|length| given.heap.is_none_or(|heap| heap as u64 == *length))
            .max_by_key(|length| (fits(*length), bytes_of.get(length)))
        else {
            return Ok(None);
        };
        let all: u64 = bytes_of.values().sum();
        if given.heap.is_none() && bytes_of.len() >= MIN_SIZES && 2 * bytes_of[&frame] < all {
            let largest = bytes_of.keys().next_back().copied().unwrap_or(frame);
            return Err(format!(
                "{} have {} different sizes of up to {largest} bytes: set `max_heap` to the size of the largest heap that the \
                 sender can send, or set `heap` if only heaps of one size contain samples",
                counted(data().count(), "heap"),
                bytes_of.len(),
            ));
        }
        let frame_bytes = usize::try_from(frame).unwrap_or(usize::MAX);
        if frame_bytes > detector.max_heap {
            let heaps = match detector.parts {
                1 => format!("a heap of {}", ByteSize(frame)),
                parts => format!("{} of {}", counted(parts, "heap"), ByteSize(frame)),
            };
            let verb = if detector.parts == 1 { "does" } else { "do" };
            let size = |heap: usize| ByteSize(heap.saturating_mul(detector.parts) as u64);
            return Err(format!(
                "{heaps} {verb} not fit into slots of {}: set `slot = \"{}\"` in the ring's section",
                size(detector.max_heap),
                size(frame_bytes)
            ));
        }
        // Select the most frequent heap layout; among equally frequent ones, that with the fewest bytes around the
        // frame.
        let of_frame = || data().filter(|(_, extent)| extent.len() == frame);
        let mut counts = BTreeMap::new();
        for (_, extent) in of_frame() {
            *counts.entry((extent.heap, extent.start)).or_insert(0) += 1;
        }
        let alike = |one: Extent| -> usize {
            counts
                .get(&(one.heap, one.start))
                .copied()
                .unwrap_or_default()
        };
        let Some(regular) = of_frame()
            .map(|(_, extent)| extent)
            .max_by_key(|extent| (alike(*extent), u64::MAX - extent.heap))
        else {
            return Ok(None);
        };
        if !force && alike(regular) < MIN_ALIKE * detector.counters {
            return Ok(None);
        }
        let described = of_frame()
            .map(|(_, extent)| extent)
            .find(|extent| *extent != regular);
        let Some(layout) = self.packet_layout(regular, given) else {
            return Ok(None);
        };
        if layout.count() > detector.max_packets {
            let packet = ByteSize(layout.rest as u64);
            return Err(format!(
                "packets of {packet} are too small for automatic detection: set `heap = {frame}`, `packet = {}` and \
                 `first = {}`",
                layout.rest, layout.first
            ));
        }
        let address_bits = self.address_bits.unwrap_or(40);
        let vote = self.counters.vote(address_bits);
        if !force && given.step.is_none() && !vote.is_certain {
            return Ok(None);
        }
        Ok(Some(Detected {
            address_bits,
            regular,
            described,
            layout,
            step: given.step.unwrap_or(vote.step).max(1),
            is_sized: detector.spead.is_sized,
            is_counted: detector.spead.is_counted(),
            heaps: alike(regular),
        }))
    }

    /// Returns the packet layout of the frame in heaps of `extent`.
    fn packet_layout(&self, extent: Extent, given: Given) -> Option<PacketLayout> {
        let heaps = || {
            self.heaps
                .iter()
                .filter(|heap| heap.extent == Some(extent) && !heap.is_control)
        };
        let first = given
            .first
            .map(|first| first as u64)
            .or_else(|| most_frequent(&heaps().filter_map(|heap| heap.first)))?;
        let rest = given
            .packet
            .map(|packet| packet as u64)
            .or_else(|| most_frequent(&heaps().filter_map(|heap| heap.rest)))
            // If the second packet is also the last, its size is not restricted.
            .or_else(|| {
                heaps()
                    .filter_map(|heap| heap.last)
                    .max()
                    .map(|last| last.max(first))
            })
            .or((first >= extent.heap).then_some(first))?;
        if first == 0 || rest == 0 {
            return None;
        }
        // Offset of the first packet boundary after the start of the frame.
        let boundary = if extent.start < first {
            first
        } else {
            first + ((extent.start - first) / rest + 1) * rest
        };
        let narrow = |bytes: u64| usize::try_from(bytes).ok();
        Some(PacketLayout {
            unit_bytes: narrow(extent.len())?,
            first: narrow(boundary.min(extent.end) - extent.start)?,
            rest: narrow(rest)?,
        })
    }
}

impl Heap {
    const fn new(unit: u64, length: u64) -> Self {
        Self {
            unit,
            length,
            received: 0,
            extent: None,
            other_size: None,
            has_descriptors: false,
            is_control: false,
            first: None,
            rest: None,
            last: None,
        }
    }

    /// Finds the frame among the items that the heap's first packet points to.
    fn look_at_items(
        &mut self,
        items: &[u8],
        address_bits: u32,
        wanted: Option<usize>,
        samples: Samples,
    ) {
        let mask = (1u64 << address_bits) - 1;
        let length = self.length;
        let addressed = || {
            items
                .as_chunks::<WORD>()
                .0
                .iter()
                .take(MAX_ITEMS)
                .map(|word| u64::from_be_bytes(*word))
                .filter(|word| word & IMMEDIATE == 0)
                .map(|word| (word >> address_bits, word & mask))
                .filter(|(id, at)| *id != 0 && *at < length)
        };
        // An item ends where the next one begins.
        let end = |at: u64| {
            addressed()
                .map(|(_, other)| other)
                .filter(|other| *other > at)
                .min()
                .unwrap_or(length)
        };
        let is_sample = |id: u64| id != item::DESCRIPTOR;
        self.has_descriptors = addressed().any(|(id, _)| !is_sample(id));
        if let Samples::Whole(first) = samples {
            // Only heaps of several packets show the size of a packet. They represent the largest heap.
            let max = wanted.map_or(u64::MAX, |wanted| wanted as u64);
            let is_cut = first < length && length <= max;
            self.extent = (is_cut && !self.has_descriptors).then(|| Extent::whole(max));
            return;
        }
        if let Samples::Item(wanted_id) = samples {
            let found = addressed().find(|(id, _)| Some(*id) == wanted_id);
            let extent = found.map(|(_, start)| Extent {
                heap: length,
                start,
                end: end(start),
            });
            let is_wanted =
                |extent: &Extent| wanted.is_none_or(|wanted| extent.len() == wanted as u64);
            self.extent = extent.filter(is_wanted);
            self.other_size = extent
                .filter(|extent| !is_wanted(extent))
                .map(|extent| extent.len());
            return;
        }
        let samples = || addressed().filter(|(id, _)| is_sample(*id));
        let payload: u64 = samples().map(|(_, at)| end(at) - at).sum();
        let largest = samples()
            .map(|(_, at)| (at, end(at)))
            .max_by_key(|(at, end)| end - at);
        let whole = (!self.has_descriptors).then_some(Extent::whole(length));
        let of_largest = largest
            .filter(|(at, end)| (end - at) * 16 >= payload * SIXTEENTHS)
            .map(|(start, end)| Extent {
                heap: length,
                start,
                end,
            });
        self.extent = match wanted {
            Some(wanted) => [whole, of_largest]
                .into_iter()
                .flatten()
                .find(|extent| extent.len() == wanted as u64),
            None => of_largest.or(whole),
        };
        self.other_size = match self.extent {
            None => of_largest.or(whole).map(|extent| extent.len()),
            Some(_) => None,
        };
    }
}

/// Adds the names of items to `names` that the descriptors in `payload`, the start of a heap, state.
fn learn_names(names: &mut Vec<(String, u64)>, items: &[u8], payload: &[u8], address_bits: u32) {
    let mask = (1u64 << address_bits) - 1;
    for word in items.as_chunks::<WORD>().0.iter().take(MAX_ITEMS) {
        let word = u64::from_be_bytes(*word);
        if word >> address_bits != item::DESCRIPTOR || names.len() >= MAX_NAMES {
            continue;
        }
        let start = usize::try_from(word & mask).ok();
        let descriptor = start.and_then(|start| payload.get(start..));
        if let Some((name, id)) = descriptor.and_then(read_name)
            && name.len() <= MAX_NAME
            && !names.iter().any(|(other, _)| other == name)
        {
            names.push((name.to_owned(), id));
        }
    }
}

fn most_frequent(values: &(impl Iterator<Item = u64> + Clone)) -> Option<u64> {
    values
        .clone()
        .max_by_key(|value| values.clone().filter(|other| other == value).count())
}

#[cfg(test)]
mod tests;
