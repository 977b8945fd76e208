//! Registry entries: name, parser and schema of each driver, kernel and sink.
//!
//! The lists of entries are plain slices (`daq_drivers::sources`, `daq_sinks::SINKS`,
//! `daq_pipelines::kernels::KERNELS`). `daq list`, `daq new`, the JSON schema and the reference pages are
//! derived from them.

use crate::claim::Claim;
use crate::config::{Diagnostics, Problem, Section};
use crate::dma::FrameSequence;
use crate::examine::NamedFile;
use crate::gpu::Writer;
use crate::kernel::KernelSpec;
use crate::layout::Layout;
use crate::ledger::{Counts, Rejections};
use crate::reorder::{Arrival, Geometry};
use crate::sink::SinkSpec;
use crate::source::{Producers, SourceError};
use crate::topology::P2pPreference;
use std::fmt;

/// The description of a driver, kernel or sink in the registry.
#[derive(Clone, Copy)]
pub struct Entry<S: ?Sized> {
    /// The name in configuration.
    pub name: &'static str,
    /// One sentence without a full stop.
    pub summary: &'static str,
    /// A commented, valid section with the name `NAME` and, where it needs them, rings named `INPUT` and
    /// `OUTPUT`.
    pub example: &'static str,
    /// The JSON schema of the section's own keys.
    pub schema: fn() -> schemars::Schema,
    /// Reads the section's own keys; touches no hardware. `None` when errors were reported.
    pub parse: fn(&mut Section, &mut Diagnostics) -> Option<Box<S>>,
}

impl<S: ?Sized> fmt::Debug for Entry<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The entry of a source's driver.
pub type SourceEntry = Entry<dyn SourceSpec>;
/// The entry of a kernel.
pub type KernelEntry = Entry<dyn KernelSpec>;
/// The entry of a sink's driver.
pub type SinkEntry = Entry<dyn SinkSpec>;

/// What a source needs to be built.
#[derive(Clone, Debug)]
pub struct SourceContext {
    /// The source's name.
    pub name: String,
    /// The directory that relative paths start from.
    pub directory: std::path::PathBuf,
    /// The geometry that [`SourceSpec::geometry`] gave for the ring's slots.
    pub geometry: Geometry,
    /// The network card that `auto` stands for ([`EngineRequirements::device`]).
    pub nic: Option<String>,
    /// The counters that [`SourceSpec::counts`] named.
    pub counts: Counts,
    /// Where it counts rejected packets by reason.
    pub rejections: Rejections,
}

/// Returns a hint for a silent source. Called when the silence is logged, never on a data thread.
pub type SilenceHint = Box<dyn Fn() -> String + Send>;

/// A DMA engine's requirements on the plan, as far as they are known without opening its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineRequirements {
    /// The device's PCI address, such as `0000:3b:00.0`, or the name of an RDMA network card, such as `mlx5_0`; `auto`
    /// selects the card nearest to the ring. `None` for an emulated device.
    pub device: Option<String>,
    /// What it is to a GPU's memory: a card behind VFIO or a network card.
    pub writer: Writer,
    /// Whether the engine should write to GPU memory.
    pub preference: P2pPreference,
    /// Why the device cannot write to GPU memory; `None` if it can.
    pub host_only: Option<String>,
    /// Whether the CPU must read the written memory to detect new data.
    pub cpu_reads_memory: bool,
    /// Whether its last write can ring the doorbell of a persistent kernel.
    pub can_ring_doorbell: bool,
    /// The faults that it can report by name ([`Engine::faults`](crate::dma::Engine::faults)).
    pub faults: &'static [&'static str],
    /// Slots are a multiple of so many bytes, a power of two.
    pub alignment: usize,
    /// Most bytes of a slot.
    pub max_slot: usize,
    /// Most slots of its ring.
    pub max_slots: usize,
}

/// A source's declared and checked configuration.
pub trait SourceSpec: Send + Sync {
    /// What it claims.
    fn claims(&self) -> Vec<Claim> {
        Vec::new()
    }

    /// Where its data comes from, for the plan: what it claims, unless it knows more, such as the groups
    /// that it joins or the file that it reads.
    fn origins(&self) -> Vec<String> {
        self.claims().iter().map(Claim::to_string).collect()
    }

    /// The files that it reads.
    fn files(&self) -> Vec<NamedFile> {
        Vec::new()
    }

    /// Payload bytes of a slot if the ring's section does not say.
    fn preferred_slot(&self) -> Option<usize> {
        None
    }

    /// How frames are made of places in slots of `slot_bytes`, or why they cannot be.
    fn geometry(&self, slot_bytes: usize) -> Result<Geometry, Problem>;

    /// What the geometry is detected from at run time, as in "the first heaps": [`geometry`](Self::geometry) is then an upper
    /// bound, and each frame's record has its own. `None` where it is exact.
    fn detected_from(&self) -> Option<&'static str> {
        None
    }

    /// Whether the length of frames is learned, too: they can then be shorter than the geometry's.
    fn detects_frame_size(&self) -> bool {
        false
    }

    /// What a frame of `geometry` means, or why the declared samples do not fit it.
    fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem>;

    /// Whether it waits for slots (a file, a free-running simulator) or must go on without (a socket).
    fn supports_backpressure(&self) -> bool;

    /// How packets reach its window, which the plan then sizes; `None` where [`geometry`](Self::geometry) alone decides.
    fn arrival(&self) -> Option<Arrival> {
        None
    }

    /// What its DMA engine asks of the plan; `None` for sources that are no engines.
    fn engine(&self) -> Option<EngineRequirements> {
        None
    }

    /// Where its engine's frames carry sequence numbers; `None` where they carry none, or it is no engine.
    fn frame_sequence(&self) -> Option<FrameSequence> {
        None
    }

    /// What it counts beside its ledger, by name; in reports and, as `daq_source_counts_total`, in metrics.
    fn counts(&self) -> &'static [&'static str] {
        &[]
    }

    /// Threads that it runs on.
    fn threads(&self) -> usize {
        1
    }

    /// Cores for those threads, as declared; empty = any.
    fn cores(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Bytes that it will allocate beside its ring; for the plan's memory total.
    fn memory(&self, _geometry: &Geometry) -> usize {
        0
    }

    /// Sentences for the plan: defaults that were assumed, limits that were found.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Why this machine cannot run it, as far as is seen without opening its device; not called for other machines.
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Where to look when nothing arrives: addresses, firewalls, groups, links.
    fn silence_hint(&self) -> SilenceHint {
        Box::new(|| "check that its sender runs, and `daq doctor`".to_owned())
    }

    /// Opens sockets, files or devices.
    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError>;
}

/// The lists of everything that a configuration can name.
#[derive(Clone, Copy, Debug)]
pub struct Registry {
    /// Drivers of sources.
    pub sources: &'static [SourceEntry],
    /// Built-in kernels.
    pub kernels: &'static [KernelEntry],
    /// Drivers of sinks.
    pub sinks: &'static [SinkEntry],
}
