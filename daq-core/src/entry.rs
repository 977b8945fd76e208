//! Registry entries: name, parser and schema of each driver, kernel and sink.
//!
//! A [`Registry`] is a list of entries. `daq list`, `daq new`, the JSON schema and the reference pages are derived from
//! it. A program with sources, kernels or sinks of its own adds their entries to the built-in ones.

use crate::check::NamedFile;
use crate::claim::Claim;
use crate::config::{Diagnostics, Problem, Section};
use crate::dma::EngineInfo;
use crate::dma::FrameSequence;
use crate::gpu::Writer;
use crate::kernel::KernelSpec;
use crate::layout::Layout;
use crate::ledger::{CountSet, Counts, Playback, Rejections};
use crate::outgoing::OutgoingFormatEntry;
use crate::reorder::{Arrival, Geometry};
use crate::sink::SinkSpec;
use crate::source::{Inlet, Obstacle, Producers, SourceError};
use crate::topology::P2pPreference;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

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
    /// Returns the JSON schema of the section's own keys.
    pub schema: fn(&Registry) -> schemars::Schema,
    /// Reads the section's own keys, without accessing hardware. Returns `None` if errors were reported.
    pub parse: fn(&mut Section, &Registry, &mut Diagnostics) -> Option<Box<S>>,
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
    /// What the other sources of the pipeline claim ([`SourceSpec::claims`]).
    pub beside: Vec<Claim>,
    /// The network card that the plan selected for `auto` ([`EngineRequirements::device`]).
    pub nic: Option<String>,
    /// The counters that [`SourceSpec::counts`] declared.
    pub counts: Counts,
    /// Counters of rejected packets by reason.
    pub rejections: Rejections,
    /// The position in a recording, which a source that replays one sets.
    pub playback: Playback,
    /// Why no data can arrive, which a source that sets up its device sets.
    pub obstacle: Obstacle,
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
    /// Names of the faults that the engine can report ([`Engine::faults`](crate::dma::Engine::faults)).
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

/// The checked configuration of a source.
pub trait SourceSpec: Send + Sync {
    /// Returns every problem of the keys that the types of their values do not exclude.
    fn problems(&self) -> Vec<Problem> {
        Vec::new()
    }

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

    /// Returns the names of the fields that frames keep from the headers of their packets, at most
    /// [`MAX_KEPT_FIELDS`](crate::frame::MAX_KEPT_FIELDS). Kernels and sinks of the source's ring receive the fields with
    /// each frame ([`FrameMeta::kept`](crate::frame::FrameMeta::kept)).
    fn kept(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether the source can wait for free slots, as a file or a free-running simulator can. A socket cannot wait.
    fn supports_backpressure(&self) -> bool;

    /// Returns the arrival pattern of packets, from which the plan calculates the size of the reorder window. Returns
    /// `None` if the size depends only on [`geometry`](Self::geometry).
    fn arrival(&self) -> Option<Arrival> {
        None
    }

    /// Returns the key and the help of the warning that the sequence number of packets repeats too soon to detect every
    /// loss.
    fn number_advice(&self) -> (&'static str, &'static str) {
        ("format", "compare `delivered` with the sender's own count")
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

    /// Returns the counters that only this kind of source has. They appear in reports, and in metrics as
    /// `daq_source_counts_total`.
    fn counts(&self) -> Vec<&'static CountSet> {
        Vec::new()
    }

    /// Returns the names of the parts of frames, such as ports or antenna numbers; empty if frames have one part. Each part
    /// has a ledger of its own.
    fn parts(&self) -> Vec<String> {
        Vec::new()
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

    /// Returns how to examine the packets of the source with `daq inspect`, as the end of a sentence. Returns `None` if that is
    /// not possible.
    fn inspect_advice(&self) -> Option<String> {
        None
    }

    /// Returns the object that accepts processes that produce the source's frames; `None` for other sources.
    fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        None
    }

    /// Opens the source's sockets, files or devices.
    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError>;
}

/// An entry of a [`Registry`]: a source, a kernel, a sink, or a part of a source such as a packet format.
pub trait Registered: Any + Send + Sync {
    /// The kind of the entry in the plural, as the heading in `daq list`.
    fn kind(&self) -> &'static str;

    /// The name of the entry in the configuration. Entries of one kind have different names.
    fn name(&self) -> &'static str;

    /// Description in one sentence, without a full stop.
    fn summary(&self) -> &'static str;

    /// Returns the mistake in the program that prevents the use of the entry, if there is one.
    fn mistake(&self) -> Option<String> {
        None
    }

    /// Returns the entry as a packet format that can be sent, if it is one.
    fn outgoing_format(&self) -> Option<&dyn OutgoingFormatEntry> {
        None
    }
}

macro_rules! registered {
    ($($entry:ty, $spec:path, $kind:literal;)*) => {$(
        impl $entry {
            /// Creates an entry whose keys are `K`.
            pub const fn of<K>(
                name: &'static str,
                summary: &'static str,
                example: &'static str,
            ) -> Self
            where
                K: $spec + DeserializeOwned + JsonSchema + 'static,
            {
                Self {
                    name,
                    summary,
                    example,
                    schema: |_| schemars::schema_for!(K),
                    parse: |section, _, diagnostics| {
                        Some(Box::new(section.finish_checked(&[], diagnostics, K::problems)?))
                    },
                }
            }
        }

        impl Registered for $entry {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn name(&self) -> &'static str {
                self.name
            }

            fn summary(&self) -> &'static str {
                self.summary
            }
        }
    )*};
}

registered! {
    SourceEntry, SourceSpec, "sources";
    KernelEntry, KernelSpec, "kernels";
    SinkEntry, SinkSpec, "sinks";
}

/// Everything that a configuration can name.
#[derive(Clone, Default)]
pub struct Registry {
    entries: Vec<&'static dyn Registered>,
}

impl Registry {
    /// Adds `entry`. It replaces an entry of the same kind and name.
    ///
    /// # Panics
    ///
    /// Panics if the program that defines the entry must be corrected, with the reason of [`Registered::mistake`].
    #[must_use]
    pub fn with(mut self, entry: &'static dyn Registered) -> Self {
        if let Some(mistake) = entry.mistake() {
            panic!("`{}` of {}: {mistake}", entry.name(), entry.kind());
        }
        let is_same = |known: &&mut &'static dyn Registered| {
            (known.kind(), known.name()) == (entry.kind(), entry.name())
        };
        match self.entries.iter_mut().find(is_same) {
            Some(known) => *known = entry,
            None => self.entries.push(entry),
        }
        self
    }

    /// Adds all `entries`.
    #[must_use]
    pub fn with_all<E: Registered>(self, entries: &'static [E]) -> Self {
        entries
            .iter()
            .fold(self, |registry, entry| registry.with(entry))
    }

    /// Returns the entries of type `E`, in the order in which they were added.
    pub fn all<E: Registered>(&self) -> impl Iterator<Item = &'static E> {
        let entries = self.entries.iter();
        entries.filter_map(|entry| (*entry as &dyn Any).downcast_ref())
    }

    /// Returns the entry of type `E` with the name `name`.
    pub fn find<E: Registered>(&self, name: &str) -> Option<&'static E> {
        self.all::<E>().find(|entry| entry.name() == name)
    }

    /// Returns the names of all entries of type `E`.
    pub fn names<E: Registered>(&self) -> Vec<&'static str> {
        self.all::<E>().map(Registered::name).collect()
    }

    /// Returns the packet formats that can be sent, with their names.
    pub fn outgoing_formats(
        &self,
    ) -> impl Iterator<Item = (&'static str, &'static dyn OutgoingFormatEntry)> {
        let entries = self.entries.iter().copied();
        entries.filter_map(|entry| Some((entry.name(), entry.outgoing_format()?)))
    }

    /// Returns all entries, in the order in which they were added.
    pub fn entries(&self) -> impl Iterator<Item = &'static dyn Registered> {
        self.entries.iter().copied()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self
            .entries
            .iter()
            .map(|entry| (entry.kind(), entry.name()));
        f.debug_set().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Part(&'static str, &'static str);

    impl Registered for Part {
        fn kind(&self) -> &'static str {
            "parts"
        }

        fn name(&self) -> &'static str {
            self.0
        }

        fn summary(&self) -> &'static str {
            self.1
        }
    }

    #[test]
    fn entry_replaces_entry_of_same_kind_and_name() {
        static PARTS: [Part; 2] = [Part("a", "first"), Part("b", "second")];
        let registry = Registry::default().with_all(&PARTS);
        assert_eq!(registry.names::<Part>(), ["a", "b"]);
        let registry = registry.with(&Part("a", "third"));
        assert_eq!(registry.names::<Part>(), ["a", "b"]);
        assert_eq!(registry.find::<Part>("a").map(|part| part.1), Some("third"));
        assert!(registry.all::<SinkEntry>().next().is_none());
    }
}
