//! Checks of a configuration that need no plan: claims, cores, names, ring shapes.

use super::config::{Component, MAX_BURST, SourceKeys, at};
use super::resolve::PlanContext;
use super::wiring::{Filler, Wiring};
use super::{Config, DoorbellInitiator, Memory, RingSection};
use crate::claim::Claim;
use crate::config::{Diagnostic, Diagnostics, Section};
use crate::entry::{EngineRequirements, SourceSpec};
use crate::gpu::Dispatch;
use crate::gpu::Writer;
use crate::reorder::{Arrival, Geometry, WindowSize};
use crate::topology::Topology;
use crate::units::ByteSize;

/// Reports two components that claim the same resource.
pub(super) fn claims(config: &Config, context: &PlanContext, diagnostics: &mut Diagnostics) {
    let others = context
        .claims
        .iter()
        .map(|(section, claims)| (section, claims.clone()));
    let all: Vec<_> = config.claims().chain(others).collect();
    for (i, (section, claims)) in all.iter().enumerate() {
        for (other, theirs) in &all[..i] {
            let clash = claims.iter().find_map(|claim| {
                let here = claim.at(&context.directory);
                let is_same = |their: &&Claim| here.conflicts(&their.at(&context.directory));
                Some((claim, theirs.iter().find(is_same)?))
            });
            if let Some((claim, their)) = clash {
                let place = |section: &Section| {
                    ["listen", "path", "device"]
                        .iter()
                        .find_map(|key| section.span_of(key))
                        .unwrap_or_else(|| section.header())
                };
                diagnostics.push(
                    Diagnostic::error(format!(
                        "[{}] and [{}] both claim {claim}",
                        other.title(),
                        section.title()
                    ))
                    .labelled(place(section), format!("claims {claim}"))
                    .also(place(other), format!("claims {their}"))
                    .help(claim.remedy(their)),
                );
            }
        }
    }
}

/// Reports invalid file names.
pub(super) fn files(config: &Config, diagnostics: &mut Diagnostics) {
    for (section, file) in config.files() {
        if let Err(problem) = file.check_name() {
            diagnostics.push(section.problem(problem));
        }
    }
}

/// Reports cores that this process may not use.
pub(super) fn cores(config: &Config, topology: &Topology, diagnostics: &mut Diagnostics) {
    if !topology.is_real {
        return;
    }
    if let Some(table) = &config.staging_table {
        let cores = config.staging.cores.iter();
        for core in cores.filter(|core| !topology.cores.contains(core)) {
            let message = format!("core {core} is not among the cores of this process");
            let help = format!("this process may use the cores {:?}", topology.cores);
            diagnostics.push(at(table, "cores", message).help(help));
        }
    }
    for known in &config.known_keys {
        for core in &known.cores {
            if !topology.cores.contains(core) {
                diagnostics.push(
                    at(
                        &known.section,
                        known.cores_key(),
                        format!("core {core} is not among the cores of this process"),
                    )
                    .help(format!(
                        "this process may use the cores {:?}",
                        topology.cores
                    )),
                );
            }
        }
    }
}

/// Reports a kernel and a sink with the same name, because the ledgers of ring readers are distinguished by name.
pub(super) fn names(config: &Config, diagnostics: &mut Diagnostics) {
    let of_kind = |kind| {
        let sections = config.known_keys.iter().map(|known| &known.section);
        sections.filter(move |section| section.kind() == kind)
    };
    for sink in of_kind("sink") {
        if let Some(kernel) = of_kind("kernel").find(|kernel| kernel.name() == sink.name()) {
            diagnostics.push(
                Diagnostic::error(format!(
                    "a kernel and a sink are both called `{}`",
                    sink.name()
                ))
                .labelled(sink.header(), "the sink")
                .also(kernel.header(), "the kernel")
                .help("each ledger is identified by the name of its component; rename the kernel or the sink"),
            );
        }
    }
}

/// Reports burst sizes out of range.
pub(super) fn bursts(config: &Config, diagnostics: &mut Diagnostics) {
    for known in &config.known_keys {
        if let Some(burst) = known.burst
            && known.input_key().is_some()
            && !(1..=MAX_BURST).contains(&(burst as usize))
        {
            diagnostics.push(at(
                &known.section,
                "burst",
                format!("`burst` is {burst}, but must be 1 to {MAX_BURST}"),
            ));
        }
    }
}

/// Reports kernels that cannot be persistent, and doorbells that nothing can ring or that have no memory.
pub(super) fn dispatches(config: &Config, wiring: &Wiring, diagnostics: &mut Diagnostics) {
    for kernel in &config.kernels {
        let (name, keys) = (kernel.name(), &kernel.keys);
        if keys.dispatch != Some(Dispatch::Persistent) {
            if keys.doorbell.is_some() {
                let message = format!(
                    "`doorbell` has no effect on kernel `{name}`, because this kernel is launched for each burst"
                );
                diagnostics.push(
                    at(&kernel.section, "doorbell", message)
                        .help("remove `doorbell`, or set dispatch = \"persistent\""),
                );
            }
            continue;
        }
        if let Err(why) = kernel.spec.facts().persistent {
            let message = format!("kernel `{name}` cannot be persistent: {why}");
            diagnostics.push(at(&kernel.section, "dispatch", message).help(
                "remove `dispatch`, or use your own kernel, which can be persistent: file = \"my.cu\" instead of `use`",
            ));
            continue;
        }
        let backends = &config.staging.backends;
        if let Some(table) = &config.staging_table
            && !Writer::Doorbell
                .backends()
                .iter()
                .any(|backend| backends.contains(backend))
        {
            let message = format!(
                "persistent kernel `{name}` needs doorbell memory, but `backends` allows no method to allocate it"
            );
            diagnostics.push(
                at(table, "backends", message)
                    .also(
                        kernel.section.place_of("dispatch"),
                        "this kernel needs a doorbell",
                    )
                    .help("add \"host\", which is always available, or remove `backends`"),
            );
        }
        if keys.doorbell == Some(DoorbellInitiator::Device)
            && let Some(why) = no_device(config, wiring, &keys.input)
        {
            let message = format!("no device can ring the doorbell of kernel `{name}`: {why}");
            diagnostics
                .push(at(&kernel.section, "doorbell", message).help(
                    "remove `doorbell` or set it to \"cpu\"; the CPU then rings the doorbell after it commits frames",
                ));
        }
    }
}

/// Returns why no device can ring a doorbell after it filled `ring`; `None` if a device can ring it, or if the producer
/// of `ring` is unknown.
fn no_device(config: &Config, wiring: &Wiring, ring: &str) -> Option<String> {
    match wiring.fillers.get(ring)? {
        Filler::Unread => None,
        Filler::Kernel(i) => {
            let kernel = config.kernels[*i].name();
            Some(format!("kernel `{kernel}` fills ring `{ring}`"))
        }
        Filler::Source(i) => {
            let source = &config.sources[*i];
            (!source
                .spec
                .facts()
                .engine
                .is_some_and(|engine| engine.can_ring_doorbell))
            .then(|| {
                format!(
                    "source `{}` ({}) fills ring `{ring}`, but has no engine that can ring a doorbell",
                    source.name(),
                    source.driver
                )
            })
        }
    }
}

/// Reports invalid slot counts and sizes. Returns whether the ring can hold frames of `frame` bytes.
pub(super) fn slots(
    ring: &RingSection,
    slot: usize,
    frame: usize,
    diagnostics: &mut Diagnostics,
) -> bool {
    let before = diagnostics.errors();
    if ring.keys.slots < 2 {
        diagnostics.push(at(
            &ring.section,
            "slots",
            format!("`slots` is {}, but must be at least 2", ring.keys.slots),
        ));
    }
    if slot < frame || slot == 0 {
        let (slot, frame) = (ByteSize(slot as u64), ByteSize(frame as u64));
        diagnostics.push(
            at(
                &ring.section,
                "slot",
                format!("a slot of {slot} is too small for frames of {frame}"),
            )
            .help(format!("set slot = \"{frame}\", or remove `slot`")),
        );
    }
    let total = (ring.keys.slots as usize).checked_mul(slot);
    if total.is_none_or(|total| total > 1 << 46) {
        diagnostics.push(at(
            &ring.section,
            "slots",
            "the ring is larger than any machine's memory".to_owned(),
        ));
    }
    diagnostics.errors() == before
}

/// Returns whether a ring has enough slots for one input frame of `kernel`, which has up to `needed` output frames.
///
/// A kernel starts only when all of its output frames have a free slot.
pub(super) fn output_slots(
    ring: &RingSection,
    kernel: &str,
    needed: usize,
    diagnostics: &mut Diagnostics,
) -> bool {
    let slots = ring.keys.slots;
    if slots as usize >= needed {
        return true;
    }
    diagnostics.push(
        at(
            &ring.section,
            "slots",
            format!("{slots} slots are too few, because kernel `{kernel}` produces up to {needed} frames per input frame"),
        )
        .help(format!("set slots = {} or more, or increase the kernel's integration", needed.saturating_mul(2))),
    );
    false
}

/// Warns of a reorder window that is too small for the receiving threads, and of a sequence number with too few bits.
/// `key` and `help` belong to the second warning.
pub(super) fn window(
    source: &Component<SourceKeys, dyn SourceSpec>,
    arrival: &Arrival,
    geometry: &Geometry,
    size: &WindowSize,
    (key, help): (&str, &str),
    diagnostics: &mut Diagnostics,
) {
    let name = source.name();
    if let Some(warning) = &size.warning {
        let wanted = size.wanted;
        let help = match arrival.declared {
            Some(_) => format!("remove `window`, or set window = {wanted}"),
            None => format!("set `slots` of the ring to {} or more", 2 * wanted),
        };
        diagnostics.push(
            Diagnostic::warning(format!("source `{name}`: {warning}"))
                .at(source.section.place_of("window"))
                .help(help),
        );
    }
    if let Some(loss) = arrival.invisible_loss(geometry) {
        diagnostics.push(
            Diagnostic::warning(format!("source `{name}`: {loss}"))
                .at(source.section.place_of(key))
                .help(help),
        );
    }
}

/// Warns of a kernel that needs frames of `frame` bytes from a source that detects its frame size at run time.
pub(super) fn full_frames(
    source: &Component<SourceKeys, dyn SourceSpec>,
    kernel: &Section,
    frame: usize,
    diagnostics: &mut Diagnostics,
) {
    if !source.spec.facts().detects_frame_size {
        return;
    }
    let (name, frame) = (source.name(), ByteSize(frame as u64));
    diagnostics.push(
        Diagnostic::warning(format!(
            "kernel `{}` needs frames of {frame}, but source `{name}` detects the frame size at run time; shorter frames are \
             counted as `failed` and not processed",
            kernel.name()
        ))
        .at(kernel.place_of("input"))
        .help(format!(
            "set `heap` in [source.{name}.format] to the sender's heap length, and remove `slot` from the ring"
        )),
    );
}

/// Returns whether a DMA engine can fill the slots of `ring`, which have `slot` bytes.
pub(super) fn engine(
    ring: &RingSection,
    source: &Section,
    slot: usize,
    needs: &EngineRequirements,
    diagnostics: &mut Diagnostics,
) {
    let size = ByteSize(slot as u64);
    if !slot.is_multiple_of(needs.alignment) {
        let alignment = needs.alignment;
        let message = format!(
            "the slot size of {size} is not a multiple of {alignment} bytes, which the engine requires"
        );
        let whole = ByteSize(slot.next_multiple_of(alignment) as u64);
        diagnostics.push(
            at(&ring.section, "slot", message)
                .also(source.header(), "this source's engine")
                .help(format!("write slot = \"{whole}\"")),
        );
    }
    if slot > needs.max_slot {
        let max = ByteSize(needs.max_slot as u64);
        let message =
            format!("the slot size of {size} exceeds the engine's maximum transfer of {max}");
        diagnostics.push(
            at(&ring.section, "slot", message)
                .also(source.header(), "this source's engine")
                .help(format!("write slot = \"{max}\" or less")),
        );
    }
    let slots = ring.keys.slots as usize;
    if slots < needs.min_slots {
        let min = needs.min_slots;
        let message = format!(
            "{slots} slots are too few for the engine, which may be writing {min} slots at a time"
        );
        diagnostics.push(
            at(&ring.section, "slots", message)
                .also(source.header(), "this source's engine")
                .help(format!("write slots = {min} or more")),
        );
    }
    if slots > needs.max_slots {
        let max = needs.max_slots;
        let message =
            format!("{slots} slots exceed the engine's descriptor table, which holds {max}");
        diagnostics.push(
            at(&ring.section, "slots", message)
                .also(source.header(), "this source's engine")
                .help(format!("write slots = {max} or less")),
        );
    }
}

/// Reports rings with several memories without `spread`, and rings with `spread` but one memory.
pub(super) fn spreads(config: &Config, diagnostics: &mut Diagnostics) {
    for ring in config.rings.iter().filter(|ring| ring.is_whole) {
        let is_list = matches!(ring.keys.memory, Memory::Gpus(_));
        let name = ring.section.name();
        if is_list && ring.keys.spread.is_none() {
            let message = format!("ring `{name}` has several memories, but no `spread`");
            diagnostics.push(at(&ring.section, "memory", message).help(
                "set spread = \"frames\" (whole frames in turn), or \"channels\", \"points\" or \"parts\" (a part of each frame)",
            ));
        } else if ring.keys.spread.is_some() && !is_list {
            let message = format!("ring `{name}` has one memory, so `spread` has no effect");
            diagnostics.push(at(&ring.section, "spread", message).help(
                "list several GPUs, such as memory = [\"cuda:0\", \"cuda:1\"], or remove `spread`",
            ));
        }
    }
}
