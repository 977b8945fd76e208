//! The source `fpga`: drives the DMA engine of a card from user space.
//!
//! ```text
//!   design ─▶ engine ─▶ DMA ─▶ slots of a ring
//!     ▲         ▲  │
//!     │         │  └─▶ completions: words in host memory, a register, interrupts
//!  `registers`  credits
//! ```
//! An engine ([`ENGINES`]) receives the addresses of all slots when it is armed. An engine with credits fills only free
//! slots. An engine without credits is free-running: frames that it overwrites before they were copied are counted as
//! `overrun`. A transport ([`transports`]) gives access to the card: Linux VFIO, the vfio-user protocol for a card that
//! another process emulates, or an emulated device in this process. A card that keeps its vendor's driver is not
//! programmed by daq: a user-supplied command receives the addresses of the slots (`engines/external`).
//!
//! # Ledger
//! The unit is the frame: one transfer of the engine.
//!
//! | event | counted as |
//! |---|---|
//! | the engine overwrote a frame before it was read | lost, `overrun` |
//! | the design's sequence number skips values (`sequence`) | lost, `wire_gap` |
//! | one sequence number is damaged: the next frame does not continue from it | lost, `bad_packet` |
//! | the sequence number restarts | a new epoch; its first frame is lost as `bad_packet`, because at first it looks like a damaged one |
//! | the device reports an error | the named fault |

pub mod device;
pub mod engines;
pub mod guard;
pub mod keys;
pub mod register_table;
pub mod registers;
pub mod transports;
mod wait;

#[cfg(test)]
mod mock;
#[cfg(test)]
mod tests;

pub use engines::{ENGINES, EngineEntry, FpgaEngine};
pub use keys::{CompletionMode, FpgaConfig};

use crate::packet::frames::{CHANGE_SLOT, sample_layout};
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Document, Problem, Section};
use daq_core::dma::{CompletionOrder, EngineError, FrameSequence};
use daq_core::entry::{
    EngineRequirements, FrameFacts, Registry, SourceContext, SourceEntry, SourceFacts, SourceSpec,
};
use daq_core::gpu::Writer;
use daq_core::layout::Samples;
use daq_core::reorder::Geometry;
use daq_core::source::{Producers, SourceError};
use daq_core::units::ByteSize;
use device::Device;
use engines::Opening;
use keys::DeviceKey;
use registers::EngineWithRegisters;
use std::path::Path;
use std::sync::Arc;
use transports::Open;
use transports::emulated::EmulatedDeviceEntry;

/// The registry entry of the source.
pub const ENTRY: SourceEntry = SourceEntry {
    name: "fpga",
    summary: "Drive a card's DMA engine from user space: XDMA, LitePCIe, or an emulated card",
    example: EXAMPLE,
    schema: |registry| engines::schema(&engines(registry)),
    parse,
    recognise: &[],
};

/// Returns the engines of a program.
fn engines(registry: &Registry) -> Vec<EngineEntry> {
    registry.all::<EngineEntry>().copied().collect()
}

/// Returns the emulated devices of a program.
fn emulated_devices(registry: &Registry) -> Vec<&'static EmulatedDeviceEntry> {
    registry.all().collect()
}

const EXAMPLE: &str = r#"[source.NAME]
driver  = "fpga"
ring    = "OUTPUT"
device  = "0000:3b:00.0"      # or "vfio-user:card.sock", "emulated:xdma"
engine  = "xdma"              # or "litepcie"
samples = { type = "int16", complex = true, channels = 1, rate = "100 MHz" }
# channel    = 0
# completion = "interrupt"    # sleep until the card sends an interrupt; default: poll
# credits    = false          # xdma: no backpressure; the card may overwrite frames
# csr        = "csr.csv"      # litepcie: register addresses, written by the build of the design
# engine     = "external"     # for a card with its own driver: your program receives the addresses of the slots
# command    = ["./program-card"]    # external: your program; daq runs it at start and stop
# path       = "staged"       # copy through host memory; "direct": always try to write directly to GPU memory
# registers  = [{ bar = 0, offset = 0x10, value = 1 }, { bar = 0, offset = 0x10, value = 0, when = "stopped" }]
# sequence   = { offset = 0, bytes = 8, endian = "little" }    # a sequence number in each frame
"#;

/// Reads a section with the engine that the section selects.
fn parse(
    section: &mut Section,
    registry: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn SourceSpec>> {
    let name = section
        .peek("engine")
        .or_else(|| match section.peek("device")? {
            DeviceKey::Emulated(name) if !section.has("engine") => Some(name),
            _ => None,
        });
    let name: Option<String> = name;
    let engines = engines(registry);
    let selected = engines
        .iter()
        .find(|entry| name.as_deref() == Some(entry.info.name));
    if let Some(entry) = selected {
        return (entry.parse)(section, registry, diagnostics);
    }
    let keys = engines::engine_keys(&engines);
    section.detach(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    section.finish_checked::<FpgaConfig>(&[], diagnostics, |config| {
        let mut found = vec![engines::missing_engine(config, &engines)];
        found.extend(config.problems(&emulated_devices(registry)));
        found
    });
    None
}

/// A source whose configuration was checked, with the engine `E`.
pub struct FpgaSource<E: FpgaEngine> {
    /// The keys that all engines support.
    pub config: FpgaConfig,
    /// The keys of the engine.
    pub keys: E::Keys,
    registry: Registry,
    samples: Samples,
}

impl<E: FpgaEngine> FpgaSource<E> {
    /// Reads the remaining keys of a section. Returns `None` after an error was reported.
    pub fn read(
        section: &mut Section,
        registry: &Registry,
        diagnostics: &mut Diagnostics,
    ) -> Option<Self> {
        let own = EngineEntry::of::<E>().keys();
        let foreign: Vec<String> = engines::engine_keys(&engines(registry))
            .into_iter()
            .filter(|key| !own.contains(key))
            .collect();
        let given: Vec<&str> = foreign
            .iter()
            .map(String::as_str)
            .filter(|key| section.has(key))
            .collect();
        section.detach(&foreign.iter().map(String::as_str).collect::<Vec<_>>());
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let keys: Option<E::Keys> = section.take(&own, diagnostics);
        let config: FpgaConfig =
            section.finish_checked(&[], diagnostics, |config: &FpgaConfig| {
                Self::problems(config, keys.as_ref(), &given, registry)
            })?;
        let samples = config.samples.clone().unwrap_or_default();
        Some(Self {
            config,
            keys: keys?,
            registry: registry.clone(),
            samples,
        })
    }

    /// Reads the keys of a section from the TOML text `keys`, in a program with the entries of `registry`. The error
    /// contains all diagnostics.
    pub fn from_text(keys: &str, registry: &Registry) -> Result<Self, String> {
        let mut diagnostics = Diagnostics::new();
        let text = format!("[source.fpga]\n{keys}\n");
        let document = Document::from_text("fpga.toml", &text, &mut diagnostics);
        let mut sections = document.sections("source").into_iter();
        let read = sections
            .next()
            .and_then(|mut section| Self::read(&mut section, registry, &mut diagnostics));
        read.ok_or_else(|| diagnostics.render(document.sources(), false))
    }

    /// Checks the keys. `foreign` are the given keys that belong only to other engines.
    fn problems(
        config: &FpgaConfig,
        keys: Option<&E::Keys>,
        foreign: &[&str],
        registry: &Registry,
    ) -> Vec<Problem> {
        let mut found = keys.map_or(Vec::new(), |keys| E::problems(config, keys));
        for key in foreign {
            let message = format!("the engine `{}` does not support `{key}`", E::INFO.name);
            found.push(Problem::at(*key, message).help("remove this key"));
        }
        found.extend(config.problems(&emulated_devices(registry)));
        found
    }

    /// Opens the engine on `device`. Relative paths start at `directory`.
    pub fn open(&self, device: Arc<dyn Device>, directory: &Path) -> Result<E, EngineError> {
        E::open(&Opening {
            device,
            config: &self.config,
            keys: &self.keys,
            directory,
        })
    }

    /// Returns the reason why the card can write only to host memory, or `None` if it can also write to GPU memory.
    fn host_only(&self) -> Option<&'static str> {
        let reads_register = E::INFO.order == CompletionOrder::HostMemory;
        self.config.device.host_only().or(reads_register.then_some(
            "the engine reads its completions from a register, which does not prove that the payload has arrived in GPU memory",
        ))
    }

    fn emulated_device(&self) -> Option<&'static EmulatedDeviceEntry> {
        let DeviceKey::Emulated(name) = &self.config.device else {
            return None;
        };
        self.registry.find(name)
    }

    fn frame_sequence(&self) -> Option<FrameSequence> {
        let sequence = self.config.sequence.as_ref()?;
        keys::frame_sequence(sequence, self.config.max_gap).ok()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.config.emulated.is_some() && !matches!(self.config.device, DeviceKey::Emulated(_)) {
            notes.push(
                "the table `emulated` is ignored: it is only for `device = \"emulated:NAME\"`"
                    .to_owned(),
            );
        }
        if self.config.samples.is_none() {
            notes.push("the sample type is not declared, so int8 is assumed".to_owned());
        }
        let supports_backpressure = E::supports_backpressure(&self.keys);
        if supports_backpressure && self.config.sequence.is_none() {
            notes.push(
                "frames that the design drops under backpressure are detected only if frames carry sequence numbers (`sequence`)"
                    .to_owned(),
            );
        }
        notes.extend(
            self.frame_sequence()
                .and_then(|numbers| numbers.hidden_gap()),
        );
        if !supports_backpressure {
            notes.push(format!(
                "`{}` does not support backpressure: frames that the engine overwrites before they are copied are counted as `overrun`",
                E::INFO.name
            ));
        }
        notes
    }
}

impl<E: FpgaEngine> SourceSpec for FpgaSource<E> {
    fn facts(&self) -> SourceFacts {
        let FpgaConfig {
            device, channel, ..
        } = &self.config;
        let name = E::INFO.name;
        SourceFacts {
            claims: match device {
                // Each source emulates its own device.
                DeviceKey::Emulated(_) => Vec::new(),
                device => vec![Claim::Device(device.to_string())],
            },
            origins: vec![format!("{name} of {device}, channel {channel}")],
            files: E::files(&self.config, &self.keys),
            preferred_slot: Some(E::INFO.limits.preferred),
            supports_backpressure: E::supports_backpressure(&self.keys),
            engine: Some(EngineRequirements {
                device: device.pci().map(str::to_owned),
                host_only: self.host_only().map(str::to_owned),
                can_ring_doorbell: E::can_ring_doorbell(&self.keys),
                min_slots: E::min_slots(&self.keys),
                ..EngineRequirements::new(&E::INFO, Writer::Fpga, self.config.path)
            }),
            frame_sequence: self.frame_sequence(),
            cores: self.config.cores.clone(),
            notes: self.notes(),
            silence_hint: Box::new(move || {
                format!(
                    "the engine `{name}` completes no transfers: check the trigger and clock of the design and the PCIe link of the \
                     card (`daq doctor`, `dmesg`)"
                )
            }),
            ..SourceFacts::default()
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let limits = &E::INFO.limits;
        let (slot, name) = (ByteSize(slot_bytes as u64), E::INFO.name);
        if slot_bytes > limits.max_slot {
            let max = ByteSize(limits.max_slot as u64).rounded();
            return Err(Problem::at(
                "engine",
                format!("`{name}` cannot fill a slot of {slot} in one transfer"),
            )
            .help(format!("lower `slot` of the ring to at most {max}")));
        }
        if slot_bytes == 0 || !slot_bytes.is_multiple_of(limits.alignment) {
            let step = limits.alignment;
            return Err(Problem::at(
                "engine",
                format!(
                    "`{name}` needs a slot size that is a multiple of {step} bytes, not {slot}"
                ),
            )
            .help(format!(
                "make `slot` of the ring a multiple of {step} bytes"
            )));
        }
        if let Some(sequence) = self.frame_sequence()
            && sequence.extent().end > slot_bytes
        {
            let end = sequence.extent().end;
            return Err(Problem::at(
                "sequence.offset",
                format!("the sequence number ends at byte {end}, beyond the frame of {slot}"),
            )
            .help("lower the offset, which counts from the start of the frame, or raise `slot` of the ring"));
        }
        if let Some(emulated) = self.emulated_device() {
            (emulated.check_sequence)(&self.config, slot_bytes)?;
        }
        let layout = sample_layout(&self.samples, slot_bytes, CHANGE_SLOT)?;
        Ok(FrameFacts::new(Geometry::new(1, slot_bytes), layout))
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let config = &self.config;
        let failed = |why: &dyn std::fmt::Display| {
            SourceError::new(config.device.to_string(), why.to_string())
        };
        let open = Open {
            directory: &context.directory,
            registry: &self.registry,
            emulated_options: config.emulated.as_ref(),
        };
        let device =
            E::open_device(config, &self.keys, &open).map_err(|error| failed(&error.why))?;
        let engine = self
            .open(device.clone(), &context.directory)
            .map_err(|error| {
                let hint =
                    engines::suggest_engine(&engines(&self.registry), &*device, E::INFO.name);
                SourceError::new(
                    config.device.to_string(),
                    format!("{error}{}", hint.unwrap_or_default()),
                )
            })?;
        let engine = EngineWithRegisters::wrap(Box::new(engine), &*device, &config.registers)
            .map_err(|error| failed(&error.why))?;
        Ok(Producers::Engine(engine))
    }
}
