//! Resolves references between sections: which component fills which ring, the frame layout, and the memory.

mod gpus;
mod rings;
mod sinks;
mod spread;

use super::check;
use super::config::{FILE_KERNEL, at};
use super::wiring::{Filler, Wiring};
use super::{
    Config, Plan, PlannedDoorbell, PlannedEngine, PlannedKernel, PlannedOther, PlannedRing,
    PlannedSource, RingSection,
};
use super::{dma, fill, mapping, memory, nics, totals};
use crate::claim::Claim;
use crate::config::{Diagnostic, Diagnostics, Section};
use crate::entry::FrameFacts;
use crate::gpu::Dispatch;
use crate::kernel::Side;
use crate::layout::Layout;
use crate::region::Placement;
use crate::reorder::WindowSize;
use crate::staging::Profile;
use crate::topology::Topology;
use crate::units::{ByteSize, counted};
use rings::Declared;
use spread::SpreadRing;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Default slot size in bytes, if neither the ring nor its source sets it.
const DEFAULT_SLOT: usize = 1 << 20;

/// Inputs of a plan other than the configuration and the topology.
#[derive(Clone, Debug, Default)]
pub struct PlanContext {
    /// The directory that relative paths refer to.
    pub directory: PathBuf,
    /// Resources that sections outside the pipeline (such as `[http]`) claim.
    pub claims: Vec<(Section, Vec<Claim>)>,
    /// Returns the maximum size in bytes of the host memory that sections outside the pipeline use for `rings`; `None` without
    /// such sections.
    pub memory: Option<fn(rings: &[PlannedRing]) -> usize>,
    /// Measured copy profiles of GPUs, by ordinal.
    pub profiles: BTreeMap<u32, Profile>,
}

/// Resolves `config` for `topology`. Adds every error to `diagnostics`, and returns `None` after an error.
pub fn resolve(
    config: &Config,
    topology: &Topology,
    context: &PlanContext,
    diagnostics: &mut Diagnostics,
) -> Option<Plan> {
    let before = diagnostics.errors();
    check::claims(config, context, diagnostics);
    check::files(config, diagnostics);
    check::cores(config, topology, diagnostics);
    check::names(config, diagnostics);
    check::bursts(config, diagnostics);
    check::spreads(config, diagnostics);
    let wiring = Wiring::of(config, diagnostics);
    check::dispatches(config, &wiring, diagnostics);
    let mut resolver = Resolver {
        config,
        topology,
        context,
        wiring,
        layouts: BTreeMap::new(),
        kept: BTreeMap::new(),
        spreads: BTreeMap::new(),
        plan: Plan {
            name: config.name.clone(),
            sources: Vec::new(),
            rings: Vec::new(),
            copies: Vec::new(),
            gathers: Vec::new(),
            kernels: Vec::new(),
            sinks: Vec::new(),
            others: Vec::new(),
            threads: 0,
            cores: topology.cores.clone(),
            memory: 0,
            device_memory: 0,
            untried: BTreeSet::new(),
            unavailable: Vec::new(),
            notes: Vec::new(),
        },
    };
    resolver.sources(diagnostics);
    resolver.kernels(diagnostics);
    resolver.sinks(diagnostics);
    resolver.unused(diagnostics);
    let others = context.claims.iter().map(|(section, claims)| PlannedOther {
        name: section.title().to_owned(),
        claims: claims.iter().map(Claim::to_string).collect(),
        notes: Vec::new(),
    });
    resolver.plan.others = others.collect();
    if config.sources.is_empty() && !diagnostics.has_errors() {
        diagnostics.push(
            Diagnostic::error("the configuration has no source")
                .help("`daq new sim` prints an example to start from"),
        );
    }
    if diagnostics.errors() > before {
        return None;
    }
    Some(resolver.finish())
}

struct Resolver<'a> {
    config: &'a Config,
    topology: &'a Topology,
    context: &'a PlanContext,
    wiring: Wiring,
    /// The frame layout of each resolved ring.
    layouts: BTreeMap<String, Layout>,
    /// The names of the kept fields of each resolved ring.
    kept: BTreeMap<String, Vec<String>>,
    /// The resolved spread rings.
    spreads: BTreeMap<String, SpreadRing>,
    plan: Plan,
}

impl<'a> Resolver<'a> {
    fn section(&self, name: &str) -> Option<&'a RingSection> {
        let mut rings = self.config.rings.iter();
        rings.find(|ring| ring.section.name() == name)
    }
}

/// Returns a note if frames of `frame` bytes leave a part of the slots of `ring` unused.
fn unused_note(ring: &str, slot: usize, frame: usize) -> Option<String> {
    let unused = slot.checked_sub(frame).filter(|unused| *unused > 0)?;
    let [slot, frame, unused] = [slot, frame, unused].map(|bytes| ByteSize(bytes as u64));
    Some(format!(
        "{unused} of each slot of {slot} stay unused, because a frame has {frame}: set slot = \"{frame}\" in [ring.{ring}]"
    ))
}

impl Resolver<'_> {
    fn sources(&mut self, diagnostics: &mut Diagnostics) {
        for (i, source) in self.config.sources.iter().enumerate() {
            let name = &source.keys.ring;
            if self.wiring.fillers.get(name) != Some(&Filler::Source(i)) {
                continue;
            }
            let Some(ring) = self.section(name).filter(|ring| ring.is_whole) else {
                continue;
            };
            let mut facts = source.spec.facts();
            let slot = ring.keys.slot.map_or_else(
                || facts.preferred_slot.unwrap_or(DEFAULT_SLOT),
                |slot| usize::try_from(slot.0).unwrap_or(usize::MAX),
            );
            let FrameFacts {
                mut geometry,
                layout,
                memory,
            } = match source.spec.frames(slot) {
                Ok(frames) => frames,
                Err(problem) => {
                    diagnostics.push(source.section.problem(problem));
                    continue;
                }
            };
            let slots = ring.keys.slots as usize;
            if !fill::check(ring, &layout, diagnostics)
                || !check::slots(ring, slot, geometry.frame_bytes, diagnostics)
            {
                continue;
            }
            if let Some(needs) = &facts.engine {
                check::engine(ring, &source.section, slot, needs, diagnostics);
            }
            let mut notes = std::mem::take(&mut facts.notes);
            if let Some(arrival) = &facts.arrival {
                let size = arrival.window(&geometry, slots);
                let advice = facts.number_advice;
                check::window(source, arrival, &geometry, &size, advice, diagnostics);
                let WindowSize { frames, reason, .. } = size;
                geometry.window = frames;
                notes.push(format!("window of {}: {reason}", counted(frames, "frame")));
            } else if geometry.window >= slots {
                geometry.window = (slots - 1).max(1);
                notes.push(format!(
                    "window reduced to {}, because the ring has {slots} slots",
                    counted(geometry.window, "frame")
                ));
            }
            if ring.keys.slot.is_some() && facts.detected_from.is_none() {
                notes.extend(unused_note(name, slot, geometry.frame_bytes));
            }
            self.kept.insert(name.to_owned(), facts.kept.clone());
            let declared = Declared {
                packets: rings::NO_PACKETS,
                slot,
                geometry: Some((&geometry, &facts)),
                supports_backpressure: facts.supports_backpressure,
                layout: &layout,
                producer: source.name(),
            };
            let Some((ring_name, path, reason)) = self.add_ring(name, declared, diagnostics) else {
                continue;
            };
            if facts.origins.is_empty() {
                facts.origins = facts.claims.iter().map(Claim::to_string).collect();
            }
            self.plan.threads += facts.threads;
            let engine = facts.engine.map(|needs| PlannedEngine {
                private_slot_bytes: None,
                doorbell_of: None,
                faults: needs.faults,
            });
            self.plan.sources.push(PlannedSource {
                memory,
                name: source.name().to_owned(),
                driver: source.driver.clone(),
                inputs: facts.origins,
                ring: ring_name,
                path,
                reason,
                geometry,
                detected_from: facts.detected_from,
                supports_backpressure: facts.supports_backpressure,
                threads: facts.threads,
                cores: facts.cores,
                wait: source.keys.wait,
                engine,
                nic: None,
                counts: facts.counts,
                parts: facts.parts,
                notes,
            });
        }
    }

    /// Resolves kernels in the order of the data flow. Kernels that cannot be resolved are part of a cycle, read a ring
    /// that nothing fills, or depend on such a kernel.
    fn kernels(&mut self, diagnostics: &mut Diagnostics) {
        let mut left: BTreeSet<usize> = (0..self.config.kernels.len()).collect();
        let mut failed: BTreeSet<String> = self
            .wiring
            .fillers
            .iter()
            .filter(|(ring, filler)| {
                !matches!(filler, Filler::Kernel(_)) && !self.layouts.contains_key(*ring)
            })
            .map(|(ring, _)| ring.clone())
            .collect();
        while let Some(i) = left.iter().copied().find(|i| {
            let input = &self.config.kernels[*i].keys.input;
            self.layouts.contains_key(input) || failed.contains(input)
        }) {
            left.remove(&i);
            let kernel = &self.config.kernels[i];
            if failed.contains(&kernel.keys.input) || !self.kernel(i, diagnostics) {
                failed.insert(kernel.keys.output.clone());
            }
        }
        for i in left {
            let kernel = &self.config.kernels[i];
            let input = &kernel.keys.input;
            if self.is_cycle(i) {
                let message = format!("ring `{input}` feeds itself through this kernel");
                diagnostics.push(
                    at(&kernel.section, "input", message)
                        .help("rings and kernels must not form a cycle"),
                );
            } else {
                self.report_unfilled(&kernel.section, input, diagnostics);
            }
        }
    }

    /// Returns whether a kernel reads its own output, directly or through other kernels.
    fn is_cycle(&self, kernel: usize) -> bool {
        let above = |kernel: usize| match self
            .wiring
            .fillers
            .get(&self.config.kernels[kernel].keys.input)
        {
            Some(Filler::Kernel(above)) => Some(*above),
            _ => None,
        };
        // The limit ends the search if `kernel` is below a cycle of other kernels.
        std::iter::successors(above(kernel), |at| above(*at))
            .take(self.config.kernels.len())
            .any(|at| at == kernel)
    }

    /// Reports that nothing fills a ring that `section` reads, if that is certain.
    fn report_unfilled(&self, section: &Section, ring: &str, diagnostics: &mut Diagnostics) {
        let is_certain = self.section(ring).is_some() && !self.wiring.may_fill;
        if is_certain && !self.wiring.fillers.contains_key(ring) {
            diagnostics.push(
                at(
                    section,
                    "input",
                    format!("no source or kernel fills ring `{ring}`"),
                )
                .help("name the ring in a source's `ring` or a kernel's `output`"),
            );
        }
    }

    fn kernel(&mut self, i: usize, diagnostics: &mut Diagnostics) -> bool {
        let kernel = &self.config.kernels[i];
        let (input, output) = (&kernel.keys.input, &kernel.keys.output);
        if self.wiring.fillers.get(output) != Some(&Filler::Kernel(i)) {
            return false;
        }
        let Some(ring) = self.section(output).filter(|ring| ring.is_whole) else {
            return false;
        };
        let layout = match kernel.spec.layout(&self.layouts[input]) {
            Ok(layout) => layout,
            Err(problem) => {
                diagnostics.push(kernel.section.problem(problem));
                return false;
            }
        };
        let frame = layout.frame_bytes();
        let slot = ring
            .keys
            .slot
            .map_or(frame, |slot| usize::try_from(slot.0).unwrap_or(usize::MAX));
        if !fill::check(ring, &layout, diagnostics) || !check::slots(ring, slot, frame, diagnostics)
        {
            return false;
        }
        let max = kernel.spec.input_facts(&self.layouts[input]).max_outputs;
        if !check::output_slots(ring, kernel.name(), max, diagnostics) {
            return false;
        }
        if self.runs_on_shares(i) {
            let kept = self.kept.get(input).cloned().unwrap_or_default();
            self.kept.insert(output.clone(), kept);
            let declared = Declared::by_kernel(slot, &layout, kernel.name());
            return self.kernel_on_shares(i, declared, diagnostics);
        }
        let Some(side) = self.side(i, diagnostics) else {
            return false;
        };
        let reads = match side {
            Side::Cpu => self.host_side(
                input,
                &format!("kernel `{}` runs on the CPU", kernel.name()),
            ),
            Side::Cuda(ordinal) => {
                let only = match kernel.keys.device {
                    Some(_) => format!("cuda:{ordinal}"),
                    None => "a GPU only".to_owned(),
                };
                let why = format!("kernel `{}` runs on {only}", kernel.name());
                self.device_side(input, ordinal, &why)
            }
        };
        self.read_by(&reads, kernel.name());
        if let Some(Filler::Source(source)) = self.wiring.fillers.get(input) {
            check::full_frames(
                &self.config.sources[*source],
                &kernel.section,
                self.layouts[input].frame_bytes(),
                diagnostics,
            );
        }
        // Without hardware detection it is unknown whether the host has a GPU.
        let facts = kernel.spec.input_facts(&self.layouts[input]);
        let is_certain = self.topology.is_real || !facts.runs_on_gpu;
        if kernel.keys.dispatch == Some(Dispatch::Launch) && side == Side::Cpu && is_certain {
            let message = format!(
                "`dispatch` has no effect on kernel `{}`, because it runs on the CPU",
                kernel.name()
            );
            diagnostics.push(
                Diagnostic::warning(message)
                    .at(kernel.section.place_of("dispatch"))
                    .help("remove `dispatch`, or put the kernel's input on a GPU"),
            );
        }
        let dispatch = kernel.keys.dispatch.unwrap_or_default();
        let is_persistent = dispatch == Dispatch::Persistent;
        if is_persistent && side == Side::Cpu && kernel.spec.facts().persistent.is_ok() {
            let message = format!(
                "kernel `{}` cannot be persistent, because it runs on the CPU",
                kernel.name()
            );
            diagnostics.push(
                at(&kernel.section, "dispatch", message)
                    .help("remove `dispatch`, or put the kernel's input on a GPU"),
            );
            return false;
        }
        let kept = self.kept.get(input).cloned().unwrap_or_default();
        self.kept.insert(output.clone(), kept);
        let Some(writes) = self.add_output(i, side, slot, &layout, diagnostics) else {
            return false;
        };
        self.plan.threads += 1;
        let planned = PlannedKernel {
            input: reads,
            output: writes,
            ..self.planned_kernel(i, side, &self.layouts[input])
        };
        self.plan.kernels.push(planned);
        true
    }

    /// Returns kernel `i` for frames of `input` on `side`, without its rings.
    fn planned_kernel(&self, i: usize, side: Side, input: &Layout) -> PlannedKernel {
        let kernel = &self.config.kernels[i];
        let dispatch = kernel.keys.dispatch.unwrap_or_default();
        let is_persistent = dispatch == Dispatch::Persistent;
        let facts = kernel.spec.input_facts(input);
        let memory = match side {
            Side::Cpu => facts.memory,
            Side::Cuda(_) => facts.device_memory,
        };
        PlannedKernel {
            name: kernel.name().to_owned(),
            component: kernel.name().to_owned(),
            driver: kernel.driver.clone(),
            input: String::new(),
            output: String::new(),
            side,
            guarantee: kernel.keys.reader.guarantee,
            incomplete: kernel.keys.reader.incomplete,
            dispatch: (side != Side::Cpu).then_some(dispatch),
            doorbell: is_persistent.then(|| PlannedDoorbell {
                initiator: kernel.keys.doorbell.unwrap_or_default(),
                backend: None,
                location: String::new(),
            }),
            burst: kernel.keys.reader.burst(None),
            core: kernel.keys.reader.core,
            wait: kernel.keys.reader.wait,
            memory,
        }
    }

    /// Returns where a kernel runs: on the declared processor, otherwise on the GPU that contains its input ring if
    /// possible. Returns `None` if the kernel cannot run.
    fn side(&mut self, i: usize, diagnostics: &mut Diagnostics) -> Option<Side> {
        if let Some(side) = self.declared_side(i, diagnostics).ok()? {
            return Some(side);
        }
        let kernel = &self.config.kernels[i];
        let input = &kernel.keys.input;
        let facts = kernel.spec.input_facts(&self.layouts[input]);
        if let Some(Placement::Cuda(ordinal)) = self.plan.ring(input).map(|ring| ring.placement)
            && facts.runs_on_gpu
        {
            return Some(Side::Cuda(ordinal));
        }
        if facts.runs_on_cpu {
            return Some(Side::Cpu);
        }
        let ordinal = match self.topology.gpus.first() {
            Some(gpu) => gpu.ordinal,
            None if !self.topology.is_real => 0,
            None => {
                let name = kernel.name();
                let no_gpu = &self.topology.no_gpu;
                diagnostics.push(
                    at(
                        &kernel.section,
                        FILE_KERNEL,
                        format!("kernel `{name}` runs on a GPU only: {no_gpu}"),
                    )
                    .help(format!(
                        "use a kernel that also runs on the CPU: {}; or, to check the configuration for another machine, run: daq check --no-hardware",
                        self.config.built_in.join(", ")
                    )),
                );
                return None;
            }
        };
        Some(Side::Cuda(ordinal))
    }

    /// Warns of rings that are unused, or filled but not read. With the key `attach`, other processes read a ring.
    fn unused(&self, diagnostics: &mut Diagnostics) {
        for ring in &self.config.rings {
            let name = ring.section.name();
            if self.wiring.may_read || self.wiring.read.contains(name) {
                continue;
            }
            let warning = if self.wiring.fillers.contains_key(name) {
                if ring.keys.attach.is_some_and(|attach| attach.0.is_some()) {
                    continue;
                }
                Diagnostic::warning(format!(
                    "no kernel or sink reads ring `{name}`, so frames are counted and then overwritten"
                ))
                .help(format!(
                    "add a sink with `input = \"{name}\"`; if other processes read this ring, write `attach = true` in \
                     [ring.{name}]"
                ))
            } else if self.wiring.may_fill {
                continue;
            } else {
                Diagnostic::warning(format!("ring `{name}` is not used"))
            };
            diagnostics.push(warning.at(ring.section.header()));
        }
    }

    fn finish(mut self) -> Plan {
        self.leave_on_host();
        let mut plan = self.plan;
        dma::decide(&mut plan, self.config, self.topology);
        gpus::stage_from_host(&mut plan, self.topology);
        nics::assign_to_sinks(&mut plan, self.config, self.topology);
        mapping::decide(&mut plan, self.topology, &self.config.staging.backends);
        totals::add(&mut plan, self.context.memory);
        memory::compare(&mut plan, self.topology);
        plan
    }
}
