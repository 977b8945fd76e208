//! What a packet format states about itself.

use crate::packet::{Flow, Numbering, Origin, PacketLayout, Selector};
use daq_core::ledger::CountSet;

/// What a packet format states about itself, in a plain struct. A format sets the fields that differ from the default:
/// `FormatFacts { trailer: 4, ..FormatFacts::new(numbering, layout) }`.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a property of its own"
)]
#[derive(Clone, Debug)]
pub struct FormatFacts {
    /// How units are numbered.
    pub numbering: Numbering,
    /// The key and the help of the warning that the numbers of packets repeat too soon to detect every loss.
    pub number_advice: (&'static str, &'static str),
    /// How the payload of a unit is divided into packets. If a unit has [parts](Self::parts), the layout of one part.
    pub layout: PacketLayout,
    /// The number of parts of a unit, which have the same layout. Packet `i` of part `p` has the index `p * layout.count() + i`.
    /// Only units that are frames can have more than one part.
    pub parts: u32,
    /// The names of the parts for messages and metrics, such as the sender's address; if empty, their indices.
    pub part_names: Vec<String>,
    /// Whether the addresses of packets determine their part, so that packets do not contain the number of their part.
    pub has_parts_by_address: bool,
    /// The addresses that the format needs in order to place packets. If it needs any, the source calls
    /// [`use_flow`](super::Parse::use_flow) before it parses packets of another flow.
    pub flow: FlowNeeds,
    /// Which datagrams belong to the streams of the source, if several sources can receive from one port. Other datagrams are
    /// then not parsed.
    pub selector: Option<Selector>,
    /// The key that sets the size of a unit, which also names a unit in messages.
    pub unit_key: &'static str,
    /// Whether a unit is a frame. Otherwise, a frame contains as many units as fit.
    pub is_unit_frame: bool,
    /// Whether the timestamp of a packet is that of its frame, wherever the packet is in the frame.
    pub has_frame_times: bool,
    /// Header size in bytes if it is the same in every packet.
    pub header: Option<usize>,
    /// Number of bytes after the payload of every packet.
    pub trailer: usize,
    /// The names of the header fields that frames keep, at most [`MAX_KEPT_FIELDS`](daq_core::frame::MAX_KEPT_FIELDS).
    pub kept: Vec<String>,
    /// Whether packets may be a [`Fragment`](crate::packet::Fragment), so that frames must be reassembled byte by byte.
    pub has_fragments: bool,
    /// Whether units differ in size, so that each packet with payload is [`Parsed::Sized`](crate::packet::Parsed::Sized).
    pub has_sized_units: bool,
    /// What is known about sizes that are [detected](super::Detect) at run time, or `None` if all sizes are known. While sizes
    /// are unknown, packets cannot be parsed.
    pub unknown_sizes: Option<UnknownSizes>,
    /// Notes for `daq plan`.
    pub notes: Vec<String>,
    /// The names of the format's counters, which are counters of its source
    /// ([`SourceFacts::counts`](daq_core::entry::SourceFacts::counts)).
    pub counts: Vec<&'static CountSet>,
}

impl FormatFacts {
    /// Returns the facts about units that are numbered by `numbering` and consist of packets with the layout `layout`. A frame
    /// contains as many units as fit.
    pub const fn new(numbering: Numbering, layout: PacketLayout) -> Self {
        Self {
            numbering,
            number_advice: ("format", "compare `delivered` with the sender's own count"),
            layout,
            parts: 1,
            part_names: Vec::new(),
            has_parts_by_address: false,
            flow: FlowNeeds {
                sender: false,
                sender_port: false,
                destination: false,
            },
            selector: None,
            unit_key: "packet",
            is_unit_frame: false,
            has_frame_times: false,
            header: None,
            trailer: 0,
            kept: Vec::new(),
            has_fragments: false,
            has_sized_units: false,
            unknown_sizes: None,
            notes: Vec::new(),
            counts: Vec::new(),
        }
    }

    /// Returns the names of the parts of a frame; empty if frames have one part.
    pub fn named_parts(&self) -> Vec<String> {
        match self.parts {
            1 => Vec::new(),
            parts if self.part_names.is_empty() => {
                (0..parts).map(|part| part.to_string()).collect()
            }
            _ => self.part_names.clone(),
        }
    }

    /// Returns the number of payload bytes of a unit, with all its parts.
    pub const fn unit_bytes(&self) -> usize {
        self.layout.unit_bytes.saturating_mul(self.parts as usize)
    }
}

/// The addresses of packets that a format needs in order to place them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowNeeds {
    /// The address of the sender.
    pub sender: bool,
    /// The port of the sender; only with its address.
    pub sender_port: bool,
    /// The address and the port to which packets are sent.
    pub destination: bool,
}

impl FlowNeeds {
    /// Returns which address distinguishes flows, or `None` if the format needs none. The address of the sender also
    /// distinguishes the destinations of its packets.
    pub const fn origin(&self) -> Option<Origin> {
        match self {
            Self { sender: true, .. } => Some(Origin::Address),
            Self {
                destination: true, ..
            } => Some(Origin::Port),
            Self { .. } => None,
        }
    }

    /// Returns `flow` with only these addresses, so that other differences between flows are ignored.
    #[inline]
    pub fn reduced(&self, flow: &Flow) -> Flow {
        let source = flow.source.filter(|_| self.sender);
        Flow {
            source: source.map(|from| {
                let port = if self.sender_port { from.port() } else { 0 };
                (from.ip(), port).into()
            }),
            destination: flow.destination.filter(|_| self.destination),
        }
    }
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
