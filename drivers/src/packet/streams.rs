//! Several streams of one port as the parts of frames: the threads of VDIF, or the streams of VITA 49.
//!
//! ```text
//!   | stream 0: packet 0, 1, … | stream 1: packet 0, 1, … | …     one frame
//! ```
//! The numbers of packets follow from their times, so the packets of all streams with the same number belong to the same frame.

use super::checks::Check;
use super::{FormatFacts, Numbering, PacketLayout};
use daq_core::config::Problem;
use daq_core::layout::{Order, Samples};
use daq_core::reorder::PacketId;
use schemars::JsonSchema;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;

/// Maximum number of streams of a source.
const MAX_STREAMS: usize = 1024;
/// Approximate default size of a frame in bytes.
const FRAME: usize = 1 << 20;

/// The identifier of a stream, or those of several streams in the order of their parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamIds(pub Vec<u32>);

impl<'de> Deserialize<'de> for StreamIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;
        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = StreamIds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 0 to 4294967295, or an array of such numbers")
            }

            fn visit_i64<E: Error>(self, id: i64) -> Result<StreamIds, E> {
                let wrong = |_| E::custom(format!("{id} is not a number from 0 to 4294967295"));
                Ok(StreamIds(vec![u32::try_from(id).map_err(wrong)?]))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<StreamIds, E> {
                let wrong = |_| E::custom(format!("{id} is not a number from 0 to 4294967295"));
                Ok(StreamIds(vec![u32::try_from(id).map_err(wrong)?]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<StreamIds, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = list.next_element()? {
                    ids.push(id);
                }
                Ok(StreamIds(ids))
            }
        }
        deserializer.deserialize_any(OneOrSeveral)
    }
}

impl JsonSchema for StreamIds {
    fn schema_name() -> Cow<'static, str> {
        "StreamIds".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let id = schemars::json_schema!({ "type": "integer", "minimum": 0, "maximum": u32::MAX });
        schemars::json_schema!({
            "anyOf": [id, { "type": "array", "items": id, "minItems": 1 }],
            "examples": [0, [0, 1]],
        })
    }
}

impl StreamIds {
    /// Checks the identifiers of `key`, which are at most `max`.
    pub(super) fn check(&self, key: &str, max: u32, check: &mut Check) {
        check.must((1..=MAX_STREAMS).contains(&self.0.len()), key, || {
            (
                format!(
                    "a frame can have 1 to {MAX_STREAMS} streams, not {}",
                    self.0.len()
                ),
                "list each stream once".to_owned(),
            )
        });
        for (i, id) in self.0.iter().enumerate() {
            check.must(*id <= max, key, || {
                let help = format!("set a number from 0 to {max}");
                (format!("{id} is not the identifier of a stream"), help)
            });
            check.must(!self.0[..i].contains(id), key, || {
                (
                    format!("the stream {id} is listed twice"),
                    "list each stream once".to_owned(),
                )
            });
        }
    }
}

/// Frames of `packets` packets of each stream, one stream after the other.
#[derive(Clone, Debug)]
pub(super) struct StreamFrames {
    /// Number of streams, at least 1.
    streams: u32,
    /// Number of packets of each stream; 0 until [`settle`](Self::settle) is called.
    packets: u32,
}

impl StreamFrames {
    /// Returns the frames of `streams` streams if `packets` is set or there are several streams. Otherwise a frame contains as many
    /// packets as fit into a slot.
    pub(super) fn new(streams: usize, packets: Option<u32>, check: &mut Check) -> Option<Self> {
        let streams = u32::try_from(streams).unwrap_or(u32::MAX).max(1);
        let in_frame = u64::from(streams) * u64::from(packets.unwrap_or(1));
        check.must(
            (1..u64::from(u32::MAX)).contains(&in_frame),
            "packets",
            || {
                (
                    format!("a frame cannot have {in_frame} packets"),
                    "set the number of packets of each stream, at least 1".to_owned(),
                )
            },
        );
        (streams > 1 || packets.is_some()).then_some(Self {
            streams,
            packets: packets.unwrap_or(0),
        })
    }

    /// Returns the facts about packets of `payload` bytes whose numbers are counted by `numbering`. A packet is a unit unless
    /// `frames` is set.
    pub(super) fn facts(
        frames: Option<&Self>,
        payload: usize,
        numbering: Numbering,
    ) -> FormatFacts {
        let Some(frames) = frames else {
            return FormatFacts {
                unit_key: "payload",
                ..FormatFacts::new(numbering, PacketLayout::single(payload))
            };
        };
        let layout = PacketLayout {
            unit_bytes: frames.part_bytes(payload),
            first: payload,
            rest: payload,
        };
        let numbering = Numbering {
            packets_per_unit: frames.packets_per_frame(),
            ..numbering
        };
        FormatFacts {
            parts: frames.streams,
            unit_key: "frame",
            is_unit_frame: true,
            has_frame_times: true,
            ..FormatFacts::new(numbering, layout)
        }
    }

    /// Sets the number of packets of each stream if the configuration does not: the largest divisor of `whole`, or the largest number
    /// if `whole` is 0, with which a frame has at max [`FRAME`] bytes. Packets have `payload` bytes.
    pub(super) fn settle(&mut self, payload: usize, whole: u64) {
        if self.packets > 0 {
            return;
        }
        let max = (FRAME / (payload.max(1) * self.streams as usize)).max(1) as u64;
        let divides = |packets: &u64| whole.is_multiple_of(*packets);
        let packets = (1..=max).rev().find(divides);
        self.packets = packets.map_or(1, |packets| u32::try_from(packets).unwrap_or(1));
    }

    /// Returns the number of packets of each stream, at least 1.
    pub(super) const fn packets(&self) -> u32 {
        if self.packets == 0 { 1 } else { self.packets }
    }

    /// Returns the number of packets of a frame.
    pub(super) const fn packets_per_frame(&self) -> u32 {
        self.packets().saturating_mul(self.streams)
    }

    /// Returns the place of packet `number` of stream `stream`.
    #[inline]
    pub(super) fn place(&self, stream: u32, number: u64) -> PacketId {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the remainder is below `packets`, which is a u32"
        )]
        let packet = (number % u64::from(self.packets())) as u32;
        PacketId {
            unit: number / u64::from(self.packets()),
            sub: stream * self.packets() + packet,
        }
    }

    /// Returns the number of the packet at the place `sub` of frame `unit`, and its stream.
    pub(super) fn number(&self, unit: u64, sub: u32) -> (u64, u32) {
        let packets = self.packets();
        let number = unit
            .wrapping_mul(packets.into())
            .wrapping_add((sub % packets).into());
        (number, sub / packets)
    }

    /// Returns the number of bytes of a stream in a frame of packets with `payload` bytes.
    pub(super) const fn part_bytes(&self, payload: usize) -> usize {
        payload.saturating_mul(self.packets() as usize)
    }

    /// Returns the samples of a packet, if those of frames are `samples`: each stream has one channel, or the configuration does not
    /// say which channels a frame has.
    pub(super) fn packet_samples(&self, samples: &Samples) -> Result<Samples, Problem> {
        if self.streams == 1 || samples.channels == 1 {
            return Ok(samples.clone());
        }
        if samples.channels == self.streams && samples.order == Order::Planar {
            return Ok(Samples {
                channels: 1,
                ..samples.clone()
            });
        }
        let message = format!(
            "a frame contains {} streams one after the other, which are not {} {} channels",
            self.streams,
            samples.channels,
            match samples.order {
                Order::Planar => "planar",
                Order::Interleaved => "interleaved",
            }
        );
        Err(Problem::at("samples", message).help(format!(
            "set `channels = {0}` and `order = \"planar\"` if each stream is a channel; streams of several channels need a source each",
            self.streams
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_streams_follow_each_other_in_frames() {
        let mut check = Check::default();
        let mut frames = StreamFrames::new(3, None, &mut check).unwrap();
        // At most 43 packets of 8000 bytes and three streams have 1 MiB, and 40 divide the packets of a second.
        frames.settle(8000, 4000);
        assert_eq!((frames.streams, frames.packets()), (3, 40));
        for (number, stream) in [(0, 0), (39, 2), (40, 1), (u64::MAX - 3, 2)] {
            let PacketId { unit, sub } = frames.place(stream, number);
            assert_eq!(frames.number(unit, sub), (number, stream));
        }
        assert!(StreamFrames::new(1, None, &mut check).is_none());
        assert_eq!(
            StreamFrames::new(1, Some(7), &mut check).unwrap().packets(),
            7
        );
        assert!(check.problems().is_empty());
        let mut check = Check::default();
        assert!(StreamFrames::new(2, Some(0), &mut check).is_some());
        assert_eq!(check.problems().len(), 1);
    }

    #[test]
    fn identifiers_are_one_number_or_several() {
        #[derive(Debug, Deserialize)]
        struct Keys {
            thread: StreamIds,
        }
        let read = |text: &str| toml::from_str::<Keys>(text).map(|keys| keys.thread.0);
        assert_eq!(read("thread = 0x2a").unwrap(), [42]);
        assert_eq!(read("thread = [3, 1]").unwrap(), [3, 1]);
        for wrong in ["thread = -1", "thread = 4294967296", "thread = [\"a\"]"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let problems = |ids: &[u32]| {
            let mut check = Check::default();
            StreamIds(ids.to_vec()).check("thread", 1023, &mut check);
            check.problems().len()
        };
        assert_eq!(
            [&[0, 1023][..], &[], &[1024], &[5, 5]].map(problems),
            [0, 1, 1, 1]
        );
    }
}
