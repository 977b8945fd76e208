//! The headers of a message: the metadata of its frame.
//!
//! ```text
//!   Nats-Msg-Id: RUN.SINK:NUMBER[:CHUNK]           the server stores each id once
//!   Daq-Run, Daq-Number, Daq-Window                the frames of a run are numbered from 0 without gaps
//!   Daq-After, Daq-First                           the last message of the stream before the run, and the frame after it
//!   Daq-Sequence, Daq-Epoch, Daq-Time, Daq-Clock   the frame in the ring of the sender
//!   Daq-Flags, Daq-Length, Daq-Packets, Daq-Arrived, Daq-Present, Daq-Layout, Daq-Kept-NAME
//!   Daq-Chunk: I/N, Daq-Offset                     a frame that is larger than a message
//! ```
//! All numbers are decimal, except `Daq-Present`: the bitmap of the packets that arrived, packet 0 first, as 16 hexadecimal
//! digits per 64 packets. The header is absent if all packets arrived.

use daq_core::frame::{Clock, Flags, FrameMeta, KeptFields, PacketSizes, Timestamp};
use daq_core::layout::{Layout, Order};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Maximum number of packets per frame, because a server accepts at most 64 KiB of headers.
pub const MAX_PACKETS_PER_FRAME: u32 = 1 << 17;
/// Number of bytes of a message that are reserved for headers, in addition to those of the bitmap.
pub const HEADER_BYTES: usize = 2048;
/// Maximum number of messages of a frame.
pub const MAX_CHUNKS: u32 = 1 << 16;

/// The clocks by name.
const CLOCKS: [Clock; 9] = [
    Clock::None,
    Clock::Host,
    Clock::Kernel,
    Clock::Sensor,
    Clock::Simulated,
    Clock::Recorded,
    Clock::SensorUtc,
    Clock::Hardware,
    Clock::RecordedUtc,
];

/// Which part of a frame a message contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Index of the message, below `count`.
    pub index: u32,
    /// Number of messages of the frame.
    pub count: u32,
    /// Offset of the payload in the frame.
    pub offset: u64,
}

/// The only message of a frame.
pub const WHOLE: Chunk = Chunk {
    index: 0,
    count: 1,
    offset: 0,
};

/// The metadata of a frame in the headers of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// The run of the sender; empty for messages of other programs.
    pub run: String,
    /// The frame's number in the run.
    pub number: u64,
    /// The sender's window: this frame was published after frame `number - window` was stored or refused.
    pub window: u64,
    /// Sequence number of the last message in the stream when the run began, or when the stream was created again during the
    /// run; `None` if the sender does not state it.
    pub after: Option<u64>,
    /// Number of the first frame of the run that was stored after this message.
    pub first: u64,
    /// The metadata that receivers adopt.
    pub meta: FrameMeta,
    /// Bitmap of the packets that arrived; empty if all of them did.
    pub present: Vec<u64>,
}

/// A header that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the header {name} is \"{value}\": {expected}")]
pub struct WireError {
    /// Name of the header.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What it must be.
    pub expected: &'static str,
}

/// Returns the id of a message of frame `number`. The server stores a message with the same id only once. Sequence numbers and
/// epochs of frames are no ids, because several frames of a run can have the same ones.
pub fn message_id(run: &str, number: u64, chunk: Chunk) -> String {
    let mut id = format!("{run}:{number}");
    if chunk.count > 1 {
        // Writing to a `String` cannot fail.
        let _ = write!(id, ":{}", chunk.index);
    }
    id
}

/// Passes each header of a message to `put`, except those that are equal for all messages of a sender.
pub fn encode(
    run: &str,
    (number, window): (u64, u64),
    meta: &FrameMeta,
    present: &[u64],
    kept: &[String],
    chunk: Chunk,
    mut put: impl FnMut(&str, String),
) {
    put("Nats-Msg-Id", message_id(run, number, chunk));
    put("Daq-Number", number.to_string());
    put("Daq-Window", window.to_string());
    put("Daq-Sequence", meta.sequence.to_string());
    put("Daq-Epoch", meta.epoch.to_string());
    if meta.timestamp.clock != Clock::None {
        put("Daq-Time", meta.timestamp.ns.to_string());
        put("Daq-Clock", meta.timestamp.clock.name().to_owned());
    }
    put("Daq-Flags", meta.flags.0.to_string());
    put("Daq-Length", meta.length.to_string());
    if meta.packets_per_frame > 0 {
        put("Daq-Packets", meta.packets_per_frame.to_string());
        put("Daq-Arrived", meta.arrived.to_string());
        if meta.arrived < meta.packets_per_frame {
            let words = (meta.packets_per_frame as usize).div_ceil(64);
            let mut text = String::with_capacity(words * 16);
            for word in present.iter().take(words) {
                let _ = write!(text, "{word:016x}");
            }
            put("Daq-Present", text);
        }
        let PacketSizes { first, rest, parts } = meta.packet_sizes;
        if meta.packets_per_frame > 1 && rest > 0 {
            put("Daq-Packet-Sizes", format!("{first},{rest},{parts}"));
        }
    }
    for (i, name) in kept.iter().enumerate() {
        if let Some(value) = meta.kept.get(i) {
            put(&format!("Daq-Kept-{name}"), value.to_string());
        }
    }
    if chunk.count > 1 {
        put("Daq-Chunk", format!("{}/{}", chunk.index, chunk.count));
        put("Daq-Offset", chunk.offset.to_string());
    }
}

struct Headers<F>(F);

impl<'a, F: Fn(&str) -> Option<&'a str>> Headers<F> {
    fn number(&self, name: &str, default: u64, max: u64) -> Result<u64, WireError> {
        let Some(value) = (self.0)(name) else {
            return Ok(default);
        };
        let number = value.parse().ok().filter(|number| *number <= max);
        number.ok_or_else(|| WireError {
            name: name.to_owned(),
            value: value.to_owned(),
            expected: "it must be a number in its range",
        })
    }

    fn word(&self, name: &str, default: u64) -> Result<u32, WireError> {
        let number = self.number(name, default, u32::MAX.into())?;
        Ok(u32::try_from(number).unwrap_or(u32::MAX))
    }

    fn wrong(&self, name: &str, expected: &'static str) -> WireError {
        WireError {
            name: name.to_owned(),
            value: (self.0)(name).unwrap_or_default().to_owned(),
            expected,
        }
    }
}

/// Reads the headers of a message that `get` returns. `payload` is the number of its payload bytes. A message without
/// daq's headers is a frame of its own; `number` is then its number.
pub fn decode<'a>(
    get: impl Fn(&str) -> Option<&'a str>,
    payload: usize,
    number: u64,
    kept: &[String],
) -> Result<(FrameHeader, Chunk), WireError> {
    let headers = Headers(get);
    let run = (headers.0)("Daq-Run").unwrap_or_default().to_owned();
    let number = headers.number("Daq-Number", number, u64::MAX >> 1)?;
    let chunk = match (headers.0)("Daq-Chunk") {
        None => WHOLE,
        Some(text) => {
            let parts = text.split_once('/');
            let parts = parts.and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
            let (index, count) = parts
                .filter(|(i, n)| i < n && *n <= MAX_CHUNKS)
                .ok_or_else(|| headers.wrong("Daq-Chunk", "it must be like 0/3"))?;
            Chunk {
                index,
                count,
                offset: headers.number("Daq-Offset", 0, u64::MAX >> 1)?,
            }
        }
    };
    let length = headers.number("Daq-Length", payload as u64, u64::MAX >> 1)?;
    let end = chunk.offset.checked_add(payload as u64);
    if end.is_none_or(|end| end > length || (chunk.count == 1 && end != length)) {
        return Err(headers.wrong("Daq-Length", "it differs from the size of the payload"));
    }
    if chunk.count > 1 && (payload == 0 || u64::from(chunk.count) > length) {
        let expected = "each message of a frame must have at least one byte";
        return Err(headers.wrong("Daq-Chunk", expected));
    }
    let clock = (headers.0)("Daq-Clock");
    let clock = match clock {
        None => Clock::None,
        Some(name) => *CLOCKS
            .iter()
            .find(|clock| clock.name() == name)
            .ok_or_else(|| headers.wrong("Daq-Clock", "it must be the name of a clock"))?,
    };
    // Frames of a kernel consist of no packets. The message of another program is one packet.
    let packets = headers.number(
        "Daq-Packets",
        run.is_empty().into(),
        MAX_PACKETS_PER_FRAME.into(),
    )?;
    let arrived = headers.number("Daq-Arrived", packets, packets)?;
    let present = match (headers.0)("Daq-Present") {
        None if arrived < packets => {
            return Err(headers.wrong("Daq-Present", "it is required, because packets are missing"));
        }
        None => Vec::new(),
        Some(text) => bitmap(text, packets, arrived).ok_or_else(|| {
            headers.wrong(
                "Daq-Present",
                "it must have 16 hexadecimal digits per 64 packets",
            )
        })?,
    };
    let packet_sizes = match (headers.0)("Daq-Packet-Sizes") {
        None => PacketSizes::default(),
        Some(text) => sizes(text).ok_or_else(|| {
            let expected = "it must be three numbers like 1416,1432,1";
            headers.wrong("Daq-Packet-Sizes", expected)
        })?,
    };
    let mut fields = KeptFields::default();
    for (i, name) in kept.iter().enumerate() {
        let name = format!("Daq-Kept-{name}");
        if (headers.0)(&name).is_some() {
            fields.set(i, headers.number(&name, 0, u64::MAX)?);
        }
    }
    let meta = FrameMeta {
        sequence: headers.number("Daq-Sequence", number, u64::MAX)?,
        epoch: headers.word("Daq-Epoch", 0)?,
        flags: Flags(headers.word("Daq-Flags", 0)?),
        timestamp: Timestamp {
            ns: headers.number("Daq-Time", 0, u64::MAX)?,
            clock,
        },
        length: usize::try_from(length).unwrap_or(usize::MAX),
        packets_per_frame: u32::try_from(packets).unwrap_or(u32::MAX),
        arrived: u32::try_from(arrived).unwrap_or(u32::MAX),
        packet_sizes,
        kept: fields,
    };
    let window = headers.number("Daq-Window", 1, 1 << 32)?;
    let after = match (headers.0)("Daq-After") {
        None => None,
        Some(_) => Some(headers.number("Daq-After", 0, u64::MAX)?),
    };
    let header = FrameHeader {
        run,
        number,
        window,
        after,
        first: headers.number("Daq-First", 0, u64::MAX >> 1)?,
        meta,
        present,
    };
    Ok((header, chunk))
}

/// Reads the sizes of packets.
fn sizes(text: &str) -> Option<PacketSizes> {
    let mut numbers = text.split(',').map(|number| number.parse().ok());
    let sizes = PacketSizes {
        first: numbers.next()??,
        rest: numbers.next()??,
        parts: numbers.next()??,
    };
    numbers.next().is_none().then_some(sizes)
}

/// Reads a bitmap; `None` if it does not belong to `packets` packets of which `arrived` arrived.
fn bitmap(text: &str, packets: u64, arrived: u64) -> Option<Vec<u64>> {
    let bytes = text.as_bytes();
    if !text.is_ascii() || bytes.len() as u64 != packets.div_ceil(64) * 16 {
        return None;
    }
    let words = bytes.chunks(16).map(|digits| {
        let digits = str::from_utf8(digits).ok()?;
        u64::from_str_radix(digits, 16).ok()
    });
    let words: Vec<u64> = words.collect::<Option<_>>()?;
    let count: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
    let used = packets % 64;
    let has_further = used > 0 && words.last().is_some_and(|last| last >> used != 0);
    (count == arrived && !has_further).then_some(words)
}

/// Returns the text of the header `Daq-Layout`: `layout` as JSON on one line.
pub fn layout_header(layout: &Layout) -> String {
    let mut described = json!({
        "type": layout.scalar.name(),
        "complex": layout.complex,
        "channels": layout.channels,
        "points": layout.points,
        "order": match layout.order {
            Order::Interleaved => "interleaved",
            Order::Planar => "planar",
        },
        "axis": layout.axis,
    });
    if let Some(rate) = layout.frame_rate {
        described["frame_rate"] = rate.into();
    }
    described.to_string()
}

/// Relative difference of two rates that are equal, because a rate in a configuration is rounded.
const RATE_TOLERANCE: f64 = 1e-6;

/// Returns how the layout `sent` of a sender's frames differs from the layout `own` that is expected, and the fix; `None` if samples
/// have the same places. Both are texts of [`layout_header`]. `length` is the size of the sender's frame in bytes.
pub fn layout_difference(own: &str, sent: &str, length: usize) -> Option<String> {
    let parse = |text| serde_json::from_str::<Value>(text).ok();
    let (own, sent) = (parse(own)?, parse(sent)?);
    // The places of interleaved samples do not depend on their number.
    let is_planar = sent["order"] == "planar" && sent["channels"] != 1;
    let keys = ["type", "complex", "channels", "order", "points"];
    let mut differences: Vec<_> = keys
        .iter()
        .filter(|key| **key != "order" || sent["channels"] != 1)
        .filter(|key| **key != "points" || is_planar)
        .filter(|key| sent.get(**key).is_some_and(|value| *value != own[**key]))
        .map(|key| format!("`{key}` is {}, not {}", sent[*key], own[*key]))
        .collect();
    let rate = |layout: &Value| layout["axis"]["rate"].as_f64();
    if let (Some(own), Some(sent)) = (rate(&own), rate(&sent))
        && (own - sent).abs() > RATE_TOLERANCE * sent.abs()
    {
        differences.push(format!("`rate` is {sent} Hz, not {own} Hz"));
    }
    (!differences.is_empty()).then(|| {
        format!(
            "the sender's frames have another layout: {}; set `samples` of the source as on the sending host, and slot = \
             \"{length} B\" for the ring",
            differences.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::layout::{Axis, Scalar};

    #[test]
    fn layouts_with_other_places_of_samples_differ() {
        let layout = |scalar, channels, points, order| {
            layout_header(&Layout {
                scalar,
                complex: false,
                channels,
                points,
                order,
                axis: Axis::Time { rate: None },
                frame_rate: None,
                is_contiguous: true,
            })
        };
        let sent = layout(Scalar::Float64, 2, 262, Order::Planar);
        assert_eq!(layout_difference(&sent, &sent, 4192), None);
        let other = layout(Scalar::Float32, 1, 1024, Order::Interleaved);
        let found = layout_difference(&other, &sent, 4192).unwrap();
        for part in [
            "`type` is \"float64\", not \"float32\"",
            "`channels` is 2, not 1",
            "`order` is \"planar\", not \"interleaved\"",
            "`points` is 262, not 1024",
            "slot = \"4192 B\"",
        ] {
            assert!(found.contains(part), "{found}");
        }
        // Interleaved samples may be in longer slots.
        let short = layout(Scalar::Int16, 4, 100, Order::Interleaved);
        let long = layout(Scalar::Int16, 4, 512, Order::Interleaved);
        assert_eq!(layout_difference(&long, &short, 800), None);
        assert_eq!(layout_difference(&long, "no JSON", 800), None);
    }

    #[test]
    fn layouts_with_other_rates_differ() {
        let layout = |rate| {
            layout_header(&Layout {
                scalar: Scalar::Int16,
                complex: false,
                channels: 1,
                points: 32,
                order: Order::Interleaved,
                axis: Axis::Time { rate },
                frame_rate: None,
                is_contiguous: true,
            })
        };
        let (own, sent) = (layout(Some(1e6)), layout(Some(2e6)));
        let found = layout_difference(&own, &sent, 64).unwrap();
        assert!(
            found.contains("`rate` is 2000000 Hz, not 1000000 Hz"),
            "{found}"
        );
        assert_eq!(layout_difference(&own, &own, 64), None);
        assert_eq!(layout_difference(&layout(None), &sent, 64), None);
        assert_eq!(layout_difference(&own, &layout(None), 64), None);
    }

    use proptest::prelude::*;
    use std::collections::HashMap;

    fn encoded(
        meta: &FrameMeta,
        present: &[u64],
        kept: &[String],
        chunk: Chunk,
    ) -> HashMap<String, String> {
        let mut headers = HashMap::from([("Daq-Run".to_owned(), "r.s".to_owned())]);
        encode("r.s", (7, 64), meta, present, kept, chunk, |name, value| {
            headers.insert(name.to_owned(), value);
        });
        headers
    }

    fn decoded(
        headers: &HashMap<String, String>,
        payload: usize,
        kept: &[String],
    ) -> Result<(FrameHeader, Chunk), WireError> {
        decode(
            |name| headers.get(name).map(String::as_str),
            payload,
            3,
            kept,
        )
    }

    proptest! {
        #[test]
        fn metadata_survives_the_headers(
            sequence: u64, epoch: u32, ns: u64, length: u16,
            clock in 1_u8..8, packets in 1_u32..200, lost in prop::collection::vec(any::<bool>(), 200), value: u64,
        ) {
            let mut present = vec![0; (packets as usize).div_ceil(64)];
            let mut arrived = 0;
            for i in (0..packets).filter(|i| !lost[*i as usize]) {
                present[i as usize / 64] |= 1 << (i % 64);
                arrived += 1;
            }
            let kept = ["id".to_owned(), "gain".to_owned()];
            let meta = FrameMeta {
                sequence, epoch, arrived, packets_per_frame: packets,
                timestamp: Timestamp { ns, clock: Clock::from_u8(clock) },
                length: length.into(),
                flags: Flags::INCOMPLETE,
                kept: KeptFields::default().with(1, value),
                packet_sizes: PacketSizes { first: 8, rest: 9, parts: 1 },
            };
            let meta = if packets > 1 { meta } else { FrameMeta { packet_sizes: PacketSizes::default(), ..meta } };
            let headers = encoded(&meta, &present, &kept, WHOLE);
            prop_assert_eq!(&headers["Nats-Msg-Id"], "r.s:7");
            let (found, chunk) = decoded(&headers, length.into(), &kept).unwrap();
            let expected = if arrived < packets { present } else { Vec::new() };
            prop_assert_eq!((found.meta, found.number, found.window, chunk), (meta, 7, 64, WHOLE));
            prop_assert_eq!(found.present, expected);
        }
    }

    #[test]
    fn chunks_have_ids_of_their_own() {
        let meta = FrameMeta::whole(5, 10);
        let chunk = Chunk {
            index: 1,
            count: 3,
            offset: 4,
        };
        let headers = encoded(&meta, &[], &[], chunk);
        assert_eq!(headers["Nats-Msg-Id"], "r.s:7:1");
        assert_eq!(decoded(&headers, 4, &[]).unwrap().1, chunk);
        assert!(
            decoded(&headers, 7, &[]).is_err(),
            "beyond the end of the frame"
        );
    }

    /// The frames of a kernel consist of no packets, so the flag alone shows that they are incomplete.
    #[test]
    fn frames_without_packets_keep_their_flag() {
        let meta = FrameMeta {
            sequence: 5,
            length: 10,
            flags: Flags::INCOMPLETE,
            ..FrameMeta::default()
        };
        let headers = encoded(&meta, &[], &[], WHOLE);
        assert_eq!(decoded(&headers, 10, &[]).unwrap().0.meta, meta);
    }

    #[test]
    fn messages_of_other_programs_are_frames() {
        let (found, chunk) = decoded(&HashMap::new(), 12, &[]).unwrap();
        assert_eq!(
            (found.run.as_str(), found.number, found.meta.sequence),
            ("", 3, 3)
        );
        assert_eq!(
            (
                found.meta.length,
                found.meta.packets_per_frame,
                found.meta.arrived
            ),
            (12, 1, 1)
        );
        assert_eq!(chunk, WHOLE);
    }

    #[test]
    fn wrong_headers_are_named() {
        for (name, value) in [
            ("Daq-Number", "-1"),
            ("Daq-Chunk", "3/3"),
            ("Daq-Chunk", "0/99999999"),
            ("Daq-Chunk", "0/13"),
            ("Daq-After", "x"),
            ("Daq-Length", "11"),
            ("Daq-Clock", "sundial"),
            ("Daq-Epoch", "4294967296"),
            ("Daq-Arrived", "2"),
        ] {
            let headers = HashMap::from([(name.to_owned(), value.to_owned())]);
            let error = decoded(&headers, 12, &[]).unwrap_err();
            assert_eq!((error.name.as_str(), error.value.as_str()), (name, value));
        }
        let short = [
            ("Daq-Packets", "65"),
            ("Daq-Arrived", "1"),
            ("Daq-Present", "0000000000000001"),
        ];
        let headers = short
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        assert_eq!(decoded(&headers, 12, &[]).unwrap_err().name, "Daq-Present");
    }
}
