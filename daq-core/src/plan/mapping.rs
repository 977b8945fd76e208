//! Where the CPU stores to GPU memory: rings that it can store to, whose thread fills them, doorbells.
//!
//! A ring that is filled from host memory lies in memory that the CPU can store to where that is faster than the copy
//! engine: where a kernel that stays on the GPU reads it, and where its slots are small. What would make that memory
//! was found out by whoever looked at the machine; here it is only told.

use super::{CopyMethod, DoorbellInitiator, Plan, PlannedCopy};
use crate::gpu::Dispatch;
use crate::gpu::bar_mapping::not_allowed;
use crate::gpu::{Backend, Writer};
use crate::kernel::Side;
use crate::region::Placement;
use crate::staging::DEFAULT_CPU_STORE_THRESHOLD;
use crate::staging::Direction;
use crate::topology::DataPath;
use crate::topology::Topology;
use crate::units::ByteSize;
use std::collections::BTreeMap;

/// What is told where a backend was not tried.
const UNTRIED: &str = "probed at the start";

/// What would make memory that the CPU can store to.
enum Maker {
    /// This backend, after what was refused.
    Is(Backend, Vec<String>),
    /// None: what was refused.
    None(Vec<String>),
    /// It was not tried.
    Untried,
}

impl Maker {
    /// The first of the backends for `writer` that may and can make memory on the GPU called `ordinal`.
    fn of(topology: &Topology, ordinal: u32, writer: Writer, allowed: &[Backend]) -> Self {
        let gpu = topology.gpus.iter().find(|gpu| gpu.ordinal == ordinal);
        let tried = gpu.and_then(|gpu| gpu.mappings.as_deref());
        let mut refused = Vec::new();
        for &backend in writer.backends() {
            let found = tried.map(|tried| tried.iter().find(|(tried, _)| *tried == backend));
            let why = match found {
                _ if !allowed.contains(&backend) => not_allowed(backend).why,
                None => return Self::Untried,
                Some(Some((_, Ok(())))) => return Self::Is(backend, refused),
                Some(Some((_, Err(why)))) => why.clone(),
                Some(None) => "it was not tried".to_owned(),
            };
            refused.push(format!("{backend}: {why}"));
        }
        Self::None(refused)
    }
}

/// `text` and what refused.
fn told(text: &str, refused: &[String]) -> String {
    let parts = std::iter::once(text).chain(refused.iter().map(String::as_str));
    parts.collect::<Vec<_>>().join("; ")
}

/// Decides of a plan whose rings and readers are all known.
pub(super) fn decide(plan: &mut Plan, topology: &Topology, allowed: &[Backend]) {
    let staying: BTreeMap<String, String> = plan
        .kernels
        .iter()
        .filter(|kernel| kernel.dispatch == Some(Dispatch::Persistent))
        .map(|kernel| (kernel.name.clone(), kernel.input.clone()))
        .collect();
    let mut copies = std::mem::take(&mut plan.copies);
    for copy in &mut copies {
        if copy.direction == Direction::In {
            ring(plan, copy, &staying, topology, allowed);
        }
    }
    plan.copies = copies;
    written(plan, topology, allowed);
    doorbells(plan, topology, allowed);
}

/// Decides of the ring that `copy` fills, of the copy and of what the source behind it is told.
fn ring(
    plan: &mut Plan,
    copy: &mut PlannedCopy,
    staying: &BTreeMap<String, String>,
    topology: &Topology,
    allowed: &[Backend],
) {
    let Some(ring) = plan.rings.iter_mut().find(|ring| ring.name == copy.to) else {
        return;
    };
    let stays = ring
        .readers
        .iter()
        .find(|reader| staying.get(*reader) == Some(&ring.name));
    let is_small = ring.slot_bytes <= DEFAULT_CPU_STORE_THRESHOLD;
    let size = ByteSize(ring.slot_bytes as u64);
    let why = match stays {
        Some(kernel) => format!("kernel `{kernel}` stays on the GPU and reads it"),
        None if is_small => format!("frames of {size} can be stored by the CPU"),
        None => {
            ring.mapping_reason = format!("none: frames of {size} go by the copy engine");
            return;
        }
    };
    let path = match Maker::of(topology, copy.device, Writer::Cpu, allowed) {
        Maker::Is(backend, refused) => {
            ring.mapping = Some(backend);
            ring.mapping_reason = told(&format!("by {backend}: {why}"), &refused);
            // Whoever else reads the ring is not to wait for the kernel's thread, nor are frames that the copy engine is
            // faster with.
            copy.kernel_thread = stays
                .filter(|_| is_small && ring.readers.len() == 1)
                .cloned();
            if copy.kernel_thread.is_some() {
                copy.method = CopyMethod::Stores;
                let path = format!("the CPU stores frames through the GPU's BAR ({backend})");
                Some((DataPath::Cpu, told(&path, &refused)))
            } else {
                copy.method = CopyMethod::Either;
                let path = format!("the CPU stores small bursts through the GPU's BAR ({backend})");
                Some((DataPath::Staged, told(&path, &refused)))
            }
        }
        Maker::None(refused) => {
            ring.mapping_reason = told("none: the CPU has no way to store there", &refused);
            let path = "the CPU has no way to store there";
            Some((DataPath::Staged, told(path, &refused)))
        }
        Maker::Untried => {
            UNTRIED.clone_into(&mut ring.mapping_reason);
            plan.untried.insert(copy.device);
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

/// Decides of rings on GPUs that devices write by themselves.
fn written(plan: &mut Plan, topology: &Topology, allowed: &[Backend]) {
    for ring in &mut plan.rings {
        let (Some(writer), Placement::Cuda(ordinal)) = (ring.writer, ring.placement) else {
            continue;
        };
        (ring.mapping, ring.mapping_reason) = match Maker::of(topology, ordinal, writer, allowed) {
            Maker::Is(backend, refused) => {
                let why = format!("by {backend}: source `{}` writes it", ring.producer);
                (Some(backend), told(&why, &refused))
            }
            Maker::None(refused) => (None, told("none", &refused)),
            Maker::Untried => {
                plan.untried.insert(ordinal);
                (None, UNTRIED.to_owned())
            }
        };
    }
}

/// Decides where the doorbells of kernels that stay on their GPU lie.
fn doorbells(plan: &mut Plan, topology: &Topology, allowed: &[Backend]) {
    for kernel in &mut plan.kernels {
        let (Some(bell), Side::Cuda(ordinal)) = (&mut kernel.doorbell, kernel.side) else {
            continue;
        };
        let writer = match bell.initiator {
            DoorbellInitiator::Cpu => Writer::Doorbell,
            DoorbellInitiator::Device => Writer::Fpga,
        };
        (bell.backend, bell.location) = match Maker::of(topology, ordinal, writer, allowed) {
            Maker::Is(Backend::Host, refused) => {
                (Some(Backend::Host), told("in host memory", &refused))
            }
            Maker::Is(backend, refused) => {
                let place = format!("in GPU memory ({backend})");
                (Some(backend), told(&place, &refused))
            }
            Maker::None(refused) => {
                let place = told("nowhere", &refused);
                plan.unavailable.push(format!(
                    "kernel `{}` stays on cuda:{ordinal}, and nothing can make memory for its doorbell: {}; allow more `backends` in [staging]",
                    kernel.name,
                    refused.join("; ")
                ));
                (None, place)
            }
            Maker::Untried => {
                plan.untried.insert(ordinal);
                (None, UNTRIED.to_owned())
            }
        };
    }
}
