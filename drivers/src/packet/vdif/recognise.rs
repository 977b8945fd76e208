//! Recognises VDIF, with or without a sequence number of 8 bytes before each frame.

use super::{Header, VTP};
use crate::packet::recognise::{
    CapturedPacket, Key, MIN_SHARE, Numbering, Place, Recognised, Recogniser, Suggestion, mode,
    percent, size,
};
use daq_core::units::counted;
use std::collections::{BTreeMap, BTreeSet};

/// How VDIF frames are recognised.
pub(super) const RECOGNISERS: &[Recogniser] = &[Recogniser::new(recognise)];

/// Number of seconds per hour.
const HOUR: u64 = 3600;

impl Header {
    /// Returns the hour of the frame. Frames of a short capture belong to one reference epoch and to few hours.
    fn hour(&self) -> u64 {
        ((self.epoch() as u64) << 30 | self.seconds()) / HOUR
    }
}

/// Returns the header at byte `at` of a packet, if it states the size of the packet.
fn header(packet: &CapturedPacket, at: usize) -> Option<Header> {
    let header = Header::read(packet.head.get(at..)?)?;
    let length = header.length();
    (packet.length == at + length && length > header.bytes()).then_some(header)
}

/// The number of frames of one thread per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameRate {
    frames: u64,
    /// Why the number is uncertain; empty if it is sure.
    doubt: &'static str,
}

const NO_END: &str = "estimated, because no second ends in these packets; set the exact number:";
const NO_TIMES: &str = "at least this number, because no second ends in these packets, and their times of capture show no rate; set the exact number:";
const ONE_END: &str = "at least this number: only one second ends with it in these packets, and its last frames may be lost; set the \
                       exact number:";
const RATE_DIFFERS: &str = "estimated from the times of capture, because the last frames of the seconds in these packets may be lost; \
                            set the exact number:";

/// Maximum difference in per mille between the rates of the numbers and of the times of capture.
const MAX_DIFFERENCE: u64 = 2;

impl FrameRate {
    /// Returns the rate of the usual frames of `packets`.
    fn of(packets: &[&CapturedPacket], frames: &[Option<Header>]) -> Option<Self> {
        let timed = packets.iter().zip(frames);
        let timed: Vec<(u64, Header)> = timed
            .filter_map(|(packet, frame)| Some((packet.ns, (*frame)?)))
            .collect();
        let least = highest(timed.iter().map(|(_, frame)| frame.frame()))? + 1;
        let measured = measured(&timed);
        let ends = ends(&timed, least);
        let rate = |frames, doubt| Some(Self { frames, doubt });
        // Losses at the end of several seconds are improbable.
        if ends.iter().filter(|end| **end == least).count() > 1 {
            return rate(least, "");
        }
        match measured {
            None if ends.is_empty() => rate(least, NO_TIMES),
            Some(measured) if ends.is_empty() => rate(measured.max(least), NO_END),
            Some(measured) if is_near(measured, least) => {
                let roundest = roundest(least, measured);
                let doubt = if roundest == least { "" } else { RATE_DIFFERS };
                rate(roundest, doubt)
            }
            // The senders of captures that were made for tests may send faster than their numbers state.
            Some(measured) if measured > least && keeps_time(&timed, measured) => {
                rate(measured, RATE_DIFFERS)
            }
            _ => rate(least, ONE_END),
        }
    }
}

/// Returns the highest number. A number far above all others is damaged.
fn highest(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let mut sorted: Vec<u64> = numbers.collect();
    sorted.sort_unstable();
    let is_damaged = |sorted: &[u64]| matches!(sorted, [.., below, top] if *top > below * 2 + 64);
    while is_damaged(&sorted) {
        sorted.pop();
    }
    sorted.last().copied()
}

/// Returns for each second that ends in these frames the highest number in it, plus 1. Numbers above `least` are damaged.
fn ends(timed: &[(u64, Header)], least: u64) -> Vec<u64> {
    let mut seconds: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, frame) in timed.iter().filter(|(_, frame)| frame.frame() < least) {
        let frames = seconds.entry(frame.seconds()).or_default();
        *frames = (*frames).max(frame.frame() + 1);
    }
    let next = |second: &u64| seconds.contains_key(&(second + 1));
    let ended = seconds.iter().filter(|(second, _)| next(second));
    ended.map(|(_, frames)| *frames).collect()
}

/// Returns the rate by the times of capture within the second with the most frames; `None` without times.
fn measured(timed: &[(u64, Header)]) -> Option<u64> {
    let runs = timed.chunk_by(|(_, one), (_, next)| one.seconds() == next.seconds());
    let run = runs.max_by_key(|run| run.len())?;
    let ((start, first), (end, last)) = (run.first()?, run.last()?);
    let ns = end.checked_sub(*start).filter(|ns| *ns > 0 && *start > 0)?;
    let frames = last.frame().checked_sub(first.frame())?;
    let rate = (u128::from(frames) * 1_000_000_000 + u128::from(ns) / 2) / u128::from(ns);
    u64::try_from(rate).ok()
}

/// Returns whether the seconds of the frames pass as fast as the times of capture, if there are `rate` frames per second.
fn keeps_time(timed: &[(u64, Header)], rate: u64) -> bool {
    let (Some((start, first)), Some((end, last))) = (timed.first(), timed.last()) else {
        return false;
    };
    let time = |frame: &Header| frame.seconds() as f64 + frame.frame() as f64 / rate as f64;
    let (sent, arrived) = (
        time(last) - time(first),
        end.saturating_sub(*start) as f64 / 1e9,
    );
    arrived > 0.0 && (sent / arrived - 1.0).abs() < 0.1
}

fn is_near(measured: u64, least: u64) -> bool {
    measured.abs_diff(least) * 1000 <= least * MAX_DIFFERENCE
}

/// Returns the number from `least` to just above `measured` with the most zeros at its end. Instruments have round rates.
fn roundest(least: u64, measured: u64) -> u64 {
    let zeros = |number: u64| {
        let powers = (1..20).map(|power| 10_u64.pow(power));
        powers
            .take_while(|power| number.is_multiple_of(*power))
            .count()
    };
    (least..=(measured + 1).max(least))
        .max_by_key(|number| (zeros(*number), u64::MAX - number))
        .unwrap_or(least)
}

/// Returns the key that selects threads: all of them if each is a channel, otherwise that of `frame`.
fn thread_key(frame: &Header, threads: &[u32]) -> Key {
    let all: Vec<String> = threads.iter().map(u32::to_string).collect();
    match threads {
        [_, _, ..] if frame.samples().channels == 1 => Key::new(
            format!("thread  = [{}]", all.join(", ")),
            "the threads are the parts of a frame; with `channels` and `order = \"planar\"` in `samples`, each is a channel:",
        ),
        [_, _, ..] => Key::new(
            format!("thread  = {}", frame.thread()),
            "one of several threads; another source on the same port can receive another one:",
        ),
        _ => Key::new(format!("thread  = {}", frame.thread()), ""),
    }
}

fn keys(frame: &Header, threads: &[u32], at: usize, rate: FrameRate) -> Vec<Key> {
    let line = |text: String| Key::new(text, "");
    let mut keys = vec![
        line(format!(
            "payload = {}",
            size(frame.length() - frame.bytes())
        )),
        thread_key(frame, threads),
    ];
    let FrameRate { frames, doubt } = rate;
    keys.push(Key::new(format!("frames_per_second = {frames}"), doubt));
    if at > 0 {
        keys.push(Key::new(
            "vtp     = true",
            "a sequence number precedes each frame:",
        ));
    }
    keys
}

/// Recognises VDIF.
fn recognise(packets: &[&CapturedPacket]) -> Option<Recognised> {
    let read =
        |at| -> Vec<Option<Header>> { packets.iter().map(|packet| header(packet, at)).collect() };
    let (at, frames) = [0, VTP]
        .map(|at| (at, read(at)))
        .into_iter()
        .max_by_key(|(at, frames)| (frames.iter().flatten().count(), usize::MAX - at))?;
    let all: Vec<Header> = frames.iter().copied().flatten().collect();
    let confidence = percent(all.len(), packets.len());
    let (middle, _) = mode(
        all.iter()
            .filter(|frame| !frame.is_invalid())
            .map(Header::hour),
    )?;
    // Single frames may be damaged.
    let is_usual = |frame: &Header| !frame.is_invalid() && frame.hour().abs_diff(middle) <= 1;
    let known: Vec<Header> = all.iter().copied().filter(is_usual).collect();
    let invalid = all.iter().filter(|frame| frame.is_invalid()).count();
    if percent(known.len() + invalid, all.len()) < MIN_SHARE {
        return None;
    }
    let seconds: BTreeSet<u64> = known.iter().map(Header::seconds).collect();
    let numbers: BTreeSet<u64> = known.iter().map(Header::frame).collect();
    let (first, last) = (*seconds.first()?, *seconds.last()?);
    if confidence < MIN_SHARE || last - first > 2 * HOUR || numbers.len() < 2 {
        return None;
    }
    let (length, _) = mode(known.iter().map(Header::length))?;
    let example = known.iter().find(|frame| frame.length() == length)?;
    let threads: Vec<u32> = known
        .iter()
        .map(Header::thread)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let usual: Vec<Option<Header>> = frames.iter().map(|frame| frame.filter(is_usual)).collect();
    let rate = FrameRate::of(packets, &usual)?;
    let place = |frame: &Option<Header>| {
        let frame = frame.filter(is_usual)?;
        let thread = threads
            .iter()
            .position(|thread| *thread == frame.thread())?;
        Some(Place {
            part: thread,
            ..Place::of((frame.seconds() - first) * rate.frames + frame.frame())
        })
    };
    let mut ambiguous = Vec::new();
    if invalid > 0 {
        ambiguous.push(format!(
            "the sender marked {invalid} of {} frames as invalid; they are rejected",
            packets.len()
        ));
    }
    let about = if rate.doubt.is_empty() { "" } else { "about " };
    let per_second = format!(", {about}{} frames per second", rate.frames);
    Some(Recognised {
        name: "VDIF".to_owned(),
        confidence,
        why: vec![
            format!(
                "word 2 of the header states the size of the packet: {length} B{}",
                if at > 0 {
                    "; a sequence number of 8 bytes precedes it"
                } else {
                    ""
                }
            ),
            format!(
                "station {}, {}, {}, {} bits{per_second}",
                example.station(),
                counted(threads.len(), "thread"),
                counted(example.samples().channels, "channel"),
                example.samples().bits
            ),
        ],
        ambiguous,
        numbering: Numbering::PLAIN,
        places: frames.iter().map(place).collect(),
        layout: format!("vdif {at} {length} {}", example.bytes()),
        suggestion: Suggestion::format("vdif", keys(example, &threads, at, rate)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns 20 frames within one second, `ns` apart.
    fn within_a_second(ns: u64) -> Vec<CapturedPacket> {
        let packets = (0..20_u64).map(|n| {
            let words = [1000, (46 << 24) | (100 + n), 5032 / 8, (1 << 26) | 0x4142];
            let words = words.iter().map(|word| u32::try_from(*word).unwrap());
            let head: Vec<u8> = words.flat_map(u32::to_le_bytes).chain([0; 16]).collect();
            CapturedPacket {
                source: ([10, 0, 0, 1], 9).into(),
                ns: 1_700_000_000_000_000_000 + n * ns,
                length: 5032,
                head: head.into(),
            }
        });
        packets.collect()
    }

    #[test]
    fn all_threads_of_one_channel_are_suggested() {
        let mut packets = within_a_second(100_000);
        for packet in packets.iter_mut().step_by(2) {
            let mut head = packet.head.to_vec();
            head[14] = 3;
            packet.head = head.into();
        }
        let found = recognise(&packets.iter().collect::<Vec<_>>()).unwrap();
        let Suggestion::Format { keys, .. } = found.suggestion else {
            panic!("no format");
        };
        assert!(keys.iter().any(|key| key.line == "thread  = [0, 3]"));
    }

    /// Returns one frame per entry of `numbers`, which count frames from the start of second 1000, sent at their time.
    fn at_rate(numbers: impl Iterator<Item = u64>, rate: u64) -> Vec<CapturedPacket> {
        let packets = numbers.map(|n| {
            let mut packet = within_a_second(0).remove(0);
            let mut head = packet.head.to_vec();
            let second = u32::try_from(1000 + n / rate).unwrap();
            let number = u32::try_from((46 << 24) | (n % rate)).unwrap();
            head[..4].copy_from_slice(&second.to_le_bytes());
            head[4..8].copy_from_slice(&number.to_le_bytes());
            packet.head = head.into();
            packet.ns += n * 1_000_000_000 / rate;
            packet
        });
        packets.collect()
    }

    fn rate_key(packets: &[CapturedPacket]) -> Key {
        let found = recognise(&packets.iter().collect::<Vec<_>>()).unwrap();
        let Suggestion::Format { keys, .. } = found.suggestion else {
            panic!("no format");
        };
        let mut keys = keys.into_iter();
        keys.find(|key| key.line.starts_with("frames_per_second"))
            .unwrap()
    }

    #[test]
    fn loss_at_the_end_of_a_second_is_marked_as_estimate() {
        let key = rate_key(&at_rate((1400..1800).filter(|n| *n != 1599), 1600));
        assert_eq!(key.line, "frames_per_second = 1600");
        assert!(key.why.starts_with("estimated"), "{}", key.why);
        let key = rate_key(&at_rate(1400..1800, 1600));
        assert_eq!(
            (key.line.as_str(), key.why.as_str()),
            ("frames_per_second = 1600", "")
        );
        // Without times of capture, one end of a second may be wrong.
        let mut untimed = at_rate((1400..1800).filter(|n| *n != 1599), 1600);
        for packet in &mut untimed {
            packet.ns = 0;
        }
        let key = rate_key(&untimed);
        assert_eq!(key.line, "frames_per_second = 1599");
        assert!(key.why.starts_with("at least"), "{}", key.why);
        // Many lost frames.
        let key = rate_key(&at_rate(
            (800..1800).filter(|n| !(1400..1600).contains(n)),
            1600,
        ));
        assert_eq!(key.line, "frames_per_second = 1600");
        assert!(key.why.starts_with("estimated"), "{}", key.why);
    }

    #[test]
    fn swapped_frames_at_the_end_of_seconds_do_not_change_the_rate() {
        let swapped = (600..2600)
            .step_by(4)
            .flat_map(|n| [n + 1, n, n + 3, n + 2]);
        let key = rate_key(&at_rate(swapped, 1000));
        assert_eq!(
            (key.line.as_str(), key.why.as_str()),
            ("frames_per_second = 1000", "")
        );
        assert_eq!(highest([3, 9_000_000, 5, 4].into_iter()), Some(5));
    }

    #[test]
    fn frames_per_second_are_always_suggested() {
        for (ns, line, why) in [
            (100_000, "frames_per_second = 10000", "estimated"),
            (0, "frames_per_second = 120", "at least this number"),
        ] {
            let packets = within_a_second(ns);
            let found = recognise(&packets.iter().collect::<Vec<_>>()).unwrap();
            let Suggestion::Format { keys, .. } = found.suggestion else {
                panic!("no format");
            };
            let key = keys.iter().find(|key| key.line == line).unwrap();
            assert!(key.why.starts_with(why), "{}", key.why);
        }
    }
}
