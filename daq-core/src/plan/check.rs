//! Checks of a configuration that need no plan: claims, cores, names, shapes.

use super::config::at;
use super::resolve::OtherClaims;
use super::{Config, RingSection};
use crate::config::{Diagnostic, Diagnostics, Section};
use crate::topology::Topology;
use crate::units::ByteSize;

/// Two components that want one thing.
pub(super) fn claims(config: &Config, others: &OtherClaims, diagnostics: &mut Diagnostics) {
    let sources = config
        .sources
        .iter()
        .map(|source| (&source.section, source.spec.claims()));
    let sinks = config
        .sinks
        .iter()
        .map(|sink| (&sink.section, sink.spec.claims()));
    let others = others
        .iter()
        .map(|(section, claims)| (section, claims.clone()));
    let all: Vec<_> = sources.chain(sinks).chain(others).collect();
    for (i, (section, claims)) in all.iter().enumerate() {
        for (other, theirs) in &all[..i] {
            let clash = claims.iter().find_map(|claim| {
                Some((claim, theirs.iter().find(|their| claim.conflicts(their))?))
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
                    .help("give one of them another address, path or device"),
                );
            }
        }
    }
}

/// Cores that this process may not use.
pub(super) fn cores(config: &Config, topology: &Topology, diagnostics: &mut Diagnostics) {
    if !topology.is_real {
        return;
    }
    let sources = config.sources.iter().flat_map(|source| {
        source
            .spec
            .cores()
            .into_iter()
            .map(|core| (&source.section, "cores", core))
    });
    let kernels = config
        .kernels
        .iter()
        .filter_map(|kernel| Some((&kernel.section, "core", kernel.keys.core?)));
    let sinks = config
        .sinks
        .iter()
        .filter_map(|sink| Some((&sink.section, "core", sink.keys.core?)));
    for (section, key, core) in sources.chain(kernels).chain(sinks) {
        if !topology.cores.contains(&core) {
            diagnostics.push(
                at(
                    section,
                    key,
                    format!("core {core} is not among the cores of this process"),
                )
                .help(format!("this process may use {:?}", topology.cores)),
            );
        }
    }
}

/// Kernels and sinks both read rings, and their ledgers are told apart by name.
pub(super) fn names(config: &Config, diagnostics: &mut Diagnostics) {
    for sink in &config.sinks {
        if let Some(kernel) = config
            .kernels
            .iter()
            .find(|kernel| kernel.name() == sink.name())
        {
            diagnostics.push(
                Diagnostic::error(format!(
                    "a kernel and a sink are both called `{}`",
                    sink.name()
                ))
                .labelled(sink.section.header(), "the sink")
                .also(kernel.section.header(), "the kernel")
                .help("their ledgers are told apart by name: rename one"),
            );
        }
    }
    let bursts = config
        .kernels
        .iter()
        .map(|kernel| (&kernel.section, kernel.keys.burst))
        .chain(
            config
                .sinks
                .iter()
                .map(|sink| (&sink.section, sink.keys.burst)),
        );
    for (section, burst) in bursts {
        if !(1..=4096).contains(&burst) {
            diagnostics.push(at(
                section,
                "burst",
                format!("a burst of {burst} frames; 1 to 4096 are possible"),
            ));
        }
    }
}

/// Whether a ring's declared shape can hold frames of `frame` bytes.
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
            format!("{} slots; at least 2 are needed", ring.keys.slots),
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
            .help(format!("write slot = \"{frame}\" or leave it out")),
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

/// Whether a ring has the slots for what one input frame of its kernel yields, here `per_frame` outputs: a
/// kernel runs only when all of them have a slot.
pub(super) fn room(
    ring: &RingSection,
    kernel: &str,
    per_frame: f64,
    diagnostics: &mut Diagnostics,
) -> bool {
    let needed = per_frame.floor() + 1.0;
    if f64::from(ring.keys.slots) >= needed {
        return true;
    }
    let slots = ring.keys.slots;
    diagnostics.push(
        at(
            &ring.section,
            "slots",
            format!("{slots} slots are too few: one frame of kernel `{kernel}` yields up to {needed} here"),
        )
        .help(format!("write slots = {} or more, or have the kernel integrate more", needed * 2.0)),
    );
    false
}
