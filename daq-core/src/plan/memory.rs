//! Compares the memory of a plan with the memory of the host and its GPUs.

use super::{Plan, PlannedRing};
use crate::kernel::Side;
use crate::region::Placement;
use crate::topology::{HostMemory, Topology};
use crate::units::ByteSize;

fn size(bytes: u64) -> ByteSize {
    ByteSize(bytes).rounded()
}

/// Adds the memory that the machine does not have to `plan.unavailable`, and a note if rings cannot be locked.
pub(super) fn compare(plan: &mut Plan, topology: &Topology) {
    let mut missing = Vec::new();
    if let Some(memory) = &topology.memory {
        missing.extend(host(plan, memory));
        plan.notes.extend(locked(plan, memory));
    }
    for gpu in &topology.gpus {
        let Some(available) = gpu.memory else {
            continue;
        };
        let needed = on_gpu(plan, gpu.ordinal);
        if needed > available {
            missing.push(format!(
                "the pipeline needs {} of memory on cuda:{}, but the GPU has {}; {}",
                size(needed),
                gpu.ordinal,
                size(available),
                remedy(plan, Placement::Cuda(gpu.ordinal))
            ));
        }
    }
    // Errors that were found earlier are more specific.
    plan.unavailable.extend(missing);
}

/// Returns why the host memory is too small; `None` if it is sufficient.
fn host(plan: &Plan, memory: &HostMemory) -> Option<String> {
    let mut pool = memory.huge_pool;
    let mut needed = plan.memory as u64;
    for ring in on(plan, Placement::Host).filter(|ring| ring.huge) {
        let bytes = ring.region_bytes as u64;
        if bytes <= pool {
            pool -= bytes;
            needed = needed.saturating_sub(bytes);
        }
    }
    (needed > memory.available).then(|| {
        format!(
            "the pipeline needs {} of host memory, but {} are available ({}); {}, or free memory",
            size(needed),
            size(memory.available),
            memory.limited_by,
            remedy(plan, Placement::Host)
        )
    })
}

/// Returns a note if rings that are to be locked exceed the limit of this process.
fn locked(plan: &Plan, memory: &HostMemory) -> Option<String> {
    let limit = memory.lockable?;
    let rings = on(plan, Placement::Host).filter(|ring| ring.lock);
    let wanted: u64 = rings.map(|ring| ring.region_bytes as u64).sum();
    (wanted > limit).then(|| {
        format!(
            "{} of rings are to be locked in memory, but this process may lock {}; the rest may be swapped out; raise the \
             limit (ulimit -l, or LimitMEMLOCK= in the unit), or set lock = false",
            size(wanted),
            size(limit)
        )
    })
}

fn on(plan: &Plan, placement: Placement) -> impl Iterator<Item = &PlannedRing> {
    let rings = plan.rings.iter();
    rings.filter(move |ring| ring.placement == placement)
}

fn on_gpu(plan: &Plan, ordinal: u32) -> u64 {
    let rings = on(plan, Placement::Cuda(ordinal)).map(|ring| ring.region_bytes as u64);
    let kernels = plan.kernels.iter();
    let kernels = kernels.filter(|kernel| kernel.side == Side::Cuda(ordinal));
    let is_here = |name: &str| {
        let ring = plan.ring(name);
        ring.is_some_and(|ring| ring.placement == Placement::Cuda(ordinal))
    };
    // The private slots of free-running engines are in the same memory as the ring.
    let private = plan.sources.iter().filter_map(|source| {
        let bytes = source.engine.as_ref()?.private_slot_bytes?;
        is_here(&source.ring).then_some(bytes as u64)
    });
    rings
        .chain(kernels.map(|kernel| kernel.memory as u64))
        .chain(private)
        .sum()
}

/// Returns how to reduce the memory: the largest ring.
fn remedy(plan: &Plan, placement: Placement) -> String {
    let largest = on(plan, placement).max_by_key(|ring| ring.region_bytes);
    largest.map_or_else(
        || "reduce the frames of the kernels".to_owned(),
        |ring| {
            format!(
                "reduce `slots` or `slot` of the largest ring, `{}` ({} × {} = {})",
                ring.name,
                ring.slots,
                ByteSize(ring.slot_bytes as u64),
                size(ring.region_bytes as u64)
            )
        },
    )
}
