//! The keys of an `fpga` source.

use super::transports::emulated::{EmulatedDeviceEntry, EmulatedOptions};
use crate::packet::{Endian, keys};
use daq_core::config::Problem;
use daq_core::dma::FrameSequence;
use daq_core::layout::Samples;
use daq_core::topology::P2pPreference;
use daq_core::units::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The card that the key `device` selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKey {
    /// A PCI address, as in `0000:3b:00.0`.
    Pci(String),
    /// The path of a vfio-user socket.
    VfioUser(PathBuf),
    /// The name of a device that is emulated in this process.
    Emulated(String),
}

impl DeviceKey {
    /// Returns the PCI address, or `None` for a device that is not selected by a PCI address.
    pub fn pci(&self) -> Option<&str> {
        match self {
            Self::Pci(address) => Some(address),
            Self::VfioUser(_) | Self::Emulated(_) => None,
        }
    }

    /// Returns the reason why the device can access only host memory, or `None` if it can also access GPU memory.
    pub const fn host_only(&self) -> Option<&'static str> {
        match self {
            Self::Pci(_) | Self::Emulated(_) => None,
            Self::VfioUser(_) => Some(
                "the device is emulated by another process, which can map only memory that has a file descriptor; GPU memory has none",
            ),
        }
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(address) => f.write_str(address),
            Self::VfioUser(path) => write!(f, "vfio-user:{}", path.display()),
            Self::Emulated(name) => write!(f, "emulated:{name}"),
        }
    }
}

/// Parses a PCI address and returns it in full and in lower case. The domain may be omitted.
fn pci_address(text: &str) -> Option<String> {
    let whole = match text.matches(':').count() {
        1 => format!("0000:{text}"),
        _ => text.to_owned(),
    };
    let (rest, function) = whole.split_once('.')?;
    let fields: Vec<&str> = rest.split(':').chain([function]).collect();
    let is_hex = |field: &str, digits: usize| {
        field.len() == digits && field.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let [domain, bus, slot, function] = fields[..] else {
        return None;
    };
    let is_slot_valid = is_hex(slot, 2) && u8::from_str_radix(slot, 16).is_ok_and(|slot| slot < 32);
    let is_valid = is_hex(domain, 4)
        && is_hex(bus, 2)
        && is_slot_valid
        && is_hex(function, 1)
        && function < "8";
    is_valid.then(|| whole.to_ascii_lowercase())
}

impl FromStr for DeviceKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let empty = |what: &str, example: &str| {
            format!("{what} is missing in \"{text}\"; try \"{example}\"")
        };
        if let Some(path) = text.strip_prefix("vfio-user:") {
            if path.is_empty() {
                return Err(empty("the path of the socket", "vfio-user:card.sock"));
            }
            return Ok(Self::VfioUser(path.into()));
        }
        if let Some(name) = text.strip_prefix("emulated:") {
            if name.is_empty() {
                return Err(empty("the name of the emulated device", "emulated:xdma"));
            }
            return Ok(Self::Emulated(name.to_owned()));
        }
        pci_address(text).map(Self::Pci).ok_or_else(|| {
            format!(
                "\"{text}\" is not a device: use a PCI address as printed by `lspci -D`, \"vfio-user:PATH\" or \"emulated:NAME\"; try \"0000:3b:00.0\""
            )
        })
    }
}

impl<'de> Deserialize<'de> for DeviceKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for DeviceKey {
    fn schema_name() -> Cow<'static, str> {
        "DeviceKey".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "examples": ["0000:3b:00.0", "vfio-user:card.sock", "emulated:xdma"],
        })
    }
}

/// How the source detects finished transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CompletionMode {
    /// Poll memory or a register.
    #[default]
    Poll,
    /// Sleep until the card raises an interrupt.
    Interrupt,
}

/// When a register step runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RegisterPhase {
    /// After the engine was armed.
    #[default]
    Start,
    /// Before the engine is stopped.
    Stop,
    /// After the engine was stopped, or did not stop in time.
    Stopped,
}

/// One register of the design to write or to wait for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterStep {
    /// Base address register (BAR), 0 to 5.
    pub bar: usize,
    /// Offset in the BAR, a multiple of 4.
    pub offset: u64,
    /// Value to write, or to wait for.
    pub value: u32,
    /// Bits that are written or compared. The other bits keep the value that the register reads. Default: all bits.
    pub mask: Option<u32>,
    /// Maximum time to wait until the register reads `value`. If it is set, the step only waits and does not write.
    pub wait: Option<Span>,
    /// When the step runs: `"start"`, after the engine is armed; `"stop"`, before the engine is stopped; `"stopped"`, after the
    /// engine is stopped. To stop, an engine finishes the transfer in progress, so the design must keep sending. If a `"stop"`
    /// step switches the design off, the transfer may never finish; the card is then disconnected from the bus and reset at
    /// each stop.
    #[serde(default)]
    pub when: RegisterPhase,
}

/// A sequence number at a fixed offset in each frame.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FrameNumberConfig {
    /// Offset of the number in bytes from the start of the frame.
    pub offset: usize,
    /// Size of the number in bytes: 1 to 8.
    pub bytes: usize,
    /// Byte order of the field.
    #[serde(default)]
    pub endian: Endian,
    /// Increment of the number from one frame to the next.
    #[serde(default = "one")]
    pub step: u64,
    /// Number of valid low bits, at least 2, if not all bits are valid. The sequence number wraps at 2 to the power of `bits`.
    pub bits: Option<u32>,
}

const fn one() -> u64 {
    1
}

/// The keys of an `fpga` source that all engines support.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FpgaConfig {
    /// The card: a PCI address such as `"0000:3b:00.0"`, bound to vfio-pci (unless `engine = "external"`);
    /// `"vfio-user:PATH"`, the socket of an emulated card in another process; or `"emulated:NAME"`, a card that is
    /// emulated in this process.
    pub device: DeviceKey,
    /// `device = "emulated:NAME"`: stream and faults of the emulated card, as the options of `daq emulate`.
    pub emulated: Option<EmulatedOptions>,
    /// The DMA engine of the card. Can be omitted for `"emulated:NAME"`, where the name selects the engine.
    pub engine: Option<String>,
    /// Index of the engine's DMA channel, starting at 0.
    #[serde(default)]
    pub channel: usize,
    /// How finished transfers are detected: `"poll"`, or `"interrupt"` to sleep until the card raises an interrupt.
    #[serde(default)]
    pub completion: CompletionMode,
    /// Registers of the design to write or wait for when the engine starts and stops, in this order.
    #[serde(default)]
    pub registers: Vec<RegisterStep>,
    /// Whether the card writes directly to GPU memory: `"auto"` decides by the PCIe topology, `"direct"` always tries,
    /// `"staged"` copies through host memory.
    #[serde(default)]
    pub path: P2pPreference,
    /// Position and format of the sequence number that the design writes to each frame. daq uses the number to detect frames
    /// that the design lost.
    pub sequence: Option<FrameNumberConfig>,
    /// Maximum number of consecutive frames that the sequence number can report as missing. After a longer gap or a step
    /// backwards, the number is treated as damaged and the frame is counted as lost (`bad_packet`). If the next frame
    /// continues from this number, daq assumes that the sender restarted and begins a new epoch.
    #[serde(default = "keys::default_max_gap")]
    pub max_gap: u64,
    /// CPU core of the source's thread. Default: any core.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// Format of the samples. Default: real int8, one channel.
    pub samples: Option<Samples>,
}

impl FpgaConfig {
    fn check_emulated(&self, emulated: &[&EmulatedDeviceEntry], found: &mut Vec<Problem>) {
        let DeviceKey::Emulated(name) = &self.device else {
            return;
        };
        let Some(card) = emulated.iter().find(|card| card.name == name) else {
            let names: Vec<String> = emulated
                .iter()
                .map(|card| format!("\"emulated:{}\" ({})", card.name, card.summary))
                .collect();
            let message = format!("there is no emulated device `{name}`");
            let help = format!("available: {}", names.join(", "));
            found.push(Problem::at("device", message).help(help));
            return;
        };
        let options = self.emulated.clone().unwrap_or_default();
        if let Err(why) = options.check(card.faults) {
            found.push(Problem::at("emulated", why));
        }
    }

    /// Checks the keys that all engines support, in a program that offers the devices in `emulated`. Returns all
    /// problems.
    pub(super) fn problems(&self, emulated: &[&EmulatedDeviceEntry]) -> Vec<Problem> {
        let mut found = Vec::new();
        self.check_emulated(emulated, &mut found);
        for (i, step) in self.registers.iter().enumerate() {
            let mut must = |holds: bool, key: &str, message: String, help: &str| {
                if !holds {
                    found.push(Problem::at(format!("registers.{i}.{key}"), message).help(help));
                }
            };
            must(
                step.bar < 6,
                "bar",
                format!("there is no BAR {}", step.bar),
                "a PCI device has BARs 0 to 5",
            );
            must(
                step.offset.is_multiple_of(4),
                "offset",
                format!("offset {:#x} is not aligned to 4 bytes", step.offset),
                "registers have 32 bits; use a multiple of 4",
            );
            let mask = step.mask.unwrap_or(u32::MAX);
            must(
                mask != 0 && step.value & !mask == 0,
                "mask",
                format!(
                    "the mask {mask:#x} does not cover the value {:#x}",
                    step.value
                ),
                "set a bit in the mask for each bit that is written or compared; the mask must not be 0",
            );
        }
        if self.cores.len() > 1 {
            let message = format!(
                "{} cores are given, but the source has one thread",
                self.cores.len()
            );
            found.push(Problem::at("cores", message).help("set one core"));
        }
        if let Some(sequence) = &self.sequence
            && let Err(problem) = frame_sequence(sequence, self.max_gap)
        {
            found.push(problem);
        }
        found
    }
}

/// Converts the configuration of the sequence number.
pub fn frame_sequence(
    sequence: &FrameNumberConfig,
    max_gap: u64,
) -> Result<FrameSequence, Problem> {
    let problem = |key: &str, message: String, help: &str| {
        Err(Problem::at(format!("sequence.{key}"), message).help(help))
    };
    let FrameNumberConfig {
        offset,
        bytes,
        endian,
        step,
        bits,
    } = *sequence;
    if !(1..=8).contains(&bytes) {
        return problem(
            "bytes",
            format!("the sequence number cannot have {bytes} bytes"),
            "set a number of bytes from 1 to 8",
        );
    }
    if offset > usize::MAX / 2 {
        return problem(
            "offset",
            format!("offset {offset} is beyond the largest possible frame"),
            "lower `offset`",
        );
    }
    let plain = FrameSequence::new(offset, bytes);
    let bits = bits.unwrap_or(plain.bits);
    if bits < 2 || bits > plain.bits {
        return problem(
            "bits",
            format!("`bits` = {bits} is invalid for a {bytes}-byte number"),
            "set `bits` to at least 2 and at most 8 × `bytes`",
        );
    }
    let max = (u64::MAX >> (64 - bits)) / 2;
    if step == 0 || step > max {
        return problem(
            "step",
            format!("increment {step} is invalid for a {bits}-bit number: it must be 1 to {max}"),
            "set `step` to the increment from one frame to the next, at least 1",
        );
    }
    let mut numbers = plain;
    numbers.big_endian = endian == Endian::Big;
    (numbers.bits, numbers.step, numbers.max_gap) = (bits, step, max_gap);
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fpga::engines::FpgaEngine;
    use crate::fpga::engines::litepcie::Writer;
    use crate::fpga::engines::xdma::Xdma;
    use crate::fpga::mock;

    fn keys<E: FpgaEngine>(text: &str) -> Vec<String> {
        mock::problem_keys::<E>(text)
    }

    #[test]
    fn device_accepts_three_spellings() {
        let read = |text: &str| text.parse::<DeviceKey>();
        assert_eq!(
            read("0000:3B:00.0"),
            Ok(DeviceKey::Pci("0000:3b:00.0".into()))
        );
        assert_eq!(read("3b:1f.7"), Ok(DeviceKey::Pci("0000:3b:1f.7".into())));
        assert_eq!(
            read("vfio-user:a/card.sock"),
            Ok(DeviceKey::VfioUser("a/card.sock".into()))
        );
        assert_eq!(
            read("emulated:xdma"),
            Ok(DeviceKey::Emulated("xdma".into()))
        );
        for text in [
            "",
            "3b",
            "0000:3b:00",
            "0000:3b:20.0",
            "0000:3b:00.8",
            "000:3b:00.0",
            "0000:3b:00.0.0",
            "0000:3g:00.0",
            "vfio-user:",
            "emulated:",
            "a:b:c:d.0",
            "é:00.0",
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains("; try \""), "{error}");
        }
        let device = read("emulated:xdma").unwrap();
        assert_eq!(device.to_string().parse(), Ok(device));
    }

    #[test]
    fn contradicting_keys_are_reported() {
        assert_eq!(
            keys::<Xdma>(
                "device = \"3b:00.0\"\nengine = \"xdma\"\ncredits = true\nbase = 0\ncsr = \"x\"\ncores = [1, 2]"
            ),
            ["base", "csr", "cores"]
        );
        let found = keys::<Xdma>(
            "device = \"emulated:xdma\"\nchannel = 4\n\
             registers = [{ bar = 6, offset = 2, value = 3, mask = 1 }, { bar = 0, offset = 4, value = 0, mask = 0 }]",
        );
        assert_eq!(
            found,
            [
                "channel",
                "registers.0.bar",
                "registers.0.offset",
                "registers.0.mask",
                "registers.1.mask"
            ]
        );
        assert_eq!(
            keys::<Writer>("device = \"3b:00.0\"\nengine = \"litepcie\""),
            ["csr"]
        );
        assert_eq!(
            keys::<Writer>("device = \"emulated:litepcie\"\nchannel = 7"),
            ["channel"]
        );
        for (sequence, key) in [
            ("offset = 0, bytes = 9", "bytes"),
            ("offset = 0, bytes = 4, bits = 33", "bits"),
            ("offset = 0, bytes = 1, bits = 0", "bits"),
            ("offset = 0, bytes = 1, bits = 1", "bits"),
            ("offset = 0, bytes = 4, step = 0", "step"),
        ] {
            let found = keys::<Xdma>(&format!(
                "device = \"emulated:xdma\"\nsequence = {{ {sequence} }}"
            ));
            assert_eq!(found, [format!("sequence.{key}")]);
        }
    }
}
