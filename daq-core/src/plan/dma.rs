//! Decides where DMA engines write: to the declared ring, to a host ring before it, or to private slots.
//!
//! | engine | memory of the ring | engine writes to | path |
//! |---|---|---|---|
//! | supports backpressure | host memory | the ring | direct |
//! | supports backpressure | a GPU that the device can write | the ring | direct |
//! | supports backpressure | another GPU | `RING@host`, which is copied | staged |
//! | free-running | any | private slots in the memory selected by the rows above | as above |
//!
//! The topology decides whether a device can write to a GPU. The data path is verified at startup. A NIC may be named
//! by its RDMA name. An emulated NIC has no PCI address, and the CPU executes its writes.

use super::{Config, DoorbellInitiator, Incomplete, Plan, PlannedCopy, nics};
use crate::entry::EngineRequirements;
use crate::gpu::Dispatch;
use crate::gpu::Writer;
use crate::region::Placement;
use crate::topology::DataPath;
use crate::topology::nic::is_emulated_nic;
use crate::topology::{P2pPreference, P2pQuery, PeerAccess, Topology};

/// Selects the memory that each DMA engine of a plan writes to. The plan's rings and readers must be complete.
pub(super) fn decide(plan: &mut Plan, config: &Config, topology: &Topology) {
    for i in 0..plan.sources.len() {
        let name = plan.sources[i].name.clone();
        let Some(source) = config.sources.iter().find(|source| source.name() == name) else {
            continue;
        };
        let facts = source.spec.facts();
        let Some(mut needs) = facts.engine else {
            continue;
        };
        let has_sequence = facts.frame_sequence.is_some();
        if needs.writer == Writer::Nic {
            let gpu = copy_to_gpu(plan, i).map(|copy| copy.route.device());
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
                let note =
                    format!("nics = \"auto\" selects {nic}, the network card nearest to the ring");
                plan.sources[i].notes.push(note);
            }
        }
        choose_ring(plan, i, &needs, has_sequence, config, topology);
        add_private_slots(plan, i);
    }
    connect_doorbells(plan);
}

/// Returns the inserted copy from the ring of source `i` to a GPU.
fn copy_to_gpu(plan: &Plan, i: usize) -> Option<PlannedCopy> {
    let written = &plan.sources[i].ring;
    let is_inserted = plan
        .ring(written)
        .is_some_and(|ring| ring.inserted.is_some());
    let mut copies = plan.copies.iter();
    let found = copies.find(|copy| copy.from == *written && copy.route.staged_to().is_some());
    let is_share = |copy: &PlannedCopy| plan.ring(&copy.to).is_some_and(|to| to.share.is_some());
    found.filter(|copy| is_inserted && !is_share(copy)).cloned()
}

/// Returns what writes to the memory: the device, or the CPU for an emulated NIC.
fn writer(needs: &EngineRequirements) -> Writer {
    match &needs.device {
        Some(device) if needs.writer == Writer::Nic && is_emulated_nic(device) => Writer::Cpu,
        _ => needs.writer,
    }
}

/// Selects the ring that the engine of source `i` writes to.
fn choose_ring(
    plan: &mut Plan,
    i: usize,
    needs: &EngineRequirements,
    has_sequence: bool,
    config: &Config,
    topology: &Topology,
) {
    let written = plan.sources[i].ring.clone();
    let Some(copy) = copy_to_gpu(plan, i) else {
        let source = &mut plan.sources[i];
        source.path = DataPath::Direct;
        source.reason = format!("{} to host memory", needs.action);
        return;
    };
    let gpu = copy.route.device();
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
    let found = direct_write(needs, has_sequence, &others, gpu, bytes, config, topology);
    let source = &mut plan.sources[i];
    match found {
        Err(why) => {
            source.reason = format!(
                "{} to host memory, not directly to the ring on cuda:{gpu}, because {why}",
                needs.action
            );
            if needs.preference == P2pPreference::Direct {
                plan.unavailable.push(format!(
                    "source `{}`: path = \"direct\" is not possible: {why}; use \"auto\" or \"staged\"",
                    source.name
                ));
            }
            if let Some(ring) = plan.rings.iter_mut().find(|ring| ring.name == written) {
                ring.reason = format!("{} to host memory", needs.action);
                ring.inserted = Some(format!("filled by the source, then copied to cuda:{gpu}"));
            }
        }
        Ok((why, warnings)) => {
            source.path = DataPath::Direct;
            source.reason =
                format!("the device writes directly to cuda:{gpu} ({why}); verified at startup");
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

/// Returns whether the engine can write to the GPU. The result is the reason and warnings if the engine can write,
/// otherwise the obstacle.
fn direct_write(
    needs: &EngineRequirements,
    has_sequence: bool,
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
    if has_sequence {
        return Err("the CPU must read the sequence number in each frame (`sequence`)".to_owned());
    }
    if !others.is_empty() {
        let others = others.join(", ");
        return Err(format!(
            "the frames are needed in host memory, because {others} read them from host memory"
        ));
    }
    let tried = topology
        .gpus
        .iter()
        .find(|there| there.ordinal == gpu)
        .and_then(|gpu| gpu.mappings.as_ref());
    let writer = writer(needs);
    let backends = writer.backends();
    let allowed = |backend| config.staging.backends.contains(backend);
    // A NIC needs no CPU mapping, because its driver gets the memory's address from the GPU's driver.
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
            "the CPU, which must read the received data"
        } else {
            "the device"
        };
        return Err(format!(
            "no backend can map GPU memory for {whom}: {}",
            refused.join("; ")
        ));
    }
    let Some(device) = &needs.device else {
        return Ok((
            "the emulated device runs in this process".to_owned(),
            Vec::new(),
        ));
    };
    if needs.writer == Writer::Nic && is_emulated_nic(device) {
        return Ok((
            "the emulated card runs in this process".to_owned(),
            Vec::new(),
        ));
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

/// Assigns private slots to the engine of source `i` if the engine does not support backpressure.
fn add_private_slots(plan: &mut Plan, i: usize) {
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
            "the free-running engine has no backpressure: it writes to private slots on {placement}, and daq \
             copies the frames to the ring; frames that the engine overwrites before they are copied are counted as overrun"
        ));
    }
}

/// Connects each doorbell that a device rings to the engine that writes the kernel's input.
fn connect_doorbells(plan: &mut Plan) {
    for kernel in &mut plan.kernels {
        let is_device = kernel
            .doorbell
            .as_ref()
            .is_some_and(|doorbell| doorbell.initiator == DoorbellInitiator::Device);
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
                    "the kernel's input ring is in host memory".to_owned()
                } else if !kernel.guarantee {
                    "with guarantee = false the device does not wait for the kernel".to_owned()
                } else if kernel.incomplete == Incomplete::Drop {
                    "with incomplete = \"drop\" the kernel must not process incomplete frames, but the device rings the doorbell for every frame"
                        .to_owned()
                } else if output < input + kernel.burst {
                    format!(
                        "ring `{}` has {output} slots, but needs the number of slots of `{}` plus one burst ({}), because the kernel processes \
                         frames before the CPU detects them",
                        kernel.output,
                        kernel.input,
                        input + kernel.burst,
                    )
                } else {
                    if let Some(engine) = &mut source.engine {
                        engine.doorbell_of = Some(kernel.name.clone());
                    }
                    continue;
                }
            }
            Some(source) => format!(
                "source `{}` does not write directly to the ring on the GPU: {}",
                source.name, source.reason
            ),
            // `check::dispatches` has already reported this.
            None => continue,
        };
        plan.unavailable.push(format!(
            "kernel `{}`: doorbell = \"device\" is not possible: {why}; use \"cpu\"",
            kernel.name
        ));
    }
}
