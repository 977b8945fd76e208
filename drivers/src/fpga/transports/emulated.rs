//! Devices that are emulated in this process: what the configuration says about them, and how the program provides them.
//!
//! No emulator is part of this crate. Whoever builds the program passes a list of them to [`crate::sources`].

use crate::fpga::FpgaConfig;
use crate::fpga::device::{Device, DeviceError};
use daq_core::config::Problem;
use daq_core::config::nearest;
use daq_core::units::{BitRate, ByteSize};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The emulated devices that a program offers under `device = "emulated:NAME"`.
pub trait EmulatedDevices {
    /// All of them.
    const DEVICES: &'static [EmulatedDeviceEntry];
}

/// One emulated device.
pub struct EmulatedDeviceEntry {
    /// The name in the configuration; also the name of the engine that drives it.
    pub name: &'static str,
    /// One sentence without a full stop.
    pub summary: &'static str,
    /// The faults that it can emulate.
    pub faults: &'static [FaultKind],
    /// Checks that its frames carry the numbers that `sequence` describes, in slots of the given number of bytes.
    pub check_sequence: fn(&FpgaConfig, usize) -> Result<(), Problem>,
    /// Starts the device of this name.
    pub open: fn(&str, &EmulatedOptions) -> Result<Arc<dyn Device>, DeviceError>,
}

/// What the 64-bit little-endian words of a stream are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "EmulatedPattern")]
pub enum Pattern {
    /// Each word is its own place in the stream: 0, 1, 2, and on.
    #[default]
    Counter,
    /// The same, except that the first word of each packet is the packet's number.
    Sequence,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Counter, Self::Sequence];

    /// Its name, as in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Sequence => "sequence",
        }
    }
}

/// How a card's stream goes, and what goes wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EmulatedOptions {
    /// Payload of each channel; without it, as fast as the card is let.
    pub rate: Option<BitRate>,
    /// Bytes of a packet of the stream, a multiple of 8; without it the stream has no packets and nothing ends before a
    /// slot is full.
    pub packet: Option<ByteSize>,
    /// What the payload is.
    pub pattern: Pattern,
    /// The stream ends after so many packets, of 4 KiB where `packet` is not given.
    pub packets: Option<u64>,
    /// What a stream with a rate keeps while its engine is held back; beyond that whole packets are lost.
    pub fifo: Option<ByteSize>,
    /// What goes wrong, and when: `NAME@TRANSFER`, each once.
    pub faults: Vec<FaultOption>,
}

/// A fault, and the transfer that meets it: counted from 0 over all channels since the last reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultOption {
    /// Which: one of the card's.
    pub name: String,
    /// RegisterPhase.
    pub transfer: u64,
}

/// A kind of fault: name and meaning.
pub type FaultKind = (&'static str, &'static str);

/// Bytes in which a stream without packets comes, and what the card's memory holds whole.
const PIECE: u64 = 4096;

impl EmulatedOptions {
    /// Bytes of a packet, or of what stands for one.
    pub fn packet_bytes(&self) -> u64 {
        self.packet.map_or(PIECE, |ByteSize(bytes)| bytes)
    }

    /// Checks what every card wants: whole words in packets, faults of those that it knows.
    pub fn check(&self, faults: &[FaultKind]) -> Result<(), String> {
        if let Some(ByteSize(packet)) = self.packet
            && (packet == 0 || packet % 8 != 0)
        {
            return Err(format!(
                "packets of {packet} bytes: the payload is words of 8 bytes; try {}",
                ByteSize(packet.next_multiple_of(8).max(8))
            ));
        }
        if let Some(BitRate(rate)) = self.rate
            && !(rate.is_finite() && rate > 0.0)
        {
            return Err(format!(
                "a rate of {} sends nothing; leave it out for as fast as it goes",
                BitRate(rate)
            ));
        }
        for fault in &self.faults {
            let names: Vec<&str> = faults.iter().map(|(name, _)| *name).collect();
            if !names.contains(&fault.name.as_str()) {
                return Err(match nearest(&fault.name, &names) {
                    Some(near) => {
                        format!("there is no fault `{}`; did you mean `{near}`?", fault.name)
                    }
                    None => format!(
                        "there is no fault `{}`; there are {}",
                        fault.name,
                        names.join(", ")
                    ),
                });
            }
        }
        Ok(())
    }
}

impl FromStr for FaultOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('@');
        parts
            .and_then(|(name, transfer)| {
                Some(Self {
                    name: Some(name).filter(|name| !name.is_empty())?.to_owned(),
                    transfer: transfer.parse().ok()?,
                })
            })
            .ok_or_else(|| {
                format!(
                    "{text:?} is not a fault and the transfer that meets it; try \"overrun@50\""
                )
            })
    }
}

impl fmt::Display for FaultOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.transfer)
    }
}

impl<'de> Deserialize<'de> for FaultOption {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for FaultOption {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FaultOption".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": "^[^@]+@[0-9]+$",
            "examples": ["overrun@50", "remove@300"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_options_are_parsed_and_checked() {
        assert_eq!(
            "overrun@50".parse(),
            Ok(FaultOption {
                name: "overrun".to_owned(),
                transfer: 50
            })
        );
        for wrong in ["overrun", "@5", "overrun@", "overrun@x", "overrun@-1"] {
            let error = wrong.parse::<FaultOption>().unwrap_err();
            assert!(error.contains(wrong) && error.contains("try"), "{error}");
        }
        let options: EmulatedOptions =
            toml::from_str("faults = [\"stuk@3\"]\npacket = \"1 KiB\"").unwrap();
        let error = options.check(&[("stuck", ""), ("remove", "")]).unwrap_err();
        assert!(error.contains("did you mean `stuck`"), "{error}");
        assert_eq!(options.check(&[("stuk", "")]), Ok(()));
        let error = toml::from_str::<EmulatedOptions>("packett = 3").unwrap_err();
        assert!(error.message().contains("unknown field"));
    }

    #[test]
    fn packet_size_and_rate_are_checked() {
        let with = |packet| EmulatedOptions {
            packet: Some(ByteSize(packet)),
            ..EmulatedOptions::default()
        };
        assert!(with(1001).check(&[]).unwrap_err().contains("1008 B"));
        assert!(with(0).check(&[]).is_err());
        assert_eq!(with(8).check(&[]), Ok(()));
        let options = EmulatedOptions {
            rate: Some(BitRate(0.0)),
            ..EmulatedOptions::default()
        };
        assert!(options.check(&[]).unwrap_err().contains("leave it out"));
    }
}
