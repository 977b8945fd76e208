//! The facts that a source states about itself, from which the plan is made.

use crate::check::NamedFile;
use crate::claim::Claim;
use crate::dma::{EngineInfo, FrameSequence};
use crate::gpu::Writer;
use crate::layout::Layout;
use crate::ledger::CountSet;
use crate::reorder::{Arrival, Geometry};
use crate::source::Inlet;
use crate::topology::P2pPreference;
use std::sync::Arc;

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
    /// What fills the slots, for the plan: the start of a sentence that ends with "to host memory".
    pub action: &'static str,
    /// Whether the engine should write to GPU memory.
    pub preference: P2pPreference,
    /// Reason why the device cannot write to GPU memory; `None` if the device can write to GPU memory.
    pub host_only: Option<String>,
    /// Whether the CPU must read the written memory to detect new data.
    pub cpu_reads_memory: bool,
    /// Whether the device's last write of a transfer can ring the doorbell of a persistent kernel.
    pub can_ring_doorbell: bool,
    /// Names of the faults that the engine can report ([`EngineInfo::faults`]).
    pub faults: &'static [&'static str],
    /// Required alignment of the slot size in bytes, a power of two.
    pub alignment: usize,
    /// Maximum slot size in bytes.
    pub max_slot: usize,
    /// Minimum number of slots in the ring: a free-running engine may be overwriting all slots of a smaller ring.
    pub min_slots: usize,
    /// Maximum number of slots in the ring.
    pub max_slots: usize,
}

impl EngineRequirements {
    /// Returns the requirements of the engine `info` without a device; the device may write to GPU memory.
    pub const fn new(info: &EngineInfo, writer: Writer, preference: P2pPreference) -> Self {
        Self {
            device: None,
            writer,
            action: "the device writes",
            preference,
            host_only: None,
            cpu_reads_memory: false,
            can_ring_doorbell: false,
            faults: info.faults,
            alignment: info.limits.alignment,
            max_slot: info.limits.max_slot,
            min_slots: 1,
            max_slots: info.limits.max_slots,
        }
    }
}

/// What a source states about itself. A source sets the fields that differ from the default:
/// `SourceFacts { threads: 2, ..SourceFacts::default() }`.
pub struct SourceFacts {
    /// The resources that only this source may use.
    pub claims: Vec<Claim>,
    /// The origins of the source's data, for the plan, such as the multicast groups that it joins or the file that it reads. If
    /// empty, the plan shows the claims.
    pub origins: Vec<String>,
    /// The files that the source reads.
    pub files: Vec<NamedFile>,
    /// The slot size in payload bytes that is used if the ring's section does not specify one.
    pub preferred_slot: Option<usize>,
    /// What the geometry is detected from at run time, such as "the first heaps". In this case [`FrameFacts::geometry`] is only
    /// an upper bound, and each frame's record contains the actual geometry. `None` if the geometry is exact.
    pub detected_from: Option<&'static str>,
    /// Whether the frame length is also detected at run time. Frames can then be shorter than in the geometry.
    pub detects_frame_size: bool,
    /// The names of the fields that frames keep from the headers of their packets, at most
    /// [`MAX_KEPT_FIELDS`](crate::frame::MAX_KEPT_FIELDS). Kernels and sinks of the source's ring receive the fields with
    /// each frame ([`FrameMeta::kept`](crate::frame::FrameMeta::kept)).
    pub kept: Vec<String>,
    /// Whether the source can wait for free slots, as a file or a free-running simulator can. A socket cannot wait.
    pub supports_backpressure: bool,
    /// The arrival pattern of packets, from which the plan calculates the size of the reorder window. `None` if the size
    /// depends only on the geometry.
    pub arrival: Option<Arrival>,
    /// The key and the help of the warning that the sequence number of packets repeats too soon to detect every loss.
    pub number_advice: (&'static str, &'static str),
    /// The requirements of the source's DMA engine; `None` for a source without a DMA engine.
    pub engine: Option<EngineRequirements>,
    /// The position of the sequence number in the frames of the DMA engine; `None` if frames contain no sequence number, or
    /// for a source without a DMA engine.
    pub frame_sequence: Option<FrameSequence>,
    /// The counters that only this kind of source has. They appear in reports, and in metrics as `daq_source_counts_total`.
    pub counts: Vec<&'static CountSet>,
    /// The names of the parts of frames, such as ports or antenna numbers; empty if frames have one part. Each part has a
    /// ledger of its own.
    pub parts: Vec<String>,
    /// The number of threads of the source.
    pub threads: usize,
    /// The configured CPU cores of the source's threads; empty if the threads may run on any core.
    pub cores: Vec<usize>,
    /// Sentences that the plan shows, such as assumed defaults and detected limits.
    pub notes: Vec<String>,
    /// Lists possible causes if no data arrives: addresses, firewalls, multicast groups, links.
    pub silence_hint: SilenceHint,
    /// How to examine the packets of the source with `daq inspect`, as the end of a sentence. `None` if that is not possible.
    pub inspect_advice: Option<String>,
    /// The object that accepts processes that produce the source's frames; `None` for other sources.
    pub inlet: Option<Arc<dyn Inlet>>,
}

impl Default for SourceFacts {
    /// Returns the facts about a source with one thread, which receives packets and uses no exclusive resource.
    fn default() -> Self {
        Self {
            claims: Vec::new(),
            origins: Vec::new(),
            files: Vec::new(),
            preferred_slot: None,
            detected_from: None,
            detects_frame_size: false,
            kept: Vec::new(),
            supports_backpressure: false,
            arrival: None,
            number_advice: ("format", "compare `delivered` with the sender's own count"),
            engine: None,
            frame_sequence: None,
            counts: Vec::new(),
            parts: Vec::new(),
            threads: 1,
            cores: Vec::new(),
            notes: Vec::new(),
            silence_hint: Box::new(|| {
                "check that the sender runs; `daq doctor` checks this machine".to_owned()
            }),
            inspect_advice: None,
            inlet: None,
        }
    }
}

/// What a source states about its frames in slots of one size.
#[derive(Clone, Debug)]
pub struct FrameFacts {
    /// How packets are arranged in frames.
    pub geometry: Geometry,
    /// The layout of the samples in a frame.
    pub layout: Layout,
    /// The number of bytes that the source allocates in addition to its ring, for the plan's memory total.
    pub memory: usize,
}

impl FrameFacts {
    /// Returns the facts about frames of `geometry` and `layout`, for which the source allocates only its ring.
    pub const fn new(geometry: Geometry, layout: Layout) -> Self {
        Self {
            geometry,
            layout,
            memory: 0,
        }
    }
}
