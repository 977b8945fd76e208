//! `raw`: a fixed header that contains numbers, a fixed payload, and optionally a fixed trailer.
//!
//! ```text
//!   | header: ... sequence ... timestamp ... | payload | trailer |
//! ```
//! Either a packet has a sequence number and is one unit, or it has the number of its frame, and the frame is the unit
//! ([`frames`]). Packets that do not meet the conditions of `match` are control packets ([`rules`]), and so are empty datagrams,
//! with which some senders end a stream.

mod config;
mod frames;
mod range;
pub(crate) mod recognise;
mod rules;
mod time;

use super::field::{Endian, Field};
use super::keep::Keep;
use super::{
    Build, Control, Flow, FormatEntry, FormatFacts, Numbering, Packet, PacketClock, PacketFormat,
    PacketLayout, Parse, Parsed, Reject, SourceOfFormat, Split, TimeScale, section,
};
pub use config::RawConfig;
use daq_core::config::Problem;
use daq_core::frame::KeptFields;
use daq_core::ledger::Counts;
use daq_core::reorder::PacketId;
use frames::{FrameNumbers, Place};
use range::NumberRange;
use rules::Rule;
use schemars::JsonSchema as _;
use time::HeaderTime;

/// The registry entry of this format.
pub(super) const ENTRY: FormatEntry = FormatEntry {
    name: "raw",
    summary: "Packets with a header of fixed size that contains a sequence number or a frame number, and a payload of fixed size",
    example: r#"kind     = "raw"
header   = "16 B"        # before the payload of each packet
payload  = "8 KiB"       # of each packet
sequence = { offset = 0, bytes = 8, endian = "big" }
"#,
    schema: RawConfig::json_schema,
    parse: |table, diagnostics| section::finish(table, diagnostics, RawConfig::build),
    recognise: recognise::RECOGNISERS,
};

/// A packet format whose fields are all at fixed offsets.
#[derive(Clone, Debug)]
pub struct Raw {
    header: usize,
    payload: usize,
    trailer: usize,
    sequence: Field,
    step: u64,
    /// Set if the number wraps at the end of a range, instead of its bits.
    range: Option<NumberRange>,
    /// Set if the range is a default: why.
    range_note: Option<&'static str>,
    time: Option<HeaderTime>,
    /// Set if units are frames.
    frames: Option<Box<FrameNumbers>>,
    rules: Box<[Rule]>,
    keep: Keep<Field>,
    /// A note about numbers whose byte order is not configured.
    order_note: Option<Box<str>>,
}

impl Raw {
    /// Creates a format of packets with `header`, `payload` and `trailer` bytes, numbered by the field `sequence` with
    /// increment `step`.
    ///
    /// `sequence` must be inside the header; otherwise every packet is rejected.
    pub fn new(header: usize, payload: usize, trailer: usize, sequence: Field, step: u64) -> Self {
        Self {
            header,
            payload,
            trailer,
            sequence,
            step: step.max(1),
            range: None,
            range_note: None,
            time: None,
            frames: None,
            rules: Box::default(),
            keep: Keep::default(),
            order_note: None,
        }
    }

    /// Adds a timestamp field in the header, whose ticks have the time scale `scale`.
    #[must_use]
    pub fn timestamped(self, field: Field, scale: TimeScale) -> Self {
        Self {
            time: Some(HeaderTime::new(field, scale)),
            ..self
        }
    }

    /// Returns the size of a whole packet in bytes.
    const fn len(&self) -> usize {
        self.header + self.payload + self.trailer
    }

    #[inline]
    fn check(&self, header: &[u8], length: usize) -> Result<Parsed, Reject> {
        if !self.rules.iter().all(|rule| rule.holds(header, length)) {
            return Ok(Parsed::Control(Control::Beside));
        }
        match &self.frames {
            None if length != self.len() => Err(self.wrong_length(self.payload, length)),
            None => {
                let id = PacketId::of(self.unit(header, "sequence")?);
                self.data(id, self.payload, header)
            }
            Some(frames) => {
                let id = frames.id(self.unit(header, "frame")?, header)?;
                let payload = frames.payload_of(id.sub);
                if length != self.header + payload + self.trailer {
                    return Err(self.wrong_length(payload, length));
                }
                self.data(id, payload, header)
            }
        }
    }

    #[inline]
    fn data(&self, id: PacketId, payload: usize, header: &[u8]) -> Result<Parsed, Reject> {
        let timestamp = match &self.time {
            Some(time) => Some(time.read(header).ok_or_else(|| self.short(header))?),
            None => None,
        };
        Ok(Parsed::Data(Packet {
            unit: id.unit,
            sub: id.sub,
            payload: self.header..self.header + payload,
            timestamp,
        }))
    }

    #[cold]
    fn wrong_length(&self, payload: usize, got: usize) -> Reject {
        Reject::Length {
            expected: self.header + payload + self.trailer,
            got,
        }
    }

    /// Returns the number of the unit of a packet. `key` is the key that describes the number.
    #[inline]
    fn unit(&self, header: &[u8], key: &'static str) -> Result<u64, Reject> {
        let number = self.read(&self.sequence, header)?;
        match &self.range {
            None => Ok(number),
            Some(range) => range.continued(number, key),
        }
    }

    #[inline]
    fn read(&self, field: &Field, header: &[u8]) -> Result<u64, Reject> {
        field.read(header).ok_or_else(|| self.short(header))
    }

    /// Returns why a field cannot be read.
    #[cold]
    const fn short(&self, header: &[u8]) -> Reject {
        Reject::Short {
            need: self.header,
            got: header.len(),
        }
    }

    /// Writes the number and the timestamp into the first `header` bytes of `packet`. The other header
    /// bytes are unchanged. A shorter `packet` is not modified.
    pub fn write_header(&self, unit: u64, timestamp: Option<u64>, packet: &mut [u8]) {
        let Some(header) = packet.get_mut(..self.header) else {
            return;
        };
        let number = self.range.as_ref().map_or(unit, |range| range.number(unit));
        self.sequence.write(header, number);
        if let (Some(time), Some(ticks)) = (&self.time, timestamp) {
            time.write(header, ticks);
        }
    }

    /// The number of a unit has the bit width of its field.
    fn numbering(&self) -> Numbering {
        // Numbers of a range are continued.
        let bits = self.range.as_ref().map_or(self.sequence.bits(), |_| 64);
        let step = self.step;
        let Some(frames) = &self.frames else {
            return Numbering {
                width: bits,
                step,
                packets_per_unit: 1,
            };
        };
        let width = match frames.place {
            Place::Remainder if bits < 64 => bits.saturating_sub(frames.packets.ilog2()).max(1),
            _ => bits,
        };
        let packets_per_unit = frames.packets * frames.parts.count();
        Numbering {
            width,
            step,
            packets_per_unit,
        }
    }

    fn number_advice(&self) -> (&'static str, &'static str) {
        match &self.frames {
            Some(frames) if !matches!(frames.place, Place::Remainder) => (
                "format.frame",
                "use a wider header field as `frame`; otherwise compare `delivered` with the sender's own count",
            ),
            _ => (
                "format.sequence",
                "use a wider header field as `sequence`, or a timestamp with `step` set to its ticks per packet; otherwise \
                 compare `delivered` with the sender's own count",
            ),
        }
    }

    fn packet_layout(&self) -> PacketLayout {
        let unit_bytes = self
            .frames
            .as_ref()
            .map_or(self.payload, |frames| frames.part_bytes());
        let first = self.payload.min(unit_bytes);
        PacketLayout {
            unit_bytes,
            first,
            rest: self.payload,
        }
    }

    fn notes(&self) -> Vec<String> {
        let notes = self
            .order_note
            .as_deref()
            .into_iter()
            .chain(self.range_note);
        notes.map(str::to_owned).collect()
    }
}

impl Parse for Raw {
    #[inline]
    fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject> {
        let length = header.len().saturating_add(rest);
        if header.len() < self.header && length >= self.header {
            return Ok(Split::Longer {
                header: self.header,
            });
        }
        self.check(header, length).map(Split::Whole)
    }

    #[inline]
    fn parse(&mut self, packet: &[u8]) -> Result<Parsed, Reject> {
        self.check(packet, packet.len())
    }

    fn packet_len(&self, bytes: &[u8]) -> Option<usize> {
        let Some(frames) = &self.frames else {
            return Some(self.len());
        };
        let header = bytes.get(..self.header)?;
        let number = self.sequence.read(header)?;
        let payload = frames
            .id(number, header)
            .map_or(self.payload, |id| frames.payload_of(id.sub));
        Some(self.header + payload + self.trailer)
    }

    #[inline]
    fn header_len(&self, _: u32) -> usize {
        self.header
    }

    #[inline]
    fn clock(&self) -> Option<PacketClock<'_>> {
        let time = self.time.as_ref()?;
        Some(PacketClock {
            scale: time.scale,
            wrap: time.wrap.as_ref(),
        })
    }

    fn use_flow(&mut self, flow: &Flow) -> Result<(), Reject> {
        if let Some(frames) = &mut self.frames {
            frames.parts.use_flow(flow);
        }
        Ok(())
    }

    fn read_kept(&self, packet: &[u8]) -> KeptFields {
        self.keep.read(|field| field.read(packet))
    }
}

impl Build for Raw {
    /// Header bytes that belong to no field are zero.
    fn build_header(
        &self,
        unit: u64,
        sub: u32,
        timestamp: Option<u64>,
        _: usize,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        out.resize(start + self.header, 0);
        let header = &mut out[start..];
        self.rules.iter().for_each(|rule| rule.write(header));
        match &self.frames {
            None => self.write_header(unit, timestamp, header),
            Some(frames) => {
                self.write_header(frames.number(unit, sub), timestamp, header);
                frames.write(sub, header);
            }
        }
    }
}

impl PacketFormat for Raw {
    fn facts(&self) -> FormatFacts {
        let facts = FormatFacts {
            number_advice: self.number_advice(),
            header: Some(self.header),
            trailer: self.trailer,
            unit_key: "payload",
            kept: self.keep.names(),
            notes: self.notes(),
            ..FormatFacts::new(self.numbering(), self.packet_layout())
        };
        let Some(frames) = &self.frames else {
            return facts;
        };
        FormatFacts {
            parts: frames.parts.count(),
            part_names: frames.parts.names(),
            has_parts_by_address: frames.parts.flow_needs().origin().is_some(),
            flow: frames.parts.flow_needs(),
            unit_key: "frame",
            is_unit_frame: true,
            has_frame_times: self.time.is_some(),
            ..facts
        }
    }

    fn use_source(&mut self, source: &SourceOfFormat<'_>) -> Result<(), Problem> {
        match &mut self.frames {
            Some(frames) => frames.parts.use_origins(source.origins),
            None => Ok(()),
        }
    }

    fn start(&mut self, _: &str, _: &Counts) {
        if let Some(time) = &mut self.time {
            time.restart();
        }
        self.range = self.range.as_ref().map(NumberRange::restarted);
    }
}

#[cfg(test)]
mod tests;
