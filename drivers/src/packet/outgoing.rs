//! Builds packets for sinks: the formats of this crate behind the traits of [`daq_core::outgoing`].

use super::{Format, Numbering, PacketLayout};
use daq_core::config::Problem;
use daq_core::frame::{Clock, Timestamp};
use daq_core::outgoing::{OutgoingFormat, OutgoingFrames, PacketBuilder};
use daq_core::reorder::PacketId;
use daq_core::units::{ByteSize, Span};
use std::ops::Range;

/// A format of a table `format` whose packets are sent.
#[derive(Debug)]
pub(super) struct Outgoing(pub(super) Format);

impl OutgoingFormat for Outgoing {
    fn warnings(&self) -> Vec<Problem> {
        let clock = self.0.clock();
        let short = clock.and_then(|clock| clock.wrap?.too_short(&clock.scale));
        let Some(after) = short else {
            return Vec::new();
        };
        let message = format!(
            "the timestamps of packets repeat after {}, because their field is too narrow, so receivers may read wrong times",
            Span(after)
        );
        let help = "set a longer `tick`, a later `origin` or a wider field; if the receivers expect times that repeat, declare their \
                    number of `bits`";
        vec![Problem::at("format.timestamp", message).help(help)]
    }

    fn builder(&self, frames: &OutgoingFrames) -> Result<Box<dyn PacketBuilder>, Problem> {
        let sized = self.0.for_sending(frames)?;
        let format = sized.unwrap_or_else(|| self.0.clone());
        let facts = format.facts();
        let (layout, parts) = (facts.layout, facts.parts.max(1));
        if parts > 1 && facts.has_parts_by_address {
            let message = "the packets of all parts go to the same port, so they must contain the number of their part";
            let help =
                "remove `part`, name one receiver for each part in `to`, and set split = \"parts\"";
            return Err(Problem::at("format.part", message).help(help));
        }
        if !facts.kept.is_empty() {
            let message = "packets that are sent cannot contain kept fields";
            return Err(Problem::at("format.keep", message).help("remove `keep`"));
        }
        let unit = layout.unit_bytes.max(1).saturating_mul(parts as usize);
        let frame = frames.frame_bytes;
        if !frame.is_multiple_of(unit) || frame == 0 {
            let (size, unit) = (ByteSize(frame as u64), ByteSize(unit as u64));
            let packets = layout.count().saturating_mul(parts);
            let (message, help) = if packets > 1 {
                (
                    format!(
                        "frames of {size} cannot be divided into {packets} packets with {unit} of payload in total"
                    ),
                    format!(
                        "set `payload` and the number of packets so that their product divides {frame} bytes"
                    ),
                )
            } else {
                (
                    format!(
                        "frames of {size} cannot be divided into packets with {unit} of payload"
                    ),
                    format!("set a `payload` that divides {frame} bytes"),
                )
            };
            return Err(Problem::at("format.payload", message).help(help));
        }
        let packets_per_part = layout.count();
        let parts = u32::try_from(frame / layout.unit_bytes.max(1)).unwrap_or(u32::MAX);
        Ok(Box::new(Builder {
            numbering: facts.numbering,
            trailer: facts.trailer,
            layout,
            packets_per_part,
            packets: parts.saturating_mul(packets_per_part),
            frames: frames.clone(),
            format,
        }))
    }
}

/// Builds the packets of frames that consist of whole units.
struct Builder {
    format: Format,
    numbering: Numbering,
    trailer: usize,
    layout: PacketLayout,
    packets_per_part: u32,
    /// Number of packets of a frame.
    packets: u32,
    frames: OutgoingFrames,
}

impl Builder {
    /// Returns the number of `packet` of the frame with the number `frame`.
    fn id(&self, frame: u64, packet: u32) -> PacketId {
        let ahead = frame
            .wrapping_mul(self.packets.into())
            .wrapping_add(packet.into());
        self.numbering.after(0, ahead)
    }

    /// Returns a time in the unit of the format's timestamps, or `None` if it is unknown. If the timestamps are UTC, a time that
    /// is not UTC would be wrong.
    fn ticks(&self, time: Timestamp) -> Option<u64> {
        let scale = self.format.time_scale()?;
        let is_known = match scale.origin_ns {
            Some(_) => time.clock.is_utc(),
            None => time.clock != Clock::None,
        };
        is_known.then(|| scale.ticks_at(time.ns))
    }
}

impl PacketBuilder for Builder {
    fn packets(&self) -> u32 {
        self.packets
    }

    fn payload(&self, packet: u32) -> Range<usize> {
        let part = (packet / self.packets_per_part) as usize * self.layout.unit_bytes;
        let range = self.layout.range(packet % self.packets_per_part);
        part + range.start..part + range.end
    }

    fn append_header(&self, frame: u64, packet: u32, time: Timestamp, out: &mut Vec<u8>) {
        let id = self.id(frame, packet);
        let payload = self.layout.range(packet % self.packets_per_part).len();
        self.format
            .build_header(id.unit, id.sub, self.ticks(time), payload, out);
    }

    fn trailer_len(&self) -> usize {
        self.trailer
    }

    fn describe(&self, frame: u64, time: Timestamp, packets: &mut Vec<Vec<u8>>) {
        let (unit, ticks) = (self.id(frame, 0).unit, self.ticks(time));
        self.format.describe(&self.frames, unit, ticks, packets);
    }

    fn end(&self, next: u64) -> Vec<Vec<u8>> {
        self.format.end(self.id(next, 0).unit)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Parsed, RawConfig, spead::SpeadConfig};
    use super::*;
    use daq_core::layout::Samples;

    const TIME: Timestamp = Timestamp {
        ns: 5_000_000_123,
        clock: Clock::Host,
    };

    fn frames(frame_bytes: usize) -> OutgoingFrames {
        OutgoingFrames {
            layout: Samples::default().layout(frame_bytes).unwrap(),
            frame_bytes,
            is_continuous: true,
            max_packet: 1472,
        }
    }

    fn raw(text: &str) -> Outgoing {
        let text = if text.contains("frame") {
            format!("header = 16\n{text}")
        } else {
            format!("header = 16\nsequence = {{ offset = 0, bytes = 4 }}\n{text}")
        };
        Outgoing(toml::from_str::<RawConfig>(&text).unwrap().build().unwrap())
    }

    fn spead(text: &str) -> Outgoing {
        let keys: SpeadConfig = toml::from_str(text).unwrap();
        Outgoing(keys.build().unwrap())
    }

    /// Builds the frame `frame` of `bytes`, parses its packets, and returns the payload by position.
    fn round_trip(format: &Outgoing, frame: u64, bytes: &[u8]) -> Vec<u8> {
        let builder = format.builder(&frames(bytes.len())).unwrap();
        let mut parser = match format.0.for_sending(&frames(bytes.len())).unwrap() {
            Some(sized) => sized,
            None => format.0.clone(),
        };
        let facts = parser.facts();
        let (numbering, layout, parts) = (facts.numbering, facts.layout, facts.parts as usize);
        let mut found = vec![0; bytes.len()];
        let first = numbering.after(0, frame * u64::from(builder.packets()));
        for i in 0..builder.packets() {
            let mut packet = Vec::new();
            builder.append_header(frame, i, TIME, &mut packet);
            packet.extend_from_slice(&bytes[builder.payload(i)]);
            packet.resize(packet.len() + builder.trailer_len(), 0);
            let Ok(Parsed::Data(data)) = parser.parse(&packet) else {
                panic!("{packet:?}");
            };
            let unit = numbering.distance(first.unit, data.unit).unsigned_abs() / numbering.step;
            let part =
                usize::try_from(unit).unwrap() * parts + (data.sub / layout.count()) as usize;
            let at = part * layout.unit_bytes + layout.range(data.sub % layout.count()).start;
            let payload = &packet[data.payload];
            found[at..at + payload.len()].copy_from_slice(payload);
        }
        found
    }

    #[test]
    fn built_packets_are_parsed_to_the_same_frame() {
        let bytes: Vec<u8> = (0..12_000_u32)
            .map(|i| u8::try_from(i % 251).unwrap())
            .collect();
        for format in [
            raw("payload = 1000\ntrailer = 4"),
            raw("payload = 1000\ntimestamp = { offset = 8, bytes = 8 }"),
            raw(
                "payload = 1024\nframe = { offset = 0, bytes = 8 }\npacket = { offset = 8, bytes = 4, first = 1 }\npackets = 12\n\
                 last = 736",
            ),
            raw(
                "payload = 1000\nframe = { offset = 0, bytes = 8, step = 3 }\nposition = { offset = 8, bytes = 4 }\npackets = 3\n\
                 part = { offset = 12, bytes = 2, values = [7, 5, 6, 9] }",
            ),
            spead(""),
            spead("address_bits = 48\nheap_step = 4\ntimestamp = { item = 0x1600 }"),
            spead("frame = { item = 0x1600, step = 12 }"),
            spead(
                "heap = 3000\nframe = { item = 0x1600, step = 8 }\npart = [{ item = 0x4101, count = 2 }, { item = 0x4103, values = [5, 0] }]\n\
                 timestamp = { item = 0x1601 }",
            ),
            spead("packet = 1000"),
            spead("heap = 12000\npacket = 1000\nfirst = 984"),
        ] {
            for frame in [0, 7, u64::from(u32::MAX)] {
                assert!(round_trip(&format, frame, &bytes) == bytes, "{format:?}");
            }
        }
    }

    #[test]
    fn detected_sizes_fill_packets_of_the_given_size() {
        let format = spead("timestamp = { item = 0x1600 }");
        let builder = format.builder(&frames(100_000)).unwrap();
        let size = |i: u32| {
            let mut header = Vec::new();
            builder.append_header(3, i, TIME, &mut header);
            header.len() + builder.payload(i).len()
        };
        assert_eq!((size(0), size(1), size(2)), (1472, 1472, 1472));
        assert!(size(builder.packets() - 1) <= 1472);
    }

    #[test]
    fn times_that_repeat_soon_are_warned_of() {
        let raw = |keys: &str| {
            raw(&format!(
                "payload = 1000\ntimestamp = {{ offset = 8, {keys} }}"
            ))
        };
        for (format, repeats) in [
            (spead("timestamp = { item = 0x1600 }"), true),
            (spead("timestamp = { item = 0x1600, bits = 40 }"), false),
            (
                spead("address_bits = 48\ntimestamp = { item = 0x1600, tick = \"1 us\" }"),
                true,
            ),
            (
                spead("address_bits = 48\ntimestamp = { item = 0x1600, tick = \"10 us\" }"),
                false,
            ),
            (spead(""), false),
            (raw("bytes = 8"), false),
            (raw("bytes = 4, tick = \"1 us\""), true),
            (raw("bytes = 4, tick = \"1 s\""), false),
            (raw("bytes = 4, tick = \"1 us\", bits = 32"), false),
            (
                raw("bytes = 4, seconds = { offset = 12, bytes = 4 }"),
                false,
            ),
            (raw("bytes = 4, seconds = { offset = 12, bytes = 2 }"), true),
        ] {
            let warnings = format.warnings();
            assert_eq!(!warnings.is_empty(), repeats, "{format:?}: {warnings:?}");
        }
    }

    #[test]
    fn sizes_that_do_not_divide_frames_are_refused() {
        let problem = |format: &Outgoing, bytes| format.builder(&frames(bytes)).err().unwrap();
        let found = problem(&raw("payload = 1000"), 1500);
        assert_eq!(found.key.as_deref(), Some("format.payload"));
        let numbered = "payload = 1000\npackets = 3\nframe = { offset = 0, bytes = 8 }\npacket = { offset = 8, bytes = 4 }";
        let found = problem(&raw(numbered), 4000);
        assert_eq!(found.key.as_deref(), Some("format.payload"));
        assert!(
            found.message.contains("3 packets with 3 kB"),
            "{}",
            found.message
        );
        let kept = raw("payload = 1000\nkeep = [{ offset = 8, bytes = 4, name = \"bunch\" }]");
        let found = problem(&kept, 1000);
        assert_eq!(found.key.as_deref(), Some("format.keep"));
        let found = problem(&spead("heap = 1000"), 1500);
        assert_eq!(found.key.as_deref(), Some("format.heap"));
        assert!(found.help.unwrap().contains("1500"));
    }
}
