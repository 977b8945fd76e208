//! Decides where the CPU stores to GPU memory: which rings are CPU-mappable, which thread fills
//! them, and where doorbells are.
//!
//! A ring that is filled from host memory uses CPU-mappable memory where stores are faster than the copy engine: if a
//! persistent kernel reads the ring, or if its slots are small. Which backends work on a GPU is part of the topology;
//! nothing is probed here.

use super::{DoorbellInitiator, Plan, PlannedCopy, PlannedMethod};
use crate::gpu::Dispatch;
use crate::gpu::bar_mapping::not_allowed;
use crate::gpu::{Backend, Writer};
use crate::kernel::Side;
use crate::region::Placement;
use crate::staging::DEFAULT_CPU_STORE_THRESHOLD;
use crate::topology::DataPath;
use crate::topology::Topology;
use crate::units::ByteSize;
use std::collections::BTreeMap;

/// The plan's text if no backend was tried.
const UNTRIED: &str = "probed at startup";

/// The backend that allocates CPU-mappable memory, with the reasons why the backends tried earlier do not work.
enum BackendChoice {
    /// This backend works. The backends tried earlier failed for these reasons.
    Usable(Backend, Vec<String>),
    /// All backends failed, for these reasons.
    None(Vec<String>),
    /// No backend was tried yet.
    Untried,
}

impl BackendChoice {
    /// Returns the first allowed backend for `writer` that works on GPU `ordinal`.
    fn of(topology: &Topology, ordinal: u32, writer: Writer, allowed: &[Backend]) -> Self {
        let gpu = topology.gpus.iter().find(|gpu| gpu.ordinal == ordinal);
        let tried = gpu.and_then(|gpu| gpu.mappings.as_deref());
        let mut refused = Vec::new();
        for &backend in writer.backends() {
            let found = tried.map(|tried| tried.iter().find(|(tried, _)| *tried == backend));
            let why = match found {
                _ if !allowed.contains(&backend) => not_allowed(backend).why,
                None => return Self::Untried,
                Some(Some((_, Ok(())))) => return Self::Usable(backend, refused),
                Some(Some((_, Err(why)))) => why.clone(),
                Some(None) => "not tried".to_owned(),
            };
            refused.push(format!("{backend}: {why}"));
        }
        Self::None(refused)
    }
}

/// Joins `text` and the reasons why backends were refused.
fn with_refusals(text: &str, refused: &[String]) -> String {
    let parts = std::iter::once(text).chain(refused.iter().map(String::as_str));
    parts.collect::<Vec<_>>().join("; ")
}

/// Selects the CPU-mappable memory and the copy methods of a plan. The plan's rings and readers must be complete.
pub(super) fn decide(plan: &mut Plan, topology: &Topology, allowed: &[Backend]) {
    let persistent: BTreeMap<String, String> = plan
        .kernels
        .iter()
        .filter(|kernel| kernel.dispatch == Some(Dispatch::Persistent))
        .map(|kernel| (kernel.name.clone(), kernel.input.clone()))
        .collect();
    let mut copies = std::mem::take(&mut plan.copies);
    for copy in &mut copies {
        if let Some(gpu) = copy.route.staged_to() {
            ring(plan, copy, gpu, &persistent, topology, allowed);
        }
    }
    plan.copies = copies;
    device_written(plan, topology, allowed);
    doorbells(plan, topology, allowed);
}

/// Selects the backend that allocates the ring on GPU `gpu` filled by `copy`, the copy method, and the path of the source before the
/// copy.
fn ring(
    plan: &mut Plan,
    copy: &mut PlannedCopy,
    gpu: u32,
    persistent: &BTreeMap<String, String>,
    topology: &Topology,
    allowed: &[Backend],
) {
    let Some(ring) = plan.rings.iter_mut().find(|ring| ring.name == copy.to) else {
        return;
    };
    if ring.share.is_some() {
        "none, because the copy engine divides the frames".clone_into(&mut ring.mapping_reason);
        return;
    }
    let kernel = ring
        .readers
        .iter()
        .find(|reader| persistent.get(*reader) == Some(&ring.name));
    let is_small = ring.slot_bytes <= DEFAULT_CPU_STORE_THRESHOLD;
    let size = ByteSize(ring.slot_bytes as u64);
    let why = match kernel {
        Some(kernel) => format!("persistent kernel `{kernel}` reads the ring"),
        None if is_small => format!("the CPU can store frames of {size}"),
        None => {
            ring.mapping_reason = format!("none, because the copy engine copies frames of {size}");
            return;
        }
    };
    let path = match BackendChoice::of(topology, gpu, Writer::Cpu, allowed) {
        BackendChoice::Usable(backend, refused) => {
            ring.mapping = Some(backend);
            ring.mapping_reason = with_refusals(&format!("by {backend}: {why}"), &refused);
            // The kernel's thread copies only if the ring has no other reader that would wait for it, and if the copy
            // engine is not faster.
            copy.kernel_thread = kernel
                .filter(|_| is_small && ring.readers.len() == 1)
                .cloned();
            if copy.kernel_thread.is_some() {
                copy.method = PlannedMethod::Stores;
                let path = format!("the CPU stores frames through the GPU's BAR ({backend})");
                Some((DataPath::Cpu, with_refusals(&path, &refused)))
            } else {
                copy.method = PlannedMethod::Either;
                let path = format!("the CPU stores small bursts through the GPU's BAR ({backend})");
                Some((DataPath::Staged, with_refusals(&path, &refused)))
            }
        }
        BackendChoice::None(refused) => {
            ring.mapping_reason = with_refusals(
                "none, because the CPU cannot store to this memory",
                &refused,
            );
            let path = "the CPU cannot store to this memory";
            Some((DataPath::Staged, with_refusals(path, &refused)))
        }
        BackendChoice::Untried => {
            UNTRIED.clone_into(&mut ring.mapping_reason);
            plan.untried.insert(gpu);
            None
        }
    };
    let sources = plan.sources.iter_mut();
    for source in
        sources.filter(|source| source.ring == copy.from && source.path == DataPath::Staged)
    {
        match &path {
            Some((DataPath::Staged, reason)) => {
                source.reason = format!("{}; {reason}", source.reason);
            }
            Some((path, reason)) => {
                source.path = *path;
                source.reason.clone_from(reason);
            }
            None => {}
        }
    }
}

/// Selects the backends that allocate the GPU rings written directly by devices.
fn device_written(plan: &mut Plan, topology: &Topology, allowed: &[Backend]) {
    for ring in &mut plan.rings {
        let (Some(writer), Placement::Cuda(ordinal)) = (ring.writer, ring.placement) else {
            continue;
        };
        (ring.mapping, ring.mapping_reason) =
            match BackendChoice::of(topology, ordinal, writer, allowed) {
                BackendChoice::Usable(backend, refused) => {
                    let why = format!(
                        "by {backend}: source `{}` writes to the ring",
                        ring.producer
                    );
                    (Some(backend), with_refusals(&why, &refused))
                }
                BackendChoice::None(refused) => (None, with_refusals("none", &refused)),
                BackendChoice::Untried => {
                    plan.untried.insert(ordinal);
                    (None, UNTRIED.to_owned())
                }
            };
    }
}

/// Selects where the doorbells of persistent kernels are allocated, and with which backend.
fn doorbells(plan: &mut Plan, topology: &Topology, allowed: &[Backend]) {
    for kernel in &mut plan.kernels {
        let (Some(doorbell), Side::Cuda(ordinal)) = (&mut kernel.doorbell, kernel.side) else {
            continue;
        };
        let writer = match doorbell.initiator {
            DoorbellInitiator::Cpu => Writer::Doorbell,
            DoorbellInitiator::Device => Writer::Fpga,
        };
        (doorbell.backend, doorbell.location) = match BackendChoice::of(
            topology, ordinal, writer, allowed,
        ) {
            BackendChoice::Usable(Backend::Host, refused) => (
                Some(Backend::Host),
                with_refusals("in host memory", &refused),
            ),
            BackendChoice::Usable(backend, refused) => {
                let location = format!("in GPU memory ({backend})");
                (Some(backend), with_refusals(&location, &refused))
            }
            BackendChoice::None(refused) => {
                let location = with_refusals("not allocated", &refused);
                plan.unavailable.push(format!(
                    "persistent kernel `{}` on cuda:{ordinal}: no backend can allocate doorbell memory: {}; allow more `backends` in [staging]",
                    kernel.name,
                    refused.join("; ")
                ));
                (None, location)
            }
            BackendChoice::Untried => {
                plan.untried.insert(ordinal);
                (None, UNTRIED.to_owned())
            }
        };
    }
}
