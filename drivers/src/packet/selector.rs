//! Which datagrams belong to the streams of a source, for several sources that receive from one port.

use daq_core::claim::StreamIds;

/// Maximum number of values of a condition, so that Linux filters stay short.
pub(crate) const MAX_VALUES: usize = 64;

/// The conditions that a datagram of a source meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The conditions, all of which must hold.
    pub(crate) conditions: Vec<Condition>,
    /// The streams of the source.
    pub(crate) streams: StreamIds,
}

/// A number of a datagram that must have one of several values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Offset of the number from the start of the datagram.
    pub(crate) offset: u32,
    /// Size of the number in bytes, 1, 2 or 4; it is big-endian.
    pub(crate) bytes: u32,
    /// The bits that are compared.
    pub(crate) mask: u32,
    /// The values, at least one.
    pub(crate) values: Vec<u32>,
}

impl Selector {
    /// Returns the selector, or `None` if it has too many values for a Linux filter.
    pub(crate) fn new(conditions: Vec<Condition>, streams: StreamIds) -> Option<Self> {
        let is_short = |condition: &Condition| (1..=MAX_VALUES).contains(&condition.values.len());
        conditions.iter().all(is_short).then_some(Self {
            conditions,
            streams,
        })
    }
}
