//! Any fixed header with counters: which of the numbers in the header order the packets.
//!
//! All packets have the same size, or the last packet of each frame is shorter. Numbers are suggested only if the packets do not
//! contradict them: see [`Candidate::judge`].

use super::behaviour::Behaviour;
use super::fixed::{Fixed, Numbers};
use super::headers::{Counter, Headers, MAX_HEADER};
use super::seconds::SplitTime;
use crate::packet::field::FieldKeys;
use crate::packet::recognise::{
    self, CapturedPacket, Key, Numbering, Place, Recognised, Suggestion, is_numbered, mode, percent,
};

/// Minimum number of packets of the most frequent size.
const MIN_PACKETS: usize = 8;
/// Minimum number of packets of the other size, if the last packet of each frame is shorter.
const MIN_LAST: usize = 2;
/// Maximum number of other sizes that are examined.
const MAX_SIZES: usize = 4;
/// Upper limit of the confidence, because the meaning of the numbers is not known.
const MAX_CONFIDENCE: f64 = 85.0;
/// Minimum confidence in percent.
const MIN_CONFIDENCE: u8 = 40;
/// Maximum share in percent of packets whose sizes contradict their numbers in a frame.
const MAX_MISPLACED: u8 = 2;

/// The sizes of packets in bytes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    full: usize,
    /// The size of the last packet of each frame, if it is shorter.
    last: Option<usize>,
}

impl Sizes {
    fn all(&self) -> Vec<usize> {
        std::iter::once(self.full).chain(self.last).collect()
    }

    fn words(&self) -> String {
        match self.last {
            Some(last) => format!("{} B and {last} B", self.full),
            None => format!("{} B", self.full),
        }
    }
}

/// Recognises packets with counters in a fixed header.
pub(super) fn recognise(packets: &[&CapturedPacket]) -> Option<Recognised> {
    let (length, count) = mode(packets.iter().map(|packet| packet.length))?;
    if count < MIN_PACKETS || length == 0 {
        return None;
    }
    let one = Sizes {
        full: length,
        last: None,
    };
    let mut sizes = pairs(packets, length).into_iter().chain([one]);
    sizes.find_map(|sizes| examine(packets, sizes))
}

/// Returns the pairs of the size `length` and another frequent one.
fn pairs(packets: &[&CapturedPacket], length: usize) -> Vec<Sizes> {
    let others = packets.iter().map(|packet| packet.length);
    let mut others: Vec<usize> = others.filter(|other| *other != length).collect();
    others.sort_unstable();
    let runs = others.chunk_by(|a, b| a == b);
    let mut runs: Vec<&[usize]> = runs.filter(|run| run.len() >= MIN_LAST).collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.len()));
    let pair = |run: &&[usize]| Sizes {
        full: length.max(run[0]),
        last: Some(length.min(run[0])),
    };
    runs.iter().take(MAX_SIZES).map(pair).collect()
}

/// Returns what the packets of `sizes` are, if numbers in their headers order them.
fn examine(packets: &[&CapturedPacket], sizes: Sizes) -> Option<Recognised> {
    let headers = Headers::new(packets, &sizes.all())?;
    let counters = headers.counters();
    let examined = Examined {
        packets,
        headers: &headers,
        counters: &counters,
        sizes,
    };
    let mut candidates = examined.candidates().into_iter();
    candidates.find_map(|candidate| examined.judge(&candidate))
}

/// Numbers that may order the packets.
#[derive(Clone, Debug)]
struct Candidate {
    numbers: Numbers,
    /// The share of the packets that the numbers explain.
    share: f64,
    /// The size of the payload in bytes, if the numbers show it.
    payload: Option<usize>,
    /// Set if the number is the lower part of this time.
    time: Option<SplitTime>,
}

/// The packets of some sizes with the numbers in their headers.
struct Examined<'a> {
    packets: &'a [&'a CapturedPacket],
    headers: &'a Headers<'a>,
    counters: &'a [Counter],
    sizes: Sizes,
}

impl Examined<'_> {
    /// Returns the candidates, the most probable first.
    fn candidates(&self) -> Vec<Candidate> {
        let frames = self
            .counters
            .iter()
            .filter_map(|counter| self.frames(counter));
        if self.sizes.last.is_some() {
            return frames.collect();
        }
        let mut sequences: Vec<(u64, usize, Candidate)> = self
            .counters
            .iter()
            .filter_map(|counter| self.sequence(counter))
            .collect();
        sequences.sort_by_key(|(step, offset, _)| (*step, *offset));
        let sequences = sequences.into_iter().map(|(_, _, candidate)| candidate);
        sequences.chain(frames).collect()
    }

    /// Returns the step and the offset of a number that grows from packet to packet, and the numbers of packets.
    fn sequence(&self, counter: &Counter) -> Option<(u64, usize, Candidate)> {
        let (step, share) = match counter.behaviour {
            Behaviour::Steps { step, share } => (step, share.max(0.9)),
            // Only the ticks of a time count all packets although they start again.
            Behaviour::Cycles { stride, .. } => (stride, 1.0),
            Behaviour::Holds { .. } => return None,
        };
        let time = SplitTime::find(self.headers, &counter.field, step);
        let field = match (time, counter.behaviour) {
            (Some(time), _) => time.ticks,
            (None, Behaviour::Steps { .. }) => counter.field,
            (None, _) => return None,
        };
        let candidate = Candidate {
            numbers: Numbers::Sequence(field.stepping(step)),
            share,
            payload: None,
            time,
        };
        Some((step, field.offset, candidate))
    }

    /// Returns the numbers of frames and of their packets, if `counter` counts the packets of a frame.
    fn frames(&self, counter: &Counter) -> Option<Candidate> {
        let Behaviour::Cycles {
            first,
            last,
            stride,
        } = counter.behaviour
        else {
            return None;
        };
        let frame = self.frame_of(&counter.field)?;
        let packets = (last - first) / stride + 1;
        let at_most = self.sizes.full as u64;
        let field = counter.field;
        let (numbers, payload) = match stride {
            1 => {
                let packet = FieldKeys { first, ..field };
                let numbers = Numbers::Packets {
                    frame,
                    packet,
                    packets,
                };
                (numbers, None)
            }
            // Byte offsets step by the payload.
            _ if first == 0 && stride <= at_most && stride + MAX_HEADER as u64 >= at_most => {
                let numbers = Numbers::Position {
                    frame,
                    position: field,
                    packets,
                };
                (numbers, usize::try_from(stride).ok())
            }
            _ => return None,
        };
        Some(Candidate {
            numbers,
            share: 1.0,
            payload,
            time: None,
        })
    }

    /// Returns the number that changes where the number `packet` starts again.
    fn frame_of(&self, packet: &FieldKeys) -> Option<FieldKeys> {
        let frames = self.counters.iter().filter_map(|counter| {
            let step = match counter.behaviour {
                // In frames of two packets, every second packet changes the number.
                Behaviour::Holds { step } | Behaviour::Steps { step, .. } => step,
                Behaviour::Cycles { .. } => return None,
            };
            let field = counter.field;
            self.headers
                .is_pair(&field, packet)
                .then_some(field.stepping(step))
        });
        frames.min_by_key(|field| (field.step, field.offset))
    }

    /// Returns the packets with these numbers. Returns `None` if the numbers skip too many packets, if too many packets have the
    /// numbers of others, or if the shorter packets are not the last ones of frames.
    fn judge(&self, candidate: &Candidate) -> Option<Recognised> {
        let used = candidate.numbers.fields();
        let end = used.iter().map(FieldKeys::end);
        let end = end.chain(candidate.time.map(|time| time.end())).max()?;
        let (header, doubt) = self.header(candidate, end)?;
        let mut fixed = Fixed {
            header,
            payload: self.sizes.full - header,
            last: self.sizes.last.map(|last| last.saturating_sub(header)),
            numbers: candidate.numbers,
            samples: None,
            more: Vec::new(),
        };
        if !self.has_last(&fixed) {
            return None;
        }
        let (places, numbering) = self.places(candidate, &fixed);
        if !is_numbered(&places, &numbering) {
            return None;
        }
        let confidence = self.confidence(candidate.share);
        if confidence < MIN_CONFIDENCE {
            return None;
        }
        let mut ambiguous: Vec<String> = doubt.into_iter().collect();
        if candidate.time.is_none() {
            ambiguous.extend(used.iter().filter_map(|field| self.headers.above(field)));
        }
        let (others, more) = self.others(candidate, &used, header);
        ambiguous.extend(others);
        fixed.more = more;
        if let Some(note) = self.rejected() {
            fixed.more.push(Key::note(note.clone()));
            ambiguous.push(note);
        }
        let mut why = describe(&candidate.numbers);
        why.extend(candidate.time.map(|time| time.words()));
        why.extend(
            self.sizes
                .last
                .map(|last| format!("the packets of {last} B are the last ones of frames")),
        );
        let constant = constant_bytes(self.headers, header);
        why.extend(constant.map(|bytes| format!("constant bytes at the start: {bytes}")));
        let suggestion = suggestion(candidate, &mut fixed);
        let at = |field: &FieldKeys| (field.offset, field.bytes, field.endian);
        let used: Vec<_> = used.iter().map(at).collect();
        let layout = format!("raw {:?} {header} {used:?}", self.sizes.all());
        Some(Recognised {
            name: "fixed header with counters".to_owned(),
            confidence,
            why,
            ambiguous,
            numbering,
            places,
            layout,
            suggestion,
        })
    }

    /// Returns the size of the header, and what is uncertain about it. `end` is the first byte after the numbers.
    fn header(&self, candidate: &Candidate, end: usize) -> Option<(usize, Option<String>)> {
        if let Some(payload) = candidate.payload {
            let header = self.sizes.full.checked_sub(payload)?;
            return (header >= end).then_some((header, None));
        }
        header_size(self.headers, self.counters, end, self.sizes)
    }

    /// Returns the place of each packet, and how they are numbered.
    fn places(&self, candidate: &Candidate, fixed: &Fixed) -> (Vec<Option<Place>>, Numbering) {
        let whole = |packet: &&&CapturedPacket| fixed.whole_place(packet).is_some();
        if let (Some(time), Numbers::Sequence(number)) = (candidate.time, &candidate.numbers) {
            let place = |packet: &&CapturedPacket| time.place(&packet.head);
            let places = self.packets.iter();
            let places = places.map(|packet| Some(packet).filter(whole).and_then(place));
            (places.collect(), SplitTime::numbering(number.step))
        } else {
            let places = self.packets.iter();
            let places = places.map(|packet| fixed.whole_place(packet));
            (places.collect(), fixed.numbering())
        }
    }

    /// Returns whether the shorter packets, if there are any, are those with the highest number of a frame.
    fn has_last(&self, fixed: &Fixed) -> bool {
        let Some(last) = self.sizes.last else {
            return true;
        };
        let places = self.headers.packets.iter().filter_map(|packet| {
            let is_end = fixed.place(packet)?.packet + 1 == fixed.packets();
            Some((packet.length == last, is_end))
        });
        let places: Vec<(bool, bool)> = places.collect();
        let short = places.iter().filter(|(is_short, _)| *is_short).count();
        let wrong = places
            .iter()
            .filter(|(is_short, is_end)| is_short != is_end);
        let wrong = wrong.count();
        fixed.last > Some(0)
            && short >= MIN_LAST
            && wrong * 100 <= short * usize::from(MAX_MISPLACED)
    }

    /// Returns the number of packets of the examined sizes.
    fn examined(&self) -> usize {
        let sizes = self.sizes.all();
        let packets = self.packets.iter();
        packets
            .filter(|packet| sizes.contains(&packet.length))
            .count()
    }

    fn confidence(&self, share: f64) -> u8 {
        let count = self.examined();
        let size = f64::from(percent(count, self.packets.len())) / 100.0;
        let number = count as f64 / (count as f64 + 4.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the value is 0 to 100"
        )]
        let confidence = (share * size * number * MAX_CONFIDENCE) as u8;
        confidence
    }

    /// Returns a note if packets have other sizes.
    fn rejected(&self) -> Option<String> {
        let all = self.packets.len();
        let others = all - self.examined();
        let sizes = self.sizes.words();
        (others > 0).then(|| {
            format!("{others} of {all} packets have another size than {sizes}; they are rejected")
        })
    }

    /// Returns what the other numbers in the header may be, and the lines of a timestamp.
    fn others(
        &self,
        candidate: &Candidate,
        used: &[FieldKeys],
        header: usize,
    ) -> (Vec<String>, Vec<Key>) {
        let (mut ambiguous, mut more) = (Vec::new(), Vec::new());
        let others = self.counters.iter().filter(|counter| {
            let field = counter.field;
            field.end() <= header && used.iter().all(|used| !used.overlaps(&field))
        });
        let mut times = others.clone().filter_map(|other| self.split(other));
        let time = candidate.time.or_else(|| times.next());
        if let Some(time) = time.filter(|time| time.end() <= header) {
            more.push(time.key());
        }
        let is_part = |field: &FieldKeys| time.is_some_and(|time| time.overlaps(field));
        for other in others.filter(|other| !is_part(&other.field)) {
            let rate = tick_rate(self.headers, other);
            ambiguous.push(other_number(other, rate.as_deref()));
            // A number that grows by 1 counts something.
            let is_time = other.field.bytes >= 4 && more.is_empty() && !other.has_step_one();
            if let Some(rate) = rate.filter(|_| is_time) {
                more.push(Key::new(
                    format!("# timestamp = {{ {}, rate = \"{rate}\" }}", other.field),
                    format!("{} grow by about {rate} of capture time; if this is a time, set the exact rate:", other.field.words()),
                ));
            }
        }
        (ambiguous, more)
    }

    /// Returns the time of two parts of which `counter` is the lower part.
    fn split(&self, counter: &Counter) -> Option<SplitTime> {
        let step = match counter.behaviour {
            Behaviour::Steps { step, .. } | Behaviour::Holds { step } => step,
            Behaviour::Cycles { stride, .. } => stride,
        };
        SplitTime::find(self.headers, &counter.field, step)
    }
}

/// Returns the keys of the format. The ticks of a time number packets only if a second is a whole number of steps.
fn suggestion(candidate: &Candidate, fixed: &mut Fixed) -> Suggestion {
    let (Some(time), Numbers::Sequence(number)) = (candidate.time, &mut fixed.numbers) else {
        return fixed.suggestion(true);
    };
    let step = number.step;
    number.range = time.range(step);
    if number.range.is_some() {
        return fixed.suggestion(true);
    }
    Suggestion::None(format!(
        "only a time of whole seconds and ticks numbers the packets. It grows by {step} ticks per packet, and a second of {} ticks \
         is not a whole number of such steps, so no format can number packets by it",
        time.per_second
    ))
}

fn describe(numbers: &Numbers) -> Vec<String> {
    match numbers {
        Numbers::Sequence(number) => {
            vec![format!(
                "{} grow by {} from packet to packet",
                number.words(),
                number.step
            )]
        }
        Numbers::Packets {
            frame,
            packet,
            packets,
        } => vec![
            format!(
                "{} count the packets of a frame: {} to {}",
                packet.words(),
                packet.first,
                packet.first + packets - 1
            ),
            growing(frame),
        ],
        Numbers::Position {
            frame,
            position,
            packets,
        } => vec![
            format!(
                "{} are the offset of the payload in a frame of {packets} packets",
                position.words()
            ),
            growing(frame),
        ],
    }
}

fn growing(frame: &FieldKeys) -> String {
    format!(
        "{} grow by {} from frame to frame",
        frame.words(),
        frame.step
    )
}

/// Returns the most probable size of the header, and what is uncertain about it. `end` is the first byte after the numbers.
fn header_size(
    headers: &Headers<'_>,
    counters: &[Counter],
    end: usize,
    sizes: Sizes,
) -> Option<(usize, Option<String>)> {
    let length = sizes.full;
    let shortest = sizes.last.unwrap_or(length);
    // The first byte that changes without being part of a number belongs to the payload.
    let is_number = |at: usize| {
        counters
            .iter()
            .any(|counter| counter.field.offset <= at && at < counter.field.end())
    };
    let noisy = (end..headers.end()).find(|at| headers.changes[*at] && !is_number(*at));
    let limit = noisy.unwrap_or(headers.end()).min(shortest - 1);
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
        _ => recognise::tick_rate(times),
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

#[cfg(test)]
mod tests;
