//! Totals of a plan: memory and threads.

use super::{Plan, PlannedRing};
use crate::kernel::Side;
use crate::region::Placement;
use std::collections::BTreeSet;

/// Computes the size of each ring and the totals of memory and threads, and stores them in `plan`. `others` returns the memory
/// of sections outside the pipeline.
pub(super) fn add(plan: &mut Plan, others: Option<fn(&[PlannedRing]) -> usize>) {
    for ring in &mut plan.rings {
        let options = ring.options();
        (ring.region_bytes, ring.metadata_bytes) =
            (options.region_bytes(), options.metadata_bytes());
    }
    // Readers without guarantee copy frames first if their ring does not support backpressure.
    let copies = plan
        .kernels
        .iter()
        .map(|kernel| (&kernel.input, kernel.guarantee, kernel.burst));
    let copies: usize = copies
        .chain(
            plan.sinks
                .iter()
                .map(|sink| (&sink.input, sink.guarantee, sink.burst)),
        )
        .filter(|(_, guarantee, _)| !guarantee)
        .filter_map(|(input, _, burst)| {
            let ring = plan
                .rings
                .iter()
                .find(|ring| ring.name == *input && !ring.supports_backpressure)?;
            Some(ring.slot_bytes.next_multiple_of(64) * burst)
        })
        .sum();
    let on = |host: bool| {
        let rings = plan.rings.iter();
        let rings = rings.filter(move |ring| (ring.placement == Placement::Host) == host);
        let kernels = plan.kernels.iter();
        let kernels = kernels.filter(move |kernel| (kernel.side == Side::Cpu) == host);
        rings.map(|ring| ring.region_bytes).sum::<usize>()
            + kernels.map(|kernel| kernel.memory).sum::<usize>()
    };
    let records = plan.rings.iter().map(|ring| ring.metadata_bytes);
    let sources = plan.sources.iter().map(|source| source.memory);
    let sinks = plan.sinks.iter().map(|sink| sink.memory);
    let others = others.map(|memory| memory(&plan.rings));
    let beside: usize = records.chain(sources).chain(sinks).chain(others).sum();
    // The private slots of free-running engines are in the same memory as the ring.
    let (mut on_host, mut on_device) = (on(true) + beside + copies, on(false));
    for source in &plan.sources {
        let private = source
            .engine
            .as_ref()
            .and_then(|engine| engine.private_slot_bytes);
        match plan.ring(&source.ring).map(|ring| ring.placement) {
            Some(Placement::Cuda(_)) => on_device += private.unwrap_or(0),
            _ => on_host += private.unwrap_or(0),
        }
    }
    (plan.memory, plan.device_memory) = (on_host, on_device);
    // One copy thread per route, unless a kernel's thread does the copy.
    let staging: BTreeSet<_> = plan
        .copies
        .iter()
        .filter(|copy| copy.kernel_thread.is_none())
        .map(|copy| copy.route)
        .collect();
    plan.threads += staging.len() + plan.gathers.len();
}
