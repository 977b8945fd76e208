//! What a packet format implements, and the registry of formats.

use super::outgoing::Outgoing;
use super::parts::Origins;
use super::{
    Control, Flow, Numbering, Origin, PacketLayout, Parsed, Reject, Selector, Split, TimeScale,
    TimeWrap, raw, spead, vdif, vita49,
};
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::Registered;
use daq_core::frame::{KeptFields, Timestamp};
use daq_core::layout::Samples;
use daq_core::ledger::{CountSet, Counts};
use daq_core::outgoing::{OutgoingFormat, OutgoingFormatEntry, OutgoingFrames};
use daq_core::recognise::Recogniser;
use daq_core::reorder::Geometry;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Instant;

/// Limits of the datagrams stored during detection: number of frames, bytes in total, and minimum bytes per thread.
const HOLD_FRAMES: usize = 6;
const MAX_HOLD: usize = 256 << 20;
const MIN_HOLD: usize = 4 << 20;

/// A packet format that is ready to parse. Methods that are called for each packet ([`parse_split`](Self::parse_split),
/// [`parse`](Self::parse), [`header_len`](Self::header_len), [`time_scale`](Self::time_scale)) must not allocate. No method
/// may panic.
pub trait PacketFormat: Debug + Send + Sync {
    /// Parses a datagram of which only the first `header.len()` bytes are in `header`; `rest` more bytes follow.
    ///
    /// The payload range counts from the start of the packet. If the payload begins before `header.len()`, its first
    /// bytes are in `header`.
    fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject>;

    /// Parses one whole datagram.
    #[inline]
    fn parse(&mut self, packet: &[u8]) -> Result<Parsed, Reject> {
        match self.parse_split(packet, 0)? {
            Split::Whole(parsed) => Ok(parsed),
            Split::Longer { header } => Err(Reject::Short {
                need: header,
                got: packet.len(),
            }),
        }
    }

    /// Returns the size in bytes of the packet at the start of `bytes`, including its header, or `None` if it cannot be
    /// determined.
    fn packet_len(&self, bytes: &[u8]) -> Option<usize>;

    /// Returns the expected header size in bytes of packet `sub`: exact, or the size in the last packet of the same
    /// kind.
    fn header_len(&self, sub: u32) -> usize;

    /// Returns the header size in bytes if it is the same in every packet.
    fn fixed_header_len(&self) -> Option<usize> {
        None
    }

    /// Returns the number of bytes after the payload of every packet.
    fn trailer_len(&self) -> usize {
        0
    }

    /// Returns how units are numbered.
    fn numbering(&self) -> Numbering;

    /// Returns the key and the help of the warning that the [numbers](Self::numbering) of packets repeat too soon to detect
    /// every loss.
    fn number_advice(&self) -> (&'static str, &'static str) {
        ("format", "compare `delivered` with the sender's own count")
    }

    /// Returns how the payload of a unit is divided into packets. If a unit has [parts](Self::parts), returns the layout of
    /// one part.
    fn packet_layout(&self) -> PacketLayout;

    /// Returns the number of parts of a unit, which have the same layout. Packet `i` of part `p` has the index
    /// `p * packet_layout().count() + i`. Only units that are frames can have more than one part.
    fn parts(&self) -> u32 {
        1
    }

    /// Returns which datagrams belong to the streams of this source, if several sources can receive from one port. Other datagrams are
    /// then not parsed.
    fn selector(&self) -> Option<Selector> {
        None
    }

    /// Uses the addresses that the source's keys name, if they distinguish the parts and the format does not list them.
    fn use_origins(&mut self, origins: &Origins) -> Result<(), Problem> {
        let _ = origins;
        Ok(())
    }

    /// Returns the names of the parts for messages and metrics, such as the sender's address; by default their indices.
    fn part_names(&self) -> Vec<String> {
        (0..self.parts()).map(|part| part.to_string()).collect()
    }

    /// Returns the key that sets the size of a unit, which also names a unit in messages.
    fn unit_key(&self) -> &'static str {
        "packet"
    }

    /// Returns which address of packets determines their part.
    fn part_origin(&self) -> Option<Origin> {
        None
    }

    /// Returns which address of packets the format needs in order to place them, usually the
    /// [`part_origin`](Self::part_origin). If it is not `None`, the source calls [`use_flow`](Self::use_flow) before it parses
    /// packets of another flow.
    fn flow_origin(&self) -> Option<Origin> {
        self.part_origin()
    }

    /// Returns why packets of the current flow are rejected, or `None` if they may belong to a part.
    fn flow_reject(&self) -> Option<Reject> {
        None
    }

    /// Returns `flow` with only the addresses that matter for parts, so that other differences between flows are ignored.
    fn reduce_flow(&self, flow: &Flow) -> Flow {
        *flow
    }

    /// Selects the flow of the packets that are parsed from now on.
    fn use_flow(&mut self, flow: &Flow) {
        let _ = flow;
    }

    /// Returns whether a unit is a frame. Otherwise, a frame contains as many units as fit.
    fn is_unit_frame(&self) -> bool {
        false
    }

    /// Returns the time scale of packet timestamps, or `None` if packets have no timestamps.
    fn time_scale(&self) -> Option<TimeScale> {
        None
    }

    /// Returns the state of timestamps that repeat because their field wraps, or `None` if they do not.
    fn time_wrap(&self) -> Option<&TimeWrap> {
        None
    }

    /// Returns why `packet` has no timestamp, or `None` if no timestamp is expected.
    fn why_no_time(&self, packet: &[u8]) -> Option<String> {
        let _ = packet;
        None
    }

    /// Returns whether the timestamp of a packet is that of its frame, wherever the packet is in the frame.
    fn has_frame_times(&self) -> bool {
        self.is_unit_frame() && self.time_scale().is_some()
    }

    /// Returns the names of the header fields that frames keep, at most
    /// [`MAX_KEPT_FIELDS`](daq_core::frame::MAX_KEPT_FIELDS).
    fn kept(&self) -> Vec<String> {
        Vec::new()
    }

    /// Reads the kept fields of the packet whose header, at least, is in `packet`. Called only for formats with
    /// [kept](Self::kept) fields, until all fields of the packet's frame are known.
    fn read_kept(&self, packet: &[u8]) -> KeptFields {
        let _ = packet;
        KeptFields::default()
    }

    /// Returns why the first packet of a unit, `packet`, does not contain kept field `i`, or `None` if the field may be
    /// absent.
    fn why_not_kept(&self, i: usize, packet: &[u8]) -> Option<String> {
        let _ = (i, packet);
        None
    }

    /// Returns a note for the log that a unit of `bytes` bytes is not a frame; see [`Control::OtherUnit`](super::Control).
    fn other_unit_note(&self, bytes: u64) -> String {
        let (key, wanted) = (self.unit_key(), self.packet_layout().unit_bytes);
        format!(
            "a {key} has {bytes} bytes, not {wanted}, so it is not a frame. Its packets are counted as `control`"
        )
    }

    /// Returns whether packets may be a [`Fragment`](super::Fragment), so that frames must be reassembled byte by byte.
    fn has_fragments(&self) -> bool {
        false
    }

    /// Returns whether units differ in size, so that each packet with payload is [`Parsed::Sized`].
    fn has_sized_units(&self) -> bool {
        false
    }

    /// Returns what is known about sizes that are detected at run time, or `None` if all sizes are known. While sizes
    /// are unknown, packets cannot be parsed.
    fn unknown_sizes(&self) -> Option<UnknownSizes> {
        None
    }

    /// Returns a clone with a new [detector](Self::detector), or `None` if all sizes are known. Frames have at most the
    /// size of `geometry`; `threads` threads receive. All clones of the result share the detector.
    fn start_detection(&self, geometry: &Geometry, threads: usize) -> Option<Format> {
        let _ = (geometry, threads);
        None
    }

    /// Returns the detector of the unknown sizes, if detection was started.
    fn detector(&self) -> Option<Arc<dyn SizeDetector>> {
        None
    }

    /// Uses the sample type and rate of the source, for a format whose numbers count samples. Fails if the packets of the
    /// format cannot contain such samples.
    fn use_samples(&mut self, samples: &Samples) -> Result<(), Problem> {
        let _ = samples;
        Ok(())
    }

    /// Returns notes for `daq plan`.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the names of the format's counters, which are counters of its source
    /// ([`SourceFacts::counts`](daq_core::entry::SourceFacts::counts)).
    fn counts(&self) -> Vec<&'static CountSet> {
        Vec::new()
    }

    /// Prepares the format for the threads of the source `name`, with the counters that [`counts`](Self::counts) declares.
    /// Called once per run, before the format is cloned for the threads.
    fn start(&mut self, name: &str, counts: &Counts) {
        let _ = (name, counts);
    }

    /// Appends the header of packet `sub` of `unit` with `payload` payload bytes to `out`, as a sender would build it. Does not
    /// allocate if `out` has room.
    ///
    /// `payload` should be the size of the packet slot. Another size is also written into headers that contain it, so that
    /// tests can build invalid packets.
    fn build_header(
        &self,
        unit: u64,
        sub: u32,
        timestamp: Option<u64>,
        payload: usize,
        out: &mut Vec<u8>,
    );

    /// Appends packet `sub` of `unit` to `out`, as a sender would build it: header, payload and a trailer of zeros.
    fn build(
        &self,
        unit: u64,
        sub: u32,
        timestamp: Option<u64>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) {
        self.build_header(unit, sub, timestamp, payload.len(), out);
        out.extend_from_slice(payload);
        out.resize(out.len() + self.trailer_len(), 0);
    }

    /// Returns the format for sending `frames`, with a value for each size that a receiver would detect. Returns `None` if
    /// the format has all values.
    fn for_sending(&self, frames: &OutgoingFrames) -> Result<Option<Format>, Problem> {
        let _ = frames;
        Ok(None)
    }

    /// Writes the packets that describe a stream of `frames` to `packets`, before the unit `unit` with `timestamp`, see
    /// [`PacketBuilder::describe`](daq_core::outgoing::PacketBuilder::describe).
    fn describe(
        &self,
        frames: &OutgoingFrames,
        unit: u64,
        timestamp: Option<u64>,
        packets: &mut Vec<Vec<u8>>,
    ) {
        let _ = (frames, unit, timestamp, packets);
    }

    /// Returns the packets that end a stream. `unit` is the number after that of the last unit.
    fn end(&self, unit: u64) -> Vec<Vec<u8>> {
        let _ = unit;
        Vec::new()
    }

    /// Returns a clone for another thread.
    fn boxed_clone(&self) -> Box<dyn PacketFormat>;
}

/// What is unknown about the sizes of a format, for plans and messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSizes {
    /// Number of payload bytes of a frame; `None` if it is detected too.
    pub frame: Option<usize>,
    /// The values that are detected, such as `"packet sizes"`.
    pub values: &'static str,
    /// The part of the stream from which they are detected, such as `"the first heaps"`.
    pub from: &'static str,
}

/// State of the detection of a format's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More packets are needed.
    Detecting,
    /// All values are detected.
    Detected,
    /// Detection failed, so these packets cannot be received; see [`SizeDetector::restart`].
    Refused,
}

/// Detects the sizes of a format from the first packets. All threads of a source share one detector, and each thread
/// stores its packets until the sizes are known.
pub trait SizeDetector: Debug + Send + Sync {
    /// Returns the size in bytes of each thread's buffer for datagrams during detection, see [`hold_bytes`].
    fn hold_bytes(&self) -> usize;

    /// Examines one datagram, which the caller then stores and places later. Fails if the datagram does not have this
    /// format.
    fn observe(&self, datagram: &[u8]) -> Result<Progress, Reject>;

    /// Ends detection with the packets received so far, if `force` is true or the time limit has passed.
    fn settle(&self, now: Instant, force: bool) -> Progress;

    /// Returns the format with the detected values, for one thread of the source `name`. Returns `None` while they are
    /// unknown.
    fn detected(&self, name: &str) -> Option<Format>;

    /// Returns the detected values as text for the log, on the first call only.
    fn summary(&self) -> Option<String>;

    /// Returns why detection failed, and restarts it, because the stored packets cannot be used.
    fn restart(&self) -> String;

    /// Returns whether `datagram` contains a message instead of samples.
    fn is_message(&self, datagram: &[u8]) -> bool;
}

/// Returns the recommended buffer size in bytes for each of `threads` threads while frames of at most `max_frame` bytes
/// are detected.
pub fn hold_bytes(max_frame: usize, threads: usize) -> usize {
    let total = max_frame.saturating_mul(HOLD_FRAMES).min(MAX_HOLD);
    (total / threads.max(1)).max(MIN_HOLD)
}

/// Defines [`Format`] with a variant for each built-in format, and [`FORMATS`].
///
/// The variants exist because each packet is parsed, and a call through a trait object costs more than a predicted
/// branch.
macro_rules! formats {
    ($($(#[$comment:meta])* $name:ident: $module:ident,)*) => {
        /// A packet format that is ready to parse. Each receiving thread needs its own clone.
        ///
        /// A format of another crate needs no variant of its own.
        #[derive(Debug)]
        pub enum Format {
            $($(#[$comment])* $name($module::$name),)*
            /// Any other format.
            Other(Box<dyn PacketFormat>),
        }

        /// The built-in formats.
        pub const FORMATS: &[FormatEntry] = &[$($module::ENTRY),*];

        impl Clone for Format {
            fn clone(&self) -> Self {
                match self {
                    $(Self::$name(format) => Self::$name(format.clone()),)*
                    Self::Other(format) => Self::Other(format.boxed_clone()),
                }
            }
        }

        impl Deref for Format {
            type Target = dyn PacketFormat;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$name(format) => format,)*
                    Self::Other(format) => &**format,
                }
            }
        }

        impl DerefMut for Format {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self {
                    $(Self::$name(format) => format,)*
                    Self::Other(format) => &mut **format,
                }
            }
        }

        impl Format {
            /// Parses one whole datagram, see [`PacketFormat::parse`]. An empty datagram contains no data, so it is a control packet.
            #[inline]
            pub fn parse(&mut self, packet: &[u8]) -> Result<Parsed, Reject> {
                if packet.is_empty() {
                    return Ok(Parsed::Control(Control::Beside));
                }
                match self {
                    $(Self::$name(format) => format.parse(packet),)*
                    Self::Other(format) => format.parse(packet),
                }
            }

            /// Selects the flow of the packets that follow, see [`PacketFormat::use_flow`].
            pub fn use_flow(&mut self, flow: &Flow) {
                match self {
                    $(Self::$name(format) => format.use_flow(flow),)*
                    Self::Other(format) => format.use_flow(flow),
                }
            }

            /// Parses the start of a datagram, see [`PacketFormat::parse_split`]. An empty datagram contains no data, so it is a control
            /// packet.
            #[inline]
            pub fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject> {
                if header.is_empty() && rest == 0 {
                    return Ok(Split::Whole(Parsed::Control(Control::Beside)));
                }
                match self {
                    $(Self::$name(format) => format.parse_split(header, rest),)*
                    Self::Other(format) => format.parse_split(header, rest),
                }
            }

            /// Returns the expected header size of packet `sub`, see [`PacketFormat::header_len`].
            #[inline]
            pub fn header_len(&self, sub: u32) -> usize {
                match self {
                    $(Self::$name(format) => format.header_len(sub),)*
                    Self::Other(format) => format.header_len(sub),
                }
            }

            /// Returns the time scale of packet timestamps, see [`PacketFormat::time_scale`].
            #[inline]
            pub fn time_scale(&self) -> Option<TimeScale> {
                match self {
                    $(Self::$name(format) => format.time_scale(),)*
                    Self::Other(format) => format.time_scale(),
                }
            }

            /// Returns the state of timestamps that wrap, see [`PacketFormat::time_wrap`].
            #[inline]
            pub fn time_wrap(&self) -> Option<&TimeWrap> {
                match self {
                    $(Self::$name(format) => format.time_wrap(),)*
                    Self::Other(format) => format.time_wrap(),
                }
            }
        }
    };
}

formats! {
    /// Packets with a fixed header and a sequence number at a configured offset.
    Raw: raw,
    /// SPEAD heaps.
    Spead: spead,
    /// Signal data packets of VITA 49.
    Vita49: vita49,
    /// Data frames of VDIF.
    Vdif: vdif,
}

impl Format {
    /// Returns the timestamp of a packet that contains `ticks` and was received at `received`.
    ///
    /// If the format contains timestamps, the receive time is only used to find how often their field has wrapped.
    #[inline]
    pub fn time(&self, ticks: Option<u64>, received: Timestamp) -> Timestamp {
        match (self.time_scale(), ticks) {
            (None, _) => received,
            (Some(scale), Some(ticks)) => Timestamp {
                ns: match self.time_wrap() {
                    None => scale.ns(ticks),
                    Some(wrap) => wrap.ns(&scale, ticks, received),
                },
                clock: scale.clock(),
            },
            (Some(_), None) => Timestamp::default(),
        }
    }

    /// Returns whether sizes are not detected yet, so that packets cannot be parsed.
    pub fn is_detecting(&self) -> bool {
        self.unknown_sizes().is_some()
    }

    /// Returns the mask of the bits that the sequence number of a unit can have.
    pub fn unit_mask(&self) -> u64 {
        u64::MAX >> (64 - self.numbering().width.clamp(1, 64))
    }
}

/// One entry of the format registry.
#[derive(Clone, Copy, Debug)]
pub struct FormatEntry {
    /// The value of `format.kind`.
    pub name: &'static str,
    /// A one-line description.
    pub summary: &'static str,
    /// Example keys of a `[source.NAME.format]` section, without its heading.
    pub example: &'static str,
    /// Returns the JSON schema of the keys, without `kind`.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// Reads the keys, without `kind`. Returns `None` after reporting an error.
    pub parse: fn(&mut Section, &mut Diagnostics) -> Option<Format>,
    /// How `daq inspect` recognises packets of the format; by default not at all.
    pub recognise: &'static [Recogniser],
}

impl FormatEntry {
    /// Creates the entry of a format whose keys are the fields of the type `F`.
    pub const fn of<F>(name: &'static str, summary: &'static str, example: &'static str) -> Self
    where
        F: PacketFormat + DeserializeOwned + JsonSchema + 'static,
    {
        Self {
            name,
            summary,
            example,
            schema: F::json_schema,
            parse: |table, diagnostics| {
                let format = table.finish::<F>(&[], diagnostics)?;
                Some(Format::Other(Box::new(format)))
            },
            recognise: &[],
        }
    }

    /// Lets `daq inspect` recognise packets of the format with `recognise`.
    #[must_use]
    pub const fn recognised_by(self, recognise: &'static [Recogniser]) -> Self {
        Self { recognise, ..self }
    }
}

impl Registered for FormatEntry {
    fn kind(&self) -> &'static str {
        "packet formats"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        self.summary
    }

    fn recognisers(&self) -> &'static [Recogniser] {
        self.recognise
    }

    fn outgoing_format(&self) -> Option<&dyn OutgoingFormatEntry> {
        Some(self)
    }
}

impl OutgoingFormatEntry for FormatEntry {
    fn schema(&self, generator: &mut SchemaGenerator) -> Schema {
        (self.schema)(generator)
    }

    fn parse(
        &self,
        table: &mut Section,
        diagnostics: &mut Diagnostics,
    ) -> Option<Box<dyn OutgoingFormat>> {
        let format = (self.parse)(table, diagnostics)?;
        Some(Box::new(Outgoing(format)))
    }
}
