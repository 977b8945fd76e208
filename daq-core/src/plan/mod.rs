//! The plan: configuration × topology, resolved. A pure function: it opens nothing and can be printed and
//! tested anywhere.

mod check;
mod config;
mod dma;
mod graph;
mod known_keys;
mod mapping;
mod nics;
mod render;
mod resolve;
mod totals;
mod wiring;

use crate::gpu::Dispatch;
use crate::staging::Direction;
use crate::topology::DataPath;
pub use config::{
    Component, Config, DaqKeys, DoorbellInitiator, FILE_KERNEL, FillKey, Incomplete, KernelKeys,
    Memory, RingKeys, RingSection, SinkKeys, SourceKeys, StagingKeys, StagingWait,
};
pub use graph::GraphFormat;
pub use known_keys::KnownKeys;
pub use resolve::{PlanContext, resolve};

use crate::gpu::{Backend, Writer};
use crate::kernel::Side;
use crate::layout::Layout;
use crate::notify::Wait;
use crate::region::Placement;
use crate::reorder::Geometry;
use crate::ring::{Fill, RingOptions};
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt::Display;

/// Seats for readers that attach while the pipeline runs.
const SPARE_READERS: usize = 4;

/// A source in its place.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedSource {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Where it takes its data: the addresses it listens on, groups, files, devices; empty if it makes its data itself.
    pub inputs: Vec<String>,
    /// The ring that its driver writes: the declared one, or the one inserted before it.
    pub ring: String,
    /// How its bytes reach the declared ring.
    pub path: DataPath,
    /// Why that way.
    pub reason: String,
    /// How frames are made of places.
    #[serde(skip)]
    pub geometry: Geometry,
    /// What the geometry, here an upper bound, is learned from; `None` where it is exact.
    #[serde(rename = "learned_from")]
    pub detected_from: Option<&'static str>,
    /// Whether it waits for slots.
    pub supports_backpressure: bool,
    /// Threads that it runs on.
    pub threads: usize,
    /// Their cores; empty = any.
    pub cores: Vec<usize>,
    /// How they wait.
    #[serde(serialize_with = "debug")]
    pub wait: Wait,
    /// Bytes that it allocates.
    pub memory: usize,
    /// What is told of its DMA engine; `None` for sources that have none.
    pub engine: Option<PlannedEngine>,
    /// The network card for RDMA that `auto` stands for; `None` where nothing stands for it, or its section says `auto`
    /// nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// What it counts beside its ledger, by name.
    #[serde(skip)]
    pub counts: &'static [&'static str],
    /// Defaults that were assumed, limits that were found.
    pub notes: Vec<String>,
}

/// A DMA engine in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedEngine {
    /// Bytes of slots of its own that it goes round in, where it cannot be held back: frames are carried out of them.
    #[serde(rename = "carried")]
    pub private_slot_bytes: Option<usize>,
    /// The kernel whose doorbell it rings with its last write.
    #[serde(rename = "rings")]
    pub doorbell_of: Option<String>,
    /// The faults that it can report by name.
    #[serde(skip)]
    pub faults: &'static [&'static str],
}

/// A ring in its place.
#[derive(Clone, Debug, Serialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a property of its own"
)]
pub struct PlannedRing {
    /// Its name; inserted ones are called `RING@PLACEMENT`.
    pub name: String,
    /// Where it lies.
    #[serde(serialize_with = "display")]
    pub placement: Placement,
    /// Why there.
    pub reason: String,
    /// The device that writes it by itself, which its memory is made for; `None` where the CPU or a copy does.
    #[serde(skip)]
    pub writer: Option<Writer>,
    /// What is expected to make its memory so that the CPU can store to it; `None` for plain host or CUDA memory.
    pub mapping: Option<Backend>,
    /// Why that, with what refused; empty where the CPU has nothing to store there.
    pub mapping_reason: String,
    /// Why it was inserted; `None` for declared rings.
    pub inserted: Option<String>,
    /// Slots.
    pub slots: usize,
    /// Payload bytes of a slot.
    pub slot_bytes: usize,
    /// Places of a frame; 0 where frames have none.
    pub places: u32,
    /// Payload bytes of the first place; 0 where frames have none, or each frame's record has its own.
    pub first_bytes: usize,
    /// Payload bytes of a place but the first and the last; 0 where frames have none, or each frame's record has its own.
    pub place_bytes: usize,
    /// Whether the producer waits for slots.
    pub supports_backpressure: bool,
    /// What missing places show.
    #[serde(skip)]
    pub fill: Fill,
    /// Preferred NUMA node.
    pub node: Option<u32>,
    /// Lock in memory.
    pub lock: bool,
    /// Use hugepages.
    pub huge: bool,
    /// What a frame means.
    #[serde(serialize_with = "display")]
    pub layout: Layout,
    /// Whether frames can be shorter than the layout, because their length is learned at run time.
    pub is_layout_maximum: bool,
    /// Who fills it.
    pub producer: String,
    /// Who reads it.
    pub readers: Vec<String>,
    /// Bytes of the region.
    pub region_bytes: usize,
    /// Bytes of host memory beside it.
    pub metadata_bytes: usize,
}

impl PlannedRing {
    /// The shape for [`Ring::new`](crate::ring::Ring::new).
    pub fn options(&self) -> RingOptions {
        RingOptions {
            name: self.name.clone(),
            slots: self.slots,
            slot_bytes: self.slot_bytes,
            places: self.places,
            supports_backpressure: self.supports_backpressure,
            readers: self.readers.len() + SPARE_READERS,
            fill: self.fill,
            notifiers: Vec::new(),
            single_threaded: false,
        }
    }
}

/// A kernel in its place.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedKernel {
    /// Its name.
    pub name: String,
    /// Which kernel it is.
    #[serde(rename = "use")]
    pub driver: String,
    /// The ring it reads.
    pub input: String,
    /// The ring it fills.
    pub output: String,
    /// Where it runs.
    #[serde(serialize_with = "debug")]
    pub side: Side,
    /// How bursts reach it on a GPU; `None` on the CPU.
    pub dispatch: Option<Dispatch>,
    /// What wakes it; `None` unless it stays on its GPU.
    pub doorbell: Option<PlannedDoorbell>,
    /// Whether frames wait for it.
    pub guarantee: bool,
    /// What it is given of frames with missing packets.
    pub incomplete: Incomplete,
    /// Most frames taken at once.
    pub burst: usize,
    /// Its core; `None` = any.
    pub core: Option<usize>,
    /// How it waits.
    #[serde(serialize_with = "debug")]
    pub wait: Wait,
    /// Bytes that it allocates.
    pub memory: usize,
}

/// The doorbell of a kernel that stays on its GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedDoorbell {
    /// Who rings it.
    #[serde(rename = "by")]
    pub initiator: DoorbellInitiator,
    /// What is expected to make its memory; `None` where that was not tried, or nothing can.
    pub backend: Option<Backend>,
    /// Where it lies, with what refused.
    #[serde(rename = "place")]
    pub location: String,
}

/// A sink in its place.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedSink {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Where frames leave to; empty if nowhere.
    pub to: Vec<String>,
    /// The ring it reads.
    pub input: String,
    /// What was decided for it, and what it needs of others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Whether frames wait for it.
    pub guarantee: bool,
    /// What it is given of frames with missing packets.
    pub incomplete: Incomplete,
    /// Most frames taken at once.
    pub burst: usize,
    /// Its core; `None` = any.
    pub core: Option<usize>,
    /// How it waits.
    #[serde(serialize_with = "debug")]
    pub wait: Wait,
    /// Bytes that it allocates.
    pub memory: usize,
    /// The network card for RDMA that `auto` stands for; `None` where nothing stands for it, or its section says `auto`
    /// nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
}

/// A section outside the pipeline, such as `[http]`, and what it takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedOther {
    /// Its title.
    pub name: String,
    /// Addresses and paths that it takes.
    pub claims: Vec<String>,
}

/// How the bytes of a copy move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyMethod {
    /// By the GPU's copy engine.
    Engine,
    /// Bursts below the cut-over by CPU stores, larger ones by the copy engine.
    Either,
    /// By CPU stores alone.
    Stores,
}

/// A copy between a ring in host memory and one on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedCopy {
    /// Its name as a reader of `from` and as the producer of `to`.
    pub name: String,
    /// The ring it reads.
    pub from: String,
    /// The ring it fills.
    pub to: String,
    /// CUDA's number of the GPU.
    pub device: u32,
    /// Which way.
    pub direction: Direction,
    /// How its bytes move.
    #[serde(rename = "way")]
    pub method: CopyMethod,
    /// The kernel whose thread does it; `None` where the staging engine does.
    #[serde(rename = "carried_by")]
    pub kernel_thread: Option<String>,
}

/// Configuration × topology, resolved.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The pipeline's name.
    pub name: String,
    /// Sources, in file order.
    pub sources: Vec<PlannedSource>,
    /// Rings, those that feed others first.
    pub rings: Vec<PlannedRing>,
    /// Copies between rings.
    pub copies: Vec<PlannedCopy>,
    /// Kernels, those that feed others first.
    pub kernels: Vec<PlannedKernel>,
    /// Sinks, in file order.
    pub sinks: Vec<PlannedSink>,
    /// What runs beside the pipeline.
    pub others: Vec<PlannedOther>,
    /// Data threads.
    pub threads: usize,
    /// Cores that data threads may use; empty if unknown.
    pub cores: Vec<usize>,
    /// Bytes of host memory allocated for rings, kernels and sinks together.
    pub memory: usize,
    /// Bytes of GPU memory allocated for rings and kernels together.
    pub device_memory: usize,
    /// GPUs whose mappings would have decided something and were not tried.
    #[serde(skip)]
    pub untried: BTreeSet<u32>,
    /// Hardware that the configuration asks for and the machine does not have.
    pub unavailable: Vec<String>,
}

impl Plan {
    /// The ring called `name`.
    pub fn ring(&self, name: &str) -> Option<&PlannedRing> {
        self.rings.iter().find(|ring| ring.name == name)
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
