//! Where DMA engines write: into the declared ring, into a host ring before it, or into slots of their own.
//!
//! | the engine | its ring lies | it writes | path |
//! |---|---|---|---|
//! | can be held back | in host memory | the ring | direct |
//! | can be held back | on a GPU that it may write | the ring | direct |
//! | can be held back | on another GPU | `RING@host`, which is copied | staged |
//! | goes round | anywhere | slots of its own beside the ring that it would write | the same |
//!
//! What it would write on a GPU is decided by the topology, and proved when it starts. A network card may be named as
//! RDMA names it; one of software has no place, and is the CPU to the memory that it writes.

use super::{Config, DoorbellInitiator, Incomplete, Plan, PlannedCopy, nics};
use crate::entry::EngineRequirements;
use crate::gpu::Dispatch;
use crate::gpu::Writer;
use crate::region::Placement;
use crate::staging::Direction;
use crate::topology::DataPath;
use crate::topology::nic::is_emulated_nic;
use crate::topology::{P2pPreference, P2pQuery, PeerAccess, Topology};

/// Decides of every engine in a plan whose rings and readers are all known.
pub(super) fn decide(plan: &mut Plan, config: &Config, topology: &Topology) {
    for i in 0..plan.sources.len() {
        let name = plan.sources[i].name.clone();
        let Some(source) = config.sources.iter().find(|source| source.name() == name) else {
            continue;
        };
        let Some(mut needs) = source.spec.engine() else {
            continue;
        };
        let numbers = source.spec.frame_sequence().is_some();
        if needs.writer == Writer::Nic {
            let gpu = into(plan, i).map(|copy| copy.device);
            let device = needs.device.as_deref();
            match device
                .map(|device| nics::card(device, gpu, topology))
                .transpose()
            {
                Ok(nic) => plan.sources[i].nic = nic.flatten(),
                Err(why) => plan.unavailable.push(format!("source `{name}`: {why}")),
            }
            if let Some(nic) = &plan.sources[i].nic {
                needs.device = Some(nic.clone());
                let told = format!("its network card, the one that suits its ring best, is {nic}");
                plan.sources[i].notes.push(told);
            }
        }
        place(plan, i, &needs, numbers, config, topology);
        carry(plan, i);
    }
    bells(plan);
}

/// The copy to a GPU that was inserted behind the ring of source `i`.
fn into(plan: &Plan, i: usize) -> Option<PlannedCopy> {
    let written = &plan.sources[i].ring;
    let is_inserted = plan
        .ring(written)
        .is_some_and(|ring| ring.inserted.is_some());
    let mut copies = plan.copies.iter();
    let found = copies.find(|copy| copy.from == *written && copy.direction == Direction::In);
    found.filter(|_| is_inserted).cloned()
}

/// What an engine is to the memory that it writes.
fn writer(needs: &EngineRequirements) -> Writer {
    match &needs.device {
        Some(device) if needs.writer == Writer::Nic && is_emulated_nic(device) => Writer::Cpu,
        _ => needs.writer,
    }
}

/// Decides which ring the engine of source `i` writes.
fn place(
    plan: &mut Plan,
    i: usize,
    needs: &EngineRequirements,
    numbers: bool,
    config: &Config,
    topology: &Topology,
) {
    let written = plan.sources[i].ring.clone();
    let Some(copy) = into(plan, i) else {
        let source = &mut plan.sources[i];
        source.path = DataPath::Direct;
        "the device writes into host memory".clone_into(&mut source.reason);
        return;
    };
    let gpu = copy.device;
    let bytes = plan
        .ring(&copy.to)
        .map_or(0, |ring| ring.options().region_bytes());
    let others: Vec<_> = plan
        .ring(&written)
        .map(|ring| &ring.readers)
        .into_iter()
        .flatten()
        .filter(|reader| **reader != copy.name)
        .cloned()
        .collect();
    let found = judge(needs, numbers, &others, gpu, bytes, config, topology);
    let source = &mut plan.sources[i];
    match found {
        Err(why) => {
            source.reason =
                format!("the device writes host memory, the ring is on cuda:{gpu}: {why}");
            if needs.preference == P2pPreference::Direct {
                plan.unavailable.push(format!(
                    "source `{}`: path = \"direct\" is not possible: {why}; write \"auto\" or \"staged\"",
                    source.name
                ));
            }
            if let Some(ring) = plan.rings.iter_mut().find(|ring| ring.name == written) {
                "its device writes host memory".clone_into(&mut ring.reason);
                ring.inserted = Some(format!(
                    "the device fills it, then it is copied to cuda:{gpu}"
                ));
            }
        }
        Ok((why, warnings)) => {
            source.path = DataPath::Direct;
            source.reason =
                format!("the device writes into cuda:{gpu}: {why}; proved at the start");
            source.notes.extend(warnings);
            source.ring.clone_from(&copy.to);
            let (producer, supports_backpressure) =
                (source.name.clone(), source.supports_backpressure);
            plan.copies.retain(|other| other.name != copy.name);
            if let Some(ring) = plan.rings.iter_mut().find(|ring| ring.name == copy.to) {
                ring.producer = producer;
                ring.supports_backpressure = supports_backpressure;
                ring.writer = Some(writer(needs));
            }
            plan.rings.retain(|ring| ring.name != written);
        }
    }
}

/// Whether the engine may write into the GPU, with reason and warnings, or why it may not.
fn judge(
    needs: &EngineRequirements,
    numbers: bool,
    others: &[String],
    gpu: u32,
    bytes: usize,
    config: &Config,
    topology: &Topology,
) -> Result<(String, Vec<String>), String> {
    if needs.preference == P2pPreference::Staged {
        return Err("path = \"staged\" is declared".to_owned());
    }
    if let Some(why) = &needs.host_only {
        return Err(why.clone());
    }
    if numbers {
        return Err("the CPU reads the sequence number in each frame (`sequence`)".to_owned());
    }
    if !others.is_empty() {
        let others = others.join(", ");
        return Err(format!("{others} read the frames in host memory anyway"));
    }
    let tried = topology
        .gpus
        .iter()
        .find(|there| there.ordinal == gpu)
        .and_then(|gpu| gpu.mappings.as_ref());
    let writer = writer(needs);
    let backends = writer.backends();
    let allowed = |backend| config.staging.backends.contains(backend);
    // A network card's driver is told where the memory is; no mapping is needed for that alone.
    if let Some(tried) = tried
        && (writer != Writer::Nic || needs.cpu_reads_memory)
        && !tried
            .iter()
            .any(|(backend, made)| backends.contains(backend) && allowed(backend) && made.is_ok())
    {
        let refused = tried
            .iter()
            .filter(|(backend, _)| backends.contains(backend));
        let refused: Vec<_> = refused
            .filter_map(|(backend, made)| Some(format!("{backend}: {}", made.as_ref().err()?)))
            .collect();
        let whom = if needs.cpu_reads_memory {
            "the CPU, which must look at what has come"
        } else {
            "it"
        };
        return Err(format!(
            "nothing maps the GPU's memory for {whom}: {}",
            refused.join("; ")
        ));
    }
    let Some(device) = &needs.device else {
        return Ok(("its model runs in this process".to_owned(), Vec::new()));
    };
    if needs.writer == Writer::Nic && is_emulated_nic(device) {
        return Ok(("its card is this process".to_owned(), Vec::new()));
    }
    let path = topology.p2p_path(&P2pQuery {
        device,
        gpu,
        bytes: bytes as u64,
        preference: needs.preference,
        direction: PeerAccess::Write,
    });
    let address = topology.address_of(device, gpu);
    let mut nics = topology.nics.iter();
    let nic = nics.find(|nic| address != device && nic.pci.as_deref() == Some(address));
    let why = match nic {
        Some(nic) => format!("{} at {address}: {}", nic.name, path.reason),
        None => path.reason,
    };
    if path.direct {
        Ok((why, path.warnings))
    } else {
        Err(why)
    }
}

/// Gives the engine of source `i` slots of its own where it cannot be held back.
fn carry(plan: &mut Plan, i: usize) {
    let source = &plan.sources[i];
    let Some(ring) = plan.rings.iter().find(|ring| ring.name == source.ring) else {
        return;
    };
    let (bytes, placement) = (ring.options().region_bytes(), ring.placement);
    let source = &mut plan.sources[i];
    let supports_backpressure = source.supports_backpressure;
    let Some(engine) = &mut source.engine else {
        return;
    };
    if !supports_backpressure {
        engine.private_slot_bytes = Some(bytes);
        source.notes.push(format!(
            "its engine goes round and cannot be held back: it has slots of its own on {placement}, frames are carried \
             out of them, and those that it overtook meanwhile are counted as overrun"
        ));
    }
}

/// Relates doorbells that a device is to ring to the engine that writes the kernel's input.
fn bells(plan: &mut Plan) {
    for kernel in &mut plan.kernels {
        let is_device = kernel
            .doorbell
            .as_ref()
            .is_some_and(|bell| bell.initiator == DoorbellInitiator::Device);
        if !is_device || kernel.dispatch != Some(Dispatch::Persistent) {
            continue;
        }
        let why = match plan
            .sources
            .iter_mut()
            .find(|source| source.ring == kernel.input)
        {
            Some(source) if source.path == DataPath::Direct && source.supports_backpressure => {
                let slots = |name: &str| {
                    let ring = plan.rings.iter().find(|ring| ring.name == name);
                    ring.map_or(0, |ring| ring.slots)
                };
                let (input, output) = (slots(&kernel.input), slots(&kernel.output));
                let on_gpu = plan
                    .rings
                    .iter()
                    .any(|ring| ring.name == kernel.input && ring.placement != Placement::Host);
                if !on_gpu {
                    "its ring lies in host memory".to_owned()
                } else if !kernel.guarantee {
                    "with guarantee = false the device would not wait for it".to_owned()
                } else if kernel.incomplete == Incomplete::Drop {
                    "with incomplete = \"drop\" it must not see every frame that the device writes"
                        .to_owned()
                } else if output < input + kernel.burst {
                    format!(
                        "ring `{}` has {output} slots: frames are worked on before the CPU knows of them, so it needs as \
                         many as `{}` and a burst, {}",
                        kernel.output,
                        kernel.input,
                        input + kernel.burst
                    )
                } else {
                    if let Some(engine) = &mut source.engine {
                        engine.doorbell_of = Some(kernel.name.clone());
                    }
                    continue;
                }
            }
            Some(source) => format!(
                "source `{}` does not write into the GPU's ring by itself: {}",
                source.name, source.reason
            ),
            // Told by `check::dispatches`.
            None => continue,
        };
        plan.unavailable.push(format!(
            "kernel `{}`: doorbell = \"device\" is not possible: {why}; write \"cpu\"",
            kernel.name
        ));
    }
}
