//! Devices that are emulated in this process: their configuration and their registry.
//!
//! This crate contains no emulators. A program adds the entries of its emulated devices to its registry.

use crate::fpga::FpgaConfig;
use crate::fpga::device::{BARS, Device, DeviceError};
use daq_core::config::Problem;
use daq_core::config::nearest;
use daq_core::entry::Registered;
use daq_core::units::{BitRate, ByteSize};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Creates an emulated device. The error explains the invalid option and the fix.
pub type BuildEmulated = fn(&EmulatedOptions) -> Result<Box<dyn EmulatedDevice>, String>;

/// Starts an emulated device in this process.
pub type StartEmulated = fn(Box<dyn EmulatedDevice>) -> Result<Arc<dyn Device>, DeviceError>;

/// One emulated device.
pub struct EmulatedDeviceEntry {
    /// The name in the configuration; also the name of the engine that drives it.
    pub name: &'static str,
    /// A summary of one sentence, without a full stop.
    pub summary: &'static str,
    /// The faults that the device can inject.
    pub faults: &'static [FaultKind],
    /// Checks that the frames of the device contain the numbers that `sequence` describes, in slots of the given number
    /// of bytes.
    pub check_sequence: fn(&FpgaConfig, usize) -> Result<(), Problem>,
    /// Creates the device.
    pub build: BuildEmulated,
    /// Starts the device in this process.
    pub open: StartEmulated,
}

impl Registered for EmulatedDeviceEntry {
    fn kind(&self) -> &'static str {
        "emulated devices"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        self.summary
    }
}

/// The identity of a device in its configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor, device, subsystem vendor and subsystem identifiers.
    pub ids: [u16; 4],
    /// Class, subclass and programming interface, 24 bits.
    pub class: u32,
    /// Size in bytes of each base address register: 0, or a power of two of at least 4 KiB. All are 32-bit memory.
    pub bars: [u32; BARS],
    /// Number of interrupt vectors (MSI-X), 0 to 32.
    pub vectors: u16,
}

/// A DMA fault: the memory is not mapped, or bus mastering is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("DMA fault: the device cannot access {bytes} bytes at {address:#x}")]
pub struct Fault {
    /// The device address.
    pub address: u64,
    /// The number of bytes.
    pub bytes: usize,
}

/// Access to the host's memory and interrupts. Memory accesses fail while bus mastering is disabled.
pub trait Host {
    /// Writes memory. Writes become visible in the order of the calls.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Reads memory.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault>;

    /// Raises an interrupt vector after all earlier writes. No effect if the vector is not connected.
    fn interrupt(&self, vector: u16);
}

/// The time at which a device has more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The device has more work immediately.
    Busy,
    /// The device has more work after this time, or after an access to its registers.
    After(Duration),
    /// The device has more work only after an access to its registers.
    Idle,
    /// The device was removed and has no more work. Every register reads all ones, and the device no longer writes.
    Removed,
}

/// An emulated PCI device. Only one thread at a time uses a device.
pub trait EmulatedDevice: Send {
    /// Returns the identity of the device.
    fn identity(&self) -> Identity;

    /// Reads the register at `offset`, a multiple of 4, of base address register `bar`.
    fn read(&mut self, bar: usize, offset: u64) -> u32;

    /// Writes a register. The effects occur during this call or in the next [`step`](Self::step).
    fn write(&mut self, bar: usize, offset: u64, value: u32, host: &dyn Host);

    /// Restores the state after power-on.
    fn reset(&mut self);

    /// Returns the register addresses in the format of LitePCIe's `csr.csv`; `None` for other devices.
    fn csr(&self) -> Option<&'static str> {
        None
    }

    /// Performs a bounded amount of work, at most some hundred microseconds.
    fn step(&mut self, host: &dyn Host) -> Step;
}

/// The content of a stream: 64-bit little-endian words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "EmulatedPattern")]
pub enum Pattern {
    /// Each word is its index in the stream: 0, 1, 2, …
    #[default]
    Counter,
    /// As `counter`, except that the first word of each packet is the packet number.
    Sequence,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Self; 2] = [Self::Counter, Self::Sequence];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Sequence => "sequence",
        }
    }
}

/// Stream and faults of an emulated device.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EmulatedOptions {
    /// Payload rate of each channel. Default: as fast as possible.
    pub rate: Option<BitRate>,
    /// Packet size in bytes, a multiple of 8. Default: the stream has no packets, and each transfer fills its slot.
    pub packet: Option<ByteSize>,
    /// Content of the payload.
    pub pattern: Pattern,
    /// Number of packets after which the stream ends. Without `packet`, one packet is 4 KiB.
    pub packets: Option<u64>,
    /// FIFO size of a stream with a rate. It fills up under backpressure; when it is full, whole packets are lost.
    pub fifo: Option<ByteSize>,
    /// Faults to inject, as `NAME@TRANSFER`. Each fault occurs once.
    pub faults: Vec<FaultOption>,
}

/// A fault, and the number of the transfer in which it occurs. Transfers are counted from 0 over all channels since the
/// last reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultOption {
    /// The name of a fault that the device supports.
    pub name: String,
    /// The transfer in which the fault occurs.
    pub transfer: u64,
}

/// A kind of fault: its name and its description.
pub type FaultKind = (&'static str, &'static str);

/// Packet size in bytes of a stream without `packet`.
const DEFAULT_PACKET: u64 = 4096;

impl EmulatedOptions {
    /// Returns the packet size in bytes.
    pub fn packet_bytes(&self) -> u64 {
        self.packet.map_or(DEFAULT_PACKET, |ByteSize(bytes)| bytes)
    }

    /// Checks packet size, rate and names of faults for a device that supports `faults`.
    pub fn check(&self, faults: &[FaultKind]) -> Result<(), String> {
        if let Some(ByteSize(packet)) = self.packet
            && (packet == 0 || packet % 8 != 0)
        {
            return Err(format!(
                "`packet` is {packet} bytes, but must be a multiple of 8; try {}",
                ByteSize(packet.next_multiple_of(8).max(8))
            ));
        }
        if let Some(BitRate(rate)) = self.rate
            && !(rate.is_finite() && rate > 0.0)
        {
            return Err(format!(
                "`rate` must be greater than zero, not {}; leave it out to send as fast as possible",
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
                        "there is no fault `{}`; available: {}",
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
                format!("{text:?} is not a fault in the form NAME@TRANSFER; try \"overrun@50\"")
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
