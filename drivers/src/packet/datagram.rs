//! Parses datagrams and places their payload in frames; used by the sources `udp`, `xdp` and `replay`.

mod clock_check;
mod detection;
mod keeping;
pub(crate) mod pending;
mod reassembly;

use crate::packet::{
    Control, Finding, Flow, FlowNeeds, Format, Fragment, Origin, Packet, Parsed, Reject, Split,
};
use clock_check::ClockCheck;
use daq_core::frame::{KeptFields, Timestamp};
use daq_core::ledger::{FAR_NUMBER, Rejections};
use daq_core::reorder::{Batch, Geometry, Outcome, PacketId, PacketSize, ReorderWindow};
use detection::Detection;
use keeping::Keeping;
pub(crate) use reassembly::{Added, Reassembly};
use std::fmt::Display;

/// The format states a payload that is not in the packet.
const PAYLOAD_RANGE: Reject = Reject::Other {
    name: "payload_range",
    message: "the payload ends after the end of the packet: this is an error in the code of the packet format",
};
/// A format whose packets are never fragments returned a fragment.
const UNEXPECTED_FRAGMENT: Reject = Reject::Other {
    name: "unexpected_fragment",
    message: "the packet covers packet slots only partly, but `has_fragments` of the packet format's facts is false: this is an error in the code of the packet format",
};

/// Packets do not agree with the format about units that differ in size.
const UNEXPECTED_SIZE: Reject = Reject::Other {
    name: "unexpected_size",
    message: "the packet is `Sized`, but `has_sized_units` of the packet format's facts is false, or the reverse: this is an error in the code of the packet format",
};

/// Reason of packets whose numbers have arrived before, if it is unknown whether the sender has restarted.
const REPEATED_NUMBER: &str = "repeated_number";

/// Parses datagrams and places their payload in the reorder window.
#[derive(Debug)]
pub struct Depacketizer {
    /// The source's name, for messages.
    name: String,
    format: Format,
    /// The current flow, if the source has selected one.
    flow: Option<Flow>,
    /// The addresses that distinguish flows.
    flow_needs: FlowNeeds,
    /// Why packets of the current flow are rejected, if they are.
    flow_reject: Option<Reject>,
    /// Whether the format contains timestamps.
    has_time: bool,
    /// Whether units differ in size.
    has_sized_units: bool,
    /// Difference between the numbers of packets that follow each other.
    step: u64,
    clock_check: ClockCheck,
    keeping: Keeping,
    rejections: Rejections,
    logged: Logged,
    /// Set while the format is detected, and until the packets stored meanwhile are placed.
    detection: Option<Box<Detection>>,
    reassembly: Option<Box<Reassembly>>,
}

/// What was logged. Only the first case is logged, because there may be many.
#[derive(Debug, Default)]
struct Logged {
    /// A unit of another length.
    other_unit: bool,
    /// A missing timestamp.
    missing_time: bool,
}

/// The result of placing a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Done,
    /// The packet had already arrived.
    Duplicate,
    /// The packet contains a message instead of data.
    Control(Control),
    /// The packet must wait for a free slot.
    PendingDatagrams,
}

impl Depacketizer {
    /// Creates a depacketizer for the source `name`. Each thread needs its own depacketizer.
    pub fn new(name: &str, format: Format) -> Self {
        let facts = format.facts();
        Self {
            name: name.to_owned(),
            detection: Detection::new(&format).map(Box::new),
            reassembly: Reassembly::of(&facts),
            has_time: format.clock().is_some(),
            has_sized_units: facts.has_sized_units,
            step: facts.numbering.step,
            clock_check: ClockCheck::default(),
            keeping: Keeping::of(&facts),
            format,
            flow: None,
            flow_needs: facts.flow,
            flow_reject: None,
            rejections: Rejections::default(),
            logged: Logged::default(),
        }
    }

    /// Continues with the detected `format`.
    fn use_format(&mut self, format: Format) {
        self.reassembly = Reassembly::of(&format.facts());
        self.format = format;
        if let Some(flow) = &self.flow {
            self.flow_reject = self.format.use_flow(flow).err();
        }
    }

    /// Counts rejected packets by reason in `rejections`, which all threads of the source share.
    #[must_use]
    pub fn with_rejections(mut self, rejections: Rejections) -> Self {
        self.rejections = rejections;
        self
    }

    /// Returns whether frames keep fields of their packets.
    pub fn keeps_fields(&self) -> bool {
        self.keeping.is_active()
    }

    /// Returns the format, including the sizes detected so far.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// Returns the format, including the sizes detected so far.
    pub fn format_mut(&mut self) -> &mut Format {
        &mut self.format
    }

    /// Places datagrams, each with its receive time. Returns the index of the last duplicate datagram, or `None` if there was
    /// no duplicate.
    pub fn place<'d>(
        &mut self,
        window: &mut ReorderWindow,
        datagrams: impl IntoIterator<Item = (&'d [u8], Timestamp)>,
    ) -> Option<usize> {
        if self.detection.is_some() {
            self.place_later(window, datagrams);
            return None;
        }
        let mut datagrams = datagrams.into_iter().enumerate();
        let mut duplicate = None;
        loop {
            let mut batch = window.batch();
            let control = datagrams.find_map(|(i, (bytes, received))| {
                match self.put(&mut batch, bytes, received, false) {
                    Put::Control(control) => Some(control),
                    Put::Duplicate => {
                        duplicate = Some(i);
                        None
                    }
                    Put::Done | Put::PendingDatagrams => None,
                }
            });
            batch.commit();
            let Some(control) = control else {
                return duplicate;
            };
            self.handle_control(window, control);
        }
    }

    /// Returns which address distinguishes flows, or `None` if all datagrams belong to one flow.
    pub const fn flow_origin(&self) -> Option<Origin> {
        self.flow_needs.origin()
    }

    /// Selects the flow of the datagrams that follow, for formats that [need](crate::packet::FormatFacts::flow) it.
    pub fn use_flow(&mut self, flow: Flow) {
        let flow = self.flow_needs.reduced(&flow);
        if self.flow != Some(flow) {
            self.flow_reject = self.format.use_flow(&flow).err();
            self.flow = Some(flow);
        }
    }

    /// Places datagrams of several flows. Returns the same as [`place`](Self::place).
    pub fn place_flows<'d>(
        &mut self,
        window: &mut ReorderWindow,
        datagrams: impl IntoIterator<Item = (&'d [u8], Timestamp, Flow)>,
    ) -> Option<usize> {
        let mut duplicate = None;
        let mut datagrams = datagrams.into_iter().enumerate().peekable();
        while let Some((first, (_, _, flow))) = datagrams.peek() {
            let (first, flow) = (*first, *flow);
            self.use_flow(flow);
            let run = std::iter::from_fn(|| {
                let next = datagrams.next_if(|(_, (_, _, other))| *other == flow)?;
                let (_, (bytes, received, _)) = next;
                Some((bytes, received))
            });
            if let Some(i) = self.place(window, run) {
                duplicate = Some(first + i);
            }
        }
        duplicate
    }

    /// Places datagrams of which the first was parsed before: `first` is the result, unless its header was incomplete.
    /// Returns the same as [`place`](Self::place).
    pub fn place_rest<'d>(
        &mut self,
        window: &mut ReorderWindow,
        first: Option<Result<Split, Reject>>,
        datagrams: impl IntoIterator<Item = (&'d [u8], Timestamp)>,
    ) -> Option<usize> {
        let parsed = match first {
            Some(Ok(Split::Whole(parsed))) => Ok(parsed),
            Some(Err(reject)) => Err(reject),
            Some(Ok(Split::Longer { .. })) | None => return self.place(window, datagrams),
        };
        let mut datagrams = datagrams.into_iter();
        let (bytes, received) = datagrams.next()?;
        let put = window.with_batch(|batch| self.put_parsed(batch, parsed, bytes, received, false));
        if let Put::Control(control) = put {
            self.handle_control(window, control);
        }
        let duplicate = self.place(window, datagrams).map(|i| i + 1);
        duplicate.or_else(|| (put == Put::Duplicate).then_some(0))
    }

    /// Counts a control message, and removes the unit of the message from the expected units.
    fn handle_control(&mut self, window: &mut ReorderWindow, control: Control) {
        window.control(1);
        let unit = match control {
            Control::Beside => return,
            Control::EndOfStream { unit } => unit,
            Control::OtherUnit { unit, bytes } => {
                if bytes > 0 && !self.logged.other_unit {
                    self.log_other_unit(bytes);
                }
                unit
            }
        };
        if let Some(unit) = unit {
            window.skip(unit);
        }
    }

    /// Places a datagram if its frame can get a slot, see [`Batch::has_room`]; otherwise returns false.
    pub fn place_with_room(
        &mut self,
        window: &mut ReorderWindow,
        bytes: &[u8],
        received: Timestamp,
    ) -> bool {
        if self.detection.is_some() {
            return self.place_later_with_room(window, bytes, received);
        }
        self.place_one(window, bytes, received, true)
    }

    /// Places one datagram. If `holds` is true and there is no room for the datagram, returns false instead.
    fn place_one(
        &mut self,
        window: &mut ReorderWindow,
        bytes: &[u8],
        received: Timestamp,
        holds: bool,
    ) -> bool {
        // Check for room and place the packet in the same batch, because the window advances past complete frames
        // between batches.
        let put = window.with_batch(|batch| self.put(batch, bytes, received, holds));
        if let Put::Control(control) = put {
            self.handle_control(window, control);
        }
        put != Put::PendingDatagrams
    }

    /// Parses one datagram and places its payload. If `holds` is true and there is no room for the payload, returns
    /// [`Put::PendingDatagrams`] instead.
    #[inline]
    fn put(
        &mut self,
        batch: &mut Batch<'_>,
        bytes: &[u8],
        received: Timestamp,
        holds: bool,
    ) -> Put {
        let parsed = self.format.parse(bytes);
        self.put_parsed(batch, parsed, bytes, received, holds)
    }

    /// Places the payload of the datagram `bytes`, which was parsed as `parsed`.
    #[inline]
    fn put_parsed(
        &mut self,
        batch: &mut Batch<'_>,
        parsed: Result<Parsed, Reject>,
        bytes: &[u8],
        received: Timestamp,
        holds: bool,
    ) -> Put {
        match parsed {
            Ok(Parsed::Data(packet)) if !self.has_sized_units => {
                self.put_packet(batch, packet, None, bytes, received, holds)
            }
            Ok(Parsed::Sized { packet, unit_bytes }) if self.has_sized_units => {
                self.put_packet(batch, packet, Some(unit_bytes), bytes, received, holds)
            }
            Ok(Parsed::Fragment(fragment)) => {
                self.put_fragment(batch, &fragment, bytes, received, holds)
            }
            Ok(Parsed::Control(control)) => Put::Control(control),
            Ok(Parsed::Data(_) | Parsed::Sized { .. }) => {
                self.reject(batch, &UNEXPECTED_SIZE, bytes)
            }
            Err(reject) => self.reject(batch, &reject, bytes),
        }
    }

    /// Places the payload of `packet`, which is in the datagram `bytes`. `frame` is the size of its frame, if frames differ in
    /// size.
    #[inline]
    fn put_packet(
        &mut self,
        batch: &mut Batch<'_>,
        packet: Packet,
        frame: Option<usize>,
        bytes: &[u8],
        received: Timestamp,
        holds: bool,
    ) -> Put {
        let id = packet.id();
        let Some(payload) = bytes.get(packet.payload) else {
            return self.reject(batch, &PAYLOAD_RANGE, bytes);
        };
        let size = PacketSize {
            payload: payload.len(),
            frame,
        };
        if holds && !batch.has_room(id, Some(size)) {
            return Put::PendingDatagrams;
        }
        if self.has_time && packet.timestamp.is_none() && packet.sub == 0 {
            self.log_missing_time(bytes);
        }
        let time = self.format.time(packet.timestamp, received);
        batch.received_at(received);
        let outcome = batch.place_sized(id, payload, frame, time);
        self.check_clock(id, time, received, batch.geometry());
        if self.keeping.is_active() {
            self.keep_fields(batch, outcome, id.sub, bytes);
        }
        match outcome {
            Outcome::Rejected if batch.is_unexplained() => self.log_unexplained(id),
            Outcome::Rejected | Outcome::Kept => self.log_placement(id, batch.kernel_drops()),
            Outcome::Duplicate => return Put::Duplicate,
            Outcome::Placed
            | Outcome::Late
            | Outcome::RingFull
            | Outcome::BeforeStart
            | Outcome::Repeated => {}
        }
        Put::Done
    }

    /// Compares the time of a packet with the time at which it was received, about once per second.
    #[inline]
    pub(crate) fn check_clock(
        &mut self,
        id: PacketId,
        time: Timestamp,
        received: Timestamp,
        geometry: &Geometry,
    ) {
        if self.clock_check.is_due(received)
            && let Some(scale) = self.format.time_scale()
            && let Some(warning) = self
                .clock_check
                .compare(id, time, received, &scale, geometry)
            && self.rejections.warn(&warning)
        {
            tracing::warn!("source {}: {warning}", self.name);
        }
    }

    /// Counts a packet whose position is unknown.
    #[cold]
    fn reject(&self, batch: &mut Batch<'_>, reject: &Reject, bytes: &[u8]) -> Put {
        batch.reject_unreadable(1);
        self.log_reject(reject, bytes);
        Put::Done
    }

    /// Places the packet slots that `fragment` completes.
    #[cold]
    fn put_fragment(
        &mut self,
        batch: &mut Batch<'_>,
        fragment: &Fragment,
        bytes: &[u8],
        received: Timestamp,
        holds: bool,
    ) -> Put {
        let Some(payload) = bytes.get(fragment.payload.clone()) else {
            return self.reject(batch, &PAYLOAD_RANGE, bytes);
        };
        let Some(reassembly) = &mut self.reassembly else {
            return self.reject(batch, &UNEXPECTED_FRAGMENT, bytes);
        };
        let (format, mut far, mut is_duplicate) = (&self.format, None, false);
        let kept = if self.keeping.is_active() {
            self.format.read_kept(bytes)
        } else {
            KeptFields::default()
        };
        let epoch = batch.epoch_of(PacketId::of(fragment.unit));
        batch.received_at(received);
        let added = reassembly.add(
            fragment,
            epoch,
            payload,
            kept,
            |sub, payload, timestamp, kept| {
                let time = format.time(timestamp, received);
                let id = PacketId {
                    unit: fragment.unit,
                    sub,
                };
                if holds && !batch.has_room(id, Some(payload.len().into())) {
                    return false;
                }
                let outcome = batch.place(id, payload, time);
                batch.keep_fields(outcome, || kept);
                match outcome {
                    Outcome::Rejected | Outcome::Kept => far = Some(id),
                    Outcome::Duplicate => is_duplicate = true,
                    Outcome::Placed
                    | Outcome::Late
                    | Outcome::RingFull
                    | Outcome::BeforeStart
                    | Outcome::Repeated => {}
                }
                true
            },
        );
        reassembly.set_epoch(fragment, batch.epoch_of(PacketId::of(fragment.unit)));
        if let Some(id) = far {
            self.log_placement(id, batch.kernel_drops());
        }
        match added {
            Added::Waiting => Put::PendingDatagrams,
            Added::Outside => self.reject(batch, &PAYLOAD_RANGE, bytes),
            Added::Repeated => {
                batch.repeated(1);
                Put::Duplicate
            }
            Added::New if is_duplicate => Put::Duplicate,
            Added::New => Put::Done,
        }
    }

    fn log_reject(&self, reject: &Reject, bytes: &[u8]) {
        log_reject(&self.name, &self.rejections, reject.name(), reject, bytes);
    }

    #[cold]
    fn log_other_unit(&mut self, bytes: u64) {
        self.logged.other_unit = true;
        let finding = Finding::OtherUnit { bytes };
        let note = self.format.explain(finding, &[]).unwrap_or_else(|| {
            let facts = self.format.facts();
            let (key, wanted) = (facts.unit_key, facts.layout.unit_bytes);
            format!(
                "a {key} has {bytes} bytes, not {wanted}, so it is not a frame. Its packets are counted as `control`"
            )
        });
        tracing::info!("source {}: {note}", self.name);
    }

    #[cold]
    fn log_missing_time(&mut self, bytes: &[u8]) {
        if !std::mem::replace(&mut self.logged.missing_time, true)
            && let Some(why) = self.format.explain(Finding::NoTimestamp, bytes)
        {
            tracing::warn!(
                "source {}: frames have no timestamp: {why}, or omit `timestamp` to use the receive \
                 time",
                self.name
            );
        }
    }

    /// Counts packets with repeated numbers that are neither known to be the same packets nor to be of a restarted sender.
    #[cold]
    fn log_unexplained(&self, id: PacketId) {
        let message = format_args!(
            "number {} and many before it have arrived before, without a new number between them. If the sender restarts its \
             numbers, let it pause for at least 0.1 s, or set `sockets = 1` and a ring in host memory, so that daq can compare the payload",
            id.unit
        );
        if self.rejections.count(REPEATED_NUMBER, 1, message) {
            tracing::warn!(
                "source {}: packets are rejected ({REPEATED_NUMBER}): {message}. Further such packets are only counted",
                self.name
            );
        }
    }

    /// Logs the first packet whose number does not continue the numbers before it. `drops` is the number of packets that Linux
    /// has dropped.
    #[cold]
    fn log_placement(&self, id: PacketId, drops: u64) {
        let message = FarNumber {
            number: id.unit,
            drops,
            step: self.step,
        };
        // The window counts the packets when they are finally rejected.
        if self.rejections.count(FAR_NUMBER, 0, &message) {
            tracing::warn!(
                "source {}: a packet is rejected ({FAR_NUMBER}) unless later packets are consistent with it: \
                 {message}. Further such packets are only counted",
                self.name,
            );
        }
    }
}

/// Why a number may be far from the numbers before it.
struct FarNumber {
    number: u64,
    /// Number of packets that Linux has dropped.
    drops: u64,
    /// Difference between the numbers of packets that follow each other.
    step: u64,
}

impl Display for FarNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            number,
            drops,
            step,
        } = self;
        write!(
            f,
            "the number {number} is far from the numbers of the previous packets"
        )?;
        if *drops > 0 {
            return write!(
                f,
                " after Linux has dropped {drops} packets (`kernel_drop`), so packets are probably missing in between: `daq doctor` \
                 shows how to receive faster, and a higher `max_gap` counts longer losses"
            );
        }
        if *step > 1 {
            write!(f, ", or not a multiple of `step` = {step} away")?;
        }
        f.write_str(
            "; check the position and the byte order of the number in the format, and whether two senders share the port",
        )
    }
}

/// Counts a packet of `source` that is rejected for `reason`, and logs the first such packet.
#[cold]
pub(crate) fn log_reject(
    source: &str,
    rejections: &Rejections,
    reason: &'static str,
    why: impl Display,
    packet: &[u8],
) {
    if rejections.count(reason, 1, &why) {
        let start = &packet[..packet.len().min(32)];
        tracing::warn!(
            "source {source}: rejected a packet of {} bytes ({reason}): {why}. It begins with {start:02x?}. Further packets \
             rejected for this reason are only counted",
            packet.len(),
        );
    }
}

/// Splits a message into its datagrams of `segment` bytes each; the last may be shorter. An empty message is one empty
/// datagram.
pub(crate) fn split_message(bytes: &[u8], segment: usize) -> impl Iterator<Item = &[u8]> {
    bytes
        .is_empty()
        .then_some(bytes)
        .into_iter()
        .chain(bytes.chunks(segment.max(1)))
}
