//! Learning how a sender cuts its heaps, from the first heaps that arrive.
//!
//! Each packet states its heap's counter and length and where its payload begins, and a heap's first packet points to the
//! heap's items. Learned from these and then pinned: the flavour, the bytes of a frame and where they begin in the heap,
//! the payload of a heap's first and of its other packets, and what the heap counter grows by.
//!
//! A frame is the whole payload of a heap, or its largest item where that item holds nearly all of the payload besides
//! descriptors. So heaps that also carry descriptors give the same frames as heaps without. Their packets are cut
//! elsewhere, and [`super::recut`] puts their bytes together.

use super::step::{Counters, StepCheck};
use super::{Fields, IMMEDIATE, Places, Reject, Spead, WORD, item};
use daq_core::units::{ByteSize, counted};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Heaps that are remembered while learning.
const MAX_HEAPS: usize = 64;
/// Heaps cut alike from which the cut is learned.
const MIN_ALIKE: usize = 3;
/// Different heap counters from which the counter's step is learned.
const MIN_COUNTERS: usize = 4;
/// Packets from which it is learned, and for each thread where there are several: threads receive parts of the stream in
/// bursts. More packets kept would be a longer burst into the ring.
const MIN_PACKETS: usize = 16;
const MIN_PACKETS_PER_THREAD: usize = 128;
/// Learning ends this long after the first packet, with whatever has arrived.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Frames, and bytes, of datagrams kept while learning; and the fewest bytes for each thread.
const HOLD_FRAMES: usize = 6;
const MAX_HOLD: usize = 256 << 20;
const MIN_HOLD: usize = 4 << 20;
/// Items of a packet that are looked at: more would take quadratic time.
const MAX_ITEMS: usize = 1024;
/// The largest item is the frame if it holds at least this many sixteenths of the payload.
const SIXTEENTHS: u64 = 15;

/// What the configuration fixes, so that it is not learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Bytes of a frame.
    pub heap: Option<usize>,
    /// Payload bytes of each packet but the first and the last.
    pub packet: Option<usize>,
    /// Payload bytes of the first packet.
    pub first: Option<usize>,
    /// What the heap counter grows by.
    pub step: Option<u64>,
    /// Bits of an address.
    pub address_bits: Option<u32>,
}

/// The part of a heap that is the frame, in bytes of the heap's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Bytes of the whole heap.
    pub(super) heap: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Extent {
    /// The whole payload of a heap.
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

/// What was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Learned {
    pub(super) address_bits: u32,
    /// The heaps whose packets are the places of frames.
    pub(super) regular: Extent,
    /// Heaps with descriptors, whose packets are cut elsewhere.
    pub(super) described: Option<Extent>,
    pub(super) places: Places,
    pub(super) step: u64,
    /// Heaps that it was learned from.
    heaps: usize,
}

impl fmt::Display for Learned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Places {
            unit_bytes,
            first,
            rest,
        } = self.places;
        let size = |bytes: usize| ByteSize(bytes as u64);
        write!(
            f,
            "learned heap = {}, packet = {}, first = {}, counter step = {}, SPEAD-64-{} from {}",
            size(unit_bytes),
            size(rest),
            size(first),
            self.step,
            self.address_bits,
            counted(self.heaps, "heap"),
        )?;
        if self.regular.len() < self.regular.heap {
            write!(
                f,
                " (bytes {} to {} of {}: the largest item)",
                self.regular.start, self.regular.end, self.regular.heap
            )?;
        }
        Ok(())
    }
}

/// One heap, as far as it was seen.
#[derive(Clone, Debug)]
struct Heap {
    unit: u64,
    length: u64,
    extent: Option<Extent>,
    has_descriptors: bool,
    is_control: bool,
    /// Payload of the first packet.
    first: Option<u64>,
    /// Payload of a packet that is neither the first nor the last.
    rest: Option<u64>,
    /// Payload of the last packet, if it is not also the first.
    last: Option<u64>,
}

/// What was seen so far.
#[derive(Debug, Default)]
struct State {
    address_bits: Option<u32>,
    heaps: Vec<Heap>,
    packets: usize,
    counters: Counters,
    since: Option<Instant>,
    is_ended: bool,
    /// Why nothing could be learned from the heaps so far.
    refusal: Option<String>,
}

/// How far learning is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More heaps are needed.
    Learning,
    /// Everything is known.
    Learned,
    /// These heaps cannot be received, see [`Learner::give_up`].
    Refused,
}

/// Bytes of datagrams that each of `threads` threads keeps while frames of at most `max_frame` bytes are learned.
pub(crate) fn hold_bytes(max_frame: usize, threads: usize) -> usize {
    let total = max_frame.saturating_mul(HOLD_FRAMES).min(MAX_HOLD);
    (total / threads.max(1)).max(MIN_HOLD)
}

/// What all threads of a source learn together.
#[derive(Debug)]
pub struct Learner {
    given: Given,
    /// Bytes of a frame, and places of a frame, at most.
    max_frame: usize,
    max_places: u32,
    threads: usize,
    state: Mutex<State>,
    learned: OnceLock<Learned>,
    is_logged: AtomicBool,
}

impl Learner {
    pub(super) fn new(given: Given, max_frame: usize, max_places: u32, threads: usize) -> Self {
        let state = State {
            heaps: Vec::with_capacity(MAX_HEAPS),
            ..State::default()
        };
        Self {
            given,
            max_frame,
            max_places,
            threads,
            state: Mutex::new(state),
            learned: OnceLock::new(),
            is_logged: AtomicBool::new(false),
        }
    }

    pub(super) fn learned(&self) -> Option<&Learned> {
        self.learned.get()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of datagrams that each thread keeps while learning.
    pub fn hold_bytes(&self) -> usize {
        hold_bytes(self.max_frame, self.threads)
    }

    /// What compares later heaps of the source `name` with the step that was learned; `None` where it is given.
    pub(super) fn step_check(&self, name: &str) -> Option<StepCheck> {
        let learned = self.learned.get().filter(|_| self.given.step.is_none())?;
        let Learned {
            step, address_bits, ..
        } = *learned;
        Some(StepCheck::new(name, step, address_bits, self.threads))
    }

    /// Whether this is the first call: what was learned is logged once.
    pub fn is_first_to_log(&self) -> bool {
        !self.is_logged.swap(true, Ordering::Relaxed)
    }

    /// What was learned, for the log.
    pub fn summary(&self) -> Option<String> {
        self.learned.get().map(Learned::to_string)
    }

    /// Looks at one datagram, which is then to be kept and placed later. Fails for what is no packet of SPEAD.
    pub fn observe(&self, datagram: &[u8]) -> Result<Progress, Reject> {
        let bits = Spead::flavour(datagram).ok_or_else(|| Spead::refuse(datagram))?;
        let items = Spead::item_words(datagram).ok_or(Reject::Short {
            need: WORD + 1,
            got: datagram.len(),
        })?;
        if self.learned.get().is_some() {
            return Ok(Progress::Learned);
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
        state.observe(items, bits, self.given);
        Ok(self.conclude(&mut state, false))
    }

    /// Learns from what has arrived: now if `force`, else if that has already taken too long.
    pub fn settle(&self, now: Instant, force: bool) -> Progress {
        if self.learned.get().is_some() {
            return Progress::Learned;
        }
        let mut state = self.state();
        let is_late = state
            .since
            .is_some_and(|since| now.saturating_duration_since(since) >= MAX_WAIT);
        if force || is_late {
            self.conclude(&mut state, true)
        } else {
            Progress::Learning
        }
    }

    /// Why nothing was learned; starts again, because the packets kept so far cannot be used.
    pub fn give_up(&self) -> String {
        let mut state = self.state();
        let why = state
            .refusal
            .take()
            .unwrap_or_else(|| "no packet of a heap with samples was among them".to_owned());
        state.heaps.clear();
        state.counters.clear();
        (state.packets, state.since) = (0, None);
        (state.is_ended, state.address_bits) = (false, None);
        why
    }

    fn conclude(&self, state: &mut State, force: bool) -> Progress {
        let force = force || state.is_ended;
        let min_packets = match self.threads {
            0 | 1 => MIN_PACKETS,
            threads => MIN_PACKETS_PER_THREAD * threads,
        };
        let is_enough =
            |state: &State| state.packets >= min_packets && state.heaps.len() >= MIN_COUNTERS;
        if !force && !is_enough(state) {
            return Progress::Learning;
        }
        match state.learn(self, force) {
            Ok(Some(learned)) => {
                let _ = self.learned.set(learned);
                Progress::Learned
            }
            Ok(None) => Progress::Learning,
            Err(why) => {
                state.refusal = Some(why);
                Progress::Refused
            }
        }
    }
}

impl State {
    fn observe(&mut self, items: &[u8], address_bits: u32, given: Given) {
        let fields = Fields::read(items, address_bits, None);
        let Some(unit) = fields.counter else {
            return;
        };
        self.address_bits = Some(address_bits);
        self.since.get_or_insert_with(Instant::now);
        self.packets += 1;
        self.counters.add(unit);
        self.is_ended |= fields.control == Some(super::STREAM_STOP);
        let (Some(length), Some(offset), Some(payload)) = (
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
        if index == MAX_HEAPS {
            return;
        }
        if index == self.heaps.len() {
            self.heaps.push(Heap::new(unit, length));
        }
        let heap = &mut self.heaps[index];
        heap.is_control |= fields.control.is_some();
        if offset == 0 {
            heap.first = Some(payload);
            heap.look_at_items(items, address_bits, given.heap);
        } else if offset + payload < length {
            heap.rest = Some(payload);
        } else {
            heap.last = Some(payload);
        }
    }

    /// What the heaps so far show; `None` = not enough yet.
    fn learn(&self, learner: &Learner, force: bool) -> Result<Option<Learned>, String> {
        let given = learner.given;
        let data = || {
            self.heaps.iter().filter_map(|heap| {
                let extent = heap.extent.filter(|_| !heap.is_control)?;
                Some((heap, extent))
            })
        };
        // Frames of the length that most of the payload is of.
        let bytes_of = |length: u64| {
            data()
                .filter(|(_, extent)| extent.len() == length)
                .map(|(_, extent)| extent.len())
                .sum::<u64>()
        };
        let Some(frame) = data()
            .map(|(_, extent)| extent.len())
            .filter(|length| given.heap.is_none_or(|heap| heap as u64 == *length))
            .max_by_key(|length| bytes_of(*length))
        else {
            return Ok(None);
        };
        let frame_bytes = usize::try_from(frame).unwrap_or(usize::MAX);
        if frame_bytes > learner.max_frame {
            let (heap, slot) = (ByteSize(frame), ByteSize(learner.max_frame as u64));
            return Err(format!(
                "a heap of {heap} does not fit into slots of {slot}: set `slot = \"{heap}\"` in the ring's section"
            ));
        }
        // Most heaps are cut alike; of two equally frequent cuts the one with fewer bytes around the frame.
        let of_frame = || data().filter(|(_, extent)| extent.len() == frame);
        let alike = |one: Extent| of_frame().filter(|(_, other)| *other == one).count();
        let Some(regular) = of_frame()
            .map(|(_, extent)| extent)
            .max_by_key(|extent| (alike(*extent), u64::MAX - extent.heap))
        else {
            return Ok(None);
        };
        if !force && alike(regular) < MIN_ALIKE {
            return Ok(None);
        }
        let described = of_frame()
            .map(|(_, extent)| extent)
            .find(|extent| *extent != regular);
        let Some(places) = self.places(regular, given) else {
            return Ok(None);
        };
        if places.count() > learner.max_places {
            let packet = ByteSize(places.rest as u64);
            return Err(format!(
                "packets of {packet} are too small to be learned: set `heap = {frame}`, `packet = {}` and `first = {}`",
                places.rest, places.first
            ));
        }
        let address_bits = self.address_bits.unwrap_or(40);
        let vote = self.counters.vote(address_bits);
        if !force && given.step.is_none() && !vote.is_certain {
            return Ok(None);
        }
        Ok(Some(Learned {
            address_bits,
            regular,
            described,
            places,
            step: given.step.unwrap_or(vote.step).max(1),
            heaps: alike(regular),
        }))
    }

    /// How the packets of heaps of `extent` cut the frame.
    fn places(&self, extent: Extent, given: Given) -> Option<Places> {
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
            // A second packet that is the last may be as long as it likes.
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
        // The first boundary between packets behind the frame's start.
        let boundary = if extent.start < first {
            first
        } else {
            first + ((extent.start - first) / rest + 1) * rest
        };
        let narrow = |bytes: u64| usize::try_from(bytes).ok();
        Some(Places {
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
            extent: None,
            has_descriptors: false,
            is_control: false,
            first: None,
            rest: None,
            last: None,
        }
    }

    /// Finds the frame among the items that the heap's first packet points to.
    fn look_at_items(&mut self, items: &[u8], address_bits: u32, wanted: Option<usize>) {
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
    }
}

fn most_frequent(values: &(impl Iterator<Item = u64> + Clone)) -> Option<u64> {
    values
        .clone()
        .max_by_key(|value| values.clone().filter(|other| other == value).count())
}

#[cfg(test)]
mod tests;
