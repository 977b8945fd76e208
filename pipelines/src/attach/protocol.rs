//! Requests and replies. `docs/src/reference/attach.md` describes them.

use daq_core::frame::{Flags, FrameMeta, PacketSizes, Present};
use daq_core::layout::{ArrayType, Axis, Layout, Order, Scalar};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Maximum number of characters of the text that a client gives for the log.
const MAX_TEXT: usize = 64;
/// Maximum number of ranges of missing packets in a description of a frame.
const MAX_RANGES: usize = 1000;

/// What a client requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Request {
    /// Describe the pipeline and its rings.
    List {},
    /// Attach to a ring.
    Attach(Attach),
    /// Copy the newest frame of a ring.
    Tap {
        ring: String,
        /// The newest frame that the client has.
        after: Option<u64>,
    },
    /// Produce the frames of a source.
    Produce { source: String },
}

/// The request to attach to a ring.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Attach {
    pub(super) ring: String,
    #[serde(default)]
    pub(super) guarantee: bool,
    #[serde(default)]
    pub(super) at: At,
    #[serde(default)]
    pub(super) client: String,
}

/// Where reading begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum At {
    /// With the next frame that is published.
    #[default]
    Next,
    /// With the newest frame.
    Newest,
    /// With the oldest frame that is not about to be overwritten.
    Oldest,
}

impl At {
    /// Returns the number of the first frame in a ring with `slots` slots.
    pub(super) const fn first(self, published: u64, slots: u64) -> u64 {
        match self {
            Self::Next => published,
            Self::Newest => published.saturating_sub(1),
            Self::Oldest => published.saturating_sub(slots - slots.div_ceil(4)),
        }
    }
}

/// The counts that an attached client reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    pub(super) position: u64,
    pub(super) read: u64,
    #[serde(default)]
    pub(super) overrun: u64,
    #[serde(default)]
    pub(super) discarded: u64,
    /// Frames before this one can be overwritten; `None` from a client without a guarantee.
    #[serde(default)]
    pub(super) retired: Option<u64>,
}

/// A packet of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    Request(Request),
    Progress(Progress),
}

impl Packet {
    /// Parses a packet; the error is a reply.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Report {
            progress: Progress,
        }
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| format!("the packet is not a JSON object: {error}"))?;
        let parsed = if value.get("progress").is_some() {
            serde_json::from_value(value).map(|Report { progress }| Self::Progress(progress))
        } else {
            serde_json::from_value(value).map(Self::Request)
        };
        parsed.map_err(|error| format!("the packet is not a request: {error}"))
    }
}

/// Shortens a client's text and replaces its control characters, so that it can be logged.
pub(super) fn shown(text: &str) -> String {
    let letters = text.chars().take(MAX_TEXT);
    letters
        .map(|letter| if letter.is_control() { '?' } else { letter })
        .collect()
}

/// Returns the reply of a request that failed.
pub(super) fn refusal(error: &str) -> Value {
    json!({ "ok": false, "error": error })
}

/// Describes the bytes of a frame.
pub(super) fn layout(layout: &Layout, is_maximum: bool) -> Value {
    let array = ArrayType::of(layout);
    let mut described = json!({
        "type": layout.scalar.name(),
        "complex": layout.complex,
        "channels": layout.channels,
        "points": layout.points,
        "order": match layout.order {
            Order::Interleaved => "interleaved",
            Order::Planar => "planar",
        },
        "dtype": array.dtype,
        "shape": array.shape,
        "axes": array.axes,
        "axis": layout.axis,
        "frame_bytes": layout.frame_bytes(),
        "maximum": is_maximum,
    });
    if let Some(rate) = layout.frame_rate {
        described["frame_rate"] = rate.into();
    }
    described
}

/// Returns the layout that a daemon has described; `None` if it is unknown.
pub(super) fn received_layout(described: &Value) -> Option<Layout> {
    #[derive(Deserialize)]
    struct Described {
        r#type: Scalar,
        complex: bool,
        channels: u32,
        points: usize,
        order: Order,
        axis: Axis,
        frame_rate: Option<f64>,
    }
    let described = Described::deserialize(described).ok()?;
    Some(Layout {
        scalar: described.r#type,
        complex: described.complex,
        channels: described.channels,
        points: described.points,
        order: described.order,
        axis: described.axis,
        frame_rate: described.frame_rate,
        is_contiguous: true,
    })
}

/// Describes a frame of a ring. `kept` are the names of the ring's kept fields.
pub(super) fn frame(index: u64, meta: &FrameMeta, present: Present<'_>, kept: &[String]) -> Value {
    let flags = [
        (Flags::INCOMPLETE, "incomplete"),
        (Flags::EPOCH, "epoch"),
        (Flags::TRUNCATED, "truncated"),
        (Flags::SUSPECT, "suspect"),
    ];
    let flags = flags
        .into_iter()
        .filter(|(flag, _)| meta.flags.contains(*flag));
    let fields = kept.iter().enumerate();
    let fields = fields.filter_map(|(i, name)| Some((name.clone(), meta.kept.get(i)?.into())));
    let mut described = json!({
        "index": index,
        "sequence": meta.sequence,
        "epoch": meta.epoch,
        "time_ns": meta.timestamp.ns,
        "clock": meta.timestamp.clock.name(),
        "length": meta.length,
        "flags": flags.map(|(_, name)| name).collect::<Vec<_>>(),
        "kept": fields.collect::<Map<_, _>>(),
    });
    if present.packets_per_frame() > 0 {
        described["packets"] = present.packets_per_frame().into();
        described["arrived"] = meta.arrived.into();
        let missing: Vec<_> = present.missing().take(MAX_RANGES).collect();
        described["missing"] = json!(missing);
        if meta.packet_sizes != PacketSizes::default() {
            described["sizes"] = json!(meta.packet_sizes);
        }
    }
    described
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::layout::Samples;
    use proptest::prelude::*;

    #[test]
    fn packets_are_parsed() {
        let parse = |text: &str| Packet::parse(text.as_bytes());
        assert_eq!(
            parse(r#"{"request":"list"}"#),
            Ok(Packet::Request(Request::List {}))
        );
        let attach = Attach {
            ring: "raw".to_owned(),
            guarantee: false,
            at: At::Oldest,
            client: String::new(),
        };
        assert_eq!(
            parse(r#"{"request":"attach","ring":"raw","at":"oldest"}"#),
            Ok(Packet::Request(Request::Attach(attach)))
        );
        let progress = Progress {
            position: 7,
            read: 3,
            ..Progress::default()
        };
        assert_eq!(
            parse(r#"{"progress":{"position":7,"read":3}}"#),
            Ok(Packet::Progress(progress))
        );
        for (text, why) in [
            ("", "not a JSON object"),
            ("[]", "not a request"),
            (r#"{"request":"stop"}"#, "unknown variant `stop`, expected"),
            (r#"{"request":"list","x":1}"#, "unknown field `x`"),
            (r#"{"request":"tap"}"#, "missing field `ring`"),
            (r#"{"progress":{"position":-1,"read":0}}"#, "invalid value"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Packet::parse(&bytes);
        }

        #[test]
        fn damaged_packets_are_parsed_or_rejected(at in 0..76_usize, byte: u8) {
            let mut bytes = *br#"{"progress":{"position":1200,"read":1150,"overrun":40,"discarded":10,"x":0}}"#;
            bytes[at] = byte;
            let _ = Packet::parse(&bytes);
        }
    }

    #[test]
    fn texts_of_clients_are_made_printable() {
        assert_eq!(shown("a\x1b[31m\nb"), "a?[31m?b");
        assert_eq!(shown(&"x".repeat(1000)).len(), MAX_TEXT);
    }

    #[test]
    fn reading_begins_inside_the_ring() {
        assert_eq!(At::Next.first(100, 8), 100);
        assert_eq!(At::Newest.first(100, 8), 99);
        assert_eq!(At::Oldest.first(100, 8), 94);
        assert_eq!(At::Oldest.first(3, 8), 0);
        assert_eq!(At::Oldest.first(100, 2), 99);
    }

    #[test]
    fn layouts_name_their_axes() {
        let samples = Samples {
            scalar: Scalar::Float32,
            channels: 2,
            rate: Some(daq_core::units::Frequency(1e6)),
            ..Samples::default()
        };
        let of_frame = samples.layout(800).unwrap();
        let described = layout(&of_frame, false);
        let received = received_layout(&described).unwrap();
        assert_eq!((received.points, received.channels), (100, 2));
        assert_eq!(described["dtype"], "<f4");
        assert_eq!(described["shape"], json!([100, 2]));
        assert_eq!(described["axis"], json!({ "rate": 1e6, "kind": "time" }));
    }
}
