//! What goes wrong on request, and when.

use daq_core::config::nearest;
use std::fmt;
use std::str::FromStr;

/// What the number behind a fault's name counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets of a sensor, from 0, including packets that faults suppress. Never restarts.
    Packet,
    /// Frames of a sensor, from 0.
    Frame,
    /// Control requests, from 0.
    Request,
}

/// Each fault: its name, what its number counts, its meaning.
pub const FAULTS: &[(&str, Unit, &str)] = &[
    (
        "drop",
        Unit::Packet,
        "the packet is lost; with :COUNT so many from there on",
    ),
    (
        "gap",
        Unit::Packet,
        "the same: COUNT packets from there on are lost",
    ),
    (
        "reorder",
        Unit::Packet,
        "the packet comes behind the next one",
    ),
    (
        "duplicate",
        Unit::Packet,
        "the packet comes twice; with :COUNT so many times more",
    ),
    (
        "bad-va",
        Unit::Packet,
        "its address lies behind the last page",
    ),
    ("bad-rkey", Unit::Packet, "its remote key is another one"),
    (
        "bad-length",
        Unit::Packet,
        "it claims 128 bytes more than it has",
    ),
    (
        "bad-opcode",
        Unit::Packet,
        "its opcode is none of a write (0x04)",
    ),
    (
        "bad-icrc",
        Unit::Packet,
        "its invariant checksum does not fit",
    ),
    (
        "no-metadata",
        Unit::Frame,
        "the frame ends with its last data, without metadata",
    ),
    (
        "late-immediate",
        Unit::Frame,
        "the frame's last packet comes behind the first of the next frame",
    ),
    (
        "replay",
        Unit::Frame,
        "all packets of the frame come once more behind it",
    ),
    (
        "silent",
        Unit::Frame,
        "this frame and all later ones are not sent until the sensor is armed again",
    ),
    (
        "restart",
        Unit::Frame,
        "packet and frame numbers restart, as after a reset",
    ),
    (
        "reboot",
        Unit::Frame,
        "the board restarts at this frame of sensor 0: registers are lost, requests are not answered for a while",
    ),
    (
        "ecb-silent",
        Unit::Request,
        "the request is carried out and not answered; with :COUNT so many",
    ),
    (
        "ecb-sequence",
        Unit::Request,
        "the reply carries another sequence number",
    ),
    (
        "ecb-status",
        Unit::Request,
        "the request is refused: invalid address",
    ),
];

/// A fault, and what meets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultOption {
    name: &'static str,
    unit: Unit,
    at: u64,
    count: u64,
}

impl FaultOption {
    /// The fault's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl FromStr for FaultOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || {
            format!(
                "{text:?} is not a fault and the packet, frame or request that meets it; try \"drop@50\" or \"gap@50:3\""
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
                None => format!("there is no fault `{name}`; there are {}", names.join(", ")),
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

/// The faults of a sensor, or of the control plane.
#[derive(Clone, Debug)]
pub(super) struct Faults(Vec<FaultOption>);

impl Faults {
    pub(super) fn new(all: &[FaultOption]) -> Self {
        Self(all.to_vec())
    }

    /// Whether `name` meets number `at`.
    pub(super) fn hits(&self, name: &str, at: u64) -> bool {
        self.0.iter().any(|fault| {
            fault.name == name && at.checked_sub(fault.at).is_some_and(|n| n < fault.count)
        })
    }

    /// The count of `name` at exactly `at`.
    pub(super) fn count(&self, name: &str, at: u64) -> Option<u64> {
        let found = self
            .0
            .iter()
            .find(|fault| fault.name == name && fault.at == at);
        found.map(|fault| fault.count)
    }

    /// Whether any fault meets frame `frame`, which has the packets from `first` on, `packets` of them.
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
        // Frames of ten packets.
        let touched: Vec<u64> = (0..10)
            .filter(|frame| faults.touch(*frame, frame * 10, 10))
            .collect();
        assert_eq!(touched, [5, 7]);
    }
}
