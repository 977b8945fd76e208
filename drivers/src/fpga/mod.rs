//! The source `fpga`: a card's DMA engine, driven from user space.
//!
//! ```text
//!   design ─▶ engine ─▶ DMA ─▶ slots of a ring
//!     ▲         ▲  │
//!     │         │  └─▶ completions: words in host memory, a register, interrupts
//!  `registers`  credits
//! ```
//! An engine ([`ENGINES`]) is told the addresses of all slots once. One that takes credits fills exactly the slots that
//! are free. One that does not goes round: frames that it overwrites before they were copied are counted as `overrun`.
//! The card is reached by a transport ([`transports`]): through the kernel's VFIO, as another process over the vfio-user
//! protocol, or as a model in this process. A card that keeps its vendor's driver is reached by nobody here: the addresses
//! of its slots are handed to a command of the user's ([`engines::external`]).
//!
//! # Ledger
//! The unit is the frame: one transfer of the engine.
//!
//! | what happens | what is counted |
//! |---|---|
//! | the engine overwrote a frame before it was read | lost, `overrun` |
//! | the design's running number jumps (`sequence`) | lost, `wire_gap` |
//! | one running number is damaged: it and the next one do not go on from each other | lost, `bad_packet` |
//! | the running number begins anew | an epoch; its first frame lost, `bad_packet`, for it cannot be told from a damaged one |
//! | the device reports an error | the fault by its name |

pub mod config;
pub mod device;
pub mod engines;
pub mod guard;
pub mod registers;
pub mod transports;

#[cfg(test)]
mod mock;
#[cfg(test)]
mod tests;

pub use config::FpgaConfig;
pub use engines::{ENGINES, EngineEntry};

use config::DeviceKey;
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::dma::FrameSequence;
use daq_core::entry::{EngineRequirements, SilenceHint, SourceContext, SourceEntry, SourceSpec};
use daq_core::examine::{FileUse, NamedFile};
use daq_core::gpu::Writer;
use daq_core::layout::{Layout, Samples};
use daq_core::reorder::Geometry;
use daq_core::source::{Producers, SourceError};
use daq_core::units::ByteSize;
use device::Device;
use engines::Opening;
use registers::EngineWithRegisters;
use std::sync::Arc;
use transports::Open;
use transports::emulated::{EmulatedDeviceEntry, EmulatedDevices};
use transports::kernel_driver::KernelDriverDevice;

/// The registry entry, in a program that offers the emulated devices `E`.
pub const fn entry<E: EmulatedDevices>() -> SourceEntry {
    SourceEntry {
        name: "fpga",
        summary: "A card's DMA engine, driven from user space: XDMA, LitePCIe, or a simulated card",
        example: EXAMPLE,
        schema: || schemars::schema_for!(FpgaConfig),
        parse: |section, diagnostics| parse(section, diagnostics, E::DEVICES),
    }
}

const EXAMPLE: &str = r#"[source.NAME]
driver  = "fpga"
ring    = "OUTPUT"
device  = "0000:3b:00.0"      # or "vfio-user:card.sock", "emulated:xdma": a simulated card
engine  = "xdma"              # or "litepcie"
samples = { type = "int16", complex = true, channels = 1, rate = "100 MHz" }
# channel    = 0
# completion = "interrupt"    # sleep until the card interrupts; without it, poll
# credits    = false          # xdma: let it overwrite frames instead of holding the card back
# csr        = "csr.csv"      # litepcie: what the design's build wrote
# engine     = "external"         # a card that keeps its own driver: a program of yours is given the slots' addresses
# command    = ["./program-card"]    # external: that program, run at the start and at the stop
# path       = "staged"       # never straight into a GPU's memory; "direct": even where that looks impossible
# registers  = [{ bar = 0, offset = 0x10, value = 1 }, { bar = 0, offset = 0x10, value = 0, when = "stopped" }]
# sequence   = { offset = 0, bytes = 8, endian = "little" }    # a running number in each frame
"#;

/// A checked configuration.
struct Fpga {
    config: FpgaConfig,
    emulated: &'static [EmulatedDeviceEntry],
    engine: &'static EngineEntry,
    samples: Samples,
}

fn parse(
    section: &mut Section,
    diagnostics: &mut Diagnostics,
    emulated: &'static [EmulatedDeviceEntry],
) -> Option<Box<dyn SourceSpec>> {
    let check = |config: &FpgaConfig| config.problems(emulated);
    let config: FpgaConfig = section.finish_checked(&[], diagnostics, check)?;
    let engine = config.engine()?;
    let samples = config.samples.clone().unwrap_or_default();
    let fpga = Fpga {
        config,
        emulated,
        engine,
        samples,
    };
    Some(Box::new(fpga))
}

impl Fpga {
    fn emulated_device(&self) -> Option<&'static EmulatedDeviceEntry> {
        let DeviceKey::Emulated(name) = &self.config.device else {
            return None;
        };
        self.emulated.iter().find(|known| known.name == name)
    }
}

impl SourceSpec for Fpga {
    fn claims(&self) -> Vec<Claim> {
        match &self.config.device {
            // Each source has a model of its own.
            DeviceKey::Emulated(_) => Vec::new(),
            device => vec![Claim::Device(device.to_string())],
        }
    }

    fn files(&self) -> Vec<NamedFile> {
        let csr = self.config.csr.iter();
        csr.map(|csr| NamedFile::new("csr", csr, FileUse::Reads))
            .collect()
    }

    fn origins(&self) -> Vec<String> {
        let FpgaConfig {
            device, channel, ..
        } = &self.config;
        vec![format!(
            "{} of {device}, channel {channel}",
            self.engine.name
        )]
    }

    fn preferred_slot(&self) -> Option<usize> {
        Some(self.engine.limits.preferred)
    }

    fn geometry(&self, slot_bytes: usize) -> Result<Geometry, Problem> {
        let limits = &self.engine.limits;
        let (slot, name) = (ByteSize(slot_bytes as u64), self.engine.name);
        if slot_bytes > limits.max_slot {
            let most = ByteSize(limits.max_slot as u64).rounded();
            return Err(Problem::at(
                "engine",
                format!("`{name}` cannot fill slots of {slot} in one transfer"),
            )
            .help(format!("lower `slot` of the ring to at most {most}")));
        }
        if slot_bytes == 0 || !slot_bytes.is_multiple_of(limits.alignment) {
            let step = limits.alignment;
            return Err(Problem::at(
                "engine",
                format!("`{name}` fills slots of whole {step} bytes, not of {slot}"),
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
                format!("the number ends at byte {end}, beyond a frame of {slot}"),
            )
            .help("offsets count from the start of each frame; raise `slot` of the ring"));
        }
        if let Some(emulated) = self.emulated_device() {
            (emulated.check_sequence)(&self.config, slot_bytes)?;
        }
        Ok(Geometry::new(1, slot_bytes))
    }

    fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem> {
        let bytes = geometry.frame_bytes;
        self.samples.layout(bytes).map_err(|rest| {
            let message = format!("a frame of {bytes} bytes ends {rest} bytes into a sample");
            Problem::at("samples", message)
                .help("correct `type`, `complex` or `channels`, or choose another slot")
        })
    }

    fn supports_backpressure(&self) -> bool {
        (self.engine.supports_backpressure)(&self.config)
    }

    fn engine(&self) -> Option<EngineRequirements> {
        let limits = &self.engine.limits;
        Some(EngineRequirements {
            device: self.config.device.pci().map(str::to_owned),
            writer: Writer::Fpga,
            preference: self.config.path,
            host_only: self.config.device.host_only().map(str::to_owned),
            cpu_reads_memory: false,
            can_ring_doorbell: (self.engine.rings)(&self.config),
            faults: self.engine.faults,
            alignment: limits.alignment,
            max_slot: limits.max_slot,
            max_slots: limits.max_slots,
        })
    }

    fn frame_sequence(&self) -> Option<FrameSequence> {
        let sequence = self.config.sequence.as_ref()?;
        config::frame_sequence(sequence, self.config.max_gap).ok()
    }

    fn cores(&self) -> Vec<usize> {
        self.config.cores.clone()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.config.emulated.is_some() && !matches!(self.config.device, DeviceKey::Emulated(_)) {
            notes.push(
                "the table `emulated` is not used: it is for a card of this process".to_owned(),
            );
        }
        if self.config.samples.is_none() {
            notes.push("samples not declared: int8 assumed".to_owned());
        }
        if self.supports_backpressure() && self.config.sequence.is_none() {
            notes.push(
                "what the design drops while it is held back shows only where frames carry numbers (`sequence`)"
                    .to_owned(),
            );
        }
        if !self.supports_backpressure() {
            notes.push(format!(
                "`{}` cannot be held back: frames that it overwrites before they are copied are counted as `overrun`",
                self.engine.name
            ));
        }
        notes
    }

    fn silence_hint(&self) -> SilenceHint {
        let name = self.engine.name;
        Box::new(move || {
            format!(
                "the engine `{name}` completes no transfers: check trigger and clock of the design and the link of the card \
                 (`daq doctor`, `dmesg`)"
            )
        })
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let config = &self.config;
        let failed = |why: &dyn std::fmt::Display| {
            SourceError::new(config.device.to_string(), why.to_string())
        };
        let open = Open {
            directory: &context.directory,
            emulated: self.emulated,
            emulated_options: config.emulated.as_ref(),
        };
        let device = match &config.device {
            DeviceKey::Pci(address) if self.engine.name == engines::external::ENTRY.name => {
                KernelDriverDevice::open(address, config.address_bits)
                    .map(|device| device as Arc<dyn Device>)
            }
            device => transports::open(device, &open),
        }
        .map_err(|error| failed(&error.why))?;
        let opening = Opening {
            device: device.clone(),
            config,
            directory: &context.directory,
        };
        let engine = (self.engine.open)(&opening).map_err(|error| {
            let hint = engines::suggest_engine(&*device, self.engine.name);
            SourceError::new(
                config.device.to_string(),
                format!("{error}{}", hint.unwrap_or_default()),
            )
        })?;
        let engine = EngineWithRegisters::wrap(engine, &*device, &config.registers)
            .map_err(|error| failed(&error.why))?;
        Ok(Producers::Engine(engine))
    }
}
