//! VDIF frames of radio telescopes, with or without a sequence number of 8 bytes before the frame.
//!
//! Header of 32 bytes (16 in legacy frames), little-endian words: seconds since the reference epoch (30 bits, then legacy and
//! invalid), frame number within the second (24) and reference epoch (6), frame length in units of 8 bytes (24), channels (5,
//! log2) and version (3), station (16), thread (10), bits per sample - 1 (5), complex (1).

use super::{Key, Packet, Recognised, Suggestion, le, mode, percent};
use crate::inspect::account::{Numbering, Place};
use crate::inspect::number;
use daq_core::units::counted;
use std::collections::BTreeSet;

#[derive(Clone, Copy)]
struct Frame {
    seconds: u64,
    number: u64,
    epoch: u64,
    length: usize,
    header: usize,
    thread: u64,
    station: u64,
    channels: u64,
    bits: u64,
    /// Whether the sender marked the frame as invalid. Its second and number need not be valid.
    is_invalid: bool,
}

/// Number of seconds per hour.
const HOUR: u64 = 3600;

impl Frame {
    /// Returns the hour of the frame. Frames of a short capture belong to one reference epoch and to few hours.
    const fn hour(&self) -> u64 {
        (self.epoch << 30 | self.seconds) / HOUR
    }
}

fn frame(packet: &Packet, at: usize) -> Option<Frame> {
    let head = packet.head.get(at..)?;
    let word = |index: usize| le::<4>(head, index * 4);
    let (first, second, third, fourth) = (word(0)?, word(1)?, word(2)?, word(3)?);
    let length = usize::try_from(third & 0xff_ffff).ok()? * 8;
    let header = if first >> 30 & 1 == 1 { 16 } else { 32 };
    let frame = Frame {
        seconds: first & 0x3fff_ffff,
        number: second & 0xff_ffff,
        epoch: second >> 24 & 0x3f,
        length,
        header,
        thread: fourth >> 16 & 0x3ff,
        station: fourth & 0xffff,
        channels: 1 << (third >> 24 & 0x1f),
        bits: (fourth >> 26 & 0x1f) + 1,
        is_invalid: first >> 31 == 1,
    };
    (packet.length == at + length && length > header).then_some(frame)
}

/// A number of frames per second that no end of a second shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Estimate {
    /// From the times of capture; larger than each number.
    Rate(u64),
    /// The times of capture show no rate, so this is one more than the largest number.
    AtLeast(u64),
}

/// Returns an estimate of the number of frames of one thread per second.
fn estimate(packets: &[&Packet], frames: &[Option<Frame>]) -> Option<Estimate> {
    let times = || {
        packets
            .iter()
            .zip(frames)
            .filter_map(|(packet, frame)| Some((packet.ns, (*frame)?.number)))
    };
    let (start, first) = times().next()?;
    let (end, last) = times().next_back()?;
    let least = times().map(|(_, number)| number).max()? + 1;
    let ns = end.checked_sub(start).filter(|ns| *ns > 0 && start > 0);
    let rate = ns.and_then(|ns| Some(last.checked_sub(first)? * 1_000_000_000 / ns));
    Some(match rate {
        Some(rate) => Estimate::Rate(rate.max(least)),
        None => Estimate::AtLeast(least),
    })
}

/// Returns the key that selects threads: all of them if each is a channel, otherwise that of `frame`.
fn thread_key(frame: &Frame, threads: &[u64]) -> Key {
    let all: Vec<String> = threads.iter().map(u64::to_string).collect();
    match threads {
        [_, _, ..] if frame.channels == 1 => Key::new(
            format!("thread  = [{}]", all.join(", ")),
            "the threads are the parts of a frame; with `channels` and `order = \"planar\"` in `samples`, each is a channel:",
        ),
        [_, _, ..] => Key::new(
            format!("thread  = {}", frame.thread),
            "one of several threads; another source on the same port can receive another one:",
        ),
        _ => Key::new(format!("thread  = {}", frame.thread), ""),
    }
}

fn keys(
    frame: &Frame,
    threads: &[u64],
    at: usize,
    per_second: Option<u64>,
    estimate: Option<Estimate>,
) -> Vec<Key> {
    let line = |text: String| Key::new(text, "");
    let mut keys = vec![
        line(format!(
            "payload = {}",
            number::size(frame.length - frame.header)
        )),
        thread_key(frame, threads),
    ];
    keys.extend(per_second.map(|rate| line(format!("frames_per_second = {rate}"))));
    let estimate = estimate.filter(|_| per_second.is_none());
    keys.extend(estimate.map(|estimate| {
        let (rate, why) = match estimate {
            Estimate::Rate(rate) => (
                rate,
                "estimated, because no second ends in these packets; set the exact number:",
            ),
            Estimate::AtLeast(rate) => (
                rate,
                "at least this number, because no second ends in these packets, and their times of capture show no rate; set \
                 the exact number:",
            ),
        };
        Key::new(format!("frames_per_second = {rate}"), why)
    }));
    if at > 0 {
        keys.push(Key::new(
            "vtp     = true",
            "a sequence number precedes each frame:",
        ));
    }
    keys
}

/// Recognises VDIF.
pub(super) fn recognise(packets: &[&Packet]) -> Option<Recognised> {
    let read =
        |at| -> Vec<Option<Frame>> { packets.iter().map(|packet| frame(packet, at)).collect() };
    let (at, frames) = [0, 8]
        .map(|at| (at, read(at)))
        .into_iter()
        .max_by_key(|(at, frames)| (frames.iter().flatten().count(), usize::MAX - at))?;
    let all: Vec<Frame> = frames.iter().copied().flatten().collect();
    let confidence = percent(all.len(), packets.len());
    let (middle, _) = mode(
        all.iter()
            .filter(|frame| !frame.is_invalid)
            .map(Frame::hour),
    )?;
    // Single frames may be damaged.
    let is_usual = |frame: &Frame| !frame.is_invalid && frame.hour().abs_diff(middle) <= 1;
    let known: Vec<Frame> = all.iter().copied().filter(is_usual).collect();
    let invalid = all.iter().filter(|frame| frame.is_invalid).count();
    if percent(known.len() + invalid, all.len()) < 90 {
        return None;
    }
    let seconds: BTreeSet<u64> = known.iter().map(|frame| frame.seconds).collect();
    let numbers: BTreeSet<u64> = known.iter().map(|frame| frame.number).collect();
    let (first, last) = (*seconds.first()?, *seconds.last()?);
    if confidence < 90 || last - first > 2 * HOUR || numbers.len() < 2 {
        return None;
    }
    let (length, _) = mode(known.iter().map(|frame| frame.length))?;
    let example = known.iter().find(|frame| frame.length == length)?;
    let threads: Vec<u64> = known
        .iter()
        .map(|frame| frame.thread)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    // The largest number before a new second.
    let ends = known
        .windows(2)
        .filter(|pair| pair[1].seconds == pair[0].seconds + 1);
    let per_second = ends.map(|pair| pair[0].number + 1).max();
    let place = |frame: &Option<Frame>| {
        let frame = frame.filter(is_usual)?;
        let thread = threads.iter().position(|thread| *thread == frame.thread)?;
        Some(Place {
            frame: (frame.seconds - first) * per_second.unwrap_or(1 << 24) + frame.number,
            packet: 0,
            part: thread,
        })
    };
    let mut ambiguous = Vec::new();
    if invalid > 0 {
        ambiguous.push(format!(
            "the sender marked {invalid} of {} frames as invalid; they are rejected",
            packets.len()
        ));
    }
    let rate = per_second.map_or_else(String::new, |rate| format!(", {rate} frames per second"));
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
                "station {}, {}, {}, {} bits{rate}",
                example.station,
                counted(threads.len(), "thread"),
                counted(example.channels, "channel"),
                example.bits
            ),
        ],
        ambiguous,
        numbering: Numbering {
            bits: 64,
            step: 1,
            packets: 1,
            range: None,
        },
        places: frames.iter().map(place).collect(),
        layout: format!("vdif {at} {length} {}", example.header),
        suggestion: Suggestion::Format {
            kind: "vdif",
            keys: keys(
                example,
                &threads,
                at,
                per_second,
                estimate(packets, &frames),
            ),
            samples: None,
            has_parts: false,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns 20 frames within one second, `ns` apart.
    fn within_a_second(ns: u64) -> Vec<Packet> {
        let packets = (0..20_u64).map(|n| {
            let words = [1000, (46 << 24) | (100 + n), 5032 / 8, (1 << 26) | 0x4142];
            let words = words.iter().map(|word| u32::try_from(*word).unwrap());
            let head: Vec<u8> = words.flat_map(u32::to_le_bytes).chain([0; 16]).collect();
            Packet {
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
