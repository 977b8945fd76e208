//! The plan: the configuration resolved for a topology.
//!
//! Planning is a pure function. It opens no files or devices, so a plan can be printed and tested on any machine.

mod attach;
mod check;
mod config;
mod device_key;
mod dma;
mod fill;
mod graph;
mod known_keys;
mod mapping;
mod memory;
mod nics;
mod render;
mod resolve;
mod spread;
mod totals;
mod wiring;

use crate::frame::PacketSizes;
use crate::gpu::Dispatch;
use crate::staging::{Matrix, Route};
use crate::topology::DataPath;
pub use attach::{Attach, AttachAccess, AttachKey, MAX_GUARANTEED_PROCESSES};
pub use config::{
    Component, Config, DaqKeys, DoorbellInitiator, FILE_KERNEL, Incomplete, KernelKeys, Memory,
    ReaderKeys, RingKeys, RingSection, SinkKeys, SourceKeys, StagingKeys, StagingWait,
};
pub use device_key::DeviceKey;
pub use fill::FillKey;
pub use graph::GraphFormat;
pub use known_keys::KnownKeys;
pub use resolve::{PlanContext, resolve};
pub use spread::{PlannedShare, SpreadKey};

use crate::gpu::{Backend, Writer};
use crate::kernel::Side;
use crate::layout::Layout;
use crate::ledger::CountSet;
use crate::notify::Wait;
use crate::region::Placement;
use crate::reorder::Geometry;
use crate::ring::{Fill, RingOptions};
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt::Display;

/// Number of readers that can attach while the pipeline runs.
const SPARE_READERS: usize = 4;

/// A source of the plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedSource {
    /// The component's name.
    pub name: String,
    /// The driver's name.
    pub driver: String,
    /// Origins of the data: addresses, multicast groups, files, devices; empty if the source generates its data.
    pub inputs: Vec<String>,
    /// The ring that the driver writes: the declared ring, or the ring inserted before it.
    pub ring: String,
    /// How the data reach the declared ring.
    pub path: DataPath,
    /// The reason for the path.
    pub reason: String,
    /// How frames are divided into packets.
    #[serde(skip)]
    pub geometry: Geometry,
    /// What the geometry is detected from at run time; the planned geometry is then an upper bound. `None` if the
    /// planned geometry is exact.
    pub detected_from: Option<&'static str>,
    /// Whether the source waits for free slots.
    pub supports_backpressure: bool,
    /// Number of threads.
    pub threads: usize,
    /// The cores of the threads; empty for any core.
    pub cores: Vec<usize>,
    /// How the threads wait.
    #[serde(serialize_with = "debug")]
    pub wait: Wait,
    /// Number of bytes that the component allocates.
    pub memory: usize,
    /// The DMA engine; `None` for sources without one.
    pub engine: Option<PlannedEngine>,
    /// The RDMA NIC that `auto` selects; `None` without `auto`, or if the host has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// The counters that only this kind of source has.
    #[serde(skip)]
    pub counts: Vec<&'static CountSet>,
    /// Names of the parts of its frames; empty if frames have one part.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
    /// Assumed defaults and detected limits.
    pub notes: Vec<String>,
}

/// The DMA engine of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedEngine {
    /// Size of each private slot of a free-running engine in bytes; frames are copied from these slots to the ring.
    /// `None` with backpressure.
    pub private_slot_bytes: Option<usize>,
    /// The kernel whose doorbell the engine rings with its last write.
    pub doorbell_of: Option<String>,
    /// Names of the faults that the engine can report.
    #[serde(skip)]
    pub faults: &'static [&'static str],
}

/// A ring of the plan.
#[derive(Clone, Debug, Serialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each field is an independent property"
)]
pub struct PlannedRing {
    /// The ring's name; inserted rings are called `RING@PLACEMENT`.
    pub name: String,
    /// The memory that holds the ring.
    #[serde(serialize_with = "display")]
    pub placement: Placement,
    /// The reason for the placement.
    pub reason: String,
    /// The device that writes the ring directly; `None` if the CPU or a copy writes it.
    #[serde(skip)]
    pub writer: Option<Writer>,
    /// The backend expected to allocate CPU-mappable GPU memory; `None` for plain host or CUDA memory.
    pub mapping: Option<Backend>,
    /// The reason for the backend, with the backends that refused; empty if the CPU does not store to the ring.
    pub mapping_reason: String,
    /// The reason why the ring was inserted; `None` for declared rings.
    pub inserted: Option<String>,
    /// Number of slots.
    pub slots: usize,
    /// Number of payload bytes per slot.
    pub slot_bytes: usize,
    /// Number of packets per frame; 0 if frames do not consist of packets.
    pub packets_per_frame: u32,
    /// Sizes of the packets; 0 if frames do not consist of packets, or if the packet sizes are detected at run time. Then
    /// each frame's metadata contains them.
    #[serde(flatten)]
    pub packet_sizes: PacketSizes,
    /// Names of the fields that frames keep from the headers of their packets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
    /// Whether the producer waits for free slots.
    pub supports_backpressure: bool,
    /// The bytes written in place of missing packets.
    #[serde(skip)]
    pub fill: Fill,
    /// Preferred NUMA node.
    pub node: Option<u32>,
    /// Whether to lock the ring in memory.
    pub lock: bool,
    /// Whether to use huge pages.
    pub huge: bool,
    /// The share of a spread ring that the ring holds; `None` for other rings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<PlannedShare>,
    /// How other processes may attach to the ring; `None` if they cannot.
    #[serde(skip)]
    pub attach: Option<Attach>,
    /// The layout of a frame.
    #[serde(serialize_with = "display")]
    pub layout: Layout,
    /// Whether frames can be shorter than the layout, because their size is detected at run time.
    pub is_layout_maximum: bool,
    /// The component that fills the ring.
    pub producer: String,
    /// The components that read the ring.
    pub readers: Vec<String>,
    /// Size of the ring's region in bytes.
    pub region_bytes: usize,
    /// Size of the ring's metadata in host memory in bytes.
    pub metadata_bytes: usize,
}

impl PlannedRing {
    /// Returns the maximum number of readers that are attached at a time.
    fn max_readers(&self) -> usize {
        let has_guarantee = self.attach.is_some_and(|attach| attach.guarantee);
        let processes = if has_guarantee {
            MAX_GUARANTEED_PROCESSES
        } else {
            0
        };
        self.readers.len() + SPARE_READERS + processes
    }

    /// Returns the options for [`Ring::new`](crate::ring::Ring::new).
    pub fn options(&self) -> RingOptions {
        RingOptions {
            name: self.name.clone(),
            slots: self.slots,
            slot_bytes: self.slot_bytes,
            packets_per_frame: self.packets_per_frame,
            kept: self.kept.clone(),
            supports_backpressure: self.supports_backpressure,
            readers: self.max_readers(),
            fill: self.fill,
            notifiers: Vec::new(),
            single_threaded: false,
        }
    }
}

/// A kernel of the plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedKernel {
    /// The component's name; `KERNEL@GPU` for a kernel that runs on each GPU of a spread ring.
    pub name: String,
    /// The name of the kernel's section.
    #[serde(skip)]
    pub component: String,
    /// The kernel that the key `use` names.
    #[serde(rename = "use")]
    pub driver: String,
    /// The ring that the component reads.
    pub input: String,
    /// The ring that the component fills.
    pub output: String,
    /// The processor that runs the kernel.
    #[serde(serialize_with = "debug")]
    pub side: Side,
    /// How bursts are dispatched on a GPU; `None` on the CPU.
    pub dispatch: Option<Dispatch>,
    /// The doorbell; `None` unless the kernel is persistent.
    pub doorbell: Option<PlannedDoorbell>,
    /// Whether the kernel applies backpressure.
    pub guarantee: bool,
    /// What happens to frames with missing packets.
    pub incomplete: Incomplete,
    /// Maximum number of frames in one batch.
    pub burst: usize,
    /// The core of the thread; `None` for any core.
    pub core: Option<usize>,
    /// How the thread waits.
    #[serde(serialize_with = "debug")]
    pub wait: Wait,
    /// Number of bytes that the component allocates.
    pub memory: usize,
}

/// The doorbell of a persistent kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedDoorbell {
    /// The component that rings the doorbell.
    pub initiator: DoorbellInitiator,
    /// The backend expected to allocate the doorbell's memory; `None` if no backend was tried, or none works.
    pub backend: Option<Backend>,
    /// The memory that holds the doorbell, with the backends that refused.
    pub location: String,
}

/// A sink of the plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedSink {
    /// The component's name.
    pub name: String,
    /// The driver's name.
    pub driver: String,
    /// Destinations of the frames; empty if the sink has no destinations.
    pub to: Vec<String>,
    /// The ring that the component reads.
    pub input: String,
    /// Notes about the plan's decisions for the sink and the sink's external requirements.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Whether the sink applies backpressure.
    pub guarantee: bool,
    /// What happens to frames with missing packets.
    pub incomplete: Incomplete,
    /// Maximum number of frames in one batch.
    pub burst: usize,
    /// The core of the thread; `None` for any core.
    pub core: Option<usize>,
    /// How the thread waits.
    #[serde(serialize_with = "debug")]
    pub wait: Wait,
    /// Number of bytes that the component allocates.
    pub memory: usize,
    /// The RDMA NIC that `auto` selects; `None` without `auto`, or if the host has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// The counters that only this kind of sink has.
    #[serde(skip)]
    pub counts: Vec<&'static CountSet>,
}

/// A section outside the pipeline, such as `[http]`, with its exclusive resources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedOther {
    /// The section's title.
    pub name: String,
    /// Addresses and paths that the section claims.
    pub claims: Vec<String>,
    /// Notes about the resources that the section uses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// How a copy transfers its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PlannedMethod {
    /// The GPU's copy engine.
    Engine,
    /// CPU stores for bursts below the threshold, the copy engine for larger ones.
    Either,
    /// CPU stores only.
    Stores,
}

/// A copy between two rings in different memories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedCopy {
    /// Name of the copy as a reader of `from` and as the producer of `to`.
    pub name: String,
    /// The ring that the copy reads.
    pub from: String,
    /// The ring that the copy fills.
    pub to: String,
    /// The memories of both rings.
    pub route: Route,
    /// How the copy transfers its bytes.
    pub method: PlannedMethod,
    /// The kernel whose thread does the copy; `None` if the staging engine does it.
    pub kernel_thread: Option<String>,
    /// The reason for the path, if several paths are possible; otherwise empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A copy that joins the frames of several rings, which are shares of a spread ring, in one ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedGather {
    /// Name of the copy as the producer of `to`.
    pub name: String,
    /// The rings that the copy reads.
    pub from: Vec<String>,
    /// Names of the copy as a reader of each ring in `from`.
    pub readers: Vec<String>,
    /// The ring that the copy fills.
    pub to: String,
    /// Whether the rings in `from` have parts of frames; otherwise they have whole frames.
    pub is_divided: bool,
    /// Whether a GPU that is slow or has failed blocks the others.
    pub guarantee: bool,
    /// The rows and columns of the whole frame.
    #[serde(skip)]
    pub matrix: Option<Matrix>,
}

impl PlannedGather {
    /// Returns the names of the rings that the copy reads.
    pub fn sources(&self) -> String {
        self.from.join(", ")
    }
}

/// A configuration resolved for a topology.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The pipeline's name.
    pub name: String,
    /// Sources, in file order.
    pub sources: Vec<PlannedSource>,
    /// Rings, in the order of the data flow.
    pub rings: Vec<PlannedRing>,
    /// Copies between rings.
    pub copies: Vec<PlannedCopy>,
    /// Copies that join the shares of spread rings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gathers: Vec<PlannedGather>,
    /// Kernels, in the order of the data flow.
    pub kernels: Vec<PlannedKernel>,
    /// Sinks, in file order.
    pub sinks: Vec<PlannedSink>,
    /// Sections outside the pipeline.
    pub others: Vec<PlannedOther>,
    /// Number of data threads.
    pub threads: usize,
    /// Cores that data threads may use; empty if unknown.
    pub cores: Vec<usize>,
    /// Total bytes of host memory for rings, kernels, sinks and browsers.
    pub memory: usize,
    /// Total bytes of GPU memory for rings and kernels.
    pub device_memory: usize,
    /// GPUs whose mapping backends were not tried, although a decision depends on them.
    #[serde(skip)]
    pub untried: BTreeSet<u32>,
    /// Hardware and memory that the configuration requires but the host does not have.
    pub unavailable: Vec<String>,
    /// Limits of the host that the plan exceeds without failing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Plan {
    /// Returns the ring called `name`.
    pub fn ring(&self, name: &str) -> Option<&PlannedRing> {
        self.rings.iter().find(|ring| ring.name == name)
    }

    /// Returns the memories between which GPUs copy frames: of all copies and gathers.
    pub fn routes(&self) -> impl Iterator<Item = Route> {
        let copies = self.copies.iter().map(|copy| copy.route);
        let gathers = self.gathers.iter();
        copies.chain(gathers.flat_map(|gather| self.routes_into(gather)))
    }

    /// Returns the memories between which GPUs copy frames from or to the ring `name`.
    pub fn routes_of(&self, name: &str) -> impl Iterator<Item = Route> {
        let copies = self.copies.iter();
        let copies = copies.filter(move |copy| copy.from == name || copy.to == name);
        let gathers = self.gathers.iter();
        let gathers = gathers
            .filter(move |gather| gather.to == name || gather.from.iter().any(|from| from == name));
        copies
            .map(|copy| copy.route)
            .chain(gathers.flat_map(|gather| self.routes_into(gather)))
    }

    /// Returns the memories of each ring that `gather` reads and of its target.
    pub fn routes_into(&self, gather: &PlannedGather) -> impl Iterator<Item = Route> {
        let to = self.ring(&gather.to).map(|ring| ring.placement);
        let from = gather.from.iter().filter_map(|from| self.ring(from));
        from.filter_map(move |from| Route::between(from.placement, to?))
    }

    /// Returns the source whose frames the ring `name` contains, directly or copied.
    pub fn source_of(&self, name: &str) -> Option<&PlannedSource> {
        let filled = self.origin(name);
        self.sources.iter().find(|source| source.ring == filled)
    }

    /// Returns the ring from which the ring `name` is copied, directly or through other rings; `name` itself if the ring is
    /// not a copy.
    fn origin<'a>(&'a self, name: &'a str) -> &'a str {
        let copied_from = |name: &&'a str| {
            let copy = self.copies.iter().find(|copy| copy.to == *name)?;
            Some(copy.from.as_str())
        };
        // Each ring has one producer, and no ring is a copy of itself.
        let rings = std::iter::successors(Some(name), copied_from);
        rings.take(self.copies.len() + 1).last().unwrap_or(name)
    }
}

fn display<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn debug<T: std::fmt::Debug, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format!("{value:?}").to_lowercase())
}

#[cfg(test)]
mod tests;
