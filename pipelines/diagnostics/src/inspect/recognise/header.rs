//! Any fixed header with counters: finds the numbers that step from packet to packet.
//!
//! Each byte that changes can be the lowest byte of a number, in both byte orders. The number extends over the bytes that
//! change with it, and over constant zero bytes to a natural size.

use super::field::{Behaviour, FieldAt, behaviour};
use super::fixed::{Fixed, Numbers};
use super::{Key, Packet, Recognised, mode, percent};
use crate::inspect::account::account;
use crate::inspect::number;
use daq_drivers::packet::Endian;

/// Number of bytes at the start of a packet that can be its header.
const MAX_HEADER: usize = 128;
/// Minimum number of packets of one size.
const MIN_PACKETS: usize = 8;
/// Maximum number of packets that are examined.
const MAX_EXAMINED: usize = 4096;
/// Upper limit of the confidence, because the meaning of the numbers is not known.
const MAX_CONFIDENCE: f64 = 85.0;
/// Minimum confidence in percent.
const MIN_CONFIDENCE: u8 = 40;
/// Maximum share in percent of lost packets: a number with more holes does not count packets.
const MAX_LOST: u8 = 90;
/// Number of packets in which bytes with digits only are text instead of a number.
const MIN_TEXT: usize = 20;

/// A number in the header and its behaviour.
#[derive(Clone, Copy, Debug)]
struct Counter {
    field: FieldAt,
    behaviour: Behaviour,
}

impl Counter {
    const fn has_step_one(&self) -> bool {
        matches!(
            self.behaviour,
            Behaviour::Steps { step: 1, .. } | Behaviour::Holds { step: 1 }
        )
    }
}

/// The packets of the most frequent size.
struct Headers<'a> {
    packets: Vec<&'a Packet>,
    /// Whether the byte at each offset changes.
    changes: Vec<bool>,
}

impl<'a> Headers<'a> {
    fn new(packets: &[&'a Packet], length: usize) -> Self {
        let packets: Vec<&Packet> = packets
            .iter()
            .copied()
            .filter(|packet| packet.length == length)
            .take(MAX_EXAMINED)
            .collect();
        let end = length.min(MAX_HEADER);
        let first = &packets[0].head;
        let changes = (0..end).map(|at| packets.iter().any(|packet| packet.head[at] != first[at]));
        let changes = changes.collect();
        Self { packets, changes }
    }

    fn end(&self) -> usize {
        self.changes.len()
    }

    fn byte(&self, at: usize) -> u8 {
        self.packets[0].head[at]
    }

    fn is_zero(&self, at: usize) -> bool {
        !self.changes[at] && self.byte(at) == 0
    }

    fn values(&self, field: &FieldAt) -> Vec<u64> {
        let values = self.packets.iter().map(|packet| field.read(&packet.head));
        values.flatten().collect()
    }

    fn behaviour(&self, field: &FieldAt) -> Option<Behaviour> {
        behaviour(&self.values(field), field.bits())
    }

    /// Returns the field of `bytes` bytes whose lowest byte is at `at`, if it fits.
    fn field(&self, at: usize, bytes: usize, endian: Endian) -> Option<FieldAt> {
        let offset = match endian {
            Endian::Big => (at + 1).checked_sub(bytes)?,
            Endian::Little => at,
        };
        (offset + bytes <= self.end()).then_some(FieldAt {
            offset,
            bytes,
            endian,
        })
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
        let fields: Vec<FieldAt> = (1..=8)
            .map_while(|bytes| self.field(at, bytes, endian))
            .collect();
        if self.is_text(at) {
            return None;
        }
        let highest = |field: &FieldAt| match endian {
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
        field: FieldAt,
        behaviour: Behaviour,
        highest: impl Fn(&FieldAt) -> usize,
        fields: &[FieldAt],
    ) -> (FieldAt, Behaviour) {
        let minimal = field.bytes;
        let is_aligned = |field: &FieldAt| {
            matches!(field.bytes, 2 | 4 | 8) && field.offset.is_multiple_of(field.bytes)
        };
        let zeros = fields[minimal..]
            .iter()
            .take_while(|field| self.is_zero(highest(field)))
            .count();
        let widest = minimal + zeros;
        let natural = minimal.next_power_of_two();
        // Constant bytes above the changing ones belong to the number if they fill its natural size, or if they are small.
        let is_quiet = |wide: &FieldAt| {
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
    fn above(&self, field: &FieldAt) -> Option<String> {
        let at = match field.endian {
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
    fn is_time(&self, field: &FieldAt) -> bool {
        let packet = self.packets[0];
        let value = field.read(&packet.head).unwrap_or(0) as f64;
        let scales = [1.0, 1e3, 1e6, 1e9];
        packet.ns > 0
            && scales
                .iter()
                .any(|scale| (value * scale / packet.ns as f64 - 1.0).abs() < 0.05)
    }

    /// Returns all numbers, without those that share bytes with a better one.
    fn counters(&self) -> Vec<Counter> {
        let all = (0..self.end())
            .filter(|at| self.changes[*at])
            .flat_map(|at| [Endian::Big, Endian::Little].map(|endian| self.counter(at, endian)));
        let mut all: Vec<Counter> = all.flatten().collect();
        // Wider numbers contain the parts of themselves; at equal size, natural offsets are more likely. In the wrong byte
        // order, a number seems to grow in larger steps.
        let rank = |counter: &Counter| {
            let FieldAt { offset, bytes, .. } = counter.field;
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
    fn moves(&self, field: &FieldAt, moved: impl Fn(u64, u64) -> bool) -> Vec<usize> {
        let values = self.values(field);
        let pairs = values.windows(2).enumerate();
        pairs
            .filter(|(_, pair)| moved(pair[0], pair[1]))
            .map(|(i, _)| i)
            .collect()
    }

    /// Returns whether `frame` changes where `packet` starts again.
    fn is_pair(&self, frame: &FieldAt, packet: &FieldAt) -> bool {
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

/// Recognises packets with counters in a fixed header.
pub(super) fn recognise(packets: &[&Packet]) -> Option<Recognised> {
    let (length, count) = mode(packets.iter().map(|packet| packet.length))?;
    if count < MIN_PACKETS || length == 0 {
        return None;
    }
    let headers = Headers::new(packets, length);
    let counters = headers.counters();
    let (numbers, share) = numbers(&headers, &counters, length)?;
    let used = match &numbers {
        Numbers::Sequence { field, .. } => vec![*field],
        Numbers::Packets { frame, packet, .. } => vec![*frame, *packet],
        Numbers::Position {
            frame, position, ..
        } => vec![*frame, *position],
    };
    let end = used.iter().map(FieldAt::end).max()?;
    let (header, doubt) = header_size(&headers, &counters, end, length)?;
    let payload = length - header;
    let mut why = describe(&numbers);
    let constant = constant_bytes(&headers, header);
    why.extend(constant.map(|bytes| format!("constant bytes at the start: {bytes}")));
    let mut ambiguous: Vec<String> = doubt.into_iter().collect();
    ambiguous.extend(used.iter().filter_map(|field| headers.above(field)));
    let others = counters.iter().filter(|counter| {
        counter.field.end() <= header && used.iter().all(|field| !field.overlaps(&counter.field))
    });
    let mut more = Vec::new();
    for other in others {
        let rate = tick_rate(&headers, other);
        ambiguous.push(other_number(other, rate.as_deref()));
        // A number that grows by 1 counts something.
        let is_time = other.field.bytes >= 4 && more.is_empty() && !other.has_step_one();
        if let Some(rate) = rate.filter(|_| is_time) {
            more.push(Key::new(
                format!("# timestamp = {{ {}, rate = \"{rate}\" }}", other.field.keys()),
                format!("{} grow by about {rate} of capture time; if this is a time, set the exact rate:", other.field.words()),
            ));
        }
    }
    if count < packets.len() {
        ambiguous.push(format!(
            "{} of {} packets have another size than {length} B; they are rejected",
            packets.len() - count,
            packets.len()
        ));
    }
    let fixed = Fixed {
        header,
        payload,
        last: None,
        numbers,
        range: None,
        samples: None,
        more,
    };
    let place = |packet: &&Packet| {
        (packet.length == length)
            .then(|| fixed.place(packet))
            .flatten()
    };
    let places: Vec<_> = packets.iter().map(place).collect();
    let counts = account(places.iter().copied(), &fixed.numbering());
    if counts.lost * 100 > counts.expected * u64::from(MAX_LOST) {
        return None;
    }
    let size = f64::from(percent(count, packets.len())) / 100.0;
    let number = count as f64 / (count as f64 + 4.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is 0 to 100"
    )]
    let confidence = (share * size * number * MAX_CONFIDENCE) as u8;
    (confidence >= MIN_CONFIDENCE).then(|| Recognised {
        name: "fixed header with counters".to_owned(),
        confidence,
        why,
        ambiguous,
        numbering: fixed.numbering(),
        places,
        layout: format!("raw {length} {header} {used:?}"),
        suggestion: fixed.suggestion(),
    })
}

/// Returns the numbers that order the packets, and which share of the packets they explain.
fn numbers(headers: &Headers<'_>, counters: &[Counter], length: usize) -> Option<(Numbers, f64)> {
    let sequence = counters
        .iter()
        .filter_map(|counter| match counter.behaviour {
            Behaviour::Steps { step, share } => Some((counter.field, step, share)),
            _ => None,
        })
        .min_by_key(|(field, step, _)| (*step, field.offset));
    if let Some((field, step, share)) = sequence {
        return Some((Numbers::Sequence { field, step }, share.max(0.9)));
    }
    let held = |packet: &FieldAt| {
        counters
            .iter()
            .filter_map(|counter| match counter.behaviour {
                Behaviour::Holds { step } if headers.is_pair(&counter.field, packet) => {
                    Some((counter.field, step))
                }
                _ => None,
            })
            .min_by_key(|(field, step)| (*step, field.offset))
    };
    counters.iter().find_map(|counter| {
        let Behaviour::Cycles {
            first,
            last,
            stride,
        } = counter.behaviour
        else {
            return None;
        };
        let (frame, step) = held(&counter.field)?;
        let packets = (last - first) / stride + 1;
        let at_most = length as u64;
        let field = counter.field;
        let numbers = match stride {
            1 => Numbers::Packets {
                frame,
                step,
                packet: field,
                first,
                packets,
            },
            // Byte offsets step by the payload.
            _ if first == 0 && stride <= at_most && stride + MAX_HEADER as u64 >= at_most => {
                Numbers::Position {
                    frame,
                    step,
                    position: field,
                    packets,
                }
            }
            _ => return None,
        };
        Some((numbers, 1.0))
    })
}

fn describe(numbers: &Numbers) -> Vec<String> {
    match numbers {
        Numbers::Sequence { field, step } => {
            vec![format!(
                "{} grow by {step} from packet to packet",
                field.words()
            )]
        }
        Numbers::Packets {
            frame,
            step,
            packet,
            first,
            packets,
        } => vec![
            format!(
                "{} count the packets of a frame: {first} to {}",
                packet.words(),
                first + packets - 1
            ),
            format!("{} grow by {step} from frame to frame", frame.words()),
        ],
        Numbers::Position {
            frame,
            step,
            position,
            packets,
        } => vec![
            format!(
                "{} are the offset of the payload in a frame of {packets} packets",
                position.words()
            ),
            format!("{} grow by {step} from frame to frame", frame.words()),
        ],
    }
}

/// Returns the most probable size of the header, and what is uncertain about it. `end` is the first byte after the numbers.
fn header_size(
    headers: &Headers<'_>,
    counters: &[Counter],
    end: usize,
    length: usize,
) -> Option<(usize, Option<String>)> {
    // The first byte that changes without being part of a number belongs to the payload.
    let is_number = |at: usize| {
        counters
            .iter()
            .any(|counter| counter.field.offset <= at && at < counter.field.end())
    };
    let noisy = (end..headers.end()).find(|at| headers.changes[*at] && !is_number(*at));
    let limit = noisy.unwrap_or(headers.end()).min(length - 1);
    let roundness = |header: usize| (length - header).trailing_zeros();
    let header =
        (end..=limit.max(end)).max_by_key(|header| (roundness(*header), usize::MAX - header))?;
    let payload = length.checked_sub(header).filter(|payload| *payload > 0)?;
    let is_sure = roundness(header) >= 8 || noisy == Some(header);
    let doubt = (!is_sure || noisy.is_none()).then(|| {
        let reason = if noisy.is_some() { "the bytes between are constant" } else { "no byte after the numbers changes" };
        format!("the payload may begin at any byte from {end} to {limit}, because {reason}; {header} leaves {payload} B")
    });
    Some((header, doubt))
}

/// Returns the constant bytes at the start of the header, if they are not zero.
fn constant_bytes(headers: &Headers<'_>, header: usize) -> Option<String> {
    let bytes: Vec<u8> = (0..header.min(16))
        .take_while(|at| !headers.changes[*at])
        .map(|at| headers.byte(at))
        .collect();
    let is_magic = bytes.len() >= 2 && bytes[..2].iter().any(|byte| *byte != 0);
    let text: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    is_magic.then(|| text.join(" "))
}

fn tick_rate(headers: &Headers<'_>, counter: &Counter) -> Option<String> {
    let times = headers
        .packets
        .iter()
        .filter_map(|packet| Some((packet.ns, counter.field.read(&packet.head)?)));
    match counter.behaviour {
        Behaviour::Cycles { .. } => None,
        _ => number::tick_rate(times),
    }
}

fn other_number(counter: &Counter, rate: Option<&str>) -> String {
    let words = counter.field.words();
    let rate = rate.map_or_else(String::new, |rate| format!(", about {rate}"));
    match counter.behaviour {
        Behaviour::Steps { step, .. } => format!("{words} also grow, by {step} per packet{rate}"),
        Behaviour::Holds { step } => format!("{words} grow by {step} every few packets{rate}"),
        Behaviour::Cycles { first, last, .. } => {
            format!(
                "{words} count {first} to {last}: packets of a frame, or parts such as antennas"
            )
        }
    }
}
