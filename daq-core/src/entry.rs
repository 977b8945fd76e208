//! Registry entries: name, parser and schema of each driver, kernel and sink.
//!
//! The lists of entries are plain slices (`daq_drivers::sources`, `daq_sinks::SINKS`,
//! `daq_pipelines::kernels::KERNELS`). `daq list`, `daq new`, the JSON schema and the reference pages are
//! derived from them.

use crate::check::NamedFile;
use crate::claim::Claim;
use crate::config::{Diagnostics, Problem, Section};
use crate::dma::FrameSequence;
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
    /// The name used in the configuration.
    pub name: &'static str,
    /// Description in one sentence, without a full stop.
    pub summary: &'static str,
    /// A valid example section with comments. The section's name is `NAME`; rings that it refers to are named `INPUT`
    /// and `OUTPUT`.
    pub example: &'static str,
    /// The JSON schema of the section's own keys.
    pub schema: fn() -> schemars::Schema,
    /// Reads the section's own keys, without accessing hardware. Returns `None` if errors were reported.
    pub parse: fn(&mut Section, &mut Diagnostics) -> Option<Box<S>>,
}

impl<S: ?Sized> fmt::Debug for Entry<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The registry entry of a source driver.
pub type SourceEntry = Entry<dyn SourceSpec>;
/// The registry entry of a kernel.
pub type KernelEntry = Entry<dyn KernelSpec>;
/// The registry entry of a sink driver.
pub type SinkEntry = Entry<dyn SinkSpec>;

/// Parameters for building a source.
#[derive(Clone, Debug)]
pub struct SourceContext {
    /// The source's name.
    pub name: String,
    /// The base directory of relative paths.
    pub directory: std::path::PathBuf,
    /// The frame geometry that [`SourceSpec::geometry`] returned for the ring's slot size.
    pub geometry: Geometry,
    /// The network card that the plan selected for `auto` ([`EngineRequirements::device`]).
    pub nic: Option<String>,
    /// The counters that [`SourceSpec::counts`] declared.
    pub counts: Counts,
    /// Counters of rejected packets by reason.
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
    /// The kind of device that writes to GPU memory: a card used through VFIO, or a network card.
    pub writer: Writer,
    /// Whether the engine should write to GPU memory.
    pub preference: P2pPreference,
    /// Reason why the device cannot write to GPU memory; `None` if the device can write to GPU memory.
    pub host_only: Option<String>,
    /// Whether the CPU must read the written memory to detect new data.
    pub cpu_reads_memory: bool,
    /// Whether the device's last write of a transfer can ring the doorbell of a persistent kernel.
    pub can_ring_doorbell: bool,
    /// Names of the faults that the engine can report ([`Engine::faults`](crate::dma::Engine::faults)).
    pub faults: &'static [&'static str],
    /// Required alignment of the slot size in bytes, a power of two.
    pub alignment: usize,
    /// Maximum slot size in bytes.
    pub max_slot: usize,
    /// Maximum number of slots in the ring.
    pub max_slots: usize,
}

/// The checked configuration of a source.
pub trait SourceSpec: Send + Sync {
    /// Returns the resources that only this source may use.
    fn claims(&self) -> Vec<Claim> {
        Vec::new()
    }

    /// Returns the origins of the source's data, for the plan. By default, these origins are the source's claims. A
    /// source can return more specific origins, such as the multicast groups that it joins or the file that it reads.
    fn origins(&self) -> Vec<String> {
        self.claims().iter().map(Claim::to_string).collect()
    }

    /// Returns the files that the source reads.
    fn files(&self) -> Vec<NamedFile> {
        Vec::new()
    }

    /// Returns the slot size in payload bytes that is used if the ring's section does not specify one.
    fn preferred_slot(&self) -> Option<usize> {
        None
    }

    /// Returns how packets are arranged in frames of slots of `slot_bytes` bytes, or why such frames are not possible.
    fn geometry(&self, slot_bytes: usize) -> Result<Geometry, Problem>;

    /// Returns what the geometry is detected from at run time, such as "the first heaps". In this case
    /// [`geometry`](Self::geometry) is only an upper bound, and each frame's record contains the actual geometry.
    /// Returns `None` if [`geometry`](Self::geometry) is exact.
    fn detected_from(&self) -> Option<&'static str> {
        None
    }

    /// Whether the frame length is also detected at run time. Frames can then be shorter than in the geometry.
    fn detects_frame_size(&self) -> bool {
        false
    }

    /// Returns the layout of a frame of `geometry`, or why the configured `samples` do not fit into such a frame.
    fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem>;

    /// Whether the source can wait for free slots, as a file or a free-running simulator can. A socket cannot wait.
    fn supports_backpressure(&self) -> bool;

    /// Returns the arrival pattern of packets, from which the plan calculates the size of the reorder window. Returns
    /// `None` if the size depends only on [`geometry`](Self::geometry).
    fn arrival(&self) -> Option<Arrival> {
        None
    }

    /// Returns the requirements of the source's DMA engine; `None` for a source without a DMA engine.
    fn engine(&self) -> Option<EngineRequirements> {
        None
    }

    /// Returns the position of the sequence number in the frames of the DMA engine; `None` if frames contain no
    /// sequence number, or for a source without a DMA engine.
    fn frame_sequence(&self) -> Option<FrameSequence> {
        None
    }

    /// Returns the names of the source's counters outside its ledger. These counters appear in reports, and in metrics
    /// as `daq_source_counts_total`.
    fn counts(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the number of threads of the source.
    fn threads(&self) -> usize {
        1
    }

    /// Returns the configured CPU cores of the source's threads; empty if the threads may run on any core.
    fn cores(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Returns the number of bytes that the source allocates in addition to its ring, for the plan's memory total.
    fn memory(&self, _geometry: &Geometry) -> usize {
        0
    }

    /// Returns sentences that the plan shows, such as assumed defaults and detected limits.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the reason why this machine cannot run the source, as far as this can be determined without opening the
    /// device. Not called if the plan is made for another machine.
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Returns a function that lists possible causes if no data arrives: addresses, firewalls, multicast groups, links.
    fn silence_hint(&self) -> SilenceHint {
        Box::new(|| "check that the sender runs; `daq doctor` checks this machine".to_owned())
    }

    /// Opens the source's sockets, files or devices.
    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError>;
}

/// All drivers and kernels that a configuration can name.
#[derive(Clone, Copy, Debug)]
pub struct Registry {
    /// Source drivers.
    pub sources: &'static [SourceEntry],
    /// Built-in kernels.
    pub kernels: &'static [KernelEntry],
    /// Sink drivers.
    pub sinks: &'static [SinkEntry],
}
