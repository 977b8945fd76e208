//! Adds the rings of a plan: declared rings, rings that are inserted before or after them, and the copies between them.

use super::Resolver;
use crate::config::Diagnostics;
use crate::entry::SourceFacts;
use crate::frame::PacketSizes;
use crate::kernel::Side;
use crate::layout::Layout;
use crate::plan::{Memory, PlannedCopy, PlannedMethod, PlannedRing, RingSection};
use crate::region::Placement;
use crate::reorder::Geometry;
use crate::staging::Route;
use crate::topology::{DataPath, Gpu, Topology};

/// Returns the name of the inserted host ring with the same frames as `ring`.
pub(super) fn host_name(ring: &str) -> String {
    format!("{ring}@{}", Placement::Host)
}

impl Resolver<'_> {
    /// Returns the memory of a declared ring with frames of `layout`, and the reason.
    pub(super) fn placement(&mut self, ring: &RingSection, layout: &Layout) -> (Placement, String) {
        match &ring.keys.memory {
            Memory::Auto => match self.auto_gpu(ring.section.name(), layout) {
                Some((gpu, reason)) => (Placement::Cuda(gpu), reason),
                None => (Placement::Host, self.topology.no_gpu.clone()),
            },
            Memory::At(Placement::Cuda(ordinal)) => {
                let subject = format!("ring `{}`", ring.section.name());
                self.require_gpu(*ordinal, &subject, "set memory = \"auto\" or \"host\"");
                (Placement::Cuda(*ordinal), "declared".to_owned())
            }
            Memory::At(Placement::Host) | Memory::Gpus(_) => {
                (Placement::Host, "declared".to_owned())
            }
        }
    }

    /// Returns the declared ring `ring` as `declared` fills it, in host memory.
    pub(super) fn declared_ring(&self, ring: &RingSection, declared: &Declared<'_>) -> PlannedRing {
        let name = ring.section.name();
        let geometry = declared.geometry;
        let exact = geometry.filter(|(_, source)| source.detected_from.is_none());
        PlannedRing {
            name: name.to_owned(),
            placement: Placement::Host,
            reason: String::new(),
            writer: None,
            mapping: None,
            mapping_reason: String::new(),
            inserted: None,
            slots: ring.keys.slots as usize,
            slot_bytes: declared.slot,
            packets_per_frame: geometry.map_or(declared.packets.0, |(geometry, _)| {
                geometry.packets_per_frame
            }),
            packet_sizes: exact.map_or(declared.packets.1, |(geometry, _)| geometry.packet_sizes()),
            kept: self.kept.get(name).cloned().unwrap_or_default(),
            supports_backpressure: declared.supports_backpressure,
            fill: ring.keys.fill.pattern(),
            node: ring.keys.node,
            lock: ring.keys.lock,
            huge: ring.keys.huge,
            share: None,
            attach: ring.keys.attach.unwrap_or_default().0,
            layout: declared.layout.clone(),
            is_layout_maximum: geometry.is_some_and(|(_, source)| source.detects_frame_size),
            producer: declared.producer.to_owned(),
            readers: Vec::new(),
            region_bytes: 0,
            metadata_bytes: 0,
        }
    }

    /// Adds a declared ring. Adds a host ring before it if the ring is on a GPU, or spread over several GPUs, and its source
    /// writes host memory.
    ///
    /// Returns the ring that the producer writes, the data path to the declared ring, and the reason; `None` after an error.
    pub(super) fn add_ring(
        &mut self,
        name: &str,
        declared: Declared<'_>,
        diagnostics: &mut Diagnostics,
    ) -> Option<(String, DataPath, String)> {
        let ring = self.section(name)?;
        let (geometry, layout) = (declared.geometry, declared.layout);
        let mut planned = self.declared_ring(ring, &declared);
        if self.is_spread(name) {
            self.layouts.insert(name.to_owned(), layout.clone());
            return self.add_spread_ring(ring, planned, diagnostics);
        }
        let (placement, reason) = self.placement(ring, layout);
        (planned.placement, planned.reason) = (placement, reason);
        self.layouts.insert(name.to_owned(), layout.clone());
        if geometry.is_none() || placement == Placement::Host {
            self.plan.rings.push(planned);
            return Some((
                name.to_owned(),
                DataPath::Cpu,
                "the CPU writes packets to host memory".to_owned(),
            ));
        }
        let staged = host_name(name);
        let copier = self.add_copy((&staged, Placement::Host), (name, placement), "");
        self.plan.rings.push(PlannedRing {
            name: staged.clone(),
            placement: Placement::Host,
            reason: "sockets and files need host memory".to_owned(),
            inserted: Some(format!("filled by the CPU, then copied to {placement}")),
            node: host_node(self.topology, planned.node, placement),
            readers: vec![copier.clone()],
            ..planned.clone()
        });
        self.plan.rings.push(PlannedRing {
            producer: copier,
            supports_backpressure: true,
            ..planned
        });
        Some((
            staged,
            DataPath::Staged,
            format!("the driver writes to host memory, but the ring is on {placement}"),
        ))
    }

    /// Adds a copy between two memories, with the `reason` for its path, and returns the copy's name.
    pub(super) fn add_copy(
        &mut self,
        (from, at): (&str, Placement),
        (to, target): (&str, Placement),
        reason: &str,
    ) -> String {
        let name = format!("copy to {to}");
        self.plan
            .copies
            .extend(Route::between(at, target).map(|route| PlannedCopy {
                name: name.clone(),
                from: from.to_owned(),
                to: to.to_owned(),
                route,
                method: PlannedMethod::Engine,
                kernel_thread: None,
                reason: reason.to_owned(),
            }));
        name
    }

    /// Inserts a ring called `name` on `placement`, filled by a copy from `ring`. `why` is the reason for the ring, and
    /// `path` the reason for the path of the copy.
    pub(super) fn insert(
        &mut self,
        ring: &str,
        name: &str,
        placement: Placement,
        why: &str,
        path: &str,
    ) {
        let Some(planned) = self.plan.ring(ring).cloned() else {
            return;
        };
        let copier = self.add_copy((ring, planned.placement), (name, placement), path);
        self.read_by(ring, &copier);
        let node = match placement {
            Placement::Host => host_node(self.topology, planned.node, planned.placement),
            Placement::Cuda(_) => planned.node,
        };
        self.plan.rings.push(PlannedRing {
            node,
            name: name.to_owned(),
            placement,
            reason: why.to_owned(),
            inserted: Some(why.to_owned()),
            producer: copier,
            supports_backpressure: true,
            readers: Vec::new(),
            ..planned
        });
    }

    /// Returns the maximum number of packets per frame of `output` of kernel `i` and their sizes; 0 if the kernel does not keep
    /// the packets of its input, or if these do not end at whole bytes of the output.
    fn output_packets(&self, i: usize, output: &Layout) -> (u32, PacketSizes) {
        let kernel = &self.config.kernels[i];
        let input = &kernel.keys.input;
        let kept = self.plan.ring(input).and_then(|ring| {
            let facts = kernel.spec.input_facts(&self.layouts[input]);
            let (from, to) = (self.layouts[input].scalar.bits(), output.scalar.bits());
            let sizes = ring.packet_sizes.scaled(from, to)?;
            facts
                .keeps_packets
                .then_some((ring.packets_per_frame, sizes))
        });
        kept.unwrap_or(NO_PACKETS)
    }

    /// Adds the output ring of kernel `i`, and a ring before it if the kernel cannot write the declared memory.
    ///
    /// Returns the name of the ring that the kernel writes; `None` after an error.
    pub(super) fn add_output(
        &mut self,
        i: usize,
        side: Side,
        slot: usize,
        layout: &Layout,
        diagnostics: &mut Diagnostics,
    ) -> Option<String> {
        let config = self.config;
        let kernel = &config.kernels[i];
        let output = &kernel.keys.output;
        let (memory, place) = match side {
            Side::Cpu => (Placement::Host, "the CPU".to_owned()),
            Side::Cuda(ordinal) => (Placement::Cuda(ordinal), format!("cuda:{ordinal}")),
        };
        let declared = Declared {
            packets: self.output_packets(i, layout),
            ..Declared::by_kernel(slot, layout, kernel.name())
        };
        if let Some(ring) = self.section(output).filter(|_| self.is_spread(output)) {
            self.layouts.insert(output.clone(), layout.clone());
            let written = PlannedRing {
                name: format!("{output}@{}", kernel.name()),
                placement: memory,
                reason: format!("kernel `{}` runs on {place}", kernel.name()),
                ..self.declared_ring(ring, &declared)
            };
            return self.add_divided(ring, written, diagnostics);
        }
        self.add_ring(output, declared, diagnostics)?;
        let is_auto = self
            .section(output)
            .is_some_and(|ring| ring.keys.memory == Memory::Auto);
        let ring = self.plan.rings.last_mut()?;
        if ring.placement == memory {
            return Some(output.clone());
        }
        let why = format!("kernel `{}` runs on {place}", kernel.name());
        if is_auto {
            (ring.placement, ring.reason) = (memory, why);
            return Some(output.clone());
        }
        Some(self.write_elsewhere(output, memory, &why))
    }

    /// Inserts a ring on `memory` before the last ring, the output ring `output`, and the copies to the output ring. Two GPUs
    /// that cannot access each other have a host ring between them. Returns the name of the ring on `memory`.
    fn write_elsewhere(&mut self, output: &str, memory: Placement, why: &str) -> String {
        let written = format!("{output}@{memory}");
        let Some(declared) = self.plan.rings.pop() else {
            return written;
        };
        let path = match (memory, declared.placement) {
            (Placement::Cuda(here), Placement::Cuda(there)) => self.peer_path(here, there),
            _ => Ok(String::new()),
        };
        let node = |placement, gpu| match placement {
            Placement::Host => host_node(self.topology, declared.node, gpu),
            Placement::Cuda(_) => declared.node,
        };
        let mut rings = vec![PlannedRing {
            node: node(memory, declared.placement),
            name: written.clone(),
            placement: memory,
            reason: why.to_owned(),
            inserted: Some(why.to_owned()),
            ..declared.clone()
        }];
        let mut reason = path.clone().unwrap_or_default();
        if let Err(obstacle) = path {
            reason = format!("through host memory, because {obstacle}");
            rings.push(PlannedRing {
                node: node(Placement::Host, memory),
                name: host_name(output),
                placement: Placement::Host,
                reason: obstacle.clone(),
                inserted: Some(obstacle),
                ..declared.clone()
            });
        }
        rings.push(declared);
        for i in 1..rings.len() {
            let (from, to) = (&rings[i - 1], &rings[i]);
            let ends = ((&*from.name, from.placement), (&*to.name, to.placement));
            let copier = self.add_copy(ends.0, ends.1, &reason);
            rings[i - 1].readers.push(copier.clone());
            rings[i].producer = copier;
        }
        self.plan.rings.extend(rings);
        written
    }

    /// Returns the host ring with the same frames as `ring`: the ring itself, the host ring from which it is copied, or
    /// a new host ring to which it is copied.
    pub(super) fn host_side(&mut self, ring: &str, why: &str) -> String {
        if self.spreads.contains_key(ring) {
            return self.joined_on_host(ring, why);
        }
        let host = host_name(ring);
        match self.plan.ring(ring).map(|planned| planned.placement) {
            None | Some(Placement::Host) => ring.to_owned(),
            Some(_) => {
                if self.plan.ring(&host).is_none() {
                    // The frames of a kernel's output are copied from the GPU that runs the kernel.
                    let origin = self.plan.origin(ring).to_owned();
                    self.insert(&origin, &host, Placement::Host, why, "");
                }
                host
            }
        }
    }

    pub(super) fn read_by(&mut self, ring: &str, reader: &str) {
        if let Some(ring) = self
            .plan
            .rings
            .iter_mut()
            .find(|planned| planned.name == ring)
        {
            ring.readers.push(reader.to_owned());
        }
    }

    /// Moves rings with `memory = "auto"` back to host memory if nothing on the GPU reads them.
    pub(super) fn leave_on_host(&mut self) {
        let auto = |ring: &str| {
            self.section(ring)
                .is_some_and(|ring| ring.keys.memory == Memory::Auto)
        };
        let is_idle = |copy: &&PlannedCopy| {
            let readers = self.plan.ring(&copy.to).map(|ring| &ring.readers);
            copy.route.staged_to().is_some() && auto(&copy.to) && readers.is_some_and(Vec::is_empty)
        };
        let idle: Vec<_> = self.plan.copies.iter().filter(is_idle).cloned().collect();
        for copy in idle {
            let plan = &mut self.plan;
            let node = plan.ring(&copy.to).and_then(|ring| ring.node);
            plan.copies.retain(|other| other.name != copy.name);
            plan.rings.retain(|ring| ring.name != copy.to);
            let rings = plan.rings.iter_mut();
            for ring in rings.filter(|ring| ring.name == copy.from) {
                ring.name.clone_from(&copy.to);
                ring.inserted = None;
                ring.node = node;
                "no GPU kernel reads the ring".clone_into(&mut ring.reason);
                ring.readers.retain(|reader| *reader != copy.name);
            }
            let sources = plan.sources.iter_mut();
            for source in sources.filter(|source| source.ring == copy.from) {
                source.path = DataPath::Cpu;
                "the CPU writes packets to host memory".clone_into(&mut source.reason);
            }
            let written = plan.sources.iter_mut().map(|source| &mut source.ring);
            let outputs = plan.kernels.iter_mut().map(|kernel| &mut kernel.output);
            for name in written.chain(outputs).filter(|name| **name == copy.from) {
                name.clone_from(&copy.to);
            }
            let inputs = plan.kernels.iter_mut().map(|kernel| &mut kernel.input);
            let sinks = plan.sinks.iter_mut().map(|sink| &mut sink.input);
            let copied = plan.copies.iter_mut().map(|copy| &mut copy.from);
            for name in inputs
                .chain(sinks)
                .chain(copied)
                .filter(|name| **name == copy.from)
            {
                name.clone_from(&copy.to);
            }
        }
    }
}

/// The maximum number of packets and the packet sizes of frames that do not consist of packets.
pub(super) const NO_PACKETS: (u32, PacketSizes) = (
    0,
    PacketSizes {
        first: 0,
        rest: 0,
        parts: 0,
    },
);

/// How a component fills a declared ring.
#[derive(Clone, Copy)]
pub(super) struct Declared<'a> {
    /// Number of payload bytes per slot.
    pub(super) slot: usize,
    /// The packets of the frames, and the facts about the source; `None` if a kernel fills the ring.
    pub(super) geometry: Option<(&'a Geometry, &'a SourceFacts)>,
    /// Maximum number of packets and packet sizes of the output of a kernel that keeps the packets of its input.
    pub(super) packets: (u32, PacketSizes),
    /// Whether the producer waits for free slots.
    pub(super) supports_backpressure: bool,
    /// The layout of a frame.
    pub(super) layout: &'a Layout,
    /// The name of the component.
    pub(super) producer: &'a str,
}

impl<'a> Declared<'a> {
    /// Returns how the kernel `producer` fills a ring.
    pub(super) const fn by_kernel(slot: usize, layout: &'a Layout, producer: &'a str) -> Self {
        Self {
            slot,
            geometry: None,
            packets: NO_PACKETS,
            supports_backpressure: true,
            layout,
            producer,
        }
    }
}

/// Returns the NUMA node for a host ring whose frames are copied to or from `gpu`: the declared node, or the GPU's
/// node.
pub(super) fn host_node(topology: &Topology, declared: Option<u32>, gpu: Placement) -> Option<u32> {
    let is_same = |other: &&Gpu| Placement::Cuda(other.ordinal) == gpu;
    declared.or_else(|| topology.gpus.iter().find(is_same)?.node)
}
