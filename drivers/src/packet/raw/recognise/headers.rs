//! The headers of packets: finds the numbers that count.
//!
//! Each byte that changes can be the lowest byte of a number, in both byte orders. The number extends over the bytes that
//! change with it, and over constant zero bytes to a natural size.

use super::behaviour::{Behaviour, behaviour, is_held_cycle};
use crate::packet::field::{Endian, FieldKeys};
use crate::packet::recognise::CapturedPacket;

/// Number of bytes at the start of a packet that can be its header.
pub(super) const MAX_HEADER: usize = 128;
/// Minimum number of packets of the examined sizes.
const MIN_PACKETS: usize = 8;
/// Maximum number of packets that are examined.
const MAX_EXAMINED: usize = 4096;
/// Number of packets in which bytes with digits only are text instead of a number.
const MIN_TEXT: usize = 20;

/// A number in the header and its behaviour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    pub(super) field: FieldKeys,
    pub(super) behaviour: Behaviour,
}

impl Counter {
    pub(super) const fn has_step_one(&self) -> bool {
        matches!(
            self.behaviour,
            Behaviour::Steps { step: 1, .. } | Behaviour::Holds { step: 1 }
        )
    }
}

/// The packets of some sizes.
pub(super) struct Headers<'a> {
    pub(super) packets: Vec<&'a CapturedPacket>,
    /// Whether the byte at each offset changes.
    pub(super) changes: Vec<bool>,
}

impl<'a> Headers<'a> {
    /// Returns the packets with one of the `sizes`; `None` if there are too few.
    pub(super) fn new(packets: &[&'a CapturedPacket], sizes: &[usize]) -> Option<Self> {
        let packets: Vec<&CapturedPacket> = packets
            .iter()
            .copied()
            .filter(|packet| sizes.contains(&packet.length))
            .take(MAX_EXAMINED)
            .collect();
        if packets.len() < MIN_PACKETS {
            return None;
        }
        let end = sizes.iter().copied().min()?.min(MAX_HEADER);
        let first = &packets[0].head;
        let changes = (0..end).map(|at| packets.iter().any(|packet| packet.head[at] != first[at]));
        let changes = changes.collect();
        Some(Self { packets, changes })
    }

    pub(super) fn end(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn byte(&self, at: usize) -> u8 {
        self.packets[0].head[at]
    }

    fn is_zero(&self, at: usize) -> bool {
        !self.changes[at] && self.byte(at) == 0
    }

    pub(super) fn values(&self, field: &FieldKeys) -> Vec<u64> {
        let values = self.packets.iter().map(|packet| field.read(&packet.head));
        values.flatten().collect()
    }

    fn behaviour(&self, field: &FieldKeys) -> Option<Behaviour> {
        behaviour(&self.values(field), field.field().bits())
    }

    /// Returns the field of `bytes` bytes whose lowest byte is at `at`, if it fits.
    fn field(&self, at: usize, bytes: usize, endian: Endian) -> Option<FieldKeys> {
        let offset = match endian {
            Endian::Big => (at + 1).checked_sub(bytes)?,
            Endian::Little => at,
        };
        (offset + bytes <= self.end()).then(|| FieldKeys::new(offset, bytes, endian))
    }

    /// Returns whether the byte at `at` is a digit in each of many packets.
    fn is_text(&self, at: usize) -> bool {
        self.packets.len() >= MIN_TEXT
            && self
                .packets
                .iter()
                .all(|packet| packet.head[at].is_ascii_digit())
    }

    /// Returns the number whose lowest changing byte is at `at`; `None` if the byte is a digit of a text.
    fn counter(&self, at: usize, endian: Endian) -> Option<Counter> {
        let fields: Vec<FieldKeys> = (1..=8)
            .map_while(|bytes| self.field(at, bytes, endian))
            .collect();
        if self.is_text(at) {
            return None;
        }
        let highest = |field: &FieldKeys| match endian {
            Endian::Big => field.offset,
            Endian::Little => field.end() - 1,
        };
        let changing = fields
            .iter()
            .take_while(|field| self.changes[highest(field)])
            .count();
        let found = fields[..changing]
            .iter()
            .rev()
            .find_map(|field| Some((*field, self.behaviour(field)?)))?;
        let (field, behaviour) = self.extend(found.0, found.1, highest, &fields);
        Some(Counter { field, behaviour })
    }

    /// Extends `field` over constant bytes to a natural size at a natural offset, if the value then still counts.
    fn extend(
        &self,
        field: FieldKeys,
        behaviour: Behaviour,
        highest: impl Fn(&FieldKeys) -> usize,
        fields: &[FieldKeys],
    ) -> (FieldKeys, Behaviour) {
        let minimal = field.bytes;
        let is_aligned = |field: &FieldKeys| {
            matches!(field.bytes, 2 | 4 | 8) && field.offset.is_multiple_of(field.bytes)
        };
        let zeros = fields[minimal..]
            .iter()
            .take_while(|field| self.is_zero(highest(field)))
            .count();
        let widest = minimal + zeros;
        let natural = minimal.next_power_of_two();
        // Constant bytes above the changing ones belong to the number if they fill its natural size, or if they are small.
        let is_quiet = |wide: &FieldKeys| {
            let added = &fields[minimal..wide.bytes];
            added.iter().all(|field| !self.changes[highest(field)])
                && (wide.bytes <= widest
                    || wide.bytes == natural
                    || (wide.bytes == 2 * natural && self.is_zero(highest(wide)))
                    || self.is_time(wide))
        };
        let mut wider = fields
            .iter()
            .rev()
            .filter(|wide| wide.bytes > minimal && is_aligned(wide) && is_quiet(wide));
        let wider = wider.find_map(|wide| Some((*wide, self.behaviour(wide)?)));
        let unaligned = || {
            let wide = *fields.get(widest.min(4).max(minimal) - 1)?;
            (wide.bytes > minimal).then(|| Some((wide, self.behaviour(&wide)?)))?
        };
        let found = wider.or_else(|| {
            if is_aligned(&field) {
                None
            } else {
                unaligned()
            }
        });
        found
            .filter(|(_, found)| is_same(found, &behaviour))
            .unwrap_or((field, behaviour))
    }

    /// Returns a note if the constant byte above a short number may belong to it.
    pub(super) fn above(&self, field: &FieldKeys) -> Option<String> {
        let at = match field.endian.unwrap_or_default() {
            Endian::Big => field.offset.checked_sub(1)?,
            Endian::Little => field.end(),
        };
        let is_constant = !*self.changes.get(at)?;
        (is_constant && field.bytes < 4).then(|| {
            format!(
                "byte {at} is always {:02x} and may be the upper part of {}: compare with the manual, because a short number \
                 wraps early",
                self.byte(at),
                field.words()
            )
        })
    }

    /// Returns whether the number is the time of capture since 1970, in seconds or a decimal fraction of them.
    fn is_time(&self, field: &FieldKeys) -> bool {
        let scales = [1.0, 1e3, 1e6, 1e9];
        scales
            .iter()
            .any(|scale| self.is_scaled_time(field, *scale))
    }

    /// Returns whether the number is the time of capture in whole seconds since 1970.
    pub(super) fn is_seconds(&self, field: &FieldKeys) -> bool {
        self.is_scaled_time(field, 1e9)
    }

    /// Returns whether the number times `scale` is the time of capture in nanoseconds since 1970.
    fn is_scaled_time(&self, field: &FieldKeys, scale: f64) -> bool {
        let packet = self.packets[0];
        let value = field.read(&packet.head).unwrap_or(0) as f64;
        packet.ns > 0 && (value * scale / packet.ns as f64 - 1.0).abs() < 0.05
    }

    /// Returns whether the number grows by about `rate` per second of the time of capture.
    pub(super) fn grows_with(&self, field: &FieldKeys, rate: f64) -> bool {
        let time = |packet: &&CapturedPacket| Some((packet.ns, field.read(&packet.head)?));
        let ends = (
            self.packets.first().and_then(time),
            self.packets.last().and_then(time),
        );
        let (Some((start, first)), Some((end, last))) = ends else {
            return false;
        };
        let seconds = end.saturating_sub(start) as f64 / 1e9;
        let grown = last.saturating_sub(first) as f64;
        start > 0 && seconds > 0.0 && (grown / seconds / rate - 1.0).abs() < 0.2
    }

    /// Returns all numbers, without those that share bytes with a better one.
    pub(super) fn counters(&self) -> Vec<Counter> {
        let all = (0..self.end())
            .filter(|at| self.changes[*at])
            .flat_map(|at| [Endian::Big, Endian::Little].map(|endian| self.counter(at, endian)));
        let mut all: Vec<Counter> = all.flatten().collect();
        // Wider numbers contain the parts of themselves; at equal size, natural offsets are more likely. In the wrong byte
        // order, a number seems to grow in larger steps.
        let rank = |counter: &Counter| {
            let FieldKeys { offset, bytes, .. } = counter.field;
            let (is_held, step) = match counter.behaviour {
                Behaviour::Steps { step, .. } => (false, step),
                Behaviour::Cycles { stride, .. } => (false, stride),
                Behaviour::Holds { step } => (true, step),
            };
            let is_natural = matches!(bytes, 2 | 4 | 8) && offset.is_multiple_of(bytes);
            (is_held, !is_natural, std::cmp::Reverse(bytes), step, offset)
        };
        all.sort_by_key(rank);
        let mut kept: Vec<Counter> = Vec::new();
        for counter in all {
            if kept
                .iter()
                .all(|other| !other.field.overlaps(&counter.field))
            {
                kept.push(counter);
            }
        }
        kept.sort_by_key(|counter| counter.field.offset);
        kept
    }

    /// Returns the indices of packets in which the number `moved`.
    fn moves(&self, field: &FieldKeys, moved: impl Fn(u64, u64) -> bool) -> Vec<usize> {
        let values = self.values(field);
        let pairs = values.windows(2).enumerate();
        pairs
            .filter(|(_, pair)| moved(pair[0], pair[1]))
            .map(|(i, _)| i)
            .collect()
    }

    /// Returns whether `frame` changes where `packet` starts again, and does not start again itself, as the number of a detector
    /// module does.
    pub(super) fn is_pair(&self, frame: &FieldKeys, packet: &FieldKeys) -> bool {
        if is_held_cycle(&self.values(frame), frame.field().bits()) {
            return false;
        }
        let starts = self.moves(packet, |before, after| after < before);
        let changes = self.moves(frame, |before, after| after != before);
        let both = starts
            .iter()
            .filter(|at| changes.binary_search(at).is_ok())
            .count();
        !starts.is_empty() && both * 10 >= starts.len().max(changes.len()) * 8
    }
}

/// Returns whether two behaviours have the same kind and step.
fn is_same(one: &Behaviour, other: &Behaviour) -> bool {
    match (one, other) {
        (Behaviour::Steps { step: a, .. }, Behaviour::Steps { step: b, .. })
        | (Behaviour::Holds { step: a }, Behaviour::Holds { step: b }) => a == b,
        (Behaviour::Cycles { .. }, _) => one == other,
        _ => false,
    }
}
