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
//! programmed by daq: a user-supplied command receives the addresses of the slots ([`engines::external`]).
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
use daq_core::check::{FileUse, NamedFile};
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::dma::FrameSequence;
use daq_core::entry::{EngineRequirements, SilenceHint, SourceContext, SourceEntry, SourceSpec};
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

/// The registry entry of the source, in a program that offers the emulated devices `E`.
pub const fn entry<E: EmulatedDevices>() -> SourceEntry {
    SourceEntry {
        name: "fpga",
        summary: "Drive a card's DMA engine from user space: XDMA, LitePCIe, or an emulated card",
        example: EXAMPLE,
        schema: |_| schemars::schema_for!(FpgaConfig),
        parse: |section, _, diagnostics| parse(section, diagnostics, E::DEVICES),
    }
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

/// A source whose configuration was checked.
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
            // Each source emulates its own device.
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
        Ok(Geometry::new(1, slot_bytes))
    }

    fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem> {
        let bytes = geometry.frame_bytes;
        self.samples.layout(bytes).map_err(|rest| {
            let message = format!(
                "a frame of {bytes} bytes is not a whole number of samples of all channels: {rest} bytes are left over"
            );
            Problem::at("samples", message)
                .help("correct `type`, `complex` or `channels`, or change `slot` of the ring")
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
                "the table `emulated` is ignored: it is only for `device = \"emulated:NAME\"`"
                    .to_owned(),
            );
        }
        if self.config.samples.is_none() {
            notes.push("the sample type is not declared, so int8 is assumed".to_owned());
        }
        if self.supports_backpressure() && self.config.sequence.is_none() {
            notes.push(
                "frames that the design drops under backpressure are detected only if frames carry sequence numbers (`sequence`)"
                    .to_owned(),
            );
        }
        if !self.supports_backpressure() {
            notes.push(format!(
                "`{}` does not support backpressure: frames that the engine overwrites before they are copied are counted as `overrun`",
                self.engine.name
            ));
        }
        notes
    }

    fn silence_hint(&self) -> SilenceHint {
        let name = self.engine.name;
        Box::new(move || {
            format!(
                "the engine `{name}` completes no transfers: check the trigger and clock of the design and the PCIe link of the \
                 card (`daq doctor`, `dmesg`)"
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
