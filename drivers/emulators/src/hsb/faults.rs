//! The faults that an emulated board can inject, and when.

use daq_core::config::nearest;
use std::fmt;
use std::str::FromStr;

/// The event that the number after a fault's name counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The number of a packet of the sensor, counted from 0. Packets that faults suppress are counted too. The count
    /// never restarts.
    Packet,
    /// The number of a frame of the sensor, counted from 0.
    Frame,
    /// The number of a control request, counted from 0.
    Request,
}

/// Each fault: its name, the unit of its number, and its description.
pub const FAULTS: &[(&str, Unit, &str)] = &[
    (
        "drop",
        Unit::Packet,
        "the packet is not sent; with :COUNT, COUNT consecutive packets are not sent",
    ),
    (
        "gap",
        Unit::Packet,
        "another name for drop: with :COUNT, COUNT consecutive packets are not sent",
    ),
    (
        "reorder",
        Unit::Packet,
        "the packet is sent after the next packet",
    ),
    (
        "duplicate",
        Unit::Packet,
        "the packet is sent twice; with :COUNT, COUNT additional copies are sent",
    ),
    (
        "bad-va",
        Unit::Packet,
        "the packet's target address is beyond the last page",
    ),
    (
        "bad-rkey",
        Unit::Packet,
        "the packet has a wrong remote key",
    ),
    (
        "bad-length",
        Unit::Packet,
        "the length in the packet's header exceeds the payload by 128 bytes",
    ),
    (
        "bad-opcode",
        Unit::Packet,
        "the packet's opcode is 0x04, which is not an RDMA write",
    ),
    (
        "bad-icrc",
        Unit::Packet,
        "the packet's invariant CRC (ICRC) is wrong",
    ),
    (
        "no-metadata",
        Unit::Frame,
        "the frame ends with its last data packet; its metadata is not sent",
    ),
    (
        "late-immediate",
        Unit::Frame,
        "the last packet of the frame is sent after the first packet of the next frame",
    ),
    (
        "replay",
        Unit::Frame,
        "all packets of the frame are sent again after the frame",
    ),
    (
        "silent",
        Unit::Frame,
        "this frame and all later frames are not sent until the sensor is armed again",
    ),
    (
        "restart",
        Unit::Frame,
        "the packet and frame numbers restart at this frame, as after a reset",
    ),
    (
        "reboot",
        Unit::Frame,
        "the board restarts at this frame of sensor 0; the board loses all register values and does not answer requests for a while",
    ),
    (
        "ecb-silent",
        Unit::Request,
        "the request is executed but not answered; with :COUNT, COUNT consecutive requests are not answered",
    ),
    (
        "ecb-sequence",
        Unit::Request,
        "the reply has a wrong sequence number",
    ),
    (
        "ecb-status",
        Unit::Request,
        "the request is rejected with the status \"invalid address\"",
    ),
];

/// A fault with the numbers at which it occurs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultOption {
    name: &'static str,
    unit: Unit,
    at: u64,
    count: u64,
}

impl FaultOption {
    /// Returns the fault's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl FromStr for FaultOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || {
            format!(
                "{text:?} is not of the form NAME@N or NAME@N:COUNT, where N is the number of a packet, frame or request; try \"drop@50\" or \"gap@50:3\""
            )
        };
        let (name, when) = text.split_once('@').ok_or_else(malformed)?;
        let (at, count) = when.split_once(':').unwrap_or((when, "1"));
        let (at, count): (u64, u64) = match (at.parse(), count.parse()) {
            (Ok(at), Ok(count)) if count > 0 => (at, count),
            _ => return Err(malformed()),
        };
        let names: Vec<&str> = FAULTS.iter().map(|(name, ..)| *name).collect();
        match FAULTS.iter().find(|(known, ..)| *known == name) {
            Some((name, unit, _)) => Ok(Self {
                name,
                unit: *unit,
                at,
                count,
            }),
            None => Err(match nearest(name, &names) {
                Some(near) => format!("there is no fault `{name}`; did you mean `{near}`?"),
                None => format!(
                    "there is no fault `{name}`; available: {}",
                    names.join(", ")
                ),
            }),
        }
    }
}

impl fmt::Display for FaultOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.at)?;
        if self.count > 1 {
            write!(f, ":{}", self.count)?;
        }
        Ok(())
    }
}

/// The faults of a sensor or of the control plane.
#[derive(Clone, Debug)]
pub(super) struct Faults(Vec<FaultOption>);

impl Faults {
    pub(super) fn new(all: &[FaultOption]) -> Self {
        Self(all.to_vec())
    }

    /// Returns true if the fault `name` occurs at number `at`.
    pub(super) fn hits(&self, name: &str, at: u64) -> bool {
        self.0.iter().any(|fault| {
            fault.name == name && at.checked_sub(fault.at).is_some_and(|n| n < fault.count)
        })
    }

    /// Returns the number of occurrences of the fault `name` that first occurs at number `at`; `None` if no such fault
    /// exists.
    pub(super) fn count(&self, name: &str, at: u64) -> Option<u64> {
        let found = self
            .0
            .iter()
            .find(|fault| fault.name == name && fault.at == at);
        found.map(|fault| fault.count)
    }

    /// Returns true if any fault affects frame `frame`, whose packets are the `packets` packets starting at `first`.
    pub(super) fn touch(&self, frame: u64, first: u64, packets: u64) -> bool {
        self.0.iter().any(|fault| {
            let (from, to) = match fault.unit {
                Unit::Packet => (first, first + packets),
                Unit::Frame => (frame, frame + 1),
                Unit::Request => return false,
            };
            fault.at < to && fault.at.saturating_add(fault.count) > from
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_round_trip() {
        for text in [
            "drop@50",
            "gap@50:3",
            "ecb-silent@0",
            "late-immediate@7",
            "bad-va@1",
        ] {
            assert_eq!(text.parse::<FaultOption>().unwrap().to_string(), text);
        }
        for wrong in [
            "drop",
            "@5",
            "drop@",
            "drop@x",
            "drop@-1",
            "gap@5:",
            "gap@5:0",
            "gap@5:3:1",
        ] {
            assert!(wrong.parse::<FaultOption>().is_err(), "{wrong}");
        }
        let error = "bad-vaa@3".parse::<FaultOption>().unwrap_err();
        assert!(error.contains("did you mean `bad-va`"), "{error}");
    }

    #[test]
    fn faults_apply_to_named_packets() {
        let faults = Faults::new(&["gap@50:3".parse().unwrap(), "silent@7".parse().unwrap()]);
        let hit: Vec<u64> = (45..60).filter(|at| faults.hits("gap", *at)).collect();
        assert_eq!(hit, [50, 51, 52]);
        assert!(!faults.hits("drop", 50));
        assert_eq!(faults.count("gap", 50), Some(3));
        assert_eq!(faults.count("gap", 51), None);
        // Frames of ten packets each.
        let touched: Vec<u64> = (0..10)
            .filter(|frame| faults.touch(*frame, frame * 10, 10))
            .collect();
        assert_eq!(touched, [5, 7]);
    }
}
